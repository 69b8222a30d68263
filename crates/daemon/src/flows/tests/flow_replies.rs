//! Tests of `netnice explain` for direct flows and drivers, and of the driver census that it needs:
//! at most one census is pending at a driver, and requests get an answer if the driver is slow or
//! ends. Also tests which discard patterns a driver gets.

use netnice_api::ShowDoc;
use netnice_api::driver::DriverRequest;
use netnice_core::target::Target;

use super::*;
use crate::flows::flow_replies::PartialReply;

/// A request as `netnice explain` sends it.
fn explain(fixture: &mut Fixture, target: &str) -> oneshot::Receiver<Reply> {
    let target: Target = target.parse().expect("a target");
    let (reply, answer) = oneshot::channel();
    let what = PartialReply::Explain(target, None, None);
    fixture
        .flows
        .reply_with_flows(&mut fixture.service, Peer::ROOT, what, reply, fixture.now);
    fixture.exchange();
    answer
}

/// The lines of the reply, which must have arrived.
fn lines(answer: &mut oneshot::Receiver<Reply>) -> Vec<String> {
    match answer.try_recv().expect("an answer").response {
        Response::Explained(page) => page.lines,
        other => panic!("{other:?}"),
    }
}

fn explained(fixture: &mut Fixture, target: &str) -> Vec<String> {
    lines(&mut explain(fixture, target))
}

#[test]
fn explain_shows_discards_frames_and_needless_doorbells_of_a_driver() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    fixture.opened(&client, "10.0.0.2:1", "");
    let page = explained(&mut fixture, "direct:eth0").join("\n");
    for part in [
        "of eth0: 1 flow of 1 program",
        "native: AF_XDP",
        "4 received frames: checksum",
        "11 times by programs while the driver was awake",
        "frames     20 of 100 free, 70 with the kernel to be filled, 9 to be sent, 1 with",
        "the driver, and 2 of the flows' 64 chunks",
    ] {
        assert!(page.contains(part), "{part}:\n{page}");
    }
}

#[test]
fn a_driver_gets_the_discard_patterns_of_the_policy() {
    let mut fixture = Fixture::new();
    let path = std::env::temp_dir().join(format!("netnice-{}-discard.toml", std::process::id()));
    let load_policy = |fixture: &mut Fixture, lines: &str| {
        let link = "[[link]]\nname = \"eth0\"\nrate = \"100mbit\"\n";
        std::fs::write(&path, format!("{link}{lines}")).expect("a file");
        fixture.service.load_policy(&path, fixture.now);
        std::fs::remove_file(&path).expect("it was there");
        fixture.flows.settle_all(&mut fixture.service, fixture.now);
        fixture.exchange();
    };
    load_policy(&mut fixture, "discard = [\"12=0800\", \"12=88cc\"]");
    assert_eq!(fixture.driver.discards, None, "there is no driver yet");
    let client = fixture.attached_client(&ANN, 8);
    let text = fixture.driver.discards.clone().expect("sent to the driver");
    assert_eq!(text.len(), 2);
    let page = explained(&mut fixture, "direct:eth0").join("\n");
    let row = "discards   what fits 2 patterns of the policy";
    assert!(page.contains(row), "{page}");
    // Neither an unreadable file nor a restart of the daemon changes the patterns.
    fixture.driver.discards = None;
    load_policy(&mut fixture, "discard = [\"port 53\"]");
    assert_eq!(fixture.driver.discards, None);
    fixture.restart();
    assert_eq!(fixture.driver.discards, Some(text));
    load_policy(&mut fixture, "");
    assert_eq!(fixture.driver.discards, Some(Vec::new()));
    // A driver that has no patterns and should have none gets no message; a driver with patterns
    // gets one, whichever daemon sent them.
    fixture.driver.discards = None;
    fixture.restart();
    assert_eq!(fixture.driver.discards, None);
    fixture.driver.discards = Some(vec![Vec::new()]);
    fixture.restart();
    assert_eq!(fixture.driver.discards, Some(Vec::new()));
    drop(client);
}

