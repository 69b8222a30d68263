//! Tests of links whose capacity changes: which guarantees stay in force, and which come back.

use netnice_core::claims::Claimant;
use netnice_core::contract::Contract;
use netnice_core::link::Capacity;
use netnice_core::link::classes::LinkClasses;
use netnice_core::units::{Bytes, Nanos, Rate};
use proptest::prelude::*;

use super::*;
use crate::ledger::direct_part::DirectPart;
use crate::ledger::{Body, NewTarget, ProcessId, TargetPlace};

const USER: Claimant = Claimant {
    uid: 1000,
    privileged: false,
};

/// Opens a target of a process, inside the target with the id `own` if one is given.
fn process(ledger: &mut Ledger, pid: u32, own: Option<u32>) -> TargetId {
    let newcomer = NewTarget {
        target: format!("pid:{pid}").parse().expect("a target"),
        body: Body::Processes {
            roots: vec![ProcessId { pid, started: 1 }],
            only: false,
        },
        place: TargetPlace {
            own,
            uid: Some(USER.uid),
            ..TargetPlace::default()
        },
        inside: BTreeSet::new(),
    };
    ledger.open(newcomer).expect("room")
}

fn mbit(mbit: u64) -> Rate {
    Rate::new(mbit * 1_000_000).expect("a rate")
}

/// The link of this name with this rate for sending, and half of it for receiving.
fn link(name: &str, rate: Rate) -> ManagedLink {
    let capacity = |rate| {
        Some(Capacity {
            rate,
            source: CapacitySource::Driver,
        })
    };
    ManagedLink {
        link: Link {
            name: name.parse().expect("a name"),
            up: capacity(rate),
            down: capacity(rate.portion(1, 2).expect("a rate")),
            overhead: Bytes(0),
            horizon: Nanos(0),
        },
        by: 0,
        reflectors: Vec::new(),
        classes: LinkClasses::default(),
    }
}

fn ask(ledger: &mut Ledger, slot: TargetId, by: Claimant, change: &str) {
    let change = change.parse().expect("a change");
    let asked = ledger.change_claim(slot, by, &change, 0);
    asked.expect("it fits");
    ledger.assert_invariants();
}

fn in_force(ledger: &Ledger, slot: TargetId) -> String {
    ledger.get(slot).expect("held").entry.contract.to_string()
}

fn is_degraded(ledger: &Ledger, slot: TargetId) -> bool {
    ledger.get(slot).expect("held").refused.is_some()
}

/// The contracts in force, and whether each target is degraded.
fn all(ledger: &Ledger) -> Vec<(TargetId, Contract, bool)> {
    let held = ledger.held();
    held.map(|h| (h.entry.id, h.entry.contract.clone(), h.refused.is_some()))
        .collect()
}

/// Sets the rate of eth0 as the reconciler does: targets become degraded, then others fit again.
fn moves(ledger: &mut Ledger, rate: Rate) {
    ledger.set_capacity(link("eth0", rate));
    ledger.heal();
    ledger.assert_invariants();
    let fits = admission::admit_link(
        &ledger.capacities(),
        &ledger.entries(),
        link("eth0", rate).link,
    );
    fits.expect("never above the rate");
}

#[test]
fn the_youngest_lose_their_guarantees_and_who_fits_keeps_it() {
    let mut ledger = Ledger::default();
    ledger
        .manage(link("eth0", mbit(100)).link, 0)
        .expect("a link");
    let slots: Vec<TargetId> = (1..=4).map(|pid| process(&mut ledger, pid, None)).collect();
    ask(
        &mut ledger,
        slots[0],
        Claimant::ROOT,
        "min 25mbit up 90mbit",
    );
    ask(
        &mut ledger,
        slots[1],
        Claimant::ROOT,
        "min 40mbit up 80mbit weight 7",
    );
    ask(&mut ledger, slots[2], Claimant::ROOT, "min 15mbit");
    ask(&mut ledger, slots[3], USER, "up 3mbit");
    let before = all(&ledger);
    moves(&mut ledger, mbit(40));
    assert_eq!(in_force(&ledger, slots[0]), "up 90mbit min 25mbit on eth0");
    assert_eq!(in_force(&ledger, slots[1]), "up 80mbit on eth0 weight 7");
    assert_eq!(
        in_force(&ledger, slots[2]),
        "min 15mbit on eth0",
        "it fits beside the first"
    );
    assert_eq!(in_force(&ledger, slots[3]), "up 3mbit");
    let why = ledger.get(slots[1]).and_then(|held| held.refused.clone());
    assert!(why.expect("degraded").contains("40 Mbit/s"));
    let named: Vec<u32> = ledger
        .degraded_on(&"eth0".parse().expect("a name"))
        .iter()
        .map(|h| h.id)
        .collect();
    assert_eq!(named, [2]);
    moves(&mut ledger, mbit(100));
    assert_eq!(all(&ledger), before);
}

