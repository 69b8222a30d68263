//! Reassembly of fragmented datagrams. Fragments come in; a whole datagram goes out, or the
//! fragments are discarded and counted.
//!
//! The driver hands every fragment to the flow of its datagram (`netnice-driver`,
//! `demux::fragments`). This module reassembles them in the program's own memory and time. It
//! follows RFC 791 and RFC 8200, section 4.5:
//!
//! - Fragments may arrive in any order. A duplicate counts once. Fragments that overlap in any
//!   other way invalidate the whole datagram (RFC 5722).
//! - The length of every fragment except the last is a multiple of eight bytes.
//! - A datagram that is incomplete [`LIFETIME`] after its first fragment arrived is discarded. So
//!   is the oldest datagram when there are more than [`OPEN`].
//!
//! The time of a fragment is the driver's stamp.

use std::collections::VecDeque;

use crate::datagram::{Name, Part};

/// Fragments of incomplete datagrams.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// The datagram with the oldest first fragment is first.
    open: VecDeque<Open>,
    given_up: u64,
}

#[derive(Debug)]
struct Open {
    of: Name,
    /// Arrival of its first fragment, in ns.
    born: u64,
    bytes: Vec<u8>,
    /// The byte ranges that have arrived, sorted and disjoint.
    come: Vec<(usize, usize)>,
    /// Length of the datagram, known once the last fragment has arrived.
    total: Option<usize>,
    parts: u64,
}

impl Parts {
    /// Adds a fragment with its bytes. Returns the datagram if it is complete.
    pub(crate) fn add(&mut self, part: &Part, bytes: &[u8], now: u64) -> Option<Vec<u8>> {
        self.expire(now);
        let known = self.open.iter().position(|open| open.of == part.of);
        let index = known.unwrap_or_else(|| {
            if self.open.len() == OPEN {
                self.give_up(0);
            }
            self.open.push_back(Open {
                of: part.of,
                born: now,
                bytes: Vec::new(),
                come: Vec::new(),
                total: None,
                parts: 0,
            });
            self.open.len() - 1
        });
        let open = &mut self.open[index];
        open.parts += 1;
        match open.add(part, bytes) {
            Added::More => None,
            Added::Whole => self.open.remove(index).map(|open| open.bytes),
            Added::Wrong => {
                self.give_up(index);
                None
            }
        }
    }

    /// The number of fragments of discarded datagrams.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up
    }

    fn expire(&mut self, now: u64) {
        while let Some(oldest) = self.open.front()
            && now.saturating_sub(oldest.born) > LIFETIME
        {
            self.give_up(0);
        }
    }

    fn give_up(&mut self, index: usize) {
        if let Some(open) = self.open.remove(index) {
            self.given_up += open.parts;
        }
    }
}

enum Added {
    More,
    Whole,
    Wrong,
}

impl Open {
    fn add(&mut self, part: &Part, bytes: &[u8]) -> Added {
        let begin = part.offset as usize;
        let end = begin + bytes.len();
        let ragged = part.more && !bytes.len().is_multiple_of(8);
        if bytes.is_empty() || ragged || end > LONGEST {
            return Added::Wrong;
        }
        if self.come.contains(&(begin, end)) {
            return Added::More;
        }
        let place = self.come.partition_point(|(from, _)| *from < begin);
        let before = place.checked_sub(1).map_or(0, |before| self.come[before].1);
        let after = self.come.get(place).map_or(LONGEST, |(from, _)| *from);
        if before > begin || end > after {
            return Added::Wrong;
        }
        if !part.more {
            self.total = Some(end);
        }
        let furthest = self.come.last().map_or(end, |(_, last)| end.max(*last));
        if self.total.is_some_and(|total| furthest > total) {
            return Added::Wrong;
        }
        self.come.insert(place, (begin, end));
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[begin..end].copy_from_slice(bytes);
        let came: usize = self.come.iter().map(|(from, to)| to - from).sum();
        match self.total == Some(came) {
            true => Added::Whole,
            false => Added::More,
        }
    }
}

/// Time after which an incomplete datagram is discarded, in ns. RFC 791 has 15 s, RFC 8200 has 60
/// s.
const LIFETIME: u64 = 30_000_000_000;
/// Largest number of incomplete datagrams of one flow.
const OPEN: usize = 32;
/// A length in an IP header has 16 bits.
const LONGEST: usize = 65_535;

#[cfg(test)]
mod tests;
