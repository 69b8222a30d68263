//! A client of the daemon: [`Client::call`] sends a [`Request`] over the daemon's socket, waits at
//! most [`Client::TIMEOUT`] (120 s), and returns the [`Response`] or a [`ClientError`]. A call
//! fails if the process that it is about has ended or cannot be read, if no response arrives in
//! time, if the connection fails or is closed, or if a message is invalid, too long or unexpected.
//! [`Client::connect`] fails if no daemon listens, or if connecting fails in another way.
//!
//! After [`crate::direct::DirectRequest::Attach`] the daemon also sends notifications
//! ([`FlowNotification`]) between responses. A call stores the notifications that arrive before its
//! response. [`Client::buffered_notification`] returns those that were received;
//! [`Client::poll_notification`] also reads the socket, without waiting.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::direct::{DirectReply, FlowNotification};
use crate::frame::{Decoder, LONGEST_RESPONSE};
use crate::wire::{self, WireError};
use crate::{Process, Request, Response, RuntimeDir, fds};

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    decoder: Decoder,
    /// Received descriptors that no response has taken yet.
    fds: Vec<OwnedFd>,
    notifications: VecDeque<FlowNotification>,
}

impl Client {
    /// Longest time that [`Client::call`] takes. The first limit takes the daemon longest: it loads
    /// the eBPF programs and attaches them to each interface, and for each the kernel takes 10 to
    /// 30 ms (one RCU grace period in each direction). On a host with a thousand interfaces that
    /// takes up to half a minute.
    pub const TIMEOUT: Duration = Duration::from_secs(120);

    /// Connects to the daemon of a runtime folder.
    ///
    /// # Errors
    /// [`ClientError::NoDaemon`] if no process listens at the socket, [`ClientError::Connect`] if
    /// connecting fails in another way.
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

    /// Uses a socket that is already connected.
    pub fn over(stream: UnixStream) -> Client {
        Client {
            stream,
            decoder: Decoder::new(LONGEST_RESPONSE),
            fds: Vec::new(),
            notifications: VecDeque::new(),
        }
    }

    /// Sends a request and waits for the response, at most [`Client::TIMEOUT`]. If the request is
    /// about a process, `pidfd` identifies it; the client sends its number and its start time
    /// ([`Process`]). After an error the connection must not be used again.
    ///
    /// # Errors
    /// [`ClientError::ProcessEnded`] if the process has ended, and
    /// [`ClientError::ProcessUnreadable`] if its number or start time cannot be read; nothing was
    /// sent then. [`ClientError::Timeout`] if no response arrives in time. Other errors if the
    /// connection fails or a message is invalid.
    pub fn call(
        &mut self,
        request: &Request,
        pidfd: Option<BorrowedFd<'_>>,
    ) -> Result<Response, ClientError> {
        self.call_within(Client::TIMEOUT, request, pidfd)
    }

