//! The manager of existing processes: divides a total among the sessions of targets that are
//! already running (the paper's P8, NICE 3.2). It fails if a target does not exist or may not be
//! limited, or if the daemon is unreachable at the start.
//!
//! ```text
//!  targets ─find─▶ processes ─crowd─▶ sessions ─divide─▶ shares ─keep─▶ set pid:N both R
//!       (the daemon)                                                       (the daemon)
//! ```
//! The manager limits each target to the total too, and the limits of its sessions lie inside. So
//! new sessions that the manager has not seen yet, and traffic of no session (the server's own),
//! are within the total.
//!
//! # Following
//! A pidfd reports the end of a session. The manager looks for new sessions ten times a second.
//! That needs no privilege and works in every namespace; the process connector needs root in the
//! initial namespace, and a cgroup only reports that it is populated. Each look reads only the
//! lists of processes, and the parents of new processes.
//!
//! # Leaving
//! When the manager ends, it removes its limits, and limits that the same user set before return.
//! All its limits last until its process ends, so if it is killed, the daemon does the same a
//! second later. If a user clears a limit in the meantime, the manager sets it again after at most
//! five minutes.

mod crowd;
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netnice_api::{ClientError, Exit, Found, RuntimeDir, Until};
use netnice_core::target::Target;
use netnice_core::units::Rate;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;

use crate::config;
use crate::daemon::{Daemon, Denial, Whom, evenly};
use crate::divide::{self, Demand, Pool};
use crate::keep::{Keeper, Member};
use crowd::Crowd;
use process::{Machine, Processes};

/// The total and the targets to divide it among.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The total.
    pub total: Rate,
    /// The targets with the sessions; not empty.
    pub targets: Vec<Target>,
    /// The units that have equal shares.
    pub per: Per,
    /// Weights other than 100.
    pub weights: Vec<(Whose, u16)>,
    /// The smallest share.
    pub floor: Rate,
    /// True if idle sessions lend.
    pub lend: bool,
    /// Time after which the manager ends by itself, if any.
    pub for_: Option<Duration>,
}

/// The units that have equal shares, or shares by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Per {
    /// Each session.
    #[default]
    Session,
    /// All sessions of a user together.
    User,
    /// All sessions of a target together.
    Service,
}

/// The sessions that a weight applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The sessions of one of the targets.
    Service(Target),
    /// The sessions of a user.
    User(u32),
}

/// Why the manager cannot start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// Communication with the daemon failed.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// A target does not exist or may not be limited.
    #[error("{0}")]
    Denied(Denial),
    /// The floor exceeds the total.
    #[error("the floor of {floor} is more than the total of {total}")]
    Floor {
        /// The floor.
        floor: Rate,
        /// The total.
        total: Rate,
    },
    /// A weight names a target that is not divided.
    #[error("a weight is given for {0}, which is not among the targets")]
    NoSuchService(Target),
    /// A target is named twice.
    #[error("{0} is named twice")]
    Twice(Target),
    /// Waiting failed.
    #[error("cannot wait for sessions: {0}")]
    Wait(#[from] io::Error),
}

impl ManagerError {
    /// The exit status of the process.
    pub fn exit(&self) -> Exit {
        match self {
            ManagerError::Daemon(error) => Exit::from(error),
            ManagerError::Denied(denial) => denial.exit,
            ManagerError::Wait(_) => Exit::Error,
            _ => Exit::BadUsage,
        }
    }
}

/// The present shares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shares {
    /// The total, in bit/s.
    pub total: u64,
    /// The sessions, in the order of their arrival.
    pub sessions: Vec<SessionDoc>,
}

/// A session and its share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionDoc {
    /// Its first process, as a target.
    pub session: String,
    /// The target that the session belongs to.
    pub service: String,
    /// The name of its program.
    pub name: String,
    /// Its user.
    pub user: u32,
    /// Its share in bit/s.
    pub share: u64,
    /// True if it lends most of its share.
    pub idle: bool,
}

