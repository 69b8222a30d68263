//! Checks the four conditions of admissibility, which [`super`] lists.
//!
//! A [`Forest`] arranges entries of targets by their parents. It is made from the managed links and
//! a set of entries; for a check of a request, the request is one of the entries. A check whose
//! conditions do not all hold fails with the [`Reason`] for a refusal. For a sum that is too large,
//! the reason has the sum and the targets whose guarantees are in it.
//!
//! Every sum is computed anew from the entries. No result is kept between requests, so no sum can
//! become stale.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::refusal::{Bound, CapacityShortfall, Holder, Reason, Shortfall};
use super::{MAX_DEPTH, TargetEntry, TargetId};
use crate::contract::{Contract, Direction, IfName};
use crate::link::Link;
use crate::units::{Amount, Rate};

/// Target entries by id, the children of each, and the managed links.
pub(super) struct Forest<'a> {
    links: &'a [Link],
    entries: BTreeMap<TargetId, &'a TargetEntry>,
    children: BTreeMap<TargetId, Vec<TargetId>>,
    roots: Vec<TargetId>,
}

/// A link in one direction.
#[derive(Clone, Copy)]
pub(super) struct LinkDirection<'a> {
    link: &'a Link,
    direction: Direction,
}

/// The set of targets whose demands are summed.
#[derive(Clone, Copy)]
enum Scope {
    /// All top-level targets.
    Top,
    /// The children of a target.
    Below(TargetId),
    /// The target itself.
    At(TargetId),
}

/// One inequality: the demands of the targets in `scope`, summed over `directions`, are at most
/// `most`.
struct Condition<'a> {
    scope: Scope,
    directions: Vec<LinkDirection<'a>>,
    bound: Bound,
    most: Rate,
    /// True if `most` does not depend on the capacity of a link.
    is_fixed: bool,
}

