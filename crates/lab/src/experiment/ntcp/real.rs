//! Repeats the experiments with one and with several transmitters of the paper NTCP (section 4) on
//! real packets: programs that run their own TCP send to sockets of the kernel, each under the
//! contract of its flow.
//!
//! Two hosts have a link of 10 Mbit/s, which netniced manages ([`super::super::front_door`]). The
//! MTU is 1486, so a full frame has 1500 bytes and takes 1.2 ms: the paper counts 1500 bytes for a
//! packet, without framing. Every sender is a process with the library's TCP, and has always
//! something to send. Receivers are processes with a socket of the kernel. A tap at the receiver
//! measures, and `netnice check` polices what it captured.
//!
//! # Bounds of a slice for `netnice check`
//! The packets of a slice of s in p are those of a limit of s/p of the link with a burst. A flow
//! alone on the link has its slice at the begin of each period, so the burst is p - s. A packet may
//! overdraw the slice, and later periods repay the debt: unless whole packets make up the slice,
//! the burst is p. Beside other flows a flow has its slice anywhere in the period, in the worst
//! case at the end of one and at the begin of the next: the burst is twice that. Stops of the
//! driver move the slice in its period too: the most by which they delayed a whole slice is added
//! to the burst of a flow that is alone, up to twice the burst. The driver's work-ahead is added,
//! because the cable between the hosts has no rate: the tap sees a packet when the driver hands it
//! over, up to 1 ms before it would leave a link of 10 Mbit/s.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a step of the measurement fails, or if a plot cannot be written.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::super::bench::{MS, SECOND, netnice_only, pause, wait_until};
use super::super::front_door::{FrontDoor, WORK_AHEAD, note_stops};
use super::super::sent_packets::{bins, check_flow};
use super::super::{Bound, Context, Outcome};
use super::segments::{Sequences, Watch};
use crate::stats;
use crate::sys;
use crate::traffic::{self, DirectTcp, Report, Running, Tcp};
use crate::wire::{Record, Tap, Transport, WireFlow};
use crate::world::{Pair, World};

mod figures;

/// Figure 4: one connection with a slice of 2.4 ms in 50 ms must send exactly 2 full packets in
/// 99 % of the periods. With 3 ms (the paper's footnote) it must send 2 or 3 in every period, and
/// 2.5 on average. With full frames of 1514 bytes, which take 1.2112 ms, two packets overdraw a
/// slice of 2.4 ms; the debt adds up to a packet less in one of 54 periods, so only the mean is
/// checked. Fails if the subject is not netnice, and as
/// [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure4(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let seconds = if context.quick { 5 } else { 60 };
    outcome.paper = json!([
        {"slice": "2.4 ms of 50 ms", "packets in a period": "2, then silence"},
        {"slice": "3 ms of 50 ms", "packets in a period": "2 or 3, \"2.5\""},
    ]);
    note(outcome);
    outcome.note(
        "The third connection has frames of 1514 bytes (MTU 1500), which take 1.2112 ms. Two of \
         them overdraw a slice of 2.4 ms by 0.0224 ms, so one period in 54 has a single frame: \
         1.98 frames on average.",
    );
    let mut stops = Vec::new();
    let link = TcpLink::new(FRAME)?;
    let server = link.front.world.server();
    let watch = Watch::start(&server.ns, &server.port().device, source(0))?;
    let even = link.alone(Slice::new(2400, 50), 0, seconds)?;
    let sequences = watch.end(&server.ns, even.begin, even.begin + SECOND)?;
    note_sequences(outcome, &sequences);
    let mut rows = vec![even.judge(outcome, "slice 2.4 ms")?];
    even.check_share(outcome, "slice 2.4 ms", 2..=2);
    let odd = link.alone(Slice::new(3000, 50), 1, seconds)?;
    rows.push(odd.judge(outcome, "slice 3 ms")?);
    let others = odd.counts.iter().filter(|count| !is_in(**count, 2..=3));
    let what = "slice 3 ms: periods with neither 2 nor 3 packets";
    outcome.check(what, others.count() as f64, "periods", Bound::AtMost(0.0));
    odd.check_mean(outcome, "slice 3 ms", 0.008);
    stops.extend(link.front.stops()?.stops);
    drop(link);
    let link = TcpLink::new(ETHERNET_FRAME)?;
    let long = link.alone(Slice::new(2400, 50), 0, seconds)?;
    let name = "slice 2.4 ms, frames of 1514 bytes";
    rows.push(long.judge(outcome, name)?);
    long.check_mean(outcome, name, context.tolerance(0.01));
    outcome.ours("connections", rows);
    stops.extend(link.front.stops()?.stops);
    note_stops(outcome, &stops);
    outcome.plot(context, "ntcp-fig4", || {
        sequences.draw("One TCP with a slice of 2.4 ms in 50 ms, 10 Mbit/s: a second of it")
    })?;
    outcome.plot(context, "ntcp-fig4-periods", || {
        figures::periods(&even, &odd, &long)
    })
}

