//! Repeats figures 5 to 7 of the paper RTC on packets, through what is shipped: netniced with a
//! reservation of processor time, netnice-driver, and programs with `netnice-channel` on two hosts.
//!
//! The channels are those of the simulation. In figures 5 and 6 they have longer deadlines, for the
//! handlers run on a reservation (8.5 ms of the program's 9.5 ms in 10 ms: nearly a whole
//! processor, as the paper's have) that may give its time late. A stage computes for the processing
//! time of the paper's table 1 (420 us for the first packet of a message and 170 us for a later
//! one, with 160 us to schedule each on the link); the paper emulated its adapter likewise. Those
//! packets have 4 KiB. Packets of direct flows have 1,440 bytes here, so each takes 115 us and the
//! first one 250 us more, and 12 packets lie between two preemption points, not 4. The processor is
//! the bottleneck, as in the paper.
//!
//! A message is late if the driver gave its last packet to the NIC after its deadline. A late
//! message is excused only by recorded stops between its logical arrival and then: of the driver,
//! or of the thread of the handlers ([`crate::alibi`]). The laxity is the time from the departure
//! to the deadline.
//!
//! A thread that sends can run late: when it sends the next message at its time, that one comes too
//! soon after the one before, and its queue can be full of messages whose processing is not due
//! ([`SentChannel::too_soon`]). Such messages are counted apart from those that netnice drops.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if admission refuses the channels, or if a step of the measurement fails.

mod plan;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use netnice_core::stops::Stop;
use serde_json::json;

use self::plan::{
    BEST_EFFORT, BLOCK, CHANNELS, COMPUTES_NS, EARLY, EARLY_QUEUE, HORIZON_NS, LONG_BLOCK,
    LONG_BLOCK_EARLY, LONG_MESSAGE, LOWER_LOADS, MESSAGE, MOST_LOAD, MOST_QUEUED, PACKET_BYTES,
    PROMISED, QUEUE, RESERVED, SENT, SENT_EARLY, SWEEP_NS, SWEEPS, TIGHT, TOGETHER, plan, plan_of,
    tight_plan,
};
use super::super::simulated::netnice_only;
use super::figures::{self, Run};
use super::results::{self, FlowResult, OnPackets};
use super::{
    LOAD, LOADS, NAMES, OWN_CONTRACTS, judge_best_effort, judge_channel_0, judge_mean_laxity,
    plot_figure6, table_by_factor, table_by_load,
};
use crate::alibi::{self, Alibi, Verdict};
use crate::experiment::{Bound, Context, Outcome, front_door};
use crate::plot::palette;
use crate::traffic::{
    ChannelPlan, ChannelProgram, Messages, PlannedChannel, ReceivedChannel, SendPlan, SentChannel,
};
use crate::world::{Host, Netnice, Pair, World};

/// Figure 5: best effort offers more and more, and the channels keep to their contracts. No message
/// may be late without an excuse, no message of a channel that came in time may be dropped, none
/// may be lost, and the mean laxity of a channel may change by at most 5 %. Best effort must get
/// 98 % of what it offers until it saturates, and afterwards 95 % of its highest rate. Fails as the
/// module says.
pub fn figure5(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!({
        "real time": "throughput flat, no misses, least laxity not negative, mean laxity flat",
        "best effort": "linear, then saturates, declining slightly",
    });
    let hosts = Hosts::new("160mbit")?;
    let mut ends = hosts.start(&plan(BLOCK))?;
    let loads = LOADS
        .iter()
        .copied()
        .step_by(if context.quick { 3 } else { 1 });
    let sends = Sends::new(&SENT, &SWEEPS, context);
    let mut rows = Vec::new();
    for offered in loads {
        context.say(format!("best effort of {offered} kB/s"));
        rows.push((
            offered as f64,
            run(&hosts, &mut ends, &sends, (offered, 1))?,
        ));
    }
    let runs: Vec<Run> = rows.iter().map(|(at, row)| (*at, row.results())).collect();
    let rest = (BLOCK.to_string(), "160 Mbit/s");
    let best_effort = (MESSAGE as u64, QUEUE.to_string());
    set_up(outcome, &CHANNELS, rest, best_effort)?;
    outcome.ours("results", table_by_load(&runs));
    judge(outcome, rows.iter().map(|(_, row)| row), 0);
    judge_mean_laxity(outcome, &runs);
    judge_best_effort(outcome, &runs)?;
    hosts.note(outcome, RESERVED)?;
    outcome.plot(context, "rtc-fig5", || {
        let title = "Channels keep their throughput, best effort saturates (on packets)";
        figures::throughput(title, figures::BEST_EFFORT_LOAD, &runs).svg()
    })?;
    let deadlines = results::deadlines(CHANNELS)?;
    outcome.plot(context, "rtc-fig5-laxity", || {
        let title = "Laxity of messages beside rising best effort (on packets)";
        figures::laxity(title, &runs, deadlines).svg()
    })
}

