//! Loads a link: a [`LoadedLink`] has a client, a server, a daemon, a driver and programs of its
//! own, and its programs always have packets to send. [`measure`] measures several such links at
//! the same time.
//!
//! The next hop of all packets is a host that does not exist ([`add_absent_host`]), so the server
//! counts the packets and drops them. The measuring thread has real-time priority above that of the
//! driver, so that it reads counters and times at the same moment on busy processors as well.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::{PAYLOAD, PEER_MAC};
use crate::experiment::bench::{SECOND, at, pause};
use crate::process::EVENT_TIMEOUT;
use crate::sys;
use crate::traffic::{Commanded, ManyFlows};
use crate::world::{Family, Host, Netnice, Netns, Pair, World};

/// The flows of a link.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub programs: u16,
    /// Flows of each program.
    pub flows: u16,
    /// Buffers of each flow.
    pub buffers: u32,
    /// Packets that a program gives to the driver at once.
    pub batch: usize,
    pub contracts: [&'static str; 4],
}

/// 64 flows.
pub(super) const FEW: Load = Load {
    programs: 8,
    flows: 8,
    buffers: 256,
    batch: 1,
    contracts: [
        "weight 100",
        "slice 100us/10ms extra",
        "cell pcr=1500mbit,cdvt=1ms",
        "min 500mbit",
    ],
};

/// 65,536 flows, with the same sums of slices, peak rates and minimums as [`FEW`].
pub(super) const MANY: Load = Load {
    programs: 64,
    flows: 1024,
    buffers: 4,
    batch: 1,
    contracts: [
        "weight 100",
        "slice 100us/10s extra",
        "cell pcr=1464kbit,cdvt=100ms",
        "min 488kbit",
    ],
};

/// A managed link with its programs. Dropping it ends the programs and the daemon, and removes the
/// namespaces.
pub(super) struct LoadedLink {
    // The order of the fields is the order in which they are dropped.
    programs: Vec<Commanded>,
    _netnice: Netnice,
    world: World,
    /// The driver's process id.
    driver: u32,
}

/// The speed of a link in one measurement.
#[derive(Clone, Copy)]
pub(super) struct Speed {
    /// Packets per second that arrived at the server.
    pub packets: f64,
    /// The part of the time for which the driver ran.
    pub driver_ran: f64,
    /// The time for which the programs ran in sum, as a part of the time of one processor.
    pub programs_ran: f64,
}

impl LoadedLink {
    /// Starts a daemon, a driver and programs, and opens all flows. Nothing is sent yet. Fails if a
    /// flow cannot be opened, or if another step fails.
    pub(super) fn start(load: &Load) -> Result<LoadedLink> {
        let world = World::pair(Pair::default())?;
        let netnice = world.netnice("client")?;
        let client = world.client();
        add_absent_host(client)?;
        let device = &client.port().device;
        netnice.run_line(&format!("link {device} --rate 100gbit"))?;
        let mut programs = start_programs(client, &netnice, load)?;
        for answer in command_all(&mut programs, "open", "opened")? {
            let all = answer["opened"] == json!(load.flows);
            ensure!(all, "a program cannot open its flows: {answer}");
        }
        let driver = client.ns.driver().context("no driver")?;
        Ok(LoadedLink {
            programs,
            _netnice: netnice,
            world,
            driver,
        })
    }

    /// Binds all threads of the driver and of the programs to a processor. Fails if the kernel
    /// refuses that, or if one of the processes has ended.
    pub(super) fn bind_to(&self, processor: usize) -> Result<()> {
        for process in self.program_ids().into_iter().chain([self.driver]) {
            sys::bind_to_processor(process, processor)
                .with_context(|| format!("cannot bind process {process} to {processor}"))?;
        }
        Ok(())
    }

    fn program_ids(&self) -> Vec<u32> {
        self.programs.iter().map(Commanded::pid).collect()
    }

    /// Stops sending. Fails if the driver returned a packet unsent.
    fn halt(&mut self) -> Result<()> {
        for answer in command_all(&mut self.programs, "halt", "done")? {
            let (number, statuses) = (&answer["unsent"], &answer["statuses"]);
            ensure!(
                *number == json!(0),
                "the driver returned {number} packets unsent, with the statuses {statuses}"
            );
        }
        Ok(())
    }
}

/// Measures links whose programs send at the same time, and returns the speeds in the same order.
/// Nothing is sent afterwards. Fails if a driver returned a packet unsent, or if a process has
/// ended.
pub(super) fn measure(links: &mut [&mut LoadedLink]) -> Result<Vec<Speed>> {
    for link in links.iter_mut() {
        command_all(&mut link.programs, "send", "sending")?;
    }
    pause(SETTLE);
    let before = read_all(links)?;
    pause(MEASURED);
    let after = read_all(links)?;
    for link in links.iter_mut() {
        link.halt()?;
    }
    let both = after.iter().zip(&before);
    Ok(both.map(|(after, before)| after.since(before)).collect())
}

