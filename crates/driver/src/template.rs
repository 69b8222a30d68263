//! What one flow may send: nothing leaves that its template forbids.
//!
//! A [`Template`] is made once, when the flow is set up, from what was granted ([`Sender`]). For each packet it compares
//! the first 64 bytes under a mask (VERT 3.1.2: "a simple compare and mask"), then the lengths, which differ from packet
//! to packet. It is asked about the driver's own copy of the bytes, since the program may write its memory meanwhile; the
//! answer is a [`Checked`], and only that can be sent.
//!
//! | headers | must be | free |
//! |---|---|---|
//! | Ethernet | EtherType; where the next hop is any, a single station | |
//! | IPv4 | no options, no fragment, the lengths those of the frame, the checksum, own source, protocol, the peer (or any single host), a hop left | type of service, identification, don't-fragment |
//! | IPv6 | the same; no extension headers | traffic class, flow label |
//! | UDP | own port, peer's port (or any), the length that of the packet | checksum |
//! | TCP | own port, peer's port (or any) | the rest |
//!
//! The Ethernet addresses are written by the template behind the check: the link's own as the source, and the flow's next hop if it
//! has one. So a neighbour or an address that changes is nothing that the program needs to know of.
//!
//! Frames end where the IP packet ends: padding is refused, since nobody looks at what it says. VLAN tags, options and
//! extension headers are refused as they are not what the mask wants. A flow of another protocol may send what it likes behind the
//! header that names the protocol; [`crate::protocol`] says which these can be.

use std::net::{IpAddr, SocketAddr};

use crate::frame::{self, ETHERNET, ETHERTYPE_AT, Family, IPV4, IPV6, Mac, be16, checksum};
use crate::protocol::{EtherType, IpProtocol, Transport, is_one_host};

/// What was granted to a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The address of the link.
    pub mac: Mac,
    /// To which station frames go. Nothing: to any single one.
    pub next_hop: Option<Mac>,
    /// The longest frame, the Ethernet header counted: 14 and the MTU.
    pub longest: usize,
    /// What they say.
    pub sends: Sends,
}

/// As what a flow speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// UDP or TCP from one port.
    Ports {
        /// Which of them.
        transport: Transport,
        /// Its own end.
        local: SocketAddr,
        /// The other end. Nothing: any single host.
        remote: Option<SocketAddr>,
    },
    /// Another protocol over IP.
    Protocol {
        /// Which.
        protocol: IpProtocol,
        /// Its own end.
        local: IpAddr,
        /// The other end. Nothing: any single host.
        remote: Option<IpAddr>,
    },
    /// Another protocol over Ethernet.
    EtherType(EtherType),
}

/// A grant from which no template can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSender {
    /// The source would not be one station.
    #[error("{0} is no address that a link sends from")]
    Mac(Mac),
    /// The source would not be one host.
    #[error("{0} is no address that a host sends from")]
    Local(IpAddr),
    /// The destination would not be a host or a group.
    #[error("{0} is no address that a host is reached by")]
    Remote(IpAddr),
    /// A flow has a port.
    #[error("port 0 is no port of a flow")]
    Port,
    /// The ends speak different versions of IP.
    #[error("from {local} to {remote}: one is IPv4, the other IPv6")]
    Families {
        /// From.
        local: IpAddr,
        /// To.
        remote: IpAddr,
    },
    /// To a group through one station, or to one host through a group of stations.
    #[error("{remote} is not reached through {next_hop}")]
    NextHop {
        /// To whom.
        remote: IpAddr,
        /// Through whom.
        next_hop: Mac,
    },
    /// A group is reached by its own Ethernet address, which has to be named.
    #[error("the group {0} needs the Ethernet address that it is reached by")]
    Group(IpAddr),
    /// No frame of this length holds the headers.
    #[error("frames of at most {longest} bytes have no room for {headers} bytes of headers")]
    Longest {
        /// What was asked.
        longest: usize,
        /// What it takes.
        headers: usize,
    },
}

