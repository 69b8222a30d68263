//! Sleeping and waking between threads of a program, without a lost wake-up and without a system
//! call while the other thread is awake: [`Waker`]. [`ReadySet`] says what a woken thread has to
//! look at. The order of the steps is the same as between a program and its driver
//! (`netnice_ring::doorbell`).
//!
//! ```text
//!  thread that changes something                 thread that sleeps
//!  1  change it            (release)             1  flag = true
//!  2  fence                (seq. consistent)     2  fence               (seq. consistent)
//!  3  flag? take it, write to the eventfd        3  something changed? then do not sleep
//!                                                4  wait for the eventfd; flag = false
//! ```
//! [`Waker::new`] and [`Waker::wait`] fail if a system call fails.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::Errno;

/// Wakes one thread.
#[derive(Debug)]
pub(crate) struct Waker {
    fd: OwnedFd,
    sleeps: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Waker> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let sleeps = AtomicBool::new(false);
        Ok(Waker { fd, sleeps })
    }

    /// Wakes the thread if it sleeps. Call it after the change that the thread must see.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::Relaxed) {
            // The write fails only if the counter is full, and then the thread is already woken.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Prepares for sleeping. The thread must look for changes after this call.
    pub(crate) fn prepare_sleep(&self) {
        self.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends the sleep, or the preparation for it.
    pub(crate) fn end_sleep(&self) {
        if !self.sleeps.swap(false, Ordering::Relaxed) {
            // The read fails only if the counter is 0, because the write is still to come; the next
            // sleep is short then.
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }

    /// Waits until `is_ready` (true), or until the deadline (false).
    pub(crate) fn wait(
        &self,
        deadline: Option<Instant>,
        mut is_ready: impl FnMut() -> bool,
    ) -> io::Result<bool> {
        while !is_ready() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            self.prepare_sleep();
            let slept = match is_ready() {
                true => Ok(()),
                false => sleep([self.as_fd()], left),
            };
            self.end_sleep();
            slept?;
        }
        Ok(true)
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until one of the descriptors is readable, or the time has passed. May return earlier.
pub(crate) fn sleep<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    longest: Option<Duration>,
) -> io::Result<()> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
    match rustix::event::poll(&mut fds, longest.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A set of small numbers, which any thread adds to and one thread empties.
#[derive(Debug)]
pub(crate) struct ReadySet {
    words: Box<[AtomicU64]>,
}

impl ReadySet {
    /// An empty set for numbers below `size`.
    pub(crate) fn new(size: usize) -> ReadySet {
        let words = (0..size.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        ReadySet { words }
    }

    /// Adds a number. A number that is too large is ignored.
    pub(crate) fn insert(&self, number: usize) {
        if let Some(word) = self.words.get(number / 64) {
            word.fetch_or(1 << (number % 64), Ordering::Release);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let is_zero = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
        self.words.iter().all(is_zero)
    }

    /// Removes all numbers, and calls `each` for each of them.
    pub(crate) fn take(&self, mut each: impl FnMut(usize)) {
        for (index, word) in self.words.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                each(64 * index + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_set_gives_each_number_once() {
        let set = ReadySet::new(130);
        assert!(set.is_empty());
        for number in [129, 0, 64, 0, 1_000] {
            set.insert(number);
        }
        assert!(!set.is_empty());
        let mut all = Vec::new();
        set.take(|number| all.push(number));
        assert_eq!(all, [0, 64, 129]);
        assert!(set.is_empty());
    }

    #[test]
    fn no_wake_up_is_lost() {
        let shared = Arc::new((Waker::new().expect("an eventfd"), AtomicU32::new(0)));
        let counter = shared.clone();
        let thread = std::thread::spawn(move || {
            for next in 1..=20_000 {
                counter.1.store(next, Ordering::Release);
                counter.0.wake();
                while counter.1.load(Ordering::Acquire) == next {
                    std::thread::yield_now();
                }
            }
        });
        let (waker, counter) = &*shared;
        let far = Some(Instant::now() + Duration::from_secs(60));
        for next in 1..=20_000 {
            let is_ready = || counter.load(Ordering::Acquire) == next;
            assert!(waker.wait(far, is_ready).expect("no error"), "{next}");
            counter.store(0, Ordering::Release);
        }
        thread.join().expect("no panic");
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let waker = Waker::new().expect("an eventfd");
        let deadline = Instant::now() + Duration::from_millis(20);
        assert!(!waker.wait(Some(deadline), || false).expect("no error"));
        assert!(Instant::now() >= deadline);
    }
}
