use std::collections::{BTreeMap, BTreeSet};

use netnice_cases::cases;
use proptest::prelude::*;

use super::{PartRefusal, Reassembly};
use crate::parts::Parts;

fn reassembly() -> Reassembly {
    Reassembly::new(4, 10, 3).expect("sizes")
}

#[test]
fn parts_divide_a_message_without_gaps() {
    for length in 0..50 {
        for size in 1..12 {
            let parts = Parts::of(length, size).expect("few parts");
            let mut end = 0;
            for part in 0..parts.count() {
                let range = parts.range(part);
                assert_eq!(range.start, end);
                assert!(part + 1 == parts.count() || range.len() == size);
                end = range.end;
            }
            assert_eq!(end, length);
            assert!(parts.range(parts.count()).is_empty());
        }
    }
    assert_eq!(Parts::of(5, 0), None);
    assert_eq!(
        Parts::of(65_535, 1).map(|parts| parts.count()),
        Some(65_535)
    );
    assert_eq!(Parts::of(65_536, 1), None);
}

#[test]
fn a_refusal_names_what_is_wrong() {
    let mut all = reassembly();
    assert_eq!(
        all.accept(0, (0, 4), b"abcd"),
        Err(PartRefusal::TooManyParts { count: 4, most: 3 })
    );
    let refused = all.accept(0, (0, 2), b"abc").expect_err("too short");
    assert_eq!(
        refused.to_string(),
        "a part of 3 bytes where the message has one of 4 to 4"
    );
    // The third part of the longest message has two bytes.
    assert_eq!(
        all.accept(0, (2, 3), b"abc"),
        Err(PartRefusal::Length {
            length: 3,
            least: 1,
            most: 2
        })
    );
    assert_eq!(all.accept(0, (1, 2), b"x"), Ok(None));
    assert_eq!(all.accept(0, (1, 2), b"x"), Err(PartRefusal::Duplicate));
    assert_eq!(
        all.accept(0, (0, 3), b"abcd"),
        Err(PartRefusal::OtherCount { known: 2, count: 3 })
    );
    assert_eq!(all.accept(0, (0, 2), b"abcd"), Ok(Some(b"abcdx".to_vec())));
    assert_eq!(all.accept(0, (0, 2), b"abcd"), Err(PartRefusal::Over));
    assert_eq!(all.accept(u64::MAX, (0, 1), b""), Ok(Some(Vec::new())));
    assert_eq!(all.accept(u64::MAX, (0, 1), b""), Err(PartRefusal::Over));
    assert_eq!((all.abandoned(), all.incomplete()), (0, 0));
}

#[test]
fn a_fourth_incomplete_message_abandons_the_oldest() {
    let mut all = reassembly();
    for number in [5, 3, 4] {
        assert_eq!(all.accept(number, (0, 2), b"abcd"), Ok(None));
    }
    assert_eq!(all.accept(2, (0, 2), b"abcd"), Err(PartRefusal::Over));
    assert_eq!(all.accept(9, (0, 2), b"abcd"), Ok(None));
    assert_eq!((all.abandoned(), all.incomplete()), (1, 3));
    assert_eq!(all.accept(3, (1, 2), b"x"), Err(PartRefusal::Over));
    // The completion of 5 abandons 4, and 9 stays.
    assert_eq!(all.accept(5, (1, 2), b"x"), Ok(Some(b"abcdx".to_vec())));
    assert_eq!((all.abandoned(), all.incomplete()), (2, 1));
}

/// A peer that begins messages and completes none. The memory is the same all the time, and a
/// message that is completed in it has its own bytes only.
#[test]
fn the_memory_of_an_abandoned_message_is_used_again() {
    let mut all = Reassembly::new(1_000, 60_000, 2).expect("sizes");
    let mut memory = std::collections::BTreeSet::new();
    for number in 0..100 {
        let begun = all.accept(number, (3, 60), &[number as u8; 1_000]);
        assert_eq!(begun, Ok(None));
        memory.extend(all.incomplete.iter().map(|message| message.body.as_ptr()));
    }
    assert!(memory.len() <= 3, "{memory:?}");
    assert_eq!(all.accept(100, (0, 2), &[7; 1_000]), Ok(None));
    let done = all.accept(100, (1, 2), &[8; 10]).expect("accepted");
    let done = done.expect("complete");
    assert_eq!(done, [vec![7; 1_000], vec![8; 10]].concat());
    assert!(done.capacity() < 10_000, "{}", done.capacity());
}

