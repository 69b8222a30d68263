//! Tests of the responses to `netnice explain` and `netnice doctor`, and to the request `Find`.

use netnice_api::{Doctor, DoctorReport, Explain, Find, Found, Status};
use netnice_core::units::Nanos;
use netnice_kernel::probe::{FeatureState, Finding};

use super::*;
use crate::reconcile::SavedState;

fn explain(fixture: &mut Fixture, target: &str) -> String {
    let target = target.to_owned();
    match fixture.ask(&ANN, Request::Explain(Explain { target }), None) {
        Response::Explained(explained) => {
            assert!(
                explained
                    .lines
                    .iter()
                    .all(|line| line.chars().count() <= 80),
                "{explained:?}"
            );
            explained.lines.join("\n")
        }
        other => panic!("{other:?}"),
    }
}

fn doctor(fixture: &mut Fixture) -> DoctorReport {
    match fixture.ask(&ANN, Request::Doctor(Doctor {}), None) {
        Response::Doctor(report) => report,
        other => panic!("{other:?}"),
    }
}

/// Checks that a page contains all of these in this order; lines may be broken anywhere.
fn assert_contains_in_order(page: &str, words: &[&str]) {
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = page.as_str();
    for word in words {
        match rest.split_once(word) {
            Some((_, after)) => rest = after,
            None => panic!("`{word}` is not (or not there) in: {page}"),
        }
    }
}

#[test]
fn explain_shows_claims_effective_contract_and_outer_targets() {
    let mut fixture = Fixture::new();
    fixture
        .machine()
        .groups
        .insert("/s/web.service".to_owned(), 7);
    fixture.machine().spawn(10, 1000);
    fixture.machine().fork(10, 11);
    for pid in [10, 11] {
        let living = fixture.machine().processes.get_mut(&pid);
        living.expect("it lives").cgroup = "/s/web.service".to_owned();
    }
    ok(fixture.link("eth0", "100mbit", "50mbit"));
    ok(fixture.set("unit:web", "up 8mbit min-down 1mbit"));
    ok(fixture.set("pid:10", "up 4mbit"));
    ok(fixture.set_as(&ANN, "pid:10", "up 2mbit"));
    ok(fixture.set("user:1000", "up 1mbit"));
    let terms = |set: &mut Set| set.confirm_ns = Some(30_000_000_000);
    ok(fixture.set_with(&Peer::ROOT, "pid:10", "down 3mbit", Some(10), terms));
    let page = explain(&mut fixture, "pid:10");
    assert_contains_in_order(
        &page,
        &[
            "pid:10, number 2: 2 processes now",
            "up 2mbit by user 1000",
            "up 4mbit down 3mbit by root",
            "down none in 30s unless it is confirmed as 1",
            "up 2 Mbit/s (250 kB/s), down 3 Mbit/s (375 kB/s)",
            "unit:web.service: up 8mbit min-down 1mbit on eth0, holds too",
            "class 4e00:12 of nn0",
            "5ms at full speed",
            "MPTCP",
            "user:1000 does not hold it: pid:10 is more specific",
        ],
    );
    assert_contains_in_order(
        &explain(&mut fixture, "11"),
        &["pid:11 (p11) has no contract of its own; pid:10 holds it"],
    );
    assert_contains_in_order(
        &explain(&mut fixture, "unit:web"),
        &[
            "contains pid:10: up 2mbit down 3mbit",
            "48.5 Mbit/s, 97 % of what eth0 receives",
            "pid, name and app targets win",
        ],
    );
    assert_contains_in_order(
        &explain(&mut fixture, "user:1000"),
        &["pid, name, app, cgroup and unit targets win over this one"],
    );
    fixture.machine().spawn(20, 1001);
    assert_contains_in_order(&explain(&mut fixture, "20"), &["held by nothing"]);
    for (target, word) in [("99", "99"), ("unit:no", "unit:no"), ("x:y", "x:y")] {
        let request = Request::Explain(Explain {
            target: target.to_owned(),
        });
        assert!(failed(fixture.ask(&ANN, request, None)).contains(word));
    }
}

