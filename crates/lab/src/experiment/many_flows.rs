//! The experiment `direct-scale` opens 65,536 flows of 64 programs through the shipped parts
//! ([`super::front_door`]), has all of them send, and closes them.
//!
//! Each flow has the contract `cell pcr=1kbit,cdvt=1s` on a link of 1 Gbit/s, and always has a
//! packet of 242 bytes to send, so it sends one in 1.936 s. The programs open their flows at the
//! same time. Meanwhile another user runs `netnice show`. Half of the programs close their flows
//! one by one, the others end with all flows open.
//!
//! The checks: how many flows are opened in a second; the daemon's largest resident memory; that
//! each flow sent as many packets as its contract grants in the time of sending (two less or more,
//! since the first and the last interval are cut); that `netnice check` finds no packet early, in
//! the first flow of each local port (one of 64); and that no flow is left at the end.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if the subject is
//! not netnice, if a flow cannot be opened, or if a step of the measurement fails.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::bench::{at, netnice_only, pause};
use super::sent_packets::check_conformance;
use super::{Bound, Context, Outcome};
use crate::process::{self, EVENT_TIMEOUT};
use crate::stats;
use crate::traffic::{Commanded, ManyFlows, REMOTE_PORTS};
use crate::wire::{Tap, Transport, WireFlow};
use crate::world::{Family, Netnice, Pair, World};

/// The number of programs and flows, and how long they send.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// The number of programs.
    pub programs: u16,
    /// Flows of each program.
    pub flows: u16,
    /// The seconds for which the flows send.
    pub seconds: f64,
}

/// What was measured.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Flows opened in a second, from the first call of a program to the last answer.
    pub opened_per_second: f64,
    /// Flows closed in a second, one by one, by half of the programs.
    pub closed_per_second: f64,
    /// Seconds until the flows of the other half were closed, after their programs had ended.
    pub ended_after: f64,
    /// The daemon's largest resident memory in bytes.
    pub memory: u64,
    /// The times of `netnice show` by another user while flows were opened, in ms.
    pub shows: Vec<f64>,
    /// Flows that sent less than their contracts grant.
    pub below: usize,
    /// Flows that sent more than their contracts grant.
    pub above: usize,
    /// Packets that the driver returned unsent.
    pub unsent: u64,
    /// Packets that `netnice check` examined.
    pub judged: u64,
    /// Packets that `netnice check` found early.
    pub early: u64,
    /// Flows that `netnice show` lists at the end.
    pub left: usize,
}

/// Runs the experiment and adds its checks and results to `outcome`. Fails as the module says.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!("65,536 flows: opened at 2,000/s or more, daemon 200 MiB or less");
    let size = match context.quick {
        true => Size {
            programs: 8,
            flows: 512,
            seconds: 10.0,
        },
        false => Size {
            programs: 64,
            flows: 1024,
            seconds: 30.0,
        },
    };
    let measured = measure(size)?;
    let mib = measured.memory as f64 / f64::from(1 << 20);
    let rate = measured.opened_per_second;
    outcome.check("flows opened", rate, "1/s", Bound::AtLeast(2_000.0));
    outcome.check(
        "largest memory of the daemon",
        mib,
        "MiB",
        Bound::AtMost(200.0),
    );
    let none = [
        ("flows that sent less than granted", measured.below as f64),
        ("flows that sent more than granted", measured.above as f64),
        ("packets that came back unsent", measured.unsent as f64),
        ("early packets of sampled flows", measured.early as f64),
        ("flows left at the end", measured.left as f64),
    ];
    for (what, number) in none {
        outcome.check(what, number, "", Bound::AtMost(0.0));
    }
    let judged = measured.judged as f64;
    outcome.check("sampled packets", judged, "", Bound::AtLeast(1.0));
    outcome.ours("flows", u32::from(size.programs) * u32::from(size.flows));
    outcome.ours("flows closed one by one, 1/s", measured.closed_per_second);
    outcome.ours(
        "half of the programs ended: s until no flow is left",
        measured.ended_after,
    );
    let shows = &measured.shows;
    let times = match shows.is_empty() {
        true => Value::Null,
        false => json!({"p50": stats::median(shows), "max": stats::greatest(shows)}),
    };
    outcome.ours("show by another user meanwhile, ms", times);
    Ok(())
}

