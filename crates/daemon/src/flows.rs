//! The flow manager: admits flows of the direct path, and controls the drivers that carry them.
//!
//! A program on the direct path exchanges packets with a driver process through shared memory,
//! without the daemon. The daemon makes the decisions that come before: which program may have a
//! flow, with which port and next hop, and what is promised to it. It tells the driver, and
//! notifies the program of changes.
//!
//! ```text
//!   program ─attach─▶ driver of the link runs, or is started ─▶ memory file, doorbells return
//!           ─open───▶ contract, route, port ─▶ next hop ─▶ admission ─▶ driver ─▶ open: notified
//!                        │ refused            │ 1 s         │ refused    │ fails    │ of changes
//!                        └────────────────────┴── refused, all is released          └── closed
//!
//!   closed: by request, or program or driver ended
//! ```
//!
//! # One writer
//! [`Flows`] is a state machine that never blocks. Inputs: requests, messages of drivers, changes
//! of the network. Outputs: commands for drivers ([`Flows::take_orders`]), and replies. The ledger
//! holds the promises of all flows of a link as one part, so that neither path promises what the
//! other has; see [`admission`] and [`division`]. [`promises`] is the only interface from here to
//! the rest of the daemon. A driver keeps running without the daemon; the next daemon asks it for
//! its flows, and admits them again.
//!
//! # Terms
//! - A *lane* is a link with a driver. A *session* is a connection that has attached to a lane.
//! - A *program* is a driver's record of an attached process. A program that an earlier daemon
//!   attached has no session, and lives until its process ends.
//! - The *station* of a flow is the next hop of its frames.

mod admission;
mod division;
pub(crate) mod driver;
pub(crate) mod drivers;
mod endpoint;
mod link_state;
mod messages;
pub(crate) mod network;
mod open_flow;
mod ports;
pub(crate) mod promises;
mod replies;
pub(crate) mod reports;
mod routes;
mod sessions;
#[cfg(test)]
mod tests;
mod timeouts;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use netnice_api::direct::{DirectRequest, Endpoint, FlowNotification, OpenFlow, Term};
use netnice_api::driver::{DriverCall, DriverRequest};
use netnice_core::contract::{Contract, IfName};
use netnice_core::units::{Instant, Nanos, Rate};
use tokio::sync::oneshot;

use crate::clock::Now;
use crate::denied::Denied;
use crate::peer::Peer;
use crate::server::{Guest, Told};
use division::Split;
use driver::Start;
use network::{Network, Nic};

/// The channel for the reply to a request.
pub(crate) type Reply = oneshot::Sender<Told>;

/// A command of the flow manager that the caller carries out.
#[derive(Debug)]
pub(crate) enum Order {
    /// Connect to the driver of a link. If none runs, start one as the second field says; `None`:
    /// do not start one.
    Reach(IfName, Option<Start>),
    /// Send a call to the driver of a link.
    Call(IfName, DriverCall, Option<OwnedFd>),
    /// Close the connection to a driver.
    Leave(IfName),
    /// Report the end of this connection to [`Flows::left`].
    Watch(Guest),
}

