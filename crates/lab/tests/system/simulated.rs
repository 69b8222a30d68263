//! The experiments in virtual time, in their quick form: without root and clock, with the same
//! result each time.

use netnice_lab::experiment;

fn holds(id: &str) {
    let experiment = experiment::find(id).expect("in the registry");
    let outcome = experiment.test().expect("it can be played");
    assert!(outcome.holds, "{id}:\n  {}", outcome.broken());
}

#[test]
fn the_cell_paper() {
    holds("cell-fig3-sim");
    holds("cell-fig4-sim");
    holds("cell-dma");
}

#[test]
fn slices_of_a_link() {
    holds("ntcp-fig4-sim");
    holds("vert-fig5a-sim");
    holds("vert-fig5b-sim");
}

#[test]
fn real_time_channels() {
    holds("rtc-fig5-sim");
    holds("rtc-fig6-sim");
}
