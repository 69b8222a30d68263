//! Divides the empty buffers of a flow among the connections that receive.
//!
//! The window of a connection is its share: the empty buffers, divided by the number of connections
//! that received payload lately. A promise is never taken back, so a connection that has received
//! nothing yet is offered little ([`first_share`]): together, the windows of many idle connections
//! exceed the buffers, since few of them receive at the same time.
//!
//! A connection whose share is nothing is *starved*. Nothing arrives of a peer whose window is
//! closed, so starved connections are offered room as soon as there is some, in their order.

use std::collections::{HashSet, VecDeque};

use netnice_tcp::endpoint::ConnectionId;
use netnice_tcp::time::Instant;

/// The shares. See the module.
#[derive(Debug, Default)]
pub(super) struct ReceiveShares {
    /// The period in which each connection received last, by its number.
    last: Vec<u64>,
    period: u64,
    /// Connections that received in this period, and in the one before.
    receiving: u32,
    before: u32,
    starved: VecDeque<ConnectionId>,
    is_starved: HashSet<ConnectionId>,
}

impl ReceiveShares {
    /// A connection has received payload.
    pub(super) fn received(&mut self, id: ConnectionId, now: Instant) {
        let period = 1 + now.as_nanos() / PERIOD;
        if period != self.period {
            let follows = period == self.period + 1;
            self.before = if follows { self.receiving } else { 0 };
            (self.period, self.receiving) = (period, 0);
        }
        let index = id.0 as usize;
        if self.last.len() <= index {
            self.last.resize(index + 1, 0);
        }
        if self.last[index] != period {
            self.last[index] = period;
            self.receiving += 1;
        }
    }

    /// Number of buffers that a connection is offered, of the empty ones.
    pub(super) fn share(&mut self, id: ConnectionId, empty: u32) -> u32 {
        let sharers = self.receiving.max(self.before).max(1);
        if empty == 0 && self.is_starved.insert(id) {
            self.starved.push_back(id);
        }
        (empty / sharers).max(1).min(empty)
    }

    /// The starved connection that is to be offered room first.
    pub(super) fn take_starved(&mut self) -> Option<ConnectionId> {
        let id = self.starved.pop_front()?;
        self.is_starved.remove(&id);
        Some(id)
    }
}

/// Number of buffers that a listener's connection is offered when it begins.
pub(super) fn first_share(empty: u32) -> u32 {
    (empty / FIRST_SHARERS).max(1)
}

/// A connection that received in this period, or in the one before, counts as one that receives.
/// In ns.
const PERIOD: u64 = 100_000_000;
/// Connections that are expected to begin to receive at the same time.
const FIRST_SHARERS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn connections_that_received_lately_share_the_buffers() {
        let mut shares = ReceiveShares::default();
        let ids = [ConnectionId(0), ConnectionId(7), ConnectionId(2)];
        assert_eq!(shares.share(ids[0], 60), 60);
        for (millis, id) in [(10, 0), (20, 1), (30, 1), (40, 2)] {
            shares.received(ids[id], at(millis));
        }
        assert_eq!(shares.share(ids[0], 60), 20);
        // In the next period one of them receives, later still only that one.
        shares.received(ids[1], at(110));
        assert_eq!(shares.share(ids[1], 60), 20);
        shares.received(ids[1], at(210));
        assert_eq!(shares.share(ids[1], 60), 60);
        // After a pause.
        shares.received(ids[0], at(900));
        assert_eq!(shares.share(ids[0], 60), 60);
    }

    #[test]
    fn a_connection_without_a_share_is_starved_once() {
        let mut shares = ReceiveShares::default();
        for id in [4, 5, 4] {
            assert_eq!(shares.share(ConnectionId(id), 0), 0);
        }
        assert_eq!(shares.take_starved(), Some(ConnectionId(4)));
        assert_eq!(shares.share(ConnectionId(4), 1), 1);
        assert_eq!(shares.take_starved(), Some(ConnectionId(5)));
        assert_eq!(shares.take_starved(), None);
    }

    #[test]
    fn more_connections_than_buffers_get_one_each() {
        let mut shares = ReceiveShares::default();
        (0..20).for_each(|id| shares.received(ConnectionId(id), at(1)));
        assert_eq!(shares.share(ConnectionId(3), 8), 1);
        assert_eq!((first_share(1000), first_share(3)), (62, 1));
    }
}
