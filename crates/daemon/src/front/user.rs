//! The thread of one user: reads, refuses and closes that user's connections.
//!
//! What a client sent beside its bytes is closed by the thread that receives it, or that closes the connection it is
//! queued in; and a close can block for as long as the sender of the descriptor likes (a TCP socket with unsent data and
//! SO_LINGER, a file of a FUSE server). So nothing of a connection is received or closed by any other thread than its
//! user's: who blocks it has no service until it goes on, and nobody else notices.
//!
//! The thread lasts as long as its user has connections, and a little longer.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netnice_api::Response;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::Daemon;
use super::accept::All;
use super::connection::{Connection, Next};
use super::inbox::{Inbox, Told};
use super::messages::{FromFront, ToFront};

/// One user, in the thread of that user.
pub(super) struct User {
    uid: u32,
    inbox: Arc<Inbox>,
    all: Arc<All>,
    daemon: Arc<Daemon>,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    due: BTreeSet<(Instant, u64)>,
    moment: u64,
    /// Requests that the daemon has.
    asked: usize,
    /// Connections whose request waits.
    waiting: VecDeque<u64>,
    ends: bool,
}

impl User {
    pub fn new(
        uid: u32,
        inbox: Arc<Inbox>,
        all: Arc<All>,
        daemon: Arc<Daemon>,
    ) -> io::Result<User> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            inbox.woken(),
            EventData::new_u64(INBOX),
            EventFlags::IN,
        )?;
        Ok(User {
            uid,
            inbox,
            all,
            daemon,
            epoll,
            connections: HashMap::new(),
            due: BTreeSet::new(),
            moment: 0,
            asked: 0,
            waiting: VecDeque::new(),
            ends: false,
        })
    }

    /// Serves the user until nothing is left to serve, or the daemon has gone.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let wait = self.patience();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
            let is_idle = events.is_empty() && self.connections.is_empty();
            let now = Instant::now();
            for event in events.drain(..) {
                self.take_event(event, now);
            }
            for told in self.inbox.take() {
                self.take_told(told, now);
            }
            // After all that could be read was read: what came in time counts, though this thread was late.
            self.expire(now);
            if self.ask().is_err() || self.ends {
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

    fn patience(&self) -> Timespec {
        let until_due = self.due.first().map(|(due, _)| {
            let left = due.saturating_duration_since(Instant::now());
            // Rounded up, so that it is over then.
            left + Duration::from_millis(1)
        });
        let most = match self.connections.is_empty() {
            true => Duration::from_secs(LINGER.tv_sec.unsigned_abs()),
            false => Duration::from_secs(3600),
        };
        let wait = until_due.map_or(most, |wait| wait.min(most));
        Timespec::try_from(wait).unwrap_or(LINGER)
    }

    fn take_event(&mut self, event: Event, now: Instant) {
        let number = event.data.u64();
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let flags = event.flags;
        let mut next = Next::Stays;
        if flags.contains(EventFlags::OUT) {
            next = connection.write(now);
        }
        if next == Next::Stays && connection.wants_read() {
            next = connection.read(now);
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) && next == Next::Stays {
            // The client has gone while its request waits or is carried out; what was asked is done all the same.
            if connection.is_waiting() {
                connection.gone = epoll::delete(&self.epoll, connection.socket()).is_ok();
            }
            if !connection.gone {
                next = Next::Ends;
            }
        }
        self.follow(number, next);
    }

    fn take_told(&mut self, told: Told, now: Instant) {
        match told {
            Told::Connected {
                number,
                socket,
                groups,
            } => self.connect(number, socket, groups, now),
            Told::Deliver(message) => self.deliver(message, now),
            Told::MakeRoom => drop(self.dismiss()),
            Told::Close(socket) => drop(socket),
            Told::End => self.ends = true,
        }
    }

    fn connect(&mut self, number: u64, socket: OwnedFd, groups: Vec<u32>, now: Instant) {
        let mut connection = Connection::new(socket, groups);
        self.moment += 1;
        connection.idle_since = self.moment;
        let held = self.connections.values().filter(|held| held.seated).count();
        let is_full = held >= self.all.most_of(self.uid) && !self.dismiss();
        if epoll::add(
            &self.epoll,
            connection.socket(),
            EventData::new_u64(number),
            EventFlags::IN,
        )
        .is_err()
        {
            self.give_back_seat();
            return;
        }
        let mut next = Next::Stays;
        if is_full {
            next = connection.leave(too_many(self.uid, self.all.most_of(self.uid)), now);
        }
        self.connections.insert(number, connection);
        self.follow(number, next);
    }

    fn deliver(&mut self, message: ToFront, now: Instant) {
        let number = message.connection;
        let is_answer = message.kind != super::messages::Kind::News;
        self.asked = self.asked.saturating_sub(usize::from(is_answer));
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let had_seat = connection.seated;
        self.moment += 1;
        connection.idle_since = self.moment;
        let next = connection.deliver(message, now);
        if had_seat && !connection.seated {
            self.give_back_seat();
        }
        self.follow(number, next);
    }

    /// Does what follows for a connection, and sets what is waited for.
    fn follow(&mut self, number: u64, next: Next) {
        match next {
            Next::Ends => return self.close(number),
            Next::Waits => self.waiting.push_back(number),
            Next::Stays => {}
        }
        let Some(connection) = self.connections.get(&number).filter(|held| !held.gone) else {
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
        // A connection has few deadlines: what is over of them finds nothing to do.
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
                self.follow(number, next);
            }
        }
    }

    /// Passes on requests, as many as this user may have at the daemon.
    fn ask(&mut self) -> io::Result<()> {
        while self.asked < most_asked(self.uid) {
            let Some(number) = self.waiting.pop_front() else {
                return Ok(());
            };
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            let groups = connection.groups.take();
            let Some(call) = connection.ask() else {
                continue;
            };
            if let Some(groups) = groups {
                self.daemon.tell(&FromFront::Opened {
                    connection: number,
                    uid: self.uid,
                    groups,
                })?;
            }
            self.daemon.tell(&FromFront::Asked {
                connection: number,
                process: call.process,
                request: call.request,
            })?;
            self.asked += 1;
            let gone = self.connections.get(&number).is_some_and(|held| held.gone);
            self.follow(number, if gone { Next::Ends } else { Next::Stays });
        }
        Ok(())
    }

    /// Sends the connection away that has been idle longest; false if none is idle.
    fn dismiss(&mut self) -> bool {
        let idle = self
            .connections
            .iter()
            .filter(|(_, held)| held.seated && held.is_idle());
        let longest = idle.min_by_key(|(_, held)| held.idle_since);
        let Some(number) = longest.map(|(number, _)| *number) else {
            return false;
        };
        self.close(number);
        true
    }

    fn close(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else {
            return;
        };
        if connection.seated {
            self.give_back_seat();
        }
        if connection.groups.is_none() {
            // Where the daemon has gone, the connection is closed all the same.
            let _ = self.daemon.tell(&FromFront::Closed { connection: number });
        }
        // Here this thread may block, after everybody was told.
        drop(connection);
    }

    fn give_back_seat(&self) {
        self.inbox.seats.fetch_sub(1, Ordering::Relaxed);
        if self.uid != 0 {
            self.all.seats.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// How many requests of a user may be at the daemon; the others wait in their connections.
fn most_asked(uid: u32) -> usize {
    if uid == 0 { 64 } else { 8 }
}

/// Why a connection is refused.
fn too_many(uid: u32, most: usize) -> Response {
    Response::failed(format!(
        "too many connections of user {uid} are busy with requests, of at most {most}; try again when one of them has its answer"
    ))
}

/// The inbox among the events; connections have other numbers.
const INBOX: u64 = u64::MAX;
/// How long a thread without connections waits for the next one.
const LINGER: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};
