//! The packet scheduler of one link. It serves every kind of contract of the five papers.
//!
//! The owner of the queues reports when a packet arrives at an empty queue
//! ([`Scheduler::handle_head`]) and asks for the next departure ([`Scheduler::turn`]). A call that
//! contradicts the earlier ones fails with [`Misuse`].
//!
//! # Principle
//! Every contract gives a flow's next packet an *eligible* time, the earliest allowed start of its
//! transmission, and a *deadline*. A [`Scheduler`] serves eligible guaranteed packets first, by
//! earliest deadline, non-preemptively. Otherwise it serves the left-over in the ratio of the
//! weights (start-time fair queueing: Goyal, Vin, Cheng, 1996). Otherwise it may serve a channel's
//! packet before its logical arrival, by at most a horizon.
//!
//! A flow with a head waits, by its [`Service`]:
//! - `Cell` (`sched::cell`): asleep until it is eligible, then among the due.
//! - `Slice` (`sched::slice`): among the due while its slice lasts. Then asleep, and with `extra`
//!   also in the left-over.
//! - `Channel` (`sched::channel`): asleep, then within the horizon among the early, then among the
//!   due.
//! - `Share` (`sched::share`): in the left-over. With a minimum also asleep or among the due. Above
//!   its limit only asleep.
//! - `Limited` (`sched::limit`): above its limit asleep, else as without the limit.
//!
//! ```text
//!              handle_head                      fall_due                      poll
//!   idle ───────────────────▶ sleepers ───────────────────▶ due ──────────────────┐
//!    ▲           │                                                                │ first
//!    │           ├──────────────────────────▶ left-over ──────────────────────────┤ second
//!    │           └───▶ sleepers ────────────▶ early ──────────────────────────────┤ third
//!    └────────────────────────── nothing behind the head ◀───────────────────────┘
//! ```
//! Sleepers, due, left-over and early are four calendars (`sched::calendar`). Each flow has at most
//! one entry in the left-over and one in the other three together. The entry of a flow whose queue
//! has become empty stays in its calendar and is dropped when it comes first.
//!
//! Three more parts belong here. [`Pacer`] shapes flows without a link. [`Gate`] admits messages to
//! a channel by an overload policy. An overbooked server ([`Scheduler::insert_server`]) is one
//! admitted slice that its members share by priority and in proportion.
//!
//! ```
//! use netnice_core::contract::Weight;
//! use netnice_core::sched::{Next, Packet, Scheduler, Service, Wire};
//! use netnice_core::units::{Bytes, Instant, Nanos, Rate};
//!
//! let mut link = Scheduler::new(Wire::new(Rate::new(10_000_000).unwrap()))?;
//! let limit = (Rate::new(1_000_000).unwrap(), Nanos::from_millis(1));
//! let service = Service::Share { min: None, max: Some(limit), weight: Weight::default() };
//! let flow = link.insert(service, Instant(0))?;
//! link.handle_head(flow, Packet::new(Bytes(1250)), Instant(0))?;
//! // The queue holds one packet more: it is what stands behind the head.
//! let one = link.turn(Instant(0), |_| Some(Packet::new(Bytes(1250))));
//! assert!(matches!(one, Next::Send(sent) if sent.flow == flow && sent.end == Instant(1_000_000)));
//! // 1250 bytes are 10 ms of the limit, of which its burst forgives one.
//! let Next::Wait(until) = link.turn(Instant(1_000_000), |_| None) else { panic!() };
//! assert!((9_000_000..9_020_000).contains(&until.0));
//! assert!(matches!(link.turn(until, |_| None), Next::Send(_)));
//! assert_eq!(link.turn(until, |_| None), Next::Idle);
//! # Ok::<(), netnice_core::sched::Misuse>(())
//! ```
//!
//! # Bounded work
//! One call of [`Scheduler::poll`] moves entries that have fallen due, chunk by chunk, until it has
//! moved [`DUE_PER_CALL`] of them (never twice as many). It drops at most [`DROPPED_PER_CALL`]
//! entries. The rest waits for the next call, in the order of falling due. The work of a call does
//! not depend on the number of flows in any other way.
//!
//! # Time
//! The caller passes the time. A time before an earlier one counts as the earlier one. Time ends at
//! [`END_OF_TIME`]: a later time counts as that one, and a flow that would have to wait longer is
//! never served again.

