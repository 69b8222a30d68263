//! Shaping alone: many flows, each to its own contract, from one timer.
//!
//! A [`Pacer`] is for a program that has a socket for each flow, or one for all (a QUIC stack, a
//! media server): it says which flow's next packet may go, and when to wake for the next. There
//! is no link in it, so there is no order between flows that may go in the same moment; for that
//! there is [`super::Scheduler`].
//!
//! Flows wait in whole microseconds, rounded up (of waits above a millisecond in 1/1024 of the wait or
//! less): whoever may go already goes at once. What rounding costs is never more than half of a contract's CDVT,
//! nor than 1/32 of it behind the pause of a dual bucket, but for that microsecond; so it costs no rate. Where no
//! place is so narrow, a flow is looked at again shortly before its time, which costs as much as a packet does; one call does so
//! with 16 flows at most.

use alloc::vec::Vec;

use super::calendar::{Calendar, Entry, MAX_FLOWS, Place, Pool};
use super::cell::Cell;
use super::deadline::ASK;
use super::fitting;
use super::flow::MAX_LENGTH;
use super::service::{FlowId, Misuse};
use crate::contract;
use crate::prefetch;
use crate::units::{Bytes, Instant};

/// Flows that are shaped, each to a cell contract (a rate, a tolerance, perhaps a burst).
///
/// ```
/// use netnice_core::{contract, sched::Pacer, units::{Bytes, Instant, Nanos, Rate}};
///
/// let rate = Rate::new(1_000_000).unwrap();
/// let contract = contract::Cell::new(rate, Nanos::from_millis(1), None).unwrap();
/// let mut pacer = Pacer::new();
/// let flow = pacer.insert(contract).unwrap();
/// pacer.handle_head(flow, Bytes(1250), Instant(0)).unwrap();
/// // 1250 bytes are 10 ms of 1 Mbit/s; there is always one more packet.
/// assert_eq!(pacer.poll(Instant(0), |_| Some(Bytes(1250))), Some((flow, Bytes(1250))));
/// assert_eq!(pacer.poll(Instant(0), |_| None), None);
/// let wake = pacer.poll_timeout().unwrap();
/// assert!(wake.0 >= 10_000_000 && wake.0 < 10_010_000);
/// assert_eq!(pacer.poll(wake, |_| None), Some((flow, Bytes(1250))));
/// assert_eq!(pacer.poll_timeout(), None);
/// ```
#[derive(Debug)]
pub struct Pacer {
    flows: Vec<Paced>,
    /// Places of flows that were removed.
    vacant: Vec<u32>,
    pool: Pool,
    /// By the microsecond in which they may go on.
    sleepers: Calendar<0>,
    /// The latest time that was passed, and its whole microseconds.
    now: u64,
    tick: u64,
}

/// A flow: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Paced {
    cell: Cell,
    /// Length of the head in bytes (24 bits), and the state.
    about: u32,
    place: Place,
}

