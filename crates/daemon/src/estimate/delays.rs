//! How much longer probes to one reflector take than at best ([`ReflectorDelays`]).
//!
//! The best time is the shortest of the last half to whole minute ([`WindowedMin`]), so that a
//! changed route counts after that time, and a queue that empties now and then does not. The excess
//! of a probe is its time beyond the best. If the reflector reports its times of day, there is an
//! excess for each direction: the clocks differ by a constant, which is in the best time too, and
//! so drops out. An excess of one direction larger than that of the round trip means that a clock
//! was set, and is cut to the latter.
//!
//! A probe without a reply is known to take at least as long as it already waits, so a queue that
//! grows fast is seen before its first reply. Nothing fails.

use netnice_core::units::{Instant, Nanos};

/// The reply to a probe, as the prober measured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// The time from the departure of the request at the interface to the arrival of the reply.
    pub round_trip: Nanos,
    /// The reflector's clock at the arrival of the request minus this host's clock at its
    /// departure, and this host's clock at the arrival of the reply minus the reflector's at its
    /// departure, in ns. `None` if the reflector reports no times of day.
    pub one_way: Option<[i64; 2]>,
}

/// The excess of the last probe to a reflector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excess {
    /// When the request was sent.
    pub sent: Instant,
    /// The excess of the round trip.
    pub round_trip: Nanos,
    /// The excess for sending and for receiving, if it is known for each.
    pub one_way: Option<[Nanos; 2]>,
}

/// The delays of one reflector.
#[derive(Clone, Debug, Default)]
pub(super) struct ReflectorDelays {
    round_trip: WindowedMin,
    one_way: [WindowedMin; 2],
    /// The last excess, and the one of the probe before it.
    last: Option<Excess>,
    before: Option<Excess>,
    replied: Option<Instant>,
    replies: u32,
}

impl ReflectorDelays {
    /// Takes the reply to a probe that was sent at `sent`.
    pub(super) fn handle_reply(&mut self, sent: Instant, reply: Reply, now: Instant) {
        if self.last.is_some_and(|last| sent < last.sent) {
            // It was overtaken: a later probe tells more.
            return;
        }
        let round_trip = reply.round_trip.0.min(i64::MAX as u64) as i64;
        let best = self.round_trip.add(round_trip, now);
        let excess = Nanos(round_trip.saturating_sub(best).unsigned_abs());
        let one_way = reply.one_way.map(|times| {
            let mut of = |n: usize| {
                let best = self.one_way[n].add(times[n], now);
                Nanos(times[n].saturating_sub(best).unsigned_abs()).min(excess)
            };
            [of(0), of(1)]
        });
        self.before = self.last;
        self.last = Some(Excess {
            sent,
            round_trip: excess,
            one_way,
        });
        self.replied = Some(now);
        self.replies = self.replies.saturating_add(1);
    }

    /// The shortest round trip of the last one to two [`WINDOW`]s; `None` before the first reply.
    pub(super) fn best(&self) -> Option<Nanos> {
        self.round_trip
            .best()
            .map(|best| Nanos(best.unsigned_abs()))
    }

    /// The excess of the probe that was sent last of those with a reply; `None` before the first
    /// reply.
    pub(super) fn last(&self) -> Option<Excess> {
        self.last
    }

    /// How fast the excess of a direction grew between the last two probes, in thousandths of the
    /// time between them. `None` without two probes within a second, or if it did not grow.
    pub(super) fn growth(&self, direction: usize) -> Option<u64> {
        let (last, before) = (self.last?, self.before?);
        let of = |excess: &Excess| match excess.one_way {
            Some(one_way) => one_way[direction],
            None => excess.round_trip,
        };
        let apart = last.sent.since(before.sent);
        let grew = of(&last).0.checked_sub(of(&before).0)?;
        let is_near = apart > Nanos(0) && apart <= Nanos::from_secs(1);
        (is_near && grew > 0).then(|| grew.saturating_mul(1000) / apart.0)
    }

