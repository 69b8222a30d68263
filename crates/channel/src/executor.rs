//! Runs the handlers of a program's channels: [`Executor`]. See [the crate](crate) for the way of a
//! message.
//!
//! The caller passes the time, and moves the packets: it gives packets that arrived
//! ([`Executor::handle_packet`]), has a [`Transmit`] for those that leave, and reports when they
//! have left ([`Executor::handle_sent`]). [`Executor::step`] processes one packet and returns, so
//! the caller can read the clock between two packets. It must call `step` whenever it has processor
//! time, until the result is to wait.
//!
//! **Time that the executor works.** What arrives while a packet is processed is found only after
//! it, and a program whose reservation is used up finds it later still. Until the next step no
//! handler is chosen, so what is found counts as arrived at the step before (as for the driver,
//! docs/reference/contracts.md, *A lie gains nothing*); else it would be due too late. A caller
//! that waited and was woken late says since when it had to wake ([`Executor::set_unread_since`]).
//!
//! No call blocks. The memory is bounded by the options of the channels, whatever arrives. Work in
//! a call does not depend on the number of handlers, except as the scheduler's does.

mod processing;
mod receiving;
mod sending;

use std::collections::HashMap;

use netnice_core::sched::{FlowId, Next, Scheduler, Wire};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};

use crate::header::{ChannelId, HeaderError, PacketHeader};
use crate::options::{ChannelOptions, End, ExecutorSettings, LONGEST_BLOCK, OpenError, Sizes};
use processing::{Handler, Plan, Side};
pub use receiving::ReceivedMessage;
use receiving::Receiving;
use sending::Sending;
pub use sending::{Accepted, AcceptedMessage, Gate, OutgoingPacket, SendRefusal};

/// A handler of an [`Executor`]. It is never used again for another channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandlerId {
    flow: FlowId,
    serial: u64,
}

impl HandlerId {
    /// A number that no other open handler of the executor has. It is small, and a handler that is
    /// opened later can have it.
    pub(crate) fn index(self) -> usize {
        self.flow.index()
    }
}

/// The handlers of a program. `M` is a message to send, and `P` a packet that arrived.
pub struct Executor<M, P> {
    settings: ExecutorSettings,
    scheduler: Scheduler,
    /// By the number of the handler's flow.
    handlers: Vec<Option<Handler<M, P>>>,
    senders: HashMap<ChannelId, HandlerId>,
    receivers: HashMap<ChannelId, HandlerId>,
    next_serial: u64,
    /// The handler that has the processor, and the packets left of its block.
    running: Option<(FlowId, u64)>,
    foreign: u64,
    invalid: u64,
}

/// What a program does with packets that leave.
pub trait Transmit {
    /// A buffer for the handler's next packet, of at least `length` bytes. With `None` or a shorter
    /// buffer the handler waits until [`Executor::handle_sent`] reports that a packet has left. The
    /// rest of its message can count as a further message then, with a later deadline. So a program
    /// has as many buffers for the channel as [`Executor::buffers`] says.
    fn buffer(&mut self, handler: HandlerId, length: usize) -> Option<&mut [u8]>;

    /// The packet is complete: the first [`OutgoingPacket::length`] bytes of the last buffer.
    fn submit(&mut self, packet: OutgoingPacket);
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A packet was processed.
    Ran(Ran),
    /// Nothing is to be done before this time, unless a message, a packet or a free buffer comes.
    Wait(Instant),
    /// Nothing is to be done until a message, a packet or a free buffer comes.
    Idle,
}

/// A packet that was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The handler.
    pub handler: HandlerId,
    /// The packet is the first of its message.
    pub begins: bool,
    /// The last packet of a message was submitted, or a message was completed.
    pub ends: bool,
    /// A preemption point follows: another handler can be next.
    pub ends_block: bool,
}

/// The state of a handler (paper RTC, figure 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerState {
    /// It has no message, or no packet that arrived.
    NoMessage,
    /// Its message has a logical arrival in the future.
    EarlyUntil(Instant),
    /// It waits for a packet buffer.
    NoBuffer,
    /// It waits until the program takes a message from the message queue.
    MessageQueueFull,
    /// It waits for the processor.
    Ready,
    /// It has the processor: its block is not finished.
    Running,
}

