//! The part of a [`Scheduler`] for overbooked servers and their members: how a member gets a
//! packet, becomes eligible, is served and becomes idle. `sched::server` describes servers and
//! their classes, and what uses them today.
//!
//! ```text
//!        handle_head             packet is eligible          server and member are chosen
//!  idle ─────────────▶ waiting ─────────────────────▶ ready ─────────────────────▶ served
//!   ▲                     ▲                                                          │
//!   └── queue is empty ───┴──── next packet; waits for the time that shaping gives ──┘
//! ```
//! A member is *active* while it has a packet, and *ready* while that packet is eligible too; a
//! packet that is eligible at once makes the member ready at once. A waiting member has an entry
//! among the scheduler's sleepers. A ready member has an entry in the queue of its class, and none
//! among the sleepers. The flow of the server has a head exactly while a member is ready. The entry
//! of a member that is not ready is dropped when it comes first in its class.
//!
//! A call fails with [`SchedulerError`] if a limit on the number of servers, classes or flows is
//! reached, if the server or the class does not exist, or if the slice has `extra` or is too small
//! for the minimums of the classes.

use super::flow::{Flag, FlowState, ServiceState};
use super::server::{Class, MAX_CLASSES, OverbookedServer};
use super::{
    DROPPED_PER_CALL, END_OF_TIME, FAIR, FlowId, MemberState, QueueEntry, Scheduler,
    SchedulerError, SliceState, deadline, max_width,
};
use crate::contract;
use crate::sched::dispatch::prefetch;
use crate::sched::member::ClassId;
use crate::sched::service::{Departure, Packet, ServedAs};
use crate::units::{Instant, Rate};

impl Scheduler {
    /// Adds an overbooked server: a slice that its members share, by classes of static priority
    /// (the first is the highest) and in proportion to their contracts. Admission treats it like
    /// any other slice and does not count the members' contracts. The classes' minimums must fit
    /// into the slice. Without a slice the members share the left-over.
    ///
    /// # Errors
    /// [`SchedulerError::ClassCount`] if there are not 1 to [`MAX_CLASSES`] classes.
    /// [`SchedulerError::TooManyServers`] if 2^13 servers exist, including removed ones with
    /// entries left. [`SchedulerError::TooManyFlows`] as for [`Scheduler::insert`].
    /// [`SchedulerError::ServerExtra`] if the slice has `extra`.
    /// [`SchedulerError::MinimumsAboveSlice`] if the classes' minimums exceed the slice.
    pub fn insert_server(
        &mut self,
        slice: impl Into<Option<contract::Slice>>,
        classes: &[Class],
        now: Instant,
    ) -> Result<FlowId, SchedulerError> {
        self.advance(now);
        let slice = slice.into();
        let vacant = self.servers.iter().position(Option::is_none);
        let index = vacant.unwrap_or(self.servers.len());
        if !(1..=MAX_CLASSES).contains(&classes.len()) {
            return Err(SchedulerError::ClassCount(classes.len()));
        }
        if index >= MAX_SERVERS {
            return Err(SchedulerError::TooManyServers(MAX_SERVERS));
        }
        self.check_minimums(slice.as_ref(), promised(classes))?;
        let service = ServiceState::Server {
            slice: slice.map_or_else(SliceState::unused, |slice| SliceState::new(&slice)),
            tag: 0,
            best_effort: slice.is_none(),
            // Below 2^13.
            server: index as u16,
        };
        let flow = self.insert_flow(FlowState::new(service))?;
        let server = OverbookedServer::new(flow.0, FAIR, classes, self.server_rate(slice.as_ref()));
        match self.servers.get_mut(index) {
            Some(vacant) => *vacant = Some(server),
            None => self.servers.push(Some(server)),
        }
        Ok(flow)
    }

    /// Checks that a server's slice gives the `promised` bit/s. Fails if it gives less, or if the
    /// slice has `extra`.
    pub(super) fn check_minimums(
        &self,
        slice: Option<&contract::Slice>,
        promised: u64,
    ) -> Result<(), SchedulerError> {
        let gives = self.server_rate(slice);
        match slice.is_some_and(contract::Slice::extra) {
            true => Err(SchedulerError::ServerExtra),
            false if promised > gives => Err(SchedulerError::MinimumsAboveSlice {
                promised,
                slice: gives,
            }),
            false => Ok(()),
        }
    }

