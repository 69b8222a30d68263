//! Tests of streams and listeners over a fake daemon and driver: both ends are in one program.

use std::io::{IoSlice, IoSliceMut, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use netnice_api::direct::FlowNotification;
use netnice_tcp::connection::{CloseReason, WriteError};
use netnice_tcp::header::{Flags, Header};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::frame::{Layout, Sums};
use super::{Event, HeldBack, ListenOptions, Listener, Poller, Stream, TcpOptions};
use crate::fake_daemon::{DaemonCommand, FakeDaemon};
use crate::headers::{FlowAddress, Headers};
use crate::segments::{SegmentEndpoint, SegmentFlow};
use crate::udp::Buffers;
use crate::{Program, StackError};

mod promotion;
mod service;

const SOON: Option<Duration> = Some(Duration::from_secs(20));
const SMALL: Buffers = Buffers {
    bytes: 2048,
    sending: 16,
    receiving: 16,
};
/// For listeners: their connections share them.
const SHARED: Buffers = Buffers {
    bytes: 2048,
    sending: 64,
    receiving: 64,
};

/// A program with a listener.
struct Bed {
    program: Program,
    listener: Listener,
    // Dropped last.
    daemon: FakeDaemon,
}

impl Bed {
    fn new(name: &str) -> Bed {
        Bed::with_backlog(name, 128)
    }

    fn with_backlog(name: &str, backlog: usize) -> Bed {
        let daemon = FakeDaemon::new(name);
        let local: SocketAddr = "10.78.0.2:80".parse().unwrap();
        let options = ListenOptions {
            buffers: SHARED,
            backlog,
            ..ListenOptions::at(local)
        };
        let bytes = options.region_bytes().unwrap() + 30 * SMALL.region_bytes().unwrap();
        let program = Program::attach(&daemon.dir(), Some("wire0"), 32, bytes).unwrap();
        let listener = program.listen(&options).unwrap();
        Bed {
            program,
            listener,
            daemon,
        }
    }

    fn connect(&self) -> Stream {
        let options = TcpOptions {
            buffers: SMALL,
            ..TcpOptions::to(self.listener.local())
        };
        self.program.connect(&options, SOON).unwrap()
    }

    /// A client's stream and the server's, if the program may have a further flow.
    fn try_pair(&self) -> Result<(Stream, Stream), StackError> {
        let options = TcpOptions {
            buffers: SMALL,
            ..TcpOptions::to(self.listener.local())
        };
        let client = self.program.connect(&options, SOON)?;
        Ok((client, self.listener.accept(SOON)?))
    }

    /// A client's stream and the server's.
    fn pair(&self) -> (Stream, Stream) {
        let client = self.connect();
        (client, self.listener.accept(SOON).unwrap())
    }
}

/// The events up to now, and the ones that come until there is one.
fn events(poller: &Poller) -> Vec<Event> {
    let mut events = Vec::new();
    let deadline = Instant::now() + SOON.unwrap();
    while events.is_empty() && Instant::now() < deadline {
        poller.wait(SOON).unwrap();
        poller.take(100, |event| events.push(event));
    }
    events
}

/// Waits for an event of the stream `token` that is as `wanted` says.
fn await_event(poller: &Poller, token: u64, wanted: impl Fn(Event) -> bool) {
    let deadline = Instant::now() + SOON.unwrap();
    while Instant::now() < deadline {
        let is_it = |event: &Event| event.token == token && wanted(*event);
        if events(poller).iter().any(is_it) {
            return;
        }
    }
    panic!("no such event of stream {token}");
}

fn is_readable(fd: impl std::os::fd::AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

/// Reads until nothing has arrived. Returns the number of bytes.
fn read_all(stream: &Stream) -> usize {
    let mut bytes = [0; 4096];
    let mut count = 0;
    loop {
        match stream.try_read(&mut bytes) {
            Ok(read) => count += read,
            Err(StackError::WouldBlock) => return count,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until the peer has acknowledged everything.
fn acknowledged(stream: &Stream) {
    await_true("acknowledged", || {
        let info = stream.info().unwrap();
        info.in_flight == 0 && info.held_back == HeldBack::Program
    });
}

/// A waker that counts.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Count>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn await_true(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON.unwrap();
    while !is_true() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn events_come_once_until_a_call_would_block() {
    let bed = Bed::new("tcp-events");
    let poller = Poller::new().unwrap();
    bed.listener.register(&poller, 7);
    assert!(!is_readable(&poller), "no connection waits");
    let client = bed.connect();
    let accept = Event {
        token: 7,
        readable: true,
        writable: false,
        ended: false,
    };
    assert_eq!(events(&poller), [accept]);
    let server = bed.listener.try_accept().unwrap();
    assert!(matches!(
        bed.listener.try_accept(),
        Err(StackError::WouldBlock)
    ));
    // It can be written at once.
    server.register(&poller, 1);
    let writable = Event {
        token: 1,
        readable: false,
        writable: true,
        ended: false,
    };
    assert_eq!(events(&poller), [writable]);
    assert!(!is_readable(&poller));
    for count in 1..=3 {
        client.write(b"hello", SOON).unwrap();
        let readable = Event {
            readable: true,
            writable: false,
            ..writable
        };
        assert_eq!(events(&poller), [readable], "{count}");
        // More arrives, and the program has not read.
        client.write(b"hello", SOON).unwrap();
        acknowledged(&client);
        assert_eq!(poller.take(10, |event| panic!("{event:?}")), 0);
        assert_eq!(read_all(&server), 10);
    }
    // The peer's end, then the end of both.
    client.shut_down();
    await_event(&poller, 1, |event| event.readable && !event.ended);
    assert_eq!(server.try_read(&mut [0; 10]).unwrap(), 0);
    server.shut_down();
    await_event(&poller, 1, |event| event.ended);
    // A dropped stream has no events.
    let (other, dropped) = bed.pair();
    dropped.register(&poller, 2);
    other.write(b"x", SOON).unwrap();
    drop(dropped);
    let mut left = Vec::new();
    poller.take(10, |event| left.push(event.token));
    assert!(!left.contains(&2), "{left:?}");
}

/// A SYN, with which nothing else follows.
fn send_lone_syn(program: &Program, to: SocketAddr) -> SegmentFlow {
    let local: SocketAddr = "10.78.0.1:0".parse().unwrap();
    let endpoint = SegmentEndpoint::Connection { local, remote: to };
    let mut flow = program.open_segments(endpoint, None, SMALL).unwrap();
    let local = flow.local();
    let address = FlowAddress {
        local,
        remote: to,
        local_mac: flow.mac(),
        next_hop: flow.next_hop().unwrap(),
        mtu: 1500,
        hops: 64,
    };
    let headers = Headers::ip(&address, 6).unwrap();
    let syn = Header {
        source: local.port(),
        destination: to.port(),
        flags: Flags::SYN,
        window: 1000,
        ..Header::default()
    };
    let mut bytes = [0; 200];
    let range =
        Layout::new(local.ip()).write(&mut bytes, &headers, &syn, (0, false), Sums::Written);
    flow.send(&bytes[range]).unwrap();
    flow
}

/// A connection that a cookie opened has the way to its peer also if it has nothing to send at
/// first.
#[test]
fn a_connection_by_cookie_sends_later() {
    let bed = Bed::with_backlog("tcp-cookie", 1);
    let mut lone = send_lone_syn(&bed.program, bed.listener.local());
    lone.recv(SOON).expect("an answer");
    let (client, server) = bed.pair();
    // The handshake is over at both ends, and its segments have left.
    acknowledged(&client);
    server.write(b"late", SOON).unwrap();
    let mut bytes = [0; 10];
    assert_eq!(client.read(&mut bytes, SOON).unwrap(), 4);
}

#[test]
fn a_full_stream_becomes_writable() {
    let bed = Bed::new("tcp-writable");
    let (client, server) = bed.pair();
    let poller = Poller::new().unwrap();
    client.register(&poller, 3);
    await_event(&poller, 3, |event| event.writable);
    let fill = || {
        let mut count = 0;
        loop {
            match client.try_write(&[7; 1000]) {
                Ok(written) => count += written,
                Err(StackError::WouldBlock) => return count,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let mut sent = fill();
    let mut read = 0;
    // Many times what the buffers hold.
    while sent < 500_000 {
        // The peer's window is closed in the end.
        await_true("the client sends", || {
            read += read_all(&server);
            poller.take(10, |event| assert!(event.writable)) > 0
        });
        sent += fill();
    }
    await_true("everything arrives", || {
        read += read_all(&server);
        read == sent
    });
}

/// Not each acknowledgement wakes a call that waits for room.
#[test]
fn a_writer_is_woken_when_a_quarter_of_its_buffers_is_free() {
    let bed = Bed::new("tcp-quarter");
    let (client, server) = bed.pair();
    let poller = Poller::new().unwrap();
    server.register(&poller, 5);
    let info = || server.info().unwrap();
    // The client's window is full, and so are the server's buffers.
    await_true("all is full", || {
        while server.try_write(&[7; 1000]).is_ok() {}
        info().in_flight == 0 && info().held_back == HeldBack::PeerWindow
    });
    assert!(matches!(
        server.try_write(&[7]),
        Err(StackError::WouldBlock)
    ));
    poller.take(10, |_| {});
    let before = info().counters;
    let mut bytes = vec![0; 2 * info().mss as usize];
    client.read(&mut bytes, SOON).unwrap();
    await_true("a segment is acknowledged", || {
        info().counters.bytes_acknowledged > before.bytes_acknowledged
    });
    assert_eq!(poller.take(10, |_| {}), 0);
    await_true("the writer is woken", || {
        read_all(&client);
        poller.take(10, |event| assert!(event.writable)) > 0
    });
}

/// Unread payload holds no buffer that sending needs.
#[test]
fn a_stream_that_does_not_read_sends_while_its_peer_sends() {
    const ALL: usize = 4 << 20;
    let bed = Bed::new("tcp-unread");
    let (client, server) = bed.pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut written = 0;
            while written < ALL {
                written += server.write(&[7; 5000], SOON).unwrap();
            }
        });
        let mut read = 0;
        await_true("everything arrives", || {
            for length in [1448, 1000, 1448] {
                let _ = client.try_write(&vec![9; length]);
            }
            read += read_all(&client);
            read >= ALL
        });
    });
}

/// All connections of a listener together want more buffers than there are.
#[test]
fn connections_that_wait_for_buffers_of_others_become_writable() {
    const EACH: usize = 60_000;
    let bed = Bed::new("tcp-starved");
    let pairs: Vec<_> = (0..20).map(|_| bed.pair()).collect();
    let poller = Poller::new().unwrap();
    for (token, (_, server)) in (0..).zip(&pairs) {
        server.register(&poller, token);
    }
    let mut written = vec![0; pairs.len()];
    let mut read = vec![0; pairs.len()];
    await_true("everything is written and read", || {
        poller.take(100, |event| {
            let number = event.token as usize;
            let stream = &pairs[number].1;
            while written[number] < EACH {
                let most = (EACH - written[number]).min(5000);
                match stream.try_write(&[1; 5000][..most]) {
                    Ok(count) => written[number] += count,
                    Err(StackError::WouldBlock) => break,
                    Err(error) => panic!("{number}: {error}"),
                }
            }
        });
        for (number, (client, _)) in pairs.iter().enumerate() {
            read[number] += read_all(client);
        }
        read.iter().all(|read| *read == EACH)
    });
}

/// Its peer resets it while other connections have all buffers.
#[test]
fn writing_to_a_connection_that_has_failed_does_not_wait_for_buffers() {
    let bed = Bed::new("tcp-failed");
    let (client, server) = bed.pair();
    let others: Vec<_> = (0..20).map(|_| bed.pair()).collect();
    let mut reserved = Vec::new();
    for (_, other) in &others {
        while let Ok(one) = other.try_reserve() {
            reserved.push(one);
        }
    }
    let error = server.try_write(b"x");
    assert!(matches!(error, Err(StackError::WouldBlock)));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| server.write(b"x", SOON));
        client.abort();
        let error = waits.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("reset"), "{error}");
    });
    let error = server.try_reserve().err().expect("it has failed");
    assert!(error.to_string().contains("reset"), "{error}");
}

