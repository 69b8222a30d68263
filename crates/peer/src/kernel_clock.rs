//! What the kernel states about the clock of this host: [`read`], by adjtimex(2). No call fails: a
//! kernel that does not synchronise its clock, or that does not permit the question, states
//! nothing.
//!
//! This is the only file of the crate with unsafe code: no crate that the project uses has
//! adjtimex(2).

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::message::KernelClock;

/// The kernel's statement about `CLOCK_REALTIME` now; `None` unless it is synchronised with UTC.
pub(crate) fn read() -> Option<KernelClock> {
    let (state, max_error_us) = adjtimex()?;
    // Around a leap second the clocks of two hosts differ by a second.
    if matches!(state, libc::TIME_ERROR | libc::TIME_OOP | libc::TIME_WAIT) {
        return None;
    }
    let before = clock_gettime(ClockId::Monotonic);
    let utc = clock_gettime(ClockId::Realtime);
    let after = clock_gettime(ClockId::Monotonic);
    statement(max_error_us, before, utc, after)
}

/// The statement from the kernel's error in microseconds, and readings of the two clocks; `None`
/// if a clock or the error is beyond all clocks.
fn statement(
    max_error_us: i64,
    before: Timespec,
    utc: Timespec,
    after: Timespec,
) -> Option<KernelClock> {
    let error = u64::try_from(max_error_us).ok()?.checked_mul(1_000)?;
    // The thread may have slept between the readings.
    let apart = nanos(after)?.checked_sub(nanos(before)?)?;
    Some(KernelClock {
        utc_ahead_ns: nanos(utc)?.checked_sub(nanos(before)?)?,
        error_ns: error.checked_add(u64::try_from(apart).ok()?)?,
    })
}

fn nanos(time: Timespec) -> Option<i64> {
    time.tv_sec
        .checked_mul(1_000_000_000)?
        .checked_add(time.tv_nsec)
}

/// The state of the kernel's clock, and its largest error in microseconds. `None` if the question
/// is not permitted.
#[allow(unsafe_code)]
fn adjtimex() -> Option<(libc::c_int, i64)> {
    // SAFETY: all-zero parameters are valid, and `modes` 0 changes nothing.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives during the call, which writes to it only.
    let state = unsafe { libc::adjtimex(&raw mut clock) };
    let is_synchronised = clock.status & libc::STA_UNSYNC == 0;
    (state >= 0 && is_synchronised).then_some((state, clock.maxerror))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64, nanos: i64) -> Timespec {
        Timespec {
            tv_sec: seconds,
            tv_nsec: nanos,
        }
    }

    #[test]
    fn a_statement_has_the_kernels_error_and_the_time_of_the_readings() {
        let read = statement(1_500, time(10, 5), time(1_000, 7), time(10, 25));
        let expected = KernelClock {
            utc_ahead_ns: 990_000_000_002,
            error_ns: 1_500_020,
        };
        assert_eq!(read, Some(expected));
        for bad in [-1, i64::MAX] {
            assert_eq!(statement(bad, time(1, 0), time(1, 0), time(1, 0)), None);
        }
        assert_eq!(statement(1, time(1, 1), time(1, 0), time(1, 0)), None);
    }

    #[test]
    fn the_kernels_statement_agrees_with_its_state() {
        let state = adjtimex();
        let read = read();
        assert_eq!(read.is_some(), state.is_some_and(|(state, _)| state <= 2));
        if let Some(clock) = read {
            // 16 s is the kernel's limit; beyond it the clock is not synchronised.
            assert!(clock.error_ns <= 17_000_000_000, "{clock:?}");
            assert!(clock.utc_ahead_ns > 0, "{clock:?}");
        }
    }
}