    /// The rate of a slice, in bit/s; without a slice, that of the link.
    fn server_rate(&self, slice: Option<&contract::Slice>) -> u64 {
        let rate = self.wire.rate.bits_per_second();
        slice.map_or(rate, |slice| SliceState::new(slice).of(rate))
    }

    /// Changes the slice of a server and the minimums of its classes; members stay. A changed slice
    /// takes effect with the next period. Without a slice the members share the left-over from now
    /// on.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownFlow`] if the server does not exist. [`SchedulerError::WrongKind`]
    /// if the flow is no server. [`SchedulerError::ClassCount`] if `classes` does not have one
    /// entry for each class. [`SchedulerError::ServerExtra`] and
    /// [`SchedulerError::MinimumsAboveSlice`] as for [`Scheduler::insert_server`].
    pub fn set_server(
        &mut self,
        flow: FlowId,
        slice: Option<contract::Slice>,
        classes: &[Class],
        now: Instant,
    ) -> Result<(), SchedulerError> {
        self.advance(now);
        let ServiceState::Server { server, .. } = self.flow_mut(flow)?.service else {
            return Err(SchedulerError::WrongKind(flow));
        };
        let state = self.servers[usize::from(server)].as_ref();
        if state.map_or(0, OverbookedServer::classes) != classes.len() {
            return Err(SchedulerError::ClassCount(classes.len()));
        }
        self.check_minimums(slice.as_ref(), promised(classes))?;
        let now = self.now;
        if let Some(state) = &mut self.servers[usize::from(server)] {
            state.set_minimums(classes, now);
        }
        self.set_server_slice(flow, slice.as_ref());
        Ok(())
    }

    /// Changes the slice of a server, which was checked.
    pub(super) fn set_server_slice(&mut self, flow: FlowId, new: Option<&contract::Slice>) {
        let (now, rate) = (self.now, self.server_rate(new));
        let state = &mut self.flows[flow.index()];
        let has_head = state.is(Flag::HasHead);
        let ServiceState::Server {
            slice,
            best_effort,
            server,
            ..
        } = &mut state.service
        else {
            return;
        };
        let index = usize::from(*server);
        let is_moved = *best_effort != new.is_none();
        match new {
            Some(new) if is_moved => {
                *slice = SliceState::new(new);
                if has_head {
                    slice.wake(now);
                }
            }
            Some(new) => *slice = slice.changed(new),
            None => {}
        }
        *best_effort = new.is_none();
        if let Some(server) = &mut self.servers[index] {
            server.set_rate(rate);
        }
        if is_moved && has_head {
            self.cancel(flow.0);
            self.enqueue(flow.0);
        }
    }

    /// Adds a member with an empty queue to a class of a server; the first class is 0. The member
    /// is shaped to its contract, or to the part of it that is available to its class.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownFlow`] if the server does not exist. [`SchedulerError::NoClass`] if
    /// the flow is not a server or has no such class. [`SchedulerError::TooManyFlows`] as for
    /// [`Scheduler::insert`].
    pub fn insert_member(
        &mut self,
        server: FlowId,
        class: usize,
        contract: contract::Cell,
        now: Instant,
    ) -> Result<FlowId, SchedulerError> {
        self.advance(now);
        let service = self.flow_mut(server)?.service;
        let index = match service {
            ServiceState::Server { server, .. } => Some(server),
            _ => None,
        };
        let known = index.and_then(|index| self.servers[usize::from(index)].as_ref());
        let classes = known.map_or(0, OverbookedServer::classes);
        let (Some(index), true) = (index, class < classes) else {
            return Err(SchedulerError::NoClass { server, class });
        };
        let class_id = ClassId::new(index, class as u8);
        let flow = self.insert_flow(FlowState::new(ServiceState::Member(MemberState::new(
            &contract, class_id,
        ))))?;
        if let Some(server) = &mut self.servers[usize::from(index)] {
            server.members += 1;
        }
        Ok(flow)
    }

    /// Counts that a member gets a packet, or has none any more. For a flow that is no member the
    /// call does nothing.
    #[inline(never)]
    pub(super) fn set_active(&mut self, id: u32, active: bool) {
        if let ServiceState::Member(member) = &self.flows[id as usize].service
            && let Some(server) = &mut self.servers[member.class_id().server()]
        {
            server.set_active(member, active);
        }
    }

