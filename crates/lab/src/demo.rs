//! The demo runs the same four programs over one slow cable twice, without netnice and with it, and
//! writes a report (an HTML page and an SVG picture) that compares both runs. The demo needs root.
//! [`run`] returns whether both promises were kept in the run with netnice. It fails if the private
//! network cannot be made, if a program or a `netnice` command fails, or if the report cannot be
//! written.
//!
//! ```text
//!  client ──[ 20 Mbit/s both ways, queue of 150 ms ]── server
//!
//!  on the client:  a video       receives 5 Mbit/s; its playback stalls at less
//!                  a download    receives over twelve connections at the highest possible rate
//!                  a backup      sends over four connections at the highest possible rate
//!                  a ping
//!
//!  seconds   0            5                        10                18               38
//!            video, ping  backup, download begin   netnice commands  └─── compared ───┘
//! ```
//!
//! The second run, the one with netnice, executes its `netnice` commands while all programs run and
//! are connected, so no program is stopped or restarted. The same seconds of both runs are
//! compared. Rates count bytes on the wire, as the receiving program got them. The promises are:
//! at least 5 Mbit/s for the video and at most 4 Mbit/s for the backup. The video's promise counts
//! as kept if its rate is at most 3 % too low and it stood still for less than 50 ms; the backup's
//! if its rate is at most 3 % too high. The ping has no promise. Its round trip falls because
//! packets then queue in netnice, which serves flows with little traffic first, and no longer in
//! the cable's queue.

use std::fs::File;
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process;
use crate::stats;
use crate::traffic::Report;
use crate::traffic::real_programs::Pings;

mod player;
mod report;
mod run_once;

pub use run_once::ExecutedCommand;

/// Times of events, in seconds since the start of a run.
mod time {
    /// When the backup and the download begin, in seconds.
    pub(crate) const LOAD_BEGINS: f64 = 5.0;
    /// When the second run executes the `netnice` commands, in seconds.
    pub(crate) const COMMANDS: f64 = 10.0;
    /// When the comparison begins, in seconds.
    pub(crate) const FROM: f64 = 18.0;
    /// When the comparison and the run end, in seconds.
    pub(crate) const TO: f64 = 38.0;
}

/// Rate of the cable in bit/s.
const CABLE_RATE: u64 = 20_000_000;
/// Rate that the video needs, in bit/s on the wire.
const VIDEO_RATE: u64 = 5_000_000;
/// Limit of the backup in the second run, in bit/s.
const BACKUP_RATE: u64 = 4_000_000;

/// The data of one run, from which figures and charts are made.
pub(crate) struct RunRecord {
    /// Start of the run (wall clock, ns).
    began: u64,
    video: Report,
    download: Report,
    backup: Report,
    pings: Pings,
    /// The `netnice` commands and their output; empty in the first run.
    commands: Vec<ExecutedCommand>,
}

/// The figures of one run, over the compared seconds.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Figures {
    /// Rate of the video in Mbit/s on the wire.
    pub video: f64,
    /// Seconds of the comparison in which the video did not play.
    pub video_stalled: f64,
    /// Rate of the download in Mbit/s on the wire.
    pub download: f64,
    /// Rate of the backup in Mbit/s on the wire.
    pub backup: f64,
    /// Median round trip of the ping in ms; 0 without a reply.
    pub ping_p50: f64,
    /// 99th percentile of the round trip of the ping in ms; 0 without a reply.
    pub ping_p99: f64,
}

impl RunRecord {
    /// A second of the run as wall-clock time in ns.
    fn at(&self, second: f64) -> u64 {
        self.began + (second * 1e9) as u64
    }

    fn figures(&self) -> Figures {
        let (from, to) = (self.at(time::FROM), self.at(time::TO));
        let rate = |r: &Report| r.received_rate(from, to).unwrap_or(0.0) / 1e6;
        let pings = self.pings.between(from, to);
        let stalled = player::stall_time(&self.video, self.began, VIDEO_RATE, (from, to));
        Figures {
            video: rate(&self.video),
            video_stalled: stalled,
            download: rate(&self.download),
            backup: rate(&self.backup),
            ping_p50: stats::median(&pings),
            ping_p99: stats::percentile(&pings, 99.0),
        }
    }
}

/// Whether the video got its rate and played without a stall.
fn video_kept(f: &Figures) -> bool {
    f.video >= VIDEO_RATE as f64 / 1e6 * 0.97 && f.video_stalled < 0.05
}

/// Whether the backup stayed within its limit.
fn backup_kept(f: &Figures) -> bool {
    f.backup <= BACKUP_RATE as f64 / 1e6 * 1.03
}

