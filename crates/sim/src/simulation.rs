//! The simulation and its event loop: flows, a link and optionally a processor go in, and a
//! [`Report`] comes out. [`Simulation::run`] fails with [`SimulationError`] if the simulation is
//! invalid. [`SimFlow::new`] fails with [`ScenarioError`] if a contract is invalid or cannot be
//! simulated.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use netnice_core::admission::timing::Processor;
use netnice_core::contract::{Channel, Clause, Contract, Weight};
use netnice_core::policer::{Observation, Policer};
use netnice_core::sched::{
    EarlyOrder, Guarantee, Overload, SchedulerError, ServedAs, Service, Wire,
};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};

use crate::Random;
use crate::admission::{Admission, AdmissionQueue, link_service};
use crate::error::{LONGEST_BLOCK, ScenarioError, SimulationError};
use crate::queueing::{Item, LeftItem, NextCall, OverbookedSlice, SchedulerQueues};
use crate::report::{FlowReport, Report};
use crate::source::{Source, SourceState};

/// A link, optionally a processor before it, and flows.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The link.
    pub wire: Wire,
    /// The processor that turns messages into packets; `None` if that takes no time.
    pub processor: Option<Processor>,
    /// Which messages the processor handles before their logical arrival; none by default.
    pub early: EarlyProcessing,
    /// An overbooked slice, which flows with a class share; `None` if there is none.
    pub overbooked: Option<OverbookedSlice>,
    /// The flows, in the order of reports.
    pub flows: Vec<SimFlow>,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// Which messages of channels a processor handles before their logical arrival (paper RTC:
/// work-conserving processing). The link behind the processor keeps to [`Wire::horizon`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EarlyProcessing {
    /// How long before its logical arrival a message may be handled. With zero none is early.
    pub horizon: Nanos,
    /// Whether early messages come after the flows without a deadline or before them.
    pub order: EarlyOrder,
}

/// A flow: its contract and its traffic.
#[derive(Clone, Debug)]
pub struct SimFlow {
    /// The name in reports.
    pub name: String,
    /// The service by the scheduler.
    pub service: Service,
    /// The class in the overbooked slice, from 0; only for a cell contract and without a processor.
    /// The flow is served on its own if this is `None`, or if the simulation has no such slice.
    pub class: Option<usize>,
    /// The offered traffic.
    pub source: Source,
    /// Time at which the traffic begins.
    pub start: Nanos,
    /// Time at which the traffic ends and waiting messages are removed, without being counted as
    /// dropped; `None` for never.
    pub stop: Option<Nanos>,
    /// Largest number of waiting messages. A message waits until its last packet leaves; behind a
    /// processor, until the processing of its first block begins.
    pub queue: usize,
    /// The policy for messages of a channel beyond its contract. `None` accepts all messages within
    /// `queue`. A policy is invalid without a channel, with a limited `queue`, or with a greedy
    /// source, which never exceeds its contract ([`SimulationError`]).
    pub overload: Option<Overload>,
    /// The part of a channel's deadline for processing, in a simulation with a processor. With
    /// `None` the processor has the whole deadline, as in the paper RTC.
    pub processing: Option<Nanos>,
    /// The check of the flow's packets, by the times at which they begin on the wire; `None` for no
    /// check.
    pub policer: Option<Policer>,
}

impl SimFlow {
    /// A flow under a contract, over the whole time, with unlimited queue. Its packets are checked
    /// against a limit or a cell contract if the contract has exactly one of these and no channel;
    /// a channel is checked by its deadlines only. An empty contract text is best effort.
    ///
    /// # Errors
    /// [`ScenarioError`] if the contract does not parse, if one flow cannot have it, or if a clause
    /// has no effect in a simulation.
    pub fn new(name: &str, contract: &str, source: Source) -> Result<SimFlow, ScenarioError> {
        let contract = match contract {
            "" => Contract::default(),
            text => text.parse()?,
        };
        let named = contract.as_change().clauses();
        if let Some(clause) = named.into_iter().find(|clause| NO_EFFECT.contains(clause)) {
            let flow = name.to_string();
            return Err(ScenarioError::NoEffect { flow, clause });
        }
        Ok(SimFlow {
            name: name.to_string(),
            service: Service::of(&contract)?,
            class: None,
            source,
            start: Nanos(0),
            stop: None,
            queue: usize::MAX,
            overload: None,
            processing: None,
            policer: match contract.channel() {
                Some(_) => None,
                None => Policer::contract(&contract).ok(),
            },
        })
    }

