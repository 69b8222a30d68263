//! The experiment `any-program`: ordinary programs whose packets the driver schedules. A program
//! with the kernel's own sockets runs without a contract; then `netnice set pid:N --cell …`,
//! `--slice …` or `--min …` takes it in, on a link of 1 Gbit/s (slice and min: 200 Mbit/s), and a
//! window of it is judged by what arrives at the other end of the cable.
//!
//! | contract | programs |
//! |---|---|
//! | `cell`, 10 and 100 Mbit/s | TCP (cubic, reno, BBR), 1, 4 and 16 connections; UDP; v4, v6 |
//! | `slice` of 1/10, `min` of 20 Mbit/s beside a flood | cubic with 4 connections |
//! | `cell` over a wire with a round trip of 20 ms | cubic with 1 and 4 connections, BBR with 4 |
//!
//! Judged are, for each: packets that `netnice check` finds early (cells only), the rate on the
//! wire and the goodput as parts of the contract, segments that were sent again, segments that
//! arrived behind a later one, and (cells over an idle cable) the gaps between packets, without
//! those that a recorded stop of the driver excuses (`crate::alibi`). HTB with the same rate is
//! measured beside the cells for comparison. Over the wire with delay only the rates are judged,
//! 97 % each: the wire itself is late by some tens of microseconds. In the quick form rates have
//! 3 % of tolerance, what they would have carried in stolen time counts as carried, and gaps are
//! not judged.
//!
//! [`run`] fails if the subject is not netnice, or if a step of the measurement fails.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::bench::{SECOND, at, netnice_only, pause};
use super::front_door::DriverStops;
use super::goodput::{Counts, FRAME, TcpService};
use super::sent_packets::check_flow;
use super::{Bound, Context, Outcome, timing};
use crate::alibi::{Alibi, StolenTime};
use crate::process::Proc;
use crate::stats;
use crate::traffic::{self, Running, Tcp, Udp};
use crate::wire::{self, Record, Tap, WireFlow};
use crate::world::bad_wire::Impairments;
use crate::world::{Family, Netnice, Offloads, Pair, World, htb};

/// One measurement.
#[derive(Clone, Debug)]
struct Case {
    name: String,
    load: Load,
    family: Family,
    promise: Promise,
    /// A round trip takes [`ROUND_TRIP`] without load.
    is_far: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    Tcp(&'static str, u32),
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Promise {
    /// A cell contract, in Mbit/s.
    Cell(u64),
    /// A tenth of the link.
    Slice,
    /// 20 Mbit/s, beside a flood without a contract.
    Min,
    /// HTB of this rate in Mbit/s, set up by hand, in place of netnice.
    Htb(u64),
}

/// What one measurement gave.
struct Measured {
    early: Option<u64>,
    wire: f64,
    service: Option<TcpService>,
    /// In us, without excused ones.
    gaps: Vec<f64>,
    excused: u64,
    /// The part of the window that was stolen from the processors.
    stolen: f64,
}

/// Runs the experiment. Fails as the module says.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!(
        "0 packets early; 99 % of the contract on the wire, 98 % as goodput; 0 overtaken, 0.1 % \
         sent again; gaps p1 to p99 within 10 us of nominal at 100 Mbit/s, 20 us at 10"
    );
    let cases = cases(context.quick);
    for case in cases.iter().filter(|case| context.selects(&case.name)) {
        let measured = measure(context, case)?;
        report(context, outcome, case, &measured);
    }
    Ok(())
}

