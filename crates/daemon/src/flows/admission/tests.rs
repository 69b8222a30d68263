//! Tests that a driver's scheduler keeps the promises that admission granted, and that admission
//! counts the overhead of the wire.

use netnice_core::link::{Capacity, CapacitySource};
use netnice_core::sched::{Next, Packet, Scheduler};
use netnice_core::units::Instant;

use super::*;

/// A link of 100 Mbit/s whose wire adds so many bytes to each packet.
fn capacity(overhead: u64) -> LinkCapacity {
    let link = Link {
        name: "eth0".parse().expect("a name"),
        up: Some(Capacity {
            rate: mbit(100),
            source: CapacitySource::Operator,
        }),
        down: None,
        overhead: Bytes(overhead),
    };
    LinkCapacity::on(&link, Amount(0), 1500).expect("room")
}

fn mbit(n: u64) -> Rate {
    Rate::new(n * 1_000_000).expect("a rate")
}

fn contracts(texts: &[&str]) -> Vec<Contract> {
    let contracts = texts.iter().map(|text| text.parse().expect("a contract"));
    contracts.collect()
}

/// Simulates a driver of this rate: the bit/s of each flow, with an endless queue of packets of one
/// size.
fn played(capacity: &LinkCapacity, rate: Rate, flows: &[(Contract, u64)]) -> Vec<f64> {
    let wire = Wire {
        rate,
        overhead: capacity.overhead,
        ahead: Nanos(SEND_AHEAD_NS),
        longest: capacity.longest,
        ..Wire::new(rate)
    };
    let mut scheduler = Scheduler::new(wire).expect("a link");
    let mut bytes = vec![0_u64; flows.len()];
    for (contract, size) in flows {
        let service = Service::of(contract).expect("a service");
        let id = scheduler.insert(service, Instant(0)).expect("room");
        let head = Packet::new(Bytes(*size));
        scheduler.handle_head(id, head, Instant(0)).expect("a head");
    }
    let mut now = Instant(0);
    while now < Instant(SECONDS * 1_000_000_000) {
        let behind =
            |id: netnice_core::sched::FlowId| Some(Packet::new(Bytes(flows[id.index()].1)));
        match scheduler.next(now, behind) {
            Next::Send(departure) => bytes[departure.flow.index()] += departure.length.0,
            Next::Wait(at) => now = at.max(now),
            Next::Idle => panic!("nothing to send"),
        }
    }
    let rate = |bytes: u64| bytes as f64 * 8.0 / SECONDS as f64;
    bytes.into_iter().map(rate).collect()
}

/// `min 70mbit` of 60-byte frames takes 98 % of a link that adds 24 bytes to each: 25 of 100 Mbit/s
/// cannot be promised to another flow.
#[test]
fn the_overhead_is_counted_for_the_shortest_packets() {
    let both = contracts(&["min 70mbit", "min 25mbit"]);
    assert!(capacity(0).need(&both).is_ok());
    assert!(matches!(
        capacity(24).need(&both),
        Err(TimingFault::Share { .. })
    ));
    // 62 of 98 with 66 for every 42 bytes.
    assert!(capacity(24).need(&contracts(&["min 62mbit"])).is_ok());
    assert!(capacity(24).need(&contracts(&["min 63mbit"])).is_err());
    let cell = contracts(&["cell pcr=63mbit,cdvt=10ms"]);
    assert!(capacity(24).need(&cell).is_err());
    let slower = capacity(24)
        .admit(&[], &cell[0], None)
        .map_err(|misfit| misfit.alternative);
    assert!(
        matches!(slower, Err(Some(Alternative::Rate(rate))) if rate < mbit(63)),
        "{slower:?}"
    );
}

#[test]
fn admitted_promises_are_kept_for_all_packet_sizes() {
    for (overhead, texts) in [
        (0, ["min 65mbit", "min 25mbit", "weight 100"]),
        (24, ["min 40mbit", "min 20mbit", "weight 100"]),
        (24, ["min 40mbit", "cell pcr=20mbit,cdvt=5ms", "weight 100"]),
        (400, ["min 6mbit", "min 3mbit", "weight 100"]),
    ] {
        let (capacity, held) = (capacity(overhead), contracts(&texts));
        let need = capacity.need(&held).expect("admitted");
        for sizes in [
            [MIN_PACKET_BYTES, 1514],
            [1514, MIN_PACKET_BYTES],
            [60, 60],
            [700, 700],
        ] {
            let sizes = sizes.into_iter().chain([1514]);
            let flows: Vec<_> = held.iter().cloned().zip(sizes).collect();
            let got = played(&capacity, need, &flows);
            for (at, got) in got.iter().enumerate().take(2) {
                let promised = match promise_of(&held[at]) {
                    Some(PromiseKind::Rate(min)) => min,
                    Some(PromiseKind::Guarantee(Guarantee::Cell(cell), _)) => cell.pcr(),
                    _ => panic!("not of this test"),
                };
                let least = promised.bits_per_second() as f64 * 0.99;
                assert!(*got >= least, "{texts:?} + {overhead}, {flows:?}: {got}");
            }
        }
    }
}

const SECONDS: u64 = 1;
