//! Which segments the path carries: what routers report, and black holes.
//!
//! In a black hole long segments disappear without a report. It is suspected after some timeouts in
//! a row ([`Connection::suspect_black_hole`]), and segments become shorter. An outage or a bad path
//! looks the same, so the former length is tried again later: if it fails again, after twice the
//! time (RFC 4821, section 7.7).

use std::time::Duration;

use super::Connection;
use crate::header::Options;
use crate::time::Instant;

/// What the connection has found out about its path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    /// The MSS before the first suspicion of a black hole; `None` without one.
    before: Option<u32>,
    /// When that MSS is tried again.
    retry_at: Option<Instant>,
    /// The time from the last suspicion to that.
    wait: Duration,
}

impl Connection {
    /// The path carries segments with `mss` bytes of payload at most, without options. The caller
    /// found that out by a message of the network that it believes
    /// ([`Connection::is_in_flight`]), or from a route.
    pub fn set_path_mss(&mut self, mss: u32) {
        self.path = Path::default();
        self.use_path_mss(mss);
    }

    fn use_path_mss(&mut self, mss: u32) {
        if self.config.mss != mss {
            self.own_config().mss = mss;
        }
        let effective = self.effective_mss();
        if effective != self.sender.mss() && self.is_synchronized() {
            self.sender.set_mss(effective);
        }
    }

    /// The MSS in both directions less the options that every segment carries.
    pub(super) fn effective_mss(&self) -> u32 {
        let options = match self.peer_timestamp {
            Some(_) => Options::TIMESTAMPS_LENGTH as u32,
            None => u32::from(self.config.padding),
        };
        self.peer_mss
            .min(self.config.mss)
            .saturating_sub(options)
            .max(1)
    }

    /// Full segments get no acknowledgement while the network may drop them for their length, and
    /// the message that says so too (RFC 4821): halves the segments after some timeouts.
    pub(super) fn suspect_black_hole(&mut self, now: Instant) {
        let longest = self.sender.longest_outstanding();
        let carried = longest <= self.sender.longest_delivered();
        // A long timeout must not take the time that is left before the connection ends.
        let is_late = now.since(self.timers.progress()) >= self.config.user_timeout / 4;
        let most = match carried && !is_late {
            true => TIMEOUTS_OF_A_NEW_BLACK_HOLE,
            false => TIMEOUTS_OF_A_BLACK_HOLE,
        };
        if self.sender.rtt.backoffs() < most || !self.is_synchronized() || longest <= SAFE_MSS {
            return;
        }
        let doubled = (self.path.wait * 2).clamp(SHORTEST_RETRY, LONGEST_RETRY);
        // A second halving is part of the same suspicion.
        let is_first = self.path.retry_at.is_none();
        let wait = if is_first { doubled } else { self.path.wait };
        self.path = Path {
            before: self.path.before.or(Some(self.config.mss)),
            retry_at: Some(now + wait),
            wait,
        };
        let options = self.config.mss.saturating_sub(self.effective_mss());
        self.use_path_mss((longest / 2).max(SAFE_MSS) + options);
    }

    /// The peer has acknowledged something: tries the former length of segments again, if it is
    /// time.
    pub(super) fn retry_long_segments(&mut self, now: Instant) {
        if self.path.retry_at.is_some_and(|at| at <= now)
            && let Some(before) = self.path.before
        {
            self.path.retry_at = None;
            self.use_path_mss(before);
        }
    }
}

/// Two timeouts happen without a black hole; Linux looks for one at the third as well.
const TIMEOUTS_OF_A_BLACK_HOLE: u32 = 3;
/// The path has carried such segments before: an outage is as likely, unless it is long.
const TIMEOUTS_OF_A_NEW_BLACK_HOLE: u32 = 6;
/// Every path carries this payload: the MTU of 576 bytes less headers (RFC 9293, section 3.7.1).
const SAFE_MSS: u32 = 536;
/// The first time after which the former length is tried again, and the longest: that of RFC 8899,
/// section 5.1.1 (PMTU_RAISE_TIMER).
const SHORTEST_RETRY: Duration = Duration::from_secs(10);
const LONGEST_RETRY: Duration = Duration::from_secs(600);
