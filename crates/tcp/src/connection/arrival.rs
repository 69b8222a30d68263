//! What a received segment does to a connection (RFC 9293, section 3.10.7, with RFC 5961 and
//! RFC 7323).

use std::sync::Arc;
use std::time::Duration;

use super::{CloseReason, Connection, Identity, PeerTimestamp, State};
use crate::buffer::Slice;
use crate::config::Config;
use crate::header::{Flags, Header, Timestamps};
use crate::receive_queue::Stored;
use crate::sender::{Acknowledgement, Echo};
use crate::time::Instant;

impl Connection {
    /// A connection that a listener's SYN opens. Its first segment answers the SYN.
    pub fn accept(
        now: Instant,
        identity: Identity,
        config: impl Into<Arc<Config>>,
        syn: &Header,
    ) -> Connection {
        let config = config.into();
        let may_mark = config.ecn;
        let mut connection = Connection::new(now, identity, config, State::SynReceived);
        connection.peer_seq = syn.seq;
        connection.negotiate(now, syn);
        let asks = Flags::ECE | Flags::CWR;
        connection.set_ecn(may_mark && syn.flags.has(asks));
        connection
            .sender
            .set_first_window(0, 0, u32::from(syn.window));
        connection
    }

    /// Handles a segment whose checksum is right. `payload` is where its payload lies; `None` if it
    /// has none. `marked`: its IP header has a congestion mark (RFC 3168). Returns true if the
    /// connection keeps the payload's buffer; else the buffer is the caller's.
    pub fn handle_segment(
        &mut self,
        now: Instant,
        header: &Header,
        payload: Option<Slice>,
        marked: bool,
    ) -> bool {
        self.counters.segments_received += 1;
        let kept = match self.state {
            State::Closed => false,
            State::SynSent => {
                self.handle_in_syn_sent(now, header);
                false
            }
            _ => self.handle_synchronized(now, header, payload, marked),
        };
        if self.state != State::Closed {
            self.rearm_keepalive(now);
        }
        kept
    }

    /// The caller had no buffer for the payload of a segment that was handled without it. The peer
    /// is told where this end stands: without an answer it waits longer and longer before it sends
    /// the segment again.
    pub fn refuse_payload(&mut self) {
        self.counters.without_room += 1;
        if self.is_synchronized() && self.state != State::Closed {
            self.acks.request();
        }
    }

    /// RFC 9293, section 3.10.7.3.
    fn handle_in_syn_sent(&mut self, now: Instant, header: &Header) {
        let acknowledges = header.flags.has(Flags::ACK);
        // Before the SYN was handed to the driver, nothing can be acknowledged.
        let was_sent = self.sender.queue.next() > 0;
        let acceptable = acknowledges && was_sent && self.own_position(header.ack) == 1;
        if acknowledges && !acceptable {
            self.counters.unacceptable += 1;
            if !header.flags.has(Flags::RST) {
                self.stray_reset = Some(header.ack);
            }
            return;
        }
        if header.flags.has(Flags::RST) {
            // RFC 5961, section 3.2: only a reset that acknowledges the SYN counts.
            if acceptable {
                self.end(Some(CloseReason::Refused));
            }
            return;
        }
        if !header.flags.has(Flags::SYN) {
            return;
        }
        self.peer_seq = header.seq;
        self.negotiate(now, header);
        let window = u32::from(header.window);
        if acceptable {
            let agrees = header.flags.has(Flags::ECE) && !header.flags.has(Flags::CWR);
            self.set_ecn(self.config.ecn && agrees);
            self.sender.set_first_window(0, 1, window);
            self.handle_acknowledgement(now, header, 0, 1, true, window);
            self.state = self.state_after_handshake();
            self.acks.request();
        } else {
            // Both ends opened at the same time: the SYN is sent again, with an acknowledgement.
            let asks = Flags::ECE | Flags::CWR;
            self.set_ecn(self.config.ecn && header.flags.has(asks));
            self.sender.set_first_window(0, 0, window);
            self.state = State::SynReceived;
            self.sender.queue.lose_first();
        }
    }

    /// Takes over what the peer's SYN offers, as far as this end offers it too.
    fn negotiate(&mut self, now: Instant, syn: &Header) {
        let offers = &syn.options;
        if let (true, Some(scale)) = (self.config.window_scaling, offers.window_scale) {
            self.peer_scale = scale;
            self.own_scale = self.config.window_scale();
            self.scales = true;
        }
        let timestamps = offers.timestamps.filter(|_| self.config.timestamps);
        self.peer_timestamp = timestamps.map(|timestamps| PeerTimestamp {
            value: timestamps.value,
            at: now,
        });
        self.sack = self.config.sack && offers.sack_permitted;
        self.peer_mss = u32::from(offers.mss.unwrap_or(DEFAULT_MSS)).max(SMALLEST_MSS);
        let (mss, algorithm) = (self.effective_mss(), self.config.algorithm);
        self.sender.negotiated(mss, self.sack, algorithm);
    }

