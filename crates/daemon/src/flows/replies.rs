//! Handles what drivers send: answers to calls, events, and the start and end of the connection.

use std::os::fd::OwnedFd;

use netnice_api::Response;
use netnice_api::direct::{Attached, DirectReply, FlowNotification, OpenFlow};
use netnice_api::driver::{
    CensusDoc, DriverEvent, DriverFlowDoc, DriverMessage, DriverReply, DriverRequest, ProgramDoc,
};
use netnice_core::contract::{Contract, IfName};

use super::driver::Heard;
use super::network::Network;
use super::promises::Promises;
use super::{
    Before, Call, Flow, Flows, Order, Pending, Program, Reply, Station, admission, refuse,
};
use crate::clock::Now;
use crate::denied::Denied;
use crate::journal::Kind;
use crate::server::Told;

impl<N: Network> Flows<N> {
    /// Handles an event of the connection to a link's driver.
    pub(crate) fn heard(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        heard: Heard,
        now: Now,
    ) {
        match heard {
            Heard::Came => {
                if let Some(lane) = self.lanes.get_mut(link) {
                    lane.here = true;
                }
            }
            Heard::Said(DriverMessage::Reply { id, reply: answer }, fds) => {
                let known = self.calls.get(&id).is_some_and(|call| call.link == *link);
                if let Some(call) = self.calls.remove(&id).filter(|_| known) {
                    self.answered(promises, call, answer, fds, now);
                }
            }
            Heard::Said(DriverMessage::Event(event), _) => {
                self.happened(promises, link, event, now)
            }
            Heard::Ended(why) => self.ended(promises, link, &why, now),
        }
    }

    fn answered(
        &mut self,
        promises: &mut impl Promises,
        call: Call,
        answer: DriverReply,
        fds: Vec<OwnedFd>,
        now: Now,
    ) {
        let link = call.link;
        match (call.what, answer) {
            (Pending::Detach { program }, _) => {
                self.forget_program(promises, &link, program, None, now);
            }
            (Pending::Attach { session, reply, .. }, answer) => {
                self.attached(&link, session, reply, answer, fds, now);
            }
            (Pending::Open { flow, reply }, answer) => {
                self.answered_open(promises, *flow, reply, answer, now);
            }
            (
                Pending::Change {
                    flow,
                    before,
                    reply,
                },
                answer,
            ) => {
                self.answered_change(promises, &link, (flow, *before), reply, answer, now);
            }
            (Pending::Close { flow, reply }, _) => {
                self.forget_flow(flow);
                self.settle(promises, &link, now);
                if let Some(reply) = reply {
                    super::sessions::done(reply);
                }
            }
            (Pending::Wire, DriverReply::Done) => self.rewired(promises, &link, now),
            (Pending::Discard, DriverReply::Done) => {}
            (Pending::Wire | Pending::Discard, other) => {
                promises
                    .journal()
                    .warn(now, format!("the driver of {link}: {}", failed(&other)));
            }
            (Pending::Adopt, DriverReply::Census(census)) => {
                self.adopt(promises, &link, *census, now);
            }
            (Pending::Tell(tickets), answer) => {
                let census = match answer {
                    DriverReply::Census(census) => Some((&link, *census)),
                    _ => None,
                };
                self.tickets.take(&tickets, census);
                self.tell_ready(promises, now);
                self.take_census(&link, now);
            }
            (Pending::Totals, DriverReply::Totals(totals)) => {
                self.totals(promises, &link, totals, now);
            }
            (Pending::Totals, _) => {
                if let Some(lane) = self.lanes.get_mut(&link) {
                    lane.asked_totals = false;
                }
            }
            (Pending::Late, answer) => self.take_back(&link, &answer, now),
            (_, DriverReply::Failed { why }) => {
                tracing::debug!(%link, why, "the driver could not");
            }
            (_, _) => {}
        }
    }

