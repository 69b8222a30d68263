//! The experiment `change` measures how fast a changed limit takes effect on a running, connected
//! program with TCP flows or a UDP flood. The mean rate over three seconds is checked. A lowered or
//! first limit must be kept within 3 %, in the three seconds that begin 200 ms (sending) or 1 s
//! (other directions) after the end of the command. Of a raised limit at least 90 % must be used,
//! in the three seconds that begin 1.5 s after the command.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if a
//! step of the measurement fails or if a plot cannot be written.

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::bench::{
    Direction, Limiter, MBIT, MS, R4M, R20M, R100M, R512K, Rate, SECOND, Subject, at, wait_until,
};
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};
use crate::traffic::{self, Tcp, Udp};
use crate::wire::{self, Tap};
use crate::world::{Arrivals, Family, Pair, World};

/// A change of a limit under traffic.
#[derive(Debug, Clone, Copy, Serialize)]
struct Case {
    direction: Direction,
    /// TCP flows; 0 is a UDP flood of 150 Mbit/s.
    flows: u32,
    before: Option<Rate>,
    after: Rate,
}

impl Case {
    fn raises(&self) -> bool {
        self.before
            .is_some_and(|before| before.bits < self.after.bits)
    }

    /// Start of the promised span, in ns after the command.
    fn from(&self) -> u64 {
        match (self.raises(), self.direction) {
            (true, _) => 1500 * MS,
            (false, Direction::Up) => 200 * MS,
            (false, _) => SECOND,
        }
    }
}

/// The result of a case: the rate over the promised span, and rates in bins of 50 ms around the
/// change.
struct Measured {
    rate: f64,
    typing_ms: f64,
    bins: Vec<(f64, f64)>,
}

/// Runs the experiment and adds its checks and results to `outcome`. Fails as
/// [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    outcome.paper = json!({
        "promise": "lowered: within 3 % from 200 ms (up) or 1 s (down) on; 512 Kbyte/s raised to 100 Mbit/s: 90 % from 1.5 s on",
    });
    let mut rows = Vec::new();
    let mut drawn = Vec::new();
    for case in cases(context) {
        let seen = change(context, &case)?;
        let from = case.before.map_or("no limit", |b| b.text);
        let traffic = match case.flows {
            0 => "UDP".to_owned(),
            n => format!("{n} TCP"),
        };
        let name = format!(
            "{:?} {from} to {}, {traffic}",
            case.direction, case.after.text
        );
        let share = seen.rate / case.after.bits as f64;
        context.say(format!(
            "{name:<44} {:>8.3} Mbit/s {:>+7.2} %",
            seen.rate / MBIT,
            (share - 1.0) * 100.0
        ));
        if case.raises() {
            outcome.check(
                format!("{name}: share of the limit"),
                share * 100.0,
                "%",
                Bound::AtLeast(90.0),
            );
        } else {
            let off = (share - 1.0).abs() * 100.0;
            outcome.check(
                format!("{name}: off the limit by"),
                off,
                "%",
                Bound::AtMost(3.0),
            );
        }
        rows.push(
            json!({"case": name, "Mbit/s": seen.rate / MBIT, "command took, ms": seen.typing_ms}),
        );
        drawn.push((case, name, seen));
    }
    outcome.ours("cases", rows);
    for (i, (case, name, seen)) in drawn.iter().enumerate() {
        outcome.plot(context, &format!("change-{i}"), || {
            Chart::new(name, "seconds after the command", "Mbit/s, each 50 ms")
                .with(Series::new("rate", palette::BLUE, seen.bins.clone()))
                .level(case.after.bits as f64 / MBIT, case.after.text)
                .y_range(
                    0.0,
                    case.after.bits.max(case.before.map_or(0, |b| b.bits)) as f64 / MBIT * 1.5,
                )
                .moment(0.0, "netnice")
                .without_legend()
                .svg()
        })?;
    }
    Ok(())
}

