//! `netnice check`: checks whether the traffic in a capture conforms to a contract.
//!
//! Input is a capture file and a contract ([`Check`]). [`capture`] reads the packets, [`flow`]
//! selects those of the flow, [`messages`] combines packets of a channel into messages, and
//! [`netnice_core::policer`] checks them. Output is the printed verdict, and the exit status 3 if a
//! packet or message does not conform. Fails if the file cannot be read, is no capture, is damaged,
//! has a packet without a time or in an obsolete block, has no packet to check, or, with `--flow`,
//! has a link type that is not supported. Also fails if standard output cannot be written. The
//! command needs no daemon.

pub(crate) mod capture;
pub(crate) mod flow;
mod messages;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use netnice_api::Exit;
use netnice_core::contract::Contract;
use netnice_core::policer::{Observation, Policer, Violation};
use netnice_core::units::{Bytes, Instant, Nanos};
use serde::Serialize;

use crate::error::CommandError;
use crate::output::print_text;
use crate::render::printable;
use capture::CaptureError;
use flow::{DatagramKey, Flow, IpPacket, UnknownLink};
use messages::{Message, Messages};

/// The options of `netnice check`.
#[derive(Debug)]
pub(crate) struct Check {
    /// The capture; `-` is standard input.
    pub file: PathBuf,
    /// The contract, for the text of the verdict.
    pub contract: Contract,
    /// The conformance check of the contract.
    pub police: Policer,
    /// The flow to check; `None` for all packets.
    pub flow: Option<Flow>,
    /// Tolerance in addition to the contract's.
    pub tolerance: Nanos,
    /// For a channel: packets that follow each other in less than this time belong to one message.
    /// `None`: only fragments of one datagram do.
    pub gap: Option<Nanos>,
}

/// Why a capture cannot be checked.
#[derive(Debug, thiserror::Error)]
#[error("{} {fault}", file.display())]
struct CheckError {
    file: PathBuf,
    fault: CheckFault,
}

#[derive(Debug, thiserror::Error)]
enum CheckFault {
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(transparent)]
    Link(#[from] UnknownLink),
    /// No packet was checked, so the result would mean nothing.
    #[error("has no packet to check")]
    Empty,
    #[error("has no packet of {flow} among its {packets} packets")]
    NoMatch { flow: Flow, packets: u64 },
}

/// Checks the capture and prints the verdict. The exit status is [`Exit::Refused`] if a packet or
/// message does not conform. Fails for the reasons in the module's documentation.
pub(crate) fn execute(check: Check, json: bool) -> Result<Exit, CommandError> {
    let file = check.file.clone();
    let verdict = match file.as_os_str() == "-" {
        true => check_packets(check, io::stdin()),
        false => match File::open(&file) {
            Ok(open) => check_packets(check, open),
            Err(error) => Err(CaptureError::Io(error).into()),
        },
    };
    let verdict =
        verdict.map_err(|fault| CommandError::Capture(CheckError { file, fault }.to_string()))?;
    match json {
        true => print_text(&serde_json::to_string(&verdict.doc()).unwrap_or_default())?,
        false => print_text(&verdict.text())?,
    }
    Ok(match verdict.first {
        None => Exit::Done,
        Some(_) => Exit::Refused,
    })
}

/// The result of a check.
#[derive(Debug)]
struct Verdict {
    file: PathBuf,
    contract: Contract,
    flow: Option<Flow>,
    tolerance: Nanos,
    /// Number of packets in the file.
    packets: u64,
    /// Number of packets that were checked.
    checked: u64,
    /// Number of messages that were checked; `None` if the contract is no channel.
    messages: Option<u64>,
    bytes: u64,
    /// Times of the first and the last checked packet, in ns since 1970.
    span: Option<(u64, u64)>,
    /// Length of the longest checked packet in bytes.
    longest: u32,
    /// Number of checked packets that are earlier than the checked packet before them.
    out_of_order: u64,
    /// Number of packets (for a channel: messages) that do not conform.
    violations: u64,
    first: Option<FirstViolation>,
}

/// The first packet, or message of a channel, that does not conform.
#[derive(Debug)]
struct FirstViolation {
    violation: Violation,
    /// The number of the packet in the file; for a message, that of its first packet.
    number: u64,
}

