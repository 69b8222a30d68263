//! Sends the chosen packets, and makes a refused packet cost its own program alone.
//!
//! A packet is refused if its flow may not send it, if it is too long, or if its flow has no next
//! hop. The link carries nothing of it, so its time on the link goes to the next packets of other
//! flows ([`Scheduler::handle_unsent`]). The flow stays charged, as for a packet that was sent:
//! its contract and its share of the left-over have paid. And the flow pauses, so that a program
//! cannot have the driver read and refuse packets faster than the link could have carried them: the
//! next record of the flow waits until all refused packets of its *program* would have left one
//! after the other, each in its time on the link, and in no less than [`MIN_PAUSE`]. Flows of the
//! program without a refused packet do not wait. No function fails.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::flow::{Leaving, SendResult};
use super::*;

/// Flows that pause, with the end of their pauses, soonest first. If a flow pauses longer in the
/// meantime, or is closed, its earlier entry is obsolete.
#[derive(Default)]
pub(super) struct PausedFlows(BinaryHeap<Reverse<(Instant, u32)>>);

impl PausedFlows {
    /// The next flow whose pause ends by `now`, with the end.
    fn pop(&mut self, now: Instant) -> Option<(Instant, u32)> {
        let Reverse(first) = *self.0.peek()?;
        if first.0 > now {
            return None;
        }
        self.0.pop();
        Some(first)
    }

    /// Adjusts the time of the next iteration for the end of the first pause.
    pub(super) fn limit(&self, next: Next, now: Instant) -> Next {
        match (self.0.peek(), next) {
            (Some(Reverse((end, _))), Next::Idle | Next::Wait(_)) if *end <= now => Next::Again,
            (Some(Reverse((end, _))), Next::Idle) => Next::Wait(*end),
            (Some(Reverse((end, _))), Next::Wait(at)) => Next::Wait(at.min(*end)),
            (_, next) => next,
        }
    }
}

impl Datapath {
    /// Copies the chosen packets to `sink`. A packet that may not be sent is refused, and its flow
    /// pauses from `now`.
    pub(super) fn send_chosen(&mut self, sink: &mut impl FrameSink, now: Instant) {
        let limit = &mut self.in_flight_limit;
        let count = std::mem::take(&mut self.departures.count);
        for chosen in &mut self.departures.packets[..count] {
            let (since, record) = (chosen.since, &chosen.record);
            let Some(departure) = &chosen.departure else {
                continue;
            };
            let sink = self.link_is_up.then_some(&mut *sink);
            if let Some(frame) = chosen.frame.take() {
                let sent = self.redirected.send(&frame, since, sink, departure, now);
                if let Some(by) = sent {
                    self.totals.sent += 1;
                    self.totals.sent_bytes += frame.bytes.len() as u64;
                    if let Some(by) = by {
                        in_flight::push(&mut self.in_flight, limit, departure, by);
                    }
                }
                continue;
            }
            let number = departure.flow.index();
            let Some(Some(flow)) = self.flows.get_mut(number) else {
                continue;
            };
            let leaving = Leaving {
                since,
                departure,
                code_points: &self.code_points,
                most_joined: self.most_joined,
            };
            let parts = chosen.parts;
            let (count, bytes, result) = match parts.count() {
                0 => {
                    let result = flow.send(record, sink, leaving);
                    (1, record.bytes(), result)
                }
                count => {
                    let pairs = &record.pairs()[parts.begin..parts.end];
                    let bytes = pairs.iter().map(|pair| pair.length as usize).sum();
                    let memory = &mut self.payloads;
                    let result = flow.send_parts((record, parts), sink, leaving, memory);
                    (count as u64, bytes, result)
                }
            };
            match result {
                SendResult::Sent => {
                    self.totals.sent += count;
                    self.totals.sent_bytes += bytes as u64;
                    if let Some(by) = flow.latest_departure(departure.eligible, now) {
                        in_flight::push(&mut self.in_flight, limit, departure, by);
                    }
                }
                SendResult::Refused => {
                    self.scheduler.handle_unsent(departure);
                    let Some(program) = self.programs.get_mut(flow.program) else {
                        continue;
                    };
                    let time = departure.end.0.saturating_sub(departure.start.0);
                    let from = program.refused_until.max(now);
                    let end = from.after(Nanos(time.max(MIN_PAUSE.0)));
                    program.refused_until = end;
                    flow.paused_until = Some(end);
                    // It fails only for a flow that does not exist.
                    let _ = self.scheduler.withdraw(flow.id, now);
                    self.paused.0.push(Reverse((end, number as u32)));
                }
                SendResult::NotSent => {}
            }
        }
    }

    /// Ends the pauses that are over, of at most `FLOWS_PER_ITERATION` flows: the scheduler gets
    /// their heads again.
    pub(super) fn end_pauses(&mut self, now: Instant) {
        for _ in 0..FLOWS_PER_ITERATION {
            let Some((end, number)) = self.paused.pop(now) else {
                return;
            };
            let Some(Some(flow)) = self.flows.get_mut(number as usize) else {
                continue;
            };
            if flow.paused_until != Some(end) {
                continue;
            }
            flow.paused_until = None;
            if flow.is_ignored() {
                continue;
            }
            if flow.touch() {
                self.touched.push(number);
            }
            if let Err(violation) = flow.resume(&mut self.scheduler, now) {
                self.violations.push((flow.program, violation));
            }
        }
    }
}

/// The shortest time that a refused packet counts. On a fast link the driver needs longer to
/// refuse a short packet than the link to carry it.
const MIN_PAUSE: Nanos = Nanos(10_000);