/// Figure 6: channel 0 sends at 1 to 6 times its contract's rate (`rmax`), beside best effort of
/// 1,900 kB/s as in the paper. Of messages that came in time only those of channel 0 may be
/// dropped, and only above its contract's rate; at 6 times the rate some must be. No message may be
/// late without an excuse. Fails as the module says.
pub fn figure6(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!("only channel 0 overflows; even what of it conforms meets its deadlines");
    let hosts = Hosts::new("160mbit")?;
    let mut ends = hosts.start(&plan(BLOCK))?;
    let sends = Sends::new(&SENT, &SWEEPS, context);
    let mut rows = Vec::new();
    for factor in 1..=6_u64 {
        context.say(format!("channel 0 at {factor} times its rate"));
        let row = run(&hosts, &mut ends, &sends, (1_900, factor))?;
        rows.push((super::channel_0_load(factor), row));
    }
    let runs: Vec<Run> = rows.iter().map(|(at, row)| (*at, row.results())).collect();
    let rest = (BLOCK.to_string(), "160 Mbit/s");
    let best_effort = (MESSAGE as u64, QUEUE.to_string());
    set_up(outcome, &CHANNELS, rest, best_effort)?;
    outcome.ours("results", table_by_factor(&runs));
    judge(outcome, rows.iter().map(|(_, row)| row), 1);
    judge_channel_0(outcome, &runs);
    hosts.note(outcome, RESERVED)?;
    plot_figure6(context, outcome, "rtc-fig6", "on packets", &runs)
}

/// Figure 7a: the processing of best effort is not interrupted within a message, for three lengths
/// of its queue. Messages of the channels must be late then, at each length, and none without an
/// excuse when a message can be interrupted after 12 packets. With the longest queue, best effort
/// also offers less, and the same must hold at each of these loads. Fails as the module says.
pub fn figure7a(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!("misses and drops appear without preemption within best effort");
    let hosts = Hosts::new("1gbit")?;
    let sends = Sends::new(&SENT, &TOGETHER, context);
    let mut rows = Vec::new();
    let mut sweeps = Vec::new();
    for (block, queue) in [
        (LONG_BLOCK, 2),
        (LONG_BLOCK, 8),
        (LONG_BLOCK, MOST_QUEUED),
        (BLOCK, MOST_QUEUED),
    ] {
        context.say(format!(
            "blocks of {block} packets, a queue of {queue} messages"
        ));
        let mut plan = tight_plan(block, &TIGHT);
        plan.channels[BEST_EFFORT].best_effort = (LONG_MESSAGE, queue);
        let mut ends = hosts.start(&plan)?;
        let row = run(&hosts, &mut ends, &sends, (MOST_LOAD, 1))?;
        rows.push((block, queue, row));
        if queue == MOST_QUEUED {
            sweeps.push((block, sweep(context, &hosts, &mut ends)?));
        }
    }
    let blocks = format!("{LONG_BLOCK} (a message is not interrupted), or {BLOCK}");
    let queues = format!("2, 8 or {MOST_QUEUED}");
    set_up(
        outcome,
        &TIGHT,
        (blocks, "1 Gbit/s"),
        (LONG_MESSAGE, queues),
    )?;
    let columns = |(block, queue, load): (u32, u32, u64), row: &Row| {
        let case = json!({
            "P, packets": block, "queue of best effort, messages": queue, LOAD: load,
            "run, s": row.lasts,
        });
        (case, row.results())
    };
    let mut all: Vec<_> = (rows.iter())
        .map(|(block, queue, row)| columns((*block, *queue, MOST_LOAD), row))
        .collect();
    for (block, loads) in &sweeps {
        let of_sweep = |(load, row): &(u64, Row)| columns((*block, MOST_QUEUED, *load), row);
        all.extend(loads.iter().map(of_sweep));
    }
    outcome.ours("results", results::table(all));
    let mut late = Vec::new();
    for (block, queue, row) in &rows {
        let case = format!("P = {block}, queue of {queue} messages, {MOST_LOAD} kB/s offered");
        row.judge_late(outcome, &case, *block == LONG_BLOCK);
        late.push(results::late_row(&case, row.verdict, row.messages()));
    }
    for (block, loads) in &sweeps {
        judge_sweep(outcome, *block, loads);
    }
    outcome.ours("late messages", late);
    hosts.note(outcome, "no reservation")?;
    plot_figure7a(context, outcome, &rows, &sweeps)
}

