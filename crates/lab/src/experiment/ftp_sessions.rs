//! Repeats figure 5 of the paper NICE: a super-server divides 512 Kbyte/s among three FTP sessions,
//! which start one after the other and end in the same order. In every phase with the same sessions
//! each session must have an equal share within 3 %, and the total must be within 1 % of 512
//! Kbyte/s (3 % in the quick form).
//!
//! Both ends are real programs: the super-server `netnice inetd` starts a vsftpd for each curl. The
//! configuration is C of the paper's figure 2. Its services login and telnet have no session here,
//! so FTP has the whole total. A session is identified by the range of its client's ports, so its
//! control connection and its data connection count together, as in netnice.
//!
//! [`run`] adds its checks and the measured values to an [`Outcome`]. It fails if
//! vsftpd or curl is not installed, if the subject is not netnice, if a step of the measurement
//! fails, or if a plot cannot be written.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use super::bench::{R512K, SECOND, netnice_only, wait_until};
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};
use crate::process::Proc;
use crate::sys;
use crate::traffic::ftp;
use crate::wire::{Record, Tap, WireFlow};
use crate::world::{Offloads, Pair, World};

/// Runs the experiment and adds its checks and results to `outcome`. Fails if the subject is not
/// netnice, and as [`Experiment::run`](super::Experiment::run) does.
pub fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    ftp::needed()?;
    let step = if context.quick { 5 } else { 10 };
    let run = measure(context, step * SECOND)?;
    outcome.paper = json!({
        "total, Kbyte/s": 512,
        "seen": "full, halves, thirds, halves, full; sessions start at 0, 10, 20 s and last 30 s",
    });
    let tolerance = context.tolerance(0.03);
    let (mut totals, mut rows) = (Vec::new(), Vec::new());
    for (phase, window) in run.changes.windows(2).enumerate() {
        let (from, to) = (window[0] + SECOND / 2, window[1]);
        let here: Vec<u16> = (0..3).filter(|i| runs_in(*i, phase)).collect();
        let rates: Vec<f64> = here
            .iter()
            .map(|i| run.record.rate(ftp::of_session(*i), from, to))
            .collect();
        let aim = TOTAL / here.len() as f64;
        for (session, rate) in here.iter().zip(&rates) {
            let what = format!(
                "phase {}, C{} of {} sessions: rate on the wire, compared with its share",
                phase + 1,
                session + 1,
                here.len(),
            );
            let bound = Bound::Near {
                aim,
                share: tolerance,
            };
            outcome.check(&what, rate / KBYTE, "Kbyte/s", bound);
        }
        // The total includes packets that an ended session still had in its queue.
        let all = |flow: &WireFlow| (0..3).any(|session| ftp::of_session(session)(flow));
        let total = run.record.rate(all, from, to);
        context.say(format!(
            "{} sessions: {:.1?} Kbyte/s",
            here.len(),
            rates.iter().map(|r| r / KBYTE).collect::<Vec<_>>()
        ));
        totals.push(total / KBYTE);
        let share = |session: u16| {
            let at = here.iter().position(|one| *one == session);
            at.map(|at| rates[at] / KBYTE)
        };
        let second = |at: u64| at.saturating_sub(run.changes[0]) as f64 / SECOND as f64;
        rows.push(json!({
            "phase": phase + 1,
            "from, s": second(from), "to, s": second(to), "sessions": here.len(),
            "share of a session, Kbyte/s": aim,
            "C1, Kbyte/s": share(0), "C2, Kbyte/s": share(1), "C3, Kbyte/s": share(2),
            "total, Kbyte/s": total / KBYTE,
        }));
    }
    let off = totals.iter().map(|total| (total / TOTAL - 1.0).abs());
    let worst = off.fold(0.0, f64::max);
    let bound = Bound::AtMost(context.tolerance(0.01) * 100.0);
    let what = "total of all sessions, compared with 512 Kbyte/s: farthest phase";
    outcome.check(what, worst * 100.0, "%", bound);
    outcome.ours("rates on the wire, from 500 ms after each change", rows);
    outcome.note(
        "Rates count both directions of a session's control connection and data connection on the \
         wire, as the limit does. A phase is the time between two changes of the number of \
         sessions, without its first 500 ms.",
    );
    outcome.plot(context, "nice-fig5", || draw(&run))
}

