//! The loop of the thread that runs a program's handlers ([`Serving`]). After each packet it looks
//! for commands, messages, packets that arrived and buffers that became free, so that the executor
//! chooses among all handlers that have work.
//!
//! **When something counts as found.** The executor counts what is found after a packet as found
//! when that packet began. After a sleep it is told since when this thread had to be awake: since
//! the earliest of the messages and packets that it finds, or of the time for which it slept. So a
//! thread that is woken late makes nothing due later.
//!
//! A flow that fails ends with its channel; the others continue. The thread ends when its owner is
//! gone and what was queued has left ([`LINGER`]), or if it cannot sleep.

mod closer;
mod flows;
mod packet_bytes;
mod stop_log;

use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use netnice_core::units::{Instant, Nanos};
use netnice_stack::{Program, Sleeper};
use rustix::thread::set_current_timer_slack;

use super::{
    Command, HandlerThreadOptions, OpenSink, OpenSource, OpenedSink, OpenedSource, Shared,
    SinkShared, now,
};
use crate::error::ChannelError;
use crate::executor::{Executor, HandlerId, PacketRefusal, Ran, ReceivedMessage, Step};
use crate::laxity::LogicalArrivals;
use closer::Closer;
use flows::{Flows, Found, Source};
use packet_bytes::PacketBytes;
pub(super) use stop_log::StopLog;

/// The state of the thread.
pub(super) struct Serving {
    program: Program,
    /// Sleeps for commands too.
    sleeper: Sleeper,
    shared: Arc<Shared>,
    most_handlers: usize,
    executor: Executor<Vec<u8>, PacketBytes>,
    flows: Flows,
    /// By the number of the handler.
    sinks: Vec<Option<Sink>>,
    found: Found,
    /// The senders that end when what they queued has left.
    closing: Vec<usize>,
    /// When the daemon's notifications are read next.
    next_poll: Instant,
    /// The owner is gone.
    ends: bool,
    /// When the thread began its last sleep, and for when it was to wake; `None` if it has made a
    /// step since.
    slept: Option<(Instant, Option<Instant>)>,
    closer: Closer,
    stops: Option<StopLog>,
}

struct Sink {
    handler: HandlerId,
    shared: Arc<SinkShared>,
    messages: rtrb::Producer<ReceivedMessage>,
    /// Messages that the program has read.
    read: rtrb::Consumer<Vec<u8>>,
    /// `None` for best effort.
    arrivals: Option<LogicalArrivals>,
    room: u64,
    pushed: u64,
    /// What the executor knows of [`SinkShared::taken`].
    known_taken: u64,
}

impl Serving {
    /// Fails if the settings are invalid, or the thread that closes flows cannot be started.
    pub(super) fn new(
        program: Program,
        shared: Arc<Shared>,
        options: &HandlerThreadOptions,
        stops: Option<StopLog>,
    ) -> Result<Serving, ChannelError> {
        Ok(Serving {
            sleeper: Sleeper::new(&program, shared.queue.waker().as_fd())?,
            program,
            shared,
            most_handlers: options.handlers,
            executor: Executor::new(options.settings)?,
            flows: Flows::default(),
            sinks: Vec::new(),
            found: Found::default(),
            closing: Vec::new(),
            next_poll: Instant(0),
            ends: false,
            slept: None,
            closer: Closer::start()?,
            stops,
        })
    }

    /// Serves until the owner is gone.
    pub(super) fn run(mut self) {
        // Without it the kernel wakes a thread of ordinary scheduling 50 us late.
        let _ = set_current_timer_slack(Some(NonZeroU64::MIN));
        if let Some(stops) = &mut self.stops {
            stops.begin();
        }
        let why = loop {
            self.take_commands();
            let now = now();
            self.look(now);
            self.close_finished(now);
            if self.ends && self.closing.is_empty() {
                break "it was closed".to_owned();
            }
            let step = self.executor.step(now, &mut self.flows);
            let slept = match step {
                Step::Ran(ran) => {
                    self.slept = None;
                    self.handle_ran(ran, now);
                    if let Some(stops) = &mut self.stops {
                        stops.handle_worked(super::now());
                    }
                    Ok(())
                }
                Step::Wait(at) => self.sleep(now, Some(at)),
                Step::Idle => self.sleep(now, None),
            };
            if let Err(error) = slept {
                break format!("its thread cannot sleep: {error}");
            }
        };
        self.end(&why);
    }

