//! Tests of the pacer: the times at which it wakes, and the flows that may send then.

use alloc::vec::Vec;

use super::simulation::*;
use crate::contract::{self, Bucket, Sustained};
use crate::sched::Pacer;
use crate::units::{Bytes, Instant, Rate};

/// With many flows of many rates, each wake-up has a packet, and no packet is late.
#[test]
fn every_wake_up_of_a_pacer_has_a_packet() {
    let mut pacer = Pacer::new();
    let mut sent = Vec::new();
    for kbit in 1..=60 {
        let contract = cell(Rate::new(kbit * 100_000).unwrap(), us(100));
        let flow = pacer.insert(contract).unwrap();
        pacer.handle_head(flow, Bytes(500), Instant(0)).unwrap();
        sent.push(0);
    }
    let mut now = Instant(0);
    for _ in 0..5_000 {
        let Some((flow, _)) = pacer.poll(now, |_| Some(Bytes(500))) else {
            let wake = pacer.poll_timeout().unwrap();
            assert!(wake > now, "woken for nothing at {now:?}");
            now = wake;
            continue;
        };
        // 4,000 bits at its rate, independent of the lateness of the packet before. A bucket is
        // later by at most 1/1024 of the wait or a microsecond.
        let rate = (flow.index() as u64 + 1) * 100_000;
        let due = sent[flow.index()] * 4_000_000_000_000 / rate;
        sent[flow.index()] += 1;
        let most = ((4_000_000_000_000 / rate) >> 10).max(1000) + 1;
        assert!(
            (due..=due + most).contains(&now.0),
            "{flow}: {due}, {now:?}"
        );
    }
}

/// A slow flow waits in one step if CDVT has room for a thousandth of the wait; else it waits in
/// several steps. It loses no rate in either case.
#[test]
fn a_pacer_examines_slow_tolerant_flows_once() {
    for (cdvt, at_once) in [(1, false), (50, false), (2_000, true), (100_000, true)] {
        let mut pacer = Pacer::new();
        // 500 bytes each 0.4 s.
        let contract = cell(Rate::new(10_000).unwrap(), us(cdvt));
        let flow = pacer.insert(contract).unwrap();
        pacer.handle_head(flow, Bytes(500), Instant(0)).unwrap();
        let (mut now, mut woken) = (Instant(0), 0);
        for count in 0..100 {
            while pacer.poll(now, |_| Some(Bytes(500))).is_none() {
                now = pacer.poll_timeout().unwrap();
                woken += 1;
            }
            let due = count * 400_000_000;
            let late = now.0.checked_sub(due).expect("not early");
            let most = (400_000_000 >> 10).min(cdvt * 500).max(1_000);
            assert!(late <= most, "{cdvt} us: {late} ns late");
        }
        assert_eq!(woken == 99, at_once, "{cdvt} us: woken {woken} times");
    }
}

/// The packet after the pause of a dual bucket is late by at most 1/32 of CDVT.
#[test]
fn a_pacers_dual_bucket_refills_in_time() {
    let sustained = Sustained {
        scr: Rate::new(10_000).unwrap(),
        mbs: Bytes(2_500),
        bucket: Bucket::Dual,
    };
    let peak = Rate::new(40_000).unwrap();
    let contract = contract::Cell::new(peak, us(2_000), Some(sustained)).unwrap();
    let mut pacer = Pacer::new();
    let flow = pacer.insert(contract).unwrap();
    pacer.handle_head(flow, Bytes(500), Instant(0)).unwrap();
    let mut now = Instant(0);
    for count in 0..200 {
        while pacer.poll(now, |_| Some(Bytes(500))).is_none() {
            now = pacer.poll_timeout().unwrap();
        }
        // Five packets, 0.1 s apart; after 2 s the next.
        let (burst, packet) = (count / 5, count % 5);
        let due = burst * 2_000_000_000 + packet * 100_000_000;
        let late = now.0.checked_sub(due).expect("not early");
        let pause = if burst > 0 { 2_000_000 / 32 } else { 0 };
        let peak = if packet > 0 { 100_000_000 >> 10 } else { 0 };
        assert!(late <= pause + peak, "{burst}, {packet}: {late} ns late");
    }
}

/// Many flows have the same bucket, which is before their time. One call examines some of them, and
/// reports that it is not finished.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_pacers_call_is_bounded() {
    let contract = cell(Rate::new(8_000).unwrap(), us(100));
    let mut pacer = Pacer::new();
    for _ in 0..10_000 {
        let flow = pacer.insert(contract).unwrap();
        pacer.handle_head(flow, Bytes(100), Instant(0)).unwrap();
    }
    let next = |_| Some(Bytes(100));
    for _ in 0..10_000 {
        assert!(pacer.poll(Instant(0), next).is_some());
    }
    // All are due after 100 ms, and are examined a little before.
    let (mut now, mut asked) = (Instant(0), 0);
    for _ in 0..10_000 {
        while pacer.poll(now, next).is_none() {
            let wake = pacer.poll_timeout().unwrap();
            asked += u64::from(wake == now);
            now = wake;
        }
        assert!((100_000_000..=100_050_000).contains(&now.0), "{now:?}");
    }
    assert!((10_000 / 17..10_000 / 8).contains(&asked), "{asked} calls");
}