/// Opens, sends and closes. Fails as the module says.
pub fn measure(size: Size) -> Result<Measured> {
    let world = World::pair(Pair::default())?;
    let netnice = world.netnice("client")?;
    netnice.run_line(&format!(
        "link {} --rate 1gbit",
        world.client().port().device
    ))?;
    let _sinks = sinks(&world)?;
    let mut programs = start(&world, &netnice, size)?;
    let (opened, shows) = open_all((&world, &netnice), &mut programs, size)?;
    let (file, tap) = capture(&world)?;
    let sending = Instant::now();
    command_all(&mut programs, "send", "sending")?;
    pause(size.seconds);
    let least = sending.elapsed();
    let halted = command_all(&mut programs, "halt", "done")?;
    let most = sending.elapsed();
    tap.stop(&world.server().ns)?.validate()?;
    let (below, above, unsent) = counts(&halted, size, least, most)?;
    let (judged, early) = judge(&file, size)?;
    let mut rest = programs.split_off(programs.len() / 2);
    let closed = command_all(&mut programs, "close", "closed")?;
    let ending = Instant::now();
    rest.clear();
    while !shown_flows(&netnice)?.is_empty() {
        ensure!(
            ending.elapsed() < OPENING_TIMEOUT,
            "flows of ended programs stay open"
        );
        pause(0.1);
    }
    let ended_after = ending.elapsed().as_secs_f64();
    drop(programs);
    Ok(Measured {
        opened_per_second: per_second(&opened, "opened")?,
        closed_per_second: per_second(&closed, "closed")?,
        ended_after,
        memory: netnice.largest_daemon_memory()?,
        shows,
        below,
        above,
        unsent,
        judged,
        early,
        left: shown_flows(&netnice)?.len(),
    })
}

/// Sockets at the remote ports, which read nothing.
fn sinks(world: &World) -> Result<Vec<UdpSocket>> {
    let server = world.server();
    let ports = (0..REMOTE_PORTS).map(|number| FIRST_REMOTE + number);
    let bind = |port| {
        let at = at(server, Family::V4, port);
        server.ns.enter(|| Ok(UdpSocket::bind(at)?))
    };
    ports.map(bind).collect()
}

fn start(world: &World, netnice: &Netnice, size: Size) -> Result<Vec<Commanded>> {
    let client = world.client();
    let ports = size.flows.div_ceil(REMOTE_PORTS);
    let one = |number: u16| {
        let from = at(client, Family::V4, FIRST_LOCAL + number * ports);
        let to = at(world.server(), Family::V4, FIRST_REMOTE);
        let flows = ManyFlows {
            flows: size.flows,
            contracts: &[CONTRACT],
            size: PAYLOAD,
            buffers: 4,
            batch: 1,
            refill: Duration::from_secs(1),
        };
        let runtime = netnice.runtime();
        Commanded::many_flows(client, runtime, (from, to), &flows, OPENING_TIMEOUT)
    };
    (0..size.programs).map(one).collect()
}

/// Has all programs open their flows at the same time. The answers, and the times of `netnice show`
/// by another user meanwhile, in ms.
fn open_all(
    (world, netnice): (&World, &Netnice),
    programs: &mut [Commanded],
    size: Size,
) -> Result<(Vec<Value>, Vec<f64>)> {
    let mut viewer = Viewer::new(world, netnice)?;
    for program in programs.iter_mut() {
        program.command("open")?;
    }
    let first = programs.first_mut().context("there is a program")?;
    let mut answers = Vec::new();
    let began = Instant::now();
    let mut shows = Vec::new();
    // The last command may end after the flows are open.
    while answers.is_empty() {
        ensure!(
            began.elapsed() < OPENING_TIMEOUT,
            "flows are not opened in time"
        );
        shows.push(viewer.show()?);
        pause(0.2);
        if let Ok(answer) = first.answer("opened", Duration::from_millis(1)) {
            answers.push(answer);
        }
    }
    for program in &mut programs[1..] {
        answers.push(program.answer("opened", OPENING_TIMEOUT)?);
    }
    for answer in &answers {
        let all = answer["opened"] == json!(size.flows);
        ensure!(all, "a program cannot open its flows: {answer}");
    }
    Ok((answers, shows))
}

/// `netnice show` as run by another user.
struct Viewer {
    command: Command,
}

