//! Tests of the service's required behaviour: each is one scenario of requests and events.

use netnice_api::Response;
use netnice_core::target::Target;

use super::*;

#[test]
fn a_limit_is_set_shown_changed_and_cleared() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    let done = ok(fixture.set("pid:10", "up 4mbit"));
    assert_eq!(done.effective.as_deref(), Some("up 4mbit"));
    assert_eq!(done.id, Some(1));
    fixture.check();
    ok(fixture.set("pid:10", "down 1mbit"));
    let shown = fixture.show();
    assert_eq!(shown.targets.len(), 1);
    assert_eq!(shown.targets[0].effective.up, Some(4_000_000));
    assert_eq!(shown.targets[0].effective.down, Some(1_000_000));
    assert_eq!(shown.targets[0].contract.set_by["up"], 0);
    ok(fixture.set("pid:10", "up none"));
    fixture.check();
    ok(fixture.clear("pid:10"));
    fixture.check();
    assert!(fixture.show().targets.is_empty());
    assert!(!fixture.machine().is_enforcing());
    assert!(failed(fixture.clear("pid:10")).contains("nothing is set for pid:10"));
}

#[test]
fn clearing_the_last_clause_ends_the_target() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    ok(fixture.set("pid:10", "up 4mbit"));
    let done = ok(fixture.set("pid:10", "up none"));
    assert_eq!(done.effective.as_deref(), Some("none"));
    assert!(fixture.held("pid:10").is_none());
    let done = ok(fixture.set("pid:10", "up none"));
    assert!(done.messages[0].contains("nothing was set"), "{done:?}");
    fixture.check();
}

#[test]
fn a_unit_keeps_its_contract_when_it_is_started_again() {
    let mut fixture = Fixture::new();
    fixture
        .machine()
        .groups
        .insert("/s/web.service".to_owned(), 7);
    ok(fixture.set("unit:web", "up 4mbit"));
    fixture.machine().groups.remove("/s/web.service");
    fixture.advance(1);
    let shown = fixture.show();
    assert!(
        shown.targets[0].degraded[0].contains("not there"),
        "{shown:?}"
    );
    // The old group stays the unit's for packets still being sent, and a new group is the unit's
    // from its creation.
    assert_eq!(fixture.machine().in_force.groups.values().next(), Some(&7));
    let expected: Vec<String> = fixture.machine().expected.keys().cloned().collect();
    assert_eq!(expected, ["/s/web.service", "web.service"]);
    fixture
        .machine()
        .groups
        .insert("/t/web.service".to_owned(), 8);
    fixture.advance(1);
    assert!(fixture.show().targets[0].degraded.is_empty());
    assert_eq!(fixture.machine().in_force.groups.values().next(), Some(&8));
    assert!(failed(fixture.set("unit:none", "up 1mbit")).contains("none"));
    fixture.machine().groups.clear();
    fixture.advance(1);
    ok(fixture.clear("unit:web"));
    assert!(fixture.machine().in_force.groups.is_empty() && fixture.machine().expected.is_empty());
    fixture.check();
}

#[test]
fn users_tighten_each_others_limits_and_lift_their_own() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    let up = |fixture: &mut Fixture| fixture.show().targets[0].effective.up;
    ok(fixture.set("pid:10", "up 4mbit"));
    ok(fixture.set_as(&ANN, "pid:10", "up 2mbit"));
    assert_eq!(up(&mut fixture), Some(2_000_000));
    ok(fixture.clear_as(&ANN, "pid:10"));
    assert_eq!(up(&mut fixture), Some(4_000_000));
    assert!(refused(fixture.clear_as(&ANN, "pid:10")).contains("root"));
    assert!(refused(fixture.set_as(&ANN, "pid:10", "up none")).contains("root"));
    assert!(refused(fixture.set_as(&ANN, "pid:10", "min 1mbit")).contains("netnice"));
    assert!(refused(fixture.set_as(&ANN, "user:1000", "up 1mbit")).contains("root"));
    fixture.machine().spawn(20, 0);
    assert!(refused(fixture.set_as(&ANN, "pid:20", "up 1mbit")).contains("root"));
    // Clearing all clears the user's own claims, and the answer has their number.
    ok(fixture.set_as(&ANN, "pid:10", "up 1mbit"));
    let done = ok(fixture.clear_as(&ANN, "all"));
    assert_eq!(done.messages[0], "1 target cleared");
    assert_eq!(up(&mut fixture), Some(4_000_000));
    fixture.check();
}

