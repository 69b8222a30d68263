//! Tests of the classes of a link: what is admitted, what the driver is sent, and what happens when
//! the link becomes slower or the daemon restarts.

use netnice_api::driver::ServerDoc;
use netnice_api::{LinkClassChange, ShowDoc};

use super::*;

const MEMBER: &str = "cell pcr=10mbit,cdvt=5ms,class=1";

impl Fixture {
    /// Changes a class of eth0, as the event loop does: the flow manager admits it first.
    fn class(&mut self, number: u64, min: Option<&str>, overbook: Option<bool>) -> Response {
        let class = LinkClassChange {
            number,
            min: min.map(str::to_owned),
            overbook,
        };
        self.classes(LinkChange {
            class: Some(class),
            ..LinkChange::default()
        })
    }

    fn server(&mut self, slice: &str) -> Response {
        self.classes(LinkChange {
            server: Some(slice.to_owned()),
            ..LinkChange::default()
        })
    }

    fn classes(&mut self, change: LinkChange) -> Response {
        let change = LinkChange {
            iface: "eth0".to_owned(),
            ..change
        };
        let wanted = self.service.wanted_classes(&Peer::ROOT, &change);
        let checked = wanted
            .and_then(|(link, classes)| self.flows.check_classes(&self.service, &link, &classes));
        match checked {
            Ok(()) => self.ask(Request::Link(Box::new(change)), None),
            Err(error) => error.into(),
        }
    }

    /// The server that the driver was sent last.
    fn at_driver(&self) -> Option<ServerDoc> {
        self.driver.servers.last().cloned().flatten()
    }

    /// The server of eth0 in the output of `show`.
    fn shown_server(&mut self) -> netnice_api::LinkServerDoc {
        let show = Request::Show(netnice_api::Show::default());
        let Response::Shown(mut doc) = self.ask(show, None) else {
            panic!("no reply to show");
        };
        self.flows.describe_classes(&mut doc);
        let ShowDoc { links, .. } = doc;
        links[0].server.clone().expect("a server")
    }
}

fn done(response: &Response) {
    assert!(matches!(response, Response::Done(_)), "{response:?}");
}

