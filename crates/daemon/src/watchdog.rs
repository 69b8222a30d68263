//! Whether the event loop turns: a service manager is told each time it does, and the log when it was late.
//!
//! The loop calls [`Watchdog::turned`] from its tick of a second. Nothing else tells the service manager
//! (`WatchdogSec=` in the unit), so a loop that hangs is noticed and the daemon started again; what is in force stays.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::Instant;

/// When the loop was late last.
#[derive(Debug, Default)]
pub struct Watchdog {
    told: Option<Instant>,
    /// The worst delay since the log was told.
    worst: Duration,
}

impl Watchdog {
    /// The loop has turned at `now`; it was to do so at `due`.
    pub fn turned(&mut self, due: Instant, now: Instant) {
        // Nobody hears it where no service manager asked.
        let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        if let Some(late) = self.late(due, now) {
            tracing::warn!(
                "the event loop was late by {} ms: requests waited so long",
                late.as_millis()
            );
        }
    }

    /// How late it was at worst, if the log is to be told: not more often than each [`QUIET`].
    fn late(&mut self, due: Instant, now: Instant) -> Option<Duration> {
        self.worst = self.worst.max(now.saturating_duration_since(due));
        let is_news = self.worst >= LATE;
        let is_quiet = self.told.is_some_and(|told| now - told < QUIET);
        if !is_news || is_quiet {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.worst))
    }
}

/// A person notices it.
const LATE: Duration = Duration::from_secs(1);
/// A log that repeats itself hides the rest.
const QUIET: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_told_once_a_minute_and_the_worst_of_it() {
        let mut watchdog = Watchdog::default();
        let start = Instant::now();
        let mut late = |at: u64, by: u64| {
            let due = start + Duration::from_secs(at);
            watchdog.late(due, due + Duration::from_millis(by))
        };
        assert_eq!(late(0, 900), None);
        assert_eq!(late(1, 1500), Some(Duration::from_millis(1500)));
        assert_eq!(late(2, 5000), None, "too soon to say again");
        assert_eq!(late(30, 1200), None);
        assert_eq!(late(90, 0), Some(Duration::from_millis(5000)));
        assert_eq!(late(200, 10), None);
    }
}
