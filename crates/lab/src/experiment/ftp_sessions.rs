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

use super::bench::{MBIT, R512K, SECOND, netnice_only, wait_until};
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
        "seen": "full, halves, thirds, halves, full, as sessions start at 0, 10, 20 s and last 30 s",
    });
    let tolerance = context.tolerance(0.03);
    let mut totals = Vec::new();
    for (phase, window) in run.changes.windows(2).enumerate() {
        let (from, to) = (window[0] + SECOND / 2, window[1]);
        let here: Vec<u16> = (0..3).filter(|i| runs_in(*i, phase)).collect();
        let rates: Vec<f64> = here
            .iter()
            .map(|i| run.record.rate(ftp::of_session(*i), from, to))
            .collect();
        let aim = R512K.bits as f64 / here.len() as f64;
        for (session, rate) in here.iter().zip(&rates) {
            let what = format!("phase {}, session {}: Mbit/s", phase + 1, session + 1);
            let bound = Bound::Near {
                aim: aim / MBIT,
                share: tolerance,
            };
            outcome.check(&what, rate / MBIT, "", bound);
        }
        // The total includes packets that an ended session still had in its queue.
        let all = |flow: &WireFlow| (0..3).any(|session| ftp::of_session(session)(flow));
        let total = run.record.rate(all, from, to);
        context.say(format!(
            "{} sessions: {:.1?} Kbyte/s",
            here.len(),
            rates.iter().map(|r| r / 8192.0).collect::<Vec<_>>()
        ));
        totals.push(total / R512K.bits as f64);
    }
    let worst = totals.iter().map(|t| (t - 1.0).abs()).fold(0.0, f64::max);
    let bound = Bound::AtMost(context.tolerance(0.01) * 100.0);
    outcome.check("total, worst phase, off by", worst * 100.0, "%", bound);
    outcome.ours("total of each phase / 512 Kbyte/s", totals);
    outcome.plot(context, "nice-fig5", || {
        let title = "Three FTP sessions under a fair-inetd of 512 Kbyte/s";
        let colours = [palette::BLUE, palette::RED, palette::GREEN];
        let (from, to) = (run.changes[0], run.changes[5]);
        let mut chart = Chart::new(title, "seconds", "Kbyte/s on the wire, each 500 ms");
        for (session, colour) in (0..3).zip(colours) {
            let bins = run
                .record
                .bins(ftp::of_session(session), from, to, SECOND / 2);
            let point = |(i, bits): (usize, f64)| (i as f64 / 2.0 + 0.25, bits / 8192.0);
            let points = bins.into_iter().enumerate().map(point).collect();
            chart = chart.with(Series::new(
                format!("session {}", session + 1),
                colour,
                points,
            ));
        }
        chart.level(512.0, "512 Kbyte/s, the total").svg()
    })
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
