//! The command line of `netnice top`. Output is a [`Top`]. Fails if the interval does not parse, or
//! is not between 100 ms and 1 h.

use clap::Args;
use netnice_core::units::Nanos;

use super::{BadUsage, Verb, quantity};

/// The options of `netnice top`.
#[derive(Debug)]
pub(crate) struct Top {
    /// Time between two tables; 100 ms to 1 h.
    pub interval: Nanos,
    /// Number of plain tables; `None`: the full screen, or tables without end.
    pub rounds: Option<u32>,
    /// True: print one frame of the full screen as text.
    pub once: bool,
    /// True: show targets only, so that no program is counted.
    pub targets: bool,
}

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Time between two updates
    #[arg(long, short = 'd', value_name = "TIME", default_value = "1s")]
    interval: String,
    /// Print N plain tables, then end
    #[arg(
        long,
        short = 'n',
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    rounds: Option<u32>,
    /// Print one frame with all targets, then end
    #[arg(long, conflicts_with_all = ["rounds", "json"])]
    once: bool,
    /// Show only targets, and count no other program
    #[arg(long)]
    targets: bool,
}

impl TopArgs {
    /// Converts the arguments to the verb. Fails for the reasons in the module's documentation.
    pub(super) fn into_verb(self) -> Result<Verb, BadUsage> {
        let interval = quantity("--interval", &self.interval)?;
        if !(MIN_INTERVAL..=MAX_INTERVAL).contains(&interval) {
            return Err(BadUsage::OutOfRange {
                option: "--interval",
                actual: interval.to_string(),
                limits: format!("{MIN_INTERVAL} to {MAX_INTERVAL}"),
            });
        }
        Ok(Verb::Top(Top {
            interval,
            rounds: self.rounds,
            once: self.once,
            targets: self.targets,
        }))
    }
}

/// Text behind the options in `--help`.
pub(super) const HELP: &str = "\
On a terminal top fills the screen, and ? shows the keys. Without a terminal, or with TERM=dumb, it
prints plain tables in sequence. With --json it prints the document of `show --all --json` on one
line each time. The daemon counts programs only while top runs. NO_COLOR turns colours off; without
a UTF-8 locale all output is ASCII.";

/// Bounds of `--interval`: a user cannot read faster tables, and slower ones show no trend.
const MIN_INTERVAL: Nanos = Nanos::from_millis(100);
const MAX_INTERVAL: Nanos = Nanos::from_secs(3600);