    fn answered_change(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        (flow, before): (u32, Before),
        reply: Reply,
        answer: DriverReply,
        now: Now,
    ) {
        if !matches!(answer, DriverReply::Done) {
            self.change_back(flow, before, now);
            self.settle(promises, link, now);
            return refuse(reply, failed(&answer));
        }
        self.settle(promises, link, now);
        let flow = self.flows.get(&flow);
        let done = netnice_api::Done {
            contract: flow.map(|flow| flow.contract.to_string()),
            ..netnice_api::Done::default()
        };
        let _ = reply.send(Told::from(Response::Done(done)));
    }

    fn attached(
        &mut self,
        link: &IfName,
        session: u64,
        reply: Reply,
        answer: DriverReply,
        fds: Vec<OwnedFd>,
        now: Now,
    ) {
        let DriverReply::Attached { program } = answer else {
            self.sessions.remove(&session);
            return refuse(reply, failed(&answer));
        };
        let (Some(lane), Some(known)) = (self.lanes.get_mut(link), self.sessions.get_mut(&session))
        else {
            // The program's connection has ended while the driver attached it.
            let ask = DriverRequest::Detach { program };
            return self.call(link, ask, None, Pending::Nothing, now);
        };
        if let Some(guest) = self.guests.get_mut(&session) {
            guest.attached = true;
        }
        if fds.len() != netnice_api::fds::MAX_FDS {
            self.sessions.remove(&session);
            let ask = DriverRequest::Detach { program };
            self.call(link, ask, None, Pending::Nothing, now);
            return refuse(
                reply,
                Denied::Failed(format!(
                    "the driver of {link} sent {} descriptors with an attachment, not three",
                    fds.len()
                )),
            );
        }
        known.program = Some(program);
        lane.programs.insert(
            program,
            Program {
                pid: known.pid,
                uid: known.peer.uid,
                name: known.name.clone(),
                bytes: known.bytes,
                open: 0,
                session: Some(session),
            },
        );
        let answer = Attached {
            iface: link.to_string(),
            mode: lane.mode.clone(),
        };
        let _ = reply.send(Told {
            response: Response::Direct(DirectReply::Attached(answer)),
            fds,
        });
    }

    fn answered_open(
        &mut self,
        promises: &mut impl Promises,
        flow: Flow,
        reply: Reply,
        answer: DriverReply,
        now: Now,
    ) {
        let DriverReply::Opened {
            flow: at_driver,
            slot,
            offset,
        } = answer
        else {
            self.forget_flow(flow.number);
            self.settle(promises, &flow.link, now);
            return refuse(reply, failed(&answer));
        };
        let Some(known) = self.flows.get_mut(&flow.number) else {
            // The program has ended while the driver opened the flow; the driver is informed of
            // that already.
            return refuse(reply, Denied::Failed("the program is gone".to_owned()));
        };
        known.at_driver = Some(at_driver);
        let now_open = known.clone();
        if let Some(why) = &now_open.closing {
            self.close_flow(&now_open, why, None, now);
            return refuse(
                reply,
                Denied::Failed(format!("flow:{}: {why}", flow.number)),
            );
        }
        // The next hop or MTU has changed while the driver opened the flow.
        if now_open.station != flow.station || now_open.mtu != flow.mtu {
            self.readdress(&now_open, now);
        }
        let _ = reply.send(Told::from(self.opened(&now_open, slot, offset)));
        if now_open.degraded.is_some() || now_open.contract.slice().is_some() {
            self.serve(&now_open, Pending::Nothing, now);
        }
    }

    fn happened(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        event: DriverEvent,
        now: Now,
    ) {
        match event {
            DriverEvent::ProgramEnded { program } => {
                self.forget_program(promises, link, program, None, now);
            }
            DriverEvent::ProgramDisconnected { program, why } => {
                let known = self.lanes.get(link);
                let known = known.and_then(|lane| lane.programs.get(&program));
                let (pid, name) = known.map_or((0, ""), |known| (known.pid, &known.name));
                let text = format!("process {pid} ({name}) was expelled from {link}: {why}");
                let user = known.and_then(|known| self.user_of(known));
                promises.journal().tell(now, user, Kind::Fault, text);
                let why = format!("expelled: {why}");
                self.forget_program(promises, link, program, Some(&why), now);
            }
            DriverEvent::InterfaceLost { why } => {
                let why = format!("the driver of {link} ends: {why}");
                self.ended(promises, link, &why, now);
                self.orders.push(Order::Leave(link.clone()));
            }
        }
    }

