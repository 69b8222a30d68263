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

pub mod part;
pub mod place;
mod remnant;
pub mod undo;

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::admission::{self, Entry, Grant, TargetId};
use netnice_core::claims::{Claimant, Claims};
use netnice_core::contract::{Change, Contract, Direction, IfName, kernel_path_support};
use netnice_core::link::Link;
use netnice_core::target::Target;
use netnice_core::units::{Amount, Rate};
use netnice_kernel::plan::MAX_SLOT;

use place::Containers;
pub use place::Place;
pub use remnant::Remnant;

use crate::denied::Denied;

/// All that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    links: BTreeMap<IfName, Managed>,
    held: BTreeMap<TargetId, Held>,
    /// The slot of each held target, by its number.
    slots: BTreeMap<u32, TargetId>,
    remnants: BTreeMap<TargetId, Remnant>,
    /// What the direct path has of each link; not kept over a restart, for its drivers know.
    parts: BTreeMap<IfName, part::Part>,
    next_id: u32,
}

/// A managed link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Managed {
    /// What it carries.
    pub link: Link,
    /// The user who said so.
    pub by: u32,
}

/// A target that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its slot, its name, what contains it, and what is in force for it.
    pub entry: Entry,
    /// Its number in the kernel's maps.
    pub id: u32,
    /// What it is made of.
    pub body: Body,
    /// What is around it.
    pub place: Place,
    /// Who asked for what.
    pub claims: Claims,
    /// Why its guarantees are not in force, if they do not fit any more.
    pub refused: Option<String>,
    /// The policy rule that asks for it, if one does.
    pub rule: Option<String>,
    /// When it was changed last, nanoseconds since 1970.
    pub changed_ns: u64,
}

/// What a target is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Processes: those that were named, and (unless `only`) what descends from them.
    Processes {
        /// The named ones that were there when they were named.
        roots: Vec<Root>,
        /// Whether living descendants were left out.
        only: bool,
    },
    /// What runs an executable; none while there is no file at its path.
    App(Option<AppKey>),
    /// A control group and all below it.
    Cgroup(Option<Bound>),
    /// What a user's processes do.
    User(u32),
}

/// A process: its number, and when it was started, in clock ticks since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Root {
    /// Its number.
    pub pid: u32,
    /// When it was started.
    pub started: u64,
}

/// An executable file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppKey {
    /// Its inode.
    pub inode: u64,
    /// Its device, in the kernel's form.
    pub dev: u32,
}

/// A control group that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its path below the root of cgroup2.
    pub path: String,
    /// The kernel's number of it.
    pub id: u64,
}

/// A target that is about to be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// Who it is.
    pub target: Target,
    /// What it is made of.
    pub body: Body,
    /// What is around it.
    pub place: Place,
    /// Numbers of the held targets that lie wholly inside it; only of processes and executables, for the others the
    /// places tell.
    pub inside: BTreeSet<u32>,
}

/// A target that is no longer held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// As it was held.
    pub held: Held,
    /// Number of the process target that its members fall to.
    pub heir: Option<u32>,
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
        }
    }
}

impl Ledger {
    /// The held targets, by slot.
    pub fn held(&self) -> impl Iterator<Item = &Held> {
        self.held.values()
    }

    /// The held target of a slot.
    pub fn get(&self, slot: TargetId) -> Option<&Held> {
        self.held.get(&slot)
    }

    /// The held target of a number.
    pub fn by_id(&self, id: u32) -> Option<&Held> {
        self.held.get(self.slots.get(&id)?)
    }

    /// The managed links, by name.
    pub fn links(&self) -> impl Iterator<Item = &Managed> {
        self.links.values()
    }

    /// A managed link.
    pub fn link(&self, name: &str) -> Option<&Managed> {
        self.links
            .values()
            .find(|managed| managed.link.name.as_str() == name)
    }

