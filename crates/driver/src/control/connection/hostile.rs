//! Tests a connection with the input of a hostile peer: any bytes, in any pieces, each with up to
//! two descriptors.
//!
//! [`outcome_of`] decodes the pieces from a byte string and sends them to a [`Connection`]. It
//! compares the requests that the connection returns with those of a second, simple decoder of the
//! stream, panics if they differ, and returns how the connection ends. Tests and the fuzz target
//! `connection` call the same function.

use std::io::{PipeReader, Read as _, pipe};

use netnice_api::decode_driver_message;
use netnice_api::frame::FrameError;

use super::*;

/// Runs the scenario that `bytes` encode and returns its outcome: `calls` or `nothing` if the
/// connection stays open with or without a request; else the reason for its end (`descriptors`,
/// `empty`, `long`, `json` or `version`).
///
/// # Panics
/// If the requests or the outcome differ from those of the simple decoder, data stays queued or is
/// lost, or a descriptor stays open.
pub fn outcome_of(bytes: &[u8]) -> String {
    run(&pieces(bytes))
}

/// Corrects the length of the last piece, and the lengths of the messages in the stream of all
/// pieces.
#[cfg(fuzzing)]
pub fn correct_lengths(bytes: &mut [u8]) {
    let (mut at, mut places) = (0, Vec::new());
    while let Some(left) = bytes.len().checked_sub(at + 3) {
        let length = usize::from(u16::from_be_bytes([bytes[at + 1], bytes[at + 2]]));
        let length = length.min(left);
        bytes[at + 1..at + 3].copy_from_slice(&(length as u16).to_be_bytes());
        places.extend(at + 3..at + 3 + length);
        at += 3 + length;
    }
    let mut stream: Vec<u8> = places.iter().map(|at| bytes[*at]).collect();
    netnice_api::hostile::correct_lengths(&mut stream);
    for (at, byte) in places.into_iter().zip(stream) {
        bytes[at] = byte;
    }
}

/// One piece of input: bytes, and a number of descriptors.
#[derive(Clone, Debug)]
pub(super) struct InputPiece {
    pub(super) descriptors: u8,
    pub(super) bytes: Vec<u8>,
}

/// Decodes a scenario: per piece one byte for the number of descriptors, the length in two bytes,
/// and the bytes.
pub(super) fn pieces(bytes: &[u8]) -> Vec<InputPiece> {
    let (mut rest, mut all) = (bytes, Vec::new());
    while let Some(([kind, high, low], behind)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (bytes, behind) = behind.split_at(length);
        rest = behind;
        // Mostly no descriptor or one. A message without bytes can carry none.
        let descriptors = if bytes.is_empty() {
            0
        } else {
            [0, 1, 2, 0][usize::from(kind % 4)]
        };
        let bytes = bytes.to_vec();
        all.push(InputPiece { descriptors, bytes });
    }
    all
}

/// The requests of a stream up to the first malformed message, and whether there is one, by the
/// definition of the frames.
fn naive(stream: &[u8]) -> (Vec<DriverCall>, bool) {
    let (mut rest, mut calls) = (stream, Vec::new());
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        if length == 0 || length > LONGEST_DRIVER_CALL {
            return (calls, true);
        }
        let Some((body, behind)) = behind.split_at_checked(length) else {
            break;
        };
        match decode_driver_call(body) {
            Ok(call) => calls.push(call),
            Err(_) => return (calls, true),
        }
        rest = behind;
    }
    (calls, false)
}

/// Runs a scenario and returns the name of its outcome. Panics if data stays queued or is lost, or
/// if a descriptor stays open.
pub(super) fn run(sent: &[InputPiece]) -> String {
    let (own, mut peer) = UnixStream::pair().expect("a pair");
    let mut connection = Connection::new(own).expect("a connection");
    let (mut calls, mut taken, mut stream) = (Vec::new(), 0, Vec::new());
    let mut open: Vec<PipeReader> = Vec::new();
    let mut ended = None;
    'scenario: for piece in sent {
        let pipes: Vec<_> = (0..piece.descriptors)
            .map(|_| pipe().expect("a pipe"))
            .collect();
        let beside: Vec<BorrowedFd> = pipes.iter().map(|(_, write)| write.as_fd()).collect();
        let sent_bytes = fds::send(peer.as_fd(), &piece.bytes, &beside);
        assert_eq!(sent_bytes.expect("room"), piece.bytes.len());
        open.extend(pipes.into_iter().map(|(read, _)| read));
        stream.extend(&piece.bytes);
        // At most four reads of the kernel for 64 KiB.
        for _ in 0..5 {
            let mut end = connection.receive().err();
            while end.is_none() {
                match connection.poll_call() {
                    Ok(Some(call)) => {
                        // Every other call takes its descriptor.
                        if calls.len() % 2 == 0 {
                            taken += usize::from(connection.take_descriptor().is_some());
                        }
                        calls.push(call);
                    }
                    Ok(None) => break,
                    Err(why) => end = Some(why),
                }
            }
            if let Some(why) = end {
                connection.close(&why);
                assert!(connection.poll_call().is_ok_and(|call| call.is_none()));
                ended = Some(why);
                break 'scenario;
            }
        }
    }
    let (wanted, is_wrong) = naive(&stream);
    let name = match &ended {
        None => {
            assert_eq!((&calls, false), (&wanted, is_wrong));
            if calls.is_empty() { "nothing" } else { "calls" }
        }
        Some(CloseReason::Descriptors) => {
            // Several in one message, or too many that no call took.
            assert!(
                sent.iter().any(|one| one.descriptors > 1) || open.len() > taken + MAX_DESCRIPTORS
            );
            assert!(wanted.starts_with(&calls));
            "descriptors"
        }
        Some(CloseReason::Wire(why)) => {
            assert_eq!((&calls, true), (&wanted, is_wrong));
            match why {
                WireError::Frame(FrameError::Empty) => "empty",
                WireError::Frame(FrameError::TooLong { .. }) => "long",
                WireError::Json(_) => "json",
                WireError::Version { .. } => "version",
            }
        }
        Some(other) => panic!("{other}"),
    };
    // One last message gives the reason.
    connection.flush().expect("there is room");
    assert!(!connection.wants_to_write());
    drop(connection);
    let mut received = Vec::new();
    peer.set_nonblocking(true).expect("it can");
    let _ = peer.read_to_end(&mut received);
    match ended {
        None => assert!(received.is_empty()),
        Some(why) => {
            let message = decode_driver_message(&received[4..]).expect("a message");
            assert_eq!(message, failed(0, &why));
        }
    }
    // All write ends are closed.
    for mut pipe in open {
        assert_eq!(pipe.read(&mut [0]).expect("it is open"), 0);
    }
    name.to_owned()
}
