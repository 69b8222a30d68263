//! Checks the test for handlers behind a reservation against the inequality itself, and against
//! simulated handlers that run only while a reservation gives them time.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use netnice_cases::cases;
use proptest::prelude::*;

use super::model::{at, with_rate};
use super::switching::{self, first_messages, late};
use super::{Alternative, Resolution, TimingFault, Transmitter, gigabit, paper_processor, work};
use crate::admission::timing::{HandlerWork, Handlers, Processor, Work};
use crate::contract::{Channel, MessageRate, Slice};
use crate::units::{Bytes, Nanos, Rate};

fn slice(time: Nanos, period: Nanos) -> Slice {
    Slice::new(time, period, false).expect("a slice")
}

/// A reservation that gives its time at some place of every period.
struct Server {
    slice: Slice,
    /// What is lost of each time, at its beginning.
    lost: u64,
    /// The place of time 0 in the first period.
    shift: u64,
    /// Places by which the time is put off in each period, in turn. Without places it is put off as
    /// long as possible, except in the first period.
    places: Vec<u64>,
}

impl Server {
    /// The server that gives its time at the beginning of the first period, ends it at time 0, and
    /// gives the time of every later period as late as possible.
    fn worst(slice: Slice, costs: &Processor) -> Server {
        Server {
            slice,
            lost: costs.switch.0 + costs.cache_miss.0,
            shift: slice.slice().0,
            places: Vec::new(),
        }
    }

    /// The time at which work that begins at `now`, and takes `takes` of useful time, has ended.
    fn after(&self, now: u64, mut takes: u64) -> u64 {
        let (time, period) = (self.slice.slice().0, self.slice.period().0);
        let mut at = now + self.shift;
        loop {
            let number = at / period;
            let latest = period - time;
            let place = match self.places.as_slice() {
                [] if number == 0 => 0,
                [] => latest,
                places => places[number as usize % places.len()] % (latest + 1),
            };
            let (from, until) = (
                number * period + place + self.lost,
                number * period + place + time,
            );
            let begins = at.max(from);
            if begins + takes <= until {
                return begins + takes - self.shift;
            }
            takes -= until.saturating_sub(begins);
            at = (number + 1) * period;
        }
    }
}

/// No promise is shorter than what the linear bound gives, and there the answer is exact: the work
/// is a nanosecond longer than the time of a period, and the next time comes as late as possible.
#[test]
fn a_reservation_may_give_nothing_for_twice_what_it_leaves() {
    let costs = Processor {
        switch: Nanos(0),
        cache_miss: Nanos(0),
        first: Nanos::from_micros(2000),
        later: Nanos(0),
        link_scheduling: Nanos(1),
        ..paper_processor()
    };
    let handlers = Handlers::new(costs);
    let reservation = slice(Nanos::from_millis(2), Nanos::from_millis(10));
    let Work::Channel(channel) = work("channel mmax=1kB,rmax=10/s,bmax=1,deadline=1s") else {
        unreachable!("a channel")
    };
    // 2,000,001 ns at a fifth of the speed, and 2 · 8 ms.
    let refusal = handlers
        .admit(&reservation, &[], &Work::Channel(at(&channel, 26_000_004)))
        .expect_err("a nanosecond too short");
    assert_eq!(
        refusal.alternative,
        Some(Alternative::Deadline(Nanos(26_000_005)))
    );
    assert_eq!(
        refusal.to_string(),
        "within 26.000004ms, up to 10.000005ms of work can be due and 16ms can block it: \
         10.000005ms + 16ms > 26.000004ms; would fit: a deadline of at least 26.000005ms"
    );
    let server = Server::worst(reservation, &costs);
    let ends = server.after(0, 2_000_001);
    assert_eq!(ends, 26_000_001);
    // The last 4 ns are the price of a linear bound.
    let is_late = |deadline| {
        let channel = at(&channel, deadline);
        late(&costs, &[channel], &[0], false, |now, takes| {
            server.after(now, takes)
        }) > 0
    };
    assert!(is_late(26_000_000) && !is_late(26_000_001));
}

#[test]
fn the_whole_processor_as_a_reservation_is_the_processor() {
    let costs = Processor {
        switch: Nanos(0),
        cache_miss: Nanos(0),
        ..paper_processor()
    };
    let whole = slice(Nanos::from_millis(10), Nanos::from_millis(10));
    let held = [
        work("cpu 2ms/10ms"),
        work("channel mmax=16KiB,rmax=50/s,bmax=1,deadline=9ms"),
    ];
    for deadline in [1, 2, 3, 5, 9] {
        let asked = alloc::format!("channel mmax=8KiB,rmax=90/s,bmax=2,deadline={deadline}ms");
        let asked = work(&asked);
        assert_eq!(
            Handlers::new(costs).admit(&whole, &held, &asked),
            costs.admit(&held, &asked)
        );
    }
}

