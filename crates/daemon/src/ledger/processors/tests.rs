//! Tests of reservations of processor time: admission, degraded ones, and nested targets.

use netnice_core::claims::Claimant;
use netnice_core::units::Nanos;

use super::*;
use crate::ledger::{Body, CgroupRef, NewTarget, ProcessId, TargetPlace};

const ROOT: Claimant = Claimant {
    uid: 0,
    privileged: true,
};

/// A ledger on a machine with two processors, of which 90 % each can be promised.
fn two_processors() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.set_processors(processors(2));
    ledger
}

fn processors(online: u32) -> Processors {
    Processors {
        online: (0..online).collect(),
        admitted_ppm: 900_000,
        others: Vec::new(),
    }
}

fn open(ledger: &mut Ledger, pid: u32) -> TargetId {
    let newcomer = NewTarget {
        target: format!("pid:{pid}").parse().expect("a target"),
        body: Body::Processes {
            roots: vec![ProcessId { pid, started: 1 }],
            only: false,
        },
        place: TargetPlace {
            cgroup: Some("/group/inner".to_owned()),
            ..TargetPlace::default()
        },
        inside: BTreeSet::new(),
    };
    ledger.open(newcomer).expect("room")
}

fn open_group(ledger: &mut Ledger) -> TargetId {
    let newcomer = NewTarget {
        target: "cgroup:/group".parse().expect("a target"),
        body: Body::Cgroup(Some(CgroupRef {
            path: "/group".to_owned(),
            id: 7,
        })),
        place: TargetPlace {
            cgroup: Some("/group".to_owned()),
            ..TargetPlace::default()
        },
        inside: BTreeSet::new(),
    };
    ledger.open(newcomer).expect("room")
}

fn ask(ledger: &mut Ledger, slot: TargetId, change: &str) -> Result<(), String> {
    let mut draft = ledger.clone();
    let change = change.parse().expect("a change");
    draft
        .change_claim(slot, ROOT, &change, 0)
        .map_err(|error| error.to_string())?;
    draft.heal();
    draft.assert_invariants();
    *ledger = draft;
    Ok(())
}

/// The holders of reservations in force.
fn holders(ledger: &Ledger) -> Vec<String> {
    let all = ledger.processor_reservations().into_iter();
    all.map(|(_, one)| one.holder).collect()
}

#[test]
fn reservations_are_admitted_until_the_processors_are_full() {
    let mut ledger = two_processors();
    let slots: Vec<TargetId> = (1..=4).map(|pid| open(&mut ledger, pid)).collect();
    ask(&mut ledger, slots[0], "cpu 9ms/10ms").expect("room");
    ask(&mut ledger, slots[1], "cpu 6ms/10ms cpu-extra").expect("room");
    let text = ask(&mut ledger, slots[2], "cpu 4ms/10ms").expect_err("full");
    assert!(
        text.starts_with("refused: pid:3: 4ms in every 10ms"),
        "{text}"
    );
    assert!(text.contains("pid:1  9ms/10ms  90 %"), "{text}");
    assert!(text.ends_with("at most 3ms/10ms"), "{text}");
    ask(&mut ledger, slots[2], "cpu 3ms/10ms").expect("what the refusal names");
    ask(&mut ledger, slots[0], "cpu 10ms/10ms").expect_err("it grows");
    ask(&mut ledger, slots[0], "up 1mbit").expect("not a matter of processors");
    ask(&mut ledger, slots[0], "cpu 45ms/50ms").expect("the same share");
    ask(&mut ledger, slots[0], "cpu 1ms/10ms").expect("less");
    ask(&mut ledger, slots[3], "cpu 8ms/10ms").expect("what has become free");
    ask(&mut ledger, slots[1], "cpu none").expect("it is cleared");
    assert_eq!(holders(&ledger), ["pid:1", "pid:3", "pid:4"]);
}

#[test]
fn a_target_that_is_bound_to_processors_counts_there() {
    let mut ledger = two_processors();
    let slots: Vec<TargetId> = (1..=3).map(|pid| open(&mut ledger, pid)).collect();
    ledger.set_target_processors(slots[0], [1].into());
    ledger.set_target_processors(slots[1], [1, 5].into());
    ledger.set_target_processors(slots[2], [0, 1, 2].into());
    assert!(ledger.get(slots[2]).expect("held").processors.is_empty());
    ask(&mut ledger, slots[0], "cpu 5ms/10ms").expect("room");
    let text = ask(&mut ledger, slots[1], "cpu 5ms/10ms").expect_err("processor 1 is full");
    assert!(
        text.contains("on          processor 1, of which 90 %"),
        "{text}"
    );
    ask(&mut ledger, slots[2], "cpu 10ms/10ms").expect("processor 0 is free");
}

