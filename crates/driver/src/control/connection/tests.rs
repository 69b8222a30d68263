//! Tests the reaction of a connection to any bytes, in any pieces, with any descriptors.

use std::io::{Read as _, Write as _};

use netnice_api::decode_driver_message;
use netnice_api::frame::encode;
use netnice_cases::{Corpus, cases};
use proptest::prelude::*;

use super::hostile::{InputPiece, outcome_of, pieces, run};
use super::*;

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/connection"))
}

#[test]
fn kept_streams_have_their_recorded_outcomes() {
    let outcomes = [
        "calls",
        "nothing",
        "descriptors",
        "empty",
        "long",
        "json",
        "version",
    ];
    corpus().replay(outcome_of, &outcomes);
}

/// The longest allowed message arrives in several pieces and is accepted; one byte more is refused.
#[test]
fn a_message_of_the_longest_length_is_accepted() {
    for (length, end) in [
        (LONGEST_DRIVER_CALL, "json"),
        (LONGEST_DRIVER_CALL + 1, "long"),
    ] {
        let frame = encode(&vec![b'x'; length], usize::MAX).expect("by another's limit");
        let sent: Vec<InputPiece> = frame
            .chunks(10_000)
            .map(|bytes| InputPiece {
                descriptors: 0,
                bytes: bytes.to_vec(),
            })
            .collect();
        assert_eq!(run(&sent), end);
    }
}

/// No call is taken from a peer that does not read. When the peer reads, it gets all answers in
/// order.
#[test]
fn no_call_is_taken_while_much_output_is_unread() {
    let (own, mut peer) = UnixStream::pair().expect("a pair");
    let mut connection = Connection::new(own).expect("a connection");
    peer.set_nonblocking(true).expect("it can");
    for id in 0..100 {
        let ask = netnice_api::driver::DriverRequest::Census;
        let call =
            netnice_api::encode_driver_call(&DriverCall { id, request: ask }).expect("a frame");
        assert_eq!(peer.write(&call).expect("room"), call.len());
    }
    let long = "x".repeat(SEND_QUEUE_HIGH / 10);
    let (mut answered, mut received) = (0, Vec::new());
    let mut words = Decoder::new(LONGEST_DRIVER_MESSAGE);
    let mut bytes = vec![0; SEND_QUEUE_HIGH];
    connection.receive().expect("calls");
    while received.len() < 100 {
        connection.flush().expect("the peer is there");
        while let Some(call) = connection.poll_call().expect("calls") {
            assert_eq!((call.id, connection.wants_to_read()), (answered, true));
            connection
                .send(&failed(call.id, &long), Vec::new())
                .expect("kept");
            answered += 1;
        }
        assert!(
            connection.queued_bytes < SEND_QUEUE_HIGH + SEND_QUEUE_HIGH / 9,
            "{}",
            connection.queued_bytes
        );
        assert!(answered == 100 || !connection.wants_to_read() && connection.wants_to_write());
        while let Ok(read) = peer.read(&mut bytes) {
            words.push(&bytes[..read]);
            while let Some(body) = words.poll().expect("a frame") {
                received.push(decode_driver_message(&body).expect("a word"));
            }
        }
    }
    let expected: Vec<DriverMessage> = (0..100).map(|id| failed(id, &long)).collect();
    assert!(received == expected);
}

/// The unread output may be an event and no answer. The calls behind it are taken all the same.
#[test]
fn calls_are_taken_again_when_all_output_is_sent() {
    let (own, mut peer) = UnixStream::pair().expect("a pair");
    let mut connection = Connection::new(own).expect("a connection");
    let long = "x".repeat(SEND_QUEUE_HIGH);
    connection
        .send(&failed(0, &long), Vec::new())
        .expect("kept");
    assert!(connection.poll_call().is_ok_and(|call| call.is_none()));
    let reads = std::thread::spawn(move || {
        let mut words = Decoder::new(LONGEST_DRIVER_MESSAGE);
        let mut bytes = vec![0; SEND_QUEUE_HIGH];
        while words.poll().expect("a frame").is_none() {
            let read = peer.read(&mut bytes).expect("words");
            words.push(&bytes[..read]);
        }
        peer
    });
    while !connection.outgoing.is_empty() {
        connection.flush().expect("the peer is there");
    }
    assert!(connection.wants_to_write() && !connection.wants_to_read());
    assert!(connection.poll_call().is_ok_and(|call| call.is_none()));
    assert!(!connection.wants_to_write() && connection.wants_to_read());
    drop(reads.join().expect("it has read"));
}

/// The number of waiting descriptors is bounded.
#[test]
fn too_many_untaken_descriptors_close_the_connection() {
    let one = InputPiece {
        descriptors: 1,
        bytes: vec![0],
    };
    // The first bytes are a length of zero. The messages after it each carry one descriptor and
    // belong to a length that stays incomplete.
    let mut sent = vec![InputPiece {
        descriptors: 0,
        bytes: vec![0, 0, 0xff, 0xff],
    }];
    sent.extend(vec![one; MAX_DESCRIPTORS]);
    assert_eq!(run(&sent), "nothing");
    sent.push(sent[1].clone());
    assert_eq!(run(&sent), "descriptors");
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn streams_near_the_corpus_end_without_a_panic(bytes in corpus().near()) {
        outcome_of(&bytes);
    }

    /// Good and bad calls, cut at any place.
    #[test]
    fn messages_arrive_in_any_pieces(
        scenarios in corpus().some(1..5),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8), 0..8),
    ) {
        let all = scenarios.iter().flat_map(|scenario| pieces(scenario));
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
                sent.push(InputPiece { descriptors, bytes: stream[from..to].to_vec() });
            }
            from = to;
        }
        run(&sent);
    }
}