    /// Executes the commands. True if there were any.
    fn take_commands(&mut self) -> bool {
        let mut some = false;
        while let Some(command) = self.shared.queue.next() {
            some = true;
            let now = now();
            match command {
                Command::OpenSource(open) => {
                    let reply = open.reply.clone();
                    let _ = reply.send(self.open_source(*open, now));
                }
                Command::OpenSink(open) => {
                    let reply = open.reply.clone();
                    let _ = reply.send(self.open_sink(*open, now));
                }
                Command::OpenListener {
                    socket,
                    shared,
                    reply,
                } => {
                    let _ = reply.send(self.flows.insert_listener(*socket, shared));
                }
                Command::Close(handler) => self.close(handler, now),
                Command::CloseListener(index) => {
                    if let Some(socket) = self.flows.remove_listener(index, "it was closed") {
                        self.closer.close(socket);
                    }
                }
                Command::End => self.ends = true,
            }
        }
        some
    }

    fn open_source(
        &mut self,
        open: OpenSource,
        now: Instant,
    ) -> Result<OpenedSource, ChannelError> {
        let held = (open.socket, open.admitted);
        let handler = match self.executor.open_sender(open.options, now) {
            Ok(handler) => handler,
            Err(error) => {
                self.closer.close(held);
                return Err(error.into());
            }
        };
        let gate = self.executor.take_gate(handler);
        let Some(gate) = gate.filter(|_| handler.index() < self.most_handlers) else {
            let _ = self.executor.close(handler, now);
            self.closer.close(held);
            let most = self.most_handlers;
            return Err(ChannelError::TooManyHandlers { most });
        };
        let room = usize::try_from(gate.room()).unwrap_or(usize::MAX);
        let (producer, messages) = rtrb::RingBuffer::new(room);
        let (departed, departures) = rtrb::RingBuffer::new(DEPARTURES);
        let queues = (messages, departed);
        let source = Source::new(handler, held, open.shared, queues, open.frames);
        self.flows.insert_source(source);
        Ok(OpenedSource {
            handler,
            gate,
            messages: producer,
            departures,
        })
    }

    fn open_sink(&mut self, open: OpenSink, now: Instant) -> Result<OpenedSink, ChannelError> {
        let own = open.options.class.channel();
        let arrivals = own.map(|channel| LogicalArrivals::new(open.options.rate_served(&channel)));
        let handler = self.executor.open_receiver(open.options, now)?;
        let room = self.executor.room(handler);
        let Some(room) = room.ok().filter(|_| handler.index() < self.most_handlers) else {
            let _ = self.executor.close(handler, now);
            let most = self.most_handlers;
            return Err(ChannelError::TooManyHandlers { most });
        };
        let (messages, consumer) =
            rtrb::RingBuffer::new(usize::try_from(room).unwrap_or(usize::MAX));
        let (producer, read) = rtrb::RingBuffer::new(MOST_READ);
        let sink = Sink {
            handler,
            shared: open.shared,
            messages,
            read,
            arrivals,
            room,
            pushed: 0,
            known_taken: 0,
        };
        *place(&mut self.sinks, handler.index()) = Some(sink);
        Ok(OpenedSink {
            handler,
            messages: consumer,
            read: producer,
        })
    }

    /// Closes a receiver at once, and a sender when what it queued has left.
    fn close(&mut self, handler: HandlerId, now: Instant) {
        let index = handler.index();
        if let Some(sink) = self.sinks.get_mut(index)
            && sink.as_ref().is_some_and(|sink| sink.handler == handler)
        {
            *sink = None;
            let _ = self.executor.close(handler, now);
            return;
        }
        if let Some(source) = self.flows.source_mut(index)
            && source.handler == handler
        {
            let linger = u64::try_from(LINGER.as_nanos()).unwrap_or(u64::MAX);
            source.ends = Some(Instant(now.0.saturating_add(linger)));
            self.closing.push(index);
        }
    }

