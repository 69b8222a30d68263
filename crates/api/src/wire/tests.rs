use std::io::Read;

use proptest::prelude::*;

use super::{
    WireError, decode_call, decode_client_call, decode_request, decode_response, decode_word,
    encode_call, encode_client_call, encode_request, encode_response, encode_word,
};
use crate::direct::{ShapeDoc, Speaks, Term};
use crate::driver::{
    CensusDoc, DriverAnswer, DriverCall, DriverEvent, DriverFlow, DriverFlowDoc, DriverRequest,
    DriverWord, FlowCounts, FramesDoc, ProgramDoc, SpentDoc, UserMemoryDoc,
};
use crate::frame::{Decoder, LONGEST_REQUEST};
use crate::{
    Clear, ClearWhat, Confirm, Doctor, Done, Exit, Explain, Failed, Find, Found, Gate, LinkChange,
    Log, Own, Ping, Process, Refused, Reload, Request, Response, Set, Show, ShowDoc, Until,
};

mod kept;

/// The JSON inside a frame.
fn body(frame: &[u8]) -> &[u8] {
    &frame[4..]
}

fn requests() -> Vec<Request> {
    vec![
        Request::Ping(Ping {}),
        Request::Set(Set {
            target: "pid:7".into(),
            change: Some("up 4mbit".into()),
            ..Set::default()
        }),
        Request::Set(Set {
            target: "name:a".into(),
            change: None,
            pid: Some(7),
            only: true,
            short: true,
            dry_run: true,
            confirm_ns: Some(30_000_000_000),
            for_ns: Some(u64::MAX),
            until: Some(Until {
                pid: 7,
                started: 4711,
            }),
        }),
        Request::Show(Show { target: None }),
        Request::Own(Own {}),
        Request::Clear(Clear {
            what: ClearWhat::All,
            dry_run: false,
            confirm_ns: None,
            for_ns: None,
            until: None,
        }),
        Request::Clear(Clear {
            what: ClearWhat::Target("user:ann".into()),
            dry_run: true,
            confirm_ns: Some(1),
            for_ns: Some(2),
            until: Some(Until {
                pid: 7,
                started: 4711,
            }),
        }),
        Request::Link(LinkChange {
            iface: "eth0".into(),
            rate: Some("100mbit".into()),
            overhead: Some(24),
            ..LinkChange::default()
        }),
        Request::Explain(Explain { target: "7".into() }),
        Request::Find(Find {
            target: "unit:web".into(),
        }),
        Request::Doctor(Doctor {}),
        Request::Log(Log {
            since_ns: Some(1),
            lines: Some(2),
        }),
        Request::Confirm(Confirm { id: 3 }),
        Request::Reload(Reload {}),
    ]
}

#[test]
fn every_request_comes_back_as_it_went() {
    for request in requests() {
        let frame = encode_request(&request).expect("short");
        assert_eq!(
            decode_request(body(&frame)).expect("its own words"),
            request
        );
    }
}

