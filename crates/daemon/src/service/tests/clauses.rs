//! Tests of clauses that users without privilege may name: code points and `yield`.

use super::*;

/// The code point in the desired kernel state of a target.
fn marked(fixture: &Fixture, target: &str) -> Option<String> {
    let held = fixture.held(target).expect(target);
    let desired = &fixture.service.reconciler.host.in_force.desired;
    let mut targets = desired.targets.iter();
    let found = targets.find(|desired| desired.id == held.id).expect(target);
    found.dscp.map(|dscp| dscp.to_string())
}

#[test]
fn the_code_point_of_root_holds_for_what_users_nest_inside() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    fixture.machine().spawn(11, 1000);
    ok(fixture.set_as(&ANN, "pid:10", "dscp CS0"));
    ok(fixture.set_as(&ANN, "pid:11", "up 1mbit"));
    assert_eq!(marked(&fixture, "pid:10").as_deref(), Some("CS0"));
    assert_eq!(marked(&fixture, "pid:11"), None);
    // Root's code point of the user holds for both processes, whatever the user asks.
    ok(fixture.set("user:1000", "dscp CS1"));
    for target in ["pid:10", "pid:11", "user:1000"] {
        assert_eq!(marked(&fixture, target).as_deref(), Some("CS1"), "{target}");
    }
    ok(fixture.set_as(&ANN, "pid:11", "dscp LE"));
    assert_eq!(marked(&fixture, "pid:11").as_deref(), Some("CS1"));
    let shown = fixture.show();
    let inner = shown
        .targets
        .iter()
        .find(|target| target.target == "pid:11");
    let inner = inner.expect("shown");
    assert_eq!(
        (inner.contract.dscp, inner.effective.dscp),
        (Some(1), Some(8))
    );
    // The innermost of root's own code points decides.
    ok(fixture.set("pid:10", "dscp EF"));
    assert_eq!(marked(&fixture, "pid:10").as_deref(), Some("EF"));
    ok(fixture.clear("user:1000"));
    assert_eq!(marked(&fixture, "pid:11").as_deref(), Some("LE"));
    ok(fixture.clear("pid:11"));
    fixture.check();
}

#[test]
fn a_user_sets_no_code_point_that_the_policy_does_not_allow() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    let before = fixture.show();
    let text = refused(fixture.set_as(&ANN, "pid:10", "up 1mbit dscp EF"));
    assert!(
        text.contains("dscp EF is for root") && text.contains("CS0, LE, CS1"),
        "{text}"
    );
    assert_eq!(fixture.show(), before, "nothing has changed");
    fixture.check();
}

#[test]
fn a_target_yields_on_every_link_and_a_lost_link_is_reported() {
    let mut fixture = Fixture::new();
    fixture.machine().interfaces.insert("eth1".to_owned(), true);
    fixture.machine().spawn(10, 1000);
    let text = refused(fixture.set_as(&ANN, "pid:10", "up 1mbit yield on"));
    assert!(text.contains("yield needs a managed link"), "{text}");
    assert!(fixture.held("pid:10").is_none());
    ok(fixture.link("eth0", "10mbit", ""));
    ok(fixture.link("eth1", "10mbit", ""));
    ok(fixture.set_as(&ANN, "pid:10", "yield on"));
    let yields = |fixture: &Fixture| {
        let desired = &fixture.service.reconciler.host.in_force.desired;
        desired.targets.iter().any(|target| target.yields)
    };
    assert!(yields(&fixture));
    // Root's part in a link comes first, and the user's claim counts again afterwards.
    ok(fixture.set("pid:10", "weight 300 on eth0"));
    assert!(!yields(&fixture));
    ok(fixture.set("pid:10", "weight none on none"));
    assert!(yields(&fixture));
    assert!(refused(fixture.set_as(&ANN, "pid:10", "weight 7")).contains("weight is for root"));
    for link in ["eth0", "eth1"] {
        let unmanage = LinkChange {
            iface: link.to_owned(),
            unmanage: true,
            ..LinkChange::default()
        };
        ok(fixture.ask(&Peer::ROOT, Request::Link(Box::new(unmanage)), None));
    }
    let degraded = fixture.show().targets[0].degraded.join(" ");
    assert!(degraded.contains("no link is managed"), "{degraded}");
    ok(fixture.link("eth0", "10mbit", ""));
    assert!(fixture.show().targets[0].degraded.is_empty());
    fixture.check();
}
