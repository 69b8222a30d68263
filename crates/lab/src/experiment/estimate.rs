//! The experiment `estimate` measures `netnice link --rate auto` on a cable whose rate changes
//! between 20 and 5 Mbit/s every 30 s (every 20 s in the quick form), with a queue of 300,000
//! bytes, which is 480 ms at 5 Mbit/s. Four TCP flows send, then four receive, while a ping runs
//! every 20 ms. Over all phases together, the 95th percentile of the ping must be at most 30 ms,
//! and the flows must use at least 80 % of what the cable carries.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if the subject is
//! not netnice or if a step of the measurement fails.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::bench::{Direction, SECOND, at, netnice_only, pause, run_logged, wait_until};
use super::{Bound, Context, Outcome};
use crate::stats;
use crate::sys;
use crate::traffic::real_programs::{Pings, ping_words};
use crate::traffic::{self, ParentProcess, Tcp};
use crate::world::Family;
use crate::world::modem::{Modem, REFLECTORS};

/// One run's figures.
#[derive(Debug, Clone, Serialize)]
struct Run {
    /// What was used of the cable in each phase, in percent.
    used: Vec<f64>,
    /// The estimate at the end of each phase, in Mbit/s.
    estimates: Vec<f64>,
    p50_ms: f64,
    p95_ms: f64,
    max_ms: f64,
    lost: f64,
    /// Probes per second.
    probes: f64,
}

/// Runs the experiment and adds its checks and results to `outcome`. Fails if the subject is not
/// netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!({
        "promise": "on a cable between 20 and 5 Mbit/s: ping p95 ≤ 30 ms, use ≥ 80 %"
    });
    for direction in [Direction::Up, Direction::Down] {
        measure(context, outcome, direction)?;
    }
    Ok(())
}

/// The rates of the phases, in Mbit/s.
const RATES: [u64; 4] = [20, 5, 20, 5];
/// The length of a phase, in full and quick.
const PHASES: (u64, u64) = (30 * SECOND, 20 * SECOND);

fn measure(context: &Context, outcome: &mut Outcome, direction: Direction) -> Result<()> {
    let length = if context.quick { PHASES.1 } else { PHASES.0 };
    let modem = Modem::new(RATES[0])?;
    let (client, server) = (modem.world.client(), modem.world.server());
    let rate = match direction {
        Direction::Up => "--rate auto --min 1mbit --max 100mbit",
        _ => "--down-rate auto --min-down 1mbit --max-down 100mbit",
    };
    let mut log = Vec::new();
    let hosts = REFLECTORS.join(",");
    let line = format!("link eth0 {rate} --probe {hosts}");
    run_logged(&modem.netnice, &line, &mut log)?;
    pause(2.0);
    let to = at(server, Family::V4, 5001);
    let (listener, connector) = match direction {
        Direction::Up => (Tcp::listen(to).sink(), Tcp::connect(to, 4).source()),
        _ => (Tcp::listen(to).source(), Tcp::connect(to, 4).sink()),
    };
    let listener = traffic::start_now(server, &listener)?;
    let connector = traffic::start_now(client, &connector)?;
    let mut pinger = ParentProcess::start(client)?;
    // The first climb from the middle of the bounds is not judged.
    pause(5.0);
    let every = Duration::from_millis(20);
    let count = (RATES.len() as u64 * length / 20_000_000) as u32;
    let child = pinger.run(&ping_words(to.ip(), every, count))?;
    let (begin, before) = (sys::now_ns(), modem.probes()?);
    let mut estimates = Vec::new();
    for (n, rate) in RATES.iter().enumerate() {
        modem.set(*rate)?;
        wait_until(begin + (n as u64 + 1) * length - SECOND / 2);
        estimates.push(estimate(&modem, direction)? as f64 / 1e6);
        wait_until(begin + (n as u64 + 1) * length);
    }
    let probes = modem.probes()? - before - u64::from(count);
    let lines = pinger.child_lines(child, Duration::from_secs(20))?;
    // A sample behind the last phase.
    pause(0.1);
    let (sink, source) = match direction {
        Direction::Up => (listener, connector),
        _ => (connector, listener),
    };
    let received = sink.stop()?;
    drop(source);
    let payload = received.received_payload();
    let phase = |n: usize| {
        let from = begin + n as u64 * length;
        let rate = payload.rate(from, from + length).unwrap_or_default();
        // As frames of full length: what was sent again does not count as use.
        rate * 1514.0 / 1448.0
    };
    let carried: Vec<f64> = (0..RATES.len()).map(phase).collect();
    let used: Vec<f64> = carried
        .iter()
        .zip(RATES)
        .map(|(carried, rate)| carried / (rate * 10_000) as f64)
        .collect();
    let together = carried.iter().sum::<f64>() / (RATES.iter().sum::<u64>() * 10_000) as f64;
    let pings = Pings::parse(lines.iter().map(String::as_str));
    let times = pings.times();
    let run = Run {
        used,
        estimates,
        p50_ms: stats::median(&times),
        p95_ms: stats::percentile(&times, 95.0),
        max_ms: stats::greatest(&times),
        lost: pings.lost(),
        probes: probes as f64 / (RATES.len() as u64 * length / SECOND) as f64,
    };
    let name = match direction {
        Direction::Up => "sending",
        _ => "receiving",
    };
    context.say(format!("{name}: {together:.1} % used, {run:?}"));
    let at_most = Bound::AtMost(30.0);
    outcome.check(format!("{name}: ping p95"), run.p95_ms, "ms", at_most);
    let at_least = Bound::AtLeast(80.0);
    outcome.check(format!("{name}: use of the cable"), together, "%", at_least);
    outcome.ours(name, &run);
    Ok(())
}

/// The present estimate, in bit/s.
fn estimate(modem: &Modem, direction: Direction) -> Result<u64> {
    let shown = modem.netnice.show()?;
    let side = match direction {
        Direction::Up => "up",
        _ => "down",
    };
    Ok(shown["links"][0][side]["rate"].as_u64().unwrap_or_default())
}
