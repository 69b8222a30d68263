//! The ledger: the record of all links, targets and claims. Only its methods change it.
//!
//! The ledger is a value. A request works on a copy of it, in a *draft*. Opening a target fails if
//! no slot is free; changes of claims and links fail if admission refuses them. If admission
//! refuses the draft, or the kernel or the state file fails, the draft is dropped and the ledger is
//! as before.
//!
//! # Terms
//! - A *held* target has a **slot**, from which the kernel's class numbers derive, and an **id**,
//!   which its sockets and processes carry in the kernel. A slot is reused after its target. An id
//!   is not, because sockets can carry it long after the target is closed.
//! - The *claims* of a target are the requests for it, by user. Its *entry* is the admitted part of
//!   the claims, which is installed.
//! - A claim with a schedule is *dormant* while the schedule is not active: it is admitted, and not
//!   in force (module `schedules`).
//! - A *traffic quota* of a claim is not in the contract in force until it is spent, and then only
//!   with a rate (module `traffic_quotas`).
//! - The *place* of a target is what contains it, see [`place`]. Its *body* is what it consists of.
//! - A *reservation* of processor time is what the clause `cpu` asks for (module `processors`).
//! - A *draining* target is a limited target whose last process has ended. It keeps its limit,
//!   because packets of it may still wait. The module `draining` has two rarer cases.
//!
//! ```text
//!            opened            last claim withdrawn, or last process ended without a limit
//!   nothing ───────> held ───────────────────────────────────────────────────────────> nothing
//!                    │ ^ │                                                               ^
//!          no longer │ │ │ last process ended                  no packet for 3 s,        │
//!               fits │ │ │ with a limit                        at most 60 s              │
//!                    │ │ └──────────────────────> draining ──────────────────────────────┘
//!                    v │ fits again
//!                  degraded
//! ```

mod admit;
mod budgets;
pub(crate) mod direct_part;
mod draining;
mod flow_minimums;
mod held;
mod invariants;
mod links;
pub(crate) mod place;
mod processors;
pub(crate) mod redirects;
pub(crate) mod rollbacks;
mod schedules;
mod traffic_quotas;

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::admission::processors::Processors;
use netnice_core::admission::{TargetEntry, TargetId};
use netnice_core::claims::Claims;
use netnice_core::contract::{Contract, IfName};
use netnice_core::target::Target;
use netnice_core::units::{Amount, Instant};
use netnice_kernel::plan::MAX_SLOT;

pub(crate) use budgets::BudgetUse;
pub(crate) use draining::DrainingTarget;
pub(crate) use held::{
    AppKey, AutoTime, Body, CgroupRef, ClosedTarget, HeldTarget, NewTarget, ProcessId,
};
pub(crate) use links::{ManagedLink, describe_link, slice_text};
use place::ContainmentIndex;
pub(crate) use place::TargetPlace;
pub(crate) use processors::DriverTime;
pub(crate) use traffic_quotas::HeldQuota;

use crate::error::RequestError;

/// All links, targets and draining targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    links: BTreeMap<IfName, ManagedLink>,
    held: BTreeMap<TargetId, HeldTarget>,
    /// The slot of each held target, by its id.
    slots: BTreeMap<u32, TargetId>,
    draining: BTreeMap<TargetId, DrainingTarget>,
    /// The direct path's part of each link. Not in the state file: after a restart, the drivers
    /// report it.
    parts: BTreeMap<IfName, direct_part::DirectPart>,
    /// What flows of the direct path have of budgets, by link and the budget's id. Not in the state
    /// file, as with the parts.
    flow_minimums: BTreeMap<IfName, BTreeMap<u32, Amount>>,
    /// The places of redirected targets, by number.
    redirects: BTreeMap<u16, redirects::RedirectPlace>,
    /// The targets that have no class until their driver serves them, by id, with the time at which
    /// they get one in any case. Not in the state file: the next daemon gives them their classes.
    awaiting: BTreeMap<u32, Instant>,
    /// What the processors of the host can be promised. Not in the state file.
    processors: Processors,
    /// What drivers need of the processors while a target has its time exactly. Not in the state
    /// file either.
    driver_time: DriverTime,
    next_id: u32,
    /// The id up to which [`Ledger::heal`] has tried targets that are set aside.
    healed_to: u32,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            links: BTreeMap::new(),
            held: BTreeMap::new(),
            slots: BTreeMap::new(),
            draining: BTreeMap::new(),
            parts: BTreeMap::new(),
            flow_minimums: BTreeMap::new(),
            redirects: BTreeMap::new(),
            awaiting: BTreeMap::new(),
            processors: Processors::default(),
            driver_time: DriverTime::default(),
            next_id: 1,
            healed_to: 0,
        }
    }
}