fn cases(quick: bool) -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |load: Load, family: Family, promise: Promise| {
        let who = match load {
            Load::Tcp(congestion, flows) => format!("{congestion} {flows}"),
            Load::Udp => "udp".to_owned(),
        };
        let what = match promise {
            Promise::Cell(rate) => format!("cell {rate}"),
            Promise::Slice => "slice".to_owned(),
            Promise::Min => "min".to_owned(),
            Promise::Htb(rate) => format!("htb {rate}"),
        };
        let version = if family == Family::V4 { "v4" } else { "v6" };
        all.push(Case {
            name: format!("{what} {who} {version}"),
            load,
            family,
            promise,
            is_far: false,
        });
    };
    if quick {
        add(Load::Tcp("cubic", 4), Family::V4, Promise::Cell(10));
        add(Load::Tcp("reno", 1), Family::V6, Promise::Cell(10));
        add(Load::Udp, Family::V4, Promise::Cell(10));
        add(Load::Tcp("cubic", 4), Family::V4, Promise::Slice);
        add(Load::Tcp("cubic", 4), Family::V4, Promise::Min);
        return all;
    }
    for rate in [10, 100] {
        for congestion in ["cubic", "reno", "bbr"] {
            for flows in [1, 4, 16] {
                add(
                    Load::Tcp(congestion, flows),
                    Family::V4,
                    Promise::Cell(rate),
                );
            }
        }
        add(Load::Tcp("cubic", 4), Family::V6, Promise::Cell(rate));
        add(Load::Udp, Family::V4, Promise::Cell(rate));
        add(Load::Udp, Family::V6, Promise::Cell(rate));
        add(Load::Tcp("cubic", 4), Family::V4, Promise::Htb(rate));
        add(Load::Udp, Family::V4, Promise::Htb(rate));
    }
    for promise in [Promise::Slice, Promise::Min] {
        for flows in [1, 4, 16] {
            add(Load::Tcp("cubic", flows), Family::V4, promise);
        }
        add(Load::Udp, Family::V6, promise);
    }
    all.extend(far_cases());
    all
}

/// Cells of TCP over a wire with delay.
fn far_cases() -> impl Iterator<Item = Case> {
    let loads = [("cubic", 1), ("cubic", 4), ("bbr", 4)];
    let rates = [10, 100].into_iter();
    rates.flat_map(move |rate| {
        loads.into_iter().map(move |(congestion, flows)| Case {
            name: format!("cell {rate} {congestion} {flows} far"),
            load: Load::Tcp(congestion, flows),
            family: Family::V4,
            promise: Promise::Cell(rate),
            is_far: true,
        })
    })
}

fn world_of(case: &Case) -> Result<World> {
    if case.is_far {
        let half = Impairments {
            delay: ROUND_TRIP / 2,
            ..Impairments::default()
        };
        return World::bad_wire([half.clone(), half]);
    }
    World::pair(Pair {
        offloads: Offloads::On,
        ..Pair::default()
    })
}

impl Promise {
    /// The options of `netnice set`; `None` for HTB.
    fn options(self) -> Option<String> {
        match self {
            Promise::Cell(rate) => Some(format!("--cell pcr={rate}mbit,cdvt={CDVT_US}us")),
            Promise::Slice => Some("--slice 1ms/10ms".to_owned()),
            Promise::Min => Some("--min 20mbit".to_owned()),
            Promise::Htb(_) => None,
        }
    }

    /// The rate of the link, in bit/s. It is fast enough to be free whenever a packet of a cell may
    /// leave.
    fn link(self) -> f64 {
        match self {
            Promise::Cell(_) | Promise::Htb(_) => 1e9,
            Promise::Slice | Promise::Min => 200e6,
        }
    }

    /// The promised rate in bit/s.
    fn bits(self) -> f64 {
        match self {
            Promise::Cell(rate) | Promise::Htb(rate) => rate as f64 * 1e6,
            Promise::Slice => self.link() / 10.0,
            Promise::Min => 20e6,
        }
    }
}

