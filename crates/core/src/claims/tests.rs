use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::{Claim, ClaimError, Claimant, Claims};
use crate::contract::{Change, Clause, Contract, Direction};
use crate::units::Rate;

const ANN: Claimant = Claimant {
    uid: 1000,
    privileged: false,
};
const BOB: Claimant = Claimant {
    uid: 1001,
    privileged: false,
};
const OPS: Claimant = Claimant {
    uid: 1002,
    privileged: true,
};

fn change(text: &str) -> Change {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The claims after a list of requests.
fn after(changes: &[(Claimant, &str)]) -> Claims {
    changes
        .iter()
        .fold(Claims::default(), |claims, (by, text)| {
            claims
                .apply(*by, &change(text))
                .unwrap_or_else(|e| panic!("{by:?} {text}: {e}"))
        })
}

#[test]
fn the_smallest_limit_and_the_latest_privileged_clause_hold() {
    let root = Claimant::ROOT;
    /// Reason, requests, and the effective contract.
    type Case<'a> = (&'a str, &'a [(Claimant, &'a str)], &'a str);
    let cases: &[Case<'_>] = &[
        ("one asks", &[(ANN, "up 4mbit")], "up 4mbit"),
        (
            "a user tightens",
            &[(root, "up 4mbit"), (ANN, "up 1mbit")],
            "up 1mbit",
        ),
        (
            "a user cannot loosen",
            &[(root, "up 4mbit"), (ANN, "up 9mbit")],
            "up 4mbit",
        ),
        (
            "root cannot loosen either, but by clearing",
            &[(ANN, "up 1mbit"), (root, "up 9mbit")],
            "up 1mbit",
        ),
        (
            "one's own is raised",
            &[(ANN, "up 1mbit"), (ANN, "up 9mbit")],
            "up 9mbit",
        ),
        (
            "one's own is cleared",
            &[(root, "up 4mbit"), (ANN, "up 1mbit"), (ANN, "up none")],
            "up 4mbit",
        ),
        (
            "directions are apart",
            &[(root, "up 4mbit"), (ANN, "down 1mbit")],
            "up 4mbit down 1mbit",
        ),
        (
            "root clears the clause of all users",
            &[(ANN, "up 1mbit down 1mbit"), (root, "up none weight 7")],
            "down 1mbit weight 7",
        ),
        (
            "the latest weight",
            &[(root, "weight 7"), (OPS, "weight 9")],
            "weight 9",
        ),
        (
            "the latest weight again",
            &[(root, "weight 7"), (OPS, "weight 9"), (root, "weight 8")],
            "weight 8",
        ),
        (
            "clauses of several",
            &[(root, "min 1mbit on eth0"), (OPS, "weight 9")],
            "min 1mbit on eth0 weight 9",
        ),
        (
            "a burst alone",
            &[(root, "up 4mbit burst 9ms")],
            "up 4mbit burst 9ms",
        ),
        (
            "a user cannot lengthen the default burst",
            &[(root, "up 4mbit"), (ANN, "burst 1s")],
            "up 4mbit burst 5ms",
        ),
        (
            "a user can shorten it",
            &[(root, "up 4mbit"), (ANN, "burst 1ms")],
            "up 4mbit burst 1ms",
        ),
    ];
    for (why, changes, holds) in cases {
        assert_eq!(after(changes).effective().to_string(), *holds, "{why}");
    }
}

#[test]
fn code_points_and_yield_of_users_count_unless_root_asks_for_something_else() {
    let root = Claimant::ROOT;
    type Case<'a> = (&'a str, &'a [(Claimant, &'a str)], &'a str);
    let cases: &[Case<'_>] = &[
        ("a user's code point", &[(ANN, "dscp CS1")], "dscp CS1"),
        (
            "root's code point comes first",
            &[(root, "dscp CS1"), (ANN, "dscp CS0")],
            "dscp CS1",
        ),
        (
            "root's code point comes first, set later too",
            &[(ANN, "dscp CS0"), (root, "dscp EF")],
            "dscp EF",
        ),
        (
            "the latest privileged code point",
            &[(root, "dscp EF"), (OPS, "dscp AF21"), (ANN, "dscp LE")],
            "dscp AF21",
        ),
        (
            "a user yields",
            &[(root, "up 4mbit"), (ANN, "yield on")],
            "up 4mbit yield on",
        ),
        (
            "root's weight comes before a user's yield",
            &[(ANN, "yield on"), (root, "weight 7")],
            "weight 7",
        ),
        (
            "the latest code point of users",
            &[(ANN, "dscp CS1"), (BOB, "dscp LE")],
            "dscp LE",
        ),
    ];
    for (why, changes, holds) in cases {
        assert_eq!(after(changes).effective().to_string(), *holds, "{why}");
    }
}

