//! Programs whose doorbells are not heard for a while, because they rang for nothing (docs/ring.md, R52).
//!
//! A ring wakes the thread, whoever rings, and its time is everybody's. The first one that nobody asked for is heard and counted; those
//! that follow within [`PAUSE`] are one more ring, when it is over. What such a program really has to say waits no longer than that.

use std::collections::VecDeque;

use netnice_core::units::{Instant, Nanos};

use crate::turn::ProgramNo;

/// Who is not heard, and until when; the first to be heard again is in front.
#[derive(Debug, Default)]
pub(super) struct Muted(VecDeque<(Instant, ProgramNo)>);

impl Muted {
    /// From now on, for a pause.
    pub fn push(&mut self, program: ProgramNo, now: Instant) {
        self.0.push_back((Instant(now.0 + PAUSE.0), program));
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

/// A hundred wake-ups a second are a thousandth of a processor.
const PAUSE: Nanos = Nanos::from_millis(10);
