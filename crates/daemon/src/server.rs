//! The daemon's side of the socket: starts the front, and passes its requests to the event loop.
//!
//! The daemon creates the listening socket and keeps it, but never accepts from it: the front does
//! ([`crate::front`]), in a process of its own, which this module starts, and starts again when it
//! ends. The front reports connections by number, their peers' uids, and their requests.
//! Permissions are checked for each request, for the uid that the kernel reported. The event loop
//! decides the order of the requests.

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
use process::{Running, Starts};

/// A request on its way to the service.
pub struct Ask {
    /// The peer.
    pub peer: Peer,
    /// The request.
    pub request: Request,
    /// A pidfd, opened by the daemon, of the process that the request is about.
    pub fd: Option<OwnedFd>,
    /// The connection that it came on.
    pub guest: Guest,
    /// The channel for the answer.
    pub reply: oneshot::Sender<Told>,
}

/// An answer with its descriptors.
#[derive(Debug)]
pub struct Told {
    /// The answer.
    pub response: Response,
    /// Three descriptors with the answer to an attachment, otherwise none.
    pub fds: Vec<OwnedFd>,
}

impl From<Response> for Told {
    fn from(response: Response) -> Told {
        Told {
            response,
            fds: Vec::new(),
        }
    }
}

/// A handle of a connection, for notifications.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Its number; never reused in this daemon.
    pub number: u64,
    /// The queue of notifications. Closed when the connection has ended.
    pub news: mpsc::Sender<FlowNotification>,
}

impl Guest {
    /// A new connection, and the receiver of its notifications.
    pub fn new() -> (Guest, mpsc::Receiver<FlowNotification>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (news, told) = mpsc::channel(MOST_NEWS);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        (Guest { number, news }, told)
    }
}

/// The listening socket with its front. A socket that the daemon created has its name in the file
/// system until this is dropped; one that was passed to the daemon stays with its creator.
pub struct Server {
    listener: UnixListener,
    ours: Option<PathBuf>,
    starts: Starts,
    /// The present front.
    running: RefCell<Running>,
    /// Largest number of connections of a user.
    most_of_user: watch::Sender<u64>,
}

impl Server {
    /// Listens at a path, replacing the socket of an earlier daemon. The caller holds the lock of
    /// the runtime folder, so no other daemon uses the path.
    pub fn bind(path: &Path) -> io::Result<Server> {
        let beside = path.with_extension("new");
        let _ = fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside)?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o666))?;
        fs::rename(&beside, path)?;
        Server::over(listener, Some(path))
    }

    /// Takes over a socket that a service manager has created (sd_listen_fds(3)).
    pub fn take_over(listener: UnixListener) -> io::Result<Server> {
        Server::over(listener, None)
    }

    fn over(listener: UnixListener, ours: Option<&Path>) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let folder = address.as_pathname().and_then(Path::parent);
        Ok(Server {
            listener,
            ours: ours.map(Path::to_owned),
            starts: Starts::process(folder.unwrap_or(Path::new("/"))),
            running: RefCell::default(),
            most_of_user: watch::Sender::new(Quota::Connections.describe().default),
        })
    }

    #[cfg(test)]
    fn in_thread(mut self) -> Server {
        self.starts = Starts::Thread;
        self
    }

    /// Accepts descriptors that clients send, as on kernels before 6.16, which cannot refuse them.
    /// For tests.
    #[must_use]
    pub fn taking_descriptors(mut self) -> Server {
        self.starts.take_descriptors();
        self
    }

    /// Serves until the receiver of `asks` is dropped. Must run in a local set.
    pub async fn serve(&self, asks: mpsc::Sender<Ask>) {
        tokio::select! {
            () = asks.closed() => {}
            () = self.keep_front(&asks) => {}
        }
    }

    /// Starts a front whenever there is none.
    async fn keep_front(&self, asks: &mpsc::Sender<Ask>) {
        let mut pause = SHORTEST_PAUSE;
        loop {
            let started = Instant::now();
            let why = match self.starts.start(&self.listener) {
                Ok((front, child)) => {
                    self.running.borrow_mut().begin(child);
                    let quota = self.most_of_user.subscribe();
                    channel::attend(front, asks.clone(), &self.running, quota).await
                }
                Err(error) => error,
            };
            let ended = self.end_front(LAST_BREATH).await;
            tracing::error!(
                "the process that reads the socket ended: {why}{ended}; its connections are closed, and another one starts"
            );
            if started.elapsed() > LONGEST_PAUSE {
                pause = SHORTEST_PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Waits for the end of the front and returns its exit status as text. A front that has not
    /// ended within `patience` is killed.
    async fn end_front(&self, patience: Duration) -> String {
        let running = self.running.take();
        running.end(patience).await
    }

    /// Waits until the front has sent its last answers and ended. The caller has stopped
    /// [`Server::serve`].
    pub async fn end(self) {
        self.end_front(LAST_ANSWERS).await;
    }

    /// Sets the number of connections of each user, for the front.
    pub(crate) fn permit(&self, most_of_user: u64) {
        self.most_of_user.send_if_modified(|now| {
            let changes = *now != most_of_user;
            *now = most_of_user;
            changes
        });
    }

    /// The number of open connections that have sent a request, for each user except root.
    pub(crate) fn connections(&self) -> BTreeMap<u32, u64> {
        let mut connections = self.running.borrow().connections().clone();
        connections.remove(&0);
        connections
    }

    /// Reports how the front is confined.
    pub fn doctor(&self) -> DoctorItem {
        self.running.borrow().doctor()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(path) = &self.ours {
            let _ = fs::remove_file(path);
        }
    }
}

/// Length of the queue of notifications for a program that does not read; a program that exceeds it
/// is not reading at all.
const MOST_NEWS: usize = 4096;
/// The pause before the next front; doubled each time while fronts end quickly.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// Time limit for a failed front to end before it is killed.
const LAST_BREATH: Duration = Duration::from_millis(50);
/// Time limit for the front to send answers when the daemon ends; it takes at most a tenth of a
/// second.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// The longest pause. A front that lasted longer resets it to the shortest.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
