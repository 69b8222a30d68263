use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use netnice_api::channels::{
    ListChannels, Listen, Listening, Pong, ToProgram, decode, encode_from_program,
};
use netnice_api::frame::Decoder;
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

/// The socket of a test, with its folder.
fn socket() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("peer").join("peer.sock");
    (folder, socket)
}

fn send(stream: &mut UnixStream, message: &FromProgram) {
    let frame = encode_from_program(message).expect("short");
    stream.write_all(&frame).expect("written");
}

/// What a program receives, of which one message is enough.
async fn received(stream: UnixStream) -> ToProgram {
    let read = tokio::task::spawn_blocking(move || {
        let mut stream = stream;
        let mut decoder = Decoder::new(netnice_api::channels::LONGEST_TO_PROGRAM);
        let mut bytes = [0; 1024];
        loop {
            let length = stream.read(&mut bytes).expect("read");
            assert!(length > 0, "it was closed");
            decoder.push(&bytes[..length]);
            if let Some(body) = decoder.poll().expect("a frame") {
                return decode(&body).expect("valid");
            }
        }
    });
    read.await.expect("read")
}

async fn next(programs: &mut Programs) -> ProgramEvent {
    let event = timeout(Duration::from_secs(10), programs.next()).await;
    event.expect("an event")
}

#[tokio::test]
async fn messages_pass_both_ways_and_the_end_is_told() {
    let (_folder, at) = socket();
    let mut programs = Programs::listen(&at).expect("a socket");
    let mut stream = UnixStream::connect(&at).expect("connected");
    let service = "camera".to_owned();
    let listen = FromProgram::Listen(Listen {
        service: service.clone(),
    });
    send(&mut stream, &listen);
    let ProgramEvent::Message {
        program,
        uid,
        message,
    } = next(&mut programs).await
    else {
        panic!("no message");
    };
    assert_eq!((uid, message), (rustix::process::getuid().as_raw(), listen));
    let host = "recorder".to_owned();
    let reply = ToProgram::Listening(Listening { service, host });
    programs.send(program, &reply);
    let own = stream.try_clone().expect("a clone");
    assert_eq!(received(own).await, reply);
    drop(stream);
    match next(&mut programs).await {
        ProgramEvent::Ended { program: ended, .. } => assert_eq!(ended, program),
        other => panic!("{other:?}"),
    }
    // Nothing is sent to a program that has ended.
    programs.send(program, &reply);
}

#[tokio::test]
async fn an_invalid_message_ends_its_connection_only() {
    let (_folder, at) = socket();
    let mut programs = Programs::listen(&at).expect("a socket");
    let mut good = UnixStream::connect(&at).expect("connected");
    let mut bad = UnixStream::connect(&at).expect("connected");
    send(&mut bad, &FromProgram::List(ListChannels {}));
    let ProgramEvent::Message { program, .. } = next(&mut programs).await else {
        panic!("no message");
    };
    // A frame that announces 4 GiB.
    bad.write_all(&[0xff; 8]).expect("written");
    match next(&mut programs).await {
        ProgramEvent::Ended {
            program: ended,
            reason,
        } => {
            assert_eq!(ended, program);
            assert!(reason.contains("16384"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    send(&mut good, &FromProgram::List(ListChannels {}));
    match next(&mut programs).await {
        ProgramEvent::Message { program: other, .. } => assert_ne!(other, program),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_program_that_does_not_reply_is_disconnected() {
    let (_folder, at) = socket();
    let mut programs = Programs::listen(&at).expect("a socket");
    let mut awake = UnixStream::connect(&at).expect("connected");
    let mut stopped = UnixStream::connect(&at).expect("connected");
    for stream in [&mut awake, &mut stopped] {
        send(stream, &FromProgram::List(ListChannels {}));
        next(&mut programs).await;
    }
    let begin = now();
    assert_eq!(programs.ping(begin), []);
    send(&mut awake, &FromProgram::Pong(Pong {}));
    // The reply is no event; the question that follows is.
    send(&mut awake, &FromProgram::List(ListChannels {}));
    let ProgramEvent::Message { program, .. } = next(&mut programs).await else {
        panic!("no message");
    };
    let heard = programs.links[&program].heard;
    let silent = programs.ping(heard.after(SILENT));
    assert_eq!(silent.len(), 1);
    assert_ne!(silent, [program]);
    // Its connection is closed.
    stopped
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("set");
    let closed = tokio::task::spawn_blocking(move || {
        let mut all = Vec::new();
        stopped.read_to_end(&mut all)
    });
    closed.await.expect("read").expect("the end");
}

#[tokio::test]
async fn a_program_that_does_not_read_is_disconnected() {
    let (_folder, at) = socket();
    let mut programs = Programs::listen(&at).expect("a socket");
    let mut stream = UnixStream::connect(&at).expect("connected");
    send(&mut stream, &FromProgram::List(ListChannels {}));
    let ProgramEvent::Message { program, .. } = next(&mut programs).await else {
        panic!("no message");
    };
    let long = ToProgram::Listening(Listening {
        service: "x".repeat(10_000),
        host: String::new(),
    });
    for _ in 0..1_000 {
        programs.send(program, &long);
    }
    match next(&mut programs).await {
        ProgramEvent::Ended {
            program: ended,
            reason,
        } => {
            assert_eq!(ended, program);
            assert!(reason.contains("does not read"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_second_process_does_not_take_the_socket_and_a_new_one_replaces_a_dead_one() {
    let (_folder, at) = socket();
    let programs = Programs::listen(&at).expect("a socket");
    let error = Programs::listen(&at).map(drop).expect_err("in use");
    assert!(error.to_string().contains("peer.sock"), "{error}");
    drop(programs);
    // As after a kill: the file is there, and nobody listens.
    drop(std::os::unix::net::UnixListener::bind(&at).expect("a socket"));
    Programs::listen(&at).map(drop).expect("replaced");
}

#[tokio::test]
async fn too_many_connections_are_closed_at_once() {
    let (_folder, at) = socket();
    let mut programs = Programs::listen(&at).expect("a socket");
    let mut streams = Vec::new();
    for _ in 0..=MOST_CONNECTIONS {
        let mut stream = UnixStream::connect(&at).expect("connected");
        // The last one may be closed already.
        let _ = stream
            .write_all(&encode_from_program(&FromProgram::List(ListChannels {})).expect("short"));
        if streams.len() < MOST_CONNECTIONS {
            next(&mut programs).await;
        }
        streams.push(stream);
    }
    let nothing = timeout(Duration::from_millis(500), programs.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    let mut last = streams.last().expect("one");
    let closed = last.read(&mut [0; 1]);
    // Closed, or reset because of what it had sent.
    assert!(closed.is_err() || closed.is_ok_and(|bytes| bytes == 0));
    let mut first = &streams[0];
    first.set_nonblocking(true).expect("set");
    let open = first.read(&mut [0; 1]).expect_err("nothing was sent");
    assert_eq!(open.kind(), std::io::ErrorKind::WouldBlock);
}
