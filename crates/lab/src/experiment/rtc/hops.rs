//! rtc-hops: two channels from a client over a router to a server, through what is shipped:
//! netniced and netnice-driver on three hosts, their netnice-peer, and programs that use it. Floods
//! of the kernel's UDP fill every cable, TCP passes beside them, and a spinning program loads all
//! processors. All programs of the router are in a time namespace in which `CLOCK_MONOTONIC` is
//! 1,000 s ahead: no clocks need to agree.
//!
//! A message is late if the sink has it complete after its logical arrival at the source and the
//! deadline. A late message is excused only by recorded stops of the threads that it passed,
//! between its logical arrival and its end: both handlers' threads, the relay's, and all drivers.
//!
//! The function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a channel is refused, or if a step of the measurement fails.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netnice_core::stops::Stop;
use netnice_core::units::Instant;
use serde_json::{Value, json};

use super::super::simulated::netnice_only;
use super::hosts::{Hosts, LINKS};
use super::results;
use crate::alibi::{self, Alibi};
use crate::experiment::{Bound, Context, Outcome, front_door};
use crate::process;
use crate::traffic::{self, Carnage, NetworkProgram, NetworkReceived, NetworkSent, Tcp};
use crate::world::PeerOptions;

/// A channel with its ends.
struct Ends {
    name: &'static str,
    deadline_ns: u64,
    source: NetworkProgram,
    sink: NetworkProgram,
}

/// Sends for ten minutes. No message may be lost, and none late without an excuse; at most one in
/// 1,000 may be late with one. Fails as the module says.
pub fn hops(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!("the paper promises deadlines over several hops, and measures one");
    let lasts = Duration::from_secs(if context.quick { 10 } else { 600 });
    let hosts = Hosts::with_clocks()?;
    let mut all = Vec::new();
    for (name, contract, cpu) in CHANNELS {
        all.push(hosts.open(name, contract, cpu)?);
    }
    let client = hosts.world.host("client");
    let processors = std::thread::available_parallelism()?.get() as u32;
    let spinner = Carnage::new(processors, 0).start(client, None)?;
    let server = hosts.world.host("server");
    let floods = hosts.flood()?;
    let to = (server.port().v4, 8_000).into();
    let sink = traffic::start_now(server, &Tcp::listen(to).sink())?;
    let program = Tcp::connect(to, 4).source().congestion("cubic");
    let tcp = traffic::start_now(client, &program)?;
    context.say(format!("{} s of messages", lasts.as_secs()));
    for ends in &mut all {
        ends.source.begin(lasts)?;
    }
    let mut sent = Vec::new();
    for ends in &mut all {
        sent.push(ends.source.sent(lasts)?);
    }
    std::thread::sleep(Duration::from_millis(500));
    for flood in floods {
        flood.stop()?;
    }
    tcp.stop()?;
    sink.stop()?;
    spinner.stop()?;
    let drivers = hosts.driver_stops()?;
    let relay = hosts.relay_stops()?;
    let evidence = [&drivers[..], &relay].concat();
    for ends in &all {
        let explained = hosts.explain(ends)?;
        outcome.ours(&format!("{}: what each host kept", ends.name), explained);
    }
    for (ends, sent) in all.iter_mut().zip(&sent) {
        let received = ends.sink.received()?;
        judge(outcome, ends, sent, &received, &evidence)?;
    }
    front_door::note_stops(outcome, &drivers);
    outcome.ours("stops of the relay's thread", lengths(&relay));
    outcome.note(
        "netniced, netnice-driver and netnice-peer on three hosts; floods of UDP on every cable and of \
         TCP from client to server, and a spinning thread for each processor; handlers with reservations, the relay with \
         1 ms of every 8 ms; the router's clock is 1,000 s ahead; messages 0.2 ms farther apart than the contract permits",
    );
    Ok(())
}

/// The total and the longest of some stops, in ms.
fn lengths(stops: &[Stop]) -> Value {
    let lengths = || stops.iter().map(|stop| stop.length.0);
    let ms = |ns: u64| ns as f64 / 1e6;
    json!({
        "number": stops.len(),
        "total, ms": ms(lengths().sum()),
        "longest, ms": ms(lengths().max().unwrap_or(0)),
    })
}

/// Checks what holds for a channel, by the stops of the driver's and the relay's threads.
fn judge(
    outcome: &mut Outcome,
    ends: &Ends,
    sent: &NetworkSent,
    received: &NetworkReceived,
    passed: &[Stop],
) -> Result<()> {
    let name = ends.name;
    let mut evidence: Vec<Stop> = passed.to_vec();
    for stops in [&sent.stops, &received.stops] {
        let log = stops.join("\n") + "\n";
        evidence.extend(alibi::parse(&log)?);
    }
    let alibi = Alibi::new(&evidence, 0, 0.0);
    let (mut laxities, mut ended) = (Vec::new(), Vec::new());
    for (number, complete) in &received.complete_ns {
        let due = sent.deadlines_ns.get(*number as usize);
        let due = *due.context("a message that was not sent")?;
        laxities.push((due as f64 - *complete as f64) / 1e6);
        ended.push([due - ends.deadline_ns, due, *complete]);
    }
    outcome.ours(&format!("{name}: counts of the sink"), &received.counts);
    let verdict = alibi.judge_messages(ended);
    laxities.sort_by(f64::total_cmp);
    let part = |part: f64| {
        laxities
            .get((laxities.len() as f64 * part) as usize)
            .copied()
    };
    outcome.ours(
        &format!("{name}: laxity at the sink, ms"),
        json!({"least": part(0.0), "1st percentile": part(0.01), "median": part(0.5)}),
    );
    outcome.ours(
        &format!("{name}: bounds of the hosts, ns"),
        &ends.source.hops,
    );
    let what = format!("{name}: messages late");
    results::check_late(outcome, &what, verdict, sent.deadlines_ns.len());
    outcome.ours(&what, results::late(verdict, sent.deadlines_ns.len()));
    let lost = sent.deadlines_ns.len().abs_diff(received.complete_ns.len()) as u64;
    let what = format!("{name}: messages lost or wrong at the sink");
    let wrong = (lost + received.wrong + sent.unsent) as f64;
    outcome.check(what, wrong, "messages", Bound::AtMost(0.0));
    Ok(())
}

