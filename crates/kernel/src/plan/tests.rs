//! Tests of properties that every plan has, and the steps between any two plans.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{plan as plan_for, tree::TOP_CLASS, *};
use crate::tc::Queue;

mod budgets;
mod yielding;

/// The plan if all targets are busy.
fn plan(desired: &Desired) -> Plan {
    plan_for(desired, &IdleNodes::new())
}

fn rate(bits: u64) -> Rate {
    Rate::new(bits).expect("a rate of the tests is in range")
}

fn target(slot: u16) -> Target {
    Target {
        id: 1_000 + u32::from(slot),
        slot,
        parent: None,
        limit: Limit::None,
        burst: Nanos::from_millis(5),
        share: None,
        weight: 100,
        priority: 4,
        dscp: None,
        yields: false,
        is_budget: false,
        quotas: Vec::new(),
    }
}

fn up(slot: u16, bits: u64) -> Target {
    Target {
        limit: Limit::Each {
            up: Some(rate(bits)),
            down: None,
        },
        ..target(slot)
    }
}

fn inside(parent: u16, child: Target) -> Target {
    Target {
        parent: Some(parent),
        ..child
    }
}

fn on_link(slot: u16, min: u64) -> Target {
    let share = LinkShare {
        link: "eth0".into(),
        min: Some(rate(min)),
        min_down: None,
        max: None,
        redirect: None,
    };
    Target {
        share: Some(share),
        ..target(slot)
    }
}

fn desired(targets: Vec<Target>) -> Desired {
    let link = Link {
        name: "eth0".into(),
        up: Some(rate(100_000_000)),
        down: Some(rate(97_000_000)),
        overhead: 0,
        bucket: None,
        has_redirects: false,
    };
    Desired {
        targets,
        links: vec![link],
        leaf_qdisc: LeafQdisc::Fifo,
        longest_packet: 1_518,
        loopback: Some("lo".into()),
        on_lo: BTreeSet::new(),
    }
}

/// Applies steps to a tree as the kernel would, and rejects what the kernel rejects.
fn carry_out(tree: &mut Tree, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Add(n, class) => {
                assert!(
                    class.parent == 0 || tree.contains_key(&class.parent),
                    "class {n} has no parent"
                );
                assert!(
                    tree.insert(*n, *class).is_none(),
                    "class {n} is there already"
                );
            }
            Step::Change(n, class) => {
                let old = tree
                    .insert(*n, *class)
                    .expect("only a class that is there is changed");
                assert_eq!(old.parent, class.parent, "HTB cannot move class {n}");
                if class.queue.is_none() {
                    let kept = |htb: &HtbClass| (htb.quantum, htb.priority);
                    assert_eq!(
                        kept(&old.htb),
                        kept(&class.htb),
                        "HTB changes these of leaves only"
                    );
                }
            }
            Step::Requeue(n, queue) => {
                tree.get_mut(n).expect("a queue needs its class").queue = Some(*queue)
            }
            Step::Remove(n) => {
                assert!(
                    !tree.values().any(|c| c.parent == *n),
                    "class {n} still has classes below it"
                );
                assert!(
                    tree.remove(n).is_some(),
                    "only a class that is there is removed"
                );
            }
        }
    }
}

/// The sum of the assured rates of all leaves below a class, and their number.
fn assured_to_leaves(tree: &Tree, number: u16) -> (u64, u64) {
    let below = tree.iter().filter(|(_, class)| class.parent == number);
    below.fold((0, 0), |(sum, count), (n, class)| {
        let (more, leaves) = match class.queue {
            Some(_) => (class.htb.rate, 1),
            None => assured_to_leaves(tree, *n),
        };
        (sum + more, count + leaves)
    })
}

