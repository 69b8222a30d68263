//! `iperf3 -u`. Its control connection, which is TCP, passes beside the network, so that it does
//! not decide the test.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::super::hosts::Hosts;
use super::{Counted, Program, forwarder};
use crate::process::{EVENT_TIMEOUT, Proc};
use crate::traffic::real_programs::iperf_server;

/// The program.
pub(super) const IPERF: Program = Program {
    name: "iperf3",
    ports: &[PORT],
    is_local: true,
    answers: true,
    stamp,
    run,
};

fn run(hosts: &Hosts, seconds: u64) -> Result<Counted> {
    let [client, server] = ["client", "server"].map(|name| hosts.world.host(name));
    let _control = forwarder::connections(client, server, PORT)?;
    let _server = iperf_server(server, PORT)?;
    let mut command = client.ns.command("iperf3");
    let line = format!("-J -u -b {RATE} -l {LENGTH} -c 127.0.0.1 -p {PORT} -t {seconds}");
    command.args(line.split(' '));
    let mut iperf = Proc::start(command)?;
    // It greets its server first.
    std::thread::sleep(Duration::from_millis(500));
    let floods = hosts.flood()?;
    let report = iperf.remaining_lines(Duration::from_secs(seconds) + EVENT_TIMEOUT);
    for flood in floods {
        flood.stop()?;
    }
    let text = report.join("\n");
    let report: Value = serde_json::from_str(&text)
        .with_context(|| format!("iperf3 says {text:?} {}", iperf.take_stderr()))?;
    let number = |name: &str| {
        let number = report.pointer(&format!("/end/sum/{name}"));
        let number = number.and_then(Value::as_u64);
        number.with_context(|| format!("iperf3 reports no {name}: {}", report["error"]))
    };
    Ok(Counted {
        sent: number("packets")?,
        lost: number("lost_packets")?,
    })
}

/// The time in a datagram: seconds and microseconds of `CLOCK_MONOTONIC`, 32 bits each, at the
/// beginning of the payload. `ahead` is what the wall clock is ahead of that clock.
fn stamp(payload: &[u8], ahead: u64) -> Option<u64> {
    let word = |at: usize| {
        let bytes = payload.get(at..at + 4)?;
        Some(u64::from(u32::from_be_bytes(bytes.try_into().ok()?)))
    };
    Some(ahead + word(0)? * 1_000_000_000 + word(4)? * 1_000)
}

const PORT: u16 = 5_201;
/// Bit/s, and bytes of a datagram: 250 a second.
const RATE: u64 = 2_000_000;
const LENGTH: u64 = 1_000;