    /// The same flow in a class of the overbooked slice, counted from 0.
    pub fn inside(self, class: usize) -> SimFlow {
        SimFlow {
            class: Some(class),
            ..self
        }
    }

    /// The same flow with traffic from `start` on.
    pub fn from(self, start: Nanos) -> SimFlow {
        SimFlow { start, ..self }
    }

    /// The same flow with traffic until `stop`.
    pub fn until(self, stop: Nanos) -> SimFlow {
        SimFlow {
            stop: Some(stop),
            ..self
        }
    }

    /// The channel of the flow's contract, with or without a limit; `None` if it has no channel.
    pub(crate) fn channel(&self) -> Option<Channel> {
        match self.service {
            Service::Channel(channel)
            | Service::Limited {
                guarantee: Guarantee::Channel(channel),
                ..
            } => Some(channel),
            _ => None,
        }
    }
}

/// A packet that left.
#[derive(Clone, Copy, Debug)]
pub struct SentPacket {
    /// The flow's index in the simulation.
    pub flow: usize,
    /// Bytes of the packet.
    pub length: Bytes,
    /// Time at which its first bit is on the wire.
    pub start: Instant,
    /// Time at which its last bit is on the wire.
    pub end: Instant,
    /// The reason why the scheduler chose the packet.
    pub served_as: ServedAs,
}

impl Simulation {
    /// A link without flows.
    pub fn new(wire: Wire) -> Simulation {
        Simulation {
            wire,
            processor: None,
            early: EarlyProcessing::default(),
            overbooked: None,
            flows: Vec::new(),
            seed: 1,
        }
    }

    /// Simulates the time from 0 to `until` and passes each packet that leaves to `watch`.
    ///
    /// # Errors
    /// [`SimulationError`] if the simulation is invalid.
    pub fn run(
        &self,
        until: Nanos,
        mut watch: impl FnMut(&SentPacket),
    ) -> Result<Report, SimulationError> {
        self.validate()?;
        let mut run = Run::new(self)?;
        while let Some(Reverse((at, _, event))) = run.events.pop() {
            if at > until.0 {
                break;
            }
            run.handle(at, event)?;
            // All events of one instant are handled before any decision.
            while let Some(Reverse((then, _, _))) = run.events.peek()
                && *then == at
                && let Some(Reverse((_, _, event))) = run.events.pop()
            {
                run.handle(at, event)?;
            }
            run.drive(at, until.0, &mut watch)?;
        }
        Ok(run.report(until))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next message of a flow arrives.
    Arrive(usize),
    /// A block of a flow has been processed.
    Processed(usize),
    /// A sender that had to wait offers its message again.
    Offer(usize),
    /// A flow ends.
    Stop(usize),
    /// A packet may be due.
    Poll,
}

/// The state of a flow.
struct FlowState {
    source: SourceState,
    pending: Option<Bytes>,
    stopped: bool,
    greedy: Option<Bytes>,
    channel: Option<Channel>,
    /// The admission state, if the flow has an overload policy.
    admission: Option<AdmissionQueue>,
    /// The earliest logical arrival of the next message.
    next_logical: u64,
    /// Messages that wait for processing (or for sending, without a processor).
    waiting: usize,
    /// Blocks in processing.
    processing: VecDeque<Item>,
    /// Deadlines of messages that have not left.
    deadlines: VecDeque<u64>,
    policer: Option<Policer>,
    report: FlowReport,
}

struct Run<'a> {
    sim: &'a Simulation,
    link: SchedulerQueues,
    processor: Option<SchedulerQueues>,
    flows: Vec<FlowState>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    busy: u64,
    /// The time of the next planned `Poll`.
    next_poll: u64,
}