#[test]
fn a_stream_has_a_descriptor_of_its_own() {
    let bed = Bed::new("tcp-descriptor");
    let (client, server) = bed.pair();
    let fd = server.event_fd().unwrap();
    let clear = || rustix::io::read(fd, &mut [0; 8]).is_ok();
    // It can be written.
    assert!(is_readable(fd) && clear() && !is_readable(fd));
    assert_eq!(read_all(&server), 0);
    client.write(b"hello", SOON).unwrap();
    await_true("readable", || is_readable(fd));
    assert!(clear());
    assert_eq!(read_all(&server), 5);
    client.abort();
    await_true("the end", || is_readable(fd));
    let error = server.try_read(&mut [0; 5]).unwrap_err();
    assert!(
        matches!(
            error,
            StackError::Connection(WriteError::Closed(CloseReason::Reset))
        ),
        "{error}"
    );
}

#[test]
fn a_task_is_woken_by_its_own_connection_only() {
    let bed = Bed::new("tcp-wakers");
    let (quiet, waits) = bed.pair();
    let (busy, other) = bed.pair();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut context = Context::from_waker(&waker);
    assert!(waits.poll_read(&mut context, &mut [0; 10]).is_pending());
    for _ in 0..20 {
        busy.write(b"something", SOON).unwrap();
        let mut bytes = [0; 9];
        assert_eq!(other.read(&mut bytes, SOON).unwrap(), 9);
    }
    assert_eq!(count.0.load(Ordering::SeqCst), 0, "woken by another one");
    quiet.write(b"now", SOON).unwrap();
    await_true("woken", || count.0.load(Ordering::SeqCst) == 1);
    let read = waits.poll_read(&mut context, &mut [0; 10]);
    assert!(matches!(read, Poll::Ready(Ok(3))));
}

