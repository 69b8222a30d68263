//! The command line of `netnice channel`. Output is a [`ChannelCommand`]. Fails if a service, a
//! contract, an address, a reservation or a length does not parse.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use netnice_channel::ChannelId;
use netnice_channel::costs;
use netnice_channel::network::{LEAST_PACKET, MOST_PACKET, PACKET};
use netnice_core::contract::{Channel, Contract};
use netnice_core::units::{Bytes, Nanos};

use super::{BadUsage, Common, Verb, quantity};
use crate::channel::{ChannelCommand, EndOptions, Input, Listen, Open, Output, ReservedTime};

#[derive(Debug, Subcommand)]
pub(super) enum ChannelArgs {
    /// Offer a service: accept channels to NAME, and write their messages to standard output
    #[command(after_help = LISTEN_HELP)]
    Listen(Box<ListenArgs>),
    /// Open a channel to a service on another host, and send standard input as messages
    #[command(after_help = OPEN_HELP)]
    Open(Box<OpenArgs>),
    /// List the channels, neighbours and services of this host
    Ls,
    /// Open a channel, send messages of its full length at its full rate, and report the times
    Test(Box<TestArgs>),
    /// Carry the datagrams of an unmodified UDP program over a channel
    #[command(after_help = CARRY_HELP)]
    Carry(Box<CarryArgs>),
}

#[derive(Debug, Args)]
pub(super) struct ListenArgs {
    /// The name of the service on this host
    name: String,
    /// Send each message as a datagram to this address and port, in place of standard output
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["lines", "discard"])]
    udp: Option<String>,
    /// Send the datagrams with which the program answers back to the source, which needs --replies
    /// too
    #[arg(long, requires = "udp")]
    replies: bool,
    /// Write each message as a line
    #[arg(long)]
    lines: bool,
    /// Only count the messages
    #[arg(long, conflicts_with = "lines")]
    discard: bool,
    /// The longest message that a channel may have
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    mmax: String,
    /// The largest number of channels at the same time
    #[arg(long, value_name = "N", default_value_t = 64)]
    channels: usize,
    /// End after this number of channels have ended [default: never]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    #[command(flatten)]
    end: EndArgs,
}

#[derive(Debug, Args)]
pub(super) struct OpenArgs {
    #[command(flatten)]
    to: ToArgs,
    /// Send each line of standard input as a message; without it, what a read returns
    #[arg(long)]
    lines: bool,
    #[command(flatten)]
    end: EndArgs,
}

#[derive(Debug, Args)]
pub(super) struct TestArgs {
    #[command(flatten)]
    to: ToArgs,
    /// For how long messages are sent
    #[arg(long, value_name = "TIME", default_value = "10s")]
    lasts: String,
    #[command(flatten)]
    end: EndArgs,
}

#[derive(Debug, Args)]
pub(super) struct CarryArgs {
    #[command(flatten)]
    to: ToArgs,
    /// The address and port that the program sends its datagrams to
    #[arg(long, value_name = "ADDRESS:PORT")]
    udp: String,
    /// Give the program what the program at the other end answers, which needs --replies too
    #[arg(long)]
    replies: bool,
    #[command(flatten)]
    end: EndArgs,
}

/// The channel to ask for.
#[derive(Debug, Args)]
struct ToArgs {
    /// The service and its host
    #[arg(value_name = "NAME@HOST")]
    to: String,
    /// The longest message
    #[arg(long, value_name = "SIZE")]
    mmax: String,
    /// The largest rate of messages, for example 50/s
    #[arg(long, value_name = "RATE")]
    rate: String,
    /// How many messages may come at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    burst: u32,
    /// The time from the arrival of a message at this end to the complete message at the other end
    #[arg(long, value_name = "TIME")]
    deadline: String,
    /// What happens to messages beyond the contract: block, space, decay, drop or best-effort
    #[arg(long, value_name = "POLICY", default_value = "block")]
    overload: String,
}

/// The options of both ends.
#[derive(Debug, Args)]
struct EndArgs {
    /// Processor time to reserve, or `auto` for the least that the handlers need; without it their
    /// part of the deadline is no promise
    #[arg(long, value_name = "SLICE/PERIOD|auto")]
    cpu: Option<String>,
    /// The handler's part of the deadline [default: the shortest that it can keep]
    #[arg(long, value_name = "TIME")]
    processing: Option<String>,
    /// Detect corrupted packets (CRC-32C); both ends need it
    #[arg(long)]
    checksum: bool,
    /// Encrypt with the secret in FILE, of 32 bytes; both ends need the same
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The longest packet, with its header; both ends need the same
    #[arg(long, value_name = "SIZE", default_value_t = PACKET.to_string())]
    packet: String,
    /// Keep in FILE what processing costs on this machine, and measure it only if it is not there
    /// [default: $NETNICE_COSTS, else measured at each start]
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Print no lines about channels that begin or end
    #[arg(long, short)]
    quiet: bool,
}

/// The verb of `netnice explain channel:N`. `digits` is the beginning of the identifier, of
/// which `netnice channel ls` shows 8 digits.
pub(super) fn explain(digits: &str) -> Result<Verb, BadUsage> {
    let is_digit = |digit: u8| digit.is_ascii_hexdigit() && !digit.is_ascii_uppercase();
    match (1..=ChannelId::DIGITS).contains(&digits.len()) && digits.bytes().all(is_digit) {
        true => Ok(Verb::Channel(ChannelCommand::Explain(digits.to_owned()))),
        false => Err(BadUsage::Invalid(
            "a channel is named by the first of its lower-case hexadecimal digits, as `netnice \
             channel ls` lists it: channel:1f0c27d9",
        )),
    }
}

