//! Tests with the kernel: memory files, doorbells, and flows that open and close.
#![cfg(not(miri))]

use std::time::{Duration, Instant};

use super::*;
use crate::program::Fault;
use crate::story::{SMALL, piece};

const BUDGET: Budget = Budget {
    flows: 100,
    bytes: 1 << 20,
};

fn attach(client: &Client) -> Attachment {
    client.handles().attach().unwrap()
}

fn noticed(client: &Client) -> Vec<u32> {
    let mut slots = Vec::new();
    client.take_notices(|slot| slots.push(slot));
    slots
}

#[test]
fn a_packet_passes_between_two_mappings() {
    let mut client = Client::create(BUDGET).unwrap();
    let program = attach(&client);
    let mut here = client.open(SMALL).unwrap();
    let mut there = program.flow(here.place()).unwrap();
    let chunk = there.chunk().unwrap();
    there.bytes_mut(chunk).unwrap()[..5].copy_from_slice(b"hello");
    there.submit(&[piece(chunk, 0, 5)], false).unwrap();
    assert!(there.publish());
    assert_eq!(noticed(&client), [0]);
    let Taken::Record(record) = here.take().unwrap() else {
        panic!("no record");
    };
    let mut bytes = [0; 5];
    here.read(&record, &mut bytes);
    assert_eq!(&bytes, b"hello");
}

