use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use netnice_core::contract::Weight;
use netnice_core::units::Rate;
use netnice_ring::layout::Budget;
use netnice_ring::program::{Attachment, Piece};

use super::*;
use crate::protocol::Transport;
use crate::story::{OWN, PEER, end, udp};
use crate::template::{Checked, Forbidden};
use crate::template::{Sender, Sends};

/// A NIC that takes everything and keeps nothing.
struct Nowhere;

impl Card for Nowhere {
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
struct Caller {
    turn: Turn,
    number: ProgramNo,
    now: Instant,
    attachment: Attachment,
    flow: netnice_ring::program::ProgramRings,
    place: FlowLocation,
    memory: File,
    bell: OwnedFd,
    /// How often the program caused an iteration.
    woke: u32,
}

const SHAPE: Shape = Shape {
    chunk_bytes: 256,
    chunks: 16,
    transmit_entries: 32,
    receive_entries: 16,
};

fn caller() -> Caller {
    let mut turn = Turn::new(Wire::new(Rate::new(1_000_000_000).unwrap()), OWN).unwrap();
    let client = ProgramMemory::create(Budget {
        flows: 1,
        bytes: SHAPE.plan().unwrap().bytes(),
    });
    let number = turn.attach(client.unwrap());
    let open = Open {
        shape: SHAPE,
        service: Service::best_effort(Weight::default()),
        sender: Sender {
            mac: OWN,
            next_hop: Some(PEER),
            longest: 1514,
            sends: Sends::Ports {
                transport: Transport::Udp,
                local: end("10.0.0.1:5000"),
                remote: None,
            },
        },
        matches: Vec::new(),
        reassembly: Reassembly::Complete,
        share: None,
    };
    let place = turn.open(number, &open, Instant(0)).unwrap().place;
    let handles = turn.client(number).unwrap().handles();
    let copy = |fd: BorrowedFd| fd.try_clone_to_owned().unwrap();
    let attachment = handles.attach().unwrap();
    Caller {
        number,
        now: Instant(0),
        flow: attachment.flow(place).unwrap(),
        attachment,
        place,
        memory: copy(handles.memory).into(),
        bell: copy(handles.to_driver),
        turn,
        woke: 0,
    }
}

impl Caller {
    /// The driver runs an iteration and prepares to sleep; then the program acts, and the driver
    /// handles its doorbell. `None` if the program is throttled.
    fn round(&mut self, does: impl FnOnce(&mut Caller)) -> Option<()> {
        self.turn.transmit(&mut Nowhere, self.now);
        self.turn.publish();
        let dozes = self.turn.doze(self.now);
        self.woke += u32::from(!dozes);
        does(self);
        if dozes && self.has_rung() {
            self.turn.wake();
            self.turn.hear(self.number, self.now);
            self.woke += 1;
        }
        self.turn.invariants();
        match self.turn.poll_muted() {
            None => Some(()),
            Some((whose, until)) => {
                assert_eq!(whose, self.number);
                assert_eq!(until.0, self.now.0 + PAUSE.0);
                None
            }
        }
    }

    /// Whether the program wrote its doorbell since the last call.
    fn has_rung(&self) -> bool {
        rustix::io::read(&self.bell, &mut [0; 8]).is_ok()
    }

    /// How many rounds there are until the program is throttled.
    fn rounds(&mut self, does: impl Fn(&mut Caller)) -> u32 {
        (0..10_000)
            .take_while(|_| self.round(&does).is_some())
            .count() as u32
    }

