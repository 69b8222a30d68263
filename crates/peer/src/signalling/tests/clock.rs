//! Offsets of clocks.

use super::*;

/// Lets `r` ask `a` for its clock, which is `ahead` of its own; the messages take `forth` and
/// `back` milliseconds.
fn round_trip(r: &mut Machine, ahead: i64, forth: u64, back: u64) {
    r.receive("a", refresh(&[1]));
    r.receive("b", refresh(&[1]));
    let is_question = |action: Action| match action {
        Action::Send {
            neighbour,
            message: Message::ClockAsk(ask),
        } if neighbour == host("a") => Some(ask.sent_ns),
        _ => None,
    };
    let asked_ns = loop {
        let next = r.machine.poll_timeout().expect("a refresh");
        let actions = r.wait(next.since(r.now));
        if let Some(asked) = actions.into_iter().find_map(is_question) {
            break asked;
        }
    };
    assert_eq!(asked_ns, r.now.0);
    let theirs = |now: Instant| now.0.wrapping_add_signed(ahead);
    r.wait(millis(forth));
    let received_ns = theirs(r.now);
    r.wait(millis(1));
    let answered_ns = theirs(r.now);
    r.wait(millis(back));
    let answer = ClockAnswer {
        asked_ns,
        received_ns,
        answered_ns,
    };
    assert_eq!(r.receive("a", Message::ClockAnswer(answer)), []);
}

#[test]
fn the_offset_is_within_its_error_and_that_of_the_shortest_trip() {
    let mut r = relay();
    assert_eq!(r.machine.clock_offset(&host("a")), None);
    let ahead = 1_000_000_000_000;
    for (forth, back) in [(40, 2), (3, 1), (1, 90)] {
        round_trip(&mut r, ahead, forth, back);
        let offset = r.machine.clock_offset(&host("a")).expect("measured");
        let wrong = offset.ahead_ns.abs_diff(ahead);
        assert!(wrong <= offset.error.0, "{offset:?}");
    }
    let offset = r.machine.clock_offset(&host("a")).expect("measured");
    assert_eq!(offset.error, millis(2));
    assert_eq!(offset.ahead_ns, ahead + 1_000_000);
    // Eight later trips displace it.
    for _ in 0..8 {
        round_trip(&mut r, ahead, 10, 10);
    }
    let offset = r.machine.clock_offset(&host("a")).expect("measured");
    assert_eq!((offset.error, offset.ahead_ns), (millis(10), ahead));
}

#[test]
fn a_question_is_answered_by_the_own_clock() {
    let mut r = relay();
    let now = r.now.0;
    let actions = r.receive("a", Message::ClockAsk(ClockAsk { sent_ns: 5 }));
    let answer = ClockAnswer {
        asked_ns: 5,
        received_ns: now,
        answered_ns: now,
    };
    assert_eq!(actions, [sent("a", Message::ClockAnswer(answer))]);
}

#[test]
fn a_reply_without_a_question_or_with_impossible_times_disconnects_its_sender() {
    let text = "a breaks the protocol: it replies to a question about its clock that is not open";
    let answers = [
        ClockAnswer {
            asked_ns: 0,
            received_ns: 5,
            answered_ns: 5,
        },
        ClockAnswer {
            asked_ns: u64::MAX,
            received_ns: 5,
            answered_ns: 5,
        },
        ClockAnswer {
            asked_ns: 5_000_001_000,
            received_ns: 5,
            answered_ns: 4,
        },
        ClockAnswer {
            asked_ns: 5_000_001_000,
            received_ns: 0,
            answered_ns: u64::MAX,
        },
    ];
    for answer in answers {
        let mut r = relay();
        r.wait(REFRESH);
        let actions = r.receive("a", Message::ClockAnswer(answer));
        let reason = Reason::new(text);
        assert_eq!(
            actions[0],
            Action::Disconnect {
                neighbour: host("a"),
                reason
            }
        );
    }
}
