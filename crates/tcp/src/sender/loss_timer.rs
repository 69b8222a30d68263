//! The loss timer: the reordering window, the tail loss probe, the retransmission timeout.

use std::time::Duration;

use super::{LossTimer, Probe, Recovery, Sender, Undo};
use crate::time::Instant;

impl Sender {
    /// The next time at which [`Sender::handle_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.loss_timer.map(|(at, _)| at)
    }

    /// Handles the loss timer. Returns true if the retransmission timeout has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        let Some((_, kind)) = self.loss_timer.filter(|(at, _)| *at <= now) else {
            return false;
        };
        self.loss_timer = None;
        match kind {
            LossTimer::Reordering => {
                let flight = self.queue.outstanding() - self.queue.sacked();
                if self.detect_loss(now, flight) {
                    // RFC 9937, section 6.2: the first retransmission may leave; nothing was
                    // delivered, so the rest waits for acknowledgements.
                    self.advance_recovery(self.queue.una(), 0, false, true);
                }
                self.set_loss_timer(now);
                false
            }
            LossTimer::Probe => {
                self.probe = Probe::Due;
                // RFC 8985, section 7.3: the timeout counts from the probe.
                self.timeout_from = now;
                self.arm_timeout();
                false
            }
            LossTimer::Timeout => {
                self.timed_out(now);
                true
            }
        }
    }

    fn timed_out(&mut self, now: Instant) {
        self.timeouts += 1;
        let first = self.rtt.backoffs() == 0;
        let in_flight = self.queue.outstanding();
        self.rtt.back_off();
        // A peer may discard what it acknowledged selectively (RFC 2018, section 8): a front that
        // is sacked while the cumulative acknowledgement stands still says so.
        if self.queue.front().is_some_and(|front| front.sacked) {
            self.queue.forget_sacks();
        }
        self.queue.lose_all();
        self.congestion.timeout(in_flight, first);
        self.probe = Probe::None;
        self.duplicates = 0;
        self.timeout_from = now;
        let undo = match &self.recovery {
            // A second timeout: the first retransmission decides.
            Recovery::Timeout { undo, .. } => *undo,
            _ => Undo {
                stamp: None,
                needless: Some(0),
            },
        };
        let end = self.queue.next();
        self.recovery = Recovery::Timeout { end, undo };
        if self.ecn {
            self.reduced_until = end;
            self.announce_reduction = true;
        }
    }

    /// Sets the loss timer, unless it stands for the reordering window.
    pub(super) fn set_loss_timer(&mut self, now: Instant) {
        if let Some((_, LossTimer::Reordering)) = self.loss_timer {
            return;
        }
        self.arm_timeout();
        if self.queue.earliest_departure().is_none() {
            return;
        }
        let probes = self.sack && !self.in_recovery() && self.probe == Probe::None;
        if !probes || self.queue.una() == 0 {
            return;
        }
        let Some(smoothed) = self.rtt.smoothed() else {
            return;
        };
        let mut wait = smoothed * 2;
        if self.queue.in_flight() <= self.mss {
            wait += LONGEST_ACK_DELAY;
        }
        let at = self.last_departure.max(self.timeout_from) + wait.max(SHORTEST_PROBE);
        let at = at.max(now);
        if self.loss_timer.is_none_or(|(timeout, _)| at < timeout) {
            self.loss_timer = Some((at, LossTimer::Probe));
        }
    }

    pub(super) fn arm_timeout(&mut self) {
        let timeout = (self.timeout_from + self.rtt.rto(), LossTimer::Timeout);
        self.loss_timer = self.queue.awaits_acknowledgement().then_some(timeout);
    }
}

/// RFC 8985, section 7.2: a peer is expected to delay an acknowledgement for so long at most.
const LONGEST_ACK_DELAY: Duration = Duration::from_millis(200);
/// At least two ticks of a peer's clock of 1 kHz.
const SHORTEST_PROBE: Duration = Duration::from_millis(2);
