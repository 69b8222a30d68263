//! Required behaviour, one scenario each.

use netnice_api::Response;
use netnice_core::target::Target;

use super::*;

#[test]
fn a_limit_is_set_shown_changed_and_cleared() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    let done = ok(desk.set("pid:10", "up 4mbit"));
    assert_eq!(done.effective.as_deref(), Some("up 4mbit"));
    assert_eq!(done.id, Some(1));
    desk.check();
    ok(desk.set("pid:10", "down 1mbit"));
    let shown = desk.show();
    assert_eq!(shown.targets.len(), 1);
    assert_eq!(shown.targets[0].effective.up, Some(4_000_000));
    assert_eq!(shown.targets[0].effective.down, Some(1_000_000));
    assert_eq!(shown.targets[0].contract.set_by["up"], 0);
    ok(desk.set("pid:10", "up none"));
    desk.check();
    ok(desk.clear("pid:10"));
    desk.check();
    assert!(desk.show().targets.is_empty());
    assert!(!desk.machine().is_enforcing());
    assert!(failed(desk.clear("pid:10")).contains("nothing is set for pid:10"));
}

#[test]
fn clearing_the_last_clause_ends_the_target() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    ok(desk.set("pid:10", "up 4mbit"));
    let done = ok(desk.set("pid:10", "up none"));
    assert_eq!(done.effective.as_deref(), Some("none"));
    assert!(desk.held("pid:10").is_none());
    let done = ok(desk.set("pid:10", "up none"));
    assert!(done.messages[0].contains("nothing was set"), "{done:?}");
    desk.check();
}

#[test]
fn a_unit_keeps_its_contract_when_it_is_started_again() {
    let mut desk = Desk::new();
    desk.machine().groups.insert("/s/web.service".to_owned(), 7);
    ok(desk.set("unit:web", "up 4mbit"));
    desk.machine().groups.remove("/s/web.service");
    desk.pass(1);
    let shown = desk.show();
    assert!(
        shown.targets[0].degraded[0].contains("not there"),
        "{shown:?}"
    );
    // The old group stays the unit's for packets still being sent, and a new group is the unit's
    // from its creation.
    assert_eq!(desk.machine().force.groups.values().next(), Some(&7));
    let awaited: Vec<String> = desk.machine().awaited.keys().cloned().collect();
    assert_eq!(awaited, ["/s/web.service", "web.service"]);
    desk.machine().groups.insert("/t/web.service".to_owned(), 8);
    desk.pass(1);
    assert!(desk.show().targets[0].degraded.is_empty());
    assert_eq!(desk.machine().force.groups.values().next(), Some(&8));
    assert!(failed(desk.set("unit:none", "up 1mbit")).contains("none"));
    desk.machine().groups.clear();
    desk.pass(1);
    ok(desk.clear("unit:web"));
    assert!(desk.machine().force.groups.is_empty() && desk.machine().awaited.is_empty());
    desk.check();
}

#[test]
fn users_tighten_each_others_limits_and_lift_their_own() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 1000);
    let up = |desk: &mut Desk| desk.show().targets[0].effective.up;
    ok(desk.set("pid:10", "up 4mbit"));
    ok(desk.set_as(&ANN, "pid:10", "up 2mbit"));
    assert_eq!(up(&mut desk), Some(2_000_000));
    ok(desk.clear_as(&ANN, "pid:10"));
    assert_eq!(up(&mut desk), Some(4_000_000));
    assert!(refused(desk.clear_as(&ANN, "pid:10")).contains("root"));
    assert!(refused(desk.set_as(&ANN, "pid:10", "up none")).contains("root"));
    assert!(refused(desk.set_as(&ANN, "pid:10", "min 1mbit")).contains("netnice"));
    assert!(refused(desk.set_as(&ANN, "user:1000", "up 1mbit")).contains("root"));
    desk.machine().spawn(20, 0);
    assert!(refused(desk.set_as(&ANN, "pid:20", "up 1mbit")).contains("root"));
    // Clearing all clears the user's own claims, and the answer has their number.
    ok(desk.set_as(&ANN, "pid:10", "up 1mbit"));
    let done = ok(desk.clear_as(&ANN, "all"));
    assert_eq!(done.messages[0], "1 target cleared");
    assert_eq!(up(&mut desk), Some(4_000_000));
    desk.check();
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    let mut desk = Desk::new();
    for pid in [10, 20, 30] {
        desk.machine().spawn(pid, 0);
    }
    assert!(refused(desk.set("pid:10", "min 1mbit")).contains("netnice link"));
    ok(desk.link("eth0", "100mbit", ""));
    ok(desk.set("pid:10", "min 60mbit"));
    ok(desk.set("pid:20", "min 20mbit"));
    let before = desk.machine().force.clone();
    let text = refused(desk.set("pid:30", "min 30mbit"));
    for word in [
        "eth0",
        "100 Mbit/s",
        "operator",
        "pid:10",
        "pid:20",
        "20 Mbit/s",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert_eq!(desk.machine().force, before);
    assert!(desk.held("pid:30").is_none());
    assert!(refused(desk.link("eth0", "70mbit", "")).contains("eth0"));
    assert!(refused(desk.link("eth0", "none", "50mbit")).contains("pid:10"));
    ok(desk.set("pid:30", "min 20mbit"));
    desk.check();
}

