//! Tests of the calls of TCP: both ends are in one program.

use super::*;

const SERVER: &str = "10.78.0.2:80";

fn description(storage: &sockaddr_storage, is_listener: bool) -> Tcp {
    let mut tcp: Tcp = empty();
    let (address, length) = ((&raw const *storage).cast(), size_of::<sockaddr_storage>());
    match is_listener {
        true => (tcp.local, tcp.local_length) = (address, length as u32),
        false => (tcp.remote, tcp.remote_length) = (address, length as u32),
    }
    (tcp.sending, tcp.receiving) = (32, 32);
    tcp
}

fn listen(test: &TestProgram) -> c_int {
    let storage = ip_storage(SERVER);
    let listener = netnice_tcp_listen(test.program, &description(&storage, true));
    assert!(listener > 0, "{}", last_error());
    listener
}

/// A client's stream and the server's.
fn pair(test: &TestProgram, listener: c_int) -> (c_int, c_int) {
    let storage = ip_storage(SERVER);
    let client = netnice_tcp_connect(test.program, &description(&storage, false), TIMEOUT);
    assert!(client > 0, "{}", last_error());
    let server = netnice_tcp_accept(listener, TIMEOUT);
    assert!(server > 0, "{}", last_error());
    (client, server)
}

fn write(stream: c_int, text: &str) -> isize {
    netnice_tcp_write(stream, text.as_ptr().cast(), text.len(), TIMEOUT)
}

fn read(stream: c_int, timeout: c_int) -> Result<String, c_int> {
    let mut bytes = [0u8; 2000];
    let count = netnice_tcp_read(stream, bytes.as_mut_ptr().cast(), bytes.len(), timeout);
    match count {
        0.. => Ok(String::from_utf8_lossy(&bytes[..count as usize]).into_owned()),
        _ => Err(errno()),
    }
}

fn info(number: c_int) -> TcpInfo {
    let mut info: TcpInfo = empty();
    assert_eq!(netnice_tcp_info(number, &mut info), 0, "{}", last_error());
    info
}

/// Waits for an event of a stream or listener, and returns all of its events.
fn await_event(program: c_int, number: c_int, wanted: u32) {
    let mut fd = libc::pollfd {
        fd: netnice_tcp_descriptor(program),
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        // SAFETY: `fd` is one element.
        assert_eq!(unsafe { libc::poll(&mut fd, 1, TIMEOUT) }, 1, "no event");
        let mut event: TcpEvent = empty();
        let count = netnice_tcp_poll(program, &mut event, 1);
        assert!(count >= 0, "{}", last_error());
        if count == 1 && event.number == number && event.events & wanted != 0 {
            return;
        }
    }
}

#[test]
fn bytes_go_both_ways_and_end() {
    let test = TestProgram::new("c-tcp");
    let listener = listen(&test);
    assert_eq!(info(listener).state, 10);
    assert_eq!(netnice_tcp_accept(listener, 0), -1);
    assert_eq!(errno(), libc::EAGAIN);
    let (client, server) = pair(&test, listener);
    assert_eq!((info(client).state, info(server).error), (1, 0));
    assert_eq!(read(server, 0), Err(libc::EAGAIN));
    assert_eq!(write(client, "question"), 8);
    assert_eq!(read(server, TIMEOUT).as_deref(), Ok("question"));
    let parts = ["an ", "", "answer"].map(|text| iovec {
        iov_base: text.as_ptr().cast_mut().cast(),
        iov_len: text.len(),
    });
    assert_eq!(netnice_tcp_writev(server, parts.as_ptr(), 3, TIMEOUT), 9);
    let mut places = [[0u8; 4], [0; 4], [0; 4]];
    let into = places.each_mut().map(|place| iovec {
        iov_base: place.as_mut_ptr().cast(),
        iov_len: 4,
    });
    assert_eq!(netnice_tcp_readv(client, into.as_ptr(), 3, TIMEOUT), 9);
    assert_eq!(&places.concat()[..9], b"an answer");
    assert_eq!(netnice_tcp_finish(client, TIMEOUT), 0);
    assert_eq!(read(server, TIMEOUT).as_deref(), Ok(""));
    assert_eq!(write(client, "x"), -1);
    assert_eq!(errno(), libc::EPIPE);
    assert_eq!(info(client).acknowledged, 8);
    assert_eq!(netnice_tcp_abort(server), 0);
    assert_eq!(read(client, TIMEOUT), Err(libc::ECONNRESET));
    assert_eq!(info(client).error, libc::ECONNRESET);
    for number in [client, server, listener] {
        assert_eq!(netnice_tcp_close(number), 0);
        assert_eq!(netnice_tcp_close(number), -1);
        assert_eq!(errno(), libc::EBADF);
    }
}

