//! Repeats experiments of the paper NICE (section 5) with limits of single programs: table 1, and
//! figures 3 and 4.
//!
//! The paper counts bytes at the network layer, netnice on the wire; the outcome of a figure has
//! both. 512 Kbyte/s is 524,288 bytes/s. For the figures the cable of the program's host has the
//! paper's 10 Mbit/s, and a tap counts what the paper's tcpdump counted: the packets of the
//! transfer between the two hosts.
//!
//! What TCP gets of netnice's limit in figures 3 and 4 is judged as [`TcpService::check`] says.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if a step of
//! the measurement fails, or if a plot cannot be written; [`table1`] and [`figure4`] also if the
//! subject is not netnice.

use anyhow::Result;
use serde_json::json;

use super::bench::{
    Direction, Limiter, MBIT, MS, R512K, SECOND, Subject, at, netnice_only, pause, wait_until,
};
use super::goodput::{Counts, TcpService};
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};
use crate::process::Proc;
use crate::stats::{self, Cumulative};
use crate::sys;
use crate::traffic::{self, FileClient, Report, Tcp};
use crate::wire::{self, Record, Tap};
use crate::world::{Arrivals, Cable, Family, Pair, World};

/// Table 1: loopback transfers of a 45-Mbyte file by a program without a limit, with and without
/// netnice. With netnice another process has a limit, so that the eBPF programs are installed. The
/// median of the ratios of throughput must be at least 0.99 (0.97 in the quick form). Fails if the
/// subject is not netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn table1(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let world = World::pair(Pair::default())?;
    let mut pair = Loopback::start(&world)?;
    // The paper made 20 runs; six times as many make the interval narrow enough to judge 1 %.
    let (runs, times) = if context.quick { (12, 20) } else { (120, 20) };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for run in 0..runs {
        // A B, B A, A B, …: a machine that becomes slower meanwhile affects both equally.
        for filtered in [run % 2 == 0, run % 2 == 1] {
            let one = pair.run(&world, times, filtered)?;
            if filtered { &mut with } else { &mut without }.push(one);
        }
    }
    outcome.paper = json!({
        "with netnice": {"MB/s": 13.94, "deviation": 0.66},
        "unmodified": {"MB/s": 13.65, "deviation": 0.58},
        "ratio": 13.94 / 13.65,
    });
    for (name, runs) in [("with netnice", &with), ("unmodified", &without)] {
        let (rates, spent): (Vec<f64>, Vec<f64>) = runs.iter().copied().unzip();
        let row = json!({
            "MB/s": stats::mean(&rates), "deviation": stats::deviation(&rates), "runs": runs.len(),
            "processor time per transfer, ms": stats::median(&spent),
        });
        outcome.ours(name, row);
    }
    // Each pair was measured within a second. On a machine with other load, a ratio of neighbours
    // is therefore steadier than the rates, and the median of the ratios is steadier than their
    // mean.
    let pairs = || with.iter().zip(&without);
    let rates: Vec<f64> = pairs().map(|(a, b)| a.0 / b.0).collect();
    let spent: Vec<f64> = pairs().map(|(a, b)| a.1 / b.1).collect();
    let (ratio, time) = (stats::median(&rates), stats::median(&spent));
    let (low, high) = stats::median_interval(&rates);
    outcome.ours("ratio", ratio);
    outcome.ours("interval of 95 %", [low, high]);
    outcome.ours("ratio of processor time", time);
    outcome.ours("its interval of 95 %", stats::median_interval(&spent));
    context.say(format!(
        "ratio {ratio:.4}, between {low:.4} and {high:.4}; of processor time {time:.4}"
    ));
    let least = if context.quick { 0.97 } else { 0.99 };
    let what = "throughput with the filters / without";
    outcome.check(what, ratio, "", Bound::AtLeast(least));
    Ok(())
}

/// The server and the client of transfers over loopback, on the client of a world.
pub(super) struct Loopback {
    server: Proc,
    client: FileClient,
}

impl Loopback {
    /// Starts both, and makes 60 transfers that are not measured. Fails if one cannot start.
    pub(super) fn start(world: &World) -> Result<Loopback> {
        let host = world.client();
        let from = "127.0.0.1:80".parse()?;
        // One processor each: otherwise the placement by the scheduler would be most of the
        // difference.
        let server = traffic::serve_files(host, from, Some(1))?;
        let client = FileClient::start(host, from, FILE, Some(0))?;
        let mut pair = Loopback { server, client };
        pair.client.fetch(60)?;
        Ok(pair)
    }

    /// One run as [`Loopback::transfer`] measures it, with netnice or without.
    fn run(&mut self, world: &World, times: u32, filtered: bool) -> Result<(f64, f64)> {
        let guards = if filtered {
            let netnice = world.netnice("client")?;
            let mut command = world.client().ns.command("sleep");
            command.arg("600");
            let limited = Proc::start(command)?;
            let pid = limited.pid();
            netnice.run_line(&format!("set pid:{pid} --up 512Kbyte/s --down 512Kbyte/s"))?;
            Some((netnice, limited))
        } else {
            None
        };
        let measured = self.transfer(times);
        drop(guards);
        measured
    }

