//! Tests of nested targets: processes, names, executables, control groups and users.

use super::*;
use crate::ledger::Body;

#[test]
fn nesting_follows_processes_groups_and_users() {
    let mut fixture = Fixture::new();
    let machine = fixture.machine();
    for path in ["/a.slice", "/a.slice/b.service", "/a.slice/b.service/c"] {
        let id = machine.groups.len() as u64 + 1;
        machine.groups.insert(path.to_owned(), id);
    }
    machine.spawn(10, 1000);
    machine.fork(10, 11);
    machine.fork(11, 12);
    for pid in [10, 11, 12] {
        let living = machine.processes.get_mut(&pid).expect("it lives");
        living.cgroup = "/a.slice/b.service/c".to_owned();
    }
    ok(fixture.set("pid:11", "up 4mbit"));
    assert_eq!(fixture.parent("pid:11"), None);
    ok(fixture.set("user:1000", "up 90mbit"));
    assert_eq!(fixture.parent("pid:11").as_deref(), Some("user:1000"));
    ok(fixture.set("cgroup:/a.slice", "up 80mbit"));
    assert_eq!(fixture.parent("pid:11").as_deref(), Some("cgroup:/a.slice"));
    assert_eq!(fixture.parent("cgroup:/a.slice"), None, "they cross");
    ok(fixture.set("unit:b", "up 70mbit"));
    assert_eq!(fixture.parent("pid:11").as_deref(), Some("unit:b.service"));
    let around = fixture.parent("unit:b.service");
    assert_eq!(around.as_deref(), Some("cgroup:/a.slice"));
    ok(fixture.set("pid:10", "up 60mbit"));
    assert_eq!(fixture.parent("pid:11").as_deref(), Some("pid:10"));
    assert_eq!(fixture.parent("pid:10").as_deref(), Some("unit:b.service"));
    ok(fixture.set("pid:12", "up 50mbit"));
    assert_eq!(fixture.parent("pid:12").as_deref(), Some("pid:11"));
    fixture.check();
    let shown = fixture.show();
    let inner = shown.targets.iter().find(|t| t.target == "pid:12");
    assert_eq!(inner.expect("shown").effective.up, Some(4_000_000));
    // In reverse: the target around it takes over what was inside.
    for (cleared, around) in [
        ("pid:11", "pid:10"),
        ("pid:10", "unit:b.service"),
        ("unit:b", "cgroup:/a.slice"),
        ("cgroup:/a.slice", "user:1000"),
    ] {
        ok(fixture.clear(cleared));
        assert_eq!(fixture.parent("pid:12").as_deref(), Some(around));
    }
    fixture.check();
}

#[test]
fn an_executable_contains_its_processes_and_their_children() {
    let mut fixture = Fixture::new();
    let rsync = AppKey { inode: 5, dev: 1 };
    let machine = fixture.machine();
    machine.apps.insert("/bin/rsync".to_owned(), rsync);
    machine.spawn(10, 0);
    machine.processes.get_mut(&10).expect("it lives").runs = Some(rsync);
    machine.fork(10, 11);
    machine.processes.get_mut(&11).expect("it lives").runs = None;
    ok(fixture.set("pid:11", "up 4mbit"));
    ok(fixture.set("app:/bin/rsync", "up 9mbit"));
    assert_eq!(fixture.parent("pid:11").as_deref(), Some("app:/bin/rsync"));
    // An upgrade puts another file at its path.
    let newer = AppKey { inode: 6, dev: 1 };
    fixture
        .machine()
        .apps
        .insert("/bin/rsync".to_owned(), newer);
    fixture.advance(1);
    assert_eq!(
        fixture.held("app:/bin/rsync").expect("held").body,
        Body::App(Some(newer))
    );
    fixture.machine().apps.clear();
    fixture.advance(1);
    let app = fixture.show().targets.remove(0);
    assert!(app.degraded[0].contains("not there"), "{app:?}");
    ok(fixture.clear("app:/bin/rsync"));
    assert_eq!(fixture.parent("pid:11"), None);
    fixture.check();
}

#[test]
fn a_limit_on_pid_1_contains_existing_targets() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    fixture.machine().fork(10, 11);
    ok(fixture.set("pid:11", "up 4mbit"));
    ok(fixture.set("pid:1", "up 10mbit"));
    assert_eq!(fixture.parent("pid:11").as_deref(), Some("pid:1"));
    assert_eq!(fixture.own(11).as_deref(), Some("pid:11"));
    assert_eq!(fixture.own(10).as_deref(), Some("pid:1"));
    fixture.machine().fork(11, 12);
    assert_eq!(fixture.own(12).as_deref(), Some("pid:11"));
    // The named process ends, its child stays; the target lives on in the child.
    fixture.machine().exit(11);
    fixture.advance(1);
    assert_eq!(fixture.parent("pid:11").as_deref(), Some("pid:1"));
    fixture.machine().exit(12);
    fixture.advance(1);
    assert!(fixture.held("pid:11").is_none());
    fixture.check();
}

