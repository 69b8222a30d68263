//! The test bed of system tests: hosts, a daemon, and methods that measure and judge rates. A
//! method that judges panics if the judgement fails; a method that measures returns an error if it
//! cannot measure. The methods that return no `Result` panic if the command that they run fails.
//!
//! A [`TestBed`] is a world with a client and a server, direct cables between them, and a netnice
//! on the client. A test starts programs on the client, runs command lines, and measures the rate
//! that arrives at the server:
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use netnice_lab::testbed::TestBed;
//! use netnice_lab::experiment::bench::R4M;
//! use netnice_lab::traffic::{self, Tcp};
//!
//! let bed = TestBed::new()?;
//! let to = bed.sink(5001)?;
//! let program = traffic::start_now(bed.world.client(), &Tcp::connect(to, 4).source())?;
//! bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
//! bed.await_limited(|| bed.sent_rate(0.5, 1.5).expect("a rate"), R4M, "four flows");
//! # Ok(())
//! # }
//! ```
//!
//! **Bounds.** A limit counts as kept if the rate is at most 3 % above the limit and at least half
//! of it. The default burst of 5 ms adds a third of a percent in a window of 1.5 s, inside these 3
//! %. The lower bound is wide because a sender that gets too little processor time on a busy or
//! emulated host sends less than it may. The experiment `accuracy`, which runs alone, checks that a
//! limit is not too tight. [`TestBed::await_limited`] measures again if the rate was below half of
//! the limit.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::experiment::bench::{self, Rate, SECOND, wait_until};
use crate::process::{self, EVENT_TIMEOUT, Proc};
use crate::sys;
use crate::traffic::{self, Running, Tcp, Udp};
use crate::wire::{self, Record, Tap, WireFlow};
use crate::world::{CommandOutput, Family, Netnice, Offloads, Pair, World};

/// A world with a client, a server and a netnice on the client.
pub struct TestBed {
    /// The daemon and the command line. Dropped before the world.
    pub netnice: Netnice,
    sinks: RefCell<Vec<Running>>,
    /// The hosts.
    pub world: World,
}

impl TestBed {
    /// A test bed with one cable and with offloads off. Fails as [`TestBed::with`] does.
    pub fn new() -> Result<TestBed> {
        TestBed::with(Pair::default())
    }

    /// A test bed with one cable and with the devices' default offloads. Fails as [`TestBed::with`]
    /// does.
    pub fn with_offloads() -> Result<TestBed> {
        TestBed::with(Pair {
            offloads: Offloads::On,
            ..Pair::default()
        })
    }

    /// Makes a test bed with these cables, and starts the daemon. Fails without root, if the world
    /// cannot be made, or if the daemon does not start.
    pub fn with(pair: Pair) -> Result<TestBed> {
        crate::world::begin()?;
        TestBed::of(World::pair(pair)?)
    }

    /// Starts the daemon on the client of a world. Fails if it does not start.
    pub fn of(world: World) -> Result<TestBed> {
        let netnice = world.netnice("client")?;
        Ok(TestBed {
            netnice,
            sinks: RefCell::default(),
            world,
        })
    }

    /// Starts the driver of the client's interface `device` for a link of this rate, in a mode:
    /// `native`, `generic` or `fallback`. The daemon uses a driver that runs already. Fails if it
    /// does not run in time.
    pub fn start_driver(&self, device: &str, rate: &str, mode: &str) -> Result<Proc> {
        let binary = process::binary("netnice-driver")?;
        let mut command = self.world.client().ns.command(binary);
        command.args(["--rate", rate, "--stay", "--mode", mode, "--runtime-dir"]);
        command.arg(self.netnice.runtime()).arg(device);
        let driver = Proc::start(command)?;
        let socket = self
            .netnice
            .runtime()
            .join(format!("drivers/{device}.sock"));
        await_some("the driver runs", || Ok(socket.exists().then_some(())))?;
        Ok(driver)
    }

    /// Runs `netnice LINE`. Panics unless the exit status is 0.
    pub fn run_ok(&self, line: &str) -> CommandOutput {
        self.run_with_status(line, 0)
    }

    /// Runs `netnice LINE`. Panics unless the command ends with this status.
    pub fn run_with_status(&self, line: &str, status: i32) -> CommandOutput {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = self.netnice.run(&words).expect("netnice can be started");
        assert_eq!(
            answer.status, status,
            "`netnice {line}` said: {}{}",
            answer.stdout, answer.stderr
        );
        answer
    }

    /// Starts a TCP and a UDP sink at a port of the server; returns its address. Fails if one of
    /// the two processes does not start.
    pub fn sink(&self, port: u16) -> Result<SocketAddr> {
        let to = self.server(port);
        let server = self.world.server();
        let mut sinks = self.sinks.borrow_mut();
        sinks.push(traffic::start_now(server, &Tcp::listen(to).sink())?);
        sinks.push(traffic::start_now(server, &Udp::sink(to))?);
        Ok(to)
    }

