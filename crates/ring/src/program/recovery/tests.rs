use crate::program::{Chunk, RecordError};
use crate::scenario::{BothSides, SMALL, piece};

#[test]
fn an_unsent_chunk_is_held_again_and_no_other_chunk_can_be_taken() {
    let mut both = BothSides::new(SMALL, 0);
    let flow = &mut both.program;
    let (given, held) = (flow.chunk().unwrap(), flow.chunk().unwrap());
    flow.bytes_mut(given).unwrap().fill(7);
    flow.submit(&[piece(given, 0, 4)], false).unwrap();
    flow.publish();
    for other in [held, Chunk(held.0 + 1), Chunk(u32::MAX)] {
        assert_eq!(flow.take_unsent(other), Err(RecordError::NotHeld(other)));
    }
    flow.take_unsent(given).unwrap();
    assert_eq!(flow.bytes(given).unwrap()[..4], [7; 4]);
    assert_eq!(flow.take_unsent(given), Err(RecordError::NotHeld(given)));
    assert_eq!((flow.given(), flow.balance().in_use), (0, 2));
    flow.invariants();
}
