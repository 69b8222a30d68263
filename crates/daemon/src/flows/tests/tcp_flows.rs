//! Tests the flows of TCP: which flows may share a port, the responses to their programs, the
//! requests to the driver when they end, and the ICMP errors that reach them.

use netnice_api::direct::{Attached, Resume, Undelivered};
use netnice_kernel::icmp_errors::{ErrorCause, IcmpError};

use super::*;

const SERVER: &str = "10.0.0.100:8080";

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn connection(local: &str, remote: &str) -> Endpoint {
    Endpoint::Tcp {
        local: address(local),
        remote: address(remote),
    }
}

fn listener(local: &str) -> Endpoint {
    let local = address(local);
    Endpoint::TcpListener { local }
}

fn requests(local: &str) -> Endpoint {
    let local = address(local);
    Endpoint::TcpSyn { local }
}

impl Fixture {
    fn try_tcp(&mut self, client: &TestClient, endpoint: Endpoint, contract: &str) -> Response {
        let open = OpenFlow {
            endpoint,
            ..udp("0.0.0.0:0", None, contract)
        };
        self.request(client, DirectRequest::Open(open))
            .expect("an answer")
    }

    fn tcp(&mut self, client: &TestClient, endpoint: Endpoint) -> FlowOpened {
        match self.try_tcp(client, endpoint, "") {
            Response::Direct(DirectReply::Opened(opened)) => opened,
            other => panic!("{other:?}"),
        }
    }

    /// The text of the error for a flow that cannot be opened. Nothing has changed then.
    fn tcp_error(&mut self, client: &TestClient, endpoint: Endpoint) -> String {
        let before = (self.flows.held_ports(), self.flows.flows.len());
        let answer = self.try_tcp(client, endpoint, "");
        assert_eq!(before, (self.flows.held_ports(), self.flows.flows.len()));
        error_text(&answer)
    }

    fn end_of_process(&mut self, client: &TestClient) {
        let number = client.connection.number;
        let link = self.flows.sessions[&number].link.clone();
        let program = self.flows.sessions[&number].program.expect("attached");
        self.driver.programs.remove(&program);
        self.driver.flows.retain(|_, flow| flow.program != program);
        let event = netnice_api::driver::DriverEvent::ProgramEnded { program };
        let message = netnice_api::driver::DriverMessage::Event(event);
        let event = driver::ConnectionEvent::Message(message, Vec::new());
        self.flows
            .handle_driver_event(&mut self.service, &link, event, self.now);
        self.exchange();
    }

    fn port_changes(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.flows.network.port_changes)
    }
}

/// A second process of Ann.
fn ann_again(fixture: &mut Fixture) -> TestClient {
    fixture.service.host().spawn(9, 1000);
    fixture.attached_client(&ANN, 9)
}

#[test]
fn a_server_has_two_flows_and_promotes_connections_of_its_port() {
    let mut fixture = Fixture::new();
    let ann = fixture.attached_client(&ANN, 8);
    let asked = fixture.tcp(&ann, requests(SERVER));
    assert_eq!((asked.next_hop, asked.mtu), (None, 1500));
    let all = fixture.tcp(&ann, listener(SERVER));
    let one = fixture.tcp(&ann, connection(SERVER, "10.0.0.2:4000"));
    assert_eq!(one.next_hop, Some([2, 0, 0, 0, 0, 2]));
    fixture.tcp(&ann, connection(SERVER, "10.0.0.3:4000"));
    assert_eq!(fixture.flows.held_ports(), [address(SERVER)]);
    assert_eq!(asked.key, all.key);
    assert_eq!(one.key, all.key);
    // A flood of requests leaves the driver's time to the connections.
    let flows = fixture.driver.flows.values();
    let budgets: Vec<Option<u32>> = flows.map(|flow| flow.receive_budget).collect();
    let (few, half) = (Some(100_000), Some(500_000));
    assert_eq!(budgets, [few, half, half, half]);
    // The port of UDP is another one.
    let open = DirectRequest::Open(udp(SERVER, None, ""));
    let udp = fixture.request(&ann, open).expect("an answer");
    assert!(matches!(udp, Response::Direct(_)), "{udp:?}");
    // The same again.
    let taken = "port 10.0.0.100:8080 of TCP is in use: a direct flow of process 8 has it";
    for again in [
        requests(SERVER),
        listener(SERVER),
        connection(SERVER, "10.0.0.2:4000"),
    ] {
        assert_eq!(fixture.tcp_error(&ann, again), taken);
    }
    // Another process of the same user, and another user.
    let other = ann_again(&mut fixture);
    let root = fixture.attached_client(&Peer::ROOT, 7);
    for wanted in [
        requests(SERVER),
        listener(SERVER),
        connection(SERVER, "10.0.0.4:4000"),
    ] {
        assert_eq!(fixture.tcp_error(&other, wanted.clone()), taken);
        assert_eq!(fixture.tcp_error(&root, wanted), taken);
    }
    let others = "port 10.0.0.100:9090 of TCP is in use: a direct flow has it";
    fixture.tcp(&root, listener("10.0.0.100:9090"));
    assert_eq!(
        fixture.tcp_error(&ann, connection("10.0.0.100:9090", "10.0.0.2:1")),
        others
    );
}

