//! The messages between neighbours, version 1 ([`Message`]), and their frames: [`encode`] and
//! [`decode`], which fail with [`MessageError`]. docs/reference/peer.md specifies them.
//!
//! A frame is that of [`netnice_api::frame`], with JSON in it. A decoded message is valid by
//! itself: its names have allowed characters, its numbers are in range, and its sums are right. The
//! state machine decides whether the neighbour may send it.

mod addresses;
mod hops;
mod report;
mod text;

use std::net::IpAddr;
use std::num::NonZeroU16;

use netnice_api::frame::{self, FrameError};
use netnice_channel::{ChannelId, LONGEST_MESSAGE};
use netnice_core::contract::{Channel, MessageRate};
use netnice_core::units::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

pub use addresses::{LEAST_PACKET, MOST_PACKET, MOST_PARTS};
pub(crate) use addresses::{check_address, check_addresses, check_packet, ip_headers, parts_of};
pub use hops::{BadHops, HopBound, Hops};
pub use report::{Counted, HopReport};
pub use text::{BadName, HostName, Reason, ServiceName};

/// The version of the messages. It changes when an old host would misread a new one.
pub const VERSION: u32 = 1;

/// The longest message, in bytes of JSON: a refresh of [`Refresh::MOST`] channels.
pub const LONGEST: usize = 256 * 1024;

/// A message between neighbours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// The first message on a connection, in both directions.
    Hello(Hello),
    /// Forward: asks the next host to hold a bound for a channel.
    Establish(Establish),
    /// Back: the channel cannot be had.
    Refused(Refused),
    /// Back: the channel is established, with these bounds.
    Established(Established),
    /// Either direction: the channel has ended.
    Close(Close),
    /// Either direction: the channels that the sender has with this neighbour.
    Refresh(Refresh),
    /// Asks for the neighbour's clock.
    ClockAsk(ClockAsk),
    /// The reply to [`Message::ClockAsk`].
    ClockAnswer(ClockAnswer),
    /// Asks what the receiver and the hosts beyond it have counted of a channel.
    ReportAsk(ReportAsk),
    /// The reply to [`Message::ReportAsk`].
    ReportAnswer(ReportAnswer),
}

/// The parameters of [`Message::Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The sender.
    pub host: HostName,
}

/// The parameters of [`Message::Establish`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "EstablishDoc", into = "EstablishDoc")]
pub struct Establish {
    /// The channel.
    pub channel: ChannelId,
    /// A number that the sender has not used before on the connection. The replies carry it, and
    /// so does each `close`: a message about an earlier attempt can cross this one.
    pub attempt: u64,
    /// The service that listens at the sink.
    pub service: ServiceName,
    /// The host that the channel ends at. It is not in `hops`.
    pub sink: HostName,
    /// The address of the sink, from which each host finds the next one.
    pub sink_address: IpAddr,
    /// Mmax in bytes of all payloads of a message as the stages made them, Rmax, Bmax and the
    /// deadline from source to sink. All hosts compute the frames of their links from these.
    pub contract: Channel,
    /// The longest packet of the channel with its header, in bytes: [`LEAST_PACKET`] to
    /// [`MOST_PACKET`].
    pub packet: u16,
    /// The address that the sender of this message will send the channel's packets from.
    pub from: IpAddr,
    /// The address that it will send them to: one of the receiver of this message.
    pub to: IpAddr,
    /// The hosts so far, the source first, with the bound that each one holds.
    pub hops: Hops,
}

/// The parameters of [`Message::Refused`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// The channel.
    #[serde(with = "channel_text")]
    pub channel: ChannelId,
    /// The number of the attempt, from [`Establish::attempt`].
    pub attempt: u64,
    /// Why, and by which host.
    pub refusal: Refusal,
}

/// Why a channel cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// The host that refuses.
    pub host: HostName,
    /// The inequality that does not hold, or another reason.
    pub reason: Reason,
    /// The shortest deadline from source to sink that would be granted if it was asked for at once,
    /// in nanoseconds; `None` if none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_deadline_ns: Option<u64>,
}

