//! Shaping alone: many flows, each with its own cell contract (a peak rate with the tolerance CDVT,
//! optionally a sustained rate with a token bucket), from one timer.
//!
//! A [`Pacer`] is for a program that has one socket for each flow, or one for all flows (a QUIC
//! stack, a media server). The program reports each packet that arrives at an empty queue. The
//! pacer returns a flow whose head (the first packet of its queue) may leave now, and the time of
//! the next call. A pacer has no link, so it defines no order between flows that may send at the
//! same moment; [`super::Scheduler`] does. A pacer has at most 2^20 flows. A call that contradicts
//! the earlier ones, or exceeds a limit, fails with [`SchedulerError`].
//!
//! A flow that may send already is not delayed. A wait is rounded up to whole microseconds, and a
//! wait above a millisecond by at most 1/1024 of itself. This second rounding is also at most half
//! of the contract's CDVT, and after the pause of a dual bucket ([`contract::Bucket`]) at most 1/32
//! of the CDVT, so it costs no rate. If no bucket of the calendar is narrow enough for that, the
//! pacer examines the flow shortly before its time and inserts it again. This costs as much as a
//! packet. One call does so for at most 16 flows.
//!
//! # Use
//! Programs that use this crate as a library, `examples/pace_udp.rs`, the example `quic` of
//! netnice-stack (a socket of quinn), the benchmarks and the cell
//! experiments of `netnice-lab` use a pacer. The daemon and the driver do not: the driver has a
//! link, so it uses a [`super::Scheduler`].

use alloc::vec::Vec;

use super::calendar::{Calendar, EntryPosition, MAX_FLOWS, Pool, QueueEntry};
use super::cell::CellState;
use super::checked_length;
use super::deadline::REQUEUE;
use super::flow::MAX_LENGTH;
use super::service::{FlowId, SchedulerError};
use crate::contract;
use crate::prefetch;
use crate::units::{Bytes, Instant};

/// A set of flows, each shaped to a cell contract (a rate and a tolerance, optionally a sustained
/// rate and a burst).
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
    /// Indexes of removed flows.
    vacant: Vec<u32>,
    pool: Pool,
    /// Waiting flows, by the microsecond in which they may send.
    sleepers: Calendar<0>,
    /// The latest time that the owner passed, in nanoseconds and in whole microseconds.
    now: u64,
    tick: u64,
}

