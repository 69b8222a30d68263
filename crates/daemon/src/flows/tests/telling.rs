//! Output about flows and drivers.

use netnice_core::target::Target;

use super::*;
use crate::flows::reports::What;

/// A request as `netnice explain` sends it.
fn explain(stage: &mut Stage, target: &str) -> oneshot::Receiver<Told> {
    let target: Target = target.parse().expect("a target");
    let (reply, answer) = oneshot::channel();
    let what = What::Explain(target, None);
    stage
        .flows
        .tell(&mut stage.service, Peer::ROOT, what, reply, stage.now);
    stage.pump();
    answer
}

/// The lines of the reply.
fn lines(answer: &mut oneshot::Receiver<Told>) -> Vec<String> {
    match answer.try_recv().expect("an answer").response {
        Response::Explained(page) => page.lines,
        other => panic!("{other:?}"),
    }
}

fn explained(stage: &mut Stage, target: &str) -> Vec<String> {
    lines(&mut explain(stage, target))
}

#[test]
fn a_driver_is_told_with_what_it_discarded_who_has_its_frames_and_who_rang_for_nothing() {
    let mut stage = Stage::new();
    let seat = stage.program(&ANN, 8);
    stage.opened(&seat, "10.0.0.2:1", "");
    let page = explained(&mut stage, "direct:eth0").join("\n");
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
fn a_driver_throws_away_what_the_policy_says_and_no_more() {
    let mut stage = Stage::new();
    let path = std::env::temp_dir().join(format!("netnice-{}-discard.toml", std::process::id()));
    let obey = |stage: &mut Stage, lines: &str| {
        let link = "[[link]]\nname = \"eth0\"\nrate = \"100mbit\"\n";
        std::fs::write(&path, format!("{link}{lines}")).expect("a file");
        stage.service.obey(&path, stage.now);
        std::fs::remove_file(&path).expect("it was there");
        stage.flows.settle_all(&mut stage.service, stage.now);
        stage.pump();
    };
    obey(&mut stage, "discard = [\"12=0800\", \"12=88cc\"]");
    assert_eq!(stage.driver.discards, None, "there is no driver yet");
    let seat = stage.program(&ANN, 8);
    let told = stage.driver.discards.clone().expect("told");
    assert_eq!(told.len(), 2);
    let page = explained(&mut stage, "direct:eth0").join("\n");
    let row = "discards   what fits 2 patterns of the policy";
    assert!(page.contains(row), "{page}");
    // Neither an unreadable file nor a restart of the daemon changes the patterns.
    stage.driver.discards = None;
    obey(&mut stage, "discard = [\"port 53\"]");
    assert_eq!(stage.driver.discards, None);
    stage.restart();
    assert_eq!(stage.driver.discards, Some(told));
    obey(&mut stage, "");
    assert_eq!(stage.driver.discards, Some(Vec::new()));
    // A driver that has no patterns and should have none gets no message; a driver with patterns
    // gets one, whichever daemon sent them.
    stage.driver.discards = None;
    stage.restart();
    assert_eq!(stage.driver.discards, None);
    stage.driver.discards = Some(vec![Vec::new()]);
    stage.restart();
    assert_eq!(stage.driver.discards, Some(Vec::new()));
    drop(seat);
}

/// A driver that does not answer yet, and a flow that many requests ask about at once.
fn crowd() -> (Stage, Seat, Vec<oneshot::Receiver<Told>>) {
    let mut stage = Stage::new();
    let seat = stage.program(&ANN, 8);
    stage.opened(&seat, "10.0.0.2:1", "");
    stage.answers = false;
    let asks = (0..100).map(|_| explain(&mut stage, "flow:1")).collect();
    (stage, seat, asks)
}

#[test]
fn of_one_driver_one_census_is_under_way_and_the_next_is_for_all_who_came_meanwhile() {
    let (mut stage, _seat, mut asks) = crowd();
    for told in [1, 99] {
        assert_eq!(stage.unanswered.len(), 1, "{:?}", stage.unanswered);
        let (link, call) = stage.unanswered.remove(0);
        let heard = stage.answer(&call);
        stage
            .flows
            .heard(&mut stage.service, &link, heard, stage.now);
        stage.pump();
        let now = asks.iter_mut().map(oneshot::Receiver::try_recv);
        assert_eq!(now.filter(Result::is_ok).count(), told);
    }
    assert!(stage.unanswered.is_empty(), "{:?}", stage.unanswered);
    stage.answers = true;
    let page = explained(&mut stage, "flow:1").join("\n");
    assert!(page.contains("5 packets"), "{page}");
}

#[test]
fn a_driver_that_is_slow_is_not_asked_again_for_who_has_been_answered_without() {
    let (mut stage, _seat, mut asks) = crowd();
    for _ in 0..20 {
        stage.pass(Nanos::from_secs(1));
        asks.push(explain(&mut stage, "flow:1"));
    }
    stage.pass(Nanos::from_secs(1));
    for ask in &mut asks {
        let page = lines(ask).join("\n");
        assert!(page.contains("did not tell them in time"), "{page}");
    }
    assert_eq!(stage.unanswered.len(), 1, "{:?}", stage.unanswered);
    let waits = stage.flows.lanes[&eth0()].await_census.len();
    assert_eq!(waits, 1, "of all who came, the last");
    stage.answer_late();
    let page = explained(&mut stage, "flow:1").join("\n");
    assert!(page.contains("5 packets"), "{page}");
}

#[test]
fn who_waits_for_the_next_census_hears_of_the_drivers_end() {
    let (mut stage, _seat, mut asks) = crowd();
    let ended = driver::Heard::Ended("it was killed".to_owned());
    stage
        .flows
        .heard(&mut stage.service, &eth0(), ended, stage.now);
    for ask in &mut asks {
        let told = words(&ask.try_recv().expect("an answer").response);
        assert!(told.contains("flow:1 is not open"), "{told}");
    }
    assert!(stage.flows.next_due().is_none(), "nothing is left of them");
}
