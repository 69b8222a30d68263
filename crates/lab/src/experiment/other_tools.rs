//! The experiment `other-tools`: a limit of 4 Mbit/s for one program, by netnice and by the tools
//! that people use for it now: HTB (also with fq_codel), TBF and CAKE set up by hand (with an IFB
//! device for what is received), trickle, wondershaper and TrafficToll. The program is iperf3 with
//! four connections. With trickle it has one, and a case is tried up to [`TRIES`] times, because
//! iperf3 often ends under trickle with "select failed".
//!
//! Each tool is asked for the same limit in the same run, in worlds of its own ([`CASES`]). A tool
//! that cannot do a case, or fails, says why in the row, in place of a number. Queues
//! that this kernel lacks are measured on another one (`cargo xtask vm`). Only netnice's
//! figures are judged. Rates are those on the wire; trickle counts payload, so its aim here is what
//! 4 Mbit/s leave for payload.
//!
//! [`run`] adds its checks and the table to an [`Outcome`]. It fails if a step of a measurement
//! fails that is no tool's.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};

use super::bench::{R4M, SECOND, netnice_only, pause, wait_until};
use super::{Bound, Context, Outcome};
use crate::process::{self, Proc};
use crate::sys;
use crate::traffic::real_programs::{Iperf, IperfReport, iperf_server};
use crate::traffic::{self, Udp};
use crate::wire::{self, Tap};
use crate::world::{Family, Host, Netnice, Offloads, Pair, World, htb};

/// A tool that limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Netnice,
    Htb,
    HtbFqCodel,
    Tbf,
    Cake,
    Trickle,
    Wondershaper,
    TrafficToll,
}

const TOOLS: [Tool; 8] = [
    Tool::Netnice,
    Tool::Htb,
    Tool::HtbFqCodel,
    Tool::Tbf,
    Tool::Cake,
    Tool::Trickle,
    Tool::Wondershaper,
    Tool::TrafficToll,
];

/// What a program does under the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// It sends; another program of the host sends 20 Mbit/s of UDP meanwhile, without a limit.
    Up,
    /// It receives.
    Down,
    /// It sends since two seconds when it is limited.
    Running,
    /// It is not iperf3 but a flood of UDP of 20 Mbit/s.
    Flood,
}

const CASES: [Case; 4] = [Case::Up, Case::Down, Case::Running, Case::Flood];

/// Runs all tools, and judges netnice. Fails as the module says.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!(
        "the program is limited, in both directions and also while it runs, and no other one"
    );
    let mut rows = Vec::new();
    for tool in TOOLS {
        let mut row = Map::new();
        row.insert("tool".into(), tool.name().into());
        for case in CASES {
            context.say(format!("{}: {}", tool.name(), case.name()));
            match several(context, tool, case) {
                Ok(found) => {
                    if tool == Tool::Netnice {
                        judge(context, outcome, case, &found);
                    }
                    row.insert(case.name().into(), found.percent.into());
                    if let Some(kept) = found.beside_percent {
                        row.insert(BESIDE.into(), kept.into());
                    }
                }
                Err(error) if tool == Tool::Netnice => return Err(error),
                Err(error) => {
                    row.insert(case.name().into(), reason(&error).into());
                    if case == Case::Up {
                        row.insert(BESIDE.into(), Value::Null);
                    }
                }
            }
        }
        row.insert("how it is set up".into(), tool.typed().into());
        rows.push(Value::Object(row));
    }
    outcome.ours("rate of the program on the wire, % of 4 Mbit/s", rows);
    outcome.note(
        "The program is iperf3 with four connections of cubic over a cable without delay, offloads \
         off. With trickle it has one connection and several tries, because it often ends under \
         trickle with \"select failed\". Rates are measured for 8 s, from 2 s after the program's \
         first data packet on, or, if it runs already, from 2 s after the limit is set. While the \
         program sends, another one sends 20 Mbit/s of UDP, for which no limit is wanted.",
    );
    Ok(())
}

