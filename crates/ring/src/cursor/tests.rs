//! Tests of the two ends of a ring: records that arrive unchanged, also where indices wrap; full
//! rings; and violations of the rules, one at a time. The tests of `record` cover R32.

use crate::driver::Taken;
use crate::layout::{Head, RawPair};
use crate::layout::{Ring, Shape};
use crate::program::RecordError;
use crate::record::Status;
use crate::scenario::{BothSides, SMALL, piece};
use crate::violation::{ProtocolViolation, Rule};

const STARTS: [u32; 4] = [0, 1, u32::MAX - 5, 1 << 31];

/// Repetitions of the tests that repeat.
const ROUNDS: u8 = if cfg!(miri) { 3 } else { 100 };

/// Writes a head and pairs from entry `at` of the submit ring on, and publishes them.
fn forge(both: &BothSides, at: u32, head: Head, pairs: &[RawPair]) {
    both.set_entry(Ring::Submit, at, head.store());
    for (index, pair) in (1..).zip(pairs) {
        both.set_entry(Ring::Submit, at.wrapping_add(index), pair.store());
    }
    both.set_producer(Ring::Submit, at.wrapping_add(1 + pairs.len() as u32));
}

fn head(count: u32) -> Head {
    Head {
        count,
        note: 0,
        stamp: 0,
    }
}

fn pair(base: u64, length: u32) -> RawPair {
    RawPair {
        base,
        length,
        reserved: 0,
    }
}

fn broken(both: &mut BothSides) -> ProtocolViolation {
    let violation = both.driver.take().unwrap_err();
    both.driver.invariants();
    violation
}

#[test]
fn packets_arrive_unchanged_from_any_start_of_the_indices() {
    for start in STARTS {
        let mut both = BothSides::new(SMALL, start);
        for round in 0..ROUNDS {
            both.submit(&[round; 60]);
            both.submit(&[round + 100; 70]);
            for expected in [vec![round; 60], vec![round + 100; 70]] {
                let record = both.taken();
                assert_eq!(both.read(&record), expected);
                both.driver.give_back(&record, Status::DONE, 7);
            }
            assert_eq!(both.driver.take(), Ok(Taken::Empty));
            assert!(both.driver.publish());
            for _ in 0..2 {
                let back = both.program.reclaim().unwrap().unwrap();
                assert_eq!((back.status(), back.stamp()), (Status::DONE, 7));
                both.program.free_all(&back).unwrap();
            }
            assert_eq!(both.program.reclaim(), Ok(None));
            both.invariants();
        }
        assert_eq!(both.program.balance().in_use, 0);
        assert_eq!(both.driver.balance().in_use, 0);
    }
}

#[test]
fn records_wrap_around_the_end_of_the_ring() {
    for start in STARTS {
        let shape = Shape {
            chunks: 64,
            ..SMALL
        };
        let mut both = BothSides::new(shape, start);
        // Records of 4, 3, 5 and 9 entries. The sum 21 is coprime to 16, so records wrap at every
        // position.
        for round in 0..u32::from(ROUNDS) {
            for count in [3, 2, 4, 8] {
                let pieces: Vec<_> = (0..count)
                    .map(|part| {
                        let chunk = both.filled(&[part as u8; 16]);
                        piece(chunk, 8, 8 + part)
                    })
                    .collect();
                both.program.submit(&pieces, round % 2 == 1).unwrap();
                both.program.publish();
                let record = both.taken();
                assert_eq!(record.begins_message(), round % 2 == 0);
                let lengths: Vec<u32> = record.pairs().iter().map(|pair| pair.length).collect();
                assert_eq!(lengths, (8..8 + count).collect::<Vec<_>>());
                both.driver.give_back(&record, Status::DONE, 0);
                both.driver.publish();
                let back = both.program.reclaim().unwrap().unwrap();
                both.program.free_all(&back).unwrap();
            }
        }
        both.invariants();
    }
}

