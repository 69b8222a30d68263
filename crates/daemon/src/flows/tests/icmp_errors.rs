//! Tests which flows an ICMP error reaches, and that forged errors are bounded.

use netnice_api::direct::{DeliveryFailure, Undelivered};
use netnice_kernel::icmp_errors::{ErrorCause, IcmpError};

use super::*;

/// An error that quotes a packet of this flow to `to`.
fn error(opened: &FlowOpened, to: &str, cause: ErrorCause) -> IcmpError {
    let Endpoint::Udp { local, .. } = opened.endpoint else {
        panic!("{:?}", opened.endpoint);
    };
    let to: SocketAddr = to.parse().expect("an address");
    IcmpError {
        reporter: "10.0.0.9".parse().expect("an address"),
        cause,
        local: local.ip(),
        remote: to.ip(),
        protocol: 17,
        ports: Some((local.port(), to.port())),
        sequence: Some(77),
    }
}

fn too_long(mtu: u32) -> ErrorCause {
    ErrorCause::TooLong { mtu, length: 1500 }
}

/// The MTUs of which a program was notified, and the reports with their MTUs.
fn told(client: &mut TestClient) -> (Vec<u32>, Vec<(DeliveryFailure, Option<u32>)>) {
    let (mut mtus, mut reports) = (Vec::new(), Vec::new());
    for notification in client.notifications() {
        match notification {
            FlowNotification::Mtu { mtu, .. } => mtus.push(mtu),
            FlowNotification::Undelivered { report, .. } => reports.push((report.why, report.mtu)),
            other => panic!("{other:?}"),
        }
    }
    (mtus, reports)
}

#[test]
fn an_error_reaches_the_flow_that_it_quotes_and_no_other() {
    let mut fixture = Fixture::new();
    let mut ann = fixture.attached_client(&ANN, 8);
    let mut root = fixture.attached_client(&Peer::ROOT, 7);
    let hers = fixture.opened(&ann, "10.0.0.2:9", "up 1mbit");
    let _roots = fixture.opened(&root, "10.0.0.2:9", "up 1mbit");
    let quoted = error(&hers, "10.0.0.2:9", ErrorCause::NoPort);
    fixture.flows.icmp_errors(&[quoted], fixture.now);
    let report = Undelivered {
        to: "10.0.0.2:9".parse().expect("an address"),
        by: quoted.reporter,
        why: DeliveryFailure::NoPort,
        mtu: None,
        sequence: None,
    };
    let flow = hers.flow;
    let expected = [FlowNotification::Undelivered { flow, report }];
    assert_eq!(ann.notifications(), expected);
    assert_eq!(root.notifications(), []);
    // A packet that no flow has sent: another port, host or protocol, or ports that are missing.
    let (from, to) = quoted.ports.expect("ports");
    for forged in [
        IcmpError {
            ports: Some((from, to + 1)),
            ..quoted
        },
        IcmpError {
            ports: Some((from ^ 1, to)),
            ..quoted
        },
        IcmpError {
            remote: "10.0.0.3".parse().expect("an address"),
            ..quoted
        },
        IcmpError {
            protocol: 6,
            ..quoted
        },
        IcmpError {
            ports: None,
            ..quoted
        },
    ] {
        fixture.flows.icmp_errors(&[forged], fixture.now);
        assert_eq!(ann.notifications(), [], "{forged:?}");
    }
    // After its end the flow gets nothing.
    fixture.close(&ann, hers.flow);
    fixture.flows.icmp_errors(&[quoted], fixture.now);
    assert_eq!(ann.notifications(), []);
}

#[test]
fn the_path_mtu_falls_within_bounds_and_grows_again_after_ten_minutes() {
    let mut fixture = Fixture::new();
    let mut client = fixture.attached_client(&ANN, 8);
    let [one, other] =
        ["10.0.0.2:9", "10.0.0.2:10"].map(|to| fixture.opened(&client, to, "up 1mbit"));
    let mut report = |fixture: &mut Fixture, mtu| {
        let quoted = error(&one, "10.0.0.2:9", too_long(mtu));
        fixture.flows.icmp_errors(&[quoted], fixture.now);
        fixture.exchange();
        told(&mut client)
    };
    let tells = |mtu| (vec![mtu], vec![(DeliveryFailure::TooLong, Some(mtu))]);
    assert_eq!(report(&mut fixture, 1400), tells(1400));
    // The same MTU, a larger one, and one that would have let the packet pass.
    for mtu in [1400, 1450, 1500, 9000] {
        assert_eq!(report(&mut fixture, mtu), (vec![], vec![]), "{mtu}");
    }
    // A forged one does not fall below the smallest.
    assert_eq!(report(&mut fixture, 68), tells(576));
    assert_eq!(report(&mut fixture, 0), (vec![], vec![]));
    // A change of routes does not raise it, and the other flow has its own.
    fixture.changed(RouteChange::Routes);
    let mtu_of = |fixture: &Fixture, flow: u32| fixture.flows.flows.get(&flow).expect("open").mtu;
    assert_eq!(mtu_of(&fixture, one.flow), 576);
    assert_eq!(mtu_of(&fixture, other.flow), other.mtu);
    fixture.advance(Nanos::from_secs(599));
    assert_eq!(mtu_of(&fixture, one.flow), 576);
    fixture.advance(Nanos::from_secs(2));
    fixture.advance(routes::ROUTES_SETTLE);
    assert_eq!(mtu_of(&fixture, one.flow), one.mtu);
}

#[test]
fn a_flow_to_any_host_is_told_the_path_mtu_of_each_host() {
    let mut fixture = Fixture::new();
    let mut client = fixture.attached_client(&ANN, 8);
    let open = DirectRequest::Open(udp("10.0.0.100:5000", None, "up 1mbit"));
    let opened = match fixture.request(&client, open).expect("an answer") {
        Response::Direct(DirectReply::Opened(opened)) => opened,
        other => panic!("{other:?}"),
    };
    let quoted = error(&opened, "10.0.0.77:9", too_long(1300));
    fixture.flows.icmp_errors(&[quoted], fixture.now);
    let reports = vec![(DeliveryFailure::TooLong, Some(1300))];
    assert_eq!(told(&mut client), (vec![], reports));
    let mtu = fixture.flows.flows.get(&opened.flow).expect("open").mtu;
    assert_eq!(mtu, opened.mtu, "other hosts are not affected");
}

#[test]
fn a_flood_of_forged_errors_is_bounded() {
    let mut fixture = Fixture::new();
    let mut client = fixture.attached_client(&ANN, 8);
    let opened = fixture.opened(&client, "10.0.0.2:9", "up 1mbit");
    let quoted = error(&opened, "10.0.0.2:9", ErrorCause::NoPort);
    fixture
        .flows
        .icmp_errors(&vec![quoted; 10_000], fixture.now);
    let first = client.notifications().len();
    assert!((1..=100).contains(&first), "{first}");
    fixture.now.monotonic = fixture.now.monotonic.after(Nanos::from_secs(1));
    fixture.flows.icmp_errors(&[quoted], fixture.now);
    assert_eq!(client.notifications().len(), 1);
}
