//! Starts processes of the lab's own traffic generator, and real programs ([`real_programs`]).
//!
//! An experiment describes a process with the builders here ([`Tcp`], [`Udp`], [`Probe`], …) and
//! starts it on a host. The process runs the binary `netnice-lab` with a hidden subcommand
//! (`netnice-lab traffic …`, see [`program`]), so netnice sees an ordinary process with its own id,
//! sockets and children. The process prints `{"ready": …}` when its sockets are open, waits for the
//! line `go` if required, and prints one [`Report`] after the line `stop` or when the limit of its
//! [`RunOptions`] is reached. ([`Unruly`], [`ParentProcess`], [`Carnage`], and the server and the
//! client of files have commands of their own, and print no report.) A start fails if the program
//! cannot be executed or is not ready within 60 s. A command to a process fails if the process has
//! ended.
//!
//! **Counts.** A report has payload bytes and *wire* bytes: layer 2 without preamble and gap, which
//! is 14 + the IP length of each packet on the wire, also if the kernel merged packets or did not
//! segment them yet. For a TCP sink, wire bytes are the payload and headers of every segment that
//! arrived (counted as full segments, which they are in bulk); for a UDP sink, payload plus headers
//! per datagram. A sink therefore counts bytes behind the receive limit, while the tap at the other
//! end ([`crate::wire`]) counts bytes before it.
//!
//! **Directions.** Either end of TCP flows can send, and either end can connect: a receive limit is
//! tested by a sink that connects to a source, like a browser.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process::{self, Proc};
use crate::world::Host;

mod bare_tcp;
mod carnage;
mod channels;
mod commanded;
pub mod connections;
mod delayed_socket;
mod direct;
pub mod direct_tcp;
mod echo;
mod fetch;
mod fork_storm;
pub mod ftp;
mod holds;
mod http;
pub mod iperf3;
mod many_channels;
mod many_flows;
pub mod many_programs;
mod messages;
mod network;
mod parent;
pub mod program;
mod quic;
mod quic_flows;
pub mod real_programs;
mod report;
mod run;
pub mod segments;
mod stop_watch;
mod tcp;
mod udp;
mod unruly;

pub use bare_tcp::BareTcp;
pub use carnage::{Carnage, RunningCarnage};
pub use channels::{
    ChannelPlan, ChannelProgram, Messages, PlannedChannel, ReceivedChannel, SendPlan, SentChannel,
};
pub use commanded::Commanded;
pub use direct_tcp::DirectTcp;
pub use fork_storm::ForkStorm;
pub use many_channels::{ManyChannels, OpenedChannels};
pub use many_flows::{ManyFlows, REMOTE_PORTS};
pub use messages::MessageShape;
pub use network::{NetworkProgram, NetworkReceived, NetworkSent};
pub use quic_flows::Received;
pub use report::Report;
pub use unruly::Unruly;

/// A TCP process. It connects or listens, and writes, reads, or does both on every connection.
#[derive(Debug, Clone)]
pub struct Tcp {
    args: Vec<String>,
}

impl Tcp {
    /// Connects `flows` times to a listener.
    pub fn connect(to: SocketAddr, flows: u32) -> Tcp {
        Tcp {
            args: words(&[
                "tcp",
                "--connect",
                &to.to_string(),
                "--flows",
                &flows.to_string(),
            ]),
        }
    }

    /// Listens, and serves every connection.
    pub fn listen(at: SocketAddr) -> Tcp {
        Tcp {
            args: words(&["tcp", "--listen", &at.to_string()]),
        }
    }

    /// Writes as fast as it can.
    pub fn source(self) -> Tcp {
        self.with(&["--source"])
    }

    /// Reads and discards.
    pub fn sink(self) -> Tcp {
        self.with(&["--sink"])
    }

    /// Writes this many payload bits per second, and catches up after a stall. A connecting process
    /// divides the rate among its flows; a listening one writes at this rate on each connection.
    pub fn rate(self, bits: u64) -> Tcp {
        self.with(&["--rate", &bits.to_string()])
    }

    /// The congestion control; the default is cubic.
    pub(crate) fn congestion(self, name: &str) -> Tcp {
        self.with(&["--congestion", name])
    }

    /// Opens MPTCP sockets.
    pub fn mptcp(self) -> Tcp {
        self.with(&["--mptcp"])
    }

    fn with(mut self, more: &[&str]) -> Tcp {
        self.args.extend(words(more));
        self
    }
}

