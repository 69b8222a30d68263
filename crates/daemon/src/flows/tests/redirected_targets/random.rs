//! Random histories of targets, flows, drivers and restarts: each promise counts once, no place is
//! shared, and nothing is left at the end.

use netnice_core::contract::{Contract, Direction};
use proptest::prelude::*;

use super::*;
use crate::flows::promised_flows::PromiseHolder;

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Set(u32, usize),
    Clear(u32),
    Flow(usize),
    CloseFlow,
    /// The driver answers, or stops to answer.
    Answers(bool),
    EndDriver,
    Restart,
    Advance(u64),
}

const FLOWS: [&str; 4] = [
    "",
    "min 3mbit",
    "cell pcr=1mbit,cdvt=20ms",
    "slice 1ms/20ms",
];

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (100..106u32, 0..CONTRACTS.len()).prop_map(|(pid, n)| Step::Set(pid, n)),
        4 => (100..106u32).prop_map(Step::Clear),
        2 => (0..FLOWS.len()).prop_map(Step::Flow),
        1 => Just(Step::CloseFlow),
        2 => any::<bool>().prop_map(Step::Answers),
        1 => Just(Step::EndDriver),
        1 => Just(Step::Restart),
        2 => (1..70_000u64).prop_map(Step::Advance),
    ]
}

/// A naive sum: the guarantees of targets, and the promises to flows.
fn naive(fixture: &Fixture) -> u64 {
    let link = fixture.service.ledger().link("eth0").expect("managed");
    let usable = link.link.usable(Direction::Up).expect("a rate");
    let rate = |contract: &Contract| {
        let min = contract.link_min(Direction::Up, usable).flatten();
        min.map_or(0, |min| min.bits_per_second())
    };
    let held = fixture.service.ledger().held();
    let flows = fixture.flows.flows.values();
    let flows = flows.filter(|flow| flow.degraded.is_none());
    held.map(|held| rate(&held.entry.contract)).sum::<u64>()
        + flows.map(|flow| rate(&flow.contract)).sum::<u64>()
}

fn check(fixture: &mut Fixture) {
    let redirects = fixture.redirects();
    let places: BTreeSet<u16> = redirects.values().copied().collect();
    assert_eq!(places.len(), redirects.len(), "a place is shared");
    for (id, place) in &redirects {
        // What the kernel redirects, the driver has.
        let at_driver = fixture.driver.redirected.get(&u32::from(*place));
        assert_eq!(at_driver.map(|doc| doc.target), Some(*id));
    }
    for (id, until) in fixture.service.ledger().awaiting() {
        assert!(fixture.service.ledger().by_id(*id).is_some(), "it is held");
        assert!(!redirects.contains_key(id), "the driver serves it");
        assert!(*until > fixture.now.monotonic, "its time is over");
    }
    let (promised, naive) = (fixture.rate_promised(), naive(fixture));
    assert!(promised <= 100_000_000, "{promised}");
    assert!(promised >= naive, "{promised} for {naive}");
    let state = fixture.flows.link_states.get(&eth0());
    let (need, sum) = state.map_or((0, 0), |state| {
        let need = state.firm_need.filter(|_| state.need.is_some());
        let need = need.map_or(0, |need| need.bits_per_second());
        let usable = "100mbit".parse().expect("a rate");
        let promised = state.promised.iter();
        let promised = promised.filter(|(one, _)| !matches!(one, PromiseHolder::Minimum(_)));
        let each = promised.filter_map(|(_, one)| one.link_min(Direction::Up, usable)?);
        (need, each.map(|min| min.bits_per_second()).sum())
    });
    // Beyond the promises only what the driver needs for overhead and timing.
    assert!(
        need == 0 && sum == 0 || promised <= naive + need - sum,
        "{promised} {naive} {need} {sum}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 60 }))]

    #[test]
    fn random_histories_count_each_promise_once_and_leave_nothing(
        history in prop::collection::vec(steps(), 1..60),
    ) {
        let mut fixture = Fixture::new();
        fixture.spawn(100..106);
        let mut client = fixture.attached_client(&Peer::ROOT, 7);
        let mut open = Vec::new();
        for step in history {
            match step {
                Step::Set(pid, n) => drop(fixture.set(pid, CONTRACTS[n])),
                Step::Clear(pid) => drop(fixture.withdraw(pid)),
                Step::Flow(n) => {
                    let flow = udp("0.0.0.0:0", Some("10.0.0.2:1"), FLOWS[n]);
                    let answer = fixture.request(&client, DirectRequest::Open(flow));
                    if let Some(Response::Direct(DirectReply::Opened(opened))) = answer {
                        open.push(opened.flow);
                    }
                }
                Step::CloseFlow => {
                    if let Some(flow) = open.pop() {
                        fixture.close(&client, flow);
                    }
                }
                Step::Answers(true) => fixture.answer_pending(),
                Step::Answers(false) => fixture.driver_answers = false,
                Step::EndDriver => {
                    fixture.answer_pending();
                    open.clear();
                    fixture.end_driver();
                    client = fixture.client(&Peer::ROOT, 7);
                    fixture.attach(&client, 10);
                }
                Step::Restart => {
                    fixture.answer_pending();
                    open.clear();
                    fixture.driver.flows.clear();
                    fixture.driver.programs.clear();
                    fixture.restart();
                    client = fixture.client(&Peer::ROOT, 7);
                    fixture.attach(&client, 10);
                }
                Step::Advance(millis) => fixture.advance(Nanos::from_millis(millis)),
            }
            fixture.flows.settle_all(&mut fixture.service, fixture.now);
            fixture.exchange();
            check(&mut fixture);
        }
        fixture.answer_pending();
        for flow in open {
            fixture.close(&client, flow);
        }
        for pid in 100..106 {
            fixture.withdraw(pid);
        }
        fixture.advance(Nanos::from_secs(100));
        fixture.assert_nothing_is_left();
        fixture.end_driver();
        prop_assert_eq!(fixture.rate_promised(), 0);
    }
}