#[test]
fn a_served_guarantee_does_not_give_way_to_an_older_degraded_one() {
    let mut ledger = Ledger::default();
    ledger
        .manage(link("eth0", mbit(100)).link, 0)
        .expect("a link");
    let (old, young) = (process(&mut ledger, 1, None), process(&mut ledger, 2, None));
    ask(&mut ledger, old, Claimant::ROOT, "min 60mbit");
    ask(&mut ledger, young, Claimant::ROOT, "min 30mbit");
    moves(&mut ledger, mbit(40));
    assert!(is_degraded(&ledger, old) && !is_degraded(&ledger, young));
    moves(&mut ledger, mbit(70));
    assert!(is_degraded(&ledger, old) && !is_degraded(&ledger, young));
    moves(&mut ledger, mbit(65));
    assert!(is_degraded(&ledger, old) && !is_degraded(&ledger, young));
    moves(&mut ledger, mbit(90));
    assert!(!is_degraded(&ledger, old) && !is_degraded(&ledger, young));
}

#[test]
fn outer_targets_come_before_inner_ones_and_other_links_are_not_touched() {
    let mut ledger = Ledger::default();
    ledger
        .manage(link("eth0", mbit(100)).link, 0)
        .expect("a link");
    ledger
        .manage(link("eth1", mbit(10)).link, 0)
        .expect("a link");
    let outer = process(&mut ledger, 1, None);
    let id = ledger.get(outer).map(|held| held.id);
    let inner = process(&mut ledger, 2, id);
    let elsewhere = process(&mut ledger, 3, None);
    let received = process(&mut ledger, 4, None);
    ask(&mut ledger, outer, Claimant::ROOT, "min 50mbit on eth0");
    ask(&mut ledger, inner, Claimant::ROOT, "min 20mbit on eth0");
    ask(&mut ledger, elsewhere, Claimant::ROOT, "min 10mbit on eth1");
    ask(
        &mut ledger,
        received,
        Claimant::ROOT,
        "min-down 12mbit on eth0",
    );
    let before = all(&ledger);
    // 12 Mbit/s are within 97 % of half of 30.
    moves(&mut ledger, mbit(30));
    assert!(is_degraded(&ledger, outer), "50 Mbit/s do not fit into 30");
    assert!(
        !is_degraded(&ledger, inner),
        "20 fit, and now count by themselves"
    );
    assert!(!is_degraded(&ledger, elsewhere) && !is_degraded(&ledger, received));
    assert_eq!(
        ledger.get(inner).and_then(|held| held.entry.parent),
        Some(outer)
    );
    moves(&mut ledger, mbit(20));
    assert!(!is_degraded(&ledger, inner) && is_degraded(&ledger, received));
    moves(&mut ledger, mbit(100));
    assert_eq!(all(&ledger), before);
}

#[test]
fn of_many_targets_those_that_fit_are_served_at_any_rate() {
    let mut ledger = Ledger::default();
    ledger
        .manage(link("eth0", mbit(200)).link, 0)
        .expect("a link");
    let slots: Vec<TargetId> = (1..=100)
        .map(|pid| process(&mut ledger, pid, None))
        .collect();
    for (n, slot) in slots.iter().enumerate() {
        let min = if n % 2 == 0 { 2 } else { 1 };
        ask(
            &mut ledger,
            *slot,
            Claimant::ROOT,
            &format!("min {min}mbit"),
        );
    }
    let before = all(&ledger);
    let served = |ledger: &Ledger| slots.iter().filter(|s| !is_degraded(ledger, **s)).count();
    moves(&mut ledger, mbit(10));
    assert_eq!(
        served(&ledger),
        7,
        "2 + 1 + 2 + 1 + 2 + 1, and the next that fits: 1"
    );
    moves(&mut ledger, mbit(11));
    assert_eq!(served(&ledger), 8, "one more of 1 Mbit/s");
    moves(&mut ledger, mbit(13));
    assert_eq!(served(&ledger), 9, "one more of 2 Mbit/s");
    moves(&mut ledger, mbit(150));
    assert_eq!(all(&ledger), before);
}

