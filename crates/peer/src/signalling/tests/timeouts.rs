//! How long holds and channels last, and which programs and neighbours are told of their end.

use super::*;

#[test]
fn a_hold_that_is_not_confirmed_ends_after_5_s() {
    let mut r = Machine::beside("r", &["a", "b"]);
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    r.held(0, 5, Some("b"));
    assert_eq!(r.wait(Nanos(HELD.0 - 1)), []);
    let text = "b did not answer within 5s";
    let expected = [
        release(0),
        sent("b", close(1, "r", text)),
        refused("a", 1, refusal("r", text, None)),
    ];
    assert_eq!(r.wait(Nanos(1)), expected);
    // The reply comes too late. The neighbour is told, so that it releases its hold.
    let late = established(1, "b", &[("a", 9), ("r", 10), ("b", 11)]);
    let text = "the channel does not exist here, or has ended";
    assert_eq!(r.receive("b", late), [sent("b", close(1, "r", text))]);
    assert_eq!(r.count(), 0);
}

#[test]
fn a_hold_ends_after_5_s_in_every_stage() {
    let expect = |mut r: Machine, text: &str| {
        let actions = r.wait(HELD);
        assert!(actions.contains(&release(0)), "{actions:?}");
        let why = refused("a", 1, refusal("r", text, None));
        assert!(actions.contains(&why), "{actions:?}");
        // A host that was not asked is not told.
        let to_c =
            |one: &Action| matches!(one, Action::Send { neighbour, .. } if *neighbour == host("c"));
        assert!(!actions.iter().any(to_c), "{actions:?}");
        assert_eq!(r.count(), 0);
    };
    let holding = || {
        let mut r = Machine::beside("r", &["a", "b"]);
        r.receive("a", establish(1, "b", 30, &[("a", 4)]));
        r
    };
    expect(holding(), "this host did not find a bound within 5s");
    let mut connecting = holding();
    connecting.held(0, 5, Some("c"));
    expect(connecting, "c did not answer within 5s");
    let mut relaxing = holding();
    relaxing.held(0, 5, Some("b"));
    relaxing.receive("b", established(1, "b", &[("a", 9), ("r", 10), ("b", 11)]));
    expect(relaxing, "this host did not change its bound within 5s");
}

#[test]
fn a_channel_that_both_neighbours_name_every_5_s_lasts() {
    let mut r = relay();
    for _ in 0..100 {
        let actions = r.wait(REFRESH);
        let to = |name: &str| actions.contains(&sent(name, refresh(&[1])));
        assert!(to("a") && to("b"), "{actions:?}");
        r.receive("a", refresh(&[1]));
        r.receive("b", refresh(&[1]));
    }
    assert_eq!(r.count(), 1);
}

#[test]
fn a_channel_that_a_neighbour_does_not_name_for_15_s_ends_on_both_sides() {
    let mut r = relay();
    r.wait(millis(4_000));
    r.receive("b", refresh(&[1]));
    r.wait(millis(6_000));
    r.receive("a", refresh(&[1]));
    // b names other channels only: it has forgotten this one.
    r.receive("b", refresh(&[]));
    r.wait(millis(8_999));
    assert_eq!(r.count(), 1);
    let actions = r.wait(millis(1));
    let text = "b has not refreshed it for 15s";
    let expected = [
        release(0),
        sent("b", close(1, "r", text)),
        sent("a", close_back(1, "r", text)),
    ];
    assert_eq!(actions, expected);
}

#[test]
fn an_end_passes_to_the_other_side_with_its_host_and_reason() {
    let mut r = relay();
    let end = close_back(1, "b", "the listener ended");
    assert_eq!(
        r.receive("b", end.clone()),
        [release(0), sent("a", end.clone())]
    );
    let mut r = relay();
    let back = close(1, "a", "the program has closed it");
    assert_eq!(r.receive("a", back.clone()), [release(0), sent("b", back)]);
    // Again: nothing is there any more, and nothing is replied, so two hosts cannot reply for ever.
    assert_eq!(r.receive("b", end), []);
    assert_eq!(r.machine.ignored(), 1);
}

#[test]
fn a_broken_connection_ends_the_channels_of_that_neighbour_at_once() {
    let mut r = relay();
    r.connect("c");
    r.receive("c", establish(2, "a", 30, &[("c", 4)]));
    r.held(1, 5, Some("a"));
    let reason = Reason::new("connection reset");
    let actions = r.take(Event::Disconnected {
        neighbour: host("b"),
        reason,
    });
    let text = "the connection to b has ended: connection reset";
    assert_eq!(actions, [release(0), sent("a", close_back(1, "r", text))]);
    assert_eq!(r.count(), 1);
}

