//! Tests of the calls as C makes them, with the fake daemon of `netnice-stack`.

use std::ffi::{CStr, CString, c_void};
use std::mem::{offset_of, size_of, zeroed};
use std::process::Command;
use std::ptr::{null, null_mut};

use libc::{iovec, sockaddr_in};
use netnice_api::RuntimeDir;
use proptest::prelude::*;

use super::buffers::*;
use super::channel::payload::*;
use super::channel::readiness::*;
use super::channel::state::*;
use super::channel::*;
use super::copying::*;
use super::messages::*;
use super::protocol::*;
use super::tcp::payload::*;
use super::tcp::readiness::*;
use super::tcp::*;
use super::*;
use crate::netnice_error;

mod channel;
mod protocol;

#[path = "../../../stack/src/fake_daemon.rs"]
mod fake_daemon;
mod messages;
mod tcp;

use fake_daemon::{DaemonCommand, FakeDaemon};

const TIMEOUT: c_int = 20_000;

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn last_error() -> String {
    // SAFETY: the pointer is never NULL, and the text ends with a 0.
    let text = unsafe { CStr::from_ptr(netnice_error()) };
    text.to_str().unwrap().to_string()
}

/// A structure before C fills it.
fn empty<T>() -> T {
    // SAFETY: used only for the header's structures, for which all zeros are valid.
    unsafe { zeroed() }
}

/// An address with a port for C.
fn ip_storage(text: &str) -> sockaddr_storage {
    pointers::storage(Some(Address::Ip(text.parse().unwrap())))
}

/// A program with its fake daemon.
struct TestProgram {
    daemon: FakeDaemon,
    program: c_int,
}

impl TestProgram {
    fn new(name: &str) -> TestProgram {
        let daemon = FakeDaemon::new(name);
        let program = super::attach(&daemon.dir(), Some("wire0"), 16, 16 << 20).unwrap();
        TestProgram { daemon, program }
    }

    /// Opens a flow to one remote endpoint or to any host.
    fn open(&self, local: &str, remote: Option<&str>) -> c_int {
        let storage = |text: &str| ip_storage(text);
        let (local, remote) = (storage(local), remote.map(storage));
        let mut udp: Udp = empty();
        udp.local = (&raw const local).cast();
        udp.local_length = size_of::<sockaddr_storage>() as u32;
        if let Some(remote) = &remote {
            udp.remote = (&raw const *remote).cast();
            udp.remote_length = size_of::<sockaddr_storage>() as u32;
        }
        udp.sending = 8;
        udp.receiving = 8;
        let flow = netnice_open_udp(self.program, &udp);
        assert!(flow > 0, "{}", last_error());
        flow
    }

    fn pair(&self) -> (c_int, c_int) {
        let (a, b) = ("10.78.0.1:4001", "10.78.0.2:4002");
        (self.open(a, Some(b)), self.open(b, Some(a)))
    }
}

impl Drop for TestProgram {
    fn drop(&mut self) {
        netnice_detach(self.program);
    }
}

fn send(flow: c_int, text: &str) -> isize {
    netnice_flow_send(flow, text.as_ptr().cast(), text.len(), TIMEOUT)
}

fn recv(flow: c_int) -> (String, Received) {
    let (mut bytes, mut received) = ([0u8; 2000], empty());
    let room = bytes.as_mut_ptr().cast::<c_void>();
    let count = loop {
        match netnice_flow_recv(flow, room, bytes.len(), &mut received, TIMEOUT) {
            // Another thread is in a call of the flow.
            -1 if errno() == libc::EBUSY => std::thread::yield_now(),
            count => break count,
        }
    };
    assert!(count >= 0, "{}", last_error());
    let text = std::str::from_utf8(&bytes[..count as usize]).unwrap();
    (text.to_string(), received)
}

fn buffer() -> Buffer {
    empty()
}

