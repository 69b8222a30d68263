//! The control thread: serves the daemon, and follows programs, interface and signals.
//!
//! | input | what the thread does |
//! |---|---|
//! | requests of the daemon (`drivers/IFACE.sock`) | executes each, and replies to the requester |
//! | a program's pidfd | detaches the program if its process has ended, and sends an event |
//! | reports on disconnected programs | detaches the program, and sends an event |
//! | route netlink | reads the interface's state, and passes a change to the packet thread |
//! | each second | looks for receive queues that the interface has got |
//! | inotify, for memory files | stops charging users for files that are gone |
//! | SIGTERM, SIGINT | ends the driver |
//!
//! The `registry` turns requests into commands to the packet thread. Events go to all connections.
//! The thread replies to each request ([`DriverRequest`]) before it reads the next. It takes no
//! request from a connection while 1 MiB or more waits to be sent there.
//!
//! The driver outlives the daemon that opened its flows: the flows continue, and the next daemon
//! gets their list by a `census` request. The driver ends after a signal, a `stop` request or some
//! time without a program (the linger time). It ends with [`ControlError`] if the interface is
//! lost, waiting fails, the kernel refuses a step that no request caused, or the packet thread
//! ends. A request that fails gets the reason as its reply. [`Control::new`] fails if the kernel
//! refuses to watch a descriptor.

mod connection;
mod memory_files;
mod registry;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use netnice_api::driver::{
    DriverCall, DriverEvent, DriverMessage, DriverReply, DriverRequest, PacketThreadDoc,
};
use netnice_core::sched::Wire;
use netnice_core::units::{Nanos, Rate};
use netnice_kernel::netlink::Listener;
use netnice_ring::layout::Budget;
use rustix::event::{Timespec, epoll};

#[cfg(fuzzing)]
pub use connection::hostile;
pub use registry::RegistryError;
pub(crate) use registry::wire;

use crate::commands::{CommandSender, PacketThreadEnded};
use crate::link::{Ingress, Interface, Mode};
use crate::stop_file::StopFile;
use connection::{CloseReason, Connection, failed};
use memory_files::MemoryFiles;
use registry::{ProgramIdentity, Registry};

/// The state of the control thread.
pub(crate) struct Control {
    registry: Registry,
    listener: UnixListener,
    link_events: Listener,
    signals: UnixStream,
    epoll: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// How long the driver runs without a program; `None`: without limit.
    linger: Option<Duration>,
    empty_since: Option<Instant>,
    /// The file with the packet thread's stops, if there is to be one.
    stop_file: Option<StopFile>,
    /// The loop ends after this iteration.
    is_stopping: bool,
}

/// Why the driver ends.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The interface no longer exists or has become unusable. Holds the reason.
    #[error("{0}")]
    Lost(String),
    /// The packet thread has ended, or the kernel refused a step that no request caused.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Waiting failed.
    #[error("the control thread cannot wait: {0}")]
    Io(#[from] io::Error),
}

/// The sockets and the file of the control thread.
pub(crate) struct ControlSockets {
    /// The listening socket.
    pub(crate) listener: UnixListener,
    /// The file for the packet thread's stops; `None`: they are only counted.
    pub(crate) stop_file: Option<StopFile>,
    /// Notifications of interface changes, opened before the interface's state was read.
    pub(crate) link_events: Listener,
    /// Readable after a signal that ends the process.
    pub(crate) signals: UnixStream,
}

