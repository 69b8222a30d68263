//! Tests of a program with a fake daemon: the messages on the socket, the descriptors, and the
//! notifications.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netnice_api::FailureCause;
use netnice_api::direct::FlowNotification;
use netnice_ring::Status;
use netnice_ring::layout::SetupError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Sleeper;
use crate::fake_daemon::{DaemonCommand, FakeDaemon};
use crate::udp::{Buffers, Remote, UdpOptions};
use crate::{Program, Socket, StackError};

const SOON: Option<Duration> = Some(Duration::from_secs(20));
const SMALL: Buffers = Buffers {
    bytes: 2048,
    sending: 8,
    receiving: 8,
};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn attach(daemon: &FakeDaemon) -> Program {
    let bytes = 8 * SMALL.region_bytes().unwrap();
    let program = Program::attach(&daemon.dir(), Some("wire0"), 8, bytes).unwrap();
    assert_eq!(program.iface(), Some("wire0"));
    assert_eq!(program.mode(), Some("native"));
    assert_eq!(
        program.next_notification(),
        Some(FlowNotification::Link { up: true })
    );
    assert_eq!(program.next_notification(), None);
    program
}

/// Two flows whose remote endpoints are each other.
fn pair(program: &Program, six: bool) -> (Socket, Socket) {
    let (a, b) = match six {
        false => (at("10.78.0.1:4001"), at("10.78.0.2:4002")),
        true => (at("[fd00::1]:4001"), at("[fd00::2]:4002")),
    };
    let open = |local, remote| {
        let options = UdpOptions {
            local,
            buffers: SMALL,
            contract: Some("slice 1ms/20ms".into()),
            ..UdpOptions::to(remote)
        };
        program.open_udp(&options).unwrap()
    };
    (open(a, b), open(b, a))
}

fn readable(program: &Program, milliseconds: i64) -> bool {
    let longest = Timespec {
        tv_sec: milliseconds / 1000,
        tv_nsec: milliseconds % 1000 * 1_000_000,
    };
    let fd = program.as_fd();
    poll(
        &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
        Some(&longest),
    )
    .unwrap()
        > 0
}

#[test]
fn a_socket_opens_a_flow_and_dropping_it_closes_the_flow() {
    let daemon = FakeDaemon::new("flows");
    let program = attach(&daemon);
    for six in [false, true] {
        let (mut here, mut there) = pair(&program, six);
        assert_eq!(here.contract(), "slice 1ms/20ms");
        assert_ne!(here.id(), there.id());
        here.send(b"hello", SOON).unwrap();
        let mut bytes = [0; 1500];
        let received = there.recv(&mut bytes, SOON).unwrap();
        assert_eq!(&bytes[..received.bytes], b"hello");
        assert_eq!(received.from, here.local());
        here.drain(SOON).unwrap();
        assert_eq!(here.under_way(), 0);
        assert_eq!(here.outcome().unwrap().unwrap().status, Status::DONE);
    }
    // Sixteen flows in succession in a memory file for eight: dropping a socket closes its flow.
    for _ in 0..8 {
        let _ = pair(&program, false);
    }
    // The socket reports the address and port that the daemon chose.
    let options = UdpOptions {
        buffers: SMALL,
        ..UdpOptions::to(at("10.78.0.7:7"))
    };
    let chosen = program.open_udp(&options).unwrap();
    assert_eq!(chosen.local().ip(), at("10.78.0.1:1").ip());
    assert!(chosen.local().port() > 40_000);
    assert_eq!(chosen.remote(), Some(at("10.78.0.7:7")));
    assert_eq!(chosen.contract(), "best effort");
}

#[test]
fn a_link_local_address_with_a_scope_matches_received_packets() {
    let daemon = FakeDaemon::new("scope");
    let program = attach(&daemon);
    let open = |local, remote| {
        let options = UdpOptions {
            local: at(local),
            buffers: SMALL,
            ..UdpOptions::to(at(remote))
        };
        program.open_udp(&options).unwrap()
    };
    let mut here = open("[fe80::1%3]:4001", "[fe80::2%3]:4002");
    let mut there = open("[fe80::2]:4002", "[fe80::1]:4001");
    there.send(b"hello", SOON).unwrap();
    assert_eq!(here.recv(&mut [0; 10], SOON).unwrap().bytes, 5);
}

