//! Keeps shares in force, for the super-server and for the manager of existing processes. A
//! *member* is the first process of a session. A share that the daemon does not set is returned
//! with the reason; the caller decides what follows. Opening a member fails if its process does not
//! exist or the kernel refuses a pidfd.
//!
//! ```text
//!   members, demands ──divide──▶ shares ──those that shrink first──▶ the daemon: set pid:N both R
//!        ▲                                                              │
//!        └───────────── what each member used, five times a second ◀────┘
//! ```
//! The caller determines the members and calls `divide` with their demands. This module sets the
//! shares that changed. The caller sets all shares at most every 100 ms ([`Keeper::may_apply`]).
//! After 50 ms of work [`Keeper::apply`] returns, and sets the other shares in the next call. If a
//! process ends while its share is set, that is no failure: the daemon closes a target within two
//! seconds after its last process has ended, and a target with descendants keeps the limit.

mod usage;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use netnice_core::units::Rate;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::daemon::{Daemon, LimitTarget, RequestError};
use usage::Usage;

/// A member: the first process of a session, and the share of the process and its descendants.
pub(crate) struct Member {
    /// Pidfd of the process.
    pub pidfd: OwnedFd,
    /// The process as a target of the daemon.
    pub target: String,
    /// The share that is in force, in bit/s; `None`: unlimited, or not set yet.
    pub share: Option<u64>,
    /// True if a share has been set.
    is_set: bool,
    usage: Usage,
}

impl Member {
    /// Opens the process with this number. Fails with ESRCH if there is none, else with the error
    /// of pidfd_open(2).
    pub(crate) fn open(pid: u32) -> Result<Member, Errno> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        Ok(Member {
            pidfd: pidfd_open(raw.ok_or(Errno::SRCH)?, PidfdFlags::empty())?,
            target: format!("pid:{pid}"),
            share: None,
            is_set: false,
            usage: Usage::default(),
        })
    }

    /// True if the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(
            rustix::event::poll(&mut fds, Some(&Timespec::default())),
            Ok(1..)
        )
    }

    /// The member's highest usage while it is idle, in bit/s; `None` if it is busy.
    pub(crate) fn idle(&self) -> Option<u64> {
        self.usage.idle()
    }

    /// The process as a target to limit.
    pub(crate) fn limit_target(&self) -> LimitTarget<'_> {
        LimitTarget {
            target: &self.target,
            pidfd: Some(self.pidfd.as_fd()),
        }
    }
}

/// The members and the connection to the daemon. Each member gets the next number, so numbers are
/// in the order of arrival.
pub(crate) struct Keeper {
    /// The connection to the daemon.
    pub daemon: Daemon,
    members: BTreeMap<u64, Member>,
    next: u64,
    /// True if shares have changed since they were last set.
    changed: bool,
    /// The time at which the shares were last set.
    applied_at: Option<Instant>,
    /// The time of the last reading of the usage.
    usage_read_at: Instant,
}

/// A member whose share could not be set, with the reason.
pub(crate) type FailedShare = (u64, RequestError);

impl Keeper {
    /// A keeper without members.
    pub(crate) fn new(daemon: Daemon) -> Keeper {
        Keeper {
            daemon,
            members: BTreeMap::new(),
            next: 0,
            changed: false,
            applied_at: None,
            usage_read_at: Instant::now(),
        }
    }

    /// Adds a member. Returns its number.
    pub(crate) fn add(&mut self, member: Member) -> u64 {
        let number = self.next;
        self.next += 1;
        self.members.insert(number, member);
        self.changed = true;
        number
    }

