//! Tests messages about direct flows, and samples of the requests to drivers.

use super::*;
use crate::direct::{
    DeliveryFailure, DirectReply, DirectRequest, Endpoint, FindRoute, FlowNotification, FlowOpened,
    HoldPromise, OpenFlow, PromiseHeld, ReleaseHold, RouteToHost, ShapeDoc, Term, Undelivered,
};

pub(super) fn driver_flow() -> DriverFlow {
    DriverFlow {
        program: 3,
        number: 9,
        endpoint: Endpoint::Udp {
            local: "10.0.0.1:5000".parse().expect("an address"),
            remote: Some("[fd00::1]:6000".parse().expect("an address")),
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
        receive_budget: Some(250_000),
    }
}

pub(super) fn driver_requests() -> Vec<DriverRequest> {
    let server = "[fd00::1]:80".parse().expect("an address");
    let endpoint = [
        Endpoint::Group {
            local: "10.0.0.1:5000".parse().expect("an address"),
            group: "239.1.2.3:6000".parse().expect("an address"),
        },
        Endpoint::Protocol {
            number: 253,
            local: "10.0.0.1".parse().expect("an address"),
            remote: None,
            pattern: vec![Term {
                offset: 4,
                mask: 0xf0,
                value: 0x20,
            }],
        },
        Endpoint::EtherType {
            number: 0x88b5,
            pattern: Vec::new(),
        },
        Endpoint::Tcp {
            local: server,
            remote: server,
        },
        Endpoint::TcpSyn { local: server },
        Endpoint::TcpListener { local: server },
    ];
    let flows = endpoint.map(|endpoint| DriverFlow {
        endpoint,
        next_hop: None,
        granted: None,
        in_order: false,
        receive_budget: None,
        ..driver_flow()
    });
    let flows = flows.into_iter().chain([driver_flow()]);
    let opens = flows.map(|flow| DriverRequest::Open(Box::new(flow)));
    opens.chain(other_driver_requests()).collect()
}

/// Requests that open no flow.
fn other_driver_requests() -> Vec<DriverRequest> {
    vec![
        DriverRequest::Wire {
            rate: u64::MAX,
            kernel_rate: u64::MAX,
            overhead: 24,
            horizon_ns: 0,
            ahead_ns: u64::MAX,
        },
        DriverRequest::KernelPath { place: u32::MAX },
        DriverRequest::Redirects {
            iface: "nns3".into(),
        },
        DriverRequest::Redirect {
            place: 255,
            target: u32::MAX,
            contract: "cell pcr=10mbit,cdvt=200us".into(),
            hold_ns: 300_000_000,
        },
        DriverRequest::EndRedirect { place: 255 },
        DriverRequest::Attach {
            pid: 7,
            uid: 1000,
            flows: 64,
            bytes: 1 << 30,
            memory_limit: Some(1 << 32),
            secret: Some("5e".into()),
        },
        DriverRequest::Detach { program: 0 },
        DriverRequest::CodePoints(CodePointsDoc {
            channel: Some(34),
            slice: Some(26),
            min: Some(18),
            ..CodePointsDoc::default()
        }),
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
        DriverRequest::Close {
            flow: u32::MAX,
            reset: true,
        },
        DriverRequest::Classes { server: None },
        DriverRequest::Classes {
            server: Some(ServerDoc {
                slice: Some("4ms/20ms".to_owned()),
                minimums: vec![None, Some(5_000_000)],
            }),
        },
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
        DriverRequest::CensusOf {
            flows: vec![0, u32::MAX],
        },
        DriverRequest::Stop,
    ]
}

/// The endpoints of TCP, and their text in messages.
fn tcp_endpoints() -> [(Endpoint, &'static str); 3] {
    let local = "10.0.0.1:80".parse().expect("an address");
    let remote = "10.0.0.2:4000".parse().expect("an address");
    [
        (
            Endpoint::Tcp { local, remote },
            r#"{"tcp":{"local":"10.0.0.1:80","remote":"10.0.0.2:4000"}}"#,
        ),
        (
            Endpoint::TcpSyn { local },
            r#"{"tcp-syn":{"local":"10.0.0.1:80"}}"#,
        ),
        (
            Endpoint::TcpListener { local },
            r#"{"tcp-listener":{"local":"10.0.0.1:80"}}"#,
        ),
    ]
}

#[test]
fn requests_and_replies_of_tcp_survive_encoding_and_decoding() {
    for (endpoint, text) in tcp_endpoints() {
        assert!(endpoint.is_tcp() && endpoint.port() == Some(80));
        assert_eq!(serde_json::to_string(&endpoint).expect("JSON"), text);
        let open = OpenFlow {
            endpoint: endpoint.clone(),
            contract: None,
            shape: ShapeDoc::default(),
            in_order: false,
            hold: None,
        };
        let request = Request::Direct(DirectRequest::Open(open));
        let frame = encode_request(&request).expect("short");
        assert_eq!(decode_request(body(&frame)).expect("decoded"), request);
        let opened = FlowOpened {
            flow: 1,
            slot: 2,
            offset: 4096,
            endpoint,
            mac: [2; 6],
            next_hop: None,
            mtu: 1500,
            contract: "none".into(),
            key: Some([9; 16]),
        };
        let reply = Response::Direct(DirectReply::Opened(opened));
        let frame = encode_response(&reply).expect("short");
        assert_eq!(decode_response(body(&frame)).expect("decoded"), reply);
    }
    let report = Undelivered {
        to: "10.0.0.2:4000".parse().expect("an address"),
        by: "10.0.0.9".parse().expect("an address"),
        why: DeliveryFailure::TooLong,
        mtu: Some(1400),
        sequence: Some(u32::MAX),
    };
    let undelivered = FlowNotification::Undelivered { flow: 7, report };
    let reply = Response::Direct(DirectReply::Notification(undelivered));
    let frame = encode_response(&reply).expect("short");
    assert_eq!(decode_response(body(&frame)).expect("decoded"), reply);
}

#[test]
fn requests_and_replies_of_holds_and_routes_survive_encoding_and_decoding() {
    let host = "fd00::2".parse().expect("an address");
    let contract = "channel mmax=3KiB,rmax=20/s,bmax=2,deadline=60ms";
    let requests = [
        (
            DirectRequest::Route(FindRoute { to: host }),
            r#"{"direct":{"route":{"to":"fd00::2"}}}"#.to_owned(),
        ),
        (
            DirectRequest::Hold(HoldPromise {
                to: host,
                contract: contract.into(),
            }),
            format!(r#"{{"direct":{{"hold":{{"to":"fd00::2","contract":"{contract}"}}}}}}"#),
        ),
        (
            DirectRequest::Release(ReleaseHold { hold: u32::MAX }),
            r#"{"direct":{"release":{"hold":4294967295}}}"#.to_owned(),
        ),
    ];
    for (request, text) in requests {
        let request = Request::Direct(request);
        assert_eq!(serde_json::to_string(&request).expect("JSON"), text);
        let frame = encode_request(&request).expect("short");
        assert_eq!(decode_request(body(&frame)).expect("decoded"), request);
    }
    let replies = [
        DirectReply::Route(RouteToHost {
            iface: "eth0".into(),
            via: host,
            from: host,
        }),
        DirectReply::Held(PromiseHeld {
            hold: 3,
            contract: contract.into(),
            via: host,
            from: host,
            mtu: 1500,
        }),
    ];
    for reply in replies {
        let reply = Response::Direct(reply);
        let frame = encode_response(&reply).expect("short");
        assert_eq!(decode_response(body(&frame)).expect("decoded"), reply);
    }
}

#[test]
fn an_invalid_request_of_a_hold_or_a_route_is_refused_with_a_reason() {
    for (text, expected) in [
        (r#"{"route":{"to":"10.0.0.1:80"}}"#, "invalid IP address"),
        (r#"{"route":{"to":"eth0"}}"#, "invalid IP address"),
        (r#"{"hold":{"to":"10.0.0.1"}}"#, "missing field `contract`"),
        (
            r#"{"hold":{"to":"10.0.0.1","contract":"none","for":9}}"#,
            "unknown field `for`",
        ),
        (r#"{"release":{"hold":-1}}"#, "invalid value"),
        (r#"{"release":{"hold":4294967296}}"#, "invalid value"),
    ] {
        let error = serde_json::from_str::<DirectRequest>(text).expect_err(text);
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}

/// Daemons, drivers and programs of an earlier version send messages without the newer fields.
#[test]
fn messages_of_an_earlier_version_have_no_key_and_no_reset() {
    let opened = r#"{"flow":1,"slot":0,"offset":4096,
        "speaks":{"udp":{"local":"10.0.0.1:5000"}},"mac":[2,0,0,0,0,1],"next_hop":null,
        "mtu":1500,"contract":"none"}"#;
    let opened: FlowOpened = serde_json::from_str(opened).expect("it is complete");
    assert_eq!(opened.key, None);
    let open = r#"{"speaks":{"udp":{"local":"10.0.0.1:0"}},"contract":null,
        "shape":{"chunk_bytes":2048,"chunks":64,"transmit_entries":64,"receive_entries":64}}"#;
    let open: OpenFlow = serde_json::from_str(open).expect("it is complete");
    assert_eq!(open.hold, None);
    let text = serde_json::to_string(&open).expect("JSON");
    assert!(
        !text.contains("hold"),
        "an earlier daemon refuses it: {text}"
    );
    let close = serde_json::from_str::<DriverRequest>(r#"{"close":{"flow":3}}"#);
    let reset = false;
    assert_eq!(
        close.expect("JSON"),
        DriverRequest::Close { flow: 3, reset }
    );
}

#[test]
fn an_invalid_endpoint_of_tcp_is_refused_with_a_reason() {
    for (text, expected) in [
        (
            r#"{"tcp":{"local":"10.0.0.1:80"}}"#,
            "missing field `remote`",
        ),
        (
            r#"{"tcp-syn":{"local":"10.0.0.1"}}"#,
            "invalid socket address",
        ),
        (
            r#"{"tcp-listener":{"local":"10.0.0.1:80","remote":"10.0.0.2:1"}}"#,
            "unknown field `remote`",
        ),
        (
            r#"{"tcp-listen":{"local":"10.0.0.1:80"}}"#,
            "unknown variant",
        ),
    ] {
        let error = serde_json::from_str::<Endpoint>(text).expect_err(text);
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}
