//! Tests the cutting of long packets with any bytes.
//!
//! [`outcome_of`] decodes what the kernel states and a packet from a byte string, cuts the packet,
//! and checks the segments by a parser that is independent of this crate. Tests and the fuzz target
//! `cut` call the same function.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use super::*;
use crate::test_frames::{mend_checksum, mend_lengths};

/// Length of what is in front of the packet: the kind of its segments and the state of its checksum
/// (1 byte), the size of the segments, and the longest segment (2 bytes each).
const FRONT: usize = 5;

/// Cuts the packet in `bytes` and returns the outcome: `one`, `several`, the name of the
/// [`CutError`] variant in lower case, or `nothing` if there is no packet.
///
/// # Panics
/// If the segments are not those that a naive formula expects, or an error comes with segments.
pub fn outcome_of(bytes: &[u8]) -> String {
    let Some((front, packet)) = bytes.split_first_chunk::<FRONT>() else {
        return "nothing".to_owned();
    };
    let (offload, longest) = decode(front);
    let mut segments: Vec<Vec<u8>> = Vec::new();
    let mut own = packet.to_vec();
    match cut(&mut own, &offload, longest, |segment| {
        segments.push(segment.to_vec())
    }) {
        Ok(count) => {
            assert_eq!(segments.len(), count);
            check(packet, &segments, &offload, longest);
            ["one", "several"][usize::from(count > 1)].to_owned()
        }
        Err(error) => {
            assert!(segments.is_empty(), "{error:?}");
            format!("{error:?}").to_lowercase()
        }
    }
}

/// Corrects the lengths in the packet's headers, the checksum of an IPv4 header, and those of UDP
/// or TCP.
pub fn correct_lengths(bytes: &mut [u8]) {
    let Some((_, packet)) = bytes.split_first_chunk_mut::<FRONT>() else {
        return;
    };
    mend_lengths(packet);
    mend_checksum(packet);
    let Some((at, checksum)) = transport_checksum(packet) else {
        return;
    };
    if let Some(field) = packet.get_mut(at..at + 2) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// What the kernel states, and the longest segment.
fn decode(front: &[u8; FRONT]) -> (Offload, usize) {
    let &[kind, upper, lower, high, low] = front;
    let size = u16::from_be_bytes([upper, lower]);
    let offload = Offload {
        merged: match kind & 3 {
            0 => Merged::No,
            1 => Merged::Tcp(size),
            2 => Merged::Udp(size),
            _ => Merged::Unknown,
        },
        checksum: match kind >> 2 & 3 {
            0 => Checksum::Unknown,
            1 => Checksum::Partial { start: 34 },
            2 => Checksum::Partial { start: 54 },
            _ => Checksum::Valid,
        },
    };
    (offload, usize::from(u16::from_be_bytes([high, low])))
}

/// The encoding of [`decode`].
#[cfg(test)]
pub(super) fn encode(offload: &Offload, longest: u16, packet: &[u8]) -> Vec<u8> {
    let (kind, size) = match offload.merged {
        Merged::No => (0, 0),
        Merged::Tcp(size) => (1, size),
        Merged::Udp(size) => (2, size),
        Merged::Unknown => (3, 0),
    };
    let checksum = match offload.checksum {
        Checksum::Unknown => 0,
        Checksum::Partial { start: 34 } => 1,
        Checksum::Partial { .. } => 2,
        Checksum::Valid => 3,
    };
    let mut bytes = vec![kind | checksum << 2];
    bytes.extend(size.to_be_bytes());
    bytes.extend(longest.to_be_bytes());
    bytes.extend(packet);
    bytes
}

/// The offset of the checksum of a packet of UDP or TCP, and its right value, by an independent
/// implementation. `None` for another packet.
pub(super) fn transport_checksum(packet: &[u8]) -> Option<(usize, u16)> {
    let parsed = SlicedPacket::from_ethernet(packet).ok()?;
    let behind = |slice: &[u8]| slice.as_ptr() as usize - packet.as_ptr() as usize;
    match (parsed.net.as_ref()?, parsed.transport.as_ref()?) {
        (NetSlice::Ipv4(ip), TransportSlice::Tcp(tcp)) => {
            let header = ip.header();
            let sum = tcp.calc_checksum_ipv4(header.source(), header.destination());
            Some((behind(tcp.slice()) + 16, sum.ok()?))
        }
        (NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
            let header = ip.header();
            let sum = tcp.calc_checksum_ipv6(header.source(), header.destination());
            Some((behind(tcp.slice()) + 16, sum.ok()?))
        }
        (NetSlice::Ipv4(ip), TransportSlice::Udp(udp)) => {
            let header = ip.header();
            let (from, to) = (header.source(), header.destination());
            let sum = udp
                .to_header()
                .calc_checksum_ipv4_raw(from, to, udp.payload());
            Some((behind(udp.slice()) + 6, sum.ok()?))
        }
        (NetSlice::Ipv6(ip), TransportSlice::Udp(udp)) => {
            let header = ip.header();
            let (from, to) = (header.source(), header.destination());
            let sum = udp
                .to_header()
                .calc_checksum_ipv6_raw(from, to, udp.payload());
            Some((behind(udp.slice()) + 6, sum.ok()?))
        }
        _ => None,
    }
}

/// One packet of UDP or TCP, by the independent parser.
struct Parsed<'a> {
    /// The headers with those fields cleared that differ among segments.
    same: Vec<u8>,
    id: u16,
    sequence: u32,
    flags: u8,
    checksum: u16,
    payload: &'a [u8],
}

