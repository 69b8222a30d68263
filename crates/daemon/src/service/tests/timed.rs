//! Tests of changes for a limited time, and of changes that wait to be confirmed.

use netnice_api::Confirm;

use super::*;

#[test]
fn timed_and_unconfirmed_changes_are_rolled_back() {
    let mut fixture = Fixture::new();
    for pid in [10, 20] {
        fixture.machine().spawn(pid, 0);
    }
    let timed = |fixture: &mut Fixture, pid: u32, change: &str, confirm: bool| {
        let target = format!("pid:{pid}");
        let terms = |set: &mut Set| match confirm {
            true => set.confirm_ns = Some(10_000_000_000),
            false => set.for_ns = Some(10_000_000_000),
        };
        ok(fixture.set_with(&Peer::ROOT, &target, change, Some(pid), terms))
    };
    let done = timed(&mut fixture, 10, "up 4mbit", false);
    assert_eq!(done.confirm, None);
    assert!(done.messages[0].contains("10s"), "{done:?}");
    ok(fixture.set("pid:20", "up 1mbit"));
    let number = timed(&mut fixture, 20, "up 9mbit down 2mbit", true).confirm;
    fixture.advance(9);
    assert_eq!(fixture.show().targets[1].effective.up, Some(9_000_000));
    fixture.advance(1);
    assert!(fixture.held("pid:10").is_none(), "its time is over");
    let shown = fixture.show();
    assert_eq!(shown.targets[0].effective.up, Some(1_000_000));
    assert_eq!(shown.targets[0].effective.down, None);
    // A change that is confirmed in time stays; a second confirmation fails.
    let again = timed(&mut fixture, 20, "up 8mbit", true).confirm;
    assert!(again > number);
    let confirm = |fixture: &mut Fixture, peer: &Peer| {
        let id = again.expect("a number");
        fixture.ask(peer, Request::Confirm(Confirm { id }), None)
    };
    failed(confirm(&mut fixture, &ANN));
    ok(confirm(&mut fixture, &Peer::ROOT));
    failed(confirm(&mut fixture, &Peer::ROOT));
    fixture.advance(20);
    assert_eq!(fixture.show().targets[0].effective.up, Some(8_000_000));
    fixture.check();
}

#[test]
fn claims_cleared_for_a_time_are_restored() {
    let mut fixture = Fixture::new();
    fixture.machine().groups.insert("/g".to_owned(), 5);
    for pid in [10, 20] {
        fixture.machine().spawn(pid, 0);
        fixture.machine().fork(pid, pid + 1);
    }
    ok(fixture.link("eth0", "100mbit", ""));
    ok(fixture.set("pid:10", "min 10mbit"));
    ok(fixture.set("pid:11", "up 1mbit"));
    ok(fixture.set("pid:20", "up 2mbit"));
    ok(fixture.set("cgroup:/g", "up 3mbit"));
    let before = without_counters(fixture.show());
    let clear = Clear {
        what: ClearWhat::All,
        dry_run: false,
        confirm_ns: Some(5_000_000_000),
        for_ns: None,
        until: None,
    };
    let done = ok(fixture.ask(&Peer::ROOT, Request::Clear(clear), None));
    assert!(done.confirm.is_some());
    assert!(fixture.show().targets.is_empty() && fixture.show().links.is_empty());
    fixture.advance(6);
    assert_eq!(without_counters(fixture.show()), before);
    assert_eq!(fixture.own(11).as_deref(), Some("pid:11"));
    assert_eq!(fixture.parent("pid:11").as_deref(), Some("pid:10"));
    fixture.check();
}

