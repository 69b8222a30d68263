//! Delivers received frames to flows, and charges the flows' receive budgets.
//!
//! A frame that a flow cannot pay for is dropped, and [`Datapath::poll_suspended`] returns the flow
//! with the time from which it can pay again. No function fails: a program that breaks a rule of
//! the ring is disconnected.
//!
//! A connection that a server promotes to a flow of its own has no empty record until the program
//! has got the reply of the daemon. Until then its segments go to the listener of the port, as
//! before, so none is lost.

use super::*;
use crate::segments::{self, Checksum, Merged, Offload};

impl Datapath {
    /// Begins an iteration. `woke` is the cost of waking up for received frames, or 0; the first
    /// frame pays for it.
    pub(crate) fn begin(&mut self, woke: Nanos) {
        self.cost.begin(woke);
        self.shared_budget.begin(self.cost.lone_packet());
    }

    /// As [`Datapath::receive`], for a frame about which the kernel states this. If the frame is
    /// for a flow, a long packet is cut into segments, and a partial checksum is completed. Returns
    /// the number of segments; 0 if the packet could not be cut.
    pub fn receive_offloaded(
        &mut self,
        frame: &mut [u8],
        offload: &Offload,
        now: Instant,
    ) -> usize {
        if offload.is_unfinished()
            && let Some(flow) = self.demux.receiver(frame)
        {
            if offload.merged != Merged::No {
                let known = flow.and_then(|flow| self.flows.get(flow.0 as usize)?.as_ref());
                let longest = known.map_or(usize::MAX, FlowState::longest_frame);
                let cut = segments::cut(frame, offload, longest, |one| self.receive(one, now));
                let count = cut.unwrap_or(0);
                if matches!(offload.checksum, Checksum::Partial { .. }) {
                    self.count_completed(flow, count);
                }
                return count;
            }
            if segments::complete(frame, offload.checksum) {
                self.count_completed(flow, 1);
            }
        }
        self.receive(frame, now);
        1
    }

    /// Counts segments of a flow whose partial checksum was completed.
    fn count_completed(&mut self, flow: Option<FlowNo>, number: usize) {
        let known = flow.and_then(|flow| self.flows.get_mut(flow.0 as usize)?.as_mut());
        if let Some(known) = known {
            known.ring.count_completed(number as u64);
        }
    }

    /// Classifies a received frame, charges its flows, and copies it to those that can pay and have
    /// an empty record that is long enough. Fragments that were held until this frame are handled
    /// likewise, except that they do not go to a listener in place of a connection.
    pub fn receive(&mut self, frame: &[u8], now: Instant) {
        let Datapath {
            demux,
            flows,
            touched,
            violations,
            cost,
            shared_budget,
            programs,
            budget_is_low,
            suspended,
            totals,
            ..
        } = self;
        // Returns the flow and the length of a frame that the flow is not ready to get.
        let mut deliver = |verdict: Verdict<'_>, bytes: &[u8], may_pass: bool| {
            let mut passed = None;
            let (receivers, end) = match &verdict {
                Verdict::One { flow, end } => (std::slice::from_ref(flow), *end),
                Verdict::Several { flows, end } => (*flows, *end),
                _ => return None,
            };
            for number in receivers {
                let Some(Some(flow)) = flows.get_mut(number.0 as usize) else {
                    continue;
                };
                if flow.is_ignored() {
                    continue;
                }
                if flow.touch() {
                    touched.push(number.0);
                }
                let Some(program) = programs.get_mut(flow.program) else {
                    continue;
                };
                let active = &mut program.receivers;
                let among = (&mut *shared_budget, active);
                match flow.deliver(&bytes[..end], cost, among, may_pass, now) {
                    Ok(Delivery::Delivered) => {
                        totals.delivered += 1;
                        totals.delivered_bytes += end as u64;
                    }
                    Ok(Delivery::Lost) => {}
                    Ok(Delivery::Passed) => passed = Some((*number, end)),
                    Ok(Delivery::OverBudget(until)) => {
                        flow.counters.suspended_until = until;
                        match suspended.last_mut() {
                            Some(last) if last.0 == *number => last.1 = until,
                            _ => suspended.push((*number, until)),
                        }
                    }
                    Err(violation) => violations.push((flow.program, violation)),
                }
                *budget_is_low |= flow.is_nearly_exhausted(shared_budget);
            }
            passed
        };
        if let Some((connection, end)) = deliver(demux.handle(frame, now), frame, true) {
            let flow = demux.listener_of(connection).unwrap_or(connection);
            deliver(Verdict::One { flow, end }, frame, false);
        }
        while let Some((bytes, verdict)) = demux.poll_released() {
            deliver(verdict, &bytes, false);
        }
    }

    /// The next flow that cannot pay for received packets, with the end of that time; `None` if
    /// there is none. The caller can make XDP drop the flow's frames until then.
    pub(crate) fn poll_suspended(&mut self) -> Option<(FlowNo, Instant)> {
        self.suspended.pop()
    }

    /// Counts frames of a flow that XDP dropped.
    pub(crate) fn count_dropped(&mut self, flow: FlowNo, frames: u64) {
        if let Some(Some(flow)) = self.flows.get_mut(flow.0 as usize) {
            flow.count_dropped(frames);
        }
    }

    /// Ends the reception of `frames` frames, which took `took` since [`Datapath::begin`],
    /// including publication. True if less than half is left of the budget of a flow that received
    /// one, or of the shared budget.
    pub(crate) fn charge(&mut self, frames: u32, took: Nanos) -> bool {
        self.cost.learn(frames, took);
        std::mem::take(&mut self.budget_is_low)
    }
}
