//! A station in a run: its link, its processor, its cable, and what waits at each of them. The
//! calls fail if a scheduler refuses a link, a flow or a packet.

use std::collections::VecDeque;

use netnice_core::contract::{Channel, Weight};
use netnice_core::sched::{SchedulerError, Service, Wire};
use netnice_core::units::{Bytes, Rate};

use super::error::ChainError;
use super::supply::ProcessorTime;
use super::topology::{HandlerTime, Hop, Station, StationProcessor};
use crate::Random;
use crate::error::LONGEST_BLOCK;
use crate::queueing::{Item, LeftItem, NextCall, SchedulerQueues};

/// A packet of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessagePacket {
    pub channel: usize,
    /// The hop that the packet leaves, or goes to; the number of hops for the sink.
    pub hop: usize,
    /// Number of the message in the channel.
    pub message: usize,
    /// Number of the packet in the message.
    pub part: u32,
    pub bytes: u64,
    pub last: bool,
    /// The local deadline, in ns; `None` unless this is the last packet, and behind the link.
    pub deadline: Option<u64>,
}

/// A station. Times in ns.
pub(super) struct StationState {
    processor: Option<ProcessorState>,
    link: SchedulerQueues,
    /// Channel and hop of each flow of the link and of the processor. The flow of best effort is
    /// behind them.
    pub flows: Vec<(usize, usize)>,
    /// Best effort, which the link always has.
    flood: Option<Item>,
    /// Packets that the sender has not read.
    inbox: Vec<(usize, Item)>,
    /// Standstills that have not ended, and the one that ended last.
    standstills: VecDeque<(u64, u64)>,
    ended: Option<(u64, u64)>,
    /// Packets that the device has.
    pub on_wire: VecDeque<MessagePacket>,
    /// Packets on the cable.
    pub cable: VecDeque<MessagePacket>,
    pub last_arrival: u64,
    pub next_poll: u64,
    pub random: Random,
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
    pub(super) fn new(station: &Station, random: Random) -> Result<StationState, ChainError> {
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
    pub(super) fn add(
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
    pub(super) fn add_floods(&mut self, station: &Station) -> Result<(), SchedulerError> {
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
    pub(super) fn accept(
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
    pub(super) fn processed(&mut self, station: &Station) {
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
    pub(super) fn drive_processor(
        &mut self,
        now: u64,
        next: &mut u64,
    ) -> Result<Option<u64>, SchedulerError> {
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
    pub(super) fn drive_link(
        &mut self,
        now: u64,
        next: &mut u64,
    ) -> Result<Vec<LeftItem>, SchedulerError> {
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
