//! Channels to and from programs on other hosts: [`Network`], by the netnice-peer of this host,
//! which agrees with the others on the bounds (docs/reference/peer.md). Calls fail with
//! [`NetworkError`].
//!
//! ```text
//!  Network::open ──▶ netnice-peer … ──▶ OutgoingChannel: a Sender with its bounds
//!  Network::listen ▶ netnice-peer … ──▶ IncomingChannel: a Receiver with its bounds
//! ```
//! A thread of the program (`serving`) replies to netnice-peer: it holds the promise of the link at
//! netniced and admits the handler (`ends`), and opens the channel when all hosts hold their
//! bounds. A channel that ends on its way ends at the program too, with the host and the reason.

mod connection;
mod ends;
mod serving;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use netnice_api::channels::{
    ChannelList, ExplainChannel, ExplainedChannel, FromProgram, HopDoc, ListChannels, ToProgram,
};
use netnice_core::contract::{Channel, Slice};
use netnice_core::units::{Bytes, Nanos};
use netnice_stack::RuntimeDir;

use crate::commands::CommandQueue;
use crate::error::ChannelError;
use crate::handler_thread::HandlerThreadOptions;
use crate::header::ChannelId;
use crate::options::{ChannelOptions, WhenFull};
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::stage::Stage;
use connection::Connection;
use serving::Serving;

/// Channels of this program to and from other hosts. A clone is the same connection to
/// netnice-peer; all channels end with it.
#[derive(Clone)]
pub struct Network {
    owner: Arc<Owner>,
}

/// Ends the thread when it is dropped.
struct Owner {
    queue: Arc<CommandQueue<Command>>,
    thread: Option<JoinHandle<()>>,
}

/// The parameters of a [`Network`].
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// The threads that run the handlers: one for each link that carries channels. The interface is
    /// that of the route.
    pub handlers: HandlerThreadOptions,
    /// Buffers for packets that have arrived at a port, as in
    /// [`ListenerOptions::buffers`](crate::ListenerOptions::buffers).
    pub buffers: u32,
}

/// A channel to ask for.
pub struct RemoteChannel {
    /// The service at the sink.
    pub service: String,
    /// The host of the sink.
    pub host: String,
    /// The channel at this end. The class is [`crate::ChannelClass::RealTime`], with the deadline
    /// from the source to the complete message at the sink. If its `processing` is 0, the handler
    /// has the shortest one that it can keep.
    pub options: ChannelOptions,
}

/// The parameters of a [`Service`].
pub struct ServiceOptions {
    /// Makes the stages of a channel, which are those of its source.
    pub stages: Box<dyn Fn(ChannelId) -> Vec<Box<dyn Stage>> + Send>,
    /// The part of the deadline that the handler of a channel has; `None` for the shortest that it
    /// can keep.
    pub processing: Option<Nanos>,
    /// The longest message that a channel may have. Longer ones are refused.
    pub mmax: Bytes,
    /// The largest number of channels at the same time.
    pub channels: usize,
    /// What happens to a message while the program does not take the ones before.
    pub when_full: WhenFull,
}

/// The sending end of a channel to another host. Dropping it ends the channel at once; the last
/// messages arrive if [`OutgoingChannel::finish`] was called before.
pub struct OutgoingChannel {
    sender: Sender,
    established: Established,
}

/// The receiving end of a channel from another host. Dropping it ends the channel.
pub struct IncomingChannel {
    receiver: Receiver,
    contract: Channel,
    established: Established,
}

/// What both ends know of a channel. Dropping it ends the channel.
struct Established {
    owner: Arc<Owner>,
    channel: ChannelId,
    hops: Vec<Hop>,
}

/// A host of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The host.
    pub host: String,
    /// How long it may keep a message.
    pub bound: Nanos,
    /// The interface at which the messages arrive at the host, if nothing is declared there about
    /// the port before it: other senders' traffic can delay them.
    pub unguarded: Option<String>,
}

/// A service that programs on other hosts open channels to. Dropping it ends the offer; channels
/// that were accepted stay.
pub struct Service {
    owner: Arc<Owner>,
    name: String,
    host: String,
    accepted: mpsc::Receiver<IncomingChannel>,
}

