//! Tests of a restart of the daemon (which targets, contracts and rollbacks survive it), and of the
//! repair of kernel objects that another program removed.

use netnice_kernel::traffic::ByteCounts;

use super::*;
use crate::reconcile::SavedState;
use crate::state::{State, Store};

/// A new daemon on the same machine, which starts from the saved state `record`. `change` alters
/// the machine before that.
fn restarted(
    fixture: &mut Fixture,
    record: SavedState,
    change: impl FnOnce(&mut FakeMachine),
) -> Fixture {
    let mut machine = fixture.machine().clone();
    change(&mut machine);
    let mut service = Service::new(machine, None);
    service.start(record, fixture.now);
    Fixture {
        service,
        now: fixture.now,
    }
}

fn saved_state(fixture: &Fixture) -> State {
    State {
        ledger: fixture.service.ledger().clone(),
        rollbacks: fixture.service.reconciler.books.rollbacks.clone(),
    }
}

fn complete(state: State) -> SavedState {
    SavedState::Complete(Box::new(state))
}

#[test]
fn a_restart_keeps_living_targets_and_closes_ended_ones() {
    let mut fixture = Fixture::new();
    fixture.machine().groups.insert("/g".to_owned(), 5);
    for pid in [10, 20, 30] {
        fixture.machine().spawn(pid, 0);
    }
    ok(fixture.link("eth0", "100mbit", "50mbit"));
    ok(fixture.set("pid:10", "min 60mbit weight 300"));
    ok(fixture.set("pid:20", "both 3mbit burst 10ms"));
    ok(fixture.set("pid:30", "up 3mbit"));
    ok(fixture.set("cgroup:/g", "up 80mbit"));
    let mut before = without_counters(fixture.show());
    before.targets.retain(|t| t.target != "pid:30");
    let state = saved_state(&fixture);
    let in_force = fixture.machine().in_force.clone();
    let mut after = restarted(&mut fixture, complete(state.clone()), |machine| {
        machine.exit(30)
    });
    assert_eq!(without_counters(after.show()), before);
    assert_eq!(after.machine().in_force.groups, in_force.groups);
    assert_eq!(after.own(20).as_deref(), Some("pid:20"));
    after.check();
    // The same if the kernel has lost everything: it is bound again.
    let mut anew = restarted(&mut fixture, complete(state), |machine| {
        machine.in_force = Default::default();
        machine.exit(30);
    });
    assert_eq!(without_counters(anew.show()), before);
    assert_eq!(anew.own(20).as_deref(), Some("pid:20"));
    assert_eq!(anew.machine().in_force.groups, in_force.groups);
    anew.check();
}

#[test]
fn an_incomplete_change_releases_no_process() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    fixture.machine().fork(10, 11);
    ok(fixture.set("pid:10", "up 4mbit"));
    // The change was installed, and the daemon ended before it wrote the state file.
    let state = saved_state(&fixture);
    ok(fixture.set_as(&ANN, "pid:11", "up 1mbit"));
    let stale = fixture.machine().own(11);
    let mut after = restarted(&mut fixture, complete(state), |_| {});
    assert_eq!(after.own(11).as_deref(), Some("pid:10"));
    ok(after.set_as(&ANN, "pid:11", "up 2mbit"));
    assert!(
        after.machine().own(11) > stale,
        "its number is not used again"
    );
    after.check();
}

#[test]
fn pending_rollbacks_survive_a_restart() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    ok(fixture.set("pid:10", "up 1mbit"));
    let terms = |set: &mut Set| set.for_ns = Some(10_000_000_000);
    ok(fixture.set_with(&Peer::ROOT, "pid:10", "up 9mbit", Some(10), terms));
    let state = saved_state(&fixture);
    let mut after = restarted(&mut fixture, complete(state), |_| {});
    after.advance(9);
    assert_eq!(after.show().targets[0].effective.up, Some(9_000_000));
    after.advance(1);
    assert_eq!(after.show().targets[0].effective.up, Some(1_000_000));
}

