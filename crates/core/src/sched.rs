//! The packet scheduler of one link. It serves flows with limits, minimums, slices, cell contracts
//! and real-time channels at the same time, as far as these concern sending.
//!
//! The owner of the queues reports when a packet arrives at an empty queue
//! ([`Scheduler::handle_head`]) and asks for the next departure ([`Scheduler::next`]). The *head*
//! of a flow is the first packet of its queue. A call that contradicts the earlier ones, or exceeds
//! a limit of the scheduler, fails with [`SchedulerError`].
//!
//! # Principle
//! A guarantee gives a flow's head an *eligible* time, the earliest allowed start of its
//! transmission, and a *deadline*. A [`Scheduler`] serves eligible guaranteed packets first, by
//! earliest deadline, non-preemptively. If there is none, it serves the left-over in the ratio of
//! the weights (start-time fair queueing: Goyal, Vin, Cheng, 1996). If there is no such packet
//! either, it may serve a channel's packet before its eligible time (its *logical arrival*), by at
//! most [`Wire::horizon`].
//!
//! # Structure
//! Flows with a head have entries in four calendars (`sched::calendar`):
//!
//! | calendar | flows in it | ordered by | [`Scheduler::poll`] takes its first entry |
//! |---|---|---|---|
//! | *sleepers* | that must wait | time until which they wait | never |
//! | *due* | with a guaranteed, eligible head | deadline | first |
//! | *left-over* | that compete by weight | start tag (`sched::fair`) | if nothing is due |
//! | *early* | channels within the horizon | logical arrival | if the left-over is empty too |
//!
//! With [`EarlyOrder::BeforeLeftOver`] the early come before the left-over.
//!
//! When the time of an entry among the sleepers or the early has come, `poll` moves the entry to
//! the due, or inserts the flow anew. The [`Service`] of a flow decides where the flow has entries:
//! - `Cell` (`sched::cell`): among the sleepers until it is eligible, then among the due.
//! - `Slice` (`sched::slice`): among the due while its slice lasts. Then among the sleepers, and
//!   with `extra` also in the left-over.
//! - `Channel` (`sched::channel`): among the sleepers, then within the horizon among the early,
//!   then among the due.
//! - `Share` (`sched::share`): without a minimum in the left-over. With one among the due while the
//!   minimum permits the packet, else among the sleepers and in the left-over. Above its limit only
//!   among the sleepers.
//! - `Limited` (`sched::limit`): above its limit among the sleepers, else as without the limit.
//!
//! Each flow has at most one entry in the left-over and one in the other three together. (A member
//! of a server has its entry in a class of the server, not in the left-over.) The entry of a flow
//! whose queue has become empty, or whose contract has changed, can stay in its calendar. It is
//! *stale*, and is dropped or inserted again when it comes first.
//!
//! Three more parts belong here. [`Pacer`] shapes flows without a link. [`MessageGate`] admits
//! messages to a channel by an overload policy. An overbooked server ([`Scheduler::insert_server`])
//! is one admitted slice that its members share, by classes of priority and inside a class in
//! proportion to their contracted rates.
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
//! // The queue holds one more packet behind the head.
//! let one = link.next(Instant(0), |_| Some(Packet::new(Bytes(1250))));
//! assert!(matches!(one, Next::Send(sent) if sent.flow == flow && sent.end == Instant(1_000_000)));
//! // 1250 bytes take 10 ms at the limit's rate, less the burst of 1 ms.
//! let Next::Wait(until) = link.next(Instant(1_000_000), |_| None) else { panic!() };
//! assert!((9_000_000..9_020_000).contains(&until.0));
//! assert!(matches!(link.next(until, |_| None), Next::Send(_)));
//! assert_eq!(link.next(until, |_| None), Next::Idle);
//! # Ok::<(), netnice_core::sched::SchedulerError>(())
//! ```
//!
//! # Bounded work
//! One call of [`Scheduler::poll`] moves entries whose time has come, in nodes of at most 14, until
//! it has moved [`DUE_PER_CALL`] of them (never twice as many). It drops or inserts again at most
//! [`DROPPED_PER_CALL`] stale entries. The other entries wait for the next call, in the order in
//! which their times came. The work of a call does not depend on the number of flows in any other
//! way.
//!
//! # Time
//! The caller passes the time. A time before that of an earlier call counts as the earlier call's.
//! Time ends at [`END_OF_TIME`]: a later time counts as that one, and a flow that would have to
//! wait longer is never served again.

