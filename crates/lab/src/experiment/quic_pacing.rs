//! The experiment `quic-pacing` compares the pacer of netnice-core with that of quinn, both on a
//! socket of the kernel and at the same rate: how even the gaps between packets are at the other
//! end of the cable, and what a sent byte costs the sending process in processor time.
//!
//! One connection sends as much as it can, over a path with a round trip of 20 ms. *quinn* has a
//! congestion window of the rate times the round trip, so it sends at the rate and its own pacer
//! spreads the window over the round trip. *netnice* has twice that window, so quinn's pacer and
//! window never decide, and a `cell` contract of the rate (example `quic` of netnice-stack, module
//! `paced_socket`). Both have the same program, socket options and receiver. They alternate; the
//! values are medians of the rounds. In the quick form what the rate would have carried in
//! stolen time counts as sent.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if the subject is
//! not netnice, if a connection or its content fails, or if a step of the measurement fails.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::bench::{netnice_only, pause};
use super::{Bound, Context, Outcome};
use crate::alibi::StolenTime;
use crate::process::{self, EVENT_TIMEOUT, Proc};
use crate::stats;
use crate::sys;
use crate::wire::{Tap, Transport};
use crate::world::{Host, Pair, World};

/// The pacer under test.
#[derive(Clone, Copy)]
enum Subject {
    Quinn,
    Netnice,
}

const SUBJECTS: [Subject; 2] = [Subject::Quinn, Subject::Netnice];

/// The rates in Mbit/s.
const RATES: [u64; 3] = [10, 50, 200];

/// What one run measured.
#[derive(Default)]
struct Run {
    /// Gaps between packets in us: the 1st, the 50th and the 99th percentile.
    gaps: [f64; 3],
    /// Processor time of the sending process in ns per kilobyte of content.
    cost: f64,
    /// How often the sending process slept for a megabyte of content.
    sleeps: f64,
    /// Rate of the packets in Mbit/s.
    rate: f64,
    /// The part of the time that was stolen from the processors.
    stolen: f64,
}

/// Measures both pacers at each rate. Fails as the module says.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let (rounds, seconds) = if context.quick { (1, 2.0) } else { (5, 4.0) };
    outcome.paper = json!(
        "gaps p1 to p99 at most half as wide as quinn's own, at no more than 1.05 of its processor time"
    );
    for megabit in RATES {
        let name = format!("{megabit} Mbit/s");
        if !context.selects(&name) {
            continue;
        }
        let mut all: [Vec<Run>; 2] = Default::default();
        for _ in 0..rounds {
            for (runs, subject) in all.iter_mut().zip(SUBJECTS) {
                runs.push(subject.measure(megabit, seconds)?);
            }
        }
        let [quinn, netnice] = all.each_ref().map(|runs| Medians::of(runs));
        for (what, medians) in [("quinn", &quinn), ("netnice", &netnice)] {
            let row = medians.row();
            context.say(format!("{name}, {what}: {row}"));
            outcome.ours(&format!("{name}, {what}"), row);
        }
        let what = format!("{name}: width of the gaps p1 to p99, of quinn's own");
        let width = netnice.width() / quinn.width();
        outcome.check(what, width, "", Bound::AtMost(0.5));
        let what = format!("{name}: processor time of a byte, of that with quinn's own pacer");
        let cost = netnice.cost / quinn.cost;
        outcome.check(what, cost, "", Bound::AtMost(1.05));
        // The contract counts IP packets, the tap frames.
        let rate = megabit as f64 * 1514.0 / 1500.0;
        let what = format!("{name}: rate with netnice's pacer");
        let bound = Bound::Near {
            aim: rate,
            share: context.tolerance(0.01),
        };
        let judged = context.with_stolen(netnice.rate, rate, netnice.stolen);
        outcome.check(what, judged, "Mbit/s", bound);
    }
    Ok(())
}

/// Medians over the rounds.
struct Medians {
    gaps: [f64; 3],
    cost: f64,
    sleeps: f64,
    rate: f64,
    stolen: f64,
}

impl Medians {
    fn of(runs: &[Run]) -> Medians {
        let middle =
            |of: &dyn Fn(&Run) -> f64| stats::median(&runs.iter().map(of).collect::<Vec<_>>());
        Medians {
            gaps: [0, 1, 2].map(|at| middle(&|run| run.gaps[at])),
            cost: middle(&|run| run.cost),
            sleeps: middle(&|run| run.sleeps),
            rate: middle(&|run| run.rate),
            stolen: middle(&|run| run.stolen),
        }
    }

