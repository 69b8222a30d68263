//! Tests of flows that come, change and go; of times that go back or jump; and of invalid calls.

use alloc::string::ToString;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::channels::channel;
use super::limits::limited;
use super::simulation::*;
use crate::contract::Slice;
use crate::sched::{
    Class, END_OF_TIME, EarlyOrder, Next, Pacer, Packet, Scheduler, SchedulerError, Service, Wire,
};
use crate::units::{Bytes, Instant, Nanos, Rate};

/// Every kind of service. Two in five of those with a guarantee also have a limit.
fn services() -> impl Strategy<Value = Service> {
    let limit = (
        (1_u64..10_000),
        (9_u32..34).prop_flat_map(|bits| 1_u64..1 << bits),
    );
    (promised(), prop::option::weighted(0.4, limit)).prop_map(|(service, limit)| {
        match (service, limit) {
            (Service::Share { .. }, _) | (_, None) => service,
            (service, Some((kbit, burst))) => limited(service, kbit, Nanos(burst)),
        }
    })
}

fn promised() -> impl Strategy<Value = Service> {
    let rate = (3_u32..11).prop_flat_map(|e| 10_u64.pow(e)..=10_u64.pow(e + 1));
    let rate = rate.prop_map(|bits| Rate::new(bits).unwrap());
    let time = (9_u32..34).prop_flat_map(|bits| 1_u64..1 << bits);
    prop_oneof![
        (
            prop::option::of(rate.clone()),
            prop::option::of((rate.clone(), time.clone())),
            1_u16..=1000
        )
            .prop_map(|(min, max, parts)| Service::Share {
                min,
                max: max.map(|(rate, burst)| (rate, Nanos(burst))),
                weight: weight(parts),
            }),
        (1_u64..1000, 1_u64..5_000_000, any::<bool>()).prop_map(|(part, period, extra)| {
            let period = period * 1000;
            slice(Nanos((period / 1000 * part).max(1)), Nanos(period), extra)
        }),
        (rate.clone(), time.clone()).prop_map(|(pcr, cdvt)| Service::Cell(cell(pcr, Nanos(cdvt)))),
        (rate, time.clone(), 1_u64..100, any::<bool>()).prop_map(|(pcr, cdvt, part, dual)| {
            use crate::contract::Bucket::{Dual, Single};
            let scr = pcr.portion(part, 100).unwrap_or(pcr);
            let kind = if dual { Dual } else { Single };
            Service::Cell(bucket(pcr, Nanos(cdvt), scr, 3000, kind))
        }),
        (1_u32..100_000, time.clone(), time, any::<bool>()).prop_map(
            |(rate, deadline, processing, is_best_effort)| {
                use crate::contract::{Channel, MessageRate, Overload};
                let rmax = MessageRate::new(rate).unwrap();
                let channel = Channel::new(Bytes(4000), rmax, 1, Nanos(deadline)).unwrap();
                let processing = Nanos(processing % deadline).min(Channel::MAX_PROCESSING);
                let channel = channel.with_processing(processing).unwrap();
                Service::Channel(match is_best_effort {
                    true => channel.with_overload(Overload::BestEffort),
                    false => channel,
                })
            },
        ),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Service),
    Remove(usize),
    Change(usize, Service),
    Offer(usize, u64),
    Flush(usize),
    Run(u64),
    Back(u64),
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let which = any::<usize>();
    let step = prop_oneof![
        3 => services().prop_map(Step::Insert),
        1 => which.prop_map(Step::Remove),
        1 => (which, services()).prop_map(|(w, s)| Step::Change(w, s)),
        10 => (which, 1_u64..1514).prop_map(|(w, l)| Step::Offer(w, l)),
        1 => which.prop_map(Step::Flush),
        6 => (0_u32..32).prop_flat_map(|bits| 0_u64..1 << bits).prop_map(Step::Run),
        1 => (0_u64..10_000).prop_map(Step::Back),
    ];
    prop::collection::vec(step, 1..most)
}

