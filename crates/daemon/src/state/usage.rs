//! [`UsageBook`]: how much of each traffic quota has passed, by period, apart from the claims. So
//! it outlives them: a claim that is cleared and made again in the same period continues where it
//! was. The kernel counts; the book has the counts that the daemon read last, also after a reboot.
//!
//! # Time
//! A period is identified by the instant at which it begins. The book remembers the usage of the
//! present period and of the last [`MAX_PAST`] (8) others that the clock has shown:
//!
//! ```text
//!   the clock enters …                          usage then
//!   ─────────────────────────────────────────────────────────────────────────────
//!   a period that is remembered                 what it was when the clock left it
//!   a later one that is not remembered          0
//!   an earlier one that is not remembered       that of the period which it leaves: both are one
//!                                               from now on (an alias)
//! ```
//!
//! So a period gives its amount once. A clock that is set forward gives the amount of the period
//! that it enters, once, and takes nothing of the periods between. A clock that is set back gives
//! nothing. A call fails only if a request would make more records than are allowed.

mod file;

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::contract::{Counted, Direction, QuotaPeriod, TrafficQuota};
use netnice_core::target::Target;
use netnice_kernel::enforce::{MAX_QUOTAS, MOST_QUOTAS, QuotaEntry, QuotaState};

use crate::error::RequestError;
use crate::ledger::{Body, HeldQuota, HeldTarget, Ledger};
use crate::schedule::periods::{Period, period};
use crate::user_names::user_name;

pub(crate) use file::UsageStore;

/// What identifies a record: claims of several users on one target share it if they count the same
/// in the same periods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UsageName {
    /// The target's text; for a process, with its start time, because a pid is used again.
    target: String,
    period: QuotaPeriod,
    counted: Counted,
    zone: Option<String>,
}

/// How much has passed for one [`UsageName`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// The key under which the kernel counts.
    pub key: u64,
    /// The present period.
    pub period: Period,
    /// Wire bytes that have passed in it, as last read.
    pub used: u64,
    /// Packets that did not fit in it, as last read.
    pub refused: u64,
    /// The begin of the period whose usage `used` is: that of `period`, unless it is an alias.
    origin_ns: u64,
    /// The usage of other periods, by their begin; the last one left is the last.
    past: Vec<(u64, u64)>,
    /// The begins of periods that the clock was set back to, with those that they are aliases of.
    aliases: Vec<(u64, u64)>,
    /// The unprivileged user whose claim made the record; `None` if a privileged claim has asked
    /// for it.
    user: Option<u32>,
    /// The bytes that the kernel lets pass; `None`: it only counts.
    limit: Option<u64>,
    /// True if a claim asks for it.
    claimed: bool,
    /// True if the kernel counts for it.
    active: bool,
    /// The kernel's counts, bytes and refused packets, as last read; 0 without a count there.
    total: (u64, u64),
}

/// The usage of all traffic quotas, by target and period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageBook {
    records: BTreeMap<UsageName, Usage>,
}

impl UsageName {
    fn of(held: &HeldTarget, quota: &TrafficQuota) -> UsageName {
        let target = &held.entry.target;
        let target = match (target, &held.body) {
            (Target::Pid(_), Body::Processes { roots, .. }) => {
                let started = roots.first().map_or(0, |root| root.started);
                format!("{target}@{started}")
            }
            _ => target.to_string(),
        };
        UsageName {
            target,
            period: quota.period,
            counted: quota.counted,
            zone: quota.zone.as_deref().map(str::to_owned),
        }
    }

    /// True if it is of a process, which cannot come back.
    fn is_of_process(&self) -> bool {
        self.target.starts_with("pid:")
    }

    /// The key if no other record has it: FNV-1a of its text, so that a daemon that lost its file
    /// finds the kernel's count again.
    fn preferred_key(&self) -> u64 {
        let text = format!(
            "{} {} {} {}",
            self.target,
            self.period.word(),
            self.counted.word(),
            self.zone.as_deref().unwrap_or_default()
        );
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash.max(1)
    }
}

