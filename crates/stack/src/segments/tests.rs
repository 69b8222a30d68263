use super::*;
use crate::fake_daemon::{DaemonCommand, FakeDaemon};

const SOON: Option<Duration> = Some(Duration::from_secs(20));
const SMALL: Buffers = Buffers {
    bytes: 2048,
    sending: 4,
    receiving: 4,
};
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn attach(daemon: &FakeDaemon) -> Program {
    let bytes = 8 * SMALL.region_bytes().unwrap();
    Program::attach(&daemon.dir(), Some("wire0"), 8, bytes).unwrap()
}

fn open(program: &Program, endpoint: SegmentEndpoint) -> SegmentFlow {
    program.open_segments(endpoint, None, SMALL).unwrap()
}

/// A frame of IPv4 with a segment. The checksums are wrong; these tests do not check them.
fn segment(from: &str, to: &str, flags: u8) -> Vec<u8> {
    let mut frame = vec![0; 54];
    (frame[12], frame[14], frame[23], frame[46], frame[47]) = (8, 0x45, 6, 5 << 4, flags);
    for (end, address, port) in [(at(from), 26, 34), (at(to), 30, 36)] {
        let SocketAddr::V4(end) = end else {
            panic!("{end}");
        };
        frame[address..address + 4].copy_from_slice(&end.ip().octets());
        frame[port..port + 2].copy_from_slice(&end.port().to_be_bytes());
    }
    frame
}

#[test]
fn a_client_and_a_server_exchange_frames() {
    let daemon = FakeDaemon::new("segments");
    let program = attach(&daemon);
    let (here, there) = ("10.78.0.1:4001", "10.78.0.2:80");
    let mut client = open(
        &program,
        SegmentEndpoint::Connection {
            local: at(here),
            remote: at(there),
        },
    );
    let local = at(there);
    let mut requests = open(&program, SegmentEndpoint::ConnectionRequests { local });
    let mut listener = open(&program, SegmentEndpoint::Listener { local });
    assert_eq!((client.local(), listener.local()), (at(here), local));
    assert_eq!((client.mtu(), client.key()), (1500, [5; 16]));
    assert!(client.next_hop().is_some() && listener.next_hop().is_none());
    // Longer than the rings: buffers come back on both sides.
    for _ in 0..20 {
        let request = segment(here, there, SYN);
        client.send(&request).unwrap();
        assert_eq!(requests.recv(SOON).unwrap(), request);
        let answer = segment(there, here, SYN | ACK);
        requests.send(&answer).unwrap();
        assert_eq!(client.recv(SOON).unwrap(), answer);
        let last = segment(here, there, ACK);
        client.send(&last).unwrap();
        assert_eq!(listener.recv(SOON).unwrap(), last);
    }
    for flow in [&mut client, &mut requests, &mut listener] {
        assert!(matches!(flow.try_recv(), Err(StackError::WouldBlock)));
    }
    let soon = Some(Duration::from_millis(5));
    assert!(matches!(client.recv(soon), Err(StackError::WouldBlock)));
}

#[test]
fn what_cannot_be_sent_and_the_end_of_a_flow_are_errors() {
    let daemon = FakeDaemon::new("segment-errors");
    let program = attach(&daemon);
    let mut client = open(
        &program,
        SegmentEndpoint::Connection {
            local: at("0.0.0.0:0"),
            remote: at("10.78.0.2:80"),
        },
    );
    assert_eq!(client.local().ip(), at("10.78.0.1:0").ip());
    for length in [0, 2049] {
        let error = client.send(&vec![0; length]).unwrap_err();
        assert!(
            matches!(error, StackError::TooLong { longest: 2048, .. }),
            "{error}"
        );
    }
    let number = client.number();
    daemon.send(DaemonCommand::CloseSilently(number));
    let closed = client.recv(SOON);
    assert!(
        matches!(closed, Err(StackError::Closed(None))),
        "{closed:?}"
    );
    client.close();
}