/// Runs a scenario. At its end every offered packet was sent, was flushed, or is queued.
fn run_steps(start: u64, (horizon, early): (u64, EarlyOrder), ahead: u64, steps: Vec<Step>) {
    let mut sim = Simulation::new(Wire {
        horizon: Nanos(horizon),
        early,
        ahead: Nanos(ahead),
        overhead: Bytes(24),
        ..Wire::new(mbit(100))
    });
    sim.now = start;
    sim.checks_invariants = true;
    let (mut flows, mut flushed) = (Vec::new(), 0);
    for step in steps {
        let pick = |which: usize, flows: &Vec<crate::sched::FlowId>| {
            (!flows.is_empty()).then(|| which % flows.len())
        };
        match step {
            Step::Insert(service) => flows.push(sim.flow(service)),
            Step::Remove(which) => {
                if let Some(which) = pick(which, &flows) {
                    let flow = flows.swap_remove(which);
                    flushed += sim.stop(flow);
                    let now = Instant(sim.now);
                    sim.link.remove(flow, now).unwrap();
                    assert_eq!(
                        sim.link.withdraw(flow, now),
                        Err(SchedulerError::UnknownFlow(flow))
                    );
                }
            }
            Step::Change(which, service) => {
                if let Some(which) = pick(which, &flows) {
                    sim.link
                        .change(flows[which], service, Instant(sim.now))
                        .unwrap();
                }
            }
            Step::Offer(which, length) => {
                if let Some(which) = pick(which, &flows) {
                    let arrived = Instant(sim.now);
                    sim.offer(flows[which], Packet::first(Bytes(length), arrived));
                }
            }
            Step::Flush(which) => {
                if let Some(which) = pick(which, &flows) {
                    flushed += sim.stop(flows[which]);
                }
            }
            Step::Run(time) => sim.run(sim.now.saturating_add(time)),
            Step::Back(time) => sim.now = sim.now.saturating_sub(time),
        }
        sim.link.invariants();
    }
    let left: usize = flows.iter().map(|flow| sim.queued(*flow)).sum();
    assert_eq!(sim.offered, sim.sent.len() + flushed + left);
    for flow in flows {
        sim.stop(flow);
    }
    sim.run(END_OF_TIME.0);
    assert_eq!(
        sim.link.poll_timeout(),
        None,
        "an empty scheduler waits for nothing"
    );
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn packets_are_conserved(
        horizon in 0_u64..10_000_000,
        early in prop_oneof![
            Just(EarlyOrder::AfterLeftOver),
            Just(EarlyOrder::BeforeLeftOver),
        ],
        ahead in 0_u64..100_000,
        steps in steps(120),
    ) {
        run_steps(0, (horizon, early), ahead, steps);
    }

    #[test]
    fn packets_are_conserved_at_the_end_of_time(before in 0_u64..1 << 36, steps in steps(60)) {
        run_steps(END_OF_TIME.0 - before, (1000, EarlyOrder::default()), 0, steps);
    }
}

#[test]
fn invalid_calls_are_refused() {
    let now = Instant(0);
    let mut link = Scheduler::new(Wire::new(mbit(10))).unwrap();
    let flow = link
        .insert(Service::Cell(cell(mbit(1), us(1))), now)
        .unwrap();
    let long = link
        .handle_head(flow, Packet::new(Bytes(1515)), now)
        .unwrap_err();
    assert!(long.to_string().contains("at most 1514"), "{long}");
    link.handle_head(flow, Packet::new(Bytes(1514)), now)
        .unwrap();
    let again = link.handle_head(flow, Packet::new(Bytes(1)), now);
    assert_eq!(again, Err(SchedulerError::HasHead(flow)));
    link.remove(flow, now).unwrap();
    assert_eq!(
        link.remove(flow, now),
        Err(SchedulerError::UnknownFlow(flow))
    );
    let wide = Wire {
        longest: Bytes(1 << 24),
        ..Wire::new(mbit(10))
    };
    assert!(matches!(
        Scheduler::new(wide),
        Err(SchedulerError::WireTooLong(_))
    ));
    let wide = Wire {
        longest: Bytes(u64::MAX),
        overhead: Bytes(9),
        ..Wire::new(mbit(10))
    };
    assert!(matches!(
        Scheduler::new(wide),
        Err(SchedulerError::WireTooLong(_))
    ));
}

