//! The fixture of this crate's tests: one flow with both sides over the same memory, and functions
//! that write any value to the shared memory.

#[cfg(test)]
mod fuzz;
pub mod hostile;

use std::sync::Arc;

use crate::bell::Notices;
use crate::driver::{self, Header, Taken};
use crate::layout::{PAGE, Place, Ring, Shape};
use crate::program::{self, Chunk, Piece};
use crate::record::Record;
use crate::region::Region;
use crate::words::{Ordering, Slots, Word};

/// Both sides of one flow.
pub(crate) struct Both {
    pub driver: driver::Flow,
    pub program: program::Flow,
    pub to_driver: Notices,
    region: Arc<Region>,
    place: Place,
}

/// 4 chunks of 256 bytes, rings of 16 entries.
pub(crate) const SMALL: Shape = Shape {
    chunk_bytes: 256,
    chunks: 4,
    transmit_entries: 16,
    receive_entries: 16,
};

impl Both {
    /// A flow whose ring indices are `at`.
    pub(crate) fn new(shape: Shape, at: u32) -> Both {
        let bytes = shape.plan().expect("a shape").bytes();
        let region = Arc::new(Region::private(PAGE + bytes));
        let place = Place {
            slot: 0,
            offset: PAGE,
            shape,
        };
        let header = Header::new(&region);
        let driver = driver::Flow::open(&region, place, &header.to_program(1), at);
        let program = program::Flow::new(&region, place, &header.to_driver(1), at, None);
        let to_driver = header.to_driver(1);
        Both {
            driver,
            program,
            to_driver,
            region,
            place,
        }
    }

    /// A held chunk that begins with `bytes`.
    pub(crate) fn filled(&mut self, bytes: &[u8]) -> Chunk {
        let chunk = self.program.chunk().expect("a free chunk");
        self.program.bytes_mut(chunk).expect("held")[..bytes.len()].copy_from_slice(bytes);
        chunk
    }

    /// The program submits `bytes` in one chunk and publishes.
    pub(crate) fn submit(&mut self, bytes: &[u8]) {
        let chunk = self.filled(bytes);
        let piece = piece(chunk, 0, bytes.len() as u32);
        self.program.submit(&[piece], false).expect("room");
        self.program.publish();
    }

    /// The driver takes the next record, which must be there.
    pub(crate) fn taken(&mut self) -> Record {
        record(self.driver.take().expect("by the rules"))
    }

    /// The bytes of a record that the driver holds.
    pub(crate) fn read(&self, record: &Record) -> Vec<u8> {
        let mut bytes = vec![0; record.bytes()];
        assert_eq!(self.driver.read(record, &mut bytes), bytes.len());
        bytes
    }

    /// Overwrites a producer index in shared memory.
    pub(crate) fn set_producer(&self, ring: Ring, index: u32) {
        self.word(ring.producer()).store(index, Ordering::Relaxed);
    }

    /// Overwrites a consumer index in shared memory.
    pub(crate) fn set_consumer(&self, ring: Ring, index: u32) {
        self.word(ring.consumer()).store(index, Ordering::Relaxed);
    }

    /// Overwrites an entry in shared memory.
    pub(crate) fn set_entry(&self, ring: Ring, index: u32, words: [u64; 2]) {
        let plan = self.place.shape.plan().expect("a shape");
        let at = self.place.offset + plan.ring(ring);
        Slots::new(&self.region, at, self.place.shape.entries(ring)).write(index, words);
    }

    pub(crate) fn invariants(&self) {
        self.driver.invariants();
        self.program.invariants();
    }

    fn word(&self, at: u64) -> Word {
        Word::new(&self.region, self.place.offset + at)
    }
}

pub(crate) fn piece(chunk: Chunk, start: u32, length: u32) -> Piece {
    Piece {
        chunk,
        start,
        length,
    }
}

pub(crate) fn record(taken: Taken) -> Record {
    match taken {
        Taken::Record(record) => record,
        other => panic!("a record should be there, and it is {other:?}"),
    }
}