    /// Removes and returns a member; `None` if there is none with this number. The limit stays as
    /// it is.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Member> {
        let member = self.members.remove(&number);
        self.changed |= member.is_some();
        member
    }

    /// The member with this number; `None` if there is none.
    pub(crate) fn get(&self, number: u64) -> Option<&Member> {
        self.members.get(&number)
    }

    /// The members with their numbers, in the order of the numbers.
    pub(crate) fn members(&self) -> impl Iterator<Item = (u64, &Member)> {
        self.members
            .iter()
            .map(|(number, member)| (*number, member))
    }

    /// Marks the shares as changed.
    pub(crate) fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// Marks all shares to be set again, whether or not they have changed.
    pub(crate) fn set_all_again(&mut self) {
        for member in self.members.values_mut() {
            member.is_set = false;
        }
        self.changed = true;
    }

    /// Time until the next call has something to do; `None` if it has nothing to do before the next
    /// event. `lends` is true if the usage of members must be read.
    pub(crate) fn time_to_next_work(&self, lends: bool) -> Option<Duration> {
        let apply = self.changed.then(|| {
            self.applied_at.map_or(Duration::ZERO, |at| {
                APPLY_INTERVAL.saturating_sub(at.elapsed())
            })
        });
        let read = lends.then(|| USAGE_INTERVAL.saturating_sub(self.usage_read_at.elapsed()));
        apply.into_iter().chain(read).min()
    }

    /// True if shares have changed and [`APPLY_INTERVAL`] has passed since the last setting.
    pub(crate) fn must_apply(&self) -> bool {
        self.changed && self.may_apply()
    }

    /// True if [`APPLY_INTERVAL`] has passed since the last setting.
    pub(crate) fn may_apply(&self) -> bool {
        self.applied_at
            .is_none_or(|at| at.elapsed() >= APPLY_INTERVAL)
    }

    /// Sets the shares that differ from those in force, those that shrink first. After
    /// [`MAX_APPLY_TIME`] it leaves the others for the next call, so that the caller can serve
    /// other events. Returns the shares that could not be set.
    pub(crate) fn apply(&mut self, shares: BTreeMap<u64, Option<u64>>) -> Vec<FailedShare> {
        let began = Instant::now();
        let mut wanted: Vec<(u64, Option<u64>)> = shares.into_iter().collect();
        wanted.sort_by_key(|(number, share)| {
            let has = self.members.get(number).and_then(|member| member.share);
            let grows = has.is_none() || share.unwrap_or(u64::MAX) > has.unwrap_or(u64::MAX);
            (grows, *number)
        });
        let mut failed = Vec::new();
        for (number, share) in wanted {
            if began.elapsed() > MAX_APPLY_TIME {
                return failed;
            }
            failed.extend(self.set(number, share).err().map(|why| (number, why)));
        }
        self.changed = false;
        self.applied_at = Some(Instant::now());
        failed
    }

    /// Sets the share of one member, unless it is already in force or the member has ended. Fails
    /// if the daemon does not set it.
    pub(crate) fn set(&mut self, number: u64, share: Option<u64>) -> Result<(), RequestError> {
        let Some(member) = self.members.get_mut(&number) else {
            return Ok(());
        };
        if (member.share == share && member.is_set) || member.has_ended() {
            return Ok(());
        }
        let set = match share.map(rate_text) {
            Some(rate) => self.daemon.limit(member.limit_target(), &rate),
            None if member.share.is_none() => Ok(()),
            None => self.daemon.limit(member.limit_target(), "none"),
        };
        member.is_set = set.is_ok();
        if set.is_ok() {
            member.share = share;
        }
        match member.has_ended() {
            true => Ok(()),
            false => set,
        }
    }

    /// Restores the limit that a member had before its first share. Does nothing if the member has
    /// no share or has ended. Fails if the daemon does not restore it.
    pub(crate) fn restore(&mut self, number: u64) -> Result<(), RequestError> {
        match self.members.get(&number) {
            Some(member) if member.share.is_some() && !member.has_ended() => {
                let rate = rate_text(member.share.unwrap_or_default());
                self.daemon.restore(member.limit_target(), &rate)
            }
            _ => Ok(()),
        }
    }

    /// Reads the usage of members if `lends` is true and [`USAGE_INTERVAL`] has passed. If the
    /// daemon does not respond, nothing changes.
    pub(crate) fn read_usage(&mut self, lends: bool) {
        if !lends || self.usage_read_at.elapsed() < USAGE_INTERVAL {
            return;
        }
        self.usage_read_at = Instant::now();
        let Ok(doc) = self.daemon.show() else { return };
        let used: BTreeMap<&str, (u64, u64)> = doc
            .targets
            .iter()
            .map(|target| {
                let bytes =
                    |flow: &BTreeMap<String, u64>| flow.get("sent_bytes").copied().unwrap_or(0);
                let sum = bytes(&target.counters.up) + bytes(&target.counters.down);
                (target.target.as_str(), (target.counters.at_ns, sum))
            })
            .collect();
        for member in self.members.values_mut() {
            let Some(share) = member.share else { continue };
            if let Some((at_ns, bytes)) = used.get(member.target.as_str()) {
                self.changed |= member.usage.record(*at_ns, *bytes, share);
            }
        }
    }
}

/// A share as text for the daemon, limited to the range of [`Rate`].
fn rate_text(bits: u64) -> String {
    let (least, most) = (Rate::MIN.bits_per_second(), Rate::MAX.bits_per_second());
    let rate = Rate::new(bits.clamp(least, most));
    rate.unwrap_or(Rate::MIN).compact()
}

/// Shortest time between two settings of all shares: a fifth of the 500 ms within which shares must
/// follow a change.
pub(crate) const APPLY_INTERVAL: Duration = Duration::from_millis(100);

/// Time between two readings of the usage.
const USAGE_INTERVAL: Duration = Duration::from_millis(200);

/// Longest time for which setting shares may delay other events: some tens of requests on an idle
/// machine.
const MAX_APPLY_TIME: Duration = Duration::from_millis(50);
