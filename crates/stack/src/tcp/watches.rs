//! What waits for changes of the connections of an engine ([`Watches`]): blocked calls, tasks, and
//! registrations for readiness.
//!
//! Each connection has a list of its own, so a change of one connection wakes nothing that waits
//! for another. A waiter is woken once, when its call is possible. An event for readiness is
//! *armed* by a call that finds that nothing more is possible, and comes once.
//!
//! Connections can also wait for a buffer for sending, which other connections have. They wait in
//! their order, and as many are looked at as buffers are free.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use netnice_tcp::connection::{Connection, State};
use netnice_tcp::endpoint::ConnectionId;

use super::engine::Engine;
use super::readiness::{Possible, Registration, set};

/// The call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A connection of the listener.
    Accept,
    /// The end of the handshake.
    Establish(ConnectionId),
    /// Something to read.
    Read(ConnectionId),
    /// Room for something to be written.
    Write(ConnectionId),
    /// The acknowledgement of everything.
    Finish(ConnectionId),
}

/// A call or a task that waits.
struct Waiter {
    wanted: Wanted,
    waker: Waker,
}

/// What waits for one connection, or for the listener.
#[derive(Default)]
pub(super) struct Watch {
    waiters: Vec<Waiter>,
    sinks: Option<Box<Sinks>>,
    /// The number of the stream; 0: no stream has the connection.
    stream: u64,
    /// Buffers for sending that the program fills at present.
    reserved: u32,
    /// The connection is in [`Watches::without_buffer`].
    wants_buffer: bool,
}

/// Where events go.
#[derive(Default)]
struct Sinks {
    /// What has an event when it becomes possible.
    armed: Possible,
    registration: Option<Arc<Registration>>,
    descriptor: Option<Arc<OwnedFd>>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Watches {
    listener: Watch,
    /// By the number of the connection.
    connections: Vec<Watch>,
    without_buffer: VecDeque<ConnectionId>,
    streams: u64,
    /// Woken when the engine is not locked any more.
    woken: Vec<Waker>,
}

impl Wanted {
    fn id(self) -> Option<ConnectionId> {
        match self {
            Wanted::Accept => None,
            Wanted::Establish(id) | Wanted::Read(id) | Wanted::Write(id) | Wanted::Finish(id) => {
                Some(id)
            }
        }
    }
}

impl Watches {
    /// A stream has the connection from now on. Returns the number of the stream.
    pub(super) fn open(&mut self, id: ConnectionId) -> u64 {
        self.streams += 1;
        let index = id.0 as usize;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, Watch::default);
        }
        self.connections[index].stream = self.streams;
        self.streams
    }

    /// The stream is dropped.
    pub(super) fn close(&mut self, id: ConnectionId) {
        if let Some(watch) = self.connections.get_mut(id.0 as usize) {
            let closed = std::mem::take(watch);
            watch.wants_buffer = closed.wants_buffer;
            closed.cancel();
        }
    }

    /// The connection moves to another engine: takes its watch. Calls and tasks that wait are
    /// woken, so that they wait there.
    pub(super) fn take(&mut self, id: ConnectionId) -> Watch {
        let Some(watch) = self.connections.get_mut(id.0 as usize) else {
            return Watch::default();
        };
        let mut taken = std::mem::take(watch);
        watch.wants_buffer = taken.wants_buffer;
        let waiters = std::mem::take(&mut taken.waiters);
        self.woken
            .extend(waiters.into_iter().map(|waiter| waiter.waker));
        taken
    }

    /// A stream comes with its connection, and has this watch. Returns the number of the stream.
    pub(super) fn put(&mut self, id: ConnectionId, watch: Watch) -> u64 {
        let number = self.open(id);
        self.connections[id.0 as usize].sinks = watch.sinks;
        number
    }

    /// The listener is dropped.
    pub(super) fn close_listener(&mut self) {
        std::mem::take(&mut self.listener).cancel();
    }

    /// True if the stream with this number has the connection.
    pub(super) fn is_open(&self, id: ConnectionId, stream: u64) -> bool {
        let watch = self.connections.get(id.0 as usize);
        watch.is_some_and(|watch| watch.stream == stream)
    }

    /// Number of buffers for sending that the program fills at present.
    pub(super) fn reserved(&self, id: ConnectionId) -> u32 {
        let watch = self.connections.get(id.0 as usize);
        watch.map_or(0, |watch| watch.reserved)
    }

    /// The program has taken a buffer for sending of the connection, or has given it back.
    pub(super) fn set_reserved(&mut self, id: ConnectionId, count: u32) {
        if let Some(watch) = self.connections.get_mut(id.0 as usize) {
            watch.reserved = count;
        }
    }

    /// The wakers to be called, when the engine is not locked any more.
    pub(super) fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    /// Number of calls and tasks that wait for a connection.
    #[cfg(test)]
    pub(super) fn waiters(&self, id: ConnectionId) -> usize {
        let watch = self.connections.get(id.0 as usize);
        watch.map_or(0, |watch| watch.waiters.len())
    }

    fn watch(&mut self, id: Option<ConnectionId>) -> Option<&mut Watch> {
        match id {
            None => Some(&mut self.listener),
            Some(id) => self.connections.get_mut(id.0 as usize),
        }
    }

    fn is_idle(&self, id: Option<ConnectionId>) -> bool {
        let watch = match id {
            None => Some(&self.listener),
            Some(id) => self.connections.get(id.0 as usize),
        };
        watch.is_none_or(Watch::is_idle)
    }
}