/// Best effort offers less than [`MOST_LOAD`].
fn sweep(context: &Context, hosts: &Hosts, ends: &mut Ends) -> Result<Vec<(u64, Row)>> {
    let lasts_s = if context.quick { 2 } else { 12 };
    let sends = Sends {
        lasts_s,
        ..Sends::new(&SENT, &TOGETHER, context)
    };
    let loads = LOWER_LOADS
        .into_iter()
        .step_by(if context.quick { 2 } else { 1 });
    let mut rows = Vec::new();
    for load in loads {
        context.say(format!("best effort of {load} kB/s"));
        rows.push((load, run(hosts, ends, &sends, (load, 1))?));
    }
    Ok(rows)
}

/// Checks that messages are late at each load without preemption points, and at none with them.
fn judge_sweep(outcome: &mut Outcome, block: u32, rows: &[(u64, Row)]) {
    let of_queue = format!("P = {block}, queue of {MOST_QUEUED} messages");
    if block == LONG_BLOCK {
        let late = rows.iter().map(|(_, row)| row.verdict.unexcused);
        let fewest = late.min().unwrap_or(0) as f64;
        let what = format!(
            "control: messages late, not excused by a stop, fewest of the lower loads: {of_queue}"
        );
        return outcome.check(what, fewest, "messages", Bound::AtLeast(1.0));
    }
    let mut verdict = Verdict::default();
    rows.iter().for_each(|(_, row)| verdict += row.verdict);
    let messages = rows.iter().map(|(_, row)| row.messages()).sum();
    let what = format!("messages late at all lower loads: {of_queue}");
    results::check_late(outcome, &what, verdict, messages);
}

/// Draws late and dropped messages against the load of best effort, with the longest queue.
fn plot_figure7a(
    context: &Context,
    outcome: &mut Outcome,
    rows: &[(u32, u32, Row)],
    sweeps: &[(u32, Vec<(u64, Row)>)],
) -> Result<()> {
    let runs = |block: u32| -> Vec<Run> {
        let lower = sweeps.iter().filter(|(of, _)| *of == block);
        let lower = lower.flat_map(|(_, rows)| rows);
        let mut runs: Vec<Run> = lower
            .map(|(load, row)| (*load as f64, row.results()))
            .collect();
        let is_last = |row: &&(u32, u32, Row)| row.0 == block && row.1 == MOST_QUEUED;
        let last = rows.iter().filter(is_last);
        runs.extend(last.map(|(.., row)| (MOST_LOAD as f64, row.results())));
        runs
    };
    let (without, with) = (runs(LONG_BLOCK), runs(BLOCK));
    outcome.plot(context, "rtc-fig7a", || {
        let title = "Late messages with and without preemption points (on packets)";
        let late = figures::late_part as fn(&[FlowResult]) -> f64;
        let lines = [
            ("without (P = 72)", palette::RED, &without[..], late),
            ("with (P = 12)", palette::BLUE, &with[..], late),
        ];
        figures::percent(
            title,
            "late messages of the channels, % (excused ones too)",
            &lines,
        )
        .svg()
    })?;
    outcome.plot(context, "rtc-fig7a-dropped", || {
        let title = "Dropped messages with and without preemption points (on packets)";
        let best = figures::dropped_of_best_effort as fn(&[FlowResult]) -> f64;
        let channels = figures::dropped_of_channels as fn(&[FlowResult]) -> f64;
        let lines = [
            ("best effort, P = 72", palette::RED, &without[..], best),
            ("best effort, P = 12", palette::BLUE, &with[..], best),
            ("channels, P = 72", palette::ORANGE, &without[..], channels),
            ("channels, P = 12", palette::GREEN, &with[..], channels),
        ];
        figures::percent(title, "dropped messages, % of those offered", &lines).svg()
    })
}