    /// Ends the senders whose messages have left.
    fn close_finished(&mut self, now: Instant) {
        let mut at = 0;
        while let Some(index) = self.closing.get(at).copied() {
            let is_finished = self.flows.source(index).is_none_or(|source| {
                let queued = self.executor.messages_waiting(source.handler);
                let is_over = source.ends.is_none_or(|ends| ends <= now);
                is_over || (queued.unwrap_or(0) == 0 && source.is_empty())
            });
            if is_finished {
                self.closing.swap_remove(at);
                self.end_source(index, "it was closed");
            } else {
                at += 1;
            }
        }
    }

    /// Looks for messages, packets and free buffers, and reports them to the executor.
    fn look(&mut self, now: Instant) {
        let (flows, found) = (&mut self.flows, &mut self.found);
        if now >= self.next_poll {
            self.next_poll = Instant(now.0.saturating_add(POLL_INTERVAL.0));
            self.program.poll(|slot| flows.note(slot));
            flows.note_ending();
        } else {
            self.program.poll_driver(|slot| flows.note(slot));
        }
        self.shared.ready.take(|index| flows.note_handler(index));
        flows.read(found);
        if let Some((slept, due)) = self.slept.take() {
            let found_since = found.since.take();
            let since = found_since.into_iter().chain(due).fold(now, Instant::min);
            self.executor.set_unread_since(since.max(slept).min(now));
        }
        found.since = None;
        self.report(now);
        while let Some(index) = self.flows.take_ready_handler() {
            self.update_taken(index, now);
        }
        while let Some((index, error)) = self.flows.take_failure() {
            self.end_source(index, &error.to_string());
        }
        if self.flows.take_listener_failure() {
            // They see the end of their listener.
            let sinks = self.sinks.iter().flatten();
            sinks.for_each(|sink| sink.shared.waker.wake());
        }
    }

    /// Reports what was found.
    fn report(&mut self, now: Instant) {
        for (handler, packets) in self.found.returned.drain(..) {
            let _ = self.executor.handle_sent(handler, packets, now);
        }
        for (handler, message) in self.found.messages.drain(..) {
            let _ = self.executor.queue(handler, message, now);
        }
        for packet in self.found.packets.drain(..) {
            let (listener, stamp) = (packet.listener, packet.stamp);
            match self.executor.handle_found(packet.bytes, stamp, now) {
                Ok(_) => {}
                Err(PacketRefusal::Header(_)) => self.flows.count_invalid(listener),
                Err(PacketRefusal::Foreign(_)) => self.flows.count_foreign(listener),
                Err(PacketRefusal::Full { handler, .. }) => {
                    if let Some(Some(sink)) = self.sinks.get(handler.index()) {
                        sink.store_counts(&self.executor);
                    }
                }
            }
        }
    }

    /// Tells the executor how many messages a receiver has taken.
    fn update_taken(&mut self, index: usize, now: Instant) {
        let Some(Some(sink)) = self.sinks.get_mut(index) else {
            return;
        };
        let taken = sink.shared.taken.load(Ordering::Acquire);
        let more = taken - sink.known_taken;
        sink.known_taken = taken;
        if more > 0 {
            let _ = self.executor.handle_taken(sink.handler, more, now);
        }
    }

    /// A packet was processed.
    fn handle_ran(&mut self, ran: Ran, now: Instant) {
        let index = ran.handler.index();
        if self.flows.source(index).is_none() {
            return self.deliver(index, now);
        }
        let refused = self.flows.handle_processed(&ran, now);
        if refused > 0 {
            let _ = self.executor.handle_sent(ran.handler, refused, now);
        }
    }

