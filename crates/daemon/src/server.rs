//! The socket, as the daemon has it: requests that were understood, one user after the other, and the way of answers.
//!
//! The daemon makes the listening socket and keeps it, but never accepts from it: the front does ([`crate::front`]), in a
//! process of its own, which this module starts, and starts again when it ends. What comes from it are connections by
//! number, who made them, and their requests; what a client may do is judged per request, by the user that the kernel
//! vouches for. Whose request is answered next is decided by the event loop.

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

use netnice_api::direct::FlowNews;
use netnice_api::{DoctorItem, Request, Response};
use tokio::sync::{mpsc, oneshot, watch};

use crate::peer::Peer;
use crate::quotas::Quota;
use process::{Running, Starts};

/// A request on its way to the clerk.
pub struct Ask {
    /// Who asks.
    pub peer: Peer,
    /// What.
    pub request: Request,
    /// A pidfd of the process that it is about, opened by the daemon.
    pub fd: Option<OwnedFd>,
    /// The connection that it came on.
    pub guest: Guest,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Told>,
}

/// An answer, and the descriptors that travel with it.
#[derive(Debug)]
pub struct Told {
    /// What.
    pub response: Response,
    /// Three with a program's attachment, none with anything else.
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

/// A connection as those know it who may have something to tell it unasked.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Its number; no other has had it.
    pub number: u64,
    /// What it is to be told. Closed when the connection has ended.
    pub news: mpsc::Sender<FlowNews>,
}

impl Guest {
    /// A new connection, and what it is told.
    pub fn new() -> (Guest, mpsc::Receiver<FlowNews>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (news, told) = mpsc::channel(MOST_NEWS);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        (Guest { number, news }, told)
    }
}

/// A listening socket. One of ours is there, under its name, from when it answers until it is dropped; one that was
/// handed over stays with who made it.
pub struct Server {
    listener: UnixListener,
    ours: Option<PathBuf>,
    starts: Starts,
    /// The front that serves now.
    running: RefCell<Running>,
    /// How many connections a user may have.
    most_of_user: watch::Sender<u64>,
}

impl Server {
    /// Listens at a path. A socket that an earlier daemon has left there is replaced; the caller holds the lock that
    /// says that there is no other daemon.
    pub fn bind(path: &Path) -> io::Result<Server> {
        let beside = path.with_extension("new");
        let _ = fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside)?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o666))?;
        fs::rename(&beside, path)?;
        Server::over(listener, Some(path))
    }

    /// Takes over a socket on which somebody listened for us before we were there, as a service manager does
    /// (sd_listen_fds(3)).
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

    /// Takes descriptors that clients send, as on kernels before 6.16, where they cannot be refused. For tests.
    #[must_use]
    pub fn taking_descriptors(mut self) -> Server {
        self.starts.take_descriptors();
        self
    }

    /// Hands requests on until nobody takes them any more. To be run in a local set.
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

    /// Ends the front, and says how it ended. It may have ended by itself; one that is not told by the end of its socket
    /// within so long is killed.
    async fn end_front(&self, patience: Duration) -> String {
        let running = self.running.take();
        running.end(patience).await
    }

    /// Waits until the front has sent its last answers and ended, when [`Server::serve`] is no longer run.
    pub async fn end(self) {
        self.end_front(LAST_ANSWERS).await;
    }

    /// Tells the front how many connections each user may have.
    pub(crate) fn permit(&self, most_of_user: u64) {
        self.most_of_user.send_if_modified(|now| {
            let changes = *now != most_of_user;
            *now = most_of_user;
            changes
        });
    }

    /// How many connections of each user but root have asked something and are open.
    pub(crate) fn connections(&self) -> BTreeMap<u32, u64> {
        let mut connections = self.running.borrow().connections().clone();
        connections.remove(&0);
        connections
    }

    /// How what reads the socket is confined.
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

/// News that wait for a program that does not read them; one with more is not reading at all.
const MOST_NEWS: usize = 4096;
/// Between the end of a front and the start of the next one; doubled while they do not last.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// How long the end of a front that failed is waited for, before it is killed.
const LAST_BREATH: Duration = Duration::from_millis(50);
/// How long a front may send answers when the daemon ends; it takes a tenth of a second at most.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// The most that it is doubled to; a front that lasted longer begins with the shortest again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
