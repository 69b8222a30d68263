//! Probes the two ways in which reservations of processor time are kept: exactly, by
//! SCHED_DEADLINE, and by control groups. Each finding says whether the way works, how much it can
//! give or what bounds it, and else why it does not work. The trial gives SCHED_DEADLINE to a
//! thread of its own, which ends with it.

use std::{io, thread};

use netnice_core::units::Nanos;
use rustix::{
    io::Errno,
    thread::gettid,
    time::{ClockId, clock_getres},
};

use super::{FeatureState, Finding};
use crate::process::read_text;
use crate::processor::ProcessorSet;
use crate::processor::groups::Groups;
use crate::processor::host::{self, ReservedThread};
use crate::processor::policy::{self, Deadline};

/// The findings for the exact way and for the way by control groups.
pub(super) fn findings() -> [Finding; 2] {
    let facts = Facts {
        deadline: try_deadline(),
        has_privilege: has_nice_privilege(),
        online: host::online(),
        allowed: host::allowed(std::process::id()),
        admitted_ppm: host::admitted_ppm(),
        held: host::reserved_threads(),
        tick: tick(),
    };
    let groups = Groups::find("probe").map_err(|error| error.to_string());
    let groups = groups.and_then(|groups| {
        let place = groups.place_text();
        match groups.read_only() {
            Some(mount) => Err(format!("{} is mounted read-only", mount.display())),
            None if has_real_time_groups() => Ok(format!(
                "{place}; a program in them cannot use SCHED_FIFO (RT_GROUP_SCHED)"
            )),
            None => Ok(place),
        }
    });
    ways(&facts, groups)
}

/// What the exact way depends on.
struct Facts {
    /// The result of a trial of SCHED_DEADLINE.
    deadline: io::Result<()>,
    /// True if the process has CAP_SYS_NICE.
    has_privilege: bool,
    online: ProcessorSet,
    /// The processors on which the process may run.
    allowed: ProcessorSet,
    /// What the kernel admits of each processor.
    admitted_ppm: u32,
    /// The threads that have SCHED_DEADLINE already.
    held: Vec<ReservedThread>,
    /// The kernel's tick; `None`: not known.
    tick: Option<Nanos>,
}

/// The findings from these facts. `groups` says where groups are made, or why they cannot be.
fn ways(facts: &Facts, groups: Result<String, String>) -> [Finding; 2] {
    let exact = match &facts.deadline {
        Ok(()) => Ok(exact_text(facts)),
        Err(error) => Err(why_not_exact(facts, error)),
    };
    let state = |is_good: bool, other_is_good: bool| match (is_good, other_is_good) {
        (true, _) => FeatureState::Good,
        (false, true) => FeatureState::Fallback,
        (false, false) => FeatureState::Missing,
    };
    let (is_exact, has_groups) = (exact.is_ok(), groups.is_ok());
    let consequence = match has_groups {
        true => "`--cpu` is kept by control groups, over a second and not exactly",
        false => "`--cpu` is refused",
    };
    let first = match exact {
        Ok(detail) => (detail, None),
        Err((why, hint)) => (format!("{why}; {consequence}"), Some(hint.to_owned())),
    };
    let consequence = "`--cpu` is refused, because children and threads of a program could not be \
                       counted with it";
    let second = match groups {
        Ok(place) => (
            format!("for several threads and `--cpu-extra`: {place}"),
            None,
        ),
        Err(why) => (
            format!("{why}; {consequence}"),
            Some(
                "make the control groups with the controller cpu writable for netniced".to_owned(),
            ),
        ),
    };
    let finding = |name, state, (detail, hint)| Finding {
        name,
        state,
        detail,
        hint,
    };
    [
        finding("exact time", state(is_exact, has_groups), first),
        finding("time by group", state(has_groups, false), second),
    ]
}

fn exact_text(facts: &Facts) -> String {
    let count = facts.online.len();
    let mut text = format!(
        "for one thread, by SCHED_DEADLINE: the kernel admits {} % of each of {count} processors",
        facts.admitted_ppm / 10_000
    );
    if !facts.held.is_empty() {
        text += &format!(", {}", held_text(&facts.held));
    }
    if let Some(tick) = facts.tick {
        text += &format!("; a budget ends at a tick of the kernel, every {tick}");
    }
    text
}

/// Which threads hold something of that.
fn held_text(held: &[ReservedThread]) -> String {
    let part = |one: &ReservedThread| one.budget.0 as f64 / one.period.0.max(1) as f64;
    let sum: f64 = held.iter().map(part).sum();
    let shown = held.iter().take(MOST_NAMED);
    let names: Vec<String> = shown
        .map(|one| {
            let (pid, budget, period) = (one.pid, one.budget, one.period);
            format!("{} (pid {pid}) {budget}/{period}", one.name)
        })
        .collect();
    let more = match held.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "of which {:.0} % of one are held: {}{more}",
        sum * 100.0,
        names.join(", ")
    )
}

