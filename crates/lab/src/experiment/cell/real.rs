//! Repeats figures 3 and 4 of the paper CELL on real packets, with the driver. In place of a cell
//! there is a packet of 1500 bytes, and a slot is its time on a link of 100 Mbit/s: 120 us. The
//! policer of figure 3 is `netnice check`, which reads a capture of the packets that arrived. Both
//! figures run through netniced and netnice-driver, with programs as processes
//! ([`super::super::front_door`]). An experiment fails if the tap at the receiver lost a packet, if
//! the driver refused a packet, or if a connection of figure 3 sent nothing.
//!
//! Figure 4 uses the classes of a link (`netnice link IFACE --class N --overbook`): a connection's
//! priority is its class, and the classes share a slice of the link, since the kernel's classes
//! keep a part of it. A connection starts when its process begins to send, and ends with its
//! process.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a step of the measurement fails, or if a plot cannot be written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::super::bench::{netnice_only, wait_until};
use super::super::front_door::{DriverStops, FrontDoor, check_verdict, note};
use super::super::sent_packets::{bins, check_conformance, from_port, missing_on_the_wire, tap};
use super::super::{Bound, Context, Outcome};
use super::{
    Connection, FIGURE_3, OverloadCheck, TOLERANCE, WITH_MINIMUM, bursts, check_bursts,
    connections, growing, names,
};
use crate::alibi::{Alibi, Verdict};
use crate::plot::{Chart, Series};
use crate::sys;
use crate::traffic::Running;
use crate::wire::Record;

/// Figure 3: ten connections, each shaped so that a policer at the receiver finds no packet early.
/// Also checks that a connection loses at most one packet to conflicts that no stop excuses, and
/// that at least 99 % of the bursts of a dual bucket are whole (90 % in the quick form). Fails if
/// the subject is not netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure3(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let slots: u64 = if context.quick { 20_000 } else { 250_000 };
    let connections = connections();
    let (front, record, file, stops) = send_shaped(outcome, &connections, slots)?;
    outcome.paper = json!(FIGURE_3);
    let (mut wrong, mut missing) = (0, 0);
    let (mut lost, mut rows) = (Verdict::default(), Vec::new());
    // The link is also busy while time is stolen: then less is caught up.
    let stolen = context.allowed(front.stolen());
    let alibi = stops.alibi((USED + stolen).min(1.0));
    for (number, one) in (0..).zip(&connections) {
        let policed = police(&record, &file, number, one)?;
        wrong += policed.early;
        missing += missing_on_the_wire(&file, port(number))?;
        let short = policed.wanted.saturating_sub(policed.packets);
        let verdict = excuse_lost(&record, number, one, short, &alibi);
        rows.push(policed.row(number, one, verdict));
        lost += verdict;
    }
    outcome.ours("connections", rows);
    outcome.note(
        "`least by its contract` is what a connection sends if nothing ever delays it: a conflict \
         may cost it one packet, and a stop of the driver that is too long for half of its \
         tolerance (CDVT) of 4.8 ms what it would have sent in that time",
    );
    let what = "packets that netnice check finds early, of all connections";
    outcome.check(what, wrong as f64, "packets", Bound::AtMost(0.0));
    let what = "packets that were sent and did not arrive";
    outcome.check(what, missing as f64, "packets", Bound::AtMost(0.0));
    // A delay gives no credit: stops that make a connection late by more than the tolerance cost
    // packets.
    let what = "packets beyond one that a connection lost to conflicts, sum of all";
    check_verdict(outcome, what, lost);
    let least = if context.quick { 90.0 } else { 99.0 };
    let mut rows = Vec::new();
    for (number, one) in (0_u16..).zip(&connections) {
        if let Some(cells) = one.dual_burst() {
            let times = record.times(from_port(port(number)));
            let lengths = bursts(&times, (one.peak + TOLERANCE) * SLOT);
            let number = number.into();
            check_bursts(
                outcome, &mut rows, number, cells, &lengths, "packets", least,
            );
        }
    }
    outcome.ours("bursts of dual buckets", rows);
    outcome.plot(context, "cell-fig3", || {
        let title = "Packets of ten shaped connections, first 400 slots";
        let chart = Chart::new(title, "slot of 120 us", "packets sent");
        let begin = record.packets().first().map_or(0, |one| one.at_ns);
        let names: Vec<(String, u16)> = names(&connections).into_iter().zip(port(0)..).collect();
        steps(chart.x_range(0.0, 400.0), &record, &names, begin, 400)
    })
}

