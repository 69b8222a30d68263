//! Reads what the processors of the machine can be promised, and where processes may run. No call
//! fails: what cannot be read counts as absent.

use std::collections::BTreeSet;
use std::fs;

use netnice_core::admission::processors::{ProcessorSet, Processors};
use netnice_kernel::cgroup;

use super::kernel::KernelHost;

/// The processors of the machine.
pub(crate) trait ProcessorHost {
    /// The processors that are online, what the kernel admits of each, and the reservations of
    /// other programs. netnice's own reservations are not among them.
    fn processors(&mut self) -> Processors;
    /// The processors on which at least one of these processes may run; empty if none lives.
    fn allowed_processors(&mut self, pids: &BTreeSet<u32>) -> ProcessorSet;
    /// The processes in a control group and in those below it; none if it does not exist.
    fn group_processes(&mut self, path: &str) -> BTreeSet<u32>;
}

impl ProcessorHost for KernelHost {
    fn processors(&mut self) -> Processors {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let number = |path: &str| read(path).trim().parse::<i64>().ok();
        Processors {
            online: parse_list(&read("/sys/devices/system/cpu/online")),
            admitted_ppm: admitted_ppm(
                number("/proc/sys/kernel/sched_rt_runtime_us"),
                number("/proc/sys/kernel/sched_rt_period_us"),
                &read("/proc/sys/kernel/osrelease"),
            ),
            others: Vec::new(),
        }
    }

    fn allowed_processors(&mut self, pids: &BTreeSet<u32>) -> ProcessorSet {
        let allowed = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            allowed_in_status(&status)
        };
        pids.iter().filter_map(allowed).flatten().collect()
    }

    fn group_processes(&mut self, path: &str) -> BTreeSet<u32> {
        let group = cgroup::find(path).ok();
        let processes = group.map(|group| cgroup::processes(&group));
        processes.unwrap_or_default().into_iter().collect()
    }
}

/// The part of each processor that the kernel admits as reservations, in millionths: the real-time
/// part (`sched_rt_runtime_us` of `sched_rt_period_us`; the whole if the first is negative), less
/// the 5 % of the kernel's servers of ordinary threads, which exist since Linux 6.12.
fn admitted_ppm(runtime_us: Option<i64>, period_us: Option<i64>, release: &str) -> u32 {
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
    let version = (number(), number());
    let has_servers = version >= (Some(6), Some(12));
    let servers = if has_servers { SERVERS_PPM } else { 0 };
    real_time.saturating_sub(servers) as u32
}

/// The processors in the line `Cpus_allowed_list` of `/proc/PID/status`; `None` without the line.
fn allowed_in_status(status: &str) -> Option<ProcessorSet> {
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(parse_list(list))
}

/// Parses a list of processors in the form of the kernel: `0-3,8`. What is no number or range is
/// left out, and so is a number that no kernel has.
fn parse_list(text: &str) -> ProcessorSet {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| *n < MOST);
        Some(number(first)?..=number(last)?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// What the kernel keeps of each processor for servers of ordinary threads, in millionths.
const SERVERS_PPM: u64 = 50_000;

/// More processors than any kernel supports.
const MOST: u32 = 1 << 16;

const MILLION: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_parsed() {
        assert_eq!(parse_list("0-2,8\n"), [0, 1, 2, 8].into());
        assert_eq!(parse_list(""), ProcessorSet::new());
        assert_eq!(parse_list("0,x,4294967295,3-1"), [0].into());
        let status = "Name:\tcat\nCpus_allowed:\t3\nCpus_allowed_list:\t1,4-5\n";
        assert_eq!(allowed_in_status(status), Some([1, 4, 5].into()));
        assert_eq!(allowed_in_status("Name:\tcat\n"), None);
    }

    #[test]
    fn the_kernel_admits_the_real_time_part_less_its_servers() {
        let of = |runtime, release| admitted_ppm(Some(runtime), Some(1_000_000), release);
        assert_eq!(of(950_000, "6.18.5-generic"), 900_000);
        assert_eq!(of(950_000, "6.12.0"), 900_000);
        assert_eq!(of(950_000, "6.1.0-39-amd64"), 950_000);
        assert_eq!(of(950_000, "5.15.0"), 950_000);
        assert_eq!(of(-1, "6.1.0"), 1_000_000);
        assert_eq!(of(0, "7.0"), 0);
        assert_eq!(admitted_ppm(Some(1), Some(0), "6.1"), 0);
        assert_eq!(admitted_ppm(None, None, ""), 950_000);
    }

    #[test]
    fn a_process_of_this_machine_may_run_somewhere() {
        let status = fs::read_to_string("/proc/self/status").expect("a status");
        let online = fs::read_to_string("/sys/devices/system/cpu/online").expect("a list");
        let allowed = allowed_in_status(&status).expect("a list");
        assert!(!allowed.is_disjoint(&parse_list(&online)));
    }
}
