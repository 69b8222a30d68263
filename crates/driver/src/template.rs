//! Restricts the packets that one flow may send.
//!
//! A [`Template`] is made once, when the flow is opened, from the grant ([`Sender`]); an invalid
//! grant fails with [`BadSender`]. For each packet the template compares the first 64 bytes under a
//! mask (paper VERT, section 3.1.2: "a simple compare and mask"), and then checks the fields that a
//! mask cannot express: lengths, checksum, hop limit, and the destination of a flow to any host.
//! The check runs on the driver's own copy, since the program may write its memory meanwhile. A
//! packet that passes becomes a [`Checked`], the only type that can be sent; any other is
//! [`Forbidden`], with the reason.
//!
//! The headers, with the fields that a flow chooses freely in parentheses:
//! - Ethernet: the EtherType; if the next hop is not fixed, a destination that is no group.
//! - IPv4 (type of service, identification, don't-fragment): no options, no fragment, lengths that
//!   match the frame, a right checksum, the flow's source address, its protocol, its destination
//!   address (or any single host's), a hop limit above 0.
//! - IPv6 (traffic class, flow label): the same without a checksum; no extension headers.
//! - UDP (checksum): the flow's source port, its destination port (or any), a length that matches
//!   the frame.
//! - TCP (the rest): the flow's source port, its destination port (or any), a header that is not
//!   shorter than 20 bytes and ends in the packet.
//!
//! After the check the template writes the Ethernet addresses: the link's as the source, and the
//! flow's next hop as the destination if it is fixed. If the policy gives the flow a code point,
//! the template writes that too, in place of the program's ([`crate::code_points`]). So the program
//! does not depend on changes of neighbours or addresses.
//!
//! A frame ends where its IP packet ends: padding is refused, since no header check covers it. The
//! mask refuses VLAN tags, options and extension headers. A flow of another protocol may send any
//! bytes behind the header that names the protocol; [`crate::protocol`] lists the refused
//! protocols.

mod segments;

use std::net::{IpAddr, SocketAddr};

use netnice_core::contract::Dscp;

use crate::code_points::write_code_point;
use crate::frame::{
    self, ETHERNET, ETHERTYPE_AT, Family, IPV4, IPV6, Mac, TCP_OFFSET_AT, be16, checksum,
};
use crate::protocol::{EtherType, IpProtocol, Transport, is_one_host};

pub(crate) use segments::Parts;
pub use segments::SegmentRun;

/// The part of a flow's grant that determines its template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The Ethernet address of the link.
    pub mac: Mac,
    /// The next hop of the flow's frames; `None`: any single address.
    pub next_hop: Option<Mac>,
    /// The longest frame in bytes, with the Ethernet header: 14 and the MTU.
    pub longest: usize,
    /// The allowed headers.
    pub sends: Sends,
}

/// The protocol and endpoints that a flow sends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// UDP or TCP from one port.
    Ports {
        /// UDP or TCP.
        transport: Transport,
        /// The local endpoint.
        local: SocketAddr,
        /// The remote endpoint; `None`: any single host.
        remote: Option<SocketAddr>,
    },
    /// Another protocol over IP.
    Protocol {
        /// The protocol.
        protocol: IpProtocol,
        /// The local address.
        local: IpAddr,
        /// The remote address; `None`: any single host.
        remote: Option<IpAddr>,
    },
    /// Another protocol over Ethernet.
    EtherType(EtherType),
}

/// The reason why no template can be made from a [`Sender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSender {
    /// The source is not a single Ethernet address, or is all zeros.
    #[error("{0} cannot be the Ethernet address of a link")]
    Mac(Mac),
    /// The source is not the address of one host.
    #[error("{0} cannot be the source address of a host")]
    Local(IpAddr),
    /// The destination is neither a host nor a group.
    #[error("{0} cannot be the destination address of a flow")]
    Remote(IpAddr),
    /// The port is 0.
    #[error("a flow cannot have port 0")]
    Port,
    /// The endpoints differ in IP version.
    #[error("the endpoints {local} and {remote} differ: one is IPv4, the other IPv6")]
    Families {
        /// The local address.
        local: IpAddr,
        /// The remote address.
        remote: IpAddr,
    },
    /// The remote address is a group, and the next hop is not a group's Ethernet address.
    #[error("{remote} cannot be reached through {next_hop}: one is a group, the other is not")]
    NextHop {
        /// The remote address.
        remote: IpAddr,
        /// The next hop.
        next_hop: Mac,
    },
    /// The remote address is a group, and no next hop is given; the group's Ethernet address is
    /// needed.
    #[error("a flow to the group {0} needs the Ethernet address of the group")]
    Group(IpAddr),
    /// The longest frame cannot hold the headers.
    #[error("frames of at most {longest} bytes have no room for {headers} bytes of headers")]
    Longest {
        /// The requested length.
        longest: usize,
        /// The length of the headers.
        headers: usize,
    },
}

