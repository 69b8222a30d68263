//! Which segments an endpoint gives out next, and what becomes of them. No function fails.

use std::net::SocketAddr;

use super::{ConnectionId, Endpoint};
use crate::buffer::{Handle, Slice};
use crate::connection::{Connection, Token, Transmit};
use crate::time::Instant;

impl Endpoint {
    /// The next segment and its destination, with its connection if it has one; `None` if none is
    /// to be sent now. The caller must have room for it. Connections take turns.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
    ) -> Option<(Option<ConnectionId>, SocketAddr, Transmit)> {
        if let Some((remote, transmit)) = self.stray.pop_front() {
            return Some((None, remote, transmit));
        }
        while let Some(id) = self.active.pop_front() {
            let Some(entry) = self.connections.get_mut(id.0 as usize) else {
                continue;
            };
            entry.is_active = false;
            let transmit = entry.connection.poll_transmit(now);
            let remote = entry.remote;
            self.settle_without_output(id);
            if let Some(transmit) = transmit {
                self.activate(id);
                return Some((Some(id), remote, transmit));
            }
            self.forget_if_over(id);
        }
        None
    }

    /// True if the next connection that [`Endpoint::poll_transmit`] asks could send payload that
    /// was never sent ([`Connection::could_send_new`]).
    pub fn could_send_new(&self) -> bool {
        let next = self.active.front().and_then(|id| self.connection(*id));
        next.is_some_and(Connection::could_send_new)
    }

    /// The payload of a further segment that may leave in one packet with `run`
    /// ([`Connection::poll_following`]).
    ///
    /// [`Connection::poll_following`]: crate::connection::Connection::poll_following
    pub fn poll_following(
        &mut self,
        id: ConnectionId,
        now: Instant,
        run: &mut Transmit,
        last: (Slice, Token),
        joins: impl Fn(Handle) -> bool,
    ) -> Option<(Slice, Token)> {
        let entry = self.connections.get_mut(id.0 as usize)?;
        let following = entry.connection.poll_following(now, run, last, joins);
        self.settle_without_output(id);
        following
    }

    /// The driver has sent segments of a connection together
    /// ([`Connection::handle_departures`]).
    ///
    /// [`Connection::handle_departures`]: crate::connection::Connection::handle_departures
    pub fn handle_departures(&mut self, id: ConnectionId, tokens: &[Token], at: Instant) {
        if let Some(entry) = self.connections.get_mut(id.0 as usize) {
            entry.connection.handle_departures(tokens, at);
            self.settle_without_output(id);
        }
    }

    /// The driver returned a segment unsent ([`Connection::handle_unsent`]).
    ///
    /// [`Connection::handle_unsent`]: crate::connection::Connection::handle_unsent
    pub fn handle_unsent(&mut self, id: ConnectionId, token: Token, now: Instant, again: bool) {
        self.update(id, |connection| connection.handle_unsent(token, now, again));
    }
}
