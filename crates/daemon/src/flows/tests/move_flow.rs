//! Tests of flows whose route moves to another link.

use std::net::IpAddr;

use netnice_api::direct::{Attach, Attached, FlowTaken, TakeFlow};
use proptest::prelude::*;

use super::*;
use crate::flows::promised_flows::PromiseHolder;
use crate::ledger::direct_part::DirectPart;

/// A program with an attachment to each of two links, whose flow's route can move.
struct Moving {
    fixture: Fixture,
    /// Its connections, by link.
    clients: [TestClient; 2],
    secrets: [String; 2],
}

const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

impl Moving {
    /// Both links carry these rates.
    fn new(rates: [&str; 2]) -> Moving {
        let mut fixture = Fixture::new();
        fixture.link_of("eth0", rates[0]);
        fixture.link_of("eth1", rates[1]);
        let [(first, one), (second, two)] =
            [0, 1].map(|link| attach(&mut fixture, &Peer::ROOT, 7, link));
        Moving {
            fixture,
            clients: [first, second],
            secrets: [one, two],
        }
    }

    /// Moves the route of the flow's host.
    fn route_over(&mut self, link: usize) {
        let index = [2, 3][link];
        self.fixture.flows.network.moved.insert(HOST, index);
        self.fixture.changed(RouteChange::Routes);
    }

    fn begin_take(&mut self, flow: u32, to: usize) -> oneshot::Receiver<Reply> {
        let take = TakeFlow {
            flow,
            secret: self.secrets[1 - to].clone(),
        };
        let request = DirectRequest::Take(take);
        self.fixture.begin(&self.clients[to], request)
    }

    fn take(&mut self, flow: u32, to: usize) -> Response {
        let mut answer = self.begin_take(flow, to);
        answer.try_recv().expect("an answer").response
    }

    fn taken(&mut self, flow: u32, to: usize) -> FlowTaken {
        match self.take(flow, to) {
            Response::Direct(DirectReply::Taken(taken)) => *taken,
            other => panic!("{other:?}"),
        }
    }

    fn opened(&mut self, contract: &str) -> FlowOpened {
        self.fixture
            .opened(&self.clients[0], "10.0.0.2:1", contract)
    }

    fn part(&self, link: usize) -> Option<DirectPart> {
        let link: IfName = ["eth0", "eth1"][link].parse().expect("a name");
        self.fixture.service.ledger().direct_part(&link).copied()
    }

    /// Checks that nothing of a flow is left.
    fn check_nothing_left(&self) {
        assert!(self.fixture.flows.flows.is_empty());
        assert!(self.fixture.flows.held_ports().is_empty());
        assert!(self.fixture.driver.flows.is_empty());
        assert_eq!([self.part(0), self.part(1)], [None; 2]);
        let states = self.fixture.flows.link_states.values();
        for state in states {
            assert!(state.promised.len() == 0 && state.flow_count == 0);
            assert!(
                state
                    .programs
                    .values()
                    .all(|program| program.open.is_empty())
            );
        }
    }

    /// The reason with which the flow was closed on its first link.
    fn closed_because(&mut self, flow: u32) -> String {
        let all = self.clients[0].notifications();
        let closed = all.iter().find_map(|one| match one {
            FlowNotification::Closed { flow: closed, why } if *closed == flow => Some(why.clone()),
            _ => None,
        });
        closed.unwrap_or_else(|| panic!("{all:?}"))
    }
}

/// Attaches a process to a link. Returns its connection and its secret.
fn attach(fixture: &mut Fixture, peer: &Peer, pid: u32, link: usize) -> (TestClient, String) {
    let client = fixture.client(peer, pid);
    let attach = Attach {
        iface: Some(["eth0", "eth1"][link].to_owned()),
        flows: 2,
        bytes: 1 << 20,
        moves: true,
    };
    match fixture.request(&client, DirectRequest::Attach(attach)) {
        Some(Response::Direct(DirectReply::Attached(Attached { secret, .. }))) => (client, secret),
        other => panic!("{other:?}"),
    }
}

fn need(part: Option<DirectPart>) -> u64 {
    part.map_or(0, |part| part.need.bits_per_second())
}

