use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use netnice_cases::cases;
use proptest::prelude::*;

use super::{DemandSums, SumsAnswer};
use crate::admission::timing::{PacketSizes, Promise, Resolution, Stops, Transmitter};
use crate::contract::{Contract, Direction};
use crate::sched::{EarlyOrder, Wire};
use crate::units::{Bytes, Nanos, Rate};

/// A link of this rate with its scheduler, with packets of up to 1514 bytes.
fn link(bits: u64, flows: u32) -> Transmitter {
    let wire = Wire {
        rate: Rate::new(bits).expect("a rate"),
        overhead: Bytes(24),
        ahead: Nanos::from_micros(50),
        horizon: Nanos(0),
        early: EarlyOrder::AfterLeftOver,
        longest: Bytes(1514),
    };
    Transmitter::of(&wire, Bytes(1514), flows)
}

/// A promise in the words of the contract grammar, for packets of 42 to 1514 bytes.
fn promise(text: impl AsRef<str>) -> Promise {
    let contract: Contract = text.as_ref().parse().expect("a contract");
    let sizes = PacketSizes::new(Bytes(42), Bytes(1514)).expect("sizes");
    match (contract.channel(), contract.cell(), contract.slice()) {
        (Some(channel), ..) => Promise::Channel(channel),
        (_, Some(cell), _) => Promise::Cell(cell, sizes),
        (.., Some(slice)) => Promise::Slice(slice, sizes),
        _ => Promise::Min(contract.min(Direction::Up).expect("min"), sizes),
    }
}

/// Promises of all kinds, with deadlines from 100 us to some seconds.
fn any_promise() -> impl Strategy<Value = Promise> {
    prop_oneof![
        (1u64..50_000, 100u64..5_000_000)
            .prop_map(|(kbit, cdvt)| format!("cell pcr={kbit}kbit,cdvt={cdvt}us")),
        (2u64..500, 100u64..900_000).prop_map(|(kbit, cdvt)| format!(
            "cell pcr={}kbit,scr={kbit}kbit,mbs=9000B,cdvt={cdvt}us",
            2 * kbit
        )),
        (1u64..40, 100u64..200_000).prop_map(|(part, period)| format!(
            "slice {}us/{period}us",
            (period * part / 1000).max(1)
        )),
        (64u64..20_000, 1u64..200, 500u64..2_000_000).prop_map(|(bytes, rate, deadline)| format!(
            "channel mmax={bytes}B,rmax={rate}/s,bmax=2,deadline={deadline}us"
        )),
        (1u64..20_000).prop_map(|kbit| format!("min {kbit}kbit")),
    ]
    .prop_map(promise)
}

fn sums_of(link: &Transmitter, promises: &[Promise]) -> Option<DemandSums> {
    let mut sums = DemandSums::new(link);
    for promise in promises {
        sums.add(promise, 1).ok()?;
    }
    Some(sums)
}

fn fits(sums: &mut DemandSums, link: &Transmitter, more: &[Promise]) -> bool {
    sums.decide(link, more, Nanos(0)) == SumsAnswer::Fits
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn each_answer_is_that_of_the_exact_test(
        promises in prop::collection::vec(any_promise(), 1..20),
        asked in prop::collection::vec((any_promise(), any::<bool>()), 0..6),
        mbit in 10u64..2_000,
        stops in prop::option::of((1u64..5_000, 10_000u64..1_000_000)),
        shortest in prop_oneof![Just(0), 1u64..1_000_000],
        exact in any::<bool>(),
    ) {
        let mut link = link(mbit * 1_000_000, promises.len() as u32);
        link.stops = stops.and_then(|(time, period)| {
            Stops::new(Nanos::from_micros(time), Nanos::from_micros(period)).ok()
        });
        if exact {
            link.resolution = Resolution::NONE;
        }
        let Some(mut sums) = sums_of(&link, &promises) else {
            return Ok(());
        };
        // The points that a decision adds stay for the next ones, beside other promises.
        let (mut held, shortest) = (promises, Nanos::from_micros(shortest));
        for (more, stays) in asked {
            let answer = sums.decide(&link, &[more], shortest);
            let all: Vec<Promise> = held.iter().copied().chain([more]).collect();
            let carried = link.carries_from(&all, shortest);
            match answer {
                SumsAnswer::Fits => prop_assert!(carried, "{all:?}"),
                SumsAnswer::Misfit => prop_assert!(!carried, "{all:?}"),
                SumsAnswer::Unknown => {}
            }
            if stays && sums.add(&more, 1).is_ok() {
                sums.remove(&held[0]).expect("it was added");
                held = all[1..].to_vec();
            }
        }
    }

    #[test]
    fn a_removed_promise_leaves_no_trace(
        kept in prop::collection::vec(any_promise(), 0..10),
        removed in prop::collection::vec(any_promise(), 1..10),
    ) {
        let link = link(1_000_000_000, 20);
        let (Some(mut sums), Some(expected)) =
            (sums_of(&link, &[removed.clone(), kept.clone()].concat()), sums_of(&link, &kept))
        else {
            return Ok(());
        };
        for promise in &removed {
            sums.remove(promise).expect("it was added");
        }
        prop_assert_eq!(sums, expected);
    }

    #[test]
    fn a_promise_added_several_times_counts_as_often(
        promise in any_promise(),
        times in 1usize..20,
    ) {
        let link = link(1_000_000_000, 20);
        let Some(one_by_one) = sums_of(&link, &vec![promise; times]) else {
            return Ok(());
        };
        let mut at_once = DemandSums::new(&link);
        at_once.add(&promise, times).expect("it could be added before");
        prop_assert_eq!(at_once, one_by_one);
    }
}

