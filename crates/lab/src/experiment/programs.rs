//! Experiments about the list of all programs (`netnice top`, `netnice show --all`).
//!
//! [`run`] is the experiment `programs`. A client asks the daemon as `netnice top` does:
//!
//! - 300 programs with 2,100 connections send at steady rates, and `netnice top` runs in a terminal
//!   of 200 x 50. What each program sent in about 3 s, as the daemon has it, must be within 5 % of
//!   what a tap at the other end counted. The daemon, its front process and `netnice top` together
//!   must use at most 2 % of a processor.
//! - While no client asks, the daemon must hold no eBPF object.
//! - Programs that send a few datagrams or a short stream and end, 1,000 of them in a second, must
//!   all be in the sum: not a byte less than they sent as datagrams, and not a byte more than the
//!   interface sent.
//! - 100,000 sockets of such programs, 100 each (full form; 10,000 in the quick form), must leave
//!   the daemon below 64 MiB of growth, with every byte in the sum.
//!
//! [`cost`] is the experiment `programs-cost`: transfers over loopback as in `nice-tab1`, in pairs.
//! Without a viewer the throughput must be at least 0.99 of that without a daemon (0.97 in the
//! quick form); the cost of a viewer is reported, and must be at most 10 %.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, or if a step of the measurement fails.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use netnice_api::{Client, Programs, ProgramsDoc, Request, Response, RuntimeDir};
use serde_json::json;

use super::bench::{at, netnice_only, pause};
use super::nice::Loopback;
use super::{Bound, Context, Outcome};
use crate::process::EVENT_TIMEOUT;
use crate::stats;
use crate::sys;
use crate::terminal::Terminal;
use crate::traffic::many_programs::{BriefPrograms, BriefTraffic, Drain, SteadyPrograms};
use crate::wire::Tap;
use crate::world::{Family, Netnice, Pair, World};

/// Runs the experiment `programs` and adds its checks and results to `outcome`. Fails if the
/// subject is not netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!({"promise":
        "300 programs: rates within 5 % over 3 s, 2 % of a processor; nothing lost"});
    let world = World::pair(Pair::default())?;
    let netnice = world.netnice("client")?;
    let viewer = Viewer::connect(&netnice)?;
    let to = at(world.server(), Family::V4, 5001);
    let _drain = Drain::start(world.server(), to)?;
    scale(context, outcome, &world, viewer)?;
    let viewer = Viewer::connect(&netnice)?;
    // The keys of the map of sockets are freed when the kernel unloads it.
    outcome.check(
        "eBPF objects of the daemon while no client asks",
        await_nothing_loaded(&viewer)? as f64,
        "",
        Bound::AtMost(0.0),
    );
    let streams = [
        ("as datagrams", BriefTraffic::Datagrams(3)),
        ("as streams", BriefTraffic::Stream),
    ];
    for (name, traffic) in streams {
        brief(context, outcome, (&world, &viewer), to, (name, traffic))?;
    }
    many_sockets(context, outcome, &world, viewer, to)
}

/// A connection to the daemon on which a client asks for the traffic of all programs.
struct Viewer<'a> {
    netnice: &'a Netnice,
    runtime: RuntimeDir,
    daemon: u32,
    front: u32,
}

impl Viewer<'_> {
    fn connect(netnice: &Netnice) -> Result<Viewer<'_>> {
        let daemon = netnice.pid().context("the daemon is not running")?;
        Ok(Viewer {
            netnice,
            runtime: RuntimeDir::choose(Some(netnice.runtime().to_owned()), None),
            daemon,
            front: front(daemon).context("the daemon has no front process")?,
        })
    }

    /// The traffic of all programs; counting continues for 8 s.
    fn ask(&self) -> Result<ProgramsDoc> {
        let mut client = Client::connect(&self.runtime)?;
        let request = Request::Programs(Programs {
            within_ns: 0,
            keep_ns: 8_000_000_000,
        });
        match client.call(&request, None)? {
            Response::Programs(doc) => Ok(doc),
            other => bail!("the daemon does not list programs: {other:?}"),
        }
    }

    /// As [`Viewer::ask`], from a reading after `before`.
    fn ask_after(&self, before: &ProgramsDoc) -> Result<ProgramsDoc> {
        let until = Instant::now() + EVENT_TIMEOUT;
        while Instant::now() < until {
            let doc = self.ask()?;
            if doc.at_ns > before.at_ns {
                return Ok(doc);
            }
            pause(0.1);
        }
        bail!("the daemon did not read again for {EVENT_TIMEOUT:?}")
    }
}

