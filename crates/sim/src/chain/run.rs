//! The event loop of a chain: [`Chain::run`] simulates a chain from time 0 on and returns a
//! [`ChainReport`]. It fails with [`ChainError`] if the chain is invalid.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use netnice_core::contract::{Channel, Weight};
use netnice_core::sched::{SchedulerError, Service, Wire};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};

use super::error::ChainError;
use super::report::{ChainReport, Fate, HopReport, RoutedReport};
use super::supply::ProcessorTime;
use super::topology::{Chain, HandlerTime, Hop, MILLION, Station, StationProcessor};
use crate::Random;
use crate::error::LONGEST_BLOCK;
use crate::queueing::{Item, LeftItem, NextCall, SchedulerQueues};

impl Chain {
    /// Simulates the time from 0 to `until`.
    ///
    /// # Errors
    /// [`ChainError`] if the chain is invalid.
    pub fn run(&self, until: Nanos) -> Result<ChainReport, ChainError> {
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
            while let Some(station) = run.touched.pop_first() {
                run.drive(station, at)?;
            }
        }
        Ok(run.report(until))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The source of a channel gets its next message.
    Message(usize),
    /// A station has processed a block.
    Processed(usize),
    /// A packet has left the link of a station.
    Left(usize),
    /// A packet arrives at the end of a station's cable.
    Arrived(usize),
    /// A station may have to decide.
    Poll(usize),
}

/// A packet of a message.
#[derive(Clone, Copy, Debug)]
struct MessagePacket {
    channel: usize,
    /// The hop that the packet leaves, or goes to; the number of hops for the sink.
    hop: usize,
    /// Number of the message in the channel.
    message: usize,
    /// Number of the packet in the message.
    part: u32,
    bytes: u64,
    last: bool,
    /// The local deadline, in ns; `None` unless this is the last packet, and behind the link.
    deadline: Option<u64>,
}

struct ChannelState {
    fates: Vec<Fate>,
    hops: Vec<HopState>,
    /// What each hop, and then the sink, has of a message whose packets are arriving.
    incoming: Vec<Option<Incoming>>,
}

/// A channel at a station. Times in ns.
struct HopState {
    hop: Hop,
    /// The flow at the station.
    flow: usize,
    /// The least time from one logical arrival to the next.
    spacing: u64,
    /// The earliest logical arrival of the next message.
    earliest: u64,
    /// Complete messages of which a packet is still to be sent, in order.
    queued: VecDeque<usize>,
    /// Number of the next packet of the first of them.
    part: u32,
    messages: usize,
    bytes: u64,
    report: HopReport,
}

/// A message whose packets are arriving.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    message: usize,
    parts: u32,
    bytes: u64,
    /// Further packets are ignored.
    is_dropped: bool,
}

struct Run<'a> {
    chain: &'a Chain,
    stations: Vec<StationState>,
    channels: Vec<ChannelState>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    /// Stations that have to decide at this instant.
    touched: BTreeSet<usize>,
}

