//! Cyclone DDS's `ddsperf`: a publisher at the client and a subscriber at the server, best-effort.
//!
//! The subscriber announces an address of the client as its own (`ExternalNetworkAddress`), at
//! which the datagrams are carried: discovery at one port, samples at the other. What it sends to
//! the publisher (its discovery) passes the network plainly. A message has at most 1,400 bytes
//! (`MaxMessageSize`): otherwise samples that wait leave in one datagram, longer than the channel's
//! messages.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::super::hosts::Hosts;
use super::{Counted, Program, at_client};
use crate::process::{EVENT_TIMEOUT, Proc};
use crate::world::Host;

/// The program.
pub(super) const DDSPERF: Program = Program {
    name: "ddsperf",
    ports: &[SAMPLES, DISCOVERY],
    is_local: false,
    answers: false,
    stamp,
    run,
};

fn run(hosts: &Hosts, seconds: u64) -> Result<Counted> {
    let [client, server] = ["client", "server"].map(|name| hosts.world.host(name));
    let folder = hosts.world.folder();
    let external = format!(
        "<ExternalNetworkAddress>{}</ExternalNetworkAddress>",
        at_client(false)
    );
    let (publisher, subscriber) = (
        configure(folder, "publisher", (1, DISCOVERY, at_client(false)), "")?,
        configure(
            folder,
            "subscriber",
            (0, DISCOVERY + 2, client.port().v4.into()),
            &external,
        )?,
    );
    let duration = seconds + MATCHING.as_secs();
    let mut sub = start(server, &subscriber, &format!("-u -D {} sub", duration + 3))?;
    let mut publish = start(
        client,
        &publisher,
        &format!("-u -D {duration} pub {RATE}Hz size {SIZE}"),
    )?;
    std::thread::sleep(MATCHING);
    let floods = hosts.flood()?;
    let within = Duration::from_secs(duration) + EVENT_TIMEOUT;
    publish.wait(within)?;
    for flood in floods {
        flood.stop()?;
    }
    let lines = sub.remaining_lines(within);
    let report = lines.iter().rev().find_map(|line| counted(line));
    report.with_context(|| format!("the subscriber says {lines:?} {}", sub.take_stderr()))
}

fn start(host: &Host, configuration: &Path, line: &str) -> Result<Proc> {
    let mut command = host.ns.command("ddsperf");
    command.args(line.split(' '));
    command.env(
        "CYCLONEDDS_URI",
        format!("file://{}", configuration.display()),
    );
    Proc::start(command)
}

/// Writes the configuration of a participant with this index, which looks for the other one at an
/// address and port.
fn configure(
    folder: &Path,
    name: &str,
    (index, port, peer): (u32, u16, IpAddr),
    further: &str,
) -> Result<PathBuf> {
    let file = folder.join(format!("{name}.xml"));
    let text = format!(
        "<CycloneDDS><Domain id=\"any\"><General><Interfaces><NetworkInterface name=\"eth0\"/>\
         </Interfaces><AllowMulticast>false</AllowMulticast>\
         <MaxMessageSize>1400B</MaxMessageSize>{further}</General><Discovery>\
         <ParticipantIndex>{index}</ParticipantIndex><LeaseDuration>300s</LeaseDuration>\
         <Peers><Peer address=\"{peer}:{port}\"/></Peers></Discovery></Domain></CycloneDDS>"
    );
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// The counts in a line of the subscriber: `… size 1000 total 901 lost 0 delta …`.
fn counted(line: &str) -> Option<Counted> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == "total")?;
    let arrived: u64 = words.next()?.parse().ok()?;
    let lost = words.nth(1)?.parse().ok()?;
    Some(Counted {
        sent: arrived + lost,
        lost,
    })
}

/// The time of the first sample in a message of RTPS (OMG RTPS 2.3, 8.3.3 and 9.4.5): an
/// `InfoTimestamp` with seconds and 2^-32 of them, of the wall clock, before a `Data`.
fn stamp(message: &[u8], _: u64) -> Option<u64> {
    let mut rest = message.strip_prefix(b"RTPS")?.get(16..)?;
    loop {
        let (header, behind) = rest.split_first_chunk::<4>()?;
        // The flag of little-endian numbers.
        let length = match header[1] & 1 {
            1 => u16::from_le_bytes([header[2], header[3]]),
            _ => return None,
        };
        if header[0] == INFO_TIMESTAMP {
            let word = |at: usize| {
                let bytes = behind.get(at..at + 4)?;
                Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)))
            };
            return Some(word(0)? * 1_000_000_000 + ((word(4)? * 1_000_000_000) >> 32));
        }
        rest = behind.get(usize::from(length)..)?;
    }
}

/// The ports of the first participant of domain 0 (RTPS 2.3, 9.6.1.1).
const DISCOVERY: u16 = 7_410;
const SAMPLES: u16 = 7_411;
const INFO_TIMESTAMP: u8 = 0x09;
/// Samples in a second, and their bytes.
const RATE: u64 = 200;
const SIZE: u64 = 1_000;
/// How long the participants may look for each other before the floods begin.
const MATCHING: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_a_subscriber_are_read() {
        let line = "[23279] 9.004  size 1000 total 901 lost 2 delta 101 lost 0 rate 0.10 kS/s";
        let counted = counted(line).expect("counts");
        assert_eq!((counted.sent, counted.lost), (903, 2));
        assert!(super::counted("[1] 9.004  rss:7.3MB").is_none());
    }

    #[test]
    fn the_time_of_a_sample_is_read_behind_other_submessages() {
        let mut message = b"RTPS\x02\x05\x01\x10".to_vec();
        message.extend([7; 12]);
        message.extend([0x0e, 1, 12, 0]);
        message.extend([8; 12]);
        assert_eq!(stamp(&message, 0), None);
        message.extend([INFO_TIMESTAMP, 1, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0x80]);
        assert_eq!(stamp(&message, 0), Some(3_500_000_000));
    }
}