/// The rates of 300 programs, and the processor time meanwhile.
fn scale(
    context: &Context,
    outcome: &mut Outcome,
    world: &World,
    viewer: Viewer<'_>,
) -> Result<()> {
    let to = at(world.server(), Family::V4, 5001);
    let programs = SteadyPrograms::start(world.client(), to, PROGRAMS, CONNECTIONS)?;
    context.say(format!("{PROGRAMS} programs are connected"));
    let mut command = world
        .client()
        .ns
        .command(crate::process::binary("netnice")?);
    command.arg("top").env("LC_ALL", "C.UTF-8");
    command.env("NETNICE_RUNTIME_DIR", viewer.runtime.path());
    let top = Terminal::start(command, 200, 50)?;
    let listed = |text: &str| text.contains(&format!("{PROGRAMS} programs"));
    top.wait_for("all programs", EVENT_TIMEOUT, listed)?;
    pause(3.0);
    let processes = [viewer.daemon, viewer.front, top.pid()];
    let spent_before = processes.map(|pid| sys::time_of_threads(pid, None));
    let began = Instant::now();
    let seconds = if context.quick { 6.0 } else { 20.0 };
    pause(seconds);
    let took = began.elapsed().as_secs_f64();
    let mut shares = [0.0; 3];
    for (share, (before, pid)) in shares
        .iter_mut()
        .zip(spent_before.into_iter().zip(processes))
    {
        *share = (sys::time_of_threads(pid, None)? - before?) as f64 / 1e7 / took;
    }
    let sum: f64 = shares.iter().sum();
    context.say(format!(
        "of a processor: daemon {:.2} %, front {:.2} %, top {:.2} %",
        shares[0], shares[1], shares[2]
    ));
    outcome.ours(
        "of a processor, %",
        json!({"daemon": shares[0], "front": shares[1], "top": shares[2]}),
    );
    let errors = rates(context, world, &viewer, &programs)?;
    let worst = stats::greatest(&errors);
    outcome.ours("median error of a rate, %", stats::median(&errors));
    outcome.check(
        "programs in the list",
        errors.len() as f64,
        "",
        Bound::AtLeast(f64::from(PROGRAMS)),
    );
    outcome.check(
        "worst error of a rate over 3 s",
        worst,
        "%",
        Bound::AtMost(5.0),
    );
    let what = "processor time of daemon, front process and top";
    outcome.check(what, sum, "% of a processor", Bound::AtMost(2.0));
    Ok(())
}

/// The error of each program's rate over about 3 s, in per cent.
fn rates(
    context: &Context,
    world: &World,
    viewer: &Viewer<'_>,
    programs: &SteadyPrograms,
) -> Result<Vec<f64>> {
    let server = &world.server().ns;
    let begun = viewer.ask()?;
    let tap = Tap::start(server, "eth0")?;
    let first = viewer.ask_after(&begun)?;
    let mut second = viewer.ask_after(&first)?;
    while second.at_ns < first.at_ns + 3_000_000_000 {
        second = viewer.ask_after(&second)?;
    }
    let record = tap.stop(server)?;
    record.validate()?;
    let (from, to) = (first.at_ns, second.at_ns);
    let seen = programs.seen(&record, from, to);
    let sent = |doc: &ProgramsDoc| -> BTreeMap<u32, u64> {
        let list = doc.list.iter();
        list.map(|program| (program.pid, program.up_bytes))
            .collect()
    };
    let (before, after) = (sent(&first), sent(&second));
    let mut errors = Vec::new();
    for pid in programs.pids() {
        let (Some(seen), Some(before), Some(after)) =
            (seen.get(&pid), before.get(&pid), after.get(&pid))
        else {
            continue;
        };
        errors.push((after - before).abs_diff(*seen) as f64 / *seen as f64 * 100.0);
    }
    context.say(format!(
        "{} programs over {:.2} s: worst error {:.2} %",
        errors.len(),
        (to - from) as f64 / 1e9,
        stats::greatest(&errors)
    ));
    Ok(errors)
}

