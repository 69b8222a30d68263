//! Tests of connections that get a flow of their own.

use super::*;
use crate::tcp::{PromoteError, PromoteOptions};

/// A flow with this contract and few buffers.
fn options(contract: Option<&str>) -> PromoteOptions {
    PromoteOptions {
        contract: contract.map(str::to_string),
        buffers: SMALL,
    }
}

fn byte(position: usize) -> u8 {
    (position.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// Writes bytes of the pattern from `from` on.
fn write_pattern(stream: &Stream, from: usize, count: usize) {
    let bytes: Vec<u8> = (from..from + count).map(byte).collect();
    let mut written = 0;
    while written < count {
        written += stream.write(&bytes[written..], SOON).unwrap();
    }
}

/// Reads bytes of the pattern from `from` on.
fn read_pattern(stream: &Stream, from: usize, count: usize) {
    let mut bytes = vec![0; 5000];
    let mut at = from;
    while at < from + count {
        let most = bytes.len().min(from + count - at);
        let read = stream.read(&mut bytes[..most], SOON).unwrap();
        assert!(read > 0, "the end at {at}");
        for (index, one) in bytes[..read].iter().enumerate() {
            assert_eq!(*one, byte(at + index), "at {}", at + index);
        }
        at += read;
    }
}

/// Both ends write and read `count` bytes at the same time; meanwhile `act` runs.
fn exchange(client: &Stream, server: &Stream, count: usize, act: impl FnOnce()) {
    std::thread::scope(|scope| {
        for stream in [client, server] {
            scope.spawn(|| write_pattern(stream, 0, count));
            scope.spawn(|| read_pattern(stream, 0, count));
        }
        act();
    });
}

pub(super) fn flow_number(stream: &Stream) -> u32 {
    stream.place.enter(|engine, _| engine.flow_number())
}

#[test]
fn a_connection_is_promoted_while_both_ends_send() {
    let bed = Bed::new("promote-load");
    let (other, others_server) = bed.pair();
    for late in [0, 30] {
        let (client, server) = bed.pair();
        let before = flow_number(&server);
        exchange(&client, &server, 1_000_000, || {
            await_true("half way", || {
                client.info().unwrap().counters.bytes_received > 300_000
            });
            bed.daemon.send(DaemonCommand::DeliverLate(late));
            server.promote(&options(Some("slice 3ms/20ms"))).unwrap();
        });
        assert_ne!(flow_number(&server), before);
        assert_eq!(flow_number(&others_server), before);
        assert_eq!(bed.listener.usage().connections, 1);
        exchange(&other, &others_server, 100_000, || ());
        exchange(&client, &server, 100_000, || ());
        // Both ends have the end of the other.
        client.finish(SOON).unwrap();
        assert_eq!(server.read(&mut [0; 10], SOON).unwrap(), 0);
        server.finish(SOON).unwrap();
    }
    await_true("the listener's buffers are free", || {
        bed.listener.usage().buffers == 0
    });
}

/// The program has memory for one promoted connection at a time.
#[test]
fn the_end_of_a_promoted_connection_frees_its_flow() {
    let daemon = FakeDaemon::new("promote-end");
    let listen = ListenOptions {
        buffers: SHARED,
        ..ListenOptions::at("10.78.0.2:80".parse().unwrap())
    };
    let bytes = listen.region_bytes().unwrap() + 2 * SMALL.region_bytes().unwrap();
    let program = Program::attach(&daemon.dir(), Some("wire0"), 4, bytes).unwrap();
    let listener = program.listen(&listen).unwrap();
    let connect = TcpOptions {
        buffers: SMALL,
        ..TcpOptions::to(listener.local())
    };
    for client_ends_first in [true, false, true] {
        let mut client = None;
        await_true("the flow of the client before is closed", || {
            client = program.connect(&connect, SOON).ok();
            client.is_some()
        });
        let client = client.unwrap();
        let server = listener.accept(SOON).unwrap();
        await_true("the flow of the connection before is closed", || {
            server.promote(&options(None)).is_ok()
        });
        let again = server.promote(&options(None)).unwrap_err();
        assert!(again.to_string().contains("promoted before"), "{again}");
        exchange(&client, &server, 10_000, || ());
        match client_ends_first {
            true => client.finish(SOON).unwrap(),
            false => server.finish(SOON).unwrap(),
        }
    }
    // The listener ends before a promoted connection, which goes on.
    let mut client = None;
    await_true("a further client", || {
        client = program.connect(&connect, SOON).ok();
        client.is_some()
    });
    let client = client.unwrap();
    let server = listener.accept(SOON).unwrap();
    await_true("promoted", || server.promote(&options(None)).is_ok());
    drop(listener);
    exchange(&client, &server, 10_000, || ());
}

#[test]
fn payload_that_was_not_read_or_acknowledged_moves_along() {
    let bed = Bed::new("promote-payload");
    for listener_ends in [false, true] {
        let (client, server) = bed.pair();
        client.set_no_delay(true);
        // Short segments, which are put together, and long ones.
        for part in 0..50 {
            write_pattern(&client, part * 100, 100);
        }
        write_pattern(&client, 5000, 3000);
        acknowledged(&client);
        read_pattern(&server, 0, 10);
        let held = server.receive(SOON).unwrap().unwrap();
        let length = held.length();
        // Some segments are in the ring of the listener's flow, others wait in the program.
        bed.daemon.send(DaemonCommand::HoldListeners(true));
        // With the answer to a request, it has read the command.
        let host = ["10.78.0.5", "10.78.0.6"][usize::from(listener_ends)];
        bed.program.next_hop(host.parse().unwrap()).unwrap();
        let before = flow_number(&server);
        write_pattern(&server, 0, 9000);
        server.promote(&options(None)).unwrap();
        write_pattern(&server, 9000, 9000);
        match listener_ends {
            true => bed.daemon.send(DaemonCommand::CloseSilently(before)),
            false => bed.daemon.send(DaemonCommand::HoldListeners(false)),
        }
        std::thread::scope(|scope| {
            scope.spawn(|| read_pattern(&client, 0, 18_000));
            // The buffers of a flow that was closed are lost.
            held.with(|bytes| {
                let right = (10..10 + length).map(byte);
                assert!(listener_ends || bytes.iter().copied().eq(right));
            });
            // In place, then by copying.
            let next = server.receive(SOON).unwrap().unwrap();
            let from = 10 + length;
            next.with(|bytes| {
                let right = (from..from + next.length()).map(byte);
                assert!(bytes.iter().copied().eq(right));
            });
            let from = from + next.length();
            read_pattern(&server, from, 8000 - from);
        });
        exchange(&client, &server, 50_000, || ());
        acknowledged(&server);
    }
    let gone = bed.listener.try_accept().err().expect("its flow has ended");
    assert!(!matches!(gone, StackError::WouldBlock), "{gone}");
}

#[test]
fn calls_that_wait_and_registrations_move_along() {
    let bed = Bed::new("promote-waits");
    let (client, server) = bed.pair();
    let poller = Poller::new().unwrap();
    server.register(&poller, 5);
    await_event(&poller, 5, |event| event.writable);
    let fd = server.event_fd().unwrap();
    assert!(rustix::io::read(fd, &mut [0; 8]).is_ok());
    assert_eq!(read_all(&server), 0);
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut context = Context::from_waker(&waker);
    assert!(server.poll_read(&mut context, &mut [0; 5]).is_pending());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = [0; 5];
            (server.read(&mut bytes, SOON).unwrap(), bytes)
        });
        let waits_briefly = scope.spawn(|| {
            let error = server.read(&mut [0; 5], Some(Duration::from_millis(200)));
            matches!(error, Err(StackError::WouldBlock))
        });
        await_true("the reader waits", || {
            server.place.enter(|engine, id| engine.watches.waiters(id)) == 3
        });
        server.promote(&options(None)).unwrap();
        await_true("the task is woken", || count.0.load(Ordering::SeqCst) == 1);
        assert!(waits_briefly.join().unwrap());
        client.write(b"hello", SOON).unwrap();
        assert_eq!(reader.join().unwrap(), (5, *b"hello"));
    });
    await_event(&poller, 5, |event| event.readable);
    await_true("the descriptor", || is_readable(fd));
    // The next event of the task and of the poller.
    assert!(server.poll_read(&mut context, &mut [0; 5]).is_pending());
    client.write(b"again", SOON).unwrap();
    await_true("woken again", || count.0.load(Ordering::SeqCst) == 2);
    await_event(&poller, 5, |event| event.readable);
    assert_eq!(read_all(&server), 5);
}