    /// The unprivileged user of a program; for a program that an earlier daemon attached, its uid
    /// if it is not root.
    pub(super) fn user_of(&self, program: &Program) -> Option<u32> {
        let session = program.session.and_then(|at| self.sessions.get(&at));
        match session {
            Some(session) => session.peer.user(),
            None => Some(program.uid).filter(|uid| *uid != 0),
        }
    }

    /// Removes an ended driver's lane: closes its flows, and answers the pending requests.
    fn ended(&mut self, promises: &mut impl Promises, link: &IfName, why: &str, now: Now) {
        let Some(lane) = self.lanes.get(link) else {
            return;
        };
        let was_idle = lane.here && lane.count == 0;
        if !was_idle {
            promises.journal().warn(now, why);
        }
        let programs: Vec<u32> = lane.programs.keys().copied().collect();
        for program in programs {
            self.forget_program(promises, link, program, Some(why), now);
        }
        let mut again = Vec::new();
        for call in self.take_calls(link) {
            match call.what {
                // The driver ended for lack of flows just before this program attached.
                Pending::Attach {
                    session,
                    reply,
                    again: Some(ask),
                } if was_idle => again.push((session, reply, ask)),
                what => self.give_up(promises, what, Denied::Failed(why.to_owned()), now),
            }
        }
        // Flows that were being opened are in no program's list.
        let left: Vec<u32> = self
            .flows
            .values()
            .filter(|flow| flow.link == *link)
            .map(|flow| flow.number)
            .collect();
        for flow in left {
            self.forget_flow(flow);
        }
        let awaited: Vec<u64> = again.iter().map(|(session, ..)| *session).collect();
        self.sessions
            .retain(|number, session| session.link != *link || awaited.contains(number));
        let untold = self.lanes.remove(link).map(|lane| lane.await_census);
        self.tickets.take(&untold.unwrap_or_default(), None);
        self.tell_ready(promises, now);
        if let Err(denied) = promises.set_part(link, None) {
            promises
                .journal()
                .warn(now, format!("giving {link} back to its classes: {denied}"));
        }
        promises.heal(now);
        for (session, reply, ask) in again {
            let (start, ask, handle) = *ask;
            if !self.lanes.contains_key(link) {
                self.reach(link, super::Lane::new(), Some(start), now);
            }
            let what = Pending::Attach {
                session,
                reply,
                again: None,
            };
            self.call(link, ask, Some(handle), what, now);
        }
    }

    /// Removes and returns the pending calls to a driver.
    fn take_calls(&mut self, link: &IfName) -> Vec<Call> {
        let theirs = self.calls.iter().filter(|(_, call)| call.link == *link);
        let theirs: Vec<u64> = theirs.map(|(id, _)| *id).collect();
        let calls = theirs.into_iter();
        calls.filter_map(|id| self.calls.remove(&id)).collect()
    }

    /// Takes over the flows of a driver that an earlier daemon started. For a new driver, records
    /// its mode.
    fn adopt(&mut self, promises: &mut impl Promises, link: &IfName, census: CensusDoc, now: Now) {
        let nic = self.nic(link).ok();
        let Some(lane) = self.lanes.get_mut(link) else {
            return;
        };
        lane.mode = census.mode;
        lane.why_not_native = census.why_not_native;
        lane.nic = nic;
        // A driver without patterns needs no message if it should have none.
        lane.discards = (census.discard_patterns == 0).then(Vec::new);
        for program in &census.programs {
            let known = lane.programs.entry(program.program);
            known.or_insert_with(|| of_before(promises, program));
        }
        self.follow_discards(promises, link, now);
        let mut found: Vec<DriverFlowDoc> = census.flows;
        found.sort_by_key(|doc| doc.setup.number);
        let mut adopted = 0;
        for doc in found {
            let known = self.flows.values().any(|flow| {
                flow.link == *link
                    && (flow.at_driver == Some(doc.flow) || flow.number == doc.setup.number)
            });
            if !known {
                self.adopt_flow(promises, link, doc, now);
                adopted += 1;
            }
        }
        if adopted > 0 {
            promises.journal().note(
                now,
                format!("{adopted} direct flows of {link} were there before, and stay"),
            );
            self.look_at_ways = true;
            self.settle(promises, link, now);
        }
    }

