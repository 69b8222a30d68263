//! Tests of opening, changing and closing direct flows: permissions, quotas, ports and admission,
//! and the advice in each refusal.

use std::net::IpAddr;

use super::*;

#[test]
fn a_flow_is_opened_at_the_driver_and_closed_without_traces() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    let opened = fixture.opened(&client, "10.0.0.2:6000", "up 1mbit");
    assert_eq!((opened.flow, opened.mtu), (1, 1500));
    assert_eq!(opened.next_hop, Some([2, 0, 0, 0, 0, 2]));
    assert_eq!(opened.mac, [2, 0, 0, 0, 1, 2]);
    let Endpoint::Udp { local, .. } = opened.endpoint else {
        panic!("{:?}", opened.endpoint);
    };
    assert_eq!(local.to_string(), "10.0.0.100:40001");
    let at_driver = fixture
        .driver
        .flows
        .values()
        .next()
        .expect("it has the flow");
    assert_eq!(
        (at_driver.number, at_driver.contract.as_str()),
        (1, "up 1mbit")
    );
    assert_eq!(at_driver.receive_budget, Some(500_000), "half of its time");
    assert_eq!(fixture.flows.held_ports(), [local]);
    assert_eq!(fixture.direct_part().expect("a part").flows, 1);
    assert!(matches!(fixture.close(&client, 1), Some(Response::Done(_))));
    assert!(fixture.driver.flows.is_empty());
    assert!(fixture.flows.held_ports().is_empty());
    assert_eq!(fixture.direct_part(), None);
    fixture.opened(&client, "10.0.0.2:6000", "");
    fixture
        .flows
        .connection_ended(client.connection.number, fixture.now);
    fixture.exchange();
    assert!(fixture.driver.programs.is_empty());
    assert!(fixture.flows.held_ports().is_empty());
    assert_eq!(fixture.direct_part(), None);
}

#[test]
fn a_request_without_permission_is_refused_with_advice() {
    let mut fixture = Fixture::new();
    let strangers = fixture.client(&ANN, 7);
    assert!(error_text(&fixture.attach(&strangers, 1)).contains("belongs to root, not to you"));
    let client = fixture.attached_client(&ANN, 8);
    let min = error_text(&fixture.open(&client, "10.0.0.2:6000", "min 1mbit"));
    assert!(min.contains("is for root and the group netnice"), "{min}");
    let low = udp("0.0.0.0:53", Some("10.0.0.2:53"), "");
    let low = fixture
        .request(&client, DirectRequest::Open(low))
        .expect("an answer");
    assert!(error_text(&low).contains("others have ports from 1024 on"));
    let raw = OpenFlow {
        endpoint: Endpoint::EtherType {
            number: 0x88b5,
            pattern: Vec::new(),
        },
        ..udp("0.0.0.0:0", None, "")
    };
    let raw = fixture
        .request(&client, DirectRequest::Open(raw))
        .expect("an answer");
    assert!(error_text(&raw).contains("for root and the group netnice"));
    fixture.leaves_network(8);
    let other = fixture.client(&ANN, 8);
    assert!(error_text(&fixture.attach(&other, 1)).contains("another network namespace"));
}

#[test]
fn a_pattern_can_have_as_many_terms_as_it_can_match_bytes() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let term = Term {
        offset: 4,
        mask: 1,
        value: 1,
    };
    let mut open = |terms| {
        let endpoint = [
            Endpoint::EtherType {
                number: 0x88b5,
                pattern: vec![term; terms],
            },
            Endpoint::Protocol {
                number: 99,
                local: [10, 0, 0, 100].into(),
                remote: None,
                pattern: vec![term; terms],
            },
        ];
        endpoint.map(|endpoint| {
            let open = OpenFlow {
                endpoint,
                ..udp("0.0.0.0:0", None, "")
            };
            let answer = fixture.request(&client, DirectRequest::Open(open));
            answer.expect("an answer")
        })
    };
    for refused in open(33) {
        let text = error_text(&refused);
        assert!(text.contains("33 terms in one pattern; 32 are"), "{text}");
    }
    for opened in open(32) {
        let is_open = matches!(opened, Response::Direct(DirectReply::Opened(_)));
        assert!(is_open, "{opened:?}");
    }
}

