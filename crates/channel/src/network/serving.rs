//! The thread of a [`Network`](super::Network): replies to netnice-peer, and tells the ends of
//! channels. It ends with the last user of the network, or with the connection to netnice-peer,
//! which ends all channels.
//!
//! Holding and opening wait for netniced in this thread, so one channel after the other. Requests
//! of programs wait for their answers elsewhere, so many can be asked for at once.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use netnice_api::channels::{
    CloseChannel, CountHop, CountedHop, EndOfHold, Ended, Established as EstablishedDoc,
    FromProgram, HeldBound, HoldBound, Listen, NotHeld, OpenChannel, OpenRefused, Pong, RelaxBound,
    Relaxed, ToProgram, reason_for_others,
};
use netnice_core::contract::Channel;
use netnice_core::units::Nanos;
use netnice_stack::RuntimeDir;

use super::connection::Connection;
use super::ends::{Ends, HeldSink, HeldSource};
use super::{
    Command, Established, Hop, IncomingChannel, ListenCommand, NetworkError, NetworkOptions,
    OpenCommand, OutgoingChannel, Owner,
};
use crate::commands::CommandQueue;
use crate::error::ChannelError;
use crate::handler_thread::{SinkShared, SourceShared};
use crate::header::ChannelId;
use crate::receiver::{Listener, Receiver};
use crate::sender::Sender;
use crate::waker::sleep;

/// The state of the thread.
pub(super) struct Serving {
    queue: Arc<CommandQueue<Command>>,
    owner: Weak<Owner>,
    connection: Connection,
    ends: Ends,
    /// Channels that are asked for, until the answer.
    opening: HashMap<ChannelId, OpenCommand>,
    /// Services that are asked for, until the answer.
    offering: HashMap<String, ListenCommand>,
    services: HashMap<String, ListenCommand>,
    /// By the number of the hold.
    holds: HashMap<u64, Hold>,
    next_look: Instant,
    /// When netnice-peer was heard last.
    heard: Instant,
}

/// A hold, and the channel that it becomes.
struct Hold {
    channel: ChannelId,
    state: State,
}

enum State {
    HeldSource(Box<HeldSource>),
    HeldSink {
        held: Box<HeldSink>,
        service: String,
    },
    /// Opened at this end, and not established yet.
    Source(Box<Sender>),
    Sink {
        receiver: Box<Receiver>,
        port: Listener,
        service: String,
        contract: Channel,
    },
    /// Established: the program has it.
    UsedSource(Arc<SourceShared>),
    UsedSink {
        shared: Arc<SinkShared>,
        port: Listener,
    },
    /// Reported as lost, or closed by the program.
    Over,
}

impl Serving {
    pub(super) fn new(
        dir: RuntimeDir,
        options: NetworkOptions,
        connection: Connection,
        (queue, owner): (Arc<CommandQueue<Command>>, Weak<Owner>),
    ) -> Serving {
        Serving {
            queue,
            owner,
            connection,
            ends: Ends::new(dir, options),
            opening: HashMap::new(),
            offering: HashMap::new(),
            services: HashMap::new(),
            holds: HashMap::new(),
            next_look: Instant::now() + LOOK,
            heard: Instant::now(),
        }
    }