/// Why a call about channels between hosts failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// No netnice-peer runs on this host.
    #[error(
        "no netnice-peer listens at {}: channels to other hosts need it", .socket.display()
    )]
    NoPeer {
        /// Its socket.
        socket: PathBuf,
    },
    /// The channel cannot be had.
    #[error("{host} refuses the channel: {reason}{}", best_text(.best))]
    Refused {
        /// The host that refuses.
        host: String,
        /// Why.
        reason: String,
        /// The shortest deadline that would be granted, if it is asked for at once; `None` if none
        /// is known.
        best: Option<Nanos>,
    },
    /// The service cannot be offered.
    #[error("the service {service} cannot be offered: {reason}")]
    NotListening {
        /// The service.
        service: String,
        /// Why.
        reason: String,
    },
    /// A name is empty, or longer than a name can be.
    #[error("{what} has 1 to {most} bytes, not {length}")]
    Name {
        /// What the name is of.
        what: &'static str,
        /// The longest allowed length, in bytes.
        most: usize,
        /// The length of the name, in bytes.
        length: usize,
    },
    /// netnice-peer does not tell how the hosts keep the messages of a channel.
    #[error("channel {channel} cannot be explained: {reason}")]
    NotExplained {
        /// The digits of the channel, as they were given.
        channel: String,
        /// Why.
        reason: String,
        /// True if this user may not ask for the channel.
        is_forbidden: bool,
    },
    /// The options of this end are invalid, or a system call failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The connection to netnice-peer has ended, and all channels with it.
    #[error("the connection to netnice-peer has ended: {0}")]
    Ended(String),
    /// Nothing happened within the time.
    #[error("nothing happened within the time")]
    Timeout,
}

fn best_text(best: &Option<Nanos>) -> String {
    best.map_or_else(String::new, |best| {
        format!("; would be granted: a deadline of {best}")
    })
}

/// A request to the thread.
enum Command {
    Open(Box<OpenCommand>),
    Listen(Box<ListenCommand>),
    Close(ChannelId),
    EndService(String),
    End,
}

struct OpenCommand {
    request: RemoteChannel,
    reply: SyncSender<Result<OutgoingChannel, NetworkError>>,
}

struct ListenCommand {
    service: String,
    options: ServiceOptions,
    accepted: mpsc::Sender<IncomingChannel>,
    reply: SyncSender<Result<String, NetworkError>>,
}

impl NetworkOptions {
    /// The threads of `handlers`, and 1,024 buffers for each port.
    pub fn new(handlers: HandlerThreadOptions) -> NetworkOptions {
        NetworkOptions {
            handlers,
            buffers: 1024,
        }
    }

    /// Lets the handlers use three quarters of the processor time that is reserved for this program
    /// ([`netnice_stack::own::change`]). The rest is for the other threads of the program, which
    /// have nothing else: without it they would not run on a busy machine.
    pub fn use_reservation(&mut self, slice: Slice) {
        let part = Slice::new(Nanos(slice.slice().0 / 4 * 3), slice.period(), false);
        self.handlers.reservation = Some(part.unwrap_or(slice));
    }

    /// Reserves for this program what its handlers need: the least processor time that carries them
    /// ([`HandlerThreadOptions::picks_reservation`]). For channels over one interface.
    pub fn pick_reservation(&mut self) {
        self.handlers.picks_reservation = true;
    }
}

impl Default for ServiceOptions {
    /// No stages, messages of up to 16 MiB, up to 64 channels, and messages wait for the program.
    fn default() -> ServiceOptions {
        ServiceOptions {
            stages: Box::new(|_| Vec::new()),
            processing: None,
            mmax: crate::options::LONGEST_MESSAGE,
            channels: 64,
            when_full: WhenFull::Wait,
        }
    }
}

impl Network {
    /// Connects to the netnice-peer of this host. `dir` is the folder of netniced; that of
    /// netnice-peer is beside it.
    ///
    /// # Errors
    /// [`NetworkError::NoPeer`] if none runs, [`NetworkError::Channel`] if the connection or the
    /// thread cannot be made.
    pub fn connect(dir: &RuntimeDir, options: NetworkOptions) -> Result<Network, NetworkError> {
        let connection = Connection::open(&dir.peer_socket())?;
        let queue = Arc::new(CommandQueue::new().map_err(ChannelError::from)?);
        let mut started = Ok(());
        let owner = Arc::new_cyclic(|owner| {
            let serving = Serving::new(
                dir.clone(),
                options,
                connection,
                (queue.clone(), owner.clone()),
            );
            let thread = std::thread::Builder::new().name("network".into());
            let thread = match thread.spawn(move || serving.run()) {
                Ok(thread) => Some(thread),
                Err(error) => {
                    started = Err(ChannelError::from(error));
                    None
                }
            };
            Owner { queue, thread }
        });
        Ok(started.map(|()| Network { owner })?)
    }

