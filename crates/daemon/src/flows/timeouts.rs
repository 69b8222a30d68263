//! Calls that drivers do not answer in time, and their late answers.
//!
//! A request gets an error after some seconds without an answer. The records must state what the
//! driver has, and that is unknown until it answers. A driver carries out its calls in order,
//! however late, so:
//!
//! | call | until the answer | then |
//! |---|---|---|
//! | attach, open | nothing is held for it | its result is undone |
//! | change | the former contract holds, and a call that restores it follows | |
//! | close, detach | ports and promises stay held | they are released |
//! | set the rate, census | the division of the link stays | as if in time |
//!
//! A driver that ends answers all its calls.

use netnice_api::driver::{DriverReply, DriverRequest};
use netnice_core::contract::IfName;
use netnice_core::units::Nanos;

use super::network::Network;
use super::promises::Promises;
use super::{Before, Flows, Pending, refuse, sessions};
use crate::clock::Now;
use crate::denied::Denied;

impl<N: Network> Flows<N> {
    /// Handles calls that are over their time limit, ended neighbour resolutions, and changed
    /// routes.
    pub(crate) fn look(&mut self, promises: &mut impl Promises, now: Now) {
        self.look_at_stations(promises, now);
        if std::mem::take(&mut self.look_at_ways) {
            self.look_at_all_ways(promises, now);
        }
        let late = self.calls.iter();
        let late = late.filter(|(_, call)| call.until <= now.monotonic);
        let late: Vec<u64> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.is_late(promises, id, now);
        }
        if self.tickets.expire(now.monotonic) {
            self.tell_ready(promises, now);
        }
    }

    /// Handles a call that was not answered in time.
    fn is_late(&mut self, promises: &mut impl Promises, id: u64, now: Now) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        call.until = now.monotonic.after(AGAIN);
        let link = call.link.clone();
        match &mut call.what {
            Pending::Nothing => drop(self.calls.remove(&id)),
            Pending::Close { reply, .. } => {
                if let Some(reply) = reply.take() {
                    sessions::done(reply);
                }
            }
            Pending::Detach { .. }
            | Pending::Wire
            | Pending::Discard
            | Pending::Adopt
            // The replies were sent without the census.
            | Pending::Tell(_)
            | Pending::Totals
            | Pending::Late => {}
            what => {
                let what = std::mem::replace(what, Pending::Late);
                if !matches!(what, Pending::Attach { .. } | Pending::Open { .. }) {
                    self.calls.remove(&id);
                }
                let frees = matches!(what, Pending::Open { .. } | Pending::Change { .. });
                let why = Denied::Failed(format!("the driver of {link} does not answer"));
                self.give_up(promises, what, why, now);
                if frees {
                    self.settle(promises, &link, now);
                }
            }
        }
    }

    /// Ends the wait for the answer to a call: undoes its effect on the records, and replies.
    pub(super) fn give_up(
        &mut self,
        promises: &mut impl Promises,
        what: Pending,
        why: Denied,
        now: Now,
    ) {
        match what {
            Pending::Attach { session, reply, .. } => {
                self.sessions.remove(&session);
                refuse(reply, why);
            }
            Pending::Open { flow, reply, .. } => {
                self.forget_flow(flow.number);
                refuse(reply, why);
            }
            Pending::Change {
                flow,
                before,
                reply,
            } => {
                self.change_back(flow, *before, now);
                refuse(reply, why);
            }
            Pending::Close { flow, reply } => {
                self.forget_flow(flow);
                if let Some(reply) = reply {
                    sessions::done(reply);
                }
            }
            Pending::Tell(tickets) => {
                self.tickets.take(&tickets, None);
                self.tell_ready(promises, now);
            }
            Pending::Detach { .. }
            | Pending::Wire
            | Pending::Discard
            | Pending::Adopt
            | Pending::Totals
            | Pending::Nothing
            | Pending::Late => {}
        }
    }

    /// Restores the contract of a flow, and sends it to the driver after the failed change.
    pub(super) fn change_back(&mut self, flow: u32, before: Before, now: Now) {
        self.set_contract(flow, before.contract, before.degraded);
        if let Some(flow) = self.flows.get(&flow).cloned() {
            self.serve(&flow, Pending::Nothing, now);
        }
    }

    /// Undoes the result of an attachment or opening that was answered too late.
    pub(super) fn take_back(&mut self, link: &IfName, made: &DriverReply, now: Now) {
        let ask = match *made {
            DriverReply::Attached { program } => DriverRequest::Detach { program },
            DriverReply::Opened { flow, .. } => DriverRequest::Close { flow },
            _ => return,
        };
        self.call(link, ask, None, Pending::Nothing, now);
    }
}

/// A call that timed out has no waiting request any more; it is not handled again for this time.
const AGAIN: Nanos = Nanos::from_secs(600);