impl Usage {
    /// Moves to another period of the calendar.
    fn enter(&mut self, next: Period) {
        let start = next.start_ns;
        let of = |list: &[(u64, u64)], start: u64| {
            let found = list.iter().find(|(from, _)| *from == start);
            found.map(|(_, value)| *value)
        };
        let known = start == self.origin_ns || of(&self.past, start).is_some();
        let alias = of(&self.aliases, start);
        let origin = match (alias, known || start > self.period.start_ns) {
            (Some(origin), _) => origin,
            (None, true) => start,
            (None, false) => {
                remember(&mut self.aliases, (start, self.origin_ns));
                self.origin_ns
            }
        };
        if origin != self.origin_ns {
            remember(&mut self.past, (self.origin_ns, self.used));
            self.used = of(&self.past, origin).unwrap_or(0);
            self.past.retain(|(start, _)| *start != origin);
            self.origin_ns = origin;
        }
        self.refused = 0;
        self.period = next;
    }

    fn entry(&self, counted: Counted) -> QuotaEntry {
        QuotaEntry {
            start_ns: self.period.start_ns,
            base: self.total.0.wrapping_sub(self.used),
            refused_base: self.total.1.wrapping_sub(self.refused),
            limit: self.limit,
            up: counted.includes(Direction::Up),
            down: counted.includes(Direction::Down),
        }
    }

    /// True if the quota has passed: no more of it is left, or a packet did not fit.
    pub(crate) fn is_spent(&self, quota: &TrafficQuota) -> bool {
        let refuses = quota.then.is_none() && self.limit == Some(quota.amount.0);
        self.used >= quota.amount.0 || (refuses && self.refused > 0)
    }
}

impl UsageBook {
    /// True if there is no record.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The usage for the quota of a claim on a held target; `None` if it has no record.
    pub(crate) fn of(&self, held: &HeldTarget, quota: &TrafficQuota) -> Option<&Usage> {
        self.records.get(&UsageName::of(held, quota))
    }

    /// True if it has records of the same names as another book.
    pub(crate) fn has_records_of(&self, other: &UsageBook) -> bool {
        self.records.keys().eq(other.records.keys())
    }

    /// True if a quota of the ledger has become spent or unspent since the last `follow`.
    pub(crate) fn has_news(&self, ledger: &Ledger) -> bool {
        ledger.held().any(|held| {
            held.claims.quotas().any(|(claim, quota)| {
                let known = held.quotas.get(&claim.by.uid);
                let usage = self.of(held, quota);
                usage.is_some_and(|usage| {
                    known.is_none_or(|known| known.spent != usage.is_spent(quota))
                })
            })
        })
    }

    /// Takes over the kernel's counts. A period that the kernel has and the book has not is one
    /// that an earlier daemon entered and could not write.
    pub(crate) fn read(&mut self, states: &BTreeMap<u64, QuotaState>) {
        for (name, usage) in &mut self.records {
            let Some(state) = states.get(&usage.key) else {
                usage.total = (0, 0);
                continue;
            };
            let start_ns = state.entry.start_ns;
            if start_ns != usage.period.start_ns
                && let Some(theirs) = period(name.period, name.zone.as_deref(), start_ns)
            {
                let theirs = Period { start_ns, ..theirs };
                match usage.used == 0 && usage.past.is_empty() {
                    // A new record: it was in no period yet.
                    true => (usage.period, usage.origin_ns) = (theirs, start_ns),
                    false => usage.enter(theirs),
                }
            }
            usage.used = state.bytes.wrapping_sub(state.entry.base);
            usage.refused = state.refused.wrapping_sub(state.entry.refused_base);
            usage.total = match state.live {
                true => (state.bytes, state.refused),
                false => (0, 0),
            };
        }
    }

    /// Moves every record to the period that the clock shows, unless the present one still lasts.
    /// True if one has moved.
    pub(crate) fn advance(&mut self, now_ns: u64) -> bool {
        let mut moved = false;
        for (name, usage) in &mut self.records {
            let Period { start_ns, end_ns } = usage.period;
            if (start_ns..end_ns).contains(&now_ns) {
                continue;
            }
            let next = period(name.period, name.zone.as_deref(), now_ns);
            if let Some(next) = next.filter(|next| next.start_ns != start_ns) {
                usage.enter(next);
                moved = true;
            }
        }
        moved
    }

