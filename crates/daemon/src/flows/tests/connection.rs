//! Tests of the connection to a driver, with a thread as the driver.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use netnice_api::RuntimeDir;
use netnice_api::driver::{DriverCall, DriverMessage, DriverReply, DriverRequest};
use netnice_api::frame::{Decoder, LONGEST_DRIVER_CALL};
use netnice_api::{decode_driver_call, encode_driver_message, fds};
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};

use super::fake::any_fd;
use super::*;
use crate::flows::driver::ConnectionEvent;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("netnice-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn driver_socket(folder: &std::path::Path) -> UnixListener {
    let socket = RuntimeDir::choose(Some(folder.to_owned()), None).driver_socket("eth0");
    let drivers = socket.parent().expect("the drivers' folder");
    std::fs::create_dir_all(drivers).expect("a folder");
    UnixListener::bind(&socket).expect("a socket")
}

fn answer_frame(id: u64, answer: DriverReply) -> Vec<u8> {
    encode_driver_message(&DriverMessage::Reply { id, reply: answer }).expect("a frame")
}

fn call(id: u64, ask: DriverRequest) -> driver::Call {
    (DriverCall { id, request: ask }, None)
}

fn census() -> Vec<driver::Call> {
    vec![call(9, DriverRequest::Census)]
}

/// A call of at least so many bytes.
fn discard(id: u64, bytes: usize) -> driver::Call {
    let term = Term {
        offset: 100,
        mask: 0xff,
        value: 0xff,
    };
    let each = serde_json::to_vec(&term).expect("JSON").len() + 1;
    let patterns = vec![vec![term; bytes / each + 1]];
    call(id, DriverRequest::Discard { patterns })
}

/// The events of a connection to a driver that gets these calls, until it ends.
fn connection_events(folder: &std::path::Path, calls: Vec<driver::Call>) -> Vec<ConnectionEvent> {
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("an executor");
    LocalSet::new().block_on(&executor, async {
        let (sender, to_make) = mpsc::unbounded_channel();
        let (events, mut from) = mpsc::unbounded_channel();
        let to = (eth0(), 3);
        spawn_local(driver::run(folder.to_owned(), to, None, to_make, events));
        for call in calls {
            sender.send(call).expect("it listens");
        }
        let mut all = Vec::new();
        while let Some((link, connection, what)) = from.recv().await {
            assert_eq!((link, connection), (eth0(), 3));
            all.push(what);
        }
        all
    })
}

#[test]
fn descriptors_are_assigned_to_the_attachment_they_came_with() {
    let folder = folder("attachment");
    let listener = driver_socket(&folder);
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        let mut decoder = Decoder::new(LONGEST_DRIVER_CALL);
        let mut bytes = [0; 4096];
        let mut beside = Vec::new();
        let call = loop {
            let received = fds::receive(stream.as_fd(), &mut bytes, 1).expect("a call");
            decoder.push(&bytes[..received.bytes]);
            beside.extend(received.fds);
            if let Some(body) = decoder.poll().expect("a frame") {
                break decode_driver_call(&body).expect("a call");
            }
        };
        assert_eq!((call.id, beside.len()), (9, 1));
        // The descriptors may be received together with the end of the message before theirs.
        stream
            .write_all(&answer_frame(1, DriverReply::Done))
            .expect("sent");
        let attached = answer_frame(2, DriverReply::Attached { program: 0 });
        let three = [any_fd(), any_fd(), any_fd()];
        let three = three.each_ref().map(AsFd::as_fd);
        let sent = fds::send(stream.as_fd(), &attached, &three).expect("sent");
        stream.write_all(&attached[sent..]).expect("sent");
        stream
            .write_all(&answer_frame(3, DriverReply::Done))
            .expect("sent");
        drop(stream.shutdown(std::net::Shutdown::Write));
        let _ = stream.read(&mut bytes);
    });
    let ask = DriverRequest::Census;
    let call = (
        DriverCall {
            id: 9,
            request: ask,
        },
        Some(any_fd()),
    );
    let all = connection_events(&folder, vec![call]);
    driver.join().expect("the driver ends without a panic");
    std::fs::remove_dir_all(&folder).expect("removed");
    let [
        ConnectionEvent::Connected(_),
        messages @ ..,
        ConnectionEvent::Ended(why),
    ] = &all[..]
    else {
        panic!("{all:?}");
    };
    assert!(why.contains("the driver of eth0 has ended"), "{why}");
    let fds: Vec<usize> = messages
        .iter()
        .map(|messages| match messages {
            ConnectionEvent::Message(_, fds) => fds.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(fds, [0, 3, 0]);
}

#[test]
fn a_missing_driver_and_an_invalid_message_end_the_connection_with_a_reason() {
    let folder = folder("strange");
    let gone = connection_events(&folder, census());
    assert!(
        matches!(&gone[..], [ConnectionEvent::Ended(why)] if why.contains("no driver of eth0")),
        "{gone:?}"
    );
    let listener = driver_socket(&folder);
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        stream.write_all(b"\0\0\0\x05hello").expect("sent");
        let _ = stream.read(&mut [0; 64]);
    });
    let strange = connection_events(&folder, census());
    driver.join().expect("the driver ends without a panic");
    std::fs::remove_dir_all(&folder).expect("removed");
    assert!(
        matches!(
            &strange[..],
            [ConnectionEvent::Connected(_), ConnectionEvent::Ended(why)]
                if why.contains("the connection to the driver")
        ),
        "{strange:?}"
    );
}

