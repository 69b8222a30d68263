//! Tests links whose rate is estimated from delays (`netnice link --rate auto`), behind a cable
//! whose rate changes: the estimate follows in both directions, promises stay, a daemon goes on
//! with the estimate of the one before, an idle link is hardly probed, and invalid requests change
//! nothing.
//!
//! How fast and how exactly the estimate follows is measured by the experiment `estimate`, which
//! runs alone.

use netnice_lab::experiment::bench::pause;
use netnice_lab::testbed::becomes_true;
use netnice_lab::traffic::{self, Running, Tcp};
use netnice_lab::world::modem::{Modem, REFLECTORS};
use netnice_lab::world::{Cable, CommandOutput, Netnice, World};
use serde_json::Value;

const PORT: u16 = 5001;

fn run(modem: &Modem, line: &str) -> String {
    let answer = modem.netnice.run_line(line);
    answer.unwrap_or_else(|error| panic!("{error}")).stdout
}

/// Runs a command line that may fail.
fn attempt(netnice: &Netnice, line: &str) -> CommandOutput {
    let words: Vec<&str> = line.split_whitespace().collect();
    netnice.run(&words).expect("netnice can be started")
}

fn link(modem: &Modem) -> Value {
    let shown = modem.netnice.show().expect("the state");
    shown["links"][0].clone()
}

/// The estimate for a direction, in kbit/s.
fn estimate(modem: &Modem, side: &str) -> u64 {
    link(modem)[side]["rate"].as_u64().expect("a rate") / 1000
}

fn hosts() -> String {
    REFLECTORS.join(",")
}

/// Four TCP flows in this direction.
fn flows(modem: &Modem, side: &str) -> [Running; 2] {
    let server = modem.world.server();
    let to = std::net::SocketAddr::new(server.port().v4.into(), PORT);
    let (listener, connector) = match side {
        "up" => (Tcp::listen(to).sink(), Tcp::connect(to, 4).source()),
        _ => (Tcp::listen(to).source(), Tcp::connect(to, 4).sink()),
    };
    let listener = traffic::start_now(server, &listener).expect("a listener");
    let client = modem.world.client();
    [
        listener,
        traffic::start_now(client, &connector).expect("flows"),
    ]
}

/// The estimate follows the cable from 20 to 5 Mbit/s and back.
fn follows(side: &str, options: &str) {
    let modem = Modem::new(20).expect("a world");
    run(&modem, &format!("link eth0 {options} --probe {}", hosts()));
    let shown = run(&modem, "link");
    assert!(
        shown.contains("an estimate from delays, from 1 Mbit/s to 100 Mbit/s"),
        "{shown}"
    );
    assert!(
        shown.contains("probes go to 10.77.0.2, 10.77.0.12, 10.77.0.13"),
        "{shown}"
    );
    let flows = flows(&modem, side);
    let fast = || estimate(&modem, side) >= 12_000;
    assert!(becomes_true(fast), "not fast: {}", link(&modem));
    modem.set(5).expect("a slow cable");
    let slow = || estimate(&modem, side) <= 7_000;
    assert!(becomes_true(slow), "not slow: {}", link(&modem));
    modem.set(20).expect("a fast cable");
    assert!(becomes_true(fast), "not fast again: {}", link(&modem));
    drop(flows);
}

#[test]
fn the_estimate_for_sending_follows_the_cable() {
    follows("up", "--rate auto --min 1mbit --max 100mbit");
}

#[test]
fn the_estimate_for_receiving_follows_the_cable() {
    follows(
        "down",
        "--down-rate auto --min-down 1mbit --max-down 100mbit",
    );
}

