use std::time::Duration;

use proptest::prelude::*;

use super::{RtoLimits, Rtt};
use crate::time::Instant;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

/// The formulas of RFC 6298 without the limits of the default.
fn plain() -> Rtt {
    Rtt::new(RtoLimits {
        min: Duration::ZERO,
        margin: ms(1),
        ..RtoLimits::default()
    })
}

#[test]
fn estimates_match_hand_computation() {
    let mut rtt = plain();
    assert_eq!(rtt.smoothed(), None);
    assert_eq!(rtt.latest(), None);
    assert_eq!(rtt.min(), None);
    assert_eq!(rtt.rto(), ms(1000));
    // (sample, SRTT, RTTVAR, RTO) in microseconds.
    let transcript = [
        // SRTT = R, RTTVAR = R/2, RTO = R + 4 * R/2.
        (100_000, 100_000, 50_000, 300_000),
        // RTTVAR = 3/4 * 50 + 1/4 * 40 = 47.5; SRTT = 7/8 * 100 + 1/8 * 140 = 105.
        (140_000, 105_000, 47_500, 295_000),
        // RTTVAR = 3/4 * 47.5 + 0 = 35.625; SRTT unchanged.
        (105_000, 105_000, 35_625, 247_500),
        // RTTVAR = 3/4 * 35.625 + 1/4 * 80 = 46.71875; SRTT = 7/8 * 105 + 1/8 * 25 = 95.
        (25_000, 95_000, 46_718, 281_875),
    ];
    for (sample, smoothed, variation, rto) in transcript {
        rtt.sample(at(1), us(sample), 1);
        let result = (rtt.smoothed(), rtt.variation().as_micros(), rtt.rto());
        assert_eq!(result, (Some(us(smoothed)), variation, us(rto)));
        assert_eq!(rtt.latest(), Some(us(sample)));
    }
    assert_eq!(rtt.min(), Some(ms(25)));
    assert_eq!(rtt.samples(), 4);
}

#[test]
fn several_samples_per_window_have_less_weight() {
    let mut rtt = plain();
    rtt.sample(at(1), ms(100), 4);
    rtt.sample(at(1), ms(140), 4);
    // beta' = 1/16: 50 + (40 - 50) / 16. alpha' = 1/32: 100 + 40 / 32.
    assert_eq!(rtt.variation(), us(49_375));
    assert_eq!(rtt.smoothed(), Some(us(101_250)));

    // 1000 samples of one round trip move the estimate about as far as e^(-1/8) predicts: the
    // binary places keep the small weights.
    let mut rtt = plain();
    rtt.sample(at(1), ms(100), 1000);
    for _ in 0..1000 {
        rtt.sample(at(1), us(100_010), 1000);
    }
    let gain = rtt.smoothed().unwrap() - ms(100);
    let expected = 10_000.0 * (1.0 - (-0.125_f64).exp());
    assert!(
        (gain.as_nanos() as f64 - expected).abs() < 2.0,
        "{gain:?} {expected}"
    );
}

#[test]
fn margin_covers_delayed_acknowledgments() {
    let mut rtt = Rtt::default();
    for _ in 0..100 {
        rtt.sample(at(1), ms(190), 1);
    }
    assert_eq!(rtt.rto(), ms(390));
}

#[test]
fn back_off_doubles_up_to_the_maximum() {
    let mut rtt = Rtt::default();
    for seconds in [1, 2, 4, 8, 16, 32, 64, 120, 120] {
        assert_eq!(rtt.rto(), Duration::from_secs(seconds));
        rtt.back_off();
    }
    assert_eq!(rtt.backoffs(), 9);
    // A sample alone does not end the back-off.
    rtt.sample(at(1), ms(100), 1);
    assert_eq!(rtt.rto(), Duration::from_secs(120));
    rtt.reset_backoff();
    assert_eq!(rtt.backoffs(), 0);
    assert_eq!(rtt.rto(), ms(300));
}

#[test]
fn lost_handshake_raises_the_initial_timeout_only() {
    let mut rtt = Rtt::default();
    rtt.handshake_lost();
    assert_eq!(rtt.rto(), Duration::from_secs(3));
    rtt.sample(at(1), ms(100), 1);
    assert_eq!(rtt.rto(), ms(300));
}

