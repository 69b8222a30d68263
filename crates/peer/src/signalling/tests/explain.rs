//! Questions about how long the hosts of a channel keep its messages.

use super::network::{Faults, Network, State, counts_of};
use super::*;

fn ask(number: u8, question: u64) -> Message {
    let channel = id(number);
    Message::ReportAsk(ReportAsk { channel, question })
}

fn answer(number: u8, question: u64, hops: Vec<HopReport>) -> Message {
    let channel = id(number);
    Message::ReportAnswer(ReportAnswer {
        channel,
        question,
        hops,
    })
}

/// The report of a host that has passed so many messages.
fn counted(name: &str, messages: usize) -> HopReport {
    HopReport {
        host: host(name),
        counted: Counted::Counts(counts_of(messages)),
    }
}

fn unknown_report(name: &str, text: &str) -> HopReport {
    HopReport {
        host: host(name),
        counted: Counted::Unknown(Reason::new(text)),
    }
}

fn count(question: u64) -> Action {
    let (question, hold) = (QuestionId(question), HoldId(0));
    Action::Count { question, hold }
}

fn explained(question: u64, hops: Vec<HopReport>) -> Action {
    Action::Explained {
        question: QuestionId(question),
        channel: id(1),
        hops,
    }
}

impl Machine {
    /// The host has counted this for a question.
    fn counted(&mut self, question: u64, messages: usize) -> Vec<Action> {
        let question = QuestionId(question);
        let counted = Counted::Counts(counts_of(messages));
        self.take(Event::Counted { question, counted })
    }

    fn explain(&mut self, number: u8) -> Vec<Action> {
        let asked = self.machine.explain(id(number), self.now);
        asked.expect("is asked");
        self.drain()
    }
}

#[test]
fn a_question_is_passed_on_and_answered_with_all_hosts_on_that_side() {
    let mut r = relay();
    // From the source: to the sink.
    let actions = r.receive("a", ask(1, 70));
    assert_eq!(actions, [count(0), sent("b", ask(1, 0))]);
    assert_eq!(r.counted(0, 2), []);
    let actions = r.receive("b", answer(1, 0, vec![counted("b", 3)]));
    let both = vec![counted("r", 2), counted("b", 3)];
    assert_eq!(actions, [sent("a", answer(1, 70, both))]);
    // From the sink: to the source, which answers before this host has counted.
    let actions = r.receive("b", ask(1, 80));
    assert_eq!(actions, [count(1), sent("a", ask(1, 1))]);
    assert_eq!(r.receive("a", answer(1, 1, vec![counted("a", 1)])), []);
    let both = vec![counted("r", 2), counted("a", 1)];
    assert_eq!(r.counted(1, 2), [sent("b", answer(1, 80, both))]);
    // Of a program here: to both.
    let actions = r.explain(1);
    assert_eq!(
        actions,
        [count(2), sent("a", ask(1, 2)), sent("b", ask(1, 2))]
    );
    r.counted(2, 2);
    r.receive("b", answer(1, 2, vec![counted("b", 3)]));
    let all = vec![counted("a", 1), counted("r", 2), counted("b", 3)];
    let actions = r.receive("a", answer(1, 2, vec![counted("a", 1)]));
    assert_eq!(actions, [explained(2, all)]);
    assert_eq!((r.machine.questions(), r.machine.ignored()), (0, 0));
}

#[test]
fn a_host_that_does_not_answer_is_named_and_the_rest_is_shown() {
    let mut r = relay();
    r.explain(1);
    r.counted(0, 2);
    r.receive("a", answer(1, 0, vec![counted("a", 1)]));
    let before = r.wait(Nanos(STEP.0 - 1));
    assert_eq!(before, []);
    let silent = unknown_report("b", "it did not answer within 300ms");
    let all = vec![counted("a", 1), counted("r", 2), silent.clone()];
    assert_eq!(r.wait(Nanos(1)), [explained(0, all)]);
    // A late answer changes nothing.
    assert_eq!(r.receive("b", answer(1, 0, vec![counted("b", 3)])), []);
    assert_eq!(r.machine.ignored(), 1);
    // Neither this host's program nor the sink answers a question of the source.
    r.receive("a", ask(1, 7));
    let own = unknown_report("r", "its program did not answer within 300ms");
    let actions = r.wait(STEP);
    assert_eq!(actions, [sent("a", answer(1, 7, vec![own, silent]))]);
    assert_eq!(r.counted(1, 2), []);
}

