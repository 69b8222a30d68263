//! Keeps all deadlines of the event loop in one table ([`Timers`]), so that the loop sleeps once,
//! until the earliest.
//!
//! Each timer has at most one deadline. The first change of a burst sets its timer, and later
//! changes do not move it ([`Timers::set_unless_set`]), so an endless burst cannot delay the timer.
//! [`Timer::Tick`] is set again each second, and [`Timer::Balance`] each 200 ms while there are
//! managed links, and [`Timer::Processors`] while processor time is reserved. No function fails.

use std::collections::BTreeMap;

use netnice_core::units::{Instant, Nanos};

use crate::processors::STEP;

/// The action that is due. If several are due, the first in this order comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Roll back the changes whose time is over.
    Rollback,
    /// Close targets whose processes have ended, and bind objects that were created again.
    Sweep,
    /// Read unit files again.
    UnitFiles,
    /// Check interfaces and the daemon's objects on them.
    Repair,
    /// Divide the left-over of managed links again.
    Balance,
    /// Follow the threads that have reservations of processor time.
    Processors,
    /// Put the estimates of links into force that wait.
    Estimates,
    /// Check what changes without an event.
    Tick,
    /// End the waits of the flow manager that have taken too long, for answers of drivers and for
    /// next hops, and check the routes of flows after a change.
    Flows,
    /// Tag the next portion of open sockets of new members.
    Sockets,
    /// Serve the next waiting request. The timer is set only while every waiting request is of a
    /// user over the quota `service-time`. A request that may start now causes this event without
    /// the timer.
    Request,
}

impl Timer {
    /// The timer's name in the log.
    pub(super) fn name(self) -> &'static str {
        match self {
            Timer::Rollback => "rollback",
            Timer::Sweep => "sweep",
            Timer::UnitFiles => "unit files",
            Timer::Repair => "repair",
            Timer::Balance => "balance",
            Timer::Processors => "processors",
            Timer::Estimates => "estimates",
            Timer::Tick => "tick",
            Timer::Flows => "flows",
            Timer::Sockets => "sockets",
            Timer::Request => "request",
        }
    }
}

/// The timer table.
#[derive(Debug, Default)]
pub(super) struct Timers {
    at: BTreeMap<Timer, Instant>,
}

impl Timers {
    /// Sets a timer, replacing its deadline; `None` stops it.
    pub(super) fn set(&mut self, timer: Timer, at: Option<Instant>) {
        match at {
            Some(at) => drop(self.at.insert(timer, at)),
            None => drop(self.at.remove(&timer)),
        }
    }

    /// Sets a timer if it is not set.
    pub(super) fn set_unless_set(&mut self, timer: Timer, at: Instant) {
        self.at.entry(timer).or_insert(at);
    }

    /// Keeps a periodic timer running while `wanted`. The first time is due at once.
    pub(super) fn repeat_while(&mut self, wanted: bool, timer: Timer, now: Instant) {
        match wanted {
            true => self.set_unless_set(timer, now),
            false => self.set(timer, None),
        }
    }

    /// The earliest deadline; `None` if no timer is set.
    pub(super) fn next(&self) -> Option<Instant> {
        self.at.values().min().copied()
    }

    /// Removes a due timer and returns it; `None` if none is due. A periodic timer is set again,
    /// one period after `now`.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Timer> {
        let mut due = self.at.iter().filter(|(_, at)| **at <= now);
        let timer = due.next().map(|(timer, _)| *timer)?;
        self.set(timer, period(timer).map(|period| now.after(period)));
        Some(timer)
    }
}

/// The period of a periodic timer.
fn period(timer: Timer) -> Option<Nanos> {
    match timer {
        Timer::Tick => Some(TICK_PERIOD),
        Timer::Balance => Some(BALANCE_PERIOD),
        Timer::Processors => Some(STEP),
        _ => None,
    }
}

/// How often the service checks what changes without an event.
const TICK_PERIOD: Nanos = Nanos::from_secs(1);
/// How often the active targets of managed links are determined. Other targets may borrow at once
/// what an idle target does not use; they share it by their weights after at most this interval.
const BALANCE_PERIOD: Nanos = Nanos::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant(0).after(Nanos::from_millis(millis))
    }

    #[test]
    fn of_several_due_timers_the_first_in_order_is_taken_first() {
        let mut timers = Timers::default();
        assert_eq!(timers.next(), None);
        timers.set(Timer::Flows, Some(at(10)));
        timers.set(Timer::Rollback, Some(at(20)));
        timers.set(Timer::Sweep, Some(at(30)));
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.take_due(at(9)), None);
        assert_eq!(timers.take_due(at(20)), Some(Timer::Rollback));
        assert_eq!(timers.take_due(at(20)), Some(Timer::Flows));
        assert_eq!(timers.take_due(at(20)), None, "each is due once");
        timers.set(Timer::Sweep, None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn later_changes_of_a_burst_do_not_move_its_timer() {
        let mut timers = Timers::default();
        timers.set_unless_set(Timer::Repair, at(50));
        timers.set_unless_set(Timer::Repair, at(90));
        assert_eq!(timers.take_due(at(50)), Some(Timer::Repair));
        timers.set_unless_set(Timer::Repair, at(90));
        assert_eq!(timers.next(), Some(at(90)));
    }

    #[test]
    fn a_periodic_timer_is_set_one_period_after_it_was_taken() {
        let mut timers = Timers::default();
        timers.repeat_while(true, Timer::Tick, at(0));
        assert_eq!(timers.take_due(at(0)), Some(Timer::Tick));
        timers.repeat_while(true, Timer::Tick, at(1));
        assert_eq!(timers.next(), Some(at(1_000)));
        assert_eq!(timers.take_due(at(5_300)), Some(Timer::Tick));
        assert_eq!(
            timers.next(),
            Some(at(6_300)),
            "what was missed is not made up"
        );
        timers.repeat_while(false, Timer::Tick, at(5_301));
        assert_eq!(timers.next(), None);
    }
}