#[test]
fn the_policy_can_forbid_users_the_direct_path() {
    let mut fixture = Fixture::new();
    let path = std::env::temp_dir().join(format!("netnice-{}-users.toml", std::process::id()));
    let link = "\n[[link]]\nname = \"eth0\"\nrate = \"100mbit\"\n";
    let load_policy = |fixture: &mut Fixture, text: &str| {
        std::fs::write(&path, text).expect("a file");
        fixture.service.load_policy(&path, fixture.now);
        std::fs::remove_file(&path).expect("it was there");
    };
    // The policy is not known yet.
    load_policy(&mut fixture, "[[rule]\n");
    let client = fixture.client(&ANN, 8);
    let text = error_text(&fixture.attach(&client, 1));
    assert!(
        text.contains("whose policy is not in force is for root"),
        "{text}"
    );
    load_policy(&mut fixture, link);
    let client = fixture.attached_client(&ANN, 8);
    fixture.opened(&client, "10.0.0.2:6000", "");
    load_policy(&mut fixture, &format!("direct_users = false\n{link}"));
    let text = error_text(&fixture.open(&client, "10.0.0.2:6001", ""));
    assert!(text.contains("direct_users = false"), "{text}");
    let second = fixture.client(&ANN, 8);
    let text = error_text(&fixture.attach(&second, 1));
    assert!(text.contains("for root and the group netnice"), "{text}");
    // An unreadable file leaves the former policy in force.
    load_policy(&mut fixture, "[[rule]\n");
    assert!(error_text(&fixture.attach(&second, 1)).contains("direct_users = false"));
    assert_eq!(fixture.driver.flows.len(), 1, "what is open stays");
    let roots = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&roots, "10.0.0.2:6002", "");
}

#[test]
fn an_attachment_needs_a_managed_link() {
    let mut fixture = Fixture::unmanaged();
    let client = fixture.client(&ANN, 8);
    let none = error_text(&fixture.attach(&client, 1));
    assert!(none.contains("netnice link IFACE --rate R"), "{none}");
    let attach = Attach {
        iface: Some("eth1".to_owned()),
        flows: 1,
        bytes: 4096,
        moves: false,
    };
    let named = fixture
        .request(&client, DirectRequest::Attach(attach))
        .expect("an answer");
    assert!(error_text(&named).contains("netnice link eth1 --rate R"));
    assert_eq!(fixture.driver.starts, 0);
}

#[test]
fn a_user_cannot_exceed_the_quota_of_flows() {
    let mut fixture = Fixture::new();
    let client = fixture.client(&ANN, 8);
    let many = error_text(&fixture.attach(&client, 5_000));
    assert!(
        many.contains("5000 flows") && many.contains("quota of 4096"),
        "{many}"
    );
    let client = fixture.client(&ANN, 8);
    fixture.attach(&client, 1);
    fixture.opened(&client, "10.0.0.2:6000", "");
    let second = error_text(&fixture.open(&client, "10.0.0.2:6001", ""));
    assert!(
        second.contains("attached for 1 flows, and 1 are open"),
        "{second}"
    );
}

#[test]
fn unsupported_endpoints_and_clauses_are_refused_with_the_reason() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let cases = [
        ("10.0.0.100:6000", "", "is this host itself"),
        ("239.1.1.1:6000", "", "ask for a flow of a group"),
        ("10.9.0.1:6000", "", "leads over eth1, not over eth0"),
        ("192.0.2.1:6000", "", "there is no route"),
        (
            "10.0.0.2:6000",
            "down 1mbit",
            "down is not for direct flows",
        ),
        ("10.0.0.2:6000", "min 1mbit on eth1", "attached to eth0"),
        (
            "10.0.0.2:6000",
            "min 1mbit cell pcr=2mbit,cdvt=1ms",
            "both reserve the sending direction",
        ),
    ];
    for (to, contract, why) in cases {
        let text = error_text(&fixture.open(&client, to, contract));
        assert!(text.contains(why), "{to} {contract}: {text}");
    }
    let from_nowhere = DirectRequest::Open(udp("0.0.0.0:6000", None, ""));
    let text = error_text(&fixture.request(&client, from_nowhere).expect("an answer"));
    let why = "0.0.0.0 names none; `ip address show dev eth0` lists those of eth0";
    assert!(text.contains(why), "{text}");
    assert!(fixture.flows.held_ports().is_empty());
    assert_eq!(fixture.direct_part(), None);
}