/// Reads the capture and checks its packets, or the messages of a channel.
fn check_packets<R: Read + Send>(check: Check, source: R) -> Result<Verdict, CheckFault> {
    let mut police = check.police.with_tolerance(check.tolerance);
    let is_channel = check.contract.channel().is_some();
    let mut messages = Messages::new(check.gap);
    let mut matched = MatchedDatagrams::default();
    let mut verdict = Verdict {
        file: check.file,
        contract: check.contract,
        flow: check.flow,
        tolerance: check.tolerance,
        packets: 0,
        checked: 0,
        messages: is_channel.then_some(0),
        bytes: 0,
        span: None,
        longest: 0,
        out_of_order: 0,
        violations: 0,
        first: None,
    };
    let mut unknown = None;
    capture::read(source, |packet| {
        verdict.packets += 1;
        let ip_packet = IpPacket::parse(packet.link, packet.data);
        let is_match = match &verdict.flow {
            None => Ok(true),
            Some(flow) => flow.matches(packet.link, packet.data).map(|matches| {
                let ip_packet = ip_packet.as_ref().ok().and_then(Option::as_ref);
                matched.with_fragments(matches, ip_packet)
            }),
        };
        match is_match {
            Ok(false) => return ControlFlow::Continue(()),
            Ok(true) => verdict.count(packet.at, packet.length),
            Err(link) => {
                unknown = Some(link);
                return ControlFlow::Break(());
            }
        }
        let (number, at, length) = (verdict.packets, packet.at, packet.length);
        match verdict.messages {
            None => verdict.check(&mut police, Message::packet(number, at, length)),
            Some(_) => {
                messages.handle(number, at, length, ip_packet.ok().flatten());
                while let Some(message) = messages.poll(at) {
                    verdict.check(&mut police, message);
                }
            }
        }
        ControlFlow::Continue(())
    })?;
    while let Some(message) = messages.take_first() {
        verdict.check(&mut police, message);
    }
    if let Some(link) = unknown {
        return Err(link.into());
    }
    match (&verdict.flow, verdict.checked) {
        (None, 0) => Err(CheckFault::Empty),
        (Some(flow), 0) => Err(CheckFault::NoMatch {
            flow: flow.clone(),
            packets: verdict.packets,
        }),
        _ => Ok(verdict),
    }
}

/// The latest datagrams whose first fragment matched the flow; the other fragments have no ports.
#[derive(Default)]
struct MatchedDatagrams {
    latest: VecDeque<DatagramKey>,
}

impl MatchedDatagrams {
    /// True if the packet matches. `matches` is true if the packet alone matches; a fragment also
    /// matches if the first fragment of its datagram did.
    fn with_fragments(&mut self, matches: bool, packet: Option<&IpPacket>) -> bool {
        let Some(key) = packet.and_then(IpPacket::fragment_of) else {
            return matches;
        };
        let is_known = self.latest.contains(&key);
        if matches && !is_known {
            self.latest.truncate(MAX_DATAGRAMS - 1);
            self.latest.push_front(key);
        }
        matches || is_known
    }
}

impl Verdict {
    /// Counts a packet that matches.
    fn count(&mut self, at: u64, length: u32) {
        let (first, last) = self.span.unwrap_or((at, at));
        self.out_of_order += u64::from(at < last);
        self.span = Some((first, at));
        self.checked += 1;
        self.bytes += u64::from(length);
        self.longest = self.longest.max(length);
    }

    /// Checks a packet, or a message of a channel.
    fn check(&mut self, police: &mut Policer, message: Message) {
        if let Some(messages) = &mut self.messages {
            *messages += 1;
        }
        let seen = Observation {
            at: Instant(message.at),
            length: Bytes(message.length),
        };
        if let Err(violation) = police.handle(seen) {
            self.violations += 1;
            let number = message.number;
            self.first
                .get_or_insert(FirstViolation { violation, number });
        }
    }

    /// Time since the first checked packet in ns; negative if the file's times decrease.
    fn since_first(&self, at: u64) -> i128 {
        let (first, _) = self.span.unwrap_or((at, at));
        i128::from(at) - i128::from(first)
    }