#[test]
fn a_link_is_managed_with_what_its_driver_reports_and_not_over_others() {
    let mut desk = Desk::new();
    assert!(failed(desk.link("eth0", "", "")).contains("reports no speed"));
    let speed = "1gbit".parse().expect("a rate");
    desk.machine().speeds.insert("eth0".to_owned(), speed);
    let done = ok(desk.link("eth0", "", ""));
    assert!(done.messages[0].contains("reported by the driver"));
    let up = desk.show().links[0].up.clone();
    assert_eq!(up.expect("up").source, "driver");
    assert!(failed(desk.link("nosuch0", "1mbit", "")).contains("nosuch0"));
    desk.machine().foreign.insert("lo".to_owned());
    assert!(refused(desk.link("lo", "1gbit", "")).contains("somebody"));
    assert_eq!(desk.show().links.len(), 1);
    desk.check();
}

#[test]
fn every_step_that_fails_leaves_all_as_it_was() {
    let mut desk = Desk::new();
    desk.machine().groups.insert("/g".to_owned(), 5);
    desk.machine().spawn(10, 0);
    desk.machine().fork(10, 11);
    desk.machine().fork(10, 12);
    ok(desk.set("pid:11", "up 4mbit"));
    ok(desk.set("pid:12", "up 4mbit"));
    type Change = fn(&mut Desk) -> Response;
    let changes: [Change; 6] = [
        |desk| desk.set("pid:10", "up 9mbit"),
        |desk| desk.set("cgroup:/g", "up 9mbit"),
        |desk| desk.set("pid:11", "up none"),
        |desk| desk.clear("pid:12"),
        |desk| desk.link("eth0", "100mbit", ""),
        |desk| desk.set("user:0", "down 1mbit"),
    ];
    for (n, change) in changes.iter().enumerate() {
        for k in 0.. {
            let before = (
                desk.machine().force.clone(),
                desk.service.ledger().entries(),
            );
            desk.machine().fails_in = Some(k);
            let answer = change(&mut desk);
            if desk.machine().fails_in.take().is_some() {
                ok(answer);
                break;
            }
            assert!(failed(answer).contains("says no"), "change {n}, step {k}");
            let after = (
                desk.machine().force.clone(),
                desk.service.ledger().entries(),
            );
            assert_eq!(before, after, "change {n}, step {k}");
            assert!(k < 20, "it must be done some time");
        }
        desk.check();
    }
}

#[test]
fn what_is_left_of_an_ended_program_keeps_its_limit_for_a_while() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    ok(desk.set("pid:10", "up 4mbit"));
    let id = desk.held("pid:10").expect("held").id;
    desk.machine().exit(10);
    desk.pass(1);
    assert!(desk.show().targets.is_empty());
    for packets in 1..10 {
        let counts = desk.machine().sample.targets.entry(id).or_default();
        counts.directions[0].offered_packets = packets;
        desk.pass(1);
        assert_eq!(desk.machine().force.desired.targets[0].id, id);
    }
    desk.pass(2);
    assert!(desk.machine().is_enforcing());
    desk.pass(1);
    assert!(!desk.machine().is_enforcing(), "nothing moves any more");
    desk.check();
}

