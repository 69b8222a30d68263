//! Replies about direct flows, for `netnice show` and `netnice explain`.
//!
//! The drivers have the counts, so a reply waits for a census of each connected driver (its list of
//! flows with their counts), for at most half a second. If a driver is slower, `show` has zeros for
//! the counts of its flows, and `explain` states that they are missing. `show` lists at most
//! [`MAX_LISTED`] (10,000) flows. `explain` describes at most [`MAX_EXPLAINED`] (20), and counts
//! the others. A reply is about the flows that were open when it was requested. A request to
//! explain a flow that is not open, or a link without a driver, is refused.
//!
//! A census takes the driver and the daemon some microseconds for each flow, and every user may
//! request one. So it contains only the flows whose counts the replies show. At most one is in
//! progress at each driver, and requests that come meanwhile share the next one: the one in
//! progress may be older than the changes that the peer made before its request.

mod explain;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use netnice_api::driver::DriverRequest;
use netnice_api::driver::{CensusDoc, FlowCounts};
use netnice_api::{ContractDoc, Explained, FlowCountersDoc, FlowDoc, Response, ShowDoc};
use netnice_core::contract::IfName;
use netnice_core::target::Target;
use netnice_core::units::{Instant, Nanos};

use super::network::Network;
use super::promises::Promises;
use super::{CallPurpose, FlowRecord, Flows, NextHop, ReplySender, messages, refuse};
use crate::clock::Now;
use crate::peer::Peer;
use crate::server::Reply;
use crate::user_names::user_name;

/// Replies that wait for drivers.
#[derive(Default)]
pub(super) struct Tickets {
    next: u64,
    open: BTreeMap<u64, Ticket>,
}

struct Ticket {
    peer: Peer,
    what: PartialReply,
    /// The numbers of the flows whose counts the reply shows, oldest first.
    flows: Vec<u32>,
    /// The number of further flows that the reply is about.
    more: usize,
    /// Further flows whose counts the costs of a packet need.
    beside: Vec<u32>,
    reply: ReplySender,
    drivers_left: usize,
    census: Census,
    until: Instant,
}

/// The censuses of drivers, by link. Several replies may share one.
pub(super) type Census = BTreeMap<IfName, Rc<CensusDoc>>;

/// A reply without the part about flows, as the service has made it.
pub(crate) enum PartialReply {
    /// The reply to `show`, about one target if one was named.
    Show(ShowDoc, Option<Target>),
    /// The reply to `explain` about this target (`None` if the service has nothing about it), and
    /// the id of the target if it is redirected.
    Explain(Target, Option<Explained>, Option<u32>),
}

impl Ticket {
    /// The numbers of the flows whose counts the reply needs.
    fn counted(&self) -> impl Iterator<Item = u32> {
        self.flows.iter().chain(&self.beside).copied()
    }
}

impl Tickets {
    /// The time at which the next reply is sent without its census; `None` if none waits.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.open.values().map(|ticket| ticket.until).min()
    }

    /// Records a driver's census for these tickets; `None`: it failed.
    pub(super) fn take(&mut self, tickets: &[u64], census: Option<(&IfName, CensusDoc)>) {
        let census = census.map(|(link, census)| (link, Rc::new(census)));
        for ticket in tickets {
            if let Some(ticket) = self.open.get_mut(ticket) {
                ticket.drivers_left = ticket.drivers_left.saturating_sub(1);
                let received = census.iter();
                let received = received.map(|(link, census)| ((*link).clone(), Rc::clone(census)));
                ticket.census.extend(received);
            }
        }
    }

    /// Ends the wait of tickets that are over their time; returns true if there were any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let late = self.open.values_mut().filter(|ticket| ticket.until <= now);
        late.map(|ticket| ticket.drivers_left = 0).count() > 0
    }

    fn ready(&mut self) -> Vec<Ticket> {
        let ready = self
            .open
            .iter()
            .filter(|(_, ticket)| ticket.drivers_left == 0);
        let ready: Vec<u64> = ready.map(|(number, _)| *number).collect();
        ready
            .into_iter()
            .filter_map(|number| self.open.remove(&number))
            .collect()
    }
}