#[test]
fn answers_to_requests_have_a_small_weight_unless_the_program_requests_a_contract() {
    let mut fixture = Fixture::new();
    let ann = fixture.attached_client(&ANN, 8);
    let contracts = [
        ("", "weight 2"),
        ("none", "weight 2"),
        ("up 8mbit", "up 8mbit"),
    ];
    for (port, (requested, granted)) in (9000..).zip(contracts) {
        let endpoint = requests(&format!("10.0.0.100:{port}"));
        match fixture.try_tcp(&ann, endpoint, requested) {
            Response::Direct(DirectReply::Opened(opened)) => assert_eq!(opened.contract, granted),
            other => panic!("{other:?}"),
        }
    }
    let listening = fixture.tcp(&ann, listener("10.0.0.100:9000"));
    assert_eq!(listening.contract, "none");
}

#[test]
fn clients_of_one_user_share_a_port_and_no_server_joins_them_from_another_process() {
    let mut fixture = Fixture::new();
    let ann = fixture.attached_client(&ANN, 8);
    let other = ann_again(&mut fixture);
    let first = fixture.tcp(&ann, connection("0.0.0.0:0", "10.0.0.2:80"));
    let Endpoint::Tcp { local, .. } = first.endpoint else {
        panic!("{first:?}");
    };
    assert_eq!(local.ip(), address(SERVER).ip());
    assert_ne!(local.port(), 0);
    let own = local.to_string();
    fixture.tcp(&other, connection(&own, "10.0.0.3:80"));
    for wanted in [listener(&own), requests(&own)] {
        let taken = fixture.tcp_error(&other, wanted);
        assert!(
            taken.ends_with("a direct flow of process 8 has it"),
            "{taken}"
        );
    }
}

#[test]
fn what_tcp_cannot_have_is_refused_with_the_reason() {
    let mut fixture = Fixture::new();
    let ann = fixture.attached_client(&ANN, 8);
    for (wanted, text) in [
        (
            listener("10.0.0.100:80"),
            "port 80 is for root and the group netnice: others have ports from 1024 on",
        ),
        (
            listener("10.0.0.55:8080"),
            "10.0.0.55 is not an address of this host",
        ),
        (
            requests("10.9.0.100:8080"),
            "10.9.0.100 is the address of eth1, not of eth0: attach to eth1",
        ),
        (
            listener("0.0.0.0:8080"),
            "a flow to any host needs the address that it sends from, and 0.0.0.0 names none; \
             `ip address show dev eth0` lists those of eth0",
        ),
        (
            listener("224.0.0.5:8080"),
            "224.0.0.5 is a multicast group, and TCP is between two hosts",
        ),
        (
            connection("0.0.0.0:0", "10.0.0.2:0"),
            "10.0.0.2:0 cannot be the remote end of a flow: it needs an address and a port",
        ),
        (
            connection("0.0.0.0:0", "10.9.0.2:80"),
            "the route to 10.9.0.2 leads over eth1, not over eth0: attach to eth1",
        ),
        (
            connection("0.0.0.0:0", "239.1.1.1:80"),
            "239.1.1.1 is a multicast group: ask for a flow of a group",
        ),
    ] {
        assert_eq!(fixture.tcp_error(&ann, wanted), text);
    }
    fixture.flows.network.taken.insert(address(SERVER));
    let taken = "port 10.0.0.100:8080 of TCP is in use: a socket of this host has it";
    assert_eq!(fixture.tcp_error(&ann, listener(SERVER)), taken);
    let root = fixture.attached_client(&Peer::ROOT, 7);
    let much = fixture.try_tcp(&root, listener("10.0.0.100:80"), "min 300mbit");
    let much = error_text(&much);
    assert!(
        much.contains("min 300mbit") && much.contains("100 Mbit/s"),
        "{much}"
    );
    assert!(fixture.flows.held_ports().is_empty());
    let direction = fixture.try_tcp(&root, listener("10.0.0.100:80"), "down 3mbit");
    assert!(error_text(&direction).contains("down is not for direct flows"));
    assert!(fixture.flows.held_ports().is_empty());
}