#[test]
fn a_claim_withdrawn_for_a_time_comes_back() {
    let timed = |set: &mut Set, seconds: u64| set.for_ns = Some(seconds * 1_000_000_000);
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    ok(fixture.set("pid:10", "up 4mbit down 2mbit"));
    let root = &Peer::ROOT;
    ok(fixture.set_with(root, "pid:10", "up none", Some(10), |set| timed(set, 20)));
    ok(fixture.set_with(root, "pid:10", "down none", Some(10), |set| timed(set, 5)));
    assert!(fixture.show().targets.is_empty());
    fixture.advance(6);
    let contract = |fixture: &mut Fixture| fixture.show().targets[0].contract.clone();
    let one = contract(&mut fixture);
    assert_eq!((one.up, one.down), (None, Some(2_000_000)));
    fixture.advance(20);
    let both = contract(&mut fixture);
    assert_eq!((both.up, both.down), (Some(4_000_000), Some(2_000_000)));
    // A lasting withdrawal of what is withdrawn for a time, and a clear, end the wait.
    let off = |fixture: &mut Fixture| {
        ok(
            fixture.set_with(root, "pid:10", "up none down none", Some(10), |set| {
                timed(set, 20)
            }),
        );
        assert!(fixture.show().targets.is_empty());
    };
    off(&mut fixture);
    ok(fixture.set("pid:10", "up none"));
    fixture.advance(30);
    let left = contract(&mut fixture);
    assert_eq!((left.up, left.down), (None, Some(2_000_000)));
    off(&mut fixture);
    failed(fixture.clear_as(&ANN, "pid:10"));
    ok(fixture.clear("pid:10"));
    fixture.advance(30);
    assert!(fixture.show().targets.is_empty());
    ok(fixture.set("pid:10", "up 4mbit down 2mbit"));
    // With a confirmation, the number is valid and the claim stays withdrawn.
    let confirmed = ok(
        fixture.set_with(root, "pid:10", "up none down none", Some(10), |set| {
            set.confirm_ns = Some(5_000_000_000);
        }),
    );
    let id = confirmed.confirm.expect("a number");
    ok(fixture.ask(root, Request::Confirm(Confirm { id }), None));
    fixture.advance(30);
    assert!(fixture.show().targets.is_empty());
    fixture.check();
}

#[test]
fn claims_made_during_a_timed_clear_stay() {
    let mut fixture = Fixture::new();
    for pid in [10, 20, 30] {
        fixture.machine().spawn(pid, 0);
        ok(fixture.set(&format!("pid:{pid}"), "up 4mbit down 8mbit"));
    }
    let clear = |fixture: &mut Fixture, target: &str| {
        let clear = Clear {
            what: ClearWhat::Target(target.to_owned()),
            dry_run: false,
            confirm_ns: None,
            for_ns: Some(5_000_000_000),
            until: None,
        };
        ok(fixture.ask(&Peer::ROOT, Request::Clear(clear), None))
    };
    for target in ["pid:10", "pid:20", "pid:30"] {
        clear(&mut fixture, target);
    }
    ok(fixture.set("pid:10", "up 9mbit"));
    ok(fixture.set("pid:20", "down 1mbit"));
    ok(fixture.clear("pid:20"));
    fixture.machine().exit(30);
    fixture.advance(6);
    let shown = fixture.show();
    assert_eq!(shown.targets.len(), 1, "what was cleared for good stays so");
    let holds = &shown.targets[0].effective;
    assert_eq!(
        (holds.up, holds.down),
        (Some(9_000_000), Some(8_000_000)),
        "clause by clause"
    );
    // Repeated temporary changes and clears leave nothing of ended processes.
    for pid in 40..60 {
        fixture.machine().spawn(pid, 0);
        ok(fixture.set(&format!("pid:{pid}"), "up 1mbit"));
        clear(&mut fixture, &format!("pid:{pid}"));
        fixture.machine().exit(pid);
    }
    assert!(fixture.service.reconciler.books.rollbacks.iter().count() < 3);
    ok(fixture.clear("all"));
    assert_eq!(fixture.service.reconciler.books.rollbacks.iter().count(), 0);
    fixture.check();
}
