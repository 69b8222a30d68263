//! Neighbours that break the protocol, want more than their quota, or name channels of others.

use super::*;

/// Checks that the neighbour is disconnected for a reason with this text, and that only its own
/// channels end.
fn expect_disconnect(actions: &[Action], name: &str, text: &str) {
    let reason = Reason::new(&format!("{name} breaks the protocol: {text}"));
    let neighbour = host(name);
    assert_eq!(
        actions.first(),
        Some(&Action::Disconnect { neighbour, reason }),
        "{actions:?}"
    );
}

#[test]
fn the_first_message_is_one_hello_with_the_name_of_the_certificate() {
    let other = Message::Hello(Hello { host: host("b") });
    let cases = [
        (other, "its certificate names a, and its hello b"),
        (refresh(&[]), "its first message is no hello"),
        (
            establish(1, "b", 30, &[("a", 4)]),
            "its first message is no hello",
        ),
    ];
    for (message, text) in cases {
        let mut r = Machine::new("r");
        r.take(Event::Connected {
            neighbour: host("a"),
        });
        expect_disconnect(&r.receive("a", message), "a", text);
        assert_eq!(r.machine.neighbours().count(), 0);
    }
    let mut r = Machine::beside("r", &["a"]);
    let hello = Message::Hello(Hello { host: host("a") });
    expect_disconnect(&r.receive("a", hello.clone()), "a", "it sends hello twice");
    // What the neighbour sent before it noticed is ignored.
    assert_eq!(r.receive("a", hello), []);
    assert_eq!(r.machine.ignored(), 1);
}

#[test]
fn messages_in_the_wrong_order_disconnect_their_sender() {
    let all = [("a", 9), ("r", 10), ("b", 11)];
    let number = id(1);
    let cases = [
        (
            "a",
            establish(1, "b", 30, &[("a", 4)]),
            format!("it asks for channel {number}, which it has already"),
        ),
        (
            "a",
            establish(2, "b", 30, &[("z", 4)]),
            format!("it asks for channel {} as if it were z", id(2)),
        ),
        (
            "b",
            established(1, "b", &all),
            format!("it establishes channel {number} wrongly: it was established already"),
        ),
    ];
    for (from, message, text) in cases {
        let mut r = relay();
        let actions = r.receive(from, message);
        expect_disconnect(&actions, from, &text);
        assert!(actions.contains(&release(0)), "{actions:?}");
        let other = if from == "a" { "b" } else { "a" };
        assert_eq!(r.machine.neighbours().collect::<Vec<_>>(), [&host(other)]);
        assert_eq!(r.count(), 0);
    }
    let refused = |attempt| {
        let (channel, refusal) = (number, refusal("b", "no", None));
        Message::Refused(Refused {
            channel,
            attempt,
            refusal,
        })
    };
    let mut r = relay();
    let text = format!("it refuses channel {number}, which it has established");
    expect_disconnect(&r.receive("b", refused(0)), "b", &text);
    // In the wrong direction, or about another attempt: no channel is meant.
    let mut r = relay();
    assert_eq!(r.receive("a", refused(0)), []);
    assert_eq!(r.receive("b", refused(1)), []);
    assert_eq!(r.receive("b", attempt(1, close_back(1, "b", "ended"))), []);
    assert_eq!(r.machine.ignored(), 3);
    let text = "the channel does not exist here, or has ended";
    assert_eq!(
        r.receive("a", established(1, "a", &all)),
        [sent("a", close(1, "r", text))]
    );
    assert_eq!(r.count(), 1);
}

/// Two neighbours number their attempts independently, and can ask each other for one identifier at
/// once. The end of the one attempt is none of the other, though both have the number 0.
#[test]
fn the_end_of_a_neighbours_own_attempt_ends_no_attempt_of_this_host() {
    let mut r = relay();
    let crossing = establish(1, "a", 30, &[("b", 4)]);
    assert_eq!(r.receive("b", crossing).len(), 1, "it is refused");
    assert_eq!(r.receive("b", close(1, "b", "ended")), []);
    assert_eq!(r.receive("a", close_back(1, "a", "ended")), []);
    assert_eq!((r.machine.ignored(), r.count()), (2, 1));
    // A reply to a refresh means the established channel only.
    let mut r = Machine::beside("r", &["a", "b"]);
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    r.held(0, 5, Some("b"));
    assert_eq!(r.receive("b", unknown(1, "b")), []);
    assert_eq!((r.machine.ignored(), r.count()), (1, 1));
}

