use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use netnice_cases::cases;
use proptest::prelude::*;

use super::{ProcessorRefusal, ProcessorSet, Processors, Reservation, percent, processor_list};
use crate::contract::Slice;
use crate::units::Nanos;

fn set(list: &str) -> ProcessorSet {
    list.chars()
        .filter_map(|digit| digit.to_digit(10))
        .collect()
}

fn slice(text: &str) -> Slice {
    let (slice, period) = text.split_once('/').expect("a slice");
    let time = |text: &str| text.parse().expect("a time");
    Slice::new(time(slice), time(period), false).expect("a slice")
}

/// `name 2ms/10ms 01`: a reservation on the processors 0 and 1; without digits on all.
fn reservation(text: &str) -> Reservation {
    let words: Vec<&str> = text.split(' ').collect();
    Reservation {
        holder: words[0].to_string(),
        slice: slice(words[1]),
        processors: set(words.get(2).unwrap_or(&"")),
    }
}

fn reservations(texts: &[&str]) -> Vec<Reservation> {
    texts.iter().map(|text| reservation(text)).collect()
}

fn host(online: &str, admitted_ppm: u32, others: &[&str]) -> Processors {
    Processors {
        online: set(online),
        admitted_ppm,
        others: reservations(others),
    }
}

fn refusal(host: &Processors, held: &[&str], asked: &str) -> Box<ProcessorRefusal> {
    let answer = host.admit(&reservations(held), &reservation(asked));
    answer.expect_err("a refusal")
}

#[test]
fn a_refusal_names_the_holders_the_sum_and_what_fits() {
    let host = host("01", 900_000, &["chrt 5ms/10ms"]);
    let held = ["pid:7 1ms/10ms", "unit:x 40ms/50ms"];
    let text = refusal(&host, &held, "pid:77 6ms/10ms").to_string();
    assert_eq!(
        text,
        "refused: pid:77: 6ms in every 10ms of a processor do not fit\
         \n  on          processors 0-1, of which 180 % can be promised (90 % of each)\
         \n  held        unit:x  40ms/50ms  80 %\
         \n              chrt    5ms/10ms  50 %\
         \n              pid:7   1ms/10ms  10 %\
         \n  but         60 % + 140 % = 200 % > 180 %\
         \n  would fit   at most 4ms/10ms"
    );
    let fits = host.admit(&reservations(&held), &reservation("pid:77 4ms/10ms"));
    assert_eq!(fits, Ok(()));
}

#[test]
fn a_full_processor_refuses_and_has_nothing_that_fits() {
    let host = host("0", 950_000, &[]);
    let text = refusal(&host, &["a 95ms/100ms"], "b 10us/1s").to_string();
    assert!(text.contains("on          processor 0, of which 95 % can be promised"));
    assert!(text.ends_with("\n  would fit   nothing"), "{text}");
    let alone = refusal(&host, &[], "b 1ms/1ms").to_string();
    assert!(alone.contains("\n  held        none\n"), "{alone}");
    assert!(alone.contains("100 % + 0 % = 100 % > 95 %"), "{alone}");
    assert!(alone.ends_with("at most 950us/1ms"), "{alone}");
}

#[test]
fn reservations_on_some_processors_count_where_they_must_run() {
    let host = host("012", 900_000, &[]);
    let held = ["a 9ms/10ms 0", "b 5ms/10ms 01", "c 2ms/10ms 12"];
    // Processors 0 and 1 carry a and b, and c can go to processor 2.
    assert_eq!(refusal(&host, &held, "d 5ms/10ms 1").processors, set("01"));
    let fits = |asked| host.admit(&reservations(&held), &reservation(asked));
    assert_eq!(fits("d 4ms/10ms 1"), Ok(()));
    assert_eq!(fits("d 9ms/10ms 2"), Ok(()), "c can go to processor 1");
    let full = [
        "a 9ms/10ms 0",
        "b 5ms/10ms 01",
        "c 2ms/10ms 12",
        "d 4ms/10ms 1",
    ];
    let refused = refusal(&host, &full, "e 8ms/10ms 2");
    assert_eq!(refused.processors, set("012"), "the union of four sets");
    assert_eq!(refused.largest, Some(Nanos::from_millis(7)));
    // A processor that is too full does not refuse what does not run on it.
    let over = ["a 9ms/10ms 0", "b 9ms/10ms 0"];
    let beside = host.admit(&reservations(&over), &reservation("c 5ms/10ms 12"));
    assert_eq!(beside, Ok(()));
}

#[test]
fn a_set_that_is_offline_stands_for_all_processors() {
    let host = host("01", 900_000, &[]);
    let held = ["a 9ms/10ms 3", "b 5ms/10ms"];
    let refused = refusal(&host, &held, "c 5ms/10ms 7");
    assert_eq!(refused.processors, set("01"));
    assert_eq!(refused.largest, Some(Nanos::from_millis(4)));
    let none = super::Processors::default();
    assert!(none.admit(&[], &reservation("a 1ms/10ms")).is_err());
}

