//! Tests of the clause `cpu` in requests, the policy file and unit files, and after a restart.

use netnice_api::{PacketCostDoc, PacketCostsDoc, Reserve, ThreadPartDoc};
use netnice_core::admission::packet_costs::{SendingFlow, SendingProtocol};
use netnice_core::admission::processors::{Processors, Reservation};
use netnice_core::units::Rate;

use super::policy::PolicyFile;
use super::*;
use crate::reconcile::SavedState;
use crate::state::{State, Store};

/// The holders of reservations in force.
fn holders(fixture: &Fixture) -> Vec<String> {
    let all = fixture.service.ledger().processor_reservations();
    all.into_iter().map(|(_, one)| one.holder).collect()
}

/// A service on a machine with two processors, of which 90 % each can be promised, and the
/// processes 10, 20 and 30.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    for pid in [10, 20, 30] {
        fixture.machine().spawn(pid, 1000);
    }
    fixture
}

fn one_processor() -> Option<Processors> {
    Some(Processors {
        online: [0].into(),
        admitted_ppm: 900_000,
        others: Vec::new(),
    })
}

#[test]
fn processor_time_is_admitted_and_refused_with_the_holders() {
    let mut fixture = fixture();
    let done = ok(fixture.set("pid:10", "cpu 9ms/10ms cpu-extra"));
    assert_eq!(done.effective.as_deref(), Some("cpu 9ms/10ms cpu-extra"));
    ok(fixture.set("pid:20", "up 1mbit cpu 8ms/10ms"));
    let text = refused(fixture.set("pid:30", "cpu 2ms/10ms"));
    assert!(text.contains("pid:10  9ms/10ms  90 %"), "{text}");
    assert!(text.ends_with("at most 1ms/10ms"), "{text}");
    assert!(fixture.held("pid:30").is_none());
    let shown = fixture.show();
    let cpu = shown.targets[0].effective.cpu.clone().expect("cpu");
    assert_eq!((cpu.slice_ns, cpu.extra), (9_000_000, true));
    let time = shown.targets[0].processor_time.clone().expect("reserved");
    assert_eq!((time.reserved, time.processors), (cpu, vec![]));
    let status = time.status.expect("it is kept");
    assert_eq!((status.way.as_str(), status.threads), ("group", 1));
    let status = shown.targets[1]
        .processor_time
        .clone()
        .expect("reserved")
        .status;
    assert_eq!(status.expect("it is kept").way, "exact");
    ok(fixture.clear("pid:10"));
    ok(fixture.set("pid:30", "cpu 2ms/10ms"));
    fixture.check();
}

#[test]
fn users_may_not_reserve_processor_time() {
    let mut fixture = fixture();
    let text = refused(fixture.set_as(&ANN, "pid:10", "cpu 1ms/10ms"));
    assert!(text.contains("cpu") && text.contains("netnice"), "{text}");
    let member = Peer {
        privileged: true,
        ..ANN
    };
    ok(fixture.set_as(&member, "pid:10", "cpu 1ms/10ms"));
    // A limit of the user beside it leaves the reservation in force.
    ok(fixture.set_as(&ANN, "pid:20", "up 1mbit"));
    ok(fixture.set("pid:20", "cpu 1ms/10ms"));
    ok(fixture.set_as(&ANN, "pid:20", "up 2mbit"));
    assert_eq!(holders(&fixture), ["pid:10", "pid:20"]);
}

#[test]
fn a_dry_run_shows_what_would_be_degraded() {
    let mut fixture = fixture();
    ok(fixture.set("pid:10", "cpu 5ms/10ms"));
    ok(fixture.set("pid:20", "cpu 8ms/10ms"));
    fixture.machine().processors = one_processor();
    let dry = |set: &mut Set| set.dry_run = true;
    let done = fixture.set_with(&Peer::ROOT, "pid:10", "cpu 4ms/10ms", Some(10), dry);
    let plan = ok(done).plan.expect("a plan").join("\n");
    for line in [
        "pid:10 (asked by root): cpu 5ms/10ms -> cpu 4ms/10ms",
        "pid:20 (asked by root): cpu 8ms/10ms -> none",
        "pid:20 does not fit and is degraded: refused: pid:20: 8ms in every 10ms",
    ] {
        assert!(plan.contains(line), "{plan}");
    }
    assert_eq!(holders(&fixture), ["pid:10", "pid:20"]);
}

