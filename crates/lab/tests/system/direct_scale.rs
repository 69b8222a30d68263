//! Tests many flows of several programs through the daemon, by counts and bytes. The experiment
//! `direct-scale` judges how fast they are opened, and the daemon's memory, with 65,536 flows.

use netnice_lab::experiment::many_flows::{self, Size};

#[test]
fn many_flows_of_several_programs_send_by_their_contracts_and_leave_nothing() {
    let size = Size {
        programs: 4,
        flows: 256,
        seconds: 6.0,
    };
    let measured = many_flows::measure(size).expect("all flows are opened and closed");
    assert_eq!(measured.unsent, 0, "{measured:?}");
    assert_eq!(measured.above, 0, "{measured:?}");
    assert_eq!(measured.early, 0, "{measured:?}");
    assert!(measured.judged > 0, "{measured:?}");
    assert_eq!(measured.left, 0, "{measured:?}");
}