#[test]
fn the_words_on_the_wire_do_not_change_by_accident() {
    let frame = encode_request(&requests()[1]).expect("short");
    let text = r#"{"version":1,"request":{"set":{"target":"pid:7","change":"up 4mbit"}}}"#;
    assert_eq!(std::str::from_utf8(body(&frame)), Ok(text));
    let frame = encode_request(&Request::Own(Own {})).expect("short");
    assert_eq!(body(&frame), br#"{"version":1,"request":{"own":{}}}"#);
    let process = Process {
        pid: 7,
        started: 8,
        namespace: 9,
    };
    let frame = encode_client_call(&Request::Own(Own {}), Some(process)).expect("short");
    let text =
        r#"{"version":1,"process":{"pid":7,"started":8,"namespace":9},"request":{"own":{}}}"#;
    assert_eq!(std::str::from_utf8(body(&frame)), Ok(text));
    let call = decode_client_call(body(&frame)).expect("its own words");
    assert_eq!(call.process, Some(process));
}

#[test]
fn what_is_no_request_is_refused_with_its_reason() {
    let cases = [
        ("garbage", "\u{0}\u{1}", "not understood"),
        ("not JSON", "hello", "not understood"),
        (
            "another version",
            r#"{"version":2,"request":{"fly":{}}}"#,
            "protocol version 2",
        ),
        (
            "no version",
            r#"{"request":{"own":{}}}"#,
            "missing field `version`",
        ),
        (
            "an unknown verb",
            r#"{"version":1,"request":{"fly":{}}}"#,
            "unknown variant `fly`",
        ),
        (
            "an unknown field",
            r#"{"version":1,"request":{"own":{"pid":1}}}"#,
            "unknown field `pid`",
        ),
        (
            "a misspelt option",
            r#"{"version":1,"request":{"show":{"tarjet":"1"}}}"#,
            "unknown field `tarjet`",
        ),
        (
            "a field outside",
            r#"{"version":1,"request":{"own":{}},"uid":0}"#,
            "unknown field `uid`",
        ),
        (
            "a field twice",
            r#"{"version":1,"request":{"explain":{"target":"1","target":"2"}}}"#,
            "duplicate field",
        ),
        (
            "a missing field",
            r#"{"version":1,"request":{"explain":{}}}"#,
            "missing field `target`",
        ),
        (
            "a wrong type",
            r#"{"version":1,"request":{"explain":{"target":1}}}"#,
            "invalid type",
        ),
        (
            "a number too large",
            r#"{"version":1,"request":{"confirm":{"id":18446744073709551616}}}"#,
            "not understood",
        ),
        (
            "two verbs",
            r#"{"version":1,"request":{"own":{},"ping":{}}}"#,
            "not understood",
        ),
        (
            "more behind it",
            r#"{"version":1,"request":{"own":{}}} x"#,
            "not understood",
        ),
    ];
    for (why, text, said) in cases {
        let error = decode_request(text.as_bytes()).expect_err(why).to_string();
        assert!(error.contains(said), "{why}: {error}");
    }
    let deep = "[".repeat(60_000);
    assert!(
        decode_request(deep.as_bytes()).is_err(),
        "nesting is bounded"
    );
}

#[test]
fn a_request_that_is_too_long_does_not_leave() {
    let request = Request::Explain(Explain {
        target: "x".repeat(LONGEST_REQUEST),
    });
    assert!(matches!(encode_request(&request), Err(WireError::Frame(_))));
}

/// Two targets. One has no traffic, so only its name is written.
fn watched() -> crate::WatchDoc {
    let moving = crate::Moving {
        rate: 5,
        ..crate::Moving::default()
    };
    let target = |name: &str| crate::Watched {
        target: name.into(),
        ..crate::Watched::default()
    };
    crate::WatchDoc {
        at_ns: 1,
        links: vec![crate::WatchedLink::default()],
        targets: vec![
            target("pid:7"),
            crate::Watched {
                inside: Some(0),
                up: Some(9),
                sends: moving,
                ..target("pid:8")
            },
        ],
    }
}

#[test]
fn what_does_nothing_takes_no_room() {
    let text = serde_json::to_string(&watched()).expect("JSON");
    assert!(
        text.contains(
            r#"[{"target":"pid:7"},{"target":"pid:8","inside":0,"up":9,"sends":{"rate":5}}]"#
        ),
        "{text}"
    );
}

#[test]
fn every_answer_comes_back_and_has_its_exit_status() {
    let cases = [
        (Response::Done(Done::default()), Exit::Done),
        (Response::Shown(ShowDoc::default()), Exit::Done),
        (Response::Found(Found::Processes(vec![7])), Exit::Done),
        (Response::Watched(watched()), Exit::Done),
        (
            Response::Connections(crate::ConnectionsDoc {
                more: 3,
                ..Default::default()
            }),
            Exit::Done,
        ),
        (
            Response::History(crate::HistoryDoc {
                targets: vec![crate::TargetHistory::default()],
                ..Default::default()
            }),
            Exit::Done,
        ),
        (
            Response::Refused(Refused {
                by: Gate::Admission,
                text: "a\nb".into(),
            }),
            Exit::Refused,
        ),
        (Response::not_permitted("no"), Exit::Refused),
        (Response::bad_usage("what?"), Exit::BadUsage),
        (
            Response::Failed(Failed {
                text: "gone".into(),
                bad_usage: false,
            }),
            Exit::Error,
        ),
    ];
    for (response, exit) in cases {
        let frame = encode_response(&response).expect("short");
        let back = decode_response(body(&frame)).expect("its own words");
        assert_eq!(back, response);
        assert_eq!(Exit::from(&back), exit);
    }
}

#[test]
fn an_answer_of_a_newer_release_may_say_more() {
    let text =
        r#"{"version":1,"response":{"pong":{"protocol":1,"daemon":"9","mood":"good"}},"x":1}"#;
    assert!(matches!(
        decode_response(text.as_bytes()),
        Ok(Response::Pong(_))
    ));
}

proptest! {
    /// Random bytes decode to a request or an error, never a panic. A request survives encoding and
    /// decoding.
    #[test]
    fn a_stranger_sends_requests_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(request) = decode_request(&bytes) {
            let again = encode_request(&request).unwrap();
            prop_assert_eq!(decode_request(body(&again)).unwrap(), request);
        }
    }

    /// The same for a valid message with a few changed bytes.
    #[test]
    fn a_damaged_request_is_a_request_or_nothing(
        which in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let all = requests();
        let mut frame = encode_request(&all[which.index(all.len())]).unwrap();
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        let mut decoder = Decoder::new(LONGEST_REQUEST);
        decoder.push(&frame);
        let mut seen = 0;
        while let Ok(Some(message)) = decoder.poll() {
            seen += message.len();
            let _ = decode_request(&message).map_err(|e| e.to_string());
        }
        prop_assert!(seen <= frame.len());
    }
}

