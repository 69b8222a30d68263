//! Repeats figures 3 and 4 of the paper CELL on real packets, with the driver. In place of a cell
//! there is a packet of 1500 bytes, and a slot is its time on a link of 100 Mbit/s: 120 us. The
//! policer of figure 3 is `netnice check`, which reads a capture of the packets that arrived. An
//! experiment fails if the tap at the receiver lost a packet, if the driver counted another number
//! of sent packets than arrived, or if a connection of figure 3 sent nothing.
//!
//! Figure 3 runs through netniced and netnice-driver, with programs as processes. In figure 4 the
//! driver and the programs are threads of this process.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a step of the measurement fails, or if a plot cannot be written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use netnice_core::contract::{CLASSES, Slice};
use netnice_core::sched::Class;
use netnice_core::stops::Stop;
use netnice_core::units::{Nanos, Rate};
use serde_json::json;

use super::super::bench::{netnice_only, wait_until};
use super::super::driver_world::{
    DriverWorld, bins, check_conformance, from_port, note_mode, validate,
};
use super::super::front_door::{FrontDoor, check_verdict, missing_on_the_wire, note};
use super::super::{Bound, Context, Outcome};
use super::{Connection, OverloadCheck, TOLERANCE, bursts, check_bursts, connections};
use crate::alibi::{Alibi, Verdict};
use crate::plot::{Chart, Series, palette};
use crate::sys;
use crate::traffic::Running;
use crate::wire::Record;

/// Figure 3: ten connections, each shaped so that a policer at the receiver finds no packet early.
/// Also checks that a connection loses at most one packet to conflicts (3 % in the quick form), and
/// that at least 99 % of the bursts of a dual bucket are whole (90 % in the quick form). Fails if
/// the subject is not netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure3(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let slots: u64 = if context.quick { 20_000 } else { 250_000 };
    let connections = connections();
    let (_front, record, file, stops) = send_shaped(outcome, &connections, slots)?;
    outcome.paper = json!("straight lines; small deviations where two want the same slot");
    let (mut wrong, mut missing) = (0, 0);
    let mut lost = Verdict::default();
    for (number, one) in (0..).zip(&connections) {
        let (early, short) = police(outcome, &record, &file, number, one)?;
        wrong += early;
        missing += missing_on_the_wire(&file, port(number))?;
        lost += excuse_lost(&record, number, one, short, &stops);
    }
    let what = "packets that netnice check finds early";
    outcome.check(what, wrong as f64, "", Bound::AtMost(0.0));
    let what = "packets that were sent and did not arrive";
    outcome.check(what, missing as f64, "", Bound::AtMost(0.0));
    // A delay gives no credit: a stop that is longer than the tolerance costs packets.
    let what = "packets beyond one that a connection lost to conflicts";
    check_verdict(outcome, what, lost);
    let least = if context.quick { 90.0 } else { 99.0 };
    for (number, one) in (0..).zip(&connections) {
        if let Some(cells) = one.dual_burst() {
            let times = record.times(from_port(port(number)));
            let lengths = bursts(&times, (one.peak + TOLERANCE) * SLOT);
            check_bursts(outcome, number.into(), cells, &lengths, "packets", least);
        }
    }
    outcome.plot(context, "cell-fig3", || {
        let chart = Chart::new("CELL, figure 3", "slot of 120 us", "packets");
        let begin = record.packets().first().map_or(0, |one| one.at_ns);
        let names: Vec<(String, u16)> = (0..connections.len() as u16)
            .map(|number| (format!("VC {number}"), port(number)))
            .collect();
        steps(chart.x_range(0.0, 400.0), &record, &names, begin, 400)
    })
}

