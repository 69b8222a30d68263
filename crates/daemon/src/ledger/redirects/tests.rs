use netnice_core::claims::Claimant;
use netnice_core::link::{Capacity, CapacitySource};
use netnice_core::units::{Bytes, Nanos};

use super::*;
use crate::ledger::{Body, NewTarget, TargetPlace};

fn name(text: &str) -> IfName {
    text.parse().expect("a name")
}

/// A ledger in which eth0 and eth1 have 100 Mbit/s, and eth2 has a receiving rate alone.
fn ledger() -> Ledger {
    let mut ledger = Ledger::default();
    for (link, sends) in [("eth0", true), ("eth1", true), ("eth2", false)] {
        let capacity = Some(Capacity {
            rate: "100mbit".parse().expect("a rate"),
            source: CapacitySource::Operator,
        });
        ledger.restore_link(ManagedLink {
            link: Link {
                name: name(link),
                up: capacity.filter(|_| sends),
                down: capacity,
                overhead: Bytes(0),
                horizon: Nanos(0),
            },
            by: 0,
            reflectors: Vec::new(),
            classes: Default::default(),
        });
    }
    ledger
}

/// Opens a user (`user:1000`), and a process of the user inside it (`pid:10`), with contracts.
fn nested(outer: &str, inner: &str) -> (Ledger, [TargetId; 2]) {
    let mut ledger = ledger();
    let place = TargetPlace {
        uid: Some(1000),
        ..TargetPlace::default()
    };
    let process = Body::Processes {
        roots: Vec::new(),
        only: false,
    };
    let nowhere = TargetPlace::default();
    let targets = [
        ("user:1000", Body::User(1000), nowhere, outer),
        ("pid:10", process, place, inner),
    ];
    let slots = targets.map(|(target, body, place, contract)| {
        let target = target.parse().expect("a target");
        let inside = Default::default();
        let new = NewTarget {
            target,
            body,
            place,
            inside,
        };
        let slot = ledger.open(new).expect("a slot");
        let change = contract.parse().expect("a change");
        let changed = ledger.change_claim(slot, Claimant::ROOT, &change, 0);
        changed.unwrap_or_else(|error| panic!("{contract}: {error}"));
        slot
    });
    assert_eq!(
        ledger.get(slots[1]).and_then(|held| held.entry.parent),
        Some(slots[0])
    );
    (ledger, slots)
}

/// A target with this contract, one inside it with that contract, and what the driver serves of
/// each, or a word of the reason why it does not.
type Case = (
    &'static str,
    &'static str,
    Result<&'static str, &'static str>,
    Result<&'static str, &'static str>,
);

const CELL: &str = "cell pcr=10mbit,cdvt=2ms on eth0";
const TABLE: [Case; 11] = [
    (
        "up 50mbit",
        CELL,
        Err("no guarantee"),
        Ok("cell pcr=10mbit,cdvt=2ms"),
    ),
    (
        "weight 7 on eth1",
        CELL,
        Err("no guarantee"),
        Ok("cell pcr=10mbit,cdvt=2ms"),
    ),
    (
        "min 20mbit on eth1",
        CELL,
        Ok("min 20mbit"),
        Ok("cell pcr=10mbit,cdvt=2ms"),
    ),
    (
        "min 20mbit on eth0",
        CELL,
        Err("pid:10 inside"),
        Err("user:1000 around"),
    ),
    (
        "slice 3ms/10ms on eth0",
        CELL,
        Err("pid:10 inside"),
        Err("user:1000 around"),
    ),
    (
        CELL,
        "weight 7 on eth0",
        Err("pid:10 inside"),
        Err("no guarantee"),
    ),
    (
        CELL,
        "up 1mbit",
        Ok("cell pcr=10mbit,cdvt=2ms"),
        Err("no guarantee"),
    ),
    (
        "min-down 20mbit on eth0",
        "up 5mbit weight 9 slice 1ms/50ms extra on eth0 dscp 3",
        Err("no guarantee"),
        Ok("weight 9 slice 1ms/50ms extra"),
    ),
    (
        "up 50mbit",
        "min 1mbit priority 2 on eth0",
        Err("no guarantee"),
        Err("a priority"),
    ),
    (
        "min 20mbit on eth0 delegate 1000",
        "up 1mbit",
        Err("a budget"),
        Err("no guarantee"),
    ),
    (
        "min-down 20mbit on eth2",
        "up 1mbit",
        Err("no guarantee"),
        Err("no guarantee"),
    ),
];

/// Which targets can be redirected, with the contract for the driver, or why not.
#[test]
fn a_driver_serves_targets_without_others_around_or_inside_them_on_the_link() {
    let all = BTreeSet::from(["eth0", "eth1", "eth2"].map(name));
    for (outer, inner, of_outer, of_inner) in TABLE {
        let (ledger, slots) = nested(outer, inner);
        let found = ledger.redirectable(&all);
        for (slot, expected) in slots.into_iter().zip([of_outer, of_inner]) {
            let held = ledger.get(slot).expect("held");
            let target = found.iter().find(|target| target.id == held.id);
            let served = target.map(|target| target.contract.to_string());
            let case = format!("{outer} around {inner}: {}", held.entry.target);
            match expected {
                Ok(contract) => assert_eq!(served.as_deref(), Some(contract), "{case}"),
                Err("no guarantee") => {
                    assert!(!held.entry.contract.reserves(Direction::Up) && served.is_none());
                }
                Err(word) => {
                    assert_eq!(served, None, "{case}");
                    let fault = ledger.redirect_fault(held).expect(&case);
                    assert!(fault.contains(word), "{case}: {fault}");
                }
            }
        }
        let without = ledger.redirectable(&BTreeSet::new());
        let expected = found.into_iter().filter(|target| target.starts_driver);
        assert_eq!(without, expected.collect::<Vec<_>>(), "minimums on no link");
    }
}

#[test]
fn a_redirected_target_counts_once() {
    let (mut ledger, [_, slot]) = nested("up 90mbit", "cell pcr=10mbit,cdvt=2ms on eth0");
    let id = ledger.get(slot).expect("held").id;
    let link = ledger.link("eth0").expect("managed").link.clone();
    let part = crate::ledger::direct_part::DirectPart {
        need: "13mbit".parse().expect("a rate"),
        flows: 0,
        tree: "87mbit".parse().expect("a rate"),
        bucket: None,
    };
    ledger.set_direct_part(&link.name, Some(part));
    let promised = |ledger: &Ledger| ledger.promised(&link)[0].0 / 1_000_000;
    assert_eq!(promised(&ledger), 23);
    for (phase, total, of_redirected) in [
        (RedirectPhase::Prepared, 13, 10),
        (RedirectPhase::Active, 13, 10),
        (RedirectPhase::Ending, 23, 0),
    ] {
        let place = RedirectPlace {
            link: link.name.clone(),
            target: id,
            rate: Amount(10_000_000),
            phase,
            begins: false,
        };
        ledger.set_redirects(BTreeMap::from([(7, place)]));
        assert_eq!(promised(&ledger), total);
        let redirected = ledger.promised_to_redirected(&link);
        assert_eq!(redirected.0 / 1_000_000, of_redirected);
        let active = (phase == RedirectPhase::Active).then_some(7);
        assert_eq!(ledger.active_redirect(id, &link.name), active);
        assert_eq!(ledger.active_redirect(id, &name("eth1")), None);
    }
}