    /// Gives a receiver the messages that are complete.
    fn deliver(&mut self, index: usize, now: Instant) {
        let Some(Some(sink)) = self.sinks.get_mut(index) else {
            return;
        };
        // A program that has a message finds it in the counts.
        sink.store_counts(&self.executor);
        while let Some(message) = self.executor.hand_over(sink.handler) {
            sink.count_laxity(message.arrived);
            // There is room: the executor counts what the program has not taken.
            if sink.messages.push(message).is_ok() {
                sink.pushed += 1;
            }
            sink.shared.waker.wake();
            while let Ok(read) = sink.read.pop() {
                self.executor.reuse(sink.handler, read);
            }
        }
        if sink.pushed - sink.known_taken >= sink.room {
            sink.shared.is_full.store(true, Ordering::Relaxed);
            // The receiver sees the flag, or this thread sees what the receiver has taken.
            fence(Ordering::SeqCst);
            self.update_taken(index, now);
        }
    }

    /// Sleeps until something is to be done. `began` is the present. Fails if the call fails.
    fn sleep(&mut self, began: Instant, due: Option<Instant>) -> std::io::Result<()> {
        self.flows.flush();
        self.shared.queue.waker().prepare_sleep();
        let may_sleep = self.shared.ready.is_empty()
            && !self.flows.has_news()
            && !self.take_commands()
            && self.program.arm();
        let mut slept = Ok(false);
        if may_sleep {
            let mut longest = due.map(|due| due.0.saturating_sub(began.0));
            if !self.closing.is_empty() || self.flows.has_ending() {
                longest = Some(longest.unwrap_or(u64::MAX).min(ENDING_INTERVAL.0));
            }
            let longest = longest.map(Duration::from_nanos);
            slept = self.sleeper.sleep(longest);
            if let Some(stops) = &mut self.stops {
                stops.handle_woken(due, now());
            }
        }
        self.shared.queue.waker().end_sleep();
        let flows = &mut self.flows;
        let is_readable = matches!(slept, Ok(true));
        self.program
            .poll_woken(is_readable, |slot| flows.note(slot));
        flows.note_ending();
        self.slept = Some((began, due));
        slept.map(drop)
    }

    fn end_source(&mut self, index: usize, why: &str) {
        if let Some(source) = self.flows.remove_source(index) {
            let _ = self.executor.close(source.handler, now());
            source.shared.end(why);
            self.closer.close((source.socket, source.admitted));
        }
    }

    /// Ends all channels, and waits until their flows are closed.
    fn end(mut self, why: &str) {
        self.shared.queue.end(why);
        for index in 0..self.flows.sources() {
            self.end_source(index, why);
        }
        for sink in self.sinks.drain(..).flatten() {
            sink.shared.end(why);
        }
        for index in 0..self.flows.listeners() {
            if let Some(socket) = self.flows.remove_listener(index, why) {
                self.closer.close(socket);
            }
        }
        self.closer.finish();
    }
}

impl Sink {
    /// Counts a message that the program can take from now on. Its last packet arrived at
    /// `arrived`.
    fn count_laxity(&mut self, arrived: Instant) {
        if let Some(arrivals) = &mut self.arrivals {
            let meter = &self.shared.meter;
            meter.count(meter.laxity(arrivals.next(arrived), now()), false);
        }
    }

    fn store_counts(&self, executor: &Executor<Vec<u8>, PacketBytes>) {
        if let Ok(counts) = executor.counts(self.handler) {
            self.shared.counts.store(&counts);
        }
    }
}

/// The place of a number in a list, which grows as needed.
fn place<T>(list: &mut Vec<Option<T>>, index: usize) -> &mut Option<T> {
    if list.len() <= index {
        list.resize_with(index + 1, || None);
    }
    &mut list[index]
}

/// How many departures a sender keeps until the program reads them.
const DEPARTURES: usize = 1024;
/// How many messages that the program gave back ([`crate::Receiver::reuse`]) are kept.
const MOST_READ: usize = 2;
/// For how long a closed sender goes on to send what was queued.
pub const LINGER: Duration = Duration::from_secs(10);
/// How often the daemon's notifications are read while the thread does not sleep.
const POLL_INTERVAL: Nanos = Nanos::from_millis(100);
/// Longest sleep while senders are being closed, or flows have ended without a reason.
const ENDING_INTERVAL: Nanos = Nanos::from_millis(100);
