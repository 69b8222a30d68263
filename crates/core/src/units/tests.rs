use alloc::format;
use alloc::string::ToString;

use proptest::prelude::*;

use super::{Amount, Bytes, Instant, Nanos, Rate};

fn rate(bits: u64) -> Rate {
    Rate::new(bits).expect("a rate")
}

#[test]
fn rates_parse_in_all_common_forms() {
    let cases = [
        ("the design's first example", "4mbit", 4_000_000),
        ("any case, with /s", "4Mbit/s", 4_000_000),
        ("kilo is a thousand for bits", "500kbit", 500_000),
        ("a decimal is exact", "1.5gbit", 1_500_000_000),
        ("bytes per second", "200kB/s", 1_600_000),
        ("binary bytes", "2MiB/s", 16_777_216),
        ("the paper's K is 1024", "128Kbyte/sec", 1_048_576),
        ("the paper's limit", "512 Kbyte/s", 4_194_304),
        ("plural", "1Mbytes/s", 8_388_608),
        ("binary bits", "1mibit", 1_048_576),
        ("spaces around and inside", "  4 Mbit/s ", 4_000_000),
        ("the smallest", "1kbit", 1_000),
        ("the smallest, in bits", "1000bit", 1_000),
        ("the largest", "1tbit", 1_000_000_000_000),
        ("what is below one bit/s is dropped", "1.3MiB/s", 10_905_190),
        (
            "more decimals than matter",
            "4.0000000000000000000000000001mbit",
            4_000_000,
        ),
        ("zeros in front", "0000000000000000000004mbit", 4_000_000),
    ];
    for (why, text, bits) in cases {
        assert_eq!(text.parse(), Ok(rate(bits)), "{why}: {text}");
    }
}

#[test]
fn invalid_rates_are_refused_with_the_reason() {
    let cases = [
        ("mbps", "10mbps", "write 10mbit (bits) or 10MB/s (bytes)"),
        (
            "any case",
            "10Mbps",
            "write 10mbit (bits) or 10MB/s (bytes)",
        ),
        ("bps", "5000bps", "write 5000bit (bits) or 5000B/s (bytes)"),
        (
            "bare number",
            "10",
            "it has no unit; write 10kbit or 10mbit (bits) or 10kB/s",
        ),
        (
            "negative",
            "-5mbit",
            "cannot be negative (allowed: from 1kbit to 1tbit)",
        ),
        (
            "exponent",
            "1e99gbit",
            "without an exponent (allowed: from 1kbit to 1tbit)",
        ),
        (
            "above the top",
            "1.1tbit",
            "too large (allowed: from 1kbit to 1tbit)",
        ),
        ("above 64 bits", "99999999999999999999gbit", "too large"),
        (
            "above 128 bits",
            "999999999999999999999999999999999999999999gbit",
            "too large",
        ),
        (
            "below the bottom",
            "999bit",
            "too small (allowed: from 1kbit to 1tbit)",
        ),
        ("zero", "0mbit", "too small"),
        ("an amount", "200kB", "kB is an amount; write 200kB/s"),
        (
            "Mb",
            "4Mb/s",
            "Mb can mean bits or bytes; write 4mbit (bits) or 4MB/s",
        ),
        ("KB", "4KB/s", "write 4kB/s (1000) or 4KiB/s (1024)"),
        (
            "M",
            "10M",
            "M is a prefix without a unit; write 10mbit (bits) or 10MB/s (bytes)",
        ),
        ("no number", "fast", "it must start with a number"),
        ("empty", "", "it must start with a number"),
        ("only a point", ".mbit", "it must start with a number"),
        ("half a number", "4.mbit", "it must start with a number"),
        ("two points", "4.0.0mbit", "it must start with a number"),
        (
            "unknown unit",
            "4parsec",
            "unknown unit; write 4mbit, 500kbit",
        ),
        ("no prefix before bps", "4kibps", "unknown unit"),
        ("control characters", "4\u{1b}[2Jbps", "unknown unit"),
        ("a sign inside", "4+mbit", "unknown unit"),
        ("percent is not a rate yet", "5%", "unknown unit"),
    ];
    for (why, text, expected) in cases {
        let error = text.parse::<Rate>().expect_err(why).to_string();
        assert!(error.contains(expected), "{why}: {text}: {error}");
        assert!(!error.contains(char::is_control), "{why}: {error:?}");
    }
}