#[test]
fn a_frame_reads_as_length_and_body() {
    let frame = encode_request(&Request::Ping(Ping {})).expect("short");
    let mut length = [0; 4];
    (&frame[..]).read_exact(&mut length).expect("four bytes");
    assert_eq!(u32::from_be_bytes(length) as usize, frame.len() - 4);
}

fn driver_flow() -> DriverFlow {
    DriverFlow {
        program: 3,
        number: 9,
        speaks: Speaks::Udp {
            local: "10.0.0.1:5000".parse().expect("an end"),
            remote: Some("[fd00::1]:6000".parse().expect("an end")),
        },
        next_hop: Some([2, 0, 0, 0, 0, 7]),
        mtu: 1500,
        contract: "cell pcr=10mbit,cdvt=100us".into(),
        granted: Some("cell pcr=10mbit,cdvt=100us weight 3".into()),
        shape: ShapeDoc {
            chunk_bytes: 2048,
            chunks: 64,
            transmit_entries: 32,
            receive_entries: 32,
        },
        in_order: true,
        receive_share: Some(250_000),
    }
}

fn asked_of_a_driver() -> Vec<DriverRequest> {
    let speaks = [
        Speaks::Group {
            local: "10.0.0.1:5000".parse().expect("an end"),
            group: "239.1.2.3:6000".parse().expect("an end"),
        },
        Speaks::Protocol {
            number: 253,
            local: "10.0.0.1".parse().expect("an address"),
            remote: None,
            pattern: vec![Term {
                offset: 4,
                mask: 0xf0,
                value: 0x20,
            }],
        },
        Speaks::EtherType {
            number: 0x88b5,
            pattern: Vec::new(),
        },
    ];
    let flows = speaks.map(|speaks| DriverFlow {
        speaks,
        next_hop: None,
        granted: None,
        in_order: false,
        receive_share: None,
        ..driver_flow()
    });
    let flows = flows.into_iter().chain([driver_flow()]);
    let opens = flows.map(|flow| DriverRequest::Open(Box::new(flow)));
    let others = [
        DriverRequest::Wire {
            rate: u64::MAX,
            overhead: 24,
        },
        DriverRequest::Attach {
            pid: 7,
            uid: 1000,
            flows: 64,
            bytes: 1 << 30,
            most: Some(1 << 32),
        },
        DriverRequest::Detach { program: 0 },
        DriverRequest::Change {
            flow: 1,
            contract: "weight 3".into(),
            granted: None,
        },
        DriverRequest::Change {
            flow: 1,
            contract: "weight 3".into(),
            granted: Some("min 3mbit weight 3".into()),
        },
        DriverRequest::Readdress {
            flow: 1,
            next_hop: None,
            mtu: 1400,
        },
        DriverRequest::Close { flow: u32::MAX },
        DriverRequest::Discard {
            patterns: vec![
                vec![Term {
                    offset: 12,
                    mask: 0xff,
                    value: 8,
                }],
                Vec::new(),
            ],
        },
        DriverRequest::Census,
        DriverRequest::Stop,
    ];
    opens.chain(others).collect()
}

