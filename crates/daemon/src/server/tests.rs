//! Tests of the socket and the front, with clients that send invalid, incomplete or many messages.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as PlainStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netnice_api::{Client, Ping, Pong, Process, Request, Response, decode_response};
use netnice_kernel::process::PidFd;
use tokio::task::LocalSet;

use super::*;

/// Runs a test to its end on this thread; it may start local tasks.
fn run_local(test: impl Future<Output = ()>) {
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("an executor");
    LocalSet::new().block_on(&executor, test);
}

/// Runs a server that answers every ping, and `clients` on another thread.
fn with_server(name: &str, clients: impl FnOnce(PathBuf) + Send + 'static) {
    let path = std::env::temp_dir().join(format!("netnice-{}-{name}.sock", std::process::id()));
    run_local(async {
        let server = FrontSupervisor::bind(&path).expect("a socket").in_thread();
        let (to_service, mut requests) = mpsc::channel::<PendingRequest>(4);
        let there = path.clone();
        let clients = tokio::task::spawn_blocking(move || clients(there));
        let service = async {
            while let Some(request) = requests.recv().await {
                let pong = Pong {
                    protocol: request.peer.uid,
                    daemon: request.fd.is_some().to_string(),
                };
                let _ = request.reply.send(Response::Pong(pong).into());
            }
        };
        tokio::select! {
            () = server.serve(to_service) => {}
            () = service => {}
            done = clients => done.expect("the clients succeed"),
        }
    });
    assert!(!path.exists(), "the socket goes with the server");
}

#[test]
fn a_passed_socket_is_not_removed_with_the_server() {
    let path = std::env::temp_dir().join(format!("netnice-{}-handed.sock", std::process::id()));
    let made = UnixListener::bind(&path).expect("a socket");
    // A client asks before there is a daemon, and gets its answer once there is one.
    let early = PlainStream::connect(&path).expect("it listens");
    run_local(async {
        let server = FrontSupervisor::take_over(made.try_clone().expect("another"));
        let server = server.expect("taken over").in_thread();
        let (to_service, mut requests) = mpsc::channel::<PendingRequest>(4);
        let client = tokio::task::spawn_blocking(move || ping(early));
        let service = async {
            let request = requests.recv().await.expect("a request");
            let pong = Pong {
                protocol: 7,
                daemon: String::new(),
            };
            let _ = request.reply.send(Response::Pong(pong).into());
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = server.serve(to_service) => {}
            () = service => {}
            answer = client => assert!(matches!(answer, Ok(Response::Pong(p)) if p.protocol == 7)),
        }
    });
    assert!(path.exists(), "it is not ours to remove");
    std::fs::remove_file(&path).expect("removed");
}

fn ping(stream: PlainStream) -> Response {
    let request = Request::Ping(Ping {});
    Client::over(stream)
        .call(&request, None)
        .expect("an answer")
}

/// All bytes that a connection sends until it ends.
fn remaining_bytes(mut stream: PlainStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let patience = Some(Duration::from_secs(5));
    stream.set_read_timeout(patience).expect("a time limit");
    stream.read_to_end(&mut bytes).expect("it ends");
    bytes
}

fn refusal_text(stream: PlainStream) -> String {
    let bytes = remaining_bytes(stream);
    match decode_response(bytes.get(4..).unwrap_or_default()) {
        Ok(Response::Failed(failed)) => failed.text,
        other => panic!("{other:?} in {bytes:?}"),
    }
}

#[test]
fn a_connection_carries_many_requests_of_its_user() {
    with_server("often", |path| {
        let stream = PlainStream::connect(&path).expect("a connection");
        for _ in 0..3 {
            let again = stream.try_clone().expect("the same connection");
            let Response::Pong(pong) = ping(again) else {
                panic!("no pong");
            };
            assert_eq!(pong.protocol, rustix::process::geteuid().as_raw());
            assert_eq!(pong.daemon, "false", "no descriptor came");
        }
    });
}

#[test]
fn an_invalid_message_gets_one_refusal_and_the_connection_ends() {
    with_server("garbage", |path| {
        let table: [(&[u8], &str); 6] = [
            (b"\xff\xff\xff\xff", "at most 65536 are allowed"),
            (b"\x00\x00\x00\x00", "empty"),
            (b"GET / HTTP/1.1\r\n\r\n", "at most 65536 are allowed"),
            (b"\x00\x00\x00\x02[]", "not understood"),
            (b"\x00\x00\x00\x0d{\"version\":9}", "version 9"),
            (b"\x00\x00\x00\x0d{\"version\":1}", "not understood"),
        ];
        for (junk, word) in table {
            let mut client = PlainStream::connect(&path).expect("a connection");
            client.write_all(junk).expect("junk is sent");
            let text = refusal_text(client);
            assert!(text.contains(word), "{junk:?}: {text}");
        }
        let mut large = PlainStream::connect(&path).expect("a connection");
        let mut message = (1_u32 << 20).to_be_bytes().to_vec();
        message.resize(1 << 20, b' ');
        large.write_all(&message).expect("a megabyte is sent");
        assert!(refusal_text(large).contains("65536"));
    });
}

