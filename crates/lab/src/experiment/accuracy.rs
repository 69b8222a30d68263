//! The experiment `accuracy` measures how exactly a steady limit is kept: in the whole matrix, or,
//! in the quick form, in a subset that contains every pair of choices ([`pairwise`]).
//!
//! A cell is one choice of direction, limit, traffic, address family and offloads; HTB is measured
//! only in the cells with the direction `up`. Each cell gets a world of its own; the program is
//! already running and connected when its limit is set. The slow cells (64 kbit/s, a minute each)
//! run ten at a time, because together they load the machine little; the others run one by one
//! after them.
//! In the quick form three groups run at the same time: the slow cells, the other cells of up to 10
//! Mbit/s two at a time, and the rest one by one.
//!
//! The measured rate is, for `up`, the rate at the far end of the cable; for `down`, the rate in
//! wire bytes that the program's host receives behind the limit, by its IP layer's counters (the
//! world has no other traffic); for `both`, their sum. An error of 1 % is allowed (3 % in the quick
//! form). At 64 kbit/s one packet is 0.3 % of a minute, and an error of one packet is allowed in
//! addition. A cell above 1 Mbit/s that misses its bound is measured once more (up to twice in the
//! quick form), and the last result counts.
//!
//! In the cells of TCP with the direction `up` or `down`, what TCP gets of netnice's limit is
//! measured too: goodput, retransmissions and order. From 1 Mbit/s on it is judged
//! ([`TcpService::check`]); in less, a few packets of several flows wait for longer than TCP's
//! first timeout.
//!
//! The machine may not be able to send a UDP flood at its full rate. In the quick form, which may
//! run on a busy machine, a flood that netnice limits and that is slower than allowed is measured
//! without a limit too. If the flood is then less than 1.2 times as fast as the limit, its lower
//! rate under the limit does not count as an error.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if a
//! step of the measurement fails.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::bench::{
    Direction, Limiter, R1G, R4M, R64K, R100M, R512K, Rate, Subject, at, pause, wait_until,
};
use super::goodput::{Counts, TcpService};
use super::{Bound, Context, Outcome};
use crate::sys;
use crate::traffic::{self, Running, Tcp, Udp};
use crate::wire::{self, Tap};
use crate::world::{Family, Offloads, Pair, World};

mod pairwise;

/// The traffic of a cell's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Load {
    Cubic1,
    Cubic8,
    Reno1,
    Reno8,
    /// A UDP flood at five times the limit.
    Udp,
}

impl Load {
    fn flows(self) -> u32 {
        match self {
            Load::Cubic8 | Load::Reno8 => 8,
            Load::Cubic1 | Load::Reno1 | Load::Udp => 1,
        }
    }
}

/// One cell of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Cell {
    direction: Direction,
    limit: Rate,
    load: Load,
    family: Family,
    offloads: Offloads,
}

/// The result of a cell.
#[derive(Debug, Clone, Serialize)]
struct Measured {
    #[serde(flatten)]
    cell: Cell,
    /// Mean rate in bit/s.
    rate: f64,
    /// rate / limit - 1; 0 for a flood that is too slow only because the machine cannot send it
    /// faster (see the module). NaN if nothing was measured.
    error: f64,
    /// The largest allowed error.
    allowed: f64,
    /// For `down`: the rate on the wire, before the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    wire: Option<f64>,
    /// The reason if nothing was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    /// What TCP got; absent for `both`, where acknowledgements use the limit too, and for UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<TcpService>,
    /// The error of the first measurement if the measurement was repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<f64>,
}