/// A thousand programs a second.
fn brief(
    context: &Context,
    outcome: &mut Outcome,
    (world, viewer): (&World, &Viewer<'_>),
    to: SocketAddr,
    (name, traffic): (&str, BriefTraffic),
) -> Result<()> {
    let ns = &world.client().ns;
    let mut programs = BriefPrograms::new(world.client(), to, traffic)?;
    let begun = viewer.ask()?;
    let before = ns.counters("eth0")?;
    let rounds: u32 = if context.quick { 100 } else { 500 };
    let began = Instant::now();
    for round in 0..rounds {
        let due = began + Duration::from_millis(20) * round;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        programs.start(20)?;
        if round % 50 == 0 {
            viewer.ask()?;
        }
    }
    programs.finish()?;
    let count = u64::from(rounds) * 20;
    let each_second = count as f64 / began.elapsed().as_secs_f64();
    let doc = await_ended(viewer, begun.clone(), begun.ended.programs + count)?;
    let counted = doc.total.up_bytes - begun.total.up_bytes;
    let on_wire = ns.counters("eth0")?.tx_bytes - before.tx_bytes;
    let least = count
        * match traffic {
            BriefTraffic::Datagrams(each) => u64::from(each) * (BriefPrograms::DATAGRAM + 42),
            // Six segments, the first and the last packet of the connection.
            BriefTraffic::Stream => BriefPrograms::STREAM + 8 * 66,
        };
    context.say(format!(
        "{count} programs {name}, {each_second:.0} a second: {counted} of {on_wire} bytes"
    ));
    outcome.ours(
        &format!("brief programs {name}"),
        json!({"programs": count, "a second": each_second, "least bytes": least,
            "counted": counted, "on the wire": on_wire, "ended": doc.ended.programs}),
    );
    let lost = least.saturating_sub(counted);
    let what = format!("bytes missing in the sum, {name}");
    outcome.check(what, lost as f64, "bytes", Bound::AtMost(0.0));
    let invented = counted.saturating_sub(on_wire);
    let what = format!("bytes in the sum that were not sent, {name}");
    outcome.check(what, invented as f64, "bytes", Bound::AtMost(0.0));
    if !context.quick {
        let what = format!("programs a second, {name}");
        outcome.check(what, each_second, "", Bound::AtLeast(950.0));
    }
    Ok(())
}

/// Programs with 100 sockets each.
fn many_sockets(
    context: &Context,
    outcome: &mut Outcome,
    world: &World,
    viewer: Viewer<'_>,
    to: SocketAddr,
) -> Result<()> {
    let count: u32 = if context.quick { 100 } else { 1_000 };
    let each = 100;
    let traffic = BriefTraffic::Datagrams(each);
    let mut programs = BriefPrograms::new(world.client(), to, traffic)?;
    let begun = viewer.ask()?;
    let before = viewer.netnice.daemon_memory()?;
    let mut most = before;
    for _ in 0..count / 20 {
        programs.start(20)?;
        pause(0.05);
        viewer.ask()?;
        most = most.max(viewer.netnice.daemon_memory()?);
    }
    programs.finish()?;
    let doc = await_ended(
        &viewer,
        begun.clone(),
        begun.ended.programs + u64::from(count),
    )?;
    most = most.max(viewer.netnice.daemon_memory()?);
    let counted = doc.total.up_bytes - begun.total.up_bytes;
    let least = u64::from(count * each) * (BriefPrograms::DATAGRAM + 42);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    context.say(format!(
        "{} sockets of {count} programs: {counted} of {least} bytes; daemon {:.1}, then at most \
         {:.1} MiB",
        count * each,
        mib(before),
        mib(most)
    ));
    outcome.ours(
        "many sockets",
        json!({"sockets": count * each, "daemon before, MiB": mib(before),
            "daemon at most, MiB": mib(most), "beyond the table, bytes": doc.overflow.up_bytes}),
    );
    let lost = least.saturating_sub(counted);
    let what = "bytes missing in the sum, many sockets";
    outcome.check(what, lost as f64, "bytes", Bound::AtMost(0.0));
    let grown = mib(most.saturating_sub(before));
    outcome.check(
        "growth of the daemon, many sockets",
        grown,
        "MiB",
        Bound::AtMost(64.0),
    );
    Ok(())
}

/// Asks until this number of programs have ended in the daemon's list, at most for a minute.
fn await_ended(viewer: &Viewer<'_>, mut doc: ProgramsDoc, programs: u64) -> Result<ProgramsDoc> {
    let until = Instant::now() + EVENT_TIMEOUT;
    while doc.ended.programs < programs && Instant::now() < until {
        doc = viewer.ask_after(&doc)?;
    }
    Ok(doc)
}

/// The experiment `programs-cost`. Fails if the subject is not netnice, and as
/// [`Experiment::run`](super::Experiment::run) does.
pub fn cost(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    outcome.paper = json!({"promise": "nobody looks: as without a daemon"});
    let world = World::pair(Pair::default())?;
    let mut pair = Loopback::start(&world)?;
    let pairs = if context.quick { 10 } else { 40 };
    let states = [State::NoDaemon, State::NobodyLooks, State::Viewer];
    let mut rates: [Vec<f64>; 3] = Default::default();
    let mut spent: [Vec<f64>; 3] = Default::default();
    for round in 0..pairs {
        for step in 0..states.len() {
            let place = (round + step) % states.len();
            let (rate, time) = measure(&mut pair, &world, states[place])?;
            rates[place].push(rate);
            spent[place].push(time);
        }
    }
    let ratios = |of: &[Vec<f64>; 3], place: usize| -> Vec<f64> {
        let pairs = of[place].iter().zip(&of[0]);
        pairs.map(|(one, without)| one / without).collect()
    };
    let least = [0.0, if context.quick { 0.97 } else { 0.99 }, 0.9];
    for (place, name) in [(1, "nobody looks"), (2, "a viewer")] {
        let (rate, time) = (ratios(&rates, place), ratios(&spent, place));
        let ratio = stats::median(&rate);
        context.say(format!(
            "{name}: ratio {ratio:.4}, between {:.4} and {:.4}; of processor time {:.4}",
            stats::median_interval(&rate).0,
            stats::median_interval(&rate).1,
            stats::median(&time),
        ));
        outcome.ours(
            name,
            json!({"ratio of throughput": ratio,
                "interval of 95 %": stats::median_interval(&rate),
                "ratio of processor time": stats::median(&time),
                "its interval of 95 %": stats::median_interval(&time)}),
        );
        let what = format!("throughput without a daemon, and while {name}");
        outcome.check(what, ratio, "", Bound::AtLeast(least[place]));
    }
    Ok(())
}

/// What runs beside a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    NoDaemon,
    /// A daemon whose viewer has left.
    NobodyLooks,
    /// A daemon, and `netnice top` every second.
    Viewer,
}