/// A source that uses an identifier again must not make two others disconnect each other.
#[test]
fn a_reply_to_an_earlier_attempt_changes_nothing_and_disconnects_nobody() {
    let mut r = Machine::beside("r", &["a", "b"]);
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    r.held(0, 5, Some("b"));
    r.receive("a", close(1, "a", "ended"));
    r.receive("a", attempt(7, establish(1, "b", 42, &[("a", 4)])));
    let onward = attempt(1, establish(1, "b", 42, &[("a", 4), ("r", 5)]));
    assert_eq!(r.held(1, 5, Some("b")), [sent("b", onward)]);
    // b has replied before the end of the first attempt arrived there.
    let first = established(1, "b", &[("a", 9), ("r", 10), ("b", 11)]);
    let text = "the channel does not exist here, or has ended";
    assert_eq!(r.receive("b", first), [sent("b", close(1, "r", text))]);
    let all = [("a", 13), ("r", 14), ("b", 15)];
    let second = attempt(1, established(1, "b", &all));
    assert_eq!(r.receive("b", second), [relax(1, 14, Some("b"))]);
    assert_eq!(
        r.relaxed(1),
        [sent("a", attempt(7, established(1, "r", &all)))]
    );
}

/// Two sources can ask two hosts for each other with the same identifier at once.
#[test]
fn two_hosts_that_ask_each_other_for_one_identifier_refuse_both() {
    let mut r = Machine::beside("r", &["a", "b"]);
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    r.held(0, 5, Some("b"));
    let text = "the identifier of the channel is in use: draw another one";
    let why = refusal("r", text, None);
    let crossing = attempt(8, establish(1, "a", 30, &[("b", 4)]));
    let channel = id(1);
    let answer = |attempt, refusal| {
        Message::Refused(Refused {
            channel,
            attempt,
            refusal,
        })
    };
    assert_eq!(
        r.receive("b", crossing),
        [sent("b", answer(8, why.clone()))]
    );
    assert_eq!(r.count(), 1);
    let actions = r.receive("b", answer(0, refusal("b", text, None)));
    let passed = answer(0, refusal("b", text, None));
    assert_eq!(actions, [release(0), sent("a", passed)]);
}

#[test]
fn final_bounds_that_do_not_fit_disconnect_their_sender() {
    let cases: [(&[(&str, u64)], &str); 7] = [
        (
            &[("a", 9), ("r", 10), ("b", 12)],
            "the bounds sum to 31ms, and the deadline is 30ms",
        ),
        (
            &[("a", 9), ("r", 10), ("b", 10)],
            "the bounds sum to 29ms, and the deadline is 30ms",
        ),
        (
            &[("a", 3), ("r", 16), ("b", 11)],
            "a gets 3ms, less than the 4ms that it holds",
        ),
        (
            &[("a", 15), ("r", 4), ("b", 11)],
            "r gets 4ms, less than the 5ms that it holds",
        ),
        (
            &[("z", 9), ("r", 10), ("b", 11)],
            "the hosts are not those of the channel",
        ),
        (
            &[("a", 9), ("r", 10), ("c", 11)],
            "the hosts are not those of the channel",
        ),
        (&[("a", 30)], "the hosts are not those of the channel"),
    ];
    for (bounds, text) in cases {
        let mut r = Machine::beside("r", &["a", "b"]);
        r.receive("a", establish(1, "b", 30, &[("a", 4)]));
        r.held(0, 5, Some("b"));
        let actions = r.receive("b", established(1, "b", bounds));
        let text = format!("it establishes channel {} wrongly: {text}", id(1));
        expect_disconnect(&actions, "b", &text);
        assert!(actions.contains(&release(0)), "{actions:?}");
        assert_eq!(r.machine.neighbours().collect::<Vec<_>>(), [&host("a")]);
    }
}

#[test]
fn another_neighbours_channel_cannot_be_opened_closed_refreshed_or_answered() {
    let mut r = relay();
    r.connect("e");
    let all = [("a", 9), ("r", 10), ("b", 11)];
    let (channel, no) = (id(1), refusal("b", "no", None));
    // Each is treated as one about an unknown channel.
    let text = "the channel does not exist here, or has ended";
    assert_eq!(r.receive("e", close(1, "b", "ended")), []);
    assert_eq!(
        r.receive(
            "e",
            Message::Refused(Refused {
                channel,
                attempt: 0,
                refusal: no
            })
        ),
        []
    );
    let told = [sent("e", close(1, "r", text))];
    assert_eq!(r.receive("e", established(1, "e", &all)), told);
    assert_eq!(r.receive("e", refresh(&[1])), [sent("e", unknown(1, "r"))]);
    let taken = refusal(
        "r",
        "the identifier of the channel is in use: draw another one",
        None,
    );
    let open = establish(1, "b", 30, &[("e", 4)]);
    assert_eq!(r.receive("e", open), [refused("e", 1, taken)]);
    assert_eq!(r.count(), 1);
    // The refreshes of another neighbour do not keep the channel.
    for _ in 0..3 {
        r.receive("e", refresh(&[1]));
        r.wait(REFRESH);
    }
    assert_eq!(r.count(), 0);
}

#[test]
fn a_host_that_is_not_asked_yet_cannot_end_the_channel() {
    let mut r = Machine::beside("r", &["a"]);
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    // The route leads to b, which has a connection and no hello yet.
    r.take(Event::Connected {
        neighbour: host("b"),
    });
    assert_eq!(r.held(0, 5, Some("b")), []);
    let actions = r.receive("b", close(1, "b", "no"));
    expect_disconnect(&actions, "b", "its first message is no hello");
}

