//! Takes packets from the programs' rings in the scheduler's order, copies and checks them, and
//! hands them to the NIC. Finds the flows of each received frame, charges the flows for it, and
//! copies the frame to their programs. No iteration fails. Opening a flow fails with [`OpenError`].
//! Attaching fails if the number is not reserved, and a change if the scheduler refuses it.
//!
//! A [`Datapath`] does not sleep, and the caller passes the time, so tests run it without a NIC.
//! (Only `Doorbells` reads a clock, to time its writes.)
//!
//! ```text
//!  notices ─▶ head of a flow ─▶ scheduler ─▶ departing head ─▶ NIC's frame ─▶ template ─▶ sent
//!                   ▲               │                                            └────▶ forbidden
//!                   └─ next record ─┘
//! ```
//! - The scheduler holds one record of each flow, its head; the others stay in the ring. The head
//!   is copied when it leaves, and the copy is checked.
//! - A record returns with its status in the same iteration. A refused record is charged to its own
//!   flow, which then pauses, and its time on the link goes to other flows (`refused`).
//! - A program that violates the ring protocol is disconnected with all its flows: none of its
//!   memory is read afterwards. `Datapath::poll_disconnected` returns the program and the
//!   violation. The caller closes the flows, which may be many, and detaches the program.
//! - A chosen packet leaves a moment later, or much later if the thread was stopped in between. The
//!   caller reports the time by [`Datapath::all_sent`], so that the next packet does not follow too
//!   soon.
//! - Work is bounded: `BATCH` (64) packets and `FLOWS_PER_ITERATION` (128) flows with notices per
//!   iteration. A record that is too long to be sent waits for its turn as a forbidden one does, so
//!   a program cannot have more of them read than it may send.
//! - Memory of the next flows and packets is prefetched: with many flows, latency dominates.

mod departures;
mod flow;
mod heads;
mod in_flight;
mod kernel_path;
mod programs;
mod receive;
mod redirected;
mod refused;
mod results;
mod segments;
mod server;
mod tcp_reset;
mod wakeups;
mod withdraw;

use std::collections::VecDeque;

use netnice_core::contract::ReceiveShare;
use netnice_core::sched::{Departure, FlowId, Packet, Scheduler, SchedulerError, Service, Wire};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};
use netnice_ring::driver::{
    Cleared, Found, Loss, Prepared, ProgramMemory, Reserved, SharedBytes, Taken, Unprepared,
    fence_before_notices,
};
use netnice_ring::layout::{FlowLocation, Shape};
use netnice_ring::ledger::Balance;
use netnice_ring::record::{Record, Status};
use netnice_ring::violation::ProtocolViolation;

use departures::Departures;
#[cfg(test)]
pub(crate) use flow::LATENESS;
use flow::{Delivery, FlowState, RESERVED_FLOWS, prefetch_choice, prefetch_sending};
pub use flow::{FlowCounters, FlowParameters, OpenedFlow};
use heads::UpcomingFlows;
use kernel_path::KernelPath;
pub use kernel_path::PathCount;
pub use programs::ProgramNo;
use programs::{Program, Programs};
use redirected::{QueuedFrame, RedirectedTargets};
pub use redirected::{RedirectError, RedirectedCounters};
use refused::PausedFlows;
pub(crate) use results::{Closed, Totals, send_cut};
pub use results::{Disconnected, FrameSink, Next, OpenError};
pub use server::ServerParameters;
pub(crate) use tcp_reset::ListedResets;
use tcp_reset::Resets;
use wakeups::WakeupCredit;

use crate::code_points::CodePoints;
use crate::demux::{Demux, FlowNo, Match, MatchError, Reassembly, Verdict};
use crate::doorbells::Doorbells;
use crate::frame::Mac;
use crate::frames::{FRAME, MAX_IN_FLIGHT};
use crate::receive_budget::shared::{ActiveSet, SharedBudget};
use crate::receive_budget::{Cost, ReceiveBudget};
use crate::template::{Parts, Template};

