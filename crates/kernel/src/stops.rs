//! Measures what the machine takes from a real-time thread ([`measure`]): a hypervisor, firmware
//! and the kernel's own work stop a thread whatever its priority. The thread runs under SCHED_FIFO,
//! reads the clock without pause for nine tenths of each millisecond and sleeps for the rest. A gap
//! between two readings, or a wake-up later than asked, is a stop ([`netnice_core::stops`]).
//!
//! [`most_within`] is the largest sum of stops in any interval of one length.

use std::io;
use std::mem;
use std::thread;

use netnice_core::stops::{self, Stop};
use netnice_core::units::{Instant, Nanos};

use crate::process::monotonic;

/// Measures for this long in a thread of its own. The driver's packet thread has the same priority,
/// so a measurement delays it while both run on one processor.
///
/// # Errors
/// If the kernel refuses SCHED_FIFO (it needs CAP_SYS_NICE), or no thread can be made.
pub fn measure(duration: Nanos) -> io::Result<Vec<Stop>> {
    let measured = thread::Builder::new()
        .name("stops".to_owned())
        .spawn(move || measure_here(duration))?;
    let failed = || io::Error::other("the measuring thread has panicked");
    measured.join().map_err(|_| failed())?
}

fn measure_here(duration: Nanos) -> io::Result<Vec<Stop>> {
    // SAFETY: all-zero parameters are valid, and they outlive the call.
    let refused = unsafe {
        let mut priority: libc::sched_param = mem::zeroed();
        priority.sched_priority = PRIORITY;
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority)
    };
    if refused != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::with_capacity(4096);
    let mut last = monotonic();
    let end = later(last, duration.0);
    let mut add = |stop: Option<Stop>| {
        if found.len() < MOST {
            found.extend(stop);
        }
    };
    while last < end {
        let pause = later(last, SPIN);
        while last < pause {
            let now = monotonic();
            add(stops::still(last, now));
            last = now;
        }
        let wake = later(last, SLEEP);
        sleep_until(wake);
        last = monotonic();
        add(stops::woken(wake, last));
    }
    Ok(found)
}

fn later(at: Instant, by: u64) -> Instant {
    Instant(at.0.saturating_add(by))
}

/// The largest sum of stops in any interval of this length. The stops are in order and do not
/// overlap.
pub fn most_within(stops: &[Stop], period: Nanos) -> Nanos {
    // The sum changes its slope only where an end of the interval is an end of a stop, so the
    // largest sum is in an interval that ends with a stop or begins with one.
    let mirrored: Vec<(u64, u64)> = {
        let last = stops.last().map_or(0, |stop| stop.end().0);
        let mirror = |stop: &Stop| (last - stop.end().0, stop.length.0);
        stops.iter().rev().map(mirror).collect()
    };
    let forward: Vec<(u64, u64)> = stops.iter().map(|s| (s.start.0, s.length.0)).collect();
    Nanos(most_at_ends(&forward, period.0).max(most_at_ends(&mirrored, period.0)))
}

/// The largest sum in the intervals that end with a stop.
fn most_at_ends(stops: &[(u64, u64)], period: u64) -> u64 {
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for (begin, length) in stops {
        sum += length;
        let from = (begin + length).saturating_sub(period);
        while stops[first].0 + stops[first].1 <= from {
            sum -= stops[first].1;
            first += 1;
        }
        let cut = from.saturating_sub(stops[first].0);
        most = most.max(sum - cut);
    }
    most
}

fn sleep_until(at: Instant) {
    let at = libc::timespec {
        tv_sec: (at.0 / 1_000_000_000) as libc::time_t,
        tv_nsec: (at.0 % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the time outlives the call, and no remaining time is asked for.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &at,
            std::ptr::null_mut(),
        );
    }
}

/// Of each millisecond, the thread reads the clock for this time and sleeps for the rest, in ns.
/// The kernel stops a real-time thread that does not leave it a twentieth.
const SPIN: u64 = 900_000;
const SLEEP: u64 = 100_000;
/// Most stops that are kept.
const MOST: usize = 1 << 22;
const PRIORITY: i32 = 50;

#[cfg(test)]
mod tests {
    use netnice_core::stops::StopKind;

    use super::*;

    fn stops(list: &[(u64, u64)]) -> Vec<Stop> {
        let stop = |(start, length): &(u64, u64)| Stop {
            start: Instant(*start),
            length: Nanos(*length),
            kind: StopKind::Still,
        };
        list.iter().map(stop).collect()
    }

    /// Against the sum in the interval from every instant on.
    #[test]
    fn the_most_within_a_period_is_that_of_every_interval() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let mut at = 0;
            let list: Vec<(u64, u64)> = (0..random(8))
                .map(|_| {
                    let begin = at + random(20);
                    let length = 1 + random(10);
                    at = begin + length;
                    (begin, length)
                })
                .collect();
            let period = 1 + random(40);
            let sum = |from: u64| -> u64 {
                let to = from + period;
                let part = |(b, l): &(u64, u64)| (b + l).min(to).saturating_sub((*b).max(from));
                list.iter().map(part).sum()
            };
            let naive = (0..=at).map(sum).max().unwrap_or(0);
            let found = most_within(&stops(&list), Nanos(period));
            assert_eq!(found, Nanos(naive), "{list:?} in {period}");
        }
    }
}
