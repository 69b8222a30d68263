//! Opens, changes and closes flows. To open a flow, the
//! manager checks the request, holds the ports, resolves the next hop, admits the contract, and
//! calls the driver. An opening is refused if the session is not attached, the policy or the peer's
//! rights do not permit it, the program has as many flows and holds as it attached for, the hold to
//! open it with is not the program's (`super::holds`), the contract is invalid or names another
//! link, the endpoint or the link cannot be used, the next hop stays unknown, or the contract does
//! not fit; it fails if the driver fails. An opening that is refused or fails releases what it
//! holds, except the promise that was held before, and a change that is refused or fails restores
//! the former contract.

use std::net::IpAddr;
use std::rc::Rc;

use netnice_api::direct::{ChangeFlow, FlowOpened, OpenFlow};
use netnice_api::driver::{DriverFlow, DriverRequest};
use netnice_core::contract::{Contract, IfName};
use netnice_kernel::routes::Neighbour;

use super::messages::plural;
use super::network::Network;
use super::ports::PortOwner;
use super::promised_flows::PromiseHolder;
use super::promises::Promises;
use super::receive_shares::receive_budget;
use super::requested_contracts::{check_class, check_link, contract, contract_without_request};
use super::{
    CallPurpose, FlowRecord, Flows, FormerContract, NextHop, PendingResolution, ReplySender,
    ResolutionFor, admission, budgets, refuse, tcp_keys,
};
use crate::clock::Now;
use crate::error::RequestError;
use crate::peer::Peer;

impl<N: Network> Flows<N> {
    /// Opens a flow, or refuses it for the reasons in the module's documentation. The reply comes
    /// when the driver has answered.
    pub(super) fn open(
        &mut self,
        promises: &mut impl Promises,
        session: u64,
        open: OpenFlow,
        reply: ReplySender,
        now: Now,
    ) {
        let flow = match self.prepare_flow(promises, session, open) {
            Ok(flow) => flow,
            Err(error) => return refuse(reply, error),
        };
        self.open_prepared(promises, session, flow, reply, now);
    }

    /// Resolves the next hop of a flow whose ports are held, admits the flow, and asks the driver
    /// to open it.
    pub(super) fn open_prepared(
        &mut self,
        promises: &mut impl Promises,
        session: u64,
        flow: FlowRecord,
        reply: ReplySender,
        now: Now,
    ) {
        let NextHop::Toward { via, .. } = flow.next_hop else {
            return self.open_at_driver(promises, flow, reply, now);
        };
        match self.neighbour_of(&flow, via) {
            Ok(Neighbour::Known(mac)) => {
                let mut flow = flow;
                flow.next_hop = flow.next_hop.with_mac(Some(mac));
                self.open_at_driver(promises, flow, reply, now);
            }
            Ok(_) => {
                let index = self.interface_of(&flow);
                let flow = Box::new(flow);
                let purpose = ResolutionFor::Flow {
                    session,
                    flow,
                    reply,
                };
                self.resolve(index, via, purpose, now);
            }
            Err(error) => {
                self.release_ports_of(&flow);
                self.opening_failed(promises, &flow, &error, now);
                refuse(reply, error);
            }
        }
    }

    /// The record of a requested flow, with its ports held. If it fails, no port is held.
    pub(super) fn prepare_flow(
        &mut self,
        promises: &mut impl Promises,
        session: u64,
        open: OpenFlow,
    ) -> Result<FlowRecord, RequestError> {
        if let Some(hold) = open.hold {
            self.holds.check_usable(session, hold)?;
        }
        let Opener {
            peer,
            link,
            program,
            pid,
            has_channels,
        } = self.opener(promises, session, open.hold)?;
        let uid = peer.uid;
        let mut has_budget = || promises.budget_of(pid, uid, &link).is_some();
        let text = open.contract.as_deref();
        let before = contract_without_request(&open.endpoint, text);
        let contract = contract(&peer, &before, text, has_channels, &mut has_budget)?;
        check_link(&contract, &link)?;
        let nic = self.nic_of(&link)?;
        let secret = self.secret_for(&open.endpoint)?;
        let owner = PortOwner::of(&peer, pid, program, nic.index);
        let resolved = self.resolve_endpoint(owner, &link, nic, &open.endpoint)?;
        let local = resolved.ports.first().map(|port| port.at);
        let key = secret.zip(local);
        let number = self.free_number();
        if let Some(hold) = open.hold {
            self.holds.begin_opening(hold);
        }
        Ok(FlowRecord {
            number,
            link,
            program,
            at_driver: None,
            slot: 0,
            endpoint: resolved.endpoint,
            shape: open.shape,
            in_order: open.in_order,
            contract: Rc::new(contract),
            degraded: None,
            next_hop: resolved.next_hop,
            mtu: resolved.mtu,
            ports: resolved.ports,
            key: key.map(|(secret, local)| tcp_keys::key(&secret, uid, local)),
            closing: None,
            is_given_up: false,
            movement: None,
            hold: open.hold,
        })
    }

