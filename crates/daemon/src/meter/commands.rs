//! The commands and users of targets that consist of processes ([`Commands`]), for people who read
//! `show` and `top`. A command changes when a process executes another program, so each is read
//! again after some seconds; each call reads only some of them. No function fails; a target whose
//! processes cannot be read has no command.

use std::collections::BTreeMap;

use netnice_core::units::{Instant, Nanos};

use crate::host::Inventory;
use crate::ledger::{Body, HeldTarget, Ledger};

/// The command name and the uid of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// The process's command name.
    pub name: String,
    /// The process's real uid.
    pub uid: u32,
}

/// The command of each target of processes, by target id.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    by_target: BTreeMap<u32, (Instant, Option<Command>)>,
}

impl Commands {
    /// Reads the commands of new targets and those that were read longest ago, at most
    /// [`MOST_READ`] in all, and drops those of targets that are gone.
    pub(crate) fn refresh(&mut self, machine: &mut impl Inventory, ledger: &Ledger, now: Instant) {
        self.by_target.retain(|id, _| ledger.by_id(*id).is_some());
        let is_due = |held: &&HeldTarget| {
            let read = self.by_target.get(&held.id);
            let is_old = read.is_none_or(|(at, _)| now.since(*at) >= LONGEST_KEPT);
            is_old && matches!(&held.body, Body::Processes { roots, .. } if !roots.is_empty())
        };
        let mut due: Vec<&HeldTarget> = ledger.held().filter(is_due).collect();
        due.sort_by_key(|held| self.by_target.get(&held.id).map(|(at, _)| *at));
        for held in due.into_iter().take(MOST_READ) {
            let command = first_command(machine, held);
            self.by_target.insert(held.id, (now, command));
        }
    }

    /// The command of a target's first process that lives, as it was read last; `None` if none was
    /// read.
    pub(crate) fn of(&self, id: u32) -> Option<&Command> {
        self.by_target.get(&id)?.1.as_ref()
    }
}

fn first_command(machine: &mut impl Inventory, held: &HeldTarget) -> Option<Command> {
    let Body::Processes { roots, .. } = &held.body else {
        return None;
    };
    let living = roots.iter().find_map(|root| {
        let process = machine.process(root.pid)?;
        (process.root == *root).then_some(process)
    });
    living.map(|process| Command {
        name: process.name,
        uid: process.uid,
    })
}

/// The largest number of processes that one call reads.
const MOST_READ: usize = 64;

/// A command that was read longer ago than this is read again.
const LONGEST_KEPT: Nanos = Nanos::from_secs(5);
