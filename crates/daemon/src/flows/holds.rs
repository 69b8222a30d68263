//! Holds promises of a link for flows that are opened later, by the same program.
//!
//! A program that sets up a channel over several links must know which deadline each link keeps
//! before it knows how the deadline of the channel is divided. So it requests a *hold*
//! ([`Flows::hold_promise`]): the shortest deadline, up to a given one, with which the link keeps
//! the requested channel beside all its promises. The hold counts as a promise of the link, and as
//! a flow of its program. The link is divided as for an open flow, so the driver has the rate
//! already when the flow is opened. A flow that is opened with the hold is admitted in its place.
//! With a deadline that is not shorter than the held one, it fits if the link has no horizon and
//! the channel no limit (docs/reference/contracts.md, theorem 5).
//!
//! ```text
//!   hold ──▶ held ── open ──▶ opening ── next hop is known ──▶ replaced ── flow is open ──▶ ended
//!             │ ▲                │ refused, or fails              │ refused, or fails
//!             │ └────────────────┴────────────────────────────────┘
//!             └── after 5 s, released, program or driver ended, fits no more ─▶ ended
//! ```
//! A hold does not end in time while a flow is being opened with it; if the opening fails later
//! than that, the hold ends then. No hold is in the state file or at the driver: a new daemon has
//! none.
//!
//! A hold is refused for the reasons for which a flow with its contract is refused
//! (`super::open_flow`), if its contract has no channel or has a receive share, or if the channel
//! does not fit even with the given deadline. Redirected minimums stay if the channel fits beside
//! them with any deadline; if it does not, they give way, the last one first.

pub(super) mod shortest;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use netnice_api::Response;
use netnice_api::direct::{DirectReply, HoldPromise, PromiseHeld, ReleaseHold};
use netnice_core::contract::{Contract, IfName};
use netnice_core::units::{Instant, Nanos, Rate};

use super::admission::LinkCapacity;
use super::endpoint::{local_address, route_mtu, unspecified};
use super::network::Network;
use super::promised_flows::PromiseHolder;
use super::promises::Promises;
use super::requested_contracts::{check_link, contract};
use super::{FlowRecord, Flows, ReplySender, refuse, sessions};
use crate::clock::Now;
use crate::error::RequestError;
use crate::server::Reply;

/// The holds of all links.
#[derive(Default)]
pub(super) struct Holds {
    /// The number given last.
    last: u32,
    holds: BTreeMap<u32, Hold>,
    /// The numbers of the holds of each session.
    of_sessions: BTreeSet<(u64, u32)>,
    /// The times at which holds end, with their numbers.
    ends: BTreeSet<(Instant, u32)>,
}

/// A held promise.
struct Hold {
    session: u64,
    link: IfName,
    contract: Rc<Contract>,
    /// When it ends.
    until: Instant,
    stage: Stage,
}

/// How far the opening of a flow with a hold is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No flow is being opened with it.
    Held,
    /// The next hop of the flow is being resolved.
    Opening,
    /// The flow is recorded: its promise counts, and the held one does not.
    Replaced,
}

impl Holds {
    /// When the next hold ends; `None` if there is none.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// The number of holds of a session that count beside its recorded flows, without hold `but`.
    pub(super) fn count_of(&self, session: u64, but: Option<u32>) -> usize {
        let numbers = self.numbers_of(session);
        let others = numbers.filter(|number| Some(*number) != but);
        let counts = |number: &u32| {
            let hold = self.holds.get(number);
            hold.is_some_and(|hold| hold.stage != Stage::Replaced)
        };
        others.filter(counts).count()
    }

    /// Checks that a flow of a session can be opened with this hold.
    ///
    /// # Errors
    /// If the session has no such hold, or if a flow is being opened with it.
    pub(super) fn check_usable(&self, session: u64, number: u32) -> Result<(), RequestError> {
        let hold = self.holds.get(&number);
        match hold.filter(|hold| hold.session == session) {
            Some(hold) if hold.stage == Stage::Held => Ok(()),
            Some(_) => Err(RequestError::BadUsage(format!(
                "a flow is being opened with hold:{number} already"
            ))),
            None => Err(RequestError::BadUsage(format!(
                "hold:{number} is not held (any more), or belongs to another program: a promise is \
                 held for {}",
                Nanos(HoldPromise::LASTS_NS)
            ))),
        }
    }

    /// Records that the next hop of a flow with this hold is being resolved.
    pub(super) fn begin_opening(&mut self, number: u32) {
        if let Some(hold) = self.holds.get_mut(&number) {
            hold.stage = Stage::Opening;
        }
    }

    fn numbers_of(&self, session: u64) -> impl Iterator<Item = u32> {
        let theirs = self.of_sessions.range((session, 0)..=(session, u32::MAX));
        theirs.map(|(_, number)| *number)
    }

