//! Programs whose doorbells are not heard for a while, because they called for nothing (docs/reference/ring.md, R50 and R52).
//!
//! A ring wakes the thread, whoever rings, and its time is everybody's. [`Turn::poll_muted`](crate::turn::Turn::poll_muted) says who is not
//! heard; those rings that come meanwhile are one more, when it is over. What such a program really has to say waits no longer than that.

use std::collections::VecDeque;

use netnice_core::units::Instant;

use crate::turn::ProgramNo;

/// Who is not heard, and until when; the first to be heard again is in front.
#[derive(Debug, Default)]
pub(super) struct Muted(VecDeque<(Instant, ProgramNo)>);

impl Muted {
    /// One that is not heard until then, which is no sooner than for those before it.
    pub fn push(&mut self, program: ProgramNo, until: Instant) {
        self.0.push_back((until, program));
    }

    /// When the next one is to be heard again.
    pub fn until(&self) -> Option<Instant> {
        self.0.front().map(|(until, _)| *until)
    }

    /// One that is to be heard again by now.
    pub fn poll(&mut self, now: Instant) -> Option<ProgramNo> {
        let (until, _) = self.0.front()?;
        if *until > now {
            return None;
        }
        self.0.pop_front().map(|(_, program)| program)
    }
}
