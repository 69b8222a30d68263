//! One connection of the daemon: calls in, words out. Calls wait for words only while many are unread.
//!
//! Whoever connects is root; what they say is judged all the same. A message that is no call, is too long, or has descriptors
//! beside it that nobody expects is answered once and ends the connection.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use netnice_api::driver::{DriverAnswer, DriverCall, DriverWord};
use netnice_api::frame::{Decoder, LONGEST_CALL, LONGEST_WORD};
use netnice_api::{WireError, decode_call, encode_word, fds};

/// A connection.
pub struct Connection {
    stream: UnixStream,
    calls: Decoder,
    /// Descriptors that came and that no call has taken yet.
    beside: VecDeque<OwnedFd>,
    out: VecDeque<Outgoing>,
    /// Bytes in `out`.
    kept: usize,
    /// No call is taken until more of that has gone.
    holds: bool,
    /// It ends when what is in `out` has gone.
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
    /// The peer hung up.
    #[error("the other side hung up")]
    HungUp,
    /// What it said makes no sense.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Descriptors that nobody asked for.
    #[error(
        "more than {MOST_BESIDE} descriptors wait for a call that takes them; attach takes one pidfd, and nothing else any"
    )]
    Descriptors,
    /// It does not read what it is told.
    #[error("{0} bytes of answers were not read")]
    Deaf(usize),
    /// The socket broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Connection {
    /// Takes over a socket.
    pub fn new(stream: UnixStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream,
            calls: Decoder::new(LONGEST_CALL),
            beside: VecDeque::new(),
            out: VecDeque::new(),
            kept: 0,
            holds: false,
            ends: false,
        })
    }

    /// The socket.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Takes in what is there. Poll it then until there is no call.
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

    /// The next call. None too while much of what was said is unread: it is to be polled again when some of that has gone.
    pub fn poll_call(&mut self) -> Result<Option<DriverCall>, EndOf> {
        self.holds = self.kept >= MUCH;
        if self.ends || self.holds {
            return Ok(None);
        }
        match self.calls.poll().map_err(WireError::from)? {
            Some(body) => Ok(Some(decode_call(&body)?)),
            None => Ok(None),
        }
    }

    /// The descriptor that came with the call.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.beside.pop_front()
    }

    /// Says something, now or when the peer reads.
    pub fn say(&mut self, word: &DriverWord, descriptors: Vec<OwnedFd>) -> Result<(), EndOf> {
        let bytes = match (encode_word(word), word) {
            (Ok(bytes), _) => bytes,
            (Err(why), DriverWord::Answer { id, .. }) => encode_word(&failed(*id, &why))?,
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

    /// Says for the last time why it ends.
    pub fn end(&mut self, why: &EndOf) {
        self.ends = true;
        if !matches!(why, EndOf::HungUp | EndOf::Io(_) | EndOf::Deaf(_)) {
            let _ = self.say(&failed(0, why), Vec::new());
        }
    }

    /// Whether it is to be told when there is something to receive.
    pub fn wants_to_read(&self) -> bool {
        !self.holds
    }

    /// Whether something waits until the peer reads: words, or calls behind them.
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

/// The answer that says why there is none.
pub fn failed(id: u64, why: &impl std::fmt::Display) -> DriverWord {
    DriverWord::Answer {
        id,
        answer: DriverAnswer::Failed {
            why: why.to_string(),
        },
    }
}

/// Calls that attach, and whose bytes have come in part or not at all.
const MOST_BESIDE: usize = 32;
/// With so much unread no call is taken: some thousand answers, or one census.
const MUCH: usize = 1 << 20;
/// Two answers of the longest kind. Calls alone do not come to that, whatever they are answered.
const MOST_KEPT: usize = 2 * LONGEST_WORD;

#[cfg(any(test, fuzzing))]
pub mod hostile;
#[cfg(test)]
mod tests;