#[test]
fn a_rate_is_shown_in_both_forms() {
    let cases = [
        (4_000_000, "4 Mbit/s (500 kB/s)"),
        (4_194_304, "4.194 Mbit/s (524.288 kB/s)"),
        (10_000_000, "10 Mbit/s (1.25 MB/s)"),
        (1_000, "1 kbit/s (125 B/s)"),
        (9_600, "9.6 kbit/s (1.2 kB/s)"),
        (1_500_000_000, "1.5 Gbit/s (187.5 MB/s)"),
        (1_000_000_000_000, "1 Tbit/s (125 GB/s)"),
        (999_999_999, "999.999 Mbit/s (124.999 MB/s)"),
    ];
    for (bits, text) in cases {
        assert_eq!(rate(bits).to_string(), text);
    }
    assert_eq!(format!("{:#}", rate(4_000_000)), "4 Mbit/s");
    assert_eq!(format!("{:#}", rate(4_194_304)), "4.194304 Mbit/s");
    assert_eq!(Amount(7).to_string(), "7 bit/s (0.875 B/s)");
    assert_eq!(Amount(0).to_string(), "0 bit/s (0 B/s)");
    assert_eq!(
        format!("{:>22}|", rate(4_000_000)),
        "   4 Mbit/s (500 kB/s)|"
    );
}

#[test]
fn sizes_and_times_parse_and_print() {
    let sizes = [
        ("1500", 1500, "1500B"),
        ("64KiB", 65_536, "64KiB"),
        ("64kB", 64_000, "64000B"),
        ("1.5MiB", 1_572_864, "1536KiB"),
        ("0", 0, "0B"),
        ("24B", 24, "24B"),
    ];
    for (text, bytes, shown) in sizes {
        assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        assert_eq!(Bytes(bytes).to_string(), shown);
    }
    let times = [
        ("5ms", 5_000_000, "5ms"),
        ("100us", 100_000, "100us"),
        ("100µs", 100_000, "100us"),
        ("2.4ms", 2_400_000, "2.4ms"),
        ("30s", 30_000_000_000, "30s"),
        ("90s", 90_000_000_000, "90s"),
        ("120s", 120_000_000_000, "2min"),
        ("1h", 3_600_000_000_000, "1h"),
        ("1ns", 1, "1ns"),
        ("0s", 0, "0s"),
    ];
    for (text, nanos, shown) in times {
        assert_eq!(text.parse(), Ok(Nanos(nanos)), "{text}");
        assert_eq!(Nanos(nanos).to_string(), shown);
    }
}

