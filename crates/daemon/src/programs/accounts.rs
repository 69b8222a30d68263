//! The sums of programs from the counts of sockets ([`Accounts`]). Time, readings and facts come
//! in, a [`Snapshot`] goes out; no function fails.
//!
//! Each byte of a reading is credited once: to the program that owns the socket, or to the sum of
//! sockets without a known process. The bytes of a program are added to the sum of ended programs
//! of its user when the program has ended and has no socket left. If a socket's owner becomes known
//! later, or is corrected, all bytes of the socket are credited to the new owner. So the sums stay
//! complete while programs and sockets come and go.
//!
//! A socket that has been idle is closed here and in the kernel ([`Accounts::idle`],
//! [`Accounts::close`]); if it sends or receives again, it counts as a new one.

use std::collections::{BTreeMap, HashMap};

use netnice_core::units::{Instant, Nanos};
use netnice_kernel::usage::{Counts, Reading, SocketUsage, UsageCounter};

use super::owners::UDP;
use super::{DatagramBytes, Moved, ProgramTraffic, Snapshot};
use crate::ledger::ProcessId;

/// The sums of all programs since counting began.
#[derive(Debug)]
pub(super) struct Accounts {
    began: Instant,
    read_at: Instant,
    interval: Nanos,
    /// By cookie.
    sockets: HashMap<u64, Socket>,
    programs: HashMap<ProcessId, Program>,
    unknown: Moved,
    /// By user: the number of programs, and what they moved.
    ended: BTreeMap<u32, (u64, Moved)>,
    overflow: BTreeMap<u32, Moved>,
    /// All that was credited.
    credited: Counts,
    missing: Moved,
}

/// A socket with an entry in the kernel's table.
#[derive(Debug)]
struct Socket {
    owner: Option<ProcessId>,
    /// The counts that were credited.
    counts: Counts,
    moved_at: Instant,
    is_udp: bool,
}

/// A program that has moved something.
#[derive(Debug)]
struct Program {
    facts: Facts,
    /// When the facts were read; `None` if they are those of a socket.
    facts_at: Option<Instant>,
    moved: Moved,
    /// Number of the program's sockets.
    sockets: u64,
    /// Number of the program's sockets that sent or received recently.
    active: u64,
    lives: bool,
}

/// Facts about a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// The real uid.
    pub uid: u32,
    /// The command name.
    pub command: String,
    /// The path of the process's control group.
    pub cgroup: Option<String>,
}

impl Accounts {
    /// Accounts of a counting that begins now.
    pub(super) fn new(now: Instant) -> Accounts {
        Accounts {
            began: now,
            read_at: now,
            interval: Nanos(0),
            sockets: HashMap::new(),
            programs: HashMap::new(),
            unknown: Moved::default(),
            ended: BTreeMap::new(),
            overflow: BTreeMap::new(),
            credited: Counts::default(),
            missing: Moved::default(),
        }
    }

    /// Adds a reading. `owner_of` returns the process that owns a socket, as far as it is known.
    pub(super) fn update(
        &mut self,
        reading: &Reading,
        owner_of: impl Fn(u64, &SocketUsage) -> Option<ProcessId>,
    ) {
        self.begin_interval(reading.at);
        for (cookie, usage) in &reading.sockets {
            let owner = owner_of(*cookie, usage);
            self.update_socket(*cookie, usage, owner);
        }
        for (uid, counts) in &reading.overflow {
            let known = self.overflow.entry(*uid).or_default();
            let new = counts.since(known.all);
            known.credit(new);
            self.credited.add(new);
        }
        // The totals were read before the rest, so what they have in addition is in no table.
        let absent = reading.totals.since(self.credited);
        self.missing.recent = absent.since(self.missing.all);
        self.missing.all = absent;
        self.count_active();
    }

