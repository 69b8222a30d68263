//! Tests of claims with a schedule: they hold in their hours, whatever happens in between.

use netnice_api::ScheduleDoc;
use proptest::prelude::*;

use super::*;
use crate::reconcile::SavedState;
use crate::state::State;

/// Sets the wall clock to a time of day in UTC, on a day of November 2026; the 23rd is a Monday.
fn set_clock(fixture: &mut Fixture, day: u64, hour: u64, minute: u64) {
    let midnight = 1_793_491_200 + (day - 1) * 86_400;
    fixture.now.wall_ns = (midnight + hour * 3_600 + minute * 60) * 1_000_000_000;
}

fn at(fixture: &mut Fixture, day: u64, hour: u64, minute: u64) {
    set_clock(fixture, day, hour, minute);
    fixture.advance(1);
}

/// The limit on sending in the kernel.
fn up(fixture: &mut Fixture) -> Option<u64> {
    let held = fixture.service.ledger().held().next().cloned();
    let id = held.expect("a target").id;
    let desired = &fixture.machine().in_force.desired;
    let target = desired.targets.iter().find(|target| target.id == id);
    match target.expect("in force").limit {
        netnice_kernel::plan::Limit::Each { up, .. } => up.map(|up| up.bits_per_second()),
        _ => None,
    }
}

fn schedules(fixture: &mut Fixture) -> Vec<ScheduleDoc> {
    fixture.show().targets[0].schedules.clone()
}

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    set_clock(&mut fixture, 23, 12, 0);
    fixture
}

const WORK: &str = "when mon-fri@08:00-18:00@UTC";

#[test]
fn a_limit_holds_in_its_hours_and_the_rest_of_the_time_does_not() {
    let mut fixture = fixture();
    ok(fixture.set("pid:10", &format!("up 4mbit {WORK}")));
    assert_eq!(up(&mut fixture), Some(4_000_000));
    let shown = &schedules(&mut fixture)[0];
    assert_eq!(shown.contract, "up 4mbit");
    assert_eq!(shown.when, "mon-fri@08:00-18:00@UTC");
    assert!(shown.active);
    assert_eq!(shown.next.as_deref(), Some("Mon 2026-11-23 18:00 UTC"));
    for (day, hour, minute, limit) in [
        (23, 17, 59, Some(4_000_000)),
        (23, 18, 0, None),
        (24, 7, 59, None),
        (24, 8, 0, Some(4_000_000)),
        (27, 18, 0, None),
        (29, 12, 0, None),
        (30, 8, 0, Some(4_000_000)),
    ] {
        at(&mut fixture, day, hour, minute);
        assert_eq!(up(&mut fixture), limit, "day {day}, {hour}:{minute}");
        let shown = fixture.show();
        assert_eq!(shown.targets[0].effective.up, limit);
        assert_eq!(shown.targets[0].contract.up, Some(4_000_000));
        assert_eq!(shown.targets[0].schedules[0].active, limit.is_some());
        fixture.check();
    }
}

#[test]
fn a_clock_that_is_set_moves_the_schedule_with_it() {
    let mut fixture = fixture();
    ok(fixture.set("pid:10", &format!("up 4mbit {WORK}")));
    // Forward over the end, back into the hours, back before their begin, forward by a year.
    at(&mut fixture, 23, 23, 0);
    assert_eq!(up(&mut fixture), None);
    at(&mut fixture, 23, 9, 0);
    assert_eq!(up(&mut fixture), Some(4_000_000));
    at(&mut fixture, 23, 5, 0);
    assert_eq!(up(&mut fixture), None);
    at(&mut fixture, 23 + 364, 12, 0);
    assert_eq!(up(&mut fixture), Some(4_000_000));
    fixture.check();
}

#[test]
fn a_schedule_is_part_of_one_claim_and_the_smallest_limit_in_force_holds() {
    let mut fixture = fixture();
    ok(fixture.set("pid:10", &format!("up 1mbit {WORK}")));
    // The user's own limit has no hours, and stays when root's ends.
    ok(fixture.set_as(&ANN, "pid:10", "up 3mbit"));
    assert_eq!(up(&mut fixture), Some(1_000_000));
    at(&mut fixture, 23, 20, 0);
    assert_eq!(up(&mut fixture), Some(3_000_000));
    // The user cannot touch root's schedule, nor lengthen the hours without a limit.
    refused(fixture.set_as(&ANN, "pid:10", "up none when none"));
    ok(fixture.set_as(&ANN, "pid:10", "up 9mbit when sat@UTC"));
    assert_eq!(up(&mut fixture), None);
    at(&mut fixture, 24, 12, 0);
    assert_eq!(up(&mut fixture), Some(1_000_000));
    at(&mut fixture, 28, 12, 0);
    assert_eq!(up(&mut fixture), Some(9_000_000));
    let shown = schedules(&mut fixture);
    assert_eq!(
        shown.iter().map(|one| one.uid).collect::<Vec<_>>(),
        [0, 1000]
    );
    fixture.check();
}

#[test]
fn what_a_schedule_brings_later_is_admitted_at_once() {
    let mut fixture = fixture();
    ok(fixture.link("eth0", "100mbit", ""));
    at(&mut fixture, 23, 20, 0);
    ok(fixture.set("pid:10", &format!("up 4mbit {WORK}")));
    assert_eq!(up(&mut fixture), None, "not in these hours");
    // A minimum above a limit that holds in other hours is refused now, and not at 08:00.
    let text = failed(fixture.set("pid:10", "min 5mbit"));
    assert!(text.contains("cannot have a schedule"), "{text}");
    fixture.machine().fork(10, 11);
    let text = refused(fixture.set("pid:11", "min 5mbit"));
    assert!(text.contains("5 Mbit/s"), "{text}");
    ok(fixture.set("pid:11", "min 3mbit"));
    at(&mut fixture, 24, 8, 0);
    assert!(fixture.show().targets.iter().all(|t| t.degraded.is_empty()));
    fixture.check();
}