impl<'a> Run<'a> {
    fn new(chain: &'a Chain) -> Result<Run<'a>, ChainError> {
        let mut random = Random::new(chain.seed);
        let stations: Result<Vec<StationState>, ChainError> = chain
            .stations
            .iter()
            .map(|station| StationState::new(station, random.split()))
            .collect();
        let mut run = Run {
            chain,
            stations: stations?,
            channels: Vec::new(),
            events: BinaryHeap::new(),
            count: 0,
            touched: BTreeSet::new(),
        };
        for (channel, routed) in chain.channels.iter().enumerate() {
            let mut hops = Vec::new();
            for (number, hop) in routed.hops.iter().enumerate() {
                let station = &chain.stations[hop.station];
                let state = &mut run.stations[hop.station];
                let flow = state.add(station, hop, &routed.contract, (channel, number))?;
                let spacing = if station.spaces { routed.spacing() } else { 0 };
                hops.push(HopState::new(*hop, flow, spacing));
            }
            run.channels.push(ChannelState {
                fates: Vec::new(),
                incoming: vec![None; hops.len() + 1],
                hops,
            });
            run.plan_message(channel);
        }
        for (number, station) in chain.stations.iter().enumerate() {
            run.stations[number].add_floods(station)?;
            run.plan(0, Event::Poll(number));
        }
        Ok(run)
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    /// Plans the next message of a channel.
    fn plan_message(&mut self, channel: usize) {
        let next = self.channels[channel].fates.len();
        if let Some((at, _)) = self.chain.channels[channel].messages.get(next) {
            self.plan(at.0, Event::Message(channel));
        }
    }

    fn handle(&mut self, now: u64, event: Event) -> Result<(), SchedulerError> {
        match event {
            Event::Message(channel) => self.message(channel, now)?,
            Event::Processed(station) => {
                self.stations[station].processed(&self.chain.stations[station]);
                self.touched.insert(station);
            }
            Event::Left(station) => self.left(station, now),
            Event::Arrived(station) => {
                if let Some(packet) = self.stations[station].cable.pop_front() {
                    self.receive(packet, now)?;
                }
            }
            Event::Poll(station) => {
                self.stations[station].next_poll = u64::MAX;
                self.touched.insert(station);
            }
        }
        Ok(())
    }

    /// The source gets a message.
    fn message(&mut self, channel: usize, now: u64) -> Result<(), SchedulerError> {
        let state = &mut self.channels[channel];
        let number = state.fates.len();
        let (_, size) = self.chain.channels[channel].messages[number];
        let has_room = state.hops[0].take_room();
        state.fates.push(match has_room {
            true => Fate::OnTheWay,
            false => Fate::Refused,
        });
        if has_room {
            state.hops[0].take(size.0);
            self.begin((channel, 0), number, size.0, now)?;
        }
        self.plan_message(channel);
        Ok(())
    }

    /// A message is complete at a hop of a channel, which has room for it.
    fn begin(
        &mut self,
        (channel, hop): (usize, usize),
        message: usize,
        bytes: u64,
        now: u64,
    ) -> Result<(), SchedulerError> {
        let state = &mut self.channels[channel].hops[hop];
        let item = state.begin(message, bytes, now);
        let (station, flow) = (state.hop.station, state.flow);
        self.touched.insert(station);
        self.stations[station].accept(&self.chain.stations[station], flow, item, now)
    }

    /// A packet has left the link of a station.
    fn left(&mut self, station: usize, now: u64) {
        let state = &mut self.stations[station];
        let Some(packet) = state.on_wire.pop_front() else {
            return;
        };
        let channel = &mut self.channels[packet.channel];
        channel.hops[packet.hop].left(&packet, now);
        let cable = &self.chain.stations[station].cable;
        if state.random.below(MILLION.into()) < u64::from(cable.loss) {
            channel.fates[packet.message] = Fate::Incomplete;
            return;
        }
        let jitter = state.random.within(0..=cable.jitter.0);
        let arrival = now.saturating_add(cable.delay.0).saturating_add(jitter);
        state.last_arrival = state.last_arrival.max(arrival);
        state.cable.push_back(MessagePacket {
            hop: packet.hop + 1,
            deadline: None,
            ..packet
        });
        let arrival = state.last_arrival;
        self.plan(arrival, Event::Arrived(station));
    }

    /// A packet arrives at a relay or at the sink.
    fn receive(&mut self, packet: MessagePacket, now: u64) -> Result<(), SchedulerError> {
        let MessagePacket { channel, hop, .. } = packet;
        let state = &mut self.channels[channel];
        if state.incoming[hop].is_none_or(|one| one.message != packet.message) {
            state.abandon(hop);
            state.expect(hop, packet.message);
        }
        let Some(incoming) = &mut state.incoming[hop] else {
            return Ok(());
        };
        if incoming.is_dropped {
            return Ok(());
        }
        if incoming.parts != packet.part {
            state.abandon(hop);
            return Ok(());
        }
        incoming.parts += 1;
        incoming.bytes += packet.bytes;
        let bytes = incoming.bytes;
        if let Some(relay) = state.hops.get_mut(hop) {
            relay.take(packet.bytes);
        }
        if !packet.last {
            return Ok(());
        }
        state.incoming[hop] = None;
        match hop < state.hops.len() {
            true => self.begin((channel, hop), packet.message, bytes, now),
            false => {
                state.fates[packet.message] = Fate::Delivered(now);
                Ok(())
            }
        }
    }

    /// Lets a station begin the processing and the transmissions that are due.
    fn drive(&mut self, station: usize, now: u64) -> Result<(), SchedulerError> {
        let mut next = u64::MAX;
        let state = &mut self.stations[station];
        let ended = state.drive_processor(now, &mut next)?;
        let sent = state.drive_link(now, &mut next)?;
        if let Some(at) = ended {
            self.plan(at, Event::Processed(station));
        }
        for left in sent {
            self.sent(station, &left);
        }
        if next < self.stations[station].next_poll {
            self.stations[station].next_poll = next;
            self.plan(next, Event::Poll(station));
        }
        Ok(())
    }

    /// The scheduler has chosen a packet, which leaves at the end of its transmission.
    fn sent(&mut self, station: usize, left: &LeftItem) {
        let state = &mut self.stations[station];
        let Some((channel, hop)) = state.flows.get(left.flow).copied() else {
            // A packet of best effort.
            return;
        };
        if let Some((message, part)) = self.channels[channel].hops[hop].chosen(&left.item) {
            state.on_wire.push_back(MessagePacket {
                channel,
                hop,
                message,
                part,
                bytes: left.item.bytes,
                last: left.item.last,
                deadline: left.item.ends,
            });
            self.plan(left.departure.end.0, Event::Left(station));
        }
    }

    fn report(self, until: Nanos) -> ChainReport {
        let chain = self.chain;
        let finish = |(number, state): (usize, ChannelState)| {
            let mut report = RoutedReport {
                hops: state.hops.into_iter().map(|hop| hop.report).collect(),
                ..RoutedReport::default()
            };
            report.count(chain, &chain.channels[number], &state.fates, until.0);
            report
        };
        ChainReport {
            channels: self.channels.into_iter().enumerate().map(finish).collect(),
            until: Instant(until.0),
        }
    }
}

impl ChannelState {
    /// The first packet of a message arrives at a relay or at the sink.
    fn expect(&mut self, hop: usize, message: usize) {
        let has_room = match self.hops.get_mut(hop) {
            Some(relay) => relay.take_room(),
            None => true,
        };
        if !has_room {
            self.fates[message] = Fate::NoRoom;
        }
        self.incoming[hop] = Some(Incoming {
            message,
            parts: 0,
            bytes: 0,
            is_dropped: !has_room,
        });
    }

    /// The message whose packets are arriving is incomplete: it ends here, and its further packets
    /// are ignored.
    fn abandon(&mut self, hop: usize) {
        let Some(incoming) = &mut self.incoming[hop] else {
            return;
        };
        if incoming.is_dropped {
            return;
        }
        incoming.is_dropped = true;
        if let Some(relay) = self.hops.get_mut(hop) {
            relay.report.incomplete += 1;
            relay.messages -= 1;
            relay.bytes -= incoming.bytes;
        }
    }
}

impl HopState {
    fn new(hop: Hop, flow: usize, spacing: u64) -> HopState {
        HopState {
            hop,
            flow,
            spacing,
            earliest: 0,
            queued: VecDeque::new(),
            part: 0,
            messages: 0,
            bytes: 0,
            report: HopReport::default(),
        }
    }

    /// Takes the room of a message. False if there is none.
    fn take_room(&mut self) -> bool {
        if self.messages >= self.hop.room {
            self.report.no_room += 1;
            return false;
        }
        self.messages += 1;
        self.report.most_messages = self.report.most_messages.max(self.messages);
        true
    }

    /// Takes bytes of a message that has room.
    fn take(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.report.most_bytes = self.report.most_bytes.max(self.bytes);
    }

    /// A message is complete. Returns it with its logical arrival and its local deadline.
    fn begin(&mut self, message: usize, bytes: u64, now: u64) -> Item {
        let logical = now.max(self.earliest);
        self.earliest = logical.saturating_add(self.spacing);
        self.queued.push_back(message);
        Item {
            length: Bytes(bytes),
            begins: Some(logical),
            logical: Some(logical),
            ends: Some(logical.saturating_add(self.hop.bound.0)),
            bytes,
            first: true,
            last: true,
        }
    }

    /// The scheduler has chosen the next packet. Returns the numbers of the message and of the
    /// packet.
    fn chosen(&mut self, packet: &Item) -> Option<(usize, u32)> {
        let message = *self.queued.front()?;
        let part = self.part;
        self.part += 1;
        if packet.last {
            self.part = 0;
            self.queued.pop_front();
        }
        Some((message, part))
    }

    /// A packet has left.
    fn left(&mut self, packet: &MessagePacket, now: u64) {
        self.bytes -= packet.bytes;
        if packet.last {
            self.messages -= 1;
            self.report.passed += 1;
            let is_late = packet.deadline.is_some_and(|deadline| now > deadline);
            self.report.missed += u64::from(is_late);
        }
    }
}

/// A station. Times in ns.
struct StationState {
    processor: Option<ProcessorState>,
    link: SchedulerQueues,
    /// Channel and hop of each flow of the link and of the processor. The flow of best effort is
    /// behind them.
    flows: Vec<(usize, usize)>,
    /// Best effort, which the link always has.
    flood: Option<Item>,
    /// Packets that the sender has not read.
    inbox: Vec<(usize, Item)>,
    /// Standstills that have not ended, and the one that ended last.
    standstills: VecDeque<(u64, u64)>,
    ended: Option<(u64, u64)>,
    /// Packets that the device has.
    on_wire: VecDeque<MessagePacket>,
    /// Packets on the cable.
    cable: VecDeque<MessagePacket>,
    last_arrival: u64,
    next_poll: u64,
    random: Random,
}

/// The processor of a station.
struct ProcessorState {
    queues: SchedulerQueues,
    time: ProcessorTime,
    /// The flow and the block in work.
    running: Option<(usize, Item)>,
    /// Work without a deadline, which is always there.
    flood: Option<Item>,
}

impl StationState {
    fn new(station: &Station, random: Random) -> Result<StationState, ChainError> {
        let standstills = station.standstills.as_ref();
        let processor = station.processor.as_ref().map(ProcessorState::new);
        Ok(StationState {
            processor: processor.transpose()?,
            link: SchedulerQueues::new(station.wire)?,
            flows: Vec::new(),
            flood: station.flood.map(best_effort),
            inbox: Vec::new(),
            standstills: standstills.map_or(VecDeque::new(), |one| one.times().to_vec().into()),
            ended: None,
            on_wire: VecDeque::new(),
            cable: VecDeque::new(),
            last_arrival: 0,
            next_poll: u64::MAX,
            random,
        })
    }

    /// Adds a hop of a channel. Returns its flow.
    fn add(
        &mut self,
        station: &Station,
        hop: &Hop,
        contract: &Channel,
        of: (usize, usize),
    ) -> Result<usize, ChainError> {
        let on_link = hop.on_link(contract, station.spaces)?;
        self.link.add(Service::Channel(on_link))?;
        if let Some((state, processor)) = self.processor.as_mut().zip(station.processor) {
            let packets = processor.costs.packets(contract.mmax());
            let takes = Bytes(processor.costs.processing(packets, true).0);
            let handler = Channel::new(takes, on_link.rmax(), on_link.bmax(), hop.processing)?;
            state.queues.add(Service::Channel(handler))?;
        }
        self.flows.push(of);
        Ok(self.flows.len() - 1)
    }

    /// Adds best effort behind the channels. Two items wait at any time, so the queue is never
    /// empty.
    fn add_floods(&mut self, station: &Station) -> Result<(), SchedulerError> {
        let flow = self.flows.len();
        if let Some(packet) = self.flood {
            self.link.add(Service::best_effort(Weight::default()))?;
            self.inbox.extend([(flow, packet); 2]);
        }
        if let (Some(processor), Some(_)) = (&mut self.processor, station.processor)
            && let Some(block) = processor.flood
        {
            let queues = &mut processor.queues;
            queues.add(Service::best_effort(Weight::default()))?;
            queues.push(flow, block, 0)?;
            queues.push(flow, block, 0)?;
        }
        Ok(())
    }

    /// Queues a complete message for the processor, or its packets for the link.
    fn accept(
        &mut self,
        station: &Station,
        flow: usize,
        message: Item,
        now: u64,
    ) -> Result<(), SchedulerError> {
        match (&mut self.processor, station.processor) {
            (Some(state), Some(processor)) => {
                for block in message.blocks(&processor.costs) {
                    state.queues.push(flow, block, now)?;
                }
            }
            _ => {
                let packets = message.packets(station.largest());
                self.inbox.extend(packets.map(|packet| (flow, packet)));
            }
        }
        Ok(())
    }

    /// The processor has ended a block: its packets go to the link.
    fn processed(&mut self, station: &Station) {
        let Some((flow, block)) = self.processor.as_mut().and_then(|one| one.running.take()) else {
            return;
        };
        if flow < self.flows.len() {
            let packets = block.packets(station.largest());
            self.inbox.extend(packets.map(|packet| (flow, packet)));
        }
    }

    /// Begins the next block if the processor is free. Returns the time at which the block ends.
    /// Lowers `next` to the time of the next call.
    fn drive_processor(&mut self, now: u64, next: &mut u64) -> Result<Option<u64>, SchedulerError> {
        let flood = self.flows.len();
        let Some(processor) = self.processor.as_mut().filter(|one| one.running.is_none()) else {
            return Ok(None);
        };
        let begins = processor.time.next(now);
        if begins > now {
            *next = begins.min(*next);
            return Ok(None);
        }
        match processor.queues.next(now) {
            Ok(left) => {
                processor.running = Some((left.flow, left.item));
                if left.flow == flood {
                    processor.queues.push(flood, left.item, now)?;
                }
                Ok(Some(processor.time.end_of(now, left.item.length.0)))
            }
            Err(NextCall::At(at)) => {
                *next = at.min(*next);
                Ok(None)
            }
            Err(NextCall::Never) => Ok(None),
        }
    }

    /// Hands packets to the device, unless the sender stands still. Returns them. Lowers `next` to
    /// the time of the next call.
    fn drive_link(&mut self, now: u64, next: &mut u64) -> Result<Vec<LeftItem>, SchedulerError> {
        while let Some(first) = self.standstills.front()
            && first.1 <= now
        {
            self.ended = self.standstills.pop_front();
        }
        if let Some((begin, end)) = self.standstills.front()
            && *begin <= now
        {
            *next = (*end).min(*next);
            return Ok(Vec::new());
        }
        // What the sender finds at the end of a standstill can have come during it.
        let unread_since = match self.ended {
            Some((begin, end)) if end == now => begin,
            _ => now,
        };
        self.link.set_unread_since(unread_since);
        for (flow, packet) in self.inbox.drain(..) {
            self.link.push(flow, packet, now)?;
        }
        let mut sent = Vec::new();
        loop {
            match self.link.next(now) {
                Ok(left) => {
                    if left.flow == self.flows.len() {
                        self.link.push(left.flow, left.item, now)?;
                    }
                    sent.push(left);
                }
                Err(NextCall::At(at)) => {
                    *next = at.min(*next);
                    return Ok(sent);
                }
                Err(NextCall::Never) => return Ok(sent),
            }
        }
    }
}

impl ProcessorState {
    fn new(processor: &StationProcessor) -> Result<ProcessorState, SchedulerError> {
        let time = match processor.time {
            HandlerTime::Whole => ProcessorTime {
                reservation: None,
                lost: 0,
                phase: 0,
            },
            HandlerTime::Reserved { slice, phase } => ProcessorTime {
                reservation: Some(slice),
                lost: processor.lost().0,
                // The time repeats.
                phase: phase.0 % ProcessorTime::cycle(&slice),
            },
        };
        let leftover = processor.costs.leftover;
        Ok(ProcessorState {
            queues: SchedulerQueues::new(Wire {
                longest: Bytes(LONGEST_BLOCK.0),
                ..Wire::new(Rate::new(BYTE_PER_NANOSECOND).unwrap_or(Rate::MAX))
            })?,
            time,
            running: None,
            flood: (leftover.0 > 0).then_some(best_effort(Bytes(leftover.0))),
        })
    }
}

/// A packet, or a block, without a deadline.
fn best_effort(length: Bytes) -> Item {
    Item {
        length,
        begins: None,
        logical: None,
        ends: None,
        bytes: length.0,
        first: true,
        last: true,
    }
}

/// The rate at which a byte is a nanosecond, in bit/s.
const BYTE_PER_NANOSECOND: u64 = 8_000_000_000;
