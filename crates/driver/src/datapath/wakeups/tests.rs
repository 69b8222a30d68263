use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use netnice_core::contract::Weight;
use netnice_core::units::Rate;
use netnice_ring::layout::Budget;
use netnice_ring::program::{Attachment, Piece};

use super::*;
use crate::protocol::Transport;
use crate::template::{Checked, Forbidden};
use crate::template::{Sender, Sends};
use crate::test_frames::{OWN, PEER, endpoint, udp};

/// A NIC that takes everything and keeps nothing.
struct DroppingNic;

impl FrameSink for DroppingNic {
    fn room(&mut self) -> usize {
        BATCH
    }

    fn send<F>(&mut self, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        Some(write(&mut [0; 2048]).map(drop))
    }
}

/// A driver and one program with one flow; the test decides what the program does.
struct TestProgram {
    datapath: Datapath,
    number: ProgramNo,
    now: Instant,
    attachment: Attachment,
    flow: netnice_ring::program::ProgramRings,
    place: netnice_ring::layout::FlowLocation,
    memory: File,
    doorbell: OwnedFd,
    /// How often the program caused an iteration.
    wakeups: u32,
}

const SHAPE: Shape = Shape {
    chunk_bytes: 256,
    chunks: 16,
    transmit_entries: 32,
    receive_entries: 16,
};

fn test_program() -> TestProgram {
    let mut datapath = Datapath::new(Wire::new(Rate::new(1_000_000_000).unwrap()), OWN).unwrap();
    let client = ProgramMemory::create(Budget {
        flows: 1,
        bytes: SHAPE.plan().unwrap().bytes(),
    });
    let number = datapath.attach(client.unwrap());
    let parameters = FlowParameters {
        shape: SHAPE,
        service: Service::best_effort(Weight::default()),
        sender: Sender {
            mac: OWN,
            next_hop: Some(PEER),
            longest: 1514,
            sends: Sends::Ports {
                transport: Transport::Udp,
                local: endpoint("10.0.0.1:5000"),
                remote: None,
            },
        },
        matches: Vec::new(),
        reassembly: Reassembly::Complete,
        receive_budget: None,
    };
    let place = datapath
        .open(number, &parameters, Instant(0))
        .unwrap()
        .location;
    let handles = datapath.memory(number).unwrap().handles();
    let copy = |fd: BorrowedFd| fd.try_clone_to_owned().unwrap();
    let attachment = handles.attach().unwrap();
    TestProgram {
        number,
        now: Instant(0),
        flow: attachment.flow(place).unwrap(),
        attachment,
        place,
        memory: copy(handles.memory).into(),
        doorbell: copy(handles.to_driver),
        datapath,
        wakeups: 0,
    }
}

impl TestProgram {
    /// The driver runs an iteration and prepares to sleep; then the program acts, and the driver
    /// handles its doorbell. `None` if the program is throttled.
    fn iterate(&mut self, action: impl FnOnce(&mut TestProgram)) -> Option<()> {
        self.datapath.transmit(&mut DroppingNic, self.now);
        self.datapath.publish();
        let sleeps = self.datapath.prepare_sleep(self.now);
        self.wakeups += u32::from(!sleeps);
        action(self);
        if sleeps && self.has_written_doorbell() {
            self.datapath.end_sleep();
            self.datapath.on_doorbell(self.number, self.now);
            self.wakeups += 1;
        }
        self.datapath.invariants();
        match self.datapath.poll_throttled() {
            None => Some(()),
            Some((throttled, until)) => {
                assert_eq!(throttled, self.number);
                assert_eq!(until.0, self.now.0 + PAUSE.0);
                None
            }
        }
    }

    /// Whether the program wrote its doorbell since the last call.
    fn has_written_doorbell(&self) -> bool {
        rustix::io::read(&self.doorbell, &mut [0; 8]).is_ok()
    }

    /// How many iterations there are until the program is throttled.
    fn iterations_until_throttled(&mut self, action: impl Fn(&mut TestProgram)) -> u32 {
        (0..10_000)
            .take_while(|_| self.iterate(&action).is_some())
            .count() as u32
    }

    fn write_doorbell(&self, times: u64) {
        rustix::io::write(&self.doorbell, &times.to_ne_bytes()).unwrap();
    }

    /// Takes the flag; returns whether it was set.
    fn take_flag(&self) -> bool {
        let mut flag = [0; 4];
        self.memory.read_exact_at(&mut flag, 0x40).unwrap();
        self.memory.write_all_at(&[0; 4], 0x40).unwrap();
        flag != [0; 4]
    }

    fn set_notices(&self) {
        self.memory.write_all_at(&[0xff; 8], 0x200).unwrap();
    }

    /// Submits a datagram without publishing it; false without room.
    fn submit_datagram(&mut self) -> bool {
        while let Some(record) = self.flow.reclaim().unwrap() {
            self.flow.free_all(&record).unwrap();
        }
        let frame = udp("10.0.0.1:5000", "10.0.0.2:9").frame();
        let Some(chunk) = self.flow.chunk() else {
            return false;
        };
        self.flow.bytes_mut(chunk).unwrap()[..frame.len()].copy_from_slice(&frame);
        let piece = Piece {
            chunk,
            start: 0,
            length: frame.len() as u32,
        };
        self.flow.submit(&[piece], false).is_ok()
    }

    fn publish(&mut self) {
        if self.flow.publish() {
            self.attachment.notify();
        }
    }
}