    /// Serves until the owner is gone, or the connection has ended.
    pub(super) fn run(mut self) {
        let why = loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => break "it was closed".to_owned(),
                Err(NetworkError::Ended(why)) => break why,
                Err(error) => break error.to_string(),
            }
        };
        self.queue.end(&why);
        for hold in self.holds.values() {
            hold.end(&format!("the connection to netnice-peer has ended: {why}"));
        }
        // The channels that are asked for end with their commands, after the reason is set.
        for (_, open) in self.opening.drain() {
            let _ = open.reply.send(Err(NetworkError::Ended(why.clone())));
        }
    }

    /// Waits for a message, a command or the time to look at the channels, and handles it. False if
    /// the owner is gone.
    fn turn(&mut self) -> Result<bool, NetworkError> {
        while let Some(command) = self.queue.next() {
            match command {
                Command::End => return Ok(false),
                other => self.handle_command(other)?,
            }
        }
        while let Some(message) = self.connection.next()? {
            self.handle_message(message)?;
        }
        if Instant::now() >= self.next_look {
            self.next_look = Instant::now() + LOOK;
            self.report_lost()?;
        }
        self.queue.waker().prepare_sleep();
        let mut readable = false;
        if self.queue.is_empty() {
            let left = self.next_look.saturating_duration_since(Instant::now());
            let fds = [self.connection.as_fd(), self.queue.waker().as_fd()];
            sleep(fds, Some(left)).map_err(ChannelError::from)?;
            readable = is_readable(&self.connection)?;
            if !readable && self.heard.elapsed() > SILENCE {
                let why = format!("it has been silent for {} s", SILENCE.as_secs());
                return Err(NetworkError::Ended(why));
            }
        }
        self.queue.waker().end_sleep();
        if readable {
            self.connection.read()?;
            self.heard = Instant::now();
        }
        Ok(true)
    }

    fn handle_command(&mut self, command: Command) -> Result<(), NetworkError> {
        match command {
            Command::Open(open) => self.ask_for(*open),
            Command::Listen(listen) => {
                let service = listen.service.clone();
                if self.offering.contains_key(&service) || self.services.contains_key(&service) {
                    let reason = "this program offers it already".to_owned();
                    let refused = NetworkError::NotListening { service, reason };
                    let _ = listen.reply.send(Err(refused));
                    return Ok(());
                }
                self.offering.insert(service.clone(), *listen);
                self.connection
                    .send(&FromProgram::Listen(Listen { service }))
            }
            Command::Close(channel) => self.close(channel, "its program has closed it"),
            Command::EndService(service) => {
                self.services.remove(&service);
                self.connection
                    .send(&FromProgram::EndService(Listen { service }))
            }
            Command::End => Ok(()),
        }
    }

    /// Asks for a channel of this program.
    fn ask_for(&mut self, open: OpenCommand) -> Result<(), NetworkError> {
        let channel = open.request.options.id;
        let contract = match self.ends.contract(&open.request.options) {
            Ok(contract) => contract,
            Err(error) => {
                let _ = open.reply.send(Err(error.into()));
                return Ok(());
            }
        };
        let ask = FromProgram::Open(OpenChannel {
            channel: channel.to_string(),
            service: open.request.service.clone(),
            sink: open.request.host.clone(),
            contract,
        });
        if self.opening.contains_key(&channel) {
            let error = ChannelError::from(crate::OpenError::Exists(channel));
            let _ = open.reply.send(Err(error.into()));
            return Ok(());
        }
        self.opening.insert(channel, open);
        self.connection.send(&ask)
    }

    fn handle_message(&mut self, message: ToProgram) -> Result<(), NetworkError> {
        match message {
            ToProgram::Ping(_) => self.connection.send(&FromProgram::Pong(Pong {})),
            ToProgram::Hold(hold) => self.hold(*hold),
            ToProgram::Relax(relax) => self.relax(relax),
            ToProgram::Release(release) => {
                // The end of an established channel follows, with its reason.
                let hold = self.holds.get(&release.hold);
                if !hold.is_some_and(Hold::is_established) {
                    self.holds.remove(&release.hold);
                }
                Ok(())
            }
            ToProgram::Opened(opened) => {
                self.establish_source(opened);
                Ok(())
            }
            ToProgram::Accepted(accepted) => self.establish_sink(accepted),
            ToProgram::OpenRefused(refused) => {
                self.refuse(refused);
                Ok(())
            }
            ToProgram::Ended(ended) => {
                self.end(&ended);
                Ok(())
            }
            ToProgram::Listening(listening) => {
                if let Some(listen) = self.offering.remove(&listening.service) {
                    let _ = listen.reply.send(Ok(listening.host));
                    self.services.insert(listening.service, listen);
                }
                Ok(())
            }
            ToProgram::NotListening(refused) => {
                if let Some(listen) = self.offering.remove(&refused.service) {
                    let _ = listen.reply.send(Err(NetworkError::NotListening {
                        service: refused.service,
                        reason: refused.reason,
                    }));
                }
                Ok(())
            }
            ToProgram::Count(ask) => self.count(&ask),
            // They are asked for over connections of their own.
            ToProgram::Channels(_) | ToProgram::Explained(_) | ToProgram::NotExplained(_) => Ok(()),
        }
    }

    /// Holds the bound of an end, and replies.
    fn hold(&mut self, ask: HoldBound) -> Result<(), NetworkError> {
        let number = ask.hold;
        let reply = match self.try_hold(ask) {
            Ok((hold, held)) => {
                self.holds.insert(number, hold);
                FromProgram::Held(held)
            }
            Err(reason) => FromProgram::NotHeld(NotHeld {
                hold: number,
                reason,
            }),
        };
        self.connection.send(&reply)
    }

    fn try_hold(&mut self, ask: HoldBound) -> Result<(Hold, HeldBound), String> {
        let channel: ChannelId = ask.channel.parse().map_err(text)?;
        let hold = ask.hold;
        let Some(arrival) = ask.arrival else {
            let opening = self.opening.get_mut(&channel);
            let opening = opening.ok_or("its program does not ask for this channel")?;
            let empty = crate::ChannelOptions::new(channel, opening.request.options.class);
            let options = std::mem::replace(&mut opening.request.options, empty);
            let held = self.ends.hold_source(options, ask.sink_address);
            let held = held.map_err(text)?;
            let bound_ns = held.bound.0;
            let way = Some(held.way);
            let state = State::HeldSource(Box::new(held));
            let reply = HeldBound {
                hold,
                bound_ns,
                way,
            };
            return Ok((Hold { channel, state }, reply));
        };
        let service = self.services.get(&ask.service);
        let service = service.ok_or("its program has ended the service")?;
        let of_service = |hold: &&Hold| hold.is_of(&ask.service);
        let channels = self.holds.values().filter(of_service).count();
        if channels >= service.options.channels {
            let most = service.options.channels;
            return Err(format!(
                "the service has {most} channels, as many as it accepts"
            ));
        }
        let offered = (&ask.contract, arrival);
        let held = self.ends.hold_sink(&service.options, channel, offered);
        let held = held.map_err(text)?;
        let bound_ns = held.bound.0;
        let state = State::HeldSink {
            held: Box::new(held),
            service: ask.service,
        };
        let reply = HeldBound {
            hold,
            bound_ns,
            way: None,
        };
        Ok((Hold { channel, state }, reply))
    }

    /// Opens the channel at this end with its final bound, and replies.
    fn relax(&mut self, relax: RelaxBound) -> Result<(), NetworkError> {
        let number = relax.hold;
        let Some(Hold { channel, state }) = self.holds.remove(&number) else {
            return self.not_relaxed(number, "it is not held any more".to_owned());
        };
        let bound = Nanos(relax.bound_ns);
        let opened = match (state, relax.next) {
            (State::HeldSource(held), Some(next)) => {
                let sender = held.open(bound, next);
                sender.map(|sender| (State::Source(Box::new(sender)), None))
            }
            (State::HeldSink { held, service }, _) => {
                let contract = held.contract;
                held.open(bound).map(|(receiver, port)| {
                    let at = std::num::NonZeroU16::new(port.local().port());
                    let receiver = Box::new(receiver);
                    let state = State::Sink {
                        receiver,
                        port,
                        service,
                        contract,
                    };
                    (state, at)
                })
            }
            _ => return self.not_relaxed(number, "it is not waiting for its bound".to_owned()),
        };
        match opened {
            Ok((state, port)) => {
                self.holds.insert(number, Hold { channel, state });
                let hold = number;
                self.connection
                    .send(&FromProgram::Relaxed(Relaxed { hold, port }))
            }
            Err(error) => self.not_relaxed(number, error.to_string()),
        }
    }

    fn not_relaxed(&mut self, hold: u64, reason: String) -> Result<(), NetworkError> {
        let end = EndOfHold { hold, reason };
        self.connection.send(&FromProgram::NotRelaxed(end))
    }

    /// The hold of a channel at which `found` returns something.
    fn find<T>(&mut self, channel: &str, found: impl Fn(&mut State) -> Option<T>) -> Option<T> {
        let channel: ChannelId = channel.parse().ok()?;
        let mut holds = self.holds.values_mut();
        holds.find_map(|hold| match hold.channel == channel {
            true => found(&mut hold.state),
            false => None,
        })
    }

    fn establish_source(&mut self, opened: EstablishedDoc) {
        let Ok(channel) = opened.channel.parse::<ChannelId>() else {
            return;
        };
        let Some(command) = self.opening.remove(&channel) else {
            return;
        };
        let sender = self.find(&opened.channel, |state| match state {
            State::Source(sender) => {
                let used = State::UsedSource(sender.shared());
                match std::mem::replace(state, used) {
                    State::Source(sender) => Some(sender),
                    _ => None,
                }
            }
            _ => None,
        });
        let (Some(sender), Some(owner)) = (sender, self.owner.upgrade()) else {
            return;
        };
        let hops = Hop::list(opened.hops);
        let established = Established {
            owner,
            channel,
            hops,
        };
        // A program that does not wait any more drops the channel, which closes it.
        let _ = command
            .reply
            .send(Ok(OutgoingChannel::new(*sender, established)));
    }

    fn establish_sink(&mut self, accepted: EstablishedDoc) -> Result<(), NetworkError> {
        let Ok(channel) = accepted.channel.parse::<ChannelId>() else {
            return Ok(());
        };
        let opened = self.find(&accepted.channel, |state| match state {
            State::Sink { receiver, port, .. } => {
                let used = State::UsedSink {
                    shared: receiver.shared(),
                    port: port.clone(),
                };
                match std::mem::replace(state, used) {
                    State::Sink {
                        receiver,
                        service,
                        contract,
                        ..
                    } => Some((receiver, service, contract)),
                    _ => None,
                }
            }
            _ => None,
        });
        let (Some((receiver, service, contract)), Some(owner)) = (opened, self.owner.upgrade())
        else {
            return Ok(());
        };
        let hops = Hop::list(accepted.hops);
        let established = Established {
            owner,
            channel,
            hops,
        };
        let incoming = IncomingChannel::new(*receiver, contract, established);
        // Without its service the channel is dropped, which closes it.
        if let Some(listen) = self.services.get(&service) {
            let _ = listen.accepted.send(incoming);
        }
        Ok(())
    }

    fn refuse(&mut self, refused: OpenRefused) {
        let channel = refused.channel.parse::<ChannelId>().ok();
        let Some(command) = channel.and_then(|channel| self.opening.remove(&channel)) else {
            return;
        };
        let _ = command.reply.send(Err(NetworkError::Refused {
            host: refused.host,
            reason: refused.reason,
            best: refused.best_deadline_ns.map(Nanos),
        }));
    }

    /// Tells the program that a channel has ended.
    fn end(&mut self, ended: &Ended) {
        let Ok(channel) = ended.channel.parse::<ChannelId>() else {
            return;
        };
        let why = format!("{}: {}", ended.host, ended.reason);
        self.holds.retain(|_, hold| {
            let has_ended = hold.channel == channel && hold.is_established();
            if has_ended {
                hold.end(&why);
            }
            !has_ended
        });
    }

    /// Replies with what an end of this program has counted.
    fn count(&mut self, ask: &CountHop) -> Result<(), NetworkError> {
        let counts = self.find(&ask.channel, |state| match state {
            State::UsedSource(shared) => Some(shared.meter.load()),
            State::UsedSink { shared, .. } => {
                let received = shared.counts.load();
                let mut counts = shared.meter.load();
                counts.lost += received.incomplete + received.dropped;
                Some(counts)
            }
            _ => None,
        });
        let number = ask.number;
        let counted = FromProgram::Counted(CountedHop { number, counts });
        self.connection.send(&counted)
    }

    /// Closes a channel of this program.
    fn close(&mut self, channel: ChannelId, why: &str) -> Result<(), NetworkError> {
        let mut was_open = false;
        for hold in self.holds.values_mut() {
            if hold.channel == channel && !matches!(hold.state, State::Over) {
                hold.state = State::Over;
                was_open = true;
            }
        }
        if !was_open {
            return Ok(());
        }
        self.connection.send(&FromProgram::Close(CloseChannel {
            channel: channel.to_string(),
            reason: why.to_owned(),
        }))
    }

    /// Reports the ends whose flow or thread has ended.
    fn report_lost(&mut self) -> Result<(), NetworkError> {
        for (number, hold) in &mut self.holds {
            if let Some(reason) = hold.fault() {
                hold.end(&reason);
                hold.state = State::Over;
                let hold = *number;
                let lost = FromProgram::Lost(EndOfHold { hold, reason });
                self.connection.send(&lost)?;
            }
        }
        Ok(())
    }
}

