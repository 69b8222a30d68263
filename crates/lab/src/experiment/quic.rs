//! The experiment `direct-quic` sends by QUIC (quinn) over flows of the direct path. One program
//! has 16 connections, each of which is a flow with a `cell` contract of its own, from 1 to 20
//! Mbit/s; the sum is 76 % of the link. The program runs once with these alone, and once with a
//! connection that has no contract beside them and takes what is left. At the other end of the
//! cable a program accepts the connections on one socket of the kernel, and compares the content of
//! each stream. In a second part the end with the flow accepts, and the one with the kernel's
//! socket connects.
//!
//! Judged are the conformance of each connection's packets, by `netnice check`, and its goodput:
//! what the receiving program read in a second, as a share of what the contract's rate leaves
//! behind the headers ([`payload_share`]). In the quick form what the rate would have carried in
//! stolen time counts as read. Times between packets are in the measured values only.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if the subject is
//! not netnice, if a flow is not granted, if a connection or its content fails, or if a step of the
//! measurement fails.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::bench::{netnice_only, pause};
use super::sent_packets::check_conformance;
use super::{Bound, Context, Outcome};
use crate::alibi::StolenTime;
use crate::process::{self, EVENT_TIMEOUT, Proc};
use crate::stats;
use crate::sys;
use crate::traffic::Received;
use crate::wire::{Record, Tap, Transport};
use crate::world::{Host, Netnice, Pair, World};

/// The rates of the contracts in Mbit/s.
const RATES: [u64; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 14, 15, 16, 18, 20];
/// Those of the quick form.
const FEW_RATES: [u64; 3] = [1, 10, 20];

/// What one run measured.
struct Run {
    /// By connection, in bit/s; the one without a contract is the last.
    goodput: Vec<f64>,
    /// Packets that `netnice check` judged, and those that it found early, by connection with a
    /// contract.
    judged: Vec<(u64, u64)>,
    /// The 1st and the 99th percentile of the times between packets in us, by connection.
    gaps: Vec<(f64, f64)>,
    /// The part of the time that was stolen from the processors.
    stolen: f64,
}

/// Measures both parts. Fails as the module says.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let (rates, seconds): (&[u64], f64) = match context.quick {
        true => (&FEW_RATES, 3.0),
        false => (&RATES, 10.0),
    };
    outcome.paper = json!("0 packets early; goodput at least 97 % of the contract's payload share");
    let cells: Vec<String> = rates.iter().map(|rate| cell(*rate)).collect();
    let sum: u64 = rates.iter().sum();
    let link = sum * 100 / 76;
    for beside in [false, true] {
        let mut contracts = cells.clone();
        if beside {
            contracts.push(String::new());
        }
        let what = match beside {
            true => "beside one without a contract",
            false => "alone",
        };
        let seen = uploads(link, &contracts, seconds)?;
        judge(outcome, context, what, rates, &seen);
    }
    let seen = download(20, seconds)?;
    judge(outcome, context, "the flow's end accepts", &[20], &seen);
    Ok(())
}

/// The contract of a connection with this rate in Mbit/s.
fn cell(megabit: u64) -> String {
    format!("pcr={megabit}mbit,cdvt=5ms")
}