#[test]
fn an_incomplete_request_is_refused_after_a_second() {
    with_server("slow", |path| {
        let begun = Instant::now();
        let mut slow = PlainStream::connect(&path).expect("a connection");
        slow.write_all(b"\x00\x00\x00\x20{").expect("a beginning");
        // Other clients are served meanwhile.
        let other = PlainStream::connect(&path).expect("a connection");
        assert!(matches!(ping(other), Response::Pong(_)));
        assert!(begun.elapsed() < Duration::from_millis(500));
        assert!(refusal_text(slow).contains("within 1s"));
        assert!(begun.elapsed() >= Duration::from_secs(1));
        assert!(begun.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn a_thousand_idle_connections_do_not_lock_out_a_new_one() {
    with_server("crowd", |path| {
        let mut idle = Vec::new();
        for n in 0..1_000 {
            match PlainStream::connect(&path) {
                Ok(client) => idle.push(client),
                Err(error) => panic!("client {n}: {error}"),
            }
            // This test holds descriptors too, and its limit is that of the server.
            if idle.len() > 400 {
                drop(idle.remove(0));
            }
        }
        // A place becomes free when the user's thread has closed the connection that was idle for
        // longest. On a busy machine this thread may not run in time; then the new connection is
        // refused, and a later one finds a place.
        let begun = Instant::now();
        let is_served = || {
            let other = PlainStream::connect(&path).expect("a connection");
            matches!(ping(other), Response::Pong(_))
        };
        while !is_served() {
            assert!(begun.elapsed() < Duration::from_secs(5));
        }
        // The connections that were idle for longest were closed without an answer.
        let first = idle.remove(0);
        assert_eq!(remaining_bytes(first), b"");
        let last = idle.pop().expect("a client");
        assert!(matches!(ping(last), Response::Pong(_)));
    });
}

#[test]
fn a_request_names_a_process_and_descriptors_are_refused() {
    with_server("fds", |path| {
        let own = PidFd::open(std::process::id()).expect("a pidfd");
        let request = Request::Ping(Ping {});
        let about = PlainStream::connect(&path).expect("a connection");
        let answer = Client::over(about).call(&request, Some(own.as_fd()));
        match answer.expect("an answer") {
            Response::Pong(pong) => assert_eq!(pong.daemon, "true", "the daemon has a pidfd"),
            other => panic!("{other:?}"),
        }
        let named = Process::of(own.as_fd()).expect("it lives");
        let wrong = [
            (
                Process {
                    started: named.started + 1,
                    ..named
                },
                "does not exist",
            ),
            (Process { pid: 0, ..named }, "does not exist"),
            (
                Process {
                    pid: u32::MAX,
                    ..named
                },
                "does not exist",
            ),
            (
                Process {
                    namespace: 1,
                    ..named
                },
                "another PID namespace (1;",
            ),
        ];
        for (process, word) in wrong {
            let mut client = PlainStream::connect(&path).expect("a connection");
            let frame = netnice_api::encode_client_call(&request, Some(process));
            client.write_all(&frame.expect("short")).expect("sent");
            client.shutdown(std::net::Shutdown::Write).expect("shut");
            let text = refusal_text(client);
            assert!(text.contains(word), "{process:?}: {text}");
        }
        let file = std::fs::File::open("/dev/null").expect("a file");
        let frame = netnice_api::encode_request(&request).expect("a frame");
        for (cut, many) in [(frame.len(), 1), (frame.len(), 3), (1, 1), (5, 2)] {
            let mut client = PlainStream::connect(&path).expect("a connection");
            let fds = vec![file.as_fd(); many];
            netnice_api::fds::send(client.as_fd(), &frame[..cut], &fds).expect("sent");
            let _ = client.flush();
            let text = refusal_text(client);
            assert!(
                text.contains("file descriptor"),
                "{cut} bytes with {many}: {text}"
            );
        }
    });
}

#[test]
fn a_request_is_carried_out_although_its_client_hangs_up() {
    let path = std::env::temp_dir().join(format!("netnice-{}-gone.sock", std::process::id()));
    run_local(async {
        let server = FrontSupervisor::bind(&path).expect("a socket").in_thread();
        let (to_service, mut requests) = mpsc::channel::<PendingRequest>(1);
        let frame = netnice_api::encode_request(&Request::Ping(Ping {})).expect("a frame");
        // More than a user may have at the daemon at a time.
        for _ in 0..200 {
            let mut client = PlainStream::connect(&path).expect("a connection");
            client.write_all(&frame).expect("sent");
        }
        let service = async {
            for _ in 0..200 {
                let request = requests.recv().await.expect("all requests arrive");
                let _ = request.reply.send(Response::failed("not read").into());
            }
        };
        tokio::select! {
            () = server.serve(to_service) => {}
            done = tokio::time::timeout(Duration::from_secs(20), service) => done.expect("all \
                came"),
        }
    });
}
