//! The packets that leave in an iteration of the datapath. No function fails.

use super::*;

/// The packets that leave in an iteration, in order: the first `count` of `packets`, which are
/// filled and read in place.
pub(super) struct Departures {
    pub(super) packets: Vec<ChosenPacket>,
    pub(super) count: usize,
}

impl Default for Departures {
    fn default() -> Departures {
        Departures {
            packets: std::iter::repeat_with(ChosenPacket::default)
                .take(BATCH)
                .collect(),
            count: 0,
        }
    }
}

impl Departures {
    /// The last packet, and the place for the next one.
    #[inline]
    pub(super) fn newest(&mut self) -> (Option<&ChosenPacket>, &mut ChosenPacket) {
        let (before, rest) = self.packets.split_at_mut(self.count);
        (before.last(), &mut rest[0])
    }

    /// Makes the packet behind the last one a part of that one, if it is the part of the same
    /// record of segments that follows it, and leaves right behind it. False if it is not; it has
    /// a copy of its record then.
    #[inline]
    pub(super) fn join_last(&mut self) -> bool {
        let (before, rest) = self.packets.split_at_mut(self.count);
        let (Some(last), new) = (before.last_mut(), &mut rest[0]) else {
            return false;
        };
        let (begin, end) = (new.parts.begin, new.parts.end);
        let Some(departure) = new.departure.as_ref() else {
            return false;
        };
        if !last.precedes(departure.flow, begin) {
            return false;
        }
        match &mut last.departure {
            Some(joined) if joined.end == departure.start => {
                joined.end = departure.end;
                joined.length = Bytes(joined.length.0 + departure.length.0);
                last.parts.end = end;
                true
            }
            _ => {
                new.record.copy_from(&last.record);
                false
            }
        }
    }
}

/// A packet that leaves in this iteration.
#[derive(Default)]
pub(super) struct ChosenPacket {
    pub(super) departure: Option<Departure>,
    /// The time at which the packet was reported to the scheduler.
    pub(super) since: Instant,
    /// The packet if it came from the redirect pair, and not from the rings of a program.
    pub(super) frame: Option<QueuedFrame>,
    pub(super) record: Record,
    /// The parts of a record of segments that leave.
    pub(super) parts: Parts,
}

impl ChosenPacket {
    /// Whether it is the part of a record of segments of this flow before the part `begin`.
    #[inline]
    pub(super) fn precedes(&self, flow: FlowId, begin: usize) -> bool {
        begin > 0
            && self.parts.end == begin
            && self.frame.is_none()
            && self
                .departure
                .is_some_and(|departure| departure.flow == flow)
    }
}
