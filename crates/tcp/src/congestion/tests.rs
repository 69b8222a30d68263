mod properties;

use std::collections::VecDeque;
use std::time::Duration;

use super::{Algorithm, Congestion, MAX_WINDOW, Progress, cubic, initial_window};
use crate::rtt::Rtt;
use crate::time::Instant;

const MSS: u32 = 1000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + ms(millis)
}

/// A connection that was measured at a round-trip time of `rtt`.
fn measured(rtt: Duration) -> Rtt {
    let mut estimator = Rtt::default();
    estimator.sample(Instant::ZERO, rtt, 1);
    estimator
}

/// An acknowledgment of `acked` bytes with the window in use. The positions keep HyStart++ in one
/// round.
fn acked(acked: u32) -> Progress {
    Progress {
        acked,
        delivered: 0,
        sent: u64::MAX,
        limited: true,
    }
}

/// A sender with `window` segments at the end of a recovery or of slow start.
fn avoiding(algorithm: Algorithm, segments: u32) -> Congestion {
    let mut congestion = Congestion::new(algorithm, MSS);
    congestion.state.window = segments * MSS;
    congestion.state.threshold = segments * MSS;
    congestion
}

#[test]
fn initial_window_matches_rfc_6928() {
    let cases = [
        ("10 segments below 1460", 536, 5_360),
        ("Ethernet", 1_460, 14_600),
        ("at most 14600 above 1460", 4_000, 14_600),
        ("at least 2 segments", 8_960, 17_920),
    ];
    for (why, mss, window) in cases {
        let congestion = Congestion::new(Algorithm::Cubic, mss);
        assert_eq!(congestion.window(), window, "{why}");
        assert!(congestion.in_slow_start(), "{why}");
    }
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    congestion.handshake_lost();
    assert_eq!(congestion.window(), MSS);
}

#[test]
fn slow_start_grows_by_the_acknowledged_bytes() {
    let rtt = measured(ms(50));
    for algorithm in [Algorithm::Cubic, Algorithm::Reno] {
        let mut congestion = Congestion::new(algorithm, MSS);
        congestion.acknowledged(at(0), acked(2 * MSS), &rtt);
        assert_eq!(congestion.window(), 12 * MSS);
        // L = 8.
        congestion.acknowledged(at(0), acked(12 * MSS), &rtt);
        assert_eq!(congestion.window(), 20 * MSS);
        congestion.set_paced(true);
        congestion.acknowledged(at(0), acked(12 * MSS), &rtt);
        assert_eq!(congestion.window(), 32 * MSS);
        // The application limited the window.
        let limited = Progress {
            limited: false,
            ..acked(MSS)
        };
        congestion.acknowledged(at(0), limited, &rtt);
        assert_eq!(congestion.window(), 32 * MSS);
    }
}

#[test]
fn reno_halves_and_grows_by_a_segment_per_window() {
    let rtt = measured(ms(50));
    let mut congestion = avoiding(Algorithm::Reno, 20);
    congestion.enter_recovery(20 * MSS);
    assert_eq!(congestion.threshold(), 10 * MSS);
    congestion.set_recovery_window(15 * MSS);
    assert_eq!(congestion.window(), 15 * MSS);
    congestion.acknowledged(at(0), acked(MSS), &rtt);
    assert_eq!(congestion.window(), 15 * MSS, "no growth in recovery");
    congestion.exit_recovery();
    assert_eq!(congestion.window(), 10 * MSS);
    for _ in 0..10 {
        congestion.acknowledged(at(0), acked(MSS), &rtt);
    }
    // 1000 * 1000 / 10000 = 100, then 1000 * 1000 / 10100 = 99.0, and so on: a little below 1 MSS.
    assert!((10_900..=11_000).contains(&congestion.window()));
    congestion.timeout(congestion.window(), true);
    assert_eq!(congestion.window(), MSS);
    assert!(congestion.in_slow_start());
    let threshold = congestion.threshold();
    assert!((5_450..=5_500).contains(&threshold));
    // The same segment again: the threshold is kept (RFC 5681, section 3.1).
    congestion.timeout(MSS, false);
    assert_eq!(
        (congestion.window(), congestion.threshold()),
        (MSS, threshold)
    );
    // The application used 4 of 20 segments: half of the bytes in flight.
    let mut congestion = avoiding(Algorithm::Reno, 20);
    congestion.enter_recovery(4 * MSS);
    assert_eq!(congestion.threshold(), 2 * MSS);
}

