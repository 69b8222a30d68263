//! Tests of the requests that `netnice top` repeats. The response to `Watch` has the latest reading
//! of the counters if it is new enough for the client, else a new reading. The response to
//! `Connections` lists the connections of a target for their owner and for privileged users.

use std::net::SocketAddr;

use netnice_api::{Connections, Watch, WatchDoc};
use netnice_kernel::connections::Connection;
use netnice_kernel::enforce::{DirectionCounts, Sample, TargetCounts};

use super::*;

fn watch(fixture: &mut Fixture, within_ms: u64) -> WatchDoc {
    let watch = Watch {
        within_ns: within_ms * 1_000_000,
    };
    match fixture.ask(&ANN, Request::Watch(watch), None) {
        Response::Watched(doc) => doc,
        other => panic!("{other:?}"),
    }
}

/// Sets the counters of each target to `bytes` sent, in packets of 1000 bytes.
fn sent(fixture: &mut Fixture, bytes: u64) {
    let ids: Vec<u32> = fixture
        .service
        .ledger()
        .held()
        .map(|held| held.id)
        .collect();
    let mut counts = TargetCounts::default();
    counts.directions[0] = DirectionCounts {
        offered_packets: bytes / 1000,
        offered_bytes: bytes,
        sent_packets: bytes / 1000,
        sent_bytes: bytes,
        overlimits: bytes / 2000,
        ..DirectionCounts::default()
    };
    fixture.machine().sample = Sample {
        targets: ids.into_iter().map(|id| (id, counts)).collect(),
        ..Sample::default()
    };
}

#[test]
fn clients_that_poll_share_the_readings_of_the_tick() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(7, 0);
    fixture.machine().fork(7, 8);
    fixture.set("pid:7", "up 4mbit");
    fixture.set("pid:8", "up 8mbit down 1mbit");
    sent(&mut fixture, 0);
    let first = watch(&mut fixture, 1500);
    assert_eq!(
        first.at_ns, fixture.now.monotonic.0,
        "without an earlier reading, it is read now"
    );
    let names: Vec<&str> = first.targets.iter().map(|t| t.target.as_str()).collect();
    assert_eq!(names, ["pid:7", "pid:8"]);
    assert_eq!(first.targets[1].inside, Some(0));
    assert_eq!(
        first.targets[1].up,
        Some(4_000_000),
        "what holds, not what was asked"
    );
    assert_eq!(first.targets[1].down, Some(1_000_000));
    assert!(first.targets[0].sends.is_zero());

    sent(&mut fixture, 500_000);
    fixture.advance(1);
    let read_at = fixture.now.monotonic.0;
    fixture.now.monotonic = fixture.now.monotonic.after(Nanos::from_millis(900));
    sent(&mut fixture, 900_000);
    let second = watch(&mut fixture, 1500);
    assert_eq!(second.at_ns, read_at, "0.9 s are new enough");
    assert_eq!(second.targets[0].sends.rate, 4_000_000);
    assert_eq!(second.targets[0].sends.held, 250);
    let third = watch(&mut fixture, 300);
    assert_eq!(third.at_ns, fixture.now.monotonic.0, "0.9 s are too old");
    assert_eq!(third.targets[0].sends.rate, 400_000 * 8 * 10 / 9);
}

