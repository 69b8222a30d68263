//! Tests of the classes inside budgets, and of minimums inside a limit.

use super::*;
use crate::plan::tree::CLASSES_PER_SLOT;

fn budget(slot: u16, min: u64) -> Target {
    Target {
        is_budget: true,
        ..on_link(slot, min)
    }
}

fn rates(tree: &Tree, slots: &[u16]) -> Vec<u64> {
    let own = |slot: &u16| tree[&(slot * CLASSES_PER_SLOT)].htb.rate;
    slots.iter().map(own).collect()
}

fn link_tree(plan: &Plan) -> &Tree {
    plan.links["eth0"].trees[0].as_ref().expect("managed")
}

#[test]
fn a_budget_is_divided_by_weight_among_the_first_priority() {
    let weighing = |slot, weight, priority| Target {
        weight,
        priority,
        ..inside(1, on_link(slot, 1_000_000))
    };
    let wanted = desired(vec![
        budget(1, 10_000_000),
        weighing(2, 300, 2),
        weighing(3, 100, 2),
        weighing(4, 1_000, 7),
    ]);
    let all = plan(&wanted);
    let [one, two, three] = rates(link_tree(&all), &[2, 3, 4])[..] else {
        panic!("three nodes");
    };
    let [one, two, three] = [one, two, three].map(|rate| rate - 125_000);
    assert_eq!(three, 0, "the last priority has its minimum only");
    assert!(one.abs_diff(3 * two) <= 3, "{one} {two}");
    // The third node gets the rest while the others are idle.
    let idle = IdleNodes::from([("eth0".to_owned(), [BTreeSet::from([2, 3]), BTreeSet::new()])]);
    let plan = plan_for(&wanted, &idle);
    let [one, two, three] = rates(link_tree(&plan), &[2, 3, 4])[..] else {
        panic!("three nodes");
    };
    assert_eq!([one, two], [125_000, 125_000]);
    assert!(three > 1_000_000, "{three}");
}

#[test]
fn a_priority_inside_a_budget_is_that_of_the_budget_for_the_rest_of_the_link() {
    let first = Target {
        priority: 0,
        ..inside(1, on_link(2, 1_000_000))
    };
    let outside = Target {
        priority: 0,
        ..on_link(3, 1_000_000)
    };
    let plan = plan(&desired(vec![budget(1, 10_000_000), first, outside]));
    let priority = |slot: u16| {
        let bulk = slot * CLASSES_PER_SLOT + 2;
        link_tree(&plan)[&bulk].htb.priority
    };
    assert_eq!([priority(1), priority(2), priority(3)], [4, 4, 0]);
}

#[test]
fn a_minimum_inside_a_limit_is_assured_under_the_limit() {
    let limited = Target {
        limit: up(1, 12_000_000).limit,
        ..budget(1, 10_000_000)
    };
    let plan = plan(&desired(vec![
        limited,
        inside(1, on_link(2, 6_000_000)),
        inside(1, on_link(3, 4_000_000)),
        inside(1, target(4)),
        on_link(5, 1_000_000),
    ]));
    let stage = &plan.cap;
    let own = |slot: u16| slot * CLASSES_PER_SLOT;
    assert_eq!(rates(stage, &[1, 2, 3]), [1_500_000, 750_000, 500_000]);
    for slot in [2, 3] {
        assert_eq!(stage[&own(slot)].parent, own(1));
        assert_eq!(stage[&own(slot)].htb.ceil, 1_500_000, "up to the limit");
    }
    // What classes directly below the limit send without borrowing.
    let below = stage.values().filter(|class| class.parent == own(1));
    let assured: u64 = below.map(|class| class.htb.rate).sum();
    assert!(assured <= 1_500_000, "{assured}");
    assert!(!stage.contains_key(&own(4)), "it has no minimum");
    assert!(!stage.contains_key(&own(5)), "it is in no limit");
}