#[test]
fn structures_have_the_layout_of_the_header() {
    let root = env!("CARGO_MANIFEST_DIR");
    let out = std::env::temp_dir().join(format!("netnice-layout-{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-D_XOPEN_SOURCE=700", "-I"]);
    cc.arg(format!("{root}/include"));
    cc.arg(format!("{root}/tests/layout.c")).arg("-o").arg(&out);
    assert!(cc.status().unwrap().success());
    let printed = Command::new(&out).output().unwrap().stdout;
    std::fs::remove_file(&out).unwrap();
    let mut here = String::new();
    macro_rules! layout {
        ($name:literal, $structure:ty: $($field:ident)*) => {
            here += &format!("{} {}\n", $name, size_of::<$structure>());
            $(here += &format!(
                "{}.{} {}\n", $name, stringify!($field), offset_of!($structure, $field)
            );)*
        };
    }
    layout!("netnice_udp", Udp: local remote local_length remote_length contract buffer_bytes
        sending receiving hops flags);
    layout!("netnice_term", Term: offset mask value);
    layout!("netnice_ip", Ip: local remote local_length remote_length contract pattern terms
        protocol buffer_bytes sending receiving hops flags);
    layout!("netnice_ether", Ether: contract pattern terms number buffer_bytes sending receiving
        flags);
    layout!("netnice_notification", Notification: kind flow up mtu error mac why);
    layout!("netnice_flow_info", FlowInfo: local remote longest under_way no_buffer over_share
        too_long dropped id contract);
    layout!("netnice_received", Received: from bytes whole stamp);
    layout!("netnice_buffer", Buffer: data length id);
    layout!("netnice_messages", Messages: queued waiting held_back dropped retry_after);
    layout!("netnice_outcome", Outcome: number stamp status);
    layout!("netnice_tcp", Tcp: local remote local_length remote_length contract buffer_bytes
        sending receiving hops backlog flags);
    layout!("netnice_tcp_info", TcpInfo: local remote state error held_back mss congestion_window
        threshold in_flight peer_window rtt timeout acknowledged received segments_sent
        segments_received retransmitted timeouts);
    layout!("netnice_tcp_event", TcpEvent: number events);
    layout!("netnice_network", NetworkParameters: slice period packet receiving flags);
    layout!("netnice_channel", Channel: contract secret flags);
    layout!("netnice_service", Service: secret longest processing channels flags);
    layout!("netnice_refusal", Refusal: best_deadline host);
    layout!("netnice_departure", Departure: number logical deadline left);
    layout!("netnice_channel_message", Message: number completed whole);
    layout!("netnice_hop", HopInfo: bound host);
    layout!("netnice_channel_info", ChannelInfo: receives has_ended hosts id why retry_after
        messages packets dropped left late unsent incomplete overflowed corrupted malformed
        duplicates too_late);
    assert_eq!(String::from_utf8(printed).unwrap(), here);
}

