use std::collections::{BTreeMap, BTreeSet};

use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

#[test]
fn a_moved_flow_is_shown_as_before_and_a_new_flow_in_its_slot_otherwise() {
    let mut slots = ShownSlots::default();
    assert_eq!(slots.show_new(3), 3);
    slots.remove(3, (0, 3));
    slots.insert(3, (1, 0));
    assert_eq!(slots.at.get(&(1, 0)), Some(&3));
    // The first driver reuses the slot.
    let other = slots.show_new(3);
    assert!(other >= MAX_FLOWS, "{other}");
    // The moved flow comes back to another slot, and then to its own one.
    slots.remove(3, (1, 0));
    slots.insert(3, (0, 5));
    slots.remove(other, (0, 3));
    slots.remove(3, (0, 5));
    slots.insert(3, (0, 3));
    assert!(slots.at.is_empty() && slots.in_use.is_empty());
}

/// Drivers that give flows free slots, as the program opens, moves and closes flows.
#[derive(Clone, Copy, Debug)]
enum Step {
    Open,
    Move(prop::sample::Index, usize),
    Close(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Open),
        3 => (any::<prop::sample::Index>(), 0..3usize).prop_map(|(flow, to)| Step::Move(flow, to)),
        1 => any::<prop::sample::Index>().prop_map(Step::Close),
    ]
}

proptest! {
    #![proptest_config(cases(256))]

    /// No two open flows are shown alike, and each place leads to its flow.
    #[test]
    fn each_open_flow_is_shown_under_a_number_of_its_own(
        steps in proptest::collection::vec(step(), 1..100),
    ) {
        let mut slots = ShownSlots::default();
        // By the shown slot: the place.
        let mut open: BTreeMap<u32, Place> = BTreeMap::new();
        let free = |open: &BTreeMap<u32, Place>, link| {
            let used: BTreeSet<Place> = open.values().copied().collect();
            (0..).find(|slot| !used.contains(&(link, *slot))).expect("a free slot")
        };
        for step in steps {
            let shown: Vec<u32> = open.keys().copied().collect();
            match step {
                Step::Open => {
                    let slot = free(&open, 0);
                    let shown = slots.show_new(slot);
                    prop_assert!(open.insert(shown, (0, slot)).is_none());
                }
                Step::Move(..) | Step::Close(_) if shown.is_empty() => {}
                Step::Move(flow, link) => {
                    let shown = *flow.get(&shown);
                    let (from, to) = (open[&shown], (link, free(&open, link)));
                    slots.remove(shown, from);
                    slots.insert(shown, to);
                    open.insert(shown, to);
                }
                Step::Close(flow) => {
                    let shown = *flow.get(&shown);
                    let place = open.remove(&shown).expect("it is open");
                    slots.remove(shown, place);
                }
            }
            for (shown, place) in &open {
                let known = slots.at.get(place).copied();
                prop_assert_eq!(known.unwrap_or(place.1), *shown);
            }
            prop_assert_eq!(slots.at.len(), slots.in_use.len());
        }
    }
}
