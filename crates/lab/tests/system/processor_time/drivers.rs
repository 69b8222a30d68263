//! Tests the processor time of a driver beside a program that has its time exactly.

use netnice_core::units::Nanos;
use netnice_kernel::processor::policy::{self, Deadline, Policy};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::thread_named;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Direct};
use netnice_lab::world::Family;

/// A driver's budget follows what it used in the last seconds. So a burst after a pause finds the
/// least budget, 100 us of each millisecond, and without more its packets would leave late.
#[test]
fn a_driver_beside_exact_time_has_a_reservation_and_what_no_other_uses() {
    let bed = TestBed::new().expect("a test bed");
    let device = bed.world.client().port().device.clone();
    bed.run_ok(&format!("link {device} --rate 100mbit"));
    let from = at(bed.world.client(), Family::V4, 7100);
    let to = at(bed.world.server(), Family::V4, 7100);
    let source = Direct::source(from, to).by(bed.netnice.runtime());
    let source = traffic::start_now(bed.world.client(), &source).expect("a flow");
    let driver = bed.world.client().ns.driver().expect("a driver");
    let packets = thread_named(driver, "packets").expect("the packet thread");
    let reserved = || match policy::policy(packets).expect("a thread") {
        Policy::Deadline(reserved) => Some(reserved),
        _ => None,
    };
    assert_eq!(reserved(), None);
    let sleeper = bed.sleeper();
    bed.run_ok(&format!("set pid:{} --cpu 2ms/10ms", sleeper.pid()));
    let Policy::Deadline(exact) = policy::policy(sleeper.pid()).expect("a process") else {
        panic!("the program does not have its time exactly");
    };
    let two_of_ten = Deadline::exactly(Nanos::from_millis(2), Nanos::from_millis(10));
    assert_eq!(exact, two_of_ten);
    let of_driver = reserved().expect("a reservation");
    assert!(of_driver.reclaims, "{of_driver:?}");
    assert!(of_driver.budget >= Nanos::from_micros(100), "{of_driver:?}");
    assert_eq!(of_driver.period, Nanos::from_millis(1));
    bed.run_ok(&format!("clear pid:{}", sleeper.pid()));
    assert!(becomes_true(|| reserved().is_none()), "{:?}", reserved());
    source.stop().expect("a report");
}
