//! The socket, spoken to as strangers would.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream as Plain;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netnice_api::{Client, Ping, Pong, Request, Response, decode_response};
use tokio::task::LocalSet;

use super::*;

/// Runs a server that answers every ping, and `guests` beside it on a thread of their own.
fn with_server(name: &str, guests: impl FnOnce(PathBuf) + Send + 'static) {
    let path = std::env::temp_dir().join(format!("netnice-{}-{name}.sock", std::process::id()));
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("an executor");
    LocalSet::new().block_on(&executor, async {
        let server = Server::bind(&path).expect("a socket");
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
    let made = StdListener::bind(&path).expect("a socket");
    // Somebody asks before there is a daemon, and is answered once there is one.
    let early = Plain::connect(&path).expect("it listens");
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("an executor");
    LocalSet::new().block_on(&executor, async {
        let server = Server::take_over(made.try_clone().expect("another")).expect("taken over");
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

/// All that a connection says until it ends.
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
            (b"\xff\xff\xff\xff", "longer than"),
            (b"\x00\x00\x00\x00", "empty"),
            (b"GET / HTTP/1.1\r\n\r\n", "longer than"),
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
        // Others are served meanwhile.
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
            // This end holds descriptors too, and may have no more than the server.
            if idle.len() > 400 {
                drop(idle.remove(0));
            }
        }
        let begun = Instant::now();
        let other = Plain::connect(&path).expect("a connection");
        assert!(matches!(ping(other), Response::Pong(_)));
        assert!(begun.elapsed() < Duration::from_secs(5));
        // Those who were idle longest had to go, without a word.
        let first = idle.remove(0);
        assert_eq!(last_words(first), b"");
        let last = idle.pop().expect("a guest");
        assert!(matches!(ping(last), Response::Pong(_)));
    });
}

#[test]
fn one_descriptor_comes_with_a_request_and_no_more() {
    with_server("fds", |path| {
        let file = std::fs::File::open("/dev/null").expect("a file");
        let frame = netnice_api::encode_request(&Request::Ping(Ping {})).expect("a frame");
        let one = Plain::connect(&path).expect("a connection");
        let request = Request::Ping(Ping {});
        let answer = Client::over(one).call(&request, Some(file.as_fd()));
        match answer.expect("an answer") {
            Response::Pong(pong) => assert_eq!(pong.daemon, "true"),
            other => panic!("{other:?}"),
        }
        let mut two = Plain::connect(&path).expect("a connection");
        netnice_api::fds::send(two.as_fd(), &frame[..1], &[file.as_fd()]).expect("sent");
        std::thread::sleep(Duration::from_millis(100));
        netnice_api::fds::send(two.as_fd(), &frame[1..2], &[file.as_fd()]).expect("sent");
        let _ = two.flush();
        assert!(told(two).contains("one pidfd"));
    });
}
