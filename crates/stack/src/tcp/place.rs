//! Where the connection of a stream is ([`StreamPlace`]): an engine, and its number there.
//!
//! A connection can move to another engine ([`Stream::promote`](super::Stream::promote)) while
//! other threads use the stream. Each call looks up the place, and the connection cannot move while
//! the call is in the engine. A call that waits is not in the engine: it is woken when the
//! connection moves, and tries again at the new place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use netnice_tcp::endpoint::ConnectionId;

use super::engine::Engine;
use super::engine_cell::{EngineCell, Woken, block_on, pending};
use super::watches::Wanted;
use crate::error::StackError;

/// A place of a connection.
pub(super) struct Place {
    pub(super) cell: Arc<EngineCell>,
    pub(super) id: ConnectionId,
    /// The number of the stream in its engine.
    pub(super) number: u64,
}

/// The present place of a stream's connection. See the module.
pub(super) struct StreamPlace {
    place: RwLock<Place>,
    /// Held by the call that moves the connection.
    moves: Mutex<()>,
}

impl StreamPlace {
    /// The first place of a connection.
    pub(super) fn new(place: Place) -> Arc<StreamPlace> {
        Arc::new(StreamPlace {
            place: RwLock::new(place),
            moves: Mutex::new(()),
        })
    }

    /// The place. The connection does not move meanwhile. No waker may be woken meanwhile.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Place> {
        self.place.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place, to be changed: no call is in the engine.
    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Place> {
        self.place.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other call moves the connection.
    pub(super) fn begin_move(&self) -> MutexGuard<'_, ()> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`EngineCell::enter`] with the number of the connection.
    pub(super) fn enter<T>(&self, use_it: impl FnOnce(&mut Engine, ConnectionId) -> T) -> T {
        let place = self.read();
        let (result, woken) = place.cell.enter(|engine| use_it(engine, place.id));
        drop(place);
        drop(woken);
        result
    }

    /// [`EngineCell::attempt`] with the number of the connection.
    pub(super) fn attempt<T>(
        &self,
        wanted: fn(ConnectionId) -> Wanted,
        mut attempt: impl FnMut(&mut Engine, ConnectionId) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        self.attempt_at(wanted, |engine, place| attempt(engine, place.id))
    }

    /// [`StreamPlace::attempt`] with the whole place.
    pub(super) fn attempt_at<T>(
        &self,
        wanted: fn(ConnectionId) -> Wanted,
        mut attempt: impl FnMut(&mut Engine, &Place) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        self.attempt_or_wait(wanted, &mut attempt, None).0
    }

    /// [`EngineCell::block_on`] with the number of the connection.
    pub(super) fn block_on<T>(
        &self,
        wanted: fn(ConnectionId) -> Wanted,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut Engine, ConnectionId) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        self.block_on_at(wanted, timeout, |engine, place| attempt(engine, place.id))
    }

    /// [`StreamPlace::block_on`] with the whole place.
    pub(super) fn block_on_at<T>(
        &self,
        wanted: fn(ConnectionId) -> Wanted,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut Engine, &Place) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        block_on(
            timeout,
            |waker| self.attempt_or_wait(wanted, &mut attempt, waker).0,
            |error| self.read().cell.awaits_reason(error),
            |waker| {
                let place = self.read();
                place.cell.give_up(wanted(place.id), waker);
            },
        )
    }

    /// [`EngineCell::poll`] with the number of the connection.
    pub(super) fn poll<T>(
        &self,
        wanted: fn(ConnectionId) -> Wanted,
        context: &mut Context<'_>,
        mut attempt: impl FnMut(&mut Engine, ConnectionId) -> Result<T, StackError>,
    ) -> Poll<Result<T, StackError>> {
        let waker = Some(context.waker());
        let mut attempt = |engine: &mut Engine, place: &Place| attempt(engine, place.id);
        pending(self.attempt_or_wait(wanted, &mut attempt, waker).0)
    }

    fn attempt_or_wait<T>(
        &self,
        wanted: fn(ConnectionId) -> Wanted,
        attempt: &mut impl FnMut(&mut Engine, &Place) -> Result<T, StackError>,
        waker: Option<&Waker>,
    ) -> (Result<T, StackError>, Woken) {
        let place = self.read();
        let mut attempt = |engine: &mut Engine| attempt(engine, &place);
        place
            .cell
            .attempt_or_wait(wanted(place.id), &mut attempt, waker)
    }
}
