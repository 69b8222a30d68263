//! Tests QUIC by quinn, in the short forms of two experiments: over flows of the direct path, each
//! connection with a contract of its own, and on a socket of the kernel with the pacer of
//! netnice-core. Judged are contents, conformance, and bytes over seconds; the experiments
//! themselves also judge gaps between packets and processor time.

use netnice_lab::experiment::{self, Outcome};

fn outcome(id: &str) -> Outcome {
    let experiment = experiment::find(id).expect("an experiment");
    experiment.test().expect("a measurement")
}

/// Connections with cells keep their contracts and lose nothing, alone and beside one without a
/// contract, whichever end accepts.
#[test]
fn quic_connections_over_flows_keep_their_contracts() {
    let outcome = outcome("direct-quic");
    assert_eq!(outcome.checks.len(), 12, "{:?}", outcome.checks);
    assert!(outcome.holds, "{}: {}", outcome.broken(), outcome.ours);
}

/// The pacer of netnice-core keeps quinn at the rate of its contract.
#[test]
fn quinn_sends_at_the_rate_of_its_pacer() {
    let outcome = outcome("quic-pacing");
    let rates = outcome.checks.iter();
    let rates: Vec<_> = rates.filter(|check| check.what.contains("rate")).collect();
    assert_eq!(rates.len(), 3, "{:?}", outcome.checks);
    for check in rates {
        assert!(check.holds, "{}: {}", check.what, check.value);
    }
}
