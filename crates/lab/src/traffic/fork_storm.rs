//! The program `netnice-lab traffic fork-storm` forks children at a bounded rate all the time. Each
//! child uses some processor time and ends. The program ends at the line `stop`, at the end of its
//! standard input, and at the latest after the time of `--for-s`; it then prints no report.
//!
//! The program fails if it cannot fork, for an unknown command, and if its standard input cannot be
//! read.

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::carnage::spin;
use super::run::RunArgs;
use super::words;
use crate::sys;

/// The arguments of `netnice-lab traffic fork-storm`.
#[derive(Debug, Clone, clap::Args)]
pub struct ForkStormArgs {
    /// Children a second.
    #[arg(long, default_value_t = 500)]
    rate: u32,
    /// How long each child runs, in microseconds of wall time.
    #[arg(long, default_value_t = 200)]
    child_us: u64,
    /// End after so many seconds at the latest.
    #[arg(long, default_value_t = 600)]
    for_s: u64,
    /// Accepted and ignored: the program begins at once and ends on command.
    #[command(flatten)]
    _run: RunArgs,
}

/// A program that forks children all the time: see the module.
#[derive(Debug, Clone)]
pub struct ForkStorm {
    pub(super) args: Vec<String>,
}

impl ForkStorm {
    /// So many children a second.
    pub fn new(rate: u32) -> ForkStorm {
        ForkStorm {
            args: words(&["fork-storm", "--rate", &rate.to_string()]),
        }
    }
}

/// Runs the program. Fails as the module says.
pub fn main(args: &ForkStormArgs) -> Result<()> {
    let started = Instant::now();
    let until = started + Duration::from_secs(args.for_s);
    let gap = Duration::from_secs(1) / args.rate.max(1);
    println!("{}", json!({"ready": true, "pid": std::process::id()}));
    let mut next = started;
    let mut running = 0;
    while Instant::now() < until {
        if sys::readable(rustix::stdio::stdin(), next - Instant::now().min(next)) {
            let mut command = String::new();
            std::io::stdin().lock().read_line(&mut command)?;
            match command.trim() {
                "go" => continue,
                "" | "stop" => break,
                other => bail!("`{other}` is no command"),
            }
        }
        running -= sys::reap_children()?;
        // Behind time it does not catch up, and without processor time for its children it makes
        // no more.
        next = (next + gap).max(Instant::now());
        if running >= MOST_CHILDREN {
            continue;
        }
        match sys::fork_child().context("cannot fork")? {
            Some(_) => running += 1,
            None => {
                sys::end_with_parent()?;
                spin(Instant::now() + Duration::from_micros(args.child_us));
                std::process::exit(0);
            }
        }
    }
    std::process::exit(0);
}

/// Children at the same time.
const MOST_CHILDREN: u32 = 64;