/// Why a tool has no figure, in one line.
fn reason(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    if text.contains("qdisc kind is unknown") {
        return "this kernel has no such queue".to_owned();
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.next().unwrap_or("it fails").to_owned()
}

/// What was measured in a case.
struct Found {
    /// The program's rate on the wire.
    percent: f64,
    /// Part of its rate that the other program kept.
    beside_percent: Option<f64>,
}

/// Checks netnice's figures.
fn judge(context: &Context, outcome: &mut Outcome, case: Case, found: &Found) {
    let aim = Bound::Near {
        aim: 100.0,
        share: context.tolerance(0.01),
    };
    let what = format!("netnice, {}: rate on the wire", case.name());
    outcome.check(what, found.percent, "%", aim);
    if let Some(kept) = found.beside_percent {
        let least = Bound::AtLeast(100.0 - 100.0 * context.tolerance(0.01));
        outcome.check("netnice: rate that another program kept", kept, "%", least);
    }
}

/// Measures a tool in a case, with trickle until it does not fail, [`TRIES`] times at most.
fn several(context: &Context, tool: Tool, case: Case) -> Result<Found> {
    let mut tries = 1;
    loop {
        let found = measure(context, tool, case);
        if found.is_ok() || tool.cannot(case).is_some() || tool != Tool::Trickle || tries == TRIES {
            return found;
        }
        tries += 1;
    }
}

/// Measures a tool in a case. Fails also if the tool cannot do it.
fn measure(context: &Context, tool: Tool, case: Case) -> Result<Found> {
    if let Some(why) = tool.cannot(case) {
        bail!(why);
    }
    let world = World::pair(Pair {
        offloads: Offloads::Off,
        ..Pair::default()
    })?;
    let (client, server) = (world.client(), world.server());
    let netnice = (tool == Tool::Netnice)
        .then(|| world.netnice("client"))
        .transpose()?;
    let limited = Limited {
        tool,
        world: &world,
        netnice: netnice.as_ref(),
    };
    let mut kept_running = Vec::new();
    if case != Case::Running {
        kept_running.extend(limited.limit_host()?);
    }
    let mut other = None;
    if case == Case::Up {
        let ends = [client, server].map(|host| super::bench::at(host, Family::V4, OTHER));
        let sink = traffic::start_now(server, &Udp::sink(ends[1]))?;
        let source = Udp::source(ends[0], ends[1]).rate(OFFERED);
        other = Some((traffic::start_now(client, &source)?, sink));
    }
    let seconds = if context.quick { 3 } else { 8 };
    let of_program =
        move |flow: &wire::WireFlow| flow.has_port(PORT) && flow.inbound == (case != Case::Down);
    let first_data = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&first_data);
    let tap = Tap::start_watching(&server.ns, "eth0", move |packet, _| {
        if of_program(&packet.flow) && packet.wire > LEAST_DATA && seen.load(Relaxed) == 0 {
            seen.store(packet.at_ns, Relaxed);
        }
    })?;
    let mut program = limited.start(case)?;
    let mut limited_at = program.await_data(&first_data)?;
    if case == Case::Running {
        pause(2.0);
        kept_running.extend(limited.limit_running(program.pid())?);
        limited_at = sys::now_ns();
    }
    let from = limited_at + 2 * SECOND;
    let to = from + seconds * SECOND;
    wait_until(to);
    pause(0.1);
    let record = tap.stop(&server.ns)?;
    record.validate()?;
    let rate = record.rate(of_program, from, to);
    let offered = OFFERED as f64;
    let beside = other.is_some().then(|| {
        record.rate(|flow| flow.has_port(OTHER) && flow.inbound, from, to) / offered * 100.0
    });
    if let Some((source, sink)) = other {
        source.stop()?;
        sink.stop()?;
    }
    program.end()?;
    for mut helper in kept_running {
        helper.terminate(Duration::from_secs(2));
    }
    Ok(Found {
        percent: rate / R4M.bits as f64 * 100.0,
        beside_percent: beside,
    })
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Case::Up => "sends",
            Case::Down => "receives",
            Case::Running => "runs already",
            Case::Flood => "UDP flood",
        }
    }
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Netnice => "netnice",
            Tool::Htb => "HTB",
            Tool::HtbFqCodel => "HTB with fq_codel",
            Tool::Tbf => "TBF",
            Tool::Cake => "CAKE",
            Tool::Trickle => "trickle",
            Tool::Wondershaper => "wondershaper",
            Tool::TrafficToll => "TrafficToll",
        }
    }

    /// What a person types.
    fn typed(self) -> &'static str {
        match self {
            Tool::Netnice => {
                "netnice run --up 4mbit --down 4mbit -- iperf3 …; netnice set pid:N --up 4mbit"
            }
            Tool::Htb => "tc qdisc, class and filter on eth0 and ifb0: four to eight lines",
            Tool::HtbFqCodel => "as HTB, and two lines for the queues in the classes",
            Tool::Tbf => "tc qdisc on eth0 and ifb0: one to six lines",
            Tool::Cake => "tc qdisc add dev … root cake bandwidth 4mbit, on eth0 and ifb0",
            Tool::Trickle => "trickle -s -u 488 -d 488 iperf3 …",
            Tool::Wondershaper => "wondershaper eth0 4000 4000",
            Tool::TrafficToll => "tt eth0 FILE",
        }
    }

    /// Why the tool cannot do a case at all, if it cannot.
    fn cannot(self, case: Case) -> Option<&'static str> {
        match (self, case) {
            (Tool::Trickle, Case::Running) => Some("only programs that it starts"),
            (Tool::Trickle, Case::Flood) => Some("TCP only"),
            _ => None,
        }
    }
}