impl ChannelArgs {
    /// Converts the arguments to the verb. Fails for the reasons in the module's documentation.
    pub(super) fn into_verb(self, common: &Common) -> Result<Verb, BadUsage> {
        if common.json && !matches!(self, ChannelArgs::Ls | ChannelArgs::Test(_)) {
            let (option, verb) = ("--json", "channel: it is for `ls` and `test`");
            return Err(BadUsage::Meaningless { option, verb });
        }
        Ok(Verb::Channel(match self {
            ChannelArgs::Ls => ChannelCommand::List,
            ChannelArgs::Listen(listen) => ChannelCommand::Listen(Box::new(listen.into_listen()?)),
            ChannelArgs::Open(open) => {
                let input = match open.lines {
                    true => Input::Lines,
                    false => Input::Reads,
                };
                ChannelCommand::Open(Box::new(opened(open.to, open.end, input)?))
            }
            ChannelArgs::Test(test) => {
                let lasts = quantity::<Nanos>("--lasts", &test.lasts)?;
                let input = Input::Test(lasts.into());
                ChannelCommand::Open(Box::new(opened(test.to, test.end, input)?))
            }
            ChannelArgs::Carry(carry) => {
                let input = Input::Udp(address(&carry.udp)?);
                let opened = opened(carry.to, carry.end, input)?;
                ChannelCommand::Open(Box::new(Open {
                    replies: carry.replies,
                    ..opened
                }))
            }
        }))
    }
}

impl ListenArgs {
    fn into_listen(self) -> Result<Listen, BadUsage> {
        let output = match (self.udp, self.lines, self.discard) {
            (Some(to), ..) => Output::Udp(address(&to)?),
            (None, true, _) => Output::Lines,
            (None, false, true) => Output::Nothing,
            (None, false, false) => Output::Bytes,
        };
        Ok(Listen {
            service: self.name,
            output,
            replies: self.replies,
            mmax: quantity::<Bytes>("--mmax", &self.mmax)?,
            channels: self.channels,
            count: self.count,
            end: self.end.into_options()?,
        })
    }
}

fn opened(to: ToArgs, end: EndArgs, input: Input) -> Result<Open, BadUsage> {
    let parts = to.to.split_once('@');
    let (service, host) = parts
        .filter(|(service, host)| !service.is_empty() && !host.is_empty())
        .ok_or_else(|| BadUsage::Service(to.to.clone()))?;
    let (service, host) = (service.to_owned(), host.to_owned());
    let end = end.into_options()?;
    Ok(Open {
        service,
        host,
        channel: to.channel(end.processing)?,
        input,
        replies: false,
        end,
    })
}

impl ToArgs {
    /// The contract.
    fn channel(&self, processing: Option<Nanos>) -> Result<Channel, BadUsage> {
        let ToArgs {
            mmax,
            rate,
            burst,
            deadline,
            overload,
            ..
        } = self;
        let mut text = format!(
            "channel mmax={mmax},rmax={rate},bmax={burst},deadline={deadline},overload={overload}"
        );
        if let Some(processing) = processing {
            text.push_str(&format!(",processing={processing}"));
        }
        let contract: Contract = text.parse()?;
        contract
            .channel()
            .ok_or(BadUsage::Invalid("the channel has no contract"))
    }
}

impl EndArgs {
    fn into_options(self) -> Result<EndOptions, BadUsage> {
        let part = self.processing.as_deref();
        let part = part.map(|part| quantity::<Nanos>("--processing", part));
        let cpu = match self.cpu.as_deref() {
            None => ReservedTime::None,
            Some("auto") => ReservedTime::Least,
            Some(text) => {
                let contract: Contract = format!("slice {text}").parse()?;
                let slice = contract.slice();
                slice.map_or(ReservedTime::None, ReservedTime::Slice)
            }
        };
        let packet = quantity::<Bytes>("--packet", &self.packet)?;
        if !(LEAST_PACKET..=MOST_PACKET).contains(&packet) {
            return Err(BadUsage::OutOfRange {
                option: "--packet",
                actual: packet.to_string(),
                limits: format!("{LEAST_PACKET} to {MOST_PACKET}"),
            });
        }
        Ok(EndOptions {
            cpu,
            processing: part.transpose()?,
            checksum: self.checksum,
            key: self.key,
            packet,
            costs: self.costs.or_else(costs::named_file),
            quiet: self.quiet,
        })
    }
}

/// Parses an address with a port.
fn address(text: &str) -> Result<SocketAddr, BadUsage> {
    text.parse().map_err(|_| BadUsage::Address(text.to_owned()))
}

/// Text behind the options in `--help`.
const LISTEN_HELP: &str = "\
Sources name the service as NAME@HOST, where HOST is the first name in the certificate of this
host's netnice-peer.

Exit status: 0 ended as asked; 1 the connection to netnice-peer ended; 2 bad usage; 3 refused;
4 no daemon, or no netnice-peer.";

/// Text behind the options in `--help`.
const OPEN_HELP: &str = "\
All hosts on the way promise their part of the deadline, or one of them refuses, and netnice says
which deadline would be granted. At the end of standard input netnice waits until the last message
has arrived.

Exit status: 0 all messages were sent; 1 the channel ended before; 2 bad usage; 3 refused; 4 no
daemon, or no netnice-peer.";

/// Text behind the options in `--help`.
const CARRY_HELP: &str = "\
Each datagram that arrives at --udp becomes a message. At the other end `netnice channel listen NAME
--udp ADDRESS:PORT` sends each message as a datagram.

With --replies at both ends, a second channel with the same contract carries what the program there
answers back to the program that sent the last datagram here.";

#[cfg(test)]
mod tests;
