//! The daemon's side of the socket: starts the front, and passes its requests to the event loop.
//!
//! The daemon creates the listening socket, or gets it from the service manager, and keeps it. It
//! never accepts from the socket: the front does ([`crate::front`]), in a process of its own, which
//! this module starts, and starts again when it ends. The front reports connections by number, with
//! the uid and groups of the peer, and their requests. Permissions are checked for each request,
//! for the uid that the kernel reported. The event loop decides the order of the requests. Making
//! or taking over the socket fails if a system call does; a front that cannot be started is tried
//! again after a pause.

mod channel;
mod process;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netnice_api::direct::FlowNotification;
use netnice_api::{DoctorItem, Request, Response};
use tokio::sync::{mpsc, oneshot, watch};

use crate::peer::Peer;
use crate::quotas::Quota;
use process::{FrontProcess, FrontStart};

/// A request on its way to the service.
pub(crate) struct PendingRequest {
    /// The peer.
    pub peer: Peer,
    /// The request.
    pub request: Request,
    /// A pidfd, opened by the daemon, of the process that the request is about; `None` if the
    /// client named none.
    pub fd: Option<OwnedFd>,
    /// The connection that the request came on.
    pub connection: ConnectionHandle,
    /// The channel for the answer.
    pub reply: oneshot::Sender<Reply>,
}

/// An answer with its descriptors.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The answer.
    pub response: Response,
    /// Three descriptors with the answer to an attachment, otherwise none.
    pub fds: Vec<OwnedFd>,
}

impl From<Response> for Reply {
    fn from(response: Response) -> Reply {
        Reply {
            response,
            fds: Vec::new(),
        }
    }
}

/// A handle of a connection, for notifications.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionHandle {
    /// The connection's number; never reused in this daemon.
    pub number: u64,
    /// The number of the process that connected, as the kernel recorded it; 0 if it is unknown.
    pub pid: u32,
    /// The queue of notifications. Closed when the connection has ended.
    pub notifications: mpsc::Sender<FlowNotification>,
}

impl ConnectionHandle {
    /// A handle of a connection of this process with a new number, and the receiver of its
    /// notifications.
    pub(crate) fn new(pid: u32) -> (ConnectionHandle, mpsc::Receiver<FlowNotification>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (notifications, received) = mpsc::channel(MAX_NOTIFICATIONS);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        (
            ConnectionHandle {
                number,
                pid,
                notifications,
            },
            received,
        )
    }
}

/// The listening socket with its front. A socket that the daemon created has its name in the file
/// system until this is dropped; one that was passed to the daemon stays with its creator.
pub(crate) struct FrontSupervisor {
    listener: UnixListener,
    created_path: Option<PathBuf>,
    front_start: FrontStart,
    /// The present front.
    front: RefCell<FrontProcess>,
    /// Largest number of connections of a user other than root.
    most_of_user: watch::Sender<u64>,
}

impl FrontSupervisor {
    /// Listens at a path, replacing the socket of an earlier daemon. The caller holds the lock of
    /// the runtime folder, so no other daemon uses the path.
    ///
    /// # Errors
    /// If the socket cannot be made at this path.
    pub(crate) fn bind(path: &Path) -> io::Result<FrontSupervisor> {
        let beside = path.with_extension("new");
        let _ = fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside)?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o666))?;
        fs::rename(&beside, path)?;
        FrontSupervisor::new(listener, Some(path))
    }

    /// Takes over a socket that a service manager has created (sd_listen_fds(3)).
    ///
    /// # Errors
    /// If a system call on the socket fails.
    pub(crate) fn take_over(listener: UnixListener) -> io::Result<FrontSupervisor> {
        FrontSupervisor::new(listener, None)
    }

    fn new(listener: UnixListener, created_path: Option<&Path>) -> io::Result<FrontSupervisor> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let folder = address.as_pathname().and_then(Path::parent);
        Ok(FrontSupervisor {
            listener,
            created_path: created_path.map(Path::to_owned),
            front_start: FrontStart::process(folder.unwrap_or(Path::new("/"))),
            front: RefCell::default(),
            most_of_user: watch::Sender::new(Quota::Connections.describe().default),
        })
    }

    #[cfg(test)]
    fn in_thread(mut self) -> FrontSupervisor {
        self.front_start = FrontStart::Thread;
        self
    }

    /// Accepts descriptors that clients send, as on kernels before 6.16, which cannot refuse them.
    /// For tests.
    #[must_use]
    pub(crate) fn taking_descriptors(mut self) -> FrontSupervisor {
        self.front_start.take_descriptors();
        self
    }

    /// Serves until the receiver of `requests` is dropped. Must run in a local set.
    pub(crate) async fn serve(&self, requests: mpsc::Sender<PendingRequest>) {
        tokio::select! {
            () = requests.closed() => {}
            () = self.keep_front(&requests) => {}
        }
    }

    /// Starts a front whenever there is none.
    async fn keep_front(&self, requests: &mpsc::Sender<PendingRequest>) {
        let mut pause = MIN_PAUSE;
        loop {
            let started = Instant::now();
            let why = match self.front_start.start(&self.listener) {
                Ok((front, child)) => {
                    self.front.borrow_mut().begin(child);
                    let quota = self.most_of_user.subscribe();
                    channel::serve_front(front, requests.clone(), &self.front, quota).await
                }
                Err(error) => error,
            };
            let ended = self.end_front(KILL_DELAY).await;
            tracing::error!(
                "the front process ended: {why}{ended}; its connections are closed, and another \
                 one starts"
            );
            if started.elapsed() > MAX_PAUSE {
                pause = MIN_PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(MAX_PAUSE);
        }
    }

    /// Waits for the end of the front and returns its exit status as text. A front that has not
    /// ended within `kill_after` is killed.
    async fn end_front(&self, kill_after: Duration) -> String {
        let front = self.front.take();
        front.end(kill_after).await
    }

    /// Waits until the front has sent its last answers and ended. The caller has stopped
    /// [`FrontSupervisor::serve`].
    pub(crate) async fn end(self) {
        self.end_front(ANSWER_TIME).await;
    }

    /// Sets the largest number of connections of each user except root, for the front.
    pub(crate) fn set_connection_limit(&self, most_of_user: u64) {
        self.most_of_user.send_if_modified(|now| {
            let changes = *now != most_of_user;
            *now = most_of_user;
            changes
        });
    }

    /// The number of open connections that have sent a request, for each user except root.
    pub(crate) fn connections(&self) -> BTreeMap<u32, u64> {
        let mut connections = self.front.borrow().connections().clone();
        connections.remove(&0);
        connections
    }

    /// Reports how the front is confined.
    pub(crate) fn doctor(&self) -> DoctorItem {
        self.front.borrow().doctor()
    }
}

impl Drop for FrontSupervisor {
    fn drop(&mut self) {
        if let Some(path) = &self.created_path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Largest number of notifications that wait for a program that does not read. Further ones are
/// dropped.
const MAX_NOTIFICATIONS: usize = 4096;
/// The pause before the next front; doubled each time while fronts end quickly.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Time limit for a failed front to end before it is killed.
const KILL_DELAY: Duration = Duration::from_millis(50);
/// Time limit for the front to send answers and end when the daemon ends. It needs a tenth of a
/// second at most, unless it hangs.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// The longest pause. A front that lasted longer resets it to the shortest.
const MAX_PAUSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