/// The datapath between rings and NIC. See the module.
pub struct Datapath {
    scheduler: Scheduler,
    /// The server whose classes contracts name.
    server: Option<FlowId>,
    programs: Programs,
    doorbells: Doorbells,
    flows: Vec<Option<FlowState>>,
    demux: Demux,
    cost: Cost,
    shared_budget: SharedBudget,
    /// A receiving flow runs low on its receive budget; reset by [`Datapath::charge`].
    budget_is_low: bool,
    /// Flows that cannot pay for received packets, with the end of that time.
    suspended: Vec<(FlowNo, Instant)>,
    /// Flows that pause after a refused packet.
    paused: PausedFlows,
    /// Flows whose rings moved in this iteration.
    touched: Vec<u32>,
    /// Programs to notify.
    to_notify: Vec<ProgramNo>,
    /// Flows that notices name.
    noticed: Vec<u32>,
    /// How many of `noticed` were handled.
    handled: usize,
    /// Packets that leave in this iteration, in order.
    departures: Departures,
    upcoming: UpcomingFlows,
    violations: Vec<(ProgramNo, ProtocolViolation)>,
    /// Programs whose doorbells the caller must ignore, with the end of that time.
    throttled: Vec<(ProgramNo, Instant)>,
    disconnected: Vec<Disconnected>,
    /// Frames handed to the NIC and not yet completed, oldest first, for flows with a cell
    /// contract: (flow, bytes). If the NIC never completes all, all but the last
    /// [`MAX_IN_FLIGHT`] count as sent.
    in_flight: Vec<(FlowId, u64)>,
    /// The latest time for all of `in_flight` to leave without a violated contract.
    in_flight_limit: Instant,
    /// Packets are returned unsent while this is false.
    link_is_up: bool,
    kernel_path: KernelPath,
    redirected: RedirectedTargets,
    /// The period in which redirected targets last used the driver (`SharedBudget::count_active`).
    redirected_active: u64,
    /// The code points of sent packets.
    code_points: CodePoints,
    /// Length in bytes of the longest packet of joined segments; 0: segments are not joined.
    most_joined: usize,
    /// The interface cuts packets.
    link_joins: bool,
    /// Memory for the places of payloads.
    payloads: Vec<SharedBytes>,
    /// RSTs of ended connections that wait to be sent.
    resets: Resets,
    totals: Totals,
}

impl Datapath {
    /// A datapath without programs. Fails if the scheduler refuses the link's parameters.
    pub fn new(wire: Wire, mac: Mac) -> Result<Datapath, SchedulerError> {
        Ok(Datapath {
            scheduler: Scheduler::with_capacity(wire, RESERVED_FLOWS)?,
            server: None,
            programs: Programs::default(),
            doorbells: Doorbells::default(),
            flows: Vec::with_capacity(RESERVED_FLOWS),
            demux: Demux::new(mac),
            cost: Cost::default(),
            shared_budget: SharedBudget::default(),
            budget_is_low: false,
            suspended: Vec::new(),
            paused: PausedFlows::default(),
            touched: Vec::new(),
            to_notify: Vec::new(),
            noticed: Vec::new(),
            handled: 0,
            departures: Departures::default(),
            upcoming: UpcomingFlows::default(),
            violations: Vec::new(),
            throttled: Vec::new(),
            disconnected: Vec::new(),
            in_flight: Vec::with_capacity(BATCH),
            in_flight_limit: Instant(0),
            link_is_up: true,
            kernel_path: KernelPath::new(),
            redirected: RedirectedTargets::new(wire.rate, mac),
            redirected_active: 0,
            code_points: CodePoints::default(),
            most_joined: most_joined(wire.rate),
            link_joins: false,
            payloads: Vec::new(),
            resets: Resets::new(wire.rate),
            totals: Totals::default(),
        })
    }

    /// Sets the doorbell writer for programs that attach later.
    pub(crate) fn set_doorbells(&mut self, doorbells: Doorbells) {
        self.doorbells = doorbells;
    }

    /// Reserves a number for a program whose memory is not ready.
    pub(crate) fn reserve_program(&mut self) -> ProgramNo {
        self.programs.reserve()
    }

    /// Attaches a program of user 0 with this memory.
    pub fn attach(&mut self, memory: ProgramMemory) -> ProgramNo {
        let number = self.reserve_program();
        // It fails only for a number that is not reserved.
        let _ = self.attach_reserved(number, Box::new(memory), 0);
        number
    }