#[test]
fn explain_shows_reserved_processor_time() {
    let mut fixture = Fixture::new();
    for pid in [10, 20] {
        fixture.machine().spawn(pid, 0);
    }
    fixture.machine().affinities.insert(10, [1].into());
    ok(fixture.set("pid:10", "cpu 2ms/10ms"));
    ok(fixture.set("pid:20", "cpu 1ms/20ms cpu-extra"));
    let all = "25 % are reserved for 2 targets, of 180 % that can be (90 % of each processor)";
    let page = explain(&mut fixture, "pid:10");
    assert_contains_in_order(
        &page,
        &[
            "holds cpu 2ms/10ms",
            "2ms of one processor in every 10ms (20 %)",
            "on processor 1, and no more",
            "kept exactly: it has its time",
            "by 1 thread now; used up in 0 periods",
            all,
        ],
    );
    let page = explain(&mut fixture, "pid:20");
    let words = [
        "(5 %)",
        "on all processors, and a share of what is left",
        "kept by a control group",
        all,
    ];
    assert_contains_in_order(&page, &words);
    fixture.machine().processors = Some(Default::default());
    ok(fixture.set("pid:20", "cpu none"));
    fixture.machine().spawn(30, 0);
    let text = refused(fixture.set("pid:30", "cpu 1ms/10ms"));
    assert!(
        text.contains("nothing is known of the processors"),
        "{text}"
    );
}

#[test]
fn explain_shows_how_a_slice_is_served() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    ok(fixture.link("eth0", "100mbit", ""));
    ok(fixture.set("pid:10", "slice 2ms/50ms extra"));
    assert_contains_in_order(
        &explain(&mut fixture, "pid:10"),
        &[
            "2ms/50ms of eth0 is served as its rate, 4 Mbit/s (500 kB/s), with a burst of one \
             slice, and a share of \
             what is left over",
        ],
    );
}

#[test]
fn doctor_reports_what_needs_attention() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    assert!(
        doctor(&mut fixture)
            .items
            .iter()
            .all(|i| i.status == Status::Good)
    );
    ok(fixture.link("eth0", "100mbit", ""));
    ok(fixture.set("pid:10", "min 4mbit"));
    fixture.machine().interfaces.remove("eth0");
    let report = doctor(&mut fixture);
    let link = report.items.iter().find(|item| item.name == "link");
    assert!(link.expect("reported").detail.contains("eth0 is gone"));
    let machine = fixture.machine().clone();
    let mut service = Service::new(machine, None);
    service.start(
        SavedState::Lost("the state is damaged".to_owned()),
        fixture.now,
    );
    let mut next = Fixture {
        service,
        now: fixture.now,
    };
    let lost = |fixture: &mut Fixture| {
        let items = doctor(fixture).items;
        items.into_iter().find(|item| item.name == "lost state")
    };
    assert!(
        lost(&mut next)
            .expect("reported")
            .detail
            .contains("damaged")
    );
    ok(next.clear("all"));
    assert_eq!(lost(&mut next), None);
    for number in 0..5_000 {
        let name = format!("veth{number}");
        next.machine().interfaces.insert(name, true);
    }
    let report = doctor(&mut next);
    let many = report.items.iter().find(|item| item.name == "interfaces");
    let detail = &many.expect("reported").detail;
    assert!(
        detail.contains("500") && detail.contains("4096"),
        "{detail}"
    );
}

#[test]
fn a_link_without_its_classes_is_shown_as_degraded() {
    let mut fixture = Fixture::new();
    ok(fixture.link("eth0", "100mbit", ""));
    fixture.machine().without_classes.insert("eth0".to_owned());
    let report = doctor(&mut fixture);
    let link = report.items.iter().find(|item| item.name == "link");
    let detail = &link.expect("reported").detail;
    assert!(detail.contains("not on the interface yet"), "{detail}");
}

#[test]
fn findings_of_a_probe_are_reported_for_a_minute() {
    let mut fixture = Fixture::new();
    assert!(fixture.service.needs_probe(fixture.now));
    let finding = Finding {
        name: "attachment",
        state: FeatureState::Fallback,
        detail: "clsact filters".to_owned(),
        hint: None,
    };
    fixture.service.set_findings(&[finding], fixture.now);
    assert_eq!(doctor(&mut fixture).items[0].name, "attachment");
    let later = |fixture: &Fixture, seconds| Now {
        monotonic: fixture.now.monotonic.after(Nanos::from_secs(seconds)),
        ..fixture.now
    };
    assert!(!fixture.service.needs_probe(later(&fixture, 59)));
    assert!(fixture.service.needs_probe(later(&fixture, 60)));
}

