//! The event loop of a chain: [`Chain::run`] simulates a chain from time 0 on and returns a
//! [`ChainReport`]. It fails with [`ChainError`] if the chain is invalid.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use netnice_core::sched::SchedulerError;
use netnice_core::units::{Bytes, Instant, Nanos};

use super::error::ChainError;
use super::report::{ChainReport, Fate, HopReport, RoutedReport};
use super::station::{MessagePacket, StationState};
use super::topology::{Chain, Hop, MILLION};
use crate::Random;
use crate::queueing::{Item, LeftItem};

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