#[test]
fn a_guarantee_that_names_no_link_comes_back_on_its_own() {
    let mut ledger = Ledger::default();
    let managed = |ledger: &mut Ledger, name| ledger.manage(link(name, mbit(100)).link, 0);
    managed(&mut ledger, "eth0").expect("a link");
    let slot = process(&mut ledger, 1, None);
    ask(&mut ledger, slot, Claimant::ROOT, "min 50mbit");
    managed(&mut ledger, "eth1").expect("a second link");
    moves(&mut ledger, mbit(40));
    assert_eq!(in_force(&ledger, slot), "on eth0");
    moves(&mut ledger, mbit(100));
    assert_eq!(in_force(&ledger, slot), "min 50mbit on eth0");
}

#[test]
fn slices_follow_the_rate_and_one_that_becomes_too_small_is_degraded() {
    let mut ledger = Ledger::default();
    ledger
        .manage(link("eth0", mbit(100)).link, 0)
        .expect("a link");
    let (slice, tiny) = (process(&mut ledger, 1, None), process(&mut ledger, 2, None));
    ask(&mut ledger, slice, Claimant::ROOT, "slice 10ms/20ms");
    ask(&mut ledger, tiny, Claimant::ROOT, "slice 1us/10ms");
    let before = all(&ledger);
    moves(&mut ledger, mbit(5));
    assert!(!is_degraded(&ledger, slice), "it is half of any rate");
    assert!(
        is_degraded(&ledger, tiny),
        "500 bit/s is less than the smallest rate"
    );
    moves(&mut ledger, mbit(100));
    assert_eq!(all(&ledger), before);
}

#[test]
fn promises_to_targets_come_before_those_to_direct_flows() {
    let mut ledger = Ledger::default();
    ledger
        .manage(link("eth0", mbit(100)).link, 0)
        .expect("a link");
    let name: IfName = "eth0".parse().expect("a name");
    let slots: Vec<TargetId> = (1..=2).map(|pid| process(&mut ledger, pid, None)).collect();
    ask(&mut ledger, slots[0], Claimant::ROOT, "min 20mbit");
    ask(&mut ledger, slots[1], Claimant::ROOT, "min 20mbit");
    let part = DirectPart {
        need: mbit(60),
        flows: 2,
        tree: mbit(40),
        bucket: None,
    };
    ledger.set_direct_part(&name, Some(part));
    ledger.set_capacity(link("eth0", mbit(41)));
    assert!(!is_degraded(&ledger, slots[0]) && !is_degraded(&ledger, slots[1]));
    ledger.set_capacity(link("eth0", mbit(40)));
    assert!(!is_degraded(&ledger, slots[0]), "the older one fits");
    assert!(is_degraded(&ledger, slots[1]), "a hundredth is the flows'");
}

#[test]
fn a_request_may_degrade_but_not_end_a_direction_with_promises() {
    let mut ledger = Ledger::default();
    ledger
        .manage(link("eth0", mbit(100)).link, 0)
        .expect("a link");
    let slot = process(&mut ledger, 1, None);
    ask(
        &mut ledger,
        slot,
        Claimant::ROOT,
        "slice 10ms/20ms up 60mbit",
    );
    let none = Link {
        up: None,
        ..link("eth0", mbit(100)).link
    };
    let refused = ledger.manage_or_degrade(none, 0).expect_err("promised");
    assert!(refused.to_string().contains("pid:1"), "{refused}");
    // A slice grows with the link, and would exceed the limit.
    let faster = link("eth0", mbit(200)).link;
    ledger.manage_or_degrade(faster, 0).expect_err("too fast");
    assert!(!is_degraded(&ledger, slot));
    // A driver's speed is not a request.
    ledger.set_capacity(link("eth0", mbit(200)));
    assert!(is_degraded(&ledger, slot));
    moves(&mut ledger, mbit(100));
    assert!(!is_degraded(&ledger, slot));
}

