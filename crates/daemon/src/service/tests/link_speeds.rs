//! Tests of links whose rate changes: by the driver's speed, and by a request.

use netnice_api::Log;

use super::policy::PolicyFile;
use super::*;
use crate::reconcile::SavedState;
use crate::state::State;

/// eth0 at its driver's 100 Mbit/s. pid:10 has 25 Mbit/s of it and pid:20, which is younger, 40.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    for pid in [10, 20, 30] {
        fixture.machine().spawn(pid, 0);
    }
    set_speed(&mut fixture, "100mbit");
    ok(fixture.link("eth0", "", ""));
    ok(fixture.set("pid:10", "min 25mbit up 30mbit"));
    ok(fixture.set("pid:20", "min 40mbit up 90mbit"));
    ok(fixture.set("pid:30", "up 5mbit"));
    fixture
}

fn set_speed(fixture: &mut Fixture, rate: &str) {
    let rate = rate.parse().expect("a rate");
    fixture.machine().speeds.insert("eth0".to_owned(), rate);
}

/// Lets half a second pass, after which speeds are read again.
fn half_a_second(fixture: &mut Fixture) {
    fixture.now.monotonic = fixture.now.monotonic.after(Nanos::from_millis(500));
    fixture.service.balance(fixture.now);
    fixture.check();
}

fn log(fixture: &mut Fixture) -> String {
    let log = Request::Log(Log::default());
    match fixture.ask(&Peer::ROOT, log, None) {
        Response::Log(log) => {
            let lines = log.lines.into_iter().map(|line| line.text);
            lines.collect::<Vec<String>>().join("\n")
        }
        other => panic!("{other:?}"),
    }
}

/// The sending rate of eth0, and the guarantees of pid:10 and pid:20, in Mbit/s.
fn shown(fixture: &mut Fixture) -> (u64, [Option<u64>; 2]) {
    let doc = fixture.show();
    let min = |n: usize| doc.targets[n].effective.min.map(|bits| bits / 1_000_000);
    let up = doc.links[0].up.as_ref().expect("managed");
    (up.rate / 1_000_000, [min(0), min(1)])
}

fn lower(fixture: &mut Fixture, peer: &Peer, rate: &str, more: fn(&mut LinkChange)) -> Response {
    let mut change = LinkChange {
        iface: "eth0".to_owned(),
        rate: Some(rate.to_owned()),
        ..LinkChange::default()
    };
    more(&mut change);
    fixture.ask(peer, Request::Link(Box::new(change)), None)
}

#[test]
fn a_changed_speed_is_followed_the_degraded_are_named_and_restored() {
    let mut fixture = fixture();
    let before = without_counters(fixture.show());
    set_speed(&mut fixture, "40mbit");
    half_a_second(&mut fixture);
    assert_eq!(shown(&mut fixture), (40, [Some(25), None]));
    let doc = fixture.show();
    assert!(doc.links[0].degraded[0].contains("pid:20"), "{doc:?}");
    assert!(doc.targets[0].degraded.is_empty() && doc.targets[2].degraded.is_empty());
    assert!(doc.targets[1].degraded[0].contains("40 Mbit/s"), "{doc:?}");
    let text = log(&mut fixture);
    assert!(text.contains("the speed of eth0 has changed"), "{text}");
    let lost = "pid:20 (asked by root) loses min 40mbit on eth0";
    assert!(text.contains(lost), "{text}");
    assert!(!text.contains("pid:10 (asked"), "{text}");
    set_speed(&mut fixture, "100mbit");
    half_a_second(&mut fixture);
    assert_eq!(without_counters(fixture.show()), before);
    let text = log(&mut fixture);
    assert!(
        text.contains("pid:20 (asked by root) has min 40mbit on eth0 again"),
        "{text}"
    );
}

#[test]
fn a_change_of_interfaces_is_followed_at_once_and_nothing_is_read_too_often() {
    let mut fixture = fixture();
    half_a_second(&mut fixture);
    set_speed(&mut fixture, "40mbit");
    fixture.service.balance(fixture.now);
    assert_eq!(shown(&mut fixture).0, 100, "it was read just before");
    fixture.service.repair(fixture.now);
    assert_eq!(shown(&mut fixture), (40, [Some(25), None]));
}

#[test]
fn without_a_carrier_the_last_speed_stays_and_so_does_the_operators() {
    let mut fixture = fixture();
    fixture.machine().speeds.clear();
    half_a_second(&mut fixture);
    assert_eq!(shown(&mut fixture), (100, [Some(25), Some(40)]));
    // The operator gives the sending rate; the receiving rate stays the driver's.
    ok(fixture.link("eth0", "90mbit", ""));
    set_speed(&mut fixture, "10mbit");
    half_a_second(&mut fixture);
    assert_eq!(shown(&mut fixture), (90, [Some(25), Some(40)]));
    let down = fixture.show().links[0].down.clone().expect("managed");
    assert_eq!((down.rate, down.source.as_str()), (10_000_000, "driver"));
}

#[test]
fn a_speed_that_the_kernel_does_not_take_is_tried_again() {
    let mut fixture = fixture();
    set_speed(&mut fixture, "40mbit");
    fixture.machine().fails_in = Some(0);
    half_a_second(&mut fixture);
    assert_eq!(shown(&mut fixture), (100, [Some(25), Some(40)]));
    assert!(log(&mut fixture).contains("following the speed of a link"));
    half_a_second(&mut fixture);
    assert_eq!(shown(&mut fixture), (40, [Some(25), None]));
}

