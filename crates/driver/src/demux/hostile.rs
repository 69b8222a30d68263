//! Tests the classification of received frames with any bytes.
//!
//! [`outcome_of`] decodes frames from a byte string, each behind its length in two bytes. It
//! classifies each frame by a [`Demux`] with a fixed set of flows, and by simple rules over a
//! parser that is independent of this crate, and panics if the flows differ. Tests and the fuzz
//! target `receive` call the same function.

use std::net::{IpAddr, SocketAddr};

use etherparse::{LinkSlice, NetSlice, SlicedPacket, TransportSlice};

use super::*;
use crate::test_frames::{OWN, endpoint, mend_checksum, mend_lengths};

/// Classifies the frames in `bytes` and returns the result for the last one: `one`, `several`,
/// `held`, `unclaimed`, the reason why it was discarded, or `nothing` if there is no frame.
///
/// # Panics
/// If a frame that the demultiplexer gives to flows goes to other flows by the simple rules (later
/// fragments, and all fragments of IPv6, are not compared), or if a frame is not counted exactly
/// once.
pub fn outcome_of(bytes: &[u8]) -> String {
    let flows = flows();
    let mut demux = table(&flows);
    let (mut rest, mut now, mut last) = (bytes, 0, "nothing".to_owned());
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(behind.len());
        let (frame, behind) = behind.split_at(length);
        rest = behind;
        let expected = naive(&flows, frame);
        let verdict = demux.handle(frame, Instant(now));
        let found = match &verdict {
            Verdict::One { flow, .. } => Some(vec![flow.0]),
            Verdict::Several { flows, .. } => Some(flows.iter().map(|flow| flow.0).collect()),
            _ => None,
        };
        last = match verdict {
            Verdict::One { .. } => "one".to_owned(),
            Verdict::Several { .. } => "several".to_owned(),
            Verdict::Held => "held".to_owned(),
            Verdict::Unclaimed => "unclaimed".to_owned(),
            Verdict::Discarded(why) => format!("{why:?}").to_lowercase(),
        };
        // The first fragment decides the flow of a later one, and the naive rules ignore fragments
        // of IPv6. A frame that the independent parser rejects for bytes behind the headers read
        // here is not compared.
        let is_compared = expected.is_some() || SlicedPacket::from_ethernet(frame).is_ok();
        let is_fragment = is_later_fragment(frame)
            || frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(20) == Some(&44);
        if found.is_some() && is_compared && !is_fragment {
            assert_eq!(found, expected, "{frame:02x?}");
        }
        while demux.poll_released().is_some() {}
        demux.invariants();
        now += 1_000_000;
    }
    last
}

/// Corrects the lengths in each frame's headers, and the checksum of an IPv4 header.
pub fn correct_lengths(bytes: &mut [u8]) {
    let mut rest = bytes;
    while let Some((length, behind)) = rest.split_first_chunk_mut::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(behind.len());
        let (frame, behind) = behind.split_at_mut(length);
        mend_lengths(frame);
        mend_checksum(frame);
        rest = behind;
    }
}

/// Each kind of match, in both families, for both transports; some endpoints have two owners, and
/// some none.
fn flows() -> Vec<Match> {
    let tcp = |local: &str| Match::Port {
        transport: Transport::Tcp,
        local: endpoint(local),
    };
    vec![
        port("10.0.0.1:53"),
        port("0.0.0.0:53"),
        port("[fd00::1]:53"),
        tcp("10.0.0.1:54"),
        tcp("[::]:53"),
        connected("10.0.0.1:53", "10.0.0.9:2"),
        connected("[fd00::1]:53", "[fd00::9]:2"),
        group("224.1.1.1:53"),
        group("224.1.1.1:53"),
        group("[ff02::5]:53"),
        syn("10.0.0.1:54"),
        syn("[fd00::1]:53"),
    ]
}

/// A flow of the connection requests to `local`.
pub(super) fn syn(local: &str) -> Match {
    Match::Syn {
        local: endpoint(local),
    }
}

/// A flow of UDP that has the port `local`.
pub(super) fn port(local: &str) -> Match {
    Match::Port {
        transport: Transport::Udp,
        local: endpoint(local),
    }
}

/// A flow of UDP from `local` to the host `remote`.
pub(super) fn connected(local: &str, remote: &str) -> Match {
    Match::Connected {
        transport: Transport::Udp,
        local: endpoint(local),
        remote: endpoint(remote),
    }
}

/// A flow of UDP that receives from the group `group`.
pub(super) fn group(group: &str) -> Match {
    Match::Group {
        transport: Transport::Udp,
        group: endpoint(group),
    }
}

