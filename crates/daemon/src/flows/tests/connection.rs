//! The connection to a driver; a thread is at its other end.

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
use crate::flows::driver::Heard;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("netnice-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn listens(folder: &std::path::Path) -> UnixListener {
    let socket = RuntimeDir::choose(Some(folder.to_owned()), None).driver_socket("eth0");
    let drivers = socket.parent().expect("the drivers' folder");
    std::fs::create_dir_all(drivers).expect("a folder");
    UnixListener::bind(&socket).expect("a socket")
}

fn word(id: u64, answer: DriverReply) -> Vec<u8> {
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
fn heard(folder: &std::path::Path, asked: Vec<driver::Call>) -> Vec<Heard> {
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("an executor");
    LocalSet::new().block_on(&executor, async {
        let (calls, to_make) = mpsc::unbounded_channel();
        let (heard, mut from) = mpsc::unbounded_channel();
        let to = (eth0(), 3);
        spawn_local(driver::run(folder.to_owned(), to, None, to_make, heard));
        for call in asked {
            calls.send(call).expect("it listens");
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
fn descriptors_stay_with_the_attachment_that_they_came_with() {
    let folder = folder("attachment");
    let listener = listens(&folder);
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
        stream.write_all(&word(1, DriverReply::Done)).expect("said");
        let attached = word(2, DriverReply::Attached { program: 0 });
        let three = [any_fd(), any_fd(), any_fd()];
        let three = three.each_ref().map(AsFd::as_fd);
        let sent = fds::send(stream.as_fd(), &attached, &three).expect("said");
        stream.write_all(&attached[sent..]).expect("said");
        stream.write_all(&word(3, DriverReply::Done)).expect("said");
        drop(stream.shutdown(std::net::Shutdown::Write));
        let _ = stream.read(&mut bytes);
    });
    let ask = DriverRequest::Census;
    let asked = (
        DriverCall {
            id: 9,
            request: ask,
        },
        Some(any_fd()),
    );
    let all = heard(&folder, vec![asked]);
    driver.join().expect("the driver is content");
    std::fs::remove_dir_all(&folder).expect("removed");
    let [Heard::Came, said @ .., Heard::Ended(why)] = &all[..] else {
        panic!("{all:?}");
    };
    assert!(why.contains("the driver of eth0 has ended"), "{why}");
    let fds: Vec<usize> = said
        .iter()
        .map(|said| match said {
            Heard::Said(_, fds) => fds.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(fds, [0, 3, 0]);
}

#[test]
fn a_driver_that_is_gone_or_not_understood_is_said_to_be() {
    let folder = folder("strange");
    let gone = heard(&folder, census());
    assert!(
        matches!(&gone[..], [Heard::Ended(why)] if why.contains("no driver of eth0")),
        "{gone:?}"
    );
    let listener = listens(&folder);
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        stream.write_all(b"\0\0\0\x05hello").expect("said");
        let _ = stream.read(&mut [0; 64]);
    });
    let strange = heard(&folder, census());
    driver.join().expect("the driver is content");
    std::fs::remove_dir_all(&folder).expect("removed");
    assert!(
        matches!(&strange[..], [Heard::Came, Heard::Ended(why)] if why.contains("not understood")),
        "{strange:?}"
    );
}

#[test]
fn a_word_as_long_as_a_census_of_all_flows_is_understood() {
    let folder = folder("long");
    let listener = listens(&folder);
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        let why = "x".repeat(65_536 * 800);
        stream
            .write_all(&word(9, DriverReply::Failed { why }))
            .expect("said");
        drop(stream.shutdown(std::net::Shutdown::Write));
        let _ = stream.read(&mut [0; 64]);
    });
    let all = heard(&folder, census());
    driver.join().expect("the driver is content");
    std::fs::remove_dir_all(&folder).expect("removed");
    let understood = matches!(&all[..], [Heard::Came, Heard::Said(..), Heard::Ended(why)]
        if why.contains("the driver of eth0 has ended"));
    assert!(understood, "{} words", all.len());
}

/// The ids of the next `count` calls that a driver receives.
fn hears(stream: &mut UnixStream, count: usize) -> Vec<u64> {
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
fn a_call_that_is_too_long_is_answered_at_once_and_ends_nothing() {
    let folder = folder("endless");
    let listener = listens(&folder);
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        assert_eq!(hears(&mut stream, 2), [7, 9]);
        stream.write_all(&word(9, DriverReply::Done)).expect("said");
    });
    let mut asked = vec![
        discard(7, LONGEST_DRIVER_CALL / 2),
        discard(8, LONGEST_DRIVER_CALL),
    ];
    asked.extend(census());
    let all = heard(&folder, asked);
    driver.join().expect("the driver is content");
    std::fs::remove_dir_all(&folder).expect("removed");
    let [Heard::Came, said @ .., Heard::Ended(_)] = &all[..] else {
        panic!("{all:?}");
    };
    let [long, done] = said else {
        panic!("{said:?}");
    };
    assert!(
        matches!(long, Heard::Said(DriverMessage::Reply { id: 8, reply: DriverReply::Failed { why } }, _)
            if why.contains("at most 1048576 are allowed")),
        "{long:?}"
    );
    assert!(
        matches!(done, Heard::Said(DriverMessage::Reply { id: 9, .. }, _)),
        "{done:?}"
    );
}

#[test]
fn what_a_driver_says_is_read_while_it_takes_no_call() {
    let folder = folder("busy");
    let listener = listens(&folder);
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        let patience = Some(std::time::Duration::from_secs(10));
        stream.set_write_timeout(patience).expect("it can");
        let why = "x".repeat(8 * LONGEST_DRIVER_CALL);
        let long = word(6, DriverReply::Failed { why });
        stream.write_all(&long).expect("the daemon reads");
        assert_eq!(hears(&mut stream, 4), [0, 1, 2, 3]);
    });
    let asked = (0..4)
        .map(|id| discard(id, LONGEST_DRIVER_CALL / 2))
        .collect();
    let all = heard(&folder, asked);
    driver.join().expect("the driver is content");
    std::fs::remove_dir_all(&folder).expect("removed");
    let heard = matches!(&all[..], [Heard::Came, Heard::Said(..), Heard::Ended(_)]);
    assert!(heard, "{} words", all.len());
}
