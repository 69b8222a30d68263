//! The program's end of a channel that sends ([`Sender`]). Calls fail with [`ChannelError`].

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netnice_core::contract::{Channel, Overload};
use netnice_core::units::{Bytes, Nanos};
use netnice_stack::udp::{Buffers, UdpOptions};
use netnice_stack::{Socket, StackError};

use crate::error::ChannelError;
use crate::executor::{Accepted, AcceptedMessage, Gate, HandlerId, SendError, SendRefusal};
use crate::handler_thread::{
    AdmittedChannel, Command, Departure, Frames, HandlerThread, OpenSource, Owner, SourceShared,
    now,
};
use crate::options::{ChannelClass, ChannelOptions, End, ExecutorSettings, OpenError};

/// The parameters of a [`Sender`].
pub struct SenderOptions {
    /// The channel.
    pub channel: ChannelOptions,
    /// The local endpoint, as in [`UdpOptions::local`].
    pub local: SocketAddr,
    /// The listener.
    pub remote: SocketAddr,
    /// The contract of the flow of a best-effort channel as text, for example `min 2mbit`; `None`
    /// is best effort. A real-time channel has its own contract on the link too, and this is
    /// ignored.
    pub link: Option<String>,
}

impl SenderOptions {
    /// A channel to a listener, from an address and port that the daemon chooses.
    pub fn to(remote: SocketAddr, channel: ChannelOptions) -> SenderOptions {
        SenderOptions {
            channel,
            local: UdpOptions::to(remote).local,
            remote,
            link: None,
        }
    }
}

/// Sends the messages of a channel. One thread at a time uses it; a program whose threads share a
/// channel puts it into a mutex.
///
/// A dropped sender goes on to send what was queued, for at most [`LINGER`](crate::LINGER), as long
/// as the process lives. [`Sender::drain`] waits for that.
pub struct Sender {
    owner: Arc<Owner>,
    handler: HandlerId,
    gate: Gate,
    messages: rtrb::Producer<AcceptedMessage<Vec<u8>>>,
    departures: rtrb::Consumer<Departure>,
    shared: Arc<SourceShared>,
    /// Messages that have left, as the gate knows.
    known_left: u64,
    accepted: u64,
    local: SocketAddr,
    contract: String,
}

/// What a [`Sender`] did and refused since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounts {
    /// Messages that were accepted.
    pub accepted: u64,
    /// Of these, messages whose last packet was given to the flow.
    pub left: u64,
    /// Messages that the overload policy dropped.
    pub dropped: u64,
    /// Packets that were given to the flow.
    pub packets: u64,
    /// Packets that did not leave, because the link was down or the path became too narrow.
    pub unsent: u64,
    /// Messages whose last packet left this host after the deadline of the message.
    pub late: u64,
}

impl HandlerThread {
    /// Opens a channel at its source: a flow with the channel's contract, and a handler.
    ///
    /// # Errors
    /// [`ChannelError::Open`] if the options are invalid, [`ChannelError::NotAdmitted`] if the
    /// handler does not fit, [`ChannelError::Flow`] if the daemon does not grant the contract,
    /// [`ChannelError::PathTooNarrow`], [`ChannelError::TooManyBuffers`] or
    /// [`ChannelError::TooManyHandlers`] if there is no room. Nothing stays open then.
    pub fn open(&self, options: SenderOptions) -> Result<Sender, ChannelError> {
        // Before the admission: it fails for invalid options without a word to the daemon.
        LinkChannel::new(&options.channel, &self.owner, options.remote)?;
        let admitted = AdmittedChannel::new(&self.owner, &options.channel, End::Source)?;
        self.open_admitted(options, admitted, None)
    }

