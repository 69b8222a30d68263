//! The experiment `direct-timing` measures how evenly packets of a cell contract arrive: from the
//! driver, and for comparison from the kernel's queueing disciplines HTB and TBF, on an idle
//! machine and on a busy one (with one spinning program on every processor). On the idle machine a
//! thread that only reads the clock shows how exact any program could be.
//!
//! The traffic is one backlogged flow of packets of 1500 bytes with all headers, at 10 and at 100
//! Mbit/s. A *gap* is the time between two packets, by the timestamps of the receiver's device.
//! *Lateness* is relative to the contract: the next packet may leave T after the time at which this
//! packet was allowed to leave. T is the time between two packets at the contract's rate. A packet
//! that is more than CDVT (500 us) late ends a section of the run. The least late packet of each
//! section is assumed to be on time, because the contract permits a flow to catch up anything from
//! nothing to CDVT after such a packet.
//!
//! Only the driver is judged, by medians over five runs (one in the quick form). On the idle
//! machine the 1st and the 99th percentile of the gaps must be within 5 us of T (100 us in the
//! quick form). On the busy machine the 99th percentile of the lateness must be at most 50 us (20
//! ms in the quick form). A packet that a recorded stop of the driver excuses counts in neither
//! (see [`crate::alibi`]). `netnice check` must find no packet early.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if
//! the subject is not netnice, if a step of the measurement fails, or if a plot cannot be written.

pub(super) mod reserved;

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use netnice_driver::event_loop;
use serde_json::{Value, json};

use super::bench::{MS, SECOND, netnice_only, pause};
use super::front_door::{BUFFERS, FrontDoor};
use super::sent_packets::{check_conformance, from_port, missing_on_the_wire, tap};
use super::{Bound, Context, Outcome};
use crate::alibi::Alibi;
use crate::direct;
use crate::plot::{Chart, Series, palette};
use crate::process::{self, Proc};
use crate::stats;
use crate::traffic::{self, Udp};
use crate::world::{Pair, World, htb};

/// The sender under test.
#[derive(Clone, Copy, PartialEq)]
enum Subject {
    Driver,
    Htb,
    Tbf,
    Clock,
}

impl Subject {
    /// All subjects, for an idle machine. The clock is left out on a loaded machine, where other
    /// programs spin.
    const ALL: [Subject; 4] = [Subject::Driver, Subject::Htb, Subject::Tbf, Subject::Clock];

    fn name(self) -> &'static str {
        match self {
            Subject::Driver => "driver",
            Subject::Htb => "HTB",
            Subject::Tbf => "TBF",
            Subject::Clock => "the clock",
        }
    }
}

/// The results of one run, in us.
pub(super) struct Measured {
    pub(super) gaps: Vec<f64>,
    lateness: Vec<f64>,
    /// Packets that are late, and that a stop of the driver excuses; they are not in the two lists.
    pub(super) excused: u64,
    /// Packets that `netnice check` found early.
    early: u64,
}

/// Measures gaps and lateness at 10 and 100 Mbit/s. Fails if the subject is not netnice, and as
/// [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let (rounds, seconds) = if context.quick { (1, 1) } else { (5, 4) };
    outcome.paper = json!(
        "gap p1 to p99 within 5 us of nominal, median of five; both cores loaded: p99 of lateness at most 50 us"
    );
    let mut drawn = Vec::new();
    for megabit in [10, 100] {
        let nominal = 12_000.0 / megabit as f64;
        let mut early = 0;
        for loaded in [false, true] {
            let subjects = match loaded {
                true => &Subject::ALL[..3],
                false => &Subject::ALL,
            };
            let mut all: [Vec<Measured>; 4] = Default::default();
            for _ in 0..rounds {
                for (seen, subject) in all.iter_mut().zip(subjects) {
                    let one = match loaded {
                        true => with_busy_processors(|| subject.measure(megabit, seconds))?,
                        false => subject.measure(megabit, seconds)?,
                    };
                    early += one.early;
                    seen.push(one);
                }
            }
            let state = if loaded { "both cores loaded" } else { "idle" };
            for (seen, subject) in all.iter().zip(subjects) {
                let row = summary(seen);
                context.say(format!(
                    "{megabit} Mbit/s, {state}, {}: {row}",
                    subject.name()
                ));
                outcome.ours(
                    &format!("{megabit} Mbit/s, {state}, {}", subject.name()),
                    row,
                );
            }
            let [ours, ..] = &all;
            check(outcome, context, (megabit, loaded), nominal, ours);
            if megabit == 100 && !loaded {
                drawn = all
                    .iter()
                    .filter_map(|seen| Some(seen.first()?.gaps.clone()))
                    .collect();
            }
        }
        let what = format!("{megabit} Mbit/s: packets that netnice check finds early");
        outcome.check(what, early as f64, "", Bound::AtMost(0.0));
    }
    outcome.plot(context, "direct-timing", || gap_chart(&drawn))
}

