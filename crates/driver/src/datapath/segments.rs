//! Sends records of segments: parts of one packet of TCP that the program hands over together, with
//! one header. The scheduler chooses each part as a packet of its own, so contracts are kept as
//! exactly as with single segments. Parts that leave one after the other in an iteration are sent
//! together (`FrameSink::send_run`).
//!
//! The record returns to its program with its last part. If a part is refused or does not leave,
//! the parts behind it do not leave either, and the record has the status of that part.

use super::flow::{FlowState, Leaving, SendResult};
use super::*;
use crate::template::Parts;

impl FlowState {
    /// Sends parts of a record of segments, which were the head one after the other. Returns the
    /// record to the program with its last part. Without a `sink` there is no link. `payloads` is
    /// memory for the places of payloads.
    pub(super) fn send_parts(
        &mut self,
        (record, parts): (&Record, Parts),
        sink: Option<&mut impl FrameSink>,
        leaving: Leaving<'_>,
        payloads: &mut Vec<SharedBytes>,
    ) -> SendResult {
        let status = match (self.unsent, sink) {
            // The parts behind one that did not leave.
            (Some(status), _) => status,
            (None, None) => Status::NO_LINK,
            (None, Some(sink)) => self.send_run((record, parts), sink, leaving, payloads),
        };
        let count = parts.count() as u64;
        let result = match status {
            Status::DONE => {
                for pair in &record.pairs()[parts.begin..parts.end] {
                    let bytes = pair.length as usize;
                    self.counters
                        .count_sent(bytes, leaving.since, leaving.departure);
                }
                SendResult::Sent
            }
            Status::NO_LINK => {
                self.counters.no_link += count;
                match self.has_next_hop {
                    true => SendResult::NotSent,
                    false => SendResult::Refused,
                }
            }
            Status::TOO_LONG => {
                self.counters.too_long += count;
                SendResult::Refused
            }
            _ => {
                self.counters.forbidden += count;
                SendResult::Refused
            }
        };
        let is_sent = status == Status::DONE;
        self.unsent = (!is_sent).then_some(status);
        if parts.end == record.pairs().len() {
            self.unsent = None;
            let stamp = if is_sent {
                leaving.departure.start.0
            } else {
                0
            };
            self.ring.give_back(record, status, stamp);
        }
        result
    }

    /// Sends parts none of which has a part before it that did not leave. Returns their status.
    fn send_run(
        &mut self,
        (record, parts): (&Record, Parts),
        sink: &mut impl FrameSink,
        leaving: Leaving<'_>,
        payloads: &mut Vec<SharedBytes>,
    ) -> Status {
        if record.pairs()[0].length as usize > self.longest {
            return Status::TOO_LONG;
        }
        if !self.has_next_hop {
            return Status::NO_LINK;
        }
        let mut head = [0; MAX_HEAD];
        let length = self.ring.read_first(record, &mut head);
        let ring = &self.ring;
        let run = self.template.check_segments(
            &mut head[..length],
            (record, parts),
            |part, skip| ring.shared(&record.pairs()[part], skip),
            payloads,
            leaving.code_points.of(self.kind),
        );
        let Ok(run) = run else {
            return Status::FORBIDDEN;
        };
        if !sink.send_run(self.most_joined(leaving), &run) {
            return Status::NO_LINK;
        }
        if let Some((at, sent)) = &mut self.connection {
            sent.note_payload(run.head(), *at, run.payload_bytes());
        }
        Status::DONE
    }
}

/// The longest headers: those of Ethernet, IPv6 and TCP with all options.
const MAX_HEAD: usize = 14 + 40 + 60;
