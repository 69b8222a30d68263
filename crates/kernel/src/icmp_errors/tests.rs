use super::*;

/// An IPv4 packet of ICMP from 10.0.0.9 that quotes a UDP packet of 1400 bytes from 10.0.0.1:5000
/// to 10.0.0.2:9.
fn v4(kind: u8, code: u8, mtu: u16) -> Vec<u8> {
    let mut icmp = vec![kind, code, 0, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    let mut quoted = vec![0x45, 0, 0x05, 0x78, 0, 0, 0x40, 0, 64, 17, 0, 0];
    quoted.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    quoted.extend([0x13, 0x88, 0, 9, 1, 2, 3, 4]);
    icmp.extend(quoted);
    let sum = !checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x45, 0, 0, 56, 0, 0, 0, 0, 64, 1, 0, 0];
    packet.extend([10, 0, 0, 9, 10, 0, 0, 1]);
    packet.extend(icmp);
    packet
}

/// An ICMPv6 message that quotes a UDP packet of 1400 bytes from fd00::1 port 5000 to fd00::2 port
/// 9.
fn v6(kind: u8, code: u8, mtu: u32) -> Vec<u8> {
    let mut icmp = vec![kind, code, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    let mut quoted = vec![0x60, 0, 0, 0, 0x05, 0x50, 17, 64];
    for last in [1, 2] {
        quoted.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).octets());
    }
    quoted.extend([0x13, 0x88, 0, 9, 1, 2, 3, 4]);
    icmp.extend(quoted);
    icmp
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn the_quoted_packet_and_the_cause_are_found() {
    for (kind, code, mtu, cause) in [
        (3, 0, 0, ErrorCause::NoNetwork),
        (3, 1, 0, ErrorCause::NoHost),
        (3, 3, 0, ErrorCause::NoPort),
        (3, 13, 0, ErrorCause::Forbidden),
        (11, 0, 0, ErrorCause::Expired),
        (
            3,
            4,
            1300,
            ErrorCause::TooLong {
                mtu: 1300,
                length: 1400,
            },
        ),
        // A router that does not report its MTU: the next smaller plateau.
        (
            3,
            4,
            0,
            ErrorCause::TooLong {
                mtu: 1006,
                length: 1400,
            },
        ),
    ] {
        let error = IcmpError {
            reporter: ip("10.0.0.9"),
            cause,
            local: ip("10.0.0.1"),
            remote: ip("10.0.0.2"),
            protocol: 17,
            ports: Some((5000, 9)),
            sequence: Some(0x0102_0304),
        };
        assert_eq!(parse_v4(&v4(kind, code, mtu)), Some(error), "{kind} {code}");
    }
    let too_big = ErrorCause::TooLong {
        mtu: 1300,
        length: 1400,
    };
    for (kind, code, mtu, cause) in [
        (1, 0, 0, ErrorCause::NoNetwork),
        (1, 3, 0, ErrorCause::NoHost),
        (1, 4, 0, ErrorCause::NoPort),
        (3, 0, 0, ErrorCause::Expired),
        (2, 0, 1300, too_big),
    ] {
        let error = parse_v6(ip("fd00::9"), &v6(kind, code, mtu)).expect("an error");
        assert_eq!((error.cause, error.ports), (cause, Some((5000, 9))));
        assert_eq!(error.sequence, Some(0x0102_0304));
        assert_eq!((error.local, error.remote), (ip("fd00::1"), ip("fd00::2")));
    }
}

#[test]
fn other_and_damaged_messages_are_skipped() {
    let whole = v4(3, 3, 0);
    // An echo reply, and a fragment reassembly that took too long.
    assert_eq!(parse_v4(&v4(0, 0, 0)), None);
    assert_eq!(parse_v4(&v4(11, 1, 0)), None);
    // Any flipped bit of the message breaks the checksum.
    for at in 20..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        assert_eq!(parse_v4(&damaged), None, "byte {at}");
    }
    // Every length, of both families, is read without a panic.
    for length in 0..whole.len() {
        let _ = parse_v4(&whole[..length]);
    }
    let whole = v6(1, 4, 0);
    for length in 0..whole.len() {
        let parsed = parse_v6(ip("fd00::9"), &whole[..length]);
        assert!(parsed.is_none_or(|error| error.ports.is_none() || length >= 52));
    }
}
