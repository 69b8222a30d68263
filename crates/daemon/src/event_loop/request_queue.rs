//! Decides which request is next ([`RequestQueue`]): users take turns, and a user whose requests
//! took more of the daemon's time than the quota `service-time` waits.
//!
//! ```text
//!                                   among users below the quota:
//!   request ─> its user's queue ─> the one with the oldest turn ─> handled, its time is charged
//! ```
//! The charge of a user is the time that the user's requests took. It decreases by the quota in
//! each second: with a quota of 250 ms, a user may take 250 ms at once, and a quarter of the time
//! permanently. The user's next request starts as soon as the charge is below the quota, so a long
//! request is handled in full, and the requests after it wait. Root and the group `netnice` share
//! one queue without a quota, and get every second turn while requests of both kinds wait: they
//! wait for at most one request of the others, and the others get half of the turns however many
//! requests root sends.
//!
//! A connection has at most one request here, so the number of connections bounds the queues. No
//! function fails.

use std::collections::{BTreeMap, VecDeque};

use netnice_core::units::{Instant, Nanos};

/// The requests that wait, by user, and what each user is charged. Requests have the type `T`.
#[derive(Debug)]
pub(crate) struct RequestQueue<T> {
    /// By user; `None`: root and the group.
    users: BTreeMap<Option<u32>, UserQueue<T>>,
    /// The number of turns so far.
    turns: u64,
    /// True if the last turn was root's or the group's.
    last_was_privileged: bool,
}

#[derive(Debug)]
struct UserQueue<T> {
    waiting: VecDeque<T>,
    /// The charge at time `at`; it decays from then on.
    charged: Nanos,
    at: Instant,
    /// The number of the user's last turn.
    last_turn: u64,
}

impl<T> Default for RequestQueue<T> {
    fn default() -> RequestQueue<T> {
        RequestQueue {
            users: BTreeMap::new(),
            turns: 0,
            last_was_privileged: false,
        }
    }
}

impl<T> RequestQueue<T> {
    /// Queues a request of an unprivileged user; `None`: of root or the group.
    pub(crate) fn push(&mut self, user: Option<u32>, request: T, now: Instant) {
        self.queue_of(user, now).waiting.push_back(request);
    }

    /// The queue of a user. A user without requests and without a charge gets a new one.
    fn queue_of(&mut self, user: Option<u32>, now: Instant) -> &mut UserQueue<T> {
        let turns = self.turns;
        self.users.entry(user).or_insert_with(|| UserQueue {
            waiting: VecDeque::new(),
            charged: Nanos(0),
            at: now,
            last_turn: turns,
        })
    }

    /// Takes the next request that may start at `now`, with its user; `None` if none may start.
    /// `quota` is the time that each user may take in a second.
    pub(crate) fn pop(&mut self, quota: Nanos, now: Instant) -> Option<(Option<u32>, T)> {
        let ready = self.users.iter().filter(|(user, queue)| {
            !queue.waiting.is_empty() && queue.ready_at(**user, quota) <= now
        });
        // `None` is the key of root and the group.
        let user = ready
            .min_by_key(|(user, queue)| {
                (user.is_none() == self.last_was_privileged, queue.last_turn)
            })
            .map(|(user, _)| *user)?;
        self.turns += 1;
        self.last_was_privileged = user.is_none();
        let queue = self.users.get_mut(&user)?;
        queue.last_turn = self.turns;
        let request = queue.waiting.pop_front()?;
        Some((user, request))
    }

    /// The time at which the next request may start; `None` if none waits.
    pub(crate) fn ready_at(&self, quota: Nanos) -> Option<Instant> {
        let waiting = self
            .users
            .iter()
            .filter(|(_, queue)| !queue.waiting.is_empty());
        waiting
            .map(|(user, queue)| queue.ready_at(*user, quota))
            .min()
    }

    /// Charges a user the time that a request took.
    pub(crate) fn charge(&mut self, user: Option<u32>, took: Nanos, quota: Nanos, now: Instant) {
        let queue = self.queue_of(user, now);
        queue.charged = Nanos(queue.charge_at(quota, now).0.saturating_add(took.0));
        queue.at = now;
        self.users
            .retain(|_, queue| !queue.waiting.is_empty() || queue.charge_at(quota, now).0 > 0);
    }

    /// For each unprivileged user with a charge or a waiting request: the uid, the present charge,
    /// and the number of waiting requests.
    pub(crate) fn charges(
        &self,
        quota: Nanos,
        now: Instant,
    ) -> impl Iterator<Item = (u32, Nanos, u64)> {
        self.users.iter().filter_map(move |(user, queue)| {
            let waiting = queue.waiting.len() as u64;
            Some(((*user)?, queue.charge_at(quota, now), waiting))
        })
    }
}

impl<T> UserQueue<T> {
    /// The charge at `now`.
    fn charge_at(&self, quota: Nanos, now: Instant) -> Nanos {
        let decayed = u128::from(now.since(self.at).0) * u128::from(quota.0) / 1_000_000_000;
        let decayed = u64::try_from(decayed).unwrap_or(u64::MAX);
        Nanos(self.charged.0.saturating_sub(decayed))
    }

