//! Runs the driver process with given [`Options`]: opens the interface, starts the packet thread
//! and the doorbell thread, makes the calling thread the control thread, and removes the driver's
//! lock file and socket at the end. Fails with [`RunError`] if set-up fails or the control thread
//! ends with an error.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvError, Sender};
use std::thread;
use std::time::Duration;

use netnice_api::RuntimeDir;
use netnice_api::driver::PacketThreadDoc;
use netnice_core::units::Nanos;
use netnice_kernel::netlink::Listener;
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, Rlimit};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::commands::{self, CommandReceiver};
use crate::confine::{self, Role};
use crate::control::{Control, ControlError, ControlSockets, RegistryError, wire};
use crate::datapath::Datapath;
use crate::doorbells::Doorbells;
use crate::event_loop::{self, EventLoop, SchedulingClass, set_scheduling};
use crate::link::{Link, LinkError, Mode};
use crate::stop_file::StopFile;

/// The options of a driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// The runtime folder, for socket and lock.
    pub runtime: RuntimeDir,
    /// The interface.
    pub iface: String,
    /// The link's rate for the direct path, in bit/s.
    pub rate: u64,
    /// Bytes that the wire adds to each packet, beyond its length.
    pub overhead: u64,
    /// How frames pass between interface and driver; `None`: the first mode that works.
    pub mode: Option<Mode>,
    /// The processor of the packet thread; `None`: any.
    pub processor: Option<usize>,
    /// Whether processors are kept awake while packets of `cell` contracts leave.
    pub keep_awake: bool,
    /// How long the driver runs without a program; `None`: without limit.
    pub linger: Option<Duration>,
    /// The stops of the packet thread are written to the file [`RuntimeDir::driver_stops`].
    pub write_stops: bool,
    /// Each thread tries after set-up the calls that must be refused, and logs the results.
    pub self_check: bool,
}

impl Options {
    /// Creates the file of stops, if it is wanted. Fails if it cannot be created.
    fn create_stop_file(&self) -> Result<Option<File>, RunError> {
        let path = self.runtime.driver_stops(&self.iface);
        let file = self.write_stops.then(|| StopFile::create(&path));
        file.transpose().map_err(unusable(&path))
    }
}

/// Why a driver cannot start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Another driver serves the interface.
    #[error(
        "another netnice-driver (process {holder}) serves {iface}: it holds the lock in {}",
        folder.display()
    )]
    Taken {
        /// The interface.
        iface: String,
        /// The folder of locks.
        folder: PathBuf,
        /// The other driver's process number, from its lock file.
        holder: String,
    },
    /// The runtime folder cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Unusable {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The interface cannot be used.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The link's rate is out of range.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The packet thread cannot run on the requested processor.
    #[error("the packet thread cannot run on processor {processor}: {source}")]
    Processor {
        /// The processor.
        processor: usize,
        /// The cause.
        source: io::Error,
    },
    /// A thread, a descriptor or another resource of the process cannot be made, or the scheduler
    /// refuses the link's rate and overhead.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
    /// The control thread ended with an error.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Serves an interface until SIGTERM, SIGINT, a `stop` request, the end of the linger time, or an