/// A case of figure 7b.
#[derive(Clone, Copy)]
struct Case {
    block: u32,
    early_first: bool,
    /// With the longer deadlines that admission grants on a reservation.
    promised: bool,
}

impl Case {
    /// For checks and tables.
    fn name(self) -> String {
        let order = if self.early_first { "before" } else { "after" };
        let rest = match self.promised {
            true => "deadlines of 70 to 80 ms, 7 ms of every 10 ms reserved",
            false => "deadlines of 8 to 25 ms, no reservation",
        };
        format!(
            "P = {}, early messages {order} best effort, {rest}",
            self.block
        )
    }

    /// For the axis of a chart.
    fn short_name(self) -> String {
        let order = if self.early_first { "before" } else { "after" };
        let deadlines = if self.promised { "70-80" } else { "8-25" };
        format!("{}, {order}, {deadlines} ms", self.block)
    }

    fn plan(self) -> ChannelPlan {
        let mut plan = tight_plan(self.block, &EARLY);
        if self.promised {
            plan = plan_of(self.block, &PROMISED);
            // No more fits beside what the driver has needed in the cases before.
            plan.reservation = Some(("8ms/10ms".to_owned(), 7_000_000));
        }
        plan.horizon_ns = HORIZON_NS;
        plan.early_before_best_effort = self.early_first;
        plan.channels[BEST_EFFORT].best_effort = (MESSAGE as u64, EARLY_QUEUE);
        plan
    }
}

/// Figure 7b: messages are not interrupted, and early ones are processed before best effort; then
/// with preemption points only, and then as netnice does it: early messages after best effort. In
/// the first case messages of the channels must be late, and none without an excuse in the others.
/// With these deadlines admission refuses the channels, so the last case is repeated with a
/// reservation and deadlines that it grants. In the third case best effort must lose fewer messages
/// than in the first. Fails as the module says.
pub fn figure7b(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!(
        "misses and drops appear, and best effort gets less, when early messages come before it and \
         preemption is possible at message boundaries only"
    );
    let hosts = Hosts::new("1gbit")?;
    let sends = Sends::new(&SENT_EARLY, &TOGETHER, context);
    let blocks = format!("{LONG_BLOCK_EARLY} (no message is interrupted), or {BLOCK}");
    let best_effort = (MESSAGE as u64, EARLY_QUEUE.to_string());
    set_up(outcome, &EARLY, (blocks, "1 Gbit/s"), best_effort)?;
    let promised = results::contracts(&PROMISED, None)?;
    outcome.ours("contracts of the case with a reservation", promised);
    let (mut cases, mut rows, mut late, mut lost) = (vec![], vec![], vec![], vec![]);
    for (block, early_first, promised) in [
        (LONG_BLOCK_EARLY, true, false),
        (BLOCK, true, false),
        (BLOCK, false, false),
        (BLOCK, false, true),
    ] {
        let case = Case {
            block,
            early_first,
            promised,
        };
        let name = case.name();
        context.say(&name);
        let mut ends = hosts.start(&case.plan())?;
        let row = run(&hosts, &mut ends, &sends, (4_800, 1))?;
        row.judge_late(outcome, &name, block == LONG_BLOCK_EARLY);
        late.push(results::late_row(&name, row.verdict, row.messages()));
        rows.push((json!({"case": name}), row.results()));
        cases.push((case.short_name(), row.results()));
        lost.push(row.sent[BEST_EFFORT].dropped as f64);
    }
    outcome.ours("results", results::table(rows));
    outcome.ours("late messages", late);
    let what = "best-effort messages dropped with P = 12 and early messages after best effort, \
                compared with P = 73 and early messages first";
    let part = lost[2] / lost[0].max(1.0) * 100.0;
    outcome.check(what, part, "%", Bound::AtMost(90.0));
    hosts.note(outcome, "no reservation, but for the last case")?;
    plot_figure7b(context, outcome, &cases)
}

