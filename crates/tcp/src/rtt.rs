//! Round-trip time and retransmission timeout (RFC 6298).
//!
//! [`Rtt`] keeps a smoothed round-trip time (SRTT) and its variation (RTTVAR), and derives the
//! retransmission timeout (RTO) from both. It also keeps the latest sample and a windowed minimum,
//! which RACK uses as `min_RTT` (RFC 8985, section 6.2, step 1).
//!
//! # Samples
//! The caller decides which acknowledgments give a sample. Without timestamps, a segment that was
//! retransmitted gives none (Karn's algorithm; RFC 6298, section 3). If one round trip gives
//! several samples, the caller passes the expected number, and each sample has proportionally less
//! weight (RFC 7323, appendix G).
//!
//! # Differences from RFC 6298
//! The lower limit of the RTO is 200 ms by default. RFC 6298, section 2.4, asks for 1 s. The margin
//! above the smoothed round-trip time is 200 ms as well, so that a delayed acknowledgment does not
//! cause a timeout. Linux uses the same values (`TCP_RTO_MIN`). Both are fields of [`RtoLimits`].

use std::time::Duration;

use crate::time::Instant;

/// Limits of the retransmission timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtoLimits {
    /// RTO before the first sample (RFC 6298, section 2.1).
    pub initial: Duration,
    /// Lowest RTO (RFC 6298, section 2.4).
    pub min: Duration,
    /// Highest RTO, also after back-off (RFC 6298, section 2.5). If `max` is below `min`, `max`
    /// applies.
    pub max: Duration,
    /// Lowest difference between the RTO and the smoothed round-trip time. RFC 6298, section 2.3,
    /// calls it G and sets it to the granularity of the clock. The margin should cover the time by
    /// which the peer delays acknowledgments.
    pub margin: Duration,
}

impl Default for RtoLimits {
    fn default() -> RtoLimits {
        RtoLimits {
            initial: Duration::from_secs(1),
            min: Duration::from_millis(200),
            max: Duration::from_secs(120),
            margin: Duration::from_millis(200),
        }
    }
}

/// Estimator of the round-trip time of one connection, with the state of the RTO back-off.
#[derive(Clone, Debug)]
pub struct Rtt {
    limits: RtoLimits,
    /// SRTT and RTTVAR; `None` before the first sample.
    estimate: Option<Estimate>,
    /// Latest sample.
    latest: Duration,
    minimum: WindowedMinimum,
    /// Samples so far, modulo 2^32.
    samples: u32,
    backoffs: u32,
}

/// SRTT and RTTVAR in nanoseconds with [`FRACTION_BITS`] binary places. The places keep the weight
/// of a sample that is small because one round trip has many of them.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    smoothed: u64,
    variation: u64,
}

impl Rtt {
    /// An estimator without samples.
    pub fn new(limits: RtoLimits) -> Rtt {
        Rtt {
            limits,
            estimate: None,
            latest: Duration::ZERO,
            minimum: WindowedMinimum::default(),
            samples: 0,
            backoffs: 0,
        }
    }

    /// Adds a sample that was measured at `now`. A sample above 2^40 ns (18 minutes) counts as
    /// 2^40 ns.
    ///
    /// `per_window` is the number of samples that the caller expects per round trip. With 1, and
    /// with 0, the sample has the weights of RFC 6298. RFC 7323, appendix G, proposes
    /// ceil(flight size / (2 * MSS)).
    ///
    /// A sample does not end the back-off; see [`Rtt::reset_backoff`].
    pub fn sample(&mut self, now: Instant, rtt: Duration, per_window: u32) {
        let nanos = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
        let nanos = nanos.min(MAX_SAMPLE);
        let rtt = nanos << FRACTION_BITS;
        let per_window = u64::from(per_window.max(1));
        self.estimate = Some(match self.estimate {
            // RFC 6298, section 2.2.
            None => Estimate {
                smoothed: rtt,
                variation: rtt / 2,
            },
            // RFC 6298, section 2.3: RTTVAR with beta = 1/4 first, then SRTT with alpha = 1/8.
            // RFC 7323, appendix G, divides both weights by the number of samples.
            Some(last) => Estimate {
                variation: approach(
                    last.variation,
                    last.smoothed.abs_diff(rtt),
                    BETA_DIVISOR * per_window,
                ),
                smoothed: approach(last.smoothed, rtt, ALPHA_DIVISOR * per_window),
            },
        });
        self.latest = Duration::from_nanos(nanos);
        self.minimum.add(now, self.latest);
        self.samples = self.samples.wrapping_add(1);
    }

    /// The smoothed round-trip time (SRTT); `None` before the first sample.
    pub fn smoothed(&self) -> Option<Duration> {
        let estimate = self.estimate?;
        Some(Duration::from_nanos(estimate.smoothed >> FRACTION_BITS))
    }

