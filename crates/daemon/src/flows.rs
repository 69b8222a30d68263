//! The flow manager: who has which flow of the direct path, and on what terms.
//!
//! A program on the direct path hands its packets to a driver process through memory of its own; the daemon is not on
//! that way. It decides what has to be decided once: who may have a flow, whose port it is, by which station its
//! packets leave, and what is promised to it. Then it tells the driver, and tells the program what changes.
//!
//! ```text
//!   program ──attach──▶ a driver of the link is there, or is started ──▶ memory file and doorbells go back
//!           ──open────▶ contract, way, port ─▶ station ─▶ admitted ─▶ driver ─▶ open ──▶ told of changes
//!                          │ no                 │ 1 s       │ no        │ no      │
//!                          └────────────────────┴── refused, and all given back ──┴── closed, program gone, driver gone
//! ```
//!
//! # One writer
//! [`Flows`] is a state machine without waiting: requests, words of drivers and changes of the network go in; calls to
//! drivers come out ([`Flows::take_orders`]), and answers go to whoever asked. What is promised on a link is in the ledger
//! as one part for all flows of it, so that neither path promises what the other has; see [`admission`], [`division`] and
//! [`promises`], the only way from here to the rest of the daemon. A driver goes on without the daemon; the next daemon asks it what it has, and admits that again.
//!
//! # Terms
//! - A *lane* is a link with a driver. A *session* is a connection that has attached to a lane.
//! - A *program* is a driver's word for who has attached; of a program that an earlier daemon attached there is no
//!   session, and it lives until its process ends.
//! - The *station* of a flow is who its frames go to: the next hop.

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

use netnice_api::direct::{DirectRequest, FlowNews, OpenFlow, Speaks, Term};
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

/// Where an answer goes.
pub(crate) type Reply = oneshot::Sender<Told>;

/// What the caller does for the flow manager.
#[derive(Debug)]
pub(crate) enum Order {
    /// Speak to the driver of a link; start one if there is none and it is said how.
    Reach(IfName, Option<Start>),
    /// Make a call.
    Call(IfName, DriverCall, Option<OwnedFd>),
    /// Let go of the connection to a driver.
    Leave(IfName),
    /// Say when this connection has ended.
    Watch(Guest),
}

/// A request of a program.
pub(crate) struct Asked {
    /// Who asks.
    pub peer: Peer,
    /// The connection.
    pub guest: Guest,
    /// What.
    pub request: DirectRequest,
    /// The process, of an attachment.
    pub caller: Option<Caller>,
    /// Where the answer goes.
    pub reply: Reply,
}

/// A process that asks.
pub(crate) struct Caller {
    /// Its number.
    pub pid: u32,
    /// A handle of it for the driver.
    pub handle: OwnedFd,
    /// Whether it still lives.
    pub lives: Box<dyn Fn() -> bool>,
}

/// See the module.
pub(crate) struct Flows<N: Network> {
    network: N,
    lanes: BTreeMap<IfName, Lane>,
    sessions: BTreeMap<u64, Session>,
    /// Connections that are there and were of a session once, by number.
    guests: BTreeMap<u64, GuestOf>,
    flows: BTreeMap<u32, Flow>,
    next_flow: u32,
    ports: BTreeMap<std::net::SocketAddr, ports::Hold<N::Port>>,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    /// Flows whose station has not answered yet.
    waiting: Vec<Waiting>,
    orders: Vec<Order>,
    tickets: reports::Tickets,
    /// Something was heard of ways; those of all flows are looked at.
    look_at_ways: bool,
    used_stations_at: Instant,
}

/// A link with a driver.
struct Lane {
    nic: Option<Nic>,
    /// It answers.
    here: bool,
    /// How it reaches the link; empty until it has told what it has.
    mode: String,
    why_not_native: Option<String>,
    programs: BTreeMap<u32, Program>,
    /// How many flows there are, and what those are promised to whom anything is, by number.
    count: u32,
    promised: BTreeMap<u32, Contract>,
    /// Some were degraded since the lane was opened.
    any_degraded: bool,
    split: Option<Split>,
    /// The classes get this as soon as the driver has shrunk.
    tree_after: Option<Rate>,
    need: Option<Rate>,
    /// With what the present split was made.
    room: Option<admission::Room>,
    /// Bytes that flows and classes had sent, and when.
    seen: Option<(Instant, u64, Option<u64>)>,
    /// What moved lately, in bit/s.
    sends: u64,
    asked_totals: bool,
    /// A census is under way for answers, and those for which there is to be another one behind it.
    asked_census: bool,
    await_census: Vec<u64>,
    /// What its driver throws away, as far as that is known.
    discards: Option<Vec<Vec<Term>>>,
}

/// A program of a driver.
#[derive(Clone, Debug)]
struct Program {
    pid: u32,
    uid: u32,
    name: String,
    bytes: u64,
    /// How many of its flows there are.
    open: u32,
    /// Its connection, if this daemon has it.
    session: Option<u64>,
}

