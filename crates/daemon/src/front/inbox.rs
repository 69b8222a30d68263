//! The queue of messages from the front's first thread to a user's thread ([`Inbox`]), with the
//! number of the user's connections that count against the limit, which both threads change. A
//! message is returned to the sender if the user's thread has ended. Making an inbox fails if the
//! kernel gives no eventfd.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netnice_kernel::peer::Peer;
use rustix::event::{EventfdFlags, eventfd};

use super::messages::ToFront;

/// A message to a user's thread.
#[derive(Debug)]
pub(super) enum InboxMessage {
    /// A new connection of the user.
    Connected {
        /// The connection's number.
        number: u64,
        /// The connection's socket.
        socket: OwnedFd,
        /// The connecting process.
        peer: Peer,
    },
    /// A message of the daemon for a client.
    Deliver(ToFront),
    /// All users together are over the limit: close the connection that is idle for longest.
    MakeRoom,
    /// A refused connection. The user's thread closes it, because the close also closes descriptors
    /// queued in it.
    Close(OwnedFd),
    /// The front ends: send what can be sent at once, and end.
    End,
}

/// The queue to one user's thread.
pub(super) struct Inbox {
    queue: Mutex<Queue>,
    wake: OwnedFd,
    /// Connections that count against the limit, including those still in the queue.
    pub counted: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<InboxMessage>,
    ended: bool,
    /// True if the first thread has waited for the user's thread without success, and that thread
    /// has taken nothing since.
    stuck: bool,
}

impl Inbox {
    /// An empty inbox. Fails if the kernel gives no eventfd.
    pub(super) fn new() -> rustix::io::Result<Inbox> {
        Ok(Inbox {
            queue: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            counted: AtomicUsize::new(0),
        })
    }

    /// Queues a message. Fails if the thread has ended, and then returns the message.
    pub(super) fn push(&self, what: InboxMessage) -> Result<(), InboxMessage> {
        let mut queue = self.lock();
        if queue.ended {
            return Err(what);
        }
        queue.messages.push_back(what);
        drop(queue);
        // The write fails if the eventfd's counter is full; then the descriptor is readable
        // already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Takes all queued messages.
    pub(super) fn take(&self) -> VecDeque<InboxMessage> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut queue = self.lock();
        queue.stuck = false;
        std::mem::take(&mut queue.messages)
    }

    /// Ends the queue if it is empty; returns true if it has ended. An ended queue takes no
    /// message.
    pub(super) fn end(&self) -> bool {
        let mut queue = self.lock();
        queue.ended = queue.messages.is_empty();
        queue.ended
    }

    /// Waits until the thread has taken all messages. False if it has not within `within`, or if an
    /// earlier wait failed and it has taken nothing since.
    pub(super) fn wait_until_taken(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        loop {
            let mut queue = self.lock();
            if queue.messages.is_empty() {
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

    /// True if the thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// The number of queued messages; it does not shrink while the thread is stuck.
    pub(super) fn waiting(&self) -> usize {
        self.lock().messages.len()
    }

    /// A descriptor that is readable while messages are queued.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The number of connections of the user that count against the limit.
    pub(super) fn counted(&self) -> usize {
        self.counted.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
