//! Classifies fragments: only the first fragment of a datagram carries its ports.
//!
//! ```text
//!          first fragment                      a later fragment
//!  unknown ───────────▶ known ─▶ its owner   unknown ────────────▶ waiting (a flow takes all)
//!     ▲                   │                     ▲                     │
//!     │ LIFETIME over,    │                     │  LIFETIME over      │ first fragment: known, and
//!     └── or table full ──┘                     └── or table full ────┘ released to its owner
//! ```
//! The demultiplexer does not reassemble: every fragment goes on as it came, and the flow's own
//! stack reassembles. A later fragment without a first one could be any flow's, so it is held. If
//! no flow takes fragments out of order, it is unclaimed instead.
//!
//! # Bounds
//! Known datagrams are stored per owner, at most [`KNOWN_PER_OWNER`]; the oldest is dropped first.
//! So a flood of fragments for one flow drops no state of another flow. Waiting fragments have no
//! owner yet: at most [`WAITING`] datagrams and [`WAITING_BYTES`] bytes together; the oldest is
//! dropped first.
//!
//! # Overlaps
//! A datagram goes to the flow of its *earliest* first fragment. A later first fragment that names
//! another flow is discarded, so an overlapping first fragment cannot redirect the fragments of
//! another flow's datagram. The arrival of the last fragment does not end this, since any sender
//! can send a last fragment: the owner keeps the datagram's identity for [`LIFETIME`] after each
//! first fragment.

use std::collections::{HashMap, VecDeque};

use foldhash::quality::RandomState;
use netnice_core::units::Instant;
use netnice_kernel::direct::FRAGMENT_LIFETIME;

use super::{Discard, Owner, Reassembly};
use crate::frame::{Family, Ip};

/// A fragment and its datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    of: Datagram,
    pub(super) offset: u32,
    length: u32,
}

/// The identity of a datagram, which all its fragments share (RFC 791; RFC 8200 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Datagram {
    family: Family,
    protocol: u8,
    id: u32,
    source: u128,
    destination: u128,
}

impl Part {
    /// `None` if the packet is a whole datagram.
    pub(super) fn of(ip: &Ip) -> Option<Part> {
        let fragment = ip.fragment?;
        Some(Part {
            of: Datagram {
                family: ip.family,
                protocol: ip.protocol,
                id: fragment.id,
                source: ip.source,
                destination: ip.destination,
            },
            offset: fragment.offset,
            length: (ip.end - ip.payload) as u32,
        })
    }
}

/// The state of all datagrams; see the module.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    known: HashMap<Datagram, Known, RandomState>,
    /// The known datagrams of each owner, oldest first. Some entries are stale.
    by_owner: HashMap<Owner, VecDeque<Ticket>, RandomState>,
    waiting: HashMap<Datagram, Waiting, RandomState>,
    /// The waiting datagrams, oldest first. Some entries are stale.
    order: VecDeque<Ticket>,
    waiting_bytes: usize,
    released: VecDeque<(Owner, Box<[u8]>)>,
    held: u64,
    forgotten: u64,
    serial: u64,
    /// Number of flows that take every fragment.
    complete: u32,
}

/// One of the datagrams that may have had this identity.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    of: Datagram,
    serial: u64,
}

/// A datagram whose first fragment arrived.
#[derive(Debug)]
struct Known {
    serial: u64,
    /// Time of the latest first fragment: the owner may reuse the identity for another datagram.
    born: Instant,
    owner: Owner,
    /// Offset of the next fragment in order; `None` after one out of order.
    next: Option<u32>,
}

/// A datagram whose first fragment has not arrived.
#[derive(Debug)]
struct Waiting {
    serial: u64,
    born: Instant,
    parts: Vec<(Part, Box<[u8]>)>,
}

impl Fragments {
    /// Counts a flow that was added (`change` 1) or removed (-1).
    pub(super) fn count(&mut self, reassembly: Reassembly, change: i32) {
        if reassembly == Reassembly::Complete {
            self.complete = self.complete.saturating_add_signed(change);
        }
    }

