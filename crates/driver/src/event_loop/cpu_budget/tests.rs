use super::*;

const US: u64 = 1_000;

/// Simulates a thread that alternates between work and idleness; returns the part of the time that
/// it was awake.
fn simulate(budget: &mut CpuBudget, busy: u64, idle: u64, rounds: u64) -> f64 {
    let (mut now, mut awake) = (budget.kernel.accounted_until.0, 0);
    let begin = now;
    for _ in 0..rounds {
        now += busy;
        awake += busy;
        if let Some(pause) = budget.charge(Instant(now)) {
            now += pause.as_nanos() as u64;
            budget.credit(Instant(now), Nanos(0));
        }
        // Before sleeping, the thread spins for half of the idle time if it may.
        let spin = budget.spin_credit().min(idle / 2);
        now += spin;
        awake += spin;
        budget.charge(Instant(now));
        now += idle - spin;
        budget.credit(Instant(now), Nanos(0));
    }
    awake as f64 / (now - begin) as f64
}

#[test]
fn a_thread_that_sleeps_enough_may_always_spin() {
    let mut budget = CpuBudget::new(Instant(5));
    simulate(&mut budget, 20 * US, 100 * US, 10_000);
    assert!(budget.spin_credit() == u64::MAX && budget.kernel.credit > FULL * 9 / 10);
}

#[test]
fn a_thread_stops_spinning_when_it_sleeps_too_little() {
    let mut budget = CpuBudget::new(Instant(5));
    // 80 us of work, 10 of spin and 10 of sleep: a tenth of sleep suffices. 85 of work, 7.5 and
    // 7.5: it does not.
    let share = simulate(&mut budget, 80 * US, 20 * US, 100_000);
    assert!((0.89..0.91).contains(&share), "{share}");
    let share = simulate(&mut budget, 85 * US, 15 * US, 100_000);
    assert!((0.91..0.92).contains(&share), "{share}");
}

#[test]
fn a_busy_thread_pauses_only_after_the_kernel_has_stopped_it() {
    let mut budget = CpuBudget::new(Instant(5));
    assert!(simulate(&mut budget, 500 * US, 0, 10_000) > 0.999_9);
    budget.charge(Instant(budget.kernel.accounted_until.0 + 50_000 * US));
    let share = simulate(&mut budget, 500 * US, 0, 100_000);
    assert!((0.91..0.92).contains(&share), "{share}");
}

#[test]
fn a_clock_that_jumps_leaves_the_credit_within_its_bounds() {
    let mut budget = CpuBudget::new(Instant(u64::MAX));
    budget.charge(Instant(0));
    budget.credit(Instant(u64::MAX), Nanos(0));
    budget.charge(Instant(u64::MAX));
    budget.credit(Instant(3), Nanos(0));
    assert!(budget.kernel.credit.abs() <= FULL);
}

fn reservation(budget: u64) -> Option<Reservation> {
    Some(Reservation {
        budget: Nanos(budget * US),
        period: Nanos(1_000 * US),
    })
}

#[test]
fn a_thread_with_a_reservation_spins_within_three_quarters_of_it() {
    for (percent, expected) in [(10, 0.075), (30, 0.225), (60, 0.45)] {
        let mut budget = CpuBudget::new(Instant(5));
        budget.set_reservation(reservation(percent * 10));
        let share = simulate(&mut budget, 5 * US, 115 * US, 100_000);
        assert!((share - expected).abs() < 0.01, "{percent} %: {share}");
    }
}

/// The kernel charges a thread for its sleeps too.
#[test]
fn the_cost_of_sleeps_counts_against_a_reservation() {
    let mut budget = CpuBudget::new(Instant(5));
    budget.set_reservation(reservation(300));
    let mut spun = 0;
    for _ in 0..100_000 {
        let spin = budget.spin_credit().min(50 * US);
        spun += spin;
        let now = budget.kernel.accounted_until.0 + spin;
        budget.charge(Instant(now));
        budget.credit(Instant(now + 100 * US - spin), Nanos(10 * US));
    }
    // 22.5 % of the time in all, 10 % of it for the sleeps.
    let share = spun as f64 / (100_000 * 100 * US) as f64;
    assert!((0.12..0.13).contains(&share), "{share}");
}