#[test]
fn a_port_belongs_to_one_user_and_one_remote_end() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    let at = |remote: &str| DirectRequest::Open(udp("10.0.0.100:7000", Some(remote), ""));
    let first = fixture.request(&client, at("10.0.0.2:1"));
    assert!(matches!(first, Some(Response::Direct(_))), "{first:?}");
    // Another remote end is another flow; the same one is refused.
    let second = fixture.request(&client, at("10.0.0.3:1"));
    assert!(matches!(second, Some(Response::Direct(_))), "{second:?}");
    let same = error_text(
        &fixture
            .request(&client, at("10.0.0.2:1"))
            .expect("an answer"),
    );
    assert!(
        same.contains("10.0.0.100:7000 of UDP is in use: a direct flow of process 8 has it"),
        "{same}"
    );
    let roots = fixture.attached_client(&Peer::ROOT, 7);
    let other = error_text(
        &fixture
            .request(&roots, at("10.0.0.4:1"))
            .expect("an answer"),
    );
    assert!(
        other.contains("a direct flow of process 8 has it"),
        "{other}"
    );
    fixture
        .flows
        .network
        .taken
        .insert("10.0.0.100:8000".parse().expect("an address"));
    let open = udp("10.0.0.100:8000", Some("10.0.0.2:1"), "");
    let socket = fixture
        .request(&client, DirectRequest::Open(open))
        .expect("an answer");
    assert!(error_text(&socket).contains("a socket of this host has it"));
    fixture.close(&client, 1);
    assert_eq!(fixture.flows.held_ports().len(), 1);
    fixture.close(&client, 2);
    assert!(fixture.flows.held_ports().is_empty());
}

/// Each failure that the socket calls have an errno for carries its cause.
#[test]
fn failures_carry_their_causes() {
    use netnice_api::FailureCause::{ForeignAddress, NoAnswer, NoInterface, NoRoute, PortInUse};
    let mut fixture = Fixture::new();
    let taken = "10.0.0.100:8000".parse().expect("an address");
    fixture.flows.network.taken.insert(taken);
    let silent = netnice_kernel::routes::Neighbour::Failed;
    let host = std::net::IpAddr::from([10, 0, 0, 2]);
    fixture.flows.network.next_hops.insert(host, silent);
    let client = fixture.attached_client(&ANN, 8);
    for (local, remote, cause) in [
        ("10.0.0.100:8000", "10.0.0.3:1", PortInUse),
        ("0.0.0.0:0", "192.0.2.1:1", NoRoute),
        ("0.0.0.0:0", "10.9.0.1:1", NoRoute),
        ("0.0.0.0:0", "10.0.0.2:1", NoAnswer),
        ("10.0.0.7:0", "10.0.0.3:1", ForeignAddress),
        ("10.0.0.7:0", "192.0.2.1:1", ForeignAddress),
    ] {
        let open = DirectRequest::Open(udp(local, Some(remote), ""));
        let mut answer = fixture.begin(&client, open);
        fixture.advance(Nanos::from_secs(1));
        match answer.try_recv().expect("an answer").response {
            Response::Failed(failed) => {
                assert_eq!(
                    failed.cause,
                    Some(cause),
                    "{local} {remote}: {}",
                    failed.text
                );
            }
            other => panic!("{local} {remote}: {other:?}"),
        }
    }
    assert!(fixture.flows.held_ports().is_empty());
    let attach = Attach {
        iface: Some("eth9".to_owned()),
        flows: 1,
        bytes: 4096,
        moves: false,
    };
    let other = fixture.client(&ANN, 8);
    match fixture.request(&other, DirectRequest::Attach(attach)) {
        Some(Response::Failed(failed)) => {
            assert_eq!(failed.cause, Some(NoInterface));
            assert!(failed.text.contains("eth9"), "{}", failed.text);
        }
        other => panic!("{other:?}"),
    }
}