#[test]
fn a_new_connection_ends_the_channels_of_the_one_before_and_asks_again_for_the_others() {
    let mut r = relay();
    // Two channels towards a: one is not answered yet, and one is.
    for number in [2, 3] {
        r.receive("b", establish(number, "a", 30, &[("b", 4)]));
        r.held(u64::from(number) - 1, 5, Some("a"));
    }
    let answer = established(3, "a", &[("b", 9), ("r", 10), ("a", 11)]);
    r.receive("a", attempt(2, answer));
    let hello = |name: &str| Message::Hello(Hello { host: host(name) });
    let neighbour = host("a");
    let actions = r.take(Event::Connected { neighbour });
    let text = "a has made a new connection";
    let expected = [
        release(0),
        sent("b", close(1, "r", text)),
        release(2),
        refused("b", 3, refusal("r", text, None)),
        sent("a", hello("r")),
    ];
    assert_eq!(actions, expected);
    let again = attempt(1, establish(2, "a", 30, &[("b", 4), ("r", 5)]));
    assert_eq!(r.receive("a", hello("a")), [sent("a", again)]);
    // Its hold ends when it would have ended.
    let actions = r.wait(HELD);
    assert!(actions.contains(&release(1)), "{actions:?}");
    assert_eq!(r.count(), 0);
}

#[test]
fn programs_at_both_ends_are_told_why_a_channel_ends() {
    let mut a = Machine::beside("a", &["b"]);
    a.open(1, "b", 30);
    a.held(0, 4, Some("b"));
    a.receive("b", established(1, "b", &[("a", 14), ("b", 16)]));
    a.relaxed(0);
    let (channel, reason) = (id(1), Reason::new("the listener ended"));
    let ended = |end, by: &str| Action::Ended {
        channel,
        end,
        host: host(by),
        reason: reason.clone(),
    };
    let actions = a.receive("b", close_back(1, "b", "the listener ended"));
    assert_eq!(actions, [release(0), ended(End::Source, "b")]);
    let mut b = Machine::beside("b", &["a"]);
    b.receive("a", establish(1, "b", 30, &[("a", 4)]));
    b.held(0, 6, None);
    b.relaxed(0);
    let close_it = Event::Close {
        channel,
        reason: reason.clone(),
    };
    let actions = b.take(close_it);
    let message = close_back(1, "b", "the listener ended");
    assert_eq!(
        actions,
        [release(0), ended(End::Sink, "b"), sent("a", message)]
    );
}

#[test]
fn a_lost_hold_ends_the_channel_and_late_reports_of_the_host_change_nothing() {
    let mut r = relay();
    let reason = Reason::new("link eth1 is down");
    let lost = Event::Lost {
        hold: HoldId(0),
        reason: reason.clone(),
    };
    let text = "link eth1 is down";
    assert_eq!(
        r.take(lost.clone()),
        [
            release(0),
            sent("b", close(1, "r", text)),
            sent("a", close_back(1, "r", text)),
        ]
    );
    // The same identifier again is another hold; reports about the first one do not reach it.
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    let not_held = Event::NotHeld {
        hold: HoldId(0),
        reason,
        best: None,
    };
    assert_eq!(r.take(lost), []);
    assert_eq!(r.take(not_held), []);
    assert_eq!(r.held(0, 5, Some("b")), []);
    assert_eq!(r.relaxed(0), []);
    assert_eq!(r.held(1, 5, Some("b")).len(), 1);
}

#[test]
fn unknown_channels_of_a_refresh_are_told_with_a_bound() {
    let mut r = relay();
    let many: Vec<u8> = (2..=255).collect();
    let actions = r.receive("a", refresh(&many));
    assert_eq!(actions.len(), 64);
    assert_eq!(actions[0], sent("a", unknown(2, "r")));
    assert_eq!(r.count(), 1);
}

#[test]
fn an_event_that_waited_for_a_stopped_process_revives_nothing() {
    let mut r = Machine::beside("r", &["a", "b"]);
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    r.held(0, 5, Some("b"));
    r.now = r.now.after(HELD);
    // The reply is in time by the order of events, and late by the clock.
    let reply = established(1, "b", &[("a", 9), ("r", 10), ("b", 11)]);
    let actions = r.receive("b", reply);
    assert_eq!(actions[0], release(0));
    assert_eq!(r.count(), 0);
    // On a new connection, hello comes before everything else.
    r.receive("b", establish(2, "a", 30, &[("b", 4)]));
    r.now = r.now.after(HELD);
    let neighbour = host("b");
    let actions = r.take(Event::Connected { neighbour });
    let hello = Message::Hello(Hello { host: host("r") });
    assert_eq!(actions, [release(1), sent("b", hello)]);
}
