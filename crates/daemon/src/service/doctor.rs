//! `netnice doctor`: reports which features this kernel has, what is in force, and what needs
//! attention. The event loop probes the features again if the last probe is [`FRESH`] (60 s) old.
//! Of the targets whose guarantees are not in force, the report has at most [`MAX_TARGETS`] (20).
//! Fails if the machine's interfaces cannot be read.

use netnice_api::{DoctorItem, DoctorReport, Status};
use netnice_core::units::{Instant, Nanos};
use netnice_kernel::enforce::MAX_INTERFACES;
use netnice_kernel::probe::{FeatureState, Finding};

use super::view::View;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::policy::Rules;

/// What is kept for `netnice doctor` between requests.
#[derive(Default)]
pub(super) struct DoctorState {
    /// Notices from the start of the daemon.
    pub(super) notices: Vec<String>,
    /// What this kernel offered at the last probe, and the time of the probe.
    offers: Vec<DoctorItem>,
    at: Option<Instant>,
}

impl DoctorState {
    /// True if the last probe is at least [`FRESH`] old, or there was none.
    pub(super) fn needs_probe(&self, now: Now) -> bool {
        let is_fresh = |at: Instant| now.monotonic.since(at) < FRESH;
        !self.at.is_some_and(is_fresh)
    }

    /// Stores the result of a probe that ended at `now`.
    pub(super) fn set_findings(&mut self, findings: &[Finding], now: Now) {
        self.at = Some(now.monotonic);
        self.offers = findings.iter().map(item).collect();
    }
}

impl<H: Host> View<'_, H> {
    /// The report, in three parts: the features, the state of this daemon, and faults.
    ///
    /// # Errors
    /// If the machine's interfaces cannot be read.
    pub(super) fn doctor(
        &mut self,
        state: &DoctorState,
        rules: &Rules,
    ) -> Result<DoctorReport, RequestError> {
        let mut items = state.offers.clone();
        items.push(self.service());
        for notice in &state.notices {
            items.push(bad("lost state", notice, "netnice clear --all, by root"));
        }
        if let Some(fault) = &rules.fault {
            let hint = "mend the file, then netnice reload";
            items.push(bad("policy", fault, hint));
        }
        for fault in rules.unit_faults.values() {
            items.push(bad("unit file", fault, "mend the file"));
        }
        if let Some(given_up) = &self.deviations.repairs.given_up {
            items.push(bad(
                "repair",
                given_up,
                "netnice log tells what was removed",
            ));
        }
        items.extend(self.links_and_targets()?);
        Ok(DoctorReport { items })
    }

    /// The state of this daemon.
    fn service(&self) -> DoctorItem {
        let held = self.ledger().held().count();
        let links = self.ledger().links().count();
        let detail = match self.machine.is_enforcing() {
            true => format!(
                "{held} targets and {links} managed links, by {} on {}",
                self.machine.attachment(),
                self.machine.attached().join(", ")
            ),
            false => "nothing is in force, so nothing is loaded".to_owned(),
        };
        good("in force", detail)
    }

    fn links_and_targets(&mut self) -> Result<Vec<DoctorItem>, RequestError> {
        let interfaces = self.machine.interfaces()?;
        let many = (interfaces.len() > MAX_INTERFACES).then(|| {
            let detail = format!(
                "there are {} in this network namespace and there is room for {MAX_INTERFACES}: \
                 changes are refused, \
                 for limits would not hold on the others",
                interfaces.len()
            );
            let hint = "remove some, or move them to another namespace; ip link lists them";
            bad("interfaces", &detail, hint)
        });
        let links = self.ledger().links().flat_map(|managed| {
            let faults = self.link_faults(managed, &interfaces);
            faults
                .into_iter()
                .map(|fault| bad("link", &format!("{}: {fault}", managed.link.name), ""))
        });
        let targets = self
            .ledger()
            .held()
            .filter_map(|held| {
                let why = held.refused.as_ref().or(held.time_refused.as_ref())?;
                let first = why.lines().next().unwrap_or_default();
                Some(bad("target", first, "netnice show tells the rest"))
            })
            .take(MAX_TARGETS);
        Ok(many.into_iter().chain(links).chain(targets).collect())
    }
}

/// Converts a finding of the probe to an item of the report.
pub(crate) fn item(finding: &Finding) -> DoctorItem {
    DoctorItem {
        name: finding.name.to_owned(),
        status: match finding.state {
            FeatureState::Good => Status::Good,
            FeatureState::Fallback => Status::Fallback,
            FeatureState::Missing => Status::Missing,
        },
        detail: finding.detail.clone(),
        hint: finding.hint.clone(),
    }
}

fn good(name: &str, detail: String) -> DoctorItem {
    DoctorItem {
        name: name.to_owned(),
        status: Status::Good,
        detail,
        hint: None,
    }
}

fn bad(name: &str, detail: &str, hint: &str) -> DoctorItem {
    DoctorItem {
        name: name.to_owned(),
        status: Status::Missing,
        detail: detail.split_whitespace().collect::<Vec<_>>().join(" "),
        hint: (!hint.is_empty()).then(|| hint.to_owned()),
    }
}

/// How long the result of a probe is used. A probe takes long, and every user may request it.
const FRESH: Nanos = Nanos::from_secs(60);
/// Largest number of targets in the report.
const MAX_TARGETS: usize = 20;