/// error.
///
/// # Errors
/// If set-up fails or the control thread ends with an error.
pub fn run(options: &Options) -> Result<(), RunError> {
    let wire = wire(options.rate, options.overhead)?;
    // The last steps as root.
    let folder = folder(&options.runtime)?;
    raise_limits();
    let device = options.keep_awake.then(event_loop::open_device);
    let stops = options.create_stop_file()?;
    let mut confinement = confine::become_driver();
    let lock_and_socket = LockAndSocket::take(&options.runtime, &folder, &options.iface)?;
    let (signals, raised) = UnixStream::pair()?;
    signals.set_nonblocking(true)?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, raised.try_clone()?)?;
    }
    let link_events = Listener::open(&[GROUP_LINK])?;
    let (link, ingress) = Link::open(&options.iface, options.mode)?;
    let datapath = Datapath::new(wire, link.interface().mac);
    let datapath = datapath.map_err(|why| io::Error::other(why.to_string()))?;
    let mut event_loop = EventLoop::new(datapath, link)?;
    if let Some(device) = device {
        keep_awake(&mut event_loop, device);
    }
    let confinements = ThreadConfinement::new(options.self_check);
    let drop_rights = confinements.of(Role::Doorbells);
    let (doorbells, doorbell_thread) = Doorbells::with_thread(drop_rights)?;
    event_loop.datapath().set_doorbells(doorbells);
    let (sender, receiver) = commands::pair()?;
    event_loop.watch_wakeup(receiver.wakeup_fd())?;
    let stop_file = stops.map(|file| StopFile::new(file, event_loop.pass_on_stops()));
    let listener = lock_and_socket.listen()?;
    let sockets = ControlSockets {
        listener,
        link_events,
        signals,
        stop_file,
    };
    let mut control = Control::new(sender, ingress, sockets, options.rate, options.linger)?;
    thread::scope(|scope| -> Result<(), RunError> {
        let (report_class, class) = mpsc::channel();
        let processor = options.processor;
        let drop_rights = confinements.of(Role::Packets);
        thread::Builder::new()
            .name("packets".to_owned())
            .spawn_scoped(scope, move || {
                let class = set_scheduling(processor);
                let failed = class.is_err();
                drop_rights();
                let id = rustix::thread::gettid()
                    .as_raw_nonzero()
                    .get()
                    .cast_unsigned();
                let _ = report_class.send(class.map(|class| (class, id)));
                match failed {
                    true => {}
                    false => run_packets(event_loop, receiver),
                }
            })?;
        let started = class.recv();
        let packet_thread = packet_thread(started, processor)?;
        confinements.of(Role::Control)();
        for (role, done) in confinements.results() {
            confinement.record(&format!("the system call filter of thread {role:?}"), done);
        }
        let (name, mode) = (&options.iface, control.mode().name());
        let confined = confinement.text();
        tracing::info!(iface = %name, mode, rate = options.rate, confined, "serving");
        control.describe_process(confined, packet_thread);
        let served = control.run();
        // The packet thread ends when the control side of its queues is dropped.
        drop(control);
        Ok(served?)
    })?;
    // The packet thread has dropped its [`Doorbells`].
    doorbell_thread.join();
    Ok(())
}

/// The packet thread, from its own report: its scheduling class and its id. Warns if the class is
/// not SCHED_FIFO. Fails if the thread cannot run on this processor, or has ended.
fn packet_thread(
    report: Result<io::Result<(SchedulingClass, u32)>, RecvError>,
    processor: Option<usize>,
) -> Result<PacketThreadDoc, RunError> {
    let (class, id) = match report {
        Ok(Ok(started)) => started,
        Ok(Err(source)) => {
            let processor = processor.unwrap_or(0);
            return Err(RunError::Processor { processor, source });
        }
        Err(_) => return Err(io::Error::other("the packet thread ended").into()),
    };
    if class == SchedulingClass::Ordinary {
        tracing::warn!(
            "cannot use SCHED_FIFO (needs CAP_SYS_NICE): packets are late beside other programs"
        );
    }
    let processor = processor.and_then(|number| u32::try_from(number).ok());
    Ok(PacketThreadDoc { id, processor })
}

/// Keeps processors awake with this device. Warns if that is impossible.
fn keep_awake(event_loop: &mut EventLoop, device: io::Result<File>) {
    if let Err(error) = device.and_then(|device| event_loop.keep_awake_with(device)) {
        tracing::warn!(
            %error,
            "cannot keep processors awake between packets (needs root): departures are less exact"
        );
    }
}

/// Lets each thread give up its rights, and collects the results.
struct ThreadConfinement {
    send: Sender<(Role, io::Result<()>)>,
    results: Receiver<(Role, io::Result<()>)>,
    probes: bool,
}

impl ThreadConfinement {
    fn new(probes: bool) -> ThreadConfinement {
        let (send, results) = mpsc::channel();
        ThreadConfinement {
            send,
            results,
            probes,
        }
    }

    /// The closure that a thread calls after set-up.
    fn of(&self, role: Role) -> impl FnOnce() + Send + use<> {
        let (send, probes) = (self.send.clone(), self.probes);
        move || {
            let done = confine::drop_rights(role);
            if probes {
                tracing::info!(thread = ?role, tried = confine::probe(), "self-check");
            }
            // The receiver lives until all threads have sent.
            let _ = send.send((role, done));
        }
    }

    fn results(self) -> impl Iterator<Item = (Role, io::Result<()>)> {
        drop(self.send);
        self.results.into_iter()
    }
}

/// The packet thread's loop.
fn run_packets(mut event_loop: EventLoop, mut receiver: CommandReceiver) {
    while receiver.execute(&mut event_loop) {
        event_loop.iterate(LONGEST_SLEEP);
    }
}

