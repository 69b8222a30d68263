use std::collections::BTreeSet;

use netnice_cases::cases;
use proptest::prelude::*;

use super::hostile::{addressed, check, naive, sender};
use super::*;
use crate::damage::Damage;
use crate::test_frames::{Datagram, PEER, endpoint, mend_checksum, udp};

mod kept;

const GROUP: Mac = Mac([1, 0, 0x5e, 1, 2, 3]);

#[test]
fn a_flow_to_any_host_may_send_only_to_addresses_of_one_host() {
    let cases = [
        ("10.0.0.2", true),
        ("1.0.0.0", true),
        ("223.255.255.255", true),
        ("0.0.0.0", false),
        ("0.1.2.3", false),
        ("127.0.0.1", false),
        ("127.255.0.9", false),
        ("224.0.0.1", false),
        ("239.1.2.3", false),
        ("240.0.0.1", false),
        ("255.255.255.254", false),
        ("255.255.255.255", false),
        ("fd00::2", true),
        ("fe80::2", true),
        ("64:ff9b::a00:2", true),
        ("::", false),
        ("::1", false),
        ("::10.0.0.2", false),
        ("::ffff:10.0.0.2", false),
        ("ff02::1", false),
    ];
    for (to, allowed) in cases {
        let to: IpAddr = to.parse().unwrap();
        let from = match to {
            IpAddr::V4(_) => "10.0.0.1:5000",
            IpAddr::V6(_) => "[fd00::1]:5000",
        };
        let whole = Template::new(&sender(from, None)).unwrap();
        let frame = udp(from, &SocketAddr::new(to, 6000).to_string()).frame();
        let checked = check(&whole, &frame).map(drop);
        assert_eq!(
            checked,
            match allowed {
                true => Ok(()),
                false => Err(Forbidden::Destination),
            },
            "{to}"
        );
        // A flow to this address alone is refused too: as one host, and through a single next hop
        // as a group.
        let mut only = sender(from, Some("10.0.0.2:1"));
        only.sends = Sends::Ports {
            transport: Transport::Udp,
            local: endpoint(from),
            remote: Some(SocketAddr::new(to, 6000)),
        };
        assert_eq!(Template::new(&only).is_ok(), allowed, "{to}");
        assert_eq!(is_one_host(to), allowed, "{to}");
    }
}

#[test]
fn each_rule_refuses_with_its_own_reason() {
    let template = Template::new(&sender("10.0.0.1:5000", Some("10.0.0.2:53"))).unwrap();
    let right = udp("10.0.0.1:5000", "10.0.0.2:53").frame();
    assert_eq!(check(&template, &right).expect("it is right"), right);
    let with = |at: usize, byte: u8| {
        let mut frame = right.clone();
        frame[at] = byte;
        if at != 24 {
            mend_checksum(&mut frame);
        }
        check(&template, &frame).expect_err("it is wrong")
    };
    for at in 0..12 {
        let mut frame = right.clone();
        frame[at] ^= 0xff;
        assert_eq!(check(&template, &frame).expect("it is mended"), right);
    }
    assert_eq!(with(12, 0x81), Forbidden::EtherType);
    assert_eq!(with(14, 0x46), Forbidden::Version);
    assert_eq!(with(17, 90), Forbidden::Length);
    assert_eq!(with(20, 0x20), Forbidden::Fragment);
    assert_eq!(with(21, 1), Forbidden::Fragment);
    assert_eq!(with(20, 0x80), Forbidden::Fragment);
    assert_eq!(with(22, 0), Forbidden::Hops);
    assert_eq!(with(23, 6), Forbidden::Protocol);
    assert_eq!(with(24, right[24] ^ 1), Forbidden::Checksum);
    assert_eq!(with(29, 7), Forbidden::Source);
    assert_eq!(with(33, 7), Forbidden::Destination);
    assert_eq!(with(35, 7), Forbidden::SourcePort);
    assert_eq!(with(37, 7), Forbidden::DestinationPort);
    assert_eq!(with(39, 200), Forbidden::Length);
    assert_eq!(check(&template, &right[..41]), Err(Forbidden::Short));
    assert_eq!(check(&template, &right[..45]), Err(Forbidden::Length));
    let mut padded = right.clone();
    padded.push(0);
    assert_eq!(check(&template, &padded), Err(Forbidden::Length));
    let long = udp("10.0.0.1:5000", "10.0.0.2:53").data(&[0; 1473]).frame();
    assert_eq!(check(&template, &long), Err(Forbidden::Long));
}