#[test]
fn clearing_all_takes_one_pass_over_the_members() {
    let mut fixture = Fixture::new();
    for pid in 100..120 {
        fixture.machine().spawn(pid, 1000);
        fixture.machine().fork(pid, pid + 100);
    }
    ok(fixture.set("pid:1", "up 10mbit"));
    for pid in 100..120 {
        ok(fixture.set_as(&ANN, &format!("pid:{pid}"), "up 4mbit"));
        ok(fixture.set_as(&ANN, &format!("pid:{}", pid + 100), "up 1mbit"));
    }
    assert_eq!(fixture.own(200), Some("pid:200".into()));
    fixture.machine().fails_in = Some(100);
    ok(fixture.clear_as(&ANN, "all"));
    let left = fixture.machine().fails_in.take();
    assert_eq!(left, Some(98), "one act, and one application");
    for pid in [100, 119, 200, 219] {
        assert_eq!(
            fixture.own(pid),
            Some("pid:1".into()),
            "{pid} falls to the host"
        );
    }
    fixture.check();
    ok(fixture.clear("all"));
    assert_eq!(
        fixture.machine().members().expect("members"),
        Default::default()
    );
}

#[test]
fn targets_inside_a_joining_process_are_inside_the_name() {
    let mut fixture = Fixture::new();
    for pid in [10, 20] {
        fixture.machine().spawn(pid, 0);
    }
    fixture.machine().fork(10, 11);
    ok(fixture.set("pid:11", "up 1mbit"));
    ok(fixture.run_named(&Peer::ROOT, "n", 20, "up 9mbit"));
    ok(fixture.run_named(&Peer::ROOT, "n", 10, ""));
    assert_eq!(fixture.own(10).as_deref(), Some("name:n"));
    assert_eq!(fixture.parent("pid:11").as_deref(), Some("name:n"));
    fixture.check();
    // Its own limit is lifted: the name's limit still applies.
    ok(fixture.clear("pid:11"));
    assert_eq!(fixture.own(11).as_deref(), Some("name:n"));
    fixture.check();
}

#[test]
fn only_excludes_living_children() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    fixture.machine().fork(10, 11);
    let only = |set: &mut Set| set.only = true;
    ok(fixture.set_with(&Peer::ROOT, "pid:10", "up 1mbit", Some(10), only));
    assert_eq!(fixture.own(11), None);
    fixture.machine().fork(10, 12);
    assert_eq!(fixture.own(12).as_deref(), Some("pid:10"));
    // Set again without `only`, they are included.
    ok(fixture.set("pid:10", "up 2mbit"));
    assert_eq!(fixture.own(11).as_deref(), Some("pid:10"));
}

#[test]
fn a_reused_pid_is_another_target() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    fixture.machine().fork(10, 11);
    ok(fixture.set("pid:10", "up 1mbit"));
    fixture.machine().exit(10);
    fixture.machine().spawn(10, 0);
    ok(fixture.set("pid:10", "up 2mbit"));
    let held: Vec<HeldTarget> = fixture.service.ledger().held().cloned().collect();
    assert_eq!(held.len(), 2);
    assert_eq!(fixture.machine().own(11), held[0].id);
    assert_eq!(fixture.machine().own(10), held[1].id);
    fixture.check();
}

#[test]
fn a_process_that_ends_during_its_request_leaves_nothing() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    // It is alive at the look-up, and no longer at the end.
    let alive = std::cell::Cell::new(true);
    let named = NamedProcess {
        pid: 10,
        lives: Box::new(move || alive.replace(false)),
    };
    let set = Set {
        target: "pid:10".to_owned(),
        change: Some("up 1mbit".to_owned()),
        ..Set::default()
    };
    let before = fixture.machine().in_force.clone();
    let request = Request::Set(set);
    let answer = fixture
        .service
        .handle(&Peer::ROOT, &request, Some(named), fixture.now);
    assert!(failed(answer).contains("ended meanwhile"));
    assert_eq!(fixture.machine().in_force, before);
    assert!(fixture.service.ledger().is_empty());
    assert!(
        fixture.service.ledger().next_id() > 1,
        "its number is not given again"
    );
}