mod calendar;
mod cell;
mod channel;
mod deadline;
mod delay;
mod fair;
mod flow;
mod gate;
mod inside;
mod limit;
mod member;
mod pace;
mod pacer;
mod server;
mod service;
mod share;
mod slice;
mod turn;

use alloc::vec::Vec;

use calendar::{Calendar, Entry, MAX_FLOWS, Pool};
use cell::Cell;
use channel::Channel;
pub use deadline::kept;
use fair::Fair;
use flow::{Flag, Flow, Kind, LONG_WAY, MAX_LENGTH};
pub use gate::{Gate, Overload, Verdict};
use limit::{Limit, Limits};
use member::Member;
use pace::{Moment, Pace};
pub use pacer::Pacer;
use server::Server;
pub use server::{Class, MAX_CLASSES};
pub use service::{
    Departure, FlowId, Guarantee, Misuse, Next, NotServed, Packet, Service, Turn, Wire,
};
use share::Share;
use slice::Slice;

use crate::units::{Bytes, Instant, Rate};

/// A link and the flows that send on it, see [the module](self).
#[derive(Debug)]
pub struct Scheduler {
    wire: Line,
    /// The latest time that the owner passed.
    now: u64,
    flows: Vec<Flow>,
    /// The first vacant index of `flows`, or their number.
    vacant: u32,
    pool: Pool,
    /// Flows that are not eligible, by the time at which they are.
    sleepers: Calendar<TIME_QUANTUM>,
    /// Eligible guaranteed flows, by deadline.
    due: Calendar<TIME_QUANTUM>,
    /// The entry that fell due last is served soon, so prefetching sleepers is worthwhile.
    hurried: bool,
    /// Flows that compete for the left-over.
    fair: Fair,
    /// Channels within the horizon, by logical arrival.
    early: Calendar<TIME_QUANTUM>,
    /// Overbooked slices. The index of a removed one is used again.
    servers: Vec<Option<Server>>,
    /// Indexes of removed servers in which old entries are left.
    closed: Vec<u16>,
    limits: Limits,
}

/// The wire, in the units of the arithmetic.
#[derive(Debug)]
struct Line {
    rate: Rate,
    pace: Pace,
    overhead: u32,
    ahead: u64,
    horizon: u64,
    longest: u32,
    /// End of the last transmission.
    busy: Moment,
    /// Earliest time of the next decision: `busy` less `ahead`.
    opens: u64,
}

impl Scheduler {
    /// A scheduler without flows. It does not check whether contracts fit on the link: admission
    /// does. If they do not fit, it serves them as well as possible.
    ///
    /// # Errors
    /// [`Misuse::LongWire`] if the longest packet and the overhead together exceed 2^24 - 1 bytes.
    pub fn new(wire: Wire) -> Result<Scheduler, Misuse> {
        Scheduler::with_capacity(wire, 0)
    }

    /// As [`Scheduler::new`], with memory reserved for `flows` flows. Up to that number, inserting
    /// a flow moves no other flow in memory.
    ///
    /// # Errors
    /// As [`Scheduler::new`].
    pub fn with_capacity(wire: Wire, flows: usize) -> Result<Scheduler, Misuse> {
        let flows = flows.min(MAX_FLOWS as usize);
        Ok(Scheduler {
            wire: Line::new(wire)?,
            now: 0,
            flows: Vec::with_capacity(flows),
            vacant: 0,
            pool: Pool::with_capacity(flows * ENTRIES_PER_FLOW),
            sleepers: Calendar::new(SLEEPERS),
            due: Calendar::new(DUE),
            hurried: true,
            fair: Fair::new(FAIR),
            early: Calendar::new(EARLY),
            servers: Vec::new(),
            closed: Vec::new(),
            limits: Vec::with_capacity(flows),
        })
    }

    /// Changes the rate, the overhead and the other parameters of the link, from the next packet
    /// on. Flows and their state stay.
    ///
    /// # Errors
    /// As [`Scheduler::new`].
    pub fn rewire(&mut self, wire: Wire) -> Result<(), Misuse> {
        let busy = self.wire.busy;
        self.wire = Line::new(wire)?;
        self.wire.set_busy(busy);
        for server in self.servers.iter_mut().flatten() {
            // The flow of a removed server may belong to another contract now.
            if let Kind::Server { slice, .. } = &self.flows[server.flow as usize].kind {
                server.set_rate(slice.of(self.wire.pace.rate()));
            }
        }
        Ok(())
    }

