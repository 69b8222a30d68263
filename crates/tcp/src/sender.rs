//! The sending half of a connection: what may be sent when, and what an acknowledgement means.
//!
//! The sender decides on the next piece ([`Sender::poll_piece`]): a lost piece first, then a probe
//! for a lost tail, then new data. Three limits apply: the peer's window, the congestion window,
//! and Nagle's algorithm. It keeps one timer, the *loss timer*, which stands for the first of three
//! times: the reordering window of RACK, the tail loss probe (RFC 8985, section 7), and the
//! retransmission timeout (RFC 6298).
//!
//! ```text
//!                 RACK or three duplicates                 una passes the recovery point
//!    Open ────────────────────────────────▶ Fast ─────────────────────────────────────▶ Open
//!     │                                      │
//!     └── retransmission timeout ──▶ Timeout ◀┘    una passes the recovery point ─────▶ Open
//! ```
//! In `Fast`, proportional rate reduction decides how much leaves (RFC 6937). A recovery whose
//! first retransmission proves needless is undone: the peer's timestamp echo is older than that
//! retransmission (RFC 3522), or the peer reports the data as received twice.

mod acknowledgement;
mod loss_timer;

use std::time::Duration;

use crate::buffer::Handle;
use crate::congestion::{Algorithm, Congestion};
use crate::prr::Prr;
use crate::rack::Rack;
use crate::rtt::{RtoLimits, Rtt};
use crate::send_queue::{Piece, SendQueue};
use crate::time::Instant;

/// The sending half. See the module.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) queue: SendQueue,
    pub(crate) rtt: Rtt,
    pub(crate) congestion: Congestion,
    rack: Rack,
    recovery: Recovery,
    /// The peer's window in bytes, from [`SendQueue::una`] on.
    window: u32,
    largest_window: u32,
    /// Sequence number and acknowledgement of the segment that set the window (RFC 9293, 3.8.1).
    window_from: (u64, u64),
    /// Largest payload of a segment in bytes, without the options that every segment has.
    mss: u32,
    /// The peer acknowledges selectively.
    sack: bool,
    /// Nagle's algorithm is off.
    no_delay: bool,
    /// The longest payload that the peer has acknowledged since the MSS has changed.
    longest_delivered: u32,
    /// The last acknowledgement's blocks, so that a repetition costs nothing.
    last_blocks: Vec<(u64, u64)>,
    /// Duplicate acknowledgements of a peer without SACK.
    duplicates: u32,
    loss_timer: Option<(Instant, LossTimer)>,
    /// The retransmission timeout counts from here.
    timeout_from: Instant,
    /// The last departure.
    last_departure: Instant,
    probe: Probe,
    /// The last look for a piece was refused by the congestion window.
    window_limited: bool,
    /// The position behind the last segment that was shorter than the MSS.
    short_end: u64,
    /// ECN is in use; the window was reduced for a mark, and is again once `una` passes this.
    ecn: bool,
    reduced_until: u64,
    /// The next new segment carries CWR.
    announce_reduction: bool,
    /// Counters.
    pub(crate) retransmitted: u64,
    pub(crate) timeouts: u64,
}

#[derive(Clone, Debug)]
enum Recovery {
    Open,
    Fast { end: u64, prr: Prr, undo: Undo },
    Timeout { end: u64, undo: Undo },
}

/// What tells that a recovery was needless.
#[derive(Clone, Copy, Debug, Default)]
struct Undo {
    /// The timestamp of the first retransmission.
    stamp: Option<u32>,
    /// Retransmissions, less those that the peer reported as received twice. `None`: undone, or
    /// beyond proof.
    needless: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossTimer {
    Reordering,
    Probe,
    Timeout,
}

/// The tail loss probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Probe {
    #[default]
    None,
    /// To be sent.
    Due,
    /// Sent: everything before `end` was sent when the probe was. It repeated data, or not.
    Sent { end: u64, repeated: bool },
}

/// Which piece leaves next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextPiece {
    pub(crate) start: u64,
    pub(crate) announce_reduction: bool,
}