    /// As [`HandlerThread::open`], with a handler that is admitted already, and a promise of the
    /// link that is held.
    pub(crate) fn open_admitted(
        &self,
        options: SenderOptions,
        admitted: AdmittedChannel,
        hold: Option<u32>,
    ) -> Result<Sender, ChannelError> {
        let owner = &self.owner;
        let SenderOptions {
            channel,
            local,
            remote,
            link,
        } = options;
        let on_link = LinkChannel::new(&channel, owner, remote)?;
        let contract = on_link.contract.or(link);
        let options = UdpOptions {
            local,
            contract,
            hold,
            ..UdpOptions::to(remote)
        };
        let socket = owner.open_socket(options, (on_link.buffers, 0))?;
        let own = channel.class.channel();
        let deadline = own.map_or(Nanos(0), |own| own.deadline());
        let shared = Arc::new(SourceShared::new(deadline)?);
        let (local, contract) = (socket.local(), socket.contract().to_owned());
        let open = |reply| {
            Command::OpenSource(Box::new(OpenSource {
                socket,
                admitted,
                options: channel,
                frames: on_link.frames,
                shared: shared.clone(),
                reply,
            }))
        };
        let opened = owner.ask(open)??;
        Ok(Sender {
            owner: owner.clone(),
            handler: opened.handler,
            gate: opened.gate,
            messages: opened.messages,
            departures: opened.departures,
            shared,
            known_left: 0,
            accepted: 0,
            local,
            contract,
        })
    }
}

impl Owner {
    /// Opens a flow with so many buffers for sending and receiving, each large enough for a packet
    /// of the path. Fails if the daemon does not open it, or a packet of a channel does not fit.
    pub(crate) fn open_socket(
        &self,
        options: UdpOptions,
        (sending, receiving): (u32, u32),
    ) -> Result<Socket, ChannelError> {
        let mut options = options;
        options.buffers = Buffers {
            sending,
            receiving,
            ..Buffers::default()
        };
        let socket = match self.program.open_udp(&options) {
            // The path has longer packets than the default buffers hold.
            Err(StackError::SmallBuffers { packet, .. }) => {
                let bytes = packet.next_power_of_two().min(LARGEST_BUFFER);
                options.buffers.bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                self.program.open_udp(&options)?
            }
            other => other?,
        };
        let (largest, most) = (self.settings.processor.largest, socket.longest() as u64);
        if most < largest.0 {
            let most = Bytes(most);
            return Err(ChannelError::PathTooNarrow { largest, most });
        }
        Ok(socket)
    }
}

/// A channel as its flow has it.
struct LinkChannel {
    buffers: u32,
    /// The flow's contract; `None` for best effort.
    contract: Option<String>,
    frames: Frames,
}

impl LinkChannel {
    fn new(
        channel: &ChannelOptions,
        owner: &Owner,
        remote: SocketAddr,
    ) -> Result<LinkChannel, ChannelError> {
        let settings = &owner.settings;
        let (_, needed, packets) = channel.lengths(settings, End::Source)?;
        let buffers = u32::try_from(needed).unwrap_or(u32::MAX);
        if buffers > Buffers::MOST {
            let most = Buffers::MOST.into();
            return Err(ChannelError::TooManyBuffers { needed, most });
        }
        let headers = headers(remote.ip());
        let mut frames = Frames {
            mmax: u64::MAX,
            headers,
        };
        let (ChannelClass::RealTime(own), Some(on_link)) =
            (channel.class, channel.on_link(settings)?)
        else {
            return Ok(LinkChannel {
                buffers,
                contract: None,
                frames,
            });
        };
        frames.mmax = on_link.mmax().0 + packets * headers;
        let mmax = Bytes(frames.mmax);
        let (rmax, bmax, deadline) = (on_link.rmax(), own.bmax(), own.deadline());
        // The gate is before the handler. Behind it nothing is held back again.
        let overload = match own.overload() {
            Overload::BestEffort => Overload::BestEffort,
            _ => Overload::Decay,
        };
        let on_flow = Channel::new(mmax, rmax, bmax, deadline)
            .and_then(|on_flow| on_flow.with_processing(own.processing()))
            .map_err(OpenError::from)?;
        Ok(LinkChannel {
            buffers,
            contract: Some(format!("channel {}", on_flow.with_overload(overload))),
            frames,
        })
    }
}

