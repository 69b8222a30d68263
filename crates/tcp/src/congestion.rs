//! Congestion window of one sender: CUBIC (RFC 9438) or Reno (RFC 5681).
//!
//! [`Congestion`] limits the bytes in flight. The connection reports acknowledgments, losses,
//! congestion marks, timeouts and idle periods. All windows are in bytes, and all arithmetic is in
//! integers, rounded down.
//!
//! # States
//! ```text
//!                    window reaches threshold
//!     Slow start ----------------------------> Congestion avoidance
//!      |  ^   ^                                   |   ^     |
//!      |  |   +--------- timeout, idle -----------+   |     |
//!      |  |                                           |     |
//!      |  timeout                       exit_recovery |     | enter_recovery
//!      |  |                                           |     |
//!      |  +---------------- Recovery -----------------+     |
//!      |                      ^  ^                          |
//!      +--- enter_recovery ---+  +--------------------------+
//! ```
//! In recovery the window follows [`crate::prr`] by [`Congestion::set_recovery_window`].
//! [`Congestion::undo`] restores the state before the latest reduction.
//!
//! # Slow start
//! An acknowledgment grows the window by the acknowledged bytes. Without pacing, 8 MSS per
//! acknowledgment are the limit, so that a burst stays small (RFC 9406, section 4.2, L = 8). With
//! CUBIC, the initial slow start uses HyStart++ (RFC 9406): when the round-trip time rises, the
//! window grows by a quarter per round trip instead of doubling, and slow start ends after 5 round
//! trips. If the queue of the bottleneck overflows nevertheless, the sender loses about a fifth of
//! the window and not half of it.
//!
//! # Choices
//! - CUBIC derives the threshold from the window, Reno from the bytes in flight. RFC 9438, section
//!   4.6, permits the window if the window does not grow while it is not in use. That is why
//!   [`Progress::limited`] matters.
//! - A congestion mark has the same factor as a loss (RFC 3168, section 6.1.2). The milder factors
//!   of RFC 8511 do not apply.
//! - The window saturates at [`MAX_WINDOW`].

use std::time::Duration;

use crate::rtt::Rtt;
use crate::time::Instant;

mod cubic;
mod hystart;
mod reno;

use cubic::Cubic;
use hystart::HyStart;
use reno::Reno;

/// A congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// CUBIC (RFC 9438) with HyStart++ (RFC 9406).
    #[default]
    Cubic,
    /// Reno (RFC 5681).
    Reno,
}

/// An acknowledgment outside of recovery, as [`Congestion::acknowledged`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that this acknowledgment newly acknowledges.
    pub acked: u32,
    /// Bytes of the connection that are acknowledged cumulatively, including this acknowledgment
    /// (`SND.UNA` as a position in the stream).
    pub delivered: u64,
    /// Bytes of the connection that were sent (`SND.NXT` as a position in the stream). At least
    /// `delivered`.
    pub sent: u64,
    /// The window was in use: it limited what the sender sent. False if the application or the
    /// window of the receiver limited it.
    pub limited: bool,
}

/// The congestion window and slow start threshold of one sender.
#[derive(Clone, Debug)]
pub struct Congestion {
    mss: u32,
    state: State,
    hystart: HyStart,
    /// The sender spreads the window over the round trip.
    paced: bool,
    /// Fast recovery is under way; the window is set by [`Congestion::set_recovery_window`].
    recovering: bool,
    /// The state before the latest reduction; `None` if that reduction is final.
    saved: Option<State>,
}

/// What [`Congestion::undo`] restores.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    /// Bytes, from one MSS to [`MAX_WINDOW`].
    window: u32,
    /// `ssthresh` in bytes; [`NO_THRESHOLD`] before the first reduction.
    threshold: u32,
    avoidance: Avoidance,
}

/// The state of congestion avoidance.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Avoidance {
    Cubic(Cubic),
    Reno(Reno),
}

