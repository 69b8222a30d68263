//! Limits the packet thread's share of a processor, so that the kernel does not stop it for long.
//!
//! Linux reserves a twentieth of a processor for ordinary programs. If a SCHED_FIFO thread leaves
//! less, the kernel stops the thread for up to 50 ms of each second (`sched_rt_runtime_us`, since
//! 6.12 the fair server). A delay of microseconds is better than that. So [`CpuBudget`] is an
//! account of time: a nanosecond awake takes one from it, and a nanosecond asleep adds eleven, up
//! to [`FULL`] (10 ms). What falling asleep and waking cost counts as awake, as the kernel counts
//! it: with sleeps of some 100 µs it is several percent of the time.
//!
//! | credit | what the thread does |
//! |---|---|
//! | at least half of [`FULL`] | spins before a departure |
//! | less | sleeps until the departure instead |
//! | below 0, if the kernel has ever stopped the thread | also pauses 50 µs after an iteration |
//!
//! If no other thread needs the processor, the fair server does not stop the packet thread, and a
//! busy link gets the whole processor. A kernel before 6.12, or with `CONFIG_RT_GROUP_SCHED`, stops
//! it nevertheless.
//!
//! The kernel stops a thread with a reservation of processor time ([`Reservation`]) when its budget
//! is used up, until the end of the period. Work has the whole budget. Spinning gets only what
//! three quarters of it ([`SPIN_PPM`]) leave after the work, so that the next packets find some. So
//! a nanosecond asleep adds as much credit as keeps the thread awake for three quarters of the
//! budget, up to one budget. The thread spins for as long as its credit exceeds half of a budget.
//! It does not pause.
//!
//! While processor time is promised to programs, the daemon also limits a thread of SCHED_FIFO
//! ([`CpuBudget::set_awake_limit`]): a thread that waits awake beside them would take what is
//! theirs. A second account then counts as if the thread had such a reservation, and only bounds
//! the spinning.
//!
//! The caller passes the time and does the pauses. No call fails.

use std::time::Duration;

use netnice_core::units::{Instant, Nanos};

use super::reservation::Reservation;

/// The processor time that the packet thread may use before it must sleep.
#[derive(Debug)]
pub(crate) struct CpuBudget {
    /// What the kernel permits.
    kernel: Account,
    /// The limit while processor time is promised to programs.
    limit: Option<Account>,
}

/// Time awake and asleep.
#[derive(Debug)]
struct Account {
    /// Time that the thread may still be awake, in ns.
    credit: i64,
    /// Time is accounted for until this moment.
    accounted_until: Instant,
    /// The kernel has stopped the thread while it had work.
    was_stopped: bool,
    reservation: Option<Reservation>,
}

impl CpuBudget {
    /// The budget of a thread that has credit for [`FULL`] (10 ms).
    pub(crate) fn new(now: Instant) -> CpuBudget {
        CpuBudget {
            kernel: Account::new(now),
            limit: None,
        }
    }

    /// Accounts from now on by the thread's reservation; `None`: by the limit for SCHED_FIFO.
    pub(crate) fn set_reservation(&mut self, reservation: Option<Reservation>) {
        self.kernel.set_reservation(reservation);
    }

    /// Limits the time awake from now on to so many parts of a million, as far as it is spinning. A
    /// million or more: no limit.
    pub(crate) fn set_awake_limit(&mut self, most_ppm: u32, now: Instant) {
        self.limit = (most_ppm < WHOLE as u32).then(|| {
            let budget = Nanos(LIMIT_PERIOD.0 * u64::from(most_ppm) / WHOLE as u64);
            let mut account = Account::new(now);
            account.set_reservation(Some(Reservation {
                budget,
                period: LIMIT_PERIOD,
            }));
            account
        });
    }

    /// Charges the time until `now` as awake. Returns how long the thread should pause; `None`: it
    /// can continue.
    pub(crate) fn charge(&mut self, now: Instant) -> Option<Duration> {
        if let Some(limit) = &mut self.limit {
            limit.charge(now);
        }
        self.kernel.charge(now)
    }

