//! Watching: what changes on this machine without our doing, heard of at once.
//!
//! - **Route netlink** tells of interfaces, qdiscs, classes and filters. What our own sockets asked for is passed over.
//! - **inotify** tells of control groups that come and go beside those that are held (a unit that is restarted gets a new
//!   group; the kernel's side has taken it for the unit's when it was made), and of unit files.
//! - **The exit ring** of the eBPF programs tells of members that end.
//!
//! All of them may lose events, so the service also looks by itself each second.

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

/// Hears of changes on interfaces and qdiscs.
pub(super) struct Links {
    listener: AsyncFd<Listener>,
    /// The sockets whose changes are our own.
    ours: Vec<u32>,
}

impl Links {
    /// Begins to listen; changes that these sockets ask for are passed over.
    pub(super) fn open(ours: Vec<u32>) -> io::Result<Links> {
        Ok(Links {
            listener: watched(Listener::open(&[GROUP_LINK, GROUP_TC])?)?,
            ours,
        })
    }

    /// Waits until somebody else has changed something.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.listener.readable_mut().await?;
            let ours = &self.ours;
            match ready.try_io(|listener| listener.get_mut().read()) {
                Ok(Ok(messages)) => {
                    if messages.iter().any(|message| !ours.contains(&message.by)) {
                        return Ok(());
                    }
                }
                // More has happened than the kernel could keep for us.
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                    return Ok(());
                }
                Ok(Err(error)) => {
                    ready.clear_ready();
                    return unread("interfaces", &error);
                }
                Err(_would_block) => {}
            }
        }
    }
}

/// Something could not be read of what has happened. That is as if events were lost: whoever waits looks by itself.
/// The caller waits for the next event before it reads again.
fn unread(what: &str, error: &io::Error) -> io::Result<()> {
    tracing::warn!(%error, "cannot read what has changed of {what}");
    Ok(())
}

/// Hears of changes of ways and stations.
pub(super) struct Ways(AsyncFd<routes::Heard>);

impl Ways {
    /// Begins to listen.
    pub(super) fn open() -> io::Result<Ways> {
        watched(routes::Heard::open()?).map(Ways)
    }

    /// Waits until something has changed; tells what.
    pub(super) async fn changed(&mut self) -> io::Result<Vec<routes::Change>> {
        loop {
            let mut ready = self.0.readable_mut().await?;
            match ready.try_io(|heard| heard.get_mut().read()) {
                Ok(Ok(changes)) => return Ok(changes),
                Ok(Err(error)) => {
                    ready.clear_ready();
                    return unread("ways", &error).map(|()| vec![routes::Change::Ways]);
                }
                Err(_would_block) => {}
            }
        }
    }
}

/// Hears of members that end.
pub(super) struct Ends(AsyncFd<Exits>);

impl Ends {
    /// Begins to listen.
    pub(super) fn new(exits: Exits) -> io::Result<Ends> {
        watched(exits).map(Ends)
    }

    /// Waits until a member of a process target has ended.
    pub(super) async fn ended(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable_mut().await?;
            let ends = ready.get_inner_mut().read();
            ready.clear_ready();
            if ends.iter().any(|end| end.own != 0) {
                return Ok(());
            }
        }
    }
}

/// Hears of folders that come and go.
pub(super) struct Folders {
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

impl Folders {
    /// Begins to listen for what comes and goes, in no folder yet.
    pub(super) fn open() -> io::Result<Folders> {
        Folders::listen(AddWatchFlags::empty())
    }

    /// Begins to listen for what comes, goes or is written, in no folder yet.
    pub(super) fn open_for_files() -> io::Result<Folders> {
        Folders::listen(AddWatchFlags::IN_CLOSE_WRITE)
    }

    fn listen(more: AddWatchFlags) -> io::Result<Folders> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        Ok(Folders {
            what: AddWatchFlags::IN_CREATE
                | AddWatchFlags::IN_DELETE
                | AddWatchFlags::IN_MOVE
                | AddWatchFlags::IN_ONLYDIR
                | more,
            inotify: watched(Handle(inotify))?,
            watched: BTreeMap::new(),
        })
    }

    /// Watches in these folders and no others. A folder that cannot be watched is left out.
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

    /// Waits until something in a watched folder has come or gone.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.inotify.readable_mut().await?;
            let read =
                ready.try_io(|handle| handle.get_ref().0.read_events().map_err(io::Error::from));
            match read {
                Ok(Ok(events)) => {
                    // A watched folder that is gone can be watched anew when it is there again.
                    for event in &events {
                        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                            self.watched.retain(|_, watch| *watch != event.wd);
                        }
                    }
                    return Ok(());
                }
                Ok(Err(error)) => {
                    ready.clear_ready();
                    return unread("folders", &error);
                }
                Err(_would_block) => {}
            }
        }
    }
}

/// Lets the executor watch a descriptor.
#[expect(
    deprecated,
    reason = "the other constructors are unsafe, for types whose descriptor changes while it is watched; those here \
              own theirs and keep it"
)]
fn watched<T: AsRawFd>(inner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(inner)
}

/// `RTNLGRP_LINK` and `RTNLGRP_TC`.
const GROUP_LINK: u32 = 1;
const GROUP_TC: u32 = 4;
