//! What the first thread hands to the thread of a user, and what both count.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::messages::ToFront;

/// What a user's thread is told.
#[derive(Debug)]
pub(super) enum Told {
    /// The user has connected.
    Connected {
        /// The connection's number.
        number: u64,
        /// Its socket.
        socket: OwnedFd,
        /// The groups of the process.
        groups: Vec<u32>,
    },
    /// The daemon has something for a client.
    Deliver(ToFront),
    /// Other users have no room: the connection that has been idle longest goes.
    MakeRoom,
    /// A connection that was refused; it is closed here, since what is queued in it is closed with it.
    Close(OwnedFd),
    /// The front ends: what can be sent is sent.
    End,
}

/// The queue to the thread of one user.
pub(super) struct Inbox {
    queue: Mutex<Queue>,
    wake: OwnedFd,
    /// Connections with a seat, also those that are still in the queue.
    pub seats: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    told: VecDeque<Told>,
    ended: bool,
    /// The first thread has waited for this one in vain, and it has taken nothing since.
    stuck: bool,
}

impl Inbox {
    pub fn new() -> rustix::io::Result<Inbox> {
        Ok(Inbox {
            queue: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            seats: AtomicUsize::new(0),
        })
    }

    /// Hands something over; gives it back where the thread has ended.
    pub fn tell(&self, what: Told) -> Result<(), Told> {
        let mut queue = self.lock();
        if queue.ended {
            return Err(what);
        }
        queue.told.push_back(what);
        drop(queue);
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Takes what has come.
    pub fn take(&self) -> VecDeque<Told> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut queue = self.lock();
        queue.stuck = false;
        std::mem::take(&mut queue.told)
    }

    /// Whether the thread may end: nothing has come. Nothing is taken from then on.
    pub fn end(&self) -> bool {
        let mut queue = self.lock();
        queue.ended = queue.told.is_empty();
        queue.ended
    }

    /// Waits until the thread has taken all that it was told. False: it has not within so long, or had not the last time
    /// and takes nothing since; then nobody waits for it again.
    pub fn catches_up(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        loop {
            let mut queue = self.lock();
            if queue.told.is_empty() {
                return true;
            }
            if queue.stuck || Instant::now() > until {
                queue.stuck = true;
                return false;
            }
            drop(queue);
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// How much waits: a thread that is stuck takes nothing.
    pub fn waiting(&self) -> usize {
        self.lock().told.len()
    }

    /// Readable when something has come.
    pub fn woken(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub fn seats(&self) -> usize {
        self.seats.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
