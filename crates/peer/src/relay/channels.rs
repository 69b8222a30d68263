//! What the relay's thread has of a channel ([`RelayedChannel`]) and of a port ([`Listening`]).
//! Calls fail only if a flow has ended, with the reason.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netnice_channel::{ChannelId, HopMeter, LogicalArrivals, PacketHeader, RecentStops};
use netnice_core::units::Instant;
use netnice_stack::udp::Outcome;
use netnice_stack::{Socket, StackError, Status};

use super::RelayCounts;
use super::reassembly::{Reassembly, WholeMessage};
use crate::signalling::HoldId;

/// A channel that messages pass. `L` is returned with the socket when the channel ends.
pub(super) struct RelayedChannel<L> {
    pub(super) hold: HoldId,
    pub(super) channel: ChannelId,
    /// The listener that the packets arrive at.
    pub(super) listener: u64,
    /// The address that they come from.
    pub(super) from: IpAddr,
    /// The attachment that the messages leave by.
    pub(super) attachment: u64,
    pub(super) socket: Socket,
    pub(super) lease: L,
    pub(super) reassembly: Reassembly,
    /// Whole messages that wait for packet buffers.
    pub(super) waiting: VecDeque<WholeMessage>,
    pub(super) arrivals: LogicalArrivals,
    /// The messages with packets that the driver has not returned, the first one sent first.
    pub(super) under_way: VecDeque<MessageUnderWay>,
    pub(super) meter: Arc<HopMeter>,
    /// How many messages may wait.
    pub(super) room: usize,
    pub(super) counts: RelayCounts,
    pub(super) shared: Arc<SharedCounts>,
    /// It is in the list of what has something new.
    pub(super) is_noted: bool,
}

/// A message that the flow has to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageUnderWay {
    /// The numbers of its first and its last packet in the flow.
    first: u64,
    last: u64,
    logical: Instant,
    /// One of its packets did not leave.
    is_broken: bool,
}

/// A port that packets of channels arrive at.
pub(super) struct Listening<L> {
    pub(super) attachment: u64,
    pub(super) socket: Socket,
    pub(super) lease: L,
    pub(super) is_noted: bool,
}

/// The counts of a channel, which other threads read.
#[derive(Debug, Default)]
pub(super) struct SharedCounts([AtomicU64; 10]);

impl SharedCounts {
    /// What was stored last.
    pub(super) fn load(&self) -> RelayCounts {
        let mut counts = RelayCounts::default();
        for (place, count) in self.0.iter().zip(counts.each()) {
            *count = place.load(Ordering::Relaxed);
        }
        counts
    }

    fn store(&self, counts: &RelayCounts) {
        let mut counts = *counts;
        for (place, count) in self.0.iter().zip(counts.each()) {
            place.store(*count, Ordering::Relaxed);
        }
    }
}

impl RelayCounts {
    /// All numbers.
    fn each(&mut self) -> [&mut u64; 10] {
        let RelayCounts {
            packets,
            messages,
            sent,
            duplicates,
            too_late,
            malformed,
            incomplete,
            overflowed,
            refused,
            unsent,
        } = self;
        [
            packets, messages, sent, duplicates, too_late, malformed, incomplete, overflowed,
            refused, unsent,
        ]
    }
}

impl<L> RelayedChannel<L> {
    /// Takes a packet that arrived at `stamp`. A message that is whole with it waits to be sent, or
    /// is dropped if too many wait.
    pub(super) fn accept(&mut self, header: &PacketHeader, packet: &[u8], stamp: Instant) {
        if let Some(whole) = self.reassembly.accept(header, packet, stamp) {
            match self.waiting.len() < self.room {
                true => self.waiting.push_back(whole),
                false => self.counts.overflowed += 1,
            }
        }
    }

    /// Takes back the packets that have left, and sends the messages that wait while there are
    /// buffers. Messages that leave late are judged by the stops of this thread. Fails if the flow
    /// has ended.
    pub(super) fn send(&mut self, stops: &RecentStops) -> Result<(), StackError> {
        let returned = self.take_returned(stops);
        let sent = returned.and_then(|()| self.send_waiting());
        self.store_counts();
        sent?;
        self.socket.end_reason().map_or(Ok(()), Err)
    }

    /// True if the flow has ended and the daemon has not said why.
    pub(super) fn is_ending(&self) -> bool {
        self.socket.is_closed()
    }

    fn take_returned(&mut self, stops: &RecentStops) -> Result<(), StackError> {
        loop {
            match self.socket.outcome() {
                Ok(Some(outcome)) => {
                    self.counts.unsent += u64::from(outcome.status != Status::DONE);
                    self.judge(&outcome, stops);
                }
                Ok(None) | Err(StackError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Counts the laxity of each message whose last packet the driver has returned.
    fn judge(&mut self, outcome: &Outcome, stops: &RecentStops) {
        let has_left = outcome.status == Status::DONE;
        // The driver returns the packets of a flow in order. The socket keeps the last outcomes
        // only; a message whose own ones are lost has left before this packet.
        while let Some(message) = self.under_way.front_mut() {
            message.is_broken |= !has_left && outcome.number >= message.first;
            if outcome.number < message.last {
                return;
            }
            let (logical, left) = (message.logical, Instant(outcome.stamp));
            if message.is_broken {
                self.meter.count_lost();
            } else {
                let laxity = self.meter.laxity(logical, left);
                let late = laxity.min(0).unsigned_abs();
                let is_excused = late > 0 && stops.between(logical, left).0 >= late;
                self.meter.count(laxity, is_excused);
            }
            self.under_way.pop_front();
        }
    }

    fn send_waiting(&mut self) -> Result<(), StackError> {
        while let Some(message) = self.waiting.front() {
            let packets: Vec<&[u8]> = message.packets().collect();
            self.socket.set_arrival(Some(message.arrival.0));
            match self.socket.try_send_message(&packets) {
                Ok(first) => {
                    self.counts.sent += 1;
                    self.under_way.push_back(MessageUnderWay {
                        first,
                        last: first + packets.len() as u64 - 1,
                        logical: self.arrivals.next(message.arrival),
                        is_broken: false,
                    });
                }
                Err(StackError::WouldBlock) => break,
                // The path carries less than when the channel was opened.
                Err(
                    StackError::TooLong { .. }
                    | StackError::MessageTooLong { .. }
                    | StackError::TooManyPackets { .. },
                ) => self.counts.refused += 1,
                Err(error) => return Err(error),
            }
            if let Some(message) = self.waiting.pop_front() {
                self.reassembly.reuse(message);
            }
        }
        Ok(())
    }

    fn store_counts(&mut self) {
        let collected = self.reassembly.counts();
        let counts = &mut self.counts;
        counts.packets = collected.packets;
        counts.messages = collected.messages;
        counts.duplicates = collected.duplicates;
        counts.too_late = collected.too_late;
        counts.malformed = collected.malformed;
        counts.incomplete = collected.incomplete;
        self.shared.store(counts);
    }
}

#[cfg(test)]
mod tests;