/// A world in which a tool limits the programs of the client.
struct Limited<'a> {
    tool: Tool,
    world: &'a World,
    netnice: Option<&'a Netnice>,
}

/// A program under the limit.
enum Program {
    Iperf(Proc, Proc),
    /// The lab's own, and its other end.
    Own(traffic::Running, traffic::Running),
}

impl Program {
    fn pid(&self) -> u32 {
        match self {
            Program::Iperf(client, _) => client.pid(),
            Program::Own(own, _) => own.pid(),
        }
    }

    /// Waits until `first_data` is set, the time (wall clock, ns) of the program's first data
    /// packet, and returns it. Fails if the program ends before or sends nothing for 30 s.
    fn await_data(&mut self, first_data: &AtomicU64) -> Result<u64> {
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            let at = first_data.load(Relaxed);
            if at != 0 {
                return Ok(at);
            }
            self.check_running()?;
            pause(0.01);
        }
        bail!("the program has no data packet for 30 s");
    }

    /// Fails, with what it says, if iperf3 has ended.
    fn check_running(&mut self) -> Result<()> {
        let Program::Iperf(client, _) = self else {
            return Ok(());
        };
        if client.is_running() {
            return Ok(());
        }
        let text = client.remaining_lines(Duration::from_secs(1)).join("\n");
        IperfReport::parse(&text).with_context(|| format!("iperf3: {}", client.take_stderr()))?;
        bail!("iperf3 ended before its time");
    }

    /// Ends the program. Fails if iperf3 has ended before.
    fn end(mut self) -> Result<()> {
        self.check_running()?;
        match self {
            Program::Iperf(mut client, _server) => client.terminate(Duration::from_secs(2)),
            Program::Own(own, other) => {
                own.stop()?;
                other.stop()?;
            }
        }
        Ok(())
    }
}

