//! Reassembly of fragmented datagrams. Fragments come in; a whole datagram goes out, or the
//! fragments are discarded and counted.
//!
//! The driver delivers fragments to the flow of their datagram (`netnice-driver`,
//! `demux::fragments`). This module reassembles them in the program's own memory and on its CPU
//! time. It follows RFC 791 and RFC 8200, section 4.5:
//!
//! - Fragments may arrive in any order. An exact copy of an earlier fragment is ignored.
//! - A malformed fragment is discarded alone: one that is empty, one that is not the last and whose
//!   length is not a multiple of eight bytes, and one that ends behind the largest length that an
//!   IP header can state (65,535 bytes, in IPv4 with its header of 20 bytes, in IPv6 without it).
//! - A datagram is discarded if two of its fragments overlap in any other way (RFC 5722), or do not
//!   agree on where it ends. Fragments that arrive later begin a new datagram, as RFC 8200 permits;
//!   RFC 5722 would discard these too.
//! - A datagram is discarded if it is incomplete 60 s after its first fragment arrived
//!   ([`LIFETIME`]). The oldest datagram is discarded when there would be more than 32
//!   ([`MAX_INCOMPLETE`]).
//!
//! The time of a fragment is the driver's stamp. Lifetimes are checked only when a fragment
//! arrives: an expired datagram stays in memory until then. No function fails.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::datagram::{Fragment, FragmentKey};

/// Fragments of incomplete datagrams.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// The datagram with the oldest first fragment is first.
    incomplete: VecDeque<Incomplete>,
    discarded: u64,
}

#[derive(Debug)]
struct Incomplete {
    key: FragmentKey,
    /// Arrival of its first fragment, in ns.
    first_at: u64,
    bytes: Vec<u8>,
    /// The byte ranges that have arrived, sorted and disjoint.
    ranges: Vec<(usize, usize)>,
    /// Length of the datagram, known once the last fragment has arrived.
    total: Option<usize>,
    fragments: u64,
}

impl Reassembly {
    /// Adds a fragment with its bytes, which arrived at `now` (ns, not descending). Returns the
    /// datagram with its UDP header if it is complete; else `None`.
    pub(crate) fn add(&mut self, fragment: &Fragment, bytes: &[u8], now: u64) -> Option<Vec<u8>> {
        self.expire(now);
        if is_malformed(fragment, bytes.len()) {
            self.discarded += 1;
            return None;
        }
        let known = self
            .incomplete
            .iter()
            .position(|datagram| datagram.key == fragment.key);
        let index = known.unwrap_or_else(|| {
            if self.incomplete.len() == MAX_INCOMPLETE {
                self.discard(0);
            }
            self.incomplete.push_back(Incomplete {
                key: fragment.key,
                first_at: now,
                bytes: Vec::new(),
                ranges: Vec::new(),
                total: None,
                fragments: 0,
            });
            self.incomplete.len() - 1
        });
        let datagram = &mut self.incomplete[index];
        datagram.fragments += 1;
        match datagram.add(fragment, bytes) {
            Added::Incomplete => None,
            Added::Complete => self.incomplete.remove(index).map(|datagram| datagram.bytes),
            Added::Invalid => {
                self.discard(index);
                None
            }
        }
    }

    /// The number of malformed fragments, and of fragments of discarded datagrams.
    pub(crate) fn discarded(&self) -> u64 {
        self.discarded
    }

    fn expire(&mut self, now: u64) {
        while let Some(oldest) = self.incomplete.front()
            && now.saturating_sub(oldest.first_at) > LIFETIME
        {
            self.discard(0);
        }
    }

    fn discard(&mut self, index: usize) {
        if let Some(datagram) = self.incomplete.remove(index) {
            self.discarded += datagram.fragments;
        }
    }
}

enum Added {
    Incomplete,
    Complete,
    Invalid,
}

impl Incomplete {
    fn add(&mut self, fragment: &Fragment, bytes: &[u8]) -> Added {
        let begin = fragment.offset as usize;
        let end = begin + bytes.len();
        if self.ranges.contains(&(begin, end)) {
            let was_last = self.total == Some(end);
            let is_copy = self.bytes[begin..end] == *bytes && fragment.more != was_last;
            return match is_copy {
                true => Added::Incomplete,
                false => Added::Invalid,
            };
        }
        let index = self.ranges.partition_point(|(from, _)| *from < begin);
        let before = index
            .checked_sub(1)
            .map_or(0, |before| self.ranges[before].1);
        let after = self
            .ranges
            .get(index)
            .map_or(MAX_DATAGRAM, |(from, _)| *from);
        if before > begin || end > after {
            return Added::Invalid;
        }
        if !fragment.more {
            if self.total.is_some() {
                return Added::Invalid;
            }
            self.total = Some(end);
        }
        let furthest = self.ranges.last().map_or(end, |(_, last)| end.max(*last));
        if self.total.is_some_and(|total| furthest > total) {
            return Added::Invalid;
        }
        self.ranges.insert(index, (begin, end));
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[begin..end].copy_from_slice(bytes);
        let arrived: usize = self.ranges.iter().map(|(from, to)| to - from).sum();
        match self.total == Some(arrived) {
            true => Added::Complete,
            false => Added::Incomplete,
        }
    }
}

/// Whether a fragment with `length` bytes is malformed by itself.
fn is_malformed(fragment: &Fragment, length: usize) -> bool {
    // The reassembled packet's header counts in IPv4 and not in IPv6.
    let header = match fragment.key.to {
        IpAddr::V4(_) => IPV4_HEADER,
        IpAddr::V6(_) => 0,
    };
    let end = fragment.offset as usize + length;
    let is_misaligned = fragment.more && !length.is_multiple_of(8);
    length == 0 || is_misaligned || header + end > MAX_DATAGRAM
}

/// Time after which an incomplete datagram is discarded, in ns: the 60 s of RFC 8200, section 4.5,
/// and the least time of RFC 1122, section 3.3.2.
const LIFETIME: u64 = 60_000_000_000;
/// Largest number of incomplete datagrams of one flow.
const MAX_INCOMPLETE: usize = 32;
/// A length in an IP header has 16 bits.
const MAX_DATAGRAM: usize = 65_535;
/// Length of an IPv4 header without options, in bytes.
const IPV4_HEADER: usize = 20;

#[cfg(test)]
mod tests;
