//! Tests of pending rollbacks: their inverse changes, their order, and their confirmation.

use super::*;

const ANN: Claimant = Claimant {
    uid: 1000,
    privileged: false,
};

fn change(text: &str) -> Change {
    text.parse().expect(text)
}

fn target() -> Target {
    "unit:web".parse().expect("a target")
}

fn contract(text: &str) -> Contract {
    text.parse().expect(text)
}

fn claim(id: u32, text: &str) -> Undo {
    Undo::Claim {
        id,
        change: Box::new(change(text)),
    }
}

#[test]
fn a_change_and_its_inverse_restore_the_contract() {
    let table = [
        ("none", "up 4mbit"),
        ("up 1mbit", "up 4mbit"),
        ("up 1mbit down 2mbit", "up none down none both 3mbit"),
        ("min 1mbit weight 7", "weight none priority 0 burst 9ms"),
        ("slice 1ms/10ms extra", "slice none min 3mbit on eth0"),
    ];
    for (before, text) in table {
        let before = contract(before);
        let change = change(text);
        let after = before.apply(&change).expect(text);
        let back = after.apply(&inverse(&change, &before)).expect(text);
        assert_eq!(back, before, "{text}");
    }
}

#[test]
fn a_lasting_change_removes_its_clauses_from_pending_rollbacks() {
    let mut rollbacks = Rollbacks::default();
    rollbacks.push(Instant(10), false, ANN, claim(1, "up none down 5mbit"));
    rollbacks.push(Instant(10), false, ANN, claim(2, "up none"));
    assert_eq!(
        rollbacks.supersede(1, &target(), ANN, &change("up 2mbit")),
        change("up none")
    );
    let left: Vec<&Undo> = rollbacks.iter().map(|one| &one.undo).collect();
    assert_eq!(left, [&claim(1, "down 5mbit"), &claim(2, "up none")]);
    rollbacks.supersede(1, &target(), ANN, &change("down 1mbit up 1mbit"));
    assert_eq!(rollbacks.iter().count(), 1, "what is empty goes");
}

#[test]
fn a_replacing_change_restores_the_value_before_the_first() {
    let mut rollbacks = Rollbacks::default();
    rollbacks.push(Instant(10), true, ANN, claim(1, "up none"));
    let second = change("up 2mbit");
    let own = inverse(&second, &contract("up 4mbit"));
    let first = rollbacks.supersede(1, &target(), ANN, &second);
    assert_eq!(merged(&own, &first), change("up none"));
}

#[test]
fn due_rollbacks_are_returned_latest_first() {
    let mut rollbacks = Rollbacks::default();
    for at in [5, 20, 7] {
        rollbacks.push(Instant(at), false, ANN, claim(1, "up none"));
    }
    assert_eq!(rollbacks.earliest(), Some(Instant(5)));
    let due: Vec<u64> = rollbacks
        .due(Instant(7), &[])
        .iter()
        .map(|one| one.number)
        .collect();
    assert_eq!(due, [3, 1]);
    assert_eq!(rollbacks.earliest(), Some(Instant(20)));
}

#[test]
fn a_change_is_confirmed_once_and_only_with_permission() {
    let mut rollbacks = Rollbacks::default();
    let timed = rollbacks.push(Instant(5), false, ANN, claim(1, "up none"));
    let number = rollbacks.push(Instant(5), true, ANN, claim(1, "down none"));
    assert!(
        rollbacks.confirm(timed, |_| true).is_none(),
        "made for a time"
    );
    assert!(rollbacks.confirm(number, |_| false).is_none());
    assert!(rollbacks.confirm(number, |one| one.by == ANN).is_some());
    assert!(
        rollbacks.confirm(number, |_| true).is_none(),
        "confirmed already"
    );
}

#[test]
fn the_short_form_means_up_if_directions_are_limited_separately() {
    assert_eq!(as_up(&change("both 4mbit")), change("up 4mbit"));
    assert_eq!(as_up(&change("both none")), change("up none"));
}

#[test]
fn a_rollback_that_waits_for_a_process_is_due_only_at_its_end() {
    let mut rollbacks = Rollbacks::default();
    let root = |pid| ProcessId { pid, started: 7 };
    let by = Claimant {
        uid: 0,
        privileged: true,
    };
    let undo = Undo::Claim {
        id: 1,
        change: Box::default(),
    };
    rollbacks.push_until(root(10), by, undo.clone());
    rollbacks.push(Instant(9), false, by, undo);
    assert_eq!(rollbacks.earliest(), Some(Instant(9)));
    assert_eq!(rollbacks.awaited().collect::<Vec<_>>(), [root(10)]);
    let numbers = |due: Vec<PendingRollback>| due.iter().map(|one| one.number).collect::<Vec<_>>();
    assert_eq!(numbers(rollbacks.due(Instant(u64::MAX), &[root(11)])), [2]);
    assert_eq!(rollbacks.earliest(), None);
    assert_eq!(numbers(rollbacks.due(Instant(0), &[root(10)])), [1]);
}
