//! The estimated rate of one direction of a link ([`DirectionRate`]), from what it carries and from
//! the excess of delays.
//!
//! ```text
//!                excess above the threshold
//!   ┌─> rising ─────────────────────────────> draining ──┐ still, and not
//!   │     ^  fast away from the knee,            │   ^    │ falling: again
//!   │     │  slowly near it                      │   └────┘
//!   │     └──────── pause over ──── paused <─────┘ queue empty
//!   └─ idle: towards the middle of the bounds
//! ```
//!
//! A *cut* lowers the rate below what the link was seen to carry: for receiving, what arrived; for
//! sending, what was sent divided by the growth of the delay (while a queue with the inflow R and
//! the outflow C grows, each second adds R/C - 1 seconds to the delay). If neither is known, the
//! size of the cut depends on the excess. Until the queue is empty, the rate is reduced further.
//! The rate at which the queue grew is the *knee*: below it the rate rises fast, near it slowly.
//! Each time the queue grows again near the last knee, the pause before the next rise doubles. So
//! the rate and the classes of a steady link change rarely.
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
    /// When the probe with this excess was sent.
    pub sent: Instant,
    /// The excess from which the link counts as overloaded.
    pub threshold: Nanos,
    /// The growth of the excess, in thousandths of the time that passed.
    pub growth: Option<u64>,
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
    /// The state while the queue drains.
    drain: Option<Drain>,
    /// The number of calls in a row in which the excess was above the threshold.
    overloaded: u32,
    /// While no reflector replies, no lower rate before this time.
    silent_from: Instant,
    /// No rise before this time.
    rise_from: Instant,
    /// The pause after a cut.
    pause: Nanos,
    /// The last rise, in thousandths of the rate.
    step: u64,
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
            silent_from: Instant::default(),
            rise_from: Instant::default(),
            pause: FIRST_PAUSE,
            step: FAST_STEP,
            idle_since: None,
        }
    }

    /// The estimated rate; always within the bounds.
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

    /// Follows new findings. The caller calls it every [`super::controller::TICK`] while the link
    /// is in use, and less often while it is idle.
    pub(super) fn handle(&mut self, findings: &Findings, now: Instant) {
        let percent = self.percent_used(findings.carried);
        if percent < IDLE_PERCENT {
            self.rest(now);
        } else {
            self.idle_since = None;
        }
        if findings.is_silent {
            if percent >= IDLE_PERCENT && now >= self.silent_from {
                self.set_bits(portion(self.rate, 70));
                (self.knee, self.drain) = (None, None);
                self.silent_from = now.after(SILENT_STEP);
            }
            return;
        }
        let Some(excess) = findings.excess else {
            self.overloaded = 0;
            return;
        };
        match excess >= findings.threshold {
            true => self.overloaded = self.overloaded.saturating_add(1),
            false => self.overloaded = 0,
        }
        if self.overloaded >= OVERLOADED_CALLS && percent >= IDLE_PERCENT {
            return self.lower(findings, excess, now);
        }
        if let Some(drain) = self.drain {
            if self.overloaded == 0 {
                self.drain = None;
                self.end_drain(&drain, now);
            }
            return;
        }
        let is_short = excess < Nanos(findings.threshold.0 / 2);
        if percent >= FULL_PERCENT && is_short && now >= self.rise_from {
            self.rise(now);
        }
    }

    /// Lowers the rate while the excess is above the threshold: at once, and again when the delays
    /// show that this was too little.
    fn lower(&mut self, findings: &Findings, excess: Nanos, now: Instant) {
        let Some(mut drain) = self.drain.take() else {
            let carries = carries(findings, findings.carried);
            let bits = self.rate.bits_per_second();
            let target = match carries {
                Some(carries) => carries.min(bits) / 100 * BELOW_KNEE,
                None => by_level(bits, findings, excess),
            };
            let target = target.max(bits / 4);
            let drain = Drain {
                target,
                knee: carries.unwrap_or(target).clamp(target, bits.max(target)),
                inflow: findings.carried,
                evident_until: match findings.is_receiving {
                    true => now.after(EVIDENT_TIME),
                    false => now,
                },
                since: now,
                judged: None,
            };
            return self.drain_by(drain, excess);
        };
        let seen = carries(findings, drain.inflow);
        let is_before = findings.sent < drain.since;
        if let Some(seen) = seen.filter(|_| findings.sent < drain.evident_until)
            && seen / 100 * BELOW_KNEE < drain.target
        {
            drain.target = (seen / 100 * BELOW_KNEE).max(drain.target / 4);
            drain.knee = seen.max(drain.target);
            (drain.since, drain.judged) = (now, None);
        } else if is_before {
            if now.since(drain.since) >= LONGEST_WAIT {
                drain.again(findings, excess, now);
            }
        } else {
            match drain.judged {
                None => drain.judged = Some((excess, now)),
                Some((_, at)) if now.since(at) < JUDGE_TIME => {}
                Some((last, _)) if excess.0 < last.0 - last.0 / 8 => {
                    drain.judged = Some((excess, now));
                }
                Some(_) => drain.again(findings, excess, now),
            }
        }
        self.drain_by(drain, excess);
    }

    /// Sets the rate so that the queue drains.
    fn drain_by(&mut self, drain: Drain, excess: Nanos) {
        let part = (excess.0 / (DRAIN_TIME.0 / 100)).clamp(5, 75);
        self.set_bits(drain.target / 100 * (100 - part));
        self.drain = Some(drain);
    }

    /// The queue is empty.
    fn end_drain(&mut self, drain: &Drain, now: Instant) {
        self.set_bits(drain.target);
        let is_known = self
            .knee
            .is_some_and(|old| drain.knee.abs_diff(old) <= old / 5);
        self.pause = match is_known {
            true => Nanos(self.pause.0 * 2).min(LONGEST_PAUSE),
            false => FIRST_PAUSE,
        };
        self.knee = Some(drain.knee);
        self.step = SLOW_STEP;
        self.rise_from = now.after(self.pause);
    }

    /// Raises the rate by a step.
    fn rise(&mut self, now: Instant) {
        let bits = self.rate.bits_per_second();
        self.step = match self.knee {
            Some(knee) if bits > knee + knee / 20 => {
                // The link carries more than it did.
                self.knee = None;
                self.pause = FIRST_PAUSE;
                self.step
            }
            Some(knee) if bits >= knee - knee / 8 => SLOW_STEP,
            Some(_) => FAST_STEP,
            None => (2 * self.step).min(FAST_STEP),
        };
        self.set_bits(bits.saturating_add(bits / 1000 * self.step));
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
        self.step = FAST_STEP;
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
        let nearest = bits.clamp(Rate::MIN.bits_per_second(), Rate::MAX.bits_per_second());
        self.set(Rate::new(nearest).unwrap_or(self.rate));
    }
}