#[test]
fn showing_a_process_shows_what_holds_it() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 1000);
    desk.machine().fork(10, 11);
    desk.machine().spawn(20, 1001);
    ok(desk.set("pid:10", "up 4mbit"));
    let show = |desk: &mut Desk, target: &str| {
        let target = Some(target.to_owned());
        desk.ask(&ANN, Request::Show(Show { target }), None)
    };
    for target in ["pid:10", "11"] {
        match show(&mut desk, target) {
            Response::Shown(doc) => assert_eq!(doc.targets[0].target, "pid:10"),
            other => panic!("{other:?}"),
        }
    }
    match show(&mut desk, "20") {
        Response::Shown(doc) => assert!(doc.targets.is_empty()),
        other => panic!("{other:?}"),
    }
    assert!(failed(show(&mut desk, "99")).contains("99"));
    assert!(failed(show(&mut desk, "unit:none")).contains("unit:none"));
    assert!(failed(show(&mut desk, "rubbish")).contains("rubbish"));
}

#[test]
fn a_dry_run_tells_and_changes_nothing() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    let before = (desk.machine().force.clone(), desk.service.ledger().clone());
    let dry = |set: &mut Set| {
        set.dry_run = true;
        set.confirm_ns = Some(1_000_000_000);
    };
    let done = ok(desk.set_with(&Peer::ROOT, "pid:10", "up 4mbit", Some(10), dry));
    assert_eq!(done.effective.as_deref(), Some("up 4mbit"));
    assert!(done.plan.is_some_and(|plan| !plan.is_empty()));
    let after = (desk.machine().force.clone(), desk.service.ledger().clone());
    assert_eq!(before, after);
    assert_eq!(desk.service.next_due(), None);
}

#[test]
fn what_is_not_understood_is_said_and_nothing_changes() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    let table = [
        ("pid:10", "", "nothing is asked"),
        ("pid:10", "up 10", "no unit"),
        ("pid:10", "up 1mbit both 2mbit", "cannot hold together"),
        ("pid:10", "cell pcr=1mbit,cdvt=1ms", "not supported yet"),
        ("pid:0", "up 1mbit", "process id"),
        ("container:web", "up 1mbit", "no container web"),
        ("what:ever", "up 1mbit", "not a kind of target"),
        ("pid:99", "up 1mbit", "99"),
        ("app:/no/such", "up 1mbit", "/no/such"),
        ("user:nobody-here", "up 1mbit", "nobody-here"),
    ];
    for (target, change, word) in table {
        let text = failed(desk.set(target, change));
        assert!(text.contains(word), "{target} {change}: {text}");
    }
    let without = desk.set_with(&Peer::ROOT, "pid:10", "up 1mbit", None, |_| {});
    assert!(failed(without).contains("pidfd"));
    desk.machine().spawn(11, 0);
    let other = desk.set_with(&Peer::ROOT, "pid:10", "up 1mbit", Some(11), |_| {});
    assert!(failed(other).contains("pidfd is of process 11"));
    assert!(desk.service.ledger().is_empty());
}

#[test]
fn five_deep_and_no_deeper() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    for pid in 11..=15 {
        desk.machine().fork(pid - 1, pid);
    }
    for pid in 10..15 {
        ok(desk.set(&format!("pid:{pid}"), "up 4mbit"));
    }
    assert!(refused(desk.set("pid:15", "up 1mbit")).contains("at most 5"));
    // Nor from above: a sixth around the five.
    assert!(refused(desk.set("pid:1", "up 9mbit")).contains("at most 5"));
    desk.check();
}

#[test]
fn both_and_one_way_limits_are_not_mixed_in_a_chain() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    desk.machine().fork(10, 11);
    ok(desk.set("pid:11", "both 4mbit"));
    assert!(refused(desk.set("pid:10", "up 9mbit")).contains("only one kind"));
    ok(desk.set("pid:10", "both 9mbit"));
    desk.check();
}

#[test]
fn a_membership_of_nobody_does_no_harm() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    // A remnant of a change that was never completed.
    desk.machine().force.members.insert(10, (77, 78));
    ok(desk.set("pid:10", "up 1mbit"));
    assert_eq!(desk.parent("pid:10"), None);
    let held = desk.held("pid:10").expect("held");
    assert_eq!(held.entry.target, Target::pid(10).expect("a pid"));
    desk.check();
}
