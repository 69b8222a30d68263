//! Experiments: each measures or simulates, and decides from numbers whether a promise holds.
//!
//! [`REGISTRY`] has all of them; `netnice-lab list` prints it. An experiment returns an
//! [`Outcome`]: the paper's figures or the project's promise (`paper`), the measured values
//! (`ours`), and checks. A check is one number against one bound; the outcome holds if there is a
//! check and every check holds. An error means that the experiment could not be measured, or that a
//! file could not be read or written. Numbers for comparison only (such as the wire's rate before a
//! receive limit) are in `ours` without a check.
//!
//! With `--subject htb` the experiments `accuracy`, `change`, `latency` and `nice-fig3` measure
//! plain HTB (the kernel's queueing discipline) set up by hand in place of netnice. This shows the
//! baseline, and that the experiment itself measures correctly. All others fail with another
//! subject than netnice. (Of these, `burning`, `direct-timing` and `vert-fig6` always measure HTB
//! beside netnice.)

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

mod accuracy;
mod any_program;
pub mod bench;
mod cell;
mod change;
mod channel;
mod check;
mod cost;
mod death;
mod estimate;
mod flood_cost;
mod front_door;
mod ftp_sessions;
mod goodput;
mod guarantees;
mod interfaces;
mod latency;
pub mod many_flows;
mod nice;
mod ntcp;
mod other_tools;
mod programs;
mod queue;
mod quic;
mod quic_pacing;
mod receive;
mod rtc;
mod scale;
pub mod sent_packets;
mod simulated;
pub mod speed;
mod telnet;
mod timing;
mod vert;
mod weights;

pub use bench::Subject;
pub use check::{Bound, Check};
pub use scale::sleepers;

/// One experiment of the registry.
pub struct Experiment {
    /// The experiment's name on the command line.
    pub id: &'static str,
    /// What the experiment measures, in one line.
    pub what: &'static str,
    /// Approximate duration of the full form and of the quick form, in minutes.
    pub minutes: (f64, f64),
    run: fn(&Context, &mut Outcome) -> Result<()>,
}

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct Context {
    /// The limiter under test.
    pub subject: Subject,
    /// Whether to measure only a subset that fits a test run, with the tolerance of a test.
    pub quick: bool,
    /// Measure only the cells (`accuracy`, `queue`) or runs (`nice-fig6` to `nice-fig8`) whose name
    /// contains all of these words, which blanks separate. `None`: all.
    pub only: Option<String>,
    /// Folder in which each run is kept (`nice-fig6` to `nice-fig8`, `direct-channel`, `vert-fig7`)
    /// and from which kept runs are read (`nice-fig6` to `nice-fig8`). `None`: no run is kept.
    pub keep: Option<PathBuf>,
    /// Folder of the plots, which must exist; `None`: no plots.
    pub plots: Option<PathBuf>,
}

impl Context {
    /// Whether `only` selects the cell or run of this name: each of its words is a word of the
    /// name. The case of letters does not matter.
    pub(crate) fn selects(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        let is_named = |word: &str| name.split(' ').any(|one| one == word.to_lowercase());
        let mut words = self.only.iter().flat_map(|only| only.split_whitespace());
        words.all(is_named)
    }

    /// Prints a progress message on standard error.
    pub(crate) fn say(&self, text: impl AsRef<str>) {
        eprintln!("  {}", text.as_ref());
    }

    /// The tolerance for a rate, as a share of the rate: `promise`, but at least 3 % in a quick
    /// run, which shares the machine with other tests.
    pub(crate) fn tolerance(&self, promise: f64) -> f64 {
        if self.quick {
            promise.max(0.03)
        } else {
            promise
        }
    }

    /// The part of the time that is allowed for, if the share `stolen` was stolen from the
    /// processors: all of it in a quick run, which is also a test and has to pass on a machine from
    /// which much time is stolen. In a full run nothing.
    pub(crate) fn allowed(&self, stolen: f64) -> f64 {
        if self.quick { stolen } else { 0.0 }
    }

    /// The value to judge for a measured rate whose promise is `aim`: what the promise would have
    /// carried in the time that is allowed for is added, up to the promise.
    pub(crate) fn with_stolen(&self, rate: f64, aim: f64, stolen: f64) -> f64 {
        if rate < aim {
            (rate + aim * self.allowed(stolen)).min(aim)
        } else {
            rate
        }
    }
}