    fn adopt_flow(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        doc: DriverFlowDoc,
        now: Now,
    ) {
        let setup = doc.setup;
        let number = match setup.number {
            0 => self.next_flow,
            number if self.flows.contains_key(&number) => self.next_flow,
            number => number,
        };
        self.next_flow = self.next_flow.max(number.saturating_add(1));
        let program = self.lanes.get(link);
        let program = program.and_then(|lane| lane.programs.get(&setup.program));
        let peer = crate::peer::Peer {
            uid: program.map_or(0, |program| program.uid),
            privileged: true,
            groups: Vec::new(),
        };
        let (station, ports) = self.hold_again(&peer, link, &setup);
        let ports = ports.unwrap_or_else(|denied| {
            promises
                .journal()
                .warn(now, format!("flow:{number} goes on, but {denied}"));
            Vec::new()
        });
        let granted = setup.granted.unwrap_or_else(|| setup.contract.clone());
        let [contract, served] =
            [&granted, &setup.contract].map(|text| text.parse::<Contract>().unwrap_or_default());
        let is_kept = admission::is_promised(&served) || !admission::is_promised(&contract);
        if !is_kept && let Some(lane) = self.lanes.get_mut(link) {
            lane.any_degraded = true;
        }
        self.enrol(Flow {
            number,
            link: link.clone(),
            program: setup.program,
            at_driver: Some(doc.flow),
            setup: OpenFlow {
                endpoint: setup.endpoint.clone(),
                contract: Some(granted),
                shape: setup.shape,
                in_order: setup.in_order,
            },
            endpoint: setup.endpoint,
            contract,
            degraded: (!is_kept)
                .then(|| format!("{link} has had no room for it since before this daemon began")),
            station,
            mtu: setup.mtu,
            ports,
            closing: None,
        });
    }

    /// Closes all flows and stops the drivers.
    pub(crate) fn clear(&mut self, promises: &mut impl Promises, now: Now) {
        let links: Vec<IfName> = self.lanes.keys().cloned().collect();
        for link in links {
            self.call(&link, DriverRequest::Stop, None, Pending::Nothing, now);
            self.ended(promises, &link, "all was cleared", now);
        }
    }

    /// Notifies all programs of a link.
    pub(super) fn tell_lane(&self, link: &IfName, news: &FlowNotification) {
        let Some(lane) = self.lanes.get(link) else {
            return;
        };
        for session in lane.programs.values().filter_map(|program| program.session) {
            self.tell_session(session, news.clone());
        }
    }
}

/// The record of a program that an earlier daemon attached.
fn of_before(promises: &mut impl Promises, doc: &ProgramDoc) -> Program {
    let process = promises.process(doc.pid);
    Program {
        pid: doc.pid,
        uid: process.as_ref().map_or(0, |process| process.uid),
        name: process.map(|process| process.name).unwrap_or_default(),
        bytes: doc.bytes,
        open: 0,
        session: None,
    }
}

/// The error for a failed call or an answer of the wrong kind.
fn failed(answer: &DriverReply) -> Denied {
    Denied::Failed(match answer {
        DriverReply::Failed { why } => why.clone(),
        _ => "the driver answered something else than it was asked".to_owned(),
    })
}

/// The next hop of a flow, with the Ethernet address that the driver has.
pub(super) fn station_of(via: Option<Station>, next_hop: Option<[u8; 6]>) -> Station {
    match (via, next_hop) {
        (Some(station), next_hop) => station.at(next_hop),
        (None, Some(mac)) => Station::Group(mac),
        (None, None) => Station::Any,
    }
}
