//! The manager of `netnice share`: divides a total among the sessions of targets that are already
//! running (the manager P8 of paper NICE, 3.2). It fails with a [`ManagerError`] if the request is
//! invalid, a target does not exist or may not be limited, the daemon is unreachable at the start,
//! or waiting fails. A session that cannot be limited is reported, and has no share.
//!
//! ```text
//!  targets ─find─▶ processes ─scan─▶ sessions ─divide─▶ shares ─keeper─▶ set pid:N both R
//!       (the daemon)                                                       (the daemon)
//! ```
//! The manager limits each target to the total too, and the limits of its sessions lie inside. So
//! the traffic of a server itself, and of sessions that the manager has not found yet, is within
//! the total. A target that is itself a session has only its share.
//!
//! # Following
//! A pidfd reports the end of a session. The manager scans /proc and the cgroup tree for new
//! sessions ten times a second. A scan of the user's own processes needs no privilege and works in
//! every namespace. The kernel's process connector would need root in the initial namespace, and a
//! cgroup only reports whether it has processes.
//!
//! # Leaving
//! When the manager ends, it removes its limits, and limits that the same user set before return.
//! All its limits last until its process ends, so if it is killed, the daemon does the same within
//! two seconds. If a user clears a limit in the meantime, the manager sets it again after at most
//! five minutes.

mod process;
mod session_set;

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
use crate::daemon::{Daemon, LimitTarget, RequestError, total_limit};
use crate::divide::{self, Demand, Pool};
use crate::keeper::{Keeper, Member};
use process::{ProcFs, Processes};
use session_set::SessionSet;

/// The total and the targets to divide it among.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRequest {
    /// The total.
    pub total: Rate,
    /// The targets among whose sessions the total is divided; not empty.
    pub targets: Vec<Target>,
    /// What has equal shares: sessions, users or targets.
    pub per: Per,
    /// Weights other than 100, from 1 to 1000.
    pub weights: Vec<(WeightScope, u16)>,
    /// The smallest share of a session.
    pub floor: Rate,
    /// True if idle sessions lend the unused part of their shares to busy ones.
    pub lend: bool,
    /// Time after which the manager ends by itself. `None`: it does not.
    pub for_: Option<Duration>,
}

/// What the total is divided among first, equally or by weight.
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

/// The sessions to which a weight applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightScope {
    /// The sessions of one of the targets.
    Service(Target),
    /// The sessions of the user with this id.
    User(u32),
}

/// Why the manager cannot start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// Communication with the daemon failed.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// A target does not exist or may not be limited, or the daemon could not be reached.
    #[error("{0}")]
    Request(RequestError),
    /// The floor exceeds the total.
    #[error("the floor of {floor} is more than the total of {total}")]
    Floor {
        /// The floor.
        floor: Rate,
        /// The total.
        total: Rate,
    },
    /// A weight names a target that is not to be divided.
    #[error("a weight is given for {0}, which is not among the targets")]
    WeightWithoutTarget(Target),
    /// A target is named twice.
    #[error("{0} is named twice")]
    TargetTwice(Target),
    /// Waiting failed.
    #[error("cannot wait for sessions: {0}")]
    Wait(#[from] io::Error),
}

impl ManagerError {
    /// The exit status of a process that ends with this error.
    pub fn exit(&self) -> Exit {
        match self {
            ManagerError::Daemon(error) => Exit::from(error),
            ManagerError::Request(error) => error.exit,
            ManagerError::Wait(_) => Exit::Error,
            _ => Exit::BadUsage,
        }
    }
}

/// The sessions that have a share, and their shares.
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
    /// The session's first process, as a target.
    pub session: String,
    /// The target that the session belongs to.
    pub service: String,
    /// The command name of the first process.
    pub name: String,
    /// The id of the user of that process.
    pub user: u32,
    /// The session's share in bit/s.
    pub share: u64,
    /// True if the session has used at most a tenth of its share for 2 s. An idle session lends a
    /// part of its share while another session is busy. Always false in a preview.
    pub idle: bool,
}