/// Sets that use nearly all of the time before some deadline, one packet at a time.
#[test]
fn nearly_full_links_are_decided() {
    for (rate, kind) in [
        (100, "channel mmax=1400B,rmax=7/s,bmax=1,deadline=90ms"),
        (100, "cell pcr=50kbit,cdvt=80ms"),
    ] {
        let link = link(rate * 1_000_000, 700);
        let (mut sums, one) = (DemandSums::new(&link), promise(kind));
        let mut held = Vec::new();
        loop {
            let answer = sums.decide(&link, &[one], Nanos(0));
            let all: Vec<Promise> = held.iter().copied().chain([one]).collect();
            assert_eq!(
                answer == SumsAnswer::Fits,
                link.carries(&all).is_ok(),
                "{kind} {}",
                held.len()
            );
            assert_ne!(answer, SumsAnswer::Unknown, "{kind} {}", held.len());
            if answer == SumsAnswer::Misfit {
                break;
            }
            sums.add(&one, 1).expect("it fits");
            held = all;
        }
        assert!(held.len() > 500, "{kind} {}", held.len());
    }
}

#[test]
fn sixty_five_thousand_cells_fit_until_the_time_is_used() {
    let flows = 65_536;
    let link = link(1_000_000_000, flows);
    // 65,536 packets of 1538 bytes take 806 ms, those that are not examined yet 25 ms.
    let certain = |cdvt: &str| {
        let cell = promise(format!("cell pcr=1kbit,cdvt={cdvt}"));
        let mut sums = DemandSums::new(&link);
        sums.add(&cell, flows as usize)
            .expect("a possible contract");
        (
            fits(&mut sums, &link, &[]),
            link.carries(&vec![cell; 1_000]).is_ok(),
        )
    };
    assert_eq!(certain("1s"), (true, true));
    assert!(!certain("800ms").0, "more is due than there is time");
}

#[test]
fn rates_above_the_link_do_not_fit() {
    let link = link(100_000_000, 2);
    let mut sums = DemandSums::new(&link);
    let half = promise("min 35mbit");
    sums.add(&half, 1).expect("a possible contract");
    assert!(fits(&mut sums, &link, &[]));
    assert!(
        !fits(&mut sums, &link, &[half]),
        "short packets take 55 Mbit/s each"
    );
}

#[test]
fn a_promise_that_is_impossible_alone_is_refused_and_not_counted() {
    let link = link(10_000_000, 1);
    let mut sums = DemandSums::new(&link);
    sums.add(&promise("cell pcr=20mbit,cdvt=1s"), 1)
        .expect_err("it is above the link's rate");
    sums.add(&promise("min 9mbit"), 1)
        .expect_err("short packets take 14 Mbit/s");
    assert_eq!(sums, DemandSums::new(&link));
}

#[test]
fn sums_of_another_link_answer_nothing() {
    let (one, other) = (link(100_000_000, 1), link(200_000_000, 1));
    let mut sums = DemandSums::new(&one);
    assert!(fits(&mut sums, &one, &[]));
    assert!(!fits(&mut sums, &other, &[]));
    let blocked = Transmitter {
        ahead: Nanos::from_millis(3),
        ..one
    };
    let cell = [promise("cell pcr=1mbit,cdvt=2ms")];
    assert!(fits(&mut sums, &one, &cell));
    assert!(!fits(&mut sums, &blocked, &cell));
}
