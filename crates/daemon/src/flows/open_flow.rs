//! Opening, changing and closing flows: checks the request, holds ports, resolves the next hop,
//! admits, and calls the driver. A refused or failed request releases what it holds.

use std::net::IpAddr;

use netnice_api::Response;
use netnice_api::direct::{
    ChangeFlow, DirectReply, Endpoint, FlowOpened, OpenFlow, ResolvedNextHop,
};
use netnice_api::driver::{DriverFlow, DriverRequest};
use netnice_core::contract::{Change, Clause, Contract};
use netnice_core::sched::Service;
use netnice_kernel::routes::Neighbour;

use super::network::Network;
use super::promises::Promises;
use super::{Before, Flow, Flows, Pending, Reply, Station, Waiting, Wanted, admission, refuse};
use crate::authority;
use crate::clock::Now;
use crate::denied::Denied;
use crate::peer::Peer;
use crate::server::Told;

impl<N: Network> Flows<N> {
    pub(super) fn open(
        &mut self,
        promises: &mut impl Promises,
        session: u64,
        open: OpenFlow,
        reply: Reply,
        now: Now,
    ) {
        let flow = match self.new_flow(promises, session, open) {
            Ok(flow) => flow,
            Err(denied) => return refuse(reply, denied),
        };
        let Station::Toward { via, .. } = flow.station else {
            return self.open_at_driver(promises, flow, reply, now);
        };
        match self.station(&flow, via) {
            Ok(Neighbour::Known(mac)) => {
                let mut flow = flow;
                flow.station = flow.station.at(Some(mac));
                self.open_at_driver(promises, flow, reply, now);
            }
            Ok(_) => {
                let index = self.index_of(&flow);
                let flow = Box::new(flow);
                let what = Wanted::Flow {
                    session,
                    flow,
                    reply,
                };
                self.wait_for(index, via, what, now);
            }
            Err(denied) => {
                self.give_back_of(&flow);
                refuse(reply, denied);
            }
        }
    }

    /// A flow as requested, with its ports held.
    fn new_flow(
        &mut self,
        promises: &impl Promises,
        session: u64,
        open: OpenFlow,
    ) -> Result<Flow, Denied> {
        let session = self.sessions.get(&session).ok_or_else(not_attached)?;
        promises.may_use(&session.peer)?;
        let (peer, link) = (session.peer.clone(), session.link.clone());
        let program = session.program.ok_or_else(not_attached)?;
        let most = session.flows;
        let lane = self.lanes.get(&link);
        let present = lane.and_then(|lane| Some(lane.programs.get(&program)?.open));
        let present = present.unwrap_or(0);
        if present >= most {
            return Err(Denied::NotAdmitted(format!(
                "refused: this program attached for {most} flows, and {present} are open"
            )));
        }
        let contract = contract(&peer, &Contract::default(), open.contract.as_deref())?;
        on_this_link(&contract, &link)?;
        let nic = self.nic_of(&link)?;
        let chosen = self.choose(&peer, &link, nic, &open.endpoint)?;
        let number = self.free_number();
        Ok(Flow {
            number,
            link,
            program,
            at_driver: None,
            setup: open,
            endpoint: chosen.endpoint,
            contract,
            degraded: None,
            station: chosen.station,
            mtu: chosen.mtu,
            ports: chosen.ports,
            closing: None,
        })
    }

    /// The next unused flow number. Numbers ascend, so that a number in the log is not soon reused.
    fn free_number(&mut self) -> u32 {
        loop {
            let number = self.next_flow;
            self.next_flow = number.checked_add(1).unwrap_or(1);
            if number != 0 && !self.flows.contains_key(&number) {
                return number;
            }
        }
    }

    /// Admits a flow whose next hop is known, and asks the driver to open it.
    pub(super) fn open_at_driver(
        &mut self,
        promises: &mut impl Promises,
        flow: Flow,
        reply: Reply,
        now: Now,
    ) {
        let (link, number) = (flow.link.clone(), flow.number);
        self.enrol(flow.clone());
        if let Err(denied) = self.admit(promises, &link, number, None, now) {
            self.forget_flow(number);
            return refuse(reply, denied);
        }
        let ask = DriverRequest::Open(Box::new(self.setup(&flow)));
        let what = Pending::Open {
            flow: Box::new(flow),
            reply,
        };
        self.call(&link, ask, None, what, now);
    }

    /// The setup of a flow for the driver.
    pub(super) fn setup(&self, flow: &Flow) -> DriverFlow {
        let (contract, granted) = self.terms(flow);
        DriverFlow {
            program: flow.program,
            number: flow.number,
            endpoint: flow.endpoint.clone(),
            next_hop: flow.station.mac(),
            mtu: flow.mtu,
            contract,
            granted,
            shape: flow.setup.shape,
            in_order: flow.setup.in_order,
            receive_budget: Some(RECEIVE_SHARE),
        }
    }

