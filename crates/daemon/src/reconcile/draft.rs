//! [`Draft`]: the books as a change will leave them, and the acts that bind or release processes,
//! groups and executables for it. A draft begins as a copy of the books; a request changes the
//! copy, and [`super::Reconciler::install`] installs it as a whole. A draft that is dropped has no
//! effect. No function fails.

use netnice_core::admission::TargetId;
use netnice_core::target::Target;

use crate::host::Act;
use crate::ledger::rollbacks::{Cleared, Rollbacks};
use crate::ledger::{Body, ClosedTarget, Ledger};
use crate::state::Books;

/// The books after a change, and the acts in the kernel that belong to the change.
#[derive(Clone)]
pub(crate) struct Draft {
    /// The ledger after the change.
    pub ledger: Ledger,
    /// The pending rollbacks after the change.
    pub rollbacks: Rollbacks,
    /// The acts that bind and release what targets consist of, in order.
    pub acts: Vec<Act>,
    /// True if no request caused the change: it follows from an event or an earlier request. Then
    /// it takes effect even if the state file cannot be written, and the file is written later.
    pub unrequested: bool,
}

impl Draft {
    /// A draft of these books, without a change yet.
    pub(crate) fn of(books: &Books) -> Draft {
        Draft {
            ledger: books.ledger.clone(),
            rollbacks: books.rollbacks.clone(),
            acts: Vec::new(),
            unrequested: false,
        }
    }

    /// As [`Draft::close`], for a target without claims: its pending rollbacks restore it. `None`
    /// if the slot is free.
    pub(crate) fn close_unclaimed(&mut self, slot: TargetId) -> Option<ClosedTarget> {
        let held = self.ledger.get(slot)?;
        let closed = Cleared {
            target: held.entry.target.clone(),
            body: held.body.clone(),
            place: held.place.clone(),
            claims: Vec::new(),
            rule: held.rule.clone(),
        };
        self.rollbacks.outlive_target(held.id, &closed);
        self.close(slot)
    }

    /// Closes a target in the draft, adds the act that releases what it consists of, and drops the
    /// pending rollbacks of claims on it. `None` if the slot is free.
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

/// The act that releases what a target consists of; `None` if nothing is bound.
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
