//! The program `netnice-lab traffic many-flows` opens many flows of the direct path, and sends on
//! all of them on command. [`Commanded::many_flows`] starts it.
//!
//! Each line of its standard input is a command. The program answers each with one line of JSON:
//!
//! - `open`: opens all flows, one after the other: `opened`, the number of open flows; `from_ns`
//!   and `until_ns`, the wall clock at both ends; and `failed`, the first error, or null.
//! - `send`: begins to send: `sending`. From then on a thread keeps the buffers of every flow full,
//!   so each flow always has something to send.
//! - `halt`: stops sending, and waits until the driver has returned all packets: `done`, the number
//!   of packets that the driver has sent, for each flow; and `unsent`, the number of packets that
//!   it returned for another reason, with the statuses of these: `statuses`.
//! - `close`: closes all flows: `closed`, `from_ns` and `until_ns`.
//!
//! The first 8 bytes of each payload are the packet's number in its flow. Flow `k` is from the
//! local port plus k / 64 to the remote port plus k % 64 ([`REMOTE_PORTS`]). The program ends with
//! its input. It fails if it cannot attach, if a flow that sends is closed by another, and for an
//! unknown command.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use netnice_stack::udp::{Buffers, Remote, UdpOptions};
use netnice_stack::{Program, RuntimeDir, Socket, StackError, Status};
use serde_json::{Value, json};

use super::Commanded;
use crate::sys;
use crate::world::Host;

/// Flows of one local port, each to another remote port.
pub const REMOTE_PORTS: u16 = 64;

/// The arguments of `netnice-lab traffic many-flows`.
#[derive(Debug, Clone, clap::Args)]
pub struct ManyFlowsArgs {
    /// The local endpoint of the first flow.
    #[arg(long)]
    local: SocketAddr,
    /// The remote endpoint of the first flow.
    #[arg(long)]
    remote: SocketAddr,
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: PathBuf,
    /// The number of flows.
    #[arg(long)]
    flows: u16,
    /// The contracts: each flow has the next one, and after the last the first again.
    #[arg(long, required = true)]
    contract: Vec<String>,
    /// Payload bytes of each packet, at least 8.
    #[arg(long)]
    size: usize,
    /// Buffers of each flow.
    #[arg(long)]
    buffers: u32,
    /// Packets that are given to the driver at once, with one notification.
    #[arg(long)]
    batch: usize,
    /// Milliseconds between two times at which the buffers are filled.
    #[arg(long)]
    refill_ms: u64,
}

/// Runs the program until its input ends. Fails as the module says.
pub fn main(args: &ManyFlowsArgs) -> Result<()> {
    let dir = RuntimeDir::choose(Some(args.runtime_dir.clone()), None);
    let bytes = args.options(0).buffers.region_bytes()? * u64::from(args.flows);
    let program = Program::attach(&dir, None, args.flows.into(), bytes)
        .context("cannot attach to the direct path")?;
    let mut flows: Vec<SendingFlow> = Vec::new();
    let mut sender: Option<Sender> = None;
    println!("{}", json!({"ready": true}));
    for line in std::io::stdin().lock().lines() {
        let answer = match line?.trim() {
            "open" => open(&program, args, &mut flows),
            "send" => {
                sender = Some(Sender::start(std::mem::take(&mut flows), args));
                json!({"sending": true})
            }
            "halt" => {
                let sender = sender.take().context("nothing is being sent")?;
                flows = sender.halt()?;
                let done: Vec<u64> = flows.iter().map(|flow| flow.done).collect();
                let unsent: u64 = flows.iter().map(|flow| flow.unsent).sum();
                let statuses: BTreeSet<u32> = flows
                    .iter()
                    .flat_map(|flow| &flow.statuses)
                    .copied()
                    .collect();
                json!({"done": done, "unsent": unsent, "statuses": statuses})
            }
            "close" => {
                let (closed, from_ns) = (flows.len(), sys::now_ns());
                flows.clear();
                json!({"closed": closed, "from_ns": from_ns, "until_ns": sys::now_ns()})
            }
            other => bail!("{other:?} is no command"),
        };
        println!("{answer}");
    }
    Ok(())
}

impl ManyFlowsArgs {
    fn options(&self, flow: u16) -> UdpOptions {
        let above = |mut address: SocketAddr, number: u16| {
            address.set_port(address.port() + number);
            address
        };
        UdpOptions {
            remote: Remote::One(above(self.remote, flow % REMOTE_PORTS)),
            contract: Some(self.contract[usize::from(flow) % self.contract.len()].clone()),
            buffers: Buffers {
                sending: self.buffers,
                receiving: 0,
                ..Buffers::default()
            },
            ..UdpOptions::at(above(self.local, flow / REMOTE_PORTS))
        }
    }
}

