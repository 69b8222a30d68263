//! The forest of targets over the managed links, and the sums that admission compares.
//!
//! Every sum is computed anew from the entries. No result is kept between requests, so no sum can
//! become stale. Building a world costs one pass over the entries.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::refusal::{Bound, Holder, Reason, Shortfall, SlowLink};
use super::{Entry, MAX_DEPTH, TargetId};
use crate::contract::{Contract, Direction, IfName};
use crate::link::Link;
use crate::units::{Amount, Rate};

/// Entries by id, their children, and the links.
pub(super) struct World<'a> {
    links: &'a [Link],
    entries: BTreeMap<TargetId, &'a Entry>,
    children: BTreeMap<TargetId, Vec<TargetId>>,
    roots: Vec<TargetId>,
}

/// One link in one direction.
#[derive(Clone, Copy)]
pub(super) struct Lane<'a> {
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

/// One inequality: the demands of a scope over some lanes are at most a rate.
struct Condition<'a> {
    scope: Scope,
    lanes: Vec<Lane<'a>>,
    bound: Bound,
    most: Rate,
}

impl<'a> World<'a> {
    pub(super) fn new(links: &'a [Link], entries: impl Iterator<Item = &'a Entry>) -> World<'a> {
        let entries: BTreeMap<_, _> = entries.map(|entry| (entry.id, entry)).collect();
        let mut children: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut roots = Vec::new();
        for entry in entries.values() {
            match entry.parent.filter(|parent| entries.contains_key(parent)) {
                Some(parent) => children.entry(parent).or_default().push(entry.id),
                None => roots.push(entry.id),
            }
        }
        World {
            links,
            entries,
            children,
            roots,
        }
    }

    /// Checks the target's position in the forest: a known parent, no cycle, not too deep, no mixed
    /// limits (condition 4).
    pub(super) fn stands(&self, id: TargetId) -> Result<(), Reason> {
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
                self.mixed(*outer, *inner)?;
            }
        }
        Ok(())
    }

    /// Checks the demands that the target's entry touches (conditions 1 to 3). `before` is the
    /// world without the request.
    pub(super) fn fits(&self, before: &World<'_>, id: TargetId) -> Result<(), Reason> {
        let mut worst: Option<Shortfall> = None;
        for lane in lanes(self.links, &Direction::ALL) {
            self.servable(id, lane)?;
            let demand = self.demand(id, lane);
            if demand == Amount(0) {
                continue;
            }
            // A demand that did not grow and did not move leaves the sums around it unchanged.
            let grown = self.own_min(id, lane).is_some()
                || demand > before.demand(id, lane)
                || self.parent(id) != before.parent(id);
            let short = self
                .conditions(id, lane, grown)
                .into_iter()
                .filter_map(|condition| self.shortfall(condition, id, lane))
                .min_by_key(|short| (short.asked.is_some(), short.largest));
            // A shortfall that no other amount would cure comes first, then the first lane with a
            // shortfall.
            worst = match (worst, short) {
                (None, short) => short,
                (Some(old), Some(new)) if old.asked.is_some() && new.asked.is_none() => Some(new),
                (old, _) => old,
            };
        }
        match worst {
            Some(shortfall) => Err(Reason::DoesNotFit(Box::new(shortfall))),
            None => Ok(()),
        }
    }

    /// Checks whether one link carries all promises on it, and whether every target on it is
    /// served.
    pub(super) fn carries(&self, link: &Link) -> Result<(), Reason> {
        for direction in Direction::ALL {
            let lane = Lane { link, direction };
            for id in self.entries.keys() {
                self.servable(*id, lane)?;
            }
            let top = self.top_condition(lane);
            let inner = self
                .entries
                .keys()
                .flat_map(|id| self.conditions_at(*id, lane));
            for condition in top.into_iter().chain(inner) {
                let sum = self.sum(condition.scope, &condition.lanes);
                if sum > condition.most.into() {
                    return Err(Reason::LinkTooSlow(Box::new(SlowLink {
                        direction,
                        holders: self.holders(&condition, None),
                        bound: condition.bound,
                        most: condition.most,
                        held: sum,
                        least: None,
                    })));
                }
            }
        }
        Ok(())
    }

    /// All targets with a guarantee on a link, in either direction.
    pub(super) fn all_holders(&self, name: &IfName) -> Vec<Holder> {
        let on_it = lanes(self.links, &Direction::ALL).filter(|lane| lane.link.name == *name);
        let holders = on_it.flat_map(|lane| {
            self.entries.values().filter_map(move |entry| {
                Some(Holder {
                    target: entry.target.clone(),
                    link: lane.link.name.clone(),
                    direction: lane.direction,
                    amount: self.own_min(entry.id, lane)?.into(),
                })
            })
        });
        holders.collect()
    }

    /// Checks that the target's demand on a lane is a valid rate: the lane has a capacity, and a
    /// slice of it is at least [`Rate::MIN`].
    fn servable(&self, id: TargetId, lane: Lane<'_>) -> Result<(), Reason> {
        let entry = self.entries[&id];
        if !self.is_on(entry, lane.link) {
            return Ok(());
        }
        let asks = match lane.direction {
            Direction::Up => entry.contract.min(Direction::Up).is_some(),
            Direction::Down => entry.contract.min(Direction::Down).is_some(),
        };
        let slice = entry
            .contract
            .slice()
            .filter(|_| lane.direction == Direction::Up);
        let Some(usable) = lane.usable() else {
            return match asks || slice.is_some() {
                true => Err(Reason::NoRate {
                    link: lane.link.name.clone(),
                    direction: lane.direction,
                }),
                false => Ok(()),
            };
        };
        match slice {
            Some(slice) if slice.of(usable).is_none() => Err(Reason::SliceTooSmall {
                link: lane.link.name.clone(),
                usable,
                slice,
            }),
            _ => Ok(()),
        }
    }

    /// The conditions that contain a target's demand on a lane: conditions 2 and 3 at the target
    /// and, if the demand has `grown`, the conditions of its ancestors up to the first one with a
    /// minimum on the lane. Above that ancestor no sum changes.
    fn conditions(&self, id: TargetId, lane: Lane<'a>, grown: bool) -> Vec<Condition<'a>> {
        let mut conditions = self.conditions_at(id, lane);
        if !grown {
            return conditions;
        }
        let mut at = self.parent(id);
        while let Some(place) = at {
            if let Some(inside) = self.min_condition(place, lane) {
                conditions.push(inside);
                return conditions;
            }
            conditions.extend(self.limit_conditions(place, lane));
            at = self.parent(place);
        }
        conditions.extend(self.top_condition(lane));
        conditions
    }

    /// Conditions 2 and 3 at one target.
    fn conditions_at(&self, id: TargetId, lane: Lane<'a>) -> Vec<Condition<'a>> {
        let mut conditions = self.limit_conditions(id, lane);
        conditions.extend(self.min_condition(id, lane));
        conditions
    }

    /// Condition 2 at one target.
    fn min_condition(&self, id: TargetId, lane: Lane<'a>) -> Option<Condition<'a>> {
        Some(Condition {
            scope: Scope::Below(id),
            lanes: [lane].into(),
            bound: Bound::Min(self.entries[&id].target.clone()),
            most: self.own_min(id, lane)?,
        })
    }

    /// Condition 3 at one target.
    fn limit_conditions(&self, id: TargetId, lane: Lane<'a>) -> Vec<Condition<'a>> {
        let entry = self.entries[&id];
        let condition = |most: Option<Rate>, word, directions: &[Direction]| {
            Some(Condition {
                scope: Scope::At(id),
                lanes: lanes(self.links, directions).collect(),
                bound: Bound::Limit(entry.target.clone(), word),
                most: most?,
            })
        };
        let direction = lane.direction;
        let one_way = entry.contract.limit(direction);
        let one_way = condition(one_way, direction.word(), &[direction]);
        let both = condition(entry.contract.both(), "both", &Direction::ALL);
        one_way.into_iter().chain(both).collect()
    }

    /// Condition 1.
    fn top_condition(&self, lane: Lane<'a>) -> Option<Condition<'a>> {
        Some(Condition {
            scope: Scope::Top,
            lanes: [lane].into(),
            bound: Bound::Link,
            most: lane.usable()?,
        })
    }

    /// The shortfall of a condition, as the message for one target on one lane needs it. `None` if
    /// the condition holds.
    fn shortfall(
        &self,
        condition: Condition<'_>,
        id: TargetId,
        lane: Lane<'_>,
    ) -> Option<Shortfall> {
        let sum = self.sum(condition.scope, &condition.lanes);
        if sum <= condition.most.into() {
            return None;
        }
        let own = self.own_min(id, lane);
        let below = self.demand_below(id, lane);
        // A minimum below the sum of the members is a different fault from a minimum that is too
        // large.
        let members = matches!(condition.scope, Scope::Below(at) if at == id);
        let asked = match (own, members) {
            (Some(own), false) => Amount::from(own),
            _ => Amount(0),
        };
        let held = sum.less(asked);
        let entry = self.entries[&id];
        let slice = entry.contract.slice();
        Some(Shortfall {
            link: lane.link.name.clone(),
            direction: lane.direction,
            capacity: lane.link.capacity(lane.direction),
            usable: lane.usable(),
            asked: own.filter(|_| !members),
            slice: slice.filter(|_| lane.direction == Direction::Up),
            holders: self.holders(&condition, own.map(|_| (id, lane))),
            largest: Amount::from(condition.most).less(held),
            least: below,
            bound: condition.bound,
            most: condition.most,
            held,
        })
    }

    /// The targets whose minimums make up a condition's sum, without the target `without` on its
    /// own lane.
    fn holders(
        &self,
        condition: &Condition<'_>,
        without: Option<(TargetId, Lane<'_>)>,
    ) -> Vec<Holder> {
        let mut holders = Vec::new();
        for lane in &condition.lanes {
            let mut waiting = self.members(condition.scope);
            waiting.reverse();
            while let Some(id) = waiting.pop() {
                let left_out = without.is_some_and(|(out, on)| {
                    out == id && on.direction == lane.direction && on.link.name == lane.link.name
                });
                match self.own_min(id, *lane) {
                    Some(_) if left_out => {}
                    Some(min) => holders.push(Holder {
                        target: self.entries[&id].target.clone(),
                        link: lane.link.name.clone(),
                        direction: lane.direction,
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

    fn sum(&self, scope: Scope, lanes: &[Lane<'_>]) -> Amount {
        let members = self.members(scope);
        let over_lanes = |id: &TargetId| lanes.iter().map(|lane| self.demand(*id, *lane)).sum();
        members.iter().map(over_lanes).sum::<Amount>()
    }

    /// The demand of a target on a lane: its minimum, else the sum below it. Zero for an unknown
    /// target.
    fn demand(&self, id: TargetId, lane: Lane<'_>) -> Amount {
        match self.own_min(id, lane) {
            Some(min) => min.into(),
            None => self.demand_below(id, lane),
        }
    }

    fn demand_below(&self, id: TargetId, lane: Lane<'_>) -> Amount {
        let below = self.below(id).iter();
        below.map(|child| self.demand(*child, lane)).sum()
    }

    /// The target's own minimum on a lane.
    fn own_min(&self, id: TargetId, lane: Lane<'_>) -> Option<Rate> {
        let entry = self.entries.get(&id)?;
        if !self.is_on(entry, lane.link) {
            return None;
        }
        let min = entry.contract.link_min(lane.direction, lane.usable()?);
        min.flatten()
    }

    /// Whether the guarantees of an entry are on this link.
    fn is_on(&self, entry: &Entry, link: &Link) -> bool {
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
    fn mixed(&self, one: TargetId, other: TargetId) -> Result<(), Reason> {
        let (one, other) = (self.entries[&one], self.entries[&other]);
        let one_way = |c: &Contract| c.up().or(c.down());
        match (one.contract.both(), one_way(&other.contract)) {
            (Some(_), Some(_)) => Err(Reason::Mixed {
                both: one.target.clone(),
                one_way: other.target.clone(),
            }),
            _ => match (other.contract.both(), one_way(&one.contract)) {
                (Some(_), Some(_)) => Err(Reason::Mixed {
                    both: other.target.clone(),
                    one_way: one.target.clone(),
                }),
                _ => Ok(()),
            },
        }
    }
}

impl Lane<'_> {
    fn usable(&self) -> Option<Rate> {
        self.link.usable(self.direction)
    }
}

/// The link of a contract's guarantees: the named one, else the only managed one. `None` if the
/// contract guarantees nothing and names no link.
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
        (None, _) if !contract.is_guaranteed() => Ok(None),
        (None, []) => Err(Reason::NoLink),
        (None, [only]) => Ok(Some(only)),
        (None, _) => Err(Reason::WhichLink(managed())),
    }
}

/// The entries with every parent before its children, otherwise in the given order. Entries that
/// are not reachable from a top-level entry (an unknown parent, a cycle) come last.
pub(super) fn parents_first(held: Vec<Entry>) -> Vec<Entry> {
    let mut waiting: Vec<Option<Entry>> = held.into_iter().map(Some).collect();
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

fn lanes<'l>(links: &'l [Link], directions: &[Direction]) -> impl Iterator<Item = Lane<'l>> {
    let directions = directions.to_vec();
    links.iter().flat_map(move |link| {
        let directions = directions.clone();
        directions
            .into_iter()
            .map(move |direction| Lane { link, direction })
    })
}