#[test]
fn invalid_sizes_and_times_are_refused_with_the_reason() {
    for (text, expected) in [
        ("64KB", "write 64kB (1000) or 64KiB (1024)"),
        ("64k", "write 64kB"),
        ("64Mb", "Mb can mean bits or bytes; write 64MB"),
        ("-1", "cannot be negative"),
        ("2TiB", "too large (allowed: from 0 to 1024GiB)"),
        ("10mbit", "unknown unit; write 1500"),
    ] {
        let error = text.parse::<Bytes>().expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    for (text, expected) in [
        ("5", "write 5ms or 5s"),
        ("5m", "unknown unit; write 5ms, 100us"),
        ("-5ms", "cannot be negative"),
        ("400d", "too large (allowed: from 0s to 8784h)"),
        ("soon", "must start with a number"),
    ] {
        let error = text.parse::<Nanos>().expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn waits_are_rounded_up_and_credit_is_rounded_down() {
    let odd = rate(3_000_000);
    assert_eq!(odd.time_for(Bytes(1)), Nanos(2_667));
    assert_eq!(odd.bytes_in(Nanos(2_666)), Bytes(0));
    assert_eq!(odd.bytes_in(Nanos(2_667)), Bytes(1));
    assert_eq!(rate(1_001).portion(1, 1), Some(rate(1_001)));
    assert_eq!(rate(10_001).portion(97, 100), Some(rate(9_700)));
    assert_eq!(rate(10_000).portion(1, 11), None);
    assert_eq!(rate(10_000).portion(1, 0), None);
    assert_eq!(Rate::MIN.time_for(Bytes(u64::MAX)), Nanos(u64::MAX));
    assert_eq!(Rate::MAX.bytes_in(Nanos(u64::MAX)).0, u64::MAX);
}

#[test]
fn an_amount_that_cannot_be_rounded_up_becomes_the_largest() {
    let up = |bits| Amount(bits).rounded_up_for_display();
    assert_eq!(up(u64::MAX - 1), Amount(u64::MAX));
    let last = u64::MAX - u64::MAX % 1_000_000_000;
    assert_eq!(up(last), Amount(last));
}

#[test]
fn time_does_not_wrap() {
    let end = Instant(u64::MAX);
    assert_eq!(end.after(Nanos(1)), end);
    assert_eq!(Instant(5).since(Instant(9)), Nanos(0));
    assert_eq!(Instant(9).since(Instant(5)), Nanos(4));
}

fn any_rate() -> impl Strategy<Value = Rate> {
    let by_magnitude = (3_u32..=12, 0_u64..1000).prop_map(|(magnitude, rest)| {
        let bits = 10_u64
            .pow(magnitude)
            .saturating_add(rest * 10_u64.pow(magnitude) / 1000);
        rate(bits.clamp(1_000, Rate::MAX.bits_per_second()))
    });
    prop_oneof![
        by_magnitude,
        (1_000..=Rate::MAX.bits_per_second()).prop_map(rate)
    ]
}

proptest! {
    #[test]
    fn a_compact_rate_parses_back(rate in any_rate()) {
        prop_assert_eq!(rate.compact().parse(), Ok(rate));
    }

    #[test]
    fn the_first_form_is_never_above_the_rate_nor_a_thousandth_below(rate in any_rate()) {
        let read: Rate = Amount::from(rate).bits_text().parse().expect("the form is a rate too");
        prop_assert!(read <= rate);
        prop_assert!(
            rate.bits_per_second() - read.bits_per_second() <= rate.bits_per_second() / 1000,
        );
    }

    #[test]
    fn the_alternate_form_and_the_rounded_up_amount_are_exact(rate in any_rate()) {
        prop_assert_eq!(format!("{rate:#}").parse(), Ok(rate));
        let up = Amount::from(rate).rounded_up_for_display();
        prop_assert!(up >= rate.into());
        if let Some(up) = up.as_rate() {
            prop_assert_eq!(Amount::from(up).bits_text().parse(), Ok(up));
        }
    }

    #[test]
    fn a_size_and_a_time_parse_back(n in 0..=Bytes::MAX.0, t in 0..=Nanos::MAX.0) {
        prop_assert_eq!(Bytes(n).to_string().parse(), Ok(Bytes(n)));
        prop_assert_eq!(Nanos(t).to_string().parse(), Ok(Nanos(t)));
    }

    #[test]
    fn a_decimal_rate_is_exact(
        whole in 0_u64..900,
        thousandths in 0_u64..1000,
        binary in any::<bool>(),
    ) {
        let (unit, size) = if binary { ("MiB/s", 8 << 20) } else { ("mbit", 1_000_000) };
        let exact = u128::from(whole * 1000 + thousandths) * size / 1000;
        let read = format!("{whole}.{thousandths:03}{unit}").parse::<Rate>();
        prop_assert_eq!(read.ok(), Rate::new(u64::try_from(exact).unwrap()));
    }

    #[test]
    fn credit_for_the_time_of_some_bytes_is_those_bytes(rate in any_rate(), n in 0_u64..1 << 40) {
        let time = rate.time_for(Bytes(n));
        prop_assert!(rate.bytes_in(time) >= Bytes(n));
        if time.0 > 0 {
            prop_assert!(rate.bytes_in(Nanos(time.0 - 1)) < Bytes(n.max(1)));
        }
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC{0,40}") {
        let _ = text.parse::<Rate>().map_err(|e| e.to_string());
        let _ = text.parse::<Bytes>().map_err(|e| e.to_string());
        let _ = text.parse::<Nanos>().map_err(|e| e.to_string());
    }

    #[test]
    fn nearly_valid_text_makes_no_parser_panic(
        number in "[-+]?[0-9]{0,45}[.]?[0-9]{0,45}",
        unit in "[a-zA-Zµ/%+]{0,8}",
    ) {
        let text = format!("{number}{unit}");
        if let Ok(rate) = text.parse::<Rate>() {
            prop_assert!(Rate::MIN <= rate && rate <= Rate::MAX);
        }
        let _ = text.parse::<Bytes>().map_err(|e| e.to_string());
        let _ = text.parse::<Nanos>().map_err(|e| e.to_string());
    }
}