/// A UDP process with one socket: it sends, receives, or both.
#[derive(Debug, Clone)]
pub struct Udp {
    args: Vec<String>,
}

impl Udp {
    /// Sends to `to` from `from`.
    pub fn source(from: SocketAddr, to: SocketAddr) -> Udp {
        Udp {
            args: words(&[
                "udp",
                "--source",
                "--local",
                &from.to_string(),
                "--remote",
                &to.to_string(),
            ]),
        }
    }

    /// Receives at `at` from any address.
    pub fn sink(at: SocketAddr) -> Udp {
        Udp {
            args: words(&["udp", "--sink", "--local", &at.to_string()]),
        }
    }

    /// Sends and receives on the same socket.
    pub(crate) fn duplex(at: SocketAddr, peer: SocketAddr) -> Udp {
        let mut both = Udp::source(at, peer);
        both.args.push("--sink".into());
        both
    }

    /// Offers this many wire bits per second; the default is to send as fast as possible.
    pub fn rate(mut self, bits: u64) -> Udp {
        self.args.extend(words(&["--rate", &bits.to_string()]));
        self
    }

    /// Sends this many datagrams and then stops.
    pub fn count(mut self, datagrams: u64) -> Udp {
        self.args
            .extend(words(&["--count", &datagrams.to_string()]));
        self
    }

    /// Puts a destination option into every packet (IPv6): one more header between IP and UDP.
    pub fn option(mut self) -> Udp {
        self.args.push("--option".into());
        self
    }

    /// Payload bytes per datagram; the default is a full frame of MTU 1500.
    pub fn size(mut self, bytes: u32) -> Udp {
        self.args.extend(words(&["--size", &bytes.to_string()]));
        self
    }
}

/// A UDP process on the direct path: one flow, with a contract.
#[derive(Debug, Clone)]
pub struct Direct {
    args: Vec<String>,
}

impl Direct {
    /// Sends from `from` to `to`, as much as its contract allows.
    pub fn source(from: SocketAddr, to: SocketAddr) -> Direct {
        let (from, to) = (from.to_string(), to.to_string());
        Direct::new(&["--source", "--local", &from, "--remote", &to])
    }

    /// Receives at `at` from any address.
    pub fn sink(at: SocketAddr) -> Direct {
        Direct::new(&["--sink", "--local", &at.to_string()])
    }

    /// Receives at `at` the datagrams for a multicast group.
    pub fn member(at: SocketAddr, group: SocketAddr) -> Direct {
        let (at, group) = (at.to_string(), group.to_string());
        Direct::new(&["--sink", "--local", &at, "--group", &group])
    }

    /// Sends each datagram that arrives at `at` back to its sender.
    pub fn echo(at: SocketAddr) -> Direct {
        Direct::new(&["--echo", "--local", &at.to_string()])
    }

    fn new(options: &[&str]) -> Direct {
        let mut args = words(&["direct"]);
        args.extend(words(options));
        Direct { args }
    }

    /// The runtime folder of the daemon that opens the flow.
    pub fn by(self, runtime: &std::path::Path) -> Direct {
        self.with("--runtime-dir", &runtime.display().to_string())
    }

    /// The interface; the default is the only managed one.
    pub fn on(self, link: &str) -> Direct {
        self.with("--iface", link)
    }

    /// Sets the contract of the flow; the default is best effort.
    pub fn contract(self, contract: &str) -> Direct {
        self.with("--contract", contract)
    }

    /// Changes to another contract and back every 100 ms, while there is a daemon.
    pub fn alternate(self, contract: &str) -> Direct {
        self.with("--alternate", contract)
    }

    /// Offers this many wire bits per second; the default is all that the contract allows.
    pub fn rate(self, bits: u64) -> Direct {
        self.with("--rate", &bits.to_string())
    }

    /// Sends this many datagrams and then stops.
    pub fn count(self, datagrams: u64) -> Direct {
        self.with("--count", &datagrams.to_string())
    }

    /// Fills all buffers, pauses for `pause`, and begins again, instead of waiting for the driver
    /// to return a buffer.
    pub fn refill(self, pause: Duration) -> Direct {
        self.with("--refill-us", &pause.as_micros().to_string())
    }

    /// The number of buffers; the default is 128.
    pub fn buffers(self, number: u32) -> Direct {
        self.with("--buffers", &number.to_string())
    }

    /// Writes the time and size of each received packet to a file.
    pub fn log(self, file: &std::path::Path) -> Direct {
        self.with("--log", &file.display().to_string())
    }