#[test]
fn a_dry_run_of_a_lower_rate_names_the_losses_and_the_change_does_the_same() {
    let mut fixture = fixture();
    let before = without_counters(fixture.show());
    let in_force = fixture.machine().in_force.clone();
    let done = ok(lower(&mut fixture, &Peer::ROOT, "40mbit", |change| {
        change.dry_run = true;
    }));
    let plan = done.plan.expect("a plan").join("\n");
    let line = "pid:20 (asked by root): up 90mbit min 40mbit on eth0 -> up 90mbit on eth0";
    assert!(plan.contains(line), "{plan}");
    assert!(
        plan.contains("pid:20 does not fit and is degraded"),
        "{plan}"
    );
    assert!(
        !plan.contains("pid:10 (asked") && !plan.contains("pid:30"),
        "{plan}"
    );
    assert_eq!(without_counters(fixture.show()), before);
    assert_eq!(fixture.machine().in_force, in_force);
    let done = ok(lower(&mut fixture, &Peer::ROOT, "40mbit", |_| {}));
    let text = done.messages.join("\n");
    assert!(
        text.contains("pid:20 (asked by root) loses min 40mbit on eth0"),
        "{text}"
    );
    assert_eq!(shown(&mut fixture), (40, [Some(25), None]));
    fixture.check();
    let done = ok(lower(&mut fixture, &Peer::ROOT, "65mbit", |_| {}));
    assert!(
        done.messages[1].contains("pid:20 (asked by root) has min 40mbit"),
        "{done:?}"
    );
    assert_eq!(shown(&mut fixture), (65, [Some(25), Some(40)]));
    fixture.check();
}

#[test]
fn a_lower_rate_for_a_time_gives_everything_back() {
    let mut fixture = fixture();
    ok(lower(&mut fixture, &Peer::ROOT, "40mbit", |change| {
        change.for_ns = Some(10_000_000_000);
    }));
    assert_eq!(shown(&mut fixture), (40, [Some(25), None]));
    fixture.advance(11);
    assert_eq!(shown(&mut fixture), (100, [Some(25), Some(40)]));
    assert!(log(&mut fixture).contains("pid:20 (asked by root) has min 40mbit"));
    // The other way round: what was promised meanwhile does not fit any more.
    ok(lower(&mut fixture, &Peer::ROOT, "200mbit", |change| {
        change.for_ns = Some(10_000_000_000);
    }));
    ok(fixture.set("pid:30", "up none min 120mbit"));
    fixture.advance(11);
    assert_eq!(shown(&mut fixture), (100, [Some(25), Some(40)]));
    assert!(log(&mut fixture).contains("pid:30 (asked by root) loses min 120mbit on eth0"));
    fixture.check();
}

#[test]
fn a_plain_user_cannot_change_a_rate_or_see_more_than_show_tells() {
    let mut fixture = fixture();
    for (rate, dry_run) in [("40mbit", false), ("40mbit", true), ("1gbit", false)] {
        let text = match dry_run {
            true => refused(lower(&mut fixture, &ANN, rate, |c| c.dry_run = true)),
            false => refused(lower(&mut fixture, &ANN, rate, |_| {})),
        };
        assert!(text.contains("managing a link"), "{text}");
    }
    assert_eq!(shown(&mut fixture), (100, [Some(25), Some(40)]));
    // Limits of users neither take part in the order nor change.
    fixture.machine().spawn(40, 1000);
    ok(fixture.set_as(&ANN, "pid:40", "up 1mbit"));
    set_speed(&mut fixture, "20mbit");
    half_a_second(&mut fixture);
    assert_eq!(shown(&mut fixture), (20, [None, None]));
    let held = fixture.held("pid:40").expect("held");
    assert_eq!(held.entry.contract.to_string(), "up 1mbit");
    assert!(held.refused.is_none() && held.aside.is_none());
}

#[test]
fn the_policy_stays_valid_while_the_driver_is_slower_or_silent() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    set_speed(&mut fixture, "100mbit");
    let text =
        "[[link]]\nname = \"eth0\"\n[[rule]]\nname = \"a\"\nmatch = \"unit:a\"\nmin = \"60mbit\"\n";
    let file = PolicyFile::new("link-speeds", text);
    fixture.service.load_policy(&file.0, fixture.now);
    assert!(fixture.held("unit:a").expect("held").refused.is_none());
    set_speed(&mut fixture, "40mbit");
    half_a_second(&mut fixture);
    assert!(fixture.held("unit:a").expect("held").refused.is_some());
    let reload = |fixture: &mut Fixture| {
        let reload = Request::Reload(netnice_api::Reload {});
        ok(fixture.ask(&Peer::ROOT, reload, None))
    };
    reload(&mut fixture);
    fixture.machine().speeds.clear();
    reload(&mut fixture);
    set_speed(&mut fixture, "100mbit");
    half_a_second(&mut fixture);
    assert!(fixture.held("unit:a").expect("held").refused.is_none());
    fixture.check();
}

#[test]
fn the_next_daemon_follows_a_speed_that_changed_in_between() {
    let mut fixture = fixture();
    let state = State {
        ledger: fixture.service.ledger().clone(),
        rollbacks: Default::default(),
    };
    set_speed(&mut fixture, "40mbit");
    let mut service = Service::new(fixture.machine().clone(), None);
    service.start(SavedState::Complete(Box::new(state)), fixture.now);
    fixture.service = service;
    assert_eq!(shown(&mut fixture), (100, [Some(25), Some(40)]));
    fixture.service.balance(fixture.now);
    assert_eq!(shown(&mut fixture), (40, [Some(25), None]));
    fixture.check();
}
