//! The link of a scheduler: its parameters, and until when it is busy ([`WireState`]).
//! [`Scheduler::set_wire`] changes the parameters. It fails as [`Scheduler::new`] does, if the
//! longest packet is too long. [`Scheduler::handle_foreign`] charges the link for what another
//! sender transmitted on it.

use super::flow::{MAX_LENGTH, ServiceState};
use super::pace::{Moment, Pace};
use super::service::{EarlyOrder, SchedulerError, Wire};
use super::{MAX_AHEAD, Scheduler};
use crate::units::{Bytes, Instant, Nanos, Rate};

/// The wire, in the units of the arithmetic.
#[derive(Debug)]
pub(super) struct WireState {
    pub(super) rate: Rate,
    pub(super) pace: Pace,
    pub(super) overhead: u32,
    pub(super) ahead: u64,
    pub(super) horizon: u64,
    pub(super) early: EarlyOrder,
    pub(super) longest: u32,
    /// End of the last transmission.
    pub(super) busy_until: Moment,
    /// Earliest time of the next decision: `busy_until` less `ahead`.
    pub(super) next_decision: u64,
}

impl Scheduler {
    /// Changes the rate, the overhead and the other parameters of the link, from the next packet
    /// on. Flows, their heads and their state stay. The minimums of the classes of servers are not
    /// checked again. A head that is longer than the new [`Wire::longest`] is sent as a packet of
    /// that length. A call that reduces this length takes time linear in the number of flows.
    ///
    /// # Errors
    /// As [`Scheduler::new`].
    pub fn set_wire(&mut self, wire: Wire) -> Result<(), SchedulerError> {
        let (busy, longest) = (self.wire.busy_until, self.wire.longest);
        self.wire = WireState::new(wire)?;
        self.wire.set_busy_until(busy);
        if self.wire.longest < longest {
            self.shorten_heads();
        }
        for server in self.servers.iter_mut().flatten() {
            // The flow of a removed server may belong to another contract now.
            let rate = self.wire.pace.rate();
            match &self.flows[server.flow as usize].service {
                ServiceState::Server {
                    best_effort: true, ..
                } => server.set_rate(rate),
                ServiceState::Server { slice, .. } => server.set_rate(slice.of(rate)),
                _ => {}
            }
        }
        Ok(())
    }

    /// How far ahead packets are sent before the link is free ([`Wire::ahead`]).
    #[inline]
    pub fn ahead(&self) -> Nanos {
        Nanos(self.wire.ahead)
    }

    /// How long the link will still be busy at `at` with the packets that were sent so far. If the
    /// next call of [`Scheduler::poll`] comes this much later than [`Scheduler::poll_timeout`], the
    /// link is not idle meanwhile.
    #[inline]
    pub fn link_busy_after(&self, at: Instant) -> Nanos {
        Nanos(self.wire.busy_until.nanos.saturating_sub(at.0))
    }

    /// Charges the link for `bytes` that another sender transmitted on it since `since`, with the
    /// overhead of their packets. The scheduler sends its next packet as much later as they take.
    /// Time for which the link was free since `since` counts as used by them.
    ///
    /// The scheduler promises its flows what is left of the link: the owner admits no more than the
    /// rest of the rate beside the other sender's rate.
    pub fn handle_foreign(&mut self, bytes: Bytes, since: Instant) {
        let free = self.wire.busy_until.max(Moment::at(since.0.min(self.now)));
        let mut until = free;
        let mut rest = bytes.0;
        // A span has at most MAX_LENGTH bytes. More than MAX_FOREIGN is an error of the owner.
        while rest > 0 && until.nanos < free.nanos.saturating_add(MAX_FOREIGN) {
            let part = rest.min(MAX_LENGTH.into());
            until = until.plus(self.wire.pace.span(part as u32));
            rest -= part;
        }
        self.wire.set_busy_until(until);
    }
}

/// The link is charged for at most this time in one call, in ns, and one span more.
const MAX_FOREIGN: u64 = 1_000_000_000;

impl WireState {
    /// The state of an idle link. Fails if the longest packet is too long.
    pub(super) fn new(wire: Wire) -> Result<WireState, SchedulerError> {
        let both = Bytes(wire.longest.0.saturating_add(wire.overhead.0));
        let longest = u32::try_from(wire.longest.0);
        let overhead = u32::try_from(wire.overhead.0);
        match (longest, overhead) {
            (Ok(longest), Ok(overhead)) if both.0 <= u64::from(MAX_LENGTH) => Ok(WireState {
                rate: wire.rate,
                pace: Pace::of(wire.rate),
                overhead,
                ahead: wire.ahead.0.min(MAX_AHEAD),
                horizon: wire.horizon.0,
                early: wire.early,
                longest,
                busy_until: Moment::at(0),
                next_decision: 0,
            }),
            _ => Err(SchedulerError::WireTooLong(both)),
        }
    }

    /// Charges a packet that is chosen at `now`. Returns the start of its transmission and its
    /// duration, rounded up.
    #[inline(always)]
    pub(super) fn charge(&mut self, now: u64, length: u32) -> (u64, u64) {
        let span = self.pace.span(length + self.overhead);
        let free = match self.busy_until.nanos > now {
            true => self.busy_until,
            false => Moment::at(now),
        };
        self.set_busy_until(free.plus(span));
        (free.nanos, span.ceil())
    }

    /// Sets the time until which the link is busy.
    #[inline(always)]
    pub(super) fn set_busy_until(&mut self, until: Moment) {
        self.busy_until = until;
        self.next_decision = until.nanos.saturating_sub(self.ahead);
    }
}
