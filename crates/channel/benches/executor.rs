//! What the handlers of channels cost a packet: `cargo bench -p netnice-channel --bench executor`.
//!
//! An executor sends messages of all its channels in turn into memory, in one thread, without a
//! flow. The time is from the offer of a message to its last packet, and includes the gate, the
//! queues, the scheduler's choice, the header and the copy of the payload. The figures are medians
//! of [`RUNS`] runs, in ns for each packet.
//!
//! A decision of the executor is what a preemption point costs: the time for a packet of long
//! messages with a preemption point after each packet, less that with one after each message.

#[path = "../../core/benches/scheduler/clock.rs"]
mod clock;

use std::num::NonZeroU32;
use std::time::Instant;

use netnice_channel::{
    ChannelClass, ChannelId, ChannelOptions, Executor, ExecutorSettings, HandlerId, OutgoingPacket,
    PacketHeader, Step, Transmit,
};
use netnice_core::admission::timing::Processor;
use netnice_core::contract::{Channel, MessageRate, Overload};
use netnice_core::sched::EarlyOrder;
use netnice_core::units::{self, Bytes, Nanos};

const RUNS: usize = 9;
const PART: u64 = 1_400;
/// Packets between two preemption points.
const BLOCK: u32 = 4;
/// Packets of a long message.
const LONG: u64 = 44;

fn main() {
    let quick = std::env::args().any(|word| word == "--quick");
    let packets = if quick { 20_000 } else { 400_000 };
    println!("Handlers, ns per packet: median (least to most of {RUNS} runs)");
    for channels in [1, 16, 256] {
        for (parts, bytes) in [(1, 64), (1, PART), (44, PART)] {
            let runs = (0..RUNS).map(|_| run(channels, (parts, bytes), BLOCK, packets));
            let [least, middle, most] = sorted(runs);
            println!(
                "{channels:>3} channels, messages of {parts:>2} packets of {bytes:>4} bytes: \
                 {middle:.0} ({least:.0} to {most:.0})"
            );
        }
    }
    let per_nano = clock::cycles_per_nano();
    println!("A decision: median (least to most of {RUNS} pairs)");
    for channels in [1, 16, 256] {
        let pairs = (0..RUNS).map(|_| {
            let with = run(channels, (LONG, 64), 1, packets);
            let without = run(channels, (LONG, 64), LONG as u32, packets);
            (with - without) * LONG as f64 / (LONG - 1) as f64
        });
        let [least, middle, most] = sorted(pairs);
        let cycles = per_nano.map_or(String::new(), |per_nano| {
            format!(", {:.0} cycles", middle * per_nano)
        });
        println!("{channels:>3} channels: {middle:.0} ns ({least:.0} to {most:.0}){cycles}");
    }
}

/// The least, the middle and the greatest value.
fn sorted(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [
        values[0],
        values[values.len() / 2],
        values[values.len() - 1],
    ]
}

struct Memory(Vec<u8>);

impl Transmit for Memory {
    fn buffer(&mut self, _: HandlerId, _: usize) -> Option<&mut [u8]> {
        Some(&mut self.0)
    }

    fn submit(&mut self, packet: OutgoingPacket) {
        std::hint::black_box(&self.0[..packet.length]);
    }
}

fn run(channels: usize, (parts, bytes): (u64, u64), block: u32, packets: u64) -> f64 {
    let largest = PART + PacketHeader::LENGTH as u64;
    let settings = ExecutorSettings {
        processor: Processor {
            switch: Nanos(0),
            cache_miss: Nanos(0),
            first: Nanos(100),
            later: Nanos(100),
            link_scheduling: Nanos(0),
            block: NonZeroU32::new(block).expect("above zero"),
            largest: Bytes(largest),
            leftover: Nanos(0),
        },
        waking: Nanos(0),
        horizon: Nanos(0),
        early: EarlyOrder::default(),
    };
    let mut now = units::Instant(1_000_000_000);
    let mut executor = Executor::<Vec<u8>, Vec<u8>>::new(settings).expect("valid");
    let handlers: Vec<HandlerId> = (0..channels)
        .map(|number| {
            let rate = MessageRate::new(1_000).expect("in range");
            let mmax = Bytes(parts * bytes);
            let channel = Channel::new(mmax, rate, 2, Nanos::from_millis(50));
            let channel = channel.and_then(|one| one.with_processing(Nanos::from_millis(20)));
            let channel = channel.expect("valid").with_overload(Overload::Decay);
            let id = ChannelId((number as u128).to_be_bytes());
            let options = ChannelOptions::new(id, ChannelClass::RealTime(channel));
            executor.open_sender(options, now).expect("room")
        })
        .collect();
    let mut memory = Memory(vec![0; largest as usize]);
    let rounds = (packets / parts / channels as u64).max(1);
    let mut took = 0;
    for _ in 0..rounds {
        // All channels have a message, and all logical arrivals are there.
        now.0 += 2_000_000;
        let bodies: Vec<Vec<u8>> = handlers
            .iter()
            .map(|_| vec![1; (parts * bytes) as usize])
            .collect();
        let before = Instant::now();
        for (handler, body) in handlers.iter().zip(bodies) {
            assert!(executor.send(*handler, body, now).is_ok(), "there is room");
        }
        while let Step::Ran(ran) = executor.step(now, &mut memory) {
            let _ = executor.handle_sent(ran.handler, 1, now);
        }
        took += before.elapsed().as_nanos();
    }
    took as f64 / (rounds * parts * channels as u64) as f64
}
