//! Runs all handlers of a program in one thread ([`HandlerThread`]), over flows of the direct path.
//! `serving` is the thread's loop. Calls fail with [`ChannelError`].
//!
//! ```text
//!  Sender ──gate──▶ queue ─▶ ┌──────────────────────────┐ ─▶ packet buffers of the flow ─▶ driver
//!                            │ thread: Executor, sockets │
//!  Receiver ◀────── queue ◀─ └──────────────────────────┘ ◀─ packets of the listener's flow
//! ```
//! The program's threads never share a lock with this thread, for it can have processor time that
//! they lack. Each queue has one thread at each end (`rtrb`), and what a thread has to look at is
//! in a [`ReadySet`]. Requests that open and close channels go through a list. The thread never
//! waits for it: if another thread is adding to it, that thread wakes this one afterwards.
//!
//! The flows are opened by the thread that asks, and closed by a thread of its own, since both wait
//! for the daemon.

mod admission;
mod serving;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use netnice_core::contract::Slice;
use netnice_core::stops::Stop;
use netnice_core::units::{Instant, Nanos};
use netnice_stack::{Program, RuntimeDir, Socket, monotonic_ns};
use rustix::thread::gettid;

use crate::commands::CommandQueue;
use crate::error::ChannelError;
use crate::executor::{AcceptedMessage, Counts, Gate, HandlerId, ReceivedMessage};
use crate::laxity::HopMeter;
use crate::options::{ChannelOptions, End, ExecutorSettings};
use crate::waker::{ReadySet, Waker};
use admission::{Admission, Admitted};
pub use serving::LINGER;
use serving::{Serving, StopLog};

/// The parameters of a [`HandlerThread`].
#[derive(Clone, Debug)]
pub struct HandlerThreadOptions {
    /// The interface that carries the channels; `None` if exactly one is managed.
    pub iface: Option<String>,
    /// The largest number of senders and listeners that are open at the same time.
    pub flows: u32,
    /// Bytes of memory for the packet buffers of all senders and listeners.
    pub bytes: u64,
    /// The largest number of senders and receivers that are open at the same time.
    pub handlers: usize,
    /// Costs of processing, the length of packets and of blocks, and the horizon.
    pub settings: ExecutorSettings,
    /// What is reserved for the program (`netnice set pid:… --cpu 6ms/10ms`, or
    /// [`netnice_stack::own::change`]). The thread gets as much of it as its handlers need, exactly
    /// ([`netnice_stack::own::reserve`]), and channels whose handlers do not fit are refused. With
    /// `None` every channel is accepted, and its handlers are as late as the machine makes them.
    pub reservation: Option<Slice>,
    /// Without a `reservation`: reserve for the program what the handlers need, the least that
    /// carries them. As for [`netnice_stack::own::change`], this is for root and the group
    /// `netnice`. A program with several such threads reserves for the last one only.
    pub picks_reservation: bool,
    /// The part of the reservation that the thread has at least. Best-effort channels, for which
    /// nothing is promised, live on what the others do not use of it.
    pub least_part: Nanos,
    /// Record when the machine did not let the thread run ([`HandlerThread::take_stops`]), with one
    /// or two system calls more for each packet.
    pub records_stops: bool,
}

impl HandlerThreadOptions {
    /// Up to 64 senders and listeners, 256 handlers, 32 MiB of packet buffers, and no reservation.
    pub fn new(settings: ExecutorSettings) -> HandlerThreadOptions {
        HandlerThreadOptions {
            iface: None,
            flows: 64,
            bytes: 32 << 20,
            handlers: 256,
            settings,
            reservation: None,
            picks_reservation: false,
            least_part: Nanos(0),
            records_stops: false,
        }
    }
}

/// The thread that runs a program's handlers. A clone is the same thread. It ends with the last
/// clone, sender, listener and receiver, when queued messages have left; dropping the last of them
/// waits for that, at most some [`LINGER`].
#[derive(Clone)]
pub struct HandlerThread {
    pub(crate) owner: Arc<Owner>,
}

/// Ends the thread when it is dropped.
pub(crate) struct Owner {
    pub(crate) program: Program,
    pub(crate) settings: ExecutorSettings,
    admission: Arc<Admission>,
    stops: Mutex<rtrb::Consumer<Stop>>,
    pub(crate) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread shares with all others.
pub(crate) struct Shared {
    pub(crate) queue: CommandQueue<Command>,
    /// The handlers to look at: messages to send, or places for received ones.
    ready: ReadySet,
}

/// A request to the thread.
pub(crate) enum Command {
    OpenSource(Box<OpenSource>),
    OpenSink(Box<OpenSink>),
    OpenListener {
        socket: Box<Socket>,
        shared: Arc<ListenerShared>,
        reply: SyncSender<usize>,
    },
    /// Closes a sender or receiver.
    Close(HandlerId),
    CloseListener(usize),
    End,
}

pub(crate) struct OpenSource {
    pub(crate) socket: Socket,
    pub(crate) admitted: AdmittedChannel,
    pub(crate) options: ChannelOptions,
    /// Bytes of the largest message with all frames of the flow, and of the headers of a frame.
    pub(crate) frames: Frames,
    pub(crate) shared: Arc<SourceShared>,
    pub(crate) reply: SyncSender<Result<OpenedSource, ChannelError>>,
}

/// How the link counts the bytes of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frames {
    /// Mmax of the flow's contract; `u64::MAX` for best effort.
    pub(crate) mmax: u64,
    /// Bytes of the headers in front of each packet of a channel.
    pub(crate) headers: u64,
}

