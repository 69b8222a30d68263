//! The counters of all targets and links for clients that poll: `netnice top` and the readers of
//! the metrics page.
//!
//! The counters are read only if the last reading is older than the client accepts. While there are
//! targets or links, the service reads them each second, so a client that accepts these readings
//! causes no additional one. If the counters or the interfaces cannot be read, the request of
//! `netnice top` fails, and the metrics page has no targets and links.

use std::collections::BTreeMap;

use netnice_api::{LinkDoc, Traffic, UsersDoc, Watch, WatchDoc, Watched, WatchedLink};
use netnice_core::admission::TargetId;
use netnice_core::contract::Direction;
use netnice_core::meter::Meter;
use netnice_core::units::Nanos;

use super::view::View;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::{Host, Interface};
use crate::ledger::{HeldTarget, ManagedLink};
use crate::meter::Measurements;
use crate::meter::metrics::http::Page;
use crate::meter::metrics::{self, Tally};
use crate::reconcile::Reconciler;
use crate::user_names::user_name;

/// The counters of all targets and links, at most as old as the request accepts.
///
/// # Errors
/// If the counters or the interfaces cannot be read.
pub(super) fn watch<H: Host>(
    reconciler: &mut Reconciler<H>,
    measurements: &mut Measurements,
    request: &Watch,
    now: Now,
) -> Result<WatchDoc, RequestError> {
    let (doc, _) = watch_all(reconciler, measurements, Nanos(request.within_ns), now)?;
    Ok(doc)
}

/// The last metrics page; `None` if there is none that is younger than [`FRESH`].
pub(super) fn fresh_page(measurements: &Measurements, now: Now) -> Option<Page> {
    let (at, page) = measurements.page.as_ref()?;
    (now.monotonic.since(*at) < FRESH).then(|| page.clone())
}

/// A new metrics page, from counters that are at most half a second old. If they cannot be read,
/// the error is logged, and the page has no targets and links.
pub(super) fn metrics<H: Host>(
    reconciler: &mut Reconciler<H>,
    measurements: &mut Measurements,
    users: &UsersDoc,
    now: Now,
) -> Page {
    let watched = watch_all(reconciler, measurements, FRESH, now);
    let tally = Tally {
        repairs: reconciler.deviations.repairs.total,
        ..measurements.tally
    };
    let page: Page = match watched {
        Ok((doc, meters)) => metrics::page(&doc, &meters, users, &tally).into(),
        Err(error) => {
            reconciler.journal.log_result(now, "metrics", Err(error));
            metrics::page(&WatchDoc::default(), &[], users, &tally).into()
        }
    };
    measurements.page = Some((now.monotonic, page.clone()));
    page
}

/// The counters of all targets and links, and all counts of each target from the same reading.
fn watch_all<H: Host>(
    reconciler: &mut Reconciler<H>,
    measurements: &mut Measurements,
    within: Nanos,
    now: Now,
) -> Result<(WatchDoc, Vec<Meter>), RequestError> {
    if measurements
        .rates
        .read_within(within, now.monotonic)
        .is_none()
    {
        measurements.read(&mut reconciler.host, &reconciler.books.ledger, now)?;
    }
    let ledger = &reconciler.books.ledger;
    measurements
        .commands
        .refresh(&mut reconciler.host, ledger, now.monotonic);
    View::of(reconciler, measurements).watch_doc(now)
}

impl<H: Host> View<'_, H> {
    fn watch_doc(&mut self, now: Now) -> Result<(WatchDoc, Vec<Meter>), RequestError> {
        let read_at = self
            .measurements
            .rates
            .read_within(Nanos(u64::MAX), now.monotonic);
        let interfaces = self.machine.interfaces()?;
        let mut held: Vec<&HeldTarget> = self.ledger().held().collect();
        held.sort_by_cached_key(|held| held.entry.target.to_string());
        let places: BTreeMap<TargetId, usize> = held
            .iter()
            .enumerate()
            .map(|(place, held)| (held.entry.id, place))
            .collect();
        let target = |held: &&HeldTarget| Watched {
            inside: held.entry.parent.and_then(|id| places.get(&id).copied()),
            ..self.watched(held, &interfaces, now)
        };
        let links = self.ledger().links();
        let meters = held
            .iter()
            .map(|held| self.measurements.rates.meter(held.id))
            .collect();
        let doc = WatchDoc {
            at_ns: read_at.unwrap_or(now.monotonic).0,
            processors_at_ns: self.processors.measured_at().map_or(0, |at| at.0),
            links: links
                .map(|link| self.watched_link(link, &interfaces))
                .collect(),
            targets: held.iter().map(target).collect(),
        };
        Ok((doc, meters))
    }

    fn watched(&self, held: &HeldTarget, interfaces: &[Interface], now: Now) -> Watched {
        let effective = held.effective(self.ledger());
        let bits = |rate: netnice_core::units::Rate| rate.bits_per_second();
        let rates = self
            .measurements
            .rates
            .present_rates(held.id, now.monotonic)
            .unwrap_or_default();
        let meter = self.measurements.rates.meter(held.id);
        let command = self.measurements.commands.of(held.id);
        let [sends, receives] = Direction::ALL.map(|direction| {
            let pace = rates[direction as usize];
            Traffic {
                rate: pace.rate.0,
                wait_ns: meter.counters(direction).queue_delay_ns,
                drops: pace.drops,
                held: pace.held,
            }
        });
        Watched {
            target: held.entry.target.to_string(),
            command: command.map(|command| command.name.clone()),
            user: command.map(|command| user_name(command.uid)),
            inside: None,
            up: effective.up().map(bits),
            down: effective.down().map(bits),
            both: effective.both().map(bits),
            min: effective.min(Direction::Up).map(bits),
            min_down: effective.min(Direction::Down).map(bits),
            sends,
            receives,
            processor_time: self.processor_time(held),
            degraded: self.target_faults(held, interfaces),
            quotas: self.traffic_quotas(held),
        }
    }

    fn watched_link(&self, managed: &ManagedLink, interfaces: &[Interface]) -> WatchedLink {
        let doc = LinkDoc::new(&managed.link, self.ledger().promised(&managed.link));
        WatchedLink {
            link: doc.link,
            up: doc.up.as_ref().map(|capacity| capacity.rate),
            down: doc.down.as_ref().map(|capacity| capacity.rate),
            up_held: doc.up.as_ref().map_or(0, |capacity| capacity.held),
            down_held: doc.down.as_ref().map_or(0, |capacity| capacity.held),
            up_estimated: doc.up.is_some_and(|capacity| capacity.min.is_some()),
            down_estimated: doc.down.is_some_and(|capacity| capacity.min.is_some()),
            degraded: self
                .link_faults(managed, interfaces)
                .into_iter()
                .chain(self.estimate_fault(managed))
                .collect(),
        }
    }
}

/// How long a metrics page is used again, and the largest age of its counters.
const FRESH: Nanos = Nanos::from_millis(500);
