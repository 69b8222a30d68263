//! Tests that root and the netnice group take precedence: no request of a plain user prevents a
//! later request of root.

use std::fs;

use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::world::Cgroup;

use crate::users::{ANN, as_user, process_of, run_as};

/// The reasons for a target's degradation in `show`, in one text.
fn degraded(bed: &TestBed, name: &str) -> String {
    bed.target(name)["degraded"].to_string()
}

#[test]
fn a_users_limit_of_another_kind_yields_to_root_and_returns() {
    let bed = TestBed::new().expect("a test bed");
    let group = Cgroup::create("precedence").expect("a control group");
    let own = process_of(&bed, ANN);
    group.add_process(own.pid()).expect("it moves");
    let pid = format!("pid:{}", own.pid());
    let around = format!("cgroup:{}", group.path());
    let set = run_as(&bed, ANN, &format!("set {pid} --both 900gbit"));
    assert_eq!(set.status, 0, "{set:?}");
    bed.run_ok(&format!("set {around} --up 4mbit"));
    assert_eq!(bed.effective_up(&around), 4_000_000);
    // The outer target limits the user's process, and the user is told.
    assert_eq!(bed.effective_up(&pid), 4_000_000);
    let said = run_as(&bed, ANN, &format!("show {pid}")).stdout;
    assert!(said.contains("set aside"), "{said}");
    let again = run_as(&bed, ANN, &format!("set {pid} --both 800gbit"));
    assert_eq!(again.status, 3, "root's is there first: {again:?}");
    bed.run_ok(&format!("clear {around}"));
    let back = || bed.target(&pid)["effective"]["both"] == 900_000_000_000_u64;
    assert!(becomes_true(back), "{}", bed.target(&pid));
}

#[test]
fn a_users_limit_on_a_process_prevents_no_limit_of_root() {
    let bed = TestBed::new().expect("a test bed");
    bed.run_ok("link eth0 --rate 100mbit");
    let own = process_of(&bed, ANN);
    let pid = format!("pid:{}", own.pid());
    let set = run_as(&bed, ANN, &format!("set {pid} --both 1mbit"));
    assert_eq!(set.status, 0, "{set:?}");
    bed.run_ok(&format!("set {pid} --up 4mbit --min 2mbit"));
    assert_eq!(bed.effective_up(&pid), 4_000_000);
    let said = degraded(&bed, &pid);
    assert!(said.contains(&format!("user {ANN}")), "{said}");
}

/// Nested shells, and their process ids.
fn nested(bed: &TestBed, levels: usize) -> (Proc, Vec<String>) {
    let mut script = "echo $$; sleep 600".to_owned();
    for _ in 1..levels {
        script = format!("echo $$; sh -c '{}' & wait", script.replace('\'', "'\\''"));
    }
    let mut command = as_user(bed, ANN);
    command.args(["sh", "-c", &script]);
    let mut shells = Proc::start(command).expect("shells");
    let pids = (0..levels).map(|_| shells.next_line(EVENT_TIMEOUT).expect("a number"));
    let pids = pids.collect();
    (shells, pids)
}

#[test]
fn nested_limits_of_a_user_leave_room_for_those_of_root() {
    let bed = TestBed::new().expect("a test bed");
    let group = Cgroup::create("precedence").expect("a control group");
    let (shells, pids) = nested(&bed, 5);
    for pid in &pids {
        group
            .add_process(pid.parse().expect("a number"))
            .expect("it moves");
    }
    for pid in &pids[..4] {
        let set = run_as(&bed, ANN, &format!("set pid:{pid} --up 90mbit"));
        assert_eq!(set.status, 0, "{set:?}");
    }
    let fifth = run_as(&bed, ANN, &format!("set pid:{} --up 90mbit", pids[4]));
    assert_eq!(fifth.status, 3, "{fifth:?}");
    assert!(fifth.stderr.contains("one is kept for root"), "{fifth:?}");
    bed.run_ok(&format!("set cgroup:{} --up 4mbit", group.path()));
    bed.run_ok(&format!("set user:{ANN} --up 8mbit"));
    for pid in &pids[..4] {
        assert_eq!(
            bed.effective_up(&format!("pid:{pid}")),
            4_000_000,
            "pid:{pid}"
        );
    }
    drop(shells);
}

#[test]
fn requests_of_users_do_not_prevent_a_reload_of_the_policy() {
    let bed = TestBed::new().expect("a test bed");
    let group = Cgroup::create("precedence").expect("a control group");
    let own = process_of(&bed, ANN);
    group.add_process(own.pid()).expect("it moves");
    let set = run_as(&bed, ANN, &format!("set pid:{} --both 900gbit", own.pid()));
    assert_eq!(set.status, 0, "{set:?}");
    let around = format!("cgroup:{}", group.path());
    let text = format!("[[rule]]\nname = \"all\"\nmatch = \"{around}\"\nup = \"4mbit\"\n");
    fs::write(bed.netnice.policy(), text).expect("a policy");
    bed.run_ok("reload");
    assert_eq!(bed.effective_up(&around), 4_000_000);
    assert_eq!(bed.effective_up(&format!("pid:{}", own.pid())), 4_000_000);
}
