//! A listener: accepts connections that peers open.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use netnice_ring::connections::MAX_ENTRIES;
use netnice_ring::layout::PAGE;
use netnice_tcp::config::Config;

use super::engine::Engine;
use super::engine_cell::EngineCell;
use super::flow_buffers::check_numbers;
use super::readiness::{Poller, Registration};
use super::stream::Stream;
use super::watches::Wanted;
use crate::error::StackError;
use crate::program::Program;
use crate::segments::{SegmentEndpoint, listing_buffers};
use crate::udp::Buffers;

/// The parameters of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// The local address, which must be specified, and the port. The daemon chooses one for port 0.
    pub local: SocketAddr,
    /// The contract of all accepted connections together, as text. `None` is best effort.
    pub contract: Option<String>,
    /// The buffers of all accepted connections together.
    pub buffers: Buffers,
    /// Number of connections that may wait to be accepted, at least 1. Beyond half of it, requests
    /// are answered without memory (SYN cookies, RFC 4987).
    pub backlog: usize,
    /// Number of connections whose peers the driver resets if the program dies, at most 65,536.
    /// Each takes 32 bytes of the program's memory file. The peers of further connections get a
    /// reset when they next send.
    pub listed: u32,
    /// TTL or hop limit of sent packets.
    pub hops: u8,
    /// The parameters of TCP. `mss`, `room`, `largest_window` and `padding` are set by the flow.
    pub config: Config,
}

impl ListenOptions {
    /// A listener at `local`: best effort, with a backlog of 128.
    pub fn at(local: SocketAddr) -> ListenOptions {
        ListenOptions {
            local,
            contract: None,
            buffers: Buffers {
                bytes: 2048,
                sending: 1024,
                receiving: 1024,
            },
            backlog: 128,
            listed: DEFAULT_LISTED,
            hops: 64,
            config: Config::default(),
        }
    }

    /// Number of bytes of a program's memory file that the listener's two flows use.
    ///
    /// # Errors
    /// If the number or the size of the buffers is invalid.
    pub fn region_bytes(&self) -> Result<u64, StackError> {
        let requests = self.request_buffers().region_bytes()?;
        let listing = listing_buffers(self.buffers.bytes, self.listed());
        let list = u64::from(listing) * u64::from(self.buffers.bytes);
        // The data area begins at a page, and so does the next region.
        Ok(self.buffers.region_bytes()? + list.next_multiple_of(PAGE) + requests)
    }

    fn listed(&self) -> u32 {
        self.listed.min(MAX_ENTRIES)
    }

    fn request_buffers(&self) -> Buffers {
        Buffers {
            bytes: self.buffers.bytes,
            ..REQUEST_BUFFERS
        }
    }
}

/// A listener. Dropping it stops accepting; connections that were accepted go on, and those that
/// were not are reset.
pub struct Listener {
    cell: Arc<EngineCell>,
    local: SocketAddr,
}

/// What a listener and its connections use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerUsage {
    /// Connections, also those that are not accepted yet and those that the program has closed and
    /// whose end is not complete.
    pub connections: usize,
    /// Connections in TIME_WAIT that the program has closed. They are not in `connections`.
    pub waiting: usize,
    /// Buffers of both flows that hold data, or packets that have not left.
    pub buffers: u32,
}

impl Program {
    /// Listens at an address and port, with two flows: one for connections, one for requests.
    ///
    /// # Errors
    /// If the backlog is 0 ([`StackError::Backlog`]) or another option is invalid, there is no
    /// connection to the daemon, or the daemon does not grant a flow: for example, the port is in
    /// use, the address is not one of the link, or the contract does not fit.
    pub fn listen(&self, options: &ListenOptions) -> Result<Listener, StackError> {
        if options.backlog == 0 {
            return Err(StackError::Backlog);
        }
        check_numbers(options.buffers)?;
        let endpoint = SegmentEndpoint::Listener {
            local: options.local,
        };
        let contract = options.contract.as_deref();
        let buffers = (options.buffers, options.listed());
        let (main, list) = self.open_listing(endpoint, contract, buffers)?;
        let local = main.local();
        let buffers = options.request_buffers();
        let endpoint = SegmentEndpoint::ConnectionRequests { local };
        let requests = self.open_segments(endpoint, None, buffers)?;
        let receiving = [options.buffers.receiving, buffers.receiving];
        let mut engine = Engine::new(main, Some(requests), receiving, None, options.hops)?;
        engine.list_peers(list);
        let config = engine.complete(&options.config);
        engine.endpoint.listen(options.backlog, config);
        let cell = EngineCell::new(&self.shared, engine);
        Ok(Listener { cell, local })
    }
}

impl Listener {
    /// The local address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// What the listener and its connections use now.
    pub fn usage(&self) -> ListenerUsage {
        let usage = |engine: &mut Engine| ListenerUsage {
            connections: engine.endpoint.len(),
            waiting: engine.endpoint.waiting(),
            buffers: engine.buffers_in_use(),
        };
        self.cell.enter(usage).0
    }

    /// The next connection.
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if none waits. Another error if a flow of the listener has ended.
    pub fn try_accept(&self) -> Result<Stream, StackError> {
        self.cell
            .attempt(Wanted::Accept, |engine| self.take(engine))
    }

    /// [`Listener::try_accept`], which waits for up to `timeout` (`None`: without a limit).
    ///
    /// # Errors
    /// As [`Listener::try_accept`]; [`StackError::WouldBlock`] if the timeout expires.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Stream, StackError> {
        self.cell
            .block_on(Wanted::Accept, timeout, |engine| self.take(engine))
    }

    /// [`Listener::try_accept`] for a task: if no connection waits, the task is woken when one may.
    ///
    /// # Errors
    /// As [`Listener::try_accept`], except that it does not fail with [`StackError::WouldBlock`].
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<Stream, StackError>> {
        self.cell
            .poll(Wanted::Accept, context, |engine| self.take(engine))
    }

    /// [`Listener::accept`] for a task.
    ///
    /// # Errors
    /// As [`Listener::poll_accept`].
    pub async fn accepted(&self) -> Result<Stream, StackError> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }

    fn take(&self, engine: &mut Engine) -> Result<Stream, StackError> {
        if engine.has_failed() {
            return Err(engine.end_reason());
        }
        let (id, peer) = engine.endpoint.accept().ok_or(StackError::WouldBlock)?;
        self.cell.add_user();
        let place = (id, engine.watches.open(id));
        Ok(Stream::new(self.cell.clone(), place, self.local, peer))
    }

    /// Sends the events of the listener to a poller, with this number: a connection waits to be
    /// accepted, or the listener has ended. What is possible already is an event. The listener has
    /// one poller at most: another one replaces it. Dropping the listener ends its events.
    pub fn register(&self, poller: &Poller, token: u64) {
        let registration = Registration::new(poller, token);
        let _ = self
            .cell
            .enter(|engine| engine.register(None, Some(registration)));
    }

    /// Ends the events of the listener for its poller.
    pub fn deregister(&self) {
        let _ = self.cell.enter(|engine| engine.register(None, None));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.cell.enter(|engine| {
            engine.watches.close_listener();
            engine.endpoint.stop_listening();
        });
        self.cell.remove_user();
    }
}

/// The buffers of the flow of requests: few, since each is free again at once.
const REQUEST_BUFFERS: Buffers = Buffers {
    bytes: 2048,
    sending: 64,
    receiving: 64,
};
/// Connections that are listed unless the program sets another number: 512 KiB.
const DEFAULT_LISTED: u32 = 16_384;