impl Control {
    /// Prepares the thread for a link of `rate` bit/s. `linger` is how long the driver runs without
    /// a program; `None`: without limit. [`Control::run`] does the work. Fails if a system call
    /// fails.
    pub(crate) fn new(
        commands: CommandSender,
        ingress: Ingress,
        sockets: ControlSockets,
        rate: u64,
        linger: Option<Duration>,
    ) -> io::Result<Control> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let registry = Registry::new(
            commands,
            ingress,
            rate,
            epoll.try_clone()?,
            MemoryFiles::new()?,
        );
        let ControlSockets {
            listener,
            link_events,
            signals,
            stop_file,
        } = sockets;
        listener.set_nonblocking(true)?;
        let control = Control {
            registry,
            listener,
            link_events,
            signals,
            epoll,
            connections: BTreeMap::new(),
            next_connection: CONNECTIONS,
            linger,
            empty_since: Some(Instant::now()),
            stop_file,
            is_stopping: false,
        };
        control.watch(control.listener.as_fd(), LISTENER)?;
        control.watch(control.signals.as_fd(), SIGNALS)?;
        control.watch(control.registry.wakeup_fd(), REPORTS)?;
        control.watch(control.link_events.as_fd(), LINK_EVENTS)?;
        control.watch(control.registry.ended_files(), MEMORY_FILES)?;
        Ok(control)
    }

    /// Serves until a signal, a `stop` request, the end of the linger time, or an error (see the
    /// module). XDP is detached afterwards. Fails with [`ControlError`].
    pub(crate) fn run(&mut self) -> Result<(), ControlError> {
        let served = self.serve();
        if let Some(file) = &mut self.stop_file {
            file.write();
        }
        if let Err(ControlError::Lost(why)) = &served {
            let _ = self.broadcast(&DriverEvent::InterfaceLost { why: why.clone() });
        }
        let stopped = self.registry.stop();
        served?;
        Ok(stopped?)
    }

    /// How frames pass between interface and driver.
    pub(crate) fn mode(&self) -> Mode {
        self.registry.ingress().mode()
    }

    /// Sets the text on the confinement of the process, and the packet thread, for the census.
    pub(crate) fn describe_process(&mut self, confinement: String, thread: PacketThreadDoc) {
        self.registry.describe_process(confinement, thread);
    }

    fn serve(&mut self) -> Result<(), ControlError> {
        self.read_interface()?;
        while !self.is_stopping {
            let until = self.next_timeout();
            let timeout =
                until.map(|until| duration(until.saturating_duration_since(Instant::now())));
            let mut events = [const { MaybeUninit::uninit() }; EVENTS];
            let woken = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(why) => return Err(io::Error::from(why).into()),
                Ok((woken, _)) => woken,
            };
            for event in &*woken {
                self.handle(event.data.u64(), event.flags)?;
            }
            self.report_disconnected()?;
            self.registry.handle_timeout(Instant::now())?;
            self.update_linger();
        }
        Ok(())
    }

    fn next_timeout(&self) -> Option<Instant> {
        let lingers = self.empty_since.zip(self.linger);
        let lingers = lingers.map(|(since, linger)| since + linger);
        [lingers, self.registry.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    fn handle(&mut self, from: u64, what: epoll::EventFlags) -> Result<(), ControlError> {
        match from {
            LISTENER => self.accept()?,
            SIGNALS => {
                let _ = self.signals.read(&mut [0; 16]);
                self.is_stopping = true;
            }
            // The loop polls the disconnected programs after each iteration.
            REPORTS => {}
            LINK_EVENTS => self.read_link_events()?,
            MEMORY_FILES => self.registry.forget_ended(),
            CONNECTIONS.. => self.serve_connection(from, what)?,
            program => {
                let program = (program - Registry::PIDFDS) as u32;
                // The program may be detached already.
                if self.registry.has_ended(program) {
                    self.registry.detach(program)?;
                    self.broadcast(&DriverEvent::ProgramEnded { program })?;
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), ControlError> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                std::thread::sleep(AFTER_FAILURE);
                return Ok(());
            }
        };
        let peer = netnice_kernel::peer::of(stream.as_fd());
        let mut connection = Connection::new(stream)?;
        let why = match peer {
            Ok(peer) if peer.uid != 0 => "only root may connect to a driver".to_owned(),
            Ok(_) if self.connections.len() >= MAX_CONNECTIONS => {
                format!("a driver has {MAX_CONNECTIONS} connections at most, and all are in use")
            }
            Ok(_) => {
                let number = self.next_connection;
                self.watch(connection.fd(), number)?;
                self.next_connection += 1;
                self.connections.insert(number, connection);
                return Ok(());
            }
            Err(error) => format!("cannot find the user of this connection: {error}"),
        };
        let _ = connection.send(&failed(0, &why), Vec::new());
        Ok(())
    }

    fn serve_connection(
        &mut self,
        number: u64,
        what: epoll::EventFlags,
    ) -> Result<(), ControlError> {
        let Some(mut connection) = self.connections.remove(&number) else {
            return Ok(());
        };
        let hung_up = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let mut done = connection.flush();
        if done.is_ok() && what.intersects(hung_up) {
            done = connection.receive();
        }
        while done.is_ok() {
            match connection.poll_call() {
                Ok(None) => break,
                Ok(Some(call)) => done = self.handle_call(call, &mut connection)?,
                Err(why) => done = Err(why),
            }
        }
        if let Err(why) = &done {
            if !matches!(why, CloseReason::HungUp) {
                tracing::warn!(%why, "closing a connection");
            }
            connection.close(why);
            let _ = epoll::delete(&self.epoll, connection.fd());
            return Ok(());
        }
        self.update_watch(&connection, number)?;
        self.connections.insert(number, connection);
        Ok(())
    }

    /// Executes a request. An outer error ends the driver, an inner error ends the connection.
    fn handle_call(
        &mut self,
        call: DriverCall,
        connection: &mut Connection,
    ) -> Result<Result<(), CloseReason>, ControlError> {
        let mut descriptors = Vec::new();
        let answered = match call.request {
            DriverRequest::Attach {
                pid,
                uid,
                flows,
                bytes,
                memory_limit,
                secret,
            } => {
                let budget = Budget { flows, bytes };
                let identity = ProgramIdentity {
                    pid,
                    uid,
                    memory_limit: memory_limit.unwrap_or(u64::MAX),
                    secret,
                };
                let attached =
                    self.registry
                        .attach(&identity, budget, connection.take_descriptor());
                attached.map(|attached| {
                    descriptors = attached.descriptors;
                    DriverReply::Attached {
                        program: attached.program,
                    }
                })
            }
            DriverRequest::KernelPath { place } => {
                let array = connection.take_descriptor();
                let set = self.registry.set_path_counter(place, array);
                set.map(|()| DriverReply::Done)
            }
            DriverRequest::Redirects { iface } => {
                let map = connection.take_descriptor();
                let set = self.registry.receive_redirected(&iface, map);
                set.map(|()| DriverReply::Done)
            }
            DriverRequest::Stop => {
                self.is_stopping = true;
                self.registry.stop().map(|()| DriverReply::Done)
            }
            other => self.execute(other),
        };
        let answer = match answered {
            Ok(answer) => answer,
            Err(why @ RegistryError::Ended(PacketThreadEnded)) => return Err(why.into()),
            Err(why) => DriverReply::Failed {
                why: why.to_string(),
            },
        };
        // A request for a flow of a program that the driver has detached fails. The event with the
        // reason of the end was sent before.
        let message = DriverMessage::Reply {
            id: call.id,
            reply: answer,
        };
        Ok(connection.send(&message, descriptors))
    }

    fn execute(&mut self, ask: DriverRequest) -> Result<DriverReply, RegistryError> {
        let done = |()| DriverReply::Done;
        let registry = &mut self.registry;
        if let (Some(file), true) = (&mut self.stop_file, counts(&ask)) {
            file.write();
        }
        match ask {
            DriverRequest::Wire {
                rate,
                kernel_rate,
                overhead,
                horizon_ns,
                ahead_ns,
            } => {
                let wire = wire(rate, overhead)?;
                let (horizon, ahead) = (Nanos(horizon_ns), Nanos(ahead_ns));
                let wire = Wire {
                    horizon,
                    ahead,
                    ..wire
                };
                registry.rewire(wire, Rate::new(kernel_rate)).map(done)
            }
            DriverRequest::Detach { program } => registry.detach(program).map(done),
            DriverRequest::Open(flow) => {
                let (flow, place) = registry.open(*flow)?;
                Ok(DriverReply::Opened {
                    flow,
                    slot: place.slot,
                    offset: place.offset,
                })
            }
            DriverRequest::Change {
                flow,
                contract,
                granted,
            } => registry.change(flow, contract, granted).map(done),
            DriverRequest::Readdress {
                flow,
                next_hop,
                mtu,
            } => registry.readdress(flow, next_hop, mtu).map(done),
            DriverRequest::Withdraw { flow } => registry.withdraw(flow).map(done),
            DriverRequest::Close { flow, reset } => {
                let counts = registry.close(flow, reset)?;
                Ok(DriverReply::Closed(Box::new(counts)))
            }
            DriverRequest::CodePoints(doc) => registry.set_code_points(&doc).map(done),
            DriverRequest::AwakeLimit { most_ppm } => registry.set_awake_limit(most_ppm).map(done),
            DriverRequest::Discard { patterns } => registry.discard(&patterns).map(done),
            DriverRequest::Classes { server } => registry.set_server(server.as_ref()).map(done),
            DriverRequest::Census => Ok(DriverReply::Census(Box::new(registry.census()?))),
            DriverRequest::CensusOf { flows } => {
                Ok(DriverReply::Census(Box::new(registry.census_of(&flows)?)))
            }
            DriverRequest::Totals => Ok(DriverReply::Totals(registry.totals()?)),
            DriverRequest::Redirect {
                place,
                target,
                contract,
                hold_ns,
            } => registry
                .redirect(place, target, contract, Nanos(hold_ns))
                .map(done),
            DriverRequest::EndRedirect { place } => registry.end_redirect(place).map(done),
            DriverRequest::Redirects { .. }
            | DriverRequest::Attach { .. }
            | DriverRequest::KernelPath { .. }
            | DriverRequest::Stop => Ok(DriverReply::Done),
        }
    }

    fn read_link_events(&mut self) -> Result<(), ControlError> {
        loop {
            match self.link_events.read() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.read_interface();
                }
                // The kernel dropped notifications. The interface's state is read in any case.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads the interface's state and takes it over.
    fn read_interface(&mut self) -> Result<(), ControlError> {
        let was = self.registry.ingress().interface().clone();
        let lost = |why: String| ControlError::Lost(why);
        let is = Interface::read(&was.name).map_err(|why| lost(why.to_string()))?;
        if is.index != was.index {
            let name = &was.name;
            return Err(lost(format!(
                "{name} is another interface now: its index was {}, and is {}",
                was.index, is.index
            )));
        }
        is.fits().map_err(|why| lost(why.to_string()))?;
        if (is.mac, is.mtu) != (was.mac, was.mtu) {
            self.registry.update_interface(is.mac, is.mtu)?;
        }
        self.registry.set_segmentation(is.cuts_segments)?;
        Ok(self.registry.set_link(is.is_up)?)
    }

    fn report_disconnected(&mut self) -> Result<(), ControlError> {
        while let Some((program, why)) = self.registry.poll_disconnected()? {
            tracing::warn!(program, %why, "disconnected a program");
            self.broadcast(&DriverEvent::ProgramDisconnected { program, why })?;
        }
        Ok(())
    }

    /// Sends an event to all connections.
    fn broadcast(&mut self, event: &DriverEvent) -> Result<(), ControlError> {
        let message = DriverMessage::Event(event.clone());
        for (number, mut connection) in std::mem::take(&mut self.connections) {
            match connection.send(&message, Vec::new()) {
                Ok(()) => {
                    self.update_watch(&connection, number)?;
                    self.connections.insert(number, connection);
                }
                Err(why) => {
                    tracing::warn!(%why, "closing a connection");
                    let _ = epoll::delete(&self.epoll, connection.fd());
                }
            }
        }
        Ok(())
    }

    fn update_linger(&mut self) {
        match (self.registry.is_empty(), self.empty_since) {
            (false, _) => self.empty_since = None,
            (true, None) => self.empty_since = Some(Instant::now()),
            (true, Some(since)) => {
                self.is_stopping |= self.linger.is_some_and(|linger| since.elapsed() >= linger);
            }
        }
    }

    fn watch(&self, fd: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    fn update_watch(&self, connection: &Connection, number: u64) -> io::Result<()> {
        let mut what = epoll::EventFlags::empty();
        what.set(epoll::EventFlags::IN, connection.wants_to_read());
        what.set(epoll::EventFlags::OUT, connection.wants_to_write());
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::modify(&self.epoll, connection.fd(), data, what)?)
    }
}

/// Whether a request reads counters. The daemon sends such requests several times a second; they
/// are also the times at which stops are written to the file.
fn counts(request: &DriverRequest) -> bool {
    matches!(
        request,
        DriverRequest::Census | DriverRequest::CensusOf { .. } | DriverRequest::Totals
    )
}

fn duration(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const REPORTS: u64 = 2;
const LINK_EVENTS: u64 = 3;
const MEMORY_FILES: u64 = 4;
/// The epoll numbers of connections begin here; those of programs lie below, from
/// [`Registry::PIDFDS`] on.
const CONNECTIONS: u64 = 1 << 40;
const EVENTS: usize = 64;
/// Largest number of connections: the daemon, the daemon before it, and some observers.
const MAX_CONNECTIONS: usize = 16;
/// Keeps the loop from spinning while the table of descriptors is full.
const AFTER_FAILURE: Duration = Duration::from_millis(20);
