//! The measured values ([`Measurements`]): the last counts and the rates between the last two
//! readings, the history, the numbers of grants and refusals, and the last metrics page. A reading
//! ([`Measurements::read`]) fails if the kernel's counts cannot be read.

use netnice_core::contract::Direction;

use super::commands::Commands;
use super::history::History;
use super::metrics::Tally;
use super::metrics::http::Page;
use super::{Rates, meter};
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::{InterfaceTraffic, Meter};
use crate::ledger::Ledger;
use netnice_core::units::Instant;

/// The measured values of all targets and managed links.
#[derive(Default)]
pub(crate) struct Measurements {
    /// The results of the last two readings.
    pub rates: Rates,
    /// The results of earlier readings.
    pub history: History,
    /// The commands of targets of processes.
    pub commands: Commands,
    /// Numbers of grants and refusals. The number of repairs stays 0 here: the reconciler has it.
    pub tally: Tally,
    /// The last metrics page, and its time; `None` before the first.
    pub page: Option<(Instant, Page)>,
}

impl Measurements {
    /// Reads all counts, for rates, history and the state of links.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read. If only those of the interfaces cannot, the counts of
    /// targets are recorded.
    pub(crate) fn read(
        &mut self,
        machine: &mut impl Meter,
        ledger: &Ledger,
        now: Now,
    ) -> Result<(), RequestError> {
        let sample = machine.sample()?;
        let meters: Vec<_> = ledger
            .held()
            .map(|held| {
                let counts = sample.targets.get(&held.id).copied().unwrap_or_default();
                (held.id, meter(&counts, &held.in_force()))
            })
            .collect();
        self.rates.targets(now.monotonic, &meters);
        self.history.add(now.monotonic, &meters);
        let links: Vec<_> = ledger
            .links()
            .map(|managed| {
                let usable = managed.link.shaped(Direction::Down);
                (managed.link.name.to_string(), usable)
            })
            .collect();
        if !links.is_empty() {
            let seen: InterfaceTraffic = machine.interface_traffic()?;
            self.rates.links(now.monotonic, &seen, &links);
        }
        Ok(())
    }
}