    fn set_ecn(&mut self, ecn: bool) {
        self.ecn = ecn;
        self.sender.set_ecn(ecn);
    }

    fn handle_synchronized(
        &mut self,
        now: Instant,
        header: &Header,
        payload: Option<Slice>,
        marked: bool,
    ) -> bool {
        let mut header = *header;
        let mut start = self.peer_position(header.seq);
        // Both ends opened at the same time: the answer to our SYN repeats the peer's.
        let is_reset = header.flags.has(Flags::RST);
        let repeats_syn = header.flags.has(Flags::SYN) && !is_reset && start == 0;
        if self.state == State::SynReceived && repeats_syn {
            if header.flags.has(Flags::ACK) && self.is_active {
                header.flags.0 &= !Flags::SYN.0;
                start += 1;
            } else {
                // A retransmission: the answer was lost.
                self.sender.queue.lose_first();
                return false;
            }
        }
        let header = &header;
        let payload_length = payload.map_or(0, |payload| payload.length);
        let controls =
            u32::from(header.flags.has(Flags::SYN)) + u32::from(header.flags.has(Flags::FIN));
        let length = payload_length + controls;
        if !self.check_timestamp(now, header, length) {
            return false;
        }
        if !self.check_sequence(now, header, start, length) {
            return false;
        }
        if header.flags.has(Flags::RST) {
            self.handle_reset(now, start);
            return false;
        }
        if header.flags.has(Flags::SYN) {
            // RFC 5961, section 4.
            self.acks.challenge(now);
            return false;
        }
        if !header.flags.has(Flags::ACK) {
            return false;
        }
        self.note_timestamp(now, header, start);
        let ack = self.own_position(header.ack);
        if !self.handle_ack_field(now, header, start, ack, length == 0) {
            return false;
        }
        if self.ecn && header.flags.has(Flags::CWR) {
            self.echo_marks = false;
        }
        self.echo_marks |= self.ecn && marked;
        let kept = payload.is_some_and(|payload| self.handle_payload(now, start, payload));
        if header.flags.has(Flags::FIN) && self.state != State::Closed {
            self.handle_fin(start + i64::from(payload_length));
        }
        if self.state != State::Closed && self.receiver.take_fin() {
            self.peer_has_shut_down(now);
        }
        kept
    }

    /// RFC 7323, section 5: false if the segment is an old duplicate.
    fn check_timestamp(&mut self, now: Instant, header: &Header, length: u32) -> bool {
        let Some(recent) = self.peer_timestamp else {
            return true;
        };
        if header.flags.has(Flags::RST) {
            return true;
        }
        // Section 3.2: a segment without the option is dropped.
        let Some(Timestamps { value, .. }) = header.options.timestamps else {
            self.counters.old_timestamps += 1;
            return false;
        };
        if !recent.makes_old(value, now) {
            return true;
        }
        self.counters.old_timestamps += 1;
        self.answer_unacceptable(now, length);
        false
    }

    /// RFC 9293, section 3.10.7.4, first step: false if the segment is not acceptable.
    fn check_sequence(&mut self, now: Instant, header: &Header, start: i64, length: u32) -> bool {
        // Positions stay far below 2^63.
        let (next, edge) = (self.receiver.next() as i64, self.receiver.edge() as i64);
        let end = start + i64::from(length);
        let inside = |position: i64| next <= position && position < edge;
        let is_reset = header.flags.has(Flags::RST);
        let acceptable = match (length, edge - next) {
            (0, 0) => start == next,
            // RFC 9293 excludes the edge. But a peer that has sent everything up to the edge gives
            // its acknowledgements this number. If some of its data was lost, this end would take
            // none of them until the peer's retransmission timeout.
            (0, _) if start == edge && !is_reset => true,
            (0, _) => inside(start),
            // A closed window takes no data, but acknowledgements and resets count.
            (_, 0) => start == next,
            _ => inside(start) || inside(end - 1),
        };
        if acceptable {
            return true;
        }
        self.counters.unacceptable += 1;
        if is_reset {
            return false;
        }
        if let (Ok(left), Ok(right)) = (u64::try_from(start), u64::try_from(end)) {
            self.receiver
                .note_old(left, right.min(self.receiver.next()));
        }
        if self.state == State::TimeWait && header.flags.has(Flags::FIN) {
            self.timers.set_ending(Some(now + self.config.time_wait));
        }
        self.answer_unacceptable(now, length);
        false
    }