#[test]
fn what_a_silent_host_would_have_passed_on_is_unknown_too() {
    let mut source = Machine::beside("s", &["r"]);
    source.open(1, "b", 30);
    source.held(0, 4, Some("r"));
    let bounds = [("s", 9), ("r", 10), ("b", 11)];
    source.receive("r", established(1, "r", &bounds));
    source.relaxed(0);
    source.explain(1);
    source.counted(0, 1);
    // Two hosts are on that side, so it waits twice as long.
    assert_eq!(source.wait(Nanos(2 * STEP.0 - 1)), []);
    let all = vec![
        counted("s", 1),
        unknown_report("r", "it did not answer within 600ms"),
        unknown_report(
            "b",
            "r, which would have to ask it, has sent no report of it",
        ),
    ];
    assert_eq!(source.wait(Nanos(1)), [explained(0, all)]);
    source.explain(1);
    source.counted(1, 1);
    let all = vec![
        counted("s", 1),
        counted("r", 2),
        unknown_report(
            "b",
            "r, which would have to ask it, has sent no report of it",
        ),
    ];
    let actions = source.receive("r", answer(1, 1, vec![counted("r", 2)]));
    assert_eq!(actions, [explained(1, all)]);
}

#[test]
fn a_report_of_other_hosts_disconnects_its_sender() {
    let wrong = [
        vec![counted("a", 1)],
        vec![counted("b", 1), counted("a", 1)],
        vec![counted("b", 1), counted("b", 1)],
    ];
    for hops in wrong {
        let mut r = relay();
        r.explain(1);
        let actions = r.receive("b", answer(1, 0, hops));
        let channel = id(1);
        let text = format!(
            "b breaks the protocol: its report of channel {channel} names other hosts than it has"
        );
        let (neighbour, reason) = (host("b"), Reason::new(&text));
        assert_eq!(
            actions.first(),
            Some(&Action::Disconnect { neighbour, reason })
        );
        // The program is told that there is no answer.
        let question = QuestionId(0);
        let told = |action: &Action| matches!(action, Action::NotExplained { question: one, .. } if *one == question);
        assert!(actions.iter().any(told), "{actions:?}");
        assert_eq!(r.machine.questions(), 0);
    }
}

#[test]
fn only_the_neighbours_of_a_channel_are_answered_and_only_they_answer() {
    let mut r = relay();
    r.connect("e");
    for number in [1, 9] {
        assert_eq!(r.receive("e", ask(number, 0)), []);
    }
    assert_eq!(r.receive("a", ask(9, 0)), []);
    r.explain(1);
    // Another neighbour, another channel, another question.
    assert_eq!(r.receive("e", answer(1, 0, vec![counted("b", 9)])), []);
    assert_eq!(r.receive("b", answer(9, 0, vec![counted("b", 9)])), []);
    assert_eq!(r.receive("b", answer(1, 1, vec![counted("b", 9)])), []);
    assert_eq!((r.machine.ignored(), r.machine.questions()), (6, 1));
    // A second answer is ignored, too.
    r.receive("b", answer(1, 0, vec![counted("b", 3)]));
    r.receive("b", answer(1, 0, vec![counted("b", 4)]));
    assert_eq!(r.machine.ignored(), 7);
    // A channel that is not established yet has nothing to report.
    let mut r = Machine::beside("r", &["a", "b"]);
    r.receive("a", establish(1, "b", 30, &[("a", 4)]));
    assert_eq!(r.receive("a", ask(1, 0)), []);
    assert_eq!(r.machine.ignored(), 1);
    let error = r
        .machine
        .explain(id(1), r.now)
        .expect_err("not established");
    assert!(
        error.to_string().contains("is not established yet"),
        "{error}"
    );
    let error = r.machine.explain(id(2), r.now).expect_err("no channel");
    assert!(error.to_string().contains("does not exist"), "{error}");
}

