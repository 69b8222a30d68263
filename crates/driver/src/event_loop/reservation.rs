//! Reads the reservation of processor time of the calling thread. The daemon gives the packet
//! thread one while programs have reservations of this kind (SCHED_DEADLINE, sched(7)), since the
//! kernel prefers them to threads of SCHED_FIFO. The kernel stops a thread that has used up its
//! budget until the end of the period. The call does not fail: if the kernel does not tell, there
//! is no reservation.

use netnice_core::units::Nanos;
use netnice_kernel::processor::policy::{self, Deadline, Policy};

/// A reservation of processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    /// Processor time in each period.
    pub(super) budget: Nanos,
    /// The period; at least the budget, and more than 0.
    pub(super) period: Nanos,
}

/// The reservation of the calling thread; `None` if it has another scheduling class.
pub(super) fn read() -> Option<Reservation> {
    match policy::policy(0) {
        Ok(Policy::Deadline(Deadline { budget, period, .. }))
            if period.0 > 0 && budget <= period =>
        {
            Some(Reservation { budget, period })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_another_class_has_no_reservation() {
        assert_eq!(read(), None);
    }
}