/// Why the exact way does not work, and what helps.
fn why_not_exact(facts: &Facts, error: &io::Error) -> (String, &'static str) {
    match Errno::from_io_error(error) {
        Some(Errno::PERM) if !facts.has_privilege => (
            "netniced lacks CAP_SYS_NICE, which SCHED_DEADLINE needs".to_owned(),
            "give netniced CAP_SYS_NICE (in a container: `--cap-add SYS_NICE`)",
        ),
        Some(Errno::PERM) if facts.allowed != facts.online => (
            format!(
                "a cpuset permits {} of {} processors, and SCHED_DEADLINE needs all",
                facts.allowed.len(),
                facts.online.len()
            ),
            "run netniced outside of that cpuset",
        ),
        Some(Errno::BUSY) => (
            format!(
                "the kernel admits no more for SCHED_DEADLINE: {} % of each of {} processors, {}",
                facts.admitted_ppm / 10_000,
                facts.online.len(),
                held_text(&facts.held)
            ),
            "end a program that has SCHED_DEADLINE, or see kernel.sched_rt_runtime_us",
        ),
        _ => (
            format!("the kernel refuses SCHED_DEADLINE: {error}"),
            "a filter of system calls (seccomp) can be the cause",
        ),
    }
}

/// Gives a thread of its own SCHED_DEADLINE for a moment.
fn try_deadline() -> io::Result<()> {
    let trial = thread::spawn(|| {
        let thread = u32::try_from(gettid().as_raw_nonzero().get());
        let thread = thread.map_err(io::Error::other)?;
        policy::set_affinity(thread, &host::online())?;
        let least = Deadline::exactly(Nanos::from_millis(1), Nanos::from_millis(1_000));
        policy::set_deadline(thread, least)
    });
    let panicked = || Err(io::Error::other("the trial ended early"));
    trial.join().unwrap_or_else(|_| panicked())
}

/// True if the process has CAP_SYS_NICE.
fn has_nice_privilege() -> bool {
    let status = read_text("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let set = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set & (1 << CAP_SYS_NICE) != 0)
}

/// The time between two ticks of the kernel: the resolution of its coarse clock. `None` if the
/// kernel says nothing usable.
fn tick() -> Option<Nanos> {
    let resolution = clock_getres(ClockId::MonotonicCoarse);
    let nanos = u64::try_from(resolution.tv_nsec).ok()?;
    (resolution.tv_sec == 0 && nanos > 0).then_some(Nanos(nanos))
}

/// True if the kernel divides real-time throughput among control groups (RT_GROUP_SCHED), as far as
/// version 1 shows it.
fn has_real_time_groups() -> bool {
    Groups::find("probe").is_ok_and(|groups| groups.has_real_time_budget())
}

/// The number of the capability (linux/capability.h).
const CAP_SYS_NICE: u32 = 23;
/// How many threads with SCHED_DEADLINE are named.
const MOST_NAMED: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(deadline: io::Result<()>) -> Facts {
        Facts {
            deadline,
            has_privilege: true,
            online: ProcessorSet::from([0, 1]),
            allowed: ProcessorSet::from([0, 1]),
            admitted_ppm: 900_000,
            held: Vec::new(),
            tick: Some(Nanos::from_millis(4)),
        }
    }

    fn held(pid: u32, budget_ms: u64) -> ReservedThread {
        ReservedThread {
            pid,
            thread: pid,
            name: "tempo".to_owned(),
            budget: Nanos::from_millis(budget_ms),
            period: Nanos::from_millis(100),
            processors: ProcessorSet::new(),
        }
    }

    fn error(number: Errno) -> io::Result<()> {
        Err(number.into())
    }

    /// The states of both findings, and both details in one text.
    fn of(facts: &Facts, groups: Result<&str, &str>) -> ([FeatureState; 2], String) {
        let groups = groups.map(str::to_owned).map_err(str::to_owned);
        let found = ways(facts, groups);
        let states = found.each_ref().map(|finding| finding.state);
        (states, found.map(|finding| finding.detail).join(" | "))
    }

    #[test]
    fn both_ways_say_how_much_and_where() {
        use FeatureState::{Fallback, Good, Missing};
        let mut all = facts(Ok(()));
        all.held = (1..=5).map(|pid| held(pid, 10)).collect();
        let (states, text) = of(&all, Ok("version 1 at /c"));
        assert_eq!(states, [Good, Good]);
        for word in [
            "90 % of each of 2 processors",
            "50 % of one are held: tempo (pid 1) 10ms/100ms",
            "and 2 more",
            "every 4ms",
            "version 1 at /c",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let (states, text) = of(&all, Err("/c is mounted read-only"));
        assert_eq!(states, [Good, Missing]);
        assert!(text.contains("read-only; `--cpu` is refused"), "{text}");
        let (states, _) = of(&facts(error(Errno::PERM)), Ok("/c"));
        assert_eq!(states, [Fallback, Good]);
    }

    #[test]
    fn the_reason_against_the_exact_way_is_named() {
        let mut container = facts(error(Errno::PERM));
        container.has_privilege = false;
        let (states, text) = of(&container, Err("no controller"));
        assert_eq!(states, [FeatureState::Missing; 2]);
        assert!(text.contains("CAP_SYS_NICE"), "{text}");
        let mut confined = facts(error(Errno::PERM));
        confined.allowed = ProcessorSet::from([1]);
        let (_, text) = of(&confined, Ok("/c"));
        assert!(text.contains("1 of 2 processors"), "{text}");
        let mut full = facts(error(Errno::BUSY));
        full.held = vec![held(7, 180)];
        let (_, text) = of(&full, Ok("/c"));
        assert!(text.contains("pid 7"), "{text}");
        let (_, text) = of(&facts(error(Errno::NOSYS)), Ok("/c"));
        assert!(text.contains("refuses SCHED_DEADLINE"), "{text}");
    }

    #[test]
    fn the_tick_of_this_kernel_is_between_a_tenth_of_and_ten_milliseconds() {
        let tick = tick().expect("Linux has a coarse clock");
        assert!((100_000..=10_000_000).contains(&tick.0), "{tick}");
    }
}
