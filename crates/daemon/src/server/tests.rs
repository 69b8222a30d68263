//! The socket, with clients as untrusted as real ones.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Plain;
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

/// Runs a server that answers every ping, and `guests` on another thread.
fn with_server(name: &str, guests: impl FnOnce(PathBuf) + Send + 'static) {
    let path = std::env::temp_dir().join(format!("netnice-{}-{name}.sock", std::process::id()));
    run_local(async {
        let server = Server::bind(&path).expect("a socket").in_thread();
        let (to_clerk, mut asks) = mpsc::channel::<Ask>(4);
        let there = path.clone();
        let guests = tokio::task::spawn_blocking(move || guests(there));
        let clerk = async {
            while let Some(ask) = asks.recv().await {
                let pong = Pong {
                    protocol: ask.peer.uid,
                    daemon: ask.fd.is_some().to_string(),
                };
                let _ = ask.reply.send(Response::Pong(pong).into());
            }
        };
        tokio::select! {
            () = server.serve(to_clerk) => {}
            () = clerk => {}
            done = guests => done.expect("the guests are content"),
        }
    });
    assert!(!path.exists(), "the socket goes with the server");
}

#[test]
fn a_socket_that_was_handed_over_stays_with_who_made_it() {
    let path = std::env::temp_dir().join(format!("netnice-{}-handed.sock", std::process::id()));
    let made = UnixListener::bind(&path).expect("a socket");
    // A client asks before there is a daemon, and gets its answer once there is one.
    let early = Plain::connect(&path).expect("it listens");
    run_local(async {
        let server = Server::take_over(made.try_clone().expect("another"));
        let server = server.expect("taken over").in_thread();
        let (to_clerk, mut asks) = mpsc::channel::<Ask>(4);
        let guest = tokio::task::spawn_blocking(move || ping(early));
        let clerk = async {
            let ask = asks.recv().await.expect("somebody asks");
            let pong = Pong {
                protocol: 7,
                daemon: String::new(),
            };
            let _ = ask.reply.send(Response::Pong(pong).into());
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = server.serve(to_clerk) => {}
            () = clerk => {}
            answer = guest => assert!(matches!(answer, Ok(Response::Pong(p)) if p.protocol == 7)),
        }
    });
    assert!(path.exists(), "it is not ours to remove");
    std::fs::remove_file(&path).expect("removed");
}

fn ping(stream: Plain) -> Response {
    let request = Request::Ping(Ping {});
    Client::over(stream)
        .call(&request, None)
        .expect("an answer")
}

/// All bytes that a connection sends until it ends.
fn last_words(mut stream: Plain) -> Vec<u8> {
    let mut words = Vec::new();
    let patience = Some(Duration::from_secs(5));
    stream.set_read_timeout(patience).expect("a patience");
    stream.read_to_end(&mut words).expect("it ends");
    words
}

fn told(stream: Plain) -> String {
    let words = last_words(stream);
    match decode_response(words.get(4..).unwrap_or_default()) {
        Ok(Response::Failed(failed)) => failed.text,
        other => panic!("{other:?} in {words:?}"),
    }
}

#[test]
fn a_peer_is_known_by_its_user_and_asks_as_often_as_it_likes() {
    with_server("often", |path| {
        let stream = Plain::connect(&path).expect("a connection");
        for _ in 0..3 {
            let again = stream.try_clone().expect("the same connection");
            let Response::Pong(pong) = ping(again) else {
                panic!("no pong");
            };
            assert_eq!(pong.protocol, nix::unistd::Uid::effective().as_raw());
            assert_eq!(pong.daemon, "false", "no descriptor came");
        }
    });
}

#[test]
fn garbage_is_told_once_and_the_connection_ends() {
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
            let mut guest = Plain::connect(&path).expect("a connection");
            guest.write_all(junk).expect("junk is sent");
            let text = told(guest);
            assert!(text.contains(word), "{junk:?}: {text}");
        }
        let mut large = Plain::connect(&path).expect("a connection");
        let mut message = (1_u32 << 20).to_be_bytes().to_vec();
        message.resize(1 << 20, b' ');
        large.write_all(&message).expect("a megabyte is sent");
        assert!(told(large).contains("65536"));
    });
}

