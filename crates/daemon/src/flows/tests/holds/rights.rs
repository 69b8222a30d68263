//! Tests of holds: the users that can have them, how many, and which are refused; and of routes.

use netnice_api::direct::FindRoute;

use super::*;

#[test]
fn invalid_holds_are_refused_with_the_reason() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let on_eth1 = format!("{CHANNEL} on eth1");
    let with_receive = format!("{CHANNEL} receive 10%");
    let short = CHANNEL.replace("1s", "1ms");
    let cases = [
        (HOST, "none", "none has none: channel mmax"),
        (HOST, "min 1mbit", "min 1mbit has none"),
        (HOST, "cell pcr=1mbit,cdvt=9ms", "has none: channel"),
        (HOST, with_receive.as_str(), "receive 10% cannot be held"),
        (HOST, "channel deadline=1ms", "channel"),
        (HOST, "dscp EF", "dscp is not for direct flows"),
        (HOST, on_eth1.as_str(), "attached to eth0"),
        (HOST, short.as_str(), "process 7 asks to hold channel"),
        (HOST, short.as_str(), "would fit   a deadline of at least"),
        ("10.0.0.100", CHANNEL, "is this host itself"),
        ("239.1.1.1", CHANNEL, "is a multicast group"),
        ("10.9.0.1", CHANNEL, "leads over eth1, not over eth0"),
        ("192.0.2.1", CHANNEL, "there is no route to 192.0.2.1"),
        ("fd00::1", CHANNEL, "there is no route to fd00::1"),
    ];
    for (to, contract, expected) in cases {
        let text = error_text(&fixture.ask_hold(&client, to, contract));
        assert!(text.contains(expected), "{contract}: {text}");
    }
    assert!(fixture.holds().is_empty());
    assert_eq!(fixture.direct_part(), None);
    let stranger = fixture.client(&Peer::ROOT, 7);
    let text = error_text(&fixture.ask_hold(&stranger, HOST, CHANNEL));
    assert!(text.contains("attach to a link first"), "{text}");
}

#[test]
fn holds_are_for_privileged_users_and_channel_users() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    let short = "channel mmax=1500B,rmax=10/s,bmax=1,deadline=100ms";
    let refused = fixture.ask_hold(&client, HOST, CHANNEL);
    let text = error_text(&refused);
    assert!(
        text.contains("channel also for channel_users of the policy file"),
        "{text}"
    );
    assert!(fixture.holds().is_empty());
    assert!(error_text(&fixture.open(&client, "10.0.0.2:6000", short)).contains("channel_users"));
    fixture.load_policy("channels", "channel_users = [\"1000\"]");
    let held = fixture.held(&client, CHANNEL);
    assert!(is_open(&fixture.open_with(
        &client,
        held.hold,
        &held.contract
    )));
    fixture.close(&client, 1);
    assert!(is_open(&fixture.open(&client, "10.0.0.2:6000", short)));
    let longer = "channel mmax=1500B,rmax=10/s,bmax=1,deadline=200ms,processing=1ms";
    let changed = fixture.change(&client, 2, longer);
    assert!(matches!(changed, Response::Done(_)), "{changed:?}");
    for more in [
        "cell pcr=1mbit,cdvt=40ms",
        "slice 1ms/40ms",
        "min 1mbit",
        "receive 5%",
    ] {
        let text = error_text(&fixture.open(&client, "10.0.0.2:6001", more));
        assert!(
            text.contains("is for root and the group netnice"),
            "{more}: {text}"
        );
    }
    for more in ["on eth0", "weight 200"] {
        let contract = format!("{CHANNEL} {more}");
        let text = error_text(&fixture.ask_hold(&client, HOST, &contract));
        assert!(
            text.contains("is for root and the group netnice"),
            "{more}: {text}"
        );
    }
    fixture.load_policy("others", "channel_users = [\"1001\"]");
    let text = error_text(&fixture.ask_hold(&client, HOST, CHANNEL));
    assert!(text.contains("channel_users"), "{text}");
}

#[test]
fn a_program_has_as_many_holds_as_it_attached_flows_for() {
    let mut fixture = Fixture::new();
    let client = fixture.client(&Peer::ROOT, 7);
    fixture.attach(&client, 3);
    let other = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "");
    let held = [(); 2].map(|()| fixture.held(&client, CHANNEL).hold);
    let text = error_text(&fixture.ask_hold(&client, HOST, CHANNEL));
    let expected = "attached for 3 flows, and 1 are open, and 2 promises held";
    assert!(text.contains(expected), "{text}");
    let text = error_text(&fixture.open(&client, "10.0.0.2:6001", ""));
    assert!(text.contains(expected), "{text}");
    // A hold of another program is neither used nor released.
    let foreign = error_text(&fixture.open_with(&other, held[0], ""));
    assert!(foreign.contains("belongs to another program"), "{foreign}");
    fixture.release(&other, held[0]);
    assert_eq!(fixture.holds(), held.into());
    assert!(is_open(&fixture.open_with(&client, held[0], "up 1mbit")));
    fixture.release(&client, held[1]);
    // Holds in a loop leave nothing behind.
    let need = fixture.flows.link_states[&eth0()].need;
    for _ in 0..200 {
        let held = fixture.held(&client, CHANNEL);
        fixture.release(&client, held.hold);
    }
    assert_eq!(fixture.flows.link_states[&eth0()].need, need);
    assert!(fixture.holds().is_empty());
    assert_eq!(fixture.flows.next_due(), None);
}

#[test]
fn a_route_names_the_managed_link_of_a_host() {
    let mut fixture = Fixture::new();
    let client = fixture.client(&ANN, 8);
    let route = |fixture: &mut Fixture, to: &str| {
        let to = to.parse().expect("an address");
        let asked = fixture.request(&client, DirectRequest::Route(FindRoute { to }));
        asked.expect("an answer")
    };
    for (to, via) in [("10.0.0.9", "10.0.0.9"), ("10.1.2.3", "10.0.0.1")] {
        match route(&mut fixture, to) {
            Response::Direct(DirectReply::Route(found)) => {
                assert_eq!(
                    (found.iface.as_str(), found.via.to_string()),
                    ("eth0", via.to_owned())
                );
                assert_eq!(found.from.to_string(), "10.0.0.100");
            }
            other => panic!("{other:?}"),
        }
    }
    let cases = [
        (
            "10.9.0.1",
            "leads over eth1, which is not a managed link: netnice link eth1 --rate R",
        ),
        ("192.0.2.1", "there is no route to 192.0.2.1"),
        ("10.0.0.100", "10.0.0.100 is an address of this host"),
        ("239.1.1.1", "is a multicast group"),
        ("fe80::1", "fe80::1 is a link-local address"),
    ];
    for (to, expected) in cases {
        let text = error_text(&route(&mut fixture, to));
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(fixture.driver.starts, 0, "no driver is needed");
}