fn judge(outcome: &mut Outcome, context: &Context, what: &str, rates: &[u64], seen: &Run) {
    let share = payload_share();
    let parts: Vec<f64> = rates
        .iter()
        .zip(&seen.goodput)
        .map(|(rate, goodput)| goodput / (*rate as f64 * 1e6 * share))
        .collect();
    let rounded = |value: &f64| (value * 1000.0).round() / 1000.0;
    let row = json!({
        "Mbit/s": rates,
        "goodput, share of the contract's payload": parts.iter().map(rounded).collect::<Vec<_>>(),
        "without a contract, Mbit/s": seen.goodput.get(rates.len()).map(|rate| rounded(&(rate / 1e6))),
        "gap p1, us": seen.gaps.iter().map(|gap| rounded(&gap.0)).collect::<Vec<_>>(),
        "gap p99, us": seen.gaps.iter().map(|gap| rounded(&gap.1)).collect::<Vec<_>>(),
        "stolen, %": rounded(&(seen.stolen * 100.0)),
    });
    context.say(format!("{what}: {row}"));
    outcome.ours(what, row);
    let early: u64 = seen.judged.iter().map(|judged| judged.1).sum();
    let least = seen.judged.iter().map(|judged| judged.0).min().unwrap_or(0);
    let name = format!("{what}: packets that netnice check finds early");
    outcome.check(name, early as f64, "", Bound::AtMost(0.0));
    let name = format!("{what}: fewest packets of a connection that it judged");
    outcome.check(name, least as f64, "", Bound::AtLeast(100.0));
    let name = format!("{what}: least goodput, share of the contract's payload");
    let least = context.with_stolen(stats::least(&parts), 1.0, seen.stolen);
    outcome.check(name, least, "", Bound::AtLeast(0.97));
    let name = format!("{what}: most goodput, share of the contract's payload");
    outcome.check(name, stats::greatest(&parts), "", Bound::AtMost(1.03));
}

/// The part of a contract's rate that is payload of streams: a contract counts frames of 1514
/// bytes, with 42 bytes of headers below QUIC, and [`QUIC_HEADERS`].
fn payload_share() -> f64 {
    let frame = 1514.0;
    (frame - 42.0 - QUIC_HEADERS) / frame
}

/// One program on the client sends over a flow for each contract; the server accepts.
fn uploads(link: u64, contracts: &[String], seconds: f64) -> Result<Run> {
    let setup = Setup::new(link)?;
    let receiver = setup.end(setup.world.server(), &["--accept"], SERVER_PORT, &[])?;
    let mut receiver = receiver.ready()?;
    let time = format!("{}", (seconds * 1e3) as u64);
    let words = ["--connect", "--send-ms", &time];
    let sender = setup.end(setup.world.client(), &words, FLOW_PORT, contracts)?;
    let sender = sender.ready()?;
    setup.measure(sender, &mut receiver, contracts, seconds)
}

/// A flow of the client accepts a connection from the server's kernel socket, and sends.
fn download(megabit: u64, seconds: f64) -> Result<Run> {
    let setup = Setup::new(megabit * 2)?;
    let contracts = [cell(megabit)];
    let time = format!("{}", (seconds * 1e3) as u64);
    let words = ["--accept", "--send-ms", &time];
    let sender = setup.end(setup.world.client(), &words, FLOW_PORT, &contracts)?;
    let sender = sender.ready()?;
    let receiver = setup.end(setup.world.server(), &["--connect"], SERVER_PORT, &[])?;
    let mut receiver = receiver.ready()?;
    setup.measure(sender, &mut receiver, &contracts, seconds)
}

/// Two hosts, with a daemon on the client.
struct Setup {
    netnice: Netnice,
    world: World,
}

/// A started traffic program.
struct End(Proc);

impl End {
    fn ready(mut self) -> Result<End> {
        self.0.next_json("ready", EVENT_TIMEOUT)?;
        Ok(self)
    }
}

impl Setup {
    fn new(megabit: u64) -> Result<Setup> {
        let world = World::pair(Pair::default())?;
        let netnice = world.netnice("client")?;
        let device = &world.client().port().device;
        netnice.run_line(&format!("link {device} --rate {megabit}mbit"))?;
        Ok(Setup { netnice, world })
    }

