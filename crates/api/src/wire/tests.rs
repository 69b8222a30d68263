use std::io::Read;

use proptest::prelude::*;

use super::{
    WireError, decode_client_call, decode_driver_call, decode_driver_message, decode_request,
    decode_response, encode_client_call, encode_driver_call, encode_driver_message, encode_request,
    encode_response,
};
use crate::driver::{
    CensusDoc, CodePointsDoc, DriverCall, DriverEvent, DriverFlow, DriverFlowDoc, DriverMessage,
    DriverReply, DriverRequest, FlowCounts, FramesDoc, PacketThreadDoc, ProgramDoc, RedirectedDoc,
    ServerDoc, StopsDoc, ThreadTimeDoc, TimeAccountingDoc, TotalsDoc, UserMemoryDoc,
};
use crate::frame::{Decoder, LONGEST_REQUEST};
use crate::{
    Clear, ClearWhat, Confirm, Doctor, Done, Exit, Explain, Failed, Find, Found, LinkChange, Log,
    Own, PacketCostDoc, PacketCostsDoc, Ping, Process, Refused, RefusedBy, Reload, Request,
    Reserve, Response, Set, Show, ShowDoc, Until,
};

mod corpus;
mod direct;

use direct::{driver_flow, driver_requests};

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
        Request::Reserve(Reserve {
            thread: 8,
            time_ns: Some(2_000_000),
        }),
        Request::Reserve(Reserve {
            thread: u32::MAX,
            time_ns: None,
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
        Request::Link(Box::new(LinkChange {
            iface: "eth0".into(),
            rate: Some("100mbit".into()),
            overhead: Some(24),
            ..LinkChange::default()
        })),
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
        Request::KeepCosts(PacketCostsDoc {
            udp: PacketCostDoc {
                idle_ppb: 1,
                packet_ps: 2,
            },
            tcp: PacketCostDoc::default(),
        }),
    ]
}

#[test]
fn every_request_survives_encoding_and_decoding() {
    for request in requests() {
        let frame = encode_request(&request).expect("short");
        assert_eq!(decode_request(body(&frame)).expect("decoded"), request);
    }
}

#[test]
fn encoded_requests_have_exactly_these_bytes() {
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
    let call = decode_client_call(body(&frame)).expect("decoded");
    assert_eq!(call.process, Some(process));
}

#[test]
fn an_invalid_request_is_refused_with_a_reason() {
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
    for (why, text, expected) in cases {
        let error = decode_request(text.as_bytes()).expect_err(why).to_string();
        assert!(error.contains(expected), "{why}: {error}");
    }
    let deep = "[".repeat(60_000);
    assert!(
        decode_request(deep.as_bytes()).is_err(),
        "nesting is bounded"
    );
}

#[test]
fn a_request_above_the_limit_is_not_encoded() {
    let request = Request::Explain(Explain {
        target: "x".repeat(LONGEST_REQUEST),
    });
    assert!(matches!(encode_request(&request), Err(WireError::Frame(_))));
}

/// Two targets. One has no traffic, so only its name is written.
fn watched() -> crate::WatchDoc {
    let traffic = crate::Traffic {
        rate: 5,
        ..crate::Traffic::default()
    };
    let target = |name: &str| crate::Watched {
        target: name.into(),
        ..crate::Watched::default()
    };
    crate::WatchDoc {
        at_ns: 1,
        processors_at_ns: 2,
        links: vec![crate::WatchedLink::default()],
        targets: vec![
            target("pid:7"),
            crate::Watched {
                inside: Some(0),
                up: Some(9),
                sends: traffic,
                ..target("pid:8")
            },
        ],
    }
}

#[test]
fn zero_rates_are_omitted() {
    let text = serde_json::to_string(&watched()).expect("JSON");
    assert!(
        text.contains(
            r#"[{"target":"pid:7"},{"target":"pid:8","inside":0,"up":9,"sends":{"rate":5}}]"#
        ),
        "{text}"
    );
}

