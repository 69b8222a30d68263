//! Tests of redirected targets: with the fake driver, and at its end; of admission, and of many
//! quick changes.

mod awaiting;
mod exhaustion;
mod random;

use std::collections::BTreeSet;

use netnice_api::{Clear, ClearWhat};
use netnice_core::target::Target;
use netnice_kernel::plan::Desired;

use super::*;

const CELL: &str = "cell pcr=10mbit,cdvt=2ms";

impl Fixture {
    fn spawn(&mut self, pids: std::ops::Range<u32>) {
        for pid in pids {
            self.service.host().spawn(pid, 0);
        }
    }

    fn withdraw(&mut self, pid: u32) -> Response {
        let what = ClearWhat::Target(format!("pid:{pid}"));
        let clear = Clear {
            what,
            dry_run: false,
            confirm_ns: None,
            for_ns: None,
            until: None,
        };
        self.ask(Request::Clear(clear), Some(pid))
    }

    fn unmanage(&mut self, iface: &str) -> Response {
        let change = LinkChange {
            iface: iface.to_owned(),
            unmanage: true,
            ..LinkChange::default()
        };
        self.ask(Request::Link(Box::new(change)), None)
    }

    fn desired(&mut self) -> Desired {
        self.service.host().in_force.desired.clone()
    }

    /// The places to which the kernel redirects, by target id.
    fn redirects(&mut self) -> BTreeMap<u32, u16> {
        let desired = self.desired();
        let targets = desired.targets.into_iter();
        let places = targets.filter_map(|one| Some((one.id, one.share?.redirect?)));
        places.collect()
    }

    fn has_pair(&mut self) -> bool {
        self.desired().links.iter().any(|link| link.has_redirects)
    }

    /// The contracts that the driver has for targets.
    fn targets_at_driver(&self) -> Vec<String> {
        let docs = self.driver.redirected.values();
        docs.map(|doc| doc.contract.clone()).collect()
    }

    fn end_driver(&mut self) {
        let starts = self.driver.starts;
        self.driver = Driver::default();
        self.driver.starts = starts;
        let event = driver::ConnectionEvent::Ended("the driver of eth0 has ended".to_owned());
        self.flows
            .handle_driver_event(&mut self.service, &eth0(), event, self.now);
        self.flows.settle_all(&mut self.service, self.now);
    }

