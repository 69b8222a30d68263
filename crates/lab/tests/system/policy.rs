//! Tests the policy file: rules that apply whenever the daemon runs. The first matching rule
//! applies. A reload changes all or nothing. Errors have file and line.

use std::fs;

use netnice_lab::experiment::bench::R4M;
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Tcp};
use netnice_lab::world::{Cgroup, Netnice, Pair, World};
use serde_json::{Value, json};

/// A test bed whose daemon has loaded this policy.
fn bed_with_policy(text: &str) -> TestBed {
    let bed = TestBed::new().expect("a test bed");
    write(&bed, text);
    bed.run_ok("reload");
    bed
}

fn write(bed: &TestBed, text: &str) {
    fs::write(bed.netnice.policy(), text).expect("the policy can be written");
}

fn unit_name() -> String {
    format!("nn{}-policy.service", std::process::id())
}

#[test]
fn the_first_matching_rule_applies_and_links_are_managed() {
    let bed = bed_with_policy(
        r#"
        [[link]]
        name = "eth0"
        rate = "100mbit"
        down-rate = "50mbit"
        overhead = 24

        [[rule]]
        name = "ann"
        match = "user:61234"
        up = "4mbit"
        min = "3mbit"

        [[rule]]
        name = "ann again"
        match = "user:61234"
        up = "9mbit"
        "#,
    );
    let shown = bed.shown();
    assert_eq!(shown["links"][0]["link"], "eth0", "{shown}");
    assert_eq!(shown["links"][0]["up"]["rate"], 100_000_000, "{shown}");
    assert_eq!(shown["links"][0]["down"]["rate"], 50_000_000, "{shown}");
    assert_eq!(shown["links"][0]["overhead"], 24, "{shown}");
    let ann = bed.target("user:61234");
    assert_eq!(ann["contract"]["up"], 4_000_000, "{ann}");
    assert_eq!(ann["contract"]["min"], 3_000_000, "{ann}");
    // Rules removed from the file are removed from the ledger, and root's request stays.
    bed.run_ok("set user:61235 --up 1mbit");
    write(&bed, "");
    bed.run_ok("reload");
    let shown = bed.shown();
    assert_eq!(shown["links"], json!([]), "{shown}");
    assert!(bed.target("user:61234").is_null(), "{shown}");
    assert_eq!(
        bed.target("user:61235")["contract"]["up"],
        1_000_000,
        "{shown}"
    );
}

#[test]
fn a_rule_limits_a_later_unit_from_its_first_packet() {
    let bed = bed_with_policy(&format!(
        "[[rule]]\nname = \"web\"\nmatch = \"unit:{}\"\nup = \"4mbit\"\n",
        unit_name()
    ));
    let to = bed.sink(5001).expect("a sink");
    let target = format!("unit:{}", unit_name());
    assert_eq!(bed.target(&target)["contract"]["up"], 4_000_000);
    let slice = Cgroup::create("policy.slice").expect("a slice");
    let unit = slice.below(&unit_name()).expect("the unit");
    let procs = unit.procs();
    let procs = procs.to_str().expect("a plain path");
    let flows = Tcp::connect(to, 2).source();
    let words = ["sh", "-c", "echo 0 > \"$0\" && exec \"$@\"", procs];
    let _program = traffic::start_through(bed.world.client(), &words, None, &flows).expect("it");
    bed.await_limited(|| bed.sent_rate(0.7, 1.5).expect("a rate"), R4M, "the unit");
    // Beside the rule a user may request less, and the smaller limit applies. Root may clear both;
    // a reload then restores the rule.
    let up = || bed.target(&target)["effective"]["up"].clone();
    bed.run_ok(&format!("set {target} --up 2mbit"));
    assert_eq!(up(), 2_000_000);
    bed.run_ok(&format!("clear {target}"));
    assert_eq!(up(), Value::Null);
    bed.run_ok("reload");
    assert_eq!(up(), 4_000_000);
}

