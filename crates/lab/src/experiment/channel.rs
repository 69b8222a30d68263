//! The experiment `direct-channel` measures a real-time channel through the shipped parts:
//! netniced, admission, netnice-driver and the library, with ordinary processes as programs.
//!
//! A program sends a message of 11 datagrams (15,862 bytes with their headers; Mmax is 16 KiB)
//! every 10 ms, with a deadline of 10 ms; 2 ms of that are for the program. Beside it on the same
//! card are two slices and two cells that always have something to send, and a flood of 200 Mbit/s
//! by the kernel path. The cable behind the card carries 100 Mbit/s: a packet takes time on it, and
//! waits there behind what the card sent before. netnice is told 95 Mbit/s.
//!
//! A message is late if its last packet arrives at the far end of the cable more than 10 ms after
//! its logical arrival. This is the contract's: the time of the message, or 2 ms before the program
//! queued it, or 10 ms after the logical arrival before it, whichever is latest. The program queued
//! it when it called the library, or later by what its thread waited for a processor in that call;
//! the time for which the overload policy made it sleep is not counted (but the thread's wait for a
//! processor after that sleep is). A late message is
//! excused only by recorded stops of the driver ([`crate::alibi`]). If the contract does not fit
//! beside the others, the refusal with its inequality is the result.
//!
//! With a folder for kept runs, the times of all messages, packets and stops are written there.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if the subject is
//! not netnice, if the tap lost a packet, or if a step of the measurement fails.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::bench::{at, netnice_only};
use super::front_door::{DriverStops, check_verdict};
use super::{Bound, Context, Outcome};
use crate::alibi::{Alibi, StolenTime};
use crate::process::EVENT_TIMEOUT;
use crate::stats;
use crate::traffic::{self, Commanded, Direct, MessageShape, Udp};
use crate::wire::{Record, Tap, Transport, WireFlow};
use crate::world::{Cable, Family, World};

/// What the cable carries, and what netnice is told, in bit/s.
const CABLE: u64 = 100_000_000;
const LINK: u64 = 95_000_000;
const CHANNEL: &str = "channel mmax=16KiB,rmax=100/s,bmax=2,deadline=10ms,processing=2ms";
/// The time between messages, and their deadline, in ns.
const EVERY: u64 = 10_000_000;
const DEADLINE: i64 = 10_000_000;
/// The part of the deadline for the program, in ns.
const PROCESSING: u64 = 2_000_000;
const SHAPE: MessageShape = MessageShape {
    parts: 11,
    size: 1400,
};
/// The source ports: of the channel, and of the flows beside it with their contracts and the least
/// rates in bit/s.
const PORT: u16 = 5000;
const BESIDE: [(u16, &str, f64); 4] = [
    (5001, "slice 2ms/20ms", 9.5e6),
    (5002, "slice 1ms/20ms", 4.75e6),
    (5003, "cell pcr=10mbit,cdvt=3ms", 10e6),
    (5004, "cell pcr=5mbit,cdvt=5ms", 5e6),
];
/// The part of the link that guaranteed packets use.
const GUARANTEED: f64 = 0.45;
const FLOOD_PORT: u16 = 5005;
const FLOOD: u64 = 200_000_000;

/// Runs the experiment and adds its checks and results to `outcome`. Fails as the module says.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!("every message of a granted channel is in time");
    let world = World::switched(&[Cable::rated("client", CABLE, 50), Cable::free("server")])?;
    let mut netnice = world.netnice("client")?;
    let stolen = StolenTime::watch();
    netnice.restart_with(&["--driver-stops"])?;
    netnice.run_line(&format!("link eth0 --rate {}kbit", LINK / 1000))?;
    let (client, server) = (world.client(), world.server());
    let ends = |port| (at(client, Family::V4, port), at(server, Family::V4, port));
    let channel = Commanded::messages(client, netnice.runtime(), ends(PORT), CHANNEL, SHAPE);
    let mut channel = match channel {
        Ok(channel) => channel,
        Err(error) if format!("{error:#}").contains("does not fit") => {
            return refused(outcome, &error);
        }
        Err(error) => return Err(error),
    };
    let mut beside = Vec::new();
    for (port, contract, _) in BESIDE {
        let (from, to) = ends(port);
        let source = Direct::source(from, to).by(netnice.runtime());
        let source = traffic::start_now(client, &source.contract(contract));
        match source {
            Ok(source) => beside.push(source),
            Err(error) if format!("{error:#}").contains("does not fit") => {
                return refused(outcome, &error);
            }
            Err(error) => return Err(error),
        }
    }
    let (from, to) = ends(FLOOD_PORT);
    let flood = Udp::source(from, to).rate(FLOOD).size(1400);
    beside.push(traffic::start_now(client, &flood)?);
    std::thread::sleep(Duration::from_secs(2));
    let file = world.folder().join("channel.pcap");
    let is_channel =
        |flow: &WireFlow| flow.inbound && flow.transport == Transport::Udp && flow.source.1 == PORT;
    let tap = Tap::start_capturing(&server.ns, &server.port().device, &file, is_channel)?;
    let seconds = if context.quick { 20 } else { 600 };
    let messages = seconds * 1_000_000_000 / EVERY;
    channel.command(&format!("periodic {EVERY} {messages}"))?;
    let sent = channel.answer("first_ns", Duration::from_secs(seconds) + EVENT_TIMEOUT)?;
    // The last packets pass the cable.
    std::thread::sleep(Duration::from_millis(300));
    let stops = DriverStops::read(&netnice, "eth0", &stolen)?;
    let alibi = stops.alibi(GUARANTEED);
    let record = tap.stop(&server.ns)?;
    for source in beside {
        source.stop()?;
    }
    if let Some(folder) = &context.keep {
        let stops: Vec<String> = stops.stops.iter().map(ToString::to_string).collect();
        let packets = record.times(|flow: &WireFlow| flow.inbound && flow.source.1 == PORT);
        let run = json!({"sent": sent, "packets_ns": packets, "stops": stops});
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("direct-channel.json"), run.to_string())?;
    }
    judge(outcome, &record, &sent, messages, &alibi)
}