    /// Data that was received before is acknowledged each time, else the peer sends it for ever;
    /// empty segments only as often as challenges are sent, so that two ends that disagree do not
    /// answer each other without end.
    fn answer_unacceptable(&mut self, now: Instant, length: u32) {
        match length {
            0 => self.acks.challenge(now),
            _ => self.acks.request(),
        }
    }

    /// RFC 5961, section 3: only a reset at the next position ends the connection.
    fn handle_reset(&mut self, now: Instant, start: i64) {
        if start != self.receiver.next() as i64 {
            self.acks.challenge(now);
            return;
        }
        match self.state {
            State::SynReceived if self.is_active => self.end(Some(CloseReason::Refused)),
            // RFC 1337: a reset does not shorten TIME_WAIT.
            State::TimeWait => {}
            // Both ends had shut down, and the peer has all data.
            State::Closing | State::LastAck if self.sender.queue.una() >= self.end_of_data() => {
                self.end(None);
            }
            _ => self.end(Some(CloseReason::Reset)),
        }
    }

    /// RFC 7323, section 4.3: the timestamp of the segment that the last acknowledgement answers.
    fn note_timestamp(&mut self, now: Instant, header: &Header, start: i64) {
        let last_ack = self.last_ack as i64;
        if let (Some(recent), Some(timestamps)) =
            (&mut self.peer_timestamp, header.options.timestamps)
            && start <= last_ack
            && !recent.makes_old(timestamps.value, now)
        {
            *recent = PeerTimestamp {
                value: timestamps.value,
                at: now,
            };
        }
    }

    /// RFC 9293, section 3.10.7.4, fifth step. False if the segment is to be dropped.
    fn handle_ack_field(
        &mut self,
        now: Instant,
        header: &Header,
        start: i64,
        ack: i64,
        is_pure: bool,
    ) -> bool {
        let (una, next) = (
            self.sender.queue.una() as i64,
            self.sender.queue.next() as i64,
        );
        let window = u32::from(header.window) << self.peer_scale;
        if self.state == State::SynReceived {
            if ack <= una || ack > next {
                self.counters.unacceptable += 1;
                self.stray_reset = Some(header.ack);
                return false;
            }
            self.state = self.state_after_handshake();
            // The segment passed the checks of its sequence number.
            let position = u64::try_from(start).unwrap_or(0);
            self.sender.set_first_window(position, 1, window);
        }
        // RFC 5961, section 5.
        let oldest = una - i64::from(self.sender.largest_window().max(u32::from(u16::MAX)));
        if ack > next || ack < oldest {
            self.counters.unacceptable += 1;
            self.acks.challenge(now);
            return false;
        }
        if ack >= una {
            // `ack` is not negative.
            self.handle_acknowledgement(now, header, start, ack as u64, is_pure, window);
        }
        true
    }

    /// The program may have shut down its end before the handshake was complete.
    fn state_after_handshake(&self) -> State {
        match self.shut_down {
            true => State::FinWait1,
            false => State::Established,
        }
    }

    /// Handles an acknowledgement of `ack`, which is not before what was acknowledged.
    fn handle_acknowledgement(
        &mut self,
        now: Instant,
        header: &Header,
        start: i64,
        ack: u64,
        is_pure: bool,
        window: u32,
    ) {
        let mut blocks = [(0, 0); 4];
        let (count, duplicate) = self.selective_blocks(header, ack, &mut blocks);
        let before = self.sender.queue.una();
        let echo = self.peer_timestamp.and(header.options.timestamps);
        let echo = echo.map(|timestamps| self.echo(now, timestamps.echo));
        let released = &mut self.released;
        let advanced = self.sender.acknowledged(
            now,
            &Acknowledgement {
                seq: u64::try_from(start).unwrap_or(0),
                ack,
                window,
                blocks: &blocks[..count],
                duplicate,
                echo,
                is_pure,
                // RFC 3168, section 6.1.1: in a SYN,ACK the flag is part of the negotiation.
                congestion_echo: header.flags.has(Flags::ECE) && !header.flags.has(Flags::SYN),
            },
            |handle| released.push(handle),
        );
        if advanced {
            self.timers.made_progress(now);
            // The SYN and the FIN are no payload.
            let first = before.max(1);
            let last = ack.min(self.end_of_data());
            self.counters.bytes_acknowledged += last.saturating_sub(first);
            self.own_end_acknowledged(now);
            self.retry_long_segments(now);
        }
        if self.sender.window() > 0 {
            self.timers.window_opened();
        }
    }

    /// A timestamp that the peer returned.
    fn echo(&self, now: Instant, value: u32) -> Echo {
        let ticks = self.timestamp_clock(now).wrapping_sub(value) as i32;
        // The tick in which the segment was made may just have begun.
        let age = u64::try_from(ticks).ok();
        Echo {
            value,
            age: age.map(|ticks| Duration::from_millis(ticks + 1)),
        }
    }