#[test]
fn an_own_limit_does_not_escape_the_outer_one() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    fixture.machine().fork(10, 11);
    ok(fixture.set("pid:10", "up 1mbit"));
    fixture.machine().exit(10);
    ok(fixture.set_as(&ANN, "pid:11", "up 9mbit"));
    fixture.advance(5);
    assert_eq!(fixture.parent("pid:11").as_deref(), Some("pid:10"));
    ok(fixture.clear_as(&ANN, "pid:11"));
    fixture.advance(5);
    assert_eq!(fixture.own(11).as_deref(), Some("pid:10"));
    fixture.machine().exit(11);
    fixture.advance(5);
    assert!(fixture.service.ledger().held().next().is_none());
}

#[test]
fn a_name_ends_with_its_last_process() {
    let mut fixture = Fixture::new();
    for pid in [10, 20] {
        fixture.machine().spawn(pid, 1000);
    }
    assert!(
        failed(fixture.run_named(&ANN, "build", 10, "")).contains("the first needs a contract")
    );
    assert!(failed(fixture.set_as(&ANN, "name:build", "up 1mbit")).contains("no process runs"));
    ok(fixture.run_named(&ANN, "build", 10, "up 4mbit"));
    ok(fixture.run_named(&ANN, "build", 20, ""));
    assert_eq!(fixture.own(20).as_deref(), Some("name:build"));
    ok(fixture.set_as(&ANN, "name:build", "up 2mbit"));
    // Processes of other users stay out.
    fixture.machine().spawn(30, 1001);
    let bob = Peer {
        uid: 1001,
        privileged: false,
        groups: Vec::new(),
    };
    assert!(refused(fixture.run_named(&bob, "build", 30, "")).contains("user 1000"));
    assert!(refused(fixture.set_as(&bob, "name:build", "up 1mbit")).contains("user 1000"));
    fixture.machine().exit(10);
    fixture.advance(1);
    assert!(fixture.held("name:build").is_some());
    fixture.machine().exit(20);
    fixture.advance(1);
    assert!(fixture.held("name:build").is_none());
    fixture.check();
}

#[test]
fn a_name_is_inside_the_target_that_contains_all_its_processes() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    fixture.machine().fork(10, 11);
    fixture.machine().fork(10, 12);
    fixture.machine().spawn(20, 0);
    ok(fixture.set("pid:10", "up 10mbit"));
    for (pid, change, around) in [
        (11, "up 5mbit", Some("pid:10")),
        (12, "", Some("pid:10")),
        (20, "", None),
    ] {
        ok(fixture.run_named(&Peer::ROOT, "n", pid, change));
        assert_eq!(fixture.parent("name:n").as_deref(), around, "after {pid}");
    }
    fixture.check();
}

#[test]
fn a_user_cannot_leave_roots_limit_by_joining_a_name() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    fixture.machine().fork(10, 11);
    fixture.machine().spawn(20, 1000);
    ok(fixture.set("pid:10", "up 1mbit"));
    // A name outside of the limit does not take in a process that is inside.
    ok(fixture.run_named(&ANN, "out", 20, "up 90mbit"));
    let before = fixture.machine().in_force.clone();
    let text = refused(fixture.run_named(&ANN, "out", 11, ""));
    assert!(
        text.contains("process 11 cannot join name:out: pid:10"),
        "{text}"
    );
    assert_eq!(fixture.machine().in_force, before);
    // A name inside of the limit does not take in a process that is outside.
    ok(fixture.run_named(&ANN, "in", 11, "up 90mbit"));
    assert_eq!(fixture.parent("name:in").as_deref(), Some("pid:10"));
    let text = refused(fixture.run_named(&ANN, "in", 20, ""));
    assert!(
        text.contains("process 20 cannot join name:in: pid:10"),
        "{text}"
    );
    assert_eq!(fixture.own(20).as_deref(), Some("name:out"));
    // Inside of the limit a name takes in what it likes.
    ok(fixture.run_named(&ANN, "in", 10, ""));
    assert_eq!(fixture.parent("name:in").as_deref(), Some("pid:10"));
    fixture.check();
}

#[test]
fn a_name_that_comes_back_leaves_out_what_root_has_limited_meanwhile() {
    let mut fixture = Fixture::new();
    for pid in [10, 20] {
        fixture.machine().spawn(pid, 1000);
    }
    ok(fixture.run_named(&ANN, "n", 10, "up 90mbit"));
    ok(fixture.run_named(&ANN, "n", 20, ""));
    let clear = Clear {
        what: ClearWhat::Target("name:n".to_owned()),
        dry_run: false,
        confirm_ns: None,
        for_ns: Some(10_000_000_000),
        until: None,
    };
    ok(fixture.ask(&ANN, Request::Clear(clear), None));
    ok(fixture.set("pid:20", "up 1mbit"));
    fixture.advance(11);
    assert_eq!(fixture.own(10).as_deref(), Some("name:n"));
    assert_eq!(fixture.own(20).as_deref(), Some("pid:20"));
    fixture.check();
}

