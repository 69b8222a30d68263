//! The flows of a program's senders and listeners ([`Flows`]): where packets are written and read,
//! and which flows have something new. A flow that fails is reported by [`Flows::take_failure`]; no
//! call fails.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netnice_core::units::{Instant, Nanos};
use netnice_stack::{Packet, Socket, StackError, Status};

use super::super::{AdmittedChannel, Departure, Frames, ListenerShared, SourceShared};
use super::packet_bytes::PacketBytes;
use super::place;
use crate::executor::{AcceptedMessage, HandlerId, OutgoingPacket, Ran, Transmit};

/// The flows of senders and listeners.
#[derive(Default)]
pub(super) struct Flows {
    /// By the number of the handler.
    sources: Vec<Option<Source>>,
    listeners: Vec<Option<Listening>>,
    slots: HashMap<u32, FlowUse>,
    /// The senders and listeners with something new.
    noted: Vec<FlowUse>,
    /// The handlers without a flow that have something new: receivers.
    ready: Vec<usize>,
    /// The slots of flows that have ended, and for which the daemon has not said why.
    ending: Vec<u32>,
    /// The senders whose flows have failed.
    failed: Vec<(usize, StackError)>,
    /// A listener's flow has failed.
    listener_failed: bool,
    /// The sender with packets that the driver does not know of, and since when.
    unflushed: Option<(usize, Instant)>,
}

#[derive(Clone, Copy)]
enum FlowUse {
    Source(usize),
    Listener(usize),
}

/// The flow of a sender.
pub(super) struct Source {
    pub(super) handler: HandlerId,
    pub(super) socket: Socket,
    /// Held until what was queued has left.
    pub(super) admitted: AdmittedChannel,
    pub(super) shared: Arc<SourceShared>,
    messages: rtrb::Consumer<AcceptedMessage<Vec<u8>>>,
    departed: rtrb::Producer<Departure>,
    frames: Frames,
    /// A buffer that was taken and not submitted.
    packet: Option<Packet>,
    /// Bytes of the frames of the message that was submitted last, as the link counts them.
    message_bytes: u64,
    /// The message that is submitted.
    message: Option<UnderWay>,
    /// One more than the number of the packet that the driver has returned last.
    returned: u64,
    /// The messages whose last packet the driver has not returned.
    under_way: VecDeque<UnderWay>,
    /// Packets that the flow did not accept since the last call of [`Source::handle_processed`].
    refused: u64,
    is_noted: bool,
    /// When the sender ends even if messages are left. `None` until it is closed.
    pub(super) ends: Option<Instant>,
}

/// A message with packets that the driver has not returned.
#[derive(Clone, Copy)]
struct UnderWay {
    departure: Departure,
    /// The number of the packet that was queued last; `None` before the first one.
    last: Option<u64>,
    /// One of its packets did not leave.
    is_broken: bool,
}

/// The flow of a listener.
struct Listening {
    socket: Socket,
    shared: Arc<ListenerShared>,
    is_noted: bool,
}

/// The flow of a listener has ended.
struct Failed;

/// The messages to send, and those that have left.
pub(super) type SourceQueues = (
    rtrb::Consumer<AcceptedMessage<Vec<u8>>>,
    rtrb::Producer<Departure>,
);

/// What was found and is not reported to the executor yet.
#[derive(Default)]
pub(super) struct Found {
    pub(super) messages: Vec<(HandlerId, AcceptedMessage<Vec<u8>>)>,
    pub(super) packets: Vec<FoundPacket>,
    /// Packets that have left.
    pub(super) returned: Vec<(HandlerId, u64)>,
    /// When the first of all this was there.
    pub(super) since: Option<Instant>,
}

/// A packet that has arrived.
pub(super) struct FoundPacket {
    pub(super) listener: usize,
    pub(super) bytes: PacketBytes,
    /// When the driver received it.
    pub(super) stamp: Instant,
}

impl Found {
    fn note_time(&mut self, at: Instant) {
        self.since = Some(self.since.map_or(at, |since| since.min(at)));
    }
}

impl Flows {
    pub(super) fn insert_source(&mut self, source: Source) {
        let index = source.handler.index();
        let of_flow = FlowUse::Source(index);
        self.slots.insert(source.socket.slot(), of_flow);
        *place(&mut self.sources, index) = Some(source);
    }

    pub(super) fn remove_source(&mut self, index: usize) -> Option<Source> {
        let source = self.sources.get_mut(index)?.take()?;
        self.slots.remove(&source.socket.slot());
        Some(source)
    }

