//! The program's end of channels that receive: a [`Listener`] has the port, and a [`Receiver`] the
//! messages of one channel. Calls fail with [`ChannelError`].

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use netnice_core::units::Nanos;
use netnice_stack::udp::UdpOptions;

use crate::error::ChannelError;
use crate::executor::{Counts, HandlerId, ReceivedMessage};
use crate::handler_thread::{
    AdmittedChannel, Command, HandlerThread, ListenerShared, OpenSink, Owner, SinkShared,
};
use crate::options::{ChannelOptions, End};

/// The parameters of a [`Listener`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerOptions {
    /// The local endpoint. It names the address; the daemon chooses a port for port 0.
    pub local: SocketAddr,
    /// The number of buffers for packets that the handlers have not read, 1 to 16,384. They must
    /// last for as long as the program can be without the processor.
    pub buffers: u32,
    /// The contract of the flow as text, for example `receive 20%`; `None` for none.
    pub contract: Option<String>,
}

impl ListenerOptions {
    /// A listener with 1,024 buffers.
    pub fn at(local: SocketAddr) -> ListenerOptions {
        ListenerOptions {
            local,
            buffers: 1024,
            contract: None,
        }
    }
}

/// A port that receives the packets of channels. Dropping it closes the port, and its channels
/// receive nothing more.
#[derive(Clone)]
pub struct Listener {
    port: Arc<Port>,
}

/// Closes the port when it is dropped.
struct Port {
    owner: Arc<Owner>,
    index: usize,
    local: SocketAddr,
    shared: Arc<ListenerShared>,
}

/// Receives the messages of a channel. One thread at a time uses it. Dropping it closes the channel
/// at this end.
pub struct Receiver {
    _admitted: AdmittedChannel,
    port: Arc<Port>,
    handler: HandlerId,
    messages: rtrb::Consumer<ReceivedMessage>,
    read: rtrb::Producer<Vec<u8>>,
    shared: Arc<SinkShared>,
}

/// What a [`Listener`] received since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounts {
    /// Packets that were read.
    pub packets: u64,
    /// Of these, packets of channels that are not open here.
    pub foreign: u64,
    /// Of these, packets that are none of a channel.
    pub invalid: u64,
    /// Packets that the driver dropped, because no buffer was free or they were beyond the receive
    /// contract.
    pub lost: u64,
}

impl HandlerThread {
    /// Opens a port for channels that arrive.
    ///
    /// # Errors
    /// [`ChannelError::Flow`] if the daemon does not grant the flow,
    /// [`ChannelError::PathTooNarrow`] if the link cannot carry packets of the longest length,
    /// [`ChannelError::Ended`].
    pub fn listen(&self, options: &ListenerOptions) -> Result<Listener, ChannelError> {
        let udp = UdpOptions {
            contract: options.contract.clone(),
            ..UdpOptions::at(options.local)
        };
        let socket = self.owner.open_socket(udp, (1, options.buffers))?;
        let local = socket.local();
        let shared = Arc::new(ListenerShared::default());
        let index = self.owner.ask(|reply| Command::OpenListener {
            socket: Box::new(socket),
            shared: shared.clone(),
            reply,
        })?;
        let port = Port {
            owner: self.owner.clone(),
            index,
            local,
            shared,
        };
        Ok(Listener {
            port: Arc::new(port),
        })
    }
}

impl Listener {
    /// Opens a channel at its sink. The source has the same identifier, Mmax, packet length and
    /// stages; both ends agree on them before. The class is that of this end: its `processing` is
    /// what the handler of this end has for each message.
    ///
    /// # Errors
    /// [`ChannelError::Open`] if the options are invalid or the channel is open already,
    /// [`ChannelError::NotAdmitted`] if the handler does not fit,
    /// [`ChannelError::TooManyHandlers`], [`ChannelError::Ended`].
    pub fn open(&self, channel: ChannelOptions) -> Result<Receiver, ChannelError> {
        channel.lengths(&self.port.owner.settings, End::Sink)?;
        let admitted = AdmittedChannel::new(&self.port.owner, &channel, End::Sink)?;
        let bound = channel.class.processing();
        self.open_admitted(channel, admitted, bound)
    }