/// Adds a neighbour to the host's table that does not exist, at 10.77.0.9 ([`ABSENT`]). Fails if
/// `ip` fails.
pub(super) fn add_absent_host(host: &Host) -> Result<()> {
    let device = &host.port().device;
    host.ns.ip(&format!(
        "neigh add {} lladdr {PEER_MAC} dev {device} nud permanent",
        std::net::Ipv4Addr::from(ABSENT)
    ))?;
    Ok(())
}

fn start_programs(client: &Host, netnice: &Netnice, load: &Load) -> Result<Vec<Commanded>> {
    let to = (ABSENT, FIRST_REMOTE).into();
    let one = |number: u16| {
        let from = at(client, Family::V4, FIRST_LOCAL + number * PORTS);
        let flows = ManyFlows {
            flows: load.flows,
            contracts: &load.contracts,
            size: PAYLOAD,
            buffers: load.buffers,
            batch: load.batch,
            refill: REFILL,
        };
        Commanded::many_flows(client, netnice.runtime(), (from, to), &flows, TIMEOUT)
    };
    (0..load.programs).map(one).collect()
}

fn command_all(programs: &mut [Commanded], command: &str, key: &str) -> Result<Vec<Value>> {
    for program in programs.iter_mut() {
        program.command(command)?;
    }
    let answers = programs.iter_mut();
    answers
        .map(|program| program.answer(key, TIMEOUT))
        .collect()
}

/// The counters of a link at one time.
struct Reading {
    at: Instant,
    /// Packets that arrived at the server.
    arrived: u64,
    /// The time for which the driver ran, and the programs in sum, in ns.
    driver_ran: u64,
    programs_ran: u64,
}

impl Reading {
    fn since(&self, before: &Reading) -> Speed {
        let seconds = (self.at - before.at).as_secs_f64();
        let part = |ran: u64| ran as f64 / SECOND as f64 / seconds;
        Speed {
            packets: (self.arrived - before.arrived) as f64 / seconds,
            driver_ran: part(self.driver_ran - before.driver_ran),
            programs_ran: part(self.programs_ran - before.programs_ran),
        }
    }
}

/// Reads the counters of all links in a thread with real-time priority. Without the right to that
/// priority, the figures are less exact. Fails if a process has ended.
fn read_all(links: &[&mut LoadedLink]) -> Result<Vec<Reading>> {
    let counted = links.iter().map(|link| {
        let server = &link.world.server().ns;
        (server, link.driver, link.program_ids())
    });
    let counted: Vec<(&Netns, u32, Vec<u32>)> = counted.collect();
    let read = || {
        let _ = sys::set_real_time_priority(READER_PRIORITY);
        let read = |(server, driver, programs): &(&Netns, u32, Vec<u32>)| {
            Ok(Reading {
                at: Instant::now(),
                arrived: server.counters("eth0")?.rx_packets,
                driver_ran: ran_ns(*driver)?,
                programs_ran: programs.iter().map(|id| ran_ns(*id)).sum::<Result<u64>>()?,
            })
        };
        counted.iter().map(read).collect::<Result<Vec<Reading>>>()
    };
    let ended = thread::scope(|scope| scope.spawn(read).join());
    ended.map_err(|_| anyhow!("the thread that reads the counters panicked"))?
}

/// The time for which the threads of a process have run, in ns.
fn ran_ns(process: u32) -> Result<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let times = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let ran = times.split_whitespace().next();
        sum += ran.context("no time")?.parse::<u64>()?;
    }
    Ok(sum)
}

/// The address of the host that does not exist, in the network of the client and the server.
pub(super) const ABSENT: [u8; 4] = [10, 77, 0, 9];
/// Local ports of a program at most: 1,024 flows to 64 remote ports.
const PORTS: u16 = 16;
const FIRST_LOCAL: u16 = 10_000;
pub(super) const FIRST_REMOTE: u16 = 40_000;
/// Seconds until a round is measured, and for which it is.
const SETTLE: f64 = 1.0;
const MEASURED: f64 = 2.0;
/// The time between two times at which a program fills its buffers.
const REFILL: Duration = Duration::from_millis(1);
/// Time limit for each step of all programs.
const TIMEOUT: Duration = Duration::from_secs(10 * EVENT_TIMEOUT.as_secs());
/// The real-time priority of the thread that reads the counters; the driver has 50.
const READER_PRIORITY: i32 = 60;
