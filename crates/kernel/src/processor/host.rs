//! What the processors of the host can be promised: which there are, what the kernel admits for
//! SCHED_DEADLINE, and which threads have it.

use std::collections::{BTreeMap, BTreeSet};
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

/// The part of each processor that the kernel admits for SCHED_DEADLINE, in millionths.
pub fn admitted_ppm() -> u32 {
    let number = |name: &str| {
        let text = read_text(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<i64>().ok()
    };
    let release = read_text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (runtime, period) = (number("sched_rt_runtime_us"), number("sched_rt_period_us"));
    admitted_of(runtime, period, fair_server_ppm(), &release)
}

/// What the kernel's own server of ordinary threads has of a processor, in millionths; `None` if
/// the kernel does not show it.
fn fair_server_ppm() -> Option<u64> {
    let number = |name: &str| {
        let folder = "/sys/kernel/debug/sched/fair_server/cpu0";
        let text = read_text(format!("{folder}/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let (runtime, period) = (number("runtime")?, number("period")?);
    Some(runtime * MILLION / period.max(1))
}

/// The real-time part of a processor (`sched_rt_runtime_us` of `sched_rt_period_us`; the whole if
/// the first is negative), less what the kernel's servers of ordinary threads have: if it does not
/// show that, 5 % from Linux 6.12 on.
fn admitted_of(
    runtime_us: Option<i64>,
    period_us: Option<i64>,
    server_ppm: Option<u64>,
    release: &str,
) -> u32 {
    let (runtime, period) = (
        runtime_us.unwrap_or(950_000),
        period_us.unwrap_or(1_000_000),
    );
    let real_time = match (u64::try_from(runtime), u64::try_from(period)) {
        (Err(_), _) => MILLION,
        (Ok(runtime), Ok(period)) if period > 0 => (runtime * MILLION / period).min(MILLION),
        _ => 0,
    };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let has_servers = (number(), number()) >= (Some(6), Some(12));
    let servers = server_ppm.unwrap_or(if has_servers { SERVER_PPM } else { 0 });
    real_time.saturating_sub(servers) as u32
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
            if let Ok(Policy::Deadline(time)) = policy::policy(thread) {
                found.push(ReservedThread {
                    pid,
                    thread,
                    name: process::facts(pid).map_or(String::new(), |facts| facts.name),
                    budget: time.budget,
                    period: time.period,
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

/// What each processor did since boot, in ns: the time in which a thread or an interrupt ran, or
/// the hypervisor ran something else (proc_stat(5)), to a hundredth of a second.
pub fn busy() -> BTreeMap<u32, Nanos> {
    let text = read_text("/proc/stat").unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let (processor, fields) = line.strip_prefix("cpu")?.split_once(' ')?;
        let processor: u32 = processor.parse().ok()?;
        let fields = fields.split_whitespace();
        let ticks: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
        // user nice system, then idle and iowait, then irq softirq steal; guest time is in user.
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        let busy = at(0) + at(1) + at(2) + at(5) + at(6) + at(7);
        Some((processor, Nanos(busy * TICK)))
    });
    lines.collect()
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

/// Parses a list of processors in the kernel's form, such as `0-3,8`. What is no number or range is
/// left out, and so is a number that no kernel has.
fn parse_list(text: &str) -> ProcessorSet {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| *n < MOST);
        Some(number(first)?..=number(last)?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The unit of /proc/stat in ns: Linux shows all such times in hundredths of a second (USER_HZ).
const TICK: u64 = 10_000_000;
/// What the kernel keeps of each processor for ordinary threads, in millionths.
const SERVER_PPM: u64 = 50_000;
/// More processors than any kernel supports.
const MOST: u32 = 1 << 16;
const MILLION: u64 = 1_000_000;

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
        assert_eq!(numbers("0,x,4294967295,3-1"), [0]);
        assert_eq!(numbers("0-2,8\n"), [0, 1, 2, 8]);
    }

    #[test]
    fn the_kernel_admits_the_real_time_part_less_its_servers() {
        let of = |runtime, release| admitted_of(Some(runtime), Some(1_000_000), None, release);
        assert_eq!(of(950_000, "6.18.5-generic"), 900_000);
        assert_eq!(of(950_000, "6.12.0"), 900_000);
        assert_eq!(of(950_000, "6.1.0-39-amd64"), 950_000);
        assert_eq!(of(-1, "6.1.0"), 1_000_000);
        assert_eq!(of(0, "7.0"), 0);
        assert_eq!(admitted_of(Some(1), Some(0), None, "6.1"), 0);
        assert_eq!(admitted_of(None, None, None, ""), 950_000);
        let shown = admitted_of(Some(950_000), Some(1_000_000), Some(20_000), "6.18");
        assert_eq!(shown, 930_000);
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
