//! HyStart++ (RFC 9406): leaves the initial slow start when the round-trip time rises.
//!
//! ```text
//!               RTT rose by the threshold
//!   Slow start ---------------------------> Conservative slow start ---> Congestion avoidance
//!               <---------------------------                    5 rounds
//!                RTT fell below the baseline
//! ```
//!
//! A round starts with the next byte to send, and ends when this byte's predecessor is
//! acknowledged. The minimum RTT of a round is compared with the minimum of the round before.

use std::time::Duration;

use crate::rtt::Rtt;

/// State of HyStart++ over the initial slow start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HyStart {
    /// Position that ends the current round; `None` before the first ACK.
    window_end: Option<u64>,
    /// `lastRoundMinRTT`.
    last_round: Option<Duration>,
    /// `currentRoundMinRTT`.
    this_round: Option<Duration>,
    /// `rttSampleCount` of this round.
    samples: u32,
    /// [`Rtt::samples`] at the ACK before, which shows whether an ACK gave a sample.
    samples_before: u32,
    /// Conservative slow start; `None` in slow start.
    conservative: Option<Conservative>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Conservative {
    /// `cssBaselineMinRtt`.
    baseline: Duration,
    /// Rounds that ended in this phase. The round in which it started counts.
    rounds: u32,
}

impl HyStart {
    /// Divisor of the growth of the window for the ACK that follows.
    pub(super) fn divisor(&self) -> u32 {
        match self.conservative {
            None => 1,
            Some(_) => CSS_GROWTH_DIVISOR,
        }
    }

    /// Handles an ACK of slow start (RFC 9406, section 4.2). Returns true if slow start ends.
    /// `delivered` and `sent` are those of [`super::Progress`].
    pub(super) fn acknowledged(&mut self, rtt: &Rtt, delivered: u64, sent: u64) -> bool {
        let end = *self.window_end.get_or_insert(sent);
        if let Some(sample) = rtt.latest()
            && rtt.samples() != self.samples_before
        {
            self.samples_before = rtt.samples();
            self.samples = self.samples.saturating_add(1);
            self.this_round = Some(self.this_round.map_or(sample, |least| least.min(sample)));
            self.compare();
        }
        delivered >= end && self.end_round(sent)
    }

    /// Changes between slow start and conservative slow start if the RTT of this round demands it.
    fn compare(&mut self) {
        let Some(this) = self.this_round.filter(|_| self.samples >= N_RTT_SAMPLE) else {
            return;
        };
        if let Some(phase) = self.conservative {
            if this < phase.baseline {
                self.conservative = None;
            }
        } else if let Some(last) = self.last_round {
            let share = (last / MIN_RTT_DIVISOR).min(MAX_RTT_THRESH);
            if this >= last + share.max(MIN_RTT_THRESH) {
                self.conservative = Some(Conservative {
                    baseline: this,
                    rounds: 0,
                });
            }
        }
    }

    /// Starts the next round. Returns true if this was the last round of conservative slow start.
    fn end_round(&mut self, sent: u64) -> bool {
        self.window_end = Some(sent);
        self.last_round = self.this_round.take();
        self.samples = 0;
        let Some(phase) = &mut self.conservative else {
            return false;
        };
        phase.rounds += 1;
        phase.rounds >= CSS_ROUNDS
    }
}

// RFC 9406, section 4.3.
const MIN_RTT_THRESH: Duration = Duration::from_millis(4);
const MAX_RTT_THRESH: Duration = Duration::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u32 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u32 = 5;