#[test]
fn minimum_forgets_old_samples() {
    let mut rtt = Rtt::default();
    rtt.sample(at(100), ms(10), 1);
    rtt.sample(at(105), ms(30), 1);
    assert_eq!(rtt.min(), Some(ms(10)), "the least of the interval");
    rtt.sample(at(110), ms(40), 1);
    assert_eq!(rtt.min(), Some(ms(10)), "of the interval before");
    rtt.sample(at(119), ms(35), 1);
    assert_eq!(rtt.min(), Some(ms(10)));
    rtt.sample(at(121), ms(50), 1);
    assert_eq!(rtt.min(), Some(ms(35)), "19 s later it is forgotten");
    rtt.sample(at(160), ms(60), 1);
    assert_eq!(rtt.min(), Some(ms(60)), "after a long time without samples");
}

#[test]
fn extreme_values_do_not_overflow() {
    let mut rtt = plain();
    for sample in [Duration::MAX, Duration::ZERO, Duration::MAX] {
        rtt.sample(at(1), sample, u32::MAX);
        rtt.sample(at(1), sample, 0);
    }
    for _ in 0..100 {
        rtt.back_off();
    }
    assert_eq!(rtt.rto(), Duration::from_secs(120));
    let limits = RtoLimits {
        initial: Duration::MAX,
        min: Duration::MAX,
        max: ms(500),
        margin: Duration::MAX,
    };
    let mut rtt = Rtt::new(limits);
    assert_eq!(rtt.rto(), ms(500));
    rtt.sample(at(1), ms(1), 1);
    rtt.back_off();
    assert_eq!(rtt.rto(), ms(500));
}

proptest! {
    #[test]
    fn rto_stays_within_limits(
        steps in prop::collection::vec((0_u64..5_000_000, 0_u32..100, 0_u8..4), 1..60),
    ) {
        let limits = RtoLimits::default();
        let mut rtt = Rtt::new(limits);
        let mut seen = Vec::new();
        for (time, (micros, per_window, action)) in steps.into_iter().enumerate() {
            match action {
                0 => rtt.back_off(),
                1 => rtt.reset_backoff(),
                _ => {
                    rtt.sample(at(time as u64), us(micros), per_window);
                    seen.push(us(micros));
                }
            }
            prop_assert!(limits.min <= rtt.rto() && rtt.rto() <= limits.max);
            let range = seen.iter().min().zip(seen.iter().max());
            if let Some((least, most)) = range {
                let smoothed = rtt.smoothed().unwrap();
                prop_assert!(*least <= smoothed && smoothed <= *most);
                let minimum = rtt.min().unwrap();
                prop_assert!(*least <= minimum && minimum <= rtt.latest().unwrap());
            }
        }
    }

    /// The formulas in floating point; the tolerance is 1 ns of rounding to nanoseconds and 1 ns of
    /// accumulated error.
    #[test]
    fn estimates_match_the_formulas(
        samples in prop::collection::vec((1_u64..2_000_000, 1_u32..50), 1..100),
    ) {
        let mut rtt = plain();
        let mut expected: Option<(f64, f64)> = None;
        for (micros, per_window) in samples {
            rtt.sample(at(1), us(micros), per_window);
            let sample = micros as f64 * 1000.0;
            let weight = f64::from(per_window);
            let (smoothed, variation) = match expected {
                None => (sample, sample / 2.0),
                Some((smoothed, variation)) => {
                    let (alpha, beta) = (1.0 / 8.0 / weight, 1.0 / 4.0 / weight);
                    (
                        (1.0 - alpha) * smoothed + alpha * sample,
                        (1.0 - beta) * variation + beta * (smoothed - sample).abs(),
                    )
                }
            };
            expected = Some((smoothed, variation));
            let result = rtt.smoothed().unwrap().as_nanos() as f64;
            prop_assert!((result - smoothed).abs() < 2.0, "{result} {smoothed}");
            let result = rtt.variation().as_nanos() as f64;
            prop_assert!((result - variation).abs() < 2.0, "{result} {variation}");
        }
    }
}