/// The contract to hold on a link for a channel to a host: the shortest deadline, whatever the
/// channel has. `None` for best effort.
pub(crate) fn contract_to_hold(
    channel: &ChannelOptions,
    settings: &ExecutorSettings,
    to: IpAddr,
) -> Result<Option<String>, OpenError> {
    let (_, _, packets) = channel.lengths(settings, End::Source)?;
    let Some(on_link) = channel.on_link(settings)? else {
        return Ok(None);
    };
    let mmax = Bytes(on_link.mmax().0 + packets * headers(to));
    let held = Channel::new(mmax, on_link.rmax(), on_link.bmax(), LONGEST_HELD)?;
    Ok(Some(format!("channel {held}")))
}

/// Bytes of the headers in front of the payload of a datagram to a host.
fn headers(to: IpAddr) -> u64 {
    match to {
        IpAddr::V4(_) => IPV4_HEADERS,
        IpAddr::V6(_) => IPV6_HEADERS,
    }
}

impl Sender {
    /// Queues a message if the channel accepts it now.
    ///
    /// # Errors
    /// The message, with [`ChannelError::WouldBlock`] if the overload policy makes it wait
    /// ([`Sender::retry_at`]), [`ChannelError::Refused`] if it is too long or dropped, or
    /// [`ChannelError::Ended`].
    pub fn try_send(
        &mut self,
        body: impl Into<Vec<u8>>,
    ) -> Result<Accepted, (Vec<u8>, ChannelError)> {
        let body = body.into();
        if let Some(why) = self.shared.end.get() {
            return Err((body, ChannelError::Ended(why.clone())));
        }
        self.update_left();
        match self.gate.offer(body, now()) {
            Ok(message) => {
                let accepted = message.accepted();
                // There is room: the queue is as long as the gate's.
                if self.messages.push(message).is_ok() {
                    self.owner.shared.report(self.handler);
                }
                self.accepted += 1;
                Ok(accepted)
            }
            Err(SendError { reason, body }) => Err((
                body,
                match reason {
                    SendRefusal::WaitForRoom { .. } | SendRefusal::WaitUntil(_) => {
                        ChannelError::WouldBlock
                    }
                    refused => ChannelError::Refused(refused),
                },
            )),
        }
    }

