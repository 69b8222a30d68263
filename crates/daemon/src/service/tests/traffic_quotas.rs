//! Tests of traffic quotas: exact over restarts, clears and clocks, and bounded for users.

use netnice_api::TrafficQuotaDoc;
use proptest::prelude::*;

use super::*;
use crate::reconcile::SavedState;
use crate::state::State;

const NOON: u64 = 1_795_521_600_000_000_000; // 2026-11-24T12:00:00Z
const DAY: u64 = 86_400_000_000_000;

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.now.wall_ns = NOON;
    fixture.machine().users.insert("ann".into(), 1000);
    fixture
        .machine()
        .groups
        .insert("/system.slice/a.service".into(), 7);
    fixture
}

fn id(fixture: &Fixture, target: &str) -> u32 {
    fixture.held(target).expect(target).id
}

/// Sends packets until one is refused, at most `most`; the bytes that passed.
fn drain(fixture: &mut Fixture, target: &str, bytes: u64, most: usize) -> u64 {
    let id = id(fixture, target);
    let machine = fixture.machine();
    let passed = (0..most).take_while(|_| machine.pass(id, true, bytes));
    passed.count() as u64 * bytes
}

fn quotas(fixture: &mut Fixture, target: &str) -> Vec<TrafficQuotaDoc> {
    let doc = fixture.show();
    let found = doc.targets.into_iter().find(|doc| doc.target == target);
    found.expect(target).quotas
}

/// Starts a daemon anew on the same machine, as after a kill, with the file of the usage or
/// without it.
fn restart(fixture: Fixture, has_file: bool) -> Fixture {
    let Fixture { service, now, .. } = fixture;
    let reconciler = service.reconciler;
    let usage = reconciler.books.usage.clone();
    let state = State {
        ledger: reconciler.books.ledger,
        rollbacks: reconciler.books.rollbacks,
    };
    let mut after = Fixture::new();
    *after.machine() = reconciler.host;
    after.now = now;
    if has_file {
        after.service.reconciler.books.usage = usage;
    }
    after
        .service
        .start(SavedState::Complete(Box::new(state)), now);
    after
}

#[test]
fn a_quota_lets_its_bytes_pass_and_no_more_until_the_next_period() {
    let mut fixture = fixture();
    ok(fixture.set("unit:a.service", "quota 100kB/day,zone=UTC"));
    assert_eq!(drain(&mut fixture, "unit:a.service", 1_500, 1_000), 99_000);
    assert_eq!(
        drain(&mut fixture, "unit:a.service", 1_000, 10),
        1_000,
        "it still fits"
    );
    fixture.advance(1);
    let doc = quotas(&mut fixture, "unit:a.service").remove(0);
    assert_eq!((doc.used, doc.left, doc.spent), (100_000, 0, true));
    assert_eq!((doc.start_ns, doc.end_ns), (NOON - DAY / 2, NOON + DAY / 2));
    assert_eq!(doc.ends, "Wed 2026-11-25 00:00 UTC");
    fixture = restart(fixture, false);
    assert_eq!(
        drain(&mut fixture, "unit:a.service", 1, 10),
        0,
        "after a restart"
    );
    ok(fixture.clear("unit:a.service"));
    ok(fixture.set("unit:a.service", "quota 100kB/day,zone=UTC"));
    assert_eq!(drain(&mut fixture, "unit:a.service", 1, 10), 0, "made anew");
    fixture.now.wall_ns = NOON + DAY / 2;
    fixture.advance(1);
    assert_eq!(drain(&mut fixture, "unit:a.service", 1_000, 1_000), 100_000);
    fixture.check();
}

