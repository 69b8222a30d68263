use alloc::string::ToString;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::Schedule;
use crate::contract::Change;

fn schedule(text: &str) -> Schedule {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn each_form_parses_and_prints() {
    let cases = [
        ("mon-fri 08:00-18:00", "mon-fri@08:00-18:00"),
        ("  mon-fri\t08:00-18:00 ", "mon-fri@08:00-18:00"),
        (
            "mon-fri 08:00-18:00 Europe/Berlin",
            "mon-fri@08:00-18:00@Europe/Berlin",
        ),
        (
            "mon-fri 08:00-12:00; sat,sun 10:00-14:00 UTC",
            "mon-fri@08:00-12:00;sat,sun@10:00-14:00@UTC",
        ),
        ("08:00-18:00", "08:00-18:00"),
        ("mon-sun 08:00-18:00", "08:00-18:00"),
        ("sat,sun", "sat,sun"),
        ("sat,sun Etc/GMT+5", "sat,sun@Etc/GMT+5"),
        ("mon-sun", "mon-sun"),
        ("00:00-24:00", "mon-sun"),
        ("mon 18:00-00:00", "mon@18:00-24:00"),
        ("fri-mon", "mon,fri-sun"),
        ("tue,mon,tue-thu", "mon-thu"),
        ("22:00-06:00", "22:00-06:00"),
    ];
    for (text, written) in cases {
        assert_eq!(schedule(text).to_string(), written, "{text}");
        assert_eq!(schedule(written), schedule(text), "{text}");
        assert_eq!(schedule(&schedule(text).readable()), schedule(text));
        let change = alloc::format!("up 4mbit when {written}");
        let change: Change = change.parse().expect("contract text");
        assert_eq!(change.to_string().parse(), Ok(change));
    }
}

#[test]
fn another_form_is_refused_with_the_word() {
    let many = ["mon"; 9].join(";");
    let long = "mon;".repeat(200);
    let cases = [
        ("", "names no time"),
        ("@", "names no time"),
        ("mon;", "names no time"),
        ("mon;;tue", "names no time"),
        ("mno", "`mno` is not a day"),
        ("mon-frx 08:00-18:00", "`frx` is not a day"),
        ("Mon", "`Mon` is not a day"),
        ("mon 08:00", "`08:00` is not a time of day"),
        ("mon 8:00-18:00", "`8:00-18:00` is not a time of day"),
        ("mon 08:60-18:00", "is not a time of day"),
        ("mon 08:00-24:01", "is not a time of day"),
        ("mon 24:00-06:00", "is not a time of day"),
        ("mon 08:00-18:00-19:00", "is not a time of day"),
        ("mon +8:00-18:00", "is not a time of day"),
        (
            "mon 08:00-08:00",
            "`08:00-08:00` begins and ends at the same time and never comes",
        ),
        ("00:00-00:00", "never comes"),
        ("mon 08:00-18:00 UTC more", "`UTC` is one word too many"),
        (
            "mon 08:00-18:00 ../etc",
            "`../etc` is not the name of a time zone",
        ),
        ("mon UTC; tue", "is not a time of day"),
        (many.as_str(), "more than 8 windows"),
        (long.as_str(), "longer than 512 bytes"),
    ];
    for (text, expected) in cases {
        let error = text.parse::<Schedule>().expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.contains("for example mon-fri 08:00-18:00"), "{error}");
    }
}

#[test]
fn a_window_over_midnight_belongs_to_the_day_on_which_it_begins() {
    let night = schedule("fri 22:00-06:00");
    let (fri, sat) = (4, 5);
    assert!(
        !night.is_active(fri, 5 * 60),
        "Thursday's night is not in it"
    );
    assert!(night.is_active(fri, 22 * 60));
    assert!(night.is_active(fri, 24 * 60 - 1));
    assert!(night.is_active(sat, 0));
    assert!(night.is_active(sat, 6 * 60 - 1));
    assert!(!night.is_active(sat, 6 * 60));
    assert!(!night.is_active(sat, 22 * 60));
    let sunday = schedule("sun 22:00-06:00");
    assert!(sunday.is_active(0, 0), "the week begins again");
}

#[test]
fn a_schedule_is_for_limits_and_shares_and_not_for_guarantees() {
    for good in [
        "up 4mbit",
        "both 4mbit burst 1ms",
        "weight 7 priority 1 on eth0",
    ] {
        let text = alloc::format!("{good} when mon");
        assert!(text.parse::<Change>().is_ok(), "{text}");
    }
    for bad in [
        "min 1mbit",
        "min-down 1mbit",
        "slice 1ms/2ms",
        "cell pcr=4mbit,cdvt=1ms",
    ] {
        let text = alloc::format!("{bad} when mon");
        let error = text.parse::<Change>().expect_err("refused").to_string();
        let word = bad.split(' ').next().expect("a word");
        assert!(error.starts_with(word), "{error}");
        assert!(error.contains("cannot have a schedule"), "{error}");
    }
}

proptest! {
    /// Windows by their definition: those of a day, and those of the day before that reach into it.
    #[test]
    fn a_minute_is_active_if_a_window_covers_it(
        windows in proptest::collection::vec((1..128_u8, 0..1440_u16, 0..=1440_u16), 1..8),
    ) {
        let windows: Vec<(u8, u16, u16)> = windows
            .into_iter()
            .filter(|(_, start, end)| start != end)
            .map(|(days, start, end)| (days, start, if end == 0 { 1440 } else { end }))
            .filter(|(_, start, end)| start != end)
            .collect();
        prop_assume!(!windows.is_empty());
        let text: Vec<_> = windows
            .iter()
            .map(|(days, start, end)| {
                let named = super::DAYS.iter().enumerate().filter(|(n, _)| days & 1 << n != 0);
                let named: Vec<&str> = named.map(|(_, name)| *name).collect();
                alloc::format!(
                    "{} {:02}:{:02}-{:02}:{:02}",
                    named.join(","), start / 60, start % 60, end / 60, end % 60
                )
            })
            .collect();
        let schedule = schedule(&text.join("; "));
        prop_assert_eq!(schedule.to_string().parse(), Ok(schedule.clone()));
        let mut week = alloc::vec![false; 7 * 1440];
        for (days, start, end) in windows {
            for day in (0..7_usize).filter(|day| days & 1 << day != 0) {
                let length = (usize::from(end) + 1440 - usize::from(start)) % 1440;
                let length = if length == 0 { 1440 } else { length };
                for minute in 0..length {
                    week[(day * 1440 + usize::from(start) + minute) % (7 * 1440)] = true;
                }
            }
        }
        let boundaries = schedule.boundaries();
        for (n, active) in week.iter().enumerate() {
            let (day, minute) = ((n / 1440) as u8, (n % 1440) as u16);
            prop_assert_eq!(schedule.is_active(day, minute), *active);
            let before = week[(n + week.len() - 1) % week.len()];
            prop_assert!(before == *active || boundaries.contains(&minute) || minute == 0);
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<alloc::string::String>()) {
        let _ = text.parse::<Schedule>();
    }

    #[test]
    fn no_sequence_of_parts_makes_the_parser_panic(parts in proptest::collection::vec(
        "(mon|fri|sun|-|,|;|@| |:|08:00|24:00|18:30-|UTC|Europe/Berlin|none|0)", 0..14)
    ) {
        if let Ok(schedule) = parts.concat().parse::<Schedule>() {
            prop_assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
    }
}