#[test]
fn datagrams_are_sent_and_received() {
    let test = TestProgram::new("c-copying");
    let (here, there) = test.pair();
    assert_eq!(send(here, "hello"), 5);
    let (text, received) = recv(there);
    assert_eq!((text.as_str(), received.whole), ("hello", 5));
    let from: sockaddr_in = pointers::read((&raw const received.from).cast(), "it").unwrap();
    assert_eq!(u16::from_be(from.sin_port), 4001);
    assert_eq!(netnice_flow_drain(here, TIMEOUT), 0);
    let mut outcome: Outcome = empty();
    assert_eq!(netnice_flow_outcome(here, &mut outcome), 1);
    assert_eq!((outcome.number, outcome.status), (0, 0));
    assert_eq!(netnice_flow_outcome(here, &mut outcome), 0);
    // Several datagrams with one call.
    let texts = ["one", "two", "three"];
    let parts = texts.map(|text| iovec {
        iov_base: text.as_ptr().cast_mut().cast(),
        iov_len: text.len(),
    });
    assert_eq!(netnice_flow_send_batch(here, parts.as_ptr(), 3), 3);
    assert_eq!(
        netnice_flow_send_message(here, parts.as_ptr(), 2, TIMEOUT),
        0
    );
    assert_eq!(netnice_flow_drain(here, TIMEOUT), 0);
    let mut bytes = [[0u8; 4]; 5];
    let places = bytes.each_mut().map(|place| iovec {
        iov_base: place.as_mut_ptr().cast(),
        iov_len: 4,
    });
    let mut received = [(); 5].map(|()| empty::<Received>());
    // A missing buffer is found before a datagram is taken.
    let mut missing = places;
    missing[4].iov_base = std::ptr::null_mut();
    let none = netnice_flow_recv_batch(there, missing.as_ptr(), received.as_mut_ptr(), 5);
    assert_eq!((none, errno()), (-1, libc::EFAULT));
    let count = netnice_flow_recv_batch(there, places.as_ptr(), received.as_mut_ptr(), 5);
    assert_eq!(count, 5);
    assert_eq!(&bytes[2], b"thre");
    assert_eq!((received[2].bytes, received[2].whole), (4, 5));
    assert_eq!(
        netnice_flow_recv_batch(there, places.as_ptr(), received.as_mut_ptr(), 5),
        -1
    );
    assert_eq!(
        (errno(), last_error().as_str()),
        (
            libc::EAGAIN,
            "the call would block: no buffer is free, or no packet has arrived"
        )
    );
    // A flow to any host: each call names the destination.
    let any = test.open("10.78.0.3:53", None);
    let to = ip_storage("10.78.0.2:4002");
    let to_length = size_of::<sockaddr_storage>() as u32;
    let sent = netnice_flow_send_to(
        any,
        c"?".as_ptr().cast(),
        1,
        (&raw const to).cast(),
        to_length,
        TIMEOUT,
    );
    assert_eq!(sent, 1, "{}", last_error());
    assert_eq!(send(any, "?"), -1);
    assert_eq!(errno(), libc::EDESTADDRREQ);
    let mut info: FlowInfo = empty();
    assert_eq!(netnice_flow_info(any, &mut info), 0);
    assert_eq!(info.remote.ss_family, libc::AF_UNSPEC as u16);
    assert_eq!(netnice_flow_info(here, &mut info), 0);
    assert_eq!((info.longest, info.under_way), (1472, 0));
    // SAFETY: the text ends with a 0.
    let contract = unsafe { CStr::from_ptr(info.contract.as_ptr()) };
    assert_eq!(contract, c"best effort");
}

#[test]
fn payloads_are_written_and_read_in_place() {
    let test = TestProgram::new("c-buffers");
    let (here, there) = test.pair();
    let mut packet = buffer();
    for text in [&b"written"[..], b"again"] {
        assert_eq!(netnice_flow_packet(here, &mut packet), 0);
        assert!(packet.length >= 1472);
        // SAFETY: the buffer is long enough.
        unsafe { packet.data.copy_from(text.as_ptr().cast(), text.len()) };
        // After a failure the caller still holds the buffer.
        assert_eq!(netnice_flow_queue(here, &packet, 1473, 0), -1);
        assert_eq!(errno(), libc::EMSGSIZE);
        assert!(netnice_flow_queue(here, &packet, text.len(), 1) >= 0);
        assert_eq!(netnice_flow_queue(here, &packet, text.len(), 0), -1);
        assert_eq!(errno(), libc::EINVAL, "given back before");
        assert_eq!(netnice_flow_flush(here), 0);
        assert_eq!(netnice_flow_drain(here, TIMEOUT), 0);
        let mut datagram = buffer();
        let mut received = empty();
        assert_eq!(netnice_flow_receive(there, &mut datagram, &mut received), 0);
        // SAFETY: the buffer is valid until it is released.
        let seen =
            unsafe { std::slice::from_raw_parts(datagram.data.cast::<u8>(), datagram.length) };
        assert_eq!(seen, text);
        assert_eq!(
            netnice_flow_queue(there, &datagram, 1, 0),
            -1,
            "not to send from"
        );
        assert_eq!(netnice_flow_release(there, &datagram), 0);
        assert_eq!(netnice_flow_release(there, &datagram), -1);
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(netnice_flow_flush(there), 0);
    }
    assert_eq!(netnice_flow_packet(here, &mut packet), 0);
    assert_eq!(netnice_flow_discard(here, &packet), 0);
    assert_eq!(netnice_flow_discard(here, &packet), -1);
}

