//! Reassembly of fragmented datagrams. Fragments come in; a whole datagram goes out, or the
//! fragments are discarded and counted.
//!
//! The driver delivers fragments to the flow of their datagram (`netnice-driver`,
//! `demux::fragments`). This module reassembles them in the program's own memory and on its CPU
//! time. It follows RFC 791 and RFC 8200, section 4.5:
//!
//! - Fragments may arrive in any order. A duplicate counts once. Fragments that overlap in any
//!   other way invalidate the whole datagram (RFC 5722).
//! - The length of every fragment except the last is a multiple of eight bytes.
//! - A datagram is discarded if it would have more than 65,535 bytes, or if it is incomplete 30 s
//!   after its first fragment arrived ([`LIFETIME`]). The oldest datagram is discarded when there
//!   would be more than 32 ([`MAX_INCOMPLETE`]).
//!
//! The time of a fragment is the driver's stamp. Time passes only with fragments: an incomplete
//! datagram stays until a later fragment arrives.

use std::collections::VecDeque;

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
    /// datagram with its UDP header if it is complete.
    pub(crate) fn add(&mut self, fragment: &Fragment, bytes: &[u8], now: u64) -> Option<Vec<u8>> {
        self.expire(now);
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

    /// The number of fragments of discarded datagrams.
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
        let misaligned = fragment.more && !bytes.len().is_multiple_of(8);
        if bytes.is_empty() || misaligned || end > MAX_DATAGRAM {
            return Added::Invalid;
        }
        if self.ranges.contains(&(begin, end)) {
            return Added::Incomplete;
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

/// Time after which an incomplete datagram is discarded, in ns. RFC 791 has 15 s, RFC 8200 has 60
/// s.
const LIFETIME: u64 = 30_000_000_000;
/// Largest number of incomplete datagrams of one flow.
const MAX_INCOMPLETE: usize = 32;
/// A length in an IP header has 16 bits.
const MAX_DATAGRAM: usize = 65_535;

#[cfg(test)]
mod tests;
