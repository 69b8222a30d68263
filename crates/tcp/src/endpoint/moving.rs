//! Moves a connection to another endpoint of the same local address and port, whose caller has
//! other buffers and another way to the peer.

use std::net::SocketAddr;

use super::{ConnectionId, Endpoint, Entry, Stage};
use crate::connection::Connection;

impl Endpoint {
    /// Takes a connection out of the endpoint, so that another endpoint goes on with it
    /// ([`Endpoint::adopt`]). `None` if there is no such connection, or the program does not have
    /// it. The caller must not pass in later segments of the peer: they belong to no connection
    /// here, and would be refused with a reset.
    pub fn take_out(&mut self, id: ConnectionId) -> Option<Connection> {
        let entry = self.connections.get(id.0 as usize)?;
        if entry.stage != Stage::Taken {
            return None;
        }
        Some(self.remove_entry(id)?.connection)
    }

    /// Goes on with a connection of another endpoint to the peer `remote`, with which this endpoint
    /// has no connection.
    pub fn adopt(&mut self, connection: Connection, remote: SocketAddr) -> ConnectionId {
        self.insert(connection, remote, Stage::Taken)
    }

    /// Removes a connection from all tables but those of the listener.
    pub(super) fn remove_entry(&mut self, id: ConnectionId) -> Option<Entry> {
        let mut entry = self.connections.try_remove(id.0 as usize)?;
        while let Some(handle) = entry.connection.poll_released() {
            self.released.push(handle);
        }
        if self.by_remote.get(&entry.remote) == Some(&id) {
            self.by_remote.remove(&entry.remote);
        }
        if let Some(at) = entry.timeout {
            self.timeouts.remove(&(at, id));
        }
        // What is left of it in the queues is skipped there, or costs a connection that gets its
        // number a look in vain.
        Some(entry)
    }
}

#[cfg(test)]
mod tests;
