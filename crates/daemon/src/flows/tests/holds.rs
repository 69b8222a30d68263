//! Tests of held promises: the shortest deadline, flows that are opened with a hold, the ends of
//! holds, and the users that can have them.

mod rights;
mod shortest;

use std::collections::BTreeSet;

use netnice_api::direct::{HoldPromise, PromiseHeld, ReleaseHold};
use netnice_core::contract::Contract;
use netnice_core::units::Rate;

use super::super::promised_flows::PromiseHolder;
use super::*;

const CHANNEL: &str = "channel mmax=15000B,rmax=100/s,bmax=1,deadline=1s";
const HOST: &str = "10.0.0.2";

impl Fixture {
    fn ask_hold(&mut self, client: &TestClient, to: &str, contract: &str) -> Response {
        let hold = HoldPromise {
            to: to.parse().expect("an address"),
            contract: contract.to_owned(),
        };
        let asked = self.request(client, DirectRequest::Hold(hold));
        asked.expect("an answer")
    }

    fn held(&mut self, client: &TestClient, contract: &str) -> PromiseHeld {
        match self.ask_hold(client, HOST, contract) {
            Response::Direct(DirectReply::Held(held)) => held,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, client: &TestClient, hold: u32) {
        let asked = self.request(client, DirectRequest::Release(ReleaseHold { hold }));
        assert!(matches!(asked, Some(Response::Done(_))), "{asked:?}");
    }

    fn open_with(&mut self, client: &TestClient, hold: u32, contract: &str) -> Response {
        let open = OpenFlow {
            hold: Some(hold),
            ..udp("0.0.0.0:0", Some("10.0.0.2:6000"), contract)
        };
        let asked = self.request(client, DirectRequest::Open(open));
        asked.expect("an answer")
    }

    /// The numbers of the holds that count as promises of eth0.
    fn holds(&self) -> BTreeSet<u32> {
        let state = self.flows.link_states.get(&eth0());
        let promised = state.into_iter().flat_map(|state| state.promised.iter());
        let holds = promised.filter_map(|(holder, _)| match holder {
            PromiseHolder::Hold(number) => Some(number),
            _ => None,
        });
        holds.collect()
    }

    /// A policy file with this text, and eth0 as a managed link.
    fn load_policy(&mut self, name: &str, text: &str) {
        let file = format!("netnice-{}-{name}.toml", std::process::id());
        let path = std::env::temp_dir().join(file);
        let link = "[[link]]\nname = \"eth0\"\nrate = \"100mbit\"\n";
        std::fs::write(&path, format!("{text}\n{link}")).expect("a file");
        self.service.load_policy(&path, self.now);
        std::fs::remove_file(&path).expect("it was there");
    }
}

fn deadline_of(contract: &str) -> Nanos {
    let contract: Contract = contract.parse().expect("a contract");
    contract.channel().expect("a channel").deadline()
}

fn with_deadline(contract: &str, deadline: u64) -> String {
    let held = deadline_of(contract).to_string();
    let text = contract.replace(
        &format!("deadline={held}"),
        &format!("deadline={deadline}ns"),
    );
    assert_ne!(text, contract, "another deadline than {held}");
    text
}

fn is_open(response: &Response) -> bool {
    matches!(response, Response::Direct(DirectReply::Opened(_)))
}

#[test]
fn the_deadline_of_a_hold_is_the_shortest_that_a_flow_gets() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let other = "channel mmax=30000B,rmax=50/s,bmax=1,deadline=20ms";
    for contracts in [&[][..], &[other], &[other, "min 20mbit"]] {
        let flows: Vec<u32> = contracts
            .iter()
            .map(|contract| fixture.opened(&client, "10.0.0.3:7000", contract).flow)
            .collect();
        let held = fixture.held(&client, CHANNEL);
        assert_eq!(
            (held.via, held.from),
            (HOST.parse().expect("an address"), [10, 0, 0, 100].into())
        );
        assert_eq!(held.mtu, 1500);
        let shortest = deadline_of(&held.contract);
        assert!(
            Nanos(1_200_000) < shortest && shortest < Nanos(20_000_000),
            "{shortest}"
        );
        fixture.release(&client, held.hold);
        // It leaves room for one packet more, beside what the others have of the link.
        let shorter = with_deadline(&held.contract, (shortest.0 - 250_000) / 100 * 99);
        let refused = error_text(&fixture.open(&client, "10.0.0.2:6000", &shorter));
        assert!(refused.contains("does not fit"), "{refused}");
        let opened = fixture.opened(&client, "10.0.0.2:6000", &held.contract);
        fixture.close(&client, opened.flow);
        for flow in flows {
            fixture.close(&client, flow);
        }
    }
    assert_eq!(fixture.direct_part(), None);
}

