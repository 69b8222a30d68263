//! One connection of a client, in its user's thread: requests in; answers and notifications out.
//!
//! ```text
//!            first byte             whole frame         its user's turn         answer sent
//!   idle ─────────────> reading ─────────────> waiting ────────────> asking ──────────────> idle
//!    │ dismissed           │ 1 s is over, invalid, too long,
//!    │ end of stream       │ a descriptor
//!    v                     v
//!   closed <────────── leaving: the reason was sent
//! ```
//! It is pure except for its socket: the thread passes the readiness and the time, and acts on the
//! result.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netnice_api::frame::{Decoder, LONGEST_REQUEST};
use netnice_api::{ClientCall, Response, decode_client_call, encode_response, fds};

use super::messages::{Kind, ToFront};

/// A connection.
pub(super) struct Connection {
    socket: OwnedFd,
    /// The groups of the connecting process; taken when the daemon is informed of the connection.
    pub groups: Option<Vec<u32>>,
    state: State,
    decoder: Decoder,
    out: VecDeque<Piece>,
    /// Deadline for the rest of the message being read, or for the rest of a refused one.
    read_by: Option<Instant>,
    /// Deadline for the client to take the first of `out`.
    write_by: Option<Instant>,
    /// The user's counter at the last change of idleness: the smallest value is idle for longest.
    pub idle_since: u64,
    /// True if it counts against the user's limit.
    pub seated: bool,
    /// True if the client hung up while its request waits; the connection is closed when the daemon
    /// has the request.
    pub gone: bool,
}

enum State {
    /// No request; part of a message may have been read.
    Reading,
    /// A request waits for its turn.
    Waiting(Box<ClientCall>),
    /// The daemon has the request.
    Asking,
    /// The client has got the reason for the end of the connection; up to so many more of its bytes
    /// are read.
    Leaving(usize),
}

/// A frame that is partly sent.
struct Piece {
    bytes: Vec<u8>,
    gone: usize,
    fds: Vec<OwnedFd>,
}

/// The next step for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// None: the connection stays as it is.
    Stays,
    /// A complete request has come and waits for its turn.
    Waits,
    /// The connection is to be closed.
    Ends,
}

impl Connection {
    pub fn new(socket: OwnedFd, groups: Vec<u32>) -> Connection {
        Connection {
            socket,
            groups: Some(groups),
            state: State::Reading,
            decoder: Decoder::new(LONGEST_REQUEST),
            out: VecDeque::new(),
            read_by: None,
            write_by: None,
            idle_since: 0,
            seated: true,
            gone: false,
        }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// True if no request is in progress and nothing is to be sent. The connection may be dismissed
    /// for another.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Reading) && self.out.is_empty()
    }

    /// True if its request waits for its user's turn.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// True if the daemon has its request.
    pub fn is_asking(&self) -> bool {
        matches!(self.state, State::Asking)
    }

    /// True if it is to be read.
    pub fn wants_read(&self) -> bool {
        match self.state {
            // While an answer is unread, further requests of the client stay in the socket.
            State::Reading => self.out.is_empty(),
            State::Leaving(_) => true,
            State::Waiting(_) | State::Asking => false,
        }
    }

    /// True if something is to be sent.
    pub fn wants_write(&self) -> bool {
        !self.out.is_empty()
    }

    /// The time of the next [`Connection::expire`].
    pub fn due(&self) -> Option<Instant> {
        self.read_by.into_iter().chain(self.write_by).min()
    }

    /// Reads what is available.
    pub fn read(&mut self, now: Instant) -> Next {
        let mut bytes = [0; 16 * 1024];
        loop {
            let left = match self.state {
                State::Leaving(left) => left.min(bytes.len()),
                _ if self.wants_read() => bytes.len(),
                _ => return Next::Stays,
            };
            if left == 0 {
                return Next::Ends;
            }
            // Descriptors that come with the bytes are closed inside this call: in the thread of
            // their sender.
            let got = match fds::receive(self.socket.as_fd(), &mut bytes[..left], 0) {
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Stays,
                Err(_) => return Next::Ends,
            };
            if let State::Leaving(left) = &mut self.state {
                *left = left.saturating_sub(got.bytes);
            } else if got.surplus {
                return self.refuse(DESCRIPTOR.to_owned(), now);
            }
            if got.bytes == 0 {
                return Next::Ends;
            }
            if matches!(self.state, State::Reading) {
                self.decoder.push(&bytes[..got.bytes]);
                match self.advance(now) {
                    Next::Stays => {}
                    other => return other,
                }
            }
        }
    }