#[test]
fn a_claim_can_be_cleared_although_the_rest_does_not_fit() {
    const OPS: Peer = Peer {
        uid: 1002,
        privileged: true,
        groups: Vec::new(),
    };
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    fixture.machine().spawn(20, 0);
    ok(fixture.link("eth0", "100mbit", ""));
    // The latest guarantee holds, so root's larger one takes nothing of the link.
    ok(fixture.set("pid:10", "min 60mbit"));
    ok(fixture.set_as(&OPS, "pid:10", "min 30mbit"));
    ok(fixture.set("pid:20", "min 60mbit"));
    for target in ["pid:10", "all"] {
        let done = ok(fixture.clear_as(&OPS, target));
        let held = fixture.held("pid:10").expect("root's claim is left");
        assert_eq!(held.claims.iter().count(), 1);
        assert!(held.refused.is_some() && !held.entry.contract.is_guaranteed());
        if target == "pid:10" {
            assert!(done.messages[1].contains("is degraded"), "{done:?}");
            ok(fixture.set_as(&OPS, "pid:10", "min 30mbit"));
            let held = fixture.held("pid:10").expect("held");
            assert!(held.refused.is_none());
        }
        fixture.check();
    }
    ok(fixture.clear("pid:20"));
    assert!(fixture.held("pid:10").expect("held").refused.is_none());
    fixture.check();
}

#[test]
fn a_request_that_does_not_fit_is_refused_and_changes_nothing() {
    let mut fixture = Fixture::new();
    for pid in [10, 20, 30] {
        fixture.machine().spawn(pid, 0);
    }
    assert!(refused(fixture.set("pid:10", "min 1mbit")).contains("netnice link"));
    ok(fixture.link("eth0", "100mbit", ""));
    ok(fixture.set("pid:10", "min 60mbit"));
    ok(fixture.set("pid:20", "min 20mbit"));
    let before = fixture.machine().in_force.clone();
    let text = refused(fixture.set("pid:30", "min 30mbit"));
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
    assert_eq!(fixture.machine().in_force, before);
    assert!(fixture.held("pid:30").is_none());
    assert!(refused(fixture.link("eth0", "none", "50mbit")).contains("pid:10"));
    ok(fixture.set("pid:30", "min 20mbit"));
    fixture.check();
}

#[test]
fn a_link_gets_the_speed_of_its_driver_and_a_foreign_qdisc_is_refused() {
    let mut fixture = Fixture::new();
    assert!(failed(fixture.link("eth0", "", "")).contains("reports no speed"));
    let speed = "1gbit".parse().expect("a rate");
    fixture.machine().speeds.insert("eth0".to_owned(), speed);
    let done = ok(fixture.link("eth0", "", ""));
    assert!(done.messages[0].contains("reported by the driver"));
    let up = fixture.show().links[0].up.clone();
    assert_eq!(up.expect("up").source, "driver");
    assert!(failed(fixture.link("nosuch0", "1mbit", "")).contains("nosuch0"));
    fixture.machine().foreign.insert("lo".to_owned());
    assert!(refused(fixture.link("lo", "1gbit", "")).contains("of another program"));
    assert_eq!(fixture.show().links.len(), 1);
    fixture.check();
}

#[test]
fn a_failure_of_any_step_changes_nothing() {
    let mut fixture = Fixture::new();
    fixture.machine().groups.insert("/g".to_owned(), 5);
    fixture.machine().spawn(10, 0);
    fixture.machine().fork(10, 11);
    fixture.machine().fork(10, 12);
    ok(fixture.set("pid:11", "up 4mbit"));
    ok(fixture.set("pid:12", "up 4mbit"));
    type Change = fn(&mut Fixture) -> Response;
    let changes: [Change; 6] = [
        |fixture| fixture.set("pid:10", "up 9mbit"),
        |fixture| fixture.set("cgroup:/g", "up 9mbit"),
        |fixture| fixture.set("pid:11", "up none"),
        |fixture| fixture.clear("pid:12"),
        |fixture| fixture.link("eth0", "100mbit", ""),
        |fixture| fixture.set("user:0", "down 1mbit"),
    ];
    for (n, change) in changes.iter().enumerate() {
        for k in 0.. {
            let before = (
                fixture.machine().in_force.clone(),
                fixture.service.ledger().entries(),
            );
            fixture.machine().fails_in = Some(k);
            let answer = change(&mut fixture);
            if fixture.machine().fails_in.take().is_some() {
                ok(answer);
                break;
            }
            assert!(failed(answer).contains("says no"), "change {n}, step {k}");
            let after = (
                fixture.machine().in_force.clone(),
                fixture.service.ledger().entries(),
            );
            assert_eq!(before, after, "change {n}, step {k}");
            assert!(k < 20, "it must be done some time");
        }
        fixture.check();
    }
}

#[test]
fn an_ended_target_keeps_its_limit_while_packets_drain() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    ok(fixture.set("pid:10", "up 4mbit"));
    let id = fixture.held("pid:10").expect("held").id;
    fixture.machine().exit(10);
    fixture.advance(1);
    assert!(fixture.show().targets.is_empty());
    for packets in 1..10 {
        let counts = fixture.machine().sample.targets.entry(id).or_default();
        counts.directions[0].offered_packets = packets;
        fixture.advance(1);
        assert_eq!(fixture.machine().in_force.desired.targets[0].id, id);
    }
    fixture.advance(2);
    assert!(fixture.machine().is_enforcing());
    fixture.advance(1);
    assert!(!fixture.machine().is_enforcing(), "nothing moves any more");
    fixture.check();
}