/// Why a packet does not leave. The order is that of the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Forbidden {
    /// No room for the flow's headers.
    #[error("shorter than the flow's headers")]
    Short,
    /// Longer than the link carries.
    #[error("longer than the link's MTU")]
    Long,
    /// To a group of stations.
    #[error("to a group of stations, and not to one")]
    NextHop,
    /// Of another EtherType, a VLAN tag among them.
    #[error("of another EtherType than the flow's (a VLAN tag is one)")]
    EtherType,
    /// Another version of IP, or options.
    #[error("with another version of IP, or with options")]
    Version,
    /// A length that is not the frame's.
    #[error("with a length in its headers that is not the packet's")]
    Length,
    /// A part of a datagram.
    #[error("a fragment")]
    Fragment,
    /// It would die at once.
    #[error("without a hop to go")]
    Hops,
    /// Of another protocol, extension headers among them.
    #[error("of another IP protocol than the flow's (an extension header is one)")]
    Protocol,
    /// A wrong IPv4 header checksum.
    #[error("with a wrong checksum of its IPv4 header")]
    Checksum,
    /// From another host's address.
    #[error("with another source address than the flow's")]
    Source,
    /// To another host, or to a group.
    #[error("to another address than the flow's")]
    Destination,
    /// From another port.
    #[error("from another port than the flow's")]
    SourcePort,
    /// To another port.
    #[error("to another port than the flow's")]
    DestinationPort,
}

/// A packet that may leave: bytes of the driver's own that a template has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked<'a>(&'a [u8]);

impl<'a> Checked<'a> {
    /// The bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// What a flow may send, ready to compare.
#[derive(Clone, Debug)]
pub struct Template {
    want: [u8; HEAD],
    mask: [u8; HEAD],
    layout: Layout,
    /// All headers that are looked at.
    headers: usize,
    longest: usize,
    /// It may send to any single host.
    anywhere: bool,
    station: Station,
}

/// Which Ethernet addresses are written.
#[derive(Clone, Copy, Debug)]
struct Station {
    mac: Mac,
    /// None: the program names it.
    next_hop: Option<Mac>,
}

/// Which lengths there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Ip(Family, Option<Transport>),
    Ethernet,
}

impl Template {
    /// Of what was granted.
    pub fn new(sender: &Sender) -> Result<Template, BadSender> {
        if sender.mac.is_group() || sender.mac == Mac::default() {
            return Err(BadSender::Mac(sender.mac));
        }
        let mut template = Template {
            want: [0; HEAD],
            mask: [0; HEAD],
            layout: Layout::Ethernet,
            headers: ETHERNET,
            longest: sender.longest,
            anywhere: false,
            station: Station {
                mac: sender.mac,
                next_hop: sender.next_hop,
            },
        };
        if sender.next_hop.is_none() {
            template.fix_bits(0, 0, 1);
        }
        match sender.sends {
            Sends::EtherType(kind) => template.fix(ETHERTYPE_AT, &kind.number().to_be_bytes()),
            Sends::Protocol {
                protocol,
                local,
                remote,
            } => template.fix_ip(sender.next_hop, local, remote, protocol.number(), None)?,
            Sends::Ports {
                transport,
                local,
                remote,
            } => {
                let (from, to) = (local.ip(), remote.map(|remote| remote.ip()));
                let number = transport.number();
                template.fix_ip(sender.next_hop, from, to, number, Some(transport))?;
                template.fix_ports(transport, local.port(), remote.map(|remote| remote.port()))?;
            }
        }
        match template.headers > template.longest {
            true => Err(BadSender::Longest {
                longest: template.longest,
                headers: template.headers,
            }),
            false => Ok(template),
        }
    }