fn check(
    outcome: &mut Outcome,
    context: &Context,
    (megabit, loaded): (u64, bool),
    nominal: f64,
    ours: &[Measured],
) {
    let middle =
        |of: &dyn Fn(&Measured) -> f64| stats::median(&ours.iter().map(of).collect::<Vec<_>>());
    if loaded {
        let late = middle(&|seen| stats::percentile(&seen.lateness, 99.0));
        let most = if context.quick { 20_000.0 } else { 50.0 };
        let what = format!("{megabit} Mbit/s, both cores loaded: p99 of lateness");
        return outcome.check(what, late, "us", Bound::AtMost(most));
    }
    let most = if context.quick { 100.0 } else { 5.0 };
    for (name, percent) in [("p1", 1.0), ("p99", 99.0)] {
        let off = middle(&|seen| stats::percentile(&seen.gaps, percent)) - nominal;
        let what = format!("{megabit} Mbit/s, idle: {name} of the gaps, off {nominal} us");
        outcome.check(what, off.abs(), "us", Bound::AtMost(most));
    }
}

/// Medians over the runs.
fn summary(seen: &[Measured]) -> Value {
    let middle = |of: &dyn Fn(&Measured) -> f64| {
        let value = stats::median(&seen.iter().map(of).collect::<Vec<_>>());
        (value * 100.0).round() / 100.0
    };
    json!({
        "gap p1": middle(&|one| stats::percentile(&one.gaps, 1.0)),
        "gap p50": middle(&|one| stats::percentile(&one.gaps, 50.0)),
        "gap p99": middle(&|one| stats::percentile(&one.gaps, 99.0)),
        "gap p99.9": middle(&|one| stats::percentile(&one.gaps, 99.9)),
        "late p50": middle(&|one| stats::percentile(&one.lateness, 50.0)),
        "late p99": middle(&|one| stats::percentile(&one.lateness, 99.0)),
        "late most": middle(&|one| stats::greatest(&one.lateness)),
        "packets": middle(&|one| one.gaps.len() as f64),
        "excused": middle(&|one| one.excused as f64),
    })
}

impl Subject {
    fn measure(self, megabit: u64, seconds: u64) -> Result<Measured> {
        let spacing = 12_000_000 / megabit;
        let (times, early, alibi) = match self {
            Subject::Driver => driver(megabit, seconds)?,
            Subject::Clock => (clock(spacing, seconds)?, 0, Alibi::default()),
            _ => (self.kernel(megabit, seconds)?, 0, Alibi::default()),
        };
        let begins = times.first().unwrap_or(&0) + self.settling_time(spacing);
        let steady = times.partition_point(|at| *at < begins);
        let times = &times[steady..];
        anyhow::ensure!(times.len() > 50, "only {} packets came", times.len());
        Ok(Measured::new(times, (spacing, CDVT), early, &alibi))
    }

    /// Time in ns until the steady state. The driver maps the pages of a program's memory on their
    /// first use.
    fn settling_time(self, spacing: u64) -> u64 {
        match self {
            Subject::Driver => (200 * MS).max(u64::from(BUFFERS) * spacing),
            _ => 200 * MS,
        }
    }