/// What the manager reports to the user.
#[derive(Debug)]
pub enum Report<'a> {
    /// A line of text.
    Message(&'a str),
    /// The shares have changed.
    Shares(&'a Shares),
}

/// Computes the shares that [`manage`] would set now. Changes nothing.
///
/// # Errors
/// If a target does not exist, is named twice or may not be limited, if the weights or the floor
/// are invalid, or if there is no daemon.
pub fn preview(request: &ShareRequest, dir: &RuntimeDir) -> Result<Shares, ManagerError> {
    let mut daemon = Daemon::connect(dir, None)?;
    let mut sets = find_targets(request, &mut daemon)?;
    for set in &sets {
        let limited = with_target(&mut daemon, set, |daemon, target| {
            daemon.try_limit(target, &total_limit(request.total))
        });
        limited.map_err(ManagerError::Request)?;
    }
    let mut sessions = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (at, set) in sets.iter_mut().enumerate() {
        for pid in set.sessions(&ProcFs, Instant::now()) {
            if seen.insert(pid) && open_running(pid).is_some() {
                sessions.insert(sessions.len() as u64, Session::new(at, pid));
            }
        }
    }
    let shares = compute_shares(request, &sessions, |_| None);
    Ok(shares_doc(request, &sessions, |number| {
        (shares.get(&number).copied().flatten(), false)
    }))
}

/// Divides the total until `stop` is readable, the time has expired, or every target is a process
/// and has ended. Then it removes its limits. `own` is this process: if it is killed, the daemon
/// removes the limits. `report` gets messages and changed shares.
///
/// # Errors
/// As [`preview`], and if waiting fails.
pub fn manage(
    request: ShareRequest,
    dir: &RuntimeDir,
    own: Until,
    stop: BorrowedFd<'_>,
    report: &mut dyn FnMut(Report<'_>),
) -> Result<(), ManagerError> {
    let mut daemon = Daemon::connect(dir, Some(own))?;
    let sets = find_targets(&request, &mut daemon)?;
    let mut manager = Manager {
        keeper: Keeper::new(daemon),
        deadline: request.for_.map(|time| Instant::now() + time),
        request,
        sets,
        limited: BTreeSet::new(),
        sessions: BTreeMap::new(),
        scanned_at: Instant::now(),
        renewed_at: Instant::now(),
        last_reported: None,
        report,
    };
    let ended = manager.run(stop);
    manager.restore_limits();
    ended
}

/// The session sets of the targets. Validates the floor, the weights and the targets. Fails if one
/// of them is invalid, or if the daemon does not find a target.
fn find_targets(
    request: &ShareRequest,
    daemon: &mut Daemon,
) -> Result<Vec<SessionSet>, ManagerError> {
    let &ShareRequest { floor, total, .. } = request;
    if floor > total {
        return Err(ManagerError::Floor { floor, total });
    }
    let unknown = request.weights.iter().find_map(|(whose, _)| match whose {
        WeightScope::Service(target) if !request.targets.contains(target) => Some(target),
        _ => None,
    });
    if let Some(target) = unknown {
        return Err(ManagerError::WeightWithoutTarget(target.clone()));
    }
    let only = request.targets.len() == 1;
    let mut sets: Vec<SessionSet> = Vec::new();
    for target in &request.targets {
        let text = target.to_string();
        if sets.iter().any(|set| set.target == text) {
            return Err(ManagerError::TargetTwice(target.clone()));
        }
        let found = daemon.find(&text).map_err(ManagerError::Request)?;
        let is_server = only && matches!(target, Target::Pid(_));
        sets.push(SessionSet::new(text, found, is_server));
    }
    Ok(sets)
}

/// Calls `work` for a target as a whole, with a pidfd if the target is a process. Does nothing if
/// the process has ended.
fn with_target<T: Default>(
    daemon: &mut Daemon,
    set: &SessionSet,
    work: impl FnOnce(&mut Daemon, LimitTarget<'_>) -> Result<T, RequestError>,
) -> Result<T, RequestError> {
    let target = &set.target;
    let process = match &set.found {
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
    work(daemon, LimitTarget { target, pidfd })
}

/// A session.
struct Session {
    /// Index of the session's target.
    target: usize,
    /// Number of the first process.
    pid: u32,
    name: String,
    user: u32,
    /// The time at which its user was last read.
    user_read_at: Instant,
    /// Set if the session could not be limited: the time and the reason.
    failure: Option<(Instant, String)>,
}

impl Session {
    fn new(target: usize, pid: u32) -> Session {
        Session {
            target,
            pid,
            name: ProcFs.name(pid).unwrap_or_default(),
            user: session_set::session_user(&ProcFs, pid),
            user_read_at: Instant::now(),
            failure: None,
        }
    }

    /// True if the session could not be limited, and [`RETRY_DELAY`] has passed since.
    fn must_retry(&self) -> bool {
        let failure = self.failure.as_ref();
        failure.is_some_and(|(at, _)| at.elapsed() >= RETRY_DELAY)
    }
}

struct Manager<'a> {
    request: ShareRequest,
    keeper: Keeper,
    sets: Vec<SessionSet>,
    /// Indices of the targets that are limited to the total.
    limited: BTreeSet<usize>,
    /// By the keeper's number.
    sessions: BTreeMap<u64, Session>,
    scanned_at: Instant,
    renewed_at: Instant,
    /// The time at which the manager ends by itself.
    deadline: Option<Instant>,
    last_reported: Option<Shares>,
    report: &'a mut dyn FnMut(Report<'_>),
}

impl Manager<'_> {
    fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), ManagerError> {
        self.scan()?;
        // The first shares are reported even if there are no sessions.
        self.keeper.mark_changed();
        loop {
            if self.sessions.values().any(Session::must_retry) {
                self.keeper.mark_changed();
            }
            if self.keeper.must_apply() {
                self.apply();
            }
            if self.sets.iter().all(SessionSet::has_ended) {
                self.message("all targets have ended");
                return Ok(());
            }
            if self.deadline.is_some_and(|at| Instant::now() >= at) {
                return Ok(());
            }
            let (stopped, ended) = self.wait(stop)?;
            if stopped {
                return Ok(());
            }
            for number in &ended {
                self.end(*number);
            }
            if !ended.is_empty() || self.scanned_at.elapsed() >= SCAN_INTERVAL {
                self.scan()?;
            }
            let lends = self.lends();
            self.keeper.read_usage(lends);
            if self.renewed_at.elapsed() >= RENEWAL_INTERVAL {
                self.renew();
            }
        }
    }

    /// Waits for the end of a session or for `stop`, at most until the next scan or the keeper's
    /// next work. Returns whether `stop` is readable, and the numbers of the sessions that ended.
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
        let next = SCAN_INTERVAL.saturating_sub(self.scanned_at.elapsed());
        let time = self
            .keeper
            .time_to_next_work(self.lends())
            .map_or(next, |keeper| keeper.min(next));
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        match rustix::event::poll(&mut fds, Some(&timeout)) {
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

    /// Adds new sessions and removes those that no longer are sessions. Fails if a target cannot be
    /// limited to the total.
    fn scan(&mut self) -> Result<(), ManagerError> {
        self.scanned_at = Instant::now();
        let mut present: BTreeMap<u32, usize> = BTreeMap::new();
        for (at, set) in self.sets.iter_mut().enumerate() {
            if matches!(set.found, Found::Processes(_))
                && set.target.starts_with("name:")
                && let Ok(found) = self.keeper.daemon.find(&set.target)
            {
                set.found = found;
            }
            for pid in set.sessions(&ProcFs, self.scanned_at) {
                present.entry(pid).or_insert(at);
            }
        }
        let gone: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, session)| !present.contains_key(&session.pid))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            // The process lives but is no longer a session.
            let _ = self.keeper.restore(number);
            self.end(number);
        }
        self.limit_targets(&present)?;
        let known: BTreeSet<u32> = self.sessions.values().map(|session| session.pid).collect();
        for (pid, at) in present {
            if !known.contains(&pid)
                && let Some(member) = open_running(pid)
            {
                let number = self.keeper.add(member);
                self.sessions.insert(number, Session::new(at, pid));
            }
        }
        self.update_users();
        Ok(())
    }

    /// Limits each target to the total, unless it is limited already. A process that is a session
    /// itself has only its share.
    fn limit_targets(&mut self, present: &BTreeMap<u32, usize>) -> Result<(), ManagerError> {
        let rate = total_limit(self.request.total);
        for (at, set) in self.sets.iter().enumerate() {
            let is_session = present.keys().any(|pid| set.target == format!("pid:{pid}"));
            if is_session {
                self.limited.remove(&at);
            } else if !set.has_ended() && self.limited.insert(at) {
                let limited = with_target(&mut self.keeper.daemon, set, |daemon, target| {
                    daemon.limit(target, &rate)
                });
                limited.map_err(ManagerError::Request)?;
            }
        }
        Ok(())
    }

    /// Reads the user of sessions of root again, because a session gets its user when the user logs
    /// in.
    fn update_users(&mut self) {
        for session in self.sessions.values_mut() {
            if session.user == 0 && session.user_read_at.elapsed() >= USER_INTERVAL {
                session.user_read_at = Instant::now();
                session.user = session_set::session_user(&ProcFs, session.pid);
                if session.user != 0 {
                    self.keeper.mark_changed();
                }
            }
        }
    }

    fn end(&mut self, number: u64) {
        self.keeper.remove(number);
        self.sessions.remove(&number);
    }

    fn lends(&self) -> bool {
        self.request.lend && self.sessions.len() > 1
    }

    /// Sets the shares that changed, and reports them.
    fn apply(&mut self) {
        let keeper = &self.keeper;
        let idle = |number: u64| keeper.get(number).and_then(Member::idle);
        let shares = compute_shares(&self.request, &self.sessions, idle);
        let tried: Vec<u64> = shares.keys().copied().collect();
        let failed = self.keeper.apply(shares);
        for number in tried {
            if failed.iter().all(|(other, _)| *other != number)
                && let Some(session) = self.sessions.get_mut(&number)
            {
                session.failure = None;
            }
        }
        for (number, why) in failed {
            let Some(session) = self.sessions.get_mut(&number) else {
                continue;
            };
            let is_new = session
                .failure
                .as_ref()
                .is_none_or(|(_, before)| *before != why.text);
            session.failure = Some((Instant::now(), why.text.clone()));
            let line = format!(
                "pid:{} cannot be limited, and has no share: {why}",
                session.pid
            );
            if is_new {
                self.message(&line);
            }
            self.keeper.mark_changed();
        }
        let keeper = &self.keeper;
        let now = shares_doc(&self.request, &self.sessions, |number| {
            let member = keeper.get(number);
            let share = member.and_then(|member| member.share);
            (share, member.and_then(Member::idle).is_some())
        });
        if self.last_reported.as_ref() != Some(&now) {
            (self.report)(Report::Shares(&now));
            self.last_reported = Some(now);
        }
    }

    /// Sets all limits again.
    fn renew(&mut self) {
        self.renewed_at = Instant::now();
        let rate = total_limit(self.request.total);
        for at in self.limited.clone() {
            let limited = with_target(&mut self.keeper.daemon, &self.sets[at], |daemon, target| {
                daemon.limit(target, &rate)
            });
            if let Err(why) = limited {
                let line = format!("{} cannot be limited: {why}", self.sets[at].target);
                self.message(&line);
            }
        }
        self.keeper.set_all_again();
    }

    /// Removes all limits; earlier limits return.
    fn restore_limits(&mut self) {
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        let mut failures = BTreeSet::new();
        for number in numbers {
            failures.extend(self.keeper.restore(number).err().map(|why| why.text));
        }
        let rate = total_limit(self.request.total);
        for at in &self.limited {
            let set = &self.sets[*at];
            if set.has_ended() {
                continue;
            }
            let restored = with_target(&mut self.keeper.daemon, set, |daemon, target| {
                daemon.restore(target, &rate)
            });
            failures.extend(restored.err().map(|why| why.text));
        }
        for failure in failures {
            self.message(&format!("a limit could not be restored: {failure}"));
        }
    }

    fn message(&mut self, line: &str) {
        (self.report)(Report::Message(line));
    }
}