/// A message for the user.
#[derive(Debug)]
pub enum Told<'a> {
    /// A line of text.
    Line(&'a str),
    /// The shares have changed.
    Shares(&'a Shares),
}

/// Computes the shares that would apply now. Changes nothing.
///
/// # Errors
/// If a target does not exist or may not be limited, the weights or the floor are invalid, or there
/// is no daemon.
pub fn preview(asked: &Asked, dir: &RuntimeDir) -> Result<Shares, ManagerError> {
    let mut daemon = Daemon::connect(dir, None)?;
    let mut crowds = find(asked, &mut daemon)?;
    for crowd in &crowds {
        let limited = hold(&mut daemon, crowd, |daemon, whom| {
            daemon.try_limit(whom, &evenly(asked.total))
        });
        limited.map_err(ManagerError::Denied)?;
    }
    let mut sessions = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (at, crowd) in crowds.iter_mut().enumerate() {
        for pid in crowd.sessions(&Machine, Instant::now()) {
            if seen.insert(pid) && living(pid).is_some() {
                sessions.insert(sessions.len() as u64, Session::new(at, pid));
            }
        }
    }
    let shares = divided(asked, &sessions, |_| None);
    Ok(told(asked, &sessions, |number| {
        (shares.get(&number).copied().flatten(), false)
    }))
}

/// Divides the total until `stop` is readable, the time has expired, or all named processes have
/// ended. Then it removes its limits. If this process (`own`) is killed, the daemon removes them.
///
/// # Errors
/// As [`preview`], and if waiting fails.
pub fn manage(
    asked: Asked,
    dir: &RuntimeDir,
    own: Until,
    stop: BorrowedFd<'_>,
    tell: &mut dyn FnMut(Told<'_>),
) -> Result<(), ManagerError> {
    let mut daemon = Daemon::connect(dir, Some(own))?;
    let crowds = find(&asked, &mut daemon)?;
    let mut manager = Manager {
        keeper: Keeper::new(daemon),
        ends: asked.for_.map(|time| Instant::now() + time),
        asked,
        crowds,
        held: BTreeSet::new(),
        sessions: BTreeMap::new(),
        looked: Instant::now(),
        renewed: Instant::now(),
        last: None,
        tell,
    };
    let ended = manager.run(stop);
    manager.lift();
    ended
}

/// The compositions of the targets. Validates the floor, the weights and the targets.
fn find(asked: &Asked, daemon: &mut Daemon) -> Result<Vec<Crowd>, ManagerError> {
    let &Asked { floor, total, .. } = asked;
    if floor > total {
        return Err(ManagerError::Floor { floor, total });
    }
    let foreign = asked.weights.iter().find_map(|(whose, _)| match whose {
        Whose::Service(target) if !asked.targets.contains(target) => Some(target),
        _ => None,
    });
    if let Some(target) = foreign {
        return Err(ManagerError::NoSuchService(target.clone()));
    }
    let only = asked.targets.len() == 1;
    let mut crowds: Vec<Crowd> = Vec::new();
    for target in &asked.targets {
        let text = target.to_string();
        if crowds.iter().any(|crowd| crowd.target == text) {
            return Err(ManagerError::Twice(target.clone()));
        }
        let found = daemon.find(&text).map_err(ManagerError::Denied)?;
        let is_server = only && matches!(target, Target::Pid(_));
        crowds.push(Crowd::new(text, found, is_server));
    }
    Ok(crowds)
}

/// Calls `what` for a target as a whole, with a pidfd if the target is a process. Does nothing if
/// the process has ended.
fn hold<T: Default>(
    daemon: &mut Daemon,
    crowd: &Crowd,
    what: impl FnOnce(&mut Daemon, Whom<'_>) -> Result<T, Denial>,
) -> Result<T, Denial> {
    let target = &crowd.target;
    let process = match &crowd.found {
        Found::Processes(named) if target.starts_with("pid:") => match named.first() {
            Some(pid) => match Member::open(*pid) {
                Ok(member) => Some(member),
                Err(_) => return Ok(T::default()),
            },
            None => None,
        },
        _ => None,
    };
    let pidfd = process.as_ref().map(|process| process.pidfd.as_fd());
    what(daemon, Whom { target, pidfd })
}

/// A session.
struct Session {
    /// Index of its target.
    crowd: usize,
    /// Number of its first process.
    pid: u32,
    name: String,
    user: u32,
    /// The time at which its user was last read.
    looked: Instant,
    /// Set if the session could not be limited: the time and the reason.
    trouble: Option<(Instant, String)>,
}

impl Session {
    fn new(crowd: usize, pid: u32) -> Session {
        Session {
            crowd,
            pid,
            name: Machine.name(pid).unwrap_or_default(),
            user: crowd::user(&Machine, pid),
            looked: Instant::now(),
            trouble: None,
        }
    }
}

struct Manager<'a> {
    asked: Asked,
    keeper: Keeper,
    crowds: Vec<Crowd>,
    /// Indices of the targets that are limited to the total.
    held: BTreeSet<usize>,
    /// By the keeper's number.
    sessions: BTreeMap<u64, Session>,
    looked: Instant,
    renewed: Instant,
    /// The time at which the manager ends by itself.
    ends: Option<Instant>,
    last: Option<Shares>,
    tell: &'a mut dyn FnMut(Told<'_>),
}

impl Manager<'_> {
    fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), ManagerError> {
        self.look()?;
        // The first shares are reported even if there are no sessions.
        self.keeper.touch();
        loop {
            if self.keeper.must_apply() {
                self.apply();
            }
            self.keeper.look_after();
            if self.crowds.iter().all(Crowd::has_ended) {
                self.say("all that was named has ended");
                return Ok(());
            }
            if self.ends.is_some_and(|at| Instant::now() >= at) {
                return Ok(());
            }
            let (stopped, ended) = self.wait(stop)?;
            if stopped {
                return Ok(());
            }
            for number in &ended {
                self.end(*number);
            }
            if !ended.is_empty() || self.looked.elapsed() >= LOOK {
                self.look()?;
            }
            let lends = self.lends();
            self.keeper.look(lends);
            if self.renewed.elapsed() >= RENEWAL {
                self.renew();
            }
        }
    }

    /// Waits for the end of a session or for `stop`, at most until the next look.
    fn wait(&self, stop: BorrowedFd<'_>) -> io::Result<(bool, Vec<u64>)> {
        let numbers: Vec<u64> = self.keeper.members().map(|(number, _)| number).collect();
        let running = self
            .keeper
            .members()
            .map(|(_, member)| member.pidfd.as_fd());
        let mut fds: Vec<PollFd<'_>> = std::iter::once(stop)
            .chain(running)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let next = LOOK.saturating_sub(self.looked.elapsed());
        let time = self
            .keeper
            .patience(self.lends())
            .map_or(next, |keeper| keeper.min(next));
        let patience = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        match rustix::event::poll(&mut fds, Some(&patience)) {
            // A signal that ends the manager makes `stop` readable too.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let stopped = ready.next().unwrap_or(false);
        let ended = numbers.into_iter().zip(ready);
        Ok((
            stopped,
            ended
                .filter_map(|(number, ready)| ready.then_some(number))
                .collect(),
        ))
    }

    /// Adds new sessions and removes those that no longer are sessions.
    fn look(&mut self) -> Result<(), ManagerError> {
        self.looked = Instant::now();
        let mut there: BTreeMap<u32, usize> = BTreeMap::new();
        for (at, crowd) in self.crowds.iter_mut().enumerate() {
            if matches!(crowd.found, Found::Processes(_))
                && crowd.target.starts_with("name:")
                && let Ok(found) = self.keeper.daemon.find(&crowd.target)
            {
                crowd.found = found;
            }
            for pid in crowd.sessions(&Machine, self.looked) {
                there.entry(pid).or_insert(at);
            }
        }
        let gone: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, session)| !there.contains_key(&session.pid))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            // The process lives but is no longer a session.
            let _ = self.keeper.lift(number);
            self.end(number);
        }
        self.hold_totals(&there)?;
        let known: BTreeSet<u32> = self.sessions.values().map(|session| session.pid).collect();
        for (pid, at) in there {
            if !known.contains(&pid)
                && let Some(member) = living(pid)
            {
                let number = self.keeper.add(member);
                self.sessions.insert(number, Session::new(at, pid));
            }
        }
        self.look_for_users();
        Ok(())
    }

    /// Limits each target to the total, unless it is limited already. A process that is a session
    /// itself has only its share.
    fn hold_totals(&mut self, there: &BTreeMap<u32, usize>) -> Result<(), ManagerError> {
        let rate = evenly(self.asked.total);
        for (at, crowd) in self.crowds.iter().enumerate() {
            let is_session = there.keys().any(|pid| crowd.target == format!("pid:{pid}"));
            if is_session {
                self.held.remove(&at);
            } else if !crowd.has_ended() && self.held.insert(at) {
                let limited = hold(&mut self.keeper.daemon, crowd, |daemon, whom| {
                    daemon.limit(whom, &rate)
                });
                limited.map_err(ManagerError::Denied)?;
            }
        }
        Ok(())
    }

    /// Reads the user of sessions of root again, because a session gets its user when the user logs
    /// in.
    fn look_for_users(&mut self) {
        for session in self.sessions.values_mut() {
            if session.user == 0 && session.looked.elapsed() >= LOOK_FOR_USER {
                session.looked = Instant::now();
                session.user = crowd::user(&Machine, session.pid);
                if session.user != 0 {
                    self.keeper.touch();
                }
            }
        }
    }

    fn end(&mut self, number: u64) {
        self.keeper.remove(number);
        self.sessions.remove(&number);
    }

    fn lends(&self) -> bool {
        self.asked.lend && self.sessions.len() > 1
    }

    /// Sets the shares that changed, and reports them.
    fn apply(&mut self) {
        let keeper = &self.keeper;
        let idle = |number: u64| keeper.get(number).and_then(Member::idle);
        let shares = divided(&self.asked, &self.sessions, idle);
        for (number, why) in self.keeper.apply(shares) {
            let Some(session) = self.sessions.get_mut(&number) else {
                continue;
            };
            let is_news = session
                .trouble
                .as_ref()
                .is_none_or(|(_, before)| *before != why.text);
            session.trouble = Some((Instant::now(), why.text.clone()));
            let line = format!(
                "pid:{} cannot be limited, and has no share: {why}",
                session.pid
            );
            if is_news {
                self.say(&line);
            }
            self.keeper.touch();
        }
        let keeper = &self.keeper;
        let now = told(&self.asked, &self.sessions, |number| {
            let member = keeper.get(number);
            let share = member.and_then(|member| member.share);
            (share, member.and_then(Member::idle).is_some())
        });
        if self.last.as_ref() != Some(&now) {
            (self.tell)(Told::Shares(&now));
            self.last = Some(now);
        }
    }

    /// Sets all limits again.
    fn renew(&mut self) {
        self.renewed = Instant::now();
        let rate = evenly(self.asked.total);
        for at in self.held.clone() {
            let again = hold(&mut self.keeper.daemon, &self.crowds[at], |daemon, whom| {
                daemon.limit(whom, &rate)
            });
            if let Err(why) = again {
                let line = format!("{} cannot be limited: {why}", self.crowds[at].target);
                self.say(&line);
            }
        }
        self.keeper.renew();
    }

    /// Removes all limits; earlier limits return.
    fn lift(&mut self) {
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        let mut troubles = BTreeSet::new();
        for number in numbers {
            troubles.extend(self.keeper.lift(number).err().map(|why| why.text));
        }
        let rate = evenly(self.asked.total);
        for at in &self.held {
            let crowd = &self.crowds[*at];
            if crowd.has_ended() {
                continue;
            }
            let lifted = hold(&mut self.keeper.daemon, crowd, |daemon, whom| {
                daemon.lift(whom, &rate)
            });
            troubles.extend(lifted.err().map(|why| why.text));
        }
        for trouble in troubles {
            self.say(&format!("a limit could not be taken back: {trouble}"));
        }
    }

    fn say(&mut self, line: &str) {
        (self.tell)(Told::Line(line));
    }
}