/// The reason why a packet must not leave. The variants are in the order of the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Forbidden {
    /// The packet is shorter than the flow's headers.
    #[error("shorter than the flow's headers")]
    Short,
    /// The packet is longer than the flow's longest frame.
    #[error("longer than the link's MTU")]
    Long,
    /// The destination Ethernet address is not a single one.
    #[error("to a group of Ethernet addresses")]
    NextHop,
    /// The EtherType is not the flow's, for example that of a VLAN tag.
    #[error("of another EtherType than the flow's (a VLAN tag is an EtherType)")]
    EtherType,
    /// The IP version is not the flow's, or the IPv4 header has options.
    #[error("with another version of IP, or with options")]
    Version,
    /// A length in a header contradicts the length of the frame, or TCP's header is too short.
    #[error("with a length in its headers that is not the packet's")]
    Length,
    /// The packet is a fragment.
    #[error("a fragment")]
    Fragment,
    /// The hop limit is 0.
    #[error("with a hop limit of 0")]
    Hops,
    /// The IP protocol is not the flow's, for example that of an extension header.
    #[error("of another IP protocol than the flow's (an extension header is a protocol)")]
    Protocol,
    /// The checksum of the IPv4 header is wrong.
    #[error("with a wrong checksum of its IPv4 header")]
    Checksum,
    /// The source address is not the flow's.
    #[error("with another source address than the flow's")]
    Source,
    /// The destination address is not the flow's or, on a flow to any single host, not that of one
    /// host.
    #[error("to another address than the flow's")]
    Destination,
    /// The source port is not the flow's.
    #[error("from another port than the flow's")]
    SourcePort,
    /// The destination port is not the flow's.
    #[error("to another port than the flow's")]
    DestinationPort,
    /// The packet is a record of segments, which are not of TCP, cannot share headers (SYN, RST,
    /// URG, CWR), or have unequal lengths.
    #[error("of segments that are not parts of one packet of TCP")]
    Segments,
}

/// A frame that may leave: it is in the driver's own memory, and a template has checked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked<'a>(&'a [u8]);

impl<'a> Checked<'a> {
    /// A frame that the kernel's own stack made, and redirected to the driver: it may leave as it
    /// is. Its source address, which carried the target, becomes the link's.
    pub(crate) fn redirected(own: &'a mut [u8], mac: Mac) -> Checked<'a> {
        if let Some(source) = own.get_mut(6..ETHERTYPE_AT) {
            source.copy_from_slice(&mac.0);
        }
        Checked(own)
    }

    /// The same frame, copied to `own`, which has its length.
    pub(crate) fn copied_to(self, own: &mut [u8]) -> Checked<'_> {
        own.copy_from_slice(self.0);
        Checked(own)
    }

    /// The whole frame, from its Ethernet header on.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// A template in the form in which packets are checked: the expected first bytes and a mask.
#[derive(Clone, Debug)]
pub struct Template {
    expected: [u8; HEAD],
    mask: [u8; HEAD],
    layout: Layout,
    /// Length of all checked headers.
    headers: usize,
    longest: usize,
    /// Whether the flow may send to any single host.
    any_destination: bool,
    addresses: LinkAddresses,
}

/// The Ethernet addresses that are written into frames.
#[derive(Clone, Copy, Debug)]
struct LinkAddresses {
    mac: Mac,
    /// `None`: the program sets it.
    next_hop: Option<Mac>,
}

/// The destination of a frame that the driver makes for a flow to any host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    /// The Ethernet address.
    pub(crate) mac: Mac,
    /// The IP address in network byte order. IPv4 has the first four bytes.
    pub(crate) address: [u8; 16],
    /// The port.
    pub(crate) port: u16,
}

/// The lengths that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Ip(Family, Option<Transport>),
    Ethernet,
}

