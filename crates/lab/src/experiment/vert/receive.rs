//! Repeats figure 7 of the paper VERT on real packets: two programs receive through the driver of
//! netniced; the second spends more and more processor time on each packet, and must lose more
//! packets in the last third of the run than in the first. The first must not lose a packet. Every
//! sent packet must have been received or be counted as lost, and the kernel must lose none before
//! the driver.
//!
//! Both programs are processes in the scheduling class of ordinary programs, and write a log with
//! the time and the size of each packet. With a folder for plots, the logs are kept there.
//!
//! The losses of the second program count without those that came while it waited for a processor.
//! A packet that the first program lost is excused only if the machine did not let the program run
//! for longer than its buffers hold packets, and one that the kernel lost only by stops of the
//! driver of that length. The experiment fails if the senders' kernel refused to send a packet, or
//! if a log does not have each received packet with its size.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a step of the measurement fails, or if a plot or a log cannot be written.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::super::bench::{SECOND, at, netnice_only, pause};
use super::super::front_door::{DriverStops, FrontDoor, check_verdict, note};
use super::super::sent_packets::bins;
use super::super::{Bound, Context, Outcome};
use super::megabits;
use crate::alibi::Verdict;
use crate::plot::{Chart, Series, palette};
use crate::process::EVENT_TIMEOUT;
use crate::stats;
use crate::sys;
use crate::traffic::{self, Report, Running, Udp};
use crate::world::{Family, Netnice};

/// The load of a run.
struct Load {
    /// Rates of both senders, in bit/s.
    rates: [u64; 2],
    /// Packets that the second consumer receives between two increases of its work. The second
    /// sender sends seven times as many, and the first sends for the same time.
    step: u64,
    /// Increase of the second consumer's work on a packet in each step. A packet of the second
    /// sender comes every 267 us at 45 Mbit/s.
    work: Duration,
    /// Buffers of each consumer: packets for 0.3 s.
    buffers: u32,
}

const FULL: Load = Load {
    rates: [40_000_000, 45_000_000],
    step: 20_000,
    work: Duration::from_micros(80),
    buffers: 1024,
};
/// A quarter of the rates, and a tenth of the time.
const QUICK: Load = Load {
    rates: [10_000_000, 11_250_000],
    step: 500,
    work: Duration::from_micros(320),
    buffers: 256,
};

impl Load {
    /// The number of packets that each sender sends.
    fn packets(&self) -> [u64; 2] {
        let second = 7 * self.step;
        [second * self.rates[0] / self.rates[1], second]
    }

    /// The time between two packets of a sender, in ns.
    fn spacing(&self, sender: usize) -> u64 {
        FRAME * 8 * SECOND / self.rates[sender]
    }
}

/// A program that receives.
struct Consumer {
    running: Running,
    log: PathBuf,
}

/// What a consumer has done at its end.
struct Consumed {
    report: Report,
    /// Times of the received packets (wall clock, ns).
    times: Vec<u64>,
    /// Packets that the driver counted as lost.
    lost: u64,
}

