//! The control thread: serves the daemon's connections and follows programs, interface and signals.
//!
//! ```text
//!  drivers/IFACE.sock ──▶ calls ─┐
//!  pidfds of programs ───────────┤                                ┌─▶ answers, to the caller
//!  disconnected programs ────────┼─▶ registry ─▶ orders ─▶ turn ──┤
//!  route netlink ────────────────┤                                └─▶ events, to all connections
//!  SIGTERM, SIGINT ──────────────┘
//! ```
//! The thread answers each call before it reads the next. It takes no call from a connection whose
//! send queue is nearly full. The driver outlives the daemon that opened its flows: the flows
//! continue, and the next daemon asks for them. The thread ends with an error if the interface is
//! lost, waiting fails, or the packet thread ends.

mod connection;
mod files;
mod registry;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use netnice_api::driver::{DriverCall, DriverEvent, DriverMessage, DriverReply, DriverRequest};
use netnice_kernel::netlink::Listener;
use netnice_ring::layout::Budget;
use rustix::event::{Timespec, epoll};

#[cfg(fuzzing)]
pub use connection::hostile;
pub use registry::{RegistryError, wire};

use crate::link::{Ear, Interface, Mode};
use crate::orders::{Ended, Orders};
use connection::{Connection, EndOf, failed};
use files::Files;
use registry::{Guest, Registry};

/// The state of the control thread.
pub struct Control {
    registry: Registry,
    listener: UnixListener,
    links: Listener,
    signals: UnixStream,
    watched: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// How long the driver runs without a program; `None`: without limit.
    linger: Option<Duration>,
    empty_since: Option<Instant>,
    /// The loop ends after this iteration.
    ends: bool,
}

/// Why the driver ends.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The interface is gone or has become unusable.
    #[error("{0}")]
    Lost(String),
    /// The registry failed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Waiting failed.
    #[error("the control thread cannot wait: {0}")]
    Io(#[from] io::Error),
}

/// The sockets of the control thread.
pub struct Ends {
    /// The listening socket.
    pub listener: UnixListener,
    /// Notifications of interface changes, opened before the interface's state was read.
    pub links: Listener,
    /// Readable after a signal that ends the process.
    pub signals: UnixStream,
}

impl Control {
    /// Prepares the thread for a link of `rate` bit/s. [`Control::run`] does the work.
    pub fn new(
        orders: Orders,
        ear: Ear,
        ends: Ends,
        rate: u64,
        linger: Option<Duration>,
    ) -> io::Result<Control> {
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let registry = Registry::new(orders, ear, rate, watched.try_clone()?, Files::new()?);
        let Ends {
            listener,
            links,
            signals,
        } = ends;
        listener.set_nonblocking(true)?;
        let control = Control {
            registry,
            listener,
            links,
            signals,
            watched,
            connections: BTreeMap::new(),
            next: CONNECTIONS,
            linger,
            empty_since: Some(Instant::now()),
            ends: false,
        };
        control.watch(control.listener.as_fd(), LISTENER)?;
        control.watch(control.signals.as_fd(), SIGNALS)?;
        control.watch(control.registry.told(), TOLD)?;
        control.watch(control.links.as_fd(), LINKS)?;
        control.watch(control.registry.gone(), FILES)?;
        Ok(control)
    }

    /// Serves until a signal, a stop call, the linger time or the loss of the interface. XDP is
    /// detached afterwards.
    pub fn run(&mut self) -> Result<(), ControlError> {
        let served = self.serve();
        if let Err(ControlError::Lost(why)) = &served {
            let _ = self.tell(&DriverEvent::InterfaceLost { why: why.clone() });
        }
        let stopped = self.registry.stop();
        served?;
        Ok(stopped?)
    }

    /// How frames pass between interface and driver.
    pub fn mode(&self) -> Mode {
        self.registry.ear().mode()
    }

    /// Sets the text on the confinement of the process, for the census.
    pub fn confined(&mut self, how: String) {
        self.registry.confined(how);
    }

