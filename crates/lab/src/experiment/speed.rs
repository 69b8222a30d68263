//! The experiment `direct-speed` measures how many packets the shipped parts send in a second
//! ([`super::front_door`]), as a share of the bare link in the same run: 64 flows of 8 programs,
//! and 65,536 flows of 64 programs. (The system test `datapath_speed` measures the driver's
//! datapath alone in the same way.)
//!
//! Packets have 1500 bytes with all headers. The contracts are a mix of best effort, slices, cells
//! and minimums, which all flows together never exhaust, so each program always has packets to send
//! and the driver sends as many as it can. The next hop is a host that does not exist, so the
//! server counts the packets and drops them. *The bare link* ([`bare`]) sends from one thread
//! through the driver's link, in the driver's scheduling class, without flows, to the same kind of
//! host.
//!
//! On a machine with two processors the programs share one of them, and the driver has the other.
//! The measured values say for which part of the time the driver ran.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if the subject is
//! not netnice, if a flow cannot be opened, if the driver returned a packet unsent, or if a step of
//! the measurement fails.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use netnice_driver::event_loop;
use netnice_driver::frame::Mac;
use netnice_driver::link::{Ingress, Link, Mode};
use netnice_driver::protocol::EtherType;
use netnice_driver::template::{Sender, Sends, Template};
use serde_json::{Value, json};

use super::bench::{SECOND, at, netnice_only, pause};
use super::{Bound, Context, Outcome};
use crate::process::EVENT_TIMEOUT;
use crate::stats;
use crate::traffic::{Commanded, ManyFlows};
use crate::world::{Family, Host, Netnice, Pair, World};

/// The flows of a part of the experiment.
struct Load {
    programs: u16,
    /// Flows of each program.
    flows: u16,
    /// Buffers of each flow.
    buffers: u32,
    contracts: [&'static str; 4],
    rounds: usize,
    /// The least share of the bare link.
    least: f64,
}

const FEW: Load = Load {
    programs: 8,
    flows: 8,
    buffers: 256,
    contracts: [
        "weight 100",
        "slice 100us/10ms extra",
        "cell pcr=1500mbit,cdvt=1ms",
        "min 500mbit",
    ],
    rounds: 5,
    least: 0.65,
};
/// The same sums of slices, peak rates and minimums as for 64 flows.
const MANY: Load = Load {
    programs: 64,
    flows: 1024,
    buffers: 4,
    contracts: [
        "weight 100",
        "slice 100us/10s extra",
        "cell pcr=1464kbit,cdvt=100ms",
        "min 488kbit",
    ],
    rounds: 3,
    least: 0.5,
};

/// Measures both parts. Fails as the module says.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!("64 flows: 0.65 of the bare link; 65,536 flows: 0.5");
    let mut parts = vec![FEW];
    if !context.quick {
        parts.push(MANY);
    }
    for mut load in parts {
        if context.quick {
            load.rounds = 1;
        }
        let flows = u32::from(load.programs) * u32::from(load.flows);
        let measured = measure(&load)?;
        let middle = |of: &dyn Fn(&Round) -> f64| {
            stats::median(&measured.iter().map(of).collect::<Vec<_>>())
        };
        let (ours, alone) = (middle(&|round| round.ours), middle(&|round| round.alone));
        outcome.ours(
            &format!("{flows} flows"),
            json!({
                "packets/s": ours, "bare link, packets/s": alone,
                "each round": measured.iter().map(|one| one.ours / one.alone).collect::<Vec<_>>(),
                "the driver ran, %": middle(&|round| round.driver_ran) * 100.0,
                "driver, ns a packet": middle(&|round| round.driver_ran * 1e9 / round.ours),
            }),
        );
        let what = format!("{flows} flows: packets, of those of the bare link");
        outcome.check(what, ours / alone, "", Bound::AtLeast(load.least));
    }
    Ok(())
}

/// One measurement.
struct Round {
    /// Packets in a second that arrived, from the programs and from the bare link.
    ours: f64,
    alone: f64,
    /// The part of the time for which the driver ran.
    driver_ran: f64,
}

