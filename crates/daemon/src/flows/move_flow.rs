//! Moves a flow to the link that its route leads over now, with its contract, its port and its
//! number.
//!
//! Each link has a driver with memory of its own, so the program takes part. It attaches to the new
//! link on a second connection, and takes the flow there ([`Flows::take`]). The flow is then *two*
//! records for a moment: the present one under its number, and its *successor* on the new link
//! under another number. When both drivers have done their part, the records exchange their
//! numbers, and the old one becomes the *former* flow.
//!
//! ```text
//!   route leads elsewhere          take: checks, port,           successor is open:
//!        │                         next hop, admission           old driver withdraws
//!   open ─▶ offered ─────────────▶ offered, taking ───────────▶ exchange ─▶ open on the new link
//!             │ 10 s, not taken        │ refused, fails             └──▶ former ─▶ closed by its
//!             ▼                        ▼                                 program, or after 5 s
//!           closed                   closed with the reason
//! ```
//! A successor is a flow of the new link in every respect: admission, quotas and the program's
//! largest number of flows count it there, and the former one counts on the old link until its
//! driver has closed it. So nothing is promised twice on one link, and no promise is lost. Both
//! records hold the port.
//!
//! The old driver *withdraws* the flow before the program learns of the move: it sends nothing more
//! and has returned what it took. So the program knows which of its packets were not sent, and
//! sends them on the new link. A withdrawn flow cannot go on where it was: if the move fails after
//! that, the flow is closed.
//!
//! A flow moves if it has one remote host, if the other link is managed, if its contract does not
//! name the old link, and if its program states that it handles the notification. Every other flow
//! whose route leads elsewhere is closed.

use netnice_api::Response;
use netnice_api::direct::{DirectReply, FlowNotification, FlowTaken, OpenFlow, TakeFlow};
use netnice_api::driver::{DriverReply, DriverRequest};
use netnice_core::contract::IfName;
use netnice_core::units::{Instant, Nanos};

use super::network::Network;
use super::open_flow::{no_flow, not_attached};
use super::promised_flows::PromiseHolder;
use super::promises::Promises;
use super::resume::has_secret;
use super::{CallPurpose, FlowRecord, Flows, ReplySender, refuse};
use crate::clock::Now;
use crate::error::RequestError;
use crate::server::Reply;

/// The part of a record in the move of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// The program may take the flow to this link until this time. `taking` is the number of the
    /// successor, once there is one.
    Offered {
        to: IfName,
        until: Instant,
        taking: Option<u32>,
    },
    /// The record on the new link, which is being opened for the flow with this number.
    Successor { of: u32 },
    /// What is left of a flow on its old link. It is closed at this time.
    Former { until: Instant },
}

/// The place of a successor in its program's memory file: slot, and offset in bytes.
pub(super) type Place = (u32, u64);

impl FlowRecord {
    /// The number under which users know the flow.
    pub(super) fn known_number(&self) -> u32 {
        match self.movement {
            Some(Move::Successor { of }) => of,
            _ => self.number,
        }
    }

    /// True for the record that users see, of the two records of a moving flow.
    pub(super) fn is_shown(&self) -> bool {
        !matches!(
            self.movement,
            Some(Move::Successor { .. } | Move::Former { .. })
        )
    }

    /// The number of the successor that is being opened for the flow.
    fn successor(&self) -> Option<u32> {
        match self.movement {
            Some(Move::Offered { taking, .. }) => taking,
            _ => None,
        }
    }
}

