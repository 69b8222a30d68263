//! Repeats figures 6, 7 and 8 of the paper NICE (section 6): a user types while a server sends
//! files. The result is the round trip time of a key stroke and its echo.
//!
//! ```text
//!              on a shared segment (10 Mbit/s)   on a switch (100 Mbit/s)   C3 types to
//!   figure 6   C1, C2, C3, S1                    -                          S1
//!   figure 7   C1, C2, C3, S1, S2                -                          S2
//!   figure 8   C1, C2, C3, the switch            S1, S2                     S2
//! ```
//! C1 and C2 fetch 128 Mbyte by FTP from S1 (real vsftpd and curl, a sparse file), from 10 and 15 s
//! for 15 s each. C3 sends a byte every 100 ms over TCP and gets its echo, from 0 to 40 s. With
//! netnice `netnice inetd` starts vsftpd with a total of 512 Kbyte/s; without netnice the same
//! super-server starts vsftpd without a total or any limit. The congested time is from 10 to 30 s;
//! the idle time is from 1 to 10 s, in the same runs. The full form has ten runs of each kind, the
//! quick form one with shorter times. Runs that were kept in a folder are not measured again; as
//! long as one kind has no run, nothing is checked. Fails if vsftpd or curl is not installed.
//!
//! With netnice, the mean in the congested time may be at most 0.6 ms above the mean in the idle
//! time, and the 99th percentile at most the time of one packet (1.21 ms) above that in the idle
//! time. Without netnice the mean in the congested time must be at least ten times as long as with
//! netnice, and between a third of the paper's mean and three times that mean.
//!
//! **Best possible result.** The files use the segment for 42 % of the time, and a packet on the
//! wire is not interrupted: it takes T = 1.21 ms. If packets come evenly, one every 2.89 ms, the
//! silence after each is long enough that a key stroke or its echo meets one packet and never two.
//! The wait is then evenly distributed between 0 and T with probability 0.42, and its 99th
//! percentile is 0.98 T. If each session's packets come independently, some leave together, and a
//! key stroke and its echo may both wait: 2.0 ms and more. The total therefore needs one clock for
//! all sessions, as in `netnice inetd`.
//!
//! The paper does not give all parameters. Those chosen here: the interface of a host on the
//! segment holds 50 full packets (FreeBSD's interface queue), the switch's port 128 KiB, TCP is
//! cubic, and a busy host keeps the segment for 8 packets (see [`crate::world::hub`]).
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a step of the measurement fails, if a kept run cannot be read or written, or
//! if a plot cannot be written.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::bench::{SECOND, at, netnice_only, wait_until};
use super::ftp_sessions::await_service;
use super::{Bound, Context, Outcome, figure};
use crate::plot::{Chart, Series, palette};
use crate::process::Proc;
use crate::stats;
use crate::traffic::{self, Echo, Probe, ftp};
use crate::world::hub::{CAPTURE, FRAME, Lan, RATE};
use crate::world::{Family, World};

/// One of the figures.
struct Figure {
    id: &'static str,
    title: &'static str,
    lan: Lan,
    /// The host with the echo server.
    echo: &'static str,
    /// The paper's mean and deviation in ms: without netnice, with netnice.
    paper: [(f64, f64); 2],
}

/// Figure 6: one server on a hub; the user types to the server that sends files. Fails if the
/// subject is not netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure6(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let figure = Figure {
        id: "nice-fig6",
        title: "Typing while one server sends files, 10 Mbit/s hub",
        lan: Lan {
            hub: &["c1", "c2", "c3", "s1"],
            ..LAN
        },
        echo: "s1",
        paper: [(23.05, 31.72), (0.49, 0.97)],
    };
    figure.run(context, outcome)
}

/// Figure 7: two servers on a hub; the user types to the one that sends no files. Fails if the
/// subject is not netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure7(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let figure = Figure {
        id: "nice-fig7",
        title: "Typing to another server, 10 Mbit/s hub",
        lan: LAN,
        echo: "s2",
        paper: [(9.19, 16.75), (0.37, 0.45)],
    };
    figure.run(context, outcome)
}

/// Figure 8: two servers on a switch; the user types to the one that sends no files. Fails if the
/// subject is not netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure8(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let figure = Figure {
        id: "nice-fig8",
        title: "Typing to another server, on a 100 Mbit/s switch",
        lan: Lan {
            hub: &["c1", "c2", "c3"],
            switch: &["s1", "s2"],
            ..LAN
        },
        echo: "s2",
        paper: [(49.16, 204.5), (0.48, 1.35)],
    };
    figure.run(context, outcome)
}

