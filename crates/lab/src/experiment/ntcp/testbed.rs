//! The hosts of the experiments with processor time ([`OneProcessor`]): all that belongs to the
//! sending host is on one processor, and all else on another one. Making and using it fails if the
//! machine has one processor only, or a step fails.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::super::bench::{MBIT, SECOND, pause};
use crate::process;
use crate::processor_time::Meter;
use crate::sys;
use crate::traffic::{self, Carnage, DirectTcp, Running, RunningCarnage, Tcp};
use crate::world::{Netnice, Pair, World};

/// Two hosts with a managed link. All that runs on the client is on the first processor; all else
/// on the second one.
pub(super) struct OneProcessor {
    /// Dropped before the world.
    pub(super) netnice: Netnice,
    pub(super) world: World,
    /// Restored last.
    _measuring: OwnProcessors,
}

impl OneProcessor {
    pub(super) fn new(rate: &str) -> Result<OneProcessor> {
        let measuring = OwnProcessors::bind(MEASURING)?;
        let world = World::pair(Pair {
            mtu: FRAME as u32 - ETHERNET,
            ..Pair::default()
        })?;
        let device = &world.server().port().device;
        let steering = format!("/sys/class/net/{device}/queues/rx-0/rps_cpus");
        let script = format!("echo {:x} > {steering}", 1 << MEASURING);
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            world.server().ns.name(),
            "sh",
            "-c",
            &script,
        ]);
        process::run(&mut command)?;
        let mut netnice = world.netnice("client")?;
        netnice.stop_daemon();
        netnice.start_daemon_through(&TASKSET)?;
        let device = &world.client().port().device;
        netnice.run_line(&format!("link {device} --rate {rate}"))?;
        Ok(OneProcessor {
            netnice,
            world,
            _measuring: measuring,
        })
    }

    /// Starts a receiver and a sender that sends to it from now on, full packet by full packet, and
    /// uses `work` us before each.
    pub(super) fn sender(&self, number: u16, contract: &str, work: u64) -> Result<Sender> {
        let (client, server) = (self.world.client(), self.world.server());
        let to = (server.port().v4, TARGETS + number).into();
        let sink = traffic::start_now(server, &Tcp::listen(to).sink())?;
        let program = DirectTcp::connect(to, self.netnice.runtime());
        let program = program
            .local((client.port().v4, SOURCES + number).into())
            .contract(contract)
            .endless_source();
        let work_text = work.to_string();
        let program = match work {
            0 => program.with(&["--buffers", BUFFERS]),
            _ => program.with(&["--chunk", PAYLOAD, "--work-us", &work_text]),
        };
        let running = traffic::start_through(client, &TASKSET, None, &program);
        let running =
            running.with_context(|| format!("a sender with the contract `{contract}`"))?;
        Ok(Sender {
            running,
            sink,
            port: SOURCES + number,
        })
    }

    pub(super) fn carnage(&self, threads: u32, nice: i32) -> Result<RunningCarnage> {
        let carnage = Carnage::new(threads, 0).nice(nice);
        carnage.start(self.world.client(), Some(CONFINED))
    }

    pub(super) fn reserve(&self, pid: u32, cpu: &str) -> Result<()> {
        self.netnice
            .run_line(&format!("set pid:{pid} --cpu {cpu}"))?;
        Ok(())
    }

    /// Reserves processor time; returns the first line of the refusal if admission refuses it.
    pub(super) fn try_to_reserve(&self, pid: u32, cpu: &str) -> Result<Option<String>> {
        let target = format!("pid:{pid}");
        let answer = self.netnice.run(&["set", &target, "--cpu", cpu])?;
        if answer.status == REFUSED {
            let line = answer.stderr.lines().next().unwrap_or_default();
            return Ok(Some(line.to_owned()));
        }
        answer.ok()?;
        Ok(None)
    }

    pub(super) fn clear(&self, pid: u32) -> Result<()> {
        self.netnice.run_line(&format!("clear pid:{pid}"))?;
        Ok(())
    }

    /// The process id of the driver.
    fn driver(&self) -> Result<u32> {
        let pids = self.world.client().ns.pids();
        let is_driver = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim() == "netnice-driver")
        };
        pids.into_iter().find(is_driver).context("no driver runs")
    }

    fn received(&self) -> Result<(u64, u64)> {
        let server = self.world.server();
        let counters = server.ns.counters(&server.port().device)?;
        Ok((sys::now_ns(), counters.rx_bytes))
    }

    /// Measures for some seconds, after the rates have settled.
    pub(super) fn measure(
        &self,
        senders: &[u32],
        carnage: &RunningCarnage,
        seconds: f64,
    ) -> Result<Measured> {
        self.measure_sets(senders.to_vec(), carnage.pids(), seconds)
    }

    pub(super) fn measure_alone(&self, sender: u32, seconds: f64) -> Result<Measured> {
        self.measure_sets(vec![sender], Vec::new(), seconds)
    }

    fn measure_sets(&self, senders: Vec<u32>, carnage: Vec<u32>, seconds: f64) -> Result<Measured> {
        pause(SETTLE);
        let sets = vec![senders, vec![self.driver()?], carnage];
        let before = self.received()?;
        let meter = Meter::start(sets, Duration::from_millis(100))?;
        pause(seconds);
        let usages = meter.stop()?;
        let after = self.received()?;
        let bits = (after.1 - before.1) as f64 * 8.0;
        Ok(Measured {
            rate: bits * SECOND as f64 / (after.0 - before.0) as f64,
            senders: usages[0].share(),
            driver: usages[1].share(),
            carnage: usages[2].share(),
        })
    }
}