#[test]
fn a_taken_flow_has_its_number_port_and_contract_on_the_other_link() {
    let mut moving = Moving::new(["100mbit", "50mbit"]);
    let opened = moving.opened("min 30mbit");
    let flow = opened.flow;
    let port = moving.fixture.flows.held_ports();
    moving.route_over(1);
    let to = "eth1".to_owned();
    assert_eq!(
        moving.clients[0].notifications(),
        [FlowNotification::Moving { flow, to }]
    );
    assert!(
        need(moving.part(0)) >= 30_000_000,
        "it stays until it is taken"
    );
    assert_eq!(moving.part(1), None, "and has nothing there");
    let at_old = *moving.fixture.driver.flows.keys().next().expect("a flow");
    let taken = moving.taken(flow, 1);
    assert_eq!(
        (taken.opened.flow, taken.opened.endpoint),
        (flow, opened.endpoint)
    );
    assert_eq!(taken.opened.contract, opened.contract);
    assert_eq!(moving.fixture.driver.withdrawn, [at_old]);
    // The next daemon finds the flow at the new driver, under its number.
    let numbers = moving.fixture.driver.flows.values().map(|flow| flow.number);
    assert_eq!(numbers.collect::<Vec<_>>(), [flow, flow]);
    // Both links keep the promise until the old driver has closed the flow, and no longer.
    assert!(need(moving.part(0)) >= 30_000_000 && need(moving.part(1)) >= 30_000_000);
    moving.fixture.close(&moving.clients[0], taken.former);
    assert_eq!(moving.part(0), None);
    assert!(need(moving.part(1)) >= 30_000_000);
    assert_eq!(moving.fixture.flows.held_ports(), port);
    assert_eq!(moving.fixture.driver.flows.len(), 1);
    assert_eq!(moving.fixture.flows.flows[&flow].link.as_str(), "eth1");
    // Notifications about it come on the other connection, and it can be changed and closed there.
    let changed = moving
        .fixture
        .change(&moving.clients[1], flow, "min 40mbit");
    assert!(matches!(changed, Response::Done(_)), "{changed:?}");
    moving.fixture.close(&moving.clients[1], flow);
    moving.check_nothing_left();
}

#[test]
fn a_flow_moves_to_and_fro_many_times() {
    let mut moving = Moving::new(["100mbit", "100mbit"]);
    let flow = moving.opened("min 60mbit").flow;
    for k in 1..=100 {
        let (to, from) = (k % 2, (k + 1) % 2);
        moving.route_over(to);
        let taken = moving.taken(flow, to);
        assert_eq!(taken.opened.flow, flow);
        moving.fixture.close(&moving.clients[from], taken.former);
        assert_eq!(moving.part(from), None, "move {k}");
        assert!(need(moving.part(to)) >= 60_000_000, "move {k}");
        assert_eq!(moving.fixture.flows.held_ports().len(), 1);
    }
    moving.fixture.close(&moving.clients[0], flow);
    moving.check_nothing_left();
}

#[test]
fn a_flow_that_does_not_fit_on_the_other_link_is_closed_with_the_limit() {
    let mut moving = Moving::new(["100mbit", "20mbit"]);
    let flow = moving.opened("min 30mbit").flow;
    moving.route_over(1);
    let refused = error_text(&moving.take(flow, 1));
    let why = moving.closed_because(flow);
    for text in [&refused, &why] {
        assert!(
            text.contains("min 30mbit") && text.contains("20 Mbit/s"),
            "{text}"
        );
        assert!(text.contains(&format!("flow:{flow} asks")), "{text}");
    }
    assert!(
        why.starts_with("its route leads over eth1 now, not over eth0"),
        "{why}"
    );
    moving.check_nothing_left();
}

#[test]
fn a_flow_that_its_program_does_not_take_is_closed() {
    let mut moving = Moving::new(["100mbit", "100mbit"]);
    let flow = moving.opened("min 30mbit").flow;
    moving.route_over(1);
    moving.fixture.advance(Nanos::from_millis(9_000));
    assert_eq!(moving.fixture.driver.flows.len(), 1);
    moving.fixture.advance(Nanos::from_millis(1_000));
    let why = moving.closed_because(flow);
    assert!(why.contains("has not taken it there within 10s"), "{why}");
    moving.check_nothing_left();
    assert_eq!(moving.fixture.flows.next_due(), None);
}

#[test]
fn a_former_flow_that_its_program_does_not_close_is_closed() {
    let mut moving = Moving::new(["100mbit", "100mbit"]);
    let flow = moving.opened("min 30mbit").flow;
    moving.route_over(1);
    moving.taken(flow, 1);
    assert!(need(moving.part(0)) >= 30_000_000);
    moving.fixture.advance(Nanos::from_secs(5));
    assert_eq!(moving.part(0), None);
    assert_eq!(moving.fixture.driver.flows.len(), 1);
    assert_eq!(moving.fixture.flows.held_ports().len(), 1);
}

