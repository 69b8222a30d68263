//! Sources of traffic. A [`Source`] describes the messages that a flow offers. [`SourceState`]
//! returns the arrival time and the size of one message after another. Random times come from
//! [`Random`], so the same seed gives the same messages. Nothing here fails: a simulation with an
//! invalid source is refused before it runs.

use netnice_core::units::{Bytes, Nanos};

use crate::Random;

/// The traffic that a flow offers, from its start on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The flow always has a message of this size to send.
    Greedy {
        /// Bytes of each message.
        size: Bytes,
    },
    /// One message in every interval.
    Constant {
        /// Bytes of each message.
        size: Bytes,
        /// Time between two messages.
        every: Nanos,
    },
    /// Messages at a constant interval for a time, then none for a time, and so on. Both times are
    /// exponentially distributed.
    OnOff {
        /// Bytes of each message.
        size: Bytes,
        /// Time between two messages while on.
        every: Nanos,
        /// Mean time on.
        on: Nanos,
        /// Mean time off.
        off: Nanos,
    },
    /// Messages at random times: a Poisson process.
    Poisson {
        /// Bytes of each message.
        size: Bytes,
        /// Mean time between two messages.
        mean: Nanos,
    },
    /// Several messages at once in every interval.
    Bursts {
        /// Bytes of each message.
        size: Bytes,
        /// Messages per burst.
        count: u32,
        /// Time between two bursts.
        every: Nanos,
    },
    /// A recorded trace: (time since the flow's start, size), in order of time. A time before that
    /// of the message before it counts as that time.
    Trace(Vec<(Nanos, Bytes)>),
}

impl Source {
    /// The sizes of the messages: the one size, or the sizes of a trace.
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

/// The state of a source.
#[derive(Clone, Debug)]
pub(crate) struct SourceState {
    source: Source,
    random: Random,
    start: u64,
    /// Arrival time of the next message, in ns.
    next: u64,
    /// Messages so far.
    count: u64,
    /// End of the current time on, in ns, for an on-off source.
    until: u64,
}

impl SourceState {
    /// The state before the first message. `start` is the time at which the traffic begins.
    pub(crate) fn new(source: Source, start: Nanos, random: Random) -> SourceState {
        let mut source = SourceState {
            source,
            random,
            start: start.0,
            next: start.0,
            count: 0,
            until: start.0,
        };
        if let Source::Poisson { mean, .. } = source.source {
            source.next = source.later(mean);
        }
        if let Source::OnOff { on, .. } = source.source {
            source.until = source.later(on);
        }
        source
    }

    /// The arrival time and size of the next message; `None` if there is none. A greedy source
    /// returns its first message only: the simulation refills its queue.
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
                // A time that goes back counts as the time before it.
                self.next = at.max(self.start.saturating_add(since.0));
                Some((self.next, *size))
            }
        }
    }

    fn later(&mut self, mean: Nanos) -> u64 {
        self.next.saturating_add(self.random.exponential(mean.0))
    }
}