    /// Makes the records that the claims of a ledger need, and writes into the ledger what its
    /// desired state depends on. `requested`: a request caused the change, so it can be refused.
    /// `renew`: finds out anew which quotas are spent; else only for those that were not known.
    ///
    /// # Errors
    /// If a new record exceeds a bound: of one user, of all users, of the kernel's map, or of the
    /// quotas that hold one packet.
    pub(crate) fn follow(
        &mut self,
        ledger: &mut Ledger,
        now_ns: u64,
        requested: bool,
        renew: bool,
    ) -> Result<(), RequestError> {
        let mut newcomers: Vec<(UsageName, Option<u32>)> = Vec::new();
        // Whether a privileged claim is among those that ask for it.
        let mut claimed: BTreeMap<UsageName, bool> = BTreeMap::new();
        for held in ledger.held() {
            for (claim, quota) in held.claims.quotas() {
                let name = UsageName::of(held, quota);
                if !self.records.contains_key(&name) && !claimed.contains_key(&name) {
                    let user = (!claim.by.privileged).then_some(claim.by.uid);
                    newcomers.push((name.clone(), user));
                }
                *claimed.entry(name).or_default() |= claim.by.privileged;
            }
        }
        for (name, user) in newcomers {
            self.check_room(&name, user, requested)?;
            self.add(name, user, now_ns);
        }
        let mut fresh = Fresh::default();
        for (name, usage) in &mut self.records {
            match claimed.get(name) {
                Some(true) if !usage.claimed || usage.user.is_some() => {
                    usage.user = None;
                    fresh.privileged.insert(usage.key);
                }
                Some(false) if !usage.claimed => {
                    fresh.of_users.insert(usage.key);
                }
                _ => {}
            }
            usage.claimed = claimed.contains_key(name);
        }
        ledger.set_quotas(|held, claim, quota| {
            let usage = self.records.get(&UsageName::of(held, quota))?;
            let key = usage.key;
            let known = held.quotas.get(&claim.by.uid);
            let known = known.filter(|known| known.key == key && !renew);
            let spent = known.map_or_else(|| usage.is_spent(quota), |known| known.spent);
            Some(HeldQuota { key, spent })
        });
        self.set_limits(ledger);
        if requested {
            fresh.check_chains(ledger)?;
        }
        Ok(())
    }

    /// Sets for each record whether the kernel counts for it and what it lets pass: the smallest of
    /// the amounts without `then`.
    fn set_limits(&mut self, ledger: &Ledger) {
        let mut limits: BTreeMap<u64, Option<u64>> = BTreeMap::new();
        for held in ledger.held() {
            for (claim, quota) in held.counting_quotas() {
                let Some(of) = held.quotas.get(&claim.by.uid) else {
                    continue;
                };
                let limit = quota.then.is_none().then_some(quota.amount.0);
                let least = limits.entry(of.key).or_insert(limit);
                *least = [*least, limit].into_iter().flatten().min();
            }
        }
        let draining: BTreeSet<u64> = ledger
            .draining()
            .flat_map(|it| &it.quotas)
            .copied()
            .collect();
        for usage in self.records.values_mut() {
            if let Some(limit) = limits.get(&usage.key) {
                usage.limit = *limit;
            }
            usage.active = limits.contains_key(&usage.key) || draining.contains(&usage.key);
        }
    }

    fn add(&mut self, name: UsageName, user: Option<u32>, now_ns: u64) {
        let mut key = name.preferred_key();
        while self.records.values().any(|other| other.key == key) {
            key = key.wrapping_add(1).max(1);
        }
        let period = period(name.period, name.zone.as_deref(), now_ns);
        let period = period.unwrap_or(Period {
            start_ns: 0,
            end_ns: 0,
        });
        let usage = Usage {
            key,
            period,
            used: 0,
            refused: 0,
            origin_ns: period.start_ns,
            past: Vec::new(),
            aliases: Vec::new(),
            user,
            limit: None,
            claimed: false,
            active: false,
            total: (0, 0),
        };
        self.records.insert(name, usage);
    }

    fn check_room(
        &self,
        name: &UsageName,
        user: Option<u32>,
        requested: bool,
    ) -> Result<(), RequestError> {
        if !requested {
            return Ok(());
        }
        let all = self.records.len();
        if let Some(uid) = user {
            let own = self.records.values().filter(|it| it.user == user).count();
            if own >= MAX_OF_USER {
                return Err(RequestError::NotAdmitted(format!(
                    "refused: {} has {own} traffic quotas that count, or counted earlier in their \
                     present period, and the limit is {MAX_OF_USER}; the quota of {} would be one \
                     more",
                    user_name(uid),
                    name.target
                )));
            }
        }
        let most = match user {
            Some(_) => MAX_OF_USERS,
            None => MAX_RECORDS,
        };
        match all < most {
            true => Ok(()),
            false => Err(RequestError::NotAdmitted(format!(
                "refused: there are {all} traffic quotas, and the limit is {most}"
            ))),
        }
    }

