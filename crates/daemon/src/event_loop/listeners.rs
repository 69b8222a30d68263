//! Waits for changes on this machine that the daemon did not make.
//!
//! - **Route netlink** reports changes of interfaces, qdiscs, classes and filters ([`LinkEvents`]).
//!   Changes that the daemon's own sockets requested are skipped. It also reports changes of
//!   routes, addresses and next hops ([`RouteEvents`]).
//! - **inotify** reports control groups that appear and disappear beside held groups (a restarted
//!   unit gets a new group; the eBPF programs have bound it to the unit since its creation), and
//!   written unit files ([`FolderEvents`]).
//! - **The exit ring** of the eBPF programs reports that a process that was a member of a target
//!   has ended ([`ExitEvents`]).
//!
//! All of them may lose events, so the service also checks each second. Lost route events are
//! reported as a change of all routes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::PathBuf;

use netnice_kernel::enforce::Exits;
use netnice_kernel::netlink::Listener;
use netnice_kernel::routes;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::unix::AsyncFd;

/// Waits for changes of interfaces, qdiscs, classes and filters.
pub(super) struct LinkEvents {
    listener: AsyncFd<Listener>,
    /// The port ids of the sockets whose changes are the daemon's own.
    own_ports: Vec<u32>,
}

impl LinkEvents {
    /// Subscribes. Changes that the sockets of these port ids request are skipped.
    pub(super) fn open(own_ports: Vec<u32>) -> io::Result<LinkEvents> {
        Ok(LinkEvents {
            listener: async_fd(Listener::open(&[GROUP_LINK, GROUP_TC])?)?,
            own_ports,
        })
    }

    /// Waits for a change that the daemon did not make, or for lost events.
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
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
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

/// Waits for changes of routes and next hops.
pub(super) struct RouteEvents(AsyncFd<routes::RouteListener>);

impl RouteEvents {
    /// Subscribes to changes of routes, addresses, interfaces and next hops.
    pub(super) fn open() -> io::Result<RouteEvents> {
        async_fd(routes::RouteListener::open()?).map(RouteEvents)
    }

    /// Waits for changes and returns them. Lost events count as a change of all routes.
    pub(super) async fn changed(&mut self) -> io::Result<Vec<routes::Change>> {
        loop {
            let mut ready = self.0.readable_mut().await?;
            match ready.try_io(|listener| listener.get_mut().read()) {
                Ok(Ok(changes)) => return Ok(changes),
                Ok(Err(error)) => {
                    ready.clear_ready();
                    return log_read_error("routes", &error).map(|()| vec![routes::Change::Routes]);
                }
                Err(_would_block) => {}
            }
        }
    }
}

/// Waits for ends of processes that were members of `pid:` and `name:` targets.
pub(super) struct ExitEvents(AsyncFd<Exits>);

impl ExitEvents {
    /// Watches the exit ring.
    pub(super) fn new(exits: Exits) -> io::Result<ExitEvents> {
        async_fd(exits).map(ExitEvents)
    }

    /// Waits until a process that was a member of a `pid:` or `name:` target has ended.
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
    what: AddWatchFlags,
    inotify: AsyncFd<Handle>,
    watched: BTreeMap<PathBuf, WatchDescriptor>,
}

struct Handle(Inotify);

impl AsRawFd for Handle {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl FolderEvents {
    /// Starts with no folder; reports entries that appear or disappear.
    pub(super) fn open() -> io::Result<FolderEvents> {
        FolderEvents::open_with(AddWatchFlags::empty())
    }

    /// Starts with no folder; reports entries that appear, disappear or are written.
    pub(super) fn open_for_files() -> io::Result<FolderEvents> {
        FolderEvents::open_with(AddWatchFlags::IN_CLOSE_WRITE)
    }

    fn open_with(more: AddWatchFlags) -> io::Result<FolderEvents> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        Ok(FolderEvents {
            what: AddWatchFlags::IN_CREATE
                | AddWatchFlags::IN_DELETE
                | AddWatchFlags::IN_MOVE
                | AddWatchFlags::IN_ONLYDIR
                | more,
            inotify: async_fd(Handle(inotify))?,
            watched: BTreeMap::new(),
        })
    }

    /// Watches exactly these folders. A folder that cannot be watched is skipped.
    pub(super) fn watch(&mut self, folders: &BTreeSet<PathBuf>) {
        let inotify = &self.inotify.get_ref().0;
        self.watched.retain(|folder, watch| {
            let stays = folders.contains(folder);
            if !stays {
                let _ = inotify.rm_watch(*watch);
            }
            stays
        });
        for folder in folders {
            if self.watched.contains_key(folder) {
                continue;
            }
            if let Ok(watch) = inotify.add_watch(folder, self.what) {
                self.watched.insert(folder.clone(), watch);
            }
        }
    }

    /// Waits until an entry of a watched folder appears or disappears, or is written after
    /// [`FolderEvents::open_for_files`].
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.inotify.readable_mut().await?;
            let read =
                ready.try_io(|handle| handle.get_ref().0.read_events().map_err(io::Error::from));
            match read {
                Ok(Ok(events)) => {
                    // The folder is gone: forget its watch, so that the folder can be watched again
                    // when it exists again.
                    for event in &events {
                        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                            self.watched.retain(|_, watch| *watch != event.wd);
                        }
                    }
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

/// `RTNLGRP_LINK` and `RTNLGRP_TC`.
const GROUP_LINK: u32 = 1;
const GROUP_TC: u32 = 4;