#[test]
fn a_header_of_tcp_lies_inside_its_packet() {
    for (from, to, at) in [
        ("10.0.0.1:5000", "10.0.0.2:53", 46),
        ("[fd00::1]:5000", "[fd00::2]:53", 66),
    ] {
        for remote in [Some(to), None] {
            let mut granted = sender(from, remote);
            if let Sends::Ports { transport, .. } = &mut granted.sends {
                *transport = Transport::Tcp;
            }
            let template = Template::new(&granted).unwrap();
            assert_eq!(template.connection().is_some(), remote.is_some());
            let mut segment = udp(from, to).data(&[0; 8]);
            segment.transport = Transport::Tcp;
            let right = segment.frame();
            // Words of 4 bytes; 28 bytes of the packet are behind the IP header.
            for words in 0..16 {
                let mut frame = right.clone();
                frame[at] = words << 4;
                let checked = check(&template, &frame).map(drop);
                let expected = match words {
                    5..=7 => Ok(()),
                    _ => Err(Forbidden::Length),
                };
                assert_eq!(checked, expected, "{words} words");
            }
            segment.from.set_port(5001);
            let other = check(&template, &segment.frame());
            assert_eq!(other, Err(Forbidden::SourcePort));
        }
    }
}

#[test]
fn in_ipv6_extension_headers_are_refused() {
    let template = Template::new(&sender("[fd00::1]:5000", Some("[fd00::2]:53"))).unwrap();
    let datagram = udp("[fd00::1]:5000", "[fd00::2]:53").data(&[0; 64]);
    assert!(check(&template, &datagram.frame()).is_ok());
    for next in [0, 43, 44, 50, 51, 60, 135] {
        let mut frame = datagram.frame();
        frame[20] = next;
        assert_eq!(check(&template, &frame), Err(Forbidden::Protocol));
    }
    for part in datagram.fragments(32) {
        assert_eq!(check(&template, &part), Err(Forbidden::Protocol));
    }
    let v4 = udp("10.0.0.1:5000", "10.0.0.2:53").data(&[0; 64]);
    assert_eq!(check(&template, &v4.frame()), Err(Forbidden::EtherType));
}

#[test]
fn a_flow_to_any_host_may_not_send_to_groups() {
    for (from, to, group) in [
        ("10.0.0.1:5000", "10.9.9.9:1", "224.0.0.251:1"),
        ("[fd00::1]:5000", "[2001:db8::7]:1", "[ff02::fb]:1"),
    ] {
        let template = Template::new(&sender(from, None)).unwrap();
        assert!(check(&template, &udp(from, to).frame()).is_ok());
        let to_group = udp(from, group).frame();
        assert_eq!(check(&template, &to_group), Err(Forbidden::Destination));
        let mut by_group = udp(from, to);
        by_group.macs.1 = GROUP;
        assert_eq!(check(&template, &by_group.frame()), Err(Forbidden::NextHop));
    }
    let template = Template::new(&sender("10.0.0.1:5000", None)).unwrap();
    let to_all = udp("10.0.0.1:5000", "255.255.255.255:1").frame();
    assert_eq!(check(&template, &to_all), Err(Forbidden::Destination));
}

#[test]
fn a_flow_to_a_group_needs_the_ethernet_address_of_the_group() {
    let mut to_group = sender("10.0.0.1:5000", Some("224.1.2.3:53"));
    let refused = Template::new(&to_group).unwrap_err();
    assert!(matches!(refused, BadSender::NextHop { .. }), "{refused}");
    to_group.next_hop = Some(GROUP);
    let template = Template::new(&to_group).unwrap();
    let mut datagram = udp("10.0.0.1:5000", "224.1.2.3:53");
    datagram.macs.1 = GROUP;
    assert!(check(&template, &datagram.frame()).is_ok());
}

#[test]
fn an_invalid_sender_is_refused_with_its_reason() {
    let ok = sender("10.0.0.1:5000", Some("10.0.0.2:53"));
    let bad = |sender: Sender| Template::new(&sender).unwrap_err();
    let from = |local, remote| {
        let sends = sender(local, remote).sends;
        bad(Sender { sends, ..ok })
    };
    assert_eq!(bad(Sender { mac: GROUP, ..ok }), BadSender::Mac(GROUP));
    for local in [
        "0.0.0.0:1",
        "127.0.0.1:1",
        "224.0.0.1:1",
        "[::ffff:10.0.0.1]:1",
    ] {
        assert_eq!(from(local, None), BadSender::Local(endpoint(local).ip()));
    }
    assert_eq!(from("10.0.0.1:0", Some("10.0.0.2:1")), BadSender::Port);
    assert_eq!(from("10.0.0.1:1", Some("10.0.0.2:0")), BadSender::Port);
    let refused = from("10.0.0.1:1", Some("[fd00::2]:1"));
    assert!(matches!(refused, BadSender::Families { .. }), "{refused}");
    let longest = BadSender::Longest {
        longest: 41,
        headers: 42,
    };
    assert_eq!(bad(Sender { longest: 41, ..ok }), longest);
}

