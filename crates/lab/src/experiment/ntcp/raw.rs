//! Repeats the comparison of the paper NTCP (section 4) of a program's own TCP with the kernel's:
//! how fast one connection sends and receives, and what it costs, with segmentation, receive
//! offload and checksums off at both ends, and with all of them on.
//!
//! Each round measures the ways one after the other, so all meet the same machine, and the medians
//! of the rounds are compared. The kernel's connections run between two hosts without netnice. The
//! program's run through netniced, netnice-driver and the library on a managed link of 100 Gbit/s,
//! whose schedule never delays a packet. The peer is a socket of the kernel. An idle machine with
//! two processors has three processes to run: the program, the driver and the peer.
//!
//! Two yardsticks show what the driver process and the rings cost: the same TCP in one thread on
//! the bare card, by AF_XDP, and by long packets where the interface cuts them.
//!
//! [`speed`] adds its checks and the measured values to an [`Outcome`]. It fails if the subject is
//! not netnice, or if a step of the measurement fails.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use netnice_driver::link::Interface;
use serde_json::{Value, json};

use super::super::bench::{netnice_only, pause};
use super::super::front_door::FrontDoor;
use super::super::{Bound, Context, Outcome};
use crate::stats::{self, Cumulative};
use crate::sys;
use crate::traffic::{
    self, BareTcp, DirectTcp, Echo, Probe, Program, Report, RunOptions, Running, Tcp,
};
use crate::world::{Host, Offloads, Pair, World};

/// The speed of one connection beside the kernel's, of 64 connections to one listener beside one,
/// and the time of one byte there and back. Fails as the module says.
pub fn speed(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let (rounds, seconds) = if context.quick { (3, 1.0) } else { (9, 3.0) };
    outcome.paper = json!({
        "user-level TCP (Nemesis), Mbit/s": 58, "kernel's TCP (Linux), Mbit/s": 81, "ratio": 0.72,
    });
    outcome.note(
        "Processor time is that of the processes, in processors: 1 is all the time of one of the \
         machine's processors.",
    );
    let (mut rows, mut ratios, mut echoes) = (Vec::new(), Vec::new(), Vec::new());
    for (offloads, name) in [(Offloads::Off, "off"), (Offloads::On, "on")] {
        if !context.selects(name) {
            continue;
        }
        let bed = Bed::new(offloads)?;
        let mut rates = vec![Vec::new(); WAYS.len()];
        for round in 0..rounds {
            for (way, rates) in WAYS.iter().zip(&mut rates) {
                if *way == Way::BareJoined && offloads == Offloads::Off {
                    continue;
                }
                let got = bed.measure(*way, seconds)?;
                context.say(format!("offloads {name}, round {round}, {way:?}: {got}"));
                rates.push(got);
            }
        }
        let median = |way: Way| {
            let rates: Vec<f64> = rates[way as usize].iter().map(|one| one.rate).collect();
            stats::median(&rates)
        };
        let measured = WAYS.iter().zip(&rates).filter(|(_, all)| !all.is_empty());
        for (way, measured) in measured {
            rows.push(Measured::summary(name, *way, measured));
        }
        let mut compare = |what: &str, ours, other, least: Option<f64>| {
            let ratio = median(ours) / median(other).max(1.0);
            let what = format!("offloads {name}: {what}");
            match least {
                Some(least) => outcome.check(what, ratio, "", Bound::AtLeast(least)),
                None => ratios.push(json!({"not judged": what, "ratio": ratio})),
            }
        };
        let (send, receive) = match offloads {
            Offloads::On => (0.7, None),
            _ => (0.9, Some(0.9)),
        };
        compare(
            "goodput of sending / the kernel's",
            Way::Send,
            Way::Kernel,
            Some(send),
        );
        compare(
            "goodput of receiving / the kernel's",
            Way::Receive,
            Way::KernelBack,
            receive,
        );
        compare(
            "goodput of receiving on 64 connections / on one",
            Way::Many,
            Way::One,
            Some(0.9),
        );
        for (echo, time) in bed.round_trips(seconds)? {
            echoes.push(json!({
                "offloads": name, "echo of": echo, "one byte there and back, median, us": time,
            }));
        }
    }
    outcome.ours("goodput and processor time, medians of all rounds", rows);
    outcome.ours("ratios", ratios);
    outcome.ours("round trips", echoes);
    Ok(())
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From a socket of the kernel to another one.
    Kernel,
    /// From the program to a socket of the kernel.
    Send,
    /// The same in the other direction.
    KernelBack,
    Receive,
    /// From sockets of the kernel to a listener of the program.
    One,
    Many,
    /// From netnice's TCP in one thread on the bare card: the yardsticks.
    Bare,
    BareJoined,
}

