//! The next hop of a flow ([`NextHop`]), and the reply to a request for the next hop to a host,
//! which is refused if no route over the session's link leads there.

use std::net::IpAddr;

use netnice_api::Response;
use netnice_api::direct::{DirectReply, ResolvedNextHop};
use netnice_kernel::routes::Neighbour;

use super::network::Network;
use super::open_flow::not_attached;
use super::{Flows, ReplySender, ResolutionFor, refuse};
use crate::clock::Now;
use crate::error::RequestError;
use crate::server::Reply;

/// The next hop of a flow's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextHop {
    /// The program names it for each packet.
    Any,
    /// The Ethernet address of a multicast group.
    Group([u8; 6]),
    /// The next hop towards a host.
    Toward {
        /// The host.
        host: IpAddr,
        /// The local address.
        from: IpAddr,
        /// The IP address of the next hop.
        via: IpAddr,
        /// The Ethernet address of the next hop; `None` while it is unknown.
        mac: Option<[u8; 6]>,
    },
}

impl NextHop {
    /// The Ethernet address; `None` while it is unknown, and if the program names it.
    pub(super) fn mac(&self) -> Option<[u8; 6]> {
        match self {
            NextHop::Any => None,
            NextHop::Group(mac) => Some(*mac),
            NextHop::Toward { mac, .. } => *mac,
        }
    }

    /// The same next hop with another Ethernet address.
    pub(super) fn with_mac(self, mac: Option<[u8; 6]>) -> NextHop {
        match self {
            NextHop::Toward {
                host, from, via, ..
            } => NextHop::Toward {
                host,
                from,
                via,
                mac,
            },
            other => other,
        }
    }
}

impl<N: Network> Flows<N> {
    /// Replies with the next hop towards a host.
    pub(super) fn next_hop(&mut self, session: u64, to: IpAddr, reply: ReplySender, now: Now) {
        let found = self.resolve_next_hop(session, to);
        match found {
            Ok((_, _, mtu, Neighbour::Known(mac))) => reply_next_hop(reply, mac, mtu),
            Ok((index, via, mtu, _)) => {
                self.resolve(index, via, ResolutionFor::Hop { mtu, reply }, now);
            }
            Err(error) => refuse(reply, error),
        }
    }

    fn resolve_next_hop(
        &mut self,
        session: u64,
        to: IpAddr,
    ) -> Result<(u32, IpAddr, u32, Neighbour), RequestError> {
        let session = self.sessions.get(&session).ok_or_else(not_attached)?;
        let link = session.link.clone();
        let nic = self.nic_of(&link)?;
        let route = self.route_over(&link, nic, to, None)?;
        let known = self.network.neighbour(nic.index, route.next_hop)?;
        let mtu = super::endpoint::route_mtu(&route, nic);
        Ok((nic.index, route.next_hop, mtu, known))
    }
}

/// Replies to a next-hop request.
pub(super) fn reply_next_hop(reply: ReplySender, mac: [u8; 6], mtu: u32) {
    let answer = DirectReply::NextHop(ResolvedNextHop { mac, mtu });
    let _ = reply.send(Reply::from(Response::Direct(answer)));
}
