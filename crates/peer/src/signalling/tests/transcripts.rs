//! Establishment and refusal, message by message.

use super::*;

#[test]
fn a_source_asks_the_next_host_and_opens_when_it_is_established() {
    let mut a = Machine::new("a");
    let actions = a.open(1, "b", 30);
    let Open {
        channel,
        service,
        sink,
        sink_address,
        contract,
        packet,
    } = request(1, "b", millis(30));
    let request = HoldRequest {
        channel,
        part: Part::Source,
        service,
        sink,
        sink_address,
        contract,
        packet,
        previous: None,
        arrival: None,
    };
    assert_eq!(
        actions,
        [Action::Hold {
            hold: HoldId(0),
            request
        }]
    );
    // The channel waits for the connection and for the neighbour's hello.
    let neighbour = host("r");
    assert_eq!(
        a.held(0, 4, Some("r")),
        [Action::Connect {
            neighbour: neighbour.clone()
        }]
    );
    let hello = Message::Hello(Hello { host: host("a") });
    assert_eq!(a.take(Event::Connected { neighbour }), [sent("r", hello)]);
    let hello = Message::Hello(Hello { host: host("r") });
    assert_eq!(
        a.receive("r", hello),
        [sent("r", establish(1, "b", 30, &[("a", 4)]))]
    );
    let all = [("a", 9), ("r", 10), ("b", 11)];
    assert_eq!(
        a.receive("r", established(1, "r", &all)),
        [relax(0, 9, Some("r"))]
    );
    let opened = Action::Opened {
        channel: id(1),
        hops: hops(&all),
    };
    assert_eq!(a.relaxed(0), [opened]);
    let status = a.machine.channels().next().expect("a channel");
    assert_eq!(status.hops, Some(hops(&all)));
    assert_eq!((status.previous, status.next), (None, Some(host("r"))));
}

#[test]
fn a_sink_shares_the_slack_and_tells_the_listener() {
    let mut b = Machine::beside("b", &["r"]);
    let actions = b.receive("r", establish(1, "b", 30, &[("a", 4), ("r", 5)]));
    assert!(
        matches!(&actions[..], [Action::Hold { request, .. }]
            if request.part == Part::Sink && request.previous == Some(host("r"))
                && request.arrival == Some(Arrival { from: address("r"), to: peer_of("r") })
                && request.sink_address == address("b") && request.packet == PACKET),
        "{actions:?}"
    );
    // 30 − 4 − 5 − 6 = 15 ms of slack.
    assert_eq!(b.held(0, 6, None), [relax(0, 11, None)]);
    let all = [("a", 9), ("r", 10), ("b", 11)];
    let accepted = Action::Accepted {
        channel: id(1),
        service: ServiceName::new("camera").expect("a service"),
        contract: contract(millis(30)),
        hops: hops(&all),
    };
    assert_eq!(
        b.relaxed(0),
        [accepted, sent("r", established(1, "b", &all))]
    );
}

#[test]
fn a_relay_holds_its_bound_and_relaxes_it_on_the_way_back() {
    let mut r = Machine::beside("r", &["a", "b"]);
    let actions = r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    assert!(matches!(&actions[..], [Action::Hold { request, .. }] if request.part == Part::Relay));
    let onward = establish(1, "b", 30, &[("a", 4), ("r", 5)]);
    assert_eq!(r.held(0, 5, Some("b")), [sent("b", onward)]);
    let all = [("a", 9), ("r", 10), ("b", 11)];
    assert_eq!(
        r.receive("b", established(1, "b", &all)),
        [relax(0, 10, Some("b"))]
    );
    assert_eq!(r.relaxed(0), [sent("a", established(1, "r", &all))]);
}

#[test]
fn a_channel_within_one_host_has_its_whole_deadline_and_no_end_by_time() {
    let mut a = Machine::new("a");
    let actions = a.open(1, "a", 30);
    assert!(matches!(&actions[..], [Action::Hold { request, .. }] if request.part == Part::Both));
    assert_eq!(a.held(0, 6, None), [relax(0, 30, None)]);
    assert_eq!(a.relaxed(0).len(), 2);
    assert_eq!(a.wait(Nanos::from_secs(3_600)), []);
    let reason = Reason::new("the program has ended");
    let actions = a.take(Event::Close {
        channel: id(1),
        reason: reason.clone(),
    });
    let ended = |end| Action::Ended {
        channel: id(1),
        end,
        host: host("a"),
        reason: reason.clone(),
    };
    assert_eq!(actions, [release(0), ended(End::Source), ended(End::Sink)]);
}

