//! The peers of a listener's connections: where they are, and which of them get a reset if the
//! program dies. No function fails.

use std::collections::HashMap;
use std::net::SocketAddr;

use netnice_ring::connections::ConnectionList;
use netnice_tcp::connection::Connection;
use netnice_tcp::endpoint::ConnectionId;
use netnice_tcp::header::Seq;

use super::Engine;
use crate::headers::Headers;
use crate::tcp::peer_list::PeerList;

/// The headers of Ethernet and IP to each peer.
#[derive(Default)]
pub(super) struct Peers {
    /// To the peer of a client's connection.
    pub(super) only: Option<Headers>,
    /// To the peer of each connection of a listener, by the connection's number.
    pub(super) of_connections: Vec<Option<(SocketAddr, Headers)>>,
    /// To hosts whose last segment belongs to no connection.
    pub(super) strangers: HashMap<SocketAddr, Headers>,
}

impl Peers {
    /// The headers to the peer of a connection, or to a stranger.
    pub(super) fn headers_to(
        &self,
        id: Option<ConnectionId>,
        remote: SocketAddr,
    ) -> Option<&Headers> {
        if self.only.is_some() {
            return self.only.as_ref();
        }
        let Some(ConnectionId(index)) = id else {
            return self.strangers.get(&remote);
        };
        let place = self.of_connections.get(index as usize)?.as_ref();
        place.and_then(|(of, headers)| (*of == remote).then_some(headers))
    }

    /// Sets the headers to the peer of a listener's connection. Returns true if the number was that
    /// of a connection to another peer, or of none.
    pub(super) fn set(&mut self, id: ConnectionId, remote: SocketAddr, headers: Headers) -> bool {
        let index = id.0 as usize;
        if self.of_connections.len() <= index {
            self.of_connections.resize_with(index + 1, || None);
        }
        let before = self.of_connections[index].replace((remote, headers));
        before.is_none_or(|(of, _)| of != remote)
    }
}

impl Engine {
    /// Lists the connections of a listener here: the driver resets them if the program dies.
    pub(in crate::tcp) fn list_peers(&mut self, list: Option<ConnectionList>) {
        self.listed = PeerList::new(list);
    }

    /// A connection has changed: tells the driver whether it has to be reset if the program dies.
    pub(in crate::tcp) fn note_end(&mut self, id: ConnectionId) {
        let connection = self.endpoint.connection(id);
        if self.peers.only.is_some() {
            // A connection that is forgotten is over, unless this end has reset it: the driver
            // knows whether that segment has left.
            let is_over = connection.map_or(!self.was_reset, Connection::is_over);
            if is_over != self.is_over {
                self.is_over = is_over;
                self.main.flow.rings.set_connection_over(is_over);
            }
        } else if connection.is_none_or(Connection::is_over) {
            self.listed.remove(id);
        } else if connection.is_some_and(Connection::is_silent) && self.silent.len() < MOST_SILENT {
            self.silent.push(id);
        }
    }

    /// The connections of a listener whose peers have acknowledged nothing for some timeouts, with
    /// the addresses of the peers. Each is returned once for each change of its connection.
    pub(in crate::tcp) fn take_silent(&mut self) -> Vec<(ConnectionId, SocketAddr)> {
        let silent = std::mem::take(&mut self.silent);
        let with_peer = |id| Some((id, self.endpoint.remote(id)?));
        silent.into_iter().filter_map(with_peer).collect()
    }

    /// Segments of a listener's connection are sent to this Ethernet address from now on. Returns
    /// true if that is another one.
    pub(in crate::tcp) fn set_next_hop(
        &mut self,
        (id, remote): (ConnectionId, SocketAddr),
        next_hop: [u8; 6],
    ) -> bool {
        match self.peers.of_listener(id, remote) {
            Some(headers) if headers.next_hop() != next_hop => {
                headers.set_next_hop(next_hop);
                self.listed.set_next_hop((id, remote), next_hop);
                true
            }
            _ => false,
        }
    }

    /// Segments of a listener's connection come from another Ethernet address than before: those
    /// for its peer go there from now on. Only the next segment in order is believed.
    pub(super) fn follow_source(
        &mut self,
        id: ConnectionId,
        remote: SocketAddr,
        seq: Seq,
        source: [u8; 6],
    ) {
        let Some(headers) = self.peers.of_listener(id, remote) else {
            return;
        };
        if headers.next_hop() == source {
            return;
        }
        let connection = self.endpoint.connection(id);
        if connection.is_some_and(|connection| connection.expected_seq() == Some(seq)) {
            headers.set_next_hop(source);
            self.listed.set_next_hop((id, remote), source);
        }
    }
}

impl Peers {
    /// The headers to the peer of a listener's connection, once a segment was sent to it.
    fn of_listener(&mut self, id: ConnectionId, remote: SocketAddr) -> Option<&mut Headers> {
        let place = self.of_connections.get_mut(id.0 as usize)?.as_mut();
        place
            .filter(|(of, _)| *of == remote)
            .map(|(_, headers)| headers)
    }
}

/// Silent peers whose next hops are looked up at the same time. Others are at their next timeout.
const MOST_SILENT: usize = 256;
