//! Who holds what: the one record of links and targets, and the only place that changes it.
//!
//! The ledger is a value. A request works on a copy of it, the *draft*; where admission, the kernel or the state file
//! say no, the draft is thrown away and nothing has happened. So there is no undoing inside the ledger.
//!
//! # Terms
//! - A *held* target has a **slot** (used again after it; the kernel's class numbers are made of it) and an **id**
//!   (never used again; sockets and processes carry it in the kernel, also long after the target is gone).
//! - Its *claims* say who asked for what; the *entry* is what was admitted of them, and what is installed.
//! - Its *place* says what contains it, see [`place`]. Its *body* says what it is made of.
//! - A *remnant* is a target whose last process has ended while packets of it still wait; it keeps its limit.
//!
//! ```text
//!            open, ask                 last claim taken back, last process gone
//!   nothing ───────────> held ─────────────────────────────────────────────────> nothing
//!                        │  ^                                                       ^
//!        does not fit    v  │ fits again                  last process gone,        │ queues empty,
//!        any more      degraded                           packets wait: remnant ────┘ or 60 s
//! ```

mod admit;
mod held;
mod invariants;
mod links;
pub(crate) mod part;
pub(crate) mod place;
mod remnant;
pub(crate) mod undo;

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::admission::{Entry, TargetId};
use netnice_core::claims::Claims;
use netnice_core::contract::{Contract, IfName};
use netnice_core::target::Target;
use netnice_kernel::plan::MAX_SLOT;

pub(crate) use held::{AppKey, Body, Bound, Closed, Held, Newcomer, Root};
pub(crate) use links::{Managed, describe_link};
use place::Containers;
pub(crate) use place::Place;
pub(crate) use remnant::Remnant;

use crate::denied::Denied;

/// All that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    links: BTreeMap<IfName, Managed>,
    held: BTreeMap<TargetId, Held>,
    /// The slot of each held target, by its number.
    slots: BTreeMap<u32, TargetId>,
    remnants: BTreeMap<TargetId, Remnant>,
    /// What the direct path has of each link; not kept over a restart, for its drivers know.
    parts: BTreeMap<IfName, part::Part>,
    next_id: u32,
    /// Up to which number it was tried lately whether what is set aside may count again.
    healed_to: u32,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            links: BTreeMap::new(),
            held: BTreeMap::new(),
            slots: BTreeMap::new(),
            remnants: BTreeMap::new(),
            parts: BTreeMap::new(),
            next_id: 1,
            healed_to: 0,
        }
    }
}

