use proptest::prelude::*;

use super::Prr;

const MSS: u32 = 1000;

/// One loss in a window of 20 segments with a threshold of 14 (CUBIC). Two duplicate ACKs precede
/// recovery, so `RecoverFS` is 18. Each ACK delivers one segment by SACK, and the sender sends
/// whole segments.
#[test]
fn one_loss_reduces_in_proportion() {
    let mut prr = Prr::new(18 * MSS, 14 * MSS, MSS);
    let mut in_flight = 17 * MSS;
    let mut sent = Vec::new();
    for _ in 0..17 {
        in_flight -= MSS;
        let allowed = prr.acknowledged(MSS, in_flight, true) / MSS * MSS;
        prr.sent(allowed);
        in_flight += allowed;
        sent.push(allowed / MSS);
    }
    // The first retransmission is forced. ceil(n * 14 / 18) is 1.6, 2.3, 3.1 and 3.9 for the next
    // ACKs. Before the sixth one the bytes in flight are at the threshold. From the seventh one on
    // each delivery gives one segment.
    assert_eq!(sent, [1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(in_flight, 14 * MSS);
}

#[test]
fn proportional_part_rounds_up() {
    let mut prr = Prr::new(30_000, 21_000, MSS);
    assert_eq!(prr.acknowledged(1000, 29_000, true), 1000, "forced");
    prr.sent(500);
    // 1001 * 21000 / 30000 = 700.7, of which 500 were sent.
    assert_eq!(prr.acknowledged(1, 28_999, true), 201);
    prr.sent(201);
    // 2002 * 0.7 = 1401.4, of which 701 were sent.
    assert_eq!(prr.acknowledged(1001, 28_998, false), 701);
}

#[test]
fn first_retransmission_is_forced_once() {
    // A timer starts recovery: nothing is delivered.
    let mut prr = Prr::new(10_000, 7_000, MSS);
    assert_eq!(prr.acknowledged(0, 9_000, true), MSS);
    prr.sent(MSS);
    assert_eq!(prr.acknowledged(0, 9_000, true), 0);
    // 700 were due for the next delivery, and 1000 were sent.
    assert_eq!(prr.acknowledged(1000, 8_000, true), 0);
    assert_eq!(prr.acknowledged(1000, 7_500, true), 400);
}

#[test]
fn below_the_threshold_the_bound_depends_on_the_ack() {
    // Burst loss: 20 segments, of which 15 are lost. The pipe is far below the threshold.
    let start = Prr::new(20_000, 14_000, MSS);
    let mut prr = start.clone();
    assert_eq!(prr.acknowledged(1000, 4_000, true), 1000, "conservative");
    let mut prr = start.clone();
    assert_eq!(prr.acknowledged(1000, 4_000, false), 2000, "slow start");
    let mut prr = start.clone();
    assert_eq!(prr.acknowledged(1000, 13_500, false), 1000, "forced");
    prr.sent(200);
    assert_eq!(prr.acknowledged(1000, 13_500, false), 500, "threshold");
    // What was delivered and not sent may be sent later.
    let mut prr = start.clone();
    prr.acknowledged(3000, 4_000, true);
    prr.sent(1000);
    assert_eq!(prr.acknowledged(1000, 4_000, true), 3000);
    // RFC 6937 would give prr_delivered - prr_out = 0 here.
    let mut prr = start;
    prr.acknowledged(1000, 4_000, false);
    prr.sent(2000);
    assert_eq!(prr.acknowledged(1000, 5_000, true), 1000);
}

#[test]
fn marking_losses_alone_gives_no_allowance() {
    let mut prr = Prr::new(20_000, 14_000, MSS);
    let allowed = prr.acknowledged(2000, 17_000, true);
    assert_eq!(allowed, 1400);
    prr.sent(1000);
    assert_eq!(prr.acknowledged(0, 5_000, true), 400);
}

#[test]
fn degenerate_values() {
    let mut prr = Prr::new(0, 2000, MSS);
    assert_eq!(prr.acknowledged(u32::MAX, u32::MAX, false), u32::MAX);
    prr.sent(u32::MAX);
    let mut prr = Prr::new(u32::MAX, u32::MAX, u32::MAX);
    assert_eq!(prr.acknowledged(u32::MAX, 0, false), u32::MAX);
}

proptest! {
    /// While the bytes in flight exceed the threshold, the total sent is at most the share of the
    /// delivered bytes, rounded up, or the one forced segment.
    #[test]
    fn sends_the_share_above_the_threshold(
        flight in 20_000_u32..1_000_000,
        percent in 10_u32..100,
        acks in prop::collection::vec((0_u32..5_000, any::<bool>(), 0_u32..=100), 1..200),
    ) {
        let threshold = flight / 100 * percent;
        let mut prr = Prr::new(flight, threshold, MSS);
        let (mut delivered, mut out) = (0_u64, 0_u64);
        for (bytes, loss_seen, use_percent) in acks {
            delivered += u64::from(bytes);
            let allowed = prr.acknowledged(bytes, threshold + 1, loss_seen);
            let sent = allowed / 100 * use_percent;
            prr.sent(sent);
            out += u64::from(sent);
            let share = (delivered * u64::from(threshold)).div_ceil(u64::from(flight));
            prop_assert!(out <= share.max(u64::from(MSS)), "{out} of {delivered}");
        }
    }

    /// A whole recovery with random losses. The sending that an ACK permits never raises the bytes
    /// in flight above the larger of the threshold and their number before the ACK, except by the
    /// forced segment. The total sent is at most what was delivered, plus one MSS for each safe
    /// ACK, plus the forced segment.
    #[test]
    fn in_flight_and_total_are_bounded(
        segments in 10_u32..300,
        percent in 10_u32..100,
        acks in prop::collection::vec((1_u32..4, 0_u32..4, any::<bool>()), 1..200),
    ) {
        let flight = segments * MSS;
        let threshold = flight / 100 * percent;
        let mut prr = Prr::new(flight, threshold, MSS);
        let (mut in_flight, mut out) = (flight, 0_u64);
        let mut bound = u64::from(MSS);
        for (count, lost, advanced) in acks {
            let count = (count * MSS).min(in_flight);
            in_flight -= count;
            let lost = (lost * MSS).min(in_flight);
            in_flight -= lost;
            let safe = advanced && lost == 0;
            let allowed = prr.acknowledged(count, in_flight, !safe);
            let before = in_flight;
            prr.sent(allowed);
            in_flight += allowed;
            out += u64::from(allowed);
            bound += u64::from(count);
            if safe {
                bound += u64::from(MSS);
            }
            let ceiling = threshold.max(before + count).max(before + MSS);
            prop_assert!(in_flight <= ceiling, "{in_flight} > {ceiling}");
            prop_assert!(out <= bound, "{out} > {bound}");
        }
    }

    /// Without further losses, a recovery of one round trip ends with the threshold in flight:
    /// less than 2 MSS below it, because the sender sends whole segments.
    #[test]
    fn one_round_ends_at_the_threshold(segments in 10_u32..500, percent in 20_u32..100) {
        let flight = segments * MSS;
        let threshold = u32::try_from(u64::from(flight) * u64::from(percent) / 100).unwrap();
        let threshold = threshold.max(2 * MSS);
        let mut prr = Prr::new(flight, threshold, MSS);
        let mut in_flight = flight - MSS;
        for _ in 1..segments {
            in_flight -= MSS;
            let allowed = prr.acknowledged(MSS, in_flight, true) / MSS * MSS;
            prr.sent(allowed);
            in_flight += allowed;
        }
        prop_assert!(in_flight <= threshold, "{in_flight} > {threshold}");
        prop_assert!(in_flight + 2 * MSS > threshold, "{in_flight} < {threshold}");
    }
}