/// A running process as a member. A process that has ended but is not reaped is not a member.
fn living(pid: u32) -> Option<Member> {
    Member::open(pid).ok().filter(|member| !member.has_ended())
}

/// The share of each session that can be limited.
fn divided(
    asked: &Asked,
    sessions: &BTreeMap<u64, Session>,
    idle: impl Fn(u64) -> Option<u64>,
) -> BTreeMap<u64, Option<u64>> {
    let pool = Pool {
        total: Some(asked.total.bits_per_second()),
        floor: asked.floor.bits_per_second(),
    };
    let mut groups: BTreeMap<u64, (u64, Vec<(u64, Demand)>)> = BTreeMap::new();
    for (number, session) in sessions {
        let in_trouble = |(since, _): &(Instant, String)| since.elapsed() < AFTER_TROUBLE;
        if session.trouble.as_ref().is_some_and(in_trouble) {
            continue;
        }
        let (service, user) = (asked.of_service(session.crowd), asked.of_user(session.user));
        let (group, whole, own) = match asked.per {
            Per::Session => (0, 1, service * user),
            Per::User => (u64::from(session.user), user, service),
            Per::Service => (session.crowd as u64, service, user),
        };
        let demand = Demand {
            fixed: None,
            weight: own,
            most: None,
            idle: idle(*number),
        };
        let group = groups.entry(group).or_insert((whole, Vec::new()));
        group.1.push((*number, demand));
    }
    let plain: Vec<(u64, Vec<Demand>)> = groups
        .values()
        .map(|(weight, members)| (*weight, members.iter().map(|(_, demand)| *demand).collect()))
        .collect();
    let shares = divide::divide_groups(pool, &plain).into_iter().flatten();
    let numbers = groups.into_values().flat_map(|(_, members)| members);
    numbers.map(|(number, _)| number).zip(shares).collect()
}