    /// Looks for a complete message in the bytes read.
    pub fn advance(&mut self, now: Instant) -> Next {
        if !matches!(self.state, State::Reading) || !self.out.is_empty() {
            return Next::Stays;
        }
        let body = match self.decoder.poll() {
            Ok(Some(body)) => body,
            Ok(None) => {
                self.read_by = match self.decoder.has_partial_message() {
                    true => self.read_by.or(Some(now + PATIENCE)),
                    false => None,
                };
                return Next::Stays;
            }
            Err(error) => return self.refuse(error.to_string(), now),
        };
        self.read_by = None;
        match decode_client_call(&body) {
            Ok(call) => {
                self.state = State::Waiting(Box::new(call));
                Next::Waits
            }
            Err(error) => self.refuse(error.to_string(), now),
        }
    }

    /// Takes its request for the daemon, if one waits.
    pub fn ask(&mut self) -> Option<ClientCall> {
        match std::mem::replace(&mut self.state, State::Asking) {
            State::Waiting(call) => Some(*call),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Sends a message of the daemon, as far as the client reads.
    pub fn deliver(&mut self, message: ToFront, now: Instant) -> Next {
        match message.kind {
            Kind::Close => return Next::Ends,
            Kind::Attached => self.seated = false,
            Kind::Answer | Kind::News | Kind::Quota => {}
        }
        if message.kind != Kind::News && self.is_asking() {
            self.state = State::Reading;
        }
        self.send(message.frame, message.fds, now)
    }

    /// Sends the client the reason for the end of the connection.
    pub fn refuse(&mut self, why: String, now: Instant) -> Next {
        self.leave(Response::bad_usage(why), now)
    }

    /// Sends a last answer. Unread bytes of the client would turn the close into a reset that
    /// overtakes the answer, so some of them are read.
    pub fn leave(&mut self, last: Response, now: Instant) -> Next {
        self.state = State::Leaving(MOST_DRAINED);
        self.read_by = Some(now + LAST_WORDS);
        match encode_response(&last) {
            Ok(frame) => self.send(frame, Vec::new(), now),
            Err(_) => Next::Ends,
        }
    }

    fn send(&mut self, bytes: Vec<u8>, fds: Vec<OwnedFd>, now: Instant) -> Next {
        let waiting: usize = self.out.iter().map(|piece| piece.bytes.len()).sum();
        if !self.out.is_empty() && waiting + bytes.len() > MOST_WAITING {
            return Next::Ends;
        }
        self.out.push_back(Piece {
            bytes,
            gone: 0,
            fds,
        });
        self.write(now)
    }

    /// Sends what is queued, as far as the client reads.
    pub fn write(&mut self, now: Instant) -> Next {
        while let Some(piece) = self.out.front_mut() {
            let beside: Vec<BorrowedFd<'_>> = piece.fds.iter().map(AsFd::as_fd).collect();
            match fds::send(self.socket.as_fd(), &piece.bytes[piece.gone..], &beside) {
                Ok(sent) => {
                    piece.gone += sent;
                    // They were sent with the first byte.
                    piece.fds.clear();
                    if piece.gone == piece.bytes.len() {
                        self.out.pop_front();
                        self.write_by = None;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.write_by.get_or_insert(now + SLOWEST_READER);
                    return Next::Stays;
                }
                Err(_) => return Next::Ends,
            }
        }
        // Bytes read before the answer was sent may contain the next request.
        self.advance(now)
    }

    /// Acts on deadlines that are over.
    pub fn expire(&mut self, now: Instant) -> Next {
        if self.write_by.is_some_and(|by| by <= now) {
            return Next::Ends;
        }
        match (&self.state, self.read_by) {
            (State::Reading, Some(by)) if by <= now => {
                let why = format!("the request did not end within {PATIENCE:?}");
                self.refuse(why, now)
            }
            (State::Leaving(_), Some(by)) if by <= now => Next::Ends,
            _ => Next::Stays,
        }
    }
}

const DESCRIPTOR: &str = "a file descriptor came with the request; none is taken: a process is named by its number and \
                          its start";
/// Time limit for a request to arrive completely.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time limit for a client to read an answer.
const SLOWEST_READER: Duration = Duration::from_secs(5);
/// How long the rest of a refused message is read.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Bytes of it that are read.
const MOST_DRAINED: usize = 2 << 20;
/// Bytes queued behind an answer that the client does not read.
const MOST_WAITING: usize = 4 << 20;