#[test]
fn processor_time_for_a_time_is_rolled_back() {
    let mut fixture = fixture();
    ok(fixture.set("pid:10", "cpu 5ms/10ms"));
    let timed = |set: &mut Set| set.for_ns = Some(10_000_000_000);
    ok(fixture.set_with(&Peer::ROOT, "pid:10", "cpu 9ms/10ms", Some(10), timed));
    refused(fixture.set("pid:20", "cpu 10ms/10ms"));
    fixture.advance(10);
    ok(fixture.set("pid:20", "cpu 10ms/10ms"));
    let unconfirmed = |set: &mut Set| set.confirm_ns = Some(10_000_000_000);
    ok(fixture.set_with(
        &Peer::ROOT,
        "pid:20",
        "cpu none up 1mbit",
        Some(20),
        unconfirmed,
    ));
    assert_eq!(holders(&fixture), ["pid:10"]);
    fixture.advance(10);
    assert_eq!(holders(&fixture), ["pid:10", "pid:20"]);
    fixture.check();
}

#[test]
fn a_target_bound_to_a_processor_is_admitted_there() {
    let mut fixture = fixture();
    let machine = fixture.machine();
    machine.fork(20, 21);
    for pid in [10, 20, 21] {
        machine.affinities.insert(pid, [1].into());
    }
    machine.groups.insert("/g".to_owned(), 5);
    machine.spawn(40, 0);
    machine.processes.get_mut(&40).expect("it lives").cgroup = "/g".to_owned();
    machine.affinities.insert(40, [1].into());
    ok(fixture.set("pid:10", "cpu 5ms/10ms"));
    for target in ["pid:20", "cgroup:/g"] {
        let text = refused(fixture.set(target, "cpu 5ms/10ms"));
        assert!(text.contains("processor 1, of which 90 %"), "{text}");
    }
    fixture.machine().affinities.remove(&21);
    ok(fixture.set("pid:20", "cpu 5ms/10ms"));
}

#[test]
fn rules_and_sections_reserve_processor_time() {
    let mut fixture = fixture();
    let rule = |name: &str, time: &str| {
        format!("[[rule]]\nname = \"{name}\"\nmatch = \"unit:{name}\"\n{time}\n")
    };
    let both = |a: &str, b: &str| rule("a", a) + &rule("b", b);
    let text = both("cpu = \"1ms/10ms\"", "cpu = \"9ms/10ms\"");
    let file = PolicyFile::new("processors", &text);
    fixture.service.load_policy(&file.0, fixture.now);
    assert_eq!(holders(&fixture), ["unit:a.service", "unit:b.service"]);
    // The two exchange their times, of which the old one of b and the new one of a do not fit.
    fixture.machine().processors = one_processor();
    let text = both("cpu = \"8ms/10ms\"", "cpu = \"1ms/20ms\"\ncpu-extra = true");
    std::fs::write(&file.0, text).expect("a file");
    fixture.service.load_policy(&file.0, fixture.now);
    for (target, contract) in [
        ("unit:a", "cpu 8ms/10ms"),
        ("unit:b", "cpu 1ms/20ms cpu-extra"),
    ] {
        let held = fixture.held(&format!("{target}.service")).expect("held");
        assert_eq!(held.in_force().to_string(), contract);
    }
}

#[test]
fn after_a_restart_what_fits_is_reserved_and_the_rest_waits() {
    let mut fixture = fixture();
    ok(fixture.set("pid:10", "cpu 8ms/10ms"));
    ok(fixture.set("pid:20", "cpu 8ms/10ms up 1mbit"));
    let state = State {
        ledger: fixture.service.ledger().clone(),
        rollbacks: fixture.service.reconciler.books.rollbacks.clone(),
    };
    let mut machine = fixture.machine().clone();
    machine.processors = one_processor();
    fixture.service = Service::new(machine, None);
    let saved = SavedState::Complete(Box::new(state));
    fixture.service.start(saved, fixture.now);
    assert_eq!(holders(&fixture), ["pid:10"]);
    let shown = fixture.show();
    assert_eq!(shown.targets[1].effective.cpu, None);
    assert!(shown.targets[1].contract.cpu.is_some());
    assert_eq!(shown.targets[1].processor_time, None);
    let why = &shown.targets[1].degraded[0];
    assert!(
        why.starts_with("refused: pid:20: 8ms in every 10ms"),
        "{why}"
    );
    // The next change puts it into force again.
    ok(fixture.clear("pid:10"));
    assert_eq!(holders(&fixture), ["pid:20"]);
    fixture.check();
}