fn told(
    asked: &Asked,
    sessions: &BTreeMap<u64, Session>,
    share: impl Fn(u64) -> (Option<u64>, bool),
) -> Shares {
    let one = |(number, session): (&u64, &Session)| {
        let (share, idle) = share(*number);
        Some(SessionDoc {
            session: format!("pid:{}", session.pid),
            service: asked.targets.get(session.crowd)?.to_string(),
            name: session.name.clone(),
            user: session.user,
            share: share?,
            idle,
        })
    };
    Shares {
        total: asked.total.bits_per_second(),
        sessions: sessions.iter().filter_map(one).collect(),
    }
}

impl Asked {
    fn of_service(&self, crowd: usize) -> u64 {
        let target = self.targets.get(crowd);
        self.weight(|whose| matches!(whose, Whose::Service(of) if Some(of) == target))
    }

    fn of_user(&self, user: u32) -> u64 {
        self.weight(|whose| matches!(whose, Whose::User(of) if *of == user))
    }

    fn weight(&self, is_theirs: impl Fn(&Whose) -> bool) -> u64 {
        let theirs = self.weights.iter().find(|(whose, _)| is_theirs(whose));
        theirs.map_or(config::WEIGHT, |(_, weight)| *weight).into()
    }
}

impl Whose {
    /// Reads `user:NAME` or a target. A target that is to be divided takes precedence over a user
    /// of the same name.
    pub fn of(target: Target, targets: &[Target]) -> Option<Whose> {
        match &target {
            own if targets.contains(own) => Some(Whose::Service(target)),
            Target::User(name) => {
                let user = config::user(name.as_str()).ok()?;
                Some(Whose::User(user.uid))
            }
            _ => Some(Whose::Service(target)),
        }
    }
}

impl fmt::Display for Per {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Per::Session => "session",
            Per::User => "user",
            Per::Service => "service",
        })
    }
}

/// Time between two settings of all limits.
const RENEWAL: Duration = Duration::from_secs(300);

/// Time between two looks for sessions. With the 100 ms between two settings, shares follow within
/// 500 ms on a busy machine too.
const LOOK: Duration = Duration::from_millis(100);

/// Time between two readings of a session's user.
const LOOK_FOR_USER: Duration = Duration::from_secs(1);

/// Time for which a session that could not be limited is left out of the division.
const AFTER_TROUBLE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
