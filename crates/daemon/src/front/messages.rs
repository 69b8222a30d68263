//! The messages between the front and the daemon ([`FromFront`], [`ToFront`]), and their encoding.
//! An *answer* is a framed [`netnice_api::Response`] to one request.
//!
//! | direction | over | why |
//! |---|---|---|
//! | front to daemon | a pipe | it carries only bytes, even if the front is compromised |
//! | daemon to front | a stream socket that the daemon cannot read | it carries descriptors |
//!
//! To the daemon, a message is one frame ([`netnice_api::frame`]) of JSON. To the front, it is one
//! frame with a header of ten bytes and the frame for the client. The header has the connection's
//! number (8 bytes), the kind (1), and the number of descriptors sent with the first byte (1). A
//! message that is too long or cannot be decoded ends the front.

use std::os::fd::OwnedFd;

use netnice_api::frame::{self, FrameError, LONGEST_REQUEST, LONGEST_RESPONSE};
use netnice_api::{Process, Request};
use serde::{Deserialize, Serialize};

/// A message from the front to the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromFront {
    /// The front is confined and accepts connections.
    Ready(Ready),
    /// A connection has sent its first request, which follows.
    Opened {
        /// The connection's number; unique in this front.
        connection: u64,
        /// The number of the connecting process; 0 if it is unknown.
        pid: u32,
        /// The peer's uid.
        uid: u32,
        /// The groups of the peer's process, the effective one first.
        groups: Vec<u32>,
    },
    /// A request of a connection. The next one follows only after its answer.
    Asked {
        /// The connection.
        connection: u64,
        /// The process that the request is about, if the client named one.
        process: Option<Process>,
        /// The request.
        request: Box<Request>,
    },
    /// A connection that was opened has ended.
    Closed {
        /// The connection.
        connection: u64,
    },
}

/// How the front is confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// True if its root folder is empty.
    pub empty_root: bool,
    /// True if the front does not run as root.
    pub other_user: bool,
    /// True if the kernel refuses descriptors that clients send (SO_PASSRIGHTS, Linux 6.16).
    pub refuses_descriptors: bool,
}

/// A message from the daemon to the front.
#[derive(Debug)]
pub(crate) struct ToFront {
    /// The number of the connection; for [`Kind::Quota`] the limit.
    pub connection: u64,
    /// The kind of message.
    pub kind: Kind,
    /// The frame for the client; empty for [`Kind::Quota`].
    pub frame: Vec<u8>,
    /// The descriptors to send with the first byte of the message.
    pub fds: Vec<OwnedFd>,
}

/// The kind of a message to the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The answer to the connection's request.
    Answer,
    /// The answer to an attachment: the connection no longer counts against the limit.
    Attached,
    /// A notification between answers.
    Notification,
    /// Closes the connection without an answer.
    Close,
    /// For the front itself: sets the largest number of connections of each user except root.
    Quota,
}

impl ToFront {
    /// Encodes the message for the socket. Its descriptors go with the first byte.
    ///
    /// # Errors
    /// If the message is longer than [`LONGEST_TO_FRONT`].
    pub(crate) fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let mut body = Vec::with_capacity(HEADER + self.frame.len());
        body.extend_from_slice(&self.connection.to_be_bytes());
        body.push(self.kind as u8);
        body.push(self.fds.len() as u8);
        body.extend_from_slice(&self.frame);
        frame::encode(&body, LONGEST_TO_FRONT)
    }

    /// Decodes a message and the number of its descriptors, which the caller adds. `None` if the
    /// bytes are no message.
    pub(crate) fn decode(body: &[u8]) -> Option<(ToFront, usize)> {
        let (connection, rest) = body.split_first_chunk::<8>()?;
        let ([kind, fds], frame) = rest.split_first_chunk::<2>()?;
        let kinds = [
            Kind::Answer,
            Kind::Attached,
            Kind::Notification,
            Kind::Close,
            Kind::Quota,
        ];
        let message = ToFront {
            connection: u64::from_be_bytes(*connection),
            kind: *kinds.get(usize::from(*kind))?,
            frame: frame.to_vec(),
            fds: Vec::new(),
        };
        Some((message, usize::from(*fds)))
    }
}

/// Bytes of the longest message to the daemon: a request, or the groups of a process, of which
/// Linux allows 65,536.
pub(crate) const LONGEST_FROM_FRONT: usize = LONGEST_REQUEST + (1 << 20);
/// Bytes of the longest message to the front: the header and a framed response.
pub(crate) const LONGEST_TO_FRONT: usize = LONGEST_RESPONSE + 64;

const HEADER: usize = 10;
