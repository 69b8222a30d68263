//! What a connection has to send and has sent: pieces of the stream, each in one buffer.
//!
//! A position counts sequence numbers from the connection's SYN, which has position 0. Positions
//! have 64 bits, so they have an order; the connection converts them to and from the wire.
//!
//! A [`Piece`] is what one segment carries: the SYN, bytes of one buffer, or nothing but the FIN.
//! The pieces are in the order of their positions, without gaps. Each piece is unsent, or has been
//! handed to the driver at least once. A handed piece *departs* when the driver has sent it; from
//! then on it can be found lost, and sent again. Its buffer is released when the peer has
//! acknowledged the piece, and no earlier.
//!
//! ```text
//!   acknowledged      handed over: in flight, selectively acknowledged or lost       unsent
//!  ───────────────┬──────────────────────────────────────────────────────────┬────────────────┐
//!                una                                                        next              end
//! ```
//!
//! The queue finds a piece by its position with a guess: pieces mostly have one length. A departure
//! log has the pieces in the order of their last departures, for loss detection by time (RFC 8985).
//! An entry of the log is stale if its piece has been acknowledged, found lost or handed over
//! again; stale entries are dropped when they come to the front.

mod losses;

use std::collections::VecDeque;

use crate::buffer::{Handle, Slice};
use crate::time::Instant;

/// What one segment carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Position of the first sequence number.
    pub(crate) start: u64,
    /// The payload; `None` if the piece is a SYN or a FIN alone.
    pub(crate) payload: Option<Slice>,
    /// The buffer is released with this piece. False for all but the last part of a split piece.
    owns_buffer: bool,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    /// Handed to the driver at least once.
    pub(crate) sent: bool,
    /// The driver has it: handed over, and not yet departed.
    pub(crate) with_driver: bool,
    /// Handed to the driver more than once.
    pub(crate) retransmitted: bool,
    /// Selectively acknowledged.
    pub(crate) sacked: bool,
    /// Found lost, and not yet handed over again.
    pub(crate) lost: bool,
    /// The last departure. Meaningless before the first one.
    pub(crate) departed: Instant,
    /// Whether the driver has sent the piece at least once.
    pub(crate) has_departed: bool,
    /// The timestamp clock when the piece was last handed over.
    pub(crate) timestamp: u32,
}

impl Piece {
    /// Bytes of payload.
    pub(crate) fn payload_length(&self) -> u32 {
        self.payload.map_or(0, |slice| slice.length)
    }

    /// Number of sequence numbers.
    pub(crate) fn length(&self) -> u32 {
        self.payload_length() + u32::from(self.syn) + u32::from(self.fin)
    }

    /// The position behind the piece.
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.length())
    }

    /// Sent, and neither acknowledged nor found lost.
    fn is_in_flight(&self) -> bool {
        self.sent && !self.sacked && !self.lost
    }
}

/// What an acknowledgement newly covers. The largest and latest of the covered pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Sequence numbers that no acknowledgement covered before.
    pub(crate) bytes: u32,
    /// Sequence numbers by which the cumulative acknowledgement advanced.
    pub(crate) advanced: u32,
    /// True if a piece that was handed over more than once is among those that the cumulative
    /// acknowledgement covers and no SACK block covered.
    pub(crate) was_retransmitted: bool,
}

/// One piece that an acknowledgement newly covers, for loss detection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covered {
    pub(crate) end: u64,
    /// Bytes of payload.
    pub(crate) length: u32,
    pub(crate) departed: Option<Instant>,
    pub(crate) retransmitted: bool,
    /// It was found lost before, and not handed over again since.
    pub(crate) lost: bool,
    pub(crate) timestamp: u32,
}

#[derive(Clone, Copy, Debug)]
struct Departure {
    at: Instant,
    start: u64,
}

/// The send queue. See the module.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    pieces: VecDeque<Piece>,
    /// First position that is not acknowledged.
    una: u64,
    /// First position that was never handed over.
    next: u64,
    /// Position behind the last piece.
    end: u64,
    /// Number of pieces at the front that were handed over.
    sent_pieces: usize,
    /// Sequence numbers in flight.
    in_flight: u32,
    /// Pieces that are lost.
    lost: u32,
    /// Sequence numbers, and pieces, that are selectively acknowledged.
    sacked: u32,
    sacked_pieces: u32,
    /// Pieces that are with the driver.
    with_driver: u32,
    departures: VecDeque<Departure>,
    /// No lost piece begins before this position.
    lost_from: u64,
}

impl SendQueue {
    /// First position that is not acknowledged.
    pub(crate) fn una(&self) -> u64 {
        self.una
    }

