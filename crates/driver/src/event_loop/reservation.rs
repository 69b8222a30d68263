//! Reads the reservation of processor time of the calling thread: its budget in each period, if its
//! scheduling class is SCHED_DEADLINE (sched(7)). The daemon gives the packet thread a reservation
//! while programs have reservations of this kind, since the kernel prefers all threads of
//! SCHED_DEADLINE to those of SCHED_FIFO. The kernel stops a thread that has used up its budget
//! until the end of the period. The call does not fail: if the kernel does not tell, there is no
//! reservation.

use std::mem;

use netnice_core::units::Nanos;

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
    // SAFETY: all bits zero are a value of this plain structure.
    let mut own: libc::sched_attr = unsafe { mem::zeroed() };
    let size = mem::size_of_val(&own) as libc::c_uint;
    // SAFETY: the call writes at most `size` bytes, the size of the structure, which outlives it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            0,
            &raw mut own,
            size,
            0 as libc::c_uint,
        )
    };
    let is_reserved = done == 0 && own.sched_policy == libc::SCHED_DEADLINE as u32;
    let reservation = Reservation {
        budget: Nanos(own.sched_runtime),
        period: Nanos(own.sched_period),
    };
    let is_valid = reservation.period.0 > 0 && reservation.budget <= reservation.period;
    (is_reserved && is_valid).then_some(reservation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_another_class_has_no_reservation() {
        assert_eq!(read(), None);
    }
}
