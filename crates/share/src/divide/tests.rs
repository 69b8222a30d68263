use proptest::prelude::*;

use super::{Demand, DoesNotFit, Pool, divide, divide_groups, fits};

/// Kbyte/s as the paper counts them.
const K: u64 = 1024 * 8;

fn fixed(kbytes: u64) -> Demand {
    Demand {
        fixed: Some(kbytes * K),
        ..shared()
    }
}

fn shared() -> Demand {
    Demand {
        fixed: None,
        weight: 100,
        bound: None,
        idle: None,
    }
}

fn pool(kbytes: u64) -> Pool {
    Pool {
        total: Some(kbytes * K),
        floor: K,
    }
}

/// Shares in Kbyte/s.
fn shares(pool: Pool, demands: &[Demand]) -> Vec<u64> {
    let shares = divide(pool, demands).into_iter();
    shares.map(|share| share.expect("limited") / K).collect()
}

#[test]
fn the_three_configurations_of_the_paper_have_its_shares() {
    let none = Pool {
        total: None,
        floor: K,
    };
    assert_eq!(
        shares(none, &[fixed(128), fixed(32), fixed(32)]),
        [128, 32, 32]
    );
    assert_eq!(shares(pool(512), &[shared(); 4]), [128; 4]);
    let mut mixed = vec![fixed(32); 2];
    mixed.extend([shared(); 4]);
    assert_eq!(shares(pool(512), &mixed), [32, 32, 112, 112, 112, 112]);
}

#[test]
fn weights_and_bounds_shift_shares() {
    let heavy = Demand {
        weight: 300,
        ..shared()
    };
    assert_eq!(shares(pool(512), &[heavy, shared()]), [384, 128]);
    let bound = Demand {
        bound: Some(32 * K),
        ..shared()
    };
    assert_eq!(
        shares(pool(512), &[bound, shared(), shared()]),
        [32, 240, 240]
    );
    let none = Pool {
        total: None,
        floor: K,
    };
    assert_eq!(divide(none, &[shared(), bound]), [None, Some(32 * K)]);
}

#[test]
fn an_idle_session_lends_its_share_only_if_another_is_busy() {
    let idle = |used: u64| Demand {
        idle: Some(used * K),
        ..shared()
    };
    // An eighth of 128, or twice the usage.
    assert_eq!(shares(pool(256), &[idle(0), shared()]), [16, 240]);
    assert_eq!(shares(pool(256), &[idle(10), shared()]), [20, 236]);
    assert_eq!(shares(pool(256), &[idle(0), idle(0)]), [128, 128]);
    // A session with a fixed rate does not lend.
    let quiet = Demand {
        idle: Some(0),
        ..fixed(32)
    };
    assert_eq!(shares(pool(512), &[quiet, shared()]), [32, 480]);
}

#[test]
fn groups_have_equal_shares_and_lend_inside_first() {
    let shares = |groups: &[(u64, Vec<Demand>)]| -> Vec<Vec<u64>> {
        let shares = divide_groups(pool(512), groups).into_iter();
        let inside = |group: Vec<Option<u64>>| group.into_iter().flatten().map(|bits| bits / K);
        shares.map(|group| inside(group).collect()).collect()
    };
    let even = shares(&[(100, vec![shared(); 4]), (100, vec![shared()])]);
    assert_eq!(even, [vec![64; 4], vec![256]]);
    let weighed = shares(&[(300, vec![shared(); 2]), (100, vec![shared()])]);
    assert_eq!(weighed, [vec![192; 2], vec![128]]);
    let idle = Demand {
        idle: Some(0),
        ..shared()
    };
    let inside = shares(&[(100, vec![idle, shared()]), (100, vec![shared()])]);
    assert_eq!(inside, [vec![16, 240], vec![256]]);
    let outside = shares(&[(100, vec![idle]), (100, vec![shared(); 2])]);
    assert_eq!(outside, [vec![32], vec![240; 2]]);
}

