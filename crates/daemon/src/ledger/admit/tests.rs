//! Tests of the admission of claims, and of claims that are set aside and put into force again.

use netnice_core::admission::MAX_DEPTH;
use netnice_core::link::classes::LinkClasses;
use netnice_core::link::{Capacity, CapacitySource, Link};
use netnice_core::units::{Bytes, Nanos};

use super::*;
use crate::ledger::{Body, NewTarget, ProcessId, TargetPlace};

const USER: Claimant = Claimant {
    uid: 1000,
    privileged: false,
};

/// Opens a target of a user's process, in a control group and, if `own` is given, in another
/// process target.
fn process(ledger: &mut Ledger, pid: u32, own: Option<u32>) -> TargetId {
    let newcomer = NewTarget {
        target: format!("pid:{pid}").parse().expect("a target"),
        body: Body::Processes {
            roots: vec![ProcessId { pid, started: 1 }],
            only: false,
        },
        place: TargetPlace {
            own,
            cgroup: Some("/group/inner".to_owned()),
            uid: Some(USER.uid),
            ..TargetPlace::default()
        },
        inside: BTreeSet::new(),
    };
    ledger.open(newcomer).expect("room")
}

fn group(ledger: &mut Ledger, path: &str) -> TargetId {
    let newcomer = NewTarget {
        target: format!("cgroup:{path}").parse().expect("a target"),
        body: Body::Cgroup(Some(crate::ledger::CgroupRef {
            path: path.to_owned(),
            id: 7,
        })),
        place: TargetPlace {
            cgroup: Some(path.to_owned()),
            ..TargetPlace::default()
        },
        inside: BTreeSet::new(),
    };
    ledger.open(newcomer).expect("room")
}

/// The link eth0 with this sending rate.
fn link(rate: &str) -> Link {
    Link {
        name: "eth0".parse().expect("a name"),
        up: Some(Capacity {
            rate: rate.parse().expect("a rate"),
            source: CapacitySource::Operator,
        }),
        down: None,
        overhead: Bytes(0),
        horizon: Nanos(0),
    }
}

fn ask(
    ledger: &mut Ledger,
    slot: TargetId,
    by: Claimant,
    change: &str,
) -> Result<(), RequestError> {
    ledger.change_claim(slot, by, &change.parse().expect("a change"), 0)?;
    ledger.assert_invariants();
    Ok(())
}

fn in_force(ledger: &Ledger, slot: TargetId) -> String {
    ledger.get(slot).expect("held").entry.contract.to_string()
}

fn is_aside(ledger: &Ledger, slot: TargetId) -> bool {
    ledger.get(slot).expect("held").aside.is_some()
}

/// Opens `levels` processes, each inside the one before, each with a limit of its user.
fn nested(ledger: &mut Ledger, levels: usize) -> Vec<TargetId> {
    let (mut own, mut all) = (None, Vec::new());
    for level in 0..levels {
        let slot = process(ledger, 100 + level as u32, own);
        ask(ledger, slot, USER, "up 1tbit").expect("it fits");
        own = ledger.get(slot).map(|held| held.id);
        all.push(slot);
    }
    all
}

#[test]
fn a_users_limit_of_another_kind_is_set_aside_for_roots_and_restored() {
    let mut ledger = Ledger::default();
    let pid = process(&mut ledger, 1, None);
    ask(&mut ledger, pid, USER, "both 1tbit").expect("it fits");
    let around = group(&mut ledger, "/group");
    ask(&mut ledger, around, Claimant::ROOT, "up 4mbit").expect("root comes first");
    assert!(is_aside(&ledger, pid));
    assert_eq!(in_force(&ledger, pid), "none");
    assert_eq!(ledger.get(pid).expect("held").entry.parent, Some(around));
    assert!(ledger.heal().is_empty());
    // A user may change a claim that is set aside.
    ask(&mut ledger, pid, USER, "both none up 1mbit").expect("it fits");
    assert!(!is_aside(&ledger, pid));
    ask(&mut ledger, pid, USER, "up none both 1mbit").expect_err("root's is there first");
    ledger.close(around);
    ask(&mut ledger, pid, USER, "up none both 1mbit").expect("nothing is around it");
}

#[test]
fn a_claim_set_aside_is_restored_when_nothing_conflicts() {
    let mut ledger = Ledger::default();
    let pid = process(&mut ledger, 1, None);
    ask(&mut ledger, pid, USER, "both 2mbit").expect("it fits");
    let around = group(&mut ledger, "/group");
    ask(&mut ledger, around, Claimant::ROOT, "up 4mbit").expect("root comes first");
    ask(&mut ledger, around, Claimant::ROOT, "up none both 4mbit").expect("it fits");
    let healed = ledger.heal();
    assert_eq!(healed.len(), 1, "{healed:?}");
    assert_eq!(in_force(&ledger, pid), "both 2mbit");
}