    fn explained(&mut self, target: &str) -> String {
        let target: Target = target.parse().expect("a target");
        let mut page = netnice_api::Explained::default();
        self.flows
            .describe_redirect(self.service.ledger(), &target, &mut page);
        page.lines
            .join(" ")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Nothing of redirected targets is left anywhere.
    fn assert_nothing_is_left(&mut self) {
        assert!(
            self.driver.redirected.is_empty(),
            "{:?}",
            self.targets_at_driver()
        );
        let ledger = self.service.ledger();
        assert!(ledger.redirects().is_empty() && ledger.awaiting().is_empty());
        assert!(!self.has_pair() && self.redirects().is_empty());
        let states = self.flows.link_states.values();
        assert!(
            states
                .into_iter()
                .all(|state| !state.promised.has_targets())
        );
    }

    fn rate_promised(&self) -> u64 {
        let link = self.service.ledger().link("eth0").expect("managed");
        let [up, _] = self.service.ledger().promised(&link.link);
        up.0
    }
}

fn assert_done(response: &Response) {
    assert!(matches!(response, Response::Done(_)), "{response:?}");
}

#[test]
fn a_cell_contract_begins_changes_and_ends_at_the_driver() {
    let mut fixture = Fixture::new();
    assert_done(&fixture.set(7, CELL));
    assert_eq!(fixture.driver.starts, 1);
    assert_eq!(fixture.driver.far.as_deref(), Some("far-eth0"));
    assert_eq!(fixture.targets_at_driver(), [CELL]);
    assert_eq!(fixture.redirects().into_values().collect::<Vec<_>>(), [0]);
    // 164,000 bytes at the rate of the classes.
    let tree = fixture.direct_part().expect("a part").tree;
    let hold = tree.time_for(netnice_core::units::Bytes(164_000));
    assert_eq!(fixture.driver.holds, [hold.0]);
    let share = fixture.desired().targets[0].share.clone().expect("a share");
    assert_eq!(share.min.map(|min| min.bits_per_second()), Some(10_000_000));
    assert_eq!(share.max.map(|max| max.bits_per_second()), Some(10_000_000));
    assert!(
        fixture
            .explained("pid:7")
            .contains("the driver of eth0 keeps cell")
    );

    assert_done(&fixture.set(7, "cell pcr=20mbit,cdvt=2ms weight 7 up 30mbit"));
    assert_eq!(
        fixture.targets_at_driver(),
        ["weight 7 cell pcr=20mbit,cdvt=2ms"]
    );
    assert_eq!(fixture.redirects().into_values().collect::<Vec<_>>(), [0]);

    assert_done(&fixture.set(7, "cell none"));
    fixture.assert_nothing_is_left();
    assert_done(&fixture.set(7, "slice 2ms/20ms extra"));
    assert_eq!(
        fixture.targets_at_driver(),
        ["weight 7 slice 2ms/20ms extra"]
    );
    assert_done(&fixture.withdraw(7));
    fixture.assert_nothing_is_left();
    assert_eq!(fixture.rate_promised(), 0);
}

#[test]
fn a_minimum_goes_to_a_driver_that_runs_for_another_reason() {
    let mut fixture = Fixture::new();
    fixture.set(8, "min 5mbit");
    assert_eq!(fixture.driver.starts, 0);
    assert!(
        fixture
            .explained("pid:8")
            .contains("a minimum alone starts none")
    );
    fixture.set(7, CELL);
    let both = BTreeSet::from(["min 5mbit".to_owned(), CELL.to_owned()]);
    let at_driver = |fixture: &Fixture| {
        fixture
            .targets_at_driver()
            .into_iter()
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(at_driver(&fixture), both);
    fixture.withdraw(7);
    fixture.assert_nothing_is_left();

    let client = fixture.attached_client(&Peer::ROOT, 7);
    let flow = fixture.opened(&client, "10.0.0.2:1", "");
    fixture.flows.settle_all(&mut fixture.service, fixture.now);
    fixture.exchange();
    assert_eq!(fixture.targets_at_driver(), ["min 5mbit"]);
    fixture.close(&client, flow.flow);
    fixture.flows.settle_all(&mut fixture.service, fixture.now);
    fixture.exchange();
    fixture.assert_nothing_is_left();
}

#[test]
fn packets_go_to_the_classes_before_the_driver_ends_a_place() {
    let mut fixture = Fixture::new();
    fixture.set(7, CELL);
    fixture.driver_answers = false;
    fixture.set(7, "cell none up 1mbit");
    assert!(fixture.redirects().is_empty(), "in the classes at once");
    assert!(fixture.has_pair(), "the driver may still have packets");
    // The place is not used again before the answer.
    fixture.set(8, CELL);
    let places = fixture.service.ledger().redirects();
    assert_eq!(places.keys().copied().collect::<Vec<_>>(), [0, 1]);
    fixture.answer_pending();
    assert_eq!(fixture.redirects().into_values().collect::<Vec<_>>(), [1]);
    fixture.withdraw(8);
    fixture.assert_nothing_is_left();
}

#[test]
fn the_end_of_a_driver_gives_targets_to_the_classes_and_later_to_the_next_driver() {
    let mut fixture = Fixture::new();
    fixture.set(7, CELL);
    for (end, pause) in [1, 2, 4, 8, 16, 32, 60, 60].into_iter().enumerate() {
        fixture.end_driver();
        fixture.exchange();
        assert!(fixture.redirects().is_empty() && !fixture.has_pair());
        assert_eq!(fixture.direct_part(), None);
        assert!(
            fixture
                .explained("pid:7")
                .contains("the driver of eth0 has ended")
        );
        fixture.advance(Nanos::from_millis(pause * 1_000 - 1));
        assert_eq!(fixture.driver.starts, end + 1);
        fixture.advance(Nanos::from_millis(1));
        assert_eq!(fixture.driver.starts, end + 2);
        assert_eq!(fixture.targets_at_driver(), [CELL]);
        assert_eq!(fixture.redirects().len(), 1);
    }
    fixture.end_driver();
    fixture.withdraw(7);
    fixture.advance(Nanos::from_secs(100));
    fixture.assert_nothing_is_left();
    assert_eq!(fixture.driver.starts, 9);
    assert_eq!(fixture.flows.next_due(), None);
}

#[test]
fn a_contract_that_does_not_fit_is_refused_and_leaves_nothing() {
    let mut fixture = Fixture::new();
    let text = error_text(&fixture.set(7, "cell pcr=10mbit,cdvt=1us"));
    for part in [
        "pid:7 asks cell pcr=10mbit,cdvt=1us on eth0",
        "link",
        "but",
        "would fit",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(fixture.service.ledger().held().next().is_none());
    assert_eq!(fixture.driver.starts, 0);
    fixture.assert_nothing_is_left();

    fixture.set(7, "cell pcr=40mbit,cdvt=1ms");
    let before = fixture.service.ledger().clone();
    let text = error_text(&fixture.set(8, "slice 58ms/100ms"));
    assert!(text.contains("pid:7  cell pcr=40mbit,cdvt=1ms"), "{text}");
    let text = error_text(&fixture.set(7, "cell pcr=40mbit,cdvt=1us"));
    assert!(text.contains("would fit"), "{text}");
    assert_eq!(before, *fixture.service.ledger());
    assert_eq!(fixture.targets_at_driver(), ["cell pcr=40mbit,cdvt=1ms"]);
}

#[test]
fn a_cell_contract_that_no_driver_can_keep_is_refused_with_one_reason() {
    let mut fixture = Fixture::new();
    fixture.spawn(20..23);
    fixture.service.host().fork(22, 23);
    let table = [
        ("cell pcr=10mbit,cdvt=2ms priority 2", "it has a priority"),
        ("cell pcr=10mbit,cdvt=2ms class=1", "class"),
        ("cell pcr=10mbit,cdvt=2ms,class=1", "class= is for flows"),
        ("cell pcr=10mbit,cdvt=2ms up 5mbit", "above up"),
        ("cell pcr=10mbit,cdvt=2ms on eth1", "eth1"),
        ("cell pcr=10mbit,cdvt=2ms min 1mbit", "both reserve"),
        ("cell pcr=200mbit,cdvt=2ms", "would fit"),
    ];
    for (contract, word) in table {
        let text = error_text(&fixture.set(20, contract));
        assert!(text.contains(word), "{contract}: {text}");
        assert!(fixture.service.ledger().held().next().is_none());
    }
    fixture
        .service
        .host()
        .interfaces
        .insert("lo".to_owned(), true);
    assert_done(&fixture.link_of("lo", "100mbit"));
    let text = error_text(&fixture.set(20, "cell pcr=10mbit,cdvt=2ms on lo"));
    assert!(text.contains("lo has no Ethernet address"), "{text}");
    assert_done(&fixture.set(20, "slice 1ms/20ms on lo"));
    assert!(
        fixture
            .explained("pid:20")
            .contains("lo has no Ethernet address")
    );
    assert_done(&fixture.withdraw(20));
    assert_done(&fixture.unmanage("lo"));
    // Nested guarantees stay with the classes.
    assert_done(&fixture.set(22, "min 20mbit"));
    let text = error_text(&fixture.set(23, CELL));
    assert!(text.contains("pid:22 around it has a guarantee"), "{text}");
    assert_done(&fixture.withdraw(22));
    assert_done(&fixture.set(22, "cell pcr=20mbit,cdvt=2ms"));
    let text = error_text(&fixture.set(23, "min 1mbit"));
    assert!(text.contains("pid:23 inside it"), "{text}");
    assert_eq!(fixture.targets_at_driver().len(), 1);
}

#[test]
fn a_driver_without_af_xdp_leaves_targets_to_the_classes() {
    let mut fixture = Fixture::new();
    fixture.driver.is_fallback = true;
    assert_done(&fixture.set(7, CELL));
    fixture.assert_nothing_is_left();
    assert!(fixture.explained("pid:7").contains("no AF_XDP"));
    let mut shown = netnice_api::ShowDoc::default();
    shown.targets.push(netnice_api::TargetDoc {
        target: "pid:7".to_owned(),
        ..netnice_api::TargetDoc::default()
    });
    fixture
        .flows
        .describe_redirects(fixture.service.ledger(), &mut shown);
    assert!(
        shown.targets[0].degraded[0].contains("as a rate"),
        "{shown:?}"
    );
    // Nothing is tried again before its time, also if the driver ends for lack of work.
    fixture.end_driver();
    fixture.exchange();
    let due = fixture.flows.next_due().expect("a time");
    assert_eq!(due, fixture.now.monotonic.after(Nanos::from_secs(60)));
    fixture.advance(Nanos::from_secs(59));
    assert_eq!(fixture.driver.starts, 1);
    fixture.advance(Nanos::from_secs(1));
    assert_eq!(fixture.driver.starts, 2);
    assert_eq!(fixture.redirects().len(), 1);
}

#[test]
fn a_refusal_of_the_driver_is_kept_as_the_reason_and_tried_again() {
    let mut fixture = Fixture::new();
    fixture.driver.refuses = Some("no room".to_owned());
    assert_done(&fixture.set(7, CELL));
    assert_done(&fixture.set(8, "slice 1ms/20ms"));
    fixture.assert_nothing_is_left();
    assert!(fixture.explained("pid:7").contains("refuses: no room"));
    fixture.driver.refuses = None;
    fixture.advance(Nanos::from_secs(59));
    fixture.assert_nothing_is_left();
    fixture.advance(Nanos::from_secs(2));
    assert_eq!(fixture.redirects().len(), 2);
}

#[test]
fn a_driver_that_does_not_answer_leaves_a_target_to_the_classes() {
    let mut fixture = Fixture::new();
    fixture.set(7, CELL);
    fixture.driver_answers = false;
    fixture.set(8, CELL);
    assert_eq!(fixture.redirects().len(), 1);
    fixture.advance(CALL_TIMEOUT);
    assert!(fixture.explained("pid:8").contains("does not answer"));
    fixture.answer_pending();
    assert_eq!(fixture.targets_at_driver(), [CELL]);
    assert_eq!(fixture.service.ledger().redirects().len(), 1);
}

#[test]
fn a_link_that_becomes_too_slow_gives_the_last_targets_to_the_classes() {
    let mut fixture = Fixture::new();
    fixture.set(7, "cell pcr=40mbit,cdvt=2ms");
    fixture.set(8, "cell pcr=30mbit,cdvt=2ms");
    assert_eq!(fixture.redirects().len(), 2);
    fixture.relink("71mbit");
    assert_eq!(fixture.targets_at_driver(), ["cell pcr=40mbit,cdvt=2ms"]);
    assert!(
        fixture
            .explained("pid:8")
            .contains("the kernel's classes serve it")
    );
    fixture.relink("100mbit");
    assert_eq!(fixture.redirects().len(), 2);
}

#[test]
fn a_pair_that_is_made_anew_is_given_to_the_driver_with_all_targets() {
    let mut fixture = Fixture::new();
    fixture.set(7, CELL);
    fixture.set(8, "min 5mbit");
    assert_eq!(fixture.driver.holds.len(), 2);
    fixture.service.host().remade_pairs += 1;
    for _ in 0..2 {
        fixture.flows.balance(fixture.now);
        fixture.exchange();
    }
    assert_eq!(fixture.driver.holds.len(), 4);
    assert_eq!(fixture.redirects().len(), 2);
    assert_eq!(fixture.driver.redirected.len(), 2);
}

#[test]
fn a_restarted_daemon_takes_over_what_its_drivers_have() {
    let mut fixture = Fixture::new();
    fixture.set(7, CELL);
    fixture.set(8, "slice 1ms/20ms");
    let before = (fixture.redirects(), fixture.driver.holds.len());
    let promised = fixture.rate_promised();
    fixture.restart();
    fixture.flows.settle_all(&mut fixture.service, fixture.now);
    fixture.exchange();
    assert_eq!(before, (fixture.redirects(), fixture.driver.holds.len()));
    assert_eq!(fixture.rate_promised(), promised);

    // A place that the driver does not have begins anew; a place without a contract ends.
    let mut lost = fixture.driver.redirected.remove(&0).expect("a place");
    (lost.place, lost.target) = (9, 99);
    fixture.driver.redirected.insert(9, lost);
    fixture.restart();
    fixture.flows.settle_all(&mut fixture.service, fixture.now);
    fixture.exchange();
    assert_eq!(fixture.redirects().len(), 2);
    assert!(!fixture.driver.redirected.contains_key(&9));
    assert_eq!(fixture.driver.redirected.len(), 2);
    assert_eq!(fixture.service.ledger().redirects().len(), 2);

    // Without a driver the targets begin anew.
    fixture.driver = Driver::default();
    fixture.flows = Flows::new(FakeNetwork::default());
    fixture.flows.settle_all(&mut fixture.service, fixture.now);
    fixture.exchange();
    assert_eq!((fixture.driver.starts, fixture.redirects().len()), (1, 2));
}

#[test]
fn a_reply_waits_until_the_target_is_redirected() {
    let mut fixture = Fixture::new();
    let wait = |fixture: &mut Fixture| {
        let id = fixture.service.ledger().held().next().expect("a target").id;
        let (reply, answer) = oneshot::channel();
        let response = Response::Done(netnice_api::Done::default());
        let with = (response, reply);
        fixture
            .flows
            .reply_when_redirected(&mut fixture.service, id, with, fixture.now);
        answer
    };
    fixture.driver_answers = false;
    fixture.set(7, CELL);
    let mut answer = wait(&mut fixture);
    assert!(answer.try_recv().is_err());
    fixture.answer_pending();
    fixture.exchange();
    fixture.flows.settle_all(&mut fixture.service, fixture.now);
    fixture.exchange();
    assert!(answer.try_recv().is_ok());

    assert_done(&fixture.withdraw(7));
    fixture.driver_answers = false;
    fixture.set(7, CELL);
    let mut late = wait(&mut fixture);
    fixture.advance(Nanos::from_millis(2_999));
    assert!(late.try_recv().is_err());
    fixture.advance(Nanos::from_millis(1));
    assert!(late.try_recv().is_ok(), "after 3 s in any case");
}

const CONTRACTS: [&str; 7] = [
    "cell pcr=2mbit,cdvt=20ms min none slice none",
    "cell pcr=9mbit,cdvt=2ms,scr=3mbit,mbs=20kB min none slice none",
    "min 4mbit cell none slice none",
    "min 11mbit cell none slice none",
    "slice 1ms/20ms extra min none cell none",
    "slice 3ms/20ms min none cell none",
    "up 30mbit min none cell none slice none",
];