#[test]
fn a_session_that_does_not_fit_is_refused() {
    assert_eq!(fits(pool(512), &[fixed(500), fixed(12)]), Ok(()));
    let refused = fits(pool(512), &[fixed(500), fixed(13)]);
    assert_eq!(
        refused,
        Err(DoesNotFit::Fixed {
            asked: 13 * K,
            left: 12 * K
        })
    );
    // The floor of the existing session is reserved.
    assert!(fits(pool(512), &[shared(), fixed(512)]).is_err());
    assert_eq!(fits(pool(3), &[shared(); 3]), Ok(()));
    let refused = fits(pool(3), &[shared(); 4]);
    assert_eq!(
        refused,
        Err(DoesNotFit::Floor {
            share: 3 * K / 4,
            floor: K
        })
    );
}

fn demands() -> impl Strategy<Value = Vec<Demand>> {
    let one = (
        proptest::option::weighted(0.3, 1_000..1_000_000_u64),
        1..1_000_u64,
        proptest::option::weighted(0.3, 1_000..1_000_000_u64),
        proptest::option::weighted(0.3, 0..1_000_000_u64),
    );
    let one = one.prop_map(|(fixed, weight, bound, idle)| Demand {
        fixed,
        weight,
        bound,
        idle,
    });
    proptest::collection::vec(one, 1..40)
}

proptest! {
    #[test]
    fn shares_are_at_most_the_total_and_at_least_the_floor(
        total in 1_000..1_000_000_000_u64,
        floor in 1_000..10_000_u64,
        demands in demands(),
    ) {
        let pool = Pool { total: Some(total), floor };
        if fits(pool, &demands).is_ok() {
            let shares = divide(pool, &demands);
            let sum: u64 = shares.iter().flatten().sum();
            prop_assert!(sum <= total, "{sum} of {total}");
            for (share, demand) in shares.iter().zip(&demands) {
                let share = share.expect("limited");
                let bound = demand.bound.unwrap_or(u64::MAX).min(demand.fixed.unwrap_or(u64::MAX));
                prop_assert!(share <= bound);
                prop_assert!(share >= floor.min(bound), "{share} of {demand:?}");
            }
        }
    }

    #[test]
    fn shares_are_at_most_the_total_although_the_floors_exceed_it(
        total in 1_000..100_000_u64,
        floor in 1_000..10_000_u64,
        groups in proptest::collection::vec((1..1_000_u64, demands()), 1..5),
    ) {
        let groups: Vec<(u64, Vec<Demand>)> = groups
            .into_iter()
            .map(|(weight, members)| {
                let shared = |member| Demand { fixed: None, ..member };
                (weight, members.into_iter().map(shared).collect())
            })
            .collect();
        let pool = Pool { total: Some(total), floor };
        let count: u64 = groups.iter().map(|(_, members)| members.len() as u64).sum();
        let shares = divide_groups(pool, &groups);
        let sum: u64 = shares.iter().flatten().flatten().sum();
        prop_assert!(sum <= total, "{sum} of {total}");
        // Rounding takes less than 1 bit/s from each group and each session.
        let least = floor.min((total / count).saturating_sub(2));
        for (share, demand) in shares.iter().zip(&groups).flat_map(|(s, g)| s.iter().zip(&g.1)) {
            let share = share.expect("limited");
            prop_assert!(share >= least.min(demand.bound.unwrap_or(u64::MAX)), "{share}");
        }
    }

    #[test]
    fn the_whole_total_is_divided(total in 1_000_000..1_000_000_000_u64, n in 1..50_usize) {
        let pool = Pool { total: Some(total), floor: 1_000 };
        let sum: u64 = divide(pool, &vec![shared(); n]).into_iter().flatten().sum();
        prop_assert!(total - sum < n as u64, "{sum} of {total}");
    }
}
