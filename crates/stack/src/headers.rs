//! Composes the headers of a flow once ([`Headers`]), from its addresses ([`FlowAddress`]). Fails
//! with an [`AddressError`] if the addresses have different families or the MTU is too small.
//! [`Headers::write`] copies the composed headers to a packet, and sets the few fields that depend
//! on the packet's length and bytes (paper VERT, section 4.2).
//!
//! A `Layer` writes the header of one protocol, and returns a `Fixup` if fields of the header
//! depend on the packet. [`Headers::headroom`] is the size of all headers; the program writes the
//! payload behind that many bytes, in place.
//!
//! IPv4 packets have "don't fragment" and identification 0; RFC 6864 permits any identification for
//! packets that are never fragmented. [`Headers::longest`] is the longest payload that fits in the
//! MTU. There are no options and no extension headers, because the driver refuses them.

use std::net::{IpAddr, SocketAddr};

use crate::checksum::Sum;

/// The addresses of a flow on its link, and what else its headers contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowAddress {
    /// Local endpoint.
    pub local: SocketAddr,
    /// Remote endpoint, of the same address family.
    pub remote: SocketAddr,
    /// Hardware address of the link.
    pub local_mac: [u8; 6],
    /// Hardware address of the next hop.
    pub next_hop: [u8; 6],
    /// Length of the longest IP packet, in bytes.
    pub mtu: u16,
    /// TTL or hop limit of sent packets.
    pub hops: u8,
}

/// Why the headers of a flow cannot be composed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// One endpoint is IPv4 and the other IPv6.
    #[error("{local} and {remote} have different address families")]
    Family {
        /// Local endpoint.
        local: SocketAddr,
        /// Remote endpoint.
        remote: SocketAddr,
    },
    /// The MTU leaves no room for a payload.
    #[error("an MTU of {mtu} bytes leaves no room for a payload: the headers have {headers} bytes")]
    Mtu {
        /// The MTU.
        mtu: u16,
        /// Bytes of the IP and UDP headers.
        headers: usize,
    },
}

/// The composed headers of a flow.
#[derive(Clone, Debug)]
pub struct Headers {
    template: [u8; MAX_HEADROOM],
    headroom: u16,
    longest: u16,
    /// Of the layers behind Ethernet.
    fixups: [Option<Fixup>; MAX_LAYERS - 1],
}

impl Headers {
    /// Composes the headers for Ethernet, IPv4 or IPv6, and UDP.
    ///
    /// # Errors
    /// If the addresses are not of one family, or the MTU is too small.
    pub fn udp(address: &FlowAddress) -> Result<Headers, AddressError> {
        let network = Layer::network(address, UDP)?;
        let transport = Layer::Udp {
            from: address.local.port(),
            to: address.remote.port(),
            pseudo: network.pseudo(),
        };
        let link = Layer::link(address, network.ether_type());
        Headers::compose(&[link, network, transport], address.mtu).with_room(address.mtu)
    }

    /// Composes the headers for Ethernet, and IPv4 or IPv6 with this protocol. The ports are
    /// ignored.
    ///
    /// # Errors
    /// As [`Headers::udp`].
    pub fn ip(address: &FlowAddress, protocol: u8) -> Result<Headers, AddressError> {
        let network = Layer::network(address, protocol)?;
        let link = Layer::link(address, network.ether_type());
        Headers::compose(&[link, network], address.mtu).with_room(address.mtu)
    }

    /// Composes an Ethernet header with this EtherType. The IP addresses are ignored.
    pub fn ethernet(address: &FlowAddress, number: u16) -> Headers {
        Headers::compose(&[Layer::link(address, number)], address.mtu)
    }

    /// Fails if the MTU leaves no room for a payload.
    fn with_room(self, mtu: u16) -> Result<Headers, AddressError> {
        match self.longest {
            0 => Err(AddressError::Mtu {
                mtu,
                headers: self.headroom() - ETHERNET,
            }),
            _ => Ok(self),
        }
    }