#[test]
fn blocked_calls_of_many_streams_return_with_their_own_bytes() {
    let bed = Bed::new("tcp-blocked");
    let pairs: Vec<_> = (0..6).map(|_| bed.pair()).collect();
    std::thread::scope(|scope| {
        let readers: Vec<_> = pairs
            .iter()
            .map(|(_, server)| {
                scope.spawn(|| {
                    let mut bytes = [0; 2];
                    let read = server.read(&mut bytes, SOON).unwrap();
                    (read, bytes[0])
                })
            })
            .collect();
        for (number, (client, _)) in pairs.iter().enumerate() {
            client.write(&[number as u8], SOON).unwrap();
        }
        for (number, reader) in readers.into_iter().enumerate() {
            assert_eq!(reader.join().unwrap(), (1, number as u8));
        }
    });
    let (_, server) = &pairs[0];
    let error = server.read(&mut [0], Some(Duration::from_millis(20)));
    assert!(matches!(error, Err(StackError::WouldBlock)));
}

#[test]
fn parts_are_written_and_read_in_their_order() {
    let bed = Bed::new("tcp-parts");
    let (client, server) = bed.pair();
    let parts = [&b"one "[..], b"", b"two ", b"three"].map(IoSlice::new);
    assert_eq!(client.try_write_vectored(&parts).unwrap(), 13);
    assert_eq!(client.try_write_vectored(&[]).unwrap(), 0);
    let (mut first, mut second) = ([0; 5], [0; 20]);
    let mut read = 0;
    while read < 13 {
        assert_eq!(read, 0, "one segment");
        let mut parts = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        read += server.read_vectored(&mut parts, SOON).unwrap();
    }
    assert_eq!((&first, &second[..8]), (b"one t", &b"wo three"[..]));
    let mut none = [IoSliceMut::new(&mut [])];
    assert_eq!(server.try_read_vectored(&mut none).unwrap(), 0);
    let mut some = [IoSliceMut::new(&mut first)];
    let error = server.try_read_vectored(&mut some);
    assert!(matches!(error, Err(StackError::WouldBlock)));
    // More than there is room for: a part is written.
    let much = vec![1; 1_000_000];
    let written = client
        .write_vectored(&[IoSlice::new(b"x"), IoSlice::new(&much)], SOON)
        .unwrap();
    assert!((2..1_000_001).contains(&written), "{written}");
}

