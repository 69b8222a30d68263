//! The list of a listener's open connections in the memory of its flow ([`PeerList`]). If the
//! program dies, the driver resets the peers that the list names (`docs/reference/tcp-flows.md`).
//!
//! A connection gets its entry, the one with its own number, with the first segment that is queued
//! for its peer, and the entry's sequence number follows what is queued: it is written before the
//! driver sees the segment, so the number is never behind what the peer has received. The entry is
//! freed when the connection is over. That of a connection which this end has reset stays until
//! another connection gets its number, because the reset may still wait in the submit ring; a
//! second reset harms no peer. No function fails.

use std::net::SocketAddr;

use netnice_ring::connections::ConnectionList;
use netnice_tcp::endpoint::ConnectionId;
use netnice_tcp::header::{Flags, Header, Seq};

/// The list. Without a list in the flow's memory, nothing is listed.
#[derive(Default)]
pub(super) struct PeerList {
    list: Option<ConnectionList>,
    /// What each entry holds.
    entries: Vec<Option<Listed>>,
}

/// An entry that is not free.
#[derive(Clone, Copy)]
struct Listed {
    /// The sequence number behind the highest that was queued.
    end: Seq,
    was_reset: bool,
}

impl PeerList {
    /// Keeps this list from now on. It has no entries yet.
    pub(super) fn new(list: Option<ConnectionList>) -> PeerList {
        PeerList {
            list,
            entries: Vec::new(),
        }
    }

    /// A segment of a connection was queued. `next_hop` is called for the Ethernet address of its
    /// first one.
    #[inline]
    pub(super) fn note_queued(
        &mut self,
        id: ConnectionId,
        remote: SocketAddr,
        (header, payload): (&Header, u32),
        next_hop: impl FnOnce() -> [u8; 6],
    ) {
        let Some(list) = &self.list else {
            return;
        };
        let has = |flag| u32::from(header.flags.has(flag));
        let end = header.seq.add(payload + has(Flags::SYN) + has(Flags::FIN));
        let index = id.0 as usize;
        if let Some(Some(known)) = self.entries.get_mut(index)
            && !known.was_reset
            && !header.flags.has(Flags::SYN)
        {
            // A retransmission is no progress.
            if end.distance_from(known.end) > 0 {
                known.end = end;
                list.set_sequence(id.0, end.0);
            }
            known.was_reset = header.flags.has(Flags::RST);
            return;
        }
        if id.0 >= list.entries() {
            return;
        }
        if self.entries.len() <= index {
            self.entries.resize(index + 1, None);
        }
        self.entries[index] = Some(Listed {
            end,
            was_reset: header.flags.has(Flags::RST),
        });
        list.set(id.0, remote, next_hop(), end.0);
    }

    /// Another connection has this number now. Its first segment writes the entry anew.
    pub(super) fn replace(&mut self, id: ConnectionId) {
        if let Some(entry) = self.entries.get_mut(id.0 as usize) {
            *entry = None;
        }
    }

    /// Frees the entry of a connection that is over, unless this end has reset it.
    pub(super) fn remove(&mut self, id: ConnectionId) {
        let Some(entry) = self.entries.get_mut(id.0 as usize) else {
            return;
        };
        if entry.is_some_and(|known| !known.was_reset) {
            *entry = None;
            if let Some(list) = &self.list {
                list.clear(id.0);
            }
        }
    }

    /// Segments for the peer of a connection have another Ethernet address from now on.
    pub(super) fn set_next_hop(
        &mut self,
        (id, remote): (ConnectionId, SocketAddr),
        next_hop: [u8; 6],
    ) {
        if let (Some(list), Some(Some(known))) = (&self.list, self.entries.get(id.0 as usize)) {
            list.set(id.0, remote, next_hop, known.end.0);
        }
    }
}

#[cfg(test)]
mod tests;
