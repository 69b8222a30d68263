//! The quotas of each user: one table, which `[quotas]` of the policy file sets.
//!
//! A quota bounds what one unprivileged user takes of a shared resource: the number of targets,
//! bytes of the state file, time of the daemon. The defaults are so high that a user reaches them
//! only by a fault or on purpose. Root and the group `netnice` have no quotas, with two exceptions:
//! [`Quota::Connections`] applies to all users but root, and the largest limit that the policy file
//! may set for [`Quota::Programs`], [`Quota::Flows`] and [`Quota::RingBytes`] applies to them too.
//!
//! [`Quotas::check`] fails if an amount exceeds its quota, and [`Quotas::set`] if a limit is out of
//! its range. [`Quota::describe`] declares each quota once. A part of the daemon that gives
//! targets, rollbacks, bytes of state, or memory and flows of the direct path counts what each user
//! has, and calls [`Quotas::check`] before it gives more. A refusal names the quota, the user's
//! amount, the limit, and the file and key that change it. Three quotas refuse no request: beyond
//! [`Quota::Connections`] the front process closes or refuses connections, beyond
//! [`Quota::LogLines`] the journal only counts events, and beyond [`Quota::ServiceTime`] requests
//! wait.

use std::path::{Path, PathBuf};

use netnice_core::units::{Bytes, Nanos};

use crate::error::RequestError;
use crate::peer::Peer;
use crate::user_names::user_name;

/// A resource of which one unprivileged user may have only so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Quota {
    /// Connections to the daemon. The front process enforces this quota.
    Connections,
    /// Targets on which the user has a claim, and draining targets of such targets.
    Targets,
    /// Pending rollbacks of the user's changes.
    Rollbacks,
    /// Longest time from a change to its rollback, in nanoseconds.
    RollbackTime,
    /// Programs on the direct path, and connections that such programs left open.
    Programs,
    /// Flows for which the user's programs on the direct path have reserved memory.
    Flows,
    /// Bytes of the memory files of programs on the direct path.
    RingBytes,
    /// Bytes that the user's targets and pending rollbacks take in the state file.
    StateBytes,
    /// Lines of the log (`netnice log`) in a minute.
    LogLines,
    /// Time that the daemon spends on the user's requests in a second, in nanoseconds.
    ServiceTime,
    /// Time in an hour for which the user's requests keep the counting of programs on, in
    /// nanoseconds.
    CountingTime,
}

/// The unit of a quota's amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A count.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Time,
}

/// How a quota is written in the policy file and in messages, and which limits it may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Description {
    /// The key in the policy file.
    pub key: &'static str,
    /// The counted thing, as in "would have 5 ...".
    pub what: &'static str,
    /// The unit of the amounts.
    pub unit: Unit,
    /// The limit if the policy file does not set it.
    pub default: u64,
    /// The smallest and the largest limit that the policy file may set.
    pub range: (u64, u64),
}

impl Quota {
    /// All quotas, in display order. The index of a quota is its discriminant.
    pub(crate) const ALL: [Quota; 11] = [
        Quota::Connections,
        Quota::Targets,
        Quota::Rollbacks,
        Quota::RollbackTime,
        Quota::Programs,
        Quota::Flows,
        Quota::RingBytes,
        Quota::StateBytes,
        Quota::LogLines,
        Quota::ServiceTime,
        Quota::CountingTime,
    ];

    /// The key, the unit, the default and the range of the quota.
    pub(crate) fn describe(self) -> Description {
        let count = |key, what, default, most| Description {
            key,
            what,
            unit: Unit::Count,
            default,
            range: (0, most),
        };
        let bytes = |key, what, default, range| Description {
            key,
            what,
            unit: Unit::Bytes,
            default,
            range,
        };
        let time = |key, what, default: Nanos, most: Nanos| Description {
            key,
            what,
            unit: Unit::Time,
            default: default.0,
            range: (Nanos::from_millis(10).0, most.0),
        };
        match self {
            Quota::Connections => Description {
                range: (1, MAX_CONNECTIONS),
                ..count("connections", "connections to netniced", 32, 0)
            },
            Quota::Targets => count("targets", "targets", 1_024, 7_280),
            Quota::Rollbacks => count("undos", "changes that wait to be taken back", 256, 7_280),
            Quota::RollbackTime => time(
                "undo-time",
                "between a change and its undoing",
                days(31),
                Nanos::MAX,
            ),
            Quota::Programs => count("programs", "programs on the direct path", 64, 1_024),
            Quota::Flows => count("flows", "flows on the direct path", 4_096, 65_536),
            Quota::RingBytes => bytes(
                "ring-bytes",
                "bytes of buffers on the direct path",
                1 << 30,
                (0, 64 << 30),
            ),
            Quota::StateBytes => bytes("state-bytes", "bytes of state", 1 << 20, (4_096, 64 << 20)),
            Quota::LogLines => count("log-lines", "lines of the log in a minute", 240, 100_000),
            Quota::ServiceTime => time(
                "service-time",
                "of the daemon's time in a second",
                Nanos::from_millis(250),
                Nanos::from_secs(1),
            ),
            Quota::CountingTime => Description {
                range: (0, HOUR.0),
                ..time(
                    "counting-time",
                    "of counting programs in an hour",
                    Nanos::from_secs(20 * 60),
                    HOUR,
                )
            },
        }
    }

