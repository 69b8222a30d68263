//! The experiment `driver-beside` measures how late the driver sends beside a program that has 6 ms
//! of each 10 ms of a processor for certain (SCHED_DEADLINE) and uses them. The kernel prefers such
//! a program to the driver's packet thread, unless that has a reservation of its own. The traffic
//! and *lateness* are those of `direct-timing`, at 100 Mbit/s; no stop of the driver excuses a
//! packet, since the stops are what is measured.
//!
//! Each round measures the driver alone, with SCHED_FIFO beside the program, and with reservations
//! that the measurement gives the packet thread, in turn. The last setting is what a user gets: the
//! program has its time by `netnice set --cpu`, and netniced gives the driver what it thinks right.
//! With that one the 99th percentile of the lateness must be at most twice that of the driver alone
//! (ten times in the quick form), by the medians of the rounds. `netnice check` must find no packet
//! early.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if the subject is
//! not netnice, if a step of the measurement fails, or if the kernel refuses a reservation.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use netnice_core::units::Nanos;
use netnice_kernel::processor::policy::{self, Deadline, Policy};
use serde_json::json;

use super::super::bench::{SECOND, netnice_only, pause};
use super::super::front_door::FrontDoor;
use super::super::sent_packets::{check_conformance, from_port, missing_on_the_wire, tap};
use super::super::{Bound, Context, Outcome};
use super::{CDVT, PORT, Subject, lateness};
use crate::process::{self, Proc};
use crate::traffic::Carnage;
use crate::{stats, sys};

/// What runs beside the driver, and how its packet thread is scheduled.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    /// A program with an exact reservation runs.
    beside: bool,
    class: Class,
}

/// The scheduling class of the packet thread.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    /// SCHED_FIFO, as the driver starts.
    Fifo,
    /// SCHED_DEADLINE with this budget in each millisecond, in ns.
    Reserved(u64),
    /// What netniced gives it, because the program has its time by `netnice set --cpu`.
    Kept,
}

/// The results of one run.
struct Run {
    /// Of each packet, in us.
    lateness: Vec<f64>,
    early: u64,
    /// Processor time of the packet thread, in percent of the time.
    used: f64,
    /// Its budget, in percent of the time; 100 with SCHED_FIFO.
    budget: f64,
}

/// Measures each setting; see the module. Fails as the module says.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let (rounds, seconds) = if context.quick { (1, 1) } else { (5, 3) };
    outcome.paper = json!("nothing early; p99 of lateness at most twice that of the driver alone");
    let mut all: Vec<Vec<Run>> = SETTINGS.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (runs, setting) in all.iter_mut().zip(SETTINGS) {
            runs.push(setting.measure(seconds)?);
        }
    }
    let middle = |runs: &[Run], of: &dyn Fn(&Run) -> f64| {
        stats::median(&runs.iter().map(of).collect::<Vec<_>>())
    };
    for (runs, setting) in all.iter().zip(SETTINGS) {
        let row = json!({
            "late p50": middle(runs, &|one| stats::percentile(&one.lateness, 50.0)),
            "late p99": middle(runs, &|one| stats::percentile(&one.lateness, 99.0)),
            "late p99.9": middle(runs, &|one| stats::percentile(&one.lateness, 99.9)),
            "late most": middle(runs, &|one| stats::greatest(&one.lateness)),
            "processor, %": middle(runs, &|one| one.used),
            "budget, %": middle(runs, &|one| one.budget),
            "packets": middle(runs, &|one| one.lateness.len() as f64),
        });
        context.say(format!("{}: {row}", setting.name));
        outcome.ours(setting.name, row);
    }
    let early: u64 = all.iter().flatten().map(|one| one.early).sum();
    let what = "packets that netnice check finds early";
    outcome.check(what, early as f64, "", Bound::AtMost(0.0));
    let p99 = |runs: &[Run]| middle(runs, &|one| stats::percentile(&one.lateness, 99.0));
    if let [alone, .., reserved] = all.as_slice() {
        let most = if context.quick { 10.0 } else { 2.0 };
        let what = "p99 of lateness with a reservation, divided by that of the driver alone";
        outcome.check(what, p99(reserved) / p99(alone), "", Bound::AtMost(most));
    }
    Ok(())
}

