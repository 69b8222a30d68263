//! Selects packets of a capture by a description ([`Flow`]) such as
//! `udp from 10.0.0.1:5000 to [fd00::2]:6000`.
//!
//! Each part can be absent, but not all; an end can be an address or a port alone (`to :443`). A
//! packet without a described property (no IP, another protocol) does not match. Only the first
//! fragment of a datagram has ports; `check` selects the other fragments if the first one matches.
//! Fails if the link type of the capture is unknown ([`UnknownLink`]) or the description does not
//! parse ([`FlowError`]).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use etherparse::{EtherType, IpNumber, Ipv6ExtensionSlice, LaxNetSlice, LaxSlicedPacket};
use netnice_core::Escaped;
use pcap_parser::Linktype;

/// A description of packets; a packet matches if all parts that are present match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    protocol: Option<Protocol>,
    from: Option<Endpoint>,
    to: Option<Endpoint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

/// One end of a flow: an address, a port or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Endpoint {
    address: Option<IpAddr>,
    port: Option<u16>,
}

impl Flow {
    /// True if a packet matches the description. Fails if the link type is unknown.
    pub(super) fn matches(&self, link: Linktype, data: &[u8]) -> Result<bool, UnknownLink> {
        let Some(headers) = Headers::parse(link, data)? else {
            return Ok(false);
        };
        let protocol = match self.protocol {
            None => true,
            Some(Protocol::Tcp) => headers.protocol == IpNumber::TCP,
            Some(Protocol::Udp) => headers.protocol == IpNumber::UDP,
        };
        let endpoint = |endpoint: &Option<Endpoint>, address, port| match endpoint {
            None => true,
            Some(endpoint) => {
                endpoint.address.is_none_or(|wanted| wanted == address)
                    && endpoint.port.is_none_or(|wanted| port == Some(wanted))
            }
        };
        let (from, to) = (headers.ports.map(|p| p.0), headers.ports.map(|p| p.1));
        Ok(protocol
            && endpoint(&self.from, headers.from, from)
            && endpoint(&self.to, headers.to, to))
    }
}

/// The properties of an IP packet that identify its datagram, and its place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IpPacket {
    /// Number of bytes behind the IP headers, as the headers give it.
    pub bytes: u32,
    /// For a fragment: its offset in the datagram in bytes; else 0.
    pub offset: u32,
    /// True if the packet ends the datagram.
    pub is_last: bool,
    key: DatagramKey,
}

/// Identifies the fragments of one datagram (RFC 791, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DatagramKey {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    number: u32,
}

impl IpPacket {
    /// The key of the datagram if this packet is a fragment, else `None`.
    pub(super) fn fragment_of(&self) -> Option<DatagramKey> {
        (self.offset > 0 || !self.is_last).then_some(self.key)
    }

    /// Parses a packet; `None` if the packet is not IP. Fails if the link type is unknown.
    pub(super) fn parse(link: Linktype, data: &[u8]) -> Result<Option<IpPacket>, UnknownLink> {
        let packet = slice(link, data)?;
        Ok(packet.and_then(|packet| IpPacket::of(packet.net.as_ref()?)))
    }

    fn of(net: &LaxNetSlice<'_>) -> Option<IpPacket> {
        match net {
            LaxNetSlice::Ipv4(ip) => {
                let header = ip.header();
                Some(IpPacket {
                    bytes: u32::from(header.payload_len().ok()?),
                    offset: u32::from(header.fragments_offset().byte_offset()),
                    is_last: !header.more_fragments(),
                    key: DatagramKey {
                        from: IpAddr::V4(header.source_addr()),
                        to: IpAddr::V4(header.destination_addr()),
                        protocol: header.protocol().0,
                        number: u32::from(header.identification()),
                    },
                })
            }
            LaxNetSlice::Ipv6(ip) => {
                let (header, more) = (ip.header(), ip.extensions());
                let fragment = more.clone().into_iter().find_map(|one| match one {
                    Ipv6ExtensionSlice::Fragment(fragment) => Some(fragment),
                    _ => None,
                });
                let bytes = usize::from(header.payload_length()).checked_sub(more.slice().len())?;
                let offset = fragment
                    .as_ref()
                    .map(|one| one.fragment_offset().byte_offset());
                Some(IpPacket {
                    bytes: u32::try_from(bytes).ok()?,
                    offset: u32::from(offset.unwrap_or(0)),
                    is_last: fragment.as_ref().is_none_or(|one| !one.more_fragments()),
                    key: DatagramKey {
                        from: IpAddr::V6(header.source_addr()),
                        to: IpAddr::V6(header.destination_addr()),
                        protocol: 0,
                        number: fragment.map_or(0, |one| one.identification()),
                    },
                })
            }
            LaxNetSlice::Arp(_) => None,
        }
    }
}

/// Parses a packet as far as possible.
fn slice(link: Linktype, data: &[u8]) -> Result<Option<LaxSlicedPacket<'_>>, UnknownLink> {
    Ok(match link {
        Linktype::ETHERNET => LaxSlicedPacket::from_ethernet(data).ok(),
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => LaxSlicedPacket::from_ip(data).ok(),
        Linktype::NULL | Linktype::LOOP => slice_after(data, 4, None),
        Linktype::LINUX_SLL => slice_after(data, 16, Some(14)),
        Linktype::LINUX_SLL2 => slice_after(data, 20, Some(0)),
        other => return Err(UnknownLink(other.0)),
    })
}