fn measure(load: &Load) -> Result<Vec<Round>> {
    let other = World::pair(Pair::default())?;
    let (mut link, _ingress) = open_link(other.client())?;
    let world = World::pair(Pair::default())?;
    let netnice = world.netnice("client")?;
    let (client, server) = (world.client(), world.server());
    let device = &client.port().device;
    client.ns.ip(&format!(
        "neigh add {ABSENT} lladdr {PEER_MAC} dev {device} nud permanent"
    ))?;
    netnice.run_line(&format!("link {device} --rate 100gbit"))?;
    let mut programs = start(client, &netnice, load)?;
    command_all(&mut programs, "open", "opened")?
        .iter()
        .try_for_each(|answer| {
            let all = answer["opened"] == json!(load.flows);
            ensure!(all, "a program cannot open its flows: {answer}");
            Ok(())
        })?;
    let driver = client.ns.driver().context("no driver")?;
    let mut rounds = Vec::new();
    for _ in 0..load.rounds {
        let alone = bare_as_driver(&mut link)?;
        command_all(&mut programs, "send", "sending")?;
        pause(SETTLE);
        let arrived = || Ok::<_, anyhow::Error>(server.ns.counters("eth0")?.rx_packets);
        let (began, before, ran) = (Instant::now(), arrived()?, ran_ns(driver)?);
        pause(MEASURED);
        let (after, ran) = (arrived()?, ran_ns(driver)? - ran);
        let seconds = began.elapsed().as_secs_f64();
        for answer in command_all(&mut programs, "halt", "done")? {
            let unsent = answer["unsent"] == json!(0);
            let statuses = &answer["statuses"];
            let number = &answer["unsent"];
            ensure!(
                unsent,
                "the driver returned {number} packets unsent, with the statuses {statuses}"
            );
        }
        rounds.push(Round {
            ours: (after - before) as f64 / seconds,
            alone,
            driver_ran: ran as f64 / SECOND as f64 / seconds,
        });
    }
    Ok(rounds)
}

fn start(client: &Host, netnice: &Netnice, load: &Load) -> Result<Vec<Commanded>> {
    let to = (std::net::Ipv4Addr::from(ABSENT_BYTES), FIRST_REMOTE).into();
    let one = |number: u16| {
        let from = at(client, Family::V4, FIRST_LOCAL + number * PORTS);
        let flows = ManyFlows {
            flows: load.flows,
            contracts: &load.contracts,
            size: PAYLOAD,
            buffers: load.buffers,
            batch: 1,
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

/// Opens the first device of `host` as the driver does, with XDP in the NIC driver. Fails if the
/// kernel does not support it.
pub fn open_link(host: &Host) -> Result<(Link, Ingress)> {
    host.ns
        .enter(|| Ok(Link::open(&host.port().device, Some(Mode::Native))?))
}

/// Packets per second of a link alone, in the scheduling class of the driver: so other programs
/// take as much from the one as from the other.
fn bare_as_driver(link: &mut Link) -> Result<f64> {
    let ended = thread::scope(|scope| {
        let work = || {
            event_loop::set_scheduling(None)?;
            bare(link, BARE_PACKETS)
        };
        scope.spawn(work).join()
    });
    ended.map_err(|_| anyhow!("the thread of the bare link panicked"))?
}

/// Packets per second of a link alone: `count` packets of 1500 bytes to [`PEER`], 32 at a time, of
/// which only the 14 bytes of the Ethernet header are written. Fails if the link does not send.
pub fn bare(link: &mut Link, count: usize) -> Result<f64> {
    let own = link.interface().mac;
    let template = Template::new(&Sender {
        mac: own,
        next_hop: None,
        longest: 1514,
        sends: Sends::EtherType(EtherType::new(0x88b5)?),
    })?;
    let mut header = [0; 14];
    header[..6].copy_from_slice(&PEER.0);
    header[6..12].copy_from_slice(&own.0);
    header[12..].copy_from_slice(&[0x88, 0xb5]);
    let begin = Instant::now();
    for _ in 0..count / 32 {
        for _ in 0..32 {
            let done = link.send(|frame| {
                frame[..14].copy_from_slice(&header);
                template.check(&mut frame[..LENGTH])
            });
            ensure!(done.context("room")?.is_ok());
        }
        link.flush()?;
    }
    Ok((count / 32 * 32) as f64 / begin.elapsed().as_secs_f64())
}

/// A MAC address that no device has.
pub const PEER: Mac = Mac([2, 0, 0, 0, 0, 9]);
const PEER_MAC: &str = "02:00:00:00:00:09";
/// The address of the host that does not exist, in the network of the client and the server.
const ABSENT: &str = "10.77.0.9";
const ABSENT_BYTES: [u8; 4] = [10, 77, 0, 9];
/// Bytes of a packet with all headers, and of its payload.
const LENGTH: usize = 1500;
const PAYLOAD: usize = 1458;
/// Local ports of a program at most: 1,024 flows to 64 remote ports.
const PORTS: u16 = 16;
const FIRST_LOCAL: u16 = 10_000;
const FIRST_REMOTE: u16 = 40_000;
/// Packets in a round of the bare link.
const BARE_PACKETS: usize = 640_000;
/// Seconds until a round is measured, and for which it is.
const SETTLE: f64 = 1.0;
const MEASURED: f64 = 2.0;
/// The time between two times at which a program fills its buffers.
const REFILL: Duration = Duration::from_millis(1);
/// Time limit for each step of all programs.
const TIMEOUT: Duration = Duration::from_secs(10 * EVENT_TIMEOUT.as_secs());
