//! One connection of a client, in its user's thread: requests come in, answers and notifications go
//! out.
//!
//! ```text
//!          first byte           whole frame          turn of the user           answer sent
//!   idle ────────────> reading ────────────> waiting ────────────────> at daemon ───────────> idle
//!    │                    │ not whole after 1 s, invalid, too long, or with a descriptor
//!    │                    v
//!    │                 closing: the client gets the reason
//!    v                    v
//!   closed: at the end of the stream, or to make room for another connection
//! ```
//! A connection that reads an incomplete request also counts as idle. A connection never waits: its
//! user's thread calls it when the socket is ready or a deadline is over, and acts on the result
//! ([`NextStep`]). A connection also closes if its client does not take a message within
//! [`WRITE_TIMEOUT`] (5 s), or if one more message would make more than [`MAX_QUEUED`] (4 MiB) wait
//! for the client.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netnice_api::frame::{Decoder, LONGEST_REQUEST};
use netnice_api::{ClientCall, Response, decode_client_call, encode_response, fds};
use netnice_kernel::peer::Peer;

use super::messages::{Kind, ToFront};

/// A connection.
pub(super) struct Connection {
    socket: OwnedFd,
    /// The connecting process; taken when the daemon is informed of the connection.
    pub peer: Option<Peer>,
    state: State,
    decoder: Decoder,
    queued: VecDeque<QueuedFrame>,
    /// Deadline for the rest of the message being read, or for the rest of a refused one.
    read_by: Option<Instant>,
    /// Deadline for the client to take the first of `queued`.
    write_by: Option<Instant>,
    /// The user's count of activities when the connection was opened or got its last message from
    /// the daemon: of the idle connections, that with the smallest value is idle for longest.
    pub last_activity: u64,
    /// True if the connection counts against the user's limit.
    pub is_counted: bool,
    /// True if the client hung up while its request waits; the connection is closed when the daemon
    /// has the request.
    pub hung_up: bool,
}

enum State {
    /// No request; part of a message may have been read.
    Reading,
    /// A request waits for its turn.
    Waiting(Box<ClientCall>),
    /// The daemon has the request.
    AtDaemon,
    /// The client gets the reason for the end of the connection. At most this number of further
    /// bytes of the client are read and dropped.
    Closing(usize),
}

/// A frame that is partly sent.
struct QueuedFrame {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<OwnedFd>,
}

/// The next step for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// None: the connection stays as it is.
    Keep,
    /// A complete request has come and waits for its turn.
    RequestReady,
    /// The connection is to be closed.
    Close,
}

impl Connection {
    /// A connection of `peer` that was accepted and has sent nothing.
    pub(super) fn new(socket: OwnedFd, peer: Peer) -> Connection {
        Connection {
            socket,
            peer: Some(peer),
            state: State::Reading,
            decoder: Decoder::new(LONGEST_REQUEST),
            queued: VecDeque::new(),
            read_by: None,
            write_by: None,
            last_activity: 0,
            is_counted: true,
            hung_up: false,
        }
    }

