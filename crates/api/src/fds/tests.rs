use std::fs::File;
use std::io::{IoSlice, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{MAX_FDS, receive, send};

/// A file of this test, for recognition on the other side.
fn file(text: &str) -> File {
    let mut file = unnamed_file();
    file.write_all(text.as_bytes()).expect("written");
    file.rewind().expect("rewound");
    file
}

/// A temporary file without a name.
fn unnamed_file() -> File {
    let dir = std::env::temp_dir();
    let path = dir.join(format!("netnice-fd-{}-{:p}", std::process::id(), &dir));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .expect("a file");
    std::fs::remove_file(&path).expect("removed");
    file
}

/// Sends more descriptors than the protocol permits.
fn send_many(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = vec![MaybeUninit::uninit(); 4096];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::empty(),
    )
    .expect("sent");
}

/// Open descriptors of this process for unnamed files like those of this test.
fn open_copies() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").expect("our own table");
    entries
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|path| path.to_string_lossy().contains("netnice-fd-"))
        .count()
}

/// One test, because it counts this process's descriptors.
#[test]
fn descriptors_arrive_and_surplus_ones_are_closed() {
    let (here, there) = UnixStream::pair().expect("a pair");
    let mut bytes = [0; 16];

    let sent = send(here.as_fd(), b"hello", &[]).expect("sent");
    let got = receive(there.as_fd(), &mut bytes, 1).expect("received");
    assert_eq!((sent, got.bytes), (5, 5));
    assert!(got.fds.is_empty() && !got.surplus);

    let original = file("it is me");
    send(here.as_fd(), b"with", &[original.as_fd()]).expect("sent");
    let got = receive(there.as_fd(), &mut bytes, 1).expect("received");
    let mut text = String::new();
    let copy = got.fds.into_iter().next().expect("a descriptor");
    assert_ne!(copy.as_raw_fd(), original.as_raw_fd());
    let flags = rustix::io::fcntl_getfd(&copy).expect("flags");
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    File::from(copy).read_to_string(&mut text).expect("read");
    assert_eq!(text, "it is me");
    assert!(!got.surplus);

    let before = open_copies();
    for many in [2, 3, 10, 253] {
        let fds = vec![original.as_fd(); many];
        send_many(here.as_fd(), b"many", &fds);
        let got = receive(there.as_fd(), &mut bytes, 1).expect("received");
        assert!(got.surplus, "{many} descriptors");
        drop(got);
        assert_eq!(open_copies(), before, "{many} descriptors");
    }

    // The descriptor arrives with the first byte, even if the receiver reads one byte at a time.
    send(here.as_fd(), b"abc", &[original.as_fd()]).expect("sent");
    let first = receive(there.as_fd(), &mut bytes[..1], 1).expect("received");
    assert!(first.fds.len() == 1);
    let rest = receive(there.as_fd(), &mut bytes, 1).expect("received");
    assert_eq!((rest.bytes, rest.fds.len()), (2, 0));

    drop(first);
    several_arrive_in_order(&here, &there);
    assert_eq!(open_copies(), before);

    drop(here);
    let end = receive(there.as_fd(), &mut bytes, 1).expect("the end");
    assert_eq!(end.bytes, 0);
}

/// Three descriptors can be sent at once. A receiver that takes fewer gets a report of the surplus,
/// which is closed.
fn several_arrive_in_order(here: &UnixStream, there: &UnixStream) {
    let before = open_copies();
    let mut bytes = [0; 16];
    let originals = ["first", "second", "third"].map(file);
    let fds = originals.each_ref().map(|file| file.as_fd());
    send(here.as_fd(), b"three", &fds).expect("sent");
    let got = receive(there.as_fd(), &mut bytes, MAX_FDS).expect("received");
    assert!(!got.surplus);
    let texts = got.fds.into_iter().map(|fd| {
        let mut text = String::new();
        File::from(fd).read_to_string(&mut text).expect("read");
        text
    });
    assert_eq!(texts.collect::<Vec<_>>(), ["first", "second", "third"]);
    for limit in [0, 1, 2] {
        send(here.as_fd(), b"three", &fds).expect("sent");
        let got = receive(there.as_fd(), &mut bytes, limit).expect("received");
        assert_eq!((got.fds.len(), got.surplus), (limit, true));
    }
    assert_eq!(open_copies(), before + 3);
    let four = [fds[0], fds[0], fds[1], fds[2]];
    let refused = send(here.as_fd(), b"four", &four).expect_err("too many");
    assert!(
        refused.to_string().contains("4 file descriptors"),
        "{refused}"
    );
}
