//! One connection of the daemon: calls come in, answers and events go out.
//!
//! No call is taken while much output is unread. The peer is root, and its input is checked all the
//! same. A message that is no call, is too long, or carries unexpected descriptors gets one answer
//! with the reason and ends the connection.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use netnice_api::driver::{DriverCall, DriverMessage, DriverReply};
use netnice_api::frame::{Decoder, LONGEST_DRIVER_CALL, LONGEST_DRIVER_MESSAGE};
use netnice_api::{WireError, decode_driver_call, encode_driver_message, fds};

/// A connection.
pub struct Connection {
    stream: UnixStream,
    calls: Decoder,
    /// Received descriptors that no call has taken yet.
    beside: VecDeque<OwnedFd>,
    out: VecDeque<Outgoing>,
    /// Bytes in `out`.
    kept: usize,
    /// No call is taken until less than [`MUCH`] is in `out`.
    holds: bool,
    /// The connection ends when `out` is empty.
    ends: bool,
}

struct Outgoing {
    bytes: Vec<u8>,
    gone: usize,
    descriptors: Vec<OwnedFd>,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum EndOf {
    /// The peer closed the connection.
    #[error("the other side hung up")]
    HungUp,
    /// A message is malformed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// More descriptors came than calls can take.
    #[error(
        "more than {MOST_BESIDE} descriptors wait for a call that takes them; attach takes one pidfd, and nothing else any"
    )]
    Descriptors,
    /// The peer stopped reading and its send queue is full.
    #[error("{0} bytes of answers were not read")]
    Deaf(usize),
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Connection {
    /// Takes over a socket and makes it non-blocking.
    pub fn new(stream: UnixStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream,
            calls: Decoder::new(LONGEST_DRIVER_CALL),
            beside: VecDeque::new(),
            out: VecDeque::new(),
            kept: 0,
            holds: false,
            ends: false,
        })
    }

    /// The socket, for polling.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Reads once from the socket. The caller then calls [`Connection::poll_call`] until it returns
    /// no call.
    pub fn receive(&mut self) -> Result<(), EndOf> {
        let mut bytes = [0; 16 * 1024];
        let received = match fds::receive(self.stream.as_fd(), &mut bytes, 1) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            other => other?,
        };
        self.beside.extend(received.fds);
        if received.surplus || self.beside.len() > MOST_BESIDE {
            return Err(EndOf::Descriptors);
        }
        if received.bytes == 0 {
            return Err(EndOf::HungUp);
        }
        self.calls.push(&bytes[..received.bytes]);
        Ok(())
    }

    /// The next call. `None` also while much output is unread: the caller polls again when
    /// [`Connection::flush`] has sent some.
    pub fn poll_call(&mut self) -> Result<Option<DriverCall>, EndOf> {
        self.holds = self.kept >= MUCH;
        if self.ends || self.holds {
            return Ok(None);
        }
        match self.calls.poll().map_err(WireError::from)? {
            Some(body) => Ok(Some(decode_driver_call(&body)?)),
            None => Ok(None),
        }
    }

    /// The descriptor that came with the call.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.beside.pop_front()
    }

    /// Queues a message and sends as much as the socket takes.
    pub fn say(&mut self, word: &DriverMessage, descriptors: Vec<OwnedFd>) -> Result<(), EndOf> {
        let bytes = match (encode_driver_message(word), word) {
            (Ok(bytes), _) => bytes,
            (Err(why), DriverMessage::Reply { id, .. }) => {
                encode_driver_message(&failed(*id, &why))?
            }
            (Err(why), _) => return Err(why.into()),
        };
        self.kept += bytes.len();
        if self.kept > MOST_KEPT {
            return Err(EndOf::Deaf(self.kept));
        }
        self.out.push_back(Outgoing {
            bytes,
            gone: 0,
            descriptors,
        });
        self.flush()
    }

    /// Queues the reason for the end as the last message.
    pub fn end(&mut self, why: &EndOf) {
        self.ends = true;
        if !matches!(why, EndOf::HungUp | EndOf::Io(_) | EndOf::Deaf(_)) {
            let _ = self.say(&failed(0, why), Vec::new());
        }
    }

    /// Whether to poll the socket for input.
    pub fn wants_to_read(&self) -> bool {
        !self.holds
    }

    /// Whether to poll the socket for output: messages are queued, or calls wait behind them.
    pub fn wants_to_write(&self) -> bool {
        !self.out.is_empty() || self.holds
    }

    /// Sends what the socket takes.
    pub fn flush(&mut self) -> Result<(), EndOf> {
        while let Some(first) = self.out.front_mut() {
            let beside: Vec<BorrowedFd> = first.descriptors.iter().map(AsFd::as_fd).collect();
            match fds::send(self.stream.as_fd(), &first.bytes[first.gone..], &beside) {
                Ok(sent) => first.gone += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            first.descriptors.clear();
            if first.gone == first.bytes.len() {
                self.kept -= first.bytes.len();
                self.out.pop_front();
            }
        }
        Ok(())
    }
}

/// The answer that reports the failure of call `id`.
pub fn failed(id: u64, why: &impl std::fmt::Display) -> DriverMessage {
    DriverMessage::Reply {
        id,
        reply: DriverReply::Failed {
            why: why.to_string(),
        },
    }
}

/// Calls that attach, and whose bytes have arrived in part or not at all.
const MOST_BESIDE: usize = 32;
/// No call is taken while so many bytes are unread: some thousand answers, or one census.
const MUCH: usize = 1 << 20;
/// Two answers of the longest kind. The answers to calls alone do not reach this.
const MOST_KEPT: usize = 2 * LONGEST_DRIVER_MESSAGE;

#[cfg(any(test, fuzzing))]
pub mod hostile;
#[cfg(test)]
mod tests;
