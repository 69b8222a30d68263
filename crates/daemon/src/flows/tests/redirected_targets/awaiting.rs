//! Tests of targets that wait for their driver: without a class if no class had their packets
//! before, else in a class without a ceiling, and for at most 3 s. Nothing is left of the wait,
//! whatever ends it.

use netnice_kernel::plan::LinkShare;

use super::*;
use crate::reconcile::SavedState;
use crate::state::Store;

impl Fixture {
    fn id_of(&self, target: &str) -> u32 {
        let target: Target = target.parse().expect("a target");
        self.service.ledger().find(&target).expect("held").id
    }

    /// The share of the link that a target's class has; `None` if it has no class.
    fn share_of(&mut self, target: &str) -> Option<LinkShare> {
        let id = self.id_of(target);
        let desired = self.desired();
        let found = desired.targets.into_iter().find(|one| one.id == id);
        found.expect("in force").share
    }

    /// The highest rate of a target's class in Mbit/s; `None` without a class, and for a class
    /// without a ceiling.
    fn ceiling_of(&mut self, target: &str) -> Option<u64> {
        let max = self.share_of(target)?.max?;
        Some(max.bits_per_second() / 1_000_000)
    }

    fn awaits(&self) -> bool {
        !self.service.ledger().awaiting().is_empty()
    }

    /// Process 8 keeps a driver that does not answer any more; process 7 waits for it.
    fn with_a_waiting_target() -> Fixture {
        let mut fixture = Fixture::new();
        fixture.set(8, "slice 1ms/20ms");
        fixture.driver_answers = false;
        assert_done(&fixture.set(7, CELL));
        assert!(fixture.awaits() && fixture.has_pair());
        assert_eq!(fixture.share_of("pid:7"), None);
        fixture
    }

    fn set_with(&mut self, pid: u32, change: &str, with: impl FnOnce(&mut Set)) -> Response {
        let mut set = Set {
            target: format!("pid:{pid}"),
            change: Some(change.to_owned()),
            ..Set::default()
        };
        with(&mut set);
        self.ask(Request::Set(set), Some(pid))
    }

    /// The end of the wait left nothing but the target of process 8 at its driver.
    fn assert_wait_is_over(&mut self) {
        assert!(!self.awaits());
        self.answer_pending();
        self.advance(Nanos::from_secs(5));
        assert_eq!(self.targets_at_driver(), ["slice 1ms/20ms"]);
        assert_eq!(self.redirects().len(), 1);
        assert_eq!(self.desired().targets.len(), 1);
        assert_done(&self.withdraw(8));
        self.assert_nothing_is_left();
        assert_eq!(self.rate_promised(), 0);
    }
}

#[test]
fn a_target_has_no_class_until_its_driver_serves_it() {
    let mut fixture = Fixture::new();
    fixture.driver_answers = false;
    assert_done(&fixture.set(7, CELL));
    // The driver has started, and has not told its census.
    assert_eq!((fixture.driver.starts, fixture.has_pair()), (1, false));
    assert_eq!(fixture.share_of("pid:7"), None);
    assert!(fixture.awaits());
    fixture.answer_pending();
    let share = fixture.share_of("pid:7").expect("a class");
    assert_eq!(share.redirect, Some(0));
    assert_eq!(fixture.ceiling_of("pid:7"), Some(10));
    assert!(!fixture.awaits());

    // It has one then, also if the driver ends.
    fixture.end_driver();
    assert_eq!(fixture.ceiling_of("pid:7"), Some(10));
    fixture.exchange();
    fixture.advance(Nanos::from_secs(1));
    assert_eq!(fixture.redirects().len(), 1);
    fixture.withdraw(7);
    fixture.assert_nothing_is_left();
}

#[test]
fn a_driver_that_hangs_leaves_a_target_without_a_class_for_three_seconds() {
    let mut fixture = Fixture::with_a_waiting_target();
    fixture.advance(Nanos::from_millis(1_000));
    // A further request does not prolong it.
    assert_done(&fixture.set(7, "cell pcr=20mbit,cdvt=2ms"));
    fixture.advance(Nanos::from_millis(1_999));
    assert_eq!(fixture.share_of("pid:7"), None);
    let due = fixture.flows.next_due().expect("a time");
    assert_eq!(due, fixture.now.monotonic.after(Nanos::from_millis(1)));
    fixture.advance(Nanos::from_millis(1));
    assert_eq!(fixture.ceiling_of("pid:7"), Some(20));
    assert!(!fixture.awaits());
}