#[test]
fn slow_start_ends_at_the_threshold() {
    let rtt = measured(ms(50));
    let mut congestion = avoiding(Algorithm::Cubic, 20);
    congestion.timeout(20 * MSS, true);
    assert_eq!(congestion.threshold(), 14 * MSS);
    for _ in 0..7 {
        congestion.acknowledged(at(0), acked(2 * MSS), &rtt);
    }
    assert_eq!(congestion.window(), 14 * MSS, "not 15");
    assert!(!congestion.in_slow_start());
}

#[test]
fn cubic_reduces_by_beta_with_fast_convergence() {
    let mut congestion = avoiding(Algorithm::Cubic, 100);
    congestion.enter_recovery(100 * MSS);
    assert_eq!(congestion.window(), 70 * MSS);
    congestion.exit_recovery();
    let w_max = |congestion: &Congestion| {
        let mut congestion = congestion.clone();
        let rtt = measured(ms(1));
        // K seconds after the start of the epoch the target is W_max.
        congestion.acknowledged(at(0), acked(0), &rtt);
        let super::Avoidance::Cubic(cubic) = &congestion.state.avoidance else {
            unreachable!()
        };
        cubic.plateau()
    };
    assert_eq!(w_max(&congestion), Some(100 * MSS));
    // 70 < 100: W_max = 70 * 0.85.
    congestion.enter_recovery(70 * MSS);
    congestion.exit_recovery();
    assert_eq!(congestion.window(), 49 * MSS);
    assert_eq!(w_max(&congestion), Some(59_500));
    // A mark at 49 < 59.5: W_max = 41.65.
    congestion.congestion_mark(49 * MSS);
    assert_eq!(congestion.window(), 34_300);
    assert_eq!(w_max(&congestion), Some(41_650));
    // After a timeout W_max is the window at the start of the epoch.
    congestion.timeout(34_300, true);
    let rtt = measured(ms(1));
    while congestion.in_slow_start() {
        congestion.acknowledged(at(0), acked(MSS), &rtt);
    }
    assert_eq!(w_max(&congestion), Some(congestion.window()));
    assert_eq!(congestion.window(), 24_010);
}

#[test]
fn reductions_have_lower_limits() {
    for algorithm in [Algorithm::Cubic, Algorithm::Reno] {
        let mut congestion = avoiding(algorithm, 2);
        congestion.congestion_mark(2 * MSS);
        assert!(congestion.window() >= MSS && congestion.window() < 2 * MSS);
        assert_eq!(congestion.threshold(), 2 * MSS);
        congestion.congestion_mark(MSS);
        congestion.congestion_mark(MSS);
        assert_eq!(congestion.window(), MSS);
        congestion.enter_recovery(MSS);
        assert_eq!(congestion.window(), 2 * MSS);
        congestion.set_recovery_window(0);
        assert_eq!(congestion.window(), MSS);
    }
}

#[test]
fn timeout_in_recovery_starts_from_the_threshold() {
    let mut congestion = avoiding(Algorithm::Cubic, 100);
    let before = congestion.state.clone();
    congestion.enter_recovery(100 * MSS);
    congestion.set_recovery_window(5 * MSS);
    congestion.timeout(90 * MSS, true);
    assert_eq!(congestion.threshold(), 49 * MSS, "0.7 * 0.7 * 100");
    congestion.exit_recovery();
    assert_eq!(congestion.window(), MSS, "recovery is over");
    congestion.undo();
    assert_eq!(congestion.state, before, "the state before recovery");
}

/// Found by `window_and_threshold_stay_in_range`: the stage of CUBIC survived a repeated timeout,
/// and its remainder gave more growth than was acknowledged.
#[test]
fn repeated_timeout_ends_the_stage_of_cubic() {
    let rtt = measured(ms(50));
    let mut congestion = avoiding(Algorithm::Cubic, 100);
    congestion.acknowledged(at(0), acked(MSS), &rtt);
    congestion.acknowledged(at(5000), acked(1), &rtt);
    congestion.timeout(100 * MSS, false);
    congestion.state.threshold = MSS;
    let window = congestion.window();
    congestion.acknowledged(at(5000), acked(1), &rtt);
    assert!(congestion.window() <= window + 1);
}