    /// The time at which the user's next request may start.
    fn ready_at(&self, user: Option<u32>, quota: Nanos) -> Instant {
        if user.is_none() || self.charged < quota {
            return self.at;
        }
        let over = u128::from(self.charged.0 - quota.0) + 1;
        let wait = (over * 1_000_000_000).div_ceil(u128::from(quota.0.max(1)));
        self.at
            .after(Nanos(u64::try_from(wait).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: Option<u32> = Some(1000);
    const BOB: Option<u32> = Some(1001);
    const QUOTA: Nanos = Nanos::from_millis(250);

    fn at(millis: u64) -> Instant {
        Instant(0).after(Nanos::from_millis(millis))
    }

    #[test]
    fn a_user_whose_charge_has_decayed_is_charged_again() {
        let mut queue = RequestQueue::default();
        queue.push(ANN, 1, at(0));
        assert_eq!(queue.pop(QUOTA, at(0)), Some((ANN, 1)));
        queue.charge(ANN, Nanos::from_millis(1), QUOTA, at(0));
        // Ann's first charge is over, and a charge of Bob removes what is over.
        queue.charge(BOB, Nanos::from_millis(1), QUOTA, at(1_000));
        queue.charge(ANN, Nanos::from_millis(300), QUOTA, at(1_001));
        queue.push(ANN, 2, at(1_001));
        assert_eq!(queue.pop(QUOTA, at(1_002)), None, "she is over the quota");
        assert_eq!(queue.pop(QUOTA, at(1_300)), Some((ANN, 2)));
    }

    #[test]
    fn users_take_turns_however_many_requests_each_has() {
        let mut queue = RequestQueue::default();
        for n in 0..100 {
            queue.push(ANN, n, at(0));
        }
        assert_eq!(queue.pop(QUOTA, at(0)), Some((ANN, 0)));
        queue.push(BOB, 1_000, at(0));
        queue.push(None, 2_000, at(0));
        let mut next: Vec<i32> = (0..3)
            .filter_map(|_| queue.pop(QUOTA, at(0)))
            .map(|(_, n)| n)
            .collect();
        next.sort_unstable();
        assert_eq!(next, [1, 1_000, 2_000]);
        assert_eq!(queue.pop(QUOTA, at(0)), Some((ANN, 2)));
    }

    #[test]
    fn root_gets_every_second_turn() {
        let mut queue = RequestQueue::default();
        for what in ["a1", "a2", "a3"] {
            queue.push(ANN, what, at(0));
        }
        queue.push(BOB, "b1", at(0));
        for what in ["r1", "r2", "r3"] {
            queue.push(None, what, at(0));
        }
        let order = std::iter::from_fn(|| queue.pop(QUOTA, at(0)));
        let order: Vec<&str> = order.map(|(_, what)| what).collect();
        assert_eq!(order, ["r1", "a1", "r2", "b1", "r3", "a2", "a3"]);
    }

    #[test]
    fn a_new_user_waits_for_at_most_one_request_of_each_other() {
        let mut queue = RequestQueue::default();
        for _ in 0..1_000 {
            queue.push(ANN, "flood", at(0));
        }
        assert_eq!(queue.pop(QUOTA, at(0)), Some((ANN, "flood")));
        queue.push(BOB, "ping", at(0));
        let next = [queue.pop(QUOTA, at(0)), queue.pop(QUOTA, at(0))];
        assert!(next.contains(&Some((BOB, "ping"))), "{next:?}");
    }

    #[test]
    fn a_user_over_the_quota_waits_and_others_do_not() {
        let mut queue = RequestQueue::default();
        queue.push(ANN, 1, at(0));
        queue.push(ANN, 2, at(0));
        queue.pop(QUOTA, at(0)).expect("the first");
        queue.charge(ANN, Nanos::from_millis(500), QUOTA, at(500));
        queue.push(BOB, 3, at(500));
        assert_eq!(queue.pop(QUOTA, at(500)), Some((BOB, 3)));
        assert_eq!(queue.pop(QUOTA, at(500)), None);
        let ready = queue.ready_at(QUOTA).expect("one waits");
        assert_eq!(ready.since(at(1_500)), Nanos(4));
        assert_eq!(queue.pop(QUOTA, ready), Some((ANN, 2)));
    }

    #[test]
    fn root_has_no_quota_and_decayed_charges_are_removed() {
        let mut queue = RequestQueue::default();
        queue.push(None, 1, at(0));
        queue.push(None, 2, at(0));
        queue.pop(QUOTA, at(0)).expect("the first");
        queue.charge(None, Nanos::from_secs(9), QUOTA, at(0));
        assert_eq!(queue.pop(QUOTA, at(0)), Some((None, 2)));
        queue.push(ANN, 3, at(10));
        queue.pop(QUOTA, at(10)).expect("it");
        queue.charge(ANN, Nanos::from_millis(1), QUOTA, at(11));
        assert_eq!(queue.charges(QUOTA, at(11)).count(), 1);
        queue.charge(BOB, Nanos(0), QUOTA, at(100_000));
        assert_eq!(queue.charges(QUOTA, at(100_000)).count(), 0);
    }
}
