//! Tests of links whose rate is estimated: requests, promises, and what messages of the estimating
//! threads change.

use netnice_api::Log;
use netnice_core::units::Rate;

use super::*;
use crate::estimate::{EstimateState, Estimated};
use crate::reconcile::SavedState;
use crate::state::State;

const BOUNDS: &str = "rate auto min 2mbit max 50mbit";

/// A request for eth0: words of a field and its value.
fn change(words: &str) -> LinkChange {
    let mut change = LinkChange {
        iface: "eth0".to_owned(),
        ..LinkChange::default()
    };
    let words: Vec<&str> = words.split_whitespace().collect();
    for pair in words.chunks(2) {
        let value = pair[1].to_owned();
        match pair[0] {
            "iface" => change.iface = value,
            "rate" => change.rate = Some(value),
            "down" => change.down_rate = Some(value),
            "min" => change.min = Some(value),
            "max" => change.max = Some(value),
            "min-down" => change.min_down = Some(value),
            "max-down" => change.max_down = Some(value),
            "probe" => change.probes = Some(value.split(',').map(str::to_owned).collect()),
            other => panic!("{other}"),
        }
    }
    change
}

fn ask(fixture: &mut Fixture, words: &str) -> Response {
    fixture.ask(&Peer::ROOT, Request::Link(Box::new(change(words))), None)
}

/// eth0 leads to the internet. pid:10 runs.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    fixture.machine().default_route = Some("eth0".to_owned());
    fixture
}

fn mbit(rate: u64) -> Option<Rate> {
    Rate::new(rate * 1_000_000)
}

fn message(rates: [Option<Rate>; 2], fault: Option<&str>) -> Estimated {
    Estimated {
        number: 1,
        name: "eth0".parse().expect("a name"),
        rates,
        state: EstimateState {
            replying: 3,
            fault: fault.map(str::to_owned),
        },
    }
}

fn estimate(fixture: &mut Fixture, up: u64) {
    fixture.now.monotonic = fixture.now.monotonic.after(Nanos::from_secs(1));
    let message = message([mbit(up), None], None);
    fixture.service.handle_estimated(message, fixture.now);
    fixture.check();
}

fn log(fixture: &mut Fixture) -> String {
    match fixture.ask(&Peer::ROOT, Request::Log(Log::default()), None) {
        Response::Log(log) => {
            let lines = log.lines.into_iter().map(|line| line.text);
            lines.collect::<Vec<String>>().join("\n")
        }
        other => panic!("{other:?}"),
    }
}

/// The rate of eth0's classes.
fn class_rate(fixture: &mut Fixture) -> Option<Rate> {
    let links = &fixture.machine().in_force.desired.links;
    links.iter().find(|link| link.name == "eth0")?.up
}

#[test]
fn an_estimated_link_is_shown_as_one_and_begins_with_its_lower_bound() {
    let mut fixture = fixture();
    let done = ok(ask(&mut fixture, BOUNDS));
    let text = done.messages.join("\n");
    assert!(
        text.contains("an estimate from delays, from 2 Mbit/s to 50 Mbit/s"),
        "{text}"
    );
    assert!(
        text.contains("probes go to 1.1.1.1, 9.9.9.9, 8.8.8.8"),
        "{text}"
    );
    let doc = fixture.show();
    let up = doc.links[0].up.clone().expect("managed");
    assert_eq!((up.source.as_str(), up.rate), ("estimate", 2_000_000));
    assert_eq!((up.min, up.max), (Some(2_000_000), Some(50_000_000)));
    assert_eq!(doc.links[0].down, None);
    assert_eq!(doc.links[0].probes.len(), 3);
    let wanted = fixture.service.estimated_links();
    assert_eq!(wanted.len(), 1);
    assert_eq!(wanted[0].1, [mbit(2), None]);
}