/// Figure 7: two consumers receive 40 and 45 Mbit/s of UDP from the kernel of another host. After
/// every 20,000 packets the second consumer works longer on each packet. In the quick form the
/// rates are a quarter, and the second works longer after every 500 packets. Fails if the subject
/// is not netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure7(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let load = if context.quick { QUICK } else { FULL };
    let front = FrontDoor::new("1gbit")?;
    let consumers = consumers(&front, &load)?;
    let mut senders = senders(&front, &load)?;
    for sender in &mut senders {
        sender.go()?;
    }
    let samples = Samples::watch(&front.netnice, &consumers, load.packets())?;
    let mut sent = Vec::new();
    for sender in senders {
        let report = sender.stop()?;
        let refused = &report.refused;
        ensure!(
            refused.is_empty(),
            "the sender's kernel refused: {refused:?}"
        );
        sent.push(report.sends);
    }
    let missed = missed(&front)?;
    let stops = front.stops()?;
    note(outcome, &stops.stops);
    let last = samples.last();
    let mut consumed = Vec::new();
    for (number, consumer) in consumers.into_iter().enumerate() {
        if let Some(folder) = &context.keep {
            await_log(&consumer.log, last[number].0)?;
            let kept = folder.join(format!("vert-fig7-consumer{}.log", number + 1));
            std::fs::copy(&consumer.log, &kept)
                .with_context(|| format!("cannot write {}", kept.display()))?;
        }
        consumed.push(consumer.end(last[number])?);
    }
    outcome.paper = json!({
        "sent, Mbit/s": [40, 45],
        "first consumer": "completely unperturbed",
        "second consumer": "with each step its rate drops, and its loss rises by the same amount",
    });
    check_losses(outcome, &load, &consumed, &sent)?;
    check_missed(outcome, &load, &consumed, missed, &stops);
    samples.check(outcome, &load, &consumed[1]);
    samples.show_stages(outcome, &load, &consumed);
    outcome.plot(context, "vert-fig7", || chart(&consumed, &samples))
}

fn consumers(front: &FrontDoor, load: &Load) -> Result<Vec<Consumer>> {
    let work = [None, Some((load.work, load.step))];
    let start = |(port, work): (u16, Option<(Duration, u64)>)| {
        let log = front.world.folder().join(format!("{port}.log"));
        let running = front.consumer(port, load.buffers, &log, work)?;
        Ok(Consumer { running, log })
    };
    PORTS.into_iter().zip(work).map(start).collect()
}

/// Processes on the server that send through its kernel, and wait for `go`.
fn senders(front: &FrontDoor, load: &Load) -> Result<Vec<Running>> {
    let (client, server) = (front.world.client(), front.world.server());
    let parameters = PORTS.into_iter().zip(load.rates).zip(load.packets());
    let start = |((port, rate), packets)| {
        let from = at(server, Family::V4, port);
        let udp = Udp::source(from, at(client, Family::V4, port)).rate(rate);
        traffic::start_waiting(server, &udp.size(PAYLOAD).count(packets))
    };
    parameters.map(start).collect()
}

/// Frames that the kernel lost before the driver, by the page of `netnice explain`.
fn missed(front: &FrontDoor) -> Result<u64> {
    let device = &front.world.client().port().device;
    let page = front
        .netnice
        .run_line(&format!("explain direct:{device}"))?;
    let lines = page.stdout.lines();
    let mut lines = lines.filter(|line| line.ends_with(" received frames: missed"));
    let Some(line) = lines.next() else {
        return Ok(0);
    };
    let number = line.split_whitespace().find_map(|word| word.parse().ok());
    number.with_context(|| format!("no number of frames in `{line}`"))
}

impl Consumer {
    /// Ends the process when it has received the packets that the driver delivered. Fails if it
    /// does not receive them in time, or if its log is not complete.
    fn end(self, (delivered, lost): (u64, u64)) -> Result<Consumed> {
        await_log(&self.log, delivered)?;
        let report = self.running.stop()?;
        ensure!(report.refused.is_empty(), "{:?}", report.refused);
        let times = read_log(&self.log)?;
        let packets = times.len() as u64;
        ensure!(
            packets * u64::from(PAYLOAD) == report.received,
            "a log has {packets} packets, and {} bytes were received",
            report.received
        );
        Ok(Consumed {
            report,
            times,
            lost,
        })
    }
}

/// Waits until a log has so many lines. A consumer writes its log when no packet comes.
fn await_log(log: &Path, lines: u64) -> Result<()> {
    let until = Instant::now() + EVENT_TIMEOUT;
    loop {
        let bytes = std::fs::read(log).with_context(|| format!("read {}", log.display()))?;
        let found = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        if found >= lines {
            return Ok(());
        }
        ensure!(
            Instant::now() < until,
            "{found} of {lines} delivered packets were received"
        );
        pause(0.1);
    }
}