#[test]
fn a_deadline_that_is_too_short_is_refused_with_the_best_one() {
    let mut b = Machine::beside("b", &["r"]);
    b.receive("r", establish(1, "b", 14, &[("a", 4), ("r", 5)]));
    let text = "the hops need 15ms together, more than the deadline of 14ms";
    let why = refusal("b", text, Some(15));
    assert_eq!(
        b.held(0, 6, None),
        [release(0), refused("r", 1, why.clone())]
    );
    assert_eq!(b.count(), 0);
    // It goes back to the source, and each host releases its hold.
    let mut r = Machine::beside("r", &["a", "b"]);
    r.receive("a", establish(1, "b", 14, &[("a", 4)]));
    r.held(0, 5, Some("b"));
    let channel = id(1);
    let message = Message::Refused(Refused {
        channel,
        attempt: 0,
        refusal: why.clone(),
    });
    assert_eq!(
        r.receive("b", message.clone()),
        [release(0), refused("a", 1, why.clone())]
    );
    let mut a = Machine::beside("a", &["r"]);
    a.open(1, "b", 14);
    a.held(0, 4, Some("r"));
    let told = Action::OpenRefused {
        channel,
        refusal: why,
    };
    assert_eq!(a.receive("r", message), [release(0), told]);
    assert_eq!((a.count(), r.count()), (0, 0));
}

#[test]
fn a_host_without_a_bound_refuses_with_its_reason() {
    let mut r = Machine::beside("r", &["a"]);
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    let reason = Reason::new("all promises together need 101.0000 % of the time");
    let not_held = Event::NotHeld {
        hold: HoldId(0),
        reason: reason.clone(),
        best: None,
    };
    let why = refusal("r", reason.as_str(), None);
    assert_eq!(r.take(not_held), [release(0), refused("a", 1, why)]);
}

#[test]
fn a_relaxation_that_fails_ends_the_channel_in_both_directions() {
    let mut r = Machine::beside("r", &["a", "b"]);
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    r.held(0, 5, Some("b"));
    r.receive("b", established(1, "b", &[("a", 9), ("r", 10), ("b", 11)]));
    let reason = Reason::new("the horizon is 1ms");
    let actions = r.take(Event::NotRelaxed {
        hold: HoldId(0),
        reason,
    });
    let text = "the longer bound cannot be kept: the horizon is 1ms";
    let expected = [
        release(0),
        sent("b", close(1, "r", text)),
        refused("a", 1, refusal("r", text, None)),
    ];
    assert_eq!(actions, expected);
}

#[test]
fn routes_that_end_or_loop_are_refused() {
    let refused_with = |next: Option<&str>, text: &str| {
        let mut r = Machine::beside("r", &["a"]);
        r.receive("a", establish(1, "b", 30, &[("z", 1), ("a", 4)]));
        let actions = r.held(0, 5, next);
        assert_eq!(
            actions,
            [release(0), refused("a", 1, refusal("r", text, None))]
        );
    };
    refused_with(None, "no route leads to b");
    refused_with(Some("a"), "the route leads from here back to a");
    refused_with(Some("z"), "the route leads from here back to z");
    refused_with(Some("r"), "the route leads from here back to r");
    let mut r = Machine::beside("r", &["a"]);
    let actions = r.receive("a", establish(1, "b", 30, &[("r", 1), ("a", 4)]));
    let why = refusal("r", "the route passes this host twice", None);
    assert_eq!(actions, [refused("a", 1, why)]);
    let names: Vec<String> = (0..15)
        .map(|at| format!("h{at}"))
        .chain(["a".to_owned()])
        .collect();
    let long: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let actions = r.receive("a", establish(1, "b", 30, &long));
    let why = refusal("r", "the route has more than 16 hosts", None);
    assert_eq!(actions, [refused("a", 1, why)]);
}

#[test]
fn a_host_without_netnice_on_the_way_is_named_in_the_refusal() {
    let mut a = Machine::new("a");
    a.open(1, "b", 30);
    a.held(0, 4, Some("r"));
    let reason = Reason::new("connection refused");
    let actions = a.take(Event::Disconnected {
        neighbour: host("r"),
        reason,
    });
    let why = refusal(
        "a",
        "the connection to r has ended: connection refused",
        None,
    );
    assert_eq!(
        actions,
        [
            release(0),
            Action::OpenRefused {
                channel: id(1),
                refusal: why
            }
        ]
    );
}