/// Lets each connection send from its slot on until `slots` are over. Returns the world, whose
/// folder has the capture, the record, the capture's path, and the stops of the driver.
fn send_shaped(
    outcome: &mut Outcome,
    connections: &[Connection],
    slots: u64,
) -> Result<(FrontDoor, Record, PathBuf, DriverStops)> {
    let front = FrontDoor::new("100mbit")?;
    let senders: Result<Vec<Running>> = (0..)
        .zip(connections)
        .map(|(number, one)| front.sender(port(number), &one.contract(LINK, PACKET)))
        .collect();
    let mut senders = senders?;
    let (tap, file) = tap(&front.world)?;
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
    note(outcome, &stops.stops);
    let record = tap.stop(&front.world.server().ns)?;
    record.validate()?;
    for sender in senders {
        stop(Some(sender))?;
    }
    Ok((front, record, file, stops))
}

/// Judges the packets that a connection lost beyond one, `short` in all. Stops cost packets if they
/// make a connection late by more than half of the tolerance: as many as it sends in that time.
fn excuse_lost(
    record: &Record,
    number: u16,
    one: &Connection,
    short: u64,
    alibi: &Alibi,
) -> Verdict {
    let times = record.times(from_port(port(number)));
    let (from, until) = (times.first().copied(), times.last().copied());
    let beyond = short.saturating_sub(1);
    let (from, until) = (from.unwrap_or_default(), until.unwrap_or_default());
    let lost = alibi.forfeited(from, until, TOLERANCE * SLOT / 2);
    Verdict::of_missing(beyond, lost, one.sustained() * SLOT)
}

/// The packets of a connection of figure 3, compared with its contract.
struct Policed {
    /// Packets that arrived. `netnice check` judged all of them.
    packets: u64,
    /// The packets that the contract allows between the first packet and the last, and these two.
    wanted: u64,
    /// Packets that `netnice check` finds early.
    early: u64,
}

impl Policed {
    /// The row of the table, with what stops excuse of the missing packets beyond one.
    fn row(&self, number: u16, connection: &Connection, lost: Verdict) -> Value {
        let missing = self.wanted.saturating_sub(self.packets);
        json!({
            "VC": number, "kind": connection.kind(),
            "contract": connection.contract(LINK, PACKET), "start, slot": connection.start,
            "received, packets": self.packets, "least by its contract, packets": self.wanted,
            "missing, packets": missing, "of these by conflicts, at most one": missing.min(1),
            "of these excused by stops": lost.excused, "of these not excused": lost.unexcused,
            "early, packets": self.early,
        })
    }
}

/// Compares a connection's packets with its contract. Fails if it sent nothing, or if
/// `netnice check` did not judge each packet.
fn police(record: &Record, file: &Path, number: u16, connection: &Connection) -> Result<Policed> {
    let contract = connection.contract(LINK, PACKET);
    let option = contract.trim_start_matches("cell ");
    let (judged, early) = check_conformance(file, &["--cell", option], port(number))?;
    let times = record.times(from_port(port(number)));
    let (Some(first), Some(last)) = (times.first(), times.last()) else {
        anyhow::bail!("VC {number} sent nothing");
    };
    let wanted = connection.at_least((last - first) / SLOT);
    let packets = times.len() as u64;
    anyhow::ensure!(
        judged == packets,
        "VC {number}: {judged} of {packets} packets were judged"
    );
    Ok(Policed {
        packets,
        wanted,
        early,
    })
}

