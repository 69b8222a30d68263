//! Puts the estimates of links into force ([`Reconciler::follow_estimates`]).
//!
//! Only the rates of classes change: what is promised depends on the lower bounds of the estimates.
//! So nothing is admitted again, no target is degraded, and the state file is not written for each
//! estimate: [`Reconciler::save_estimates`] writes it once a minute if an estimate has changed by a
//! tenth, and at the end of the daemon. So after the daemon was killed, the next
//! daemon begins with the estimate in the file.
//!
//! If the kernel takes long for a change, because many targets have classes on the link, later
//! changes wait: changes take a twentieth of the time at most. Errors go to the journal, once as
//! long as they stay the same. An estimate that has become half as large or twice as large is
//! logged, at most once a minute for each link.

use std::collections::BTreeMap;

use netnice_core::contract::{Direction, IfName};
use netnice_core::units::{Instant, Nanos, Rate};

use super::{Reconciler, install};
use crate::clock::Now;
use crate::error::RequestError;
use crate::estimate::{EstimateState, Estimated, EstimatedLink};
use crate::host::Host;

/// The state of the estimates of all links: the states of the measurements, and the changes of
/// rates that wait to be installed.
#[derive(Debug, Default)]
pub(crate) struct Estimates {
    states: BTreeMap<IfName, EstimateState>,
    /// Changes that wait, by link.
    waiting: BTreeMap<IfName, [Option<Rate>; 2]>,
    /// The next change is installed from this time on.
    install_from: Instant,
    /// The rates that were logged last, and when.
    logged: BTreeMap<IfName, (Instant, [Option<Rate>; 2])>,
    /// The rates in the state file, and when it was written.
    saved: (Instant, BTreeMap<IfName, [Option<Rate>; 2]>),
}

impl Estimates {
    /// The state of the measurement of a link; `None` before its first message.
    pub(crate) fn state(&self, link: &IfName) -> Option<&EstimateState> {
        self.states.get(link)
    }

    /// When a waiting change is to be installed; `None` if none waits.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.install_from)
    }

    /// Delays the next change by 20 times `took`, the duration of the last one.
    pub(crate) fn delay(&mut self, took: Nanos, now: Now) {
        let next = now.monotonic.after(Nanos(took.0.saturating_mul(20)));
        self.install_from = self.install_from.max(next);
    }
}

impl<H: Host> Reconciler<H> {
    /// The links that are estimated, and their present rates.
    pub(crate) fn estimated_links(&self) -> Vec<(EstimatedLink, [Option<Rate>; 2])> {
        let links = self.books.ledger.links();
        let estimated = links.filter(|managed| managed.link.is_estimated());
        estimated
            .map(|managed| {
                let capacities = Direction::ALL.map(|d| managed.link.capacity(d));
                let link = EstimatedLink {
                    name: managed.link.name.clone(),
                    reflectors: managed.reflectors.clone(),
                    bounds: capacities.map(|capacity| capacity?.bounds()),
                };
                let rates = capacities.map(|capacity| {
                    let capacity = capacity?;
                    capacity.bounds().map(|_| capacity.rate)
                });
                (link, rates)
            })
            .collect()
    }

    /// Takes a message about a link, and puts its rates into force.
    pub(crate) fn handle_estimated(&mut self, message: Estimated, now: Now) {
        let old = self.estimates.states.get(&message.name);
        let (old, new) = (old.and_then(|it| it.fault.as_ref()), &message.state.fault);
        if old != new.as_ref() {
            match new {
                Some(fault) => {
                    let text = format!("the estimate of {}: {fault}", message.name);
                    self.journal.warn(now, text);
                }
                None if old.is_some() => {
                    let text = format!("the estimate of {}: a host replies", message.name);
                    self.journal.note(now, text);
                }
                None => {}
            }
        }
        self.estimates
            .states
            .insert(message.name.clone(), message.state);
        self.estimates.waiting.insert(message.name, message.rates);
        self.follow_estimates(now);
    }