fn open(program: &Program, args: &ManyFlowsArgs, flows: &mut Vec<SendingFlow>) -> Value {
    let from_ns = sys::now_ns();
    let mut failed = None;
    for number in 0..args.flows {
        match program.open_udp(&args.options(number)) {
            Ok(socket) => flows.push(SendingFlow::new(socket)),
            Err(error) => {
                failed = Some(format!("flow {number}: {error}"));
                break;
            }
        }
    }
    let (opened, until_ns) = (flows.len(), sys::now_ns());
    json!({"opened": opened, "from_ns": from_ns, "until_ns": until_ns, "failed": failed})
}

/// A flow with its counts.
struct SendingFlow {
    socket: Socket,
    /// The number of the next packet.
    next: u64,
    /// Packets that the driver has sent, and that it returned for another reason.
    done: u64,
    unsent: u64,
    /// The reasons for the latter ([`Status`]).
    statuses: BTreeSet<u32>,
}

impl SendingFlow {
    fn new(socket: Socket) -> SendingFlow {
        SendingFlow {
            socket,
            next: 0,
            done: 0,
            unsent: 0,
            statuses: BTreeSet::new(),
        }
    }

    /// Fills the buffers with as many packets at once as there are payloads. Gives the driver about
    /// `most` packets at most: a driver that returns buffers as fast as they are filled would
    /// otherwise keep the thread from all other flows. Fails if the flow is closed.
    fn fill(&mut self, payloads: &mut [Vec<u8>], most: u64) -> Result<(), StackError> {
        self.collect()?;
        let end = self.next + most;
        while self.next < end {
            for (number, payload) in (self.next..).zip(payloads.iter_mut()) {
                if let Some(place) = payload.first_chunk_mut() {
                    *place = number.to_be_bytes();
                }
            }
            let sent = match &*payloads {
                [payload] => self.socket.try_send(payload).map(|_| 1),
                several => {
                    let several: Vec<&[u8]> = several.iter().map(Vec::as_slice).collect();
                    self.socket.try_send_batch(&several)
                }
            };
            match sent {
                Ok(sent) => self.next += sent as u64,
                Err(StackError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<(), StackError> {
        while let Some(outcome) = self.socket.outcome()? {
            match outcome.status {
                Status::DONE => self.done += 1,
                other => {
                    self.unsent += 1;
                    self.statuses.insert(other.0);
                }
            }
        }
        Ok(())
    }
}

/// The thread that sends.
struct Sender {
    halted: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<SendingFlow>, StackError>>,
}

impl Sender {
    fn start(mut flows: Vec<SendingFlow>, args: &ManyFlowsArgs) -> Sender {
        let halted = Arc::new(AtomicBool::new(false));
        let seen = halted.clone();
        let mut payloads = vec![vec![0; args.size]; args.batch];
        let most = u64::from(args.buffers);
        let refill = Duration::from_millis(args.refill_ms);
        let thread = std::thread::spawn(move || {
            while !seen.load(Relaxed) {
                for flow in &mut flows {
                    flow.fill(&mut payloads, most)?;
                }
                std::thread::park_timeout(refill);
            }
            for flow in &mut flows {
                flow.socket.drain(Some(DRAIN_TIMEOUT))?;
                flow.collect()?;
            }
            Ok(flows)
        });
        Sender { halted, thread }
    }

    fn halt(self) -> Result<Vec<SendingFlow>> {
        self.halted.store(true, Relaxed);
        self.thread.thread().unpark();
        let ended = self.thread.join();
        let flows = ended.map_err(|_| anyhow!("the sending thread panicked"))?;
        flows.context("a flow ended while it was sending")
    }
}

/// Time limit for the last packets of a flow to be sent.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// What a program with many flows opens.
pub struct ManyFlows<'a> {
    /// The number of flows.
    pub flows: u16,
    /// The contracts; flow `k` has the contract `k` modulo their number.
    pub contracts: &'a [&'a str],
    /// Payload bytes of each packet, at least 8.
    pub size: usize,
    /// Buffers of each flow.
    pub buffers: u32,
    /// Packets that are given to the driver at once, at least 1.
    pub batch: usize,
    /// The time between two times at which the buffers are filled.
    pub refill: Duration,
}

impl Commanded {
    /// Starts `netnice-lab traffic many-flows` on `host`, with flows of the daemon with this
    /// runtime folder. Fails if the program is not ready within `within`, for example because it
    /// cannot attach.
    pub fn many_flows(
        host: &Host,
        runtime: &Path,
        ends: (SocketAddr, SocketAddr),
        flows: &ManyFlows,
        within: Duration,
    ) -> Result<Commanded> {
        let mut more = vec![
            ("--flows", flows.flows.to_string()),
            ("--size", flows.size.to_string()),
            ("--buffers", flows.buffers.to_string()),
            ("--batch", flows.batch.to_string()),
            ("--refill-ms", flows.refill.as_millis().to_string()),
        ];
        let contracts = flows.contracts.iter();
        more.extend(contracts.map(|contract| ("--contract", (*contract).to_owned())));
        Commanded::start(host, ("many-flows", runtime), ends, &more, within)
    }
}
