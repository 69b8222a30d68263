//! A driver and a program in two processes, over a real memory file and real doorbells. Each side
//! receives what the other sends, both sleep in between, and the end of the program does not
//! disturb the driver.
//!
//! The program is this test's own executable, started again with the test named `program` as its
//! only test. In one test it is the C program `echoed.c`.
#![cfg(not(any(miri, loom)))]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use netnice_ring::driver::{DriverRings, ProgramMemory, Taken};
use netnice_ring::program::{Attachment, Chunk, Piece, ProgramRings};
use netnice_ring::record::Record;
use netnice_ring::{Budget, FlowLocation, Shape, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const SHAPE: Shape = Shape {
    chunk_bytes: 2048,
    chunks: 64,
    transmit_entries: 64,
    receive_entries: 64,
};
const FLOWS: u32 = 3;
const PACKETS: u32 = 3000;
const PLAN: &str = "NETNICE_RING_TEST";

/// The driver's side of an echo: it sends each packet of a flow back to the flow.
struct Echo {
    memory: ProgramMemory,
    flows: Vec<DriverRings>,
    /// Records that were taken and not yet echoed, because no empty record was there.
    waiting: Vec<VecDeque<Record>>,
    echoed: u32,
}

impl Echo {
    fn new() -> Echo {
        let budget = Budget {
            flows: FLOWS,
            bytes: u64::from(FLOWS) * SHAPE.plan().unwrap().bytes(),
        };
        let mut memory = ProgramMemory::create(budget).unwrap();
        let flows = (0..FLOWS).map(|_| memory.open(SHAPE).unwrap()).collect();
        Echo {
            memory,
            flows,
            waiting: (0..FLOWS).map(|_| VecDeque::new()).collect(),
            echoed: 0,
        }
    }

    /// The descriptors for a program that is started later. It inherits them, because dup clears
    /// close-on-exec.
    fn fds(&self) -> Vec<OwnedFd> {
        let handles = self.memory.handles();
        let all = [handles.memory, handles.to_driver, handles.to_program];
        all.iter().map(|fd| rustix::io::dup(fd).unwrap()).collect()
    }

    /// Starts the program.
    fn program(&self, what: &str) -> Child {
        let fds = self.fds();
        let numbers: Vec<String> = fds.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
        let locations = self
            .flows
            .iter()
            .map(|flow| flow.location().offset.to_string());
        let plan: Vec<String> = numbers.into_iter().chain(locations).collect();
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "program", "--nocapture", "--test-threads=1"])
            .env(PLAN, format!("{what} {}", plan.join(" ")))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Sleeps until the program sends a notification.
    fn sleep(&mut self, longest: Duration) {
        if self.memory.prepare_sleep() {
            let timeout = Timespec {
                tv_sec: longest.as_secs() as i64,
                tv_nsec: longest.subsec_nanos().into(),
            };
            let mut fds = [PollFd::from_borrowed_fd(
                self.memory.doorbell(),
                PollFlags::IN,
            )];
            poll(&mut fds, Some(&timeout)).unwrap();
        }
        let notifications = self.memory.drain_doorbell();
        assert_eq!(
            notifications.without_flag, 0,
            "the program keeps to the rules"
        );
    }

    fn iterate(&mut self) {
        let mut slots = Vec::new();
        self.memory.take_notices(|slot| slots.push(slot as usize));
        let mut moved = false;
        for slot in slots {
            let (flow, waiting) = (&mut self.flows[slot], &mut self.waiting[slot]);
            while let Taken::Record(record) = flow.take().unwrap() {
                waiting.push_back(record);
            }
            while let Some(record) = waiting.pop_front() {
                let Taken::Record(empty) = flow.take_empty().unwrap() else {
                    waiting.push_front(record);
                    break;
                };
                let mut frame = [0; 2048];
                let bytes = flow.read(&record, &mut frame);
                assert_eq!(flow.write(&empty, 0, &frame[..bytes]), bytes);
                flow.give_back(&record, Status::DONE, 1);
                flow.deliver(empty, bytes, Status::DONE, 2);
                self.echoed += 1;
            }
            flow.invariants();
            moved |= flow.publish();
        }
        if moved {
            self.memory.notify();
        }
    }
}

#[test]
fn every_packet_is_echoed_between_two_processes() {
    let mut echo = Echo::new();
    let mut child = echo.program("all");
    let begin = Instant::now();
    while echo.echoed < FLOWS * PACKETS {
        echo.sleep(Duration::from_millis(200));
        echo.iterate();
        assert!(begin.elapsed() < Duration::from_secs(60), "stuck");
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none_or(|status| status.success()), "{ended:?}");
    }
    assert!(child.wait().unwrap().success());
    // The program has received all of its packets. Each ledger of the driver still adds up.
    for flow in &echo.flows {
        let balance = flow.balance();
        assert_eq!(balance.in_use + balance.free, balance.total);
    }
}

