//! What the processors of the host can be promised: which there are, what the kernel admits for
//! SCHED_DEADLINE, and which threads have it.

use std::collections::BTreeSet;
use std::fs;

use netnice_core::units::Nanos;

use super::ProcessorSet;
use super::policy::{self, Policy};
use crate::process::{self, read_text};

/// A thread with SCHED_DEADLINE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedThread {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub thread: u32,
    /// The process's command name.
    pub name: String,
    /// Processor time in each period.
    pub budget: Nanos,
    /// The period.
    pub period: Nanos,
    /// The processors it may run on.
    pub processors: ProcessorSet,
}

/// The processors that are in use by the kernel; processor 0 if it does not say.
pub fn online() -> ProcessorSet {
    let text = read_text("/sys/devices/system/cpu/online").unwrap_or_default();
    let found = parse_list(text.trim());
    match found.is_empty() {
        true => BTreeSet::from([0]),
        false => found,
    }
}

/// The part of each processor that the kernel admits for SCHED_DEADLINE, in parts of a million:
/// sched_rt_runtime_us of sched_rt_period_us, less what its own servers have for ordinary threads
/// (Linux 6.12 and later).
pub fn admitted_ppm() -> u32 {
    let number = |name: &str| -> Option<i64> {
        let text = read_text(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let period = number("sched_rt_period_us").unwrap_or(1_000_000).max(1);
    let allowed = match number("sched_rt_runtime_us") {
        // No bound.
        Some(-1) => 1_000_000,
        runtime => runtime.unwrap_or(950_000).max(0) * 1_000_000 / period,
    };
    let served = fair_server_ppm();
    u32::try_from(allowed - served).unwrap_or(0)
}

/// What the kernel's own servers have of each processor, in parts of a million.
fn fair_server_ppm() -> i64 {
    let folder = "/sys/kernel/debug/sched/fair_server/cpu0";
    let number = |name: &str| -> Option<i64> {
        let text = read_text(format!("{folder}/{name}")).ok()?;
        text.trim().parse().ok()
    };
    if let (Some(runtime), Some(period)) = (number("runtime"), number("period")) {
        return runtime * 1_000_000 / period.max(1);
    }
    let release = read_text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version >= (6, 12) {
        true => 50_000,
        false => 0,
    }
}

/// All threads with SCHED_DEADLINE that /proc shows.
pub fn reserved_threads() -> Vec<ReservedThread> {
    let mut found = Vec::new();
    for pid in process::all() {
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for thread in threads.flatten() {
            let name = thread.file_name();
            let Some(thread) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if let Ok(Policy::Deadline { budget, period }) = policy::policy(thread) {
                found.push(ReservedThread {
                    pid,
                    thread,
                    name: process::facts(pid).map_or(String::new(), |facts| facts.name),
                    budget,
                    period,
                    processors: allowed(thread),
                });
            }
        }
    }
    found
}

/// The processors that a process or thread may run on, by its affinity and its cpuset; empty if it
/// has ended.
pub fn allowed(thread: u32) -> ProcessorSet {
    let status = read_text(format!("/proc/{thread}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    parse_list(list.unwrap_or_default().trim())
}

/// What all processors did since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time in which a thread or an interrupt ran, or the hypervisor ran something else.
    pub busy: Nanos,
    /// Time without work.
    pub idle: Nanos,
}

/// What all processors did since boot (proc_stat(5)), to a hundredth of a second.
pub fn times() -> Times {
    let text = read_text("/proc/stat").unwrap_or_default();
    let fields = text.lines().next().unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = fields
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
    // user nice system idle iowait irq softirq steal; guest time is in user already.
    let idle = at(3) + at(4);
    let busy = at(0) + at(1) + at(2) + at(5) + at(6) + at(7);
    Times {
        busy: Nanos(busy * TICK),
        idle: Nanos(idle * TICK),
    }
}

/// How long a thread has waited for a processor since it started, although it could run; zero if it
/// has ended, or the kernel does not count this.
pub fn waited(thread: u32) -> Nanos {
    let text = read_text(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    let waited = text.split_ascii_whitespace().nth(1);
    Nanos(waited.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// The limits of the period of SCHED_DEADLINE, shortest and longest.
pub fn period_limits() -> (Nanos, Nanos) {
    let number = |name: &str, default: u64| {
        let text = read_text(format!("/proc/sys/kernel/{name}")).ok();
        let micros = text.and_then(|text| text.trim().parse().ok());
        Nanos::from_micros(micros.unwrap_or(default))
    };
    (
        number("sched_deadline_period_min_us", 100),
        number("sched_deadline_period_max_us", 1 << 22),
    )
}

/// Parses a list such as `0-3,8`; parts that are no numbers are left out.
fn parse_list(text: &str) -> ProcessorSet {
    let ranges = text.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    });
    ranges.flatten().collect()
}

/// The unit of /proc/stat in ns: Linux shows all such times in hundredths of a second (USER_HZ).
const TICK: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        let numbers = |text: &str| parse_list(text).into_iter().collect::<Vec<u32>>();
        assert_eq!(numbers("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(numbers("1"), [1]);
        assert_eq!(numbers(""), []);
        assert_eq!(numbers("x,2-"), []);
    }

    #[test]
    fn this_host_has_processors_and_admits_a_part_of_each() {
        let online = online();
        assert!(!online.is_empty());
        assert!(allowed(std::process::id()).is_subset(&online));
        assert!(admitted_ppm() <= 1_000_000);
        let (shortest, longest) = period_limits();
        assert!(shortest < longest, "{shortest} {longest}");
    }
}
