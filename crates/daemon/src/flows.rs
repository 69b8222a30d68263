//! The flow manager: admits flows of the direct path, and controls the drivers that carry them.
//!
//! A program on the direct path exchanges packets with a driver process through shared memory,
//! without the daemon. The daemon makes the decisions that come before: which program may have a
//! flow, with which port and next hop, and what is promised to it. It sends the decisions to the
//! driver, and notifies the program of changes.
//!
//! ```text
//!   request   the manager's steps                                            reply
//!   attach ─> checks ─> driver of the link runs, or is started ────────────> memory, doorbells
//!   open ───> endpoint, port ─> next hop ─> admission ─> driver opens it ──> the flow is open
//!               │ invalid         │ unknown   │ does       │ fails,
//!               │                 │ after 1 s │ not fit    │ or no answer in 5 s
//!               └─────────────────┴───────────┴────────────┴─ all released ─> refused
//! ```
//! An open flow is closed by request of its program, when its program closes the connection or
//! ends, when its program violates the protocol, when its driver ends, or when root clears
//! everything. When its route leads over another link, it moves there ([`move_flow`]), or is
//! closed.
//!
//! # State machine
//! [`Flows`] is a state machine that waits for no driver or program. Requests, messages of drivers
//! and changes of the network come in. Commands for drivers ([`Flows::take_commands`]), replies and
//! notifications go out. For the ledger, all promises to flows of a link are one part of the link,
//! so that both paths do not promise the same rate; see [`admission`] and [`division`].
//! A driver also serves targets of the kernel path ([`redirected_targets`]).
//! [`promises`] is the only interface from here to the ledger, the policy and the kernel's classes.
//! A driver runs on without the daemon; the next daemon asks for its flows, and admits them again.
//!
//! # Terms
//! - A *link state* is the record of a link with a driver. A *session* is a connection that has
//!   attached, or is attaching, to such a link.
//! - A *program* is one attachment of a process to a driver. A program that an earlier daemon
//!   attached has no session until its process resumes the attachment ([`resume`]).
//! - A driver's reply to a call is an *answer*. A *reply* goes to a program or a user.
//! - A *census* is a driver's list of its programs and flows, with their counts.

mod admission;
mod alternatives;
mod balance;
mod budgets;
mod classes;
mod degraded;
mod division;
pub(crate) mod doctor;
pub(crate) mod driver;
mod driver_events;
mod driver_policy;
pub(crate) mod driver_reservation;
mod driver_threads;
pub(crate) mod drivers;
mod end_flow;
mod endpoint;
pub(crate) mod flow_replies;
mod holds;
mod icmp_errors;
mod link_promises;
mod messages;
mod move_flow;
pub(crate) mod network;
mod next_hop;
mod open_flow;
mod packet_costs;
mod ports;
mod promised_flows;
pub(crate) mod promises;
mod receive_shares;
mod redirected_targets;
mod requested_contracts;
mod resume;
mod routes;
mod sessions;
mod takeover;
pub(crate) mod tcp_keys;
#[cfg(test)]
mod tests;
mod timeouts;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use netnice_api::direct::{DirectRequest, Endpoint, ShapeDoc, Term};
use netnice_api::driver::{CodePointsDoc, DriverCall, DriverRequest};
use netnice_core::contract::{Contract, IfName};
use netnice_core::units::{Instant, Nanos, Rate};
use tokio::sync::oneshot;

use crate::clock::Now;
use crate::error::RequestError;
use crate::peer::Peer;
use crate::server::{ConnectionHandle, Reply};
pub(crate) use classes::server_link;
use division::Split;
use driver::Start;
use network::{Network, Nic, PortProtocol};
use next_hop::NextHop;
use routes::{PendingResolution, ResolutionFor};

/// The channel for the reply to a request.
pub(crate) type ReplySender = oneshot::Sender<Reply>;

/// A command of the flow manager that the caller carries out.
#[derive(Debug)]
pub(crate) enum Command {
    /// Connect to the driver of a link. If none runs, start one with these arguments; with `None`,
    /// start none.
    Connect(IfName, Option<Start>),
    /// Send a call to the driver of a link, with this descriptor if there is one.
    Call(IfName, DriverCall, Option<OwnedFd>),
    /// Close the connection to a driver.
    Disconnect(IfName),
    /// Report the end of this connection to [`Flows::connection_ended`].
    WatchConnection(ConnectionHandle),
}

