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

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use netnice_core::stops::Stop;
use serde_json::json;

use super::super::simulated::netnice_only;
use super::{LOADS, NAMES, chart, extremes, judge_best_effort, points};
use crate::alibi::{self, Alibi, Verdict};
use crate::experiment::{Bound, Context, Outcome, front_door};
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
    let mut rows = Vec::new();
    for offered in loads {
        context.say(format!("best effort of {offered} kB/s"));
        rows.push((
            offered as f64,
            run(context, &hosts, &mut ends, (&SENT, &SWEEPS), (offered, 1))?,
        ));
    }
    for (offered, row) in &rows {
        outcome.ours(&format!("{offered} kB/s offered"), row.table());
    }
    let runs = || rows.iter().map(|(_, row)| row);
    judge(outcome, &runs().collect::<Vec<_>>(), 0);
    for (number, name) in NAMES.iter().enumerate() {
        let means: Vec<f64> = runs().map(|row| row.mean_laxity(number)).collect();
        let (low, high) = extremes(&means);
        let what = format!("{name}: mean laxity, from the least to the greatest");
        outcome.check(what, (high / low - 1.0) * 100.0, "%", Bound::AtMost(5.0));
    }
    let sent: Vec<f64> = runs().map(|row| row.rate(BEST_EFFORT)).collect();
    let offered: Vec<f64> = rows.iter().map(|(offered, _)| *offered).collect();
    judge_best_effort(outcome, &offered, &sent)?;
    hosts.note(outcome, RESERVED)?;
    outcome.plot(context, "rtc-fig5", || {
        chart(
            "RTC, figure 5 (on packets)",
            "best effort offered, kB/s",
            |number| points(&rows, |row| row.rate(number)),
        )
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
    let mut rows = Vec::new();
    for factor in 1..=6_u64 {
        context.say(format!("channel 0 at {factor} times its rate"));
        rows.push((
            factor as f64,
            run(
                context,
                &hosts,
                &mut ends,
                (&SENT, &SWEEPS),
                (1_900, factor),
            )?,
        ));
    }
    for (factor, row) in &rows {
        outcome.ours(&format!("{factor} times Rmax"), row.table());
    }
    judge(
        outcome,
        &rows.iter().map(|(_, row)| row).collect::<Vec<_>>(),
        1,
    );
    let own = |row: usize| rows[row].1.sent[0].dropped as f64;
    let what = "dropped of channel 0 at its Rmax";
    outcome.check(what, own(0), "", Bound::AtMost(0.0));
    let what = "dropped of channel 0 at 6 times that";
    outcome.check(what, own(5), "", Bound::AtLeast(1.0));
    let alone = rows[0].1.rate(0);
    let least = rows.iter().map(|(_, row)| row.rate(0) / alone * 100.0);
    let what = "channel 0, of what it gets when it conforms";
    outcome.check(
        what,
        least.fold(f64::MAX, f64::min),
        "%",
        Bound::AtLeast(99.0),
    );
    hosts.note(outcome, RESERVED)?;
    outcome.plot(context, "rtc-fig6", || {
        chart(
            "RTC, figure 6 (on packets)",
            "channel 0, multiples of Rmax",
            |number| points(&rows, |row| row.rate(number)),
        )
    })
}

/// Figure 7a: the processing of best effort is not interrupted within a message, for three lengths
/// of its queue. Messages of the channels must be late then, at each length, and none without an
/// excuse when a message can be interrupted after 12 packets. Fails as the module says.
pub fn figure7a(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!("misses and drops appear without preemption within best effort");
    let hosts = Hosts::new("1gbit")?;
    let mut rows = Vec::new();
    for (block, queue) in [
        (LONG_BLOCK, 2),
        (LONG_BLOCK, 8),
        (LONG_BLOCK, 32),
        (BLOCK, 32),
    ] {
        context.say(format!(
            "blocks of {block} packets, a queue of {queue} messages"
        ));
        let mut plan = tight_plan(block, &TIGHT);
        plan.channels[BEST_EFFORT].best_effort = (LONG_MESSAGE, queue);
        let mut ends = hosts.start(&plan)?;
        let row = run(context, &hosts, &mut ends, (&SENT, &TOGETHER), (14_400, 1))?;
        rows.push((block, queue, row));
    }
    for (block, queue, row) in &rows {
        let what = format!("blocks of {block}, queue of {queue}");
        outcome.ours(&what, row.table());
        row.judge_late(outcome, &what, *block == LONG_BLOCK);
    }
    hosts.note(outcome, "no reservation")
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
    let mut lost = Vec::new();
    for (block, first, promised) in [
        (LONG_BLOCK_EARLY, true, false),
        (BLOCK, true, false),
        (BLOCK, false, false),
        (BLOCK, false, true),
    ] {
        let order = if first { "before" } else { "after" };
        let mut what = format!("blocks of {block} packets, early messages {order} best effort");
        let mut plan = tight_plan(block, &EARLY);
        if promised {
            what.push_str(", with a reservation");
            plan = plan_of(block, &PROMISED);
            // No more fits beside what the driver has needed in the cases before.
            plan.reservation = Some(("8ms/10ms".to_owned(), 7_000_000));
        }
        context.say(&what);
        plan.horizon_ns = HORIZON_NS;
        plan.early_before_best_effort = first;
        plan.channels[BEST_EFFORT].best_effort = (MESSAGE as u64, EARLY_QUEUE);
        let mut ends = hosts.start(&plan)?;
        let row = run(
            context,
            &hosts,
            &mut ends,
            (&SENT_EARLY, &TOGETHER),
            (4_800, 1),
        )?;
        outcome.ours(&what, row.table());
        row.judge_late(outcome, &what, block == LONG_BLOCK_EARLY);
        lost.push(row.sent[BEST_EFFORT].dropped as f64);
    }
    let what = "best effort dropped, of what it loses at message boundaries";
    let part = lost[2] / lost[0].max(1.0) * 100.0;
    outcome.check(what, part, "%", Bound::AtMost(90.0));
    hosts.note(outcome, "no reservation, but for the last case")
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

/// Sends for some seconds: what the channels send with their sweeps, best effort of so many kB/s,
/// and channel 0 at `factor` times its rate.
fn run(
    context: &Context,
    hosts: &Hosts,
    ends: &mut Ends,
    (sends, sweeps): (&[(usize, u64, u64); 3], &[u64; 3]),
    (best_effort, factor): (u64, u64),
) -> Result<Row> {
    let lasts_ns = if context.quick { 4 } else { 40 } * 1_000_000_000_u64;
    let group = |(number, (size, count, rate)): (usize, (usize, u64, u64))| {
        let every_ns = count * 1_000_000_000 / rate;
        let later_ns = every_ns * sweeps[number] * SWEEP_NS / lasts_ns;
        Messages {
            size,
            count,
            every_ns: (every_ns + later_ns) / if number == 0 { factor } else { 1 },
            first_ns: number as u64 * 1_000_000,
            waits: false,
        }
    };
    let mut channels: Vec<Messages> = sends.iter().copied().enumerate().map(group).collect();
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
fn judge(outcome: &mut Outcome, rows: &[&Row], from: usize) {
    let mut verdict = Verdict::default();
    let (mut dropped, mut too_soon, mut lost, mut least, mut messages) = (0, 0, 0, f64::MAX, 0);
    for row in rows {
        verdict += row.verdict;
        messages += row.messages();
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
    front_door::check_messages(outcome, "messages late", verdict, messages);
    let of = match from {
        0 => "of the channels",
        _ => "but for channel 0",
    };
    let what = format!("messages dropped that their program did not send too soon, {of}");
    outcome.check(what, dropped as f64, "", Bound::AtMost(0.0));
    outcome.ours(&format!("dropped, sent too soon, {of}"), too_soon);
    let what = "accepted messages lost or wrong at the sink";
    outcome.check(what, lost as f64, "", Bound::AtMost(0.0));
    outcome.ours("least laxity, ms", least);
}

impl Row {
    /// The number of messages of the channels that have left.
    fn messages(&self) -> usize {
        let channels = self.sent.iter().take(BEST_EFFORT);
        channels.map(|channel| channel.left_ns.len()).sum()
    }

    /// Checks that messages were late without an excuse, or that none was and few with one.
    fn judge_late(&self, outcome: &mut Outcome, what: &str, must_be_late: bool) {
        if must_be_late {
            let late = self.verdict.unexcused as f64;
            let what = format!("late without an excuse: {what}");
            return outcome.check(what, late, "messages", Bound::AtLeast(1.0));
        }
        let what = format!("messages late: {what}");
        front_door::check_messages(outcome, &what, self.verdict, self.messages());
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

    fn table(&self) -> serde_json::Value {
        let channel = |number: usize| {
            let (sent, received) = (&self.sent[number], &self.received[number]);
            let is_real_time = number != BEST_EFFORT;
            let of_real_time = |value: f64| is_real_time.then_some(value);
            json!({
                "name": NAMES.get(number).unwrap_or(&"best effort"),
                "kB/s": self.rate(number).round(), "offered": sent.offered,
                "dropped": sent.dropped, "received": received.messages,
                "dropped, sent too soon": of_real_time(sent.too_soon as f64),
                "offered late at most, ms": sent.offered_late_ns as f64 / 1e6,
                "late": self.laxities(number).filter(|laxity| *laxity < 0.0).count(),
                "least laxity, ms": of_real_time(self.least_laxity(number)),
                "mean laxity, ms": of_real_time(self.mean_laxity(number)),
            })
        };
        (0..=BEST_EFFORT).map(channel).collect()
    }
}

/// The channels and best effort, with blocks of so many packets.
fn plan(block: u32) -> ChannelPlan {
    plan_of(block, &CHANNELS)
}

/// These channels and best effort, on a reservation.
fn plan_of(block: u32, contracts: &[&str; 3]) -> ChannelPlan {
    let channel = |contract: &str| PlannedChannel {
        contract: contract.to_owned(),
        best_effort: (MESSAGE as u64, 64),
        stages: Vec::new(),
    };
    let contracts = contracts.iter().copied().chain([""]);
    ChannelPlan {
        largest: 1_440,
        block,
        horizon_ns: 0,
        early_before_best_effort: false,
        computes_ns: (365_000, 115_000),
        switch_ns: 0,
        reservation: Some(("9.5ms/10ms".to_owned(), 8_500_000)),
        records_stops: true,
        channels: contracts.map(channel).collect(),
    }
}

/// The channels with deadlines that are kept only if best effort can be interrupted, without a
/// reservation that would refuse them.
fn tight_plan(block: u32, contracts: &[&str; 3]) -> ChannelPlan {
    ChannelPlan {
        reservation: None,
        ..plan_of(block, contracts)
    }
}

/// Two bursty channels and a periodic one.
const CHANNELS: [&str; 3] = [
    "channel mmax=60KiB,rmax=15/s,bmax=4,deadline=60ms,processing=40ms,overload=drop",
    "channel mmax=40KiB,rmax=15/s,bmax=6,deadline=56ms,processing=38ms",
    "channel mmax=30KiB,rmax=20/s,bmax=1,deadline=50ms,processing=36ms",
];

/// The same with deadlines of a processor that nothing else uses.
const TIGHT: [&str; 3] = [
    "channel mmax=60KiB,rmax=15/s,bmax=4,deadline=25ms,processing=22ms,overload=drop",
    "channel mmax=40KiB,rmax=15/s,bmax=6,deadline=17ms,processing=14ms",
    "channel mmax=30KiB,rmax=20/s,bmax=1,deadline=10ms,processing=8ms",
];

/// The channels of figure 7b. A message of the first has 73 packets and takes 8.7 ms, longer than
/// the deadline of the third.
const EARLY: [&str; 3] = [
    "channel mmax=100KiB,rmax=8/s,bmax=2,deadline=25ms,processing=22ms",
    "channel mmax=40KiB,rmax=15/s,bmax=6,deadline=17ms,processing=14ms",
    "channel mmax=30KiB,rmax=20/s,bmax=1,deadline=8ms,processing=6ms",
];

/// The same with deadlines that admission grants on a reservation.
const PROMISED: [&str; 3] = [
    "channel mmax=100KiB,rmax=8/s,bmax=2,deadline=80ms,processing=60ms",
    "channel mmax=40KiB,rmax=15/s,bmax=6,deadline=76ms,processing=58ms",
    "channel mmax=30KiB,rmax=20/s,bmax=1,deadline=70ms,processing=56ms",
];

/// What they send, as [`SENT`].
const SENT_EARLY: [(usize, u64, u64); 3] = [(102_400, 2, 8), (40_960, 6, 15), (30_720, 1, 20)];
/// A block that has room for the longest of these messages.
const LONG_BLOCK_EARLY: u32 = 73;
/// Longer than the time from the arrival of a burst to the logical arrival of its last message.
const HORIZON_NS: u64 = 500_000_000;
/// Messages of best effort that can wait in figure 7b.
const EARLY_QUEUE: u32 = 8;

/// What the channels send: bytes of a message, messages at once, messages a second.
const SENT: [(usize, u64, u64); 3] = [(61_440, 4, 15), (40_960, 6, 15), (30_720, 1, 20)];
/// Bursts are farther apart than that, by so much that within a run the messages of each channel
/// come so many times [`SWEEP_NS`] later than at their rate. So their phases to those of the other
/// channels and to the periods of the reservation (10 ms) take all values, equally often, and no
/// mean depends on those at the beginning of a run. A thread that sends late also catches up.
const SWEEPS: [u64; 3] = [2, 4, 3];
/// The same for figure 7, whose deadlines are short: the bursts of the channels come nearly at the
/// same times throughout.
const TOGETHER: [u64; 3] = [2, 2, 2];
/// The time between the logical arrivals of two messages of a channel with 15/s.
const SWEEP_NS: u64 = 66_666_667;
/// The number of best effort in a plan.
const BEST_EFFORT: usize = 3;
/// Bytes of a best-effort message.
const MESSAGE: usize = 16_384;
/// The processor time of the handlers in figures 5 and 6, for people.
const RESERVED: &str = "8.5 ms of every 10 ms of a processor by SCHED_DEADLINE";
/// Packets between two preemption points.
const BLOCK: u32 = 12;
/// Bytes of the long messages of figure 7, 72 packets, and a block as long.
const LONG_MESSAGE: u64 = 72 * 1_408;
const LONG_BLOCK: u32 = 72;
/// Ports.
const SOURCE: u16 = 5_000;
const SINK: u16 = 6_000;
