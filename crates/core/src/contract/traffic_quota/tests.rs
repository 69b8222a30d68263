use alloc::format;
use alloc::string::ToString;

use proptest::prelude::*;

use super::*;

fn quota(text: &str) -> TrafficQuota {
    read(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn contract(text: &str) -> Contract {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn each_form_parses_and_prints() {
    for (text, written) in [
        ("20GB/month", "20GB/month"),
        ("20000MB/month", "20GB/month"),
        ("1.5GiB/week", "1536MiB/week"),
        ("64KiB/hour", "64KiB/hour"),
        ("1TB/day,then=1mbit", "1TB/day,then=1mbit"),
        ("1000TB/day", "1000TB/day"),
        ("1B/hour,count=both", "1B/hour"),
        (
            "5GB/day,zone=Etc/GMT+5,count=down,then=200kB/s",
            "5GB/day,then=1600kbit,count=down,zone=Etc/GMT+5",
        ),
    ] {
        assert_eq!(quota(text).to_string(), written, "{text}");
        assert_eq!(quota(written), quota(text), "{text}");
    }
}

#[test]
fn each_fault_is_one_clear_error() {
    for (text, fault) in [
        (
            "20/month",
            "`20` is not an amount of data: it has no unit; write 20MB or 20GB",
        ),
        (
            "20GB",
            "`20GB` is not a quota: write an amount of data and a period",
        ),
        ("20GB/year", "`20GB/year` is not a quota"),
        ("20GB/Month", "`20GB/Month` is not a quota"),
        ("/month", "it must start with a number"),
        ("0GB/day", "too small (allowed: from 1B to 1000TB)"),
        ("0.1B/day", "too small (allowed: from 1B to 1000TB)"),
        ("1001TB/day", "too large (allowed: from 1B to 1000TB)"),
        (
            "99999999999999999999999999999999999999999999GB/day",
            "too large",
        ),
        ("18446744073709551616B/day", "too large"),
        ("-1GB/day", "cannot be negative"),
        ("1e3GB/day", "without an exponent"),
        ("5Gb/day", "Gb can mean bits or bytes"),
        ("5KB/day", "KB can mean 1000 or 1024 bytes"),
        ("5GB/day,", "no value in"),
        ("5GB/day,then", "no value in `then`"),
        ("5GB/day,then=0", "`0` is not a rate"),
        ("5GB/day,then=1mbit,then=2mbit", "twice `then`"),
        ("5GB/day,rate=1mbit", "unknown part `rate`"),
        ("5GB/day,count=left", "no such direction: `left`"),
        (
            "5GB/day,zone=../etc",
            "not the name of a time zone: `../etc`",
        ),
        ("5GB/day,zone=", "not the name of a time zone"),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(error.starts_with("quota: "), "{text}: {error}");
        assert!(error.contains(fault), "{text}: {error}");
        assert!(!error.contains('\n') && error.len() < 260, "{error}");
    }
}

#[test]
fn a_rate_after_the_quota_and_a_guarantee_exclude_each_other() {
    for guarantee in ["min 1mbit", "min-down 1mbit", "slice 1ms/10ms"] {
        let text = format!("quota 1GB/day,then=2mbit {guarantee}");
        let error = text.parse::<Contract>().expect_err(&text).to_string();
        assert!(error.contains("then=2 Mbit/s"), "{error}");
        contract(&format!("quota 1GB/day {guarantee}"));
    }
    contract("quota 1GB/day,then=2mbit up 10mbit when mon-fri");
}

#[test]
fn after_the_quota_its_rate_bounds_what_it_counts() {
    for (before, spent, after) in [
        ("quota 1GB/day", "1GB/day", "quota 1GB/day"),
        (
            "up 9mbit quota 1GB/day,then=1mbit",
            "1GB/day,then=1mbit",
            "up 1mbit down 1mbit quota 1GB/day,then=1mbit",
        ),
        (
            "up 9mbit quota 1GB/day,then=1mbit,count=down",
            "1GB/day,then=1mbit,count=down",
            "up 9mbit down 1mbit quota 1GB/day,then=1mbit,count=down",
        ),
        (
            "up 500kbit down 9mbit",
            "1GB/day,then=1mbit,count=up",
            "up 500kbit down 9mbit",
        ),
        ("both 9mbit", "1GB/day,then=1mbit,count=up", "both 1mbit"),
        (
            "both 9mbit min 1mbit min-down 2mbit",
            "1GB/day,then=1mbit",
            "both 3mbit min 1mbit min-down 2mbit",
        ),
        (
            "min 5mbit",
            "1GB/day,then=1mbit",
            "up 5mbit down 1mbit min 5mbit",
        ),
    ] {
        let lowered = contract(before).after_quota(&quota(spent));
        assert_eq!(lowered, contract(after), "{before}, {spent}");
    }
}

#[test]
fn quotas_that_lower_a_limit_are_displayed_first() {
    let mut all = [
        quota("1GB/day"),
        quota("1GB/hour,then=1mbit"),
        quota("20GB/month"),
    ];
    all.sort_by(TrafficQuota::display_order);
    let texts = all.map(|quota| quota.to_string());
    assert_eq!(texts, ["1GB/hour,then=1mbit", "20GB/month", "1GB/day"]);
}

proptest! {
    #[test]
    fn every_quota_prints_as_text_that_parses_to_it(
        amount in prop_oneof![1..=Bytes::MAX_AMOUNT.0, (1..=1000_u64).prop_map(|n| n * 1_000_000_000)],
        period in 0..4_usize,
        then in proptest::option::of(1_000..=1_000_000_000_000_u64),
        counted in 0..3_usize,
        zone in proptest::option::of("[A-Z][a-z]{1,10}/[A-Z][a-z_+-]{1,10}"),
    ) {
        let counted = ["both", "up", "down"][counted];
        let quota = TrafficQuota {
            amount: Bytes(amount),
            period: QuotaPeriod::ALL[period],
            then: then.and_then(Rate::new),
            counted: Counted::from_word(counted).expect("a direction"),
            zone: zone.map(Into::into),
        };
        prop_assert_eq!(read(&quota.to_string()), Ok(quota.clone()));
        let change: crate::contract::Change = format!("quota {quota}").parse().expect("a change");
        prop_assert_eq!(change.to_string(), format!("quota {quota}"));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<alloc::string::String>()) {
        let _ = read(&text);
    }

    /// No limit rises, and every counted direction has one.
    #[test]
    fn no_limit_rises_after_the_quota(
        up in proptest::option::of(1_000..100_000_u64),
        both in any::<bool>(),
        then in 1_000..100_000_u64,
    ) {
        let limit = up.map(|up| format!("{} {up}bit", if both { "both" } else { "up" }));
        let before = contract(&limit.unwrap_or_else(|| "none".into()));
        let spent = quota(&format!("1GB/day,then={then}bit"));
        let after = before.after_quota(&spent);
        prop_assert!(after.is_limited());
        for (now, was) in [(after.up(), before.up()), (after.both(), before.both())] {
            prop_assert!(now.is_none_or(|now| now.bits_per_second() <= then));
            prop_assert!(was.is_none_or(|was| now.is_some_and(|now| now <= was)));
        }
        prop_assert!(before.apply(&after.as_change()).is_ok() || before.is_limited());
    }
}