    /// Whether these bytes may leave; if so, they are given their Ethernet addresses. They must be the driver's own: nobody
    /// else may write them until they are sent.
    #[inline]
    pub fn check<'a>(&self, own: &'a mut [u8]) -> Result<Checked<'a>, Forbidden> {
        match self.allows(own) {
            true => {
                if let Some(next_hop) = self.station.next_hop {
                    own[..6].copy_from_slice(&next_hop.0);
                }
                own[6..ETHERTYPE_AT].copy_from_slice(&self.station.mac.0);
                Ok(Checked(own))
            }
            false => Err(self.explain(own)),
        }
    }

    /// The link has another address, or the flow another next hop (where it has one at all), or the link carries frames
    /// of another length.
    pub fn readdress(&mut self, mac: Mac, next_hop: Option<Mac>, longest: usize) {
        self.station.mac = mac;
        if self.station.next_hop.is_some() && next_hop.is_some() {
            self.station.next_hop = next_hop;
        }
        self.longest = longest.max(self.headers);
    }

    /// Whether the program names the station that its frames go to.
    pub fn names_station(&self) -> bool {
        self.station.next_hop.is_none()
    }

    /// How many bytes of headers it looks at; no shorter packet leaves.
    pub fn headers(&self) -> usize {
        self.headers
    }

    /// The longest packet that may leave.
    pub fn longest(&self) -> usize {
        self.longest
    }

    #[inline(always)]
    fn allows(&self, own: &[u8]) -> bool {
        if own.len() < self.headers || own.len() > self.longest {
            return false;
        }
        let mut short = [0; HEAD];
        let head: &[u8; HEAD] = match own.first_chunk() {
            Some(head) => head,
            None => {
                short[..own.len()].copy_from_slice(own);
                &short
            }
        };
        let differs = (0..HEAD).fold(0, |sum, at| {
            sum | ((head[at] ^ self.want[at]) & self.mask[at])
        });
        differs == 0 && self.lengths_agree(head, own.len()) && self.destination_is_single(head)
    }

    /// What no mask can say.
    #[inline(always)]
    fn lengths_agree(&self, head: &[u8; HEAD], length: usize) -> bool {
        let is = |at, from: usize| usize::from(be16(head, at)) == length - from;
        match self.layout {
            Layout::Ethernet => true,
            Layout::Ip(Family::V4, transport) => {
                is(V4_LENGTH, ETHERNET)
                    && head[V4_HOPS] != 0
                    && (transport != Some(Transport::Udp) || is(V4_END + 4, V4_END))
                    && checksum(&head[ETHERNET..V4_END]) == 0
            }
            Layout::Ip(Family::V6, transport) => {
                is(V6_LENGTH, V6_END)
                    && head[V6_HOPS] != 0
                    && (transport != Some(Transport::Udp) || is(V6_END + 4, V6_END))
            }
        }
    }

    #[inline(always)]
    fn destination_is_single(&self, head: &[u8; HEAD]) -> bool {
        match self.layout {
            _ if !self.anywhere => true,
            Layout::Ip(Family::V4, _) => {
                let to: Option<&[u8; 4]> = head[V4_DESTINATION..].first_chunk();
                to.is_some_and(|to| is_one_host((*to).into()))
            }
            Layout::Ip(Family::V6, _) => {
                let to: Option<&[u8; 16]> = head[V6_DESTINATION..].first_chunk();
                to.is_some_and(|to| is_one_host((*to).into()))
            }
            Layout::Ethernet => true,
        }
    }

    fn fix(&mut self, at: usize, bytes: &[u8]) {
        for (place, byte) in bytes.iter().enumerate() {
            self.fix_bits(at + place, *byte, 0xff);
        }
    }

    fn fix_bits(&mut self, at: usize, value: u8, mask: u8) {
        self.want[at] = value;
        self.mask[at] = mask;
    }

    fn fix_ip(
        &mut self,
        next_hop: Option<Mac>,
        local: IpAddr,
        remote: Option<IpAddr>,
        protocol: u8,
        transport: Option<Transport>,
    ) -> Result<(), BadSender> {
        if !is_one_host(local) {
            return Err(BadSender::Local(local));
        }
        if let Some(remote) = remote {
            reachable(local, remote, next_hop)?;
        }
        match local {
            IpAddr::V4(local) => {
                self.fix(ETHERTYPE_AT, &IPV4.to_be_bytes());
                self.fix_bits(ETHERNET, 0x45, 0xff);
                self.fix_bits(V4_FLAGS, 0, !DONT_FRAGMENT);
                self.fix_bits(V4_FLAGS + 1, 0, 0xff);
                self.fix(V4_PROTOCOL, &[protocol]);
                self.fix(V4_SOURCE, &local.octets());
                self.layout = Layout::Ip(Family::V4, transport);
                self.headers = V4_END;
            }
            IpAddr::V6(local) => {
                self.fix(ETHERTYPE_AT, &IPV6.to_be_bytes());
                self.fix_bits(ETHERNET, 0x60, 0xf0);
                self.fix(V6_PROTOCOL, &[protocol]);
                self.fix(V6_SOURCE, &local.octets());
                self.layout = Layout::Ip(Family::V6, transport);
                self.headers = V6_END;
            }
        }
        match remote {
            Some(IpAddr::V4(remote)) => self.fix(V4_DESTINATION, &remote.octets()),
            Some(IpAddr::V6(remote)) => self.fix(V6_DESTINATION, &remote.octets()),
            None => self.anywhere = true,
        }
        Ok(())
    }

    fn fix_ports(
        &mut self,
        transport: Transport,
        local: u16,
        remote: Option<u16>,
    ) -> Result<(), BadSender> {
        if local == 0 || remote == Some(0) {
            return Err(BadSender::Port);
        }
        let at = self.headers;
        self.fix(at, &local.to_be_bytes());
        if let Some(remote) = remote {
            self.fix(at + 2, &remote.to_be_bytes());
        }
        self.headers += transport.header();
        Ok(())
    }

    /// The first thing that is wrong, by the headers' order.
    #[cold]
    fn explain(&self, own: &[u8]) -> Forbidden {
        if own.len() < self.headers {
            return Forbidden::Short;
        }
        if own.len() > self.longest {
            return Forbidden::Long;
        }
        let differs = |at: &usize| (own[*at] ^ self.want[*at]) & self.mask[*at] != 0;
        let compared = (0..self.headers.min(HEAD))
            .find(differs)
            .map(|at| self.meaning(at));
        let mut head = [0; HEAD];
        let seen = self.headers.min(HEAD);
        head[..seen].copy_from_slice(&own[..seen]);
        let hops = match self.layout {
            Layout::Ip(Family::V4, _) => head[V4_HOPS],
            Layout::Ip(Family::V6, _) => head[V6_HOPS],
            Layout::Ethernet => 1,
        };
        let wrong_sum = self.layout.is_v4() && checksum(&head[ETHERNET..V4_END]) != 0;
        let others = [
            (hops == 0).then_some(Forbidden::Hops),
            wrong_sum.then_some(Forbidden::Checksum),
            (!self.destination_is_single(&head)).then_some(Forbidden::Destination),
        ];
        let named = others.into_iter().flatten().chain(compared).min();
        // What is left are the lengths.
        named.unwrap_or(Forbidden::Length)
    }

    /// What the byte at this place says.
    fn meaning(&self, at: usize) -> Forbidden {
        let behind_ip = |end: usize| match at - end {
            0 | 1 => Forbidden::SourcePort,
            _ => Forbidden::DestinationPort,
        };
        match (at, self.layout) {
            (..ETHERTYPE_AT, _) => Forbidden::NextHop,
            (ETHERTYPE_AT..ETHERNET, _) => Forbidden::EtherType,
            (ETHERNET, _) => Forbidden::Version,
            (..V4_HOPS, Layout::Ip(Family::V4, _)) => Forbidden::Fragment,
            (..V4_SOURCE, Layout::Ip(Family::V4, _)) => Forbidden::Protocol,
            (..V4_DESTINATION, Layout::Ip(Family::V4, _)) => Forbidden::Source,
            (..V4_END, Layout::Ip(Family::V4, _)) => Forbidden::Destination,
            (_, Layout::Ip(Family::V4, _)) => behind_ip(V4_END),
            (..V6_SOURCE, _) => Forbidden::Protocol,
            (..V6_DESTINATION, _) => Forbidden::Source,
            (..V6_END, _) => Forbidden::Destination,
            _ => behind_ip(V6_END),
        }
    }
}

