//! The messages between a program and the netnice-peer of its host: channels to and from programs
//! on other hosts.
//!
//! netnice-peer listens on a Unix stream socket ([`crate::RuntimeDir::peer_socket`]). Each message
//! is one [`frame`], of JSON with the version ([`VERSION`]). Both sides send at any time.
//!
//! ```text
//!  source                    netnice-peer … netnice-peer                     sink
//!                                                         ◀── listen ──
//!                                                         ── listening ──▶
//!  ── open ──▶
//!  ◀── hold ──   for each host in turn, as far as          ── hold ──▶
//!  ── held ──▶   the sink                                 ◀── held ──
//!                                                          ── relax ──▶
//!                                                         ◀── relaxed ──
//!  ◀── relax ──                                            ── accepted ──▶
//!  ── relaxed ──▶
//!  ◀── opened ──
//! ```
//! The program holds the bound of its own end: the promise of its link at netniced, and the
//! processor time of its handler. The types are plain data. Encoding fails for a message that is
//! too long, decoding for an invalid one or one of another version ([`MessageError`]).

mod explain;
mod reason;

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::frame::{self, FrameError};
pub use explain::{
    CountHop, CountedHop, ExplainChannel, ExplainedChannel, ExplainedHop, HopCounts, HopStops,
    LAXITIES, NotExplained,
};
pub use reason::reason_for_others;

/// The version of the messages. It changes when an old program would misread a new netnice-peer, or
/// the other way round.
pub const VERSION: u32 = 1;

/// The longest message of a program, in bytes of JSON.
pub const LONGEST_FROM_PROGRAM: usize = 16 * 1024;

/// The longest message to a program, in bytes of JSON: a list of 8,000 channels.
pub const LONGEST_TO_PROGRAM: usize = 16 * 1024 * 1024;

/// Why a message cannot be encoded or decoded.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The message is too long or empty.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The bytes are not the JSON of a message.
    #[error("the message is not understood: {0}")]
    Json(#[from] serde_json::Error),
    /// The message has another version.
    #[error(
        "the message has version {theirs} of the channels between hosts, and this program has \
         version {VERSION}: restart netnice-peer and the programs of the release that is installed"
    )]
    Version {
        /// The version in the message.
        theirs: u32,
    },
}

/// A message of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromProgram {
    /// Offers a service to programs on other hosts, until the connection ends.
    Listen(Listen),
    /// Ends the offer. Channels that the program has accepted stay.
    EndService(Listen),
    /// Asks for a channel to a service.
    Open(OpenChannel),
    /// The reply to [`ToProgram::Hold`]: the end holds a bound.
    Held(HeldBound),
    /// The reply to [`ToProgram::Hold`]: it cannot.
    NotHeld(NotHeld),
    /// The reply to [`ToProgram::Relax`]: the channel is open at this end.
    Relaxed(Relaxed),
    /// The reply to [`ToProgram::Relax`]: it cannot be.
    NotRelaxed(EndOfHold),
    /// The end of the channel was lost: its flow has ended, for example.
    Lost(EndOfHold),
    /// Ends a channel of this program.
    Close(CloseChannel),
    /// Asks for the channels and neighbours of this host.
    List(ListChannels),
    /// Asks how long the hosts of a channel keep its messages.
    Explain(ExplainChannel),
    /// The reply to [`ToProgram::Count`].
    Counted(CountedHop),
    /// The reply to [`ToProgram::Ping`].
    Pong(Pong),
}

/// A message to a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToProgram {
    /// The reply to `listen`: programs can open channels to the service now.
    Listening(Listening),
    /// The reply to `listen`: they cannot.
    NotListening(NotListening),
    /// Asks an end to hold the shortest bound that it can keep.
    Hold(Box<HoldBound>),
    /// Asks an end to keep this bound, which is not shorter, and to open the channel with it.
    Relax(RelaxBound),
    /// The hold is not needed any more.
    Release(ReleaseBound),
    /// The source's channel is established.
    Opened(Established),
    /// The source's channel cannot be had.
    OpenRefused(OpenRefused),
    /// The sink has a new channel.
    Accepted(Established),
    /// An established channel has ended.
    Ended(Ended),
    /// The reply to `list`.
    Channels(Box<ChannelList>),
    /// The reply to `explain`.
    Explained(Box<ExplainedChannel>),
    /// The reply to `explain`: it cannot be told.
    NotExplained(NotExplained),
    /// Asks an end of a channel what it counted.
    Count(CountHop),
    /// Asks whether the program runs. One that does not reply loses its channels.
    Ping(Ping),
}

