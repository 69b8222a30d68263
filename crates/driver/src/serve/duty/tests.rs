use super::*;

const US: u64 = 1_000;

/// Simulates a thread that alternates between work and idleness; returns the part of the time that
/// it was awake.
fn play(duty: &mut Duty, busy: u64, idle: u64, rounds: u64) -> f64 {
    let (mut now, mut awake) = (duty.since.0, 0);
    let begin = now;
    for _ in 0..rounds {
        now += busy;
        awake += busy;
        if let Some(pause) = duty.awake(Instant(now)) {
            now += pause.as_nanos() as u64;
            duty.slept(Instant(now));
        }
        // Before sleeping, the thread spins for half of the idle time if it may.
        let spin = if duty.may_spin() { idle / 2 } else { 0 };
        now += spin;
        awake += spin;
        duty.awake(Instant(now));
        now += idle - spin;
        duty.slept(Instant(now));
    }
    awake as f64 / (now - begin) as f64
}

#[test]
fn who_sleeps_enough_spins_always() {
    let mut duty = Duty::new(Instant(5));
    play(&mut duty, 20 * US, 100 * US, 10_000);
    assert!(duty.may_spin() && duty.credit > FULL * 9 / 10);
}

#[test]
fn spinning_ends_where_it_would_take_all() {
    let mut duty = Duty::new(Instant(5));
    // 80 us of work, 10 of spin and 10 of sleep: a tenth of sleep suffices. 85 of work, 7.5 and
    // 7.5: it does not.
    let share = play(&mut duty, 80 * US, 20 * US, 100_000);
    assert!((0.89..0.91).contains(&share), "{share}");
    let share = play(&mut duty, 85 * US, 15 * US, 100_000);
    assert!((0.91..0.92).contains(&share), "{share}");
}

#[test]
fn work_is_not_held_up_before_it_was_stopped_once() {
    let mut duty = Duty::new(Instant(5));
    assert!(play(&mut duty, 500 * US, 0, 10_000) > 0.999_9);
    duty.awake(Instant(duty.since.0 + 50_000 * US));
    let share = play(&mut duty, 500 * US, 0, 100_000);
    assert!((0.91..0.92).contains(&share), "{share}");
}

#[test]
fn a_clock_that_jumps_breaks_nothing() {
    let mut duty = Duty::new(Instant(u64::MAX));
    duty.awake(Instant(0));
    duty.slept(Instant(u64::MAX));
    duty.awake(Instant(u64::MAX));
    duty.slept(Instant(3));
    assert!(duty.credit.abs() <= FULL);
}