#[test]
fn a_key_is_that_of_the_user_and_the_local_end_after_a_restart_too() {
    let mut fixture = Fixture::new();
    let ann = fixture.attached_client(&ANN, 8);
    let opened = fixture.tcp(&ann, listener(SERVER));
    let key = opened.key.expect("a key");
    assert_eq!(key, tcp_keys::key(&[7; 16], 1000, address(SERVER)));
    fixture.close(&ann, opened.flow);
    fixture.restart();
    let ann = ann_again(&mut fixture);
    assert_eq!(fixture.tcp(&ann, listener(SERVER)).key, Some(key));
    let root = fixture.attached_client(&Peer::ROOT, 7);
    fixture.flows.network.next_port = 8079;
    let other = fixture.tcp(&root, connection("0.0.0.0:0", "10.0.0.2:80"));
    assert_ne!(other.key, Some(key));
    let of_udp = fixture.opened(&root, "10.0.0.2:9", "");
    assert_eq!(of_udp.key, None);
}

#[test]
fn only_a_connection_that_its_program_has_not_closed_is_reset() {
    let mut fixture = Fixture::new();
    let mut ann = fixture.attached_client(&ANN, 8);
    let [closed, ended] = ["10.0.0.2:80", "10.0.0.3:80"]
        .map(|remote| fixture.tcp(&ann, connection("0.0.0.0:0", remote)));
    fixture.close(&ann, closed.flow);
    assert!(fixture.driver.resets.is_empty());
    let end = DirectRequest::End(CloseFlow { flow: ended.flow });
    let done = fixture.request(&ann, end).expect("an answer");
    assert!(matches!(done, Response::Done(_)), "{done:?}");
    assert_eq!(fixture.driver.resets, [ended.flow]);
    assert_eq!(ann.notifications().len(), 1);
    assert!(fixture.flows.held_ports().is_empty());
    assert!(fixture.port_changes().is_empty());
}

#[test]
fn the_port_of_a_server_that_died_is_kept_for_its_user() {
    let mut fixture = Fixture::new();
    let ann = fixture.attached_client(&ANN, 8);
    fixture.tcp(&ann, requests(SERVER));
    fixture.tcp(&ann, listener(SERVER));
    fixture.tcp(&ann, connection(SERVER, "10.0.0.2:4000"));
    fixture.tcp(&ann, connection("0.0.0.0:0", "10.0.0.2:80"));
    fixture.end_of_process(&ann);
    // The port of the client is free again.
    assert_eq!(fixture.flows.held_ports(), [address(SERVER)]);
    assert_eq!(fixture.port_changes(), ["reset"]);
    let root = fixture.attached_client(&Peer::ROOT, 7);
    let kept = "port 10.0.0.100:8080 of TCP is in use: the program that had it has just ended, \
                and its user can have it again before others";
    assert_eq!(fixture.tcp_error(&root, listener(SERVER)), kept);
    // The user has it at once, and its end is that of any flow.
    let ann = ann_again(&mut fixture);
    let again = fixture.tcp(&ann, listener(SERVER));
    assert_eq!(fixture.port_changes(), ["silent"]);
    fixture.close(&ann, again.flow);
    assert!(
        fixture.flows.held_ports().is_empty(),
        "its program has closed it"
    );
    // It is kept for 60 s.
    fixture.tcp(&ann, listener(SERVER));
    fixture.end_of_process(&ann);
    let due = fixture.now.monotonic.after(Nanos::from_secs(60));
    assert_eq!(fixture.flows.next_due(), Some(due));
    fixture.advance(Nanos::from_secs(59));
    assert_eq!(fixture.tcp_error(&root, listener(SERVER)), kept);
    fixture.advance(Nanos::from_secs(1));
    assert!(fixture.flows.held_ports().is_empty());
    fixture.tcp(&root, listener(SERVER));
}

#[test]
fn a_user_has_a_bounded_number_of_kept_ports_and_clearing_gives_them_up() {
    let mut fixture = Fixture::new();
    fixture.service.host().spawn(9, 1000);
    for round in 0..10 {
        let ann = fixture.attached_client(&ANN, 9);
        for k in 0..10 {
            let own = format!("10.0.0.100:{}", 5000 + 10 * round + k);
            fixture.tcp(&ann, listener(&own));
        }
        fixture.end_of_process(&ann);
    }
    assert_eq!(fixture.flows.held_ports().len(), 64);
    let root = fixture.attached_client(&Peer::ROOT, 7);
    fixture.tcp(&root, listener(SERVER));
    fixture.flows.clear(&mut fixture.service, fixture.now);
    assert!(fixture.flows.held_ports().is_empty());
}