/// What a handler did and refused since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that were sent or completed.
    pub messages: u64,
    /// Packets that were submitted or processed.
    pub packets: u64,
    /// Messages that were dropped because the message queue was full.
    pub dropped: u64,
    /// Packets that were dropped because the packet queue was full.
    pub overflowed: u64,
    /// Packets that a stage did not accept.
    pub corrupted: u64,
    /// Packets that contradict the channel or an earlier part, by their number of parts or their
    /// length.
    pub malformed: u64,
    /// Packets that had arrived before.
    pub duplicates: u64,
    /// Packets of messages that were over: complete, or abandoned.
    pub too_late: u64,
    /// Messages that were abandoned before all of their parts had arrived.
    pub incomplete: u64,
}

/// A message that is not accepted, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendError<M> {
    /// The reason.
    pub reason: SendRefusal,
    /// The message.
    pub body: M,
}

/// The reason why a packet that arrived is not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketRefusal {
    /// The bytes are no packet of a channel.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// No receiver has the packet's channel.
    #[error("no receiver has channel {0}")]
    Foreign(ChannelId),
    /// The packet queue is full.
    #[error("the packet queue of channel {channel} is full ({most} packets)")]
    Full {
        /// The channel.
        channel: ChannelId,
        /// The receiver.
        handler: HandlerId,
        /// The largest number of queued packets.
        most: u64,
    },
}

/// The handler was closed, or belongs to another executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the handler does not exist (any more)")]
pub struct NoHandler;

impl<M: AsRef<[u8]>, P: AsRef<[u8]> + AsMut<[u8]>> Executor<M, P> {
    /// An executor without handlers.
    ///
    /// # Errors
    /// None with the present constants; the type is the scheduler's.
    pub fn new(settings: ExecutorSettings) -> Result<Executor<M, P>, OpenError> {
        // A byte is a nanosecond. The executor asks only while the processor is free, so the
        // scheduler never has to wait for it.
        let wire = Wire {
            rate: Rate::new(8_000_000_000).unwrap_or(Rate::MAX),
            overhead: Bytes(0),
            ahead: Nanos(u64::MAX),
            horizon: settings.horizon,
            early: settings.early,
            longest: Bytes(LONGEST_BLOCK.0),
        };
        Ok(Executor {
            settings,
            scheduler: Scheduler::new(wire)?,
            handlers: Vec::new(),
            senders: HashMap::new(),
            receivers: HashMap::new(),
            next_serial: 0,
            running: None,
            foreign: 0,
            invalid: 0,
        })
    }

    /// Opens a channel at its source.
    ///
    /// # Errors
    /// [`OpenError`] if the options contradict each other or the settings, or if the channel is
    /// open.
    pub fn open_sender(
        &mut self,
        options: ChannelOptions,
        now: Instant,
    ) -> Result<HandlerId, OpenError> {
        if self.senders.contains_key(&options.id) {
            return Err(OpenError::Exists(options.id));
        }
        let sizes = Sizes::of(&options, &self.settings, End::Source)?;
        let side = Side::Sending(Sending::new(&options, sizes));
        let (channel, id) = (options.id, self.insert(options, sizes, side, now)?);
        self.senders.insert(channel, id);
        Ok(id)
    }

    /// Opens a channel at its sink.
    ///
    /// # Errors
    /// As [`Executor::open_sender`].
    pub fn open_receiver(
        &mut self,
        options: ChannelOptions,
        now: Instant,
    ) -> Result<HandlerId, OpenError> {
        if self.receivers.contains_key(&options.id) {
            return Err(OpenError::Exists(options.id));
        }
        let sizes = Sizes::of(&options, &self.settings, End::Sink)?;
        let receiving = Receiving::new(&options, sizes).ok_or(OpenError::NoQueue)?;
        let side = Side::Receiving(receiving);
        let (channel, id) = (options.id, self.insert(options, sizes, side, now)?);
        self.receivers.insert(channel, id);
        Ok(id)
    }

    fn insert(
        &mut self,
        options: ChannelOptions,
        sizes: Sizes,
        side: Side<M, P>,
        now: Instant,
    ) -> Result<HandlerId, OpenError> {
        let service = options.service(&sizes, &self.settings)?;
        let flow = self.scheduler.insert(service, now)?;
        let id = HandlerId {
            flow,
            serial: self.next_serial,
        };
        self.next_serial += 1;
        if self.handlers.len() <= flow.index() {
            self.handlers.resize_with(flow.index() + 1, || None);
        }
        self.handlers[flow.index()] = Some(Handler {
            id,
            channel: options.id,
            sizes,
            stages: options.stages,
            side,
            head: None,
            counts: Counts::default(),
        });
        Ok(id)
    }