    fn ring(&self, times: u64) {
        rustix::io::write(&self.bell, &times.to_ne_bytes()).unwrap();
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
    fn says(&mut self) -> bool {
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

    fn shows(&mut self) {
        if self.flow.publish() {
            self.attachment.notify();
        }
    }
}

#[test]
fn who_takes_the_flag_and_has_nothing_to_say_is_not_heard_for_long() {
    let mut rogue = caller();
    let rings = |rogue: &mut Caller| {
        if rogue.take_flag() {
            rogue.ring(1);
        }
    };
    assert_eq!(rogue.rounds(rings), 15);
    // From then on the driver sleeps, whatever the program does.
    let woke = rogue.woke;
    for _ in 0..1000 {
        assert!(rogue.turn.doze(rogue.now));
        assert!(!rogue.take_flag(), "it is not told that the driver sleeps");
        rogue.set_notices();
    }
    assert_eq!(rogue.woke, woke);
    // After the pause one needless wakeup suffices.
    rogue.now.0 += PAUSE.0;
    assert_eq!(rogue.rounds(rings), 0);
    // A program that was quiet for a while has credit again.
    rogue.now.0 += 8 * PAUSE.0;
    assert_eq!(rogue.rounds(rings), 7);
}

#[test]
fn who_sets_notices_and_has_nothing_to_say_keeps_nobody_awake() {
    let mut rogue = caller();
    let mut dozes = || {
        rogue.turn.transmit(&mut Nowhere, rogue.now);
        rogue.set_notices();
        rogue.turn.doze(rogue.now)
    };
    for _ in 0..SPARE {
        assert!(!dozes());
    }
    for _ in 0..1000 {
        assert!(dozes());
    }
    let until = Instant(rogue.now.0 + PAUSE.0);
    assert_eq!(rogue.turn.poll_muted(), Some((rogue.number, until)));
    rogue.now = until;
    assert!(!rogue.turn.doze(rogue.now));
    assert!(rogue.turn.doze(rogue.now));
}

#[test]
fn a_ring_from_before_the_pause_is_none() {
    let mut rogue = caller();
    assert!(rogue.turn.hear(rogue.number, rogue.now), "unasked");
    let (_, until) = rogue
        .turn
        .poll_muted()
        .expect("it is not heard for a while");
    rogue.now = until;
    rogue.turn.unmute(rogue.number);
    assert!(!rogue.turn.hear(rogue.number, rogue.now));
    assert_eq!(rogue.turn.poll_muted(), None);
    assert!(rogue.turn.hear(rogue.number, rogue.now));
    assert!(rogue.turn.poll_muted().is_some());
    // A program that was throttled only for its notices has no old doorbell write.
    let mut other = caller();
    other.turn.unmute(other.number);
    assert!(other.turn.hear(other.number, other.now));
}

#[test]
fn rings_that_nobody_asked_for_are_counted_and_not_heard_at_once() {
    let mut rogue = caller();
    assert_eq!(rogue.round(|rogue| rogue.ring(u64::MAX - 1)), None);
    // Its notices are read as usual.
    rogue.says();
    rogue.shows();
    assert!(!rogue.turn.doze(rogue.now));
}

#[test]
fn who_has_news_each_time_is_always_heard() {
    let mut program = caller();
    for _ in 0..10_000 {
        let done = program.round(|program| {
            assert!(program.says());
            program.shows();
        });
        assert_eq!(done, Some(()));
        program.now.0 += 1_000;
    }
}

#[test]
fn who_rings_behind_news_that_were_seen_already_is_heard_too() {
    let mut program = caller();
    for _ in 0..10_000 {
        assert!(program.says());
        // The driver runs an iteration of its own in between and sees the record; then the program
        // takes the flag.
        program.flow.publish();
        let done = program.round(|program| {
            program.set_notices();
            program.attachment.notify();
        });
        assert_eq!(done, Some(()));
        program.now.0 += 1_000;
    }
}

#[test]
fn what_came_meanwhile_is_seen_when_the_pause_is_over() {
    let mut program = caller();
    program.rounds(|program| {
        if program.take_flag() {
            program.ring(1);
        }
    });
    program.says();
    program.shows();
    program.turn.transmit(&mut Nowhere, program.now);
    program.turn.publish();
    assert_eq!(program.turn.totals().sent, 0);
    program.now.0 += PAUSE.0;
    assert!(!program.turn.doze(program.now), "it has news");
    program.turn.transmit(&mut Nowhere, program.now);
    assert_eq!(program.turn.totals().sent, 1);
}

#[test]
fn an_index_that_cannot_be_is_seen_by_the_call() {
    let mut rogue = caller();
    let reclaim_consumer = rogue.place.offset + 0x0c0;
    let sent = rogue.round(|rogue| {
        let written = rogue
            .memory
            .write_all_at(&7_u32.to_ne_bytes(), reclaim_consumer);
        written.unwrap();
        rogue.set_notices();
    });
    assert_eq!(sent, Some(()));
    rogue.turn.doze(rogue.now);
    rogue.turn.publish();
    let expelled = rogue.turn.poll_expelled().expect("it is expelled");
    assert_eq!(expelled.breach.rule_number(), 23);
}
