//! The output of explain and doctor.

use netnice_api::{Doctor, DoctorReport, Explain, Find, Found, Status};

use super::*;
use crate::reconcile::Record;

fn explain(desk: &mut Desk, target: &str) -> String {
    let target = target.to_owned();
    match desk.ask(&ANN, Request::Explain(Explain { target }), None) {
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

fn doctor(desk: &mut Desk) -> DoctorReport {
    match desk.ask(&ANN, Request::Doctor(Doctor {}), None) {
        Response::Doctor(report) => report,
        other => panic!("{other:?}"),
    }
}

/// Checks that a page contains all of these in this order; lines may be broken anywhere.
fn says(page: &str, words: &[&str]) {
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
fn explain_says_who_asked_what_holds_and_what_is_around() {
    let mut desk = Desk::new();
    desk.machine().groups.insert("/s/web.service".to_owned(), 7);
    desk.machine().spawn(10, 1000);
    desk.machine().fork(10, 11);
    for pid in [10, 11] {
        let living = desk.machine().processes.get_mut(&pid);
        living.expect("it lives").cgroup = "/s/web.service".to_owned();
    }
    ok(desk.link("eth0", "100mbit", "50mbit"));
    ok(desk.set("unit:web", "up 8mbit min-down 1mbit"));
    ok(desk.set("pid:10", "up 4mbit"));
    ok(desk.set_as(&ANN, "pid:10", "up 2mbit"));
    ok(desk.set("user:1000", "up 1mbit"));
    let terms = |set: &mut Set| set.confirm_ns = Some(30_000_000_000);
    ok(desk.set_with(&Peer::ROOT, "pid:10", "down 3mbit", Some(10), terms));
    let page = explain(&mut desk, "pid:10");
    says(
        &page,
        &[
            "pid:10, number 2: 2 processes now",
            "up 2mbit by user 1000",
            "up 4mbit down 3mbit by root",
            "down none in 30s unless it is confirmed as 1",
            "up 2 Mbit/s (250 kB/s), down 3 Mbit/s (375 kB/s)",
            "unit:web.service: up 8mbit min-down 1mbit on eth0, holds too",
            "class 4e00:10 of nn0",
            "5ms at full speed",
            "MPTCP",
            "user:1000 does not hold it: pid:10 is more specific",
        ],
    );
    says(
        &explain(&mut desk, "11"),
        &["pid:11 (p11) has no contract of its own; pid:10 holds it"],
    );
    says(
        &explain(&mut desk, "unit:web"),
        &[
            "contains pid:10: up 2mbit down 3mbit",
            "48.5 Mbit/s, 97 % of what eth0 receives",
            "pid, name and app targets win",
        ],
    );
    says(
        &explain(&mut desk, "user:1000"),
        &["pid, name, app, cgroup and unit targets win over this one"],
    );
    desk.machine().spawn(20, 1001);
    says(&explain(&mut desk, "20"), &["held by nothing"]);
    for (target, word) in [("99", "99"), ("unit:no", "unit:no"), ("x:y", "x:y")] {
        let request = Request::Explain(Explain {
            target: target.to_owned(),
        });
        assert!(failed(desk.ask(&ANN, request, None)).contains(word));
    }
}

#[test]
fn explain_says_how_a_slice_is_served() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    ok(desk.link("eth0", "100mbit", ""));
    ok(desk.set("pid:10", "slice 2ms/50ms extra"));
    says(
        &explain(&mut desk, "pid:10"),
        &[
            "2ms/50ms of eth0 is served as its rate, 4 Mbit/s (500 kB/s), with a burst of one slice, and a share of \
             what is left over",
        ],
    );
}

#[test]
fn doctor_says_what_a_person_should_look_at() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 0);
    assert!(
        doctor(&mut desk)
            .items
            .iter()
            .all(|i| i.status == Status::Good)
    );
    ok(desk.link("eth0", "100mbit", ""));
    ok(desk.set("pid:10", "min 4mbit"));
    desk.machine().interfaces.remove("eth0");
    let report = doctor(&mut desk);
    let link = report.items.iter().find(|item| item.name == "link");
    assert!(link.expect("told").detail.contains("eth0 is gone"));
    let machine = desk.machine().clone();
    let mut service = Service::new(machine, None);
    service.start(Record::Lost("the state is damaged".to_owned()), desk.now);
    let mut next = Desk {
        service,
        now: desk.now,
    };
    let lost = |desk: &mut Desk| {
        let items = doctor(desk).items;
        items.into_iter().find(|item| item.name == "lost state")
    };
    assert!(lost(&mut next).expect("told").detail.contains("damaged"));
    ok(next.clear("all"));
    assert_eq!(lost(&mut next), None);
    for number in 0..5_000 {
        let name = format!("veth{number}");
        next.machine().interfaces.insert(name, true);
    }
    let report = doctor(&mut next);
    let many = report.items.iter().find(|item| item.name == "interfaces");
    let detail = &many.expect("told").detail;
    assert!(
        detail.contains("500") && detail.contains("4096"),
        "{detail}"
    );
}

#[test]
fn find_says_what_a_target_is_made_of_whether_or_not_it_is_held() {
    let mut desk = Desk::new();
    desk.machine().groups.insert("/s/web.service".to_owned(), 7);
    desk.machine().spawn(10, 1000);
    let mut find = |target: &str| {
        let target = target.to_owned();
        match desk.ask(&ANN, Request::Find(Find { target }), None) {
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
    ok(desk.run_named(&ANN, "n", 10, "up 1mbit"));
    let target = "name:n".to_owned();
    let found = desk.ask(&ANN, Request::Find(Find { target }), None);
    assert_eq!(found, Response::Found(Found::Processes(vec![10])));
}
