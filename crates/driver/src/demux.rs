//! Classifies received frames to flows.
//!
//! [`Demux::handle`] takes one frame and returns a [`Verdict`]: one flow, several flows, held,
//! unclaimed (the kernel's frame), or discarded with the reason. It runs before anything is copied
//! to a program (paper VERT, section 3.1.1), so a discarded frame costs only the classification.
//!
//! The steps, in this order:
//! 1. A frame to another host's Ethernet address is unclaimed.
//! 2. A frame that matches a **discard pattern** is discarded. Offsets count from the frame's first
//!    byte.
//! 3. The headers are read ([`crate::frame`]); a frame with incomplete or contradictory headers is
//!    discarded.
//! 4. An IP packet to one host in a frame to several (multicast or broadcast) is unclaimed. A
//!    packet whose source address is a group's is discarded.
//! 5. A **fragment** goes to the flow of its datagram's first fragment (`demux::fragments`).
//! 6. UDP and TCP: by both endpoints; a SYN of TCP without ACK by the connection requests of the
//!    local address and port; by the local address and port; by the local port at any single
//!    address. Packets of a group go to all flows that joined it, and to no others.
//! 7. Another IP protocol at an address, another EtherType: by **pattern**. Offsets count from the
//!    payload of the IP or Ethernet header.
//!
//! A frame for which no step finds a flow is unclaimed. A frame costs two look-ups in the ordinary
//! case and a fixed number at most, whatever is registered and whatever arrives. Memory is bounded
//! by the registrations and, for held fragments, by constants. Every frame is counted once:
//! [`DemuxCounters`] states the sums. Classifying does not fail. Adding a flow or a match fails
//! with [`MatchError`] if it is invalid, is taken, or exceeds a limit.

mod counters;
mod fragments;
mod matches;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::quality::RandomState;
use netnice_core::units::Instant;

pub(crate) use counters::DemuxFlowCounters;
pub use counters::{DemuxCounters, Discard};
use fragments::{DatagramFragment, Fragments};
use matches::is_group;
pub use matches::{Match, MatchError, Reassembly};

use crate::frame::{self, ETHERNET, Family, Frame, Ip, Mac};
use crate::pattern::{Pattern, Patterns};
use crate::protocol::{Transport, number_of};

/// A flow's number in the driver. Numbers are small, since they serve as an index. A number can be
/// reused as soon as its flow is closed, so messages to and from the daemon use other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowNo(pub u32);

/// The result of the classification of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// The frame goes to one flow.
    One {
        /// The flow.
        flow: FlowNo,
        /// Length of the frame in bytes, without padding behind an IP packet.
        end: usize,
    },
    /// Each of these flows gets a copy.
    Several {
        /// The flows.
        flows: &'a [FlowNo],
        /// Length of the frame in bytes, without padding behind an IP packet.
        end: usize,
    },
    /// The flow is unknown until the datagram's first fragment arrives. The fragment is kept;
    /// `Demux::poll_released` returns it then.
    Held,
    /// The frame belongs to no flow. It is the kernel's.
    Unclaimed,
    /// Discarded, with the reason.
    Discarded(Discard),
}

/// The classification tables. See the module.
#[derive(Debug)]
pub struct Demux {
    mac: Mac,
    flows: Vec<Option<FlowEntry>>,
    connected: HashMap<FlowKey, FlowNo, RandomState>,
    /// The flows of connection requests.
    syns: HashMap<FlowKey, FlowNo, RandomState>,
    ports: HashMap<FlowKey, Owner, RandomState>,
    groups: Vec<Group>,
    protocols: HashMap<(Family, u8, u128), Patterns<FlowNo>, RandomState>,
    ethertypes: HashMap<u16, Patterns<FlowNo>, RandomState>,
    discards: Patterns<()>,
    fragments: Fragments,
    counters: DemuxCounters,
}

/// One flow.
#[derive(Debug)]
struct FlowEntry {
    matches: Vec<Match>,
    reassembly: Reassembly,
    counters: DemuxFlowCounters,
}

/// Flows that get the same packets.
#[derive(Debug, Default)]
struct Group {
    /// Flows with [`Reassembly::Complete`] first.
    members: Vec<FlowNo>,
    /// How many of the members those are.
    complete: usize,
}

/// The flows that get a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    One(FlowNo),
    /// The number of a [`Group`].
    Group(u32),
    Unclaimed,
}

/// The key of a packet with ports. For a match by port the remote endpoint is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowKey {
    local: u128,
    remote: u128,
    ports: (u16, u16),
    kind: (Family, Transport),
}

