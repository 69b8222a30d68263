use netnice_kernel::usage::Creator;
use proptest::prelude::*;

use super::*;

fn at(seconds: u64) -> Instant {
    Instant(0).after(Nanos::from_secs(100 + seconds))
}

fn process(pid: u32) -> ProcessId {
    ProcessId {
        pid,
        started: u64::from(pid) * 7,
    }
}

fn counts(up: u64, down: u64) -> Counts {
    Counts {
        bytes: [up, down],
        packets: [up / 100, down / 100],
    }
}

fn usage(pid: u32, up: u64, down: u64) -> SocketUsage {
    let by = process(pid);
    SocketUsage {
        counts: counts(up, down),
        creator: (pid != 0).then(|| Creator {
            pid: by.pid,
            started: by.started,
            command: format!("program{pid}"),
            made_itself: true,
        }),
        uid: 1000 + pid % 2,
        protocol: 6,
        port: 80,
    }
}

fn reading(seconds: u64, sockets: &[(u64, SocketUsage)]) -> Reading {
    let mut totals = Counts::default();
    for (_, usage) in sockets {
        totals.add(usage.counts);
    }
    Reading {
        at: at(seconds),
        totals,
        sockets: sockets.to_vec(),
        overflow: Vec::new(),
    }
}

fn creator(_: u64, usage: &SocketUsage) -> Option<ProcessId> {
    usage.creator.as_ref().map(|by| ProcessId {
        pid: by.pid,
        started: by.started,
    })
}

fn find(snapshot: &Snapshot, pid: u32) -> &ProgramTraffic {
    let mut programs = snapshot.programs.iter();
    let found = programs.find(|program| program.process.pid == pid);
    found.unwrap_or_else(|| panic!("no program {pid} in {snapshot:?}"))
}

/// All that a snapshot has, of any kind.
fn sum(snapshot: &Snapshot) -> Counts {
    let mut all = Moved::default();
    let parts = snapshot.programs.iter().map(|program| program.moved);
    let parts = parts.chain(snapshot.ended.iter().map(|(_, _, moved)| *moved));
    let parts = parts.chain(snapshot.overflow.iter().map(|(_, moved)| *moved));
    for part in parts.chain([snapshot.unknown, snapshot.missing]) {
        all.add(part);
    }
    all.all
}

#[test]
fn a_program_has_the_traffic_of_its_sockets_and_the_part_of_the_last_interval() {
    let mut accounts = Accounts::new(at(0));
    let first = [
        (1, usage(4, 1000, 0)),
        (2, usage(4, 500, 50)),
        (3, usage(5, 9, 9)),
    ];
    accounts.update(&reading(1, &first), creator);
    let second = [
        (1, usage(4, 4000, 0)),
        (2, usage(4, 500, 50)),
        (3, usage(5, 9, 9)),
    ];
    accounts.update(&reading(3, &second), creator);
    let snapshot = accounts.snapshot();
    assert_eq!(snapshot.interval, Nanos::from_secs(2));
    let four = find(&snapshot, 4);
    assert_eq!(four.moved.all.bytes, [4500, 50]);
    assert_eq!(four.moved.recent.bytes, [3000, 0]);
    assert_eq!((four.command.as_str(), four.connections), ("program4", 2));
    assert_eq!(find(&snapshot, 5).moved.recent, Counts::default());
    assert_eq!(sum(&snapshot).bytes, [4509, 59]);
}