    pub(super) fn source(&self, index: usize) -> Option<&Source> {
        self.sources.get(index)?.as_ref()
    }

    pub(super) fn source_mut(&mut self, index: usize) -> Option<&mut Source> {
        self.sources.get_mut(index)?.as_mut()
    }

    /// A number above those of all senders' handlers.
    pub(super) fn sources(&self) -> usize {
        self.sources.len()
    }

    pub(super) fn insert_listener(&mut self, socket: Socket, shared: Arc<ListenerShared>) -> usize {
        let free = self.listeners.iter().position(Option::is_none);
        let index = free.unwrap_or(self.listeners.len());
        let slot = socket.slot();
        self.slots.insert(slot, FlowUse::Listener(index));
        *place(&mut self.listeners, index) = Some(Listening {
            socket,
            shared,
            is_noted: false,
        });
        // Packets may have arrived before.
        self.note(slot);
        index
    }

    pub(super) fn remove_listener(&mut self, index: usize, why: &str) -> Option<Socket> {
        let listening = self.listeners.get_mut(index)?.take()?;
        self.slots.remove(&listening.socket.slot());
        let _ = listening.shared.end.set(why.to_owned());
        Some(listening.socket)
    }

    /// A number above those of all listeners.
    pub(super) fn listeners(&self) -> usize {
        self.listeners.len()
    }

    /// The driver or the daemon has done something on a flow.
    pub(super) fn note(&mut self, slot: u32) {
        let Some(of_flow) = self.slots.get(&slot).copied() else {
            return;
        };
        let is_noted = match of_flow {
            FlowUse::Source(index) => self.sources[index].as_mut().map(|one| &mut one.is_noted),
            FlowUse::Listener(index) => self.listeners[index].as_mut().map(|one| &mut one.is_noted),
        };
        if let Some(is_noted) = is_noted
            && !std::mem::replace(is_noted, true)
        {
            self.noted.push(of_flow);
        }
    }

    /// The program has done something on a channel.
    pub(super) fn note_handler(&mut self, index: usize) {
        match self.source(index).map(|source| source.socket.slot()) {
            Some(slot) => self.note(slot),
            None => self.ready.push(index),
        }
    }

    pub(super) fn has_news(&self) -> bool {
        !self.noted.is_empty()
    }

    /// The number of a handler without a flow that has something new.
    pub(super) fn take_ready_handler(&mut self) -> Option<usize> {
        self.ready.pop()
    }

    /// A sender whose flow has failed, with the error.
    pub(super) fn take_failure(&mut self) -> Option<(usize, StackError)> {
        self.failed.pop()
    }

    /// Looks again at the flows that have ended.
    pub(super) fn note_ending(&mut self) {
        let ending = std::mem::take(&mut self.ending);
        ending.iter().for_each(|slot| self.note(*slot));
    }

    /// True if a flow has ended, and the daemon has not said why.
    pub(super) fn has_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// True if a listener has failed since the last call.
    pub(super) fn take_listener_failure(&mut self) -> bool {
        std::mem::take(&mut self.listener_failed)
    }

    /// Reads what the programs, the driver and the daemon did on the flows that were noted: at most
    /// [`READ_AT_ONCE`] packets of each listener. One with more packets stays noted.
    pub(super) fn read(&mut self, found: &mut Found) {
        for at in (0..self.noted.len()).rev() {
            let of_flow = self.noted[at];
            let stays = match of_flow {
                FlowUse::Source(index) => {
                    if let Some(source) = self.sources[index].as_mut() {
                        source.is_noted = false;
                        source.take_messages(found);
                        match source.take_returned(found).err() {
                            Some(error) => self.failed.push((index, error)),
                            None if source.socket.is_closed() => {
                                self.ending.push(source.socket.slot());
                            }
                            None => {}
                        }
                    }
                    false
                }
                FlowUse::Listener(index) => {
                    let read = match self.listeners[index].as_mut() {
                        Some(listening) => listening.read(index, found),
                        None => Ok(false),
                    };
                    if let Some(listening) = &self.listeners[index]
                        && listening.socket.is_closed()
                        && read.is_ok()
                    {
                        self.ending.push(listening.socket.slot());
                    }
                    read.unwrap_or_else(|Failed| {
                        self.listener_failed = true;
                        false
                    })
                }
            };
            if !stays {
                self.noted.swap_remove(at);
            }
        }
    }

