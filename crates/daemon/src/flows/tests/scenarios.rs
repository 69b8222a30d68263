//! Which users may have which flows.

use super::*;

#[test]
fn a_flow_is_opened_told_to_the_driver_and_closed_and_nothing_is_left() {
    let mut stage = Stage::new();
    let seat = stage.program(&ANN, 8);
    let opened = stage.opened(&seat, "10.0.0.2:6000", "up 1mbit");
    assert_eq!((opened.flow, opened.mtu), (1, 1500));
    assert_eq!(opened.next_hop, Some([2, 0, 0, 0, 0, 2]));
    assert_eq!(opened.mac, [2, 0, 0, 0, 1, 2]);
    let Endpoint::Udp { local, .. } = opened.endpoint else {
        panic!("{:?}", opened.endpoint);
    };
    assert_eq!(local.to_string(), "10.0.0.100:40001");
    let at_driver = stage.driver.flows.values().next().expect("it has the flow");
    assert_eq!(
        (at_driver.number, at_driver.contract.as_str()),
        (1, "up 1mbit")
    );
    assert_eq!(at_driver.receive_budget, Some(500_000), "half of its time");
    assert_eq!(stage.flows.held_ports(), [local]);
    assert_eq!(stage.part().expect("a part").flows, 1);
    assert!(matches!(stage.close(&seat, 1), Some(Response::Done(_))));
    assert!(stage.driver.flows.is_empty());
    assert!(stage.flows.held_ports().is_empty());
    assert_eq!(stage.part(), None);
    stage.opened(&seat, "10.0.0.2:6000", "");
    stage.flows.left(seat.guest.number, stage.now);
    stage.pump();
    assert!(stage.driver.programs.is_empty());
    assert!(stage.flows.held_ports().is_empty());
    assert_eq!(stage.part(), None);
}

#[test]
fn who_may_not_is_told_what_to_do() {
    let mut stage = Stage::new();
    let strangers = stage.seat(&ANN, 7);
    assert!(words(&stage.attach(&strangers, 1)).contains("belongs to root, not to you"));
    let seat = stage.program(&ANN, 8);
    let min = words(&stage.open(&seat, "10.0.0.2:6000", "min 1mbit"));
    assert!(min.contains("is for root and the group netnice"), "{min}");
    let low = udp("0.0.0.0:53", Some("10.0.0.2:53"), "");
    let low = stage
        .tell(&seat, DirectRequest::Open(low))
        .expect("an answer");
    assert!(words(&low).contains("others have ports from 1024 on"));
    let raw = OpenFlow {
        endpoint: Endpoint::EtherType {
            number: 0x88b5,
            pattern: Vec::new(),
        },
        ..udp("0.0.0.0:0", None, "")
    };
    let raw = stage
        .tell(&seat, DirectRequest::Open(raw))
        .expect("an answer");
    assert!(words(&raw).contains("for root and the group netnice"));
    stage.flows.network.elsewhere.insert(8);
    let other = stage.seat(&ANN, 8);
    assert!(words(&stage.attach(&other, 1)).contains("another network namespace"));
}

#[test]
fn a_pattern_has_as_many_terms_as_it_can_look_at_bytes() {
    let mut stage = Stage::new();
    let seat = stage.program(&Peer::ROOT, 7);
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
            let answer = stage.tell(&seat, DirectRequest::Open(open));
            answer.expect("an answer")
        })
    };
    for refused in open(33) {
        let told = words(&refused);
        assert!(told.contains("33 terms in one pattern; 32 are"), "{told}");
    }
    for opened in open(32) {
        let is_open = matches!(opened, Response::Direct(DirectReply::Opened(_)));
        assert!(is_open, "{opened:?}");
    }
}