#[test]
fn the_deciding_user_of_each_clause_is_reported() {
    let claims = after(&[
        (Claimant::ROOT, "up 4mbit down 4mbit weight 7"),
        (ANN, "up 1mbit burst 1ms"),
        (OPS, "weight 9"),
    ]);
    assert_eq!(claims.set_by(Clause::Up), Some(1000));
    assert_eq!(claims.set_by(Clause::Down), Some(0));
    assert_eq!(claims.set_by(Clause::Weight), Some(1002));
    assert_eq!(claims.set_by(Clause::Burst), Some(1000));
    assert_eq!(claims.set_by(Clause::Both), None);
}

#[test]
fn forbidden_changes_are_refused_and_change_nothing() {
    let claims = after(&[(Claimant::ROOT, "up 4mbit min 1mbit"), (BOB, "down 1mbit")]);
    let cases = [
        (
            "reserving",
            ANN,
            "min 1mbit",
            "min is for root and the group netnice",
        ),
        ("lifting root's", ANN, "up none", "up was set by root"),
        (
            "lifting another's",
            ANN,
            "down none",
            "down was set by user 1001",
        ),
        (
            "lifting root's in passing",
            ANN,
            "down 1mbit up none",
            "up was set by root",
        ),
        ("of the group, root's", OPS, "up none", "up was set by root"),
        (
            "below the guarantee",
            ANN,
            "up 500kbit",
            "is above up 500 kbit/s",
        ),
        (
            "the other kind of limit",
            ANN,
            "both 1mbit",
            "(conflicts with the claims of user 1001, root on",
        ),
        (
            "a contradiction of one's own",
            ANN,
            "both 1mbit up 1mbit",
            "cannot hold together",
        ),
    ];
    for (why, by, text, expected) in cases {
        let refused = text
            .parse::<Change>()
            .map_err(ClaimError::from)
            .and_then(|change| claims.apply(by, &change));
        let error = refused.expect_err(why).to_string();
        let expected = expected.replace("user 1001, root", "root, user 1001");
        assert!(error.contains(&expected), "{why}: {error}");
    }
}

#[test]
fn a_user_clears_its_own_claim_and_root_clears_all() {
    let claims = after(&[(Claimant::ROOT, "up 4mbit"), (ANN, "up 1mbit")]);
    let own = claims.clear(ANN).expect("ann's own");
    assert_eq!(own.effective().to_string(), "up 4mbit");
    let error = claims.clear(BOB).expect_err("not bob's").to_string();
    assert!(
        error.contains("you have no claim on this target; claims of root, user 1000"),
        "{error}"
    );
    assert!(
        claims.clear(OPS).is_err(),
        "the group may not lift root's limit"
    );
    assert!(claims.clear(Claimant::ROOT).expect("root's").is_empty());
}

#[test]
fn a_clear_is_possible_although_the_other_privileged_claims_contradict_each_other() {
    let chief = Claimant { uid: 1003, ..OPS };
    // The latest minimum holds, and the limit is not below that one.
    let claims = after(&[
        (Claimant::ROOT, "min 2mbit"),
        (OPS, "min 1mbit"),
        (chief, "up 1mbit"),
        (ANN, "up 1500kbit"),
    ]);
    assert_eq!(claims.effective().to_string(), "up 1mbit min 1mbit");
    let left = claims.clear(OPS).expect("the claim is the user's own");
    assert_eq!(left.effective().to_string(), "min 2mbit");
    assert_eq!(left.set_aside(), [chief.uid, ANN.uid]);
    assert_eq!(left.of_privileged().to_string(), "min 2mbit");
    assert_eq!(
        Claims::restore(left.iter().cloned().collect()),
        Ok(left.clone())
    );
    // A request of another user is not refused for it.
    let more = left.apply(BOB, &change("down 1mbit")).expect("it fits");
    assert_eq!(more.effective().to_string(), "down 1mbit min 2mbit");
    // A request that contradicts a privileged claim that counts is refused, as ever.
    assert!(left.apply(chief, &change("up 1800kbit")).is_err());
    let again = left
        .apply(Claimant::ROOT, &change("min none weight 7"))
        .expect("it contradicts nothing");
    assert_eq!(again.effective().to_string(), "up 1mbit weight 7");
    assert!(again.set_aside().is_empty());
}

#[test]
fn a_user_who_left_the_group_keeps_its_grant_and_gets_no_more() {
    let was = after(&[(OPS, "min 1mbit on eth0")]);
    let left = Claimant {
        privileged: false,
        ..OPS
    };
    let now = was.apply(left, &change("up 4mbit")).expect("a limit");
    assert_eq!(now.effective().to_string(), "up 4mbit min 1mbit on eth0");
    assert!(now.apply(left, &change("min 2mbit")).is_err());
}