/// The parameters of [`Message::Established`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Established {
    /// The channel.
    #[serde(with = "channel_text")]
    pub channel: ChannelId,
    /// The number of the attempt, from [`Establish::attempt`].
    pub attempt: u64,
    /// The UDP port at which the sender of this message receives the channel's packets, at the
    /// address [`Establish::to`].
    pub port: NonZeroU16,
    /// All hosts of the channel with their final bounds, which sum to the deadline.
    pub hops: Hops,
}

/// The parameters of [`Message::Close`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Close {
    /// The channel.
    #[serde(with = "channel_text")]
    pub channel: ChannelId,
    /// The attempt; `None` in the reply to a refresh, for the established channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// The host that ended it.
    pub host: HostName,
    /// Why.
    pub reason: Reason,
}

/// An attempt between two neighbours, in a message that passes in either direction. Each of them
/// numbers its own, so two attempts for one identifier can have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attempt {
    /// [`Establish::attempt`] of a message that the sender of this message sent.
    Sender(u64),
    /// [`Establish::attempt`] of a message that the receiver of this message sent.
    Receiver(u64),
}

/// The parameters of [`Message::Refresh`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RefreshDoc", into = "RefreshDoc")]
pub struct Refresh {
    /// All established channels that the sender has with this neighbour, in either direction, in
    /// ascending order. At most [`Refresh::MOST`].
    pub channels: Vec<ChannelId>,
}

impl Refresh {
    /// The largest number of channels between two neighbours.
    pub const MOST: usize = 8_000;
}

/// The parameters of [`Message::ClockAsk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockAsk {
    /// The sender's clock, in nanoseconds.
    pub sent_ns: u64,
}

/// The parameters of [`Message::ClockAnswer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockAnswer {
    /// The `sent_ns` of the question.
    pub asked_ns: u64,
    /// The replying host's clock when the question arrived, in nanoseconds.
    pub received_ns: u64,
    /// The replying host's clock when it replied, in nanoseconds.
    pub answered_ns: u64,
    /// What the replying host's kernel states about its clock, if that is synchronised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelClock>,
}

/// What a kernel states about a clock that it synchronises with UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelClock {
    /// `CLOCK_REALTIME` less the clock of the messages, in nanoseconds.
    pub utc_ahead_ns: i64,
    /// `CLOCK_REALTIME` is wrong by at most this time, in nanoseconds (`maxerror` of adjtimex(2)).
    pub error_ns: u64,
}

/// The parameters of [`Message::ReportAsk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportAsk {
    /// The channel, which is established between the two.
    #[serde(with = "channel_text")]
    pub channel: ChannelId,
    /// A number for the reply, which the sender has not used before on the connection.
    pub question: u64,
}

/// The parameters of [`Message::ReportAnswer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ReportAnswerDoc", into = "ReportAnswerDoc")]
pub struct ReportAnswer {
    /// The channel.
    pub channel: ChannelId,
    /// The number of the question.
    pub question: u64,
    /// The host that replies, and those beyond it that it knows of, in their order: 1 to
    /// [`ReportAnswer::MOST`].
    pub hops: Vec<HopReport>,
}

impl ReportAnswer {
    /// The largest number of hosts beyond the one that asks.
    pub const MOST: usize = Hops::MOST - 1;
}

/// Why a message cannot be encoded or decoded.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The message is empty or too long.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The bytes are not the JSON of a message, or a value in it is invalid.
    #[error("the message is not understood: {0}")]
    Json(#[from] serde_json::Error),
    /// The message has another version.
    #[error(
        "the neighbour speaks version {theirs} of the messages between hosts, and this host version \
         {VERSION}: install the same release of netnice-peer on both"
    )]
    Version {
        /// The version in the message.
        theirs: u32,
    },
}

/// The frame of a message.
///
/// # Errors
/// If the message is longer than [`LONGEST`].
pub fn encode(message: &Message) -> Result<Vec<u8>, MessageError> {
    let body = serde_json::to_vec(&Envelope {
        version: VERSION,
        message,
    })?;
    Ok(frame::encode(&body, LONGEST)?)
}

