use super::*;

fn of_frame<T: DeserializeOwned>(frame: &[u8]) -> Result<T, MessageError> {
    decode(&frame[4..])
}

#[test]
fn messages_are_read_as_they_were_written() {
    let contract = RemoteContract {
        mmax: 65_536,
        rmax: 50,
        bmax: 2,
        deadline_ns: 20_000_000,
        packet: 1_400,
    };
    let open = FromProgram::Open(OpenChannel {
        channel: "00112233445566778899aabbccddeeff".to_owned(),
        service: "camera".to_owned(),
        sink: "recorder".to_owned(),
        contract,
    });
    let frame = encode_from_program(&open).expect("short");
    assert_eq!(of_frame::<FromProgram>(&frame).expect("valid"), open);
    let hold = ToProgram::Hold(Box::new(HoldBound {
        hold: 7,
        channel: "00112233445566778899aabbccddeeff".to_owned(),
        service: "camera".to_owned(),
        contract,
        sink_address: IpAddr::from([192, 0, 2, 7]),
        arrival: None,
    }));
    let frame = encode_to_program(&hold).expect("short");
    assert_eq!(of_frame::<ToProgram>(&frame).expect("valid"), hold);
}

#[test]
fn other_versions_and_unknown_fields_are_refused() {
    let body = br#"{"version":2,"message":{"pong":{}}}"#;
    let error = decode::<FromProgram>(body).expect_err("another version");
    assert!(
        error.to_string().contains("version 2") && error.to_string().contains("netnice-peer"),
        "{error}"
    );
    let body = br#"{"version":1,"message":{"pong":{"more":1}}}"#;
    let error = decode::<FromProgram>(body).expect_err("an unknown field");
    assert!(error.to_string().contains("more"), "{error}");
    let body = br#"{"version":1,"message":{"close":{"channel":"a"}}}"#;
    let error = decode::<FromProgram>(body).expect_err("a missing field");
    assert!(error.to_string().contains("reason"), "{error}");
}

#[test]
fn a_message_that_is_too_long_is_not_written() {
    let close = FromProgram::Close(CloseChannel {
        channel: String::new(),
        reason: "x".repeat(LONGEST_FROM_PROGRAM),
    });
    let error = encode_from_program(&close).expect_err("too long");
    let text = error.to_string();
    assert!(text.contains(&LONGEST_FROM_PROGRAM.to_string()), "{text}");
}

#[test]
fn counts_of_a_hop_that_contradict_themselves_have_a_fault() {
    let good = HopCounts {
        messages: 9,
        late: 3,
        excused: 3,
        lost: 100,
        least_laxity_ns: Some(-5),
        laxities: [1, 2, 0, 0, 0, 0, 0, 0, 2, 4],
        stops: Some(HopStops {
            number: 1,
            total_ns: 20_000,
            longest_ns: 20_000,
        }),
    };
    assert_eq!(good.fault(), None);
    assert_eq!(HopCounts::default().fault(), None);
    let cases = [
        (
            HopCounts {
                messages: 8,
                ..good
            },
            "sum to the messages",
        ),
        (HopCounts { late: 2, ..good }, "sum to the late messages"),
        (
            HopCounts { excused: 4, ..good },
            "more messages are excused",
        ),
        (
            HopCounts {
                least_laxity_ns: None,
                ..good
            },
            "least laxity is absent",
        ),
        (
            HopCounts {
                stops: Some(HopStops {
                    number: 2,
                    total_ns: 1,
                    longest_ns: 2,
                }),
                ..good
            },
            "longest stop",
        ),
        (
            HopCounts {
                laxities: [u64::MAX; LAXITIES],
                ..good
            },
            "sum to the messages",
        ),
    ];
    for (counts, text) in cases {
        let fault = counts.fault().expect("a fault");
        assert!(fault.contains(text), "{fault}");
    }
}
