//! What a session uses, and whether that is little.

use crate::divide;

/// What a session uses.
#[derive(Default)]
pub(super) struct Use {
    /// The last reading: time in ns, bytes.
    last: Option<(u64, u64)>,
    /// Since when it has used little, in ns, and the most that it used since, in bit/s.
    little: Option<(u64, u64)>,
    /// It is idle, and uses at most so much.
    idle: Option<u64>,
    /// The largest share that it had while it was not idle.
    whole: u64,
}

impl Use {
    /// How much it uses, if it is idle.
    pub(super) fn idle(&self) -> Option<u64> {
        self.idle
    }

    /// Takes in a reading of its counter under a share; returns whether it became idle or busy by it.
    pub(super) fn used(&mut self, at_ns: u64, bytes: u64, share: u64) -> bool {
        if self.idle.is_none() {
            self.whole = share;
        }
        self.read(at_ns, bytes, share)
    }

    fn read(&mut self, at_ns: u64, bytes: u64, share: u64) -> bool {
        let before = self.last.replace((at_ns, bytes));
        let Some((then, had)) = before.filter(|(then, had)| *then < at_ns && *had <= bytes) else {
            return false;
        };
        let bits = u128::from(bytes - had) * 8_000_000_000 / u128::from(at_ns - then);
        let rate = u64::try_from(bits).unwrap_or(u64::MAX);
        let was = self.idle;
        match was {
            // Half of what it kept: it may want more than that.
            Some(_) if rate >= share / 2 => *self = self.busy(),
            Some(most) => self.idle = Some(most.max(rate)),
            None if rate > self.whole / LITTLE => self.little = None,
            None => {
                let (since, most) = self.little.unwrap_or((then, 0));
                let most = most.max(rate);
                self.little = Some((since, most));
                if at_ns - since >= IDLE_NS {
                    self.idle = Some(most);
                }
            }
        }
        // What an idle session keeps follows what it uses, but not every little.
        let kept = |used: Option<u64>| used.map(|used| divide::kept(self.whole, used, 0));
        kept(was) != kept(self.idle)
    }

    fn busy(&self) -> Use {
        Use {
            last: self.last,
            whole: self.whole,
            ..Use::default()
        }
    }
}

/// A session that uses less than this part of its share uses little.
const LITTLE: u64 = 10;

/// How long it must have used little to be idle: a pause between two files is none.
const IDLE_NS: u64 = 2_000_000_000;

#[cfg(test)]
mod tests;
