//! Tests limits with a schedule (`--when`, `when` in the policy) on real packets: they hold in
//! their hours, begin with them, outlive a killed daemon, and hold nothing in other hours. The
//! clock of the host stays as it is; [`crate::clock`] has the test that sets it.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netnice_lab::experiment::bench::R4M;
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Tcp};

#[test]
fn a_limit_holds_in_its_hours_and_nothing_holds_in_others() {
    let mut bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let source = Tcp::connect(to, 2).source();
    let program = traffic::start_now(bed.world.client(), &source).expect("a program");
    let target = format!("pid:{}", program.pid());
    // Whole days around today, or away from it: neither begins nor ends while the test runs.
    let (now, other) = (days([6, 0, 1]), days([3, 3, 3]));
    bed.run_ok(&format!("set {target} --up 4mbit --when {other}"));
    bed.await_unlimited((0.3, 0.5), R4M, "on another day");
    let shown = bed.target(&target);
    assert_eq!(shown["contract"]["up"], 4_000_000, "{shown}");
    assert!(shown["effective"]["up"].is_null(), "{shown}");
    assert_eq!(shown["schedules"][0]["active"], false, "{shown}");
    let table = bed.run_ok(&format!("show {target}")).stdout;
    assert!(table.contains("next from"), "{table}");

    bed.run_ok(&format!("set {target} --when {now}"));
    bed.await_limited(|| bed.sent_rate(0.3, 1.0).expect("a rate"), R4M, "today");
    let shown = bed.target(&target);
    assert_eq!(shown["effective"]["up"], 4_000_000, "{shown}");
    assert_eq!(shown["schedules"][0]["active"], true, "{shown}");
    let page = bed.run_ok(&format!("explain {target}")).stdout;
    assert!(page.contains("holds now, until"), "{page}");

    bed.netnice.kill_daemon();
    bed.netnice.start_daemon().expect("it starts again");
    bed.await_limited(
        || bed.sent_rate(0.3, 1.0).expect("a rate"),
        R4M,
        "after kill -9",
    );
    bed.run_ok(&format!("set {target} --when {other}"));
    bed.await_unlimited((0.3, 0.5), R4M, "on another day again");
}

#[test]
fn a_limit_begins_with_its_hours() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let source = Tcp::connect(to, 2).source();
    let program = traffic::start_now(bed.world.client(), &source).expect("a program");
    let target = format!("pid:{}", program.pid());
    let time = |minute: u64| format!("{:02}:{:02}", minute / 60 % 24, minute % 60);
    // The next minute that is at least 10 s away, for two hours. If `set` takes longer than that,
    // the minute after it is tried.
    let begin = (0..5).find_map(|_| {
        let begin = (seconds() + 10) / 60 + 1;
        let hours = format!("{}-{}", time(begin), time(begin + 120));
        bed.run_ok(&format!("set {target} --up 4mbit --when {hours}@UTC"));
        (seconds() + 5 < begin * 60).then_some(begin)
    });
    let begin = begin.expect("one of five calls of set takes less than 5 s");
    bed.await_unlimited((0.1, 0.5), R4M, "before its hours");
    // Without a limit the program takes a whole processor, which other tests need meanwhile. It
    // sends again before its hours begin.
    let pid = program.pid() as i32;
    sys::kill(pid, libc::SIGSTOP).expect("it stops");
    let left = || (begin * 60).saturating_sub(seconds());
    std::thread::sleep(Duration::from_secs(left().saturating_sub(3)));
    sys::kill(pid, libc::SIGCONT).expect("it goes on");
    std::thread::sleep(Duration::from_secs(left()));
    let holds = || bed.target(&target)["effective"]["up"] == 4_000_000;
    assert!(becomes_true(holds), "{}", bed.target(&target));
    bed.await_limited(|| bed.sent_rate(0.5, 1.0).expect("a rate"), R4M, "in them");
    let log = bed.run_ok("log").stdout;
    assert!(log.contains("holds from now on"), "{log}");
}

#[test]
fn a_rule_of_the_policy_has_hours_and_a_bad_one_changes_nothing() {
    let bed = TestBed::new().expect("a test bed");
    let rule = |when: &str| {
        let text = format!(
            "[[rule]]\nname = \"ann\"\nmatch = \"user:61234\"\nup = \"4mbit\"\nwhen = \"{when}\"\n"
        );
        fs::write(bed.netnice.policy(), text).expect("the policy can be written");
    };
    let readable = days([6, 0, 1]).replace('@', " ");
    rule(&readable);
    bed.run_ok("reload");
    let before = bed.target("user:61234");
    assert_eq!(before["effective"]["up"], 4_000_000, "{before}");
    for (bad, reason) in [
        ("mon-fri 08:00-08:00", "never comes"),
        ("mon-fri 8-18", "is not a time of day"),
        ("mon-fri 08:00-18:00 Europe/Berlni", "time zone database"),
    ] {
        rule(bad);
        let error = bed.run_with_status("reload", 2).stderr;
        assert!(error.contains(":5: when"), "{error}");
        assert!(error.contains(reason), "{error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
    let shown = bed.target("user:61234");
    assert_eq!(shown["contract"], before["contract"], "{shown}");
    assert_eq!(shown["schedules"], before["schedules"], "{shown}");
    rule(&days([3, 3, 3]));
    bed.run_ok("reload");
    let shown = bed.target("user:61234");
    assert!(shown["effective"]["up"].is_null(), "{shown}");
}

/// Seconds since 1970.
fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_secs()
}

/// The days that are so many days after today, in UTC, as a schedule.
fn days(after: [u64; 3]) -> String {
    // 1 January 1970 was a Thursday.
    let today = seconds() / 86_400 + 3;
    let names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    let days = after.map(|days| names[((today + days) % 7) as usize]);
    format!("{}@UTC", days.join(","))
}