/// Why nothing leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HeldBack {
    /// The program has written nothing more.
    #[default]
    Program,
    /// The peer's window is full.
    PeerWindow,
    /// The congestion window is full.
    Congestion,
    /// A short segment waits for an acknowledgement (Nagle's algorithm).
    Nagle,
}

/// The timestamp that an acknowledgement returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    pub(crate) value: u32,
    /// `None`: the value is not one of the past.
    pub(crate) age: Option<Duration>,
}

/// An acknowledgement, in positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledgement<'a> {
    /// Position of the segment that carries it.
    pub(crate) seq: u64,
    pub(crate) ack: u64,
    /// The peer's window in bytes.
    pub(crate) window: u32,
    pub(crate) blocks: &'a [(u64, u64)],
    /// The first block reports data that was received twice (RFC 2883).
    pub(crate) duplicate: bool,
    /// The timestamp that it returns, and the time since that timestamp's tick of the clock began
    /// (RFC 7323, section 4). The time has the precision of the clock, and is not less than the
    /// age of the segment with that timestamp.
    pub(crate) echo: Option<Echo>,
    /// The segment has neither payload, nor SYN or FIN.
    pub(crate) is_pure: bool,
    pub(crate) congestion_echo: bool,
}

/// The parameters of a sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SenderConfig {
    pub(crate) algorithm: Algorithm,
    pub(crate) limits: RtoLimits,
    pub(crate) mss: u32,
    pub(crate) no_delay: bool,
}

impl Sender {
    pub(crate) fn new(config: SenderConfig) -> Sender {
        Sender {
            queue: SendQueue::default(),
            rtt: Rtt::new(config.limits),
            congestion: Congestion::new(config.algorithm, config.mss),
            rack: Rack::default(),
            recovery: Recovery::Open,
            window: 0,
            largest_window: 0,
            window_from: (0, 0),
            mss: config.mss,
            sack: false,
            no_delay: config.no_delay,
            longest_delivered: 0,
            last_blocks: Vec::new(),
            duplicates: 0,
            loss_timer: None,
            timeout_from: Instant::ZERO,
            last_departure: Instant::ZERO,
            probe: Probe::None,
            window_limited: false,
            short_end: 0,
            ecn: false,
            reduced_until: 0,
            announce_reduction: false,
            retransmitted: 0,
            timeouts: 0,
        }
    }

    /// Sets what the handshake negotiated: the MSS and SACK.
    pub(crate) fn negotiated(&mut self, mss: u32, sack: bool, algorithm: Algorithm) {
        self.mss = mss;
        self.sack = sack;
        // The initial window depends on the MSS. A SYN that was sent again makes it one segment
        // (RFC 6928, section 2).
        self.congestion = Congestion::new(algorithm, mss);
        // The driver's schedule spreads what leaves.
        self.congestion.set_paced(true);
        if self.timeouts > 0 {
            self.congestion.handshake_lost();
        }
    }

    /// Whether the peer echoes congestion marks.
    pub(crate) fn set_ecn(&mut self, ecn: bool) {
        self.ecn = ecn;
    }

    pub(crate) fn mss(&self) -> u32 {
        self.mss
    }

    /// Changes the MSS. Pieces in flight that are longer are lost, without a sign of congestion.
    pub(crate) fn set_mss(&mut self, mss: u32) {
        let shorter = mss < self.mss;
        self.mss = mss;
        self.longest_delivered = 0;
        self.congestion.set_mss(mss);
        if shorter {
            self.queue.lose_longer(mss);
        }
    }

    pub(crate) fn set_no_delay(&mut self, no_delay: bool) {
        self.no_delay = no_delay;
    }

    /// The peer's window in bytes.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Sets the window that the first segment of the peer had. It is not scaled in a SYN.
    pub(crate) fn set_first_window(&mut self, seq: u64, ack: u64, window: u32) {
        self.window = window;
        self.largest_window = self.largest_window.max(window);
        self.window_from = (seq, ack);
    }

    /// The largest window that the peer has granted.
    pub(crate) fn largest_window(&self) -> u32 {
        self.largest_window
    }

    pub(crate) fn in_recovery(&self) -> bool {
        !matches!(self.recovery, Recovery::Open)
    }

