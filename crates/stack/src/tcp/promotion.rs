//! An accepted connection gets a flow and a contract of its own ([`Stream::promote`]).
//!
//! ```text
//!   1. The daemon opens the flow. Until the program primes it, the driver gives the segments of
//!      the peer to the listener's flow.
//!   2. The engine of the listener is locked, and handles what has arrived.
//!   3. The new flow is primed: from now on the driver gives it the peer's segments.
//!   4. The connection moves, with copies of its payload. What the listener's flow still delivers,
//!      and what still leaves by it, is reported to the new engine.
//! ```
//! If one of the steps before the last one fails, the new flow is closed, and nothing has changed.

use netnice_tcp::connection::State;
use netnice_tcp::endpoint::ConnectionId;

use super::engine::{Engine, Origin};
use super::engine_cell::EngineCell;
use super::flow_buffers::check_numbers;
use super::inbox::Inbox;
use super::place::Place;
use super::stream::{Stream, connection};
use crate::error::{PromoteError, StackError};
use crate::program::Program;
use crate::segments::SegmentEndpoint;
use crate::udp::Buffers;

/// The parameters of a promotion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromoteOptions {
    /// The contract of the connection's flow as text, for example `slice 3ms/20ms`. `None` is best
    /// effort.
    pub contract: Option<String>,
    /// The buffers of the connection's flow, in the program's memory
    /// ([`Buffers::region_bytes`]). What the listener's flow has promised to receive and does not
    /// fit into those for receiving is lost, and the peer sends it again.
    pub buffers: Buffers,
}

impl PromoteOptions {
    /// A flow with this contract, and the buffers that are the default of a client's connection.
    pub fn with_contract(contract: &str) -> PromoteOptions {
        PromoteOptions {
            contract: Some(contract.to_string()),
            ..PromoteOptions::default()
        }
    }
}

impl Default for PromoteOptions {
    /// Best effort.
    fn default() -> PromoteOptions {
        PromoteOptions {
            contract: None,
            buffers: Buffers {
                bytes: 2048,
                sending: 512,
                receiving: 512,
            },
        }
    }
}

impl Stream {
    /// Moves a connection that a listener accepted to a flow of its own, with its own contract. No
    /// byte is lost, also while both ends send. Calls in other threads and tasks go on, and
    /// registrations with a [`Poller`](super::Poller) and descriptors stay. The program must have
    /// attached with a further flow, and with memory for it. The call waits for the daemon, as the
    /// one that opens a connection; the connection goes on meanwhile.
    ///
    /// A buffer that was reserved before ([`Stream::reserve`]) is copied when it is committed. From
    /// now on the connection waits in TIME_WAIT for 1 s at most, and the flow is closed when the
    /// stream is dropped and the connection is over.
    ///
    /// # Errors
    /// If the connection has failed ([`StackError::Connection`]) or cannot be promoted
    /// ([`StackError::Promote`]), the buffers are invalid, or the daemon does not grant the flow:
    /// for example, the contract does not fit, or the program has as many flows as it attached
    /// with. The connection goes on as before then.
    pub fn promote(&self, options: &PromoteOptions) -> Result<(), StackError> {
        let PromoteOptions { contract, buffers } = options;
        let _moves = self.place.begin_move();
        let hops = self
            .place
            .enter(|engine, id| can_move(engine, id).map(|()| engine.hops()))?;
        check_numbers(*buffers)?;
        let shared = self.place.read().cell.shared().clone();
        let program = Program {
            shared: shared.clone(),
        };
        let (local, remote) = (self.local(), self.peer());
        let endpoint = SegmentEndpoint::Connection { local, remote };
        let flow = program.open_unprimed(endpoint, contract.as_deref(), *buffers)?;
        let inbox = Inbox::new(&shared, flow.rings.location().slot);
        let receiving = [buffers.receiving, 0];
        let mut engine = Engine::new(flow, None, receiving, Some(remote), hops)?;
        let mut place = self.place.write();
        let id = place.id;
        let (moved, woken) = place.cell.enter(|listener| {
            can_move(listener, id)?;
            engine.prime(buffers.receiving)?;
            Ok(engine.adopt(listener.take_out(id, &inbox)?))
        });
        let moved = moved.map(|(id, number)| {
            let cell = EngineCell::new(&shared, engine);
            std::mem::replace(&mut *place, Place { cell, id, number })
        });
        drop(place);
        drop(woken);
        let old: Result<Place, StackError> = moved;
        old?.cell.remove_user();
        // What waits for the connection's segments is done at once.
        self.place.enter(|_, _| ());
        Ok(())
    }
}

/// Fails if the connection cannot get a flow of its own.
fn can_move(engine: &Engine, id: ConnectionId) -> Result<(), StackError> {
    match engine.origin() {
        Origin::Listener => {}
        Origin::Opened => return Err(StackError::Promote(PromoteError::Opened)),
        Origin::Moved => return Err(StackError::Promote(PromoteError::Promoted)),
    }
    if engine.has_failed() {
        return Err(engine.end_reason());
    }
    let connection = connection(engine, id)?;
    if let Some(reason) = connection.reason() {
        return Err(StackError::Connection(reason.into()));
    }
    match connection.state() {
        State::TimeWait | State::Closed => Err(StackError::Promote(PromoteError::Ended)),
        _ => Ok(()),
    }
}