#[test]
fn an_accepted_connection_gets_a_flow_of_its_own_once() {
    let test = TestProgram::new("c-tcp-promote");
    let listener = listen(&test);
    let (client, server) = pair(&test, listener);
    let mut own: Tcp = empty();
    (own.sending, own.receiving) = (32, 32);
    let contract = CString::new("slice 100ms/20ms").unwrap();
    let promote = |stream, own: &Tcp| match netnice_tcp_promote(stream, own) {
        0 => Ok(()),
        _ => Err(errno()),
    };
    assert!(netnice_tcp_bytes(&own) > 64 * 2048, "{}", last_error());
    own.contract = contract.as_ptr();
    assert_eq!(promote(server, &own), Err(libc::ENOSPC));
    own.contract = null();
    own.receiving = 1;
    assert_eq!(promote(server, &own), Err(libc::EINVAL));
    assert!(last_error().contains("needs 6 and 3"), "{}", last_error());
    own.receiving = 32;
    own.backlog = 1;
    assert_eq!(promote(server, &own), Err(libc::EINVAL));
    own.backlog = 0;
    assert_eq!(promote(client, &own), Err(libc::EOPNOTSUPP));
    assert_eq!(promote(listener, &own), Err(libc::EBADF));
    assert_eq!(write(client, "before"), 6);
    assert_eq!(promote(server, &own), Ok(()), "{}", last_error());
    assert_eq!(promote(server, &own), Err(libc::EALREADY));
    assert_eq!(write(server, "after"), 5);
    assert_eq!(read(server, TIMEOUT).as_deref(), Ok("before"));
    assert_eq!(read(client, TIMEOUT).as_deref(), Ok("after"));
    // Both ends shut down.
    let (client, server) = pair(&test, listener);
    assert_eq!(netnice_tcp_finish(client, TIMEOUT), 0);
    assert_eq!(read(server, TIMEOUT).as_deref(), Ok(""));
    assert_eq!(netnice_tcp_finish(server, TIMEOUT), 0);
    assert_eq!(promote(server, &own), Err(libc::ENOTCONN));
}