    /// The driver has sent these pieces together. Returns true if the first transmission of the
    /// first piece that is not acknowledged is among them: from now on the peer owes an
    /// acknowledgement.
    pub(crate) fn departed(&mut self, starts: impl Iterator<Item = u64>, at: Instant) -> bool {
        if self.queue.earliest_departure().is_none() {
            self.timeout_from = at;
        }
        self.last_departure = self.last_departure.max(at);
        let una = self.queue.una();
        let mut is_first = false;
        for start in starts {
            self.queue.departed(start, at);
            is_first |= start == una;
        }
        self.set_loss_timer(at);
        is_first && self.queue.front().is_some_and(|front| !front.retransmitted)
    }

    /// As [`Sender::poll_piece`], if that would be new data at `start`, a whole buffer that `joins`
    /// accepts, with which nothing is to be announced.
    pub(crate) fn poll_following(
        &mut self,
        now: Instant,
        start: u64,
        joins: impl Fn(Handle) -> bool,
    ) -> Option<NextPiece> {
        let is_plain = !self.queue.has_lost()
            && self.probe != Probe::Due
            && !self.announce_reduction
            && self.queue.next() == start;
        let unsent = self.queue.first_unsent().filter(|_| is_plain)?;
        unsent
            .payload
            .filter(|payload| payload.offset == 0 && joins(payload.handle))?;
        self.poll_piece(now).ok()
    }

    /// A small window is used after all: splits the first unsent piece so that its front part fits.
    /// Returns false if the window is closed.
    pub(crate) fn overrides_small_window(&mut self) -> bool {
        let edge = self.queue.una() + u64::from(self.window);
        let Some(piece) = self.queue.first_unsent() else {
            return false;
        };
        let start = piece.start;
        match u32::try_from(edge.saturating_sub(start)) {
            Ok(usable) if usable > 0 => {
                self.queue.split(start, usable);
                true
            }
            _ => false,
        }
    }

    /// The longest payload among the first pieces that are sent and not acknowledged.
    pub(crate) fn longest_outstanding(&self) -> u32 {
        self.queue
            .front()
            .filter(|front| front.sent)
            .map_or(0, Piece::payload_length)
    }

    /// The longest payload that the peer has acknowledged since the MSS has changed.
    pub(crate) fn longest_delivered(&self) -> u32 {
        self.longest_delivered
    }

    /// True if payload that was never sent could leave now, by both windows.
    pub(crate) fn could_send_new(&self) -> bool {
        let Some(piece) = self.queue.first_unsent() else {
            return false;
        };
        let length = piece.length().min(self.mss);
        let room = self.congestion.window().saturating_sub(self.pipe());
        let edge = self.queue.una() + u64::from(self.window);
        length <= room && piece.start + u64::from(length) <= edge
    }

    /// Decides which piece leaves next, or why none does.
    pub(crate) fn poll_piece(&mut self, now: Instant) -> Result<NextPiece, HeldBack> {
        let room = self.congestion.window().saturating_sub(self.pipe());
        if let Some(lost) = self.queue.first_lost() {
            let lost = self.fit_to_mss(&lost);
            if lost.length() > room && self.queue.in_flight() > 0 {
                self.window_limited = true;
                return Err(HeldBack::Congestion);
            }
            return Ok(self.next_piece(&lost, false));
        }
        if self.probe == Probe::Due {
            if let Some(next) = self.poll_probe() {
                return Ok(next);
            }
            self.probe = Probe::None;
        }
        let Some(piece) = self.queue.first_unsent().copied() else {
            self.window_limited = false;
            return Err(HeldBack::Program);
        };
        if self.queue.outstanding() == 0 && self.last_departure > Instant::ZERO {
            let idle = now.since(self.last_departure.max(self.timeout_from));
            let timeout = self.rtt.rto();
            if idle > timeout {
                self.congestion.idle(now, idle, timeout);
                self.last_departure = now;
            }
        }
        let piece = self.fit_to_mss(&piece);
        let piece = self.fit_to_window(piece)?;
        if piece.length() > room && self.queue.in_flight() > 0 {
            self.window_limited = true;
            return Err(HeldBack::Congestion);
        }
        self.window_limited = false;
        if self.nagle_holds(&piece) {
            return Err(HeldBack::Nagle);
        }
        Ok(self.next_piece(&piece, true))
    }

