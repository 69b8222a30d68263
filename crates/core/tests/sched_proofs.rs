//! The scheduler's promises over many packets. Each test has a short form, and a long form that is
//! ignored by default: `cargo test --release -p netnice-core --test sched_proofs -- --ignored`.

use netnice_core::contract::{self, Bucket, Sustained};
use netnice_core::policer::{Observation, Policer};
use netnice_core::sched::{Class, FlowId, Packet, Scheduler, Service, Wire};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}

const LINK: u64 = 10_000_000_000;

/// A random contract of about `bits` per second at its peak, with a CDVT for more than one packet
/// of each flow.
fn contract(random: &mut Random, bits: u64, cdvt_floor: u64) -> contract::Cell {
    let pcr = Rate::new((bits * (50 + random.below(100)) / 100).max(1000)).unwrap();
    let cdvt = Nanos(cdvt_floor + random.below(cdvt_floor));
    let bucket = match random.below(3) {
        0 => return contract::Cell::new(pcr, cdvt, None).unwrap(),
        1 => Bucket::Single,
        _ => Bucket::Dual,
    };
    let sustained = Sustained {
        scr: pcr.portion(1, 1 + random.below(9)).unwrap(),
        mbs: Bytes(1500 + random.below(30_000)),
        bucket,
    };
    contract::Cell::new(pcr, cdvt, Some(sustained)).unwrap()
}

/// Flows whose peaks fit the link together, always backlogged: every packet conforms, and each flow
/// gets its rate.
fn conformance(flows: u64, packets: u64) {
    let mut random = Random(flows + packets);
    let mut link = Scheduler::new(Wire::new(Rate::new(LINK).unwrap())).unwrap();
    let contracts: Vec<contract::Cell> = (0..flows)
        .map(|_| contract(&mut random, LINK / flows * 9 / 10, flows * 1_500))
        .collect();
    let mut policers: Vec<Policer> = contracts.iter().map(|one| Policer::cell(*one)).collect();
    let mut sent = vec![0_u64; flows as usize];
    // The greatest lateness of a flow's packets in the second half.
    let mut late = vec![0_u64; flows as usize];
    for one in &contracts {
        let flow = link.insert(Service::Cell(*one), Instant(0)).unwrap();
        let length = Bytes(64 + random.below(1437));
        link.handle_head(flow, Packet::new(length), Instant(0))
            .unwrap();
    }
    let (mut now, mut count) = (Instant(0), 0);
    while count < packets {
        let next = Packet::new(Bytes(64 + random.below(1437)));
        let Some(one) = link.poll(now, |_| Some(next)) else {
            now = link.poll_timeout().unwrap();
            continue;
        };
        let seen = Observation {
            at: one.start,
            length: one.length,
        };
        let flow = one.flow.index();
        policers[flow].handle(seen).unwrap();
        sent[flow] += one.length.0;
        let behind = one.start.0 - one.eligible.0;
        // A later packet would cost rate.
        assert!(behind < contracts[flow].cdvt().0, "{behind} ns late");
        if count > packets / 2 {
            late[flow] = late[flow].max(behind);
        }
        count += 1;
    }
    for ((bytes, late), one) in sent.iter().zip(&late).zip(&contracts) {
        let rate = one.sustained().map_or(one.pcr(), |s| s.scr);
        // The next packet is late too, and its bucket is up to 1/32 of CDVT wide. Apart from that
        // the deviation is one packet, also of a dual bucket, whose pause ends when the time covers
        // all sent bytes.
        let resolution = one.cdvt().0 / 32 + 1000;
        let due = rate.bytes_in(Nanos(now.0 - late - resolution)).0;
        assert!(bytes + 1500 >= due, "{bytes} of {due} with {one:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "200,000 packets")]
fn a_thousand_flows_conform() {
    conformance(1_000, 200_000);
}

#[test]
#[ignore = "10^8 packets"]
fn sixty_five_thousand_flows_conform() {
    conformance(65_536, 100_000_000);
}

/// Steady overload: members ask for 1 : 2 : 4, twice the link in all, below a class that asks for
/// 20 %.
fn overload(packets: u64) {
    let mut link = Scheduler::new(Wire::new(Rate::new(LINK).unwrap())).unwrap();
    let now = Instant(0);
    let period = Nanos::from_millis(1);
    let whole = contract::Slice::new(period, period, false).unwrap();
    let least = Class {
        min: Rate::new(LINK / 100),
    };
    let classes = [Class::default(), Class::default(), least];
    let server = link.insert_server(whole, &classes, now).unwrap();
    let mut member = |class: usize, percent: u64| -> FlowId {
        let rate = Rate::new(LINK * percent / 100).unwrap();
        let contract = contract::Cell::new(rate, Nanos::from_micros(200), None).unwrap();
        let flow = link.insert_member(server, class, contract, now).unwrap();
        link.handle_head(flow, Packet::new(Bytes(1000)), now)
            .unwrap();
        flow
    };
    let above = member(0, 20);
    let middle = [25, 25, 50, 100].map(|percent| member(1, percent));
    let below = member(2, 50);
    let mut sent = [0_u64; 8];
    let (mut now, mut count, half) = (now, 0, packets / 2);
    while count < packets {
        match link.poll(now, |_| Some(Packet::new(Bytes(1000)))) {
            Some(one) => {
                count += 1;
                // The second half: the ratio does not drift with time.
                if count > half {
                    sent[one.flow.index()] += 1;
                }
            }
            None => now = link.poll_timeout().unwrap(),
        }
    }
    let share = |flow: FlowId| sent[flow.index()] as f64 / (packets - half) as f64;
    assert!((share(above) - 0.20).abs() < 0.002, "{}", share(above));
    assert!((share(below) - 0.01).abs() < 0.0002, "{}", share(below));
    for (flow, part) in middle.into_iter().zip([1.0, 1.0, 2.0, 4.0]) {
        let due = 0.79 * part / 8.0;
        assert!(
            (share(flow) - due).abs() < due * 0.02,
            "{} of {due}",
            share(flow)
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "200,000 packets")]
fn overload_keeps_its_ratios() {
    overload(200_000);
}

#[test]
#[ignore = "10^9 packets"]
fn overload_keeps_its_ratios_for_ever() {
    overload(1_000_000_000);
}