#[test]
fn buffers_that_the_program_fills_or_reads_outlive_the_promotion() {
    let bed = Bed::new("promote-in-place");
    let (client, server) = bed.pair();
    write_pattern(&client, 0, 1000);
    let received = server.receive(SOON).unwrap().unwrap();
    let [mut first, second, third, unused] = [(); 4].map(|()| server.reserve(SOON).unwrap());
    first.fill(|bytes| {
        for (at, one) in bytes.iter_mut().enumerate() {
            *one = byte(at);
        }
    });
    server.promote(&options(None)).unwrap();
    received.with(|bytes| assert!(bytes.iter().copied().eq((0..1000).map(byte))));
    let (second, error) = second.commit(0).unwrap_err();
    assert!(error.to_string().contains("bytes: 1 to"), "{error}");
    let (_second, error) = second.commit(5000).unwrap_err();
    assert!(error.to_string().contains("bytes: 1 to"), "{error}");
    first.commit(700).map_err(|(_, error)| error).unwrap();
    write_pattern(&server, 700, 300);
    read_pattern(&client, 0, 1000);
    drop((unused, received));
    await_true("the listener's buffers come back", || {
        bed.listener.usage().buffers == 2
    });
    // The stream is gone.
    drop(server);
    let (third, error) = third.commit(5).unwrap_err();
    assert!(
        matches!(error, StackError::Connection(WriteError::ShutDown)),
        "{error}"
    );
    drop((third, _second));
    await_true("all of them", || bed.listener.usage().buffers == 0);
}