    /// [`Client::call`] with another timeout.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn call_within(
        &mut self,
        timeout: Duration,
        request: &Request,
        pidfd: Option<BorrowedFd<'_>>,
    ) -> Result<Response, ClientError> {
        let deadline = Instant::now() + timeout;
        self.send(deadline, request, pidfd)?;
        let response = self.wait_for_response(deadline);
        self.fds.clear();
        response
    }

    /// [`Client::call`] for a response with descriptors. Returns them in the order in which they
    /// were sent.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn call_for_fds(
        &mut self,
        request: &Request,
        pidfd: Option<BorrowedFd<'_>>,
    ) -> Result<(Response, Vec<OwnedFd>), ClientError> {
        let deadline = Instant::now() + Client::TIMEOUT;
        self.send(deadline, request, pidfd)?;
        let response = self.wait_for_response(deadline);
        let fds = std::mem::take(&mut self.fds);
        Ok((response?, fds))
    }

    /// Removes and returns the oldest notification among the bytes that were received, also behind
    /// the response of the last call; `None` if there is none. Does not read the socket. After an
    /// error the connection must not be used again.
    ///
    /// # Errors
    /// If a message is invalid, or if a response arrived without a request.
    pub fn buffered_notification(&mut self) -> Result<Option<FlowNotification>, ClientError> {
        if self.notifications.is_empty() && self.take_response()?.is_some() {
            return Err(ClientError::UnexpectedResponse);
        }
        Ok(self.notifications.pop_front())
    }

    /// Removes and returns the oldest notification that has arrived; `None` if there is none at
    /// present. After an error the connection must not be used again.
    ///
    /// # Errors
    /// If the connection fails, if a message is invalid, or if a response arrives without a
    /// request.
    pub fn poll_notification(&mut self) -> Result<Option<FlowNotification>, ClientError> {
        loop {
            if let Some(notification) = self.buffered_notification()? {
                return Ok(Some(notification));
            }
            if !self.is_readable()? {
                return Ok(None);
            }
            self.read()?;
        }
    }

    /// Sends a request without waiting for the response, which [`Client::poll_response`] returns.
    /// The caller must take it before the next call.
    ///
    /// # Errors
    /// As [`Client::call`], if the request cannot be sent within [`Client::TIMEOUT`].
    pub fn begin(
        &mut self,
        request: &Request,
        pidfd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ClientError> {
        self.send(Instant::now() + Client::TIMEOUT, request, pidfd)
    }

    /// The response to the request of [`Client::begin`]; `None` if it has not arrived. Never waits.
    /// After an error the connection must not be used again.
    ///
    /// # Errors
    /// If the connection fails, or a message is invalid.
    pub fn poll_response(&mut self) -> Result<Option<Response>, ClientError> {
        loop {
            if let Some(response) = self.take_response()? {
                return Ok(Some(response));
            }
            if !self.is_readable()? {
                return Ok(None);
            }
            self.read()?;
        }
    }

    /// True if the socket has bytes to read, or has been closed at the other end.
    fn is_readable(&self) -> Result<bool, ClientError> {
        let mut readable = [PollFd::new(&self.stream, PollFlags::IN)];
        loop {
            match rustix::event::poll(&mut readable, Some(&Timespec::default())) {
                Ok(count) => return Ok(count > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(ClientError::Io(error.into())),
            }
        }
    }

    fn send(
        &mut self,
        deadline: Instant,
        request: &Request,
        pidfd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ClientError> {
        let process = pidfd.map(Process::of).transpose();
        let process = process.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ClientError::ProcessEnded,
            _ => ClientError::ProcessUnreadable(error),
        })?;
        let frame = wire::encode_client_call(request, process)?;
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            self.stream.set_write_timeout(Some(remaining(deadline)?))?;
            let sent = match fds::send(self.stream.as_fd(), rest, &[]) {
                Ok(sent) => sent,
                // The daemon can refuse a request before it has read all of it.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => return Err(error.into()),
            };
            rest = &rest[sent..];
        }
        Ok(())
    }

    fn wait_for_response(&mut self, deadline: Instant) -> Result<Response, ClientError> {
        loop {
            if let Some(response) = self.take_response()? {
                return Ok(response);
            }
            self.stream.set_read_timeout(Some(remaining(deadline)?))?;
            self.read()?;
        }
    }

    /// The response among the messages that were read; `None` if there is none. Fails if a message
    /// is invalid. Stores the notifications before it.
    fn take_response(&mut self) -> Result<Option<Response>, ClientError> {
        while let Some(body) = self.decoder.poll().map_err(WireError::from)? {
            match wire::decode_response(&body)? {
                Response::Direct(DirectReply::Notification(notification)) => {
                    self.notifications.push_back(notification);
                }
                response => return Ok(Some(response)),
            }
        }
        Ok(None)
    }

    /// Reads bytes, and waits for them up to the timeout of the socket.
    fn read(&mut self) -> Result<(), ClientError> {
        let mut bytes = [0; 16 * 1024];
        let received = fds::receive(self.stream.as_fd(), &mut bytes, fds::MAX_FDS)?;
        if received.bytes == 0 {
            return Err(ClientError::HungUp);
        }
        self.decoder.push(&bytes[..received.bytes]);
        self.fds.extend(received.fds);
        match received.surplus || self.fds.len() > fds::MAX_FDS {
            true => Err(ClientError::SurplusDescriptors),
            false => Ok(()),
        }
    }
}

impl AsFd for Client {
    /// The socket. It is readable when bytes have arrived that the client has not read yet. It need
    /// not be readable while the client holds a notification: call [`Client::poll_notification`]
    /// until it returns `None` before waiting for the socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Why connecting, a call, or reading a notification failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens at the socket.
    #[error("no daemon answers at {}", socket.display())]
    NoDaemon {
        /// The path of the socket.
        socket: PathBuf,
    },
    /// Connecting to the socket failed.
    #[error("cannot connect to {}: {source}", socket.display())]
    Connect {
        /// The path of the socket.
        socket: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The process that the request is about has ended, or is not visible in `/proc`.
    #[error("the process that the request names has ended")]
    ProcessEnded,
    /// Reading the number or the start time of the process that the request is about failed, for
    /// example because the descriptor is not a pidfd.
    #[error("cannot read number and start time of the process that the request names: {0}")]
    ProcessUnreadable(io::Error),
    /// Until the deadline, the request was not sent completely or no response arrived.
    #[error("the daemon did not answer in time; `netnice log` and the daemon's output may say why")]
    Timeout,
    /// The daemon closed the connection before a complete response arrived, or while no request
    /// was waiting for one.
    #[error("the daemon closed the connection without a response")]
    HungUp,
    /// A response arrived without a request.
    #[error("the daemon sent a response without a request")]
    UnexpectedResponse,
    /// More descriptors arrived than [`fds::MAX_FDS`].
    #[error("the daemon sent more file descriptors than belong to a response")]
    SurplusDescriptors,
    /// The message cannot be encoded or decoded.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The connection failed.
    #[error("the connection to the daemon failed: {0}")]
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

/// The time until the deadline; [`ClientError::Timeout`] if none is left.
fn remaining(deadline: Instant) -> Result<Duration, ClientError> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ClientError::Timeout),
        left => Ok(left),
    }
}

#[cfg(test)]
mod tests;
