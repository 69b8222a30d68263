//! Tests with the kernel: memory files, doorbells, and flows that open and close.
#![cfg(not(miri))]

use std::time::{Duration, Instant};

use super::*;
use crate::layout::Ring;
use crate::program::{FlowError, RecordError};
use crate::record::Status;
use crate::scenario::{SMALL, piece};
use crate::violation::Rule;

const BUDGET: Budget = Budget {
    flows: 100,
    bytes: 1 << 20,
};

fn attach(memory: &ProgramMemory) -> Attachment {
    memory.handles().attach().unwrap()
}

fn noticed(memory: &ProgramMemory) -> Vec<u32> {
    let mut slots = Vec::new();
    memory.take_notices(|slot| slots.push(slot));
    slots
}

#[test]
fn a_packet_passes_between_two_mappings() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let program = attach(&memory);
    let mut here = memory.open(SMALL).unwrap();
    let mut there = program.flow(here.location()).unwrap();
    let chunk = there.chunk().unwrap();
    there.bytes_mut(chunk).unwrap()[..5].copy_from_slice(b"hello");
    there.submit(&[piece(chunk, 0, 5)], false).unwrap();
    assert!(there.publish());
    assert_eq!(noticed(&memory), [0]);
    let Taken::Record(record) = here.take().unwrap() else {
        panic!("no record");
    };
    let mut bytes = [0; 5];
    here.read(&record, &mut bytes);
    assert_eq!(&bytes, b"hello");
}

#[test]
fn each_flow_has_its_own_region_and_leaves_it_zeroed() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let program = attach(&memory);
    let bytes = SMALL.plan().unwrap().bytes();
    let flows: Vec<DriverRings> = (0..100).map(|_| memory.open(SMALL).unwrap()).collect();
    let refused = memory.open(SMALL).err().map(|error| error.to_string());
    assert_eq!(
        refused.as_deref(),
        Some("all 100 flows of the program are open: close one first")
    );
    let locations: Vec<FlowLocation> = flows.iter().map(DriverRings::location).collect();
    for (number, location) in (0..).zip(&locations) {
        assert_eq!(location.slot, number);
        assert_eq!(location.offset, PAGE + u64::from(number) * bytes);
    }
    let mut program_flow = program.flow(locations[3]).unwrap();
    assert!(program_flow.is_open());
    assert!(matches!(
        program.flow(locations[3]),
        Err(SetupError::InUse { offset }) if offset == locations[3].offset
    ));
    let chunk = program_flow.chunk().unwrap();
    program_flow.bytes_mut(chunk).unwrap().fill(0xee);
    program_flow.submit(&[piece(chunk, 0, 8)], false).unwrap();
    program_flow.publish();
    for mut flow in flows {
        if flow.slot() == 3 {
            let Ok(Taken::Record(_record)) = flow.take() else {
                panic!("no record");
            };
            assert_eq!(memory.close(flow).in_use, 1);
        } else {
            assert_eq!(memory.close(flow).in_use, 0);
        }
    }
    assert!(!program_flow.is_open());
    assert_eq!(program_flow.reclaim().map(drop), Ok(()));
    drop(program_flow);
    // The whole file is one gap again, filled with zeros, and the next flow starts like the first
    // one.
    let all = memory.bytes() - PAGE;
    let large = Shape {
        chunk_bytes: 65_536,
        chunks: ((all - PAGE) / 65_536) as u32,
        ..SMALL
    };
    let flow = memory.open(large).unwrap();
    assert_eq!(flow.location().offset, PAGE);
    let mut program_flow = program.flow(flow.location()).unwrap();
    while let Some(chunk) = program_flow.chunk() {
        assert!(
            program_flow
                .bytes(chunk)
                .unwrap()
                .iter()
                .all(|byte| *byte == 0)
        );
    }
}

#[test]
#[should_panic(expected = "a flow of this memory file")]
fn a_flow_of_another_program_cannot_be_closed() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let mut other = ProgramMemory::create(BUDGET).unwrap();
    // Both flows have slot 0.
    let _own = memory.open(SMALL).unwrap();
    let foreign = other.open(SMALL).unwrap();
    memory.retire(foreign);
}