impl<N: Network> Flows<N> {
    /// Offers a program to take a flow to the link that its route leads over now. Has no effect on
    /// a flow that moves already.
    ///
    /// # Errors
    /// What the user can do, if the flow cannot move.
    pub(super) fn offer_move(
        &mut self,
        promises: &mut impl Promises,
        number: u32,
        to: &str,
        now: Now,
    ) -> Result<(), String> {
        let again = || format!("open it again on {to}");
        let flow = self.flows.get(&number).ok_or_else(again)?;
        match &flow.movement {
            Some(Move::Offered {
                to: offered,
                taking,
                ..
            }) if taking.is_some() || offered.as_str() == to => return Ok(()),
            Some(Move::Successor { .. } | Move::Former { .. }) => return Ok(()),
            _ => {}
        }
        let to: IfName = to.parse().map_err(|_| again())?;
        if let Some(named) = flow.contract.on().filter(|named| **named != to) {
            return Err(format!("its contract names {named}"));
        }
        let program = self.link_states.get(&flow.link);
        let program = program.and_then(|state| state.programs.get(&flow.program));
        let session = program.and_then(|program| self.sessions.get(&program.session?));
        let moves = session.is_some_and(|session| session.moves);
        if !moves || flow.at_driver.is_none() || !promises.links().contains(&to) {
            return Err(again());
        }
        let until = now.monotonic.after(TAKE_TIMEOUT);
        self.set_move(
            number,
            Some(Move::Offered {
                to: to.clone(),
                until,
                taking: None,
            }),
        );
        let to = to.to_string();
        self.notify_flow(number, FlowNotification::Moving { flow: number, to });
        Ok(())
    }

    /// The route of a flow leads over its own link: it need not move any more.
    pub(super) fn withdraw_offer(&mut self, number: u32) {
        if let Some(flow) = self.flows.get_mut(&number)
            && matches!(flow.movement, Some(Move::Offered { taking: None, .. }))
        {
            flow.movement = None;
        }
    }

    /// True while the flow is being opened on another link: its contract cannot change.
    pub(super) fn is_being_taken(&self, number: u32) -> bool {
        let flow = self.flows.get(&number);
        flow.is_some_and(|flow| flow.successor().is_some())
    }

    /// Opens a flow on the link of this session, to which it is to move. The reply comes when both
    /// drivers have answered. Refused if the flow is not one of the same process, is not to move to
    /// this link, or is being taken already. If the flow cannot be opened here, it is closed.
    pub(super) fn take(
        &mut self,
        promises: &mut impl Promises,
        session: u64,
        take: &TakeFlow,
        reply: ReplySender,
        now: Now,
    ) {
        let open = match self.may_take(session, take) {
            Ok(open) => open,
            Err(error) => return refuse(reply, error),
        };
        match self.prepare_flow(promises, session, open) {
            Ok(mut flow) => {
                flow.movement = Some(Move::Successor { of: take.flow });
                if let Some(Move::Offered { taking, .. }) = self.movement_mut(take.flow) {
                    *taking = Some(flow.number);
                }
                self.open_prepared(promises, session, flow, reply, now);
            }
            Err(error) => {
                self.end_moving(promises, take.flow, &error, now);
                refuse(reply, error);
            }
        }
    }

    /// What to open for a flow that this session may take.
    fn may_take(&self, session: u64, take: &TakeFlow) -> Result<OpenFlow, RequestError> {
        let number = take.flow;
        let session = self.sessions.get(&session).ok_or_else(not_attached)?;
        let flow = self.flows.get(&number);
        let flow = flow.filter(|flow| flow.at_driver.is_some() && flow.closing.is_none());
        let flow = flow.ok_or_else(|| no_flow(number))?;
        let program = self.link_states.get(&flow.link);
        let program = program.and_then(|state| state.programs.get(&flow.program));
        let is_own = program.is_some_and(|program| {
            // A child process has the secret too.
            let pids = [session.pid, session.connection.pid];
            has_secret(program.secret.as_deref(), &take.secret)
                && pids == [program.pid; 2]
                && session.peer.uid == program.uid
        });
        if !is_own {
            return Err(no_flow(number));
        }
        match &flow.movement {
            Some(Move::Offered {
                taking: Some(_), ..
            }) => {
                return Err(RequestError::Failed(format!(
                    "flow:{number} is being taken already"
                )));
            }
            Some(Move::Offered { to, .. }) if *to == session.link => {}
            _ => {
                return Err(RequestError::Failed(format!(
                    "flow:{number} is not to move to {}",
                    session.link
                )));
            }
        }
        let changes = self
            .calls
            .values()
            .any(|call| matches!(call.purpose, CallPurpose::Change { flow, .. } if flow == number));
        if changes {
            return Err(RequestError::Failed(format!(
                "the contract of flow:{number} is being changed"
            )));
        }
        let contract = (!flow.contract.is_empty()).then(|| flow.contract.to_string());
        Ok(OpenFlow {
            endpoint: flow.endpoint.clone(),
            contract,
            shape: flow.shape,
            in_order: flow.in_order,
            hold: None,
        })
    }