    pub(super) fn opened(&self, flow: &Flow, slot: u32, offset: u64) -> Response {
        let mac = self.lanes.get(&flow.link).and_then(|lane| lane.nic?.mac);
        Response::Direct(DirectReply::Opened(FlowOpened {
            flow: flow.number,
            slot,
            offset,
            endpoint: flow.endpoint.clone(),
            mac: mac.unwrap_or_default(),
            next_hop: flow.station.mac(),
            mtu: flow.mtu,
            contract: flow.contract.to_string(),
        }))
    }

    pub(super) fn change(
        &mut self,
        promises: &mut impl Promises,
        session: u64,
        asked: &ChangeFlow,
        reply: Reply,
        now: Now,
    ) {
        let changed = self.own_flow(session, asked.flow).and_then(|flow| {
            let session = self.sessions.get(&session).ok_or_else(not_attached)?;
            let after = contract(&session.peer, &flow.contract, Some(&asked.change))?;
            on_this_link(&after, &flow.link)?;
            Ok((flow.link.clone(), flow.contract.clone(), after))
        });
        let (link, before, after) = match changed {
            Ok(changed) => changed,
            Err(denied) => return refuse(reply, denied),
        };
        let degraded = self
            .flows
            .get(&asked.flow)
            .and_then(|flow| flow.degraded.clone());
        self.set_contract(asked.flow, after, None);
        if let Err(denied) = self.admit(promises, &link, asked.flow, Some(&before), now) {
            self.set_contract(asked.flow, before, degraded);
            return refuse(reply, denied);
        }
        let before = Box::new(Before {
            contract: before,
            degraded,
        });
        let flow = self.flows.get(&asked.flow).cloned();
        let Some(flow) = flow.filter(|flow| flow.at_driver.is_some()) else {
            return refuse(reply, no_flow(asked.flow));
        };
        let what = Pending::Change {
            flow: flow.number,
            before,
            reply,
        };
        self.serve(&flow, what, now);
    }

    pub(super) fn close(&mut self, session: u64, number: u32, reply: Reply, now: Now) {
        match self.own_flow(session, number).cloned() {
            Ok(flow) => self.close_flow(&flow, "closed by its program", Some(reply), now),
            Err(denied) => refuse(reply, denied),
        }
    }

    /// Asks the driver to close a flow. A flow that is being opened is closed once it is open.
    pub(super) fn close_flow(&mut self, flow: &Flow, why: &str, reply: Option<Reply>, now: Now) {
        if let Some(flow) = self.flows.get_mut(&flow.number) {
            flow.closing.get_or_insert_with(|| why.to_owned());
        }
        let Some(at_driver) = flow.at_driver else {
            return;
        };
        let ask = DriverRequest::Close { flow: at_driver };
        let what = Pending::Close {
            flow: flow.number,
            reply,
        };
        self.call(&flow.link.clone(), ask, None, what, now);
    }

    /// An open flow of this session.
    fn own_flow(&self, session: u64, number: u32) -> Result<&Flow, Denied> {
        let session = self.sessions.get(&session).ok_or_else(not_attached)?;
        let flow = self.flows.get(&number).filter(|flow| {
            let is_open = flow.at_driver.is_some() && flow.closing.is_none();
            is_open && flow.link == session.link && Some(flow.program) == session.program
        });
        flow.ok_or_else(|| no_flow(number))
    }

    /// Replies with the next hop towards a host.
    pub(super) fn next_hop(&mut self, session: u64, to: IpAddr, reply: Reply, now: Now) {
        let found = self.hop(session, to);
        match found {
            Ok((_, _, mtu, Neighbour::Known(mac))) => hop(reply, mac, mtu),
            Ok((index, via, mtu, _)) => {
                self.wait_for(index, via, Wanted::Hop { mtu, reply }, now);
            }
            Err(denied) => refuse(reply, denied),
        }
    }

    fn hop(&mut self, session: u64, to: IpAddr) -> Result<(u32, IpAddr, u32, Neighbour), Denied> {
        let session = self.sessions.get(&session).ok_or_else(not_attached)?;
        let link = session.link.clone();
        let nic = self.nic_of(&link)?;
        let way = self.way(&link, nic, to, None)?;
        let known = self.network.neighbour(nic.index, way.next_hop)?;
        let mtu = super::endpoint::mtu(&way, nic);
        Ok((nic.index, way.next_hop, mtu, known))
    }

    /// Starts neighbour resolution, and waits for it.
    fn wait_for(&mut self, index: u32, via: IpAddr, what: Wanted, now: Now) {
        if let Err(error) = self.network.solicit(index, via) {
            tracing::debug!(%error, "a station cannot be asked for");
        }
        self.waiting.push(Waiting {
            until: now.monotonic.after(super::routes::PATIENCE),
            index,
            via,
            what,
        });
    }