#[test]
fn the_program_learns_that_a_flow_is_closed() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let program = attach(&memory);
    let mut here = memory.open(SMALL).unwrap();
    let mut program_flow = program.flow(here.location()).unwrap();
    // Move the indices from 0, so that zeros in place of the indices are a violation.
    let chunk = program_flow.chunk().unwrap();
    program_flow.submit(&[piece(chunk, 0, 8)], false).unwrap();
    program_flow.publish();
    let Taken::Record(record) = here.take().unwrap() else {
        panic!("no record");
    };
    here.give_back(&record, Status::DONE, 0);
    here.publish();
    assert!(program_flow.reclaim().unwrap().is_some());
    memory.close(here);
    assert_eq!(program_flow.reclaim(), Err(FlowError::Closed));
    assert!(
        program.wait(Some(Duration::ZERO)).unwrap(),
        "a notice reports it"
    );
}

#[test]
fn a_location_outside_the_file_is_refused() {
    let memory = ProgramMemory::create(BUDGET).unwrap();
    let program = attach(&memory);
    for offset in [
        0,
        1,
        4097,
        memory.bytes(),
        memory.bytes() - 4096,
        u64::MAX - 4095,
    ] {
        let location = FlowLocation {
            slot: 0,
            offset,
            shape: SMALL,
        };
        let refused = program.flow(location).map(drop);
        assert!(
            matches!(refused, Err(SetupError::Outside { .. })),
            "{offset}"
        );
    }
    let location = FlowLocation {
        slot: 128,
        offset: 4096,
        shape: SMALL,
    };
    assert!(matches!(
        program.flow(location),
        Err(SetupError::NoSlot(128))
    ));
}

#[test]
fn the_program_notifies_the_driver_only_while_it_sleeps() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let program = attach(&memory);
    let none = Notifications {
        count: 0,
        without_flag: 0,
    };
    assert!(!program.notify());
    assert_eq!(memory.drain_doorbell(), none);
    assert!(memory.prepare_sleep());
    assert!(program.notify());
    assert!(!program.notify(), "the first notification took the flag");
    let one = Notifications {
        count: 1,
        without_flag: 0,
    };
    assert_eq!(memory.drain_doorbell(), one);
    assert_eq!(memory.drain_doorbell(), none);
    // The driver woke without a notification, and cleared the flag.
    assert!(memory.prepare_sleep());
    memory.end_sleep();
    assert!(!program.notify());
    assert_eq!(memory.drain_doorbell(), none);
}

#[test]
fn notifications_without_the_flag_are_counted() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let program = attach(&memory);
    let flood = |times: u64| {
        rustix::io::write(memory.handles().to_driver, &times.to_ne_bytes()).unwrap();
    };
    flood(1);
    assert_eq!(memory.drain_doorbell().without_flag, 1);
    let flood = |memory: &ProgramMemory, times: u64| {
        rustix::io::write(memory.handles().to_driver, &times.to_ne_bytes()).unwrap();
    };
    memory.prepare_sleep();
    flood(&memory, 1000);
    assert_eq!(
        memory.drain_doorbell().without_flag,
        1000,
        "the flag was not taken"
    );
    memory.prepare_sleep();
    program.notify();
    flood(&memory, 1000);
    assert_eq!(
        memory.drain_doorbell().without_flag,
        1000,
        "one of 1001 took the flag"
    );
}

#[test]
fn draining_a_doorbell_that_the_program_made_blocking_does_not_block() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let copy = memory.handles().to_driver.try_clone_to_owned().unwrap();
    let flags = rustix::fs::fcntl_getfl(&copy).unwrap();
    rustix::fs::fcntl_setfl(&copy, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    let begin = Instant::now();
    assert_eq!(memory.drain_doorbell().count, 0);
    assert!(begin.elapsed() < Duration::from_secs(1));
}

#[test]
fn the_program_cannot_access_the_eventfd_behind_its_doorbell() {
    let memory = ProgramMemory::create(BUDGET).unwrap();
    let poll_fd = memory.handles().to_program;
    // The program's descriptor is not a counter: the program can neither fill it nor change what it
    // polls.
    assert!(rustix::io::write(poll_fd, &u64::MAX.to_ne_bytes()).is_err());
    for other in [memory.handles().to_driver, memory.handles().memory] {
        assert!(epoll::delete(poll_fd, other).is_err());
    }
}