#[test]
fn undo_ignores_final_reductions_and_keeps_growth() {
    let mut congestion = avoiding(Algorithm::Cubic, 100);
    congestion.enter_recovery(100 * MSS);
    congestion.congestion_mark(90 * MSS);
    congestion.undo();
    assert_eq!(congestion.threshold(), 70 * MSS, "a mark is not spurious");
    congestion.exit_recovery();

    let mut congestion = avoiding(Algorithm::Reno, 4);
    congestion.enter_recovery(4 * MSS);
    congestion.exit_recovery();
    let rtt = measured(ms(50));
    for _ in 0..40 {
        congestion.acknowledged(at(0), acked(MSS), &rtt);
    }
    let grown = congestion.window();
    assert!(grown > 4 * MSS);
    congestion.undo();
    assert_eq!(congestion.window(), grown);
    assert_eq!(congestion.threshold(), 4 * MSS);
}

#[test]
fn idle_restarts_with_the_initial_window() {
    let mut congestion = avoiding(Algorithm::Cubic, 100);
    congestion.idle(at(1000), ms(150), ms(200));
    assert_eq!(congestion.window(), 100 * MSS, "shorter than the RTO");
    congestion.idle(at(2000), ms(201), ms(200));
    assert_eq!(congestion.window(), initial_window(MSS));
    assert_eq!(congestion.threshold(), 100 * MSS);
    let mut congestion = avoiding(Algorithm::Cubic, 4);
    congestion.idle(at(2000), ms(201), ms(200));
    assert_eq!(congestion.window(), 4 * MSS, "not above the window");
}

#[test]
fn unused_time_does_not_count_for_cubic() {
    let rtt = measured(ms(10));
    let start = {
        let mut congestion = avoiding(Algorithm::Cubic, 100);
        congestion.enter_recovery(100 * MSS);
        congestion.exit_recovery();
        congestion.acknowledged(at(0), acked(MSS), &rtt);
        congestion
    };
    let after = |mut congestion: Congestion, now| {
        congestion.acknowledged(now, acked(70 * MSS), &rtt);
        congestion.window()
    };
    let expected = after(start.clone(), at(1000));
    assert_ne!(after(start.clone(), at(4000)), expected);

    let mut idle = start.clone();
    idle.idle(at(3000), ms(3000), ms(5000));
    assert_eq!(after(idle, at(4000)), expected, "idle");

    let unused = Progress {
        limited: false,
        ..acked(MSS)
    };
    let mut limited = start.clone();
    limited.acknowledged(at(500), acked(0), &rtt);
    for time in [1000, 2000, 3500] {
        limited.acknowledged(at(time), unused, &rtt);
    }
    assert_eq!(after(limited, at(4000)), expected, "application-limited");

    let mut both = start;
    both.idle(at(3000), ms(3000), ms(5000));
    both.acknowledged(at(3010), unused, &rtt);
    assert_eq!(after(both, at(4010)), expected, "no time is excluded twice");
}

#[test]
fn smaller_mss_keeps_the_window() {
    let mut congestion = avoiding(Algorithm::Cubic, 3);
    congestion.set_mss(536);
    assert_eq!(congestion.window(), 3 * MSS);
    congestion.set_mss(8960);
    assert_eq!(congestion.window(), 8960);
    assert_eq!(congestion.threshold(), 2 * 8960);
}

#[test]
fn cube_root_is_exact() {
    for (value, root) in [(0, 0), (1, 1), (7, 1), (8, 2), (26, 2), (27, 3)] {
        assert_eq!(cubic::cube_root(value), root, "{value}");
    }
    let largest = (1_u128 << 42) - 1;
    assert_eq!(u128::from(cubic::cube_root(largest.pow(3))), largest);
    assert_eq!(
        u128::from(cubic::cube_root(largest.pow(3) - 1)),
        largest - 1
    );
    // K of RFC 9438 for W_max = 1000 segments: cbrt(1000 * 0.3 / 0.4) = 9.085603 s.
    assert_eq!(cubic::time_to_plateau(300 * MSS, MSS), 9_085_602);
}