impl Layout {
    fn is_v4(self) -> bool {
        matches!(self, Layout::Ip(Family::V4, _))
    }
}

/// A group is reached through stations that listen to it, one host through one station.
fn reachable(local: IpAddr, remote: IpAddr, next_hop: Option<Mac>) -> Result<(), BadSender> {
    if Family::of(local) != Family::of(remote) {
        return Err(BadSender::Families { local, remote });
    }
    let is_broadcast = matches!(remote, IpAddr::V4(v4) if v4.is_broadcast());
    let is_group = remote.is_multicast() || is_broadcast;
    match next_hop {
        None if is_group => Err(BadSender::Group(remote)),
        // A network's broadcast address does not look like one.
        Some(next_hop) if is_group && !next_hop.is_group() => {
            Err(BadSender::NextHop { remote, next_hop })
        }
        _ if !is_group && !is_one_host(remote) => Err(BadSender::Remote(remote)),
        _ => Ok(()),
    }
}

/// All headers of UDP over IPv6, in whole cache words. TCP's ports are inside too; what it has
/// behind 64 bytes is free.
const HEAD: usize = 64;
const DONT_FRAGMENT: u8 = 0x40;
const V4_LENGTH: usize = ETHERNET + 2;
const V4_FLAGS: usize = ETHERNET + 6;
const V4_HOPS: usize = ETHERNET + 8;
const V4_PROTOCOL: usize = ETHERNET + 9;
const V4_SOURCE: usize = ETHERNET + 12;
const V4_DESTINATION: usize = ETHERNET + 16;
const V4_END: usize = ETHERNET + frame::V4_HEADER;
const V6_LENGTH: usize = ETHERNET + 4;
const V6_PROTOCOL: usize = ETHERNET + 6;
const V6_HOPS: usize = ETHERNET + 7;
const V6_SOURCE: usize = ETHERNET + 8;
const V6_DESTINATION: usize = ETHERNET + 24;
const V6_END: usize = ETHERNET + frame::V6_HEADER;

#[cfg(any(test, fuzzing))]
pub mod hostile;
#[cfg(test)]
mod tests;
