//! Admits the parts of a driver's time for received packets that flows have for certain (`receive
//! P%`). Fails if the parts on a link would exceed [`MAX_RESERVED_RECEIVE`]; the refusal names the
//! holders, and the largest part that fits.

use std::collections::BTreeMap;

use netnice_api::direct::Endpoint;
use netnice_api::driver::MAX_RESERVED_RECEIVE;
use netnice_core::contract::{IfName, ReceiveShare};

use super::link_promises::MAX_LISTED;
use super::network::Network;
use super::{CallPurpose, Flows};
use crate::error::RequestError;

/// A flow's share of its driver's time for receiving, in millionths.
pub(super) fn receive_budget(endpoint: &Endpoint) -> u32 {
    match endpoint {
        Endpoint::TcpSyn { .. } => REQUESTS_BUDGET,
        _ => RECEIVE_BUDGET,
    }
}

impl<N: Network> Flows<N> {
    /// Checks the part of a recorded flow beside those of the other flows of its link. Fails as the
    /// module says.
    pub(super) fn admit_receive_share(
        &self,
        link: &IfName,
        number: u32,
    ) -> Result<(), RequestError> {
        let flow = self.flows.get(&number);
        let Some((flow, share)) = flow.and_then(|flow| Some((flow, flow.contract.receive()?)))
        else {
            return Ok(());
        };
        let former = self.former_receive_shares();
        let others = self.flows.values();
        let others = others.filter(|other| other.link == *link && other.number != number);
        let holders: Vec<(u32, ReceiveShare)> = others
            .filter_map(|other| {
                let former = former.get(&other.number).copied();
                Some((other.known_number(), other.contract.receive().max(former)?))
            })
            .collect();
        let held: u32 = holders.iter().map(|(_, share)| share.millionths()).sum();
        if held + share.millionths() <= MAX_RESERVED_RECEIVE {
            return Ok(());
        }
        let percent = |millionths: u32| f64::from(millionths) / 10_000.0;
        let mut text = format!(
            "refused: flow:{} asks receive {share} on {link}, which does not fit",
            flow.known_number()
        );
        let listed = holders.iter().take(MAX_LISTED);
        let mut lines: Vec<String> = listed
            .map(|(number, share)| format!("flow:{number}  receive {share}"))
            .collect();
        if holders.len() > MAX_LISTED {
            lines.push(format!("and {} more flows", holders.len() - MAX_LISTED));
        }
        for (n, line) in lines.iter().enumerate() {
            let word = if n == 0 { "held" } else { "" };
            text.push_str(&format!("\n  {word:<11} {line}"));
        }
        text.push_str(&format!(
            "\n  but         flows would have {}% of the driver's time for received packets, and at \
             most {}% is promised",
            percent(held + share.millionths()),
            percent(MAX_RESERVED_RECEIVE)
        ));
        let rest = ReceiveShare::new(MAX_RESERVED_RECEIVE.saturating_sub(held) / 100);
        let fits = rest.map_or("nothing".to_owned(), |rest| format!("at most {rest}"));
        text.push_str(&format!("\n  would fit   {fits}"));
        Err(RequestError::NotAdmitted(text))
    }

    /// The parts of flows before changes that their drivers have not answered: if such a change
    /// fails, the flow has its former part again.
    fn former_receive_shares(&self) -> BTreeMap<u32, ReceiveShare> {
        let pending = self.calls.values().filter_map(|call| match &call.purpose {
            CallPurpose::Change { flow, before, .. } => Some((*flow, before.contract.receive()?)),
            _ => None,
        });
        pending.collect()
    }
}

/// The share of an ordinary flow, and of all flows together: half, so that one flow never occupies
/// the whole driver.
pub(super) const RECEIVE_BUDGET: u32 = 500_000;
/// The share of the connection requests of a TCP port: a tenth. A request takes 1 to 2 µs, so
/// 50,000 fit into a second, and a flood leaves the rest to established connections.
const REQUESTS_BUDGET: u32 = 100_000;