/// Decodes a message from the body of a frame. The version is checked first.
///
/// # Errors
/// [`MessageError::Version`] for another version, [`MessageError::Json`] for an invalid message.
pub fn decode(body: &[u8]) -> Result<Message, MessageError> {
    let Versioned { version } = serde_json::from_slice(body)?;
    if version != VERSION {
        return Err(MessageError::Version { theirs: version });
    }
    let envelope: Envelope<Message> = serde_json::from_slice(body)?;
    Ok(envelope.message)
}

/// Decodes the messages in received bytes.
#[derive(Debug)]
pub struct Decoder(frame::Decoder);

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder(frame::Decoder::new(LONGEST))
    }
}

impl Decoder {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    /// Removes and returns the next message; `None` if none is complete. After `None` the decoder
    /// holds less than one message.
    ///
    /// # Errors
    /// For an invalid frame, after which all calls fail, and for an invalid message. The connection
    /// must be closed after either.
    pub fn poll(&mut self) -> Result<Option<Message>, MessageError> {
        match self.0.poll()? {
            None => Ok(None),
            Some(body) => decode(&body).map(Some),
        }
    }
}

/// Why the parameters of a message contradict each other or a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum BadMessage {
    #[error("{0}")]
    Contract(String),
    #[error("mmax is 1B to {LONGEST_MESSAGE}, not {0}")]
    MessageLength(Bytes),
    #[error("the deadline is at most {most}, not {0}", most = HopBound::LONGEST)]
    Deadline(Nanos),
    #[error("sum_ns is {stated}, and the bounds of the hops sum to {sum}")]
    Sum { stated: u64, sum: u64 },
    #[error("the hops contain the sink {0}")]
    SinkPassed(HostName),
    #[error(transparent)]
    Address(#[from] addresses::AddressFault),
    #[error("a channel is 32 hexadecimal digits")]
    Channel,
    #[error("a refresh has at most {most} channels, not {0}", most = Refresh::MOST)]
    Channels(usize),
    #[error("the channels of a refresh are not in ascending order")]
    Order,
    #[error("a report is of 1 to {most} hosts, not {0}", most = ReportAnswer::MOST)]
    Reports(usize),
}

/// [`Establish`] in JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EstablishDoc {
    #[serde(with = "channel_text")]
    channel: ChannelId,
    attempt: u64,
    service: ServiceName,
    sink: HostName,
    sink_address: IpAddr,
    contract: ContractDoc,
    packet: u16,
    from: IpAddr,
    to: IpAddr,
    hops: Hops,
    sum_ns: u64,
}

/// A contract in JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContractDoc {
    mmax: u64,
    rmax: u32,
    bmax: u32,
    deadline_ns: u64,
}

impl TryFrom<EstablishDoc> for Establish {
    type Error = BadMessage;

    fn try_from(doc: EstablishDoc) -> Result<Establish, BadMessage> {
        let sum = doc.hops.sum().0;
        let stated = doc.sum_ns;
        if stated != sum {
            return Err(BadMessage::Sum { stated, sum });
        }
        if doc.hops.contains(&doc.sink) {
            return Err(BadMessage::SinkPassed(doc.sink));
        }
        let contract: Channel = doc.contract.try_into()?;
        check_packet(contract.mmax(), doc.packet)?;
        check_addresses(doc.sink_address, doc.from, doc.to)?;
        Ok(Establish {
            channel: doc.channel,
            attempt: doc.attempt,
            service: doc.service,
            sink: doc.sink,
            sink_address: doc.sink_address,
            contract,
            packet: doc.packet,
            from: doc.from,
            to: doc.to,
            hops: doc.hops,
        })
    }
}

impl From<Establish> for EstablishDoc {
    fn from(establish: Establish) -> EstablishDoc {
        let contract = establish.contract;
        EstablishDoc {
            channel: establish.channel,
            attempt: establish.attempt,
            service: establish.service,
            sink: establish.sink,
            sink_address: establish.sink_address,
            packet: establish.packet,
            from: establish.from,
            to: establish.to,
            contract: ContractDoc {
                mmax: contract.mmax().0,
                rmax: contract.rmax().get(),
                bmax: contract.bmax(),
                deadline_ns: contract.deadline().0,
            },
            sum_ns: establish.hops.sum().0,
            hops: establish.hops,
        }
    }
}

impl TryFrom<ContractDoc> for Channel {
    type Error = BadMessage;

