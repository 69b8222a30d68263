//! Properties of any sequence of events.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    Acknowledged(u32, bool),
    EnterRecovery(u32),
    ExitRecovery,
    RecoveryWindow(u32),
    Mark(u32),
    Timeout(u32, bool),
    Undo,
    Idle(u32),
    Mss(u32),
}

fn event() -> impl Strategy<Value = Event> {
    let bytes = || prop_oneof![0_u32..100_000, any::<u32>()];
    prop_oneof![
        8 => (bytes(), any::<bool>())
            .prop_map(|(acked, limited)| Event::Acknowledged(acked, limited)),
        1 => bytes().prop_map(Event::EnterRecovery),
        1 => Just(Event::ExitRecovery),
        1 => bytes().prop_map(Event::RecoveryWindow),
        1 => bytes().prop_map(Event::Mark),
        1 => (bytes(), any::<bool>()).prop_map(|(flight, first)| Event::Timeout(flight, first)),
        1 => Just(Event::Undo),
        1 => (0_u32..5_000).prop_map(Event::Idle),
        1 => prop_oneof![1_u32..70_000, any::<u32>()].prop_map(Event::Mss),
    ]
}

fn apply(congestion: &mut Congestion, now: Instant, event: &Event, rtt: &Rtt, position: u64) {
    match *event {
        Event::Acknowledged(acked, limited) => {
            let progress = Progress {
                acked,
                delivered: position,
                sent: position + 100,
                limited,
            };
            congestion.acknowledged(now, progress, rtt);
        }
        Event::EnterRecovery(flight) => congestion.enter_recovery(flight),
        Event::ExitRecovery => congestion.exit_recovery(),
        Event::RecoveryWindow(window) => congestion.set_recovery_window(window),
        Event::Mark(flight) => congestion.congestion_mark(flight),
        Event::Timeout(flight, first) => congestion.timeout(flight, first),
        Event::Undo => congestion.undo(),
        Event::Idle(millis) => congestion.idle(now, ms(u64::from(millis)), ms(200)),
        Event::Mss(mss) => congestion.set_mss(mss),
    }
}

proptest! {
    #[test]
    fn window_and_threshold_stay_in_range(
        reno in any::<bool>(),
        events in prop::collection::vec((event(), 0_u64..10_000, 0_u64..400), 1..300),
    ) {
        let algorithm = if reno { Algorithm::Reno } else { Algorithm::Cubic };
        let mut congestion = Congestion::new(algorithm, 1460);
        let mut rtt = Rtt::default();
        let mut time = 0;
        for (event, wait, sample) in events {
            time += wait;
            rtt.sample(at(time), ms(sample), 1);
            let before = congestion.clone();
            apply(&mut congestion, at(time), &event, &rtt, time);
            let (window, threshold) = (congestion.window(), congestion.threshold());
            prop_assert!((congestion.mss..=MAX_WINDOW).contains(&window), "{event:?}");
            prop_assert!(threshold >= congestion.mss, "{event:?}");
            match event {
                Event::Acknowledged(acked, _) => {
                    prop_assert!(before.window() <= window);
                    prop_assert!(window - before.window() <= acked);
                }
                Event::Mark(_) | Event::Idle(_) | Event::Timeout(..) => {
                    prop_assert!(window <= before.window().max(congestion.mss));
                }
                _ => {}
            }
        }
    }

    #[test]
    fn undo_restores_exactly(
        reno in any::<bool>(),
        history in prop::collection::vec((event(), 0_u64..1_000), 0..60),
        timeout in any::<bool>(),
        flight in any::<u32>(),
        recovery_window in any::<u32>(),
    ) {
        let algorithm = if reno { Algorithm::Reno } else { Algorithm::Cubic };
        let mut congestion = Congestion::new(algorithm, 1460);
        let rtt = measured(ms(30));
        let mut time = 0;
        for (event, wait) in history {
            time += wait;
            apply(&mut congestion, at(time), &event, &rtt, time);
        }
        congestion.exit_recovery();
        let before = congestion.state.clone();
        if timeout {
            congestion.timeout(flight, true);
            congestion.timeout(flight, false);
        } else {
            congestion.enter_recovery(flight);
            congestion.set_recovery_window(recovery_window);
        }
        congestion.undo();
        prop_assert_eq!(&congestion.state, &before);
        congestion.undo();
        prop_assert_eq!(&congestion.state, &before);
    }

    /// `W_cubic(t)` in f64. The tolerance is two bytes, plus 1e-9 of the cubic term for f64, plus
    /// the growth in the microsecond to which K and t are rounded.
    #[test]
    fn curve_matches_the_formula(
        w_max in 2_000_u32..500_000_000,
        share in 1_u32..=100,
        mss in 500_u32..9_000,
        micros in 0_u64..60_000_000,
    ) {
        let window = (u64::from(w_max) * u64::from(share) / 100) as u32;
        let window = window.max(1);
        let result = f64::from(cubic::curve(w_max, window, mss, Duration::from_micros(micros)));
        let segments = |bytes: u32| f64::from(bytes) / f64::from(mss);
        let k = ((segments(w_max) - segments(window)) / 0.4).cbrt();
        let distance = micros as f64 / 1e6 - k;
        let cubic = 0.4 * distance.powi(3) * f64::from(mss);
        let expected = (f64::from(w_max) + cubic).clamp(0.0, f64::from(MAX_WINDOW));
        let slope = 1.2 * distance.powi(2) * f64::from(mss) * 2e-6;
        let tolerance = 2.0 + cubic.abs() * 1e-9 + slope;
        prop_assert!((result - expected).abs() <= tolerance, "{result} {expected} {tolerance}");
    }

    /// One ACK of congestion avoidance against section 4.3 to 4.5 in f64; the tolerance is 2 bytes
    /// plus the tolerance of the curve.
    #[test]
    fn growth_matches_the_formula(
        segments in 10_u32..10_000,
        millis in 0_u64..30_000,
        rtt in 1_u64..500,
        count in 1_u32..20,
    ) {
        let mut congestion = avoiding(Algorithm::Cubic, segments);
        congestion.enter_recovery(segments * MSS);
        congestion.exit_recovery();
        let estimator = measured(ms(rtt));
        congestion.acknowledged(at(0), acked(0), &estimator);
        let before = f64::from(congestion.window()) / f64::from(MSS);
        congestion.acknowledged(at(millis), acked(count * MSS), &estimator);
        let after = f64::from(congestion.window()) / f64::from(MSS);

        let w_max = f64::from(segments);
        let k = ((w_max - before) / 0.4).cbrt();
        let curve = |time: u64| 0.4 * (time as f64 / 1000.0 - k).powi(3) + w_max;
        let estimate = before + 9.0 / 17.0 * f64::from(count) / before;
        let expected = if curve(millis) < estimate {
            estimate.max(before)
        } else {
            let target = curve(millis + rtt).clamp(before, before * 1.5);
            before + (target - before) / before * f64::from(count)
        };
        // At the boundary of the regions either result is right.
        if (curve(millis) - estimate).abs() > 0.01 {
            let tolerance = 0.002 + expected * 1e-6;
            prop_assert!((after - expected).abs() <= tolerance, "{after} {expected}");
        }
    }

    #[test]
    fn cube_root_is_the_floor(value in 0_u128..(1 << 126)) {
        let root = u128::from(cubic::cube_root(value));
        prop_assert!(root.pow(3) <= value && (root + 1).pow(3) > value);
    }
}