/// Starts the load, takes it in, and measures a window.
fn measure(context: &Context, case: &Case) -> Result<Measured> {
    let seconds = if context.quick { 2.0 } else { 5.0 };
    let world = world_of(case)?;
    let (client, server) = (world.client(), world.server());
    let device = client.port().device.clone();
    let mut netnice = None;
    let running = StolenTime::watch();
    if case.promise.options().is_some() {
        let mut daemon = world.netnice("client")?;
        daemon.restart_with(&["--driver-stops"])?;
        daemon.run_line(&format!(
            "link {device} --rate {}mbit",
            case.promise.link() as u64 / 1_000_000
        ))?;
        netnice = Some(daemon);
    }
    let (sink, source) = start_load(&world, case)?;
    // A minimum alone starts no driver.
    let mut other = None;
    if let (Some(netnice), Promise::Min) = (&netnice, case.promise) {
        let mut command = client.ns.command("sleep");
        command.arg("600");
        let sleeper = Proc::start(command)?;
        let target = format!("pid:{}", sleeper.pid());
        netnice
            .run_line(&format!("set {target} --slice 1ms/20ms"))?
            .ok()?;
        other = Some(sleeper);
    }
    let flood = match case.promise {
        Promise::Min => {
            // Of UDP: the counters of TCP are then those of the program alone.
            let (from, to) = (
                at(client, case.family, PORT + 1),
                at(server, case.family, PORT + 1),
            );
            let sink = traffic::start_now(server, &Udp::sink(to))?;
            let flood = Udp::source(from, to).rate(2 * case.promise.link() as u64);
            Some((sink, traffic::start_now(client, &flood)?))
        }
        _ => None,
    };
    pause(1.0);
    match (&netnice, case.promise) {
        (Some(netnice), _) => take_in(netnice, &source, case.promise)?,
        (None, Promise::Htb(rate)) => {
            htb::limit(&client.ns, &device, rate * 1_000_000, htb::Leaf::Default)?;
        }
        (None, _) => {}
    }
    // Slow start and its recovery, at the contract's rate.
    pause(1.5);
    let file = world.folder().join("any.pcap");
    let tap = Tap::start_capturing(&server.ns, &server.port().device, &file, is_judged)?;
    let before = Counts::read(&client.ns, &server.ns)?;
    let stolen = StolenTime::watch();
    pause(seconds);
    let after = Counts::read(&client.ns, &server.ns)?;
    let record = tap.stop(&server.ns)?;
    let share = stolen.share();
    record.validate()?;
    let used = case.promise.bits() / case.promise.link();
    let alibi = match &netnice {
        Some(netnice) => DriverStops::read(netnice, &device, &running)?.alibi(used),
        None => Alibi::default(),
    };
    source.stop()?;
    let received = sink.stop()?;
    drop((flood, other));
    let counts = [before, after];
    judge(case, (record, &file), received, counts, (&alibi, share))
}

/// Starts the receiver and the sender of a measurement.
fn start_load(world: &World, case: &Case) -> Result<(Running, Running)> {
    let (client, server) = (world.client(), world.server());
    let to = at(server, case.family, PORT);
    Ok(match case.load {
        Load::Tcp(congestion, flows) => {
            let sink = traffic::start_now(server, &Tcp::listen(to).sink())?;
            let program = Tcp::connect(to, flows).source().congestion(congestion);
            (sink, traffic::start_now(client, &program)?)
        }
        Load::Udp => {
            let sink = traffic::start_now(server, &Udp::sink(to))?;
            let from = at(client, case.family, PORT);
            let size = if case.family == Family::V4 {
                1472
            } else {
                1452
            };
            // More than the contract lets pass.
            let program = Udp::source(from, to)
                .size(size)
                .rate((1.3 * case.promise.bits()) as u64);
            (sink, traffic::start_now(client, &program)?)
        }
    })
}

fn take_in(netnice: &Netnice, source: &Running, promise: Promise) -> Result<()> {
    let options = promise.options().unwrap_or_default();
    let target = format!("pid:{}", source.pid());
    netnice.run_line(&format!("set {target} {options}"))?.ok()?;
    let explained = netnice.run_line(&format!("explain {target}"))?;
    anyhow::ensure!(
        explained.stdout.contains("the driver of"),
        "{target} is not redirected: {}",
        explained.stdout
    );
    Ok(())
}

fn is_judged(flow: &WireFlow) -> bool {
    wire::inbound(flow) && flow.target.1 == PORT
}

fn judge(
    case: &Case,
    (record, file): (Record, &Path),
    received: traffic::Report,
    counts: [Counts; 2],
    (alibi, stolen): (&Alibi, f64),
) -> Result<Measured> {
    let times = record.times(is_judged);
    let (Some(from), Some(until)) = (times.first().copied(), times.last().copied()) else {
        anyhow::bail!("{}: nothing arrived", case.name);
    };
    let span = (until - from) as f64 / SECOND as f64;
    let bytes = record.bytes(is_judged, from, until) as f64;
    let early = match case.promise {
        Promise::Cell(_) if !case.is_far => Some(early(file, case)?),
        _ => None,
    };
    let payload = received.received_payload();
    let goodput = payload.rate(from, until).context("no samples")?;
    let service = match case.load {
        Load::Tcp(..) => {
            let of = TcpService::new(goodput, case.promise.bits(), span, case.family, counts);
            Some(of)
        }
        Load::Udp => None,
    };
    let spacing = (FRAME * 8e9 / case.promise.bits()) as u64;
    let timing = timing::Measured::new(&times, (spacing, CDVT_US * 1000), 0, alibi);
    Ok(Measured {
        early,
        wire: 100.0 * bytes * 8.0 / span / case.promise.bits(),
        service,
        gaps: timing.gaps,
        excused: timing.excused,
        stolen,
    })
}

