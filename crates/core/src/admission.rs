//! Admission: the one place that grants or refuses a request. A request and the entries in force
//! come in; a [`Grant`] goes out, or a [`Refusal`] with the reason.
//!
//! # Terms
//! Targets form a forest: a [`TargetEntry`] with a parent is contained in the parent (a process in
//! a unit). For a link L and a direction d, the *demand* of a target is its own minimum on L in d
//! if it has one (a slice counts as its rate), else the sum of its children's demands. A minimum
//! includes the demands of all targets below.
//!
//! # Invariant
//! A set of entries is *admissible* if, for every managed link L and direction d,
//!
//! 1. the demands of all top-level targets sum to at most what L can promise in d
//!    ([`Link::usable`]);
//! 2. where a target has a minimum on L in d, its children's demands sum to at most that minimum;
//! 3. a target's demands over all links sum to at most its limit in d, and over both directions to
//!    at most its `both` (so no minimum is above an ancestor's limit);
//! 4. no chain of targets that ask for something is longer than [`MAX_DEPTH`], and none mixes
//!    `both` with one-way limits. The kernel's class trees can hold nothing else.
//!
//! [`admit`] checks whether the set stays admissible with the request in it. It checks only the
//! conditions that the request touches. So a set that has become inadmissible elsewhere (a link
//! lost speed) does not block requests for other targets. docs/reference/contracts.md has the
//! theorem about admissible sets.
//!
//! Only this module makes a [`Grant`]. If an amount is too large, the [`Refusal`] names the bound,
//! the targets whose guarantees count against it, and the amount that would fit.
//!
//! [`timing`] decides on promises to flows, which may have deadlines, and [`processors`] on
//! processor time. [`packet_costs`] computes how much of it a program needs for its flows.

mod forest;
pub mod packet_costs;
pub mod processors;
mod refusal;
pub mod timing;

use alloc::vec::Vec;
use core::fmt;

use forest::Forest;
pub use refusal::{Bound, CapacityShortfall, Holder, Reason, Refusal, Shortfall, Subject};

use crate::contract::{Contract, Direction, IfName};
use crate::link::Link;
use crate::target::Target;
use crate::units::Rate;

/// The number of a target while it is held: its slot, 1 to 65,535. No two held targets have the
/// same one. In the kernel's maps zero means "no target".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(core::num::NonZeroU16);

impl TargetId {
    /// The id of a slot, or `None` for zero.
    pub fn new(slot: u16) -> Option<TargetId> {
        core::num::NonZeroU16::new(slot).map(TargetId)
    }

    /// The number of the slot.
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A target with its contract and its position in the forest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetEntry {
    /// Number of the target.
    pub id: TargetId,
    /// The owner of the packets.
    pub target: Target,
    /// The nearest target that contains this one; `None` at the top level.
    pub parent: Option<TargetId>,
    /// The effective contract of all claims on the target.
    pub contract: Contract,
}

/// An admitted request. Only this module makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    entry: TargetEntry,
    min: [Option<Rate>; 2],
    max: [Option<Rate>; 2],
}

impl Grant {
    /// The admitted entry. If its contract guarantees something, the contract names the link, even
    /// if the request did not.
    pub fn entry(&self) -> &TargetEntry {
        &self.entry
    }

    /// The admitted entry, as [`Grant::entry`] returns it, by value.
    pub fn into_entry(self) -> TargetEntry {
        self.entry
    }

    /// The link of the guarantees; `None` if the contract names no link.
    pub fn link(&self) -> Option<&IfName> {
        self.entry.contract.on()
    }

    /// The rate that the link reserves for the target in one direction: its minimum, or its slice
    /// as a rate. `None` if nothing is reserved.
    pub fn min(&self, direction: Direction) -> Option<Rate> {
        self.min[direction as usize]
    }

    /// The highest rate that the link gives in one direction, apart from the limits over all links:
    /// for sending, the rate of a slice without `extra`. `None` for every other contract.
    pub fn max(&self, direction: Direction) -> Option<Rate> {
        self.max[direction as usize]
    }
}

/// An admitted capacity of a link. Only this module makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkGrant {
    link: Link,
}

impl LinkGrant {
    /// The link with its new capacity.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The link with its new capacity, by value.
    pub fn into_link(self) -> Link {
        self.link
    }
}