/// The times in a log. Fails if a line is not a time and the size of a packet.
fn read_log(log: &Path) -> Result<Vec<u64>> {
    let text = std::fs::read_to_string(log)?;
    let time = |line: &str| -> Result<u64> {
        let (time, size) = line.split_once(' ').context("a time and a size")?;
        ensure!(
            size == PAYLOAD.to_string(),
            "a packet of {size} bytes arrived"
        );
        Ok(time.parse()?)
    };
    text.lines().map(time).collect()
}

/// Checks that each packet was received or counted as lost, and that only the second consumer
/// loses packets.
fn check_losses(
    outcome: &mut Outcome,
    load: &Load,
    consumed: &[Consumed],
    sent: &[u64],
) -> Result<()> {
    let mut rows = Vec::new();
    for (number, (consumer, sent)) in (1..).zip(consumed.iter().zip(sent)) {
        let received = consumer.times.len() as u64;
        let stopped = consumer.report.stops.iter().map(|(_, length)| *length);
        rows.push(json!({
            "consumer": number, "sent to it, packets": sent, "received, packets": received,
            "lost by the driver's count, packets": consumer.lost,
            "lost as the program reads, packets": consumer.report.lost,
            "processor time, %": consumer.report.cpu_share() * 100.0,
            "longest wait for a processor, ms": stopped.max().unwrap_or(0) as f64 / 1e6,
        }));
        ensure!(
            consumer.report.lost == consumer.lost,
            "consumer {number} reads {} lost packets, and the driver counted {}",
            consumer.report.lost,
            consumer.lost
        );
        let apart = sent.abs_diff(received + consumer.lost);
        let what = format!("consumer {number}: sent, less received and counted as lost");
        outcome.check(what, apart as f64, "packets", Bound::AtMost(0.0));
    }
    outcome.ours("consumers", rows);
    let lost = consumed[0].lost;
    // Packets that came while the program waited for a processor and its buffers were full.
    let beyond = |(_, length): &(u64, u64)| {
        (length / load.spacing(0)).saturating_sub(u64::from(load.buffers))
    };
    let excused = lost.min(consumed[0].report.stops.iter().map(beyond).sum());
    let unexcused = lost - excused;
    let verdict = Verdict { unexcused, excused };
    check_verdict(outcome, "packets that consumer 1 lost", verdict);
    let what = "control: packets that consumer 2 lost";
    let lost = consumed[1].lost as f64;
    outcome.check(what, lost, "packets", Bound::AtLeast(1.0));
    Ok(())
}

/// Checks that the kernel lost no frame before the driver.
fn check_missed(
    outcome: &mut Outcome,
    load: &Load,
    consumed: &[Consumed],
    missed: u64,
    stops: &DriverStops,
) {
    let long = stops.alibi(0.0).without_short(LONG_STOP);
    let times = consumed.iter().flat_map(|one| &one.times);
    let from = times.clone().min().copied().unwrap_or(0);
    let until = times.max().copied().unwrap_or(0);
    let each = SECOND * FRAME * 8 / load.rates.iter().sum::<u64>();
    let verdict = long.judge_missing(missed, from, until, each);
    let what = "frames that the kernel lost before the driver";
    check_verdict(outcome, what, verdict);
}

/// The driver's counters over time: seconds, and packets delivered to and lost for each consumer.
struct Samples {
    /// The begin (wall clock, ns).
    began: u64,
    counts: Vec<(f64, [(u64, u64); 2])>,
}

