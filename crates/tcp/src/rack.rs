//! Loss detection by time: RACK (RFC 8985, section 6).
//!
//! A piece in flight is lost if a piece that departed later has been delivered, and if the piece
//! departed longer ago than a round trip and a *reordering window*. The window is 0 until packets
//! were seen to overtake each other; then it is a quarter of the shortest round trip, and a
//! multiple of that while the peer reports needless retransmissions.
//!
//! Times of departure come from the driver: they are when the packet left, not when it was queued.
//! Waiting for a contract therefore never looks like a loss.

use std::time::Duration;

use crate::send_queue::{Covered, SendQueue};
use crate::time::Instant;

/// The state of RACK. Its names follow RFC 8985, section 5.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rack {
    /// Departure of the latest piece that was delivered.
    departed: Option<Instant>,
    /// The position behind that piece.
    end: u64,
    /// Its round trip.
    rtt: Duration,
    /// The highest position that was delivered.
    highest: u64,
    /// A packet was seen to overtake another.
    reordering: bool,
    /// Multiple of the reordering window.
    multiple: u32,
    /// Recoveries after which the multiple falls back to 1.
    persist: u8,
    /// Needless retransmissions count again from this position on.
    duplicate_round: Option<u64>,
}

/// What the reordering window depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReorderingInput {
    pub(crate) in_recovery: bool,
    pub(crate) sacked_pieces: u32,
    pub(crate) min_rtt: Duration,
    pub(crate) smoothed_rtt: Duration,
}

impl Rack {
    /// A piece was delivered (section 6.2, steps 2 and 3). `echo` is the timestamp that the
    /// acknowledgement returned.
    pub(crate) fn delivered(
        &mut self,
        now: Instant,
        piece: &Covered,
        echo: Option<u32>,
        min_rtt: Option<Duration>,
    ) {
        if piece.end > self.highest {
            self.highest = piece.end;
        } else if piece.end < self.highest && !piece.retransmitted {
            self.reordering = true;
        }
        let Some(departed) = piece.departed else {
            return;
        };
        let rtt = now.since(departed);
        if piece.retransmitted {
            // The acknowledgement may be that of the first transmission.
            let echoes_earlier =
                echo.is_some_and(|echo| (echo.wrapping_sub(piece.timestamp) as i32) < 0);
            if echoes_earlier || min_rtt.is_some_and(|min| rtt < min) {
                return;
            }
        }
        if self
            .departed
            .is_none_or(|latest| (latest, self.end) < (departed, piece.end))
        {
            self.departed = Some(departed);
            self.end = piece.end;
            self.rtt = rtt;
        }
    }

    /// The peer reported that it received data twice (section 6.2, step 4). `next` is the next
    /// position to be sent, `una` the first that is not acknowledged.
    pub(crate) fn duplicate_reported(&mut self, una: u64, next: u64) {
        if self.duplicate_round.is_some_and(|round| una >= round) {
            self.duplicate_round = None;
        }
        if self.duplicate_round.is_none() {
            self.duplicate_round = Some(next);
            self.multiple = (self.multiple.max(1) + 1).min(LARGEST_MULTIPLE);
            self.persist = RECOVERIES_TO_PERSIST;
            self.reordering = true;
        }
    }

    /// A recovery has ended.
    pub(crate) fn recovery_ended(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiple = 1;
        }
    }

    /// The reordering window (section 6.2, step 4).
    fn reordering_window(&self, input: ReorderingInput) -> Duration {
        if !self.reordering && (input.in_recovery || input.sacked_pieces >= DUPLICATES) {
            return Duration::ZERO;
        }
        let window = input.min_rtt / 4 * self.multiple.max(1);
        window.min(input.smoothed_rtt)
    }

    /// Marks lost pieces (section 6.2, step 5). Returns the number of lost sequence numbers, and
    /// the time at which the next piece is lost if nothing is heard of it.
    pub(crate) fn find_lost(
        &self,
        now: Instant,
        queue: &mut SendQueue,
        input: ReorderingInput,
    ) -> (u32, Option<Instant>) {
        let Some(latest) = self.departed else {
            return (0, None);
        };
        let patience = self.rtt + self.reordering_window(input);
        let overtaken = |at: Instant, end: u64| (at, end) < (latest, self.end);
        let mut waits = false;
        let (bytes, next) = queue.find_lost(|at, end| {
            waits = overtaken(at, end);
            waits && at + patience <= now
        });
        (bytes, next.filter(|_| waits).map(|at| at + patience))
    }
}

/// RFC 8985, section 5.2: DupThresh.
const DUPLICATES: u32 = 3;
/// RFC 8985, section 6.2, step 4: the multiple holds for 16 recoveries.
const RECOVERIES_TO_PERSIST: u8 = 16;
/// The window is at most the smoothed round trip, so a larger multiple of a quarter of the shortest
/// round trip has no use, except where round trips vary widely.
const LARGEST_MULTIPLE: u32 = 255;