    /// Credits the time until `now` as sleep. Falling asleep and waking took `cost` of the
    /// processor, which counts as awake.
    pub(crate) fn credit(&mut self, now: Instant, cost: Nanos) {
        if let Some(limit) = &mut self.limit {
            limit.credit(now, cost);
        }
        self.kernel.credit(now, cost);
    }

    /// For how long the thread may spin now, in ns; `u64::MAX`: no limit.
    pub(crate) fn spin_credit(&self) -> u64 {
        let limit = self.limit.as_ref().map_or(u64::MAX, Account::spin_credit);
        self.kernel.spin_credit().min(limit)
    }
}

impl Account {
    fn new(now: Instant) -> Account {
        Account {
            credit: FULL,
            accounted_until: now,
            was_stopped: false,
            reservation: None,
        }
    }

    fn set_reservation(&mut self, reservation: Option<Reservation>) {
        if self.reservation != reservation {
            self.reservation = reservation;
            self.was_stopped = false;
            self.credit = self.full();
        }
    }

    fn charge(&mut self, now: Instant) -> Option<Duration> {
        let (took, full) = (self.advance(now), self.full());
        self.was_stopped |= took >= STOPPED && self.reservation.is_none();
        // Time during which the thread was stopped is charged too, since it cannot be told apart.
        self.credit = (self.credit - took.min(full)).max(-full);
        (self.was_stopped && self.credit < 0).then_some(PAUSE)
    }

    fn credit(&mut self, now: Instant, cost: Nanos) {
        let slept = self.advance(now);
        let full = self.full();
        let cost = (cost.0.min(full as u64) as i64).min(slept);
        let asleep = slept - cost;
        let gained = match self.reservation {
            None => asleep.min(full) * CREDIT_PER_SLEEP,
            Some(reservation) => {
                let awake = spin_share(reservation);
                let gained = i128::from(asleep) * i128::from(awake) / i128::from(WHOLE - awake);
                gained.min(i128::from(2 * full)) as i64
            }
        };
        self.credit = full.min(self.credit + gained - cost).max(-full);
    }

    fn spin_credit(&self) -> u64 {
        let above_half = self.credit - self.full() / 2;
        match self.reservation {
            None if above_half >= 0 => u64::MAX,
            None => 0,
            Some(_) => u64::try_from(above_half).unwrap_or(0),
        }
    }

    /// The most credit, in ns.
    fn full(&self) -> i64 {
        let budget = |reservation: Reservation| reservation.budget.0.min(FULL as u64) as i64;
        self.reservation.map_or(FULL, budget)
    }

    fn advance(&mut self, now: Instant) -> i64 {
        let passed = now.0.saturating_sub(self.accounted_until.0);
        self.accounted_until = now;
        passed.min(i64::MAX as u64) as i64
    }
}

/// The share of all time that a thread with this reservation may be awake if it spins, in parts of
/// [`WHOLE`].
fn spin_share(reservation: Reservation) -> i64 {
    let (budget, period) = (reservation.budget.0, reservation.period.0.max(1));
    (u128::from(budget) * u128::from(SPIN_PPM as u64) / u128::from(period)).min(SPIN_PPM as u128)
        as i64
}

/// The most credit, in ns: a hundredth of the second that the kernel accounts by.
const FULL: i64 = 10_000_000;
/// The part of a reservation that spinning may use up, in parts of [`WHOLE`].
const SPIN_PPM: i64 = 750_000;
const WHOLE: i64 = 1_000_000;
/// The period of a limit of the time awake: that of the reservations that drivers get.
const LIMIT_PERIOD: Nanos = Nanos::from_millis(1);
/// Credit per nanosecond of sleep. One part in twelve is sleep: the kernel's twentieth, and the
/// cost of the switches.
const CREDIT_PER_SLEEP: i64 = 11;
/// An iteration of this length or more, in ns, shows that the kernel stopped the thread: iterations
/// take less than a millisecond otherwise.
const STOPPED: i64 = 20_000_000;
/// Length of a pause: short enough to delay no packet noticeably, and much longer than the two
/// context switches.
const PAUSE: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests;