#[test]
fn what_cannot_be_promoted_says_why_and_goes_on() {
    let bed = Bed::new("promote-refused");
    let (client, server) = bed.pair();
    let refused = |stream: &Stream, options: &PromoteOptions| {
        let error = stream.promote(options).expect_err("it is refused");
        (error.to_string(), error)
    };
    let (text, error) = refused(&client, &options(None));
    assert!(matches!(error, StackError::Promote(PromoteError::Opened)));
    assert!(
        text.contains("the program opened this connection"),
        "{text}"
    );
    let (text, _) = refused(&server, &options(Some("slice 100ms/20ms")));
    assert!(
        text.contains("the link carries 10 ms of each 20 ms"),
        "{text}"
    );
    let with = |buffers| PromoteOptions {
        buffers,
        contract: None,
    };
    let few = Buffers {
        receiving: 2,
        ..SMALL
    };
    let (text, _) = refused(&server, &with(few));
    assert!(
        text.starts_with("16 buffers for sending and 2 for receiving: a flow of TCP needs 6 and 3"),
        "{text}"
    );
    let short = Buffers {
        bytes: 512,
        ..SMALL
    };
    let (text, _) = refused(&server, &with(short));
    assert!(text.contains("buffers of 512 bytes do not hold"), "{text}");
    // As many flows as the program attached with.
    let mut others = Vec::new();
    let full = loop {
        let (other, promoted) = match bed.try_pair() {
            Ok(pair) => pair,
            Err(_) => break refused(&server, &options(None)).0,
        };
        match promoted.promote(&options(None)) {
            Ok(()) => others.push((other, promoted)),
            Err(error) => break error.to_string(),
        }
    };
    assert!(full.starts_with("all 32 flows"), "{full}");
    exchange(&client, &server, 50_000, || ());
    assert!(others.len() > 5);
    for (other, promoted) in &others {
        exchange(other, promoted, 1000, || ());
    }
    drop(others);
    // Connections that have ended.
    client.finish(SOON).unwrap();
    assert_eq!(server.read(&mut [0; 10], SOON).unwrap(), 0);
    server.finish(SOON).unwrap();
    let (_, error) = refused(&server, &options(None));
    assert!(
        matches!(error, StackError::Promote(PromoteError::Ended)),
        "{error}"
    );
    let mut pair = None;
    await_true("the flows of others are closed", || {
        pair = bed.try_pair().ok();
        pair.is_some()
    });
    let (client, server) = pair.unwrap();
    client.abort();
    await_true("reset", || server.info().unwrap().reason.is_some());
    let (text, _) = refused(&server, &options(None));
    assert_eq!(text, "the peer reset the connection");
}