    /// The quotas that the kernel shall have: the active ones, and those of `before` that are not
    /// active any more, for the time in which targets still name them.
    pub(crate) fn entries(&self, before: Option<&UsageBook>) -> BTreeMap<u64, QuotaEntry> {
        let active = |book: &UsageBook| -> BTreeMap<u64, QuotaEntry> {
            let active = book.records.iter().filter(|(_, usage)| usage.active);
            active
                .map(|(name, usage)| (usage.key, usage.entry(name.counted)))
                .collect()
        };
        let mut entries = before.map(active).unwrap_or_default();
        entries.extend(active(self));
        entries
    }

    /// Notes that the kernel has no counts but those of the active records.
    pub(crate) fn installed(&mut self) {
        for usage in self.records.values_mut().filter(|usage| !usage.active) {
            usage.total = (0, 0);
        }
    }

    /// Drops the records that no claim asks for and whose period is over, or whose process has
    /// ended: `lives` gets a pid and a start time.
    pub(crate) fn drop_unused(&mut self, now_ns: u64, mut lives: impl FnMut(u32, u64) -> bool) {
        self.records.retain(|name, usage| {
            if usage.claimed || usage.active {
                return true;
            }
            let process = name.target.strip_prefix("pid:");
            let process = process.and_then(|process| process.split_once('@'));
            let ended =
                process.is_some_and(|(pid, started)| match (pid.parse(), started.parse()) {
                    (Ok(pid), Ok(started)) => !lives(pid, started),
                    _ => true,
                });
            !ended && now_ns < usage.period.end_ns
        });
    }

    /// Removes the records that no claim asks for, after root has cleared everything.
    pub(crate) fn forget_unclaimed(&mut self) {
        self.records.retain(|_, usage| usage.claimed);
    }
}

/// Adds an entry at the end, and drops the first one if there are more than [`MAX_PAST`].
fn remember(list: &mut Vec<(u64, u64)>, entry: (u64, u64)) {
    list.retain(|(start, _)| *start != entry.0);
    list.push(entry);
    let excess = list.len().saturating_sub(MAX_PAST);
    list.drain(..excess);
}

/// The keys of the records that a change has claimed.
#[derive(Default)]
struct Fresh {
    /// Those that a privileged claim asks for, and none did before.
    privileged: BTreeSet<u64>,
    /// Those that only unprivileged claims ask for, and none did before.
    of_users: BTreeSet<u64>,
}

impl Fresh {
    /// Fails if too many quotas hold the packets of one target, and a fresh one is among them.
    /// Those of unprivileged users leave two for root. They never refuse a privileged one: the
    /// kernel's list begins with the privileged ones, and users' quotas for which it has no room do
    /// not hold.
    fn check_chains(&self, ledger: &Ledger) -> Result<(), RequestError> {
        for held in ledger.held() {
            let privileged = ledger.privileged_quotas_around(held);
            check_chain(held, &privileged, &self.privileged, MOST_QUOTAS)?;
            if !self.of_users.is_empty() {
                let all = ledger.quotas_around(held);
                check_chain(held, &all, &self.of_users, MOST_QUOTAS - 2)?;
            }
        }
        Ok(())
    }
}

fn check_chain(
    held: &HeldTarget,
    keys: &[u64],
    fresh: &BTreeSet<u64>,
    most: usize,
) -> Result<(), RequestError> {
    if keys.len() <= most || !keys.iter().any(|key| fresh.contains(key)) {
        return Ok(());
    }
    Err(RequestError::NotAdmitted(format!(
        "refused: {} traffic quotas would hold the packets of {}, its own and those of the targets \
         around it, and the limit is {most}",
        keys.len(),
        held.entry.target
    )))
}

/// Periods other than the present one whose usage is remembered.
const MAX_PAST: usize = 8;
/// Records of one unprivileged user.
pub(crate) const MAX_OF_USER: usize = 64;
/// Records while unprivileged users may make more: three quarters of all.
const MAX_OF_USERS: usize = MAX_RECORDS / 4 * 3;
/// Records that the kernel's map has room for.
const MAX_RECORDS: usize = MAX_QUOTAS;

#[cfg(test)]
mod tests;
