//! The start: compares what an earlier daemon has written with what is in force, and takes over.
//!
//! ```text
//!   state file      kernel      then
//!   ───────────────────────────────────────────────────────────────────────────────────────────
//!   complete        in force    continues: releases of an incomplete change are undone, targets
//!                               without processes end, the rest is admitted again
//!   complete        nothing     all is bound again: living processes, executables, groups, users
//!   none, damaged   in force    the kernel's limits stay, without claims, until root clears all
//!   none            nothing     a fresh start
//!   damaged         nothing     a fresh start, with a notice in `netnice doctor`
//! ```
//!
//! The members and claims of limits that are found without a record are unknown. So these limits
//! stay in force and are not shown as targets. If taking over fails, it is tried once more; if it
//! fails again, the journal has the error, and the daemon continues.

use std::collections::BTreeMap;

use netnice_core::admission::{MAX_DEPTH, TargetId};
use netnice_core::contract::{Change, Contract, Setting};
use netnice_core::link::classes::LinkClasses;
use netnice_core::link::{Capacity, CapacitySource, Link, RECEIVE_PERCENT};
use netnice_core::units::{Bytes, Nanos, Rate};
use netnice_kernel::enforce::Recovered;
use netnice_kernel::plan::{self, Limit, MAX_SLOT};

use super::Reconciler;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::{Act, Host};
use crate::ledger::{Body, DrainingTarget, HeldTarget, Ledger, ManagedLink};
use crate::state::State;
use netnice_core::target::Target;

/// What an earlier daemon has written.
pub(crate) enum SavedState {
    /// No state file.
    None,
    /// A complete state.
    Complete(Box<State>),
    /// A damaged state file: the reason, and its new name.
    Lost(String),
}

impl<H: Host> Reconciler<H> {
    /// Takes over from an earlier daemon. The caller calls it once, before any request. Returns a
    /// notice for `netnice doctor` if the state of the earlier daemon is lost, else `None`.
    pub(crate) fn start(&mut self, saved: SavedState, now: Now) -> Option<String> {
        let enforcing = self.host.is_enforcing();
        self.set_time(now);
        let lost_usage = self.load_usage();
        if let Some(why) = lost_usage {
            self.journal.warn(now, why);
        }
        let notice = match saved {
            SavedState::Complete(state) => {
                self.books.ledger = state.ledger;
                self.books.rollbacks = state.rollbacks;
                self.books.ledger.follow_schedules(now.wall_ns);
                self.note_auto_time();
                self.adopt_usage(now);
                // An incomplete change may have assigned ids that were not written.
                self.books
                    .ledger
                    .skip_ids(self.books.ledger.next_id() + u32::from(MAX_SLOT));
                None
            }
            SavedState::None if !enforcing => return None,
            SavedState::None => Some(self.keep_recovered("there is no state file".to_owned(), now)),
            SavedState::Lost(why) => Some(self.keep_recovered(why, now)),
        };
        let mut resumed = self.resume(enforcing, now);
        if let Err(error) = &resumed {
            tracing::warn!(%error, "taking over from the earlier daemon failed, and is tried once \
                more");
            resumed = self.resume(self.host.is_enforcing(), now);
        }
        if let Err(error) = resumed {
            self.journal.warn(
                now,
                format!("some of the earlier state is not in force: {error}"),
            );
        }
        notice
    }

