use std::net::IpAddr;
use std::num::NonZeroU16;

use netnice_api::channels::{HopCounts, HopStops};
use netnice_api::frame::FrameError;
use netnice_channel::ChannelId;
use netnice_core::contract::{Channel, MessageRate};
use netnice_core::units::{Bytes, Nanos};
use serde_json::{Value, json};

use super::*;

fn host(name: &str) -> HostName {
    HostName::new(name).expect("a host name")
}

fn hops(bounds: &[(&str, u64)]) -> Hops {
    let hops = bounds.iter().map(|(name, bound)| HopBound {
        host: host(name),
        bound: Nanos(*bound),
        unguarded: None,
    });
    Hops::new(hops.collect()).expect("hops")
}

fn every_message() -> Vec<Message> {
    let channel = ChannelId([0xa5; 16]);
    let rate = MessageRate::new(50).expect("a rate");
    let contract = Channel::new(Bytes(65_536), rate, 4, Nanos::from_millis(20));
    let refusal = |best| Refusal {
        host: host("r"),
        reason: Reason::new("1ms + 2ms > 2ms"),
        best_deadline_ns: best,
    };
    vec![
        Message::Hello(Hello {
            host: host("a.example"),
        }),
        Message::Establish(Establish {
            channel,
            attempt: 0,
            service: ServiceName::new("camera_1.main").expect("a service"),
            sink: host("b"),
            sink_address: IpAddr::from([192, 0, 2, 9]),
            contract: contract.expect("a contract"),
            packet: 1_472,
            from: IpAddr::from([192, 0, 2, 1]),
            to: IpAddr::from([192, 0, 2, 2]),
            hops: hops(&[("a", 7), ("r", 5)]),
        }),
        Message::Refused(Refused {
            channel,
            attempt: 0,
            refusal: refusal(Some(3_000_000)),
        }),
        Message::Refused(Refused {
            channel,
            attempt: 0,
            refusal: refusal(None),
        }),
        Message::Established(Established {
            channel,
            attempt: 0,
            port: NonZeroU16::MAX,
            hops: hops(&[("a", 8), ("b", 9)]),
        }),
        Message::Close(Close {
            channel,
            attempt: Some(Attempt::Receiver(0)),
            host: host("b"),
            reason: Reason::new("the listener ended"),
        }),
        Message::Refresh(Refresh {
            channels: Vec::new(),
        }),
        Message::Refresh(Refresh {
            channels: vec![ChannelId([1; 16]), channel],
        }),
        Message::ClockAsk(ClockAsk { sent_ns: 1 }),
        Message::ClockAnswer(ClockAnswer {
            asked_ns: 1,
            received_ns: 9,
            answered_ns: u64::MAX,
            kernel: None,
        }),
        Message::ClockAnswer(ClockAnswer {
            asked_ns: 1,
            received_ns: 9,
            answered_ns: 9,
            kernel: Some(KernelClock {
                utc_ahead_ns: i64::MIN,
                error_ns: u64::MAX,
            }),
        }),
        Message::ReportAsk(ReportAsk {
            channel,
            question: 7,
        }),
        Message::ReportAnswer(report_answer()),
    ]
}

fn report_answer() -> ReportAnswer {
    let counts = HopCounts {
        messages: 3,
        late: 1,
        excused: 1,
        lost: 2,
        least_laxity_ns: Some(-5),
        laxities: [0, 1, 0, 0, 0, 0, 0, 0, 0, 2],
        stops: Some(HopStops {
            number: 1,
            total_ns: 9,
            longest_ns: 9,
        }),
    };
    ReportAnswer {
        channel: ChannelId([0xa5; 16]),
        question: 7,
        hops: vec![
            HopReport {
                host: host("r"),
                counted: Counted::Counts(counts),
            },
            HopReport {
                host: host("b"),
                counted: Counted::Unknown(Reason::new("it did not answer within 300ms")),
            },
        ],
    }
}

/// The JSON of a message.
fn json_of(message: &Message) -> Value {
    let frame = encode(message).expect("short enough");
    serde_json::from_slice(&frame[4..]).expect("JSON")
}

fn error_of(value: &Value) -> String {
    let body = serde_json::to_vec(value).expect("JSON");
    decode(&body).expect_err("invalid").to_string()
}

#[test]
fn every_message_is_the_same_after_its_frame() {
    let mut decoder = Decoder::default();
    for message in every_message() {
        decoder.push(&encode(&message).expect("short enough"));
    }
    for message in every_message() {
        assert_eq!(decoder.poll().expect("valid"), Some(message));
    }
    assert_eq!(decoder.poll().expect("valid"), None);
}

