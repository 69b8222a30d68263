//! Where packets and messages come from.

use netnice_core::units::{Bytes, Nanos};

use crate::Random;

/// What a flow offers, from its start on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Always something to send, of this size.
    Greedy {
        /// Of each packet.
        size: Bytes,
    },
    /// One of this size in every interval.
    Constant {
        /// Of each.
        size: Bytes,
        /// From one to the next.
        every: Nanos,
    },
    /// Constant for a while, then nothing for a while; both lengths are drawn for each turn, with
    /// these means.
    OnOff {
        /// Of each.
        size: Bytes,
        /// From one to the next, while on.
        every: Nanos,
        /// Mean time on.
        on: Nanos,
        /// Mean time off.
        off: Nanos,
    },
    /// Independent of each other, with this mean between two.
    Poisson {
        /// Of each.
        size: Bytes,
        /// Mean time from one to the next.
        mean: Nanos,
    },
    /// So many at once in every interval.
    Bursts {
        /// Of each.
        size: Bytes,
        /// In one burst.
        count: u32,
        /// From burst to burst.
        every: Nanos,
    },
    /// As it was once seen: time since the start, and size, in order of time.
    Trace(Vec<(Nanos, Bytes)>),
}

impl Source {
    /// How large its messages are.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = Bytes> + '_ {
        let (one, all) = match self {
            Source::Greedy { size }
            | Source::Constant { size, .. }
            | Source::OnOff { size, .. }
            | Source::Poisson { size, .. }
            | Source::Bursts { size, .. } => (Some(*size), &[][..]),
            Source::Trace(all) => (None, &all[..]),
        };
        one.into_iter().chain(all.iter().map(|(_, size)| *size))
    }
}

/// A source at work.
#[derive(Clone, Debug)]
pub(crate) struct Spring {
    source: Source,
    random: Random,
    start: u64,
    /// When the next one comes.
    next: u64,
    /// How many came so far.
    count: u64,
    /// Of an on-off source, the end of the time on.
    until: u64,
}

impl Spring {
    pub(crate) fn new(source: Source, start: Nanos, random: Random) -> Spring {
        let mut spring = Spring {
            source,
            random,
            start: start.0,
            next: start.0,
            count: 0,
            until: start.0,
        };
        if let Source::Poisson { mean, .. } = spring.source {
            spring.next = spring.later(mean);
        }
        if let Source::OnOff { on, .. } = spring.source {
            spring.until = spring.later(on);
        }
        spring
    }

    /// When the next one comes and how large it is; nothing if there is none. Of a greedy source
    /// the first one only: whoever empties its queue fills it again.
    pub(crate) fn next(&mut self) -> Option<(u64, Bytes)> {
        let at = self.next;
        let number = self.count;
        self.count += 1;
        match &self.source {
            &Source::Greedy { size } => (number == 0).then_some((at, size)),
            &Source::Constant { size, every } => {
                self.next = at.saturating_add(every.0);
                Some((at, size))
            }
            &Source::Poisson { size, mean } => {
                self.next = self.later(mean);
                Some((at, size))
            }
            &Source::OnOff {
                size,
                every,
                on,
                off,
            } => {
                self.next = at.saturating_add(every.0);
                if self.next > self.until {
                    self.next = self.until.max(at).saturating_add(1);
                    self.next = self.later(off);
                    let now = self.next;
                    self.until = now.saturating_add(self.random.exponential(on.0));
                }
                Some((at, size))
            }
            &Source::Bursts { size, count, every } => {
                if (number + 1).is_multiple_of(u64::from(count)) {
                    self.next = at.saturating_add(every.0);
                }
                Some((at, size))
            }
            Source::Trace(all) => {
                let (since, size) = all.get(usize::try_from(number).ok()?)?;
                // Times that go back happen at once.
                self.next = at.max(self.start.saturating_add(since.0));
                Some((self.next, *size))
            }
        }
    }

    fn later(&mut self, mean: Nanos) -> u64 {
        self.next.saturating_add(self.random.exponential(mean.0))
    }
}