impl Demux {
    /// A table without flows, for an interface with the Ethernet address `mac`.
    pub fn new(mac: Mac) -> Demux {
        Demux {
            mac,
            flows: Vec::new(),
            connected: HashMap::default(),
            syns: HashMap::default(),
            ports: HashMap::default(),
            groups: Vec::new(),
            protocols: HashMap::default(),
            ethertypes: HashMap::default(),
            discards: Patterns::default(),
            fragments: Fragments::default(),
            counters: DemuxCounters::default(),
        }
    }

    /// Changes the interface's Ethernet address.
    pub(crate) fn set_mac(&mut self, mac: Mac) {
        self.mac = mac;
    }

    /// Adds a flow that gets no packets yet.
    ///
    /// # Errors
    /// [`MatchError::Taken`] if the number is in use, [`MatchError::Number`] if it is above
    /// 2^20 - 1.
    pub fn insert(&mut self, flow: FlowNo, reassembly: Reassembly) -> Result<(), MatchError> {
        if flow.0 > MAX_FLOWS {
            return Err(MatchError::Number(flow.0));
        }
        let place = flow.0 as usize;
        if self.flows.len() <= place {
            self.flows.resize_with(place + 1, || None);
        }
        if self.flows[place].is_some() {
            return Err(MatchError::Taken);
        }
        self.flows[place] = Some(FlowEntry {
            matches: Vec::new(),
            reassembly,
            counters: DemuxFlowCounters::default(),
        });
        self.fragments.count_flow(reassembly, 1);
        Ok(())
    }

    /// Assigns packets to the flow.
    ///
    /// # Errors
    /// [`MatchError`] if the match is invalid, another flow has it, a limit is reached, or the flow
    /// does not exist ([`MatchError::Number`]). Nothing changes then.
    pub fn add_match(&mut self, flow: FlowNo, what: &Match) -> Result<(), MatchError> {
        let reassembly = match self.flow(flow) {
            None => return Err(MatchError::Number(flow.0)),
            Some(known) if known.matches.len() == MAX_MATCHES => return Err(MatchError::Matches),
            Some(known) if known.matches.contains(what) => return Err(MatchError::Taken),
            Some(known) => known.reassembly,
        };
        what.validate()?;
        match (what, what.key()) {
            (Match::Connected { .. }, Some(key)) => claim(&mut self.connected, key, flow)?,
            (Match::Syn { .. }, Some(key)) => claim(&mut self.syns, key, flow)?,
            (Match::Group { .. }, Some(key)) => self.join(flow, reassembly, key)?,
            (_, Some(key)) => claim(&mut self.ports, key, Owner::One(flow))?,
            (_, None) => self.add_pattern(flow, what)?,
        }
        if let Some(known) = self.flow_mut(flow) {
            known.matches.push(what.clone());
        }
        Ok(())
    }

    /// Removes a flow; its packets become unclaimed. Returns its counters; `None` if it does not
    /// exist.
    pub(crate) fn remove(&mut self, flow: FlowNo) -> Option<DemuxFlowCounters> {
        let known = self.flows.get_mut(flow.0 as usize)?.take()?;
        for what in &known.matches {
            self.remove_match(flow, what);
        }
        self.fragments.drop_owner(Owner::One(flow));
        self.fragments.count_flow(known.reassembly, -1);
        Some(known.counters)
    }

    /// Replaces all discard patterns: frames that match any are discarded from now on, for all
    /// flows.
    pub(crate) fn discard(&mut self, patterns: Patterns<()>) {
        self.discards = patterns;
    }

