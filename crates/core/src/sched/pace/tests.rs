//! Compares the time and rate arithmetic of the shapers with exact arithmetic in 128 bits.

use proptest::prelude::*;

use super::*;

fn rates() -> impl Strategy<Value = Rate> {
    let bits = prop_oneof![
        1_000_u64..=1_000_000_000_000,
        Just(1_000),
        Just(1_000_000_000_000),
        (3_u32..=12).prop_map(|e| 10_u64.pow(e)),
    ];
    bits.prop_map(|bits| Rate::new(bits).unwrap())
}

proptest! {
    /// A packet never takes less than its length over the rate, and at most 2^-16 ns and one part
    /// in 2^25 more.
    #[test]
    fn a_span_is_the_quotient_rounded_up(rate in rates(), bytes in 0_u32..1 << 24) {
        let exact = u128::from(bytes) * 8 * NANOS_PER_SECOND * (1 << 16);
        let rate_bits = u128::from(rate.bits_per_second());
        let span = u128::from(Pace::of(rate).span(bytes).0);
        prop_assert!(span * rate_bits >= exact);
        let most = exact.div_ceil(rate_bits);
        prop_assert!(span <= most + (most >> 25) + 1, "{span} against {most}");
    }

    /// The sum of many packets is the sum of their spans, without a rounding in between.
    #[test]
    fn moments_carry_their_fractions(
        start in 0_u64..u64::MAX / 2,
        spans in prop::collection::vec(0_u64..1 << 40, 1..50),
    ) {
        let mut moment = Moment::at(start);
        let mut exact = u128::from(start) << 16;
        for span in spans {
            prop_assert_eq!(moment.plus(Span(span)), moment.saturating_plus(Span(span)));
            moment = moment.saturating_plus(Span(span));
            exact += u128::from(span);
            prop_assert_eq!(
                (u128::from(moment.nanos) << 16) + u128::from(moment.part),
                exact + u128::from(WHOLE),
            );
            prop_assert_eq!(u128::from(moment.nanos), exact.div_ceil(1 << 16));
            prop_assert_eq!(u128::from(moment.floor()), exact >> 16);
        }
    }

    #[test]
    fn scaling_rounds_up(span in 0_u64..1 << 40, factor in 0_u64..1 << 30) {
        let exact = (u128::from(span) * u128::from(factor)).div_ceil(1 << 16);
        prop_assert_eq!(u128::from(Span(span).scaled(factor).0), exact.min(u128::from(u64::MAX)));
    }

    #[test]
    fn a_pace_converts_back_to_its_rate(rate in rates()) {
        let bits = rate.bits_per_second();
        prop_assert!(Pace::of(rate).rate() <= bits);
        prop_assert!(Pace::of(rate).rate() >= bits - bits / 10_000_000 - 1);
    }

    #[test]
    fn the_difference_of_two_paces_is_rounded_down(
        a in rates(),
        b in rates(),
        bytes in 0_u32..1 << 24,
    ) {
        let (slow, fast) = if a < b { (a, b) } else { (b, a) };
        let slow_bits = u128::from(slow.bits_per_second());
        let fast_bits = u128::from(fast.bits_per_second());
        let bits = u128::from(bytes) * 8 * NANOS_PER_SECOND;
        // bits (1 / slow - 1 / fast), exact over a common denominator.
        let exact = bits / slow_bits * fast_bits + bits % slow_bits * fast_bits / slow_bits - bits;
        let ours = u128::from(Pace::of(slow).longer_than(Pace::of(fast), bytes));
        prop_assert!(ours <= exact / fast_bits, "{ours}");
        prop_assert!(ours + 2 >= exact / fast_bits, "{ours}");
        prop_assert_eq!(Pace::of(slow).longer_than(Pace::of(slow), bytes), 0);
    }
}

#[test]
fn sums_saturate_at_the_end_of_time() {
    let moment = Moment::at(u64::MAX - 1).saturating_plus(Span(5 << 16));
    assert_eq!(moment.nanos, u64::MAX);
    let moment = Moment::at(u64::MAX).saturating_plus(Span(u64::MAX));
    assert_eq!(moment.nanos, u64::MAX);
    assert_eq!(Span(u64::MAX).scaled(u64::MAX), Span(u64::MAX));
    let slowest = Pace::of(Rate::MIN).span((1 << 24) - 1);
    assert_eq!(slowest.ceil(), 134_217_720_000_000);
}
