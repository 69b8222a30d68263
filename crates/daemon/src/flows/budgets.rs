//! Minimums of flows inside a budget: which user's flow may have one, and whether it fits beside
//! the others of the budget ([`crate::ledger`] has the rules for budgets).
//!
//! An unprivileged user's flow can have `min` if a budget of that user contains its program. The
//! rate counts inside the budget, after the minimums of targets there; and the link's part for the
//! direct path grows only by what the flow needs beyond it. If a budget becomes too small, the
//! youngest flows in it are degraded. Admission fails if no budget contains the program, or if the
//! minimum does not fit.

use std::collections::BTreeMap;

use netnice_core::contract::{Clause, Contract, Direction, IfName};
use netnice_core::units::Amount;

use super::network::Network;
use super::promises::Promises;
use super::{FlowRecord, Flows};
use crate::clock::Now;
use crate::error::RequestError;
use crate::peer::Peer;

/// Where the minimums of a program's flows count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MinimumsOf {
    /// On the link: the program is privileged.
    Link,
    /// In the budget with this id, which has this much left beside targets.
    Budget(u32, Amount),
    /// Nowhere: no budget of its user contains the program.
    Nothing,
}

/// Checks that a peer may request a clause for a flow: an unprivileged one only `min` and `on`, if
/// a budget of that user contains the program.
///
/// # Errors
/// [`RequestError::NotPermitted`] if it may not.
pub(super) fn may_request(
    peer: &Peer,
    clauses: &[Clause],
    has_budget: bool,
) -> Result<(), RequestError> {
    let other = clauses.iter().find(|clause| {
        !matches!(
            clause,
            Clause::Min | Clause::On | Clause::Up | Clause::Burst
        )
    });
    match (peer.privileged, other, has_budget) {
        (true, ..) | (_, None, true) => Ok(()),
        (_, Some(clause), true) => Err(RequestError::NotPermitted(format!(
            "{clause} of a flow is for root and the group netnice; inside a budget of yours, flows \
             can have min"
        ))),
        (_, _, false) => Err(RequestError::NotPermitted(
            "a promise to a flow is for root and the group netnice, channel also for channel_users \
             of the policy file, and min for programs inside a budget of their user; none contains \
             this program"
                .to_owned(),
        )),
    }
}

