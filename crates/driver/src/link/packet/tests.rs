use std::os::unix::net::UnixDatagram;

use super::*;
use crate::frame::Mac;
use crate::segments::{Checksum, Merged};

/// A link on one end of a socket pair, whose frames have the kernel's header, and the other end.
fn link() -> (PacketLink, UnixDatagram) {
    let (socket, wire) = UnixDatagram::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    wire.set_nonblocking(true).unwrap();
    (PacketLink::of(socket.into(), OFFLOAD_HEADER), wire)
}

/// A frame of `length` bytes behind the kernel's header.
fn stated(flags: u8, kind: u8, size: u16, start: u16, length: usize) -> Vec<u8> {
    let mut message = vec![flags, kind, 0, 0];
    message.extend(size.to_ne_bytes());
    message.extend(start.to_ne_bytes());
    message.extend([16, 0]);
    message.extend((0..length).map(|k| k as u8));
    message
}

#[test]
fn what_the_kernel_states_is_read() {
    let (mut link, wire) = link();
    let partial = Checksum::Partial { start: 34 };
    let (unknown, valid) = (Checksum::Unknown, Checksum::Valid);
    let cases = [
        ((0, 0, 0, 0), Merged::No, unknown),
        ((1, 0, 0, 34), Merged::No, partial),
        ((2, 0, 0, 34), Merged::No, valid),
        ((1, 1, 1448, 34), Merged::Tcp(1448), partial),
        ((1, 0x81, 1448, 34), Merged::Tcp(1448), partial),
        ((0, 4, 1428, 0), Merged::Tcp(1428), unknown),
        ((1, 5, 1200, 34), Merged::Udp(1200), partial),
        ((1, 3, 1200, 34), Merged::Unknown, partial),
    ];
    for ((flags, kind, size, start), merged, checksum) in cases {
        let sent = stated(flags, kind, size, start, 60);
        wire.send(&sent).unwrap();
        let mut seen = None;
        let count = link.receive(64, |frame, offload| {
            seen = Some((frame.to_vec(), *offload));
            1
        });
        let offload = Offload { merged, checksum };
        assert_eq!((count, seen), (1, Some((sent[10..].to_vec(), offload))));
    }
    assert_eq!(link.counters.received, cases.len() as u64);
}

/// The loop sends between two calls, so the work of a call is bounded.
#[test]
fn a_call_ends_after_enough_segments_and_the_next_one_goes_on() {
    let (mut link, wire) = link();
    for length in [65_000, 64_000, 60] {
        wire.send(&stated(1, 1, 1448, 34, length)).unwrap();
    }
    let mut lengths = Vec::new();
    let mut receive = |segments| {
        let count = link.receive(64, |frame, _| {
            lengths.push(frame.len());
            segments
        });
        (count, lengths.len())
    };
    assert_eq!(receive(40), (80, 2));
    assert_eq!(receive(40), (40, 3));
    assert_eq!(receive(40), (0, 3));
    assert_eq!(lengths, [65_000, 64_000, 60]);
    // What is lost counts as one frame.
    wire.send(&stated(1, 1, 0, 34, 3000)).unwrap();
    wire.send(&[1, 2, 3]).unwrap();
    wire.send(&stated(1, 1, 1448, 34, RECEIVE_STRIDE)).unwrap();
    let mut calls = 0;
    let count = link.receive(64, |_, _| {
        calls += 1;
        0
    });
    assert_eq!((count, calls, link.counters.missed), (3, 1, 3));
}

#[test]
fn sent_frames_have_an_empty_header_in_front() {
    let (mut link, wire) = link();
    for length in [60, 1514] {
        let sent = link.send(|frame| {
            frame[..length].fill(7);
            Ok(Checked::redirected(&mut frame[..length], Mac([7; 6])))
        });
        assert_eq!(sent, Some(Ok(())));
    }
    link.flush().unwrap();
    for length in [60, 1514] {
        let mut message = [1; 2000];
        let received = wire.recv(&mut message).unwrap();
        assert_eq!(message[..OFFLOAD_HEADER], [0; OFFLOAD_HEADER]);
        assert_eq!(message[OFFLOAD_HEADER..received], vec![7; length]);
    }
}