fn parse(packet: &[u8]) -> Parsed<'_> {
    let parsed = SlicedPacket::from_ethernet(packet).expect("a packet");
    let transport = parsed.transport.as_ref().expect("UDP or TCP");
    let (payload, fields): (&[u8], &[(usize, usize)]) = match transport {
        TransportSlice::Tcp(tcp) => (tcp.payload(), &[(4, 4), (13, 1), (16, 2)]),
        TransportSlice::Udp(udp) => (udp.payload(), &[(4, 2), (6, 2)]),
        _ => panic!("neither UDP nor TCP"),
    };
    let slice = match transport {
        TransportSlice::Tcp(tcp) => tcp.slice(),
        TransportSlice::Udp(udp) => udp.slice(),
        _ => panic!("neither UDP nor TCP"),
    };
    let at = slice.as_ptr() as usize - packet.as_ptr() as usize;
    let end = payload.as_ptr() as usize - packet.as_ptr() as usize;
    let mut same = packet[..end].to_vec();
    let mut clear = |from: usize, length: usize| same[from..from + length].fill(0);
    fields
        .iter()
        .for_each(|(from, length)| clear(at + from, *length));
    let id = match parsed.net.as_ref().expect("IP") {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            let right = header.to_header().calc_header_checksum();
            assert_eq!(header.header_checksum(), right, "{packet:02x?}");
            assert_eq!(usize::from(header.total_len()), end - 14 + payload.len());
            clear(16, 4);
            clear(24, 2);
            header.identification()
        }
        NetSlice::Ipv6(ip) => {
            let length = usize::from(ip.header().payload_length());
            assert_eq!(length, end - 54 + payload.len());
            clear(18, 2);
            0
        }
        NetSlice::Arp(_) => panic!("ARP"),
    };
    let (sequence, flags, checksum) = match transport {
        TransportSlice::Tcp(tcp) => (tcp.sequence_number(), tcp.slice()[13], tcp.checksum()),
        TransportSlice::Udp(udp) => {
            assert_eq!(usize::from(udp.length()), 8 + payload.len());
            (0, 0, udp.checksum())
        }
        _ => panic!("neither UDP nor TCP"),
    };
    Parsed {
        same,
        id,
        sequence,
        flags,
        checksum,
        payload,
    }
}

/// The naive formula: the payloads side by side are the packet's payload, and each header is the
/// packet's but for what the table of the module names.
fn check(packet: &[u8], segments: &[Vec<u8>], offload: &Offload, longest: usize) {
    let is_parsed = SlicedPacket::from_ethernet(packet).is_ok_and(|one| one.transport.is_some());
    if !is_parsed {
        // Extension headers that this crate takes for the payload of no flow are not its business.
        assert!(has_extensions(packet), "{packet:02x?}");
        return;
    }
    let whole = parse(packet);
    let is_tcp = packet_protocol(packet) == 6;
    let most = if is_tcp { MAX_SEGMENTS } else { MAX_DATAGRAMS };
    assert!((1..=most).contains(&segments.len()));
    let mut payload: Vec<u8> = Vec::new();
    for (number, segment) in segments.iter().enumerate() {
        let (one, is_last) = (parse(segment), number + 1 == segments.len());
        assert_eq!(one.same, whole.same);
        let is_v4 = segment[12..14] == [8, 0];
        if is_v4 {
            assert_eq!(one.id, whole.id.wrapping_add(number as u16));
        }
        if is_tcp {
            let before = whole.sequence.wrapping_add(payload.len() as u32);
            assert_eq!(one.sequence, before);
            let absent = if is_last { 0 } else { 0x09 } | if number > 0 { 0x80 } else { 0 };
            assert_eq!(one.flags, whole.flags & !absent);
            let fits = segment.len() <= longest || one.payload.len() <= LEAST_PAYLOAD;
            assert!(fits, "{} of {longest}", segment.len());
        } else if let Merged::Udp(size) = offload.merged {
            assert!(is_last || one.payload.len() == usize::from(size));
            assert!(one.payload.len() <= usize::from(size));
        }
        let (_, right) = transport_checksum(segment).expect("a checksum");
        let has_none = !is_tcp && is_v4 && whole.checksum == 0;
        assert_eq!(one.checksum, if has_none { 0 } else { right });
        payload.extend(one.payload);
    }
    assert_eq!(payload, whole.payload);
}

fn packet_protocol(packet: &[u8]) -> u8 {
    match packet[12..14] {
        [8, 0] => packet[23],
        _ if packet[20] == 44 => packet[54],
        _ => packet[20],
    }
}

/// Whether an IPv6 packet has extension headers.
fn has_extensions(packet: &[u8]) -> bool {
    packet[12..14] == [0x86, 0xdd] && ![6, 17].contains(&packet[20])
}
