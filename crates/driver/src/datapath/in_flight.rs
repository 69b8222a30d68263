//! Reports late departures to the scheduler, for flows with a cell contract.
//!
//! `Datapath::in_flight` lists the frames of these flows that were handed to the NIC and not yet
//! completed. When the caller reports that they have left, this module compares the time with the
//! latest one that needs no correction. If they left later, the scheduler gets each of the flows,
//! the bytes that it sent, and the time. No function fails.

use super::*;

/// Adds a frame to `in_flight`, and to the latest time for all of them: it must leave by `by`.
pub(super) fn push(
    in_flight: &mut Vec<(FlowId, u64)>,
    limit: &mut Instant,
    departure: &Departure,
    by: Instant,
) {
    *limit = match in_flight.is_empty() {
        true => by,
        false => by.min(*limit),
    };
    // The scheduler's length: a short packet counts as the shortest.
    in_flight.push((departure.flow, departure.length.0));
}

impl Datapath {
    /// Reports that the NIC has sent all frames that were handed to it. `at` returns the present
    /// time; it is called only if a frame of a flow with a cell contract is among them. If the time
    /// is later than the contract tolerates, the scheduler continues the flow from this time
    /// instead of the planned one. Returns whether such a frame was among them.
    #[inline]
    pub fn all_sent(&mut self, at: impl FnOnce() -> Instant) -> bool {
        if self.in_flight.is_empty() {
            return false;
        }
        self.completed(self.in_flight.len(), at());
        true
    }

    /// Removes the first `count` frames of `in_flight`, which have left by `at`.
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

    /// Number of frames handed to the NIC and not yet completed, of flows with a cell contract.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}
