//! The estimated rate of one direction of a link ([`DirectionRate`]), from what it carries and from
//! the excess of delays.
//!
//! ```text
//!                excess above the threshold
//!   ┌─> rising ─────────────────────────────> cut ──── small excess ────┐
//!   │     ^  fast away from the knee,          │ large excess           │
//!   │     │  slowly near it                    v                        v
//!   │     └──────────── pause over ──────── paused <─ queue empty ─ draining
//!   └─ idle: towards the middle of the bounds
//! ```
//!
//! A *cut* lowers the rate below what the link was seen to carry: for receiving, what arrived; for
//! sending, what was sent divided by the growth of the delay (while a queue with the inflow R and
//! the outflow C grows, each second adds R/C - 1 seconds to the delay). Where neither is known, the
//! excess decides by how much. After a large excess the rate stays lower still until the queue is
//! empty. The rate at which the queue grew is the *knee*: below it the rate rises fast, near it
//! slowly, and each time the knee is found again at the same place, the pause before the next rise
//! doubles. So a steady link is tried rarely, and its classes change rarely.
//!
//! The rate is always within the bounds. Nothing fails.

use netnice_core::link::EstimateBounds;
use netnice_core::units::{Instant, Nanos, Rate};

/// What the controller found out about a direction since the last call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Findings {
    /// What the interface carried lately, in bit/s.
    pub carried: u64,
    /// What arrives is what the link carries: the direction is receiving.
    pub is_receiving: bool,
    /// The excess of delays that is ascribed to this direction; `None` if it is unknown.
    pub excess: Option<Nanos>,
    /// The excess from which the link counts as overloaded.
    pub threshold: Nanos,
    /// The growth of the excess, in thousandths of the time that passed.
    pub growth: Option<u64>,
    /// The shortest round trip.
    pub best: Nanos,
    /// True if probes are sent and none is answered.
    pub is_silent: bool,
}

/// The estimated rate of one direction.
#[derive(Clone, Debug)]
pub(super) struct DirectionRate {
    bounds: EstimateBounds,
    rate: Rate,
    /// The rate at which the queue grew last.
    knee: Option<u64>,
    /// The rate after the queue is empty, and the latest time for it.
    drain: Option<(Rate, Instant)>,
    /// The number of calls in a row in which the excess was above the threshold.
    overloaded: u32,
    /// The excess of the last cut or check after it.
    checked: Option<Nanos>,
    /// No cut before this time.
    cut_from: Instant,
    /// No rise before this time.
    rise_from: Instant,
    /// The pause after a cut.
    pause: Nanos,
    /// Since when the direction is idle.
    idle_since: Option<Instant>,
}

impl DirectionRate {
    /// A rate within these bounds.
    pub(super) fn new(bounds: EstimateBounds, rate: Rate) -> DirectionRate {
        DirectionRate {
            bounds,
            rate: bounds.clamp(rate),
            knee: None,
            drain: None,
            overloaded: 0,
            checked: None,
            cut_from: Instant::default(),
            rise_from: Instant::default(),
            pause: FIRST_PAUSE,
            idle_since: None,
        }
    }

    /// The estimate.
    pub(super) fn rate(&self) -> Rate {
        self.rate
    }

    /// The bounds of the estimate.
    pub(super) fn bounds(&self) -> EstimateBounds {
        self.bounds
    }

    /// What part of the rate was carried, in percent.
    pub(super) fn percent_used(&self, carried: u64) -> u64 {
        carried.saturating_mul(100) / self.rate.bits_per_second()
    }

    /// Sets the rate, within the bounds.
    pub(super) fn set(&mut self, rate: Rate) {
        self.rate = self.bounds.clamp(rate);
    }

    /// Follows new findings. The caller calls it every [`super::controller::TICK`] while the link is
    /// in use, and less often while it is idle.
    pub(super) fn handle(&mut self, findings: &Findings, now: Instant) {
        let percent = self.percent_used(findings.carried);
        if percent < IDLE_PERCENT {
            self.rest(now);
        } else {
            self.idle_since = None;
        }
        if findings.is_silent {
            if percent >= IDLE_PERCENT && now >= self.cut_from {
                self.set_bits(portion(self.rate, 70));
                (self.knee, self.drain) = (None, None);
                self.cut_from = now.after(SILENT_STEP);
            }
            return;
        }
        let Some(excess) = findings.excess else {
            self.overloaded = 0;
            return;
        };
        match excess >= findings.threshold {
            true => self.overloaded = self.overloaded.saturating_add(1),
            false => (self.overloaded, self.checked) = (0, None),
        }
        if self.overloaded >= OVERLOADED_CALLS && percent >= IDLE_PERCENT {
            if now >= self.cut_from {
                self.cut_or_wait(findings, excess, now);
            }
            return;
        }
        if let Some((rate, until)) = self.drain {
            if self.overloaded == 0 || now >= until {
                self.drain = None;
                self.set(rate);
                self.rise_from = now.after(self.pause);
            }
            return;
        }
        let is_short = excess < Nanos(findings.threshold.0 / 2);
        if percent >= FULL_PERCENT && is_short && now >= self.rise_from {
            self.rise(now);
        }
    }

