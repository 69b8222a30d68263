//! Minimums of direct flows inside budgets. The flow manager decides which flows have one; the
//! ledger stores the sum for each budget, counts it inside the budget, and leaves it out of the
//! link's part for the direct path, because the budget's minimum contains it. Nothing here fails.

use std::collections::BTreeMap;

use netnice_core::admission::{TargetEntry, TargetId};
use netnice_core::contract::{Direction, IfName};
use netnice_core::target::Target;
use netnice_core::units::{Amount, Rate};

use super::budgets::has_minimum;
use super::direct_part::exactly;
use super::{HeldTarget, Ledger, TargetPlace};

impl Ledger {
    /// Sets the sums of the minimums that flows on a link have of budgets, by the budget's id.
    pub(crate) fn set_flow_minimums(&mut self, link: &IfName, sums: BTreeMap<u32, Amount>) {
        match sums.is_empty() {
            true => drop(self.flow_minimums.remove(link)),
            false => drop(self.flow_minimums.insert(link.clone(), sums)),
        }
    }

    /// The sum of the minimums of direct flows inside a budget, limited to the part of the budget
    /// that is not promised to targets.
    pub(crate) fn flows_in(&self, budget: &HeldTarget) -> Amount {
        let on = budget.entry.contract.on();
        let sums = on.and_then(|on| self.flow_minimums.get(on));
        let sum = sums.and_then(|sums| sums.get(&budget.id)).copied();
        let sum = sum.filter(|_| budget.delegate().is_some());
        let [up, _] = self.promised_inside(budget);
        let room = up.map_or(Amount(0), |up| Amount::from(up.min).less(up.used));
        sum.unwrap_or_default().min(room)
    }

    /// The sum of the minimums of direct flows inside all budgets of a link.
    pub(crate) fn flows_in_budgets(&self, link: &IfName) -> Amount {
        if !self.flow_minimums.contains_key(link) {
            return Amount(0);
        }
        let on_it = self
            .budgets()
            .filter(|held| held.entry.contract.on() == Some(link));
        on_it.map(|budget| self.flows_in(budget)).sum()
    }

    /// The minimums of direct flows inside budgets, as entries for admission.
    pub(super) fn flow_entries(&self) -> Vec<TargetEntry> {
        if self.flow_minimums.is_empty() {
            return Vec::new();
        }
        let budgets = self.budgets().zip(FIRST_FLOW_ENTRY..LAST_FLOW_ENTRY);
        let entries = budgets.filter_map(|(budget, id)| {
            let rate = Rate::new(self.flows_in(budget).0)?;
            let link = budget.entry.contract.on()?;
            let text = format!("min {} on {link}", exactly(rate));
            Some(TargetEntry {
                id: TargetId::new(id)?,
                target: Target::Direct(link.clone()),
                parent: Some(budget.entry.id),
                contract: text.parse().ok()?,
            })
        });
        entries.collect()
    }

    /// The budget from which flows of a user's process at this place may have minimums on a link:
    /// its id, and the rate in it that is not promised to targets. `None` if there is none, or if
    /// the nearest minimum around the place is not the budget's.
    pub(crate) fn budget_for_flows(
        &self,
        place: &TargetPlace,
        uid: u32,
        link: &IfName,
    ) -> Option<(u32, Amount)> {
        let nearest = self.at_place(place)?.entry.id;
        let budget = self.budget_of(Some(nearest), uid, Some(link))?;
        let mut around = self.chain(Some(nearest));
        let minimum = around.find(|outer| {
            let contract = &outer.entry.contract;
            has_minimum(contract, Direction::Up) && contract.on() == Some(link)
        })?;
        let [up, _] = self.promised_inside(budget);
        let up = up.filter(|_| minimum.id == budget.id)?;
        Some((budget.id, Amount::from(up.min).less(up.used)))
    }
}

/// The ids of the entries of flows in budgets: above the slots of targets, and below the ids of the
/// links' parts.
const FIRST_FLOW_ENTRY: u16 = netnice_kernel::plan::MAX_SLOT + 1;
const LAST_FLOW_ENTRY: u16 = u16::MAX / 2;
