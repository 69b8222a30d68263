//! Congestion avoidance of CUBIC (RFC 9438).
//!
//! The window follows `W_cubic(t) = C * (t - K)^3 + W_max`, with `t` in seconds since the start of
//! the stage of congestion avoidance (the epoch), and the windows in segments. It is at least the
//! window that Reno would have (`W_est`, section 4.3).
//!
//! # Arithmetic
//! Windows are in bytes, times in microseconds, and products in 128 bits. Windows are rounded down.
//! `C = 2/5`, `beta = 7/10` and `alpha = 9/17` are exact fractions. `K` is rounded down to a
//! microsecond.

use std::time::Duration;

use crate::time::Instant;

use super::MAX_WINDOW;

/// State of congestion avoidance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cubic {
    /// `W_max` in bytes. `None` if no loss set it since the start or the last timeout.
    w_max: Option<u32>,
    /// `cwnd_prior`: the window in bytes when the slow start threshold was last set.
    prior: Option<u32>,
    /// Current stage of congestion avoidance; `None` if none started since the last event.
    epoch: Option<Epoch>,
    /// Time of the last ACK of the epoch, or end of the last idle period if that is later.
    updated: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Epoch {
    /// Start of the stage, later by all periods in which the application limited the window.
    start: Instant,
    /// `W_max` of this stage in bytes. At least the window at the start of the stage.
    plateau: u32,
    /// Time from the start to the plateau, in microseconds.
    k: u64,
    /// `W_est` in bytes with [`FRACTION_BITS`] binary places.
    estimate: u64,
    /// Growth of the window that did not give a whole byte, as a numerator over the window.
    remainder: u64,
}

impl Cubic {
    /// Handles `acked` acknowledged bytes of congestion avoidance, while the window was in use.
    /// Returns the growth of the window in bytes.
    pub(super) fn growth(
        &mut self,
        now: Instant,
        acked: u32,
        window: u32,
        mss: u32,
        rtt: Duration,
    ) -> u32 {
        self.updated = now;
        let (w_max, prior) = (self.w_max, self.prior);
        let epoch = self
            .epoch
            .get_or_insert_with(|| Epoch::new(now, window, w_max, mss));
        let time = now.since(epoch.start);

        // Section 4.3: alpha is 9/17 until W_est reaches cwnd_prior, and 1 from then on. Without a
        // loss cwnd_prior is the window at the start of the stage (section 4.10), so alpha is 1.
        let reached = prior.is_none_or(|prior| epoch.estimate >> FRACTION_BITS >= u64::from(prior));
        let (numerator, denominator) = if reached { (1, 1) } else { ALPHA };
        let scaled = (u128::from(acked) * u128::from(mss) * numerator) << FRACTION_BITS;
        let gain = scaled / (denominator * u128::from(window));
        let limit = u64::from(MAX_WINDOW) << FRACTION_BITS;
        epoch.estimate = u64::try_from(gain).map_or(limit, |gain| limit.min(epoch.estimate + gain));
        let estimate = bytes(u128::from(epoch.estimate >> FRACTION_BITS));

        // After a restart from idle, W_est can be far above the window. As in section 4.2, the
        // window grows at most by half of the acknowledged bytes.
        let most = acked / 2;
        if epoch.window_at(time, mss) < estimate {
            return estimate.saturating_sub(window).min(most);
        }
        // Sections 4.2, 4.4 and 4.5: the window moves towards W_cubic(t + RTT) by
        // (target - window) / window per acknowledged segment. The target is at least the window
        // and at most 1.5 windows.
        let target = epoch.window_at(time.saturating_add(rtt), mss);
        let gap = target.clamp(window, window.saturating_add(window / 2)) - window;
        let scaled = u64::from(gap) * u64::from(acked) + epoch.remainder;
        epoch.remainder = scaled % u64::from(window);
        bytes(u128::from(scaled / u64::from(window)))
    }

    /// Excludes the time since the last ACK from the epoch, because the application did not use the
    /// window (section 5.8).
    pub(super) fn application_limited(&mut self, now: Instant) {
        self.shift(now.since(self.updated), now);
    }

    /// Excludes `idle`, which ends at `now`, from the epoch.
    pub(super) fn idle(&mut self, now: Instant, idle: Duration) {
        self.shift(idle, now);
    }

    /// Moves the start of the epoch by `length`, at most to `now`.
    fn shift(&mut self, length: Duration, now: Instant) {
        if let Some(epoch) = &mut self.epoch {
            epoch.start = (epoch.start + length).min(now);
        }
        self.updated = now;
    }

    /// Ends the epoch. The next ACK of congestion avoidance starts a new one.
    pub(super) fn end_epoch(&mut self) {
        self.epoch = None;
    }

