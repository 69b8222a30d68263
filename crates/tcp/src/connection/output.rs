//! Which segment a connection gives out next.

use super::{CloseReason, Connection, State};
use crate::buffer::{Handle, Slice};
use crate::header::{Flags, Header, Options, SackBlock, SackBlocks, Seq, Timestamps};
use crate::sender::HeldBack;
use crate::time::Instant;

/// Names a segment that the caller hands to the driver, for the report of its departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(u64);

/// A segment to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// The header. Its checksum is the caller's to compute.
    pub header: Header,
    /// Where the payload lies. A part with an offset above 0, of a buffer whose beginning was
    /// acknowledged or leaves as a segment of its own, may have to be copied.
    pub payload: Option<Slice>,
    /// The caller reports with it when the segment left ([`Connection::handle_departure`]) or that
    /// it did not ([`Connection::handle_unsent`]). `None`: no report is needed.
    pub token: Option<Token>,
    /// The IP header says that the transport understands congestion marks: ECT(0) of RFC 3168.
    pub ecn_capable: bool,
}

impl Connection {
    /// The next segment; `None` if none is to be sent now. The caller must have room for it: the
    /// connection counts the segment as handed to the driver.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let transmit = self.next_segment(now)?;
        self.counters.segments_sent += 1;
        Some(transmit)
    }

    /// The payload of a further segment that may leave in one packet with `run`, which
    /// [`Connection::poll_transmit`] has just returned, and whose last payload is `last`: new data
    /// that follows it. Counts it as handed to the driver. The header gets the flags of the last
    /// segment (PSH, FIN). `None` if there is none whose buffer `joins` accepts.
    pub fn poll_following(
        &mut self,
        now: Instant,
        run: &mut Transmit,
        (last, token): (Slice, Token),
        joins: impl Fn(Handle) -> bool,
    ) -> Option<(Slice, Token)> {
        let first = run.payload?;
        let is_full = last.length == first.length && run.header.flags == Flags::ACK;
        if !is_full || run.ecn_capable != self.ecn || !self.is_synchronized() {
            return None;
        }
        let start = token.0 + u64::from(last.length);
        let next = self.sender.poll_following(now, start, joins)?;
        let piece = *self.sender.queue.at(next.start)?;
        let payload = piece.payload.filter(|own| own.length <= first.length)?;
        if piece.fin {
            run.header.flags |= Flags::FIN;
        }
        if piece.end() == self.sender.queue.end() {
            run.header.flags |= Flags::PSH;
        }
        let timestamp = self.timestamp_clock(now);
        self.sender.handed_over(next.start, timestamp);
        self.counters.segments_sent += 1;
        Some((payload, Token(piece.start)))
    }

    fn next_segment(&mut self, now: Instant) -> Option<Transmit> {
        if let Some(seq) = self.stray_reset.take() {
            return Some(self.bare(Flags::RST, seq, Seq::default()));
        }
        if self.reset_due {
            self.reset_due = false;
            return Some(self.reset());
        }
        if self.state == State::Closed {
            return None;
        }
        if self.timers.take_probe() {
            // A segment before the window makes the peer say where the connection stands.
            let seq = self.own_seq(self.sender.queue.una()).add(u32::MAX);
            return Some(self.acknowledgement(now, seq));
        }
        // SACK blocks do not fit beside a full payload.
        let alone = self.receiver.has_gap() || self.receiver.has_duplicate();
        if self.acks.is_due() && alone && self.is_peer_known() {
            let seq = self.own_seq(self.sender.queue.next());
            return Some(self.acknowledgement(now, seq));
        }
        if let Some(piece) = self.next_piece(now) {
            return Some(piece);
        }
        if self.acks.is_due() && self.is_peer_known() {
            let seq = self.own_seq(self.sender.queue.next());
            return Some(self.acknowledgement(now, seq));
        }
        None
    }

    fn is_peer_known(&self) -> bool {
        self.state != State::SynSent
    }

    /// The next piece of the stream.
    fn next_piece(&mut self, now: Instant) -> Option<Transmit> {
        // Before the handshake is complete only the SYN may leave.
        let front = self.sender.queue.front()?;
        if !self.is_synchronized() && front.sent && !front.lost {
            return None;
        }
        let next = match self.sender.poll_piece(now) {
            Ok(next) => next,
            Err(held_back) => {
                self.held_back = held_back;
                if held_back == HeldBack::PeerWindow {
                    self.window_is_closed(now);
                }
                return None;
            }
        };
        self.held_back = HeldBack::Program;
        let piece = *self.sender.queue.at(next.start)?;
        let timestamp = self.timestamp_clock(now);
        let mut header = if piece.syn {
            self.syn(now)
        } else {
            self.header(now, Flags::ACK, self.own_seq(piece.start))
        };
        if piece.payload.is_some() && self.peer_timestamp.is_none() {
            header.options.padding = self.config.padding;
        }
        if piece.fin {
            header.flags |= Flags::FIN;
        }
        // The last segment of what the program wrote (RFC 9293, section 3.9.1.2).
        if piece.payload.is_some() && piece.end() == self.sender.queue.end() {
            header.flags |= Flags::PSH;
        }
        if next.announce_reduction {
            header.flags |= Flags::CWR;
        }
        let repeated = piece.sent;
        self.sender.handed_over(next.start, timestamp);
        Some(Transmit {
            header,
            payload: piece.payload,
            token: Some(Token(piece.start)),
            // RFC 3168, section 6.1.5: no retransmission.
            ecn_capable: self.ecn && piece.payload.is_some() && !repeated,
        })
    }

    /// The SYN, with what this end offers; with an acknowledgement if the peer's is known.
    fn syn(&mut self, now: Instant) -> Header {
        let answers = self.state == State::SynReceived;
        let mut flags = Flags::SYN;
        if answers {
            flags |= Flags::ACK;
            if self.ecn {
                flags |= Flags::ECE;
            }
        } else if self.config.ecn && self.sender.timeouts == 0 {
            // RFC 3168, section 6.1.1.1: a path may drop such a SYN, so only the first one asks.
            flags |= Flags::ECE | Flags::CWR;
        }
        let mut header = self.header(now, flags, self.identity.initial_seq);
        // The window of a SYN is not scaled.
        let window = self.receiver.edge() - self.receiver.next();
        header.window = u16::try_from(window).unwrap_or(u16::MAX);
        let offers_scale = match answers {
            true => self.scales,
            false => self.config.window_scaling,
        };
        let offers_sack = match answers {
            true => self.sack,
            false => self.config.sack,
        };
        header.options.mss = Some(u16::try_from(self.config.mss).unwrap_or(u16::MAX));
        header.options.window_scale = offers_scale.then(|| self.config.window_scale());
        header.options.sack_permitted = offers_sack;
        if !answers && self.config.timestamps {
            header.options.timestamps = Some(Timestamps {
                value: self.timestamp_clock(now),
                echo: 0,
            });
        }
        header
    }

    /// A reset in the sequence of the connection.
    fn reset(&self) -> Transmit {
        let seq = self.own_seq(self.sender.queue.next());
        let ack = self.peer_seq_at(self.receiver.next());
        self.bare(Flags::RST | Flags::ACK, seq, ack)
    }

    /// A segment without options, payload and window.
    fn bare(&self, flags: Flags, seq: Seq, ack: Seq) -> Transmit {
        Transmit {
            header: Header {
                source: self.identity.local_port,
                destination: self.identity.remote_port,
                seq,
                ack,
                flags,
                ..Header::default()
            },
            payload: None,
            token: None,
            ecn_capable: false,
        }
    }

    /// A segment that only acknowledges, with SACK blocks.
    fn acknowledgement(&mut self, now: Instant, seq: Seq) -> Transmit {
        let mut header = self.header(now, Flags::ACK, seq);
        if self.sack {
            let mut blocks = SackBlocks::default();
            let ranges: Vec<(u64, u64)> = self.receiver.blocks().collect();
            for (left, right) in ranges {
                blocks.push(SackBlock {
                    left: self.peer_seq_at(left),
                    right: self.peer_seq_at(right),
                });
            }
            header.options.sack = blocks;
        }
        Transmit {
            header,
            payload: None,
            token: None,
            ecn_capable: false,
        }
    }

    /// A header with the present acknowledgement and window. From now on the peer has been told.
    fn header(&mut self, now: Instant, flags: Flags, seq: Seq) -> Header {
        let mut flags = flags;
        let mut header = Header {
            source: self.identity.local_port,
            destination: self.identity.remote_port,
            seq,
            ..Header::default()
        };
        if flags.has(Flags::ACK) {
            header.ack = self.peer_seq_at(self.receiver.next());
            header.window = self.advertise();
            self.last_ack = self.receiver.next();
            self.acks.sent();
            if self.echo_marks && !flags.has(Flags::SYN) {
                flags |= Flags::ECE;
            }
        }
        header.flags = flags;
        header.options = Options {
            timestamps: self.peer_timestamp.map(|recent| Timestamps {
                value: self.timestamp_clock(now),
                echo: recent.value,
            }),
            ..Options::default()
        };
        header
    }

    /// The window field. Moves the edge if that is worth an announcement (RFC 9293, section
    /// 3.8.6.2.2: silly windows are avoided).
    fn advertise(&mut self) -> u16 {
        let unit = 1_u64 << self.own_scale;
        let next = self.receiver.next();
        let possible = self.possible_edge();
        if possible - self.receiver.edge() >= self.window_step() {
            self.receiver.promise(possible - (possible - next) % unit);
        }
        let window = self.receiver.edge() - next;
        // Rounded up, so that the edge does not go back; by less than a unit.
        let bound = next + self.receiver.early_bytes() + self.room + unit;
        let field = match next + window.next_multiple_of(unit) <= bound {
            true => window.div_ceil(unit),
            false => window / unit,
        };
        let field = u16::try_from(field).unwrap_or(u16::MAX);
        self.receiver.promise(next + u64::from(field) * unit);
        field
    }

    /// The edge that the empty buffers permit.
    fn possible_edge(&self) -> u64 {
        let largest = self.receiver.next() + u64::from(self.config.largest_window);
        self.receiver
            .possible_edge(self.room)
            .min(largest)
            .max(self.receiver.edge())
    }

    /// The least number of bytes by which the window opens: a segment, or half of a small window.
    fn window_step(&self) -> u64 {
        let mss = u64::from(self.config.mss);
        mss.min(u64::from(self.config.largest_window) / 2).max(1)
    }

    /// The program has read, or the caller has new buffers: says whether the peer should be told.
    /// An acknowledgement is due if the window was nearly closed, or opens by half of what is
    /// possible.
    pub(super) fn window_may_open(&mut self) {
        if !self.is_peer_known() || self.state == State::Closed || self.receiver.is_finished() {
            return;
        }
        let (next, edge) = (self.receiver.next(), self.receiver.edge());
        let opens = self.possible_edge() - edge;
        let window = edge - next;
        if opens >= self.window_step() && (window < opens || window == 0) {
            self.acks.request();
        }
    }

    /// The clock of timestamps, in milliseconds (RFC 7323, section 5.4).
    pub(super) fn timestamp_clock(&self, now: Instant) -> u32 {
        // The clock wraps.
        (now.as_millis() as u32).wrapping_add(self.identity.timestamp_offset)
    }

    /// The driver has sent a segment, at the time `at`.
    pub fn handle_departure(&mut self, token: Token, at: Instant) {
        self.handle_departures(&[token], at);
    }

    /// The driver has sent these segments together, at the time `at`.
    pub fn handle_departures(&mut self, tokens: &[Token], at: Instant) {
        let starts = tokens.iter().map(|token| token.0);
        if self.state != State::Closed && self.sender.departed(starts, at) {
            self.timers.made_progress(at);
        }
    }

    /// The driver returned a segment unsent. `again`: it can be handed over again at once, for
    /// example because the flow has moved to another link; else it counts as sent and lost on the
    /// way, and is sent again after the retransmission timeout.
    pub fn handle_unsent(&mut self, token: Token, now: Instant, again: bool) {
        match again {
            true => self.sender.queue.returned_unsent(token.0),
            false => self.handle_departure(token, now),
        }
    }

    /// True if a sequence number was sent and is not acknowledged. A message of the network is
    /// believed only if it quotes such a number (RFC 5927, section 4).
    pub fn is_in_flight(&self, seq: Seq) -> bool {
        let position = self.own_position(seq);
        let queue = &self.sender.queue;
        queue.una() as i64 <= position && position < queue.next() as i64
    }

    /// The network reported that the peer cannot be reached. Ends a connection that is not
    /// established (RFC 5927, section 5); else the timeouts decide.
    pub fn handle_unreachable(&mut self, seq: Seq) {
        if self.is_in_flight(seq) && matches!(self.state, State::SynSent | State::SynReceived) {
            self.end(Some(CloseReason::Unreachable));
        }
    }
}
