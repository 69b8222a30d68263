//! What TCP gets of a limit, which the rate on the wire does not show: goodput, retransmissions,
//! and the order of arrival.
//!
//! A [`Counts`] at each end of a window and the payload that arrived in it go in; a
//! [`TcpService`] comes out, which adds its checks to an [`Outcome`]. [`Counts::read`] fails if the
//! kernel does not have the counters; nothing else fails.

use anyhow::Result;
use serde::Serialize;

use super::bench::Direction;
use super::{Bound, Context, Outcome};
use crate::world::{Family, Netns};

/// The counters of TCP in the sender's and the receiver's namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    sent_again: u64,
    out_of_order: u64,
}

impl Counts {
    /// Reads both counters. Fails if the kernel does not have them.
    pub(super) fn read(sender: &Netns, receiver: &Netns) -> Result<Counts> {
        Ok(Counts {
            sent_again: sender.sent_again()?,
            out_of_order: receiver.out_of_order()?,
        })
    }
}

/// What the flows of a program got of its limit in a window.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct TcpService {
    /// Percent of what the limit allows.
    pub(super) goodput: f64,
    /// Percent of the packets.
    pub(super) retransmitted: f64,
    /// Segments that arrived although an earlier one of their connection was missing.
    pub(super) out_of_order: u64,
}

/// Bytes of a full frame, and bytes of payload in it.
pub(super) const FRAME: f64 = 1514.0;
pub(super) fn payload(family: Family) -> f64 {
    match family {
        Family::V4 => 1448.0,
        Family::V6 => 1428.0,
    }
}

impl TcpService {
    /// What `goodput` (payload in bit/s) over `seconds` is of a limit of `limit` bit/s on the wire,
    /// with the counters at both ends of the window.
    pub(super) fn new(
        goodput: f64,
        limit: f64,
        seconds: f64,
        family: Family,
        [before, after]: [Counts; 2],
    ) -> TcpService {
        let payload = payload(family);
        let packets = goodput * seconds / 8.0 / payload;
        let again = (after.sent_again - before.sent_again) as f64;
        TcpService {
            goodput: 100.0 * goodput / (limit * payload / FRAME),
            retransmitted: 100.0 * again / packets.max(1.0),
            out_of_order: after.out_of_order - before.out_of_order,
        }
    }

    /// Adds the checks. Goodput must be at least 99 % for sending and 98 % for receiving (97 % in
    /// the quick form), less `allowance` percent. For sending, 0.1 % of the packets may be sent
    /// again (none of a single flow), and none may arrive out of order; for receiving, where a drop
    /// is the only signal to the sender, both are not judged.
    pub(super) fn check(
        &self,
        context: &Context,
        outcome: &mut Outcome,
        name: &str,
        (direction, flows): (Direction, u32),
        allowance: f64,
    ) {
        let up = direction == Direction::Up;
        let least = 100.0 - 100.0 * context.tolerance(if up { 0.01 } else { 0.02 }) - allowance;
        let what = format!("{name}: goodput");
        outcome.check(what, self.goodput, "%", Bound::AtLeast(least));
        if up {
            let most = if flows == 1 { 0.0 } else { 0.1 };
            let what = format!("{name}: retransmitted");
            outcome.check(what, self.retransmitted, "%", Bound::AtMost(most));
            let what = format!("{name}: out of order");
            outcome.check(what, self.out_of_order as f64, "", Bound::AtMost(0.0));
        }
    }
}