    /// From the 1st to the 99th percentile of the gaps, in us.
    fn width(&self) -> f64 {
        self.gaps[2] - self.gaps[0]
    }

    fn row(&self) -> Value {
        let rounded = |value: f64| (value * 10.0).round() / 10.0;
        json!({
            "gap p1, us": rounded(self.gaps[0]),
            "gap p50, us": rounded(self.gaps[1]),
            "gap p99, us": rounded(self.gaps[2]),
            "processor time, ns per kB": rounded(self.cost),
            "sleeps per MB": rounded(self.sleeps),
            "rate, Mbit/s": rounded(self.rate),
            "stolen, %": rounded(self.stolen * 100.0),
        })
    }
}

impl Subject {
    fn measure(self, megabit: u64, seconds: f64) -> Result<Run> {
        let world = World::pair(Pair::default())?;
        let (client, server) = (world.client(), world.server());
        let device = &server.port().device;
        // Else a packet at the other end of the cable is a whole burst.
        let segmentation = "-K eth0 tx-udp-segmentation off";
        client.ns.run("ethtool", segmentation)?;
        let delay = ROUND_TRIP_MS.to_string();
        let mut receiver = start(&world, server, &["--accept", "--delay-ms", &delay])?;
        receiver.next_json("ready", EVENT_TIMEOUT)?;
        let mut sender = start(&world, client, &self.words(megabit, seconds))?;
        sender.next_json("ready", EVENT_TIMEOUT)?;
        let file = world.folder().join("quic.pcap");
        let tap = Tap::start_capturing(&server.ns, device, &file, |flow| {
            flow.inbound && flow.transport == Transport::Udp && flow.target.1 == PORT
        })?;
        sender.write_line("go")?;
        pause(SETTLE);
        let begin = sys::now_ns();
        let stolen = StolenTime::watch();
        pause(seconds - SETTLE - 0.1);
        let stolen = stolen.share();
        let end = sys::now_ns();
        let within = Duration::from_secs_f64(seconds) + EVENT_TIMEOUT;
        let report = sender.next_json("sent", within)?;
        let record = tap.stop(&server.ns)?;
        record.validate()?;
        let mut times = record.times(|_| true);
        times.retain(|at| (begin..end).contains(at));
        let gap = |two: &[u64]| (two[1] - two[0]) as f64 / 1e3;
        let gaps: Vec<f64> = times.windows(2).map(gap).collect();
        let number = |value: &Value| value.as_f64().context("the sender's report");
        let sent = number(&report["sent"][0])?;
        Ok(Run {
            gaps: [1.0, 50.0, 99.0].map(|percent| stats::percentile(&gaps, percent)),
            cost: number(&report["processor_ns"])? / sent * 1e3,
            sleeps: number(&report["sleeps"])? / sent * 1e6,
            rate: record.rate(|flow| flow.inbound, begin, end) / 1e6,
            stolen,
        })
    }

    /// The sender's options.
    fn words(self, megabit: u64, seconds: f64) -> Vec<String> {
        let window = megabit * 1000 * ROUND_TRIP_MS / 8;
        let mut words = vec!["--connect".to_owned()];
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        add("--send-ms", format!("{}", (seconds * 1e3) as u64));
        match self {
            Subject::Quinn => add("--window", window.to_string()),
            Subject::Netnice => {
                add("--window", (2 * window).to_string());
                add("--pace", format!("pcr={}mbit,cdvt=1ms", megabit));
            }
        }
        words
    }
}

/// Starts an end of the connection on a host.
fn start(world: &World, host: &Host, words: &[impl AsRef<str>]) -> Result<Proc> {
    let mut command = host.ns.command(process::binary("netnice-lab")?);
    command.args(["traffic", "quic-flows", "--local"]);
    command.arg(format!("{}:{PORT}", host.port().v4));
    command.arg("--remote");
    command.arg(format!("{}:{PORT}", world.server().port().v4));
    command.args(words.iter().map(AsRef::as_ref));
    command.arg("--certificate");
    command.arg(world.folder().join("certificate"));
    Proc::start(command)
}

/// Port of both ends.
const PORT: u16 = 7443;
/// Delay of what the receiver sends.
const ROUND_TRIP_MS: u64 = 20;
/// Time in s until the path MTU is found.
const SETTLE: f64 = 0.5;