#[test]
fn an_establish_message_looks_as_specified() {
    let expected = json!({"version": 1, "message": {"establish": {
        "channel": "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5",
        "attempt": 0,
        "service": "camera_1.main",
        "sink": "b",
        "sink_address": "192.0.2.9",
        "contract": {"mmax": 65_536, "rmax": 50, "bmax": 4, "deadline_ns": 20_000_000},
        "packet": 1_472,
        "from": "192.0.2.1",
        "to": "192.0.2.2",
        "hops": [{"host": "a", "bound_ns": 7}, {"host": "r", "bound_ns": 5}],
        "sum_ns": 12,
    }}});
    assert_eq!(json_of(&every_message()[1]), expected);
}

#[test]
fn the_longest_messages_fit_into_a_frame_and_longer_ones_are_refused() {
    let channels: Vec<ChannelId> = (0..=Refresh::MOST as u128)
        .map(|number| ChannelId(number.to_be_bytes()))
        .collect();
    let longest = Refresh {
        channels: channels[1..].to_vec(),
    };
    let frame = encode(&Message::Refresh(longest)).expect("the longest refresh");
    assert!(decode(&frame[4..]).is_ok());
    let longer = json_of(&Message::Refresh(Refresh { channels }));
    let error = error_of(&longer);
    assert!(error.contains("at most 8000 channels, not 8001"), "{error}");
    // The longest names in the largest number of hops, and a reason whose characters are escaped.
    let label = "x".repeat(60);
    let hops: Vec<HopBound> = (0..Hops::MOST)
        .map(|at| HopBound {
            host: host(&format!("{label}.{label}.{label}.{label}.{at:09}")),
            bound: HopBound::LONGEST,
            unguarded: (at > 0).then(|| "wlp0s20f3u1u2c2".parse().expect("a name")),
        })
        .collect();
    assert_eq!(hops[0].host.as_str().len(), HostName::LONGEST);
    let channel = ChannelId([0; 16]);
    let hops = Hops::new(hops).expect("hops");
    encode(&Message::Established(Established {
        channel,
        attempt: 0,
        port: NonZeroU16::MAX,
        hops,
    }))
    .expect("fits");
    let reason = Reason::new(&"\"".repeat(9_000));
    assert_eq!(reason.as_str().len(), Reason::LONGEST);
    encode(&Message::Close(Close {
        channel,
        attempt: Some(Attempt::Receiver(0)),
        host: host("a"),
        reason,
    }))
    .expect("fits");
    let mut decoder = Decoder::default();
    decoder.push(&(LONGEST as u32 + 1).to_be_bytes());
    let error = decoder.poll().expect_err("too long");
    assert!(
        matches!(
            error,
            MessageError::Frame(FrameError::TooLong { limit: LONGEST, .. })
        ),
        "{error}"
    );
}

#[test]
fn a_message_of_another_version_is_distinguished_from_an_invalid_one() {
    let other = json!({"version": 2, "message": {"anything": 1}, "more": true});
    assert_eq!(
        error_of(&other),
        "the neighbour speaks version 2 of the messages between hosts, and this host version 1: \
         install the same release of netnice-peer on both"
    );
    let unknown = json!({"version": 1, "message": {"anything": 1}});
    assert!(error_of(&unknown).starts_with("the message is not understood: unknown variant"));
}

/// Each case changes one value of a valid `establish`, and gives a part of the error.
fn expect_errors(good: &Value, cases: &[(&str, Value, &str)]) {
    for (place, value, expected) in cases {
        let mut changed = good.clone();
        let found = changed.pointer_mut(&format!("/message/establish{place}"));
        *found.expect("the field exists") = value.clone();
        let error = error_of(&changed);
        assert!(error.contains(expected), "{place}: {error}");
    }
}

