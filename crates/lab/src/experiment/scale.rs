//! The experiment `scale` sets a limit on each of 1,000 processes, one after the other with the
//! command line, as a script does. A command must take at most 50 ms (99th percentile), `netnice
//! show` must list all targets, and the daemon's resident memory must be at most 64 MiB.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if
//! the subject is not netnice or if a step of the measurement fails.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use super::bench::netnice_only;
use super::{Bound, Context, Outcome};
use crate::process::Proc;
use crate::stats;
use crate::world::{Host, Pair, World};

/// The number of targets of this experiment and of `cost`.
pub(crate) const THOUSAND: usize = 1000;

/// Starts `count` processes that sleep for an hour, each of which can be a target; returns their
/// parent and their ids. Dropping the parent ends them. Fails if the parent cannot start or prints
/// no number, or if no process starts for 30 s.
pub fn sleepers(host: &Host, count: usize) -> Result<(Proc, Vec<u32>)> {
    let mut command = host.ns.command("sh");
    command.arg("-c").arg(format!(
        "i=0; while [ $i -lt {count} ]; do sleep 3600 & echo $!; i=$((i+1)); done; wait"
    ));
    let mut parent = Proc::start(command)?;
    let mut pids = Vec::with_capacity(count);
    for _ in 0..count {
        let line = parent.next_line(std::time::Duration::from_secs(30))?;
        pids.push(line.trim().parse()?);
    }
    Ok((parent, pids))
}

/// Runs the experiment and adds its checks and results to `outcome`. Fails if the subject is not
/// netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub(crate) fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper =
        json!({"promise": "p99 of one set < 50 ms, daemon < 64 MiB with 1,000 targets"});
    let world = World::pair(Pair::default())?;
    let netnice = world.netnice("client")?;
    let before = netnice.daemon_memory()?;
    let (_parent, pids) = sleepers(world.client(), THOUSAND)?;
    let mut took = Vec::with_capacity(THOUSAND);
    for (i, pid) in pids.iter().enumerate() {
        // The time is that of the whole command, from exec to exit, with three kinds of contract in
        // turn.
        let contract = ["--up 4mbit", "--down 8mbit", "--up 2mbit --down 3mbit"][i % 3];
        let answer = netnice.run_line(&format!("set pid:{pid} {contract}"))?;
        took.push(answer.took().as_secs_f64() * 1e3);
    }
    let memory = netnice.daemon_memory()?;
    let shown = netnice.show()?;
    let installed = shown["targets"].as_array().map_or(0, Vec::len);
    let (p50, p99) = (stats::median(&took), stats::percentile(&took, 99.0));
    let mib = memory as f64 / f64::from(1 << 20);
    context.say(format!(
        "set: p50 {p50:.2} p99 {p99:.2} max {:.1} ms; daemon {mib:.1} MiB",
        stats::greatest(&took)
    ));
    outcome.check(
        "targets that `show` lists",
        installed as f64,
        "",
        Bound::AtLeast(THOUSAND as f64),
    );
    outcome.check("p99 of one set", p99, "ms", Bound::AtMost(50.0));
    outcome.check("memory of the daemon", mib, "MiB", Bound::AtMost(64.0));
    let last = &took[THOUSAND - 100..];
    let clearing = Instant::now();
    netnice.run_line("clear --all")?;
    outcome.ours(
        "set, ms",
        json!({
            "p50": p50, "p99": p99, "max": stats::greatest(&took),
            "p50 of the first 100": stats::median(&took[..100]),
            "p50 of the last 100": stats::median(last),
        }),
    );
    outcome.ours("clear --all, ms", clearing.elapsed().as_secs_f64() * 1e3);
    outcome.ours(
        "daemon, MiB",
        json!({"idle": before as f64 / f64::from(1 << 20), "1,000 targets": mib}),
    );
    Ok(())
}