pub(crate) struct OpenedSource {
    pub(crate) handler: HandlerId,
    pub(crate) gate: Gate,
    pub(crate) messages: rtrb::Producer<AcceptedMessage<Vec<u8>>>,
    pub(crate) departures: rtrb::Consumer<Departure>,
}

/// A message that has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The number of the message in its channel.
    pub message: u64,
    /// Its logical arrival.
    pub logical: Instant,
    /// Its deadline; `None` for best effort.
    pub deadline: Option<Instant>,
    /// When the driver gave its last packet to the NIC, in ns of `CLOCK_MONOTONIC`; `None` if one
    /// of its packets did not leave.
    pub left: Option<Instant>,
}

impl Departure {
    /// The time from the departure to the deadline, in ns; negative for a late message. `None`
    /// without a deadline, or if the message did not leave.
    pub fn laxity(&self) -> Option<i64> {
        let (deadline, left) = (self.deadline?, self.left?);
        Some(deadline.0.wrapping_sub(left.0) as i64)
    }
}

pub(crate) struct OpenSink {
    pub(crate) options: ChannelOptions,
    pub(crate) shared: Arc<SinkShared>,
    pub(crate) reply: SyncSender<Result<OpenedSink, ChannelError>>,
}

pub(crate) struct OpenedSink {
    pub(crate) handler: HandlerId,
    pub(crate) messages: rtrb::Consumer<ReceivedMessage>,
    /// Messages that the program has read, whose memory is used again.
    pub(crate) read: rtrb::Producer<Vec<u8>>,
}

/// What the thread reports to a sender.
pub(crate) struct SourceShared {
    pub(crate) waker: Waker,
    /// Messages whose last packet was submitted.
    pub(crate) left: AtomicU64,
    /// Packets that were submitted, and those that the driver returned.
    pub(crate) submitted: AtomicU64,
    pub(crate) returned: AtomicU64,
    /// Packets that the driver did not send, or that the flow did not accept.
    pub(crate) unsent: AtomicU64,
    /// The laxities of the messages.
    pub(crate) meter: HopMeter,
    pub(crate) end: OnceLock<String>,
}

/// What the thread reports to a receiver.
pub(crate) struct SinkShared {
    pub(crate) waker: Waker,
    /// Messages that the program has taken.
    pub(crate) taken: AtomicU64,
    /// True if the handler waits for the program to take a message.
    pub(crate) is_full: AtomicBool,
    pub(crate) counts: SinkCounts,
    /// The laxities of the messages.
    pub(crate) meter: HopMeter,
    pub(crate) end: OnceLock<String>,
}

/// The numbers of [`crate::Counts`], which the thread stores.
#[derive(Default)]
pub(crate) struct SinkCounts(pub(crate) [AtomicU64; 9]);

/// What the thread reports to a listener.
#[derive(Default)]
pub(crate) struct ListenerShared {
    pub(crate) packets: AtomicU64,
    pub(crate) foreign: AtomicU64,
    pub(crate) invalid: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) end: OnceLock<String>,
}

impl HandlerThread {
    /// Attaches the program to a link through the daemon of a runtime folder, and starts the
    /// thread.
    ///
    /// # Errors
    /// [`ChannelError::Flow`] if there is no daemon or it refuses, [`ChannelError::Open`] if the
    /// settings are invalid, [`ChannelError::System`] if the thread cannot be started.
    pub fn attach(
        dir: &RuntimeDir,
        options: &HandlerThreadOptions,
    ) -> Result<HandlerThread, ChannelError> {
        let iface = options.iface.as_deref();
        let program = Program::attach(dir, iface, options.flows, options.bytes)?;
        let shared = Arc::new(Shared {
            queue: CommandQueue::new()?,
            ready: ReadySet::new(options.handlers),
        });
        let room = if options.records_stops { STOPS } else { 0 };
        let (log, stops) = rtrb::RingBuffer::new(room);
        let log = options.records_stops.then(|| StopLog::new(log));
        let serving = Serving::new(program.clone(), shared.clone(), options, log)?;
        let (says, said) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("handlers".into())
            .spawn(move || {
                let _ = says.send(gettid().as_raw_nonzero().get().unsigned_abs());
                serving.run();
            })?;
        let number = said.recv().map_err(|_| shared.ended())?;
        let settings = options.settings;
        let admission = Admission::new(dir, options, number).inspect_err(|_| {
            shared.queue.push(Command::End);
        })?;
        let owner = Owner {
            program,
            settings,
            admission: Arc::new(admission),
            stops: Mutex::new(stops),
            shared,
            thread: Some(thread),
        };
        Ok(HandlerThread {
            owner: Arc::new(owner),
        })
    }