/// Raises the limit of descriptors, turns transparent huge pages off and locks memory. A refused
/// step is skipped.
fn raise_limits() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit
            .maximum
            .map_or(Some(DESCRIPTORS), |most| Some(most.max(DESCRIPTORS))),
        maximum: limit.maximum.map(|most| most.max(DESCRIPTORS)),
    };
    if rustix::process::setrlimit(Resource::Nofile, raised).is_err() {
        let most = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        let _ = rustix::process::setrlimit(Resource::Nofile, most);
    }
    turn_off_huge_pages();
    // Touched pages stay; untouched pages take no memory.
    let what = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = rustix::mm::mlockall(what) {
        tracing::warn!(%error, "cannot lock memory (needs CAP_IPC_LOCK): it may be swapped out");
    }
}

/// Turns transparent huge pages off. With huge pages set to `always` (Debian's default), khugepaged
/// merges pages in the background: the packet thread waits while 2 MiB are copied, and untouched
/// memory gets allocated. From Linux 6.18 on, memory files can still have those that the driver
/// requests before it uses them.
fn turn_off_huge_pages() {
    // SAFETY: the call changes a flag of this process and accesses no memory.
    let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, EXCEPT_ADVISED, 0, 0) };
    if done == 0 {
        return;
    }
    // Linux before 6.18.
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot turn transparent huge pages off");
    }
}

/// Makes the folder of the drivers in a runtime folder; see [`confine::folder`].
fn folder(runtime: &RuntimeDir) -> Result<PathBuf, RunError> {
    let path = runtime.path();
    if !path.try_exists().map_err(unusable(path))? {
        let created = fs::create_dir_all(path)
            .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)));
        created.map_err(unusable(path))?;
    }
    let folder = runtime.drivers();
    confine::folder(&folder).map_err(unusable(&folder))?;
    Ok(folder)
}

/// The lock and the socket of one interface in a runtime folder; both are removed on drop.
struct LockAndSocket {
    socket: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl LockAndSocket {
    fn take(runtime: &RuntimeDir, folder: &Path, iface: &str) -> Result<LockAndSocket, RunError> {
        let lock_path = folder.join(format!("{iface}.lock"));
        let socket = runtime.driver_socket(iface);
        // A driver that ends removes the lock file. So the locked file may no longer be the one
        // with this name.
        let lock = loop {
            let mut options = File::options();
            let file = options.create(true).truncate(false).read(true).write(true);
            let file = file.open(&lock_path).map_err(unusable(&lock_path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => {
                    let holder = fs::read_to_string(&lock_path).unwrap_or_default();
                    return Err(RunError::Taken {
                        iface: iface.to_owned(),
                        folder: folder.to_owned(),
                        holder: holder.trim().to_owned(),
                    });
                }
                Err(fs::TryLockError::Error(source)) => return Err(unusable(&lock_path)(source)),
            }
            let locked = file.metadata().map_err(unusable(&lock_path))?.ino();
            if fs::metadata(&lock_path).is_ok_and(|metadata| metadata.ino() == locked) {
                break file;
            }
        };
        let written = fs::write(&lock_path, format!("{}\n", std::process::id()));
        written.map_err(unusable(&lock_path))?;
        Ok(LockAndSocket {
            socket,
            lock_path,
            _lock: lock,
        })
    }

    /// Listens; replaces a socket that a killed driver has left.
    fn listen(&self) -> Result<UnixListener, RunError> {
        let new_socket = self.socket.with_extension("new");
        let _ = fs::remove_file(&new_socket);
        let listener = UnixListener::bind(&new_socket).map_err(unusable(&new_socket))?;
        fs::set_permissions(&new_socket, Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&new_socket, &self.socket))
            .map_err(unusable(&self.socket))?;
        Ok(listener)
    }
}

impl Drop for LockAndSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.lock_path);
    }
}

fn unusable(path: &Path) -> impl FnOnce(io::Error) -> RunError {
    let path = path.to_owned();
    move |source| RunError::Unusable { path, source }
}

/// `RTNLGRP_LINK`.
const GROUP_LINK: u32 = 1;
/// The longest sleep of the packet thread. Commands, frames and doorbells end a sleep earlier.
const LONGEST_SLEEP: Nanos = Nanos(10_000_000_000);
/// `PR_THP_DISABLE_EXCEPT_ADVISED`: huge pages only where they are requested.
const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
/// The requested limit of descriptors: five for each of 13,000 programs.
const DESCRIPTORS: u64 = 65_536;
