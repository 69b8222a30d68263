//! rtc-carry: unmodified UDP programs over `netnice channel carry`, from a client over a router to
//! a server, beside floods of the kernel's UDP on every cable; and the same without netnice, on
//! links of the same rate by HTB, with its usual queue.
//!
//! The programs are `iperf3 -u`, whose server answers (`--replies`), and Cyclone DDS's `ddsperf`.
//! Their datagrams go to an address of the client, where `netnice channel carry` takes them, or a
//! forwarder that sends them over a plain socket. The delay of a datagram is the time from the
//! program's own stamp in it until the kernel delivers it at the server's loopback interface.
//!
//! The function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a program is not installed, if a channel is refused, or if a step of the
//! measurement fails.

mod dds;
mod forwarder;
mod iperf;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netnice_channel::LogicalArrivals;
use netnice_core::contract::MessageRate;
use netnice_core::units::Instant;
use serde_json::{Value, json};

use super::super::simulated::netnice_only;
use super::hosts::{Hosts, LINKS};
use crate::experiment::{Bound, Context, Outcome};
use crate::process::{self, EVENT_TIMEOUT, Proc};
use crate::sys;
use crate::wire::{Tap, Transport};
use crate::world::{Routed, World};

/// Datagrams of both programs over channels beside floods: none may be lost, none late. Without
/// netnice some must be. Fails as the module says.
pub fn carry(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!("the paper has no unmodified programs");
    let seconds = if context.quick { 8 } else { 60 };
    for program in [&iperf::IPERF, &dds::DDSPERF] {
        ensure!(
            process::installed(program.name),
            "{} is not installed",
            program.name
        );
        let name = program.name;
        context.say(format!("{name} over plain sockets"));
        let hosts = Hosts::plain()?;
        hosts.add_address()?;
        let plain = hosts.plainly(program, seconds)?;
        drop(hosts);
        context.say(format!("{name} over channels"));
        let hosts = Hosts::new(RATE)?;
        hosts.add_address()?;
        let (carried, said) = hosts.carried(program, seconds)?;
        outcome.ours(&format!("{name}, plain"), plain.table()?);
        outcome.ours(&format!("{name}, carried"), carried.table()?);
        outcome.ours(&format!("{name}: what netnice said"), said);
        judge(outcome, name, &plain, &carried);
    }
    outcome.note(format!(
        "datagrams of 1,000 bytes, 250 a second of iperf3 and 200 of ddsperf; floods of UDP on every \
         cable; netniced, netnice-driver and netnice-peer on three hosts; {CPU} of a processor at \
         each end of the channel with a deadline"
    ));
    Ok(())
}

/// Checks what holds for a program.
fn judge(outcome: &mut Outcome, name: &str, plain: &Measured, carried: &Measured) {
    let (sent, lost) = (carried.counted.sent as f64, carried.counted.lost as f64);
    let what = format!("{name}, carried: datagrams lost");
    outcome.check(what, lost, "datagrams", Bound::AtMost(0.0));
    let what = format!("{name}, carried: datagrams whose delay was seen, of those sent");
    let seen = carried.arrived.len() as f64 / sent.max(1.0) * 100.0;
    outcome.check(what, seen, "%", Bound::AtLeast(99.0));
    let what = format!(
        "{name}, carried: datagrams delayed by more than {} ms",
        DEADLINE.as_millis()
    );
    let late = carried.late() as f64;
    outcome.check(what, late, "datagrams", Bound::AtMost(0.0));
    let what = format!("control: {name}, plain: datagrams lost or late");
    let broken = plain.counted.lost + plain.late();
    outcome.check(what, broken as f64, "datagrams", Bound::AtLeast(1.0));
}

/// An unmodified program with a sender at the client and a receiver at the server.
struct Program {
    name: &'static str,
    /// The ports of its receiver: that of the timed datagrams first.
    ports: &'static [u16],
    /// Whether the receiver is at the loopback address, or at the address of the interface.
    is_local: bool,
    /// Whether the receiver answers to where datagrams come from.
    answers: bool,
    /// The time in a datagram, in ns of the wall clock; the second argument is what that clock is
    /// ahead of `CLOCK_MONOTONIC`.
    stamp: fn(&[u8], u64) -> Option<u64>,
    /// Runs both ends for so many seconds beside floods.
    run: fn(&Hosts, u64) -> Result<Counted>,
}