    /// Throughput in MB/s, from the median duration of some transfers, and the processor time of
    /// both ends for one transfer, in ms. Fails if one of the two has ended.
    pub(super) fn transfer(&mut self, times: u32) -> Result<(f64, f64)> {
        pause(0.3); // a daemon that has begun or ended leaves the kernel some work
        self.client.fetch(4)?;
        let before = self.time_spent()?;
        let took = self.client.fetch(times)?;
        let spent = (self.time_spent()? - before) as f64 / 1e6 / f64::from(times);
        Ok((FILE as f64 / 1e6 / stats::median(&took), spent))
    }

    fn time_spent(&self) -> Result<u64> {
        Ok(sys::time_on_cpu(self.server.pid())? + sys::time_on_cpu(self.client.pid())?)
    }
}

/// The measurements for one of the two figures.
struct Limited {
    /// The record of the data's direction on the segment.
    record: Record,
    /// Bytes that the program's host received over time.
    received: Cumulative,
    /// The report of the program under test.
    report: Report,
    /// What TCP got from 1 s after the command on.
    service: Option<TcpService>,
    /// Start of the program, start and end of the command, and end of the run (wall clock, ns).
    began: u64,
    typed: u64,
    set: u64,
    ended: u64,
}

/// Figure 3: the rate of a running TCP sender that is limited to 512 Kbyte/s after 10 s. From 200
/// ms after the command on, every second must be within 1 % of the limit (3 % in the quick form).
/// Fails as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure3(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let run = limit_midway(context, Direction::Up)?;
    let aim = R512K.bits as f64;
    let of = wire::inbound;
    let mut worst: f64 = 0.0;
    let mut at = run.set + 200 * MS;
    while at + SECOND <= run.ended {
        let error = run.record.rate(of, at, at + SECOND) / aim - 1.0;
        worst = if error.abs() > worst.abs() {
            error
        } else {
            worst
        };
        at += 10 * MS;
    }
    let tolerance = context.tolerance(0.01);
    let bound = Bound::AtMost(tolerance * 100.0);
    outcome.check(
        "worst later second from 200 ms on, off the limit by",
        worst.abs() * 100.0,
        "%",
        bound,
    );
    let mean = run.record.rate(of, run.set + 200 * MS, run.ended);
    let before = run
        .record
        .rate(of, run.began + 2 * SECOND, run.set - SECOND);
    publish(
        context,
        outcome,
        &run,
        "nice-fig3",
        "Output of a running TCP sender",
        before,
        mean,
    )
}

/// Figure 4: the rate of a running TCP receiver that is limited to 512 Kbyte/s after 10 s. From 1 s
/// after the command on, the mean must be within 2 % of the limit (3 % in the quick form) and every
/// second within 3 %. The promise is about the bytes that the program's host receives behind the
/// limit. The segment carries a little more, because TCP finds its rate by losing packets at the
/// limit. The program reads less evenly, because a lost packet delays those after it. Fails if the
/// subject is not netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure4(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let run = limit_midway(context, Direction::Down)?;
    let aim = R512K.bits as f64;
    let (from, to) = (run.set + SECOND, run.ended);
    let mean = run.received.rate(from, to).unwrap_or(0.0);
    let bins = run.received.bins(from, to, SECOND);
    let tolerance = context.tolerance(0.02);
    let error = (mean / aim - 1.0).abs() * 100.0;
    outcome.check(
        "mean from 1 s on, off the limit by",
        error,
        "%",
        Bound::AtMost(tolerance * 100.0),
    );
    let worst = stats::worst_error(&bins, aim).abs() * 100.0;
    outcome.check(
        "worst second, off the limit by",
        worst,
        "%",
        Bound::AtMost(3.0),
    );
    let wire = run.record.rate(wire::outbound, from, to);
    outcome.ours("on the segment after the limit, Mbit/s", wire / MBIT);
    let read = run.report.received().bins(from, to, SECOND);
    let uneven = stats::worst_error(&read, aim).abs() * 100.0;
    outcome.ours("worst second as read by the program, off by, %", uneven);
    let before = run.received.rate(run.began + 2 * SECOND, run.set - SECOND);
    let title = "Input of a running TCP receiver";
    publish(
        context,
        outcome,
        &run,
        "nice-fig4",
        title,
        before.unwrap_or(0.0),
        mean,
    )
}