impl Samples {
    /// Samples every quarter of a second until all packets are delivered or lost, or until the
    /// counts do not change for two seconds.
    fn watch(netnice: &Netnice, consumers: &[Consumer], packets: [u64; 2]) -> Result<Samples> {
        let (began, begin) = (sys::now_ns(), Instant::now());
        let mut counts = vec![(0.0, [(0, 0); 2])];
        let mut unchanged = 0;
        while unchanged < 8 {
            pause(0.25);
            let now = [
                counters(netnice, &consumers[0])?,
                counters(netnice, &consumers[1])?,
            ];
            let all = now.iter().zip(packets);
            if all.clone().all(|((got, lost), sent)| got + lost >= sent) {
                counts.push((begin.elapsed().as_secs_f64(), now));
                break;
            }
            unchanged = match counts.last() {
                // The daemon reads the driver's counters several times a second.
                Some((_, before)) if *before == now => unchanged + 1,
                _ => {
                    counts.push((begin.elapsed().as_secs_f64(), now));
                    0
                }
            };
        }
        Ok(Samples { began, counts })
    }

    fn last(&self) -> [(u64, u64); 2] {
        self.counts
            .last()
            .map_or_else(Default::default, |one| one.1)
    }

    /// The losses of the second consumer between two shares of the run, in percent: all, and those
    /// that the time for which it waited for a processor does not explain.
    fn losses(&self, load: &Load, second: &Consumed, (from, until): (f64, f64)) -> [f64; 2] {
        let end = self.counts.last().map_or(0.0, |(at, _)| *at);
        let sample = |share: f64| {
            let later = self.counts.partition_point(|(at, _)| *at <= share * end);
            self.counts[later.saturating_sub(1)]
        };
        let ((from, before), (until, after)) = (sample(from), sample(until));
        let wall = |at: f64| self.began + (at * SECOND as f64) as u64;
        let (from, until) = (wall(from), wall(until));
        let inside = |(start, length): &(u64, u64)| {
            let end = (start + length).min(until);
            end.saturating_sub((*start).max(from))
        };
        let waited: u64 = second.report.stops.iter().map(inside).sum();
        let got = after[1].0 - before[1].0;
        let lost = after[1].1 - before[1].1;
        let own = lost.saturating_sub(waited / load.spacing(1));
        [lost, own].map(|lost_packets| lost_packets as f64 / (got + lost).max(1) as f64 * 100.0)
    }

    fn check(&self, outcome: &mut Outcome, load: &Load, second: &Consumed) {
        let early = self.losses(load, second, (0.0, 1.0 / 3.0));
        let late = self.losses(load, second, (2.0 / 3.0, 1.0));
        let row = |which: &str, number: usize| {
            json!({
                "losses of consumer 2": which,
                "first third of the run, % of its packets": early[number],
                "last third of the run, % of its packets": late[number],
            })
        };
        outcome.ours(
            "losses of consumer 2",
            [row("all", 0), row("without its waits for a processor", 1)],
        );
        outcome.check(
            "losses of consumer 2, without its waits for a processor: share in the last third of \
             the run, less that in the first",
            late[1] - early[1],
            "percentage points",
            Bound::AtLeast(5.0),
        );
    }

    /// The packets that consumer 2 had lost at a time (wall clock, ns), interpolated between two
    /// samples.
    fn lost_at(&self, at: u64) -> f64 {
        let seconds = at.saturating_sub(self.began) as f64 / SECOND as f64;
        let after = self
            .counts
            .partition_point(|(sampled, _)| *sampled <= seconds);
        let lost = |index: usize| {
            let (sampled, counts) = self.counts[index.min(self.counts.len() - 1)];
            (sampled, counts[1].1 as f64)
        };
        let ((from, before), (until, later)) = (lost(after.saturating_sub(1)), lost(after));
        match until > from {
            true => before + (later - before) * (seconds - from) / (until - from),
            false => before,
        }
    }