/// [`FromProgram::Listen`] and [`FromProgram::EndService`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// The name of the service on this host.
    pub service: String,
}

/// The contract of a channel between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteContract {
    /// Bytes of all payloads of the longest message, as the stages made them.
    pub mmax: u64,
    /// Messages per second.
    pub rmax: u32,
    /// Messages that may come at once.
    pub bmax: u32,
    /// From the logical arrival at the source to the complete message at the sink, in nanoseconds.
    pub deadline_ns: u64,
    /// The longest packet with the channel's header, in bytes.
    pub packet: u16,
}

/// [`FromProgram::Open`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenChannel {
    /// The identifier: 32 hexadecimal digits, drawn at random.
    pub channel: String,
    /// The service at the sink.
    pub service: String,
    /// The host of the sink.
    pub sink: String,
    /// The contract.
    pub contract: RemoteContract,
}

/// [`FromProgram::Held`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldBound {
    /// The number of the hold.
    pub hold: u64,
    /// The shortest bound, in nanoseconds.
    pub bound_ns: u64,
    /// The way of the packets; absent at the sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<Way>,
}

/// The addresses of packets between two neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// The address that sends.
    pub from: IpAddr,
    /// The address that receives.
    pub to: IpAddr,
}

/// [`FromProgram::NotHeld`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotHeld {
    /// The number of the hold.
    pub hold: u64,
    /// Why.
    pub reason: String,
}

/// [`FromProgram::Relaxed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relaxed {
    /// The number of the hold.
    pub hold: u64,
    /// The UDP port that the packets of the channel arrive at; absent at the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<NonZeroU16>,
}

/// [`FromProgram::NotRelaxed`] and [`FromProgram::Lost`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndOfHold {
    /// The number of the hold.
    pub hold: u64,
    /// Why.
    pub reason: String,
}

/// [`FromProgram::Close`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloseChannel {
    /// The identifier.
    pub channel: String,
    /// Why.
    pub reason: String,
}

/// [`FromProgram::List`]: no parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListChannels {}

/// [`FromProgram::Pong`]: no parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pong {}

/// [`ToProgram::Ping`]: no parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {}

/// [`ToProgram::Listening`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    /// The service.
    pub service: String,
    /// The name of this host, by which sources ask for it.
    pub host: String,
}

/// [`ToProgram::NotListening`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotListening {
    /// The service.
    pub service: String,
    /// Why.
    pub reason: String,
}

/// [`ToProgram::Hold`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldBound {
    /// The number of the hold, in the messages about it.
    pub hold: u64,
    /// The identifier of the channel.
    pub channel: String,
    /// The service at the sink.
    pub service: String,
    /// The contract.
    pub contract: RemoteContract,
    /// The address of the sink.
    pub sink_address: IpAddr,
    /// The way by which packets arrive; absent at the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrival: Option<Way>,
}

/// [`ToProgram::Relax`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelaxBound {
    /// The number of the hold.
    pub hold: u64,
    /// The final bound, in nanoseconds.
    pub bound_ns: u64,
    /// Where the packets go; absent at the sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<SocketAddr>,
}

/// [`ToProgram::Release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseBound {
    /// The number of the hold.
    pub hold: u64,
}

/// A host of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopDoc {
    /// The host.
    pub host: String,
    /// How long it may keep a message, in nanoseconds.
    pub bound_ns: u64,
    /// The interface at which the messages arrive, if nothing is declared about the port before it:
    /// other senders' traffic can delay them there. Absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unguarded: Option<String>,
}

/// [`ToProgram::Opened`] and [`ToProgram::Accepted`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Established {
    /// The identifier.
    pub channel: String,
    /// All hosts, the source first. The bounds sum to the deadline.
    pub hops: Vec<HopDoc>,
}