    /// A member's packet is withdrawn.
    pub(super) fn withdraw_member(&mut self, id: u32) {
        let flow = &self.flows[id as usize];
        let ServiceState::Member(member) = &flow.service else {
            return;
        };
        let class_id = member.class_id();
        let Some(server) = &mut self.servers[class_id.server()] else {
            return;
        };
        if flow.is_ready() {
            server.leave(class_id);
        }
        server.set_active(member, false);
        if !server.is_ready() {
            let server_flow = server.flow;
            self.flows[server_flow as usize].clear(Flag::HasHead);
            self.cancel(server_flow);
        }
    }

    /// Changes a member's contract, and its contribution to its class.
    pub(super) fn change_member(&mut self, id: u32, contract: &contract::Cell) {
        let flow = &mut self.flows[id as usize];
        let waiting = flow.is(Flag::HasHead);
        if let ServiceState::Member(member) = &mut flow.service
            && let Some(server) = &mut self.servers[member.class_id().server()]
        {
            if waiting {
                server.set_active(member, false);
            }
            *member = member.changed(contract);
            if waiting {
                server.set_active(member, true);
            }
        }
    }

    /// Drops stale entries of the server that was removed last, at most [`DROPPED_PER_CALL`] in one
    /// call. Such a server has no members. The index of a server without entries becomes free.
    pub(super) fn drain_closed_servers(&mut self) {
        let Some(index) = self.closed_servers.last().copied() else {
            return;
        };
        for _ in 0..DROPPED_PER_CALL {
            let state = &mut self.servers[usize::from(index)];
            let entry = state.as_mut().and_then(|one| one.drain(&mut self.pool));
            let Some(id) = entry else {
                *state = None;
                self.closed_servers.pop();
                return;
            };
            self.flows[id as usize].clear(Flag::InFair);
            self.free_if_unused(id);
        }
    }

    /// Inserts a member into the sleepers until it is eligible, or makes it ready.
    #[inline(never)]
    pub(super) fn enqueue_member(&mut self, id: u32) {
        let now = self.now;
        let flow = &mut self.flows[id as usize];
        let length = flow.length();
        let ServiceState::Member(member) = &mut flow.service else {
            return;
        };
        let eligible = member.plan(length);
        let max_width = max_width(member.cdvt());
        if eligible <= now {
            return self.make_ready(id);
        }
        if flow.is(Flag::Timed) {
            return;
        }
        let Some(bucket) = self.sleepers.bucket_not_before(eligible, now, max_width) else {
            return self.sleep_before(id, eligible);
        };
        flow.set(Flag::Timed);
        self.sleep(bucket, QueueEntry::new(id, deadline::MEMBER));
    }

    /// Makes the member `id` ready, because its eligible time has come; frees its number if the
    /// flow was removed.
    #[inline(never)]
    pub(super) fn member_eligible(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        flow.clear(Flag::Timed);
        match flow.is(Flag::HasHead) {
            true => self.make_ready(id),
            false => self.free_if_unused(id),
        }
    }

    /// Makes a member ready. If no other member is ready, the flow of its server gets a head.
    #[inline(always)]
    fn make_ready(&mut self, id: u32) {
        let (now, longest) = (self.now, self.wire.longest);
        let flow = &mut self.flows[id as usize];
        let has_entry = flow.is(Flag::InFair);
        let ServiceState::Member(member) = &mut flow.service else {
            return;
        };
        let class_id = member.class_id();
        let Some(server) = &mut self.servers[class_id.server()] else {
            return;
        };
        let (old, start) = (member.tag, server.start(class_id, member.tag));
        member.tag = start;
        let entry = (!has_entry).then_some((id, start));
        server.join(&mut self.pool, class_id, entry, now, longest);
        let server_flow = server.flow;
        flow.set(Flag::InFair);
        match has_entry {
            true if start != old => flow.set(Flag::FairStale),
            true => {}
            false => flow.clear(Flag::FairStale),
        }
        let server_state = &mut self.flows[server_flow as usize];
        if !server_state.is(Flag::HasHead) {
            server_state.set(Flag::HasHead);
            if let ServiceState::Server { slice, .. } = &mut server_state.service {
                slice.wake(now);
            }
            self.cancel(server_flow);
            self.enqueue(server_flow);
        }
    }