/// A running process as a member; `None` if the process has ended, even if it is not reaped.
fn open_running(pid: u32) -> Option<Member> {
    Member::open(pid).ok().filter(|member| !member.has_ended())
}

/// The share in bit/s of each session that can be limited, by the session's number.
fn compute_shares(
    request: &ShareRequest,
    sessions: &BTreeMap<u64, Session>,
    idle: impl Fn(u64) -> Option<u64>,
) -> BTreeMap<u64, Option<u64>> {
    let pool = Pool {
        total: Some(request.total.bits_per_second()),
        floor: request.floor.bits_per_second(),
    };
    let mut groups: BTreeMap<u64, (u64, Vec<(u64, Demand)>)> = BTreeMap::new();
    for (number, session) in sessions {
        if session.failure.is_some() && !session.must_retry() {
            continue;
        }
        let (service, user) = (
            request.of_service(session.target),
            request.of_user(session.user),
        );
        let (group, whole, own) = match request.per {
            Per::Session => (0, 1, service * user),
            Per::User => (u64::from(session.user), user, service),
            Per::Service => (session.target as u64, service, user),
        };
        let demand = Demand {
            fixed: None,
            weight: own,
            bound: None,
            idle: idle(*number),
        };
        let group = groups.entry(group).or_insert((whole, Vec::new()));
        group.1.push((*number, demand));
    }
    let demands: Vec<(u64, Vec<Demand>)> = groups
        .values()
        .map(|(weight, members)| (*weight, members.iter().map(|(_, demand)| *demand).collect()))
        .collect();
    let shares = divide::divide_groups(pool, &demands).into_iter().flatten();
    let numbers = groups.into_values().flat_map(|(_, members)| members);
    numbers.map(|(number, _)| number).zip(shares).collect()
}