const _: () = assert!(size_of::<Paced>() == 64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum State {
    Gone = 0,
    Idle = 1 << 24,
    Waiting = 2 << 24,
}

impl Default for Pacer {
    fn default() -> Pacer {
        Pacer::new()
    }
}

impl Pacer {
    /// No flows yet.
    pub fn new() -> Pacer {
        Pacer::with_capacity(0)
    }

    /// The same, with room for so many flows: as long as there are no more, inserting one moves no others in memory.
    pub fn with_capacity(flows: usize) -> Pacer {
        let flows = flows.min(MAX_FLOWS as usize);
        Pacer {
            flows: Vec::with_capacity(flows),
            vacant: Vec::with_capacity(flows),
            pool: Pool::with_capacity(flows),
            sleepers: Calendar::new(0),
            now: 0,
            tick: 0,
        }
    }

    /// A new flow, with nothing to send yet.
    pub fn insert(&mut self, contract: contract::Cell) -> Result<FlowId, Misuse> {
        let flow = Paced {
            cell: Cell::new(&contract).paced(TICK_DIGITS),
            about: State::Idle as u32,
            place: Place::default(),
        };
        if let Some(id) = self.vacant.pop() {
            self.flows[id as usize] = flow;
            return Ok(FlowId(id));
        }
        let id = self.flows.len() as u32;
        if id >= MAX_FLOWS {
            return Err(Misuse::Full(MAX_FLOWS));
        }
        self.flows.push(flow);
        self.pool.reserve(1);
        Ok(FlowId(id))
    }

    /// Another contract for a running flow. What it has used of the old one stays used.
    pub fn change(&mut self, flow: FlowId, contract: contract::Cell) -> Result<(), Misuse> {
        let state = self.known(flow)?;
        state.cell = state.cell.changed(&contract).paced(TICK_DIGITS);
        state.set_length(state.length().min(state.cell.longest()));
        if state.is(State::Waiting) {
            self.recall(flow.0);
            self.place(flow.0);
        }
        Ok(())
    }

    /// The flow ends; what waited is forgotten.
    pub fn remove(&mut self, flow: FlowId) -> Result<(), Misuse> {
        self.withdraw(flow)?;
        self.known(flow)?.set(State::Gone);
        self.vacant.push(flow.0);
        Ok(())
    }

    /// A packet came to the empty queue of a flow. For packets behind others there is no call.
    pub fn handle_head(&mut self, flow: FlowId, length: Bytes, now: Instant) -> Result<(), Misuse> {
        self.advance(now);
        let now = self.now;
        let state = self.known(flow)?;
        if state.is(State::Waiting) {
            return Err(Misuse::Waiting(flow));
        }
        let length = fitting(flow, length, MAX_LENGTH.min(state.cell.longest()))?;
        state.set_length(length);
        state.set(State::Waiting);
        state.cell.wake(now);
        self.place(flow.0);
        Ok(())
    }

    /// The queue of a flow was emptied without sending. Says whether there was a head.
    pub fn withdraw(&mut self, flow: FlowId) -> Result<bool, Misuse> {
        let state = self.known(flow)?;
        let waited = state.is(State::Waiting);
        if waited {
            state.set(State::Idle);
            self.recall(flow.0);
        }
        Ok(waited)
    }

    /// A flow whose head may go now, and the head's length. `behind` is called exactly once for
    /// each: the length of what stands behind the head, if anything. (Longer than can be sent
    /// counts as the longest that can.)
    ///
    /// Nothing may mean: not yet. Then [`Pacer::poll_timeout`] says when; not later than `now` where so many flows had to be
    /// looked at again that the others wait for the next call.
    #[inline]
    pub fn poll(
        &mut self,
        now: Instant,
        behind: impl FnOnce(FlowId) -> Option<Bytes>,
    ) -> Option<(FlowId, Bytes)> {
        self.advance(now);
        for _ in 0..ASKED_PER_CALL {
            self.sleepers.peek().filter(|spot| spot.key <= self.tick)?;
            let flows = &self.flows;
            let ahead = |entry: Entry, _| {
                if let Some(flow) = flows.get(entry.id() as usize) {
                    prefetch::soon(flow);
                }
            };
            let entry = self.sleepers.take_ahead(&mut self.pool, ahead)?;
            let id = entry.id();
            let flow = &mut self.flows[id as usize];
            if entry.word() == ASK && flow.cell.plan(flow.length()).0 > self.now {
                // Its place was before its time, for want of a finer one.
                self.place(id);
                continue;
            }
            let length = flow.length();
            flow.cell.sent(self.now, length);
            match behind(FlowId(id)) {
                Some(next) => {
                    let most = MAX_LENGTH.min(flow.cell.longest());
                    let next = next.0.min(u64::from(most)) as u32;
                    flow.set_length(next);
                    let eligible = flow.cell.plan(next).0;
                    let finest = flow.cell.finest_paced();
                    self.sleep(id, eligible, finest);
                }
                None => flow.set(State::Idle),
            }
            return Some((FlowId(id), Bytes(u64::from(length))));
        }
        None
    }

    /// When [`Pacer::poll`] can next have something; nothing if a packet has to come first
    /// (or time is over before).
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let at = (self.sleepers.soonest()? * TICK).max(self.now);
        (at <= LAST).then_some(Instant(at))
    }

    /// Bytes of memory in use, with what is kept for flows that are idle: 64 for each flow, and 0.54 MB for the calendar. What is
    /// reserved and was never touched takes addresses only: it does not count.
    pub fn memory(&self) -> usize {
        size_of_val(self.flows.as_slice()) + self.pool.memory() + self.sleepers.memory()
    }

    /// Lets a flow sleep until it is eligible.
    #[inline(always)]
    fn place(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        let eligible = flow.cell.plan(flow.length()).0;
        let finest = flow.cell.finest_paced();
        self.sleep(id, eligible, finest);
    }

    /// The same, if it is known when that is and how wide the place of the wait may be.
    #[inline(always)]
    fn sleep(&mut self, id: u32, eligible: u64, finest: u32) {
        let wakes = match eligible <= self.now {
            true => self.tick,
            false => eligible.saturating_add(TICK - 1) / TICK,
        };
        let sleepers = &mut self.sleepers;
        let (spot, word) = match sleepers.not_before(wakes, self.tick, finest) {
            Some(spot) => (spot, 0),
            None => (sleepers.before(wakes, self.tick), ASK),
        };
        let entry = Entry::new(id, word);
        if let Some((id, place)) = sleepers.push_later(&mut self.pool, spot, entry) {
            self.flows[id as usize].place = place;
        }
    }

    #[inline(always)]
    fn advance(&mut self, now: Instant) {
        if now.0 > self.now {
            self.now = now.0.min(LAST);
            self.tick = self.now / TICK;
        }
        if self.sleepers.is_landing_due(self.tick) {
            self.land();
        }
    }

    /// Puts in what is on its way to the sleepers.
    fn land(&mut self) {
        let flows = &mut self.flows;
        self.sleepers.land(&mut self.pool, |id, place| {
            flows[id as usize].place = place;
        });
    }

    /// Takes a waiting flow's entry away.
    fn recall(&mut self, id: u32) {
        self.land();
        let place = self.flows[id as usize].place;
        if let Some(moved) = self.sleepers.remove(&mut self.pool, place) {
            self.flows[moved.id() as usize].place = place;
        }
    }

    fn known(&mut self, flow: FlowId) -> Result<&mut Paced, Misuse> {
        let state = self.flows.get_mut(flow.index());
        state
            .filter(|state| !state.is(State::Gone))
            .ok_or(Misuse::Unknown(flow))
    }
}

/// How many flows one call looks at that have to wait on.
const ASKED_PER_CALL: u32 = super::DROPPED_PER_CALL;

/// Nanoseconds in what waits are rounded to.
const TICK: u64 = 1000;

/// A tick is shorter than 2^10 ns.
const TICK_DIGITS: u32 = TICK.ilog2() + 1;

/// Time does not go on from here.
const LAST: u64 = super::END_OF_TIME.0 / TICK * TICK;

impl Paced {
    #[inline(always)]
    fn is(&self, state: State) -> bool {
        self.about & !MAX_LENGTH == state as u32
    }

    #[inline(always)]
    fn set(&mut self, state: State) {
        self.about = self.about & MAX_LENGTH | state as u32;
    }

    /// Length of the head.
    #[inline(always)]
    fn length(&self) -> u32 {
        self.about & MAX_LENGTH
    }

    #[inline(always)]
    fn set_length(&mut self, length: u32) {
        debug_assert!(length <= MAX_LENGTH);
        self.about = self.about & !MAX_LENGTH | length;
    }
}