    /// Adds a flow with an empty queue.
    ///
    /// # Errors
    /// [`Misuse::Full`] if 2^20 flows exist.
    pub fn insert(&mut self, service: Service, now: Instant) -> Result<FlowId, Misuse> {
        self.advance(now);
        let (service, max) = service.parts();
        let flow = self.insert_flow(Flow::new(Kind::new(service)))?;
        self.set_limit(flow.0, max, Moment::at(0));
        Ok(flow)
    }

    fn insert_flow(&mut self, mut flow: Flow) -> Result<FlowId, Misuse> {
        self.drain_closed();
        let id = self.vacant;
        if id % LONG_WAY == LONG_WAY - 1 {
            flow.set(Flag::LongWay);
        }
        match self.flows.get_mut(id as usize) {
            Some(place) => {
                if let Kind::Vacant { next } = place.kind {
                    self.vacant = next;
                }
                *place = flow;
            }
            None if id >= MAX_FLOWS => return Err(Misuse::Full(MAX_FLOWS)),
            None => {
                self.flows.push(flow);
                self.pool.reserve(ENTRIES_PER_FLOW);
                self.vacant = id + 1;
            }
        }
        Ok(FlowId(id))
    }

    /// Changes the contract of a flow. The use of the old contract still counts. A packet that is
    /// due already leaves as under the old contract.
    ///
    /// # Errors
    /// [`Misuse::Unknown`] if the flow does not exist. [`Misuse::OtherKind`] if a server would not
    /// keep a slice, or a member not a cell contract. For a server also [`Misuse::Extra`] and
    /// [`Misuse::Minimums`].
    pub fn change(&mut self, flow: FlowId, service: Service, now: Instant) -> Result<(), Misuse> {
        self.advance(now);
        let kind = self.known(flow)?.kind;
        match (kind, service) {
            (Kind::Member(_), Service::Cell(cell)) => self.change_member(flow.0, &cell),
            (Kind::Server { slice, server }, Service::Slice { slice: new, .. }) => {
                let inside = self.servers[usize::from(server)].as_ref();
                self.gives(&new, inside.map_or(0, Server::promised))?;
                let slice = slice.changed(&new);
                self.flows[flow.index()].kind = Kind::Server { slice, server };
                let rate = Slice::new(&new).of(self.wire.pace.rate());
                if let Some(server) = &mut self.servers[usize::from(server)] {
                    server.set_rate(rate);
                }
                return Ok(());
            }
            (Kind::Member(_) | Kind::Server { .. }, _) => return Err(Misuse::OtherKind(flow)),
            _ => self.change_flow(flow.0, service),
        }
        let state = &mut self.flows[flow.index()];
        if state.is(Flag::Waiting) {
            // A head that is too long for the new contract is sent as the longest possible packet.
            // Later packets of that length are refused.
            state.set_length(state.length().min(state.kind.longest()));
            self.place_anew(flow.0);
        }
        Ok(())
    }

    /// Computes anew the time for which a flow's head waits.
    fn place_anew(&mut self, id: u32) {
        let flow = &self.flows[id as usize];
        // A member that is ready stays ready.
        if flow.is(Flag::Clock) || !matches!(flow.kind, Kind::Member(_)) {
            self.recall(id);
            self.place(id);
        }
    }

    /// Changes the contract of a flow that is neither a server nor a member. If the new contract
    /// has another kind, only the use of the limit still counts.
    fn change_flow(&mut self, id: u32, service: Service) {
        let (now, used) = (self.now, self.used(id));
        let (service, max) = service.parts();
        let flow = &mut self.flows[id as usize];
        let old = core::mem::discriminant(&flow.kind);
        flow.kind = flow.kind.changed(service, now);
        let head = Packet::new(Bytes(u64::from(flow.length())));
        if old != core::mem::discriminant(&flow.kind) {
            if let Kind::Share(share) = &mut flow.kind {
                share.set_used(used);
            }
            if flow.is(Flag::Waiting) {
                flow.kind.wake(head, now);
            }
        }
        self.set_limit(id, max, used);
        let flow = &self.flows[id as usize];
        if flow.is(Flag::Waiting) && flow.is(Flag::Limited) {
            // The packet has been counted in its message already.
            self.let_come(id, Packet::new(Bytes(0)), false);
        }
    }