impl Template {
    /// Compiles a template from a grant.
    ///
    /// # Errors
    /// [`BadSender`] if an address, a port or the longest frame is invalid, or if two of them
    /// contradict each other.
    pub fn new(sender: &Sender) -> Result<Template, BadSender> {
        if sender.mac.is_group() || sender.mac == Mac::default() {
            return Err(BadSender::Mac(sender.mac));
        }
        let mut template = Template {
            expected: [0; HEAD],
            mask: [0; HEAD],
            layout: Layout::Ethernet,
            headers: ETHERNET,
            longest: sender.longest,
            any_destination: false,
            addresses: LinkAddresses {
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

    /// Checks a frame and writes its Ethernet addresses. `own` must be the driver's own memory,
    /// which no program can write until the frame is sent.
    ///
    /// # Errors
    /// [`Forbidden`] with the first violation, in the order of the headers; a wrong length only if
    /// there is no other violation.
    #[inline]
    pub fn check<'a>(&self, own: &'a mut [u8]) -> Result<Checked<'a>, Forbidden> {
        self.check_and_mark(own, None)
    }

    /// As [`Template::check`]; also writes a code point into an IP header, unless it is `None`.
    #[inline]
    pub(crate) fn check_and_mark<'a>(
        &self,
        own: &'a mut [u8],
        code_point: Option<Dscp>,
    ) -> Result<Checked<'a>, Forbidden> {
        match self.allows(own, own.len()) {
            true => {
                self.complete(own, code_point);
                Ok(Checked(own))
            }
            false => Err(self.explain(own, own.len())),
        }
    }

    /// Writes the code point and the Ethernet addresses into headers that the template allows.
    #[inline(always)]
    fn complete(&self, own: &mut [u8], code_point: Option<Dscp>) {
        if let (Some(code_point), Layout::Ip(family, _)) = (code_point, self.layout) {
            write_code_point(own, family, code_point);
        }
        if let Some(next_hop) = self.addresses.next_hop {
            own[..6].copy_from_slice(&next_hop.0);
        }
        own[6..ETHERTYPE_AT].copy_from_slice(&self.addresses.mac.0);
    }

    /// Changes the link's address, the flow's next hop (if it is fixed and `next_hop` is `Some`),
    /// and the longest frame. The longest frame stays at least as long as the headers.
    pub(crate) fn readdress(&mut self, mac: Mac, next_hop: Option<Mac>, longest: usize) {
        self.addresses.mac = mac;
        if self.addresses.next_hop.is_some() && next_hop.is_some() {
            self.addresses.next_hop = next_hop;
        }
        self.longest = longest.max(self.headers);
    }

    /// Whether the program sets the next hop of its frames.
    pub(crate) fn program_sets_next_hop(&self) -> bool {
        self.addresses.next_hop.is_none()
    }

    /// Whether the frames are segments of TCP.
    pub(crate) fn is_tcp(&self) -> bool {
        matches!(self.layout, Layout::Ip(_, Some(Transport::Tcp)))
    }

    /// Offset of the header of TCP in the frames of a flow with one remote endpoint; `None` for
    /// another flow.
    pub(crate) fn connection(&self) -> Option<usize> {
        self.tcp_at().filter(|_| !self.any_destination)
    }

    /// Offset of the header of TCP in the frames of the flow; `None` for a flow of another
    /// protocol.
    pub(crate) fn tcp_at(&self) -> Option<usize> {
        match self.layout {
            Layout::Ip(family, Some(Transport::Tcp)) => Some(family.headers_end()),
            _ => None,
        }
    }

    /// Writes the headers of a segment of this flow that has no options and no payload, and returns
    /// its length in bytes. The addresses, ports and lengths are set, and the fields of TCP behind
    /// the ports are zero. `to` is the destination, for a flow to any host. `own` has room for a
    /// frame.
    pub(crate) fn write_headers(&self, own: &mut [u8], to: Option<&Destination>) -> usize {
        let length = self.headers;
        own[..length].fill(0);
        let fixed = length.min(HEAD);
        own[..fixed].copy_from_slice(&self.expected[..fixed]);
        if let Some(next_hop) = self.addresses.next_hop {
            own[..6].copy_from_slice(&next_hop.0);
        }
        if let (Some(to), Layout::Ip(family, _)) =
            (to.filter(|_| self.any_destination), self.layout)
        {
            own[..6].copy_from_slice(&to.mac.0);
            let (at, bytes) = match family {
                Family::V4 => (V4_DESTINATION, &to.address[..4]),
                Family::V6 => (V6_DESTINATION, &to.address[..]),
            };
            own[at..at + bytes.len()].copy_from_slice(bytes);
            let at = family.headers_end() + 2;
            own[at..at + 2].copy_from_slice(&to.port.to_be_bytes());
        }
        let total = |from: usize| ((length - from) as u16).to_be_bytes();
        match self.layout {
            Layout::Ip(Family::V4, _) => {
                own[V4_LENGTH..V4_LENGTH + 2].copy_from_slice(&total(ETHERNET));
                own[V4_FLAGS] = DONT_FRAGMENT;
                own[V4_HOPS] = HOP_LIMIT;
                let sum = checksum(&own[ETHERNET..V4_END]);
                own[V4_CHECKSUM..V4_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
            }
            Layout::Ip(Family::V6, _) => {
                own[V6_LENGTH..V6_LENGTH + 2].copy_from_slice(&total(V6_END));
                own[V6_HOPS] = HOP_LIMIT;
            }
            Layout::Ethernet => {}
        }
        length
    }

    /// Length of all checked headers; shorter packets are forbidden.
    #[cfg(test)]
    pub(crate) fn headers(&self) -> usize {
        self.headers
    }

    /// The longest allowed frame in bytes, with the Ethernet header.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Whether a frame of `length` bytes may leave. `own` is the beginning of the frame, with all
    /// headers that are checked.
    #[inline(always)]
    fn allows(&self, own: &[u8], length: usize) -> bool {
        if length < self.headers || length > self.longest {
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
            sum | ((head[at] ^ self.expected[at]) & self.mask[at])
        });
        differs == 0 && self.lengths_agree(head, own, length) && self.destination_is_single(head)
    }

    /// The checks that a mask cannot express.
    #[inline(always)]
    fn lengths_agree(&self, head: &[u8; HEAD], own: &[u8], length: usize) -> bool {
        let is = |at, from: usize| usize::from(be16(head, at)) == length - from;
        let transport_agrees = |transport, end: usize| match transport {
            Some(Transport::Udp) => is(end + 4, end),
            Some(Transport::Tcp) => {
                let header = usize::from(own[end + TCP_OFFSET_AT] >> 4) * 4;
                header >= Transport::Tcp.header() && header <= length - end
            }
            None => true,
        };
        match self.layout {
            Layout::Ethernet => true,
            Layout::Ip(Family::V4, transport) => {
                is(V4_LENGTH, ETHERNET)
                    && head[V4_HOPS] != 0
                    && transport_agrees(transport, V4_END)
                    && checksum(&head[ETHERNET..V4_END]) == 0
            }
            Layout::Ip(Family::V6, transport) => {
                is(V6_LENGTH, V6_END) && head[V6_HOPS] != 0 && transport_agrees(transport, V6_END)
            }
        }
    }

    #[inline(always)]
    fn destination_is_single(&self, head: &[u8; HEAD]) -> bool {
        match self.layout {
            _ if !self.any_destination => true,
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
        self.expected[at] = value;
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
            None => self.any_destination = true,
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

    /// The first violation, in the order of the headers; a wrong length if there is no other.
    #[cold]
    fn explain(&self, own: &[u8], length: usize) -> Forbidden {
        if own.len() < self.headers {
            return Forbidden::Short;
        }
        if length > self.longest {
            return Forbidden::Long;
        }
        let differs = |at: &usize| (own[*at] ^ self.expected[*at]) & self.mask[*at] != 0;
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
        // Only the lengths are left.
        named.unwrap_or(Forbidden::Length)
    }

    /// The field at this offset.
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

/// Checks that the remote address has the version of the local one and can be a destination, and
/// that a group has the next hop of a group.
fn reachable(local: IpAddr, remote: IpAddr, next_hop: Option<Mac>) -> Result<(), BadSender> {
    if Family::of(local) != Family::of(remote) {
        return Err(BadSender::Families { local, remote });
    }
    let is_broadcast = matches!(remote, IpAddr::V4(v4) if v4.is_broadcast());
    let is_group = remote.is_multicast() || is_broadcast;
    match next_hop {
        None if is_group => Err(BadSender::Group(remote)),
        // A network's broadcast address cannot be recognised, since the prefix is unknown.
        Some(next_hop) if is_group && !next_hop.is_group() => {
            Err(BadSender::NextHop { remote, next_hop })
        }
        _ if !is_group && !is_one_host(remote) => Err(BadSender::Remote(remote)),
        _ => Ok(()),
    }
}

/// Number of bytes that are compared under the mask. They hold all headers of UDP over IPv6, and
/// the ports of TCP; a flow chooses the bytes of TCP's header beyond them freely.
const HEAD: usize = 64;
const DONT_FRAGMENT: u8 = 0x40;
/// The hop limit of segments that the driver makes.
const HOP_LIMIT: u8 = 64;
const V4_LENGTH: usize = ETHERNET + 2;
const V4_FLAGS: usize = ETHERNET + 6;
const V4_HOPS: usize = ETHERNET + 8;
const V4_PROTOCOL: usize = ETHERNET + 9;
const V4_CHECKSUM: usize = ETHERNET + 10;
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
