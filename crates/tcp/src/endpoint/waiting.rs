//! The connections of an endpoint in TIME_WAIT that no program has any more: a small entry each,
//! found by the peer's address and port.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use crate::connection::time_wait::TimeWait;
use crate::header::Header;
use crate::time::Instant;

/// The entries. See the module.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    entries: HashMap<SocketAddr, TimeWait>,
    /// The ends of all entries.
    ends: BTreeSet<(Instant, SocketAddr)>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn has(&self, remote: SocketAddr) -> bool {
        self.entries.contains_key(&remote)
    }

    /// Adds an entry. Returns false if one was forgotten for it, because there are too many.
    pub(super) fn add(&mut self, remote: SocketAddr, entry: TimeWait) -> bool {
        self.remove(remote);
        let fits = self.entries.len() < MOST_WAITING;
        if !fits && let Some(&(_, first)) = self.ends.first() {
            self.remove(first);
        }
        self.ends.insert((entry.until(), remote));
        self.entries.insert(remote, entry);
        fits
    }

    pub(super) fn remove(&mut self, remote: SocketAddr) {
        if let Some(entry) = self.entries.remove(&remote) {
            self.ends.remove(&(entry.until(), remote));
        }
        if self.entries.is_empty() {
            // What a burst has needed is not kept.
            self.entries.shrink_to(LEAST_CAPACITY);
        }
    }

    /// The first end.
    pub(super) fn first_end(&self) -> Option<Instant> {
        self.ends.first().map(|&(at, _)| at)
    }

    /// Removes the entries that have ended.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, remote)) = self.ends.first()
            && at <= now
        {
            self.remove(remote);
        }
    }

    /// True if a SYN may open a new connection in place of an entry (RFC 6191).
    pub(super) fn permits(&self, remote: SocketAddr, syn: &Header) -> bool {
        let entry = self.entries.get(&remote);
        entry.is_none_or(|entry| entry.is_before(syn))
    }

    /// Handles a segment with a payload of so many bytes. Returns the acknowledgement that answers
    /// it.
    pub(super) fn handle_segment(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        header: &Header,
        payload: u32,
    ) -> Option<Header> {
        let entry = self.entries.get_mut(&remote)?;
        let before = entry.until();
        let answers = entry.handle_segment(now, header, payload);
        if entry.until() != before {
            self.ends.remove(&(before, remote));
            self.ends.insert((entry.until(), remote));
        }
        answers.then(|| entry.acknowledgement(now, header.destination, header.source))
    }
}

/// They take some 8 MB. Linux has a like limit (`tcp_max_tw_buckets`).
pub(super) const MOST_WAITING: usize = 32_768;
/// Entries whose memory is kept.
const LEAST_CAPACITY: usize = 64;