    /// Closes a channel at this end. Its queued messages and packets are discarded.
    ///
    /// # Errors
    /// [`NoHandler`] if the handler does not exist.
    pub fn close(&mut self, handler: HandlerId, now: Instant) -> Result<(), NoHandler> {
        let closed = self.handler(handler).ok_or(NoHandler)?;
        let (channel, sends) = (closed.channel, matches!(closed.side, Side::Sending(_)));
        match sends {
            true => self.senders.remove(&channel),
            false => self.receivers.remove(&channel),
        };
        self.handlers[handler.flow.index()] = None;
        self.running = self.running.filter(|(flow, _)| *flow != handler.flow);
        // The flow exists, and is neither a server nor a member.
        self.scheduler
            .remove(handler.flow, now)
            .map_err(|_| NoHandler)
    }

    /// Queues a message on a channel. It arrived at `now`, which may be before the last step.
    ///
    /// # Errors
    /// [`SendError`] with the message, if the channel does not accept it now.
    pub fn send(
        &mut self,
        handler: HandlerId,
        body: M,
        now: Instant,
    ) -> Result<Accepted, SendError<M>> {
        let Some(found) = self.handler_mut(handler) else {
            let reason = SendRefusal::NoSender;
            return Err(SendError { reason, body });
        };
        let Side::Sending(sending) = &mut found.side else {
            let reason = SendRefusal::NoSender;
            return Err(SendError { reason, body });
        };
        let accepted = sending.offer(body, now)?;
        self.wake(handler.flow, now);
        Ok(accepted)
    }

    /// Takes the gate of a sender out of the executor: from then on the caller offers messages to
    /// it, and queues those that it accepts ([`Executor::queue`]). `None` if it was taken, or if
    /// there is no such sender.
    pub fn take_gate(&mut self, handler: HandlerId) -> Option<Gate> {
        match &mut self.handler_mut(handler)?.side {
            Side::Sending(sending) => sending.take_gate(),
            Side::Receiving(_) => None,
        }
    }

    /// Queues a message that the sender's gate has accepted ([`Executor::take_gate`]).
    ///
    /// # Errors
    /// [`NoHandler`] if the sender does not exist. The message is dropped.
    pub fn queue(
        &mut self,
        handler: HandlerId,
        message: AcceptedMessage<M>,
        now: Instant,
    ) -> Result<(), NoHandler> {
        match &mut self.handler_mut(handler).ok_or(NoHandler)?.side {
            Side::Sending(sending) => sending.push(message),
            Side::Receiving(_) => return Err(NoHandler),
        }
        self.wake(handler.flow, now);
        Ok(())
    }

    /// Reports that `packets` packets of a sender have left: their buffers are free. More packets
    /// than were submitted count as those.
    ///
    /// # Errors
    /// [`NoHandler`] if the handler does not exist.
    pub fn handle_sent(
        &mut self,
        handler: HandlerId,
        packets: u64,
        now: Instant,
    ) -> Result<(), NoHandler> {
        let found = self.handler_mut(handler).ok_or(NoHandler)?;
        if let Side::Sending(sending) = &mut found.side {
            sending.handle_sent(packets);
        }
        self.wake(handler.flow, now);
        Ok(())
    }

    /// Sets since when the caller had to look for packets and free buffers but could not, for those
    /// that it reports from now on until the next step. It is the time at which it had to wake from
    /// its last wait; later than the last step, and not later than the present. After a step that
    /// processed a packet, the executor uses the time of that step, and after another step the time
    /// of each report.
    pub fn set_unread_since(&mut self, since: Instant) {
        self.scheduler.set_unread_since(since);
    }

    /// Queues a packet, which arrived and was found at `now`, for the receiver of its channel.
    ///
    /// # Errors
    /// [`PacketRefusal`], and the packet is dropped.
    pub fn handle_packet(&mut self, packet: P, now: Instant) -> Result<HandlerId, PacketRefusal> {
        self.handle_found(packet, now, now)
    }