    /// The program of a session, which may open one more flow. `hold` is the hold with which the
    /// flow is to be opened.
    ///
    /// # Errors
    /// If the session is not attached, the policy does not permit flows to its peer, or it has as
    /// many flows and holds as it attached for.
    pub(super) fn opener(
        &self,
        promises: &impl Promises,
        session: u64,
        hold: Option<u32>,
    ) -> Result<Opener, RequestError> {
        let known = self.sessions.get(&session).ok_or_else(not_attached)?;
        promises.may_use(&known.peer)?;
        let program = known.program.ok_or_else(not_attached)?;
        let state = self.link_states.get(&known.link);
        let open = state.and_then(|state| state.programs.get(&program));
        let open = open.map_or(0, |program| program.open.len());
        let held = self.holds.count_of(session, hold);
        let most = known.flows;
        if open + held >= most as usize {
            let held = match held {
                0 => String::new(),
                held => format!(", and {} held", plural(held, "promise")),
            };
            return Err(RequestError::NotAdmitted(format!(
                "refused: this program attached for {most} flows, and {open} are open{held}"
            )));
        }
        Ok(Opener {
            has_channels: promises.may_have_channels(&known.peer),
            peer: known.peer.clone(),
            link: known.link.clone(),
            program,
            pid: known.pid,
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

    /// Admits a flow whose next hop is known or not needed, and asks the driver to open it.
    pub(super) fn open_at_driver(
        &mut self,
        promises: &mut impl Promises,
        flow: FlowRecord,
        reply: ReplySender,
        now: Now,
    ) {
        let (link, number) = (flow.link.clone(), flow.number);
        let held = self.replace_hold(&flow);
        self.record_flow(flow.clone());
        if let Err(error) = self.admit(promises, &link, number, held.as_deref(), now) {
            self.remove_flow(number, now);
            self.opening_failed(promises, &flow, &error, now);
            return refuse(reply, error);
        }
        self.send_server(&link, now);
        let ask = DriverRequest::Open(Box::new(self.setup(&flow)));
        let purpose = CallPurpose::Open {
            flow: Box::new(flow),
            reply,
        };
        self.call(&link, ask, None, purpose, now);
    }

    /// The setup of a flow for the driver.
    pub(super) fn setup(&self, flow: &FlowRecord) -> DriverFlow {
        let (contract, granted) = self.contracts_for_driver(flow);
        DriverFlow {
            program: flow.program,
            number: flow.known_number(),
            endpoint: flow.endpoint.clone(),
            next_hop: flow.next_hop.mac(),
            mtu: flow.mtu,
            contract,
            granted,
            shape: flow.shape,
            in_order: flow.in_order,
            receive_budget: Some(receive_budget(&flow.endpoint)),
        }
    }

    /// The response for an open flow. `slot` and `offset` (in bytes) are those of its memory in the
    /// program's memory file.
    pub(super) fn flow_opened(&self, flow: &FlowRecord, slot: u32, offset: u64) -> FlowOpened {
        let mac = self
            .link_states
            .get(&flow.link)
            .and_then(|state| state.nic?.mac);
        FlowOpened {
            flow: flow.number,
            slot,
            offset,
            endpoint: flow.endpoint.clone(),
            mac: mac.unwrap_or_default(),
            next_hop: flow.next_hop.mac(),
            mtu: flow.mtu,
            contract: flow.contract.to_string(),
            key: flow.key,
        }
    }

    /// Changes the contract of an open flow. Refused if the flow is not one of the session, or if
    /// the new contract is invalid, not permitted or does not fit.
    pub(super) fn change(
        &mut self,
        promises: &mut impl Promises,
        session: u64,
        request: &ChangeFlow,
        reply: ReplySender,
        now: Now,
    ) {
        let changed = self.own_flow(session, request.flow).and_then(|flow| {
            let session = self.sessions.get(&session).ok_or_else(not_attached)?;
            let (pid, uid) = (session.pid, session.peer.uid);
            let text = Some(request.change.as_str());
            let peer = &session.peer;
            let channels = promises.may_have_channels(peer);
            let mut has_budget = || promises.budget_of(pid, uid, &flow.link).is_some();
            let after = contract(peer, &flow.contract, text, channels, &mut has_budget)?;
            check_link(&after, &flow.link)?;
            check_class(&flow.contract, &after)?;
            if self.is_being_taken(flow.number) {
                return Err(RequestError::Failed(format!(
                    "flow:{} moves to another link: change its contract there",
                    flow.number
                )));
            }
            Ok((flow.link.clone(), flow.contract.clone(), after))
        });
        let (link, before, after) = match changed {
            Ok(changed) => changed,
            Err(error) => return refuse(reply, error),
        };
        let degraded = self
            .flows
            .get(&request.flow)
            .and_then(|flow| flow.degraded.clone());
        self.set_contract(request.flow, Rc::new(after), None);
        let admitted = self.admit(promises, &link, request.flow, Some(before.as_ref()), now);
        if let Err(error) = admitted {
            self.set_contract(request.flow, before, degraded);
            self.store_minimums(promises, &link, None);
            return refuse(reply, error);
        }
        let before = Box::new(FormerContract {
            contract: before,
            degraded,
        });
        let flow = self.flows.get(&request.flow).cloned();
        let Some(flow) = flow.filter(|flow| flow.at_driver.is_some()) else {
            return refuse(reply, no_flow(request.flow));
        };
        let purpose = CallPurpose::Change {
            flow: flow.number,
            before,
            reply,
        };
        self.send_contract(&flow, purpose, now);
    }

    /// Closes a flow of a session. Refused if the session has no such flow.
    pub(super) fn close(&mut self, session: u64, number: u32, reply: ReplySender, now: Now) {
        match self.own_flow(session, number).cloned() {
            Ok(flow) => {
                if let Some(known) = self.flows.get_mut(&number) {
                    known.is_given_up = true;
                }
                self.close_flow(&flow, "closed by its program", Some(reply), now);
            }
            Err(error) => refuse(reply, error),
        }
    }

    /// Asks the driver to close a flow, and to reset its TCP connection if neither its program
    /// closes it nor the connection continues on another link. A flow that is being opened is
    /// closed once it is open.
    pub(super) fn close_flow(
        &mut self,
        flow: &FlowRecord,
        why: &str,
        reply: Option<ReplySender>,
        now: Now,
    ) {
        let mut reset = false;
        if let Some(flow) = self.flows.get_mut(&flow.number) {
            flow.closing.get_or_insert_with(|| why.to_owned());
            // A driver of an earlier version does not know the field.
            reset = flow.endpoint.is_tcp() && !flow.is_given_up && flow.is_shown();
        }
        let Some(at_driver) = flow.at_driver else {
            return;
        };
        let ask = DriverRequest::Close {
            flow: at_driver,
            reset,
        };
        let purpose = CallPurpose::Close {
            flow: flow.number,
            reply,
        };
        self.call(&flow.link.clone(), ask, None, purpose, now);
    }

    /// An open flow of this session.
    fn own_flow(&self, session: u64, number: u32) -> Result<&FlowRecord, RequestError> {
        let session = self.sessions.get(&session).ok_or_else(not_attached)?;
        let flow = self.flows.get(&number).filter(|flow| {
            let is_open = flow.at_driver.is_some() && flow.closing.is_none();
            is_open && flow.link == session.link && Some(flow.program) == session.program
        });
        flow.ok_or_else(|| no_flow(number))
    }

    /// Starts neighbour resolution, and waits for it.
    pub(super) fn resolve(&mut self, index: u32, via: IpAddr, purpose: ResolutionFor, now: Now) {
        if let Err(error) = self.network.solicit(index, via) {
            tracing::debug!(%error, "the resolution of a next hop cannot be started");
        }
        self.resolutions.push(PendingResolution {
            deadline: now.monotonic.after(super::routes::RESOLUTION_TIMEOUT),
            index,
            via,
            purpose,
        });
    }

    fn neighbour_of(&mut self, flow: &FlowRecord, via: IpAddr) -> Result<Neighbour, RequestError> {
        let index = self.interface_of(flow);
        self.network.neighbour(index, via)
    }

    fn interface_of(&self, flow: &FlowRecord) -> u32 {
        let nic = self.link_states.get(&flow.link).and_then(|state| state.nic);
        nic.map_or(0, |nic| nic.index)
    }

    /// Releases the ports of a flow that is not open.
    pub(super) fn release_ports_of(&mut self, flow: &FlowRecord) {
        self.release_ports(&flow.ports, None);
    }

    /// Adds a flow to the records.
    pub(super) fn record_flow(&mut self, flow: FlowRecord) {
        let number = flow.number;
        if let Some(state) = self.link_states.get_mut(&flow.link) {
            state.flow_count += 1;
            if let Some(program) = state.programs.get_mut(&flow.program) {
                program.open.insert(number);
            }
        }
        self.icmp.insert(&flow);
        self.flows.insert(number, flow);
        self.update_promise(number);
    }

    /// Removes a flow from the records and releases its ports, which may be kept if its program
    /// has not closed it; `None` if there is no such flow. The promise with which it was being
    /// opened is held again.
    pub(super) fn remove_flow(&mut self, number: u32, now: Now) -> Option<FlowRecord> {
        let flow = self.flows.remove(&number)?;
        self.icmp.remove(&flow);
        if let Some(state) = self.link_states.get_mut(&flow.link) {
            state.flow_count -= 1;
            state.promised.set(PromiseHolder::Flow(number), None);
            state.minimums.remove(&number);
            state.members.set(number, None);
            if let Some(program) = state.programs.get_mut(&flow.program) {
                program.open.remove(&number);
            }
        }
        if let Some(hold) = flow.hold {
            self.hold_again(hold, now);
        }
        let was_open = flow.at_driver.is_some();
        let abandoned = (was_open && !flow.is_given_up && flow.is_shown()).then_some(now);
        self.release_ports(&flow.ports, abandoned);
        Some(flow)
    }

    /// Sets a flow's contract, and why its promise is not kept (`None` if it is).
    pub(super) fn set_contract(
        &mut self,
        number: u32,
        contract: Rc<Contract>,
        degraded: Option<String>,
    ) {
        if let Some(flow) = self.flows.get_mut(&number) {
            flow.contract = contract;
            flow.degraded = degraded;
        }
        self.update_promise(number);
    }

    pub(super) fn update_promise(&mut self, number: u32) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        let Some(state) = self.link_states.get_mut(&flow.link) else {
            return;
        };
        state.members.set(number, Some(&flow.contract));
        let is_kept = flow.degraded.is_none() && admission::is_promised(&flow.contract);
        let promised = Some(&flow.contract).filter(|_| is_kept);
        state.promised.set(PromiseHolder::Flow(number), promised);
        match budgets::minimum(flow) {
            Some(_) => state.minimums.insert(number),
            None => state.minimums.remove(&number),
        };
    }
}

/// The program of a session that opens a flow, or holds a promise.
pub(super) struct Opener {
    pub peer: Peer,
    pub link: IfName,
    /// The driver's id of the program.
    pub program: u32,
    pub pid: u32,
    /// The peer may have channels ([`Promises::may_have_channels`]).
    pub has_channels: bool,
}

/// The error of a request that needs an attachment.
pub(super) fn not_attached() -> RequestError {
    RequestError::BadUsage(
        "attach to a link first: this connection has not, or its driver has ended".to_owned(),
    )
}

pub(super) fn no_flow(number: u32) -> RequestError {
    RequestError::BadUsage(format!(
        "flow:{number} is not open, or belongs to another program"
    ))
}
