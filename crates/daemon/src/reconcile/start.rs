//! Starting: what an earlier daemon wrote down, and what of it is still so.
//!
//! ```text
//!   state file      kernel            then
//!   ─────────────────────────────────────────────────────────────────────────────────────────────
//!   whole           in force          goes on: what an unfinished change has let go is taken in again, targets
//!                                     without processes end, the rest is admitted again
//!   whole           nothing           all is taken in anew: processes that live, executables, groups, users
//!   none, damaged   in force          what the kernel holds stays: limits of nobody, until root clears all
//!   none            nothing           a fresh start
//! ```
//!
//! Nothing is guessed: limits that are found without a record hold whom they held, but nobody knows any more whom and
//! for whom, so they are not shown as anybody's.

use netnice_core::admission::{MAX_DEPTH, TargetId};
use netnice_core::contract::{Change, Contract, Setting};
use netnice_core::link::{Capacity, CapacitySource, Link, RECEIVE_PERCENT};
use netnice_core::units::{Bytes, Rate};
use netnice_kernel::enforce::Found;
use netnice_kernel::plan::{self, Limit, MAX_SLOT};

use super::Reconciler;
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::{Act, Host};
use crate::ledger::{Body, Held, Ledger, Managed, Remnant};
use crate::state::State;
use netnice_core::target::Target;

/// What an earlier daemon has left on paper.
pub(crate) enum Record {
    /// Nothing.
    None,
    /// All of it.
    Whole(Box<State>),
    /// Something that cannot be read; why, and what was done with it.
    Lost(String),
}

impl<H: Host> Reconciler<H> {
    /// Takes over from an earlier daemon. To be called once, before any request. Tells what a person should know.
    pub(crate) fn start(&mut self, record: Record, now: Now) -> Option<String> {
        let enforcing = self.host.is_enforcing();
        let notice = match record {
            Record::Whole(state) => {
                self.books.ledger = state.ledger;
                self.books.undos = state.undos;
                // A change that was under way may have given out numbers that were not written down.
                self.books
                    .ledger
                    .skip_ids(self.books.ledger.next_id() + u32::from(MAX_SLOT));
                None
            }
            Record::None if !enforcing => return None,
            Record::None => Some(self.take_found("there is no state file".to_owned(), now)),
            Record::Lost(why) => Some(self.take_found(why, now)),
        };
        let mut gone_on = self.go_on(enforcing, now);
        if let Err(denied) = &gone_on {
            tracing::warn!(%denied, "taking over, which is tried once more");
            gone_on = self.go_on(self.host.is_enforcing(), now);
        }
        if let Err(denied) = gone_on {
            self.journal.warn(
                now,
                format!("not all of what was in force is so again: {denied}"),
            );
        }
        notice
    }

    fn go_on(&mut self, enforcing: bool, now: Now) -> Result<(), Denied> {
        if enforcing {
            self.host.forget_dead()?;
            self.take_in_released()?;
            self.end_dead(now)?;
            self.release_strangers()?;
        }
        let mut acts = Vec::new();
        if !enforcing {
            for held in self.books.ledger.held().cloned().collect::<Vec<_>>() {
                acts.extend(self.take_in(&held));
            }
        }
        self.books.ledger.look_anew(now.monotonic);
        self.books.ledger.readmit();
        let degraded: Vec<String> = self
            .books
            .ledger
            .held()
            .filter_map(|held| {
                if let Some(aside) = &held.aside {
                    return Some(aside.clone());
                }
                let why = held.refused.as_ref()?;
                Some(format!(
                    "{} no longer fits and is degraded: {why}",
                    held.entry.target
                ))
            })
            .collect();
        for text in degraded {
            self.journal.warn(now, text);
        }
        self.apply_all(now);
        for act in acts {
            if let Err(denied) = self.host.act(&act) {
                self.journal.warn(now, format!("taking over: {denied}"));
            }
        }
        if !enforcing {
            self.end_dead(now)?;
            self.apply_all(now);
        }
        self.rebind(now)?;
        self.await_groups();
        self.house();
        let draft = self.draft();
        self.keep(&draft)?;
        let held = self.books.ledger.held().count();
        if held > 0 {
            self.journal
                .note(now, format!("{held} targets found and kept"));
        }
        Ok(())
    }

    /// Takes in again what a change had let go that was never written down: processes that live and are members of
    /// nothing, though their target is held.
    fn take_in_released(&mut self) -> Result<(), Denied> {
        let mut acts = Vec::new();
        for slot in self.ended()? {
            if let Some(held) = self.books.ledger.get(slot).cloned() {
                acts.extend(self.take_in(&held));
            }
        }
        for act in &acts {
            self.host.act(act)?;
        }
        // One that has begun to end can still be read, and its end is told no more.
        match acts.is_empty() {
            true => Ok(()),
            false => self.host.forget_dead(),
        }
    }

    /// Lets go of process targets without processes, before anything is admitted again.
    fn end_dead(&mut self, now: Now) -> Result<(), Denied> {
        for slot in self.ended()? {
            if let Some(closed) = self.books.ledger.close(slot) {
                self.books.undos.forget_target(closed.held.id);
                self.books.ledger.linger(&closed, now.monotonic);
                self.journal
                    .note(now, format!("{} has ended", closed.held.entry.target));
            }
        }
        Ok(())
    }