impl Hosts {
    /// The router has clocks of its own, and reserves time for its relay.
    fn with_clocks() -> Result<Hosts> {
        let hosts = Hosts::start("100mbit", |host, netnice| {
            netnice.restart_with(&["--driver-stops"])?;
            if host != ROUTER {
                return Ok(PeerOptions::default());
            }
            netnice.stop_daemon();
            netnice.start_daemon_through(&AHEAD)?;
            Ok(PeerOptions {
                further: &["--relay-cpu", "1ms", "--relay-time", "5ms", "--relay-stops"],
                through: &AHEAD,
                ..PeerOptions::default()
            })
        })?;
        let relay = hosts.peers[1].pid().context("it runs")?;
        check_clock(relay)?;
        check_clock(hosts.netnices[1].pid().context("it runs")?)?;
        // netnice names a process by its start, which its time namespace shifts.
        let (program, words) = AHEAD.split_first().context("a program")?;
        let mut command = hosts.world.host(ROUTER).ns.command(program);
        command.args(words).arg(process::binary("netnice")?);
        command.args(["set", &format!("pid:{relay}"), "--cpu", "1ms/8ms"]);
        command.env("NETNICE_RUNTIME_DIR", hosts.netnices[1].runtime());
        process::run(&mut command)?;
        Ok(hosts)
    }

    fn open(&self, name: &'static str, contract: &str, cpu: &str) -> Result<Ends> {
        let [client, _, server] = [0, 1, 2].map(|at| self.netnices[at].runtime());
        let sink = NetworkProgram::sink(self.world.host("server"), server, name, Some(cpu))?;
        let to = format!("{name}@server");
        let host = self.world.host("client");
        let source = NetworkProgram::source(host, client, (&to, contract), Some(cpu))?;
        let parsed: netnice_core::contract::Contract = contract.parse()?;
        let channel = parsed.channel().context("no channel")?;
        Ok(Ends {
            name,
            deadline_ns: channel.deadline().0,
            source,
            sink,
        })
    }

    /// What `netnice explain` at the source says of the channel.
    fn explain(&self, ends: &Ends) -> Result<Value> {
        let channel = ends.source.channel.as_deref().context("a source")?;
        let said = self.netnices[0].run_line(&format!("explain channel:{channel} --json"))?;
        Ok(serde_json::from_str(&said.ok()?.stdout)?)
    }

    /// The stops of all drivers that messages pass, by the clock of the other hosts.
    fn driver_stops(&self) -> Result<Vec<Stop>> {
        let mut stops = Vec::new();
        for ((host, links), netnice) in LINKS.iter().zip(&self.netnices) {
            let ahead = if *host == ROUTER { AHEAD_NS } else { 0 };
            for link in *links {
                let of_driver = front_door::stops(netnice, link)?.into_iter();
                stops.extend(of_driver.map(|stop| by_clock(stop, ahead)));
            }
        }
        Ok(stops)
    }

    /// The stops of the relay's thread, by the clock of the other hosts.
    fn relay_stops(&self) -> Result<Vec<Stop>> {
        let folder = self.netnices[1].runtime().display().to_string() + "-peer";
        let file = std::path::Path::new(&folder).join("relay.stops");
        let log = std::fs::read_to_string(&file);
        let log = log.with_context(|| format!("the relay's stops in {}", file.display()))?;
        let stops = alibi::parse(&log)?.into_iter();
        Ok(stops.map(|stop| by_clock(stop, AHEAD_NS)).collect())
    }
}

/// A stop by a clock that is this many ns behind.
fn by_clock(stop: Stop, behind: u64) -> Stop {
    Stop {
        start: Instant(stop.start.0.saturating_sub(behind)),
        ..stop
    }
}

/// Fails unless a process is in a time namespace of its own.
fn check_clock(pid: u32) -> Result<()> {
    let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/time"));
    ensure!(
        of(&pid.to_string())? != of("self")?,
        "process {pid} has the clock of the other hosts"
    );
    Ok(())
}

const ROUTER: &str = "router";

/// Executes a program in a time namespace whose clocks are [`AHEAD_NS`] ahead.
const AHEAD: [&str; 5] = [
    "unshare",
    "--time",
    "--monotonic=1000",
    "--boottime=1000",
    "--",
];
const AHEAD_NS: u64 = 1_000_000_000_000;

/// The channels, and the processor time of each end. Four reservations, that of the relay and those
/// of the drivers must fit into two processors. The deadlines of 60 and 30 ms that were wanted are
/// refused here: of camera, because its packets need most of the time that its ends can have, and a
/// budget that the kernel ends a tick (4 ms) late is used up; of control, because of what the three
/// hosts need beside each other.
const CHANNELS: [(&str, &str, &str); 2] = [
    (
        "camera",
        "channel mmax=64KiB,rmax=50/s,bmax=1,deadline=75ms",
        "2200us/6ms",
    ),
    (
        "control",
        "channel mmax=1KiB,rmax=200/s,bmax=1,deadline=45ms",
        "700us/4ms",
    ),
];