/// A sender and its receiver.
pub(super) struct Sender {
    pub(super) running: Running,
    pub(super) sink: Running,
    /// The sender's port.
    pub(super) port: u16,
}

impl Sender {
    pub(super) fn pid(&self) -> u32 {
        self.running.pid()
    }
}

/// The processors of this process before it was bound to one; restored when it is dropped.
struct OwnProcessors(Vec<usize>);

impl OwnProcessors {
    /// Binds this process, and the programs that it starts from now on, to a processor. Fails if
    /// the process may not run there, or not on [`CONFINED`].
    fn bind(processor: usize) -> Result<OwnProcessors> {
        let before = sys::processors()?;
        ensure!(
            before.contains(&processor) && before.contains(&(CONFINED as usize)),
            "this experiment needs the processors {CONFINED} and {processor}; the lab may run on \
             {before:?}"
        );
        sys::bind_to_processor(std::process::id(), processor)?;
        Ok(OwnProcessors(before))
    }
}

impl Drop for OwnProcessors {
    fn drop(&mut self) {
        if let Err(error) = sys::bind_to_processors(std::process::id(), &self.0) {
            eprintln!("netnice-lab: cannot restore the processors of this process: {error}");
        }
    }
}

/// What one measurement shows.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// Bit/s on the wire, of all senders together.
    pub(super) rate: f64,
    /// The senders', the driver's and carnage's part of the processor.
    pub(super) senders: f64,
    pub(super) driver: f64,
    pub(super) carnage: f64,
}

impl Measured {
    /// The values as a row of a table, below the key `first`, which says what was measured.
    pub(super) fn row(&self, first: &str, what: impl Into<Value>) -> Value {
        let what: Value = what.into();
        json!({
            first: what,
            "rate on the wire, Mbit/s": self.rate / MBIT,
            "senders, % of the processor": self.senders * 100.0,
            "driver, % of the processor": self.driver * 100.0,
            "carnage, % of the processor": self.carnage * 100.0,
        })
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = [self.senders, self.driver, self.carnage].map(|part| part * 100.0);
        write!(
            f,
            "{:.2} Mbit/s; processor: senders {:.2} %, driver {:.2}, carnage {:.2}",
            self.rate / MBIT,
            percent[0],
            percent[1],
            percent[2]
        )
    }
}

/// The processor on which the sending host runs.
pub(super) const CONFINED: u32 = 0;
/// The processor on which all else runs.
pub(super) const MEASURING: usize = 1;
/// The command that runs another one on the processor [`CONFINED`].
pub(super) const TASKSET: [&str; 3] = ["taskset", "-c", "0"];
/// Bytes of a full frame.
pub(super) const FRAME: u64 = 1500;
/// Bytes of the Ethernet header.
pub(super) const ETHERNET: u32 = 14;
/// Payload of a full frame: without the headers of Ethernet, IP and TCP, of which the last has time
/// stamps.
pub(super) const PAYLOAD: &str = "1434";
/// Buffers of a sender in figure 7: packets for some tens of milliseconds.
pub(super) const BUFFERS: &str = "4096";
/// The first port of receivers and of senders.
pub(super) const TARGETS: u16 = 7000;
pub(super) const SOURCES: u16 = 5001;
/// The exit status of netnice for a refusal by admission.
pub(super) const REFUSED: i32 = 3;
/// Time in seconds from a change until the measurement begins.
pub(super) const SETTLE: f64 = 1.0;
