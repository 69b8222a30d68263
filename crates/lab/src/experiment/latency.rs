//! The experiment `latency` measures the round-trip time of a ping that shares one limit of 4
//! Mbit/s with 8 or 32 TCP flows, which fill the limit. The flows and the ping are children of one
//! program, the target. In every run the mean must be at most 5 ms, the 99th percentile at most 20
//! ms, and at most 2 % of the replies may be missing. What TCP gets of netnice's limit beside the
//! ping is judged as [`TcpService::check`] says.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if a
//! step of the measurement fails.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::json;

use super::bench::{Direction, Limiter, R4M, Subject, at, pause};
use super::goodput::{Counts, TcpService};
use super::{Bound, Context, Outcome};
use crate::stats;
use crate::sys;
use crate::traffic::real_programs::{Pings, ping_words};
use crate::traffic::{self, ParentProcess, RunOptions, Tcp};
use crate::world::{Family, Offloads, Pair, World};

/// A run's round trips, in ms.
#[derive(Debug, Clone, Serialize)]
struct Run {
    flows: u32,
    offloads: Offloads,
    mean: f64,
    p50: f64,
    p99: f64,
    max: f64,
    answers: usize,
    lost: f64,
    /// What the flows got beside the ping.
    service: TcpService,
}

/// Runs the experiment and adds its checks and results to `outcome`. Fails as
/// [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    outcome.paper = json!({
        "promise": "mean ≤ 5 ms and p99 ≤ 20 ms in every run",
        "HTB's default queue, mean ms": {"8 flows": 996, "8 flows, offloads on": 2331},
    });
    let runs = if context.quick { 1 } else { 10 };
    let mut all: Vec<Run> = Vec::new();
    for flows in [8, 32] {
        for offloads in [Offloads::Off, Offloads::On] {
            let mut set = Vec::new();
            for _ in 0..runs {
                let run = measure(context, flows, offloads)?;
                context.say(format!(
                    "{flows:>2} flows, offloads {offloads:?}: mean {:.2} p50 {:.2} p99 {:.2} max {:.1} ms",
                    run.mean, run.p50, run.p99, run.max
                ));
                set.push(run);
            }
            check(context, outcome, (flows, offloads), &set);
            all.append(&mut set);
        }
    }
    outcome.ours("runs", &all);
    outcome.note("lost answers count against a run: fewer than 98 % answered fails it");
    Ok(())
}

fn check(
    context: &Context,
    outcome: &mut Outcome,
    (flows, offloads): (u32, Offloads),
    runs: &[Run],
) {
    let name = format!("{flows} flows, offloads {offloads:?}");
    let of = |value: fn(&Run) -> f64| runs.iter().map(value).collect::<Vec<f64>>();
    let (mean, p99) = (
        stats::greatest(&of(|r| r.mean)),
        stats::greatest(&of(|r| r.p99)),
    );
    outcome.check(
        format!("{name}: worst mean"),
        mean,
        "ms",
        Bound::AtMost(5.0),
    );
    outcome.check(format!("{name}: worst p99"), p99, "ms", Bound::AtMost(20.0));
    let lost = stats::greatest(&of(|r| r.lost)) * 100.0;
    outcome.check(
        format!("{name}: most answers lost"),
        lost,
        "%",
        Bound::AtMost(2.0),
    );
    if context.subject == Subject::Netnice {
        for run in runs {
            let service = &run.service;
            service.check(context, outcome, &name, (Direction::Up, flows), PING);
        }
    }
}

/// The part of the limit that the ping uses, in percent: 98 bytes each 20 ms in 4 Mbit/s.
const PING: f64 = 1.0;

fn measure(context: &Context, flows: u32, offloads: Offloads) -> Result<Run> {
    let world = World::pair(Pair {
        offloads,
        ..Pair::default()
    })?;
    let limiter = Limiter::start(&world, context.subject)?;
    let to = at(world.server(), Family::V4, 5001);
    let sink = traffic::start_now(world.server(), &Tcp::listen(to).sink())?;
    let mut program = ParentProcess::start(world.client())?;
    let bulk = program.traffic(&Tcp::connect(to, flows).source(), RunOptions::default())?;
    limiter.set(&world, program.pid(), Direction::Up, R4M)?;
    program.write_line(bulk, "go")?;
    pause(2.0);
    let count = if context.quick { 250 } else { 400 };
    let every = Duration::from_millis(20);
    let ends = (&world.client().ns, &world.server().ns);
    let (from, before) = (sys::now_ns(), Counts::read(ends.0, ends.1)?);
    let child = program.run(&ping_words(to.ip(), every, count))?;
    let patience = every * count + Duration::from_secs(15);
    let lines = program.child_lines(child, patience)?;
    let (until, after) = (sys::now_ns(), Counts::read(ends.0, ends.1)?);
    pause(0.05); // a sample after the window
    let goodput = sink.stop()?.received_payload().rate(from, until);
    let service = TcpService::new(
        goodput.context("the sink has too few samples")?,
        R4M.bits as f64,
        (until - from) as f64 / 1e9,
        Family::V4,
        [before, after],
    );
    let pings = Pings::parse(lines.iter().map(String::as_str));
    let times = pings.times();
    Ok(Run {
        flows,
        offloads,
        mean: stats::mean(&times),
        p50: stats::median(&times),
        p99: stats::percentile(&times, 99.0),
        max: stats::greatest(&times),
        answers: times.len(),
        lost: pings.lost(),
        service,
    })
}