#[test]
fn flows_have_regions_of_their_own_and_leave_nothing() {
    let mut client = Client::create(BUDGET).unwrap();
    let program = attach(&client);
    let bytes = SMALL.plan().unwrap().bytes();
    let flows: Vec<Flow> = (0..100).map(|_| client.open(SMALL).unwrap()).collect();
    let refused = client.open(SMALL).err().map(|error| error.to_string());
    assert_eq!(
        refused.as_deref(),
        Some("all 100 flows of the program are open")
    );
    let places: Vec<Place> = flows.iter().map(Flow::place).collect();
    for (number, place) in (0..).zip(&places) {
        assert_eq!(place.slot, number);
        assert_eq!(place.offset, PAGE + u64::from(number) * bytes);
    }
    let mut theirs = program.flow(places[3]).unwrap();
    assert!(theirs.is_open());
    assert!(matches!(
        program.flow(places[3]),
        Err(SetupError::InUse { offset }) if offset == places[3].offset
    ));
    let chunk = theirs.chunk().unwrap();
    theirs.bytes_mut(chunk).unwrap().fill(0xee);
    theirs.submit(&[piece(chunk, 0, 8)], false).unwrap();
    theirs.publish();
    for mut flow in flows {
        if flow.slot() == 3 {
            let Ok(Taken::Record(_record)) = flow.take() else {
                panic!("no record");
            };
            assert_eq!(client.close(flow).in_use, 1);
        } else {
            assert_eq!(client.close(flow).in_use, 0);
        }
    }
    assert!(!theirs.is_open());
    assert_eq!(theirs.reclaim().map(drop), Ok(()));
    drop(theirs);
    // The whole file is one gap again, filled with zeros, and the next flow starts like the first
    // one.
    let all = client.bytes() - PAGE;
    let large = Shape {
        chunk_bytes: 65_536,
        chunks: ((all - PAGE) / 65_536) as u32,
        ..SMALL
    };
    let flow = client.open(large).unwrap();
    assert_eq!(flow.place().offset, PAGE);
    let mut theirs = program.flow(flow.place()).unwrap();
    while let Some(chunk) = theirs.chunk() {
        assert!(theirs.bytes(chunk).unwrap().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_closed_flow_says_so() {
    let mut client = Client::create(BUDGET).unwrap();
    let program = attach(&client);
    let mut here = client.open(SMALL).unwrap();
    let mut theirs = program.flow(here.place()).unwrap();
    // Move the indices from 0, so that zeros in place of the indices are a violation.
    let chunk = theirs.chunk().unwrap();
    theirs.submit(&[piece(chunk, 0, 8)], false).unwrap();
    theirs.publish();
    let Taken::Record(record) = here.take().unwrap() else {
        panic!("no record");
    };
    here.give_back(record, Status::DONE, 0);
    here.publish();
    assert!(theirs.reclaim().unwrap().is_some());
    client.close(here);
    assert_eq!(theirs.reclaim(), Err(Fault::Closed));
    assert!(
        program.wait(Some(Duration::ZERO)).unwrap(),
        "a notice tells of it"
    );
}

#[test]
fn a_place_outside_the_file_is_refused() {
    let client = Client::create(BUDGET).unwrap();
    let program = attach(&client);
    for offset in [
        0,
        1,
        4097,
        client.bytes(),
        client.bytes() - 4096,
        u64::MAX - 4095,
    ] {
        let place = Place {
            slot: 0,
            offset,
            shape: SMALL,
        };
        let refused = program.flow(place).map(drop);
        assert!(
            matches!(refused, Err(SetupError::Outside { .. })),
            "{offset}"
        );
    }
    let place = Place {
        slot: 128,
        offset: 4096,
        shape: SMALL,
    };
    assert!(matches!(program.flow(place), Err(SetupError::NoSlot(128))));
}

#[test]
fn the_program_rings_only_for_a_driver_that_sleeps() {
    let mut client = Client::create(BUDGET).unwrap();
    let program = attach(&client);
    let quiet = Heard {
        rings: 0,
        unasked: 0,
    };
    assert!(!program.ring());
    assert_eq!(client.hear(), quiet);
    assert!(client.doze());
    assert!(program.ring());
    assert!(!program.ring(), "once is enough");
    let rung = Heard {
        rings: 1,
        unasked: 0,
    };
    assert_eq!(client.hear(), rung);
    assert_eq!(client.hear(), quiet);
    // The driver woke without a notification, and cleared the flag.
    assert!(client.doze());
    client.wake();
    assert!(!program.ring());
    assert_eq!(client.hear(), quiet);
}

#[test]
fn rings_for_fun_are_counted() {
    let mut client = Client::create(BUDGET).unwrap();
    let program = attach(&client);
    let flood = |times: u64| {
        rustix::io::write(client.handles().to_driver, &times.to_ne_bytes()).unwrap();
    };
    flood(1);
    assert_eq!(client.hear().unasked, 1);
    let flood = |client: &Client, times: u64| {
        rustix::io::write(client.handles().to_driver, &times.to_ne_bytes()).unwrap();
    };
    client.doze();
    flood(&client, 1000);
    assert_eq!(client.hear().unasked, 1000, "the flag was not taken");
    client.doze();
    program.ring();
    flood(&client, 1000);
    assert_eq!(client.hear().unasked, 1000, "one of 1001 was asked for");
}

#[test]
fn a_driver_hears_without_waiting_whatever_the_program_did_to_the_doorbell() {
    let mut client = Client::create(BUDGET).unwrap();
    let theirs = client.handles().to_driver.try_clone_to_owned().unwrap();
    let flags = rustix::fs::fcntl_getfl(&theirs).unwrap();
    rustix::fs::fcntl_setfl(&theirs, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    let begin = Instant::now();
    assert_eq!(client.hear().rings, 0);
    assert!(begin.elapsed() < Duration::from_secs(1));
}

#[test]
fn the_program_cannot_reach_the_bell_that_the_driver_rings() {
    let client = Client::create(BUDGET).unwrap();
    let ear = client.handles().to_program;
    // The program's descriptor is not a counter: the program can neither fill it nor change what it
    // polls.
    assert!(rustix::io::write(ear, &u64::MAX.to_ne_bytes()).is_err());
    for other in [client.handles().to_driver, client.handles().memory] {
        assert!(epoll::delete(ear, other).is_err());
    }
}

#[test]
fn a_sleeping_program_wakes() {
    let mut client = Client::create(BUDGET).unwrap();
    let program = attach(&client);
    let mut flow = client.open(SMALL).unwrap();
    let mut theirs = program.flow(flow.place()).unwrap();
    let chunk = theirs.chunk().unwrap();
    theirs.prime(&[piece(chunk, 0, 256)]).unwrap();
    theirs.publish();
    assert!(!program.wait(Some(Duration::from_millis(20))).unwrap());
    let waiter = std::thread::spawn(move || {
        let begin = Instant::now();
        assert!(program.wait(Some(Duration::from_secs(20))).unwrap());
        (theirs.receive().unwrap().unwrap().bytes(), begin.elapsed())
    });
    while client.ringer.bell_flag() == 0 {
        std::thread::yield_now();
    }
    let Taken::Record(record) = flow.take_empty().unwrap() else {
        panic!("no record");
    };
    flow.deliver(record, 10, Status::DONE, 0);
    assert!(flow.publish());
    client.ring();
    let (bytes, after) = waiter.join().unwrap();
    assert_eq!(bytes, 10);
    assert!(after < Duration::from_secs(10));
}

#[test]
fn an_expelled_program_learns_why() {
    let mut client = Client::create(BUDGET).unwrap();
    let program = attach(&client);
    let _flow = client.open(SMALL).unwrap();
    assert_eq!(program.ended(), None);
    let waiter = std::thread::spawn(move || {
        assert!(program.wait(Some(Duration::from_secs(20))).unwrap());
        program.ended()
    });
    client.expel(&Breach {
        ring: Ring::Submit,
        rule: Rule::Count { count: 0 },
    });
    assert_eq!(waiter.join().unwrap(), Some(30));
}

#[test]
fn a_program_that_takes_its_own_memory_away_harms_itself() {
    let mut client = Client::create(BUDGET).unwrap();
    let program = attach(&client);
    let mut here = client.open(SMALL).unwrap();
    let mut there = program.flow(here.place()).unwrap();
    let chunk = there.chunk().unwrap();
    there.submit(&[piece(chunk, 0, 8)], false).unwrap();
    there.publish();
    let Taken::Record(record) = here.take().unwrap() else {
        panic!("no record");
    };
    // The program cannot shrink the file. It can punch holes before the second seal; holes read as
    // 0.
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let bytes = client.bytes();
    rustix::fs::fallocate(client.handles().memory, flags, 0, bytes).unwrap();
    assert_eq!(here.read(&record, &mut [0xee; 8]), 8);
    here.give_back(record, Status::DONE, 0);
    here.lost(Loss::NoBuffer);
    assert!(here.publish());
    let breach = here.take().unwrap_err();
    assert_eq!(breach.rule, Rule::ProducerBack { last: 2, seen: 0 });
    client.ring();
    assert!(client.doze());
    client.hear();
    assert_eq!(client.close(here).in_use, 0);
    // The driver's own ledgers are in private memory, so the next flow works.
    let mut here = client.open(SMALL).unwrap();
    drop(there);
    let mut there = program.flow(here.place()).unwrap();
    let chunk = there.chunk().unwrap();
    there.submit(&[piece(chunk, 0, 8)], false).unwrap();
    there.publish();
    assert!(matches!(here.take(), Ok(Taken::Record(_))));
}

#[test]
fn notices_of_flows_that_are_not_open_are_not_passed_on() {
    let mut client = Client::create(BUDGET).unwrap();
    let _flow = client.open(SMALL).unwrap();
    let header = Header::new(&client.region);
    header.to_driver(2).words[0].store(u64::MAX, Ordering::Relaxed);
    header.to_driver(2).words[1].store(u64::MAX, Ordering::Relaxed);
    assert_eq!(noticed(&client), [0]);
    assert_eq!(noticed(&client), [0; 0]);
}

#[test]
fn descriptors_and_memory_are_given_back() {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = count();
    for _ in 0..200 {
        let mut client = Client::create(BUDGET).unwrap();
        let program = attach(&client);
        let flow = client.open(SMALL).unwrap();
        let _theirs = program.flow(flow.place()).unwrap();
    }
    // Other tests of this process open descriptors at the same time.
    assert!(count() < before + 100);
}