impl Viewer {
    fn new(world: &World, netnice: &Netnice) -> Result<Viewer> {
        // The folder of the build may not be open to other users.
        let copy = world.folder().join("netnice-for-all");
        let mut install = Command::new("install");
        install
            .args(["-m", "755", "--"])
            .arg(process::binary("netnice")?);
        process::run(install.arg(&copy))?;
        let mut command = world.client().ns.command("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"]);
        command.arg(copy).args(["show", "--json"]);
        command.env("NETNICE_RUNTIME_DIR", netnice.runtime());
        Ok(Viewer { command })
    }

    /// Runs the command once, and returns the time in ms.
    fn show(&mut self) -> Result<f64> {
        let began = Instant::now();
        let output = self.command.output().context("netnice show")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "show by another user: {complaint}");
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }
}

/// Gives all programs a command, and returns their answers.
fn command_all(programs: &mut [Commanded], command: &str, key: &str) -> Result<Vec<Value>> {
    for program in programs.iter_mut() {
        program.command(command)?;
    }
    let answers = programs.iter_mut();
    answers
        .map(|program| program.answer(key, OPENING_TIMEOUT))
        .collect()
}

/// A tap at the server that keeps the packets of the first flow of each local port.
fn capture(world: &World) -> Result<(PathBuf, Tap)> {
    let server = world.server();
    let file = world.folder().join("many-flows.pcap");
    let is_sampled = |flow: &WireFlow| {
        flow.inbound && flow.transport == Transport::Udp && flow.target.1 == FIRST_REMOTE
    };
    let tap = Tap::start_capturing(&server.ns, &server.port().device, &file, is_sampled)?;
    Ok((file, tap))
}

/// The number of flows that sent less and more than granted, if they sent for at least `least` and
/// at most `most`; and the number of packets that came back unsent.
fn counts(
    halted: &[Value],
    size: Size,
    least: Duration,
    most: Duration,
) -> Result<(usize, usize, u64)> {
    let granted = |time: Duration| (time.as_nanos() as u64) / INTERVAL;
    let (fewest, largest) = (granted(least).saturating_sub(2), granted(most) + 2);
    let (mut below, mut above, mut unsent) = (0, 0, 0);
    for answer in halted {
        let done: Vec<u64> = serde_json::from_value(answer["done"].clone())?;
        ensure!(
            done.len() == usize::from(size.flows),
            "{} flows sent",
            done.len()
        );
        below += done.iter().filter(|sent| **sent < fewest).count();
        above += done.iter().filter(|sent| **sent > largest).count();
        unsent += answer["unsent"]
            .as_u64()
            .context("a number of unsent packets")?;
    }
    Ok((below, above, unsent))
}

/// The numbers of packets that `netnice check` examined and found early in the capture.
fn judge(file: &Path, size: Size) -> Result<(u64, u64)> {
    let ports = size.programs * size.flows.div_ceil(REMOTE_PORTS);
    let (mut judged, mut early) = (0, 0);
    for port in (FIRST_LOCAL..).take(usize::from(ports).min(SAMPLED)) {
        let contract = CONTRACT.trim_start_matches("cell ");
        let (seen, wrong) = check_conformance(file, &["--cell", contract], port)?;
        ensure!(seen > 0, "no packet from port {port} arrived");
        judged += seen;
        early += wrong;
    }
    Ok((judged, early))
}

/// Flows in a second, from the first beginning to the last end.
fn per_second(answers: &[Value], key: &str) -> Result<f64> {
    let numbers = |key: &str| -> Result<Vec<u64>> {
        let of = |answer: &Value| answer[key].as_u64().context("a number");
        answers.iter().map(of).collect()
    };
    let total: u64 = numbers(key)?.iter().sum();
    let from = numbers("from_ns")?.into_iter().min().unwrap_or(0);
    let until = numbers("until_ns")?.into_iter().max().unwrap_or(0);
    Ok(total as f64 * 1e9 / (until - from).max(1) as f64)
}

fn shown_flows(netnice: &Netnice) -> Result<Vec<Value>> {
    let shown = netnice.show()?;
    Ok(shown["direct"].as_array().cloned().unwrap_or_default())
}

const CONTRACT: &str = "cell pcr=1kbit,cdvt=1s";
/// Payload of a packet in bytes.
const PAYLOAD: usize = 200;
/// The time between two packets of 242 bytes at 1 kbit/s, in ns.
const INTERVAL: u64 = 242 * 8 * 1_000_000;
const FIRST_LOCAL: u16 = 10_000;
const FIRST_REMOTE: u16 = 40_000;
/// The largest number of sampled flows.
const SAMPLED: usize = 256;
/// The user and the group `nobody`.
const NOBODY: &str = "65534";
/// Time limit for each step of all programs.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10 * EVENT_TIMEOUT.as_secs());