/// A request of a program.
pub(crate) struct Asked {
    /// The user who sent it.
    pub peer: Peer,
    /// The connection that it came over.
    pub guest: Guest,
    /// The request.
    pub request: DirectRequest,
    /// The process to attach; only for an attachment.
    pub caller: Option<Caller>,
    /// The channel for the reply.
    pub reply: Reply,
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

/// The flow manager, see the module docs.
pub(crate) struct Flows<N: Network> {
    network: N,
    lanes: BTreeMap<IfName, Lane>,
    sessions: BTreeMap<u64, Session>,
    /// Open connections that asked to attach, by connection number.
    guests: BTreeMap<u64, GuestOf>,
    flows: BTreeMap<u32, Flow>,
    next_flow: u32,
    ports: BTreeMap<std::net::SocketAddr, ports::Hold<N::Port>>,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    /// Flows and next-hop requests that wait for neighbour resolution.
    waiting: Vec<Waiting>,
    orders: Vec<Order>,
    tickets: reports::Tickets,
    /// True after a change of routes, until the routes of all flows are checked.
    look_at_ways: bool,
    used_stations_at: Instant,
}

/// A link with a driver.
struct Lane {
    nic: Option<Nic>,
    /// True once the driver has accepted the connection.
    here: bool,
    /// The driver's mode of reaching the link; empty until the first census.
    mode: String,
    why_not_native: Option<String>,
    programs: BTreeMap<u32, Program>,
    /// The number of flows, and the contracts of those with a promise, by flow number.
    count: u32,
    promised: BTreeMap<u32, Contract>,
    /// True if a flow was degraded since the lane was opened.
    any_degraded: bool,
    split: Option<Split>,
    /// The kernel's classes get this rate as soon as the driver has reduced its own.
    tree_after: Option<Rate>,
    need: Option<Rate>,
    /// The basis of the present split.
    room: Option<admission::Room>,
    /// Bytes that flows and classes had sent, and the time of that count.
    seen: Option<(Instant, u64, Option<u64>)>,
    /// Recent sending rate of the flows, in bit/s.
    sends: u64,
    asked_totals: bool,
    /// True while a census for replies is in progress. The list holds the tickets for the next one.
    asked_census: bool,
    await_census: Vec<u64>,
    /// The discard patterns that the driver has; `None` if unknown.
    discards: Option<Vec<Vec<Term>>>,
}

/// A program of a driver.
#[derive(Clone, Debug)]
struct Program {
    pid: u32,
    uid: u32,
    name: String,
    bytes: u64,
    /// The number of its open flows.
    open: u32,
    /// Its session, if it has one.
    session: Option<u64>,
}

/// A connection that has attached.
struct Session {
    guest: Guest,
    peer: Peer,
    link: IfName,
    /// The driver's id of the program; `None` until the driver has answered.
    program: Option<u32>,
    pid: u32,
    name: String,
    flows: u32,
    bytes: u64,
    /// Bytes of memory files that all programs of its user may have together.
    most: u64,
}

/// The user of a connection that asked to attach. The connection is watched until it ends.
struct GuestOf {
    uid: u32,
    /// The same uid; `None` for root and the group.
    user: Option<u32>,
    /// True once it has attached. Then it no longer counts as a connection of the daemon, but as a
    /// program of its user until the connection ends, even if the program ends earlier.
    attached: bool,
}

/// A flow.
#[derive(Clone, Debug)]
struct Flow {
    number: u32,
    link: IfName,
    /// The driver's ids. The driver does not reuse an id soon, so it refuses a call for a closed
    /// one.
    program: u32,
    /// `None` until the flow is open at the driver.
    at_driver: Option<u32>,
    setup: OpenFlow,
    endpoint: Endpoint,
    /// The granted contract.
    contract: Contract,
    /// Why the promise is not kept at present; `None` if it is.
    degraded: Option<String>,
    station: Station,
    mtu: u32,
    ports: Vec<std::net::SocketAddr>,
    /// Why the flow is being closed; `None` if it is not.
    closing: Option<String>,
}

/// The next hop of a flow's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Station {
    /// The program names it for each packet.
    Any,
    /// The Ethernet address of a multicast group.
    Group([u8; 6]),
    /// The next hop towards a host.
    Toward {
        /// The host.
        host: IpAddr,
        /// The local address.
        from: IpAddr,
        /// The IP address of the next hop.
        via: IpAddr,
        /// The Ethernet address of the next hop; `None` while it is unknown.
        mac: Option<[u8; 6]>,
    },
}

impl Station {
    fn mac(&self) -> Option<[u8; 6]> {
        match self {
            Station::Any => None,
            Station::Group(mac) => Some(*mac),
            Station::Toward { mac, .. } => *mac,
        }
    }

    /// The same next hop with another Ethernet address.
    fn at(self, mac: Option<[u8; 6]>) -> Station {
        match self {
            Station::Toward {
                host, from, via, ..
            } => Station::Toward {
                host,
                from,
                via,
                mac,
            },
            other => other,
        }
    }
}

/// A flow or next-hop request that waits for neighbour resolution.
struct Waiting {
    until: Instant,
    index: u32,
    via: IpAddr,
    what: Wanted,
}

enum Wanted {
    Flow {
        session: u64,
        flow: Box<Flow>,
        reply: Reply,
    },
    Hop {
        mtu: u32,
        reply: Reply,
    },
}

/// A call without an answer so far.
struct Call {
    link: IfName,
    until: Instant,
    what: Pending,
}