/// Runs the experiment and adds its checks and results to `outcome`. Fails as
/// [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let mut cells = matrix(context.subject);
    if context.quick {
        cells = pairwise::cover(&cells, Cell::levels);
    }
    if let Some(only) = &context.only {
        let has_all = |cell: &Cell| {
            let name = cell.to_string().to_lowercase();
            only.to_lowercase()
                .split_whitespace()
                .all(|word| name.contains(word))
        };
        cells.retain(has_all);
    }
    let tolerance = context.tolerance(0.01);
    outcome.paper =
        json!({"promise": "steady rate within 1 % of the limit", "trickle": 0.056, "htb": 0.003});
    context.say(format!("{} cells", cells.len()));
    let (slow, rest): (Vec<Cell>, Vec<Cell>) = cells
        .into_iter()
        .partition(|cell| cell.limit.bits < 1_000_000);
    let slow = || {
        measure_concurrently(&slow, SLOW_CONCURRENT, |cell| {
            measure_or_report(context, cell, tolerance)
        })
    };
    let again = |cell: &Cell| measure_with_repeats(context, cell, tolerance);
    let results: Vec<Measured> = if context.quick {
        // Small rates hardly load the machine, and one by one they would take minutes.
        let (small, fast): (Vec<Cell>, Vec<Cell>) = rest
            .into_iter()
            .partition(|cell| cell.limit.bits <= SMALL_LIMIT);
        std::thread::scope(|scope| {
            let together = [
                scope.spawn(slow),
                scope.spawn(|| measure_concurrently(&small, SMALL_CONCURRENT, again)),
            ];
            let fast: Vec<Measured> = fast.iter().map(again).collect();
            let together = together
                .into_iter()
                .flat_map(|cells| cells.join().expect("it does not panic"));
            together.chain(fast).collect()
        })
    } else {
        slow().into_iter().chain(rest.iter().map(again)).collect()
    };
    for r in &results {
        let what = r.cell.to_string();
        let bound = Bound::AtMost(r.allowed * 100.0);
        outcome.check(&what, r.error.abs() * 100.0, "%", bound);
        let judged = context.subject == Subject::Netnice && r.cell.limit.bits >= 1_000_000;
        if let Some(service) = r.service.filter(|_| judged) {
            let kind = (r.cell.direction, r.cell.load.flows());
            service.check(
                context,
                outcome,
                &what,
                kind,
                (r.allowed - tolerance) * 100.0,
            );
        }
    }
    let again = results.iter().filter(|r| r.first_error.is_some()).count();
    if again > 0 {
        outcome.note(format!(
            "{again} cells missed their bound and were measured again"
        ));
    }
    let worst = results
        .iter()
        .max_by(|a, b| a.error.abs().total_cmp(&b.error.abs()));
    outcome.ours("cells", &results);
    outcome.ours("worst", worst);
    Ok(())
}

/// Every cell, similar ones next to each other.
fn matrix(subject: Subject) -> Vec<Cell> {
    let mut cells = Vec::new();
    for limit in [R64K, R512K, R4M, R100M, R1G] {
        for direction in [Direction::Up, Direction::Down, Direction::Both] {
            for load in [
                Load::Cubic1,
                Load::Cubic8,
                Load::Reno1,
                Load::Reno8,
                Load::Udp,
            ] {
                for family in [Family::V4, Family::V6] {
                    for offloads in [Offloads::Off, Offloads::On] {
                        cells.push(Cell {
                            direction,
                            limit,
                            load,
                            family,
                            offloads,
                        });
                    }
                }
            }
        }
    }
    if subject == Subject::Htb {
        cells.retain(|cell| cell.direction == Direction::Up);
    }
    cells
}

impl Cell {
    /// The five choices as numbers, for the pairwise subset.
    fn levels(&self) -> [usize; 5] {
        [
            self.direction as usize,
            self.limit.bits as usize,
            self.load as usize,
            self.family as usize,
            self.offloads as usize,
        ]
    }

    /// Seconds until the rate is steady, and seconds measured.
    fn times(&self, quick: bool) -> (f64, f64) {
        match (self.limit.bits, quick) {
            (..1_000_000, _) => (8.0, 62.0),
            (_, true) => (1.5, 3.0),
            (_, false) => (2.0, 6.0),
        }
    }
}

/// Measures cells, `at_once` of them concurrently.
fn measure_concurrently(
    cells: &[Cell],
    at_once: usize,
    measure: impl Fn(&Cell) -> Measured + Sync,
) -> Vec<Measured> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Measured>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(cells.len()) {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let measured = measure(cell);
                    results
                        .lock()
                        .expect("no thread panics with it")
                        .push(measured);
                }
            });
        }
    });
    results.into_inner().expect("no thread panics with it")
}

