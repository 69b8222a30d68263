//! Tests against etherparse, which builds and parses the same packets independently.

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;

fn v4() -> FlowAddress {
    FlowAddress {
        local: "10.78.0.1:4000".parse().unwrap(),
        remote: "10.78.0.2:53".parse().unwrap(),
        local_mac: [2, 0, 0, 0, 0, 1],
        next_hop: [2, 0, 0, 0, 0, 2],
        mtu: 1500,
        hops: 64,
    }
}

fn v6() -> FlowAddress {
    FlowAddress {
        local: "[fd00::1]:4000".parse().unwrap(),
        remote: "[fd00::2]:53".parse().unwrap(),
        ..v4()
    }
}

fn frame(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xee; headers.headroom()];
    frame.extend(payload);
    headers.write(&mut frame);
    frame
}

/// The same packet, built by etherparse.
fn expected(address: &FlowAddress, payload: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(address.local_mac, address.next_hop);
    let (from, to) = (address.local.port(), address.remote.port());
    let mut bytes = Vec::new();
    match (address.local.ip(), address.remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let builder = ethernet.ipv4(local.octets(), remote.octets(), address.hops);
            builder.udp(from, to).write(&mut bytes, payload).unwrap();
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            let builder = ethernet.ipv6(local.octets(), remote.octets(), address.hops);
            builder.udp(from, to).write(&mut bytes, payload).unwrap();
        }
        _ => unreachable!(),
    }
    bytes
}

#[test]
fn headroom_and_longest_payload_depend_on_the_address_family_and_the_mtu() {
    let headers = Headers::udp(&v4()).unwrap();
    assert_eq!((headers.headroom(), headers.longest()), (42, 1472));
    let headers = Headers::udp(&v6()).unwrap();
    assert_eq!((headers.headroom(), headers.longest()), (62, 1452));
    let largest = FlowAddress {
        mtu: u16::MAX,
        ..v4()
    };
    assert_eq!(Headers::udp(&largest).unwrap().longest(), 65_507);
}

#[test]
fn mixed_families_and_a_small_mtu_are_refused() {
    let mixed = FlowAddress {
        remote: v6().remote,
        ..v4()
    };
    assert_eq!(
        Headers::udp(&mixed).unwrap_err().to_string(),
        "10.78.0.1:4000 and [fd00::2]:53 have different address families"
    );
    let small = FlowAddress { mtu: 48, ..v6() };
    assert_eq!(
        Headers::udp(&small).unwrap_err().to_string(),
        "an MTU of 48 bytes leaves no room for a payload: the headers have 48 bytes"
    );
}

#[test]
fn a_checksum_of_zero_is_sent_as_all_ones() {
    // A payload that makes the sum all ones.
    let headers = Headers::udp(&v4()).unwrap();
    let plain = frame(&headers, &[0, 0]);
    let checksum = [plain[40], plain[41]];
    let packet = frame(&headers, &checksum);
    assert_eq!(packet[40..42], [0xff, 0xff]);
    assert!(crate::datagram::parse(&packet, crate::udp::Checks::Verify).is_ok());
}

#[test]
fn the_longest_packet_has_valid_headers() {
    for address in [v4(), v6()] {
        let headers = Headers::udp(&address).unwrap();
        let payload = vec![0xff; headers.longest()];
        let bytes = frame(&headers, &payload);
        assert_eq!(bytes.len(), 14 + 1500);
        assert_eq!(bytes, expected(&address, &payload));
    }
}

proptest! {
    #[test]
    fn packets_equal_those_that_etherparse_builds(
        [local, remote] in prop_oneof![
            any::<[[u8; 4]; 2]>().prop_map(|pair| pair.map(IpAddr::from)),
            any::<[[u8; 16]; 2]>().prop_map(|pair| pair.map(IpAddr::from)),
        ],
        ports in any::<(u16, u16)>(),
        macs in any::<([u8; 6], [u8; 6])>(),
        hops in any::<u8>(),
        payload in prop::collection::vec(any::<u8>(), 0..1400),
    ) {
        let address = FlowAddress {
            local: SocketAddr::new(local, ports.0),
            remote: SocketAddr::new(remote, ports.1),
            local_mac: macs.0,
            next_hop: macs.1,
            mtu: 1500,
            hops,
        };
        let headers = Headers::udp(&address).unwrap();
        let bytes = frame(&headers, &payload);
        prop_assert_eq!(&bytes, &expected(&address, &payload));
        let sliced = SlicedPacket::from_ethernet(&bytes).unwrap();
        prop_assert!(matches!(sliced.net, Some(NetSlice::Ipv4(_) | NetSlice::Ipv6(_))));
        let Some(TransportSlice::Udp(udp)) = sliced.transport else {
            panic!("no UDP");
        };
        prop_assert_eq!(udp.payload(), &payload[..]);
        // The parser of this crate reads the same packet.
        let found = crate::datagram::parse(&bytes, crate::udp::Checks::Verify).unwrap();
        prop_assert_eq!(&bytes[found.payload.clone()], &payload[..]);
        prop_assert_eq!((found.from, found.to), (address.local, address.remote));
    }
}