/// A thread that sleeps for some 100 us at a time uses much of the processor for its sleeps.
#[test]
fn the_cost_of_sleeps_counts_as_awake() {
    let mut budget = CpuBudget::new(Instant(5));
    let (cost, mut awake, mut all) = (15 * US, 0, 0);
    for _ in 0..100_000 {
        let spin = budget.spin_credit().min(100 * US);
        let now = budget.kernel.accounted_until.0 + 10 * US + spin;
        budget.charge(Instant(now));
        budget.credit(Instant(now + 120 * US - spin), Nanos(cost));
        awake += 10 * US + spin + cost;
        all += 130 * US;
    }
    let share = awake as f64 / all as f64;
    assert!((0.9..0.92).contains(&share), "{share}");
}

/// The work of a thread is not delayed by its account: the kernel divides the processor.
#[test]
fn a_thread_with_a_reservation_works_without_pauses_and_does_not_spin_then() {
    let mut budget = CpuBudget::new(Instant(5));
    budget.set_reservation(reservation(300));
    budget.charge(Instant(budget.kernel.accounted_until.0 + 50_000 * US));
    let share = simulate(&mut budget, 40 * US, 60 * US, 100_000);
    assert!((0.399..0.401).contains(&share), "{share}");
    assert_eq!(budget.spin_credit(), 0);
}

#[test]
fn a_thread_whose_reservation_ends_spins_as_before() {
    let mut budget = CpuBudget::new(Instant(5));
    budget.set_reservation(reservation(100));
    simulate(&mut budget, 90 * US, 10 * US, 1_000);
    assert_eq!(budget.spin_credit(), 0);
    budget.set_reservation(None);
    assert_eq!(budget.spin_credit(), u64::MAX);
    let share = simulate(&mut budget, 80 * US, 20 * US, 100_000);
    assert!((0.89..0.91).contains(&share), "{share}");
}

#[test]
fn a_clock_that_jumps_leaves_the_credit_of_a_reservation_within_its_bounds() {
    for budget_us in [0, 300, 1_000] {
        let mut budget = CpuBudget::new(Instant(0));
        budget.set_reservation(reservation(budget_us));
        budget.credit(Instant(u64::MAX), Nanos(0));
        assert!(budget.kernel.credit.abs() <= FULL);
        budget.charge(Instant(0));
        budget.charge(Instant(u64::MAX));
        assert!(budget.kernel.credit.abs() <= FULL);
    }
}

/// As a reservation does, but the kernel does not stop the thread, and the limit of SCHED_FIFO
/// stays.
#[test]
fn a_thread_whose_time_awake_is_limited_spins_within_three_quarters_of_the_limit() {
    let mut budget = CpuBudget::new(Instant(5));
    budget.set_awake_limit(600_000, Instant(5));
    let share = simulate(&mut budget, 5 * US, 115 * US, 100_000);
    assert!((share - 0.45).abs() < 0.01, "{share}");
    // Its work is not delayed, unless the kernel has stopped the thread.
    assert!(simulate(&mut budget, 500 * US, 0, 10_000) > 0.999_9);
    budget.charge(Instant(budget.kernel.accounted_until.0 + 50_000 * US));
    let share = simulate(&mut budget, 500 * US, 0, 100_000);
    assert!((0.91..0.92).contains(&share), "{share}");
    budget.set_awake_limit(1_000_000, Instant(0));
    let share = simulate(&mut budget, 80 * US, 20 * US, 100_000);
    assert!((0.89..0.91).contains(&share), "{share}");
}

#[test]
fn a_limit_of_nothing_permits_no_spinning() {
    let mut budget = CpuBudget::new(Instant(5));
    budget.set_awake_limit(0, Instant(5));
    let share = simulate(&mut budget, 5 * US, 95 * US, 1_000);
    assert!((share - 0.05).abs() < 0.001, "{share}");
}
