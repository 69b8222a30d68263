//! The next hop of a flow ([`NextHop`]), and the replies to requests for the next hop to a host and
//! for the managed link to it. The first one is refused if no route over the session's link leads
//! there, the second one if no route over a managed link does, or if the host is no single other
//! host.

use std::net::IpAddr;

use netnice_api::direct::{DirectReply, ResolvedNextHop, RouteToHost};
use netnice_api::{FailureCause, Response};
use netnice_kernel::routes::{HostKind, Neighbour};

use super::endpoint::{is_link_local, local_address, unspecified};
use super::network::Network;
use super::open_flow::not_attached;
use super::promises::Promises;
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

impl<N: Network> Flows<N> {
    /// Replies with the managed link over which the kernel's route to a host leads.
    pub(super) fn route_to(&mut self, promises: &impl Promises, to: IpAddr, reply: ReplySender) {
        match self.managed_route(promises, to) {
            Ok(route) => {
                let answer = DirectReply::Route(route);
                let _ = reply.send(Reply::from(Response::Direct(answer)));
            }
            Err(error) => refuse(reply, error),
        }
    }

    fn managed_route(
        &mut self,
        promises: &impl Promises,
        to: IpAddr,
    ) -> Result<RouteToHost, RequestError> {
        if is_link_local(to) {
            return Err(RequestError::BadUsage(format!(
                "{to} is a link-local address: each link can have another host with it"
            )));
        }
        let Some(route) = self.network.route(to, None, None)? else {
            let text = format!("there is no route to {to}");
            return Err(RequestError::FailedFor(FailureCause::NoRoute, text));
        };
        let unusable = |why: &str| Err(RequestError::BadUsage(format!("{to} is {why}")));
        match route.kind {
            HostKind::Unicast => {}
            HostKind::Local => return unusable("an address of this host"),
            HostKind::Multicast => return unusable("a multicast group, not a host"),
            HostKind::Other => return unusable("not the address of one host"),
        }
        let iface = self.network.name(route.index)?.unwrap_or_default();
        if !promises.links().iter().any(|link| link.as_str() == iface) {
            return Err(RequestError::NotAdmitted(format!(
                "refused: the route to {to} leads over {iface}, which is not a managed link: \
                 netnice link {iface} --rate R makes it one"
            )));
        }
        Ok(RouteToHost {
            iface,
            via: route.next_hop,
            from: local_address(unspecified(to), &route, to)?,
        })
    }
}

/// Replies to a next-hop request.
pub(super) fn reply_next_hop(reply: ReplySender, mac: [u8; 6], mtu: u32) {
    let answer = DirectReply::NextHop(ResolvedNextHop { mac, mtu });
    let _ = reply.send(Reply::from(Response::Direct(answer)));
}