#[test]
fn one_descriptor_wakes_a_loop_that_gets_the_ready_flows() {
    let test = TestProgram::new("c-loop");
    let (here, there) = test.pair();
    let descriptor = netnice_descriptor(test.program);
    let wait = |milliseconds| {
        let mut fd = libc::pollfd {
            fd: descriptor,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `fd` is one element.
        unsafe { libc::poll(&mut fd, 1, milliseconds) }
    };
    let ready_flows = || {
        let mut flows = [0; 16];
        let count = netnice_poll(test.program, flows.as_mut_ptr(), 16);
        flows[..count as usize].to_vec()
    };
    // A new flow is reported once, because a packet may have arrived before it had a number.
    assert_eq!(netnice_arm(test.program), 0);
    let mut ready = ready_flows();
    ready.sort_unstable();
    let mut both = [here, there];
    both.sort_unstable();
    assert_eq!(ready, both);
    let until = |wanted: c_int| {
        for _ in 0..100 {
            if netnice_arm(test.program) == 1 {
                wait(1000);
            }
            // One flow at a time: the remaining ones prevent the next call from sleeping.
            let mut flow = 0;
            if netnice_poll(test.program, &mut flow, 1) == 1 && flow == wanted {
                return true;
            }
        }
        false
    };
    send(here, "hello");
    assert!(until(there));
    assert_eq!(recv(there).0, "hello");
    let (mut notification, mut info): (Notification, FlowInfo) = (empty(), empty());
    assert_eq!(netnice_notification(test.program, &mut notification), 1);
    assert_eq!(
        (notification.kind, notification.up, notification.flow),
        (1, 1, -1)
    );
    assert_eq!(netnice_flow_info(here, &mut info), 0);
    test.daemon
        .send(DaemonCommand::Notify(FlowNotification::Closed {
            flow: info.id,
            why: "its route uses wire1 ".repeat(20),
        }));
    assert!(until(here));
    assert_eq!(netnice_notification(test.program, &mut notification), 1);
    assert_eq!((notification.kind, notification.flow), (5, here));
    // SAFETY: the text is truncated and ends with a 0.
    let why = unsafe { CStr::from_ptr(notification.why.as_ptr()) };
    assert_eq!(why.count_bytes(), 229);
    assert_eq!(netnice_notification(test.program, &mut notification), 0);
    assert_eq!(send(here, "more"), -1);
    assert_eq!(errno(), libc::ECONNABORTED);
}

/// The parts of a message and their headers are longer than `mmax`: EMSGSIZE, and nothing is sent.
#[test]
fn a_message_above_mmax_is_refused() {
    let test = TestProgram::new("c-mmax");
    let (here, _there) = test.pair();
    let change = c"channel mmax=184B,rmax=10/s,bmax=1,deadline=10ms";
    assert_eq!(netnice_flow_change(here, change.as_ptr()), 0);
    let bytes = [0_u8; 51];
    let part = |iov_len| iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len,
    };
    let send = |lengths: [usize; 2]| {
        let parts = lengths.map(part);
        netnice_flow_send_message(here, parts.as_ptr(), 2, TIMEOUT)
    };
    assert_eq!((send([50, 51]), errno()), (-1, libc::EMSGSIZE));
    assert!(last_error().contains("mmax, which counts the headers, is 184 bytes"));
    let mut info: FlowInfo = empty();
    assert_eq!(netnice_flow_info(here, &mut info), 0);
    assert_eq!(info.under_way, 0);
    assert_eq!(send([50, 50]), 0);
}