#[test]
fn a_driver_that_starts_late_and_hangs_leaves_a_target_no_second_time_without_a_ceiling() {
    let mut fixture = Fixture::new();
    fixture.driver_answers = false;
    fixture.set(7, CELL);
    fixture.advance(Nanos::from_millis(2_999));
    assert_eq!(fixture.share_of("pid:7"), None);
    fixture.advance(Nanos::from_millis(1));
    assert_eq!(fixture.ceiling_of("pid:7"), Some(10));
    // The census comes, and no answer to the request.
    while !fixture.has_pair() {
        let (link, call) = fixture.unanswered.remove(0);
        let event = fixture.answer(&call);
        fixture
            .flows
            .handle_driver_event(&mut fixture.service, &link, event, fixture.now);
        fixture.flows.settle_all(&mut fixture.service, fixture.now);
        fixture.exchange();
    }
    assert!(fixture.redirects().is_empty());
    assert_eq!(fixture.ceiling_of("pid:7"), Some(10));
    fixture.answer_pending();
    assert_eq!(fixture.redirects().len(), 1);
    fixture.withdraw(7);
    fixture.assert_nothing_is_left();
}

/// As for a contract from the policy, which no reply waits for.
#[test]
fn a_driver_that_hangs_removes_no_ceiling_for_long() {
    let mut fixture = Fixture::new();
    // Another target keeps the driver.
    fixture.set(8, "slice 1ms/20ms");
    assert_done(&fixture.set(7, "weight 50 on eth0"));
    fixture.driver_answers = false;
    fixture.set(7, CELL);
    assert!(!fixture.awaits(), "a class has its packets");
    fixture.advance(Nanos::from_millis(2_999));
    assert!(fixture.share_of("pid:7").is_some());
    assert_eq!(fixture.ceiling_of("pid:7"), None);
    fixture.advance(Nanos::from_millis(1));
    assert_eq!(fixture.ceiling_of("pid:7"), Some(10));
}

#[test]
fn what_held_a_target_before_is_not_lifted() {
    for before in ["up 20mbit", "both 20mbit", "min 1mbit", "yield on"] {
        let mut fixture = Fixture::new();
        assert_done(&fixture.set(7, before));
        fixture.driver_answers = false;
        let none = before.split_once(' ').map_or(before, |(word, _)| word);
        assert_done(&fixture.set(7, &format!("{none} none {CELL}")));
        assert!(!fixture.awaits(), "{before}");
        assert_eq!(fixture.ceiling_of("pid:7"), Some(10), "{before}");
    }
}

#[test]
fn a_target_that_stays_with_the_classes_has_its_class_at_once() {
    // A minimum, a slice that is too long for a driver, and a pause after the end of a driver.
    let mut fixture = Fixture::new();
    fixture.driver_answers = false;
    for contract in ["min 1mbit", "slice 999ms/1s", "weight 50 on eth0"] {
        assert_done(&fixture.set(7, contract));
        assert!(!fixture.awaits(), "{contract}");
        assert!(fixture.share_of("pid:7").is_some(), "{contract}");
        fixture.withdraw(7);
    }
    let mut fixture = Fixture::new();
    fixture.set(8, "slice 1ms/20ms");
    fixture.end_driver();
    fixture.exchange();
    assert_done(&fixture.set(7, CELL));
    assert!(!fixture.awaits());
    assert_eq!(fixture.ceiling_of("pid:7"), Some(10));
}

#[test]
fn a_driver_that_ends_or_refuses_gives_the_target_its_class() {
    let mut fixture = Fixture::with_a_waiting_target();
    fixture.end_driver();
    assert_eq!(fixture.ceiling_of("pid:7"), Some(10));
    assert!(!fixture.awaits());

    let mut fixture = Fixture::with_a_waiting_target();
    fixture.driver.refuses = Some("no room".to_owned());
    fixture.answer_pending();
    assert_eq!(fixture.ceiling_of("pid:7"), Some(10));
    assert!(!fixture.awaits());

    // A driver that cannot be started.
    let mut fixture = Fixture::new();
    fixture.driver_answers = false;
    fixture.set(7, CELL);
    assert!(fixture.awaits());
    fixture.end_driver();
    assert_eq!(fixture.ceiling_of("pid:7"), Some(10));
    assert!(!fixture.awaits());
}