    /// Puts the waiting rates into force, unless the last change was too short ago.
    pub(crate) fn follow_estimates(&mut self, now: Now) {
        if now.monotonic < self.estimates.install_from {
            return;
        }
        let waiting = std::mem::take(&mut self.estimates.waiting);
        if waiting.is_empty() {
            return;
        }
        let before = self.deviations.desired_state(&self.books.ledger);
        let mut ledger = self.books.ledger.clone();
        let mut has_changed = false;
        for (name, rates) in &waiting {
            has_changed |= ledger.set_estimates(name, *rates);
        }
        if !has_changed {
            return;
        }
        let after = self.deviations.desired_state(&ledger);
        let installed = install::install(&mut self.host, &before, &after, &[]);
        if installed.is_ok() {
            self.books.ledger = ledger;
            for name in waiting.keys() {
                self.log_estimate(name, now);
            }
        } else {
            self.estimates.waiting = waiting;
            self.estimates.install_from = now.monotonic.after(RETRY_PAUSE);
        }
        self.journal
            .log_result(now, "following the estimate of a link", installed.map(drop));
    }

    fn rates_of(&self, name: &IfName) -> Option<[Option<Rate>; 2]> {
        let managed = self.books.ledger.link(name.as_str())?;
        managed.link.is_estimated().then(|| {
            Direction::ALL.map(|direction| {
                let capacity = managed.link.capacity(direction)?;
                capacity.bounds().map(|_| capacity.rate)
            })
        })
    }

    fn log_estimate(&mut self, name: &IfName, now: Now) {
        let Some(rates) = self.rates_of(name) else {
            return;
        };
        tracing::debug!(link = %name, ?rates, "estimated");
        if let Some((at, logged)) = self.estimates.logged.get(name) {
            let is_new = differ(*logged, rates, 50);
            if !is_new || now.monotonic.since(*at) < LOG_PERIOD {
                return;
            }
        }
        let texts = Direction::ALL
            .iter()
            .zip(rates)
            .filter_map(|(direction, rate)| Some(format!("{} {:#}", direction.word(), rate?)));
        let texts: Vec<String> = texts.collect();
        let text = format!("{name} is estimated to carry {}", texts.join(", "));
        self.journal.note(now, text);
        let logged = (now.monotonic, rates);
        self.estimates.logged.insert(name.clone(), logged);
    }

    /// Writes the state file if the estimates have changed since the last time, a minute ago or
    /// earlier; with `at_end`, at any time. Forgets links that are not estimated any more.
    pub(crate) fn save_estimates(&mut self, at_end: bool, now: Now) {
        let rates: BTreeMap<IfName, _> = self
            .estimated_links()
            .into_iter()
            .map(|(link, rates)| (link.name, rates))
            .collect();
        let estimates = &mut self.estimates;
        estimates.states.retain(|name, _| rates.contains_key(name));
        estimates.waiting.retain(|name, _| rates.contains_key(name));
        estimates.logged.retain(|name, _| rates.contains_key(name));
        let (at, saved) = &estimates.saved;
        let is_due = at_end || now.monotonic.since(*at) >= SAVE_PERIOD;
        let is_new = |(name, rates): (&IfName, &[Option<Rate>; 2])| {
            saved
                .get(name)
                .is_none_or(|saved| differ(*saved, *rates, 10))
        };
        if !is_due || !rates.iter().any(is_new) {
            return;
        }
        estimates.saved = (now.monotonic, rates);
        let in_force = self.host.is_enforcing();
        let (ledger, rollbacks) = (self.books.ledger.clone(), self.books.rollbacks.clone());
        let written: Result<(), RequestError> =
            self.books.save(&ledger, &rollbacks, true, in_force);
        self.journal
            .log_result(now, "writing the state file", written);
    }
}

/// True if a rate has changed by `percent` of the larger one or more.
fn differ(old: [Option<Rate>; 2], new: [Option<Rate>; 2], percent: u64) -> bool {
    old.iter().zip(new).any(|(old, new)| match (old, new) {
        (Some(old), Some(new)) => {
            let (old, new) = (old.bits_per_second(), new.bits_per_second());
            old.abs_diff(new) >= old.max(new) / 100 * percent
        }
        (old, new) => old.is_some() != new.is_some(),
    })
}

/// Time until a change that the kernel has refused is tried again.
const RETRY_PAUSE: Nanos = Nanos::from_secs(1);
/// How often the estimates of a link are logged at most.
const LOG_PERIOD: Nanos = Nanos::from_secs(60);
/// How often the estimates are written to the state file at most.
const SAVE_PERIOD: Nanos = Nanos::from_secs(60);