#[test]
fn thirds_and_sevenths_sum_exactly() {
    let host = host("0", 1_000_000, &[]);
    let held = reservations(&["a 1ms/3ms", "b 2ms/7ms", "c 1ms/21ms"]);
    assert_eq!(host.admit(&held, &reservation("d 10ms/30ms")), Ok(()));
    assert!(host.admit(&held, &reservation("d 10001us/30ms")).is_err());
}

#[test]
fn with_more_sets_than_can_be_combined_each_and_all_are_checked() {
    let pairs = |n: u32| Reservation {
        processors: [n, n + 1].into(),
        ..reservation("p 9ms/10ms")
    };
    let host = Processors {
        online: (0..40).collect(),
        admitted_ppm: 900_000,
        others: (1..39).map(pairs).collect(),
    };
    let asked = |time: &str| Reservation {
        processors: [0, 1].into(),
        ..reservation(&format!("q {time}"))
    };
    // 38 pairs on 40 processors leave 1.8 processors.
    assert_eq!(host.admit(&[], &asked("10ms/10ms")), Ok(()));
    let held = [asked("10ms/10ms")];
    let refused = host.admit(&held, &asked("9ms/10ms")).expect_err("too much");
    assert_eq!(refused.largest, Some(Nanos::from_millis(8)));
}

#[test]
fn deadlines_are_kept_where_the_bound_for_global_edf_holds() {
    let keeps =
        |online, exact: &[&str]| host(online, 900_000, &[]).keeps_deadlines(&reservations(exact));
    assert!(keeps("0", &["a 5ms/10ms", "b 50ms/100ms"]));
    assert!(!keeps("0", &["a 5ms/10ms", "b 51ms/100ms"]));
    // Two processors: the sum is at most 2 less the largest.
    assert!(keeps("01", &["a 5ms/10ms", "b 5ms/10ms", "c 5ms/10ms"]));
    assert!(!keeps("01", &["a 6ms/10ms", "b 5ms/10ms", "c 5ms/10ms"]));
    // The example of Dhall and Liu: short jobs on both processors delay a long one.
    assert!(!keeps("01", &["a 1ms/10ms", "b 1ms/10ms", "c 10ms/10ms"]));
    // One processor each: no other processor counts.
    assert!(keeps("01", &["a 10ms/10ms 0", "b 9ms/10ms 1"]));
    assert!(
        !keeps("01", &["a 1ms/10ms 0", "b 1ms/10ms 01"]),
        "not proven"
    );
    assert!(!keeps("", &["a 1ms/10ms"]));
    assert!(keeps("", &[]));
    let foreign = host("0", 900_000, &["chrt 5ms/10ms"]);
    assert!(!foreign.keeps_deadlines(&reservations(&["a 6ms/10ms"])));
}

#[test]
fn sets_and_percentages_are_short_text() {
    assert_eq!(
        processor_list(&[0, 1, 2, 3, 8, 10, 11].into()),
        "0-3,8,10-11"
    );
    assert_eq!(processor_list(&ProcessorSet::new()), "");
    let max = [u32::MAX - 1, u32::MAX].into();
    assert_eq!(processor_list(&max), "4294967294-4294967295");
    let texts = [1_800_000, 125_000, 1, 0].map(percent);
    assert_eq!(texts, ["180 %", "12.5 %", "0.0001 %", "0 %"]);
}

/// A fraction in lowest terms.
#[derive(Clone, Copy, Debug)]
struct Ratio(u128, u128);

impl Ratio {
    fn new(above: u128, below: u128) -> Ratio {
        let (mut a, mut b) = (above, below);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        Ratio(above / a.max(1), below / a.max(1))
    }

    fn plus(self, other: Ratio) -> Ratio {
        Ratio::new(self.0 * other.1 + other.0 * self.1, self.1 * other.1)
    }

    fn at_most(self, other: Ratio) -> bool {
        self.0 * other.1 <= other.0 * self.1
    }
}

/// Whether no set of processors has to carry more than it can, by trying all sets of processors.
fn admissible(host: &Processors, all: &[Reservation]) -> bool {
    let online: Vec<u32> = host.online.iter().copied().collect();
    (1_u32..1 << online.len()).all(|chosen| {
        let is_chosen = |number: &u32| {
            let place = online.iter().position(|one| one == number);
            place.is_some_and(|place| chosen >> place & 1 == 1)
        };
        let mut sum = Ratio(0, 1);
        for one in all {
            let mut allowed: Vec<u32> = online
                .iter()
                .copied()
                .filter(|number| one.processors.contains(number))
                .collect();
            if allowed.is_empty() {
                allowed = online.clone();
            }
            if allowed.iter().all(is_chosen) {
                let slice = &one.slice;
                sum = sum.plus(Ratio::new(slice.slice().0.into(), slice.period().0.into()));
            }
        }
        let capacity = u128::from(chosen.count_ones()) * u128::from(host.admitted_ppm);
        sum.at_most(Ratio::new(capacity, 1_000_000))
    })
}