/// Draws the late messages of each case, and what best effort gets and loses.
fn plot_figure7b(
    context: &Context,
    outcome: &mut Outcome,
    cases: &[(String, Vec<FlowResult>)],
) -> Result<()> {
    let x = "P in packets; early messages before or after best effort; deadlines";
    outcome.plot(context, "rtc-fig7b", || {
        figures::late_of_cases("Late messages of the channels in four cases", x, cases).svg()
    })?;
    outcome.plot(context, "rtc-fig7b-best-effort", || {
        let title = "Throughput of best effort in four cases (4,800 kB/s offered)";
        let axes = (x, "throughput of best effort, kB/s");
        figures::best_effort_of_cases(title, axes, cases, |flow| flow.throughput).svg()
    })?;
    outcome.plot(context, "rtc-fig7b-dropped", || {
        let title = "Best-effort messages dropped in four cases";
        let axes = (x, "messages dropped in the run");
        let dropped = |flow: &FlowResult| flow.dropped as f64;
        figures::best_effort_of_cases(title, axes, cases, dropped).svg()
    })
}

/// The hosts, with netnice on both.
pub(super) struct Hosts {
    // The daemons end before the world.
    client: Netnice,
    server: Netnice,
    world: World,
}

/// Both ends of the channels.
pub(super) struct Ends {
    pub(super) source: ChannelProgram,
    pub(super) sink: ChannelProgram,
    received: Vec<ReceivedChannel>,
    /// The deadlines of the channels; 0 for best effort.
    deadlines_ns: Vec<u64>,
    /// Bytes of a best-effort message.
    best_effort: usize,
}

/// One run.
struct Row {
    lasts: f64,
    sent: Vec<SentChannel>,
    received: Vec<ReceivedChannel>,
    verdict: Verdict,
}

impl Hosts {
    pub(super) fn new(rate: &str) -> Result<Hosts> {
        let world = World::pair(Pair::default())?;
        let start = |host: &str| -> Result<Netnice> {
            let mut netnice = world.netnice(host)?;
            netnice.restart_with(&["--driver-stops"])?;
            netnice
                .run_line(&format!("link eth0 --rate {rate}"))?
                .ok()?;
            Ok(netnice)
        };
        Ok(Hosts {
            client: start("client")?,
            server: start("server")?,
            world,
        })
    }

    /// The client and the server, with a free port of each.
    pub(super) fn ends(&self) -> [(&Host, &Netnice, SocketAddr); 2] {
        let (client, server) = (self.world.client(), self.world.server());
        [
            (client, &self.client, (client.port().v4, SOURCE).into()),
            (server, &self.server, (server.port().v4, SINK).into()),
        ]
    }

    pub(super) fn start(&self, plan: &ChannelPlan) -> Result<Ends> {
        let [(client, ours, from), (server, theirs, at)] = self.ends();
        let sink = ChannelProgram::start(server, theirs.runtime(), (at, None), plan)?;
        let source = ChannelProgram::start(client, ours.runtime(), (from, Some(at)), plan)?;
        let received = vec![ReceivedChannel::default(); plan.channels.len()];
        let best_effort = plan.channels.last().map_or(0, |last| last.best_effort.0) as usize;
        let deadlines = plan.channels.iter().map(PlannedChannel::deadline_ns);
        Ok(Ends {
            source,
            sink,
            received,
            deadlines_ns: deadlines.collect::<Result<_>>()?,
            best_effort,
        })
    }

    /// Adds what the experiment ran through, what processor time the handlers had, and how often
    /// the machine stopped the driver.
    pub(super) fn note(&self, outcome: &mut Outcome, time: &str) -> Result<()> {
        outcome.note(format!(
            "netniced and netnice-driver on two hosts, programs with netnice-channel; the handlers \
             have {time}"
        ));
        front_door::note_stops(outcome, &front_door::stops(&self.client, "eth0")?);
        Ok(())
    }
}