/// What the link is seen to carry while a queue grows, if `inflow` was sent; `None` if it is not
/// seen.
fn carries(findings: &Findings, inflow: u64) -> Option<u64> {
    match (findings.is_receiving, findings.growth) {
        (true, _) => Some(findings.carried),
        (false, Some(growth)) => {
            Some((u128::from(inflow) * 1000 / u128::from(1000 + growth.min(1 << 30))) as u64)
        }
        (false, None) => None,
    }
}

/// A lower rate, by the excess alone.
fn by_level(bits: u64, findings: &Findings, excess: Nanos) -> u64 {
    let percent = match excess.0 / findings.threshold.0.max(1) {
        0 | 1 => 92,
        2 | 3 => 80,
        _ => 65,
    };
    bits / 100 * percent
}

/// The state while the queue of a link shall become empty.
#[derive(Clone, Copy, Debug)]
struct Drain {
    /// The rate after that, in bit/s.
    target: u64,
    /// What the link seems to carry.
    knee: u64,
    /// What was sent when the excess was seen.
    inflow: u64,
    /// Probes that are sent earlier show what the link carried: they met the queue that `inflow`
    /// made; for receiving, the rate is then that of a link with a queue.
    evident_until: Instant,
    /// When the rate was lowered last.
    since: Instant,
    /// The excess of a probe that was sent after that, and when it was looked at.
    judged: Option<(Nanos, Instant)>,
}

impl Drain {
    /// Lowers the target once more.
    fn again(&mut self, findings: &Findings, excess: Nanos, now: Instant) {
        self.target = by_level(self.target, findings, excess);
        self.knee = self.target;
        (self.since, self.judged) = (now, None);
        self.evident_until = Instant::default();
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
/// A step away from the knee, in thousandths. At 12 % in 200 ms the rate is fourfold after 2.5 s,
/// and the first step above what the link carries makes a queue of at most 24 ms in its 200 ms.
const FAST_STEP: u64 = 120;
/// A step near the knee. Beyond it, each step is twice the one before.
const SLOW_STEP: u64 = 20;
/// Time between two rises.
const RISE_STEP: Nanos = Nanos::from_millis(200);
/// The pause after a cut at a new place, and the longest one. The longest delays the use of a link
/// that has become faster; the knee is tried at most so often.
const FIRST_PAUSE: Nanos = Nanos::from_millis(500);
const LONGEST_PAUSE: Nanos = Nanos::from_secs(2);
/// The rate after a cut, in percent of what the link carries.
const BELOW_KNEE: u64 = 95;
/// The time in which the queue shall drain.
const DRAIN_TIME: Nanos = Nanos::from_millis(250);
/// How long what arrives shows what the link carries, after the rate was lowered.
const EVIDENT_TIME: Nanos = Nanos::from_millis(300);
/// The longest time until a probe shows the effect of a lower rate.
const LONGEST_WAIT: Nanos = Nanos::from_secs(1);
/// The time in which the excess must become smaller.
const JUDGE_TIME: Nanos = Nanos::from_millis(150);
/// Time between two cuts while no reflector replies.
const SILENT_STEP: Nanos = Nanos::from_millis(500);
/// How long a direction is idle before each step towards the middle.
const IDLE_TIME: Nanos = Nanos::from_secs(5);