/// A request of a program.
pub(crate) struct ProgramRequest {
    /// The user who sent the request.
    pub peer: Peer,
    /// The connection that the request came over.
    pub connection: ConnectionHandle,
    /// The request.
    pub request: DirectRequest,
    /// The process to attach; only for an attachment.
    pub caller: Option<Caller>,
    /// The channel for the reply.
    pub reply: ReplySender,
}

/// The process that asks to attach.
pub(crate) struct Caller {
    /// The pid.
    pub pid: u32,
    /// A pidfd, for the driver.
    pub handle: OwnedFd,
    /// Returns true while the process is alive.
    pub lives: Box<dyn Fn() -> bool>,
}

/// The flow manager; see the documentation of the module.
pub(crate) struct Flows<N: Network> {
    network: N,
    link_states: BTreeMap<IfName, LinkState>,
    sessions: BTreeMap<u64, Session>,
    /// Open connections that asked to attach, by connection number.
    connections: BTreeMap<u64, ConnectionUser>,
    flows: BTreeMap<u32, FlowRecord>,
    servers: BTreeMap<IfName, classes::LinkServer>,
    next_flow: u32,
    ports: BTreeMap<(PortProtocol, SocketAddr), ports::HeldPort<N::Port>>,
    kept_ports: BTreeMap<SocketAddr, ports::KeptPort<N::Port>>,
    calls: BTreeMap<u64, PendingCall>,
    next_call: u64,
    /// Programs that wait for the census of their link's driver to resume their attachments.
    resuming: Vec<resume::PendingResume>,
    /// Flows and next-hop requests that wait for neighbour resolution.
    resolutions: Vec<PendingResolution>,
    commands: Vec<Command>,
    tickets: flow_replies::Tickets,
    icmp: icmp_errors::IcmpState,
    /// When the interfaces and the routes of all flows are to be checked; `None` if they are not.
    route_check_due: Option<Instant>,
    /// Time limits of flows that move, with their numbers. An entry can be obsolete.
    move_deadlines: BTreeSet<(Instant, u32)>,
    next_hops_confirmed_at: Instant,
    redirects: redirected_targets::RedirectState,
    holds: holds::Holds,
}

/// A link with a driver.
#[derive(Default)]
struct LinkState {
    nic: Option<Nic>,
    /// True once the driver has accepted the connection.
    connected: bool,
    thread: driver_threads::PacketThread,
    /// The driver's mode of reaching the link; empty until the first census.
    mode: String,
    why_not_native: Option<String>,
    programs: BTreeMap<u32, Program>,
    /// The number of flows, including those that are being opened.
    flow_count: u32,
    /// The promises that are kept: to flows and redirected targets, and held for flows.
    promised: promised_flows::PromisedFlows,
    /// The flows with a minimum, kept or not.
    minimums: BTreeSet<u32>,
    members: classes::ClassMembers,
    /// The overbooked server that the driver has.
    server: Option<netnice_api::driver::ServerDoc>,
    /// True if a flow was degraded since the link got its driver.
    had_degraded: bool,
    split: Option<Split>,
    /// The rates that the driver has, as they were sent.
    wire: Option<DriverRequest>,
    /// The counter of the kernel's classes that the driver has: its map, and the place there.
    path_counter: Option<(u32, u32)>,
    /// The redirect pair that the driver has: the map, and the index of its far end.
    redirect_pair: Option<(u32, u32)>,
    /// True if the driver has not sent its first census in time.
    is_census_late: bool,
    need: Option<Rate>,
    /// The rate that was needed before the first of the promises that are held at present.
    need_before_holds: Option<Rate>,
    /// The part of `need` that does not serve redirected minimums, which the classes can keep too.
    firm_need: Option<Rate>,
    /// The basis of the present split.
    capacity: Option<admission::LinkCapacity>,
    /// Bytes that flows and classes had sent, and the time of that count.
    last_totals: Option<(Instant, u64, Option<u64>)>,
    /// Recent sending rate of the flows, in bit/s.
    sending_rate: u64,
    totals_pending: bool,
    /// True while a census for replies is in progress. The list holds the tickets for the next one.
    census_pending: bool,
    census_waiters: Vec<u64>,
    /// The discard patterns that the driver has; `None` if unknown.
    discards: Option<Vec<Vec<Term>>>,
    /// The code points that the driver has; `None` if unknown.
    code_points: Option<CodePointsDoc>,
    /// The limit of the driver's time awake, in parts of a million; `None` if unknown.
    awake_limit_ppm: Option<u32>,
}

