//! The response to `netnice show --history`: rates, drops and queueing delays of targets, as
//! columns of points. A point covers a second if the request asks for at most 120 s, else a minute.
//! The response has at most [`MAX_POINTS`] (100,000) points: of n targets, each has at most its
//! latest 100,000 / n. Fails if the named text is no target, the named target is not held, or the
//! named process does not exist.

use netnice_api::{HistoryDoc, TargetHistory};
use netnice_core::target::Target;
use netnice_core::units::Nanos;

use super::view::View;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Inventory;
use crate::ledger::HeldTarget;
use crate::meter::history::{Point, Step};

impl<H: Inventory> View<'_, H> {
    /// The recorded history of one target, or of all targets if the request names none. For a
    /// process, that of the target that contains it, if one does.
    ///
    /// # Errors
    /// If the named text is no target, the named target is not held, or the named process does not
    /// exist.
    pub(super) fn history(
        &mut self,
        request: &netnice_api::History,
        now: Now,
    ) -> Result<HistoryDoc, RequestError> {
        let mut held: Vec<HeldTarget> = match &request.target {
            None => self.ledger().held().cloned().collect(),
            Some(text) => match text.parse()? {
                target @ Target::Pid(pid) => self.of_process(&target, pid.get())?,
                target => vec![self.finder().lookup(&target)?.clone()],
            },
        };
        held.sort_by_cached_key(|held| held.entry.target.to_string());
        let last = Nanos(request.last_ns);
        let step = if last <= MAX_SECONDS {
            Step::Second
        } else {
            Step::Minute
        };
        let most = MAX_POINTS / held.len().max(1);
        let since = |point: &Point| now.monotonic.since(point.at);
        let target = |held: &HeldTarget| {
            let points = self.measurements.history.of(held.id, step).into_iter();
            let points: Vec<Point> = points.filter(|point| since(point) < last).collect();
            let from = points.len().saturating_sub(most);
            self.target_history(held, &points[from..])
        };
        // The counters of all targets were read at the same time.
        let read_at = self.measurements.history.read_at().unwrap_or(now.monotonic);
        let ago = now.monotonic.since(read_at);
        Ok(HistoryDoc {
            version: HistoryDoc::VERSION,
            until_ns: now.wall_ns.saturating_sub(ago.0),
            step_ns: match step {
                Step::Second => 1_000_000_000,
                Step::Minute => 60_000_000_000,
            },
            targets: held.iter().map(target).collect(),
        })
    }

    fn target_history(&self, held: &HeldTarget, points: &[Point]) -> TargetHistory {
        let effective = held.effective(self.ledger());
        let bits = |rate: netnice_core::units::Rate| rate.bits_per_second();
        let column = |of: &dyn Fn(&Point) -> u64| points.iter().map(of).collect::<Vec<u64>>();
        let rate = |bytes: u64, point: &Point| {
            let bits = u128::from(bytes) * 8 * 1000 / u128::from(point.time_ms.max(1));
            u64::try_from(bits).unwrap_or(u64::MAX)
        };
        TargetHistory {
            target: held.entry.target.to_string(),
            up: effective.up().map(bits),
            down: effective.down().map(bits),
            both: effective.both().map(bits),
            time_ns: column(&|point| u64::from(point.time_ms) * 1_000_000),
            up_rate: column(&|point| rate(point.bytes[0], point)),
            down_rate: column(&|point| rate(point.bytes[1], point)),
            dropped_packets: column(&|point| u64::from(point.drops)),
            queue_delay_ns: column(&|point| u64::from(point.wait_us) * 1000),
        }
    }
}

/// Up to this length of the requested history each point covers a second, beyond it a minute.
const MAX_SECONDS: Nanos = Nanos::from_secs(120);
/// Largest number of points in a response. With many targets, each gets a shorter history.
const MAX_POINTS: usize = 100_000;
