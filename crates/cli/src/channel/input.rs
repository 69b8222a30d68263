//! Where the messages of a source come from: standard input, a UDP socket, or a pattern at the full
//! rate of the channel ([`Messages`]). A read fails with a [`CommandError`].

use std::io::{self, Read};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Input;
use crate::error::CommandError;

/// The messages of a source.
pub(super) struct Messages {
    origin: Origin,
    /// The longest message.
    mmax: usize,
    /// What was read and is no whole line yet.
    rest: Vec<u8>,
    input_ended: bool,
}

enum Origin {
    Reads(io::Stdin),
    Lines(io::Stdin),
    Udp(Arc<DatagramPort>),
    Pattern {
        lasts: Duration,
        /// When the first message was taken.
        since: Option<Instant>,
        number: u64,
    },
}

/// The socket that an unmodified program sends its datagrams to.
pub(super) struct DatagramPort {
    socket: UdpSocket,
    /// Where the last datagram came from.
    program: Mutex<Option<SocketAddr>>,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A message.
    Message(Vec<u8>),
    /// The end of the input.
    End,
    /// Nothing, until the descriptor is readable.
    Wait,
}

impl DatagramPort {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (length, from) = self.socket.recv_from(buffer)?;
        *self.program.lock().unwrap_or_else(PoisonError::into_inner) = Some(from);
        Ok(length)
    }

    /// Sends a datagram to the program that sent the last one, if there is one and it still runs.
    pub(super) fn answer(&self, datagram: &[u8]) {
        let program = *self.program.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = program {
            let _ = self.socket.send_to(datagram, program);
        }
    }
}

impl Messages {
    /// The messages of a channel with this Mmax. Fails if the socket cannot be made.
    pub(super) fn new(input: Input, mmax: usize) -> Result<Messages, CommandError> {
        let origin = match input {
            Input::Reads => Origin::Reads(io::stdin()),
            Input::Lines => Origin::Lines(io::stdin()),
            Input::Udp(at) => {
                let socket = UdpSocket::bind(at);
                let socket =
                    socket.map_err(|error| CommandError::io(format!("--udp {at}"), error))?;
                Origin::Udp(Arc::new(DatagramPort {
                    socket,
                    program: Mutex::new(None),
                }))
            }
            Input::Test(lasts) => Origin::Pattern {
                lasts,
                since: None,
                number: 0,
            },
        };
        Ok(Messages {
            origin,
            mmax,
            rest: Vec::new(),
            input_ended: false,
        })
    }

    /// The socket of an unmodified program; `None` for other messages.
    pub(super) fn datagram_port(&self) -> Option<&Arc<DatagramPort>> {
        match &self.origin {
            Origin::Udp(port) => Some(port),
            _ => None,
        }
    }

    /// What becomes readable when a message follows [`Next::Wait`]; `None` if that does not come.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.origin {
            Origin::Reads(stdin) | Origin::Lines(stdin) => Some(stdin.as_fd()),
            Origin::Udp(port) => Some(port.socket.as_fd()),
            Origin::Pattern { .. } => None,
        }
    }

    /// The next message. `is_readable`: the descriptor is readable, so it is read once.
    pub(super) fn next(&mut self, is_readable: bool) -> Result<Next, CommandError> {
        if let Some(line) = self.buffered_line() {
            return Ok(Next::Message(line));
        }
        if let Origin::Pattern {
            lasts,
            since,
            number,
        } = &mut self.origin
        {
            let message = vec![*number as u8; self.mmax];
            *number += 1;
            let since = since.get_or_insert_with(Instant::now);
            return Ok(match since.elapsed() < *lasts {
                true => Next::Message(message),
                false => Next::End,
            });
        }
        if self.input_ended {
            return Ok(Next::End);
        }
        if !is_readable {
            return Ok(Next::Wait);
        }
        let mut bytes = vec![0; self.mmax.max(LEAST_READ)];
        let (length, is_datagram) = match &self.origin {
            Origin::Udp(port) => (port.receive(&mut bytes), true),
            Origin::Lines(stdin) => (stdin.lock().read(&mut bytes), false),
            Origin::Reads(stdin) => (stdin.lock().read(&mut bytes[..self.mmax]), false),
            Origin::Pattern { .. } => return Ok(Next::End),
        };
        let length = match length {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Next::Wait),
            Err(error) => return Err(CommandError::io("the input", error)),
        };
        bytes.truncate(length);
        if length == 0 && !is_datagram {
            self.input_ended = true;
            // A last line without its end.
            let rest = std::mem::take(&mut self.rest);
            return Ok(match rest.is_empty() {
                true => Next::End,
                false => Next::Message(rest),
            });
        }
        match &self.origin {
            Origin::Lines(_) => {
                self.rest.extend_from_slice(&bytes);
                let line = self.buffered_line();
                Ok(line.map_or(Next::Wait, Next::Message))
            }
            _ => Ok(Next::Message(bytes)),
        }
    }

    /// Removes and returns the first whole line of what was read. What is longer than a message is
    /// no line that could be sent, so it is returned too, and the channel refuses it.
    fn buffered_line(&mut self) -> Option<Vec<u8>> {
        if !matches!(self.origin, Origin::Lines(_)) {
            return None;
        }
        let end = self.rest.iter().position(|byte| *byte == b'\n');
        match end {
            Some(end) => {
                let mut line: Vec<u8> = self.rest.drain(..=end).collect();
                line.pop();
                Some(line)
            }
            None => (self.rest.len() > self.mmax).then(|| std::mem::take(&mut self.rest)),
        }
    }
}

/// The longest datagram, and the least that is read of lines at once.
const LEAST_READ: usize = 65_536;
