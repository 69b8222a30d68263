//! The promises about rates, each by its experiment in the quick form: a subset that fits a test,
//! with the tolerance of a test. Exact figures, latencies and costs are runs of the lab.

use netnice_lab::experiment::{self, bench};
use netnice_lab::world;

fn holds(id: &str) {
    if bench::functional() {
        eprintln!("{id}: rates are not judged on this machine");
        return;
    }
    world::begin().expect("a clean start");
    let experiment = experiment::find(id).expect("in the registry");
    let measure = || experiment.test().expect("it can be measured");
    let mut outcome = measure();
    if !outcome.holds {
        // A burst of other work on the machine is no fault of the limiter; a fault of the limiter shows again.
        eprintln!("{id} does not hold ({}); once more", outcome.broken());
        outcome = measure();
    }
    assert!(outcome.holds, "{id}:\n  {}", outcome.broken());
}

#[test]
fn accuracy() {
    holds("accuracy");
}

#[test]
fn change() {
    holds("change");
}

#[test]
fn two_interfaces() {
    holds("two-interfaces");
}

#[test]
fn guarantees() {
    holds("guarantees");
}

#[test]
fn weights() {
    holds("weights");
}

#[test]
fn receive() {
    holds("receive");
}

#[test]
fn death() {
    holds("death");
}

#[test]
fn a_running_sender_as_in_figure_3() {
    holds("nice-fig3");
}

#[test]
fn a_running_receiver_as_in_figure_4() {
    holds("nice-fig4");
}