#[test]
fn a_program_cannot_open_a_channel_twice_or_beyond_its_quota() {
    let policy = Policy {
        programs: Quota {
            channels: 2,
            mmax: Bytes(1_000),
            ..Policy::default().programs
        },
        ..Policy::default()
    };
    let mut a = Machine::with("a", policy);
    a.open(1, "b", 30);
    let again = a.machine.open(request(1, "b", millis(30)), a.now);
    assert_eq!(again, Err(OpenError::Exists(id(1))));
    let rate = MessageRate::new(1).expect("a rate");
    let large = |mmax| Open {
        contract: Channel::new(Bytes(mmax), rate, 1, millis(30)).expect("a contract"),
        ..request(2, "b", millis(30))
    };
    let mut error = |open| {
        a.machine
            .open(open, a.now)
            .expect_err("refused")
            .to_string()
    };
    assert_eq!(
        error(large(1_001)),
        "the channels of the programs of this host: mmax is at most 1000B, not 1001B \
         (quota mmax)"
    );
    assert_eq!(
        error(large((16 << 20) + 1)),
        "the channel cannot be asked for: mmax is 1B to 16MiB, not 16777217B"
    );
    let short = Open {
        packet: 63,
        ..request(2, "b", millis(30))
    };
    assert_eq!(
        error(short),
        "the channel cannot be asked for: a packet is 64 to 65507 bytes long, not 63"
    );
    let loopback = Open {
        sink_address: IpAddr::from([127, 0, 0, 1]),
        ..request(2, "b", millis(30))
    };
    assert_eq!(
        error(loopback.clone()),
        "the channel cannot be asked for: the sink's address 127.0.0.1 is a loopback address: \
         packets cannot be sent to or from it"
    );
    a.open(2, "b", 30);
    let third = a.machine.open(request(3, "b", millis(30)), a.now);
    let text = "the channels of the programs of this host: at most 2 channels are \
                allowed (quota channels)";
    assert_eq!(third.expect_err("too many").to_string(), text);
    // The packets of a channel within the host pass no link, so its address does not matter.
    let mut a = Machine::new("a");
    let within = Open {
        sink: host("a"),
        ..loopback
    };
    assert_eq!(a.machine.open(within, a.now), Ok(()));
}

#[test]
fn a_host_other_than_the_source_without_a_port_ends_the_channel() {
    let text = "this host has no port at which it receives the channel's packets";
    let relaxed = || Event::Relaxed {
        hold: HoldId(0),
        port: None,
    };
    let mut r = Machine::beside("r", &["a", "b"]);
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    r.held(0, 5, Some("b"));
    r.receive("b", established(1, "b", &[("a", 9), ("r", 10), ("b", 11)]));
    let expected = [
        release(0),
        sent("b", close(1, "r", text)),
        refused("a", 1, refusal("r", text, None)),
    ];
    assert_eq!(r.take(relaxed()), expected);
    let mut b = Machine::beside("b", &["r"]);
    b.receive("r", establish(1, "b", 30, &[("a", 4), ("r", 5)]));
    b.held(0, 6, None);
    let expected = [release(0), refused("r", 1, refusal("b", text, None))];
    assert_eq!(b.take(relaxed()), expected);
    assert_eq!((r.count(), b.count()), (0, 0));
}

/// A route with addresses that the next host would refuse, and disconnect this host for, is refused
/// here.
#[test]
fn a_next_hop_with_addresses_that_carry_no_packets_is_refused() {
    let refused_with = |from: &str, to: &str, text: &str| {
        let mut r = Machine::beside("r", &["a", "b"]);
        r.receive("a", establish(1, "b", 30, &[("a", 4)]));
        let [from, to] = [from, to].map(|address| address.parse().expect("an address"));
        let next = NextHop {
            host: host("b"),
            from,
            to,
        };
        let actions = r.take(Event::Held {
            hold: HoldId(0),
            bound: millis(5),
            next: Some(next),
            unguarded: None,
        });
        let why = refused("a", 1, refusal("r", text, None));
        assert_eq!(actions, [release(0), why]);
    };
    let text = "from 127.0.0.1 is a loopback address: packets cannot be sent to or from it";
    refused_with("127.0.0.1", "10.0.0.1", text);
    let text = format!(
        "the addresses {}, 10.0.0.1 and fd00::1 are not all of one family",
        address("b")
    );
    refused_with("10.0.0.1", "fd00::1", &text);
}

