//! What passes between the front and the daemon.
//!
//! | way | over | why |
//! |---|---|---|
//! | front to daemon | a pipe | nothing but bytes can pass, whatever the front has become |
//! | daemon to front | a stream socket, shut for the other way | three descriptors travel with the answer to an attachment |
//!
//! Towards the daemon a message is one frame ([`netnice_api::frame`]) of JSON. Towards the front it is one frame with ten
//! bytes in front of what the client is to be sent, as it is to be sent: the connection's number (8), the kind (1), and
//! how many descriptors came with its first byte (1).

use std::os::fd::OwnedFd;

use netnice_api::frame::{self, FrameError, LONGEST_REQUEST, LONGEST_RESPONSE};
use netnice_api::{Process, Request};
use serde::{Deserialize, Serialize};

/// What the front tells the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromFront {
    /// It is confined and accepts connections from now on.
    Ready(Ready),
    /// A connection is about to ask for the first time.
    Opened {
        /// Its number; no other of this front has it.
        connection: u64,
        /// Who connected.
        uid: u32,
        /// The groups of that process, its effective one first.
        groups: Vec<u32>,
    },
    /// A connection asks something; it asks nothing else until it has its answer.
    Asked {
        /// Which.
        connection: u64,
        /// The process that it is about.
        process: Option<Process>,
        /// What.
        request: Request,
    },
    /// A connection that was opened has ended.
    Closed {
        /// Which.
        connection: u64,
    },
}

/// How the front is confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// Its root folder is empty.
    pub empty_root: bool,
    /// It is not root.
    pub other_user: bool,
    /// The kernel refuses descriptors that clients send (SO_PASSRIGHTS, Linux 6.16).
    pub refuses_descriptors: bool,
}

/// What the daemon has for a client.
#[derive(Debug)]
pub(crate) struct ToFront {
    /// The connection, or a number.
    pub connection: u64,
    /// What it is.
    pub kind: Kind,
    /// The frame that the client is sent.
    pub frame: Vec<u8>,
    /// The descriptors that go with its first byte.
    pub fds: Vec<OwnedFd>,
}

/// What a message of the daemon's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The answer to its request.
    Answer,
    /// The same, to an attachment: the connection gives up its seat.
    Attached,
    /// News between answers.
    News,
    /// Nothing is sent; the connection ends.
    Close,
    /// To nobody: the number is how many connections each user but root may have from now on.
    Quota,
}

impl ToFront {
    /// Its bytes on the socket. The descriptors go with the first of them.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let mut body = Vec::with_capacity(HEADER + self.frame.len());
        body.extend_from_slice(&self.connection.to_be_bytes());
        body.push(self.kind as u8);
        body.push(self.fds.len() as u8);
        body.extend_from_slice(&self.frame);
        frame::encode(&body, LONGEST_TO_FRONT)
    }

    /// A message out of the bytes of its frame, with the number of descriptors that belong to it; they are still to
    /// be added. None: this is no such message.
    pub fn decode(body: &[u8]) -> Option<(ToFront, usize)> {
        let (connection, rest) = body.split_first_chunk::<8>()?;
        let ([kind, fds], frame) = rest.split_first_chunk::<2>()?;
        let kinds = [
            Kind::Answer,
            Kind::Attached,
            Kind::News,
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

/// A request, and the groups of a process, of which Linux allows 65,536.
pub(crate) const LONGEST_FROM_FRONT: usize = LONGEST_REQUEST + (1 << 20);
/// A response in its frame, and what is in front of it.
pub(crate) const LONGEST_TO_FRONT: usize = LONGEST_RESPONSE + 64;

const HEADER: usize = 10;