#[test]
fn the_driver_has_the_rate_before_the_flow_and_the_flow_takes_the_place_of_the_hold() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    assert_eq!(fixture.direct_part(), None);
    let held = fixture.held(&client, CHANNEL);
    let part = fixture.direct_part().expect("the link is divided");
    assert_eq!(part.flows, 0);
    assert!(
        part.need > Rate::new(90_000_000).expect("a rate"),
        "{}",
        part.need
    );
    assert!(fixture.driver.rate >= part.need.bits_per_second());
    assert_eq!(fixture.holds(), [held.hold].into());
    // The same contract does not fit beside it, and the refusal names it.
    let refused = error_text(&fixture.open(&client, "10.0.0.2:6000", &held.contract));
    let row = format!("hold:{}  {}", held.hold, held.contract);
    assert!(refused.contains(&row), "{refused}");
    assert!(is_open(&fixture.open_with(
        &client,
        held.hold,
        &held.contract
    )));
    assert!(fixture.holds().is_empty());
    assert_eq!(fixture.flows.promise_count(&eth0()), 1);
    assert_eq!(fixture.driver.flows.len(), 1);
    let again = error_text(&fixture.open_with(&client, held.hold, "up 1mbit"));
    let expected = format!("hold:{} is not held (any more)", held.hold);
    assert!(
        again.contains(&expected) && again.contains("held for 5s"),
        "{again}"
    );
    // A longer deadline needs less of the link than the held one.
    let flow = *fixture.flows.flows.keys().next().expect("a flow");
    fixture.close(&client, flow);
    let held = fixture.held(&client, CHANNEL);
    let longer = with_deadline(&held.contract, 500_000_000);
    assert!(is_open(&fixture.open_with(&client, held.hold, &longer)));
    let part = fixture.direct_part().expect("a flow");
    assert!(
        part.need < Rate::new(50_000_000).expect("a rate"),
        "{}",
        part.need
    );
}

#[test]
fn a_hold_ends_after_5_seconds_and_when_it_is_released() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let first = fixture.held(&client, CHANNEL);
    let second = fixture.held(&client, CHANNEL);
    assert!(deadline_of(&second.contract) > deadline_of(&first.contract));
    assert_eq!(
        fixture.flows.next_due(),
        Some(fixture.now.monotonic.after(Nanos::from_secs(5)))
    );
    fixture.release(&client, second.hold);
    fixture.release(&client, second.hold);
    fixture.release(&client, 77);
    assert_eq!(fixture.holds(), [first.hold].into());
    fixture.advance(Nanos::from_millis(4_999));
    assert_eq!(fixture.holds(), [first.hold].into());
    fixture.advance(Nanos::from_millis(1));
    assert!(fixture.holds().is_empty());
    assert_eq!(
        (fixture.direct_part(), fixture.flows.next_due()),
        (None, None)
    );
    let other = fixture.attached_client(&Peer::ROOT, 7);
    assert_eq!(fixture.held(&other, CHANNEL).contract, first.contract);
}