    /// Asks for a channel to a service on another host, and waits for the answer: up to 5 s after
    /// this end has held its bound.
    ///
    /// # Errors
    /// [`NetworkError::Refused`] if a host refuses, with the best deadline if one is known;
    /// [`NetworkError::Channel`] if the options are invalid, [`NetworkError::Name`] if a name is;
    /// [`NetworkError::Ended`].
    pub fn open(&self, request: RemoteChannel) -> Result<OutgoingChannel, NetworkError> {
        check_service(&request.service)?;
        check_name("the name of a host", &request.host, LONGEST_HOST)?;
        self.owner.ask(|reply| {
            let open = OpenCommand { request, reply };
            Command::Open(Box::new(open))
        })?
    }

    /// Offers a service to programs on other hosts.
    ///
    /// # Errors
    /// [`NetworkError::NotListening`] if another program of this host offers it, or the name has a
    /// character that no name has, [`NetworkError::Name`] if it is empty or too long;
    /// [`NetworkError::Ended`].
    pub fn listen(&self, service: &str, options: ServiceOptions) -> Result<Service, NetworkError> {
        check_service(service)?;
        let (accepting, accepted) = mpsc::channel();
        let name = service.to_owned();
        let listen = |reply| {
            let listen = ListenCommand {
                service: name.clone(),
                options,
                accepted: accepting,
                reply,
            };
            Command::Listen(Box::new(listen))
        };
        let host = self.owner.ask(listen)??;
        Ok(Service {
            owner: self.owner.clone(),
            name,
            host,
            accepted,
        })
    }
}

/// The channels and neighbours of this host, as its netnice-peer has them.
///
/// # Errors
/// [`NetworkError::NoPeer`] if none runs, [`NetworkError::Ended`] if it does not answer within 5 s.
pub fn list(dir: &RuntimeDir) -> Result<ChannelList, NetworkError> {
    let question = FromProgram::List(ListChannels {});
    ask(dir, &question, LIST, |message| match message {
        ToProgram::Channels(list) => Some(Ok(*list)),
        _ => None,
    })
}

/// How long the hosts of a channel keep its messages, as each of them has counted. `channel` is
/// the first digits of the identifier. Only root and the user whose program has an end of the
/// channel at this host may ask.
///
/// # Errors
/// [`NetworkError::NotExplained`] if there is no such channel or it is another user's,
/// [`NetworkError::NoPeer`] if no netnice-peer runs, [`NetworkError::Ended`] if it does not answer
/// within 10 s.
pub fn explain(dir: &RuntimeDir, channel: &str) -> Result<ExplainedChannel, NetworkError> {
    let question = FromProgram::Explain(ExplainChannel {
        channel: channel.to_owned(),
    });
    ask(dir, &question, EXPLAIN, |message| match message {
        ToProgram::Explained(explained) => Some(Ok(*explained)),
        ToProgram::NotExplained(not) => Some(Err(NetworkError::NotExplained {
            channel: channel.to_owned(),
            reason: not.reason,
            is_forbidden: not.is_forbidden,
        })),
        _ => None,
    })
}

/// Sends netnice-peer a question over a connection of its own, and waits for the message that
/// `answer` accepts.
fn ask<T>(
    dir: &RuntimeDir,
    question: &FromProgram,
    patience: Duration,
    answer: impl Fn(ToProgram) -> Option<Result<T, NetworkError>>,
) -> Result<T, NetworkError> {
    let mut connection = Connection::open(&dir.peer_socket())?;
    connection.send(question)?;
    connection.limit_reads(patience)?;
    loop {
        connection.read()?;
        while let Some(message) = connection.next()? {
            if let Some(answered) = answer(message) {
                return answered;
            }
        }
    }
}

impl Owner {
    /// Gives the thread a command, and waits for its reply.
    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T, NetworkError> {
        self.queue.ask(command).ok_or_else(|| self.ended())
    }