#[test]
fn one_descriptor_has_the_events_of_all_streams() {
    let test = TestProgram::new("c-tcp-events");
    let listener = listen(&test);
    assert_eq!(netnice_tcp_watch(listener, 1), 0);
    let storage = ip_storage(SERVER);
    let options = description(&storage, false);
    let mut streams = Vec::new();
    for _ in 0..4 {
        let client = netnice_tcp_connect(test.program, &options, TIMEOUT);
        await_event(test.program, listener, 1);
        let server = netnice_tcp_accept(listener, 0);
        assert!(server > 0, "{}", last_error());
        assert_eq!(netnice_tcp_accept(listener, 0), -1, "one connection");
        assert_eq!(netnice_tcp_watch(server, 1), 0);
        await_event(test.program, server, 2);
        streams.push((client, server));
    }
    assert_eq!(netnice_tcp_poll(test.program, null_mut(), 0), 0);
    for (client, server) in streams.iter().rev() {
        assert_eq!(write(*client, "ping"), 4);
        await_event(test.program, *server, 1);
        assert_eq!(read(*server, 0).as_deref(), Ok("ping"));
    }
    let (client, server) = streams[0];
    assert_eq!(netnice_tcp_watch(server, 0), 0);
    let own = netnice_tcp_event_fd(server);
    assert!(own >= 0 && own == netnice_tcp_event_fd(server));
    let mut fd = libc::pollfd {
        fd: own,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut count = [0u8; 8];
    // SAFETY: `count` has 8 bytes, and `fd` is one element.
    let mut take = || unsafe {
        (
            libc::poll(&mut fd, 1, TIMEOUT),
            libc::read(own, count.as_mut_ptr().cast(), 8),
        )
    };
    // It can be written.
    assert_eq!(take(), (1, 8));
    assert_eq!(read(server, 0), Err(libc::EAGAIN));
    assert_eq!(write(client, "again"), 5);
    assert_eq!(take(), (1, 8));
    assert_eq!(read(server, 0).as_deref(), Ok("again"));
}

#[test]
fn payload_stays_in_its_buffers() {
    let test = TestProgram::new("c-tcp-in-place");
    let listener = listen(&test);
    let (client, server) = pair(&test, listener);
    let mut out = buffer();
    assert_eq!(netnice_tcp_reserve(client, &mut out, TIMEOUT), 0);
    assert_eq!(out.length as u32, info(client).mss);
    // SAFETY: the buffer has so many bytes.
    unsafe { out.data.cast::<u8>().write_bytes(b'x', out.length) };
    for wrong in [0, out.length + 1] {
        assert_eq!(netnice_tcp_commit(client, &out, wrong), -1);
        assert_eq!(errno(), libc::EINVAL, "{wrong}");
    }
    assert_eq!(netnice_tcp_commit(server, &out, 1), -1, "another stream's");
    assert_eq!(netnice_tcp_commit(client, &out, 100), 0);
    assert_eq!(netnice_tcp_commit(client, &out, 100), -1, "given back");
    assert_eq!(errno(), libc::EINVAL);
    let mut seen = buffer();
    assert_eq!(netnice_tcp_receive(server, &mut seen, TIMEOUT), 1);
    // SAFETY: the buffer is valid until it is given back.
    let bytes = unsafe { std::slice::from_raw_parts(seen.data.cast::<u8>(), seen.length) };
    assert_eq!(bytes, [b'x'; 100]);
    assert_eq!(netnice_tcp_commit(server, &seen, 1), -1, "not to send from");
    assert_eq!(netnice_tcp_release(server, &seen), 0);
    assert_eq!(netnice_tcp_release(server, &seen), -1);
    assert_eq!(netnice_tcp_reserve(client, &mut out, TIMEOUT), 0);
    assert_eq!(netnice_tcp_release(client, &out), 0);
    assert_eq!(netnice_tcp_shutdown(client), 0);
    assert_eq!(
        netnice_tcp_receive(server, &mut seen, TIMEOUT),
        0,
        "the end"
    );
}

#[test]
fn options_have_ranges() {
    let test = TestProgram::new("c-tcp-options");
    let listener = listen(&test);
    let (client, server) = pair(&test, listener);
    for (option, good, bad) in [(1, 1, 2), (2, 1, -1), (3, 1000, 0), (4, -1, -2)] {
        assert_eq!(netnice_tcp_set(client, option, good), 0, "{option}");
        assert_eq!(netnice_tcp_set(client, option, bad), -1, "{option}");
        assert_eq!(errno(), libc::EINVAL, "{option}");
    }
    assert_eq!(
        last_error(),
        "lingering is -2: -1 to 31536000000 are possible"
    );
    assert_eq!(netnice_tcp_set(client, 9, 1), -1);
    assert_eq!(errno(), libc::ENOPROTOOPT);
    assert_eq!(netnice_tcp_set(listener, 1, 1), -1);
    assert_eq!(errno(), libc::EBADF);
    assert_eq!(netnice_tcp_keepalive(client, 1000, 100, 3), 0);
    assert_eq!(netnice_tcp_keepalive(client, 0, 0, 0), 0);
    for (idle, interval, probes) in [(-1, 1, 1), (1, 0, 1), (1, 1, 128)] {
        assert_eq!(netnice_tcp_keepalive(client, idle, interval, probes), -1);
        assert_eq!(errno(), libc::EINVAL);
    }
    // Lingering for no time resets.
    assert_eq!(netnice_tcp_set(client, 4, 0), 0);
    assert_eq!(netnice_tcp_close(client), 0);
    assert_eq!(read(server, TIMEOUT), Err(libc::ECONNRESET));
}

fn fails(result: i64, number: c_int, text: &str) {
    assert_eq!((result, errno()), (-1, number), "{text}");
    assert!(last_error().contains(text), "{}", last_error());
}

#[test]
fn wrong_descriptions_have_errors() {
    let test = TestProgram::new("c-tcp-wrong");
    let storage = ip_storage(SERVER);
    let (client, server) = (description(&storage, false), description(&storage, true));
    let connect = |tcp: &Tcp| i64::from(netnice_tcp_connect(test.program, tcp, TIMEOUT));
    let listen = |tcp: &Tcp| i64::from(netnice_tcp_listen(test.program, tcp));
    assert!(netnice_tcp_bytes(&client) > 64 * 2048);
    assert!(netnice_tcp_bytes(&server) > netnice_tcp_bytes(&client));
    fails(netnice_tcp_bytes(null()), libc::EFAULT, "description");
    let none = empty();
    fails(connect(&none), libc::EFAULT, "the remote address must not");
    fails(listen(&none), libc::EFAULT, "the local address of a");
    fails(listen(&client), libc::EFAULT, "the local address of a");
    let remote = server.local;
    let wrong = |tcp: Tcp, number, text| fails(connect(&tcp), number, text);
    fails(listen(&Tcp { remote, ..server }), libc::EINVAL, "invalid");
    wrong(Tcp { flags: 1, ..client }, libc::EINVAL, "invalid");
    wrong(
        Tcp {
            backlog: 1,
            ..client
        },
        libc::EINVAL,
        "invalid",
    );
    wrong(
        Tcp {
            hops: 256,
            ..client
        },
        libc::EINVAL,
        "invalid",
    );
    let remote_length = 3;
    wrong(
        Tcp {
            remote_length,
            ..client
        },
        libc::EAFNOSUPPORT,
        "sockaddr_in",
    );
    let buffer_bytes = 512;
    wrong(
        Tcp {
            buffer_bytes,
            ..client
        },
        libc::EMSGSIZE,
        "512 bytes",
    );
    let timeout = netnice_tcp_connect(test.program, &client, -2);
    fails(timeout.into(), libc::EINVAL, "invalid");
}

#[test]
fn wrong_arguments_of_streams_have_errors() {
    let test = TestProgram::new("c-tcp-misuse");
    let listener = listen(&test);
    let (stream, peer) = pair(&test, listener);
    let (bad, fault) = (libc::EBADF, libc::EFAULT);
    fails(netnice_tcp_accept(stream, 0).into(), bad, "listener");
    fails(
        netnice_tcp_read(listener, null_mut(), 0, 0) as i64,
        bad,
        "stream",
    );
    fails(
        netnice_tcp_read(stream, null_mut(), 1, 0) as i64,
        fault,
        "the bytes",
    );
    fails(
        netnice_tcp_write(stream, null(), 1, 0) as i64,
        fault,
        "the bytes",
    );
    fails(
        netnice_tcp_info(stream, null_mut()).into(),
        fault,
        "information",
    );
    fails(
        netnice_tcp_reserve(stream, null_mut(), 0).into(),
        fault,
        "the buffer",
    );
    fails(
        netnice_tcp_receive(stream, null_mut(), 0).into(),
        fault,
        "the buffer",
    );
    fails(netnice_tcp_watch(stream, 2).into(), libc::EINVAL, "invalid");
    fails(netnice_tcp_watch(test.program, 1).into(), bad, "listener");
    fails(
        netnice_tcp_poll(test.program, null_mut(), 1).into(),
        fault,
        "events",
    );
    fails(
        netnice_tcp_poll(stream, null_mut(), 0).into(),
        bad,
        "program",
    );
    let mut bytes = [0u8; 8];
    let start: *mut u8 = bytes.as_mut_ptr();
    let parts = [0, 3].map(|at| iovec {
        iov_base: start.wrapping_add(at).cast(),
        iov_len: 4,
    });
    let overlapping = netnice_tcp_readv(stream, parts.as_ptr(), 2, 0);
    fails(overlapping as i64, libc::EINVAL, "overlap");
    fails(
        netnice_tcp_readv(stream, null(), 1, 0) as i64,
        fault,
        "array",
    );
    fails(
        netnice_tcp_writev(stream, parts.as_ptr(), -1, 0) as i64,
        libc::EINVAL,
        "invalid",
    );
    // The streams work as before, and end with the program.
    assert_eq!(write(stream, "whole"), 5);
    assert_eq!(read(peer, TIMEOUT).as_deref(), Ok("whole"));
    assert_eq!(netnice_detach(test.program), 0);
    fails(
        netnice_tcp_read(peer, null_mut(), 0, 0) as i64,
        bad,
        "stream",
    );
}