#[test]
fn every_bit_of_the_headers_is_fixed_or_listed_as_free() {
    for (from, to) in [
        ("10.0.0.1:5000", "10.0.0.2:53"),
        ("[fd00::1]:5000", "[fd00::2]:53"),
    ] {
        let granted = sender(from, Some(to));
        let template = Template::new(&granted).unwrap();
        let right = udp(from, to).data(&[0; 60]).frame();
        let mut free = BTreeSet::new();
        for bit in 0..8 * template.headers() {
            let mut frame = right.clone();
            frame[bit / 8] ^= 0x80 >> (bit % 8);
            mend_checksum(&mut frame);
            let left = check(&template, &frame);
            let allowed = left.is_ok();
            assert!(left.is_ok_and(|left| left == addressed(&granted, &frame)) == allowed);
            assert_eq!(
                allowed,
                naive(&granted, &addressed(&granted, &frame)),
                "bit {bit}"
            );
            if allowed {
                free.insert(bit / 8);
            }
        }
        let expected: BTreeSet<usize> = match granted.sends {
            // The Ethernet addresses, which the template writes; type of service, identification,
            // don't-fragment, hops, both checksums.
            Sends::Ports { local, .. } if local.is_ipv4() => (0..12)
                .chain([15, 18, 19, 20, 22, 24, 25, 40, 41])
                .collect(),
            // The Ethernet addresses; traffic class, flow label, hops, UDP's checksum.
            _ => (0..12).chain([14, 15, 16, 17, 21, 60, 61]).collect(),
        };
        assert_eq!(free, expected);
    }
}

/// Every combination of a right value and some wrong ones, field by field: 186,624 headers.
#[test]
fn a_grid_of_headers_is_checked_as_by_an_independent_checker() {
    let granted = sender("10.0.0.1:5000", Some("10.0.0.2:53"));
    let template = Template::new(&granted).unwrap();
    let right = udp("10.0.0.1:5000", "10.0.0.2:53").frame();
    let fields: [(usize, &[u8]); 12] = [
        (0, &[2, 3]),
        (11, &[1, 2]),
        (12, &[0x08, 0x81, 0x86]),
        (14, &[0x45, 0x46, 0x65]),
        (17, &[35, 34, 36]),
        (20, &[0x40, 0x00, 0x20]),
        (21, &[0, 1]),
        (22, &[64, 0]),
        (23, &[17, 6, 1]),
        (29, &[1, 2]),
        (33, &[2, 3]),
        (35, &[0x88, 0x89]),
    ];
    let lasts: [(usize, &[u8]); 2] = [(37, &[53, 54]), (39, &[15, 14, 16])];
    let all: Vec<_> = fields.into_iter().chain(lasts).collect();
    let count: usize = all.iter().map(|(_, values)| values.len()).product();
    let mut passed = 0;
    for case in 0..count {
        let mut frame = right.clone();
        let mut rest = case;
        for (at, values) in &all {
            frame[*at] = values[rest % values.len()];
            rest /= values.len();
        }
        mend_checksum(&mut frame);
        let allowed = check(&template, &frame).is_ok();
        assert_eq!(
            allowed,
            naive(&granted, &addressed(&granted, &frame)),
            "{frame:02x?}"
        );
        passed += usize::from(allowed);
    }
    // Right in all but the addresses, with or without don't-fragment.
    assert_eq!((count >= 100_000, passed), (true, 8));
}

fn any_sender() -> impl Strategy<Value = (Sender, Datagram)> {
    let ends = prop::sample::select(vec![
        ("10.0.0.1:5000", "10.0.0.2:53"),
        ("[fd00::1]:5000", "[fd00::2]:53"),
    ]);
    let what = (ends, any::<[bool; 3]>(), 0..4_u8, 0..60_usize);
    what.prop_map(|((from, to), [is_tcp, connected, by_peer], kind, length)| {
        let mut sender = sender(from, connected.then_some(to));
        sender.next_hop = by_peer.then_some(PEER);
        let mut datagram = udp(from, to).data(&vec![0; length]);
        if is_tcp {
            datagram.transport = Transport::Tcp;
        }
        let (local, remote) = (endpoint(from), connected.then(|| endpoint(to)));
        sender.sends = match kind {
            0 => Sends::EtherType(EtherType::new(0x88b5).unwrap()),
            1 => Sends::Protocol {
                protocol: IpProtocol::new(132).unwrap(),
                local: local.ip(),
                remote: remote.map(|remote| remote.ip()),
            },
            _ => Sends::Ports {
                transport: datagram.transport,
                local,
                remote,
            },
        };
        (sender, datagram)
    })
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn any_frame_is_checked_as_by_an_independent_checker(
        (sender, datagram) in any_sender(),
        number in prop::sample::select(vec![(20_usize, 17_u8), (20, 132), (23, 132), (12, 0x88)]),
        as_other in any::<bool>(),
        damage in prop::collection::vec(Damage::any(), 0..3),
        mend in any::<bool>(),
    ) {
        let template = Template::new(&sender).unwrap();
        let mut frame = datagram.frame();
        if as_other {
            frame[number.0] = number.1;
            if number.0 == 12 {
                frame[13] = 0xb5;
            }
        }
        damage.iter().for_each(|one| one.apply(&mut frame));
        if mend {
            mend_checksum(&mut frame);
        }
        let expected = naive(&sender, &addressed(&sender, &frame));
        prop_assert_eq!(check(&template, &frame).is_ok(), expected);
    }
}