    /// Starts a listener at a port of the server that sends to every client; returns its address.
    /// Fails if the process does not start.
    pub fn source(&self, port: u16) -> Result<SocketAddr> {
        let to = self.server(port);
        let source = traffic::start_now(self.world.server(), &Tcp::listen(to).source())?;
        self.sinks.borrow_mut().push(source);
        Ok(to)
    }

    /// The IPv4 address of the server's first device, with this port.
    pub fn server(&self, port: u16) -> SocketAddr {
        bench::at(self.world.server(), Family::V4, port)
    }

    /// The IPv4 address of the client's first device, with this port.
    pub fn client(&self, port: u16) -> SocketAddr {
        bench::at(self.world.client(), Family::V4, port)
    }

    /// Rate in bit/s that arrives at the server from the client, over `span` seconds that begin
    /// `settle` seconds after packets were seen (or after [`EVENT_TIMEOUT`] without packets). Fails
    /// as [`TestBed::record`] does.
    pub fn sent_rate(&self, settle: f64, span: f64) -> Result<f64> {
        self.sent_rate_of(settle, span, |_| true)
    }

    /// Rate of the flows that `of` accepts, as for [`TestBed::sent_rate`]. Fails as
    /// [`TestBed::record`] does.
    pub fn sent_rate_of(
        &self,
        settle: f64,
        span: f64,
        of: impl Fn(&WireFlow) -> bool,
    ) -> Result<f64> {
        let (record, from, to) = self.record(settle, span)?;
        Ok(record.rate(|flow| wire::inbound(flow) && of(flow), from, to))
    }

    /// Rate in wire bit/s that arrives at the client behind its limits over `span` seconds, after a
    /// pause of `settle` seconds; and the start and the end of the measurement (wall clock, ns).
    /// (Reads of a TCP program come in bursts: a lost packet delays those after it.) Fails if the
    /// client's counters cannot be read.
    pub fn received_rate(&self, settle: f64, span: f64) -> Result<(f64, u64, u64)> {
        let client = &self.world.client().ns;
        bench::pause(settle);
        let before = client.delivered()?;
        bench::pause(span);
        let after = client.delivered()?;
        let bits = (after.wire - before.wire) as f64 * 8.0;
        let took = (after.at_ns - before.at_ns) as f64 / 1e9;
        Ok((bits / took, before.at_ns, after.at_ns))
    }

    /// A record of the server's first device, and the span to evaluate (wall clock, ns): `span`
    /// seconds that begin `settle` seconds after packets were seen (or after [`EVENT_TIMEOUT`]
    /// without packets). Fails if a tap cannot be started or read, or if it lost packets.
    pub fn record(&self, settle: f64, span: f64) -> Result<(Record, u64, u64)> {
        let (mut records, from, to) = self.records(&["eth0"], settle, span)?;
        Ok((records.remove(0), from, to))
    }

    /// Records of several of the server's devices, as for [`TestBed::record`]. Fails as
    /// [`TestBed::record`] does.
    pub fn records(
        &self,
        devices: &[&str],
        settle: f64,
        span: f64,
    ) -> Result<(Vec<Record>, u64, u64)> {
        let ns = &self.world.server().ns;
        let taps: Result<Vec<Tap>> = devices.iter().map(|name| Tap::start(ns, name)).collect();
        let taps = taps?;
        // A program may need seconds to start on a busy or emulated machine. If no packet comes,
        // the rate is 0.
        let seen = || -> Result<Vec<u64>> {
            let counters = devices.iter().map(|name| ns.counters(name));
            counters.map(|one| Ok(one?.rx_packets)).collect()
        };
        let before = seen()?;
        becomes_true(|| seen().is_ok_and(|now| now != before));
        let from = sys::now_ns() + (settle * 1e9) as u64;
        let to = from + (span * 1e9) as u64;
        wait_until(to + SECOND / 20);
        let mut records = Vec::new();
        for tap in taps {
            let record = tap.stop(ns)?;
            record.validate()?;
            records.push(record);
        }
        Ok((records, from, to))
    }

    /// The entry of a target in `show`; null if there is none.
    pub fn target(&self, name: &str) -> Value {
        let shown = self.netnice.show().expect("a show");
        let targets = shown["targets"].as_array().expect("a list of targets");
        let found = targets.iter().find(|t| t["target"] == name);
        found.cloned().unwrap_or(Value::Null)
    }

    /// `show --json` without all members `counters`, which change all the time.
    pub fn shown(&self) -> Value {
        self.netnice.show_without_counters().expect("a show")
    }

    /// The limit of a target's sending that is in force, in bit/s as `show` has it; null if there
    /// is none.
    pub fn effective_up(&self, name: &str) -> Value {
        self.target(name)["effective"]["up"].clone()
    }

    /// The path of a copy of a netnice program, which every user may run. install(1) makes the
    /// copy: a process that another test starts at this moment would inherit a file that this
    /// process has open, and the kernel does not execute a file that is open for writing. Fails if
    /// the program is not found or cannot be copied.
    pub fn copy_for_all(&self, program: &str) -> Result<PathBuf> {
        let copy = self.world.folder().join(program);
        if !copy.exists() {
            let mut install = std::process::Command::new("install");
            install
                .args(["-m", "755", "--"])
                .arg(crate::process::binary(program)?)
                .arg(&copy);
            anyhow::ensure!(install.status()?.success(), "cannot copy {program}");
        }
        Ok(copy)
    }

