//! A connection ([`Stream`]).

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use netnice_tcp::connection::{Connection, Info, State, WriteError};
use netnice_tcp::endpoint::ConnectionId;

use super::engine::{Engine, FlowCounters, WriteFailure, monotonic};
use super::engine_cell::EngineCell;
use crate::error::StackError;

/// A TCP connection. Threads may use it at the same time, for example one that reads and one that
/// writes.
///
/// Dropping it closes it: what was written is sent, then the end. The program must live until that
/// is done ([`Stream::finish`]), because the program itself sends. If received data was not read,
/// the peer gets a reset instead (RFC 9293, section 3.6.1).
pub struct Stream {
    cell: Arc<EngineCell>,
    id: ConnectionId,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Stream {
    /// The stream of a connection; the caller has counted it as a user of the engine.
    pub(super) fn new(
        cell: Arc<EngineCell>,
        id: ConnectionId,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Stream {
        Stream {
            cell,
            id,
            local,
            peer,
        }
    }

    /// The local address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The peer's address and port.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Waits until the handshake is complete. Fails as [`Stream::read`], and if the peer refuses
    /// the connection or does not answer.
    pub(super) fn wait_established(&self, timeout: Option<Duration>) -> Result<(), StackError> {
        self.cell.block_on(timeout, |engine| {
            let connection = connection(engine, self.id)?;
            match connection.state() {
                State::SynSent | State::SynReceived => Err(StackError::WouldBlock),
                State::Closed => Err(ended(engine, connection)),
                _ => Ok(()),
            }
        })
    }

    /// Copies received bytes, at most the length of `into`. Returns their number; 0 if the peer has
    /// shut down its end, or `into` is empty.
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if nothing has arrived. [`StackError::Connection`] if the
    /// connection has failed, another error if its flow has ended.
    pub fn try_read(&self, into: &mut [u8]) -> Result<usize, StackError> {
        self.cell.enter(|engine| read(engine, self.id, into))
    }

    /// [`Stream::try_read`], which waits for up to `timeout` (`None`: without a limit).
    ///
    /// # Errors
    /// As [`Stream::try_read`]; [`StackError::WouldBlock`] if the timeout expires.
    pub fn read(&self, into: &mut [u8], timeout: Option<Duration>) -> Result<usize, StackError> {
        let id = self.id;
        self.cell.block_on(timeout, |engine| read(engine, id, into))
    }

    /// Copies bytes into the buffers of the connection, as many as there is room for, to be sent.
    /// Returns their number.
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if there is no room. [`StackError::Connection`] if the connection
    /// has failed or was shut down, another error if its flow has ended.
    pub fn try_write(&self, bytes: &[u8]) -> Result<usize, StackError> {
        self.cell.enter(|engine| write(engine, self.id, bytes))
    }

    /// [`Stream::try_write`], which waits for room for up to `timeout` (`None`: without a limit).
    ///
    /// # Errors
    /// As [`Stream::try_write`]; [`StackError::WouldBlock`] if the timeout expires.
    pub fn write(&self, bytes: &[u8], timeout: Option<Duration>) -> Result<usize, StackError> {
        let id = self.id;
        self.cell
            .block_on(timeout, |engine| write(engine, id, bytes))
    }

    /// Shuts down the sending end: the peer reads an end after what was written. Receiving goes on.
    pub fn shut_down(&self) {
        self.cell.enter(|engine| {
            engine.endpoint.update(self.id, Connection::shut_down);
        });
    }

    /// Shuts down the sending end, and waits until the peer has acknowledged everything that was
    /// written, for up to `timeout` (`None`: without a limit).
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if the timeout expires. [`StackError::Connection`] if the
    /// connection has failed, another error if its flow has ended.
    pub fn finish(&self, timeout: Option<Duration>) -> Result<(), StackError> {
        self.shut_down();
        self.cell
            .block_on(timeout, |engine| finished(engine, self.id))
    }

    /// [`Stream::try_read`] for a task: if nothing has arrived, the task is woken when something
    /// may have. Any runtime can use it; the feature `tokio` adds the traits of tokio.
    ///
    /// # Errors
    /// As [`Stream::try_read`], except that it does not fail with [`StackError::WouldBlock`].
    pub fn poll_read(
        &self,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<Result<usize, StackError>> {
        let id = self.id;
        self.cell.poll(context, |engine| read(engine, id, into))
    }

    /// [`Stream::try_write`] for a task: if there is no room, the task is woken when there may be.
    ///
    /// # Errors
    /// As [`Stream::try_write`], except that it does not fail with [`StackError::WouldBlock`].
    pub fn poll_write(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, StackError>> {
        let id = self.id;
        self.cell.poll(context, |engine| write(engine, id, bytes))
    }

    /// [`Stream::finish`] for a task.
    ///
    /// # Errors
    /// As [`Stream::finish`], except that it does not fail with [`StackError::WouldBlock`].
    pub fn poll_finish(&self, context: &mut Context<'_>) -> Poll<Result<(), StackError>> {
        let id = self.id;
        self.cell.poll(context, |engine| {
            engine.endpoint.update(id, Connection::shut_down);
            finished(engine, id)
        })
    }

    /// Ends the connection at once: the peer gets a reset, and what was not sent is lost.
    pub fn abort(&self) {
        self.cell.enter(|engine| {
            engine.endpoint.update(self.id, Connection::abort);
        });
    }

    /// Sends short segments at once (Nagle's algorithm is off), or not.
    pub fn set_no_delay(&self, no_delay: bool) {
        self.cell.enter(|engine| {
            let set = |connection: &mut Connection| connection.set_no_delay(no_delay);
            engine.endpoint.update(self.id, set);
        });
    }

    /// The present state: windows, times, counters, and what holds the sender back.
    ///
    /// # Errors
    /// If the connection's flow has ended.
    pub fn info(&self) -> Result<Info, StackError> {
        self.cell
            .enter(|engine| Ok(connection(engine, self.id)?.info()))
    }
}

impl Stream {
    /// What was counted for the stream's flow, which a listener's connections share.
    pub fn flow_counters(&self) -> FlowCounters {
        self.cell.enter(|engine| engine.counters())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.cell
            .enter(|engine| engine.endpoint.abandon(monotonic(), self.id));
        self.cell.remove_user();
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Stream::read(self, into, None).map_err(io_error)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Stream::write(self, bytes, None).map_err(io_error)
    }

    /// What was written leaves as soon as windows and contract permit.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, into)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The error of the standard library for a failed call on a connection.
pub(super) fn io_error(error: StackError) -> io::Error {
    use netnice_tcp::connection::CloseReason;
    let kind = match &error {
        StackError::WouldBlock => io::ErrorKind::WouldBlock,
        StackError::Connection(WriteError::ShutDown) => io::ErrorKind::BrokenPipe,
        StackError::Connection(WriteError::Closed(reason)) => match reason {
            CloseReason::Refused => io::ErrorKind::ConnectionRefused,
            CloseReason::Reset => io::ErrorKind::ConnectionReset,
            CloseReason::TimedOut(_) | CloseReason::KeepaliveFailed(_) => io::ErrorKind::TimedOut,
            CloseReason::Unreachable => io::ErrorKind::HostUnreachable,
            CloseReason::Aborted => io::ErrorKind::ConnectionAborted,
        },
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

fn connection(engine: &Engine, id: ConnectionId) -> Result<&Connection, StackError> {
    let gone = || engine.end_reason();
    engine.endpoint.connection(id).ok_or_else(gone)
}

/// Why a connection that does not exist any more has ended.
fn ended(engine: &Engine, connection: &Connection) -> StackError {
    match connection.reason() {
        _ if engine.has_failed() => engine.end_reason(),
        Some(reason) => StackError::Connection(reason.into()),
        None => StackError::Connection(WriteError::ShutDown),
    }
}

/// Succeeds if the peer has acknowledged everything.
fn finished(engine: &Engine, id: ConnectionId) -> Result<(), StackError> {
    let connection = connection(engine, id)?;
    if connection.reason().is_some() || engine.has_failed() {
        return Err(ended(engine, connection));
    }
    match connection.unacknowledged() {
        0 => Ok(()),
        _ => Err(StackError::WouldBlock),
    }
}

fn read(engine: &mut Engine, id: ConnectionId, into: &mut [u8]) -> Result<usize, StackError> {
    let read = engine.read(id, into);
    if read > 0 || into.is_empty() {
        return Ok(read);
    }
    let connection = connection(engine, id)?;
    if connection.is_finished() {
        return Ok(0);
    }
    match connection.reason().is_some() || engine.has_failed() {
        true => Err(ended(engine, connection)),
        // The connection is over: nothing will arrive.
        false if connection.state() == State::Closed => Ok(0),
        false => Err(StackError::WouldBlock),
    }
}

fn write(engine: &mut Engine, id: ConnectionId, bytes: &[u8]) -> Result<usize, StackError> {
    if engine.has_failed() {
        return Err(engine.end_reason());
    }
    match engine.write(id, bytes) {
        Ok(0) if !bytes.is_empty() => Err(StackError::WouldBlock),
        Ok(written) => Ok(written),
        Err(WriteFailure::Gone) => Err(engine.end_reason()),
        Err(WriteFailure::Connection(error)) => Err(StackError::Connection(error)),
    }
}