/// The window follows the curve. One ACK per 4 segments, W_max = 1000 segments, RTT = 50 ms, the
/// network loses nothing. The table shows the window over time.
#[test]
fn cubic_regains_w_max_after_k() {
    let rtt = measured(ms(50));
    let mut congestion = avoiding(Algorithm::Cubic, 1000);
    congestion.enter_recovery(1000 * MSS);
    congestion.exit_recovery();
    let k = (1000.0_f64 * 0.3 / 0.4).cbrt();
    let curve = |time: f64| (0.4 * (time - k).powi(3) + 1000.0) * f64::from(MSS);
    let mut nanos = 0;
    let mut regained = None;
    println!("   time   window    curve");
    for row in 0..=120_u64 {
        while nanos < row * 100_000_000 {
            let now = Instant::from_nanos(nanos);
            congestion.acknowledged(now, acked(4 * MSS), &rtt);
            if congestion.window() >= 1000 * MSS && regained.is_none() {
                regained = Some(nanos as f64 / 1e9);
            }
            nanos += 50_000_000 * u64::from(4 * MSS) / u64::from(congestion.window());
        }
        let time = nanos as f64 / 1e9;
        let window = f64::from(congestion.window());
        if row % 10 == 0 {
            println!("{time:5.1} s {:8} {:8.0}", congestion.window(), curve(time));
        }
        // The window approaches W_cubic(t + RTT) with a lag of one RTT. The two cancel out except
        // for C * (3 * RTT^2 * (K - t) + 2 * RTT^3), at most 0.03 segments.
        assert!((window - curve(time)).abs() < 100.0, "{time}: {window}");
    }
    let regained = regained.expect("W_max is regained");
    println!("W_max after {regained:.3} s, K = {k:.3} s");
    assert!((regained / k - 1.0).abs() < 0.02, "{regained} {k}");
}

/// In the Reno-friendly region, CUBIC grows by 9/17 segments per RTT to W_max and by 1 beyond
/// (RFC 9438, section 4.3). A small window on a short path never leaves it.
#[test]
fn cubic_is_reno_friendly_on_short_paths() {
    let rtt = measured(ms(1));
    let mut congestion = avoiding(Algorithm::Cubic, 20);
    congestion.enter_recovery(20 * MSS);
    congestion.exit_recovery();
    let mut micros = 0;
    let (mut segments, mut windows) = (0, Vec::new());
    for round in 1..=30 {
        let end = round * 1000;
        while micros < end {
            let now = Instant::from_nanos(micros * 1000);
            congestion.acknowledged(now, acked(MSS), &rtt);
            micros += 1000 * u64::from(MSS) / u64::from(congestion.window());
            segments += 1;
        }
        windows.push(f64::from(congestion.window()) / f64::from(MSS));
    }
    println!("{segments} segments, windows {windows:.2?}");
    // 14 + 11 * 9/17 = 19.8 after 11 rounds, 20.35 after 12; then 1 per round.
    assert!((windows[10] - 19.8).abs() < 0.4, "{}", windows[10]);
    assert!(
        (windows[29] - windows[14] - 15.0).abs() < 1.0,
        "{}",
        windows[29]
    );
}

/// A bottleneck with a FIFO queue and one sender. Each segment takes `segment_time`; the queue
/// holds `queue` segments; the rest of the round trip takes `delay`.
struct Bottleneck {
    congestion: Congestion,
    rtt: Rtt,
    segment_time: Duration,
    queue: usize,
    delay: Duration,
    /// Segments sent and not acknowledged: (sent at, acknowledged at, lost).
    flight: VecDeque<(Instant, Instant, bool)>,
    free: Instant,
    sent: u64,
    delivered: u64,
}

impl Bottleneck {
    fn new(algorithm: Algorithm, queue: usize) -> Bottleneck {
        Bottleneck {
            congestion: Congestion::new(algorithm, MSS),
            rtt: Rtt::default(),
            segment_time: Duration::from_micros(200),
            queue,
            delay: ms(40),
            flight: VecDeque::new(),
            free: Instant::ZERO,
            sent: 0,
            delivered: 0,
        }
    }

    fn send(&mut self, now: Instant) {
        while (self.flight.len() as u32 + 1) * MSS <= self.congestion.window() {
            let start = self.free.max(now);
            let waiting = start.since(now).as_nanos() / self.segment_time.as_nanos();
            let lost = waiting >= self.queue as u128;
            if !lost {
                self.free = start + self.segment_time;
            }
            self.flight.push_back((now, self.free + self.delay, lost));
            self.sent += u64::from(MSS);
        }
    }