#[test]
fn explain_shows_the_horizon_and_the_code_points_of_a_driver() {
    let mut fixture = Fixture::new();
    let path = std::env::temp_dir().join(format!("netnice-{}-marks.toml", std::process::id()));
    let mut page_with = |lines: &str, marks: &str| {
        let link = "[[link]]\nname = \"eth0\"\nrate = \"100mbit\"\n";
        std::fs::write(&path, format!("{marks}{link}{lines}")).expect("a file");
        fixture.service.load_policy(&path, fixture.now);
        std::fs::remove_file(&path).expect("it was there");
        let client = fixture.attached_client(&ANN, 8);
        fixture.opened(&client, "10.0.0.2:1", "");
        fixture.flows.settle_all(&mut fixture.service, fixture.now);
        fixture.exchange();
        let page = explained(&mut fixture, "direct:eth0").join(" ");
        page.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let page = page_with("", "");
    assert!(
        !page.contains("horizon") && !page.contains("dscp"),
        "{page}"
    );
    let marks = "[dscp]\ncell = \"EF\"\nbest-effort = \"LE\"\n";
    let page = page_with("horizon = \"2ms\"\n", marks);
    for row in [
        "horizon packets of channels leave up to 2ms early if nothing else is sent",
        "dscp the driver writes EF for cell, CS0 for channel, CS0 for slice",
        "CS0 for min, LE for best effort",
    ] {
        assert!(page.contains(row), "{row}:\n{page}");
    }
}

/// A driver that does not answer yet, and a flow that many requests ask about at once.
fn fixture_with_waiting_requests() -> (Fixture, TestClient, Vec<oneshot::Receiver<Reply>>) {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    fixture.opened(&client, "10.0.0.2:1", "");
    fixture.driver_answers = false;
    let answers = (0..100).map(|_| explain(&mut fixture, "flow:1")).collect();
    (fixture, client, answers)
}

#[test]
fn one_census_is_in_progress_at_a_driver_and_waiting_requests_share_the_next() {
    let (mut fixture, _seat, mut answers) = fixture_with_waiting_requests();
    for text in [1, 99] {
        assert_eq!(fixture.unanswered.len(), 1, "{:?}", fixture.unanswered);
        let (link, call) = fixture.unanswered.remove(0);
        let event = fixture.answer(&call);
        fixture
            .flows
            .handle_driver_event(&mut fixture.service, &link, event, fixture.now);
        fixture.exchange();
        let now = answers.iter_mut().map(oneshot::Receiver::try_recv);
        assert_eq!(now.filter(Result::is_ok).count(), text);
    }
    assert!(fixture.unanswered.is_empty(), "{:?}", fixture.unanswered);
    fixture.driver_answers = true;
    let page = explained(&mut fixture, "flow:1").join("\n");
    assert!(page.contains("5 packets"), "{page}");
}

#[test]
fn a_slow_driver_gets_no_census_for_requests_already_answered() {
    let (mut fixture, _seat, mut answers) = fixture_with_waiting_requests();
    for _ in 0..20 {
        fixture.advance(Nanos::from_secs(1));
        answers.push(explain(&mut fixture, "flow:1"));
    }
    fixture.advance(Nanos::from_secs(1));
    for ask in &mut answers {
        let page = lines(ask).join("\n");
        assert!(page.contains("did not tell them in time"), "{page}");
    }
    assert_eq!(fixture.unanswered.len(), 1, "{:?}", fixture.unanswered);
    let waits = fixture.flows.link_states[&eth0()].census_waiters.len();
    assert_eq!(waits, 1, "only the last request waits");
    fixture.answer_pending();
    let page = explained(&mut fixture, "flow:1").join("\n");
    assert!(page.contains("5 packets"), "{page}");
}

#[test]
fn requests_that_wait_for_a_census_are_answered_when_the_driver_ends() {
    let (mut fixture, _seat, mut answers) = fixture_with_waiting_requests();
    let ended = driver::ConnectionEvent::Ended("it was killed".to_owned());
    fixture
        .flows
        .handle_driver_event(&mut fixture.service, &eth0(), ended, fixture.now);
    for ask in &mut answers {
        let text = error_text(&ask.try_recv().expect("an answer").response);
        assert!(text.contains("flow:1 is not open"), "{text}");
    }
    assert!(
        fixture.flows.next_due().is_none(),
        "nothing is left of them"
    );
}

#[test]
fn explain_names_the_next_hop_of_a_flow() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    let group = Endpoint::Group {
        local: "0.0.0.0:0".parse().expect("an address"),
        group: "239.1.1.1:5000".parse().expect("an address"),
    };
    let to_any = udp("10.0.0.100:0", None, "");
    let of_group = OpenFlow {
        endpoint: group,
        ..to_any.clone()
    };
    for open in [to_any, of_group] {
        let opened = fixture.request(&client, DirectRequest::Open(open));
        assert!(matches!(opened, Some(Response::Direct(_))), "{opened:?}");
    }
    for (flow, words) in [
        (
            "flow:1",
            "to the next hop that the program names for each packet,",
        ),
        ("flow:2", "to the group at 01:00:5e:01:01:01,"),
    ] {
        let page = explained(&mut fixture, flow).join("\n");
        assert!(page.contains(words), "{page}");
    }
}

