//! Accepts connections and passes each to the thread of its user ([`Users`]), within a limit for
//! each user and one for all users.
//!
//! A connection may stay open without a request, but the number of connections is limited. One that
//! has attached to the direct path does not count. A refused client gets the reason.
//!
//! - A user may have as many as the policy permits ([`Kind::Quota`](super::messages::Kind::Quota);
//!   root [`MAX_OF_ROOT`]). One more closes the user's connection that is idle for longest. If none
//!   is idle, the new one is refused.
//! - All users except root may have [`MAX_OF_OTHERS`] together. One more is accepted only if
//!   another user has more connections than the user of the new one. The thread of the user with
//!   the most connections then closes the one that is idle for longest, if one is idle. At twice
//!   the limit every new one is refused. Root is not counted, so other users cannot lock root out.
//! - If a user's thread is stuck, connections of that user beyond twice the user's limit are
//!   refused.
//!
//! A client whose credentials cannot be read, or whose user's thread cannot be started, gets no
//! reason: its connection is closed at once, or, if a descriptor may be queued in it, by the next
//! thread of its user. If more than [`MAX_STUCK`] (1,024) connections of a user wait for a stuck
//! thread to close them, or as many for a thread that cannot be started, the front process ends,
//! and all connections with it. No function returns an error to its caller outside this module.

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

use super::inbox::{Inbox, InboxMessage};
use super::messages::ToFront;
use super::user::User;
use super::{DaemonPipe, MAX_OF_OTHERS, MAX_OF_ROOT};

/// The users that are connected, or were until a moment ago, and their threads.
pub(super) struct Users {
    users: HashMap<u32, Arc<Inbox>>,
    limits: Arc<SharedLimits>,
    daemon: Arc<DaemonPipe>,
    next: u32,
    /// Sockets of users whose thread could not be started; see [`Users::drop_socket`].
    unclosed: Vec<(Option<u32>, OwnedFd)>,
    /// True if the kernel refuses descriptors that clients send.
    refuses_descriptors: bool,
}

/// State that the users' threads share.
pub(super) struct SharedLimits {
    /// Connections that count against the limit, of all users except root.
    pub counted: AtomicUsize,
    max_of_user: AtomicUsize,
}

impl SharedLimits {
    /// Largest number of open connections of a user.
    pub(super) fn max_of(&self, uid: u32) -> usize {
        match uid {
            0 => MAX_OF_ROOT,
            _ => self.max_of_user.load(Ordering::Relaxed),
        }
    }
}

impl Users {
    /// A table without users. `daemon` is the pipe to the daemon. `refuses_descriptors` is true if
    /// the kernel refuses descriptors that clients send.
    pub(super) fn new(daemon: DaemonPipe, refuses_descriptors: bool) -> Users {
        // The daemon sends the actual quota at once.
        let until_set = Quota::Connections.describe().default;
        Users {
            users: HashMap::new(),
            limits: Arc::new(SharedLimits {
                counted: AtomicUsize::new(0),
                max_of_user: AtomicUsize::new(until_set as usize),
            }),
            daemon: Arc::new(daemon),
            next: 1,
            unclosed: Vec::new(),
            refuses_descriptors,
        }
    }