/// A time in a period of one of several lengths, among them primes of 100 µs, and a set of
/// processors (as bits).
fn asked() -> impl Strategy<Value = (u64, u64, u32)> {
    let periods = prop::sample::select(vec![
        100_u64, 333, 700, 1_000, 1_300, 10_000, 17_000, 30_000,
    ]);
    let part = prop_oneof![
        0.01..0.3_f64,
        0.01..1.0_f64,
        Just(0.5),
        Just(0.9),
        Just(1.0)
    ];
    (periods, part, 0_u32..128)
        .prop_map(|(period, part, bits)| (((period as f64 * part) as u64).max(10), period, bits))
}

proptest! {
    #![proptest_config(cases(500))]

    /// 20 requests in each of 500 cases.
    #[test]
    fn random_requests_are_decided_as_by_the_naive_formula(
        count in 1_u32..=6,
        admitted_ppm in prop::sample::select(vec![900_000, 950_000, 1_000_000, 123_457]),
        requests in prop::collection::vec((asked(), any::<bool>()), 20),
    ) {
        let mut host = Processors {
            online: (0..count).collect(),
            admitted_ppm,
            others: Vec::new(),
        };
        let mut held: Vec<Reservation> = Vec::new();
        for (n, ((time, period, bits), is_foreign)) in requests.into_iter().enumerate() {
            let of = |time: u64| Reservation {
                holder: format!("holder-{n}"),
                slice: Slice::new(Nanos::from_micros(time), Nanos::from_micros(period), false)
                    .expect("a slice"),
                processors: (0..7).filter(|number| bits >> number & 1 == 1).collect(),
            };
            let with = |one: &Reservation| -> Vec<Reservation> {
                let others = host.others.iter().chain(&held).cloned();
                others.chain([one.clone()]).collect()
            };
            let asked = of(time);
            let answer = host.admit(&held, &asked);
            prop_assert_eq!(answer.is_ok(), admissible(&host, &with(&asked)), "{:?}", asked);
            if let Err(refusal) = answer {
                let most = refusal.largest.map_or(9, |largest| largest.0 / 1_000);
                prop_assert!(most < time);
                prop_assert!(most < 10 || admissible(&host, &with(&of(most))));
                prop_assert!(!admissible(&host, &with(&of(most + 1))), "{}", refusal);
                let shown = super::share_ppm(&asked.slice) + refusal.held_ppm;
                prop_assert!(shown > refusal.capacity_ppm, "{}", refusal);
            } else if is_foreign {
                host.others.push(asked);
            } else {
                held.push(asked);
            }
        }
    }
}

#[test]
fn the_longest_exact_reservation_keeps_all_deadlines() {
    let host = host("01", 950_000, &[]);
    let held = reservations(&["a 6ms/10ms", "b 2ms/10ms"]);
    let like = reservation("c 1ms/10ms");
    // With c as x: 0.8 + x + max(0.6, x) ≤ 2, so x ≤ 0.6; the host would admit 0.95.
    let longest = host.longest_exact(&held, &like).expect("some");
    assert_eq!(longest, slice("6ms/10ms"));
    let with = |text: &str| {
        let mut all = held.clone();
        all.push(reservation(text));
        host.keeps_deadlines(&all)
    };
    assert!(with("c 6ms/10ms") && !with("c 6001us/10ms"));
    // On one processor, what the host admits.
    let one = reservation("c 1ms/10ms 1");
    assert_eq!(host.longest_exact(&[], &one), Some(slice("9500us/10ms")));
    // Sets that differ and have a common processor keep no deadlines.
    assert_eq!(host.longest_exact(&held, &one), None);
    let full = reservations(&["a 9ms/10ms", "b 9ms/10ms"]);
    assert_eq!(host.longest_exact(&full, &like), None);
}

proptest! {
    #![proptest_config(cases(64))]

    /// The longest exact reservation is the longest of all that are admitted and keep all
    /// deadlines.
    #[test]
    fn no_longer_exact_reservation_keeps_all_deadlines(
        held in prop::collection::vec((10_u64..150, 150_u64..300), 0..4),
        period in 100_u64..200,
        online in 1_usize..4,
    ) {
        let host = host(&"012"[..online], 950_000, &[]);
        let of = |us: u64, period: u64| {
            let slice = Slice::new(Nanos::from_micros(us), Nanos::from_micros(period), false);
            Reservation { slice: slice.expect("a slice"), ..reservation("x 1ms/10ms") }
        };
        let mut exact: Vec<Reservation> = Vec::new();
        for (time, period) in held {
            exact.push(of(time, period));
            if !host.keeps_deadlines(&exact) {
                exact.pop();
            }
        }
        let fits = |us: &u64| {
            let asked = of(*us, period);
            let is_admitted = host.admit(&exact, &asked).is_ok();
            let all: Vec<Reservation> = exact.iter().cloned().chain([asked]).collect();
            is_admitted && host.keeps_deadlines(&all)
        };
        let longest = (10..=period).rev().find(fits).map(|us| of(us, period).slice);
        prop_assert_eq!(host.longest_exact(&exact, &of(10, period)), longest);
    }
}
