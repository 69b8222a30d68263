//! A closed connection in TIME_WAIT, after the program has given it up ([`TimeWait`]): only what it
//! takes to answer late segments.
//!
//! It does what a connection in that state does (RFC 9293, section 3.10.7.4; RFC 1337), in a
//! twentieth of the memory. Only the report of data that was received twice (RFC 2883) is left out:
//! the peer has nothing more to send.

use std::time::Duration;

use super::acknowledging::Challenges;
use super::{Connection, PeerTimestamp, State};
use crate::header::{Flags, Header, Options, Seq, Timestamps};
use crate::time::Instant;

/// A connection in TIME_WAIT. See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    /// The own sequence number behind the FIN.
    own_next: Seq,
    /// The peer's sequence number behind its FIN.
    peer_next: Seq,
    /// The window that the peer was promised, in bytes, and its field in a header.
    window: u32,
    field: u16,
    /// The peer's largest window.
    peer_window: u32,
    peer_timestamp: Option<PeerTimestamp>,
    timestamp_offset: u32,
    challenges: Challenges,
    /// How long TIME_WAIT lasts, and when it ends.
    lasts: Duration,
    until: Instant,
}

impl Connection {
    /// What is kept of the connection, if it is in TIME_WAIT.
    pub(crate) fn time_wait(&self) -> Option<TimeWait> {
        let until = self.timers.ending()?;
        let (next, edge) = (self.receiver.next(), self.receiver.edge());
        let field = (edge - next).div_ceil(1 << self.own_scale);
        (self.state == State::TimeWait).then(|| TimeWait {
            own_next: self.own_seq(self.sender.queue.next()),
            peer_next: self.peer_seq_at(next),
            // A window has at most 30 bits.
            window: (edge - next) as u32,
            field: u16::try_from(field).unwrap_or(u16::MAX),
            peer_window: self.sender.largest_window(),
            peer_timestamp: self.peer_timestamp,
            timestamp_offset: self.identity.timestamp_offset,
            challenges: self.acks.challenges(),
            lasts: self.config.time_wait,
            until,
        })
    }
}

impl TimeWait {
    /// When it ends.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// True if a SYN begins behind everything that the connection has received, by its sequence
    /// number or its timestamp (RFC 6191, section 2): it may open a new connection.
    pub(crate) fn is_before(&self, syn: &Header) -> bool {
        let later_clock = match (self.peer_timestamp, syn.options.timestamps) {
            (Some(recent), Some(own)) => (own.value.wrapping_sub(recent.value) as i32) > 0,
            _ => false,
        };
        later_clock || syn.seq.distance_from(self.peer_next) > 0
    }

    /// Handles a segment with a payload of so many bytes. Returns true if an acknowledgement
    /// answers it ([`TimeWait::acknowledgement`]).
    pub(crate) fn handle_segment(&mut self, now: Instant, header: &Header, payload: u32) -> bool {
        let controls =
            u32::from(header.flags.has(Flags::SYN)) + u32::from(header.flags.has(Flags::FIN));
        let length = payload + controls;
        let start = i64::from(header.seq.distance_from(self.peer_next));
        match self.check_timestamp(now, header) {
            Timestamp::Right => {}
            Timestamp::Missing => return false,
            Timestamp::Old => return length > 0 || self.challenges.take(now),
        }
        if !self.is_acceptable(start, length) {
            if header.flags.has(Flags::RST) {
                return false;
            }
            if header.flags.has(Flags::FIN) {
                self.until = now + self.lasts;
            }
            return length > 0 || self.challenges.take(now);
        }
        if header.flags.has(Flags::RST) {
            // RFC 1337: a reset does not shorten TIME_WAIT. RFC 5961, section 3.
            return start != 0 && self.challenges.take(now);
        }
        if header.flags.has(Flags::SYN) {
            return self.challenges.take(now);
        }
        if !header.flags.has(Flags::ACK) {
            return false;
        }
        self.note_timestamp(now, header, start);
        // RFC 5961, section 5.
        let ack = i64::from(header.ack.distance_from(self.own_next));
        let oldest = -i64::from(self.peer_window.max(u32::from(u16::MAX)));
        if ack > 0 || ack < oldest {
            return self.challenges.take(now);
        }
        header.flags.has(Flags::FIN)
    }

    /// RFC 7323, section 5.
    fn check_timestamp(&self, now: Instant, header: &Header) -> Timestamp {
        let Some(recent) = self.peer_timestamp else {
            return Timestamp::Right;
        };
        if header.flags.has(Flags::RST) {
            return Timestamp::Right;
        }
        match header.options.timestamps {
            None => Timestamp::Missing,
            Some(Timestamps { value, .. }) if recent.makes_old(value, now) => Timestamp::Old,
            Some(_) => Timestamp::Right,
        }
    }

    /// RFC 9293, section 3.10.7.4, first step. `start` counts from the next expected number.
    fn is_acceptable(&self, start: i64, length: u32) -> bool {
        let window = i64::from(self.window);
        let inside = |position: i64| (0..window).contains(&position);
        match (length, window) {
            (_, 0) => start == 0,
            (0, _) => inside(start),
            _ => inside(start) || inside(start + i64::from(length) - 1),
        }
    }

    /// RFC 7323, section 4.3.
    fn note_timestamp(&mut self, now: Instant, header: &Header, start: i64) {
        if let (Some(recent), Some(Timestamps { value, .. })) =
            (&mut self.peer_timestamp, header.options.timestamps)
            && start <= 0
            && !recent.makes_old(value, now)
        {
            *recent = PeerTimestamp { value, at: now };
        }
    }

    /// The acknowledgement of everything, between these ports.
    pub(crate) fn acknowledgement(&self, now: Instant, local: u16, remote: u16) -> Header {
        // The clock wraps.
        let clock = (now.as_millis() as u32).wrapping_add(self.timestamp_offset);
        Header {
            source: local,
            destination: remote,
            seq: self.own_next,
            ack: self.peer_next,
            flags: Flags::ACK,
            window: self.field,
            options: Options {
                timestamps: self.peer_timestamp.map(|recent| Timestamps {
                    value: clock,
                    echo: recent.value,
                }),
                ..Options::default()
            },
            ..Header::default()
        }
    }
}

/// What a segment's timestamp says.
enum Timestamp {
    /// The segment is not old, or nothing is known.
    Right,
    Missing,
    Old,
}