#[test]
fn users_are_kept_off_the_direct_path_where_the_policy_says_so() {
    let mut stage = Stage::new();
    let path = std::env::temp_dir().join(format!("netnice-{}-users.toml", std::process::id()));
    let link = "\n[[link]]\nname = \"eth0\"\nrate = \"100mbit\"\n";
    let obey = |stage: &mut Stage, text: &str| {
        std::fs::write(&path, text).expect("a file");
        stage.service.obey(&path, stage.now);
        std::fs::remove_file(&path).expect("it was there");
    };
    // The policy is not known yet.
    obey(&mut stage, "[[rule]\n");
    let seat = stage.seat(&ANN, 8);
    let told = words(&stage.attach(&seat, 1));
    assert!(
        told.contains("whose policy is not in force is for root"),
        "{told}"
    );
    obey(&mut stage, link);
    let seat = stage.program(&ANN, 8);
    stage.opened(&seat, "10.0.0.2:6000", "");
    obey(&mut stage, &format!("direct_users = false\n{link}"));
    let told = words(&stage.open(&seat, "10.0.0.2:6001", ""));
    assert!(told.contains("direct_users = false"), "{told}");
    let second = stage.seat(&ANN, 8);
    let told = words(&stage.attach(&second, 1));
    assert!(told.contains("for root and the group netnice"), "{told}");
    // An unreadable file leaves the former policy in force.
    obey(&mut stage, "[[rule]\n");
    assert!(words(&stage.attach(&second, 1)).contains("direct_users = false"));
    assert_eq!(stage.driver.flows.len(), 1, "what is open stays");
    let roots = stage.program(&Peer::ROOT, 7);
    stage.opened(&roots, "10.0.0.2:6002", "");
}

#[test]
fn a_link_has_to_be_managed() {
    let mut stage = Stage::unmanaged();
    let seat = stage.seat(&ANN, 8);
    let none = words(&stage.attach(&seat, 1));
    assert!(none.contains("netnice link IFACE --rate R"), "{none}");
    let attach = Attach {
        iface: Some("eth1".to_owned()),
        flows: 1,
        bytes: 4096,
    };
    let named = stage
        .tell(&seat, DirectRequest::Attach(attach))
        .expect("an answer");
    assert!(words(&named).contains("netnice link eth1 --rate R"));
    assert_eq!(stage.driver.starts, 0);
}

#[test]
fn a_user_has_so_many_flows_and_no_more() {
    let mut stage = Stage::new();
    let seat = stage.seat(&ANN, 8);
    let many = words(&stage.attach(&seat, 5_000));
    assert!(
        many.contains("5000 flows") && many.contains("quota of 4096"),
        "{many}"
    );
    let seat = stage.seat(&ANN, 8);
    stage.attach(&seat, 1);
    stage.opened(&seat, "10.0.0.2:6000", "");
    let second = words(&stage.open(&seat, "10.0.0.2:6001", ""));
    assert!(
        second.contains("attached for 1 flows, and 1 are open"),
        "{second}"
    );
}

#[test]
fn what_is_not_for_direct_flows_is_refused_by_name() {
    let mut stage = Stage::new();
    let seat = stage.program(&Peer::ROOT, 7);
    let cases = [
        ("10.0.0.100:6000", "", "is this host itself"),
        ("239.1.1.1:6000", "", "ask for a flow of a group"),
        ("10.9.0.1:6000", "", "leads over eth1, not over eth0"),
        ("192.0.2.1:6000", "", "there is no way"),
        (
            "10.0.0.2:6000",
            "down 1mbit",
            "down is not for direct flows",
        ),
        ("10.0.0.2:6000", "min 1mbit on eth1", "attached to eth0"),
        (
            "10.0.0.2:6000",
            "min 1mbit cell pcr=2mbit,cdvt=1ms",
            "make one flow for each",
        ),
    ];
    for (to, contract, why) in cases {
        let told = words(&stage.open(&seat, to, contract));
        assert!(told.contains(why), "{to} {contract}: {told}");
    }
    let from_nowhere = DirectRequest::Open(udp("0.0.0.0:6000", None, ""));
    let told = words(&stage.tell(&seat, from_nowhere).expect("an answer"));
    let why = "0.0.0.0 names none; `ip address show dev eth0` lists those of eth0";
    assert!(told.contains(why), "{told}");
    assert!(stage.flows.held_ports().is_empty());
    assert_eq!(stage.part(), None);
}