/// Makes both runs, prints the commands and the table, and writes the report: the page to the file
/// `out`, the picture beside it with the ending `.svg`. Returns `true` if both promises were kept
/// in the second run.
///
/// # Errors
/// If the binaries `netnice` and `netniced` are not found, if a run fails, or if one of the two
/// files cannot be written.
pub fn run(out: &Path) -> Result<bool> {
    // Missing binaries and an unwritable report are detected at the start.
    process::binary("netnice")?;
    process::binary("netniced")?;
    let picture = picture_beside(out)?;
    check_writable(out)?;
    check_writable(&picture)?;
    println!("netnice demo: a private world (client, server, a cable of 20 Mbit/s between them)");
    println!(
        "Four programs use it twice, {:.0} s each: first without, then with netnice.\n",
        time::TO
    );
    let without = run_once::run(false, &progress("1/2 without netnice"))?;
    let with = run_once::run(true, &progress("2/2 with netnice   "))?;
    let (before, after) = (without.figures(), with.figures());
    println!(
        "\nTyped in the second run, {:.0} s after its beginning:\n",
        time::COMMANDS
    );
    for typed in &with.commands {
        println!("  # {}", typed.line);
        for line in typed.stdout.lines() {
            println!("    {line}");
        }
    }
    println!("\n{}", table(&before, &after));
    let page = report::page(&without, &with, &before, &after);
    std::fs::write(out, page).with_context(|| format!("cannot write {}", out.display()))?;
    std::fs::write(&picture, report::picture(&without, &with))
        .with_context(|| format!("cannot write {}", picture.display()))?;
    let shown = std::fs::canonicalize(out).unwrap_or_else(|_| out.to_owned());
    println!("\nThe report, one page: file://{}", shown.display());
    Ok(video_kept(&after) && backup_kept(&after))
}

/// The file of the picture. Fails if it would be the file of the page.
fn picture_beside(out: &Path) -> Result<PathBuf> {
    let picture = out.with_extension("svg");
    if picture == out {
        bail!(
            "{}: the file of the page cannot end in .svg, because the picture beside it does",
            out.display()
        );
    }
    Ok(picture)
}

/// Fails if the file cannot be written. Leaves it as it is, so that an earlier report stays if a
/// run fails.
fn check_writable(path: &Path) -> Result<()> {
    let existed = path.exists();
    File::options()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    if !existed {
        std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// The table for the terminal, in 80 columns.
fn table(before: &Figures, after: &Figures) -> String {
    let verdict = |kept: bool| if kept { "kept" } else { "NOT KEPT" };
    let rate = |mbit: f64| format!("{mbit:.2} Mbit/s");
    let time = |ms: f64| format!("{ms:.2} ms");
    let seconds = |s: f64| format!("{s:.0} of {:.0} s", time::TO - time::FROM);
    let (video, backup) = (verdict(video_kept(after)), verdict(backup_kept(after)));
    let rows = [
        (
            "",
            "promised",
            "without netnice".into(),
            "with netnice".into(),
            "",
        ),
        (
            "video",
            "5 Mbit/s at least",
            rate(before.video),
            rate(after.video),
            video,
        ),
        (
            "  stood still",
            "never",
            seconds(before.video_stalled),
            seconds(after.video_stalled),
            video,
        ),
        (
            "backup (upload)",
            "4 Mbit/s at most",
            rate(before.backup),
            rate(after.backup),
            backup,
        ),
        (
            "download",
            "what is left",
            rate(before.download),
            rate(after.download),
            "",
        ),
        (
            "ping p50",
            "",
            time(before.ping_p50),
            time(after.ping_p50),
            "",
        ),
        (
            "ping p99",
            "",
            time(before.ping_p99),
            time(after.ping_p99),
            "",
        ),
    ];
    let mut text = String::new();
    for (row, promised, was, is, kept) in rows {
        let line = format!("  {row:<16} {promised:<18} {was:>15}  {is:>14}   {kept}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Prints the progress of a run: on a terminal in one line, elsewhere every six seconds.
fn progress(name: &'static str) -> impl Fn(f64, &str) {
    let terminal = std::io::stdout().is_terminal();
    move |second, what| {
        let done = ((second / time::TO * 20.0).round() as usize).min(20);
        let bar = format!("{}{}", "█".repeat(done), "░".repeat(20 - done));
        let mut out = std::io::stdout().lock();
        let line = format!("  {name} {bar} {second:>3.0} s  {what}");
        let _ = if terminal {
            let end = if second >= time::TO { "\n" } else { "" };
            write!(out, "\r\x1b[K{line}{end}").and_then(|()| out.flush())
        } else if (second as u64).is_multiple_of(6) {
            writeln!(out, "{line}")
        } else {
            Ok(())
        };
    }
}

#[cfg(test)]
mod tests;
