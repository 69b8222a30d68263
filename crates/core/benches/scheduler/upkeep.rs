//! What is done to a running link beside sending: what one call costs, each measured for itself.
//!
//! The driver does these between two packets. Where no room was asked for, a flow more may move all others in memory; where it was, its
//! memory may be touched for the first time, which is the system's work: of a page of 2 MiB it is more at once.

use std::hint::black_box;

use netnice_core::contract;
use netnice_core::sched::{Class, FlowId, Packet, Scheduler, Service};
use netnice_core::units::{Bytes, Instant, Nanos};

use crate::load::{LENGTH, Mix, Random, TOTAL, dual, filled, wire};
use crate::measure::{Ruler, Sample};

/// Prints the table.
pub fn table(ruler: &Ruler) {
    println!(
        "\nupkeep of a link with {FLOWS} backlogged flows (inserting: into one without), per call"
    );
    println!(
        "{:>12} {:>8} {:>8} {:>8} {:>9}",
        "", "median", "p99", "p99.99", "p99.999"
    );
    for (name, what, warm) in [
        ("insert", Upkeep::Insert { room: false }, 0),
        ("with room", Upkeep::Insert { room: true }, 0),
        ("change", Upkeep::Change, 50_000),
        ("replace", Upkeep::Replace, 50_000),
        ("rewire", Upkeep::Rewire, 1_000),
    ] {
        let Sample { sorted } = ruler.calls(warm, || work(what));
        let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part) as usize].0;
        println!(
            "{name:>12} {:>8.0} {:>8.0} {:>8.0} {:>9.0}",
            at(0.5),
            at(0.99),
            at(0.9999),
            at(0.99999)
        );
    }
}

/// What is done to a link beside sending.
#[derive(Clone, Copy)]
enum Upkeep {
    /// One flow more, where no room was asked for, or where it was.
    Insert {
        /// Whether it was.
        room: bool,
    },
    /// Another contract for a flow that waits.
    Change,
    /// A flow that waits goes, and another one comes.
    Replace,
    /// Another rate of the link, on which there are eight servers too.
    Rewire,
}

/// Does it so many times to a link of 65,536 backlogged flows (inserting: to one of none).
fn work(what: Upkeep) -> impl FnMut(u32) {
    let mut now = Instant(0);
    let mut link = match what {
        Upkeep::Insert { room: true } => Scheduler::with_capacity(wire(), 1 << 20).unwrap(),
        Upkeep::Insert { room: false } => Scheduler::new(wire()).unwrap(),
        _ => filled(FLOWS, false, Mix::All, 60),
    };
    let period = Nanos::from_millis(10);
    for _ in 0..8 {
        let slice = contract::Slice::new(Nanos::from_micros(100), period, false).unwrap();
        link.insert_server(slice, &[Class::default()], now).unwrap();
    }
    let mut random = Random(13);
    let mut flows: Vec<FlowId> = Vec::new();
    if matches!(what, Upkeep::Change | Upkeep::Replace) {
        // Cells that come beside the others and wait.
        for _ in 0..FLOWS {
            let cell = Service::Cell(dual(TOTAL / FLOWS as u64 / 10, Some(&mut random)));
            let flow = link.insert(cell, now).unwrap();
            link.handle_head(flow, Packet::new(Bytes(LENGTH)), now)
                .unwrap();
            flows.push(flow);
        }
        // Until all have sent, and wait for their time.
        let mut left = 500_000;
        while left > 0 {
            match link.poll(now, |_| Some(Packet::new(Bytes(LENGTH)))) {
                Some(_) => left -= 1,
                None => now = link.poll_timeout().unwrap(),
            }
        }
    }
    move |times| {
        for _ in 0..times {
            let cell = Service::Cell(dual(TOTAL / FLOWS as u64 / 10, Some(&mut random)));
            let which = random.below(FLOWS as u64) as usize;
            match what {
                Upkeep::Insert { .. } => {
                    black_box(link.insert(cell, now).unwrap());
                }
                Upkeep::Change => link.change(flows[which], cell, now).unwrap(),
                Upkeep::Replace => {
                    link.remove(flows[which], now).unwrap();
                    flows[which] = link.insert(cell, now).unwrap();
                    link.handle_head(flows[which], Packet::new(Bytes(LENGTH)), now)
                        .unwrap();
                }
                Upkeep::Rewire => link.rewire(wire()).unwrap(),
            }
        }
    }
}

const FLOWS: usize = 65_536;
