//! Tests of budgets: minimums that a user divides among own programs.

mod requests;

use netnice_core::units::Amount;

use super::*;
use crate::reconcile::SavedState;
use crate::state::State;

const BOB: Peer = Peer {
    uid: 1001,
    privileged: false,
    groups: Vec::new(),
};

/// A link of 20 Mbit/s; processes 10 to 13 of ann, and 20 to 23 of bob.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    for pid in 10..14 {
        fixture.machine().spawn(pid, ANN.uid);
        fixture.machine().spawn(pid + 10, BOB.uid);
    }
    ok(fixture.link("eth0", "20mbit", "20mbit"));
    fixture
}

fn with_budget() -> Fixture {
    let mut fixture = fixture();
    ok(fixture.set("user:1000", "min 10mbit up 20mbit delegate 1000"));
    fixture
}

fn contract(fixture: &Fixture, target: &str) -> String {
    let held = fixture.held(target).expect(target);
    held.entry.contract.to_string()
}

fn aside(fixture: &Fixture, target: &str) -> String {
    fixture
        .held(target)
        .expect(target)
        .aside
        .unwrap_or_default()
}

#[test]
fn a_user_divides_a_budget_and_nothing_more() {
    let mut fixture = with_budget();
    ok(fixture.set_as(&ANN, "pid:10", "min 6mbit"));
    ok(fixture.set_as(&ANN, "pid:11", "min 4mbit weight 300 priority 1"));
    assert_eq!(contract(&fixture, "pid:10"), "min 6mbit on eth0");
    assert_eq!(
        contract(&fixture, "pid:11"),
        "min 4mbit on eth0 weight 300 priority 1"
    );
    let before = fixture.service.ledger().clone();
    let text = refused(fixture.set_as(&ANN, "pid:12", "min 1mbit"));
    assert!(text.contains("user:1000"), "names the budget: {text}");
    assert!(text.contains("pid:10") && text.contains("pid:11"), "{text}");
    let text = refused(fixture.set_as(&ANN, "pid:11", "min 5mbit"));
    assert!(text.contains("4 Mbit/s"), "the largest that fits: {text}");
    let mut after = fixture.service.ledger().clone();
    after.skip_ids(before.next_id());
    let held = |ledger: &crate::ledger::Ledger| ledger.held().cloned().collect::<Vec<_>>();
    assert_eq!(held(&before), held(&after), "nothing has changed");
    let link = before.link("eth0").expect("managed").link.clone();
    let ten = Amount(10_000_000);
    assert_eq!(before.promised(&link)[0], ten, "the budget alone counts");
    fixture.check();
}

#[test]
fn who_has_no_budget_is_refused() {
    let mut fixture = with_budget();
    let text = refused(fixture.set_as(&BOB, "pid:20", "min 1mbit"));
    assert!(text.starts_with("min is for root and the group"), "{text}");
    refused(fixture.set_as(&BOB, "pid:20", "weight 1000"));
    refused(fixture.set_as(&BOB, "pid:20", "priority 0"));
    refused(fixture.set_as(&BOB, "pid:10", "min 1mbit"));
    refused(fixture.set_as(&ANN, "pid:20", "min 1mbit"));
    refused(fixture.set_as(&ANN, "user:1000", "min 15mbit"));
    refused(fixture.set_as(&ANN, "user:1000", "min 1mbit"));
    refused(fixture.set_as(&ANN, "pid:10", "slice 1ms/10ms"));
    refused(fixture.set_as(&ANN, "pid:10", "min 1mbit delegate 1001"));
    assert!(fixture.held("pid:10").is_none() && fixture.held("pid:20").is_none());
}

#[test]
fn only_minimums_that_were_given_can_be_divided() {
    let mut fixture = with_budget();
    let text = refused(fixture.set_as(&ANN, "pid:10", "min-down 1mbit"));
    assert!(text.contains("has no min-down to divide"), "{text}");
    fixture.machine().interfaces.insert("eth1".to_owned(), true);
    ok(fixture.link("eth1", "100mbit", ""));
    let text = refused(fixture.set_as(&ANN, "pid:10", "min 1mbit on eth1"));
    assert!(text.contains("is on eth0"), "{text}");
    ok(fixture.set_as(&ANN, "pid:10", "weight 9"));
    assert_eq!(contract(&fixture, "pid:10"), "on eth0 weight 9");
    // Root's minimum of a program is not the user's to divide.
    ok(fixture.set("pid:11", "min 5mbit on eth0"));
    fixture.machine().fork(11, 15);
    let text = refused(fixture.set_as(&ANN, "pid:15", "min 1mbit"));
    assert!(text.contains("pid:11 around it is not"), "{text}");
    ok(fixture.set_as(&ANN, "pid:12", "min 5mbit"));
    refused(fixture.set_as(&ANN, "pid:13", "min 1mbit"));
}

