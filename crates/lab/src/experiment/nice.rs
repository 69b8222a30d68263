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
    let ratio = compare(context, outcome, &with, &without);
    let least = if context.quick { 0.97 } else { 0.99 };
    let what = "throughput with netnice / without, median of the ratios of neighbouring runs";
    outcome.check(what, ratio, "", Bound::AtLeast(least));
    Ok(())
}

/// Adds the values of the runs with netnice and without, each (MB/s, processor time of a transfer
/// in ms). Returns the median of the ratios of throughput.
fn compare(
    context: &Context,
    outcome: &mut Outcome,
    with: &[(f64, f64)],
    without: &[(f64, f64)],
) -> f64 {
    let unzip = |runs: &[(f64, f64)]| -> (Vec<f64>, Vec<f64>) { runs.iter().copied().unzip() };
    let [(rates_with, spent_with), (rates_without, spent_without)] = [unzip(with), unzip(without)];
    outcome.paper = json!([
        {
            "kernel": "with netnice",
            "mean, MB/s": 13.94, "standard deviation, MB/s": 0.66, "runs": 20,
        },
        {
            "kernel": "unmodified",
            "mean, MB/s": 13.65, "standard deviation, MB/s": 0.58, "runs": 20,
        },
    ]);
    let row = |name: &str, rates: &[f64], spent: &[f64]| {
        json!({
            "kernel": name,
            "mean, MB/s": stats::mean(rates),
            "standard deviation, MB/s": stats::deviation(rates),
            "runs": rates.len(),
            "processor time of both ends for a transfer, median, ms": stats::median(spent),
        })
    };
    let rows = [
        row("with netnice", &rates_with, &spent_with),
        row("without netnice", &rates_without, &spent_without),
    ];
    outcome.ours("throughput", rows);
    // Each pair was measured within a second. On a machine with other load, a ratio of neighbours
    // is therefore steadier than the rates, and the median of the ratios is steadier than their
    // mean.
    let ratios = |with: &[f64], without: &[f64]| -> Vec<f64> {
        with.iter().zip(without).map(|(a, b)| a / b).collect()
    };
    let rates = ratios(&rates_with, &rates_without);
    let spent = ratios(&spent_with, &spent_without);
    let (ratio, time, runs) = (stats::median(&rates), stats::median(&spent), rates.len());
    let (low, high) = stats::median_interval(&rates);
    let (time_low, time_high) = stats::median_interval(&spent);
    let means = stats::mean(&rates_with) / stats::mean(&rates_without);
    let compared = json!([
        {
            "with netnice / without": "throughput",
            "median of the ratios of neighbouring runs": ratio,
            "interval of 95 %, from": low, "to": high,
            "ratio of the means": means, "paper's ratio of the means": 13.94 / 13.65,
        },
        {
            "with netnice / without": "processor time of both ends",
            "median of the ratios of neighbouring runs": time,
            "interval of 95 %, from": time_low, "to": time_high,
            "ratio of the means": stats::mean(&spent_with) / stats::mean(&spent_without),
            "paper's ratio of the means": null,
        },
    ]);
    outcome.ours("ratios", compared);
    context.say(format!(
        "ratio {ratio:.4}, between {low:.4} and {high:.4}; of processor time {time:.4}"
    ));
    outcome.note(format!(
        "Throughput with netnice: mean {:.0} MB/s, standard deviation {:.0} MB/s, {runs} runs. \
         Without netnice: mean {:.0} MB/s, standard deviation {:.0} MB/s, {runs} runs.",
        stats::mean(&rates_with),
        stats::deviation(&rates_with),
        stats::mean(&rates_without),
        stats::deviation(&rates_without),
    ));
    outcome.note(format!(
        "The judged ratio is the median of {runs} ratios, each of two runs that were made one \
         after the other, with netnice and without; its interval of 95 % is {low:.4} to \
         {high:.4}. The ratio of the two means is {means:.4}."
    ));
    ratio
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
        "rate on the wire, compared with the limit: farthest second, from 200 ms after the command",
        worst.abs() * 100.0,
        "%",
        bound,
    );
    let mean = run.record.rate(of, run.set + 200 * MS, run.ended);
    let before = run
        .record
        .rate(of, run.began + 2 * SECOND, run.set - SECOND);
    publish(context, outcome, &run, Direction::Up, before, mean)
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
        "mean rate received behind the limit, compared with it, from 1 s after the command ends",
        error,
        "%",
        Bound::AtMost(tolerance * 100.0),
    );
    let worst = stats::worst_error(&bins, aim).abs() * 100.0;
    outcome.check(
        "rate received behind the limit, compared with it: farthest second",
        worst,
        "%",
        Bound::AtMost(3.0),
    );
    let wire = run.record.rate(wire::outbound, from, to);
    let segment = run.record.bins(wire::outbound, from, to, SECOND);
    let uneven_segment = stats::worst_error(&segment, aim) * 100.0;
    let read = run.report.received().bins(from, to, SECOND);
    let uneven = stats::worst_error(&read, aim) * 100.0;
    outcome.ours(
        "rate from 1 s after the command ends",
        json!([
            {
                "where": "received behind the limit",
                "mean, Mbit/s": mean / MBIT,
                "farthest second from the limit, %": stats::worst_error(&bins, aim) * 100.0,
            },
            {
                "where": "on the segment, as in the paper",
                "mean, Mbit/s": wire / MBIT,
                "farthest second from the limit, %": uneven_segment,
            },
            {
                "where": "as the program reads it",
                "mean, Mbit/s": stats::mean(&read) / MBIT,
                "farthest second from the limit, %": uneven,
            },
        ]),
    );
    outcome.note(format!(
        "Not judged: on the segment, where the paper measured, the mean from 1 s after the command \
         ends is {:.2} % from the limit and the farthest second {uneven_segment:.2} %. The segment \
         carries more than the limit, because packets beyond the limit are dropped behind the \
         segment and sent again. As the program reads it, the farthest second is {uneven:.2} % \
         from the limit: the program gets nothing while a packet is missing, and then all at once.",
        (wire / aim - 1.0) * 100.0,
    ));
    if let Some(service) = run.service {
        outcome.note(format!(
            "Not judged: {:.2} % of the packets were sent again, and {} segments arrived while an \
             earlier one was missing. Dropped packets are the signal that slows down the sender.",
            service.retransmitted, service.out_of_order,
        ));
    }
    let before = run.received.rate(run.began + 2 * SECOND, run.set - SECOND);
    publish(
        context,
        outcome,
        &run,
        Direction::Down,
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

/// Adds the notes that say how long the command took, in ms, and what the limit counts.
fn note_command(outcome: &mut Outcome, took: f64) {
    outcome.note(format!(
        "The command took {took:.0} ms. The daemon runs before; with the first limit it loads the \
         eBPF programs into the kernel, which verifies them, and makes its queues. The limit is in \
         force when the command ends, so times are counted from its end."
    ));
    outcome.note(
        "The limit of 512 Kbyte/s (524,288 bytes/s) is counted on the wire, with 14 bytes of \
         Ethernet header for each packet. At the network layer, where the paper counts, full \
         packets have 507 Kbyte/s.",
    );
}

/// Adds what both figures have: what TCP got, the rates before and after the limit in bit/s, and
/// the plot.
fn publish(
    context: &Context,
    outcome: &mut Outcome,
    run: &Limited,
    direction: Direction,
    before: f64,
    after: f64,
) -> Result<()> {
    outcome.paper = json!({"limit, bytes/s": 524_288, "seen": "the rate follows the limit"});
    if let Some(service) = run.service.filter(|_| context.subject == Subject::Netnice) {
        let name = "what TCP gets of the limit, from 1 s after the command ends";
        service.check(context, outcome, name, (direction, 1), 0.0);
        outcome.ours(
            "what TCP gets from 1 s after the command ends",
            json!({
                "goodput, % of what the limit allows": service.goodput,
                "packets sent again, %": service.retransmitted,
                "segments that arrived while an earlier one was missing": service.out_of_order,
            }),
        );
    }
    let network = 1500.0 / 1514.0;
    outcome.ours(
        "rates before and after the limit",
        json!([
            {
                "counted": "on the wire, as netnice counts",
                "before, bytes/s": before / 8.0, "after, bytes/s": after / 8.0,
                "limit, bytes/s": 524_288,
            },
            {
                "counted": "at the network layer, as the paper counts",
                "before, bytes/s": before / 8.0 * network, "after, bytes/s": after / 8.0 * network,
                "limit, bytes/s": 524_288.0 * network,
            },
        ]),
    );
    let took = (run.set - run.typed) as f64 / 1e6;
    outcome.ours("time from the start of the command to its end, ms", took);
    if context.subject == Subject::Netnice {
        note_command(outcome, took);
    }
    context.say(format!(
        "{:.0} bytes/s on the wire after the limit",
        after / 8.0
    ));
    let (id, draw): (&str, fn(&Limited) -> Chart) = match direction {
        Direction::Down => ("nice-fig4", draw_input),
        _ => ("nice-fig3", draw_output),
    };
    outcome.plot(context, id, || draw(run).svg())
}

/// Figure 3: what the sender's packets use of the segment.
fn draw_output(run: &Limited) -> Chart {
    let bins = run.record.bins(wire::inbound, run.began, run.ended, TENTH);
    let title = "A running TCP sender is limited to 512 Kbyte/s after 10 s (output)";
    let line = Series::new("on the segment", palette::BLUE, points(bins));
    chart(run, title).with(line)
}

/// Figure 4: what the receiver's packets use of the segment, and what passes the limit.
fn draw_input(run: &Limited) -> Chart {
    let wire = run.record.bins(wire::outbound, run.began, run.ended, TENTH);
    let got = run.received.bins(run.began, run.ended, TENTH);
    let title = "A running TCP receiver is limited to 512 Kbyte/s after 10 s (input)";
    let on_wire = "on the segment, where the paper measured";
    let behind = "received behind the limit, which is judged";
    chart(run, title)
        .with(Series::new(on_wire, palette::GREY, points(wire)).thin())
        .with(Series::new(behind, palette::BLUE, points(got)))
}

/// The axes and marks of both figures.
fn chart(run: &Limited, title: &str) -> Chart {
    let since = |at: u64| (at - run.began) as f64 / 1e9;
    Chart::new(
        title,
        "time since the transfer began, s",
        "rate on the wire, Kbyte/s, mean of each 100 ms",
    )
    .level(512.0, "limit: 512 Kbyte/s")
    .moment(since(run.typed), "command starts")
    .moment(since(run.set), "command ends")
}

/// Rates in bit/s of each 100 ms as points of a figure, in s and Kbyte/s.
fn points(rates: Vec<f64>) -> Vec<(f64, f64)> {
    let point = |(i, bits): (usize, f64)| (i as f64 / 10.0 + 0.05, bits / 8.0 / 1024.0);
    rates.into_iter().enumerate().map(point).collect()
}

/// The width of a bin in the figures, in ns.
const TENTH: u64 = SECOND / 10;
/// Bytes of the paper's file.
const FILE: u64 = 45_000_000;
