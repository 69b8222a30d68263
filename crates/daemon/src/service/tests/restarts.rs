//! What survives a restart of the daemon, and what is restored after another program removes it.

use netnice_kernel::traffic::ByteCounts;

use super::*;
use crate::reconcile::Record;
use crate::state::{State, Store};

/// A new daemon on the same machine, with what the old one has written.
fn next(desk: &mut Desk, record: Record, change: impl FnOnce(&mut Machine)) -> Desk {
    let mut machine = desk.machine().clone();
    change(&mut machine);
    let mut service = Service::new(machine, None);
    service.start(record, desk.now);
    Desk {
        service,
        now: desk.now,
    }
}

fn written(desk: &Desk) -> State {
    State {
        ledger: desk.service.ledger().clone(),
        undos: desk.service.reconciler.books.undos.clone(),
    }
}

fn whole(state: State) -> Record {
    Record::Whole(Box::new(state))
}

#[test]
fn a_restart_finds_what_lives_and_forgets_what_ended() {
    let mut desk = Desk::new();
    desk.machine().groups.insert("/g".to_owned(), 5);
    for pid in [10, 20, 30] {
        desk.machine().spawn(pid, 0);
    }
    ok(desk.link("eth0", "100mbit", "50mbit"));
    ok(desk.set("pid:10", "min 60mbit weight 300"));
    ok(desk.set("pid:20", "both 3mbit burst 10ms"));
    ok(desk.set("pid:30", "up 3mbit"));
    ok(desk.set("cgroup:/g", "up 80mbit"));
    let mut before = still(desk.show());
    before.targets.retain(|t| t.target != "pid:30");
    let state = written(&desk);
    let force = desk.machine().force.clone();
    let mut after = next(&mut desk, whole(state.clone()), |machine| machine.exit(30));
    assert_eq!(still(after.show()), before);
    assert_eq!(after.machine().force.groups, force.groups);
    assert_eq!(after.own(20).as_deref(), Some("pid:20"));
    after.check();
    // The same if the kernel has lost everything: it is bound again.
    let mut anew = next(&mut desk, whole(state), |machine| {
        machine.force = Default::default();
        machine.exit(30);
    });
    assert_eq!(still(anew.show()), before);
    assert_eq!(anew.own(20).as_deref(), Some("pid:20"));
    assert_eq!(anew.machine().force.groups, force.groups);
    anew.check();
}

#[test]
fn a_change_that_was_cut_short_lets_nobody_out() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 1000);
    desk.machine().fork(10, 11);
    ok(desk.set("pid:10", "up 4mbit"));
    // The change was installed, and the daemon ended before it wrote the state file.
    let state = written(&desk);
    ok(desk.set_as(&ANN, "pid:11", "up 1mbit"));
    let stale = desk.machine().own(11);
    let mut after = next(&mut desk, whole(state), |_| {});
    assert_eq!(after.own(11).as_deref(), Some("pid:10"));
    ok(after.set_as(&ANN, "pid:11", "up 2mbit"));
    assert!(
        after.machine().own(11) > stale,
        "its number is not used again"
    );
    after.check();
}

#[test]
fn what_waits_to_be_taken_back_still_does_after_a_restart() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    ok(desk.set("pid:10", "up 1mbit"));
    let terms = |set: &mut Set| set.for_ns = Some(10_000_000_000);
    ok(desk.set_with(&Peer::ROOT, "pid:10", "up 9mbit", Some(10), terms));
    let state = written(&desk);
    let mut after = next(&mut desk, whole(state), |_| {});
    after.pass(9);
    assert_eq!(after.show().targets[0].effective.up, Some(9_000_000));
    after.pass(1);
    assert_eq!(after.show().targets[0].effective.up, Some(1_000_000));
}

#[test]
fn what_no_longer_fits_after_a_restart_is_kept_and_said() {
    let mut desk = Desk::new();
    for pid in [10, 20] {
        desk.machine().spawn(pid, 0);
    }
    ok(desk.link("eth0", "100mbit", ""));
    ok(desk.set("pid:10", "min 60mbit up 70mbit"));
    ok(desk.set("pid:20", "min 40mbit"));
    let mut state = written(&desk);
    let mut managed = state.ledger.link("eth0").expect("managed").clone();
    managed.link.up = crate::service::link::capacity("80mbit").expect("a rate");
    state.ledger.restore_link(managed);
    let mut after = next(&mut desk, whole(state), |_| {});
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
fn a_lost_state_keeps_what_the_kernel_holds_and_takes_new_orders() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    desk.machine().spawn(20, 0);
    ok(desk.link("eth0", "100mbit", ""));
    ok(desk.set("pid:10", "up 4mbit"));
    let id = desk.held("pid:10").expect("held").id;
    let lost = Record::Lost("the state is damaged".to_owned());
    let mut after = next(&mut desk, lost, |_| {});
    assert!(!after.machine().force.desired.targets.is_empty());
    assert_eq!(after.machine().own(10), id, "whom it held it holds");
    assert_eq!(after.show().links.len(), 1);
    assert!(after.show().targets.is_empty());
    ok(after.set("pid:20", "up 5mbit"));
    ok(after.set("pid:10", "up 5mbit"));
    assert_eq!(after.own(10).as_deref(), Some("pid:10"));
    assert!(after.held("pid:10").expect("held").id > id);
    after.pass(100);
    after.check();
    ok(after.clear("all"));
    assert!(!after.machine().is_enforcing());
}

