//! Tests of held promises and routes with a fake daemon.

use std::net::IpAddr;

use crate::fake_daemon::FakeDaemon;
use crate::udp::{Buffers, UdpOptions};
use crate::{Program, Socket, StackError, route_to};

const CHANNEL: &str = "channel mmax=3KiB,rmax=100/s,bmax=2,deadline=50ms";

fn attached(daemon: &FakeDaemon) -> Program {
    let bytes = 4 * Buffers::default().region_bytes().unwrap();
    Program::attach(&daemon.dir(), None, 4, bytes).unwrap()
}

fn host() -> IpAddr {
    "10.78.0.2".parse().unwrap()
}

fn open(program: &Program, hold: u32) -> Result<Socket, StackError> {
    program.open_udp(&UdpOptions {
        contract: Some(CHANNEL.into()),
        hold: Some(hold),
        ..UdpOptions::to("10.78.0.2:4000".parse().unwrap())
    })
}

#[test]
fn a_held_promise_opens_one_flow() {
    let daemon = FakeDaemon::new("hold");
    let program = attached(&daemon);
    let held = program.hold(host(), CHANNEL).unwrap();
    assert_eq!(
        held.contract(),
        "channel mmax=3KiB,rmax=100/s,bmax=2,deadline=2ms"
    );
    assert_eq!((held.via(), held.mtu()), (host(), 1400));
    assert_eq!(held.from(), IpAddr::from([10, 78, 0, 1]));
    let socket = open(&program, held.number()).unwrap();
    assert_eq!(socket.contract(), CHANNEL);
    let error = open(&program, held.number()).err().unwrap();
    assert!(matches!(
        error,
        StackError::Failed {
            bad_usage: true,
            ..
        }
    ));
    drop(held);
}

#[test]
fn a_dropped_promise_is_released() {
    let daemon = FakeDaemon::new("release");
    let program = attached(&daemon);
    let [first, second] = [(); 2].map(|()| program.hold(host(), CHANNEL).unwrap());
    let number = first.number();
    drop(first);
    let error = open(&program, number).err().unwrap();
    assert!(error.to_string().contains("not held"), "{error}");
    open(&program, second.number()).unwrap();
}

#[test]
fn a_refused_hold_has_the_text_of_the_daemon() {
    let daemon = FakeDaemon::new("no-hold");
    let program = attached(&daemon);
    let short = CHANNEL.replace("50ms", "1ms");
    let error = program.hold(host(), &short).err().unwrap();
    assert!(matches!(error, StackError::Refused { .. }));
    assert!(error.to_string().contains("at least 2ms"), "{error}");
}

#[test]
fn a_route_needs_a_daemon_and_no_attachment() {
    let daemon = FakeDaemon::new("route");
    let route = route_to(&daemon.dir(), host()).unwrap();
    assert_eq!((route.iface.as_str(), route.via), ("only0", host()));
    assert_eq!(route.from, IpAddr::from([10, 78, 0, 1]));
    let dir = daemon.dir();
    drop(daemon);
    let error = route_to(&dir, host()).err().unwrap();
    assert!(matches!(error, StackError::Daemon(_)), "{error}");
}
