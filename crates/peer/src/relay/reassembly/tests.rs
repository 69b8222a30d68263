use netnice_cases::cases;
use netnice_channel::ChannelId;
use proptest::prelude::*;

use super::*;

/// Packets of 8 bytes of payload, and messages of at most 60: 8 packets, the last of 4 bytes.
const PACKET: u16 = 40;
const LONGEST: u64 = 60;
const MESSAGE_BYTES: usize = 60 + 8 * 32;

fn reassembly() -> Reassembly {
    Reassembly::new(PACKET, Bytes(LONGEST)).expect("valid")
}

fn header(message: u64, part: u16, count: u16) -> PacketHeader {
    PacketHeader {
        channel: ChannelId([7; 16]),
        message,
        part,
        count,
    }
}

/// A packet whose payload depends on its place.
fn packet(message: u64, part: u16, count: u16, payload: usize) -> Vec<u8> {
    let mut packet = header(message, part, count).encode().to_vec();
    let first = (message as u8).wrapping_mul(31).wrapping_add(part as u8);
    packet.extend((0..payload).map(|at| first.wrapping_add(at as u8)));
    packet
}

/// The packets of a message with so many bytes of payload.
fn message(number: u64, payload: usize) -> Vec<Vec<u8>> {
    let count = payload.div_ceil(8).max(1);
    let length = |part: usize| (payload - part * 8).min(8);
    (0..count)
        .map(|part| packet(number, part as u16, count as u16, length(part)))
        .collect()
}

/// Takes a packet, and checks that the memory is bounded and that every packet is passed, dropped
/// for one reason, held, or abandoned with its message.
fn accept(reassembly: &mut Reassembly, packet: &[u8], at: u64) -> Option<WholeMessage> {
    let header = PacketHeader::decode(packet).expect("a header");
    let unpassed = |reassembly: &Reassembly| {
        let (counts, parts) = (reassembly.counts(), &reassembly.parts);
        let dropped = counts.duplicates + counts.too_late + counts.malformed;
        dropped + parts.abandoned_parts() + parts.held_parts()
    };
    let passed_before = reassembly.counts().packets - unpassed(reassembly);
    let whole = reassembly.accept(&header, packet, Instant(at));
    assert!(reassembly.parts.memory() <= (MOST_INCOMPLETE + 1) * MESSAGE_BYTES);
    let passed = whole
        .as_ref()
        .map_or(0, |whole| whole.packets().count() as u64);
    let all = passed_before + passed + unpassed(reassembly);
    assert_eq!(reassembly.counts().packets, all);
    whole
}

fn packets(whole: &WholeMessage) -> Vec<Vec<u8>> {
    whole.packets().map(<[u8]>::to_vec).collect()
}

#[test]
fn a_message_is_passed_unchanged_when_its_last_packet_arrives() {
    for payload in [0, 1, 7, 8, 9, 59, 60] {
        let mut reassembly = reassembly();
        let sent = message(3, payload);
        let (first, rest) = sent.split_first().expect("a packet");
        for (at, packet) in rest.iter().rev().enumerate() {
            assert_eq!(accept(&mut reassembly, packet, at as u64), None);
        }
        let whole = accept(&mut reassembly, first, 99).expect("whole");
        assert_eq!((whole.number, whole.arrival), (3, Instant(99)));
        assert_eq!(packets(&whole), sent);
    }
}

#[test]
fn a_whole_message_abandons_older_ones_and_their_late_packets_are_dropped() {
    let mut reassembly = reassembly();
    let (old, new) = (message(5, 20), message(9, 10));
    assert_eq!(accept(&mut reassembly, &old[0], 0), None);
    assert_eq!(accept(&mut reassembly, &new[0], 0), None);
    assert!(accept(&mut reassembly, &new[1], 0).is_some());
    for late in [&old[1], &new[0], &message(0, 1)[0]] {
        assert_eq!(accept(&mut reassembly, late, 0), None);
    }
    let expected = ReassemblyCounts {
        packets: 6,
        messages: 1,
        too_late: 3,
        incomplete: 1,
        ..ReassemblyCounts::default()
    };
    assert_eq!(reassembly.counts(), expected);
    assert_eq!(reassembly.parts.abandoned_parts(), 1);
    // The last number of all.
    let last = packet(u64::MAX, 0, 1, 3);
    assert!(accept(&mut reassembly, &last, 0).is_some());
    assert_eq!(accept(&mut reassembly, &last, 0), None);
    assert_eq!(reassembly.counts().too_late, 4);
}