    /// Removes a flow and discards its head. The [`FlowId`] can be reused after this call.
    ///
    /// # Errors
    /// [`Misuse::Unknown`] if the flow does not exist. [`Misuse::Members`] if a server still has
    /// members.
    pub fn remove(&mut self, flow: FlowId, now: Instant) -> Result<(), Misuse> {
        self.advance(now);
        match self.known(flow)?.kind {
            Kind::Server { server, .. } => {
                let inside = self.servers[usize::from(server)].as_ref();
                match inside.map_or(0, |inside| inside.members) {
                    0 => self.closed.push(server),
                    members => {
                        let server = flow;
                        return Err(Misuse::Members { server, members });
                    }
                }
            }
            Kind::Member(member) => {
                self.withdraw(flow, now)?;
                if let Some(server) = &mut self.servers[member.home().server()] {
                    server.members -= 1;
                }
            }
            _ => {}
        }
        self.withdraw(flow, now)?;
        self.recall(flow.0);
        self.known(flow)?.set(Flag::Gone);
        self.vacate(flow.0);
        self.drain_closed();
        Ok(())
    }

    /// Reports that a packet arrived at the empty queue of a flow. A packet behind other packets is
    /// not reported.
    ///
    /// # Errors
    /// [`Misuse::Unknown`] if the flow does not exist. [`Misuse::Server`] if it is a server.
    /// [`Misuse::Waiting`] if it has a head already. [`Misuse::TooLong`] if the packet is longer
    /// than [`Scheduler::longest`].
    pub fn handle_head(
        &mut self,
        flow: FlowId,
        packet: Packet,
        now: Instant,
    ) -> Result<(), Misuse> {
        self.advance(now);
        let now = self.now;
        let longest = self.wire.longest;
        let state = self.known(flow)?;
        if let Kind::Server { .. } = state.kind {
            return Err(Misuse::Server(flow));
        }
        if state.is(Flag::Waiting) {
            return Err(Misuse::Waiting(flow));
        }
        let length = fitting(flow, packet.length, longest.min(state.kind.longest()))?;
        state.set(Flag::Waiting);
        state.set_length(length);
        match state.is(Flag::Limited) {
            true => self.let_come(flow.0, packet, true),
            false => state.kind.wake(packet, now),
        }
        if self.flows[flow.index()].is(Flag::Clock) {
            self.recall(flow.0);
        }
        self.set_active(flow.0, true);
        self.place(flow.0);
        Ok(())
    }

    /// The longest packet that [`Scheduler::handle_head`] accepts for a flow: the link carries it,
    /// and the flow's contract can make it eligible.
    pub fn longest(&self, flow: FlowId) -> Bytes {
        let state = self.flows.get(flow.index());
        let own = state.map_or(u32::MAX, |state| state.kind.longest());
        Bytes(u64::from(own.min(self.wire.longest)))
    }

    /// Reports that the queue of a flow was emptied without sending. Returns whether the flow had a
    /// head. For a server the call has no effect.
    ///
    /// # Errors
    /// [`Misuse::Unknown`] if the flow does not exist.
    pub fn withdraw(&mut self, flow: FlowId, now: Instant) -> Result<bool, Misuse> {
        self.advance(now);
        let state = self.known(flow)?;
        let waited = state.is(Flag::Waiting);
        if let Kind::Server { .. } = state.kind {
            // A server waits as long as a member is ready.
            return Ok(false);
        }
        if waited {
            self.withdraw_member(flow.0);
        }
        self.flows[flow.index()].clear(Flag::Waiting);
        self.recall(flow.0);
        Ok(waited)
    }

    /// Bytes of memory in use. Idle flows count too: 64 bytes for each flow, 2.2 MB for the four
    /// calendars, and 0.54 MB for each class of a server. Reserved memory that was never touched
    /// takes addresses only and does not count.
    pub fn memory(&self) -> usize {
        let limits = self.limits.len() * size_of::<Option<Limit>>();
        let timed = [&self.sleepers, &self.due, &self.early];
        let timed: usize = timed.map(Calendar::memory).iter().sum();
        let servers = self.servers.iter().flatten().map(Server::memory);
        let inside = self.servers.len() * size_of::<Option<Server>>() + servers.sum::<usize>();
        let flows = self.flows.len() * size_of::<Flow>() + limits + self.pool.memory();
        flows + timed + self.fair.memory() + inside
    }

