//! Tests the short forms of the papers' experiments on the direct path, through daemon, driver and
//! processes: no packet is lost, missing or late that no recorded stop excuses, and shares of a
//! link are right within 3 % or more. The experiments themselves judge the exact figures; what a
//! busy machine can break is judged by them alone.

use netnice_lab::experiment::{self, Bound, Outcome};

fn outcome(id: &str) -> Outcome {
    let experiment = experiment::find(id).expect("an experiment");
    experiment.test().expect("a measurement")
}

/// Asserts that at least `number` checks have one of these parts in their names, and that all of
/// these hold.
fn assert_checks(outcome: &Outcome, parts: &[&str], number: usize) {
    let checks = outcome.checks.iter();
    let judged: Vec<_> = checks
        .filter(|check| parts.iter().any(|part| check.what.contains(part)))
        .collect();
    let (id, ours) = (&*outcome.id, &outcome.ours);
    assert!(judged.len() >= number, "{id}: {:?}", outcome.checks);
    for check in judged {
        assert!(check.holds, "{id}: {}: {}: {ours}", check.what, check.value);
    }
}

/// The value of the one check whose name begins so.
fn value(outcome: &Outcome, what: &str) -> f64 {
    let mut checks = outcome.checks.iter();
    let check = checks.find(|check| check.what.starts_with(what));
    check.expect("a check").value
}

/// Six slices, and a policer for cells.
#[test]
fn slices_and_cells_keep_what_no_stop_excuses() {
    for id in ["vert-fig5a", "cell-fig3"] {
        let outcome = outcome(id);
        let parts = ["not excused", "did not arrive", "finds early"];
        assert_checks(&outcome, &parts, 2);
    }
}

/// Slices that come one by one beside a flow that has the rest.
#[test]
fn slices_that_come_one_by_one_keep_what_no_stop_excuses() {
    let outcome = outcome("vert-fig5b");
    assert_checks(&outcome, &["not excused", "did not arrive"], 2);
}

/// Two senders without a promise lose nothing, and have no more than the link.
#[test]
fn two_senders_without_a_promise_lose_nothing() {
    let outcome = outcome("vert-fig6");
    assert_checks(&outcome, &["did not arrive"], 2);
    let total = outcome.ours["set-ups"][0]["total, Mbit/s"].as_f64();
    let total = total.expect("a rate");
    assert!(total <= 103.0, "{total} Mbit/s on a link of 100");
}

/// The losses of a consumer that is too slow are its own, and all are counted.
#[test]
fn a_slow_consumer_loses_its_own_packets() {
    let outcome = outcome("vert-fig7");
    let parts = [
        "sent, less received and counted",
        "not excused",
        "control: packets that consumer 2 lost",
    ];
    assert_checks(&outcome, &parts, 5);
}

/// In an overbooked class equal connections have equal parts and unequal ones keep their ratio; the
/// class before it is undisturbed, and the class behind it has its minimum.
#[test]
fn an_overload_is_shared_in_proportion() {
    let outcome = outcome("cell-fig4");
    // Each with 5 % in the short form.
    let parts = [
        "did not arrive",
        "equal connections",
        "unequal ones",
        "VC 3",
    ];
    assert_checks(&outcome, &parts, 4);
    let least = value(&outcome, "VC 2 in the overload with a minimum");
    assert!(
        least >= 5.0 * 0.97,
        "{least} % of the link: {}",
        outcome.ours
    );
}

/// A connection under a slice keeps to it, and sends nothing again.
#[test]
fn a_connection_keeps_its_slice() {
    let outcome = outcome("ntcp-fig4");
    // A packet more in a period than 2 of 2.4 ms, or 3 of 3 ms, would be early, unless stops of the
    // driver delayed a whole slice by most of its period.
    assert_checks(&outcome, &KEPT, 12);
}

/// The same for short and for long slices.
#[test]
fn connections_keep_short_and_long_slices() {
    let outcome = outcome("ntcp-rate");
    assert_checks(&outcome, &KEPT, 20);
    for check in &outcome.checks {
        let Bound::Near { aim, share } = check.bound else {
            continue;
        };
        let most = aim * (1.0 + share);
        assert!(check.value <= most, "{}: {}", check.what, check.value);
    }
}

/// Connections beside each other, with extra time and without.
#[test]
fn connections_beside_each_other_keep_their_slices() {
    let outcome = outcome("ntcp-fig5");
    assert_checks(&outcome, &KEPT, 4);
    assert_checks(&outcome, &["is not exceeded"], 2);
}

/// What a busy machine does not break of a connection.
const KEPT: [&str; 4] = ["finds early", "not full", "sent again", "behind a missing"];
