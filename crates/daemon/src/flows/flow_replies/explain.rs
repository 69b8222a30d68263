//! The pages of `netnice explain` about flows, and about the driver of a link. [`Flows::explain`]
//! fails if a page would be empty.

use std::rc::Rc;

use netnice_api::Explained;
use netnice_api::driver::CensusDoc;
use netnice_core::contract::IfName;
use netnice_core::target::Target;
use netnice_core::units::Amount;

use super::super::admission::LinkCapacity;
use super::super::network::Network;
use super::super::promises::Promises;
use super::super::receive_shares::receive_budget;
use super::super::{FlowRecord, Flows, NextHop, messages, packet_costs};
use super::{Census, Counts};
use crate::error::RequestError;
use crate::page::Page;
use crate::user_names::user_name;

impl<N: Network> Flows<N> {
    /// The page about a target: about these flows, and `more` that are only counted, or about a
    /// link.
    pub(super) fn explain(
        &self,
        promises: &mut impl Promises,
        (flows, more): (&[&FlowRecord], usize),
        target: &Target,
        known: Option<Explained>,
        census: &Census,
    ) -> Result<Explained, RequestError> {
        let counts = Counts::of(census);
        let mut page = Page::after(known.clone().unwrap_or_default());
        if let Target::Direct(link) = target {
            self.explain_link(promises, link, census.get(link).map(Rc::as_ref), &mut page)?;
            return Ok(page.into());
        }
        for flow in flows {
            self.explain_flow(promises, flow, &counts, &mut page);
        }
        if more > 0 {
            page.row(
                "more",
                &format!("{more} flows more; netnice show {target} lists them"),
            );
        }
        let page = Explained::from(page);
        match page.lines.is_empty() {
            false => Ok(page),
            true => Err(RequestError::Failed(format!(
                "{target} is not open; netnice show lists flows"
            ))),
        }
    }

    fn explain_flow(
        &self,
        promises: &mut impl Promises,
        flow: &FlowRecord,
        counts: &Counts<'_>,
        page: &mut Page,
    ) {
        let state = self.link_states.get(&flow.link);
        let who = self.program_of(flow).map_or_else(String::new, |program| {
            format!(
                "process {} ({}) of {}",
                program.pid,
                program.name,
                user_name(program.uid)
            )
        });
        page.row(
            "flow",
            &format!(
                "flow:{}: {} on {}, {who}",
                flow.number,
                messages::endpoint(&flow.endpoint),
                flow.link
            ),
        );
        let contract = match flow.contract.is_empty() {
            true => "best effort".to_owned(),
            false => flow.contract.to_string(),
        };
        page.row("contract", &contract);
        if let Some(why) = &flow.degraded {
            page.row("degraded", &format!("served as best effort: {why}"));
        }
        let next_hop = match flow.next_hop {
            NextHop::Any => "to the next hop that the program names for each packet".to_owned(),
            NextHop::Group(mac) => format!("to the group at {}", messages::mac(mac)),
            NextHop::Toward {
                via,
                mac: Some(mac),
                ..
            } => format!("to {via} at {}", messages::mac(mac)),
            NextHop::Toward { via, mac: None, .. } => {
                format!("{via} does not answer: packets come back unsent")
            }
        };
        page.row(
            "leaves",
            &format!("{next_hop}, packets up to {} bytes", flow.mtu),
        );
        if let Some(state) = state {
            page.row(
                "socket",
                &messages::mode(&state.mode, state.why_not_native.as_deref()),
            );
        }
        let Some(own) = counts.of_flow(flow) else {
            return page.row("counts", "its driver did not tell them in time");
        };
        messages::counts(own, receive_budget(&flow.endpoint), page);
        let pid = self.program_of(flow).map(|program| program.pid);
        let reserved = pid.and_then(|pid| promises.processor_slice(pid));
        let link = state
            .and_then(|state| state.capacity)
            .map(|capacity| capacity.link_rate);
        let cost = self.packet_cost(flow, |flow| counts.of_flow(flow));
        packet_costs::rows(cost, (&flow.contract, own), link, reserved, page);
    }

    fn explain_link(
        &self,
        promises: &impl Promises,
        link: &IfName,
        census: Option<&CensusDoc>,
        page: &mut Page,
    ) -> Result<(), RequestError> {
        let Some(state) = self.link_states.get(link) else {
            return Err(RequestError::Failed(format!(
                "there are no direct flows on {link}, and no driver of it runs"
            )));
        };
        page.row(
            "driver",
            &format!(
                "of {link}: {} of {}, {}",
                messages::plural(state.flow_count as usize, "flow"),
                messages::plural(state.programs.len(), "program"),
                messages::plural(state.promised.targets(), "redirected target")
            ),
        );
        page.row(
            "socket",
            &messages::mode(&state.mode, state.why_not_native.as_deref()),
        );
        if let (Some(split), Some(need)) = (state.split, state.need) {
            let part = promises.direct_part(link);
            let tree = part.map_or(split.tree, |part| part.tree);
            page.row(
                "has",
                &format!(
                    "{} of the link for certain, {} of it promised or kept for flows, and what the \
                     kernel's classes do not use of their {tree}",
                    split.driver, need
                ),
            );
            page.row("sends", &Amount(state.sending_rate).to_string());
        }
        let horizon = state.capacity.as_ref().map(LinkCapacity::horizon);
        if let Some(horizon) = horizon.and_then(messages::horizon) {
            page.row("horizon", &horizon);
        }
        if let Some(written) = state.code_points.as_ref().and_then(messages::code_points) {
            page.row("dscp", &written);
        }
        let discards = state.discards.as_ref().map_or(0, Vec::len);
        if discards > 0 {
            let patterns = messages::plural(discards, "pattern");
            page.row("discards", &format!("what fits {patterns} of the policy"));
        }
        for (why, count) in census.map(|c| c.discarded.as_slice()).unwrap_or_default() {
            page.row("discarded", &format!("{count} received frames: {why}"));
        }
        if let Some(census) = census {
            page.row("time", &messages::time(&census.time));
            if let Some(thread) = messages::packet_thread(&state.thread) {
                page.row("thread", &thread);
            }
            if census.stops.number() > 0 {
                page.row("stopped", &messages::stops(&census.stops));
            }
            if let Some(frames) = &census.frames {
                let all = state.flow_count as usize;
                page.row("frames", &messages::frames(frames, &census.flows, all));
            }
            if census.pm_qos_held {
                page.row("awake", messages::AWAKE);
            }
            if !census.confinement.is_empty() {
                page.row("confined", &census.confinement);
            }
            if census.unrequested_doorbells > 0 {
                page.row(
                    "rung",
                    &messages::needless_doorbells(census.unrequested_doorbells),
                );
            }
        }
        Ok(())
    }
}
