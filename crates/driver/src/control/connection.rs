//! One connection of the daemon: requests ([`DriverCall`]) come in, replies and events
//! ([`DriverMessage`]) go out.
//!
//! No request is taken while 1 MiB of output or more waits to be sent. The connection ends if more
//! than [`SEND_QUEUE_MAX`] (128 MiB) waits. The peer is root, and its input is checked all the
//! same. The connection ends with one reply that has the reason after a message that is no request
//! or is too long, after more than one descriptor at once, and after more than [`MAX_DESCRIPTORS`]
//! (32) descriptors that no request has taken. A call that ends the connection fails with the
//! [`CloseReason`], also if the peer hung up or the socket failed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use netnice_api::driver::{DriverCall, DriverMessage, DriverReply};
use netnice_api::frame::{Decoder, LONGEST_DRIVER_CALL, LONGEST_DRIVER_MESSAGE};
use netnice_api::{WireError, decode_driver_call, encode_driver_message, fds};

/// A connection.
pub(crate) struct Connection {
    stream: UnixStream,
    calls: Decoder,
    /// Received descriptors that no request has taken yet.
    descriptors: VecDeque<OwnedFd>,
    outgoing: VecDeque<Outgoing>,
    /// Bytes of the messages in `outgoing`.
    queued_bytes: usize,
    /// No request is taken until less than [`SEND_QUEUE_HIGH`] is in `outgoing`.
    is_paused: bool,
    /// The connection ends when `outgoing` is empty.
    is_closing: bool,
}

struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    descriptors: Vec<OwnedFd>,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CloseReason {
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    HungUp,
    /// A message is malformed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// More descriptors came than requests can take.
    #[error(
        "more than {MAX_DESCRIPTORS} descriptors arrived that no call has taken; \
         a call to attach takes one pidfd, other calls take none"
    )]
    Descriptors,
    /// The peer stopped reading and its send queue is full.
    #[error("the peer does not read: {0} bytes wait to be sent, and the limit is {SEND_QUEUE_MAX}")]
    NotReading(usize),
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Connection {
    /// Takes over a socket and makes it non-blocking. Fails if the kernel refuses that.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream,
            calls: Decoder::new(LONGEST_DRIVER_CALL),
            descriptors: VecDeque::new(),
            outgoing: VecDeque::new(),
            queued_bytes: 0,
            is_paused: false,
            is_closing: false,
        })
    }

    /// The socket, for polling.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Reads once from the socket, at most 16 KiB. The caller then calls [`Connection::poll_call`]
    /// until it returns no request. Fails if the peer hung up, sent more descriptors than allowed,
    /// or the socket failed.
    pub(crate) fn receive(&mut self) -> Result<(), CloseReason> {
        let mut bytes = [0; 16 * 1024];
        let received = match fds::receive(self.stream.as_fd(), &mut bytes, 1) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            other => other?,
        };
        self.descriptors.extend(received.fds);
        if received.surplus || self.descriptors.len() > MAX_DESCRIPTORS {
            return Err(CloseReason::Descriptors);
        }
        if received.bytes == 0 {
            return Err(CloseReason::HungUp);
        }
        self.calls.push(&bytes[..received.bytes]);
        Ok(())
    }

    /// The next request; `None` if none has arrived completely, or if the connection is closing.
    /// `None` also while 1 MiB or more waits to be sent: the caller polls again when
    /// [`Connection::flush`] has sent some. Fails if a message is too long or is no request.
    pub(crate) fn poll_call(&mut self) -> Result<Option<DriverCall>, CloseReason> {
        self.is_paused = self.queued_bytes >= SEND_QUEUE_HIGH;
        if self.is_closing || self.is_paused {
            return Ok(None);
        }
        match self.calls.poll().map_err(WireError::from)? {
            Some(body) => Ok(Some(decode_driver_call(&body)?)),
            None => Ok(None),
        }
    }

    /// Takes the oldest received descriptor that no request has taken; `None` if there is none.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// Queues a message and sends as much as the socket takes. In place of a reply that cannot be
    /// encoded, the reason is sent. Fails if more than [`SEND_QUEUE_MAX`] bytes wait, an event
    /// cannot be encoded, or the socket failed.
    pub(crate) fn send(
        &mut self,
        message: &DriverMessage,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), CloseReason> {
        let bytes = match (encode_driver_message(message), message) {
            (Ok(bytes), _) => bytes,
            (Err(why), DriverMessage::Reply { id, .. }) => {
                encode_driver_message(&failed(*id, &why))?
            }
            (Err(why), _) => return Err(why.into()),
        };
        self.queued_bytes += bytes.len();
        if self.queued_bytes > SEND_QUEUE_MAX {
            return Err(CloseReason::NotReading(self.queued_bytes));
        }
        self.outgoing.push_back(Outgoing {
            bytes,
            sent: 0,
            descriptors,
        });
        self.flush()
    }

    /// Queues the reason for the end as the last message, unless the peer cannot get it: it hung
    /// up, it does not read, or the socket failed. No request is taken afterwards.
    pub(crate) fn close(&mut self, why: &CloseReason) {
        self.is_closing = true;
        if !matches!(
            why,
            CloseReason::HungUp | CloseReason::Io(_) | CloseReason::NotReading(_)
        ) {
            let _ = self.send(&failed(0, why), Vec::new());
        }
    }

    /// Whether to poll the socket for input.
    pub(crate) fn wants_to_read(&self) -> bool {
        !self.is_paused
    }

    /// Whether to poll the socket for output: messages are queued, or requests wait behind them.
    pub(crate) fn wants_to_write(&self) -> bool {
        !self.outgoing.is_empty() || self.is_paused
    }

    /// Sends as much of the queue as the socket takes. Fails if the socket failed.
    pub(crate) fn flush(&mut self) -> Result<(), CloseReason> {
        while let Some(first) = self.outgoing.front_mut() {
            let descriptors: Vec<BorrowedFd> = first.descriptors.iter().map(AsFd::as_fd).collect();
            match fds::send(
                self.stream.as_fd(),
                &first.bytes[first.sent..],
                &descriptors,
            ) {
                Ok(sent) => first.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            first.descriptors.clear();
            if first.sent == first.bytes.len() {
                self.queued_bytes -= first.bytes.len();
                self.outgoing.pop_front();
            }
        }
        Ok(())
    }
}

/// The reply that reports the failure of request `id`; 0 if no request caused it.
pub(crate) fn failed(id: u64, why: &impl std::fmt::Display) -> DriverMessage {
    DriverMessage::Reply {
        id,
        reply: DriverReply::Failed {
            why: why.to_string(),
        },
    }
}

/// Most descriptors that no request has taken. They belong to requests to attach whose bytes have
/// not all arrived.
const MAX_DESCRIPTORS: usize = 32;
/// No request is taken while so many bytes wait to be sent: some thousand replies, or one census.
const SEND_QUEUE_HIGH: usize = 1 << 20;
/// Most bytes that wait to be sent: two of the longest replies. Replies alone do not reach this.
const SEND_QUEUE_MAX: usize = 2 * LONGEST_DRIVER_MESSAGE;

#[cfg(any(test, fuzzing))]
pub mod hostile;
#[cfg(test)]
mod tests;