#[test]
fn a_port_is_had_once() {
    let mut stage = Stage::new();
    let seat = stage.program(&ANN, 8);
    let at = |remote: &str| DirectRequest::Open(udp("10.0.0.100:7000", Some(remote), ""));
    let first = stage.tell(&seat, at("10.0.0.2:1"));
    assert!(matches!(first, Some(Response::Direct(_))), "{first:?}");
    // Another remote end is another flow; the same one is refused.
    let second = stage.tell(&seat, at("10.0.0.3:1"));
    assert!(matches!(second, Some(Response::Direct(_))), "{second:?}");
    let same = words(&stage.tell(&seat, at("10.0.0.2:1")).expect("an answer"));
    assert!(
        same.contains("10.0.0.100:7000 of UDP is in use: a direct flow has it"),
        "{same}"
    );
    let roots = stage.program(&Peer::ROOT, 7);
    let other = words(&stage.tell(&roots, at("10.0.0.4:1")).expect("an answer"));
    assert!(other.contains("a direct flow has it"), "{other}");
    stage
        .flows
        .network
        .taken
        .insert("10.0.0.100:8000".parse().expect("an address"));
    let open = udp("10.0.0.100:8000", Some("10.0.0.2:1"), "");
    let socket = stage
        .tell(&seat, DirectRequest::Open(open))
        .expect("an answer");
    assert!(words(&socket).contains("a socket of this host has it"));
    stage.close(&seat, 1);
    assert_eq!(stage.flows.held_ports().len(), 1);
    stage.close(&seat, 2);
    assert!(stage.flows.held_ports().is_empty());
}

#[test]
fn members_of_a_group_share_its_port() {
    let mut stage = Stage::new();
    let (one, other) = (stage.program(&ANN, 8), stage.program(&Peer::ROOT, 7));
    for seat in [&one, &other] {
        let open = OpenFlow {
            endpoint: Endpoint::Group {
                local: "0.0.0.0:0".parse().expect("an address"),
                group: "239.1.1.1:5000".parse().expect("an address"),
            },
            ..udp("0.0.0.0:0", None, "")
        };
        let opened = stage
            .tell(seat, DirectRequest::Open(open))
            .expect("an answer");
        let Response::Direct(DirectReply::Opened(opened)) = opened else {
            panic!("{opened:?}");
        };
        assert_eq!(opened.next_hop, Some([0x01, 0, 0x5e, 1, 1, 1]));
    }
    assert_eq!(stage.flows.network.joined.len(), 1);
    assert_eq!(stage.flows.held_ports().len(), 3);
    stage.close(&one, 1);
    stage.close(&other, 2);
    assert!(stage.flows.held_ports().is_empty());
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let mut stage = Stage::new();
    stage.set(7, "min 20mbit");
    let seat = stage.program(&Peer::ROOT, 7);
    stage.opened(&seat, "10.0.0.2:6000", "min 50mbit");
    let told = words(&stage.open(&seat, "10.0.0.2:6001", "min 40mbit"));
    for part in [
        "flow:2 asks min 40mbit on eth0",
        "pid:7  20 Mbit/s",
        "flow:1  min 50mbit",
        "would fit   at most",
    ] {
        assert!(told.contains(part), "{told}");
    }
    assert!(matches!(
        stage.open(&seat, "10.0.0.2:6001", "min 10mbit"),
        Response::Direct(_)
    ));
    // The kernel path does not get what flows have either.
    let told = words(&stage.set(7, "min 60mbit"));
    assert!(told.contains("direct:eth0"), "{told}");
    let told = words(&stage.link("50mbit"));
    assert!(told.contains("direct:eth0"), "{told}");
    // A cdvt that the driver cannot keep.
    let told = words(&stage.open(&seat, "10.0.0.2:6002", "cell pcr=1mbit,cdvt=1us"));
    assert!(told.contains("a cdvt of at least"), "{told}");
    assert_eq!(stage.driver.flows.len(), 2);
}

#[test]
fn a_changed_contract_is_admitted_or_the_old_one_stays() {
    let mut stage = Stage::new();
    let seat = stage.program(&Peer::ROOT, 7);
    let flow = stage.opened(&seat, "10.0.0.2:6000", "min 50mbit").flow;
    let more = stage.change(&seat, flow, "min 60mbit weight 7");
    assert!(matches!(more, Response::Done(_)), "{more:?}");
    let at_driver = |stage: &Stage| {
        stage
            .driver
            .flows
            .values()
            .next()
            .map(|f| f.contract.clone())
    };
    assert_eq!(at_driver(&stage).as_deref(), Some("min 60mbit weight 7"));
    let much = words(&stage.change(&seat, flow, "min 200mbit"));
    assert!(much.contains("does not fit"), "{much}");
    assert_eq!(at_driver(&stage).as_deref(), Some("min 60mbit weight 7"));
    stage.change(&seat, flow, "min none");
    assert_eq!(at_driver(&stage).as_deref(), Some("weight 7"));
    let need = stage.part().expect("a part").need;
    assert_eq!(need.bits_per_second(), 1_000_000);
    assert!(words(&stage.change(&seat, 77, "up 1mbit")).contains("flow:77 is not open"));
}