/// The packets of a capture that `netnice check` finds early.
fn early(file: &Path, case: &Case) -> Result<u64> {
    let Promise::Cell(rate) = case.promise else {
        return Ok(0);
    };
    let transport = match case.load {
        Load::Tcp(..) => "tcp",
        Load::Udp => "udp",
    };
    let contract = format!("pcr={rate}mbit,cdvt={CDVT_US}us");
    let server = match case.family {
        Family::V4 => format!("10.77.0.2:{PORT}"),
        Family::V6 => format!("[fd77::2]:{PORT}"),
    };
    let flow = format!("{transport} to {server}");
    let (judged, early) = check_flow(file, &["--cell", &contract], &flow)?;
    anyhow::ensure!(judged > 0, "nothing was judged");
    Ok(early)
}

fn report(context: &Context, outcome: &mut Outcome, case: &Case, measured: &Measured) {
    let name = &case.name;
    let percentile = |percent| stats::percentile(&measured.gaps, percent);
    let row = json!({
        "early": measured.early,
        "wire, %": (measured.wire * 100.0).round() / 100.0,
        "tcp": measured.service,
        "gap p1, us": percentile(1.0),
        "gap p50, us": percentile(50.0),
        "gap p99, us": percentile(99.0),
        "gaps": measured.gaps.len(),
        "excused": measured.excused,
        "stolen, %": (measured.stolen * 1000.0).round() / 10.0,
    });
    context.say(format!("{name}: {row}"));
    outcome.ours(name, row);
    if matches!(case.promise, Promise::Htb(_)) {
        return;
    }
    if let Some(early) = measured.early {
        let what = format!("{name}: packets that netnice check finds early");
        outcome.check(what, early as f64, "", Bound::AtMost(0.0));
    }
    let part = if case.is_far { 0.03 } else { 0.01 };
    let least = 100.0 - 100.0 * context.tolerance(part);
    let judged = |rate| context.with_stolen(rate, 100.0, measured.stolen);
    let what = format!("{name}: of the contract on the wire");
    outcome.check(what, judged(measured.wire), "%", Bound::AtLeast(least));
    let is_min = case.promise == Promise::Min;
    if !is_min {
        let what = format!("{name}: at most the contract on the wire");
        outcome.check(what, measured.wire, "%", Bound::AtMost(100.5));
    }
    if let Some(service) = &measured.service {
        let part = if case.is_far { 0.03 } else { 0.02 };
        let least = 100.0 - 100.0 * context.tolerance(part);
        let what = format!("{name}: goodput");
        outcome.check(what, judged(service.goodput), "%", Bound::AtLeast(least));
    }
    if case.is_far {
        return;
    }
    if let Some(service) = &measured.service {
        let what = format!("{name}: sent again");
        outcome.check(what, service.retransmitted, "%", Bound::AtMost(0.1));
        let what = format!("{name}: overtaken");
        outcome.check(what, service.out_of_order as f64, "", Bound::AtMost(0.0));
    }
    if let (Promise::Cell(rate), false) = (case.promise, context.quick) {
        let nominal = FRAME * 8.0 / rate as f64;
        let most = if rate == 100 { 10.0 } else { 20.0 };
        for percent in [1.0, 99.0] {
            let off = (percentile(percent) - nominal).abs();
            let what = format!("{name}: p{percent} of the gaps, off {nominal} us");
            outcome.check(what, off, "us", Bound::AtMost(most));
        }
    }
}

/// Of a wire with delay.
const ROUND_TRIP: Duration = Duration::from_millis(20);
const CDVT_US: u64 = 200;
const PORT: u16 = 5000;