#[test]
fn a_contract_that_no_longer_fits_after_a_restart_is_degraded() {
    let mut fixture = Fixture::new();
    for pid in [10, 20] {
        fixture.machine().spawn(pid, 0);
    }
    ok(fixture.link("eth0", "100mbit", ""));
    ok(fixture.set("pid:10", "min 60mbit up 70mbit"));
    ok(fixture.set("pid:20", "min 40mbit"));
    let mut state = saved_state(&fixture);
    let mut managed = state.ledger.link("eth0").expect("managed").clone();
    managed.link.up = crate::service::link::capacity("80mbit").expect("a rate");
    state.ledger.restore_link(managed);
    let mut after = restarted(&mut fixture, complete(state), |_| {});
    let shown = after.show();
    assert!(
        shown.targets[0].degraded.is_empty(),
        "the elder is served: {shown:?}"
    );
    assert!(shown.targets[1].degraded[0].contains("does not fit"));
    assert_eq!(shown.targets[1].contract.min, Some(40_000_000));
    assert_eq!(shown.targets[1].effective.min, None);
    after.check();
    // The claim is granted once it fits.
    ok(after.link("eth0", "100mbit", ""));
    assert!(after.show().targets[1].degraded.is_empty());
    assert_eq!(after.show().targets[1].effective.min, Some(40_000_000));
    after.check();
}

#[test]
fn limits_stay_in_force_without_the_state_file_and_requests_are_served() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    fixture.machine().spawn(20, 0);
    ok(fixture.link("eth0", "100mbit", ""));
    ok(fixture.set("pid:10", "up 4mbit"));
    let id = fixture.held("pid:10").expect("held").id;
    let lost = SavedState::Lost("the state is damaged".to_owned());
    let mut after = restarted(&mut fixture, lost, |_| {});
    assert!(!after.machine().in_force.desired.targets.is_empty());
    assert_eq!(after.machine().own(10), id, "its member stays a member");
    assert_eq!(after.show().links.len(), 1);
    assert!(after.show().targets.is_empty());
    ok(after.set("pid:20", "up 5mbit"));
    ok(after.set("pid:10", "up 5mbit"));
    assert_eq!(after.own(10).as_deref(), Some("pid:10"));
    assert!(after.held("pid:10").expect("held").id > id);
    after.advance(100);
    after.check();
    ok(after.clear("all"));
    assert!(!after.machine().is_enforcing());
}

#[test]
fn removed_objects_are_restored_three_times_and_then_reported() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    ok(fixture.set("pid:10", "up 4mbit"));
    let mut left = 0;
    for _ in 0..10 {
        fixture.machine().faults = vec!["a class is gone".to_owned()];
        fixture.advance(3);
        left += usize::from(!fixture.machine().faults.is_empty());
    }
    assert_eq!(left, 7, "three were repaired");
    assert!(fixture.show().targets[0].degraded[0].contains("keeps removing"));
    // A change by a user starts the repairs again.
    ok(fixture.set("pid:10", "up 5mbit"));
    fixture.advance(3);
    assert!(fixture.machine().faults.is_empty());
    assert!(fixture.show().targets[0].degraded.is_empty());
}

#[test]
fn a_link_taken_by_another_program_is_reported_and_the_rest_is_served() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    ok(fixture.link("eth0", "100mbit", ""));
    ok(fixture.set("pid:10", "min 4mbit"));
    fixture.machine().foreign.insert("eth0".to_owned());
    fixture.service.repair(fixture.now);
    let shown = fixture.show();
    assert!(!shown.links[0].installed);
    assert!(
        shown.targets[0].degraded[0].contains("of another program"),
        "{shown:?}"
    );
    ok(fixture.set("pid:10", "up 9mbit"));
    fixture.check();
    fixture.machine().foreign.clear();
    fixture.service.repair(fixture.now);
    assert!(fixture.show().links[0].installed);
    fixture.check();
}