impl Limited<'_> {
    /// Limits the whole host, with a tool that does not limit programs, before they start. Returns
    /// the tool's process, if it has to stay.
    fn limit_host(&self) -> Result<Option<Proc>> {
        let ns = &self.world.client().ns;
        match self.tool {
            Tool::Netnice | Tool::Trickle => {}
            Tool::Htb | Tool::HtbFqCodel => {
                let leaf = match self.tool {
                    Tool::HtbFqCodel => htb::Leaf::FqCodel,
                    _ => htb::Leaf::Default,
                };
                htb::limit(ns, "eth0", R4M.bits, leaf)?;
                redirect_received(self.world.client())?;
                htb::limit(ns, "ifb0", R4M.bits, leaf)?;
            }
            Tool::Cake => {
                htb::limit_by_cake(ns, "eth0", R4M.bits)?;
                redirect_received(self.world.client())?;
                htb::limit_by_cake(ns, "ifb0", R4M.bits)?;
            }
            Tool::Tbf => {
                let tbf = "root tbf rate 4mbit burst 3028 latency 50ms";
                ns.tc(&format!("qdisc add dev eth0 {tbf}"))?;
                redirect_received(self.world.client())?;
                ns.tc(&format!("qdisc add dev ifb0 {tbf}"))?;
            }
            Tool::Wondershaper => {
                let mut command = ns.command("wondershaper");
                command.args(["eth0", "4000", "4000"]);
                let said = process::run(&mut command)?;
                // It does not fail if tc does.
                let set = ns.tc("qdisc show dev eth0")?;
                if !set.contains("cbq") && !set.contains("htb") {
                    bail!("sets no limit: {}", said.trim());
                }
            }
            Tool::TrafficToll => return self.start_traffic_toll().map(Some),
        }
        Ok(None)
    }

    /// Limits a program that runs. As [`Limited::limit_host`].
    fn limit_running(&self, pid: u32) -> Result<Option<Proc>> {
        match self.netnice {
            Some(netnice) => {
                netnice
                    .run_line(&format!("set pid:{pid} --up 4mbit --down 4mbit"))?
                    .ok()?;
                Ok(None)
            }
            None => self.limit_host(),
        }
    }

    /// Starts `tt` with a limit for iperf3 and the lab's traffic programs. It takes some time to
    /// find them, so the case waits.
    fn start_traffic_toll(&self) -> Result<Proc> {
        let file = self.world.folder().join("tt.yaml");
        let program = |name: &str| {
            format!(
                "  {name}:\n    download: 500kbps\n    upload: 500kbps\n    match:\n      - name: {name}\n"
            )
        };
        let text = format!(
            "processes:\n{}{}",
            program("iperf3"),
            program("netnice-lab")
        );
        std::fs::write(&file, text)?;
        let mut command = self.world.client().ns.command("tt");
        command.arg("eth0").arg(&file);
        let mut tool = Proc::start(command).context("it is not installed (PyPI: traffictoll)")?;
        pause(2.0);
        if !tool.is_running() {
            bail!(
                "ends at once: {}",
                tool.take_stderr().lines().last().unwrap_or("")
            );
        }
        Ok(tool)
    }

    /// A command that starts a program under the limit.
    fn command(&self, case: Case, words: &[&str]) -> Command {
        let client = self.world.client();
        let starts_it = case != Case::Running;
        match (self.tool, self.netnice) {
            (Tool::Netnice, Some(netnice)) if starts_it => {
                let limit = ["run", "--up", "4mbit", "--down", "4mbit", "--"];
                netnice.command(&[&limit, words].concat())
            }
            (Tool::Trickle, _) => {
                let mut command = client.ns.command("trickle");
                command
                    .args(["-s", "-u", PAYLOAD, "-d", PAYLOAD])
                    .args(words);
                command
            }
            _ => {
                let mut command = client.ns.command(words[0]);
                command.args(&words[1..]);
                command
            }
        }
    }

    /// The words before the flood's own command line.
    fn flood_through(&self) -> Result<Vec<String>> {
        let Some(netnice) = self.netnice else {
            return Ok(Vec::new());
        };
        let runtime = format!("NETNICE_RUNTIME_DIR={}", netnice.runtime().display());
        let program = process::binary("netnice")?.display().to_string();
        let words = ["env", &runtime, &program, "run", "--up", "4mbit", "--"];
        Ok(words.map(str::to_owned).to_vec())
    }

    /// Starts the program of a case.
    fn start(&self, case: Case) -> Result<Program> {
        let (client, server) = (self.world.client(), self.world.server());
        let to = super::bench::at(server, Family::V4, PORT);
        if case == Case::Flood {
            let from = super::bench::at(client, Family::V4, PORT);
            let sink = traffic::start_now(server, &Udp::sink(to))?;
            let flood = Udp::source(from, to).rate(OFFERED);
            let through = self.flood_through()?;
            let through: Vec<&str> = through.iter().map(String::as_str).collect();
            let source = traffic::start_through(client, &through, None, &flood)?;
            return Ok(Program::Own(source, sink));
        }
        let listening = iperf_server(server, PORT)?;
        let iperf = Iperf {
            to,
            flows: if self.tool == Tool::Trickle { 1 } else { 4 },
            seconds: LONGER_THAN_A_CASE,
            congestion: "cubic",
            reverse: case == Case::Down,
        };
        let words = iperf.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let program = Proc::start(self.command(case, &words))?;
        Ok(Program::Iperf(program, listening))
    }
}

/// Passes everything that a host receives on `eth0` through a new device `ifb0`.
fn redirect_received(host: &Host) -> Result<()> {
    host.ns.ip("link add ifb0 type ifb")?;
    host.ns.ip("link set ifb0 up")?;
    host.ns.tc("qdisc add dev eth0 handle ffff: ingress")?;
    host.ns.tc(
        "filter add dev eth0 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev ifb0",
    )?;
    Ok(())
}

/// The program's port.
const PORT: u16 = 5_201;
/// The port of the program beside it.
const OTHER: u16 = 5_302;
/// What the program beside it and the flood send, in bit/s on the wire.
const OFFERED: u64 = 20_000_000;
/// 4 Mbit/s in the unit of trickle: 1024 bytes a second.
const PAYLOAD: &str = "488";
/// A packet of the program above this size, in bytes, is data and no handshake.
const LEAST_DATA: u64 = 500;
/// How long iperf3 would run, in seconds. The case ends it, however long a tool takes for a limit.
const LONGER_THAN_A_CASE: u32 = 600;
/// How often a case is tried with trickle.
const TRIES: u32 = 5;
/// The name of the column of the program beside it.
const BESIDE: &str = "meanwhile another program keeps, % of its rate";
