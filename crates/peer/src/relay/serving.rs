//! The relay's thread ([`Serving`]): reads packets, collects them to messages, and sends those that
//! are whole. It never waits for the daemon: the control thread (`super::control`) opens flows and
//! hands them over by [`Command`]s, and closes those that it gets back. A flow that fails ends its
//! channels with [`RelayResult::Lost`]; the others continue.
//!
//! Reading the daemon's notifications can wait for a thread that makes a request. So the control
//! thread reads them ([`ControlCommand::Look`]), and passes them on behind the channels that they
//! are about.
//!
//! Before a sleep the thread arms the doorbells of all attachments ([`Program::arm`]), and sleeps
//! only if nothing has come since it looked. Commands make their descriptor readable until they are
//! taken. So no wake-up is lost. What the thread finds after a sleep shows whether it woke in time
//! (`super::stops`).

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use netnice_channel::{ChannelId, PacketHeader};
use netnice_core::units::{Instant, Nanos};
use netnice_stack::{FlowNotification, Program, StackError, monotonic_ns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::sync::mpsc::UnboundedSender;

use super::channels::{Listening, RelayedChannel};
use super::control::{ControlCommand, Lease};
use super::inbox::Inbox;
use super::stops::RelayStops;
use super::{ListenerCounts, RelayResult};
use crate::message::Reason;
use crate::signalling::HoldId;

/// A command of the control thread.
pub(super) enum Command {
    /// Serve the attachment with this number, until it ends.
    Attach(u64, Program),
    /// Read the packets that arrive at a port.
    Listen(u64, Box<Listening<Lease>>),
    /// Read them no more, and give the flow back.
    Unlisten(u64),
    /// Pass the messages of a channel on.
    Add(Box<RelayedChannel<Lease>>),
    /// Pass them on no more, and give the flow back.
    Remove(HoldId),
    /// The daemon has sent this about an attachment.
    Notification(u64, FlowNotification),
    /// End the thread.
    End,
}

/// The counts of all listeners.
#[derive(Debug, Default)]
pub(super) struct SharedListenerCounts {
    foreign: AtomicU64,
    invalid: AtomicU64,
    lost: AtomicU64,
}

impl SharedListenerCounts {
    pub(super) fn load(&self) -> ListenerCounts {
        ListenerCounts {
            foreign: self.foreign.load(Ordering::Relaxed),
            invalid: self.invalid.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}

/// The state of the thread.
pub(super) struct Serving {
    commands: Inbox<Command>,
    control: Sender<ControlCommand>,
    results: UnboundedSender<RelayResult>,
    counts: Arc<SharedListenerCounts>,
    programs: BTreeMap<u64, Program>,
    listeners: HashMap<u64, Listening<Lease>>,
    channels: HashMap<ChannelId, RelayedChannel<Lease>>,
    holds: HashMap<HoldId, ChannelId>,
    /// By attachment and slot.
    slots: HashMap<(u64, u32), FlowUse>,
    /// The flows with something new.
    noted: Vec<FlowUse>,
    /// The flows that have ended, and for which the daemon has not said why.
    ending: Vec<FlowUse>,
    /// What the listeners that were closed had lost.
    lost_before: u64,
    /// When the daemon's connections are looked at next, if the thread does not sleep.
    next_poll: Instant,
    /// When the control thread may be asked next to read notifications.
    next_look: Instant,
    /// There may be notifications.
    look_is_due: bool,
    stops: RelayStops,
    /// When the thread found something last.
    woken: Instant,
    ends: bool,
}

/// What a flow is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowUse {
    Channel(ChannelId),
    Listener(u64),
}

impl Serving {
    pub(super) fn new(
        commands: Inbox<Command>,
        control: Sender<ControlCommand>,
        results: UnboundedSender<RelayResult>,
        counts: Arc<SharedListenerCounts>,
        stops: RelayStops,
    ) -> Serving {
        Serving {
            commands,
            control,
            results,
            counts,
            programs: BTreeMap::new(),
            listeners: HashMap::new(),
            channels: HashMap::new(),
            holds: HashMap::new(),
            slots: HashMap::new(),
            noted: Vec::new(),
            ending: Vec::new(),
            lost_before: 0,
            next_poll: Instant(0),
            next_look: Instant(0),
            look_is_due: false,
            stops,
            woken: Instant(0),
            ends: false,
        }
    }

    /// Serves until the command to end.
    pub(super) fn run(mut self) {
        self.stops.begin();
        loop {
            self.take_commands();
            if self.ends {
                return;
            }
            self.work();
            self.stops.handle_worked(Instant(monotonic_ns()));
            if !self.noted.is_empty() {
                self.poll_driver();
            } else if let Err(error) = self.sleep() {
                let text = format!("the relay's thread cannot sleep: {error}");
                let all: Vec<ChannelId> = self.channels.keys().copied().collect();
                all.iter().for_each(|channel| self.lose(*channel, &text));
                return;
            }
        }
    }

    fn take_commands(&mut self) {
        self.commands.clear();
        while let Some(command) = self.commands.next() {
            match command {
                Command::Attach(number, program) => {
                    self.programs.insert(number, program);
                }
                Command::Listen(number, listening) => self.listen(number, *listening),
                Command::Unlisten(number) => {
                    if let Some(listening) = self.remove_listener(number) {
                        let (socket, lease) = (Box::new(listening.socket), listening.lease);
                        self.give_back(ControlCommand::Closed { socket, lease });
                    }
                }
                Command::Add(channel) => self.add(*channel),
                Command::Remove(hold) => {
                    let channel = self.holds.get(&hold).copied();
                    if let Some(entry) = channel.and_then(|channel| self.remove(channel)) {
                        let (socket, lease) = (Box::new(entry.socket), entry.lease);
                        self.give_back(ControlCommand::Closed { socket, lease });
                    }
                }
                Command::Notification(number, notification) => {
                    self.handle_notification(number, notification);
                }
                Command::End => self.ends = true,
            }
        }
    }

    fn listen(&mut self, number: u64, listening: Listening<Lease>) {
        let slot = (listening.attachment, listening.socket.slot());
        self.slots.insert(slot, FlowUse::Listener(number));
        self.listeners.insert(number, listening);
        // Packets may have arrived before.
        self.note(FlowUse::Listener(number));
    }

    fn add(&mut self, channel: RelayedChannel<Lease>) {
        let id = channel.channel;
        // The control thread removes a channel before it adds another one with its identifier.
        self.lose(id, "its identifier is in use for another channel now");
        let slot = (channel.attachment, channel.socket.slot());
        self.slots.insert(slot, FlowUse::Channel(id));
        self.holds.insert(channel.hold, id);
        self.channels.insert(id, channel);
        self.note(FlowUse::Channel(id));
    }

    fn remove(&mut self, channel: ChannelId) -> Option<RelayedChannel<Lease>> {
        let entry = self.channels.remove(&channel)?;
        self.holds.remove(&entry.hold);
        self.slots.remove(&(entry.attachment, entry.socket.slot()));
        Some(entry)
    }

    fn remove_listener(&mut self, number: u64) -> Option<Listening<Lease>> {
        let listening = self.listeners.remove(&number)?;
        let slot = (listening.attachment, listening.socket.slot());
        self.slots.remove(&slot);
        self.lost_before += listening.socket.lost_total();
        Some(listening)
    }

    /// Gives the control thread a command: a flow to close, mostly.
    fn give_back(&self, command: ControlCommand) {
        // That thread ends after this one.
        let _ = self.control.send(command);
    }

    /// Ends a channel, if there is one, and reports that.
    fn lose(&mut self, channel: ChannelId, why: &str) {
        if let Some(entry) = self.remove(channel) {
            let (hold, reason) = (entry.hold, Reason::new(why));
            let (socket, lease) = (Box::new(entry.socket), entry.lease);
            // The flow is closed before the control thread gets a request that this result causes.
            self.give_back(ControlCommand::Closed { socket, lease });
            let _ = self.results.send(RelayResult::Lost { hold, reason });
        }
    }

    /// Ends a listener and its channels.
    fn lose_listener(&mut self, number: u64, why: &str) {
        if let Some(listening) = self.remove_listener(number) {
            let (socket, lease) = (Box::new(listening.socket), listening.lease);
            self.give_back(ControlCommand::ListenerEnded {
                number,
                socket,
                lease,
            });
        }
        let theirs = self.channels.values();
        let theirs = theirs.filter(|one| one.listener == number);
        let theirs: Vec<ChannelId> = theirs.map(|one| one.channel).collect();
        let text = format!("the port at which its packets arrive is closed: {why}");
        theirs.iter().for_each(|channel| self.lose(*channel, &text));
    }

    /// Ends all that uses an attachment that is over.
    fn lose_attachment(&mut self, attachment: u64, why: &str) {
        self.programs.remove(&attachment);
        let theirs = self
            .channels
            .values()
            .filter(|one| one.attachment == attachment);
        let theirs: Vec<ChannelId> = theirs.map(|one| one.channel).collect();
        theirs.iter().for_each(|channel| self.lose(*channel, why));
        let theirs = self
            .listeners
            .iter()
            .filter(|(_, one)| one.attachment == attachment);
        let theirs: Vec<u64> = theirs.map(|(number, _)| *number).collect();
        theirs
            .iter()
            .for_each(|number| self.lose_listener(*number, why));
    }

    fn note(&mut self, flow: FlowUse) {
        let is_noted = match flow {
            FlowUse::Channel(channel) => {
                let entry = self.channels.get_mut(&channel);
                entry.map(|entry| &mut entry.is_noted)
            }
            FlowUse::Listener(number) => {
                let entry = self.listeners.get_mut(&number);
                entry.map(|entry| &mut entry.is_noted)
            }
        };
        if let Some(is_noted) = is_noted
            && !std::mem::replace(is_noted, true)
        {
            self.noted.push(flow);
        }
    }

    fn note_slots(&mut self, slots: Vec<(u64, u32)>) {
        for slot in slots {
            if let Some(flow) = self.slots.get(&slot).copied() {
                self.note(flow);
            }
        }
    }

    /// Looks at the flows that were noted: at most [`READ_AT_ONCE`] packets of each listener.
    fn work(&mut self) {
        // A listener notes channels.
        let mut noted = std::mem::take(&mut self.noted);
        let mut at = 0;
        while at < noted.len() {
            match noted[at] {
                FlowUse::Listener(number) => self.read(number),
                FlowUse::Channel(channel) => self.send(channel),
            }
            at += 1;
            let is_channel = |flow: &FlowUse| matches!(flow, FlowUse::Channel(_));
            // A listener with more packets waits for the next iteration, its channels do not.
            noted.extend(self.noted.extract_if(.., |flow| is_channel(flow)));
        }
    }

    fn send(&mut self, channel: ChannelId) {
        let Some(entry) = self.channels.get_mut(&channel) else {
            return;
        };
        entry.is_noted = false;
        match entry.send(self.stops.recent()) {
            Ok(()) if entry.is_ending() => self.ending.push(FlowUse::Channel(channel)),
            Ok(()) => {}
            Err(error) => self.lose(channel, &error.to_string()),
        }
    }

    fn read(&mut self, number: u64) {
        let Some(listening) = self.listeners.get_mut(&number) else {
            return;
        };
        listening.is_noted = false;
        let (mut more, mut ended) = (true, None);
        let mut noted = Vec::new();
        for _ in 0..READ_AT_ONCE {
            let datagram = match listening.socket.receive() {
                Ok(datagram) => datagram,
                Err(StackError::WouldBlock) => {
                    more = false;
                    break;
                }
                Err(error) => {
                    ended = Some(error);
                    break;
                }
            };
            self.stops.note_packet(Instant(datagram.stamp));
            let from = datagram.from().ip();
            if let Ok(packet) = listening.socket.payload(&datagram) {
                match PacketHeader::decode(packet) {
                    Err(_) => {
                        self.counts.invalid.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(header) => {
                        let entry = self.channels.get_mut(&header.channel);
                        let own = |entry: &&mut RelayedChannel<Lease>| {
                            entry.listener == number && entry.from == from
                        };
                        match entry.filter(own) {
                            None => {
                                self.counts.foreign.fetch_add(1, Ordering::Relaxed);
                            }
                            Some(entry) => {
                                entry.accept(&header, packet, Instant(datagram.stamp));
                                noted.push(FlowUse::Channel(header.channel));
                            }
                        }
                    }
                }
            }
            // It fails only if the flow has ended, which the next call says.
            let _ = listening.socket.release(datagram);
        }
        listening.socket.flush();
        let is_ending = listening.socket.is_closed();
        noted.into_iter().for_each(|flow| self.note(flow));
        match ended {
            Some(error) => self.lose_listener(number, &error.to_string()),
            None if more => self.note(FlowUse::Listener(number)),
            None if is_ending => self.ending.push(FlowUse::Listener(number)),
            None => {}
        }
    }

    /// Looks for what has come while the thread does not sleep.
    fn poll_driver(&mut self) {
        let now = Instant(monotonic_ns());
        if now >= self.next_poll {
            return self.poll(now);
        }
        let mut slots = Vec::new();
        for (number, program) in &self.programs {
            program.poll_driver(|slot| slots.push((*number, slot)));
        }
        self.note_slots(slots);
    }

    /// Looks for what the drivers and the daemon have done.
    fn poll(&mut self, now: Instant) {
        self.next_poll = now.after(POLL_INTERVAL);
        let mut slots = Vec::new();
        for (number, program) in &self.programs {
            program.poll(|slot| slots.push((*number, slot)));
        }
        self.handle_polled(slots, now);
    }

    /// As [`Serving::poll`] after a sleep in which these programs were readable, in their order.
    fn poll_woken(&mut self, readable: &[bool], now: Instant) {
        let mut slots = Vec::new();
        let readable = readable.iter().copied().chain(std::iter::repeat(false));
        for ((number, program), is_readable) in self.programs.iter().zip(readable) {
            program.poll_woken(is_readable, |slot| slots.push((*number, slot)));
        }
        self.handle_polled(slots, now);
    }

    /// These flows have something new.
    fn handle_polled(&mut self, slots: Vec<(u64, u32)>, now: Instant) {
        self.note_slots(slots);
        for flow in std::mem::take(&mut self.ending) {
            self.note(flow);
        }
        self.look_is_due = true;
        if now >= self.next_look {
            self.look_is_due = false;
            self.next_look = now.after(POLL_INTERVAL);
            self.give_back(ControlCommand::Look);
        }
        let lost = self.listeners.values().map(|one| one.socket.lost_total());
        let lost = self.lost_before + lost.sum::<u64>();
        self.counts.lost.store(lost, Ordering::Relaxed);
    }

    /// A flow that gets less than its contract grants, or whose link is down, keeps no bound. After
    /// the end of the driver no flow of its attachment is left.
    fn handle_notification(&mut self, attachment: u64, notification: FlowNotification) {
        let (flow, why) = match notification {
            FlowNotification::Degraded { flow, why } if !why.is_empty() => (Some(flow), why),
            FlowNotification::Link { up: false } => {
                let iface = self.programs.get(&attachment).and_then(Program::iface);
                (None, format!("link {} is down", iface.unwrap_or("?")))
            }
            FlowNotification::Ended { why } => return self.lose_attachment(attachment, &why),
            _ => return,
        };
        let is_concerned = |one: &&RelayedChannel<Lease>| {
            one.attachment == attachment && flow.is_none_or(|flow| one.socket.id() == Some(flow))
        };
        let theirs = self.channels.values().filter(is_concerned);
        let theirs: Vec<ChannelId> = theirs.map(|one| one.channel).collect();
        theirs.iter().for_each(|channel| self.lose(*channel, &why));
    }

    /// Sleeps until something is to be done. Fails if the system call fails.
    ///
    /// A thread that found something sleeps for [`APART`] without being woken: in a burst every
    /// packet that arrives, and every one that leaves, would wake it, which costs more than passing
    /// it on.
    fn sleep(&mut self) -> std::io::Result<()> {
        let now = Instant(monotonic_ns());
        let next = self.woken.after(APART);
        if now < next {
            std::thread::sleep(Duration::from_nanos(next.since(now).0));
            self.poll_driver();
            if !self.noted.is_empty() {
                self.woken = Instant(monotonic_ns());
                return Ok(());
            }
        }
        let mut may_sleep = true;
        for program in self.programs.values() {
            may_sleep &= program.arm();
        }
        let (mut slept, mut readable) = (Ok(()), Vec::new());
        if may_sleep {
            let programs = self.programs.values().map(AsFd::as_fd);
            let fds = programs.chain([self.commands.as_fd()]);
            let mut fds: Vec<PollFd<'_>> = fds
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let longest = match (self.ending.is_empty(), self.look_is_due) {
                (false, _) => Some(POLL_INTERVAL),
                (true, true) => Some(self.next_look.since(Instant(monotonic_ns()))),
                (true, false) => None,
            };
            let longest = longest.map(|longest| Timespec {
                tv_sec: 0,
                // At most `POLL_INTERVAL`.
                tv_nsec: longest.0.min(POLL_INTERVAL.0) as i64,
            });
            let began = Instant(monotonic_ns());
            slept = match poll(&mut fds, longest.as_ref()) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(error) => Err(error.into()),
            };
            readable = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            self.stops.handle_slept(began, Instant(monotonic_ns()));
        }
        self.woken = Instant(monotonic_ns());
        self.poll_woken(&readable, self.woken);
        slept
    }
}

/// How many packets of a listener are read before the channels send. One listener with a flood of
/// packets must not keep the other channels waiting.
const READ_AT_ONCE: usize = 64;
/// The shortest time between two times at which the thread wakes.
const APART: Nanos = Nanos::from_micros(250);
/// How often the daemon's connections are looked at while the thread does not sleep, how often its
/// notifications are read, and the longest sleep while flows have ended without a reason.
const POLL_INTERVAL: Nanos = Nanos::from_millis(100);