    /// The stops of the thread since the last call, in order, at most 4,096
    /// ([`HandlerThreadOptions::records_stops`]). Times are ns of `CLOCK_MONOTONIC`.
    pub fn take_stops(&self) -> Vec<Stop> {
        let mut stops = self
            .owner
            .stops
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| stops.pop().ok()).collect()
    }
}

/// A channel that the thread can serve in time, until this is dropped, which can wait for the
/// daemon.
pub(crate) struct AdmittedChannel {
    admission: Arc<Admission>,
    admitted: Admitted,
}

impl AdmittedChannel {
    /// Fails as [`Admission::admit`].
    pub(crate) fn new(
        owner: &Owner,
        channel: &ChannelOptions,
        end: End,
    ) -> Result<AdmittedChannel, ChannelError> {
        let admission = owner.admission.clone();
        let admitted = admission.admit(channel, end)?;
        Ok(AdmittedChannel {
            admission,
            admitted,
        })
    }
}

impl AdmittedChannel {
    /// The channel has its final part of the deadline, for [`Admission::settle`].
    pub(crate) fn settle(&self, channel: &ChannelOptions, end: End) -> Result<(), ChannelError> {
        self.admission.settle(&self.admitted, channel, end)
    }

    /// Admits the handler with the shortest part of the deadline that it can have, which becomes
    /// the one of `channel`. Without a reservation nothing is promised to the handler, and it has
    /// [`Admission::UNRESERVED`] beside its processing.
    ///
    /// Fails as [`Admission::admit`].
    pub(crate) fn with_shortest(
        owner: &Owner,
        channel: &mut ChannelOptions,
        end: End,
    ) -> Result<AdmittedChannel, ChannelError> {
        let admission = owner.admission.clone();
        let admitted = admission.admit_shortest(channel, end)?;
        Ok(AdmittedChannel {
            admission,
            admitted,
        })
    }
}

impl Drop for AdmittedChannel {
    fn drop(&mut self) {
        self.admission.release(&self.admitted);
    }
}

impl Owner {
    /// Gives the thread a command, and waits for its reply.
    pub(crate) fn ask<T>(
        &self,
        command: impl FnOnce(SyncSender<T>) -> Command,
    ) -> Result<T, ChannelError> {
        self.shared
            .queue
            .ask(command)
            .ok_or_else(|| self.shared.ended())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.queue.push(Command::End);
        let Some(thread) = self.thread.take() else {
            return;
        };
        // A stage of a channel can own the last sender: the thread cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Has the thread look at a handler.
    pub(crate) fn report(&self, handler: HandlerId) {
        self.ready.insert(handler.index());
        self.queue.waker().wake();
    }

    /// The error of calls after the end of the thread.
    pub(crate) fn ended(&self) -> ChannelError {
        ChannelError::Ended(self.queue.end_reason())
    }
}

impl SourceShared {
    /// Of a channel whose messages have to leave within `bound` from their logical arrivals.
    pub(crate) fn new(bound: Nanos) -> io::Result<SourceShared> {
        Ok(SourceShared {
            waker: Waker::new()?,
            left: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            meter: HopMeter::new(bound),
            end: OnceLock::new(),
        })
    }

    /// The channel has ended.
    pub(crate) fn end(&self, why: &str) {
        let _ = self.end.set(why.to_owned());
        self.waker.wake();
    }
}

impl SinkCounts {
    fn store(&self, counts: &Counts) {
        let mut counts = *counts;
        for (place, count) in self.0.iter().zip(each(&mut counts)) {
            place.store(*count, Ordering::Relaxed);
        }
    }

    /// What was stored last.
    pub(crate) fn load(&self) -> Counts {
        let mut counts = Counts::default();
        for (place, count) in self.0.iter().zip(each(&mut counts)) {
            *count = place.load(Ordering::Relaxed);
        }
        counts
    }
}

/// All numbers of the counts.
fn each(counts: &mut Counts) -> [&mut u64; 9] {
    let Counts {
        messages,
        packets,
        dropped,
        overflowed,
        corrupted,
        malformed,
        duplicates,
        too_late,
        incomplete,
    } = counts;
    [
        messages, packets, dropped, overflowed, corrupted, malformed, duplicates, too_late,
        incomplete,
    ]
}

impl SinkShared {
    /// Of a channel whose messages have to be complete within `bound` from their logical arrivals.
    pub(crate) fn new(bound: Nanos) -> io::Result<SinkShared> {
        Ok(SinkShared {
            waker: Waker::new()?,
            taken: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            counts: SinkCounts::default(),
            meter: HopMeter::new(bound),
            end: OnceLock::new(),
        })
    }

    /// The channel has ended.
    pub(crate) fn end(&self, why: &str) {
        let _ = self.end.set(why.to_owned());
        self.waker.wake();
    }
}

/// The time of `CLOCK_MONOTONIC`.
pub(crate) fn now() -> Instant {
    Instant(monotonic_ns())
}

/// How many stops are kept until the program reads them.
const STOPS: usize = 4096;

#[cfg(test)]
mod tests;