/// Adds a note that says how the packets of figure 4 are related to acknowledgements, if the second
/// that is drawn has both.
fn note_sequences(outcome: &mut Outcome, sequences: &Sequences) {
    let least = [
        sequences.least_since_acknowledgement(0.01) * 1e3,
        sequences.least_unused_window() / 1e3,
    ];
    if least.iter().all(|value| value.is_finite()) {
        outcome.note(format!(
            "In the second that is drawn, the first packet of a period arrived at least {:.1} ms \
             after the acknowledgement before it, and the receiver's window permitted at least \
             {:.1} kB more than was sent.",
            least[0], least[1],
        ));
    }
}

/// The rate of one connection with a period of 200 ms against its slice: within 1 % of s/p (3 % in
/// the quick form) at every slice, and the same number of packets in 99 % of the periods. The paper
/// saw varying rates above 9.6 ms, where the receiver's window was full. Fails if the subject is
/// not netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn rates(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let (seconds, packets): (u64, &[u64]) = match context.quick {
        true => (4, &[1, 4, 8, 20, 50]),
        false => (15, &[1, 2, 3, 4, 5, 6, 7, 8, 10, 16, 25, 40, 50, 75, 100]),
    };
    outcome.paper = json!([
        {"slice": "1.2 to 9.6 ms of 200 ms", "rate": "almost no discrepancies from the slice's"},
        {"slice": "more than 9.6 ms", "rate": "varies very much, as the receiver's window fills"},
    ]);
    note(outcome);
    let link = TcpLink::new(FRAME)?;
    let (mut found, mut rows) = (Vec::new(), Vec::new());
    for (number, packets) in (0..).zip(packets) {
        let slice = Slice::new(packets * PACKET / 1000, 200);
        let name = format!("slice {} ms", slice.milliseconds());
        let transfer = link.alone(slice, number, seconds)?;
        rows.push(transfer.judge(outcome, &name)?);
        transfer.check_mean(outcome, &name, context.tolerance(0.01));
        transfer.check_share(outcome, &name, *packets..=*packets);
        found.push(transfer);
    }
    outcome.ours("connections", rows);
    note_stops(outcome, &link.front.stops()?.stops);
    outcome.plot(context, "ntcp-rate", || figures::rates(&found))?;
    outcome.plot(context, "ntcp-rate-deviation", || {
        figures::deviations(&found)
    })
}