#[test]
fn every_response_survives_encoding_and_has_its_exit_status() {
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
            Response::Programs(crate::ProgramsDoc {
                list: vec![crate::ProgramDoc::default()],
                remarks: vec!["full".into()],
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
                by: RefusedBy::Admission,
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
                cause: None,
            }),
            Exit::Error,
        ),
    ];
    for (response, exit) in cases {
        let frame = encode_response(&response).expect("short");
        let back = decode_response(body(&frame)).expect("decoded");
        assert_eq!(back, response);
        assert_eq!(Exit::from(&back), exit);
    }
}

#[test]
fn unknown_fields_of_a_response_are_ignored() {
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
    fn random_bytes_decode_to_a_request_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        if let Ok(request) = decode_request(&bytes) {
            let again = encode_request(&request).unwrap();
            prop_assert_eq!(decode_request(body(&again)).unwrap(), request);
        }
    }

    /// The same for a valid message with a few changed bytes.
    #[test]
    fn a_damaged_request_decodes_to_a_request_or_an_error(
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
fn a_frame_is_a_length_and_a_body() {
    let frame = encode_request(&Request::Ping(Ping {})).expect("short");
    let mut length = [0; 4];
    (&frame[..]).read_exact(&mut length).expect("four bytes");
    assert_eq!(u32::from_be_bytes(length) as usize, frame.len() - 4);
}

#[test]
fn every_driver_call_survives_encoding_and_decoding() {
    for (id, request) in (0..).zip(driver_requests()) {
        let call = DriverCall { id, request };
        let frame = encode_driver_call(&call).expect("short");
        assert_eq!(decode_driver_call(body(&frame)).expect("decoded"), call);
    }
    let call = DriverCall {
        id: 9,
        request: DriverRequest::Detach { program: 2 },
    };
    let text = r#"{"version":1,"request":{"id":9,"ask":{"detach":{"program":2}}}}"#;
    let frame = encode_driver_call(&call).expect("short");
    assert_eq!(std::str::from_utf8(body(&frame)), Ok(text));
}

fn census(counts: FlowCounts) -> CensusDoc {
    CensusDoc {
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
            slot: 9,
        }],
        discarded: vec![("truncated".into(), 5)],
        time: TimeAccountingDoc {
            receiving_ns: 1,
            sending_ns: 2,
            waiting_ns: 3,
        },
        stops: StopsDoc {
            late: 5,
            still: 6,
            slow: 7,
            total_ns: 900_000,
            longest_ns: 70_000,
        },
        thread: Some(PacketThreadDoc {
            id: 12,
            processor: Some(1),
        }),
        frames: Some(FramesDoc {
            total: 10,
            free: 1,
            driver: 2,
            filling: 3,
            sending: 4,
        }),
        unrequested_doorbells: 4,
        pm_qos_held: true,
        code_points: CodePointsDoc {
            cell: Some(46),
            best_effort: Some(0),
            ..CodePointsDoc::default()
        },
        awake_limit_ppm: Some(600_000),
        discard_patterns: 2,
        confinement: "user 998".into(),
        memory: vec![UserMemoryDoc {
            uid: 1000,
            files: 2,
            bytes: 8192,
        }],
        redirected: vec![RedirectedDoc {
            place: 3,
            target: 9,
            contract: "min 5mbit".into(),
            sent: 4,
            lateness: vec![1, 2],
            ..RedirectedDoc::default()
        }],
    }
}

