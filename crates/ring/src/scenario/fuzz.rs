//! Property tests of the driver's side against a program that writes any value to its memory.
//!
//! A scenario is a sequence of steps on one flow. It mixes valid steps of both sides with writes to
//! indices and entries (near the valid value, far from it, or random). The properties:
//!
//! - no call panics;
//! - an accepted record lies inside the data area, in chunks that no other record has;
//! - the set of chunks that the driver has agrees with the records that it took, and the driver
//!   can always give back a record that it took;
//! - with valid steps alone there is no protocol violation, and every packet arrives as it was
//!   sent.

mod script;

use netnice_cases::cases;
use proptest::prelude::*;

use super::hostile::{Corruption, START, Scenario, Step};
use crate::layout::Ring;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1usize..=8, 1u32..=64).prop_map(|(pieces, length)| Step::Submit { pieces, length }),
        4 => (1usize..=8).prop_map(|pieces| Step::Prime { pieces }),
        4 => Just(Step::ProgramPublish),
        3 => Just(Step::Reclaim),
        3 => Just(Step::Receive),
        4 => Just(Step::Take),
        4 => Just(Step::TakeEmpty),
        3 => any::<usize>().prop_map(|which| Step::GiveBack { which }),
        3 => (any::<usize>(), 0usize..600)
            .prop_map(|(which, length)| Step::Deliver { which, length }),
        4 => Just(Step::DriverPublish),
    ]
}

fn ring() -> impl Strategy<Value = Ring> {
    prop::sample::select(&Ring::ALL[..])
}

/// Numbers near 0, numbers near every power of two, and random numbers.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..40,
        (0u32..64, 0u64..5).prop_map(|(bit, off)| (1u64 << bit).wrapping_add(off).wrapping_sub(2)),
        any::<u64>(),
    ]
}

fn entry() -> impl Strategy<Value = [u64; 2]> {
    let base = prop_oneof![4 => (0u64..14).prop_map(|chunk| 64 * chunk), 1 => number()];
    prop_oneof![
        // A head with a valid count.
        3 => (1u64..9).prop_map(|count| [count, 0]),
        // A pair that may be valid.
        3 => (base, prop_oneof![4 => 0u64..66, 1 => number()])
            .prop_map(|(base, length)| [base, length]),
        1 => [number(), number()],
    ]
}

fn corruption(start: u32) -> impl Strategy<Value = Corruption> {
    let index = move || {
        prop_oneof![
            4 => (0u32..40).prop_map(move |off| start.wrapping_add(off).wrapping_sub(2)),
            1 => any::<u32>(),
        ]
    };
    prop_oneof![
        6 => (ring(), 0u32..16, entry())
            .prop_map(|(ring, at, words)| Corruption::Entry(ring, at, words)),
        2 => (ring(), index()).prop_map(|(ring, index)| Corruption::Producer(ring, index)),
        2 => (ring(), index()).prop_map(|(ring, index)| Corruption::Consumer(ring, index)),
        6 => Just(Corruption::Nothing),
    ]
}

/// The number of steps of a scenario is below this.
const STEPS: usize = if cfg!(miri) { 12 } else { 200 };

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn valid_steps_break_no_rule_and_lose_no_packet(
        steps in prop::collection::vec(step(), 0..STEPS),
    ) {
        let mut scenario = Scenario::new(START, true);
        for step in &steps {
            prop_assert!(scenario.step(step), "{:?}", step);
            scenario.both.invariants();
        }
        scenario.end();
    }

    #[test]
    fn any_writes_of_a_program_keep_the_ledger_balanced(
        steps in prop::collection::vec((corruption(START), step()), 0..STEPS),
    ) {
        let mut scenario = Scenario::new(START, false);
        for (corruption, step) in &steps {
            scenario.corrupt(corruption);
            let continues = scenario.step(step);
            scenario.both.driver.invariants();
            if !continues {
                break;
            }
        }
        scenario.end();
    }

    /// Random memory: the test draws every word of the rings and indices.
    #[test]
    fn any_state_of_the_rings_keeps_the_ledger_balanced(
        entries in prop::collection::vec(entry(), 64),
        indices in prop::array::uniform8(number()),
        calls in 1usize..20,
    ) {
        let mut scenario = Scenario::new(0, false);
        for (place, words) in (0..).zip(&entries) {
            scenario.both.set_entry(Ring::ALL[place as usize / 16], place % 16, *words);
        }
        for (place, index) in indices.iter().enumerate() {
            // Mostly values that can occur.
            let index = *index as u32 % if place % 3 == 0 { u32::MAX } else { 40 };
            match place {
                0..4 => scenario.both.set_producer(Ring::ALL[place], index),
                _ => scenario.both.set_consumer(Ring::ALL[place - 4], index),
            }
        }
        for _ in 0..calls {
            if !scenario.step(&Step::Take) || !scenario.step(&Step::TakeEmpty) {
                break;
            }
            scenario.both.driver.invariants();
        }
        scenario.end();
    }
}
