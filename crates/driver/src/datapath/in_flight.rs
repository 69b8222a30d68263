//! Tracks the frames that the NIC has and has not completed, for flows that track departure times.

use super::*;

impl Datapath {
    /// The NIC has sent all frames; `at` returns the time. If that is later than a contract
    /// tolerates, its flow continues from then and not from the planned time. True if a packet with
    /// a departure time was among them.
    #[inline]
    pub fn all_sent(&mut self, at: impl FnOnce() -> Instant) -> bool {
        if self.in_flight.is_empty() {
            return false;
        }
        self.completed(self.in_flight.len(), at());
        true
    }

    /// The first `count` packets of `in_flight` have left by `at`.
    #[inline]
    pub(super) fn completed(&mut self, count: usize, at: Instant) {
        if at > self.in_flight_limit {
            self.report_delay(count, at);
        }
        self.in_flight.drain(..count);
    }

    #[cold]
    fn report_delay(&mut self, count: usize, at: Instant) {
        let completed = &mut self.in_flight[..count];
        completed.sort_unstable_by_key(|(flow, _)| flow.index());
        for same_flow in completed.chunk_by(|one, next| one.0 == next.0) {
            let bytes = Bytes(same_flow.iter().map(|(_, bytes)| bytes).sum());
            // A flow that was closed meanwhile sends nothing more.
            let _ = self
                .scheduler
                .handle_late_departure(same_flow[0].0, bytes, at);
        }
    }

    /// How many packets of flows that track departure times are not known to have left.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

/// No NIC holds more frames at once.
pub(crate) const MAX_IN_FLIGHT: usize = 2048;