#[test]
fn connections_are_shown_to_their_owner_and_to_privileged_users() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(7, 1000);
    fixture.machine().spawn(9, 0);
    fixture.set("pid:7", "up 4mbit");
    let peer: SocketAddr = "203.0.113.9:443".parse().expect("an address");
    let connection = |inode, uid, sent| Connection {
        inode,
        cookie: inode,
        uid,
        protocol: "tcp",
        local: "10.0.0.2:40000".parse().expect("an address"),
        peer: Some(peer),
        state: Some("established"),
        sent: Some(sent),
        received: Some(1),
        cgroup: None,
    };
    fixture.machine().connections = vec![
        (7, connection(1, 1000, 5)),
        (7, connection(2, 0, 9)),
        (7, connection(3, 1000, 7)),
        (9, connection(4, 0, 99)),
    ];
    let mut ask_for =
        |peer: &Peer, what: Connections| fixture.ask(peer, Request::Connections(what), None);
    let inodes = |response: Response| match response {
        Response::Connections(doc) => {
            let inodes: Vec<u64> = doc.connections.iter().map(|c| c.inode).collect();
            (inodes, doc.of_others)
        }
        other => panic!("{other:?}"),
    };
    let mut host = |peer: &Peer| {
        let target = Connections::HOST.to_owned();
        ask_for(peer, Connections { target, own: true })
    };
    assert_eq!(inodes(host(&Peer::ROOT)), (vec![4, 2, 3, 1], 0));
    assert_eq!(inodes(host(&ANN)), (vec![3, 1], 2));
    let mut ask = |peer: &Peer, target: &str| {
        let target = target.to_owned();
        ask_for(peer, Connections { target, own: false })
    };
    assert_eq!(inodes(ask(&Peer::ROOT, "pid:7")), (vec![2, 3, 1], 0));
    assert_eq!(inodes(ask(&ANN, "pid:7")), (vec![3, 1], 1));
    assert!(
        matches!(ask(&ANN, "pid:9"), Response::Failed(_)),
        "it is no target"
    );
    assert!(matches!(ask(&ANN, "nonsense"), Response::Failed(failed) if failed.bad_usage));
}

#[test]
fn targets_of_processes_have_a_command_and_a_user() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    fixture.machine().groups.insert("/g".to_owned(), 5);
    ok(fixture.set("pid:10", "up 4mbit"));
    ok(fixture.set("cgroup:/g", "up 4mbit"));
    let shown = |fixture: &mut Fixture| -> Vec<(Option<String>, Option<String>)> {
        let targets = fixture.show().targets.into_iter();
        targets.map(|it| (it.command, it.user)).collect()
    };
    let command = |name: &str| (Some(name.to_owned()), Some("user 1000".to_owned()));
    assert_eq!(shown(&mut fixture), [(None, None), command("p10")]);
    // It becomes another program.
    let living = fixture.machine().processes.get_mut(&10);
    living.expect("a process").process.name = "rsync".to_owned();
    fixture.advance(6);
    assert_eq!(shown(&mut fixture)[1], command("rsync"));
    let watch = Watch { within_ns: 0 };
    let watched = fixture.ask(&Peer::ROOT, Request::Watch(watch), None);
    let Response::Watched(watched) = watched else {
        panic!("{watched:?}");
    };
    assert_eq!(watched.targets[1].command.as_deref(), Some("rsync"));
}

#[test]
fn udp_sockets_have_the_bytes_that_were_counted() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(7, 1000);
    let socket = Connection {
        inode: 1,
        cookie: 40,
        uid: 1000,
        protocol: "udp",
        local: "10.0.0.2:40000".parse().expect("an address"),
        peer: None,
        state: None,
        sent: None,
        received: None,
        cgroup: None,
    };
    fixture.machine().connections = vec![(7, socket)];
    let bytes = |fixture: &mut Fixture| {
        let target = "pid:7".to_owned();
        let request = Request::Connections(Connections { target, own: true });
        match fixture.ask(&ANN, request, None) {
            Response::Connections(doc) => [doc.connections[0].sent, doc.connections[0].received],
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(bytes(&mut fixture), [None, None], "nothing is counted");
    let counted = crate::programs::Snapshot {
        datagrams: [(40, [500, 60]), (41, [1, 1])].into(),
        ..Default::default()
    };
    fixture
        .service
        .set_counted(Some(std::sync::Arc::new(counted)));
    assert_eq!(bytes(&mut fixture), [Some(500), Some(60)]);
    fixture.service.set_counted(None);
    assert_eq!(
        bytes(&mut fixture),
        [None, None],
        "nothing is counted any more"
    );
}
