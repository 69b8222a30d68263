//! What is told of flows and of drivers.

use netnice_core::target::Target;

use super::*;
use crate::direct::tell::What;

/// What `netnice explain` says of a target.
fn explained(stage: &mut Stage, target: &str) -> Vec<String> {
    let target: Target = target.parse().expect("a target");
    let (reply, mut answer) = oneshot::channel();
    let what = What::Explain(target, None);
    stage
        .flows
        .tell(&mut stage.clerk, Peer::ROOT, what, reply, stage.now);
    stage.pump();
    match answer.try_recv().expect("an answer").response {
        Response::Explained(page) => page.lines,
        other => panic!("{other:?}"),
    }
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
        stage.clerk.obey(&path, stage.now);
        std::fs::remove_file(&path).expect("it was there");
        stage.flows.settle_all(&mut stage.clerk, stage.now);
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
    // A file that cannot be read changes nothing, nor does a daemon that starts anew.
    stage.driver.discards = None;
    obey(&mut stage, "discard = [\"port 53\"]");
    assert_eq!(stage.driver.discards, None);
    stage.restart();
    assert_eq!(stage.driver.discards, Some(told));
    obey(&mut stage, "");
    assert_eq!(stage.driver.discards, Some(Vec::new()));
    // Who has nothing to do is told nothing; who has is, whoever told it.
    stage.driver.discards = None;
    stage.restart();
    assert_eq!(stage.driver.discards, None);
    stage.driver.discards = Some(vec![Vec::new()]);
    stage.restart();
    assert_eq!(stage.driver.discards, Some(Vec::new()));
    drop(seat);
}