    /// Forgets the rates of the interval before, and moves programs that ended to the sums.
    fn begin_interval(&mut self, now: Instant) {
        self.interval = now.since(self.read_at);
        self.read_at = now;
        let sums = self.ended.values_mut().map(|(_, moved)| moved);
        let sums = sums.chain(self.overflow.values_mut());
        for moved in sums.chain([&mut self.unknown, &mut self.missing]) {
            moved.recent = Counts::default();
        }
        let ended = &mut self.ended;
        self.programs.retain(|_, program| {
            program.moved.recent = Counts::default();
            let stays = program.lives || program.sockets > 0;
            if !stays {
                // The number of users is bounded, because a user may have many user ids.
                let uid = match ended.contains_key(&program.facts.uid) || ended.len() < MAX_USERS {
                    true => program.facts.uid,
                    false => NOBODY,
                };
                let (number, moved) = ended.entry(uid).or_default();
                *number += 1;
                moved.add(program.moved);
            }
            stays
        });
    }

    fn update_socket(&mut self, cookie: u64, usage: &SocketUsage, owner: Option<ProcessId>) {
        let read_at = self.read_at;
        let socket = self.sockets.entry(cookie).or_insert_with(|| {
            if let Some(owner) = owner {
                self.programs
                    .entry(owner)
                    .or_insert_with(|| Program::of(owner, usage))
                    .sockets += 1;
            }
            Socket {
                owner,
                counts: Counts::default(),
                moved_at: read_at,
                is_udp: usage.protocol == UDP,
            }
        });
        if owner.is_some() && socket.owner != owner {
            let before = std::mem::replace(&mut socket.owner, owner);
            let counts = socket.counts;
            match before.and_then(|before| self.programs.get_mut(&before)) {
                Some(program) => {
                    program.sockets = program.sockets.saturating_sub(1);
                    program.moved.all = program.moved.all.since(counts);
                }
                None => self.unknown.all = self.unknown.all.since(counts),
            }
            if let Some(owner) = owner {
                let program = self.programs.entry(owner);
                let program = program.or_insert_with(|| Program::of(owner, usage));
                program.sockets += 1;
                program.moved.all.add(counts);
            }
        }
        // A count falls for a moment when TCP offers refused segments again; the sums never do.
        let new = usage.counts.since(socket.counts);
        if new.is_zero() {
            return;
        }
        socket.counts.add(new);
        socket.moved_at = read_at;
        self.credited.add(new);
        let program = socket.owner.and_then(|owner| self.programs.get_mut(&owner));
        match program {
            Some(program) => program.moved.credit(new),
            None => self.unknown.credit(new),
        }
    }

    fn count_active(&mut self) {
        for program in self.programs.values_mut() {
            program.active = 0;
        }
        for socket in self.sockets.values() {
            let is_active = self.read_at.since(socket.moved_at) < ACTIVE;
            let program = socket.owner.and_then(|owner| self.programs.get_mut(&owner));
            if let Some(program) = program.filter(|_| is_active) {
                program.active += 1;
            }
        }
    }

    /// The processes to look at: for each that lived at the last look, whether its facts are to be
    /// read again. The number of those is at most [`MOST_READ`], those without facts first.
    pub(super) fn processes_to_check(&self) -> Vec<(ProcessId, bool)> {
        let living = self.programs.iter().filter(|(_, program)| program.lives);
        let mut all: Vec<(Option<Instant>, ProcessId)> = living
            .map(|(process, program)| (program.facts_at, *process))
            .collect();
        all.sort_unstable();
        let is_due = |at: Option<Instant>| at.is_none_or(|at| self.read_at.since(at) >= KEPT);
        let checks = all.into_iter().enumerate();
        checks
            .map(|(place, (at, process))| (process, place < MOST_READ && is_due(at)))
            .collect()
    }

    /// Records that a process lives, with its facts if they were read.
    pub(super) fn lives(&mut self, process: ProcessId, facts: Option<Facts>) {
        if let Some(program) = self.programs.get_mut(&process)
            && let Some(facts) = facts
        {
            program.facts = facts;
            program.facts_at = Some(self.read_at);
        }
    }

    /// Records that a process has ended.
    pub(super) fn ended(&mut self, process: ProcessId) {
        if let Some(program) = self.programs.get_mut(&process) {
            program.lives = false;
        }
    }