#[test]
fn payload_is_sent_and_received_in_place() {
    let bed = Bed::new("tcp-in-place");
    let (client, server) = bed.pair();
    client.set_no_delay(true);
    client.write(b"before", SOON).unwrap();
    let mut second = client.reserve(SOON).unwrap();
    let mut first = client.try_reserve().unwrap();
    let capacity = first.capacity();
    assert_eq!(first.fill(|bytes| bytes.len()), capacity);
    first.fill(|bytes| bytes.fill(1));
    second.fill(|bytes| bytes[..3].copy_from_slice(b"end"));
    // In the order of the commits.
    let (first, error) = first.commit(capacity + 1).unwrap_err();
    assert!(error.to_string().contains("bytes: 1 to"), "{error}");
    let (first, _) = first.commit(0).unwrap_err();
    first.commit(capacity).map_err(|(_, error)| error).unwrap();
    second.commit(3).map_err(|(_, error)| error).unwrap();
    client.shut_down();
    let mut bytes = Vec::new();
    let mut held = Vec::new();
    while let Some(received) = server.receive(SOON).unwrap() {
        received.with(|part| bytes.extend_from_slice(part));
        assert!(received.length() > 0);
        held.push(received);
    }
    let whole = [b"before", &vec![1; capacity][..], b"end"].concat();
    assert_eq!(bytes, whole);
    // What the program holds does not change, and its buffers come back.
    let again: Vec<u8> = held
        .iter()
        .flat_map(|one| one.with(<[u8]>::to_vec))
        .collect();
    assert_eq!(again, whole);
}