    /// Number of bytes of all headers in front of the payload.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.headroom.into()
    }

    /// The Ethernet address to which the packets are sent.
    pub fn next_hop(&self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.template;
        [a, b, c, d, e, f]
    }

    /// Sends packets to this Ethernet address from now on.
    pub fn set_next_hop(&mut self, next_hop: [u8; 6]) {
        self.template[..6].copy_from_slice(&next_hop);
    }

    /// Length of the longest payload that fits in the MTU, in bytes.
    #[inline]
    pub fn longest(&self) -> usize {
        self.longest.into()
    }

    /// Writes the headers of a packet. `frame` is the whole frame, with the payload behind the
    /// headroom.
    ///
    /// # Panics
    /// If the frame is shorter than the headroom, or has more than 65,535 bytes behind the Ethernet
    /// header.
    #[inline]
    pub fn write(&self, frame: &mut [u8]) {
        assert!(frame.len() <= ETHERNET + usize::from(u16::MAX));
        let headroom = self.headroom();
        frame[..headroom].copy_from_slice(&self.template[..headroom]);
        // Inner headers first: they are complete when an outer layer is written.
        for fixup in self.fixups.iter().rev().flatten() {
            fixup.apply(frame);
        }
    }

    fn compose(layers: &[Layer], mtu: u16) -> Headers {
        let mut headers = Headers {
            template: [0; MAX_HEADROOM],
            headroom: 0,
            longest: 0,
            fixups: [None; MAX_LAYERS - 1],
        };
        for (number, layer) in layers.iter().enumerate() {
            let at = headers.headroom;
            headers.headroom += layer.bytes();
            let place = usize::from(at)..usize::from(headers.headroom);
            let fixup = layer.write(&mut headers.template[place], at);
            // Ethernet has none.
            if let Some(behind) = number.checked_sub(1) {
                headers.fixups[behind] = fixup;
            }
        }
        headers.longest = mtu.saturating_sub(headers.headroom - ETHERNET as u16);
        headers
    }
}

/// The header of one protocol.
#[derive(Clone, Copy, Debug)]
enum Layer {
    Ethernet {
        from: [u8; 6],
        to: [u8; 6],
        kind: u16,
    },
    Ipv4 {
        from: [u8; 4],
        to: [u8; 4],
        protocol: u8,
        hops: u8,
    },
    Ipv6 {
        from: [u8; 16],
        to: [u8; 16],
        protocol: u8,
        hops: u8,
    },
    Udp {
        from: u16,
        to: u16,
        pseudo: Sum,
    },
}

/// The fields that depend on the packet. `at` is the offset of the layer's header.
#[derive(Clone, Copy, Debug)]
enum Fixup {
    /// Total length and header checksum. `header` is the sum of the header without the length.
    Ipv4 { at: u16, header: Sum },
    /// Payload length.
    Ipv6 { at: u16 },
    /// Length and checksum. `pseudo` is the sum of the addresses, the protocol and the ports.
    Udp { at: u16, pseudo: Sum },
}

impl Layer {
    /// The IP header of a flow. Fails if the addresses are of two families.
    fn network(address: &FlowAddress, protocol: u8) -> Result<Layer, AddressError> {
        let FlowAddress { local, remote, .. } = *address;
        let hops = address.hops;
        match (local.ip(), remote.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Ok(Layer::Ipv4 {
                from: from.octets(),
                to: to.octets(),
                protocol,
                hops,
            }),
            (IpAddr::V6(from), IpAddr::V6(to)) => Ok(Layer::Ipv6 {
                from: from.octets(),
                to: to.octets(),
                protocol,
                hops,
            }),
            _ => Err(AddressError::Family { local, remote }),
        }
    }

    /// The Ethernet header of a flow.
    fn link(address: &FlowAddress, kind: u16) -> Layer {
        Layer::Ethernet {
            from: address.local_mac,
            to: address.next_hop,
            kind,
        }
    }