#[test]
fn a_fifth_incomplete_message_abandons_the_oldest_and_never_a_newer_one() {
    let mut reassembly = reassembly();
    for number in [10, 11, 12, 13] {
        accept(&mut reassembly, &message(number, 60)[0], 0);
    }
    // Too old beside four newer ones.
    accept(&mut reassembly, &message(9, 60)[0], 0);
    assert_eq!(reassembly.counts().too_late, 1);
    accept(&mut reassembly, &message(14, 60)[0], 0);
    assert_eq!(reassembly.counts().incomplete, 1);
    // Four newer ones are incomplete now.
    accept(&mut reassembly, &message(10, 60)[1], 0);
    assert_eq!(reassembly.counts().too_late, 2);
    for number in 11..=14 {
        let rest = &message(number, 60)[1..];
        let whole = rest
            .iter()
            .filter_map(|packet| accept(&mut reassembly, packet, 0));
        assert_eq!(whole.count(), 1, "{number}");
    }
}

#[test]
fn packets_that_contradict_the_contract_or_each_other_are_dropped() {
    let mut reassembly = reassembly();
    let malformed = [
        // Not the longest packet, and not the last.
        packet(1, 0, 2, 7),
        packet(1, 0, 2, 9),
        // The last one is empty, or too long.
        packet(1, 1, 2, 0),
        packet(1, 1, 2, 9),
        packet(1, 0, 1, 9),
        // 61 bytes of payload, and 65.
        packet(1, 7, 8, 5),
        packet(1, 8, 9, 1),
        // With this many packets the message would be too long, whatever follows.
        packet(1, 0, 9, 8),
        packet(1, 0, u16::MAX, 8),
    ];
    for packet in &malformed {
        assert_eq!(accept(&mut reassembly, packet, 0), None);
    }
    assert_eq!(reassembly.counts().malformed, 9);
    assert_eq!(reassembly.parts.memory(), 0);
    // Another number of packets than before.
    accept(&mut reassembly, &packet(1, 0, 3, 8), 0);
    accept(&mut reassembly, &packet(1, 1, 4, 8), 0);
    assert_eq!(reassembly.counts().malformed, 10);
    // Twice.
    accept(&mut reassembly, &packet(1, 0, 3, 8), 0);
    assert_eq!(reassembly.counts().duplicates, 1);
}

/// Any packet: of few messages, so that they are often completed, or of any numbers.
fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    let plausible = (0_u64..12, 0_usize..=60, any::<prop::sample::Index>())
        .prop_map(|(number, payload, which)| which.get(&message(number, payload)).clone());
    let wild = (any::<u64>(), any::<u16>(), 1..=u16::MAX, 0_usize..20)
        .prop_map(|(number, part, count, payload)| packet(number, part % count, count, payload));
    prop_oneof![9 => plausible, 1 => wild]
}

proptest! {
    #![proptest_config(cases(256))]

    /// Whatever arrives: every packet is passed, dropped for one reason, or held; the memory is
    /// bounded ([`accept`] checks both); and messages leave whole, once, in ascending order.
    #[test]
    fn messages_are_passed_whole_and_in_order_whatever_arrives(
        arrived in prop::collection::vec(any_packet(), 0..400),
    ) {
        let mut reassembly = reassembly();
        let mut last = None;
        for (at, packet) in arrived.iter().enumerate() {
            let Some(whole) = accept(&mut reassembly, packet, at as u64) else {
                continue;
            };
            prop_assert!(last.is_none_or(|last| last < whole.number));
            last = Some(whole.number);
            let packets = packets(&whole);
            let mut payload = 0;
            for (part, packet) in packets.iter().enumerate() {
                let header = PacketHeader::decode(packet).expect("a header");
                prop_assert_eq!(header.message, whole.number);
                prop_assert_eq!(usize::from(header.part), part);
                prop_assert_eq!(usize::from(header.count), packets.len());
                prop_assert!(arrived[..=at].contains(packet));
                payload += packet.len() - PacketHeader::LENGTH;
            }
            prop_assert!(payload <= LONGEST as usize);
        }
    }

    /// What arrives complete, in any order of its packets and with every packet twice, is passed.
    #[test]
    fn complete_messages_are_passed_in_any_order_of_their_packets(
        payload in 0_usize..=60,
        order in Just((0..16).collect::<Vec<usize>>()).prop_shuffle(),
    ) {
        let mut reassembly = reassembly();
        let sent = message(4, payload);
        let arrived = order.iter().map(|at| &sent[at % sent.len()]);
        let whole: Vec<Vec<Vec<u8>>> = arrived
            .filter_map(|packet| accept(&mut reassembly, packet, 0))
            .map(|whole| packets(&whole))
            .collect();
        prop_assert_eq!(whole, [sent]);
    }
}

#[test]
fn without_room_for_a_payload_or_with_too_many_packets_there_is_no_reassembly() {
    assert!(Reassembly::new(32, Bytes(10)).is_none());
    assert!(Reassembly::new(33, Bytes(65_536)).is_none());
    assert!(Reassembly::new(33, Bytes(65_535)).is_some());
}