#[test]
fn what_an_ended_program_moved_goes_to_the_sum_of_its_user() {
    let mut accounts = Accounts::new(at(0));
    let sockets = [(1, usage(4, 1000, 0)), (2, usage(6, 100, 0))];
    accounts.update(&reading(1, &sockets), creator);
    accounts.ended(process(4));
    assert!(find(&accounts.snapshot(), 4).ended);
    accounts.update(&reading(2, &sockets), creator);
    assert_eq!(accounts.idle(), [1], "its program has ended");
    // A last packet came between the reading and the removal.
    accounts.close(1, Some(&usage(4, 1040, 0)));
    assert_eq!(find(&accounts.snapshot(), 4).moved.all.bytes, [1040, 0]);
    accounts.update(&reading(3, &sockets[1..]), creator);
    let snapshot = accounts.snapshot();
    assert_eq!(snapshot.programs.len(), 1);
    let [(uid, number, moved)] = snapshot.ended[..] else {
        panic!("{snapshot:?}");
    };
    assert_eq!((uid, number, moved.all.bytes), (1000, 1, [1040, 0]));
    // The kernel sends the rest of a closed socket after its process has ended.
    let late = [(1, usage(4, 60, 0)), sockets[1].clone()];
    accounts.update(&reading(4, &late), creator);
    assert_eq!(sum(&accounts.snapshot()).bytes, [1200, 0]);
}

#[test]
fn a_socket_whose_owner_becomes_known_takes_its_traffic_along() {
    let mut accounts = Accounts::new(at(0));
    let sockets = [(1, usage(0, 700, 0))];
    accounts.update(&reading(1, &sockets), |_, _| None);
    assert_eq!(accounts.snapshot().unknown.all.bytes, [700, 0]);
    accounts.update(&reading(2, &sockets), |_, _| Some(process(8)));
    let snapshot = accounts.snapshot();
    assert_eq!(snapshot.unknown.all.bytes, [0, 0]);
    assert_eq!(find(&snapshot, 8).moved.all.bytes, [700, 0]);
    assert_eq!(
        find(&snapshot, 8).moved.recent.bytes,
        [0, 0],
        "it is not new"
    );
    accounts.update(&reading(3, &sockets), |_, _| Some(process(9)));
    let snapshot = accounts.snapshot();
    assert_eq!(find(&snapshot, 9).moved.all.bytes, [700, 0]);
    assert_eq!(find(&snapshot, 8).moved.all.bytes, [0, 0]);
    // An owner that is not known any more stays.
    accounts.update(&reading(4, &sockets), |_, _| None);
    assert_eq!(find(&accounts.snapshot(), 9).moved.all.bytes, [700, 0]);
}

#[test]
fn packets_without_room_are_counted_by_user_or_as_missing() {
    let mut accounts = Accounts::new(at(0));
    let mut full = reading(1, &[(1, usage(4, 1000, 0))]);
    full.overflow = vec![(1000, counts(300, 0))];
    full.totals = counts(1500, 0);
    accounts.update(&full, creator);
    let snapshot = accounts.snapshot();
    assert_eq!(snapshot.overflow[0].1.recent.bytes, [300, 0]);
    assert_eq!(snapshot.missing.all.bytes, [200, 0]);
    assert_eq!(sum(&snapshot).bytes, [1500, 0]);
    full.at = at(2);
    accounts.update(&full, creator);
    assert_eq!(accounts.snapshot().missing.recent.bytes, [0, 0]);
    assert_eq!(sum(&accounts.snapshot()).bytes, [1500, 0]);
}

#[test]
fn a_count_that_falls_for_a_moment_is_credited_once() {
    let mut accounts = Accounts::new(at(0));
    for (second, up) in [(1, 1000), (2, 900), (3, 1000), (4, 1100)] {
        accounts.update(&reading(second, &[(1, usage(4, up, 0))]), creator);
    }
    assert_eq!(find(&accounts.snapshot(), 4).moved.all.bytes, [1100, 0]);
}

#[test]
fn idle_sockets_are_closed_after_a_minute() {
    let mut accounts = Accounts::new(at(0));
    let sockets = [(1, usage(4, 10, 0)), (2, usage(4, 10, 0))];
    accounts.update(&reading(0, &sockets), creator);
    let moved = [(1, usage(4, 20, 0)), (2, usage(4, 10, 0))];
    accounts.update(&reading(59, &moved), creator);
    assert_eq!(accounts.idle(), [0_u64; 0]);
    assert_eq!(find(&accounts.snapshot(), 4).connections, 1);
    accounts.update(&reading(60, &moved), creator);
    assert_eq!(accounts.idle(), [2]);
}