/// The headers that identify the flow of a packet.
struct Headers {
    protocol: IpNumber,
    from: IpAddr,
    to: IpAddr,
    /// Source and destination port of TCP or UDP.
    ports: Option<(u16, u16)>,
}

impl Headers {
    fn parse(link: Linktype, data: &[u8]) -> Result<Option<Headers>, UnknownLink> {
        Ok(slice(link, data)?.and_then(|packet| Headers::of(&packet)))
    }

    fn of(packet: &LaxSlicedPacket<'_>) -> Option<Headers> {
        let (from, to, payload) = match packet.net.as_ref()? {
            LaxNetSlice::Ipv4(ip) => {
                let header = ip.header();
                let (from, to) = (header.source_addr(), header.destination_addr());
                (IpAddr::V4(from), IpAddr::V4(to), ip.payload())
            }
            LaxNetSlice::Ipv6(ip) => {
                let header = ip.header();
                let (from, to) = (header.source_addr(), header.destination_addr());
                (IpAddr::V6(from), IpAddr::V6(to), ip.payload())
            }
            LaxNetSlice::Arp(_) => return None,
        };
        let protocol = payload.ip_number;
        // TCP and UDP begin with both ports, so the ports are known even if the rest was cut off.
        // Only the first fragment has ports.
        let is_first = IpPacket::of(packet.net.as_ref()?).is_none_or(|packet| packet.offset == 0);
        let has_ports = matches!(protocol, IpNumber::TCP | IpNumber::UDP) && is_first;
        let ports = match payload.payload {
            [a, b, c, d, ..] if has_ports => {
                Some((u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])))
            }
            _ => None,
        };
        Some(Headers {
            protocol,
            from,
            to,
            ports,
        })
    }
}

/// Parses a packet behind a link header of fixed length. `kind` is the offset of the EtherType in
/// that header; without one, IP follows.
fn slice_after(data: &[u8], length: usize, kind: Option<usize>) -> Option<LaxSlicedPacket<'_>> {
    let rest = data.get(length..)?;
    match kind {
        None => LaxSlicedPacket::from_ip(rest).ok(),
        Some(at) => {
            let kind = u16::from_be_bytes([*data.get(at)?, *data.get(at + 1)?]);
            Some(LaxSlicedPacket::from_ether_type(EtherType(kind), rest))
        }
    }
}

/// The link type of the capture is unknown, so its packets cannot be matched. Holds the number of
/// the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is a capture of link type {0}, which --flow does not support: check it without --flow")]
pub(crate) struct UnknownLink(i32);

/// The description does not parse. Holds the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--flow: {} is not a flow: write [tcp|udp] [from ADDRESS[:PORT]] [to ADDRESS[:PORT]], \
         IPv6 with a port as [::1]:80, a port alone as :80", Escaped(.0))]
pub(crate) struct FlowError(String);

impl FromStr for Flow {
    type Err = FlowError;

    fn from_str(text: &str) -> Result<Flow, FlowError> {
        let error = || FlowError(text.to_string());
        let mut flow = Flow::default();
        let mut words = text.split_whitespace().peekable();
        flow.protocol = match words.peek() {
            Some(&"tcp") => Some(Protocol::Tcp),
            Some(&"udp") => Some(Protocol::Udp),
            _ => None,
        };
        if flow.protocol.is_some() {
            words.next();
        }
        while let Some(word) = words.next() {
            let endpoint = match word {
                "from" => &mut flow.from,
                "to" => &mut flow.to,
                _ => return Err(error()),
            };
            let value = words.next().and_then(parse_endpoint).ok_or_else(error)?;
            if endpoint.replace(value).is_some() {
                return Err(error());
            }
        }
        match flow == Flow::default() {
            true => Err(error()),
            false => Ok(flow),
        }
    }
}

fn parse_endpoint(text: &str) -> Option<Endpoint> {
    if let Ok(address) = text.parse() {
        return Some(Endpoint {
            address: Some(address),
            port: None,
        });
    }
    if let Ok(both) = text.parse::<SocketAddr>() {
        return Some(Endpoint {
            address: Some(both.ip()),
            port: Some(both.port()),
        });
    }
    let port = text.strip_prefix(':')?.parse().ok()?;
    Some(Endpoint {
        address: None,
        port: Some(port),
    })
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            None => "packets",
            Some(Protocol::Tcp) => "tcp",
            Some(Protocol::Udp) => "udp",
        };
        f.write_str(protocol)?;
        for (word, endpoint) in [("from", &self.from), ("to", &self.to)] {
            match endpoint {
                None => {}
                Some(Endpoint {
                    address: Some(ip),
                    port: Some(port),
                }) => {
                    write!(f, " {word} {}", SocketAddr::new(*ip, *port))?;
                }
                Some(Endpoint {
                    address: Some(ip),
                    port: None,
                }) => write!(f, " {word} {ip}")?,
                Some(Endpoint {
                    address: None,
                    port,
                }) => {
                    write!(f, " {word} :{}", port.unwrap_or_default())?;
                }
            }
        }
        Ok(())
    }
}
