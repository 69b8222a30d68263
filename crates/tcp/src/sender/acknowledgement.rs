//! What an acknowledgement means: progress, losses, recoveries.

use super::{Acknowledgement, LossTimer, Probe, Recovery, Sender, Undo};
use crate::buffer::Handle;
use crate::congestion::Progress;
use crate::prr::Prr;
use crate::rack::ReorderingInput;
use crate::send_queue::Covered;
use crate::time::Instant;

impl Sender {
    /// Handles the acknowledgement of a segment. `ack` must lie between the first position that is
    /// not acknowledged and the next one to be sent. Returns true if it advanced.
    pub(crate) fn acknowledged(
        &mut self,
        now: Instant,
        input: &Acknowledgement<'_>,
        mut release: impl FnMut(Handle),
    ) -> bool {
        let old_window = self.window;
        self.update_window(input);
        let outstanding = self.queue.outstanding();
        let before_sacked = self.queue.sacked();
        let known = input.blocks == self.last_blocks;
        let Sender {
            queue,
            rack,
            rtt,
            longest_delivered,
            ..
        } = self;
        let min_rtt = rtt.min();
        let mut newest: Option<Instant> = None;
        let advances = input.ack > queue.una();
        let echo = input.echo.map(|echo| echo.value);
        let mut observe = |piece: Covered| {
            rack.delivered(now, &piece, echo, min_rtt);
            *longest_delivered = piece.length.max(*longest_delivered);
            if shows_round_trip(&piece, echo.filter(|_| advances)) {
                newest = newest.max(piece.departed);
            }
        };
        let delivered = queue.acknowledge(input.ack, &mut observe, &mut release);
        let mut bytes = delivered.bytes;
        if self.sack && !known {
            for &(left, right) in &input.blocks[usize::from(input.duplicate)..] {
                bytes += self.queue.select(left, right, &mut observe);
            }
        }
        if !known {
            self.last_blocks.clear();
            self.last_blocks.extend(input.blocks);
        }
        let advanced = delivered.advanced > 0;
        if delivered.was_retransmitted && (input.echo.is_none() || input.duplicate) {
            // The pieces behind a gap waited at the peer until the retransmission filled it; or
            // they arrived long ago, and the acknowledgement that said so was lost.
            newest = None;
        }
        if let Some(departed) = newest {
            let per_window = (outstanding / self.mss.max(1)).div_ceil(2).max(1);
            let age = input.echo.filter(|_| advanced).and_then(|echo| echo.age);
            let rtt = now.since(departed);
            let rtt = age.map_or(rtt, |age| rtt.min(age));
            self.rtt.sample(now, rtt, per_window);
        }
        if advanced {
            // Karn's algorithm: a retransmission says nothing, unless timestamps tell which
            // transmission is acknowledged.
            if newest.is_some() || input.echo.is_some() {
                self.rtt.reset_backoff();
            }
            self.timeout_from = now;
            self.duplicates = 0;
        }
        self.judge_duplicate(input, advanced, outstanding, old_window);
        self.judge_probe(input);
        let lost = self.detect_loss(now, outstanding - before_sacked);
        self.judge_undo(input, advanced, delivered.was_retransmitted);
        self.advance_recovery(input.ack, bytes, advanced, lost);
        self.judge_mark(input, outstanding);
        if let (Recovery::Open | Recovery::Timeout { .. }, true) = (&self.recovery, bytes > 0) {
            let (una, next) = (self.queue.una(), self.queue.next());
            let progress = Progress {
                acked: bytes,
                delivered: una,
                sent: next,
                limited: self.window_limited,
            };
            self.congestion.acknowledged(now, progress, &self.rtt);
        }
        self.set_loss_timer(now);
        advanced
    }

    /// RFC 9293, section 3.10.7.4: the window of the latest segment counts.
    fn update_window(&mut self, input: &Acknowledgement<'_>) {
        let (seq, ack) = self.window_from;
        if seq < input.seq || (seq == input.seq && ack <= input.ack) || ack < input.ack {
            self.window = input.window;
            self.largest_window = self.largest_window.max(input.window);
            self.window_from = (input.seq, input.ack);
        }
    }

    /// RFC 5681, section 3.2, for peers without SACK: three duplicates mean a loss.
    fn judge_duplicate(
        &mut self,
        input: &Acknowledgement<'_>,
        advanced: bool,
        outstanding: u32,
        old_window: u32,
    ) {
        if input.duplicate {
            self.rack.duplicate_reported(input.ack, self.queue.next());
            self.count_needless();
        }
        if self.sack || advanced || outstanding == 0 || !input.is_pure {
            return;
        }
        if input.window == old_window && input.ack == self.queue.una() {
            self.duplicates += 1;
            if self.duplicates == DUPLICATES && !self.in_recovery() {
                self.queue.lose_first();
            }
        }
    }

    /// The peer received data twice: one retransmission was needless.
    fn count_needless(&mut self) {
        if let Recovery::Fast { undo, .. } | Recovery::Timeout { undo, .. } = &mut self.recovery {
            undo.needless = undo.needless.and_then(|left| left.checked_sub(1));
        }
    }