    /// Accepts some of the waiting connections: a long queue of them must not delay the daemon's
    /// messages to clients.
    pub(super) fn accept(&mut self, listener: &OwnedFd) {
        for _ in 0..ACCEPT_BATCH {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(listener, flags) {
                Ok(socket) => self.admit(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.make_room(0);
                    thread::sleep(ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let peer = match peer::of(socket.as_fd()) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "cannot read the credentials of a client");
                return self.drop_socket(socket, None);
            }
        };
        let uid = peer.uid;
        let inbox = match self.inbox(uid) {
            Ok(inbox) => inbox,
            Err(error) => {
                tracing::warn!(%error, uid, "cannot start the thread of a user");
                return self.drop_socket(socket, Some(uid));
            }
        };
        // The user's own thread closes idle connections. If it is behind or stuck, further
        // connections are refused here.
        let wait = match self.refuses_descriptors {
            true => SCHEDULING_WAIT,
            false => CLOSE_WAIT,
        };
        if inbox.counted() >= 2 * self.limits.max_of(uid) && !inbox.wait_until_taken(wait) {
            return self.refuse(
                socket,
                uid,
                &inbox,
                stuck_refusal(uid, inbox.counted(), self.limits.max_of(uid)),
            );
        }
        let others = self.limits.counted.load(Ordering::Relaxed);
        let is_full = uid != 0 && others >= MAX_OF_OTHERS;
        if is_full && (others >= 2 * MAX_OF_OTHERS || !self.make_room(inbox.counted())) {
            return self.refuse(socket, uid, &inbox, full_refusal(others));
        }
        if uid != 0 {
            self.limits.counted.fetch_add(1, Ordering::Relaxed);
        }
        let number = u64::from(uid) << 32 | u64::from(self.next);
        self.next = self.next.wrapping_add(1).max(1);
        let message = InboxMessage::Connected {
            number,
            socket,
            peer,
        };
        inbox.counted.fetch_add(1, Ordering::Relaxed);
        let Err(message) = inbox.push(message) else {
            return;
        };
        // The user's thread has just ended for lack of connections.
        match self.inbox(uid) {
            Ok(inbox) => {
                inbox.counted.fetch_add(1, Ordering::Relaxed);
                drop(inbox.push(message));
            }
            Err(error) => {
                tracing::warn!(%error, uid, "cannot start the thread of a user");
                if uid != 0 {
                    self.limits.counted.fetch_sub(1, Ordering::Relaxed);
                }
                if let InboxMessage::Connected { socket, .. } = message {
                    self.drop_socket(socket, Some(uid));
                }
            }
        }
    }

    /// The inbox of a user's thread; starts the thread if there is none. Fails if the kernel gives
    /// no thread, eventfd or epoll descriptor.
    fn inbox(&mut self, uid: u32) -> io::Result<Arc<Inbox>> {
        if let Some(inbox) = self.users.get(&uid).filter(|inbox| !inbox.has_ended()) {
            return Ok(inbox.clone());
        }
        self.users.retain(|_, inbox| !inbox.has_ended());
        let inbox = Arc::new(Inbox::new()?);
        let limits = self.limits.clone();
        let user = User::new(uid, inbox.clone(), limits, self.daemon.clone())?;
        let thread = thread::Builder::new().name(format!("user {uid}"));
        thread.stack_size(STACK).spawn(move || user.run())?;
        let (own, others) = std::mem::take(&mut self.unclosed)
            .into_iter()
            .partition(|(user, _)| *user == Some(uid));
        self.unclosed = others;
        let own: Vec<(Option<u32>, OwnedFd)> = own;
        for (_, socket) in own {
            let _ = inbox.push(InboxMessage::Close(socket));
        }
        self.users.insert(uid, inbox.clone());
        Ok(inbox)
    }

    /// Closes a socket for which there is no thread. If a descriptor may be queued in it, the close
    /// could block: then the next thread of its user closes it. If the user is unknown (`None`), it
    /// stays open.
    fn drop_socket(&mut self, socket: OwnedFd, uid: Option<u32>) {
        if self.refuses_descriptors || shut_down_empty(&socket) {
            return;
        }
        if self.unclosed.len() >= MAX_STUCK {
            tracing::error!(
                "{MAX_STUCK} connections cannot be closed, because no thread can be started: the \
                 front ends, and all connections with it"
            );
            std::process::exit(1);
        }
        self.unclosed.push((uid, socket));
    }

    /// Makes a user's thread close an idle connection: the thread of the user with the most
    /// connections, if these are more than `than`. Root and users whose thread is stuck are
    /// skipped. False if there is no such user.
    fn make_room(&mut self, than: usize) -> bool {
        let others = self.users.iter().filter(|(uid, inbox)| {
            **uid != 0 && inbox.counted() > than && inbox.waiting() < ACCEPT_BATCH
        });
        let most = others.max_by_key(|(_, inbox)| inbox.counted());
        most.is_some_and(|(_, inbox)| inbox.push(InboxMessage::MakeRoom).is_ok())
    }

    /// Sends a client the reason and closes its connection. If a descriptor may be queued in it,
    /// the user's thread closes it.
    fn refuse(&mut self, socket: OwnedFd, uid: u32, inbox: &Inbox, why: Response) {
        if let Ok(frame) = encode_response(&why) {
            // A new socket has room; the send fails if the client has closed it.
            let _ = fds::send(socket.as_fd(), &frame, &[]);
        }
        if self.refuses_descriptors || shut_down_empty(&socket) {
            return;
        }
        if inbox.waiting() > MAX_STUCK {
            tracing::error!(
                "user {uid} has {MAX_STUCK} connections whose close blocks on a file that the user \
                 sent: the front ends, and all connections with it"
            );
            std::process::exit(1);
        }
        let _ = inbox.push(InboxMessage::Close(socket));
    }

    /// Sets the limit of each user except root. A user above it keeps the connections until the
    /// next one comes.
    pub(super) fn set_limit(&mut self, most: u64) {
        let most = usize::try_from(most).unwrap_or(MAX_OF_OTHERS);
        self.limits
            .max_of_user
            .store(most.clamp(1, MAX_OF_OTHERS), Ordering::Relaxed);
    }

    /// Passes a message to its user's thread. If that has ended, the connection is closed already.
    pub(super) fn deliver(&mut self, message: ToFront) {
        let uid = (message.connection >> 32) as u32;
        if let Some(inbox) = self.users.get(&uid) {
            drop(inbox.push(InboxMessage::Deliver(message)));
        }
    }

    /// Makes all threads send what is queued and end. Waits for their end, at most for `within`.
    pub(super) fn end(&mut self, within: Duration) {
        for inbox in self.users.values() {
            drop(inbox.push(InboxMessage::End));
        }
        let until = Instant::now() + within;
        while self.users.values().any(|inbox| !inbox.has_ended()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Shuts a socket down. True if no descriptor is queued in it: after the shutdown no byte can be
/// queued, and without a queued byte there is no queued descriptor.
fn shut_down_empty(socket: &OwnedFd) -> bool {
    rustix::net::shutdown(socket, Shutdown::Both).is_ok()
        && rustix::io::ioctl_fionread(socket) == Ok(0)
}

fn stuck_refusal(uid: u32, counted: usize, most: usize) -> Response {
    Response::failed(format!(
        "user {uid} has {counted} connections, of at most {most}, and none of them makes \
         progress: closing one waits for the close of a file descriptor that the user sent with \
         it; try again when that file is closed"
    ))
}

fn full_refusal(others: usize) -> Response {
    Response::failed(format!(
        "all users together have {others} connections, of at most {MAX_OF_OTHERS}, and no user \
         with more connections than you has an idle one; try again later"
    ))
}

/// Connections that are accepted in a row.
const ACCEPT_BATCH: usize = 16;
/// The pause after a failed accept, so that a full descriptor table does not make the loop spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How long the first thread waits for a user's thread that is behind. After a wait without
/// success, the first thread does not wait again until the user's thread has taken a message.
const CLOSE_WAIT: Duration = Duration::from_millis(5);
/// The same where clients can send no descriptors. No close blocks the user's thread there, so that
/// thread continues as soon as a processor is free for it.
const SCHEDULING_WAIT: Duration = Duration::from_millis(250);
/// Largest number of refused connections of one user that only its stuck thread may close. With
/// more, the front ends. Kernels from 6.16 on have none, because they refuse descriptors.
const MAX_STUCK: usize = 1024;
/// Stack of a user's thread: a read of 16 KiB, and the JSON parser, which nests at most 128 levels.
const STACK: usize = 512 * 1024;
