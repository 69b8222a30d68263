//! Finds the flows of fragments: only the first fragment of a datagram carries the ports.
//!
//! The *owner* of a datagram is the flow or the group of flows that gets it, or the kernel. The
//! first fragment determines the owner:
//!
//! | datagram | first fragment | later fragment |
//! |---|---|---|
//! | unknown | goes to its owner; the datagram is known | is held; the datagram waits |
//! | waiting | goes to its owner, and the held ones follow; the datagram is known | is held |
//! | known | goes to the owner, unless it names another flow | goes to the owner |
//!
//! A known datagram becomes unknown again [`LIFETIME`] (2 s) after its latest first fragment. A
//! waiting datagram becomes unknown again [`LIFETIME`] after its earliest held fragment, and its
//! held fragments are dropped. The last fragment of a datagram does not shorten these times, since
//! any sender can send a last fragment.
//!
//! The demultiplexer does not reassemble: it passes each fragment on unchanged, and the flow's own
//! stack reassembles. If all flows take fragments in order only, no fragment is held: a later
//! fragment of an unknown datagram goes to the kernel.
//!
//! # Bounds
//! Known datagrams are stored per owner, at most [`MAX_KNOWN_PER_OWNER`] (256); the oldest is
//! dropped first. So a flood of fragments for one flow drops no state of another flow. Waiting
//! fragments have no owner yet: at most [`MAX_WAITING`] (256) datagrams and [`MAX_WAITING_BYTES`]
//! (1 MiB) together; the oldest datagram is dropped first. One datagram can have
//! [`MAX_WAITING_FRAGMENTS`] (128) held fragments; further ones are discarded.
//!
//! # Overlaps
//! A first fragment that names another flow than the datagram's owner is discarded; if the owner is
//! the kernel, the kernel gets it. So an overlapping first fragment cannot redirect the fragments
//! of another owner's datagram.
//!
//! A call that discards the fragment fails with the reason ([`Discard`]).

use std::collections::{HashMap, VecDeque};

use foldhash::quality::RandomState;
use netnice_core::units::Instant;
use netnice_kernel::direct::FRAGMENT_LIFETIME;

use super::{Discard, Owner, Reassembly};
use crate::frame::{Family, Ip};

/// A fragment and its datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramFragment {
    datagram: Datagram,
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

