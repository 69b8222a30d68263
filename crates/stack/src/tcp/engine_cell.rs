//! An engine that calls of the program and the service thread use ([`EngineCell`]).
//!
//! Each call serves its own connections, before and after it copies. The service thread serves them
//! while no call does: it acknowledges, retransmits and fills the submit rings. A call that waits
//! is woken by the thread that served the connection. A call fails as the work that it was given.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::engine::{Engine, monotonic};
use super::next_hops;
use super::watches::Wanted;
use crate::error::StackError;
use crate::program::Shared;
use crate::service::Served;
use crate::udp::REASON_TIMEOUT;

/// An engine that calls and the service thread enter one after the other.
pub(super) struct EngineCell {
    shared: Arc<Shared>,
    slots: Vec<u32>,
    engine: Mutex<Engine>,
    /// The next time at which the engine has something to do, in ns of `CLOCK_MONOTONIC`.
    due: AtomicU64,
    /// The streams and the listener that refer to the engine.
    users: AtomicU64,
    /// No thread that looks up next hops is started before this time, in ns of `CLOCK_MONOTONIC`.
    /// The largest number: one runs.
    pub(super) asking_until: AtomicU64,
    /// The cell itself, for that thread.
    own: Weak<EngineCell>,
    /// When a call first failed because the flow is closed, and the daemon had not said why.
    closed: OnceLock<Instant>,
}

