//! The caller's side of the socket, blocking.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::frame::{Decoder, LONGEST_RESPONSE};
use crate::wire::{self, WireError};
use crate::{Request, Response, RuntimeDir, fds};

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    answers: Decoder,
}

impl Client {
    /// How long a call waits for its answer. The longest work that a daemon does for one request is the first limit of
    /// all: it loads the eBPF programs, and puts them on each interface, for which the kernel takes 10 to 30 ms (a grace
    /// period of RCU each way). On a host with a thousand interfaces that is half a minute.
    pub const TIMEOUT: Duration = Duration::from_secs(120);

    /// Connects to the daemon of a runtime folder.
    pub fn connect(dir: &RuntimeDir) -> Result<Client, ClientError> {
        let socket = dir.socket();
        let stream = UnixStream::connect(&socket).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ClientError::NoDaemon { socket }
            }
            _ => ClientError::Connect { socket, source },
        })?;
        Ok(Client::over(stream))
    }

    /// Speaks over a socket that is connected already.
    pub fn over(stream: UnixStream) -> Client {
        Client {
            stream,
            answers: Decoder::new(LONGEST_RESPONSE),
        }
    }

    /// Sends a request, with a pidfd where it means a process, and waits for the answer, at most
    /// [`Client::TIMEOUT`]. After an error the connection is of no further use.
    pub fn call(
        &mut self,
        request: &Request,
        pidfd: Option<BorrowedFd<'_>>,
    ) -> Result<Response, ClientError> {
        self.call_within(Client::TIMEOUT, request, pidfd)
    }

    /// [`Client::call`] with another patience.
    pub fn call_within(
        &mut self,
        patience: Duration,
        request: &Request,
        pidfd: Option<BorrowedFd<'_>>,
    ) -> Result<Response, ClientError> {
        let until = Instant::now() + patience;
        let frame = wire::encode_request(request)?;
        let mut rest = frame.as_slice();
        let fds: Vec<_> = pidfd.into_iter().collect();
        let mut fds = fds.as_slice();
        while !rest.is_empty() {
            self.stream.set_write_timeout(Some(left(until)?))?;
            let sent = match fds::send(self.stream.as_fd(), rest, fds) {
                Ok(sent) => sent,
                // The daemon may refuse a request before it has read all of it.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => return Err(error.into()),
            };
            fds = &[];
            rest = &rest[sent..];
        }
        self.answer(until)
    }

    fn answer(&mut self, until: Instant) -> Result<Response, ClientError> {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            if let Some(body) = self.answers.poll().map_err(WireError::from)? {
                return Ok(wire::decode_response(&body)?);
            }
            self.stream.set_read_timeout(Some(left(until)?))?;
            match io::Read::read(&mut self.stream, &mut bytes) {
                Ok(0) => return Err(ClientError::HungUp),
                Ok(read) => self.answers.push(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no daemon answers at {}", socket.display())]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket cannot be reached.
    #[error("cannot connect to {}: {source}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// No answer in time.
    #[error("the daemon did not answer in time; `netnice log` and the daemon's output may say why")]
    Timeout,
    /// The connection ended before the answer.
    #[error("the daemon closed the connection without an answer")]
    HungUp,
    /// The message cannot be written or read.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The connection broke.
    #[error("the connection to the daemon broke: {0}")]
    Io(io::Error),
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Timeout,
            io::ErrorKind::ConnectionReset => ClientError::HungUp,
            _ => ClientError::Io(error),
        }
    }
}

/// The time that is left, if any is.
fn left(until: Instant) -> Result<Duration, ClientError> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ClientError::Timeout),
        left => Ok(left),
    }
}

#[cfg(test)]
mod tests;
