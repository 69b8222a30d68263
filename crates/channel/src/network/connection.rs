//! The connection to netnice-peer ([`Connection`]): whole messages over a Unix stream socket. Calls
//! fail with [`NetworkError`] if the connection has ended or a message is invalid.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use netnice_api::channels::{
    FromProgram, LONGEST_TO_PROGRAM, ToProgram, decode, encode_from_program,
};
use netnice_api::frame::Decoder;

use super::NetworkError;
use crate::error::ChannelError;

/// A connection.
pub(super) struct Connection {
    stream: UnixStream,
    decoder: Decoder,
}

impl Connection {
    /// Connects to a socket.
    pub(super) fn open(socket: &Path) -> Result<Connection, NetworkError> {
        let stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => NetworkError::NoPeer {
                socket: socket.to_owned(),
            },
            _ => ChannelError::from(error).into(),
        })?;
        Connection::over(stream)
    }

    /// Uses a socket that is connected.
    pub(super) fn over(stream: UnixStream) -> Result<Connection, NetworkError> {
        let prepared = stream.set_write_timeout(Some(WRITE));
        prepared.map_err(ChannelError::from)?;
        Ok(Connection {
            stream,
            decoder: Decoder::new(LONGEST_TO_PROGRAM),
        })
    }

    /// Limits how long [`Connection::read`] waits.
    pub(super) fn limit_reads(&mut self, time: Duration) -> Result<(), NetworkError> {
        let limited = self.stream.set_read_timeout(Some(time));
        Ok(limited.map_err(ChannelError::from)?)
    }

    /// Sends a message. Waits up to 5 s if netnice-peer does not read.
    pub(super) fn send(&mut self, message: &FromProgram) -> Result<(), NetworkError> {
        let ended = |why: String| NetworkError::Ended(why);
        let frame = encode_from_program(message).map_err(|error| ended(error.to_string()))?;
        let written = self.stream.write_all(&frame);
        written.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ended(format!("it does not read for {} s", WRITE.as_secs()))
            }
            kind => ended(kind.to_string()),
        })
    }

    /// Reads what has arrived. Call it when the socket is readable.
    pub(super) fn read(&mut self) -> Result<(), NetworkError> {
        let mut bytes = [0; READ_AT_ONCE];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(NetworkError::Ended("netnice-peer has ended".to_owned())),
            Ok(length) => {
                self.decoder.push(&bytes[..length]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(NetworkError::Ended(error.kind().to_string())),
        }
    }

    /// The next whole message that was read.
    pub(super) fn next(&mut self) -> Result<Option<ToProgram>, NetworkError> {
        let ended = |why: String| NetworkError::Ended(why);
        let Some(body) = self
            .decoder
            .poll()
            .map_err(|error| ended(error.to_string()))?
        else {
            return Ok(None);
        };
        let message = decode(&body).map_err(|error| ended(error.to_string()))?;
        Ok(Some(message))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// How long a message may wait for netnice-peer to read.
const WRITE: Duration = Duration::from_secs(5);
const READ_AT_ONCE: usize = 16 << 10;