#[test]
fn a_hold_ends_with_its_session_its_program_and_its_driver() {
    let mut fixture = Fixture::new();
    let shortest = {
        let client = fixture.attached_client(&Peer::ROOT, 7);
        let held = fixture.held(&client, CHANNEL);
        let connection = client.connection.number;
        fixture.driver_answers = false;
        fixture.flows.connection_ended(connection, fixture.now);
        fixture.exchange();
        assert!(fixture.holds().is_empty(), "before the driver has answered");
        fixture.answer_pending();
        assert_eq!(fixture.direct_part(), None);
        held.contract
    };
    for end in 0..4 {
        let client = fixture.attached_client(&Peer::ROOT, 7);
        let held = fixture.held(&client, CHANNEL);
        assert_eq!(held.contract, shortest);
        let program = *fixture
            .driver
            .programs
            .keys()
            .next_back()
            .expect("a program");
        let event = |event| {
            let message = netnice_api::driver::DriverMessage::Event(event);
            driver::ConnectionEvent::Message(message, Vec::new())
        };
        use netnice_api::driver::DriverEvent;
        let event = match end {
            0 => event(DriverEvent::ProgramEnded { program }),
            1 => event(DriverEvent::ProgramDisconnected {
                program,
                why: "R1".to_owned(),
            }),
            2 => driver::ConnectionEvent::Ended("it ended".to_owned()),
            _ => {
                fixture.flows.clear(&mut fixture.service, fixture.now);
                event(DriverEvent::ProgramEnded { program })
            }
        };
        fixture
            .flows
            .handle_driver_event(&mut fixture.service, &eth0(), event, fixture.now);
        fixture.exchange();
        assert!(fixture.holds().is_empty());
        assert_eq!(
            (fixture.direct_part(), fixture.flows.next_due()),
            (None, None)
        );
        let gone = error_text(&fixture.open_with(&client, held.hold, "up 1mbit"));
        assert!(gone.contains("is not held"), "{gone}");
        fixture
            .flows
            .connection_ended(client.connection.number, fixture.now);
        fixture.exchange();
    }
}

#[test]
fn a_daemon_that_starts_has_no_holds() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.3:7000", "min 1mbit");
    let held = fixture.held(&client, CHANNEL);
    fixture.restart();
    assert!(fixture.holds().is_empty());
    let other = fixture.attached_client(&Peer::ROOT, 7);
    let again = fixture.held(&other, CHANNEL);
    assert_eq!(again.contract, held.contract);
    assert!(fixture.direct_part().is_some());
}

/// After each failure the promise is held as before, with the time that is left of it.
#[test]
fn a_promise_is_held_again_if_no_flow_is_opened_with_it() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let held = fixture.held(&client, CHANNEL);
    let until = fixture.now.monotonic.after(Nanos::from_secs(5));
    let part = fixture.direct_part();
    let open = |to: &str, local: &str, contract: &str| OpenFlow {
        hold: Some(held.hold),
        ..udp(local, Some(to), contract)
    };
    let shorter = with_deadline(&held.contract, 1_000_000);
    let taken = "10.0.0.100:9";
    fixture
        .flows
        .network
        .taken
        .insert(taken.parse().expect("an address"));
    let cases = [
        (
            open("10.0.0.2:1", "0.0.0.0:0", &shorter),
            false,
            "does not fit",
        ),
        (
            open("10.0.0.2:1", "0.0.0.0:0", "up 1kbit on eth1"),
            false,
            "attached to eth0",
        ),
        (open("10.0.0.2:1", taken, &held.contract), false, "in use"),
        (
            open("10.9.0.1:1", "0.0.0.0:0", &held.contract),
            false,
            "leads over eth1",
        ),
        (
            open("10.0.0.77:1", "0.0.0.0:0", &held.contract),
            false,
            "10.0.0.77 does not answer",
        ),
        (
            open("10.0.0.2:1", "0.0.0.0:0", &held.contract),
            true,
            "no more memory",
        ),
    ];
    for (open, driver_refuses, expected) in cases {
        fixture.driver.refuses = driver_refuses.then(|| "no more memory".to_owned());
        let mut answer = fixture.begin(&client, DirectRequest::Open(open));
        // The neighbour 10.0.0.77 is given up after a second.
        if expected.contains("does not answer") {
            assert_eq!(fixture.holds(), [held.hold].into(), "it is resolved");
            let second = fixture.open_with(&client, held.hold, &held.contract);
            let text = error_text(&second);
            assert!(
                text.contains("a flow is being opened with hold:1"),
                "{text}"
            );
            fixture.advance(Nanos::from_secs(1));
        }
        let response = answer.try_recv().expect("an answer").response;
        assert!(error_text(&response).contains(expected), "{response:?}");
        assert_eq!(fixture.holds(), [held.hold].into(), "{expected}");
        assert_eq!(fixture.direct_part(), part, "{expected}");
    }
    fixture.driver.refuses = None;
    assert_eq!(fixture.flows.next_due(), Some(until));
    assert!(is_open(&fixture.open_with(
        &client,
        held.hold,
        &held.contract
    )));
}