/// The result of an experiment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The experiment's name.
    pub id: Cow<'static, str>,
    /// The limiter under test.
    pub subject: Subject,
    /// The paper's figures, or the project's promise; null if there are none.
    pub paper: Value,
    /// The measured values.
    pub ours: Value,
    /// Whether every check holds (and there was at least one).
    pub holds: bool,
    /// The checks.
    pub checks: Vec<Check>,
    /// Texts that a reader needs to interpret the numbers.
    pub notes: Vec<String>,
    /// Paths of the plots.
    pub plots: Vec<String>,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Outcome {
    /// The checks that do not hold, one line each; empty if all hold.
    pub fn broken(&self) -> String {
        let broken = self.checks.iter().filter(|check| !check.holds);
        let lines: Vec<String> = broken
            .map(|c| {
                let value = figure(c.value);
                format!("{}: {value} {} (must be {})", c.what, c.unit, c.bound)
            })
            .collect();
        lines.join("\n  ")
    }

    /// Adds a check: `what` was measured as `value` in `unit`, and must lie within `bound`.
    pub(crate) fn check(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        bound: Bound,
    ) {
        self.checks.push(Check {
            what: what.into(),
            value,
            unit: unit.into(),
            bound,
            holds: bound.accepts(value),
        });
    }

    /// Adds a check of a condition: the value is 1 if the condition is true, else 0, and must be 1.
    pub(crate) fn check_that(&mut self, what: impl Into<String>, holds: bool) {
        let value = f64::from(u8::from(holds));
        self.check(what, value, "", Bound::AtLeast(1.0));
    }

    /// Adds a note, a line that is printed below the checks, unless it is there.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Sets the member `key` of `ours`, the values that are shown and not judged. A value that
    /// cannot be serialized becomes null.
    pub(crate) fn ours(&mut self, key: &str, value: impl Serialize) {
        self.ours[key] = serde_json::to_value(value).unwrap_or(Value::Null);
    }

    /// Writes the SVG text that `draw` returns into `NAME.svg` in the folder of the plots; does
    /// nothing if the context has no such folder. Fails if the file cannot be written.
    pub(crate) fn plot(
        &mut self,
        context: &Context,
        name: &str,
        draw: impl FnOnce() -> String,
    ) -> Result<()> {
        let Some(folder) = &context.plots else {
            return Ok(());
        };
        let path = folder.join(format!("{name}.svg"));
        std::fs::write(&path, draw())
            .with_context(|| format!("cannot write {}", path.display()))?;
        self.plots.push(path.display().to_string());
        Ok(())
    }
}

impl Experiment {
    /// Runs the experiment on netnice in the quick form, with a test's tolerance and without plots.
    /// Fails as [`Experiment::run`] does.
    pub fn test(&self) -> Result<Outcome> {
        self.run(&Context {
            subject: Subject::Netnice,
            quick: true,
            only: None,
            keep: None,
            plots: None,
        })
    }

    /// An outcome without values and checks.
    fn outcome(&self, subject: Subject) -> Outcome {
        Outcome {
            id: self.id.into(),
            subject,
            paper: Value::Null,
            ours: json!({}),
            holds: false,
            checks: Vec::new(),
            notes: Vec::new(),
            plots: Vec::new(),
            seconds: 0.0,
        }
    }

    /// Runs the experiment. An error means that the experiment could not be measured, or that a
    /// plot or a kept run could not be read or written. A broken promise is no error: `holds` of
    /// the outcome is `false`.
    pub fn run(&self, context: &Context) -> Result<Outcome> {
        let started = Instant::now();
        let mut outcome = self.outcome(context.subject);
        (self.run)(context, &mut outcome).with_context(|| format!("experiment {}", self.id))?;
        outcome.holds = !outcome.checks.is_empty() && outcome.checks.iter().all(|c| c.holds);
        outcome.seconds = started.elapsed().as_secs_f64();
        Ok(outcome)
    }
}

/// Finds an experiment by its name on the command line; `None` if there is none.
pub fn find(id: &str) -> Option<&'static Experiment> {
    REGISTRY.iter().find(|e| e.id == id)
}