impl Ledger {
    /// The held targets, by slot.
    pub(crate) fn held(&self) -> impl Iterator<Item = &HeldTarget> {
        self.held.values()
    }

    /// The held target in a slot; `None` if the slot is free.
    pub(crate) fn get(&self, slot: TargetId) -> Option<&HeldTarget> {
        self.held.get(&slot)
    }

    /// The held target with this id; `None` if there is none.
    pub(crate) fn by_id(&self, id: u32) -> Option<&HeldTarget> {
        self.held.get(self.slots.get(&id)?)
    }

    /// The number of held and draining targets that count for the quota `targets` of an
    /// unprivileged user.
    pub(crate) fn targets_of(&self, uid: u32) -> usize {
        self.users().filter(|user| *user == uid).count()
    }

    /// The number of held and draining targets that count for any unprivileged user.
    pub(crate) fn targets_of_users(&self) -> usize {
        self.users().count()
    }

    /// For each held or draining target with a claim of an unprivileged user: the uid of that user.
    /// A target on which unprivileged users have claims consists of one user's processes, so it has
    /// at most one such user.
    pub(crate) fn users(&self) -> impl Iterator<Item = u32> {
        let held = self.held.values().filter_map(HeldTarget::user);
        held.chain(self.draining.values().filter_map(|left| left.user))
    }

