//! Tests that a request that does not fit is refused with the reason and changes nothing. (Invalid
//! input: `tests/system/input.rs`.)

use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::TestBed;
use netnice_lab::world::{CommandOutput, htb};

/// Runs a command line that must fail with this status, print all of `words`, and change nothing.
fn refused(bed: &TestBed, line: &str, status: i32, words: &[&str]) -> CommandOutput {
    let before = bed.shown();
    let answer = bed.run_with_status(line, status);
    for word in words {
        assert!(
            answer.stderr.contains(word),
            "`{line}` does not speak of `{word}`: {}",
            answer.stderr
        );
    }
    assert_eq!(before, bed.shown(), "`{line}` changed something");
    answer
}

#[test]
fn the_refusal_of_a_minimum_names_link_capacity_and_holders() {
    let bed = TestBed::new().expect("a test bed");
    let (a, b) = (bed.sleeper(), bed.sleeper());
    bed.run_ok("link eth0 --rate 100mbit --down-rate 100mbit");
    bed.run_ok(&format!(
        "set pid:{} --min 60mbit --min-down 60mbit",
        a.pid()
    ));
    let holder = format!("pid:{}", a.pid());
    let line = format!("set pid:{} --min 50mbit", b.pid());
    let wanted = [
        "eth0",
        "100 Mbit/s",
        "operator",
        &holder,
        "60 Mbit/s",
        "40 Mbit/s",
    ];
    refused(&bed, &line, 3, &wanted);
    // 97 % of the receive rate can be guaranteed.
    let line = format!("set pid:{} --min-down 38mbit", b.pid());
    refused(&bed, &line, 3, &["eth0", "97 Mbit/s", &holder, "37 Mbit/s"]);
    bed.run_ok(&format!(
        "set pid:{} --min 40mbit --min-down 37mbit",
        b.pid()
    ));
    // A direction with guarantees stays managed.
    refused(
        &bed,
        "link eth0 --rate none",
        3,
        &["eth0", "clear them", &holder],
    );
    // A cleared guarantee can be granted again.
    bed.run_ok(&format!("clear pid:{}", a.pid()));
    bed.run_ok(&format!("set pid:{} --min 100mbit", b.pid()));
}

#[test]
fn a_minimum_needs_a_managed_link() {
    let bed = TestBed::new().expect("a test bed");
    let a = bed.sleeper();
    let line = format!("set pid:{} --min 1mbit", a.pid());
    refused(&bed, &line, 3, &["netnice link"]);
    let line = format!("set pid:{} --min 1mbit --on eth7", a.pid());
    refused(&bed, &line, 3, &["eth7"]);
}

#[test]
fn a_link_with_a_foreign_queue_is_refused_and_unchanged() {
    let bed = TestBed::new().expect("a test bed");
    let ns = &bed.world.client().ns;
    htb::limit(ns, "eth0", 50_000_000, htb::Leaf::Default).expect("a foreign queue");
    let before = ns.tc("qdisc show dev eth0").expect("tc");
    refused(&bed, "link eth0 --rate 100mbit", 3, &["eth0", "htb"]);
    assert_eq!(before, ns.tc("qdisc show dev eth0").expect("tc"));
}

#[test]
fn a_sixth_level_of_nesting_is_refused() {
    let bed = TestBed::new().expect("a test bed");
    // Each shell prints its process id and becomes the parent of the next.
    let mut script = "echo $$; sleep 600".to_owned();
    for _ in 0..5 {
        script = format!("echo $$; sh -c '{}' & wait", script.replace('\'', "'\\''"));
    }
    let mut command = bed.world.client().ns.command("sh");
    command.args(["-c", &script]);
    let mut shells = Proc::start(command).expect("shells");
    let mut pids = Vec::new();
    for _ in 0..6 {
        pids.push(shells.next_line(EVENT_TIMEOUT).expect("a number"));
    }
    for (i, pid) in pids[..5].iter().enumerate() {
        bed.run_ok(&format!("set pid:{pid} --up {}mbit", 60 - 10 * i));
    }
    let line = format!("set pid:{} --up 5mbit", pids[5]);
    refused(&bed, &line, 3, &["5"]);
}