/// Measures a cell, and repeats the measurement if it misses: other load on the machine may cause
/// one miss, but a fault of the limiter shows again. The last result counts; the first error is
/// recorded too.
fn measure_with_repeats(context: &Context, cell: &Cell, tolerance: f64) -> Measured {
    let mut measured = measure_or_report(context, cell, tolerance);
    let first = measured.error;
    for _ in 0..if context.quick { 2 } else { 1 } {
        if measured.holds() {
            break;
        }
        context.say("the bound is missed: measuring again");
        measured = measure_or_report(context, cell, tolerance);
        measured.first_error = Some(first);
    }
    measured
}

/// Measures a cell. A cell that cannot be measured does not hold, and does not end the experiment.
fn measure_or_report(context: &Context, cell: &Cell, tolerance: f64) -> Measured {
    measure(context, cell, tolerance).unwrap_or_else(|error| {
        context.say(format!("{cell}: {error:#}"));
        Measured {
            cell: *cell,
            rate: f64::NAN,
            error: f64::NAN,
            allowed: tolerance,
            wire: None,
            failed: Some(format!("{error:#}")),
            service: None,
            first_error: None,
        }
    })
}

impl Measured {
    fn holds(&self) -> bool {
        self.error.abs() <= self.allowed
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let direction = format!("{:?}", self.direction);
        let load = format!("{:?}", self.load);
        write!(
            f,
            "{direction:<5} {:<10} {load:<7} {:?} offloads {:?}",
            self.limit.text, self.family, self.offloads
        )
    }
}

/// A cell whose limit is set, ready to be measured. Fields are dropped in this order.
struct Prepared {
    limiter: Limiter,
    world: World,
}

/// Worlds are made and removed one at a time. Each change of a link waits for the whole kernel; ten
/// daemons that change theirs at once would delay each other beyond a client's timeout.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn measure(context: &Context, cell: &Cell, tolerance: f64) -> Result<Measured> {
    let alone = || ONE_AT_A_TIME.lock().expect("no thread panics with it");
    let (programs, prepared) = {
        let _alone = alone();
        prepare(context, cell)?
    };
    let measured = measure_prepared(context, cell, tolerance, programs, &prepared);
    let _alone = alone();
    drop(prepared);
    measured
}

fn prepare(context: &Context, cell: &Cell) -> Result<([Running; 2], Prepared)> {
    let world = World::pair(Pair {
        offloads: cell.offloads,
        ..Pair::default()
    })?;
    let limiter = Limiter::start(&world, context.subject)?;
    let (far, program) = programs(&world, cell)?;
    limiter.set(&world, program.pid(), cell.direction, cell.limit)?;
    Ok(([far, program], Prepared { limiter, world }))
}

fn measure_prepared(
    context: &Context,
    cell: &Cell,
    tolerance: f64,
    [mut far, mut program]: [Running; 2],
    Prepared { limiter, world }: &Prepared,
) -> Result<Measured> {
    let (client, server) = (&world.client().ns, &world.server().ns);
    let tap = Tap::start(server, "eth0")?;
    let (settle, span) = cell.times(context.quick);
    far.go()?;
    let from = program.go()? + (settle * 1e9) as u64;
    let to = from + (span * 1e9) as u64;
    let (sender, receiver) = match cell.direction {
        Direction::Down => (server, client),
        _ => (client, server),
    };
    wait_until(from);
    let before = client.delivered()?;
    let counts_before = Counts::read(sender, receiver)?;
    wait_until(to);
    let after = client.delivered()?;
    let counts = [counts_before, Counts::read(sender, receiver)?];
    pause(0.05);
    let record = tap.stop(server)?;
    record.validate()?;
    let sent = record.rate(wire::inbound, from, to);
    let took = (after.at_ns - before.at_ns).max(1) as f64;
    let got = (after.wire - before.wire) as f64 * 8e9 / took;
    let rate = match cell.direction {
        Direction::Up => sent,
        Direction::Down => got,
        Direction::Both => sent + got,
    };
    let aim = cell.limit.bits as f64;
    let mut error = rate / aim - 1.0;
    let judged = context.quick && context.subject == Subject::Netnice;
    if judged && cell.load == Load::Udp && error < -tolerance {
        let sends = without_limit(world, limiter, cell, program.pid())?;
        if sends < aim * MIN_FLOOD_EXCESS {
            context.say(format!(
                "{cell}: without a limit the machine sends {:.0} Mbit/s",
                sends / 1e6
            ));
            error = error.max(0.0);
        }
    }
    let (near, far) = (program.stop()?, far.stop()?);
    let received = match cell.direction {
        Direction::Up => Some(far),
        Direction::Down => Some(near),
        Direction::Both => None,
    };
    let service = received
        .filter(|_| cell.load != Load::Udp)
        .and_then(|report| {
            let goodput = report.received_payload().rate(from, to)?;
            Some(TcpService::new(goodput, aim, span, cell.family, counts))
        });
    let packet = match aim < 1e6 {
        true => 1514.0 * 8.0 / (aim * span),
        false => 0.0,
    };
    let down = cell.direction == Direction::Down;
    let measured = Measured {
        cell: *cell,
        rate,
        error,
        allowed: tolerance + packet,
        wire: down.then(|| record.rate(wire::outbound, from, to)),
        failed: None,
        service,
        first_error: None,
    };
    context.say(format!(
        "{:<42} {:>9.3} Mbit/s {:>+7.2} %{}",
        cell.to_string(),
        rate / 1e6,
        measured.error * 100.0,
        if measured.holds() { "" } else { "  <-" }
    ));
    Ok(measured)
}