#[test]
fn a_reservation_that_no_longer_fits_is_degraded_and_comes_back() {
    let mut ledger = two_processors();
    let slots: Vec<TargetId> = (1..=2).map(|pid| open(&mut ledger, pid)).collect();
    for slot in &slots {
        ask(&mut ledger, *slot, "up 1mbit cpu 8ms/10ms").expect("room");
    }
    ledger.set_processors(processors(1));
    assert!(ledger.heal().is_empty());
    assert_eq!(holders(&ledger), ["pid:1"], "the older one stays");
    let younger = ledger.get(slots[1]).expect("held");
    let why = younger.time_refused.clone().expect("a reason");
    assert!(why.contains("80 % + 80 % = 160 % > 90 %"), "{why}");
    assert_eq!(younger.in_force().to_string(), "up 1mbit");
    assert_eq!(
        younger.claims.effective().to_string(),
        "up 1mbit cpu 8ms/10ms"
    );
    ask(&mut ledger, slots[1], "up 2mbit").expect("not a matter of processors");
    ask(&mut ledger, slots[0], "cpu 1ms/10ms").expect("less");
    assert_eq!(holders(&ledger), ["pid:1", "pid:2"]);
    // A reservation in force is not displaced by an older one that waits.
    ask(&mut ledger, slots[1], "cpu 1ms/10ms").expect("less");
    ask(&mut ledger, slots[0], "cpu 8ms/10ms").expect("room");
    ledger.set_processors(Processors {
        others: vec![Reservation {
            holder: "chrt (pid 77)".to_owned(),
            ..ledger
                .get(slots[0])
                .expect("held")
                .reservation()
                .expect("one")
        }],
        ..processors(1)
    });
    ledger.heal();
    assert_eq!(holders(&ledger), ["pid:2"]);
    ledger.set_processors(processors(1));
    assert_eq!(ledger.heal(), ["pid:1".parse().expect("a target")]);
    assert_eq!(holders(&ledger), ["pid:1", "pid:2"]);
}

#[test]
fn after_a_restart_the_oldest_targets_have_their_reservations() {
    let mut ledger = two_processors();
    let slots: Vec<TargetId> = (1..=3).map(|pid| open(&mut ledger, pid)).collect();
    for slot in &slots {
        ask(&mut ledger, *slot, "cpu 6ms/10ms").expect("room");
    }
    ledger.set_processors(processors(1));
    ledger.readmit();
    assert_eq!(holders(&ledger), ["pid:1"]);
    ledger.set_processors(Processors::default());
    ledger.readmit();
    assert_eq!(holders(&ledger), [""; 0]);
    let first = ledger.get(slots[0]).expect("held");
    let why = first.time_refused.as_deref().unwrap_or_default();
    assert!(why.contains("nothing is known"), "{why}");
}

#[test]
fn of_nested_targets_only_one_has_processor_time() {
    let mut ledger = two_processors();
    let inner = open(&mut ledger, 1);
    ask(&mut ledger, inner, "cpu 1ms/10ms").expect("room");
    let outer = open_group(&mut ledger);
    let text = ask(&mut ledger, outer, "cpu 1ms/10ms").expect_err("one inside has it");
    let fault = "refused: pid:1 is inside cgroup:/group and has cpu";
    assert!(text.starts_with(fault), "{text}");
    ask(&mut ledger, inner, "cpu none up 1mbit").expect("it is cleared");
    ask(&mut ledger, outer, "cpu 1ms/10ms").expect("room");
    let text = ask(&mut ledger, inner, "cpu 1ms/10ms").expect_err("the one around has it");
    let fault = "refused: pid:1 is inside cgroup:/group, which has cpu";
    assert!(text.starts_with(fault), "{text}");
}

#[test]
fn a_withdrawn_claim_leaves_an_earlier_one_that_may_not_fit() {
    let other = Claimant { uid: 7, ..ROOT };
    let mut ledger = two_processors();
    let (first, second) = (open(&mut ledger, 1), open(&mut ledger, 2));
    ask(&mut ledger, first, "cpu 9ms/10ms").expect("room");
    let less = "cpu 1ms/10ms".parse().expect("a change");
    ledger.change_claim(first, other, &less, 0).expect("less");
    ask(&mut ledger, second, "cpu 10ms/10ms").expect("room");
    let held = ledger.get(first).expect("held");
    let left: Vec<_> = held
        .claims
        .iter()
        .filter(|claim| claim.by == ROOT)
        .cloned()
        .collect();
    let left = held.claims.replace(left).expect("claims");
    ledger.withdraw(first, left, 0);
    ledger.heal();
    assert_eq!(holders(&ledger), ["pid:2"]);
    let held = ledger.get(first).expect("held");
    assert!(held.time_refused.is_some());
    assert_eq!(held.entry.contract.to_string(), "cpu 9ms/10ms");
}

/// Regression: a driver that was busier took a target's reservation away, so as to have room for
/// what comes suddenly.
#[test]
fn a_reservation_in_force_ends_only_for_what_drivers_need_at_least() {
    let mut ledger = two_processors();
    let first = open(&mut ledger, 10);
    ask(&mut ledger, first, "cpu 5ms/10ms").expect("it fits");
    let of_driver = |us| {
        vec![Reservation {
            holder: "driver-eth0".to_owned(),
            slice: Slice::new(Nanos::from_micros(us), Nanos::from_millis(1), false).expect("valid"),
            processors: BTreeSet::new(),
        }]
    };
    let set = |ledger: &mut Ledger, asked, least| {
        ledger.set_driver_time(DriverTime {
            asked: [of_driver(asked), of_driver(asked)].concat(),
            least: [of_driver(least), of_driver(least)].concat(),
        });
        ledger.heal();
        holders(ledger)
    };
    assert_eq!(set(&mut ledger, 700, 640), ["pid:10"]);
    let second = open(&mut ledger, 11);
    let refused = ask(&mut ledger, second, "cpu 1ms/100ms").expect_err("drivers ask for it");
    assert!(refused.contains("700us/1ms"), "{refused}");
    assert!(set(&mut ledger, 700, 660).is_empty());
    assert!(set(&mut ledger, 700, 640).is_empty(), "it was lost");
    assert_eq!(set(&mut ledger, 640, 640), ["pid:10"]);
}
