//! Waits for changes on this machine that the daemon did not make.
//!
//! - **Route netlink** reports changes of interfaces, qdiscs, classes and filters ([`LinkEvents`]).
//!   Changes that the daemon's own sockets requested are skipped. It also reports changes of
//!   routes, addresses, interfaces and next hops ([`RouteEvents`]).
//! - **inotify** reports control groups that appear and disappear beside held groups (a restarted
//!   unit gets a new group; the eBPF programs have bound it to the unit since its creation), and
//!   written unit files ([`FolderEvents`]).
//! - **ICMP errors** reach the flows whose packets they quote ([`IcmpErrors`]).
//! - **The exit ring** of the eBPF programs reports that a process that was a member of a `pid:` or
//!   `name:` target has ended ([`ExitEvents`]).
//!
//! All of them may lose events, so the service also checks each second. Lost route events are
//! reported as a change of all routes. An error of a read is logged and counts as lost events.
//! Opening a source fails if its descriptor cannot be made. A wait fails only if the executor
//! cannot wait for the descriptor any more.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use netnice_kernel::enforce::Exits;
use netnice_kernel::icmp_errors::{ErrorSocket, IcmpError};
use netnice_kernel::netlink::Listener;
use netnice_kernel::routes::{self, RouteChange};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// Waits for changes of interfaces, qdiscs, classes and filters.
pub(super) struct LinkEvents {
    listener: AsyncFd<Listener>,
    /// The port ids of the sockets whose changes are the daemon's own.
    own_ports: Vec<u32>,
}

impl LinkEvents {
    /// Subscribes. Changes that the sockets of these port ids request are skipped. Fails if the
    /// netlink socket cannot be made.
    pub(super) fn open(own_ports: Vec<u32>) -> io::Result<LinkEvents> {
        Ok(LinkEvents {
            listener: async_fd(Listener::open(&[GROUP_LINK, GROUP_TC])?)?,
            own_ports,
        })
    }

    /// Waits for a change that the daemon did not make, or for lost events. Fails if the executor
    /// cannot wait.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.listener.readable_mut().await?;
            let own_ports = &self.own_ports;
            match ready.try_io(|listener| listener.get_mut().read()) {
                Ok(Ok(messages)) => {
                    if messages
                        .iter()
                        .any(|message| !own_ports.contains(&message.by))
                    {
                        return Ok(());
                    }
                }
                // The socket's buffer overflowed: events were lost, so report a change.
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
                    return Ok(());
                }
                Ok(Err(error)) => {
                    ready.clear_ready();
                    return log_read_error("interfaces", &error);
                }
                Err(_would_block) => {}
            }
        }
    }
}

/// Logs an error of a read. The caller treats it as lost events: it checks the present state, and
/// waits for the next event before it reads again.
fn log_read_error(what: &str, error: &io::Error) -> io::Result<()> {
    tracing::warn!(%error, "cannot read events of {what}");
    Ok(())
}

/// Waits for changes of routes, addresses, interfaces and next hops.
pub(super) struct RouteEvents(AsyncFd<routes::RouteListener>);

impl RouteEvents {
    /// Subscribes to changes of routes, addresses, interfaces and next hops. Fails if the netlink
    /// socket cannot be made.
    pub(super) fn open() -> io::Result<RouteEvents> {
        async_fd(routes::RouteListener::open()?).map(RouteEvents)
    }

    /// Waits for changes and returns them. Lost events count as a change of all routes. Fails if
    /// the executor cannot wait.
    pub(super) async fn changed(&mut self) -> io::Result<Vec<RouteChange>> {
        loop {
            let mut ready = self.0.readable_mut().await?;
            match ready.try_io(|listener| listener.get_mut().read()) {
                Ok(Ok(changes)) => return Ok(changes),
                Ok(Err(error)) => {
                    ready.clear_ready();
                    return log_read_error("routes", &error).map(|()| vec![RouteChange::Routes]);
                }
                Err(_would_block) => {}
            }
        }
    }
}

/// Waits for ICMP errors of one address family, and bounds how many are read: at most
/// [`ERRORS_PER_READ`] at a time, and on average one in [`ERROR_INTERVAL`]. The kernel drops what
/// does not fit in the socket's buffer meanwhile.
pub(super) struct IcmpErrors {
    socket: AsyncFd<ErrorSocket>,
    next_read: tokio::time::Instant,
}

impl IcmpErrors {
    /// Waits for errors of this socket. Fails if the executor cannot wait for it.
    pub(super) fn new(socket: ErrorSocket) -> io::Result<IcmpErrors> {
        Ok(IcmpErrors {
            socket: async_fd(socket)?,
            next_read: tokio::time::Instant::now(),
        })
    }

    /// Waits for errors and returns them. Fails if the executor cannot wait.
    pub(super) async fn next(&mut self) -> io::Result<Vec<IcmpError>> {
        tokio::time::sleep_until(self.next_read).await;
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| socket.get_ref().read(ERRORS_PER_READ)) {
                Ok(Ok(errors)) => {
                    let pause = ERROR_INTERVAL * ERRORS_PER_READ as u32;
                    self.next_read = tokio::time::Instant::now() + pause;
                    return Ok(errors);
                }
                Ok(Err(error)) => {
                    ready.clear_ready();
                    return log_read_error("ICMP", &error).map(|()| Vec::new());
                }
                Err(_would_block) => {}
            }
        }
    }
}

/// Waits for ends of processes that were members of `pid:` and `name:` targets.
pub(super) struct ExitEvents(AsyncFd<Exits>);

