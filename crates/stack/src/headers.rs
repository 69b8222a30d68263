//! The headers of a flow, composed once: every packet gets a copy of one template, with the few fields set that
//! depend on its length and its bytes.
//!
//! A [`Layer`] writes its header into the template, and leaves a [`Step`] for what cannot be known before the payload
//! is there. The room of all layers together is [`Headers::room`]; a payload is written behind it, in place.
//!
//! IPv4 packets carry "don't fragment" and identification 0, as RFC 6864 has it for packets that are never cut; what is
//! longer than the link's MTU is refused ([`Headers::longest`]). There are no options and no extension headers, which
//! the driver would refuse.

use std::net::{IpAddr, SocketAddr};

use crate::checksum::Sum;

/// The addresses of a flow on its link, as the driver gave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowAddress {
    /// This side's address and port.
    pub local: SocketAddr,
    /// The other side's; of the same family.
    pub remote: SocketAddr,
    /// Hardware address of the link.
    pub local_mac: [u8; 6],
    /// Hardware address of the next hop.
    pub next_hop: [u8; 6],
    /// Bytes of an IP packet at most.
    pub mtu: u16,
    /// TTL, or hop limit.
    pub hops: u8,
}

/// Why no headers can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// One is IPv4 and the other IPv6.
    #[error("{local} and {remote} are not of one family")]
    Family {
        /// This side.
        local: SocketAddr,
        /// The other side.
        remote: SocketAddr,
    },
    /// No room for a payload.
    #[error("an MTU of {mtu} has no room for headers of {headers} bytes and a payload")]
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
    template: [u8; MAX_ROOM],
    room: usize,
    longest: usize,
    steps: [Option<Step>; MAX_LAYERS],
}

impl Headers {
    /// Ethernet, IPv4 or IPv6, UDP.
    ///
    /// # Errors
    /// If the addresses are not of one family, or the MTU is too small.
    pub fn udp(address: &FlowAddress) -> Result<Headers, AddressError> {
        let FlowAddress { local, remote, .. } = *address;
        let network = match (local.ip(), remote.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Layer::Ipv4 {
                from: from.octets(),
                to: to.octets(),
                hops: address.hops,
            },
            (IpAddr::V6(from), IpAddr::V6(to)) => Layer::Ipv6 {
                from: from.octets(),
                to: to.octets(),
                hops: address.hops,
            },
            _ => return Err(AddressError::Family { local, remote }),
        };
        let link = Layer::Ethernet {
            from: address.local_mac,
            to: address.next_hop,
            kind: network.ether_type(),
        };
        let transport = Layer::Udp {
            from: local.port(),
            to: remote.port(),
            pseudo: network.pseudo(),
        };
        let headers = Headers::compose(&[link, network, transport], address.mtu);
        match headers.longest {
            0 => Err(AddressError::Mtu {
                mtu: address.mtu,
                headers: headers.room - ETHERNET,
            }),
            _ => Ok(headers),
        }
    }

    /// Bytes in front of the payload.
    #[inline]
    pub fn room(&self) -> usize {
        self.room
    }

    /// Bytes of payload at most.
    #[inline]
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Writes the headers of a packet whose payload lies behind the room already; `frame` is all of it.
    ///
    /// # Panics
    /// If the frame is shorter than the room, or longer than a length in the headers can say.
    #[inline]
    pub fn write(&self, frame: &mut [u8]) {
        assert!(frame.len() <= ETHERNET + usize::from(u16::MAX));
        frame[..self.room].copy_from_slice(&self.template[..self.room]);
        // The inner ones first: what an outer one sums up is whole then.
        for step in self.steps.iter().rev().flatten() {
            step.apply(frame);
        }
    }

    fn compose(layers: &[Layer], mtu: u16) -> Headers {
        let mut headers = Headers {
            template: [0; MAX_ROOM],
            room: 0,
            longest: 0,
            steps: [None; MAX_LAYERS],
        };
        for (layer, step) in layers.iter().zip(&mut headers.steps) {
            let at = headers.room;
            headers.room += layer.bytes();
            *step = layer.write(&mut headers.template[at..headers.room], at);
        }
        headers.longest = usize::from(mtu).saturating_sub(headers.room - ETHERNET);
        headers
    }
}

