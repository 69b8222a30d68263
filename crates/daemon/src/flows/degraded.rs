//! Marks flows as degraded or restored, informs their drivers of the contract that is served, and
//! notifies their programs. No function fails.

use netnice_api::direct::FlowNotification;
use netnice_core::contract::IfName;

use super::network::Network;
use super::promised_flows::PromiseHolder;
use super::{CallPurpose, Flows};
use crate::clock::Now;

impl<N: Network> Flows<N> {
    /// Marks all flows of a link whose promise is kept as degraded.
    pub(super) fn degrade_all(&mut self, link: &IfName, why: &str, now: Now) {
        let state = self.link_states.get(link);
        let promised = state.into_iter().flat_map(|state| state.promised.iter());
        let flow = |holder| match holder {
            PromiseHolder::Flow(number) => Some(number),
            PromiseHolder::Target(_) | PromiseHolder::Hold(_) | PromiseHolder::Minimum(_) => None,
        };
        let theirs: Vec<u32> = promised.filter_map(|(holder, _)| flow(holder)).collect();
        for number in theirs {
            self.degrade(number, why.to_owned(), now);
        }
    }

    /// Marks a flow as degraded for the reason `why`, and notifies its program. No effect if the
    /// flow is closed.
    pub(super) fn degrade(&mut self, number: u32, why: String, now: Now) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        if let Some(state) = self.link_states.get_mut(&flow.link) {
            state.had_degraded = true;
        }
        self.set_contract(number, flow.contract.clone(), Some(why));
        self.send_degraded(number, now);
    }

    /// Marks a flow as not degraded. Its driver and its program are not informed: call
    /// [`Flows::send_degraded`] when the division of the link provides for the promise. No effect
    /// if the flow is closed.
    pub(super) fn restore(&mut self, number: u32) {
        if let Some(flow) = self.flows.get(&number) {
            self.set_contract(number, flow.contract.clone(), None);
        }
    }

    /// Informs the driver and the program of a flow whether the flow is degraded. No effect if the
    /// flow is closed.
    pub(super) fn send_degraded(&mut self, number: u32, now: Now) {
        let Some(flow) = self.flows.get(&number).cloned() else {
            return;
        };
        self.send_contract(&flow, CallPurpose::Nothing, now);
        let why = flow.degraded.unwrap_or_default();
        self.notify_flow(number, FlowNotification::Degraded { flow: number, why });
    }
}