impl<'a> Forest<'a> {
    /// Arranges the entries. An entry whose parent is not among them becomes top-level.
    pub(super) fn new(
        links: &'a [Link],
        entries: impl Iterator<Item = &'a TargetEntry>,
    ) -> Forest<'a> {
        let entries: BTreeMap<_, _> = entries.map(|entry| (entry.id, entry)).collect();
        let mut children: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut roots = Vec::new();
        for entry in entries.values() {
            match entry.parent.filter(|parent| entries.contains_key(parent)) {
                Some(parent) => children.entry(parent).or_default().push(entry.id),
                None => roots.push(entry.id),
            }
        }
        Forest {
            links,
            entries,
            children,
            roots,
        }
    }

    /// Checks the target's position in the forest: a known parent, no cycle, not too deep, no mixed
    /// limits (condition 4). Fails with the first of these that does not hold.
    pub(super) fn check_position(&self, id: TargetId) -> Result<(), Reason> {
        let unknown = |parent: &TargetId| !self.entries.contains_key(parent);
        if let Some(parent) = self.entries[&id].parent.filter(unknown) {
            return Err(Reason::UnknownParent(parent));
        }
        let mut chain = Vec::new();
        let mut at = Some(id);
        while let Some(here) = at {
            if chain.contains(&here) {
                return Err(Reason::Cycle);
            }
            chain.push(here);
            at = self.parent(here);
        }
        let levels = chain.iter().map(|id| self.level(*id)).sum::<usize>();
        let depth = levels + self.height(id);
        if depth > MAX_DEPTH {
            chain.reverse();
            let chain = chain.iter().map(|id| self.entries[id].target.clone());
            return Err(Reason::TooDeep {
                chain: chain.collect(),
                depth,
            });
        }
        let inside = self.subtree(id);
        for outer in &chain {
            for inner in chain.iter().chain(&inside) {
                self.check_mixed(*outer, *inner)?;
            }
        }
        Ok(())
    }

    /// Checks that the target's demands are valid rates, and conditions 1 to 3 where a demand of
    /// the target is part of a sum. `before` is the forest before the request. Fails if one of
    /// these does not hold; if several sums are too large, the reason names one of them.
    pub(super) fn check_demands(&self, before: &Forest<'_>, id: TargetId) -> Result<(), Reason> {
        let mut worst: Option<Shortfall> = None;
        for on in link_directions(self.links, &Direction::ALL) {
            self.check_servable(id, on)?;
            let demand = self.demand(id, on);
            if demand == Amount(0) {
                continue;
            }
            // A demand that did not grow and did not move does not raise the sums around it.
            let grown = self.own_min(id, on).is_some()
                || demand > before.demand(id, on)
                || self.parent(id) != before.parent(id);
            let short = self
                .conditions(id, on, grown)
                .into_iter()
                .filter_map(|condition| self.shortfall(condition, id, on))
                .min_by_key(|short| (short.requested.is_some(), short.largest));
            // A shortfall that does not depend on the requested amount comes first, then the first
            // link and direction with a shortfall.
            worst = match (worst, short) {
                (None, short) => short,
                (Some(old), Some(new)) if old.requested.is_some() && new.requested.is_none() => {
                    Some(new)
                }
                (old, _) => old,
            };
        }
        match worst {
            Some(shortfall) => Err(Reason::DoesNotFit(Box::new(shortfall))),
            None => Ok(()),
        }
    }

    /// Checks whether one link carries all promises on it, and whether every target on it is
    /// served. Fails if not.
    pub(super) fn check_link(&self, link: &Link) -> Result<(), Reason> {
        for direction in Direction::ALL {
            let on = LinkDirection { link, direction };
            for id in self.entries.keys() {
                self.check_servable(*id, on)?;
            }
            let top = self.top_condition(on);
            let inner = self
                .entries
                .keys()
                .flat_map(|id| self.conditions_at(*id, on));
            for condition in top.into_iter().chain(inner) {
                let sum = self.sum(condition.scope, &condition.directions);
                if sum > condition.most.into() {
                    return Err(Reason::LinkTooSlow(Box::new(CapacityShortfall {
                        direction,
                        holders: self.holders(&condition, None),
                        bound: condition.bound,
                        most: condition.most,
                        held: sum,
                        too_large: condition.is_fixed,
                        nearest: None,
                    })));
                }
            }
        }
        Ok(())
    }

    /// All targets with a guarantee on a link, in either direction.
    pub(super) fn all_holders(&self, name: &IfName) -> Vec<Holder> {
        let on_it = link_directions(self.links, &Direction::ALL).filter(|on| on.link.name == *name);
        let holders = on_it.flat_map(|on| {
            self.entries.values().filter_map(move |entry| {
                Some(Holder {
                    target: entry.target.clone(),
                    link: on.link.name.clone(),
                    direction: on.direction,
                    amount: self.own_min(entry.id, on)?.into(),
                })
            })
        });
        holders.collect()
    }

    /// Checks that the target's demand on a link in a direction is a valid rate: the link has a
    /// capacity in that direction, and a slice of it is at least [`Rate::MIN`].
    fn check_servable(&self, id: TargetId, on: LinkDirection<'_>) -> Result<(), Reason> {
        let entry = self.entries[&id];
        if !self.is_on(entry, on.link) {
            return Ok(());
        }
        let asks = entry.contract.reserves(on.direction);
        let slice = entry
            .contract
            .slice()
            .filter(|_| on.direction == Direction::Up);
        let Some(usable) = on.usable() else {
            return match asks {
                true => Err(Reason::NoRate {
                    link: on.link.name.clone(),
                    direction: on.direction,
                }),
                false => Ok(()),
            };
        };
        match slice {
            Some(slice) if slice.of(usable).is_none() => Err(Reason::SliceTooSmall {
                link: on.link.name.clone(),
                usable,
                slice,
            }),
            _ => Ok(()),
        }
    }

    /// The conditions that contain a target's demand on a link in a direction: conditions 2 and 3
    /// at the target and, if the demand has `grown`, the conditions of its ancestors up to the
    /// first one with a minimum there. Above that ancestor no sum changes.
    fn conditions(&self, id: TargetId, on: LinkDirection<'a>, grown: bool) -> Vec<Condition<'a>> {
        let mut conditions = self.conditions_at(id, on);
        if !grown {
            return conditions;
        }
        let mut at = self.parent(id);
        while let Some(place) = at {
            if let Some(inside) = self.min_condition(place, on) {
                conditions.push(inside);
                return conditions;
            }
            conditions.extend(self.limit_conditions(place, on));
            at = self.parent(place);
        }
        conditions.extend(self.top_condition(on));
        conditions
    }

    /// Conditions 2 and 3 at one target.
    fn conditions_at(&self, id: TargetId, on: LinkDirection<'a>) -> Vec<Condition<'a>> {
        let mut conditions = self.limit_conditions(id, on);
        conditions.extend(self.min_condition(id, on));
        conditions
    }

    /// Condition 2 at one target.
    fn min_condition(&self, id: TargetId, on: LinkDirection<'a>) -> Option<Condition<'a>> {
        let entry = self.entries[&id];
        Some(Condition {
            scope: Scope::Below(id),
            directions: [on].into(),
            bound: Bound::Min(entry.target.clone()),
            most: self.own_min(id, on)?,
            // A slice grows with the link.
            is_fixed: entry.contract.slice().is_none() || on.direction == Direction::Down,
        })
    }

    /// Condition 3 at one target.
    fn limit_conditions(&self, id: TargetId, on: LinkDirection<'a>) -> Vec<Condition<'a>> {
        let entry = self.entries[&id];
        let condition = |most: Option<Rate>, word, directions: &[Direction]| {
            Some(Condition {
                scope: Scope::At(id),
                directions: link_directions(self.links, directions).collect(),
                bound: Bound::Limit(entry.target.clone(), word),
                most: most?,
                is_fixed: true,
            })
        };
        let direction = on.direction;
        let one_way = entry.contract.limit(direction);
        let one_way = condition(one_way, direction.word(), &[direction]);
        let both = condition(entry.contract.both(), "both", &Direction::ALL);
        one_way.into_iter().chain(both).collect()
    }

    /// Condition 1.
    fn top_condition(&self, on: LinkDirection<'a>) -> Option<Condition<'a>> {
        Some(Condition {
            scope: Scope::Top,
            directions: [on].into(),
            bound: Bound::Link,
            most: on.usable()?,
            is_fixed: false,
        })
    }

    /// The shortfall of a condition, as the message for one target needs it. `None` if the
    /// condition holds.
    fn shortfall(
        &self,
        condition: Condition<'_>,
        id: TargetId,
        on: LinkDirection<'_>,
    ) -> Option<Shortfall> {
        let sum = self.sum(condition.scope, &condition.directions);
        if sum <= condition.most.into() {
            return None;
        }
        let own = self.own_min(id, on);
        let below = self.demand_below(id, on);
        // A minimum below the sum of the members is a different fault from a minimum that is too
        // large.
        let members = matches!(condition.scope, Scope::Below(at) if at == id);
        let requested = match (own, members) {
            (Some(own), false) => Amount::from(own),
            _ => Amount(0),
        };
        let held = sum.less(requested);
        let entry = self.entries[&id];
        let slice = entry.contract.slice();
        Some(Shortfall {
            link: on.link.name.clone(),
            direction: on.direction,
            capacity: on.link.capacity(on.direction),
            usable: on.usable(),
            requested: own.filter(|_| !members),
            slice: slice.filter(|_| on.direction == Direction::Up),
            holders: self.holders(&condition, own.map(|_| (id, on))),
            largest: Amount::from(condition.most).less(held),
            least: below,
            bound: condition.bound,
            most: condition.most,
            held,
        })
    }

    /// The targets whose minimums make up a condition's sum, without the target `without` on its
    /// own link and direction.
    fn holders(
        &self,
        condition: &Condition<'_>,
        without: Option<(TargetId, LinkDirection<'_>)>,
    ) -> Vec<Holder> {
        let mut holders = Vec::new();
        for on in &condition.directions {
            let mut waiting = self.members(condition.scope);
            waiting.reverse();
            while let Some(id) = waiting.pop() {
                let left_out = without.is_some_and(|(out, at)| {
                    out == id && at.direction == on.direction && at.link.name == on.link.name
                });
                match self.own_min(id, *on) {
                    Some(_) if left_out => {}
                    Some(min) => holders.push(Holder {
                        target: self.entries[&id].target.clone(),
                        link: on.link.name.clone(),
                        direction: on.direction,
                        amount: min.into(),
                    }),
                    None => waiting.extend(self.below(id).iter().rev()),
                }
            }
        }
        holders
    }

    fn members(&self, scope: Scope) -> Vec<TargetId> {
        match scope {
            Scope::Top => self.roots.clone(),
            Scope::Below(id) => self.below(id).to_vec(),
            Scope::At(id) => [id].into(),
        }
    }

    fn sum(&self, scope: Scope, directions: &[LinkDirection<'_>]) -> Amount {
        let members = self.members(scope);
        let over_directions =
            |id: &TargetId| directions.iter().map(|on| self.demand(*id, *on)).sum();
        members.iter().map(over_directions).sum::<Amount>()
    }

    /// The demand of a target on a link in a direction: its minimum, else the sum below it. Zero
    /// for an unknown target.
    fn demand(&self, id: TargetId, on: LinkDirection<'_>) -> Amount {
        match self.own_min(id, on) {
            Some(min) => min.into(),
            None => self.demand_below(id, on),
        }
    }

    fn demand_below(&self, id: TargetId, on: LinkDirection<'_>) -> Amount {
        let below = self.below(id).iter();
        below.map(|child| self.demand(*child, on)).sum()
    }

    /// The target's own minimum on a link in a direction, or its slice as a rate.
    fn own_min(&self, id: TargetId, on: LinkDirection<'_>) -> Option<Rate> {
        let entry = self.entries.get(&id)?;
        if !self.is_on(entry, on.link) {
            return None;
        }
        let min = entry.contract.link_min(on.direction, on.usable()?);
        min.flatten()
    }

    /// Whether the guarantees of an entry are on this link.
    fn is_on(&self, entry: &TargetEntry, link: &Link) -> bool {
        entry.contract.is_guaranteed()
            && resolve(self.links, &entry.contract)
                .is_ok_and(|on| on.is_some_and(|on| on.name == link.name))
    }

    fn parent(&self, id: TargetId) -> Option<TargetId> {
        let parent = self.entries.get(&id)?.parent?;
        self.entries.contains_key(&parent).then_some(parent)
    }

    fn below(&self, id: TargetId) -> &[TargetId] {
        self.children.get(&id).map_or(&[], Vec::as_slice)
    }

    /// All targets below a target, at any depth.
    fn subtree(&self, id: TargetId) -> Vec<TargetId> {
        let mut all = self.below(id).to_vec();
        let mut next = 0;
        while let Some(here) = all.get(next).copied() {
            all.extend_from_slice(self.below(here));
            next += 1;
        }
        all
    }

    /// Number of levels of the longest chain below a target.
    fn height(&self, id: TargetId) -> usize {
        let below = self.below(id).iter();
        below
            .map(|child| self.level(*child) + self.height(*child))
            .max()
            .unwrap_or(0)
    }

    /// 1 if the target asks for something, else 0: a target that asks for nothing takes no level.
    fn level(&self, id: TargetId) -> usize {
        usize::from(!self.entries[&id].contract.is_empty())
    }

    /// Fails if two targets of one chain mix limits: one has `both`, and the other a one-way limit.
    fn check_mixed(&self, one: TargetId, other: TargetId) -> Result<(), Reason> {
        let (one, other) = (self.entries[&one], self.entries[&other]);
        let one_way = Contract::may_limit_one_way;
        match (one.contract.both(), one_way(&other.contract)) {
            (Some(_), true) => Err(Reason::Mixed {
                both: one.target.clone(),
                one_way: other.target.clone(),
            }),
            _ => match (other.contract.both(), one_way(&one.contract)) {
                (Some(_), true) => Err(Reason::Mixed {
                    both: other.target.clone(),
                    one_way: one.target.clone(),
                }),
                _ => Ok(()),
            },
        }
    }
}

impl LinkDirection<'_> {
    fn usable(&self) -> Option<Rate> {
        self.link.usable(self.direction)
    }
}

/// The link of a contract's guarantees: the named one, else the only managed one. `None` if the
/// contract guarantees nothing and names no link. Fails if the named link is not managed, or if
/// the contract guarantees something, names no link, and not exactly one link is managed.
pub(super) fn resolve<'l>(
    links: &'l [Link],
    contract: &Contract,
) -> Result<Option<&'l Link>, Reason> {
    let managed = || links.iter().map(|link| link.name.clone()).collect();
    match (contract.on(), links) {
        (Some(name), _) => match links.iter().find(|link| link.name == *name) {
            Some(link) => Ok(Some(link)),
            None => Err(Reason::NotManaged {
                link: name.clone(),
                managed: managed(),
            }),
        },
        (None, []) if contract.yields() => Err(Reason::NoLinkToYieldOn),
        (None, _) if !contract.is_guaranteed() => Ok(None),
        (None, []) => Err(Reason::NoLink),
        (None, [only]) => Ok(Some(only)),
        (None, _) => Err(Reason::WhichLink(managed())),
    }
}

/// The entries depth first: every entry, then all entries inside it. Entries with the same parent
/// keep their order. Entries that are not reachable from a top-level entry (an unknown parent, a
/// cycle) come last.
pub(super) fn parents_first(held: Vec<TargetEntry>) -> Vec<TargetEntry> {
    let mut waiting: Vec<Option<TargetEntry>> = held.into_iter().map(Some).collect();
    let mut children: BTreeMap<Option<TargetId>, Vec<usize>> = BTreeMap::new();
    for (n, entry) in waiting.iter().enumerate() {
        let parent = entry.as_ref().and_then(|entry| entry.parent);
        children.entry(parent).or_default().push(n);
    }
    let mut ordered = Vec::with_capacity(waiting.len());
    let mut next: Vec<usize> = children.remove(&None).unwrap_or_default();
    next.reverse();
    while let Some(n) = next.pop() {
        let Some(entry) = waiting[n].take() else {
            continue;
        };
        let below = children.remove(&Some(entry.id)).unwrap_or_default();
        next.extend(below.into_iter().rev());
        ordered.push(entry);
    }
    ordered.extend(waiting.into_iter().flatten());
    ordered
}

fn link_directions<'l>(
    links: &'l [Link],
    directions: &[Direction],
) -> impl Iterator<Item = LinkDirection<'l>> {
    let directions = directions.to_vec();
    links.iter().flat_map(move |link| {
        let directions = directions.clone();
        directions
            .into_iter()
            .map(move |direction| LinkDirection { link, direction })
    })
}