/// Figure 5: c1 with 3.6 ms in 200 ms sends to one receiver. Then c2 with 4.8 ms in 40 ms and extra
/// time begins to send to another one, then c3 with 24 ms in 40 ms to the same. In every second, c1
/// and c3 must have s/p of the link within 2 % (3 % in the quick form). From the start of c2 on, 98
/// % of the link must be used, so c2 has all the rest.
///
/// The paper's c2 and c3 have the same parts of 10 ms. Admission refuses these on a link of 10
/// Mbit/s: at worst a packet waits 3.65 ms for packets of the kernel path and for the one on the
/// wire, and each slice may be overdrawn by a packet of 1.2 ms.
///
/// Fails if the subject is not netnice, and as
/// [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure5(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let step = if context.quick { 4 } else { 20 } * SECOND;
    outcome.paper = json!([
        {"connection": "c1", "goodput, Mbit/s": "0.17"},
        {"connection": "c2", "goodput, Mbit/s": "7.5, and 3.5 after the start of c3"},
        {"connection": "c3", "goodput, Mbit/s": "4.2 (5.6 promised)"},
    ]);
    note(outcome);
    outcome.note(
        "c2 and c3 have the paper's parts of the link in periods of 40 ms and not of 10 ms, which \
         admission refuses at 10 Mbit/s.",
    );
    let link = TcpLink::new(FRAME)?;
    let receivers = [link.receiver(0)?, link.receiver(1)?];
    let slices = [
        Slice::new(3600, 200),
        Slice::new(4800, 40).with_extra(),
        Slice::new(24_000, 40),
    ];
    let mut senders = Vec::new();
    for (number, (slice, receiver)) in (0..).zip(slices.iter().zip([0, 1, 1])) {
        senders.push(link.sender(number, receiver, slice)?);
    }
    let (tap, file) = link.tap()?;
    let before = link.out_of_order()?;
    let from = sys::now_ns();
    for (number, sender) in (0..).zip(&mut senders) {
        wait_until(from + number * step);
        sender.go()?;
    }
    let until = from + 3 * step;
    wait_until(until);
    let record = link.end(tap)?;
    let sources: Result<Vec<Report>> = senders.into_iter().map(end).collect();
    let sinks: Result<Vec<Report>> = receivers.into_iter().map(Running::stop).collect();
    let (sources, sinks) = (sources?, sinks?);
    note_stops(outcome, &link.front.stops()?.stops);
    judge_stages(outcome, &record, (&slices, &sinks), from, step);
    for (number, name, begin) in [(0, "c1", from), (2, "c3", from + 2 * step)] {
        let slice = &slices[usize::from(number)];
        let times = full_frames(&record, number, FRAME);
        let most = context.tolerance(0.02);
        judge_seconds(outcome, name, &times, slice, (begin + SECOND, until), most)?;
        let what = format!("{name}: packets that netnice check finds early for its slice");
        let early = police(&file, number, slice, 2 * slice.burst(FRAME))?;
        outcome.check(what, early as f64, "packets", Bound::AtMost(0.0));
    }
    let retransmitted: u64 = sources.iter().map(|report| report.retransmitted).sum();
    check_order(outcome, "", retransmitted, link.out_of_order()? - before);
    outcome.plot(context, "ntcp-fig5", || {
        figures::figure5(&record, from, step)
    })
}

/// Adds the rates of the three stages of figure 5, each from a second after its begin, and checks
/// how much of the link is used.
fn judge_stages(
    outcome: &mut Outcome,
    record: &Record,
    (slices, sinks): (&[Slice], &[Report]),
    from: u64,
    step: u64,
) {
    let (mut rows, mut receivers) = (Vec::new(), Vec::new());
    for (stage, name) in (0..).zip(["c1", "c1, c2", "c1, c2, c3"]) {
        let (begin, end) = (from + stage * step + SECOND, from + (stage + 1) * step);
        let rate = |number| record.rate(from_port(source(number)), begin, end) / 1e6;
        let rates = [0, 1, 2].map(rate);
        let total: f64 = rates.iter().sum();
        let goodput = |sink: &Report| {
            let rate = sink.received_payload().rate(begin, end);
            rate.unwrap_or_default() / 1e6
        };
        let running = slices.iter().zip(&rates).take(stage as usize + 1);
        for (number, (slice, rate)) in running.enumerate() {
            rows.push(json!({
                "connections": name,
                "connection": CONNECTIONS[number],
                "slice": slice.words(),
                "what the slice gives, Mbit/s on the wire": slice.rate() as f64 / 1e6,
                "on the wire, Mbit/s": rate,
                "payload in it, Mbit/s": rate * PAYLOAD_PART,
                "paper's goodput, Mbit/s": PAPERS_GOODPUT[stage as usize][number],
            }));
        }
        receivers.push(json!({
            "connections": name,
            "on the wire in all, Mbit/s": total,
            "goodput at the receiver of c1, Mbit/s": goodput(&sinks[0]),
            "goodput at the receiver of c2 and c3, Mbit/s": goodput(&sinks[1]),
        }));
        if stage > 0 {
            let used = total * 1e8 / LINK as f64;
            let what = format!("part of the link that is used with {name}");
            outcome.check(what, used, "%", Bound::AtLeast(98.0));
            // A frame more or less in a window is no excess.
            let what = format!("part of the link that is used with {name}: it is not exceeded");
            outcome.check(what, used, "%", Bound::AtMost(100.1));
            let rest = LINK as f64 / 1e6 - rates[0] - rates[2];
            let what = format!("c2, of all that the others leave, with {name}");
            outcome.check(what, rates[1] / rest * 100.0, "%", Bound::AtLeast(98.0));
        }
    }
    outcome.ours("rates from a second after each start", rows);
    outcome.ours("goodput at the receivers", receivers);
}