    /// Handles a loss or a congestion mark at `window`. Returns the slow start threshold without
    /// its lower limit (section 4.6).
    pub(super) fn reduce(&mut self, window: u32) -> u32 {
        // Section 4.7, fast convergence: a flow that did not regain W_max has a lower plateau next
        // time.
        let converging = self.w_max.is_some_and(|w_max| window < w_max);
        let (numerator, denominator) = CONVERGENCE;
        self.w_max = Some(if converging {
            scaled(window, numerator, denominator)
        } else {
            window
        });
        self.prior = Some(window);
        self.epoch = None;
        scaled(window, BETA.0, BETA.1)
    }

    /// Handles a timeout at `window`. Returns the slow start threshold without its lower limit.
    /// The stage of congestion avoidance that follows has K = 0 and `W_max` equal to the window at
    /// its start (section 4.8).
    pub(super) fn time_out(&mut self, window: u32) -> u32 {
        self.w_max = None;
        self.prior = Some(window);
        self.epoch = None;
        scaled(window, BETA.0, BETA.1)
    }
}

impl Epoch {
    fn new(now: Instant, window: u32, w_max: Option<u32>, mss: u32) -> Epoch {
        let plateau = w_max.unwrap_or(window).max(window);
        Epoch {
            start: now,
            plateau,
            k: time_to_plateau(plateau - window, mss),
            estimate: u64::from(window) << FRACTION_BITS,
            remainder: 0,
        }
    }

    /// `W_cubic(time)` in bytes (section 4.2, figure 1).
    fn window_at(&self, time: Duration, mss: u32) -> u32 {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let distance = micros.abs_diff(self.k).min(MAX_DISTANCE);
        // C * mss * distance^3, with C = 2/5 and the distance in microseconds. With a distance
        // below 2^32 and an MSS below 2^31, the product fits in 128 bits.
        let cube = u128::from(distance).pow(3);
        let product = 2 * u128::from(mss) * cube;
        let divisor = 5 * MICROS_CUBED;
        if micros < self.k {
            bytes(u128::from(self.plateau).saturating_sub(product.div_ceil(divisor)))
        } else {
            bytes(u128::from(self.plateau) + product / divisor)
        }
    }
}

/// K in microseconds for `missing` bytes below the plateau (section 4.2, figure 2): the cube root
/// of (missing / mss) / C in seconds.
pub(super) fn time_to_plateau(missing: u32, mss: u32) -> u64 {
    let cube = 5 * u128::from(missing) * MICROS_CUBED / (2 * u128::from(mss));
    cube_root(cube)
}

/// The largest integer whose cube is at most `value`, for values below 2^126. The cubes of all
/// candidates fit in 126 bits.
pub(super) fn cube_root(value: u128) -> u64 {
    let mut root: u64 = 0;
    for bit in (0..CUBE_ROOT_BITS).rev() {
        let candidate = root | 1 << bit;
        if u128::from(candidate).pow(3) <= value {
            root = candidate;
        }
    }
    root
}

/// `value * numerator / denominator`, rounded down. The fractions here are below 1.
fn scaled(value: u32, numerator: u64, denominator: u64) -> u32 {
    bytes(u128::from(u64::from(value) * numerator / denominator))
}

/// `value` as a window, at most [`MAX_WINDOW`].
fn bytes(value: u128) -> u32 {
    u32::try_from(value).map_or(MAX_WINDOW, |value| value.min(MAX_WINDOW))
}

/// `beta_cubic` = 0.7 (section 4.6).
const BETA: (u64, u64) = (7, 10);

/// `(1 + beta_cubic) / 2` = 0.85 (section 4.7).
const CONVERGENCE: (u64, u64) = (17, 20);

/// `alpha_cubic` = `3 * (1 - beta_cubic) / (1 + beta_cubic)` = 9/17 (section 4.3).
const ALPHA: (u128, u128) = (9, 17);

/// Binary places of `W_est`. One acknowledged segment adds less than a byte to large windows.
const FRACTION_BITS: u32 = 16;

/// Cubic microseconds in a cubic second.
const MICROS_CUBED: u128 = 1_000_000_000_000_000_000;

/// 2^31 microseconds, 36 minutes. After this time beyond the plateau `W_cubic` exceeds
/// [`MAX_WINDOW`] for every MSS.
const MAX_DISTANCE: u64 = 1 << 31;

/// Bits of the largest cube root. The largest K, for 2^30 bytes and an MSS of 1, has 31 bits.
const CUBE_ROOT_BITS: u32 = 42;

/// `W_cubic(time)` for a stage that starts at `window`.
#[cfg(test)]
pub(super) fn curve(w_max: u32, window: u32, mss: u32, time: Duration) -> u32 {
    Epoch::new(Instant::ZERO, window, Some(w_max), mss).window_at(time, mss)
}

#[cfg(test)]
impl Cubic {
    /// `W_max` of the current epoch.
    pub(super) fn plateau(&self) -> Option<u32> {
        self.epoch.as_ref().map(|epoch| epoch.plateau)
    }
}
