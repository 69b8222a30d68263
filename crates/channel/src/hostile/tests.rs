use netnice_cases::{Corpus, cases};
use proptest::prelude::*;

use super::{CHECKED, PLAIN, correct_lengths, outcome_of};
use crate::{ChannelId, PacketHeader};

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

#[test]
fn every_kept_input_has_the_outcome_of_its_name() {
    let outcomes = [
        "nothing",
        "short",
        "version",
        "reserved",
        "nopart",
        "foreign",
        "corrupted",
        "malformed",
        "duplicate",
        "late",
        "part",
        "complete",
    ];
    corpus().replay(outcome_of, &outcomes);
}

/// A packet behind its length.
fn packet(channel: ChannelId, message: u64, (part, count): (u16, u16), payload: usize) -> Vec<u8> {
    let header = PacketHeader {
        channel,
        message,
        part,
        count,
    };
    let mut packet = header.encode().to_vec();
    packet.resize(PacketHeader::LENGTH + payload, 7);
    let mut all = (packet.len() as u16).to_be_bytes().to_vec();
    all.extend(packet);
    all
}

fn near_packets() -> impl Strategy<Value = Vec<u8>> {
    let channel = prop_oneof![Just(PLAIN), Just(CHECKED), Just(ChannelId([9; 16]))];
    let message = prop_oneof![0_u64..9, u64::MAX - 3..=u64::MAX];
    let packet = (channel, message, (0_u16..6, 0_u16..6), 0_usize..24)
        .prop_map(|(channel, message, part, payload)| packet(channel, message, part, payload));
    prop::collection::vec(packet, 0..40).prop_map(|packets| packets.concat())
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn packets_near_the_corpus_harm_nothing(input in corpus().near(), corrected in any::<bool>()) {
        let mut input = input;
        if corrected {
            correct_lengths(&mut input);
        }
        outcome_of(&input);
    }

    #[test]
    fn series_of_plausible_packets_harm_nothing(input in near_packets()) {
        let mut input = input;
        correct_lengths(&mut input);
        outcome_of(&input);
    }
}