/// Figure 4: transient overload of an overbooked link, proportional sharing and priorities. One
/// slot of the paper is a hundred slots here (50 in the quick form). Fails if the subject is not
/// netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure4(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let scale = if context.quick { 50 } else { 100 };
    let first = overload("", scale)?;
    note(outcome, &first.stops.stops);
    let most = |full: f64| if context.quick { 5.0 } else { full };
    // The share of stolen time is that of the run, and the spans of a quick one are short.
    let stolen = context.allowed(first.stolen);
    let check = OverloadCheck {
        spans: [(5, 200), (205, 250), (255, 300), (305, 400), (405, 600)],
        settled: 440,
        ratio: most(2.0) + 100.0 * stolen,
        slope: most(1.0) + 100.0 * stolen,
        afterwards: context.tolerance(0.01) + stolen,
        slice: SLICE_PERCENT,
    };
    check.run(
        outcome,
        |vc, from, until| first.share(vc, from, until),
        |from, until| first.stopped(from, until),
    );
    let second = overload("--min 5mbit", scale)?;
    let kept = second.share(2, 210, 400);
    outcome.ours(
        "VC 2 in the overload with a minimum of 5 %, % of the link",
        kept,
    );
    let least = context.with_stolen(kept, 5.0, second.stolen);
    outcome.check(WITH_MINIMUM, least, "%", Bound::AtLeast(4.95));
    outcome.note(
        "the classes divide a slice of 9 ms in each 10 ms, 90 % of the link; a slice takes nothing \
         of the rest, which is for traffic outside of the classes and idle here: so VC 2 starves \
         while a tenth of the link is free",
    );
    let missing = first.missing + second.missing;
    let what = "packets that were sent and did not arrive";
    outcome.check(what, missing as f64, "packets", Bound::AtMost(0.0));
    outcome.plot(context, "cell-fig4", || {
        let title = "Overload between slots 200 and 400 of the paper";
        let x = format!("slot of 120 us, {scale} for each of the paper's");
        let chart = Chart::new(title, x, "packets sent");
        let names: Vec<(String, u16)> = (1..=6)
            .map(|number| (format!("VC {number}"), port(number)))
            .collect();
        steps(chart, &first.record, &names, first.began, 600 * scale)
    })
}

/// A run of figure 4.
struct OverloadRun {
    record: Record,
    /// The first slot (wall clock, ns).
    began: u64,
    /// Slots for each of the paper's.
    scale: u64,
    stops: DriverStops,
    /// The part of the time that was stolen from the processors.
    stolen: f64,
    /// Packets that were sent and did not arrive.
    missing: u64,
}

impl OverloadRun {
    /// The begin of one of the paper's slots (wall clock, ns).
    fn at(&self, slot: u64) -> u64 {
        self.began + slot * self.scale * SLOT
    }

    /// The time from one of the paper's slots to another (wall clock, ns). A process takes some
    /// time to start and to end, so the time begins no earlier than five slots after the first
    /// packet of each connection that starts by `from`, and the last packet of each that ends by
    /// then.
    fn span(&self, from: u64, until: u64) -> (u64, u64) {
        let mut begin = self.at(from);
        for (number, _, _, start, end) in FLOWS {
            let times = self.record.times(from_port(port(number)));
            let first = times.first().filter(|_| start <= from);
            let last = times.last().filter(|_| end <= from);
            for change in first.into_iter().chain(last) {
                begin = begin.max(change + 5 * self.scale * SLOT);
            }
        }
        (begin, self.at(until).max(begin + SLOT))
    }

    /// The percent of the link that a connection got between two of the paper's slots.
    fn share(&self, number: u16, from: u64, until: u64) -> f64 {
        let times = self.record.times(from_port(port(number)));
        let (from, until) = self.span(from, until);
        let packets = bins(&times, from, until, until - from)[0];
        packets / ((until - from) as f64 / SLOT as f64) * 100.0
    }

