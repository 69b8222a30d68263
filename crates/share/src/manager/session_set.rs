//! Finds the sessions of a target ([`SessionSet`]). The composition of the target and the processes
//! of the machine come in, the numbers of the sessions' first processes go out. Nothing here fails:
//! a process that has ended is left out.
//!
//! The *outermost* processes of a target are those whose parent is not in it; of a `pid:` or
//! `name:` target, the process itself or the processes that were started under the name. An
//! outermost process that listens for connections is a **server**: each of its children, with its
//! descendants, is a session. An outermost process that does not listen is a session itself. Two
//! examples:
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
pub(super) struct SessionSet {
    /// The target in its full form.
    pub target: String,
    /// The composition of the target.
    pub found: Found,
    /// True if each outermost process is a server, whether it listens or not.
    is_server: bool,
    /// The outermost processes.
    kinds: BTreeMap<u32, ProcessKind>,
    /// The parents that were read so far.
    parents: BTreeMap<u32, u32>,
}

/// The kind of an outermost process.
#[derive(Clone, Copy)]
enum ProcessKind {
    Server,
    /// `checked_at` is the time of the last check, `found_listening` the number of successive
    /// checks that found the process listening.
    Session {
        checked_at: Instant,
        found_listening: u32,
    },
}

impl SessionSet {
    /// The sessions of `target`, which consists of `found`. `is_server`: the process of the target
    /// is a server whether it listens or not.
    pub(super) fn new(target: String, found: Found, is_server: bool) -> SessionSet {
        SessionSet {
            target,
            found,
            is_server,
            kinds: BTreeMap::new(),
            parents: BTreeMap::new(),
        }
    }

    /// The sessions, by the numbers of their first processes.
    pub(super) fn sessions(&mut self, processes: &impl Processes, now: Instant) -> BTreeSet<u32> {
        let outermost = self.outermost(processes);
        self.kinds.retain(|pid, _| outermost.contains(pid));
        let mut sessions = BTreeSet::new();
        for pid in outermost {
            match self.kind(processes, pid, now) {
                ProcessKind::Server => sessions.extend(processes.children(pid)),
                ProcessKind::Session { .. } => {
                    sessions.insert(pid);
                }
            }
        }
        sessions
    }

    /// True if no process of the target is left and none can be added: only for a process as
    /// target.
    pub(super) fn has_ended(&self) -> bool {
        self.target.starts_with("pid:") && self.kinds.is_empty()
    }

    fn outermost(&mut self, processes: &impl Processes) -> BTreeSet<u32> {
        let members: BTreeSet<u32> = processes.members(&self.found).into_iter().collect();
        self.parents.retain(|pid, _| members.contains(pid));
        for pid in &members {
            if !self.parents.contains_key(pid)
                && let Some(parent) = processes.parent(*pid)
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
                Found::Processes(_) => return processes.parent(*pid).is_some(),
                _ => self.parents.get(pid),
            };
            parent.is_some_and(|parent| !members.contains(parent))
        };
        members.iter().copied().filter(outer).collect()
    }

    fn kind(&mut self, processes: &impl Processes, pid: u32, now: Instant) -> ProcessKind {
        let kind = match self.kinds.get(&pid) {
            Some(ProcessKind::Server) => ProcessKind::Server,
            None if self.is_server || processes.listens(pid) => ProcessKind::Server,
            None => ProcessKind::Session {
                checked_at: now,
                found_listening: 0,
            },
            Some(ProcessKind::Session { checked_at, .. })
                if now - *checked_at < LISTEN_CHECK_INTERVAL =>
            {
                return self.kinds[&pid];
            }
            Some(ProcessKind::Session {
                found_listening, ..
            }) => match processes.listens(pid) {
                true if found_listening + 1 >= LISTENING_CHECKS => ProcessKind::Server,
                true => ProcessKind::Session {
                    checked_at: now,
                    found_listening: found_listening + 1,
                },
                false => ProcessKind::Session {
                    checked_at: now,
                    found_listening: 0,
                },
            },
        };
        self.kinds.insert(pid, kind);
        kind
    }
}

/// The id of the user of the session with the first process `session`: the first user other than
/// root among its processes, searched generation by generation, at most four; else root (0).
/// Servers keep a process of root beside the one that works for a user.
pub(super) fn session_user(processes: &impl Processes, session: u32) -> u32 {
    let mut level = vec![session];
    for _ in 0..MAX_DEPTH {
        let users = level.iter().filter_map(|pid| processes.user(*pid));
        if let Some(user) = users.into_iter().find(|user| *user != 0) {
            return user;
        }
        level = level
            .iter()
            .flat_map(|pid| processes.children(*pid))
            .collect();
        if level.is_empty() {
            break;
        }
    }
    0
}

/// Time between two checks whether a process listens.
const LISTEN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Successive checks that must find a process listening before it is a server.
const LISTENING_CHECKS: u32 = 3;

/// Number of generations of processes that are searched for a session's user. With sshd, the third
/// generation is the user's.
const MAX_DEPTH: usize = 4;

#[cfg(test)]
mod tests;