    /// A UDP flood through the kernel, limited by a queue.
    fn kernel(self, megabit: u64, seconds: u64) -> Result<Vec<u64>> {
        let world = World::pair(Pair::default())?;
        let client = world.client();
        let device = &client.port().device;
        let _sink = direct::sink(world.server())?;
        let bits = megabit * 1_000_000;
        match self {
            Subject::Htb => htb::limit(&client.ns, device, bits, htb::Leaf::Default)?,
            // TBF is steadiest with the larger bucket at 100 Mbit/s, and with the smaller one at
            // 10.
            _ => {
                let burst = if megabit > 10 { 15_000 } else { 2_000 };
                let limit = "limit 150000";
                client.ns.tc(&format!(
                    "qdisc add dev {device} root tbf rate {bits}bit burst {burst} {limit}"
                ))?;
            }
        }
        let (tap, _) = tap(&world)?;
        let (from, to) = (
            (client.port().v4, PORT).into(),
            (world.server().port().v4, direct::SINK).into(),
        );
        let flood = traffic::start_now(client, &Udp::source(from, to).size(1458))?;
        pause(SETTLE + seconds as f64);
        flood.stop()?;
        let record = tap.stop(&world.server().ns)?;
        record.validate()?;
        Ok(record.times(from_port(PORT)))
    }
}

/// Sends through netniced and the driver; returns the packets' arrival times, the number of early
/// packets, and what the driver's stops excuse.
fn driver(megabit: u64, seconds: u64) -> Result<(Vec<u64>, u64, Alibi)> {
    // The link is fast enough to be free whenever a packet may leave.
    let front = FrontDoor::new("1gbit")?;
    let contract = format!("pcr={megabit}mbit,cdvt={}us", CDVT / 1000);
    let mut sender = front.sender(PORT, &format!("cell {contract}"))?;
    let (tap, file) = tap(&front.world)?;
    sender.go()?;
    let begins = Subject::Driver.settling_time(12_000_000 / megabit) as f64 / SECOND as f64;
    pause(begins + seconds as f64);
    let alibi = front.stops()?.alibi(megabit as f64 / 1e3);
    let record = tap.stop(&front.world.server().ns)?;
    record.validate()?;
    sender.stop()?;
    let missing = missing_on_the_wire(&file, PORT)?;
    anyhow::ensure!(
        missing == 0,
        "{missing} packets were sent and did not arrive"
    );
    let early = conforms(&file, &contract)?;
    Ok((record.times(from_port(PORT)), early, alibi))
}

/// The times at which a thread that only reads the clock sees that a packet may leave.
fn clock(spacing: u64, seconds: u64) -> Result<Vec<u64>> {
    let reads = move || -> Result<Vec<u64>> {
        event_loop::set_scheduling(None)?;
        let from = event_loop::monotonic().0;
        let moments = (1..seconds * SECOND / spacing).map(|number| from + number * spacing);
        let seen = moments.map(|moment| {
            // Without a sleep the kernel stops a real-time thread for a twentieth of each second.
            thread::sleep(Duration::from_nanos(spacing / 2));
            loop {
                let now = event_loop::monotonic().0;
                if now >= moment {
                    return now;
                }
            }
        });
        Ok(seen.collect())
    };
    let ended = thread::spawn(reads).join();
    ended.map_err(|_| anyhow::anyhow!("the thread that reads the clock panicked"))?
}

fn conforms(file: &Path, contract: &str) -> Result<u64> {
    let (judged, early) = check_conformance(file, &["--cell", contract], PORT)?;
    anyhow::ensure!(judged > 0, "nothing was judged");
    Ok(early)
}

impl Measured {
    /// Measures packets that may be `spacing` ns apart, with a tolerance of `cdvt` ns. A packet
    /// that is late by more than [`ON_TIME`] and that a stop excuses is left out, with the gaps
    /// before and after it.
    pub(super) fn new(
        times: &[u64],
        (spacing, cdvt): (u64, u64),
        early: u64,
        alibi: &Alibi,
    ) -> Measured {
        let late = lateness(times, (spacing, cdvt));
        let is_excused = |(at, late): (&u64, &u64)| {
            let excuse = alibi.excuse(at.saturating_sub(*late), *at);
            *late > ON_TIME && excuse > 0 && *late <= ON_TIME + excuse
        };
        let excused: Vec<bool> = times.iter().zip(&late).map(is_excused).collect();
        let gaps = times.windows(2).zip(excused.windows(2));
        let gaps = gaps.filter(|(_, excused)| !excused[0] && !excused[1]);
        let gaps = gaps.map(|(pair, _)| (pair[1] as f64 - pair[0] as f64) / 1e3);
        let late = late.iter().zip(&excused).filter(|(_, excused)| !**excused);
        Measured {
            gaps: gaps.collect(),
            lateness: late.map(|(late, _)| *late as f64 / 1e3).collect(),
            excused: excused.iter().filter(|excused| **excused).count() as u64,
            early,
        }
    }
}