#[test]
fn refusals_return_their_reason() {
    let daemon = FakeDaemon::new("refused");
    let attached = Program::attach(
        &netnice_api::RuntimeDir::choose(Some("/nowhere".into()), None),
        None,
        1,
        1 << 20,
    );
    let said = attached.err().expect("no daemon").to_string();
    assert_eq!(said, "no daemon answers at /nowhere/netnice.sock");
    let program = attach(&daemon);
    let (mut here, there) = pair(&program, false);
    let error = here.change("slice 100ms/20ms").unwrap_err();
    assert!(matches!(error, StackError::Refused { .. }), "{error}");
    assert_eq!(error.to_string(), "the link carries 10 ms of each 20 ms");
    assert_eq!(here.contract(), "slice 1ms/20ms");
    here.change("slice 2ms/20ms").unwrap();
    assert_eq!(here.contract(), "slice 2ms/20ms");
    // The stack refuses invalid buffers, and buffers smaller than a packet of the link.
    let options = |buffers| UdpOptions {
        buffers,
        ..UdpOptions::to(at("10.78.0.7:7"))
    };
    let said = |buffers| {
        let error = program.open_udp(&options(buffers)).err().expect("refused");
        error.to_string()
    };
    for (sending, receiving, which) in [
        (0, 8, "sending: 0, and 1"),
        (16_385, 8, "sending: 16385, and 1"),
        (u32::MAX, 8, "sending: 4294967295, and 1"),
        (8, 16_385, "receiving: 16385, and 0"),
    ] {
        let buffers = Buffers {
            sending,
            receiving,
            ..SMALL
        };
        let wanted = format!("buffers for {which} to 16384 are allowed");
        assert_eq!(said(buffers), wanted);
        assert!(matches!(buffers.region_bytes(), Err(SetupError::Shape(_))));
    }
    let most = Buffers {
        sending: 16_384,
        receiving: 16_384,
        ..SMALL
    };
    assert!(most.region_bytes().is_ok());
    let odd = Buffers {
        bytes: 1500,
        ..SMALL
    };
    assert_eq!(said(odd), "bytes of a chunk: 1500 is not a power of two");
    let short = Buffers {
        bytes: 1024,
        ..SMALL
    };
    assert_eq!(
        said(short),
        "buffers of 1024 bytes do not hold a packet of 1514 bytes"
    );
    // A flow that failed to open is closed: six more regions are free.
    drop((here, there));
    let all: Vec<_> = (0..8)
        .map(|_| program.open_udp(&options(SMALL)).unwrap())
        .collect();
    let error = program.open_udp(&options(SMALL)).err().expect("full");
    assert!(
        matches!(
            error,
            StackError::Failed {
                bad_usage: false,
                cause: None,
                ..
            }
        ),
        "{error}"
    );
    drop(all);
}

#[test]
fn a_flow_to_any_host_requests_each_next_hop_once() {
    let daemon = FakeDaemon::new("any");
    let program = attach(&daemon);
    let open = |local| {
        let options = UdpOptions {
            buffers: SMALL,
            ..UdpOptions::at(at(local))
        };
        program.open_udp(&options).unwrap()
    };
    let (mut server, mut client) = (open("10.78.0.1:53"), open("10.78.0.2:0"));
    assert_eq!(server.remote(), None);
    let (to, back) = (server.local(), client.local());
    let error = client.try_send_to(b"?", to).unwrap_err();
    assert!(matches!(error, StackError::UnknownNextHop(_)), "{error}");
    client.send_to(b"?", to, SOON).unwrap();
    let mut bytes = [0; 100];
    let received = server.recv(&mut bytes, SOON).unwrap();
    assert_eq!((received.bytes, received.from), (1, back));
    server.send_to(b"an answer", received.from, SOON).unwrap();
    assert_eq!(client.recv(&mut bytes, SOON).unwrap().bytes, 9);
    // All flows now know the next hop, for any port.
    let before = program.next_hop(to.ip()).unwrap();
    client.try_send_to(b"?", to).unwrap();
    client.try_send_to(b"?", at("10.78.0.1:54")).unwrap();
    assert_eq!(program.next_hop(to.ip()).unwrap(), before);
    // The path to the host carries less than the link does.
    let error = client.try_send_to(&[0; 1400], to).unwrap_err();
    let said = "a payload of 1400 bytes; the link carries 1372 in one packet";
    assert_eq!(error.to_string(), said);
    // The daemon names the host that does not answer.
    let error = client.send_to(b"?", at("10.78.0.99:9"), SOON).unwrap_err();
    assert_eq!(error.to_string(), "10.78.0.99 does not answer");
    let StackError::Failed { cause, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(cause, Some(FailureCause::NoAnswer));
    // Each kind of flow refuses the calls of the other kinds.
    let error = client.try_send(b"without a destination").unwrap_err();
    assert!(matches!(error, StackError::NoRemote), "{error}");
    let (mut one, _other) = pair(&program, false);
    let error = one.try_send_to(b"!", to).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the flow sends only to 10.78.0.2:4002: the call must not name a destination"
    );
}