    /// The next unused number. Numbers ascend, so that the number of an ended hold is not soon
    /// reused.
    fn free_number(&mut self) -> u32 {
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if !self.holds.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    fn insert(&mut self, number: u32, hold: Hold) {
        self.of_sessions.insert((hold.session, number));
        self.ends.insert((hold.until, number));
        self.holds.insert(number, hold);
    }

    fn remove(&mut self, number: u32) -> Option<Hold> {
        let hold = self.holds.remove(&number)?;
        self.of_sessions.remove(&(hold.session, number));
        self.ends.remove(&(hold.until, number));
        Some(hold)
    }
}

impl<N: Network> Flows<N> {
    /// Holds a promise, and replies with the contract that is held; or refuses for the reasons in
    /// the module's documentation.
    pub(super) fn hold_promise(
        &mut self,
        promises: &mut impl Promises,
        session: u64,
        request: &HoldPromise,
        reply: ReplySender,
        now: Now,
    ) {
        match self.hold_for(promises, session, request, now) {
            Ok(held) => {
                let held = DirectReply::Held(held);
                let _ = reply.send(Reply::from(Response::Direct(held)));
            }
            Err(error) => refuse(reply, error),
        }
    }

    fn hold_for(
        &mut self,
        promises: &mut impl Promises,
        session: u64,
        request: &HoldPromise,
        now: Now,
    ) -> Result<PromiseHeld, RequestError> {
        let opener = self.opener(promises, session, None)?;
        let (peer, link, pid) = (&opener.peer, &opener.link, opener.pid);
        let mut has_budget = || promises.budget_of(pid, peer.uid, link).is_some();
        let text = Some(request.contract.as_str());
        let none = Contract::default();
        let longest = contract(peer, &none, text, opener.has_channels, &mut has_budget)?;
        check_link(&longest, link)?;
        check_clauses(&longest)?;
        let nic = self.nic_of(link)?;
        let route = self.route_over(link, nic, request.to, None)?;
        let from = local_address(unspecified(request.to), &route, request.to)?;
        let (hold, contract) =
            self.admit_hold(promises, (session, pid), link.clone(), &longest, now)?;
        Ok(PromiseHeld {
            hold,
            contract: contract.to_string(),
            via: route.next_hop,
            from,
            mtu: route_mtu(&route, nic),
        })
    }

    /// Holds a contract with its shortest deadline, and divides the link again. Returns the number
    /// of the hold, and the held contract.
    ///
    /// # Errors
    /// If not even the contract with its own deadline fits, if the link has no capacity for direct
    /// flows, or if the kernel refuses the classes. Then nothing is held.
    fn admit_hold(
        &mut self,
        promises: &mut impl Promises,
        (session, pid): (u64, u32),
        link: IfName,
        longest: &Contract,
        now: Now,
    ) -> Result<(u32, Rc<Contract>), RequestError> {
        self.fit_new_server(promises, &link, now);
        let mtu = self.nic_of(&link)?.mtu;
        let number = self.holds.free_number();
        let (capacity, contract) = loop {
            let capacity = self.link_capacity(promises, &link, mtu)?;
            if let Some(contract) = self.shortest(&link, &capacity, longest) {
                break (capacity, contract);
            }
            if self.drop_last_minimum(promises, &link, now) {
                continue;
            }
            // The search has a smaller bound of work.
            match capacity.admit(&self.promises(&link, None), longest, None) {
                Ok(_) => break (capacity, longest.clone()),
                Err(misfit) => {
                    let asks = format!("process {pid} asks to hold {longest}");
                    let of = (&link, Some(PromiseHolder::Hold(number)));
                    return Err(self.refusal(promises, &capacity, of, &asks, &misfit));
                }
            }
        };
        let contract = Rc::new(contract);
        let present = self.link_states.get(&link).and_then(|state| state.need);
        self.add_hold(number, session, &link, &contract, now);
        let need = match self.need_at_once(&link, &capacity, present) {
            Some(need) => Ok(need),
            None => capacity.need(&self.promises(&link, None)),
        };
        let need = need.map_err(|fault| RequestError::NotAdmitted(format!("refused: {fault}")));
        let divided = need.and_then(|need| self.divide(promises, &link, capacity, Some(need), now));
        match divided {
            Ok(()) => Ok((number, contract)),
            Err(error) => {
                self.end_hold(number);
                self.settle(promises, &link, now);
                Err(error)
            }
        }
    }

    /// Records a hold, and counts its promise.
    fn add_hold(
        &mut self,
        number: u32,
        session: u64,
        link: &IfName,
        contract: &Rc<Contract>,
        now: Now,
    ) {
        let hold = Hold {
            session,
            link: link.clone(),
            contract: Rc::clone(contract),
            until: now.monotonic.after(Nanos(HoldPromise::LASTS_NS)),
            stage: Stage::Held,
        };
        self.holds.insert(number, hold);
        if let Some(state) = self.link_states.get_mut(link) {
            if !state.promised.has_holds() {
                state.need_before_holds = state.need;
            }
            let holder = PromiseHolder::Hold(number);
            state.promised.set(holder, Some(contract));
        }
    }

