//! The times at which a connection has something to do.

use std::time::Duration;

use super::{CloseReason, Connection, State};
use crate::time::Instant;

/// The timers of a connection, besides those of the sender and of acknowledgements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    /// The next look at a window that the peer keeps closed (RFC 9293, section 3.8.6.1).
    persist: Option<Instant>,
    /// Probes since the window was open.
    persist_probes: u32,
    keepalive: Option<Instant>,
    keepalive_probes: u32,
    /// The end of FIN_WAIT_2 or TIME_WAIT.
    ending: Option<Instant>,
    /// Since when the peer owes an acknowledgement or keeps its window closed.
    progress: Instant,
    /// A segment before the window is to be sent.
    probe_due: bool,
}

impl Timers {
    pub(super) fn new(now: Instant) -> Timers {
        Timers {
            persist: None,
            persist_probes: 0,
            keepalive: None,
            keepalive_probes: 0,
            ending: None,
            progress: now,
            probe_due: false,
        }
    }

    pub(super) fn set_ending(&mut self, at: Option<Instant>) {
        self.ending = at;
    }

    /// The end of FIN_WAIT_2 or TIME_WAIT.
    pub(super) fn ending(&self) -> Option<Instant> {
        self.ending
    }

    pub(super) fn made_progress(&mut self, now: Instant) {
        self.progress = now;
    }

    /// Since when the peer owes an acknowledgement or keeps its window closed.
    pub(super) fn progress(&self) -> Instant {
        self.progress
    }

    pub(super) fn window_opened(&mut self) {
        self.persist = None;
        self.persist_probes = 0;
    }

    pub(super) fn take_probe(&mut self) -> bool {
        std::mem::take(&mut self.probe_due)
    }

    pub(super) fn stop(&mut self) {
        *self = Timers {
            progress: self.progress,
            ..Timers::new(self.progress)
        };
    }
}

impl Connection {
    /// The next time at which [`Connection::handle_timeout`] has something to do. `None`: no time
    /// passes that matters.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [
            self.sender.poll_timeout(),
            self.acks.at(),
            self.timers.persist,
            self.timers.keepalive,
            self.timers.ending,
            self.gives_up_at(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due at the time `now`. Calling it too early has no effect.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.state == State::Closed {
            return;
        }
        if self.gives_up_at().is_some_and(|at| at <= now) {
            let waited = self.patience();
            self.end(Some(CloseReason::TimedOut(waited)));
            return;
        }
        if self.timers.ending.is_some_and(|at| at <= now) {
            self.end(None);
            return;
        }
        if self.sender.handle_timeout(now) {
            self.suspect_black_hole(now);
        }
        self.acks.handle_timeout(now);
        if self.timers.persist.is_some_and(|at| at <= now) {
            self.probe_window(now);
        }
        if self.timers.keepalive.is_some_and(|at| at <= now) {
            self.probe_idle_peer(now);
        }
    }

    /// How long the peer may be silent.
    fn patience(&self) -> Duration {
        match self.is_synchronized() {
            true => self.config.user_timeout,
            false => self.config.connect_timeout,
        }
    }

    /// When the connection ends for want of progress; `None` while the peer owes nothing.
    fn gives_up_at(&self) -> Option<Instant> {
        let owes = self.sender.poll_timeout().is_some() || self.timers.persist.is_some();
        owes.then(|| self.timers.progress + self.patience())
    }

    /// The peer's window takes nothing more: probes it, if no acknowledgement is on its way.
    pub(super) fn window_is_closed(&mut self, now: Instant) {
        let queue = &self.sender.queue;
        if queue.outstanding() > 0 || self.timers.persist.is_some() {
            return;
        }
        if self.timers.persist_probes == 0 {
            self.timers.progress = now;
        }
        self.timers.persist = Some(now + self.persist_interval());
    }

    fn persist_interval(&self) -> Duration {
        let base = self.sender.rtt.rto();
        let doubled = base * 2_u32.pow(self.timers.persist_probes.min(LARGEST_DOUBLING));
        doubled.min(LONGEST_PERSIST)
    }

    fn probe_window(&mut self, now: Instant) {
        self.timers.persist = None;
        if self.sender.queue.unsent() == 0 {
            return;
        }
        self.timers.persist_probes = self.timers.persist_probes.saturating_add(1);
        // A small window is used after all (RFC 9293, section 3.8.6.2.1, condition 4).
        if !self.sender.overrides_small_window() {
            self.timers.probe_due = true;
        }
        self.timers.persist = Some(now + self.persist_interval());
    }

    /// The connection is not idle now.
    pub(super) fn rearm_keepalive(&mut self, now: Instant) {
        self.timers.keepalive_probes = 0;
        let keepalive = self.config.keepalive.filter(|_| self.is_synchronized());
        self.timers.keepalive = keepalive.map(|keepalive| now + keepalive.idle);
    }

    fn probe_idle_peer(&mut self, now: Instant) {
        let Some(keepalive) = self.config.keepalive else {
            self.timers.keepalive = None;
            return;
        };
        // Retransmissions and window probes ask the same question.
        let asks = self.sender.queue.outstanding() > 0 || self.timers.persist.is_some();
        if self.state == State::TimeWait || asks {
            self.timers.keepalive = Some(now + keepalive.interval);
            return;
        }
        if self.timers.keepalive_probes >= keepalive.probes {
            let reason = CloseReason::KeepaliveFailed(keepalive.probes);
            self.end(Some(reason));
            // The peer may have lost only its way to this end.
            self.reset_due = true;
            return;
        }
        self.timers.keepalive_probes += 1;
        self.timers.probe_due = true;
        self.timers.keepalive = Some(now + keepalive.interval);
    }
}

/// The persist interval doubles as the retransmission timeout does.
const LARGEST_DOUBLING: u32 = 16;
/// As the longest retransmission timeout of Linux.
const LONGEST_PERSIST: Duration = Duration::from_secs(120);
