//! The experiment `death` measures whether a limit stays in force while its daemon is dead.
//!
//! A program sends over TCP under a limit of 20 Mbit/s. Twenty times (five in the quick form), at
//! random moments, the daemon is killed with SIGKILL. While the daemon is dead the program starts a
//! child, which must be able to send and counts under the same limit. Then a daemon is started
//! again, and `netnice show` must print the same state as before (apart from counters). On the wire
//! the rate in every bin of 100 ms must be at most 110 % of the limit, and the mean at least 97 %.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if
//! the subject is not netnice, if a step of the measurement fails, or if a plot cannot be written.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use netnice_sim::Random;
use serde_json::json;

use super::bench::{Direction, Limiter, MBIT, MS, R20M, SECOND, at, netnice_only, pause};
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};
use crate::stats;
use crate::sys;
use crate::traffic::{self, ParentProcess, RunOptions, Tcp};
use crate::wire::{self, Tap};
use crate::world::{Family, Netnice, Pair, World};

/// The result of killing the daemon repeatedly.
struct Kills {
    /// Times of the kills (wall clock, ns).
    moments: Vec<u64>,
    /// Number of restarts after which the daemon showed the same state as before.
    same: u32,
    /// Number of children that sent while no daemon ran.
    sent: u32,
}

/// Runs the experiment and adds its checks and results to `outcome`. Fails if the subject is not
/// netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper =
        json!({"promise": "no 100-ms bin above 110 %; the restarted daemon shows the same state"});
    let count = if context.quick { 5 } else { 20 };
    let world = World::pair(Pair::default())?;
    let mut limiter = Limiter::start(&world, context.subject)?;
    let to = at(world.server(), Family::V4, 5001);
    let _sink = traffic::start_now(world.server(), &Tcp::listen(to).sink())?;
    let mut program = ParentProcess::start(world.client())?;
    let bulk = program.traffic(&Tcp::connect(to, 4).source(), RunOptions::default())?;
    limiter.set(&world, program.pid(), Direction::Up, R20M)?;
    let Limiter::Netnice(netnice) = &mut limiter else {
        unreachable!("netnice_only above")
    };
    let tap = Tap::start(&world.server().ns, "eth0")?;
    program.write_line(bulk, "go")?;
    pause(2.0);
    let from = sys::now_ns();
    let kills = kill_repeatedly(context, netnice, &mut program, to, (count, from))?;
    let ended = sys::now_ns();
    let record = tap.stop(&world.server().ns)?;
    record.validate()?;
    let bins = record.bins(wire::inbound, from, ended, 100 * MS);
    let limit = R20M.bits as f64;
    let most = stats::greatest(&bins) / limit * 100.0;
    let mean = record.rate(wire::inbound, from, ended) / limit * 100.0;
    context.say(format!(
        "{count} kills (seed {from}): worst 100 ms {most:.1} %, mean {mean:.2} % of the limit"
    ));
    let what = "worst 100 ms, of the limit";
    outcome.check(what, most, "%", Bound::AtMost(110.0));
    outcome.check("mean, of the limit", mean, "%", Bound::AtLeast(97.0));
    let all = Bound::AtLeast(count.into());
    let what = "restarts that show the same state";
    outcome.check(what, kills.same.into(), "", all);
    let what = "children that sent while the daemon was dead";
    outcome.check(what, kills.sent.into(), "", all);
    outcome.ours("seed", from);
    outcome.ours("worst 100 ms, Mbit/s", most / 100.0 * limit / MBIT);
    outcome.plot(context, "death", || plot(&bins, &kills.moments, from))
}

/// Kills and restarts the daemon `count` times, at random moments drawn from `seed`. Each time
/// `program` starts a child without a daemon, which sends to `to`.
fn kill_repeatedly(
    context: &Context,
    netnice: &mut Netnice,
    program: &mut ParentProcess,
    to: SocketAddr,
    (count, seed): (u32, u64),
) -> Result<Kills> {
    let mut random = Random::new(seed);
    let mut wait = |ms| pause(random.within(ms) as f64 / 1e3);
    let mut kills = Kills {
        moments: Vec::new(),
        same: 0,
        sent: 0,
    };
    for _ in 0..count {
        let before = netnice.show_without_counters()?;
        wait(100..=600);
        kills.moments.push(sys::now_ns());
        netnice.kill_daemon();
        wait(0..=200);
        // The child starts without a daemon and must be limited all the same, as the wire shows.
        let options = RunOptions {
            lasts: Some(Duration::from_secs(1)),
            ..RunOptions::at_once()
        };
        let child = program.traffic(&Tcp::connect(to, 2).source(), options)?;
        wait(300..=600);
        netnice.start_daemon()?;
        let after = netnice.show_without_counters()?;
        if before == after {
            kills.same += 1;
        } else {
            context.say(format!("the state differs: {before} became {after}"));
        }
        let report =
            program.child_output(child, |v| v.get("sent").is_some(), Duration::from_secs(10))?;
        kills.sent += u32::from(report["sent"].as_u64().unwrap_or(0) > 0);
    }
    Ok(kills)
}

fn plot(bins: &[f64], moments: &[u64], from: u64) -> String {
    let points = bins
        .iter()
        .enumerate()
        .map(|(i, b)| (i as f64 / 10.0 + 0.05, b / MBIT))
        .collect();
    let mut chart = Chart::new(
        "The daemon is killed repeatedly",
        "seconds",
        "Mbit/s, each 100 ms",
    )
    .with(Series::new("on the wire", palette::BLUE, points))
    .level(20.0, "limit")
    .y_range(0.0, 25.0)
    .without_legend();
    for moment in moments {
        chart = chart.moment((moment - from) as f64 / SECOND as f64, "");
    }
    chart.svg()
}