impl Congestion {
    /// A sender at the start of a connection, with the initial window of RFC 6928, section 2. An
    /// MSS of zero counts as 1.
    pub fn new(algorithm: Algorithm, mss: u32) -> Congestion {
        let mss = mss.clamp(1, MAX_WINDOW);
        let avoidance = match algorithm {
            Algorithm::Cubic => Avoidance::Cubic(Cubic::default()),
            Algorithm::Reno => Avoidance::Reno(Reno::default()),
        };
        Congestion {
            mss,
            state: State {
                window: initial_window(mss),
                threshold: NO_THRESHOLD,
                avoidance,
            },
            hystart: HyStart::default(),
            paced: false,
            recovering: false,
            saved: None,
        }
    }

    /// The congestion window in bytes, from one MSS to [`MAX_WINDOW`].
    pub fn window(&self) -> u32 {
        self.state.window
    }

    /// The slow start threshold (`ssthresh`) in bytes; `u32::MAX` before the first reduction.
    pub fn threshold(&self) -> u32 {
        self.state.threshold
    }

    /// Whether the window is below the slow start threshold.
    pub fn in_slow_start(&self) -> bool {
        self.state.window < self.state.threshold
    }

    /// Sets whether the sender paces its segments. A paced sender has no limit of 8 MSS per
    /// acknowledgment in slow start (RFC 9406, section 4.2). The limit slows slow start down if the
    /// receiver acknowledges many segments at once. Initially not paced.
    pub fn set_paced(&mut self, paced: bool) {
        self.paced = paced;
    }

