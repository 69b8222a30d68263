use proptest::prelude::*;

use super::*;

fn schedule(text: &str) -> Schedule {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn at(text: &str) -> u64 {
    let instant: Timestamp = text.parse().expect("an instant");
    nanoseconds(instant).expect("after 1970")
}

/// Checks the changes of a schedule after an instant, one after the other.
fn check_changes(text: &str, from: &str, expected: &[(&str, bool)]) {
    let schedule = schedule(text);
    let mut now = at(from);
    for (when, active) in expected {
        let next = phase(&schedule, now).next_ns.expect("a change");
        assert_eq!(next, at(when), "{text}: after {now}");
        assert_eq!(phase(&schedule, next).active, *active, "{text}: {when}");
        assert_ne!(phase(&schedule, next - 1).active, *active, "{text}: {when}");
        now = next;
    }
}

#[test]
fn working_hours_follow_the_clocks_of_their_zone() {
    check_changes(
        "mon-fri 08:00-18:00 Europe/Berlin",
        "2026-03-27T12:00:00Z",
        &[
            ("2026-03-27T17:00:00Z", false),
            // Clocks went forward on Sunday, the 29th.
            ("2026-03-30T06:00:00Z", true),
            ("2026-03-30T16:00:00Z", false),
        ],
    );
    check_changes(
        "mon-fri 08:00-18:00 America/New_York",
        "2026-10-30T12:00:00Z",
        &[
            ("2026-10-30T22:00:00Z", false),
            ("2026-11-02T13:00:00Z", true),
        ],
    );
}

#[test]
fn skipped_time_does_not_come_and_repeated_time_comes_twice() {
    // Berlin, 29 March 2026: 02:00 becomes 03:00 at 01:00 UTC. 25 October: 03:00 becomes 02:00.
    check_changes(
        "sun 02:15-02:45 Europe/Berlin",
        "2026-03-23T00:00:00Z",
        &[
            ("2026-04-05T00:15:00Z", true),
            ("2026-04-05T00:45:00Z", false),
        ],
    );
    check_changes(
        "sun 02:15-02:45 Europe/Berlin",
        "2026-10-19T00:00:00Z",
        &[
            ("2026-10-25T00:15:00Z", true),
            ("2026-10-25T00:45:00Z", false),
            ("2026-10-25T01:15:00Z", true),
            ("2026-10-25T01:45:00Z", false),
            ("2026-11-01T01:15:00Z", true),
        ],
    );
    check_changes(
        "sun 02:30-04:00 Europe/Berlin",
        "2026-03-28T00:00:00Z",
        &[
            ("2026-03-29T01:00:00Z", true),
            ("2026-03-29T02:00:00Z", false),
        ],
    );
    check_changes(
        "sun 01:00-02:30 Europe/Berlin",
        "2026-10-24T12:00:00Z",
        &[
            ("2026-10-24T23:00:00Z", true),
            ("2026-10-25T00:30:00Z", false),
            ("2026-10-25T01:00:00Z", true),
            ("2026-10-25T01:30:00Z", false),
        ],
    );
}

#[test]
fn a_day_that_a_zone_leaves_out_does_not_come() {
    // Samoa had no 30 December 2011, a Friday.
    check_changes(
        "fri Pacific/Apia",
        "2011-12-28T00:00:00Z",
        &[
            ("2012-01-05T10:00:00Z", true),
            ("2012-01-06T10:00:00Z", false),
        ],
    );
}

#[test]
fn a_schedule_without_end_has_no_next_change() {
    let always = phase(&schedule("mon-sun UTC"), at("2026-01-01T00:00:00Z"));
    assert!(always.active);
    assert_eq!(always.next_ns, None);
}

fn check(when: &str) -> Result<(), String> {
    check_zone(&format!("up 4mbit when {when}").parse().expect("a contract"))
}

#[test]
fn an_unknown_zone_is_an_error_and_later_holds_at_all_times() {
    let nowhere = schedule("mon 08:00-09:00 Europe/Berlni");
    let error = check(&nowhere.to_string()).expect_err("no such zone");
    assert!(error.contains("Europe/Berlni is not in the time zone database"));
    let then = phase(&nowhere, at("2026-01-01T00:00:00Z"));
    assert_eq!((then.active, then.next_ns), (true, None));
    for zone in ["Europe/Berlin", "UTC", "Etc/GMT+5"] {
        check(&format!("mon@{zone}")).expect("a known zone");
    }
    check("mon").expect("the host's own zone");
}

#[test]
fn a_phase_is_over_at_its_end_after_an_hour_and_if_the_clock_goes_back() {
    let working = schedule("mon-fri 08:00-18:00 UTC");
    let minute = 60_000_000_000;
    let now = at("2026-11-24T17:30:00Z");
    let here = phase(&working, now);
    assert!(here.active);
    for (after, over) in [(0, false), (29, false), (30, true), (70, true)] {
        assert_eq!(here.may_be_over(now + after * minute), over, "{after}");
    }
    assert!(here.may_be_over(now - 1));
    let night = phase(&working, now + 31 * minute);
    assert!(!night.may_be_over(now + 90 * minute));
    assert!(night.may_be_over(now + 91 * minute));
}

#[test]
fn an_instant_is_shown_in_the_zone_of_its_schedule() {
    let text = local_text(&schedule("mon Europe/Berlin"), at("2026-11-24T17:00:00Z"));
    assert_eq!(text, "Tue 2026-11-24 18:00 CET");
}

/// Goes through every minute of some days and compares with the phase computed at the last change.
fn walk(schedule: &Schedule, from: u64, days: u64) -> Result<(), TestCaseError> {
    let minute = 60_000_000_000;
    let zone = zone_of(schedule).expect("a known zone");
    let from = from - from % minute;
    let mut here = phase(schedule, from);
    for now in (1..=days * 24 * 60).map(|n| from + n * minute) {
        let active = is_active(schedule, &zone, instant(now).expect("an instant"));
        match here.next_ns {
            Some(next) if now >= next => {
                prop_assert_eq!(now, next, "a change was missed");
                prop_assert_ne!(active, here.active, "there is no change at {}", now);
                here = phase(schedule, now);
                prop_assert_eq!(active, here.active);
            }
            _ => prop_assert_eq!(active, here.active, "a change at {}", now),
        }
    }
    Ok(())
}

#[test]
fn three_years_of_minutes_agree_with_the_computed_changes() {
    for text in [
        "mon-fri 08:00-18:00 Europe/Berlin",
        "sun 02:15-02:45; sat 22:00-03:00 America/New_York",
        "02:00-03:00 Australia/Lord_Howe",
    ] {
        walk(&schedule(text), at("2026-01-01T00:00:00Z"), 3 * 366).expect(text);
    }
}

proptest! {
    /// Around the changes of daylight saving of several zones; Lord Howe's are of half an hour,
    /// Troll's of two hours.
    #[test]
    fn every_minute_agrees_with_the_computed_changes(
        zone in "(Europe/Berlin|America/New_York|Australia/Lord_Howe|Antarctica/Troll|UTC)",
        day in 0..6 * 366_u64,
        windows in proptest::collection::vec((0..7_usize, 0..288_u16, 0..288_u16), 1..4),
    ) {
        let time = |n: u16| format!("{:02}:{:02}", n / 12, n % 12 * 5);
        let names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
        let windows: Vec<String> = windows
            .into_iter()
            .filter(|(_, start, end)| start != end)
            .map(|(day, start, end)| format!("{},sun {}-{}", names[day], time(start), time(end)))
            .collect();
        prop_assume!(!windows.is_empty());
        let schedule = schedule(&format!("{} {zone}", windows.join("; ")));
        walk(&schedule, at("2024-01-01T00:00:00Z") + day * 86_400_000_000_000, 20)?;
    }
}