#[test]
fn a_c_program_written_from_the_specification_exchanges_packets() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/echoed.c");
    let program = concat!(env!("CARGO_TARGET_TMPDIR"), "/echoed");
    let compiled = Command::new("cc")
        .args([
            "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, source,
        ])
        .status()
        .expect("a C compiler");
    assert!(compiled.success());
    let mut echo = Echo::new();
    let fds = echo.fds();
    let location = echo.flows[2].location();
    let mut child = Command::new(program)
        .args(fds.iter().map(|fd| fd.as_raw_fd().to_string()))
        .args(
            [location.offset, location.slot.into(), PACKETS.into()]
                .map(|number| number.to_string()),
        )
        .spawn()
        .unwrap();
    drop(fds);
    let begin = Instant::now();
    let ended = loop {
        echo.sleep(Duration::from_millis(50));
        echo.iterate();
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "stuck");
    };
    assert!(ended.success(), "{ended:?}");
    assert_eq!(echo.echoed, PACKETS);
}

#[test]
fn the_driver_survives_a_program_that_is_killed() {
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    for round in 0..10 {
        let mut echo = Echo::new();
        let mut child = echo.program("for ever");
        let begin = Instant::now();
        while echo.echoed < 50 * (round + 1) {
            echo.sleep(Duration::from_millis(200));
            echo.iterate();
            assert!(begin.elapsed() < Duration::from_secs(60), "stuck");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The program was killed in any state.
        echo.iterate();
        for slot in 0..FLOWS as usize {
            let flow = echo.flows.remove(0);
            let held: usize = echo.waiting[slot].iter().map(|one| one.pairs().len()).sum();
            assert_eq!(echo.memory.close(flow).in_use as usize, held);
        }
    }
    // Other tests of this process open descriptors at the same time.
    assert!(files() < before + 40, "descriptors are given back");
}

/// The program: each flow sends numbered packets of one piece and of two pieces, and expects them
/// back.
#[test]
fn program() {
    let Ok(plan) = std::env::var(PLAN) else {
        return;
    };
    let ends = plan.starts_with("all ");
    let numbers: Vec<u64> = plan
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let fd = |index: usize| {
        let fd = numbers[index] as RawFd;
        // SAFETY: the descriptor was created for this process, and no other code here uses it.
        let fd: BorrowedFd = unsafe { BorrowedFd::borrow_raw(fd) };
        assert!(rustix::io::fcntl_getfd(fd).is_ok());
        // SAFETY: as above.
        unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) }
    };
    let driver = Attachment::new(fd(0), fd(1), fd(2)).unwrap();
    let mut flows: Vec<EchoClient> = (0..FLOWS)
        .map(|slot| {
            let location = FlowLocation {
                slot,
                offset: numbers[3 + slot as usize],
                shape: SHAPE,
            };
            EchoClient::new(driver.flow(location).unwrap())
        })
        .collect();
    loop {
        let mut moved = false;
        for flow in &mut flows {
            flow.collect();
            flow.send(ends);
            moved |= flow.flow.publish();
        }
        if moved {
            driver.notify();
        }
        if ends && flows.iter().all(|flow| flow.received == PACKETS) {
            break;
        }
        assert!(driver.wait(Some(Duration::from_secs(20))).unwrap(), "stuck");
        driver.take_notices(|_| {});
    }
}

struct EchoClient {
    flow: ProgramRings,
    sent: u32,
    received: u32,
}

impl EchoClient {
    fn new(mut flow: ProgramRings) -> EchoClient {
        for _ in 0..24 {
            let chunk = flow.chunk().unwrap();
            flow.prime(&[whole(chunk)]).unwrap();
        }
        EchoClient {
            flow,
            sent: 0,
            received: 0,
        }
    }

    fn send(&mut self, ends: bool) {
        while !ends || self.sent < PACKETS {
            let count = 1 + self.sent as usize % 2;
            let chunks: Vec<Chunk> = (0..count).map_while(|_| self.flow.chunk()).collect();
            let mut pieces = Vec::new();
            for (index, chunk) in chunks.iter().enumerate() {
                let length = 8 + (self.sent as usize * 7 + index) % 1000;
                let bytes = &mut self.flow.bytes_mut(*chunk).unwrap()[..length];
                bytes.fill(self.sent as u8);
                bytes[..4].copy_from_slice(&self.sent.to_ne_bytes());
                pieces.push(Piece {
                    chunk: *chunk,
                    start: 0,
                    length: length as u32,
                });
            }
            if chunks.len() < count || self.flow.submit(&pieces, false).is_err() {
                for chunk in chunks {
                    self.flow.free(chunk).unwrap();
                }
                return;
            }
            self.sent += 1;
        }
    }

    fn collect(&mut self) {
        while let Some(record) = self.flow.reclaim().unwrap() {
            assert_eq!(record.status(), Status::DONE);
            self.flow.free_all(&record).unwrap();
        }
        while let Some(record) = self.flow.receive().unwrap() {
            let piece = self.flow.piece(&record.pairs()[0]);
            let number = self.received as usize;
            let mut length = 8 + (number * 7) % 1000;
            if number % 2 == 1 {
                length += 8 + (number * 7 + 1) % 1000;
            }
            assert_eq!(record.bytes(), length);
            let bytes = self.flow.bytes(piece.chunk).unwrap();
            assert_eq!(bytes[..4], self.received.to_ne_bytes());
            assert_eq!(bytes[4], number as u8);
            self.received += 1;
            self.flow.prime(&[whole(piece.chunk)]).unwrap();
        }
    }
}

fn whole(chunk: Chunk) -> Piece {
    Piece {
        chunk,
        start: 0,
        length: SHAPE.chunk_bytes,
    }
}
