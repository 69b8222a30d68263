//! Admission of connections: the connected users, and the limits on the connections of each and of
//! all.
//!
//! A connection may stay open without a request, but a user may have only a limited number. If a
//! user has more connections than the policy permits
//! ([`Kind::Quota`](super::messages::Kind::Quota); for root [`MOST_OF_ROOT`]), the user's
//! connection that is idle for longest is closed. If none is idle, the new one is refused. If all
//! users except root have more than [`MOST_OF_ALL`], a user with the most connections loses an idle
//! one. Root is not counted with the others, so other users cannot lock root out.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netnice_api::{Response, encode_response, fds};
use netnice_kernel::peer;
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags};

use crate::quotas::Quota;

use super::inbox::{Inbox, Told};
use super::messages::ToFront;
use super::user::User;
use super::{Daemon, MOST_OF_ALL, MOST_OF_ROOT};

/// The users that are connected, or were until a moment ago.
pub(super) struct Users {
    users: HashMap<u32, Arc<Inbox>>,
    all: Arc<All>,
    daemon: Arc<Daemon>,
    next: u32,
    /// True if the kernel refuses descriptors that clients send.
    refuses_descriptors: bool,
}

/// State that the users' threads share.
pub(super) struct All {
    /// Connections that count against the limit, of all users except root.
    pub seats: AtomicUsize,
    most_of_user: AtomicUsize,
}

impl All {
    /// Largest number of open connections of a user.
    pub fn most_of(&self, uid: u32) -> usize {
        match uid {
            0 => MOST_OF_ROOT,
            _ => self.most_of_user.load(Ordering::Relaxed),
        }
    }
}

impl Users {
    pub fn new(daemon: Daemon, refuses_descriptors: bool) -> Users {
        // The daemon sends the actual quota at once.
        let until_told = Quota::Connections.describe().default;
        Users {
            users: HashMap::new(),
            all: Arc::new(All {
                seats: AtomicUsize::new(0),
                most_of_user: AtomicUsize::new(until_told as usize),
            }),
            daemon: Arc::new(daemon),
            next: 1,
            refuses_descriptors,
        }
    }