    /// Queues a message, and waits for room or for its time up to `timeout` (`None`: without a
    /// limit), as the overload policy says.
    ///
    /// # Errors
    /// [`ChannelError::WouldBlock`] if the timeout expires, else as [`Sender::try_send`]. The
    /// message is dropped.
    pub fn send(
        &mut self,
        body: impl Into<Vec<u8>>,
        timeout: Option<Duration>,
    ) -> Result<Accepted, ChannelError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut body = body.into();
        loop {
            let error = match self.try_send(body) {
                Ok(accepted) => return Ok(accepted),
                Err((returned, error)) => {
                    body = returned;
                    error
                }
            };
            let ChannelError::WouldBlock = error else {
                return Err(error);
            };
            let retry = self.gate.retry_at().map(|at| {
                let left = at.0.saturating_sub(now().0);
                Instant::now() + Duration::from_nanos(left)
            });
            let until = deadline.into_iter().chain(retry).min();
            let (shared, known) = (&self.shared, self.known_left);
            let has_changed =
                || shared.left.load(Ordering::Acquire) != known || shared.end.get().is_some();
            let has_changed = shared.waker.wait(until, has_changed)?;
            if !has_changed && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(ChannelError::WouldBlock);
            }
        }
    }

    /// Waits until all accepted messages have left this host, up to `timeout` (`None`: without a
    /// limit).
    ///
    /// # Errors
    /// [`ChannelError::WouldBlock`] if the timeout expires, [`ChannelError::Ended`] if the channel
    /// ends before.
    pub fn drain(&mut self, timeout: Option<Duration>) -> Result<(), ChannelError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let (shared, accepted) = (&self.shared, self.accepted);
        let has_left = || {
            // In this order: packets of a message that has left were submitted before.
            shared.left.load(Ordering::Acquire) == accepted
                && shared.returned.load(Ordering::Acquire)
                    == shared.submitted.load(Ordering::Acquire)
        };
        let is_over = || has_left() || shared.end.get().is_some();
        let is_over = shared.waker.wait(deadline, is_over)?;
        match shared.end.get() {
            _ if has_left() => Ok(()),
            Some(why) => Err(ChannelError::Ended(why.clone())),
            None if is_over => Ok(()),
            None => Err(ChannelError::WouldBlock),
        }
    }

    /// When the message that was refused last with [`ChannelError::WouldBlock`] can be sent, if the
    /// overload policy spaces messages and only time has to pass, in ns of `CLOCK_MONOTONIC`.
    pub fn retry_at(&self) -> Option<u64> {
        self.gate.retry_at().map(|at| at.0)
    }

    /// Prepares for sleeping in the program's own event loop. True: the descriptor of the sender
    /// becomes readable when a message leaves the queue, the driver returns packets, or the channel
    /// ends. False: that has happened since the last call of [`Sender::try_send`] or
    /// [`Sender::disarm`], and the program must not sleep.
    pub fn arm(&self) -> bool {
        self.shared.waker.prepare_sleep();
        self.shared.left.load(Ordering::Acquire) == self.known_left
            && self.shared.end.get().is_none()
    }

    /// Call this after sleeping in the program's own event loop, and after [`Sender::arm`] returned
    /// false. What has happened until now is known then.
    pub fn disarm(&mut self) {
        self.shared.waker.end_sleep();
        self.update_left();
    }

    /// The thread that runs the channel's handler.
    pub fn handlers(&self) -> HandlerThread {
        HandlerThread {
            owner: self.owner.clone(),
        }
    }

    /// Why the channel has ended; `None` if it is open.
    pub fn end_reason(&self) -> Option<String> {
        self.shared.end.get().cloned()
    }

    /// The local endpoint of the flow.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The contract of the flow on the link, as text; empty for best effort.
    pub fn contract(&self) -> &str {
        &self.contract
    }

    /// The next message that has left, in the order in which the driver returned them; `None` if
    /// there is none. The sender keeps the first 1,024 that the program has not read.
    pub fn departure(&mut self) -> Option<Departure> {
        self.departures.pop().ok()
    }

    /// What the channel did and refused.
    pub fn counts(&self) -> SenderCounts {
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        SenderCounts {
            accepted: self.accepted,
            left: load(&self.shared.left),
            dropped: self.gate.dropped(),
            packets: load(&self.shared.submitted),
            unsent: load(&self.shared.unsent),
            late: self.shared.meter.late(),
        }
    }

    pub(crate) fn shared(&self) -> Arc<SourceShared> {
        self.shared.clone()
    }

    /// Tells the gate which messages have left.
    fn update_left(&mut self) {
        let left = self.shared.left.load(Ordering::Acquire);
        self.gate.handle_left(left - self.known_left);
        self.known_left = left;
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.waker.as_fd()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.owner.shared.queue.push(Command::Close(self.handler));
    }
}

/// The largest packet buffer in bytes.
const LARGEST_BUFFER: usize = 65_536;
/// Bytes of the headers before a payload: Ethernet, IP and UDP.
const IPV4_HEADERS: u64 = 14 + 20 + 8;
const IPV6_HEADERS: u64 = 14 + 40 + 8;
/// The longest deadline that is held on a link.
const LONGEST_HELD: Nanos = Nanos::from_secs(3_600);