    /// Sets the MSS after a change of the path MTU. The window stays, but is at least one MSS. The
    /// threshold is at least 2 MSS. CUBIC starts a new epoch at the present window, because its
    /// curve depends on the MSS.
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss.clamp(1, MAX_WINDOW);
        self.state.window = self.state.window.max(self.mss);
        self.state.threshold = self.state.threshold.max(self.two_mss());
        self.state.end_epoch();
        if let Some(saved) = &mut self.saved {
            saved.end_epoch();
        }
    }

    /// Sets the window to one MSS, because the SYN or its acknowledgment was lost (RFC 5681,
    /// section 3.1). The threshold stays.
    pub fn handshake_lost(&mut self) {
        self.state.window = self.mss;
    }

    /// Grows the window after an acknowledgment outside of recovery. In recovery it does nothing.
    ///
    /// If the acknowledgment gives a round-trip time sample, the caller adds it to `rtt` before.
    pub fn acknowledged(&mut self, now: Instant, progress: Progress, rtt: &Rtt) {
        if self.recovering {
            return;
        }
        if self.in_slow_start() {
            self.slow_start(progress, rtt);
        } else if progress.limited {
            self.congestion_avoidance(now, progress.acked, rtt);
        }
        if !progress.limited
            && let Avoidance::Cubic(cubic) = &mut self.state.avoidance
        {
            cubic.application_limited(now);
        }
    }

    fn slow_start(&mut self, progress: Progress, rtt: &Rtt) {
        // RFC 9406, section 4.3, recommends HyStart++ for the initial slow start only. Later ones
        // end at the threshold.
        let initial = self.state.threshold == NO_THRESHOLD;
        let hystart = initial && matches!(self.state.avoidance, Avoidance::Cubic(_));
        let divisor = if hystart { self.hystart.divisor() } else { 1 };
        if progress.limited {
            let burst = if self.paced {
                u32::MAX
            } else {
                self.mss.saturating_mul(BURST_MSS)
            };
            // RFC 9406, section 4.2: min(N, L * SMSS), in conservative slow start divided by 4.
            let growth = progress.acked.min(burst) / divisor;
            let window = self.state.window.saturating_add(growth);
            self.state.window = window.min(self.state.threshold).min(MAX_WINDOW);
        }
        if hystart
            && self
                .hystart
                .acknowledged(rtt, progress.delivered, progress.sent)
        {
            // RFC 9406, section 4.2: after the last round, ssthresh = cwnd.
            self.state.threshold = self.state.window.max(self.two_mss());
        }
    }

    fn congestion_avoidance(&mut self, now: Instant, acked: u32, rtt: &Rtt) {
        let (window, mss) = (self.state.window, self.mss);
        let growth = match &mut self.state.avoidance {
            Avoidance::Cubic(cubic) => {
                let rtt = rtt.smoothed().unwrap_or_default();
                cubic.growth(now, acked, window, mss, rtt)
            }
            Avoidance::Reno(reno) => reno.growth(acked, window, mss),
        };
        self.state.window = window.saturating_add(growth).min(MAX_WINDOW);
    }

    /// Starts fast recovery after a loss that acknowledgments or RACK found: lowers the threshold
    /// (RFC 9438, section 4.6; RFC 5681, section 3.2, step 2) and remembers the state for
    /// [`Congestion::undo`]. In recovery it does nothing.
    ///
    /// `in_flight` is `FlightSize` of RFC 5681: bytes sent and not cumulatively acknowledged. The
    /// window becomes the threshold, until [`Congestion::set_recovery_window`] sets it.
    pub fn enter_recovery(&mut self, in_flight: u32) {
        if self.recovering {
            return;
        }
        self.saved = Some(self.state.clone());
        self.recovering = true;
        self.reduce(in_flight);
        self.state.window = self.state.threshold;
    }

    /// Ends fast recovery: the window becomes the threshold (RFC 9937, section 6.4). Outside of
    /// fast recovery, for example after a timeout, it does nothing.
    pub fn exit_recovery(&mut self) {
        if self.recovering {
            self.recovering = false;
            self.state.window = self.state.threshold;
        }
    }

    /// Sets the window in recovery: bytes in flight plus the result of
    /// [`crate::prr::Prr::acknowledged`]. The window is at least one MSS. Outside of fast recovery
    /// it does nothing.
    pub fn set_recovery_window(&mut self, window: u32) {
        if self.recovering {
            self.state.window = window.clamp(self.mss, MAX_WINDOW);
        }
    }

    /// Lowers window and threshold after an ECN-Echo (RFC 3168, section 6.1.2; RFC 9438,
    /// section 4.6). The caller does this once per window of data, and not in a window in which it
    /// reacted to a loss. In recovery only the state for undo is given up.
    ///
    /// The window is at least one MSS, and the threshold 2 MSS. The earlier state is given up,
    /// because a congestion mark is never spurious. `in_flight` is as in
    /// [`Congestion::enter_recovery`].
    pub fn congestion_mark(&mut self, in_flight: u32) {
        self.saved = None;
        if self.recovering {
            return;
        }
        let reduced = self.reduce(in_flight);
        self.state.window = reduced.clamp(self.mss, self.state.window);
    }

    /// Handles the expiry of the retransmission timer: the window becomes one MSS (RFC 5681,
    /// section 3.1). Recovery ends without [`Congestion::exit_recovery`].
    ///
    /// `first` is true if the timer expired for the first time for this segment. Then the threshold
    /// falls as well (RFC 5681, section 3.1, equation 4; RFC 9438, section 4.8), and the state is
    /// remembered for [`Congestion::undo`]. In recovery the remembered state is that before
    /// recovery. `in_flight` is as in [`Congestion::enter_recovery`].
    pub fn timeout(&mut self, in_flight: u32, first: bool) {
        if first {
            if self.recovering {
                // The window of PRR is transient. The threshold is the window at the end of
                // recovery.
                self.state.window = self.state.threshold;
            } else {
                self.saved = Some(self.state.clone());
            }
            let reduced = match &mut self.state.avoidance {
                Avoidance::Cubic(cubic) => cubic.time_out(self.state.window),
                Avoidance::Reno(_) => Reno::reduced(in_flight, self.state.window),
            };
            self.set_threshold(reduced);
        }
        self.recovering = false;
        self.state.window = self.mss;
        self.state.end_epoch();
    }

    /// Restores the state before the latest call of [`Congestion::enter_recovery`] or
    /// [`Congestion::timeout`] with `first`, because the retransmission was spurious (RFC 9438,
    /// section 4.9; RFC 4015). Recovery ends without [`Congestion::exit_recovery`]. Outside of
    /// recovery the window does not fall: growth since the reduction stays. A second call does
    /// nothing.
    ///
    /// The restored window can permit a burst. The caller limits it (RFC 4015, section 3.2).
    pub fn undo(&mut self) {
        let Some(mut saved) = self.saved.take() else {
            return;
        };
        saved.window = saved.window.max(self.mss);
        saved.threshold = saved.threshold.max(self.two_mss());
        // In recovery the window is that of PRR, which has no meaning afterwards.
        if !self.recovering {
            saved.window = saved.window.max(self.state.window);
        }
        self.recovering = false;
        self.state = saved;
    }

    /// Handles the first segment after `idle`, a time in which nothing was in flight and which ends
    /// at `now`. If it exceeds `rto`, the window falls to the initial window (RFC 5681, section
    /// 4.1), and the connection goes on in slow start if the threshold is higher. CUBIC does not
    /// count `idle` as time of its epoch.
    pub fn idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        if let Avoidance::Cubic(cubic) = &mut self.state.avoidance {
            cubic.idle(now, idle);
        }
        let restart = initial_window(self.mss);
        if idle > rto && !self.recovering && self.state.window > restart {
            self.state.window = restart;
            // Slow start ends the stage of congestion avoidance (RFC 9438, section 4.2). The next
            // stage has the same W_max.
            self.state.end_epoch();
        }
    }

    /// Lowers the threshold after a loss or a congestion mark. Returns it without the lower limit.
    fn reduce(&mut self, in_flight: u32) -> u32 {
        let reduced = match &mut self.state.avoidance {
            Avoidance::Cubic(cubic) => cubic.reduce(self.state.window),
            Avoidance::Reno(_) => Reno::reduced(in_flight, self.state.window),
        };
        self.set_threshold(reduced);
        reduced
    }

    /// Sets the threshold to `reduced`, at least 2 MSS (RFC 5681, equation 4; RFC 9438,
    /// section 4.6).
    fn set_threshold(&mut self, reduced: u32) {
        self.state.threshold = reduced.max(self.two_mss()).min(MAX_WINDOW);
    }

    /// 2 MSS, at most [`MAX_WINDOW`].
    fn two_mss(&self) -> u32 {
        self.mss.saturating_mul(2).min(MAX_WINDOW)
    }
}

impl State {
    /// Ends the stage of congestion avoidance of CUBIC. Within a stage the window never falls.
    fn end_epoch(&mut self) {
        if let Avoidance::Cubic(cubic) = &mut self.avoidance {
            cubic.end_epoch();
        }
    }
}

/// RFC 6928, section 2, equation 1. It is also the restart window (RFC 5681, section 4.1).
fn initial_window(mss: u32) -> u32 {
    let most = mss.saturating_mul(10);
    let least = mss.saturating_mul(2).max(14_600);
    most.min(least).min(MAX_WINDOW)
}

/// The largest congestion window, 1 GiB. The largest receive window is as large (RFC 7323,
/// section 2.3).
pub const MAX_WINDOW: u32 = 1 << 30;

/// Threshold before the first reduction: "arbitrarily high" (RFC 5681, section 3.1).
const NO_THRESHOLD: u32 = u32::MAX;

/// L for a sender without pacing (RFC 9406, section 4.3).
const BURST_MSS: u32 = 8;

#[cfg(test)]
mod tests;