#[test]
fn a_budget_is_not_given_to_who_cannot_use_it() {
    let mut fixture = fixture();
    let text = failed(fixture.set("user:1000", "min 1mbit delegate 1001"));
    assert!(text.contains("has nothing to divide"), "{text}");
    let text = failed(fixture.set("user:1000", "up 1mbit delegate 1000"));
    assert!(text.contains("delegate needs a minimum"), "{text}");
    let text = refused(fixture.set("user:1000", "min 30mbit delegate 1000"));
    assert!(text.contains("eth0"), "{text}");
    refused(fixture.set_as(&ANN, "user:1000", "min 1mbit delegate 1000"));
    assert!(fixture.held("user:1000").is_none(), "nothing has changed");
}

#[test]
fn promises_inside_are_degraded_youngest_first_and_come_back() {
    let mut fixture = with_budget();
    ok(fixture.set_as(&ANN, "pid:10", "min 5mbit up 7mbit"));
    ok(fixture.set_as(&ANN, "pid:11", "min 3mbit"));
    ok(fixture.set_as(&ANN, "pid:12", "min 2mbit weight 5 up 9mbit"));
    let whole = fixture.service.ledger().clone();
    let done = ok(fixture.set("user:1000", "min 6mbit"));
    assert_eq!(contract(&fixture, "pid:10"), "up 7mbit min 5mbit on eth0");
    assert_eq!(
        contract(&fixture, "pid:11"),
        "on eth0",
        "3 Mbit/s do not fit"
    );
    assert_eq!(contract(&fixture, "pid:12"), "up 9mbit on eth0 weight 5");
    assert!(aside(&fixture, "pid:11").contains("is not in force"));
    let told = done.messages.join("\n");
    assert!(told.contains("pid:11") && told.contains("pid:12"), "{told}");
    fixture.check();
    let done = ok(fixture.set("user:1000", "min 10mbit"));
    assert!(done.messages.join("\n").contains("again"), "{done:?}");
    for pid in [10, 11, 12] {
        let target = format!("pid:{pid}").parse().expect("a target");
        let then = whole.find(&target).map(|held| &held.entry);
        let now = fixture.service.ledger().find(&target);
        assert_eq!(then, now.map(|held| &held.entry));
    }
    ok(fixture.set("user:1000", "delegate none"));
    assert_eq!(contract(&fixture, "pid:12"), "up 9mbit", "limits stay");
    assert!(aside(&fixture, "pid:10").contains("in no budget"));
    ok(fixture.set("user:1000", "delegate 1000"));
    assert_eq!(contract(&fixture, "pid:10"), "up 7mbit min 5mbit on eth0");
    ok(fixture.clear("user:1000"));
    assert_eq!(contract(&fixture, "pid:10"), "up 7mbit");
    let link = fixture
        .service
        .ledger()
        .link("eth0")
        .expect("a link")
        .link
        .clone();
    assert_eq!(fixture.service.ledger().promised(&link)[0], Amount(0));
    fixture.check();
    ok(fixture.set("user:1000", "min 5mbit delegate 1000"));
    assert_eq!(contract(&fixture, "pid:10"), "up 7mbit min 5mbit on eth0");
    assert_eq!(contract(&fixture, "pid:12"), "up 9mbit on eth0 weight 5");
}

#[test]
fn a_slow_link_degrades_the_budget_and_what_is_inside() {
    let mut fixture = with_budget();
    ok(fixture.set("pid:20", "min 8mbit"));
    ok(fixture.set_as(&ANN, "pid:10", "min 6mbit"));
    ok(fixture.link("eth0", "9mbit", "20mbit"));
    assert_eq!(contract(&fixture, "pid:20"), "min 8mbit on eth0");
    assert_eq!(contract(&fixture, "user:1000"), "up 20mbit on eth0");
    assert_eq!(
        contract(&fixture, "pid:10"),
        "none",
        "not from the link itself"
    );
    refused(fixture.set_as(&ANN, "pid:11", "min 1mbit"));
    ok(fixture.link("eth0", "20mbit", "20mbit"));
    assert_eq!(contract(&fixture, "pid:10"), "min 6mbit on eth0");
    fixture.check();
}

#[test]
fn privileged_claims_come_first_inside_a_budget() {
    let mut fixture = with_budget();
    ok(fixture.set_as(&ANN, "pid:10", "min 6mbit"));
    ok(fixture.set_as(&ANN, "pid:11", "min 4mbit"));
    ok(fixture.set("pid:12", "min 5mbit"));
    assert_eq!(contract(&fixture, "pid:12"), "min 5mbit on eth0");
    assert_eq!(contract(&fixture, "pid:10"), "on eth0", "6 + 5 > 10");
    assert_eq!(contract(&fixture, "pid:11"), "min 4mbit on eth0");
    ok(fixture.set("pid:10", "min 1mbit"));
    assert_eq!(contract(&fixture, "pid:10"), "min 1mbit on eth0");
    ok(fixture.clear("pid:12"));
    ok(fixture.set("pid:10", "min none"));
}

