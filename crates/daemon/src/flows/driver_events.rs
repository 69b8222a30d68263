//! Handles what comes from drivers: answers to calls, events, and the start and the end of the
//! connection to a driver. If the answer to an attachment, an opening or a change is an error or
//! has the wrong kind, the program's request is refused. When a driver ends, its flows are closed,
//! its redirected targets go back to the kernel's classes, and the requests that wait for it are
//! answered; attachments to a driver without flows are repeated once instead, with a new driver.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use netnice_api::Response;
use netnice_api::direct::{Attached, DirectReply, FlowNotification};
use netnice_api::driver::{DriverEvent, DriverMessage, DriverReply, DriverRequest};
use netnice_core::contract::IfName;

use super::driver::ConnectionEvent;
use super::move_flow::Move;
use super::network::Network;
use super::packet_costs::CostBase;
use super::promises::Promises;
use super::{
    CallPurpose, Command, FlowRecord, Flows, FormerContract, PendingCall, Program, ReplySender,
    refuse,
};
use crate::clock::Now;
use crate::error::RequestError;
use crate::journal::EventKind;
use crate::server::Reply;

impl<N: Network> Flows<N> {
    /// Handles an event of the connection to a link's driver.
    pub(crate) fn handle_driver_event(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        event: ConnectionEvent,
        now: Now,
    ) {
        match event {
            ConnectionEvent::Connected(process) => {
                if let Some(state) = self.link_states.get_mut(link) {
                    state.connected = true;
                    state.thread.process = process;
                }
            }
            ConnectionEvent::Message(DriverMessage::Reply { id, reply: answer }, fds) => {
                let known = self.calls.get(&id).is_some_and(|call| call.link == *link);
                if let Some(call) = self.calls.remove(&id).filter(|_| known) {
                    self.handle_answer(promises, call, answer, fds, now);
                }
            }
            ConnectionEvent::Message(DriverMessage::Event(event), _) => {
                self.handle_event(promises, link, event, now)
            }
            ConnectionEvent::Ended(why) => self.driver_ended(promises, link, &why, now),
        }
    }

    fn handle_answer(
        &mut self,
        promises: &mut impl Promises,
        call: PendingCall,
        answer: DriverReply,
        fds: Vec<OwnedFd>,
        now: Now,
    ) {
        let link = call.link;
        match (call.purpose, answer) {
            (CallPurpose::Redirect { place, target }, answer) => {
                self.handle_redirect_answer(promises, (place, target), Some(&answer), now);
            }
            (CallPurpose::EndRedirect { place }, _) => self.redirect_ended(promises, place, now),
            (CallPurpose::Detach { program }, _) => {
                self.remove_program(promises, &link, program, None, now);
            }
            (CallPurpose::Attach { session, reply, .. }, answer) => {
                self.handle_attached(&link, session, reply, answer, fds, now);
            }
            (CallPurpose::Open { flow, reply }, answer) => {
                self.handle_open_answer(promises, *flow, reply, answer, now);
            }
            (
                CallPurpose::Change {
                    flow,
                    before,
                    reply,
                },
                answer,
            ) => {
                self.handle_change_answer(promises, &link, (flow, *before), reply, answer, now);
            }
            (CallPurpose::Close { flow, reply }, answer) => {
                if let DriverReply::Closed(counts) = &answer {
                    self.count_closed(flow, counts);
                }
                self.flow_closed(promises, &link, flow, reply, now);
            }
            (
                CallPurpose::Withdraw {
                    flow,
                    successor,
                    place,
                    reply,
                },
                answer,
            ) => {
                let both = (flow, successor);
                self.handle_withdrawn(promises, both, place, reply, &answer, now);
            }
            (
                CallPurpose::SetRate | CallPurpose::Discard | CallPurpose::Classes,
                DriverReply::Done,
            ) => {}
            (CallPurpose::SetRate | CallPurpose::Discard | CallPurpose::Classes, other) => {
                promises
                    .journal()
                    .warn(now, format!("the driver of {link}: {}", call_error(&other)));
            }
            (CallPurpose::Adopt, DriverReply::Census(census)) => {
                self.take_over(promises, &link, *census, now);
                self.continue_resuming(promises, &link, None);
            }
            (CallPurpose::Census(tickets), answer) => {
                let census = match answer {
                    DriverReply::Census(census) => Some((&link, *census)),
                    _ => None,
                };
                self.tickets.take(&tickets, census);
                self.send_ready_replies(promises, now);
                self.request_census(&link, now);
            }
            (CallPurpose::Totals, DriverReply::Totals(totals)) => {
                self.handle_totals(promises, &link, totals, now);
            }
            (CallPurpose::Totals, _) => {
                if let Some(state) = self.link_states.get_mut(&link) {
                    state.totals_pending = false;
                }
            }
            (CallPurpose::Abandoned, answer) => self.undo_late_result(&link, &answer, now),
            (_, DriverReply::Failed { why }) => {
                tracing::debug!(%link, why, "the driver did not carry out a call");
            }
            (_, _) => {}
        }
    }

