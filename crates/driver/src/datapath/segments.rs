//! Sends records of segments: parts of one packet of TCP that the program hands over together, with
//! one header. The scheduler chooses each part as a packet of its own, so contracts are kept as
//! exactly as with single segments. Parts that leave one after the other in an iteration are sent
//! together (`FrameSink::send_run`).
//!
//! The record returns to its program with its last part. If a part is refused or does not leave,
//! the parts behind it do not leave either, and the record has the status of that part.

use netnice_ring::driver::SharedBytes;

use super::flow::{FlowState, SendResult};
use super::*;
use crate::template::Parts;

/// Memory for the headers and places of the segments that leave.
#[derive(Default)]
pub(super) struct RunMemory {
    payloads: Vec<SharedBytes>,
}

impl FlowState {
    /// Sends parts of a record of segments, which were the head one after the other. Returns the
    /// record to the program with its last part. Without a `sink` there is no link.
    pub(super) fn send_parts(
        &mut self,
        (record, parts): (&Record, Parts),
        since: Instant,
        sink: Option<&mut impl FrameSink>,
        departure: &Departure,
        (code_points, most_joined): (&CodePoints, usize),
        memory: &mut RunMemory,
    ) -> SendResult {
        let (status, result) = match self.unsent {
            // The parts behind one that did not leave.
            Some(status) => self.skip(parts, status),
            None => {
                let how = (code_points, most_joined);
                self.send_run((record, parts), since, sink, departure, how, memory)
            }
        };
        self.unsent = (status != Status::DONE).then_some(status);
        if parts.end == record.pairs().len() {
            let stamp = match status {
                Status::DONE => departure.start.0,
                _ => 0,
            };
            self.unsent = None;
            self.ring.give_back(record, status, stamp);
        }
        result
    }

    /// Counts parts that do not leave because one before them did not.
    fn skip(&mut self, parts: Parts, status: Status) -> (Status, SendResult) {
        let counters = &mut self.counters;
        let (counter, result) = match status {
            Status::NO_LINK => (&mut counters.no_link, SendResult::NotSent),
            Status::TOO_LONG => (&mut counters.too_long, SendResult::Refused),
            _ => (&mut counters.forbidden, SendResult::Refused),
        };
        *counter += parts.count() as u64;
        (status, result)
    }

    fn send_run(
        &mut self,
        (record, parts): (&Record, Parts),
        since: Instant,
        sink: Option<&mut impl FrameSink>,
        departure: &Departure,
        (code_points, most_joined): (&CodePoints, usize),
        memory: &mut RunMemory,
    ) -> (Status, SendResult) {
        let count = parts.count() as u64;
        let first = record
            .pairs()
            .first()
            .map_or(0, |pair| pair.length as usize);
        if first > self.longest {
            self.counters.too_long += count;
            return (Status::TOO_LONG, SendResult::Refused);
        }
        let Some(sink) = sink else {
            self.counters.no_link += count;
            return (Status::NO_LINK, SendResult::NotSent);
        };
        if !self.has_next_hop {
            self.counters.no_link += count;
            return (Status::NO_LINK, SendResult::Refused);
        }
        let mut head = [0; MAX_HEAD];
        let length = self.ring.read_first(record, &mut head);
        let ring = &self.ring;
        let run = self.template.check_segments(
            &mut head[..length],
            (record, parts),
            |part, skip| ring.shared(&record.pairs()[part], skip),
            &mut memory.payloads,
            code_points.of(self.kind),
        );
        let Ok(run) = run else {
            self.counters.forbidden += count;
            return (Status::FORBIDDEN, SendResult::Refused);
        };
        let most_joined = if self.may_join { most_joined } else { 0 };
        if !sink.send_run(most_joined, &run) {
            self.counters.no_link += count;
            return (Status::NO_LINK, SendResult::NotSent);
        }
        if let Some((at, sent)) = &mut self.connection {
            sent.note_payload(run.head(), *at, run.payload_bytes());
        }
        for pair in &record.pairs()[parts.begin..parts.end] {
            self.counters
                .count_sent(pair.length as usize, since, departure);
        }
        (Status::DONE, SendResult::Sent)
    }
}

/// The longest headers: those of Ethernet, IPv6 and TCP with all options.
const MAX_HEAD: usize = 14 + 40 + 60;