#[test]
fn all_quotas_around_a_packet_hold_and_the_smaller_one_decides() {
    let mut fixture = fixture();
    fixture.machine().spawn(10, 1000);
    ok(fixture.set("user:1000", "quota 50kB/day"));
    ok(fixture.set_as(&ANN, "pid:10", "quota 20kB/day"));
    assert_eq!(drain(&mut fixture, "pid:10", 1_000, 100), 20_000);
    // The user cannot loosen root's quota: more of the own one, another period, a clear.
    ok(fixture.set_as(&ANN, "pid:10", "quota 900kB/day"));
    assert_eq!(drain(&mut fixture, "pid:10", 1_000, 100), 30_000);
    ok(fixture.set_as(&ANN, "pid:10", "quota 900kB/hour"));
    assert_eq!(drain(&mut fixture, "pid:10", 1_000, 100), 0);
    ok(fixture.clear_as(&ANN, "pid:10"));
    assert_eq!(drain(&mut fixture, "user:1000", 1_000, 100), 0);
    assert!(matches!(
        fixture.clear_as(&ANN, "user:1000"),
        Response::Refused(_)
    ));
    fixture.check();
}

#[test]
fn clearing_and_setting_resets_no_usage() {
    let mut fixture = fixture();
    fixture.machine().spawn(10, 1000);
    let mut passed = 0;
    for _ in 0..20 {
        ok(fixture.set_as(&ANN, "pid:10", "quota 20kB/day"));
        passed += drain(&mut fixture, "pid:10", 1_000, 3);
        ok(fixture.clear_as(&ANN, "pid:10"));
        fixture.advance(70);
    }
    assert_eq!(passed, 20_000);
}

#[test]
fn after_a_quota_with_a_rate_the_rate_holds_until_the_next_period() {
    let mut fixture = fixture();
    ok(fixture.set(
        "unit:a.service",
        "up 9mbit quota 10kB/day,then=1mbit,zone=UTC",
    ));
    let up = |fixture: &mut Fixture| {
        let target = fixture.machine().in_force.desired.targets[0].clone();
        match target.limit {
            netnice_kernel::plan::Limit::Each { up, .. } => up.map(|up| up.to_string()),
            other => panic!("{other:?}"),
        }
    };
    assert!(up(&mut fixture).is_some_and(|up| up.starts_with("9 Mbit/s")));
    assert_eq!(drain(&mut fixture, "unit:a.service", 1_000, 50), 50_000);
    fixture.advance(1);
    assert!(up(&mut fixture).is_some_and(|up| up.starts_with("1 Mbit/s")));
    fixture = restart(fixture, false);
    fixture.advance(1);
    assert!(up(&mut fixture).is_some_and(|up| up.starts_with("1 Mbit/s")));
    fixture.now.wall_ns = NOON + DAY / 2;
    fixture.advance(1);
    assert!(up(&mut fixture).is_some_and(|up| up.starts_with("9 Mbit/s")));
    fixture.check();
}

#[test]
fn a_user_has_so_many_quotas_and_root_keeps_room() {
    let mut fixture = fixture();
    for pid in 0..=64 {
        fixture.machine().spawn(100 + pid, 1000);
    }
    for pid in 0..64 {
        ok(fixture.set_as(&ANN, &format!("pid:{}", 100 + pid), "quota 20kB/day"));
    }
    let before = fixture.service.ledger().clone();
    let text = refused(fixture.set_as(&ANN, "pid:164", "quota 20kB/day"));
    assert!(text.contains("64 traffic quotas"), "{text}");
    assert_eq!(*fixture.service.ledger(), before);
    let text = refused(fixture.set_as(&ANN, "pid:100", "quota 20kB/hour"));
    assert!(text.contains("the limit is 64"), "{text}");
    ok(fixture.set("pid:164", "quota 20kB/day"));
    // Those of processes that have ended do not count.
    fixture.machine().exit(100);
    fixture.advance(1);
    fixture.advance(70);
    fixture.advance(1);
    fixture.machine().spawn(300, 1000);
    ok(fixture.set_as(&ANN, "pid:300", "quota 20kB/day"));
    fixture.check();
}