mod calendar;
mod cell;
mod channel;
mod deadline;
mod dispatch;
mod fair;
mod flow;
mod late_departure;
mod limit;
mod member;
mod message_gate;
mod overbooking;
mod pace;
mod pacer;
mod server;
mod service;
mod share;
mod slice;
mod upcoming;
mod wire;

use alloc::vec::Vec;

use calendar::{Calendar, MAX_FLOWS, Pool, QueueEntry};
use cell::CellState;
use channel::{ChannelState, Reading};
pub use deadline::effective_bound;
use fair::FairQueue;
use flow::{Flag, FlowState, GENERAL_PATH_INTERVAL, ServiceState};
use limit::{LimitState, Limits};
use member::MemberState;
pub use message_gate::{GateDecision, MessageGate};
use pace::Moment;
pub use pacer::Pacer;
use server::OverbookedServer;
pub use server::{Class, MAX_CLASSES};
pub use service::{
    Departure, EarlyOrder, FlowId, Guarantee, Next, NotServed, Packet, SchedulerError, ServedAs,
    Service, Wire,
};
use share::ShareState;
use slice::SliceState;
use upcoming::Upcoming;
use wire::WireState;

pub use crate::contract::Overload;
use crate::units::{Bytes, Instant};

/// A link and the flows that send on it, see [the module](self).
#[derive(Debug)]
pub struct Scheduler {
    wire: WireState,
    /// The latest time that the owner passed.
    now: u64,
    /// The owner could not look at its queues after this time; see
    /// [`Scheduler::set_unread_since`].
    unread_since: u64,
    flows: Vec<FlowState>,
    /// The first vacant index of `flows`, or its length if there is none.
    vacant: u32,
    pool: Pool,
    /// Flows that must wait, by the time until which they wait.
    sleepers: Calendar<TIME_QUANTUM>,
    /// Eligible guaranteed flows, by deadline.
    due: Calendar<TIME_QUANTUM>,
    /// Whether the next read of the sleepers prefetches flows: true if the lookahead of `due` will
    /// not read the entry that was moved last.
    prefetch_sleepers: bool,
    upcoming: Upcoming,
    /// Flows that compete for the left-over.
    fair: FairQueue,
    /// Channels within the horizon, by logical arrival.
    early: Calendar<TIME_QUANTUM>,
    /// Overbooked slices. The index of a removed one is used again.
    servers: Vec<Option<OverbookedServer>>,
    /// Indexes of removed servers in which old entries are left.
    closed_servers: Vec<u16>,
    limits: Limits,
}

impl Scheduler {
    /// A scheduler without flows. It does not check whether contracts fit on the link: admission
    /// does. If they do not fit, packets leave after their deadlines.
    ///
    /// # Errors
    /// [`SchedulerError::WireTooLong`] if the longest packet and the overhead together exceed
    /// 16,777,215 bytes.
    pub fn new(wire: Wire) -> Result<Scheduler, SchedulerError> {
        Scheduler::with_capacity(wire, 0)
    }

    /// As [`Scheduler::new`], with memory reserved for `flows` flows, at most 2^20. Up to that
    /// number, inserting a flow moves no other flow in memory.
    ///
    /// # Errors
    /// As [`Scheduler::new`].
    pub fn with_capacity(wire: Wire, flows: usize) -> Result<Scheduler, SchedulerError> {
        let flows = flows.min(MAX_FLOWS as usize);
        Ok(Scheduler {
            wire: WireState::new(wire)?,
            now: 0,
            unread_since: u64::MAX,
            flows: Vec::with_capacity(flows),
            vacant: 0,
            pool: Pool::with_capacity(flows * ENTRIES_PER_FLOW),
            sleepers: Calendar::new(SLEEPERS),
            due: Calendar::new(DUE),
            prefetch_sleepers: true,
            upcoming: Upcoming::new(),
            fair: FairQueue::new(FAIR),
            early: Calendar::new(EARLY),
            servers: Vec::new(),
            closed_servers: Vec::new(),
            limits: Vec::with_capacity(flows),
        })
    }

    /// Sets the length of each head that is longer than the wire's longest packet to that length.
    fn shorten_heads(&mut self) {
        for id in 0..self.flows.len() as u32 {
            let flow = &mut self.flows[id as usize];
            if flow.is(Flag::HasHead) && flow.length() > self.wire.longest {
                flow.set_length(self.wire.longest);
                self.requeue(id);
            }
        }
    }

