//! Nesting: processes, names, executables, groups and users.

use super::*;
use crate::ledger::Body;

#[test]
fn what_contains_what_follows_processes_groups_and_users() {
    let mut desk = Desk::new();
    let machine = desk.machine();
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
    ok(desk.set("pid:11", "up 4mbit"));
    assert_eq!(desk.parent("pid:11"), None);
    ok(desk.set("user:1000", "up 90mbit"));
    assert_eq!(desk.parent("pid:11").as_deref(), Some("user:1000"));
    ok(desk.set("cgroup:/a.slice", "up 80mbit"));
    assert_eq!(desk.parent("pid:11").as_deref(), Some("cgroup:/a.slice"));
    assert_eq!(desk.parent("cgroup:/a.slice"), None, "they cross");
    ok(desk.set("unit:b", "up 70mbit"));
    assert_eq!(desk.parent("pid:11").as_deref(), Some("unit:b.service"));
    let around = desk.parent("unit:b.service");
    assert_eq!(around.as_deref(), Some("cgroup:/a.slice"));
    ok(desk.set("pid:10", "up 60mbit"));
    assert_eq!(desk.parent("pid:11").as_deref(), Some("pid:10"));
    assert_eq!(desk.parent("pid:10").as_deref(), Some("unit:b.service"));
    ok(desk.set("pid:12", "up 50mbit"));
    assert_eq!(desk.parent("pid:12").as_deref(), Some("pid:11"));
    desk.check();
    let shown = desk.show();
    let inner = shown.targets.iter().find(|t| t.target == "pid:12");
    assert_eq!(inner.expect("shown").effective.up, Some(4_000_000));
    // In reverse: the target around it takes over what was inside.
    for (cleared, around) in [
        ("pid:11", "pid:10"),
        ("pid:10", "unit:b.service"),
        ("unit:b", "cgroup:/a.slice"),
        ("cgroup:/a.slice", "user:1000"),
    ] {
        ok(desk.clear(cleared));
        assert_eq!(desk.parent("pid:12").as_deref(), Some(around));
    }
    desk.check();
}

#[test]
fn an_executable_contains_what_runs_it_and_what_that_starts() {
    let mut desk = Desk::new();
    let rsync = AppKey { inode: 5, dev: 1 };
    let machine = desk.machine();
    machine.apps.insert("/bin/rsync".to_owned(), rsync);
    machine.spawn(10, 0);
    machine.processes.get_mut(&10).expect("it lives").runs = Some(rsync);
    machine.fork(10, 11);
    machine.processes.get_mut(&11).expect("it lives").runs = None;
    ok(desk.set("pid:11", "up 4mbit"));
    ok(desk.set("app:/bin/rsync", "up 9mbit"));
    assert_eq!(desk.parent("pid:11").as_deref(), Some("app:/bin/rsync"));
    // An upgrade puts another file at its path.
    let newer = AppKey { inode: 6, dev: 1 };
    desk.machine().apps.insert("/bin/rsync".to_owned(), newer);
    desk.pass(1);
    assert_eq!(
        desk.held("app:/bin/rsync").expect("held").body,
        Body::App(Some(newer))
    );
    desk.machine().apps.clear();
    desk.pass(1);
    let app = desk.show().targets.remove(0);
    assert!(app.degraded[0].contains("not there"), "{app:?}");
    ok(desk.clear("app:/bin/rsync"));
    assert_eq!(desk.parent("pid:11"), None);
    desk.check();
}

#[test]
fn the_whole_host_by_pid_1_takes_in_what_had_a_limit_of_its_own() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    desk.machine().fork(10, 11);
    ok(desk.set("pid:11", "up 4mbit"));
    ok(desk.set("pid:1", "up 10mbit"));
    assert_eq!(desk.parent("pid:11").as_deref(), Some("pid:1"));
    assert_eq!(desk.own(11).as_deref(), Some("pid:11"));
    assert_eq!(desk.own(10).as_deref(), Some("pid:1"));
    desk.machine().fork(11, 12);
    assert_eq!(desk.own(12).as_deref(), Some("pid:11"));
    // The named process ends, its child stays; the target lives on in the child.
    desk.machine().exit(11);
    desk.pass(1);
    assert_eq!(desk.parent("pid:11").as_deref(), Some("pid:1"));
    desk.machine().exit(12);
    desk.pass(1);
    assert!(desk.held("pid:11").is_none());
    desk.check();
}