    /// Classifies a received frame. The caller calls `Demux::poll_released` afterwards.
    #[inline]
    pub fn handle(&mut self, bytes: &[u8], now: Instant) -> Verdict<'_> {
        self.counters.received += 1;
        self.fragments.expire(now);
        let route = self.route(bytes, now);
        self.verdict(route)
    }

    /// The receiver of this frame if it is no fragment and no discard pattern matches it: a flow,
    /// or `None` for several flows. `None` in its place if no flow gets the frame. Counts nothing.
    pub(crate) fn receiver(&self, bytes: &[u8]) -> Option<Option<FlowNo>> {
        let (to, _) = frame::macs(bytes)?;
        let Ok(Frame::Ip(ip)) = frame::read(bytes) else {
            return None;
        };
        if ip.fragment.is_some() || (to != self.mac && !to.is_group()) {
            return None;
        }
        match self.classify(&ip, bytes).ok()? {
            Owner::One(flow) => Some(Some(flow)),
            Owner::Group(_) => Some(None),
            Owner::Unclaimed => None,
        }
    }

    /// A fragment that was held and is released, with its verdict. Call until it returns `None`.
    pub(crate) fn poll_released(&mut self) -> Option<(Box<[u8]>, Verdict<'_>)> {
        let (owner, bytes) = self.fragments.poll_released()?;
        let route = Route::To {
            owner,
            end: bytes.len(),
            in_order: false,
        };
        Some((bytes, self.verdict(route)))
    }

    /// The flow that would get the segments of a connection if that flow did not exist; `None` if
    /// none would, or if the flow is no connection of TCP.
    pub(crate) fn listener_of(&self, connection: FlowNo) -> Option<FlowNo> {
        let mut matches = self.flow(connection)?.matches.iter();
        let local = matches.find_map(|what| match what {
            Match::Connected {
                transport: Transport::Tcp,
                local,
                ..
            } => Some(*local),
            _ => None,
        })?;
        let transport = Transport::Tcp;
        let key = Match::Port { transport, local }.key()?;
        match self.ports.get(&key) {
            Some(Owner::One(flow)) => Some(*flow),
            _ => None,
        }
    }

    /// The counters over all frames.
    pub fn counters(&self) -> DemuxCounters {
        let mut counters = self.counters;
        counters.discarded[Discard::Forgotten as usize] += self.fragments.forgotten();
        counters.held = self.fragments.held();
        counters
    }

    /// The counters of one flow; `None` if it does not exist.
    pub(crate) fn counters_of(&self, flow: FlowNo) -> Option<DemuxFlowCounters> {
        Some(self.flow(flow)?.counters)
    }

    /// Panics if the tables contradict each other. For tests: the call checks every flow, group and
    /// datagram.
    pub fn invariants(&self) {
        let counters = self.counters();
        let to_flows = counters.delivered + counters.copied;
        let discarded: u64 = counters.discarded.iter().sum();
        assert_eq!(
            counters.received,
            to_flows + counters.unclaimed + counters.held + discarded,
            "{counters:?}"
        );
        for group in &self.groups {
            for (place, member) in group.members.iter().enumerate() {
                let member = self.flow(*member).expect("a member is a flow");
                let is_complete = member.reassembly == Reassembly::Complete;
                assert_eq!(is_complete, place < group.complete, "members in order");
            }
        }
        let joined: usize = self.groups.iter().map(|group| group.members.len()).sum();
        let matches = self.flows.iter().flatten().flat_map(|flow| &flow.matches);
        let joins = matches
            .filter(|one| matches!(one, Match::Group { .. }))
            .count();
        assert_eq!(joined, joins, "members are in their groups");
        self.fragments.invariants();
    }

    #[inline]
    fn route(&mut self, bytes: &[u8], now: Instant) -> Route {
        let Some((to, _)) = frame::macs(bytes) else {
            return Route::Discarded(Discard::Short);
        };
        if to != self.mac && !to.is_group() {
            return Route::UNCLAIMED;
        }
        if !self.discards.is_empty() && self.discards.find(bytes).is_some() {
            return Route::Discarded(Discard::Pattern);
        }
        let ip = match frame::read(bytes) {
            Ok(Frame::Ip(ip)) => ip,
            Ok(Frame::Other(kind)) => return self.route_other(kind, bytes),
            Err(malformed) => return Route::Discarded(malformed.into()),
        };
        if to.is_group() && !is_group(ip.family, ip.destination) {
            return Route::UNCLAIMED;
        }
        let end = ip.end;
        match self.route_ip(&ip, bytes, now) {
            Ok(Some((owner, in_order))) => Route::To {
                owner,
                end,
                in_order,
            },
            Ok(None) => Route::Held,
            Err(why) => Route::Discarded(why),
        }
    }

    fn route_other(&self, kind: u16, bytes: &[u8]) -> Route {
        let patterns = self.ethertypes.get(&kind);
        let flow = patterns.and_then(|patterns| patterns.find(&bytes[ETHERNET..]));
        Route::To {
            owner: flow.map_or(Owner::Unclaimed, |flow| Owner::One(*flow)),
            end: bytes.len(),
            in_order: true,
        }
    }

    /// The owner, and whether no fragment before this one is missing; `None` if the packet is held.
    #[inline]
    fn route_ip(
        &mut self,
        ip: &Ip,
        bytes: &[u8],
        now: Instant,
    ) -> Result<Option<(Owner, bool)>, Discard> {
        if is_group(ip.family, ip.source) {
            return Err(Discard::Source);
        }
        let Some(fragment) = DatagramFragment::of(ip) else {
            return Ok(Some((self.classify(ip, bytes)?, true)));
        };
        match fragment.offset {
            0 => {
                let owner = self.classify(ip, bytes)?;
                self.fragments.on_first(&fragment, owner, now).map(Some)
            }
            _ => self.fragments.on_later(&fragment, &bytes[..ip.end], now),
        }
    }

    /// Classifies by the packet's own headers.
    #[inline]
    fn classify(&self, ip: &Ip, bytes: &[u8]) -> Result<Owner, Discard> {
        let payload = &bytes[ip.payload..ip.end];
        let Some(transport) = Transport::of(ip.protocol) else {
            let key = (ip.family, ip.protocol, ip.destination);
            let patterns = self.protocols.get(&key);
            let flow = patterns.and_then(|patterns| patterns.find(payload));
            return Ok(flow.map_or(Owner::Unclaimed, |flow| Owner::One(*flow)));
        };
        if payload.len() < transport.header() {
            return Err(Discard::Transport);
        }
        if transport == Transport::Udp {
            let length = usize::from(frame::be16(payload, 4));
            let is_whole = ip.fragment.is_none();
            if length < transport.header() || (is_whole && length > payload.len()) {
                return Err(Discard::Transport);
            }
        }
        let (from, to) = (frame::be16(payload, 0), frame::be16(payload, 2));
        let mut key = FlowKey {
            local: ip.destination,
            remote: ip.source,
            ports: (to, from),
            kind: (ip.family, transport),
        };
        if !self.connected.is_empty()
            && let Some(flow) = self.connected.get(&key)
        {
            return Ok(Owner::One(*flow));
        }
        key.remote = 0;
        key.ports.1 = 0;
        if transport == Transport::Tcp
            && frame::is_syn(payload)
            && let Some(flow) = self.syns.get(&key)
        {
            return Ok(Owner::One(*flow));
        }
        if let Some(owner) = self.ports.get(&key) {
            return Ok(*owner);
        }
        if is_group(ip.family, ip.destination) {
            return Ok(Owner::Unclaimed);
        }
        key.local = 0;
        Ok(*self.ports.get(&key).unwrap_or(&Owner::Unclaimed))
    }

    /// Counts a frame by its route, and returns the verdict.
    #[inline]
    fn verdict(&mut self, route: Route) -> Verdict<'_> {
        match route {
            Route::To {
                owner: Owner::One(flow),
                end,
                in_order,
            } => self.verdict_one(flow, end, in_order),
            Route::To {
                owner: Owner::Group(group),
                end,
                in_order,
            } => self.verdict_group(group, end, in_order),
            Route::To { .. } => {
                self.counters.unclaimed += 1;
                Verdict::Unclaimed
            }
            Route::Held => Verdict::Held,
            Route::Discarded(why) => self.discard_frame(why),
        }
    }

    fn verdict_one(&mut self, flow: FlowNo, end: usize, in_order: bool) -> Verdict<'_> {
        let Some(Some(known)) = self.flows.get_mut(flow.0 as usize) else {
            self.counters.unclaimed += 1;
            return Verdict::Unclaimed;
        };
        if !in_order && known.reassembly == Reassembly::InOrder {
            known.counters.out_of_order += 1;
            return self.discard_frame(Discard::OutOfOrder);
        }
        known.counters.received += 1;
        self.counters.delivered += 1;
        Verdict::One { flow, end }
    }

    fn verdict_group(&mut self, group: u32, end: usize, in_order: bool) -> Verdict<'_> {
        let members = &self.groups[group as usize];
        let count = match in_order {
            true => members.members.len(),
            false => members.complete,
        };
        for (place, member) in members.members.iter().enumerate() {
            if let Some(Some(known)) = self.flows.get_mut(member.0 as usize) {
                match place < count {
                    true => known.counters.received += 1,
                    false => known.counters.out_of_order += 1,
                }
            }
        }
        if count == 0 {
            return self.discard_frame(Discard::OutOfOrder);
        }
        self.counters.copied += 1;
        let flows = &self.groups[group as usize].members[..count];
        Verdict::Several { flows, end }
    }

    fn discard_frame(&mut self, why: Discard) -> Verdict<'_> {
        self.counters.discarded[why as usize] += 1;
        Verdict::Discarded(why)
    }

    fn join(
        &mut self,
        flow: FlowNo,
        reassembly: Reassembly,
        key: FlowKey,
    ) -> Result<(), MatchError> {
        let number = match self.ports.get(&key) {
            Some(Owner::Group(number)) => *number,
            Some(_) => return Err(MatchError::Taken),
            None => self.vacant_group(),
        };
        let group = &mut self.groups[number as usize];
        if group.members.len() == MAX_MEMBERS {
            return Err(MatchError::Group);
        }
        match reassembly {
            Reassembly::Complete => {
                group.members.insert(group.complete, flow);
                group.complete += 1;
            }
            Reassembly::InOrder => group.members.push(flow),
        }
        self.ports.insert(key, Owner::Group(number));
        Ok(())
    }

    fn vacant_group(&mut self) -> u32 {
        let is_vacant = |group: &Group| group.members.is_empty();
        match self.groups.iter().position(is_vacant) {
            Some(place) => place as u32,
            None => {
                self.groups.push(Group::default());
                self.groups.len() as u32 - 1
            }
        }
    }

    fn leave(&mut self, flow: FlowNo, key: FlowKey) {
        let Some(Owner::Group(number)) = self.ports.get(&key).copied() else {
            return;
        };
        let group = &mut self.groups[number as usize];
        if let Some(place) = group.members.iter().position(|member| *member == flow) {
            group.members.remove(place);
            group.complete -= usize::from(place < group.complete);
        }
        if group.members.is_empty() {
            self.ports.remove(&key);
            self.fragments.drop_owner(Owner::Group(number));
        }
    }

    fn add_pattern(&mut self, flow: FlowNo, what: &Match) -> Result<(), MatchError> {
        match what {
            Match::Protocol {
                protocol,
                local,
                pattern,
            } => {
                let (family, address) = number_of(*local);
                let key = (family, protocol.number(), address);
                self.protocols
                    .entry(key)
                    .or_default()
                    .insert(pattern, flow)?;
            }
            Match::EtherType { kind, pattern } => {
                let patterns = self.ethertypes.entry(kind.number()).or_default();
                patterns.insert(pattern, flow)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes packets from the flow.
    fn remove_match(&mut self, flow: FlowNo, what: &Match) {
        match (what, what.key()) {
            (Match::Connected { .. }, Some(key)) => {
                self.connected.remove(&key);
            }
            (Match::Syn { .. }, Some(key)) => {
                self.syns.remove(&key);
            }
            (Match::Group { .. }, Some(key)) => self.leave(flow, key),
            (_, Some(key)) => {
                self.ports.remove(&key);
            }
            (
                Match::Protocol {
                    protocol,
                    local,
                    pattern,
                },
                None,
            ) => {
                let (family, address) = number_of(*local);
                let key = (family, protocol.number(), address);
                remove_pattern(&mut self.protocols, &key, pattern);
            }
            (Match::EtherType { kind, pattern }, None) => {
                remove_pattern(&mut self.ethertypes, &kind.number(), pattern);
            }
            (_, None) => {}
        }
    }

    fn flow(&self, flow: FlowNo) -> Option<&FlowEntry> {
        self.flows.get(flow.0 as usize)?.as_ref()
    }

    fn flow_mut(&mut self, flow: FlowNo) -> Option<&mut FlowEntry> {
        self.flows.get_mut(flow.0 as usize)?.as_mut()
    }
}

/// Where a frame goes, before it is counted.
enum Route {
    To {
        owner: Owner,
        end: usize,
        /// No fragment of its datagram before it is missing.
        in_order: bool,
    },
    Held,
    Discarded(Discard),
}

impl Route {
    const UNCLAIMED: Route = Route::To {
        owner: Owner::Unclaimed,
        end: 0,
        in_order: true,
    };
}

/// Assigns a key to its first owner. Fails if it has one.
fn claim<T>(
    table: &mut HashMap<FlowKey, T, RandomState>,
    key: FlowKey,
    owner: T,
) -> Result<(), MatchError> {
    match table.entry(key) {
        Entry::Occupied(_) => Err(MatchError::Taken),
        Entry::Vacant(place) => {
            place.insert(owner);
            Ok(())
        }
    }
}

/// Removes a pattern, and its table if that was the last pattern.
fn remove_pattern<K: std::hash::Hash + Eq>(
    tables: &mut HashMap<K, Patterns<FlowNo>, RandomState>,
    key: &K,
    pattern: &Pattern,
) {
    if let Some(patterns) = tables.get_mut(key) {
        patterns.remove(pattern);
        if patterns.is_empty() {
            tables.remove(key);
        }
    }
}

/// The largest number of a flow: the scheduler has at most 2^20 flows.
pub(crate) const MAX_FLOWS: u32 = (1 << 20) - 1;
/// How many flows one frame can be copied to.
pub(crate) const MAX_MEMBERS: usize = 64;
/// How many matches one flow may have: its port and the groups that it joined.
pub(crate) const MAX_MATCHES: usize = 64;

#[cfg(any(test, fuzzing))]
pub mod hostile;
#[cfg(test)]
mod tests;