/// Checks that a connection of figure 5 has s/p of the link in every second, within a share of it.
/// Fails if no period of the slice is visible.
fn judge_seconds(
    outcome: &mut Outcome,
    name: &str,
    times: &[u64],
    slice: &Slice,
    (from, until): (u64, u64),
    share: f64,
) -> Result<()> {
    // Whole periods: a packet is 7 % of what c1 sends in a second.
    let seconds = bins(times, slice.aligned(times, from)?, until, SECOND);
    let wanted = slice.packets(FRAME) * (SECOND / slice.period()) as f64;
    let off = seconds.iter().map(|count| (count / wanted - 1.0).abs());
    let farthest = off.fold(0.0, f64::max) * 100.0;
    let mean = stats::mean(&seconds);
    outcome.ours(
        &format!("{name}: packets in each second"),
        json!({
            "what the slice gives": wanted, "mean": mean,
            "farthest second from what the slice gives, %": farthest,
        }),
    );
    let what =
        format!("{name}: packets in a second, compared with what its slice gives: farthest second");
    outcome.check(what, farthest, "%", Bound::AtMost(share * 100.0));
    Ok(())
}

/// Adds the note that says what was measured.
fn note(outcome: &mut Outcome) {
    outcome.note(
        "netniced, netnice-driver and the senders are processes of their own (SCHED_OTHER). The \
         senders have the library's TCP (CUBIC). A full packet is a frame of 1500 bytes with its \
         Ethernet header (MTU 1486), which takes 1.2 ms at 10 Mbit/s and has 1434 bytes of payload.",
    );
}

/// A slice of the link.
#[derive(Clone, Copy)]
struct Slice {
    /// In us.
    slice: u64,
    /// In ms.
    period: u64,
    extra: bool,
}

impl Slice {
    /// A slice in us in a period in ms, without extra time.
    fn new(slice: u64, period: u64) -> Slice {
        Slice {
            slice,
            period,
            extra: false,
        }
    }

    fn with_extra(self) -> Slice {
        Slice {
            extra: true,
            ..self
        }
    }

    fn contract(&self) -> String {
        let extra = if self.extra { " extra" } else { "" };
        format!("slice {}us/{}ms{extra}", self.slice, self.period)
    }

    /// The period in ns.
    fn period(&self) -> u64 {
        self.period * MS
    }

    /// The time of a period that the slice does not use, in ns.
    fn silence(&self) -> u64 {
        self.period() - self.slice * 1000
    }

    /// The slice in words.
    fn words(&self) -> String {
        let extra = if self.extra { " and extra time" } else { "" };
        format!("{} ms of {} ms{extra}", self.milliseconds(), self.period)
    }

    fn milliseconds(&self) -> f64 {
        self.slice as f64 / 1e3
    }

    /// The slice's rate on the wire in bit/s.
    fn rate(&self) -> u64 {
        LINK * self.slice / (self.period * 1000)
    }