    /// Runs until slow start ends or the ACKs reach a lost segment. Returns the window and the
    /// number of segments lost, in segments.
    fn slow_start(&mut self) -> (u32, usize) {
        self.send(Instant::ZERO);
        let mut row = Instant::ZERO;
        println!("   time  window     rtt");
        while self.congestion.in_slow_start() {
            let (sent, now, lost) = self.flight.pop_front().expect("segments in flight");
            if lost {
                let others = self.flight.iter().filter(|(_, _, lost)| *lost).count();
                return (self.congestion.window() / MSS, 1 + others);
            }
            self.rtt.sample(now, now.since(sent), 1);
            self.delivered += u64::from(MSS);
            let progress = Progress {
                acked: MSS,
                delivered: self.delivered,
                sent: self.sent,
                limited: true,
            };
            self.congestion.acknowledged(now, progress, &self.rtt);
            self.send(now);
            if now >= row {
                let window = self.congestion.window();
                let rtt = now.since(sent).as_millis();
                println!("{:4} ms {window:7} {rtt:4} ms", now.as_millis());
                row = now + ms(40);
            }
        }
        (self.congestion.window() / MSS, 0)
    }
}

/// 40 Mbit/s and 40 ms: the product of bandwidth and delay is 200 segments. HyStart++ detects the
/// delay at 2 to 3 products. Then the window grows by a quarter per round for 5 rounds, to 6 to 9
/// products. A queue of 8 products does not overflow. A queue of 4 products does, but the sender
/// loses a fifth of the window and not half of it.
#[test]
fn hystart_limits_the_loss_at_the_end_of_slow_start() {
    let cases = [
        (Algorithm::Cubic, 1600, 1200..1800, 0..1),
        (Algorithm::Reno, 1600, 3000..3700, 1400..1900),
        (Algorithm::Cubic, 800, 1100..1300, 100..300),
        (Algorithm::Reno, 800, 1800..2100, 800..1100),
    ];
    for (algorithm, queue, windows, losses) in cases {
        println!("{algorithm:?}, queue of {queue} segments");
        let (window, lost) = Bottleneck::new(algorithm, queue).slow_start();
        println!("slow start ends at {window} segments; {lost} segments are lost");
        assert!(windows.contains(&window), "{window}");
        assert!(losses.contains(&lost), "{lost}");
    }
}

/// A transcript of HyStart++ (RFC 9406, section 4.2) with rounds of 8 segments. The 8th sample of a
/// round decides, so the growth changes with the next round.
#[test]
fn hystart_transcript() {
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    let mut rtt = Rtt::default();
    let mut delivered = 0;
    // (RTT of the round in ms, growth in quarters of a segment)
    let rounds = [
        ("no round to compare with", 100, 32),
        ("100 + 100/8 = 112.5 is not reached", 112, 32),
        (
            "112 + 14 = 126 is reached: first conservative round",
            130,
            32,
        ),
        ("the baseline is 130", 130, 8),
        ("120 < 130: the rise was spurious", 120, 8),
        ("120 + 15 = 135 is not reached", 134, 32),
        ("134 + 16 (not 16.75) = 150 is reached", 150, 32),
        ("second conservative round", 200, 8),
        ("third", 150, 8),
        ("fourth", 150, 8),
        ("fifth", 150, 8),
    ];
    for (why, millis, quarters) in rounds {
        assert!(congestion.in_slow_start(), "{why}");
        let before = congestion.window();
        for _ in 0..8 {
            rtt.sample(at(0), ms(millis), 1);
            delivered += u64::from(MSS);
            let round = u64::from(8 * MSS);
            let progress = Progress {
                acked: MSS,
                delivered,
                sent: (delivered / round + 1) * round,
                limited: true,
            };
            congestion.acknowledged(at(0), progress, &rtt);
        }
        assert_eq!(congestion.window() - before, quarters * MSS / 4, "{why}");
    }
    assert!(!congestion.in_slow_start());
    assert_eq!(congestion.threshold(), congestion.window());
}

#[test]
fn hystart_counts_each_sample_once() {
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    let mut rtt = Rtt::default();
    for (delivered, sent, millis) in [(8, 16, 100), (16, 24, 100), (17, 24, 200)] {
        rtt.sample(at(0), ms(millis), 1);
        // Ten ACKs with the same latest sample, for example of retransmissions.
        for _ in 0..10 {
            let progress = Progress {
                acked: 0,
                delivered,
                sent,
                limited: true,
            };
            congestion.acknowledged(at(0), progress, &rtt);
        }
    }
    congestion.acknowledged(at(0), acked(4 * MSS), &rtt);
    assert_eq!(congestion.window(), 14 * MSS, "not conservative");
}
