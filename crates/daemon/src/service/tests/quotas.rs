//! Tests of the quotas of a user, and of the refusals beyond them.

use super::*;
use crate::policy::Policy;

const BOB: Peer = Peer {
    uid: 1001,
    privileged: false,
    groups: Vec::new(),
};
const GROUP: Peer = Peer {
    uid: 1000,
    privileged: true,
    groups: Vec::new(),
};

/// A service with these quotas; processes 10 to 99 are Ann's, 110 to 199 Bob's.
fn fixture(quotas: &str) -> Fixture {
    let mut fixture = Fixture::new();
    for pid in 10..100 {
        fixture.machine().spawn(pid, ANN.uid);
        fixture.machine().spawn(pid + 100, BOB.uid);
    }
    let text = format!("[quotas]\n{quotas}\n");
    let policy = Policy::parse(std::path::Path::new("policy.toml"), &text).expect("a policy");
    fixture.service.rules.policy = policy;
    fixture
}

fn for_a_time(set: &mut Set) {
    set.for_ns = Some(60_000_000_000);
}

#[test]
fn the_quota_of_targets_bounds_each_user_alone() {
    let mut fixture = fixture("targets = 3");
    for pid in 10..13 {
        ok(fixture.set_as(&ANN, &format!("pid:{pid}"), "up 4mbit"));
    }
    let refusal = refused(fixture.set_as(&ANN, "pid:13", "up 4mbit"));
    assert!(
        refusal.contains("user 1000 would have 4 targets, more than the quota of 3"),
        "{refusal}"
    );
    assert!(
        refusal.contains("`targets` in [quotas] of policy.toml"),
        "{refusal}"
    );
    refused(fixture.run_named(&ANN, "mine", 14, "up 1mbit"));
    // Existing targets can be changed, and other users are not affected.
    ok(fixture.set_as(&ANN, "pid:10", "up 5mbit"));
    ok(fixture.set_as(&BOB, "pid:110", "up 4mbit"));
    ok(fixture.set_as(&GROUP, "pid:15", "up 4mbit"));
    ok(fixture.set("pid:16", "up 4mbit"));
    // A released place can be used again.
    ok(fixture.clear_as(&ANN, "pid:11"));
    ok(fixture.set_as(&ANN, "pid:13", "up 4mbit"));
    refused(fixture.set_as(&ANN, "pid:14", "up 4mbit"));
    fixture.check();
}

#[test]
fn a_draining_target_counts_for_its_user() {
    let mut fixture = fixture("targets = 1");
    ok(fixture.set_as(&ANN, "pid:10", "up 4mbit"));
    fixture.machine().exit(10);
    fixture.advance(1);
    assert_eq!(fixture.service.ledger().draining().count(), 1);
    refused(fixture.set_as(&ANN, "pid:11", "up 4mbit"));
    fixture.advance(10);
    ok(fixture.set_as(&ANN, "pid:11", "up 4mbit"));
}

#[test]
fn quotas_bound_pending_rollbacks_and_their_time() {
    let mut fixture = fixture("undos = 2\nundo-time = \"1h\"");
    for pid in [10, 11] {
        ok(fixture.set_with(
            &ANN,
            &format!("pid:{pid}"),
            "up 4mbit",
            Some(pid),
            for_a_time,
        ));
    }
    let refusal = refused(fixture.set_with(&ANN, "pid:12", "up 4mbit", Some(12), for_a_time));
    assert!(
        refusal.contains("3 changes that wait to be taken back"),
        "{refusal}"
    );
    assert!(refusal.contains("`undos`"), "{refusal}");
    ok(fixture.set_as(&ANN, "pid:12", "up 4mbit"));
    // A change that replaces another does not count as one more.
    ok(fixture.set_with(&ANN, "pid:10", "up 3mbit", Some(10), for_a_time));
    let long = |set: &mut Set| set.confirm_ns = Some(2 * 3_600_000_000_000);
    let refusal = refused(fixture.set_with(&ANN, "pid:13", "up 4mbit", Some(13), long));
    assert!(
        refusal.contains("2h between a change and its undoing"),
        "{refusal}"
    );
    ok(fixture.set_with(&Peer::ROOT, "pid:13", "up 4mbit", Some(13), long));
}

