//! Who may come in: the users that are connected, and how many connections each and all may hold.
//!
//! A connection may stay open without asking anything, but not many of one user: where a user has more than
//! the policy permits ([`Kind::Quota`](super::messages::Kind::Quota); root [`MOST_OF_ROOT`]), the user's connection that has been
//! idle longest makes room, and if none is idle the newcomer is told so. Where all users but root have more than
//! [`MOST_OF_ALL`], a user with the most connections makes room. Root is not counted with the others, so nobody
//! can keep root out.

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

/// The users that are connected, or were a moment ago.
pub(super) struct Users {
    users: HashMap<u32, Arc<Inbox>>,
    all: Arc<All>,
    daemon: Arc<Daemon>,
    next: u32,
    /// Whether the kernel refuses descriptors that clients send.
    refuses_descriptors: bool,
}

/// What the users' threads share.
pub(super) struct All {
    /// Seats of all users but root.
    pub seats: AtomicUsize,
    most_of_user: AtomicUsize,
}

impl All {
    /// How many connections a user may hold open.
    pub fn most_of(&self, uid: u32) -> usize {
        match uid {
            0 => MOST_OF_ROOT,
            _ => self.most_of_user.load(Ordering::Relaxed),
        }
    }
}

impl Users {
    pub fn new(daemon: Daemon, refuses_descriptors: bool) -> Users {
        // The daemon says at once how many it is.
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

    /// Accepts those who wait, some at a time: what the daemon has for clients is not to wait behind many.
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
        // The user's own thread sends the idle away. It is behind, or stuck: then more of the same are refused here.
        if inbox.seats() >= 2 * self.all.most_of(uid) && !inbox.catches_up(PATIENCE) {
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
        // The user's thread ended just now, since it had no connection.
        match self.inbox(uid) {
            Ok(inbox) => {
                inbox.seats.fetch_add(1, Ordering::Relaxed);
                drop(inbox.tell(told));
            }
            Err(error) => tracing::warn!(%error, uid, "no thread for a user"),
        }
    }

    /// The inbox of a user's thread, which is started if there is none.
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

    /// Has a user give up an idle connection: one with more connections than `than`, the most of all; users whose
    /// thread is stuck are passed over. False: there is none.
    fn make_room(&mut self, than: usize) -> bool {
        let others = self
            .users
            .iter()
            .filter(|(uid, inbox)| **uid != 0 && inbox.seats() > than && inbox.waiting() < AT_ONCE);
        let most = others.max_by_key(|(_, inbox)| inbox.seats());
        most.is_some_and(|(_, inbox)| inbox.tell(Told::MakeRoom).is_ok())
    }

    /// Tells a client why it is not served, and hangs up. What is queued in its connection must not be closed here.
    fn refuse(&mut self, socket: OwnedFd, uid: u32, inbox: &Inbox, why: Response) {
        if let Ok(frame) = encode_response(&why) {
            // It is fresh, so there is room; a client that has gone misses it.
            let _ = fds::send(socket.as_fd(), &frame, &[]);
        }
        let empty = || {
            // Nothing more can be queued, and where no byte is queued no descriptor is.
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

    /// From now on each user but root may have so many connections. Who has more keeps them until the next one comes.
    pub fn permit(&mut self, most: u64) {
        let most = usize::try_from(most).unwrap_or(MOST_OF_ALL);
        self.all
            .most_of_user
            .store(most.clamp(1, MOST_OF_ALL), Ordering::Relaxed);
    }

    /// Hands on what the daemon has for a client. One whose thread has ended is gone.
    pub fn deliver(&mut self, message: ToFront) {
        let uid = (message.connection >> 32) as u32;
        if let Some(inbox) = self.users.get(&uid) {
            drop(inbox.tell(Told::Deliver(message)));
        }
    }

    /// Has all threads send what waits and end; those that are stuck are left behind.
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

/// Connections that are accepted before anything else is looked at.
const AT_ONCE: usize = 16;
/// So that a full table of descriptors does not make the loop spin.
const AFTER_FAILURE: Duration = Duration::from_millis(20);
/// How long everybody waits for a user's thread that is behind; once, until it goes on.
const PATIENCE: Duration = Duration::from_millis(5);
/// Refused connections of one user that only its stuck thread may close. Kernels from 6.16 on have none.
const MOST_STUCK: usize = 1024;
/// Of a user's thread: a read of 16 KiB, and the parser of JSON, which nests 128 times at most.
const STACK: usize = 512 * 1024;