impl<N: Network> Flows<N> {
    /// Admits the minimum of a recorded flow in its budget, and adds it to what flows have of the
    /// budget.
    ///
    /// # Errors
    /// If it does not fit beside the minimums of targets and of other flows in the budget.
    pub(super) fn admit_in_budget(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        number: u32,
    ) -> Result<(), RequestError> {
        if self.flows.get(&number).and_then(minimum).is_none() {
            return Ok(());
        }
        let homes = self.homes(promises, link);
        let asks = |flow: &FlowRecord| Some((minimum(flow)?, *homes.get(&flow.program)?));
        match self.flows.get(&number).and_then(asks) {
            Some((_, MinimumsOf::Nothing)) => Err(RequestError::NotPermitted(format!(
                "min of flow:{number}: no budget of its user contains its program"
            ))),
            Some((min, MinimumsOf::Budget(id, room))) => {
                let others = self.sum(link, &homes, id, Some(number));
                let left = room.less(others);
                if min > left {
                    return Err(RequestError::NotAdmitted(format!(
                        "refused: flow:{number} asks min {min} inside a budget with {left} left: \
                         {room} are not promised to targets, and other flows have {others}\n  \
                         would fit   at most {left}"
                    )));
                }
                self.store(promises, link, &homes, None);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Stores, for each budget, the sum of the minimums that flows of the link have inside it. The
    /// flow `but` does not count.
    pub(super) fn store_minimums(
        &self,
        promises: &mut impl Promises,
        link: &IfName,
        but: Option<u32>,
    ) {
        let homes = self.homes(promises, link);
        self.store(promises, link, &homes, but);
    }

    /// Degrades the flows whose budget has become too small or has gone, youngest first, and stores
    /// what the others have.
    pub(super) fn fit_budgets(&mut self, promises: &mut impl Promises, link: &IfName, now: Now) {
        let homes = self.homes(promises, link);
        let mut left: BTreeMap<u32, Amount> = BTreeMap::new();
        let mut surplus = Vec::new();
        for flow in self.with_minimum(link) {
            let (Some(min), None) = (minimum(flow), &flow.degraded) else {
                continue;
            };
            match homes.get(&flow.program) {
                Some(MinimumsOf::Nothing) => {
                    let why = "no budget of its user contains its program any more";
                    surplus.push((flow.number, why.to_owned()));
                }
                Some(MinimumsOf::Budget(id, room)) => {
                    let left = left.entry(*id).or_insert(*room);
                    match min <= *left {
                        true => *left = left.less(min),
                        false => {
                            let why = format!("its budget has {left} left for it");
                            surplus.push((flow.number, why));
                        }
                    }
                }
                _ => {}
            }
        }
        surplus.reverse();
        for (number, why) in surplus {
            self.degrade(number, why, now);
        }
        self.store(promises, link, &homes, None);
    }

    /// True if the minimum of a degraded flow fits into its budget again, or needs none.
    pub(super) fn fits_budget(
        &self,
        promises: &mut impl Promises,
        link: &IfName,
        flow: &FlowRecord,
    ) -> bool {
        let Some(min) = minimum(flow) else {
            return true;
        };
        let homes = self.homes(promises, link);
        match homes.get(&flow.program) {
            Some(MinimumsOf::Nothing) => false,
            Some(MinimumsOf::Budget(id, room)) => {
                min <= room.less(self.sum(link, &homes, *id, Some(flow.number)))
            }
            _ => true,
        }
    }

    /// Where the minimums of the flows of each program on a link count, for the programs with such
    /// a flow.
    fn homes(&self, promises: &mut impl Promises, link: &IfName) -> BTreeMap<u32, MinimumsOf> {
        let mut homes = BTreeMap::new();
        let Some(state) = self.link_states.get(link) else {
            return homes;
        };
        for flow in self.with_minimum(link) {
            if homes.contains_key(&flow.program) {
                continue;
            }
            let Some(program) = state.programs.get(&flow.program) else {
                continue;
            };
            let budget = self
                .user_of(program)
                .map(|uid| promises.budget_of(program.pid, uid, link));
            let home = match budget {
                None => MinimumsOf::Link,
                Some(Some((id, room))) => MinimumsOf::Budget(id, room),
                // The program of an earlier daemon may be one of a member of the group.
                Some(None) if program.session.is_none() => MinimumsOf::Link,
                Some(None) => MinimumsOf::Nothing,
            };
            homes.insert(flow.program, home);
        }
        homes
    }

    /// The flows of a link with a minimum, oldest first.
    fn with_minimum(&self, link: &IfName) -> impl Iterator<Item = &FlowRecord> {
        let state = self.link_states.get(link);
        let numbers = state.into_iter().flat_map(|state| &state.minimums);
        numbers.filter_map(|number| self.flows.get(number))
    }

    /// The sum of the minimums that flows of a link have of one budget, without flow `but`.
    fn sum(
        &self,
        link: &IfName,
        homes: &BTreeMap<u32, MinimumsOf>,
        budget: u32,
        but: Option<u32>,
    ) -> Amount {
        let sums = self.sums(link, homes, but);
        sums.get(&budget).copied().unwrap_or_default()
    }

    fn sums(
        &self,
        link: &IfName,
        homes: &BTreeMap<u32, MinimumsOf>,
        but: Option<u32>,
    ) -> BTreeMap<u32, Amount> {
        let mut sums: BTreeMap<u32, Amount> = BTreeMap::new();
        for flow in self.with_minimum(link) {
            if let (Some(min), Some(MinimumsOf::Budget(id, _))) =
                (minimum(flow), homes.get(&flow.program))
                && flow.degraded.is_none()
                && Some(flow.number) != but
            {
                let sum = sums.entry(*id).or_default();
                *sum = [*sum, min].into_iter().sum();
            }
        }
        sums
    }

    fn store(
        &self,
        promises: &mut impl Promises,
        link: &IfName,
        homes: &BTreeMap<u32, MinimumsOf>,
        but: Option<u32>,
    ) {
        promises.set_flow_minimums(link, self.sums(link, homes, but));
    }
}

/// The minimum of a flow; `None` if it has none.
pub(super) fn minimum(flow: &FlowRecord) -> Option<Amount> {
    let min = |contract: &Contract| contract.min(Direction::Up);
    min(&flow.contract).map(Amount::from)
}