#[test]
fn a_reservation_shorter_than_the_switch_to_it_is_refused_with_both_times() {
    let handlers = Handlers::new(paper_processor());
    let channel = work("channel mmax=1kB,rmax=1/s,bmax=1,deadline=1s");
    let short = slice(Nanos::from_micros(145), Nanos::from_millis(1));
    let fault = handlers.carries(&short, &[channel]).expect_err("too short");
    assert_eq!(
        fault.to_string(),
        "the 145us reserved in every 1ms of a processor are not longer than the 145us that a \
         switch to the program takes"
    );
    let refusal = handlers.reserve(&[], &channel, &[short]).expect_err("same");
    assert_eq!((refusal.fault, refusal.alternative), (fault, None));
    let refusal = handlers.reserve(&[], &channel, &[]).expect_err("no offer");
    assert_eq!(refusal.to_string(), "no processor time can be reserved");
}

/// A handler's own costs count for each packet, also for those of a block in the way.
#[test]
fn the_costs_of_a_handler_count_for_each_of_its_packets() {
    let Work::Channel(channel) = work("channel mmax=16KiB,rmax=10/s,bmax=1,deadline=1s") else {
        unreachable!("a channel")
    };
    let handler = |us: u64, packets, each: u64| {
        Work::Handler(HandlerWork {
            channel: at(&channel, us * 1_000),
            packets,
            each: Nanos::from_micros(each),
        })
    };
    let alone = |us| paper_processor().carries(&[handler(us, 6, 100)]).is_ok();
    // 420 + 5 · 170 + 6 · (160 + 100) and 2 · 145 of switching.
    assert!(alone(3_120) && !alone(3_119));
    // In the way: 145 + 420 + 3 · 170 + 4 · 260.
    let both = |us| {
        let all = [handler(us, 1, 0), handler(90_000, 6, 100)];
        paper_processor().carries(&all).is_ok()
    };
    assert!(both(870 + 2_115) && !both(870 + 2_114));
    let same = [Work::Channel(channel), handler(1_000_000, 4, 0)];
    for other in same.map(|one| [one, handler(90_000, 2, 7)]) {
        let reservation = slice(Nanos::from_millis(2), Nanos::from_millis(5));
        let handlers = Handlers::new(paper_processor());
        assert_eq!(handlers.carries(&reservation, &other), Ok(()));
        let refusal = handlers.admit(&reservation, &other, &handler(5, 4, 3));
        let alternative = refusal.expect_err("too short").alternative;
        assert!(matches!(alternative, Some(Alternative::Deadline(_))));
    }
}