    /// Copies all bytes of each datagram; without it the first 16.
    pub fn copy_all(mut self) -> Direct {
        self.args.extend(words(&["--copy-all"]));
        self
    }

    /// Burns `work` of processor time for each received packet; from each `step` packets to the
    /// next, by so much more.
    pub fn work(self, work: Duration, step: u64) -> Direct {
        let work = self.with("--work-us", &work.as_micros().to_string());
        work.with("--work-step", &step.to_string())
    }

    /// Payload bytes per datagram; the default is the largest that the link carries.
    pub fn size(self, bytes: u32) -> Direct {
        self.with("--size", &bytes.to_string())
    }

    fn with(mut self, name: &str, value: &str) -> Direct {
        self.args.extend(words(&[name, value]));
        self
    }
}

/// A process that repeatedly sends a small message to an [`Echo`] and measures the round trips.
#[derive(Debug, Clone)]
pub struct Probe {
    args: Vec<String>,
}

impl Probe {
    /// A probe that sends one byte at intervals of `every` over one TCP connection, without waiting
    /// for answers: the telnet emulator of the paper NICE.
    pub fn tcp(to: SocketAddr, every: Duration) -> Probe {
        Probe::new("tcp", to, every)
    }

    /// A probe that sends one UDP datagram of 8 bytes at intervals of `every`.
    pub fn udp(to: SocketAddr, every: Duration) -> Probe {
        Probe::new("udp", to, every)
    }

    fn new(protocol: &str, to: SocketAddr, every: Duration) -> Probe {
        Probe {
            args: words(&[
                "probe",
                "--connect",
                &to.to_string(),
                "--protocol",
                protocol,
                "--every-us",
                &every.as_micros().to_string(),
            ]),
        }
    }
}

/// A process that returns everything that it receives at one address, over TCP and UDP.
#[derive(Debug, Clone)]
pub struct Echo {
    args: Vec<String>,
}

impl Echo {
    /// Listens at `at`.
    pub fn listen(at: SocketAddr) -> Echo {
        Echo {
            args: words(&["echo", "--listen", &at.to_string()]),
        }
    }
}

/// A program that [`start`] can run.
pub trait Program {
    /// The arguments after `netnice-lab traffic`.
    fn args(&self) -> Vec<String>;
}

macro_rules! programs {
    ($($kind:ty),*) => { $(impl Program for $kind {
        fn args(&self) -> Vec<String> { self.args.clone() }
    })* };
}
programs!(
    Tcp, Udp, Direct, DirectTcp, BareTcp, Unruly, Probe, Echo, ForkStorm
);

/// The start and the end of a traffic process, and its sample interval.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Whether the process starts at once instead of waiting for `go`.
    pub at_once: bool,
    /// If set, it ends by itself after this time.
    pub lasts: Option<Duration>,
    /// If set, it ends by itself soon after it received this many payload bytes.
    pub until_received: Option<u64>,
    /// Time between two samples of the series.
    pub sample: Duration,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            at_once: false,
            lasts: None,
            until_received: None,
            sample: Duration::from_millis(10),
        }
    }
}

impl RunOptions {
    /// A start at once; all else as by default.
    pub fn at_once() -> RunOptions {
        RunOptions {
            at_once: true,
            ..RunOptions::default()
        }
    }

    /// The command-line arguments for these settings.
    pub fn args(&self) -> Vec<String> {
        let mut args = words(&["--sample-us", &self.sample.as_micros().to_string()]);
        if !self.at_once {
            args.push("--wait".into());
        }
        if let Some(bytes) = self.until_received {
            args.extend(words(&["--until-received", &bytes.to_string()]));
        }
        if let Some(lasts) = self.lasts {
            args.extend(words(&["--for-ms", &lasts.as_millis().to_string()]));
        }
        args
    }
}

/// A traffic process whose sockets are open.
pub struct Running {
    /// The process.
    pub proc: Proc,
}

impl Running {
    /// Sends the command `go` to the process, which then starts its traffic. Returns the wall-clock
    /// time of the command in ns. Fails if the process has closed its standard input.
    pub fn go(&mut self) -> Result<u64> {
        self.proc.write_line("go")?;
        Ok(crate::sys::now_ns())
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.proc.pid()
    }

    /// Sends the command `stop` to the process, and returns its report. Fails if the report does
    /// not come within 60 s.
    pub fn stop(mut self) -> Result<Report> {
        self.proc.write_line("stop")?;
        self.report(REPORT_TIMEOUT)
    }