/// Draws the rate of each session, and their total.
fn draw(run: &Run) -> String {
    let title = "Three FTP sessions under a super-server with 512 Kbyte/s in all";
    let (from, to) = (run.changes[0], run.changes[5]);
    let points = |of: &dyn Fn(&WireFlow) -> bool| {
        let bins = run.record.bins(of, from, to, SECOND / 2);
        let point = |(i, bits): (usize, f64)| (i as f64 / 2.0 + 0.25, bits / KBYTE);
        bins.into_iter().enumerate().map(point).collect()
    };
    let all = |flow: &WireFlow| (0..3).any(|session| ftp::of_session(session)(flow));
    let total = Series::new("total", palette::GREY, points(&all)).dashed();
    let chart = Chart::new(
        title,
        "time since the first session began, s",
        "rate on the wire, Kbyte/s, mean of each 500 ms",
    );
    let mut chart = chart.with(total);
    for (session, colour) in (0..3).zip([palette::BLUE, palette::RED, palette::GREEN]) {
        let name = format!("C{}", session + 1);
        chart = chart.with(Series::new(name, colour, points(&ftp::of_session(session))));
    }
    chart
        .level(TOTAL / 2.0, "a half: 256 Kbyte/s")
        .level(TOTAL / 3.0, "a third: 170.7 Kbyte/s")
        .y_range(0.0, 600.0)
        .svg()
}

struct Run {
    record: Record,
    /// The times at which the number of sessions changed: three starts, three ends.
    changes: Vec<u64>,
}

/// Runs three sessions of three steps each, which start one step apart.
fn measure(context: &Context, step: u64) -> Result<Run> {
    let world = World::pair(Pair {
        offloads: Offloads::Off,
        ..Pair::default()
    })?;
    let netnice = world.netnice("client")?;
    let config = configure(world.folder())?;
    let command = netnice.command(&["inetd", &config.display().to_string(), "@512Kbyte/sec"]);
    let mut inetd = Proc::start(command)?;
    await_service(&mut inetd)?;
    let server = &world.server().ns;
    let tap = Tap::start(server, "eth0")?;
    let seconds = (3 * step) as f64 / SECOND as f64;
    let mut changes = Vec::new();
    let mut clients = Vec::new();
    let began = sys::now_ns() + SECOND / 10;
    for session in 0..3_u16 {
        wait_until(began + u64::from(session) * step);
        let from = world.client().port().v4;
        let curl = ftp::fetch(server, from, &ftp::ports(session), seconds);
        changes.push(sys::now_ns());
        clients.push(Proc::start(curl)?);
        context.say(format!("session {} starts", session + 1));
    }
    for curl in &mut clients {
        curl.wait(Duration::from_nanos(4 * step))?;
        changes.push(sys::now_ns());
    }
    let record = tap.stop(server)?;
    record.validate()?;
    Ok(Run { record, changes })
}

/// Whether a session runs in a phase: sessions start in phases 0, 1, 2 and end with phases 2, 3, 4.
fn runs_in(session: u16, phase: usize) -> bool {
    let session = usize::from(session);
    (session..session + 3).contains(&phase)
}

/// Writes the configurations of vsftpd and inetd, and a file to fetch; returns inetd's
/// configuration.
fn configure(folder: &Path) -> Result<PathBuf> {
    let vsftpd = ftp::Server {
        folder,
        bytes: FILE,
        listen: None,
    };
    let vsftpd = vsftpd.configure()?;
    let config = folder.join("inetd.conf");
    // Configuration [C]; there are no logins here, so any program will do.
    let text = format!(
        "ftp     vsftpd {}\nlogin   cat @32Kbyte/sec\ntelnet  cat @32Kbyte/sec\n",
        vsftpd.display()
    );
    fs::write(&config, text)?;
    Ok(config)
}

/// Waits until the super-server serves. Fails if it ends, or after 20 s.
pub(super) fn await_service(inetd: &mut Proc) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(20);
    let mut said = String::new();
    while !said.contains("telnet is served") {
        if !inetd.is_running() || Instant::now() > until {
            bail!("the super-server has not started: {}", said.trim());
        }
        said.push_str(&inetd.take_stderr());
    }
    Ok(())
}

/// Bytes of the file, enough for a whole run at ten times the rate.
const FILE: u64 = 200 << 20;
/// The total of all sessions in Kbyte/s, and 1 Kbyte/s in bit/s.
const TOTAL: f64 = R512K.bits as f64 / KBYTE;
const KBYTE: f64 = 8192.0;