#[test]
fn users_have_one_nesting_level_less_than_root() {
    let mut ledger = Ledger::default();
    let all = nested(&mut ledger, MAX_DEPTH - 1);
    let own = all.last().and_then(|slot| Some(ledger.get(*slot)?.id));
    let deeper = process(&mut ledger, 200, own);
    let refused = ask(&mut ledger, deeper, USER, "up 1mbit").expect_err("one level is kept");
    assert!(refused.to_string().contains("levels"), "{refused}");
    ledger.close(deeper);
    let inner = group(&mut ledger, "/group/inner");
    ask(&mut ledger, inner, Claimant::ROOT, "up 4mbit").expect("a level is kept");
    assert!(all.iter().all(|slot| !is_aside(&ledger, *slot)));
    let outer = group(&mut ledger, "/group");
    ask(&mut ledger, outer, Claimant::ROOT, "up 4mbit").expect("root comes first");
    let aside = all.iter().filter(|slot| is_aside(&ledger, **slot)).count();
    assert_eq!(aside, 1);
    ledger.close(outer);
    assert_eq!(ledger.heal().len(), 1);
}

#[test]
fn readmission_prefers_root_regardless_of_age() {
    let mut ledger = Ledger::default();
    let pid = process(&mut ledger, 1, None);
    ask(&mut ledger, pid, USER, "both 1tbit").expect("it fits");
    let around = group(&mut ledger, "/group");
    ask(&mut ledger, around, Claimant::ROOT, "up 4mbit").expect("root comes first");
    let before = ledger.clone();
    ledger.readmit();
    assert_eq!(ledger, before);
    assert_eq!(in_force(&ledger, around), "up 4mbit");
}

#[test]
fn a_degraded_target_stays_degraded_when_all_is_admitted_once_more() {
    let mut ledger = Ledger::default();
    ledger.manage(link("10mbit"), 0).expect("a link");
    let pid = process(&mut ledger, 1, None);
    ask(&mut ledger, pid, Claimant::ROOT, "min 8mbit up 9mbit").expect("it fits");
    let slower = crate::ledger::ManagedLink {
        link: link("5mbit"),
        by: 0,
        reflectors: Vec::new(),
        classes: LinkClasses::default(),
    };
    ledger.restore_link(slower);
    ledger.readmit();
    let once = ledger.clone();
    assert!(once.get(pid).expect("held").refused.is_some());
    assert_eq!(in_force(&once, pid), "up 9mbit on eth0");
    ledger.readmit();
    assert_eq!(ledger, once);
}

#[test]
fn a_users_claim_stays_set_aside_where_roots_holds_outside_the_target_around_it() {
    let mut ledger = Ledger::default();
    let between = process(&mut ledger, 1, None);
    let held = ledger.get(between).expect("held");
    let (body, id) = (held.body.clone(), held.id);
    ledger.set_body(between, body, TargetPlace::default());
    let pid = process(&mut ledger, 2, Some(id));
    ask(&mut ledger, pid, Claimant::ROOT, "both 9mbit").expect("it fits");
    ask(&mut ledger, pid, USER, "both 2mbit").expect("it fits");
    let around = group(&mut ledger, "/group");
    ask(&mut ledger, around, Claimant::ROOT, "up 4mbit").expect("it contains neither");
    // Now the group contains the process, and has a limit of another kind.
    ledger.close(between);
    assert_eq!(in_force(&ledger, pid), "both 9mbit");
    assert_eq!(ledger.get(pid).expect("held").entry.parent, None);
    assert!(is_aside(&ledger, pid));
    ask(&mut ledger, around, Claimant::ROOT, "up none").expect("it fits");
    assert_eq!(ledger.heal().len(), 1);
    assert_eq!(in_force(&ledger, pid), "both 2mbit");
}

#[test]
fn a_users_small_limit_does_not_prevent_roots_minimum() {
    let mut ledger = Ledger::default();
    ledger.manage(link("10mbit"), 0).expect("a link");
    let pid = process(&mut ledger, 1, None);
    ask(&mut ledger, pid, USER, "up 1kbit").expect("it fits");
    ask(&mut ledger, pid, Claimant::ROOT, "min 2mbit on eth0").expect("root comes first");
    let held = ledger.get(pid).expect("held");
    assert_eq!(held.claims.set_aside(), [USER.uid]);
    assert!(in_force(&ledger, pid).contains("min 2mbit"));
    // The same in a target around it.
    let mut ledger = ledger.clone();
    let outer = process(&mut ledger, 2, None);
    ask(&mut ledger, outer, USER, "up 1kbit").expect("it fits");
    let number = ledger.get(outer).map(|held| held.id);
    let inner = process(&mut ledger, 3, number);
    ask(&mut ledger, inner, Claimant::ROOT, "min 2mbit on eth0").expect("root comes first");
    assert!(is_aside(&ledger, outer));
}