#[test]
fn a_program_that_takes_the_flag_and_moves_no_index_is_throttled() {
    let mut rogue = test_program();
    let rings = |rogue: &mut TestProgram| {
        if rogue.take_flag() {
            rogue.write_doorbell(1);
        }
    };
    assert_eq!(rogue.iterations_until_throttled(rings), 15);
    // From then on the driver sleeps, whatever the program does.
    let wakeups = rogue.wakeups;
    for _ in 0..1000 {
        assert!(rogue.datapath.prepare_sleep(rogue.now));
        assert!(!rogue.take_flag(), "it is not told that the driver sleeps");
        rogue.set_notices();
    }
    assert_eq!(rogue.wakeups, wakeups);
    // After the pause one needless wakeup suffices.
    rogue.now.0 += PAUSE.0;
    assert_eq!(rogue.iterations_until_throttled(rings), 0);
    // A program that was quiet for a while has credit again.
    rogue.now.0 += 8 * PAUSE.0;
    assert_eq!(rogue.iterations_until_throttled(rings), 7);
}

#[test]
fn notices_without_a_moved_index_do_not_keep_the_driver_awake() {
    let mut rogue = test_program();
    let mut sleeps = || {
        rogue.datapath.transmit(&mut DroppingNic, rogue.now);
        rogue.set_notices();
        rogue.datapath.prepare_sleep(rogue.now)
    };
    for _ in 0..SPARE_WAKEUPS {
        assert!(!sleeps());
    }
    for _ in 0..1000 {
        assert!(sleeps());
    }
    let until = Instant(rogue.now.0 + PAUSE.0);
    assert_eq!(rogue.datapath.poll_throttled(), Some((rogue.number, until)));
    rogue.now = until;
    assert!(!rogue.datapath.prepare_sleep(rogue.now));
    assert!(rogue.datapath.prepare_sleep(rogue.now));
}

#[test]
fn a_doorbell_write_from_before_the_pause_is_not_counted() {
    let mut rogue = test_program();
    assert!(
        rogue.datapath.on_doorbell(rogue.number, rogue.now),
        "unasked"
    );
    let (_, until) = rogue
        .datapath
        .poll_throttled()
        .expect("it is not received for a while");
    rogue.now = until;
    rogue.datapath.resume(rogue.number);
    assert!(!rogue.datapath.on_doorbell(rogue.number, rogue.now));
    assert_eq!(rogue.datapath.poll_throttled(), None);
    assert!(rogue.datapath.on_doorbell(rogue.number, rogue.now));
    assert!(rogue.datapath.poll_throttled().is_some());
    // A program that was throttled only for its notices has no old doorbell write.
    let mut other = test_program();
    other.datapath.resume(other.number);
    assert!(other.datapath.on_doorbell(other.number, other.now));
}

#[test]
fn an_unasked_doorbell_write_throttles_the_program_at_once() {
    let mut rogue = test_program();
    assert_eq!(
        rogue.iterate(|rogue| rogue.write_doorbell(u64::MAX - 1)),
        None
    );
    // Its notices are read as usual.
    rogue.submit_datagram();
    rogue.publish();
    assert!(!rogue.datapath.prepare_sleep(rogue.now));
}

#[test]
fn a_program_that_moves_an_index_at_each_wakeup_is_never_throttled() {
    let mut program = test_program();
    for _ in 0..10_000 {
        let done = program.iterate(|program| {
            assert!(program.submit_datagram());
            program.publish();
        });
        assert_eq!(done, Some(()));
        program.now.0 += 1_000;
    }
}

#[test]
fn a_doorbell_write_after_its_index_was_read_is_no_fault() {
    let mut program = test_program();
    for _ in 0..10_000 {
        assert!(program.submit_datagram());
        // The driver runs an iteration of its own in between and sees the record; then the program
        // takes the flag.
        program.flow.publish();
        let done = program.iterate(|program| {
            program.set_notices();
            program.attachment.notify();
        });
        assert_eq!(done, Some(()));
        program.now.0 += 1_000;
    }
}

#[test]
fn a_record_of_a_throttled_program_is_read_after_the_pause() {
    let mut program = test_program();
    program.iterations_until_throttled(|program| {
        if program.take_flag() {
            program.write_doorbell(1);
        }
    });
    program.submit_datagram();
    program.publish();
    program.datapath.transmit(&mut DroppingNic, program.now);
    program.datapath.publish();
    assert_eq!(program.datapath.totals().sent, 0);
    program.now.0 += PAUSE.0;
    assert!(
        !program.datapath.prepare_sleep(program.now),
        "a notice is set"
    );
    program.datapath.transmit(&mut DroppingNic, program.now);
    assert_eq!(program.datapath.totals().sent, 1);
}

#[test]
fn an_invalid_index_is_found_when_a_wakeup_is_checked() {
    let mut rogue = test_program();
    let reclaim_consumer = rogue.place.offset + 0x0c0;
    let sent = rogue.iterate(|rogue| {
        let written = rogue
            .memory
            .write_all_at(&7_u32.to_ne_bytes(), reclaim_consumer);
        written.unwrap();
        rogue.set_notices();
    });
    assert_eq!(sent, Some(()));
    rogue.datapath.prepare_sleep(rogue.now);
    rogue.datapath.publish();
    let disconnected = rogue
        .datapath
        .poll_disconnected()
        .expect("it is disconnected");
    assert_eq!(disconnected.violation.rule_number(), 23);
}