    /// Waits until the daemon or the driver has closed the direct flow of the process, and returns
    /// the reason. Fails after `within`.
    pub fn await_closed(&mut self, within: Duration) -> Result<String> {
        let closed = self.proc.next_json("closed", within)?;
        let why = closed["closed"].as_str();
        why.map(str::to_owned)
            .context("the reason of a closed flow is no text")
    }

    /// Waits until the process ends by itself, and returns its report. Fails after `within`.
    pub fn report(mut self, within: Duration) -> Result<Report> {
        let value = self.proc.next_json("started_ns", within)?;
        serde_json::from_value(value).context("cannot parse the report of a traffic process")
    }
}

/// Starts a program on `host`; returns when its sockets are open. Fails as the module says.
pub fn start(host: &Host, program: &impl Program, options: RunOptions) -> Result<Running> {
    let mut command = host.ns.command(process::binary("netnice-lab")?);
    command
        .arg("traffic")
        .args(program.args())
        .args(options.args());
    start_until_ready(command)
}

/// Starts a program that waits for `go` and samples every 10 ms. Fails as [`start`] does.
pub fn start_waiting(host: &Host, program: &impl Program) -> Result<Running> {
    start(host, program, RunOptions::default())
}

/// Starts a program at once. Fails as [`start`] does.
pub fn start_now(host: &Host, program: &impl Program) -> Result<Running> {
    start(host, program, RunOptions::at_once())
}

/// Starts a program at once through another command that executes it, such as `setpriv … --`. `lab`
/// is the copy of `netnice-lab` to run; `None`: that under test. Fails as [`start`] does.
pub fn start_through(
    host: &Host,
    words: &[&str],
    lab: Option<&std::path::Path>,
    program: &impl Program,
) -> Result<Running> {
    let lab = match lab {
        Some(copy) => copy.to_owned(),
        None => process::binary("netnice-lab")?,
    };
    let mut command = match words.split_first() {
        Some((first, rest)) => {
            let mut command = host.ns.command(first);
            command.args(rest).arg(lab);
            command
        }
        None => host.ns.command(lab),
    };
    let options = RunOptions::at_once();
    command
        .arg("traffic")
        .args(program.args())
        .args(options.args());
    start_until_ready(command)
}

/// A command for `netnice-lab` on `host`, bound to processor `cpu` if given.
fn lab_command(host: &Host, cpu: Option<u32>) -> Result<std::process::Command> {
    let lab = process::binary("netnice-lab")?;
    Ok(match cpu {
        None => host.ns.command(lab),
        Some(cpu) => {
            let mut command = host.ns.command("taskset");
            command.args(["-c", &cpu.to_string()]).arg(lab);
            command
        }
    })
}

/// Serves files of any size from memory at `at`, for [`FileClient`]. Fails as [`start`] does.
pub(crate) fn serve_files(host: &Host, at: SocketAddr, cpu: Option<u32>) -> Result<Proc> {
    let mut command = lab_command(host, cpu)?;
    command.args(["traffic", "serve", "--listen", &at.to_string()]);
    Ok(start_until_ready(command)?.proc)
}

/// A process that fetches a file of a fixed size on command.
pub(crate) struct FileClient {
    proc: Proc,
}

impl FileClient {
    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.proc.pid()
    }

    /// Starts the process on `host`, for files of `bytes` at `from`. Fails as [`start`] does.
    pub(crate) fn start(
        host: &Host,
        from: SocketAddr,
        bytes: u64,
        cpu: Option<u32>,
    ) -> Result<FileClient> {
        let mut command = lab_command(host, cpu)?;
        command.args(["traffic", "fetch", "--connect", &from.to_string()]);
        command.args(["--bytes", &bytes.to_string()]);
        let proc = start_until_ready(command)?.proc;
        Ok(FileClient { proc })
    }

    /// Fetches the file `times` times; returns each time in s. Fails if one fails or after 120 s.
    pub(crate) fn fetch(&mut self, times: u32) -> Result<Vec<f64>> {
        self.proc.write_line(&times.to_string())?;
        let value = self.proc.next_json("took_ns", Duration::from_secs(120))?;
        let took: Vec<u64> = serde_json::from_value(value["took_ns"].clone())?;
        Ok(took.into_iter().map(|ns| ns as f64 / 1e9).collect())
    }
}