/// [`ToProgram::OpenRefused`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRefused {
    /// The identifier.
    pub channel: String,
    /// The host that refuses.
    pub host: String,
    /// Why.
    pub reason: String,
    /// The shortest deadline that would be granted, in nanoseconds; absent if none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_deadline_ns: Option<u64>,
}

/// [`ToProgram::Ended`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The identifier.
    pub channel: String,
    /// The host that ended it.
    pub host: String,
    /// Why.
    pub reason: String,
}

/// [`ToProgram::Channels`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelList {
    /// The name of this host.
    pub host: String,
    /// The channels at this host, those of other users included.
    pub channels: Vec<ListedChannel>,
    /// The hosts with a connection to this one.
    pub neighbours: Vec<ListedNeighbour>,
    /// The ports before the interfaces of this host that are declared, or by which channels enter.
    #[serde(default)]
    pub ports: Vec<ListedPort>,
    /// The services that programs of this host offer.
    pub services: Vec<String>,
    /// Connections of other hosts that were refused since the start, for example because of their
    /// certificates.
    pub refused_connections: u64,
    /// Why the last one was refused; absent if none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<String>,
}

/// A channel in a [`ChannelList`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedChannel {
    /// The first 8 digits of the identifier. The whole one is known only to its hosts.
    pub channel: String,
    /// The service at the sink.
    pub service: String,
    /// The host of the sink.
    pub sink: String,
    /// The contract.
    pub contract: RemoteContract,
    /// `source`, `relay` or `sink`.
    pub part: String,
    /// The host before this one; absent at the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// The next host; absent at the sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// All hosts with their bounds; empty before the channel is established.
    pub hops: Vec<HopDoc>,
    /// At a relay, what it did; absent elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relayed: Option<RelayedDoc>,
}

/// What a relay did with the messages of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayedDoc {
    /// Messages that were passed on.
    pub messages: u64,
    /// Messages that the relay did not pass on, because packets of them did not arrive.
    pub incomplete: u64,
    /// Whole messages that were dropped: they came faster than the contract, or the path has become
    /// too narrow.
    pub dropped: u64,
    /// Packets that did not leave, because the link was down.
    pub unsent: u64,
}

/// A neighbour in a [`ChannelList`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedNeighbour {
    /// The host.
    pub host: String,
    /// Its clock less this host's, in nanoseconds; absent before it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ahead_ns: Option<i64>,
    /// By how much that can be wrong, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// What the two follow from: `round-trips`, or `kernel`, where both kernels synchronise their
    /// clocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_source: Option<String>,
}

/// The port before an interface, in a [`ChannelList`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedPort {
    /// The interface.
    pub interface: String,
    /// `cable` or `priority=T`; absent if nothing is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Channels that enter by the interface.
    pub channels: u64,
    /// Those of them that were granted while nothing was declared.
    pub unguarded: u64,
    /// The longest time for which a switch that is declared can delay their packets, in
    /// nanoseconds; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ns: Option<u64>,
}

/// The frame of a message of a program.
///
/// # Errors
/// If the message is longer than [`LONGEST_FROM_PROGRAM`].
pub fn encode_from_program(message: &FromProgram) -> Result<Vec<u8>, MessageError> {
    encode(message, LONGEST_FROM_PROGRAM)
}

/// The frame of a message to a program.
///
/// # Errors
/// If the message is longer than [`LONGEST_TO_PROGRAM`].
pub fn encode_to_program(message: &ToProgram) -> Result<Vec<u8>, MessageError> {
    encode(message, LONGEST_TO_PROGRAM)
}

/// Decodes the body of a frame: a [`FromProgram`] or a [`ToProgram`]. The version is checked first.
///
/// # Errors
/// [`MessageError::Version`] for another version, [`MessageError::Json`] for an invalid message.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, MessageError> {
    let versioned: Versioned = serde_json::from_slice(body)?;
    if versioned.version != VERSION {
        let theirs = versioned.version;
        return Err(MessageError::Version { theirs });
    }
    let envelope: Envelope<T> = serde_json::from_slice(body)?;
    Ok(envelope.message)
}

fn encode<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, MessageError> {
    let body = serde_json::to_vec(&Envelope {
        version: VERSION,
        message,
    })?;
    Ok(frame::encode(&body, limit)?)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    version: u32,
    message: T,
}

/// The version of any message.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[cfg(test)]
mod tests;