#[test]
fn a_flow_whose_route_returns_stays() {
    let mut moving = Moving::new(["100mbit", "100mbit"]);
    let flow = moving.opened("").flow;
    moving.route_over(1);
    moving.route_over(0);
    let refused = error_text(&moving.take(flow, 1));
    assert!(refused.contains("is not to move to eth1"), "{refused}");
    moving.fixture.advance(Nanos::from_secs(20));
    assert_eq!(moving.fixture.driver.flows.len(), 1);
    assert!(moving.fixture.driver.withdrawn.is_empty());
    // It moves when the route does so again.
    moving.route_over(1);
    moving.taken(flow, 1);
}

#[test]
fn a_flow_is_closed_as_before_if_it_cannot_move() {
    // The other link is not managed; the contract names the old link; any host, or the program does
    // not handle moves, in the tests of events.
    let mut moving = Moving::new(["100mbit", "100mbit"]);
    let flow = moving.opened("min 10mbit on eth0").flow;
    moving.route_over(1);
    let why = moving.closed_because(flow);
    assert!(
        why.contains("leads over eth1") && why.contains("names eth0"),
        "{why}"
    );
    moving.check_nothing_left();
    let flow = moving
        .fixture
        .opened(&moving.clients[0], "10.0.0.3:1", "")
        .flow;
    let host = IpAddr::from([10, 0, 0, 3]);
    moving.fixture.flows.network.moved.insert(host, 4);
    moving.fixture.changed(RouteChange::Routes);
    let why = moving.closed_because(flow);
    assert!(why.contains("open it again on eth2"), "{why}");
    moving.check_nothing_left();
}

#[test]
fn no_other_process_can_take_a_flow() {
    let mut moving = Moving::new(["100mbit", "100mbit"]);
    let flow = moving.opened("").flow;
    moving.fixture.service.host().spawn(9, 0);
    let (thief, _) = attach(&mut moving.fixture, &Peer::ROOT, 9, 1);
    let (child, _) = attach(&mut moving.fixture, &Peer::ROOT, 7, 1);
    // A child names its parent, but the kernel recorded the child.
    let mut child = child;
    child.connection.pid = 9;
    let secret = moving.secrets[0].clone();
    let request = |secret: &str| {
        DirectRequest::Take(TakeFlow {
            flow,
            secret: secret.to_owned(),
        })
    };
    let before = error_text(&moving.take(flow, 1));
    assert!(before.contains("is not to move to eth1"), "{before}");
    moving.route_over(1);
    let other = moving.secrets[1].clone();
    for (client, secret) in [
        (&thief, secret.as_str()),
        (&moving.clients[1], ""),
        (&moving.clients[1], other.as_str()),
        (&moving.clients[1], &secret[1..]),
    ] {
        let said = moving.fixture.request(client, request(secret));
        let said = error_text(&said.expect("an answer"));
        assert!(said.contains("belongs to another program"), "{said}");
    }
    // On the link where the flow is already; and a connection without an attachment.
    let said = moving.fixture.request(&moving.clients[0], request(&secret));
    let said = error_text(&said.expect("an answer"));
    assert!(said.contains("is not to move to eth0"), "{said}");
    let stranger = moving.fixture.client(&Peer::ROOT, 7);
    let said = moving.fixture.request(&stranger, request(&secret));
    assert!(error_text(&said.expect("an answer")).contains("attach to a link first"));
    // All of this has changed nothing. The program takes its flow, once.
    assert_eq!(moving.fixture.driver.flows.len(), 1);
    moving.fixture.driver_answers = false;
    let mut first = moving.begin_take(flow, 1);
    let second = error_text(&moving.take(flow, 1));
    assert!(second.contains("is being taken already"), "{second}");
    let change = moving.fixture.change(&moving.clients[0], flow, "up 1mbit");
    assert!(error_text(&change).contains("moves to another link"));
    moving.fixture.answer_pending();
    assert!(matches!(
        first.try_recv().expect("an answer").response,
        Response::Direct(DirectReply::Taken(_))
    ));
    let again = error_text(&moving.take(flow, 1));
    assert!(again.contains("another program"), "{again}");
    assert_eq!(moving.fixture.driver.flows.len(), 2);
}

#[test]
fn a_flow_that_is_closed_while_it_moves_leaves_nothing() {
    let mut moving = Moving::new(["100mbit", "100mbit"]);
    let flow = moving.opened("min 30mbit").flow;
    moving.route_over(1);
    moving.fixture.driver_answers = false;
    let mut taken = moving.begin_take(flow, 1);
    let close = DirectRequest::Close(CloseFlow { flow });
    let _closed = moving.fixture.begin(&moving.clients[0], close);
    moving.fixture.answer_pending();
    let said = error_text(&taken.try_recv().expect("an answer").response);
    assert!(said.contains("has ended while it was to move"), "{said}");
    moving.check_nothing_left();
    let said = error_text(&moving.take(flow, 1));
    assert!(said.contains("is not open"), "{said}");
}

