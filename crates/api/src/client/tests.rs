use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, ClientError};
use crate::direct::{DirectReply, FlowNotification};
use crate::frame::{Decoder, LONGEST_REQUEST};
use crate::{
    ClientCall, Done, Exit, Ping, Request, Response, RuntimeDir, decode_client_call,
    encode_response, fds,
};

fn ping() -> Request {
    Request::Ping(Ping {})
}

/// A folder of this test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("netnice-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        Folder(path)
    }

    fn dir(&self) -> RuntimeDir {
        RuntimeDir::choose(Some(self.0.clone()), None)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Reads one request as a daemon does.
fn read_request(stream: &UnixStream) -> ClientCall {
    let mut decoder = Decoder::new(LONGEST_REQUEST);
    let mut bytes = [0; 7];
    loop {
        if let Some(body) = decoder.poll().expect("a frame") {
            return decode_client_call(&body).expect("a request");
        }
        let got = fds::receive(stream.as_fd(), &mut bytes, 1).expect("bytes");
        assert_ne!(got.bytes, 0, "cut");
        assert!(got.fds.is_empty(), "no descriptor travels with a request");
        decoder.push(&bytes[..got.bytes]);
    }
}

#[test]
fn several_calls_on_one_connection_get_their_responses() {
    let folder = Folder::new("calls");
    let listener = UnixListener::bind(folder.dir().socket()).expect("bound");
    let daemon = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        for pid in [None, Some(std::process::id()), None] {
            let call = read_request(&stream);
            assert_eq!(call.request, ping());
            assert_eq!(call.process.map(|process| process.pid), pid);
            let done = Response::Done(Done {
                messages: vec!["x".repeat(200_000)],
                ..Done::default()
            });
            stream
                .write_all(&encode_response(&done).expect("fits"))
                .expect("a response");
        }
    });
    let mut client = Client::connect(&folder.dir()).expect("connected");
    let own = rustix::process::getpid();
    let own = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty());
    let own = own.expect("a pidfd");
    for fd in [None, Some(own.as_fd()), None] {
        let response = client.call(&ping(), fd).expect("a response");
        let Response::Done(done) = response else {
            panic!("{response:?}")
        };
        assert_eq!(done.messages[0].len(), 200_000);
    }
    daemon.join().expect("the daemon's side");
}

#[test]
fn connecting_without_a_listener_fails_with_no_daemon() {
    let folder = Folder::new("nobody");
    let error = Client::connect(&folder.dir()).expect_err("no socket");
    assert_eq!(Exit::from(&error), Exit::NoDaemon);
    // The socket of a dead daemon exists but refuses connections.
    drop(UnixListener::bind(folder.dir().socket()).expect("bound"));
    let error = Client::connect(&folder.dir()).expect_err("no process listens");
    assert!(matches!(error, ClientError::NoDaemon { .. }), "{error}");
}

#[test]
fn a_call_ends_if_the_daemon_is_silent_or_closes_the_connection() {
    let (here, there) = UnixStream::pair().expect("a pair");
    let mut client = Client::over(here);
    let timeout = Duration::from_millis(100);
    let start = Instant::now();
    let error = client
        .call_within(timeout, &ping(), None)
        .expect_err("silence");
    assert!(matches!(error, ClientError::Timeout), "{error}");
    assert!(start.elapsed() >= timeout && start.elapsed() < 20 * timeout);
    drop(there);

    let (here, there) = UnixStream::pair().expect("a pair");
    drop(there);
    let error = Client::over(here).call(&ping(), None).expect_err("hung up");
    assert!(matches!(error, ClientError::HungUp), "{error}");
    assert_eq!(Exit::from(&error), Exit::Error);
}

