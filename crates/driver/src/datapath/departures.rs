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
    /// Makes the packet behind the last one a part of that one, if it is the part of the same
    /// record of segments that follows it, and leaves right behind it. False if it is not.
    #[inline]
    pub(super) fn join_last(&mut self) -> bool {
        let Some((new, before)) = self.packets[..=self.count].split_last_mut() else {
            return false;
        };
        let (Some(last), Some(departure)) = (before.last_mut(), &new.departure) else {
            return false;
        };
        let Some(joined) = last.departure.as_mut().filter(|_| last.frame.is_none()) else {
            return false;
        };
        let follows = new.parts.begin > 0
            && last.parts.end == new.parts.begin
            && joined.flow == departure.flow
            && joined.end == departure.start;
        if follows {
            last.parts.end = new.parts.end;
            joined.end = departure.end;
            joined.length = Bytes(joined.length.0 + departure.length.0);
        }
        follows
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