fn cases(context: &Context) -> Vec<Case> {
    let case = |direction, flows, before: Option<Rate>, after| Case {
        direction,
        flows,
        before,
        after,
    };
    let mut all = vec![
        case(Direction::Up, 1, Some(R100M), R512K),
        case(Direction::Up, 8, Some(R100M), R4M),
        case(Direction::Up, 0, Some(R100M), R4M),
        case(Direction::Up, 1, Some(R512K), R100M),
        case(Direction::Down, 1, Some(R100M), R512K),
        case(Direction::Down, 8, Some(R100M), R4M),
        case(Direction::Down, 1, Some(R512K), R100M),
    ];
    if !context.quick {
        all.extend([
            case(Direction::Up, 4, None, R20M),
            case(Direction::Up, 8, Some(R512K), R100M),
            case(Direction::Up, 0, Some(R512K), R100M),
            case(Direction::Down, 4, None, R20M),
            case(Direction::Down, 0, Some(R100M), R4M),
            case(Direction::Down, 8, Some(R512K), R100M),
            case(Direction::Both, 1, Some(R100M), R4M),
        ]);
    }
    if context.subject == Subject::Htb {
        all.retain(|c| c.direction == Direction::Up);
    }
    all
}

fn change(context: &Context, case: &Case) -> Result<Measured> {
    let world = World::pair(Pair::default())?;
    let limiter = Limiter::start(&world, context.subject)?;
    let (client, server) = (world.client(), world.server());
    let (here, there) = (at(client, Family::V4, 5002), at(server, Family::V4, 5001));
    let down = case.direction == Direction::Down;
    let (mut far, mut program) = match (case.flows, down) {
        (0, false) => (
            traffic::start_waiting(server, &Udp::sink(there))?,
            traffic::start_waiting(client, &Udp::source(here, there).rate(FLOOD_RATE))?,
        ),
        (0, true) => (
            traffic::start_waiting(server, &Udp::source(there, here).rate(FLOOD_RATE))?,
            traffic::start_waiting(client, &Udp::sink(here))?,
        ),
        (n, false) => (
            traffic::start_waiting(server, &Tcp::listen(there).sink())?,
            traffic::start_waiting(client, &Tcp::connect(there, n).source())?,
        ),
        (n, true) => (
            traffic::start_waiting(server, &Tcp::listen(there).source())?,
            traffic::start_waiting(client, &Tcp::connect(there, n).sink())?,
        ),
    };
    if let Some(before) = case.before {
        limiter.set(&world, program.pid(), case.direction, before)?;
    }
    let tap = Tap::start(&server.ns, "eth0")?;
    let arrivals = Arrivals::start(&client.ns)?;
    far.go()?;
    let began = program.go()?;
    wait_until(began + 3 * SECOND);
    let (typed, set) = limiter.set(&world, program.pid(), case.direction, case.after)?;
    let (from, to) = (set + case.from(), set + case.from() + 3 * SECOND);
    wait_until(to + 50 * MS);
    program.stop()?;
    let received = arrivals.stop()?;
    let record = tap.stop(&server.ns)?;
    record.validate()?;
    let rate = |a: u64, b: u64| match case.direction {
        Direction::Up => record.rate(wire::inbound, a, b),
        Direction::Down => received.rate(a, b).unwrap_or(0.0),
        Direction::Both => record.rate(wire::inbound, a, b) + received.rate(a, b).unwrap_or(0.0),
    };
    let bins = (0..)
        .map(|i| set - SECOND + i * 50 * MS)
        .take_while(|at| at + 50 * MS <= to)
        .map(|at| {
            (
                (at as f64 - set as f64) / 1e9 + 0.025,
                rate(at, at + 50 * MS) / MBIT,
            )
        })
        .collect();
    Ok(Measured {
        rate: rate(from, to),
        typing_ms: (set - typed) as f64 / 1e6,
        bins,
    })
}

/// Rate of a flood in bit/s, above every limit here.
const FLOOD_RATE: u64 = 150_000_000;