#[test]
fn a_response_sent_byte_by_byte_does_not_extend_the_timeout() {
    let (here, mut there) = UnixStream::pair().expect("a pair");
    let drip = thread::spawn(move || {
        let mut request = [0; 256];
        let _ = there.read(&mut request).expect("the request");
        let frame = encode_response(&Response::failed("late")).expect("fits");
        for byte in frame {
            thread::sleep(Duration::from_millis(20));
            if there.write_all(&[byte]).is_err() {
                return;
            }
        }
    });
    let start = Instant::now();
    let response = Client::over(here).call_within(Duration::from_millis(200), &ping(), None);
    assert!(
        matches!(response, Err(ClientError::Timeout)),
        "{response:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(2));
    drip.join().expect("the daemon's side");
}

#[test]
fn garbage_is_an_error() {
    let (here, mut there) = UnixStream::pair().expect("a pair");
    there.write_all(&[0xff; 64]).expect("sent");
    let error = Client::over(here).call(&ping(), None).expect_err("garbage");
    assert!(matches!(error, ClientError::Wire(_)), "{error}");
}

fn link_notification(up: bool) -> Response {
    Response::Direct(DirectReply::Notification(FlowNotification::Link { up }))
}

fn frame(response: &Response) -> Vec<u8> {
    encode_response(response).expect("fits")
}

#[test]
fn notifications_between_responses_are_stored_and_read_without_waiting() {
    let (here, mut there) = UnixStream::pair().expect("a pair");
    let mut client = Client::over(here);
    assert!(
        client
            .poll_notification()
            .expect("still connected")
            .is_none()
    );
    let done = frame(&Response::Done(Done::default()));
    let bytes = [
        frame(&link_notification(false)),
        frame(&link_notification(true)),
        done,
        frame(&link_notification(false)),
    ]
    .concat();
    there.write_all(&bytes).expect("sent");
    let response = client.call(&ping(), None).expect("a response");
    assert!(matches!(response, Response::Done(_)), "{response:?}");
    let next = client.buffered_notification().expect("kept");
    assert_eq!(next, Some(FlowNotification::Link { up: false }));
    let next = client.poll_notification().expect("kept");
    assert_eq!(next, Some(FlowNotification::Link { up: true }));
    // The bytes behind the response hold one more; the socket has none.
    let next = client.buffered_notification().expect("kept");
    assert_eq!(next, Some(FlowNotification::Link { up: false }));
    assert_eq!(client.buffered_notification().expect("none"), None);
    // Half a message is not a message yet.
    let whole = frame(&link_notification(false));
    there.write_all(&whole[..9]).expect("sent");
    assert_eq!(client.poll_notification().expect("half"), None);
    there.write_all(&whole[9..]).expect("sent");
    let next = client.poll_notification().expect("whole");
    assert_eq!(next, Some(FlowNotification::Link { up: false }));
    // A response without a request is an error.
    there
        .write_all(&frame(&Response::Done(Done::default())))
        .expect("sent");
    let error = client.poll_notification().expect_err("no request");
    assert!(matches!(error, ClientError::UnexpectedResponse), "{error}");
    drop(there);
    let error = client.poll_notification().expect_err("hung up");
    assert!(matches!(error, ClientError::HungUp), "{error}");
}

#[test]
fn descriptors_belong_to_the_response_that_they_were_sent_with() {
    let (here, there) = UnixStream::pair().expect("a pair");
    let mut client = Client::over(here);
    let files: Vec<_> = ["/proc/self/stat", "/proc/self/status", "/proc/self/maps"]
        .map(|path| std::fs::File::open(path).expect("a file"))
        .into();
    let send = |response: &Response, files: &[std::fs::File]| {
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let bytes = frame(response);
        let sent = fds::send(there.as_fd(), &bytes, &fds).expect("sent");
        assert_eq!(sent, bytes.len());
    };
    let done = Response::Done(Done::default());
    // Notifications before and after the response do not affect it.
    send(&link_notification(true), &[]);
    send(&done, &files);
    send(&link_notification(false), &[]);
    let (response, mut fds) = client.call_for_fds(&ping(), None).expect("a response");
    assert_eq!((response, fds.len()), (done.clone(), 3));
    let mut third = String::new();
    let mut file = std::fs::File::from(fds.pop().expect("the third"));
    file.read_to_string(&mut third).expect("read");
    assert!(third.contains("[stack]"), "in their order");
    // The client closes descriptors of a response that the caller did not ask for. The next
    // response does not get them.
    send(&done, &files[..2]);
    client.call(&ping(), None).expect("a response");
    send(&done, &files[..1]);
    let (_, fds) = client.call_for_fds(&ping(), None).expect("a response");
    assert_eq!(fds.len(), 1);
}
