//! The cost of a record: `cargo bench -p netnice-ring --bench ring`.
//!
//! The benchmark runs one program and one driver over a real memory file with real doorbells. Every
//! figure is the median of [`RUNS`] runs, with the minimum and the maximum beside it. `--quick`
//! measures a tenth of the records.
//!
//! *One thread* runs both sides alternately, so it measures only the work itself: submitting,
//! validating, copying, giving back and collecting. The other measurements run each side in its own
//! thread, on its own processor if there are two. In *one way* the program's thread sends as fast
//! as the driver's thread takes. A *round trip* is a packet that the driver copies back into a
//! primed buffer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netnice_ring::driver::{DriverRings, ProgramMemory, Taken};
use netnice_ring::program::{Attachment, Chunk, Piece, ProgramRings};
use netnice_ring::{Budget, Shape, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const SHAPE: Shape = Shape {
    chunk_bytes: 2048,
    chunks: 512,
    transmit_entries: 512,
    receive_entries: 512,
};
const RUNS: usize = 7;

fn main() {
    let quick = std::env::args().any(|word| word == "--quick");
    let scale = if quick { 10 } else { 1 };
    println!("ring, ns per record: median (least to most of {RUNS} runs)");
    for bytes in [64, 1500] {
        for batch in [1, 8, 32] {
            show(&format!("one thread, {bytes} bytes, batch {batch}"), || {
                one_thread(bytes, batch, 1_000_000 / scale)
            });
        }
    }
    for batch in [1, 8, 32] {
        show(
            &format!("one way, spinning, 64 bytes, batch {batch}"),
            || one_way(batch, 1_000_000 / scale, false),
        );
    }
    for batch in [1, 32] {
        show(
            &format!("one way, doorbells, 64 bytes, batch {batch}"),
            || one_way(batch, 300_000 / scale, true),
        );
    }
    show("round trip, spinning, 64 bytes", || {
        round_trip(200_000 / scale, false)
    });
    show("round trip, doorbells, 64 bytes", || {
        round_trip(50_000 / scale, true)
    });
}

fn show(what: &str, mut run: impl FnMut() -> f64) {
    let mut runs: Vec<f64> = (0..RUNS).map(|_| run()).collect();
    runs.sort_by(f64::total_cmp);
    println!(
        "{what:>44} {:>9.1} ({:.1} to {:.1})",
        runs[RUNS / 2],
        runs[0],
        runs[RUNS - 1]
    );
}

/// Both sides.
struct Pair {
    memory: ProgramMemory,
    here: DriverRings,
    program: Attachment,
    there: ProgramRings,
}

fn pair() -> Pair {
    let budget = Budget {
        flows: 1,
        bytes: SHAPE.plan().expect("a shape").bytes(),
    };
    let mut memory = ProgramMemory::create(budget).expect("a memory file");
    let here = memory.open(SHAPE).expect("a flow");
    let program = memory.handles().attach().expect("an attachment");
    let there = program.flow(here.location()).expect("the flow");
    Pair {
        memory,
        here,
        program,
        there,
    }
}

fn submit(flow: &mut ProgramRings, length: u32) -> bool {
    let Some(chunk) = flow.chunk() else {
        return false;
    };
    let piece = Piece {
        chunk,
        start: 0,
        length,
    };
    let done = flow.submit(&[piece], false).is_ok();
    if !done {
        flow.free(chunk).expect("held");
    }
    done
}

fn collect(flow: &mut ProgramRings) -> usize {
    let mut count = 0;
    while let Some(record) = flow.reclaim().expect("a driver that keeps to the rules") {
        flow.free_all(&record).expect("held");
        count += 1;
    }
    count
}

/// Takes, copies and gives back at most `most` records. Returns their number.
fn drain(flow: &mut DriverRings, frame: &mut [u8], most: usize) -> usize {
    for count in 0..most {
        match flow.take().expect("a program that keeps to the rules") {
            Taken::Record(record) => {
                flow.read(&record, frame);
                flow.give_back(&record, Status::DONE, 1);
            }
            _ => return count,
        }
    }
    most
}

fn one_thread(bytes: u32, batch: usize, records: usize) -> f64 {
    let mut pair = pair();
    let mut frame = [0; 2048];
    let begin = Instant::now();
    for _ in 0..records / batch {
        for _ in 0..batch {
            assert!(submit(&mut pair.there, bytes));
        }
        pair.there.publish();
        pair.program.notify();
        assert_eq!(drain(&mut pair.here, &mut frame, batch), batch);
        std::hint::black_box(&frame);
        pair.here.publish();
        pair.memory.notify();
        assert_eq!(collect(&mut pair.there), batch);
    }
    begin.elapsed().as_nanos() as f64 / records as f64
}

/// Waits up to 50 ms for a notification, like a driver that has no other work.
fn sleep(memory: &mut ProgramMemory) {
    if memory.prepare_sleep() {
        let longest = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        let mut fds = [PollFd::from_borrowed_fd(memory.doorbell(), PollFlags::IN)];
        let _ = poll(&mut fds, Some(&longest));
    }
    memory.drain_doorbell();
    memory.take_notices(|_| {});
}

fn one_way(batch: usize, records: usize, doorbells: bool) -> f64 {
    let Pair {
        mut memory,
        mut here,
        program,
        mut there,
    } = pair();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(0);
            let (mut frame, mut taken) = ([0; 2048], 0);
            while taken < records {
                let now = drain(&mut here, &mut frame, 32);
                taken += now;
                if here.publish() {
                    memory.notify();
                } else if now == 0 && doorbells {
                    sleep(&mut memory);
                } else {
                    std::hint::spin_loop();
                }
            }
        });
        pin(1);
        let (mut sent, mut back) = (0, 0);
        while back < records {
            let wanted = batch.min(records - sent);
            let now = (0..wanted).take_while(|_| submit(&mut there, 64)).count();
            sent += now;
            let collected = collect(&mut there);
            back += collected;
            if there.publish() {
                program.notify();
            } else if doorbells {
                program
                    .wait(Some(Duration::from_millis(50)))
                    .expect("a doorbell");
                program.take_notices(|_| {});
            } else {
                std::hint::spin_loop();
            }
        }
    });
    begin.elapsed().as_nanos() as f64 / records as f64
}