#[test]
fn a_driver_that_fails_or_does_not_answer_ends_the_move_and_the_flow() {
    for (refuses, silent) in [(true, false), (false, true)] {
        let mut moving = Moving::new(["100mbit", "100mbit"]);
        let flow = moving.opened("min 30mbit").flow;
        moving.route_over(1);
        moving.fixture.driver.refuses = refuses.then(|| "its memory is full".to_owned());
        moving.fixture.driver_answers = !silent;
        let mut answer = moving.begin_take(flow, 1);
        if silent {
            moving.fixture.advance(Nanos::from_secs(5));
            moving.fixture.answer_pending();
        }
        error_text(&answer.try_recv().expect("an answer").response);
        moving.closed_because(flow);
        moving.check_nothing_left();
    }
}

#[test]
fn a_next_hop_that_does_not_answer_on_the_other_link_ends_the_flow() {
    let mut moving = Moving::new(["100mbit", "100mbit"]);
    let flow = moving.opened("min 30mbit").flow;
    moving.fixture.flows.network.next_hops.clear();
    moving.route_over(1);
    let _answer = moving.begin_take(flow, 1);
    moving.fixture.advance(Nanos::from_secs(1));
    let why = moving.closed_because(flow);
    assert!(why.contains("does not answer"), "{why}");
    moving.check_nothing_left();
}

/// What a program, its drivers and the network can do, in any order.
#[derive(Clone, Copy, Debug)]
enum Step {
    Route(usize),
    Take(usize),
    Open,
    Close(usize, u32),
    Answer,
    Silent,
    Wait(u64),
    Change,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2usize).prop_map(Step::Route),
        4 => (0..2usize).prop_map(Step::Take),
        1 => Just(Step::Open),
        1 => (0..2usize, 0..12u32).prop_map(|(link, flow)| Step::Close(link, flow)),
        2 => Just(Step::Answer),
        1 => Just(Step::Silent),
        2 => prop_oneof![Just(60u64), Just(1_000), Just(6_000)].prop_map(Step::Wait),
        1 => Just(Step::Change),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens during moves, each link's records agree with the flows, and nothing is left
    /// when the program has ended.
    #[test]
    fn nothing_is_lost_or_counted_twice_whatever_happens_during_moves(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut moving = Moving::new(["100mbit", "60mbit"]);
        moving.opened("min 40mbit");
        let mut answers = Vec::new();
        for step in steps {
            let numbers: Vec<u32> = moving.fixture.flows.flows.keys().copied().collect();
            let first = numbers.first().copied().unwrap_or(1);
            match step {
                Step::Route(link) => moving.route_over(link),
                Step::Take(link) => answers.push(moving.begin_take(first, link)),
                Step::Open => {
                    let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), "min 9mbit"));
                    answers.push(moving.fixture.begin(&moving.clients[0], open));
                }
                Step::Close(link, flow) => {
                    let close = DirectRequest::Close(CloseFlow { flow });
                    answers.push(moving.fixture.begin(&moving.clients[link], close));
                }
                Step::Answer => moving.fixture.answer_pending(),
                Step::Silent => moving.fixture.driver_answers = false,
                Step::Wait(ms) => moving.fixture.advance(Nanos::from_millis(ms)),
                Step::Change => {
                    let change = DirectRequest::Change(ChangeFlow {
                        flow: first,
                        change: "min 20mbit".to_owned(),
                    });
                    answers.push(moving.fixture.begin(&moving.clients[0], change));
                }
            }
            let flows = &moving.fixture.flows;
            for (link, state) in &flows.link_states {
                let theirs = flows.flows.values().filter(|flow| flow.link == *link);
                let promised = theirs.clone().filter(|flow| {
                    state.promised.iter().any(|(holder, _)| holder == PromiseHolder::Flow(flow.number))
                });
                let mut by_program: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
                for flow in theirs.clone() {
                    by_program.entry(flow.program).or_default().insert(flow.number);
                }
                for (number, program) in &state.programs {
                    let open = by_program.remove(number).unwrap_or_default();
                    prop_assert_eq!(&program.open, &open);
                }
                prop_assert!(by_program.is_empty());
                prop_assert_eq!(state.flow_count as usize, theirs.count());
                prop_assert_eq!(state.promised.len(), promised.count());
            }
        }
        moving.fixture.answer_pending();
        for client in &moving.clients {
            moving.fixture.flows.connection_ended(client.connection.number, moving.fixture.now);
        }
        moving.fixture.exchange();
        moving.fixture.advance(Nanos::from_secs(20));
        moving.check_nothing_left();
    }
}