impl DatagramFragment {
    /// The fragment of an IP packet; `None` if the packet is a whole datagram.
    pub(super) fn of(ip: &Ip) -> Option<DatagramFragment> {
        let fragment = ip.fragment?;
        Some(DatagramFragment {
            datagram: Datagram {
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

/// The datagrams of which fragments arrived; see the module.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    known: HashMap<Datagram, KnownDatagram, RandomState>,
    /// The known datagrams of each owner, oldest first. Some entries are stale.
    by_owner: HashMap<Owner, VecDeque<DatagramEntry>, RandomState>,
    waiting: HashMap<Datagram, WaitingDatagram, RandomState>,
    /// The waiting datagrams, oldest first. Some entries are stale.
    order: VecDeque<DatagramEntry>,
    waiting_bytes: usize,
    released: VecDeque<(Owner, Box<[u8]>)>,
    held: u64,
    forgotten: u64,
    serial: u64,
    /// Number of flows that take every fragment.
    complete: u32,
}

/// A datagram in a list. The serial number distinguishes datagrams that had the same identity.
#[derive(Clone, Copy, Debug)]
struct DatagramEntry {
    datagram: Datagram,
    serial: u64,
}

/// A datagram whose first fragment arrived.
#[derive(Debug)]
struct KnownDatagram {
    serial: u64,
    /// Time of the latest first fragment: the sender may reuse the identity for another datagram.
    since: Instant,
    owner: Owner,
    /// Offset of the next fragment in order; `None` after one out of order.
    next: Option<u32>,
}

/// A datagram whose first fragment has not arrived.
#[derive(Debug)]
struct WaitingDatagram {
    serial: u64,
    since: Instant,
    fragments: Vec<(DatagramFragment, Box<[u8]>)>,
}

impl Fragments {
    /// Counts a flow that was added (`change` 1) or removed (-1).
    pub(super) fn count_flow(&mut self, reassembly: Reassembly, change: i32) {
        if reassembly == Reassembly::Complete {
            self.complete = self.complete.saturating_add_signed(change);
        }
    }

    /// Takes the first fragment of a datagram that its ports (or its pattern) assign to `owner`.
    /// Returns the owner, and whether the fragment is in order. Fails with [`Discard::Conflict`] if
    /// the datagram has another owner. If that is the kernel, the kernel gets the fragment instead.
    pub(super) fn on_first(
        &mut self,
        fragment: &DatagramFragment,
        owner: Owner,
        now: Instant,
    ) -> Result<(Owner, bool), Discard> {
        match self.lookup(fragment.datagram, now) {
            Some(known) if known.owner == Owner::Unclaimed => return Ok((Owner::Unclaimed, false)),
            Some(known) if known.owner != owner => return Err(Discard::Conflict),
            Some(known) => {
                (known.since, known.next) = (now, Some(0));
                return Ok((owner, self.advance(fragment)));
            }
            None => {}
        }
        self.insert_known(fragment.datagram, owner, now);
        let others = self.waiting.remove(&fragment.datagram);
        if let (Some(_), Some(known)) = (&others, self.known.get_mut(&fragment.datagram)) {
            known.next = None;
        }
        let in_order = self.advance(fragment);
        for (other, bytes) in others.into_iter().flat_map(|others| others.fragments) {
            self.waiting_bytes -= bytes.len();
            self.advance(&other);
            self.released.push_back((owner, bytes));
        }
        Ok((owner, in_order))
    }

    /// Takes a later fragment. Returns the owner, and whether the fragment is in order; `None` if
    /// it is held. Fails with [`Discard::Forgotten`] if too many fragments of the datagram are
    /// held.
    pub(super) fn on_later(
        &mut self,
        fragment: &DatagramFragment,
        packet: &[u8],
        now: Instant,
    ) -> Result<Option<(Owner, bool)>, Discard> {
        if let Some(known) = self.lookup(fragment.datagram, now) {
            let owner = known.owner;
            return Ok(Some((owner, self.advance(fragment))));
        }
        if self.complete == 0 {
            return Ok(Some((Owner::Unclaimed, false)));
        }
        self.hold(fragment, packet, now)?;
        Ok(None)
    }

    /// Drops datagrams that waited too long; a bounded number at each call.
    #[inline]
    pub(super) fn expire(&mut self, now: Instant) {
        for _ in 0..MAX_DROPPED_PER_CALL {
            let Some(oldest) = self.order.front() else {
                return;
            };
            let is_current = self.waiting.get(&oldest.datagram).is_some_and(|waiting| {
                waiting.serial == oldest.serial && is_within_lifetime(waiting.since, now)
            });
            if is_current {
                return;
            }
            self.drop_oldest_waiting();
        }
    }

    /// The next released fragment and its owner; `None` if there is none.
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
    pub(super) fn drop_owner(&mut self, owner: Owner) {
        for entry in self.by_owner.remove(&owner).into_iter().flatten() {
            self.drop_known(&entry);
        }
        let of_owner = self.released.iter_mut().filter(|(to, _)| *to == owner);
        of_owner.for_each(|(to, _)| *to = Owner::Unclaimed);
    }

    /// Panics if the tables contradict each other. For tests.
    pub(super) fn invariants(&self) {
        let count = |waiting: &WaitingDatagram| waiting.fragments.len();
        let waiting: usize = self.waiting.values().map(count).sum();
        assert_eq!(self.held as usize, waiting + self.released.len(), "held");
        let bytes = self.waiting.values().flat_map(|waiting| &waiting.fragments);
        let bytes: usize = bytes.map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(self.waiting_bytes, bytes, "bytes that wait");
        assert!(bytes <= MAX_WAITING_BYTES && self.order.len() <= MAX_WAITING);
        for datagram in self.waiting.keys() {
            assert!(!self.known.contains_key(datagram), "known and waiting");
        }
        for (datagram, known) in &self.known {
            let entries = &self.by_owner[&known.owner];
            assert!(entries.len() <= MAX_KNOWN_PER_OWNER);
            let is_listed =
                |entry: &DatagramEntry| entry.datagram == *datagram && entry.serial == known.serial;
            assert!(
                entries.iter().any(is_listed),
                "known, but not listed by its owner"
            );
        }
    }

    /// The datagram, if it is known and within [`LIFETIME`].
    fn lookup(&mut self, datagram: Datagram, now: Instant) -> Option<&mut KnownDatagram> {
        let known = self.known.get(&datagram)?;
        match is_within_lifetime(known.since, now) {
            true => self.known.get_mut(&datagram),
            false => {
                self.known.remove(&datagram);
                None
            }
        }
    }

    fn insert_known(&mut self, datagram: Datagram, owner: Owner, now: Instant) {
        self.serial += 1;
        let serial = self.serial;
        let known = KnownDatagram {
            serial,
            since: now,
            owner,
            next: Some(0),
        };
        self.known.insert(datagram, known);
        let entries = self.by_owner.entry(owner).or_default();
        entries.push_back(DatagramEntry { datagram, serial });
        for _ in 0..MAX_DROPPED_PER_CALL {
            let Some(oldest) = entries.front() else { break };
            let entry = self.known.get(&oldest.datagram);
            let entry = entry.filter(|known| known.serial == oldest.serial);
            let is_current = entry.is_some_and(|known| is_within_lifetime(known.since, now));
            if is_current && entries.len() <= MAX_KNOWN_PER_OWNER {
                break;
            }
            if entry.is_some() {
                self.known.remove(&oldest.datagram);
            }
            entries.pop_front();
        }
    }

    fn drop_known(&mut self, entry: &DatagramEntry) {
        let is_it = |known: &KnownDatagram| known.serial == entry.serial;
        if self.known.get(&entry.datagram).is_some_and(is_it) {
            self.known.remove(&entry.datagram);
        }
    }

    /// Advances a known datagram by one fragment. Returns whether the fragment is in order.
    fn advance(&mut self, fragment: &DatagramFragment) -> bool {
        let Some(known) = self.known.get_mut(&fragment.datagram) else {
            return false;
        };
        let in_order = known.next == Some(fragment.offset);
        known.next = in_order.then_some(fragment.offset + fragment.length);
        in_order
    }

    fn hold(
        &mut self,
        fragment: &DatagramFragment,
        packet: &[u8],
        now: Instant,
    ) -> Result<(), Discard> {
        let is_full = |waiting: &WaitingDatagram| waiting.fragments.len() == MAX_WAITING_FRAGMENTS;
        if self.waiting.get(&fragment.datagram).is_some_and(is_full) {
            return Err(Discard::Forgotten);
        }
        while self.waiting_bytes + packet.len() > MAX_WAITING_BYTES
            || (self.order.len() == MAX_WAITING && !self.waiting.contains_key(&fragment.datagram))
        {
            self.drop_oldest_waiting();
        }
        if !self.waiting.contains_key(&fragment.datagram) {
            self.serial += 1;
            let serial = self.serial;
            self.order.push_back(DatagramEntry {
                datagram: fragment.datagram,
                serial,
            });
            let waiting = WaitingDatagram {
                serial,
                since: now,
                fragments: Vec::new(),
            };
            self.waiting.insert(fragment.datagram, waiting);
        }
        if let Some(waiting) = self.waiting.get_mut(&fragment.datagram) {
            waiting.fragments.push((*fragment, packet.into()));
            self.waiting_bytes += packet.len();
            self.held += 1;
        }
        Ok(())
    }

    fn drop_oldest_waiting(&mut self) {
        let Some(entry) = self.order.pop_front() else {
            return;
        };
        let is_it = |waiting: &WaitingDatagram| waiting.serial == entry.serial;
        if !self.waiting.get(&entry.datagram).is_some_and(is_it) {
            return;
        }
        let fragments = self
            .waiting
            .remove(&entry.datagram)
            .map(|waiting| waiting.fragments);
        for (_, bytes) in fragments.into_iter().flatten() {
            self.waiting_bytes -= bytes.len();
            self.held -= 1;
            self.forgotten += 1;
        }
    }
}

fn is_within_lifetime(since: Instant, now: Instant) -> bool {
    now.0.saturating_sub(since.0) < LIFETIME
}

/// How long a first fragment decides for its datagram, in ns; the same as in XDP. The fragments of
/// a datagram arrive close together; 2 s allow for a full queue on the path. (RFC 1122, section
/// 3.3.2, keeps fragments for 60 to 120 s.)
const LIFETIME: u64 = FRAGMENT_LIFETIME as u64;
/// Known datagrams per owner, including those that have arrived completely.
const MAX_KNOWN_PER_OWNER: usize = 256;
/// Datagrams that can wait for their first fragment.
const MAX_WAITING: usize = 256;
/// Bytes that can wait: sixteen of the longest datagrams.
const MAX_WAITING_BYTES: usize = 1 << 20;
/// Fragments of one datagram that can wait: 65,535 bytes in fragments of a small MTU.
const MAX_WAITING_FRAGMENTS: usize = 128;
const MAX_DROPPED_PER_CALL: usize = 8;

#[cfg(test)]
mod tests;