/// Starts a command that prints `{"ready": …}` when it is ready.
fn start_until_ready(command: std::process::Command) -> Result<Running> {
    let mut proc = Proc::start(command)?;
    proc.next_json("ready", READY_TIMEOUT)?;
    Ok(Running { proc })
}

/// A process that starts commands as its children while it runs. A limit on this process applies to
/// the children too.
pub struct ParentProcess {
    /// The parent.
    pub proc: Proc,
    /// Output of children that was not requested yet.
    unread: Vec<(u32, Value)>,
}

impl ParentProcess {
    /// Starts the parent on `host`. Fails after 60 s.
    pub fn start(host: &Host) -> Result<ParentProcess> {
        let mut command = host.ns.command(process::binary("netnice-lab")?);
        command.args(["traffic", "parent"]);
        let proc = start_until_ready(command)?.proc;
        Ok(ParentProcess {
            proc,
            unread: Vec::new(),
        })
    }

    /// The parent's process id, for the limit.
    pub fn pid(&self) -> u32 {
        self.proc.pid()
    }

    /// Makes the parent start a command as its child; returns the child's id. Fails if the parent
    /// cannot start it.
    pub fn run(&mut self, words: &[String]) -> Result<u32> {
        let line = serde_json::to_string(words)?;
        self.proc.write_line(&format!("run {line}"))?;
        let answer = self.await_json("child")?;
        answer["child"]
            .as_u64()
            .map(|pid| pid as u32)
            .with_context(|| format!("the parent could not start {words:?}: {answer}"))
    }

    /// Starts a traffic child; returns its pid. Fails as `run` does, or if it is not ready in 60 s.
    pub fn traffic(&mut self, program: &impl Program, options: RunOptions) -> Result<u32> {
        let mut words = vec![
            process::binary("netnice-lab")?.display().to_string(),
            "traffic".into(),
        ];
        words.extend(program.args());
        words.extend(options.args());
        let pid = self.run(&words)?;
        self.child_output(pid, |v| v.get("ready").is_some(), READY_TIMEOUT)?;
        Ok(pid)
    }

    /// Writes a line to the input of the child with this pid. Fails if the parent has ended.
    pub fn write_line(&mut self, child: u32, line: &str) -> Result<()> {
        self.proc.write_line(&format!("tell {child} {line}"))
    }

    /// Ends a traffic child and returns its report. Fails after 60 s without a report.
    pub fn stop(&mut self, child: u32) -> Result<Report> {
        self.write_line(child, "stop")?;
        let value = self.child_output(child, |v| v.get("started_ns").is_some(), REPORT_TIMEOUT)?;
        serde_json::from_value(value).context("cannot parse the report of a traffic process")
    }

    /// Returns the first output of `child` that `wanted` accepts: a JSON object, or a string for
    /// any other line. Fails after `within`.
    pub fn child_output(
        &mut self,
        child: u32,
        wanted: impl Fn(&Value) -> bool,
        within: Duration,
    ) -> Result<Value> {
        let until = std::time::Instant::now() + within;
        loop {
            let at = self
                .unread
                .iter()
                .position(|(p, v)| *p == child && wanted(v));
            if let Some(at) = at {
                return Ok(self.unread.remove(at).1);
            }
            let left = until.saturating_duration_since(std::time::Instant::now());
            let output = self.proc.next_json("from", left)?;
            self.store_output(output);
        }
    }

    /// Waits until `child` ends; returns its output that was not requested yet. Fails after
    /// `within`.
    pub fn child_lines(&mut self, child: u32, within: Duration) -> Result<Vec<String>> {
        self.child_output(child, |v| v.get("ended").is_some(), within)?;
        let (own, rest) = self.unread.drain(..).partition(|(p, _)| *p == child);
        self.unread = rest;
        let own: Vec<(u32, Value)> = own;
        Ok(own
            .into_iter()
            .map(|(_, v)| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
            .collect())
    }

    fn await_json(&mut self, key: &str) -> Result<Value> {
        loop {
            let line = self.proc.next_line(READY_TIMEOUT)?;
            let Ok(value) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            if value.get(key).is_some() {
                return Ok(value);
            }
            if value.get("from").is_some() {
                self.store_output(value);
            }
        }
    }

    fn store_output(&mut self, output: Value) {
        if let Some(from) = output["from"].as_u64() {
            self.unread.push((from as u32, output["said"].clone()));
        }
    }
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|w| (*w).to_owned()).collect()
}

/// Time limit for a process to open its sockets; long enough for an emulated machine.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the report after `stop`.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);