#[test]
fn reserved_buffers_are_bounded_and_come_back() {
    let bed = Bed::new("tcp-reserved");
    let (client, server) = bed.pair();
    let poller = Poller::new().unwrap();
    client.register(&poller, 1);
    for _ in 0..3 {
        let mut all = Vec::new();
        loop {
            match client.try_reserve() {
                Ok(reserved) => all.push(reserved),
                Err(StackError::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        // Some stay for acknowledgements.
        assert_eq!(all.len() as u32, SMALL.sending - 4);
        assert!(matches!(
            client.try_write(b"x"),
            Err(StackError::WouldBlock)
        ));
        poller.take(10, drop);
        all.clear();
        await_event(&poller, 1, |event| event.writable);
    }
    // A buffer outlives its stream, and cannot be sent then.
    let late = client.try_reserve().unwrap();
    drop(client);
    let (_, error) = late.commit(1).unwrap_err();
    assert!(
        matches!(error, StackError::Connection(WriteError::ShutDown)),
        "{error}"
    );
    assert_eq!(server.read(&mut [0; 10], SOON).unwrap(), 0);
}

#[test]
fn lingering_decides_how_a_dropped_stream_ends() {
    let bed = Bed::new("tcp-linger");
    let (client, server) = bed.pair();
    client.set_linger(Some(Duration::ZERO));
    drop(client);
    let error = server.read(&mut [0; 10], SOON).unwrap_err();
    assert!(error.to_string().contains("reset"), "{error}");
    let (client, server) = bed.pair();
    client.set_linger(SOON);
    client.write(b"all of it", SOON).unwrap();
    drop(client);
    let mut bytes = [0; 20];
    assert_eq!(server.read(&mut bytes, SOON).unwrap(), 9);
    assert_eq!(server.read(&mut bytes, SOON).unwrap(), 0);
}

#[test]
fn long_writes_leave_in_records_of_several_segments() {
    const BYTES: usize = 400_000;
    let bed = Bed::new("tcp-runs");
    let (client, server) = bed.pair();
    let pattern = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
    let sent: Vec<u8> = (0..BYTES).map(pattern).collect();
    // One of the two flows is told that segments can leave joined.
    for (from, to) in [(&client, &server), (&server, &client)] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Odd lengths, so that segments of all lengths leave.
                let mut rest = &sent[..];
                for length in (1..).map(|number| number * 997 % 20_011 + 1) {
                    let (now, later) = rest.split_at(length.min(rest.len()));
                    let mut from = from;
                    from.write_all(now).unwrap();
                    rest = later;
                    if rest.is_empty() {
                        return;
                    }
                }
            });
            let mut read: Vec<u8> = Vec::new();
            let mut bytes = [0; 8192];
            while read.len() < BYTES {
                let count = to.read(&mut bytes, SOON).unwrap();
                read.extend(&bytes[..count]);
            }
            assert!(read == sent);
        });
    }
    let joined = client.flow_counters().joined + server.flow_counters().joined;
    assert!(joined > 100, "{joined}");
}

/// Regression: the call that found the flow closed before the daemon had said why failed without
/// the reason, and later calls with it.
#[test]
fn calls_that_wait_fail_with_the_reason_that_comes_after_the_end() {
    let said = "the flow is closed: its route is over wire1";
    for reason in [Some("its route is over wire1"), None] {
        let bed = Bed::new("reason");
        let (client, _server) = bed.pair();
        let flow = promotion::flow_number(&client);
        std::thread::scope(|scope| {
            let read = || client.read(&mut [0; 10], SOON).unwrap_err().to_string();
            let reader = scope.spawn(read);
            bed.daemon.send(DaemonCommand::CloseSilently(flow));
            std::thread::sleep(Duration::from_millis(20));
            if let Some(why) = reason {
                let why = why.into();
                let closed = FlowNotification::Closed { flow, why };
                bed.daemon.send(DaemonCommand::Notify(closed));
            }
            // Without a reason the calls fail a moment later.
            let said = if reason.is_some() {
                said
            } else {
                "the flow is closed"
            };
            assert_eq!(reader.join().unwrap(), said);
            let written = client.write(b"more", SOON).unwrap_err();
            assert_eq!(written.to_string(), said);
        });
    }
}