    /// Starts a program at `port` of a host. Without contracts it uses the kernel.
    fn end(&self, host: &Host, words: &[&str], port: u16, contracts: &[String]) -> Result<End> {
        let other = match host.name == self.world.client().name {
            true => (self.world.server().port().v4, SERVER_PORT),
            false => (self.world.client().port().v4, FLOW_PORT),
        };
        let local = format!("{}:{port}", host.port().v4);
        let mut command = host.ns.command(process::binary("netnice-lab")?);
        command.args(["traffic", "quic-flows", "--local", &local]);
        command.args(["--remote", &format!("{}:{}", other.0, other.1)]);
        command.args(words);
        command.arg("--certificate");
        command.arg(self.world.folder().join("certificate"));
        command.arg("--runtime-dir").arg(self.netnice.runtime());
        for contract in contracts {
            let contract = match contract.is_empty() {
                true => String::new(),
                false => format!("cell {contract}"),
            };
            command.arg(format!("--contract={contract}"));
        }
        Ok(End(Proc::start(command)?))
    }

    /// Has the sender send, and measures at the receiver and on the wire.
    fn measure(
        &self,
        mut sender: End,
        receiver: &mut End,
        contracts: &[String],
        seconds: f64,
    ) -> Result<Run> {
        let server = self.world.server();
        let file = self.world.folder().join("quic.pcap");
        let tap = Tap::start_capturing(&server.ns, &server.port().device, &file, |flow| {
            flow.inbound && flow.transport == Transport::Udp && flow.target.1 == SERVER_PORT
        })?;
        sender.0.write_line("go")?;
        pause(SETTLE);
        let begin = sys::now_ns();
        let stolen = StolenTime::watch();
        pause(seconds - SETTLE - 0.2);
        let stolen = stolen.share();
        let end = sys::now_ns();
        let within = Duration::from_secs_f64(seconds) + EVENT_TIMEOUT;
        sender.0.next_json("sent", within)?;
        let goodput = received(receiver, contracts.len())?
            .iter()
            .map(|one| one.rate(begin, end))
            .collect::<Result<_>>()?;
        let record = tap.stop(&server.ns)?;
        record.validate()?;
        let ports = FLOW_PORT..FLOW_PORT + contracts.len() as u16;
        Ok(Run {
            goodput,
            judged: judged(&file, contracts)?,
            gaps: ports.map(|port| gaps(&record, port, begin, end)).collect(),
            stolen,
        })
    }
}

/// The receiver's reports, by number of the flow.
fn received(receiver: &mut End, number: usize) -> Result<Vec<Received>> {
    let mut all = Vec::new();
    while all.len() < number {
        let line = receiver.0.next_line(EVENT_TIMEOUT)?;
        let value: Value = serde_json::from_str(&line).context("a line of the receiver")?;
        if let Some(why) = value["failed"].as_str() {
            bail!("the receiver: {why}");
        }
        all.push(serde_json::from_value::<Received>(value)?);
    }
    all.sort_by_key(|one| one.stream);
    Ok(all)
}

/// How many packets of each connection with a contract were judged, and found early.
fn judged(file: &Path, contracts: &[String]) -> Result<Vec<(u64, u64)>> {
    let with = contracts.iter().zip(FLOW_PORT..);
    with.filter(|(contract, _)| !contract.is_empty())
        .map(|(contract, port)| check_conformance(file, &["--cell", contract], port))
        .collect()
}

/// The 1st and the 99th percentile of the times between packets from a port, in us.
fn gaps(record: &Record, port: u16, begin: u64, end: u64) -> (f64, f64) {
    let mut times = record.times(|flow| flow.source.1 == port);
    times.retain(|at| (begin..end).contains(at));
    let gaps: Vec<f64> = times
        .windows(2)
        .map(|two| (two[1] - two[0]) as f64 / 1e3)
        .collect();
    (
        stats::percentile(&gaps, 1.0),
        stats::percentile(&gaps, 99.0),
    )
}

/// Port of the end with the kernel's socket.
const SERVER_PORT: u16 = 7443;
/// Port of the first flow.
const FLOW_PORT: u16 = 7500;
/// Bytes of QUIC in a full packet of a stream: flags, connection id (8), packet number (2), tag
/// (16), and a stream frame's type, stream, offset (4) and length (2).
const QUIC_HEADERS: f64 = 35.0;
/// Time in s until the congestion windows are open and the path MTU is found.
const SETTLE: f64 = 1.0;
