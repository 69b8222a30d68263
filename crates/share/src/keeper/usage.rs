//! The usage of a session ([`Usage`]), in bit/s, and whether the session is idle. Readings of its
//! byte counter come in. A session is idle after 2 s in which it used at most a tenth of its share,
//! and busy again when it uses half of its present share (while an idle session's rest is lent to
//! others: half of the part that it keeps). Nothing here fails; a counter that was reset gives no
//! usage until the next reading.

use crate::divide;

/// The usage of a session.
#[derive(Default)]
pub(super) struct Usage {
    /// The last reading: time in ns, bytes.
    last: Option<(u64, u64)>,
    /// Start of the present period of low usage in ns, and the highest usage in it in bit/s.
    low: Option<(u64, u64)>,
    /// Set if the session is idle: its highest usage in bit/s.
    idle: Option<u64>,
    /// The share that the session had when it was last not idle, in bit/s.
    full_share: u64,
}

impl Usage {
    /// The session's highest usage while it is idle, in bit/s; `None` if it is busy.
    pub(super) fn idle(&self) -> Option<u64> {
        self.idle
    }

    /// Adds a reading of the session's byte counter, while its share is `share` bit/s. True if the
    /// reading changes how much of its share the session keeps, for example because the session
    /// became idle or busy.
    pub(super) fn record(&mut self, at_ns: u64, bytes: u64, share: u64) -> bool {
        if self.idle.is_none() {
            self.full_share = share;
        }
        self.add_reading(at_ns, bytes, share)
    }

    fn add_reading(&mut self, at_ns: u64, bytes: u64, share: u64) -> bool {
        let before = self.last.replace((at_ns, bytes));
        let Some((then, had)) = before.filter(|(then, had)| *then < at_ns && *had <= bytes) else {
            return false;
        };
        let bits = u128::from(bytes - had) * 8_000_000_000 / u128::from(at_ns - then);
        let rate = u64::try_from(bits).unwrap_or(u64::MAX);
        let was = self.idle;
        match was {
            // The session uses half of its present share, so it may need more.
            Some(_) if rate >= share / 2 => *self = self.busy(),
            Some(most) => self.idle = Some(most.max(rate)),
            None if rate > self.full_share / LOW_DIVISOR => self.low = None,
            None => {
                let (since, most) = self.low.unwrap_or((then, 0));
                let most = most.max(rate);
                self.low = Some((since, most));
                if at_ns - since >= IDLE_NS {
                    self.idle = Some(most);
                }
            }
        }
        // Report a change only if it changes what the session keeps.
        let retained =
            |used: Option<u64>| used.map(|used| divide::retained(self.full_share, used, 0));
        retained(was) != retained(self.idle)
    }

    fn busy(&self) -> Usage {
        Usage {
            last: self.last,
            full_share: self.full_share,
            ..Usage::default()
        }
    }
}

/// Usage of at most this fraction of the share (a tenth) is low.
const LOW_DIVISOR: u64 = 10;

/// Duration of low usage after which a session is idle. A pause between two files is shorter.
const IDLE_NS: u64 = 2_000_000_000;

#[cfg(test)]
mod tests;