#[test]
fn reservations_follow_the_processors_of_the_machine() {
    let mut fixture = fixture();
    ok(fixture.set("pid:10", "cpu 8ms/10ms"));
    ok(fixture.set("pid:20", "cpu 8ms/10ms"));
    fixture.advance(1);
    let foreign = Reservation {
        holder: "chrt (pid 77)".to_owned(),
        slice: netnice_core::contract::Slice::new(Nanos(7), Nanos(10), false).expect("a slice"),
        processors: Default::default(),
    };
    fixture.machine().processors = Some(Processors {
        others: vec![foreign],
        ..one_processor().expect("facts")
    });
    fixture.advance(10);
    assert_eq!(holders(&fixture), [""; 0]);
    let shown = fixture.show();
    let why = &shown.targets[0].degraded[0];
    assert!(why.contains("chrt (pid 77)"), "{why}");
    fixture.machine().processors = one_processor();
    fixture.advance(9);
    assert_eq!(holders(&fixture), [""; 0], "it is not time to look");
    fixture.advance(1);
    assert_eq!(holders(&fixture), ["pid:10"]);
    fixture.machine().processors = None;
    fixture.advance(10);
    assert_eq!(holders(&fixture), ["pid:10", "pid:20"]);
    fixture.check();
}

/// Costs with which a full packet of 1,500 bytes takes 10 us.
fn costs() -> PacketCostsDoc {
    let line = PacketCostDoc {
        idle_ppb: 0,
        packet_ps: 10_000_000,
    };
    PacketCostsDoc {
        udp: line,
        tcp: line,
    }
}

/// A flow with so many full packets a second.
fn sending(packets: u64) -> SendingFlow {
    SendingFlow {
        protocol: SendingProtocol::Udp,
        rate: Rate::new(packets * 12_000).expect("a rate"),
        packet: 1_500,
        period: None,
    }
}

/// A service on a machine with one processor. A flow of process 10 needs a tenth of it.
fn fixture_with_flow() -> Fixture {
    let mut fixture = fixture();
    ok(fixture.ask(&Peer::ROOT, Request::KeepCosts(costs()), None));
    fixture.machine().processors = one_processor();
    let flows = [(10, vec![sending(10_000)])];
    fixture.service.set_sending(flows.into());
    fixture
}

/// The reserved time of a target in 10 ms, in us, and the fault that `show` names.
fn auto_time(fixture: &mut Fixture, target: &str) -> (Option<u64>, Option<String>) {
    let shown = fixture.show();
    let found = shown.targets.into_iter().find(|one| one.target == target);
    let found = found.expect("it is shown");
    let time = found
        .processor_time
        .map(|time| time.reserved.slice_ns / 1_000);
    (time, found.degraded.first().cloned())
}

#[test]
fn cpu_auto_needs_the_costs_of_a_packet() {
    let mut fixture = fixture();
    let text = refused(fixture.set("pid:10", "cpu auto"));
    assert!(text.contains("netnice doctor --measure"), "{text}");
    assert!(fixture.held("pid:10").is_none());
    let keep = Request::KeepCosts(costs());
    let text = refused(fixture.ask(&ANN, keep.clone(), None));
    assert!(text.contains("root and the group netnice"), "{text}");
    let impossible = Request::KeepCosts(PacketCostsDoc::default());
    let answer = fixture.ask(&Peer::ROOT, impossible, None);
    assert!(
        format!("{answer:?}").contains("costs nothing"),
        "{answer:?}"
    );
    ok(fixture.ask(&Peer::ROOT, keep, None));
    let done = ok(fixture.set("pid:10", "cpu auto"));
    assert!(
        done.messages.concat().contains("no direct flow"),
        "{done:?}"
    );
    assert_eq!(auto_time(&mut fixture, "pid:10"), (None, None));
}