/// The driver's numbers of the flows in the census that the driver was asked for last.
fn asked(fixture: &mut Fixture) -> Vec<u32> {
    match fixture.unanswered.pop().expect("a call").1.request {
        DriverRequest::CensusOf { flows } => flows,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_census_has_the_flows_that_the_replies_show() {
    let show = |target: Option<&str>| {
        let target = target.map(|text| text.parse().expect("a target"));
        PartialReply::Show(ShowDoc::default(), target)
    };
    let explain =
        |target: &str| PartialReply::Explain(target.parse().expect("a target"), None, None);
    let bob = Peer {
        uid: 1001,
        ..ANN.clone()
    };
    // The flows by their order.
    let (all, of_ann, of_root) = (&[0, 1, 2][..], &[0, 1][..], &[2][..]);
    let cases = [
        (Peer::ROOT, show(None), all, 3),
        (ANN, show(None), of_ann, 2),
        (bob.clone(), show(None), &[], 0),
        (Peer::ROOT, show(Some("flow:2")), &[1], 1),
        (Peer::ROOT, explain("pid:7"), of_root, 0),
        (ANN, explain("pid:7"), &[], 0),
        // The page has sums over all flows of the link.
        (bob, explain("direct:eth0"), all, 0),
    ];
    for (peer, what, flows, shown) in cases {
        let mut fixture = Fixture::new();
        let ann = fixture.attached_client(&ANN, 8);
        for remote in ["10.0.0.2:1", "10.0.0.2:2"] {
            fixture.opened(&ann, remote, "");
        }
        let root = fixture.attached_client(&Peer::ROOT, 7);
        fixture.opened(&root, "10.0.0.2:3", "");
        let at_driver = fixture.flows.flows.values().map(|flow| flow.at_driver);
        let at_driver: Vec<u32> = at_driver.flatten().collect();
        fixture.driver_answers = false;
        let (reply, mut answer) = oneshot::channel();
        let flows_of = &mut fixture.flows;
        flows_of.reply_with_flows(&mut fixture.service, peer, what, reply, fixture.now);
        fixture.exchange();
        let (link, call) = fixture.unanswered.last().expect("a call").clone();
        let wanted: Vec<u32> = flows.iter().map(|n| at_driver[*n]).collect();
        assert_eq!(asked(&mut fixture), wanted);
        let event = fixture.answer(&call);
        let flows_of = &mut fixture.flows;
        flows_of.handle_driver_event(&mut fixture.service, &link, event, fixture.now);
        if let Response::Shown(doc) = answer.try_recv().expect("an answer").response {
            let sent = doc.direct.iter().map(|doc| doc.counters.counts.sent);
            assert_eq!(sent.collect::<Vec<_>>(), vec![5; shown]);
        }
    }
}

/// A page about a flow says what a packet costs its program and the driver, and what the flow's
/// contract takes with that.
#[test]
fn explain_shows_what_packets_cost_and_what_a_contract_takes() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let flow = fixture.opened(&client, "10.0.0.2:6000", "slice 10ms/100ms");
    let other = fixture.opened(&client, "10.0.0.2:6001", "");
    let name = format!("flow:{}", flow.flow);
    let page = |fixture: &mut Fixture| {
        let page = explained(fixture, &name).join(" ");
        page.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    // Too few packets.
    fixture.flows.network.processor_time.set(Nanos(8_000_000));
    let text = page(&mut fixture);
    assert!(!text.contains("a packet takes"), "{text}");
    // Both flows count, and then the closed one.
    fixture.driver.sent = (500, 500_000);
    let text = page(&mut fixture);
    let costs = "a packet takes processor time: 8us in the program, with all else that it does";
    assert!(text.contains(costs), "{text}");
    let takes = "in packets of 1000 bytes, which takes 1ms of each 100ms in the program; no \
                 processor time is reserved for the program";
    assert!(text.contains("the slice carries 10 Mbit/s"), "{text}");
    assert!(text.contains(takes), "{text}");
    fixture.close(&client, other.flow);
    fixture.driver.sent = (1_500, 1_500_000);
    let text = page(&mut fixture);
    assert!(
        text.contains("processor time: 4us in the program"),
        "{text}"
    );
    // The driver's cost is known once it has told its times.
    for (at, sent) in [(1, 0), (2, 1_000)] {
        fixture.driver.totals.sent = sent;
        fixture.driver.totals.thread = Some(netnice_api::driver::ThreadTimeDoc {
            at_ns: at * 1_000_000_000,
            processor_ns: at * 5_000_000,
            waiting_ns: at * 3_000_000,
        });
        fixture.flows.balance(fixture.now);
        fixture.exchange();
    }
    let text = page(&mut fixture);
    assert!(text.contains("2us in the driver"), "{text}");
    // The costs of a program that an earlier daemon attached count from the take-over on.
    fixture.restart();
    fixture.flows.network.processor_time.set(Nanos(9_000_000));
    assert!(!page(&mut fixture).contains("in the program, with"));
    fixture.driver.sent = (2_500, 2_500_000);
    fixture.flows.network.processor_time.set(Nanos(10_000_000));
    let text = page(&mut fixture);
    assert!(
        text.contains("processor time: 2us in the program"),
        "{text}"
    );
}
