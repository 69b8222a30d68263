//! The experiment `guarantees` measures whether minimums hold on a managed link of 100 Mbit/s.
//!
//! Program A has a minimum of 60 Mbit/s and one TCP flow, program B a minimum of 20 Mbit/s and four
//! TCP flows. Program C has no minimum; it sends a UDP flood of five times the link's rate and 16
//! TCP flows. There are three scenarios:
//!
//! 1. C is not a target.
//! 2. All three have weights, and the left-over must be divided by the weights within 5 %.
//! 3. A stops sending. (SIGSTOP keeps A alive, so its minimum stays held.) From 200 ms after A's
//!    last packet on, B and C must use 98 % of the link for a second, and B must keep its minimum.
//!
//! In the first two, a minimum must hold in every second within 1 %, and 98 % of the link must be
//! used. In the quick form a minimum and the use of the link may be 3 % too low. A tap at the far
//! end of the cable measures the rates, by port.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if
//! the subject is not netnice, if a step of the measurement fails, or if a plot cannot be written.

use anyhow::{Context as _, Result};
use serde_json::json;

use super::bench::{MBIT, MS, R100M, SECOND, at, netnice_only, run_logged, wait_until};
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};
use crate::stats;
use crate::sys;
use crate::traffic::{self, ParentProcess, RunOptions, Running, Tcp, Udp};
use crate::wire::{self, Record, Tap, WireFlow};
use crate::world::{Family, Netnice, Pair, World};

/// The port of each program at the server; C's UDP has a port of its own.
const PORTS: [u16; 3] = [5001, 5002, 5003];
const FLOOD_PORT: u16 = 5004;
const LINK: f64 = R100M.bits as f64;

fn of(program: usize) -> impl Fn(&WireFlow) -> bool + Copy {
    move |flow: &WireFlow| {
        wire::inbound(flow)
            && (flow.target.1 == PORTS[program] || (program == 2 && flow.target.1 == FLOOD_PORT))
    }
}

/// The three programs, running.
struct Programs {
    world: World,
    netnice: Netnice,
    a: Running,
    b: Running,
    c: ParentProcess,
    _sinks: Vec<Running>,
}

impl Programs {
    fn start(log: &mut Vec<String>) -> Result<Programs> {
        let world = World::pair(Pair::default())?;
        let netnice = world.netnice("client")?;
        let (client, server) = (world.client(), world.server());
        let to = |port| at(server, Family::V4, port);
        let mut sinks = Vec::new();
        for port in PORTS {
            sinks.push(traffic::start_now(server, &Tcp::listen(to(port)).sink())?);
        }
        sinks.push(traffic::start_now(server, &Udp::sink(to(FLOOD_PORT)))?);
        run_logged(&netnice, &format!("link eth0 --rate {}", R100M.text), log)?;
        let a = traffic::start_waiting(client, &Tcp::connect(to(PORTS[0]), 1).source())?;
        let b = traffic::start_waiting(client, &Tcp::connect(to(PORTS[1]), 4).source())?;
        let mut c = ParentProcess::start(client)?;
        let flows = Tcp::connect(to(PORTS[2]), 16).source();
        let from = at(client, Family::V4, FLOOD_PORT);
        let flood = Udp::source(from, to(FLOOD_PORT)).rate(R100M.bits * 5);
        let options = RunOptions::at_once();
        c.traffic(&flows, options)?;
        c.traffic(&flood, options)?;
        run_logged(&netnice, &format!("set pid:{} --min 60mbit", a.pid()), log)?;
        run_logged(&netnice, &format!("set pid:{} --min 20mbit", b.pid()), log)?;
        Ok(Programs {
            world,
            netnice,
            a,
            b,
            c,
            _sinks: sinks,
        })
    }

    fn go(&mut self) -> Result<u64> {
        self.a.go()?;
        self.b.go()
    }

    /// Meters the far end until `to`.
    fn meter_until(&self, to: impl FnOnce(u64) -> u64) -> Result<Record> {
        let tap = Tap::start(&self.world.server().ns, "eth0")?;
        wait_until(to(sys::now_ns()) + 50 * MS);
        let record = tap.stop(&self.world.server().ns)?;
        record.validate()?;
        Ok(record)
    }
}

/// Runs the experiment and adds its checks and results to `outcome`. Fails if the subject is not
/// netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!({
        "promise": "every 1-s bin ≥ 99 % of the minimum; left-over by weight within 5 %; an idle share is used within 200 ms; total ≥ 98 % of the link",
        "HTB by hand": {"A, Mbit/s": "65-67", "B, Mbit/s": "30-32", "link": 100.5},
    });
    let mut log = Vec::new();
    measure_with_flood(context, outcome, &mut log)?;
    measure_weights(context, outcome)?;
    measure_idle_share(context, outcome)?;
    outcome.ours("typed", log);
    Ok(())
}

fn span(context: &Context) -> u64 {
    if context.quick { 4 } else { 10 }
}

/// Scenario 1: C is not a target.
fn measure_with_flood(
    context: &Context,
    outcome: &mut Outcome,
    log: &mut Vec<String>,
) -> Result<()> {
    let mut programs = Programs::start(log)?;
    let from = programs.go()? + 2 * SECOND;
    let to = from + span(context) * SECOND;
    let record = programs.meter_until(|_| to)?;
    check_minimums(context, outcome, "C unnamed", &record, from, to);
    outcome.plot(context, "guarantees", || timeline(&record, from, to))?;
    Ok(())
}