    /// A packet of a sender was processed, in a step that began at `now`. Returns the number of
    /// packets that the flow did not accept, which the driver therefore never returns.
    ///
    /// The driver is told of all packets up to a preemption point together, because it may sleep
    /// and waking it takes a system call; but at most [`LONGEST_UNFLUSHED`] after the first of
    /// them.
    pub(super) fn handle_processed(&mut self, ran: &Ran, now: Instant) -> u64 {
        let index = ran.handler.index();
        let since = match self.unflushed {
            Some((other, since)) if other == index => since,
            _ => {
                self.flush();
                now
            }
        };
        self.unflushed = Some((index, since));
        if ran.ends_block || ran.ends || super::now().since(since) >= LONGEST_UNFLUSHED {
            self.flush();
        }
        let source = self.source_mut(index);
        source.map_or(0, |source| source.handle_processed(ran.ends))
    }

    /// Tells the driver of all packets.
    pub(super) fn flush(&mut self) {
        if let Some((index, _)) = self.unflushed.take()
            && let Some(source) = self.source_mut(index)
        {
            source.socket.flush();
        }
    }

    pub(super) fn count_foreign(&self, listener: usize) {
        self.count(listener, |shared| &shared.foreign);
    }

    pub(super) fn count_invalid(&self, listener: usize) {
        self.count(listener, |shared| &shared.invalid);
    }

