//! Which process owns a socket ([`Owners`]). Readings of the kernel's counts and walks over `/proc`
//! come in; no function fails, and a socket whose owner is not known has none.
//!
//! The owner of a socket is, in this order:
//!
//! 1. the process that holds a descriptor of it, as the last walk saw: the process that made it if
//!    that is one of several, else the youngest (a server's child, not the server);
//! 2. the process that made it, or made the listening socket from which it was accepted, as the
//!    eBPF program noted;
//! 3. for sockets older than the counting, and accepted from such: the oldest process that listens
//!    at its port.
//!
//! A walk takes long on a machine with many descriptors. So it is made only if a socket needs one
//! ([`Owners::needs_walk`]): soon if nothing is known about its owner, later if rule 2 or 3 gave
//! one that may not be the holder. Walks take at most a hundredth of the time.

use std::collections::{HashMap, HashSet};

use netnice_core::units::{Instant, Nanos};
use netnice_kernel::connections::Connection;
use netnice_kernel::usage::{Creator, Holders, Reading, SocketUsage};

use crate::ledger::ProcessId;

/// The owners of sockets, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// By cookie: the holder at the last walk.
    holders: HashMap<u64, ProcessId>,
    /// By protocol and port: the process that listens there.
    listeners: HashMap<(u16, u16), ProcessId>,
    /// The sockets that the last walk looked for and did not find.
    not_found: HashSet<u64>,
    /// No walk begins before this time.
    next_walk: Instant,
    /// No walk for a socket that has an owner begins before this time.
    next_check: Instant,
}

impl Owners {
    /// The owner of a socket; `None` if it is not known.
    pub(super) fn of(&self, cookie: u64, usage: &SocketUsage) -> Option<ProcessId> {
        let creator = usage.creator.as_ref().map(process_of);
        let listener = || self.listeners.get(&(usage.protocol, usage.port)).copied();
        let holder = self.holders.get(&cookie).copied();
        holder.or(creator).or_else(listener)
    }

    /// True if a walk is due, because a reading has sockets whose holders are not known.
    pub(super) fn needs_walk(&self, reading: &Reading, now: Instant) -> bool {
        if now < self.next_walk {
            return false;
        }
        let is_due = |(cookie, usage): &(u64, SocketUsage)| {
            let made = usage.creator.as_ref().is_some_and(|by| by.made_itself);
            if made || self.holders.contains_key(cookie) || self.not_found.contains(cookie) {
                return false;
            }
            self.of(*cookie, usage).is_none() || now >= self.next_check
        };
        reading.sockets.iter().any(is_due)
    }

    /// Records a walk that took the time from `began` to `ended`: all sockets, and their holders.
    pub(super) fn record_walk(
        &mut self,
        reading: &Reading,
        sockets: &[Connection],
        holders: &Holders,
        began: Instant,
        ended: Instant,
    ) {
        let creators: HashMap<u64, &Creator> = reading
            .sockets
            .iter()
            .filter_map(|(cookie, usage)| Some((*cookie, usage.creator.as_ref()?)))
            .collect();
        self.holders.clear();
        self.listeners.clear();
        for socket in sockets {
            let Some(held_by) = holders.by_inode.get(&socket.inode) else {
                continue;
            };
            let creator = creators.get(&socket.cookie).map(|by| process_of(by));
            if let Some(holder) = holder(held_by, creator) {
                self.holders.insert(socket.cookie, holder);
            }
            let protocol = if socket.protocol == "tcp" { TCP } else { UDP };
            let oldest = held_by.iter().min_by_key(|(_, started)| *started);
            if socket.peer.is_none()
                && let Some((pid, started)) = oldest.copied()
            {
                let at = (protocol, socket.local.port());
                self.listeners.insert(at, ProcessId { pid, started });
            }
        }
        let cookies = reading.sockets.iter().map(|(cookie, _)| *cookie);
        let missing = cookies.filter(|cookie| !self.holders.contains_key(cookie));
        self.not_found = missing.collect();
        let pause = Nanos(ended.since(began).0.saturating_mul(PAUSE_FACTOR)).max(PAUSE);
        self.next_walk = ended.after(pause);
        self.next_check = ended.after(pause.max(CHECK_PAUSE));
    }
}

/// The process of several that owns a socket: its creator, else the youngest.
fn holder(held_by: &[(u32, u64)], creator: Option<ProcessId>) -> Option<ProcessId> {
    let mut processes = held_by.iter().map(|(pid, started)| ProcessId {
        pid: *pid,
        started: *started,
    });
    match creator.filter(|creator| processes.clone().any(|process| process == *creator)) {
        Some(creator) => Some(creator),
        None => processes.by_ref().max_by_key(|process| process.started),
    }
}

fn process_of(creator: &Creator) -> ProcessId {
    ProcessId {
        pid: creator.pid,
        started: creator.started,
    }
}