/// Every experiment, in the order in which `all` runs them.
pub const REGISTRY: &[Experiment] = &[
    Experiment {
        id: "nice-tab1",
        what: "paper, table 1: what the filters cost a program that is not limited (loopback)",
        minutes: (3.6, 0.5),
        run: nice::table1,
    },
    Experiment {
        id: "nice-fig3",
        what: "paper, figure 3: a running TCP sender is limited to 512 Kbyte/s after 10 s",
        minutes: (0.6, 0.3),
        run: nice::figure3,
    },
    Experiment {
        id: "nice-fig4",
        what: "paper, figure 4: a running TCP receiver is limited to 512 Kbyte/s after 10 s",
        minutes: (0.6, 0.3),
        run: nice::figure4,
    },
    Experiment {
        id: "nice-fig5",
        what: "paper, figure 5: three FTP sessions come and go under a super-server of 512 Kbyte/s",
        minutes: (1.0, 0.6),
        run: ftp_sessions::run,
    },
    Experiment {
        id: "nice-fig6",
        what: "paper, figure 6: a user types while a server sends files, all on a hub",
        minutes: (14.0, 0.6),
        run: telnet::figure6,
    },
    Experiment {
        id: "nice-fig7",
        what: "paper, figure 7: the same, typing to another server on the hub",
        minutes: (14.0, 0.6),
        run: telnet::figure7,
    },
    Experiment {
        id: "nice-fig8",
        what: "paper, figure 8: the same, servers on a switch, clients behind one of its ports",
        minutes: (14.0, 0.6),
        run: telnet::figure8,
    },
    Experiment {
        id: "accuracy",
        what: "steady rate against the limit: directions × limits × traffic × family × offloads",
        minutes: (45.0, 4.0),
        run: accuracy::run,
    },
    Experiment {
        id: "change",
        what: "how fast a changed limit of a running program holds",
        minutes: (3.0, 0.7),
        run: change::run,
    },
    Experiment {
        id: "other-tools",
        what: "a limit for one program: netnice, HTB and TBF by hand, trickle, wondershaper, TrafficToll",
        minutes: (7.5, 2.5),
        run: other_tools::run,
    },
    Experiment {
        id: "queue",
        what: "what TCP gets of a limit: goodput, order, fairness, delay; beside HTB and CAKE",
        minutes: (65.0, 0.7),
        run: queue::run,
    },
    Experiment {
        id: "latency",
        what: "a ping from a program whose own bulk flows fill its limit",
        minutes: (9.0, 0.8),
        run: latency::run,
    },
    Experiment {
        id: "guarantees",
        what: "minimums on a managed link against floods; sharing, idleness, use of the link",
        minutes: (1.0, 0.5),
        run: guarantees::run,
    },
    Experiment {
        id: "weights",
        what: "what targets with different weights and numbers of flows get of a link",
        minutes: (1.5, 0.5),
        run: weights::run,
    },
    Experiment {
        id: "estimate",
        what: "link --rate auto on a cable between 20 and 5 Mbit/s: ping p95 ≤ 30 ms, use ≥ 80 %",
        minutes: (5.0, 3.4),
        run: estimate::run,
    },
    Experiment {
        id: "receive",
        what: "minimums in the receive direction, and the report of an overrun wire",
        minutes: (0.6, 0.4),
        run: receive::run,
    },
    Experiment {
        id: "two-interfaces",
        what: "a program that sends over two interfaces keeps one limit in sum",
        minutes: (0.6, 0.3),
        run: interfaces::run,
    },
    Experiment {
        id: "burning",
        what: "what a UDP flood far above its limit costs: sends and processor time, beside HTB",
        minutes: (0.3, 0.3),
        run: flood_cost::run,
    },
    Experiment {
        id: "cost",
        what: "the classifier's cost per packet with 1 and with 1,000 targets",
        minutes: (1.5, 0.8),
        run: cost::run,
    },
    Experiment {
        id: "scale",
        what: "1,000 targets: time of one set, memory of the daemon",
        minutes: (1.0, 0.5),
        run: scale::run,
    },
    Experiment {
        id: "programs",
        what: "the list of all programs: 300 with steady rates, 1,000 a second, 100,000 sockets",
        minutes: (2.0, 0.6),
        run: programs::run,
    },
    Experiment {
        id: "programs-cost",
        what: "what the list of all programs costs a program (loopback): nobody looks, a viewer",
        minutes: (4.0, 0.7),
        run: programs::cost,
    },
    Experiment {
        id: "death",
        what: "the daemon is killed 20 times under traffic: the limit holds, the state returns",
        minutes: (1.2, 0.4),
        run: death::run,
    },
    Experiment {
        id: "direct-channel",
        what: "RTC on packets: messages with deadlines beside slices, cells and a kernel flood",
        minutes: (10.2, 0.5),
        run: channel::run,
    },
    Experiment {
        id: "direct-scale",
        what: "65,536 direct flows of 64 programs: opened, sending by their contracts, closed",
        minutes: (3.0, 0.6),
        run: many_flows::run,
    },
    Experiment {
        id: "direct-speed",
        what: "packets a second of 64 and 65,536 direct flows and of two links, beside the kernel's",
        minutes: (2.5, 0.3),
        run: speed::run,
    },
    Experiment {
        id: "direct-quic",
        what: "quinn over flows: 16 connections with cells of 1 to 20 Mbit/s, and one without",
        minutes: (0.8, 0.3),
        run: quic::run,
    },
    Experiment {
        id: "quic-pacing",
        what: "gaps between packets and processor time: quinn's pacer, and netnice-core's in quinn",
        minutes: (2.5, 0.3),
        run: quic_pacing::run,
    },
    Experiment {
        id: "cell-fig3",
        what: "CELL, figure 3: ten shaped connections on one link, and a policer at the receiver",
        minutes: (0.6, 0.1),
        run: cell::real::figure3,
    },
    Experiment {
        id: "cell-fig4",
        what: "CELL, figure 4: transient overload, proportional sharing, priorities",
        minutes: (0.3, 0.1),
        run: cell::real::figure4,
    },
    Experiment {
        id: "cell-fig3-sim",
        what: "CELL, figure 3, simulated: ten shaped connections on one link, and a policer",
        minutes: (0.1, 0.05),
        run: cell::figure3,
    },
    Experiment {
        id: "cell-fig4-sim",
        what: "CELL, figure 4, simulated: transient overload, proportional sharing, priorities",
        minutes: (0.1, 0.05),
        run: cell::figure4,
    },
    Experiment {
        id: "cell-fig5",
        what: "CELL, figure 5: cycles per cell, 65,536 connections that all start in one instant",
        minutes: (1.5, 0.1),
        run: cell::cycles::figure5,
    },
    Experiment {
        id: "cell-fig6",
        what: "CELL, figure 6: cycles per cell of 1 to 1,048,576 connections",
        minutes: (1.5, 0.2),
        run: cell::cycles::figure6,
    },
    Experiment {
        id: "cell-dma",
        what: "CELL, section 4.4, simulated: cells are fetched from host memory just in time",
        minutes: (0.2, 0.05),
        run: cell::fetch_just_in_time,
    },
    Experiment {
        id: "ntcp-fig4-sim",
        what: "NTCP, figure 4, simulated: packets in each period of a slice",
        minutes: (0.1, 0.05),
        run: ntcp::figure4_simulated,
    },
    Experiment {
        id: "ntcp-fig4",
        what: "NTCP, figure 4: packets of a program's own TCP in each period of its slice",
        minutes: (3.2, 0.4),
        run: ntcp::real::figure4,
    },
    Experiment {
        id: "ntcp-rate",
        what: "NTCP, section 4: rate of a program's own TCP for slices of 1.2 to 120 ms in 200 ms",
        minutes: (4.5, 0.5),
        run: ntcp::real::rates,
    },
    Experiment {
        id: "ntcp-fig5",
        what: "NTCP, figure 5: three connections of programs' own TCP come one by one",
        minutes: (1.1, 0.3),
        run: ntcp::real::figure5,
    },
    Experiment {
        id: "ntcp-fig6",
        what: "paper, figure 6: a TCP sender with 20 % of a processor and extra beside carnage",
        minutes: (1.5, 0.6),
        run: ntcp::processor_time::figure6,
    },
    Experiment {
        id: "ntcp-fig7",
        what: "paper, figure 7: the processor time that TCP needs for a rate, beside carnage",
        minutes: (13.0, 0.8),
        run: ntcp::processor_time::figure7,
    },
    Experiment {
        id: "ntcp-tab1",
        what: "paper, table 1: three TCP senders with slices of link and processor, and carnage",
        minutes: (0.8, 0.3),
        run: ntcp::processor_time::table1,
    },
    Experiment {
        id: "cpu-auto",
        what: "random mixes of senders with slices of the link and cpu auto, beside carnage",
        minutes: (8.0, 1.8),
        run: ntcp::packet_costs::mixes,
    },
    Experiment {
        id: "ntcp-raw",
        what: "NTCP, section 4: speed of a program's own TCP beside the kernel's, and its cost",
        minutes: (7.5, 1.2),
        run: ntcp::raw::speed,
    },
    Experiment {
        id: "vert-fig5a",
        what: "VERT, figure 5a: six UDP senders with slices of a link, pings are answered meanwhile",
        minutes: (1.1, 0.1),
        run: vert::real::figure5a,
    },
    Experiment {
        id: "vert-fig5b",
        what: "VERT, figure 5b: slices come one by one, the first sender has the rest",
        minutes: (0.6, 0.2),
        run: vert::real::figure5b,
    },
    Experiment {
        id: "vert-fig6",
        what: "VERT, figure 6: two senders without a promise, the driver against the kernel's queue",
        minutes: (2.2, 0.2),
        run: vert::real::figure6,
    },
    Experiment {
        id: "vert-fig7",
        what: "VERT, figure 7: two programs receive, the second slows down, the first is unaffected",
        minutes: (0.8, 0.2),
        run: vert::receive::figure7,
    },
    Experiment {
        id: "any-program",
        what: "ordinary programs under cell, slice and min, scheduled by the driver (HTB beside)",
        minutes: (7.0, 0.6),
        run: any_program::run,
    },
    Experiment {
        id: "direct-timing",
        what: "how evenly the driver sends a cell contract's packets, beside HTB and TBF, idle and busy",
        minutes: (6.0, 0.4),
        run: timing::run,
    },
    Experiment {
        id: "driver-beside",
        what: "how late the driver sends beside a program with an exact reservation of 60 %",
        minutes: (2.0, 0.4),
        run: timing::reserved::run,
    },
    Experiment {
        id: "vert-fig5a-sim",
        what: "VERT, figure 5a, simulated: six slices of a link, and a ping beside them",
        minutes: (0.1, 0.05),
        run: vert::figure5a_simulated,
    },
    Experiment {
        id: "vert-fig5b-sim",
        what: "VERT, figure 5b, simulated: slices come one by one, the first has the rest",
        minutes: (0.1, 0.05),
        run: vert::figure5b_simulated,
    },
    Experiment {
        id: "rtc-fig5",
        what: "RTC figure 5 on packets: channels beside best effort that offers more and more",
        minutes: (8.0, 0.5),
        run: rtc::figure5,
    },
    Experiment {
        id: "rtc-fig6",
        what: "RTC figure 6 on packets: a channel that sends more than its contract",
        minutes: (5.0, 0.6),
        run: rtc::figure6,
    },
    Experiment {
        id: "rtc-fig7a",
        what: "RTC figure 7a on packets: best effort without preemption points",
        minutes: (4.8, 0.8),
        run: rtc::figure7a,
    },
    Experiment {
        id: "rtc-fig7b",
        what: "RTC figure 7b on packets: early messages first, preemption between messages only",
        minutes: (2.5, 0.4),
        run: rtc::figure7b,
    },
    Experiment {
        id: "rtc-p",
        what: "RTC 3.3: packets between preemption points, and their size: channels and throughput",
        minutes: (5.0, 1.5),
        run: rtc::packet_blocks,
    },
    Experiment {
        id: "rtc-hops",
        what: "channels over a router beside floods on every cable, with loaded processors",
        minutes: (11.0, 0.7),
        run: rtc::hops,
    },
    Experiment {
        id: "rtc-carry",
        what: "iperf3 -u over netnice channel carry, beside floods on every cable",
        minutes: (2.5, 0.6),
        run: rtc::carry,
    },
    Experiment {
        id: "rtc-scale",
        what: "1,000 channels over a router: set-ups in a second, memory, and what keeps them",
        minutes: (1.5, 0.6),
        run: rtc::scale,
    },
    Experiment {
        id: "rtc-layer",
        what: "a packet of a channel beside a datagram of plain UDP: processor time",
        minutes: (1.2, 0.2),
        run: rtc::layer,
    },
    Experiment {
        id: "rtc-fig5-sim",
        what: "RTC, figure 5, simulated: best effort offers ever more beside real-time channels",
        minutes: (0.2, 0.05),
        run: rtc::figure5_simulated,
    },
    Experiment {
        id: "rtc-fig6-sim",
        what: "RTC, figure 6, simulated: a channel sends at multiples of its contract",
        minutes: (0.2, 0.05),
        run: rtc::figure6_simulated,
    },
    Experiment {
        id: "rtc-fig7b-sim",
        what: "RTC, figure 7b, simulated: early messages first, preemption between messages only",
        minutes: (0.2, 0.05),
        run: rtc::figure7b_simulated,
    },
];

/// Formats a number with up to four decimal digits: fewer for larger numbers, none for whole
/// numbers and from 1,000 on.
pub fn figure(value: f64) -> String {
    let size = value.abs();
    let digits = match size {
        _ if value.fract() == 0.0 && size < 1e6 => 0,
        _ if size >= 1000.0 => 0,
        _ if size >= 100.0 => 1,
        _ if size >= 1.0 => 2,
        _ if size >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests;
