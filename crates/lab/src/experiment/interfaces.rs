//! The experiment `two-interfaces` measures one limit of 20 Mbit/s on a program whose children send
//! over two cables at the same time, or receive over both, with IPv4 and IPv6. The sum of both
//! rates must be the limit within 1 % (3 % in the quick form), because a limit belongs to a target
//! and not to an interface; each rate must be at least 1 Mbit/s.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if
//! the subject is not netnice or if a step of the measurement fails.

use anyhow::Result;
use serde_json::json;

use super::bench::{Direction, Limiter, MBIT, MS, R20M, SECOND, netnice_only, wait_until};
use super::{Bound, Context, Outcome};
use crate::traffic::{self, ParentProcess, RunOptions, Running, Tcp};
use crate::wire::{self, Tap};
use crate::world::{Arrivals, Family, Host, Pair, World};

/// Runs the experiment and adds its checks and results to `outcome`. Fails if the subject is not
/// netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!({"promise": "one limit in sum over all real interfaces, IPv6 too"});
    for family in [Family::V4, Family::V6] {
        for direction in [Direction::Up, Direction::Down] {
            measure(context, outcome, family, direction)?;
        }
    }
    Ok(())
}

fn measure(
    context: &Context,
    outcome: &mut Outcome,
    family: Family,
    direction: Direction,
) -> Result<()> {
    let world = World::pair(Pair {
        cables: 2,
        ..Pair::default()
    })?;
    let limiter = Limiter::start(&world, context.subject)?;
    let server = world.server();
    let mut program = ParentProcess::start(world.client())?;
    let (mut far, children) = start_flows(server, &mut program, family, direction)?;
    limiter.set(&world, program.pid(), direction, R20M)?;
    let taps: Vec<Tap> = ["eth0", "eth1"]
        .into_iter()
        .map(|device| Tap::start(&server.ns, device))
        .collect::<Result<_>>()?;
    let arrivals = Arrivals::start(&world.client().ns)?;
    for end in &mut far {
        end.go()?;
    }
    for child in &children {
        program.write_line(*child, "go")?;
    }
    let from = crate::sys::now_ns() + 2 * SECOND;
    let to = from + if context.quick { 3 } else { 6 } * SECOND;
    wait_until(to + 50 * MS);
    let mut rates = Vec::new();
    for (child, tap) in children.iter().zip(taps) {
        let report = program.stop(*child)?;
        let record = tap.stop(&server.ns)?;
        record.validate()?;
        rates.push(match direction {
            Direction::Up => record.rate(wire::inbound, from, to),
            _ => report.received_rate(from, to).unwrap_or(0.0),
        });
    }
    let received = arrivals.stop()?;
    let sum = match direction {
        Direction::Up => rates.iter().sum(),
        // The bytes that one program has read lag behind the bytes that its host received.
        _ => received.rate(from, to).unwrap_or(0.0),
    };
    let name = format!("{direction:?} {family:?}");
    context.say(format!(
        "{name:<8} {:.3} + {:.3} = {:.3} Mbit/s",
        rates[0] / MBIT,
        rates[1] / MBIT,
        sum / MBIT
    ));
    let bound = Bound::Near {
        aim: R20M.bits as f64 / MBIT,
        share: context.tolerance(0.01),
    };
    outcome.check(
        format!("{name}: sum over two interfaces"),
        sum / MBIT,
        "Mbit/s",
        bound,
    );
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min) / MBIT;
    outcome.check(
        format!("{name}: the smaller rate"),
        least,
        "Mbit/s",
        Bound::AtLeast(1.0),
    );
    outcome.ours(&name, rates.iter().map(|r| r / MBIT).collect::<Vec<f64>>());
    Ok(())
}

/// Starts flows over each of the server's interfaces: the programs of the server, and children of
/// `program`. None sends before `go`.
fn start_flows(
    server: &Host,
    program: &mut ParentProcess,
    family: Family,
    direction: Direction,
) -> Result<(Vec<Running>, Vec<u32>)> {
    let mut far: Vec<Running> = Vec::new();
    let mut children = Vec::new();
    for port in &server.ports {
        let to = std::net::SocketAddr::new(port.address(family), 5001);
        let (there, here) = match direction {
            Direction::Up => (Tcp::listen(to).sink(), Tcp::connect(to, 4).source()),
            _ => (Tcp::listen(to).source(), Tcp::connect(to, 4).sink()),
        };
        far.push(traffic::start_waiting(server, &there)?);
        children.push(program.traffic(&here, RunOptions::default())?);
    }
    Ok((far, children))
}
