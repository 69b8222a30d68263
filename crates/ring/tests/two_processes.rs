//! A driver and a program in two processes, over a real memory file and real doorbells. Each side
//! receives what the other sends, both sleep in between, and the end of the program does not
//! disturb the driver.
//!
//! The program is this test's own executable, started again with the test named `program` as its
//! only test.
#![cfg(not(any(miri, loom)))]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use netnice_ring::driver::{Client, Flow, Taken};
use netnice_ring::program::{self, Attachment, Chunk, Piece};
use netnice_ring::record::Record;
use netnice_ring::{Budget, Place, Shape, Status};
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
    client: Client,
    flows: Vec<Flow>,
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
        let mut client = Client::create(budget).unwrap();
        let flows = (0..FLOWS).map(|_| client.open(SHAPE).unwrap()).collect();
        Echo {
            client,
            flows,
            waiting: (0..FLOWS).map(|_| VecDeque::new()).collect(),
            echoed: 0,
        }
    }

    /// The descriptors for a program that is started later. It inherits them, because dup clears
    /// close-on-exec.
    fn fds(&self) -> Vec<OwnedFd> {
        let handles = self.client.handles();
        let all = [handles.memory, handles.to_driver, handles.to_program];
        all.iter().map(|fd| rustix::io::dup(fd).unwrap()).collect()
    }

    /// Starts the program.
    fn program(&self, what: &str) -> Child {
        let fds = self.fds();
        let numbers: Vec<String> = fds.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
        let places = self
            .flows
            .iter()
            .map(|flow| flow.place().offset.to_string());
        let plan: Vec<String> = numbers.into_iter().chain(places).collect();
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "program", "--nocapture", "--test-threads=1"])
            .env(PLAN, format!("{what} {}", plan.join(" ")))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Sleeps until the program sends a notification.
    fn sleep(&mut self, longest: Duration) {
        if self.client.doze() {
            let timeout = Timespec {
                tv_sec: longest.as_secs() as i64,
                tv_nsec: longest.subsec_nanos().into(),
            };
            let mut fds = [PollFd::from_borrowed_fd(self.client.bell(), PollFlags::IN)];
            poll(&mut fds, Some(&timeout)).unwrap();
        }
        let heard = self.client.hear();
        assert_eq!(heard.unasked, 0, "the program keeps to the rules");
    }

    fn turn(&mut self) {
        let mut slots = Vec::new();
        self.client.take_notices(|slot| slots.push(slot as usize));
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
                flow.give_back(record, Status::DONE, 1);
                flow.deliver(empty, bytes, Status::DONE, 2);
                self.echoed += 1;
            }
            flow.invariants();
            moved |= flow.publish();
        }
        if moved {
            self.client.ring();
        }
    }
}

#[test]
fn every_packet_comes_back() {
    let mut echo = Echo::new();
    let mut child = echo.program("all");
    let begin = Instant::now();
    while echo.echoed < FLOWS * PACKETS {
        echo.sleep(Duration::from_millis(200));
        echo.turn();
        assert!(begin.elapsed() < Duration::from_secs(60), "stuck");
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none_or(|status| status.success()), "{ended:?}");
    }
    assert!(child.wait().unwrap().success());
    // At the end the driver still owns the chunks that the program did not get back. Here the
    // program collected all.
    for flow in &echo.flows {
        let balance = flow.balance();
        assert_eq!(balance.in_use + balance.free, balance.total);
    }
}

#[test]
fn a_program_in_c_needs_nothing_but_the_specification() {
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
    let place = echo.flows[2].place();
    let mut child = Command::new(program)
        .args(fds.iter().map(|fd| fd.as_raw_fd().to_string()))
        .args([place.offset, place.slot.into(), PACKETS.into()].map(|number| number.to_string()))
        .spawn()
        .unwrap();
    drop(fds);
    let begin = Instant::now();
    let ended = loop {
        echo.sleep(Duration::from_millis(50));
        echo.turn();
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "stuck");
    };
    assert!(ended.success(), "{ended:?}");
    assert_eq!(echo.echoed, PACKETS);
}

#[test]
fn a_killed_program_is_no_event_for_the_driver() {
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    for round in 0..10 {
        let mut echo = Echo::new();
        let mut child = echo.program("for ever");
        let begin = Instant::now();
        while echo.echoed < 50 * (round + 1) {
            echo.sleep(Duration::from_millis(200));
            echo.turn();
            assert!(begin.elapsed() < Duration::from_secs(60), "stuck");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The program was killed in any state.
        echo.turn();
        for slot in 0..FLOWS as usize {
            let flow = echo.flows.remove(0);
            let held: usize = echo.waiting[slot].iter().map(|one| one.pairs().len()).sum();
            assert_eq!(echo.client.close(flow).in_use as usize, held);
        }
    }
    // The other test of this process opens descriptors too.
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
    let mut flows: Vec<Talk> = (0..FLOWS)
        .map(|slot| {
            let place = Place {
                slot,
                offset: numbers[3 + slot as usize],
                shape: SHAPE,
            };
            Talk::new(driver.flow(place).unwrap())
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
            driver.ring();
        }
        if ends && flows.iter().all(|flow| flow.received == PACKETS) {
            break;
        }
        assert!(driver.wait(Some(Duration::from_secs(20))).unwrap(), "stuck");
        driver.take_notices(|_| {});
    }
}

struct Talk {
    flow: program::Flow,
    sent: u32,
    received: u32,
}

impl Talk {
    fn new(mut flow: program::Flow) -> Talk {
        for _ in 0..24 {
            let chunk = flow.chunk().unwrap();
            flow.prime(&[whole(chunk)]).unwrap();
        }
        Talk {
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
