//! The program `netnice-lab traffic network` has one end of a channel between hosts, by the
//! netnice-peer of its host, on command. [`NetworkProgram`] starts it.
//!
//! - The sink offers a service (`--service NAME`), and answers each line `counts` with what it has
//!   received: a [`NetworkReceived`] as JSON.
//! - The source opens a channel (`--to NAME@HOST --contract TEXT`), and on the line `run NS` sends
//!   messages of Mmax at Rmax for so long, waits until they have left, and answers with a
//!   [`NetworkSent`].
//!
//! A message has the bytes of its number, repeated. All times are ns of `CLOCK_MONOTONIC`, which
//! all hosts of a world share. The program ends with its input. It fails if the channel cannot be
//! opened or ends, and for an unknown command.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netnice_channel::network::{
    BLOCK, IncomingChannel, Network, NetworkOptions, PACKET, RemoteChannel, ServiceOptions,
};
use netnice_channel::{ChannelClass, ChannelId, ChannelOptions, HandlerThreadOptions, costs};
use netnice_core::contract::{Channel, Contract};
use netnice_stack::{RuntimeDir, monotonic_ns, own};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::channels::slice;
use crate::process::{self, EVENT_TIMEOUT, Proc};
use crate::sys;
use crate::world::Host;

/// Which end of channels a program has: one of the two options.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct EndArgs {
    /// Offer this service.
    #[arg(long)]
    pub(super) service: Option<String>,
    /// Open a channel to this service, NAME@HOST.
    #[arg(long, requires = "contract")]
    pub(super) to: Option<String>,
    /// The contract, with a channel.
    #[arg(long)]
    pub(super) contract: Option<String>,
    /// The daemon's folder.
    #[arg(long)]
    pub(super) runtime_dir: PathBuf,
}

/// The arguments of `netnice-lab traffic network`.
#[derive(Debug, Clone, clap::Args)]
pub struct NetworkArgs {
    #[command(flatten)]
    end: EndArgs,
    /// Processor time to reserve, for example `2ms/10ms`.
    #[arg(long)]
    cpu: Option<String>,
}

/// What a source has sent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NetworkSent {
    /// The deadline of each message, from 0 on: its logical arrival and the whole deadline.
    pub deadlines_ns: Vec<u64>,
    /// Messages that left this host after its bound, and packets that did not leave.
    pub late: u64,
    /// Packets that did not leave.
    pub unsent: u64,
    /// The stops of the handler's thread, as text.
    pub stops: Vec<String>,
}

/// What a sink has received.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NetworkReceived {
    /// The number of each message, and when it was complete.
    pub complete_ns: Vec<(u64, u64)>,
    /// Messages whose content is not that of their number.
    pub wrong: u64,
    /// Messages that were given up.
    pub lost: u64,
    /// All counts of the sink, for people.
    pub counts: String,
    /// The stops of the handler's thread, as text.
    pub stops: Vec<String>,
    /// Why the channel has ended; empty if it has not.
    pub ended: String,
}

/// Runs the program until its input ends. Fails as the module says.
pub fn main(args: &NetworkArgs) -> Result<()> {
    let dir = RuntimeDir::choose(Some(args.end.runtime_dir.clone()), None);
    let mut handlers = HandlerThreadOptions::new(costs::measure(PACKET, BLOCK)?);
    handlers.records_stops = true;
    handlers.bytes = 128 << 20;
    let mut options = NetworkOptions::new(handlers);
    if let Some(cpu) = &args.cpu {
        own::change(&dir, &format!("cpu {cpu}"))?;
        options.use_reservation(slice(cpu)?);
    }
    let network = Network::connect(&dir, options)?;
    match (&args.end.service, &args.end.to) {
        (Some(service), None) => sink(&network, service),
        (None, Some(to)) => {
            let text = args.end.contract.as_deref().unwrap_or_default();
            let contract: Contract = text.parse()?;
            let channel = contract.channel().context("no channel")?;
            source(&network, to, channel)
        }
        _ => bail!("either --service or --to"),
    }
}

fn source(network: &Network, to: &str, contract: Channel) -> Result<()> {
    let (service, host) = to.split_once('@').context("NAME@HOST")?;
    let class = ChannelClass::RealTime(contract);
    let mut channel = network.open(RemoteChannel {
        service: service.to_owned(),
        host: host.to_owned(),
        options: ChannelOptions::new(ChannelId::random()?, class),
    })?;
    let hops: Vec<(String, u64)> = channel
        .hops()
        .iter()
        .map(|hop| (hop.host.clone(), hop.bound.0))
        .collect();
    let id = channel.id().to_string();
    println!("{}", json!({ "ready": true, "hops": hops, "channel": id }));
    let thread = channel.handlers();
    let mut number: u64 = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let Some(("run", lasts)) = line.split_once(' ') else {
            bail!("{line:?} is no command");
        };
        let lasts: u64 = lasts.parse()?;
        thread.take_stops();
        let apart = 1_000_000_000 / u64::from(contract.rmax().get()) + SLOWER_NS;
        let begin = monotonic_ns() + apart;
        let mut sent = NetworkSent::default();
        let mut at = begin;
        while at < begin + lasts {
            sys::sleep_until(at);
            let bytes = number.to_be_bytes().into_iter().cycle();
            let body: Vec<u8> = bytes.take(contract.mmax().0 as usize).collect();
            let accepted = channel.send(body, None)?;
            let deadline = accepted.logical.0 + contract.deadline().0;
            sent.deadlines_ns.push(deadline);
            number += 1;
            at += apart;
            while channel.departure().is_some() {}
            let stops = thread.take_stops();
            sent.stops.extend(stops.iter().map(ToString::to_string));
        }
        channel.drain(Some(EVENT_TIMEOUT / 2))?;
        let counts = channel.counts();
        (sent.late, sent.unsent) = (counts.late, counts.unsent);
        println!("{}", serde_json::to_string(&sent)?);
    }
    channel.finish(Some(EVENT_TIMEOUT / 2))?;
    Ok(())
}