    fn ended(&self) -> NetworkError {
        NetworkError::Ended(self.queue.end_reason())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.queue.push(Command::End);
        let Some(thread) = self.thread.take() else {
            return;
        };
        // The thread can own the last channel: it cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl OutgoingChannel {
    fn new(sender: Sender, established: Established) -> OutgoingChannel {
        OutgoingChannel {
            sender,
            established,
        }
    }

    /// The hosts of the channel with their bounds, this one first. They sum to the deadline.
    pub fn hops(&self) -> &[Hop] {
        &self.established.hops
    }

    /// The identifier.
    pub fn id(&self) -> ChannelId {
        self.established.channel
    }

    /// Waits until all messages have left, and for as long as they may be on their way, then ends
    /// the channel. So the last ones arrive.
    ///
    /// # Errors
    /// [`NetworkError::Channel`] with [`ChannelError::Ended`] if the channel ends before, and with
    /// [`ChannelError::WouldBlock`] if messages have not left after `timeout`.
    pub fn finish(mut self, timeout: Option<Duration>) -> Result<(), NetworkError> {
        self.sender.drain(timeout)?;
        let rest: u64 = self.hops().iter().skip(1).map(|hop| hop.bound.0).sum();
        std::thread::sleep(Duration::from_nanos(rest));
        Ok(())
    }
}

impl Deref for OutgoingChannel {
    type Target = Sender;

    fn deref(&self) -> &Sender {
        &self.sender
    }
}

impl DerefMut for OutgoingChannel {
    fn deref_mut(&mut self) -> &mut Sender {
        &mut self.sender
    }
}

impl IncomingChannel {
    fn new(receiver: Receiver, contract: Channel, established: Established) -> IncomingChannel {
        IncomingChannel {
            receiver,
            contract,
            established,
        }
    }

    /// What its source asked for: the longest message, the rate, the burst, and the whole deadline.
    pub fn contract(&self) -> Channel {
        self.contract
    }

    /// The hosts of the channel with their bounds, the source first. They sum to the deadline.
    pub fn hops(&self) -> &[Hop] {
        &self.established.hops
    }

    /// The identifier.
    pub fn id(&self) -> ChannelId {
        self.established.channel
    }
}

impl Deref for IncomingChannel {
    type Target = Receiver;

    fn deref(&self) -> &Receiver {
        &self.receiver
    }
}

impl DerefMut for IncomingChannel {
    fn deref_mut(&mut self) -> &mut Receiver {
        &mut self.receiver
    }
}

impl Drop for Established {
    fn drop(&mut self) {
        self.owner.queue.push(Command::Close(self.channel));
    }
}

impl Service {
    /// The next channel that a program on another host has opened. Waits up to `timeout` (`None`:
    /// without a limit).
    ///
    /// # Errors
    /// [`NetworkError::Timeout`], [`NetworkError::Ended`].
    pub fn accept(&self, timeout: Option<Duration>) -> Result<IncomingChannel, NetworkError> {
        let accepted = match timeout {
            None => self
                .accepted
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(timeout) => self.accepted.recv_timeout(timeout),
        };
        accepted.map_err(|error| match error {
            RecvTimeoutError::Timeout => NetworkError::Timeout,
            RecvTimeoutError::Disconnected => self.owner.ended(),
        })
    }

    /// The name of this host, by which sources ask for it.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let name = self.name.clone();
        self.owner.queue.push(Command::EndService(name));
    }
}

impl Hop {
    fn list(docs: Vec<HopDoc>) -> Vec<Hop> {
        let hop = |doc: HopDoc| Hop {
            host: doc.host,
            bound: Nanos(doc.bound_ns),
            unguarded: doc.unguarded,
        };
        docs.into_iter().map(hop).collect()
    }
}

fn check_service(name: &str) -> Result<(), NetworkError> {
    check_name("the name of a service", name, LONGEST_SERVICE)
}

fn check_name(what: &'static str, name: &str, most: usize) -> Result<(), NetworkError> {
    match name.len() {
        length if (1..=most).contains(&length) => Ok(()),
        length => Err(NetworkError::Name { what, most, length }),
    }
}

/// The longest name of a service, in bytes (P5 of docs/reference/peer.md).
pub const LONGEST_SERVICE: usize = 64;
/// The longest name of a host, in bytes (RFC 1035).
pub const LONGEST_HOST: usize = 253;
/// The longest packet with its header, unless a program or a user says another: the longest that a
/// path MTU of 1,500 bytes lets through over IPv6. Both ends need the same.
pub const PACKET: Bytes = Bytes(1_452);
/// The least length of the longest packet: what is below has little room behind its header.
pub const LEAST_PACKET: Bytes = Bytes(128);
/// The greatest length: what is above does not pass the direct path.
pub const MOST_PACKET: Bytes = Bytes(1_658);
/// Packets between two preemption points.
pub const BLOCK: NonZeroU32 = NonZeroU32::new(4).unwrap();
/// How long a list may take.
const LIST: Duration = Duration::from_secs(5);
/// How long the hosts of a channel may take to explain it, all together.
const EXPLAIN: Duration = Duration::from_secs(10);