impl LinkState {
    /// True if the driver has flows or redirected targets, or if promises are held for flows.
    fn is_used(&self) -> bool {
        self.flow_count > 0 || self.promised.has_targets() || self.promised.has_holds()
    }
}

/// A program of a driver.
#[derive(Clone, Debug)]
struct Program {
    pid: u32,
    uid: u32,
    name: String,
    bytes: u64,
    /// Largest number of flows; 0 if an earlier daemon's driver did not state it.
    flows: u32,
    /// The secret with which the program resumes its attachment; `None` if it cannot.
    secret: Option<String>,
    /// The numbers of the program's flows, including those that are being opened.
    open: BTreeSet<u32>,
    /// The program's session, if it has one.
    session: Option<u64>,
    cost_base: packet_costs::CostBase,
}

/// A connection that has attached, or is attaching.
struct Session {
    connection: ConnectionHandle,
    peer: Peer,
    link: IfName,
    /// The driver's id of the program; `None` until the driver has answered.
    program: Option<u32>,
    pid: u32,
    name: String,
    flows: u32,
    bytes: u64,
    /// Bytes of memory files that all programs of the user may have together.
    most: u64,
    /// The secret of the attachment; `None` if there is none.
    secret: Option<String>,
    /// True if the program handles notifications of moving flows.
    moves: bool,
    /// True if the program has resumed the attachment and has sent no request since. If the
    /// connection ends then, the program may not have got the response, and stays attached.
    is_unconfirmed: bool,
}

/// The user of a connection that asked to attach. The connection is watched until it ends.
struct ConnectionUser {
    uid: u32,
    /// The same uid; `None` for root and the group.
    user: Option<u32>,
    /// True once it has attached. Then it no longer counts as a connection of the daemon, but as a
    /// program of its user until the connection ends, even if the program ends earlier.
    attached: bool,
}

/// A flow.
#[derive(Clone, Debug)]
struct FlowRecord {
    number: u32,
    link: IfName,
    /// The driver's ids, which it does not reuse soon: so it refuses a call for a closed one.
    program: u32,
    /// `None` until the flow is open at the driver.
    at_driver: Option<u32>,
    /// The slot in the program's memory file, once the flow is open at the driver.
    slot: u32,
    endpoint: Endpoint,
    /// The sizes of the flow's memory.
    shape: ShapeDoc,
    /// Fragments of a datagram are delivered in order only.
    in_order: bool,
    /// The granted contract. [`LinkState::promised`] shares it.
    contract: Rc<Contract>,
    /// Why the promise is not kept at present; `None` if it is.
    degraded: Option<String>,
    next_hop: NextHop,
    mtu: u32,
    ports: Vec<ports::FlowPort>,
    /// The key of its local endpoint, for a TCP flow. A flow that an earlier daemon opened has
    /// none: its program has it.
    key: Option<[u8; 16]>,
    /// Why the flow is being closed; `None` if it is not.
    closing: Option<String>,
    /// Its program has asked for the end.
    is_given_up: bool,
    /// The record's part in a move; `None` if the flow does not move.
    movement: Option<move_flow::Move>,
    /// The held promise that the flow's replaces, while it is being opened ([`holds`]).
    hold: Option<u32>,
}

/// A call without an answer so far.
struct PendingCall {
    link: IfName,
    deadline: Instant,
    purpose: CallPurpose,
}

