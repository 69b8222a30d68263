//! Tests of flows of other protocols, and of errors that the network reports.

use super::super::protocol::*;
use super::*;

#[test]
fn flows_of_other_protocols_carry_payloads_between_their_addresses() {
    let test = TestProgram::new("c-protocols");
    let (here, there) = (ip_storage("10.78.0.1:0"), ip_storage("10.78.0.2:0"));
    let length = size_of::<sockaddr_storage>() as u32;
    let mut ip: Ip = empty();
    (ip.protocol, ip.local_length, ip.remote_length) = (253, length, length);
    (ip.local, ip.remote) = ((&raw const here).cast(), (&raw const there).cast());
    let sender = netnice_open_ip(test.program, &ip);
    assert!(sender > 0, "{}", last_error());
    // The receiver is a flow from any host, with a filter.
    let pattern = Term::new(0, 0xff, b'y');
    (ip.local, ip.remote) = ((&raw const there).cast(), null());
    (ip.pattern, ip.terms) = (&raw const pattern, 1);
    let receiver = netnice_open_ip(test.program, &ip);
    assert!(receiver > 0, "{}", last_error());
    assert_eq!((send(sender, "no"), send(sender, "yes")), (2, 3));
    let (text, received) = recv(receiver);
    assert_eq!(text, "yes");
    let from: sockaddr_in = pointers::read((&raw const received.from).cast(), "it").unwrap();
    assert_eq!((from.sin_family, from.sin_port), (libc::AF_INET as u16, 0));
    let mut info: FlowInfo = empty();
    assert_eq!(netnice_flow_info(sender, &mut info), 0);
    assert_eq!(info.longest, 1480);
    // A value outside its mask, and a protocol that is no number of one.
    let wrong = Term::new(0, 0x0f, 0xf0);
    ip.pattern = &raw const wrong;
    assert_eq!(
        (netnice_open_ip(test.program, &ip), errno()),
        (-1, libc::EINVAL)
    );
    (ip.terms, ip.protocol) = (0, 256);
    assert_eq!(
        (netnice_open_ip(test.program, &ip), errno()),
        (-1, libc::EINVAL)
    );
}

#[test]
fn a_flow_of_an_ethertype_names_the_station_of_each_packet() {
    let test = TestProgram::new("c-ether");
    let mut ether: Ether = empty();
    ether.number = 0x88b5;
    let flow = netnice_open_ether(test.program, &ether);
    assert!(flow > 0, "{}", last_error());
    let to = pointers::storage(Some(Address::Ethernet([2, 0, 0, 0, 0, 9])));
    let (bytes, length) = (
        "frame".as_ptr().cast(),
        size_of::<libc::sockaddr_ll>() as u32,
    );
    let sent = netnice_flow_send_to(flow, bytes, 5, (&raw const to).cast(), length, TIMEOUT);
    assert_eq!(sent, 5, "{}", last_error());
    let (text, received) = recv(flow);
    assert_eq!(text, "frame");
    let from: libc::sockaddr_ll = pointers::read((&raw const received.from).cast(), "it").unwrap();
    assert_eq!(c_int::from(from.sll_family), libc::AF_PACKET);
    assert_eq!(from.sll_addr[..6], [2, 0, 0, 0, 0, 2]);
    // Without an address, and with one of another kind.
    assert_eq!((send(flow, "frame"), errno()), (-1, libc::EDESTADDRREQ));
    let ip = ip_storage("10.78.0.2:1");
    let sent = netnice_flow_send_to(flow, bytes, 5, (&raw const ip).cast(), 128, TIMEOUT);
    assert_eq!((sent, errno()), (-1, libc::EAFNOSUPPORT));
    assert_eq!(netnice_open_ether(test.program, null()), -1);
    assert_eq!(errno(), libc::EFAULT);
}

#[test]
fn reported_errors_have_the_errno_of_a_connected_socket() {
    let test = TestProgram::new("c-reports");
    let remote = ip_storage("10.78.0.2:9");
    let mut udp: Udp = empty();
    udp.remote = (&raw const remote).cast();
    (udp.remote_length, udp.flags) = (size_of::<sockaddr_storage>() as u32, 32);
    let flow = netnice_open_udp(test.program, &udp);
    assert!(flow > 0, "{}", last_error());
    let mut info: FlowInfo = empty();
    assert_eq!(netnice_flow_info(flow, &mut info), 0);
    let tell = |why, mtu| {
        let report = netnice_stack::Undelivered {
            to: "10.78.0.2:9".parse().unwrap(),
            by: "10.78.0.9".parse().unwrap(),
            why,
            mtu,
            sequence: None,
        };
        let notification = FlowNotification::Undelivered {
            flow: info.id,
            report,
        };
        test.daemon.send(DaemonCommand::Notify(notification));
        let mut next: Notification = empty();
        while next.kind != 7 {
            assert!(netnice_notification(test.program, &mut next) >= 0);
        }
        (next.flow, next.error, next.mtu)
    };
    let told = tell(netnice_stack::DeliveryFailure::NoPort, None);
    assert_eq!(told, (flow, libc::ECONNREFUSED, 0));
    assert_eq!((send(flow, "?"), errno()), (-1, libc::ECONNREFUSED));
    assert_eq!(send(flow, "!"), 1);
    let told = tell(netnice_stack::DeliveryFailure::TooLong, Some(1300));
    assert_eq!(told, (flow, libc::EMSGSIZE, 1300));
    assert_eq!(netnice_flow_error(flow), libc::EMSGSIZE);
    assert_eq!(netnice_flow_error(flow), 0);
    tell(netnice_stack::DeliveryFailure::NoHost, None);
    let mut bytes = [0u8; 10];
    let room = bytes.as_mut_ptr().cast();
    assert_eq!(netnice_flow_recv(flow, room, 10, null_mut(), 0), -1);
    assert_eq!(errno(), libc::EHOSTUNREACH);
}