    /// Starts a process of root on the client that sleeps for two hours.
    pub fn sleeper(&self) -> Proc {
        let mut command = self.world.client().ns.command("sleep");
        command.arg("7200");
        Proc::start(command).expect("sleep can be started")
    }

    /// Repeats [`TestBed::record`] until at least `least` bit/s arrived in the window, as
    /// [`TestBed::record_until`] does. Fails as [`TestBed::record`] does.
    pub fn record_with_rate(
        &self,
        least: f64,
        settle: f64,
        span: f64,
    ) -> Result<(Record, u64, u64)> {
        self.record_until(settle, span, |record, from, to| {
            record.rate(wire::inbound, from, to) >= least
        })
    }

    /// Repeats [`TestBed::record`] until `enough` accepts the record and its window, for at most
    /// [`EVENT_TIMEOUT`]: a busy or emulated machine may starve the senders for a while. Returns
    /// the last record in any case. Fails as [`TestBed::record`] does.
    pub fn record_until(
        &self,
        settle: f64,
        span: f64,
        enough: impl Fn(&Record, u64, u64) -> bool,
    ) -> Result<(Record, u64, u64)> {
        let until = Instant::now() + EVENT_TIMEOUT;
        loop {
            let (record, from, to) = self.record(settle, span)?;
            if enough(&record, from, to) || Instant::now() > until {
                return Ok((record, from, to));
            }
        }
    }

    /// Panics unless the rate in bit/s that `measure` returns is within the module's bounds of
    /// `limit`. If the rate is below half of the limit, `measure` is called again, for at most
    /// [`EVENT_TIMEOUT`]; then the last rate counts.
    pub fn await_limited(&self, mut measure: impl FnMut() -> f64, limit: Rate, what: &str) {
        let until = Instant::now() + EVENT_TIMEOUT;
        loop {
            let rate = measure();
            let share = rate / limit.bits as f64;
            if share >= MIN_SHARE || Instant::now() > until {
                return self.assert_limited(rate, limit, what);
            }
        }
    }

    /// Panics unless `rate` (bit/s) is kept to `limit` within the module's bounds.
    pub fn assert_limited(&self, rate: f64, limit: Rate, what: &str) {
        let share = rate / limit.bits as f64;
        assert!(
            (MIN_SHARE..=MAX_SHARE).contains(&share),
            "{what}: {:.3} Mbit/s in a limit of {}",
            rate / 1e6,
            limit.text
        );
    }

    /// Panics unless more than 1.8 times `limit` arrives at the server over `span` seconds in one
    /// of several consecutive windows. The first one begins after `settle` seconds; the last one
    /// begins at most [`EVENT_TIMEOUT`] later. A flow under the limit never reaches this rate. The
    /// device's counters are used, because an unlimited program sends as fast as the machine and
    /// the meter would lose packets.
    pub fn await_unlimited(&self, (settle, span): (f64, f64), limit: Rate, what: &str) {
        let read = || {
            let counters = self.world.server().ns.counters("eth0");
            (sys::now_ns(), counters.expect("counters").rx_bytes)
        };
        bench::pause(settle);
        let until = Instant::now() + EVENT_TIMEOUT;
        loop {
            let (from, before) = read();
            bench::pause(span);
            let (to, after) = read();
            let rate = (after - before) as f64 * 8e9 / (to - from) as f64;
            if is_free(rate, limit) {
                return;
            }
            if Instant::now() > until {
                return self.assert_unlimited(rate, limit, what);
            }
        }
    }

    /// Panics unless `rate` (bit/s) is above 1.8 times `limit`.
    pub fn assert_unlimited(&self, rate: f64, limit: Rate, what: &str) {
        assert!(
            is_free(rate, limit),
            "{what}: {:.3} Mbit/s although the limit of {} is none of its own",
            rate / 1e6,
            limit.text
        );
    }
}

/// The bounds of rate / limit.
const MIN_SHARE: f64 = 0.5;
const MAX_SHARE: f64 = 1.03;

/// Whether a rate is so far above a limit that the limit does not apply to it.
fn is_free(rate: f64, limit: Rate) -> bool {
    rate > limit.bits as f64 * 1.8
}

/// Marks the running test as skipped because the machine lacks something. The test must return
/// afterwards. The test runner (`cargo xtask test`) reads the mark and counts the test as skipped,
/// never as passed.
pub fn skip(reason: impl std::fmt::Display) {
    println!("test skipped: {reason}");
}

/// Polls until `what` is true, for at most [`EVENT_TIMEOUT`]; returns whether it became true.
pub fn becomes_true(what: impl Fn() -> bool) -> bool {
    let until = Instant::now() + EVENT_TIMEOUT;
    loop {
        if what() {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Polls `look` until it has a result. Fails after [`EVENT_TIMEOUT`], or as `look` does.
pub fn await_some<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let until = Instant::now() + EVENT_TIMEOUT;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(
            Instant::now() < until,
            "{what}: not within {EVENT_TIMEOUT:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
