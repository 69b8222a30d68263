//! The thread of one user ([`User`]): reads, refuses and closes that user's connections, and passes
//! their requests to the daemon.
//!
//! The thread that receives a client's descriptor, or closes the connection in which the descriptor
//! is queued, closes the descriptor; and a close can block for any time that the sender chooses (a
//! TCP socket with unsent data and SO_LINGER, a file of a FUSE server). So only the user's own
//! thread receives from that user's connections, and closes those in which a descriptor may be
//! queued. A user who blocks this thread gets no service until the thread continues; other users
//! are served meanwhile.
//!
//! The daemon has at most eight requests of a user at a time (64 of root); the others wait in their
//! connections. The thread runs as long as its user has connections, and for [`LINGER`] (5 s) after
//! that. If the pipe to the daemon fails, the thread closes the connections and ends.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netnice_api::Response;
use netnice_kernel::peer::Peer;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::DaemonPipe;
use super::accept::SharedLimits;
use super::connection::{Connection, NextStep};
use super::inbox::{Inbox, InboxMessage};
use super::messages::{FromFront, ToFront};

/// The state of a user's thread.
pub(super) struct User {
    uid: u32,
    inbox: Arc<Inbox>,
    limits: Arc<SharedLimits>,
    daemon: Arc<DaemonPipe>,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    /// Those that count against the limit, by their `last_activity`.
    counted: BTreeMap<u64, u64>,
    due: BTreeSet<(Instant, u64)>,
    activity: u64,
    /// Number of requests that the daemon has.
    at_daemon: usize,
    /// Connections whose request waits.
    waiting: VecDeque<u64>,
    ending: bool,
}