#[test]
fn an_invalid_value_is_named() {
    let good = json_of(&every_message()[1]);
    let twice = json!([{"host": "a", "bound_ns": 7}, {"host": "A", "bound_ns": 5}]);
    let long = json!([{"host": "a", "bound_ns": HopBound::LONGEST.0 + 1}]);
    let many: Vec<Value> = (0..17)
        .map(|at| json!({"host": format!("h{at}"), "bound_ns": 0}))
        .collect();
    let cases = [
        (
            "/sum_ns",
            json!(13),
            "sum_ns is 13, and the bounds of the hops sum to 12",
        ),
        ("/sink", json!("r"), "the hops contain the sink r"),
        ("/sink", json!("-r"), "a host name contains '-' at byte 0"),
        ("/sink", json!("r..s"), "a host name contains '.' at byte 1"),
        ("/sink", json!("a b"), "a host name contains ' ' at byte 1"),
        ("/sink", json!(""), "a host name has 1 to 253 bytes, not 0"),
        (
            "/service",
            json!("Camera"),
            "the name of a service contains 'C' at byte 0",
        ),
        ("/service", json!("x".repeat(65)), "1 to 64 bytes, not 65"),
        (
            "/channel",
            json!("a5"),
            "a channel is 32 hexadecimal digits",
        ),
        (
            "/channel",
            json!("A".repeat(32)),
            "a channel is 32 hexadecimal digits",
        ),
        ("/contract/mmax", json!(0), "mmax"),
        (
            "/contract/mmax",
            json!((16 << 20) + 1),
            "mmax is 1B to 16MiB, not 16777217B",
        ),
        (
            "/contract/rmax",
            json!(0),
            "rmax is 1 to 1000000 messages per second, not 0",
        ),
        ("/contract/bmax", json!(0), "bmax"),
        ("/contract/deadline_ns", json!(0), "deadline"),
        (
            "/contract/deadline_ns",
            json!(u64::MAX),
            "the deadline is at most 8796.093022208s",
        ),
        ("/hops", json!([]), "a channel passes 1 to 16 hosts, not 0"),
        (
            "/hops",
            json!(many),
            "a channel passes 1 to 16 hosts, not 17",
        ),
        ("/hops", twice, "the channel passes host a twice"),
        (
            "/hops",
            long,
            "a hop keeps a message for at most 8796.093022208s, and a has",
        ),
        ("/hops", json!({}), "the message is not understood"),
    ];
    expect_errors(&good, &cases);
    let mut more = good;
    more["message"]["establish"]["more"] = json!(1);
    assert!(error_of(&more).contains("unknown field `more`"));
}

#[test]
fn an_invalid_address_or_packet_length_is_named() {
    let good = json_of(&every_message()[1]);
    let cases = [
        (
            "/packet",
            json!(63),
            "a packet is 64 to 65507 bytes long, not 63",
        ),
        (
            "/packet",
            json!(65_508),
            "a packet is 64 to 65507 bytes long, not 65508",
        ),
        ("/packet", json!(65_536), "the message is not understood"),
        (
            "/sink_address",
            json!("0.0.0.0"),
            "sink_address 0.0.0.0 is unspecified: packets cannot be sent to or from it",
        ),
        ("/sink_address", json!("b"), "invalid IP address"),
        (
            "/from",
            json!("127.0.0.1"),
            "from 127.0.0.1 is a loopback address",
        ),
        (
            "/from",
            json!("255.255.255.255"),
            "from 255.255.255.255 is the broadcast address",
        ),
        (
            "/to",
            json!("224.0.0.1"),
            "to 224.0.0.1 is a multicast address",
        ),
        ("/to", json!("ff02::1"), "to ff02::1 is a multicast address"),
        ("/to", json!("::1"), "to ::1 is a loopback address"),
        (
            "/to",
            json!("::ffff:127.0.0.1"),
            "to ::ffff:127.0.0.1 is an IPv4 address in IPv6",
        ),
        (
            "/to",
            json!("2001:db8::1"),
            "the addresses 192.0.2.9, 192.0.2.1 and 2001:db8::1 are not all of one family",
        ),
    ];
    expect_errors(&good, &cases);
}

#[test]
fn a_message_has_at_most_65535_parts() {
    let mut establish = json_of(&every_message()[1]);
    let mut decoded = |mmax: u64, packet: u16| {
        establish["message"]["establish"]["contract"]["mmax"] = json!(mmax);
        establish["message"]["establish"]["packet"] = json!(packet);
        let body = serde_json::to_vec(&establish).expect("JSON");
        decode(&body).map_err(|error| error.to_string())
    };
    assert!(decoded(65_535 * 32, 64).is_ok());
    let error = decoded(65_535 * 32 + 1, 64).expect_err("too many");
    let text = "a message has at most 65535 parts, and one of 2097121B in packets of 64 bytes has \
                65536";
    assert!(error.contains(text), "{error}");
    assert!(decoded(16 << 20, 32 + 256).is_err());
    assert!(decoded(16 << 20, 32 + 257).is_ok());
}

#[test]
fn established_names_a_port_above_zero() {
    let mut established = json_of(&every_message()[4]);
    assert_eq!(established["message"]["established"]["port"], json!(65_535));
    for port in [json!(0), json!(65_536), json!(null)] {
        established["message"]["established"]["port"] = port;
        let error = error_of(&established);
        assert!(
            error.starts_with("the message is not understood"),
            "{error}"
        );
    }
}

#[test]
fn the_channels_of_a_refresh_are_sorted_and_different() {
    for channels in [
        "1".repeat(31),
        "g".repeat(32),
        "1".repeat(64),
        "21".repeat(16) + &"12".repeat(16),
    ] {
        let message = json!({"version": 1, "message": {"refresh": {"channels": channels}}});
        let error = error_of(&message);
        assert!(
            error.contains("hexadecimal") || error.contains("ascending"),
            "{error}"
        );
    }
}