/// Decides whether a request fits beside the entries in force. `links` are the managed links.
/// `held` are the entries in force, and degraded ones are passed without their guarantees
/// ([`Contract::without_guarantees`]). The request replaces an entry of the same id in `held`.
///
/// # Errors
/// [`Refusal`] if the link of the guarantees is not managed or not unique, if it can promise
/// nothing in a direction with a guarantee, if a slice's share of it is below [`Rate::MIN`], if the
/// entry has no valid position in the forest, or if the request breaks one of the module's
/// conditions.
pub fn admit(links: &[Link], held: &[TargetEntry], request: TargetEntry) -> Result<Grant, Refusal> {
    let refuse = |reason| Refusal::of_target(&request.target, reason);
    let link = forest::resolve(links, &request.contract).map_err(refuse)?;
    let mut entry = request.clone();
    if let Some(link) = link {
        entry.contract = entry.contract.with_link(link.name.clone());
    }
    let before = Forest::new(links, held.iter());
    let others = held.iter().filter(|h| h.id != entry.id);
    let after = Forest::new(links, others.chain(core::iter::once(&entry)));
    after.check_position(entry.id).map_err(refuse)?;
    after.check_demands(&before, entry.id).map_err(refuse)?;
    let each = |read: &dyn Fn(Direction, Rate) -> Option<Rate>| {
        Direction::ALL.map(|d| read(d, link?.usable(d)?))
    };
    let min = each(&|d, rate| entry.contract.link_min(d, rate).flatten());
    let max = each(&|d, rate| entry.contract.link_max(d, rate));
    Ok(Grant { entry, min, max })
}

/// Decides whether all present promises still fit if `new` is managed with its new capacity. A link
/// of the same name in `links` is replaced.
///
/// # Errors
/// [`Refusal`] if a direction in which `new` can promise nothing has guarantees, if the guarantees
/// exceed the new capacity, if a slice, which grows with the capacity, exceeds a limit or a minimum
/// around it, or if a slice's share of the capacity is below [`Rate::MIN`].
pub fn admit_link(links: &[Link], held: &[TargetEntry], new: Link) -> Result<LinkGrant, Refusal> {
    let others = || links.iter().filter(|link| link.name != new.name).cloned();
    let with = |link: Link| -> Vec<Link> { others().chain([link]).collect() };
    for direction in Direction::ALL {
        if new.usable(direction).is_none() {
            let mut holders = Forest::new(links, held.iter()).all_holders(&new.name);
            holders.retain(|holder| holder.direction == direction);
            if !holders.is_empty() {
                return Err(Refusal::of_link(&new.name, Reason::StillHeld { holders }));
            }
        }
    }
    let all = with(new.clone());
    let Err(reason) = Forest::new(&all, held.iter()).check_link(&new) else {
        return Ok(LinkGrant { link: new });
    };
    let carries = |link: &Link| Forest::new(&with(link.clone()), held.iter()).check_link(link);
    let reason = refusal::with_nearest(reason, &new, carries);
    Err(Refusal::of_link(&new.name, reason))
}

/// Decides whether netnice can stop managing a link.
///
/// # Errors
/// [`Refusal`] if the link is not managed, or if a target has a guarantee on it.
pub fn admit_unmanage(links: &[Link], held: &[TargetEntry], name: &IfName) -> Result<(), Refusal> {
    if !links.iter().any(|link| link.name == *name) {
        let managed = links.iter().map(|link| link.name.clone()).collect();
        let reason = Reason::NotManaged {
            link: name.clone(),
            managed,
        };
        return Err(Refusal::of_link(name, reason));
    }
    let holders = Forest::new(links, held.iter()).all_holders(name);
    match holders.is_empty() {
        true => Ok(()),
        false => Err(Refusal::of_link(name, Reason::StillHeld { holders })),
    }
}

/// Admits earlier entries one by one, for example after a restart: each entry, then all entries
/// inside it, then the next one; otherwise in the given order. Returns each entry with its result,
/// in that order. The limits of a refused entry still count for the entries after it, and its
/// guarantees do not. An entry without a valid position in the forest does not count at all, so the
/// entries inside it are refused too.
pub fn readmit(
    links: &[Link],
    held: Vec<TargetEntry>,
) -> Vec<(TargetEntry, Result<Grant, Refusal>)> {
    let mut accepted: Vec<TargetEntry> = Vec::with_capacity(held.len());
    let mut results = Vec::with_capacity(held.len());
    for entry in forest::parents_first(held) {
        let answer = admit(links, &accepted, entry.clone());
        match &answer {
            Ok(grant) => accepted.push(grant.entry.clone()),
            Err(refusal) if refusal.has_no_position() => {}
            Err(_) => accepted.push(TargetEntry {
                contract: entry.contract.without_guarantees(),
                ..entry.clone()
            }),
        }
        results.push((entry, answer));
    }
    results
}

/// The largest number of targets in one chain, from outermost to innermost. Targets whose contract
/// is empty do not count. HTB has eight levels; the link's root, the leaves and one spare take
/// three.
pub const MAX_DEPTH: usize = 5;

#[cfg(test)]
mod tests;