/// A TCP transfer over the paper's 10 Mbit/s, limited to 512 Kbyte/s after 10 s.
fn limit_midway(context: &Context, direction: Direction) -> Result<Limited> {
    let world = World::switched(&[
        Cable::rated("client", 10_000_000, 50),
        Cable::free("server"),
    ])?;
    let limiter = Limiter::start(&world, context.subject)?;
    let (client, server) = (world.client(), world.server());
    let to = at(server, Family::V4, 20);
    let (far, near) = match direction {
        Direction::Up => (Tcp::listen(to).sink(), Tcp::connect(to, 1).source()),
        _ => (Tcp::listen(to).source(), Tcp::connect(to, 1).sink()),
    };
    let mut far = traffic::start_waiting(server, &far)?;
    let mut program = traffic::start_waiting(client, &near)?;
    // The meter is on the segment: for up at the server's device, for down where the switch sends
    // to the client.
    let (tap_at, device) = match (direction, world.switch()) {
        (Direction::Down, Some(switch)) => (switch, "p0"),
        _ => (&server.ns, "eth0"),
    };
    let tap = Tap::start(tap_at, device)?;
    let arrivals = Arrivals::start(&client.ns)?;
    far.go()?;
    let began = program.go()?;
    context.say("10 s without a limit");
    wait_until(began + 10 * SECOND);
    let (typed, set) = limiter.set(&world, program.pid(), direction, R512K)?;
    context.say(format!(
        "limited to 512 Kbyte/s, for {} s more",
        later(context)
    ));
    let ended = set + later(context) * SECOND;
    let (sender, receiver) = match direction {
        Direction::Down => (&server.ns, &client.ns),
        _ => (&client.ns, &server.ns),
    };
    wait_until(set + SECOND);
    let before = Counts::read(sender, receiver)?;
    wait_until(ended);
    let counts = [before, Counts::read(sender, receiver)?];
    wait_until(ended + 50 * MS);
    let (report, far) = (program.stop()?, far.stop()?);
    let goodput = match direction {
        Direction::Down => &report,
        _ => &far,
    };
    let goodput = goodput.received_payload().rate(set + SECOND, ended);
    let (limit, span) = (R512K.bits as f64, (later(context) - 1) as f64);
    let service = goodput.map(|bits| TcpService::new(bits, limit, span, Family::V4, counts));
    let received = arrivals.stop()?;
    let record = tap.stop(tap_at)?;
    record.validate()?;
    Ok(Limited {
        record,
        received,
        report,
        service,
        began,
        typed,
        set,
        ended,
    })
}

fn later(context: &Context) -> u64 {
    if context.quick { 8 } else { 20 }
}

fn publish(
    context: &Context,
    outcome: &mut Outcome,
    run: &Limited,
    id: &str,
    title: &str,
    before: f64,
    after: f64,
) -> Result<()> {
    outcome.paper = json!({"limit, bytes/s": 524_288, "seen": "the rate follows the limit"});
    if let Some(service) = run.service.filter(|_| context.subject == Subject::Netnice) {
        let direction = if id == "nice-fig4" {
            Direction::Down
        } else {
            Direction::Up
        };
        service.check(context, outcome, "from 1 s on", (direction, 1), 0.0);
        outcome.ours("what TCP got", service);
    }
    outcome.ours("before the limit, Mbit/s", before / MBIT);
    outcome.ours("after, on the wire, bytes/s", after / 8.0);
    outcome.ours(
        "after, at the network layer, bytes/s",
        after / 8.0 * 1500.0 / 1514.0,
    );
    outcome.ours("the command took, ms", (run.set - run.typed) as f64 / 1e6);
    context.say(format!(
        "{:.0} bytes/s on the wire after the limit",
        after / 8.0
    ));
    outcome.plot(context, id, || {
        let points = |rates: Vec<f64>| -> Vec<(f64, f64)> {
            let point = |(i, bits): (usize, f64)| (i as f64 / 10.0 + 0.05, bits / 8.0 / 1024.0);
            rates.into_iter().enumerate().map(point).collect()
        };
        let tenth = SECOND / 10;
        let down = id == "nice-fig4";
        let wire = match down {
            true => run.record.bins(wire::outbound, run.began, run.ended, tenth),
            false => run.record.bins(wire::inbound, run.began, run.ended, tenth),
        };
        let mut chart = Chart::new(title, "seconds", "Kbyte/s on the wire, each 100 ms");
        if down {
            let got = run.received.bins(run.began, run.ended, tenth);
            chart = chart
                .with(Series::new("on the segment", palette::GREY, points(wire)).thin())
                .with(Series::new(
                    "received behind the limit",
                    palette::BLUE,
                    points(got),
                ));
        } else {
            chart = chart.with(Series::new("on the segment", palette::BLUE, points(wire)));
        }
        let typed = (run.typed - run.began) as f64 / 1e9;
        chart
            .level(512.0, "512 Kbyte/s, as in the paper")
            .moment(typed, "netnice")
            .svg()
    })
}

/// Bytes of the paper's file.
const FILE: u64 = 45_000_000;
