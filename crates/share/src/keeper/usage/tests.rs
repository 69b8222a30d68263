use super::Usage;

const MS: u64 = 1_000_000;
const SHARE: u64 = 1_000_000;

/// Reads the counter every 200 ms at these rates in bit/s; returns the state after each reading.
fn after(rates: &[u64]) -> Vec<Option<u64>> {
    let mut usage = Usage {
        full_share: SHARE,
        ..Usage::default()
    };
    let (mut at, mut bytes) = (0, 0);
    usage.add_reading(at, bytes, SHARE);
    let mut seen = Vec::new();
    for rate in rates {
        at += 200 * MS;
        bytes += rate / 8 / 5;
        let share = usage.idle.map_or(SHARE, |_| SHARE / 8);
        usage.add_reading(at, bytes, share);
        seen.push(usage.idle);
    }
    seen
}

#[test]
fn two_quiet_seconds_make_a_session_idle_and_one_busy_reading_ends_that() {
    let mut rates = vec![0; 12];
    rates.extend([100_000, 900_000]);
    let seen = after(&rates);
    assert_eq!(seen[8], None);
    assert_eq!(seen[9], Some(0));
    assert_eq!(seen[11], Some(0));
    // More than half of the eighth that it kept.
    assert_eq!(seen[12], None);
    assert_eq!(seen[13], None);
}

#[test]
fn a_pause_is_not_idleness() {
    let mut rates = vec![0; 9];
    rates.push(500_000);
    rates.extend([0; 9]);
    assert!(after(&rates).iter().all(Option::is_none));
}

#[test]
fn an_idle_session_reports_its_highest_usage() {
    let seen = after(&[40_000; 12]);
    assert_eq!(seen[11], Some(40_000));
}
