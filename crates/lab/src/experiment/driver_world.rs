//! Makes a world with a driver for experiments on the direct path ([`DriverWorld`]), and evaluates
//! the packets that a tap recorded at the far end of its cable.
//!
//! Packets have 1500 bytes with all headers, which take 120 us on a link of 100 Mbit/s. The senders
//! are threads of this process, with memory and doorbells of their own. The driver is the library
//! `netnice-driver` in another thread (see [`crate::direct`]).
//!
//! Making a world or a tap fails if the kernel refuses a step, or if the link's rate is 0.
//! [`validate`] fails if the tap lost a packet, or if the driver counted another number of sent
//! packets than arrived. [`check_conformance`] fails if `netnice check` cannot run or prints no
//! verdict.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use netnice_core::units::Nanos;
use netnice_driver::event_loop::SchedulingClass;
use netnice_driver::link::Mode;
use serde_json::Value;

use super::Outcome;
use crate::direct::{DriverSetup, RunningDriver, SINK, wire};
use crate::process;
use crate::wire::{Record, Tap, Transport, WireFlow};
use crate::world::{Pair, World};

/// A pair of hosts; a driver owns the client's device.
pub struct DriverWorld {
    /// The hosts.
    pub world: World,
    /// The driver, which does not run yet.
    pub setup: DriverSetup,
}

impl DriverWorld {
    /// Makes the hosts and a driver whose link has `bits` bit/s. The scheduler may decide on a
    /// packet up to `ahead` before the link is free. The mode is AF_XDP with XDP in the NIC driver.
    /// Fails if the world cannot be made, if the kernel does not support this mode, or if `bits` is
    /// 0.
    pub fn new(bits: u64, ahead: Nanos) -> Result<DriverWorld> {
        let world = World::pair(Pair::default())?;
        let setup = DriverSetup::new(&world, wire(bits, ahead)?, Mode::Native)?;
        Ok(DriverWorld { world, setup })
    }

    /// Starts a tap at the server's device, which keeps every datagram of the senders. Returns the
    /// tap and the path of its capture file. Fails as [`Tap::start_capturing`] does.
    pub fn tap(world: &World) -> Result<(Tap, PathBuf)> {
        let file = world.folder().join("wire.pcap");
        let server = world.server();
        let tap = Tap::start_capturing(&server.ns, &server.port().device, &file, is_sent)?;
        Ok((tap, file))
    }
}

/// Whether the flow is that of a sender: UDP that arrives for the port [`SINK`].
pub fn is_sent(flow: &WireFlow) -> bool {
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

/// Fails unless the tap lost no packet and, for each of these source ports, the driver counted as
/// many sent packets as arrived. Fails also if the driver had no flow with one of the ports.
pub fn validate(
    record: &Record,
    ended_driver: &mut crate::direct::EndedDriver,
    ports: &[u16],
) -> Result<()> {
    record.validate()?;
    for port in ports {
        let (sent, seen) = (
            ended_driver.counters(*port)?.sent,
            record.times(from_port(*port)).len(),
        );
        ensure!(
            sent == seen as u64,
            "the driver sent {sent} packets from port {port}, and {seen} arrived"
        );
    }
    Ok(())
}

/// Adds a note with the driver's AF_XDP mode and scheduling class to the outcome.
pub fn note_mode(outcome: &mut Outcome, mode: Mode, running_driver: &RunningDriver) {
    let pace = match running_driver.scheduling_class {
        SchedulingClass::Fifo => "SCHED_FIFO",
        SchedulingClass::Ordinary => "no real-time priority",
    };
    outcome.note(format!(
        "driver and programs are threads of one process; AF_XDP {}, {pace}; packets of 1500 bytes with all headers",
        mode.name()
    ));
}

/// Runs `netnice check` with a contract on the UDP packets of a capture that 10.77.0.1 sent from
/// `port`. Returns the number of checked packets, and of those that did not conform. Fails if the
/// command cannot be run or prints no verdict.
pub fn check_conformance(file: &Path, contract: &[&str], port: u16) -> Result<(u64, u64)> {
    let flow = format!("udp from 10.77.0.1:{port}");
    let mut command = Command::new(process::binary("netnice")?);
    command.arg("check").arg(file).args(contract);
    command.args(["--flow", &flow, "--json"]);
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