#[test]
fn an_overloaded_link_degrades_receive_guarantees() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    ok(fixture.link("eth0", "100mbit", "100mbit"));
    ok(fixture.set("pid:10", "min-down 60mbit"));
    let mut bytes = 0;
    let mut receive = |fixture: &mut Fixture, seconds: u64, bits: u64| {
        for _ in 0..seconds {
            bytes += bits / 8;
            let passed = ByteCounts {
                received: bytes,
                sent: bytes / 2,
            };
            fixture.machine().seen.insert("eth0".to_owned(), passed);
            fixture.advance(1);
        }
    };
    receive(&mut fixture, 4, 100_000_000);
    let fault = fixture.show().targets[0].degraded.join(" ");
    assert!(
        fault.contains("97 Mbit/s") && fault.contains("min-down"),
        "{fault}"
    );
    receive(&mut fixture, 2, 90_000_000);
    assert!(fixture.show().targets[0].degraded.is_empty());
    // The counters of a link are shown although nothing is promised on it.
    ok(fixture.clear("pid:10"));
    receive(&mut fixture, 2, 40_000_000);
    let counters = fixture.show().links[0].counters.clone();
    let rates = (counters.up_rate, counters.down_rate);
    assert_eq!(rates, (Some(20_000_000), Some(40_000_000)));
    fixture.now.monotonic = fixture.now.monotonic.after(Nanos::from_secs(9));
    let counters = fixture.show().links[0].counters.clone();
    assert_eq!(counters.up_rate, None, "an old rate is not shown");
}

#[test]
fn timed_changes_end_although_the_state_file_cannot_be_written() {
    let folder = std::env::temp_dir().join(format!("netnice-full-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let store = || Store::new(&folder, "this boot", 7);
    let mut fixture = Fixture::new();
    fixture.service = Service::new(fixture.machine().clone(), Some(store()));
    fixture.machine().spawn(10, 0);
    fixture.machine().spawn(11, 0);
    let terms = |set: &mut Set| set.for_ns = Some(10_000_000_000);
    ok(fixture.set_with(&Peer::ROOT, "pid:10", "up 4mbit", Some(10), terms));
    ok(fixture.set("pid:11", "up 4mbit"));
    std::fs::remove_dir_all(&folder).expect("removed");
    let why = failed(fixture.set("pid:11", "up 1mbit"));
    assert!(why.contains("cannot write the state file"), "{why}");
    assert_eq!(fixture.show().targets[1].effective.up, Some(4_000_000));
    fixture.advance(11);
    assert!(fixture.held("pid:10").is_none(), "its time is over");
    fixture.machine().exit(11);
    fixture.advance(1);
    assert!(fixture.held("pid:11").is_none(), "it has ended");
    fixture.check();
    let lines_logged = |fixture: &Fixture| {
        let lines = fixture
            .service
            .reconciler
            .journal
            .read(fixture.now, None, None)
            .into_iter();
        lines
            .filter(|line| line.text.contains("writing the state file"))
            .count()
    };
    fixture.advance(1);
    assert_eq!(lines_logged(&fixture), 1, "logged once");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("state.json"), "of earlier").expect("written");
    fixture.advance(1);
    let kept = store().load().expect("it is written anew, or gone");
    assert!(kept.is_none_or(|state| state.rollbacks.iter().next().is_none()));
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn cleared_limits_come_back_although_the_state_file_cannot_be_written() {
    let folder = std::env::temp_dir().join(format!("netnice-first-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let store = || Store::new(&folder, "this boot", 7);
    let mut fixture = Fixture::new();
    fixture.service = Service::new(fixture.machine().clone(), Some(store()));
    fixture.machine().spawn(10, 0);
    ok(fixture.set("pid:10", "up 4mbit"));
    let clear = Clear {
        what: ClearWhat::All,
        dry_run: false,
        confirm_ns: None,
        for_ns: Some(10_000_000_000),
        until: None,
    };
    ok(fixture.ask(&Peer::ROOT, Request::Clear(clear), None));
    assert!(!fixture.machine().is_enforcing(), "nothing is in force");
    std::fs::remove_dir_all(&folder).expect("removed");
    fixture.advance(11);
    let up = |fixture: &Fixture| fixture.held("pid:10")?.entry.contract.up();
    assert_eq!(up(&fixture), "4mbit".parse().ok());
    assert!(fixture.machine().is_enforcing());
    fixture.check();
    // A request is still refused while its change cannot be written.
    let why = failed(fixture.set("pid:10", "up 1mbit"));
    assert!(why.contains("cannot write the state file"), "{why}");
    std::fs::create_dir_all(&folder).expect("a folder");
    fixture.advance(1);
    let kept = store().load().expect("complete").expect("written");
    assert_eq!(kept.ledger.held().count(), 1);
    std::fs::remove_dir_all(&folder).expect("removed");
}
