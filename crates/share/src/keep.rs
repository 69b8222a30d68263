//! Keeps shares in force: what the super-server and the manager of existing processes have in common.
//!
//! ```text
//!   members, demands ──divide──▶ shares ──those that shrink first──▶ the daemon: set pid:N both R
//!        ▲                                                              │
//!        └───────────── what each member used, five times a second ◀────┘
//! ```
//! Who the members are and what each demands is the owner's; this room sets what has changed, at once or 100 ms after the
//! last change, lets others in between where there are many, and clears away what was set for somebody who had just ended.

mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use netnice_api::TargetDoc;
use netnice_core::units::Rate;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::daemon::{Daemon, Denial, Whom};
use usage::Use;

/// A process with its descendants, whose share is kept in force.
pub(crate) struct Member {
    /// Its process.
    pub pidfd: OwnedFd,
    /// The daemon's target of it.
    pub target: String,
    /// Its share that is in force, in bit/s; none: unlimited.
    pub share: Option<u64>,
    /// Whether a share has been set.
    is_set: bool,
    use_: Use,
}

impl Member {
    /// The process of this number, which must be there.
    pub(crate) fn open(pid: u32) -> Result<Member, Errno> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        Ok(Member {
            pidfd: pidfd_open(raw.ok_or(Errno::SRCH)?, PidfdFlags::empty())?,
            target: format!("pid:{pid}"),
            share: None,
            is_set: false,
            use_: Use::default(),
        })
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(
            rustix::event::poll(&mut fds, Some(&Timespec::default())),
            Ok(1..)
        )
    }

    /// How much it uses, if it is idle.
    pub(crate) fn idle(&self) -> Option<u64> {
        self.use_.idle()
    }

    pub(crate) fn whom(&self) -> Whom<'_> {
        Whom {
            target: &self.target,
            pidfd: Some(self.pidfd.as_fd()),
        }
    }
}

/// The members, by a number that counts up, so in the order in which they came.
pub(crate) struct Keeper {
    /// The daemon.
    pub daemon: Daemon,
    members: BTreeMap<u64, Member>,
    next: u64,
    /// Shares have changed since they were last set.
    changed: bool,
    /// When they were last set.
    applied: Option<Instant>,
    /// When it was last looked at what members use.
    looked: Instant,
    /// Targets of members that ended while their share was set, and since when the eldest waits to be looked after.
    doubts: BTreeSet<String>,
    doubt_since: Option<Instant>,
}

/// A member whose share could not be set, and why.
pub(crate) type Unkept = (u64, Denial);

impl Keeper {
    pub(crate) fn new(daemon: Daemon) -> Keeper {
        Keeper {
            daemon,
            members: BTreeMap::new(),
            next: 0,
            changed: false,
            applied: None,
            looked: Instant::now(),
            doubts: BTreeSet::new(),
            doubt_since: None,
        }
    }

    /// Takes a member in; its number.
    pub(crate) fn add(&mut self, member: Member) -> u64 {
        let number = self.next;
        self.next += 1;
        self.members.insert(number, member);
        self.changed = true;
        number
    }

