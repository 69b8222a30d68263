use etherparse::{EtherType as Kind, SlicedPacket};
use netnice_cases::cases;
use proptest::prelude::*;

use super::hostile::{connected, group, is_later_fragment, naive, port, syn, table};
use super::*;
use crate::damage::Damage;
use crate::pattern::Term;
use crate::protocol::{EtherType, IpProtocol};
use crate::test_frames::{Datagram, OWN, PEER, endpoint, mend_checksum, udp};

mod kept;

const NOW: Instant = Instant(1_000);

fn to(from: &str, to: &str) -> Vec<u8> {
    let mut datagram = udp(from, to).received();
    if is_to_group(&datagram) {
        datagram.macs.1 = Mac([1, 0, 0x5e, 0, 0, 1]);
    }
    datagram.frame()
}

fn is_to_group(datagram: &Datagram) -> bool {
    let (family, number) = number_of(datagram.to.ip());
    is_group(family, number)
}

fn owner(demux: &mut Demux, frame: &[u8]) -> Option<u32> {
    match demux.handle(frame, NOW) {
        Verdict::One { flow, end } => {
            assert_eq!(end, frame.len());
            Some(flow.0)
        }
        Verdict::Unclaimed => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_most_specific_match_gets_a_frame() {
    let mut demux = table(&[
        connected("10.0.0.1:53", "10.0.0.9:4000"),
        port("10.0.0.1:53"),
        port("0.0.0.0:53"),
        port("[::]:53"),
    ]);
    let mut flow_of = |from, dest| owner(&mut demux, &to(from, dest));
    assert_eq!(flow_of("10.0.0.9:4000", "10.0.0.1:53"), Some(0));
    assert_eq!(flow_of("10.0.0.9:4001", "10.0.0.1:53"), Some(1));
    assert_eq!(flow_of("10.0.0.8:4000", "10.0.0.1:53"), Some(1));
    assert_eq!(flow_of("10.0.0.9:4000", "10.0.0.3:53"), Some(2));
    assert_eq!(flow_of("[fd00::9]:4000", "[fd00::1]:53"), Some(3));
    assert_eq!(flow_of("10.0.0.9:4000", "10.0.0.1:54"), None);
    assert_eq!(demux.remove(FlowNo(0)).unwrap().received, 1);
    assert_eq!(demux.remove(FlowNo(1)).unwrap().received, 2);
    assert_eq!(
        owner(&mut demux, &to("10.0.0.9:4000", "10.0.0.1:53")),
        Some(2)
    );
    demux.remove(FlowNo(2)).unwrap();
    assert_eq!(owner(&mut demux, &to("10.0.0.9:4000", "10.0.0.1:53")), None);
    demux.invariants();
}

/// A segment of TCP with these flags.
fn segment(from: &str, to: &str, flags: u8) -> Vec<u8> {
    let mut datagram = udp(from, to).received();
    datagram.transport = Transport::Tcp;
    let mut frame = datagram.frame();
    let header = frame.len() - datagram.data.len() - 20;
    frame[header + 13] = flags;
    frame
}

#[test]
fn a_connection_comes_before_the_requests_and_they_before_the_listener() {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    for (local, peer, other) in [
        ("10.0.0.1:80", "10.0.0.9:4000", "10.0.0.9:4001"),
        ("[fd00::1]:80", "[fd00::9]:4000", "[fd00::9]:4001"),
    ] {
        let tcp = Transport::Tcp;
        let own = endpoint(local);
        let connection = Match::Connected {
            transport: tcp,
            local: own,
            remote: endpoint(peer),
        };
        let listener = Match::Port {
            transport: tcp,
            local: own,
        };
        let mut demux = table(&[connection, listener.clone(), syn(local), port(local)]);
        let mut flow_of = |from: &str, flags| owner(&mut demux, &segment(from, local, flags));
        for flags in [SYN, SYN | ACK, ACK, 4, 0] {
            assert_eq!(flow_of(peer, flags), Some(0), "{flags}");
            let of_others = if flags == SYN { 2 } else { 1 };
            assert_eq!(flow_of(other, flags), Some(of_others), "{flags}");
        }
        // ECN's flags are set in a request, too (RFC 3168).
        assert_eq!(flow_of(other, SYN | 0xc0), Some(2));
        // The other transport has its own ports.
        assert_eq!(owner(&mut demux, &to(other, local)), Some(3));
        let taken = demux.add_match(FlowNo(0), &syn(local));
        assert_eq!(taken, Err(MatchError::Taken));
        // Without a flow of requests the listener gets them; without both the kernel.
        demux.remove(FlowNo(2)).unwrap();
        assert_eq!(owner(&mut demux, &segment(other, local, SYN)), Some(1));
        demux.remove(FlowNo(1)).unwrap();
        assert_eq!(owner(&mut demux, &segment(other, local, SYN)), None);
        demux.insert(FlowNo(2), Reassembly::Complete).unwrap();
        demux.add_match(FlowNo(2), &syn(local)).unwrap();
        assert_eq!(owner(&mut demux, &segment(other, local, ACK)), None);
        demux.invariants();
    }
    let mut demux = table(&[port("10.0.0.1:53")]);
    for wrong in ["0.0.0.0:80", "224.0.0.1:80", "10.0.0.1:0"] {
        assert!(demux.add_match(FlowNo(0), &syn(wrong)).is_err(), "{wrong}");
    }
}

/// A segment in fragments goes where its first fragment goes.
#[test]
fn the_fragments_of_a_segment_stay_together() {
    let mut demux = table(&[syn("10.0.0.1:80")]);
    let mut datagram = udp("10.0.0.9:4000", "10.0.0.1:80").received();
    datagram.transport = Transport::Tcp;
    let mut parts = datagram.data(&[0; 60]).fragments(24);
    parts[0][14 + 20 + 13] = 2;
    assert_eq!(parts.len(), 4);
    for part in parts {
        assert_eq!(owner(&mut demux, &part), Some(0));
    }
}

#[test]
fn an_ipv4_mapped_address_does_not_match_a_flow_of_ipv4() {
    let mut demux = table(&[port("10.0.0.1:53")]);
    let mapped = to("[::ffff:10.0.0.9]:4000", "[::ffff:10.0.0.1]:53");
    assert_eq!(owner(&mut demux, &mapped), None);
    let plain = to("[::9]:4000", "[::a00:1]:53");
    assert_eq!(owner(&mut demux, &plain), None);
}

#[test]
fn a_frame_to_another_ethernet_address_is_unclaimed() {
    let mut demux = table(&[port("10.0.0.1:53"), group("224.1.1.1:53")]);
    let mut datagram = udp("10.0.0.9:1", "10.0.0.1:53").received();
    datagram.macs.1 = PEER;
    assert_eq!(demux.handle(&datagram.frame(), NOW), Verdict::Unclaimed);
    // A frame to the broadcast address for a single IP address is unclaimed too.
    datagram.macs.1 = Mac([0xff; 6]);
    assert_eq!(demux.handle(&datagram.frame(), NOW), Verdict::Unclaimed);
}

#[test]
fn each_member_of_a_group_gets_a_copy() {
    let mut demux = table(&[
        group("224.1.1.1:53"),
        group("224.1.1.1:53"),
        port("0.0.0.0:53"),
        group("[ff02::5]:53"),
    ]);
    let frame = to("10.0.0.9:1", "224.1.1.1:53");
    let end = frame.len();
    let flows = &[FlowNo(0), FlowNo(1)][..];
    assert_eq!(demux.handle(&frame, NOW), Verdict::Several { flows, end });
    // A flow that has not joined gets nothing, although its port is the same.
    assert_eq!(owner(&mut demux, &to("10.0.0.9:1", "224.1.1.2:53")), None);
    let six = to("[fd00::9]:1", "[ff02::5]:53");
    assert!(matches!(
        demux.handle(&six, NOW),
        Verdict::Several {
            flows: [FlowNo(3)],
            ..
        }
    ));
    demux.remove(FlowNo(0)).unwrap();
    assert!(matches!(
        demux.handle(&frame, NOW),
        Verdict::Several {
            flows: [FlowNo(1)],
            ..
        }
    ));
    demux.remove(FlowNo(1)).unwrap();
    assert_eq!(owner(&mut demux, &frame), None);
    demux.invariants();
    let counters = demux.counters();
    assert_eq!((counters.copied, counters.unclaimed), (3, 2));
}

fn pattern(offset: u16, width: u8, value: u64) -> Pattern {
    let term = Term {
        offset,
        width,
        mask: u64::MAX >> (64 - 8 * width),
        value,
    };
    Pattern::new(&[term]).unwrap()
}

#[test]
fn frames_of_other_protocols_are_classified_by_pattern() {
    let sctp = IpProtocol::new(132).unwrap();
    let local = endpoint("10.0.0.1:1").ip();
    let protocol = |pattern| Match::Protocol {
        protocol: sctp,
        local,
        pattern,
    };
    let kind = EtherType::new(0x88b5).unwrap();
    let mut demux = table(&[
        protocol(pattern(2, 2, 5000)),
        protocol(Pattern::new(&[]).unwrap()),
        Match::EtherType {
            kind,
            pattern: pattern(0, 1, 9),
        },
    ]);
    let mut frame = to("10.0.0.9:1", "10.0.0.1:5000");
    frame[23] = 132;
    mend_checksum(&mut frame);
    assert_eq!(owner(&mut demux, &frame), Some(0));
    frame[37] ^= 1;
    assert_eq!(owner(&mut demux, &frame), Some(1));
    frame[33] = 7;
    mend_checksum(&mut frame);
    assert_eq!(owner(&mut demux, &frame), None);
    frame[12..15].copy_from_slice(&[0x88, 0xb5, 9]);
    assert_eq!(owner(&mut demux, &frame), Some(2));
    frame[14] = 8;
    assert_eq!(owner(&mut demux, &frame), None);
    for flow in 0..3 {
        demux.remove(FlowNo(flow)).unwrap();
    }
    assert!(demux.protocols.is_empty() && demux.ethertypes.is_empty());
}

#[test]
fn a_frame_that_matches_a_discard_pattern_reaches_no_flow() {
    let mut demux = table(&[port("10.0.0.1:53")]);
    let from_nine = pattern(26, 4, 0x0a00_0009);
    let mut discards = Patterns::default();
    discards.insert(&from_nine, ()).unwrap();
    demux.discard(discards);
    let frame = to("10.0.0.9:1", "10.0.0.1:53");
    assert_eq!(
        demux.handle(&frame, NOW),
        Verdict::Discarded(Discard::Pattern)
    );
    assert_eq!(owner(&mut demux, &to("10.0.0.8:1", "10.0.0.1:53")), Some(0));
    demux.discard(Patterns::default());
    assert_eq!(owner(&mut demux, &frame), Some(0));
    assert_eq!(demux.counters_of(FlowNo(0)).unwrap().received, 2);
}

#[test]
fn an_invalid_match_is_refused_with_its_reason() {
    let mut demux = table(&[port("10.0.0.1:53")]);
    demux.insert(FlowNo(1), Reassembly::Complete).unwrap();
    let mut bad = |what: &Match| demux.add_match(FlowNo(1), what).unwrap_err();
    assert_eq!(bad(&port("10.0.0.1:53")), MatchError::Taken);
    assert_eq!(bad(&port("10.0.0.1:0")), MatchError::Port);
    for address in ["127.0.0.1:1", "224.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
        assert_eq!(
            bad(&port(address)),
            MatchError::Address(endpoint(address).ip())
        );
    }
    assert_eq!(
        bad(&group("10.0.0.1:1")),
        MatchError::Address(endpoint("10.0.0.1:1").ip())
    );
    let refused = bad(&connected("10.0.0.1:53", "[fd00::1]:1"));
    assert!(matches!(refused, MatchError::Families { .. }));
    assert_eq!(
        demux.insert(FlowNo(1), Reassembly::Complete),
        Err(MatchError::Taken)
    );
    let beyond = FlowNo(MAX_FLOWS + 1);
    assert_eq!(
        demux.insert(beyond, Reassembly::Complete),
        Err(MatchError::Number(beyond.0))
    );
    for k in 0..MAX_MATCHES {
        demux
            .add_match(FlowNo(1), &port(&format!("10.0.0.1:{}", 100 + k)))
            .unwrap();
    }
    let one_more = port("10.0.0.1:99");
    assert_eq!(
        demux.add_match(FlowNo(1), &one_more),
        Err(MatchError::Matches)
    );
    for k in 0..MAX_MEMBERS as u32 {
        demux.insert(FlowNo(10 + k), Reassembly::InOrder).unwrap();
        demux
            .add_match(FlowNo(10 + k), &group("224.1.1.1:53"))
            .unwrap();
    }
    demux.insert(FlowNo(2), Reassembly::InOrder).unwrap();
    assert_eq!(
        demux.add_match(FlowNo(2), &group("224.1.1.1:53")),
        Err(MatchError::Group)
    );
    demux.invariants();
}

const OWN_ENDS: [&str; 8] = [
    "10.0.0.1:53",
    "10.0.0.1:54",
    "10.0.0.2:53",
    "0.0.0.0:53",
    "[fd00::1]:53",
    "[::]:53",
    "224.1.1.1:53",
    "[ff02::5]:53",
];
const OTHER_ENDS: [&str; 4] = ["10.0.0.9:1", "10.0.0.9:2", "[fd00::9]:1", "[fd00::9]:2"];

fn any_match() -> impl Strategy<Value = Match> {
    let own = prop::sample::select(OWN_ENDS.to_vec());
    let other = prop::sample::select(OTHER_ENDS.to_vec());
    (own, other, any::<bool>(), any::<bool>()).prop_map(|(own, other, is_tcp, by_both)| {
        let transport = if is_tcp {
            Transport::Tcp
        } else {
            Transport::Udp
        };
        let (local, remote) = (endpoint(own), endpoint(other));
        match (local.ip().is_multicast(), by_both) {
            (true, _) => Match::Group {
                transport,
                group: local,
            },
            (false, true) => Match::Connected {
                transport,
                local,
                remote,
            },
            (false, false) => Match::Port { transport, local },
        }
    })
}

/// A datagram between endpoints of one family.
fn any_datagram() -> impl Strategy<Value = Datagram> {
    let to_one = OWN_ENDS
        .into_iter()
        .filter(|own| !endpoint(own).ip().is_unspecified());
    let own = prop::sample::select(to_one.collect::<Vec<_>>());
    let shape = (own, 0..2_usize, any::<bool>(), any::<bool>(), 0..40_usize);
    shape.prop_map(|(own, other, is_tcp, by_group, length)| {
        let local = endpoint(own);
        let other = OTHER_ENDS[other + 2 * usize::from(local.is_ipv6())];
        let mut datagram = udp(other, own).received().data(&vec![0; length]);
        if is_tcp {
            datagram.transport = Transport::Tcp;
        }
        if by_group || local.ip().is_multicast() {
            datagram.macs.1 = Mac([1, 0, 0x5e, 0, 0, 1]);
        }
        datagram
    })
}

proptest! {
    #![proptest_config(cases(1000))]

    /// No frame, damaged or not, goes to a flow that the naive rules do not name. A flow that the
    /// naive rules name gets its undamaged frames. Each frame is counted once.
    #[test]
    fn frames_go_to_the_flows_that_naive_rules_name(
        wanted in prop::collection::vec(any_match(), 0..12),
        removed in any::<prop::sample::Index>(),
        frames in prop::collection::vec(
            (any_datagram(), prop::collection::vec(Damage::any(), 0..2), any::<bool>()), 1..30),
    ) {
        let mut demux = Demux::new(OWN);
        let mut flows = Vec::new();
        for what in &wanted {
            let flow = FlowNo(flows.len() as u32);
            demux.insert(flow, Reassembly::Complete).unwrap();
            match demux.add_match(flow, what) {
                Ok(()) => flows.push(what.clone()),
                Err(_) => {
                    demux.remove(flow).unwrap();
                }
            }
        }
        for (k, (datagram, damage, mend)) in frames.iter().enumerate() {
            if k == frames.len() / 2 && !flows.is_empty() {
                let gone = removed.index(flows.len());
                if demux.remove(FlowNo(gone as u32)).is_some() {
                    let nothing = EtherType::new(0x88b5).unwrap();
                    let pattern = Pattern::new(&[]).unwrap();
                    flows[gone] = Match::EtherType { kind: nothing, pattern };
                }
            }
            let mut frame = datagram.frame();
            damage.iter().for_each(|one| one.apply(&mut frame));
            if *mend {
                mend_checksum(&mut frame);
            }
            let expected = naive(&flows, &frame);
            let verdict = demux.handle(&frame, Instant(k as u64));
            let found = match verdict {
                Verdict::One { flow, .. } => Some(vec![flow.0]),
                Verdict::Several { flows, .. } => Some(flows.iter().map(|flow| flow.0).collect()),
                _ => None,
            };
            if found.is_some() || damage.is_empty() {
                // A frame that the independent parser rejects for bytes behind the headers read
                // here is not compared.
                let is_compared = expected.is_some() || SlicedPacket::from_ethernet(&frame).is_ok();
                if is_compared && !is_later_fragment(&frame) {
                    prop_assert_eq!(found, expected, "{:02x?}", frame);
                }
            }
            demux.invariants();
        }
    }

    /// Any input is handled without a panic, and every frame is counted.
    #[test]
    fn any_frame_is_counted_once(
        frames in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..100), 0..4_u8, 0..3_000_000_000_u64), 1..60),
    ) {
        let mut demux = table(&[port("0.0.0.0:53"), group("224.1.1.1:53"), port("[::]:53")]);
        let mut now = 0;
        for (bytes, kind, later) in frames {
            let mut frame = bytes;
            if frame.len() > 54 && kind > 0 {
                frame[..6].copy_from_slice(&OWN.0);
                let own = match kind {
                    1 => to("10.0.0.9:1", "10.0.0.1:53"),
                    2 => to("[fd00::9]:1", "[fd00::1]:53"),
                    _ => {
                        let datagram = udp("10.0.0.9:1", "10.0.0.1:53").received();
                        datagram.data(&[0; 40]).fragments(16)[1].clone()
                    }
                };
                let headers = 12 + usize::from(frame[20] % 12);
                frame[..headers].copy_from_slice(&own[..headers]);
                let length = frame.len() as u16 - 14;
                frame[16..18].copy_from_slice(&length.to_be_bytes());
                mend_checksum(&mut frame);
            }
            now += later;
            demux.handle(&frame, Instant(now));
            while demux.poll_released().is_some() {}
            demux.invariants();
        }
    }
}

#[test]
fn a_frame_with_a_vlan_tag_is_unclaimed() {
    let mut demux = table(&[port("10.0.0.1:53")]);
    let mut frame = to("10.0.0.9:1", "10.0.0.1:53");
    frame.splice(12..12, [0x81, 0, 0, 5]);
    assert_eq!(Kind::VLAN_TAGGED_FRAME.0, 0x8100);
    assert_eq!(owner(&mut demux, &frame), None);
}
