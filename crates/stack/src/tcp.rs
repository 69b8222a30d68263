//! TCP on flows of the direct path: [`Stream`] and [`Listener`].
//!
//! A connection is made of segments that the program itself makes, in its own flow: the driver's
//! schedule decides when each leaves, by the flow's contract, and no other program delays them
//! (paper NTCP). A client's connection has a flow of its own. All connections of a listener share
//! one flow, with one contract; the requests for connections come by a second flow, so a flood of
//! them does not disturb the connections.
//!
//! Written bytes are copied into buffers, and stay there until the peer has acknowledged them.
//! Received bytes stay in buffers until they are read. The window that the peer may use is what
//! there are empty buffers for; connections that receive at the same time share them. A thread of
//! the library serves the connections while no call does. A [`Poller`] has the events of any number
//! of connections on one descriptor.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use netnice_stack::tcp::TcpOptions;
//! use netnice_stack::{Program, RuntimeDir, StackError};
//!
//! fn fetch(dir: &RuntimeDir, server: SocketAddr) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
//!     let options = TcpOptions {
//!         contract: Some("slice 2ms/20ms".into()),
//!         ..TcpOptions::to(server)
//!     };
//!     let program = Program::attach(dir, Some("eth0"), 1, options.buffers.region_bytes()?)?;
//!     let mut stream = program.connect(&options, Some(Duration::from_secs(5)))?;
//!     stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
//!     let mut page = Vec::new();
//!     stream.read_to_end(&mut page)?;
//!     Ok(page)
//! }
//! ```
//!
//! A server:
//!
//! ```no_run
//! use std::io::Write;
//!
//! use netnice_stack::tcp::ListenOptions;
//! use netnice_stack::{Program, RuntimeDir};
//!
//! fn greet(dir: &RuntimeDir) -> Result<(), Box<dyn std::error::Error>> {
//!     let options = ListenOptions {
//!         contract: Some("slice 5ms/20ms extra".into()),
//!         ..ListenOptions::at("192.0.2.7:8080".parse()?)
//!     };
//!     let program = Program::attach(dir, Some("eth0"), 2, options.region_bytes()?)?;
//!     let listener = program.listen(&options)?;
//!     loop {
//!         let mut stream = listener.accept(None)?;
//!         stream.write_all(b"hello\n")?;
//!         stream.finish(None)?;
//!     }
//! }
//! ```

mod copies;
mod engine;
mod engine_cell;
mod flow_buffers;
mod frame;
mod in_place;
mod inbox;
mod listener;
mod next_hops;
mod peer_list;
mod place;
mod promotion;
mod queue_limit;
mod readiness;
mod receive_shares;
mod stream;
#[cfg(feature = "tokio")]
mod tokio_traits;
mod watches;

use std::net::SocketAddr;
use std::time::Duration;

pub use engine::FlowCounters;
use engine::{Engine, OWN_FLOW_TIME_WAIT, monotonic};
use engine_cell::EngineCell;
use flow_buffers::check_numbers;
pub use in_place::{Received, Reserved};
pub use listener::{ListenOptions, Listener, ListenerUsage};
pub use netnice_tcp::HeldBack;
pub use netnice_tcp::config::{Config, Keepalive};
pub use netnice_tcp::congestion::Algorithm;
pub use netnice_tcp::connection::{CloseReason, Counters, Info, State, WriteError};
pub use promotion::PromoteOptions;
pub use readiness::{Event, Poller};
pub use stream::Stream;

pub use crate::error::PromoteError;
use crate::error::StackError;
use crate::program::Program;
use crate::segments::SegmentEndpoint;
use crate::udp::Buffers;

/// The parameters of a client's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// The local address and port. The daemon replaces an unspecified address by the source address
    /// of the route to the peer, and chooses a port for port 0.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The contract of the connection's flow as text, for example `slice 3ms/20ms`. `None` is best
    /// effort.
    pub contract: Option<String>,
    /// The buffers of the flow. Those for sending bound what is written and not acknowledged, those
    /// for receiving the window that the peer may use.
    pub buffers: Buffers,
    /// TTL or hop limit of sent packets.
    pub hops: u8,
    /// The parameters of TCP. `mss`, `room`, `largest_window` and `padding` are set by the flow.
    pub config: Config,
}

impl TcpOptions {
    /// A connection to `remote`: best effort, with a local address and port that the daemon
    /// chooses.
    pub fn to(remote: SocketAddr) -> TcpOptions {
        let local = match remote {
            SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
            SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
        };
        TcpOptions {
            local,
            remote,
            contract: None,
            buffers: DEFAULT_BUFFERS,
            hops: 64,
            config: Config {
                time_wait: OWN_FLOW_TIME_WAIT,
                ..Config::default()
            },
        }
    }
}

impl Program {
    /// Opens a connection, and waits until the peer has accepted it, for up to `timeout` (`None`:
    /// as long as [`Config::connect_timeout`]).
    ///
    /// # Errors
    /// If the options are invalid, there is no connection to the daemon, the daemon does not grant
    /// the flow, the peer refuses the connection or does not answer ([`StackError::Connection`]),
    /// or the timeout expires ([`StackError::WouldBlock`]).
    pub fn connect(
        &self,
        options: &TcpOptions,
        timeout: Option<Duration>,
    ) -> Result<Stream, StackError> {
        let TcpOptions { local, remote, .. } = *options;
        check_numbers(options.buffers)?;
        let endpoint = SegmentEndpoint::Connection { local, remote };
        let contract = options.contract.as_deref();
        let flow = self.open_segments(endpoint, contract, options.buffers)?;
        let local = flow.local();
        let receiving = [options.buffers.receiving, 0];
        let mut engine = Engine::new(flow, None, receiving, Some(remote), options.hops)?;
        let config = engine.complete(&options.config);
        let opened = engine.endpoint.connect(monotonic(), remote, config);
        let Some(id) = opened else {
            // A new endpoint has no connection.
            return Err(engine.end_reason());
        };
        let place = (id, engine.watches.open(id));
        let cell = EngineCell::new(&self.shared, engine);
        let stream = Stream::new(cell, place, local, remote);
        stream.wait_established(timeout)?;
        Ok(stream)
    }
}

/// For an MTU of 1500: a window of some 700 KiB, and as much for what is written.
const DEFAULT_BUFFERS: Buffers = Buffers {
    bytes: 2048,
    sending: 512,
    receiving: 512,
};

#[cfg(test)]
mod tests;
