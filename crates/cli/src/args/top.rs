//! The command line of `netnice top`.

use clap::Args;
use netnice_core::units::Nanos;

use super::{BadUsage, Verb, quantity};

/// What [`Verb::Top`] shows.
#[derive(Debug)]
pub(crate) struct Top {
    /// Time between two tables; 100 ms to 1 h.
    pub interval: Nanos,
    /// Number of tables; `None` for no end.
    pub rounds: Option<u32>,
    /// Print one frame of the full screen as text.
    pub once: bool,
}

#[derive(Debug, Args)]
pub(super) struct TypedTop {
    /// Time between two looks
    #[arg(long, short = 'd', value_name = "TIME", default_value = "1s")]
    interval: String,
    /// Print so many plain tables, then end
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Print one frame with all targets, then end
    #[arg(long, conflicts_with_all = ["rounds", "json"])]
    once: bool,
}

impl TypedTop {
    /// The verb that the typed form means.
    pub(super) fn means(self) -> Result<Verb, BadUsage> {
        let interval = quantity("--interval", &self.interval)?;
        if !(SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval) {
            return Err(BadUsage::Beyond {
                option: "--interval",
                actual: interval.to_string(),
                limits: format!("{SHORTEST_INTERVAL} to {LONGEST_INTERVAL}"),
            });
        }
        Ok(Verb::Top(Top {
            interval,
            rounds: self.rounds,
            once: self.once,
        }))
    }
}

/// Text behind the options in `--help`.
pub(super) const HELP: &str = "\
On a terminal this fills the screen: ? shows the keys. Elsewhere, and where TERM is dumb, plain
tables follow each other. With --json each is one line as `show --json` prints it.
NO_COLOR leaves colours away; without a UTF-8 locale everything is ASCII.";

/// Bounds of `--interval`: a user cannot read faster tables, and slower ones show no course.
const SHORTEST_INTERVAL: Nanos = Nanos::from_millis(100);
const LONGEST_INTERVAL: Nanos = Nanos::from_secs(3600);