#[test]
fn a_refusal_of_the_daemon_becomes_errno_and_message() {
    let test = TestProgram::new("c-refused");
    let (here, _) = test.pair();
    assert_eq!(netnice_flow_change(here, c"slice 100ms/20ms".as_ptr()), -1);
    assert_eq!(errno(), libc::ENOSPC);
    assert_eq!(last_error(), "the link carries 10 ms of each 20 ms");
    assert_eq!(netnice_flow_change(here, c"slice 1ms/20ms".as_ptr()), 0);
    let nowhere = RuntimeDir::choose(Some("/nowhere".into()), None);
    let error = super::attach(&nowhere, None, 1, 4096).unwrap_err();
    assert_eq!(error.errno(), libc::ECONNREFUSED);
    let mut udp: Udp = empty();
    assert_eq!(netnice_open_udp(test.program, &udp), -1);
    assert_eq!(errno(), libc::EFAULT, "no address");
    assert_eq!(netnice_buffer_bytes(&udp), 274_432);
    udp.buffer_bytes = 1000;
    assert_eq!(netnice_buffer_bytes(&udp), -1);
    assert_eq!(last_error(), "bytes of a chunk: 1000 is not a power of two");
    udp.flags = 64;
    assert_eq!(netnice_buffer_bytes(&udp), -1);
    assert_eq!(errno(), libc::EINVAL);
}

#[test]
fn flows_outlive_the_daemon_and_calls_of_a_closed_flow_fail() {
    let test = TestProgram::new("c-end");
    let (here, there) = test.pair();
    let mut info: FlowInfo = empty();
    assert_eq!(netnice_flow_info(there, &mut info), 0);
    test.daemon.send(DaemonCommand::CloseSilently(info.id));
    let mut bytes = [0u8; 8];
    let room = bytes.as_mut_ptr().cast();
    assert_eq!(netnice_flow_recv(there, room, 8, null_mut(), TIMEOUT), -1);
    assert_eq!(
        (errno(), last_error().as_str()),
        (libc::ECONNABORTED, "the flow is closed")
    );
    test.daemon.send(DaemonCommand::Disconnect);
    assert_eq!(netnice_flow_recv(here, room, 8, null_mut(), 200), -1);
    assert_eq!(errno(), libc::EAGAIN);
    assert_eq!(netnice_flow_change(here, c"slice 1ms/20ms".as_ptr()), -1);
    assert_eq!(errno(), libc::ENOTCONN);
    assert_eq!(send(here, "still"), 5);
    assert_eq!(netnice_flow_drain(here, TIMEOUT), 0);
}

#[test]
fn a_flow_is_used_by_one_thread_and_closed_numbers_are_refused() {
    let test = TestProgram::new("c-threads");
    let (here, there) = test.pair();
    let waiter = std::thread::spawn(move || recv(there).0);
    let busy = || netnice_flow_flush(there) == -1 && errno() == libc::EBUSY;
    while !busy() {
        assert!(!waiter.is_finished(), "it received nothing yet");
        std::thread::yield_now();
    }
    assert_eq!(netnice_flow_close(there), -1);
    assert_eq!(errno(), libc::EBUSY);
    assert_eq!(netnice_detach(test.program), -1);
    assert_eq!(errno(), libc::EBUSY);
    send(here, "go on");
    assert_eq!(waiter.join().unwrap(), "go on");
    assert_eq!(netnice_flow_close(there), 0);
    assert_eq!(netnice_flow_close(there), -1);
    assert_eq!(errno(), libc::EBADF);
    let again = test.open("10.78.0.2:4002", Some("10.78.0.1:4001"));
    assert_ne!(again, there, "numbers come again late");
    for wrong in [0, 1, 2, -1, c_int::MAX, c_int::MIN, test.program, there] {
        assert_eq!(send(wrong, "to nobody"), -1);
        assert_eq!(errno(), libc::EBADF);
    }
    assert_eq!(netnice_descriptor(here), -1, "a flow is no program");
    assert_eq!(netnice_detach(test.program), 0);
    assert_eq!(send(here, "too late"), -1);
    assert_eq!(errno(), libc::EBADF);
}

/// One call with any wrong arguments that C can pass without an invalid pointer.
#[derive(Clone, Debug)]
struct Misuse {
    call: u8,
    number: usize,
    null: [bool; 3],
    length: usize,
    count: c_int,
    timeout: c_int,
    flags: u32,
    id: u64,
    text: Vec<u8>,
}