/// A table whose flows 0, 1, 2... have these matches.
pub(super) fn table(flows: &[Match]) -> Demux {
    let mut demux = Demux::new(OWN);
    for (k, what) in flows.iter().enumerate() {
        let flow = FlowNo(k as u32);
        demux.insert(flow, Reassembly::Complete).unwrap();
        demux.add_match(flow, what).unwrap();
    }
    demux
}

/// The flows of a frame, by an independent parser and a linear search over all flows.
pub(super) fn naive(flows: &[Match], frame: &[u8]) -> Option<Vec<u32>> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else {
        return None;
    };
    let by_group = ethernet.destination()[0] & 1 == 1;
    if ethernet.destination() != OWN.0 && !by_group || !packet.link_exts.is_empty() {
        return None;
    }
    let (source, destination) = addresses(&packet, frame)?;
    if by_group && !is_for_several(destination) || is_for_several(source) {
        return None;
    }
    let (transport, (from, to), is_syn) = match packet.transport.as_ref() {
        Some(TransportSlice::Udp(udp)) => {
            let ports = (udp.source_port(), udp.destination_port());
            (Transport::Udp, ports, false)
        }
        Some(TransportSlice::Tcp(tcp)) => {
            let ports = (tcp.source_port(), tcp.destination_port());
            (Transport::Tcp, ports, tcp.syn() && !tcp.ack())
        }
        Some(_) => return None,
        None => first_fragment(packet.net.as_ref()?)?,
    };
    let local = SocketAddr::new(destination, to);
    let remote = SocketAddr::new(source, from);
    naive_search(flows, (transport, is_syn), local, remote)
}

/// (source, destination), if the packet's IP header is right and has no extensions.
fn addresses(packet: &SlicedPacket<'_>, frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.net.as_ref()? {
        NetSlice::Ipv4(v4) => {
            let header = v4.header().to_header();
            // The parser drops the reserved bit.
            let is_reserved = frame[20] & 0x80 != 0;
            if header.calc_header_checksum() != header.header_checksum && !is_reserved {
                return None;
            }
            let header = v4.header();
            Some((
                header.source_addr().into(),
                header.destination_addr().into(),
            ))
        }
        // A packet with extension headers is the kernel's.
        NetSlice::Ipv6(v6) if v6.header().next_header() == v6.payload().ip_number => {
            let header = v6.header();
            Some((
                header.source_addr().into(),
                header.destination_addr().into(),
            ))
        }
        _ => None,
    }
}

/// Whether the address is a group's or IPv4's broadcast.
fn is_for_several(address: IpAddr) -> bool {
    address.is_multicast() || matches!(address, IpAddr::V4(v4) if v4.is_broadcast())
}

/// The flows with the most specific match of a packet from `remote` to `local`.
fn naive_search(
    flows: &[Match],
    (transport, is_syn): (Transport, bool),
    local: SocketAddr,
    remote: SocketAddr,
) -> Option<Vec<u32>> {
    let with = |what: Match| {
        let found = flows.iter().enumerate().filter(|(_, one)| **one == what);
        let found: Vec<u32> = found.map(|(k, _)| k as u32).collect();
        (!found.is_empty()).then_some(found)
    };
    let to_port = |local| with(Match::Port { transport, local });
    let group = local;
    let any = match local {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0_u16; 8]),
    };
    with(Match::Connected {
        transport,
        local,
        remote,
    })
    .or_else(|| is_syn.then(|| with(Match::Syn { local }))?)
    .or_else(|| to_port(local))
    .or_else(|| with(Match::Group { transport, group }))
    .or_else(|| match is_for_several(local.ip()) {
        true => None,
        false => to_port(SocketAddr::new(any, local.port())),
    })
}

/// The parser does not read the ports and flags of fragments. The first fragment decides for all.
fn first_fragment(net: &NetSlice<'_>) -> Option<(Transport, (u16, u16), bool)> {
    let NetSlice::Ipv4(v4) = net else { return None };
    let payload = v4.payload();
    let transport = match payload.ip_number.0 {
        17 => Transport::Udp,
        6 => Transport::Tcp,
        _ => return None,
    };
    let port = |at: usize| {
        let two = payload.payload.get(at..at + 2)?;
        Some(u16::from_be_bytes([two[0], two[1]]))
    };
    let is_first = payload.fragmented && v4.header().fragments_offset().value() == 0;
    // The flags are the byte at offset 13: SYN is 2, ACK is 16.
    let has_flags = transport == Transport::Tcp;
    let is_syn = has_flags && payload.payload.get(13).is_some_and(|flags| flags & 18 == 2);
    is_first.then_some((transport, (port(0)?, port(2)?), is_syn))
}

/// Whether the frame is a fragment of IPv4 other than the first one, which decides its flow.
pub(super) fn is_later_fragment(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 0])
        && frame.len() > 21
        && (frame[20] & 0x1f, frame[21]) != (0, 0)
}
