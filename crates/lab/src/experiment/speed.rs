//! The experiment `direct-speed` measures how many packets the shipped parts send in a second
//! ([`super::front_door`]), as a share of the bare link in the same run: 64 flows of 8 programs,
//! and 65,536 flows of 64 programs. (The system test `datapath_speed` measures the driver's
//! datapath alone in the same way.)
//!
//! Packets have 1500 bytes with all headers. The contracts are a mix of best effort, slices, cells
//! and minimums, which all flows together never exhaust, so each program always has packets to send
//! and the driver sends as many as it can ([`load`]). The next hop is a host that does not exist,
//! so the server counts the packets and drops them. *The bare link* ([`bare`]) sends from one
//! thread through the driver's link, in the driver's scheduling class, without flows, to the same
//! kind of host.
//!
//! Beside the 64 flows each round also measures the ways past netnice ([`baselines`]): the kernel's
//! UDP with and without HTB, and AF_PACKET. They are reported and not judged. The part *two links*
//! ([`two_links`]) measures whether a second link on a second processor sends as much again.
//!
//! On a machine with two processors the programs share one of them, and the driver has the other,
//! except in *two links*. The measured values say for which part of the time the driver ran.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if the subject is
//! not netnice, if a flow cannot be opened, if the driver returned a packet unsent, or if a step of
//! the measurement fails.

mod baselines;
mod load;
mod two_links;

use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use netnice_driver::event_loop;
use netnice_driver::frame::Mac;
use netnice_driver::link::{Ingress, Link, Mode};
use netnice_driver::protocol::EtherType;
use netnice_driver::template::{Sender, Sends, Template};
use serde_json::{Map, Value, json};

use super::bench::netnice_only;
use super::{Bound, Context, Outcome};
use crate::stats;
use crate::world::{Host, Pair, World};
use baselines::{BASELINES, Baseline};
use load::{FEW, Load, LoadedLink, MANY, Speed};

/// A part of the experiment with one link.
struct Part {
    load: Load,
    rounds: usize,
    /// The least share of the bare link.
    least: f64,
    /// Whether each round measures the baselines too.
    has_baselines: bool,
}

const PARTS: [Part; 2] = [
    Part {
        load: FEW,
        rounds: 5,
        least: 0.65,
        has_baselines: true,
    },
    Part {
        load: MANY,
        rounds: 3,
        least: 0.5,
        has_baselines: false,
    },
];

/// Measures all parts; the quick form leaves the 65,536 flows out, and has one round of each other
/// part. Fails as the module says.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!(
        "64 flows: 0.65 of the bare link; 65,536 flows: 0.5; \
         two links on two processors: 1.8 times one"
    );
    let parts = if context.quick { &PARTS[..1] } else { &PARTS };
    for part in parts {
        let rounds = if context.quick { 1 } else { part.rounds };
        report(part, &measure(part, rounds)?, outcome);
    }
    two_links::run(context, outcome)
}

/// One measurement.
struct Round {
    /// Packets in a second from the bare link.
    alone: f64,
    /// Packets in a second of each of [`BASELINES`]; empty if the part has none.
    beside: Vec<f64>,
    ours: Speed,
}

fn measure(part: &Part, rounds: usize) -> Result<Vec<Round>> {
    let other = World::pair(Pair::default())?;
    let (mut link, _ingress) = open_link(other.client())?;
    let ways = BASELINES.iter().filter(|_| part.has_baselines);
    let mut baselines: Vec<Baseline> = ways
        .map(|(way, _)| Baseline::open(*way))
        .collect::<Result<_>>()?;
    let mut loaded = LoadedLink::start(&part.load)?;
    let mut one = || {
        let alone = as_driver(|| bare(&mut link, BARE_PACKETS))?;
        let beside = baselines.iter_mut().map(Baseline::measure);
        Ok(Round {
            alone,
            beside: beside.collect::<Result<_>>()?,
            ours: load::measure(&mut [&mut loaded])?[0],
        })
    };
    (0..rounds).map(|_| one()).collect()
}

fn report(part: &Part, measured: &[Round], outcome: &mut Outcome) {
    let middle =
        |of: &dyn Fn(&Round) -> f64| stats::median(&measured.iter().map(of).collect::<Vec<_>>());
    let flows = u32::from(part.load.programs) * u32::from(part.load.flows);
    let (ours, alone) = (
        middle(&|round| round.ours.packets),
        middle(&|round| round.alone),
    );
    let mut values = json!({
        "packets/s": ours, "bare link, packets/s": alone,
        "each round": measured.iter().map(|one| one.ours.packets / one.alone).collect::<Vec<_>>(),
        "the driver ran, %": middle(&|round| round.ours.driver_ran) * 100.0,
        "driver, ns a packet": middle(&|round| round.ours.driver_ran * 1e9 / round.ours.packets),
    });
    if part.has_baselines {
        let beside = BASELINES.iter().enumerate().map(|(number, (_, name))| {
            let each: Vec<f64> = measured.iter().map(|one| one.beside[number]).collect();
            let packets = stats::median(&each);
            let value = json!({
                "packets/s": packets, "packets/s of each round": each,
                "ours, of these": ours / packets,
            });
            ((*name).to_owned(), value)
        });
        values["beside"] = Value::Object(beside.collect::<Map<_, _>>());
    }
    outcome.ours(&format!("{flows} flows"), values);
    let what = format!("{flows} flows: packets, of those of the bare link");
    outcome.check(what, ours / alone, "", Bound::AtLeast(part.least));
}

/// Opens the first device of `host` as the driver does, with XDP in the NIC driver. Fails if the
/// kernel does not support it.
pub fn open_link(host: &Host) -> Result<(Link, Ingress)> {
    open_in_mode(host, Mode::Native)
}

fn open_in_mode(host: &Host, mode: Mode) -> Result<(Link, Ingress)> {
    host.ns
        .enter(|| Ok(Link::open(&host.port().device, Some(mode))?))
}

/// Runs `send` on a thread in the scheduling class of the driver: so other programs take as much
/// time from it as from the driver. Returns the result of `send`. Fails as `send` does, or if it
/// panics.
fn as_driver(send: impl FnOnce() -> Result<f64> + Send) -> Result<f64> {
    let ended = thread::scope(|scope| {
        let work = || {
            event_loop::set_scheduling(None)?;
            send()
        };
        scope.spawn(work).join()
    });
    ended.map_err(|_| anyhow!("a thread that sends packets panicked"))?
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
    for _ in 0..count / BATCH {
        for _ in 0..BATCH {
            let done = link.send(|frame| {
                frame[..14].copy_from_slice(&header);
                template.check(&mut frame[..LENGTH])
            });
            ensure!(done.context("room")?.is_ok());
        }
        link.flush()?;
    }
    Ok((count / BATCH * BATCH) as f64 / begin.elapsed().as_secs_f64())
}

/// A MAC address that no device has.
pub const PEER: Mac = Mac([2, 0, 0, 0, 0, 9]);
const PEER_MAC: &str = "02:00:00:00:00:09";
/// Bytes of a packet with all headers, and of its payload.
const LENGTH: usize = 1500;
const PAYLOAD: usize = 1458;
/// Packets that the bare link and the baselines hand to the kernel at once.
const BATCH: usize = 32;
/// Packets in a round of the bare link and of each baseline.
const BARE_PACKETS: usize = 640_000;