fn misuse() -> impl Strategy<Value = Misuse> {
    let odd = prop_oneof![Just(0usize), 1usize..64, 1400usize..1500, Just(2000)];
    let counts = prop_oneof![Just(-1), 0..4i32, Just(c_int::MIN), Just(100_000)];
    let timeouts = prop_oneof![Just(0), Just(1), Just(-2), Just(c_int::MIN)];
    let nulls = prop::array::uniform3(prop::bool::weighted(0.2));
    let text = prop::collection::vec(1u8.., 0..20);
    let calls = (0u8..25, 0usize..8, nulls, odd, counts);
    let rest = (timeouts, 0u32..18, 0u64..20, text);
    (calls, rest).prop_map(
        |((call, number, null, length, count), (timeout, flags, id, text))| Misuse {
            call,
            number,
            null,
            length,
            count,
            timeout,
            flags,
            id,
            text,
        },
    )
}

impl Misuse {
    /// Makes the call. Returns its result.
    fn make(&self, test: &TestProgram, flows: [c_int; 3]) -> i64 {
        let number = [
            test.program,
            flows[0],
            flows[1],
            flows[2],
            0,
            -1,
            flows[0] ^ 1,
            1 << 17,
        ][self.number];
        match self.call {
            0..7 => self.call_with_copy(number),
            7..15 => self.call_with_buffer(number),
            15..22 => self.call_about_state(number),
            22 => {
                let udp = self.udp();
                let flow = netnice_open_udp(number, self.or_null(2, &raw const udp.0));
                assert!(flow < 0 || netnice_flow_close(flow) == 0);
                flow.into()
            }
            23 if number != test.program => netnice_detach(number).into(),
            24 if number != flows[0] && number != flows[1] => netnice_flow_close(number).into(),
            _ => -1,
        }
    }

    fn call_with_copy(&self, flow: c_int) -> i64 {
        let mut bytes = [7u8; 2048];
        let bytes: *mut c_void = self.or_null(0, bytes.as_mut_ptr()).cast_mut().cast();
        let mut received = [(); 4].map(|()| empty::<Received>());
        let received = self.or_null(1, received.as_mut_ptr()).cast_mut();
        let iov = [(); 4].map(|()| iovec {
            iov_base: bytes,
            iov_len: self.length,
        });
        let iov = self.or_null(2, iov.as_ptr());
        let (to, to_length) = (destination(), self.address_length());
        let to = self.or_null(1, &raw const to).cast();
        let (length, count, timeout) = (self.length, self.count(), self.timeout);
        match self.call {
            0 => netnice_flow_send(flow, bytes, length, timeout) as i64,
            1 => netnice_flow_send_to(flow, bytes, length, to, to_length, timeout) as i64,
            2 => netnice_flow_send_batch(flow, iov, count).into(),
            3 => netnice_flow_send_message(flow, iov, count, timeout).into(),
            4 => netnice_flow_drain(flow, timeout).into(),
            5 => netnice_flow_recv(flow, bytes, length, received, timeout) as i64,
            _ => netnice_flow_recv_batch(flow, iov, received, count).into(),
        }
    }

    fn call_with_buffer(&self, flow: c_int) -> i64 {
        let mut buffer = Buffer {
            data: null_mut(),
            length: self.length,
            id: self.id,
        };
        let buffer = self.or_null(2, &raw mut buffer).cast_mut();
        let (mut received, mut outcome): (Received, Outcome) = (empty(), empty());
        let received = self.or_null(1, &raw mut received).cast_mut();
        let outcome = self.or_null(0, &raw mut outcome).cast_mut();
        let (to, to_length) = (destination(), self.address_length());
        let to = self.or_null(1, &raw const to).cast();
        match self.call {
            7 => netnice_flow_packet(flow, buffer).into(),
            8 => netnice_flow_queue(flow, buffer, self.length, self.flags),
            9 => netnice_flow_queue_to(flow, buffer, self.length, to, to_length),
            10 => netnice_flow_discard(flow, buffer).into(),
            11 => netnice_flow_receive(flow, buffer, received).into(),
            12 => netnice_flow_release(flow, buffer).into(),
            13 => netnice_flow_flush(flow).into(),
            _ => netnice_flow_outcome(flow, outcome).into(),
        }
    }

