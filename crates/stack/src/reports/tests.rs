use netnice_api::direct::DeliveryFailure;

use super::*;
use crate::fake_daemon::{DaemonCommand, FakeDaemon};
use crate::udp::UdpOptions;
use crate::{FlowNotification, Program, Socket, StackError};

fn report(host: &str, mtu: Option<u32>) -> Undelivered {
    Undelivered {
        to: format!("{host}:9").parse().unwrap(),
        by: "10.0.0.1".parse().unwrap(),
        why: match mtu {
            Some(_) => DeliveryFailure::TooLong,
            None => DeliveryFailure::NoPort,
        },
        mtu,
        sequence: None,
    }
}

#[test]
fn an_error_is_taken_once_and_the_latest_stays() {
    let reports = Reports::default();
    assert_eq!(reports.take(), None);
    reports.add(report("10.0.0.2", None), Instant::now());
    reports.add(report("10.0.0.3", None), Instant::now());
    assert_eq!(reports.take(), Some(report("10.0.0.3", None)));
    assert_eq!(reports.take(), None);
}

#[test]
fn a_path_mtu_is_one_hosts_and_ends() {
    let (reports, now) = (Reports::default(), Instant::now());
    reports.add(report("10.0.0.2", Some(1400)), now);
    let [host, other] = ["10.0.0.2", "10.0.0.3"].map(|host| host.parse().unwrap());
    assert_eq!(
        (reports.mtu_to(host, 1500), reports.mtu_to(host, 1300)),
        (1400, 1300)
    );
    assert_eq!(reports.mtu_to(other, 1500), 1500);
    let later = now + PATH_MTU_LIFETIME;
    assert_eq!(reports.known_mtu(host, 1500, later), 1500);
}

#[test]
fn endless_hosts_take_no_endless_memory() {
    let (reports, now) = (Reports::default(), Instant::now());
    for number in 0..3 * MAX_HOSTS as u32 {
        let host = std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string();
        reports.add(report(&host, Some(1400)), now);
    }
    assert!(reports.lock().path_mtus.len() <= MAX_HOSTS);
}
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

/// Has the daemon send a report, and waits until the program has read it.
fn tell(daemon: &FakeDaemon, program: &Program, socket: &Socket, report: Undelivered) {
    let flow = socket.id().unwrap();
    let notification = FlowNotification::Undelivered { flow, report };
    daemon.send(DaemonCommand::Notify(notification.clone()));
    while program.next_notification() != Some(notification.clone()) {
        std::thread::yield_now();
    }
}

#[test]
fn a_report_fails_the_next_call_once_if_the_program_asks_for_it() {
    let daemon = FakeDaemon::new("reports");
    let program = Program::attach(&daemon.dir(), None, 4, 4 << 20).unwrap();
    let to = "10.78.0.2:9".parse().unwrap();
    let options = UdpOptions {
        errors: true,
        ..UdpOptions::to(to)
    };
    let mut asks = program.open_udp(&options).unwrap();
    let mut other = program.open_udp(&UdpOptions::to(to)).unwrap();
    let report = report("10.78.0.2", None);
    // A call that sends.
    tell(&daemon, &program, &asks, report);
    let error = asks.send(b"?", TIMEOUT).unwrap_err();
    assert!(matches!(error, StackError::Undelivered(told) if told == report));
    assert!(
        error.to_string().contains("10.78.0.2:9 was not reached"),
        "{error}"
    );
    asks.send(b"!", TIMEOUT).unwrap();
    // A call that would block.
    tell(&daemon, &program, &asks, report);
    let error = asks.try_recv(&mut [0; 10]).unwrap_err();
    assert!(matches!(error, StackError::Undelivered(_)), "{error}");
    let error = asks.try_recv(&mut [0; 10]).unwrap_err();
    assert!(matches!(error, StackError::WouldBlock), "{error}");
    // The other flow does not fail, also after a report of its own.
    tell(&daemon, &program, &other, report);
    other.send(b"!", TIMEOUT).unwrap();
    assert_eq!(
        (other.take_error(), other.take_error()),
        (Some(report), None)
    );
    assert_eq!(asks.take_error(), None);
}

#[test]
fn a_flow_to_any_host_keeps_the_path_mtu_of_each_host() {
    let daemon = FakeDaemon::new("path-mtus");
    let program = Program::attach(&daemon.dir(), None, 4, 4 << 20).unwrap();
    let local = "10.78.0.1:4001".parse().unwrap();
    let mut any = program.open_udp(&UdpOptions::at(local)).unwrap();
    let [host, other] = ["10.78.0.2:9", "10.78.0.3:9"].map(|to| to.parse().unwrap());
    let send = |socket: &mut Socket, to: std::net::SocketAddr, bytes: usize| {
        socket.send_to(&vec![0; bytes], to, TIMEOUT)
    };
    // The fake daemon finds routes with an MTU of 1400.
    send(&mut any, host, 1372).unwrap();
    tell(&daemon, &program, &any, report("10.78.0.2", Some(1300)));
    let error = send(&mut any, host, 1273).unwrap_err();
    assert!(
        matches!(error, StackError::TooLong { longest: 1272, .. }),
        "{error}"
    );
    send(&mut any, host, 1272).unwrap();
    send(&mut any, other, 1372).unwrap();
}