    /// The part of the time between two of the paper's slots that stops of the driver took which
    /// are too long for the tolerance of a connection.
    fn stopped(&self, from: u64, until: u64) -> f64 {
        let alibi = self.stops.alibi(0.0).without_short(TOLERANCE * SLOT / 2);
        let (from, until) = self.span(from, until);
        alibi.stopped(from, until) as f64 / (until - from) as f64
    }
}

/// Runs figure 4. The connections are in three overbooked classes of a server with most of the
/// link; `lowest` has more options for the lowest class.
fn overload(lowest: &str, scale: u64) -> Result<OverloadRun> {
    let front = FrontDoor::new("100mbit")?;
    let device = &front.world.client().port().device;
    let classes = [
        format!("--class 0 --server {SERVER}"),
        "--class 1".to_owned(),
        format!("--class 2 {lowest}"),
    ];
    for class in classes {
        let line = format!("link {device} {class} --overbook");
        front.netnice.run_line(&line)?;
    }
    let mut senders = BTreeMap::new();
    let mut events = Vec::new();
    for (number, percent, class, from, until) in FLOWS {
        let rate = LINK * percent / 100;
        let contract = format!("cell pcr={rate}bit,cdvt=5ms,class={class}");
        senders.insert(number, front.sender(port(number), &contract)?);
        events.push((from, number, true));
        events.push((until, number, false));
    }
    events.sort_unstable_by_key(|(slot, number, _)| (*slot, *number));
    let (tap, file) = tap(&front.world)?;
    let began = sys::now_ns();
    let mut last = Vec::new();
    for (slot, number, starts) in events {
        wait_until(began + slot * scale * SLOT);
        let sender = senders.get_mut(&number).context("a sender")?;
        match (starts, slot) {
            (true, _) => drop(sender.go()?),
            // They send until the end of the record.
            (false, END) => last.extend(senders.remove(&number)),
            (false, _) => stop(senders.remove(&number))?,
        }
    }
    let (stops, stolen) = (front.stops()?, front.stolen());
    let record = tap.stop(&front.world.server().ns)?;
    record.validate()?;
    for sender in last {
        stop(Some(sender))?;
    }
    let numbers = FLOWS.iter().map(|(number, ..)| port(*number));
    let missing: Result<Vec<u64>> = numbers
        .map(|port| missing_on_the_wire(&file, port))
        .collect();
    Ok(OverloadRun {
        record,
        began,
        scale,
        stops,
        stolen,
        missing: missing?.iter().sum(),
    })
}

/// Ends a sender. Fails if the driver refused one of its packets.
fn stop(sender: Option<Running>) -> Result<()> {
    let report = sender.context("a sender ends once")?.stop()?;
    anyhow::ensure!(report.refused.is_empty(), "{:?}", report.refused);
    Ok(())
}

/// Packets against slots, one line for each connection.
fn steps(chart: Chart, record: &Record, names: &[(String, u16)], begin: u64, slots: u64) -> String {
    let line = |(number, (name, port)): (usize, &(String, u16))| {
        let times = record.times(from_port(*port)).into_iter();
        let slots_of = times.map(|at| at.saturating_sub(begin) as f64 / SLOT as f64);
        Series::numbered(number, name, growing(slots_of, slots))
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
/// The part of the link that the connections of figure 3 use while VC 0 sends a burst.
const USED: f64 = 0.87;
/// The slice of the link that the classes of figure 4 divide. The kernel's classes keep a part.
const SERVER: &str = "9ms/10ms";
/// The same in percent of the link.
const SLICE_PERCENT: f64 = 90.0;
/// The last of the paper's slots in figure 4.
const END: u64 = 600;
/// The connections of figure 4: number, percent of the link, class, first slot, end slot.
const FLOWS: [(u16, u64, u8, u64, u64); 6] = [
    (1, 25, 1, 0, END),
    (2, 10, 2, 0, END),
    (3, 20, 0, 0, END),
    (4, 100, 1, 200, 400),
    (5, 100, 1, 250, 400),
    (6, 100, 1, 300, 400),
];