impl Hold {
    /// True if the hold is of a channel to this service.
    fn is_of(&self, name: &str) -> bool {
        match &self.state {
            State::HeldSink { service, .. } | State::Sink { service, .. } => service == name,
            State::UsedSink { .. } => true,
            _ => false,
        }
    }

    fn is_established(&self) -> bool {
        let state = &self.state;
        matches!(state, State::UsedSource(_) | State::UsedSink { .. })
    }

    /// Tells the program that the channel has ended.
    fn end(&self, why: &str) {
        match &self.state {
            State::UsedSource(shared) => shared.end(why),
            State::UsedSink { shared, .. } => shared.end(why),
            _ => {}
        }
    }

    /// Why the end of an established channel works no more; `None` if it does.
    fn fault(&self) -> Option<String> {
        match &self.state {
            State::UsedSource(shared) => shared.end.get().cloned(),
            State::UsedSink { shared, port } => {
                let port = port.end_reason().map(str::to_owned);
                shared.end.get().cloned().or(port)
            }
            _ => None,
        }
    }
}

/// True if the connection can be read without waiting.
fn is_readable(connection: &Connection) -> Result<bool, NetworkError> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut fds, Some(&now)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(ChannelError::from(error).into()),
    }
}

/// The error in words, for a refusal that says already that it is one.
fn text(error: impl std::fmt::Display) -> String {
    reason_for_others(&error.to_string())
}

/// A netnice-peer that is not heard for so long has stopped: it sends something every 3 s. The
/// other hosts end its channels after the same time.
const SILENCE: Duration = Duration::from_secs(15);
/// How often the thread looks whether flows have ended.
const LOOK: Duration = Duration::from_millis(500);