fn text(response: Response) -> String {
    match response {
        Response::Refused(refused) => refused.text,
        Response::Failed(failed) => failed.text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_share_a_server_that_is_one_promise() {
    let mut fixture = Fixture::new();
    done(&fixture.class(1, Some("20mbit"), Some(true)));
    let client = fixture.attached_client(&Peer::ROOT, 7);
    for _ in 0..5 {
        let opened = fixture.opened(&client, "10.0.0.1:5000", MEMBER);
        assert_eq!(opened.contract, MEMBER);
    }
    // Five contracts of 10 Mbit/s are one promise of 20 Mbit/s.
    let part = fixture.direct_part().expect("a part");
    let need = part.need.bits_per_second();
    assert!((20_000_000..23_000_000).contains(&need), "{need}");
    let server = fixture.at_driver().expect("a server");
    assert_eq!(server.minimums[1], Some(20_000_000));
    assert_eq!(server.minimums.iter().flatten().count(), 1);
    // The driver sends on the whole link.
    let contract: Contract = format!("slice {}", server.slice.expect("a slice"))
        .parse()
        .expect("a slice");
    let link = netnice_core::units::Rate::new(100_000_000).expect("a rate");
    let gives = contract.slice().expect("a slice").of(link);
    let gives = gives.expect("a rate").bits_per_second();
    assert!((20_000_000..20_001_000).contains(&gives), "{gives}");
    let shown = fixture.shown_server();
    assert_eq!((shown.slice.as_str(), shown.named), ("4ms/20ms", false));
    let class = &shown.classes[0];
    assert_eq!((class.members, class.contracted), (5, 50_000_000));
}

#[test]
fn a_server_keeps_its_part_without_members() {
    let mut fixture = Fixture::new();
    done(&fixture.class(0, Some("60mbit"), None));
    let refused = text(fixture.set(7, "min 50mbit"));
    assert!(refused.contains("direct:eth0"), "{refused}");
    done(&fixture.set(7, "min 30mbit"));
    // A server that does not fit beside a target is refused, and nothing is left of it.
    let refused = text(fixture.class(0, Some("75mbit"), None));
    assert!(
        refused.contains("the server of the classes asks slice 15ms/20ms on eth0"),
        "{refused}"
    );
    assert!(refused.contains("would fit"), "{refused}");
    assert_eq!(fixture.shown_server().classes[0].min, Some(60_000_000));
    done(&fixture.class(0, Some("none"), None));
    done(&fixture.set(7, "min 90mbit"));
    assert_eq!(fixture.direct_part(), None);
}

#[test]
fn what_does_not_fit_into_a_class_is_refused() {
    let mut fixture = Fixture::new();
    done(&fixture.class(0, Some("10mbit"), None));
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let mut refused = |contract: &str| text(fixture.open(&client, "10.0.0.1:5000", contract));
    let no_class = refused(MEMBER);
    assert!(
        no_class.contains("class 1 does not exist: the link has class 0"),
        "{no_class}"
    );
    let too_large = refused("cell pcr=11mbit,cdvt=5ms,class=0");
    assert!(too_large.contains("it is not overbooked"), "{too_large}");
    let limited = refused("cell pcr=1mbit,cdvt=5ms,class=0 up 2mbit");
    assert!(
        limited.contains("the peak rate (pcr) is its limit"),
        "{limited}"
    );
    let opened = fixture.opened(&client, "10.0.0.1:5000", "cell pcr=6mbit,cdvt=5ms,class=0");
    // A second one exceeds the class; the first one can grow up to it, and cannot leave the class.
    let mut refused = |contract: &str| text(fixture.open(&client, "10.0.0.2:5000", contract));
    let second = refused("cell pcr=6mbit,cdvt=5ms,class=0");
    assert!(
        second.contains("12 Mbit/s (1.5 MB/s) together, above the 10 Mbit/s"),
        "{second}"
    );
    done(&fixture.change(&client, opened.flow, "cell pcr=10mbit,cdvt=5ms,class=0"));
    for change in [
        "cell pcr=10mbit,cdvt=5ms",
        "cell none",
        "cell none min 1mbit",
    ] {
        let left = text(fixture.change(&client, opened.flow, change));
        assert!(left.contains("cannot enter or leave a class"), "{left}");
    }
    let removed = text(fixture.class(0, Some("none"), None));
    assert!(removed.contains("class 0 has 1 flow"), "{removed}");
    let smaller = text(fixture.class(0, Some("9mbit"), None));
    assert!(smaller.contains("above the 9 Mbit/s"), "{smaller}");
    assert_eq!(fixture.driver.flows.len(), 1);
    done(&fixture.class(0, Some("9mbit"), Some(true)));
    assert_eq!(
        fixture.at_driver().expect("a server").minimums[0],
        Some(9_000_000)
    );
    fixture.close(&client, opened.flow);
    done(&fixture.class(0, Some("none"), None));
    assert_eq!(fixture.at_driver(), None);
}

#[test]
fn only_privileged_peers_may_change_classes_or_join_them() {
    let mut fixture = Fixture::new();
    done(&fixture.class(1, Some("20mbit"), None));
    let ann = fixture.attached_client(&ANN, 8);
    let refused = text(fixture.open(&ann, "10.0.0.1:5000", MEMBER));
    assert!(
        refused.contains("for root and the group netnice"),
        "{refused}"
    );
    let change = LinkChange {
        iface: "eth0".to_owned(),
        server: Some("none".to_owned()),
        ..LinkChange::default()
    };
    let refused = fixture.service.wanted_classes(&ANN, &change);
    assert!(
        matches!(refused, Err(RequestError::NotPermitted(_))),
        "{refused:?}"
    );
}

#[test]
fn a_slow_link_suspends_the_server_until_there_is_room() {
    let mut fixture = Fixture::new();
    done(&fixture.class(1, Some("40mbit"), Some(true)));
    let mut client = fixture.attached_client(&Peer::ROOT, 7);
    let member = fixture.opened(&client, "10.0.0.1:5000", MEMBER).flow;
    let other = fixture.opened(&client, "10.0.0.2:5000", "min 20mbit").flow;
    fixture.relink("30mbit");
    let server = fixture.at_driver().expect("a server");
    assert_eq!((server.slice, server.minimums), (None, vec![None; 8]));
    assert!(fixture.shown_server().suspended.is_some());
    match client.notifications.try_recv() {
        Ok(FlowNotification::Degraded { flow, why }) => {
            assert_eq!(flow, member);
            assert!(why.contains("of the link"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    // The member keeps its contract at the driver; nobody can join it.
    let contracts: Vec<&str> = fixture
        .driver
        .flows
        .values()
        .map(|f| f.contract.as_str())
        .collect();
    assert_eq!(contracts, [MEMBER, "min 20mbit"]);
    let refused = text(fixture.open(&client, "10.0.0.3:5000", MEMBER));
    assert!(
        refused.contains("suspended") || refused.contains("minimums"),
        "{refused}"
    );
    // Not before there is room beside the flow that is in force.
    fixture.relink("60mbit");
    assert!(fixture.shown_server().suspended.is_some());
    fixture.relink("100mbit");
    assert_eq!(fixture.shown_server().suspended, None);
    assert!(fixture.at_driver().expect("a server").slice.is_some());
    let restored = FlowNotification::Degraded {
        flow: member,
        why: String::new(),
    };
    assert_eq!(client.notifications.try_recv().ok(), Some(restored));
    fixture.close(&client, other);
}

#[test]
fn classes_and_their_members_outlive_the_daemon() {
    let mut fixture = Fixture::new();
    done(&fixture.class(1, Some("20mbit"), Some(true)));
    done(&fixture.server("30ms/100ms"));
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.1:5000", MEMBER);
    let (part, before) = (fixture.direct_part(), fixture.shown_server());
    fixture.restart();
    assert_eq!(fixture.shown_server(), before);
    assert_eq!(
        fixture.direct_part().map(|part| part.need),
        part.map(|part| part.need)
    );
    let server = fixture.at_driver().expect("a server");
    assert_eq!(server.minimums[1], Some(20_000_000));
    assert!(server.slice.is_some());
}
