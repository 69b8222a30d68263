//! Datagrams that come in parts: put together again, or given up.
//!
//! The driver hands every part to the flow of its datagram (`netnice-driver`, `demux::fragments`); what is put together here is
//! the program's own, in its own memory and time. Rules of RFC 791 and RFC 8200, section 4.5:
//!
//! - Parts may come in any order. The same part twice is one; parts that overlap otherwise end the whole datagram (RFC 5722).
//! - All but the last are a multiple of eight bytes long.
//! - What is not whole [`LIFETIME`] after its first part came is given up. So is the oldest of more than [`OPEN`].
//!
//! Time is the driver's stamp of each part.

use std::collections::VecDeque;

use crate::datagram::{Name, Part};

/// What has come of datagrams that are not whole.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// The oldest first.
    open: VecDeque<Open>,
    given_up: u64,
}

#[derive(Debug)]
struct Open {
    of: Name,
    /// When its first part came, in ns.
    born: u64,
    bytes: Vec<u8>,
    /// Which of them have come, from where to where; in order, and apart.
    come: Vec<(usize, usize)>,
    /// How many there are, once the last part has come.
    total: Option<usize>,
    parts: u64,
}

impl Parts {
    /// Another part, of these bytes. The datagram, once it is whole.
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

    /// Parts of datagrams that were given up.
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

/// How long parts are kept, in ns: RFC 791 has 15 s, RFC 8200 has 60.
const LIFETIME: u64 = 30_000_000_000;
/// Datagrams that are not whole, at most, of one flow.
const OPEN: usize = 32;
/// A length in an IP header has 16 bits.
const LONGEST: usize = 65_535;

#[cfg(test)]
mod tests;