    fn serve(&mut self) -> Result<(), ControlError> {
        self.look()?;
        while !self.ends {
            let until = self.until();
            let timeout =
                until.map(|until| duration(until.saturating_duration_since(Instant::now())));
            let mut events = [const { MaybeUninit::uninit() }; EVENTS];
            let woken = match epoll::wait(&self.watched, &mut events, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(why) => return Err(io::Error::from(why).into()),
                Ok((woken, _)) => woken,
            };
            for event in &*woken {
                self.handle(event.data.u64(), event.flags)?;
            }
            self.pass_on_expelled()?;
            self.registry.handle_timeout(Instant::now())?;
            self.count_loneliness();
        }
        Ok(())
    }

    fn until(&self) -> Option<Instant> {
        let lonely = self.empty_since.zip(self.linger);
        let lonely = lonely.map(|(since, linger)| since + linger);
        [lonely, self.registry.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    fn handle(&mut self, from: u64, what: epoll::EventFlags) -> Result<(), ControlError> {
        match from {
            LISTENER => self.accept()?,
            SIGNALS => {
                let _ = self.signals.read(&mut [0; 16]);
                self.ends = true;
            }
            // The loop polls the disconnected programs after each iteration.
            TOLD => {}
            LINKS => self.hear_of_links()?,
            FILES => self.registry.forget_gone(),
            CONNECTIONS.. => self.converse(from, what)?,
            program => {
                let program = (program - Registry::LIVES) as u32;
                // The program may be detached already.
                if self.registry.has_ended(program) {
                    self.registry.detach(program)?;
                    self.tell(&DriverEvent::ProgramEnded { program })?;
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
            Ok(peer) if peer.uid != 0 => "a driver is root's alone to speak to",
            Ok(_) if self.connections.len() >= MOST_CONNECTIONS => "too many connections are open",
            Ok(_) => {
                let number = self.next;
                self.watch(connection.fd(), number)?;
                self.next += 1;
                self.connections.insert(number, connection);
                return Ok(());
            }
            Err(_) => "the kernel does not say who connects",
        };
        let _ = connection.say(&failed(0, &why), Vec::new());
        Ok(())
    }

    fn converse(&mut self, number: u64, what: epoll::EventFlags) -> Result<(), ControlError> {
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
                Ok(Some(call)) => done = self.answer(call, &mut connection)?,
                Err(why) => done = Err(why),
            }
        }
        if let Err(why) = &done {
            if !matches!(why, EndOf::HungUp) {
                tracing::warn!(%why, "a connection ends");
            }
            connection.end(why);
            let _ = epoll::delete(&self.watched, connection.fd());
            return Ok(());
        }
        self.watch_again(&connection, number)?;
        self.connections.insert(number, connection);
        Ok(())
    }

    /// Executes a call. An outer error ends the driver, an inner error ends the connection.
    fn answer(
        &mut self,
        call: DriverCall,
        connection: &mut Connection,
    ) -> Result<Result<(), EndOf>, ControlError> {
        let mut descriptors = Vec::new();
        let answered = match call.request {
            DriverRequest::Attach {
                pid,
                uid,
                flows,
                bytes,
                memory_limit,
            } => {
                let budget = Budget { flows, bytes };
                let guest = Guest {
                    pid,
                    uid,
                    most: memory_limit.unwrap_or(u64::MAX),
                };
                let attached = self
                    .registry
                    .attach(&guest, budget, connection.take_descriptor());
                attached.map(|attached| {
                    descriptors = attached.descriptors;
                    DriverReply::Attached {
                        program: attached.program,
                    }
                })
            }
            DriverRequest::Stop => {
                self.ends = true;
                self.registry.stop().map(|()| DriverReply::Done)
            }
            other => self.carry_out(other),
        };
        let answer = match answered {
            Ok(answer) => answer,
            Err(why @ RegistryError::Ended(Ended)) => return Err(why.into()),
            Err(why) => DriverReply::Failed {
                why: why.to_string(),
            },
        };
        // A call for a flow of a disconnected program fails. The event with the reason goes out
        // before.
        let word = DriverMessage::Reply {
            id: call.id,
            reply: answer,
        };
        Ok(connection.say(&word, descriptors))
    }

    fn carry_out(&mut self, ask: DriverRequest) -> Result<DriverReply, RegistryError> {
        let done = |()| DriverReply::Done;
        let registry = &mut self.registry;
        match ask {
            DriverRequest::Wire { rate, overhead } => registry.rewire(rate, overhead).map(done),
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
            DriverRequest::Close { flow } => {
                let counts = registry.close(flow)?;
                Ok(DriverReply::Closed(Box::new(counts)))
            }
            DriverRequest::Discard { patterns } => registry.discard(&patterns).map(done),
            DriverRequest::Census => Ok(DriverReply::Census(Box::new(registry.census()?))),
            DriverRequest::Totals => Ok(DriverReply::Totals(registry.totals()?)),
            DriverRequest::Attach { .. } | DriverRequest::Stop => Ok(DriverReply::Done),
        }
    }

    fn hear_of_links(&mut self) -> Result<(), ControlError> {
        loop {
            match self.links.read() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.look(),
                // The kernel dropped notifications. The interface's state is read in any case.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads the interface's state and takes it over.
    fn look(&mut self) -> Result<(), ControlError> {
        let was = self.registry.ear().interface().clone();
        let lost = |why: String| ControlError::Lost(why);
        let is = Interface::look(&was.name).map_err(|why| lost(why.to_string()))?;
        if is.index != was.index {
            let name = &was.name;
            return Err(lost(format!("{name} is another interface than it was")));
        }
        is.fits().map_err(|why| lost(why.to_string()))?;
        if (is.mac, is.mtu) != (was.mac, was.mtu) {
            self.registry.reshape(is.mac, is.mtu)?;
        }
        Ok(self.registry.link(is.is_up)?)
    }

    fn pass_on_expelled(&mut self) -> Result<(), ControlError> {
        while let Some((program, why)) = self.registry.poll_expelled()? {
            tracing::warn!(program, %why, "expelled");
            self.tell(&DriverEvent::ProgramDisconnected { program, why })?;
        }
        Ok(())
    }

    /// Sends an event to all connections.
    fn tell(&mut self, event: &DriverEvent) -> Result<(), ControlError> {
        let word = DriverMessage::Event(event.clone());
        for (number, mut connection) in std::mem::take(&mut self.connections) {
            match connection.say(&word, Vec::new()) {
                Ok(()) => {
                    self.watch_again(&connection, number)?;
                    self.connections.insert(number, connection);
                }
                Err(why) => {
                    tracing::warn!(%why, "a connection ends");
                    let _ = epoll::delete(&self.watched, connection.fd());
                }
            }
        }
        Ok(())
    }

    fn count_loneliness(&mut self) {
        match (self.registry.is_empty(), self.empty_since) {
            (false, _) => self.empty_since = None,
            (true, None) => self.empty_since = Some(Instant::now()),
            (true, Some(since)) => {
                self.ends |= self.linger.is_some_and(|linger| since.elapsed() >= linger);
            }
        }
    }

    fn watch(&self, fd: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.watched, fd, data, epoll::EventFlags::IN)?)
    }

    fn watch_again(&self, connection: &Connection, number: u64) -> io::Result<()> {
        let mut what = epoll::EventFlags::empty();
        what.set(epoll::EventFlags::IN, connection.wants_to_read());
        what.set(epoll::EventFlags::OUT, connection.wants_to_write());
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::modify(&self.watched, connection.fd(), data, what)?)
    }
}

fn duration(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const TOLD: u64 = 2;
const LINKS: u64 = 3;
const FILES: u64 = 4;
/// The epoll numbers of connections begin here; those of programs lie below, from
/// [`Registry::LIVES`] on.
const CONNECTIONS: u64 = 1 << 40;
const EVENTS: usize = 64;
/// The daemon, the daemon before it, and some observers.
const MOST_CONNECTIONS: usize = 16;
/// Keeps the loop from spinning while the table of descriptors is full.
const AFTER_FAILURE: Duration = Duration::from_millis(20);