#[test]
fn a_notification_wakes_a_sleeping_program() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let program = attach(&memory);
    let mut flow = memory.open(SMALL).unwrap();
    let mut program_flow = program.flow(flow.location()).unwrap();
    let chunk = program_flow.chunk().unwrap();
    program_flow.prime(&[piece(chunk, 0, 256)]).unwrap();
    program_flow.publish();
    assert!(!program.wait(Some(Duration::from_millis(20))).unwrap());
    let waiter = std::thread::spawn(move || {
        let begin = Instant::now();
        assert!(program.wait(Some(Duration::from_secs(20))).unwrap());
        (
            program_flow.receive().unwrap().unwrap().bytes(),
            begin.elapsed(),
        )
    });
    while memory.notifier.flag() == 0 {
        std::thread::yield_now();
    }
    let Taken::Record(record) = flow.take_empty().unwrap() else {
        panic!("no record");
    };
    flow.deliver(record, 10, Status::DONE, 0);
    assert!(flow.publish());
    memory.notify();
    let (bytes, after) = waiter.join().unwrap();
    assert_eq!(bytes, 10);
    assert!(after < Duration::from_secs(10));
}

#[test]
fn a_disconnected_program_learns_which_rule_it_broke() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let program = attach(&memory);
    let _flow = memory.open(SMALL).unwrap();
    assert_eq!(program.ended(), None);
    let waiter = std::thread::spawn(move || {
        assert!(program.wait(Some(Duration::from_secs(20))).unwrap());
        program.ended()
    });
    memory.disconnect(&ProtocolViolation {
        ring: Ring::Submit,
        rule: Rule::Count { count: 0 },
    });
    assert_eq!(waiter.join().unwrap(), Some(30));
}

#[test]
fn a_hole_in_the_memory_file_affects_only_the_flows_of_its_program() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let program = attach(&memory);
    let mut here = memory.open(SMALL).unwrap();
    let mut there = program.flow(here.location()).unwrap();
    let chunk = there.chunk().unwrap();
    there.submit(&[piece(chunk, 0, 8)], false).unwrap();
    there.publish();
    let Taken::Record(record) = here.take().unwrap() else {
        panic!("no record");
    };
    // The program cannot shrink the file. It can punch holes before the second seal; holes read as
    // 0.
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let bytes = memory.bytes();
    rustix::fs::fallocate(memory.handles().memory, flags, 0, bytes).unwrap();
    assert_eq!(here.read(&record, &mut [0xee; 8]), 8);
    here.give_back(&record, Status::DONE, 0);
    here.count_lost(Loss::NoBuffer);
    assert!(here.publish());
    let violation = here.take().unwrap_err();
    assert_eq!(violation.rule, Rule::ProducerBack { last: 2, seen: 0 });
    memory.notify();
    assert!(memory.prepare_sleep());
    memory.drain_doorbell();
    assert_eq!(memory.close(here).in_use, 0);
    // The driver's own ledgers are in private memory, so the next flow works.
    let mut here = memory.open(SMALL).unwrap();
    drop(there);
    let mut there = program.flow(here.location()).unwrap();
    let chunk = there.chunk().unwrap();
    there.submit(&[piece(chunk, 0, 8)], false).unwrap();
    there.publish();
    assert!(matches!(here.take(), Ok(Taken::Record(_))));
}

#[test]
fn a_closed_flow_is_not_mistaken_for_a_full_ring() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let program = attach(&memory);
    let many = Shape {
        chunks: 32,
        ..SMALL
    };
    let flow = memory.open(many).unwrap();
    let mut program_flow = program.flow(flow.location()).unwrap();
    let mut prime = || {
        let chunk = program_flow.chunk().expect("more chunks than entries");
        program_flow.prime(&[piece(chunk, 0, 8)])
    };
    let full = (0..32).find_map(|_| prime().err());
    assert!(matches!(full, Some(RecordError::Full)), "{full:?}");
    memory.close(flow);
    let closed = prime();
    assert!(
        matches!(closed, Err(RecordError::Flow(FlowError::Closed))),
        "{closed:?}"
    );
}

#[test]
fn notices_of_closed_flows_are_ignored() {
    let mut memory = ProgramMemory::create(BUDGET).unwrap();
    let _flow = memory.open(SMALL).unwrap();
    let header = Header::new(&memory.region);
    header.to_driver(2).words[0].store(u64::MAX, Ordering::Relaxed);
    header.to_driver(2).words[1].store(u64::MAX, Ordering::Relaxed);
    assert_eq!(noticed(&memory), [0]);
    assert_eq!(noticed(&memory), [0; 0]);
}

#[test]
fn dropping_both_sides_closes_all_descriptors() {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = count();
    for _ in 0..200 {
        let mut memory = ProgramMemory::create(BUDGET).unwrap();
        let program = attach(&memory);
        let flow = memory.open(SMALL).unwrap();
        let _program_flow = program.flow(flow.location()).unwrap();
    }
    // Other tests of this process open descriptors at the same time.
    assert!(count() < before + 100);
}