    /// An amount as text, in the quota's unit.
    pub(crate) fn amount(self, amount: u64) -> String {
        match self.describe().unit {
            Unit::Count => amount.to_string(),
            Unit::Bytes => Bytes(amount).to_string(),
            Unit::Time => Nanos(amount).to_string(),
        }
    }
}

/// The limits in force of all quotas, for each unprivileged user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quotas {
    /// By index in [`Quota::ALL`].
    limits: [u64; Quota::ALL.len()],
    /// The policy file, for messages.
    file: PathBuf,
}

impl Default for Quotas {
    fn default() -> Quotas {
        Quotas {
            limits: Quota::ALL.map(|quota| quota.describe().default),
            file: PathBuf::from("the policy file"),
        }
    }
}

impl Quotas {
    /// The defaults, for the policy file `path`.
    pub(crate) fn of_file(path: &Path) -> Quotas {
        Quotas {
            file: path.to_owned(),
            ..Quotas::default()
        }
    }

    /// The limit for each user, in the quota's unit.
    pub(crate) fn limit(&self, quota: Quota) -> u64 {
        self.limits[quota as usize]
    }

    /// The limit for each user as a time. The quota must be one with [`Unit::Time`].
    pub(crate) fn time(&self, quota: Quota) -> Nanos {
        Nanos(self.limit(quota))
    }

    /// Sets a limit, in the quota's unit.
    ///
    /// # Errors
    /// If it is out of the quota's range.
    pub(crate) fn set(&mut self, quota: Quota, limit: u64) -> Result<(), String> {
        let about = quota.describe();
        let (least, most) = about.range;
        if !(least..=most).contains(&limit) {
            return Err(format!(
                "{} is {}, and it can be from {} to {}",
                about.key,
                quota.amount(limit),
                quota.amount(least),
                quota.amount(most)
            ));
        }
        self.limits[quota as usize] = limit;
        Ok(())
    }

    /// Checks an amount; `would` is what the user would have after the request.
    ///
    /// # Errors
    /// If it exceeds the limit and the peer is an unprivileged user.
    pub(crate) fn check(&self, peer: &Peer, quota: Quota, would: u64) -> Result<(), RequestError> {
        let limit = self.limit(quota);
        match peer.privileged || would <= limit {
            true => Ok(()),
            false => Err(self.refusal(peer.uid, quota, would)),
        }
    }

    fn refusal(&self, uid: u32, quota: Quota, would: u64) -> RequestError {
        let about = quota.describe();
        RequestError::NotAdmitted(format!(
            "refused: {} would have {} {}, more than the quota of {} for each user; {}",
            user_name(uid),
            quota.amount(would),
            about.what,
            quota.amount(self.limit(quota)),
            self.change_hint(quota)
        ))
    }

    /// A hint for a message: the file and key that change a limit.
    pub(crate) fn change_hint(&self, quota: Quota) -> String {
        format!(
            "root can change `{}` in [quotas] of {}, and `netnice show --users` tells what is used",
            quota.describe().key,
            self.file.display()
        )
    }
}

/// The limit on connections of all users except root together; the front process closes or refuses
/// further ones. Also the upper bound of the quota `connections`.
pub(crate) const MAX_CONNECTIONS: u64 = 512;

/// An hour, the period of [`Quota::CountingTime`].
const HOUR: Nanos = Nanos::from_secs(3_600);

/// The time of a number of days.
fn days(days: u64) -> Nanos {
    Nanos::from_secs(days * 24 * 3_600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_quota_has_its_index_its_own_key_and_a_valid_default() {
        let quotas = Quotas::default();
        let mut keys = std::collections::BTreeSet::new();
        for (place, quota) in Quota::ALL.into_iter().enumerate() {
            let about = quota.describe();
            assert_eq!(quota as usize, place);
            assert!(keys.insert(about.key));
            assert!((about.range.0..=about.range.1).contains(&quotas.limit(quota)));
        }
    }

    #[test]
    fn a_refusal_names_the_quota_the_amount_the_limit_and_the_remedy() {
        let mut quotas = Quotas::of_file(Path::new("/etc/netnice/policy.toml"));
        quotas.set(Quota::Targets, 3).expect("a limit");
        let ann = Peer {
            uid: 1000,
            privileged: false,
            groups: Vec::new(),
        };
        assert_eq!(quotas.check(&ann, Quota::Targets, 3), Ok(()));
        let error = quotas.check(&ann, Quota::Targets, 4).expect_err("too many");
        assert_eq!(
            error.to_string(),
            "refused: user 1000 would have 4 targets, more than the quota of 3 for each user; root \
             can change \
             `targets` in [quotas] of /etc/netnice/policy.toml, and `netnice show --users` tells \
             what is used"
        );
        assert_eq!(quotas.check(&Peer::ROOT, Quota::Targets, 4), Ok(()));
    }

    #[test]
    fn a_limit_out_of_range_is_refused() {
        let mut quotas = Quotas::default();
        let refusal = quotas.set(Quota::ServiceTime, 1).expect_err("too short");
        assert_eq!(
            refusal,
            "service-time is 1ns, and it can be from 10ms to 1s"
        );
        assert!(quotas.set(Quota::Targets, 8_191).is_err());
    }
}