/// A flow of the group 239.1.1.1:5000, which must open.
fn open_member(fixture: &mut Fixture, client: &TestClient) -> FlowOpened {
    let open = OpenFlow {
        endpoint: Endpoint::Group {
            local: "0.0.0.0:0".parse().expect("an address"),
            group: "239.1.1.1:5000".parse().expect("an address"),
        },
        ..udp("0.0.0.0:0", None, "")
    };
    match fixture.request(client, DirectRequest::Open(open)) {
        Some(Response::Direct(DirectReply::Opened(opened))) => opened,
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_of_a_group_share_its_port() {
    let mut fixture = Fixture::new();
    let (one, other) = (
        fixture.attached_client(&ANN, 8),
        fixture.attached_client(&Peer::ROOT, 7),
    );
    for client in [&one, &other] {
        let opened = open_member(&mut fixture, client);
        assert_eq!(opened.next_hop, Some([0x01, 0, 0x5e, 1, 1, 1]));
    }
    let group = IpAddr::from([239, 1, 1, 1]);
    assert_eq!(fixture.flows.network.joined, [(group, 2)]);
    assert_eq!(fixture.flows.held_ports().len(), 3);
    fixture.close(&one, 1);
    assert_eq!(fixture.flows.network.joined, [(group, 2)], "one is left");
    fixture.close(&other, 2);
    assert!(fixture.flows.held_ports().is_empty());
}

#[test]
fn each_link_with_members_of_a_group_joins_it_until_its_last_member_ends() {
    let mut fixture = Fixture::new();
    let one = fixture.attached_client(&ANN, 8);
    fixture.link_of("eth1", "100mbit");
    let other = fixture.client(&Peer::ROOT, 7);
    let attach = Attach {
        iface: Some("eth1".to_owned()),
        flows: 10,
        bytes: 1 << 20,
        moves: false,
    };
    fixture
        .request(&other, DirectRequest::Attach(attach))
        .expect("an answer");
    let first = open_member(&mut fixture, &one).flow;
    let second = open_member(&mut fixture, &other).flow;
    let third = open_member(&mut fixture, &other).flow;
    let group = IpAddr::from([239, 1, 1, 1]);
    assert_eq!(fixture.flows.network.joined, [(group, 2), (group, 3)]);
    fixture.close(&one, first);
    assert_eq!(fixture.flows.network.joined, [(group, 3)]);
    fixture.close(&other, second);
    assert_eq!(fixture.flows.network.joined, [(group, 3)], "one is left");
    open_member(&mut fixture, &one);
    assert_eq!(fixture.flows.network.joined, [(group, 3), (group, 2)]);
    fixture.close(&other, third);
    assert_eq!(fixture.flows.network.joined, [(group, 2)]);
}

#[test]
fn a_flow_that_does_not_fit_is_refused_with_the_largest_that_would() {
    let mut fixture = Fixture::new();
    fixture.set(7, "min 20mbit");
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "min 50mbit");
    let text = error_text(&fixture.open(&client, "10.0.0.2:6001", "min 40mbit"));
    for part in [
        "flow:2 asks min 40mbit on eth0",
        "pid:7  20 Mbit/s",
        "flow:1  min 50mbit",
        "would fit   at most",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(matches!(
        fixture.open(&client, "10.0.0.2:6001", "min 10mbit"),
        Response::Direct(_)
    ));
    // The kernel path does not get what flows have either.
    let text = error_text(&fixture.set(7, "min 60mbit"));
    assert!(text.contains("direct:eth0"), "{text}");
    // A cdvt that the driver cannot keep.
    let text = error_text(&fixture.open(&client, "10.0.0.2:6002", "cell pcr=1mbit,cdvt=1us"));
    assert!(text.contains("a cdvt of at least"), "{text}");
    assert_eq!(fixture.driver.flows.len(), 2);
}

#[test]
fn a_changed_contract_is_admitted_or_the_old_one_stays() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let flow = fixture.opened(&client, "10.0.0.2:6000", "min 50mbit").flow;
    let more = fixture.change(&client, flow, "min 60mbit weight 7");
    assert!(matches!(more, Response::Done(_)), "{more:?}");
    let at_driver = |fixture: &Fixture| {
        fixture
            .driver
            .flows
            .values()
            .next()
            .map(|f| f.contract.clone())
    };
    assert_eq!(at_driver(&fixture).as_deref(), Some("min 60mbit weight 7"));
    let much = error_text(&fixture.change(&client, flow, "min 200mbit"));
    assert!(much.contains("does not fit"), "{much}");
    assert_eq!(at_driver(&fixture).as_deref(), Some("min 60mbit weight 7"));
    fixture.change(&client, flow, "min none");
    assert_eq!(at_driver(&fixture).as_deref(), Some("weight 7"));
    let need = fixture.direct_part().expect("a part").need;
    assert_eq!(need.bits_per_second(), 1_000_000);
    assert!(error_text(&fixture.change(&client, 77, "up 1mbit")).contains("flow:77 is not open"));
}