#[test]
fn every_driver_message_survives_encoding_and_decoding() {
    let counts = FlowCounts {
        sent: u64::MAX,
        lateness: vec![1, 2, 3],
        ..FlowCounts::default()
    };
    let replies = [
        DriverReply::Done,
        DriverReply::Attached { program: 1 },
        DriverReply::Opened {
            flow: 1,
            slot: 2,
            offset: 1 << 40,
        },
        DriverReply::Closed(Box::new(counts.clone())),
        DriverReply::Census(Box::new(census(counts))),
        DriverReply::Totals(TotalsDoc {
            sent: 3,
            thread: Some(ThreadTimeDoc {
                at_ns: 9,
                processor_ns: 8,
                waiting_ns: 7,
            }),
            ..TotalsDoc::default()
        }),
        DriverReply::Failed { why: "so".into() },
    ];
    let events = [
        DriverEvent::ProgramEnded { program: 1 },
        DriverEvent::ProgramDisconnected {
            program: 1,
            why: "so".into(),
        },
        DriverEvent::InterfaceLost { why: "so".into() },
    ];
    let replies = replies.map(|reply| DriverMessage::Reply { id: 5, reply });
    let messages = replies.into_iter().chain(events.map(DriverMessage::Event));
    for message in messages {
        let frame = encode_driver_message(&message).expect("short");
        assert_eq!(
            decode_driver_message(body(&frame)).expect("decoded"),
            message
        );
    }
}

/// Names in the code may change; the names in messages may not, because daemons and drivers of
/// different releases exchange them.
#[test]
fn keys_of_driver_messages_do_not_change() {
    let json = |value: serde_json::Result<String>| value.expect("JSON");
    let flow = json(serde_json::to_string(&driver_flow()));
    for key in ["program", "speaks", "granted", "in_order", "receive_share"] {
        assert!(flow.contains(&format!("\"{key}\":")), "{key}: {flow}");
    }
    let census = json(serde_json::to_string(&CensusDoc {
        confinement: "user 998".into(),
        ..CensusDoc::default()
    }));
    for key in ["spent", "stops", "unasked", "awake", "discards", "confined"] {
        assert!(census.contains(&format!("\"{key}\":")), "{key}: {census}");
    }
    let counts = json(serde_json::to_string(&FlowCounts::default()));
    for key in ["too_short", "waited_sum", "waited_most"] {
        assert!(counts.contains(&format!("\"{key}\":")), "{key}: {counts}");
    }
    let why = || "so".to_owned();
    let program = 1;
    for (message, text) in [
        (
            DriverMessage::Reply {
                id: 5,
                reply: DriverReply::Done,
            },
            r#"{"answer":{"id":5,"answer":"done"}}"#,
        ),
        (
            DriverMessage::Event(DriverEvent::ProgramEnded { program }),
            r#"{"event":{"gone":{"program":1}}}"#,
        ),
        (
            DriverMessage::Event(DriverEvent::ProgramDisconnected {
                program,
                why: why(),
            }),
            r#"{"event":{"expelled":{"program":1,"why":"so"}}}"#,
        ),
        (
            DriverMessage::Event(DriverEvent::InterfaceLost { why: why() }),
            r#"{"event":{"lost":{"why":"so"}}}"#,
        ),
    ] {
        assert_eq!(json(serde_json::to_string(&message)), text);
    }
}

#[test]
fn an_invalid_driver_call_is_refused_with_a_reason() {
    let cases = [
        ("a request of the daemon's socket", r#"{"own":{}}"#, "own"),
        ("no number", r#"{"ask":"census"}"#, "missing field `id`"),
        (
            "a negative number",
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
    for (why, text, expected) in cases {
        let text = format!(r#"{{"version":1,"request":{text}}}"#);
        let error = decode_driver_call(text.as_bytes())
            .expect_err(why)
            .to_string();
        assert!(error.contains(expected), "{why}: {error}");
    }
}

proptest! {
    /// The same for a driver: a damaged call is a call or an error, and a call survives encoding
    /// and decoding.
    #[test]
    fn a_damaged_driver_call_decodes_to_a_call_or_an_error(
        which in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let all = driver_requests();
        let request = all[which.index(all.len())].clone();
        let frame = encode_driver_call(&DriverCall { id: 7, request }).unwrap();
        let mut message = body(&frame).to_vec();
        for (at, byte) in damage {
            let at = at.index(message.len());
            message[at] = byte;
        }
        if let Ok(call) = decode_driver_call(&message) {
            let again = encode_driver_call(&call).unwrap();
            prop_assert_eq!(decode_driver_call(body(&again)).unwrap(), call);
        }
    }
}
