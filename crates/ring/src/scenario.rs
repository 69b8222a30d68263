//! The fixture of this crate's tests: one flow with both sides over the same private memory
//! ([`BothSides`]), and functions that write any value to that memory. A call panics if a valid
//! step is refused.

#[cfg(test)]
mod fuzz;
pub mod hostile;

use std::sync::Arc;

use crate::doorbell::Notices;
use crate::driver::{DriverRings, Taken};
use crate::file_header::Header;
use crate::layout::{FlowLocation, PAGE, Ring, Shape};
use crate::program::{Chunk, Piece, ProgramRings};
use crate::record::Record;
use crate::region::Region;
use crate::words::{Ordering, SharedRing, Word};

/// Both sides of one flow.
pub(crate) struct BothSides {
    pub driver: DriverRings,
    pub program: ProgramRings,
    pub to_driver: Notices,
    region: Arc<Region>,
    location: FlowLocation,
}

/// A small shape: 4 chunks of 256 bytes, and rings of 16 entries.
pub(crate) const SMALL: Shape = Shape {
    chunk_bytes: 256,
    chunks: 4,
    transmit_entries: 16,
    receive_entries: 16,
};

impl BothSides {
    /// A new flow of this shape. All indices of its rings start at `at`.
    pub(crate) fn new(shape: Shape, at: u32) -> BothSides {
        let bytes = shape.plan().expect("a shape").bytes();
        let region = Arc::new(Region::private(PAGE + bytes));
        let location = FlowLocation {
            slot: 0,
            offset: PAGE,
            shape,
        };
        let header = Header::new(&region);
        let driver = DriverRings::open(&region, location, &header.to_program(1), at);
        let program = ProgramRings::new(&region, location, &header.to_driver(1), at, None);
        let to_driver = header.to_driver(1);
        BothSides {
            driver,
            program,
            to_driver,
            region,
            location,
        }
    }

    /// Takes a free chunk for the program and writes `bytes` to its start.
    pub(crate) fn filled(&mut self, bytes: &[u8]) -> Chunk {
        let chunk = self.program.chunk().expect("a free chunk");
        self.program.bytes_mut(chunk).expect("held")[..bytes.len()].copy_from_slice(bytes);
        chunk
    }

    /// Submits `bytes` in one chunk on the program's side, and publishes them.
    pub(crate) fn submit(&mut self, bytes: &[u8]) {
        let chunk = self.filled(bytes);
        let piece = piece(chunk, 0, bytes.len() as u32);
        self.program.submit(&[piece], false).expect("room");
        self.program.publish();
    }

    /// Takes the next submitted record on the driver's side. Panics if there is none.
    pub(crate) fn taken(&mut self) -> Record {
        record(self.driver.take().expect("no violation"))
    }

    /// The bytes of a record that the driver holds.
    pub(crate) fn read(&self, record: &Record) -> Vec<u8> {
        let mut bytes = vec![0; record.bytes()];
        assert_eq!(self.driver.read(record, &mut bytes), bytes.len());
        bytes
    }

    /// The bytes of the data area.
    pub(crate) fn data_area(&self) -> Vec<u8> {
        let shape = self.location.shape;
        let mut bytes = vec![0; shape.area_bytes() as usize];
        let at = self.location.offset + shape.plan().expect("a shape").area();
        self.region.copy_out(at, &mut bytes);
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
        let plan = self.location.shape.plan().expect("a shape");
        SharedRing::of(&self.region, &self.location, &plan, ring).write(index, words);
    }

    /// Panics if the state of a side contradicts itself.
    pub(crate) fn invariants(&self) {
        self.driver.invariants();
        self.program.invariants();
    }

    fn word(&self, at: u64) -> Word {
        Word::new(&self.region, self.location.offset + at)
    }
}

/// The piece of `length` bytes at `start` in a chunk.
pub(crate) fn piece(chunk: Chunk, start: u32, length: u32) -> Piece {
    Piece {
        chunk,
        start,
        length,
    }
}

/// The record that was taken. Panics if none was.
pub(crate) fn record(taken: Taken) -> Record {
    match taken {
        Taken::Record(record) => record,
        other => panic!("expected a record, got {other:?}"),
    }
}
