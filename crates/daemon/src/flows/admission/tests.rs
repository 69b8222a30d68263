//! Admission, tested against a driver's scheduler.

use netnice_core::link::{Capacity, CapacitySource};
use netnice_core::sched::{Next, Packet, Scheduler};
use netnice_core::units::Instant;

use super::*;

/// A link of 100 Mbit/s whose wire adds so many bytes to each packet.
fn room(overhead: u64) -> Room {
    let link = Link {
        name: "eth0".parse().expect("a name"),
        up: Some(Capacity {
            rate: mbit(100),
            source: CapacitySource::Operator,
        }),
        down: None,
        overhead: Bytes(overhead),
    };
    Room::on(&link, Amount(0), 1500).expect("room")
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
fn played(room: &Room, rate: Rate, flows: &[(Contract, u64)]) -> Vec<f64> {
    let wire = Wire {
        rate,
        overhead: room.overhead,
        ahead: Nanos(AHEAD_NS),
        longest: room.longest,
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
fn what_the_wire_adds_is_counted_at_its_most() {
    let both = contracts(&["min 70mbit", "min 25mbit"]);
    assert!(room(0).need(&both).is_ok());
    assert!(matches!(
        room(24).need(&both),
        Err(TimingFault::Share { .. })
    ));
    // 62 of 98 with 66 for every 42 bytes.
    assert!(room(24).need(&contracts(&["min 62mbit"])).is_ok());
    assert!(room(24).need(&contracts(&["min 63mbit"])).is_err());
    let cell = contracts(&["cell pcr=63mbit,cdvt=10ms"]);
    assert!(room(24).need(&cell).is_err());
    let slower = room(24)
        .admit(&[], &cell[0], None)
        .map_err(|misfit| misfit.alternative);
    assert!(
        matches!(slower, Err(Some(Alternative::Rate(rate))) if rate < mbit(63)),
        "{slower:?}"
    );
}

#[test]
fn what_is_admitted_is_kept_whatever_the_sizes() {
    for (overhead, texts) in [
        (0, ["min 65mbit", "min 25mbit", "weight 100"]),
        (24, ["min 40mbit", "min 20mbit", "weight 100"]),
        (24, ["min 40mbit", "cell pcr=20mbit,cdvt=5ms", "weight 100"]),
        (400, ["min 6mbit", "min 3mbit", "weight 100"]),
    ] {
        let (room, held) = (room(overhead), contracts(&texts));
        let need = room.need(&held).expect("admitted");
        for sizes in [[SHORTEST, 1514], [1514, SHORTEST], [60, 60], [700, 700]] {
            let sizes = sizes.into_iter().chain([1514]);
            let flows: Vec<_> = held.iter().cloned().zip(sizes).collect();
            let got = played(&room, need, &flows);
            for (at, got) in got.iter().enumerate().take(2) {
                let promised = match promised(&held[at]) {
                    Some(Asked::Rate(min)) => min,
                    Some(Asked::Guarantee(Guarantee::Cell(cell), _)) => cell.pcr(),
                    _ => panic!("not of this test"),
                };
                let least = promised.bits_per_second() as f64 * 0.99;
                assert!(*got >= least, "{texts:?} + {overhead}, {flows:?}: {got}");
            }
        }
    }
}

const SECONDS: u64 = 1;