    /// As [`Executor::handle_packet`], for a packet that arrived at the host at `stamp`
    /// ([`ReceivedMessage::arrived`]) and was found later.
    ///
    /// # Errors
    /// As [`Executor::handle_packet`].
    pub fn handle_found(
        &mut self,
        packet: P,
        stamp: Instant,
        now: Instant,
    ) -> Result<HandlerId, PacketRefusal> {
        let header = PacketHeader::decode(packet.as_ref()).inspect_err(|_| self.invalid += 1)?;
        let (channel, arrived) = (header.channel, self.scheduler.unread_since(now));
        let found = self.receivers.get(&channel).copied();
        let Some((id, handler)) = found.and_then(|id| Some((id, self.handler_mut(id)?))) else {
            self.foreign += 1;
            return Err(PacketRefusal::Foreign(channel));
        };
        let most = handler.sizes.buffers;
        let queued = match &mut handler.side {
            Side::Receiving(receiving) => receiving.push((packet, stamp), header, arrived).is_ok(),
            Side::Sending(_) => false,
        };
        if !queued {
            handler.counts.overflowed += 1;
            return Err(PacketRefusal::Full {
                channel,
                handler: id,
                most,
            });
        }
        self.wake(id.flow, now);
        Ok(id)
    }

    /// The next complete message of a receiver; `None` if there is none, or no such receiver.
    pub fn receive(&mut self, handler: HandlerId, now: Instant) -> Option<ReceivedMessage> {
        let message = match &mut self.handler_mut(handler)?.side {
            Side::Receiving(receiving) => receiving.receive(),
            Side::Sending(_) => None,
        }?;
        self.wake(handler.flow, now);
        Some(message)
    }

    /// As [`Executor::receive`], but the message keeps its place in the queue of messages until
    /// [`Executor::handle_taken`] reports that the program has taken it.
    pub fn hand_over(&mut self, handler: HandlerId) -> Option<ReceivedMessage> {
        match &mut self.handler_mut(handler)?.side {
            Side::Receiving(receiving) => receiving.hand_over(),
            Side::Sending(_) => None,
        }
    }

    /// Gives a receiver the memory of a message that the program does not need any more, for one of
    /// the next messages. No effect if there is no such receiver.
    pub fn reuse(&mut self, handler: HandlerId, message: Vec<u8>) {
        if let Some(found) = self.handler_mut(handler)
            && let Side::Receiving(receiving) = &mut found.side
        {
            receiving.reuse(message);
        }
    }

    /// Reports that the program has taken so many messages that were handed over
    /// ([`Executor::hand_over`]). More than were handed over count as those.
    ///
    /// # Errors
    /// [`NoHandler`] if the handler does not exist.
    pub fn handle_taken(
        &mut self,
        handler: HandlerId,
        messages: u64,
        now: Instant,
    ) -> Result<(), NoHandler> {
        let found = self.handler_mut(handler).ok_or(NoHandler)?;
        if let Side::Receiving(receiving) = &mut found.side {
            receiving.handle_taken(messages);
        }
        self.wake(handler.flow, now);
        Ok(())
    }

    /// Processes one packet of the handler whose turn it is.
    pub fn step(&mut self, now: Instant, transmit: &mut impl Transmit) -> Step {
        loop {
            let Some((flow, left)) = self.running.take() else {
                match self.choose(now) {
                    Some(step) => {
                        self.scheduler.set_unread_since(Instant(u64::MAX));
                        return step;
                    }
                    None => continue,
                }
            };
            let Some(handler) = self.handlers[flow.index()].as_mut() else {
                continue;
            };
            match handler.run(now, transmit) {
                Some(ran) => {
                    self.running = (left > 1).then_some((flow, left - 1));
                    self.scheduler.set_unread_since(now);
                    let ends_block = self.running.is_none();
                    return Step::Ran(Ran { ends_block, ..ran });
                }
                None => self.stall(flow, now),
            }
        }
    }

    /// Gives the processor to the handler whose turn it is. `Some` if there is none.
    fn choose(&mut self, now: Instant) -> Option<Step> {
        let (handlers, settings) = (&mut self.handlers, &self.settings);
        let mut left = 0;
        let next = self.scheduler.next(now, |flow| {
            let handler = handlers.get_mut(flow.index()).and_then(Option::as_mut)?;
            left = handler.head.take().unwrap_or(0);
            handler.plan(settings, false)
        });
        match next {
            Next::Send(departure) if left > 0 => {
                self.running = Some((departure.flow, left));
                None
            }
            Next::Send(_) => None,
            // The work of one call is bounded; there is more work.
            Next::Wait(at) if at <= now => None,
            Next::Wait(at) => Some(Step::Wait(at)),
            Next::Idle => Some(Step::Idle),
        }
    }