/// The purpose of a call.
enum Pending {
    Attach {
        session: u64,
        reply: Reply,
        /// What repeats the request, in case the driver ends for lack of flows before it answers.
        again: Option<Box<(Start, DriverRequest, OwnedFd)>>,
    },
    Detach {
        program: u32,
    },
    Open {
        flow: Box<Flow>,
        reply: Reply,
    },
    Change {
        flow: u32,
        before: Box<Before>,
        reply: Reply,
    },
    Close {
        flow: u32,
        reply: Option<Reply>,
    },
    Wire,
    Discard,
    Adopt,
    /// A census for the replies with these tickets.
    Tell(Vec<u64>),
    Totals,
    /// Nothing depends on the answer.
    Nothing,
    /// An attachment or opening that timed out; its result is undone when it arrives.
    Late,
}

/// How a flow was served before a change.
struct Before {
    contract: Contract,
    degraded: Option<String>,
}

impl<N: Network> Flows<N> {
    /// A manager without flows.
    pub(crate) fn new(network: N) -> Flows<N> {
        Flows {
            network,
            lanes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            guests: BTreeMap::new(),
            flows: BTreeMap::new(),
            next_flow: 1,
            ports: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 1,
            waiting: Vec::new(),
            orders: Vec::new(),
            tickets: reports::Tickets::default(),
            look_at_ways: false,
            used_stations_at: Instant(0),
        }
    }

    /// The commands to carry out. The caller takes them after each call of another method.
    pub(crate) fn take_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// True if there is no lane.
    pub(crate) fn is_idle(&self) -> bool {
        self.lanes.is_empty()
    }

    /// The time of the next call of [`Flows::look`], unless an event comes earlier.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().map(|waiting| waiting.until);
        let calls = self.calls.values().map(|call| call.until);
        waiting.chain(calls).chain(self.tickets.next_due()).min()
    }

    /// Takes over a driver that an earlier daemon has started.
    pub(crate) fn find(&mut self, link: &IfName, now: Now) {
        self.reach(link, Lane::new(), None, now);
    }

    /// Opens a lane. Its first call asks the driver for its flows and its mode.
    fn reach(&mut self, link: &IfName, lane: Lane, start: Option<Start>, now: Now) {
        self.lanes.insert(link.clone(), lane);
        self.orders.push(Order::Reach(link.clone(), start));
        self.call(link, DriverRequest::Census, None, Pending::Adopt, now);
    }

    /// Sends a call to a driver.
    fn call(
        &mut self,
        link: &IfName,
        ask: DriverRequest,
        fd: Option<OwnedFd>,
        what: Pending,
        now: Now,
    ) {
        let id = self.next_call;
        self.next_call += 1;
        let patience = match self.lanes.get(link) {
            Some(lane) if lane.here => PATIENCE,
            // The driver is still starting.
            _ => PATIENCE_AT_START,
        };
        let call = Call {
            link: link.clone(),
            until: now.monotonic.after(patience),
            what,
        };
        self.calls.insert(id, call);
        let order = Order::Call(link.clone(), DriverCall { id, request: ask }, fd);
        self.orders.push(order);
    }

    /// Notifies the program of a flow.
    fn tell_flow(&mut self, flow: u32, news: FlowNotification) {
        let Some(flow) = self.flows.get(&flow) else {
            return;
        };
        let program = self.lanes.get(&flow.link);
        let program = program.and_then(|lane| lane.programs.get(&flow.program));
        if let Some(session) = program.and_then(|program| program.session) {
            self.tell_session(session, news);
        }
    }

    fn tell_session(&self, session: u64, news: FlowNotification) {
        if let Some(session) = self.sessions.get(&session)
            && session.guest.news.try_send(news).is_err()
        {
            // The program does not read and its queue is full: it misses this notification, and
            // sees at least the end of the connection.
            tracing::debug!(pid = session.pid, "news of flows are not read");
        }
    }
}

impl Lane {
    fn new() -> Lane {
        Lane {
            nic: None,
            here: false,
            mode: String::new(),
            why_not_native: None,
            programs: BTreeMap::new(),
            count: 0,
            promised: BTreeMap::new(),
            any_degraded: false,
            split: None,
            tree_after: None,
            need: None,
            room: None,
            seen: None,
            sends: 0,
            asked_totals: false,
            asked_census: false,
            await_census: Vec::new(),
            discards: None,
        }
    }
}

/// Replies with an error.
fn refuse(reply: Reply, denied: Denied) {
    // The send fails if the peer has closed its connection.
    let _ = reply.send(Told::from(netnice_api::Response::from(denied)));
}

/// Time limit for a driver's answer.
const PATIENCE: Nanos = Nanos::from_secs(5);
/// Time limit for the answer of a driver that is being started.
const PATIENCE_AT_START: Nanos = Nanos::from_secs(20);
