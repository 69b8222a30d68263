//! Tests of the usage by period: a model of a clock that jumps, and the file.

use proptest::prelude::*;

use super::*;

fn at(text: &str) -> u64 {
    let instant: jiff::Timestamp = text.parse().expect("an instant");
    u64::try_from(instant.as_nanosecond()).expect("after 1970")
}

fn name() -> UsageName {
    UsageName {
        target: "unit:a.service".into(),
        period: QuotaPeriod::Day,
        counted: Counted::Both,
        zone: Some("UTC".into()),
    }
}

fn book(now_ns: u64) -> UsageBook {
    let mut book = UsageBook::default();
    book.add(name(), None, now_ns);
    for usage in book.records.values_mut() {
        usage.active = true;
        usage.limit = Some(1_000);
    }
    book
}

/// A kernel that counts as the eBPF programs do.
#[derive(Default)]
struct Counter(BTreeMap<u64, QuotaState>);

impl Counter {
    fn set(&mut self, entries: &BTreeMap<u64, QuotaEntry>) {
        for (key, entry) in entries {
            let state = self.0.entry(*key).or_insert(QuotaState {
                entry: *entry,
                bytes: 0,
                refused: 0,
                live: true,
            });
            state.entry = *entry;
        }
    }

    fn pass(&mut self, bytes: u64) -> bool {
        let state = self.0.values_mut().next().expect("a quota");
        let after = state.bytes.wrapping_sub(state.entry.base) + bytes;
        let fits = state.entry.limit.is_none_or(|limit| after <= limit);
        match fits {
            true => state.bytes += bytes,
            false => state.refused += 1,
        }
        fits
    }
}

fn step(book: &mut UsageBook, counter: &mut Counter, now_ns: u64) {
    book.read(&counter.0);
    book.advance(now_ns);
    counter.set(&book.entries(None));
}

/// Passes packets of 10 bytes until one is refused; the bytes that passed.
fn drain(counter: &mut Counter) -> u64 {
    let passed = (0..1_000).take_while(|_| counter.pass(10)).count();
    passed as u64 * 10
}

#[test]
fn each_period_gives_its_amount_once_whatever_the_clock_does() {
    let days = |n: u64| at("2026-11-24T12:00:00Z") + n * 86_400_000_000_000;
    let mut counter = Counter::default();
    let mut book = book(days(0));
    let mut given = |book: &mut UsageBook, now_ns| {
        step(book, &mut counter, now_ns);
        drain(&mut counter)
    };
    assert_eq!(given(&mut book, days(0)), 1_000);
    assert_eq!(
        given(&mut book, days(0) + 3_600_000_000_000),
        0,
        "the same day"
    );
    assert_eq!(
        given(&mut book, days(0) - 3_600_000_000_000),
        0,
        "back in the day"
    );
    assert_eq!(
        given(&mut book, days(0) - 86_400_000_000_000),
        0,
        "back before the day"
    );
    assert_eq!(given(&mut book, days(0)), 0, "and forward to it again");
    assert_eq!(given(&mut book, days(30)), 1_000, "a jump forward, once");
    assert_eq!(given(&mut book, days(0)), 0, "back");
    assert_eq!(given(&mut book, days(30)), 0, "the same jump again");
    assert_eq!(given(&mut book, days(0)), 0);
    assert_eq!(
        given(&mut book, days(1)),
        1_000,
        "the next day is not lost by the jump"
    );
    assert_eq!(given(&mut book, days(0)), 0);
    assert_eq!(given(&mut book, days(1)), 0);
}