    /// Cuts the rate, unless the queue becomes shorter since the last cut.
    fn cut_or_wait(&mut self, findings: &Findings, excess: Nanos, now: Instant) {
        let falls = self.checked.is_some_and(|last| excess.0 < last.0 - last.0 / 8);
        self.checked = Some(excess);
        // The effect of a cut is seen when a probe that was sent after it has come back.
        let delay = findings.best.0.saturating_add(excess.0);
        let wait = Nanos(delay.saturating_add(CUT_MARGIN.0).min(LONGEST_WAIT.0));
        self.cut_from = now.after(wait);
        if falls {
            return;
        }
        let bits = self.rate.bits_per_second();
        let level = excess.0 / findings.threshold.0.max(1);
        let by_level = portion(self.rate, match level {
            0 | 1 => 92,
            2 | 3 => 80,
            _ => 65,
        });
        let carries = match (findings.is_receiving, findings.growth) {
            (true, _) => Some(findings.carried),
            (false, Some(growth)) => {
                Some(findings.carried.saturating_mul(1000) / (1000 + growth))
            }
            (false, None) => None,
        };
        let target = match carries {
            Some(carries) => {
                let below = carries / 100 * 95;
                below.min(by_level.max(bits / 100 * 80))
            }
            None => by_level,
        };
        let target = target.max(bits / 3);
        let knee = carries.unwrap_or(target).min(bits).max(target);
        let is_known = self.knee.is_some_and(|old| knee.abs_diff(old) <= old / 5);
        self.pause = match is_known {
            true => Nanos(self.pause.0 * 2).min(LONGEST_PAUSE),
            false => FIRST_PAUSE,
        };
        self.knee = Some(knee);
        self.rise_from = now.after(self.pause);
        self.set_bits(target);
        if level >= 2 {
            self.drain = Some((self.rate, now.after(LONGEST_DRAIN)));
            self.set_bits(target / 100 * DRAIN_PERCENT);
        } else {
            self.drain = None;
        }
    }

    /// Raises the rate by a step.
    fn rise(&mut self, now: Instant) {
        let bits = self.rate.bits_per_second();
        let percent = match self.knee {
            Some(knee) if bits > knee + knee / 20 => {
                // The link carries more than it did.
                self.knee = None;
                self.pause = FIRST_PAUSE;
                FAST_PERCENT
            }
            Some(knee) if bits >= knee - knee / 8 => SLOW_PERCENT,
            _ => FAST_PERCENT,
        };
        self.set_bits(portion(self.rate, 100 + percent));
        self.rise_from = now.after(RISE_STEP);
    }

    /// Moves the rate towards the middle of the bounds while the direction is idle: what the link
    /// carries may have changed.
    fn rest(&mut self, now: Instant) {
        let since = *self.idle_since.get_or_insert(now);
        if now.since(since) < IDLE_TIME {
            return;
        }
        self.idle_since = Some(now);
        (self.knee, self.drain, self.pause) = (None, None, FIRST_PAUSE);
        let middle = self.bounds.middle().bits_per_second();
        let bits = self.rate.bits_per_second();
        let step = bits.abs_diff(middle) / 4;
        if step <= middle / 100 {
            return self.set_bits(middle);
        }
        match bits < middle {
            true => self.set_bits(bits + step),
            false => self.set_bits(bits - step),
        }
    }

    fn set_bits(&mut self, bits: u64) {
        let nearest = bits.clamp(
            Rate::MIN.bits_per_second(),
            Rate::MAX.bits_per_second(),
        );
        self.set(Rate::new(nearest).unwrap_or(self.rate));
    }
}

fn portion(rate: Rate, percent: u64) -> u64 {
    rate.bits_per_second().saturating_mul(percent) / 100
}

/// Below this use, in percent of the rate, a direction is idle.
pub(super) const IDLE_PERCENT: u64 = 10;
/// From this use on, the rate may be what holds the traffic back.
const FULL_PERCENT: u64 = 75;
/// In this number of calls the excess must be above the threshold, so that one late packet changes
/// nothing.
const OVERLOADED_CALLS: u32 = 2;
/// A step away from the knee. At 10 % in 200 ms the rate is fourfold after 3 s, and the first step
/// above what the link carries makes a queue of at most 20 ms in its 200 ms.
const FAST_PERCENT: u64 = 10;
/// A step near the knee.
const SLOW_PERCENT: u64 = 2;
/// Time between two rises.
const RISE_STEP: Nanos = Nanos::from_millis(200);
/// The pause after a cut at a new place, and the longest one. The longest delays the use of a link
/// that has become faster; the knee is tried at most so often.
const FIRST_PAUSE: Nanos = Nanos::from_millis(500);
const LONGEST_PAUSE: Nanos = Nanos::from_secs(4);
/// The rate while the queue drains, of the rate after it.
const DRAIN_PERCENT: u64 = 60;
/// The longest time for that.
const LONGEST_DRAIN: Nanos = Nanos::from_secs(2);
/// Time beyond the delay until the effect of a cut is judged, and the longest such time.
const CUT_MARGIN: Nanos = Nanos::from_millis(100);
const LONGEST_WAIT: Nanos = Nanos::from_secs(1);
/// Time between two cuts while no reflector replies.
const SILENT_STEP: Nanos = Nanos::from_millis(500);
/// How long a direction is idle before each step towards the middle.
const IDLE_TIME: Nanos = Nanos::from_secs(5);
