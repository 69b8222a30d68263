//! The offset of a neighbour's clock from round trips (RFC 5905, section 8): [`ClockOffset`]. No
//! clock is set. Only reports use the offset, and no promise depends on it.
//!
//! A question leaves at t1 of this host's clock, arrives at t2 of the neighbour's, is answered at
//! t3 of the neighbour's and the reply arrives at t4. Then the offset is
//! ((t2 − t1) + (t3 − t4)) / 2, and its error is at most half the time that the messages were on
//! their way: ((t4 − t1) − (t3 − t2)) / 2.

use std::collections::VecDeque;

use netnice_core::units::{Instant, Nanos};

use crate::message::{ClockAnswer, ClockAsk};

/// How much a neighbour's clock is ahead of this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// The neighbour's clock less this host's, in nanoseconds; saturates.
    pub ahead_ns: i64,
    /// The offset is wrong by at most this time, at the time of the round trip.
    pub error: Nanos,
    /// When the reply arrived.
    pub measured: Instant,
}

/// Measures the offset of one neighbour.
#[derive(Clone, Debug, Default)]
pub(super) struct OffsetMeasurement {
    /// When the question that is not answered yet left.
    asked: Option<Instant>,
    /// The latest round trips.
    trips: VecDeque<ClockOffset>,
}

impl OffsetMeasurement {
    /// The next question; `None` while one is not answered.
    pub(super) fn ask(&mut self, now: Instant) -> Option<ClockAsk> {
        match self.asked {
            Some(_) => None,
            None => {
                self.asked = Some(now);
                Some(ClockAsk { sent_ns: now.0 })
            }
        }
    }

    /// Takes a reply. False if it replies to no question, or contradicts itself.
    pub(super) fn handle(&mut self, answer: ClockAnswer, now: Instant) -> bool {
        let is_asked = self.asked == Some(Instant(answer.asked_ns));
        let kept = answer.answered_ns.checked_sub(answer.received_ns);
        let trip = now.0.checked_sub(answer.asked_ns);
        let (true, Some(kept), Some(trip)) = (is_asked, kept, trip) else {
            return false;
        };
        // A neighbour that states more than the whole time has no valid error.
        let Some(on_the_way) = trip.checked_sub(kept) else {
            return false;
        };
        self.asked = None;
        let forth = i128::from(answer.received_ns) - i128::from(answer.asked_ns);
        let back = i128::from(answer.answered_ns) - i128::from(now.0);
        let ahead = (forth + back) / 2;
        if self.trips.len() == TRIPS {
            self.trips.pop_front();
        }
        self.trips.push_back(ClockOffset {
            ahead_ns: i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX }),
            error: Nanos(on_the_way.div_ceil(2)),
            measured: now,
        });
        true
    }

    /// The offset of the shortest of the latest round trips; `None` before the first one.
    pub(super) fn offset(&self) -> Option<ClockOffset> {
        self.trips.iter().min_by_key(|trip| trip.error).copied()
    }
}

/// Round trips that are kept: those of 40 s, in which two clocks of 100 ppm each drift apart by at
/// most 8 ms.
const TRIPS: usize = 8;
