//! Tests of the classes of targets that yield.

use super::*;

fn yielding(slot: u16) -> Target {
    Target {
        yields: true,
        quotas: Vec::new(),
        ..target(slot)
    }
}

/// The classes of the sending direction of the link.
fn sending(targets: Vec<Target>) -> Tree {
    let plan = plan(&desired(targets));
    let up = plan.links["eth0"].trees[0].clone();
    up.expect("the link is managed")
}

#[test]
fn a_target_that_yields_comes_last_and_has_no_part_of_the_left_over() {
    let up = sending(vec![on_link(1, 60_000_000), yielding(2)]);
    // Number 18 is its class; 19 and 20 are its leaves.
    assert_eq!((up[&18].htb.rate, up[&18].htb.ceil), (1_000, 12_500_000));
    assert_eq!(up[&19].htb.rate + up[&20].htb.rate, 1_000);
    assert_eq!((up[&19].htb.priority, up[&20].htb.priority), (7, 7));
    assert_eq!((up[&11].htb.priority, up[&4].htb.priority), (4, 4));
    // The others divide the left-over as without it.
    assert_eq!(up[&9].htb.rate, 7_500_000 + 2_500_000);
    assert_eq!(up[&2].htb.rate, 2_500_000);
    check(&up, 12_500_000);
    // Alone on the link, it is assured no more, so that it gives way at once.
    let alone = sending(vec![yielding(2)]);
    assert_eq!(alone[&18].htb.rate, 1_000);
}

#[test]
fn targets_that_yield_are_assured_a_hundredth_of_the_link_together() {
    let up = sending((1..=1_024).map(yielding).collect());
    let leaves = (1..=1_024_u16).flat_map(|slot| [slot * 9 + 1, slot * 9 + 2]);
    let assured: u64 = leaves.map(|leaf| up[&leaf].htb.rate).sum();
    assert!(assured <= 125_000, "{assured} bytes/s");
}

#[test]
fn a_target_that_yields_borrows_no_guarantee_around_it_and_stays_in_a_bound() {
    let up = sending(vec![on_link(1, 60_000_000), inside(1, yielding(2))]);
    assert_eq!(up[&18].parent, TOP_CLASS, "outside of the guarantee");
    assert_eq!(up[&11].htb.rate, up[&9].htb.rate - up[&9].htb.rate / 4);
    let mut bounded = on_link(1, 60_000_000);
    if let Some(share) = &mut bounded.share {
        share.max = share.min;
    }
    let up = sending(vec![bounded, inside(1, target(3)), inside(3, yielding(2))]);
    assert_eq!(up[&18].parent, 9, "inside of the bound");
    assert_eq!(up[&18].htb.ceil, 12_500_000);
    assert_eq!(up[&11].htb.rate, 7_500_000 - 7_500_000 / 4, "as without it");
}

#[test]
fn the_order_of_priorities_stays_beside_a_target_that_yields() {
    let of = |priorities: &[u8]| -> Vec<u32> {
        let targets = (1..).zip(priorities).map(|(slot, priority)| Target {
            priority: *priority,
            ..on_link(slot, 1_000)
        });
        let count = priorities.len() as u16;
        let up = sending(targets.chain([yielding(count + 1)]).collect());
        let bulk = |slot: u16| up[&(slot * 9 + 2)].htb.priority;
        assert_eq!(bulk(count + 1), 7);
        // Of the rest, which has priority 4, the bulk leaf is number 4.
        let rest = up[&4].htb.priority;
        (1..=count).map(bulk).chain([rest]).collect()
    };
    assert_eq!(of(&[0, 6]), [0, 6, 4], "7 is unused");
    assert_eq!(of(&[0, 7]), [0, 6, 4], "6 is unused");
    assert_eq!(of(&[5, 6, 7]), [4, 5, 6, 3]);
    assert_eq!(of(&[0, 2, 3, 5, 6, 7]), [0, 1, 2, 4, 5, 6, 3]);
    let all = of(&[0, 1, 2, 3, 5, 6, 7]);
    assert_eq!(all, [0, 1, 2, 3, 5, 6, 6, 4], "6 and 7 become one");
}
