//! The time for which each unprivileged user keeps the counting of programs on
//! ([`CountingTimes`]). While it is on, each packet of the host costs a little more, so the quota
//! `counting-time` bounds the time of a user in an hour.
//!
//! A request is charged the time by which it prolongs the counting of its user, also if another
//! user keeps the counting on meanwhile. The hour begins with the first request after the last
//! hour. [`CountingTimes::charge`] fails if the quota does not suffice; the time that earlier
//! requests were charged for stays.

use std::collections::BTreeMap;

use netnice_core::units::{Instant, Nanos};

use super::counting::KEEP;
use crate::error::RequestError;
use crate::peer::Peer;
use crate::quotas::{Quota, Quotas};

/// The users with charges in their present hour.
#[derive(Clone, Debug, Default)]
pub(crate) struct CountingTimes {
    users: BTreeMap<u32, Hour>,
}

/// The charges of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hour {
    began: Instant,
    /// The time charged in this hour.
    spent: Nanos,
    /// The end of the time charged.
    until: Instant,
}

impl CountingTimes {
    /// Charges a request that keeps the counting on for `keep`. A privileged peer is charged
    /// nothing.
    ///
    /// # Errors
    /// If the user would exceed the quota. Then nothing is charged.
    pub(crate) fn charge(
        &mut self,
        peer: &Peer,
        keep: Nanos,
        quotas: &Quotas,
        now: Instant,
    ) -> Result<(), RequestError> {
        let Some(uid) = peer.user() else {
            return Ok(());
        };
        self.users.retain(|_, hour| now.since(hour.began) < HOUR);
        let begun = Hour {
            began: now,
            spent: Nanos(0),
            until: now,
        };
        let mut hour = self.users.get(&uid).copied().unwrap_or(begun);
        let until = now.after(keep.clamp(KEEP.0, KEEP.1)).max(hour.until);
        hour.spent.0 += until.since(hour.until.max(now)).0;
        hour.until = until;
        if let Err(refusal) = quotas.check(peer, Quota::CountingTime, hour.spent.0) {
            let left = HOUR.0.saturating_sub(now.since(hour.began).0);
            let minutes = Nanos(left.div_ceil(MINUTE.0) * MINUTE.0);
            return Err(match quotas.limit(Quota::CountingTime) {
                0 => refusal,
                _ => refusal.and(&format!("the next hour begins within {minutes}")),
            });
        }
        self.users.insert(uid, hour);
        Ok(())
    }

    /// The time charged to each user in the present hour.
    pub(crate) fn used(&self, now: Instant) -> impl Iterator<Item = (u32, Nanos)> {
        let present = move |hour: &Hour| now.since(hour.began) < HOUR;
        let users = self.users.iter().filter(move |(_, hour)| present(hour));
        users.map(|(uid, hour)| (*uid, hour.spent))
    }
}

const MINUTE: Nanos = Nanos::from_secs(60);
/// The period of the quota `counting-time`.
const HOUR: Nanos = Nanos::from_secs(3_600);

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: Peer = Peer {
        uid: 1000,
        privileged: false,
        groups: Vec::new(),
    };

    fn at(seconds: u64) -> Instant {
        Instant(0).after(Nanos::from_secs(100_000 + seconds))
    }

    fn minutes(minutes: u64) -> Quotas {
        let mut quotas = Quotas::default();
        let limit = MINUTE.0 * minutes;
        quotas.set(Quota::CountingTime, limit).expect("a limit");
        quotas
    }

    /// Seconds charged to each user.
    fn used(times: &CountingTimes, now: Instant) -> Vec<(u32, u64)> {
        let used = times.used(now);
        used.map(|(uid, time)| (uid, time.0 / 1_000_000_000))
            .collect()
    }

    #[test]
    fn a_user_is_charged_the_time_that_a_request_adds() {
        let mut times = CountingTimes::default();
        let quotas = minutes(20);
        let mut ask = |second: u64, keep: u64| {
            let keep = Nanos::from_secs(keep);
            times
                .charge(&ANN, keep, &quotas, at(second))
                .expect("below the quota");
            used(&times, at(second))
        };
        assert_eq!(ask(0, 3), [(1000, 3)]);
        assert_eq!(ask(1, 3), [(1000, 4)]);
        assert_eq!(ask(1, 0), [(1000, 4)], "2 s is the least, and is paid");
        assert_eq!(ask(100, 1_000), [(1000, 34)], "30 s is the most");
        assert_eq!(ask(3_600, 3), [(1000, 3)], "a new hour");
    }

    #[test]
    fn a_user_whose_requests_never_end_is_refused_until_the_next_hour() {
        let mut times = CountingTimes::default();
        let quotas = minutes(20);
        let three = Nanos::from_secs(3);
        let mut granted = 0;
        let mut refusal = String::new();
        for second in 0..3_600 {
            match times.charge(&ANN, three, &quotas, at(second)) {
                Ok(()) => granted += 1,
                Err(error) => refusal = error.to_string(),
            }
        }
        assert_eq!(granted, 20 * 60 - 2, "the last request lasts 3 s");
        for part in [
            "more than the quota of 20min",
            "`counting-time`",
            "the next hour begins within 1min",
        ] {
            assert!(refusal.contains(part), "{refusal}");
        }
        let charged = times.charge(&Peer::ROOT, three, &quotas, at(3_599));
        assert_eq!((charged, used(&times, at(3_599)).len()), (Ok(()), 1));
        assert_eq!(times.charge(&ANN, three, &quotas, at(3_600)), Ok(()));
    }

    #[test]
    fn a_quota_of_zero_leaves_the_list_to_root() {
        let mut times = CountingTimes::default();
        let refusal = times.charge(&ANN, Nanos(0), &minutes(0), at(0));
        let refusal = refusal.expect_err("no time at all").to_string();
        assert!(!refusal.contains("next hour"), "{refusal}");
        let charged = times.charge(&Peer::ROOT, Nanos(0), &minutes(0), at(0));
        assert_eq!(charged, Ok(()));
    }
}
