use super::*;

fn ethernet(kind: [u8; 2]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend(kind);
    frame
}

fn v4(protocol: u8, transport: &[u8]) -> Vec<u8> {
    let mut frame = ethernet([8, 0]);
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    ip.extend([10, 77, 0, 1, 10, 77, 0, 2]);
    frame.extend(ip);
    frame.extend(transport);
    frame
}

fn tcp(words: u8) -> Vec<u8> {
    let mut header = vec![0; 20];
    header[..4].copy_from_slice(&[0x13, 0x89, 0x13, 0x8a]);
    header[12] = words << 4;
    header
}

#[test]
fn a_plain_tcp_packet_is_as_long_as_the_kernel_says() {
    let got = packet(7, true, &v4(6, &tcp(8)), 1514, 0);
    assert_eq!((got.wire, got.segments), (1514, 1));
    assert_eq!(got.flow.transport, Transport::Tcp);
    assert_eq!(got.flow.source, ("10.77.0.1".parse().expect("v4"), 5001));
    assert_eq!(got.flow.target, ("10.77.0.2".parse().expect("v4"), 5002));
}

#[test]
fn a_super_packet_pays_its_headers_once_per_segment() {
    // 14 + 20 + 32 bytes of headers, 10 segments of 1448.
    let len = 66 + 10 * 1448;
    let got = packet(0, true, &v4(6, &tcp(8)), len, 1448);
    assert_eq!((got.wire, got.segments), (10 * 1514, 10));
    // The last segment may be short.
    let got = packet(0, true, &v4(6, &tcp(8)), 66 + 1448 + 1, 1448);
    assert_eq!((got.wire, got.segments), (1514 + 67, 2));
}

#[test]
fn ipv6_udp_and_packets_without_ports_are_parsed() {
    let mut frame = ethernet([0x86, 0xdd]);
    let mut ip = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
    ip.extend([0xfd; 16]);
    ip.extend([0xfe; 16]);
    frame.extend(ip);
    frame.extend([0, 53, 0, 54, 0, 0, 0, 0]);
    let got = packet(0, false, &frame, 100, 0);
    assert_eq!(got.flow.transport, Transport::Udp);
    assert_eq!((got.flow.source.1, got.flow.target.1), (53, 54));
    assert!(got.flow.source.0.is_ipv6() && !got.flow.inbound);
    let icmp = packet(0, true, &v4(1, &[8, 0, 1, 2]), 98, 0);
    assert_eq!(
        (icmp.flow.transport, icmp.flow.source.1),
        (Transport::Icmp, 0)
    );
}

#[test]
fn truncated_frames_never_panic() {
    let whole = v4(6, &tcp(8));
    for n in 0..whole.len() {
        let got = packet(0, true, &whole[..n], 1514, 1448);
        assert!(got.wire >= 1514);
    }
    let arp = packet(0, true, &ethernet([8, 6]), 42, 0);
    assert_eq!((arp.flow.transport, arp.wire), (Transport::NotIp, 42));
}
