//! The offset of a neighbour's clock: [`ClockOffset`]. No clock is set. Only reports use the
//! offset, and no promise depends on it.
//!
//! # From round trips (RFC 5905, section 8)
//! A question leaves at t1 of this host's clock, arrives at t2 of the neighbour's, is answered at
//! t3 of the neighbour's and the reply arrives at t4. Then the offset is
//! ((t2 − t1) + (t3 − t4)) / 2, and its error is at most half the time that the messages were on
//! their way: ((t4 − t1) − (t3 − t2)) / 2.
//!
//! # From the kernels
//! The clock of the messages is `CLOCK_MONOTONIC`. The kernel of each host knows by how much
//! `CLOCK_REALTIME` is ahead of it: u here and u′ at the neighbour. Where both kernels synchronise
//! `CLOCK_REALTIME` with UTC, with the errors e and e′, the two differ by at most e + e′. So the
//! offset is u − u′, and its error at most e + e′. The difference u changes only when a clock is
//! set, because the kernel corrects the frequency of both clocks together.
//!
//! The offset with the smaller error counts.

use std::collections::VecDeque;
use std::fmt;

use netnice_core::units::{Instant, Nanos};

use crate::message::{ClockAnswer, ClockAsk, KernelClock};

/// How much a neighbour's clock is ahead of this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// The neighbour's clock less this host's, in nanoseconds; saturates.
    pub ahead_ns: i64,
    /// The offset is wrong by at most this time, at the time of the round trip.
    pub error: Nanos,
    /// When the reply arrived.
    pub measured: Instant,
    /// What the offset follows from.
    pub source: ClockSource,
}

/// What an offset follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// The shortest of the latest round trips.
    RoundTrip,
    /// The kernels of both hosts, which synchronise their clocks.
    Kernel,
}

impl fmt::Display for ClockSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ClockSource::RoundTrip => "round-trips",
            ClockSource::Kernel => "kernel",
        })
    }
}

/// Measures the offset of one neighbour.
#[derive(Clone, Debug, Default)]
pub(super) struct OffsetMeasurement {
    /// When the question that is not answered yet left.
    asked: Option<Instant>,
    /// The latest round trips.
    trips: VecDeque<ClockOffset>,
    /// From the kernels, at the latest reply; `None` if not both of them synchronise their clocks.
    kernel: Option<ClockOffset>,
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

    /// Takes a reply; `own` is what the kernel of this host states now. False if it replies to no
    /// question, or contradicts itself.
    pub(super) fn handle(
        &mut self,
        answer: ClockAnswer,
        own: Option<KernelClock>,
        now: Instant,
    ) -> bool {
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
            ahead_ns: saturated(ahead),
            error: Nanos(on_the_way.div_ceil(2)),
            measured: now,
            source: ClockSource::RoundTrip,
        });
        let kernels = own.zip(answer.kernel);
        self.kernel = kernels.map(|(own, theirs)| ClockOffset {
            ahead_ns: saturated(i128::from(own.utc_ahead_ns) - i128::from(theirs.utc_ahead_ns)),
            // The neighbour has stated its error within the round trip; it has grown meanwhile.
            error: Nanos(
                own.error_ns
                    .saturating_add(theirs.error_ns)
                    .saturating_add(trip.div_ceil(GROWTH)),
            ),
            measured: now,
            source: ClockSource::Kernel,
        });
        true
    }

    /// The offset with the smallest error: of the shortest of the latest round trips, or of the
    /// kernels. `None` before the first reply.
    pub(super) fn offset(&self) -> Option<ClockOffset> {
        let all = self.trips.iter().chain(&self.kernel);
        all.min_by_key(|offset| offset.error).copied()
    }
}

/// The nearest number of 64 bits.
fn saturated(number: i128) -> i64 {
    let bound = if number < 0 { i64::MIN } else { i64::MAX };
    i64::try_from(number).unwrap_or(bound)
}

/// The kernel's error grows by 1 ns in so many ns (`MAXFREQ` of the kernel, 500 ppm).
const GROWTH: u64 = 2_000;

/// Round trips that are kept: those of 40 s, in which two clocks of 100 ppm each drift apart by at
/// most 8 ms.
const TRIPS: usize = 8;