    /// Adds a flow with an empty queue.
    ///
    /// # Errors
    /// [`SchedulerError::TooManyFlows`] if 2^20 flows exist. Servers, members, and removed flows
    /// with an entry left in a calendar count too.
    pub fn insert(&mut self, service: Service, now: Instant) -> Result<FlowId, SchedulerError> {
        self.advance(now);
        let (service, max) = service.parts();
        let flow = self.insert_flow(FlowState::new(ServiceState::new(service)))?;
        self.set_limit(flow.0, max, Moment::at(0));
        Ok(flow)
    }

    fn insert_flow(&mut self, mut flow: FlowState) -> Result<FlowId, SchedulerError> {
        self.drain_closed_servers();
        let id = self.vacant;
        if id % GENERAL_PATH_INTERVAL == GENERAL_PATH_INTERVAL - 1 {
            flow.set(Flag::GeneralPath);
        }
        match self.flows.get_mut(id as usize) {
            Some(vacant) => {
                if let ServiceState::Vacant { next } = vacant.service {
                    self.vacant = next;
                }
                *vacant = flow;
            }
            None if id >= MAX_FLOWS => return Err(SchedulerError::TooManyFlows(MAX_FLOWS)),
            None => {
                self.flows.push(flow);
                self.pool.reserve(ENTRIES_PER_FLOW);
                self.vacant = id + 1;
            }
        }
        Ok(FlowId(id))
    }

    /// Changes the contract of a flow. If the new contract is of the same kind, the use of the old
    /// one still counts, and a changed slice takes effect with its next period. Otherwise only the
    /// use of the limit still counts. The head waits by the new contract from now on, except the
    /// head of a member that is eligible already. A head that is too long for the new contract is
    /// sent as a packet of the longest possible length.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownFlow`] if the flow does not exist. [`SchedulerError::WrongKind`] if
    /// a server would not keep a slice, or a member not a cell contract. For a server also
    /// [`SchedulerError::ServerExtra`] and [`SchedulerError::MinimumsAboveSlice`].
    pub fn change(
        &mut self,
        flow: FlowId,
        service: Service,
        now: Instant,
    ) -> Result<(), SchedulerError> {
        self.advance(now);
        let current = self.flow_mut(flow)?.service;
        match (current, service) {
            (ServiceState::Member(_), Service::Cell(cell)) => self.change_member(flow.0, &cell),
            (ServiceState::Server { server, .. }, Service::Slice { slice, .. }) => {
                let state = self.servers[usize::from(server)].as_ref();
                self.check_minimums(Some(&slice), state.map_or(0, OverbookedServer::promised))?;
                self.set_server_slice(flow, Some(&slice));
                return Ok(());
            }
            (ServiceState::Member(_) | ServiceState::Server { .. }, _) => {
                return Err(SchedulerError::WrongKind(flow));
            }
            _ => self.change_flow(flow.0, service),
        }
        let state = &mut self.flows[flow.index()];
        if state.is(Flag::HasHead) {
            // A head that is too long for the new contract is sent as the longest possible packet.
            // Later packets of that length are refused.
            state.set_length(state.length().min(state.service.longest()));
            self.requeue(flow.0);
        }
        Ok(())
    }

    /// Computes again how long a flow's head waits, and moves its entry.
    fn requeue(&mut self, id: u32) {
        let flow = &self.flows[id as usize];
        // A member that is ready stays ready.
        if flow.is(Flag::Timed) || !matches!(flow.service, ServiceState::Member(_)) {
            self.cancel(id);
            self.enqueue(id);
        }
    }

    /// Changes the contract of a flow that is neither a server nor a member. If the new contract
    /// has another kind, only the use of the limit still counts.
    fn change_flow(&mut self, id: u32, service: Service) {
        let (now, used) = (self.now, self.used(id));
        let (service, max) = service.parts();
        let flow = &mut self.flows[id as usize];
        let old = core::mem::discriminant(&flow.service);
        flow.service = flow.service.changed(service, now);
        let head = Packet::new(Bytes(u64::from(flow.length())));
        if old != core::mem::discriminant(&flow.service) {
            if let ServiceState::Share(share) = &mut flow.service {
                share.set_used(used);
            }
            if flow.is(Flag::HasHead) {
                flow.service.wake(head, Reading::new(now, now));
            }
        }
        self.set_limit(id, max, used);
        let flow = &self.flows[id as usize];
        if flow.is(Flag::HasHead) && flow.is(Flag::Limited) {
            // The packet has been counted in its message already.
            self.arrive_at_limit(id, Packet::new(Bytes(0)), false);
        }
    }

