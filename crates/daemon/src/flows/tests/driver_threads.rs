//! Tests of what the flow manager knows of packet threads.

use netnice_api::driver::ThreadTimeDoc;

use super::*;
use crate::flows::driver_threads::DriverThread;

/// The thread is known by its id in the daemon's PID namespace, also of the driver of an earlier
/// daemon; its use comes with its counts of sent bytes.
#[test]
fn the_packet_thread_of_a_driver_is_known_with_its_use() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.flows.driver_threads(), []);
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "");
    let known = |used_ppm| DriverThread {
        link: "eth0".parse().expect("a name"),
        process: DRIVER_PROCESS,
        thread: DRIVER_PROCESS + 1,
        used_ppm,
        processor: None,
    };
    assert_eq!(fixture.flows.driver_threads(), [known(0)]);
    for (at, processor, waiting) in [(1, 100, 50), (2, 400, 150)] {
        fixture.driver.totals.thread = Some(ThreadTimeDoc {
            at_ns: at * 1_000_000_000,
            processor_ns: processor * 1_000_000,
            waiting_ns: waiting * 1_000_000,
        });
        fixture.flows.balance(fixture.now);
        fixture.exchange();
    }
    assert_eq!(fixture.flows.driver_threads(), [known(300_000)]);
    fixture.restart();
    assert_eq!(fixture.flows.driver_threads(), [known(0)]);
}

/// A driver that shares memory with a hostile program must not name the thread of another process.
#[test]
fn a_thread_that_is_not_the_drivers_is_not_taken() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "");
    let link = "eth0".parse().expect("a name");
    let stated = netnice_api::driver::PacketThreadDoc {
        id: 1,
        processor: None,
    };
    fixture.flows.identify_thread(&link, Some(stated));
    assert_eq!(fixture.flows.driver_threads(), []);
}

/// A driver that waits awake would take the time that is promised to programs.
#[test]
fn a_driver_may_wait_awake_only_in_part_while_processor_time_is_promised() {
    let mut fixture = Fixture::new();
    fixture.driver.awake_limit_ppm = Some(1_000_000);
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "");
    let answer = fixture.set(7, "cpu 2ms/10ms");
    assert!(matches!(answer, Response::Done(_)), "{answer:?}");
    assert_eq!(fixture.driver.awake_limit_ppm, Some(600_000));
    // The next daemon knows what the driver has.
    fixture.driver.awake_limit_ppm = Some(1_000_000);
    fixture.restart();
    assert_eq!(fixture.driver.awake_limit_ppm, Some(600_000));
    let answer = fixture.set(7, "cpu none up 1mbit");
    assert!(matches!(answer, Response::Done(_)), "{answer:?}");
    assert_eq!(fixture.driver.awake_limit_ppm, Some(1_000_000));
}

/// It would close the connection.
#[test]
fn a_driver_of_an_earlier_version_is_not_asked_what_it_does_not_know() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "");
    let answer = fixture.set(7, "cpu 2ms/10ms");
    assert!(matches!(answer, Response::Done(_)), "{answer:?}");
    assert_eq!(fixture.driver.awake_limit_ppm, None);
}