    /// RFC 8985, section 7.4: whether the probe repaired a loss.
    fn judge_probe(&mut self, input: &Acknowledgement<'_>) {
        let Probe::Sent { end, repeated } = self.probe else {
            return;
        };
        if input.ack < end {
            return;
        }
        // A duplicate report says that the original arrived too. An acknowledgement behind the
        // probe's data without one says that the probe repaired a loss.
        self.probe = Probe::None;
        if repeated && !input.duplicate && !self.in_recovery() && input.ack >= end {
            let in_flight = self.queue.outstanding();
            self.congestion.congestion_mark(in_flight);
        }
    }

    fn reordering_input(&self) -> ReorderingInput {
        let smoothed = self.rtt.smoothed().unwrap_or_default();
        ReorderingInput {
            in_recovery: self.in_recovery(),
            sacked_pieces: self.queue.sacked_pieces(),
            min_rtt: self.rtt.min().unwrap_or(smoothed),
            smoothed_rtt: smoothed,
        }
    }

    /// Marks lost pieces, and enters a recovery if there is one. `flight`: what was sent and
    /// neither acknowledged nor selectively acknowledged before, in bytes. Returns true if a piece
    /// is newly lost.
    pub(super) fn detect_loss(&mut self, now: Instant, flight: u32) -> bool {
        let mut lost = false;
        if self.sack {
            let input = self.reordering_input();
            let (bytes, next) = self.rack.find_lost(now, &mut self.queue, input);
            lost = bytes > 0;
            self.loss_timer = next.map(|at| (at, LossTimer::Reordering));
        } else {
            self.loss_timer = None;
        }
        if self.queue.has_lost() && !self.in_recovery() {
            self.enter_recovery(flight);
            lost = true;
        }
        lost
    }

    fn enter_recovery(&mut self, in_flight: u32) {
        self.congestion.enter_recovery(in_flight);
        self.probe = Probe::None;
        self.recovery = Recovery::Fast {
            end: self.queue.next(),
            prr: Prr::new(in_flight, self.congestion.threshold(), self.mss),
            undo: Undo {
                stamp: None,
                needless: Some(0),
            },
        };
        if self.ecn {
            self.reduced_until = self.queue.next();
            self.announce_reduction = true;
        }
    }

    /// A recovery was needless if the echo is older than its first retransmission (RFC 3522), or
    /// if the peer received every retransmission twice.
    fn judge_undo(&mut self, input: &Acknowledgement<'_>, advanced: bool, retransmitted: bool) {
        let (Recovery::Fast { undo, .. } | Recovery::Timeout { undo, .. }) = &self.recovery else {
            return;
        };
        let Some(stamp) = undo.stamp else {
            return;
        };
        let older = input
            .echo
            .is_some_and(|echo| (echo.value.wrapping_sub(stamp) as i32) < 0);
        let proved = (advanced && retransmitted && older) || undo.needless == Some(0);
        if proved {
            self.congestion.undo();
            self.queue.keep_all();
            self.recovery = Recovery::Open;
            self.rack.recovery_ended();
        }
    }

    pub(super) fn advance_recovery(&mut self, ack: u64, bytes: u32, advanced: bool, lost: bool) {
        let in_flight = self.pipe();
        match &mut self.recovery {
            Recovery::Open => {}
            Recovery::Fast { end, .. } if ack >= *end => {
                self.congestion.exit_recovery();
                self.end_recovery();
            }
            Recovery::Timeout { end, .. } if ack >= *end => self.end_recovery(),
            Recovery::Fast { prr, .. } => {
                // A peer without SACK: each duplicate stands for a delivered segment.
                let delivered = match (self.sack, advanced) {
                    (false, false) => self.mss,
                    _ => bytes,
                };
                let allowed = prr.acknowledged(delivered, in_flight, lost || !advanced);
                let window = in_flight.saturating_add(allowed);
                self.congestion.set_recovery_window(window);
                // RFC 6582, section 3.2: a partial acknowledgement without SACK.
                if !self.sack && advanced {
                    self.queue.lose_first();
                }
            }
            Recovery::Timeout { .. } => {}
        }
    }

    pub(super) fn end_recovery(&mut self) {
        self.recovery = Recovery::Open;
        self.rack.recovery_ended();
    }

    /// RFC 3168, section 6.1.2: at most one reduction for each window.
    fn judge_mark(&mut self, input: &Acknowledgement<'_>, in_flight: u32) {
        let reduces = self.ecn && input.congestion_echo && input.ack > self.reduced_until;
        if reduces && !self.in_recovery() {
            self.congestion.congestion_mark(in_flight);
            self.reduced_until = self.queue.next();
            self.announce_reduction = true;
        }
    }

    /// Bytes in flight, for the congestion window.
    pub(super) fn pipe(&self) -> u32 {
        match self.sack {
            true => self.queue.in_flight(),
            false => {
                let arrived = self.duplicates.saturating_mul(self.mss);
                self.queue.in_flight().saturating_sub(arrived)
            }
        }
    }
}

/// True if the time since the piece's departure is a round trip. It is not if an acknowledgement of
/// an earlier transmission is possible (Karn's algorithm), or if the piece was found lost: it may
/// have arrived long ago, and the acknowledgements that said so were lost. `echo`, of an
/// acknowledgement that advances, tells which transmission it answers.
fn shows_round_trip(piece: &Covered, echo: Option<u32>) -> bool {
    echo == Some(piece.timestamp) || !(piece.retransmitted || piece.lost)
}

/// RFC 5681, section 3.2.
const DUPLICATES: u32 = 3;
