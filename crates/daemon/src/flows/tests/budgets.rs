//! Tests of minimums of flows inside a budget.

use netnice_core::contract::Direction;
use netnice_core::units::Amount;

use super::*;

const ANN: Peer = Peer {
    uid: 1000,
    privileged: false,
    groups: Vec::new(),
};

fn mbit(n: u64) -> Amount {
    Amount(n * 1_000_000)
}

/// eth0 carries 100 Mbit/s; Ann has a budget of 40.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    budget(&mut fixture, "min 40mbit delegate 1000");
    fixture
}

fn budget(fixture: &mut Fixture, change: &str) {
    let set = Set {
        target: "user:1000".to_owned(),
        change: Some(change.to_owned()),
        ..Set::default()
    };
    let answer = fixture.ask(Request::Set(set), None);
    assert!(matches!(answer, Response::Done(_)), "{answer:?}");
}

/// Ann asks for her process 8.
fn set_as_ann(fixture: &mut Fixture, change: &str) -> Response {
    let set = Set {
        target: "pid:8".to_owned(),
        change: Some(change.to_owned()),
        ..Set::default()
    };
    let named = NamedProcess {
        pid: 8,
        lives: Box::new(|| true),
    };
    let (request, now) = (Request::Set(set), fixture.now);
    let answer = fixture.service.handle(&ANN, &request, Some(named), now);
    fixture.flows.settle_all(&mut fixture.service, now);
    fixture.exchange();
    answer
}

fn text(response: Response) -> String {
    match response {
        Response::Refused(refused) => refused.text,
        other => panic!("{other:?}"),
    }
}

/// What the budget has, what is used of it, and what the kernel's class is assured.
fn used(fixture: &mut Fixture) -> (Amount, Amount, Amount) {
    let ledger = fixture.service.ledger();
    let held = ledger.find(&"user:1000".parse().expect("a target"));
    let held = held.expect("the budget").clone();
    let [up, _] = ledger.budget_use(&held);
    let up = up.expect("a minimum");
    let wanted = crate::reconcile::desired::desired(ledger);
    let class = wanted.targets.iter().find(|target| target.id == held.id);
    let share = class.and_then(|target| target.share.as_ref());
    let assured = share.and_then(|share| share.min).map(Amount::from);
    (up.min.into(), up.used, assured.unwrap_or_default())
}

#[test]
fn a_flow_takes_its_minimum_from_the_budget_of_its_user() {
    let mut fixture = fixture();
    let client = fixture.attached_client(&ANN, 8);
    let before = fixture
        .service
        .ledger()
        .link("eth0")
        .expect("a link")
        .link
        .clone();
    let flow = fixture.opened(&client, "10.0.0.2:6000", "min 10mbit").flow;
    assert_eq!(used(&mut fixture), (mbit(40), mbit(10), mbit(30)));
    let refused = text(fixture.open(&client, "10.0.0.2:6001", "min 31mbit"));
    assert!(refused.contains("30 Mbit/s (3.75 MB/s) left"), "{refused}");
    let refused = text(fixture.change(&client, flow, "min 41mbit"));
    assert!(refused.contains("40 Mbit/s (5 MB/s) left"), "{refused}");
    assert_eq!(used(&mut fixture).1, mbit(10));
    for contract in ["slice 1ms/10ms", "weight 900", "min 1mbit weight 900"] {
        text(fixture.open(&client, "10.0.0.2:6001", contract));
    }
    // Targets and flows divide the same budget.
    let refused = text(set_as_ann(&mut fixture, "min 31mbit"));
    assert!(refused.contains("direct:eth0"), "{refused}");
    assert!(matches!(
        set_as_ann(&mut fixture, "min 30mbit"),
        Response::Done(_)
    ));
    text(fixture.open(&client, "10.0.0.2:6001", "min 1mbit"));
    let [up, _] = fixture.service.ledger().promised(&before);
    assert!(
        up < mbit(45),
        "the flow's minimum counts in the budget: {up}"
    );
    fixture.close(&client, flow);
    assert_eq!(used(&mut fixture), (mbit(40), mbit(30), mbit(40)));
}

#[test]
fn a_user_without_budget_has_no_promise_to_flows() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    let refused = text(fixture.open(&client, "10.0.0.2:6000", "min 1mbit"));
    assert!(refused.contains("none contains this program"), "{refused}");
    fixture.opened(&client, "10.0.0.2:6000", "up 1mbit");
}

#[test]
fn a_full_link_still_serves_flows_from_a_budget() {
    let mut fixture = fixture();
    let answer = fixture.set(7, "min 55mbit");
    assert!(matches!(answer, Response::Done(_)), "{answer:?}");
    let client = fixture.attached_client(&ANN, 8);
    fixture.opened(&client, "10.0.0.2:6000", "min 10mbit");
    let held = fixture
        .service
        .ledger()
        .find(&"pid:7".parse().expect("a target"));
    let min = held.and_then(|held| held.entry.contract.min(Direction::Up));
    assert_eq!(min.map(Amount::from), Some(mbit(55)));
    let part = fixture.direct_part().expect("a part");
    // The driver keeps the minimum of process 7 too.
    assert!(Amount::from(part.tree) >= mbit(30), "{part:?}");
    assert!(fixture.driver.rate >= 65_000_000);
}

#[test]
fn flows_lose_their_minimum_with_the_budget_and_get_it_back() {
    let mut fixture = fixture();
    let client = fixture.attached_client(&ANN, 8);
    let first = fixture.opened(&client, "10.0.0.2:6000", "min 10mbit").flow;
    let second = fixture.opened(&client, "10.0.0.2:6001", "min 8mbit").flow;
    let promised = |fixture: &Fixture, flow: u32| {
        let of = |one: &&netnice_api::driver::DriverFlow| one.number == flow;
        let flow = fixture.driver.flows.values().find(of).expect("a flow");
        flow.contract.contains("min")
    };
    budget(&mut fixture, "min 12mbit");
    assert!(promised(&fixture, first) && !promised(&fixture, second));
    assert_eq!(used(&mut fixture), (mbit(12), mbit(10), mbit(2)));
    budget(&mut fixture, "delegate none");
    assert!(!promised(&fixture, first) && !promised(&fixture, second));
    budget(&mut fixture, "min 40mbit delegate 1000");
    assert!(promised(&fixture, first) && promised(&fixture, second));
    assert_eq!(used(&mut fixture), (mbit(40), mbit(18), mbit(22)));
}