/// What the channels send in a run.
#[derive(Clone, Copy)]
struct Sends {
    /// As [`SENT`].
    channels: &'static [(usize, u64, u64); 3],
    /// As [`SWEEPS`].
    sweeps: &'static [u64; 3],
    lasts_s: u64,
}

impl Sends {
    /// For the usual time.
    fn new(
        channels: &'static [(usize, u64, u64); 3],
        sweeps: &'static [u64; 3],
        context: &Context,
    ) -> Sends {
        Sends {
            channels,
            sweeps,
            lasts_s: if context.quick { 4 } else { 40 },
        }
    }
}

/// Sends for some seconds, with best effort of so many kB/s, and channel 0 at `factor` times its
/// rate.
fn run(
    hosts: &Hosts,
    ends: &mut Ends,
    sends: &Sends,
    (best_effort, factor): (u64, u64),
) -> Result<Row> {
    let lasts_ns = sends.lasts_s * 1_000_000_000;
    let group = |(number, (size, count, rate)): (usize, (usize, u64, u64))| {
        let every_ns = count * 1_000_000_000 / rate;
        let later_ns = every_ns * sends.sweeps[number] * SWEEP_NS / lasts_ns;
        Messages {
            size,
            count,
            every_ns: (every_ns + later_ns) / if number == 0 { factor } else { 1 },
            first_ns: number as u64 * 1_000_000,
            waits: false,
        }
    };
    let of_channels = sends.channels.iter().copied().enumerate();
    let mut channels: Vec<Messages> = of_channels.map(group).collect();
    channels.push(Messages {
        size: ends.best_effort,
        count: 1,
        every_ns: ends.best_effort as u64 * 1_000_000 / best_effort,
        first_ns: 0,
        waits: false,
    });
    let plan = SendPlan { lasts_ns, channels };
    let (sent, stops) = ends.source.run(&plan)?;
    std::thread::sleep(Duration::from_millis(300));
    let (all, _) = ends.sink.counts()?;
    let received = std::iter::zip(&all, &ends.received).map(|(now, before)| ReceivedChannel {
        messages: now.messages - before.messages,
        wrong: now.wrong - before.wrong,
        packets: now.packets - before.packets,
        lost: now.lost - before.lost,
    });
    let received = received.collect();
    ends.received = all;
    let mut evidence: Vec<Stop> = alibi::parse(&stops.join("\n"))?;
    evidence.extend(front_door::stops(&hosts.client, "eth0")?);
    let alibi = Alibi::new(&evidence, 0, 0.0);
    let messages = std::iter::zip(&sent, &ends.deadlines_ns).take(BEST_EFFORT);
    let messages = messages.flat_map(|(channel, deadline)| {
        let left = channel.left_ns.iter();
        left.map(move |(due, left)| [due - deadline, *due, *left])
    });
    Ok(Row {
        lasts: lasts_ns as f64 / 1e9,
        verdict: alibi.judge_messages(messages),
        sent,
        received,
    })
}

/// Checks what holds in each run: no message is late without an excuse, and those of the channels
/// from number `from` on are neither dropped nor lost.
fn judge<'a>(outcome: &mut Outcome, rows: impl Iterator<Item = &'a Row>, from: usize) {
    let mut verdict = Verdict::default();
    let (mut dropped, mut too_soon, mut lost, mut least, mut messages) = (0, 0, 0, f64::MAX, 0);
    let mut packets = Vec::new();
    for row in rows {
        verdict += row.verdict;
        messages += row.messages();
        packets.push(row.received.iter().map(|flow| flow.packets).sum::<u64>());
        let channels = std::iter::zip(&row.sent, &row.received).take(BEST_EFFORT);
        for (number, (sent, received)) in channels.enumerate() {
            if number >= from {
                dropped += sent.dropped - sent.too_soon;
                too_soon += sent.too_soon;
            }
            lost += sent.accepted.abs_diff(received.messages) + received.wrong + sent.unsent;
            least = least.min(row.least_laxity(number));
        }
    }
    results::check_late(outcome, "messages late", verdict, messages);
    let of = match from {
        0 => "of the channels",
        _ => "of channels 1 and 2",
    };
    let what = format!("messages {of} dropped by netnice (those sent too soon are not counted)");
    outcome.check(what, dropped as f64, "messages", Bound::AtMost(0.0));
    let what = "accepted messages of the channels, lost or wrong at the sink";
    outcome.check(what, lost as f64, "messages", Bound::AtMost(0.0));
    let mut all = results::late(verdict, messages);
    all[format!("{of}: refused because sent too soon")] = too_soon.into();
    outcome.ours("late messages of all runs", all);
    outcome.ours("least laxity of all runs, ms", least);
    let (fewest, most) = (packets.iter().min(), packets.iter().max());
    outcome.ours(
        "packets of all flows in a run",
        json!({"fewest": fewest, "most": most}),
    );
}