    /// Removes a flow and discards its head. The [`FlowId`] can be reused after this call.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownFlow`] if the flow does not exist. [`SchedulerError::HasMembers`]
    /// if a server still has members.
    pub fn remove(&mut self, flow: FlowId, now: Instant) -> Result<(), SchedulerError> {
        self.advance(now);
        match self.flow_mut(flow)?.service {
            ServiceState::Server { server, .. } => {
                let state = self.servers[usize::from(server)].as_ref();
                match state.map_or(0, |state| state.members) {
                    0 => self.closed_servers.push(server),
                    members => {
                        let server = flow;
                        return Err(SchedulerError::HasMembers { server, members });
                    }
                }
            }
            ServiceState::Member(member) => {
                self.withdraw(flow, now)?;
                if let Some(server) = &mut self.servers[member.class_id().server()] {
                    server.members -= 1;
                }
            }
            _ => {}
        }
        self.withdraw(flow, now)?;
        self.cancel(flow.0);
        self.flow_mut(flow)?.set(Flag::Removed);
        self.free_if_unused(flow.0);
        self.drain_closed_servers();
        Ok(())
    }

    /// Sets since when the owner could not look at its queues, for the packets that it reports from
    /// now on: the later one of its last reading of the queues and the time at which it had to wake
    /// from its last sleep. A message whose beginning it finds now at an empty queue can have
    /// arrived at that time, so its logical arrival may be as early (`sched::channel`). The owner
    /// must have called no [`Scheduler::poll`] with a later time than `since` before. A time later
    /// than the present counts as the present, which is the default.
    pub fn set_unread_since(&mut self, since: Instant) {
        self.unread_since = since.0;
    }

    /// The time of [`Scheduler::set_unread_since`]; `now` if it is later.
    pub fn unread_since(&self, now: Instant) -> Instant {
        now.min(Instant(self.unread_since))
    }

    /// A flow whose head will probably leave soon. `None` if no other flow is named at present. The
    /// owner can prefetch what it will need of the flow's queue. These are
    /// hints for schedulers with so many flows that memory is slow (above 2,048 with a head). A
    /// flow can leave without being named, or be named and leave later, or not at all.
    #[inline(always)]
    pub fn poll_upcoming(&mut self) -> Option<FlowId> {
        self.upcoming.poll().map(FlowId)
    }

    /// Prefetches what the next [`Scheduler::handle_head`] of a flow needs. A hint for callers with
    /// many flows; no effect for a flow that does not exist.
    #[inline(always)]
    pub fn prefetch(&self, flow: FlowId) {
        dispatch::prefetch(&self.flows, flow.0);
    }

    fn reading(&self) -> Reading {
        Reading::new(self.now, self.unread_since)
    }

    /// Reports that a packet arrived at the empty queue of a flow. A packet behind other packets is
    /// not reported.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownFlow`] if the flow does not exist. [`SchedulerError::IsServer`] if
    /// it is a server. [`SchedulerError::HasHead`] if it has a head already.
    /// [`SchedulerError::TooLong`] if the packet is longer than [`Scheduler::longest`].
    pub fn handle_head(
        &mut self,
        flow: FlowId,
        packet: Packet,
        now: Instant,
    ) -> Result<(), SchedulerError> {
        self.advance(now);
        let reading = self.reading();
        let longest = self.wire.longest;
        let state = self.flow_mut(flow)?;
        if let ServiceState::Server { .. } = state.service {
            return Err(SchedulerError::IsServer(flow));
        }
        if state.is(Flag::HasHead) {
            return Err(SchedulerError::HasHead(flow));
        }
        let length = checked_length(flow, packet.length, longest.min(state.service.longest()))?;
        state.set(Flag::HasHead);
        state.set_length(length);
        match state.is(Flag::Limited) {
            true => self.arrive_at_limit(flow.0, packet, true),
            false => state.service.wake(packet, reading),
        }
        if self.flows[flow.index()].is(Flag::Timed) {
            self.cancel(flow.0);
        }
        self.set_active(flow.0, true);
        self.enqueue(flow.0);
        Ok(())
    }

