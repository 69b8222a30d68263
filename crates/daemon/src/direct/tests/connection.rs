//! The connection to a driver, with a thread at its other end.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use netnice_api::driver::{DriverAnswer, DriverCall, DriverRequest, DriverWord};
use netnice_api::frame::{Decoder, LONGEST_REQUEST};
use netnice_api::{decode_call, encode_word, fds};
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};

use super::paper::any_fd;
use super::*;
use crate::direct::driver::Heard;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("netnice-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn word(id: u64, answer: DriverAnswer) -> Vec<u8> {
    encode_word(&DriverWord::Answer { id, answer }).expect("a frame")
}

/// What is heard over a connection to a driver that is asked one thing, until it ends.
fn heard(folder: &std::path::Path) -> Vec<Heard> {
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("an executor");
    LocalSet::new().block_on(&executor, async {
        let (calls, to_make) = mpsc::unbounded_channel();
        let (heard, mut from) = mpsc::unbounded_channel();
        let to = (eth0(), 3);
        spawn_local(driver::run(folder.to_owned(), to, None, to_make, heard));
        let ask = DriverRequest::Census;
        let call = (DriverCall { id: 9, ask }, Some(any_fd()));
        calls.send(call).expect("it listens");
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
    let listener = UnixListener::bind(folder.join("driver-eth0.sock")).expect("a socket");
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        let mut decoder = Decoder::new(LONGEST_REQUEST);
        let mut bytes = [0; 4096];
        let mut beside = Vec::new();
        let call = loop {
            let received = fds::receive(stream.as_fd(), &mut bytes, 1).expect("a call");
            decoder.push(&bytes[..received.bytes]);
            beside.extend(received.fds);
            if let Some(body) = decoder.poll().expect("a frame") {
                break decode_call(&body).expect("a call");
            }
        };
        assert_eq!((call.id, beside.len()), (9, 1));
        // The descriptors may be received together with the end of the word before theirs.
        stream
            .write_all(&word(1, DriverAnswer::Done))
            .expect("said");
        let attached = word(2, DriverAnswer::Attached { program: 0 });
        let three = [any_fd(), any_fd(), any_fd()];
        let three = three.each_ref().map(AsFd::as_fd);
        let sent = fds::send(stream.as_fd(), &attached, &three).expect("said");
        stream.write_all(&attached[sent..]).expect("said");
        stream
            .write_all(&word(3, DriverAnswer::Done))
            .expect("said");
        drop(stream.shutdown(std::net::Shutdown::Write));
        let _ = stream.read(&mut bytes);
    });
    let all = heard(&folder);
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
    let gone = heard(&folder);
    assert!(
        matches!(&gone[..], [Heard::Ended(why)] if why.contains("no driver of eth0")),
        "{gone:?}"
    );
    let listener = UnixListener::bind(folder.join("driver-eth0.sock")).expect("a socket");
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        stream.write_all(b"\0\0\0\x05hello").expect("said");
        let _ = stream.read(&mut [0; 64]);
    });
    let strange = heard(&folder);
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
    let listener = UnixListener::bind(folder.join("driver-eth0.sock")).expect("a socket");
    let driver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a daemon");
        let why = "x".repeat(65_536 * 800);
        stream
            .write_all(&word(9, DriverAnswer::Failed { why }))
            .expect("said");
        drop(stream.shutdown(std::net::Shutdown::Write));
        let _ = stream.read(&mut [0; 64]);
    });
    let all = heard(&folder);
    driver.join().expect("the driver is content");
    std::fs::remove_dir_all(&folder).expect("removed");
    let understood = matches!(&all[..], [Heard::Came, Heard::Said(..), Heard::Ended(why)]
        if why.contains("the driver of eth0 has ended"));
    assert!(understood, "{} words", all.len());
}