#[test]
fn a_daemon_that_lost_its_file_continues_with_the_counts_of_the_kernel() {
    let now = at("2026-11-24T12:00:00Z");
    let mut counter = Counter::default();
    let mut first = book(now);
    step(&mut first, &mut counter, now);
    assert!((0..40).all(|_| counter.pass(10)));
    // A new book has the same key; the kernel's period is later than that of an old file.
    for since in [now, now - 86_400_000_000_000] {
        let mut again = book(since);
        step(&mut again, &mut counter, now);
        assert_eq!(again.records[&name()].used, 400);
        assert_eq!(
            again.records[&name()].period.start_ns,
            at("2026-11-24T00:00:00Z")
        );
    }
    assert_eq!(drain(&mut counter), 600);
}

#[test]
fn after_a_reboot_the_file_counts_and_processes_are_forgotten() {
    let now = at("2026-11-24T12:00:00Z");
    let mut counter = Counter::default();
    let mut book = book(now);
    step(&mut book, &mut counter, now);
    assert!((0..40).all(|_| counter.pass(10)));
    step(&mut book, &mut counter, now);
    let process = UsageName {
        target: "pid:7@12".into(),
        ..name()
    };
    book.add(process.clone(), Some(1000), now);
    let store = |boot: &str| UsageStore::new(std::path::Path::new("/nowhere"), boot);
    let bytes = store("one").bytes(&book).expect("bytes");
    let same = store("one").parse(&bytes).expect("the same boot");
    assert!(same.has_records_of(&book));
    let mut next = store("two").parse(&bytes).expect("another boot");
    assert!(!next.records.contains_key(&process));
    for usage in next.records.values_mut() {
        (usage.active, usage.limit) = (true, Some(1_000));
    }
    let mut counter = Counter::default();
    step(&mut next, &mut counter, now);
    assert_eq!(drain(&mut counter), 600);
    let mut damaged = bytes.clone();
    let digit = damaged.len() - 5;
    damaged[digit] ^= 1;
    assert!(store("one").parse(&damaged).is_err());
}

#[test]
fn a_count_that_ended_with_the_programs_is_continued_by_a_new_one() {
    let now = at("2026-11-24T12:00:00Z");
    let mut counter = Counter::default();
    let mut book = book(now);
    step(&mut book, &mut counter, now);
    assert!((0..40).all(|_| counter.pass(10)));
    for state in counter.0.values_mut() {
        state.live = false;
    }
    book.read(&counter.0);
    let mut counter = Counter::default();
    counter.set(&book.entries(None));
    assert_eq!(drain(&mut counter), 600);
}

#[test]
fn two_names_never_share_a_key() {
    let mut book = book(0);
    let taken = book.records[&name()].key;
    let other = UsageName {
        target: "unit:b.service".into(),
        ..name()
    };
    // As if the hash of the other were the same.
    for usage in book.records.values_mut() {
        usage.key = other.preferred_key();
    }
    book.add(other.clone(), None, 0);
    assert_ne!(book.records[&other].key, book.records[&name()].key);
    assert_ne!(taken, 0);
}

proptest! {
    /// Against a naive count by calendar day: no day gives more than its amount, on whatever path
    /// the clock reaches it, as long as it is remembered; and a clock that only goes forward gives
    /// each day its whole amount.
    #[test]
    fn no_day_gives_more_than_its_amount(
        hours in proptest::collection::vec((0..8_u64 * 24, 0..60_u64), 1..40),
        forward in any::<bool>(),
    ) {
        let begin = at("2026-03-26T00:00:00Z");
        let mut hours = hours;
        if forward {
            hours.sort_unstable();
        }
        let mut counter = Counter::default();
        let mut book = book(begin);
        let mut days: BTreeMap<u64, u64> = BTreeMap::new();
        for (hour, packets) in hours {
            step(&mut book, &mut counter, begin + hour * 3_600_000_000_000);
            let passed = (0..packets).filter(|_| counter.pass(25)).count() as u64 * 25;
            let of_day = days.entry(hour / 24).or_default();
            if forward {
                prop_assert_eq!(passed, (packets * 25).min(1_000 - *of_day));
            }
            *of_day += passed;
            prop_assert!(*of_day <= 1_000);
        }
    }
}