#[test]
fn promises_count_against_the_lower_bound_and_no_estimate_touches_them() {
    let mut fixture = fixture();
    ok(ask(&mut fixture, BOUNDS));
    estimate(&mut fixture, 20);
    let text = refused(fixture.set("pid:10", "min 3mbit"));
    assert!(text.contains("2 Mbit/s of it can be promised"), "{text}");
    assert!(text.contains("an estimate from delays"), "{text}");
    ok(fixture.set("pid:10", "min 2mbit"));
    for up in [50, 2, 7] {
        estimate(&mut fixture, up);
        assert_eq!(class_rate(&mut fixture), mbit(up));
        assert!(fixture.held("pid:10").expect("held").refused.is_none());
        let shown = fixture.show().links[0].up.clone().expect("managed");
        assert_eq!((shown.rate, shown.usable), (up * 1_000_000, 2_000_000));
    }
    // A lower bound below the promise takes it out of force, as any slower link does.
    let done = ok(ask(&mut fixture, "min 1mbit"));
    let text = done.messages.join("\n");
    assert!(
        text.contains("pid:10 (asked by root) loses min 2mbit"),
        "{text}"
    );
    let done = ok(ask(&mut fixture, "min 4mbit"));
    let text = done.messages.join("\n");
    assert!(
        text.contains("pid:10 (asked by root) has min 2mbit"),
        "{text}"
    );
    assert_eq!(class_rate(&mut fixture), mbit(7), "the estimate goes on");
    fixture.check();
}

#[test]
fn an_estimate_never_leaves_its_bounds_and_one_for_another_link_changes_nothing() {
    let mut fixture = fixture();
    ok(ask(&mut fixture, BOUNDS));
    estimate(&mut fixture, 700);
    assert_eq!(class_rate(&mut fixture), mbit(50));
    estimate(&mut fixture, 1);
    assert_eq!(class_rate(&mut fixture), mbit(2));
    ok(ask(&mut fixture, "rate 30mbit"));
    assert!(fixture.service.estimated_links().is_empty());
    estimate(&mut fixture, 10);
    assert_eq!(class_rate(&mut fixture), mbit(30), "it is the operator's");
    assert!(fixture.show().links[0].probes.is_empty());
}

#[test]
fn a_slow_kernel_makes_estimates_wait_and_the_last_one_counts() {
    let mut fixture = fixture();
    ok(ask(&mut fixture, BOUNDS));
    estimate(&mut fixture, 10);
    fixture
        .service
        .delay_estimates(Nanos::from_millis(100), fixture.now);
    for up in [20, 30] {
        let message = message([mbit(up), None], None);
        fixture.service.handle_estimated(message, fixture.now);
    }
    assert_eq!(class_rate(&mut fixture), mbit(10));
    let due = fixture.service.estimates_due().expect("one waits");
    assert_eq!(due.since(fixture.now.monotonic), Nanos::from_secs(2));
    fixture.now.monotonic = due;
    fixture.service.follow_estimates(fixture.now);
    assert_eq!(class_rate(&mut fixture), mbit(30));
    assert_eq!(fixture.service.estimates_due(), None);
}

#[test]
fn large_changes_are_logged_once_a_minute() {
    let mut fixture = fixture();
    ok(ask(&mut fixture, BOUNDS));
    for up in [10, 40, 5, 40, 5] {
        estimate(&mut fixture, up);
    }
    let count = |fixture: &mut Fixture| log(fixture).matches("is estimated to carry").count();
    assert_eq!(count(&mut fixture), 1);
    fixture.advance(60);
    estimate(&mut fixture, 40);
    assert_eq!(count(&mut fixture), 2);
}

#[test]
fn a_link_without_replies_is_degraded_with_the_reason() {
    let mut fixture = fixture();
    ok(ask(&mut fixture, BOUNDS));
    let silent = message(
        [mbit(2), None],
        Some("none of the 3 hosts that are probed replies"),
    );
    fixture.service.handle_estimated(silent, fixture.now);
    let degraded = fixture.show().links[0].degraded.join("\n");
    assert!(degraded.contains("none of the 3 hosts"), "{degraded}");
    assert!(degraded.contains("netnice link eth0 --probe"), "{degraded}");
    assert!(log(&mut fixture).contains("none of the 3 hosts"));
    estimate(&mut fixture, 10);
    assert!(fixture.show().links[0].degraded.is_empty());
}