/// Protocol numbers of IP.
const TCP: u16 = 6;
/// The protocol number of UDP.
pub(super) const UDP: u16 = 17;
/// The shortest pause between two walks.
const PAUSE: Nanos = Nanos::from_secs(2);
/// The shortest pause before a walk for sockets that have an owner.
const CHECK_PAUSE: Nanos = Nanos::from_secs(10);
/// The pause is at least this many times as long as the walk.
const PAUSE_FACTOR: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use netnice_kernel::usage::Counts;

    fn socket(cookie: u64, creator: Option<(u32, bool)>, port: u16) -> (u64, SocketUsage) {
        let creator = creator.map(|(pid, made_itself)| Creator {
            pid,
            started: u64::from(pid),
            command: "nginx".into(),
            made_itself,
        });
        let usage = SocketUsage {
            counts: Counts::default(),
            creator,
            uid: 0,
            protocol: TCP,
            port,
        };
        (cookie, usage)
    }

    fn connection(cookie: u64, port: u16, peer: bool) -> Connection {
        Connection {
            inode: cookie + 1000,
            cookie,
            uid: 0,
            protocol: "tcp",
            local: ([10, 0, 0, 1], port).into(),
            peer: peer.then(|| ([10, 0, 0, 2], 9).into()),
            state: None,
            sent: None,
            received: None,
            cgroup: None,
        }
    }

    fn reading(sockets: &[(u64, SocketUsage)]) -> Reading {
        Reading {
            sockets: sockets.to_vec(),
            ..Reading::default()
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant(0).after(Nanos::from_secs(seconds))
    }

    fn pid(owner: Option<ProcessId>) -> Option<u32> {
        owner.map(|process| process.pid)
    }

    /// A server (40) that listens at port 80 since before the counting, with a worker (50).
    fn walked(reading: &Reading) -> Owners {
        let holders = Holders {
            by_inode: HashMap::from([
                (1001, vec![(40, 40), (50, 50)]),
                (1002, vec![(50, 50)]),
                (1003, vec![(40, 40), (60, 60)]),
            ]),
            is_complete: true,
        };
        let sockets = [
            connection(1, 80, false),
            connection(2, 80, true),
            connection(3, 80, true),
        ];
        let mut owners = Owners::default();
        owners.record_walk(reading, &sockets, &holders, at(0), at(0));
        owners
    }

    #[test]
    fn an_old_connection_belongs_to_the_youngest_holder_and_a_closed_one_to_the_listener() {
        let old = [socket(2, None, 80), socket(3, None, 80)];
        let owners = walked(&reading(&old));
        assert_eq!(pid(owners.of(2, &old[0].1)), Some(50), "the worker has it");
        assert_eq!(
            pid(owners.of(3, &old[1].1)),
            Some(60),
            "a child of the server"
        );
        let closed = socket(9, None, 80);
        assert_eq!(pid(owners.of(9, &closed.1)), Some(40));
        let elsewhere = socket(9, None, 81);
        assert_eq!(owners.of(9, &elsewhere.1), None);
    }

    #[test]
    fn the_creator_is_the_owner_unless_only_others_hold_the_socket() {
        let made = [
            socket(3, Some((40, true)), 80),
            socket(2, Some((40, false)), 80),
        ];
        let owners = walked(&reading(&made));
        assert_eq!(
            pid(owners.of(3, &made[0].1)),
            Some(40),
            "it shares it with a child"
        );
        assert_eq!(
            pid(owners.of(2, &made[1].1)),
            Some(50),
            "the worker accepted it"
        );
        let unseen = socket(8, Some((70, true)), 4000);
        assert_eq!(pid(owners.of(8, &unseen.1)), Some(70));
    }

    #[test]
    fn walks_are_made_only_for_sockets_that_need_one() {
        let fresh = Owners::default();
        let made = reading(&[socket(7, Some((40, true)), 80)]);
        assert!(!fresh.needs_walk(&made, at(0)), "its creator is known");
        let unknown = reading(&[socket(9, None, 4000)]);
        assert!(fresh.needs_walk(&unknown, at(0)));
        let owners = walked(&unknown);
        assert!(!owners.needs_walk(&unknown, at(60)), "it was looked for");
        let newer = reading(&[socket(10, None, 4000)]);
        assert!(!owners.needs_walk(&newer, at(1)), "too soon");
        assert!(owners.needs_walk(&newer, at(2)));
        let accepted = reading(&[socket(11, None, 80)]);
        assert!(
            !owners.needs_walk(&accepted, at(9)),
            "the listener is known"
        );
        assert!(owners.needs_walk(&accepted, at(10)));
    }

    #[test]
    fn a_walk_that_takes_long_is_repeated_later() {
        let unknown = reading(&[socket(9, None, 4000)]);
        let mut owners = Owners::default();
        owners.record_walk(&unknown, &[], &Holders::default(), at(0), at(3));
        let newer = reading(&[socket(10, None, 4000)]);
        assert!(!owners.needs_walk(&newer, at(302)));
        assert!(owners.needs_walk(&newer, at(303)));
    }
}
