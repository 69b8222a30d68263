//! The promises about rates, each by its experiment in the quick form: a subset that fits a test,
//! with the tolerance of a test. Exact figures, latencies and costs are runs of the lab.

use netnice_lab::experiment::{self, bench};
use netnice_lab::world;

fn holds(id: &str) {
    all_hold(&[id]);
}

/// Experiments that leave the processors mostly idle are run side by side.
fn all_hold(ids: &[&str]) {
    if bench::functional() {
        eprintln!("{ids:?}: rates are not judged on this machine");
        return;
    }
    world::begin().expect("a clean start");
    std::thread::scope(|scope| {
        for id in ids {
            scope.spawn(|| holds_in_time(id));
        }
    });
}

fn holds_in_time(id: &str) {
    let experiment = experiment::find(id).expect("in the registry");
    let outcome = experiment.test().expect("it can be measured");
    assert!(outcome.holds, "{id}:\n  {}", outcome.broken());
}

#[test]
fn accuracy() {
    holds("accuracy");
}

#[test]
fn what_is_promised_of_a_link() {
    all_hold(&["guarantees", "weights"]);
}

/// Alone: it floods, and needs a machine that can.
#[test]
fn receive() {
    holds("receive");
}

#[test]
fn what_is_slow_side_by_side() {
    all_hold(&[
        "change",
        "death",
        "two-interfaces",
        "nice-fig3",
        "nice-fig4",
    ]);
}