    /// True if there is no held target, no managed link and no draining target.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.links.is_empty() && self.draining.is_empty()
    }

    /// The id that the next opened target gets.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id
    }

    /// Skips ids that an earlier daemon may have assigned: later ids are `next` or larger.
    pub(crate) fn skip_ids(&mut self, next: u32) {
        self.next_id = self.next_id.max(next);
    }

    /// The held target of this name. If two have it (their processes had the same pid one after the
    /// other), the one that was opened later. `None` if no held target has it.
    pub(crate) fn find(&self, target: &Target) -> Option<&HeldTarget> {
        let same = |held: &&HeldTarget| held.entry.target == *target;
        self.held.values().filter(same).max_by_key(|held| held.id)
    }

    /// The held target that names this process by its pid; `None` if there is none.
    pub(crate) fn find_process(&self, root: ProcessId) -> Option<&HeldTarget> {
        self.held.values().find(|held| {
            matches!(held.entry.target, Target::Pid(_))
                && matches!(&held.body, Body::Processes { roots, .. } if roots.contains(&root))
        })
    }

    /// A held target with this body, of whatever name: a unit and its control group have the same
    /// body, and so have a user's name and number, or two paths of one file. `None` for a body of
    /// processes, or if the executable or control group does not exist now.
    pub(crate) fn find_alias(&self, body: &Body) -> Option<&HeldTarget> {
        self.held.values().find(|held| match (&held.body, body) {
            (Body::App(Some(one)), Body::App(Some(other))) => one == other,
            (Body::Cgroup(Some(one)), Body::Cgroup(Some(other))) => one.id == other.id,
            (Body::User(one), Body::User(other)) => one == other,
            _ => false,
        })
    }

    /// The entries in force, for admission, including the direct path's parts.
    pub(crate) fn entries(&self) -> Vec<TargetEntry> {
        let held = self.held.values().map(|held| held.entry.clone());
        held.chain(self.part_entries())
            .chain(self.flow_entries())
            .collect()
    }

    /// The targets around a target, innermost first, at most [`MAX_CHAIN`].
    pub(crate) fn around(&self, slot: TargetId) -> impl Iterator<Item = &HeldTarget> {
        let mut next = self.held.get(&slot).and_then(|held| held.entry.parent);
        std::iter::from_fn(move || {
            let here = self.held.get(&next?)?;
            next = here.entry.parent;
            Some(here)
        })
        .take(MAX_CHAIN)
    }

    /// The targets that a target contains directly.
    pub(crate) fn children(&self, slot: TargetId) -> impl Iterator<Item = &HeldTarget> {
        self.held
            .values()
            .filter(move |held| held.entry.parent == Some(slot))
    }

    /// Adds a target without claims. The target of an executable contains those held targets in
    /// `inside` that descend from no process target. For a target of processes call
    /// [`Ledger::put_inside`] next.
    ///
    /// # Errors
    /// If no slot is free.
    pub(crate) fn open(&mut self, newcomer: NewTarget) -> Result<TargetId, RequestError> {
        let slot = self.free_slot()?;
        let id = self.next_id;
        self.next_id += 1;
        let NewTarget {
            target,
            body,
            place,
            inside,
        } = newcomer;
        let known = |id: Option<u32>| id.filter(|id| self.by_id(*id).is_some());
        // The id may be of a closed target: then the place is in no target.
        let place = TargetPlace {
            own: known(place.own),
            app: known(place.app),
            ..place
        };
        let is_app = matches!(body, Body::App(_));
        let held = HeldTarget {
            entry: TargetEntry {
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
            time_refused: None,
            aside: None,
            rule: None,
            changed_ns: 0,
            phases: BTreeMap::new(),
            quotas: BTreeMap::new(),
            processors: BTreeSet::new(),
            auto: AutoTime::default(),
        };
        self.held.insert(slot, held);
        self.slots.insert(id, slot);
        for inner in self.held.values_mut().filter(|h| inside.contains(&h.id)) {
            if is_app && inner.place.own.is_none() {
                inner.place.app = Some(id);
            }
        }
        self.set_parents(slot);
        Ok(slot)
    }

    /// Removes a target. The targets inside it are then directly inside the target around it. If
    /// their claims do not fit there, those of unprivileged users are set aside, or the targets
    /// become degraded. `None` if the slot is free.
    pub(crate) fn close(&mut self, slot: TargetId) -> Option<ClosedTarget> {
        let held = self.held.remove(&slot)?;
        self.slots.remove(&held.id);
        self.awaiting.remove(&held.id);
        let outer = held.place.own.filter(|id| self.by_id(*id).is_some());
        let mut orphans = Vec::new();
        for other in self.held.values_mut() {
            if other.place.own == Some(held.id) {
                other.place.own = outer;
            }
            if other.place.app == Some(held.id) {
                other.place.app = None;
            }
            if other.entry.parent == Some(slot) {
                orphans.push(other.entry.id);
            }
        }
        for draining in self.draining.values_mut() {
            if draining.parent == Some(slot) {
                draining.parent = held.entry.parent;
            }
        }
        for orphan in orphans {
            self.readmit_in_place(orphan);
        }
        Some(ClosedTarget { held, outer })
    }

    /// Adds a target as the state file has it, without admission.
    pub(crate) fn restore(&mut self, held: HeldTarget) {
        self.next_id = self.next_id.max(held.id.saturating_add(1));
        self.slots.insert(held.id, held.entry.id);
        self.held.insert(held.entry.id, held);
    }

    /// Replaces the body and place of a target, because a process has joined it, its processes have
    /// ended, or its control group or executable has appeared or was removed. No effect if the slot
    /// is free.
    pub(crate) fn set_body(&mut self, slot: TargetId, body: Body, place: TargetPlace) {
        if let Some(held) = self.held.get_mut(&slot) {
            held.body = body;
            held.place = place;
        }
        self.set_parents(slot);
    }

    /// Moves the held targets with the ids in `inside` into this target: a process has become a
    /// member of this target, and all processes of those targets descend from it. `around` is the
    /// id of the process target that this process was a member of before. A target does not move if
    /// it contains this target, or if it is in this target or in another target of `inside`
    /// already. A target in a process target other than `around` moves only if the request is
    /// `privileged`, or if the move takes it out of no target with a claim of root, the group or
    /// the policy.
    pub(crate) fn put_inside(
        &mut self,
        slot: TargetId,
        inside: &BTreeSet<u32>,
        around: Option<u32>,
        privileged: bool,
    ) {
        let Some(id) = self.held.get(&slot).map(|held| held.id) else {
            return;
        };
        let above = self.ancestors_of(Some(id));
        // The id may be of a closed target: then there is no target around them.
        let known = |own: Option<u32>| own.filter(|own| self.slots.contains_key(own));
        let around = known(around);
        let contains = self.with_around(slot);
        let moves = |held: &HeldTarget| match known(held.place.own) {
            own if own == around => true,
            None => true,
            Some(own) => {
                let chain = self.ancestors_of(Some(own));
                let is_inside = inside.contains(&own) || chain.contains(&id);
                let limited = self.around(held.entry.id).any(|outer| {
                    outer.has_privileged_claim() && !contains.contains(&outer.entry.id)
                });
                !is_inside && (privileged || !limited)
            }
        };
        let inner: Vec<TargetId> = self
            .held
            .values()
            .filter(|held| inside.contains(&held.id) && !above.contains(&held.id))
            .filter(|held| moves(held))
            .map(|held| held.entry.id)
            .collect();
        for inner in inner {
            if let Some(held) = self.held.get_mut(&inner) {
                held.place.own = Some(id);
            }
        }
        self.set_parents(slot);
    }

    /// Sets the name of the policy rule that asks for a target; `None`: no rule does.
    pub(crate) fn set_rule(&mut self, slot: TargetId, rule: Option<String>) {
        if let Some(held) = self.held.get_mut(&slot) {
            held.rule = rule;
        }
    }

    /// Sets the parent of a target and of the targets that it contains.
    fn set_parents(&mut self, slot: TargetId) {
        let index = ContainmentIndex::of(self);
        let moves: Vec<(TargetId, Option<TargetId>)> = self
            .held
            .values()
            .map(|held| (held.entry.id, index.around(held)))
            .filter(|(id, parent)| *id == slot || *parent == Some(slot))
            .collect();
        for (id, parent) in moves {
            if let Some(held) = self.held.get_mut(&id) {
                held.entry.parent = parent;
            }
        }
    }

    fn held_at(&self, slot: TargetId) -> Result<&HeldTarget, RequestError> {
        self.held
            .get(&slot)
            .ok_or_else(|| RequestError::Failed(format!("target {slot} is not held")))
    }

    fn free_slot(&self) -> Result<TargetId, RequestError> {
        (1..=MAX_SLOT)
            .filter_map(TargetId::new)
            .find(|slot| !self.held.contains_key(slot) && !self.draining.contains_key(slot))
            .ok_or_else(|| {
                RequestError::NotAdmitted(format!(
                    "refused: {MAX_SLOT} targets are held, which is as many as there is room for; \
                     clear some first"
                ))
            })
    }
}

/// Largest number of targets that [`Ledger::around`] returns. Targets whose claims are set aside
/// take no level of the kernel's classes, so a chain can be longer than admission allows.
const MAX_CHAIN: usize = 64;