/// A head is charged as one of the new longest length, in every calendar in which it can wait.
#[test]
fn a_shorter_wire_shortens_the_heads_that_wait() {
    let long = Wire {
        longest: Bytes(9000),
        ..Wire::new(mbit(10))
    };
    let share = |min, max| Service::Share {
        min,
        max,
        weight: weight(1),
    };
    let services = [
        share(None, None),
        share(Some(mbit(1)), None),
        share(None, Some((mbit(1), ms(1)))),
        Service::Cell(cell(mbit(1), ms(1))),
        Service::Cell(bucket(
            mbit(1),
            ms(1),
            mbit(1),
            9000,
            crate::contract::Bucket::Dual,
        )),
        slice(ms(1), ms(10), true),
        channel(9000, 10, 1, ms(100)),
        limited(Service::Cell(cell(mbit(1), ms(1))), 1_000, ms(1)),
    ];
    for service in services {
        let mut link = Scheduler::new(long).unwrap();
        let flow = link.insert(service, Instant(0)).unwrap();
        let full = Packet::new(Bytes(9000));
        link.handle_head(flow, full, Instant(0)).unwrap();
        // The second packet of most services has to wait.
        let first = link.next(Instant(0), |_| Some(full));
        assert!(matches!(first, Next::Send(_)), "{service:?}: {first:?}");
        link.set_wire(Wire::new(mbit(10))).unwrap();
        link.invariants();
        assert!(link.longest(flow) <= Bytes(1514));
        let mut now = Instant(0);
        let second = loop {
            match link.next(now, |_| None) {
                Next::Send(departure) => break departure,
                Next::Wait(until) => now = until,
                Next::Idle => panic!("{service:?}: the head is lost"),
            }
        };
        assert_eq!(second.length, Bytes(1514), "{service:?}");
        assert_eq!(second.end.0 - second.start.0, 1_211_200, "{service:?}");
        link.invariants();
    }
}

#[test]
fn one_call_returns_a_packet_or_a_wake_up_time() {
    let mut link = Scheduler::new(Wire::new(mbit(10))).unwrap();
    let flow = link
        .insert(Service::Cell(cell(mbit(1), ms(1))), Instant(0))
        .unwrap();
    assert_eq!(link.next(Instant(0), |_| None), Next::Idle);
    link.handle_head(flow, Packet::new(Bytes(125)), Instant(5))
        .unwrap();
    let next = link.next(Instant(5), |_| Some(Packet::new(Bytes(125))));
    assert!(matches!(next, Next::Send(one) if one.flow == flow && one.start == Instant(5)));
    // 1 ms later, and rounded up to 512 ns.
    let Next::Wait(at) = link.next(Instant(5), |_| None) else {
        panic!("the second packet is not eligible yet");
    };
    assert!((1_000_005..1_000_005 + 1000).contains(&at.0), "{at:?}");
    assert!(matches!(link.next(at, |_| None), Next::Send(_)));
    assert_eq!(link.next(at, |_| None), Next::Idle);
}