#[test]
fn a_message_as_long_as_a_census_of_all_flows_is_decoded() {
    let folder = folder("long");
    let listener = driver_socket(&folder);
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        let why = "x".repeat(65_536 * 800);
        stream
            .write_all(&answer_frame(9, DriverReply::Failed { why }))
            .expect("sent");
        drop(stream.shutdown(std::net::Shutdown::Write));
        let _ = stream.read(&mut [0; 64]);
    });
    let all = connection_events(&folder, census());
    driver.join().expect("the driver ends without a panic");
    std::fs::remove_dir_all(&folder).expect("removed");
    let understood = matches!(
        &all[..],
        [ConnectionEvent::Connected(_), ConnectionEvent::Message(..), ConnectionEvent::Ended(why)]
            if why.contains("the driver of eth0 has ended")
    );
    assert!(understood, "{} events", all.len());
}

/// The ids of the next `count` calls that a driver receives.
fn received_call_ids(stream: &mut UnixStream, count: usize) -> Vec<u64> {
    let mut decoder = Decoder::new(LONGEST_DRIVER_CALL);
    let mut bytes = [0; 64 * 1024];
    let mut ids = Vec::new();
    while ids.len() < count {
        let read = stream.read(&mut bytes).expect("calls");
        assert!(read > 0, "{ids:?}");
        decoder.push(&bytes[..read]);
        while let Some(body) = decoder.poll().expect("a frame") {
            ids.push(decode_driver_call(&body).expect("a call").id);
        }
    }
    ids
}

#[test]
fn a_call_that_is_too_long_fails_at_once_and_the_connection_continues() {
    let folder = folder("endless");
    let listener = driver_socket(&folder);
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        assert_eq!(received_call_ids(&mut stream, 2), [7, 9]);
        stream
            .write_all(&answer_frame(9, DriverReply::Done))
            .expect("sent");
    });
    let mut calls = vec![
        discard(7, LONGEST_DRIVER_CALL / 2),
        discard(8, LONGEST_DRIVER_CALL),
    ];
    calls.extend(census());
    let all = connection_events(&folder, calls);
    driver.join().expect("the driver ends without a panic");
    std::fs::remove_dir_all(&folder).expect("removed");
    let [
        ConnectionEvent::Connected(_),
        messages @ ..,
        ConnectionEvent::Ended(_),
    ] = &all[..]
    else {
        panic!("{all:?}");
    };
    let [long, done] = messages else {
        panic!("{messages:?}");
    };
    let ConnectionEvent::Message(DriverMessage::Reply { id: 8, reply }, _) = long else {
        panic!("{long:?}");
    };
    assert!(
        matches!(reply, DriverReply::Failed { why }
            if why.contains("at most 1048576 are allowed")),
        "{reply:?}"
    );
    assert!(
        matches!(
            done,
            ConnectionEvent::Message(DriverMessage::Reply { id: 9, .. }, _)
        ),
        "{done:?}"
    );
}

#[test]
fn messages_are_read_while_a_driver_takes_no_call() {
    let folder = folder("busy");
    let listener = driver_socket(&folder);
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        let patience = Some(std::time::Duration::from_secs(10));
        stream.set_write_timeout(patience).expect("it can");
        let why = "x".repeat(8 * LONGEST_DRIVER_CALL);
        let long = answer_frame(6, DriverReply::Failed { why });
        stream.write_all(&long).expect("the daemon reads");
        assert_eq!(received_call_ids(&mut stream, 4), [0, 1, 2, 3]);
    });
    let calls = (0..4)
        .map(|id| discard(id, LONGEST_DRIVER_CALL / 2))
        .collect();
    let all = connection_events(&folder, calls);
    driver.join().expect("the driver ends without a panic");
    std::fs::remove_dir_all(&folder).expect("removed");
    let complete = matches!(
        &all[..],
        [
            ConnectionEvent::Connected(_),
            ConnectionEvent::Message(..),
            ConnectionEvent::Ended(_)
        ]
    );
    assert!(complete, "{} events", all.len());
}