#[test]
fn the_status_of_a_channel_follows_its_establishment() {
    let mut r = Machine::beside("r", &["a", "b"]);
    let status = |r: &Machine| {
        let one = r.machine.channels().next().expect("a channel");
        assert_eq!((one.part, one.packet), (Part::Relay, PACKET));
        (one.progress.to_string(), one.bound, one.hops.is_some())
    };
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    assert_eq!(status(&r), ("holding".to_owned(), None, false));
    r.held(0, 5, Some("b"));
    let establishing = ("establishing".to_owned(), Some(millis(5)), false);
    assert_eq!(status(&r), establishing);
    r.receive("b", established(1, "b", &[("a", 9), ("r", 10), ("b", 11)]));
    assert_eq!(status(&r), establishing);
    r.relaxed(0);
    assert_eq!(
        status(&r),
        ("established".to_owned(), Some(millis(10)), true)
    );
}

/// Hops with a mark at some hosts.
fn marked(bounds: &[(&str, u64, Option<&str>)]) -> Hops {
    let hops = bounds.iter().map(|(name, bound, mark)| HopBound {
        host: host(name),
        bound: millis(*bound),
        unguarded: mark.map(|iface| iface.parse().expect("a name")),
    });
    Hops::new(hops.collect()).expect("hops")
}

/// `message` with these hops.
fn with_hops(mut message: Message, hops: Hops) -> Message {
    match &mut message {
        Message::Establish(one) => one.hops = hops,
        Message::Established(one) => one.hops = hops,
        other => panic!("{other:?}"),
    }
    message
}

/// The host `machine` holds 5 ms, and packets arrive at its unguarded `iface`.
fn held_unguarded(machine: &mut Machine, iface: &str, next: Option<&str>) -> Vec<Action> {
    let own = machine.machine.host().as_str();
    let next = next.map(|next| NextHop {
        host: host(next),
        from: address(own),
        to: peer_of(own),
    });
    machine.take(Event::Held {
        hold: HoldId(0),
        bound: millis(5),
        next,
        unguarded: Some(iface.parse().expect("a name")),
    })
}

#[test]
fn each_host_marks_its_unguarded_port_and_all_are_told() {
    let mut r = Machine::beside("r", &["a", "b"]);
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    let actions = held_unguarded(&mut r, "eth1", Some("b"));
    let forward = marked(&[("a", 4, None), ("r", 5, Some("eth1"))]);
    let asked = establish(1, "b", 30, &[("a", 4), ("r", 5)]);
    assert_eq!(
        actions,
        [sent("b", with_hops(asked.clone(), forward.clone()))]
    );
    let mut b = Machine::beside("b", &["r"]);
    b.receive("r", with_hops(asked, forward));
    held_unguarded(&mut b, "eth0", None);
    let last = [
        ("a", 9, None),
        ("r", 10, Some("eth1")),
        ("b", 11, Some("eth0")),
    ];
    let Some(Action::Accepted { hops, .. }) = b.relaxed(0).into_iter().next() else {
        panic!("not accepted");
    };
    let marks = |hops: &Hops| -> Vec<Option<String>> {
        let mark = |hop: &HopBound| hop.unguarded.as_ref().map(ToString::to_string);
        hops.as_slice().iter().map(mark).collect()
    };
    assert_eq!(marks(&hops), marks(&marked(&last)));
    let answer = with_hops(established(1, "b", &[("a", 30)]), hops.clone());
    r.receive("b", answer);
    let answer = with_hops(established(1, "r", &[("a", 30)]), hops.clone());
    assert_eq!(r.relaxed(0), [sent("a", answer)]);
    let status = r.machine.channels().next().expect("a channel");
    assert_eq!(status.hops, Some(hops));
}

#[test]
fn marks_that_change_on_the_way_back_disconnect_the_neighbour() {
    for mark in [None, Some("eth2")] {
        let hops = [("a", 9, None), ("r", 10, mark), ("b", 11, None)];
        let mut r = Machine::beside("r", &["a", "b"]);
        r.receive("a", establish(1, "b", 30, &[("a", 4)]));
        held_unguarded(&mut r, "eth1", Some("b"));
        let answer = with_hops(established(1, "b", &[("a", 30)]), marked(&hops));
        let actions = r.receive("b", answer);
        let text = format!(
            "b breaks the protocol: it establishes channel {} wrongly: the mark of r is not the \
             one that it had",
            id(1)
        );
        let reason = Reason::new(&text);
        let neighbour = host("b");
        assert_eq!(actions[0], Action::Disconnect { neighbour, reason });
    }
}