impl Watch {
    fn is_idle(&self) -> bool {
        let armed = self.sinks.as_ref().map(|sinks| sinks.armed);
        self.waiters.is_empty() && armed.is_none_or(Possible::is_empty)
    }

    fn cancel(self) {
        if let Some(registration) = self.sinks.and_then(|sinks| sinks.registration) {
            registration.cancel();
        }
    }

    /// True if something waits for room to write.
    fn wants_to_write(&self) -> bool {
        let is_write = |waiter: &Waiter| matches!(waiter.wanted, Wanted::Write(_));
        let armed = self.sinks.as_ref().map(|sinks| sinks.armed);
        armed.is_some_and(|armed| armed.has(Possible::WRITE)) || self.waiters.iter().any(is_write)
    }
}

impl Engine {
    /// True if the call would not block. It may fail.
    pub(super) fn is_possible(&self, wanted: Wanted) -> bool {
        let connection = match wanted.id() {
            _ if self.has_failed() => return true,
            None => return self.endpoint.has_ready(),
            Some(id) => self.endpoint.connection(id),
        };
        let Some(connection) = connection else {
            return true;
        };
        if connection.reason().is_some() || connection.state() == State::Closed {
            return true;
        }
        match wanted {
            Wanted::Accept => true,
            Wanted::Establish(_) => connection.is_synchronized(),
            Wanted::Read(_) => connection.readable() > 0 || connection.is_finished(),
            Wanted::Write(id) => !connection.accepts_data() || self.has_room_for(id, connection),
            Wanted::Finish(_) => connection.unacknowledged() == 0,
        }
    }

    /// True if what waits for the call is to be woken. A call that writes is woken when a quarter
    /// of the connection's buffers is free, as the kernel does (a third, `sk_stream_is_writeable`):
    /// if each acknowledgement woke it, most of a sender's time would be spent on waking up.
    fn is_worth_waking(&self, wanted: Wanted) -> bool {
        let connection = match wanted {
            Wanted::Write(id) => self.endpoint.connection(id),
            _ => None,
        };
        let is_full = connection.is_some_and(|connection| {
            let share = self.send_share();
            connection.accepts_data() && connection.send_buffers() > share - share / 4
        });
        self.is_possible(wanted) && (!is_full || self.has_failed())
    }

    /// Which kinds of calls are possible, and worth an event.
    fn possible(&self, id: Option<ConnectionId>) -> Possible {
        let mut possible = Possible::default();
        let mut add = |kind, is_possible| {
            if is_possible {
                possible.insert(kind);
            }
        };
        match id {
            None => {
                add(Possible::READ, self.is_possible(Wanted::Accept));
                add(Possible::END, self.has_failed());
            }
            Some(id) => {
                add(Possible::READ, self.is_possible(Wanted::Read(id)));
                add(Possible::WRITE, self.is_worth_waking(Wanted::Write(id)));
                let connection = self.endpoint.connection(id);
                let has_ended = connection.is_none_or(has_ended);
                add(Possible::END, self.has_failed() || has_ended);
            }
        }
        possible
    }

    /// Wakes a call or a task when it is possible, once.
    pub(super) fn add_waiter(&mut self, wanted: Wanted, waker: &Waker) {
        let Some(watch) = self.watches.watch(wanted.id()) else {
            return;
        };
        let is_known = |waiter: &Waiter| waiter.wanted == wanted && waiter.waker.will_wake(waker);
        if !watch.waiters.iter().any(is_known) {
            let waker = waker.clone();
            watch.waiters.push(Waiter { wanted, waker });
        }
        self.note_missing_buffer(wanted.id());
    }

    /// A call does not wait any more.
    pub(super) fn remove_waiter(&mut self, wanted: Wanted, waker: &Waker) {
        if let Some(watch) = self.watches.watch(wanted.id()) {
            let others =
                |waiter: &Waiter| waiter.wanted != wanted || !waiter.waker.will_wake(waker);
            watch.waiters.retain(others);
        }
    }