    /// Attaches the program with this reserved number, for the user `uid`. Returns the memory if
    /// the number is not reserved, or has a program already.
    pub(crate) fn attach_reserved(
        &mut self,
        number: ProgramNo,
        memory: Box<ProgramMemory>,
        uid: u32,
    ) -> Result<(), Box<ProgramMemory>> {
        let program = Program {
            doorbell: self.doorbells.doorbell(memory.notifier(), uid),
            memory: *memory,
            slots: Vec::new(),
            receivers: ActiveSet::default(),
            active: 0,
            wakeup_credit: WakeupCredit::default(),
            doorbell_written: false,
            may_repeat_event: false,
            is_to_notify: false,
            refused_until: Instant(0),
            disconnected: false,
        };
        let inserted = self.programs.insert(number, program);
        inserted.map_err(|program| Box::new(program.memory))
    }

    /// A program's memory and doorbells; `None` if no program has this number.
    pub(crate) fn memory(&mut self, program: ProgramNo) -> Option<&mut ProgramMemory> {
        let known = self.programs.get_mut(program)?;
        Some(&mut known.memory)
    }

    /// Detaches a program and closes its flows, whose connections are reset, or releases a reserved
    /// number. Returns the memory of the program, which takes long to drop; `None` if no program
    /// has this number.
    pub(crate) fn detach(&mut self, program: ProgramNo, now: Instant) -> Option<ProgramMemory> {
        let flows: Vec<FlowNo> = self.flows_of(program).collect();
        for flow in flows {
            self.end(flow, now);
        }
        let mut known = self.programs.remove(program)?;
        // The notification wakes the program, which then reads that its flows have ended.
        self.doorbells.notify(&mut known.doorbell);
        Some(known.memory)
    }

    /// Opens a flow of a program. Fails with an [`OpenError`], and then changes nothing.
    pub fn open(
        &mut self,
        program: ProgramNo,
        parameters: &FlowParameters,
        now: Instant,
    ) -> Result<OpenedFlow, OpenError> {
        let reserved = self.reserve_flow(program, parameters.shape)?;
        self.open_reserved(program, parameters, reserved.prepare(), now)
    }

    /// First step of opening a flow: reserves a place in the program's memory.
    /// [`Reserved::prepare`] follows; it takes long and must not run in the packet thread.
    /// [`Datapath::open_reserved`] completes. Fails if the program is gone or its memory is full.
    pub(crate) fn reserve_flow(
        &mut self,
        program: ProgramNo,
        shape: Shape,
    ) -> Result<Reserved, OpenError> {
        let known = self.programs.get_mut(program);
        let known = known.filter(|known| !known.disconnected);
        let known = known.ok_or(OpenError::Gone(program))?;
        Ok(known.memory.reserve(shape)?)
    }

