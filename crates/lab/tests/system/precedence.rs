//! Root and the netnice group take precedence: no request of a plain user prevents a later request
//! of root.

use std::fs;

use netnice_lab::desk::{Desk, soon};
use netnice_lab::process::{PATIENCE, Proc};
use netnice_lab::world::Cgroup;
use serde_json::Value;

use crate::people::{ANN, as_user, process_of, types};

/// The reasons for a target's degradation in `show`, in one text.
fn degraded(desk: &Desk, name: &str) -> String {
    desk.target(name)["degraded"].to_string()
}

fn up(desk: &Desk, name: &str) -> Value {
    desk.target(name)["effective"]["up"].clone()
}

#[test]
fn a_users_limit_of_another_kind_refuses_nothing_of_root_and_comes_back() {
    let desk = Desk::new().expect("a desk");
    let group = Cgroup::create("precedence").expect("a control group");
    let own = process_of(&desk, ANN);
    group.take(own.pid()).expect("it moves");
    let pid = format!("pid:{}", own.pid());
    let around = format!("cgroup:{}", group.path());
    let set = types(&desk, ANN, &format!("set {pid} --both 900gbit"));
    assert_eq!(set.status, 0, "{set:?}");
    desk.types(&format!("set {around} --up 4mbit"));
    assert_eq!(up(&desk, &around), 4_000_000);
    // The outer target limits the user's process, and the user is told.
    assert_eq!(up(&desk, &pid), 4_000_000);
    let said = types(&desk, ANN, &format!("show {pid}")).stdout;
    assert!(said.contains("set aside"), "{said}");
    let again = types(&desk, ANN, &format!("set {pid} --both 800gbit"));
    assert_eq!(again.status, 3, "root's is there first: {again:?}");
    desk.types(&format!("clear {around}"));
    let back = || desk.target(&pid)["effective"]["both"] == 900_000_000_000_u64;
    assert!(soon(back), "{}", desk.target(&pid));
}

#[test]
fn a_users_limit_on_a_process_refuses_nothing_of_root_on_the_same() {
    let desk = Desk::new().expect("a desk");
    desk.types("link eth0 --rate 100mbit");
    let own = process_of(&desk, ANN);
    let pid = format!("pid:{}", own.pid());
    let set = types(&desk, ANN, &format!("set {pid} --both 1mbit"));
    assert_eq!(set.status, 0, "{set:?}");
    desk.types(&format!("set {pid} --up 4mbit --min 2mbit"));
    assert_eq!(up(&desk, &pid), 4_000_000);
    let said = degraded(&desk, &pid);
    assert!(said.contains(&format!("user {ANN}")), "{said}");
}

/// Nested shells, and their process ids.
fn nested(desk: &Desk, levels: usize) -> (Proc, Vec<String>) {
    let mut script = "echo $$; sleep 600".to_owned();
    for _ in 1..levels {
        script = format!("echo $$; sh -c '{}' & wait", script.replace('\'', "'\\''"));
    }
    let mut command = as_user(desk, ANN);
    command.args(["sh", "-c", &script]);
    let mut shells = Proc::start(command).expect("shells");
    let pids = (0..levels).map(|_| shells.next_line(PATIENCE).expect("a number"));
    let pids = pids.collect();
    (shells, pids)
}

#[test]
fn nested_limits_of_a_user_leave_room_for_those_of_root() {
    let desk = Desk::new().expect("a desk");
    let group = Cgroup::create("precedence").expect("a control group");
    let (shells, pids) = nested(&desk, 5);
    for pid in &pids {
        group
            .take(pid.parse().expect("a number"))
            .expect("it moves");
    }
    for pid in &pids[..4] {
        let set = types(&desk, ANN, &format!("set pid:{pid} --up 90mbit"));
        assert_eq!(set.status, 0, "{set:?}");
    }
    let fifth = types(&desk, ANN, &format!("set pid:{} --up 90mbit", pids[4]));
    assert_eq!(fifth.status, 3, "{fifth:?}");
    assert!(fifth.stderr.contains("one is kept for root"), "{fifth:?}");
    desk.types(&format!("set cgroup:{} --up 4mbit", group.path()));
    desk.types(&format!("set user:{ANN} --up 8mbit"));
    for pid in &pids[..4] {
        assert_eq!(up(&desk, &format!("pid:{pid}")), 4_000_000, "pid:{pid}");
    }
    drop(shells);
}

#[test]
fn a_policy_is_read_again_whatever_users_have_asked_meanwhile() {
    let desk = Desk::new().expect("a desk");
    let group = Cgroup::create("precedence").expect("a control group");
    let own = process_of(&desk, ANN);
    group.take(own.pid()).expect("it moves");
    let set = types(&desk, ANN, &format!("set pid:{} --both 900gbit", own.pid()));
    assert_eq!(set.status, 0, "{set:?}");
    let around = format!("cgroup:{}", group.path());
    let text = format!("[[rule]]\nname = \"all\"\nmatch = \"{around}\"\nup = \"4mbit\"\n");
    fs::write(desk.netnice.policy(), text).expect("a policy");
    desk.types("reload");
    assert_eq!(up(&desk, &around), 4_000_000);
    assert_eq!(up(&desk, &format!("pid:{}", own.pid())), 4_000_000);
}