#[test]
fn cpu_auto_is_what_the_flows_need_and_follows_them() {
    let mut fixture = fixture_with_flow();
    ok(fixture.set("pid:10", "cpu auto cpu-extra"));
    // A tenth of a processor, and a tenth of that.
    assert_eq!(auto_time(&mut fixture, "pid:10"), (Some(1_100), None));
    assert!(fixture.service.follows_flows());
    let reserved = fixture.held("pid:10").and_then(|held| held.reserved());
    assert!(reserved.is_some_and(|slice| slice.extra()));
    // More at once, less only after a while.
    let now = fixture.now;
    let two = || [(10, vec![sending(10_000), sending(10_000)])].into();
    fixture.service.follow_sending(two(), now);
    assert_eq!(auto_time(&mut fixture, "pid:10"), (Some(2_200), None));
    fixture.service.follow_sending([].into(), now);
    assert_eq!(auto_time(&mut fixture, "pid:10"), (Some(2_200), None));
    fixture.advance(6);
    let now = fixture.now;
    fixture.service.follow_sending([].into(), now);
    assert_eq!(auto_time(&mut fixture, "pid:10"), (None, None));
    fixture.check();
}

#[test]
fn cpu_auto_keeps_what_it_has_if_more_does_not_fit() {
    let mut fixture = fixture_with_flow();
    ok(fixture.set("pid:10", "cpu auto"));
    ok(fixture.set("pid:20", "cpu 7ms/10ms"));
    let text = refused(fixture.set("pid:30", "cpu 2ms/10ms"));
    assert!(text.contains("pid:10  1.1ms/10ms  11 %"), "{text}");
    let now = fixture.now;
    fixture
        .service
        .follow_sending([(10, vec![sending(30_000)])].into(), now);
    let (time, fault) = auto_time(&mut fixture, "pid:10");
    let fault = fault.expect("it is short");
    assert_eq!(time, Some(1_100));
    assert!(fault.contains("3.3ms in every 10ms"), "{fault}");
    assert_eq!(holders(&fixture), ["pid:10", "pid:20"]);
    // It grows when there is room.
    ok(fixture.clear("pid:20"));
    assert_eq!(auto_time(&mut fixture, "pid:10"), (Some(3_300), None));
    // More than a processor is never had, and said.
    fixture
        .service
        .follow_sending([(10, vec![sending(100_000)])].into(), now);
    let (time, fault) = auto_time(&mut fixture, "pid:10");
    assert_eq!(time, Some(3_300));
    assert!(fault.is_some_and(|why| why.contains("110 % of a processor")));
    fixture.check();
}

#[test]
fn cpu_auto_outlives_the_daemon_until_its_flows_are_known() {
    let mut fixture = fixture_with_flow();
    ok(fixture.set("pid:10", "cpu auto"));
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::new(folder.path(), "this boot", 7);
    let ledger = fixture.service.ledger();
    let rollbacks = &fixture.service.reconciler.books.rollbacks;
    store.save(ledger, rollbacks).expect("written");
    let state = store.load().expect("read").expect("a state");
    let machine = fixture.machine().clone();
    fixture.service = Service::new(machine, None);
    let saved = SavedState::Complete(Box::new(state));
    fixture.service.start(saved, fixture.now);
    assert_eq!(auto_time(&mut fixture, "pid:10").0, Some(1_100));
}

/// The response to `reserve` by the process `pid` for one of its threads.
fn reserve(
    fixture: &mut Fixture,
    peer: &Peer,
    (pid, thread): (u32, u32),
    time_ms: Option<u64>,
) -> Response {
    let reserve = Reserve {
        thread,
        time_ns: time_ms.map(|time| time * 1_000_000),
    };
    fixture.ask(peer, Request::Reserve(reserve), Some(pid))
}

/// The service of [`fixture`], where process 10 has the threads 110 and 111 too.
fn with_threads() -> Fixture {
    let mut fixture = fixture();
    let threads = &mut fixture.machine().processor.more_threads;
    threads.insert(10, [110, 111].into());
    fixture
}