    /// The sockets to be closed: those that have been idle for a minute, or for a second if their
    /// program has ended or if the kernel's table is more than half full.
    pub(super) fn idle(&self) -> Vec<u64> {
        let is_crowded = self.sockets.len() > UsageCounter::MAX_SOCKETS / 2;
        let is_idle = |socket: &Socket| {
            let owner = socket.owner.and_then(|owner| self.programs.get(&owner));
            let lives = owner.is_none_or(|program| program.lives);
            let longest = if lives && !is_crowded {
                IDLE
            } else {
                SHORT_IDLE
            };
            self.read_at.since(socket.moved_at) >= longest
        };
        let sockets = self.sockets.iter();
        let idle = sockets.filter(|(_, socket)| is_idle(socket));
        idle.map(|(cookie, _)| *cookie).collect()
    }

    /// Closes a socket. `last` has its last counts, if the kernel still had an entry.
    pub(super) fn close(&mut self, cookie: u64, last: Option<&SocketUsage>) {
        if let Some(usage) = last {
            let owner = self.sockets.get(&cookie).and_then(|socket| socket.owner);
            self.update_socket(cookie, usage, owner);
        }
        let closed = self.sockets.remove(&cookie);
        let owner = closed.and_then(|socket| socket.owner);
        if let Some(program) = owner.and_then(|owner| self.programs.get_mut(&owner)) {
            program.sockets = program.sockets.saturating_sub(1);
        }
    }

    /// The sums at the last reading.
    pub(super) fn snapshot(&self) -> Snapshot {
        let program = |(process, program): (&ProcessId, &Program)| ProgramTraffic {
            process: *process,
            uid: program.facts.uid,
            command: program.facts.command.clone(),
            cgroup: program.facts.cgroup.clone(),
            moved: program.moved,
            connections: program.active,
            ended: !program.lives,
        };
        let of_users = |(uid, (number, moved)): (&u32, &(u64, Moved))| (*uid, *number, *moved);
        Snapshot {
            at: self.read_at,
            since: self.began,
            interval: self.interval,
            programs: self.programs.iter().map(program).collect(),
            ended: self.ended.iter().map(of_users).collect(),
            unknown: self.unknown,
            overflow: self
                .overflow
                .iter()
                .map(|(uid, moved)| (*uid, *moved))
                .collect(),
            missing: self.missing,
            remarks: Vec::new(),
            datagrams: self.datagrams(),
        }
    }

    fn datagrams(&self) -> DatagramBytes {
        let sockets = self.sockets.iter().filter(|(_, socket)| socket.is_udp);
        sockets
            .map(|(cookie, socket)| (*cookie, socket.counts.bytes))
            .collect()
    }
}

impl Program {
    /// A program that is known only by a socket.
    fn of(owner: ProcessId, usage: &SocketUsage) -> Program {
        let creator = usage.creator.as_ref();
        let is_creator = |pid: u32, started: u64| owner == ProcessId { pid, started };
        let creator = creator.filter(|by| is_creator(by.pid, by.started));
        Program {
            facts: Facts {
                uid: usage.uid,
                command: creator.map_or_else(String::new, |by| by.command.clone()),
                cgroup: None,
            },
            facts_at: None,
            moved: Moved::default(),
            sockets: 0,
            active: 0,
            lives: true,
        }
    }
}

/// A socket that moved something within this time counts as a connection of its program.
const ACTIVE: Nanos = Nanos::from_secs(10);
/// A socket is closed after this time without traffic.
const IDLE: Nanos = Nanos::from_secs(60);
/// The same for sockets of ended programs, and while the kernel's table is crowded.
const SHORT_IDLE: Nanos = Nanos::from_secs(1);
/// Facts of a process are read again after this time: it may have executed another program.
const KEPT: Nanos = Nanos::from_secs(5);
/// The largest number of processes whose facts are read for one reading.
const MOST_READ: usize = 256;
/// The largest number of users with a sum of ended programs of their own.
const MAX_USERS: usize = 1024;
/// The user of further sums: `nobody`.
const NOBODY: u32 = 65_534;

#[cfg(test)]
mod tests;