#[test]
fn a_promise_stays_whatever_the_estimate_is_and_the_next_daemon_goes_on() {
    let mut modem = Modem::new(20).expect("a world");
    let hosts = hosts();
    run(
        &modem,
        &format!("link eth0 --rate auto --min 2mbit --max 100mbit --probe {hosts}"),
    );
    let flows = flows(&modem, "up");
    let target = format!("pid:{}", flows[1].pid());
    let fast = || estimate(&modem, "up") >= 12_000;
    assert!(becomes_true(fast), "not fast: {}", link(&modem));
    let refused = attempt(&modem.netnice, &format!("set {target} --min 3mbit"));
    assert_eq!(refused.status, 3, "{}", refused.stderr);
    let told = "2 Mbit/s of it can be promised";
    assert!(refused.stderr.contains(told), "{}", refused.stderr);
    run(&modem, &format!("set {target} --min 2mbit"));
    let explained = run(&modem, &format!("explain {target}"));
    assert!(explained.contains("an estimate from delays"), "{explained}");
    modem.netnice.stop_daemon();
    modem.netnice.start_daemon().expect("a daemon");
    let first = estimate(&modem, "up");
    assert!(first >= 8_000, "it goes on with {first} kbit/s");
    assert_eq!(link(&modem)["up"]["source"], "estimate");
    assert_eq!(link(&modem)["probes"].as_array().map(Vec::len), Some(3));
    modem.set(5).expect("a slow cable");
    let slow = || estimate(&modem, "up") <= 7_000;
    assert!(becomes_true(slow), "not slow: {}", link(&modem));
    let shown = modem.netnice.show().expect("the state");
    assert_eq!(
        shown["targets"][0]["degraded"],
        Value::Array(Vec::new()),
        "{shown}"
    );
    assert_eq!(
        shown["targets"][0]["installed"]["min"], 2_000_000,
        "{shown}"
    );
    drop(flows);
}

#[test]
fn an_idle_link_is_hardly_probed_and_a_silent_host_is_reported() {
    let modem = Modem::new(20).expect("a world");
    let hosts = hosts();
    run(
        &modem,
        &format!("link eth0 --rate auto --min 2mbit --max 50mbit --probe {hosts}"),
    );
    // The best delays are measured first; then the rate is the middle of the bounds.
    let known = || estimate(&modem, "up") == 10_000;
    assert!(becomes_true(known), "{}", link(&modem));
    pause(6.0);
    let before = modem.probes().expect("counts");
    pause(10.0);
    let probes = modem.probes().expect("counts") - before;
    assert!(probes <= 6, "{probes} probes in 10 s of an idle link");
    assert_eq!(link(&modem)["degraded"], Value::Array(Vec::new()));
    run(&modem, "link eth0 --probe 10.77.0.99");
    let told = || {
        link(&modem)["degraded"][0]
            .as_str()
            .is_some_and(|why| why.contains("--probe HOST"))
    };
    assert!(becomes_true(told), "{}", link(&modem));
    assert!(run(&modem, "show").contains("degraded"));
    run(&modem, "link eth0 --unmanage");
    assert!(modem.netnice.show().expect("the state")["links"] == Value::Array(Vec::new()));
}

#[test]
fn an_invalid_estimate_gets_one_clear_error_and_changes_nothing() {
    netnice_lab::world::begin().expect("root");
    let world = World::switched(&[Cable::free("client"), Cable::free("server")]).expect("a world");
    let netnice = world.netnice("client").expect("a daemon");
    for (words, status, text) in [
        (
            "link lo --rate auto --min 1mbit --max 2mbit",
            2,
            "lo leads to no other host",
        ),
        (
            "link eth0 --rate auto",
            2,
            "--rate auto needs --min R and --max R",
        ),
        (
            "link eth0 --rate auto --min 9mbit --max 2mbit",
            2,
            "--min 9 Mbit/s is above --max",
        ),
        (
            "link eth0 --rate auto --min 1mbit --max 2mbit",
            2,
            "--probe HOST",
        ),
        (
            "link eth0 --rate auto --min 1mbit --max 2mbit --probe ::1",
            2,
            "::1 is not the address",
        ),
        (
            "link eth0 --rate 5mbit --min 1mbit",
            2,
            "--min and --max are the bounds",
        ),
        (
            "link eth0 --rate 5mbit --probe 10.77.0.2",
            2,
            "--probe names the hosts",
        ),
        ("link eth0 --rate automatic", 2, "--rate"),
        (
            "link nosuch0 --rate auto --min 1mbit --max 2mbit",
            1,
            "nosuch0",
        ),
    ] {
        let answer = attempt(&netnice, words);
        assert_eq!(answer.status, status, "{words}: {}", answer.stderr);
        assert!(answer.stderr.contains(text), "{words}: {}", answer.stderr);
        let shown = netnice.show().expect("the state");
        assert_eq!(shown["links"], Value::Array(Vec::new()), "{words}");
    }
}
