//! Where a connection stands, for tests.

use super::{Connection, State};
use crate::header::Seq;
use crate::time::Instant;

/// The edges of a connection's windows, in sequence numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edges {
    pub(crate) state: State,
    /// The next number that is expected of the peer, and the one behind what it may send.
    pub(crate) next: Seq,
    pub(crate) edge: Seq,
    /// The first own number that is not acknowledged, the first that was never sent, and the one
    /// behind everything that was written.
    pub(crate) una: Seq,
    pub(crate) sent: Seq,
    pub(crate) end: Seq,
    /// The latest timestamp of the peer, and the own clock.
    pub(crate) peer_clock: u32,
    pub(crate) own_clock: u32,
    /// The program has closed the connection.
    pub(crate) closed: bool,
}

impl Default for Edges {
    fn default() -> Edges {
        Edges {
            state: State::Closed,
            next: Seq(0),
            edge: Seq(0),
            una: Seq(0),
            sent: Seq(0),
            end: Seq(0),
            peer_clock: 0,
            own_clock: 0,
            closed: false,
        }
    }
}

impl Connection {
    /// Where the connection stands.
    pub(crate) fn all_edges(&self, now: Instant) -> Edges {
        let queue = &self.sender.queue;
        Edges {
            state: self.state,
            next: self.peer_seq_at(self.receiver.next()),
            edge: self.peer_seq_at(self.receiver.edge()),
            una: self.own_seq(queue.una()),
            sent: self.own_seq(queue.next()),
            end: self.own_seq(queue.end()),
            peer_clock: self.peer_clock(),
            own_clock: self.timestamp_clock(now),
            closed: self.closed,
        }
    }

    /// The next expected sequence number of the peer, and the first own one that is not
    /// acknowledged.
    pub(crate) fn edges(&self) -> (Seq, Seq) {
        let una = self.sender.queue.una();
        (self.peer_seq_at(self.receiver.next()), self.own_seq(una))
    }

    /// The latest timestamp of the peer.
    pub(crate) fn peer_clock(&self) -> u32 {
        self.peer_timestamp.map_or(0, |recent| recent.value)
    }

    /// Checks the queues.
    ///
    /// # Panics
    /// If a counter is wrong.
    pub(crate) fn invariants(&self) {
        self.sender.queue.invariants();
        self.receiver.invariants();
    }
}