#[test]
fn an_idle_flow_takes_one_cache_line() {
    let mut link = Scheduler::new(Wire::new(mbit(10))).unwrap();
    // Four calendars, each with 32 bits and a mark of one bit for each bucket; and the node that
    // stands for "none".
    let calendar = 8 * 16_384 * 33 / 8;
    assert_eq!(link.memory(), 4 * calendar + 64);
    let before = link.memory();
    for _ in 0..10_000 {
        link.insert(Service::best_effort(weight(1)), Instant(0))
            .unwrap();
    }
    assert_eq!(link.memory() - before, 640_000);
    let slice = Slice::new(ms(1), ms(10), false).unwrap();
    let before = link.memory();
    link.insert_server(slice, &[Class::default(); 3], Instant(0))
        .unwrap();
    let more = link.memory() - before;
    assert!(
        (3 * calendar..3 * calendar + 4_000).contains(&more),
        "{more}"
    );
    let mut pacer = Pacer::with_capacity(1_000);
    assert_eq!(pacer.memory(), calendar + 64);
    pacer.insert(cell(mbit(1), ms(1))).unwrap();
    assert_eq!(pacer.memory(), calendar + 128);
}

/// Within the reserved number of flows, inserting moves no memory.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn inserting_within_the_capacity_moves_no_flow() {
    let mut link = Scheduler::with_capacity(Wire::new(mbit(10)), 5_000).unwrap();
    let limited = limited(Service::Cell(cell(mbit(1), ms(1))), 500, ms(1));
    let first = link.insert(limited, Instant(0)).unwrap();
    let memory_of = |link: &Scheduler| {
        (
            link.flows.as_ptr(),
            link.limits.as_ptr(),
            link.pool.address_and_capacity(),
        )
    };
    let before = memory_of(&link);
    for _ in 1..5_000 {
        let flow = link.insert(limited, Instant(0)).unwrap();
        link.handle_head(flow, Packet::new(Bytes(100)), Instant(0))
            .unwrap();
    }
    assert_eq!(memory_of(&link), before);
    link.remove(first, Instant(0)).unwrap();
    link.insert(limited, Instant(0)).unwrap();
    assert_eq!(memory_of(&link), before);
}

#[test]
fn the_index_of_a_removed_flow_is_reused() {
    let mut link = Scheduler::new(Wire::new(mbit(10))).unwrap();
    let service = Service::best_effort(weight(7));
    let first = link.insert(service, Instant(0)).unwrap();
    let second = link.insert(service, Instant(0)).unwrap();
    link.remove(first, Instant(0)).unwrap();
    assert_eq!(link.insert(service, Instant(0)), Ok(first));
    assert_ne!(first, second);
}

/// A flow that would have to wait beyond the end of time is never served again, and no call
/// examines it repeatedly.
#[test]
fn flows_beyond_the_end_of_time_are_never_served() {
    let contract = cell(mbit(1), us(1));
    for before in [0, 100, 511, 512, 600, 2000] {
        let now = Instant(END_OF_TIME.0 - before);
        let mut link = Scheduler::new(Wire::new(mbit(10_000))).unwrap();
        let flow = link.insert(Service::Cell(contract), now).unwrap();
        link.handle_head(flow, Packet::new(Bytes(1500)), now)
            .unwrap();
        let next = |_| Some(Packet::new(Bytes(1500)));
        let sent = link.poll(now, next).is_some() || link.poll(Instant(u64::MAX), next).is_some();
        assert!(sent, "{before}");
        assert_eq!(link.poll(Instant(u64::MAX), next), None);
        assert_eq!(link.poll_timeout(), None, "{before}");
        link.invariants();
        let mut pacer = Pacer::new();
        let flow = pacer.insert(contract).unwrap();
        pacer.handle_head(flow, Bytes(1500), now).unwrap();
        let next = |_| Some(Bytes(1500));
        // A pacer rounds times up to 1 us, so it may not reach a time that is this near to the end.
        let sent = pacer.poll(now, next).is_some() || pacer.poll(Instant(u64::MAX), next).is_some();
        assert!(sent || before < 1024, "{before}");
        assert_eq!(pacer.poll(Instant(u64::MAX), next), None);
        assert_eq!(pacer.poll_timeout(), None);
    }
}
