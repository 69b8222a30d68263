//! The world and its main loop: flows, a link and optionally a processor go in; a [`Report`] comes
//! out. [`World::run`] fails with [`WorldError`] if the world is invalid.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use netnice_core::admission::timing::Processor;
use netnice_core::contract::{Channel, Clause, Contract, Slice, Weight};
use netnice_core::policer::{Observation, Policer};
use netnice_core::sched::{Class, Guarantee, Overload, SchedulerError, ServedAs, Service, Wire};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};

use crate::entry::{Entry, Fate};
use crate::report::{FlowReport, Report};
use crate::sound::{LONGEST_BLOCK, WorldError};
use crate::source::{Source, Spring};
use crate::station::{Item, Left, Look, Station};
use crate::{Random, scenario::ScenarioError};

/// A link, optionally a processor before it, and flows.
#[derive(Clone, Debug)]
pub struct World {
    /// The link.
    pub wire: Wire,
    /// Makes packets of messages; `None`: messages are packets at once.
    pub processor: Option<Processor>,
    /// A deliberately overbooked slice, for the flows with a class.
    pub overbooked: Option<Overbooked>,
    /// The flows.
    pub flows: Vec<Flow>,
    /// Determines all random numbers.
    pub seed: u64,
}

/// A slice that flows share by classes of static priority, and inside a class in proportion to
/// their requests (paper CELL, section 4.5).
#[derive(Clone, Debug)]
pub struct Overbooked {
    /// The shared slice.
    pub slice: Slice,
    /// The classes, the highest first.
    pub classes: Vec<Class>,
}

/// A flow: its contract and its traffic.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The name in reports.
    pub name: String,
    /// The service by the scheduler.
    pub service: Service,
    /// The class in the overbooked slice, for a flow with a cell contract. `None`, or in a world
    /// without such a slice: the flow is served on its own. Not behind a processor.
    pub class: Option<usize>,
    /// The offered traffic.
    pub source: Source,
    /// When the traffic begins.
    pub start: Nanos,
    /// When the traffic ends; messages that still wait are dropped.
    pub stop: Option<Nanos>,
    /// How many messages may wait; for a channel, those that wait for processing.
    pub queue: usize,
    /// What a channel does with messages beyond its contract; `None`: all are accepted within
    /// `queue`. Not for a greedy source, which never sends more than it may.
    pub overload: Option<Overload>,
    /// The part of a channel's deadline for processing, behind a processor; `None`: handlers have
    /// the whole deadline, as in the paper RTC.
    pub processing: Option<Nanos>,
    /// Checks its packets by the times at which they begin on the wire.
    pub judge: Option<Policer>,
}

impl Flow {
    /// A flow under a contract, over the whole time, with unlimited queue, checked against the
    /// contract where possible. Fails with [`ScenarioError::NoEffect`] for a clause that does not
    /// concern sending.
    pub fn new(name: &str, contract: &str, source: Source) -> Result<Flow, ScenarioError> {
        let contract = match contract {
            "" => Contract::default(),
            text => text.parse()?,
        };
        let named = contract.as_change().clauses();
        if let Some(clause) = named.into_iter().find(|clause| NO_EFFECT.contains(clause)) {
            let flow = name.to_string();
            return Err(ScenarioError::NoEffect { flow, clause });
        }
        Ok(Flow {
            name: name.to_string(),
            service: Service::of(&contract)?,
            class: None,
            source,
            start: Nanos(0),
            stop: None,
            queue: usize::MAX,
            overload: None,
            processing: None,
            // A channel is checked by its deadlines.
            judge: match contract.channel() {
                Some(_) => None,
                None => Policer::contract(&contract).ok(),
            },
        })
    }

    /// The same flow in a class of the overbooked slice.
    pub fn inside(self, class: usize) -> Flow {
        Flow {
            class: Some(class),
            ..self
        }
    }

    /// The same flow from `start` on.
    pub fn from(self, start: Nanos) -> Flow {
        Flow { start, ..self }
    }