#[test]
fn a_full_ring_refuses_records() {
    let shape = Shape {
        chunks: 32,
        ..SMALL
    };
    let mut both = BothSides::new(shape, u32::MAX - 3);
    let submit = |both: &mut BothSides| {
        let chunk = both.program.chunk().unwrap();
        let result = both.program.submit(&[piece(chunk, 0, 1)], false);
        if result.is_err() {
            both.program.free(chunk).unwrap();
        }
        both.program.publish();
        result
    };
    // 16 entries are 8 records of one pair.
    for _ in 0..8 {
        assert_eq!(submit(&mut both), Ok(()));
    }
    assert_eq!(submit(&mut both), Err(RecordError::Full));
    // The driver takes 8 records and publishes that. The program submits 8 more and collects none.
    let taken: Vec<_> = (0..8).map(|_| both.taken()).collect();
    assert_eq!(
        submit(&mut both),
        Err(RecordError::Full),
        "not published yet"
    );
    both.driver.publish();
    for _ in 0..8 {
        assert_eq!(submit(&mut both), Ok(()));
    }
    // The records that the driver holds will fill the reclaim ring, so the driver takes no more.
    assert_eq!(both.driver.take(), Ok(Taken::NoRoom));
    for record in taken.into_iter().rev() {
        both.driver.give_back(&record, Status::DONE, 0);
    }
    both.driver.publish();
    assert_eq!(both.driver.take(), Ok(Taken::NoRoom));
    assert!(both.program.reclaim().unwrap().is_some());
    assert_eq!(both.driver.take(), Ok(Taken::NoRoom), "not published yet");
    both.program.publish();
    assert!(matches!(both.driver.take(), Ok(Taken::Record(_))));
    both.invariants();
}

#[test]
fn a_producer_index_that_goes_back_breaks_r20() {
    for start in STARTS {
        let mut both = BothSides::new(SMALL, start);
        both.submit(b"a packet");
        both.taken();
        let (last, seen) = (start.wrapping_add(2), start.wrapping_add(1));
        both.set_producer(Ring::Submit, seen);
        let violation = broken(&mut both);
        assert_eq!(violation.rule, Rule::ProducerBack { last, seen });
        assert_eq!(violation.rule_number(), 20);
    }
}

#[test]
fn a_producer_index_beyond_the_free_entries_breaks_r21() {
    for start in STARTS {
        for advance in [17, 18, 1 << 16, u32::MAX / 2] {
            let mut both = BothSides::new(SMALL, start);
            both.set_producer(Ring::Submit, start.wrapping_add(advance));
            let violation = broken(&mut both);
            assert_eq!(violation.rule, Rule::ProducerPast { advance, room: 16 });
            assert_eq!(
                violation.to_string(),
                format!(
                    "submit ring: R21: the producer index advanced by {advance}, and only 16 entries were free"
                )
            );
        }
    }
}

#[test]
fn entries_are_not_free_before_the_driver_publishes() {
    let mut both = BothSides::new(SMALL, 0);
    both.submit(b"a packet");
    let _held = both.taken();
    // The driver consumed 2 entries and did not publish that: 14 are free.
    both.set_producer(Ring::Submit, 17);
    let violation = broken(&mut both);
    assert_eq!(
        violation.rule,
        Rule::ProducerPast {
            advance: 15,
            room: 14
        }
    );
}

#[test]
fn a_consumer_index_that_goes_back_or_too_far_breaks_r22_or_r23() {
    for start in STARTS {
        for (advance, rule) in [(17, 23), (100, 23), (u32::MAX, 22), (1 << 31 | 7, 22)] {
            let mut both = BothSides::new(
                Shape {
                    chunks: 16,
                    ..SMALL
                },
                start,
            );
            // The reclaim ring is full: the program may consume 16 entries.
            for _ in 0..8 {
                both.submit(b"a packet");
                let record = both.taken();
                both.driver.give_back(&record, Status::DONE, 0);
                both.driver.publish();
            }
            both.submit(b"one more");
            assert_eq!(both.driver.take(), Ok(Taken::NoRoom));
            both.set_consumer(Ring::Reclaim, start.wrapping_add(advance));
            let violation = broken(&mut both);
            assert_eq!(
                (violation.ring, violation.rule_number()),
                (Ring::Reclaim, rule)
            );
        }
    }
}

