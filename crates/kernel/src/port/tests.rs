//! Tests on lo.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

use super::*;

fn on_lo(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[test]
fn whoever_comes_second_hears_that_it_is_in_use() {
    let held = Port::hold(on_lo(0)).expect("a port");
    assert_ne!(held.at().port(), 0);
    let second = UdpSocket::bind(held.at()).expect_err("it is held");
    assert_eq!(second.kind(), ErrorKind::AddrInUse);
    let at = held.at();
    drop(held);
    let socket = UdpSocket::bind(at).expect("it is free again");
    let second = Port::hold(at).expect_err("a socket has it");
    assert_eq!(second.kind(), ErrorKind::AddrInUse);
    drop(socket);
}

#[test]
fn a_port_of_all_addresses_clashes_with_one_of_one() {
    let all = Port::hold((Ipv4Addr::UNSPECIFIED, 0).into()).expect("a port");
    let one = UdpSocket::bind(on_lo(all.at().port())).expect_err("it is held");
    assert_eq!(one.kind(), ErrorKind::AddrInUse);
    let other = (Ipv6Addr::UNSPECIFIED, all.at().port());
    Port::hold(other.into()).expect("the same port of the other family is another one");
}

#[test]
fn nothing_that_is_sent_there_is_kept() {
    let held = Port::hold(on_lo(0)).expect("a port");
    let sender = UdpSocket::bind(on_lo(0)).expect("a socket");
    sender.connect(held.at()).expect("connected");
    sender.send(b"for nobody").expect("sent");
    std::thread::sleep(Duration::from_millis(20));
    let mut waiting = 0_i32;
    // SAFETY: the number outlives the call.
    let done = unsafe { libc::ioctl(held.socket.as_raw_fd(), libc::FIONREAD, &raw mut waiting) };
    assert_eq!((done, waiting), (0, 0));
    // No ICMP message reports an unreachable port.
    sender.send(b"again").expect("no error came back");
}

#[test]
fn an_address_of_another_host_cannot_be_held() {
    let other = Port::hold(([192, 0, 2, 1], 0).into()).expect_err("it is not ours");
    assert_eq!(other.kind(), ErrorKind::AddrNotAvailable);
}