#[test]
fn all_is_cleared_in_one_look_at_who_is_a_member() {
    let mut desk = Desk::new();
    for pid in 100..120 {
        desk.machine().spawn(pid, 1000);
        desk.machine().fork(pid, pid + 100);
    }
    ok(desk.set("pid:1", "up 10mbit"));
    for pid in 100..120 {
        ok(desk.set_as(&ANN, &format!("pid:{pid}"), "up 4mbit"));
        ok(desk.set_as(&ANN, &format!("pid:{}", pid + 100), "up 1mbit"));
    }
    assert_eq!(desk.own(200), Some("pid:200".into()));
    desk.machine().fails_in = Some(100);
    ok(desk.clear_as(&ANN, "all"));
    let left = desk.machine().fails_in.take();
    assert_eq!(left, Some(98), "one act, and one application");
    for pid in [100, 119, 200, 219] {
        assert_eq!(
            desk.own(pid),
            Some("pid:1".into()),
            "{pid} falls to the host"
        );
    }
    desk.check();
    ok(desk.clear("all"));
    assert_eq!(
        desk.machine().members().expect("members"),
        Default::default()
    );
}

#[test]
fn what_lies_inside_a_process_that_joins_a_name_lies_inside_the_name() {
    let mut desk = Desk::new();
    for pid in [10, 20] {
        desk.machine().spawn(pid, 0);
    }
    desk.machine().fork(10, 11);
    ok(desk.set("pid:11", "up 1mbit"));
    ok(desk.run_named(&Peer::ROOT, "n", 20, "up 9mbit"));
    ok(desk.run_named(&Peer::ROOT, "n", 10, ""));
    assert_eq!(desk.own(10).as_deref(), Some("name:n"));
    assert_eq!(desk.parent("pid:11").as_deref(), Some("name:n"));
    desk.check();
    // Its own limit is lifted: the name's limit still applies.
    ok(desk.clear("pid:11"));
    assert_eq!(desk.own(11).as_deref(), Some("name:n"));
    desk.check();
}

#[test]
fn only_leaves_living_children_free() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    desk.machine().fork(10, 11);
    let only = |set: &mut Set| set.only = true;
    ok(desk.set_with(&Peer::ROOT, "pid:10", "up 1mbit", Some(10), only));
    assert_eq!(desk.own(11), None);
    desk.machine().fork(10, 12);
    assert_eq!(desk.own(12).as_deref(), Some("pid:10"));
    // Set again without `only`, they are included.
    ok(desk.set("pid:10", "up 2mbit"));
    assert_eq!(desk.own(11).as_deref(), Some("pid:10"));
}

#[test]
fn a_number_that_was_used_again_is_another_target() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    desk.machine().fork(10, 11);
    ok(desk.set("pid:10", "up 1mbit"));
    desk.machine().exit(10);
    desk.machine().spawn(10, 0);
    ok(desk.set("pid:10", "up 2mbit"));
    let held: Vec<Held> = desk.service.ledger().held().cloned().collect();
    assert_eq!(held.len(), 2);
    assert_eq!(desk.machine().own(11), held[0].id);
    assert_eq!(desk.machine().own(10), held[1].id);
    desk.check();
}

