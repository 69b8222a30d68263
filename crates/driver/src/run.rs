//! The driver as a process: it takes an interface, starts its two threads, and leaves nothing behind.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use netnice_api::RuntimeDir;
use netnice_core::units::Nanos;
use netnice_kernel::netlink::Listener;
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, Rlimit};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::bells::Bells;
use crate::confine::{self, Role};
use crate::control::{Control, ControlError, Ends, RegistryError, wire};
use crate::link::{Link, LinkError, Mode};
use crate::orders::{self, Inbox};
use crate::serve::{self, Pace, Server, pace};
use crate::turn::Turn;

/// What a driver is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where its socket and its lock are.
    pub runtime: RuntimeDir,
    /// The interface.
    pub iface: String,
    /// What the direct path may use of the link, in bit/s.
    pub rate: u64,
    /// Bytes that the wire adds to each packet.
    pub overhead: u64,
    /// How frames pass; None: the best way that works.
    pub mode: Option<Mode>,
    /// The processor of the packet thread.
    pub processor: Option<usize>,
    /// Processors are kept awake while packets of `cell` contracts leave.
    pub keep_awake: bool,
    /// How long it stays without a program. None: for ever.
    pub linger: Option<Duration>,
    /// Each thread tries what it must not be able to do, and says what came of it.
    pub self_check: bool,
}

/// Why a driver cannot start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Another driver has the interface.
    #[error("another netnice-driver (process {holder}) has {iface} in {}", folder.display())]
    Taken {
        /// The interface.
        iface: String,
        /// The folder.
        folder: PathBuf,
        /// Who has it, as they said.
        holder: String,
    },
    /// The runtime folder.
    #[error("cannot use {}: {source}", path.display())]
    Unusable {
        /// What cannot be used.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The interface.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// What it was started with.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The packet thread cannot be where it was asked to be.
    #[error("the packet thread cannot run on processor {processor}: {source}")]
    Processor {
        /// Which.
        processor: usize,
        /// Why.
        source: io::Error,
    },
    /// Something that every process can have.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
    /// It ended.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Serves an interface until it is told to end, or nobody has needed it for a while.
pub fn run(options: &Options) -> Result<(), RunError> {
    let wire = wire(options.rate, options.overhead)?;
    // The last that root does.
    let folder = folder(&options.runtime)?;
    have_what_it_takes();
    let wish = options.keep_awake.then(serve::wish);
    let mut confinement = confine::become_driver();
    let place = Place::take(&options.runtime, &folder, &options.iface)?;
    let (signals, raised) = UnixStream::pair()?;
    signals.set_nonblocking(true)?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, raised.try_clone()?)?;
    }
    let links = Listener::open(&[GROUP_LINK])?;
    let (link, ear) = Link::open(&options.iface, options.mode)?;
    let turn = Turn::new(wire, link.interface().mac);
    let turn = turn.map_err(|why| io::Error::other(why.to_string()))?;
    let mut server = Server::new(turn, link)?;
    let wished = wish.map(|wish| wish.and_then(|wish| server.keep_awake_by(wish)));
    if let Some(Err(error)) = wished {
        tracing::warn!(%error, "processors may fall asleep between packets (keeping them awake needs root)");
    }
    let settles = Settles::new(options.self_check);
    let settle = settles.of(Role::Bells);
    let (bells, belfry) = Bells::with_thread(settle)?;
    server.turn().ring_by(bells);
    let (orders, inbox) = orders::pair()?;
    server.also(inbox.bell())?;
    let listener = place.listen()?;
    let ends = Ends {
        listener,
        links,
        signals,
    };
    let mut control = Control::new(orders, ear, ends, options.rate, options.linger)?;
    thread::scope(|scope| -> Result<(), RunError> {
        let (say, paced) = mpsc::channel();
        let processor = options.processor;
        let settle = settles.of(Role::Packets);
        thread::Builder::new()
            .name("packets".to_owned())
            .spawn_scoped(scope, move || {
                let how = pace(processor);
                let fails = how.is_err();
                settle();
                let _ = say.send(how);
                match fails {
                    true => {}
                    false => forward(server, inbox),
                }
            })?;
        match paced.recv() {
            Ok(Ok(Pace::Fifo)) => {}
            Ok(Ok(Pace::Ordinary)) => tracing::warn!(
                "SCHED_FIFO is refused (it needs CAP_SYS_NICE): packets are later beside other programs"
            ),
            Ok(Err(source)) => {
                let processor = processor.unwrap_or(0);
                return Err(RunError::Processor { processor, source });
            }
            Err(_) => return Err(io::Error::other("the packet thread ended").into()),
        }
        settles.of(Role::Control)();
        for (role, done) in settles.all() {
            confinement.lack(&format!("the filter of thread {role:?}"), done);
        }
        let (name, mode) = (&options.iface, control.mode().name());
        let confined = confinement.text();
        tracing::info!(iface = %name, mode, rate = options.rate, confined, "serves");
        control.confined(confined);
        let served = control.run();
        // Without its orders the packet thread ends too.
        drop(control);
        Ok(served?)
    })?;
    // The packet thread had its other end.
    belfry.join();
    Ok(())
}