#[test]
fn a_datagram_to_a_group_reaches_all_members() {
    let daemon = FakeDaemon::new("group");
    let program = attach(&daemon);
    let group = at("239.1.2.3:5000");
    let member = |local| {
        let options = UdpOptions {
            buffers: SMALL,
            ..UdpOptions::member(at(local), group)
        };
        assert_eq!(options.remote, Remote::Group(group));
        program.open_udp(&options).unwrap()
    };
    let (mut a, mut b) = (member("10.78.0.1:5000"), member("10.78.0.2:5000"));
    a.send(b"to all", SOON).unwrap();
    let mut bytes = [0; 100];
    for each in [&mut b, &mut a] {
        let received = each.recv(&mut bytes, SOON).unwrap();
        assert_eq!(&bytes[..received.bytes], b"to all");
        assert_eq!(received.from, at("10.78.0.1:5000"));
    }
}

#[test]
fn the_largest_payload_follows_the_path_mtu() {
    let daemon = FakeDaemon::new("mtu");
    let program = attach(&daemon);
    let (mut here, mut there) = pair(&program, false);
    let flow = here.id().unwrap();
    assert_eq!(here.longest(), 1472);
    daemon.send(DaemonCommand::Notify(FlowNotification::Mtu {
        flow,
        mtu: 1280,
    }));
    // The thread that waits for the other flow reads the notification, because there is one
    // connection.
    assert!(matches!(
        there.recv(&mut [0; 1], Some(Duration::from_millis(300))),
        Err(StackError::WouldBlock)
    ));
    assert_eq!(here.longest(), 1252);
    assert_eq!(there.longest(), 1472);
    let error = here.try_send(&[0; 1253]).unwrap_err();
    let said = "a payload of 1253 bytes; the link carries 1252 in one packet";
    assert_eq!(error.to_string(), said);
    here.try_send(&[0; 1252]).unwrap();
    assert_eq!(
        program.next_notification(),
        Some(FlowNotification::Mtu { flow, mtu: 1280 })
    );
    // A buffer limits the payload, whatever the link carries.
    daemon.send(DaemonCommand::Notify(FlowNotification::Mtu {
        flow,
        mtu: 9000,
    }));
    let begin = Instant::now();
    while program.next_notification().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(here.longest(), 2048 - 42);
    here.try_send(&[0; 2048 - 42]).unwrap();
    let mut bytes = [0; 4096];
    assert_eq!(there.recv(&mut bytes, SOON).unwrap().bytes, 1252);
    assert_eq!(there.recv(&mut bytes, SOON).unwrap().bytes, 2006);
}

#[test]
fn a_message_is_sent_whole_or_not_at_all() {
    let daemon = FakeDaemon::new("message");
    let program = attach(&daemon);
    let (mut here, mut there) = pair(&program, false);
    let part = [7; 1000];
    let error = here.try_send_message(&[&part[..]; 9]).unwrap_err();
    let said = "a message of 9 packets; the flow has room for 8 at a time";
    assert_eq!(error.to_string(), said);
    assert!(here.try_send_message(&[]).is_err());
    let mut held: Vec<_> = (0..6).map(|_| here.packet().unwrap()).collect();
    let error = here.try_send_message(&[&part[..]; 3]).unwrap_err();
    assert!(matches!(error, StackError::WouldBlock), "{error}");
    assert_eq!(here.under_way(), 0, "no packet was queued");
    held.drain(..).for_each(|packet| here.discard(packet));
    assert_eq!(here.send_message(&[&part[..]; 8], SOON).unwrap(), 0);
    assert_eq!(here.send_message(&[&part[..]; 3], SOON).unwrap(), 8);
    here.drain(SOON).unwrap();
    let mut bytes = [0; 1500];
    for _ in 0..8 {
        assert_eq!(there.recv(&mut bytes, SOON).unwrap().bytes, 1000);
    }
}