#[test]
fn stored_claims_are_restored() {
    let claims = after(&[
        (Claimant::ROOT, "up 4mbit weight 7"),
        (ANN, "up 1mbit"),
        (OPS, "weight 9"),
        (Claimant::ROOT, "down 1mbit"),
    ]);
    let mut written: Vec<Claim> = claims.iter().cloned().collect();
    written.reverse();
    assert_eq!(Claims::restore(written), Ok(claims.clone()));
    let twice: Vec<Claim> = claims.iter().chain(claims.iter()).cloned().collect();
    assert!(matches!(
        Claims::restore(twice),
        Err(ClaimError::TwoOfOneUser(_))
    ));
    let at_odds = [(ANN, "up 1mbit"), (BOB, "both 1mbit")];
    let at_odds = at_odds.iter().enumerate().map(|(order, (by, text))| Claim {
        by: *by,
        order: order as u64,
        contract: text.parse().unwrap(),
    });
    let at_odds = Claims::restore(at_odds.collect()).expect("the eldest counts");
    assert_eq!(at_odds.set_aside(), [BOB.uid]);
    assert_eq!(at_odds.effective().to_string(), "up 1mbit");
}

#[test]
fn a_change_after_the_last_number_is_the_latest() {
    let first = Claim {
        by: OPS,
        order: u64::MAX,
        contract: "weight 7".parse().unwrap(),
    };
    let claims = Claims::restore(vec![first]).unwrap();
    let claims = claims.apply(Claimant::ROOT, &change("weight 9")).unwrap();
    assert_eq!(claims.effective().to_string(), "weight 9");
    let restored = Claims::restore(claims.iter().cloned().collect());
    assert_eq!(restored, Ok(claims));
}

fn texts() -> impl Strategy<Value = Change> {
    let clause = prop_oneof![
        (1..9_u64).prop_map(|n| alloc::format!("up {n}mbit")),
        (1..9_u64).prop_map(|n| alloc::format!("down {n}mbit")),
        (1..9_u64).prop_map(|n| alloc::format!("burst {n}ms")),
        (1..9_u64).prop_map(|n| alloc::format!("min {n}mbit")),
        (1..9_u64).prop_map(|n| alloc::format!("weight {n}")),
        prop_oneof![
            Just("up"),
            Just("down"),
            Just("burst"),
            Just("min"),
            Just("weight")
        ]
        .prop_map(|word| alloc::format!("{word} none")),
    ];
    clause.prop_map(|text| change(&text))
}

proptest! {
    /// Compares the claims with a plain reading of the rules, clause by clause.
    #[test]
    fn claims_follow_the_rules(steps in proptest::collection::vec((0..4_usize, texts()), 1..24)) {
        let claimants = [Claimant::ROOT, ANN, BOB, OPS];
        let mut claims = Claims::default();
        for (who, change) in steps {
            let by = claimants[who];
            let before = claims.clone();
            match claims.apply(by, &change) {
                Ok(next) => claims = next,
                Err(_) => prop_assert_eq!(&claims, &before),
            }
            for direction in Direction::ALL {
                let counts = |claim: &&Claim| !claims.set_aside().contains(&claim.by.uid);
                let asked = claims.iter().filter(counts);
                let asked = asked.filter_map(|claim| claim.contract.limit(direction));
                prop_assert_eq!(claims.effective().limit(direction), asked.min());
            }
            // Only unprivileged users are set aside, and only because of privileged claims.
            for uid in claims.set_aside() {
                let all = claims.iter().filter(|claim| claim.by.uid == *uid);
                prop_assert!(all.into_iter().all(|claim| !claim.by.privileged));
            }
            // Only root can loosen a limit of another user, except of users who are set aside.
            let loosened = |d| {
                rank(claims.effective().limit(d)) > rank(others(&before, &claims, by, d))
            };
            if by.uid != 0 {
                prop_assert!(Direction::ALL.into_iter().all(|d| !loosened(d)));
            }
            let unprivileged = claims.iter().filter(|claim| !claim.by.privileged);
            for claim in unprivileged {
                prop_assert_eq!(claim.contract.min(Direction::Up), None);
                prop_assert_eq!(claim.contract.weight(), None);
            }
            prop_assert!(claims.iter().all(|claim| claim.contract != Contract::default()));
            let written = claims.iter().cloned().collect();
            prop_assert_eq!(Claims::restore(written), Ok(claims.clone()));
        }
    }
}