/// One protocol's part.
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
        hops: u8,
    },
    Ipv6 {
        from: [u8; 16],
        to: [u8; 16],
        hops: u8,
    },
    Udp {
        from: u16,
        to: u16,
        pseudo: Sum,
    },
}

/// What is left to do for each packet; `at` is where the layer's header begins.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Total length, and the checksum of a header that is summed up but for the length.
    Ipv4 { at: usize, header: Sum },
    /// Payload length.
    Ipv6 { at: usize },
    /// Length and checksum; `pseudo` is the sum of addresses, protocol and ports.
    Udp { at: usize, pseudo: Sum },
}

impl Layer {
    fn bytes(&self) -> usize {
        match self {
            Layer::Ethernet { .. } => ETHERNET,
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

    /// The sum of the pseudo header but for the length (RFC 768, RFC 8200 section 8.1).
    fn pseudo(&self) -> Sum {
        match self {
            Layer::Ipv4 { from, to, .. } => pseudo(from, to),
            Layer::Ipv6 { from, to, .. } => pseudo(from, to),
            _ => Sum::default(),
        }
    }

    fn write(&self, header: &mut [u8], at: usize) -> Option<Step> {
        match self {
            Layer::Ethernet { from, to, kind } => {
                header[..6].copy_from_slice(to);
                header[6..12].copy_from_slice(from);
                header[12..14].copy_from_slice(&kind.to_be_bytes());
                None
            }
            Layer::Ipv4 { from, to, hops } => {
                header[0] = 0x45;
                // Don't fragment.
                header[6] = 0x40;
                header[8] = *hops;
                header[9] = UDP;
                header[12..16].copy_from_slice(from);
                header[16..20].copy_from_slice(to);
                let header = Sum::default().add(header);
                Some(Step::Ipv4 { at, header })
            }
            Layer::Ipv6 { from, to, hops } => {
                header[0] = 0x60;
                header[6] = UDP;
                header[7] = *hops;
                header[8..24].copy_from_slice(from);
                header[24..40].copy_from_slice(to);
                Some(Step::Ipv6 { at })
            }
            Layer::Udp { from, to, pseudo } => {
                header[..2].copy_from_slice(&from.to_be_bytes());
                header[2..4].copy_from_slice(&to.to_be_bytes());
                let pseudo = pseudo.add(&header[..4]);
                Some(Step::Udp { at, pseudo })
            }
        }
    }
}

impl Step {
    #[inline]
    fn apply(&self, frame: &mut [u8]) {
        // A frame's length behind its first header has 16 bits.
        let behind = |at: usize| (frame.len() - at) as u16;
        match *self {
            Step::Ipv4 { at, header } => {
                let length = behind(at);
                frame[at + 2..at + 4].copy_from_slice(&length.to_be_bytes());
                let checksum = header.word(length).checksum();
                frame[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
            }
            Step::Ipv6 { at } => {
                let length = behind(at + 40);
                frame[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
            }
            Step::Udp { at, pseudo } => {
                let length = behind(at);
                frame[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
                let sum = pseudo.word(length).word(length).add(&frame[at + 8..]);
                // 0 would say that there is none.
                let checksum = match sum.checksum() {
                    0 => 0xffff,
                    other => other,
                };
                frame[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
            }
        }
    }
}

/// The sum of the addresses and the protocol.
pub(crate) fn pseudo(from: &[u8], to: &[u8]) -> Sum {
    Sum::default().add(from).add(to).word(UDP.into())
}

pub(crate) const ETHERNET: usize = 14;
/// The number of the protocol.
pub(crate) const UDP: u8 = 17;
const MAX_LAYERS: usize = 3;
/// Ethernet, IPv6 and UDP.
pub(crate) const MAX_ROOM: usize = ETHERNET + 40 + 8;

#[cfg(test)]
mod tests;
