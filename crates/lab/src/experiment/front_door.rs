//! Experiments on the direct path through what is shipped ([`FrontDoor`]): netniced admits the
//! flows, netnice-driver sends and receives their packets at its usual work-ahead, and each program
//! is a process of its own in the scheduling class of ordinary programs (SCHED_OTHER), with the
//! library `netnice-stack`.
//!
//! Packets have 1500 bytes with all headers, and the link has no overhead for each packet, so a
//! packet takes exactly 120 us at 100 Mbit/s, as in the papers. A tap at the other end of the cable
//! keeps each packet with the time of its arrival. The driver writes when the machine stopped it
//! (`netniced --driver-stops`); [`FrontDoor::stops`] reads that file.
//!
//! Making the world fails if the kernel refuses a step, or if the daemon does not start or refuses
//! the link. A sender fails to start if the daemon refuses its flow. The other methods fail if a
//! file cannot be read or its content is not as expected.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use netnice_core::stops::{Stop, StopKind};

use super::Outcome;
use super::bench::pause;
use crate::alibi::{self, Alibi, StolenTime, Verdict};
use crate::direct::{self, SINK};
use crate::sys;
use crate::traffic::{self, Direct, Running};
use crate::world::{Netnice, Pair, World};

/// A pair of hosts; on the client netniced manages the link.
pub struct FrontDoor {
    /// The daemon. Dropped before the world.
    pub netnice: Netnice,
    /// The hosts.
    pub world: World,
    stolen: StolenTime,
    _sink: UdpSocket,
}

impl FrontDoor {
    /// Makes the hosts, and starts the daemon on the client with a link of this rate. Fails as the
    /// module says.
    pub fn new(rate: &str) -> Result<FrontDoor> {
        FrontDoor::on(World::pair(Pair::default())?, rate)
    }

    /// As [`FrontDoor::new`], on hosts that exist.
    pub fn on(world: World, rate: &str) -> Result<FrontDoor> {
        let sink = direct::sink(world.server())?;
        let mut netnice = world.netnice("client")?;
        netnice.restart_with(&["--driver-stops"])?;
        let device = &world.client().port().device;
        netnice.run_line(&format!("link {device} --rate {rate}"))?;
        Ok(FrontDoor {
            netnice,
            world,
            stolen: StolenTime::watch(),
            _sink: sink,
        })
    }

    /// Starts a process with one flow from `port` of the client to [`SINK`] under a contract. It
    /// waits for `go`; then it always has something to send. Fails as the module says.
    pub fn sender(&self, port: u16, contract: &str) -> Result<Running> {
        let (client, server) = (self.world.client(), self.world.server());
        let from = (client.port().v4, port).into();
        let program = Direct::source(from, (server.port().v4, SINK).into());
        let program = program
            .by(self.netnice.runtime())
            .contract(contract)
            .size(PAYLOAD)
            .buffers(BUFFERS)
            .refill(REFILL);
        let running = traffic::start_waiting(client, &program);
        running.with_context(|| format!("a flow with the contract `{contract}`"))
    }

    /// Starts a process with one flow that receives at `port` of the client, with so many buffers.
    /// It writes each packet's time and size to `log`. It burns the processor time `work.0` for
    /// each packet, times the number of `work.1` packets that it has received; `None`: none. Fails
    /// as the module says.
    pub fn consumer(
        &self,
        port: u16,
        buffers: u32,
        log: &Path,
        work: Option<(Duration, u64)>,
    ) -> Result<Running> {
        let client = self.world.client();
        let program = Direct::sink((client.port().v4, port).into());
        let program = program.by(self.netnice.runtime()).buffers(buffers).log(log);
        let program = match work {
            Some((work, step)) => program.work(work, step),
            None => program,
        };
        traffic::start_now(client, &program)
    }

    /// The stops of the driver so far. Call it while the driver runs. Fails if the driver writes no
    /// file, or a line is not that of a stop.
    pub fn stops(&self) -> Result<DriverStops> {
        let device = &self.world.client().port().device;
        DriverStops::read(&self.netnice, device, &self.stolen)
    }

