//! Counters for clients that poll.
//!
//! The counters are read only if the last reading is old: a client that polls once a second gets
//! the reading of the service's own tick, so its polling costs no additional reading.

use std::collections::BTreeMap;

use netnice_api::{LinkDoc, Moving, UsersDoc, Watch, WatchDoc, Watched, WatchedLink};
use netnice_core::admission::TargetId;
use netnice_core::contract::Direction;
use netnice_core::meter::Meter;
use netnice_core::units::Nanos;

use super::view::View;
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::{Host, Interface, Inventory};
use crate::ledger::{Held, Managed};
use crate::meter::Measured;
use crate::meter::metrics::serve::Page;
use crate::meter::metrics::{self, Tally};
use crate::reconcile::Reconciler;

/// The counters of all targets and links.
pub(super) fn watch<H: Host>(
    reconciler: &mut Reconciler<H>,
    measured: &mut Measured,
    asked: &Watch,
    now: Now,
) -> Result<WatchDoc, Denied> {
    let (doc, _) = watch_all(reconciler, measured, Nanos(asked.within_ns), now)?;
    Ok(doc)
}

/// The last metrics page, if it is younger than [`FRESH`].
pub(super) fn fresh_page(measured: &Measured, now: Now) -> Option<Page> {
    let (at, page) = measured.page.as_ref()?;
    (now.monotonic.since(*at) < FRESH).then(|| page.clone())
}

/// A new metrics page, from counters that are at most half a second old.
pub(super) fn metrics<H: Host>(
    reconciler: &mut Reconciler<H>,
    measured: &mut Measured,
    users: &UsersDoc,
    now: Now,
) -> Page {
    let told = watch_all(reconciler, measured, FRESH, now);
    let tally = Tally {
        repairs: reconciler.standing.repairs.total,
        ..measured.tally
    };
    let page: Page = match told {
        Ok((doc, meters)) => metrics::page(&doc, &meters, users, &tally).into(),
        Err(denied) => {
            reconciler.journal.judge(now, "metrics", Err(denied));
            metrics::page(&WatchDoc::default(), &[], users, &tally).into()
        }
    };
    measured.page = Some((now.monotonic, page.clone()));
    page
}

/// The counters of all targets and links, and all counts of each target from the same reading.
fn watch_all<H: Host>(
    reconciler: &mut Reconciler<H>,
    measured: &mut Measured,
    within: Nanos,
    now: Now,
) -> Result<(WatchDoc, Vec<Meter>), Denied> {
    if measured.rates.read_within(within, now.monotonic).is_none() {
        measured.read(&mut reconciler.host, &reconciler.books.ledger, now)?;
    }
    View::of(reconciler, measured).all_that_moves(now)
}

impl<H: Inventory> View<'_, H> {
    fn all_that_moves(&mut self, now: Now) -> Result<(WatchDoc, Vec<Meter>), Denied> {
        let read_at = self
            .measured
            .rates
            .read_within(Nanos(u64::MAX), now.monotonic);
        let interfaces = self.machine.interfaces()?;
        let mut held: Vec<&Held> = self.ledger().held().collect();
        held.sort_by_cached_key(|held| held.entry.target.to_string());
        let places: BTreeMap<TargetId, usize> = held
            .iter()
            .enumerate()
            .map(|(place, held)| (held.entry.id, place))
            .collect();
        let target = |held: &&Held| Watched {
            inside: held.entry.parent.and_then(|id| places.get(&id).copied()),
            ..self.watched(held, &interfaces, now)
        };
        let links = self.ledger().links();
        let meters = held
            .iter()
            .map(|held| self.measured.rates.meter(held.id))
            .collect();
        let doc = WatchDoc {
            at_ns: read_at.unwrap_or(now.monotonic).0,
            links: links
                .map(|link| self.watched_link(link, &interfaces))
                .collect(),
            targets: held.iter().map(target).collect(),
        };
        Ok((doc, meters))
    }

    fn watched(&self, held: &Held, interfaces: &[Interface], now: Now) -> Watched {
        let effective = held.effective(self.ledger());
        let bits = |rate: netnice_core::units::Rate| rate.bits_per_second();
        let paces = self
            .measured
            .rates
            .pace(held.id, now.monotonic)
            .unwrap_or_default();
        let meter = self.measured.rates.meter(held.id);
        let [sends, receives] = Direction::ALL.map(|direction| {
            let pace = paces[direction as usize];
            Moving {
                rate: pace.rate.0,
                wait_ns: meter.counters(direction).queue_delay_ns,
                drops: pace.drops,
                held: pace.held,
            }
        });
        Watched {
            target: held.entry.target.to_string(),
            inside: None,
            up: effective.up().map(bits),
            down: effective.down().map(bits),
            both: effective.both().map(bits),
            min: effective.min(Direction::Up).map(bits),
            min_down: effective.min(Direction::Down).map(bits),
            sends,
            receives,
            degraded: self.target_faults(held, interfaces),
        }
    }

    fn watched_link(&self, managed: &Managed, interfaces: &[Interface]) -> WatchedLink {
        let doc = LinkDoc::new(&managed.link, self.ledger().promised(&managed.link));
        WatchedLink {
            link: doc.link,
            up: doc.up.as_ref().map(|capacity| capacity.rate),
            down: doc.down.as_ref().map(|capacity| capacity.rate),
            up_held: doc.up.map_or(0, |capacity| capacity.held),
            down_held: doc.down.map_or(0, |capacity| capacity.held),
            degraded: self.link_faults(managed, interfaces),
        }
    }
}

/// How long a metrics page stays fresh.
const FRESH: Nanos = Nanos::from_millis(500);