#[test]
fn open_questions_are_bounded_and_end_by_themselves() {
    let mut r = relay();
    let most = MOST_OF_NEIGHBOUR as u64;
    for question in 0..most {
        assert_eq!(r.receive("a", ask(1, question)).len(), 2);
    }
    let text = format!("{most} questions of a are open: ask later");
    let busy = answer(1, 99, vec![unknown_report("r", &text)]);
    assert_eq!(r.receive("a", ask(1, 99)), [sent("a", busy)]);
    // Those of others are not fewer for that.
    assert_eq!(r.receive("b", ask(1, 0)).len(), 2);
    for _ in 0..MOST_OF_PROGRAMS {
        r.explain(1);
    }
    let error = r.machine.explain(id(1), r.now);
    assert_eq!(error, Err(ExplainError::TooMany));
    assert_eq!(
        r.machine.questions(),
        MOST_OF_NEIGHBOUR + 1 + MOST_OF_PROGRAMS
    );
    let actions = r.wait(STEP);
    assert_eq!((r.machine.questions(), r.count()), (0, 1));
    assert_eq!(actions.len(), MOST_OF_NEIGHBOUR + 1 + MOST_OF_PROGRAMS);
    assert_eq!(r.receive("a", ask(1, 0)).len(), 2);
}

#[test]
fn the_end_of_a_channel_ends_its_questions() {
    let mut r = relay();
    r.receive("a", ask(1, 3));
    r.explain(1);
    let actions = r.receive("b", close_back(1, "b", "the listener ended"));
    let reason = Reason::new("the channel has just ended: b: the listener ended");
    let question = QuestionId(1);
    let told = Action::NotExplained { question, reason };
    assert_eq!(actions.iter().filter(|action| **action == told).count(), 1);
    let answers = |action: &Action| {
        matches!(
            action,
            Action::Send {
                message: Message::ReportAnswer(_),
                ..
            }
        )
    };
    assert!(!actions.iter().any(answers), "{actions:?}");
    assert_eq!(r.machine.questions(), 0);
    assert_eq!(r.wait(STEP), []);
}

/// Channels over lines of 2 to 9 hosts, asked for at each host, while all hosts run, and while one
/// is stopped: every running host gets an answer in time, with what can be reached from it.
#[test]
fn every_host_of_a_line_gets_the_reports_of_all_that_can_be_reached() {
    let faults = Faults {
        delay: millis(2),
        ..Faults::default()
    };
    for count in 2..10 {
        let mut network = Network::new(count, faults, 7);
        let sink = format!("h{}", count - 1);
        network.open(0, request(1, &sink, millis(500)));
        network.run(Nanos::from_secs(1));
        for stopped in [None, Some(count / 2)] {
            if let Some(stopped) = stopped {
                network.stop(stopped);
            }
            let asked: Vec<_> = (0..count).map(|at| network.explain(at, id(1))).collect();
            network.run(Nanos(STEP.0 * count as u64));
            for (at, question) in asked.into_iter().enumerate() {
                match question {
                    Some(question) => check_reports(&mut network, at, question, stopped),
                    None => assert_eq!(network.hosts[at].state, State::Stopped),
                }
            }
        }
        assert_eq!(network.violations, [""; 0]);
    }
}

/// Checks the answer that a host of a line has got.
fn check_reports(network: &mut Network, at: usize, question: QuestionId, stopped: Option<usize>) {
    let answer = network.hosts[at].answers.remove(&question);
    let hops = answer.expect("an answer").expect("the reports");
    assert_eq!(hops.len(), network.hosts.len());
    for (other, report) in hops.iter().enumerate() {
        assert_eq!(report.host.as_str(), format!("h{other}"));
        let mut between = at.min(other)..=at.max(other);
        let is_reached = stopped.is_none_or(|stopped| between.all(|one| one != stopped));
        match &report.counted {
            Counted::Counts(counts) => {
                assert!(is_reached);
                assert_eq!(*counts, counts_of(other));
            }
            Counted::Unknown(reason) => assert!(!is_reached, "{at} {other}: {reason}"),
        }
    }
}
