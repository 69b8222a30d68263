//! The socket: who connects, how many may, and one task for each connection.
//!
//! The socket is open to all; what a peer may do is judged per request, by the user that the kernel vouches for. A
//! connection may stay open without asking anything, but not many of one user: where there are more than the quota
//! `connections` (of root [`MOST_OF_ROOT`], of all [`MOST_OF_ALL`]), the one that has been idle longest makes room,
//! and if none is idle the newcomer is told so. So nobody can keep others out by holding connections.

pub(crate) mod connection;
mod crowd;

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use netnice_api::direct::FlowNews;
use netnice_api::{Request, Response};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use crate::peer::Peer;
use crate::quotas::Quota;
use crowd::{Crowd, Seat};

/// A request on its way to the clerk.
pub struct Ask {
    /// Who asks.
    pub peer: Peer,
    /// What.
    pub request: Request,
    /// The pidfd that came with it.
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
    limits: Limits,
}

/// What a user may hold of the socket, by the policy that is in force now. Copies are the same limits.
#[derive(Clone, Debug)]
pub struct Limits {
    connections: Rc<Cell<usize>>,
}

impl Limits {
    /// Each user may hold so many connections from now on.
    pub fn set(&self, connections: usize) {
        self.connections.set(connections);
    }

    fn connections(&self) -> usize {
        self.connections.get()
    }
}

impl Default for Limits {
    fn default() -> Limits {
        let most = Quota::Connections.describe().default;
        Limits {
            connections: Rc::new(Cell::new(usize::try_from(most).unwrap_or(usize::MAX))),
        }
    }
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
        Ok(Server {
            listener,
            ours: Some(path.to_owned()),
            limits: Limits::default(),
        })
    }

    /// Takes over a socket on which somebody listened for us before we were there, as a service manager does
    /// (sd_listen_fds(3)).
    pub fn take_over(listener: StdListener) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        Ok(Server {
            listener: UnixListener::from_std(listener)?,
            ours: None,
            limits: Limits::default(),
        })
    }

    /// What a user may hold: to be set when the policy changes.
    pub fn limits(&self) -> Limits {
        self.limits.clone()
    }

    /// Takes connections until the clerk no longer listens. To be run in a local set.
    pub async fn serve(&self, clerk: mpsc::Sender<Ask>) {
        let crowd = Rc::new(RefCell::new(Crowd::new(self.limits())));
        while !clerk.is_closed() {
            match self.listener.accept().await {
                Ok((stream, _)) => admit(&crowd, stream, &clerk),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    crowd.borrow_mut().make_room();
                    tokio::time::sleep(AFTER_FAILURE).await;
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(path) = &self.ours {
            let _ = fs::remove_file(path);
        }
    }
}

fn admit(crowd: &Rc<RefCell<Crowd>>, stream: UnixStream, clerk: &mpsc::Sender<Ask>) {
    let peer = match netnice_kernel::peer::of(stream.as_fd()) {
        Ok(peer) => Peer::known(&peer),
        Err(error) => {
            tracing::warn!(%error, "cannot tell who connects");
            return;
        }
    };
    let seat = Seat::take(crowd, peer.uid);
    let clerk = clerk.clone();
    tokio::task::spawn_local(async move {
        match seat {
            Some(seat) => connection::serve(stream, peer, seat, clerk).await,
            None => connection::turn_away(stream, peer.uid).await,
        }
    });
}

/// How many root may.
const MOST_OF_ROOT: usize = 256;
/// How many there may be: well below the 1,024 descriptors that a process has at least.
const MOST_OF_ALL: usize = 512;
/// News that wait for a program that does not read them; one with more is not reading at all.
const MOST_NEWS: usize = 4096;
/// So that a full table of descriptors does not make the loop spin.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests;