impl Way {
    /// Whether the program has the driver's flows. Without one, the driver ends after some seconds.
    fn uses_driver(self) -> bool {
        matches!(self, Way::Send | Way::Receive | Way::One | Way::Many)
    }

    fn words(self) -> &'static str {
        match self {
            Way::Kernel => "kernel to kernel",
            Way::Send => "program sends, through the driver",
            Way::KernelBack => "kernel to kernel, in the other direction",
            Way::Receive => "program receives, through the driver",
            Way::One => "program listens: 1 connection",
            Way::Many => "program listens: 64 connections",
            Way::Bare => "yardstick: the same TCP in one thread on the bare card",
            Way::BareJoined => "yardstick: the same with packets that the interface cuts",
        }
    }
}

/// All ways, in their order.
const WAYS: [Way; 8] = [
    Way::Kernel,
    Way::Send,
    Way::KernelBack,
    Way::Receive,
    Way::One,
    Way::Many,
    Way::Bare,
    Way::BareJoined,
];

/// One measurement: bit/s of payload, and the processor time of each process for each second, in
/// seconds.
#[derive(Clone, Debug)]
struct Measured {
    rate: f64,
    client: f64,
    server: f64,
    driver: f64,
}

impl Measured {
    /// The medians of several measurements, as a row of a table.
    fn summary(offloads: &str, way: Way, all: &[Measured]) -> Value {
        let of = |field: fn(&Measured) -> f64| {
            let values: Vec<f64> = all.iter().map(field).collect();
            (stats::median(&values) * 1000.0).round() / 1000.0
        };
        json!({
            "offloads": offloads,
            "way": way.words(),
            "rounds": all.len(),
            "goodput, Gbit/s": of(|one| one.rate / 1e9),
            "program's host, processors": of(|one| one.client),
            "peer, processors": of(|one| one.server),
            "driver, processors": of(|one| one.driver),
        })
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Measured {
            rate,
            client,
            server,
            driver,
        } = self;
        let rate = rate / 1e9;
        write!(
            f,
            "{rate:.2} Gbit/s; processors: client {client:.2}, server {server:.2}, driver {driver:.2}"
        )
    }
}

/// Two hosts with a managed link, two without netnice, and two for the TCP on the bare card.
struct Bed {
    front: FrontDoor,
    bare: World,
    card: World,
}

impl Bed {
    fn new(offloads: Offloads) -> Result<Bed> {
        let world = || {
            let world = World::pair(Pair {
                offloads,
                ..Pair::default()
            })?;
            if offloads == Offloads::Off {
                for host in [world.client(), world.server()] {
                    let device = &host.port().device;
                    host.ns.run("ethtool", &format!("-K {device} tx off"))?;
                }
            }
            Ok::<_, anyhow::Error>(world)
        };
        let front = FrontDoor::on(world()?, "100gbit")?;
        let (bare, card) = (world()?, world()?);
        Ok(Bed { front, bare, card })
    }

    fn measure(&self, way: Way, seconds: f64) -> Result<Measured> {
        let world = match way {
            Way::Kernel | Way::KernelBack => &self.bare,
            Way::Bare | Way::BareJoined => &self.card,
            _ => &self.front.world,
        };
        let (client, server) = (world.client(), world.server());
        let at = |host: &Host| SocketAddr::from((host.port().v4, PORT));
        let runtime = self.front.netnice.runtime();
        let connect = || {
            let program = DirectTcp::connect(at(server), runtime);
            program.with(&["--buffers", BUFFERS])
        };
        let listen = || {
            let program = DirectTcp::listen(at(client), runtime).sink();
            program.with(&["--buffers", BUFFERS])
        };
        let sink = |host: &Host| Tcp::listen(at(host)).sink();
        let source = |host: &Host, flows| Tcp::connect(at(host), flows).source();
        match way {
            Way::Kernel => self.run(
                way,
                (server, sink(server)),
                (client, source(server, 1)),
                seconds,
            ),
            Way::KernelBack => self.run(
                way,
                (client, sink(client)),
                (server, source(client, 1)),
                seconds,
            ),
            Way::Send => self.run(
                way,
                (server, sink(server)),
                (client, connect().endless_source()),
                seconds,
            ),
            Way::Receive => self.run(
                way,
                (server, Tcp::listen(at(server)).source()),
                (client, connect().sink()),
                seconds,
            ),
            Way::One => self.run(
                way,
                (client, listen()),
                (server, source(client, 1)),
                seconds,
            ),
            Way::Many => self.run(
                way,
                (client, listen()),
                (server, source(client, 64)),
                seconds,
            ),
            Way::Bare | Way::BareJoined => {
                let device = &server.port().device;
                let card = server.ns.enter(|| Ok(Interface::read(device)?))?;
                let ends = (SocketAddr::from((client.port().v4, BARE_PORT)), at(server));
                let sender = BareTcp::new(&client.port().device, ends, card.mac);
                let sender = match way {
                    Way::BareJoined => sender.joined(),
                    _ => sender,
                };
                self.run(way, (server, sink(server)), (client, sender), seconds)
            }
        }
        .with_context(|| format!("{way:?}"))
    }