#[test]
fn facts_are_read_for_new_programs_first_and_again_after_some_seconds() {
    let mut accounts = Accounts::new(at(0));
    accounts.update(&reading(1, &[(1, usage(4, 10, 0))]), creator);
    assert_eq!(accounts.processes_to_check(), [(process(4), true)]);
    let facts = Facts {
        uid: 5,
        command: "curl".into(),
        cgroup: Some("/".into()),
    };
    accounts.lives(process(4), Some(facts));
    assert_eq!(find(&accounts.snapshot(), 4).command, "curl");
    accounts.update(&reading(5, &[(2, usage(6, 10, 0))]), creator);
    assert_eq!(
        accounts.processes_to_check(),
        [(process(6), true), (process(4), false)]
    );
    accounts.update(&reading(6, &[]), creator);
    assert!(accounts.processes_to_check().contains(&(process(4), true)));
    accounts.ended(process(6));
    assert_eq!(accounts.processes_to_check().len(), 1);
}

/// One step of a model run: a socket moves bytes, its owner changes, its program ends, or the
/// reader closes idle sockets.
#[derive(Clone, Debug)]
enum Step {
    Moves(u64, u64),
    Owner(u64, u32),
    Ends(u32),
    Read,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..6_u64, 1..5000_u64).prop_map(|(socket, bytes)| Step::Moves(socket, bytes)),
        1 => (0..6_u64, 0..4_u32).prop_map(|(socket, pid)| Step::Owner(socket, pid)),
        1 => (1..4_u32).prop_map(Step::Ends),
        3 => Just(Step::Read),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn no_byte_is_lost_or_counted_twice(steps in steps()) {
        let mut accounts = Accounts::new(at(0));
        let mut kernel: BTreeMap<u64, SocketUsage> = BTreeMap::new();
        let mut owners: BTreeMap<u64, u32> = BTreeMap::new();
        let (mut all, mut totals, mut second) = (0, Counts::default(), 0);
        for step in steps {
            match step {
                Step::Moves(socket, bytes) => {
                    let usage = kernel.entry(socket).or_insert_with(|| usage(0, 0, 0));
                    usage.counts.bytes[0] += bytes;
                    totals.bytes[0] += bytes;
                    all += bytes;
                }
                Step::Owner(socket, pid) => drop(owners.insert(socket, pid)),
                Step::Ends(pid) => accounts.ended(process(pid)),
                Step::Read => {
                    second += 1;
                    let sockets: Vec<(u64, SocketUsage)> =
                        kernel.iter().map(|(cookie, usage)| (*cookie, usage.clone())).collect();
                    let mut now = reading(second, &sockets);
                    now.totals = totals;
                    let owner = |cookie, _: &SocketUsage| {
                        owners.get(&cookie).filter(|pid| **pid != 0).map(|pid| process(*pid))
                    };
                    accounts.update(&now, owner);
                    for cookie in accounts.idle() {
                        accounts.close(cookie, kernel.remove(&cookie).as_ref());
                    }
                    let snapshot = accounts.snapshot();
                    prop_assert_eq!(sum(&snapshot).bytes, [all, 0]);
                    prop_assert_eq!(snapshot.missing.all.bytes, [0, 0]);
                }
            }
        }
    }
}

#[test]
fn the_bytes_of_each_udp_socket_are_kept_and_those_of_tcp_sockets_are_not() {
    let mut accounts = Accounts::new(at(0));
    let udp = |up| SocketUsage {
        protocol: UDP,
        ..usage(7, up, 10)
    };
    accounts.update(
        &reading(1, &[(1, usage(7, 500, 0)), (2, udp(300))]),
        creator,
    );
    assert_eq!(accounts.snapshot().datagrams, [(2, [300, 10])].into());
    accounts.update(&reading(2, &[(2, udp(700))]), creator);
    assert_eq!(accounts.snapshot().datagrams, [(2, [700, 10])].into());
    accounts.close(2, None);
    assert!(accounts.snapshot().datagrams.is_empty());
}