impl<N: Network> Flows<N> {
    /// Adds the state of flows to the service's reply, and sends the reply when the drivers have
    /// answered, at the latest after half a second.
    pub(crate) fn reply_with_flows(
        &mut self,
        promises: &mut impl Promises,
        peer: Peer,
        what: PartialReply,
        reply: ReplySender,
        now: Now,
    ) {
        let here = self.link_states.iter().filter(|(_, state)| state.connected);
        let here: Vec<IfName> = here.map(|(link, _)| link.clone()).collect();
        let number = self.tickets.next;
        self.tickets.next += 1;
        let (flows, more) = self.flows_of_reply(&peer, &what);
        let beside = match &what {
            PartialReply::Explain(Target::Direct(_), ..) | PartialReply::Show(..) => Vec::new(),
            PartialReply::Explain(..) => self.flows_beside(&flows),
        };
        let ticket = Ticket {
            beside,
            flows,
            more,
            peer,
            what,
            reply,
            drivers_left: here.len(),
            census: BTreeMap::new(),
            until: now.monotonic.after(CENSUS_TIMEOUT),
        };
        self.tickets.open.insert(number, ticket);
        for link in here {
            if let Some(state) = self.link_states.get_mut(&link) {
                // Tickets that were answered without the census need none, so a stalled driver does
                // not grow the list.
                let open = &self.tickets.open;
                state
                    .census_waiters
                    .retain(|ticket| open.contains_key(ticket));
                state.census_waiters.push(number);
                if !state.census_pending {
                    self.request_census(&link, now);
                }
            }
        }
        self.send_ready_replies(promises, now);
    }

    /// Asks a driver for a census if replies wait for one and none is in progress.
    pub(super) fn request_census(&mut self, link: &IfName, now: Now) {
        let Some(state) = self.link_states.get_mut(link) else {
            return;
        };
        let mut tickets = std::mem::take(&mut state.census_waiters);
        tickets.retain(|ticket| self.tickets.open.contains_key(ticket));
        state.census_pending = !tickets.is_empty();
        if state.census_pending {
            let open = tickets.iter().filter_map(|it| self.tickets.open.get(it));
            let numbers = open.flat_map(Ticket::counted);
            let known = numbers.map(|number| self.flows.get(&number));
            let theirs = known.flatten().filter(|flow| flow.link == *link);
            let flows: BTreeSet<u32> = theirs.filter_map(|flow| flow.at_driver).collect();
            let ask = DriverRequest::CensusOf {
                flows: flows.into_iter().collect(),
            };
            self.call(link, ask, None, CallPurpose::Census(tickets), now);
        }
    }

    /// The numbers of the flows whose counts a reply to this peer shows, oldest first, and the
    /// number of further flows that the reply is about.
    fn flows_of_reply(&self, peer: &Peer, what: &PartialReply) -> (Vec<u32>, usize) {
        let (target, most) = match what {
            PartialReply::Show(_, target) => (target.as_ref(), MAX_LISTED),
            PartialReply::Explain(target @ Target::Direct(_), ..) => (Some(target), MAX_LISTED),
            PartialReply::Explain(target, ..) => (Some(target), MAX_EXPLAINED),
        };
        // A page about a link has sums over flows of all users, and names none.
        let sums_all = matches!(what, PartialReply::Explain(Target::Direct(_), ..));
        let of_link = match target {
            Some(Target::Direct(link)) => Some(link),
            _ => None,
        };
        let links = self.link_states.iter();
        let links = links.filter(|(link, _)| of_link.is_none_or(|meant| meant == *link));
        let programs = links.flat_map(|(_, state)| state.programs.values());
        let all_users = sums_all || peer.privileged;
        let programs = programs.filter(|program| all_users || program.uid == peer.uid);
        let numbers = programs.flat_map(|program| &program.open);
        let flows = numbers.filter_map(|number| self.flows.get(number));
        let flows = flows.filter(|flow| {
            let is_meant = target.is_none_or(|target| self.matches_target(flow, target));
            is_meant && (sums_all || self.is_visible(flow, peer))
        });
        let mut numbers: Vec<u32> = flows.map(|flow| flow.number).collect();
        numbers.sort_unstable();
        let more = numbers.len().saturating_sub(most);
        numbers.truncate(most);
        numbers.shrink_to_fit();
        (numbers, more)
    }

