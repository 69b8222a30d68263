use super::*;
use crate::layout::Shape;

const SHAPE: Shape = Shape {
    chunk_bytes: 256,
    chunks: 4,
    transmit_entries: 16,
    receive_entries: 16,
};

fn pair(base: u64, length: u32) -> Result<Pair, Rule> {
    let slot = Slot {
        base,
        length,
        reserved: 0,
    };
    Judge::new(&SHAPE, From::Program).pair(&slot)
}

#[test]
fn an_entry_is_what_c_would_write() {
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
    let slot = Slot {
        base: 1 << 40,
        length: 1500,
        reserved: 7,
    };
    assert_eq!(Slot::load(slot.store()), slot);
    let bytes: Vec<u8> = slot
        .store()
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    assert_eq!(bytes[8..12], 1500u32.to_ne_bytes());
    assert_eq!(bytes[12..16], 7u32.to_ne_bytes());
}

#[test]
fn a_pair_lies_inside_one_chunk() {
    let good = |base, length| pair(base, length).map(|pair| (pair.base, pair.length));
    assert_eq!(good(0, 1), Ok((0, 1)));
    assert_eq!(good(0, 256), Ok((0, 256)));
    assert_eq!(good(768, 256), Ok((768, 256)));
    assert_eq!(good(1016, 8), Ok((1016, 8)));
    let must = |base, length| pair(base, length).unwrap_err().must();
    assert_eq!(must(4, 8), 40);
    assert_eq!(must(8, 0), 41);
    assert_eq!(must(1016, 9), 42);
    assert_eq!(must(1024, 1), 42);
    assert_eq!(must(u64::MAX - 7, 8), 42);
    assert_eq!(must(u64::MAX - 7, u32::MAX), 42);
    assert_eq!(must(1 << 32, 8), 42);
    assert_eq!(must(0, 257), 43);
    assert_eq!(must(248, 16), 43);
    assert_eq!(must(0, 1024), 43);
}

#[test]
fn what_is_reserved_is_zero() {
    let judge = Judge::new(&SHAPE, From::Program);
    let head = |count, note, stamp| {
        judge
            .head(&Head { count, note, stamp })
            .map_err(|rule| rule.must())
    };
    assert_eq!(head(1, 0, 0), Ok(()));
    assert_eq!(head(8, GOES_ON, 0), Ok(()));
    assert_eq!(head(0, 0, 0), Err(30));
    assert_eq!(head(9, 0, 0), Err(30));
    assert_eq!(head(u32::MAX, 0, 0), Err(30));
    assert_eq!(head(1, 2, 0), Err(32));
    assert_eq!(head(1, 0, 1), Err(32));
    let slot = Slot {
        base: 0,
        length: 1,
        reserved: 1,
    };
    assert_eq!(judge.pair(&slot).map_err(|rule| rule.must()), Err(32));
}

#[test]
fn the_driver_has_a_status_a_time_and_empty_pairs() {
    let judge = Judge::new(&SHAPE, From::Driver);
    let head = Head {
        count: 2,
        note: Status::FORBIDDEN.0,
        stamp: 5,
    };
    assert_eq!(judge.head(&head), Ok(()));
    let slot = |base| Slot {
        base,
        length: 0,
        reserved: 0,
    };
    assert_eq!(
        judge.pair(&slot(768)),
        Ok(Pair {
            base: 768,
            length: 0
        })
    );
    // An empty pair still names a chunk.
    assert_eq!(judge.pair(&slot(1024)).unwrap_err().must(), 42);
}