impl EngineCell {
    /// Puts an engine into service. It has one user.
    pub(super) fn new(shared: &Arc<Shared>, engine: Engine) -> Arc<EngineCell> {
        let cell = Arc::new_cyclic(|own| EngineCell {
            own: own.clone(),
            asking_until: AtomicU64::new(0),
            shared: shared.clone(),
            slots: engine.slots().collect(),
            engine: Mutex::new(engine),
            due: AtomicU64::new(0),
            users: AtomicU64::new(1),
            closed: OnceLock::new(),
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

    /// The program of the engine.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
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
    pub(super) fn enter<T>(&self, use_it: impl FnOnce(&mut Engine) -> T) -> (T, Woken) {
        let mut engine = self.lock();
        let _ = engine.work();
        let result = use_it(&mut engine);
        (result, self.leave(engine))
    }

    /// Runs `use_it` in the engine, without work before or after: for what changes no connection.
    pub(super) fn look<T>(&self, use_it: impl FnOnce(&mut Engine) -> T) -> T {
        use_it(&mut self.lock())
    }

    /// One `attempt`. [`StackError::WouldBlock`] if it is not possible now.
    pub(super) fn attempt<T>(
        &self,
        wanted: Wanted,
        mut attempt: impl FnMut(&mut Engine) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        self.attempt_or_wait(wanted, &mut attempt, None).0
    }

    /// Repeats `attempt` until it succeeds, fails, or the time is over
    /// ([`StackError::WouldBlock`]).
    pub(super) fn block_on<T>(
        &self,
        wanted: Wanted,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut Engine) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        block_on(
            timeout,
            |waker| self.attempt_or_wait(wanted, &mut attempt, waker).0,
            |error| self.awaits_reason(error),
            |waker| self.give_up(wanted, waker),
        )
    }

    /// Whether a call that may wait makes another attempt, because the daemon's message with the
    /// reason for this error can still arrive. Reads its messages.
    pub(super) fn awaits_reason(&self, error: &StackError) -> bool {
        matches!(error, StackError::Closed(None))
            && self.shared.refresh()
            && self.closed.get_or_init(Instant::now).elapsed() < REASON_TIMEOUT
    }

    /// A call does not wait any more.
    pub(super) fn give_up(&self, wanted: Wanted, waker: &Waker) {
        self.lock().remove_waiter(wanted, waker);
    }

    /// One `attempt` of a task. If it would block, the task is woken when it is possible.
    pub(super) fn poll<T>(
        &self,
        wanted: Wanted,
        context: &mut Context<'_>,
        mut attempt: impl FnMut(&mut Engine) -> Result<T, StackError>,
    ) -> Poll<Result<T, StackError>> {
        let waker = Some(context.waker());
        pending(self.attempt_or_wait(wanted, &mut attempt, waker).0)
    }

    /// Makes an attempt. If it would block, `waker` is woken when it is possible. The event for
    /// readiness is armed when nothing more is possible.
    pub(super) fn attempt_or_wait<T>(
        &self,
        wanted: Wanted,
        attempt: &mut impl FnMut(&mut Engine) -> Result<T, StackError>,
        waker: Option<&Waker>,
    ) -> (Result<T, StackError>, Woken) {
        let mut engine = self.lock();
        let mut tries = 0;
        loop {
            let _ = engine.work();
            let result = attempt(&mut engine);
            let blocks = matches!(result, Err(StackError::WouldBlock));
            // Does what the call has made possible.
            let _ = engine.work();
            tries += 1;
            if blocks && tries < MOST_TRIES && engine.is_possible(wanted) {
                continue;
            }
            match waker {
                Some(waker) if blocks => engine.add_waiter(wanted, waker),
                _ => {}
            }
            engine.arm(wanted);
            return (result, self.finish(engine));
        }
    }

    /// Does what a call has made possible, and wakes what waits for it.
    fn leave(&self, mut engine: MutexGuard<'_, Engine>) -> Woken {
        let _ = engine.work();
        self.finish(engine)
    }

    /// Finds what waits for the connections that have changed, and unlocks the engine.
    fn finish(&self, mut engine: MutexGuard<'_, Engine>) -> Woken {
        let more = engine.report_changes();
        let due = engine.due();
        let mut due = due.map_or(u64::MAX, |at| at.as_nanos());
        if more {
            due = due.min((monotonic() + BUFFERS_PAUSE).as_nanos());
        }
        self.due.store(due, Ordering::Relaxed);
        let woken = engine.watches.take_woken();
        let silent = engine.take_silent();
        drop(engine);
        if !silent.is_empty() {
            next_hops::look_up(&self.own, silent);
        }
        if self.shared.service.sleeps_beyond(due) {
            self.wake_service();
        }
        Woken(woken)
    }

    /// Asks the daemon for the Ethernet address of the next hop to a host. Fails if there is no
    /// daemon, or the next hop does not answer.
    pub(super) fn ask_next_hop(&self, host: IpAddr) -> Result<[u8; 6], StackError> {
        let control = self.shared.control()?;
        Ok(control.request_hop(&self.shared.flows, host)?.hop.mac)
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
        drop(self.leave(self.lock()));
    }

    fn is_over(&self) -> bool {
        let unused = self.users.load(Ordering::Acquire) == 0;
        unused && {
            let engine = self.lock();
            engine.is_idle() || engine.has_failed()
        }
    }
}

/// Calls and tasks that are woken when this is dropped. They may enter any engine then, so no lock
/// may be held.
#[must_use]
pub(super) struct Woken(Vec<Waker>);

impl Drop for Woken {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

/// Repeats `attempt` until it succeeds, fails, or the time is over ([`StackError::WouldBlock`]). It
/// gets the waker to be woken when it may succeed, unless the call must not wait; `give_up` gets
/// the same when the time is over.
pub(super) fn block_on<T>(
    timeout: Option<Duration>,
    mut attempt: impl FnMut(Option<&Waker>) -> Result<T, StackError>,
    awaits_reason: impl Fn(&StackError) -> bool,
    give_up: impl FnOnce(&Waker),
) -> Result<T, StackError> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut waker = None;
    loop {
        // The first attempt of a call that must not wait makes no waker.
        let waits = timeout != Some(Duration::ZERO);
        let waker = waits.then(|| &*waker.get_or_insert_with(waker_of_this_thread));
        let longest = match attempt(waker) {
            Err(StackError::WouldBlock) => LONGEST_SLEEP,
            Err(error) if waits && awaits_reason(&error) => REASON_INTERVAL,
            other => return other,
        };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            if let Some(waker) = waker {
                give_up(waker);
            }
            return Err(StackError::WouldBlock);
        }
        // Returns at once if the thread was woken meanwhile.
        std::thread::park_timeout(left.unwrap_or(longest).min(longest));
    }
}

/// The result of an attempt of a task.
pub(super) fn pending<T>(result: Result<T, StackError>) -> Poll<Result<T, StackError>> {
    match result {
        Err(StackError::WouldBlock) => Poll::Pending,
        other => Poll::Ready(other),
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
            !ready.is_empty() || shared.service.has_added()
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

/// Wakes a thread that is parked.
struct ParkedThread(Thread);

impl Wake for ParkedThread {
    fn wake(self: Arc<ParkedThread>) {
        self.0.unpark();
    }
}

fn waker_of_this_thread() -> Waker {
    Waker::from(Arc::new(ParkedThread(std::thread::current())))
}

/// Between two rounds of work, calls can enter, and notices of all flows are taken.
const SHORTEST_SLEEP: Duration = Duration::from_micros(10);
/// The thread looks at everything once in such a time.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// How often a call on a closed flow looks for the daemon's message with the reason.
const REASON_INTERVAL: Duration = Duration::from_millis(1);
/// Buffers that were free for so long are offered to the next connections that wait for one.
const BUFFERS_PAUSE: Duration = Duration::from_millis(1);
/// Attempts of a call before it leaves the engine to others.
const MOST_TRIES: u32 = 4;
/// Time between attempts to wait.
const PAUSE: Duration = Duration::from_millis(100);