    /// Takes the first fragment of a datagram that its ports (or its pattern) assign to `owner`.
    /// Returns the owner, and whether the fragment is in order.
    pub(super) fn first(
        &mut self,
        part: &Part,
        owner: Owner,
        now: Instant,
    ) -> Result<(Owner, bool), Discard> {
        match self.lookup(part.of, now) {
            Some(known) if known.owner == Owner::Nobody => return Ok((Owner::Nobody, false)),
            Some(known) if known.owner != owner => return Err(Discard::Conflict),
            Some(known) => {
                (known.born, known.next) = (now, Some(0));
                return Ok((owner, self.advance(part)));
            }
            None => {}
        }
        self.remember(part.of, owner, now);
        let others = self.waiting.remove(&part.of);
        if let (Some(_), Some(known)) = (&others, self.known.get_mut(&part.of)) {
            known.next = None;
        }
        let in_order = self.advance(part);
        for (other, bytes) in others.into_iter().flat_map(|others| others.parts) {
            self.waiting_bytes -= bytes.len();
            self.advance(&other);
            self.released.push_back((owner, bytes));
        }
        Ok((owner, in_order))
    }

    /// Takes a later fragment. Returns the owner, and whether the fragment is in order; `None` if
    /// it is held.
    pub(super) fn later(
        &mut self,
        part: &Part,
        packet: &[u8],
        now: Instant,
    ) -> Result<Option<(Owner, bool)>, Discard> {
        if let Some(known) = self.lookup(part.of, now) {
            let owner = known.owner;
            return Ok(Some((owner, self.advance(part))));
        }
        if self.complete == 0 {
            return Ok(Some((Owner::Nobody, false)));
        }
        self.hold(part, packet, now)?;
        Ok(None)
    }

    /// Drops datagrams that waited too long; a bounded number at each call.
    #[inline]
    pub(super) fn expire(&mut self, now: Instant) {
        for _ in 0..FORGET_PER_CALL {
            let Some(oldest) = self.order.front() else {
                return;
            };
            let lives = self.waiting.get(&oldest.of).is_some_and(|waiting| {
                waiting.serial == oldest.serial && is_young(waiting.born, now)
            });
            if lives {
                return;
            }
            self.forget_oldest();
        }
    }

    /// A released fragment and its owner.
    pub(super) fn poll_released(&mut self) -> Option<(Owner, Box<[u8]>)> {
        let next = self.released.pop_front()?;
        self.held -= 1;
        Some(next)
    }

    /// Fragments kept at present.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Fragments that were kept and then dropped.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Drops the datagrams of an owner that is removed.
    pub(super) fn forget(&mut self, owner: Owner) {
        for ticket in self.by_owner.remove(&owner).into_iter().flatten() {
            self.drop_known(&ticket);
        }
        let theirs = self.released.iter_mut().filter(|(to, _)| *to == owner);
        theirs.for_each(|(to, _)| *to = Owner::Nobody);
    }

    /// Panics if the tables contradict each other. For tests.
    pub(super) fn invariants(&self) {
        let parts = |waiting: &Waiting| waiting.parts.len();
        let waiting: usize = self.waiting.values().map(parts).sum();
        assert_eq!(self.held as usize, waiting + self.released.len(), "held");
        let bytes = self.waiting.values().flat_map(|waiting| &waiting.parts);
        let bytes: usize = bytes.map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(self.waiting_bytes, bytes, "bytes that wait");
        assert!(bytes <= WAITING_BYTES && self.order.len() <= WAITING);
        for of in self.waiting.keys() {
            assert!(!self.known.contains_key(of), "known, and yet it waits");
        }
        for (of, known) in &self.known {
            let tickets = &self.by_owner[&known.owner];
            assert!(tickets.len() <= KNOWN_PER_OWNER);
            let is_listed = |ticket: &Ticket| ticket.of == *of && ticket.serial == known.serial;
            assert!(tickets.iter().any(is_listed), "known, and nobody's");
        }
    }

    /// The datagram, if it is known and within [`LIFETIME`].
    fn lookup(&mut self, of: Datagram, now: Instant) -> Option<&mut Known> {
        let known = self.known.get(&of)?;
        match is_young(known.born, now) {
            true => self.known.get_mut(&of),
            false => {
                self.known.remove(&of);
                None
            }
        }
    }