    fn resume(&mut self, enforcing: bool, now: Now) -> Result<(), RequestError> {
        if enforcing {
            self.host.forget_dead()?;
            self.readopt_released()?;
            self.close_dead(now)?;
            self.release_unknown()?;
        }
        let mut acts = Vec::new();
        if !enforcing {
            for held in self.books.ledger.held().cloned().collect::<Vec<_>>() {
                acts.extend(self.binding_acts(&held));
            }
        }
        self.books.ledger.restart_quiet_time(now.monotonic);
        self.books.ledger.set_processors(self.host.processors());
        self.books.ledger.readmit();
        let degraded: Vec<String> = self
            .books
            .ledger
            .held()
            .filter_map(|held| {
                if let Some(aside) = &held.aside {
                    return Some(aside.clone());
                }
                let why = held.refused.as_ref().or(held.time_refused.as_ref())?;
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
            if let Err(error) = self.host.act(&act) {
                self.journal.warn(
                    now,
                    format!("cannot take over what a target consists of: {error}"),
                );
            }
        }
        if !enforcing {
            self.close_dead(now)?;
            self.apply_all(now);
        }
        self.rebind(now)?;
        self.expect_groups();
        self.place_containers();
        let draft = self.draft();
        self.save(&draft)?;
        let held = self.books.ledger.held().count();
        if held > 0 {
            self.journal.note(
                now,
                format!("took over {held} targets from an earlier daemon"),
            );
        }
        Ok(())
    }

    /// Undoes the releases of a change that was never written: adopts living processes that are
    /// members of no target although theirs is held.
    fn readopt_released(&mut self) -> Result<(), RequestError> {
        let mut acts = Vec::new();
        for slot in self.ended_targets()? {
            if let Some(held) = self.books.ledger.get(slot).cloned() {
                acts.extend(self.binding_acts(&held));
            }
        }
        for act in &acts {
            self.host.act(act)?;
        }
        // A process that is about to end can still be read, and its exit event may be over.
        match acts.is_empty() {
            true => Ok(()),
            false => self.host.forget_dead(),
        }
    }

    /// Closes process targets without processes, before anything is admitted again.
    fn close_dead(&mut self, now: Now) -> Result<(), RequestError> {
        for slot in self.ended_targets()? {
            if let Some(closed) = self.books.ledger.close(slot) {
                self.books.rollbacks.forget_target(closed.held.id);
                self.books.ledger.keep_draining(&closed, now.monotonic);
                self.journal
                    .note(now, format!("{} has ended", closed.held.entry.target));
            }
        }
        Ok(())
    }

    /// Releases the members of targets from a change that was never completed: the targets around
    /// these take them over.
    fn release_unknown(&mut self) -> Result<(), RequestError> {
        let mut unknown: Vec<u32> = self.host.members()?.values().map(|(own, _)| *own).collect();
        unknown.sort_unstable();
        unknown.dedup();
        let known = |id: &u32| {
            self.books.ledger.by_id(*id).is_some()
                || self.books.ledger.draining().any(|left| left.id == *id)
        };
        unknown.retain(|id| *id != 0 && !known(id));
        if unknown.is_empty() {
            return Ok(());
        }
        let found = self.host.recovered()?;
        let around = |id| (id, self.outer_of_unknown(&found, id));
        let outer_targets = unknown.into_iter().map(around).collect();
        self.host.act(&Act::Release {
            outer_targets,
            by_descent: BTreeMap::new(),
        })?;
        Ok(())
    }

    /// Id of the process target around an unknown target, from the tree of the kernel's classes.
    fn outer_of_unknown(&self, found: &Recovered, id: u32) -> Option<u32> {
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

    /// The acts that bind those objects of a target that exist now.
    fn binding_acts(&mut self, held: &HeldTarget) -> Vec<Act> {
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

    /// Keeps in force what is found in the kernel without a record. Returns a notice that begins
    /// with `why`.
    fn keep_recovered(&mut self, why: String, now: Now) -> String {
        let found = self.host.recovered().unwrap_or_else(|error| {
            self.journal.warn(
                now,
                format!("cannot read the limits from the kernel: {error}"),
            );
            Recovered::default()
        });
        let limits = found.limits.len();
        self.books.ledger = ledger_of(&found);
        let text = match limits {
            0 => why,
            _ => format!(
                "{why}; {limits} limits of unknown targets stay in force, guarantees do not; \
                 `netnice clear --all` by root lifts them"
            ),
        };
        self.journal.warn(now, text.clone());
        text
    }
}

/// A ledger of found limits.
fn ledger_of(found: &Recovered) -> Ledger {
    let mut ledger = Ledger::default();
    for link in &found.links {
        if let Some(managed) = managed(link) {
            ledger.restore_link(managed);
        }
    }
    let largest = found.targets.iter().map(|(id, _)| *id).max().unwrap_or(0);
    // Sockets may carry larger ids, of targets that ended before the sockets.
    ledger.skip_ids(largest.saturating_add(ID_GAP));
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
    ledger.restore_draining(DrainingTarget {
        slot,
        id,
        parent: parent.and_then(TargetId::new),
        contract,
        since: Default::default(),
        moved: Default::default(),
        offered: 0,
        found: true,
        user: None,
        quotas: Vec::new(),
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

/// A managed link, from the rates of its classes.
fn managed(link: &plan::Link) -> Option<ManagedLink> {
    let operator = |rate: Rate| Capacity {
        rate,
        source: CapacitySource::Operator,
    };
    // The smallest capacity from which the receive stage would derive the found rate.
    let whole = |usable: Rate| {
        let bits = usable.bits_per_second() * 100;
        Rate::new(bits.div_ceil(RECEIVE_PERCENT))
    };
    Some(ManagedLink {
        link: Link {
            name: link.name.parse().ok()?,
            up: link.up.map(operator),
            down: link.down.and_then(whole).map(operator),
            overhead: Bytes(u64::from(link.overhead)),
            horizon: Nanos(0),
        },
        by: 0,
        reflectors: Vec::new(),
        classes: LinkClasses::default(),
    })
}

/// Number of ids that are skipped after the largest id found. It is assumed that a daemon assigns
/// fewer ids after that one.
const ID_GAP: u32 = 1 << 20;