/// What a program has counted.
struct Counted {
    sent: u64,
    lost: u64,
}

/// A run of a program.
struct Measured {
    counted: Counted,
    /// Of the datagrams that arrived at the first port: the program's stamp, and the arrival, in ns
    /// of the wall clock. The earliest stamp first.
    arrived: Vec<(u64, u64)>,
}

impl Hosts {
    /// Without netnice.
    fn plain() -> Result<Hosts> {
        let world = World::routed(Routed::default())?;
        for (host, links) in LINKS {
            let ns = &world.host(host).ns;
            for link in links {
                ns.tc(&format!(
                    "qdisc add dev {link} root handle 1: htb default 1"
                ))?;
                let class = format!("class add dev {link} parent 1: classid 1:1 htb rate {RATE}");
                ns.tc(&class)?;
            }
        }
        Ok(Hosts {
            peers: Vec::new(),
            netnices: Vec::new(),
            world,
        })
    }

    /// Gives the client the address that programs send to.
    fn add_address(&self) -> Result<()> {
        let client = &self.world.host("client").ns;
        client.ip(&format!("address add {EXTERNAL}/32 dev lo"))?;
        Ok(())
    }

    /// The address of a receiver at the server.
    fn at_server(&self, program: &Program) -> IpAddr {
        match program.is_local {
            true => Ipv4Addr::LOCALHOST.into(),
            false => self.world.host("server").port().v4.into(),
        }
    }

    /// Runs a program over plain sockets.
    fn plainly(&self, program: &Program, seconds: u64) -> Result<Measured> {
        let [client, server] = ["client", "server"].map(|name| self.world.host(name));
        let mut forwarders = Vec::new();
        for port in program.ports {
            let near = SocketAddr::new(at_client(program.is_local), *port);
            let between = SocketAddr::from((server.port().v4, port + OUTSIDE));
            let far = SocketAddr::new(self.at_server(program), *port);
            forwarders.extend(forwarder::datagrams(
                (client, near),
                (server, between),
                far,
            )?);
        }
        self.measure(program, seconds)
    }

    /// Runs a program over channels. Returns what the ends of the first channel said, too.
    fn carried(&self, program: &Program, seconds: u64) -> Result<(Measured, Vec<String>)> {
        let mut ends = Vec::new();
        for (number, port) in program.ports.iter().enumerate() {
            let (cpu, deadline) = match number {
                0 => (format!("--cpu {CPU}"), DEADLINE),
                _ => (String::new(), LONG_DEADLINE),
            };
            let replies = if program.answers { "--replies" } else { "" };
            let to = SocketAddr::new(self.at_server(program), *port);
            let line = format!("listen port{port} --udp {to} {cpu} {replies}");
            let mut listen = self.run_channel("server", &line)?;
            listen.await_error_text("listens as", EVENT_TIMEOUT)?;
            let from = SocketAddr::new(at_client(program.is_local), *port);
            let line = format!(
                "carry port{port}@server --udp {from} {cpu} {replies} {CONTRACT} --deadline {}ms",
                deadline.as_millis()
            );
            let mut carry = self.run_channel("client", &line)?;
            carry.await_error_text("netnice: channel", EVENT_TIMEOUT)?;
            ends.extend([carry, listen]);
        }
        let measured = self.measure(program, seconds);
        let mut said = Vec::new();
        for end in &mut ends {
            end.terminate(EVENT_TIMEOUT);
            said.extend(end.take_stderr().lines().map(str::to_owned));
        }
        let measured = measured.with_context(|| said.join("\n"))?;
        Ok((measured, said))
    }

    /// Starts a command of `netnice channel` at a host.
    fn run_channel(&self, host: &str, line: &str) -> Result<Proc> {
        let at = LINKS.iter().position(|(name, _)| *name == host);
        let netnice = &self.netnices[at.context("a host")?];
        let words = ["channel"].into_iter().chain(line.split_whitespace());
        Proc::start(netnice.command(&words.collect::<Vec<_>>()))
    }