#[test]
fn the_quotas_of_a_user_around_a_packet_never_refuse_one_of_root() {
    let mut fixture = fixture();
    for pid in 10..14 {
        match pid {
            10 => fixture.machine().spawn(10, 1000),
            _ => fixture.machine().fork(pid - 1, pid),
        }
    }
    let periods = ["hour", "day", "week", "month"];
    // A claim has one quota; claims of a user on a process and on those around it hold together.
    for (pid, period) in (10..14).rev().zip(periods) {
        ok(fixture.set_as(&ANN, &format!("pid:{pid}"), &format!("quota 20kB/{period}")));
    }
    let around = |fixture: &Fixture| {
        let held = fixture.held("pid:13").expect("held");
        fixture.service.ledger().quotas_around(&held).len()
    };
    assert_eq!(around(&fixture), 4);
    for (n, target) in ["user:1000", "pid:10", "pid:11", "pid:12", "pid:13"]
        .into_iter()
        .enumerate()
    {
        ok(fixture.set(
            target,
            &format!("quota {}kB/{},count=up", 30 + n, periods[n % 4]),
        ));
    }
    assert_eq!(
        around(&fixture),
        9,
        "root's come first, and one of ann's has no room"
    );
    let held = fixture.held("pid:13").expect("held");
    let ledger = fixture.service.ledger();
    let first = &ledger.quotas_around(&held)[..5];
    assert_eq!(first, ledger.privileged_quotas_around(&held));
    // What ann has cleared and asks for again is refused, as a new one would be.
    ok(fixture.clear("user:1000"));
    ok(fixture.clear_as(&ANN, "pid:13"));
    assert_eq!(around(&fixture), 7);
    let text = refused(fixture.set_as(&ANN, "pid:13", "quota 20kB/hour"));
    assert!(
        text.contains("8 traffic quotas would hold the packets of pid:13"),
        "{text}"
    );
    assert!(text.contains("the limit is 6"), "{text}");
    fixture.check();
}

#[test]
fn a_program_that_a_quota_holds_has_no_direct_flows() {
    use crate::flows::promises::Promises;
    let mut fixture = fixture();
    fixture.machine().spawn(10, 1000);
    fixture.service.check_unmetered(10).expect("no quota");
    ok(fixture.set("user:1000", "quota 50kB/day"));
    ok(fixture.set_as(&ANN, "pid:10", "up 4mbit"));
    let error = fixture.service.check_unmetered(10).expect_err("a quota");
    assert!(
        error
            .to_string()
            .contains("user:1000, which has a traffic quota"),
        "{error}"
    );
}

#[test]
fn a_zone_that_does_not_exist_is_one_error() {
    let mut fixture = fixture();
    let text = failed(fixture.set("unit:a.service", "quota 1GB/day,zone=Europe/Berlni"));
    assert!(text.starts_with("quota: Europe/Berlni is not in"), "{text}");
    assert!(fixture.held("unit:a.service").is_none());
}

proptest! {
    /// Whatever comes in between, one day lets exactly its amount pass.
    #[test]
    fn no_sequence_of_events_gives_more_than_the_quota(
        events in proptest::collection::vec(0..7_u8, 1..40),
    ) {
        let mut fixture = fixture();
        let quota = "quota 50kB/day,zone=UTC";
        ok(fixture.set("unit:a.service", quota));
        let mut passed = 0;
        for event in events {
            match event {
                0 => fixture.advance(1),
                1 => fixture = restart(fixture, true),
                2 => {
                    ok(fixture.clear("unit:a.service"));
                    ok(fixture.set("unit:a.service", quota));
                }
                3 => fixture.now.wall_ns = NOON - DAY,
                4 => fixture.now.wall_ns = NOON,
                5 => drop(fixture.set("unit:a.service", "up 5mbit")),
                _ => passed += drain(&mut fixture, "unit:a.service", 1_000, 9),
            }
        }
        prop_assert!(passed <= 50_000);
        fixture.now.wall_ns = NOON;
        fixture.advance(1);
        passed += drain(&mut fixture, "unit:a.service", 1_000, 100);
        prop_assert_eq!(passed, 50_000);
    }
}