#[test]
fn the_quota_of_state_bytes_bounds_a_user() {
    let mut fixture = fixture("state-bytes = \"4KiB\"");
    let mut refusal = None;
    for pid in 10..60 {
        match fixture.run_named(&ANN, &format!("a{pid}"), pid, "up 4mbit") {
            Response::Done(_) => {}
            other => {
                refusal = Some(refused(other));
                break;
            }
        }
    }
    let refusal = refusal.expect("no end of it");
    assert!(
        refusal.contains("bytes of state, more than the quota of 4KiB"),
        "{refusal}"
    );
}

#[test]
fn a_lowered_quota_keeps_targets_and_refuses_new_ones() {
    let mut fixture = fixture("");
    for pid in 10..15 {
        ok(fixture.set_as(&ANN, &format!("pid:{pid}"), "up 4mbit"));
    }
    fixture
        .service
        .rules
        .policy
        .quotas
        .set(crate::quotas::Quota::Targets, 2)
        .expect("a limit");
    ok(fixture.set_as(&ANN, "pid:10", "up 5mbit"));
    ok(fixture.clear_as(&ANN, "pid:11"));
    refused(fixture.set_as(&ANN, "pid:20", "up 5mbit"));
}

#[test]
fn refusals_of_a_user_do_not_push_out_the_lines_of_root() {
    let mut fixture = fixture("");
    ok(fixture.set("pid:1", "up 4mbit"));
    for _ in 0..2_500 {
        refused(fixture.set_as(&ANN, "user:1001", "up 4mbit"));
    }
    let lines = fixture
        .service
        .reconciler
        .journal
        .read(fixture.now, None, None);
    assert!(lines[0].text.contains("root set pid:1"), "{:?}", lines[0]);
    let last = &lines[lines.len() - 1].text;
    assert!(
        last.starts_with("2260 more refusals of user 1000"),
        "{last}"
    );
    let used = fixture.service.used();
    assert_eq!(used[&1000][&crate::quotas::Quota::LogLines], 2_500);
}

#[test]
fn each_user_sees_its_own_use_and_root_sees_all() {
    let mut fixture = fixture("targets = 7");
    ok(fixture.set_as(&ANN, "pid:10", "up 4mbit"));
    ok(fixture.set_with(&BOB, "pid:110", "up 4mbit", Some(110), for_a_time));
    let users_doc = |fixture: &Fixture, peer: &Peer| {
        let (quotas, used) = (fixture.service.quotas(), fixture.service.used());
        crate::service::users::users_doc(quotas, &used, &Default::default(), peer)
    };
    let all = users_doc(&fixture, &Peer::ROOT);
    assert_eq!(all.users.len(), 2);
    assert_eq!(all.users[0].used["targets"], 1);
    assert_eq!(all.users[1].used["undos"], 1);
    assert!(all.users[1].used["state-bytes"] > 100);
    let targets = all.quotas.iter().find(|quota| quota.quota == "targets");
    assert_eq!(targets.expect("it").limit, 7);
    let of_ann = users_doc(&fixture, &ANN);
    assert_eq!(of_ann.users.len(), 1);
    assert_eq!(of_ann.users[0].uid, ANN.uid);
}

#[test]
fn programs_stay_loaded_after_a_users_last_clear_and_not_after_roots() {
    let mut fixture = fixture("targets = 1");
    for _ in 0..3 {
        ok(fixture.set_as(&ANN, "pid:10", "up 4mbit"));
        ok(fixture.clear_as(&ANN, "pid:10"));
        assert!(fixture.held("pid:10").is_none() && fixture.machine().is_enforcing());
        assert_eq!(fixture.service.ledger().draining().count(), 1);
    }
    fixture.advance(5);
    assert!(!fixture.machine().is_enforcing());
    ok(fixture.set_as(&ANN, "pid:10", "up 4mbit"));
    ok(fixture.clear("pid:10"));
    assert!(!fixture.machine().is_enforcing());
    ok(fixture.set_as(&ANN, "pid:10", "up 4mbit"));
    ok(fixture.clear_as(&ANN, "all"));
    assert!(fixture.machine().is_enforcing());
    ok(fixture.clear("all"));
    assert!(!fixture.machine().is_enforcing());
}