    fn count(&self, listener: usize, counter: impl FnOnce(&ListenerShared) -> &AtomicU64) {
        if let Some(Some(listening)) = self.listeners.get(listener) {
            counter(&listening.shared).fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Transmit for Flows {
    fn buffer(&mut self, handler: HandlerId, _length: usize) -> Option<&mut [u8]> {
        let source = self.sources.get_mut(handler.index())?.as_mut()?;
        if source.packet.is_none() {
            match source.socket.packet() {
                Ok(packet) => source.packet = Some(packet),
                Err(StackError::WouldBlock) => return None,
                Err(error) => {
                    self.failed.push((handler.index(), error));
                    return None;
                }
            }
        }
        let packet = source.packet.as_ref()?;
        source.socket.payload_mut(packet).ok()
    }

    fn submit(&mut self, packet: OutgoingPacket) {
        if let Some(source) = self.source_mut(packet.handler.index()) {
            source.submit(&packet);
        }
    }
}

impl Source {
    pub(super) fn new(
        handler: HandlerId,
        (socket, admitted): (Socket, AdmittedChannel),
        shared: Arc<SourceShared>,
        (messages, departed): SourceQueues,
        frames: Frames,
    ) -> Source {
        Source {
            handler,
            socket,
            admitted,
            shared,
            messages,
            departed,
            frames,
            packet: None,
            message_bytes: 0,
            message: None,
            returned: 0,
            under_way: VecDeque::new(),
            refused: 0,
            is_noted: false,
            ends: None,
        }
    }

    /// No message is queued before the executor, and the driver has returned all packets.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.socket.under_way() == 0
    }

    fn take_messages(&mut self, found: &mut Found) {
        while let Ok(message) = self.messages.pop() {
            found.note_time(message.accepted().logical);
            found.messages.push((self.handler, message));
        }
    }

    /// Takes back the packets that have left. Fails if the flow has ended.
    fn take_returned(&mut self, found: &mut Found) -> Result<(), StackError> {
        let (mut packets, mut unsent) = (0, 0);
        let ended = loop {
            match self.socket.outcome() {
                Ok(Some(outcome)) => {
                    packets += 1;
                    unsent += u64::from(outcome.status != Status::DONE);
                    if outcome.status == Status::DONE {
                        found.note_time(Instant(outcome.stamp));
                    }
                    self.judge(outcome.number, outcome.status, outcome.stamp);
                }
                Ok(None) | Err(StackError::WouldBlock) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if packets == 0 {
            // The calls fail only if they need something of the driver.
            return ended.and(self.socket.end_reason().map_or(Ok(()), Err));
        }
        found.returned.push((self.handler, packets));
        self.shared.unsent.fetch_add(unsent, Ordering::Relaxed);
        self.shared.returned.fetch_add(packets, Ordering::Release);
        self.shared.waker.wake();
        ended
    }

    /// A packet has left, or not. Reports the message that ends with it.
    fn judge(&mut self, number: u64, status: Status, stamp: u64) {
        let first = self.under_way.front_mut();
        if let Some(message) = first.or(self.message.as_mut()) {
            message.is_broken |= status != Status::DONE;
        }
        self.returned = self.returned.max(number + 1);
        self.report_finished(Some(Instant(stamp)));
    }

    /// Reports the messages under way of which the driver has returned all packets, the last one at
    /// `left`.
    fn report_finished(&mut self, left: Option<Instant>) {
        let returned = self.returned;
        let is_finished = |message: &UnderWay| message.last.is_none_or(|last| last < returned);
        while let Some(message) = self.under_way.front().copied().filter(is_finished) {
            self.under_way.pop_front();
            self.report(message, left.filter(|_| !message.is_broken));
        }
    }

    fn report(&mut self, message: UnderWay, left: Option<Instant>) {
        let departure = Departure {
            left,
            ..message.departure
        };
        match (departure.laxity(), departure.deadline) {
            (Some(laxity), _) => self.shared.meter.count(laxity, false),
            (None, Some(_)) => self.shared.meter.count_lost(),
            (None, None) => {}
        }
        // A program that does not read them loses the later ones.
        let _ = self.departed.push(departure);
    }

    /// Queues the packet that was written. A message on the link has at most Mmax of the flow: what
    /// is longer goes on as a further message, 1/Rmax later, as the executor counts it too.
    fn submit(&mut self, packet: &OutgoingPacket) {
        let Some(buffer) = self.packet.take() else {
            return;
        };
        let frame = self.frames.headers + packet.length as u64;
        let bytes = self.message_bytes + frame;
        let continues = packet.part > 0 && bytes <= self.frames.mmax;
        let queued = if continues {
            self.socket.queue_continuation(buffer, packet.length)
        } else {
            self.socket.set_arrival(Some(packet.logical.0));
            self.socket.queue(buffer, packet.length)
        };
        self.message_bytes = if continues { bytes } else { frame };
        let message = self.message.get_or_insert(UnderWay {
            departure: Departure {
                message: packet.message,
                logical: packet.logical,
                deadline: packet.deadline,
                left: None,
            },
            last: None,
            is_broken: false,
        });
        match queued {
            Ok(number) => {
                message.last = Some(number);
                self.shared.submitted.fetch_add(1, Ordering::Relaxed);
            }
            Err((buffer, _)) => {
                message.is_broken = true;
                self.packet = Some(buffer);
                self.refused += 1;
                self.shared.unsent.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The executor has processed a packet; with `ends` the last one of a message. Returns the
    /// number of packets that the flow did not accept.
    fn handle_processed(&mut self, ends: bool) -> u64 {
        if ends {
            self.under_way.extend(self.message.take());
            // The driver has returned all packets already, if it did not get the last ones.
            self.report_finished(None);
            self.shared.left.fetch_add(1, Ordering::Release);
            self.shared.waker.wake();
        }
        std::mem::take(&mut self.refused)
    }
}

impl Listening {
    /// Reads packets. True if there can be more. Fails if the flow has ended.
    fn read(&mut self, index: usize, found: &mut Found) -> Result<bool, Failed> {
        let mut more = true;
        for _ in 0..READ_AT_ONCE {
            let datagram = match self.socket.receive() {
                Ok(datagram) => datagram,
                Err(StackError::WouldBlock) => {
                    more = false;
                    break;
                }
                Err(error) => {
                    let _ = self.shared.end.set(error.to_string());
                    self.is_noted = false;
                    return Err(Failed);
                }
            };
            let stamp = Instant(datagram.stamp);
            found.note_time(stamp);
            if let Ok(payload) = self.socket.payload(&datagram) {
                found.packets.push(FoundPacket {
                    listener: index,
                    bytes: PacketBytes::copy_of(payload),
                    stamp,
                });
            }
            self.shared.packets.fetch_add(1, Ordering::Relaxed);
            // It fails only if the flow has ended, which the next call says.
            let _ = self.socket.release(datagram);
        }
        self.socket.flush();
        self.shared
            .lost
            .store(self.socket.lost_total(), Ordering::Relaxed);
        self.is_noted = more;
        Ok(more)
    }
}

/// For how long packets are kept from the driver at most: as long as it takes to wake it a few
/// times.
const LONGEST_UNFLUSHED: Nanos = Nanos::from_micros(20);

/// How many packets of a listener are read before the next packet is processed. More than one,
/// because the executor chooses best if it knows all packets; not all, because a flood of packets
/// of no channel must not keep the handlers from the processor.
const READ_AT_ONCE: usize = 16;