    /// When the last reply came.
    pub(super) fn replied(&self) -> Option<Instant> {
        self.replied
    }

    /// The number of replies that were counted; replies out of order are not.
    pub(super) fn replies(&self) -> u32 {
        self.replies
    }
}

/// The smallest value of the last one to two [`WINDOW`]s.
#[derive(Clone, Copy, Debug, Default)]
struct WindowedMin {
    /// Begin of the present window.
    since: Instant,
    present: Option<i64>,
    previous: Option<i64>,
}

impl WindowedMin {
    /// Adds a value, and returns the smallest.
    fn add(&mut self, value: i64, now: Instant) -> i64 {
        if now.since(self.since) >= WINDOW {
            self.previous = self.present.take();
            self.since = now;
        }
        self.present = Some(self.present.map_or(value, |present| present.min(value)));
        self.best().unwrap_or(value)
    }

    fn best(&self) -> Option<i64> {
        self.present.into_iter().chain(self.previous).min()
    }
}

/// How long a best time counts at least. In this time the rate is lowered often enough that the
/// queue of the link is empty once.
const WINDOW: Nanos = Nanos::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant(0).after(Nanos::from_millis(millis))
    }

    fn reply(round_trip: u64, one_way: Option<[i64; 2]>) -> Reply {
        Reply {
            round_trip: Nanos::from_millis(round_trip),
            one_way: one_way.map(|times| times.map(|time| time * 1_000_000)),
        }
    }

    fn millis(delays: &ReflectorDelays) -> (u64, Option<[u64; 2]>) {
        let last = delays.last().expect("an excess");
        let of = |time: Nanos| time.0 / 1_000_000;
        (of(last.round_trip), last.one_way.map(|each| each.map(of)))
    }

    #[test]
    fn an_excess_is_distinguished_from_a_long_way_and_from_another_clock() {
        let mut delays = ReflectorDelays::default();
        // The reflector's clock is 5 s ahead.
        delays.handle_reply(at(0), reply(30, Some([5_010, -4_980])), at(30));
        assert_eq!(millis(&delays), (0, Some([0, 0])));
        delays.handle_reply(at(100), reply(70, Some([5_050, -4_980])), at(170));
        assert_eq!(millis(&delays), (40, Some([40, 0])));
        assert_eq!(delays.growth(0), Some(400), "40 ms in 100 ms");
        assert_eq!(delays.growth(1), None);
        assert_eq!(delays.best(), Some(Nanos::from_millis(30)));
    }

    #[test]
    fn a_clock_that_is_set_makes_no_excess() {
        let mut delays = ReflectorDelays::default();
        delays.handle_reply(at(0), reply(30, Some([10, 20])), at(30));
        delays.handle_reply(at(100), reply(30, Some([3_610, -3_580])), at(130));
        assert_eq!(millis(&delays), (0, Some([0, 0])));
    }

    #[test]
    fn a_longer_route_counts_after_a_minute_and_a_shorter_one_at_once() {
        let mut delays = ReflectorDelays::default();
        delays.handle_reply(at(0), reply(30, None), at(30));
        for second in 1..=61 {
            let now = at(second * 1000);
            delays.handle_reply(now, reply(50, None), now);
            let expected = if second < 60 { 20 } else { 0 };
            assert_eq!(millis(&delays).0, expected, "after {second} s");
        }
        delays.handle_reply(at(62_000), reply(20, None), at(62_020));
        delays.handle_reply(at(62_100), reply(50, None), at(62_150));
        assert_eq!(millis(&delays).0, 30);
    }

    #[test]
    fn a_reply_that_was_overtaken_does_not_count() {
        let mut delays = ReflectorDelays::default();
        delays.handle_reply(at(100), reply(30, None), at(130));
        delays.handle_reply(at(0), reply(900, None), at(900));
        assert_eq!(millis(&delays).0, 0);
        assert_eq!(delays.replies(), 1);
    }
}