    /// The variation of the round-trip time (RTTVAR); zero before the first sample.
    pub fn variation(&self) -> Duration {
        let scaled = self.estimate.map_or(0, |estimate| estimate.variation);
        Duration::from_nanos(scaled >> FRACTION_BITS)
    }

    /// The smallest recent sample; `None` before the first sample. It covers at least the last 10 s
    /// and at most the last 20 s before the latest sample. RACK uses it as `min_RTT` (RFC 8985,
    /// section 6.2, step 1).
    pub fn min(&self) -> Option<Duration> {
        self.minimum.get()
    }

    /// The latest sample; `None` before the first sample.
    pub fn latest(&self) -> Option<Duration> {
        self.estimate.map(|_| self.latest)
    }

    /// The number of samples so far, modulo 2^32. Two equal numbers show that [`Rtt::latest`] did
    /// not change in between.
    pub(crate) fn samples(&self) -> u32 {
        self.samples
    }

    /// The retransmission timeout with back-off. It is at least [`RtoLimits::min`] and at most
    /// [`RtoLimits::max`].
    pub fn rto(&self) -> Duration {
        let base = match self.estimate {
            None => self.limits.initial,
            // RFC 6298, section 2.3: RTO = SRTT + max(G, K * RTTVAR), K = 4.
            Some(estimate) => {
                let spread = Duration::from_nanos((K * estimate.variation) >> FRACTION_BITS);
                let smoothed = Duration::from_nanos(estimate.smoothed >> FRACTION_BITS);
                smoothed.saturating_add(spread.max(self.limits.margin))
            }
        };
        // RFC 6298, section 5.5: each back-off doubles the RTO. Section 2.5 limits it.
        let factor = 1_u32 << self.backoffs.min(31);
        base.max(self.limits.min)
            .saturating_mul(factor)
            .min(self.limits.max)
    }

    /// Doubles the RTO after the retransmission timer expired (RFC 6298, section 5.5).
    pub fn back_off(&mut self) {
        self.backoffs = self.backoffs.saturating_add(1);
    }

    /// Ends the back-off. The caller does this when an acknowledgment covers data that was not
    /// retransmitted (Karn's algorithm; RFC 6298, section 5, last paragraphs).
    pub fn reset_backoff(&mut self) {
        self.backoffs = 0;
    }

    /// The number of times that the RTO was doubled since the last [`Rtt::reset_backoff`]. It
    /// counts on after the RTO reached [`RtoLimits::max`].
    pub fn backoffs(&self) -> u32 {
        self.backoffs
    }

    /// Raises the initial RTO to at least 3 s, because the timer of the SYN expired (RFC 6298,
    /// section 5.7). It applies until the first sample.
    pub fn handshake_lost(&mut self) {
        self.limits.initial = self.limits.initial.max(RTO_AFTER_LOST_SYN);
    }
}

impl Default for Rtt {
    fn default() -> Rtt {
        Rtt::new(RtoLimits::default())
    }
}

/// `(1 - 1/divisor) * value + sample / divisor`, rounded towards `value`.
fn approach(value: u64, sample: u64, divisor: u64) -> u64 {
    if sample >= value {
        value + (sample - value) / divisor
    } else {
        value - (value - sample) / divisor
    }
}

/// The minimum of the samples of two adjacent intervals of [`INTERVAL`].
#[derive(Clone, Copy, Debug, Default)]
struct WindowedMinimum {
    /// Start of the current interval.
    start: Instant,
    /// Minimum of the current interval; `None` before the first sample.
    current: Option<Duration>,
    /// Minimum of the interval before; `None` if it had no sample.
    previous: Option<Duration>,
}

impl WindowedMinimum {
    fn add(&mut self, now: Instant, sample: Duration) {
        let age = now.since(self.start);
        if age >= INTERVAL {
            self.previous = self.current.filter(|_| age < INTERVAL * 2);
            self.current = None;
            self.start = now;
        }
        self.current = Some(self.current.map_or(sample, |least| least.min(sample)));
    }

    fn get(&self) -> Option<Duration> {
        self.current.into_iter().chain(self.previous).min()
    }
}

/// 1/alpha (RFC 6298, section 2.3).
const ALPHA_DIVISOR: u64 = 8;

/// 1/beta (RFC 6298, section 2.3).
const BETA_DIVISOR: u64 = 4;

/// Factor of RTTVAR in the RTO (RFC 6298, section 2.3).
const K: u64 = 4;

/// RTO for data after the SYN was retransmitted (RFC 6298, section 5.7).
const RTO_AFTER_LOST_SYN: Duration = Duration::from_secs(3);

/// Binary places of [`Estimate`].
const FRACTION_BITS: u32 = 16;

/// 2^40 ns, 18 minutes. With [`FRACTION_BITS`] and the factor [`K`] it fits in 58 bits.
const MAX_SAMPLE: u64 = 1 << 40;

/// Length of one interval of [`WindowedMinimum`].
const INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