impl Figure {
    fn run(&self, context: &Context, outcome: &mut Outcome) -> Result<()> {
        netnice_only(context.subject)?;
        ftp::needed()?;
        let times = Times::of(context);
        let mut all: [Vec<Run>; 2] = Default::default();
        for number in 1..=times.runs {
            for (limited, runs) in all.iter_mut().enumerate() {
                let name = format!("run {number} {}", ["without", "with"][limited]);
                let Some(run) = self.load_or_measure(context, &times, &name, limited == 1)? else {
                    continue;
                };
                let [idle, busy] = [run.idle(&times), run.congested(&times)].map(|t| Rtt::of(&t));
                context.say(format!(
                    "{name}: idle {:.3} ms, p99 {:.3}, congested mean {:.3}, p99 {:.3}, {:.0} Kbyte/s of files",
                    idle.mean,
                    idle.p99,
                    busy.mean,
                    busy.p99,
                    run.files / 8192.0,
                ));
                runs.push(run);
            }
        }
        if all.iter().any(Vec::is_empty) {
            outcome.note("Nothing is judged before there are runs of both kinds.");
            return Ok(());
        }
        self.check(outcome, &times, &all);
        outcome.plot(context, self.id, || self.draw(&times, &all))
    }

    /// A run that an earlier process kept, or a run that is measured now. `None` if there is no
    /// kept run and the context does not select this one.
    fn load_or_measure(
        &self,
        context: &Context,
        times: &Times,
        name: &str,
        limited: bool,
    ) -> Result<Option<Run>> {
        let of = if context.quick { "quick" } else { "full" };
        let file = format!("{} {of} {name}.json", self.id).replace(' ', "-");
        let file = context.keep.as_ref().map(|folder| folder.join(file));
        if let Some(file) = file.as_ref().filter(|file| file.exists()) {
            let text = fs::read_to_string(file)?;
            let run = serde_json::from_str(&text);
            return Ok(Some(run.with_context(|| {
                format!("{} is not a saved run", file.display())
            })?));
        }
        if !context.selects(name) {
            return Ok(None);
        }
        let run = self.measure(times, limited)?;
        if let Some(file) = file {
            let text = serde_json::to_string(&run)?;
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(Some(run))
    }

    /// Measures one run: C3 types, and two sessions start and end.
    fn measure(&self, times: &Times, limited: bool) -> Result<Run> {
        let world = World::lan(self.lan)?;
        let (s1, echo) = (world.host("s1"), world.host(self.echo));
        let netnice = world.netnice("s1")?;
        let vsftpd = ftp::Server {
            folder: world.folder(),
            bytes: 128 << 20,
            listen: None,
        };
        let config = world.folder().join("inetd.conf");
        // Configuration [B], and the line that signals that inetd is ready.
        let lines = format!("ftp vsftpd {}\ntelnet cat\n", vsftpd.configure()?.display());
        fs::write(&config, lines)?;
        let config = config.display().to_string();
        let words: &[&str] = match limited {
            true => &["inetd", &config, "@512Kbyte/sec"],
            false => &["inetd", &config],
        };
        // A limit on another process: the first limit takes the time in which the eBPF programs are
        // loaded.
        let mut idler = s1.ns.command("sleep");
        idler.arg("600");
        let idler = Proc::start(idler)?;
        if limited {
            netnice.run_line(&format!("set pid:{} --both 1mbit", idler.pid()))?;
        }
        let mut inetd = Proc::start(netnice.command(words))?;
        await_service(&mut inetd)?;
        let to: SocketAddr = at(echo, Family::V4, 7);
        let _echo = traffic::start_now(echo, &Echo::listen(to))?;
        let types = Probe::tcp(to, Duration::from_millis(100));
        let mut telnet = traffic::start_waiting(world.host("c3"), &types)?;
        let began = telnet.go()?;
        let before = s1.ns.counters("eth0")?.tx_bytes;
        let mut sessions = Vec::new();
        for (session, client) in ["c1", "c2"].into_iter().enumerate() {
            wait_until(began + times.starts[session]);
            let client = &world.host(client).ns;
            let seconds = times.lasts as f64 / 1e9;
            let ports = ftp::ports(session as u16);
            let curl = ftp::fetch(client, s1.port().v4, &ports, seconds);
            sessions.push(Proc::start(curl)?);
        }
        wait_until(began + times.ends);
        for curl in &mut sessions {
            curl.wait(Duration::from_secs(20))?;
        }
        let report = telnet.stop()?;
        let files = s1.ns.counters("eth0")?.tx_bytes - before;
        let round_trips: Vec<(u64, f64)> = report
            .round_trips
            .iter()
            .map(|(asked, took)| (asked.saturating_sub(began), *took as f64 / 1e6))
            .collect();
        Ok(Run {
            round_trips,
            lost: report.sends.saturating_sub(report.round_trips.len() as u64),
            files: files as f64 * 8e9 / times.congested() as f64,
        })
    }

    fn check(&self, outcome: &mut Outcome, times: &Times, all: &[Vec<Run>; 2]) {
        let gather = |runs: &[Run], of: fn(&Run, &Times) -> Vec<f64>| -> Rtt {
            let all: Vec<f64> = runs.iter().flat_map(|run| of(run, times)).collect();
            Rtt::of(&all)
        };
        let [without, with] = [&all[0], &all[1]].map(|runs| gather(runs, Run::congested));
        let idle = gather(&all[1], Run::idle);
        self.add_values(outcome, times, all, [without, with, idle]);
        self.add_notes(outcome, times, [without, with]);
        let frame = FRAME as f64 * 8e3 / RATE as f64;
        let beyond = with.mean - idle.mean;
        outcome.check(
            "mean round trip with netnice, less the mean of the idle time",
            beyond,
            "ms",
            Bound::AtMost(0.6),
        );
        let tail = with.p99 - idle.p99;
        outcome.check(
            "99th percentile of round trips with netnice, less that of the idle time",
            tail,
            "ms",
            Bound::AtMost(frame),
        );
        // The paper reports at least an order of magnitude.
        let worse = without.mean / with.mean;
        outcome.check(
            "control: mean round trip without netnice / mean with netnice",
            worse,
            "",
            Bound::AtLeast(10.0),
        );
        let mean = self.paper[0].0;
        let bound = Bound::Between {
            least: 1.0 / 3.0,
            most: 3.0,
        };
        let what = format!("control: mean round trip without netnice / the paper's {mean} ms");
        outcome.check(what, without.mean / mean, "", bound);
    }

    /// Adds the paper's and our round trips without netnice, with netnice, and in the idle time.
    fn add_values(
        &self,
        outcome: &mut Outcome,
        times: &Times,
        all: &[Vec<Run>; 2],
        [without, with, idle]: [Rtt; 3],
    ) {
        let [paper_without, paper_with] = self.paper;
        let paper = |name: &str, (mean, deviation): (f64, f64)| {
            json!({
                "round trips": name, "mean, ms": mean, "standard deviation, ms": deviation,
                "runs": 10,
            })
        };
        outcome.paper = json!([
            paper("without netnice", paper_without),
            paper("with netnice", paper_with),
        ]);
        let ours = |name: &str, span: [f64; 2], runs: usize, got: Rtt| {
            json!({
                "round trips": name,
                "from, s": span[0], "to, s": span[1],
                "mean, ms": got.mean, "standard deviation, ms": got.deviation,
                "median, ms": got.median, "99th percentile, ms": got.p99, "longest, ms": got.max,
                "runs": runs,
            })
        };
        let [first, last] = [times.starts[0], times.congested_until()].map(seconds);
        let (busy, quiet) = ([first, last], [1.0, first]);
        let rows = [
            ours("without netnice", busy, all[0].len(), without),
            ours("with netnice", busy, all[1].len(), with),
            ours("idle, in the runs with netnice", quiet, all[1].len(), idle),
        ];
        outcome.ours("round trips", rows);
        let lost: u64 = all.iter().flatten().map(|run| run.lost).sum();
        outcome.ours("key strokes without an echo, in all runs", lost);
        let files = |runs: &[Run]| {
            let files: Vec<f64> = runs.iter().map(|run| run.files / 8192.0).collect();
            stats::mean(&files)
        };
        outcome.ours(
            "what S1 sends, mean of the congested time, Kbyte/s on the wire",
            json!({"without netnice": files(&all[0]), "with netnice": files(&all[1])}),
        );
    }

    fn add_notes(&self, outcome: &mut Outcome, times: &Times, [without, with]: [Rtt; 2]) {
        let [(_, paper_without), (_, paper_with)] = self.paper;
        outcome.note(format!(
            "Standard deviation of the round trips: {:.2} ms without netnice (paper: \
             {paper_without} ms), {:.2} ms with netnice (paper: {paper_with} ms).",
            without.deviation, with.deviation,
        ));
        let [first, second] = times.starts.map(seconds);
        let [first_ends, end] =
            [times.starts[0] + times.lasts, times.congested_until()].map(seconds);
        outcome.note(format!(
            "C1 fetches a file from {first} to {first_ends} s, and C2 from {second} to {end} s. All \
             values are over the congested time from {first} to {end} s of all runs. Idle are the \
             seconds 1 to {first} of the runs with netnice, before a file is sent. A difference \
             from the idle time can be negative by chance, for example if the machine stopped more \
             often in the idle time."
        ));
        outcome.note(format!(
            "The paper leaves these open: here a host's interface holds {} bytes, the switch's port \
             {} bytes, a busy host keeps the segment for {CAPTURE} packets, and TCP is CUBIC.",
            self.lan.queue, self.lan.buffer
        ));
        outcome.note(
            "The limit uses the segment for 42 % of the time. If its packets come evenly, a key \
             stroke waits for up to 1.21 ms, and the 99th percentile is at best 1.18 ms above that \
             of the idle time (1 % of the key strokes wait for the last 2.4 % of a packet).",
        );
    }

    fn draw(&self, times: &Times, all: &[Vec<Run>; 2]) -> String {
        let points = |runs: &[Run]| -> Vec<(f64, f64)> {
            let trips = runs.first().map(|run| run.round_trips.clone());
            let point = |(at, ms): (u64, f64)| (at as f64 / 1e9, ms);
            trips.unwrap_or_default().into_iter().map(point).collect()
        };
        let name = |what: &str, runs: &[Run], paper: f64| {
            let all: Vec<f64> = runs.iter().flat_map(|run| run.congested(times)).collect();
            let mean = figure(stats::mean(&all));
            format!("{what}: mean {mean} ms (paper: {paper} ms)")
        };
        let [first, second] = times.starts.map(seconds);
        let [first_ends, end] =
            [times.starts[0] + times.lasts, times.congested_until()].map(seconds);
        Chart::new(
            format!("{} (the first run of each kind)", self.title),
            "time since the first key stroke, s",
            "round trip of a key stroke, ms (logarithmic)",
        )
        .with(
            Series::new(
                name("without netnice", &all[0], self.paper[0].0),
                palette::RED,
                points(&all[0]),
            )
            .thin(),
        )
        .with(Series::new(
            name("with netnice", &all[1], self.paper[1].0),
            palette::BLUE,
            points(&all[1]),
        ))
        .shade(first, end)
        .moment(first, "C1 fetches")
        .moment(second, "C2 fetches")
        .moment(first_ends, "C1 ends")
        .moment(end, "C2 ends")
        .y_range(0.05, 1000.0)
        .logarithmic()
        .svg()
    }
}

/// Seconds of a time in ns.
fn seconds(ns: u64) -> f64 {
    ns as f64 / SECOND as f64
}

/// The times of a run, in ns from the first key stroke.
struct Times {
    runs: u32,
    starts: [u64; 2],
    lasts: u64,
    ends: u64,
}

impl Times {
    fn of(context: &Context) -> Times {
        match context.quick {
            false => Times {
                runs: 10,
                starts: [10 * SECOND, 15 * SECOND],
                lasts: 15 * SECOND,
                ends: 40 * SECOND,
            },
            true => Times {
                runs: 1,
                starts: [4 * SECOND, 6 * SECOND],
                lasts: 8 * SECOND,
                ends: 15 * SECOND,
            },
        }
    }