impl Ledger {
    /// The held targets, by slot.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Held> {
        self.held.values()
    }

    /// The held target of a slot.
    pub(crate) fn get(&self, slot: TargetId) -> Option<&Held> {
        self.held.get(&slot)
    }

    /// The held target of a number.
    pub(crate) fn by_id(&self, id: u32) -> Option<&Held> {
        self.held.get(self.slots.get(&id)?)
    }

    /// How many targets and remnants of targets count for a user without privilege.
    pub fn targets_of(&self, uid: u32) -> usize {
        self.users().filter(|user| *user == uid).count()
    }

    /// How many count for any of them.
    pub fn targets_of_users(&self) -> usize {
        self.users().count()
    }

    /// The user without privilege of each target and remnant that has one. A target is made of one user's processes where
    /// users ask something of it, so it has one at most.
    pub fn users(&self) -> impl Iterator<Item = u32> {
        let held = self.held.values().filter_map(Held::user);
        held.chain(self.remnants.values().filter_map(|left| left.user))
    }

    /// Whether nothing is held, managed or left over.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.links.is_empty() && self.remnants.is_empty()
    }

    /// The first number that was never given out.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id
    }

    /// Skips numbers that an earlier daemon may have given out.
    pub(crate) fn skip_ids(&mut self, next: u32) {
        self.next_id = self.next_id.max(next);
    }

    /// The target of this name. Of two processes that had the same number one after the other, the later one.
    pub(crate) fn find(&self, target: &Target) -> Option<&Held> {
        let same = |held: &&Held| held.entry.target == *target;
        self.held.values().filter(same).max_by_key(|held| held.id)
    }

    /// The target that was made of this process by its number.
    pub(crate) fn find_process(&self, root: Root) -> Option<&Held> {
        self.held.values().find(|held| {
            matches!(held.entry.target, Target::Pid(_))
                && matches!(&held.body, Body::Processes { roots, .. } if roots.contains(&root))
        })
    }

    /// The target of another name that is made of the same thing: a unit and its control group, a user's name and
    /// number, two paths of one file.
    pub(crate) fn find_alias(&self, body: &Body) -> Option<&Held> {
        self.held.values().find(|held| match (&held.body, body) {
            (Body::App(Some(one)), Body::App(Some(other))) => one == other,
            (Body::Cgroup(Some(one)), Body::Cgroup(Some(other))) => one.id == other.id,
            (Body::User(one), Body::User(other)) => one == other,
            _ => false,
        })
    }

    /// The entries in force, as admission wants them; the direct path's parts are among them.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let held = self.held.values().map(|held| held.entry.clone());
        held.chain(self.part_entries()).collect()
    }

    /// What contains a target, from the inside out.
    pub(crate) fn around(&self, slot: TargetId) -> impl Iterator<Item = &Held> {
        let mut next = self.held.get(&slot).and_then(|held| held.entry.parent);
        std::iter::from_fn(move || {
            let here = self.held.get(&next?)?;
            next = here.entry.parent;
            Some(here)
        })
        .take(LONGEST_CHAIN)
    }

    /// What a target contains directly.
    pub(crate) fn children(&self, slot: TargetId) -> impl Iterator<Item = &Held> {
        self.held
            .values()
            .filter(move |held| held.entry.parent == Some(slot))
    }

    /// Takes in a target that asks for nothing yet. What it contains is inside it from now on.
    pub(crate) fn open(&mut self, newcomer: Newcomer) -> Result<TargetId, Denied> {
        let slot = self.free_slot()?;
        let id = self.next_id;
        self.next_id += 1;
        let Newcomer {
            target,
            body,
            place,
            inside,
        } = newcomer;
        let known = |id: Option<u32>| id.filter(|id| self.by_id(*id).is_some());
        // A number may be of a target that is gone: then nobody is around.
        let place = Place {
            own: known(place.own),
            app: known(place.app),
            ..place
        };
        let is_app = matches!(body, Body::App(_));
        let around = place.own;
        let held = Held {
            entry: Entry {
                id: slot,
                parent: None,
                contract: Contract::default(),
                target,
            },
            id,
            body,
            place,
            claims: Claims::default(),
            refused: None,
            aside: None,
            rule: None,
            changed_ns: 0,
        };
        self.held.insert(slot, held);
        self.slots.insert(id, slot);
        for inner in self.held.values_mut().filter(|h| inside.contains(&h.id)) {
            match is_app {
                true if inner.place.own.is_none() => inner.place.app = Some(id),
                false if inner.place.own == around => inner.place.own = Some(id),
                _ => {}
            }
        }
        self.seat(slot);
        Ok(slot)
    }

    /// Lets a target go. What it contained is contained by what is around now; guarantees that do not fit there are
    /// taken out of force and said to be so.
    pub(crate) fn close(&mut self, slot: TargetId) -> Option<Closed> {
        let held = self.held.remove(&slot)?;
        self.slots.remove(&held.id);
        let heir = held.place.own.filter(|id| self.by_id(*id).is_some());
        let mut orphans = Vec::new();
        for other in self.held.values_mut() {
            if other.place.own == Some(held.id) {
                other.place.own = heir;
            }
            if other.place.app == Some(held.id) {
                other.place.app = None;
            }
            if other.entry.parent == Some(slot) {
                orphans.push(other.entry.id);
            }
        }
        for remnant in self.remnants.values_mut() {
            if remnant.parent == Some(slot) {
                remnant.parent = held.entry.parent;
            }
        }
        for orphan in orphans {
            self.reseat(orphan);
        }
        Some(Closed { held, heir })
    }

    /// Takes in a target as it was held before a restart, not admitted yet.
    pub(crate) fn restore(&mut self, held: Held) {
        self.next_id = self.next_id.max(held.id.saturating_add(1));
        self.slots.insert(held.id, held.entry.id);
        self.held.insert(held.entry.id, held);
    }

    /// Changes what a target is made of: a process has joined, a control group was made anew.
    pub(crate) fn rebody(&mut self, slot: TargetId, body: Body, place: Place) {
        if let Some(held) = self.held.get_mut(&slot) {
            held.body = body;
            held.place = place;
        }
        self.seat(slot);
    }

    /// Takes targets in that lie inside what has joined this one. `around` is what they lay in before.
    pub(crate) fn contain(&mut self, slot: TargetId, inside: &BTreeSet<u32>, around: Option<u32>) {
        let Some(id) = self.held.get(&slot).map(|held| held.id) else {
            return;
        };
        let above = self.descent(Some(id));
        // A number may be of a target that is gone: then nobody is around.
        let known = |own: Option<u32>| own.filter(|own| self.slots.contains_key(own));
        let around = known(around);
        let inner: Vec<TargetId> = self
            .held
            .values()
            .filter(|held| inside.contains(&held.id) && !above.contains(&held.id))
            .filter(|held| known(held.place.own) == around)
            .map(|held| held.entry.id)
            .collect();
        for inner in inner {
            if let Some(held) = self.held.get_mut(&inner) {
                held.place.own = Some(id);
            }
        }
        self.seat(slot);
    }

    /// Names the policy rule that asks for a target.
    pub(crate) fn set_rule(&mut self, slot: TargetId, rule: Option<String>) {
        if let Some(held) = self.held.get_mut(&slot) {
            held.rule = rule;
        }
    }

    /// Puts a target under what contains it now, and under it what it contains.
    fn seat(&mut self, slot: TargetId) {
        let containers = Containers::of(self);
        let moves: Vec<(TargetId, Option<TargetId>)> = self
            .held
            .values()
            .map(|held| (held.entry.id, containers.around(held)))
            .filter(|(id, parent)| *id == slot || *parent == Some(slot))
            .collect();
        for (id, parent) in moves {
            if let Some(held) = self.held.get_mut(&id) {
                held.entry.parent = parent;
            }
        }
    }

    fn at(&self, slot: TargetId) -> Result<&Held, Denied> {
        self.held
            .get(&slot)
            .ok_or_else(|| Denied::Failed(format!("target {slot} is not held")))
    }

    fn free_slot(&self) -> Result<TargetId, Denied> {
        (1..=MAX_SLOT)
            .filter_map(TargetId::new)
            .find(|slot| !self.held.contains_key(slot) && !self.remnants.contains_key(slot))
            .ok_or_else(|| {
                Denied::NotAdmitted(format!(
                    "refused: {MAX_SLOT} targets are held, which is as many as there is room for; clear some first"
                ))
            })
    }
}

/// Targets in one chain at most, with those that are set aside and take no level of the kernel's classes.
const LONGEST_CHAIN: usize = 64;