/// The document of the sessions that have a share.
fn shares_doc(
    request: &ShareRequest,
    sessions: &BTreeMap<u64, Session>,
    share: impl Fn(u64) -> (Option<u64>, bool),
) -> Shares {
    let one = |(number, session): (&u64, &Session)| {
        let (share, idle) = share(*number);
        Some(SessionDoc {
            session: format!("pid:{}", session.pid),
            service: request.targets.get(session.target)?.to_string(),
            name: session.name.clone(),
            user: session.user,
            share: share?,
            idle,
        })
    };
    Shares {
        total: request.total.bits_per_second(),
        sessions: sessions.iter().filter_map(one).collect(),
    }
}

impl ShareRequest {
    fn of_service(&self, target: usize) -> u64 {
        let target = self.targets.get(target);
        self.weight(|scope| matches!(scope, WeightScope::Service(of) if Some(of) == target))
    }

    fn of_user(&self, user: u32) -> u64 {
        self.weight(|scope| matches!(scope, WeightScope::User(of) if *of == user))
    }

    fn weight(&self, is_theirs: impl Fn(&WeightScope) -> bool) -> u64 {
        let theirs = self.weights.iter().find(|(whose, _)| is_theirs(whose));
        theirs
            .map_or(config::DEFAULT_WEIGHT, |(_, weight)| *weight)
            .into()
    }
}

impl WeightScope {
    /// The scope of a weight that is given for `target`: a user for `user:NAME`, else a service. If
    /// `user:NAME` is one of `targets`, the targets to be divided, it is a service. `None` if there
    /// is no such user.
    pub fn from_target(target: Target, targets: &[Target]) -> Option<WeightScope> {
        match &target {
            own if targets.contains(own) => Some(WeightScope::Service(target)),
            Target::User(name) => {
                let user = config::user(name.as_str()).ok()?;
                Some(WeightScope::User(user.uid))
            }
            _ => Some(WeightScope::Service(target)),
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
const RENEWAL_INTERVAL: Duration = Duration::from_secs(300);

/// Time between two scans for sessions. With the 100 ms between two settings, shares follow within
/// 500 ms on a busy machine too.
const SCAN_INTERVAL: Duration = Duration::from_millis(100);

/// Time between two readings of a session's user.
const USER_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which a session that could not be limited is left out of the division.
const RETRY_DELAY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