    /// The rate that was needed before the holds of a link, if there is no hold any more and the
    /// rate is certainly enough.
    pub(super) fn need_after_holds(
        &mut self,
        link: &IfName,
        capacity: &LinkCapacity,
    ) -> Option<Rate> {
        let state = self.link_states.get_mut(link)?;
        if state.promised.has_holds() {
            return None;
        }
        let rate = state.need_before_holds.take()?;
        self.fit_at_once(link, capacity, rate, None).then_some(rate)
    }

    /// Ends a hold at the request of its session, and replies. A hold of another session is not
    /// touched.
    pub(super) fn release(
        &mut self,
        promises: &mut impl Promises,
        session: u64,
        request: ReleaseHold,
        reply: ReplySender,
        now: Now,
    ) {
        let hold = self.holds.holds.get(&request.hold);
        if let Some(hold) = hold.filter(|hold| hold.session == session) {
            let link = hold.link.clone();
            self.end_hold(request.hold);
            self.settle(promises, &link, now);
        }
        sessions::reply_done(reply);
    }

    /// Counts the promise of a flow, which is recorded next, in place of its hold. Returns the held
    /// contract if the link has no other hold: then a smaller rate may be enough.
    pub(super) fn replace_hold(&mut self, flow: &FlowRecord) -> Option<Rc<Contract>> {
        let number = flow.hold?;
        let hold = self.holds.holds.get_mut(&number)?;
        hold.stage = Stage::Replaced;
        let state = self.link_states.get_mut(&hold.link)?;
        state.promised.set(PromiseHolder::Hold(number), None);
        (!state.promised.has_holds()).then(|| Rc::clone(&hold.contract))
    }

    /// Ends the hold with which a flow was opened.
    pub(super) fn end_replaced_hold(&mut self, flow: u32) {
        let flow = self.flows.get_mut(&flow);
        if let Some(number) = flow.and_then(|flow| flow.hold.take()) {
            self.holds.remove(number);
        }
    }

    /// Holds a promise again, because no flow was opened with it; ends it if its time is over. The
    /// caller divides the link again.
    pub(super) fn hold_again(&mut self, number: u32, now: Now) {
        let Some(hold) = self.holds.holds.get_mut(&number) else {
            return;
        };
        if hold.until <= now.monotonic {
            return self.end_hold(number);
        }
        hold.stage = Stage::Held;
        if let Some(state) = self.link_states.get_mut(&hold.link) {
            let holder = PromiseHolder::Hold(number);
            state.promised.set(holder, Some(&hold.contract));
        }
    }

    /// Ends a hold. The caller divides the link again.
    pub(super) fn end_hold(&mut self, number: u32) {
        let Some(hold) = self.holds.remove(number) else {
            return;
        };
        if let Some(state) = self.link_states.get_mut(&hold.link) {
            state.promised.set(PromiseHolder::Hold(number), None);
        }
    }

    /// Ends the holds of a session. The caller divides the link again.
    pub(super) fn end_holds_of(&mut self, session: u64) {
        let theirs: Vec<u32> = self.holds.numbers_of(session).collect();
        for number in theirs {
            self.end_hold(number);
        }
    }

    /// Ends the holds of a link. The caller divides the link again.
    pub(super) fn end_holds_on(&mut self, link: &IfName) {
        let theirs = self.holds.holds.iter();
        let theirs = theirs.filter(|(_, hold)| hold.link == *link);
        let theirs: Vec<u32> = theirs.map(|(number, _)| *number).collect();
        for number in theirs {
            self.end_hold(number);
        }
    }

    /// Ends the holds that are over their time, without those with which flows are being opened,
    /// and divides their links again.
    pub(super) fn expire_holds(&mut self, promises: &mut impl Promises, now: Now) {
        let mut links = BTreeSet::new();
        while let Some((at, number)) = self.holds.ends.first().copied() {
            if at > now.monotonic {
                break;
            }
            self.holds.ends.pop_first();
            let hold = self.holds.holds.get(&number);
            if let Some(hold) = hold.filter(|hold| hold.stage == Stage::Held) {
                links.insert(hold.link.clone());
                self.end_hold(number);
            }
        }
        for link in links {
            self.settle(promises, &link, now);
        }
    }
}

/// Checks that a hold can have the clauses of a contract.
fn check_clauses(contract: &Contract) -> Result<(), RequestError> {
    let missing = contract.channel().is_none();
    match (missing, contract.receive()) {
        (true, _) => Err(RequestError::BadUsage(format!(
            "a promise is held for a channel, and {contract} has none: channel \
             mmax=SIZE,rmax=N/s,bmax=N,deadline=TIME"
        ))),
        (false, Some(share)) => Err(RequestError::BadUsage(format!(
            "receive {share} cannot be held: a flow requests it when it is opened"
        ))),
        (false, None) => Ok(()),
    }
}
