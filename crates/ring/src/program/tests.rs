use super::*;
use crate::driver::Taken;
use crate::record::Status;
use crate::scenario::{BothSides, SMALL, piece, record};

#[test]
fn only_held_chunks_can_be_accessed() {
    let mut both = BothSides::new(SMALL, 0);
    let flow = &mut both.program;
    let chunk = flow.chunk().unwrap();
    flow.bytes_mut(chunk).unwrap().fill(7);
    assert_eq!(flow.bytes(chunk).unwrap(), [7; 256]);
    for other in [Chunk(chunk.0 + 1), Chunk(4), Chunk(u32::MAX)] {
        assert_eq!(flow.bytes(other), Err(RecordError::NotHeld(other)));
        assert_eq!(flow.free(other), Err(RecordError::NotHeld(other)));
    }
    flow.submit(&[piece(chunk, 0, 4)], false).unwrap();
    assert_eq!(flow.bytes_mut(chunk), Err(RecordError::NotHeld(chunk)));
    assert_eq!(flow.free(chunk), Err(RecordError::NotHeld(chunk)));
    assert_eq!((flow.given(), flow.balance().in_use), (1, 1));
    both.invariants();
}

#[test]
fn an_invalid_record_is_refused_and_changes_nothing() {
    let mut both = BothSides::new(SMALL, 0);
    let flow = &mut both.program;
    let (one, two) = (flow.chunk().unwrap(), flow.chunk().unwrap());
    let invalid = |start, length| RecordError::Piece {
        start,
        length,
        chunk_bytes: 256,
    };
    for (pieces, refused) in [
        (vec![], RecordError::Count(0)),
        (vec![piece(one, 0, 1); 9], RecordError::Count(9)),
        (
            vec![piece(one, 0, 1), piece(one, 128, 1)],
            RecordError::NotHeld(one),
        ),
        (vec![piece(one, 0, 0)], invalid(0, 0)),
        (vec![piece(one, 4, 1)], invalid(4, 1)),
        (vec![piece(two, 0, 1), piece(one, 0, 257)], invalid(0, 257)),
        (vec![piece(one, 256, 1)], invalid(256, 1)),
        (
            vec![piece(one, u32::MAX - 7, 16)],
            invalid(u32::MAX - 7, 16),
        ),
    ] {
        assert_eq!(flow.submit(&pieces, false), Err(refused));
        assert_eq!(flow.prime(&pieces), Err(refused));
    }
    assert_eq!(flow.given(), 0);
    assert!(!flow.publish());
    assert_eq!(both.driver.take(), Ok(Taken::Empty));
}

#[test]
fn a_packet_fills_the_pieces_of_a_primed_record_in_order() {
    let mut both = BothSides::new(SMALL, 0);
    // One piece for the headers, and one for the payload.
    let (front, rest) = (both.program.chunk().unwrap(), both.program.chunk().unwrap());
    let primed = [piece(front, 200, 42), piece(rest, 0, 256)];
    both.program.prime(&primed).unwrap();
    both.program.publish();
    let empty = record(both.driver.take_empty().unwrap());
    assert_eq!(empty.bytes(), 298);
    let packet: Vec<u8> = (0..100).collect();
    assert_eq!(both.driver.write(&empty, 0, &packet[..30]), 30);
    assert_eq!(both.driver.write(&empty, 30, &packet[30..]), 70);
    both.driver.deliver(empty, 100, Status::DONE, 123);
    assert!(both.driver.publish());
    let got = both.program.receive().unwrap().unwrap();
    assert_eq!((got.bytes(), got.stamp()), (100, 123));
    let pieces: Vec<Piece> = got
        .pairs()
        .iter()
        .map(|pair| both.program.piece(pair))
        .collect();
    assert_eq!(pieces, [piece(front, 200, 42), piece(rest, 0, 58)]);
    assert_eq!(both.program.bytes(front).unwrap()[200..242], packet[..42]);
    assert_eq!(both.program.bytes(rest).unwrap()[..58], packet[42..]);
    both.program.free_all(&got).unwrap();
    assert_eq!(both.program.balance().in_use, 0);
}

#[test]
fn a_packet_longer_than_the_record_is_truncated() {
    let mut both = BothSides::new(SMALL, 0);
    let chunk = both.program.chunk().unwrap();
    both.program.prime(&[piece(chunk, 0, 64)]).unwrap();
    both.program.publish();
    let empty = record(both.driver.take_empty().unwrap());
    assert_eq!(both.driver.write(&empty, 0, &[1; 100]), 64);
    assert_eq!(both.driver.write(&empty, 64, &[1; 100]), 0);
    assert_eq!(both.driver.write(&empty, 1000, &[1; 100]), 0);
    both.driver.deliver(empty, 100, Status::DONE, 0);
    both.driver.publish();
    let got = both.program.receive().unwrap().unwrap();
    assert_eq!((got.bytes(), got.status()), (64, Status::DONE));
}

#[test]
fn an_unused_record_returns_its_chunks() {
    let mut both = BothSides::new(SMALL, 0);
    let (one, two) = (both.program.chunk().unwrap(), both.program.chunk().unwrap());
    both.program
        .prime(&[piece(one, 0, 256), piece(two, 0, 256)])
        .unwrap();
    both.program.publish();
    let empty = record(both.driver.take_empty().unwrap());
    both.driver.deliver(empty, 0, Status::UNUSED, 0);
    both.driver.publish();
    let got = both.program.receive().unwrap().unwrap();
    assert_eq!((got.bytes(), got.pairs().len()), (0, 2));
    both.program.free_all(&got).unwrap();
    assert_eq!(both.program.balance().in_use, 0);
    both.invariants();
}

#[test]
fn the_program_reads_the_counts_of_lost_packets() {
    let mut both = BothSides::new(SMALL, 0);
    for (why, times) in [
        (Loss::NoBuffer, 3),
        (Loss::OverBudget, 2),
        (Loss::TooLong, 1),
    ] {
        for _ in 0..times {
            both.driver.count_lost(why);
        }
        assert_eq!(both.program.lost(why), times);
    }
}

#[test]
fn the_notice_of_a_flow_is_set_by_publish_and_cleared_by_take() {
    let mut both = BothSides::new(SMALL, 0);
    let named = |both: &BothSides| {
        let mut slots = Vec::new();
        both.to_driver.take(|slot| slots.push(slot));
        slots
    };
    assert_eq!(named(&both), [0; 0]);
    both.submit(b"a packet");
    both.submit(b"another");
    assert!(both.to_driver.any());
    assert_eq!(named(&both), [0]);
    assert_eq!(named(&both), [0; 0]);
}