proptest! {
    /// Every user with a claim can clear it, whatever the others ask.
    #[test]
    fn every_claim_can_be_cleared(
        steps in proptest::collection::vec((0..5_usize, prop::option::weighted(0.8, texts())), 1..24),
    ) {
        let chief = Claimant { uid: 1003, ..OPS };
        let claimants = [Claimant::ROOT, ANN, BOB, OPS, chief];
        let mut claims = Claims::default();
        for (who, change) in steps {
            let by = claimants[who];
            let has_claim = claims.iter().any(|claim| claim.by.uid == by.uid);
            match change {
                Some(change) => claims = claims.apply(by, &change).unwrap_or(claims),
                None if has_claim => {
                    claims = claims.clear(by).expect("the claim is the user's own");
                    prop_assert!(claims.iter().all(|claim| claim.by.uid != by.uid));
                }
                None => {}
            }
            let written = claims.iter().cloned().collect();
            prop_assert_eq!(Claims::restore(written), Ok(claims.clone()));
        }
    }
}

/// Order of limits; no limit is the loosest.
fn rank(limit: Option<Rate>) -> u64 {
    limit.map_or(u64::MAX, Rate::bits_per_second)
}

/// The limit that results from the claims of all other users that count afterwards.
fn others(claims: &Claims, after: &Claims, by: Claimant, direction: Direction) -> Option<Rate> {
    let others = claims.iter().filter(|claim| claim.by.uid != by.uid);
    others
        .filter(|claim| !after.set_aside().contains(&claim.by.uid))
        .filter_map(|claim| claim.contract.limit(direction))
        .min()
}

#[test]
fn a_claim_that_contradicts_root_is_set_aside_and_counts_again_later() {
    let user = Claimant {
        uid: 1000,
        privileged: false,
    };
    let change = |text: &str| text.parse::<Change>().unwrap();
    let claims = Claims::default()
        .apply(user, &change("both 1tbit"))
        .unwrap();
    let claims = claims.apply(Claimant::ROOT, &change("up 4mbit")).unwrap();
    assert_eq!(claims.effective().to_string(), "up 4mbit");
    assert_eq!(claims.set_aside(), [1000]);
    assert_eq!(claims.of_privileged().to_string(), "up 4mbit");
    // Restored claims are equal.
    let again = Claims::restore(claims.iter().cloned().collect()).unwrap();
    assert_eq!(again, claims);
    // The user may not ask for it anew while root's claim is there, and gets it when root's claim
    // has gone.
    claims.apply(user, &change("both 900gbit")).unwrap_err();
    let claims = claims.apply(user, &change("both none up 1mbit")).unwrap();
    assert_eq!(claims.effective().to_string(), "up 1mbit");
    assert!(claims.set_aside().is_empty());
}

#[test]
fn shares_of_users_count_if_no_privileged_claim_names_them() {
    let none = Claims::default();
    let refused = none.apply(ANN, &change("min 1mbit"));
    assert!(matches!(
        refused,
        Err(ClaimError::NeedsPrivilege(Clause::Min))
    ));
    let ann = none.apply_in_budget(ANN, &change("min 4mbit weight 7 up 9mbit"));
    let ann = ann.expect("shares");
    assert_eq!(ann.effective().to_string(), "up 9mbit min 4mbit weight 7");
    let shares = Some((ANN.uid, vec![Clause::Min, Clause::Weight]));
    assert_eq!(ann.users_shares(), shares);
    assert_eq!(ann.without_users_shares().to_string(), "up 9mbit");
    let both = ann.apply(OPS, &change("weight 200")).expect("a weight");
    assert_eq!(both.users_shares(), Some((ANN.uid, vec![Clause::Min])));
    assert_eq!(
        both.effective().to_string(),
        "up 9mbit min 4mbit weight 200"
    );
    assert_eq!(
        both.without_users_shares().to_string(),
        "up 9mbit weight 200"
    );
    assert_eq!(both.set_by(Clause::Min), Some(ANN.uid));
    for clause in ["slice 1ms/10ms", "delegate ann", "cpu 1ms/10ms"] {
        let refused = none.apply_in_budget(ANN, &change(clause));
        assert!(
            matches!(refused, Err(ClaimError::NeedsPrivilege(_))),
            "{clause}"
        );
    }
    let conflict = ann
        .apply(OPS, &change("up 2mbit"))
        .expect("ops comes first");
    assert_eq!(
        conflict.set_aside(),
        [ANN.uid],
        "min 4 Mbit/s is above up 2 Mbit/s"
    );
}

#[test]
fn a_user_who_has_left_the_group_changes_no_share_of_the_privileged_claim() {
    let claims = Claims::default().apply(OPS, &change("min 4mbit"));
    let claims = claims.expect("a minimum");
    let left = Claimant {
        privileged: false,
        ..OPS
    };
    let refused = claims.apply_in_budget(left, &change("min 9mbit"));
    assert!(matches!(
        refused,
        Err(ClaimError::NeedsPrivilege(Clause::Min))
    ));
}