impl ExitEvents {
    /// Watches the exit ring. Fails if the executor cannot wait for it.
    pub(super) fn new(exits: Exits) -> io::Result<ExitEvents> {
        async_fd(exits).map(ExitEvents)
    }

    /// Waits until a process that was a member of a `pid:` or `name:` target has ended. Fails if
    /// the executor cannot wait.
    pub(super) async fn next_exit(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable_mut().await?;
            let exits = ready.get_inner_mut().read();
            ready.clear_ready();
            if exits.iter().any(|exit| exit.process != 0) {
                return Ok(());
            }
        }
    }
}

/// Waits for changes in watched folders.
pub(super) struct FolderEvents {
    what: WatchFlags,
    inotify: AsyncFd<OwnedFd>,
    /// The watch descriptor of each folder.
    watched: BTreeMap<PathBuf, i32>,
}

impl FolderEvents {
    /// Starts with no folder; reports entries that appear or disappear. Fails if the kernel gives
    /// no inotify descriptor.
    pub(super) fn open() -> io::Result<FolderEvents> {
        FolderEvents::open_with(WatchFlags::empty())
    }

    /// Starts with no folder; reports entries that appear, disappear or are written. Fails as
    /// [`FolderEvents::open`].
    pub(super) fn open_for_files() -> io::Result<FolderEvents> {
        FolderEvents::open_with(WatchFlags::CLOSE_WRITE)
    }

    fn open_with(more: WatchFlags) -> io::Result<FolderEvents> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(FolderEvents {
            what: WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MOVE
                | WatchFlags::ONLYDIR
                | more,
            inotify: async_fd(inotify)?,
            watched: BTreeMap::new(),
        })
    }

    /// Watches exactly these folders. A folder that cannot be watched is skipped.
    pub(super) fn watch(&mut self, folders: &BTreeSet<PathBuf>) {
        let inotify = self.inotify.get_ref();
        self.watched.retain(|folder, watch| {
            let stays = folders.contains(folder);
            if !stays {
                let _ = inotify::remove_watch(inotify, *watch);
            }
            stays
        });
        for folder in folders {
            if self.watched.contains_key(folder) {
                continue;
            }
            if let Ok(watch) = inotify::add_watch(inotify, folder, self.what) {
                self.watched.insert(folder.clone(), watch);
            }
        }
    }

    /// Waits until an entry of a watched folder appears or disappears, or until one is written if
    /// [`FolderEvents::open_for_files`] made this value. Fails if the executor cannot wait.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.inotify.readable_mut().await?;
            match ready.try_io(|inotify| read_ended_watches(inotify.get_ref())) {
                Ok(Ok(ended)) => {
                    // The folder is gone: forget its watch, so that the folder can be watched again
                    // when it exists again.
                    self.watched.retain(|_, watch| !ended.contains(watch));
                    return Ok(());
                }
                Ok(Err(error)) => {
                    ready.clear_ready();
                    return log_read_error("folders", &error);
                }
                Err(_would_block) => {}
            }
        }
    }
}

/// Reads the events that are present. Returns the descriptors of watches that the kernel has
/// removed.
fn read_ended_watches(inotify: &OwnedFd) -> io::Result<Vec<i32>> {
    let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
    let mut events = inotify::Reader::new(inotify, &mut buffer);
    let mut ended = Vec::new();
    loop {
        let event = events.next()?;
        if event.events().contains(ReadFlags::IGNORED) {
            ended.push(event.wd());
        }
        if events.is_buffer_empty() {
            return Ok(ended);
        }
    }
}

/// Registers a descriptor with the executor.
#[expect(
    deprecated,
    reason = "the other constructors are unsafe, for types whose descriptor changes while it is \
        watched; those here \
              own theirs and keep it"
)]
fn async_fd<T: AsRawFd>(inner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(inner)
}

/// Bytes of inotify events in one read; the kernel requires room for the longest event.
const EVENT_BYTES: usize = 4096;
/// `RTNLGRP_LINK` and `RTNLGRP_TC`.
const GROUP_LINK: u32 = 1;
const GROUP_TC: u32 = 4;

/// Largest number of ICMP messages that are read at once.
const ERRORS_PER_READ: usize = 32;
/// Average interval between two ICMP messages that are read: 1,000 in a second.
const ERROR_INTERVAL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Waits for a change, and fails if none is reported.
    async fn changed(events: &mut FolderEvents) {
        let changed = timeout(Duration::from_secs(10), events.changed()).await;
        changed.expect("a change").expect("it can be read");
    }

    async fn check_folder_that_ends() {
        let name = format!("netnice-watched-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a folder");
        let folders = BTreeSet::from([folder.clone(), folder.join("not there")]);
        let mut events = FolderEvents::open().expect("inotify");
        events.watch(&folders);
        assert!(events.watched.keys().eq([&folder]));
        // The events of entries with these names fill the buffer several times.
        for number in 0..100 {
            fs::write(folder.join(format!("{number:0200}")), "").expect("a file");
        }
        changed(&mut events).await;
        fs::remove_dir_all(&folder).expect("removed");
        while !events.watched.is_empty() {
            changed(&mut events).await;
        }
        fs::create_dir(&folder).expect("a folder");
        events.watch(&folders);
        let none = timeout(Duration::from_millis(20), events.changed()).await;
        assert!(none.is_err(), "{none:?}");
        fs::create_dir(folder.join("entry")).expect("an entry");
        changed(&mut events).await;
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_folder_that_ended_and_exists_again_is_watched_again() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(check_folder_that_ends());
    }
}