/// How each thread gives up what it does not need, and what came of it.
struct Settles {
    tell: Sender<(Role, io::Result<()>)>,
    told: Receiver<(Role, io::Result<()>)>,
    tries: bool,
}

impl Settles {
    fn new(tries: bool) -> Settles {
        let (tell, told) = mpsc::channel();
        Settles { tell, told, tries }
    }

    /// What a thread is to call when it is set up.
    fn of(&self, role: Role) -> impl FnOnce() + Send + use<> {
        let (tell, tries) = (self.tell.clone(), self.tries);
        move || {
            let done = confine::settle(role);
            if tries {
                tracing::info!(thread = ?role, tried = confine::tried(), "self-check");
            }
            // Whoever asks waits for it.
            let _ = tell.send((role, done));
        }
    }

    fn all(self) -> impl Iterator<Item = (Role, io::Result<()>)> {
        drop(self.tell);
        self.told.into_iter()
    }
}

/// The packet thread.
fn forward(mut server: Server, mut inbox: Inbox) {
    while inbox.work(&mut server) {
        server.round(LONGEST_SLEEP);
    }
}

/// Descriptors for many programs, and memory that is not taken away meanwhile. What is refused is done without.
fn have_what_it_takes() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let more = Rlimit {
        current: limit
            .maximum
            .map_or(Some(DESCRIPTORS), |most| Some(most.max(DESCRIPTORS))),
        maximum: limit.maximum.map(|most| most.max(DESCRIPTORS)),
    };
    if rustix::process::setrlimit(Resource::Nofile, more).is_err() {
        let most = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        let _ = rustix::process::setrlimit(Resource::Nofile, most);
    }
    // Where huge pages are `always` made (Debian's default), khugepaged puts pages together behind the back of the packet
    // thread, which waits while 2 MiB are copied; and what was never touched takes memory then.
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages may be made meanwhile");
    }
    // What is touched stays; what is never touched takes nothing.
    let what = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = rustix::mm::mlockall(what) {
        tracing::warn!(%error, "memory may be swapped out (keeping it needs CAP_IPC_LOCK)");
    }
}

/// The folder of the drivers of a runtime folder; see [`confine::folder`].
fn folder(runtime: &RuntimeDir) -> Result<PathBuf, RunError> {
    let whole = runtime.path();
    if !whole.exists() {
        let made = fs::create_dir_all(whole)
            .and_then(|()| fs::set_permissions(whole, Permissions::from_mode(0o755)));
        made.map_err(unusable(whole))?;
    }
    let folder = runtime.drivers();
    confine::folder(&folder).map_err(unusable(&folder))?;
    Ok(folder)
}

/// The lock and the socket of one interface in a runtime folder; both are removed with it.
struct Place {
    socket: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl Place {
    fn take(runtime: &RuntimeDir, folder: &Path, iface: &str) -> Result<Place, RunError> {
        let lock_path = folder.join(format!("{iface}.lock"));
        let socket = runtime.driver_socket(iface);
        // A driver that leaves removes the file: then what was locked is no longer what has the name.
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
            if fs::metadata(&lock_path).is_ok_and(|there| there.ino() == locked) {
                break file;
            }
        };
        let said = fs::write(&lock_path, format!("{}\n", std::process::id()));
        said.map_err(unusable(&lock_path))?;
        Ok(Place {
            socket,
            lock_path,
            _lock: lock,
        })
    }

    /// Listens; a socket that a killed driver has left there is replaced.
    fn listen(&self) -> Result<UnixListener, RunError> {
        let beside = self.socket.with_extension("new");
        let _ = fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside).map_err(unusable(&beside))?;
        fs::set_permissions(&beside, Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&beside, &self.socket))
            .map_err(unusable(&self.socket))?;
        Ok(listener)
    }
}

impl Drop for Place {
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
/// Orders, frames and doorbells end a sleep.
const LONGEST_SLEEP: Nanos = Nanos(10_000_000_000);
/// Five for each of thousands of programs.
const DESCRIPTORS: u64 = 65_536;
