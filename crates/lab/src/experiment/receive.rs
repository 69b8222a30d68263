//! The experiment `receive` measures minimums in the receive direction, on a managed link of 100
//! Mbit/s whose cable has the same rate.
//!
//! A packet that netnice delays on receive has already used the wire. So netnice delays packets
//! until TCP senders together send a little less than the wire carries (97 %). This works for TCP,
//! and for UDP that fits beside the minimums: each minimum must hold in every second within 3 %,
//! the sum must be 97 % of the wire within 3 %, and nothing may be shown as degraded. UDP above the
//! wire's rate fills the cable itself: packets are lost before the host receives them, and netnice
//! can only report that. `netnice show` must call a target or the link degraded within 10 s.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if
//! the subject is not netnice or if a step of the measurement fails.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::bench::{MBIT, MS, R100M, SECOND, at, netnice_only, pause, run_logged, wait_until};
use super::{Bound, Context, Outcome};
use crate::stats;
use crate::traffic::{self, Running, Tcp, Udp};
use crate::world::{Cable, Family, Netnice, World};

/// The share of a wire that receive guarantees can use.
const SHARE: f64 = 0.97;

/// Runs the experiment and adds its checks and results to `outcome`. Fails if the subject is not
/// netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!({
        "promise": "within 3 % of 97 % of the link, against TCP and UDP that fit; UDP beyond: `show` says degraded and why",
    });
    let world = World::switched(&[
        Cable::rated("client", R100M.bits, 20),
        Cable::free("server"),
    ])?;
    let netnice = world.netnice("client")?;
    let (client, server) = (world.client(), world.server());
    let mut log = Vec::new();
    let line = format!("link eth0 --rate {0} --down-rate {0}", R100M.text);
    run_logged(&netnice, &line, &mut log)?;
    let mut sources = Vec::new();
    let mut sinks = Vec::new();
    for (port, flows) in [(5001, 1), (5002, 4), (5003, 16)] {
        let to = at(server, Family::V4, port);
        sources.push(traffic::start_waiting(server, &Tcp::listen(to).source())?);
        sinks.push(traffic::start_waiting(
            client,
            &Tcp::connect(to, flows).sink(),
        )?);
    }
    let (there, here) = (at(server, Family::V4, 5004), at(client, Family::V4, 5004));
    sinks.push(traffic::start_waiting(client, &Udp::sink(here))?);
    sources.push(traffic::start_waiting(
        server,
        &Udp::source(there, here).rate(FITTING),
    )?);
    for (i, min) in [(0, "60mbit"), (1, "20mbit")] {
        let line = format!("set pid:{} --min-down {min}", sinks[i].pid());
        run_logged(&netnice, &line, &mut log)?;
    }
    let mut from = 0;
    for program in sinks.iter_mut().chain(&mut sources) {
        from = program.go()? + 3 * SECOND;
    }
    let to = from + if context.quick { 4 } else { 10 } * SECOND;
    wait_until(to + 50 * MS);
    let quiet = degradation(&netnice.show()?);
    if let Some(reason) = &quiet {
        context.say(format!("degraded: {reason}"));
    }
    outcome.check_that(
        "nothing is called degraded while everything fits",
        quiet.is_none(),
    );
    let said = overrun(&netnice, &world)?;
    check(context, outcome, sinks, from, to)?;
    context.say(format!(
        "UDP beyond the wire: {}",
        said.as_deref().unwrap_or("nothing is said")
    ));
    outcome.check_that("UDP beyond the wire: `show` says degraded", said.is_some());
    outcome.ours("said when overrun", said);
    outcome.ours("typed", log);
    Ok(())
}

fn check(
    context: &Context,
    outcome: &mut Outcome,
    sinks: Vec<Running>,
    from: u64,
    to: u64,
) -> Result<()> {
    let mut rates = Vec::new();
    let mut worst = Vec::new();
    for sink in sinks {
        let report = sink.stop()?;
        worst.push(stats::least(&report.received().bins(from, to, SECOND)) / MBIT);
        rates.push(report.received_rate(from, to).unwrap_or(0.0) / MBIT);
    }
    context.say(format!(
        "A {:.2} (worst second {:.2}) B {:.2} ({:.2}) C {:.2} TCP + {:.2} UDP Mbit/s",
        rates[0], worst[0], rates[1], worst[1], rates[2], rates[3]
    ));
    for (i, name, min) in [(0, "A", 60.0), (1, "B", 20.0)] {
        outcome.check(
            format!("{name}'s worst second"),
            worst[i],
            "Mbit/s",
            Bound::AtLeast(min * 0.97),
        );
    }
    let total: f64 = rates.iter().sum();
    let aim = R100M.bits as f64 / MBIT * SHARE;
    outcome.check(
        "received in all",
        total,
        "Mbit/s",
        Bound::Near { aim, share: 0.03 },
    );
    outcome.ours("A, B, C's TCP, C's UDP, Mbit/s", rates);
    outcome.ours("worst seconds, Mbit/s", worst);
    Ok(())
}

/// Floods the cable with UDP and returns the reason that `show` gives within ten seconds; `None` if
/// it gives none.
fn overrun(netnice: &Netnice, world: &World) -> Result<Option<String>> {
    let (client, server) = (world.client(), world.server());
    let (there, here) = (at(server, Family::V4, 5005), at(client, Family::V4, 5005));
    let _sink = traffic::start_now(client, &Udp::sink(here))?;
    let _flood = traffic::start_now(server, &Udp::source(there, here).rate(R100M.bits * 2))?;
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if let Some(reason) = degradation(&netnice.show()?) {
            return Ok(Some(reason));
        }
        pause(0.25);
    }
    Ok(None)
}

/// The first reason in a member `degraded` of a target or a link, if there is one.
fn degradation(shown: &Value) -> Option<String> {
    ["targets", "links"]
        .into_iter()
        .flat_map(|list| shown[list].as_array().into_iter().flatten())
        .find_map(|item| match &item["degraded"] {
            Value::Null | Value::Bool(false) => None,
            Value::Array(reasons) if reasons.is_empty() => None,
            Value::String(reason) if reason.is_empty() => None,
            Value::String(reason) => Some(reason.clone()),
            other => Some(other.to_string()),
        })
}

/// Rate in bit/s of UDP that fits beside the minimums.
const FITTING: u64 = 5_000_000;
