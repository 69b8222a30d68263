//! The promises about rates, each by its experiment in the quick form: a subset that fits a test,
//! with the tolerance of a test. Exact figures, latencies and costs are runs of the lab.

use netnice_lab::experiment::{self, Context, Outcome, Subject, bench, figure};
use netnice_lab::world;

fn holds(id: &str) {
    if bench::functional() {
        eprintln!("{id}: rates are not judged on this machine");
        return;
    }
    world::begin().expect("a clean start");
    let context = Context {
        subject: Subject::Netnice,
        quick: true,
        only: None,
        plots: None,
    };
    let experiment = experiment::find(id).expect("in the registry");
    let measure = || experiment.run(&context).expect("it can be measured");
    let mut outcome = measure();
    if !outcome.holds {
        // A burst of other work on the machine is no fault of the limiter; a fault of the limiter shows again.
        eprintln!("{id} does not hold ({}); once more", broken(&outcome));
        outcome = measure();
    }
    assert!(outcome.holds, "{id}:\n  {}", broken(&outcome));
}

fn broken(outcome: &Outcome) -> String {
    let broken: Vec<String> = outcome
        .checks
        .iter()
        .filter(|c| !c.holds)
        .map(|c| {
            format!(
                "{}: {} {} (must be {})",
                c.what,
                figure(c.value),
                c.unit,
                c.bound
            )
        })
        .collect();
    broken.join("\n  ")
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