    fn try_from(doc: ContractDoc) -> Result<Channel, BadMessage> {
        let rate = MessageRate::new(doc.rmax).ok_or_else(|| {
            let rmax = doc.rmax;
            BadMessage::Contract(format!(
                "rmax is 1 to 1000000 messages per second, not {rmax}"
            ))
        })?;
        let (mmax, deadline) = (Bytes(doc.mmax), Nanos(doc.deadline_ns));
        let contract = Channel::new(mmax, rate, doc.bmax, deadline);
        let contract = contract.map_err(|error| BadMessage::Contract(error.to_string()))?;
        check_contract(&contract).map(|()| contract)
    }
}

/// Checks that a contract is within the limits of version 1.
fn check_contract(contract: &Channel) -> Result<(), BadMessage> {
    let (mmax, deadline) = (contract.mmax(), contract.deadline());
    if mmax > LONGEST_MESSAGE {
        return Err(BadMessage::MessageLength(mmax));
    }
    if deadline > HopBound::LONGEST {
        return Err(BadMessage::Deadline(deadline));
    }
    Ok(())
}

/// Checks that a contract can be asked for: Mmax of at most 16 MiB in packets of this length, and a
/// deadline of at most [`HopBound::LONGEST`]. The text of an error names the limit and the value.
pub(crate) fn contract_fault(contract: &Channel, packet: u16) -> Option<String> {
    let checked = check_contract(contract);
    let checked = checked.and_then(|()| Ok(check_packet(contract.mmax(), packet)?));
    checked.err().map(|error| error.to_string())
}

/// [`Refresh`] in JSON: the digits of all channels in one text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RefreshDoc {
    channels: String,
}

impl TryFrom<RefreshDoc> for Refresh {
    type Error = BadMessage;

    fn try_from(doc: RefreshDoc) -> Result<Refresh, BadMessage> {
        let (ids, rest) = doc.channels.as_bytes().as_chunks::<{ ChannelId::DIGITS }>();
        if !rest.is_empty() {
            return Err(BadMessage::Channel);
        }
        if ids.len() > Refresh::MOST {
            return Err(BadMessage::Channels(ids.len()));
        }
        let channels: Option<Vec<ChannelId>> = ids.iter().map(ChannelId::of_digits).collect();
        let channels = channels.ok_or(BadMessage::Channel)?;
        match channels.is_sorted_by(|one, next| one < next) {
            true => Ok(Refresh { channels }),
            false => Err(BadMessage::Order),
        }
    }
}

impl From<Refresh> for RefreshDoc {
    fn from(refresh: Refresh) -> RefreshDoc {
        let mut channels = String::with_capacity(refresh.channels.len() * ChannelId::DIGITS);
        for channel in refresh.channels {
            channels.push_str(&channel.to_string());
        }
        RefreshDoc { channels }
    }
}

/// [`ReportAnswer`] in JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportAnswerDoc {
    #[serde(with = "channel_text")]
    channel: ChannelId,
    question: u64,
    hops: Vec<HopReport>,
}

impl TryFrom<ReportAnswerDoc> for ReportAnswer {
    type Error = BadMessage;

    fn try_from(doc: ReportAnswerDoc) -> Result<ReportAnswer, BadMessage> {
        match doc.hops.len() {
            1..=ReportAnswer::MOST => Ok(ReportAnswer {
                channel: doc.channel,
                question: doc.question,
                hops: doc.hops,
            }),
            other => Err(BadMessage::Reports(other)),
        }
    }
}

impl From<ReportAnswer> for ReportAnswerDoc {
    fn from(answer: ReportAnswer) -> ReportAnswerDoc {
        ReportAnswerDoc {
            channel: answer.channel,
            question: answer.question,
            hops: answer.hops,
        }
    }
}

/// Reads and writes a channel as text.
mod channel_text {
    use netnice_channel::ChannelId;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::BadMessage;

    pub fn serialize<S: Serializer>(channel: &ChannelId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(channel)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<ChannelId, D::Error> {
        let text = String::deserialize(from)?;
        let channel = text.parse();
        channel.map_err(|_| D::Error::custom(BadMessage::Channel))
    }
}

/// A message with its version.
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