/// Lets each connection send from its slot on until `slots` are over. Returns the world, whose
/// folder has the capture, the record, the capture's path, and the stops of the driver.
fn send_shaped(
    outcome: &mut Outcome,
    connections: &[Connection],
    slots: u64,
) -> Result<(FrontDoor, Record, PathBuf, Stops)> {
    let front = FrontDoor::new("100mbit")?;
    let senders: Result<Vec<Running>> = (0..)
        .zip(connections)
        .map(|(number, one)| front.sender(port(number), &one.contract(LINK, PACKET)))
        .collect();
    let mut senders = senders?;
    let (tap, file) = front.tap()?;
    let mut starting: Vec<(u64, &mut Running)> = connections
        .iter()
        .map(|one| one.start)
        .zip(&mut senders)
        .collect();
    starting.sort_by_key(|(start, _)| *start);
    let began = sys::now_ns();
    for (start, sender) in starting {
        wait_until(began + start * SLOT);
        sender.go()?;
    }
    wait_until(began + slots * SLOT);
    let stops = front.stops()?;
    let ahead = sys::now_ns().saturating_sub(netnice_kernel::process::monotonic().0);
    note(outcome, &stops);
    let record = tap.stop(&front.world.server().ns)?;
    record.validate()?;
    for sender in senders {
        let report = sender.stop()?;
        anyhow::ensure!(report.refused.is_empty(), "{:?}", report.refused);
    }
    Ok((front, record, file, Stops { stops, ahead }))
}

/// The stops of the driver, and the offset from their clock to that of packets.
struct Stops {
    stops: Vec<Stop>,
    ahead: u64,
}

/// Judges the packets that a connection lost beyond one, `short` in all. Only a stop that takes
/// half of the tolerance or more can cost packets: as many as the connection may send during it.
fn excuse_lost(
    record: &Record,
    number: u16,
    one: &Connection,
    short: u64,
    stops: &Stops,
) -> Verdict {
    let long = |stop: &&Stop| stop.length.0 >= TOLERANCE * SLOT / 2;
    let long: Vec<Stop> = stops.stops.iter().filter(long).copied().collect();
    let times = record.times(from_port(port(number)));
    let (from, until) = (times.first().copied(), times.last().copied());
    let alibi = Alibi::new(&long, stops.ahead, 0.0);
    let beyond = short.saturating_sub(1);
    let (from, until) = (from.unwrap_or_default(), until.unwrap_or_default());
    alibi.judge_missing(beyond, from, until, one.peak * SLOT)
}

/// Compares a connection's packets with its contract: the packets that are early, those that are
/// missing.
fn police(
    outcome: &mut Outcome,
    record: &Record,
    file: &Path,
    number: u16,
    connection: &Connection,
) -> Result<(u64, u64)> {
    let contract = connection.contract(LINK, PACKET);
    let option = contract.trim_start_matches("cell ");
    let (judged, early) = check_conformance(file, &["--cell", option], port(number))?;
    let times = record.times(from_port(port(number)));
    let (Some(first), Some(last)) = (times.first(), times.last()) else {
        anyhow::bail!("VC {number} sent nothing");
    };
    // The packets that the contract allows between the first packet and the last, and these two.
    let wanted = connection.at_least((last - first) / SLOT);
    outcome.ours(
        &format!("VC {number}"),
        json!({
            "contract": contract, "packets": times.len(), "at least": wanted, "judged": judged,
            "early": early,
        }),
    );
    anyhow::ensure!(
        judged == times.len() as u64,
        "VC {number}: {judged} of {} packets were judged",
        times.len()
    );
    Ok((early, wanted.saturating_sub(times.len() as u64)))
}

/// Figure 4: transient overload of an overbooked link, proportional sharing and priorities. One
/// slot of the paper is a hundred slots here (25 in the quick form). Fails if the subject is not
/// netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure4(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let scale = if context.quick { 25 } else { 100 };
    let (record, began) = overload(None, scale, outcome)?;
    // Percent of the link between two of the paper's slots.
    let share = |record: &Record, began: u64, number: u16, from: u64, until: u64| {
        let at = |slot: u64| began + slot * scale * SLOT;
        let times = record.times(from_port(port(number)));
        let packets = bins(&times, at(from), at(until), at(until) - at(from))[0];
        packets / ((until - from) * scale) as f64 * 100.0
    };
    let most = |full: f64| if context.quick { 5.0 } else { full };
    let check = OverloadCheck {
        spans: [(5, 200), (205, 250), (255, 300), (305, 400), (405, 600)],
        settled: 440,
        ratio: most(2.0),
        slope: most(1.0),
        afterwards: context.tolerance(0.01),
    };
    check.run(outcome, |vc, from, until| {
        share(&record, began, vc, from, until)
    });
    let (kept, from) = overload(Rate::new(LINK / 20), scale, outcome)?;
    let least = share(&kept, from, 2, 210, 400);
    let what = "VC 2 in the overload with a minimum of 5 %";
    outcome.check(what, least, "%", Bound::AtLeast(4.95));
    outcome.plot(context, "cell-fig4", || {
        let chart = Chart::new(
            "CELL, figure 4",
            format!("slot of 120 us, {scale} for each of the paper's"),
            "packets",
        );
        let names: Vec<(String, u16)> = (1..=6)
            .map(|number| (format!("VC {number}"), port(number)))
            .collect();
        steps(chart, &record, &names, began, 600 * scale)
    })
}