    /// As [`Listener::open`], with a handler that is admitted already. `bound` is how long a
    /// message may take from its logical arrival at this end until the program can take it.
    pub(crate) fn open_admitted(
        &self,
        channel: ChannelOptions,
        admitted: AdmittedChannel,
        bound: Nanos,
    ) -> Result<Receiver, ChannelError> {
        let shared = Arc::new(SinkShared::new(bound)?);
        let open = |reply| {
            Command::OpenSink(Box::new(OpenSink {
                options: channel,
                shared: shared.clone(),
                reply,
            }))
        };
        let opened = self.port.owner.ask(open)??;
        Ok(Receiver {
            _admitted: admitted,
            port: self.port.clone(),
            handler: opened.handler,
            messages: opened.messages,
            read: opened.read,
            shared,
        })
    }

    /// The local endpoint, with the port that the daemon chose.
    pub fn local(&self) -> SocketAddr {
        self.port.local
    }

    /// Why the port receives nothing any more; `None` if it is open.
    pub(crate) fn end_reason(&self) -> Option<&str> {
        self.port.shared.end.get().map(String::as_str)
    }

    /// What the port received.
    pub fn counts(&self) -> ListenerCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &self.port.shared;
        ListenerCounts {
            packets: load(&shared.packets),
            foreign: load(&shared.foreign),
            invalid: load(&shared.invalid),
            lost: load(&shared.lost),
        }
    }
}

impl Receiver {
    /// The next message, in the order of the source.
    ///
    /// # Errors
    /// [`ChannelError::WouldBlock`] if no message is complete, [`ChannelError::Ended`] if none can
    /// follow.
    pub fn try_receive(&mut self) -> Result<ReceivedMessage, ChannelError> {
        if let Ok(message) = self.messages.pop() {
            self.shared.taken.fetch_add(1, Ordering::Release);
            // The thread sees that a message was taken, or this thread sees the flag.
            fence(Ordering::SeqCst);
            if self.shared.is_full.load(Ordering::Relaxed)
                && self.shared.is_full.swap(false, Ordering::Relaxed)
            {
                self.port.owner.shared.report(self.handler);
            }
            return Ok(message);
        }
        match self.end_reason() {
            Some(why) => Err(ChannelError::Ended(why)),
            None => Err(ChannelError::WouldBlock),
        }
    }

    /// The next message, and waits for it up to `timeout` (`None`: without a limit).
    ///
    /// # Errors
    /// [`ChannelError::WouldBlock`] if the timeout expires, else as [`Receiver::try_receive`].
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<ReceivedMessage, ChannelError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            match self.try_receive() {
                Err(ChannelError::WouldBlock) => {}
                other => return other,
            }
            let is_ready = || !self.messages.is_empty() || self.end_reason().is_some();
            if !self.shared.waker.wait(deadline, is_ready)? {
                return self.try_receive();
            }
        }
    }

    /// Gives back a message ([`ReceivedMessage::body`]) that the program does not need any more.
    /// Its memory is used for one of the next messages, which saves the kernel from giving and
    /// taking pages. At most two messages wait for that; the memory of more is freed.
    pub fn reuse(&mut self, body: Vec<u8>) {
        // A full ring drops it.
        let _ = self.read.push(body);
    }

    /// Prepares for sleeping in the program's own event loop. True: the descriptor of the receiver
    /// becomes readable when a message is complete or the channel ends. False: that has happened,
    /// and the program must not sleep.
    pub fn arm(&self) -> bool {
        self.shared.waker.prepare_sleep();
        self.messages.is_empty() && self.end_reason().is_none()
    }

    /// Call this after sleeping in the program's own event loop, and after [`Receiver::arm`]
    /// returned false.
    pub fn disarm(&self) {
        self.shared.waker.end_sleep();
    }

    /// The thread that runs the channel's handler.
    pub fn handlers(&self) -> HandlerThread {
        HandlerThread {
            owner: self.port.owner.clone(),
        }
    }

    /// What the channel received and refused.
    pub fn counts(&self) -> Counts {
        self.shared.counts.load()
    }

    pub(crate) fn shared(&self) -> Arc<SinkShared> {
        self.shared.clone()
    }

    /// Why no message follows those that have arrived; `None` if the channel is open.
    pub fn end_reason(&self) -> Option<String> {
        let ends = [&self.shared.end, &self.port.shared.end];
        ends.iter().find_map(|end| end.get().cloned())
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.waker.as_fd()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.owner
            .shared
            .queue
            .push(Command::CloseListener(self.index));
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.port
            .owner
            .shared
            .queue
            .push(Command::Close(self.handler));
    }
}