/// Checks A's and B's minimums, and the link's use.
fn check_minimums(
    context: &Context,
    outcome: &mut Outcome,
    scene: &str,
    record: &Record,
    from: u64,
    to: u64,
) {
    let mut means = Vec::new();
    for (i, (name, min)) in [("A", 60.0), ("B", 20.0), ("C", 0.0)]
        .into_iter()
        .enumerate()
    {
        let bins = record.bins(of(i), from, to, SECOND);
        let worst = stats::least(&bins) / MBIT;
        means.push(stats::mean(&bins) / MBIT);
        if min > 0.0 {
            let bound = Bound::AtLeast(min * (1.0 - context.tolerance(0.01)));
            outcome.check(
                format!("{scene}: {name}'s worst second"),
                worst,
                "Mbit/s",
                bound,
            );
        }
    }
    let total = record.rate(wire::inbound, from, to) / LINK * 100.0;
    let bound = Bound::AtLeast(100.0 * (1.0 - context.tolerance(0.02)));
    outcome.check(format!("{scene}: the link is used"), total, "%", bound);
    context.say(format!(
        "{scene}: A {:.2} B {:.2} C {:.2} Mbit/s, link {total:.2} %",
        means[0], means[1], means[2]
    ));
    outcome.ours(
        scene,
        json!({"A": means[0], "B": means[1], "C": means[2], "link, %": total}),
    );
}

/// Scenario 2: the left-over of 20 Mbit/s is divided 100 : 200 : 100.
fn measure_weights(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let mut log = Vec::new();
    let mut programs = Programs::start(&mut log)?;
    for (pid, weight) in [
        (programs.a.pid(), 100),
        (programs.b.pid(), 200),
        (programs.c.pid(), 100),
    ] {
        run_logged(
            &programs.netnice,
            &format!("set pid:{pid} --weight {weight}"),
            &mut log,
        )?;
    }
    let from = programs.go()? + 2 * SECOND;
    let to = from + span(context) * SECOND;
    let record = programs.meter_until(|_| to)?;
    check_minimums(context, outcome, "with weights", &record, from, to);
    let extra: Vec<f64> = [60.0, 20.0, 0.0]
        .into_iter()
        .enumerate()
        .map(|(i, min)| record.rate(of(i), from, to) / MBIT - min)
        .collect();
    let sum: f64 = extra.iter().sum();
    for (name, part, got) in [
        ("A", 0.25, extra[0]),
        ("B", 0.5, extra[1]),
        ("C", 0.25, extra[2]),
    ] {
        let bound = Bound::Near {
            aim: part * 100.0,
            share: 0.05,
        };
        outcome.check(
            format!("with weights: {name}'s part of the left-over"),
            got / sum * 100.0,
            "%",
            bound,
        );
    }
    outcome.ours("left-over above the minimums, Mbit/s", extra);
    outcome.ours("typed for weights", log);
    Ok(())
}

/// Scenario 3: A stops sending.
fn measure_idle_share(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let mut programs = Programs::start(&mut Vec::new())?;
    let began = programs.go()?;
    let tap = Tap::start(&programs.world.server().ns, "eth0")?;
    wait_until(began + 3 * SECOND);
    sys::kill(programs.a.pid() as i32, libc::SIGSTOP)?;
    wait_until(began + 7 * SECOND);
    let record = tap.stop(&programs.world.server().ns)?;
    record.validate()?;
    // The kernel still sends the data in A's socket; the silence begins after A's last packet.
    let mut silent = began + 7 * SECOND;
    while silent > began + 3 * SECOND && record.bytes(of(0), silent - 10 * MS, silent) == 0 {
        silent -= 10 * MS;
    }
    if silent + 1300 * MS > began + 7 * SECOND {
        None::<()>
            .context("A did not fall silent: its socket held more than two seconds of data")?;
    }
    let (from, to) = (silent + 200 * MS, silent + 1200 * MS);
    let total = record.rate(wire::inbound, from, to) / LINK * 100.0;
    let bound = Bound::AtLeast(100.0 * (1.0 - context.tolerance(0.02)));
    outcome.check(
        "A silent: the others use the link from 200 ms on",
        total,
        "%",
        bound,
    );
    let b = record.rate(of(1), from, to) / MBIT;
    let bound = Bound::AtLeast(20.0 * (1.0 - context.tolerance(0.01)));
    outcome.check("A silent: B keeps its minimum", b, "Mbit/s", bound);
    context.say(format!("A silent: link {total:.2} %, B {b:.2} Mbit/s"));
    outcome.plot(context, "guarantees-idle", || {
        timeline(&record, began, began + 7 * SECOND)
    })?;
    Ok(())
}

fn timeline(record: &Record, from: u64, to: u64) -> String {
    let mut chart = Chart::new(
        "A --min 60mbit, B --min 20mbit, C a UDP flood and 16 TCP flows",
        "seconds",
        "Mbit/s on the wire, each 100 ms",
    );
    let programs = [
        ("A", palette::BLUE),
        ("B", palette::GREEN),
        ("C", palette::ORANGE),
    ];
    for (i, (name, colour)) in programs.into_iter().enumerate() {
        let points = record
            .bins(of(i), from, to, 100 * MS)
            .into_iter()
            .enumerate()
            .map(|(k, bits)| (k as f64 / 10.0 + 0.05, bits / MBIT))
            .collect();
        chart = chart.with(Series::new(name, colour, points));
    }
    chart
        .level(60.0, "A's minimum")
        .level(20.0, "B's minimum")
        .y_range(0.0, 110.0)
        .svg()
}