/// Checks the properties of every tree.
fn check(tree: &Tree, link_rate: u64) {
    for (number, class) in tree {
        let below: Vec<(&u16, &Class)> = tree.iter().filter(|(_, c)| c.parent == *number).collect();
        assert_eq!(
            class.queue.is_none(),
            !below.is_empty(),
            "class {number}: queues are in leaves and only there"
        );
        assert!(
            class.htb.rate <= class.htb.ceil,
            "class {number} is assured more than its ceiling"
        );
        assert!(class.htb.ceil <= link_rate);
        assert!(class.htb.quantum >= 1_514 && class.htb.burst > 0 && class.htb.cburst > 0);
        // The rate of 1,000 bytes per second for each class without a guarantee is negligible on a
        // link, but not in a limit.
        let (guaranteed, noise) = match tree.contains_key(&TOP_CLASS) {
            true => (
                below.iter().map(|(_, c)| c.htb.rate).sum(),
                1_000 * below.len() as u64,
            ),
            // In the cap stage an inner class has no assured rate itself, so the leaves count.
            false => assured_to_leaves(tree, *number),
        };
        let has = match tree.contains_key(&TOP_CLASS) {
            true => class.htb.rate.max(noise),
            false => class.htb.ceil,
        };
        assert!(
            class.queue.is_some() || guaranteed <= has + noise,
            "class {number} has {has} and gives away {guaranteed}"
        );
    }
    let depth = |mut n: u16| {
        (0..)
            .take_while(|_| tree.get(&n).map(|c| n = c.parent).is_some())
            .count()
    };
    assert!(tree.keys().all(|n| depth(*n) <= 8), "HTB has eight levels");
}

#[test]
fn a_limit_becomes_a_class_with_four_leaves() {
    let plan = plan(&desired(vec![up(1, 4_000_000)]));
    let numbers: Vec<u16> = plan.cap.keys().copied().collect();
    assert_eq!(numbers, [9, 10, 11, 12, 13]);
    assert_eq!(plan.cap[&9].htb.ceil, 500_000);
    assert_eq!(
        plan.cap[&10].htb.rate, 125_000,
        "a quarter is assured to sparse flows"
    );
    let cap = plan.leaves[&1_001];
    assert_eq!(
        cap.cap[0].map(|l| (l.sparse, l.bulk, l.local, l.patient)),
        Some((10, 11, 12, 13))
    );
    assert_eq!(cap.cap[1], None);
    assert_eq!(cap.own, [true, false]);
}

/// A leaf with an assured rate would send at that rate and by borrowing, and so two packets
/// together.
#[test]
fn bulk_leaves_of_a_limit_have_no_assured_rate() {
    let plan = plan(&desired(vec![
        up(1, 4_000_000),
        inside(1, up(2, 2_000_000)),
    ]));
    for leaf in [11, 12, 13, 20, 21, 22] {
        assert_eq!(plan.cap[&leaf].htb.rate, 1, "class {leaf}");
    }
    assert_eq!(
        plan.cap[&9].htb.rate, 500_000,
        "the limit itself has the whole rate"
    );
    assert_eq!(plan.cap[&18].htb.rate, 1, "a nested limit borrows from it");
    assert_eq!(plan.cap[&18].htb.ceil, 250_000);
    assert!(plan.cap[&19].htb.rate > 10_000, "but not its sparse leaf");
}

#[test]
fn the_bucket_of_a_limit_holds_exactly_its_burst() {
    let ticks = |burst| {
        let target = Target {
            burst,
            ..up(1, 64_000)
        };
        let htb = plan(&desired(vec![target])).cap[&9].htb;
        [htb.burst, htb.cburst]
    };
    let of = |nanos: u64| [(nanos / 64) as u32; 2];
    assert_eq!(ticks(Nanos::from_millis(5)), of(5_000_000));
    assert_eq!(ticks(Nanos::from_secs(1)), of(1_000_000_000));
    assert_eq!(ticks(Nanos::from_micros(1)), of(1_000));
}

#[test]
fn a_limit_on_both_is_one_class_for_both_directions() {
    let both = Target {
        limit: Limit::Both(rate(1_000_000)),
        ..target(3)
    };
    let plan = plan(&desired(vec![both, inside(3, target(4))]));
    assert_eq!(plan.cap.len(), 5);
    for id in [1_003, 1_004] {
        let [sent, received] = plan.leaves[&id].cap.map(|leaves| leaves.expect("limited"));
        let bound = received.bound;
        assert_eq!(received, NodeLeaves { bound, ..sent });
        assert_eq!((sent.bound, bound), (5_000, 15_140));
    }
    assert_eq!(
        plan.leaves[&1_003].own,
        [true, false],
        "the packets of one class are counted once"
    );
    assert_eq!(plan.leaves[&1_004].own, [false, false]);
}