/// A message takes 720 us on half of a processor: 1,440 us, behind 2 · 2 ms.
#[test]
fn a_budget_that_ends_late_counts_for_handlers_that_can_use_it_up() {
    let costs = Processor {
        switch: Nanos(0),
        cache_miss: Nanos(0),
        first: Nanos::from_micros(560),
        ..paper_processor()
    };
    let reservation = slice(Nanos::from_millis(2), Nanos::from_millis(4));
    let handlers = Handlers {
        late_end: Nanos::from_millis(3),
        ..Handlers::new(costs)
    };
    let least = |handlers: &Handlers, rate: u32| {
        let text = format!("channel mmax=1KiB,rmax={rate}/s,bmax=1,deadline=1us");
        let refusal = handlers.admit(&reservation, &[], &work(&text));
        match refusal.expect_err("too short").alternative {
            Some(Alternative::Deadline(least)) => least.0 / 1_000,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(least(&Handlers::new(costs), 250), 1_440 + 4_000);
    // Two messages in a period take less than 2 ms; others have the processor 3 ms longer.
    assert_eq!(least(&handlers, 500), 1_440 + 4_000 + 3_000);
    // Three take more: the kernel may take back 3 ms of the own time, which is 6 ms.
    assert_eq!(least(&handlers, 501), 1_440 + 4_000 + 3_000 + 6_000);
    let fills = |handlers: Handlers| least(&handlers, 250) - (1_440 + 4_000 + 3_000);
    // So may a block of best effort, and so does it where it is processed before its time.
    let best_effort = Processor {
        leftover: Nanos::from_micros(100),
        ..costs
    };
    let with_best_effort = Handlers {
        processor: best_effort,
        ..handlers
    };
    assert_eq!(fills(with_best_effort), 6_000 + 2 * 100);
    let early = Handlers {
        horizon: Nanos(1),
        ..handlers
    };
    assert!(fills(early) >= 6_000);
}

/// 16 KiB in 4 packets; their headers make it 5 packets of the link.
#[test]
fn a_deadline_is_divided_between_a_reservation_and_a_link() {
    let link = Transmitter {
        rate: Rate::new(160_000_000).expect("a rate"),
        per_packet: Nanos::from_micros(40),
        largest: Bytes(4096),
        ..gigabit()
    };
    let Work::Channel(channel) = work("channel mmax=16512B,rmax=10/s,bmax=1,deadline=90ms") else {
        unreachable!("a channel")
    };
    let costs = Processor {
        switch: Nanos(0),
        cache_miss: Nanos(0),
        ..paper_processor()
    };
    let handlers = Handlers::new(costs);
    let reservation = slice(Nanos::from_millis(2), Nanos::from_millis(4));
    let divide = |deadline: u64, each: u64| {
        let handler = HandlerWork {
            channel: at(&channel, deadline),
            packets: 4,
            each: Nanos::from_micros(each),
        };
        handlers.divide(&reservation, &[], &link, &[], &handler)
    };
    // 1,570 us and 4 stages of 10 us at half of the speed, and 2 · 2 ms.
    let divided = divide(90_000_000, 10).expect("fits");
    assert_eq!(divided.processor, Nanos::from_micros(2 * 1_610 + 4_000));
    assert_eq!(divided.processor.0 + divided.link.0, 90_000_000);
    // 16,512 bytes at 20 MB/s, and 5 · 40 us.
    let least = 7_220_000 + 825_600 + 200_000;
    let refusal = divide(8_000_000, 10).expect_err("too short");
    assert_eq!(
        refusal.alternative,
        Some(Alternative::Deadline(Nanos(least)))
    );
    assert!(divide(least, 10).is_ok() && divide(least - 1, 10).is_err());
}

#[test]
fn early_processing_can_be_in_the_way() {
    let long = work("channel mmax=16KiB,rmax=10/s,bmax=1,deadline=20ms");
    let short = work("channel mmax=1KiB,rmax=10/s,bmax=1,deadline=21ms");
    let reservation = slice(Nanos::from_millis(8), Nanos::from_millis(10));
    let exact = Handlers::new(paper_processor());
    let least = |handlers: &Handlers, other: Work| {
        let Work::Channel(short) = short else {
            unreachable!("a channel")
        };
        let one = Work::Channel(at(&short, 1_000));
        let refusal = handlers.admit(&reservation, &[other], &one);
        match refusal.expect_err("too short").alternative {
            Some(Alternative::Deadline(deadline)) => deadline,
            other => panic!("{other:?}"),
        }
    };
    let rounded = Handlers {
        resolution: Resolution::SCHEDULER,
        ..exact
    };
    let early = Handlers {
        horizon: Nanos::from_millis(5),
        ..exact
    };
    assert!(least(&exact, long) < least(&rounded, long));
    assert!(least(&exact, long) <= least(&early, long));
    assert_eq!(exact.carries(&reservation, &[long, short]), Ok(()));
}

/// Times in ns, small enough to check every length of interval.
#[derive(Clone, Debug)]
struct Small {
    handlers: Handlers,
    reservation: Slice,
    channels: Vec<Channel>,
}

fn small() -> impl Strategy<Value = Small> {
    let costs = (0_u64..4, 0_u64..4, 1_u64..20, 1_u64..9, 0_u64..4, 0_u64..30);
    let server = (10_u64..400, 0_u64..400, 0_u64..60);
    let channel = (1_u64..40, 0_usize..3, 1_u64..4_000);
    (
        costs,
        server,
        1_u32..5,
        prop::collection::vec(channel, 1..5),
    )
        .prop_map(|(costs, server, block, channels)| {
            let (switch, cache_miss, first, later, link_scheduling, leftover) = costs;
            let (time, rest, horizon) = server;
            let channel = |(packets, rate, deadline): (u64, usize, u64)| {
                // Periods of 1, 2 and 4 us.
                let rate = MessageRate::new([1_000_000, 500_000, 250_000][rate]).expect("a rate");
                Channel::new(Bytes(packets), rate, 1, Nanos(deadline)).expect("a channel")
            };
            Small {
                handlers: Handlers {
                    horizon: Nanos(horizon),
                    ..Handlers::new(Processor {
                        switch: Nanos(switch),
                        cache_miss: Nanos(cache_miss),
                        first: Nanos(first),
                        later: Nanos(later),
                        link_scheduling: Nanos(link_scheduling),
                        block: NonZeroU32::new(block).expect("above zero"),
                        largest: Bytes(4),
                        leftover: Nanos(leftover),
                    })
                },
                reservation: slice(Nanos(time), Nanos(time + rest)),
                channels: channels.into_iter().map(channel).collect(),
            }
        })
}

impl Small {
    /// The inequality h(t) + b(t) ≤ (Q'/P) (t - 2 (P - Q')) for every t up to `until`.
    fn is_carried_by_the_inequality(&self, until: u64) -> bool {
        let costs = &self.handlers.processor;
        let switch = costs.switch.0 + costs.cache_miss.0;
        let period = self.reservation.period().0;
        let Some(useful) = self.reservation.slice().0.checked_sub(switch) else {
            return false;
        };
        let block = |packets: u64| {
            costs.first.0 + (packets - 1) * costs.later.0 + packets * costs.link_scheduling.0
        };
        let parts = |channel: &Channel| {
            let packets = channel.mmax().0.div_ceil(costs.largest.0);
            let spacing = 1_000_000_000 / u64::from(channel.rmax().get());
            let cost = 2 * switch + block(packets);
            let piece = switch + block(packets.min(costs.block.get().into()));
            (channel.deadline().0, spacing, cost, piece)
        };
        let all: Vec<_> = self.channels.iter().map(parts).collect();
        let from = all.iter().map(|(deadline, ..)| *deadline).min();
        (from.unwrap_or(0)..until).all(|t| {
            let jobs = |(deadline, spacing, cost, _): &(u64, u64, u64, u64)| {
                t.checked_sub(*deadline)
                    .map_or(0, |beyond| cost * (1 + beyond / spacing))
            };
            let due: u64 = all.iter().map(jobs).sum();
            let blocks = |(deadline, _, _, piece): &(u64, u64, u64, u64)| {
                (deadline + self.handlers.horizon.0 > t).then_some(*piece)
            };
            let blocked = all.iter().filter_map(blocks).max().unwrap_or(0);
            let needed = i128::from(due + blocked.max(costs.leftover.0)) * i128::from(period);
            let beyond = i128::from(t) - 2 * i128::from(period - useful);
            useful > 0 && needed <= i128::from(useful) * beyond
        })
    }
}

/// Offers of half a processor and of a whole one, some periods each.
fn offers() -> Vec<Slice> {
    let periods = [300, 1_000, 2_500, 8_000, 20_000].map(Nanos::from_micros);
    let offer = |(n, period): (usize, Nanos)| slice(Nanos(period.0 * [9, 10][n % 2] / 10), period);
    periods.into_iter().enumerate().map(offer).collect()
}

/// A case of handlers that switch, with the channels that one offer or another carries and the
/// least reservation for them.
fn reserved(case: &switching::Case) -> Option<(Vec<Work>, Slice)> {
    let handlers = Handlers::new(case.costs);
    let mut held: Vec<Work> = Vec::new();
    let mut least = None;
    for channel in &case.requested {
        let asked = Work::Channel(*channel);
        if let Ok(reservation) = handlers.reserve(&held, &asked, &offers()) {
            held.push(asked);
            least = Some(reservation);
        }
    }
    least.map(|least| (held, least))
}

fn channels(work: &[Work]) -> Vec<Channel> {
    let channel = |work: &Work| match work {
        Work::Channel(channel) => Some(*channel),
        Work::Handler(_) | Work::Slice(_) => None,
    };
    work.iter().filter_map(channel).collect()
}

proptest! {
    #![proptest_config(cases(600))]

    /// The scaled test agrees with the inequality at every length of interval.
    #[test]
    fn the_answer_is_that_of_the_inequality_behind_a_reservation(set in small()) {
        let work: Vec<Work> = set.channels.iter().copied().map(Work::Channel).collect();
        match set.handlers.carries(&set.reservation, &work) {
            Ok(()) => prop_assert!(set.is_carried_by_the_inequality(12_000)),
            Err(TimingFault::Late { within, .. }) => {
                prop_assert!(!set.is_carried_by_the_inequality(within.0 + 2));
            }
            // Above the whole, or too short: the inequality fails late, or everywhere.
            Err(TimingFault::Share { .. } | TimingFault::NothingReserved { .. }) => {}
            Err(fault) => prop_assert!(false, "{fault}"),
        }
    }
}

proptest! {
    #![proptest_config(cases(64))]

    /// Every set is in time on the least reservation for it, wherever in its period the time comes.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn handlers_behind_the_least_reservation_are_in_time(
        case in switching::cases(),
        shift in 0_u64..20_000_000,
        places in prop::collection::vec(0_u64..20_000_000, 1..9),
    ) {
        let Some((held, least)) = reserved(&case) else { return Ok(()) };
        let channels = channels(&held);
        let worst = Server::worst(least, &case.costs);
        let random = Server { shift, places, ..Server::worst(least, &case.costs) };
        for server in [worst, random] {
            for first in first_messages(channels.len()) {
                let late = late(&case.costs, &channels, &first, case.best_effort, |now, takes| {
                    server.after(now, takes)
                });
                prop_assert_eq!(late, 0, "{:?} {:?}", &channels, least);
            }
        }
    }

    /// No offer carries the set with a share that is smaller by a thousandth. (Where the set needs
    /// nearly the whole reservation, a try in the search may end undecided.)
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn no_smaller_share_carries_the_set(case in switching::cases()) {
        let Some((held, least)) = reserved(&case) else { return Ok(()) };
        let handlers = Handlers::new(case.costs);
        prop_assert_eq!(handlers.carries(&least, &held), Ok(()));
        for offer in offers() {
            let share = u128::from(least.slice().0) * u128::from(offer.period().0);
            let time = share * 999 / 1_000 / u128::from(least.period().0) / 1_000;
            if time > 0 && time * 1_000 <= u128::from(offer.slice().0) {
                let smaller = slice(Nanos::from_micros(time as u64), offer.period());
                prop_assert!(handlers.carries(&smaller, &held).is_err(), "{:?}", smaller);
            }
        }
    }

    /// The deadline in a refusal is granted if it is asked for at once, and one that is a hundredth
    /// shorter is refused; the same for the rate of messages.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn a_refusal_names_the_best_that_any_reservation_gives(case in switching::cases()) {
        let handlers = Handlers::new(case.costs);
        let mut held: Vec<Work> = Vec::new();
        for channel in &case.requested {
            let ask = |channel| handlers.reserve(&held, &Work::Channel(channel), &offers());
            let short = at(channel, channel.deadline().0 / 8);
            let Err(refusal) = ask(short) else {
                held.push(Work::Channel(short));
                continue;
            };
            match refusal.alternative {
                Some(Alternative::Deadline(best)) => {
                    prop_assert!(best > short.deadline());
                    prop_assert!(ask(at(channel, best.0)).is_ok());
                    let shorter = at(channel, best.0 - best.0.div_ceil(100));
                    prop_assert!(ask(shorter).is_err());
                }
                Some(Alternative::Messages(best)) => {
                    prop_assert!(ask(with_rate(channel, best.get())).is_ok());
                    prop_assert!(ask(with_rate(channel, best.get() + 1)).is_err());
                }
                other => prop_assert!(other.is_none()),
            }
        }
    }
}

