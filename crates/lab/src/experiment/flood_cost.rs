//! The experiment `burning` measures what a UDP flood far above its limit costs: processor time,
//! and sends for each packet on the wire. A program sends at full speed under 20 Mbit/s, once
//! limited by netnice and once by HTB on the device, each with offloads off and on. A limiter
//! should make the flood's sends wait, as a queue on the device does, and not drop packets after
//! they were made. With netnice the flood may use at most 10 % of a processor and make at most 1.5
//! sends for each packet.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if
//! the subject is not netnice or if a step of the measurement fails.

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::bench::{Direction, Limiter, MBIT, R20M, SECOND, Subject, at, netnice_only, wait_until};
use super::{Bound, Context, Outcome};
use crate::traffic::{self, Udp};
use crate::wire::{self, Tap};
use crate::world::{Family, Offloads, Pair, World};

#[derive(Debug, Clone, Serialize)]
struct Cost {
    sends_per_second: f64,
    packets_on_the_wire_per_second: f64,
    sends_per_packet: f64,
    processor_share: f64,
    rate: f64,
}

/// Runs the experiment with both limiters and adds its checks and results to `outcome`. Fails if
/// the subject is not netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!({
        "tried": {"veth stage": {"sends in 2 s": 3438, "CPU s": 0.01}, "IFB": {"sends in 2 s": 2_900_000, "CPU s": 2.0}},
    });
    for offloads in [Offloads::Off, Offloads::On] {
        let name = format!("offloads {offloads:?}");
        let htb = flood(Subject::Htb, offloads)?;
        let ours = flood(Subject::Netnice, offloads)?;
        for (limiter, cost) in [("HTB on the device", &htb), ("netnice", &ours)] {
            context.say(format!(
                "{name:<13} {limiter:<18} {:>9.0} sends/s, {:.2} per packet, {:>6.2} % of a \
                 processor, {:.2} Mbit/s",
                cost.sends_per_second,
                cost.sends_per_packet,
                cost.processor_share * 100.0,
                cost.rate / MBIT
            ));
        }
        let share = ours.processor_share * 100.0;
        outcome.check(
            format!("{name}: share of a processor"),
            share,
            "%",
            Bound::AtMost(10.0),
        );
        let sends = ours.sends_per_packet;
        outcome.check(
            format!("{name}: sends per packet on the wire"),
            sends,
            "",
            Bound::AtMost(1.5),
        );
        outcome.ours(&name, json!({"netnice": ours, "HTB on the device": htb}));
    }
    Ok(())
}

/// Runs a UDP flood at full speed under 20 Mbit/s, for 3 s.
fn flood(subject: Subject, offloads: Offloads) -> Result<Cost> {
    let world = World::pair(Pair {
        offloads,
        ..Pair::default()
    })?;
    let limiter = Limiter::start(&world, subject)?;
    let (here, there) = (
        at(world.client(), Family::V4, 5002),
        at(world.server(), Family::V4, 5001),
    );
    let _sink = traffic::start_now(world.server(), &Udp::sink(there))?;
    let mut program = traffic::start_waiting(world.client(), &Udp::source(here, there))?;
    limiter.set(&world, program.pid(), Direction::Up, R20M)?;
    let tap = Tap::start(&world.server().ns, "eth0")?;
    let began = program.go()?;
    wait_until(began + 3 * SECOND);
    let report = program.stop()?;
    let record = tap.stop(&world.server().ns)?;
    record.validate()?;
    let seconds = (report.ended_ns - report.started_ns) as f64 / 1e9;
    let packets = record.totals(wire::inbound).packets as f64;
    Ok(Cost {
        sends_per_second: report.sends as f64 / seconds,
        packets_on_the_wire_per_second: packets / seconds,
        sends_per_packet: report.sends as f64 / packets.max(1.0),
        processor_share: report.cpu_share(),
        rate: record.rate(wire::inbound, began + SECOND, began + 3 * SECOND),
    })
}