    fn remember(&mut self, of: Datagram, owner: Owner, now: Instant) {
        self.serial += 1;
        let serial = self.serial;
        let known = Known {
            serial,
            born: now,
            owner,
            next: Some(0),
        };
        self.known.insert(of, known);
        let tickets = self.by_owner.entry(owner).or_default();
        tickets.push_back(Ticket { of, serial });
        for _ in 0..FORGET_PER_CALL {
            let Some(oldest) = tickets.front() else { break };
            let its = self.known.get(&oldest.of);
            let its = its.filter(|known| known.serial == oldest.serial);
            let stays = its.is_some_and(|known| is_young(known.born, now));
            if stays && tickets.len() <= KNOWN_PER_OWNER {
                break;
            }
            if its.is_some() {
                self.known.remove(&oldest.of);
            }
            tickets.pop_front();
        }
    }

    fn drop_known(&mut self, ticket: &Ticket) {
        let is_it = |known: &Known| known.serial == ticket.serial;
        if self.known.get(&ticket.of).is_some_and(is_it) {
            self.known.remove(&ticket.of);
        }
    }

    /// Advances a known datagram by one fragment. Returns whether the fragment is in order.
    fn advance(&mut self, part: &Part) -> bool {
        let Some(known) = self.known.get_mut(&part.of) else {
            return false;
        };
        let in_order = known.next == Some(part.offset);
        known.next = in_order.then_some(part.offset + part.length);
        in_order
    }

    fn hold(&mut self, part: &Part, packet: &[u8], now: Instant) -> Result<(), Discard> {
        let is_full = |waiting: &Waiting| waiting.parts.len() == PARTS;
        if self.waiting.get(&part.of).is_some_and(is_full) {
            return Err(Discard::Forgotten);
        }
        while self.waiting_bytes + packet.len() > WAITING_BYTES
            || (self.order.len() == WAITING && !self.waiting.contains_key(&part.of))
        {
            self.forget_oldest();
        }
        if !self.waiting.contains_key(&part.of) {
            self.serial += 1;
            let serial = self.serial;
            self.order.push_back(Ticket {
                of: part.of,
                serial,
            });
            let waiting = Waiting {
                serial,
                born: now,
                parts: Vec::new(),
            };
            self.waiting.insert(part.of, waiting);
        }
        if let Some(waiting) = self.waiting.get_mut(&part.of) {
            waiting.parts.push((*part, packet.into()));
            self.waiting_bytes += packet.len();
            self.held += 1;
        }
        Ok(())
    }

    fn forget_oldest(&mut self) {
        let Some(ticket) = self.order.pop_front() else {
            return;
        };
        let is_it = |waiting: &Waiting| waiting.serial == ticket.serial;
        if !self.waiting.get(&ticket.of).is_some_and(is_it) {
            return;
        }
        let parts = self.waiting.remove(&ticket.of).map(|waiting| waiting.parts);
        for (_, bytes) in parts.into_iter().flatten() {
            self.waiting_bytes -= bytes.len();
            self.held -= 1;
            self.forgotten += 1;
        }
    }
}

fn is_young(born: Instant, now: Instant) -> bool {
    now.0.saturating_sub(born.0) < LIFETIME
}

/// The fragments of a datagram arrive close together; this allows for a full queue on the path. The
/// same as in XDP. (RFC 1122 keeps fragments for a minute, since identifications are not reused so
/// soon there.)
const LIFETIME: u64 = FRAGMENT_LIFETIME as u64;
/// Known datagrams per flow, including those that have arrived completely.
const KNOWN_PER_OWNER: usize = 256;
/// Datagrams that can wait for their first fragment.
const WAITING: usize = 256;
/// Bytes that can wait: sixteen of the longest datagrams.
const WAITING_BYTES: usize = 1 << 20;
/// Fragments of one datagram that can wait: 65,535 bytes in fragments of a small MTU.
const PARTS: usize = 128;
const FORGET_PER_CALL: usize = 8;

#[cfg(test)]
mod tests;