#[test]
fn a_reason_has_one_line_and_a_bounded_length() {
    assert_eq!(Reason::new("a\nb").as_str(), "a b");
    assert_eq!(Reason::new("").as_str(), "no reason is given");
    // A character of two bytes is not divided.
    let cut = Reason::new(&format!("x{}", "ä".repeat(300)));
    assert_eq!(cut.as_str().len(), Reason::LONGEST - 1);
    let close = json!({"version": 1, "message": {"close": {
        "channel": "0".repeat(32), "host": "a", "reason": "a\nb",
    }}});
    assert!(error_of(&close).contains("a reason contains '\\n' at byte 1"));
}

#[test]
fn a_report_looks_as_specified_and_an_invalid_one_is_refused() {
    let good = json_of(&Message::ReportAnswer(report_answer()));
    let expected = json!({"version": 1, "message": {"report-answer": {
        "channel": "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5",
        "question": 7,
        "hops": [
            {"host": "r", "counted": {"counts": {
                "messages": 3, "late": 1, "excused": 1, "lost": 2, "least_laxity_ns": -5,
                "laxities": [0, 1, 0, 0, 0, 0, 0, 0, 0, 2],
                "stops": {"number": 1, "total_ns": 9, "longest_ns": 9},
            }}},
            {"host": "b", "counted": {"unknown": "it did not answer within 300ms"}},
        ],
    }}});
    assert_eq!(good, expected);
    let counts = "/hops/0/counted/counts";
    let cases = [
        ("/hops", json!([]), "1 to 15 hosts, not 0".to_owned()),
        ("/channel", json!("A5"), "32 hexadecimal digits".to_owned()),
        ("/hops/0/host", json!("-"), "host".to_owned()),
        ("/hops/1/counted/unknown", json!(""), "reason".to_owned()),
        (counts, json!({"messages": 3}), "missing field".to_owned()),
    ];
    let numbers = [
        ("messages", json!(4), "sum to the messages"),
        ("late", json!(0), "sum to the late messages"),
        ("excused", json!(2), "excused"),
        ("laxities", json!([0, 1, 2]), "length"),
        ("least_laxity_ns", Value::Null, "least laxity"),
    ];
    let numbers = numbers.map(|(name, value, text)| (name, value, text.to_owned()));
    let in_counts = numbers.map(|(name, value, text)| (format!("{counts}/{name}"), value, text));
    let cases = cases.map(|(place, value, text)| (place.to_owned(), value, text));
    for (place, value, text) in cases.into_iter().chain(in_counts) {
        let mut changed = good.clone();
        let found = changed.pointer_mut(&format!("/message/report-answer{place}"));
        *found.expect("the field exists") = value;
        let error = error_of(&changed);
        assert!(error.contains(&text), "{place}: {error}");
    }
    let mut many = good;
    let hops = many.pointer_mut("/message/report-answer/hops");
    let hops = hops.and_then(Value::as_array_mut).expect("a list");
    *hops = vec![hops[0].clone(); 16];
    assert!(error_of(&many).contains("1 to 15 hosts, not 16"));
}

#[test]
fn a_hop_can_have_a_mark_that_names_an_interface_except_the_source() {
    let mut message = json_of(&every_message()[1]);
    let hops = |message: &mut Value, value: Value| {
        message["message"]["establish"]["hops"] = value;
    };
    let source = json!({"host": "a", "bound_ns": 7});
    let relay = |mark: &str| json!({"host": "r", "bound_ns": 5, "unguarded": mark});
    hops(&mut message, json!([source.clone(), relay("eth0")]));
    let body = serde_json::to_vec(&message).expect("JSON");
    let Message::Establish(establish) = decode(&body).expect("valid") else {
        panic!("another message");
    };
    let mark = establish.hops.as_slice()[1].unguarded.as_ref();
    assert_eq!(mark.map(ToString::to_string).as_deref(), Some("eth0"));
    assert_eq!(json_of(&Message::Establish(establish)), message);
    for bad in ["", "a/b", "a b", "none", "sixteen-letters-", "eth0\u{7}"] {
        hops(&mut message, json!([source.clone(), relay(bad)]));
        let error = error_of(&message);
        assert!(error.contains("which names no interface"), "{error}");
    }
    let marked = json!({"host": "a", "bound_ns": 7, "unguarded": "eth0"});
    hops(&mut message, json!([marked, {"host": "r", "bound_ns": 5}]));
    let error = error_of(&message);
    assert!(
        error.contains("a is the source, and has the mark"),
        "{error}"
    );
}