    /// Full packets of `frame` bytes in a period.
    fn packets(&self, frame: u64) -> f64 {
        self.slice as f64 * 1e3 / (frame * 8 * SECOND / LINK) as f64
    }

    /// The burst of a limit that the slice keeps, in ns, for a flow that is alone on the link,
    /// without the driver's work-ahead.
    fn burst(&self, frame: u64) -> u64 {
        let is_whole = self.packets(frame).fract() == 0.0;
        let unused = if is_whole { self.slice * 1000 } else { 0 };
        self.period() - unused
    }

    /// The rate of so many full packets in a period, in Mbit/s.
    fn of(&self, packets: f64) -> f64 {
        packets * FRAME as f64 * 8e3 / self.period() as f64
    }

    /// The begin of a period at `from` or later, less a quarter of the silence: the packets of a
    /// period come together, so that a bin which begins there has all of one period. Fails if no
    /// period is visible.
    fn aligned(&self, times: &[u64], from: u64) -> Result<u64> {
        let pairs = times.windows(2);
        let firsts: Vec<u64> = pairs
            .filter(|pair| pair[0] >= from && pair[1] - pair[0] >= self.silence() / 2)
            .map(|pair| pair[1])
            .collect();
        let first = *firsts.first().context("no period has a silence")?;
        let (period, half) = (self.period(), self.period() / 2);
        // A stop delays the packets of single periods.
        let late = firsts.iter().map(|at| (at - first + half) % period);
        let late: Vec<f64> = late.map(|late| late as f64).collect();
        let begin = first + stats::median(&late) as u64 - half;
        Ok(begin - self.silence() / 4)
    }
}

/// A managed link between two hosts.
struct TcpLink {
    front: FrontDoor,
    /// Length of a full frame in bytes.
    frame: u64,
}

impl TcpLink {
    fn new(frame: u64) -> Result<TcpLink> {
        let mtu = (frame - ETHERNET) as u32;
        let world = World::pair(Pair {
            mtu,
            ..Pair::default()
        })?;
        let front = FrontDoor::on(world, RATE)?;
        Ok(TcpLink { front, frame })
    }

    /// Starts a receiver.
    fn receiver(&self, number: u16) -> Result<Running> {
        let server = self.front.world.server();
        let at = (server.port().v4, target(number)).into();
        traffic::start_now(server, &Tcp::listen(at).sink())
    }

    /// Starts a program with a connection to a receiver. It waits for `go`; then it always has
    /// something to send.
    fn sender(&self, number: u16, receiver: u16, slice: &Slice) -> Result<Running> {
        let (client, server) = (self.front.world.client(), self.front.world.server());
        let to = (server.port().v4, target(receiver)).into();
        let program = DirectTcp::connect(to, self.front.netnice.runtime());
        let program = program
            .local((client.port().v4, source(number)).into())
            .contract(&slice.contract())
            .endless_source();
        let running = traffic::start_waiting(client, &program);
        running.with_context(|| format!("a connection with the contract `{}`", slice.contract()))
    }

    /// Starts a tap at the receivers. Returns it and the path of its capture file.
    fn tap(&self) -> Result<(Tap, PathBuf)> {
        let file = self.front.world.folder().join("wire.pcap");
        let server = self.front.world.server();
        let tap = Tap::start_capturing(&server.ns, &server.port().device, &file, is_sent)?;
        Ok((tap, file))
    }

    /// Ends the tap. Fails if it lost packets.
    fn end(&self, tap: Tap) -> Result<Record> {
        let record = tap.stop(&self.front.world.server().ns)?;
        record.validate()?;
        Ok(record)
    }

    /// Segments that the receivers' kernel got while an earlier one was missing.
    fn out_of_order(&self) -> Result<u64> {
        self.front.world.server().ns.out_of_order()
    }

