//! A connection's reaction to any bytes, in any pieces, with any descriptors.

use std::io::{Read as _, Write as _};

use netnice_api::decode_driver_message;
use netnice_api::frame::encode;
use netnice_cases::{Corpus, cases};
use proptest::prelude::*;

use super::hostile::{Sent, judged, pieces, played};
use super::*;

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/connection"))
}

#[test]
fn streams_that_are_kept_end_as_they_did() {
    let outcomes = [
        "calls",
        "nothing",
        "descriptors",
        "empty",
        "long",
        "json",
        "version",
    ];
    corpus().replay(judged, &outcomes);
}

/// The longest allowed message arrives in several pieces and is accepted; one byte more is refused.
#[test]
fn a_message_of_the_limit_is_taken() {
    for (length, end) in [
        (LONGEST_DRIVER_CALL, "json"),
        (LONGEST_DRIVER_CALL + 1, "long"),
    ] {
        let frame = encode(&vec![b'x'; length], usize::MAX).expect("by another's limit");
        let sent: Vec<Sent> = frame
            .chunks(10_000)
            .map(|bytes| Sent {
                descriptors: 0,
                bytes: bytes.to_vec(),
            })
            .collect();
        assert_eq!(played(&sent), end);
    }
}

/// No call is taken from a peer that does not read. When the peer reads, it gets all answers in
/// order.
#[test]
fn calls_wait_while_much_is_unread() {
    let (own, mut peer) = UnixStream::pair().expect("a pair");
    let mut connection = Connection::new(own).expect("a connection");
    peer.set_nonblocking(true).expect("it can");
    for id in 0..100 {
        let ask = netnice_api::driver::DriverRequest::Census;
        let call =
            netnice_api::encode_driver_call(&DriverCall { id, request: ask }).expect("a frame");
        assert_eq!(peer.write(&call).expect("room"), call.len());
    }
    let long = "x".repeat(MUCH / 10);
    let (mut answered, mut heard) = (0, Vec::new());
    let mut words = Decoder::new(LONGEST_DRIVER_MESSAGE);
    let mut bytes = vec![0; MUCH];
    connection.receive().expect("calls");
    while heard.len() < 100 {
        connection.flush().expect("the peer is there");
        while let Some(call) = connection.poll_call().expect("calls") {
            assert_eq!((call.id, connection.wants_to_read()), (answered, true));
            connection
                .say(&failed(call.id, &long), Vec::new())
                .expect("kept");
            answered += 1;
        }
        assert!(connection.kept < MUCH + MUCH / 9, "{}", connection.kept);
        assert!(answered == 100 || !connection.wants_to_read() && connection.wants_to_write());
        while let Ok(read) = peer.read(&mut bytes) {
            words.push(&bytes[..read]);
            while let Some(body) = words.poll().expect("a frame") {
                heard.push(decode_driver_message(&body).expect("a word"));
            }
        }
    }
    let told: Vec<DriverMessage> = (0..100).map(|id| failed(id, &long)).collect();
    assert!(heard == told);
}

/// The unread output may be an event and no answer. The calls behind it are taken all the same.
#[test]
fn calls_that_wait_are_not_forgotten_when_all_has_gone() {
    let (own, mut peer) = UnixStream::pair().expect("a pair");
    let mut connection = Connection::new(own).expect("a connection");
    let long = "x".repeat(MUCH);
    connection.say(&failed(0, &long), Vec::new()).expect("kept");
    assert!(connection.poll_call().is_ok_and(|call| call.is_none()));
    let reads = std::thread::spawn(move || {
        let mut words = Decoder::new(LONGEST_DRIVER_MESSAGE);
        let mut bytes = vec![0; MUCH];
        while words.poll().expect("a frame").is_none() {
            let read = peer.read(&mut bytes).expect("words");
            words.push(&bytes[..read]);
        }
        peer
    });
    while !connection.out.is_empty() {
        connection.flush().expect("the peer is there");
    }
    assert!(connection.wants_to_write() && !connection.wants_to_read());
    assert!(connection.poll_call().is_ok_and(|call| call.is_none()));
    assert!(!connection.wants_to_write() && connection.wants_to_read());
    drop(reads.join().expect("it has read"));
}

/// The number of waiting descriptors is bounded.
#[test]
fn descriptors_that_nobody_takes_end_it() {
    let one = Sent {
        descriptors: 1,
        bytes: vec![0],
    };
    // The first bytes are a length of zero. The messages after it each carry one descriptor and
    // belong to a length that stays incomplete.
    let mut sent = vec![Sent {
        descriptors: 0,
        bytes: vec![0, 0, 0xff, 0xff],
    }];
    sent.extend(vec![one; MOST_BESIDE]);
    assert_eq!(played(&sent), "nothing");
    sent.push(sent[1].clone());
    assert_eq!(played(&sent), "descriptors");
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn streams_near_those_that_are_kept(bytes in corpus().near()) {
        judged(&bytes);
    }

    /// Good and bad calls, cut at any place.
    #[test]
    fn what_is_said_is_heard_however_it_is_cut(
        stories in corpus().some(1..5),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8), 0..8),
    ) {
        let all = stories.iter().flat_map(|story| pieces(story));
        let stream: Vec<u8> = all.flat_map(|piece| piece.bytes).collect();
        let mut cuts: Vec<(usize, u8)> = cuts
            .into_iter()
            .map(|(at, descriptors)| (at.index(stream.len() + 1), descriptors))
            .collect();
        cuts.push((stream.len(), 0));
        cuts.sort_unstable();
        let mut from = 0;
        let mut sent = Vec::new();
        for (to, descriptors) in cuts {
            if from < to {
                sent.push(Sent { descriptors, bytes: stream[from..to].to_vec() });
            }
            from = to;
        }
        played(&sent);
    }
}