impl User {
    /// The state of a thread without connections. Fails if epoll does.
    pub(super) fn new(
        uid: u32,
        inbox: Arc<Inbox>,
        limits: Arc<SharedLimits>,
        daemon: Arc<DaemonPipe>,
    ) -> io::Result<User> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            inbox.wake_fd(),
            EventData::new_u64(INBOX),
            EventFlags::IN,
        )?;
        Ok(User {
            uid,
            inbox,
            limits,
            daemon,
            epoll,
            connections: HashMap::new(),
            counted: BTreeMap::new(),
            due: BTreeSet::new(),
            activity: 0,
            at_daemon: 0,
            waiting: VecDeque::new(),
            ending: false,
        })
    }

    /// Serves the user until there is nothing to serve or the daemon has ended.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let wait = self.wait();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
            let is_idle = events.is_empty() && self.connections.is_empty();
            let now = Instant::now();
            for event in events.drain(..) {
                self.handle_event(event, now);
            }
            for message in self.inbox.take() {
                self.handle_message(message, now);
            }
            // After all reads: bytes that arrived in time count even if this thread was late.
            self.expire(now);
            if self.pass_requests().is_err() || self.ending {
                break;
            }
            if is_idle && self.connections.is_empty() && self.inbox.end() {
                return;
            }
        }
        while !self.inbox.end() {
            self.inbox.take();
        }
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.close(number));
    }

    fn wait(&self) -> Timespec {
        let until_due = self.due.first().map(|(due, _)| {
            let left = due.saturating_duration_since(Instant::now());
            // Rounded up, so that the deadline is over then.
            left + Duration::from_millis(1)
        });
        let most = match self.connections.is_empty() {
            true => Duration::from_secs(LINGER.tv_sec.unsigned_abs()),
            false => Duration::from_secs(3600),
        };
        let wait = until_due.map_or(most, |wait| wait.min(most));
        Timespec::try_from(wait).unwrap_or(LINGER)
    }

    fn handle_event(&mut self, event: Event, now: Instant) {
        let number = event.data.u64();
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let flags = event.flags;
        let mut next = NextStep::Keep;
        if flags.contains(EventFlags::OUT) {
            next = connection.write(now);
        }
        if next == NextStep::Keep && connection.wants_read() {
            next = connection.read(now);
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) && next == NextStep::Keep {
            // The client has hung up while its request waits or is carried out; the request is
            // carried out anyway.
            if connection.is_waiting() {
                connection.hung_up = epoll::delete(&self.epoll, connection.socket()).is_ok();
            }
            if !connection.hung_up {
                next = NextStep::Close;
            }
        }
        self.apply_step(number, next);
    }

    fn handle_message(&mut self, message: InboxMessage, now: Instant) {
        match message {
            InboxMessage::Connected {
                number,
                socket,
                peer,
            } => self.connect(number, socket, peer, now),
            InboxMessage::Deliver(message) => self.deliver(message, now),
            InboxMessage::MakeRoom => drop(self.close_idle()),
            InboxMessage::Close(socket) => drop(socket),
            InboxMessage::End => self.ending = true,
        }
    }

    fn connect(&mut self, number: u64, socket: OwnedFd, peer: Peer, now: Instant) {
        let mut connection = Connection::new(socket, peer);
        let is_full = self.counted.len() >= self.limits.max_of(self.uid) && !self.close_idle();
        if epoll::add(
            &self.epoll,
            connection.socket(),
            EventData::new_u64(number),
            EventFlags::IN,
        )
        .is_err()
        {
            self.uncount();
            return;
        }
        let mut next = NextStep::Keep;
        if is_full {
            next = connection.send_last(busy_refusal(self.uid, self.limits.max_of(self.uid)), now);
        }
        self.activity += 1;
        connection.last_activity = self.activity;
        self.counted.insert(self.activity, number);
        self.connections.insert(number, connection);
        self.apply_step(number, next);
    }

    fn deliver(&mut self, message: ToFront, now: Instant) {
        let number = message.connection;
        let is_answer = message.kind != super::messages::Kind::Notification;
        self.at_daemon = self.at_daemon.saturating_sub(usize::from(is_answer));
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let was_counted = self.counted.remove(&connection.last_activity).is_some();
        self.activity += 1;
        connection.last_activity = self.activity;
        let next = connection.deliver(message, now);
        if connection.is_counted {
            self.counted.insert(self.activity, number);
        } else if was_counted {
            self.uncount();
        }
        self.apply_step(number, next);
    }

    /// Takes a connection's next step, and updates the events and deadlines to wait for.
    fn apply_step(&mut self, number: u64, next: NextStep) {
        match next {
            NextStep::Close => return self.close(number),
            NextStep::RequestReady => self.waiting.push_back(number),
            NextStep::Keep => {}
        }
        let Some(connection) = self.connections.get(&number).filter(|held| !held.hung_up) else {
            return;
        };
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, connection.wants_read());
        flags.set(EventFlags::OUT, connection.wants_write());
        let due = connection.due();
        let data = EventData::new_u64(number);
        if epoll::modify(&self.epoll, connection.socket(), data, flags).is_err() {
            return self.close(number);
        }
        // A connection has few deadlines; an obsolete one has no effect.
        self.due.extend(due.map(|due| (due, number)));
    }

    fn expire(&mut self, now: Instant) {
        while let Some((due, number)) = self.due.first().copied() {
            if due > now {
                return;
            }
            self.due.pop_first();
            if let Some(connection) = self.connections.get_mut(&number) {
                let next = connection.expire(now);
                self.apply_step(number, next);
            }
        }
    }

    /// Passes requests on, as many as the daemon may have of this user.
    fn pass_requests(&mut self) -> io::Result<()> {
        while self.at_daemon < max_at_daemon(self.uid) {
            let Some(number) = self.waiting.pop_front() else {
                return Ok(());
            };
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            let peer = connection.peer.take();
            let Some(call) = connection.take_request() else {
                continue;
            };
            if let Some(peer) = peer {
                self.daemon.send(&FromFront::Opened {
                    connection: number,
                    uid: self.uid,
                    pid: peer.pid,
                    groups: peer.groups,
                })?;
            }
            self.daemon.send(&FromFront::Asked {
                connection: number,
                process: call.process,
                request: Box::new(call.request),
            })?;
            self.at_daemon += 1;
            let hung_up = self
                .connections
                .get(&number)
                .is_some_and(|held| held.hung_up);
            self.apply_step(
                number,
                if hung_up {
                    NextStep::Close
                } else {
                    NextStep::Keep
                },
            );
        }
        Ok(())
    }

    /// Closes the connection that is idle for longest; false if none is idle.
    fn close_idle(&mut self) -> bool {
        let is_idle = |number: &&u64| {
            self.connections
                .get(*number)
                .is_some_and(Connection::is_idle)
        };
        let Some(number) = self.counted.values().find(is_idle).copied() else {
            return false;
        };
        self.close(number);
        true
    }

    fn close(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else {
            return;
        };
        if self.counted.remove(&connection.last_activity).is_some() {
            self.uncount();
        }
        if connection.peer.is_none() {
            // If the daemon has ended, the connection is closed anyway.
            let _ = self.daemon.send(&FromFront::Closed { connection: number });
        }
        // This drop may block, so all messages were sent before.
        drop(connection);
    }

    fn uncount(&self) {
        self.inbox.counted.fetch_sub(1, Ordering::Relaxed);
        if self.uid != 0 {
            self.limits.counted.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Largest number of a user's requests at the daemon; the others wait in their connections.
fn max_at_daemon(uid: u32) -> usize {
    if uid == 0 { 64 } else { 8 }
}

/// The reason for a refused connection.
fn busy_refusal(uid: u32, most: usize) -> Response {
    Response::failed(format!(
        "user {uid} has {most} connections, which is the limit, and all are busy with requests; \
         try again when one of them has its answer"
    ))
}

/// The inbox among the epoll events; no connection has this number.
const INBOX: u64 = u64::MAX;
/// How long a thread without connections waits for the next one.
const LINGER: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};