#[test]
fn a_target_without_a_limit_uses_the_one_around_it() {
    let plan = plan(&desired(vec![
        up(1, 8_000_000),
        inside(1, target(2)),
        inside(2, up(3, 1_000_000)),
    ]));
    assert_eq!(plan.leaves[&1_002].cap[0], plan.leaves[&1_001].cap[0]);
    assert_eq!(
        plan.cap[&27].parent, 9,
        "the inner limit hangs under the outer one"
    );
    check(&plan.cap, 1_000_000);
}

#[test]
fn packets_are_segmented_where_one_would_take_more_than_a_millisecond() {
    let segment_to = |bits| {
        plan(&desired(vec![up(1, bits)])).cap[&11]
            .queue
            .map(|q| q.segment_to)
    };
    assert_eq!(segment_to(4_000_000), Some(Some(1_518)));
    assert_eq!(segment_to(1_000_000_000), Some(None));
    let local = plan(&desired(vec![up(1, 4_000_000)])).cap[&12].queue;
    assert_eq!(
        local.map(|q| q.segment_to),
        Some(None),
        "a packet of lo cannot be segmented"
    );
}

#[test]
fn a_leaf_has_its_limit_and_the_longest_packet_that_it_takes() {
    for (bits, longest) in [(4_000_000, 1_518), (1_000_000_000, 0)] {
        let leaf = plan(&desired(vec![up(1, bits)])).leaves[&1_001].cap[0].expect("a limit");
        assert_eq!((leaf.longest, u64::from(leaf.rate)), (longest, bits / 8));
    }
}

#[test]
fn turns_are_long_around_a_leaf_with_long_packets_of_lo() {
    let mut wanted = desired(vec![
        up(1, 4_000_000),
        inside(1, up(2, 2_000_000)),
        up(3, 4_000_000),
    ]);
    // The bulk, local and patient leaves of each slot.
    let quanta = |wanted: &Desired| {
        let cap = plan(wanted).cap;
        [1, 2, 3].map(|slot| [2, 3, 4].map(|leaf| cap[&(slot * 9 + leaf)].htb.quantum))
    };
    let short = [1_518, 65_550, 1_518];
    assert_eq!(quanta(&wanted), [short; 3]);
    wanted.on_lo = [2].into();
    assert_eq!(quanta(&wanted), [[65_550; 3], [65_550; 3], short]);
    wanted.on_lo = [99].into();
    assert_eq!(quanta(&wanted), [short; 3], "no target has this slot");
}

#[test]
fn a_fifo_always_takes_two_of_the_largest_packets() {
    for bits in [8_000, 64_000, 4_000_000, 10_000_000_000] {
        for number in [11, 12, 13] {
            let queue = plan(&desired(vec![up(1, bits)])).cap[&number]
                .queue
                .map(|q| q.queue);
            assert!(
                matches!(queue, Some(Queue::Fifo { limit }) if limit >= 2 * 65_550),
                "{bits}: {queue:?}"
            );
        }
    }
}

#[test]
fn a_bulk_leaf_of_a_limit_is_bounded_in_time_and_bytes() {
    let bounds = |bits: u64| {
        let each = Target {
            limit: Limit::Each {
                up: Some(rate(bits)),
                down: Some(rate(bits)),
            },
            ..target(1)
        };
        plan(&desired(vec![each])).leaves[&1_001]
            .cap
            .map(|leaves| leaves.expect("limited").bound)
    };
    assert_eq!(bounds(64_000), [3_028, 15_140], "two and ten packets");
    assert_eq!(bounds(4_000_000), [20_000, 25_000], "40 and 50 ms");
    assert_eq!(bounds(20_000_000), [65_550; 2], "one of the largest");
    assert_eq!(bounds(1_000_000_000), [2_500_000; 2], "20 ms");
}