fn sink(network: &Network, service: &str) -> Result<()> {
    let options = ServiceOptions {
        channels: 1,
        ..ServiceOptions::default()
    };
    let service = network.listen(service, options)?;
    println!("{}", json!({ "ready": true }));
    let received = Arc::new(Mutex::new(NetworkReceived::default()));
    let taken = received.clone();
    std::thread::spawn(move || {
        while let Ok(channel) = service.accept(None) {
            receive(channel, &taken);
        }
    });
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            "counts" => {
                let received = received.lock().unwrap_or_else(PoisonError::into_inner);
                println!("{}", serde_json::to_string(&*received)?);
            }
            other => bail!("{other:?} is no command"),
        }
    }
    Ok(())
}

/// Notes the messages of a channel until it ends.
fn receive(mut channel: IncomingChannel, received: &Mutex<NetworkReceived>) {
    let thread = channel.handlers();
    let lock = || received.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match channel.receive(None) {
            Ok(message) => {
                let number = message.message.to_be_bytes();
                let mut expected = number.iter().cycle();
                let is_right = message
                    .body
                    .iter()
                    .all(|byte| Some(byte) == expected.next());
                let counts = channel.counts();
                let mut received = lock();
                let complete = (message.message, message.completed.0);
                received.complete_ns.push(complete);
                received.wrong += u64::from(!is_right);
                received.lost = counts.incomplete + counts.dropped;
                received.counts = format!("{counts:?}");
                let stops = thread.take_stops();
                received.stops.extend(stops.iter().map(ToString::to_string));
            }
            Err(error) => {
                lock().ended = error.to_string();
                return;
            }
        }
    }
}

/// A running program with one end of a channel. It ends when it is dropped.
pub struct NetworkProgram {
    proc: Proc,
    /// The hosts of the channel with their bounds in ns, at a source.
    pub hops: Vec<(String, u64)>,
    /// The digits of the channel's identifier, at a source.
    pub channel: Option<String>,
}

impl NetworkProgram {
    /// Starts the sink of a service. Fails if the program is not ready within 60 s.
    pub fn sink(host: &Host, runtime: &Path, service: &str, cpu: Option<&str>) -> Result<Self> {
        NetworkProgram::start(host, runtime, cpu, &["--service", service])
    }

    /// Starts a source to NAME@HOST. Fails if the channel is not established within 60 s.
    pub fn source(
        host: &Host,
        runtime: &Path,
        (to, contract): (&str, &str),
        cpu: Option<&str>,
    ) -> Result<Self> {
        NetworkProgram::start(host, runtime, cpu, &["--to", to, "--contract", contract])
    }

    fn start(host: &Host, runtime: &Path, cpu: Option<&str>, words: &[&str]) -> Result<Self> {
        let mut command = host.ns.command(process::binary("netnice-lab")?);
        command
            .args(["traffic", "network", "--runtime-dir"])
            .arg(runtime)
            .args(words);
        if let Some(cpu) = cpu {
            command.args(["--cpu", cpu]);
        }
        let mut proc = Proc::start(command)?;
        let ready = proc.next_json("ready", EVENT_TIMEOUT)?;
        let hops = match ready.get("hops") {
            Some(hops) => serde_json::from_value(hops.clone())?,
            None => Vec::new(),
        };
        let channel = ready["channel"].as_str().map(str::to_owned);
        Ok(NetworkProgram {
            proc,
            hops,
            channel,
        })
    }

    /// Begins to send messages of Mmax at Rmax. Fails if the program does not read.
    pub fn begin(&mut self, lasts: Duration) -> Result<()> {
        self.proc.write_line(&format!("run {}", lasts.as_nanos()))
    }

    /// What was sent since [`NetworkProgram::begin`], when it has left. Fails if the program does.
    pub fn sent(&mut self, lasts: Duration) -> Result<NetworkSent> {
        let answer = self.proc.next_json("deadlines_ns", lasts + EVENT_TIMEOUT)?;
        Ok(serde_json::from_value(answer)?)
    }

    /// What the sink has received. Fails if the program does.
    pub fn received(&mut self) -> Result<NetworkReceived> {
        self.proc.write_line("counts")?;
        let answer = self.proc.next_json("complete_ns", EVENT_TIMEOUT)?;
        Ok(serde_json::from_value(answer)?)
    }

    /// The process.
    pub fn process(&mut self) -> &mut Proc {
        &mut self.proc
    }
}

/// By how much the messages are farther apart than 1/Rmax, so that a delay of the sending thread is
/// made up for.
const SLOWER_NS: u64 = 200_000;