    /// The socket of the connection, for polling.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// True if no complete request is in progress and nothing is to be sent; part of a request may
    /// have been read. The connection may be closed so that another one can open.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Reading) && self.queued.is_empty()
    }

    /// True if its request waits for its user's turn.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// True if the daemon has the request of this connection.
    pub(super) fn is_at_daemon(&self) -> bool {
        matches!(self.state, State::AtDaemon)
    }

    /// True if the connection is to be read.
    pub(super) fn wants_read(&self) -> bool {
        match self.state {
            // While an answer is unread, further requests of the client stay in the socket.
            State::Reading => self.queued.is_empty(),
            State::Closing(_) => true,
            State::Waiting(_) | State::AtDaemon => false,
        }
    }

    /// True if something is to be sent.
    pub(super) fn wants_write(&self) -> bool {
        !self.queued.is_empty()
    }

    /// The time of the next [`Connection::expire`]; `None` if no deadline is set.
    pub(super) fn due(&self) -> Option<Instant> {
        self.read_by.into_iter().chain(self.write_by).min()
    }

    /// Reads what is available. If that is invalid, starts to close the connection.
    pub(super) fn read(&mut self, now: Instant) -> NextStep {
        let mut bytes = [0; 16 * 1024];
        loop {
            let left = match self.state {
                State::Closing(left) => left.min(bytes.len()),
                _ if self.wants_read() => bytes.len(),
                _ => return NextStep::Keep,
            };
            if left == 0 {
                return NextStep::Close;
            }
            // Descriptors that come with the bytes are closed inside this call: in the thread of
            // their sender.
            let got = match fds::receive(self.socket.as_fd(), &mut bytes[..left], 0) {
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return NextStep::Keep,
                Err(_) => return NextStep::Close,
            };
            if let State::Closing(left) = &mut self.state {
                *left = left.saturating_sub(got.bytes);
            } else if got.surplus {
                return self.refuse(DESCRIPTOR_REFUSED.to_owned(), now);
            }
            if got.bytes == 0 {
                return NextStep::Close;
            }
            if matches!(self.state, State::Reading) {
                self.decoder.push(&bytes[..got.bytes]);
                match self.advance(now) {
                    NextStep::Keep => {}
                    other => return other,
                }
            }
        }
    }

    /// Looks for a complete request in the bytes read.
    pub(super) fn advance(&mut self, now: Instant) -> NextStep {
        if !matches!(self.state, State::Reading) || !self.queued.is_empty() {
            return NextStep::Keep;
        }
        let body = match self.decoder.poll() {
            Ok(Some(body)) => body,
            Ok(None) => {
                self.read_by = match self.decoder.has_partial_message() {
                    true => self.read_by.or(Some(now + REQUEST_TIMEOUT)),
                    false => None,
                };
                return NextStep::Keep;
            }
            Err(error) => return self.refuse(error.to_string(), now),
        };
        self.read_by = None;
        match decode_client_call(&body) {
            Ok(call) => {
                self.state = State::Waiting(Box::new(call));
                NextStep::RequestReady
            }
            Err(error) => self.refuse(error.to_string(), now),
        }
    }

    /// Takes its request for the daemon; `None` if none waits.
    pub(super) fn take_request(&mut self) -> Option<ClientCall> {
        match std::mem::replace(&mut self.state, State::AtDaemon) {
            State::Waiting(call) => Some(*call),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Sends a message of the daemon to the client, as far as its socket takes it now.
    pub(super) fn deliver(&mut self, message: ToFront, now: Instant) -> NextStep {
        match message.kind {
            Kind::Close => return NextStep::Close,
            Kind::Attached => self.is_counted = false,
            Kind::Answer | Kind::Notification | Kind::Quota => {}
        }
        if message.kind != Kind::Notification && self.is_at_daemon() {
            self.state = State::Reading;
        }
        self.send(message.frame, message.fds, now)
    }

    /// Sends the client the reason for the end of the connection.
    pub(super) fn refuse(&mut self, why: String, now: Instant) -> NextStep {
        self.send_last(Response::bad_usage(why), now)
    }

    /// Sends a last answer. Unread bytes of the client would turn the close into a reset that
    /// overtakes the answer, so some of them are read.
    pub(super) fn send_last(&mut self, last: Response, now: Instant) -> NextStep {
        self.state = State::Closing(MAX_DRAINED);
        self.read_by = Some(now + DRAIN_TIME);
        match encode_response(&last) {
            Ok(frame) => self.send(frame, Vec::new(), now),
            Err(_) => NextStep::Close,
        }
    }

    fn send(&mut self, bytes: Vec<u8>, fds: Vec<OwnedFd>, now: Instant) -> NextStep {
        let waiting: usize = self.queued.iter().map(|frame| frame.bytes.len()).sum();
        if !self.queued.is_empty() && waiting + bytes.len() > MAX_QUEUED {
            return NextStep::Close;
        }
        self.queued.push_back(QueuedFrame {
            bytes,
            sent: 0,
            fds,
        });
        self.write(now)
    }

    /// Sends what is queued, as far as the client's socket takes it now.
    pub(super) fn write(&mut self, now: Instant) -> NextStep {
        while let Some(frame) = self.queued.front_mut() {
            let beside: Vec<BorrowedFd<'_>> = frame.fds.iter().map(AsFd::as_fd).collect();
            match fds::send(self.socket.as_fd(), &frame.bytes[frame.sent..], &beside) {
                Ok(sent) => {
                    frame.sent += sent;
                    // They were sent with the first byte.
                    frame.fds.clear();
                    if frame.sent == frame.bytes.len() {
                        self.queued.pop_front();
                        self.write_by = None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.write_by.get_or_insert(now + WRITE_TIMEOUT);
                    return NextStep::Keep;
                }
                Err(_) => return NextStep::Close,
            }
        }
        // Bytes read before the answer was sent may contain the next request.
        self.advance(now)
    }

    /// Acts on deadlines that are over.
    pub(super) fn expire(&mut self, now: Instant) -> NextStep {
        if self.write_by.is_some_and(|by| by <= now) {
            return NextStep::Close;
        }
        match (&self.state, self.read_by) {
            (State::Reading, Some(by)) if by <= now => {
                let why = format!("the request was not complete within {REQUEST_TIMEOUT:?}");
                self.refuse(why, now)
            }
            (State::Closing(_), Some(by)) if by <= now => NextStep::Close,
            _ => NextStep::Keep,
        }
    }
}

const DESCRIPTOR_REFUSED: &str = "a file descriptor came with the request, and none is accepted: \
    name a process by its pid and \
                          its start time";
/// Time limit for a request to arrive completely.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for a client to take a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the rest of a refused message is read.
const DRAIN_TIME: Duration = Duration::from_millis(200);
/// Largest number of bytes of a refused message that are read and dropped.
const MAX_DRAINED: usize = 2 << 20;
/// Largest number of bytes that are queued while the client does not read.
const MAX_QUEUED: usize = 4 << 20;