fn round_trip(trips: usize, doorbells: bool) -> f64 {
    let Pair {
        mut memory,
        mut here,
        program,
        mut there,
    } = pair();
    let end = AtomicBool::new(false);
    let over = &end;
    let mut elapsed = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(0);
            let mut frame = [0; 2048];
            while !over.load(Ordering::Relaxed) {
                let Ok(Taken::Record(record)) = here.take() else {
                    match doorbells {
                        true => sleep(&mut memory),
                        false => std::hint::spin_loop(),
                    }
                    continue;
                };
                let bytes = here.read(&record, &mut frame);
                here.give_back(&record, Status::DONE, 1);
                let Ok(Taken::Record(empty)) = here.take_empty() else {
                    panic!("a buffer is primed before each trip");
                };
                here.write(&empty, 0, &frame[..bytes]);
                here.deliver(empty, bytes, Status::DONE, 1);
                here.publish();
                memory.notify();
            }
        });
        pin(1);
        let mut prime = there.chunk().expect("a chunk");
        let begin = Instant::now();
        for _ in 0..trips {
            there.prime(&[whole(prime)]).expect("room");
            assert!(submit(&mut there, 64));
            there.publish();
            program.notify();
            let record = loop {
                if let Some(record) = there.receive().expect("an open flow") {
                    break record;
                }
                if doorbells {
                    program
                        .wait(Some(Duration::from_millis(50)))
                        .expect("a doorbell");
                    program.take_notices(|_| {});
                } else {
                    std::hint::spin_loop();
                }
            };
            prime = there.piece(&record.pairs()[0]).chunk;
            collect(&mut there);
        }
        elapsed = begin.elapsed();
        over.store(true, Ordering::Relaxed);
        program.notify();
    });
    elapsed.as_nanos() as f64 / trips as f64
}

fn whole(chunk: Chunk) -> Piece {
    Piece {
        chunk,
        start: 0,
        length: SHAPE.chunk_bytes,
    }
}

/// Pins the calling thread to one processor. If there is only one, nothing changes.
fn pin(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}