/// A flow, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Paced {
    cell: CellState,
    /// Length of the head in bytes (24 bits), and the state.
    length_and_state: u32,
    position: EntryPosition,
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
    /// A pacer without flows.
    pub fn new() -> Pacer {
        Pacer::with_capacity(0)
    }

    /// As [`Pacer::new`], with memory reserved for `flows` flows, at most 2^20. Up to that number,
    /// inserting a flow moves no other flow in memory.
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

    /// Adds a flow with an empty queue.
    ///
    /// # Errors
    /// [`SchedulerError::TooManyFlows`] if 2^20 flows exist.
    pub fn insert(&mut self, contract: contract::Cell) -> Result<FlowId, SchedulerError> {
        let flow = Paced {
            cell: CellState::new(&contract).paced(TICK_DIGITS),
            length_and_state: State::Idle as u32,
            position: EntryPosition::default(),
        };
        if let Some(id) = self.vacant.pop() {
            self.flows[id as usize] = flow;
            return Ok(FlowId(id));
        }
        let id = self.flows.len() as u32;
        if id >= MAX_FLOWS {
            return Err(SchedulerError::TooManyFlows(MAX_FLOWS));
        }
        self.flows.push(flow);
        self.pool.reserve(1);
        Ok(FlowId(id))
    }

    /// Changes the contract of a flow. The use of the old contract still counts. A head that is
    /// longer than the new contract's MBS counts as a packet of MBS.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownFlow`] if the flow does not exist.
    pub fn change(&mut self, flow: FlowId, contract: contract::Cell) -> Result<(), SchedulerError> {
        let state = self.flow_mut(flow)?;
        state.cell = state.cell.changed(&contract).paced(TICK_DIGITS);
        state.set_length(state.length().min(state.cell.longest()));
        if state.is(State::Waiting) {
            self.cancel(flow.0);
            self.enqueue(flow.0);
        }
        Ok(())
    }

    /// Removes a flow and discards its head. The [`FlowId`] can be reused after this call.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownFlow`] if the flow does not exist.
    pub fn remove(&mut self, flow: FlowId) -> Result<(), SchedulerError> {
        self.withdraw(flow)?;
        self.flow_mut(flow)?.set(State::Gone);
        self.vacant.push(flow.0);
        Ok(())
    }

    /// Reports that a packet of `length` arrived at the empty queue of a flow. A packet behind
    /// other packets is not reported.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownFlow`] if the flow does not exist. [`SchedulerError::HasHead`] if
    /// it has a head already. [`SchedulerError::TooLong`] if the packet exceeds the flow's MBS or
    /// 2^24 - 1 bytes.
    pub fn handle_head(
        &mut self,
        flow: FlowId,
        length: Bytes,
        now: Instant,
    ) -> Result<(), SchedulerError> {
        self.advance(now);
        let now = self.now;
        let state = self.flow_mut(flow)?;
        if state.is(State::Waiting) {
            return Err(SchedulerError::HasHead(flow));
        }
        let length = checked_length(flow, length, MAX_LENGTH.min(state.cell.longest()))?;
        state.set_length(length);
        state.set(State::Waiting);
        state.cell.wake(now);
        self.enqueue(flow.0);
        Ok(())
    }

    /// Reports that the queue of a flow was emptied without sending. Returns whether the flow had a
    /// head.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownFlow`] if the flow does not exist.
    pub fn withdraw(&mut self, flow: FlowId) -> Result<bool, SchedulerError> {
        let state = self.flow_mut(flow)?;
        let waited = state.is(State::Waiting);
        if waited {
            state.set(State::Idle);
            self.cancel(flow.0);
        }
        Ok(waited)
    }

    /// Takes a flow whose head may leave now, with the head's length. For each departure the pacer
    /// calls `next_packet` exactly once, with the flow. `next_packet` returns the length of the
    /// packet behind the departing head, or `None` if the queue becomes empty. A length above the
    /// longest possible packet counts as that packet's.
    ///
    /// Returns `None` if no head may leave now, or if this call has examined 16 flows that must
    /// still wait. [`Pacer::poll_timeout`] gives the time of the next call. After a call that has
    /// examined 16 flows this is at most `now` if more flows have to be examined.
    #[inline]
    pub fn poll(
        &mut self,
        now: Instant,
        next_packet: impl FnOnce(FlowId) -> Option<Bytes>,
    ) -> Option<(FlowId, Bytes)> {
        self.advance(now);
        for _ in 0..REQUEUED_PER_CALL {
            self.sleepers
                .peek()
                .filter(|bucket| bucket.key <= self.tick)?;
            let flows = &self.flows;
            let prefetch_entry = |entry: QueueEntry, _| {
                if let Some(flow) = flows.get(entry.id() as usize) {
                    prefetch::first_line(flow);
                }
            };
            let entry = self
                .sleepers
                .take_with_lookahead(&mut self.pool, prefetch_entry)?;
            let id = entry.id();
            let flow = &mut self.flows[id as usize];
            if entry.code() == REQUEUE && flow.cell.plan(flow.length()).0 > self.now {
                // Its bucket was before its time, because no bucket was narrow enough.
                self.enqueue(id);
                continue;
            }
            let length = flow.length();
            flow.cell.sent(self.now, length);
            match next_packet(FlowId(id)) {
                Some(next) => {
                    let most = MAX_LENGTH.min(flow.cell.longest());
                    let next = next.0.min(u64::from(most)) as u32;
                    flow.set_length(next);
                    let eligible = flow.cell.plan(next).0;
                    let max_width = flow.cell.max_width_paced();
                    self.sleep(id, eligible, max_width);
                }
                None => flow.set(State::Idle),
            }
            return Some((FlowId(id), Bytes(u64::from(length))));
        }
        None
    }

    /// The next time at which [`Pacer::poll`] may have a departure. `None` if a packet has to
    /// arrive first, or if that time is after [`END_OF_TIME`](super::END_OF_TIME).
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let at = (self.sleepers.first_key()? * TICK).max(self.now);
        (at <= END).then_some(Instant(at))
    }

    /// Bytes of memory in use: 64 for each flow, idle or not, 0.54 MB for the calendar, and the
    /// nodes of its entries. Reserved memory that was never touched takes addresses only and does
    /// not count.
    pub fn memory(&self) -> usize {
        size_of_val(self.flows.as_slice()) + self.pool.memory() + self.sleepers.memory()
    }

    /// Inserts a flow into the sleepers until it is eligible.
    #[inline(always)]
    fn enqueue(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        let eligible = flow.cell.plan(flow.length()).0;
        let max_width = flow.cell.max_width_paced();
        self.sleep(id, eligible, max_width);
    }

    /// As `enqueue`, with the eligible time and the largest width of the bucket (binary logarithm).
    #[inline(always)]
    fn sleep(&mut self, id: u32, eligible: u64, max_width: u32) {
        let wakes = match eligible <= self.now {
            true => self.tick,
            false => eligible.saturating_add(TICK - 1) / TICK,
        };
        let sleepers = &mut self.sleepers;
        let (bucket, word) = match sleepers.bucket_not_before(wakes, self.tick, max_width) {
            Some(bucket) => (bucket, 0),
            None => (sleepers.bucket_before(wakes, self.tick), REQUEUE),
        };
        let entry = QueueEntry::new(id, word);
        if let Some((id, position)) = sleepers.push_deferred(&mut self.pool, bucket, entry) {
            self.flows[id as usize].position = position;
        }
    }

    #[inline(always)]
    fn advance(&mut self, now: Instant) {
        if now.0 > self.now {
            self.now = now.0.min(END);
            self.tick = self.now / TICK;
        }
        if self.sleepers.is_flush_due(self.tick) {
            self.flush_deferred();
        }
    }

    /// Inserts the deferred entries into the sleepers.
    fn flush_deferred(&mut self) {
        let flows = &mut self.flows;
        self.sleepers.flush(&mut self.pool, |id, position| {
            flows[id as usize].position = position;
        });
    }

    /// Removes the entry of a waiting flow.
    fn cancel(&mut self, id: u32) {
        self.flush_deferred();
        let position = self.flows[id as usize].position;
        if let Some(moved) = self.sleepers.remove(&mut self.pool, position) {
            self.flows[moved.id() as usize].position = position;
        }
    }

    fn flow_mut(&mut self, flow: FlowId) -> Result<&mut Paced, SchedulerError> {
        let state = self.flows.get_mut(flow.index());
        state
            .filter(|state| !state.is(State::Gone))
            .ok_or(SchedulerError::UnknownFlow(flow))
    }
}

/// The largest number of flows that one call examines and inserts again.
const REQUEUED_PER_CALL: u32 = super::DROPPED_PER_CALL;

/// Nanoseconds of the unit to which waits are rounded.
const TICK: u64 = 1000;

/// A tick is shorter than 2^10 ns.
const TICK_DIGITS: u32 = TICK.ilog2() + 1;

/// The end of time, in nanoseconds, rounded down to a whole tick.
const END: u64 = super::END_OF_TIME.0 / TICK * TICK;

impl Paced {
    #[inline(always)]
    fn is(&self, state: State) -> bool {
        self.length_and_state & !MAX_LENGTH == state as u32
    }

    #[inline(always)]
    fn set(&mut self, state: State) {
        self.length_and_state = self.length_and_state & MAX_LENGTH | state as u32;
    }

    /// Length of the head.
    #[inline(always)]
    fn length(&self) -> u32 {
        self.length_and_state & MAX_LENGTH
    }

    #[inline(always)]
    fn set_length(&mut self, length: u32) {
        debug_assert!(length <= MAX_LENGTH);
        self.length_and_state = self.length_and_state & !MAX_LENGTH | length;
    }
}
