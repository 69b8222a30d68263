//! Tests that a reserved port is held and its socket receives nothing, with sockets on lo.

use std::io::ErrorKind;
use std::net::{Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::*;

fn on_lo(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[test]
fn a_reserved_port_and_a_bound_port_refuse_a_second_holder() {
    let reserved = Port::reserve(on_lo(0)).expect("a port");
    assert_ne!(reserved.address().port(), 0);
    let second = UdpSocket::bind(reserved.address()).expect_err("it is reserved");
    assert_eq!(second.kind(), ErrorKind::AddrInUse);
    let at = reserved.address();
    drop(reserved);
    let socket = UdpSocket::bind(at).expect("it is free again");
    let second = Port::reserve(at).expect_err("a socket has it");
    assert_eq!(second.kind(), ErrorKind::AddrInUse);
    drop(socket);
}

#[test]
fn a_port_of_all_addresses_is_taken_on_each_address_of_its_family() {
    let all = Port::reserve((Ipv4Addr::UNSPECIFIED, 0).into()).expect("a port");
    let one = UdpSocket::bind(on_lo(all.address().port())).expect_err("it is reserved");
    assert_eq!(one.kind(), ErrorKind::AddrInUse);
    let other = (Ipv6Addr::UNSPECIFIED, all.address().port());
    Port::reserve(other.into()).expect("the same port of the other family is another one");
}

#[test]
fn a_datagram_to_a_reserved_port_is_dropped_without_an_icmp_error() {
    let reserved = Port::reserve(on_lo(0)).expect("a port");
    let sender = UdpSocket::bind(on_lo(0)).expect("a socket");
    sender.connect(reserved.address()).expect("connected");
    sender.send(b"for nobody").expect("sent");
    std::thread::sleep(Duration::from_millis(20));
    let waiting = rustix::io::ioctl_fionread(&reserved.socket).expect("a number");
    assert_eq!(waiting, 0);
    // No ICMP message reports an unreachable port.
    sender.send(b"again").expect("no error came back");
}

#[test]
fn a_tcp_port_is_silent_until_the_kernel_may_reset_and_stays_reserved() {
    let reserved = Port::reserve_tcp(on_lo(0)).expect("a port");
    let at = reserved.address();
    let connect = || TcpStream::connect_timeout(&at, Duration::from_millis(100));
    let is_taken = |what: &str| {
        // `TcpListener` sets SO_REUSEADDR.
        let second = TcpListener::bind(at).expect_err(what);
        assert_eq!(second.kind(), ErrorKind::AddrInUse, "{what}");
        let second = Port::reserve_tcp(at).expect_err(what);
        assert_eq!(second.kind(), ErrorKind::AddrInUse, "{what}");
    };
    for _ in 0..2 {
        let silent = connect().expect_err("no answer");
        assert_eq!(silent.kind(), ErrorKind::TimedOut);
        is_taken("it is reserved");
        reserved.let_kernel_reset().expect("it stops listening");
        let reset = connect().expect_err("a reset");
        assert_eq!(reset.kind(), ErrorKind::ConnectionRefused);
        is_taken("it is reserved after it stopped listening");
        reserved.silence().expect("it listens again");
    }
    UdpSocket::bind(at).expect("the port of UDP is another one");
    drop(reserved);
    TcpListener::bind(at).expect("it is free again");
}

#[test]
fn a_tcp_port_with_a_connection_of_the_kernel_cannot_be_reserved() {
    let listener = TcpListener::bind(on_lo(0)).expect("a port");
    let at = listener.local_addr().expect("an address");
    let _client = TcpStream::connect(at).expect("connected");
    let (_accepted, _) = listener.accept().expect("accepted");
    drop(listener);
    let taken = Port::reserve_tcp(at).expect_err("a connection has it");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
}

#[test]
fn an_address_of_another_host_cannot_be_reserved() {
    let other = Port::reserve(([192, 0, 2, 1], 0).into()).expect_err("it is not ours");
    assert_eq!(other.kind(), ErrorKind::AddrNotAvailable);
}

#[test]
fn a_group_is_joined_once_on_an_interface_and_can_be_left() {
    const LO: u32 = 1;
    let groups: [IpAddr; 2] = [
        Ipv4Addr::new(239, 1, 1, 1).into(),
        Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x1234).into(),
    ];
    for group in groups {
        let port = Port::reserve((group, 0).into()).expect("a port");
        port.leave(group, LO).expect_err("it is not joined");
        port.join(group, LO).expect("joined");
        let second = port.join(group, LO).expect_err("it is joined already");
        assert_eq!(second.kind(), ErrorKind::AddrInUse);
        port.leave(group, LO).expect("left");
        port.join(group, LO).expect("joined again");
    }
}
