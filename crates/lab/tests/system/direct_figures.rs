//! The papers' figures on real packets, in their quick form: a driver, programs in threads, and what arrives.

use netnice_lab::experiment;
use netnice_lab::experiment::bench::functional;
use netnice_lab::world;

fn holds(id: &str) {
    if functional() {
        eprintln!("{id}: rates of single packets are not judged on an emulated machine");
        return;
    }
    world::begin().expect("a clean machine");
    let experiment = experiment::find(id).expect("in the registry");
    let outcome = experiment.test().expect("it can be measured");
    assert!(outcome.holds, "{id}:\n  {}", outcome.broken());
}

#[test]
fn slices_come_one_by_one_and_the_first_has_the_rest() {
    holds("vert-fig5b");
}

#[test]
fn one_receiver_slows_down_and_the_other_loses_nothing() {
    holds("vert-fig7");
}

#[test]
fn ten_shaped_connections_pass_a_policer() {
    holds("cell-fig3");
}

#[test]
fn an_overbooked_link_is_shared_in_proportion() {
    holds("cell-fig4");
}