#[test]
fn find_returns_what_a_target_consists_of() {
    let mut fixture = Fixture::new();
    fixture
        .machine()
        .groups
        .insert("/s/web.service".to_owned(), 7);
    fixture.machine().spawn(10, 1000);
    let mut find = |target: &str| {
        let target = target.to_owned();
        match fixture.ask(&ANN, Request::Find(Find { target }), None) {
            Response::Found(found) => Ok(found),
            Response::Failed(failed) => Err(failed.text),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(find("pid:10"), Ok(Found::Processes(vec![10])));
    let web = Found::Cgroup("/s/web.service".to_owned());
    assert_eq!(find("unit:web"), Ok(web.clone()));
    assert_eq!(find("cgroup:/s/web.service"), Ok(web));
    assert_eq!(find("user:1000"), Ok(Found::User(1000)));
    assert!(find("name:n").is_err_and(|why| why.contains("nothing is set for name:n")));
    assert!(find("pid:99").is_err_and(|why| why.contains("does not exist")));
    ok(fixture.run_named(&ANN, "n", 10, "up 1mbit"));
    let target = "name:n".to_owned();
    let found = fixture.ask(&ANN, Request::Find(Find { target }), None);
    assert_eq!(found, Response::Found(Found::Processes(vec![10])));
}

#[test]
fn the_log_says_what_was_changed_and_what_is_in_force() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    ok(fixture.set("pid:10", "up 4mbit"));
    let ask = |fixture: &mut Fixture, change| {
        ok(fixture.set_with(&ANN, "pid:10", change, Some(10), |_| {}));
    };
    ask(&mut fixture, "up 2mbit");
    ask(&mut fixture, "up none");
    let log = fixture.ask(&Peer::ROOT, Request::Log(Default::default()), None);
    let Response::Log(log) = log else {
        panic!("{log:?}");
    };
    let texts: Vec<&str> = log.lines.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "root set pid:10: up 4mbit",
            "user 1000 set pid:10: up 2mbit",
            "user 1000 set pid:10: up none; in force: up 4mbit",
        ]
    );
}

#[test]
fn a_dry_run_names_the_other_targets_that_a_change_affects() {
    let mut fixture = Fixture::new();
    fixture.machine().groups.insert("/g".to_owned(), 5);
    fixture.machine().spawn(10, 1000);
    let living = fixture.machine().processes.get_mut(&10);
    living.expect("a process").cgroup = "/g".to_owned();
    ok(fixture.set("pid:10", "up 4mbit"));
    let dry = |set: &mut Set| set.dry_run = true;
    let done = ok(fixture.set_with(&Peer::ROOT, "cgroup:/g", "up 1mbit", None, dry));
    assert_eq!(
        done.plan.expect("a plan"),
        [
            "pid:10 (asked by root): up 4mbit -> up 1mbit",
            "cgroup:/g (asked by root): no contract -> up 1mbit",
            "take in control group /g",
        ]
    );
}

#[test]
fn a_dry_run_names_the_targets_that_fit_again() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    ok(fixture.link("eth0", "100mbit", ""));
    ok(fixture.set("pid:10", "min 60mbit"));
    let mut managed = fixture
        .service
        .ledger()
        .link("eth0")
        .expect("managed")
        .clone();
    managed.link.up.as_mut().expect("a rate").rate = "50mbit".parse().expect("a rate");
    fixture.service.force_link(managed);
    let change = LinkChange {
        iface: "eth0".to_owned(),
        rate: Some("80mbit".to_owned()),
        dry_run: true,
        ..LinkChange::default()
    };
    let done = ok(fixture.ask(&Peer::ROOT, Request::Link(Box::new(change)), None));
    let plan = done.plan.expect("a plan").join("\n");
    assert!(plan.contains("pid:10 fits again"), "{plan}");
}

#[test]
fn a_name_that_no_process_runs_as_points_to_processes_with_that_command() {
    let mut fixture = Fixture::new();
    for pid in [10, 11] {
        fixture.machine().spawn(pid, 1000);
        let living = fixture.machine().processes.get_mut(&pid);
        living.expect("a process").process.name = "scp".to_owned();
    }
    let text = failed(fixture.set("name:scp", "up 1mbit"));
    assert!(text.contains("scp runs as pid:10 (and 1 more)"), "{text}");
    assert!(text.contains("app:PATH"), "{text}");
    let bob = Peer {
        uid: 1001,
        privileged: false,
        groups: Vec::new(),
    };
    let text = failed(fixture.set_with(&bob, "name:scp", "up 1mbit", None, |_| {}));
    assert!(!text.contains("pid:10"), "others' processes: {text}");
}

#[test]
fn a_process_of_another_network_namespace_is_refused_and_explained() {
    let mut fixture = Fixture::new();
    fixture.machine().groups.insert("/g".to_owned(), 5);
    fixture.machine().spawn(10, 0);
    let living = fixture.machine().processes.get_mut(&10);
    let living = living.expect("a process");
    living.process.in_own_network = Some(false);
    living.cgroup = "/g".to_owned();
    let text = refused(fixture.set("pid:10", "up 1mbit"));
    assert!(text.contains("another network namespace"), "{text}");
    ok(fixture.set("cgroup:/g", "up 1mbit"));
    let explained = fixture.ask(
        &Peer::ROOT,
        Request::Explain(Explain {
            target: "pid:10".to_owned(),
        }),
        None,
    );
    let Response::Explained(explained) = explained else {
        panic!("{explained:?}");
    };
    let text = explained.lines.join("\n");
    assert!(text.contains("another network namespace"), "{text}");
}
