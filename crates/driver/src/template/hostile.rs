//! Tests the check of packets that a program submits, with any bytes.
//!
//! [`outcome_of`] decodes a flow and a frame from a byte string: the first byte chooses the flow,
//! the others are the frame. It checks the frame by the flow's [`Template`], and by simple rules
//! over a parser that is independent of this crate, and panics if the results differ. Tests and the
//! fuzz target `transmit` call the same function.

use etherparse::{Ethernet2Header, Ipv4Header, Ipv6Header, TcpHeader, UdpHeader};

use super::*;
use crate::test_frames::{OWN, PEER, endpoint, mend_checksum, mend_lengths};

/// Checks the frame in `bytes` and returns the outcome: `allowed`, the name of the [`Forbidden`]
/// variant in lower case, or `nothing` if `bytes` is empty.
///
/// # Panics
/// If the simple rules give another result, or if other bytes leave than were checked.
pub fn outcome_of(bytes: &[u8]) -> String {
    let Some((which, frame)) = bytes.split_first() else {
        return "nothing".to_owned();
    };
    let sender = owner(*which);
    let template = Template::new(&sender).unwrap();
    let wanted = addressed(&sender, frame);
    let checked = check(&template, frame);
    assert_eq!(checked.is_ok(), naive(&sender, &wanted), "{bytes:02x?}");
    match checked {
        Ok(left) => {
            assert_eq!(left, wanted);
            "allowed".to_owned()
        }
        Err(forbidden) => format!("{forbidden:?}").to_lowercase(),
    }
}

/// Corrects the lengths in the frame's headers, and the checksum of an IPv4 header.
pub fn correct_lengths(bytes: &mut [u8]) {
    if let Some((_, frame)) = bytes.split_first_mut() {
        mend_lengths(frame);
        mend_checksum(frame);
    }
}

fn owner(which: u8) -> Sender {
    let (from, to) = [
        ("10.0.0.1:5000", "10.0.0.2:53"),
        ("[fd00::1]:5000", "[fd00::2]:53"),
    ][usize::from(which & 1)];
    let bit = |at: u8| which >> at & 1 == 1;
    let (local, remote) = (endpoint(from), bit(1).then(|| endpoint(to)));
    let mut sender = sender(from, bit(1).then_some(to));
    sender.next_hop = bit(2).then_some(PEER);
    let ports = |transport| Sends::Ports {
        transport,
        local,
        remote,
    };
    sender.sends = match which >> 3 & 3 {
        0 => Sends::EtherType(EtherType::new(0x88b5).unwrap()),
        1 => Sends::Protocol {
            protocol: IpProtocol::new(132).unwrap(),
            local: local.ip(),
            remote: remote.map(|remote| remote.ip()),
        },
        2 => ports(Transport::Udp),
        _ => ports(Transport::Tcp),
    };
    sender
}

pub(super) fn sender(from: &str, to: Option<&str>) -> Sender {
    Sender {
        mac: OWN,
        next_hop: to.map(|_| PEER),
        longest: 1514,
        sends: Sends::Ports {
            transport: Transport::Udp,
            local: endpoint(from),
            remote: to.map(endpoint),
        },
    }
}

/// The rules of the module, by an independent parser.
pub(crate) fn naive(sender: &Sender, frame: &[u8]) -> bool {
    let Ok((ethernet, packet)) = Ethernet2Header::from_slice(frame) else {
        return false;
    };
    let next_hop = match sender.next_hop {
        Some(mac) => ethernet.destination == mac.0,
        None => ethernet.destination[0] & 1 == 0,
    };
    if !next_hop || ethernet.source != sender.mac.0 || frame.len() > sender.longest {
        return false;
    }
    match sender.sends {
        Sends::EtherType(kind) => ethernet.ether_type.0 == kind.number(),
        Sends::Protocol {
            protocol,
            local,
            remote,
        } => naive_ip(
            ethernet.ether_type.0,
            packet,
            (local, remote),
            protocol.number(),
        )
        .is_some(),
        Sends::Ports {
            transport,
            local,
            remote,
        } => {
            let ends = (local.ip(), remote.map(|remote| remote.ip()));
            let Some(rest) = naive_ip(ethernet.ether_type.0, packet, ends, transport.number())
            else {
                return false;
            };
            let (source, destination) = match transport {
                Transport::Udp => match UdpHeader::from_slice(rest) {
                    Ok((header, _)) if usize::from(header.length) == rest.len() => {
                        (header.source_port, header.destination_port)
                    }
                    _ => return false,
                },
                // The parser refuses a header that is too short, or longer than the packet.
                Transport::Tcp => match TcpHeader::from_slice(rest) {
                    Ok((header, _)) => (header.source_port, header.destination_port),
                    Err(_) => return false,
                },
            };
            source == local.port() && remote.is_none_or(|remote| remote.port() == destination)
        }
    }
}

/// The bytes behind an allowed IP header.
fn naive_ip(
    kind: u16,
    packet: &[u8],
    (local, remote): (IpAddr, Option<IpAddr>),
    protocol: u8,
) -> Option<&[u8]> {
    let (from, to, rest) = match local {
        IpAddr::V4(_) => {
            let (header, rest) = Ipv4Header::from_slice(packet).ok()?;
            let right = kind == 0x0800
                && header.options.is_empty()
                && !header.more_fragments
                && header.fragment_offset.value() == 0
                && packet[6] & 0x80 == 0
                && usize::from(header.total_len) == packet.len()
                && header.time_to_live > 0
                && header.protocol.0 == protocol
                && header.header_checksum == header.calc_header_checksum();
            let ends: (IpAddr, IpAddr) = (header.source.into(), header.destination.into());
            right.then_some((ends.0, ends.1, rest))?
        }
        IpAddr::V6(_) => {
            let (header, rest) = Ipv6Header::from_slice(packet).ok()?;
            let right = kind == 0x86dd
                && usize::from(header.payload_length) == rest.len()
                && header.hop_limit > 0
                && header.next_header.0 == protocol;
            let ends: (IpAddr, IpAddr) = (header.source.into(), header.destination.into());
            right.then_some((ends.0, ends.1, rest))?
        }
    };
    let goes = match (remote, to) {
        (Some(remote), to) => remote == to,
        (None, IpAddr::V4(to)) => {
            let odd = [
                to.octets()[0] == 0,
                to.is_loopback(),
                to.is_multicast(),
                to.octets()[0] >= 240,
            ];
            odd == [false; 4]
        }
        (None, IpAddr::V6(to)) => {
            !to.is_multicast() && to.octets()[..12] != [0; 12] && to.to_ipv4_mapped().is_none()
        }
    };
    (from == local && goes).then_some(rest)
}

/// The frame that leaves, if any.
pub(super) fn check(template: &Template, frame: &[u8]) -> Result<Vec<u8>, Forbidden> {
    let mut own = frame.to_vec();
    let checked = template.check(&mut own)?;
    Ok(checked.bytes().to_vec())
}

/// The frame with the Ethernet addresses that the template writes, as far as the frame reaches.
pub(crate) fn addressed(sender: &Sender, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let macs = sender.next_hop.iter().map(|mac| (0, mac));
    for (from, mac) in macs.chain([(6, &sender.mac)]) {
        for (at, byte) in mac.0.iter().enumerate() {
            if let Some(place) = frame.get_mut(from + at) {
                *place = *byte;
            }
        }
    }
    frame
}