/// With a processor that is half as fast, but without the time for which a reservation may give
/// nothing, promises would be broken. So the simulation detects the error.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_test_without_the_delay_would_break_promises() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut broken = 0;
    for _ in 0..SETS {
        let case = switching::cases()
            .new_tree(&mut runner)
            .expect("a case")
            .current();
        let twice = |time: Nanos| Nanos(2 * time.0);
        let half = Processor {
            switch: twice(case.costs.switch),
            cache_miss: twice(case.costs.cache_miss),
            first: twice(case.costs.first),
            later: twice(case.costs.later),
            link_scheduling: twice(case.costs.link_scheduling),
            leftover: twice(case.costs.leftover),
            ..case.costs
        };
        let channels = switching::granted(&half, &case.requested);
        let server = Server {
            lost: 0,
            ..Server::worst(
                slice(Nanos::from_millis(10), Nanos::from_millis(20)),
                &case.costs,
            )
        };
        let is_late = |first: Vec<u64>| {
            late(
                &case.costs,
                &channels,
                &first,
                case.best_effort,
                |now, takes| server.after(now, takes),
            ) > 0
        };
        broken += u32::from(first_messages(channels.len()).any(is_late));
    }
    assert!(broken * 2 > SETS, "{broken} of {SETS}");
}

const SETS: u32 = 60;