#[test]
fn who_begins_and_does_not_end_has_a_second() {
    with_server("slow", |path| {
        let begun = Instant::now();
        let mut slow = Plain::connect(&path).expect("a connection");
        slow.write_all(b"\x00\x00\x00\x20{").expect("a beginning");
        // Other clients are served meanwhile.
        let other = Plain::connect(&path).expect("a connection");
        assert!(matches!(ping(other), Response::Pong(_)));
        assert!(begun.elapsed() < Duration::from_millis(500));
        assert!(told(slow).contains("within 1s"));
        assert!(begun.elapsed() >= Duration::from_secs(1));
        assert!(begun.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn a_thousand_idle_guests_leave_room_for_others() {
    with_server("crowd", |path| {
        let mut idle = Vec::new();
        for n in 0..1_000 {
            match Plain::connect(&path) {
                Ok(guest) => idle.push(guest),
                Err(error) => panic!("guest {n}: {error}"),
            }
            // This test holds descriptors too, and its limit is that of the server.
            if idle.len() > 400 {
                drop(idle.remove(0));
            }
        }
        let begun = Instant::now();
        let other = Plain::connect(&path).expect("a connection");
        assert!(matches!(ping(other), Response::Pong(_)));
        assert!(begun.elapsed() < Duration::from_secs(5));
        // The connections that were idle for longest were closed without an answer.
        let first = idle.remove(0);
        assert_eq!(last_words(first), b"");
        let last = idle.pop().expect("a guest");
        assert!(matches!(ping(last), Response::Pong(_)));
    });
}

#[test]
fn a_process_is_named_and_no_descriptor_is_taken() {
    with_server("fds", |path| {
        let own = PidFd::open(std::process::id()).expect("a pidfd");
        let request = Request::Ping(Ping {});
        let about = Plain::connect(&path).expect("a connection");
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
            let mut guest = Plain::connect(&path).expect("a connection");
            let frame = netnice_api::encode_client_call(&request, Some(process));
            guest.write_all(&frame.expect("short")).expect("sent");
            guest.shutdown(std::net::Shutdown::Write).expect("shut");
            let text = told(guest);
            assert!(text.contains(word), "{process:?}: {text}");
        }
        let file = std::fs::File::open("/dev/null").expect("a file");
        let frame = netnice_api::encode_request(&request).expect("a frame");
        for (cut, many) in [(frame.len(), 1), (frame.len(), 3), (1, 1), (5, 2)] {
            let mut guest = Plain::connect(&path).expect("a connection");
            let fds = vec![file.as_fd(); many];
            netnice_api::fds::send(guest.as_fd(), &frame[..cut], &fds).expect("sent");
            let _ = guest.flush();
            let text = told(guest);
            assert!(
                text.contains("file descriptor"),
                "{cut} bytes with {many}: {text}"
            );
        }
    });
}

#[test]
fn what_was_asked_is_done_also_for_who_hangs_up_at_once() {
    let path = std::env::temp_dir().join(format!("netnice-{}-gone.sock", std::process::id()));
    run_local(async {
        let server = Server::bind(&path).expect("a socket").in_thread();
        let (to_clerk, mut asks) = mpsc::channel::<Ask>(1);
        let frame = netnice_api::encode_request(&Request::Ping(Ping {})).expect("a frame");
        // More than a user may have at the daemon at a time.
        for _ in 0..200 {
            let mut guest = Plain::connect(&path).expect("a connection");
            guest.write_all(&frame).expect("sent");
        }
        let clerk = async {
            for _ in 0..200 {
                let ask = asks.recv().await.expect("all of them ask");
                let _ = ask.reply.send(Response::failed("nobody hears it").into());
            }
        };
        tokio::select! {
            () = server.serve(to_clerk) => {}
            done = tokio::time::timeout(Duration::from_secs(20), clerk) => done.expect("all came"),
        }
    });
}
