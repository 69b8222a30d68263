//! Claims with a schedule: which of them are dormant now, and the contract in force without them.
//!
//! Admission gets the contract of all claims, dormant or not ([`HeldTarget::entry`]). A claim with
//! a schedule has limits, weights and priorities only, so what is in force at any time asks for
//! less than what was admitted, and no change of a phase needs admission. The time is always an
//! argument; it is that of the host's clock, which people set, so a phase is also over if the clock
//! was set back. No function fails.

use std::borrow::Cow;
use std::fmt;

use netnice_core::claims::Claim;
use netnice_core::contract::{Contract, Schedule};
use netnice_core::target::Target;

use super::{HeldTarget, Ledger};
use crate::peer::POLICY;
use crate::schedule::{Phase, phase};
use crate::user_names::user_name;

/// A claim whose schedule has become active or inactive.
#[derive(Debug)]
pub(crate) struct ScheduleChange {
    /// The unprivileged user of the claim; `None` for a claim of root, the group or the policy.
    pub user: Option<u32>,
    target: Target,
    uid: u32,
    contract: Contract,
    active: bool,
}

impl fmt::Display for ScheduleChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.uid == POLICY.uid {
            true => "the policy".to_owned(),
            false => user_name(self.uid),
        };
        let holds = match self.active {
            true => "holds from now on",
            false => "does not hold any more, by its schedule",
        };
        write!(f, "{} {} of {who} {holds}", self.target, self.contract)
    }
}

impl Ledger {
    /// True if the phase of a schedule may be over.
    pub(crate) fn has_due_schedule(&self, now_ns: u64) -> bool {
        let phases = self.held.values().flat_map(|held| held.phases.values());
        phases.into_iter().any(|phase| phase.may_be_over(now_ns))
    }

    /// Computes the phases that may be over. Returns the claims that are dormant now and were not,
    /// or the other way round.
    pub(crate) fn follow_schedules(&mut self, now_ns: u64) -> Vec<ScheduleChange> {
        let held = self.held.values_mut();
        held.flat_map(|held| held.follow_schedules(now_ns))
            .collect()
    }
}

impl HeldTarget {
    /// The contract in force: the admitted one, without dormant claims and without processor time
    /// that is not reserved, and after the quotas that are spent.
    pub(crate) fn in_force(&self) -> Cow<'_, Contract> {
        self.with_reserved_time(self.after_quotas(self.in_hours()))
    }

    /// The admitted contract, without dormant claims.
    fn in_hours(&self) -> Cow<'_, Contract> {
        let dormant = self.dormant();
        if dormant.is_empty() {
            return Cow::Borrowed(&self.entry.contract);
        }
        // Admission may have left out the guarantees, or the claims of unprivileged users.
        let all = self.claims.effective();
        let users_count = match &self.refused {
            Some(_) => self.entry.contract == all.without_guarantees(),
            None => self.aside.is_none() || self.keeps_users_limits(),
        };
        let mut contract = self.claims.in_force(&dormant, !users_count);
        if self.refused.is_some() {
            contract = contract.without_guarantees();
        }
        contract = self.without_lost_shares(contract);
        // The link of a guarantee, if admission has chosen it.
        match self.entry.contract.on() {
            Some(link) if contract.is_guaranteed() && contract.on().is_none() => {
                Cow::Owned(contract.with_link(link.clone()))
            }
            _ => Cow::Owned(contract),
        }
    }

    /// True if the limits of unprivileged users are part of the admitted contract.
    fn keeps_users_limits(&self) -> bool {
        let limits = |contract: &Contract| {
            let one_way = (contract.up(), contract.down());
            (one_way, contract.both(), contract.burst())
        };
        limits(&self.entry.contract) == limits(self.claims.effective())
    }

    /// The claims with a schedule and a known phase, in the order of their latest change.
    pub(crate) fn scheduled(&self) -> impl Iterator<Item = (&Claim, &Schedule, &Phase)> {
        self.claims.iter().filter_map(|claim| {
            let phase = self.phases.get(&claim.by.uid)?;
            Some((claim, claim.contract.when()?, phase))
        })
    }

    /// The users whose claims are dormant.
    pub(super) fn dormant(&self) -> Vec<u32> {
        let dormant = self.phases.iter().filter(|(_, phase)| !phase.active);
        dormant.map(|(uid, _)| *uid).collect()
    }

    /// Computes all phases, after a change of the claims.
    pub(super) fn restart_schedules(&mut self, now_ns: u64) {
        self.phases.clear();
        self.follow_schedules(now_ns);
    }

    fn follow_schedules(&mut self, now_ns: u64) -> Vec<ScheduleChange> {
        let mut changes = Vec::new();
        for claim in self.claims.iter() {
            let Some(when) = claim.contract.when() else {
                continue;
            };
            let before = self.phases.get(&claim.by.uid);
            if before.is_some_and(|before| !before.may_be_over(now_ns)) {
                continue;
            }
            let now = phase(when, now_ns);
            if before.is_some_and(|before| before.active != now.active) {
                changes.push(ScheduleChange {
                    user: (!claim.by.privileged).then_some(claim.by.uid),
                    target: self.entry.target.clone(),
                    uid: claim.by.uid,
                    contract: claim.contract.without_schedule(),
                    active: now.active,
                });
            }
            self.phases.insert(claim.by.uid, now);
        }
        changes
    }
}