#[test]
fn an_opening_that_fails_after_the_time_of_its_hold_ends_it() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let held = fixture.held(&client, CHANNEL);
    fixture.advance(Nanos::from_millis(4_500));
    let open = OpenFlow {
        hold: Some(held.hold),
        ..udp("0.0.0.0:0", Some("10.0.0.77:1"), &held.contract)
    };
    let waiting = fixture.begin(&client, DirectRequest::Open(open.clone()));
    fixture.advance(Nanos::from_millis(600));
    assert_eq!(
        fixture.holds(),
        [held.hold].into(),
        "a flow is being opened with it"
    );
    fixture.advance(Nanos::from_millis(400));
    drop(waiting);
    assert!(fixture.holds().is_empty());
    assert_eq!(fixture.direct_part(), None);
    // A driver that answers too late.
    let held = fixture.held(&client, CHANNEL);
    fixture.driver_answers = false;
    let open = OpenFlow {
        hold: Some(held.hold),
        ..udp("0.0.0.0:0", Some("10.0.0.2:1"), &held.contract)
    };
    let mut answer = fixture.begin(&client, DirectRequest::Open(open));
    fixture.advance(Nanos::from_secs(5));
    let response = answer.try_recv().expect("an answer").response;
    assert!(error_text(&response).contains("does not answer"));
    assert!(fixture.holds().is_empty());
    fixture.answer_pending();
    assert!(fixture.driver.flows.is_empty());
    assert_eq!(fixture.direct_part(), None);
}

#[test]
fn a_connection_that_ends_while_its_flow_is_opened_leaves_no_hold() {
    for resolves in [true, false] {
        let mut fixture = Fixture::new();
        let client = fixture.attached_client(&Peer::ROOT, 7);
        let held = fixture.held(&client, CHANNEL);
        let to = match resolves {
            true => "10.0.0.77:1",
            false => "10.0.0.2:1",
        };
        fixture.driver_answers = false;
        let open = OpenFlow {
            hold: Some(held.hold),
            ..udp("0.0.0.0:0", Some(to), &held.contract)
        };
        let _answer = fixture.begin(&client, DirectRequest::Open(open));
        let connection = client.connection.number;
        fixture.flows.connection_ended(connection, fixture.now);
        fixture.exchange();
        assert!(fixture.holds().is_empty());
        fixture.answer_pending();
        fixture.advance(Nanos::from_secs(1));
        assert!(fixture.holds().is_empty() && fixture.driver.flows.is_empty());
        assert_eq!(fixture.direct_part(), None);
    }
}

#[test]
fn a_hold_that_no_longer_fits_ends_and_flows_stay() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let flow = fixture.opened(&client, "10.0.0.3:7000", "min 30mbit").flow;
    let held = fixture.held(&client, CHANNEL);
    fixture.relink("60mbit");
    assert!(
        fixture.holds().is_empty(),
        "it was as short as 100 Mbit/s allow"
    );
    assert_eq!(fixture.flows.flows[&flow].degraded, None);
    let gone = error_text(&fixture.open_with(&client, held.hold, &held.contract));
    assert!(gone.contains("is not held"), "{gone}");
    // Flows that were degraded are not restored over a hold that came later, nor in its place.
    fixture.relink("20mbit");
    assert!(fixture.flows.flows[&flow].degraded.is_some());
    fixture.relink("100mbit");
    assert_eq!(fixture.flows.flows[&flow].degraded, None);
    // A link that is managed no more has none.
    fixture.close(&client, flow);
    fixture.held(&client, CHANNEL);
    let unmanaged = LinkChange {
        iface: "eth0".to_owned(),
        unmanage: true,
        ..LinkChange::default()
    };
    let response = fixture.ask(Request::Link(Box::new(unmanaged)), None);
    assert!(matches!(response, Response::Done(_)), "{response:?}");
    assert!(fixture.holds().is_empty());
}

#[test]
fn a_target_is_not_promised_what_is_held() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let held = fixture.held(&client, CHANNEL);
    let refused = fixture.set(7, "min 30mbit on eth0");
    assert!(matches!(refused, Response::Refused(_)), "{refused:?}");
    fixture.release(&client, held.hold);
    let granted = fixture.set(7, "min 30mbit on eth0");
    assert!(matches!(granted, Response::Done(_)), "{granted:?}");
    let beside = fixture.held(&client, CHANNEL);
    assert!(deadline_of(&beside.contract) > deadline_of(&held.contract));
}