    /// Removes a flow that the driver has closed, and tells the program that asked for it.
    fn flow_closed(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        flow: u32,
        reply: Option<ReplySender>,
        now: Now,
    ) {
        self.remove_flow(flow, now);
        self.settle(promises, link, now);
        if let Some(reply) = reply {
            super::sessions::reply_done(reply);
        }
    }

    fn handle_change_answer(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        (flow, before): (u32, FormerContract),
        reply: ReplySender,
        answer: DriverReply,
        now: Now,
    ) {
        if !matches!(answer, DriverReply::Done) {
            self.restore_contract(flow, before, now);
            self.settle(promises, link, now);
            return refuse(reply, call_error(&answer));
        }
        self.settle(promises, link, now);
        let flow = self.flows.get(&flow);
        let done = netnice_api::Done {
            contract: flow.map(|flow| flow.contract.to_string()),
            ..netnice_api::Done::default()
        };
        let _ = reply.send(Reply::from(Response::Done(done)));
    }

    fn handle_attached(
        &mut self,
        link: &IfName,
        session: u64,
        reply: ReplySender,
        answer: DriverReply,
        fds: Vec<OwnedFd>,
        now: Now,
    ) {
        let DriverReply::Attached { program } = answer else {
            self.sessions.remove(&session);
            return refuse(reply, call_error(&answer));
        };
        let (Some(state), Some(known)) = (
            self.link_states.get_mut(link),
            self.sessions.get_mut(&session),
        ) else {
            // The program's connection has ended while the driver attached it.
            let ask = DriverRequest::Detach { program };
            return self.call(link, ask, None, CallPurpose::Nothing, now);
        };
        if let Some(connection) = self.connections.get_mut(&session) {
            connection.attached = true;
        }
        if fds.len() != netnice_api::fds::MAX_FDS {
            self.sessions.remove(&session);
            let ask = DriverRequest::Detach { program };
            self.call(link, ask, None, CallPurpose::Nothing, now);
            return refuse(
                reply,
                RequestError::Failed(format!(
                    "the driver of {link} sent {} descriptors with an attachment, not three",
                    fds.len()
                )),
            );
        }
        known.program = Some(program);
        let processor = self.network.processor_time(known.pid);
        state.programs.insert(
            program,
            Program {
                pid: known.pid,
                uid: known.peer.uid,
                name: known.name.clone(),
                bytes: known.bytes,
                flows: known.flows,
                secret: known.secret.clone(),
                open: BTreeSet::new(),
                session: Some(session),
                cost_base: CostBase::new(processor),
            },
        );
        let answer = Attached {
            iface: link.to_string(),
            mode: state.mode.clone(),
            secret: known.secret.clone().unwrap_or_default(),
        };
        let _ = reply.send(Reply {
            response: Response::Direct(DirectReply::Attached(answer)),
            fds,
        });
    }

    fn handle_open_answer(
        &mut self,
        promises: &mut impl Promises,
        flow: FlowRecord,
        reply: ReplySender,
        answer: DriverReply,
        now: Now,
    ) {
        let DriverReply::Opened {
            flow: at_driver,
            slot,
            offset,
        } = answer
        else {
            self.remove_flow(flow.number, now);
            self.settle(promises, &flow.link, now);
            let error = call_error(&answer);
            self.opening_failed(promises, &flow, &error, now);
            return refuse(reply, error);
        };
        let Some(known) = self.flows.get_mut(&flow.number) else {
            // The program has ended while the driver opened the flow; the driver is informed of
            // that already.
            let error = RequestError::Failed("the program has ended".to_owned());
            self.opening_failed(promises, &flow, &error, now);
            return refuse(reply, error);
        };
        known.at_driver = Some(at_driver);
        known.slot = slot;
        let now_open = known.clone();
        if let Some(why) = &now_open.closing {
            self.close_flow(&now_open, why, None, now);
            let error = RequestError::Failed(format!("flow:{}: {why}", flow.known_number()));
            self.opening_failed(promises, &flow, &error, now);
            return refuse(reply, error);
        }
        self.end_replaced_hold(flow.number);
        // The next hop or MTU has changed while the driver opened the flow.
        if now_open.next_hop != flow.next_hop || now_open.mtu != flow.mtu {
            self.readdress(&now_open, now);
        }
        if let Some(Move::Successor { of }) = now_open.movement {
            let to = (of, (slot, offset));
            return self.withdraw_at_old_link(promises, &now_open, to, reply, now);
        }
        let opened = DirectReply::Opened(self.flow_opened(&now_open, slot, offset));
        let _ = reply.send(Reply::from(Response::Direct(opened)));
        self.after_open(&now_open, now);
    }

    /// Sends the driver the contract of a flow that was just opened, if it may have changed.
    pub(super) fn after_open(&mut self, now_open: &FlowRecord, now: Now) {
        if now_open.degraded.is_some() {
            self.send_contract(now_open, CallPurpose::Nothing, now);
        }
    }

