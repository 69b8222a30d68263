use super::*;
use crate::layout::Shape;

const SHAPE: Shape = Shape {
    chunk_bytes: 256,
    chunks: 4,
    transmit_entries: 16,
    receive_entries: 16,
};

fn pair(base: u64, length: u32) -> Result<Pair, Rule> {
    let raw = RawPair {
        base,
        length,
        reserved: 0,
    };
    Validator::new(&SHAPE, Writer::Program).pair(&raw)
}

#[test]
fn entries_have_the_byte_layout_of_the_c_structures() {
    let head = Head {
        count: 3,
        note: 1,
        stamp: 0x0102_0304_0506_0708,
    };
    assert_eq!(Head::load(head.store()), head);
    let bytes: Vec<u8> = head
        .store()
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    assert_eq!(bytes[0..4], 3u32.to_ne_bytes());
    assert_eq!(bytes[4..8], 1u32.to_ne_bytes());
    let raw = RawPair {
        base: 1 << 40,
        length: 1500,
        reserved: 7,
    };
    assert_eq!(RawPair::load(raw.store()), raw);
    let bytes: Vec<u8> = raw
        .store()
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    assert_eq!(bytes[8..12], 1500u32.to_ne_bytes());
    assert_eq!(bytes[12..16], 7u32.to_ne_bytes());
}

#[test]
fn a_pair_outside_one_chunk_is_a_violation() {
    let good = |base, length| pair(base, length).map(|pair| (pair.base, pair.length));
    assert_eq!(good(0, 1), Ok((0, 1)));
    assert_eq!(good(0, 256), Ok((0, 256)));
    assert_eq!(good(768, 256), Ok((768, 256)));
    assert_eq!(good(1016, 8), Ok((1016, 8)));
    let broken_rule = |base, length| pair(base, length).unwrap_err().number();
    assert_eq!(broken_rule(4, 8), 40);
    assert_eq!(broken_rule(8, 0), 41);
    assert_eq!(broken_rule(1016, 9), 42);
    assert_eq!(broken_rule(1024, 1), 42);
    assert_eq!(broken_rule(u64::MAX - 7, 8), 42);
    assert_eq!(broken_rule(u64::MAX - 7, u32::MAX), 42);
    assert_eq!(broken_rule(1 << 32, 8), 42);
    assert_eq!(broken_rule(0, 257), 43);
    assert_eq!(broken_rule(248, 16), 43);
    assert_eq!(broken_rule(0, 1024), 43);
}

#[test]
fn a_reserved_field_that_is_not_zero_is_a_violation() {
    let validator = Validator::new(&SHAPE, Writer::Program);
    let head = |count, note, stamp| {
        validator
            .head(&Head { count, note, stamp })
            .map_err(|rule| rule.number())
    };
    assert_eq!(head(1, 0, 0), Ok(()));
    assert_eq!(head(8, CONTINUES_MESSAGE, 0), Ok(()));
    assert_eq!(head(0, 0, 0), Err(30));
    assert_eq!(head(9, 0, 0), Err(30));
    assert_eq!(head(u32::MAX, 0, 0), Err(30));
    assert_eq!(head(1, STATES_ARRIVAL, 0), Ok(()));
    assert_eq!(head(1, STATES_ARRIVAL, u64::MAX), Ok(()));
    assert_eq!(head(1, STATES_ARRIVAL | CONTINUES_MESSAGE, 0), Err(32));
    assert_eq!(head(8, SEGMENTS, 0), Ok(()));
    assert_eq!(head(8, SEGMENTS, 1), Err(32));
    assert_eq!(head(1, SEGMENTS | CONTINUES_MESSAGE, 0), Err(32));
    assert_eq!(head(1, SEGMENTS | STATES_ARRIVAL, 0), Err(32));
    assert_eq!(head(1, SEGMENTS << 1, 0), Err(32));
    assert_eq!(head(1, 0, 1), Err(32));
    assert_eq!(head(1, CONTINUES_MESSAGE, 1), Err(32));
    let raw = RawPair {
        base: 0,
        length: 1,
        reserved: 1,
    };
    assert_eq!(validator.pair(&raw).map_err(|rule| rule.number()), Err(32));
}

#[test]
fn a_record_of_the_driver_may_have_a_status_a_stamp_and_empty_pairs() {
    let validator = Validator::new(&SHAPE, Writer::Driver);
    let head = Head {
        count: 2,
        note: Status::FORBIDDEN.0,
        stamp: 5,
    };
    assert_eq!(validator.head(&head), Ok(()));
    let raw = |base| RawPair {
        base,
        length: 0,
        reserved: 0,
    };
    assert_eq!(
        validator.pair(&raw(768)),
        Ok(Pair {
            base: 768,
            length: 0
        })
    );
    // An empty pair still names a chunk.
    assert_eq!(validator.pair(&raw(1024)).unwrap_err().number(), 42);
}