    /// Accepts some of the waiting connections: a long queue of them must not delay the daemon's
    /// messages to clients.
    pub fn accept(&mut self, listener: &OwnedFd) {
        for _ in 0..AT_ONCE {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(listener, flags) {
                Ok(socket) => self.admit(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.make_room(0);
                    thread::sleep(AFTER_FAILURE);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let peer = match peer::of(socket.as_fd()) {
            Ok(peer) => peer,
            Err(error) => return tracing::warn!(%error, "cannot tell who connects"),
        };
        let uid = peer.uid;
        let inbox = match self.inbox(uid) {
            Ok(inbox) => inbox,
            Err(error) => return tracing::warn!(%error, uid, "no thread for a user"),
        };
        // The user's own thread closes idle connections. If it is behind or stuck, further
        // connections are refused here.
        let patience = match self.refuses_descriptors {
            true => PATIENCE_WITHOUT_CLOSES,
            false => PATIENCE,
        };
        if inbox.seats() >= 2 * self.all.most_of(uid) && !inbox.catches_up(patience) {
            return self.refuse(
                socket,
                uid,
                &inbox,
                stuck(uid, inbox.seats(), self.all.most_of(uid)),
            );
        }
        let all = self.all.seats.load(Ordering::Relaxed);
        let is_full = uid != 0 && all >= MOST_OF_ALL;
        if is_full && (all >= 2 * MOST_OF_ALL || !self.make_room(inbox.seats())) {
            return self.refuse(socket, uid, &inbox, full(all));
        }
        if uid != 0 {
            self.all.seats.fetch_add(1, Ordering::Relaxed);
        }
        let number = u64::from(uid) << 32 | u64::from(self.next);
        self.next = self.next.wrapping_add(1).max(1);
        let told = Told::Connected {
            number,
            socket,
            groups: peer.groups,
        };
        inbox.seats.fetch_add(1, Ordering::Relaxed);
        let Err(told) = inbox.tell(told) else { return };
        // The user's thread has just ended for lack of connections.
        match self.inbox(uid) {
            Ok(inbox) => {
                inbox.seats.fetch_add(1, Ordering::Relaxed);
                drop(inbox.tell(told));
            }
            Err(error) => tracing::warn!(%error, uid, "no thread for a user"),
        }
    }

    /// The inbox of a user's thread; starts the thread if there is none.
    fn inbox(&mut self, uid: u32) -> io::Result<Arc<Inbox>> {
        if let Some(inbox) = self.users.get(&uid).filter(|inbox| !inbox.has_ended()) {
            return Ok(inbox.clone());
        }
        self.users.retain(|_, inbox| !inbox.has_ended());
        let inbox = Arc::new(Inbox::new()?);
        let all = self.all.clone();
        let user = User::new(uid, inbox.clone(), all, self.daemon.clone())?;
        let thread = thread::Builder::new().name(format!("user {uid}"));
        thread.stack_size(STACK).spawn(move || user.run())?;
        self.users.insert(uid, inbox.clone());
        Ok(inbox)
    }

    /// Tells a user's thread to close an idle connection: the user with the most, if more than
    /// `than`. Users whose thread is stuck are skipped. False if there is no such user.
    fn make_room(&mut self, than: usize) -> bool {
        let others = self
            .users
            .iter()
            .filter(|(uid, inbox)| **uid != 0 && inbox.seats() > than && inbox.waiting() < AT_ONCE);
        let most = others.max_by_key(|(_, inbox)| inbox.seats());
        most.is_some_and(|(_, inbox)| inbox.tell(Told::MakeRoom).is_ok())
    }

    /// Sends a client the reason and closes its connection. If a descriptor may be queued in it,
    /// the user's thread closes it.
    fn refuse(&mut self, socket: OwnedFd, uid: u32, inbox: &Inbox, why: Response) {
        if let Ok(frame) = encode_response(&why) {
            // A new socket has room; the send fails if the client has closed it.
            let _ = fds::send(socket.as_fd(), &frame, &[]);
        }
        let empty = || {
            // After the shutdown no byte can be queued, and without a queued byte there is no
            // queued descriptor.
            rustix::net::shutdown(&socket, Shutdown::Both).is_ok()
                && rustix::io::ioctl_fionread(&socket) == Ok(0)
        };
        if self.refuses_descriptors || empty() {
            return;
        }
        if inbox.waiting() > MOST_STUCK {
            tracing::error!(
                "user {uid} has {MOST_STUCK} connections whose end waits for the close of a file that the user passed: \
                 the front ends, and all connections with it"
            );
            std::process::exit(1);
        }
        let _ = inbox.tell(Told::Close(socket));
    }

    /// Sets the limit of each user except root. A user above it keeps the connections until the
    /// next one comes.
    pub fn permit(&mut self, most: u64) {
        let most = usize::try_from(most).unwrap_or(MOST_OF_ALL);
        self.all
            .most_of_user
            .store(most.clamp(1, MOST_OF_ALL), Ordering::Relaxed);
    }

    /// Passes a message to its user's thread. If that has ended, the connection is closed already.
    pub fn deliver(&mut self, message: ToFront) {
        let uid = (message.connection >> 32) as u32;
        if let Some(inbox) = self.users.get(&uid) {
            drop(inbox.tell(Told::Deliver(message)));
        }
    }

    /// Makes all threads send what is queued and end; does not wait for stuck ones.
    pub fn end(&mut self, within: Duration) {
        for inbox in self.users.values() {
            drop(inbox.tell(Told::End));
        }
        let until = Instant::now() + within;
        while self.users.values().any(|inbox| !inbox.has_ended()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn stuck(uid: u32, seats: usize, most: usize) -> Response {
    Response::failed(format!(
        "user {uid} has {seats} connections, of at most {most}, and none of them goes on: the end of one waits for the close of \
         a file descriptor that the user sent with it; try again when that file is closed"
    ))
}

fn full(all: usize) -> Response {
    Response::failed(format!(
        "all users together have {all} connections, of at most {MOST_OF_ALL}, and none of a user with more than you is \
         idle; try again when one has its answer"
    ))
}

/// Connections that are accepted in a row.
const AT_ONCE: usize = 16;
/// The pause after a failed accept, so that a full descriptor table does not make the loop spin.
const AFTER_FAILURE: Duration = Duration::from_millis(20);
/// How long the first thread waits for a user's thread that is behind; once, until that thread
/// continues.
const PATIENCE: Duration = Duration::from_millis(5);
/// The same where clients can send no descriptors. No close blocks the user's thread there, so it
/// continues as soon as the machine lets it run.
const PATIENCE_WITHOUT_CLOSES: Duration = Duration::from_millis(250);
/// Largest number of refused connections of one user that only its stuck thread may close. Kernels
/// from 6.16 on have none.
const MOST_STUCK: usize = 1024;
/// Stack of a user's thread: a read of 16 KiB, and the JSON parser, which nests at most 128 levels.
const STACK: usize = 512 * 1024;