    /// Lets one connection send for some seconds.
    fn alone(&self, slice: Slice, number: u16, seconds: u64) -> Result<Transfer> {
        let sink = self.receiver(number)?;
        let mut sender = self.sender(number, number, &slice)?;
        let (tap, file) = self.tap()?;
        let before = self.out_of_order()?;
        let started = sys::now_ns();
        sender.go()?;
        pause(SETTLE);
        let from = sys::now_ns();
        pause(seconds as f64);
        let until = sys::now_ns();
        let alibi = self.front.stops()?.alibi(0.0);
        let record = self.end(tap)?;
        let (sent, sink) = (end(sender)?, sink.stop()?);
        let times = full_frames(&record, number, self.frame);
        let begin = slice.aligned(&times, from)?;
        // Whole periods.
        let until = until - until.saturating_sub(begin) % slice.period();
        let packets = record.packets().iter().filter(|one| {
            one.flow.source.1 == source(number) && (begin..until).contains(&one.at_ns)
        });
        let short = packets.filter(|one| one.wire != self.frame).count();
        let goodput = sink.received_payload().rate(begin, until);
        let wanted = slice.packets(self.frame);
        let burst = slice.burst(self.frame);
        let moved = alibi.longest_delay(started, until, slice.slice * 1000);
        Ok(Transfer {
            wanted,
            early: police(&file, number, &slice, burst + moved.min(burst))?,
            counts: bins(&times, begin, until, slice.period()),
            begin,
            short: short as u64,
            goodput: goodput.unwrap_or_default(),
            rate: record.rate(from_port(source(number)), begin, until),
            slice,
            retransmitted: sent.retransmitted,
            out_of_order: self.out_of_order()? - before,
        })
    }
}

/// What one connection that was alone on the link sent.
struct Transfer {
    slice: Slice,
    /// Full packets in a period by the contract.
    wanted: f64,
    /// Begin of the first measured period (wall clock, ns).
    begin: u64,
    /// Full packets in each period.
    counts: Vec<f64>,
    /// Packets that were not full.
    short: u64,
    /// Packets that `netnice check` finds early.
    early: u64,
    /// Rate on the wire and payload at the receiver, in bit/s.
    rate: f64,
    goodput: f64,
    retransmitted: u64,
    out_of_order: u64,
}

impl Transfer {
    /// Mean number of full packets in a period, of each whole second.
    fn seconds(&self) -> Vec<f64> {
        let whole = (SECOND / self.slice.period()) as usize;
        self.counts.chunks_exact(whole).map(stats::mean).collect()
    }

    /// Adds the checks of what no machine may change. Returns the values as a row of a table.
    fn judge(&self, outcome: &mut Outcome, name: &str) -> Result<Value> {
        ensure!(!self.counts.is_empty(), "{name}: no period was measured");
        let what = format!("{name}: packets that netnice check finds early for the slice");
        outcome.check(what, self.early as f64, "packets", Bound::AtMost(0.0));
        let what = format!("{name}: packets that are not full");
        outcome.check(what, self.short as f64, "packets", Bound::AtMost(0.0));
        check_order(outcome, name, self.retransmitted, self.out_of_order);
        let seconds = self.seconds();
        Ok(json!({
            "connection": name,
            "periods": self.counts.len(),
            "packets in a period, by the slice": self.wanted,
            "measured, mean": stats::mean(&self.counts),
            "least": stats::least(&self.counts),
            "most": stats::greatest(&self.counts),
            "mean of the slowest second": stats::least(&seconds),
            "of the fastest": stats::greatest(&seconds),
            "on the wire, Mbit/s": self.rate / 1e6,
            "goodput, Mbit/s": self.goodput / 1e6,
        }))
    }

    /// Checks that 99 % of the periods have a number of packets in `range`.
    fn check_share(&self, outcome: &mut Outcome, name: &str, range: std::ops::RangeInclusive<u64>) {
        let good = self
            .counts
            .iter()
            .filter(|count| is_in(**count, range.clone()));
        let share = good.count() as f64 / self.counts.len() as f64 * 100.0;
        let what = match range.end() {
            1 => format!("{name}: periods with exactly 1 packet"),
            packets => format!("{name}: periods with exactly {packets} packets"),
        };
        outcome.check(what, share, "%", Bound::AtLeast(99.0));
    }

