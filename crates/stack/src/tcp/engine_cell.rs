//! An engine that calls of the program and the service thread use ([`EngineCell`]).
//!
//! Each call serves its own connections, before and after it copies. The service thread serves them
//! while no call does: it acknowledges, retransmits and fills the submit rings. A call that waits
//! is woken by the thread that served the connection. A call fails as the work that it was given.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::engine::{Engine, monotonic};
use crate::error::StackError;
use crate::program::Shared;
use crate::service::Served;

/// An engine that calls and the service thread enter one after the other.
pub(super) struct EngineCell {
    shared: Arc<Shared>,
    slots: Vec<u32>,
    engine: Mutex<Engine>,
    /// Something has changed that a call may wait for.
    changed: Condvar,
    /// The tasks that wait for a change.
    tasks: Mutex<Vec<Waker>>,
    /// The next time at which the engine has something to do, in ns of `CLOCK_MONOTONIC`.
    due: AtomicU64,
    /// The streams and the listener that refer to the engine.
    users: AtomicU64,
}

impl EngineCell {
    /// Puts an engine into service. It has one user.
    pub(super) fn new(shared: &Arc<Shared>, engine: Engine) -> Arc<EngineCell> {
        let cell = Arc::new(EngineCell {
            shared: shared.clone(),
            slots: engine.slots().collect(),
            engine: Mutex::new(engine),
            changed: Condvar::new(),
            tasks: Mutex::default(),
            due: AtomicU64::new(0),
            users: AtomicU64::new(1),
        });
        shared.service.add(cell.clone(), || {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name("netnice-tcp".to_string());
            // Without the thread only calls serve the connections.
            thread.spawn(move || serve(&shared)).is_ok()
        });
        cell.wake_service();
        cell
    }

    /// Another stream refers to the engine.
    pub(super) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// A stream or the listener is gone.
    pub(super) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::Release);
        self.wake_service();
    }

    /// Enters the engine: `use_it` runs between two rounds of work. Fails as `use_it`; a flow that
    /// has ended is found by the state of the connections.
    pub(super) fn enter<T>(&self, use_it: impl FnOnce(&mut Engine) -> T) -> T {
        let mut engine = self.lock();
        let _ = engine.work();
        let result = use_it(&mut engine);
        self.leave(&mut engine);
        result
    }

    /// Repeats `attempt` until it succeeds, fails, or the time is over
    /// ([`StackError::WouldBlock`]).
    pub(super) fn block_on<T>(
        &self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut Engine) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut engine = self.lock();
        loop {
            match self.attempt(&mut engine, &mut attempt) {
                Err(StackError::WouldBlock) => {}
                other => return other,
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(StackError::WouldBlock);
            }
            let left = left.unwrap_or(LONGEST_SLEEP);
            engine = match self.changed.wait_timeout(engine, left) {
                Ok((engine, _)) => engine,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// One `attempt` of a task. If it would block, the task is woken at the next change.
    pub(super) fn poll<T>(
        &self,
        context: &mut Context<'_>,
        mut attempt: impl FnMut(&mut Engine) -> Result<T, StackError>,
    ) -> Poll<Result<T, StackError>> {
        let mut engine = self.lock();
        match self.attempt(&mut engine, &mut attempt) {
            Err(StackError::WouldBlock) => {}
            other => return Poll::Ready(other),
        }
        // The engine is locked, so no change can come before the task is in the list.
        let mut tasks = lock(&self.tasks);
        if !tasks.iter().any(|task| task.will_wake(context.waker())) {
            tasks.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Makes an attempt, and repeats it while something happens that it may succeed by.
    fn attempt<T>(
        &self,
        engine: &mut Engine,
        attempt: &mut impl FnMut(&mut Engine) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        loop {
            let _ = engine.work();
            let result = attempt(engine);
            let happened = self.leave(engine);
            match result {
                Err(StackError::WouldBlock) if happened => {}
                other => return other,
            }
        }
    }

    /// Does what the call has made possible, and wakes the calls that wait. Returns true if
    /// something has happened meanwhile that this call may wait for.
    fn leave(&self, engine: &mut Engine) -> bool {
        let before = engine.take_changed();
        let _ = engine.work();
        let meanwhile = engine.take_changed();
        let due = engine.due();
        let due = due.map_or(u64::MAX, |at| at.as_nanos());
        self.due.store(due, Ordering::Relaxed);
        if before || meanwhile {
            self.changed.notify_all();
            lock(&self.tasks).drain(..).for_each(Waker::wake);
        }
        if self.shared.service.sleeps_beyond(due) {
            self.wake_service();
        }
        meanwhile
    }

    fn wake_service(&self) {
        if let Some(&slot) = self.slots.first() {
            self.shared.report(slot);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Served for EngineCell {
    fn slots(&self) -> &[u32] {
        &self.slots
    }

    fn due(&self) -> u64 {
        self.due.load(Ordering::Relaxed)
    }

    fn serve(&self) {
        let mut engine = self.lock();
        self.leave(&mut engine);
    }

    fn is_over(&self) -> bool {
        let unused = self.users.load(Ordering::Acquire) == 0;
        unused && {
            let engine = self.lock();
            engine.is_idle() || engine.has_failed()
        }
    }
}

/// The service thread.
fn serve(shared: &Arc<Shared>) {
    while let Some(served) = shared.service.remaining() {
        let due = served.iter().map(|one| one.due()).min().unwrap_or(u64::MAX);
        shared.service.sleep_until(due);
        let left = Duration::from_nanos(due.saturating_sub(monotonic().as_nanos()));
        let deadline = Instant::now() + left.clamp(SHORTEST_SLEEP, LONGEST_SLEEP);
        let mut ready = Vec::new();
        let waited = shared.wait_until(Some(deadline), || {
            let slots = served.iter().flat_map(|one| one.slots().iter());
            ready = slots
                .copied()
                .filter(|slot| shared.take_pending(*slot))
                .collect();
            !ready.is_empty()
        });
        shared.service.wake_up();
        if waited.is_err() {
            // The system call failed: try again later, and not in a tight loop.
            std::thread::sleep(PAUSE);
        }
        let now = monotonic().as_nanos();
        for one in &served {
            let is_named = one.slots().iter().any(|slot| ready.contains(slot));
            if is_named || one.due() <= now {
                one.serve();
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Between two rounds of work, calls can enter, and notices of all flows are taken.
const SHORTEST_SLEEP: Duration = Duration::from_micros(10);
/// The thread looks at everything once in such a time.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// Time between attempts to wait.
const PAUSE: Duration = Duration::from_millis(100);