#[test]
fn the_end_of_a_flow_or_of_the_driver_wakes_waiting_threads() {
    let daemon = FakeDaemon::new("end");
    let program = attach(&daemon);
    let (mut here, mut there) = pair(&program, false);
    let flow = here.id().unwrap();
    let waiter = std::thread::spawn(move || {
        let error = here.recv(&mut [0; 10], SOON).unwrap_err();
        (here, error.to_string())
    });
    daemon.send(DaemonCommand::Notify(FlowNotification::Closed {
        flow,
        why: "its route is over wire1".into(),
    }));
    let (mut here, said) = waiter.join().unwrap();
    assert_eq!(said, "the flow is closed: its route is over wire1");
    assert_eq!(here.try_send(b"more").unwrap_err().to_string(), said);
    // Two threads wait: one reads the notification, both return.
    let (mut third, _fourth) = pair(&program, true);
    let waiters = [
        std::thread::spawn(move || there.recv(&mut [0; 10], SOON).unwrap_err().to_string()),
        std::thread::spawn(move || third.recv(&mut [0; 10], SOON).unwrap_err().to_string()),
    ];
    let ended = FlowNotification::Ended {
        why: "the driver of wire0 was killed".into(),
    };
    daemon.send(DaemonCommand::Notify(ended.clone()));
    for waiter in waiters {
        let said = waiter.join().unwrap();
        assert_eq!(
            said,
            "the direct path ended: the driver of wire0 was killed"
        );
    }
    while program
        .next_notification()
        .expect("the notification is stored")
        != ended
    {}
}

