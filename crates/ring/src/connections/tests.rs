#![cfg(not(miri))]

use super::*;
use crate::driver::ProgramMemory;
use crate::layout::{Budget, Shape};
use crate::program::{Attachment, ProgramRings};

const SHAPE: Shape = Shape {
    chunk_bytes: 64,
    chunks: 8,
    transmit_entries: 16,
    receive_entries: 16,
};

struct Fixture {
    memory: ProgramMemory,
    here: crate::driver::DriverRings,
    there: ProgramRings,
    _attachment: Attachment,
}

impl Fixture {
    fn new() -> Fixture {
        let budget = Budget {
            flows: 1,
            bytes: 1 << 16,
        };
        let mut memory = ProgramMemory::create(budget).unwrap();
        let attachment = memory.handles().attach().unwrap();
        let here = memory.open(SHAPE).unwrap();
        let there = attachment.flow(here.location()).unwrap();
        Fixture {
            memory,
            here,
            there,
            _attachment: attachment,
        }
    }

    /// What the driver reads when the flow ends.
    fn read(mut self) -> Vec<ListedConnection> {
        self.memory.retire(self.here).connections()
    }

    /// Writes the place of a list as a hostile program might.
    fn claim(&self, offset: u64, entries: u32) {
        let region = self.there.region_for_tests();
        let line = line_of(&self.there.location());
        Words::new(region, line + 8, 1)[0].store(offset, Ordering::Relaxed);
        Word::new(region, line + 16).store(entries, Ordering::Relaxed);
    }
}

#[test]
fn the_driver_reads_the_open_connections() {
    let mut fixture = Fixture::new();
    let list = fixture.there.list_connections(6).unwrap();
    assert_eq!(list.entries(), 6);
    let mac = [2, 0, 0, 0, 0, 9];
    list.set(1, "192.0.2.7:4660".parse().unwrap(), mac, 5);
    list.set(4, "[2001:db8::7]:80".parse().unwrap(), mac, u32::MAX);
    list.set(5, "192.0.2.8:1".parse().unwrap(), mac, 9);
    list.set_sequence(1, 6);
    list.clear(5);
    // There are no such entries.
    list.set(6, "192.0.2.9:1".parse().unwrap(), mac, 9);
    list.clear(7);
    let mut v4 = [0; 16];
    v4[..4].copy_from_slice(&[192, 0, 2, 7]);
    let mut v6 = [0; 16];
    v6[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
    v6[15] = 7;
    let listed = |address, port, sequence| ListedConnection {
        address,
        port,
        next_hop: mac,
        sequence,
    };
    assert_eq!(
        fixture.read(),
        [listed(v4, 4660, 6), listed(v6, 80, u32::MAX)]
    );
}

#[test]
fn a_list_takes_chunks_that_follow_each_other() {
    let mut fixture = Fixture::new();
    // Three chunks of 64 bytes for six entries of 32.
    assert!(fixture.there.list_connections(6).is_some());
    assert_eq!(fixture.there.balance().in_use, 3);
    assert!(fixture.there.list_connections(11).is_none());
    assert_eq!(fixture.there.balance().in_use, 3);
}

#[test]
fn a_flow_without_a_list_has_no_connections() {
    assert!(Fixture::new().read().is_empty());
}

#[test]
fn a_list_outside_the_data_area_has_no_entries() {
    let area = SHAPE.area_bytes();
    for (offset, entries) in [
        (0, 17),
        (area, 1),
        (area - 24, 1),
        (4, 1),
        (u64::MAX - 7, 1),
        (0, u32::MAX),
        (0, MAX_ENTRIES + 1),
    ] {
        let fixture = Fixture::new();
        let region = fixture.there.region_for_tests();
        let location = fixture.there.location();
        let begin = location.offset + SHAPE.plan().unwrap().area();
        // No byte of the area is 0, so an entry would not be free.
        for word in &*Words::new(region, begin, area as usize / 8) {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        fixture.claim(offset, entries);
        assert_eq!(fixture.read(), [], "{entries} entries at {offset}");
    }
    let fixture = Fixture::new();
    fixture.claim(area - 32, 1);
    assert!(fixture.read().is_empty(), "a free entry");
}

#[test]
fn the_program_says_that_its_connection_is_over() {
    let fixture = Fixture::new();
    assert!(!fixture.here.is_connection_over());
    fixture.there.set_connection_over(true);
    assert!(fixture.here.is_connection_over());
    fixture.there.set_connection_over(false);
    assert!(!fixture.here.is_connection_over());
}
