//! The cost of a datagram for its program: `cargo bench -p netnice-stack --bench udp`.
//!
//! Two sockets run in one thread. Between them the benchmark delivers their frames over the ring.
//! The benchmark measures only the sockets' part. *send* is the time from the payload to the
//! published record, and includes taking back returned buffers. *receive* is the time from the
//! published record to the payload, and includes priming the buffer again. The figures are medians
//! of [`RUNS`] runs.

use std::time::{Duration, Instant};

use netnice_ring::driver::{DriverRings, ProgramMemory, Taken};
use netnice_ring::{Budget, Shape, Status};
use netnice_stack::udp::Checks;
use netnice_stack::{FlowAddress, Program, Socket};

const SHAPE: Shape = Shape {
    chunk_bytes: 2048,
    chunks: 256,
    transmit_entries: 256,
    receive_entries: 256,
};
const RUNS: usize = 9;
const BATCH: usize = 32;

fn main() {
    let quick = std::env::args().any(|word| word == "--quick");
    let datagrams = if quick { 20_000 } else { 200_000 };
    println!("UDP, ns per datagram, batches of {BATCH}: median (least to most of {RUNS} runs)");
    for six in [false, true] {
        for bytes in [64, 1400] {
            for (checks, in_place) in [
                (Checks::Verify, false),
                (Checks::Verify, true),
                (Checks::Trust, true),
            ] {
                let runs: Vec<_> = (0..RUNS)
                    .map(|_| run(six, bytes, checks, in_place, datagrams))
                    .collect();
                let family = if six { "IPv6" } else { "IPv4" };
                let how = if in_place { "in place" } else { "copied" };
                println!(
                    "{family}, {bytes:>4} bytes, {how:>8}, {checks:?}: send {}, receive {}",
                    shown(runs.iter().map(|(send, _)| *send)),
                    shown(runs.iter().map(|(_, receive)| *receive))
                );
            }
        }
    }
}

fn shown(runs: impl Iterator<Item = f64>) -> String {
    let mut runs: Vec<f64> = runs.collect();
    runs.sort_by(f64::total_cmp);
    let (least, middle, most) = (runs[0], runs[runs.len() / 2], runs[runs.len() - 1]);
    format!("{middle:.0} ({least:.0} to {most:.0})")
}

fn run(six: bool, bytes: usize, checks: Checks, in_place: bool, datagrams: usize) -> (f64, f64) {
    let mut wire = Wire::new();
    let (mut here, mut there) = (wire.socket(0, six, checks), wire.socket(1, six, checks));
    let payload = vec![0x5a; bytes];
    let mut read = vec![0; 2048];
    let (mut sending, mut receiving) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..datagrams / BATCH {
        let begin = Instant::now();
        for _ in 0..BATCH {
            if in_place {
                let packet = here.packet().expect("a buffer");
                // A program that writes in place writes something: here one byte in each cache
                // line.
                let payload = here.payload_mut(&packet).expect("ours");
                payload[..bytes]
                    .iter_mut()
                    .step_by(64)
                    .for_each(|byte| *byte = 1);
                here.queue(packet, bytes)
                    .map_err(|(_, error)| error)
                    .expect("room");
            } else {
                here.try_send(&payload).expect("a buffer");
            }
        }
        here.flush();
        sending += begin.elapsed();
        wire.deliver_all();
        let begin = Instant::now();
        for _ in 0..BATCH {
            if in_place {
                let datagram = there.receive().expect("a datagram");
                std::hint::black_box(there.payload(&datagram).expect("ours")[0]);
                there.release(datagram).expect("ours");
            } else {
                there.try_recv(&mut read).expect("a datagram");
            }
        }
        there.flush();
        receiving += begin.elapsed();
    }
    let each = |time: Duration| time.as_nanos() as f64 / (datagrams / BATCH * BATCH) as f64;
    (each(sending), each(receiving))
}

/// The driver's sides of flow 0, which sends, and of flow 1, which receives.
struct Wire {
    _memory: ProgramMemory,
    flows: [DriverRings; 2],
    program: Program,
}

impl Wire {
    fn new() -> Wire {
        let budget = Budget {
            flows: 2,
            bytes: 2 * SHAPE.plan().expect("a shape").bytes(),
        };
        let mut memory = ProgramMemory::create(budget).expect("a memory file");
        let flows = [0, 1].map(|_| memory.open(SHAPE).expect("a flow"));
        let attachment = memory.handles().attach();
        Wire {
            program: Program::new(attachment.expect("an attachment")),
            _memory: memory,
            flows,
        }
    }

    fn socket(&self, flow: usize, six: bool, checks: Checks) -> Socket {
        let at = |host: usize| {
            let text = match six {
                false => format!("10.0.0.{}:{}", 1 + host, 4000 + host),
                true => format!("[fd00::{}]:{}", 1 + host, 4000 + host),
            };
            text.parse().expect("an address")
        };
        let address = FlowAddress {
            local: at(flow),
            remote: at(1 - flow),
            local_mac: [2; 6],
            next_hop: [4; 6],
            mtu: 1500,
            hops: 64,
        };
        let location = self.flows[flow].location();
        self.program
            .udp(location, &address, checks)
            .expect("a flow")
    }

    fn deliver_all(&mut self) {
        let [from, to] = &mut self.flows;
        let mut frame = [0; 2048];
        while let Ok(Taken::Record(record)) = from.take() {
            let bytes = from.read(&record, &mut frame);
            from.give_back(&record, Status::DONE, 1);
            let Ok(Taken::Record(empty)) = to.take_empty() else {
                panic!("more is primed than a batch");
            };
            to.write(&empty, 0, &frame[..bytes]);
            to.deliver(empty, bytes, Status::DONE, 1);
        }
        from.publish();
        to.publish();
    }
}
