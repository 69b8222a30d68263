//! When received data is acknowledged (RFC 9293, section 3.8.6.3; RFC 5681, section 4.2).
//!
//! An acknowledgement is due at once for two full segments, for data behind a gap or that fills
//! one, for a FIN, for anything unacceptable, and for a window that opens. Else it waits for the
//! delay, or for a segment that can carry it. The first segments of a connection are acknowledged
//! at once, because the peer's window is small then. The caller decides how often it asks for
//! segments, so one acknowledgement can stand for everything that one look at the ring brought.

use std::time::Duration;

use crate::time::Instant;

/// The state of acknowledging.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acks {
    quick: bool,
    delay: Duration,
    /// Segments that are still acknowledged at once at the start.
    quick_left: u8,
    due: bool,
    at: Option<Instant>,
    /// Payload received since the last acknowledgement.
    bytes: u32,
    challenges: Challenges,
}

/// The challenge acknowledgements of a connection (RFC 5961). Section 7 limits their rate: to 10 in
/// 5 s here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Challenges {
    /// Those since `from`.
    count: u8,
    from: Instant,
}

impl Challenges {
    /// True if one may be sent now. It counts as sent.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        if now.since(self.from) >= CHALLENGE_PERIOD {
            self.from = now;
            self.count = 0;
        }
        let may = self.count < CHALLENGES;
        self.count += u8::from(may);
        may
    }
}

impl Acks {
    pub(super) fn new(quick: bool, delay: Duration) -> Acks {
        Acks {
            quick,
            delay,
            quick_left: QUICK_SEGMENTS,
            due: false,
            at: None,
            bytes: 0,
            challenges: Challenges {
                count: 0,
                from: Instant::ZERO,
            },
        }
    }

    pub(super) fn set_quick(&mut self, quick: bool) {
        self.quick = quick;
    }

    /// True if an acknowledgement is due now.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// When an acknowledgement is due, if nothing happens before.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// An acknowledgement is due at once.
    pub(super) fn request(&mut self) {
        self.due = true;
    }

    /// Payload continued the stream. `mss` is the largest payload that the peer sends.
    pub(super) fn received(&mut self, now: Instant, bytes: u32, mss: u32) {
        self.bytes = self.bytes.saturating_add(bytes);
        let first = self.quick_left > 0;
        self.quick_left = self.quick_left.saturating_sub(1);
        if self.quick || first || self.bytes >= mss.saturating_mul(2) {
            self.due = true;
        } else if self.at.is_none() {
            self.at = Some(now + self.delay);
        }
    }

    /// A challenge acknowledgement is due, unless too many were sent.
    pub(super) fn challenge(&mut self, now: Instant) {
        self.due |= self.challenges.take(now);
    }

    /// The challenges so far.
    pub(super) fn challenges(&self) -> Challenges {
        self.challenges
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.at.is_some_and(|at| at <= now) {
            self.at = None;
            self.due = true;
        }
    }

    /// A segment with the present acknowledgement was given out.
    pub(super) fn sent(&mut self) {
        self.due = false;
        self.at = None;
        self.bytes = 0;
    }

    pub(super) fn stop(&mut self) {
        self.sent();
    }
}

/// As Linux: the peer's initial window of 10 segments, and some of the next.
const QUICK_SEGMENTS: u8 = 16;
/// RFC 5961, section 7.
const CHALLENGES: u8 = 10;
const CHALLENGE_PERIOD: Duration = Duration::from_secs(5);
