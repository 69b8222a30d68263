//! Handles calls that drivers do not answer in time, and their late answers.
//!
//! If a driver does not answer a call within [`super::CALL_TIMEOUT`] (5 s; 20 s while the driver is
//! starting), a request to attach, open or change gets an error, and a request to close succeeds.
//! The records must state what the driver has, and after a timeout that is unknown until the driver
//! answers. A driver carries out its calls in order, however late, so:
//!
//! | call | until the answer | at the late answer |
//! |---|---|---|
//! | attach, open | nothing is held for it | its result is undone |
//! | withdraw | the flow and its successor are being closed | nothing |
//! | change | the former contract holds, and a call that restores it follows | nothing |
//! | close, detach | ports and promises stay held | they are released |
//! | redirect a target | its classes serve the target, and the place is ended | nothing |
//! | end a redirected target | its place stays in use | the place is free |
//! | set the rate, totals | the division of the link stays | as if in time |
//! | census, discard | nothing waits for it | as if in time |
//! | next hop and MTU, others | nothing waits for it | nothing |
//!
//! When a driver ends, all its calls end: their requests are answered as after a timeout, with the
//! reason. Only an attachment to a driver that had no flows is repeated, once, with a new driver.

use netnice_api::driver::{DriverReply, DriverRequest};
use netnice_core::contract::IfName;
use netnice_core::units::{Instant, Nanos};

use super::network::Network;
use super::promises::Promises;
use super::{CallPurpose, Flows, FormerContract, refuse, sessions};
use crate::clock::Now;
use crate::error::RequestError;

impl<N: Network> Flows<N> {
    /// The time of the next call of [`Flows::handle_timeouts`]; `None` if nothing waits.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let resolutions = self
            .resolutions
            .iter()
            .map(|resolution| resolution.deadline);
        let calls = self.calls.values().map(|call| call.deadline);
        resolutions
            .chain(calls)
            .chain(self.tickets.next_due())
            .chain(self.icmp.next_due())
            .chain(self.redirects.next_due())
            .chain(self.route_check_due)
            .chain(self.next_kept_port_due())
            .chain(self.move_deadlines.first().map(|(at, _)| *at))
            .chain(self.holds.next_due())
            .min()
    }

    /// Handles calls and replies that are over their time limit, neighbour resolutions, kept ports,
    /// held promises and path MTUs that have ended, and changed routes.
    pub(crate) fn handle_timeouts(&mut self, promises: &mut impl Promises, now: Now) {
        self.check_resolutions(promises, now);
        if self.route_check_due.is_some_and(|due| due <= now.monotonic) {
            self.route_check_due = None;
            self.check_all_routes(promises, now);
        }
        self.expire_moves(promises, now);
        self.expire_kept_ports(now);
        self.expire_holds(promises, now);
        if self.icmp.expire(now.monotonic) {
            self.request_route_check(now);
        }
        let late = self.calls.iter();
        let late = late.filter(|(_, call)| call.deadline <= now.monotonic);
        let late: Vec<u64> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.call_timed_out(promises, id, now);
        }
        if self.tickets.expire(now.monotonic) {
            self.send_ready_replies(promises, now);
        }
    }

    /// Handles a call that was not answered in time.
    fn call_timed_out(&mut self, promises: &mut impl Promises, id: u64, now: Now) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        call.deadline = now.monotonic.after(RECHECK);
        let link = call.link.clone();
        match &mut call.purpose {
            CallPurpose::Nothing => drop(self.calls.remove(&id)),
            CallPurpose::Adopt => {
                if let Some(state) = self.link_states.get_mut(&link) {
                    state.is_census_late = true;
                }
            }
            CallPurpose::Redirect { place, target } => {
                let of = (*place, *target);
                self.calls.remove(&id);
                self.handle_redirect_answer(promises, of, None, now);
            }
            CallPurpose::Close { reply, .. } => {
                if let Some(reply) = reply.take() {
                    sessions::reply_done(reply);
                }
            }
            CallPurpose::Detach { .. }
            | CallPurpose::SetRate
            | CallPurpose::Classes
            | CallPurpose::Discard
            // The driver ends a place when what waits there is sent.
            | CallPurpose::EndRedirect { .. }
            // The replies were sent without the census.
            | CallPurpose::Census(_)
            | CallPurpose::Totals
            | CallPurpose::Abandoned => {}
            purpose => {
                let purpose = std::mem::replace(purpose, CallPurpose::Abandoned);
                if !matches!(purpose, CallPurpose::Attach { .. } | CallPurpose::Open { .. }) {
                    self.calls.remove(&id);
                }
                let frees = matches!(
                    purpose,
                    CallPurpose::Open { .. } | CallPurpose::Change { .. }
                );
                let why = RequestError::Failed(format!("the driver of {link} does not answer"));
                self.abandon_call(promises, purpose, why, now);
                if frees {
                    self.settle(promises, &link, now);
                }
            }
        }
    }

    /// Ends the wait for the answer to a call: undoes its effect on the records, and replies.
    pub(super) fn abandon_call(
        &mut self,
        promises: &mut impl Promises,
        purpose: CallPurpose,
        why: RequestError,
        now: Now,
    ) {
        match purpose {
            CallPurpose::Attach { session, reply, .. } => {
                self.sessions.remove(&session);
                refuse(reply, why);
            }
            CallPurpose::Open { flow, reply, .. } => {
                self.remove_flow(flow.number, now);
                self.opening_failed(promises, &flow, &why, now);
                refuse(reply, why);
            }
            CallPurpose::Withdraw {
                flow,
                successor,
                reply,
                ..
            } => self.fail_move(promises, (flow, successor), why, reply, now),
            CallPurpose::Change {
                flow,
                before,
                reply,
            } => {
                self.restore_contract(flow, *before, now);
                refuse(reply, why);
            }
            CallPurpose::Close { flow, reply } => {
                self.remove_flow(flow, now);
                if let Some(reply) = reply {
                    sessions::reply_done(reply);
                }
            }
            CallPurpose::Census(tickets) => {
                self.tickets.take(&tickets, None);
                self.send_ready_replies(promises, now);
            }
            CallPurpose::Detach { .. }
            | CallPurpose::Redirect { .. }
            | CallPurpose::EndRedirect { .. }
            | CallPurpose::SetRate
            | CallPurpose::Classes
            | CallPurpose::Discard
            | CallPurpose::Adopt
            | CallPurpose::Totals
            | CallPurpose::Nothing
            | CallPurpose::Abandoned => {}
        }
    }

    /// Restores the contract of a flow, and sends it to the driver after the failed change.
    pub(super) fn restore_contract(&mut self, flow: u32, before: FormerContract, now: Now) {
        self.set_contract(flow, before.contract, before.degraded);
        if let Some(flow) = self.flows.get(&flow).cloned() {
            self.send_contract(&flow, CallPurpose::Nothing, now);
        }
    }

    /// Undoes the result of an attachment or opening that was answered too late.
    pub(super) fn undo_late_result(&mut self, link: &IfName, made: &DriverReply, now: Now) {
        let ask = match *made {
            DriverReply::Attached { program } => DriverRequest::Detach { program },
            DriverReply::Opened { flow, .. } => DriverRequest::Close { flow, reset: false },
            _ => return,
        };
        self.call(link, ask, None, CallPurpose::Nothing, now);
    }
}

/// Time until a call that timed out is handled again. No request waits for its answer any more.
const RECHECK: Nanos = Nanos::from_secs(600);