#[test]
fn what_somebody_takes_away_is_put_back_three_times_and_then_said() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    ok(desk.set("pid:10", "up 4mbit"));
    let mut left = 0;
    for _ in 0..10 {
        desk.machine().faults = vec!["a class is gone".to_owned()];
        desk.pass(3);
        left += usize::from(!desk.machine().faults.is_empty());
    }
    assert_eq!(left, 7, "three were repaired");
    assert!(desk.show().targets[0].degraded[0].contains("keeps removing"));
    // A change by a user starts the repairs again.
    ok(desk.set("pid:10", "up 5mbit"));
    desk.pass(3);
    assert!(desk.machine().faults.is_empty());
    assert!(desk.show().targets[0].degraded.is_empty());
}

#[test]
fn a_link_that_somebody_took_is_said_and_does_not_stop_the_rest() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    ok(desk.link("eth0", "100mbit", ""));
    ok(desk.set("pid:10", "min 4mbit"));
    desk.machine().foreign.insert("eth0".to_owned());
    desk.service.repair(desk.now);
    let shown = desk.show();
    assert!(!shown.links[0].installed);
    assert!(
        shown.targets[0].degraded[0].contains("somebody"),
        "{shown:?}"
    );
    ok(desk.set("pid:10", "up 9mbit"));
    desk.check();
    desk.machine().foreign.clear();
    desk.service.repair(desk.now);
    assert!(desk.show().links[0].installed);
    desk.check();
}

#[test]
fn a_wire_that_brings_too_much_degrades_what_is_promised_of_receiving() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    ok(desk.link("eth0", "100mbit", "100mbit"));
    ok(desk.set("pid:10", "min-down 60mbit"));
    let mut bytes = 0;
    let mut receive = |desk: &mut Desk, seconds: u64, bits: u64| {
        for _ in 0..seconds {
            bytes += bits / 8;
            let passed = ByteCounts {
                received: bytes,
                sent: bytes / 2,
            };
            desk.machine().seen.insert("eth0".to_owned(), passed);
            desk.pass(1);
        }
    };
    receive(&mut desk, 4, 100_000_000);
    let fault = desk.show().targets[0].degraded.join(" ");
    assert!(
        fault.contains("97 Mbit/s") && fault.contains("min-down"),
        "{fault}"
    );
    receive(&mut desk, 2, 90_000_000);
    assert!(desk.show().targets[0].degraded.is_empty());
    // The counters of a link are shown although nothing is promised on it.
    ok(desk.clear("pid:10"));
    receive(&mut desk, 2, 40_000_000);
    let counters = desk.show().links[0].counters.clone();
    let rates = (counters.up_rate, counters.down_rate);
    assert_eq!(rates, (Some(20_000_000), Some(40_000_000)));
    desk.now.monotonic = desk.now.monotonic.after(Nanos::from_secs(9));
    let counters = desk.show().links[0].counters.clone();
    assert_eq!(counters.up_rate, None, "what is old is not told");
}

#[test]
fn what_was_set_for_a_time_ends_though_nothing_can_be_written() {
    let folder = std::env::temp_dir().join(format!("netnice-full-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let store = || Store::new(&folder, "this boot", 7);
    let mut desk = Desk::new();
    desk.service = Service::new(desk.machine().clone(), Some(store()));
    desk.machine().spawn(10, 0);
    desk.machine().spawn(11, 0);
    let terms = |set: &mut Set| set.for_ns = Some(10_000_000_000);
    ok(desk.set_with(&Peer::ROOT, "pid:10", "up 4mbit", Some(10), terms));
    ok(desk.set("pid:11", "up 4mbit"));
    std::fs::remove_dir_all(&folder).expect("it goes");
    let why = failed(desk.set("pid:11", "up 1mbit"));
    assert!(why.contains("cannot write the state file"), "{why}");
    assert_eq!(desk.show().targets[1].effective.up, Some(4_000_000));
    desk.pass(11);
    assert!(desk.held("pid:10").is_none(), "its time is over");
    desk.machine().exit(11);
    desk.pass(1);
    assert!(desk.held("pid:11").is_none(), "it has ended");
    desk.check();
    let said = |desk: &Desk| {
        let lines = desk
            .service
            .reconciler
            .journal
            .read(desk.now, None, None)
            .into_iter();
        lines
            .filter(|line| line.text.contains("writing down"))
            .count()
    };
    desk.pass(1);
    assert_eq!(said(&desk), 1, "said once");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("state.json"), "of earlier").expect("written");
    desk.pass(1);
    let kept = store().load().expect("it is written anew, or gone");
    assert!(kept.is_none_or(|state| state.undos.iter().next().is_none()));
    std::fs::remove_dir_all(&folder).expect("it goes");
}