#[test]
fn whatever_ends_the_wait_leaves_nothing() {
    let mut fixture = Fixture::with_a_waiting_target();
    assert_done(&fixture.withdraw(7));
    fixture.assert_wait_is_over();

    let mut fixture = Fixture::with_a_waiting_target();
    assert_done(&fixture.set(7, "cell none"));
    fixture.assert_wait_is_over();

    let mut fixture = Fixture::with_a_waiting_target();
    fixture.service.host().exit(7);
    fixture.service.close_and_rebind(fixture.now);
    fixture.flows.settle_all(&mut fixture.service, fixture.now);
    fixture.exchange();
    fixture.assert_wait_is_over();

    // Another class for the same target: it has a priority, which the classes serve.
    let mut fixture = Fixture::with_a_waiting_target();
    assert_done(&fixture.set(7, "cell none min 10mbit priority 2"));
    assert!(!fixture.awaits() && fixture.share_of("pid:7").is_some());
    assert_done(&fixture.withdraw(7));
    fixture.assert_wait_is_over();
}

#[test]
fn a_change_that_is_not_confirmed_ends_the_wait() {
    let mut fixture = Fixture::new();
    fixture.set(8, "slice 1ms/20ms");
    fixture.driver_answers = false;
    let confirmed = |set: &mut Set| set.confirm_ns = Some(1_000_000_000);
    assert_done(&fixture.set_with(7, CELL, confirmed));
    assert!(fixture.awaits());
    fixture.now.monotonic = fixture.now.monotonic.after(Nanos::from_secs(1));
    fixture.service.expire(fixture.now);
    fixture.flows.settle_all(&mut fixture.service, fixture.now);
    fixture.exchange();
    fixture.assert_wait_is_over();
}

#[test]
fn a_request_that_changes_nothing_begins_no_wait() {
    let mut fixture = Fixture::new();
    fixture.set(8, "slice 1ms/20ms");
    fixture.driver_answers = false;
    let before = fixture.service.ledger().clone();
    let response = fixture.set_with(7, CELL, |set| set.dry_run = true);
    assert_done(&response);
    assert_eq!(before, *fixture.service.ledger());
    // The kernel refuses each step of the request in turn.
    let mut refused = 0;
    for step in 0.. {
        fixture.service.host().fails_in = Some(step);
        let response = fixture.set(7, CELL);
        if matches!(response, Response::Done(_)) {
            fixture.service.host().fails_in = None;
            break;
        }
        refused += 1;
        let ledger = fixture.service.ledger();
        assert!(ledger.awaiting().is_empty() && ledger.held().count() == 1);
    }
    assert!(refused > 0);
    assert_done(&fixture.withdraw(7));
    fixture.assert_wait_is_over();
}

#[test]
fn a_class_that_the_kernel_refuses_is_tried_again() {
    let mut fixture = Fixture::with_a_waiting_target();
    fixture.advance(Nanos::from_millis(2_999));
    fixture.service.host().fails_in = Some(0);
    fixture.advance(Nanos::from_millis(1));
    assert_eq!(fixture.share_of("pid:7"), None);
    let due = fixture.flows.next_due().expect("a time");
    assert_eq!(due, fixture.now.monotonic.after(Nanos::from_secs(1)));
    fixture.advance(Nanos::from_secs(1));
    assert_eq!(fixture.ceiling_of("pid:7"), Some(10));
    assert_done(&fixture.withdraw(7));
    fixture.assert_wait_is_over();
}

#[test]
fn the_next_daemon_gives_a_waiting_target_its_class() {
    let mut fixture = Fixture::with_a_waiting_target();
    let folder = std::path::Path::new("/nonexistent");
    let store = Store::new(folder, "boot", 1);
    let rollbacks = Default::default();
    let bytes = store.bytes(fixture.service.ledger(), &rollbacks);
    let state = store.parse(&bytes.expect("bytes")).expect("whole");
    let saved = SavedState::Complete(Box::new(state.expect("of this boot")));
    let mut service = Service::new(fixture.service.host().clone(), None);
    service.start(saved, fixture.now);
    fixture.service = service;
    assert!(!fixture.awaits());
    assert_eq!(fixture.ceiling_of("pid:7"), Some(10));
    // The driver had got the request, and goes on.
    for (_, call) in std::mem::take(&mut fixture.unanswered) {
        fixture.answer(&call);
    }
    fixture.driver_answers = true;
    fixture.restart();
    fixture.flows.settle_all(&mut fixture.service, fixture.now);
    fixture.exchange();
    assert_eq!(fixture.redirects().len(), 2);
    assert_done(&fixture.withdraw(7));
    fixture.assert_wait_is_over();
}