    /// The member to serve when a server is chosen. `None` if too many stale entries came first;
    /// then the server waits until it is chosen again.
    #[inline(never)]
    pub(super) fn next_member(&mut self, server: u16, dropped: &mut u32) -> Option<u32> {
        let now = self.now;
        let server_flow = self.servers[usize::from(server)].as_ref()?.flow;
        let mut unused = None;
        while *dropped > 0 {
            let state = self.servers[usize::from(server)].as_mut()?;
            let flows = &self.flows;
            let prefetch_flow = |id: u32| prefetch(flows, id);
            let Some(id) = state.take(&mut self.pool, now, prefetch_flow) else {
                break;
            };
            let flow = &mut self.flows[id as usize];
            flow.clear(Flag::InFair);
            let ready = flow.is(Flag::HasHead) && !flow.is(Flag::Timed);
            if ready && !flow.is(Flag::FairStale) {
                return Some(id);
            }
            flow.clear(Flag::FairStale);
            match &mut flow.service {
                ServiceState::Member(member) if ready => {
                    let class_id = member.class_id();
                    let start = state.start(class_id, member.tag);
                    member.tag = start;
                    state.requeue(&mut self.pool, class_id, id, start);
                    flow.set(Flag::InFair);
                }
                _ => unused = Some(id),
            }
            *dropped -= 1;
            if let Some(id) = unused.take() {
                self.free_if_unused(id);
            }
        }
        self.settle_server_flow(server_flow);
        None
    }

    /// Departure of a member of a server without a slice, which the left-over has chosen.
    pub(super) fn depart_in_left_over(
        &mut self,
        server_flow: u32,
        server: u16,
        dropped: &mut u32,
        next_packet: impl FnOnce(FlowId) -> Option<Packet>,
    ) -> Option<Departure> {
        let member = self.next_member(server, dropped)?;
        let length = self.flows[member as usize].length();
        if let Some(tag) = self.flows[server_flow as usize].advance_tag(length) {
            self.fair.served(tag);
        }
        let served_as = ServedAs::Shared {
            deadline: END_OF_TIME,
        };
        let departure = self.depart(member, served_as, next_packet);
        self.fair.settle();
        Some(departure)
    }

    /// Accounts for a packet of a member in the member, its class and its server.
    #[inline(never)]
    pub(super) fn member_sent(&mut self, id: u32, start: u64, cost: u64, length: u32) {
        let now = self.now;
        let flow = &mut self.flows[id as usize];
        let ServiceState::Member(member) = &mut flow.service else {
            return;
        };
        let class_id = member.class_id();
        let Some(server) = &mut self.servers[class_id.server()] else {
            return;
        };
        member.sent(start, length, server.factor(class_id));
        server.served(member, length, now);
        let server_flow = server.flow;
        if let ServiceState::Server {
            slice,
            best_effort: false,
            ..
        } = &mut self.flows[server_flow as usize].service
        {
            slice.sent(now, cost);
        }
    }

    /// After a member was served: queues its server's flow again if another member is ready. If
    /// not, the server's flow has no head any more.
    #[inline(never)]
    pub(super) fn settle_server(&mut self, id: u32) {
        let ServiceState::Member(member) = &self.flows[id as usize].service else {
            return;
        };
        let class_id = member.class_id();
        if let Some(server) = &mut self.servers[class_id.server()] {
            server.settle(class_id);
            let server_flow = server.flow;
            self.settle_server_flow(server_flow);
        }
    }

    fn settle_server_flow(&mut self, server_flow: u32) {
        let ServiceState::Server { server, .. } = self.flows[server_flow as usize].service else {
            return;
        };
        let state = self.servers[usize::from(server)].as_ref();
        match state.is_some_and(OverbookedServer::is_ready) {
            true => self.enqueue(server_flow),
            false => self.flows[server_flow as usize].clear(Flag::HasHead),
        }
    }
}

/// The sum of the minimums, in bit/s.
fn promised(classes: &[Class]) -> u64 {
    let least = classes.iter().filter_map(|class| class.min);
    least.map(Rate::bits_per_second).sum()
}

impl FlowState {
    /// Whether the flow is a member that is eligible.
    pub(super) fn is_ready(&self) -> bool {
        self.is(Flag::HasHead) && self.is(Flag::InFair) && !self.is(Flag::Timed)
    }
}

/// The number of servers that a member's class_id can hold.
const MAX_SERVERS: usize = 1 << 13;