/// Adds the contracts of the channels, and the rest of the set-up: P in words, the rate of the
/// link, and the messages and the queue of best effort.
fn set_up(
    outcome: &mut Outcome,
    contracts: &[&str; 3],
    (blocks, link): (String, &str),
    (message, queue): (u64, String),
) -> Result<()> {
    let contracts = results::contracts(contracts, None)?;
    outcome.ours("contracts of the channels", contracts);
    let (first, later) = COMPUTES_NS;
    outcome.ours(
        "set-up",
        json!({
            "packet size with the channel's header, bytes": PACKET_BYTES,
            "P, packets between two preemption points": blocks,
            "processing of the first packet of a message, µs": first as f64 / 1e3,
            "processing of each later packet, µs": later as f64 / 1e3,
            "message size of best effort, bytes": message,
            "queue of best effort, messages": queue,
            "link": link,
        }),
    );
    outcome.note(OWN_CONTRACTS);
    Ok(())
}

impl Row {
    /// The number of messages of the channels that have left.
    fn messages(&self) -> usize {
        let channels = self.sent.iter().take(BEST_EFFORT);
        channels.map(|channel| channel.left_ns.len()).sum()
    }

    /// Checks that messages were late without an excuse, or that none was and few with one.
    fn judge_late(&self, outcome: &mut Outcome, case: &str, must_be_late: bool) {
        if must_be_late {
            let late = self.verdict.unexcused as f64;
            let what = format!("control: messages late, not excused by a stop: {case}");
            return outcome.check(what, late, "messages", Bound::AtLeast(1.0));
        }
        let what = format!("messages late: {case}");
        results::check_late(outcome, &what, self.verdict, self.messages());
    }

    /// kB/s of a channel that left before the end.
    fn rate(&self, number: usize) -> f64 {
        self.sent[number].bytes as f64 / 1e3 / self.lasts
    }

    /// The laxities of a channel's messages in ms.
    fn laxities(&self, number: usize) -> impl Iterator<Item = f64> {
        let times = self.sent[number].left_ns.iter();
        times.map(|(deadline, left)| (*deadline as f64 - *left as f64) / 1e6)
    }

    fn mean_laxity(&self, number: usize) -> f64 {
        self.laxities(number).sum::<f64>() / self.sent[number].left_ns.len() as f64
    }

    fn least_laxity(&self, number: usize) -> f64 {
        self.laxities(number).fold(f64::MAX, f64::min)
    }

    fn results(&self) -> Vec<FlowResult> {
        let flow = |number: usize| {
            let (sent, received) = (&self.sent[number], &self.received[number]);
            let is_real_time = number != BEST_EFFORT;
            let late = || self.laxities(number).filter(|laxity| *laxity < 0.0).count();
            FlowResult {
                name: NAMES.get(number).copied().unwrap_or("best effort"),
                throughput: self.rate(number),
                offered: sent.offered,
                dropped: sent.dropped - sent.too_soon,
                late: is_real_time.then(|| late() as u64),
                least_laxity: is_real_time.then(|| self.least_laxity(number)),
                mean_laxity: is_real_time.then(|| self.mean_laxity(number)),
                on_packets: Some(OnPackets {
                    too_soon: is_real_time.then_some(sent.too_soon),
                    received: received.messages,
                    offered_late: sent.offered_late_ns as f64 / 1e6,
                }),
            }
        };
        (0..=BEST_EFFORT).map(flow).collect()
    }
}

/// Ports.
const SOURCE: u16 = 5_000;
const SINK: u16 = 6_000;