#[test]
fn a_program_divides_what_root_reserved_for_it() {
    let mut fixture = with_threads();
    let text = refused(reserve(&mut fixture, &ANN, (10, 110), Some(2)));
    assert!(text.contains("netnice set pid:10 --cpu"), "{text}");
    ok(fixture.set("pid:10", "cpu 6ms/10ms"));
    let done = ok(reserve(&mut fixture, &ANN, (10, 110), Some(2)));
    assert_eq!(done.target.as_deref(), Some("pid:10"));
    ok(reserve(&mut fixture, &ANN, (10, 111), Some(3)));
    let text = refused(reserve(&mut fixture, &ANN, (10, 10), Some(2)));
    assert!(
        text.contains("thread 110 has 2ms, thread 111 has 3ms"),
        "{text}"
    );
    let shown = fixture.show();
    let time = shown.targets[0].processor_time.clone().expect("reserved");
    let part = |thread, time_ns| ThreadPartDoc { thread, time_ns };
    let parts = time.status.expect("it is kept").parts;
    assert_eq!(parts, [part(110, 2_000_000), part(111, 3_000_000)]);
    let explain = Request::Explain(netnice_api::Explain {
        target: "pid:10".to_owned(),
    });
    let Response::Explained(page) = fixture.ask(&ANN, explain, None) else {
        panic!("no page");
    };
    let page = page.lines.join("\n");
    for line in [
        "110: 2ms exactly (SCHED_DEADLINE)",
        "111: 3ms exactly",
        "all others: 1ms in every 10ms",
    ] {
        assert!(page.contains(line), "{page}");
    }
    ok(reserve(&mut fixture, &ANN, (10, 111), None));
    ok(fixture.clear("pid:10"));
    assert!(fixture.machine().processor.exact.is_empty());
    fixture.check();
}

#[test]
fn threads_and_time_of_others_are_refused() {
    let mut fixture = with_threads();
    let bob = Peer { uid: 1001, ..ANN };
    fixture.machine().spawn(40, 1001);
    ok(fixture.set("pid:10", "cpu 6ms/10ms"));
    ok(fixture.set("pid:20", "cpu 6ms/10ms"));
    let before = fixture.machine().processor.clone();
    for (peer, process, words) in [
        (&bob, (10, 110), "process 10"),
        (&bob, (40, 110), "thread 110 is not a thread of process 40"),
        (&ANN, (20, 110), "thread 110 is not a thread of process 20"),
        (&ANN, (20, 0), "thread 0 is not a thread"),
        (
            &bob,
            (40, 40),
            "no processor time is reserved for process 40",
        ),
    ] {
        let text = refused(reserve(&mut fixture, peer, process, Some(1)));
        assert!(text.contains(words), "{text}");
    }
    let unnamed = Request::Reserve(Reserve::default());
    assert!(matches!(
        fixture.ask(&ANN, unnamed, None),
        Response::Failed(_)
    ));
    assert_eq!(fixture.machine().processor, before);
    let member = Peer {
        privileged: true,
        ..bob
    };
    ok(reserve(&mut fixture, &member, (10, 110), Some(1)));
}

/// A part is taken from all other threads of the target, so none of several users takes it.
#[test]
fn a_target_of_several_users_is_divided_by_root_only() {
    let mut fixture = with_threads();
    let machine = fixture.machine();
    machine.groups.insert("/g".to_owned(), 5);
    machine.spawn(40, 1001);
    for pid in [10, 40] {
        machine.processes.get_mut(&pid).expect("it lives").cgroup = "/g".to_owned();
    }
    ok(fixture.set("cgroup:/g", "cpu 6ms/10ms"));
    let text = refused(reserve(&mut fixture, &ANN, (10, 110), Some(2)));
    assert!(text.contains("several users"), "{text}");
    ok(reserve(&mut fixture, &Peer::ROOT, (10, 110), Some(2)));
    ok(reserve(&mut fixture, &Peer::ROOT, (10, 110), None));
    fixture.machine().processes.remove(&40);
    fixture.advance(1);
    ok(reserve(&mut fixture, &ANN, (10, 110), Some(2)));
}

/// Users start an executable independently of each other, so the next one may be another user's.
#[test]
fn the_time_of_an_executable_is_divided_by_root_only() {
    let mut fixture = with_threads();
    let key = crate::ledger::AppKey { inode: 5, dev: 1 };
    let machine = fixture.machine();
    machine.apps.insert("/bin/rsync".to_owned(), key);
    machine.processes.get_mut(&10).expect("it lives").runs = Some(key);
    ok(fixture.set("app:/bin/rsync", "cpu 6ms/10ms"));
    fixture.advance(1);
    let text = refused(reserve(&mut fixture, &ANN, (10, 110), Some(2)));
    assert!(text.contains("several users"), "{text}");
    ok(reserve(&mut fixture, &Peer::ROOT, (10, 110), Some(2)));
}