/// The case, the file, the line in the error, and a word in the error.
const FAULTY_POLICIES: [(&str, &str, u32, &str); 12] = [
    ("no TOML", "[[rule]\nname =", 1, "expected `]`"),
    (
        "an unknown key in a rule",
        "[[rule]]\nname = \"a\"\nmatch = \"user:61234\"\nspeed = \"4mbit\"\n",
        4,
        "speed",
    ),
    (
        "an unknown table",
        "\n[[limits]]\nname = \"a\"\n",
        2,
        "limits",
    ),
    (
        "a rate as tc writes it",
        "[[rule]]\nname = \"a\"\nmatch = \"user:61234\"\nup = \"10mbps\"\n",
        4,
        "mbit",
    ),
    (
        "a rate without a unit",
        "[[rule]]\nname = \"a\"\nmatch = \"user:61234\"\nup = \"10\"\n",
        4,
        "10",
    ),
    (
        "a rule for nobody",
        "[[rule]]\nname = \"a\"\nup = \"1mbit\"\n",
        1,
        "match",
    ),
    (
        "a process, which ends",
        "[[rule]]\nname = \"a\"\nmatch = \"pid:1\"\nup = \"1mbit\"\n",
        3,
        "a rule lasts longer than a process",
    ),
    (
        "no such kind of target",
        "[[rule]]\nname = \"a\"\nmatch = \"planet:mars\"\nup = \"1mbit\"\n",
        3,
        "planet",
    ),
    (
        "one name twice",
        "[[rule]]\nname = \"a\"\nmatch = \"user:61234\"\nup = \"1mbit\"\n\
         [[rule]]\nname = \"a\"\nmatch = \"user:61235\"\nup = \"1mbit\"\n",
        6,
        "twice",
    ),
    (
        "a minimum above its maximum",
        "[[link]]\nname = \"eth0\"\nrate = \"10mbit\"\n\
         [[rule]]\nname = \"a\"\nmatch = \"user:61234\"\nup = \"1mbit\"\nmin = \"2mbit\"\n",
        5,
        "min",
    ),
    (
        "minimums that do not fit, the second of two",
        "[[link]]\nname = \"eth0\"\nrate = \"10mbit\"\n\
         [[rule]]\nname = \"a\"\nmatch = \"user:61234\"\nmin = \"6mbit\"\n\
         [[rule]]\nname = \"b\"\nmatch = \"user:61235\"\nmin = \"6mbit\"\n",
        9,
        "4 Mbit/s",
    ),
    (
        "what only flows can have",
        "[[rule]]\nname = \"a\"\nmatch = \"user:61234\"\n\
            channel = \"mmax=1KiB,rmax=10/s,bmax=1,deadline=1s\"\n",
        2,
        "not supported yet",
    ),
];

const VALID_POLICY: &str = "[[link]]\nname = \"eth0\"\nrate = \"10mbit\"\n\
    [[rule]]\nname = \"ann\"\nmatch = \"user:61234\"\nup = \"4mbit\"\nmin = \"1mbit\"\n";

#[test]
fn an_error_is_reported_with_file_and_line_and_changes_nothing() {
    let bed = bed_with_policy(VALID_POLICY);
    let before = bed.shown();
    assert_eq!(before["targets"][0]["target"], "user:61234", "{before}");
    for (what, text, line, word) in FAULTY_POLICIES {
        write(&bed, text);
        let answer = bed.netnice.run(&["reload"]).expect("it answers");
        assert!([2, 3].contains(&answer.status), "{what}: {answer:?}");
        let place = format!("client.policy.toml:{line}");
        assert!(
            answer.stderr.contains(&place),
            "{what}: not {place}: {}",
            answer.stderr
        );
        assert!(answer.stderr.contains(word), "{what}: {}", answer.stderr);
        assert_eq!(before, bed.shown(), "{what}: something changed");
    }
    // The errors did not damage the daemon: a corrected file is loaded.
    write(&bed, VALID_POLICY);
    bed.run_ok("reload");
    assert_eq!(before, bed.shown());
}

#[test]
fn sighup_reloads_the_policy_and_a_faulty_one_does_not_stop_the_daemon() {
    let mut bed = bed_with_policy(VALID_POLICY);
    write(&bed, &VALID_POLICY.replace("4mbit", "5mbit"));
    let pid = bed.netnice.pid().expect("it runs");
    sys::kill(pid as i32, libc::SIGHUP).expect("a signal");
    let up = || bed.target("user:61234")["contract"]["up"].clone();
    assert!(becomes_true(|| up() == 5_000_000), "{}", up());
    write(&bed, "what is this\n");
    sys::kill(pid as i32, libc::SIGHUP).expect("a signal");
    let said = || bed.run_ok("log").stdout.contains("client.policy.toml:1");
    assert!(becomes_true(said), "{}", bed.run_ok("log").stdout);
    assert_eq!(up(), 5_000_000);
    bed.netnice.stop_daemon();
    bed.netnice.start_daemon().expect("it starts all the same");
    let said = bed.run_ok("log").stdout;
    assert!(said.contains("client.policy.toml:1"), "{said}");
    bed.run_ok("set user:61235 --up 1mbit");
}

#[test]
fn a_policy_is_in_force_when_the_daemon_answers() {
    netnice_lab::world::begin().expect("a clean start");
    let world = World::pair(Pair::default()).expect("a world");
    fs::write(world.folder().join("client.policy.toml"), VALID_POLICY).expect("a policy");
    let netnice = Netnice::start(&world.client().ns, &world.folder().join("client"));
    let netnice = netnice.expect("a daemon");
    let shown = netnice.show().expect("a show");
    assert_eq!(shown["targets"][0]["target"], "user:61234", "{shown}");
    assert_eq!(shown["links"][0]["link"], "eth0", "{shown}");
}

#[test]
fn without_an_input_meter_the_short_form_limits_sending_only() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let target = format!("pid:{}", sleeper.pid());
    bed.run_ok(&format!("{} 4mbit", sleeper.pid()));
    let contract = bed.target(&target)["contract"].clone();
    assert_eq!(contract["both"], 4_000_000, "{contract}");
    bed.run_ok(&format!("clear {target}"));
    write(&bed, "input_meter = false\n");
    bed.run_ok("reload");
    bed.run_ok(&format!("{} 4mbit", sleeper.pid()));
    let contract = bed.target(&target)["contract"].clone();
    assert_eq!(contract["up"], 4_000_000, "{contract}");
    assert!(
        contract["both"].is_null() && contract["down"].is_null(),
        "{contract}"
    );
}