#[test]
fn every_call_of_a_driver_comes_back_as_it_went() {
    for (id, ask) in (0..).zip(asked_of_a_driver()) {
        let call = DriverCall { id, ask };
        let frame = encode_call(&call).expect("short");
        assert_eq!(decode_call(body(&frame)).expect("its own words"), call);
    }
    let call = DriverCall {
        id: 9,
        ask: DriverRequest::Detach { program: 2 },
    };
    let text = r#"{"version":1,"request":{"id":9,"ask":{"detach":{"program":2}}}}"#;
    let frame = encode_call(&call).expect("short");
    assert_eq!(std::str::from_utf8(body(&frame)), Ok(text));
}

#[test]
fn every_word_of_a_driver_comes_back_as_it_went() {
    let counts = FlowCounts {
        sent: u64::MAX,
        lateness: vec![1, 2, 3],
        ..FlowCounts::default()
    };
    let answers = [
        DriverAnswer::Done,
        DriverAnswer::Attached { program: 1 },
        DriverAnswer::Opened {
            flow: 1,
            slot: 2,
            offset: 1 << 40,
        },
        DriverAnswer::Closed(Box::new(counts.clone())),
        DriverAnswer::Census(Box::new(CensusDoc {
            iface: "eth0".into(),
            mode: "generic".into(),
            rate: 7,
            why_not_native: Some("no".into()),
            programs: vec![ProgramDoc::default()],
            flows: vec![DriverFlowDoc {
                flow: 4,
                setup: driver_flow(),
                counts,
                held: 3,
            }],
            discarded: vec![("truncated".into(), 5)],
            spent: SpentDoc {
                receiving_ns: 1,
                sending_ns: 2,
                waiting_ns: 3,
            },
            frames: Some(FramesDoc {
                total: 10,
                free: 1,
                driver: 2,
                filling: 3,
                sending: 4,
            }),
            unasked: 4,
            awake: true,
            discards: 2,
            confined: "user 998".into(),
            memory: vec![UserMemoryDoc {
                uid: 1000,
                files: 2,
                bytes: 8192,
            }],
        })),
        DriverAnswer::Failed { why: "so".into() },
    ];
    let events = [
        DriverEvent::Gone { program: 1 },
        DriverEvent::Expelled {
            program: 1,
            why: "so".into(),
        },
        DriverEvent::Lost { why: "so".into() },
    ];
    let answers = answers.map(|answer| DriverWord::Answer { id: 5, answer });
    let words = answers.into_iter().chain(events.map(DriverWord::Event));
    for word in words {
        let frame = encode_word(&word).expect("short");
        assert_eq!(decode_word(body(&frame)).expect("its own words"), word);
    }
}

#[test]
fn what_is_no_call_is_refused_with_its_reason() {
    let cases = [
        ("a request of the daemon's socket", r#"{"own":{}}"#, "own"),
        ("no number", r#"{"ask":"census"}"#, "missing field `id`"),
        (
            "another program's word",
            r#"{"id":1,"ask":{"detach":{"program":-1}}}"#,
            "invalid value",
        ),
        (
            "an unknown field",
            r#"{"id":1,"ask":{"detach":{"program":1,"now":true}}}"#,
            "unknown field `now`",
        ),
        (
            "an address that is none",
            r#"{"id":1,"ask":{"readdress":{"flow":1,"next_hop":[1,2,3],"mtu":1500}}}"#,
            "invalid length",
        ),
    ];
    for (why, text, said) in cases {
        let text = format!(r#"{{"version":1,"request":{text}}}"#);
        let error = decode_call(text.as_bytes()).expect_err(why).to_string();
        assert!(error.contains(said), "{why}: {error}");
    }
}

proptest! {
    /// The same for a driver: a damaged call is a call or an error, and a call survives encoding
    /// and decoding.
    #[test]
    fn a_damaged_call_is_a_call_or_nothing(
        which in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let all = asked_of_a_driver();
        let ask = all[which.index(all.len())].clone();
        let frame = encode_call(&DriverCall { id: 7, ask }).unwrap();
        let mut message = body(&frame).to_vec();
        for (at, byte) in damage {
            let at = at.index(message.len());
            message[at] = byte;
        }
        if let Ok(call) = decode_call(&message) {
            let again = encode_call(&call).unwrap();
            prop_assert_eq!(decode_call(body(&again)).unwrap(), call);
        }
    }
}