    /// Sends the replies that wait for no driver any more.
    pub(super) fn send_ready_replies(&mut self, promises: &mut impl Promises, now: Now) {
        for ticket in self.tickets.ready() {
            let counts = Counts::of(&ticket.census);
            let flows = ticket.flows.iter();
            let flows = flows.filter_map(|number| self.flows.get(number));
            let flows: Vec<&FlowRecord> = flows
                .filter(|flow| self.is_visible(flow, &ticket.peer))
                .collect();
            let (more, census, reply) = (ticket.more, &ticket.census, ticket.reply);
            match ticket.what {
                PartialReply::Show(mut doc, _) => {
                    let docs = flows
                        .into_iter()
                        .map(|flow| self.flow_doc(flow, &counts, now));
                    doc.direct = docs.collect();
                    let _ = reply.send(Reply::from(Response::Shown(doc)));
                }
                PartialReply::Explain(target, known, redirected) => {
                    let known = known.map(|page| match redirected {
                        Some(id) => Self::with_redirect_counts(id, census, page),
                        None => page,
                    });
                    let all = (flows.as_slice(), more);
                    match self.explain(promises, all, &target, known, census) {
                        Ok(page) => {
                            let _ = reply.send(Reply::from(Response::Explained(page)));
                        }
                        Err(error) => refuse(reply, error),
                    }
                }
            }
        }
    }

    /// True for a flow that a peer may see: any flow for root and the group netnice, else the
    /// user's own.
    pub(super) fn is_visible(&self, flow: &FlowRecord, peer: &Peer) -> bool {
        let is_own = || {
            let program = self.program_of(flow);
            program.is_some_and(|program| program.uid == peer.uid)
        };
        flow.at_driver.is_some() && flow.is_shown() && (peer.privileged || is_own())
    }

    fn program_of(&self, flow: &FlowRecord) -> Option<&super::Program> {
        self.link_states
            .get(&flow.link)?
            .programs
            .get(&flow.program)
    }

    fn matches_target(&self, flow: &FlowRecord, target: &Target) -> bool {
        match target {
            Target::Flow(number) => flow.number == *number,
            Target::Direct(link) => flow.link == *link,
            Target::Pid(pid) => self.program_of(flow).is_some_and(|p| p.pid == pid.get()),
            _ => false,
        }
    }

    fn flow_doc(&self, flow: &FlowRecord, counts: &Counts<'_>, now: Now) -> FlowDoc {
        let program = self.program_of(flow);
        let state = self.link_states.get(&flow.link);
        let mut contract = ContractDoc::from(flow.contract.as_ref());
        contract.on = Some(flow.link.to_string());
        FlowDoc {
            flow: format!("flow:{}", flow.number),
            link: flow.link.to_string(),
            mode: state.map(|state| state.mode.clone()).unwrap_or_default(),
            pid: program.map_or(0, |program| program.pid),
            program: program
                .map(|program| program.name.clone())
                .unwrap_or_default(),
            uid: program.map_or(0, |program| program.uid),
            user: program.map_or_else(String::new, |program| user_name(program.uid)),
            state: self.state_of(flow, counts.of_flow(flow)).to_owned(),
            endpoint: messages::endpoint(&flow.endpoint),
            contract,
            next_hop: flow.next_hop.mac().map(messages::mac),
            mtu: flow.mtu,
            degraded: flow.degraded.iter().cloned().collect(),
            counters: FlowCountersDoc {
                at_ns: now.monotonic.0,
                counts: counts.of_flow(flow).cloned().unwrap_or_default(),
            },
        }
    }

    /// The state of a flow: [`FlowDoc::state`].
    fn state_of(&self, flow: &FlowRecord, counts: Option<&FlowCounts>) -> &'static str {
        let nic = self.link_states.get(&flow.link).and_then(|state| state.nic);
        let has_no_next_hop = matches!(flow.next_hop, NextHop::Toward { mac: None, .. });
        match () {
            () if flow.closing.is_some() => "closing",
            () if flow.movement.is_some() => "moving",
            () if nic.is_some_and(|nic| !nic.up) => "link down",
            () if has_no_next_hop => "no next hop",
            () if counts.is_some_and(|counts| counts.suspended) => "suspended",
            () => "open",
        }
    }
}

/// Counts by link and the driver's flow id.
struct Counts<'a>(BTreeMap<(&'a IfName, u32), &'a FlowCounts>);

impl Counts<'_> {
    fn of(census: &Census) -> Counts<'_> {
        let flows = census.iter().flat_map(|(link, census)| {
            let flows = census.flows.iter();
            flows.map(move |doc| ((link, doc.flow), &doc.counts))
        });
        Counts(flows.collect())
    }

    fn of_flow(&self, flow: &FlowRecord) -> Option<&FlowCounts> {
        self.0.get(&(&flow.link, flow.at_driver?)).copied()
    }
}

/// How long a reply waits for drivers.
const CENSUS_TIMEOUT: Nanos = Nanos::from_millis(500);
/// Largest number of flows in a reply.
const MAX_LISTED: usize = 10_000;
/// Largest number of flows that one `explain` describes.
const MAX_EXPLAINED: usize = 20;
