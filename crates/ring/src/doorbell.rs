//! Sleeping and waking without a lost wake-up, and without a system call while the other side is
//! awake.
//!
//! For each side, the memory file has a flag that is 1 while the side sleeps, and one bit for each
//! flow in which the other side moved an index (a *notice*). Each side also has a doorbell. No call
//! of this module fails.
//!
//! ```text
//!  side that moves an index                      side that sleeps
//!  1  store the index         (release)          1  flag = 1
//!  2  fence                   (seq. consistent)  2  fence                  (seq. consistent)
//!  3  set the notice's bit                       3  any notice? then flag = 0, no sleep
//!  4  fence                   (seq. consistent)  4  sleep until the doorbell is notified
//!  5  flag = 1? take it (swap 0), notify         5  flag = 0, take the notices (swap 0, fence)
//! ```
//! One of the two fences (mover's step 4, sleeper's step 2) is first in the total order. If the
//! mover's fence is first, the sleeper sees the notice. If the sleeper's fence is first, the mover
//! sees the flag. A mover need not set a notice that is already set: the side that takes the notice
//! reads the indices after its fence, and so it sees an index that was stored before step 2. loom
//! checks all interleavings of two threads (`cargo xtask loom`).
//!
//! **The doorbell to the driver** is an eventfd that the program writes to. The driver polls it
//! edge-triggered and never reads it. A read would wake all waiters for writability, and the
//! program can have tens of thousands of them (3 ms for 20,000 epolls). Tests and benchmarks that
//! read it do so with `RWF_NOWAIT`, because the blocking mode is a property of the open file, which
//! the program shares and can change.
//!
//! **The doorbell to the program** is an eventfd that only the driver has. The program gets an
//! epoll descriptor that polls it edge-triggered. A program with the eventfd itself could fill its
//! counter and make it blocking, and the driver would block in its next notification.
//!
//! Only one thread of each side sleeps at a time. A second thread would lose its wake-up to the
//! first.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::words::{Ordering, Word, Words, fence};

/// The sleeping flag of one side.
#[derive(Clone)]
pub(crate) struct SleepFlag {
    pub(crate) flag: Word,
}

impl SleepFlag {
    /// Sets the flag. The caller must look for work once more after this call. True if the flag was
    /// 0 before, so that the other side may take it from now on.
    pub(crate) fn set(&self) -> bool {
        let new = self.flag.swap(1, Ordering::Relaxed) == 0;
        fence(Ordering::SeqCst);
        new
    }

    /// Clears the flag. True if it was still set: then the other side did not take it, and sent no
    /// notification unless it breaks R52.
    pub(crate) fn clear(&self) -> bool {
        self.flag.swap(0, Ordering::Relaxed) != 0
    }

    /// True if the other side sleeps and this caller took its flag: the caller must notify it.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.flag.load(Ordering::Relaxed) != 0 && self.flag.swap(0, Ordering::Relaxed) != 0
    }
}

/// One bit for each flow in which the other side moved an index.
#[derive(Clone)]
pub(crate) struct Notices {
    pub(crate) words: Words,
}

impl Notices {
    /// Sets the notice of a flow. The caller stored the index before.
    #[inline]
    pub(crate) fn raise(&self, slot: u32) {
        fence(Ordering::SeqCst);
        self.raise_behind_fence(slot);
    }

    /// As [`Notices::raise`], for a caller that has executed the fence of step 2 since it stored
    /// the index.
    #[inline]
    pub(crate) fn raise_behind_fence(&self, slot: u32) {
        let (word, bit) = (&self.words[(slot / 64) as usize], 1 << (slot % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// True if at least one notice is set.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        let set = |word: &crate::words::AtomicU64| word.load(Ordering::Relaxed) != 0;
        self.words.iter().any(set)
    }

    /// The flows whose notices are set. The notices stay set.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        (0..).zip(self.words.iter()).flat_map(|(index, word)| {
            let mut bits = word.load(Ordering::Relaxed);
            if bits != 0 {
                fence(Ordering::SeqCst);
            }
            std::iter::from_fn(move || {
                let lowest = (bits != 0).then(|| bits.trailing_zeros())?;
                bits &= bits - 1;
                Some(64 * index + lowest)
            })
        })
    }

    /// Clears all notices and calls `each` for every flow whose notice was set. Swaps each word
    /// once.
    #[inline]
    pub(crate) fn take(&self, mut each: impl FnMut(u32)) {
        for (index, word) in (0..).zip(self.words.iter()) {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Relaxed);
            // The caller reads the indices after this fence; see the module documentation.
            fence(Ordering::SeqCst);
            while bits != 0 {
                each(64 * index + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

/// Notifies the other side if it sleeps. Any thread can use a notifier, and a clone is cheap.
#[derive(Clone)]
pub struct Notifier {
    sleep_flag: SleepFlag,
    doorbell: Arc<OwnedFd>,
}

impl Notifier {
    /// A notifier for the side that sets `sleep_flag` and waits for `doorbell`.
    pub(crate) fn new(sleep_flag: SleepFlag, doorbell: OwnedFd) -> Notifier {
        Notifier {
            sleep_flag,
            doorbell: Arc::new(doorbell),
        }
    }

    /// Notifies the other side if it sleeps. Call it after publishing. True if the other side
    /// slept.
    #[inline]
    pub fn notify(&self) -> bool {
        let sleeps = self.take_flag();
        if sleeps {
            self.signal();
        }
        sleeps
    }

    /// The first half of [`Notifier::notify`]. True if the other side sleeps: the caller must then
    /// call [`Notifier::signal`].
    #[inline]
    pub fn take_flag(&self) -> bool {
        self.sleep_flag.take()
    }

    /// The second half of [`Notifier::notify`]: a system call. The kernel visits every waiter of
    /// the doorbell, so the time is proportional to their number.
    pub fn signal(&self) {
        // The write fails if the counter is full. The doorbell is then already signalled.
        let _ = rustix::io::write(&*self.doorbell, &1u64.to_ne_bytes());
    }

    /// The other side's flag.
    #[cfg(all(test, not(loom), not(miri)))]
    pub(crate) fn flag(&self) -> u32 {
        self.sleep_flag.flag.load(Ordering::Relaxed)
    }
}

/// The notifications that a driver found when it drained a doorbell. `netnice-driver` polls
/// doorbells edge-triggered and never drains one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notifications {
    /// Notifications since the doorbell was last drained: the sum of the numbers that were written
    /// to the eventfd, 1 for each notification of a program that keeps the rules.
    pub count: u64,
    /// Notifications that were sent without taking the flag, which breaks R52. 0 for a program that
    /// keeps the rules.
    pub without_flag: u64,
}
