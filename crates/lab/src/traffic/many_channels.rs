//! The program `netnice-lab traffic many-channels` has one end of many channels between hosts, by
//! the netnice-peer of its host. [`ManyChannels`] starts it.
//!
//! - The sink offers a service (`--service NAME`) and keeps all channels that come.
//! - The source (`--to NAME@HOST --contract TEXT`) opens the channels, some at a time, and prints
//!   [`OpenedChannels`].
//!
//! The program keeps the channels open until its input ends. It fails if a channel is refused.

use std::io::{Read, stdin};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use netnice_channel::network::{
    BLOCK, Network, NetworkError, NetworkOptions, OutgoingChannel, PACKET, RemoteChannel,
    ServiceOptions,
};
use netnice_channel::{ChannelClass, ChannelId, ChannelOptions, HandlerThreadOptions, costs};
use netnice_core::contract::Contract;
use netnice_stack::RuntimeDir;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::network::EndArgs;
use crate::process::{self, EVENT_TIMEOUT, Proc};
use crate::sys;
use crate::world::Host;

/// The arguments of `netnice-lab traffic many-channels`.
#[derive(Debug, Clone, clap::Args)]
pub struct ManyChannelsArgs {
    #[command(flatten)]
    end: EndArgs,
    /// The number of channels.
    #[arg(long)]
    count: usize,
    /// How many are asked for at a time.
    #[arg(long, default_value_t = 1)]
    at_once: usize,
}

/// The channels that a source has opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenedChannels {
    /// How long each took, in ns.
    pub took_ns: Vec<u64>,
    /// How long all took, in ns.
    pub lasted_ns: u64,
}

/// Runs the program until its input ends. Fails as the module says.
pub fn main(args: &ManyChannelsArgs) -> Result<()> {
    sys::raise_file_limit()?;
    let dir = RuntimeDir::choose(Some(args.end.runtime_dir.clone()), None);
    let mut handlers = HandlerThreadOptions::new(costs::measure(PACKET, BLOCK)?);
    // An earlier channel may not have ended yet.
    handlers.handlers = args.count + SPARE;
    // The sink has one port for all.
    handlers.flows = u32::try_from(args.count + SPARE)?;
    handlers.bytes = ((args.count + SPARE) as u64) << 14;
    let network = Network::connect(&dir, NetworkOptions::new(handlers))?;
    match (&args.end.service, &args.end.to) {
        (Some(service), None) => sink(&network, service, args.count),
        (None, Some(to)) => source(&network, to, args),
        _ => bail!("either --service or --to"),
    }
}

fn source(network: &Network, to: &str, args: &ManyChannelsArgs) -> Result<()> {
    let (service, host) = to.split_once('@').context("NAME@HOST")?;
    let contract: Contract = args.end.contract.as_deref().unwrap_or_default().parse()?;
    let contract = contract.channel().context("no channel")?;
    let open = || -> Result<(OutgoingChannel, u64)> {
        let class = ChannelClass::RealTime(contract);
        let request = RemoteChannel {
            service: service.to_owned(),
            host: host.to_owned(),
            options: ChannelOptions::new(ChannelId::random()?, class),
        };
        let begin = Instant::now();
        let channel = network.open(request)?;
        Ok((channel, begin.elapsed().as_nanos() as u64))
    };
    let opened = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..args.at_once {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < args.count {
                    let result = open();
                    let failed = result.is_err();
                    let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
                    opened.push(result);
                    if failed {
                        return;
                    }
                }
            });
        }
    });
    let lasted_ns = begin.elapsed().as_nanos() as u64;
    let opened = opened.into_inner().unwrap_or_else(PoisonError::into_inner);
    let number = opened.len();
    let opened: Result<Vec<_>> = opened.into_iter().collect();
    let opened = opened.with_context(|| format!("one of the first {number} channels"))?;
    let took_ns = opened.iter().map(|(_, took)| *took).collect();
    let report = OpenedChannels { took_ns, lasted_ns };
    println!("{}", serde_json::to_string(&report)?);
    wait_for_end()
}

fn sink(network: &Network, service: &str, count: usize) -> Result<()> {
    let options = ServiceOptions {
        channels: count,
        ..ServiceOptions::default()
    };
    let service = network.listen(service, options)?;
    println!("{}", json!({ "ready": true }));
    std::thread::spawn(move || {
        let mut channels = Vec::new();
        loop {
            match service.accept(None) {
                Ok(channel) => channels.push(channel),
                Err(NetworkError::Timeout) => {}
                Err(_) => return,
            }
        }
    });
    wait_for_end()
}

fn wait_for_end() -> Result<()> {
    stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A running program with one end of many channels. It ends when it is dropped.
pub struct ManyChannels {
    proc: Proc,
}

impl ManyChannels {
    /// Starts the sink of a service. Fails if the program is not ready within 60 s.
    pub fn sink(host: &Host, runtime: &Path, service: &str, count: usize) -> Result<ManyChannels> {
        let words = ["--service", service];
        let mut program = ManyChannels::start(host, runtime, count, &words)?;
        program.proc.next_json("ready", EVENT_TIMEOUT)?;
        Ok(program)
    }

    /// Opens channels to NAME@HOST, so many at a time. Fails if one is refused, or if they are not
    /// open within `within`.
    pub fn source(
        host: &Host,
        runtime: &Path,
        (to, contract): (&str, &str),
        (count, at_once): (usize, usize),
        within: Duration,
    ) -> Result<(ManyChannels, OpenedChannels)> {
        let at_once = at_once.to_string();
        let words = ["--to", to, "--contract", contract, "--at-once", &at_once];
        let mut program = ManyChannels::start(host, runtime, count, &words)?;
        let opened = program.proc.next_json("took_ns", within)?;
        Ok((program, serde_json::from_value(opened)?))
    }

    fn start(host: &Host, runtime: &Path, count: usize, words: &[&str]) -> Result<ManyChannels> {
        let mut command = host.ns.command(process::binary("netnice-lab")?);
        command
            .args(["traffic", "many-channels", "--runtime-dir"])
            .arg(runtime)
            .args(["--count", &count.to_string()])
            .args(words);
        let proc = Proc::start(command)?;
        Ok(ManyChannels { proc })
    }
}

/// Handlers and flows beyond the channels.
const SPARE: usize = 16;