/// The purpose of a call.
enum CallPurpose {
    Attach {
        session: u64,
        reply: ReplySender,
        /// The data to repeat the request with, in case the driver ends for lack of programs before
        /// it answers.
        again: Option<Box<(Start, DriverRequest, OwnedFd)>>,
    },
    Detach {
        program: u32,
    },
    Open {
        flow: Box<FlowRecord>,
        reply: ReplySender,
    },
    Change {
        flow: u32,
        before: Box<FormerContract>,
        reply: ReplySender,
    },
    Close {
        flow: u32,
        reply: Option<ReplySender>,
    },
    /// Withdraws a flow that moves. `successor` is its record on the new link, at this place.
    Withdraw {
        flow: u32,
        successor: u32,
        place: move_flow::Place,
        reply: ReplySender,
    },
    /// Redirects the target with this id to this place, or changes its contract.
    Redirect {
        place: u16,
        target: u32,
    },
    EndRedirect {
        place: u16,
    },
    SetRate,
    Classes,
    Discard,
    Adopt,
    /// A census for the replies with these tickets.
    Census(Vec<u64>),
    Totals,
    /// Nothing depends on the answer.
    Nothing,
    /// An attachment or opening that timed out; its result is undone when it arrives.
    Abandoned,
}

/// How a flow was served before a change.
struct FormerContract {
    contract: Rc<Contract>,
    degraded: Option<String>,
}

impl<N: Network> Flows<N> {
    /// A manager without flows.
    pub(crate) fn new(network: N) -> Flows<N> {
        Flows {
            network,
            link_states: BTreeMap::new(),
            sessions: BTreeMap::new(),
            connections: BTreeMap::new(),
            flows: BTreeMap::new(),
            servers: BTreeMap::new(),
            next_flow: 1,
            ports: BTreeMap::new(),
            kept_ports: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 1,
            resuming: Vec::new(),
            resolutions: Vec::new(),
            commands: Vec::new(),
            tickets: flow_replies::Tickets::default(),
            icmp: icmp_errors::IcmpState::default(),
            route_check_due: None,
            move_deadlines: BTreeSet::new(),
            next_hops_confirmed_at: Instant(0),
            redirects: redirected_targets::RedirectState::default(),
            holds: holds::Holds::default(),
        }
    }

    /// The commands to carry out. The caller takes them after each call of another method.
    pub(crate) fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// True if no link has a driver; then there are no flows.
    pub(crate) fn is_idle(&self) -> bool {
        self.link_states.is_empty()
    }

    /// True if a flow is open.
    pub(crate) fn has_flows(&self) -> bool {
        self.link_states.values().any(|state| state.flow_count > 0)
    }

    /// Connects to a driver that an earlier daemon has started, to take over its flows.
    pub(crate) fn adopt_driver(&mut self, link: &IfName, now: Now) {
        self.connect_driver(link, LinkState::default(), None, now);
    }

    /// Adds a link and connects to its driver. The first call asks the driver for its flows and its
    /// mode.
    fn connect_driver(&mut self, link: &IfName, state: LinkState, start: Option<Start>, now: Now) {
        self.link_states.insert(link.clone(), state);
        self.commands.push(Command::Connect(link.clone(), start));
        self.call(link, DriverRequest::Census, None, CallPurpose::Adopt, now);
    }

    /// Sends a call to a driver.
    fn call(
        &mut self,
        link: &IfName,
        ask: DriverRequest,
        fd: Option<OwnedFd>,
        purpose: CallPurpose,
        now: Now,
    ) {
        let id = self.next_call;
        self.next_call += 1;
        let timeout = match self.link_states.get(link) {
            Some(state) if state.connected => CALL_TIMEOUT,
            // The driver is still starting.
            _ => START_TIMEOUT,
        };
        let call = PendingCall {
            link: link.clone(),
            deadline: now.monotonic.after(timeout),
            purpose,
        };
        self.calls.insert(id, call);
        let command = Command::Call(link.clone(), DriverCall { id, request: ask }, fd);
        self.commands.push(command);
    }
}

/// Replies with an error.
fn refuse(reply: ReplySender, error: RequestError) {
    // The send fails if the peer has closed its connection.
    let _ = reply.send(Reply::from(netnice_api::Response::from(error)));
}

/// Time limit for a driver's answer.
const CALL_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Time limit for the answer of a driver that is being started.
const START_TIMEOUT: Nanos = Nanos::from_secs(20);