#[test]
fn the_next_daemon_holds_the_ports_of_tcp_again() {
    let mut fixture = Fixture::new();
    let ann = fixture.client(&ANN, 8);
    let Response::Direct(DirectReply::Attached(Attached { secret, .. })) = fixture.attach(&ann, 10)
    else {
        panic!("not attached");
    };
    fixture.tcp(&ann, requests(SERVER));
    fixture.tcp(&ann, listener(SERVER));
    fixture.tcp(&ann, connection(SERVER, "10.0.0.2:4000"));
    fixture.restart();
    assert_eq!(fixture.flows.held_ports(), [address(SERVER)]);
    let mut flows = fixture.flows.flows.values();
    assert_eq!(flows.next().expect("a flow").next_hop, NextHop::Any);
    // The same process goes on with its port.
    let resumed = fixture.client(&ANN, 8);
    let resume = DirectRequest::Resume(Resume {
        iface: "eth0".to_owned(),
        secret,
        moves: false,
    });
    let answer = fixture.request(&resumed, resume).expect("an answer");
    assert!(matches!(answer, Response::Direct(_)), "{answer:?}");
    fixture.tcp(&resumed, connection(SERVER, "10.0.0.3:4000"));
    let other = ann_again(&mut fixture);
    let taken = fixture.tcp_error(&other, connection(SERVER, "10.0.0.4:4000"));
    assert!(taken.contains("of TCP is in use"), "{taken}");
}

#[test]
fn an_error_that_quotes_a_segment_is_passed_on_and_changes_nothing() {
    let mut fixture = Fixture::new();
    let mut ann = fixture.attached_client(&ANN, 8);
    fixture.tcp(&ann, requests(SERVER));
    let all = fixture.tcp(&ann, listener(SERVER));
    let one = fixture.tcp(&ann, connection(SERVER, "10.0.0.2:4000"));
    let error = |to: &str, cause| IcmpError {
        reporter: "10.0.0.9".parse().expect("an address"),
        cause,
        local: address(SERVER).ip(),
        remote: address(to).ip(),
        protocol: 6,
        ports: Some((8080, address(to).port())),
        sequence: Some(77),
    };
    let too_long = ErrorCause::TooLong {
        mtu: 1400,
        length: 1500,
    };
    for (to, cause, flow, mtu) in [
        ("10.0.0.2:4000", ErrorCause::NoPort, one.flow, None),
        ("10.0.0.2:4001", ErrorCause::NoHost, all.flow, None),
        ("10.0.0.2:4000", too_long, one.flow, Some(1400)),
        ("10.0.0.7:9", too_long, all.flow, Some(1400)),
    ] {
        let quoted = error(to, cause);
        fixture.flows.icmp_errors(&[quoted], fixture.now);
        fixture.exchange();
        let reports = ann.notifications();
        let [FlowNotification::Undelivered { flow: of, report }] = &reports[..] else {
            panic!("{to}: {reports:?}");
        };
        let Undelivered {
            to: host,
            sequence,
            mtu: reported,
            ..
        } = *report;
        assert_eq!((*of, host), (flow, address(to)));
        assert_eq!((sequence, reported), (Some(77), mtu));
    }
    let mtu = |fixture: &Fixture, flow: u32| fixture.flows.flows[&flow].mtu;
    assert_eq!(
        (mtu(&fixture, one.flow), mtu(&fixture, all.flow)),
        (1500, 1500)
    );
    // Without the sequence number nothing shows that the segment was sent.
    let unproven = IcmpError {
        sequence: None,
        ..error("10.0.0.2:4000", ErrorCause::NoPort)
    };
    fixture.flows.icmp_errors(&[unproven], fixture.now);
    assert_eq!(ann.notifications(), []);
}

#[test]
fn pages_name_the_flows_of_tcp() {
    for (endpoint, text) in [
        (
            connection(SERVER, "10.0.0.2:4000"),
            "tcp 10.0.0.100:8080 > 10.0.0.2:4000",
        ),
        (listener(SERVER), "tcp 10.0.0.100:8080 > any host"),
        (
            requests(SERVER),
            "tcp 10.0.0.100:8080 connection requests of any host",
        ),
    ] {
        assert_eq!(messages::endpoint(&endpoint), text);
    }
}
