//! A connection ([`Stream`]).

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use netnice_tcp::config::Keepalive;
use netnice_tcp::connection::{Connection, Info, State, WriteError};
use netnice_tcp::endpoint::ConnectionId;

use super::engine::{Engine, FlowCounters, WriteFailure, monotonic};
use super::engine_cell::EngineCell;
use super::in_place::{Received, Reserved};
use super::place::{Place, StreamPlace};
use super::readiness::{Poller, Registration, new_descriptor};
use super::watches::Wanted;
use crate::error::StackError;

/// A TCP connection. Threads may use it at the same time, for example one that reads and one that
/// writes.
///
/// Dropping it closes it: what was written is sent, then the end. The program must live until that
/// is done ([`Stream::finish`], [`Stream::set_linger`]), because the program itself sends. If
/// received data was not read, the peer gets a reset instead (RFC 9293, section 3.6.1).
pub struct Stream {
    pub(super) place: Arc<StreamPlace>,
    local: SocketAddr,
    peer: SocketAddr,
    /// How long dropping the stream waits, in ns; [`NO_LINGER`]: it does not.
    linger: AtomicU64,
    descriptor: OnceLock<Arc<OwnedFd>>,
}

impl Stream {
    /// The stream of a connection, which has this number in its engine; the caller has counted it
    /// as a user of the engine.
    pub(super) fn new(
        cell: Arc<EngineCell>,
        (id, number): (ConnectionId, u64),
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Stream {
        Stream {
            place: StreamPlace::new(Place { cell, id, number }),
            local,
            peer,
            linger: AtomicU64::new(NO_LINGER),
            descriptor: OnceLock::new(),
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
        let wanted = Wanted::Establish;
        self.place.block_on(wanted, timeout, |engine, id| {
            let connection = connection(engine, id)?;
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
        let wanted = Wanted::Read;
        self.place
            .attempt(wanted, |engine, id| read(engine, id, into))
    }

    /// [`Stream::try_read`], which waits for up to `timeout` (`None`: without a limit).
    ///
    /// # Errors
    /// As [`Stream::try_read`]; [`StackError::WouldBlock`] if the timeout expires.
    pub fn read(&self, into: &mut [u8], timeout: Option<Duration>) -> Result<usize, StackError> {
        self.place
            .block_on(Wanted::Read, timeout, |engine, id| read(engine, id, into))
    }

    /// [`Stream::try_read`] into several parts, one after the other.
    ///
    /// # Errors
    /// As [`Stream::try_read`].
    pub fn try_read_vectored(&self, into: &mut [IoSliceMut<'_>]) -> Result<usize, StackError> {
        let wanted = Wanted::Read;
        self.place
            .attempt(wanted, |engine, id| read_parts(engine, id, into))
    }

    /// [`Stream::read`] into several parts, one after the other.
    ///
    /// # Errors
    /// As [`Stream::read`].
    pub fn read_vectored(
        &self,
        into: &mut [IoSliceMut<'_>],
        timeout: Option<Duration>,
    ) -> Result<usize, StackError> {
        let wanted = Wanted::Read;
        self.place
            .block_on(wanted, timeout, |engine, id| read_parts(engine, id, into))
    }

    /// Copies bytes into the buffers of the connection, as many as there is room for, to be sent.
    /// Returns their number.
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if there is no room. [`StackError::Connection`] if the connection
    /// has failed or was shut down, another error if its flow has ended.
    pub fn try_write(&self, bytes: &[u8]) -> Result<usize, StackError> {
        let wanted = Wanted::Write;
        self.place
            .attempt(wanted, |engine, id| write(engine, id, bytes))
    }

    /// [`Stream::try_write`], which waits for room for up to `timeout` (`None`: without a limit).
    ///
    /// # Errors
    /// As [`Stream::try_write`]; [`StackError::WouldBlock`] if the timeout expires.
    pub fn write(&self, bytes: &[u8], timeout: Option<Duration>) -> Result<usize, StackError> {
        self.place.block_on(Wanted::Write, timeout, |engine, id| {
            write(engine, id, bytes)
        })
    }

    /// [`Stream::try_write`] of several parts, one after the other.
    ///
    /// # Errors
    /// As [`Stream::try_write`].
    pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> Result<usize, StackError> {
        let wanted = Wanted::Write;
        self.place
            .attempt(wanted, |engine, id| write_parts(engine, id, parts))
    }

    /// [`Stream::write`] of several parts, one after the other.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub fn write_vectored(
        &self,
        parts: &[IoSlice<'_>],
        timeout: Option<Duration>,
    ) -> Result<usize, StackError> {
        let wanted = Wanted::Write;
        self.place
            .block_on(wanted, timeout, |engine, id| write_parts(engine, id, parts))
    }

    /// Takes a free buffer, to be filled with payload and sent ([`Reserved::commit`]) without a
    /// copy.
    ///
    /// # Errors
    /// As [`Stream::try_write`].
    pub fn try_reserve(&self) -> Result<Reserved, StackError> {
        let wanted = Wanted::Write;
        let reserve = |engine: &mut Engine, at: &Place| self.reserve_at(engine, at);
        self.place.attempt_at(wanted, reserve)
    }

    /// [`Stream::try_reserve`], which waits for a buffer for up to `timeout` (`None`: without a
    /// limit).
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub fn reserve(&self, timeout: Option<Duration>) -> Result<Reserved, StackError> {
        let wanted = Wanted::Write;
        let reserve = |engine: &mut Engine, at: &Place| self.reserve_at(engine, at);
        self.place.block_on_at(wanted, timeout, reserve)
    }

    fn reserve_at(&self, engine: &mut Engine, at: &Place) -> Result<Reserved, StackError> {
        let reserved = writing(engine, |engine| engine.reserve(at.id))?;
        let (chunk, capacity) = reserved.ok_or(StackError::WouldBlock)?;
        Ok(Reserved::new(&self.place, at, chunk, capacity))
    }

    /// Takes the next received payload with its buffer, without a copy. It counts as read. `None`
    /// if the peer has shut down its end.
    ///
    /// # Errors
    /// As [`Stream::try_read`].
    pub fn try_receive(&self) -> Result<Option<Received>, StackError> {
        let wanted = Wanted::Read;
        self.place.attempt_at(wanted, receive)
    }

    /// [`Stream::try_receive`], which waits for up to `timeout` (`None`: without a limit).
    ///
    /// # Errors
    /// As [`Stream::read`].
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Received>, StackError> {
        let wanted = Wanted::Read;
        self.place.block_on_at(wanted, timeout, receive)
    }

    /// Shuts down the sending end: the peer reads an end after what was written. Receiving goes on.
    pub fn shut_down(&self) {
        self.place.enter(|engine, id| {
            engine.endpoint.update(id, Connection::shut_down);
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
        let wanted = Wanted::Finish;
        self.place
            .block_on(wanted, timeout, |engine, id| finished(engine, id))
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
        let wanted = Wanted::Read;
        self.place
            .poll(wanted, context, |engine, id| read(engine, id, into))
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
        let wanted = Wanted::Write;
        self.place
            .poll(wanted, context, |engine, id| write(engine, id, bytes))
    }

    /// [`Stream::finish`] for a task.
    ///
    /// # Errors
    /// As [`Stream::finish`], except that it does not fail with [`StackError::WouldBlock`].
    pub fn poll_finish(&self, context: &mut Context<'_>) -> Poll<Result<(), StackError>> {
        self.place.poll(Wanted::Finish, context, |engine, id| {
            engine.endpoint.update(id, Connection::shut_down);
            finished(engine, id)
        })
    }

    /// Ends the connection at once: the peer gets a reset, and what was not sent is lost.
    pub fn abort(&self) {
        self.place.enter(|engine, id| {
            engine.endpoint.update(id, Connection::abort);
        });
    }

    /// Sends short segments at once (Nagle's algorithm is off), or not.
    pub fn set_no_delay(&self, no_delay: bool) {
        self.place.enter(|engine, id| {
            let set = |connection: &mut Connection| connection.set_no_delay(no_delay);
            engine.endpoint.update(id, set);
        });
    }

    /// Acknowledges each received segment at once (delayed acknowledgements are off), or not.
    pub fn set_quick(&self, quick: bool) {
        self.place.enter(|engine, id| {
            let set = |connection: &mut Connection| connection.set_quick(quick);
            engine.endpoint.update(id, set);
        });
    }

    /// Probes the peer when the connection is idle (RFC 9293, section 3.8.4); `None`: does not. The
    /// connection ends if the peer answers no probe.
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) {
        self.place.enter(|engine, id| {
            let set = |connection: &mut Connection| {
                connection.set_keepalive(monotonic(), keepalive);
            };
            engine.endpoint.update(id, set);
        });
    }

    /// Ends the connection if the peer acknowledges nothing for so long, although it owes an
    /// acknowledgement or keeps its window closed (RFC 9293, section 3.8.3).
    pub fn set_user_timeout(&self, timeout: Duration) {
        self.place.enter(|engine, id| {
            let set = |connection: &mut Connection| connection.set_user_timeout(timeout);
            engine.endpoint.update(id, set);
        });
    }

    /// Sets what dropping the stream does. `None`, the default: it returns at once, and the library
    /// sends what was written while the program lives. Else: it waits for up to so long until the
    /// peer has acknowledged everything, then resets the connection. Zero resets it at once.
    pub fn set_linger(&self, linger: Option<Duration>) {
        let nanos = linger.map(|linger| u64::try_from(linger.as_nanos()).unwrap_or(u64::MAX));
        let nanos = nanos.map_or(NO_LINGER, |nanos| nanos.min(NO_LINGER - 1));
        self.linger.store(nanos, Ordering::Relaxed);
    }

    /// Sends the events of the stream to a poller, with this number. What is possible already is an
    /// event. The stream has one poller at most: another one replaces it. Dropping the stream ends
    /// its events.
    pub fn register(&self, poller: &Poller, token: u64) {
        let registration = Registration::new(poller, token);
        self.place
            .enter(|engine, id| engine.register(Some(id), Some(registration)));
    }

    /// Ends the events of the stream for its poller.
    pub fn deregister(&self) {
        self.place
            .enter(|engine, id| engine.register(Some(id), None));
    }

    /// A descriptor (eventfd(2)) for this stream alone: it becomes readable at each event, which
    /// [`Poller`] describes. The program reads its 8 bytes, then makes its calls until they would
    /// block. The first call creates the descriptor, which lives as long as the stream. It is
    /// non-blocking.
    ///
    /// # Errors
    /// [`StackError::Wait`] if the process or the system has too many descriptors.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, StackError> {
        if let Some(descriptor) = self.descriptor.get() {
            return Ok(descriptor.as_fd());
        }
        let new = Arc::new(new_descriptor()?);
        // Another thread may have been faster.
        let descriptor = self.descriptor.get_or_init(|| new);
        self.place
            .enter(|engine, id| engine.register_descriptor(id, descriptor.clone()));
        Ok(descriptor.as_fd())
    }

    /// The present state: windows, times, counters, and what holds the sender back.
    ///
    /// # Errors
    /// If the connection's flow has ended.
    pub fn info(&self) -> Result<Info, StackError> {
        self.place
            .enter(|engine, id| Ok(connection(engine, id)?.info()))
    }
}

impl Stream {
    /// What was counted for the stream's flow, which a listener's connections share.
    pub fn flow_counters(&self) -> FlowCounters {
        self.place.enter(|engine, _| engine.counters())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        match self.linger.load(Ordering::Relaxed) {
            NO_LINGER => {}
            0 => self.abort(),
            nanos => {
                if self.finish(Some(Duration::from_nanos(nanos))).is_err() {
                    self.abort();
                }
            }
        }
        self.place.enter(|engine, id| {
            engine.watches.close(id);
            engine.endpoint.abandon(monotonic(), id);
        });
        self.place.read().cell.remove_user();
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Stream::read(self, into, None).map_err(io_error)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Stream::read_vectored(self, into, None).map_err(io_error)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Stream::write(self, bytes, None).map_err(io_error)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Stream::write_vectored(self, parts, None).map_err(io_error)
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

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Read::read_vectored(&mut &*self, into)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Write::write_vectored(&mut &*self, parts)
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

/// The connection. Fails if it does not exist any more: the flow has ended.
pub(super) fn connection(engine: &Engine, id: ConnectionId) -> Result<&Connection, StackError> {
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
        // Both ends have shut down.
        _ if connection.state() == State::Closed => Ok(()),
        _ => Err(StackError::WouldBlock),
    }
}

fn read(engine: &mut Engine, id: ConnectionId, into: &mut [u8]) -> Result<usize, StackError> {
    let read = engine.read(id, into);
    if read > 0 || into.is_empty() {
        return Ok(read);
    }
    nothing_to_read(engine, id)
}

fn read_parts(
    engine: &mut Engine,
    id: ConnectionId,
    into: &mut [IoSliceMut<'_>],
) -> Result<usize, StackError> {
    let mut read = 0;
    for part in into.iter_mut() {
        let count = engine.read(id, part);
        read += count;
        if count < part.len() {
            break;
        }
    }
    if read > 0 || into.iter().all(|part| part.is_empty()) {
        return Ok(read);
    }
    nothing_to_read(engine, id)
}

/// Takes the first received part.
fn receive(engine: &mut Engine, at: &Place) -> Result<Option<Received>, StackError> {
    match engine.take_front(at.id) {
        Some(front) => Ok(Some(Received::new(&at.cell, front))),
        None => nothing_to_read(engine, at.id).map(|_| None),
    }
}

/// Why nothing was read: 0 is the end.
fn nothing_to_read(engine: &Engine, id: ConnectionId) -> Result<usize, StackError> {
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
    match writing(engine, |engine| engine.write(id, bytes))? {
        0 if !bytes.is_empty() => Err(StackError::WouldBlock),
        written => Ok(written),
    }
}

fn write_parts(
    engine: &mut Engine,
    id: ConnectionId,
    parts: &[IoSlice<'_>],
) -> Result<usize, StackError> {
    let mut written = 0;
    for part in parts {
        let count = match write(engine, id, part) {
            Ok(count) => count,
            // The next call fails.
            Err(_) if written > 0 => break,
            Err(error) => return Err(error),
        };
        written += count;
        if count < part.len() {
            break;
        }
    }
    Ok(written)
}

/// The error of a call that writes.
pub(super) fn writing<T>(
    engine: &mut Engine,
    write: impl FnOnce(&mut Engine) -> Result<T, WriteFailure>,
) -> Result<T, StackError> {
    if engine.has_failed() {
        return Err(engine.end_reason());
    }
    match write(engine) {
        Ok(done) => Ok(done),
        Err(WriteFailure::Gone) => Err(engine.end_reason()),
        Err(WriteFailure::Connection(error)) => Err(StackError::Connection(error)),
    }
}

/// Dropping the stream does not wait.
const NO_LINGER: u64 = u64::MAX;