/// A part of a message, as it arrives.
type Arrival = (u64, u16);

/// The bytes of a message.
fn body(number: u64, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (number as usize * 31 + at) as u8)
        .collect()
}

proptest! {
    #![proptest_config(cases(512))]

    /// Parts in any order, several times or never: a message is complete exactly if all of its
    /// parts came while it was not over, with its bytes; numbers only rise; at most three messages
    /// are incomplete.
    #[test]
    fn messages_are_complete_exactly_if_all_parts_came_in_time(
        lengths in prop::collection::vec(0_usize..=10, 1..8),
        order in prop::collection::vec((any::<prop::sample::Index>(), 0_u16..3), 0..60),
    ) {
        let parts = |number: u64| Parts::of(lengths[number as usize], 4).expect("few");
        let arrivals: Vec<Arrival> = order.iter()
            .map(|(index, part)| {
                let number = index.index(lengths.len()) as u64;
                (number, part % parts(number).count())
            })
            .collect();
        let mut all = reassembly();
        // The rule, on sets of parts.
        let mut known: BTreeMap<u64, BTreeSet<u16>> = BTreeMap::new();
        let (mut over, mut abandoned) = (0, 0);
        for (number, part) in arrivals {
            let count = parts(number).count();
            let bytes = body(number, lengths[number as usize]);
            let got = all.accept(number, (part, count), &bytes[parts(number).range(part)]);
            let is_new = !known.contains_key(&number);
            let oldest = known.keys().next().copied();
            if number < over || is_new && known.len() == 3 && oldest > Some(number) {
                prop_assert_eq!(got, Err(PartRefusal::Over));
                continue;
            }
            if is_new && known.len() == 3 {
                known.pop_first();
                abandoned += 1;
            }
            let set = known.entry(number).or_default();
            if !set.insert(part) {
                prop_assert_eq!(got, Err(PartRefusal::Duplicate));
            } else if set.len() == usize::from(count) {
                prop_assert_eq!(got, Ok(Some(bytes)));
                over = number + 1;
                let later = known.split_off(&over);
                abandoned += known.len() as u64 - 1;
                known = later;
            } else {
                prop_assert_eq!(got, Ok(None));
            }
            prop_assert_eq!(all.incomplete(), known.len());
            prop_assert_eq!(all.abandoned(), abandoned);
        }
    }
}

/// Messages with a shorter last part have memory for whole parts again.
#[test]
fn memory_of_a_message_that_was_read_is_used_again() {
    let mut all = Reassembly::new(4, 16, 3).expect("sizes");
    let mut whole = |number: u64, parts: [&[u8]; 3]| -> Vec<u8> {
        assert_eq!(all.accept(number, (2, 3), parts[2]), Ok(None));
        assert_eq!(all.accept(number, (0, 3), parts[0]), Ok(None));
        let complete = all.accept(number, (1, 3), parts[1]).expect("accepted");
        let body = complete.expect("complete");
        if number == 0 {
            all.reuse(body.clone());
        }
        body
    };
    assert_eq!(whole(0, [b"abcd", b"efgh", b"i"]), b"abcdefghi");
    assert_eq!(whole(1, [b"ABCD", b"EFGH", b"IJ"]), b"ABCDEFGHIJ");
    assert_eq!(whole(2, [b"1234", b"5678", b"9"]), b"123456789");

    // The longest two are kept, each of no more than the longest message.
    all.spare.clear();
    let kept: [(usize, &[usize]); 4] = [(5, &[8]), (3, &[4, 8]), (18, &[8, 16]), (7, &[8, 16])];
    for (given, kept) in kept {
        all.reuse(vec![1; given]);
        let lengths: Vec<usize> = all.spare.iter().map(Vec::len).collect();
        assert_eq!(lengths, kept);
    }
    // A message takes the shortest one that is long enough.
    let spare: Vec<*const u8> = all.spare.iter().map(|spare| spare.as_ptr()).collect();
    assert_eq!(all.accept(3, (0, 2), b"abcd"), Ok(None));
    assert_eq!(all.accept(4, (0, 2), b"abcd"), Ok(None));
    assert!(all.spare.is_empty());
    let bodies: Vec<*const u8> = all.incomplete.iter().map(|one| one.body.as_ptr()).collect();
    assert_eq!(bodies, spare);
}