    fn handle_event(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        event: DriverEvent,
        now: Now,
    ) {
        match event {
            DriverEvent::ProgramEnded { program } => {
                self.remove_program(promises, link, program, None, now);
            }
            DriverEvent::ProgramDisconnected { program, why } => {
                let known = self.link_states.get(link);
                let known = known.and_then(|state| state.programs.get(&program));
                let (pid, name) = known.map_or((0, ""), |known| (known.pid, &known.name));
                let text = format!(
                    "process {pid} ({name}) was disconnected from {link}, for it violated the \
                     protocol: {why}"
                );
                let user = known.and_then(|known| self.user_of(known));
                promises.journal().log(now, user, EventKind::Fault, text);
                let why = format!("disconnected for a protocol violation: {why}");
                self.remove_program(promises, link, program, Some(&why), now);
            }
            DriverEvent::InterfaceLost { why } => {
                let why = format!("the driver of {link} ends: {why}");
                self.driver_ended(promises, link, &why, now);
                self.commands.push(Command::Disconnect(link.clone()));
            }
        }
    }

    /// The unprivileged user of a program, `None` for a privileged one; for a program that an
    /// earlier daemon attached, its uid if it is not root.
    pub(super) fn user_of(&self, program: &Program) -> Option<u32> {
        let session = program.session.and_then(|at| self.sessions.get(&at));
        match session {
            Some(session) => session.peer.user(),
            None => Some(program.uid).filter(|uid| *uid != 0),
        }
    }

    /// Removes the link state of an ended driver: closes its flows, answers the pending requests or
    /// repeats them, and gives the link's whole rate to the kernel's classes.
    fn driver_ended(&mut self, promises: &mut impl Promises, link: &IfName, why: &str, now: Now) {
        let Some(state) = self.link_states.get(link) else {
            return;
        };
        let had_no_flows = state.connected && !state.is_used();
        // A driver without a program ends by itself.
        if !had_no_flows || !state.programs.is_empty() {
            promises.journal().warn(now, why);
        }
        let programs: Vec<u32> = state.programs.keys().copied().collect();
        for program in programs {
            self.remove_program(promises, link, program, Some(why), now);
        }
        let calls = self.take_calls(link);
        self.continue_resuming(promises, link, Some(why));
        let mut again = Vec::new();
        for call in calls {
            match call.purpose {
                // The driver ended for lack of programs just before this program attached.
                CallPurpose::Attach {
                    session,
                    reply,
                    again: Some(ask),
                } if had_no_flows => again.push((session, reply, ask)),
                purpose => {
                    self.abandon_call(promises, purpose, RequestError::Failed(why.to_owned()), now)
                }
            }
        }
        // Flows whose program is not in the records.
        let left: Vec<u32> = self
            .flows
            .values()
            .filter(|flow| flow.link == *link)
            .map(|flow| flow.number)
            .collect();
        for flow in left {
            self.remove_flow(flow, now);
        }
        self.forget_places(promises, link, why, now);
        let awaited: Vec<u64> = again.iter().map(|(session, ..)| *session).collect();
        self.sessions
            .retain(|number, session| session.link != *link || awaited.contains(number));
        let untold = self
            .link_states
            .remove(link)
            .map(|state| state.census_waiters);
        self.tickets.take(&untold.unwrap_or_default(), None);
        self.send_ready_replies(promises, now);
        if let Err(error) = self.set_idle_part(promises, link) {
            promises.journal().warn(
                now,
                format!("cannot give {link} back to its classes: {error}"),
            );
        }
        promises.heal(now);
        for (session, reply, ask) in again {
            let (start, ask, handle) = *ask;
            if !self.link_states.contains_key(link) {
                self.connect_driver(link, super::LinkState::default(), Some(start), now);
            }
            let purpose = CallPurpose::Attach {
                session,
                reply,
                again: None,
            };
            self.call(link, ask, Some(handle), purpose, now);
        }
    }

    /// Removes and returns the pending calls to a driver.
    fn take_calls(&mut self, link: &IfName) -> Vec<PendingCall> {
        let theirs = self.calls.iter().filter(|(_, call)| call.link == *link);
        let theirs: Vec<u64> = theirs.map(|(id, _)| *id).collect();
        let calls = theirs.into_iter();
        calls.filter_map(|id| self.calls.remove(&id)).collect()
    }

    /// Closes all flows and stops all drivers.
    pub(crate) fn clear(&mut self, promises: &mut impl Promises, now: Now) {
        let links: Vec<IfName> = self.link_states.keys().cloned().collect();
        for link in links {
            self.call(&link, DriverRequest::Stop, None, CallPurpose::Nothing, now);
            self.driver_ended(promises, &link, "everything was cleared", now);
        }
        self.give_up_kept_ports();
    }

    /// Notifies all programs of a link that have a session.
    pub(super) fn notify_link(&self, link: &IfName, notification: &FlowNotification) {
        let Some(state) = self.link_states.get(link) else {
            return;
        };
        for session in state
            .programs
            .values()
            .filter_map(|program| program.session)
        {
            self.notify_session(session, notification.clone());
        }
    }
}

/// The error for a failed call or an answer of the wrong kind.
fn call_error(answer: &DriverReply) -> RequestError {
    RequestError::Failed(match answer {
        DriverReply::Failed { why } => why.clone(),
        _ => "the driver's answer does not match the call".to_owned(),
    })
}