    /// The part of the time that was stolen from the processors so far.
    pub fn stolen(&self) -> f64 {
        self.stolen.share()
    }
}

/// The stops of a driver, as evidence for the packets of a tap.
pub struct DriverStops {
    /// The stops so far.
    pub stops: Vec<Stop>,
    /// What was stolen from the processors meanwhile.
    stolen: Duration,
    /// The offset from the clock of stops to that of packets, in ns.
    ahead: u64,
}

impl DriverStops {
    /// The stops of the driver of `device` so far, if `stolen` was watched from before its start.
    /// Fails as [`stops`] does.
    pub fn read(netnice: &Netnice, device: &str, stolen: &StolenTime) -> Result<DriverStops> {
        Ok(DriverStops {
            stops: stops(netnice, device)?,
            stolen: stolen.total(),
            ahead: sys::now_ns().saturating_sub(netnice_kernel::process::monotonic().0),
        })
    }

    /// What the stops excuse if `used` of the link is in use. Times are those of a tap.
    pub fn alibi(&self, used: f64) -> Alibi {
        Alibi::with_stolen(&self.stops, self.stolen, self.ahead, used)
    }
}

/// The stops so far of the driver of `device`, whose daemon was started with `--driver-stops`. Call
/// it while the driver runs. Fails if the driver writes no file, or a line is not that of a stop.
pub fn stops(netnice: &Netnice, device: &str) -> Result<Vec<Stop>> {
    // The daemon reads the driver's counters several times a second; with them the driver writes
    // its stops.
    pause(0.6);
    let file = netnice.runtime().join(format!("driver-{device}.stops"));
    let log = std::fs::read_to_string(&file);
    let log = log.with_context(|| format!("the driver's stops in {}", file.display()))?;
    Ok(alibi::parse(&log)?)
}

/// Adds the note that says what the experiment ran through, and how often the machine stopped the
/// driver.
pub fn note(outcome: &mut Outcome, stops: &[Stop]) {
    outcome.note(
        "netniced, netnice-driver and programs as processes of their own (SCHED_OTHER); packets of \
         1500 bytes with all headers, 120 us at 100 Mbit/s",
    );
    note_stops(outcome, stops);
}

/// Adds to the outcome how often the machine stopped the driver.
pub fn note_stops(outcome: &mut Outcome, stops: &[Stop]) {
    let longest = stops.iter().map(|stop| stop.length.0).max().unwrap_or(0);
    let total: u64 = stops.iter().map(|stop| stop.length.0).sum();
    let number = |kind: StopKind| stops.iter().filter(|stop| stop.kind == kind).count();
    let by_kind: BTreeMap<&str, usize> = StopKind::ALL
        .into_iter()
        .map(|kind| (kind.name(), number(kind)))
        .collect();
    outcome.ours(
        "stops of the driver by the machine",
        serde_json::json!({
            "by evidence": by_kind,
            "total, ms": total as f64 / 1e6,
            "longest, ms": longest as f64 / 1e6,
        }),
    );
}

/// Adds a verdict to the outcome: how many are excused, and a check that none is not.
pub fn check_verdict(outcome: &mut Outcome, what: &str, verdict: Verdict) {
    outcome.ours(what, verdict);
    let what = format!(
        "{what}: not excused by a stop ({} excused)",
        verdict.excused
    );
    let unexcused = verdict.unexcused as f64;
    outcome.check(what, unexcused, "packets", super::Bound::AtMost(0.0));
}

/// How far ahead the shipped driver gives packets to the NIC while no flow has a `cell` or a
/// `channel`, in ns.
pub const WORK_AHEAD: u64 = 1_000_000;
/// Payload of a packet, in bytes.
const PAYLOAD: u32 = 1458;
/// Buffers of a sender: at 100 Mbit/s, packets for 122 ms.
pub const BUFFERS: u32 = 1024;
/// A sender fills its buffers so often.
const REFILL: Duration = Duration::from_millis(5);