    /// The longest packet that [`Scheduler::handle_head`] accepts for a flow: the smaller one of
    /// [`Wire::longest`] and the MBS of the flow's contract, if it has one. For a flow that does
    /// not exist the result is at most [`Wire::longest`].
    pub fn longest(&self, flow: FlowId) -> Bytes {
        let state = self.flows.get(flow.index());
        let own = state.map_or(u32::MAX, |state| state.service.longest());
        Bytes(u64::from(own.min(self.wire.longest)))
    }

    /// Reports that the queue of a flow was emptied without sending. Returns whether the flow had a
    /// head. For a server the call has no effect, and returns `false`.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownFlow`] if the flow does not exist.
    pub fn withdraw(&mut self, flow: FlowId, now: Instant) -> Result<bool, SchedulerError> {
        self.advance(now);
        let state = self.flow_mut(flow)?;
        let waited = state.is(Flag::HasHead);
        if let ServiceState::Server { .. } = state.service {
            // A server waits as long as a member is ready.
            return Ok(false);
        }
        if waited {
            self.withdraw_member(flow.0);
        }
        self.flows[flow.index()].clear(Flag::HasHead);
        self.cancel(flow.0);
        Ok(waited)
    }

    /// Bytes of memory in use: 64 for each flow, idle or not, 2.2 MB for the four calendars, 0.54
    /// MB for each class of a server, the nodes of entries, and the list of limits. Reserved memory
    /// that was never touched takes addresses only and does not count.
    pub fn memory(&self) -> usize {
        let limits = self.limits.len() * size_of::<Option<LimitState>>();
        let timed = [&self.sleepers, &self.due, &self.early];
        let timed: usize = timed.map(Calendar::memory).iter().sum();
        let servers = self.servers.iter().flatten().map(OverbookedServer::memory);
        let inside =
            self.servers.len() * size_of::<Option<OverbookedServer>>() + servers.sum::<usize>();
        let flows = self.flows.len() * size_of::<FlowState>() + limits + self.pool.memory();
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
        assert_eq!(count(Flag::Timed), asleep + due + early, "timed entries");
        assert_eq!(count(Flag::InFair), fair, "entries in the left-over");
        for (id, flow) in self.flows.iter().enumerate() {
            let entries = flow.is(Flag::Timed) || flow.is(Flag::InFair);
            assert!(
                !flow.is(Flag::HasHead) || entries,
                "flow {id} has a head and no entry"
            );
            assert!(
                !flow.is(Flag::Removed) || entries,
                "flow {id} was removed and has no entry"
            );
            assert!(!flow.is(Flag::HasHead) || flow.length() <= self.wire.longest);
            let limit = self.limits.get(id).is_some_and(Option::is_some);
            assert!(!flow.is(Flag::Limited) || limit, "flow {id} has no limit");
        }
    }

    /// Removes a flow's entry from the sleepers. An entry in the due or the early becomes stale.
    fn cancel(&mut self, id: u32) {
        if !self.flows[id as usize].is(Flag::Timed) {
            return;
        }
        self.flush_deferred();
        let flow = &mut self.flows[id as usize];
        if !self.sleepers.holds(&self.pool, flow.position, id) {
            flow.set(Flag::TimedStale);
            return;
        }
        let position = flow.position;
        flow.clear(Flag::Timed);
        if let Some(moved) = self.sleepers.remove(&mut self.pool, position) {
            self.flows[moved.id() as usize].position = position;
        }
    }

    /// Frees the index of a removed flow, once no entry of the flow is left.
    fn free_if_unused(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        if flow.is(Flag::Removed) && !flow.is(Flag::Timed) && !flow.is(Flag::InFair) {
            *flow = FlowState::new(ServiceState::Vacant { next: self.vacant });
            self.vacant = id;
        }
    }

    fn flow_mut(&mut self, flow: FlowId) -> Result<&mut FlowState, SchedulerError> {
        let state = self.flows.get_mut(flow.index());
        state
            .filter(|state| {
                !state.is(Flag::Removed) && !matches!(state.service, ServiceState::Vacant { .. })
            })
            .ok_or(SchedulerError::UnknownFlow(flow))
    }