#[test]
fn bad_schedules_change_nothing() {
    let mut fixture = fixture();
    ok(fixture.set("pid:10", "up 4mbit"));
    let before = without_counters(fixture.show());
    for (text, reason) in [
        ("when mon@08:00-08:00", "never comes"),
        ("when 00:00-00:00", "never comes"),
        ("when monday", "`monday` is not a day"),
        (
            "when mon@08:00-18:00@Europe/Berlni",
            "not in the time zone database",
        ),
        ("min 1mbit when mon", "min cannot have a schedule"),
    ] {
        let text = format!("{:?}", fixture.set("pid:10", text));
        assert!(!text.starts_with("Done"), "{text}");
        assert!(text.contains(reason), "{text}");
    }
    fixture.machine().spawn(20, 0);
    let alone = fixture.set("pid:20", "when mon");
    assert!(
        format!("{alone:?}").contains("nothing to schedule"),
        "{alone:?}"
    );
    assert_eq!(without_counters(fixture.show()), before);
    // The last limit takes its hours with it.
    ok(fixture.set("pid:10", WORK));
    ok(fixture.set("pid:10", "up none"));
    assert!(fixture.held("pid:10").is_none());
    fixture.check();
}

#[test]
fn a_restart_and_an_ended_process_keep_to_the_hours() {
    let mut fixture = fixture();
    ok(fixture.set("pid:10", &format!("up 4mbit {WORK}")));
    // The daemon was away over the end of the hours.
    let state = State {
        ledger: fixture.service.ledger().clone(),
        rollbacks: fixture.service.reconciler.books.rollbacks.clone(),
    };
    set_clock(&mut fixture, 23, 19, 0);
    let mut service = Service::new(fixture.machine().clone(), None);
    service.start(SavedState::Complete(Box::new(state)), fixture.now);
    let mut fixture = Fixture {
        service,
        now: fixture.now,
    };
    assert_eq!(up(&mut fixture), None);
    fixture.check();
    fixture.machine().exit(10);
    fixture.advance(1);
    assert_eq!(fixture.service.ledger().draining().count(), 0);
}

#[test]
fn a_change_that_fails_is_tried_again() {
    let mut fixture = fixture();
    ok(fixture.set("pid:10", &format!("up 4mbit {WORK}")));
    fixture.machine().fails_in = Some(0);
    at(&mut fixture, 23, 18, 0);
    assert_eq!(up(&mut fixture), Some(4_000_000));
    at(&mut fixture, 23, 18, 1);
    assert_eq!(up(&mut fixture), None);
    fixture.check();
}

proptest! {
    /// The clock jumps to random times, and the daemon restarts: each claim counts exactly in its
    /// hours, by the definition, and the smallest limit that counts holds.
    #[test]
    fn after_each_jump_the_limit_is_that_of_the_hour(
        jumps in prop::collection::vec((1..60_u64, 0..24_u64, 0..60_u64, any::<bool>()), 1..12),
        root in (1..9_u64, 0..24_u64, 1..24_u64),
        ann in (1..9_u64, 0..24_u64, 1..24_u64),
    ) {
        let mut fixture = fixture();
        let text = |(mbit, from, long): (u64, u64, u64)| {
            format!("up {mbit}mbit when {from:02}:00-{:02}:00@UTC", (from + long) % 24)
        };
        ok(fixture.set("pid:10", &text(root)));
        ok(fixture.set_as(&ANN, "pid:10", &text(ann)));
        for (day, hour, minute, restart) in jumps {
            set_clock(&mut fixture, day, hour, minute);
            if restart {
                let state = State {
                    ledger: fixture.service.ledger().clone(),
                    rollbacks: fixture.service.reconciler.books.rollbacks.clone(),
                };
                let mut service = Service::new(fixture.machine().clone(), None);
                service.start(SavedState::Complete(Box::new(state)), fixture.now);
                fixture.service = service;
            } else {
                fixture.advance(1);
            }
            let counts = |(mbit, from, long): (u64, u64, u64)| {
                ((hour + 24 - from) % 24 < long).then_some(mbit * 1_000_000)
            };
            let expected = [counts(root), counts(ann)].into_iter().flatten().min();
            prop_assert_eq!(up(&mut fixture), expected);
            fixture.check();
        }
    }
}

#[test]
fn explain_says_of_a_container_what_holds_now() {
    let mut fixture = fixture();
    ok(fixture.link("eth0", "100mbit", ""));
    fixture
        .machine()
        .groups
        .insert("/s/web.scope".to_owned(), 7);
    ok(fixture.set("container:web", &format!("weight 200 {WORK}")));
    let receiving = |fixture: &mut Fixture| {
        let target = "container:web".to_owned();
        let request = Request::Explain(netnice_api::Explain { target });
        match fixture.ask(&Peer::ROOT, request, None) {
            Response::Explained(page) => page.lines.join("\n").contains("receiving"),
            other => panic!("{other:?}"),
        }
    };
    assert!(receiving(&mut fixture));
    at(&mut fixture, 23, 19, 0);
    assert!(!receiving(&mut fixture), "it has no part of the link now");
}
