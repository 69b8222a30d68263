//! Runs experiments in virtual time in their quick form: those whose names end in `-sim`, and
//! `cell-dma`. They need neither root nor a clock, and have the same result each time.

use netnice_lab::experiment;

fn assert_holds(id: &str) {
    let experiment = experiment::find(id).expect("in the registry");
    let outcome = experiment.test().expect("it can be played");
    assert!(outcome.holds, "{id}:\n  {}", outcome.broken());
}

#[test]
fn simulated_cell_experiments_hold() {
    assert_holds("cell-fig3-sim");
    assert_holds("cell-fig4-sim");
    assert_holds("cell-dma");
}

#[test]
fn simulated_slice_experiments_hold() {
    assert_holds("ntcp-fig4-sim");
    assert_holds("vert-fig5a-sim");
    assert_holds("vert-fig5b-sim");
}

#[test]
fn simulated_channel_experiments_hold() {
    assert_holds("rtc-fig5-sim");
    assert_holds("rtc-fig6-sim");
    assert_holds("rtc-fig7b-sim");
}