    /// Panics if the state is inconsistent. For tests; its time is linear in the size of the
    /// scheduler.
    pub fn invariants(&self) {
        let timed = [&self.sleepers, &self.due, &self.early];
        let [asleep, due, early] = timed.map(|one| one.invariants(&self.pool));
        let servers = self.servers.iter().flatten();
        let inside: usize = servers.map(|server| server.invariants(&self.pool)).sum();
        let fair = self.fair.invariants(&self.pool) + inside;
        let count = |flag| self.flows.iter().filter(|flow| flow.is(flag)).count();
        assert_eq!(
            count(Flag::Clock),
            asleep + due + early,
            "entries of clocks"
        );
        assert_eq!(count(Flag::Fair), fair, "entries in the left-over");
        for (id, flow) in self.flows.iter().enumerate() {
            let entries = flow.is(Flag::Clock) || flow.is(Flag::Fair);
            assert!(!flow.is(Flag::Waiting) || entries, "flow {id} is forgotten");
            assert!(
                !flow.is(Flag::Gone) || entries,
                "flow {id} is kept for nothing"
            );
            assert!(!flow.is(Flag::Waiting) || flow.length() <= self.wire.longest);
            let limit = self.limits.get(id).is_some_and(Option::is_some);
            assert!(!flow.is(Flag::Limited) || limit, "flow {id} has no limit");
        }
    }

    /// Removes a flow's entry from the sleepers. In another calendar it marks the entry as old.
    fn recall(&mut self, id: u32) {
        if !self.flows[id as usize].is(Flag::Clock) {
            return;
        }
        self.land();
        let flow = &mut self.flows[id as usize];
        if !self.sleepers.holds(&self.pool, flow.place, id) {
            flow.set(Flag::ClockOld);
            return;
        }
        let place = flow.place;
        flow.clear(Flag::Clock);
        if let Some(moved) = self.sleepers.remove(&mut self.pool, place) {
            self.flows[moved.id() as usize].place = place;
        }
    }

    /// Frees the index of a removed flow, once no entry of the flow is left.
    fn vacate(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        if flow.is(Flag::Gone) && !flow.is(Flag::Clock) && !flow.is(Flag::Fair) {
            *flow = Flow::new(Kind::Vacant { next: self.vacant });
            self.vacant = id;
        }
    }

    fn known(&mut self, flow: FlowId) -> Result<&mut Flow, Misuse> {
        let state = self.flows.get_mut(flow.index());
        state
            .filter(|state| !state.is(Flag::Gone) && !matches!(state.kind, Kind::Vacant { .. }))
            .ok_or(Misuse::Unknown(flow))
    }

    #[inline(always)]
    fn advance(&mut self, now: Instant) {
        if now.0 > self.now {
            self.now = now.min(END_OF_TIME).0;
        }
        if self.sleepers.is_landing_due(self.now) {
            self.land();
        }
    }

    /// Inserts the entries in flight into the sleepers.
    fn land(&mut self) {
        let flows = &mut self.flows;
        self.sleepers.land(&mut self.pool, |id, place| {
            flows[id as usize].place = place;
        });
    }
}

impl Line {
    fn new(wire: Wire) -> Result<Line, Misuse> {
        let both = Bytes(wire.longest.0.saturating_add(wire.overhead.0));
        let longest = u32::try_from(wire.longest.0);
        let overhead = u32::try_from(wire.overhead.0);
        match (longest, overhead) {
            (Ok(longest), Ok(overhead)) if both.0 <= u64::from(MAX_LENGTH) => Ok(Line {
                rate: wire.rate,
                pace: Pace::of(wire.rate),
                overhead,
                ahead: wire.ahead.0.min(MOST_AHEAD),
                horizon: wire.horizon.0,
                longest,
                busy: Moment::at(0),
                opens: 0,
            }),
            _ => Err(Misuse::LongWire(both)),
        }
    }
}