    /// Plans a block of a handler and gives it to the scheduler, if the scheduler has none and the
    /// handler has work.
    fn wake(&mut self, flow: FlowId, now: Instant) {
        let settings = &self.settings;
        let Some(handler) = self.handlers[flow.index()].as_mut() else {
            return;
        };
        if handler.head.is_none()
            && let Some(packet) = handler.plan(settings, true)
        {
            // The flow exists and has no head, and no block is longer than the longest packet.
            let reported = self.scheduler.handle_head(flow, packet, now);
            debug_assert_eq!(reported, Ok(()));
        }
    }

    /// A handler cannot go on with its block. It gets the processor again when it is woken.
    fn stall(&mut self, flow: FlowId, now: Instant) {
        if let Some(handler) = self.handlers[flow.index()].as_mut() {
            handler.head = None;
            match &mut handler.side {
                Side::Sending(sending) => sending.forget_plans(),
                Side::Receiving(receiving) => receiving.forget_plans(),
            }
            // The flow exists.
            let withdrawn = self.scheduler.withdraw(flow, now);
            debug_assert!(withdrawn.is_ok());
        }
    }

    /// The state of a handler.
    ///
    /// # Errors
    /// [`NoHandler`] if the handler does not exist.
    pub fn state(&self, handler: HandlerId, now: Instant) -> Result<HandlerState, NoHandler> {
        let found = self.handler(handler).ok_or(NoHandler)?;
        if self.running.is_some_and(|(flow, _)| flow == handler.flow) {
            return Ok(HandlerState::Running);
        }
        let is_planned = found.head.is_some();
        Ok(match &found.side {
            Side::Sending(sending) if sending.waiting() == 0 => HandlerState::NoMessage,
            Side::Receiving(receiving) if receiving.waiting() == 0 => HandlerState::NoMessage,
            Side::Receiving(receiving) if !is_planned && receiving.is_full() => {
                HandlerState::MessageQueueFull
            }
            Side::Sending(_) if !is_planned => HandlerState::NoBuffer,
            Side::Sending(sending) => match sending.not_before().filter(|at| *at > now) {
                Some(at) => HandlerState::EarlyUntil(at),
                None => HandlerState::Ready,
            },
            Side::Receiving(_) => HandlerState::Ready,
        })
    }

    /// The number of packet buffers of a sender, or of places in a receiver's packet queue.
    ///
    /// # Errors
    /// [`NoHandler`] if the handler does not exist.
    pub fn buffers(&self, handler: HandlerId) -> Result<u64, NoHandler> {
        let found = self.handler(handler).ok_or(NoHandler)?;
        Ok(found.sizes.buffers)
    }

    /// The largest number of messages in a handler's queue.
    ///
    /// # Errors
    /// [`NoHandler`] if the handler does not exist.
    pub fn room(&self, handler: HandlerId) -> Result<u64, NoHandler> {
        let found = self.handler(handler).ok_or(NoHandler)?;
        Ok(found.sizes.room)
    }

    /// What a handler did and refused.
    ///
    /// # Errors
    /// [`NoHandler`] if the handler does not exist.
    pub fn counts(&self, handler: HandlerId) -> Result<Counts, NoHandler> {
        let found = self.handler(handler).ok_or(NoHandler)?;
        let mut counts = found.counts;
        if let Side::Sending(sending) = &found.side {
            counts.dropped = sending.dropped();
        }
        Ok(counts)
    }

    /// Number of messages in a sender's queue, or of incomplete messages of a receiver.
    ///
    /// # Errors
    /// [`NoHandler`] if the handler does not exist.
    pub fn messages_waiting(&self, handler: HandlerId) -> Result<usize, NoHandler> {
        let found = self.handler(handler).ok_or(NoHandler)?;
        Ok(match &found.side {
            Side::Sending(sending) => sending.waiting(),
            Side::Receiving(receiving) => receiving.incomplete(),
        })
    }

    /// Packets for channels without a receiver, and packets without a valid header, since the
    /// executor was made.
    pub fn foreign_and_invalid(&self) -> (u64, u64) {
        (self.foreign, self.invalid)
    }

    fn handler(&self, id: HandlerId) -> Option<&Handler<M, P>> {
        let handler = self.handlers.get(id.flow.index())?.as_ref();
        handler.filter(|handler| handler.id == id)
    }

    fn handler_mut(&mut self, id: HandlerId) -> Option<&mut Handler<M, P>> {
        let handler = self.handlers.get_mut(id.flow.index())?.as_mut();
        handler.filter(|handler| handler.id == id)
    }
}

#[cfg(test)]
mod tests;