    #[inline(always)]
    fn advance(&mut self, now: Instant) {
        if now.0 > self.now {
            self.now = now.min(END_OF_TIME).0;
        }
        if self.sleepers.is_flush_due(self.now) {
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
}

impl ServiceState {
    fn new(service: Service) -> ServiceState {
        match service {
            Service::Share { min, max, weight } => {
                ServiceState::Share(ShareState::new(min, max, weight))
            }
            Service::Cell(cell) => ServiceState::Cell(CellState::new(&cell)),
            Service::Slice { slice, weight } => ServiceState::Slice {
                slice: SliceState::new(&slice),
                tag: 0,
                weight: weight.get(),
                extra: slice.extra(),
            },
            Service::Channel(channel) => ServiceState::Channel(ChannelState::new(&channel)),
            Service::Limited { guarantee, .. } => ServiceState::new(guarantee.into()),
        }
    }

    /// The state under another contract: the present state if the new contract is of the same kind,
    /// else a new one.
    fn changed(&self, service: Service, now: u64) -> ServiceState {
        match (self, service, ServiceState::new(service)) {
            (ServiceState::Share(old), _, ServiceState::Share(new)) => {
                ServiceState::Share(old.changed(new, now))
            }
            (ServiceState::Cell(old), Service::Cell(new), _) => {
                ServiceState::Cell(old.changed(&new))
            }
            (ServiceState::Channel(old), Service::Channel(new), _) => {
                ServiceState::Channel(old.changed(&new))
            }
            (ServiceState::Slice { slice, tag, .. }, Service::Slice { slice: new, weight }, _) => {
                ServiceState::Slice {
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
            ServiceState::Cell(cell) => cell.longest(),
            ServiceState::Member(member) => member.longest(),
            _ => u32::MAX,
        }
    }

    /// A packet is found at the head of a queue that was empty.
    #[inline(always)]
    fn wake(&mut self, packet: Packet, reading: Reading) {
        let now = reading.now();
        match self {
            ServiceState::Vacant { .. } | ServiceState::Server { .. } => {}
            ServiceState::Member(member) => member.wake(now),
            ServiceState::Share(share) => share.wake(now),
            ServiceState::Cell(cell) => cell.wake(now),
            ServiceState::Slice { slice, .. } => slice.wake(now),
            ServiceState::Channel(channel) => {
                let begins = packet.message.map(|arrived| arrived.0);
                channel.wake(begins, packet.length.0, reading);
            }
        }
    }
}

/// The length, if it is at most `longest`.
#[inline(always)]
fn checked_length(flow: FlowId, length: Bytes, longest: u32) -> Result<u32, SchedulerError> {
    let fits = u32::try_from(length.0)
        .ok()
        .filter(|bytes| *bytes <= longest);
    fits.ok_or(SchedulerError::TooLong {
        flow,
        length,
        longest: Bytes(u64::from(longest)),
    })
}

/// The largest allowed width of a bucket, as a binary logarithm, if `laxity` is the time
/// between eligible time and deadline.
#[inline(always)]
fn max_width(laxity: u64) -> u32 {
    let digits = (laxity | 1).ilog2();
    digits.saturating_sub(LAXITY_DIGITS).max(TIME_QUANTUM)
}

/// The number of entries of the sleepers and the early that one call of [`Scheduler::poll`] moves
/// when their time has come, if there are so many. The call moves whole nodes of entries, so it can
/// move more, but never twice as many.
pub const DUE_PER_CALL: u32 = 32;

/// The largest number of stale entries that one call of [`Scheduler::poll`] drops or inserts again:
/// entries of flows whose queue has become empty, or whose contract has changed.
pub const DROPPED_PER_CALL: u32 = 16;

/// One entry in the left-over, and one in the other calendars.
const ENTRIES_PER_FLOW: usize = 2;

/// Binary logarithm of the quantum of times, 512 ns. A wait is rounded up by at most this, or by
/// 1/1024 of the wait if that is more.
const TIME_QUANTUM: u32 = 9;

/// The end of time, 2^63 - 1 ns or 292 years after its start: later times count as this one. The
/// upper half of the range of `u64` is left for sums.
pub const END_OF_TIME: Instant = Instant((1 << 63) - 1);

/// 36 years, the upper limit of [`Wire::ahead`].
const MAX_AHEAD: u64 = 1 << 60;

/// Binary logarithm of the quantum of start tags. A start tag advances by 2^26 for each byte at
/// weight 1, so the quantum is about a thousandth of 64 bytes at weight 1000.
const TAG_QUANTUM: u32 = 12;

/// A wait may end late by at most 2^-5 (1/32) of the time between eligible time and deadline.
const LAXITY_DIGITS: u32 = 5;

/// Numbers of the calendars in the pool.
const SLEEPERS: u8 = 0;
const DUE: u8 = 1;
const FAIR: u8 = 2;
const EARLY: u8 = 3;

#[cfg(test)]
mod tests;