    fn bytes(&self) -> u16 {
        match self {
            Layer::Ethernet { .. } => ETHERNET as u16,
            Layer::Ipv4 { .. } => 20,
            Layer::Ipv6 { .. } => 40,
            Layer::Udp { .. } => 8,
        }
    }

    fn ether_type(&self) -> u16 {
        match self {
            Layer::Ipv6 { .. } => 0x86dd,
            _ => 0x0800,
        }
    }

    /// The sum of the pseudo header without the length (RFC 768; RFC 8200, section 8.1).
    fn pseudo(&self) -> Sum {
        match self {
            Layer::Ipv4 { from, to, .. } => pseudo(from, to),
            Layer::Ipv6 { from, to, .. } => pseudo(from, to),
            _ => Sum::default(),
        }
    }

    fn write(&self, header: &mut [u8], at: u16) -> Option<Fixup> {
        match self {
            Layer::Ethernet { from, to, kind } => {
                header[..6].copy_from_slice(to);
                header[6..12].copy_from_slice(from);
                header[12..14].copy_from_slice(&kind.to_be_bytes());
                None
            }
            Layer::Ipv4 {
                from,
                to,
                protocol,
                hops,
            } => {
                header[0] = 0x45;
                // Don't fragment.
                header[6] = 0x40;
                header[8] = *hops;
                header[9] = *protocol;
                header[12..16].copy_from_slice(from);
                header[16..20].copy_from_slice(to);
                let header = Sum::default().add(header);
                Some(Fixup::Ipv4 { at, header })
            }
            Layer::Ipv6 {
                from,
                to,
                protocol,
                hops,
            } => {
                header[0] = 0x60;
                header[6] = *protocol;
                header[7] = *hops;
                header[8..24].copy_from_slice(from);
                header[24..40].copy_from_slice(to);
                Some(Fixup::Ipv6 { at })
            }
            Layer::Udp { from, to, pseudo } => {
                header[..2].copy_from_slice(&from.to_be_bytes());
                header[2..4].copy_from_slice(&to.to_be_bytes());
                let pseudo = pseudo.add(&header[..4]);
                Some(Fixup::Udp { at, pseudo })
            }
        }
    }
}

impl Fixup {
    #[inline]
    fn apply(&self, frame: &mut [u8]) {
        // `Headers::write` checked that the length fits in 16 bits.
        let behind = |at: usize| (frame.len() - at) as u16;
        match *self {
            Fixup::Ipv4 { at, header } => {
                let at = usize::from(at);
                let length = behind(at);
                frame[at + 2..at + 4].copy_from_slice(&length.to_be_bytes());
                let checksum = header.word(length).checksum();
                frame[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
            }
            Fixup::Ipv6 { at } => {
                let at = usize::from(at);
                let length = behind(at + 40);
                frame[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
            }
            Fixup::Udp { at, pseudo } => {
                let at = usize::from(at);
                let length = behind(at);
                frame[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
                let sum = pseudo.word(length).word(length).add(&frame[at + 8..]);
                // A checksum field of 0 means that there is no checksum (RFC 768).
                let checksum = match sum.checksum() {
                    0 => 0xffff,
                    other => other,
                };
                frame[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
            }
        }
    }
}

/// The sum of the pseudo header of UDP without the length: the addresses and the protocol.
pub(crate) fn pseudo(from: &[u8], to: &[u8]) -> Sum {
    pseudo_of(from, to, UDP)
}

/// As [`pseudo`], for another protocol.
pub(crate) fn pseudo_of(from: &[u8], to: &[u8], protocol: u8) -> Sum {
    Sum::default().add(from).add(to).word(protocol.into())
}

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Protocol number of UDP.
pub(crate) const UDP: u8 = 17;
const MAX_LAYERS: usize = 3;
/// Bytes of the longest headers: Ethernet, IPv6 and UDP.
pub(crate) const MAX_HEADROOM: usize = ETHERNET + 40 + 8;

#[cfg(test)]
mod tests;
