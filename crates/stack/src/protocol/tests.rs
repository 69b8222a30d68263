use std::net::IpAddr;
use std::time::Duration;

use super::*;
use crate::Program;
use crate::address::Address;
use crate::fake_daemon::FakeDaemon;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

fn program(name: &str) -> (FakeDaemon, Program) {
    let daemon = FakeDaemon::new(name);
    let program = Program::attach(&daemon.dir(), None, 8, 8 << 20).unwrap();
    (daemon, program)
}

fn host(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn term(offset: u16, mask: u8, value: u8) -> Term {
    Term {
        offset,
        mask,
        value,
    }
}

#[test]
fn payloads_of_an_ip_protocol_pass_between_two_addresses() {
    for (name, here, there, longest) in [
        ("ip-v4", "10.78.0.1", "10.78.0.2", 1480),
        ("ip-v6", "fd00::1", "fd00::2", 1460),
    ] {
        let (_daemon, program) = program(name);
        let (here, there) = (host(here), host(there));
        let mut one = program.open_ip(&IpOptions::to(253, there)).unwrap();
        let back = IpOptions {
            local: there,
            ..IpOptions::to(253, here)
        };
        let mut other = program.open_ip(&back).unwrap();
        assert_eq!((one.local().ip(), one.local().port()), (here, 0));
        assert_eq!(one.longest(), longest);
        one.send(b"payload", TIMEOUT).unwrap();
        let mut bytes = [0; 2000];
        let received = other.recv(&mut bytes, TIMEOUT).unwrap();
        assert_eq!(&bytes[..received.bytes], b"payload");
        assert_eq!((received.from.ip(), received.from.port()), (here, 0));
        // The longest payload passes, a longer one is refused.
        one.send(&vec![7; longest], TIMEOUT).unwrap();
        assert_eq!(other.recv(&mut bytes, TIMEOUT).unwrap().whole, longest);
        let error = one.send(&vec![7; longest + 1], TIMEOUT).unwrap_err();
        assert!(matches!(error, StackError::TooLong { .. }), "{error}");
    }
}

#[test]
fn a_pattern_selects_among_flows_of_one_protocol() {
    let (_daemon, program) = program("ip-pattern");
    let there = host("10.78.0.2");
    let mut sender = program.open_ip(&IpOptions::to(253, there)).unwrap();
    let mut receivers = [0x10, 0x20].map(|value| {
        let options = IpOptions {
            pattern: vec![term(1, 0xf0, value)],
            ..IpOptions::at(253, there)
        };
        program.open_ip(&options).unwrap()
    });
    sender.send(&[0, 0x2f], TIMEOUT).unwrap();
    sender.send(&[0, 0x1f], TIMEOUT).unwrap();
    for (receiver, expected) in receivers.iter_mut().zip([0x1f, 0x2f]) {
        let mut bytes = [0; 10];
        let received = receiver.recv(&mut bytes, TIMEOUT).unwrap();
        assert_eq!(bytes[..received.bytes], [0, expected]);
        let more = receiver.try_recv(&mut bytes).unwrap_err();
        assert!(matches!(more, StackError::WouldBlock), "{more}");
    }
}

#[test]
fn a_flow_to_any_host_names_an_address_for_each_payload() {
    let (_daemon, program) = program("ip-any");
    let here = host("10.78.0.1");
    let mut any = program.open_ip(&IpOptions::at(253, here)).unwrap();
    let there = IpOptions::at(253, host("10.78.0.2"));
    let mut receiver = program.open_ip(&there).unwrap();
    let error = any.send(b"?", TIMEOUT).unwrap_err();
    assert!(matches!(error, StackError::NoRemote), "{error}");
    any.send_to(b"to you", host("10.78.0.2"), TIMEOUT).unwrap();
    let mut bytes = [0; 10];
    assert_eq!(receiver.recv(&mut bytes, TIMEOUT).unwrap().bytes, 6);
    let error = any.send_to(b"?", [2, 0, 0, 0, 0, 9], TIMEOUT).unwrap_err();
    assert!(
        matches!(error, StackError::OtherAddress(Address::Ethernet(_))),
        "{error}"
    );
    assert!(error.to_string().contains("02:00:00:00:00:09"), "{error}");
}

#[test]
fn payloads_of_an_ethertype_go_to_the_named_station() {
    let (_daemon, program) = program("ether");
    let mut flow = program.open_ether(&EtherOptions::new(0x88b5)).unwrap();
    assert_eq!((flow.ether_type(), flow.longest()), (Some(0x88b5), 1500));
    let station = [2, 0, 0, 0, 0, 9];
    flow.send_to(b"frame", station, TIMEOUT).unwrap();
    let mut bytes = [0; 100];
    let received = flow.recv(&mut bytes, TIMEOUT).unwrap();
    assert_eq!(&bytes[..received.bytes], b"frame");
    assert_eq!(received.from_mac, flow.local_mac());
    let to: std::net::SocketAddr = "10.78.0.2:9".parse().unwrap();
    let error = flow.send_to(b"?", to, TIMEOUT).unwrap_err();
    assert!(matches!(error, StackError::OtherAddress(_)), "{error}");
}

#[test]
fn a_term_that_matches_no_packet_is_refused() {
    let (_daemon, program) = program("bad-term");
    for wrong in [term(PATTERN_REACH, 1, 1), term(0, 0x0f, 0x10)] {
        let options = EtherOptions {
            pattern: vec![wrong],
            ..EtherOptions::new(0x88b5)
        };
        let error = program.open_ether(&options).err().expect("refused");
        assert!(matches!(error, StackError::Pattern(_)), "{error}");
    }
}