    /// Lets a member go.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Member> {
        let member = self.members.remove(&number);
        self.changed |= member.is_some();
        member
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Member> {
        self.members.get(&number)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = (u64, &Member)> {
        self.members
            .iter()
            .map(|(number, member)| (*number, member))
    }

    /// Shares are to be set anew.
    pub(crate) fn touch(&mut self) {
        self.changed = true;
    }

    /// All shares are to be set again, whether or not they have changed.
    pub(crate) fn renew(&mut self) {
        for member in self.members.values_mut() {
            member.is_set = false;
        }
        self.changed = true;
    }

    /// How long nothing needs to be done; none: until something happens. `lends`: whether it matters what members use.
    pub(crate) fn patience(&self, lends: bool) -> Option<Duration> {
        let apply = self.changed.then(|| {
            self.applied
                .map_or(Duration::ZERO, |at| SETTLE.saturating_sub(at.elapsed()))
        });
        let look = lends.then(|| LOOK.saturating_sub(self.looked.elapsed()));
        let after = self
            .doubt_since
            .map(|at| AFTERWARDS.saturating_sub(at.elapsed()));
        apply.into_iter().chain(look).chain(after).min()
    }

    /// Whether shares have changed, and the last setting is long enough ago.
    pub(crate) fn must_apply(&self) -> bool {
        self.changed && self.may_apply()
    }

    /// Whether the last setting is long enough ago.
    pub(crate) fn may_apply(&self) -> bool {
        self.applied.is_none_or(|at| at.elapsed() >= SETTLE)
    }

    /// Sets the shares that differ from what is in force, those that shrink first. What takes longer than a moment is left
    /// for the next turn, so that who comes meanwhile is served.
    pub(crate) fn apply(&mut self, shares: BTreeMap<u64, Option<u64>>) -> Vec<Unkept> {
        let began = Instant::now();
        let mut wanted: Vec<(u64, Option<u64>)> = shares.into_iter().collect();
        wanted.sort_by_key(|(number, share)| {
            let has = self.members.get(number).and_then(|member| member.share);
            let grows = has.is_none() || share.unwrap_or(u64::MAX) > has.unwrap_or(u64::MAX);
            (grows, *number)
        });
        let mut unkept = Vec::new();
        for (number, share) in wanted {
            if began.elapsed() > MOMENT {
                return unkept;
            }
            unkept.extend(self.set(number, share).err().map(|why| (number, why)));
        }
        self.changed = false;
        self.applied = Some(Instant::now());
        unkept
    }

    /// Sets the share of one member, unless it is in force or the member has ended.
    pub(crate) fn set(&mut self, number: u64, share: Option<u64>) -> Result<(), Denial> {
        let Some(member) = self.members.get_mut(&number) else {
            return Ok(());
        };
        if (member.share == share && member.is_set) || member.has_ended() {
            return Ok(());
        }
        let set = match share.map(as_text) {
            Some(rate) => self.daemon.limit(member.whom(), &rate),
            None if member.share.is_none() => Ok(()),
            None => self.daemon.limit(member.whom(), "none"),
        };
        member.is_set = true;
        member.share = share;
        if member.has_ended() {
            self.doubts.insert(member.target.clone());
            self.doubt_since.get_or_insert_with(Instant::now);
            return Ok(());
        }
        set
    }

    /// Brings back what was there before the first share of each member.
    pub(crate) fn lift(&mut self, number: u64) -> Result<(), Denial> {
        match self.members.get(&number) {
            Some(member) if member.share.is_some() && !member.has_ended() => {
                let rate = as_text(member.share.unwrap_or_default());
                self.daemon.lift(member.whom(), &rate)
            }
            _ => Ok(()),
        }
    }

    /// Looks at what members use, if it matters and is time. Without an answer nobody lends, and nothing else changes.
    pub(crate) fn look(&mut self, lends: bool) {
        if !lends || self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
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
                self.changed |= member.use_.used(*at_ns, *bytes, share);
            }
        }
    }

    /// Clears targets that were opened anew for members that ended in that moment, once it is time: nobody is in them, and
    /// nothing has passed them. A member's descendants, if it left any, keep theirs.
    pub(crate) fn look_after(&mut self) {
        if self.doubt_since.is_none_or(|at| at.elapsed() < AFTERWARDS) {
            return;
        }
        self.doubt_since = None;
        let doubts = std::mem::take(&mut self.doubts);
        let Ok(doc) = self.daemon.show() else { return };
        let ours = |target: &str| self.members.values().any(|member| member.target == target);
        let unused = |target: &TargetDoc| {
            let flows = [&target.counters.up, &target.counters.down];
            flows
                .iter()
                .flat_map(|flow| flow.values())
                .all(|count| *count == 0)
        };
        let held = doc.targets.into_iter().filter(unused);
        let left: Vec<String> = held
            .map(|target| target.target)
            .filter(|target| doubts.contains(target) && !ours(target))
            .collect();
        for target in left {
            self.daemon.clear(target);
        }
    }
}

/// A share as the daemon reads it.
fn as_text(bits: u64) -> String {
    let (least, most) = (Rate::MIN.bits_per_second(), Rate::MAX.bits_per_second());
    let rate = Rate::new(bits.clamp(least, most));
    rate.unwrap_or(Rate::MIN).compact()
}

/// Between two settings of all shares: five times shorter than shares may take to follow.
pub(crate) const SETTLE: Duration = Duration::from_millis(100);

/// Between two looks at what members use.
const LOOK: Duration = Duration::from_millis(200);

/// How long the setting of shares may keep others waiting: a few tens of requests on a machine at rest.
const MOMENT: Duration = Duration::from_millis(50);

/// How long after a doubt it is looked: ends have been noticed everywhere by then.
const AFTERWARDS: Duration = Duration::from_secs(1);