#[test]
fn showing_a_process_shows_the_target_that_limits_it() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    fixture.machine().fork(10, 11);
    fixture.machine().spawn(20, 1001);
    ok(fixture.set("pid:10", "up 4mbit"));
    let show = |fixture: &mut Fixture, target: &str| {
        let target = Some(target.to_owned());
        fixture.ask(&ANN, Request::Show(Show { target }), None)
    };
    for target in ["pid:10", "11"] {
        match show(&mut fixture, target) {
            Response::Shown(doc) => assert_eq!(doc.targets[0].target, "pid:10"),
            other => panic!("{other:?}"),
        }
    }
    match show(&mut fixture, "20") {
        Response::Shown(doc) => assert!(doc.targets.is_empty()),
        other => panic!("{other:?}"),
    }
    assert!(failed(show(&mut fixture, "99")).contains("99"));
    assert!(failed(show(&mut fixture, "unit:none")).contains("unit:none"));
    assert!(failed(show(&mut fixture, "rubbish")).contains("rubbish"));
}

#[test]
fn a_dry_run_describes_and_changes_nothing() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    let before = (
        fixture.machine().in_force.clone(),
        fixture.service.ledger().clone(),
    );
    let dry = |set: &mut Set| {
        set.dry_run = true;
        set.confirm_ns = Some(1_000_000_000);
    };
    let done = ok(fixture.set_with(&Peer::ROOT, "pid:10", "up 4mbit", Some(10), dry));
    assert_eq!(done.effective.as_deref(), Some("up 4mbit"));
    assert!(done.plan.is_some_and(|plan| !plan.is_empty()));
    let after = (
        fixture.machine().in_force.clone(),
        fixture.service.ledger().clone(),
    );
    assert_eq!(before, after);
    assert_eq!(fixture.service.next_due(), None);
}

#[test]
fn an_invalid_request_is_refused_and_changes_nothing() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    let table = [
        ("pid:10", "", "no clause is given"),
        ("pid:10", "up 10", "no unit"),
        ("pid:10", "up 1mbit both 2mbit", "cannot hold together"),
        ("pid:10", "cpu 1ms/2s", "longer than 1s"),
        ("pid:10", "cpu 3ms/2ms", "longer than its period"),
        ("pid:0", "up 1mbit", "process id"),
        ("container:web", "up 1mbit", "no container web"),
        ("what:ever", "up 1mbit", "not a kind of target"),
        ("pid:99", "up 1mbit", "99"),
        ("app:/no/such", "up 1mbit", "/no/such"),
        ("user:nobody-here", "up 1mbit", "nobody-here"),
    ];
    for (target, change, word) in table {
        let text = failed(fixture.set(target, change));
        assert!(text.contains(word), "{target} {change}: {text}");
    }
    let without = fixture.set_with(&Peer::ROOT, "pid:10", "up 1mbit", None, |_| {});
    assert!(failed(without).contains("pidfd"));
    fixture.machine().spawn(11, 0);
    let other = fixture.set_with(&Peer::ROOT, "pid:10", "up 1mbit", Some(11), |_| {});
    assert!(failed(other).contains("pidfd is of process 11"));
    assert!(fixture.service.ledger().is_empty());
}

#[test]
fn targets_nest_at_most_five_deep() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    for pid in 11..=15 {
        fixture.machine().fork(pid - 1, pid);
    }
    for pid in 10..15 {
        ok(fixture.set(&format!("pid:{pid}"), "up 4mbit"));
    }
    assert!(refused(fixture.set("pid:15", "up 1mbit")).contains("nested targets is longer than 5"));
    // Nor from above: a sixth around the five.
    assert!(refused(fixture.set("pid:1", "up 9mbit")).contains("nested targets is longer than 5"));
    fixture.check();
}

#[test]
fn both_and_one_way_limits_are_not_mixed_in_a_chain() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    fixture.machine().fork(10, 11);
    ok(fixture.set("pid:11", "both 4mbit"));
    assert!(
        refused(fixture.set("pid:10", "up 9mbit")).contains("both need the same kind of limit")
    );
    ok(fixture.set("pid:10", "both 9mbit"));
    fixture.check();
}

#[test]
fn a_stale_membership_does_no_harm() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    // Left over from a change that was never completed.
    fixture.machine().in_force.members.insert(10, (77, 78));
    ok(fixture.set("pid:10", "up 1mbit"));
    assert_eq!(fixture.parent("pid:10"), None);
    let held = fixture.held("pid:10").expect("held");
    assert_eq!(held.entry.target, Target::pid(10).expect("a pid"));
    fixture.check();
}