    /// Shows the rates of both consumers, and the losses of the second, for each stage of its work.
    /// A stage ends with 20,000 packets that it received, and with the first sender's last packet.
    fn show_stages(&self, outcome: &mut Outcome, load: &Load, consumed: &[Consumed]) {
        let [first, second] = [&consumed[0].times, &consumed[1].times];
        let last = first.last().copied().unwrap_or(0);
        let mut rows = Vec::new();
        for (stage, times) in (0_u32..).zip(second.chunks(load.step as usize)) {
            let (Some(from), Some(until)) = (times.first(), times.last()) else {
                continue;
            };
            let (from, until) = (*from, (*until).min(last));
            if until <= from {
                break;
            }
            let seconds = (until - from) as f64 / SECOND as f64;
            let inside = |times: &[u64]| bins(times, from, until, until - from)[0];
            let lost = self.lost_at(until) - self.lost_at(from);
            rows.push(json!({
                "stage": stage,
                "work of consumer 2 on a packet, us": (load.work * stage).as_micros() as u64,
                "length, s": seconds,
                "received by consumer 1, Mbit/s": megabits(inside(first), seconds),
                "received by consumer 2, Mbit/s": megabits(inside(second), seconds),
                "lost by consumer 2 (sampled), Mbit/s": megabits(lost, seconds),
            }));
        }
        outcome.ours("stages", rows);
    }
}

/// The packets that the driver delivered to a consumer, and those that it counted as lost.
fn counters(netnice: &Netnice, consumer: &Consumer) -> Result<(u64, u64)> {
    let shown = netnice.show()?;
    let flows = shown["direct"].as_array().context("no flows")?;
    let pid = json!(consumer.running.pid());
    let flow = flows.iter().find(|flow| flow["pid"] == pid);
    let counters = &flow.context("a consumer has no flow")?["counters"];
    let number = |name: &str| counters[name].as_u64().unwrap_or(0);
    let lost = ["no_buffer", "too_short", "over_share"].map(number);
    ensure!(counters[LOSSES] != Value::Null, "no counters: {counters}");
    Ok((number("delivered"), lost.iter().sum()))
}

/// The bandwidth that each consumer received, by the logs, and the losses of the second.
fn chart(consumed: &[Consumed], samples: &Samples) -> String {
    let title = "Two programs receive, and the second becomes slower and slower";
    let y = "rate in bins of 250 ms, Mbit/s";
    let mut chart = Chart::new(title, "time, s", y).y_range(0.0, 50.0);
    let first = |one: &Consumed| one.times.first().copied().unwrap_or(0);
    let begin = consumed.iter().map(first).min().unwrap_or(0);
    for (one, (name, colour)) in consumed.iter().zip([
        ("consumer 1, no processing", palette::SERIES[1]),
        ("consumer 2, processing", palette::SERIES[2]),
    ]) {
        let end = one.times.last().copied().unwrap_or(0);
        let packets = bins(&one.times, begin, end, SECOND / 4);
        let rates: Vec<f64> = packets.into_iter().map(|one| megabits(one, 0.25)).collect();
        chart = chart.with(Series::new(name, colour, stats::middles(&rates, 0.0, 0.25)));
    }
    let lost = samples.counts.windows(2).map(|pair| {
        let ((from, before), (until, after)) = (pair[0], pair[1]);
        let lost = (after[1].1 - before[1].1) as f64;
        (until, megabits(lost, until - from))
    });
    let lost = Series::new("loss of consumer 2", palette::RED, lost.collect());
    chart.with(lost.dashed()).svg()
}

/// Ports of the consumers.
const PORTS: [u16; 2] = [6001, 6002];
/// Payload of a packet in bytes, and its bytes with all headers.
const PAYLOAD: u32 = 1458;
const FRAME: u64 = 1500;
/// A counter that every flow has.
const LOSSES: &str = "no_buffer";
/// A stop of the driver of this length, in ns, can make the kernel lose frames: the driver's
/// receive buffers hold more than 1,000 frames, and 7,083 come in a second.
const LONG_STOP: u64 = 100_000_000;