#[test]
fn a_user_cannot_take_a_process_out_of_roots_limit_by_limiting_its_parent() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    fixture.machine().fork(10, 11);
    fixture.machine().fork(11, 12);
    fixture.machine().spawn(20, 1000);
    ok(fixture.run_named(&ANN, "n", 20, "up 5mbit"));
    ok(fixture.run_named(&ANN, "n", 11, ""));
    ok(fixture.set("name:n", "up 1mbit"));
    ok(fixture.set_as(&ANN, "pid:10", "up 90mbit"));
    for pid in [11, 12, 20] {
        assert_eq!(fixture.own(pid).as_deref(), Some("name:n"), "{pid}");
    }
    assert_eq!(fixture.own(10).as_deref(), Some("pid:10"));
    // Nor out of a target of the user's inside of root's.
    ok(fixture.clear_as(&ANN, "pid:10"));
    fixture.machine().fork(11, 13);
    fixture.machine().fork(20, 21);
    ok(fixture.run_named(&ANN, "in", 13, "up 3mbit"));
    ok(fixture.run_named(&ANN, "in", 21, ""));
    assert_eq!(fixture.parent("name:in").as_deref(), Some("name:n"));
    ok(fixture.set_as(&ANN, "pid:10", "up 90mbit"));
    assert_eq!(fixture.own(13).as_deref(), Some("name:in"));
    assert_eq!(fixture.parent("name:in").as_deref(), Some("name:n"));
    fixture.machine().exit(13);
    fixture.machine().exit(21);
    fixture.advance(1);
    // Root may.
    ok(fixture.set("pid:10", "up 2mbit"));
    ok(fixture.clear("pid:10"));
    ok(fixture.set("pid:10", "up 2mbit"));
    for pid in [10, 11, 12] {
        assert_eq!(fixture.own(pid).as_deref(), Some("pid:10"), "{pid}");
    }
    fixture.check();
}

#[test]
fn a_process_that_leaves_a_name_is_limited_with_its_ancestors_again() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    fixture.machine().fork(10, 11);
    fixture.machine().fork(11, 12);
    fixture.machine().spawn(20, 0);
    ok(fixture.set("pid:10", "up 9mbit"));
    ok(fixture.set("pid:11", "up 5mbit"));
    ok(fixture.run_named(&Peer::ROOT, "n", 20, "up 50mbit"));
    ok(fixture.run_named(&Peer::ROOT, "n", 12, ""));
    assert_eq!(fixture.parent("name:n"), None);
    ok(fixture.clear("name:n"));
    assert_eq!(fixture.own(12).as_deref(), Some("pid:11"));
    assert_eq!(fixture.own(20), None);
    fixture.check();
    // A limit of an ancestor takes it out of the name, into the innermost limit of its ancestors.
    ok(fixture.run_named(&Peer::ROOT, "n", 20, "up 50mbit"));
    ok(fixture.run_named(&Peer::ROOT, "n", 12, ""));
    ok(fixture.clear("pid:10"));
    ok(fixture.set("pid:10", "up 9mbit"));
    assert_eq!(fixture.parent("pid:11").as_deref(), Some("pid:10"));
    assert_eq!(fixture.own(12).as_deref(), Some("pid:11"));
    fixture.check();
}

#[test]
fn two_names_of_one_thing_are_one_target() {
    let mut fixture = Fixture::new();
    fixture
        .machine()
        .groups
        .insert("/s/web.service".to_owned(), 7);
    fixture.machine().users.insert("ann".to_owned(), 1000);
    ok(fixture.set("unit:web", "up 4mbit"));
    let done = ok(fixture.set("cgroup:/s/web.service", "down 1mbit"));
    assert_eq!(done.target.as_deref(), Some("unit:web.service"));
    assert_eq!(done.effective.as_deref(), Some("up 4mbit down 1mbit"));
    ok(fixture.set("user:ann", "up 1mbit"));
    ok(fixture.set("user:1000", "up 2mbit"));
    assert_eq!(fixture.show().targets.len(), 2);
    ok(fixture.clear("user:1000"));
    ok(fixture.clear("cgroup:/s/web.service"));
    assert!(fixture.show().targets.is_empty());
}