/// Runs figure 4; the lowest class may have a minimum. Returns the record and the start of the run.
fn overload(least: Option<Rate>, scale: u64, outcome: &mut Outcome) -> Result<(Record, u64)> {
    let DriverWorld { world, mut setup } = DriverWorld::new(LINK, AHEAD)?;
    let period = Nanos::from_millis(10);
    let mut classes = [Class::default(); CLASSES];
    classes[2].min = least;
    setup.set_server(Slice::new(period, period, false)?, classes)?;
    // Number, percent of the link, class, first slot, end slot.
    let flows = [
        (1, 25, 1, 0, 600),
        (2, 10, 2, 0, 600),
        (3, 20, 0, 0, 600),
        (4, 100, 1, 200, 400),
        (5, 100, 1, 250, 400),
        (6, 100, 1, 300, 400),
    ];
    let mut events = Vec::new();
    for (number, percent, class, from, until) in flows {
        let contract = format!(
            "cell pcr={}bit,cdvt=3ms,class={class}",
            LINK * percent / 100
        );
        let sender = setup.add_short_sender(port(number), &contract)?;
        events.push((from, number, Some(sender)));
        events.push((until, number, None));
    }
    events.sort_by_key(|(slot, number, _)| (*slot, *number));
    let (mode, (tap, _)) = (setup.mode(), DriverWorld::tap(&world)?);
    let running_driver = setup.start(None)?;
    let began = running_driver.began;
    let (mut running_senders, mut ended) = (BTreeMap::new(), Vec::new());
    for (slot, number, sender) in events {
        wait_until(began + slot * scale * SLOT);
        match sender {
            Some(sender) => {
                running_senders.insert(number, sender.start()?);
            }
            // The driver still sends the packets that the sender submitted.
            None => ended.extend(running_senders.remove(&number)),
        }
        for one in ended.drain(..) {
            one.end()?;
        }
    }
    if least.is_none() {
        note_mode(outcome, mode, &running_driver);
    }
    let mut ended_driver = running_driver.end()?;
    let record = tap.stop(&world.server().ns)?;
    validate(
        &record,
        &mut ended_driver,
        &flows.map(|(number, ..)| port(number)),
    )?;
    Ok((record, began))
}

/// Packets against slots, one line for each connection.
fn steps(chart: Chart, record: &Record, names: &[(String, u16)], begin: u64, slots: u64) -> String {
    let line = |(number, (name, port)): (usize, &(String, u16))| {
        let times = record.times(from_port(*port));
        let mine = times.into_iter().filter(|at| *at < begin + slots * SLOT);
        let points = (1..).zip(mine).map(|(count, at)| {
            (
                at.saturating_sub(begin) as f64 / SLOT as f64,
                f64::from(count),
            )
        });
        let colour = palette::SERIES[number % palette::SERIES.len()];
        Series::new(name, colour, points.collect())
    };
    let series = names.iter().enumerate().map(line);
    series.fold(chart, Chart::with).svg()
}

fn port(number: u16) -> u16 {
    5000 + number
}

/// Rate of the link in bit/s.
const LINK: u64 = 100_000_000;
/// Bytes of a packet.
const PACKET: u64 = 1500;
/// A packet's time on the link, in ns.
const SLOT: u64 = 120_000;
/// The scheduler decides on the next packet this long before the link is free.
const AHEAD: Nanos = Nanos::from_micros(250);
