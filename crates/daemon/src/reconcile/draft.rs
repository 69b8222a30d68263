//! A change that is computed but not installed: a ledger, its rollbacks, and the acts that go with
//! it.

use netnice_core::admission::TargetId;
use netnice_core::target::Target;

use crate::host::Act;
use crate::ledger::rollbacks::Rollbacks;
use crate::ledger::{Body, ClosedTarget, Ledger};
use crate::state::Books;

/// See the module docs.
#[derive(Clone)]
pub(crate) struct Draft {
    /// The ledger after the change.
    pub ledger: Ledger,
    /// The pending rollbacks after the change.
    pub rollbacks: Rollbacks,
    /// The bindings to add and to release.
    pub acts: Vec<Act>,
    /// True if no request caused the change: it follows from an event or an earlier request. It is
    /// installed even if the state file cannot be written, and written later.
    pub unrequested: bool,
}

impl Draft {
    /// Starts a change of the books.
    pub(crate) fn of(books: &Books) -> Draft {
        Draft {
            ledger: books.ledger.clone(),
            rollbacks: books.rollbacks.clone(),
            acts: Vec::new(),
            unrequested: false,
        }
    }

    /// Closes a target: releases its binding, and drops its pending rollbacks.
    pub(crate) fn close(&mut self, slot: TargetId) -> Option<ClosedTarget> {
        let closed = self.ledger.close(slot)?;
        self.rollbacks.forget_target(closed.held.id);
        let mut act = release(&closed);
        let others = self.acts.iter_mut().find_map(|act| match act {
            Act::Release { outer_targets, .. } => Some(outer_targets),
            _ => None,
        });
        if let (Some(Act::Release { outer_targets, .. }), Some(others)) = (&mut act, others) {
            others.extend(std::mem::take(outer_targets));
            act = None;
        }
        self.acts.extend(act);
        Some(closed)
    }
}

/// The act that releases a target's binding.
fn release(closed: &ClosedTarget) -> Option<Act> {
    let id = closed.held.id;
    match &closed.held.body {
        Body::Processes { .. } => Some(Act::release(id, closed.outer)),
        Body::App(key) => match (&closed.held.entry.target, key) {
            (Target::App(path), Some(_)) => Some(Act::UnbindApp {
                id,
                path: path.to_string(),
            }),
            _ => None,
        },
        Body::Cgroup(bound) => {
            let bound = bound.clone();
            Some(Act::UnbindCgroup { id, bound })
        }
        Body::User(uid) => Some(Act::UnbindUser { id, uid: *uid }),
    }
}