/// The rate in bit/s of a cell's flood without a limit: a busy machine may not reach the offered
/// rate.
fn without_limit(world: &World, limiter: &Limiter, cell: &Cell, pid: u32) -> Result<f64> {
    limiter.set(world, pid, cell.direction, NO_LIMIT)?;
    pause(0.5);
    let bytes = || -> Result<(u64, u64)> {
        let [here, there] = [world.client(), world.server()].map(|host| host.ns.counters("eth0"));
        let (here, there) = (here?.rx_bytes, there?.rx_bytes);
        let passed = match cell.direction {
            Direction::Up => there,
            Direction::Down => here,
            Direction::Both => here + there,
        };
        Ok((sys::now_ns(), passed))
    };
    let (from, before) = bytes()?;
    pause(1.0);
    let (to, after) = bytes()?;
    Ok((after - before) as f64 * 8e9 / (to - from) as f64)
}

/// The far end and the program under test, connected and waiting for `go`.
fn programs(world: &World, cell: &Cell) -> Result<(Running, Running)> {
    let (client, server) = (world.client(), world.server());
    let (here, there) = (at(client, cell.family, 5002), at(server, cell.family, 5001));
    let (sends, receives) = match cell.direction {
        Direction::Up => (true, false),
        Direction::Down => (false, true),
        Direction::Both => (true, true),
    };
    if cell.load == Load::Udp {
        let offer = cell.limit.bits * 5;
        let end = |own, peer, sends, receives| match (sends, receives) {
            (true, false) => Udp::source(own, peer).rate(offer),
            (true, true) => Udp::duplex(own, peer).rate(offer),
            _ => Udp::sink(own),
        };
        let far = traffic::start_waiting(server, &end(there, here, receives, sends))?;
        let program = traffic::start_waiting(client, &end(here, there, sends, receives))?;
        return Ok((far, program));
    }
    let flows = cell.load.flows();
    let congestion = match cell.load {
        Load::Cubic1 | Load::Cubic8 => "cubic",
        _ => "reno",
    };
    let ends = |mut tcp: Tcp, sends: bool, receives: bool| {
        tcp = tcp.congestion(congestion);
        if sends {
            tcp = tcp.source();
        }
        if receives { tcp.sink() } else { tcp }
    };
    let far = traffic::start_waiting(server, &ends(Tcp::listen(there), receives, sends))?;
    let program = ends(Tcp::connect(there, flows), sends, receives);
    let program = traffic::start_waiting(client, &program)?;
    // The far end must accept the last connections before it gets `go`.
    pause(0.1);
    Ok((far, program))
}

/// The rate `none` removes the limit.
const NO_LIMIT: Rate = Rate {
    text: "none",
    bits: 0,
};
/// If a flood without a limit is at least this many times as fast as the limit, a rate below the
/// limit counts as an error.
const MIN_FLOOD_EXCESS: f64 = 1.2;
/// Slow cells measured at the same time.
const SLOW_CONCURRENT: usize = 10;
/// The largest limit in bit/s whose cells a quick run measures several at a time.
const SMALL_LIMIT: u64 = 10_000_000;
/// Number of these cells that are measured at the same time.
const SMALL_CONCURRENT: usize = 2;