impl Kind {
    fn new(service: Service) -> Kind {
        match service {
            Service::Share { min, max, weight } => Kind::Share(Share::new(min, max, weight)),
            Service::Cell(cell) => Kind::Cell(Cell::new(&cell)),
            Service::Slice { slice, weight } => Kind::Slice {
                slice: Slice::new(&slice),
                tag: 0,
                weight: weight.get(),
                extra: slice.extra(),
            },
            Service::Channel(channel) => Kind::Channel(Channel::new(&channel)),
            Service::Limited { guarantee, .. } => Kind::new(guarantee.into()),
        }
    }

    /// The state under another contract. It is kept as far as the new contract has the same kind of
    /// state.
    fn changed(&self, service: Service, now: u64) -> Kind {
        match (self, service, Kind::new(service)) {
            (Kind::Share(old), _, Kind::Share(new)) => Kind::Share(old.changed(new, now)),
            (Kind::Cell(old), Service::Cell(new), _) => Kind::Cell(old.changed(&new)),
            (Kind::Channel(old), Service::Channel(new), _) => Kind::Channel(old.changed(&new)),
            (Kind::Slice { slice, tag, .. }, Service::Slice { slice: new, weight }, _) => {
                Kind::Slice {
                    slice: slice.changed(&new),
                    tag: *tag,
                    weight: weight.get(),
                    extra: new.extra(),
                }
            }
            (_, _, new) => new,
        }
    }

    /// The longest packet that can become eligible.
    fn longest(&self) -> u32 {
        match self {
            Kind::Cell(cell) => cell.longest(),
            Kind::Member(member) => member.longest(),
            _ => u32::MAX,
        }
    }

    /// A packet arrives at the empty queue.
    #[inline(always)]
    fn wake(&mut self, packet: Packet, now: u64) {
        match self {
            Kind::Vacant { .. } | Kind::Server { .. } => {}
            Kind::Member(member) => member.wake(now),
            Kind::Share(share) => share.wake(now),
            Kind::Cell(cell) => cell.wake(now),
            Kind::Slice { slice, .. } => slice.wake(now),
            Kind::Channel(channel) => {
                let begins = packet.message.map(|arrived| arrived.0);
                channel.wake(begins, packet.length.0, now);
            }
        }
    }
}

/// The length, if it is at most `longest`.
#[inline(always)]
fn fitting(flow: FlowId, length: Bytes, longest: u32) -> Result<u32, Misuse> {
    let fits = u32::try_from(length.0)
        .ok()
        .filter(|bytes| *bytes <= longest);
    fits.ok_or(Misuse::TooLong {
        flow,
        length,
        longest: Bytes(u64::from(longest)),
    })
}

/// The largest allowed width of a bucket, as a binary logarithm, if `patience` lies between the
/// eligible time and the deadline.
#[inline(always)]
fn finest(patience: u64) -> u32 {
    let digits = (patience | 1).ilog2();
    digits.saturating_sub(PATIENCE_DIGITS).max(TIME_QUANTUM)
}

/// The number of entries that one call moves after they fall due. The call moves whole chunks, so
/// it can move a few more.
pub const DUE_PER_CALL: u32 = 32;

/// The largest number of entries of flows with an empty queue that one call drops.
pub const DROPPED_PER_CALL: u32 = 16;

/// One entry in the left-over, and one in the other calendars.
const ENTRIES_PER_FLOW: usize = 2;

/// 512 ns. A wait may be prolonged by this, or by a thousandth of the wait.
const TIME_QUANTUM: u32 = 9;

/// The end of time, 292 years after its start: later times count as this one. The other half of the
/// numbers is left for sums.
pub const END_OF_TIME: Instant = Instant((1 << 63) - 1);

/// 36 years, the upper limit of [`Wire::ahead`].
const MOST_AHEAD: u64 = 1 << 60;

/// Quantum of start tags: a thousandth of 64 bytes at weight 1000. A start tag counts 2^26 for each
/// byte at weight 1.
const TAG_QUANTUM: u32 = 12;

/// A wait may end late by 2^-5 (1/32) of the time between eligible time and deadline.
const PATIENCE_DIGITS: u32 = 5;

/// Names of the calendars in the pool.
const SLEEPERS: u8 = 0;
const DUE: u8 = 1;
const FAIR: u8 = 2;
const EARLY: u8 = 3;

#[cfg(test)]
mod tests;