impl Setting {
    fn measure(self, seconds: u64) -> Result<Run> {
        // The link is fast enough to be free whenever a packet may leave.
        let front = FrontDoor::new("1gbit")?;
        let contract = format!("pcr=100mbit,cdvt={}us", CDVT / 1000);
        let mut sender = front.sender(PORT, &format!("cell {contract}"))?;
        let thread = packet_thread(&front)?;
        let (tap, file) = tap(&front.world)?;
        sender.go()?;
        let _by_hand = (self.beside && self.class != Class::Kept)
            .then(busy)
            .transpose()?;
        let mut program = None;
        match self.class {
            Class::Fifo => {}
            Class::Reserved(budget) => reserve(number(&thread)?, budget, PERIOD)?,
            Class::Kept => {
                // The driver's budget follows from what it used lately.
                pause(USED_LATELY);
                let carnage = Carnage::new(1, 0).start(front.world.client(), None)?;
                let line = format!("set pid:{} --cpu 6ms/10ms", carnage.pid());
                front.netnice.run_line(&line)?;
                program = Some(carnage);
            }
        }
        let begun = sys::now_ns();
        let settled = Subject::Driver.settling_time(SPACING);
        pause(settled as f64 / SECOND as f64);
        let before = processor_time(&thread)?;
        pause(seconds as f64);
        let used = processor_time(&thread)?.saturating_sub(before);
        let budget = budget(&thread)?;
        if let Some(program) = &program {
            let is_exact = matches!(policy::policy(program.pid())?, Policy::Deadline(_));
            anyhow::ensure!(
                is_exact,
                "netniced does not keep the program's time exactly"
            );
        }
        let record = tap.stop(&front.world.server().ns)?;
        record.validate()?;
        sender.stop()?;
        let missing = missing_on_the_wire(&file, PORT)?;
        anyhow::ensure!(
            missing == 0,
            "{missing} packets were sent and did not arrive"
        );
        let (judged, early) = check_conformance(&file, &["--cell", &contract], PORT)?;
        let times = record.times(from_port(PORT));
        let begins = begun + settled;
        let times = &times[times.partition_point(|at| *at < begins)..];
        anyhow::ensure!(
            judged > 0 && times.len() > 50,
            "only {} packets came",
            times.len()
        );
        let late = lateness(times, (SPACING, CDVT)).into_iter();
        Ok(Run {
            lateness: late.map(|late| late as f64 / 1e3).collect(),
            early,
            used: used as f64 / (seconds * SECOND) as f64 * 100.0,
            budget: budget as f64 / PERIOD as f64 * 100.0,
        })
    }
}

/// A program that uses 6 ms of each 10 ms of a processor, which it has for certain.
fn busy() -> Result<Proc> {
    let mut command = process::own_group("sh");
    command.args(["-c", "while :; do :; done"]);
    let program = Proc::start(command)?;
    reserve(program.pid(), 6_000_000, 10 * PERIOD)?;
    Ok(program)
}

/// The budget of a thread in each [`PERIOD`], in ns; the whole period without a reservation.
fn budget(thread: &Path) -> Result<u64> {
    Ok(match policy::policy(number(thread)?)? {
        Policy::Deadline(time) => time.budget.0,
        _ => PERIOD,
    })
}

/// The id of a thread, from its folder in /proc.
fn number(thread: &Path) -> Result<u32> {
    let name = thread.file_name().and_then(|name| name.to_str());
    Ok(name.context("a thread without a number")?.parse()?)
}

/// The folder in /proc of the driver's packet thread.
fn packet_thread(front: &FrontDoor) -> Result<PathBuf> {
    let driver = front.world.client().ns.driver().context("no driver runs")?;
    let thread = process::thread_named(driver, "packets")?;
    Ok(PathBuf::from(format!("/proc/{driver}/task/{thread}")))
}

/// Gives a thread so many ns of each period. Such a thread may run on all processors.
fn reserve(thread: u32, budget: u64, period: u64) -> Result<()> {
    let number = thread.to_string();
    process::run(process::own_group("taskset").args(["-p", ALL_PROCESSORS, &number]))?;
    policy::set_deadline(thread, Deadline::exactly(Nanos(budget), Nanos(period)))
        .with_context(|| format!("SCHED_DEADLINE {budget}/{period}"))
}

/// The processor time of a thread, in ns.
fn processor_time(thread: &Path) -> Result<u64> {
    let figures = std::fs::read_to_string(thread.join("schedstat"))?;
    let first = figures.split_ascii_whitespace().next();
    Ok(first.context("an empty schedstat")?.parse()?)
}

const fn beside(name: &'static str, class: Class) -> Setting {
    Setting {
        name,
        beside: true,
        class,
    }
}

const SETTINGS: [Setting; 5] = [
    Setting {
        name: "alone, SCHED_FIFO",
        beside: false,
        class: Class::Fifo,
    },
    beside("beside it, SCHED_FIFO", Class::Fifo),
    beside("beside it, 30 %", Class::Reserved(300_000)),
    beside("beside it, 60 %", Class::Reserved(600_000)),
    beside("beside it, as netniced keeps both", Class::Kept),
];
/// The period of a reservation of the packet thread, in ns.
const PERIOD: u64 = 1_000_000;
/// For how long the driver sends before the program has its time by netniced, in s.
const USED_LATELY: f64 = 1.5;
/// Time between two packets, in ns.
const SPACING: u64 = 120_000;
/// A mask of processors for taskset(1).
const ALL_PROCESSORS: &str = "ffffffff";