    fn text(&self) -> String {
        let head = match self.first {
            None => "conforms",
            Some(_) => "does not conform",
        };
        let (_, last) = self.span.unwrap_or_default();
        let mut lines = vec![
            format!("{}: {head}", file_name(&self.file)),
            format!("  contract  {}", self.contract),
        ];
        if self.tolerance > Nanos(0) {
            lines.push(format!("  tolerance {}", self.tolerance));
        }
        if let Some(flow) = &self.flow {
            lines.push(format!("  flow      {flow}"));
        }
        if let Some(first) = &self.first {
            let at = seconds(self.since_first(first.violation.observation.at.0));
            lines.push(format!("  first     {}", first.violation));
            let number = match first.number == first.violation.number {
                true => String::new(),
                false => format!(", packet {} of the file", first.number),
            };
            lines.push(format!("            {at} after the first packet{number}"));
            lines.push(match self.messages {
                None => format!(
                    "  in all    {} of {} packets do not conform",
                    self.violations, self.checked
                ),
                Some(all) => format!(
                    "  in all    {} of {all} messages do not conform",
                    self.violations
                ),
            });
        }
        let span = seconds(self.since_first(last));
        let (checked, packets) = (self.checked, self.packets);
        let messages = self
            .messages
            .map_or(String::new(), |all| format!(", which are {all} messages"));
        lines.push(format!(
            "  checked   {checked} of {packets} packets, {} bytes, in {span}{messages}",
            self.bytes
        ));
        if self.out_of_order > 0 {
            lines.push(format!(
                "  note      {} packets are earlier than the one before them in the file",
                self.out_of_order
            ));
        }
        if self.longest > LONGEST_FRAME {
            lines.push(format!(
                "  note      packets of up to {} bytes were captured before segmentation offload:\n\
                 \x20           capture at the receiver, or turn segmentation offload off",
                self.longest
            ));
        }
        lines.join("\n")
    }

    fn doc(&self) -> VerdictDoc<'_> {
        VerdictDoc {
            file: self.file.display().to_string(),
            contract: self.contract.to_string(),
            conforms: self.first.is_none(),
            packets: self.packets,
            checked: self.checked,
            messages: self.messages,
            bytes: self.bytes,
            violations: self.violations,
            out_of_order: self.out_of_order,
            first: self.first.as_ref().map(|first| FirstDoc {
                number: first.number,
                checked_number: first.violation.number,
                at_ns: first.violation.observation.at.0,
                length: first.violation.observation.length.0,
                early_by_ns: first.violation.rule.by().map(|by| by.0),
                text: first.violation.to_string(),
            }),
            flow: self.flow.as_ref(),
        }
    }
}

/// The verdict as JSON.
#[derive(Serialize)]
struct VerdictDoc<'a> {
    file: String,
    contract: String,
    #[serde(serialize_with = "as_text", skip_serializing_if = "Option::is_none")]
    flow: Option<&'a Flow>,
    conforms: bool,
    packets: u64,
    #[serde(rename = "judged")]
    checked: u64,
    /// Present for a channel only.
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<u64>,
    bytes: u64,
    #[serde(rename = "wrong")]
    violations: u64,
    out_of_order: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<FirstDoc>,
}

#[derive(Serialize)]
struct FirstDoc {
    /// Number in the file; the first packet is 1.
    number: u64,
    /// Number among the checked packets or messages.
    #[serde(rename = "judged_number")]
    checked_number: u64,
    at_ns: u64,
    length: u64,
    /// Absent if the violation is the length.
    #[serde(skip_serializing_if = "Option::is_none")]
    early_by_ns: Option<u64>,
    text: String,
}

fn as_text<S: serde::Serializer>(flow: &Option<&Flow>, to: S) -> Result<S::Ok, S::Error> {
    match flow {
        Some(flow) => to.collect_str(flow),
        None => to.serialize_none(),
    }
}

fn file_name(file: &Path) -> String {
    match file.as_os_str() == "-" {
        true => "standard input".to_string(),
        false => printable(&file.display().to_string()),
    }
}

/// A time difference in seconds with all nine decimals.
fn seconds(nanos: i128) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let size = nanos.unsigned_abs();
    format!(
        "{sign}{}.{:09} s",
        size / 1_000_000_000,
        size % 1_000_000_000
    )
}

/// Largest number of datagrams in [`MatchedDatagrams`].
const MAX_DATAGRAMS: usize = 256;

/// The longest jumbo frame with all headers. The wire carries no longer packet in one piece.
const LONGEST_FRAME: u32 = 9_216 + 40;