#[test]
fn only_leaves_of_limits_have_a_bound_and_they_are_fifos() {
    let both = Desired {
        leaf_qdisc: LeafQdisc::FqCodel,
        ..desired(vec![up(1, 4_000_000), on_link(2, 1_000_000)])
    };
    let plan = plan(&both);
    let link = plan.links["eth0"].leaves[&1_002][0].expect("a class on the link");
    assert_eq!((link.bound, link.bulk), (0, link.patient));
    assert_eq!(link.bulk, link.local);
    let tree = plan.links["eth0"].trees[0].as_ref().expect("managed");
    let queue = |tree: &Tree, number: u16| tree[&number].queue.map(|q| q.queue);
    assert!(matches!(
        queue(tree, link.bulk),
        Some(Queue::FqCodel { .. })
    ));
    assert!(matches!(queue(&plan.cap, 11), Some(Queue::Fifo { .. })));
}

#[test]
fn a_receiving_fifo_of_a_link_is_short() {
    let limit = |bits: u64| {
        let mut wanted = desired(vec![]);
        wanted.links[0].down = Some(rate(bits));
        let plan = plan(&wanted);
        let tree = plan.links["eth0"].trees[1].as_ref().expect("managed");
        match tree[&4].queue.map(|q| q.queue) {
            Some(Queue::Fifo { limit }) => limit,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(limit(64_000), 30_280, "twenty packets");
    assert_eq!(limit(4_000_000), 50_000, "100 ms");
    assert_eq!(limit(20_000_000), 65_550, "one of the largest");
    assert!(
        limit(1_000_000_000) >= 2 * 65_550,
        "where packets are not segmented"
    );
}

/// The programs select the local leaf for all packets of lo that are not sparse. A packet of lo has
/// up to 64 KiB and cannot be segmented.
#[test]
fn the_classes_of_a_managed_lo_hold_its_packets() {
    let mut wanted = desired(vec![]);
    wanted.links[0].name = "lo".into();
    for bits in [1_000_000, 100_000_000, 1_000_000_000] {
        (wanted.links[0].up, wanted.links[0].down) = (Some(rate(bits)), Some(rate(bits)));
        let lo = &plan(&wanted).links["lo"];
        for (tree, rest) in lo.trees.iter().zip(lo.rest) {
            let leaf = rest.expect("traffic without a target has leaves");
            let class = tree.as_ref().and_then(|tree| tree.get(&leaf.local));
            let class = class.expect("the local leaf is a class");
            let queue = class.queue.expect("a leaf has a queue");
            assert_eq!(class.htb.ceil, bits / 8);
            assert!(class.htb.quantum >= 65_550, "{}", class.htb.quantum);
            assert_eq!(queue.segment_to, None);
            assert!(
                matches!(queue.queue, Queue::Fifo { limit } if limit >= 2 * 65_550),
                "{bits}: {queue:?}"
            );
        }
    }
}

#[test]
fn minimums_on_a_link_equal_the_granted_ones() {
    let plan = plan(&desired(vec![
        on_link(1, 60_000_000),
        on_link(2, 20_000_000),
        inside(1, on_link(3, 10_000_000)),
    ]));
    let trees = &plan.links["eth0"];
    let up = trees.trees[0].as_ref().expect("the link is managed");
    let part = 2_500_000 / 3; // the left-over, in three equal parts
    assert_eq!(
        [up[&9].htb.rate, up[&18].htb.rate, up[&2].htb.rate],
        [7_500_000 + part, 2_500_000 + part, part]
    );
    assert_eq!(up[&27].parent, 9);
    assert!(up[&27].htb.rate >= 1_250_000, "a nested minimum is kept");
    assert_eq!(up[&1].htb.ceil, 12_500_000);
    assert!(trees.rest[0].is_some());
    check(up, 12_500_000);
}

#[test]
fn a_slice_without_extra_gets_its_part_and_no_more() {
    let mut slice = on_link(1, 60_000_000);
    if let Some(share) = &mut slice.share {
        share.max = share.min;
    }
    let plan = plan(&desired(vec![slice, on_link(2, 20_000_000)]));
    let up = plan.links["eth0"].trees[0].as_ref().expect("managed");
    assert_eq!((up[&9].htb.rate, up[&9].htb.ceil), (7_500_000, 7_500_000));
    assert_eq!(up[&18].htb.ceil, 12_500_000);
    check(up, 12_500_000);
}

#[test]
fn only_busy_targets_share_the_left_over() {
    let wanted = desired(vec![
        on_link(1, 60_000_000),
        Target {
            weight: 300,
            ..on_link(2, 20_000_000)
        },
    ]);
    let idle = IdleNodes::from([("eth0".to_owned(), [BTreeSet::from([1]), BTreeSet::new()])]);
    let plan = plan_for(&wanted, &idle);
    let up = plan.links["eth0"].trees[0]
        .as_ref()
        .expect("the link is managed");
    assert_eq!(
        up[&9].htb.rate, 7_500_000,
        "an idle target keeps its minimum"
    );
    assert_eq!(up[&18].htb.rate, 2_500_000 + 2_500_000 / 4 * 3);
    assert_eq!(up[&2].htb.rate, 2_500_000 / 4);
}

#[test]
fn the_left_over_goes_to_the_first_priority() {
    let wanted = desired(vec![
        Target {
            priority: 0,
            ..on_link(1, 1_000)
        },
        on_link(2, 1_000),
    ]);
    let plan = plan(&wanted);
    let up = plan.links["eth0"].trees[0]
        .as_ref()
        .expect("the link is managed");
    assert!(up[&9].htb.rate > 12_000_000 && up[&18].htb.rate <= 1_000 && up[&2].htb.rate <= 1_000);
}

#[test]
fn weights_are_ratios_of_quanta() {
    let weighted = |slot, weight| Target {
        weight,
        ..on_link(slot, 1_000_000)
    };
    let plan = plan(&desired(vec![
        weighted(1, 50),
        weighted(2, 100),
        weighted(3, 1_000),
    ]));
    let up = plan.links["eth0"].trees[0]
        .as_ref()
        .expect("the link is managed");
    let quantum = |n: u16| f64::from(up[&n].htb.quantum);
    assert!((quantum(20) / quantum(11) - 2.0).abs() < 0.01);
    assert!((quantum(29) / quantum(11) - 20.0).abs() < 0.01);
    assert!(quantum(11) >= 1_514.0);
}

#[test]
fn a_lower_rate_is_set_before_a_higher_one() {
    let before = plan(&desired(vec![up(1, 1_000_000), up(2, 9_000_000)])).cap;
    let after = plan(&desired(vec![up(1, 9_000_000), up(2, 1_000_000)])).cap;
    let steps = difference(&before, &after).before;
    let falls = |step: &Step| matches!(step, Step::Change(n, c) if c.htb.rate < before[n].htb.rate);
    let rises = |step: &Step| matches!(step, Step::Change(n, c) if c.htb.rate > before[n].htb.rate);
    let last_fall = steps.iter().rposition(falls);
    let first_rise = steps.iter().position(rises);
    assert!(last_fall < first_rise, "{steps:?}");
}

#[test]
fn one_more_nested_target_seldom_changes_the_others() {
    let nested = |count: u16| {
        let mut targets = vec![up(1, 80_000_000)];
        targets.extend((2..2 + count).map(|slot| inside(1, up(slot, 1_000_000))));
        plan(&desired(targets)).cap
    };
    let steps = difference(&nested(5), &nested(6));
    assert!(
        steps.before.iter().all(|s| matches!(s, Step::Add(..))),
        "{steps:?}"
    );
}

#[test]
fn a_small_limit_assures_little_more_than_itself_to_many_nested_limits() {
    let mut targets = vec![up(1, 256_000)];
    targets.extend((2..62).map(|slot| inside(1, up(slot, 10_000_000))));
    let cap = plan(&desired(targets)).cap;
    let leaves = cap.values().filter(|c| c.queue.is_some());
    let assured: u64 = leaves.map(|c| c.htb.rate).sum();
    assert!(assured <= 32_000 + 61 * 3, "{assured} of 32000 bytes/s");
}

#[test]
fn the_smallest_limit_assures_no_more_than_itself() {
    let cap = plan(&desired(vec![up(1, 1_000)])).cap;
    let assured: u64 = [10, 11, 12, 13].iter().map(|n| cap[n].htb.rate).sum();
    assert!(assured <= 125, "{assured} of 125 bytes/s");
}

#[test]
fn a_parent_that_is_missing_or_the_target_itself_is_ignored() {
    let plan = plan(&desired(vec![
        inside(9, up(1, 1_000_000)),
        inside(2, up(2, 1_000_000)),
    ]));
    assert_eq!(plan.cap[&9].parent, 0);
}

fn any_target(slot: u16) -> impl Strategy<Value = Target> {
    let bits = || 1_000u64..20_000_000_000;
    let limit = prop_oneof![
        Just(Limit::None),
        (proptest::option::of(bits()), proptest::option::of(bits())).prop_map(|(up, down)| {
            Limit::Each {
                up: up.map(rate),
                down: down.map(rate),
            }
        }),
        bits().prop_map(|b| Limit::Both(rate(b))),
    ];
    let min = || proptest::option::of(1_000u64..3_000_000);
    let parts = (min(), min(), any::<bool>());
    let share = proptest::option::of(parts.prop_map(|(up, down, slice)| LinkShare {
        link: "eth0".into(),
        min: up.map(rate),
        min_down: down.map(rate),
        max: up.filter(|_| slice).map(rate),
        redirect: None,
    }));
    // A parent has a lower slot: no cycles. Admission rejects deep chains, so parents are few.
    let parent = proptest::option::of(1u16..=3);
    let sharing = (1u16..=1_000, 0u8..8, proptest::bool::weighted(0.2));
    (limit, share, sharing, parent).prop_map(
        move |(limit, share, (weight, priority, yields), parent)| Target {
            yields,
            is_budget: false,
            parent: parent.filter(|p| *p < slot),
            limit,
            // Admission ensured that the members of a slice fit into it.
            share: share.filter(|_| !yields).map(|share| LinkShare {
                max: share.max.filter(|_| slot > 3),
                ..share
            }),
            weight,
            priority,
            ..target(slot)
        },
    )
}

fn any_desired() -> impl Strategy<Value = Desired> {
    let targets: Vec<_> = (1u16..12)
        .map(|slot| proptest::option::of(any_target(slot)))
        .collect();
    targets.prop_map(|targets| {
        let targets: Vec<Target> = targets.into_iter().flatten().collect();
        desired(targets)
    })
}

fn trees(plan: &Plan) -> [Tree; 3] {
    let link = plan.links.get("eth0").cloned().unwrap_or_default();
    let [up, down] = link.trees;
    [
        plan.cap.clone(),
        up.unwrap_or_default(),
        down.unwrap_or_default(),
    ]
}

proptest! {
    #[test]
    fn every_plan_is_valid(desired in any_desired()) {
        let plan = plan(&desired);
        let [cap, up, down] = trees(&plan);
        check(&cap, u64::MAX);
        check(&up, 12_500_000);
        check(&down, 12_125_000);
        for places in plan.leaves.values() {
            for leaf in places.cap.iter().flatten() {
                prop_assert!(cap[&leaf.sparse].queue.is_some() && cap[&leaf.bulk].queue.is_some());
                prop_assert!(cap[&leaf.local].queue.is_some());
                prop_assert!(cap[&leaf.patient].queue.is_some());
            }
        }
        for (dir, tree) in [up, down].into_iter().enumerate() {
            for leaf in plan.links["eth0"].leaves.values().filter_map(|p| p[dir]) {
                prop_assert!(tree[&leaf.sparse].queue.is_some());
                prop_assert!(tree[&leaf.bulk].queue.is_some());
                prop_assert!(tree[&leaf.local].queue.is_some());
                prop_assert!(tree[&leaf.patient].queue.is_some());
            }
        }
    }

    #[test]
    fn steps_lead_from_any_plan_to_any_other(from in any_desired(), to in any_desired()) {
        let (from, to) = (plan(&from), plan(&to));
        for (old, new) in trees(&from).into_iter().zip(trees(&to)) {
            let steps = difference(&old, &new);
            let mut tree = old;
            carry_out(&mut tree, &steps.before);
            // Between the halves the maps are switched: every leaf in them exists.
            let mut leaves = new.iter().filter(|(_, class)| class.queue.is_some());
            prop_assert!(leaves.all(|(number, _)| tree.contains_key(number)));
            carry_out(&mut tree, &steps.after);
            prop_assert_eq!(tree, new);
        }
    }
}
