//! The programs whose doorbells the event loop does not poll, each until the end of its pause of
//! 10 ms.
//!
//! Each doorbell write wakes the packet thread, whose time all flows share. So a program that wakes
//! the thread without need is throttled (docs/reference/ring.md, R50 and R52):
//! [`Datapath::poll_throttled`](crate::datapath::Datapath::poll_throttled) returns the program and
//! the end of its pause. Doorbell writes during the pause are reported as one at its end, so a
//! record of such a program waits no longer than the pause. Nothing here fails.

use std::collections::VecDeque;

use netnice_core::units::Instant;

use crate::datapath::ProgramNo;

/// (end of the pause, program), the earliest end first.
#[derive(Debug, Default)]
pub(super) struct Throttled(VecDeque<(Instant, ProgramNo)>);

impl Throttled {
    /// Adds a program until `until`, which is no earlier than the ends before it.
    pub(crate) fn push(&mut self, program: ProgramNo, until: Instant) {
        self.0.push_back((until, program));
    }

    /// The next end of a pause; `None` if no program is throttled.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.0.front().map(|(until, _)| *until)
    }

    /// Removes and returns the next program whose pause has ended by `now`; `None` if there is
    /// none.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<ProgramNo> {
        let (until, _) = self.0.front()?;
        if *until > now {
            return None;
        }
        self.0.pop_front().map(|(_, program)| program)
    }
}