    /// Lets go of processes that belong to a change that was never finished: they fall to what is around.
    fn release_strangers(&mut self) -> Result<(), Denied> {
        let mut strangers: Vec<u32> = self.host.members()?.values().map(|(own, _)| *own).collect();
        strangers.sort_unstable();
        strangers.dedup();
        let known = |id: &u32| {
            self.books.ledger.by_id(*id).is_some()
                || self.books.ledger.remnants().any(|left| left.id == *id)
        };
        strangers.retain(|id| *id != 0 && !known(id));
        if strangers.is_empty() {
            return Ok(());
        }
        let found = self.host.found()?;
        let around = |id| (id, self.around_stranger(&found, id));
        let heirs = strangers.into_iter().map(around).collect();
        self.host.act(&Act::Release { heirs })?;
        Ok(())
    }

    /// Number of the process target in whose limit that of a stranger was put; the classes know.
    fn around_stranger(&self, found: &Found, id: u32) -> Option<u32> {
        let mut slot = found.targets.iter().find(|(of, _)| *of == id)?.1;
        for _ in 0..MAX_DEPTH {
            let held = TargetId::new(slot).and_then(|slot| self.books.ledger.get(slot));
            match held.map(|held| (held.id, &held.body)) {
                Some((around, Body::Processes { .. })) if around != id => return Some(around),
                _ => {}
            }
            let limit = found.limits.iter().find(|limit| limit.slot == slot)?;
            slot = limit.parent?;
        }
        None
    }

    /// The acts that take in what a target is made of, where the kernel knows nothing of it.
    fn take_in(&mut self, held: &Held) -> Vec<Act> {
        let id = held.id;
        match (&held.body, &held.entry.target) {
            (Body::Processes { roots, only }, _) => roots
                .iter()
                .filter(|root| {
                    self.host
                        .process(root.pid)
                        .is_some_and(|p| p.root == **root)
                })
                .map(|root| Act::Adopt {
                    id,
                    pid: root.pid,
                    only: *only,
                    keep: self.books.ledger.held().map(|h| h.id).collect(),
                })
                .collect(),
            (Body::App(Some(_)), Target::App(path)) => {
                let path = path.to_string();
                vec![Act::BindApp { id, path }]
            }
            (Body::Cgroup(Some(bound)), _) => {
                let bound = bound.clone();
                vec![Act::BindCgroup { id, bound }]
            }
            (Body::User(uid), _) => vec![Act::BindUser { id, uid: *uid }],
            _ => Vec::new(),
        }
    }

    /// Keeps in force what is found in the kernel without a record.
    fn take_found(&mut self, why: String, now: Now) -> String {
        let found = self.host.found().unwrap_or_else(|denied| {
            self.journal.warn(
                now,
                format!("cannot read back what the kernel holds: {denied}"),
            );
            Found::default()
        });
        let limits = found.limits.len();
        self.books.ledger = ledger_of(&found);
        let text = match limits {
            0 => why,
            _ => format!(
                "{why}; {limits} limits of targets that nobody knows any more stay in force, guarantees do not; \
                 `netnice clear --all` by root lifts them"
            ),
        };
        self.journal.warn(now, text.clone());
        text
    }
}

/// A ledger of limits that were found.
fn ledger_of(found: &Found) -> Ledger {
    let mut ledger = Ledger::default();
    for link in &found.links {
        if let Some(managed) = managed(link) {
            ledger.restore_link(managed);
        }
    }
    let largest = found.targets.iter().map(|(id, _)| *id).max().unwrap_or(0);
    // Sockets may carry larger numbers, of targets that ended while they lived on.
    ledger.skip_ids(largest.saturating_add(FAR));
    let mut taken: Vec<u16> = found.limits.iter().map(|limit| limit.slot).collect();
    for limit in &found.limits {
        let id = ledger.next_id();
        restore(
            &mut ledger,
            id,
            limit.slot,
            limit.parent,
            contract(limit.limit),
        );
    }
    for (id, slot) in &found.targets {
        let free = (1..=MAX_SLOT).find(|free| !taken.contains(free));
        if let Some(free) = free {
            taken.push(free);
            restore(&mut ledger, *id, free, Some(*slot), Contract::default());
        }
    }
    ledger
}

fn restore(ledger: &mut Ledger, id: u32, slot: u16, parent: Option<u16>, contract: Contract) {
    let Some(slot) = TargetId::new(slot) else {
        return;
    };
    ledger.restore_remnant(Remnant {
        slot,
        id,
        parent: parent.and_then(TargetId::new),
        contract,
        since: Default::default(),
        moved: Default::default(),
        offered: 0,
        found: true,
        user: None,
    });
}

fn contract(limit: Limit) -> Contract {
    let set = |rate: Option<Rate>| rate.map(Setting::Set);
    let change = match limit {
        Limit::None => return Contract::default(),
        Limit::Each { up, down } => Change {
            up: set(up),
            down: set(down),
            ..Change::default()
        },
        Limit::Both(rate) => Change {
            both: set(Some(rate)),
            ..Change::default()
        },
    };
    Contract::default().apply(&change).unwrap_or_default()
}

/// A link as it is managed, from what its classes share out.
fn managed(link: &plan::Link) -> Option<Managed> {
    let operator = |rate: Rate| Capacity {
        rate,
        source: CapacitySource::Operator,
    };
    // The smallest rate of which the receive stage would make what was found.
    let whole = |usable: Rate| {
        let bits = usable.bits_per_second() * 100;
        Rate::new(bits.div_ceil(RECEIVE_PERCENT))
    };
    Some(Managed {
        link: Link {
            name: link.name.parse().ok()?,
            up: link.up.map(operator),
            down: link.down.and_then(whole).map(operator),
            overhead: Bytes(u64::from(link.overhead)),
        },
        by: 0,
    })
}

/// More targets than end while a daemon runs.
const FAR: u32 = 1 << 20;