    /// The successor is open: has the old driver withdraw the flow.
    pub(super) fn withdraw_at_old_link(
        &mut self,
        promises: &mut impl Promises,
        successor: &FlowRecord,
        (of, place): (u32, Place),
        reply: ReplySender,
        now: Now,
    ) {
        let old = self.moving_to(of, successor.number);
        let Some((link, flow)) = old.and_then(|old| Some((old.link.clone(), old.at_driver?)))
        else {
            return self.fail_move(promises, (of, successor.number), ended(of), reply, now);
        };
        let purpose = CallPurpose::Withdraw {
            flow: of,
            successor: successor.number,
            place,
            reply,
        };
        self.call(&link, DriverRequest::Withdraw { flow }, None, purpose, now);
    }

    /// The old driver has answered: exchanges the two records, and replies.
    pub(super) fn handle_withdrawn(
        &mut self,
        promises: &mut impl Promises,
        (number, successor): (u32, u32),
        place: Place,
        reply: ReplySender,
        answer: &DriverReply,
        now: Now,
    ) {
        let both = (number, successor);
        if let DriverReply::Failed { why } = answer {
            return self.fail_move(
                promises,
                both,
                RequestError::Failed(why.clone()),
                reply,
                now,
            );
        }
        let is_open = self
            .flows
            .get(&successor)
            .is_some_and(|flow| flow.closing.is_none());
        if !is_open || self.moving_to(number, successor).is_none() {
            return self.fail_move(promises, both, ended(number), reply, now);
        }
        let (Some(old), Some(new)) = (self.forget_number(number), self.forget_number(successor))
        else {
            return refuse(reply, ended(number));
        };
        let text = format!("flow:{number} moved from {} to {}", old.link, new.link);
        promises.journal().note(now, text);
        let until = now.monotonic.after(FORMER_TIMEOUT);
        self.know_number(successor, old);
        self.set_move(successor, Some(Move::Former { until }));
        self.know_number(number, new.clone());
        self.set_move(number, None);
        let Some(new) = self.flows.get(&number).cloned() else {
            return;
        };
        let opened = self.flow_opened(&new, place.0, place.1);
        let taken = DirectReply::Taken(Box::new(FlowTaken {
            opened,
            former: successor,
        }));
        let _ = reply.send(Reply::from(Response::Direct(taken)));
        self.after_open(&new, now);
        if let Some(why) = new.degraded {
            self.notify_flow(number, FlowNotification::Degraded { flow: number, why });
        }
        // The route may have moved again.
        self.request_route_check(now);
    }

    /// Ends a move whose flow cannot go on: closes the successor and the flow.
    pub(super) fn fail_move(
        &mut self,
        promises: &mut impl Promises,
        (number, successor): (u32, u32),
        why: RequestError,
        reply: ReplySender,
        now: Now,
    ) {
        if let Some(flow) = self.flows.get(&successor).cloned() {
            self.close_flow(&flow, "its flow has not moved", None, now);
        }
        if self.moving_to(number, successor).is_some() {
            self.end_moving(promises, number, &why, now);
        }
        refuse(reply, why);
    }

    /// The opening of a flow has failed. If the flow is the successor of another, closes that one.
    /// If it was opened with a hold, and its driver does not have it, the promise is held again.
    pub(super) fn opening_failed(
        &mut self,
        promises: &mut impl Promises,
        flow: &FlowRecord,
        why: &RequestError,
        now: Now,
    ) {
        if let Some(Move::Successor { of }) = flow.movement
            && self.moving_to(of, flow.number).is_some()
        {
            self.end_moving(promises, of, why, now);
        }
        if let Some(hold) = flow.hold
            && !self.flows.contains_key(&flow.number)
        {
            self.hold_again(hold, now);
            self.settle(promises, &flow.link, now);
        }
    }

    /// Closes a flow that cannot be opened on the link where its route leads.
    fn end_moving(
        &mut self,
        promises: &mut impl Promises,
        number: u32,
        why: &RequestError,
        now: Now,
    ) {
        let Some(flow) = self.flows.get(&number).cloned() else {
            return;
        };
        let Some(Move::Offered { to, .. }) = &flow.movement else {
            return;
        };
        let why = format!(
            "{}, and it cannot move there: {why}",
            elsewhere(&flow, to.as_str())
        );
        self.close_and_notify(promises, &flow, why, now);
    }