/// Lateness in ns of packets that may be `spacing` ns apart, as the module defines it.
fn lateness(times: &[u64], (spacing, cdvt): (u64, u64)) -> Vec<u64> {
    let mut allowed = times.first().copied().unwrap_or_default() as i64;
    let mut late: Vec<i64> = Vec::with_capacity(times.len());
    // The section begins at this packet; its least late packet so far.
    let (mut begin, mut least) = (0, 0);
    for at in times.iter().map(|at| *at as i64) {
        least = if late.len() == begin {
            at - allowed
        } else {
            least.min(at - allowed)
        };
        late.push(at - allowed);
        if at - allowed - least > cdvt as i64 {
            late[begin..].iter_mut().for_each(|late| *late -= least);
            begin = late.len();
            allowed = at;
        }
        allowed += spacing as i64;
    }
    late[begin..].iter_mut().for_each(|late| *late -= least);
    late.into_iter().map(|late| late as u64).collect()
}

/// Executes `work` while a program spins on every processor.
fn with_busy_processors<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let processors = std::thread::available_parallelism()
        .context("processors")?
        .get();
    let spin = |processor: usize| {
        let mut command: Command = process::own_group("taskset");
        command.args([
            "-c",
            &processor.to_string(),
            "sh",
            "-c",
            "while :; do :; done",
        ]);
        Proc::start(command)
    };
    let _spinning: Vec<Proc> = (0..processors).map(spin).collect::<Result<_>>()?;
    work()
}

/// The distribution of the gaps of the runs at 100 Mbit/s.
fn gap_chart(gaps: &[Vec<f64>]) -> String {
    let mut chart = Chart::new(
        "Gaps between packets at 100 Mbit/s, idle machine",
        "gap, us",
        "% of the gaps are shorter",
    )
    .x_range(105.0, 135.0)
    .y_range(0.0, 100.0);
    for ((gaps, subject), colour) in gaps.iter().zip(Subject::ALL).zip(palette::SERIES) {
        let mut sorted = gaps.clone();
        sorted.sort_by(f64::total_cmp);
        let every = (sorted.len() / 500).max(1);
        let count = sorted.len() as f64;
        let points = sorted.iter().enumerate().step_by(every);
        let points = points.map(|(number, gap)| (*gap, number as f64 / count * 100.0));
        let inside = points.filter(|(gap, _)| (105.0..=135.0).contains(gap));
        chart = chart.with(Series::new(subject.name(), colour, inside.collect()));
    }
    chart.svg()
}

/// The source port of the packets.
const PORT: u16 = 5000;
/// A packet is on time if it is late by no more than this, in ns.
const ON_TIME: u64 = 5_000;
/// The contract's tolerance, in ns.
const CDVT: u64 = SECOND / 2_000;
/// Time in seconds until all parts run.
const SETTLE: f64 = 0.3;

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets may be 120 ns apart, CDVT is 500 ns.
    fn late(times: &[u64]) -> Vec<u64> {
        lateness(times, (120, 500))
    }

    #[test]
    fn lateness_within_cdvt_is_caught_up() {
        assert!(late(&[]).is_empty());
        assert_eq!(late(&[1_000, 1_130, 1_240]), [0, 10, 0]);
        // Four packets after a stop of 400 ns.
        assert_eq!(
            late(&[0, 480, 480, 480, 480, 600]),
            [0, 360, 240, 120, 0, 0]
        );
        assert_eq!(late(&[50, 120, 240]), [50, 0, 0]);
    }

    /// After 1,020 ns too much, a flow goes on from there, or CDVT earlier.
    #[test]
    fn after_more_than_cdvt_a_flow_may_catch_up_cdvt_or_nothing() {
        assert_eq!(late(&[0, 1_140, 1_260, 1_390]), [0, 1_020, 0, 10]);
        let caught_up = [0, 1_140, 1_140, 1_140, 1_140, 1_140, 1_250, 1_360];
        assert_eq!(late(&caught_up), [0, 1_020, 380, 260, 140, 20, 10, 0]);
        assert_eq!(
            late(&[0, 1_140, 1_260, 2_400, 2_520]),
            [0, 1_020, 0, 1_020, 0]
        );
    }
}
