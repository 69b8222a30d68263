//! Traffic quotas of held targets: which claims have one that counts now, the keys under which the
//! kernel counts for them, and the contract in force after a quota with `then` has passed.
//!
//! How much has passed is not in the ledger: [`crate::state::UsageBook`] has it. It writes here
//! what the desired state depends on ([`HeldQuota`]). No function fails.

use std::borrow::Cow;

use netnice_core::claims::Claim;
use netnice_core::contract::{Contract, TrafficQuota};

use super::{HeldTarget, Ledger};

/// A quota of a claim, as far as the desired state depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldQuota {
    /// The key under which the kernel counts. Above zero.
    pub key: u64,
    /// True if its amount has passed in this period.
    pub spent: bool,
}

impl HeldTarget {
    /// The claims with a quota that counts now: not set aside, and its schedule is active.
    pub(crate) fn counting_quotas(&self) -> impl Iterator<Item = (&Claim, &TrafficQuota)> {
        let dormant = self.dormant();
        self.claims.quotas().filter(move |(claim, _)| {
            let aside = self.aside.is_some() && !claim.by.privileged;
            !aside && !dormant.contains(&claim.by.uid)
        })
    }

    /// The keys of its counting quotas, without those of the targets around it: those of root, the
    /// group `netnice` and the policy if `privileged`, else those of other users.
    fn quota_keys(&self, privileged: bool) -> Vec<u64> {
        let counting = self.counting_quotas().map(|(claim, _)| claim);
        let counting = counting.filter(|claim| claim.by.privileged == privileged);
        let key = |claim: &Claim| self.quotas.get(&claim.by.uid).map(|quota| quota.key);
        counting.filter_map(key).collect()
    }

    /// True if a quota of its own counts.
    pub(crate) fn is_metered(&self) -> bool {
        self.counting_quotas().next().is_some()
    }

    /// The contract that is in force while the quotas that are spent now stay spent: `contract`
    /// with the lower limits that these quotas name.
    pub(super) fn after_quotas<'c>(&self, contract: Cow<'c, Contract>) -> Cow<'c, Contract> {
        if !self.quotas.values().any(|quota| quota.spent) {
            return contract;
        }
        let spent = self.counting_quotas().filter(|(claim, _)| {
            let quota = self.quotas.get(&claim.by.uid);
            quota.is_some_and(|quota| quota.spent)
        });
        spent.fold(contract, |contract, (_, quota)| {
            Cow::Owned(contract.after_quota(quota))
        })
    }
}

impl Ledger {
    /// The keys of the quotas that hold a target's packets: its own and those of the targets around
    /// it. Those of privileged claims come first, so that no user's quota takes the place of one.
    pub(crate) fn quotas_around(&self, held: &HeldTarget) -> Vec<u64> {
        let mut keys = self.privileged_quotas_around(held);
        self.add_keys_around(held, false, &mut keys);
        keys
    }

    /// As [`quotas_around`](Ledger::quotas_around), of privileged claims only.
    pub(crate) fn privileged_quotas_around(&self, held: &HeldTarget) -> Vec<u64> {
        let mut keys = Vec::new();
        self.add_keys_around(held, true, &mut keys);
        keys
    }

    fn add_keys_around(&self, held: &HeldTarget, privileged: bool, keys: &mut Vec<u64>) {
        let chain = std::iter::once(held).chain(self.around(held.entry.id));
        for key in chain.flat_map(|held| held.quota_keys(privileged)) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }

    /// Sets what the desired state depends on, for the quotas of all claims.
    pub(crate) fn set_quotas(
        &mut self,
        of: impl Fn(&HeldTarget, &Claim, &TrafficQuota) -> Option<HeldQuota>,
    ) {
        for held in self.held.values_mut() {
            let quotas = held.claims.quotas();
            let found =
                quotas.filter_map(|(claim, quota)| Some((claim.by.uid, of(held, claim, quota)?)));
            let found = found.collect();
            held.quotas = found;
        }
    }
}