    /// Sends the events of a connection, or of the listener, to a poller; `None`: no longer.
    pub(super) fn register(
        &mut self,
        id: Option<ConnectionId>,
        registration: Option<Arc<Registration>>,
    ) {
        self.change_sinks(id, |sinks| {
            let old = std::mem::replace(&mut sinks.registration, registration);
            if let Some(old) = old {
                old.cancel();
            }
        });
    }

    /// Makes a descriptor readable at each event of a connection.
    pub(super) fn register_descriptor(&mut self, id: ConnectionId, descriptor: Arc<OwnedFd>) {
        self.change_sinks(Some(id), |sinks| sinks.descriptor = Some(descriptor));
    }

    fn change_sinks(&mut self, id: Option<ConnectionId>, change: impl FnOnce(&mut Sinks)) {
        let Some(watch) = self.watches.watch(id) else {
            return;
        };
        let mut sinks = watch.sinks.take().unwrap_or_default();
        change(&mut sinks);
        sinks.armed = Possible::ALL;
        if sinks.registration.is_some() || sinks.descriptor.is_some() {
            watch.sinks = Some(sinks);
        }
        self.report(id);
    }

    /// After a call: arms its event, if nothing more is possible.
    pub(super) fn arm(&mut self, wanted: Wanted) {
        let id = wanted.id();
        let kind = match wanted {
            Wanted::Accept | Wanted::Read(_) => Possible::READ,
            Wanted::Write(_) => Possible::WRITE,
            Wanted::Establish(_) | Wanted::Finish(_) => return,
        };
        let armed = self
            .watches
            .watch(id)
            .and_then(|watch| watch.sinks.as_ref());
        let Some(armed) = armed.map(|sinks| sinks.armed) else {
            return;
        };
        if armed.has(kind) || self.is_possible(wanted) {
            return;
        }
        if let Some(sinks) = self
            .watches
            .watch(id)
            .and_then(|watch| watch.sinks.as_mut())
        {
            sinks.armed.insert(kind);
        }
        self.note_missing_buffer(id);
    }

    /// Wakes what waits for the connections that have changed. Returns true if connections wait for
    /// buffers that are free, so this function is to be called again soon.
    pub(super) fn report_changes(&mut self) -> bool {
        while let Some(id) = self.endpoint.poll_changed() {
            self.note_end(id);
            self.report(Some(id));
        }
        self.report(None);
        let mut free = self.spare_buffers();
        while free > 0
            && let Some(id) = self.watches.without_buffer.pop_front()
        {
            if let Some(watch) = self.watches.watch(Some(id)) {
                watch.wants_buffer = false;
            }
            if !self.watches.is_idle(Some(id)) {
                self.report(Some(id));
                free -= 1;
            }
        }
        free == 0 && self.spare_buffers() > 0 && !self.watches.without_buffer.is_empty()
    }

    /// Wakes what waits for a connection or the listener, and is possible.
    fn report(&mut self, id: Option<ConnectionId>) {
        if self.watches.is_idle(id) {
            return;
        }
        let Some(watch) = self.watches.watch(id) else {
            return;
        };
        let mut waiters = std::mem::take(&mut watch.waiters);
        let armed = watch.sinks.as_ref().map(|sinks| sinks.armed);
        let ready = waiters.extract_if(.., |waiter| self.is_worth_waking(waiter.wanted));
        let ready: Vec<Waker> = ready.map(|waiter| waiter.waker).collect();
        let news = armed.map_or(Possible::default(), |armed| armed.and(self.possible(id)));
        self.watches.woken.extend(ready);
        let Some(watch) = self.watches.watch(id) else {
            return;
        };
        watch.waiters = waiters;
        if !news.is_empty()
            && let Some(sinks) = &mut watch.sinks
        {
            sinks.armed.remove(news);
            if let Some(registration) = &sinks.registration {
                registration.push(news);
            }
            if let Some(descriptor) = &sinks.descriptor {
                set(descriptor);
            }
        }
        self.note_missing_buffer(id);
    }

    /// If a connection waits for a buffer that another one must give back, it is looked at when
    /// there is one.
    fn note_missing_buffer(&mut self, id: Option<ConnectionId>) {
        let Some(id) = id.filter(|_| self.spare_buffers() == 0) else {
            return;
        };
        let Some(watch) = self.watches.watch(Some(id)) else {
            return;
        };
        if watch.wants_to_write() && !watch.wants_buffer {
            watch.wants_buffer = true;
            self.watches.without_buffer.push_back(id);
        }
    }
}

/// True if the connection has failed, or both ends have shut down.
fn has_ended(connection: &Connection) -> bool {
    let is_over = matches!(connection.state(), State::Closed | State::TimeWait);
    connection.reason().is_some() || is_over
}