    /// Runs a program, and notes the delays of what arrives at its first port.
    fn measure(&self, program: &Program, seconds: u64) -> Result<Measured> {
        let server = self.world.host("server");
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let seen = arrived.clone();
        let ahead = sys::now_ns().saturating_sub(netnice_stack::monotonic_ns());
        let (port, stamp) = (program.ports[0], program.stamp);
        let tap = Tap::start_watching(&server.ns, "lo", move |packet, head| {
            let flow = &packet.flow;
            let is_its = flow.inbound && flow.transport == Transport::Udp && flow.target.1 == port;
            let payload = head
                .get(PAYLOAD..)
                .filter(|_| is_its && packet.wire > LEAST);
            if let Some(stamp) = payload.and_then(|payload| stamp(payload, ahead)) {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.push((stamp, packet.at_ns));
            }
        })?;
        let counted = (program.run)(self, seconds)?;
        tap.stop(&server.ns)?;
        let mut arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let mut arrived = std::mem::take(&mut *arrived);
        arrived.sort_unstable();
        Ok(Measured { counted, arrived })
    }
}

impl Measured {
    /// Datagrams that arrived later than the deadline after the program's stamp.
    fn late(&self) -> u64 {
        let late = |(stamp, at): &&(u64, u64)| at.saturating_sub(*stamp) > DEADLINE_NS;
        self.arrived.iter().filter(late).count() as u64
    }

    /// As [`Measured::late`], after the logical arrival: datagrams that a program sends faster than
    /// the contract wait for it.
    fn late_by_contract(&self) -> Result<u64> {
        let rmax = MessageRate::new(RMAX).context("no rate")?;
        let mut logical = LogicalArrivals::new(rmax);
        let late = |(stamp, at): &&(u64, u64)| {
            let arrival = logical.next(Instant(*stamp));
            *at > arrival.0 + DEADLINE_NS
        };
        Ok(self.arrived.iter().filter(late).count() as u64)
    }

    fn table(&self) -> Result<Value> {
        let delays = self.arrived.iter();
        let mut delays: Vec<u64> = delays
            .map(|(stamp, at)| at.saturating_sub(*stamp))
            .collect();
        delays.sort_unstable();
        let part = |part: f64| {
            let last = delays.len().saturating_sub(1);
            let delay = delays.get((last as f64 * part) as usize);
            delay.map(|delay| *delay as f64 / 1e6)
        };
        Ok(json!({
            "sent, datagrams": self.counted.sent,
            "lost, datagrams": self.counted.lost,
            "delay was seen, datagrams": delays.len(),
            "late after the program's stamp, datagrams": self.late(),
            "late after the logical arrival, datagrams": self.late_by_contract()?,
            "delay, median, ms": part(0.5),
            "delay, 99th percentile, ms": part(0.99),
            "delay, longest, ms": part(1.0),
        }))
    }
}

/// The address of the client that a program sends to.
fn at_client(is_local: bool) -> IpAddr {
    match is_local {
        true => Ipv4Addr::LOCALHOST.into(),
        false => EXTERNAL.into(),
    }
}

/// An address of the client for receivers that are at no loopback address.
const EXTERNAL: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// What the port of a plain forwarder at the server is above that of the program.
const OUTSIDE: u16 = 100;
/// More messages than the programs send, so that a burst is made up for.
const CONTRACT: &str = "--mmax 1500B --rate 440/s --burst 8";
const RMAX: u32 = 440;
/// The rate of the links.
const RATE: &str = "100mbit";
const DEADLINE: Duration = Duration::from_millis(120);
const DEADLINE_NS: u64 = DEADLINE.as_nanos() as u64;
/// The deadline of channels without processor time of their own.
const LONG_DEADLINE: Duration = Duration::from_millis(500);
/// Processor time at each end.
const CPU: &str = "1300us/4ms";
/// Where the payload of a datagram begins: behind the headers of Ethernet, IPv4 and UDP.
const PAYLOAD: usize = 42;
/// Bytes on the wire of what is no greeting of a program.
const LEAST: u64 = 500;