    /// Whether nothing is held, managed or left over.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.links.is_empty() && self.remnants.is_empty()
    }

    /// The first number that was never given out.
    pub fn next_id(&self) -> u32 {
        self.next_id
    }

    /// Skips numbers that an earlier daemon may have given out.
    pub fn skip_ids(&mut self, next: u32) {
        self.next_id = self.next_id.max(next);
    }

    /// The target of this name. Of two processes that had the same number one after the other, the later one.
    pub fn find(&self, target: &Target) -> Option<&Held> {
        let same = |held: &&Held| held.entry.target == *target;
        self.held.values().filter(same).max_by_key(|held| held.id)
    }

    /// The target that was made of this process by its number.
    pub fn find_process(&self, root: Root) -> Option<&Held> {
        self.held.values().find(|held| {
            matches!(held.entry.target, Target::Pid(_))
                && matches!(&held.body, Body::Processes { roots, .. } if roots.contains(&root))
        })
    }

    /// The target of another name that is made of the same thing: a unit and its control group, a user's name and
    /// number, two paths of one file.
    pub fn find_alias(&self, body: &Body) -> Option<&Held> {
        self.held.values().find(|held| match (&held.body, body) {
            (Body::App(Some(one)), Body::App(Some(other))) => one == other,
            (Body::Cgroup(Some(one)), Body::Cgroup(Some(other))) => one.id == other.id,
            (Body::User(one), Body::User(other)) => one == other,
            _ => false,
        })
    }

    /// The entries in force, as admission wants them; the direct path's parts are among them.
    pub fn entries(&self) -> Vec<Entry> {
        let held = self.held.values().map(|held| held.entry.clone());
        held.chain(self.part_entries()).collect()
    }

    /// The managed links, as admission wants them.
    pub fn capacities(&self) -> Vec<Link> {
        self.links
            .values()
            .map(|managed| managed.link.clone())
            .collect()
    }

    /// What is promised on a link, up and down, to outermost targets and to the direct path.
    pub fn promised(&self, link: &Link) -> [Amount; 2] {
        let [up, down] = self.promised_to_targets(link);
        [[up, self.needed(&link.name)].into_iter().sum(), down]
    }

    /// What is promised on a link to targets that nothing with a promise on it contains, up and down.
    pub fn promised_to_targets(&self, link: &Link) -> [Amount; 2] {
        let own = |held: &Held, direction| {
            let on = held.entry.contract.on().is_some_and(|on| *on == link.name);
            let usable = link.usable(direction).filter(|_| on)?;
            held.entry.contract.link_min(direction, usable).flatten()
        };
        Direction::ALL.map(|direction| {
            let outermost = |held: &&Held| {
                let mut around = self.around(held.entry.id);
                around.all(|outer| own(outer, direction).is_none())
            };
            let amounts = self.held.values().filter(outermost);
            amounts
                .filter_map(|held| own(held, direction))
                .map(Amount::from)
                .sum()
        })
    }

    /// What is promised for sending on a link to each target that names it.
    pub fn promised_to_each(&self, link: &Link) -> impl Iterator<Item = (String, Amount)> {
        let usable = link.usable(Direction::Up);
        self.held().filter_map(move |held| {
            let contract = &held.entry.contract;
            let on = contract.on().is_some_and(|on| *on == link.name);
            let min = contract.link_min(Direction::Up, usable.filter(|_| on)?)??;
            Some((held.entry.target.to_string(), min.into()))
        })
    }

    /// What contains a target, from the inside out.
    pub fn around(&self, slot: TargetId) -> impl Iterator<Item = &Held> {
        let mut next = self.held.get(&slot).and_then(|held| held.entry.parent);
        std::iter::from_fn(move || {
            let here = self.held.get(&next?)?;
            next = here.entry.parent;
            Some(here)
        })
        .take(admission::MAX_DEPTH)
    }

    /// What a target contains directly.
    pub fn children(&self, slot: TargetId) -> impl Iterator<Item = &Held> {
        self.held
            .values()
            .filter(move |held| held.entry.parent == Some(slot))
    }

    /// Takes in a target that asks for nothing yet. What it contains is inside it from now on.
    pub fn open(&mut self, newcomer: Newcomer) -> Result<TargetId, Denied> {
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

    /// Lets `by` ask for a change, and admits what follows from all claims. If nobody asks anything after it, the
    /// caller closes the target.
    pub fn ask(
        &mut self,
        slot: TargetId,
        by: Claimant,
        change: &Change,
        now_ns: u64,
    ) -> Result<(), Denied> {
        let claims = self.at(slot)?.claims.apply(by, change)?;
        self.admit(slot, claims, now_ns)
    }

    /// Puts claims in the place of those that are there.
    pub fn admit(&mut self, slot: TargetId, claims: Claims, now_ns: u64) -> Result<(), Denied> {
        kernel_path_support(claims.effective())?;
        let held = self.at(slot)?;
        let request = Entry {
            contract: claims.effective().clone(),
            ..held.entry.clone()
        };
        let grant = admission::admit(&self.capacities(), &self.entries(), request)?;
        if let Some(held) = self.held.get_mut(&slot) {
            held.claims = claims;
            held.changed_ns = now_ns;
            held.granted(grant);
        }
        Ok(())
    }

    /// Lets a target go. What it contained is contained by what is around now; guarantees that do not fit there are
    /// taken out of force and said to be so.
    pub fn close(&mut self, slot: TargetId) -> Option<Closed> {
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

    /// Manages a link, or changes what it carries; refused if what is promised would not fit.
    pub fn manage(&mut self, link: Link, by: u32) -> Result<(), Denied> {
        let grant = admission::admit_link(&self.capacities(), &self.entries(), link)?;
        let link = grant.into_link();
        self.links.insert(link.name.clone(), Managed { link, by });
        Ok(())
    }

    /// Gives a link back; refused while something is promised on it.
    pub fn unmanage(&mut self, name: &IfName) -> Result<(), Denied> {
        admission::admit_unmanage(&self.capacities(), &self.entries(), name)?;
        self.links.remove(name);
        Ok(())
    }

    /// Tells what a link carries now, whatever was promised, and admits all anew: what no longer fits is degraded.
    #[cfg(test)]
    pub fn relink(&mut self, managed: Managed) {
        self.links.insert(managed.link.name.clone(), managed);
        self.readmit();
    }

    /// Admits everything anew, the eldest first, as after a restart. What does not fit stays, with its limits, and is
    /// said to be degraded.
    pub fn readmit(&mut self) {
        let asked = |held: &Held| Entry {
            contract: held.claims.effective().clone(),
            ..held.entry.clone()
        };
        let mut held: Vec<&Held> = self.held.values().collect();
        held.sort_by_key(|held| held.id);
        let wanted: Vec<Entry> = held.into_iter().map(asked).collect();
        for (entry, answer) in admission::readmit(&self.capacities(), wanted) {
            let Some(held) = self.held.get_mut(&entry.id) else {
                continue;
            };
            match answer {
                Ok(grant) => held.granted(grant),
                Err(refusal) => held.degrade(refusal.to_string()),
            }
        }
    }

    /// Admits again what is degraded, the eldest first, as far as there is room for it now; tells what is served again.
    pub fn heal(&mut self) -> Vec<Target> {
        let mut degraded: Vec<(u32, TargetId)> = self
            .held
            .values()
            .filter(|held| held.refused.is_some())
            .map(|held| (held.id, held.entry.id))
            .collect();
        degraded.sort_unstable();
        let mut healed = Vec::new();
        for (_, slot) in degraded {
            self.reseat(slot);
            let held = self.held.get(&slot).filter(|held| held.refused.is_none());
            healed.extend(held.map(|held| held.entry.target.clone()));
        }
        healed
    }

    /// Takes in a target as it was held before a restart, not admitted yet.
    pub fn restore(&mut self, held: Held) {
        self.next_id = self.next_id.max(held.id.saturating_add(1));
        self.slots.insert(held.id, held.entry.id);
        self.held.insert(held.entry.id, held);
    }

    /// Takes in a link as it was managed before a restart.
    pub fn restore_link(&mut self, managed: Managed) {
        self.links.insert(managed.link.name.clone(), managed);
    }

    /// Changes what a target is made of: a process has joined, a control group was made anew.
    pub fn rebody(&mut self, slot: TargetId, body: Body, place: Place) {
        if let Some(held) = self.held.get_mut(&slot) {
            held.body = body;
            held.place = place;
        }
        self.seat(slot);
    }

    /// Takes targets in that lie inside what has joined this one. `around` is what they lay in before.
    pub fn contain(&mut self, slot: TargetId, inside: &BTreeSet<u32>, around: Option<u32>) {
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
    pub fn set_rule(&mut self, slot: TargetId, rule: Option<String>) {
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

    /// Finds a new place for a target whose container has gone, and says so if its guarantees do not fit there.
    fn reseat(&mut self, slot: TargetId) {
        let Some(held) = self.held.get(&slot) else {
            return;
        };
        let mut request = Entry {
            parent: Containers::of(self).around(held),
            contract: held.claims.effective().clone(),
            ..held.entry.clone()
        };
        let links = self.capacities();
        let others = self.entries();
        let mut answer = admission::admit(&links, &others, request.clone());
        if answer.is_err() && request.parent.is_some() {
            // Kinds of limits that cannot be inside each other: the more specific one holds alone.
            let alone = Entry {
                parent: None,
                ..request.clone()
            };
            if let Ok(grant) = admission::admit(&links, &others, alone) {
                request.parent = None;
                answer = Ok(grant);
            }
        }
        if let Some(held) = self.held.get_mut(&slot) {
            held.entry.parent = request.parent;
            match answer {
                Ok(grant) => held.granted(grant),
                Err(refusal) => held.degrade(refusal.to_string()),
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

    /// What must hold between any two requests.
    pub fn invariants(&self) {
        if let Some(fault) = self.fault() {
            panic!("the ledger contradicts itself: {fault}");
        }
    }

    /// What is wrong with the ledger, if anything is.
    pub fn fault(&self) -> Option<String> {
        let mut ids = BTreeSet::new();
        for (slot, held) in &self.held {
            let name = &held.entry.target;
            if *slot != held.entry.id {
                return Some(format!("{name} stands in slot {slot}, not in its own"));
            }
            if slot.get() > MAX_SLOT {
                return Some(format!("{name} stands in slot {slot}, beyond {MAX_SLOT}"));
            }
            if !ids.insert(held.id) || held.id >= self.next_id || held.id == 0 {
                return Some(format!(
                    "{name} has number {}, which was not given to it",
                    held.id
                ));
            }
            if self.slots.get(&held.id) != Some(slot) {
                return Some(format!("{name} is not found by its number"));
            }
            let mut chain = vec![*slot];
            let mut next = held.entry.parent;
            while let Some(parent) = next {
                if chain.contains(&parent) {
                    return Some(format!("{name} contains itself"));
                }
                chain.push(parent);
                match self.held.get(&parent) {
                    Some(outer) => next = outer.entry.parent,
                    None => return Some(format!("{name} lies in slot {parent}, which is empty")),
                }
            }
        }
        self.remnants.iter().find_map(|(slot, remnant)| {
            let alone = *slot == remnant.slot
                && slot.get() <= MAX_SLOT
                && !self.held.contains_key(slot)
                && remnant.id < self.next_id
                && ids.insert(remnant.id);
            (!alone).then(|| format!("what is left in slot {slot} is not alone there"))
        })
    }
}

impl Body {
    /// The same thing while it is not there.
    pub fn without(&self) -> Body {
        match self {
            Body::Processes { only, .. } => Body::Processes {
                roots: Vec::new(),
                only: *only,
            },
            Body::App(_) => Body::App(None),
            Body::Cgroup(_) => Body::Cgroup(None),
            Body::User(uid) => Body::User(*uid),
        }
    }
}

impl Held {
    /// What holds: what was admitted, together with the limits of what is around.
    pub fn effective(&self, ledger: &Ledger) -> Contract {
        let mut change = self.entry.contract.as_change();
        let smaller = |own: Option<Rate>, outer: Option<Rate>| match (own, outer) {
            (Some(own), Some(outer)) => Some(own.min(outer)),
            (one, other) => one.or(other),
        };
        let (mut up, mut down, mut both) = (
            self.entry.contract.up(),
            self.entry.contract.down(),
            self.entry.contract.both(),
        );
        for outer in ledger.around(self.entry.id) {
            up = smaller(up, outer.entry.contract.up());
            down = smaller(down, outer.entry.contract.down());
            both = smaller(both, outer.entry.contract.both());
        }
        let set = |rate: Option<Rate>| rate.map(netnice_core::contract::Setting::Set);
        (change.up, change.down, change.both) = (set(up), set(down), set(both));
        Contract::default()
            .apply(&change)
            .unwrap_or_else(|_| self.entry.contract.clone())
    }

    /// The uid of the processes that it is made of, if it is made of one user's.
    pub fn owner(&self) -> Option<u32> {
        match self.body {
            Body::Processes { .. } => self.place.uid,
            _ => None,
        }
    }

    fn granted(&mut self, grant: Grant) {
        self.entry = grant.into_entry();
        self.refused = None;
    }

    fn degrade(&mut self, why: String) {
        let asked = self.claims.effective();
        self.entry.contract = asked.without_guarantees();
        self.refused = Some(why);
    }
}

/// A managed link in words.
pub fn describe_link(link: &Link) -> String {
    let mut text = format!("{} is managed", link.name);
    for direction in Direction::ALL {
        if let Some(capacity) = link.capacity(direction) {
            let word = direction.word();
            text.push_str(&format!(", {word} {} ({})", capacity.rate, capacity.source));
            if let Some(usable) = link.usable(direction).filter(|u| *u != capacity.rate) {
                text.push_str(&format!(", {usable:#} of it can be promised"));
            }
        }
    }
    text
}