/// A connection that has attached.
struct Session {
    guest: Guest,
    peer: Peer,
    link: IfName,
    /// The driver's number of it; none until the driver has answered.
    program: Option<u32>,
    pid: u32,
    name: String,
    flows: u32,
    bytes: u64,
    /// Bytes of memory files that its user may have together.
    most: u64,
}

/// Whose a connection is that asked to attach. It is watched until it ends.
struct GuestOf {
    uid: u32,
    /// The same; none of root and the group.
    user: Option<u32>,
    /// It has attached, so it has no seat among the daemon's connections any more: it counts as a program of its user for as
    /// long as it is there, also when its program has ended.
    attached: bool,
}

/// A flow.
#[derive(Clone, Debug)]
struct Flow {
    number: u32,
    link: IfName,
    /// The driver's numbers, which soon are nobody else's: what it is told of one that has gone meanwhile it refuses.
    program: u32,
    /// None until it is open there.
    at_driver: Option<u32>,
    setup: OpenFlow,
    speaks: Speaks,
    /// As granted.
    contract: Contract,
    /// Why its promise is not kept now, if it is not.
    degraded: Option<String>,
    station: Station,
    mtu: u32,
    ports: Vec<std::net::SocketAddr>,
    /// Why it is being closed, if it is.
    closing: Option<String>,
}

/// Who a flow's frames go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Station {
    /// To whichever the program names.
    Any,
    /// To all members of a group.
    Group([u8; 6]),
    /// To the station on the way to this host.
    Toward {
        /// The host.
        host: IpAddr,
        /// The own address.
        from: IpAddr,
        /// The station.
        via: IpAddr,
        /// Its address, while it is known.
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

    /// The same station, with another address, or none.
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

/// A flow or a question that waits for a station.
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

/// A call that is not answered yet.
struct Call {
    link: IfName,
    until: Instant,
    what: Pending,
}

/// What a call was made for.
enum Pending {
    Attach {
        session: u64,
        reply: Reply,
        /// How it is asked again, if the driver is just ending for want of flows.
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
    /// For these answers.
    Tell(Vec<u64>),
    Totals,
    /// Nothing depends on the answer, or nobody waits for it any more.
    Nothing,
    /// Was given up; what it made is taken back.
    Late,
}

/// How a flow was served before it was changed.
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

    /// What the caller is to do; to be taken after each call of another method.
    pub(crate) fn take_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// Whether there is nothing to look after.
    pub(crate) fn is_idle(&self) -> bool {
        self.lanes.is_empty()
    }

    /// When [`Flows::look`] is wanted next, if nothing happens before.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().map(|waiting| waiting.until);
        let calls = self.calls.values().map(|call| call.until);
        waiting.chain(calls).chain(self.tickets.next_due()).min()
    }

    /// Begins to look after a driver that an earlier daemon has left.
    pub(crate) fn find(&mut self, link: &IfName, now: Now) {
        self.reach(link, Lane::new(), None, now);
    }

    /// Opens a lane. What its driver has, and how it reaches the link, is the first thing to be known of it.
    fn reach(&mut self, link: &IfName, lane: Lane, start: Option<Start>, now: Now) {
        self.lanes.insert(link.clone(), lane);
        self.orders.push(Order::Reach(link.clone(), start));
        self.call(link, DriverRequest::Census, None, Pending::Adopt, now);
    }

    /// Makes a call to a driver.
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
            // It is being started.
            _ => PATIENCE_AT_START,
        };
        let call = Call {
            link: link.clone(),
            until: now.monotonic.after(patience),
            what,
        };
        self.calls.insert(id, call);
        let order = Order::Call(link.clone(), DriverCall { id, ask }, fd);
        self.orders.push(order);
    }

    /// Tells the program of a flow.
    fn tell_flow(&mut self, flow: u32, news: FlowNews) {
        let Some(flow) = self.flows.get(&flow) else {
            return;
        };
        let program = self.lanes.get(&flow.link);
        let program = program.and_then(|lane| lane.programs.get(&flow.program));
        if let Some(session) = program.and_then(|program| program.session) {
            self.tell_session(session, news);
        }
    }

    fn tell_session(&self, session: u64, news: FlowNews) {
        if let Some(session) = self.sessions.get(&session)
            && session.guest.news.try_send(news).is_err()
        {
            // Who does not read has more to read than could be of any use, and hears the end of the connection at least.
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

/// Answers a request that is not carried out.
fn refuse(reply: Reply, denied: Denied) {
    // Who has gone meanwhile misses the answer.
    let _ = reply.send(Told::from(netnice_api::Response::from(denied)));
}

/// How long a driver may take for an answer.
const PATIENCE: Nanos = Nanos::from_secs(5);
/// The same where it has to be started first.
const PATIENCE_AT_START: Nanos = Nanos::from_secs(20);