/// The contract does not fit: the inequality is the result. Fails if the refusal has none.
fn refused(outcome: &mut Outcome, error: &anyhow::Error) -> Result<()> {
    let text = format!("{error:#}");
    ensure!(
        text.contains('>'),
        "a refusal without its inequality: {text}"
    );
    outcome.note(format!("refused: {text}"));
    Ok(())
}

fn judge(
    outcome: &mut Outcome,
    record: &Record,
    sent: &Value,
    messages: u64,
    alibi: &Alibi,
) -> Result<()> {
    record.validate()?;
    let from_port = |port: u16| move |flow: &WireFlow| flow.inbound && flow.source.1 == port;
    let times = record.times(from_port(PORT));
    let packets = messages * u64::from(SHAPE.parts);
    ensure!(
        times.len() as u64 == packets,
        "{packets} packets of the channel were queued, and {} arrived",
        times.len()
    );
    let number = |name: &str| {
        sent[name]
            .as_u64()
            .with_context(|| format!("no {name}: {sent}"))
    };
    let first = number("first_ns")?;
    let wall: Vec<i64> = serde_json::from_value(sent["wall_ns"].clone())?;
    let times_of = |name: &str| -> Result<Vec<u64>> {
        let times: Vec<u64> = serde_json::from_value(sent[name].clone())?;
        ensure!(times.len() as u64 == messages, "{} of {name}", times.len());
        Ok(times)
    };
    // A message counts as queued when it was offered, or later by what its thread had to wait for a
    // processor before the call returned.
    let queued: Vec<u64> = std::iter::zip(times_of("queued_ns")?, times_of("waited_ns")?)
        .map(|(offered, waited)| offered + waited)
        .collect();
    let (mut logical, mut delayed) = (0, 0);
    // When each message was due and when its last packet arrived.
    let ends: Vec<(u64, u64)> = (0..messages)
        .zip(&queued)
        .map(|(message, queued)| {
            let planned = first + message * EVERY;
            delayed += u64::from(queued - PROCESSING > planned);
            logical = planned.max(queued - PROCESSING).max(logical + EVERY);
            let last = times[((message + 1) * u64::from(SHAPE.parts) - 1) as usize];
            let offset = wall[(message as usize * wall.len()) / messages as usize];
            let due = logical as i64 + offset + DEADLINE;
            (due.unsigned_abs(), last)
        })
        .collect();
    let laxity: Vec<f64> = ends
        .iter()
        .map(|(due, last)| (*due as f64 - *last as f64) / 1e3)
        .collect();
    let verdict = alibi.judge(ends, 0);
    let span = (times[0], times[times.len() - 1]);
    outcome.ours("messages", messages);
    outcome.ours("messages that the program queued late", delayed);
    outcome.ours("held back by the overload policy", number("held_back")?);
    for (name, percent) in [("least", 0.0), ("p1", 1.0), ("p50", 50.0), ("p99", 99.0)] {
        outcome.ours(
            &format!("laxity {name}, us"),
            stats::percentile(&laxity, percent),
        );
    }
    check_verdict(outcome, "messages late", verdict);
    for (port, contract, least) in BESIDE {
        let rate = record.rate(from_port(port), span.0, span.1);
        outcome.ours(&format!("{contract}, Mbit/s"), rate / 1e6);
        let what = format!("{contract}: rate");
        outcome.check(what, rate, "bit/s", Bound::AtLeast(least * 0.97));
    }
    let flood = record.rate(from_port(FLOOD_PORT), span.0, span.1);
    outcome.ours("flood of the kernel path, Mbit/s", flood / 1e6);
    Ok(())
}
