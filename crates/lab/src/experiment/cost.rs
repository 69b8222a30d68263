//! The experiment `cost` measures the time that the eBPF programs of netnice take for a packet that
//! a program sends, once without and once with a limit on that program. The targets beside the
//! program are one sleeping process, then a thousand, then one again. From one to a thousand the
//! time may grow by at most 10 % plus the error of the measurement, which is the difference of the
//! first and the last result.
//!
//! The kernel measures the time of eBPF programs while the experiment runs (bpf(2),
//! BPF_ENABLE_STATS), and bpftool reads it; the experiment fails without bpftool. The eBPF programs
//! of this world's netnice are those that appear while its daemon starts and sets a first limit.
//! Their time is divided by the number of packets that arrive at the server. The kernel's
//! measurement adds about 20 ns to each run of an eBPF program, the same in all three results.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if
//! the subject is not netnice or if a step of the measurement fails.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::{Value, json};

use super::bench::{at, netnice_only, pause};
use super::scale::{THOUSAND, sleepers};
use super::{Bound, Context, Outcome};
use crate::stats;
use crate::traffic::{self, Udp};
use crate::world::{Family, Netnice, Pair, World};
use crate::{process, sys};

/// Time in ns and runs of each program, by id.
type Times = BTreeMap<u64, (u64, u64)>;

/// The results of one sender, as medians over its rounds: time and runs of the eBPF programs per
/// packet, and packets per second.
#[derive(Debug, Clone, Serialize)]
struct PerPacket {
    targets: usize,
    nanoseconds: f64,
    runs: f64,
    packets_per_second: f64,
}

/// Runs the experiment and adds its checks and results to `outcome`. Fails if the subject is not
/// netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    if !process::installed("bpftool") {
        bail!(
            "bpftool reads the kernel's times of eBPF programs: install it (apt-get install bpftool)"
        );
    }
    outcome.paper = json!({"promise": "no growth from 1 to 1,000 targets"});
    let world = World::pair(Pair::default())?;
    let (_parent, pids) = sleepers(world.client(), THOUSAND)?;
    let older = times()?;
    let netnice = world.netnice("client")?;
    set(&netnice, &pids[..1])?;
    let own: BTreeSet<u64> = times()?
        .into_keys()
        .filter(|id| !older.contains_key(id))
        .collect();
    if own.is_empty() {
        bail!("no eBPF program appeared while netnice started: what it costs cannot be seen");
    }
    let bench = Bench {
        world,
        netnice,
        own,
    };
    let _timed = sys::time_bpf_programs().context("cannot have the kernel time eBPF programs")?;
    let rounds = if context.quick { 3 } else { 7 };
    for limited in [false, true] {
        let limiter = if limited {
            "a limited program"
        } else {
            "a program without a target"
        };
        let one = bench.measure(limited, 1, rounds)?;
        set(&bench.netnice, &pids[1..])?;
        let thousand = bench.measure(limited, THOUSAND, rounds)?;
        for pid in &pids[1..] {
            bench.netnice.run_line(&format!("clear pid:{pid}"))?;
        }
        let again = bench.measure(limited, 1, rounds)?;
        for m in [&one, &thousand, &again] {
            context.say(format!(
                "{limiter:<27} {:>4} targets: {:>6.1} ns per packet in {:.2} runs, {:.0} packets/s",
                m.targets, m.nanoseconds, m.runs, m.packets_per_second
            ));
        }
        let least = one.nanoseconds.min(again.nanoseconds);
        let growth = (thousand.nanoseconds / least.max(1.0) - 1.0) * 100.0;
        // The difference of two measurements with one target is the error of the measurement.
        let noise = (one.nanoseconds - again.nanoseconds).abs() / least.max(1.0) * 100.0;
        outcome.check(
            format!("{limiter}: growth from 1 to 1,000 targets"),
            growth,
            "%",
            Bound::AtMost(10.0 + noise),
        );
        outcome.ours(limiter, [one, thousand, again]);
    }
    Ok(())
}

fn set(netnice: &Netnice, pids: &[u32]) -> Result<()> {
    for pid in pids {
        netnice.run_line(&format!("set pid:{pid} --up 4mbit --down 8mbit"))?;
    }
    Ok(())
}

/// The world, and the ids of its netnice's programs.
struct Bench {
    netnice: Netnice,
    own: BTreeSet<u64>,
    world: World,
}

impl Bench {
    /// Sends small datagrams for some rounds; returns medians over the rounds.
    fn measure(&self, limited: bool, targets: usize, rounds: u32) -> Result<PerPacket> {
        let (client, server) = (self.world.client(), self.world.server());
        let (here, there) = (at(client, Family::V4, 9), at(server, Family::V4, 9));
        let _sink = traffic::start_now(server, &Udp::sink(there))?;
        let small = Udp::source(here, there).size(64).rate(OFFER);
        let mut program = traffic::start_waiting(client, &small)?;
        if limited {
            // A limit that is never reached: the packets pass the whole stage.
            let line = format!("set pid:{} --up 10gbit", program.pid());
            self.netnice.run_line(&line)?;
        }
        program.go()?;
        pause(0.3);
        let (mut ns, mut runs, mut rate) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let before = (times()?, server.ns.counters("eth0")?);
            pause(0.7);
            let after = (times()?, server.ns.counters("eth0")?);
            let packets = (after.1.rx_packets - before.1.rx_packets) as f64;
            let (mut spent, mut ran) = (0, 0);
            for id in &self.own {
                let of = |times: &Times| times.get(id).copied().unwrap_or_default();
                let (now, then) = (of(&after.0), of(&before.0));
                spent += now.0 - then.0;
                ran += now.1 - then.1;
            }
            ns.push(spent as f64 / packets);
            runs.push(ran as f64 / packets);
            rate.push(packets / 0.7);
        }
        Ok(PerPacket {
            targets,
            nanoseconds: stats::median(&ns),
            runs: stats::median(&runs),
            packets_per_second: stats::median(&rate),
        })
    }
}

fn times() -> Result<Times> {
    let text = process::run(Command::new("bpftool").args(["-j", "prog", "show"]))?;
    let all: Value = serde_json::from_str(&text).context("bpftool prints JSON")?;
    Ok(all
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|p| {
            let of = |key: &str| p[key].as_u64().unwrap_or(0);
            Some((p["id"].as_u64()?, (of("run_time_ns"), of("run_cnt"))))
        })
        .collect())
}

/// Offered load in bit/s on the wire: 50,000 packets of 106 bytes each second, far below the rate
/// at which packets queue.
const OFFER: u64 = 50_000 * 106 * 8;