    /// The same flow until `stop`.
    pub fn until(self, stop: Nanos) -> Flow {
        Flow {
            stop: Some(stop),
            ..self
        }
    }

    /// The contract, if it is a channel.
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
pub struct Sent {
    /// The flow's index in the world.
    pub flow: usize,
    /// Its length.
    pub length: Bytes,
    /// When its first bit is on the wire.
    pub start: Instant,
    /// When its last bit is on the wire.
    pub end: Instant,
    /// The scheduler's reason for its turn.
    pub served_as: ServedAs,
}

impl World {
    /// A link without flows.
    pub fn new(wire: Wire) -> World {
        World {
            wire,
            processor: None,
            overbooked: None,
            flows: Vec::new(),
            seed: 1,
        }
    }

    /// Simulates until `until` and passes each packet that leaves to `watch`. Fails with
    /// [`WorldError`] if the world is invalid.
    pub fn run(&self, until: Nanos, mut watch: impl FnMut(&Sent)) -> Result<Report, WorldError> {
        self.sound()?;
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
    Look,
}

/// The state of a flow.
struct Actor {
    spring: Spring,
    pending: Option<Bytes>,
    stopped: bool,
    greedy: Option<Bytes>,
    channel: Option<Channel>,
    /// The admission state, if the flow has an overload policy.
    entry: Option<Entry>,
    /// The earliest logical arrival of the next message.
    next_logical: u64,
    /// Messages that wait for processing (or for sending, without a processor).
    waiting: usize,
    /// Blocks in processing.
    processing: VecDeque<Item>,
    /// Deadlines of messages that have not left.
    deadlines: VecDeque<u64>,
    judge: Option<Policer>,
    report: FlowReport,
}

struct Run<'a> {
    world: &'a World,
    link: Station,
    processor: Option<Station>,
    actors: Vec<Actor>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    busy: u64,
    /// The time of the next planned `Look`.
    look: u64,
}

impl<'a> Run<'a> {
    fn new(world: &'a World) -> Result<Run<'a>, SchedulerError> {
        let mut link = Station::new(world.wire)?;
        let mut processor = match world.processor {
            Some(_) => Some(Station::new(blocks())?),
            None => None,
        };
        if let Some(inside) = &world.overbooked {
            link.overbook(inside)?;
        }
        let mut random = Random::new(world.seed);
        let mut actors = Vec::new();
        for flow in &world.flows {
            match processor.as_mut().zip(world.processor.as_ref()) {
                None => match (flow.class, flow.service) {
                    (Some(class), Service::Cell(cell))
                        if link.add_member(class, cell)?.is_some() => {}
                    _ => link.add(flow.service)?,
                },
                Some((processor, costs)) => {
                    processor.add(handled(flow, costs))?;
                    link.add(flow.service)?;
                }
            }
            actors.push(Actor::new(flow, random.split()));
        }
        let mut run = Run {
            world,
            link,
            processor,
            actors,
            events: BinaryHeap::new(),
            count: 0,
            busy: 0,
            look: u64::MAX,
        };
        for (at, flow) in world.flows.iter().enumerate() {
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
        if let Some((at, size)) = self.actors[flow].spring.next() {
            self.actors[flow].pending = Some(size);
            self.plan(at, Event::Arrive(flow));
        }
    }

    fn handle(&mut self, now: u64, event: Event) -> Result<(), SchedulerError> {
        match event {
            Event::Arrive(flow) => {
                if let Some(size) = self.actors[flow].pending.take()
                    && !self.actors[flow].stopped
                {
                    self.arrive(flow, size, now)?;
                    self.plan_arrival(flow);
                }
                Ok(())
            }
            Event::Processed(flow) => {
                let done = self.actors[flow].processing.pop_front();
                match done {
                    Some(block) => self.hand_on(flow, block, now),
                    None => Ok(()),
                }
            }
            Event::Offer(flow) => self.let_in(flow, now),
            Event::Stop(flow) => self.stop(flow, now),
            Event::Look => {
                self.look = u64::MAX;
                Ok(())
            }
        }
    }

    /// A message arrives; it is queued if there is room.
    fn arrive(&mut self, flow: usize, size: Bytes, now: u64) -> Result<(), SchedulerError> {
        let actor = &mut self.actors[flow];
        actor.report.offered += 1;
        if let Some(entry) = &mut actor.entry {
            if entry.offer(size) {
                self.let_in(flow, now)?;
            }
            let actor = &mut self.actors[flow];
            let is_held = actor.entry.as_ref().is_some_and(|one| one.outside() > 0);
            actor.report.held += u64::from(is_held);
            return Ok(());
        }
        if actor.waiting >= self.world.flows[flow].queue {
            actor.report.dropped += 1;
            return Ok(());
        }
        let logical = actor.channel.map(|channel| {
            let logical = now.max(actor.next_logical);
            let spacing = 1_000_000_000_u64.div_ceil(u64::from(channel.rmax().get()));
            actor.next_logical = logical.saturating_add(spacing);
            logical
        });
        self.enter(flow, size, now, logical)
    }

    /// Admits waiting messages as the overload policy allows.
    fn let_in(&mut self, flow: usize, now: u64) -> Result<(), SchedulerError> {
        while let Some(entry) = &mut self.actors[flow].entry {
            match entry.next(now) {
                Fate::In { size, arrival } => self.enter(flow, size, now, Some(arrival))?,
                Fate::Dropped => self.actors[flow].report.dropped += 1,
                Fate::Again(at) => {
                    self.plan(at, Event::Offer(flow));
                    break;
                }
                Fate::Wait => break,
            }
        }
        Ok(())
    }

    /// Queues a message. A channel's message has a logical arrival, which may be in the future.
    fn enter(
        &mut self,
        flow: usize,
        size: Bytes,
        now: u64,
        logical: Option<u64>,
    ) -> Result<(), SchedulerError> {
        let actor = &mut self.actors[flow];
        actor.waiting += 1;
        let bound = actor.channel.map(|channel| channel.deadline().0);
        let ends = logical
            .zip(bound)
            .map(|(logical, bound)| logical.saturating_add(bound));
        actor.deadlines.extend(ends);
        let message = Item {
            length: size,
            begins: match actor.entry {
                Some(_) => logical,
                None => logical.map(|_| now),
            },
            logical,
            ends,
            bytes: size.0,
        };
        if actor.greedy.is_some() {
            // A second message behind the head, so that the queue is never empty.
            self.process(flow, message, now)?;
        }
        self.process(flow, message, now)
    }

    /// Passes a message to the processor in blocks, or to the link.
    fn process(&mut self, flow: usize, message: Item, now: u64) -> Result<(), SchedulerError> {
        let (Some(costs), Some(processor)) = (&self.world.processor, &mut self.processor) else {
            return self.hand_on(flow, message, now);
        };
        let block = u64::from(costs.block.get()).saturating_mul(costs.largest.0);
        let mut rest = message.bytes;
        let mut first = true;
        loop {
            let bytes = rest.min(block);
            rest -= bytes;
            let takes = processing(packets(bytes, costs), first, costs);
            let item = Item {
                length: Bytes(takes.0),
                begins: message.begins.filter(|_| first),
                logical: message.logical,
                ends: message.ends.filter(|_| rest == 0),
                bytes,
            };
            processor.push(flow, item, now)?;
            first = false;
            if rest == 0 {
                return Ok(());
            }
        }
    }

    /// Cuts a message, or a block of one, into packets for the link.
    fn hand_on(&mut self, flow: usize, item: Item, now: u64) -> Result<(), SchedulerError> {
        let largest = match self.world.processor {
            Some(costs) => costs.largest.0.min(self.world.wire.longest.0),
            None => self.world.wire.longest.0,
        };
        let mut rest = item.bytes;
        // Behind a processor a message keeps its logical arrival from there. Its later blocks
        // continue the message.
        let mut begins = match self.processor {
            Some(_) => item.begins.and(item.logical),
            None => item.begins,
        };
        loop {
            let bytes = rest.min(largest.max(1));
            rest -= bytes;
            let packet = Item {
                length: Bytes(bytes),
                begins: begins.take(),
                logical: item.logical,
                ends: item.ends.filter(|_| rest == 0),
                bytes,
            };
            self.link.push(flow, packet, now)?;
            if rest == 0 {
                return Ok(());
            }
        }
    }

    fn stop(&mut self, flow: usize, now: u64) -> Result<(), SchedulerError> {
        self.actors[flow].stopped = true;
        self.actors[flow].deadlines.clear();
        self.actors[flow].waiting = 0;
        if let Some(entry) = &mut self.actors[flow].entry {
            entry.close();
        }
        self.link.flush(flow, now)?;
        if let Some(processor) = &mut self.processor {
            processor.flush(flow, now)?;
        }
        Ok(())
    }

    /// Sends what is due now.
    fn drive(
        &mut self,
        now: u64,
        until: u64,
        watch: &mut impl FnMut(&Sent),
    ) -> Result<(), SchedulerError> {
        let mut looks = [Look::Never; 2];
        if let Some(mut processor) = self.processor.take() {
            looks[0] = loop {
                match processor.next(now) {
                    Ok(left) => self.begun(&mut processor, left, now)?,
                    Err(look) => break look,
                }
            };
            self.processor = Some(processor);
        }
        looks[1] = loop {
            match self.link.next(now) {
                Ok(left) => self.left(left, now, until, watch)?,
                Err(look) => break look,
            }
        };
        for look in looks {
            if let Look::At(at) = look
                && at < self.look
            {
                self.look = at;
                self.plan(at, Event::Look);
            }
        }
        Ok(())
    }

    /// The processor has begun a block.
    fn begun(
        &mut self,
        processor: &mut Station,
        left: Left,
        now: u64,
    ) -> Result<(), SchedulerError> {
        if left.item.begins.is_some() || self.actors[left.flow].channel.is_none() {
            self.left_the_queue(left.flow, now);
        }
        let actor = &mut self.actors[left.flow];
        actor.processing.push_back(left.item);
        if actor.greedy.is_some() && !actor.stopped {
            processor.push(left.flow, left.item, now)?;
        }
        self.plan(left.departure.end.0, Event::Processed(left.flow));
        Ok(())
    }

    /// A message has left its queue: a sender that waits for room offers again.
    fn left_the_queue(&mut self, flow: usize, now: u64) {
        let actor = &mut self.actors[flow];
        actor.waiting = actor.waiting.saturating_sub(1);
        if actor.entry.as_mut().is_some_and(Entry::handle_sent) {
            self.plan(now, Event::Offer(flow));
        }
    }

    /// A packet has left the link.
    fn left(
        &mut self,
        left: Left,
        now: u64,
        until: u64,
        watch: &mut impl FnMut(&Sent),
    ) -> Result<(), SchedulerError> {
        let (departure, has_processor) = (left.departure, self.processor.is_some());
        let actor = &mut self.actors[left.flow];
        if let (Some(_), false, false) = (actor.greedy, has_processor, actor.stopped) {
            self.link.push(left.flow, left.item, now)?;
        }
        if !has_processor && (left.item.ends.is_some() || actor.channel.is_none()) {
            self.left_the_queue(left.flow, now);
        }
        let actor = &mut self.actors[left.flow];
        if let Some(deadline) = left.item.ends {
            actor.report.left(departure.end.0, deadline);
            actor.deadlines.pop_front();
        }
        actor.report.packets += 1;
        actor.report.bytes += departure.length.0;
        if let Some(judge) = &mut actor.judge {
            let seen = Observation {
                at: departure.start,
                length: departure.length,
            };
            if let Err(violation) = judge.handle(seen) {
                actor.report.violations += 1;
                actor.report.first_violation.get_or_insert(violation);
            }
        }
        let began = departure.start.0.min(until);
        self.busy += departure.end.0.min(until) - began;
        watch(&Sent {
            flow: left.flow,
            length: departure.length,
            start: departure.start,
            end: departure.end,
            served_as: departure.served_as,
        });
        Ok(())
    }

    fn report(self, until: Nanos) -> Report {
        let finish = |(at, mut actor): (usize, Actor)| {
            let late = actor.deadlines.iter().filter(|due| **due < until.0);
            actor.report.missed += late.count() as u64;
            let queued = self.link.waiting(at);
            let outside = actor.entry.as_ref().map_or(0, Entry::outside);
            actor.report.waiting = (actor.waiting.max(queued) + outside) as u64;
            actor.report
        };
        Report {
            flows: self.actors.into_iter().enumerate().map(finish).collect(),
            until: Instant(until.0),
            busy: Nanos(self.busy),
        }
    }
}

impl Actor {
    fn new(flow: &Flow, random: Random) -> Actor {
        Actor {
            spring: Spring::new(flow.source.clone(), flow.start, random),
            pending: None,
            stopped: false,
            greedy: match flow.source {
                Source::Greedy { size } => Some(size),
                _ => None,
            },
            channel: flow.channel(),
            entry: flow
                .channel()
                .zip(flow.overload)
                .map(|(channel, policy)| Entry::new(&channel, policy)),
            next_logical: 0,
            waiting: 0,
            processing: VecDeque::new(),
            deadlines: VecDeque::new(),
            judge: flow.judge.clone(),
            report: FlowReport {
                name: flow.name.clone(),
                ..FlowReport::default()
            },
        }
    }
}

/// The service of a flow's handler. Contracts concern the link: on the processor a channel has its
/// deadline, and its longest message's processing time as its size. All other flows share the rest,
/// whatever their rates and bursts.
fn handled(flow: &Flow, costs: &Processor) -> Service {
    let best_effort = Service::Share {
        min: None,
        max: None,
        weight: Weight::default(),
    };
    let Some(channel) = flow.channel() else {
        return best_effort;
    };
    let (mmax, rmax, bmax) = (channel.mmax().0, channel.rmax(), channel.bmax());
    let takes = Bytes(processing(packets(mmax, costs), true, costs).0.max(1));
    let deadline = flow.processing.unwrap_or(channel.deadline());
    Channel::new(takes, rmax, bmax, deadline).map_or(best_effort, Service::Channel)
}

/// Number of packets for a message or a block of one.
pub(crate) fn packets(bytes: u64, costs: &Processor) -> u64 {
    bytes.div_ceil(costs.largest.0.max(1)).max(1)
}

/// Processing time of `packets` packets; `with_first`: the first packet of a message is among them.
pub(crate) fn processing(packets: u64, with_first: bool, costs: &Processor) -> Nanos {
    let each = costs.later.0.saturating_add(costs.link_scheduling.0);
    let switching = costs.switch.0.saturating_add(costs.cache_miss.0);
    let begun = match with_first {
        true => switching
            .saturating_mul(2)
            .saturating_add(costs.first.0.saturating_sub(costs.later.0)),
        false => 0,
    };
    Nanos(packets.saturating_mul(each).saturating_add(begun))
}

/// A processor as a link: a byte of a block is a nanosecond.
fn blocks() -> Wire {
    Wire {
        longest: Bytes(LONGEST_BLOCK.0),
        ..Wire::new(Rate::new(8_000_000_000).unwrap_or(Rate::MAX))
    }
}

/// Clauses on receiving, another link, the order in the left-over, and processors; these are not
/// simulated.
const NO_EFFECT: [Clause; 5] = [
    Clause::Down,
    Clause::MinDown,
    Clause::On,
    Clause::Priority,
    Clause::Cpu,
];
