//! Captures the packets that senders of the direct path and of the kernel send to [`SINK`], at the
//! far end of their cable ([`tap`]), and evaluates them.
//!
//! Making a tap fails if the kernel refuses a step. [`check_conformance`] fails if `netnice check`
//! cannot run or prints no verdict.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::direct::SINK;
use crate::process;
use crate::wire::{Tap, Transport, WireFlow};
use crate::world::World;

/// Starts a tap at the server's device, which keeps every datagram of the senders. Returns the tap
/// and the path of its capture file. Fails as [`Tap::start_capturing`] does.
pub fn tap(world: &World) -> Result<(Tap, PathBuf)> {
    let file = world.folder().join("wire.pcap");
    let server = world.server();
    let tap = Tap::start_capturing(&server.ns, &server.port().device, &file, is_sent)?;
    Ok((tap, file))
}

/// Whether the flow is that of a sender: UDP that arrives for the port [`SINK`].
fn is_sent(flow: &WireFlow) -> bool {
    flow.inbound && flow.transport == Transport::Udp && flow.target.1 == SINK
}

/// Selects the flow of the sender with this source port.
pub fn from_port(port: u16) -> impl Fn(&WireFlow) -> bool + Copy {
    move |flow| is_sent(flow) && flow.source.1 == port
}

/// Counts the times in each bin of `width` from `from` to `until`; all values are in ns. An
/// incomplete last bin is omitted.
pub fn bins(times: &[u64], from: u64, until: u64, width: u64) -> Vec<f64> {
    let mut bins = vec![0.0; (until.saturating_sub(from) / width) as usize];
    for at in times {
        let bin = at.checked_sub(from).map(|since| (since / width) as usize);
        if let Some(bin) = bin.and_then(|bin| bins.get_mut(bin)) {
            *bin += 1.0;
        }
    }
    bins
}

/// Runs `netnice check` with a contract on the UDP packets of a capture that 10.77.0.1 sent from
/// `port`. Returns the number of checked packets, and of those that did not conform. Fails if the
/// command cannot be run or prints no verdict.
pub fn check_conformance(file: &Path, contract: &[&str], port: u16) -> Result<(u64, u64)> {
    check_flow(file, contract, &format!("udp from 10.77.0.1:{port}"))
}

/// As [`check_conformance`], on the packets of this flow, in the words of `netnice check --flow`.
pub fn check_flow(file: &Path, contract: &[&str], flow: &str) -> Result<(u64, u64)> {
    let mut command = Command::new(process::binary("netnice")?);
    command.arg("check").arg(file).args(contract);
    command.args(["--flow", flow, "--json"]);
    let done = command.output().context("netnice check")?;
    let said = String::from_utf8_lossy(&done.stdout);
    let verdict: Value = serde_json::from_str(&said).with_context(|| {
        let complaint = String::from_utf8_lossy(&done.stderr);
        format!("netnice check: {complaint}")
    })?;
    let number = |key: &str| {
        let number = verdict[key].as_u64();
        number.with_context(|| format!("the output of netnice check has no number `{key}`"))
    };
    Ok((number("judged")?, number("wrong")?))
}

/// The number of datagrams of a sender that are missing in a capture: those whose numbers are below
/// the highest one and do not occur. Fails if the file is not a capture, or if a datagram occurs
/// twice.
pub fn missing_on_the_wire(file: &Path, port: u16) -> Result<u64> {
    let bytes = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let word = |at: usize| -> Result<u32> {
        let word = bytes.get(at..at + 4).context("the capture is cut short")?;
        Ok(u32::from_le_bytes(word.try_into()?))
    };
    let mut numbers = Vec::new();
    let mut at = CAPTURE_HEADER;
    while at < bytes.len() {
        let kept = word(at + 8)? as usize;
        at += RECORD_HEADER;
        let head = bytes
            .get(at..at + kept)
            .context("the capture is cut short")?;
        at += kept;
        let Some(number) = head.get(HEADERS..HEADERS + 8) else {
            continue;
        };
        if head[SOURCE_PORT..SOURCE_PORT + 2] == port.to_be_bytes() {
            numbers.push(u64::from_be_bytes(number.try_into()?));
        }
    }
    numbers.sort_unstable();
    let twice = numbers.windows(2).any(|pair| pair[0] == pair[1]);
    ensure!(!twice, "a datagram of port {port} arrived twice");
    let sent = numbers.last().map_or(0, |last| last + 1);
    Ok(sent - numbers.len() as u64)
}

/// Bytes before the first record of a capture, and before each packet.
const CAPTURE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
/// Bytes of the Ethernet, IPv4 and UDP headers; in them the source port.
const HEADERS: usize = 42;
const SOURCE_PORT: usize = 34;
