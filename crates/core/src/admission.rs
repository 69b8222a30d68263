//! Does it fit? The one place where a promise is made or refused.
//!
//! # Terms
//! Targets form a forest: an [`Entry`] with a parent is contained in it (a process in a unit).
//! For a link L and a direction d, the *demand* of a target is its own minimum on L in d if it
//! has one, else the sum of its children's demands: a minimum stands for everything below it.
//!
//! # What is kept
//! A set of entries is *admissible* when, for every managed link L and direction d,
//!
//! 1. the demands of all top-level targets sum to at most what L can promise in d;
//! 2. where a target has a minimum on L in d, its children's demands sum to at most that;
//! 3. a target's demands over all links sum to at most its limit in d, and over both directions
//!    to at most its `both` (so no minimum is above any ancestor's limit);
//! 4. no chain of targets for which anything is asked is longer than [`MAX_DEPTH`], and none mixes
//!    `both` with one-way limits: both are what the kernel's class trees can hold.
//!
//! [`admit`] keeps the set admissible: it tells whether it would still be so with the request in
//! it. It looks only at the conditions that the request touches, so a set that has become
//! inadmissible elsewhere (a link that lost speed) does not stand in the way of others. The
//! theorem about what an admissible set is good for is in docs/reference/contracts.md.
//!
//! Whether deadlines fit is asked of [`timing`].
//!
//! A [`Grant`] can be made here and nowhere else. A [`Refusal`] says all that the asker needs to
//! ask again with success.

mod refusal;
pub mod timing;
mod world;

use alloc::vec::Vec;
use core::fmt;

pub use refusal::{Bound, Holder, Reason, Refusal, Shortfall, SlowLink, Subject};
use world::World;

use crate::contract::{Contract, Direction, IfName};
use crate::link::Link;
use crate::target::Target;
use crate::units::Rate;

/// The number of a target while it is held, unique in its ledger. Zero is never used: in the
/// kernel's maps it means "nobody".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(core::num::NonZeroU16);

impl TargetId {
    /// The id of a slot, if it is not zero.
    pub fn new(slot: u16) -> Option<TargetId> {
        core::num::NonZeroU16::new(slot).map(TargetId)
    }

    /// The slot's number.
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A target with what it asks for and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub id: TargetId,
    /// Who it is.
    pub target: Target,
    /// The nearest target that contains it.
    pub parent: Option<TargetId>,
    /// What it asks for: the effective contract of all its claims.
    pub contract: Contract,
}

/// A request that was admitted. Only this module makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    entry: Entry,
    min: [Option<Rate>; 2],
    max: [Option<Rate>; 2],
}

impl Grant {
    /// The entry. If it is guaranteed anything, its contract names the link, also where the
    /// request did not.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The entry, without its grant.
    pub fn into_entry(self) -> Entry {
        self.entry
    }

    /// The link that the guarantees are on.
    pub fn link(&self) -> Option<&IfName> {
        self.entry.contract.on()
    }

    /// What the link keeps for the target in one direction; a slice as its rate.
    pub fn min(&self, direction: Direction) -> Option<Rate> {
        self.min[direction as usize]
    }

    /// The most that the link gives in one direction, beside the limits over all links: of a
    /// slice without extra its rate.
    pub fn max(&self, direction: Direction) -> Option<Rate> {
        self.max[direction as usize]
    }
}

/// A link's new capacity that was admitted. Only this module makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkGrant {
    link: Link,
}

impl LinkGrant {
    /// The link.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The link, without its grant.
    pub fn into_link(self) -> Link {
        self.link
    }
}

/// Whether a request fits beside what is held. An entry of the same id in `held` is replaced by
/// the request. `links` are the managed ones; `held` are the entries in force, degraded ones
/// without their guarantees ([`Contract::without_guarantees`]).
pub fn admit(links: &[Link], held: &[Entry], request: Entry) -> Result<Grant, Refusal> {
    let refuse = |reason| Refusal::of_target(&request.target, reason);
    let link = world::resolve(links, &request.contract).map_err(refuse)?;
    let mut entry = request.clone();
    if let Some(link) = link {
        entry.contract = entry.contract.with_link(link.name.clone());
    }
    let before = World::new(links, held.iter());
    let others = held.iter().filter(|h| h.id != entry.id);
    let after = World::new(links, others.chain(core::iter::once(&entry)));
    after.stands(entry.id).map_err(refuse)?;
    after.fits(&before, entry.id).map_err(refuse)?;
    let each = |read: &dyn Fn(Direction, Rate) -> Option<Rate>| {
        Direction::ALL.map(|d| read(d, link?.usable(d)?))
    };
    let min = each(&|d, rate| entry.contract.link_min(d, rate).flatten());
    let max = each(&|d, rate| entry.contract.link_max(d, rate));
    Ok(Grant { entry, min, max })
}

/// Whether everything that is promised still fits when a link is managed with a new capacity.
pub fn admit_link(links: &[Link], held: &[Entry], new: Link) -> Result<LinkGrant, Refusal> {
    let others = || links.iter().filter(|link| link.name != new.name).cloned();
    let with = |link: Link| -> Vec<Link> { others().chain([link]).collect() };
    for direction in Direction::ALL {
        if new.usable(direction).is_none() {
            let mut holders = World::new(links, held.iter()).all_holders(&new.name);
            holders.retain(|holder| holder.direction == direction);
            if !holders.is_empty() {
                return Err(Refusal::of_link(&new.name, Reason::StillHeld { holders }));
            }
        }
    }
    let all = with(new.clone());
    let Err(reason) = World::new(&all, held.iter()).carries(&new) else {
        return Ok(LinkGrant { link: new });
    };
    let carries = |link: &Link| World::new(&with(link.clone()), held.iter()).carries(link);
    let reason = refusal::with_least(reason, &new, carries);
    Err(Refusal::of_link(&new.name, reason))
}

/// Whether a link can be given back: nobody is promised anything on it.
pub fn admit_unmanage(links: &[Link], held: &[Entry], name: &IfName) -> Result<(), Refusal> {
    if !links.iter().any(|link| link.name == *name) {
        let managed = links.iter().map(|link| link.name.clone()).collect();
        let reason = Reason::NotManaged {
            link: name.clone(),
            managed,
        };
        return Err(Refusal::of_link(name, reason));
    }
    let holders = World::new(links, held.iter()).all_holders(name);
    match holders.is_empty() {
        true => Ok(()),
        false => Err(Refusal::of_link(name, Reason::StillHeld { holders })),
    }
}

/// Admits what was held before, one by one, as after a restart: parents first, else in the given
/// order. What no longer fits comes back with its refusal; its limits still count for what comes
/// after it, its guarantees do not. What has no place in the forest does not count at all, so
/// what is inside it comes back refused too.
pub fn readmit(links: &[Link], held: Vec<Entry>) -> Vec<(Entry, Result<Grant, Refusal>)> {
    let mut accepted: Vec<Entry> = Vec::with_capacity(held.len());
    let mut results = Vec::with_capacity(held.len());
    for entry in world::parents_first(held) {
        let answer = admit(links, &accepted, entry.clone());
        match &answer {
            Ok(grant) => accepted.push(grant.entry.clone()),
            Err(refusal) if refusal.is_placeless() => {}
            Err(_) => accepted.push(Entry {
                contract: entry.contract.without_guarantees(),
                ..entry.clone()
            }),
        }
        results.push((entry, answer));
    }
    results
}

/// Targets in one chain, outermost to innermost. HTB stops at eight levels; the link's root, the
/// leaves and one spare take three.
pub const MAX_DEPTH: usize = 5;

#[cfg(test)]
mod tests;