#[test]
fn a_record_with_no_pair_or_more_than_eight_is_a_violation() {
    for count in [0, 9, 1000, u32::MAX] {
        let mut both = BothSides::new(SMALL, 0);
        forge(&both, 0, head(count), &[pair(0, 1)]);
        assert_eq!(broken(&mut both).rule, Rule::Count { count });
    }
}

#[test]
fn a_partly_published_record_breaks_r31() {
    let mut both = BothSides::new(SMALL, 0);
    forge(&both, 0, head(3), &[pair(0, 1)]);
    let violation = broken(&mut both);
    let (entries, published) = (4, 2);
    assert_eq!(violation.rule, Rule::Partial { entries, published });
    // The program publishes the rest too late: publishing half a record is the violation.
    assert_eq!(violation.rule_number(), 31);
}

#[test]
fn a_record_with_an_invalid_pair_claims_no_chunk() {
    for (pairs, rule) in [
        (&[pair(4, 8)][..], 40),
        (&[pair(0, 8), pair(256, 0)], 41),
        (&[pair(0, 8), pair(256, 8), pair(1024, 8)], 42),
        (&[pair(u64::MAX - 7, 16)], 42),
        (&[pair(0, u32::MAX)], 42),
        (&[pair(128, 256)], 43),
        (&[pair(0, 8), pair(128, 8)], 44),
        (&[pair(0, 8), pair(256, 8), pair(0, 8)], 44),
    ] {
        let mut both = BothSides::new(SMALL, 0);
        forge(&both, 0, head(pairs.len() as u32), pairs);
        assert_eq!(broken(&mut both).rule_number(), rule, "{pairs:?}");
        assert_eq!(both.driver.balance().in_use, 0);
    }
}

#[test]
fn a_chunk_that_is_handed_over_twice_is_a_violation() {
    let mut both = BothSides::new(SMALL, 0);
    forge(&both, 0, head(1), &[pair(512, 100)]);
    let held = both.taken();
    // A second record names another part of the chunk; a third names it on the other channel.
    forge(&both, 2, head(1), &[pair(640, 8)]);
    assert_eq!(broken(&mut both).rule, Rule::NotOwned { chunk: 2 });
    both.set_entry(Ring::Prime, 0, head(1).store());
    both.set_entry(Ring::Prime, 1, pair(512, 256).store());
    both.set_producer(Ring::Prime, 2);
    let violation = both.driver.take_empty().unwrap_err();
    assert_eq!(
        violation.to_string(),
        "prime ring: R44: chunk 2 was handed over, and its sender did not own it"
    );
    both.driver.give_back(&held, Status::DONE, 0);
    assert_eq!(both.driver.balance().in_use, 0);
}

#[test]
fn later_changes_of_a_record_in_shared_memory_have_no_effect() {
    let mut both = BothSides::new(SMALL, 0);
    both.submit(b"as validated");
    let record = both.taken();
    both.set_entry(Ring::Submit, 0, head(8).store());
    both.set_entry(Ring::Submit, 1, pair(u64::MAX, u32::MAX).store());
    both.set_producer(Ring::Submit, 0);
    assert_eq!(both.read(&record), b"as validated");
    both.driver.give_back(&record, Status::DONE, 0);
    assert_eq!(both.driver.balance().in_use, 0);
}

#[test]
fn the_program_detects_violations_of_the_driver() {
    let mut both = BothSides::new(SMALL, 0);
    both.set_entry(Ring::Deliver, 0, head(1).store());
    both.set_entry(Ring::Deliver, 1, pair(0, 8).store());
    both.set_producer(Ring::Deliver, 2);
    let fault = both.program.receive().unwrap_err();
    assert_eq!(
        fault.to_string(),
        "the driver broke a rule of the ring: deliver ring: R44: chunk 0 was handed over, and its sender did not own it"
    );
}