#[test]
fn nested_budgets_of_two_users_are_kept_apart() {
    let mut fixture = fixture();
    for (path, id) in [("/a", 2), ("/a/b", 3)] {
        fixture.machine().groups.insert(path.to_owned(), id);
    }
    for (pid, path) in [(10, "/a"), (20, "/a"), (21, "/a/b"), (11, "/a/b")] {
        let process = fixture.machine().processes.get_mut(&pid).expect("it runs");
        process.cgroup = path.to_owned();
    }
    ok(fixture.set("user:1000", "min 5mbit delegate 1000"));
    ok(fixture.set("cgroup:/a", "min 10mbit delegate 1000"));
    ok(fixture.set("cgroup:/a/b", "min 4mbit delegate 1001"));
    ok(fixture.set_as(&BOB, "pid:21", "min 4mbit"));
    refused(fixture.set_as(&BOB, "pid:20", "min 1mbit"));
    refused(fixture.set_as(&BOB, "pid:11", "min 1mbit"));
    let text = refused(fixture.set_as(&ANN, "pid:11", "min 1mbit"));
    assert!(text.contains("cgroup:/a/b around it is not"), "{text}");
    ok(fixture.set_as(&ANN, "pid:10", "min 6mbit"));
    refused(fixture.set_as(&ANN, "pid:10", "min 7mbit"));
    ok(fixture.set_as(&ANN, "pid:12", "min 5mbit"));
    refused(fixture.set_as(&ANN, "cgroup:/a", "min 1mbit"));
    fixture.check();
}

#[test]
fn a_restart_keeps_what_is_promised_inside() {
    let mut fixture = with_budget();
    ok(fixture.set_as(&ANN, "pid:10", "min 5mbit up 7mbit"));
    ok(fixture.set_as(&ANN, "pid:11", "min 3mbit weight 7"));
    ok(fixture.set("user:1000", "min 6mbit"));
    let state = State {
        ledger: fixture.service.ledger().clone(),
        rollbacks: Default::default(),
    };
    let held = |fixture: &Fixture| -> Vec<_> {
        let held = fixture.service.ledger().held();
        held.map(|h| (h.id, h.entry.clone())).collect()
    };
    let before = held(&fixture);
    let mut service = Service::new(fixture.machine().clone(), None);
    service.start(SavedState::Complete(Box::new(state)), fixture.now);
    fixture.service = service;
    assert_eq!(before, held(&fixture));
    fixture.check();
}

#[test]
fn a_share_for_a_time_ends_and_one_that_does_not_fit_any_more_stays_away() {
    let mut fixture = with_budget();
    ok(fixture.set_as(&ANN, "pid:10", "min 6mbit"));
    let for_ns = Some(Nanos::from_secs(5).0);
    let pid = Some(10);
    ok(fixture.set_with(&ANN, "pid:10", "min 2mbit", pid, |set| set.for_ns = for_ns));
    ok(fixture.set_as(&ANN, "pid:11", "min 7mbit"));
    fixture.advance(6);
    fixture.service.expire(fixture.now);
    assert_eq!(contract(&fixture, "pid:11"), "min 7mbit on eth0");
    assert_eq!(
        contract(&fixture, "pid:10"),
        "min 2mbit on eth0",
        "6 do not fit"
    );
    ok(fixture.set_as(&ANN, "pid:11", "min none"));
    assert!(fixture.held("pid:11").is_none());
    fixture.check();
}

#[test]
fn a_process_that_root_lets_join_takes_a_name_out_of_the_budget() {
    let mut fixture = with_budget();
    ok(fixture.run_named(&ANN, "mine", 10, "min 4mbit up 8mbit"));
    assert_eq!(
        contract(&fixture, "name:mine"),
        "up 8mbit min 4mbit on eth0"
    );
    let text = refused(fixture.run_named(&BOB, "mine", 20, ""));
    assert!(text.contains("processes of"), "{text}");
    ok(fixture.run_named(&Peer::ROOT, "mine", 20, ""));
    assert_eq!(contract(&fixture, "name:mine"), "up 8mbit");
    assert!(aside(&fixture, "name:mine").contains("in no budget"));
    fixture.check();
}

#[test]
fn a_dry_run_names_the_targets_that_a_smaller_budget_affects() {
    let mut fixture = with_budget();
    ok(fixture.set_as(&ANN, "pid:10", "min 6mbit"));
    let before = fixture.service.ledger().clone();
    let done = ok(
        fixture.set_with(&Peer::ROOT, "user:1000", "min 5mbit", None, |set| {
            set.dry_run = true;
        }),
    );
    let plan = done.plan.expect("a plan").join("\n");
    assert!(plan.contains("pid:10"), "{plan}");
    assert_eq!(*fixture.service.ledger(), before);
}
