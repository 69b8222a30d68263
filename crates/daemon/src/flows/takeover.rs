//! Takes over a driver that an earlier daemon started, from its census (its list of programs, flows
//! and redirected targets): holds the ports of the flows again, looks up their next hops, and
//! degrades flows that no longer fit. A flow whose ports cannot be held continues without them, and
//! the journal gets a warning. The census of a new driver has no flows: only the driver's mode is
//! recorded. No function returns an error.

use std::collections::BTreeSet;
use std::rc::Rc;

use netnice_api::driver::{CensusDoc, DriverFlowDoc, ProgramDoc};
use netnice_core::contract::{Contract, IfName};

use super::network::Network;
use super::packet_costs::{CostBase, Packets};
use super::ports::PortOwner;
use super::promises::Promises;
use super::{FlowRecord, Flows, NextHop, Program, admission};
use crate::clock::Now;

impl<N: Network> Flows<N> {
    /// Takes over the flows of a driver that an earlier daemon started. For every driver, records
    /// the mode and sends the discard patterns if they differ.
    pub(super) fn take_over(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        census: CensusDoc,
        now: Now,
    ) {
        let nic = self.nic(link).ok();
        self.identify_thread(link, census.thread);
        let Some(state) = self.link_states.get_mut(link) else {
            return;
        };
        state.mode = census.mode;
        state.why_not_native = census.why_not_native;
        state.nic = nic;
        // A driver without patterns needs no message if it should have none.
        state.discards = (census.discard_patterns == 0).then(Vec::new);
        state.code_points = Some(census.code_points);
        state.awake_limit_ppm = census.awake_limit_ppm;
        state.is_census_late = false;
        for program in &census.programs {
            let known = state.programs.entry(program.program);
            let known = known.or_insert_with(|| adopted_program(promises, program));
            if known.session.is_none() && known.cost_base.processor.is_none() {
                known.cost_base = adopted_costs(&self.network, program, &census.flows);
            }
        }
        self.update_policy(promises, link, now);
        self.redirects.retry(link);
        self.adopt_redirects(promises, link, census.redirected, now);
        let mut found: Vec<DriverFlowDoc> = census.flows;
        found.sort_by_key(|doc| doc.setup.number);
        let mut adopted = 0;
        let present = self.flows.values().filter(|flow| flow.link == *link);
        let mut at_driver: BTreeSet<u32> = present.filter_map(|flow| flow.at_driver).collect();
        for doc in found {
            let same_number = self.flows.get(&doc.setup.number);
            let known = same_number.is_some_and(|flow| flow.link == *link);
            let known = known || !at_driver.insert(doc.flow);
            if !known {
                self.adopt_flow(promises, link, doc, now);
                adopted += 1;
            }
        }
        if adopted > 0 {
            promises.journal().note(
                now,
                format!("took over {adopted} direct flows of {link} from an earlier daemon"),
            );
            // They may have changed while no daemon ran.
            self.request_route_check(now);
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
        let program = self.link_states.get(link);
        let program = program.and_then(|state| state.programs.get(&setup.program));
        let peer = crate::peer::Peer {
            uid: program.map_or(0, |program| program.uid),
            privileged: true,
            groups: Vec::new(),
        };
        let pid = program.map_or(0, |program| program.pid);
        let owner = PortOwner::of(&peer, pid, setup.program, 0);
        let (next_hop, ports) = self.hold_ports_again(owner, link, &setup);
        let ports = ports.unwrap_or_else(|error| {
            promises.journal().warn(
                now,
                format!("flow:{number} continues, but its port is not held: {error}"),
            );
            Vec::new()
        });
        let granted = setup.granted.unwrap_or_else(|| setup.contract.clone());
        let [contract, served] =
            [&granted, &setup.contract].map(|text| text.parse::<Contract>().unwrap_or_default());
        let is_kept = admission::is_promised(&served) || !admission::is_promised(&contract);
        if !is_kept && let Some(state) = self.link_states.get_mut(link) {
            state.had_degraded = true;
        }
        self.record_flow(FlowRecord {
            number,
            link: link.clone(),
            program: setup.program,
            at_driver: Some(doc.flow),
            slot: doc.slot,
            endpoint: setup.endpoint,
            shape: setup.shape,
            in_order: setup.in_order,
            contract: Rc::new(contract),
            degraded: (!is_kept)
                .then(|| format!("it did not fit on {link} before this daemon started")),
            next_hop,
            mtu: setup.mtu,
            ports,
            key: None,
            closing: None,
            is_given_up: false,
            movement: None,
            hold: None,
        });
    }
}

/// The record of a program that an earlier daemon attached.
fn adopted_program(promises: &mut impl Promises, doc: &ProgramDoc) -> Program {
    let process = promises.process(doc.pid);
    let of_process = process.as_ref().map(|process| process.uid);
    Program {
        pid: doc.pid,
        uid: doc.uid.or(of_process).unwrap_or(0),
        name: process.map(|process| process.name).unwrap_or_default(),
        bytes: doc.bytes,
        flows: doc.flows,
        secret: doc.secret.clone(),
        open: BTreeSet::new(),
        session: None,
        cost_base: CostBase::default(),
    }
}

/// The costs of such a program count from now on.
fn adopted_costs(network: &impl Network, doc: &ProgramDoc, flows: &[DriverFlowDoc]) -> CostBase {
    let mut costs = CostBase::new(network.processor_time(doc.pid));
    let own = flows
        .iter()
        .filter(|flow| flow.setup.program == doc.program);
    own.for_each(|flow| costs.before.add(Packets::of(&flow.counts)));
    costs
}

/// The next hop of a flow, with the Ethernet address that the driver has. `via` is `None` for a
/// flow without a remote host.
pub(super) fn next_hop_with(via: Option<NextHop>, mac: Option<[u8; 6]>) -> NextHop {
    match (via, mac) {
        (Some(next_hop), mac) => next_hop.with_mac(mac),
        (None, Some(mac)) => NextHop::Group(mac),
        (None, None) => NextHop::Any,
    }
}
