//! Closes a flow at the request of a user (`netnice flow close`), not of its program. Root and the
//! group `netnice` may close any flow, other users those of their own programs. The program is
//! notified, with the user in the reason, and its calls on the flow fail from then on.
//!
//! A request is refused if the flow is not one of the user's. The text is the same whether or not
//! such a flow is open, so that no user learns about the flows of others. For root and the group
//! the request fails if no such flow is open.

use netnice_api::direct::FlowNotification;

use super::network::Network;
use super::promises::Promises;
use super::{FlowRecord, Flows, ReplySender, refuse};
use crate::clock::Now;
use crate::error::RequestError;
use crate::journal::EventKind;
use crate::peer::Peer;
use crate::user_names::user_name;

impl<N: Network> Flows<N> {
    /// Closes a flow for a user, and notifies its program. The reply comes when the driver has
    /// answered.
    pub(super) fn end_flow(
        &mut self,
        promises: &mut impl Promises,
        peer: &Peer,
        number: u32,
        reply: ReplySender,
        now: Now,
    ) {
        let flow = match self.closable(peer, number) {
            Ok(flow) => flow,
            Err(error) => return refuse(reply, error),
        };
        let who = user_name(peer.uid);
        let why = format!("closed by {who}, with netnice flow close");
        let text = format!("flow:{number} on {} is {why}", flow.link);
        promises
            .journal()
            .log(now, peer.user(), EventKind::Done, text);
        self.close_flow(&flow, &why, Some(reply), now);
        self.notify_flow(number, FlowNotification::Closed { flow: number, why });
    }

    /// The open flow with this number, if the peer may close it.
    fn closable(&self, peer: &Peer, number: u32) -> Result<FlowRecord, RequestError> {
        let found = self.flows.get(&number);
        let found = found.filter(|flow| self.is_visible(flow, peer) && flow.closing.is_none());
        found.cloned().ok_or_else(|| match peer.privileged {
            true => RequestError::Failed(format!(
                "flow:{number} is not open; netnice flow ls lists flows"
            )),
            false => RequestError::NotPermitted(format!(
                "refused: no program of {} has flow:{number}; netnice flow ls lists your flows",
                user_name(peer.uid)
            )),
        })
    }
}