/// The reason for which a host refuses a channel of the neighbour `a`, which has asked for `before`
/// others.
fn refusal_of_one_more(quota: Quota, before: usize) -> String {
    let policy = Policy {
        neighbour: quota,
        ..Policy::default()
    };
    let mut r = Machine::with("r", policy);
    r.connect("a");
    for number in 0..before {
        let number = 100 + number as u8;
        r.receive("a", establish(number, "r", 30, &[("a", 4)]));
    }
    let count = r.count();
    let actions = r.receive("a", establish(1, "r", 30, &[("a", 4)]));
    assert_eq!(r.count(), count);
    // Another neighbour has a quota of its own.
    r.connect("c");
    let of_other = r.receive("c", establish(2, "r", 30, &[("c", 4)]));
    let granted = matches!(&of_other[..], [Action::Hold { .. }]);
    assert!(granted || before == 0, "{of_other:?}");
    match &actions[..] {
        [
            Action::Send {
                message: Message::Refused(refused),
                ..
            },
        ] => refused.refusal.reason.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_limit_of_a_quota_is_named_and_what_exceeds_it_reserves_nothing() {
    let base = Policy::default().neighbour;
    let expect = |quota, before, end: &str| {
        assert_eq!(
            refusal_of_one_more(quota, before),
            format!("the channels that a opens: {end}")
        );
    };
    expect(
        Quota {
            channels: 3,
            ..base
        },
        3,
        "at most 3 channels are allowed (quota channels)",
    );
    let most = "at most 3 channels may be in establishment at once (quota in-progress)";
    expect(
        Quota {
            in_progress: 3,
            ..base
        },
        3,
        most,
    );
    let most = "at most 2 channels may be opened in a second (quota set-ups)";
    expect(
        Quota {
            opens_per_second: 2,
            ..base
        },
        3,
        most,
    );
    expect(
        Quota {
            mmax: Bytes(999),
            ..base
        },
        0,
        "mmax is at most 999B, not 1000B (quota mmax)",
    );
    let rates = "all channels together have at most 1 Mbit/s (125 kB/s), and would have 1.6 Mbit/s \
                 (200 kB/s) (quota rate)";
    expect(
        Quota {
            rate: Amount(1_000_000),
            ..base
        },
        1,
        rates,
    );
    let bursts =
        "the bursts of all channels have at most 3000B, and would have 4000B (quota burst)";
    expect(
        Quota {
            burst: Bytes(3_000),
            ..base
        },
        1,
        bursts,
    );
}

#[test]
fn a_neighbour_with_a_quota_of_its_own_has_that_one_and_others_have_theirs() {
    let few = Quota {
        channels: 1,
        ..Policy::default().neighbour
    };
    let policy = Policy {
        named: [(host("a"), few)].into(),
        ..Policy::default()
    };
    let mut r = Machine::with("r", policy.clone());
    r.connect("a");
    r.connect("c");
    let ask = |r: &mut Machine, number: u8, by: &str| {
        r.receive(by, establish(number, "r", 30, &[(by, 4)]));
        r.count()
    };
    assert_eq!([ask(&mut r, 1, "a"), ask(&mut r, 2, "a")], [1, 1]);
    assert_eq!([ask(&mut r, 3, "c"), ask(&mut r, 4, "c")], [2, 3]);
    // A new policy ends nothing, and decides on the next channel.
    r.machine.set_policy(Policy {
        named: [(host("c"), few)].into(),
        ..policy
    });
    assert_eq!([ask(&mut r, 5, "c"), ask(&mut r, 6, "a")], [3, 4]);
}

#[test]
fn a_quota_is_free_again_after_the_channels() {
    let quota = Quota {
        channels: 2,
        ..Policy::default().neighbour
    };
    let policy = Policy {
        neighbour: quota,
        ..Policy::default()
    };
    let mut r = Machine::with("r", policy);
    r.connect("a");
    for round in 0..20 {
        let number = round + 1;
        let actions = r.receive("a", establish(number, "r", 30, &[("a", 4)]));
        assert!(matches!(&actions[..], [Action::Hold { .. }]), "{actions:?}");
        if round % 2 == 0 {
            r.held(u64::from(round), 5, None);
            r.relaxed(u64::from(round));
        }
        r.receive("a", close(number, "a", "done"));
    }
    assert_eq!(r.count(), 0);
}

#[test]
fn a_host_has_a_bounded_number_of_neighbours() {
    let policy = Policy {
        neighbours: 2,
        ..Policy::default()
    };
    let mut r = Machine::with("r", policy);
    r.connect("a");
    r.connect("b");
    let reason = Reason::new("there are 2 neighbours already");
    let neighbour = host("c");
    let actions = r.take(Event::Connected {
        neighbour: neighbour.clone(),
    });
    assert_eq!(actions, [Action::Disconnect { neighbour, reason }]);
    r.receive("a", establish(1, "d", 30, &[("a", 4)]));
    let why = refusal("r", "there are 2 neighbours already", None);
    assert_eq!(r.held(0, 5, Some("d")), [release(0), refused("a", 1, why)]);
}
