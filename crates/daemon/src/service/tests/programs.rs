//! Tests of the response to `Programs`: the response to a user lists the programs of that user and
//! has a sum of the others, and the total is complete in the response to each user.

use netnice_api::{ProgramsDoc, TrafficSum};
use netnice_kernel::usage::Counts;

use super::*;
use crate::ledger::ProcessId;
use crate::programs::{Moved, ProgramTraffic, Snapshot};

fn moved(all: u64, recent: u64) -> Moved {
    let counts = |bytes: u64| Counts {
        bytes: [bytes, 0],
        packets: [1, 0],
    };
    Moved {
        all: counts(all),
        recent: counts(recent),
    }
}

fn program(pid: u32, uid: u32, moved: Moved) -> ProgramTraffic {
    ProgramTraffic {
        process: ProcessId { pid, started: 5 },
        uid,
        command: format!("program{pid}"),
        cgroup: Some("/system.slice/web.service/inner".to_owned()),
        moved,
        connections: 1,
        ended: false,
    }
}

/// Two programs of ann, one of root; all other kinds of traffic, of both.
fn snapshot() -> Snapshot {
    Snapshot {
        at: Instant(7),
        interval: Nanos::from_secs(2),
        programs: vec![
            program(10, ANN.uid, moved(100, 0)),
            program(11, 0, moved(1_000, 500)),
            program(12, ANN.uid, moved(10, 10)),
        ],
        ended: vec![(ANN.uid, 3, moved(20, 0)), (0, 4, moved(2_000, 0))],
        unknown: moved(30_000, 0),
        overflow: vec![(ANN.uid, moved(40, 0)), (0, moved(4_000, 0))],
        missing: moved(500_000, 0),
        ..Snapshot::default()
    }
}

fn asked(fixture: &mut Fixture, peer: &Peer, snapshot: &Snapshot) -> ProgramsDoc {
    match fixture.service.programs(peer, snapshot) {
        Response::Programs(doc) => doc,
        other => panic!("{other:?}"),
    }
}

fn pids(doc: &ProgramsDoc) -> Vec<u32> {
    doc.list.iter().map(|program| program.pid).collect()
}

#[test]
fn a_user_sees_own_programs_and_one_sum_of_all_others() {
    let mut fixture = Fixture::new();
    let doc = asked(&mut fixture, &ANN, &snapshot());
    assert_eq!(pids(&doc), [12, 10], "those with traffic now come first");
    assert_eq!(doc.list[0].up_rate, 40, "10 bytes in 2 s");
    assert_eq!(doc.ended.up_bytes, 20);
    assert_eq!(doc.overflow.up_bytes, 40);
    assert_eq!(doc.unknown, TrafficSum::default());
    let hidden = 1_000 + 2_000 + 30_000 + 4_000 + 500_000;
    assert_eq!((doc.others.programs, doc.others.up_bytes), (5, hidden));
    assert_eq!(doc.remarks.len(), 1);
    assert!(!doc.remarks[0].contains("root"), "{:?}", doc.remarks);
}

#[test]
fn root_sees_everything_and_the_total_is_the_same_for_all() {
    let mut fixture = Fixture::new();
    let doc = asked(&mut fixture, &Peer::ROOT, &snapshot());
    assert_eq!(pids(&doc), [11, 12, 10]);
    assert_eq!(doc.others, TrafficSum::default());
    assert_eq!(doc.unknown.up_bytes, 30_000);
    assert_eq!(doc.overflow.up_bytes, 504_040);
    assert_eq!(doc.list[0].unit.as_deref(), Some("web.service"));
    let of_ann = asked(&mut fixture, &ANN, &snapshot());
    assert_eq!(doc.total.up_bytes, of_ann.total.up_bytes);
    assert_eq!(doc.total.up_bytes, 537_170);
}

#[test]
fn a_program_is_shown_with_the_target_that_contains_it() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(11, 0);
    fixture.set("pid:11", "up 4mbit");
    let doc = asked(&mut fixture, &Peer::ROOT, &snapshot());
    let targets: Vec<Option<&str>> = doc.list.iter().map(|it| it.target.as_deref()).collect();
    assert_eq!(targets, [Some("pid:11"), None, None]);
}

#[test]
fn the_list_is_bounded_and_its_rest_is_a_sum() {
    let mut fixture = Fixture::new();
    let programs = (1..=1_500).map(|pid| program(pid, ANN.uid, moved(u64::from(pid), 0)));
    let many = Snapshot {
        programs: programs.collect(),
        ..Snapshot::default()
    };
    let doc = asked(&mut fixture, &ANN, &many);
    assert_eq!((doc.list.len(), doc.list[0].pid), (1_000, 1_500));
    assert_eq!(doc.more.programs, 500);
    assert_eq!(doc.total.up_bytes, (1..=1_500).sum::<u64>());
    assert_eq!(doc.total.programs, 1_500);
}

#[test]
fn the_connections_of_a_process_without_a_target_are_listed_for_it_alone() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(11, ANN.uid);
    let request = |target: &str| {
        Request::Connections(netnice_api::Connections {
            target: target.to_owned(),
            own: true,
        })
    };
    match fixture.ask(&ANN, request("pid:11"), None) {
        Response::Connections(doc) => assert_eq!(doc.target, "pid:11"),
        other => panic!("{other:?}"),
    }
    match fixture.ask(&ANN, request("pid:12"), None) {
        Response::Failed(failed) => assert_eq!(failed.text, "process 12 does not exist"),
        other => panic!("{other:?}"),
    }
}
