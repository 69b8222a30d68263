//! Tests that a driver notices when the machine does not let it run: the driver is stopped by a
//! signal, and afterwards its file of stops and `explain` have the time.

use std::time::Duration;

use netnice_lab::alibi;
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::sys;
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::{self, Direct};
use netnice_lab::world::Family;

#[test]
fn a_driver_records_that_it_was_stopped() {
    let mut bed = TestBed::new().expect("a test bed");
    let restarted = bed.netnice.restart_with(&["--driver-stops"]);
    restarted.expect("the daemon starts");
    let device = bed.world.client().port().device.clone();
    bed.run_ok(&format!("link {device} --rate 100mbit"));
    let from = at(bed.world.client(), Family::V4, 7100);
    let to = at(bed.world.server(), Family::V4, 7100);
    let source = Direct::source(from, to).by(bed.netnice.runtime());
    let source = source.contract("cell pcr=10mbit,cdvt=1ms");
    let source = traffic::start_now(bed.world.client(), &source).expect("a flow");
    std::thread::sleep(Duration::from_millis(200));
    let driver = bed.world.client().ns.driver().expect("a driver");
    let driver = i32::try_from(driver).expect("a process number");
    sys::kill(driver, libc::SIGSTOP).expect("it can be stopped");
    std::thread::sleep(STOPPED);
    sys::kill(driver, libc::SIGCONT).expect("it can be continued");
    let file = bed.netnice.runtime().join(format!("driver-{device}.stops"));
    let until = std::time::Instant::now() + EVENT_TIMEOUT;
    loop {
        let log = std::fs::read_to_string(&file).expect("a file of stops");
        let stops = alibi::parse(&log).expect("stops");
        if stops.iter().any(|stop| stop.length.0 >= LONG) {
            break;
        }
        assert!(std::time::Instant::now() < until, "{log}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let page = bed.run_ok(&format!("explain direct:{device}")).stdout;
    assert!(page.contains("by the machine"), "{page}");
    source.stop().expect("a report");
}

/// How long the driver is stopped, and the stop in ns that it must have recorded: it asked to wake
/// at most 2 ms after the signal.
const STOPPED: Duration = Duration::from_millis(400);
const LONG: u64 = 380_000_000;