    fn next_piece(&mut self, piece: &Piece, new: bool) -> NextPiece {
        let announces = new && self.announce_reduction && piece.payload.is_some();
        if announces {
            self.announce_reduction = false;
        }
        NextPiece {
            start: piece.start,
            announce_reduction: announces,
        }
    }

    /// Splits a piece that is longer than the MSS.
    fn fit_to_mss(&mut self, piece: &Piece) -> Piece {
        if piece.payload_length() <= self.mss {
            return *piece;
        }
        self.queue.split(piece.start, self.mss);
        self.queue.at(piece.start).copied().unwrap_or(*piece)
    }

    /// Checks an unsent piece against the peer's window; splits it if a part may leave (RFC 9293,
    /// section 3.8.6.2.1).
    fn fit_to_window(&mut self, piece: Piece) -> Result<Piece, HeldBack> {
        // A SYN precedes the first window.
        if piece.syn {
            return Ok(piece);
        }
        let edge = self.queue.una() + u64::from(self.window);
        let usable = edge.saturating_sub(piece.start);
        // A FIN alone needs no window: the peer has room for a sequence number without data.
        if piece.payload.is_none() || u64::from(piece.payload_length()) <= usable {
            return Ok(piece);
        }
        let worth_it = usable > 0 && usable >= u64::from(self.largest_window / 2);
        let idle = self.queue.outstanding() == 0;
        match (
            worth_it || (idle && usable >= u64::from(self.mss / 2)),
            u32::try_from(usable),
        ) {
            (true, Ok(usable)) => {
                self.queue.split(piece.start, usable);
                Ok(self.queue.at(piece.start).copied().unwrap_or(piece))
            }
            _ => Err(HeldBack::PeerWindow),
        }
    }

    /// RFC 9293, section 3.7.4, with Minshall's change: a short segment waits only for an earlier
    /// short one.
    fn nagle_holds(&self, piece: &Piece) -> bool {
        let short = piece.payload.is_some() && piece.payload_length() < self.mss && !piece.fin;
        let is_last = piece.end() == self.queue.end();
        !self.no_delay && short && is_last && self.short_end > self.queue.una()
    }

    /// RFC 8985, section 7.3: new data if there is some, else the last segment again.
    fn poll_probe(&mut self) -> Option<NextPiece> {
        let unsent = self.queue.first_unsent().copied();
        if let Some(piece) = unsent {
            let piece = self.fit_to_mss(&piece);
            if let Ok(piece) = self.fit_to_window(piece) {
                return Some(self.next_piece(&piece, true));
            }
        }
        let last = self.queue.last_sent()?;
        (!last.with_driver).then_some(NextPiece {
            start: last.start,
            announce_reduction: false,
        })
    }

    /// A piece was handed to the driver, with this value of the timestamp clock.
    pub(crate) fn handed_over(&mut self, start: u64, timestamp: u32) {
        let repeated = self.queue.at(start).is_some_and(|piece| piece.sent);
        let Some(piece) = self.queue.at(start).copied() else {
            return;
        };
        self.queue.handed_over(start, timestamp);
        if self.probe == Probe::Due {
            let end = self.queue.next();
            self.probe = Probe::Sent { end, repeated };
        }
        if repeated {
            self.retransmitted += 1;
            if let Recovery::Fast { undo, .. } | Recovery::Timeout { undo, .. } = &mut self.recovery
            {
                undo.stamp.get_or_insert(timestamp);
                undo.needless = undo.needless.map(|count| count + 1);
            }
        } else if piece.payload.is_some() && piece.payload_length() < self.mss {
            self.short_end = piece.end();
        }
        if let Recovery::Fast { prr, .. } = &mut self.recovery {
            prr.sent(piece.length());
        }
        self.loss_timer = self
            .loss_timer
            .filter(|(_, kind)| *kind != LossTimer::Probe);
    }

    /// Takes the sender out of every recovery, and stops its timer: nothing is left to be sent.
    pub(crate) fn stop(&mut self, release: impl FnMut(Handle)) {
        self.queue.clear(release);
        self.loss_timer = None;
        self.recovery = Recovery::Open;
        self.probe = Probe::None;
    }
}
