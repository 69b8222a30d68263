//! Sleeping and waking without losing a wake-up, and without a system call while the other side is awake.
//!
//! Each side of a memory file has a flag that says that it sleeps, a bit for each flow in which the other side moved
//! an index (a *notice*), and a doorbell.
//!
//! ```text
//!  who moves an index                              who sleeps
//!  1  store the index           (release)          1  flag = 1
//!  2  fence                     (seq. consistent)  2  fence                   (seq. consistent)
//!  3  set the notice's bit                         3  any notice? then flag = 0, and do not sleep
//!  4  fence                     (seq. consistent)  4  sleep until the doorbell rings
//!  5  flag = 1? take it (swap 0), ring             5  flag = 0, take the notices (swap 0, then a fence)
//! ```
//! Of two fences one is first. If the mover's (4) is, the sleeper sees the notice; if the sleeper's (2) is, the mover
//! sees the flag. A notice that is set already need not be set again: whoever takes it looks at the indices after its
//! fence, and so sees an index that was stored before (2). loom tries all of it (`cargo xtask loom`).
//!
//! **The doorbell towards the driver** is an eventfd that the program writes to. The driver watches it edge-triggered and
//! never reads it: a read wakes all who wait until it can be written to, and the program can have tens of thousands of
//! these (3 ms for 20,000 epolls). Who reads it all the same, in tests, does so with `RWF_NOWAIT`: whether
//! reading blocks is a property of the open file, which the program has too and can change.
//! **The one towards the program** is an eventfd that only the driver has. What the program gets is an epoll
//! descriptor that watches it, edge-triggered. With the eventfd itself a program could fill its counter and make it
//! blocking, and the driver would stand still in its next ring.
//!
//! One thread of each side sleeps at a time: a second one would lose its wake-up to the first.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::words::{Ordering, Word, Words, fence};

/// The flag of one side that says that it sleeps.
#[derive(Clone)]
pub(crate) struct Nap {
    pub(crate) flag: Word,
}

impl Nap {
    /// Says that this side sleeps. What happened before is to be looked at after this, once more. True if the flag
    /// was down before, so that somebody may take it from now on.
    pub(crate) fn begin(&self) -> bool {
        let new = self.flag.swap(1, Ordering::Relaxed) == 0;
        fence(Ordering::SeqCst);
        new
    }

    /// Says that it is awake. True if it was still thought asleep: nobody rang for it.
    pub(crate) fn end(&self) -> bool {
        self.flag.swap(0, Ordering::Relaxed) != 0
    }

    /// True if the other side sleeps, and it is this caller who has to wake it.
    #[inline]
    pub(crate) fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.flag.load(Ordering::Relaxed) != 0 && self.flag.swap(0, Ordering::Relaxed) != 0
    }
}

/// A bit for each flow in which the other side is to look.
#[derive(Clone)]
pub(crate) struct Notices {
    pub(crate) words: Words,
}

impl Notices {
    /// Says that something is new in this flow; it was stored before.
    #[inline]
    pub(crate) fn raise(&self, slot: u32) {
        fence(Ordering::SeqCst);
        let (word, bit) = (&self.words[(slot / 64) as usize], 1 << (slot % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// True if a notice is there.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        let set = |word: &crate::words::AtomicU64| word.load(Ordering::Relaxed) != 0;
        self.words.iter().any(set)
    }

    /// The flows of which a notice is there. They stay.
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

    /// Takes all notices, each word once.
    #[inline]
    pub(crate) fn take(&self, mut each: impl FnMut(u32)) {
        for (index, word) in (0..).zip(self.words.iter()) {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Relaxed);
            // The indices are read after this, see the essay.
            fence(Ordering::SeqCst);
            while bits != 0 {
                each(64 * index + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

/// Rings for the other side, if it sleeps. Cheap to clone; any thread may have one.
#[derive(Clone)]
pub struct Ringer {
    nap: Nap,
    bell: Arc<OwnedFd>,
}

impl Ringer {
    pub(crate) fn new(nap: Nap, bell: OwnedFd) -> Ringer {
        Ringer {
            nap,
            bell: Arc::new(bell),
        }
    }

    /// Wakes the other side if it sleeps: to be called after what was published. True if it slept.
    #[inline]
    pub fn ring(&self) -> bool {
        let sleeps = self.claim();
        if sleeps {
            self.strike();
        }
        sleeps
    }

    /// The first half of [`Ringer::ring`]: true if the other side sleeps, and the caller is to [`Ringer::strike`].
    #[inline]
    pub fn claim(&self) -> bool {
        self.nap.must_ring()
    }

    /// The other half: a system call, which goes through all who wait for the doorbell. It takes as long as there are many.
    pub fn strike(&self) {
        // A full counter refuses: then it has rung, and nobody has heard yet.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }

    /// The other side's flag.
    #[cfg(all(test, not(loom), not(miri)))]
    pub(crate) fn bell_flag(&self) -> u32 {
        self.nap.flag.load(Ordering::Relaxed)
    }
}

/// What a doorbell had to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// How often it was rung since the last time.
    pub rings: u64,
    /// So many of them without having taken the flag first (R52): 0 with a program that keeps to the rules.
    pub unasked: u64,
}
