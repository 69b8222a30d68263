//! What a thread of the library serves for a program ([`Service`]): connections of TCP, at present.
//! No function fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that is served when its flows have something new, or its time has come.
pub(crate) trait Served: Send + Sync {
    /// The slots of its flows.
    fn slots(&self) -> &[u32];
    /// The next time at which it has something to do, in ns of `CLOCK_MONOTONIC`.
    fn due(&self) -> u64;
    /// Serves it.
    fn serve(&self);
    /// True if it will never have anything to do.
    fn is_over(&self) -> bool;
}

/// What the service thread of a program serves.
#[derive(Default)]
pub(crate) struct Service {
    state: Mutex<State>,
    /// Until when the thread sleeps, in ns of `CLOCK_MONOTONIC`; 0 while it does not.
    sleeps_until: AtomicU64,
}

#[derive(Default)]
struct State {
    served: Vec<Arc<dyn Served>>,
    runs: bool,
    /// Something was added since [`Service::remaining`] was called last.
    has_added: bool,
}

impl Service {
    /// Adds something to be served. `start` starts the thread, if it does not run; false if that
    /// failed.
    pub(crate) fn add(&self, one: Arc<dyn Served>, start: impl FnOnce() -> bool) {
        let mut state = self.lock();
        state.served.push(one);
        state.has_added = true;
        if !state.runs {
            state.runs = start();
        }
    }

    /// What is to be served. `None` if that is nothing: the thread ends.
    pub(crate) fn remaining(&self) -> Option<Vec<Arc<dyn Served>>> {
        let mut state = self.lock();
        let served = std::mem::take(&mut state.served);
        let (over, rest) = served.into_iter().partition(|one| one.is_over());
        state.served = rest;
        state.has_added = false;
        state.runs = !state.served.is_empty();
        let remaining = state.runs.then(|| state.served.clone());
        drop(state);
        // Their flows are closed now, which waits for the daemon.
        let over: Vec<Arc<dyn Served>> = over;
        drop(over);
        remaining
    }

    /// True if something was added since the last call of [`Service::remaining`]. The thread must
    /// not sleep on, because it does not know the flows of what was added.
    pub(crate) fn has_added(&self) -> bool {
        self.lock().has_added
    }

    /// The thread sleeps until `due`.
    pub(crate) fn sleep_until(&self, due: u64) {
        self.sleeps_until.store(due, Ordering::Release);
    }

    /// The thread does not sleep.
    pub(crate) fn wake_up(&self) {
        self.sleep_until(0);
    }

    /// True if the thread would sleep beyond `due`.
    pub(crate) fn sleeps_beyond(&self, due: u64) -> bool {
        due < self.sleeps_until.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