    fn station(&mut self, flow: &Flow, via: IpAddr) -> Result<Neighbour, Denied> {
        let index = self.index_of(flow);
        self.network.neighbour(index, via)
    }

    fn index_of(&self, flow: &Flow) -> u32 {
        let nic = self.lanes.get(&flow.link).and_then(|lane| lane.nic);
        nic.map_or(0, |nic| nic.index)
    }

    /// Releases the ports of a flow that is not open.
    pub(super) fn give_back_of(&mut self, flow: &Flow) {
        self.give_back(&flow.ports, end(&flow.endpoint));
    }

    /// Adds a flow to the records.
    pub(super) fn enrol(&mut self, flow: Flow) {
        let number = flow.number;
        if let Some(lane) = self.lanes.get_mut(&flow.link) {
            lane.count += 1;
            if let Some(program) = lane.programs.get_mut(&flow.program) {
                program.open += 1;
            }
        }
        self.flows.insert(number, flow);
        self.count_promise(number);
    }

    /// Removes a flow from the records and releases its ports.
    pub(super) fn forget_flow(&mut self, number: u32) -> Option<Flow> {
        let flow = self.flows.remove(&number)?;
        if let Some(lane) = self.lanes.get_mut(&flow.link) {
            lane.count -= 1;
            lane.promised.remove(&number);
            if let Some(program) = lane.programs.get_mut(&flow.program) {
                program.open -= 1;
            }
        }
        self.give_back_of(&flow);
        Some(flow)
    }

    /// Sets a flow's contract, and why its promise is not kept (`None` if it is).
    pub(super) fn set_contract(
        &mut self,
        number: u32,
        contract: Contract,
        degraded: Option<String>,
    ) {
        if let Some(flow) = self.flows.get_mut(&number) {
            flow.contract = contract;
            flow.degraded = degraded;
        }
        self.count_promise(number);
    }

    fn count_promise(&mut self, number: u32) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(&flow.link) else {
            return;
        };
        match flow.degraded.is_none() && admission::is_promised(&flow.contract) {
            true => drop(lane.promised.insert(number, flow.contract.clone())),
            false => drop(lane.promised.remove(&number)),
        }
    }
}

/// The remote end, which distinguishes flows of one port.
pub(super) fn end(endpoint: &Endpoint) -> Option<std::net::SocketAddr> {
    match endpoint {
        Endpoint::Udp { remote, .. } => *remote,
        Endpoint::Group { group, .. } => Some(*group),
        Endpoint::Protocol { .. } | Endpoint::EtherType { .. } => None,
    }
}

/// Replies to a next-hop request.
pub(super) fn hop(reply: Reply, mac: [u8; 6], mtu: u32) {
    let answer = DirectReply::NextHop(ResolvedNextHop { mac, mtu });
    let _ = reply.send(Told::from(Response::Direct(answer)));
}

/// The contract after a change, if this peer may request it for a flow.
fn contract(peer: &Peer, before: &Contract, change: Option<&str>) -> Result<Contract, Denied> {
    let Some(text) = change.filter(|text| *text != "none") else {
        return Ok(before.clone());
    };
    let change: Change = text.parse()?;
    authority::may_ask(peer, &change)?;
    let after = before.apply(&change)?;
    let clauses = after.as_change().clauses();
    let foreign = clauses.into_iter().find(|clause| {
        matches!(
            clause,
            Clause::Down | Clause::Both | Clause::MinDown | Clause::Priority | Clause::Cpu
        )
    });
    if let Some(clause) = foreign {
        return Err(Denied::BadUsage(format!(
            "{clause} is not for direct flows: up, burst, min, slice, cell, channel and weight are; \
             what a flow receives is bounded by its buffers"
        )));
    }
    Service::of(&after).map_err(|error| Denied::BadUsage(error.to_string()))?;
    Ok(after)
}

/// Checks that a contract names no link other than its program's.
fn on_this_link(contract: &Contract, link: &netnice_core::contract::IfName) -> Result<(), Denied> {
    match contract.on() {
        Some(other) if other != link => Err(Denied::BadUsage(format!(
            "this program attached to {link}: its flows cannot be promised anything on {other}"
        ))),
        _ => Ok(()),
    }
}

fn not_attached() -> Denied {
    Denied::BadUsage(
        "attach to a link first: this connection has not, or its driver has ended".to_owned(),
    )
}

fn no_flow(number: u32) -> Denied {
    Denied::BadUsage(format!("flow:{number} is not open, or another program's"))
}

/// A flow's share of its driver's time for receiving, in millionths: half, so that one flow never
/// occupies the whole driver. It corresponds to some 300,000 packets of 1500 bytes a second.
pub(super) const RECEIVE_SHARE: u32 = 500_000;