fn measure(pair: &mut Loopback, world: &World, state: State) -> Result<(f64, f64)> {
    if state == State::NoDaemon {
        return pair.transfer(TRANSFERS);
    }
    let netnice = world.netnice("client")?;
    let viewer = Viewer::connect(&netnice)?;
    if state == State::NobodyLooks {
        let mut client = Client::connect(&viewer.runtime)?;
        let brief = Request::Programs(Programs::default());
        client.call(&brief, None)?;
        await_nothing_loaded(&viewer)?;
        return pair.transfer(TRANSFERS);
    }
    let mut command = netnice.command(&["top"]);
    command.env("LC_ALL", "C.UTF-8");
    let top = Terminal::start(command, 80, 24)?;
    let listed = |text: &str| text.contains("program");
    top.wait_for("the programs", EVENT_TIMEOUT, listed)?;
    pair.transfer(TRANSFERS)
}

/// Waits until the daemon holds no eBPF object, at most a minute. Returns their number.
fn await_nothing_loaded(viewer: &Viewer<'_>) -> Result<usize> {
    let until = Instant::now() + EVENT_TIMEOUT;
    loop {
        let held = ebpf_objects(viewer.daemon)?;
        if held == 0 || Instant::now() > until {
            return Ok(held);
        }
        pause(0.1);
    }
}

/// The number of eBPF objects of which a process has a descriptor.
fn ebpf_objects(pid: u32) -> Result<usize> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let links = open
        .flatten()
        .filter_map(|one| fs::read_link(one.path()).ok());
    Ok(links
        .filter(|link| link.to_string_lossy().contains("bpf"))
        .count())
}

/// The front process of a daemon.
fn front(daemon: u32) -> Option<u32> {
    let path = format!("/proc/{daemon}/task/{daemon}/children");
    let children = fs::read_to_string(path).ok()?;
    let mut pids = children
        .split_whitespace()
        .filter_map(|word| word.parse().ok());
    pids.find(|pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "netnice-front")
    })
}

/// The number of programs with steady rates, and of connections of each.
const PROGRAMS: u16 = 300;
const CONNECTIONS: u16 = 7;
/// Transfers of one run of `programs-cost`.
const TRANSFERS: u32 = 20;
