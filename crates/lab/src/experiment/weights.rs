//! The experiment `weights` measures how two targets with weights divide a managed link of 100
//! Mbit/s, with different numbers of TCP flows. Each target's share of the link must be its weight
//! divided by the sum of both weights, within 5 %: a weight belongs to a target and not to a flow,
//! so more connections must not give a larger share.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if
//! the subject is not netnice or if a step of the measurement fails.

use anyhow::Result;
use serde_json::json;

use super::bench::{MBIT, MS, R100M, SECOND, at, netnice_only, run_logged, wait_until};
use super::{Bound, Context, Outcome};
use crate::traffic::{self, Tcp};
use crate::wire::{self, Tap, WireFlow};
use crate::world::{Family, Offloads, Pair, World};

/// Weight and number of flows of each of two targets, and whether offloads are on.
type Case = ((u32, u32), (u32, u32), Offloads);

const CASES: [Case; 5] = [
    ((100, 1), (100, 16), Offloads::Off),
    ((300, 1), (100, 16), Offloads::Off),
    ((100, 1), (300, 16), Offloads::Off),
    ((100, 1), (100, 16), Offloads::On),
    ((1000, 4), (100, 4), Offloads::Off),
];

/// Runs the experiment and adds its checks and results to `outcome`. Fails if the subject is not
/// netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!({"promise": "shares by weight within 5 %, with 1 and 16 flows"});
    let cases = if context.quick {
        &CASES[..3]
    } else {
        &CASES[..]
    };
    for case in cases {
        measure(context, outcome, *case)?;
    }
    Ok(())
}

fn measure(context: &Context, outcome: &mut Outcome, (a, b, offloads): Case) -> Result<()> {
    let world = World::pair(Pair {
        offloads,
        ..Pair::default()
    })?;
    let netnice = world.netnice("client")?;
    let (client, server) = (world.client(), world.server());
    let mut log = Vec::new();
    run_logged(
        &netnice,
        &format!("link eth0 --rate {}", R100M.text),
        &mut log,
    )?;
    let mut programs = Vec::new();
    let mut sinks = Vec::new();
    for (port, (weight, flows)) in [(5001, a), (5002, b)] {
        let to = at(server, Family::V4, port);
        sinks.push(traffic::start_now(server, &Tcp::listen(to).sink())?);
        let program = traffic::start_waiting(client, &Tcp::connect(to, flows).source())?;
        run_logged(
            &netnice,
            &format!("set pid:{} --weight {weight}", program.pid()),
            &mut log,
        )?;
        programs.push(program);
    }
    let tap = Tap::start(&server.ns, "eth0")?;
    let mut from = 0;
    for program in &mut programs {
        from = program.go()? + 2 * SECOND;
    }
    let to = from + if context.quick { 4 } else { 8 } * SECOND;
    wait_until(to + 50 * MS);
    let record = tap.stop(&server.ns)?;
    record.validate()?;
    let rate = |port: u16| {
        let of = move |flow: &WireFlow| wire::inbound(flow) && flow.target.1 == port;
        record.rate(of, from, to) / MBIT
    };
    let (got_a, got_b) = (rate(5001), rate(5002));
    let name = format!(
        "weights {}:{}, {} and {} flows, offloads {offloads:?}",
        a.0, b.0, a.1, b.1
    );
    context.say(format!("{name}: {got_a:.2} and {got_b:.2} Mbit/s"));
    let aim = f64::from(a.0) / f64::from(a.0 + b.0) * 100.0;
    let bound = Bound::Near { aim, share: 0.05 };
    outcome.check(
        format!("{name}: first's share"),
        got_a / (got_a + got_b) * 100.0,
        "%",
        bound,
    );
    let share = 100.0 - aim;
    let bound = Bound::Near {
        aim: share,
        share: 0.05,
    };
    outcome.check(
        format!("{name}: second's share"),
        got_b / (got_a + got_b) * 100.0,
        "%",
        bound,
    );
    outcome.ours(&name, [got_a, got_b]);
    Ok(())
}
