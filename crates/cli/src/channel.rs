//! `netnice channel`: channels to and from programs on other hosts, for standard input and output
//! and for UDP programs. [`listen`] is the sink, [`open`] the source, [`list`] shows what the
//! netnice-peer of this host has, and [`explain`] how the hosts keep a channel's messages. Fails
//! with a [`CommandError`] if no netnice-peer answers, a channel or a service cannot be had, a
//! channel ends or cannot be explained, the secret cannot be read, or input or output fails.

mod explain;
mod input;
pub(crate) mod list;
mod listen;
mod open;
mod replies;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use netnice_api::{Exit, RuntimeDir};
use netnice_channel::costs::{self, StageMaker};
use netnice_channel::network::{BLOCK, Network, NetworkOptions};
use netnice_channel::{ChannelError, HandlerThreadOptions};
use netnice_core::contract::{Channel, Slice};
use netnice_core::units::{Bytes, Nanos};
use netnice_stack::own;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::CommandError;

/// A verb of `netnice channel`.
#[derive(Debug)]
pub(crate) enum ChannelCommand {
    /// Offer a service.
    Listen(Box<Listen>),
    /// Open a channel.
    Open(Box<Open>),
    /// List the channels of this host.
    List,
    /// Show how the hosts keep the messages of the channel with these first digits.
    Explain(String),
}

/// The options of `netnice channel listen`.
#[derive(Debug)]
pub(crate) struct Listen {
    /// The name of the service.
    pub service: String,
    /// What happens to the messages.
    pub output: Output,
    /// Send the datagrams of the program at `output` back to the source of each channel.
    pub replies: bool,
    /// The longest message that a channel may have.
    pub mmax: Bytes,
    /// The largest number of channels at the same time.
    pub channels: usize,
    /// Number of channels after whose end the command ends; `None`: never.
    pub count: Option<u64>,
    pub end: EndOptions,
}

/// The options of `netnice channel open`, `test` and `carry`.
#[derive(Debug)]
pub(crate) struct Open {
    /// The service.
    pub service: String,
    /// The host of the service.
    pub host: String,
    /// The contract.
    pub channel: Channel,
    /// What the messages are.
    pub input: Input,
    /// Offer a channel for replies to the program whose datagrams are carried.
    pub replies: bool,
    pub end: EndOptions,
}

/// The options of both ends.
#[derive(Debug)]
pub(crate) struct EndOptions {
    /// Processor time to reserve.
    pub cpu: ReservedTime,
    /// The handler's part of the deadline; `None`: the shortest.
    pub processing: Option<Nanos>,
    /// Detect corrupted packets.
    pub checksum: bool,
    /// The file with the secret; `None`: no encryption.
    pub key: Option<PathBuf>,
    /// The longest packet with its header.
    pub packet: Bytes,
    /// The file with what processing costs on this machine; `None`: it is measured.
    pub costs: Option<PathBuf>,
    /// True: print nothing about channels that begin or end.
    pub quiet: bool,
}

/// Processor time of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservedTime {
    /// None: its part of the deadline is no promise.
    None,
    /// The least that its handlers need.
    Least,
    /// So much.
    Slice(Slice),
}

/// What the messages of a source are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// What a read of standard input returns, at most Mmax.
    Reads,
    /// The lines of standard input.
    Lines,
    /// Datagrams that arrive at this address and port.
    Udp(SocketAddr),
    /// Messages of Mmax at Rmax, for this time.
    Test(Duration),
}

/// What happens to the messages of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Their bytes are written to standard output.
    Bytes,
    /// Each is written as a line.
    Lines,
    /// Each is sent as a datagram to this address and port.
    Udp(SocketAddr),
    /// They are counted.
    Nothing,
}

/// Executes a verb of `netnice channel`.
///
/// # Errors
/// For the reasons in the module's documentation.
pub(crate) fn execute(
    dir: &RuntimeDir,
    json: bool,
    command: ChannelCommand,
) -> Result<Exit, CommandError> {
    match command {
        ChannelCommand::Listen(listen) => listen::execute(dir, &listen),
        ChannelCommand::Open(open) => open::execute(dir, json, *open),
        ChannelCommand::List => list::execute(dir, json),
        ChannelCommand::Explain(digits) => explain::execute(dir, json, &digits),
    }
}

/// The connection to netnice-peer, with handlers as the options say.
fn connect(dir: &RuntimeDir, end: &EndOptions) -> Result<Network, CommandError> {
    let settings =
        costs::of_machine(end.packet, BLOCK, end.costs.as_deref()).map_err(of_channel)?;
    let handlers = HandlerThreadOptions::new(settings);
    let mut options = NetworkOptions::new(handlers);
    match end.cpu {
        ReservedTime::None => {}
        ReservedTime::Least => options.pick_reservation(),
        ReservedTime::Slice(slice) => {
            own::change(dir, &format!("cpu {}/{}", slice.slice(), slice.period()))?;
            options.use_reservation(slice);
        }
    }
    Ok(Network::connect(dir, options)?)
}

/// A flag that a first signal sets; a second one ends the process.
fn signal_flag() -> Result<Arc<AtomicBool>, CommandError> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let registered = flag::register_conditional_default(signal, ends.clone())
            .and_then(|_| flag::register(signal, ends.clone()));
        registered.map_err(|error| CommandError::io("signals", error))?;
    }
    Ok(ends)
}

/// Reads the secret, and finds out what the stages cost on this machine.
fn stages(end: &EndOptions) -> Result<StageMaker, CommandError> {
    let secret = end.key.as_deref().map(|file| {
        let bytes = std::fs::read(file)
            .map_err(|error| CommandError::Key(format!("{}: {error}", file.display())))?;
        let length = bytes.len();
        let secret: Result<[u8; 32], _> = bytes.try_into();
        secret.map_err(|_| {
            let file = file.display();
            CommandError::Key(format!("{file}: a secret has 32 bytes, not {length}"))
        })
    });
    let secret = secret.transpose()?;
    StageMaker::new(end.checksum, secret, end.packet, end.costs.as_deref()).map_err(of_channel)
}

fn of_channel(error: ChannelError) -> CommandError {
    CommandError::Network(error.into())
}

/// The hosts of a channel with their bounds, in words.
fn hops_text(hops: &[netnice_channel::network::Hop]) -> String {
    let hop = |hop: &netnice_channel::network::Hop| {
        let host = crate::render::printable(&hop.host);
        format!("{host} {}{}", hop.bound, mark(hop.unguarded.as_deref()))
    };
    let hops: Vec<String> = hops.iter().map(hop).collect();
    hops.join(", ")
}

/// The mark of a host behind its bound: nothing, or the interface that is not guarded.
fn mark(unguarded: Option<&str>) -> String {
    match unguarded {
        None => String::new(),
        Some(iface) => format!(" (unguarded: {})", crate::render::printable(iface)),
    }
}
