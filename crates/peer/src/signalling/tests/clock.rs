//! Offsets of clocks.

use super::*;

/// Lets `r` ask `a` for its clock, which is `ahead` of its own; the messages take `forth` and
/// `back` milliseconds.
fn round_trip(r: &mut Machine, ahead: i64, forth: u64, back: u64) {
    round_trip_with(r, ahead, (forth, back), None);
}

/// The same, with what the kernel of `a` states.
fn round_trip_with(
    r: &mut Machine,
    ahead: i64,
    (forth, back): (u64, u64),
    kernel: Option<KernelClock>,
) {
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
        kernel,
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

/// A kernel whose clock is this far ahead of UTC's start.
fn kernel(utc_ahead_ns: i64, error_us: u64) -> Option<KernelClock> {
    Some(KernelClock {
        utc_ahead_ns,
        error_ns: error_us * 1_000,
    })
}

#[test]
fn the_kernels_clocks_count_while_both_are_synchronised_and_better_than_the_round_trips() {
    let mut r = relay();
    let ahead = 1_000_000_000_000;
    let offset = |r: &Machine| {
        let offset = r.machine.clock_offset(&host("a")).expect("measured");
        (offset.source, offset.error)
    };
    // The trips have an error of 20 ms.
    let trips = (ClockSource::RoundTrip, millis(20));
    let theirs = kernel(5_000, 600);
    round_trip_with(&mut r, ahead, (30, 10), theirs);
    assert_eq!(offset(&r), trips);
    r.machine.set_kernel_clock(kernel(ahead + 5_007, 300));
    round_trip_with(&mut r, ahead, (30, 10), None);
    assert_eq!(offset(&r), trips);
    round_trip_with(&mut r, ahead, (30, 10), theirs);
    // Both errors, and 41 ms of growth at 500 ppm.
    let error = Nanos(600_000 + 300_000 + 20_500);
    assert_eq!(offset(&r), (ClockSource::Kernel, error));
    let found = r.machine.clock_offset(&host("a")).expect("measured");
    assert_eq!(found.ahead_ns, ahead + 7);
    // With a shorter trip the round trips are better, and after the end of the synchronisation
    // they are all that is left.
    round_trip_with(&mut r, ahead, (0, 1), theirs);
    assert_eq!(offset(&r), (ClockSource::RoundTrip, Nanos(500_000)));
    for _ in 0..8 {
        round_trip_with(&mut r, ahead, (30, 10), None);
    }
    assert_eq!(offset(&r), trips);
}

#[test]
fn impossible_statements_of_a_kernel_saturate() {
    let mut r = relay();
    r.machine.set_kernel_clock(kernel(i64::MAX, 0));
    let theirs = KernelClock {
        utc_ahead_ns: i64::MIN,
        error_ns: 0,
    };
    round_trip_with(&mut r, 0, (1, 1), Some(theirs));
    let offset = r.machine.clock_offset(&host("a")).expect("measured");
    assert_eq!(offset.ahead_ns, i64::MAX);
    let theirs = KernelClock {
        error_ns: u64::MAX,
        ..theirs
    };
    round_trip_with(&mut r, 0, (1, 1), Some(theirs));
    let offset = r.machine.clock_offset(&host("a")).expect("measured");
    assert_eq!(
        (offset.source, offset.ahead_ns),
        (ClockSource::RoundTrip, 0)
    );
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
        kernel: None,
    };
    assert_eq!(actions, [sent("a", Message::ClockAnswer(answer))]);
    let kernel = kernel(7, 1);
    r.machine.set_kernel_clock(kernel);
    let actions = r.receive("a", Message::ClockAsk(ClockAsk { sent_ns: 5 }));
    let answer = ClockAnswer { kernel, ..answer };
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
            kernel: None,
        },
        ClockAnswer {
            asked_ns: u64::MAX,
            received_ns: 5,
            answered_ns: 5,
            kernel: None,
        },
        ClockAnswer {
            asked_ns: 5_000_001_000,
            received_ns: 5,
            answered_ns: 4,
            kernel: None,
        },
        ClockAnswer {
            asked_ns: 5_000_001_000,
            received_ns: 0,
            answered_ns: u64::MAX,
            kernel: None,
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
