//! Reservations of processor time by a daemon with few rights, as in a container: `netnice doctor`
//! says which way works, and a reservation that cannot be is refused as a whole.

use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::Carnage;

use crate::output::parse_json;

use super::{assert_restored, own_groups, refused, scheduling, start};

/// Starts a program without CAP_SYS_NICE.
const WITHOUT_NICE: [&str; 5] = [
    "setpriv",
    "--bounding-set",
    "-sys_nice",
    "--inh-caps",
    "-sys_nice",
];

/// Starts a program with all control groups mounted read-only.
const READ_ONLY: [&str; 5] = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    "awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts | while read -r folder; do \
     mount -o remount,bind,ro \"$folder\"; done; exec \"$0\" \"$@\"",
];

/// What the doctor's report says about both ways.
fn report(bed: &TestBed) -> String {
    let said = bed.netnice.run(&["doctor", "--json"]);
    let report = parse_json(&said.expect("a report").stdout);
    let items = report["items"].as_array().expect("a list").iter();
    let ways = items.filter(|item| {
        let name = item["name"].as_str().unwrap_or_default();
        ["exact time", "time by group"].contains(&name)
    });
    let details: Vec<&str> = ways.filter_map(|item| item["detail"].as_str()).collect();
    assert_eq!(details.len(), 2, "{report}");
    details.join("; ")
}

/// Without the right to SCHED_DEADLINE a reservation is kept by a control group, which the report
/// and `explain` say.
#[test]
fn without_cap_sys_nice_a_group_keeps_the_reservation() {
    let mut bed = TestBed::new().expect("a test bed");
    let said = report(&bed);
    assert!(said.contains("SCHED_DEADLINE: the kernel admits"), "{said}");
    bed.netnice.stop_daemon();
    let started = bed.netnice.start_daemon_through(&WITHOUT_NICE);
    started.expect("a daemon without CAP_SYS_NICE");
    let said = report(&bed);
    assert!(said.contains("CAP_SYS_NICE"), "{said}");
    let program = start(&bed, &Carnage::new(1, 0));
    let pid = program.pid();
    let before = scheduling(pid);
    bed.run_ok(&format!("set pid:{pid} --cpu 3ms/10ms"));
    let explained = bed.run_ok(&format!("explain pid:{pid}")).stdout;
    assert!(explained.contains("CAP_SYS_NICE"), "{explained}");
    assert_eq!(scheduling(pid)[0].policy, 0, "{:?}", scheduling(pid));
    let groups = own_groups(pid);
    assert!(!groups.is_empty(), "{:?}", scheduling(pid));
    bed.run_ok(&format!("clear pid:{pid}"));
    assert_restored(pid, &before, &groups, "after clear");
}

/// If the control groups cannot be written to either, there is one clear error, and nothing is
/// changed.
#[test]
fn without_any_way_the_reservation_is_refused() {
    let mut bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let (pid, before) = (sleeper.pid(), scheduling(sleeper.pid()));
    bed.netnice.stop_daemon();
    let words = [&READ_ONLY[..], &WITHOUT_NICE[..]].concat();
    let started = bed.netnice.start_daemon_through(&words);
    started.expect("a daemon with read-only control groups");
    let said = report(&bed);
    for word in ["CAP_SYS_NICE", "read-only", "`--cpu` is refused"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let line = format!("set pid:{pid} --cpu 3ms/10ms");
    let answer = refused(&bed, &line, 1, &["Read-only"]);
    let lines = answer.stderr.trim().lines();
    assert_eq!(lines.count(), 1, "{}", answer.stderr);
    assert_eq!(scheduling(pid), before);
}