    fn call_about_state(&self, number: c_int) -> i64 {
        let (mut notification, mut info): (Notification, FlowInfo) = (empty(), empty());
        let notification = self.or_null(0, &raw mut notification).cast_mut();
        let info = self.or_null(0, &raw mut info).cast_mut();
        let udp = self.udp();
        match self.call {
            15 => netnice_flow_info(number, info).into(),
            16 => netnice_flow_change(number, udp.0.contract).into(),
            17 => netnice_notification(number, notification).into(),
            18 => netnice_poll(number, null_mut(), self.count()).into(),
            19 => netnice_arm(number).into(),
            20 => netnice_descriptor(number).into(),
            _ => netnice_buffer_bytes(self.or_null(2, &raw const udp.0)),
        }
    }

    /// The description of a flow, with the memory that it points to.
    fn udp(&self) -> (Udp, Box<sockaddr_storage>, Vec<u8>) {
        let address = Box::new(destination());
        let mut text = self.text.clone();
        text.push(0);
        let mut udp: Udp = empty();
        udp.local = self.or_null(1, &raw const *address).cast();
        udp.local_length = self.address_length();
        udp.remote = self.or_null(0, udp.local);
        udp.remote_length = self.address_length();
        udp.contract = self.or_null(1, text.as_ptr()).cast();
        udp.sending = self.flags;
        udp.hops = self.length as u32;
        udp.flags = self.flags;
        (udp, address, text)
    }

    /// The pointer, or NULL in this place.
    fn or_null<T>(&self, place: usize, pointer: *const T) -> *const T {
        match self.null[place] {
            true => null(),
            false => pointer,
        }
    }

    /// A number of array elements that are there, or a wrong one.
    fn count(&self) -> c_int {
        match self.count {
            5..65_537 => 4,
            count => count,
        }
    }

    fn address_length(&self) -> u32 {
        [0, 1, 2, 16, 28, 128][self.id as usize % 6]
    }
}

fn destination() -> sockaddr_storage {
    ip_storage("10.78.0.2:4002")
}

/// One case where other tests have 50, because each case starts a fake daemon.
fn cases() -> ProptestConfig {
    let others = netnice_cases::cases(24 * 50).cases;
    ProptestConfig::with_cases((others / 50).max(24))
}

proptest! {
    #![proptest_config(cases())]

    /// After any sequence of wrong calls, each call has returned and valid flows work as before.
    #[test]
    fn wrong_calls_do_not_disturb_valid_flows(calls in prop::collection::vec(misuse(), 1..120)) {
        let test = TestProgram::new(&format!("c-misuse-{:?}", std::thread::current().id()));
        let (here, there) = test.pair();
        let any = test.open("10.78.0.3:53", None);
        for call in &calls {
            let done = call.make(&test, [here, there, any]);
            prop_assert!(done >= -1, "{done} of {call:?}");
            if done == -1 {
                let error = last_error();
                prop_assert!(!error.contains("a bug of libnetnice"), "{call:?}: {error}");
            }
        }
        // Free the buffers that the wrong calls took, by id. Then all eight buffers for sending and
        // all for receiving are available.
        for id in 0..200 {
            let taken = Buffer { data: null_mut(), length: 0, id };
            for flow in [here, there] {
                let _ = netnice_flow_discard(flow, &taken) + netnice_flow_release(flow, &taken);
            }
        }
        netnice_flow_drain(here, TIMEOUT);
        let mut bytes = [0u8; 100];
        while netnice_flow_recv(there, bytes.as_mut_ptr().cast(), 100, null_mut(), 50) >= 0 {}
        for _ in 0..2 {
            let text = CString::new("whole").unwrap();
            let part = iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: 5 };
            prop_assert_eq!(netnice_flow_send_message(here, [part; 8].as_ptr(), 8, TIMEOUT), 0);
            prop_assert_eq!(netnice_flow_drain(here, TIMEOUT), 0);
            for _ in 0..8 {
                prop_assert_eq!(recv(there).0, "whole");
            }
        }
        prop_assert_eq!(netnice_flow_send(here, null(), 1, 0), -1);
        prop_assert_eq!(errno(), libc::EFAULT);
    }
}