    /// Checks the mean number of packets in a period.
    fn check_mean(&self, outcome: &mut Outcome, name: &str, share: f64) {
        let aim = self.wanted;
        let what = format!("{name}: packets in a period, mean");
        let mean = stats::mean(&self.counts);
        outcome.check(what, mean, "packets", Bound::Near { aim, share });
    }
}

/// Checks that nothing was sent again, and nothing arrived behind a missing segment.
fn check_order(outcome: &mut Outcome, name: &str, retransmitted: u64, out_of_order: u64) {
    let name = match name {
        "" => String::new(),
        _ => format!("{name}: "),
    };
    let what = format!("{name}segments sent again");
    outcome.check(what, retransmitted as f64, "segments", Bound::AtMost(0.0));
    let what = format!("{name}segments that arrived behind a missing one");
    outcome.check(what, out_of_order as f64, "segments", Bound::AtMost(0.0));
}

/// The number of a connection's packets that `netnice check` finds too early for its slice with a
/// burst in ns, and the driver's work-ahead.
fn police(file: &std::path::Path, number: u16, slice: &Slice, burst: u64) -> Result<u64> {
    let rate = format!("{}bit", slice.rate());
    let burst = format!("{}us", (burst + WORK_AHEAD) / 1000);
    let flow = format!("tcp from 10.77.0.1:{}", source(number));
    let (judged, early) = check_flow(file, &["--up", &rate, "--burst", &burst], &flow)?;
    ensure!(judged > 0, "netnice check found no packet of {flow}");
    Ok(early)
}

/// Ends a sender. Fails if its connection failed.
fn end(sender: Running) -> Result<Report> {
    let report = sender.stop()?;
    ensure!(report.refused.is_empty(), "{:?}", report.refused);
    Ok(report)
}

/// Times of a connection's packets of `frame` bytes, in order (wall clock, ns).
fn full_frames(record: &Record, number: u16, frame: u64) -> Vec<u64> {
    let packets = record.packets().iter();
    let mine = packets.filter(|one| one.flow.source.1 == source(number) && one.wire == frame);
    let mut times: Vec<u64> = mine.map(|one| one.at_ns).collect();
    times.sort_unstable();
    times
}

/// Whether the flow is that of a sender.
fn is_sent(flow: &WireFlow) -> bool {
    flow.inbound && flow.transport == Transport::Tcp && flow.target.1 >= TARGETS
}

/// Selects the flow of the sender with this source port.
fn from_port(port: u16) -> impl Fn(&WireFlow) -> bool + Copy {
    move |flow| is_sent(flow) && flow.source.1 == port
}

fn is_in(count: f64, range: std::ops::RangeInclusive<u64>) -> bool {
    range.contains(&(count as u64))
}

/// The port of a sender.
fn source(number: u16) -> u16 {
    5001 + number
}

/// The port of a receiver.
fn target(number: u16) -> u16 {
    TARGETS + number
}

/// The first port of receivers.
const TARGETS: u16 = 7000;
/// Rate of the link for the command line.
const RATE: &str = "10mbit";
/// Rate of the link in bit/s.
const LINK: u64 = 10_000_000;
/// Bytes of a full frame, so that it takes [`PACKET`].
const FRAME: u64 = 1500;
/// Bytes of a full frame of Ethernet, without check sum.
const ETHERNET_FRAME: u64 = 1514;
/// Bytes of the Ethernet header.
const ETHERNET: u64 = 14;
/// A packet's time on the link, in ns.
const PACKET: u64 = 1_200_000;
/// Time in seconds from the first packet until the measurement begins.
const SETTLE: f64 = 1.0;
/// The connections of figure 5, and their goodput in its three stages in the paper, in Mbit/s.
const CONNECTIONS: [&str; 3] = ["c1", "c2", "c3"];
const PAPERS_GOODPUT: [[f64; 3]; 3] = [[0.17, 0.0, 0.0], [0.17, 7.5, 0.0], [0.17, 3.5, 4.2]];
/// The payload of a full frame: 1434 bytes.
const PAYLOAD_PART: f64 = 1434.0 / FRAME as f64;
