//! Builds well-formed frames for tests, by etherparse, an implementation independent of this crate;
//! and corrects the lengths and the checksums of altered frames. A call panics if its addresses
//! or lengths do not describe a packet.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header,
    NetSlice, SlicedPacket, TcpHeader, TransportSlice, UdpHeader,
};

use crate::frame::Mac;
use crate::protocol::Transport;

/// The Ethernet address of the driver's interface in tests.
pub(crate) const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// The Ethernet address of another host on the link.
pub(crate) const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// A well-formed datagram on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) macs: (Mac, Mac),
    pub(crate) transport: Transport,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) id: u16,
    pub(crate) data: Vec<u8>,
}

/// The address and the port in `text`. Panics if it has none.
pub(crate) fn endpoint(text: &str) -> SocketAddr {
    text.parse().expect("an address and a port")
}

/// A UDP datagram that this host sends, from `from` to `to`.
pub(crate) fn udp(from: &str, to: &str) -> Datagram {
    Datagram {
        macs: (OWN, PEER),
        transport: Transport::Udp,
        from: endpoint(from),
        to: endpoint(to),
        id: 7,
        data: b"payload".to_vec(),
    }
}

impl Datagram {
    /// The same datagram as received by this host.
    pub(crate) fn received(mut self) -> Datagram {
        self.macs = (PEER, OWN);
        self
    }

    /// The same datagram with this payload.
    pub(crate) fn data(mut self, data: &[u8]) -> Datagram {
        self.data = data.to_vec();
        self
    }

    /// The same datagram with this IP identification.
    pub(crate) fn id(mut self, id: u16) -> Datagram {
        self.id = id;
        self
    }

    /// The whole datagram in one frame.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let payload = self.ip_payload();
        self.packet(0, false, &payload, false)
    }

    /// The datagram in fragments of `room` payload bytes each (a multiple of eight).
    pub(crate) fn fragments(&self, room: usize) -> Vec<Vec<u8>> {
        let payload = self.ip_payload();
        let count = payload.len().div_ceil(room);
        let chunks = payload.chunks(room).enumerate();
        chunks
            .map(|(k, bytes)| self.packet(k * room, k + 1 < count, bytes, true))
            .collect()
    }

    fn ip_payload(&self) -> Vec<u8> {
        let mut packet = match self.transport {
            Transport::Udp => {
                let header = UdpHeader {
                    source_port: self.from.port(),
                    destination_port: self.to.port(),
                    length: (8 + self.data.len()) as u16,
                    checksum: 0,
                };
                header.to_bytes().to_vec()
            }
            Transport::Tcp => TcpHeader::new(self.from.port(), self.to.port(), 1, 1000)
                .to_bytes()
                .to_vec(),
        };
        packet.extend(&self.data);
        packet
    }

    fn packet(&self, offset: usize, more: bool, bytes: &[u8], is_fragment: bool) -> Vec<u8> {
        let offset = IpFragOffset::try_new((offset / 8) as u16).expect("a datagram's offset");
        let number = IpNumber(self.transport.number());
        let mut frame = Vec::new();
        let ether_type = match self.from {
            SocketAddr::V4(_) => EtherType::IPV4,
            SocketAddr::V6(_) => EtherType::IPV6,
        };
        let ethernet = Ethernet2Header {
            source: self.macs.0.0,
            destination: self.macs.1.0,
            ether_type,
        };
        frame.extend(ethernet.to_bytes());
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let length = bytes.len() as u16;
                let mut header = Ipv4Header::new(length, 64, number, from.octets(), to.octets())
                    .expect("a short packet");
                header.identification = self.id;
                header.dont_fragment = !is_fragment;
                header.more_fragments = more;
                header.fragment_offset = offset;
                header.header_checksum = header.calc_header_checksum();
                frame.extend(header.to_bytes());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let extension =
                    Ipv6FragmentHeader::new(number, offset, more, u32::from(self.id)).to_bytes();
                let extension = if is_fragment { &extension[..] } else { &[] };
                let header = Ipv6Header {
                    payload_length: (bytes.len() + extension.len()) as u16,
                    next_header: if is_fragment {
                        IpNumber::IPV6_FRAGMENTATION_HEADER
                    } else {
                        number
                    },
                    hop_limit: 64,
                    source: from.octets(),
                    destination: to.octets(),
                    ..Ipv6Header::default()
                };
                frame.extend(header.to_bytes());
                frame.extend(extension);
            }
            _ => panic!("{} and {} differ in family", self.from, self.to),
        }
        frame.extend(bytes);
        frame
    }
}

/// Corrects the IPv4 header's checksum, if there is such a header.
pub(crate) fn mend_checksum(frame: &mut [u8]) {
    let Some(header) = frame.get(14..) else {
        return;
    };
    let length = header
        .first()
        .map_or(0, |first| usize::from(first & 15) * 4);
    if header.first().is_some_and(|first| first >> 4 == 4) && (20..=header.len()).contains(&length)
    {
        frame[24..26].fill(0);
        let sum = crate::frame::checksum(&frame[14..14 + length]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Corrects the checksum of TCP in a frame without IP options. Panics if it is no segment of TCP.
pub(crate) fn complete_tcp(frame: &mut [u8]) {
    let (at, sum) = {
        let packet = SlicedPacket::from_ethernet(frame).expect("a packet");
        let Some(TransportSlice::Tcp(tcp)) = &packet.transport else {
            panic!("no TCP: {packet:?}");
        };
        let (header, payload) = (tcp.to_header(), tcp.payload());
        match &packet.net {
            Some(NetSlice::Ipv4(ip)) => {
                let sum = header.calc_checksum_ipv4(&ip.header().to_header(), payload);
                (34, sum)
            }
            Some(NetSlice::Ipv6(ip)) => {
                let sum = header.calc_checksum_ipv6(&ip.header().to_header(), payload);
                (54, sum)
            }
            other => panic!("no IP: {other:?}"),
        }
    };
    let sum = sum.expect("a short packet").to_be_bytes();
    frame[at + 16..at + 18].copy_from_slice(&sum);
}

/// Corrects the lengths in a frame's headers: IP's, and UDP's if the packet is no fragment.
pub(crate) fn mend_lengths(frame: &mut [u8]) {
    let all = frame.len();
    let (at, behind_ip, is_udp) = match frame.get(12..14) {
        Some([8, 0]) if all >= 34 => {
            let is_fragment = frame[20] & 0x3f != 0 || frame[21] != 0;
            let behind_ip = 14 + usize::from(frame[14] & 15) * 4;
            (16, behind_ip, frame[23] == 17 && !is_fragment)
        }
        Some([0x86, 0xdd]) if all >= 54 => (18, 54, frame[20] == 17),
        _ => return,
    };
    let from = if at == 16 { 14 } else { 54 };
    frame[at..at + 2].copy_from_slice(&((all - from) as u16).to_be_bytes());
    if is_udp && all >= behind_ip + 8 {
        let length = (all - behind_ip) as u16;
        frame[behind_ip + 4..behind_ip + 6].copy_from_slice(&length.to_be_bytes());
    }
}
