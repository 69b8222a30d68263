//! Drivers that do not answer in time, and what is done about it when they answer after all.
//!
//! Who waits for an answer waits for some seconds and is told then that none came. The book is another matter: it says what the
//! driver has, and until the driver answers nobody knows. A driver carries out its calls in their order, however late, so
//!
//! | the call was to | until it is answered | then |
//! |---|---|---|
//! | attach, open | nothing is held for it | what it made is taken back |
//! | change | the contract is the one before, and the driver is told so, behind the call | |
//! | close, detach | ports and promises stay held | they are given back |
//! | have another rate, say what is there | the link stays divided as it is | as if in time |
//!
//! A driver that ends answers all of them.

use netnice_api::driver::{DriverAnswer, DriverRequest};
use netnice_core::contract::IfName;
use netnice_core::units::Nanos;

use super::network::Network;
use super::promises::Promises;
use super::{Before, Flows, Pending, refuse, sessions};
use crate::clock::Now;
use crate::denied::Denied;

impl<N: Network> Flows<N> {
    /// Gives up what has waited too long, looks whether stations have answered, and at ways if something was heard of them.
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

    /// A call has not been answered in time.
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
            // Who waited has been answered without.
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

    /// Nobody waits for the answer to a call any more.
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

    /// A change is not made: the driver is told the contract of before, behind what it was told.
    pub(super) fn change_back(&mut self, flow: u32, before: Before, now: Now) {
        self.set_contract(flow, before.contract, before.degraded);
        if let Some(flow) = self.flows.get(&flow).cloned() {
            self.serve(&flow, Pending::Nothing, now);
        }
    }

    /// What was made too late for anybody to have it.
    pub(super) fn take_back(&mut self, link: &IfName, made: &DriverAnswer, now: Now) {
        let ask = match *made {
            DriverAnswer::Attached { program } => DriverRequest::Detach { program },
            DriverAnswer::Opened { flow, .. } => DriverRequest::Close { flow },
            _ => return,
        };
        self.call(link, ask, None, Pending::Nothing, now);
    }
}

/// Of an answer that is late it is known that nobody waits; it is not looked at again for so long.
const AGAIN: Nanos = Nanos::from_secs(600);
