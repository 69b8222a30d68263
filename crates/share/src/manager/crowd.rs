//! Finds the sessions of a target.
//!
//! The *outermost* processes of a target are those whose parent is not in it. An outermost process
//! that listens for connections is a **server**: each of its children, with its descendants, is a
//! session. An outermost process that does not listen is a session itself.
//!
//! ```text
//!   unit:vsftpd.service     vsftpd (listens) ─┬─ vsftpd ── vsftpd     session
//!                                             └─ vsftpd ── vsftpd     session
//!   name:backup             rsync ── rsync                            session
//!                           rsync ── rsync                            session
//! ```
//! A process that listens when it is first seen is a server until it ends. So is a process that is
//! found to listen in three successive checks, a second apart; an FTP session listens only for a
//! moment, for its data connection. A child of a server is a session in any cgroup: service
//! managers move the children of sshd to cgroups of their own.
//!
//! If a process is the only target, the user asked to divide it, so it is a server whether it
//! listens or not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use netnice_api::Found;

use super::process::Processes;

/// A target and the state of its processes.
pub(super) struct Crowd {
    /// The target in its full form.
    pub target: String,
    /// The composition of the target.
    pub found: Found,
    /// The process is a server whether it listens or not.
    is_server: bool,
    /// The outermost processes.
    known: BTreeMap<u32, Kind>,
    /// The parents that were read so far.
    parents: BTreeMap<u32, u32>,
}

/// The kind of an outermost process.
#[derive(Clone, Copy)]
enum Kind {
    Server,
    /// `looked` is the time of the last check, `listening` the number of successive checks that
    /// found it listening.
    Session {
        looked: Instant,
        listening: u32,
    },
}

impl Crowd {
    pub(super) fn new(target: String, found: Found, is_server: bool) -> Crowd {
        Crowd {
            target,
            found,
            is_server,
            known: BTreeMap::new(),
            parents: BTreeMap::new(),
        }
    }

    /// The sessions, by the numbers of their first processes.
    pub(super) fn sessions(&mut self, machine: &impl Processes, now: Instant) -> BTreeSet<u32> {
        let outermost = self.outermost(machine);
        self.known.retain(|pid, _| outermost.contains(pid));
        let mut sessions = BTreeSet::new();
        for pid in outermost {
            match self.kind(machine, pid, now) {
                Kind::Server => sessions.extend(machine.children(pid)),
                Kind::Session { .. } => {
                    sessions.insert(pid);
                }
            }
        }
        sessions
    }

    /// True if none of its processes is left and none can be added.
    pub(super) fn has_ended(&self) -> bool {
        self.target.starts_with("pid:") && self.known.is_empty()
    }

    fn outermost(&mut self, machine: &impl Processes) -> BTreeSet<u32> {
        let members: BTreeSet<u32> = machine.members(&self.found).into_iter().collect();
        self.parents.retain(|pid, _| members.contains(pid));
        for pid in &members {
            if !self.parents.contains_key(pid)
                && let Some(parent) = machine.parent(*pid)
            {
                self.parents.insert(*pid, parent);
            }
        }
        // A parent that has ended since it was read is no longer a member, even if the process has
        // a new parent.
        let outer = |pid: &u32| {
            let parent = match &self.found {
                // Each named process is a session, even if one started another. It must still
                // exist.
                Found::Processes(_) => return machine.parent(*pid).is_some(),
                _ => self.parents.get(pid),
            };
            parent.is_some_and(|parent| !members.contains(parent))
        };
        members.iter().copied().filter(outer).collect()
    }

    fn kind(&mut self, machine: &impl Processes, pid: u32, now: Instant) -> Kind {
        let kind = match self.known.get(&pid) {
            Some(Kind::Server) => Kind::Server,
            None if self.is_server || machine.listens(pid) => Kind::Server,
            None => Kind::Session {
                looked: now,
                listening: 0,
            },
            Some(Kind::Session { looked, .. }) if now - *looked < LOOK_AGAIN => {
                return self.known[&pid];
            }
            Some(Kind::Session { listening, .. }) => match machine.listens(pid) {
                true if listening + 1 >= ON_END => Kind::Server,
                true => Kind::Session {
                    looked: now,
                    listening: listening + 1,
                },
                false => Kind::Session {
                    looked: now,
                    listening: 0,
                },
            },
        };
        self.known.insert(pid, kind);
        kind
    }
}

/// The user of a session: that of its outermost process whose user is not root. Servers keep a
/// process of root beside the one that works for a user.
pub(super) fn user(machine: &impl Processes, session: u32) -> u32 {
    let mut level = vec![session];
    for _ in 0..DEEPEST {
        let users = level.iter().filter_map(|pid| machine.user(*pid));
        if let Some(user) = users.into_iter().find(|user| *user != 0) {
            return user;
        }
        level = level
            .iter()
            .flat_map(|pid| machine.children(*pid))
            .collect();
        if level.is_empty() {
            break;
        }
    }
    0
}

/// Time between two checks whether a process listens.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Successive checks that must find a process listening before it is a server.
const ON_END: u32 = 3;

/// Generations that are searched for a session's user. With sshd it is the third.
const DEEPEST: usize = 4;

#[cfg(test)]
mod tests;
