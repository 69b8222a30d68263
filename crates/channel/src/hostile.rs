//! Untrusted packets of channels, for the tests and for the fuzz target `channel`. [`outcome_of`]
//! gives packets to the receivers of two channels, and returns what became of the last one.

use std::num::NonZeroU32;

use netnice_core::admission::timing::Processor;
use netnice_core::contract::{Channel, MessageRate};
use netnice_core::sched::EarlyOrder;
use netnice_core::units::{Bytes, Instant, Nanos};

use crate::{
    ChannelClass, ChannelId, ChannelOptions, Checksum, Counts, Executor, ExecutorSettings,
    HandlerId, HeaderError, OutgoingPacket, PacketHeader, PacketRefusal, Stage, Step, Transmit,
};

/// Takes a sequence of packets, each behind its length in two bytes (network byte order), as they
/// arrive a millisecond after each other. Two channels have receivers: [`PLAIN`] has no stages, and
/// [`CHECKED`] has a [`Checksum`].
///
/// Returns what became of the last packet. It was refused for its header: `short`, `version`,
/// `reserved`, `nopart`; it was `foreign`, `corrupted`, `malformed`, a `duplicate`, or `late`; it
/// was taken as a `part`, or made a message `complete`. `nothing` if there is no packet.
///
/// # Panics
/// If a receiver does not count a packet, keeps more than it may, or completes a message out of
/// order or of a wrong length.
pub fn outcome_of(input: &[u8]) -> String {
    let mut world = World::new();
    let mut last = "nothing";
    for (at, packet) in packets(input).enumerate() {
        last = world.handle(packet, Instant(at as u64 * 1_000_000));
    }
    last.to_owned()
}

/// Makes the header of every packet in a sequence valid except for its numbers, and its checksum
/// right, so that what is behind them is reached.
pub fn correct_lengths(input: &mut [u8]) {
    let lengths: Vec<usize> = packets(input).map(<[u8]>::len).collect();
    let mut begin = 0;
    for length in lengths {
        begin += 2;
        let packet = &mut input[begin..begin + length];
        begin += length;
        if length < PacketHeader::LENGTH {
            continue;
        }
        packet[0] = 1;
        for zero in [1, 6, 7] {
            packet[zero] = 0;
        }
        let Ok(header) = PacketHeader::decode(packet) else {
            continue;
        };
        let mut checksum = Checksum::new(Nanos(0));
        let payload = &mut packet[PacketHeader::LENGTH..];
        if let (CHECKED, Some(rest)) = (
            header.channel,
            payload.len().checked_sub(checksum.overhead()),
        ) {
            checksum.seal(&header, payload, rest);
        }
    }
}

/// The channel without stages.
pub const PLAIN: ChannelId = ChannelId(*b"plain----channel");

/// The channel with a checksum.
pub const CHECKED: ChannelId = ChannelId(*b"checked--channel");

/// The packets of a sequence. The last one can be shorter than its length says.
fn packets(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, behind) = rest.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes(*length)).min(behind.len());
        let (packet, behind) = behind.split_at(length);
        rest = behind;
        Some(packet)
    })
}

struct World {
    executor: Executor<Vec<u8>, Vec<u8>>,
    receivers: [HandlerId; 2],
    /// The number of the last message of each receiver.
    last: [Option<u64>; 2],
}

/// Nothing is sent.
struct NoTransmit;

impl Transmit for NoTransmit {
    fn buffer(&mut self, _: HandlerId, _: usize) -> Option<&mut [u8]> {
        None
    }

    fn submit(&mut self, _: OutgoingPacket) {}
}

impl World {
    fn new() -> World {
        let settings = ExecutorSettings {
            processor: Processor {
                switch: Nanos(0),
                cache_miss: Nanos(0),
                first: Nanos(1_000),
                later: Nanos(500),
                link_scheduling: Nanos(0),
                block: NonZeroU32::MIN.saturating_add(3),
                largest: Bytes((PacketHeader::LENGTH + PART) as u64),
                leftover: Nanos(0),
            },
            waking: Nanos(0),
            horizon: Nanos::from_millis(100),
            early: EarlyOrder::default(),
        };
        let rate = MessageRate::new(1_000).expect("in range");
        let channel = Channel::new(Bytes(MMAX as u64), rate, 4, Nanos::from_millis(50));
        let channel = channel.and_then(|one| one.with_processing(Nanos::from_millis(20)));
        let class = ChannelClass::RealTime(channel.expect("a channel"));
        let mut executor = Executor::new(settings).expect("an executor");
        let mut open = |id, stages| {
            let options = ChannelOptions {
                stages,
                ..ChannelOptions::new(id, class)
            };
            executor.open_receiver(options, Instant(0)).expect("opens")
        };
        let checksum: Box<dyn Stage> = Box::new(Checksum::new(Nanos(100)));
        let receivers = [open(PLAIN, Vec::new()), open(CHECKED, vec![checksum])];
        World {
            executor,
            receivers,
            last: [None; 2],
        }
    }

    fn counts(&self) -> [Counts; 2] {
        self.receivers
            .map(|id| self.executor.counts(id).expect("open"))
    }

    /// Gives a packet to the executor, and lets the handlers finish.
    fn handle(&mut self, packet: &[u8], now: Instant) -> &'static str {
        let before = self.counts();
        let outside = self.executor.foreign_and_invalid();
        let refused = self.executor.handle_packet(packet.to_vec(), now).err();
        let mut until = now;
        loop {
            match self.executor.step(until, &mut NoTransmit) {
                Step::Ran(_) => {}
                Step::Wait(at) => until = at,
                Step::Idle => break,
            }
        }
        let after = self.counts();
        self.check_messages(now);
        let outcome = match refused {
            Some(PacketRefusal::Header(error)) => match error {
                HeaderError::Short { .. } => "short",
                HeaderError::Version(_) => "version",
                HeaderError::Reserved => "reserved",
                HeaderError::Part { .. } => "nopart",
            },
            Some(PacketRefusal::Foreign(_)) => "foreign",
            Some(PacketRefusal::Full { .. }) => panic!("the queue was empty"),
            None => {
                let changed = (0..2).find(|at| before[*at] != after[*at]);
                let at = changed.expect("the packet is counted");
                assert_eq!(after[at].packets, before[at].packets + 1);
                became(&before[at], &after[at])
            }
        };
        let (foreign, invalid) = self.executor.foreign_and_invalid();
        let known = u64::from(refused.is_none());
        assert_eq!(foreign + invalid + known, outside.0 + outside.1 + 1);
        outcome
    }

    fn check_messages(&mut self, now: Instant) {
        for (id, last) in self.receivers.iter().zip(&mut self.last) {
            assert!(self.executor.messages_waiting(*id).expect("open") <= 4);
            while let Some(message) = self.executor.receive(*id, now) {
                assert!(message.body.len() <= MMAX, "{message:?}");
                assert!(last.is_none_or(|last| message.message > last));
                *last = Some(message.message);
            }
        }
    }
}

/// What a packet became, by the counts of its receiver.
fn became(before: &Counts, after: &Counts) -> &'static str {
    match () {
        () if after.messages > before.messages => "complete",
        () if after.corrupted > before.corrupted => "corrupted",
        () if after.malformed > before.malformed => "malformed",
        () if after.duplicates > before.duplicates => "duplicate",
        () if after.too_late > before.too_late => "late",
        () => "part",
    }
}

/// Bytes of a part without stages.
const PART: usize = 20;

/// Bytes of the longest message.
const MMAX: usize = 70;

#[cfg(test)]
mod tests;