    /// First position that was never handed over.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Position behind the last piece.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(crate) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    pub(crate) fn sacked(&self) -> u32 {
        self.sacked
    }

    pub(crate) fn sacked_pieces(&self) -> u32 {
        self.sacked_pieces
    }

    /// Sequence numbers that were handed over and that no cumulative acknowledgement covers.
    pub(crate) fn outstanding(&self) -> u32 {
        // At most the window, which has at most 30 bits.
        (self.next - self.una) as u32
    }

    /// Bytes of pieces that were never handed over.
    pub(crate) fn unsent(&self) -> u64 {
        self.end - self.next
    }

    /// Number of pieces, sent and unsent.
    pub(crate) fn count(&self) -> usize {
        self.pieces.len()
    }

    /// The payloads of all pieces.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = Slice> {
        self.pieces.iter().filter_map(|piece| piece.payload)
    }

    /// Replaces the buffer of each piece by the one that `rename` returns for it.
    pub(crate) fn rename_buffers(&mut self, mut rename: impl FnMut(Handle) -> Handle) {
        let pieces = self.pieces.iter_mut();
        for payload in pieces.filter_map(|piece| piece.payload.as_mut()) {
            payload.handle = rename(payload.handle);
        }
    }

    /// Adds the SYN.
    pub(crate) fn push_syn(&mut self) {
        // Many connections wait for a first request: no memory for more than this piece.
        self.pieces.reserve_exact(1);
        self.push(None, true, false);
    }

    /// Adds a buffer's payload.
    pub(crate) fn push_payload(&mut self, payload: Slice) {
        self.push(Some(payload), false, false);
    }

    /// Adds the FIN: to the last piece if it is unsent, else as a piece of its own.
    pub(crate) fn push_fin(&mut self) {
        match self.pieces.back_mut() {
            Some(last) if !last.sent && !last.syn => {
                last.fin = true;
                self.end += 1;
            }
            _ => self.push(None, false, true),
        }
    }

    fn push(&mut self, payload: Option<Slice>, syn: bool, fin: bool) {
        let piece = Piece {
            start: self.end,
            payload,
            owns_buffer: true,
            syn,
            fin,
            sent: false,
            with_driver: false,
            retransmitted: false,
            sacked: false,
            lost: false,
            departed: Instant::ZERO,
            has_departed: false,
            timestamp: 0,
        };
        self.end = piece.end();
        self.pieces.push_back(piece);
    }

    /// The payload of the last piece, so that more bytes can be added to it. `None` if something of
    /// its buffer was sent: the second part of a split piece has no room of its own behind it.
    pub(crate) fn last_unsent(&self) -> Option<Slice> {
        let last = self.pieces.back()?;
        let payload = last.payload.filter(|payload| payload.offset == 0);
        payload.filter(|_| !last.sent && !last.fin)
    }

    /// Adds `more` bytes to the payload of the last piece, which must be unsent
    /// ([`SendQueue::last_unsent`]).
    pub(crate) fn extend_last(&mut self, more: u32) {
        if let Some(payload) = self
            .pieces
            .back_mut()
            .and_then(|last| last.payload.as_mut())
        {
            payload.length += more;
            self.end += u64::from(more);
        }
    }

    /// The first piece that was never handed over.
    pub(crate) fn first_unsent(&self) -> Option<&Piece> {
        self.pieces.get(self.sent_pieces)
    }

    /// The piece with the lowest position.
    pub(crate) fn front(&self) -> Option<&Piece> {
        self.pieces.front()
    }

    /// The piece with the highest position that was handed over and is not selectively
    /// acknowledged.
    pub(crate) fn last_sent(&self) -> Option<&Piece> {
        let sent = self.pieces.range(..self.sent_pieces);
        sent.rev().find(|piece| !piece.sacked)
    }

    /// The lost piece with the lowest position that the driver does not have.
    pub(crate) fn first_lost(&mut self) -> Option<Piece> {
        if self.lost == 0 {
            return None;
        }
        let from = self.index_from(self.lost_from.max(self.una));
        let mut sent = self.pieces.range(from..self.sent_pieces);
        let found = sent.find(|piece| piece.lost && !piece.with_driver).copied();
        self.lost_from = found.map_or(self.next, |piece| piece.start);
        found
    }

    /// The piece that begins at `start`.
    pub(crate) fn at(&self, start: u64) -> Option<&Piece> {
        Some(&self.pieces[self.index_of(start)?])
    }

    /// Splits the piece that begins at `start` behind `length` bytes of its payload. Does nothing
    /// if the payload is not longer. The second part has the state of the first.
    pub(crate) fn split(&mut self, start: u64, length: u32) {
        let index = self.index_from(start);
        let Some(piece) = self.pieces.get_mut(index) else {
            return;
        };
        let Some(payload) = piece.payload.filter(|payload| payload.length > length) else {
            return;
        };
        if length == 0 || piece.start != start {
            return;
        }
        let mut second = *piece;
        second.start += u64::from(length);
        second.payload = Some(Slice {
            offset: payload.offset + length,
            length: payload.length - length,
            ..payload
        });
        // The driver's answer names the first part.
        second.with_driver = false;
        piece.payload = Some(Slice { length, ..payload });
        piece.owns_buffer = false;
        piece.fin = false;
        let logged = second.sent && second.has_departed && second.is_in_flight();
        if second.sent {
            self.sent_pieces += 1;
        }
        if second.lost {
            self.lost += 1;
        }
        if second.sacked {
            self.sacked_pieces += 1;
        }
        self.pieces.insert(index + 1, second);
        if logged {
            self.rebuild_departures();
        }
    }

    /// Marks a piece as handed to the driver. Returns false if no such piece exists.
    pub(crate) fn handed_over(&mut self, start: u64, timestamp: u32) -> bool {
        let Some(index) = self.index_of(start) else {
            return false;
        };
        let piece = &mut self.pieces[index];
        let length = piece.length();
        piece.timestamp = timestamp;
        piece.retransmitted |= piece.sent;
        if !piece.with_driver {
            piece.with_driver = true;
            self.with_driver += 1;
        }
        if !piece.sent {
            piece.sent = true;
            self.sent_pieces += 1;
            self.next = piece.end();
            self.in_flight += length;
        } else if piece.lost {
            piece.lost = false;
            self.lost -= 1;
            if !piece.sacked {
                self.in_flight += length;
            }
        }
        true
    }

    /// The driver has sent the piece that was handed over as `start`. Ignores a piece that was
    /// acknowledged meanwhile.
    pub(crate) fn departed(&mut self, start: u64, at: Instant) {
        let Some(index) = self.index_of(start) else {
            return;
        };
        let piece = &mut self.pieces[index];
        if !piece.with_driver {
            return;
        }
        piece.with_driver = false;
        self.with_driver -= 1;
        piece.departed = at;
        piece.has_departed = true;
        if piece.is_in_flight() {
            self.departures.push_back(Departure { at, start });
        }
    }

    /// The driver returned the piece unsent: it is lost at once.
    pub(crate) fn returned_unsent(&mut self, start: u64) {
        let Some(index) = self.index_of(start) else {
            return;
        };
        let piece = &mut self.pieces[index];
        if piece.with_driver {
            piece.with_driver = false;
            self.with_driver -= 1;
            self.mark_lost_at(index);
        }
    }

    /// Applies a cumulative acknowledgement of everything before `ack`, which must lie between
    /// [`SendQueue::una`] and [`SendQueue::next`]. Passes each covered piece that no SACK block
    /// covered before to `covered`, and each buffer that is free now to `release`.
    pub(crate) fn acknowledge(
        &mut self,
        ack: u64,
        mut covered: impl FnMut(Covered),
        mut release: impl FnMut(Handle),
    ) -> Delivered {
        let mut delivered = Delivered {
            // At most the window, which has at most 30 bits.
            advanced: (ack - self.una) as u32,
            ..Delivered::default()
        };
        while let Some(piece) = self.pieces.front().copied() {
            if piece.end() > ack {
                break;
            }
            self.pieces.pop_front();
            self.sent_pieces -= 1;
            self.forget(&piece);
            if !piece.sacked {
                delivered.bytes += piece.length();
                delivered.was_retransmitted |= piece.retransmitted;
                covered(Covered::of(&piece));
            }
            if let (true, Some(payload)) = (piece.owns_buffer, piece.payload) {
                release(payload.handle);
            }
        }
        self.una = ack;
        self.acknowledge_part(ack, &mut delivered);
        delivered
    }

    /// The front piece is acknowledged in part: its position moves.
    fn acknowledge_part(&mut self, ack: u64, delivered: &mut Delivered) {
        let Some(front) = self.pieces.front_mut() else {
            return;
        };
        let part = ack.saturating_sub(front.start);
        if part == 0 {
            return;
        }
        // Less than the length of the piece, which has 32 bits.
        let part = part as u32;
        if let Some(payload) = front.payload.as_mut() {
            payload.offset += part;
            payload.length -= part;
        }
        let in_flight = front.is_in_flight();
        // The driver's answer will name the old position; it is ignored.
        if front.with_driver {
            front.with_driver = false;
            self.with_driver -= 1;
        }
        front.start = ack;
        if !front.sacked {
            delivered.bytes += part;
        } else {
            self.sacked -= part;
        }
        let departure = Departure {
            at: front.departed,
            start: ack,
        };
        if in_flight {
            self.in_flight -= part;
            if front.has_departed {
                self.departures.push_front(departure);
            }
        }
    }

    /// Applies a SACK block, as positions. Marks the pieces that lie in it as a whole, and passes
    /// each newly marked one to `covered`. Returns the number of newly covered sequence numbers.
    pub(crate) fn select(
        &mut self,
        left: u64,
        right: u64,
        mut covered: impl FnMut(Covered),
    ) -> u32 {
        let mut bytes = 0;
        let first = self.index_from(left.max(self.una));
        for index in first..self.sent_pieces {
            let piece = &mut self.pieces[index];
            if piece.end() > right {
                break;
            }
            if piece.sacked {
                continue;
            }
            covered(Covered::of(piece));
            let length = piece.length();
            if piece.lost {
                piece.lost = false;
                self.lost -= 1;
            } else {
                self.in_flight -= length;
            }
            piece.sacked = true;
            self.sacked += length;
            self.sacked_pieces += 1;
            bytes += length;
        }
        bytes
    }

    /// Releases all buffers.
    pub(crate) fn clear(&mut self, mut release: impl FnMut(Handle)) {
        for piece in self.pieces.drain(..) {
            if let (true, Some(payload)) = (piece.owns_buffer, piece.payload) {
                release(payload.handle);
            }
        }
        *self = SendQueue {
            una: self.next,
            next: self.next,
            end: self.next,
            ..SendQueue::default()
        };
    }

    /// Takes a removed piece out of the counters.
    fn forget(&mut self, piece: &Piece) {
        if piece.is_in_flight() {
            self.in_flight -= piece.length();
        }
        if piece.lost {
            self.lost -= 1;
        }
        if piece.sacked {
            self.sacked -= piece.length();
            self.sacked_pieces -= 1;
        }
        if piece.with_driver {
            self.with_driver -= 1;
        }
    }

    /// Index of the piece that begins at `start`.
    fn index_of(&self, start: u64) -> Option<usize> {
        let index = self.index_from(start);
        let piece = self.pieces.get(index)?;
        (piece.start == start).then_some(index)
    }

    /// Index of the first piece that begins at `position` or behind it.
    fn index_from(&self, position: u64) -> usize {
        let Some(front) = self.pieces.front() else {
            return 0;
        };
        if position <= front.start {
            return 0;
        }
        if position >= self.end {
            return self.pieces.len();
        }
        let count = self.pieces.len();
        if self.sent_pieces < count && self.pieces[self.sent_pieces].start == position {
            return self.sent_pieces;
        }
        // The pieces have one length, in the ordinary case: guess, then search from there. No span
        // and no count has more than 32 bits.
        let span = self.end - front.start;
        let guess = (position - front.start).saturating_mul(count as u64) / span;
        // At most `count`.
        let guess = (guess as usize).min(count - 1);
        let starts = |index: usize| self.pieces[index].start;
        let near = |index: usize| starts(index) >= position && starts(index - 1) < position;
        for index in [guess, guess + 1] {
            if (1..count).contains(&index) && near(index) {
                return index;
            }
        }
        self.pieces.partition_point(|piece| piece.start < position)
    }

    /// Checks the counters against the pieces.
    ///
    /// # Panics
    /// If they differ.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn invariants(&self) {
        let sum = |count: fn(&Piece) -> u32| self.pieces.iter().map(count).sum::<u32>();
        let mut at = self.una;
        for (index, piece) in self.pieces.iter().enumerate() {
            assert_eq!(piece.start, at, "a gap before piece {index}");
            assert_eq!(piece.sent, index < self.sent_pieces);
            assert!(
                !(piece.lost && piece.sacked),
                "lost and acknowledged: {piece:?}"
            );
            at = piece.end();
        }
        assert_eq!(at, self.end);
        assert!(self.una <= self.next && self.next <= self.end);
        let in_flight = |piece: &Piece| u32::from(piece.is_in_flight()) * piece.length();
        assert_eq!(self.in_flight, sum(in_flight));
        assert_eq!(self.lost, sum(|piece| u32::from(piece.lost)));
        assert_eq!(
            self.sacked,
            sum(|piece| u32::from(piece.sacked) * piece.length())
        );
        assert_eq!(self.sacked_pieces, sum(|piece| u32::from(piece.sacked)));
        assert_eq!(self.with_driver, sum(|piece| u32::from(piece.with_driver)));
        for piece in &self.pieces {
            let logged = piece.is_in_flight() && piece.has_departed && !piece.with_driver;
            let found = self
                .departures
                .iter()
                .any(|departure| departure.start == piece.start && departure.at == piece.departed);
            assert!(!logged || found, "not in the departure log: {piece:?}");
        }
    }
}

impl Covered {
    fn of(piece: &Piece) -> Covered {
        Covered {
            end: piece.end(),
            length: piece.payload_length(),
            departed: (piece.has_departed && !piece.with_driver).then_some(piece.departed),
            retransmitted: piece.retransmitted,
            lost: piece.lost,
            timestamp: piece.timestamp,
        }
    }
}