    /// Last step of opening a flow. Fails with an [`OpenError`], and then releases the place.
    pub(crate) fn open_reserved(
        &mut self,
        program: ProgramNo,
        parameters: &FlowParameters,
        prepared: Result<Prepared, Unprepared>,
        now: Instant,
    ) -> Result<OpenedFlow, OpenError> {
        let known = self.programs.get_mut(program);
        let known = known.ok_or(OpenError::Gone(program))?;
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(Unprepared { location, why }) => {
                known.memory.vacate(location);
                return Err(why.into());
            }
        };
        let location = prepared.location();
        let ready = match (known.disconnected, Template::new(&parameters.sender)) {
            (true, _) => Err(OpenError::Gone(program)),
            (false, template) => template.map_err(OpenError::from),
        };
        let ready = ready.and_then(|template| {
            Ok((
                template,
                server::insert(&mut self.scheduler, self.server, parameters.service, now)?,
            ))
        });
        let (template, id) = match ready {
            Ok(ready) => ready,
            Err(why) => {
                known.memory.vacate(location);
                return Err(why);
            }
        };
        let ring = known.memory.open_at(prepared);
        let number = id.index();
        let slot = location.slot as usize;
        if known.slots.len() <= slot {
            known.slots.resize(slot + 1, None);
        }
        known.slots[slot] = Some(number as u32);
        if self.flows.len() <= number {
            self.flows.resize_with(number + 1, || None);
        }
        let budget = parameters
            .receive_budget
            .map(|budget| self.shared_budget.add_flow(budget));
        let mut flow = FlowState::new(id, program, ring, template, &parameters.service, budget);
        flow.class = parameters.service.class();
        flow.set_contract_limit(self.scheduler.longest(id));
        flow.tell_joins(self.joins());
        self.flows[number] = Some(flow);
        let flow = FlowNo(number as u32);
        match self.add_matches(flow, parameters) {
            Ok(()) => Ok(OpenedFlow { flow, location }),
            Err(why) => {
                let closed = self.close(flow, now);
                if let Some(retired) = closed.and_then(|closed| closed.retired) {
                    self.reuse(program, retired.clear());
                }
                Err(why.into())
            }
        }
    }

    fn add_matches(&mut self, flow: FlowNo, parameters: &FlowParameters) -> Result<(), MatchError> {
        self.demux.insert(flow, parameters.reassembly)?;
        parameters
            .matches
            .iter()
            .try_for_each(|what| self.demux.add_match(flow, what))
    }

    /// Closes a flow of a program that has ended, and resets its connection unless it has moved to
    /// another link.
    pub(crate) fn end(&mut self, flow: FlowNo, now: Instant) {
        self.reset_unless_withdrawn(flow);
        self.close(flow, now);
    }

    /// Closes a flow and drops its unsent packets. `None` if it was closed before.
    pub(crate) fn close(&mut self, flow: FlowNo, now: Instant) -> Option<Closed> {
        let known = self.flows.get_mut(flow.0 as usize)?.take()?;
        let received = self.demux.remove(flow);
        if let Some(budget) = &known.budget {
            self.shared_budget.remove_flow(budget);
        }
        // The flow exists, so the scheduler has it.
        let _ = self.scheduler.remove(known.id, now);
        let program = self.programs.get_mut(known.program);
        let retired = program.map(|program| {
            program.slots[known.ring.slot() as usize] = None;
            program.memory.retire(known.ring)
        });
        Some(Closed {
            counters: known.counters.with_classifier(received),
            retired,
        })
    }

    /// Releases the place of a closed flow for reuse.
    pub(crate) fn reuse(&mut self, program: ProgramNo, cleared: Cleared) {
        if let Some(memory) = self.memory(program) {
            memory.reuse(cleared);
        }
    }

    /// Sets a flow's source address, next hop and longest frame. Without a next hop, packets of a
    /// flow that does not set its own are returned unsent.
    pub(crate) fn readdress(
        &mut self,
        flow: FlowNo,
        mac: Mac,
        next_hop: Option<Mac>,
        longest: usize,
    ) {
        if let Some(Some(flow)) = self.flows.get_mut(flow.0 as usize) {
            flow.readdress(mac, next_hop, longest);
        }
    }

    /// Sets the link's Ethernet address.
    pub(crate) fn set_mac(&mut self, mac: Mac) {
        self.demux.set_mac(mac);
        self.redirected.set_mac(mac);
    }

    /// Sets whether the link is up. While it is down, packets are returned unsent, each at the time
    /// at which its contract would let it leave.
    pub(crate) fn set_link(&mut self, is_up: bool) {
        self.link_is_up = is_up;
    }

    /// Counters summed over all flows, including closed ones.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Changes a flow's contract; no effect if the flow is closed. Fails if the scheduler refuses
    /// the contract.
    pub(crate) fn change(
        &mut self,
        flow: FlowNo,
        (service, receive): (Service, Option<ReceiveShare>),
        now: Instant,
    ) -> Result<(), SchedulerError> {
        let joins = self.joins();
        let Some(Some(known)) = self.flows.get_mut(flow.0 as usize) else {
            return Ok(());
        };
        if known.class != service.class() {
            return Err(SchedulerError::WrongKind(known.id));
        }
        self.scheduler.change(known.id, service, now)?;
        known.set_service(&service);
        known.set_contract_limit(self.scheduler.longest(known.id));
        known.tell_joins(joins);
        if let Some(budget) = &mut known.budget {
            let share = receive.map_or(0, ReceiveShare::millionths);
            self.shared_budget.set_share(budget, share);
        }
        Ok(())
    }

    /// Changes the link's parameters, and the rate of the kernel's classes. Fails if the scheduler
    /// refuses them.
    pub(crate) fn rewire(
        &mut self,
        wire: Wire,
        classes: Option<Rate>,
    ) -> Result<(), SchedulerError> {
        self.scheduler.set_wire(wire)?;
        self.kernel_path.set_rate(classes, wire.overhead);
        self.redirected.set_rate(wire.rate);
        self.resets.set_rate(wire.rate);
        self.set_joins(self.link_joins, most_joined(wire.rate));
        Ok(())
    }

    /// Whether the interface cuts packets, and the link is fast enough to join segments.
    fn joins(&self) -> bool {
        self.link_joins && self.most_joined > 0
    }

    /// Sets whether the interface cuts packets, and the longest packet of joined segments. Tells
    /// the programs if their segments can leave joined from now on, or not any more.
    fn set_joins(&mut self, link_joins: bool, most_joined: usize) {
        let before = self.joins();
        (self.link_joins, self.most_joined) = (link_joins, most_joined);
        let joins = self.joins();
        if joins != before {
            for flow in self.flows.iter().flatten() {
                flow.tell_joins(joins);
            }
        }
    }

    /// Charges the link for what the kernel's classes have sent, by the present count of what they
    /// were given. Call it before [`Datapath::transmit`].
    pub fn handle_path_count(&mut self, count: PathCount, now: Instant) {
        let (bytes, since) = self.kernel_path.sent(count, now);
        if bytes.0 > 0 {
            self.scheduler.handle_foreign(bytes, since);
        }
    }

    /// Sets the code points of packets that are sent from now on.
    pub(crate) fn set_code_points(&mut self, code_points: CodePoints) {
        self.code_points = code_points;
    }

    /// A flow's counters; `None` if the flow is closed.
    pub fn counters(&self, flow: FlowNo) -> Option<FlowCounters> {
        let known = self.flows.get(flow.0 as usize)?.as_ref()?;
        Some(known.counters.with_classifier(self.demux.counters_of(flow)))
    }

    /// The chunks of a flow that the driver holds (`in_use`); `None` if the flow is closed.
    pub(crate) fn balance(&self, flow: FlowNo) -> Option<Balance> {
        let known = self.flows.get(flow.0 as usize)?.as_ref()?;
        Some(known.ring.balance())
    }

    /// The demultiplexer, which classifies received frames to flows.
    pub fn demux(&mut self) -> &mut Demux {
        &mut self.demux
    }

    /// Whether [`Datapath::poll_disconnected`] would return a program.
    pub(crate) fn has_disconnected(&self) -> bool {
        !self.disconnected.is_empty()
    }

    /// The next program that violated the protocol, with the violation; `None` if there is none.
    pub(crate) fn poll_disconnected(&mut self) -> Option<Disconnected> {
        self.disconnected.pop()
    }

    /// Sets since when the caller could not call [`Datapath::transmit`], for its next call: the
    /// later one of the time of its last call, and the time at which the caller had to wake from
    /// its last sleep. A record that the next call finds may have been submitted at any time since
    /// then.
    pub fn set_unread_since(&mut self, since: Instant) {
        self.scheduler.set_unread_since(since);
    }

    /// Reads the programs' submissions and passes due packets to `sink`, at most `BATCH`. Returns
    /// when the next call is needed. The caller then flushes the NIC, calls [`Datapath::all_sent`],
    /// and calls [`Datapath::publish`], which notifies programs and takes long.
    pub fn transmit(&mut self, sink: &mut impl FrameSink, now: Instant) -> Next {
        if self.in_flight.len() > 2 * MAX_IN_FLIGHT {
            self.completed(self.in_flight.len() - MAX_IN_FLIGHT, now);
        }
        if self.has_resets() {
            self.send_due_resets(sink, now);
        }
        if sink.joins() != self.link_joins {
            self.set_joins(sink.joins(), self.most_joined);
        }
        self.end_pauses(now);
        self.redirected.end_holds(&mut self.scheduler, now);
        self.find_heads(now);
        let room = match self.link_is_up {
            true => sink.room(),
            false => BATCH,
        };
        for _ in 0..room.min(BATCH) {
            if !self.choose_next(now) {
                break;
            }
        }
        self.send_chosen(sink, now);
        sink.release();
        self.publish_rings();
        for number in &self.to_notify {
            if let Some(program) = self.programs.get_mut(*number) {
                self.shared_budget.count_active(&mut program.active, now);
            }
        }
        let next = match self.scheduler.poll_timeout() {
            _ if self.handled < self.noticed.len() => Next::Again,
            Some(at) if at <= now && room == 0 => Next::Full,
            Some(at) if at <= now => Next::Again,
            Some(at) => Next::Wait(at),
            None => Next::Idle,
        };
        let next = self.resets.limit(self.paused.limit(next, now));
        self.redirected.limit(next)
    }

    /// How long the link will still be busy at `at` with packets that were sent ahead of time.
    #[inline]
    pub(crate) fn link_busy_after(&self, at: Instant) -> Nanos {
        let busy = self.scheduler.link_busy_after(at);
        // The end of a hold or of a pause can be long before the link is free.
        busy.min(self.scheduler.ahead())
    }

    /// Publishes moved ring indices before the flush, while they are in the cache. After the flush,
    /// with many flows, all of them would be read from memory again.
    fn publish_rings(&mut self) {
        let Datapath {
            touched,
            flows,
            programs,
            to_notify,
            ..
        } = self;
        touched.retain(|number| match flows.get_mut(*number as usize) {
            Some(Some(flow)) => flow.publish_indices(),
            _ => false,
        });
        if touched.is_empty() {
            return;
        }
        // A fence waits for all stores before it, so there is one for all flows.
        fence_before_notices();
        for number in touched.drain(..) {
            let Some(Some(flow)) = flows.get_mut(number as usize) else {
                continue;
            };
            flow.ring.raise_notice();
            if let Some(program) = programs.get_mut(flow.program) {
                if flow.take_new_head() {
                    program.wakeup_credit.refund();
                }
                if !std::mem::replace(&mut program.is_to_notify, true) {
                    to_notify.push(flow.program);
                }
            }
        }
    }

    /// Publishes moved ring indices, notifies programs that sleep, and disconnects those that
    /// violated the protocol. Call this after sending and receiving.
    pub fn publish(&mut self) {
        self.publish_rings();
        // Once per program: checking whether a program sleeps takes longer than publishing.
        while let Some(number) = self.to_notify.pop() {
            if let Some(program) = self.programs.get_mut(number) {
                program.is_to_notify = false;
                self.doorbells.notify(&mut program.doorbell);
            }
        }
        while let Some((program, violation)) = self.violations.pop() {
            let known = self.programs.get_mut(program);
            let Some(known) = known.filter(|known| !known.disconnected) else {
                continue;
            };
            known.disconnected = true;
            known.memory.mark_disconnected(&violation);
            self.doorbells.write(&mut known.doorbell);
            for number in known.slots.iter().flatten() {
                if let Some(Some(flow)) = self.flows.get_mut(*number as usize) {
                    flow.ignore();
                }
            }
            self.disconnected.push(Disconnected { program, violation });
        }
    }

    /// The attached programs.
    pub(crate) fn programs(&self) -> impl Iterator<Item = ProgramNo> {
        self.programs.numbers()
    }

    /// Panics if the state contradicts itself. For tests: the call checks every flow.
    pub fn invariants(&self) {
        self.scheduler.invariants();
        self.demux.invariants();
        for (number, flow) in self.flows.iter().enumerate() {
            let Some(flow) = flow else { continue };
            flow.invariants();
            let program = self.programs.get(flow.program);
            let slots = &program.expect("a flow has its program").slots;
            assert_eq!(
                slots[flow.ring.slot() as usize],
                Some(number as u32),
                "its slot"
            );
        }
    }

    fn flows_of(&self, program: ProgramNo) -> impl Iterator<Item = FlowNo> {
        let slots = self.programs.get(program).map(|program| &program.slots);
        slots
            .into_iter()
            .flatten()
            .flatten()
            .map(|number| FlowNo(*number))
    }
}

/// The longest packet of joined segments on a link of this rate, in bytes: others on the link wait
/// for all of it. 0 if it would hold only one segment.
fn most_joined(rate: Rate) -> usize {
    match usize::try_from(rate.bytes_in(LONGEST_JOINED).0) {
        Ok(bytes) if bytes < 2 * FRAME => 0,
        bytes => bytes.unwrap_or(usize::MAX),
    }
}

/// Most packets per iteration. Between iterations the kernel's memory falls out of the cache: with
/// twice the kernel's batch a packet takes 10 % less time, with four times no less than that, and
/// all other flows would wait longer.
pub(crate) const BATCH: usize = 64;
/// The longest time for which joined segments occupy the link.
const LONGEST_JOINED: Nanos = Nanos(20_000);
/// Most noticed flows per iteration. Later iterations handle the others.
pub(crate) const FLOWS_PER_ITERATION: usize = 128;

#[cfg(test)]
mod tests;