    /// The position behind the last byte of payload.
    fn end_of_data(&self) -> u64 {
        self.sender.queue.end() - u64::from(self.shut_down && self.sender.queue.end() > 1)
    }

    /// Converts the SACK blocks of a segment to positions, and drops impossible ones. Returns their
    /// number, and whether the first one reports data that was received twice (RFC 2883).
    fn selective_blocks(
        &self,
        header: &Header,
        ack: u64,
        blocks: &mut [(u64, u64); 4],
    ) -> (usize, bool) {
        if !self.sack {
            return (0, false);
        }
        let next = self.sender.queue.next();
        let mut count = 0;
        let mut duplicate = false;
        for (index, block) in header.options.sack.as_slice().iter().enumerate() {
            let left = self.own_position(block.left);
            let right = self.own_position(block.right);
            let (Ok(left), Ok(right)) = (u64::try_from(left), u64::try_from(right)) else {
                continue;
            };
            if left >= right || right > next {
                continue;
            }
            let second = header.options.sack.as_slice().get(1).is_some_and(|outer| {
                let (outer_left, outer_right) = (
                    self.own_position(outer.left),
                    self.own_position(outer.right),
                );
                outer_left <= left as i64 && right as i64 <= outer_right
            });
            let repeats = index == 0 && (right <= ack || second);
            if left < ack && !repeats {
                continue;
            }
            duplicate |= repeats;
            blocks[count] = (left, right);
            count += 1;
        }
        (count, duplicate)
    }

    /// The peer has acknowledged our FIN, if it acknowledged everything.
    fn own_end_acknowledged(&mut self, now: Instant) {
        let queue = &self.sender.queue;
        if !self.shut_down || queue.una() < queue.end() {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.closed {
                    self.timers.set_ending(Some(now + self.config.fin_wait_2));
                }
            }
            State::Closing => self.enter_time_wait(now),
            State::LastAck => self.end(None),
            _ => {}
        }
    }

    /// Stores a payload. Returns true if its buffer is kept.
    fn handle_payload(&mut self, now: Instant, start: i64, payload: Slice) -> bool {
        let receives = matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2
        );
        if !receives {
            return false;
        }
        let next = self.receiver.next();
        let end = start + i64::from(payload.length);
        if self.closed && end > next as i64 {
            // RFC 9293, section 3.6.1; RFC 2525, section 2.17: nobody will read it.
            self.abort();
            return false;
        }
        // What lies before the SYN was cut off as unacceptable, except a front part.
        let cut = u32::try_from((-start).max(0)).unwrap_or(payload.length);
        let payload = Slice {
            offset: payload.offset + cut.min(payload.length),
            length: payload.length - cut.min(payload.length),
            ..payload
        };
        let start = u64::try_from(start).unwrap_or(0);
        let released = &mut self.released;
        let stored = self
            .receiver
            .store(start, payload, self.longest_early, |handle| {
                released.push(handle);
            });
        match stored {
            Stored::InOrder { filled } => {
                // At most the window.
                let bytes = (self.receiver.next() - next) as u32;
                self.counters.bytes_received += u64::from(bytes);
                let segment = self.peer_segment(payload.length);
                self.acks.received(now, bytes, segment);
                if filled || self.receiver.has_gap() || self.receiver.has_duplicate() {
                    self.acks.request();
                }
                true
            }
            Stored::Early => {
                self.acks.request();
                true
            }
            Stored::Nothing => {
                if end > next as i64 {
                    self.counters.without_room += 1;
                }
                self.acks.request();
                false
            }
        }
    }

    /// The largest payload that the peer has sent.
    fn peer_segment(&mut self, length: u32) -> u32 {
        self.largest_received = self.largest_received.max(length);
        self.largest_received.min(self.config.mss)
    }

    fn handle_fin(&mut self, position: i64) {
        let receives = matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2
        );
        let Ok(position) = u64::try_from(position) else {
            return;
        };
        if receives && position <= self.receiver.edge() {
            self.receiver.finish(position);
        }
        self.acks.request();
    }

    /// RFC 9293, section 3.10.7.4, eighth step.
    fn peer_has_shut_down(&mut self, now: Instant) {
        self.acks.request();
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(now),
            _ => {}
        }
    }

    fn enter_time_wait(&mut self, now: Instant) {
        self.state = State::TimeWait;
        let released = &mut self.released;
        self.sender.stop(|handle| released.push(handle));
        self.timers.stop();
        self.timers.set_ending(Some(now + self.config.time_wait));
    }
}

/// RFC 9293, section 3.7.1.
const DEFAULT_MSS: u16 = 536;
/// A peer that asks for less makes its own data expensive for this end. Linux has the same bound.
const SMALLEST_MSS: u32 = 48;