#[test]
fn invalid_requests_get_one_error_and_change_nothing() {
    let mut fixture = fixture();
    let eth1 = "iface eth1 rate auto min 1mbit max 2mbit";
    fixture.machine().interfaces.insert("eth1".to_owned(), true);
    fixture.machine().interfaces.insert("lo".to_owned(), true);
    for (words, text) in [
        ("rate auto", "--rate auto needs --min R and --max R"),
        (
            "rate auto max 5mbit",
            "--rate auto needs --min R and --max R",
        ),
        (
            "down auto min-down 1mbit",
            "--down-rate auto needs --min-down R and --max-down R",
        ),
        (
            "rate auto min 9mbit max 5mbit",
            "--min 9 Mbit/s is above --max 5 Mbit/s",
        ),
        (
            "min 5mbit",
            "--min and --max are the bounds of an estimated rate",
        ),
        (
            "rate 5mbit max-down 5mbit",
            "--min-down and --max-down are the bounds",
        ),
        (
            "rate 5mbit probe 192.0.2.1",
            "--probe names the hosts for an estimated rate",
        ),
        (
            "rate auto min 1mbit max 2mbit probe 127.0.0.1",
            "127.0.0.1 is not the address",
        ),
        (
            "rate auto min 1mbit max 2mbit probe fe80::1",
            "fe80::1 is not the address",
        ),
        (
            "rate auto min 1mbit max 2mbit probe example.org",
            "`example.org` is not the address",
        ),
        (
            "rate auto min 1mbit max 2mbit probe 1.0.0.1,1.0.0.2,1.0.0.3,1.0.0.4,1.0.0.5,\
             1.0.0.6,1.0.0.7,1.0.0.8,1.0.0.9",
            "--probe names 9 hosts: 8 at most",
        ),
        ("rate auto min x max 2mbit", "x"),
        (
            "iface lo rate auto min 1mbit max 2mbit",
            "lo leads to no other host",
        ),
        (eth1, "eth1 does not lead to 1.1.1.1"),
        ("iface eth7 rate auto min 1mbit max 2mbit", "eth7"),
    ] {
        let error = match ask(&mut fixture, words) {
            Response::Failed(failed) => failed.text,
            other => panic!("{words}: {other:?}"),
        };
        assert!(error.contains(text), "{words}: {error}");
        assert!(fixture.show().links.is_empty(), "{words}");
    }
    let user = fixture.ask(&ANN, Request::Link(Box::new(change(BOUNDS))), None);
    assert!(refused(user).contains("managing a link"));
    // With hosts beyond it, a link without a default route can be estimated.
    ok(ask(
        &mut fixture,
        &format!("{eth1} probe 192.0.2.1,192.0.2.1,2001:db8::1"),
    ));
    assert_eq!(fixture.show().links[0].probes, ["192.0.2.1", "2001:db8::1"]);
}

#[test]
fn the_next_daemon_goes_on_with_the_last_estimate() {
    let mut fixture = fixture();
    ok(ask(
        &mut fixture,
        "rate auto min 2mbit max 50mbit probe 192.0.2.1",
    ));
    estimate(&mut fixture, 17);
    let before = fixture.service.estimated_links();
    let state = State {
        ledger: fixture.service.ledger().clone(),
        rollbacks: Default::default(),
    };
    let mut service = Service::new(fixture.machine().clone(), None);
    service.start(SavedState::Complete(Box::new(state)), fixture.now);
    fixture.service = service;
    assert_eq!(fixture.service.estimated_links(), before);
    assert_eq!(before[0].1, [mbit(17), None]);
    assert_eq!(class_rate(&mut fixture), mbit(17));
}

#[test]
fn an_estimate_for_a_time_is_given_back() {
    let mut fixture = fixture();
    ok(ask(
        &mut fixture,
        "rate auto min 2mbit max 50mbit probe 192.0.2.1",
    ));
    let mut timed = change("rate 10mbit");
    timed.for_ns = Some(10_000_000_000);
    ok(fixture.ask(&Peer::ROOT, Request::Link(Box::new(timed)), None));
    assert!(fixture.service.estimated_links().is_empty());
    fixture.advance(11);
    let links = fixture.service.estimated_links();
    assert_eq!(links[0].0.reflectors.len(), 1, "the hosts come back too");
}

#[test]
fn an_estimate_that_the_kernel_does_not_take_is_tried_again() {
    let mut fixture = fixture();
    ok(ask(&mut fixture, BOUNDS));
    fixture.machine().fails_in = Some(0);
    estimate(&mut fixture, 20);
    assert_eq!(class_rate(&mut fixture), mbit(2));
    assert!(log(&mut fixture).contains("following the estimate of a link"));
    fixture.now.monotonic = fixture.service.estimates_due().expect("it waits");
    fixture.service.follow_estimates(fixture.now);
    assert_eq!(class_rate(&mut fixture), mbit(20));
    fixture.check();
}