impl<'a> Run<'a> {
    fn new(sim: &'a Simulation) -> Result<Run<'a>, SchedulerError> {
        let mut link = SchedulerQueues::new(sim.wire)?;
        let mut processor = match sim.processor {
            Some(_) => Some(SchedulerQueues::new(blocks(&sim.early))?),
            None => None,
        };
        if let Some(overbooked) = &sim.overbooked {
            link.overbook(overbooked)?;
        }
        let mut random = Random::new(sim.seed);
        let on_link = |flow: &SimFlow, behind: bool| {
            link_service(flow.service, flow.overload, behind, flow.processing)
        };
        let mut flows = Vec::new();
        for flow in &sim.flows {
            match processor.as_mut().zip(sim.processor.as_ref()) {
                None => match (flow.class, flow.service) {
                    (Some(class), Service::Cell(cell))
                        if link.add_member(class, cell)?.is_some() => {}
                    _ => link.add(on_link(flow, false))?,
                },
                Some((processor, costs)) => {
                    processor.add(handler_service(flow, costs))?;
                    link.add(on_link(flow, true))?;
                }
            }
            flows.push(FlowState::new(flow, random.split()));
        }
        let mut run = Run {
            sim,
            link,
            processor,
            flows,
            events: BinaryHeap::new(),
            count: 0,
            busy: 0,
            next_poll: u64::MAX,
        };
        for (at, flow) in sim.flows.iter().enumerate() {
            run.plan_arrival(at);
            if let Some(stop) = flow.stop {
                run.plan(stop.0, Event::Stop(at));
            }
        }
        Ok(run)
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn plan_arrival(&mut self, flow: usize) {
        if let Some((at, size)) = self.flows[flow].source.next() {
            self.flows[flow].pending = Some(size);
            self.plan(at, Event::Arrive(flow));
        }
    }

    fn handle(&mut self, now: u64, event: Event) -> Result<(), SchedulerError> {
        match event {
            Event::Arrive(flow) => {
                if let Some(size) = self.flows[flow].pending.take()
                    && !self.flows[flow].stopped
                {
                    self.arrive(flow, size, now)?;
                    self.plan_arrival(flow);
                }
                Ok(())
            }
            Event::Processed(flow) => {
                let done = self.flows[flow].processing.pop_front();
                match done {
                    Some(block) => self.cut_into_packets(flow, block, now),
                    None => Ok(()),
                }
            }
            Event::Offer(flow) => self.admit_waiting(flow, now),
            Event::Stop(flow) => self.stop(flow, now),
            Event::Poll => {
                self.next_poll = u64::MAX;
                Ok(())
            }
        }
    }

    /// A message arrives; it is queued if there is room.
    fn arrive(&mut self, flow: usize, size: Bytes, now: u64) -> Result<(), SchedulerError> {
        let state = &mut self.flows[flow];
        state.report.offered += 1;
        if let Some(admission) = &mut state.admission {
            if admission.offer(size) {
                self.admit_waiting(flow, now)?;
            }
            let state = &mut self.flows[flow];
            let is_held = state
                .admission
                .as_ref()
                .is_some_and(|one| one.held_back() > 0);
            state.report.held += u64::from(is_held);
            return Ok(());
        }
        if state.waiting >= self.sim.flows[flow].queue {
            state.report.dropped += 1;
            return Ok(());
        }
        let logical = state.channel.map(|channel| {
            let logical = now.max(state.next_logical);
            let spacing = 1_000_000_000_u64.div_ceil(u64::from(channel.rmax().get()));
            state.next_logical = logical.saturating_add(spacing);
            logical
        });
        self.enqueue_message(flow, size, now, logical)
    }

    /// Admits waiting messages as the overload policy allows.
    fn admit_waiting(&mut self, flow: usize, now: u64) -> Result<(), SchedulerError> {
        while let Some(admission) = &mut self.flows[flow].admission {
            match admission.next(now) {
                Admission::Admitted { size, arrival } => {
                    self.enqueue_message(flow, size, now, Some(arrival))?
                }
                Admission::Dropped => self.flows[flow].report.dropped += 1,
                Admission::RetryAt(at) => {
                    self.plan(at, Event::Offer(flow));
                    break;
                }
                Admission::Wait => break,
            }
        }
        Ok(())
    }

    /// Queues a message. A channel's message has a logical arrival, which may be in the future.
    fn enqueue_message(
        &mut self,
        flow: usize,
        size: Bytes,
        now: u64,
        logical: Option<u64>,
    ) -> Result<(), SchedulerError> {
        let state = &mut self.flows[flow];
        state.waiting += 1;
        let bound = state.channel.map(|channel| channel.deadline().0);
        let ends = logical
            .zip(bound)
            .map(|(logical, bound)| logical.saturating_add(bound));
        state.deadlines.extend(ends);
        let message = Item {
            length: size,
            begins: match state.admission {
                Some(_) => logical,
                None => logical.map(|_| now),
            },
            logical,
            ends,
            bytes: size.0,
            first: true,
            last: true,
        };
        if state.greedy.is_some() {
            // A second message behind the head, so that the queue is never empty.
            self.process(flow, message, now)?;
        }
        self.process(flow, message, now)
    }

    /// Passes a message to the processor in blocks, or to the link.
    fn process(&mut self, flow: usize, message: Item, now: u64) -> Result<(), SchedulerError> {
        let (Some(costs), Some(processor)) = (&self.sim.processor, &mut self.processor) else {
            return self.cut_into_packets(flow, message, now);
        };
        for block in message.blocks(costs) {
            processor.push(flow, block, now)?;
        }
        Ok(())
    }

    /// Cuts a message, or a block of one, into packets for the link.
    fn cut_into_packets(
        &mut self,
        flow: usize,
        item: Item,
        now: u64,
    ) -> Result<(), SchedulerError> {
        let largest = match self.sim.processor {
            Some(costs) => costs.largest.min(self.sim.wire.longest),
            None => self.sim.wire.longest,
        };
        // Behind a processor a message keeps its logical arrival from there. Its later blocks
        // continue the message.
        let begins = match self.processor {
            Some(_) => item.begins.and(item.logical),
            None => item.begins,
        };
        let item = Item { begins, ..item };
        for packet in item.packets(largest) {
            self.link.push(flow, packet, now)?;
        }
        Ok(())
    }

    fn stop(&mut self, flow: usize, now: u64) -> Result<(), SchedulerError> {
        self.flows[flow].stopped = true;
        self.flows[flow].deadlines.clear();
        self.flows[flow].waiting = 0;
        if let Some(admission) = &mut self.flows[flow].admission {
            admission.close();
        }
        self.link.flush(flow, now)?;
        if let Some(processor) = &mut self.processor {
            processor.flush(flow, now)?;
        }
        Ok(())
    }

    /// Begins the processing and the transmissions that are due now, and plans the next poll.
    fn drive(
        &mut self,
        now: u64,
        until: u64,
        watch: &mut impl FnMut(&SentPacket),
    ) -> Result<(), SchedulerError> {
        let mut next_calls = [NextCall::Never; 2];
        if let Some(mut processor) = self.processor.take() {
            next_calls[0] = loop {
                match processor.next(now) {
                    Ok(left) => self.block_begun(&mut processor, left, now)?,
                    Err(next_call) => break next_call,
                }
            };
            self.processor = Some(processor);
        }
        next_calls[1] = loop {
            match self.link.next(now) {
                Ok(left) => self.packet_left(left, now, until, watch)?,
                Err(next_call) => break next_call,
            }
        };
        for next_call in next_calls {
            if let NextCall::At(at) = next_call
                && at < self.next_poll
            {
                self.next_poll = at;
                self.plan(at, Event::Poll);
            }
        }
        Ok(())
    }

    /// The processor has begun a block.
    fn block_begun(
        &mut self,
        processor: &mut SchedulerQueues,
        left: LeftItem,
        now: u64,
    ) -> Result<(), SchedulerError> {
        if left.item.first {
            self.message_left_queue(left.flow, now);
        }
        let state = &mut self.flows[left.flow];
        state.processing.push_back(left.item);
        if state.greedy.is_some() && !state.stopped {
            processor.push(left.flow, left.item, now)?;
        }
        self.plan(left.departure.end.0, Event::Processed(left.flow));
        Ok(())
    }

    /// A message has left its queue: a sender that waits for room offers again.
    fn message_left_queue(&mut self, flow: usize, now: u64) {
        let state = &mut self.flows[flow];
        state.waiting = state.waiting.saturating_sub(1);
        if state
            .admission
            .as_mut()
            .is_some_and(AdmissionQueue::handle_sent)
        {
            self.plan(now, Event::Offer(flow));
        }
    }

    /// A packet has left the link.
    fn packet_left(
        &mut self,
        left: LeftItem,
        now: u64,
        until: u64,
        watch: &mut impl FnMut(&SentPacket),
    ) -> Result<(), SchedulerError> {
        let (departure, has_processor) = (left.departure, self.processor.is_some());
        let state = &mut self.flows[left.flow];
        if let (Some(_), false, false) = (state.greedy, has_processor, state.stopped) {
            self.link.push(left.flow, left.item, now)?;
        }
        if !has_processor && left.item.last {
            self.message_left_queue(left.flow, now);
        }
        let state = &mut self.flows[left.flow];
        if let Some(deadline) = left.item.ends {
            state.report.left(departure.end.0, deadline);
            state.deadlines.pop_front();
        }
        state.report.packets += 1;
        state.report.bytes += departure.length.0;
        if let Some(policer) = &mut state.policer {
            let observation = Observation {
                at: departure.start,
                length: departure.length,
            };
            if let Err(violation) = policer.handle(observation) {
                state.report.violations += 1;
                state.report.first_violation.get_or_insert(violation);
            }
        }
        let began = departure.start.0.min(until);
        self.busy += departure.end.0.min(until) - began;
        watch(&SentPacket {
            flow: left.flow,
            length: departure.length,
            start: departure.start,
            end: departure.end,
            served_as: departure.served_as,
        });
        Ok(())
    }

    fn report(self, until: Nanos) -> Report {
        let finish = |(at, mut state): (usize, FlowState)| {
            let late = state.deadlines.iter().filter(|due| **due < until.0);
            state.report.missed += late.count() as u64;
            let queued = self.link.waiting(at);
            let held_back = state
                .admission
                .as_ref()
                .map_or(0, AdmissionQueue::held_back);
            state.report.waiting = (state.waiting.max(queued) + held_back) as u64;
            state.report
        };
        Report {
            flows: self.flows.into_iter().enumerate().map(finish).collect(),
            until: Instant(until.0),
            busy: Nanos(self.busy),
        }
    }
}

impl FlowState {
    fn new(flow: &SimFlow, random: Random) -> FlowState {
        FlowState {
            source: SourceState::new(flow.source.clone(), flow.start, random),
            pending: None,
            stopped: false,
            greedy: match flow.source {
                Source::Greedy { size } => Some(size),
                _ => None,
            },
            channel: flow.channel(),
            admission: flow
                .channel()
                .zip(flow.overload)
                // The scheduler serves this policy: every message is queued.
                .filter(|(_, policy)| *policy != Overload::BestEffort)
                .map(|(channel, policy)| AdmissionQueue::new(&channel, policy)),
            next_logical: 0,
            waiting: 0,
            processing: VecDeque::new(),
            deadlines: VecDeque::new(),
            policer: flow.policer.clone(),
            report: FlowReport {
                name: flow.name.clone(),
                ..FlowReport::default()
            },
        }
    }
}

/// The service of a flow's handler. Contracts concern the link: on the processor a channel has its
/// deadline or the part of it for processing, and its longest message's processing time as its
/// size. All other flows share the rest, whatever their rates and bursts.
fn handler_service(flow: &SimFlow, costs: &Processor) -> Service {
    let best_effort = Service::Share {
        min: None,
        max: None,
        weight: Weight::default(),
    };
    let Some(channel) = flow.channel() else {
        return best_effort;
    };
    let (mmax, rmax, bmax) = (channel.mmax().0, channel.rmax(), channel.bmax());
    let takes = Bytes(costs.processing(costs.packets(Bytes(mmax)), true).0.max(1));
    let deadline = flow.processing.unwrap_or(channel.deadline());
    Channel::new(takes, rmax, bmax, deadline).map_or(best_effort, Service::Channel)
}

/// A processor as a link: a byte of a block is a nanosecond.
fn blocks(early: &EarlyProcessing) -> Wire {
    Wire {
        horizon: early.horizon,
        early: early.order,
        longest: Bytes(LONGEST_BLOCK.0),
        ..Wire::new(Rate::new(8_000_000_000).unwrap_or(Rate::MAX))
    }
}

/// Clauses on receiving, another link, the order in the left-over, processors, quotas and hours
/// of the week; these are not simulated.
const NO_EFFECT: [Clause; 8] = [
    Clause::Down,
    Clause::MinDown,
    Clause::On,
    Clause::Priority,
    Clause::Cpu,
    Clause::Quota,
    Clause::When,
    Clause::Delegate,
];
