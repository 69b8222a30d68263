//! What must happen, one story each.

use netnice_api::{Confirm, Response};
use netnice_core::target::Target;

use super::*;
use crate::ledger::Body;

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
    // And backwards: what was inside falls to what is around.
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
    // The one that was named ends, its child stays; the target lives on in it.
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
    // Its own limit is lifted: the name's holds it on.
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
    // Asked again without it, they are taken in.
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
    let held: Vec<Held> = desk.clerk.ledger.held().cloned().collect();
    assert_eq!(held.len(), 2);
    assert_eq!(desk.machine().own(11), held[0].id);
    assert_eq!(desk.machine().own(10), held[1].id);
    desk.check();
}

#[test]
fn a_process_that_ends_meanwhile_leaves_nothing() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    // It lives when it is looked at, and no longer when all is done.
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
        .clerk
        .handle(&Peer::ROOT, &request, Some(named), desk.now);
    assert!(failed(answer).contains("ended meanwhile"));
    assert_eq!(desk.machine().force, before);
    assert!(desk.clerk.ledger.is_empty());
    assert!(
        desk.clerk.ledger.next_id() > 1,
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
    assert!(desk.clerk.ledger.held().next().is_none());
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
    // Others' processes stay out.
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
    // What is still being sent of the old one is the unit's, and so is a new one from the moment when it is made.
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
    // Clearing all clears one's own, and says how much that was.
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
            let before = (desk.machine().force.clone(), desk.clerk.ledger.entries());
            desk.machine().fails_in = Some(k);
            let answer = change(&mut desk);
            if desk.machine().fails_in.take().is_some() {
                ok(answer);
                break;
            }
            assert!(failed(answer).contains("says no"), "change {n}, step {k}");
            let after = (desk.machine().force.clone(), desk.clerk.ledger.entries());
            assert_eq!(before, after, "change {n}, step {k}");
            assert!(k < 20, "it must be done some time");
        }
        desk.check();
    }
}

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
    // What is confirmed in time stays, and only once.
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
    // Who sets and clears for a time again and again leaves nothing of what has ended.
    for pid in 40..60 {
        desk.machine().spawn(pid, 0);
        ok(desk.set(&format!("pid:{pid}"), "up 1mbit"));
        clear(&mut desk, &format!("pid:{pid}"));
        desk.machine().exit(pid);
    }
    assert!(desk.clerk.undos.iter().count() < 3);
    ok(desk.clear("all"));
    assert_eq!(desk.clerk.undos.iter().count(), 0);
    desk.check();
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
    let before = (desk.machine().force.clone(), desk.clerk.ledger.clone());
    let dry = |set: &mut Set| {
        set.dry_run = true;
        set.confirm_ns = Some(1_000_000_000);
    };
    let done = ok(desk.set_with(&Peer::ROOT, "pid:10", "up 4mbit", Some(10), dry));
    assert_eq!(done.effective.as_deref(), Some("up 4mbit"));
    assert!(done.plan.is_some_and(|plan| !plan.is_empty()));
    let after = (desk.machine().force.clone(), desk.clerk.ledger.clone());
    assert_eq!(before, after);
    assert_eq!(desk.clerk.next_due(), None);
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
    assert!(desk.clerk.ledger.is_empty());
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
    // Left over from a change that was never finished.
    desk.machine().force.members.insert(10, (77, 78));
    ok(desk.set("pid:10", "up 1mbit"));
    assert_eq!(desk.parent("pid:10"), None);
    let held = desk.held("pid:10").expect("held");
    assert_eq!(held.entry.target, Target::pid(10).expect("a pid"));
    desk.check();
}