    /// Closes a flow, with the reason for its program and for the journal.
    pub(super) fn close_and_notify(
        &mut self,
        promises: &mut impl Promises,
        flow: &FlowRecord,
        why: String,
        now: Now,
    ) {
        let number = flow.number;
        promises
            .journal()
            .note(now, format!("flow:{number} is closed: {why}"));
        self.close_flow(flow, &why, None, now);
        // If the flow is being opened, the reply to its program has this error instead.
        if flow.at_driver.is_some() {
            self.notify_flow(number, FlowNotification::Closed { flow: number, why });
        }
    }

    /// Closes flows that were not taken in time, and former ones that their programs have not
    /// closed.
    pub(super) fn expire_moves(&mut self, promises: &mut impl Promises, now: Now) {
        while let Some((at, number)) = self.move_deadlines.first().copied() {
            if at > now.monotonic {
                return;
            }
            self.move_deadlines.pop_first();
            let flow = self.flows.get(&number);
            let Some(flow) = flow.filter(|flow| flow.closing.is_none()).cloned() else {
                continue;
            };
            match &flow.movement {
                // Its calls have their own time limits, and end the move.
                Some(Move::Offered {
                    taking: Some(_), ..
                }) => {}
                Some(Move::Offered { to, until, .. }) if *until == at => {
                    let why = format!(
                        "{}, and its program has not taken it there within {TAKE_TIMEOUT}",
                        elsewhere(&flow, to.as_str())
                    );
                    self.close_and_notify(promises, &flow, why, now);
                }
                Some(Move::Former { until }) if *until == at => {
                    self.close_flow(&flow, "the flow has moved", None, now);
                }
                _ => {}
            }
        }
    }

    /// The flow, if it is open and moves to this successor.
    fn moving_to(&self, number: u32, successor: u32) -> Option<&FlowRecord> {
        let flow = self.flows.get(&number)?;
        (flow.successor() == Some(successor) && flow.closing.is_none()).then_some(flow)
    }

    fn movement_mut(&mut self, number: u32) -> Option<&mut Move> {
        self.flows.get_mut(&number)?.movement.as_mut()
    }

    fn set_move(&mut self, number: u32, movement: Option<Move>) {
        if let Some(Move::Offered { until, .. } | Move::Former { until }) = movement {
            self.move_deadlines.insert((until, number));
        }
        if let Some(flow) = self.flows.get_mut(&number) {
            flow.movement = movement;
        }
    }

    /// Removes a record from the tables that have it by its number, and nothing else.
    fn forget_number(&mut self, number: u32) -> Option<FlowRecord> {
        let flow = self.flows.remove(&number)?;
        self.icmp.remove(&flow);
        if let Some(state) = self.link_states.get_mut(&flow.link) {
            state.promised.set(PromiseHolder::Flow(number), None);
            state.minimums.remove(&number);
            state.members.set(number, None);
            if let Some(program) = state.programs.get_mut(&flow.program) {
                program.open.remove(&number);
            }
        }
        Some(flow)
    }

    /// Adds a record to the tables under another number.
    fn know_number(&mut self, number: u32, flow: FlowRecord) {
        let flow = FlowRecord { number, ..flow };
        let state = self.link_states.get_mut(&flow.link);
        if let Some(program) = state.and_then(|state| state.programs.get_mut(&flow.program)) {
            program.open.insert(number);
        }
        self.icmp.insert(&flow);
        self.flows.insert(number, flow);
        self.update_promise(number);
    }
}

/// Why a flow must move.
pub(super) fn elsewhere(flow: &FlowRecord, to: &str) -> String {
    format!("its route leads over {to} now, not over {}", flow.link)
}

fn ended(number: u32) -> RequestError {
    RequestError::Failed(format!("flow:{number} has ended while it was to move"))
}

/// The time in which a program takes a flow.
const TAKE_TIMEOUT: Nanos = Nanos::from_secs(10);
/// The time in which a program closes a former flow.
const FORMER_TIMEOUT: Nanos = Nanos::from_secs(5);