#[test]
fn a_closed_flow_reports_the_reason_although_the_message_is_late() {
    let daemon = FakeDaemon::new("late");
    let program = attach(&daemon);
    let (mut here, mut there) = pair(&program, false);
    let flow = here.id().unwrap();
    daemon.send(DaemonCommand::CloseSilently(flow));
    // The ring shows the end; the program never sleeps. Without the reason this is no end yet.
    let shut = Instant::now();
    while shut.elapsed() < Duration::from_millis(100) {
        let sent = here.try_send(b"x");
        assert!(
            matches!(sent, Ok(_) | Err(StackError::WouldBlock)),
            "{sent:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let why = "the policy says so".to_string();
    daemon.send(DaemonCommand::Notify(FlowNotification::Closed {
        flow,
        why,
    }));
    let said = "the flow is closed: the policy says so";
    assert_eq!(here.send(b"x", None).unwrap_err().to_string(), said);
    assert_eq!(here.try_send(b"x").unwrap_err().to_string(), said);
    // Without a message the flow is reported as closed after a second, also by a call without a
    // deadline.
    daemon.send(DaemonCommand::CloseSilently(there.id().unwrap()));
    let begin = Instant::now();
    let error = loop {
        // What arrived before the end is received first.
        if let Err(error) = there.recv(&mut [0; 10], None) {
            break error;
        }
    };
    assert!(matches!(error, StackError::Closed(None)), "{error}");
    assert!(begin.elapsed() >= Duration::from_millis(900));
}

#[test]
fn flows_continue_after_the_connection_to_the_daemon_is_lost() {
    let daemon = FakeDaemon::new("outlive");
    let program = attach(&daemon);
    let (mut here, mut there) = pair(&program, false);
    daemon.send(DaemonCommand::Disconnect);
    let mut bytes = [0; 100];
    // The waiting thread detects the loss and continues to wait for packets.
    assert!(matches!(
        there.recv(&mut bytes, Some(Duration::from_millis(200))),
        Err(StackError::WouldBlock)
    ));
    let error = here.change("slice 2ms/20ms").unwrap_err();
    assert!(matches!(error, StackError::NoDaemon), "{error}");
    here.send(b"still", SOON).unwrap();
    assert_eq!(there.recv(&mut bytes, SOON).unwrap().bytes, 5);
    // The timer wakes the program for another attempt to connect, and then not at once again.
    let mut wakes = 0;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(500) {
        if readable(&program, 10) {
            wakes += 1;
            program.poll(|_| {});
        }
    }
    assert!(wakes < 10, "{wakes}");
}

#[test]
fn a_program_that_wakes_often_learns_what_driver_and_daemon_did() {
    let daemon = FakeDaemon::new("woken");
    let program = attach(&daemon);
    let (mut here, mut there) = pair(&program, false);
    let until = Instant::now() + Duration::from_secs(20);
    let wake = |program: &Program| {
        let mut slots = Vec::new();
        let is_readable = program.arm() && readable(program, 10);
        program.poll_woken(is_readable, |slot| slots.push(slot));
        slots
    };
    here.send(b"hello", SOON).unwrap();
    while !wake(&program).contains(&there.slot()) {
        assert!(Instant::now() < until);
    }
    assert_eq!(there.try_recv(&mut [0; 100]).unwrap().bytes, 5);
    let flow = there.id().unwrap();
    let notification = FlowNotification::Mtu { flow, mtu: 900 };
    daemon.send(DaemonCommand::Notify(notification.clone()));
    while there.longest() != 900 - 28 {
        assert!(Instant::now() < until);
        wake(&program);
    }
    assert_eq!(program.next_notification(), Some(notification));
}

#[test]
fn a_program_resumes_its_attachment_when_a_daemon_listens_again() {
    let daemon = FakeDaemon::new("resume");
    let program = attach(&daemon);
    let (mut here, mut there) = pair(&program, false);
    let (first, second) = (here.id().unwrap(), there.id().unwrap());
    daemon.send(DaemonCommand::Disconnect);
    let until = Instant::now() + Duration::from_secs(20);
    while !matches!(here.change("slice 2ms/20ms"), Err(StackError::NoDaemon)) {
        assert!(Instant::now() < until);
    }
    // Another daemon gives one flow another number, its path another MTU, and has a flow whose
    // opening the program was never told of.
    daemon.send(DaemonCommand::Renumber {
        flow: second,
        number: 77,
        mtu: 1280,
    });
    daemon.send(DaemonCommand::Restart);
    let mut bytes = [0; 100];
    while there.id() == Some(second) {
        assert!(Instant::now() < until, "the waiting program resumes");
        let waited = there.recv(&mut bytes, Some(Duration::from_millis(100)));
        assert!(matches!(waited, Err(StackError::WouldBlock)));
    }
    assert_eq!((here.id(), there.id()), (Some(first), Some(77)));
    assert_eq!(
        program.next_notification(),
        Some(FlowNotification::Mtu {
            flow: 77,
            mtu: 1280
        })
    );
    assert_eq!(there.longest(), 1280 - 28);
    // Requests and notifications pass as before.
    here.change("slice 2ms/20ms").unwrap();
    assert_eq!(here.contract(), "slice 2ms/20ms");
    daemon.send(DaemonCommand::Notify(FlowNotification::Mtu {
        flow: 77,
        mtu: 1400,
    }));
    while there.longest() != 1400 - 28 {
        assert!(Instant::now() < until);
        program.poll(|_| {});
    }
    let options = UdpOptions {
        buffers: SMALL,
        ..UdpOptions::to(at("10.78.0.7:7"))
    };
    let third = program.open_udp(&options).unwrap();
    assert_eq!(third.id(), Some(78));
    here.send(b"hello", SOON).unwrap();
    assert_eq!(there.recv(&mut bytes, SOON).unwrap().bytes, 5);
}

#[test]
fn a_call_resumes_the_attachment_and_closes_unknown_flows() {
    let daemon = FakeDaemon::new("resume-call");
    let program = attach(&daemon);
    let (mut here, there) = pair(&program, false);
    daemon.send(DaemonCommand::Disconnect);
    let until = Instant::now() + Duration::from_secs(20);
    while !matches!(here.change("slice 2ms/20ms"), Err(StackError::NoDaemon)) {
        assert!(Instant::now() < until);
    }
    // The program forgets a flow while there is no daemon.
    drop(there);
    daemon.send(DaemonCommand::Restart);
    while let Err(error) = here.change("slice 2ms/20ms") {
        assert!(matches!(error, StackError::NoDaemon), "{error}");
        assert!(Instant::now() < until);
    }
    // Its region and slot are free again: the memory file has space for eight flows.
    let options = UdpOptions {
        buffers: SMALL,
        ..UdpOptions::to(at("10.78.0.7:7"))
    };
    let more: Vec<Socket> = (0..7)
        .map(|_| program.open_udp(&options).unwrap())
        .collect();
    assert_eq!(more.len(), 7);
}

#[test]
fn one_descriptor_reports_packets_and_notifications() {
    let daemon = FakeDaemon::new("loop");
    let program = attach(&daemon);
    let (mut here, mut there) = pair(&program, false);
    let mut seen = Vec::new();
    let mut wait_for = |wanted: u32| {
        let begin = Instant::now();
        while !seen.contains(&wanted) {
            assert!(begin.elapsed() < Duration::from_secs(20));
            if program.arm() {
                readable(&program, 1000);
            }
            program.poll(|slot| seen.push(slot));
        }
        seen.clear();
    };
    here.try_send(b"hello").unwrap();
    wait_for(there.slot());
    assert_eq!(there.try_recv(&mut [0; 10]).unwrap().bytes, 5);
    // A notification about a flow reports its slot. A notification about a link reports no slot,
    // but wakes the program.
    let flow = there.id().unwrap();
    daemon.send(DaemonCommand::Notify(FlowNotification::Mtu {
        flow,
        mtu: 1000,
    }));
    wait_for(there.slot());
    assert_eq!(
        program.next_notification(),
        Some(FlowNotification::Mtu { flow, mtu: 1000 })
    );
    assert_eq!(there.longest(), 972);
    // Another thread's call reads the notification from the connection, and still wakes the
    // sleeping thread.
    assert!(program.arm());
    daemon.send(DaemonCommand::Notify(FlowNotification::Link { up: false }));
    here.change("slice 2ms/20ms").unwrap();
    assert!(readable(&program, 20_000));
    program.poll(|_| {});
    assert_eq!(
        program.next_notification(),
        Some(FlowNotification::Link { up: false })
    );
    // So does a notification behind the other thread's response, in the same bytes.
    assert!(program.arm());
    here.change("slice 3ms/20ms").unwrap();
    assert_eq!(here.longest(), 872);
    assert!(readable(&program, 0));
    wait_for(here.slot());
    let next = program.next_notification();
    assert!(matches!(next, Some(FlowNotification::Mtu { mtu: 900, .. })));
    // The driver closes a flow, and the daemon's message follows.
    daemon.send(DaemonCommand::CloseSilently(flow));
    wait_for(there.slot());
    let error = there.try_recv(&mut [0; 10]).unwrap_err();
    assert!(matches!(error, StackError::WouldBlock), "{error}");
    let why = "its time is over".to_string();
    daemon.send(DaemonCommand::Notify(FlowNotification::Closed {
        flow,
        why,
    }));
    wait_for(there.slot());
    let error = there.try_recv(&mut [0; 10]).unwrap_err();
    assert_eq!(error.to_string(), "the flow is closed: its time is over");
}

#[test]
fn a_sleep_ends_for_the_driver_the_daemon_and_another_descriptor() {
    let daemon = FakeDaemon::new("sleep");
    let program = attach(&daemon);
    let (mut here, mut there) = pair(&program, false);
    let other = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    program.poll(|_| ());
    let sleeper = Sleeper::new(&program, other.as_fd()).unwrap();
    let second = Sleeper::new(&program, other.as_fd()).err().unwrap();
    assert_eq!(second.kind(), std::io::ErrorKind::AlreadyExists);
    let sleep = |longest| {
        assert!(program.arm());
        let readable = sleeper.sleep(longest).unwrap();
        let mut slots = Vec::new();
        program.poll_woken(readable, |slot| slots.push(slot));
        (readable, slots)
    };
    assert_eq!(sleep(Some(Duration::from_millis(20))), (false, vec![]));
    rustix::io::write(&other, &1u64.to_ne_bytes()).unwrap();
    assert_eq!(sleep(SOON), (false, vec![]));
    rustix::io::read(&other, &mut [0; 8]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            here.try_send(b"hello").unwrap();
        });
        while !sleep(SOON).1.contains(&there.slot()) {}
    });
    assert_eq!(there.try_recv(&mut [0; 10]).unwrap().bytes, 5);
    let down = FlowNotification::Link { up: false };
    daemon.send(DaemonCommand::Notify(down.clone()));
    while program.next_notification() != Some(down.clone()) {
        assert!(sleep(SOON).0);
    }
    // Nothing is left that would end a sleep; without the sleeper the program's descriptor is that
    // of the driver and the daemon alone.
    program.poll(|_| ());
    let began = Instant::now();
    assert_eq!(sleep(Some(Duration::from_millis(20))), (false, vec![]));
    assert!(began.elapsed() >= Duration::from_millis(20));
    drop(sleeper);
    rustix::io::write(&other, &1u64.to_ne_bytes()).unwrap();
    assert!(!readable(&program, 0));
    Sleeper::new(&program, other.as_fd()).unwrap();
}