#[test]
fn a_process_that_ends_meanwhile_leaves_nothing() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    // It is alive at the look-up, and no longer at the end.
    let alive = std::cell::Cell::new(true);
    let named = Named {
        pid: 10,
        lives: Box::new(move || alive.replace(false)),
    };
    let set = Set {
        target: "pid:10".to_owned(),
        change: Some("up 1mbit".to_owned()),
        ..Set::default()
    };
    let before = desk.machine().force.clone();
    let request = Request::Set(set);
    let answer = desk
        .service
        .handle(&Peer::ROOT, &request, Some(named), desk.now);
    assert!(failed(answer).contains("ended meanwhile"));
    assert_eq!(desk.machine().force, before);
    assert!(desk.service.ledger().is_empty());
    assert!(
        desk.service.ledger().next_id() > 1,
        "its number is not given again"
    );
}

#[test]
fn a_limit_of_ones_own_is_no_way_out_of_the_one_around_it() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 1000);
    desk.machine().fork(10, 11);
    ok(desk.set("pid:10", "up 1mbit"));
    desk.machine().exit(10);
    ok(desk.set_as(&ANN, "pid:11", "up 9mbit"));
    desk.pass(5);
    assert_eq!(desk.parent("pid:11").as_deref(), Some("pid:10"));
    ok(desk.clear_as(&ANN, "pid:11"));
    desk.pass(5);
    assert_eq!(desk.own(11).as_deref(), Some("pid:10"));
    desk.machine().exit(11);
    desk.pass(5);
    assert!(desk.service.ledger().held().next().is_none());
}

#[test]
fn names_are_joined_and_end_with_the_last_who_joined() {
    let mut desk = Desk::new();
    for pid in [10, 20] {
        desk.machine().spawn(pid, 1000);
    }
    assert!(failed(desk.run_named(&ANN, "build", 10, "")).contains("say what it may use"));
    assert!(failed(desk.set_as(&ANN, "name:build", "up 1mbit")).contains("nobody runs"));
    ok(desk.run_named(&ANN, "build", 10, "up 4mbit"));
    ok(desk.run_named(&ANN, "build", 20, ""));
    assert_eq!(desk.own(20).as_deref(), Some("name:build"));
    ok(desk.set_as(&ANN, "name:build", "up 2mbit"));
    // Processes of other users stay out.
    desk.machine().spawn(30, 1001);
    let bob = Peer {
        uid: 1001,
        privileged: false,
        groups: Vec::new(),
    };
    assert!(refused(desk.run_named(&bob, "build", 30, "")).contains("user 1000"));
    assert!(refused(desk.set_as(&bob, "name:build", "up 1mbit")).contains("user 1000"));
    desk.machine().exit(10);
    desk.pass(1);
    assert!(desk.held("name:build").is_some());
    desk.machine().exit(20);
    desk.pass(1);
    assert!(desk.held("name:build").is_none());
    desk.check();
}

#[test]
fn a_name_lies_in_what_contains_all_of_it() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    desk.machine().fork(10, 11);
    desk.machine().fork(10, 12);
    desk.machine().spawn(20, 0);
    ok(desk.set("pid:10", "up 10mbit"));
    for (pid, change, around) in [
        (11, "up 5mbit", Some("pid:10")),
        (12, "", Some("pid:10")),
        (20, "", None),
    ] {
        ok(desk.run_named(&Peer::ROOT, "n", pid, change));
        assert_eq!(desk.parent("name:n").as_deref(), around, "after {pid}");
    }
    desk.check();
}

#[test]
fn one_thing_under_two_names_is_one_target() {
    let mut desk = Desk::new();
    desk.machine().groups.insert("/s/web.service".to_owned(), 7);
    desk.machine().users.insert("ann".to_owned(), 1000);
    ok(desk.set("unit:web", "up 4mbit"));
    let done = ok(desk.set("cgroup:/s/web.service", "down 1mbit"));
    assert_eq!(done.target.as_deref(), Some("unit:web.service"));
    assert_eq!(done.effective.as_deref(), Some("up 4mbit down 1mbit"));
    ok(desk.set("user:ann", "up 1mbit"));
    ok(desk.set("user:1000", "up 2mbit"));
    assert_eq!(desk.show().targets.len(), 2);
    ok(desk.clear("user:1000"));
    ok(desk.clear("cgroup:/s/web.service"));
    assert!(desk.show().targets.is_empty());
}