    fn congested_until(&self) -> u64 {
        self.starts[1] + self.lasts
    }

    fn congested(&self) -> u64 {
        self.congested_until() - self.starts[0]
    }
}

/// The measurements of one run.
#[derive(Serialize, Deserialize)]
struct Run {
    /// Time of the key stroke in ns, and round trip in ms.
    round_trips: Vec<(u64, f64)>,
    /// Key strokes without an echo.
    lost: u64,
    /// Bytes from the files' server, in bit/s of the congested time.
    files: f64,
}

impl Run {
    /// The first second is left out: the connection is made and neighbours are resolved then.
    fn idle(&self, times: &Times) -> Vec<f64> {
        self.between(SECOND, times.starts[0])
    }

    fn congested(&self, times: &Times) -> Vec<f64> {
        self.between(times.starts[0], times.congested_until())
    }

    fn between(&self, from: u64, to: u64) -> Vec<f64> {
        let within = self
            .round_trips
            .iter()
            .filter(|(at, _)| (from..to).contains(at));
        within.map(|(_, ms)| *ms).collect()
    }
}

/// Round trips in ms.
#[derive(Clone, Copy)]
struct Rtt {
    mean: f64,
    deviation: f64,
    median: f64,
    p99: f64,
    max: f64,
}

impl Rtt {
    fn of(times: &[f64]) -> Rtt {
        Rtt {
            mean: stats::mean(times),
            deviation: stats::deviation(times),
            median: stats::median(times),
            p99: stats::percentile(times, 99.0),
            max: stats::greatest(times),
        }
    }
}

/// The common parameters of the figures: figure 7's.
const LAN: Lan = Lan {
    hub: &["c1", "c2", "c3", "s1", "s2"],
    switch: &[],
    queue: 50 * FRAME as u32,
    buffer: 128 << 10,
};
