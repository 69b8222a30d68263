//! Readiness of many streams and listeners over one descriptor ([`Poller`]).
//!
//! ```text
//!   engine: a call is possible again ──▶ Registration ──▶ queue of the Poller ──▶ descriptor
//!   program: sleeps on the descriptor ──▶ Poller::take ──▶ events ──▶ calls until one would block
//! ```
//! Events are edge-triggered. A stream has an event when a call becomes possible that was not
//! possible after the last call of its kind, so a stream that the program does not use has one
//! event at most. An event costs one entry in a queue; packets of a stream whose event the program
//! has not taken cost nothing.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::error::StackError;
use crate::readable::wait_readable;

/// What became possible at a stream or a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number that the program gave when it registered the stream or listener.
    pub token: u64,
    /// A stream: bytes or the peer's end can be read, or the connection has ended. A listener: a
    /// connection waits to be accepted, or a flow of the listener has ended.
    pub readable: bool,
    /// A stream can take bytes, or fails at once.
    pub writable: bool,
    /// A stream: the connection has failed, or both ends have shut down. A listener: a flow of it
    /// has ended. What was received before can still be read.
    pub ended: bool,
}

/// Collects events of streams and listeners, also those of several programs.
///
/// A program registers its streams ([`Stream::register`](super::Stream::register)) and listeners
/// ([`Listener::register`](super::Listener::register)), waits until the descriptor is readable, and
/// takes the events. After an event it must repeat the call until the call fails with
/// [`StackError::WouldBlock`], or until a read or write was shorter than possible: only then the
/// next event of this kind comes. Registering a stream gives an event for everything that is
/// possible already.
///
/// ```no_run
/// # fn serve(listener: netnice_stack::tcp::Listener) -> Result<(), netnice_stack::StackError> {
/// use std::collections::HashMap;
///
/// use netnice_stack::StackError;
/// use netnice_stack::tcp::Poller;
///
/// let poller = Poller::new()?;
/// listener.register(&poller, 0);
/// let (mut streams, mut next) = (HashMap::new(), 1);
/// loop {
///     let mut events = Vec::new();
///     poller.wait(None)?;
///     poller.take(100, |event| events.push(event));
///     for event in events {
///         if event.token == 0 {
///             while let Ok(stream) = listener.try_accept() {
///                 stream.register(&poller, next);
///                 streams.insert(next, stream);
///                 next += 1;
///             }
///         } else if let Some(stream) = streams.get(&event.token) {
///             let mut bytes = [0; 4096];
///             loop {
///                 match stream.try_read(&mut bytes) {
///                     Err(StackError::WouldBlock) => break,
///                     Ok(read) if read > 0 => println!("{:?}", &bytes[..read]),
///                     _ => {
///                         streams.remove(&event.token);
///                         break;
///                     }
///                 }
///             }
///         }
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Poller {
    queue: Arc<Queue>,
}

#[derive(Debug)]
struct Queue {
    /// An eventfd(2): readable while there are events.
    descriptor: OwnedFd,
    state: Mutex<VecDeque<Arc<Registration>>>,
}

/// A stream or listener that is registered.
#[derive(Debug)]
pub(super) struct Registration {
    queue: Arc<Queue>,
    token: u64,
    /// What became possible since the program took the last event. Not empty: the registration is
    /// in the queue, once.
    pending: Mutex<Possible>,
}

/// Kinds of calls that are possible, as a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Possible(u8);

impl Possible {
    pub(super) const READ: Possible = Possible(1);
    pub(super) const WRITE: Possible = Possible(2);
    pub(super) const END: Possible = Possible(4);
    pub(super) const ALL: Possible = Possible(7);

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn has(self, other: Possible) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn insert(&mut self, other: Possible) {
        self.0 |= other.0;
    }

    pub(super) fn remove(&mut self, other: Possible) {
        self.0 &= !other.0;
    }

    pub(super) fn and(self, other: Possible) -> Possible {
        Possible(self.0 & other.0)
    }
}

impl Poller {
    /// A poller without streams.
    ///
    /// # Errors
    /// [`StackError::Wait`] if the process or the system has too many descriptors.
    pub fn new() -> Result<Poller, StackError> {
        let queue = Queue {
            descriptor: new_descriptor()?,
            state: Mutex::default(),
        };
        Ok(Poller {
            queue: Arc::new(queue),
        })
    }

    /// Waits until there is an event (true), or `timeout` is over (false). `None` is without a
    /// limit. A signal ends the wait early.
    ///
    /// # Errors
    /// [`StackError::Wait`] if the system call fails.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, StackError> {
        let readable = wait_readable([self.as_fd()], timeout).map_err(StackError::Wait)?;
        Ok(readable == [true])
    }

    /// Takes the oldest events, `most` at most, and calls `each` with them. Returns their number.
    /// All that became possible at one stream since its last event is one event. The descriptor
    /// stays readable if there are more.
    pub fn take(&self, most: usize, mut each: impl FnMut(Event)) -> usize {
        let mut taken = 0;
        while taken < most {
            let registration = {
                let mut queue = self.queue.lock();
                let Some(registration) = queue.pop_front() else {
                    break;
                };
                if queue.is_empty() {
                    clear(&self.queue.descriptor);
                }
                registration
            };
            let possible = std::mem::take(&mut *lock(&registration.pending));
            // The stream was dropped.
            if possible.is_empty() {
                continue;
            }
            taken += 1;
            each(Event {
                token: registration.token,
                readable: possible.has(Possible::READ),
                writable: possible.has(Possible::WRITE),
                ended: possible.has(Possible::END),
            });
        }
        taken
    }
}

impl AsFd for Poller {
    /// Readable while there are events. The library owns it; the program must not read it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.descriptor.as_fd()
    }
}

impl AsRawFd for Poller {
    /// The number of the descriptor.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Registration>>> {
        lock(&self.state)
    }
}

impl Registration {
    pub(super) fn new(poller: &Poller, token: u64) -> Arc<Registration> {
        Arc::new(Registration {
            queue: poller.queue.clone(),
            token,
            pending: Mutex::default(),
        })
    }

    /// Adds an event, or adds to the one that the program has not taken.
    pub(super) fn push(self: &Arc<Registration>, possible: Possible) {
        let mut pending = lock(&self.pending);
        let is_queued = !pending.is_empty();
        pending.insert(possible);
        if is_queued {
            return;
        }
        drop(pending);
        let mut queue = self.queue.lock();
        queue.push_back(self.clone());
        if queue.len() == 1 {
            set(&self.queue.descriptor);
        }
    }

    /// No event follows, and one that the program has not taken is dropped.
    pub(super) fn cancel(&self) {
        *lock(&self.pending) = Possible::default();
    }
}

/// A descriptor that is not readable.
pub(super) fn new_descriptor() -> Result<OwnedFd, StackError> {
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    eventfd(0, flags).map_err(|error| StackError::Wait(error.into()))
}

/// Makes a descriptor readable.
pub(super) fn set(descriptor: &OwnedFd) {
    // It fails only if the counter is at its limit; the descriptor is readable then.
    let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
}

/// Makes a descriptor not readable.
fn clear(descriptor: &OwnedFd) {
    // It fails only if the counter is 0.
    let _ = rustix::io::read(descriptor, &mut [0; 8]);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
