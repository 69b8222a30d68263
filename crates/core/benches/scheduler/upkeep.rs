//! Measures the cost of single calls that change a running link: inserting, changing and replacing
//! flows, and setting the parameters of the link.
//!
//! The driver makes these calls between two packets. Without reserved memory, inserting a flow may
//! move all others in memory. With reserved memory, the system may have to map a page at its first
//! touch, and mapping a page of 2 MiB takes longer.

use std::hint::black_box;

use netnice_core::contract;
use netnice_core::sched::{Class, FlowId, Packet, Scheduler, Service};
use netnice_core::units::{Bytes, Instant, Nanos};

use crate::load::{LENGTH, Mix, Random, TOTAL, dual, filled, wire};
use crate::measure::{Sample, Timer};

/// Prints the table.
pub fn table(timer: &Timer) {
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
        ("set wire", Upkeep::SetWire, 1_000),
    ] {
        let Sample { sorted } = timer.calls(warm, || work(what));
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

/// A change of a link.
#[derive(Clone, Copy)]
enum Upkeep {
    /// Inserts a flow, with or without reserved memory.
    Insert {
        /// Whether memory is reserved.
        room: bool,
    },
    /// Changes the contract of a waiting flow.
    Change,
    /// Removes a waiting flow and inserts another one.
    Replace,
    /// Sets the parameters of the link, here to the same values, with eight servers to update.
    SetWire,
}

/// Changes a link the given number of times. The link has eight servers, and 65,536 backlogged
/// flows unless `what` is `Insert`. For `Change` and `Replace` it has 65,536 cells more, and the
/// calls change these.
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
        // Runs until all have sent and wait for their time.
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
                Upkeep::SetWire => link.set_wire(wire()).unwrap(),
            }
        }
    }
}

const FLOWS: usize = 65_536;
