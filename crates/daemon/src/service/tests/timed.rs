//! Changes for a limited time, and changes that wait to be confirmed.

use netnice_api::Confirm;

use super::*;

#[test]
fn changes_for_a_time_and_unconfirmed_ones_are_taken_back() {
    let mut desk = Desk::new();
    for pid in [10, 20] {
        desk.machine().spawn(pid, 0);
    }
    let timed = |desk: &mut Desk, pid: u32, change: &str, confirm: bool| {
        let target = format!("pid:{pid}");
        let terms = |set: &mut Set| match confirm {
            true => set.confirm_ns = Some(10_000_000_000),
            false => set.for_ns = Some(10_000_000_000),
        };
        ok(desk.set_with(&Peer::ROOT, &target, change, Some(pid), terms))
    };
    let done = timed(&mut desk, 10, "up 4mbit", false);
    assert_eq!(done.confirm, None);
    assert!(done.messages[0].contains("10s"), "{done:?}");
    ok(desk.set("pid:20", "up 1mbit"));
    let number = timed(&mut desk, 20, "up 9mbit down 2mbit", true).confirm;
    desk.pass(9);
    assert_eq!(desk.show().targets[1].effective.up, Some(9_000_000));
    desk.pass(1);
    assert!(desk.held("pid:10").is_none(), "its time is over");
    let shown = desk.show();
    assert_eq!(shown.targets[0].effective.up, Some(1_000_000));
    assert_eq!(shown.targets[0].effective.down, None);
    // A change that is confirmed in time stays; a second confirmation fails.
    let again = timed(&mut desk, 20, "up 8mbit", true).confirm;
    assert!(again > number);
    let confirm = |desk: &mut Desk, peer: &Peer| {
        let id = again.expect("a number");
        desk.ask(peer, Request::Confirm(Confirm { id }), None)
    };
    failed(confirm(&mut desk, &ANN));
    ok(confirm(&mut desk, &Peer::ROOT));
    failed(confirm(&mut desk, &Peer::ROOT));
    desk.pass(20);
    assert_eq!(desk.show().targets[0].effective.up, Some(8_000_000));
    desk.check();
}

#[test]
fn what_was_cleared_for_a_time_comes_back() {
    let mut desk = Desk::new();
    desk.machine().groups.insert("/g".to_owned(), 5);
    for pid in [10, 20] {
        desk.machine().spawn(pid, 0);
        desk.machine().fork(pid, pid + 1);
    }
    ok(desk.link("eth0", "100mbit", ""));
    ok(desk.set("pid:10", "min 10mbit"));
    ok(desk.set("pid:11", "up 1mbit"));
    ok(desk.set("pid:20", "up 2mbit"));
    ok(desk.set("cgroup:/g", "up 3mbit"));
    let before = still(desk.show());
    let clear = Clear {
        what: ClearWhat::All,
        dry_run: false,
        confirm_ns: Some(5_000_000_000),
        for_ns: None,
        until: None,
    };
    let done = ok(desk.ask(&Peer::ROOT, Request::Clear(clear), None));
    assert!(done.confirm.is_some());
    assert!(desk.show().targets.is_empty() && desk.show().links.is_empty());
    desk.pass(6);
    assert_eq!(still(desk.show()), before);
    assert_eq!(desk.own(11).as_deref(), Some("pid:11"));
    assert_eq!(desk.parent("pid:11").as_deref(), Some("pid:10"));
    desk.check();
}

#[test]
fn what_is_asked_while_something_is_cleared_for_a_time_stays() {
    let mut desk = Desk::new();
    for pid in [10, 20, 30] {
        desk.machine().spawn(pid, 0);
        ok(desk.set(&format!("pid:{pid}"), "up 4mbit down 8mbit"));
    }
    let clear = |desk: &mut Desk, target: &str| {
        let clear = Clear {
            what: ClearWhat::Target(target.to_owned()),
            dry_run: false,
            confirm_ns: None,
            for_ns: Some(5_000_000_000),
            until: None,
        };
        ok(desk.ask(&Peer::ROOT, Request::Clear(clear), None))
    };
    for target in ["pid:10", "pid:20", "pid:30"] {
        clear(&mut desk, target);
    }
    ok(desk.set("pid:10", "up 9mbit"));
    ok(desk.set("pid:20", "down 1mbit"));
    ok(desk.clear("pid:20"));
    desk.machine().exit(30);
    desk.pass(6);
    let shown = desk.show();
    assert_eq!(shown.targets.len(), 1, "what was cleared for good stays so");
    let holds = &shown.targets[0].effective;
    assert_eq!(
        (holds.up, holds.down),
        (Some(9_000_000), Some(8_000_000)),
        "clause by clause"
    );
    // Repeated temporary changes and clears leave nothing of ended processes.
    for pid in 40..60 {
        desk.machine().spawn(pid, 0);
        ok(desk.set(&format!("pid:{pid}"), "up 1mbit"));
        clear(&mut desk, &format!("pid:{pid}"));
        desk.machine().exit(pid);
    }
    assert!(desk.service.reconciler.books.undos.iter().count() < 3);
    ok(desk.clear("all"));
    assert_eq!(desk.service.reconciler.books.undos.iter().count(), 0);
    desk.check();
}
