//! A change that is worked out but not installed.

use netnice_core::admission::TargetId;
use netnice_core::target::Target;

use crate::host::Act;
use crate::ledger::undo::Undos;
use crate::ledger::{Body, Closed, Ledger};
use crate::state::Books;

/// See the module.
#[derive(Clone)]
pub(crate) struct Draft {
    /// The ledger as it would be.
    pub ledger: Ledger,
    /// What would wait to be taken back.
    pub undos: Undos,
    /// What is to be taken in and let go.
    pub acts: Vec<Act>,
    /// Nobody has asked for it: it is what happened, or what was asked for earlier. It is done though it cannot be
    /// written down, and written down later.
    pub by_itself: bool,
}

impl Draft {
    /// Starts a change of what the books say.
    pub(crate) fn of(books: &Books) -> Draft {
        Draft {
            ledger: books.ledger.clone(),
            undos: books.undos.clone(),
            acts: Vec::new(),
            by_itself: false,
        }
    }

    /// Lets a target go, with what it is made of and what waits for it.
    pub(crate) fn close(&mut self, slot: TargetId) -> Option<Closed> {
        let closed = self.ledger.close(slot)?;
        self.undos.forget_target(closed.held.id);
        let mut act = release(&closed);
        let others = self.acts.iter_mut().find_map(|act| match act {
            Act::Release { heirs } => Some(heirs),
            _ => None,
        });
        if let (Some(Act::Release { heirs }), Some(others)) = (&mut act, others) {
            others.extend(std::mem::take(heirs));
            act = None;
        }
        self.acts.extend(act);
        Some(closed)
    }
}

/// The act that lets go of what a target is made of.
fn release(closed: &Closed) -> Option<Act> {
    let id = closed.held.id;
    match &closed.held.body {
        Body::Processes { .. } => Some(Act::release(id, closed.heir)),
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