/// The targets that are to be served at a rate: those in `served` that fit one after the other in
/// this order, and then those of the others that fit beside them.
fn expected(minimums: &[u64], served: &BTreeSet<usize>, rate: u64) -> BTreeSet<usize> {
    let mut kept = BTreeSet::new();
    let order = (0..minimums.len()).filter(|n| served.contains(n));
    for n in order.chain(0..minimums.len()) {
        let sum: u64 = kept.iter().map(|kept: &usize| minimums[*kept]).sum();
        if !kept.contains(&n) && sum + minimums[n] <= rate {
            kept.insert(n);
        }
    }
    kept
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_course_of_rates_degrades_in_order_and_restores_exactly(
        minimums in prop::collection::vec(1..60_u64, 1..9),
        rates in prop::collection::vec(1..300_u64, 1..12),
    ) {
        let mut ledger = Ledger::default();
        let top: u64 = minimums.iter().sum();
        ledger.manage(link("eth0", mbit(top)).link, 0).expect("a link");
        let slots: Vec<TargetId> = (0..minimums.len())
            .map(|n| process(&mut ledger, n as u32 + 1, None))
            .collect();
        for (slot, min) in slots.iter().zip(&minimums) {
            ask(&mut ledger, *slot, Claimant::ROOT, &format!("min {min}mbit up 500mbit"));
        }
        let bystander = process(&mut ledger, 100, None);
        ask(&mut ledger, bystander, USER, "up 7mbit");
        let before = all(&ledger);
        let mut served: BTreeSet<usize> = (0..minimums.len()).collect();
        for rate in rates {
            moves(&mut ledger, mbit(rate));
            served = expected(&minimums, &served, rate);
            let is_served = |n: &usize| !is_degraded(&ledger, slots[*n]);
            let now: BTreeSet<usize> = (0..minimums.len()).filter(is_served).collect();
            prop_assert_eq!(&now, &served, "at {} Mbit/s", rate);
            for (n, slot) in slots.iter().enumerate() {
                let contract = &ledger.get(*slot).expect("held").entry.contract;
                prop_assert_eq!(contract.is_guaranteed(), served.contains(&n));
                prop_assert_eq!(contract.up(), Some(mbit(500)), "limits stay");
            }
            prop_assert_eq!(in_force(&ledger, bystander), "up 7mbit");
        }
        moves(&mut ledger, mbit(top));
        prop_assert_eq!(all(&ledger), before);
    }

    #[test]
    fn nested_guarantees_never_exceed_the_rate_and_come_back(
        minimums in prop::collection::vec((1..40_u64, 0..4_usize), 1..9),
        rates in prop::collection::vec(1..120_u64, 1..8),
    ) {
        let mut ledger = Ledger::default();
        ledger.manage(link("eth0", mbit(1_000)).link, 0).expect("a link");
        let mut slots: Vec<TargetId> = Vec::new();
        for (n, (min, around)) in minimums.iter().enumerate() {
            let own = slots.get(*around).and_then(|slot| Some(ledger.get(*slot)?.id));
            let slot = process(&mut ledger, n as u32 + 1, own);
            let change = format!("min {min}mbit").parse().expect("a change");
            // A guarantee larger than the one around it is refused.
            let _ = ledger.change_claim(slot, Claimant::ROOT, &change, 0);
            slots.push(slot);
        }
        let before = all(&ledger);
        for rate in rates {
            let served: Vec<bool> = slots.iter().map(|s| !is_degraded(&ledger, *s)).collect();
            let fits = admission::admit_link(
                &ledger.capacities(),
                &ledger.entries(),
                link("eth0", mbit(rate)).link,
            );
            moves(&mut ledger, mbit(rate));
            if fits.is_ok() {
                let keeps = |(slot, was): (&TargetId, &bool)| !was || !is_degraded(&ledger, *slot);
                prop_assert!(slots.iter().zip(&served).all(keeps), "all fit, so none loses");
            }
        }
        moves(&mut ledger, mbit(1_000));
        prop_assert_eq!(all(&ledger), before);
    }
}