    /// Runs a listening program and a connecting one, and measures for some seconds.
    fn run(
        &self,
        way: Way,
        (listening, listener): (&Host, impl Program),
        (connecting, connector): (&Host, impl Program),
        seconds: f64,
    ) -> Result<Measured> {
        let listener = traffic::start_now(listening, &listener)?;
        let mut connector = traffic::start_waiting(connecting, &connector)?;
        let driver = way.uses_driver().then(|| self.driver()).flatten();
        connector.go()?;
        pause(SETTLE);
        let (from, before) = (sys::now_ns(), Times::of(&listener, &connector, driver)?);
        pause(seconds);
        let (until, after) = (sys::now_ns(), Times::of(&listener, &connector, driver)?);
        // The series must span the measured time.
        pause(0.1);
        let (connector, listener) = (connector.stop()?, listener.stop()?);
        let received = |report: &Report| -> Option<f64> {
            let series: Cumulative = report.received_payload();
            series.rate(from, until)
        };
        let rate = [received(&connector), received(&listener)];
        let rate = rate.into_iter().flatten().reduce(f64::max);
        let rate = rate.context("no program has received through the measured time")?;
        let spent = |field: fn(&Times) -> f64| (field(&after) - field(&before)) / seconds;
        let (listener, connector) = (spent(|one| one.listener), spent(|one| one.connector));
        let (client, server) = match way {
            Way::KernelBack | Way::One | Way::Many => (listener, connector),
            _ => (connector, listener),
        };
        Ok(Measured {
            rate,
            client,
            server,
            driver: spent(|one| one.driver),
        })
    }

    /// The driver's process of the managed link; `None` while there is none.
    fn driver(&self) -> Option<u32> {
        let device = &self.front.world.client().port().device;
        let lock = self
            .front
            .netnice
            .runtime()
            .join(format!("drivers/{device}.lock"));
        std::fs::read_to_string(lock).ok()?.trim().parse().ok()
    }

    /// Median times of one byte there and back, in us: to an echo of the kernel and to one of a
    /// program.
    fn round_trips(&self, seconds: f64) -> Result<[(&'static str, f64); 2]> {
        let measure = |world: &World, echo: Running| -> Result<f64> {
            let client = world.client();
            let to = SocketAddr::from((client.port().v4, PORT));
            let probe = Probe::tcp(to, Duration::from_millis(1));
            let probe = traffic::start(world.server(), &probe, RunOptions::at_once())?;
            pause(seconds);
            let report = probe.stop()?;
            drop(echo);
            let times: Vec<f64> = report
                .round_trips
                .iter()
                .map(|one| one.1 as f64 / 1e3)
                .collect();
            Ok(stats::median(&times))
        };
        let (bare, front) = (&self.bare, &self.front.world);
        let at = |world: &World| SocketAddr::from((world.client().port().v4, PORT));
        let kernel = traffic::start_now(bare.client(), &Echo::listen(at(bare)))?;
        let kernel = measure(bare, kernel).context("an echo of the kernel")?;
        let program = DirectTcp::listen(at(front), self.front.netnice.runtime()).echo();
        let program = traffic::start_now(front.client(), &program)?;
        let program = measure(front, program).context("an echo of a program")?;
        Ok([("the kernel", kernel), ("a program", program)])
    }
}

/// Processor time so far, in seconds.
struct Times {
    listener: f64,
    connector: f64,
    driver: f64,
}

impl Times {
    fn of(listener: &Running, connector: &Running, driver: Option<u32>) -> Result<Times> {
        Ok(Times {
            listener: sys::cpu_seconds(listener.pid())?,
            connector: sys::cpu_seconds(connector.pid())?,
            driver: driver.map_or(Ok(0.0), sys::cpu_seconds)?,
        })
    }
}

/// The port of all connections.
const PORT: u16 = 7400;
/// The port of the TCP on the bare card.
const BARE_PORT: u16 = 40_001;
/// Buffers of a program each way: a window of 3 MB.
const BUFFERS: &str = "2048";
/// Time for slow start, in seconds.
const SETTLE: f64 = 0.3;
