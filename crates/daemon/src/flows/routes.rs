//! Follows changes of the routes and next hops of open flows.
//!
//! The kernel's notifications about routes, addresses, interfaces and neighbours come in
//! ([`Flows::routes_changed`]). After a change of a neighbour, the manager looks up that next hop
//! again; after any other change, the interfaces and the routes of all flows. The driver then
//! writes a new next hop into the frames of the flow, and the program is notified of a new next hop
//! or MTU, and of an interface that goes up or down. A flow without a route stays open without a
//! next hop; a route look-up that fails counts as no route. A flow whose route leads over another
//! interface moves there (`super::move_flow`), or is closed with a notification that names that
//! interface. A flow with one remote host also moves if its own interface is down.
//!
//! The kernel sends no packets to the next hops of direct flows, so the manager confirms every
//! [`CONFIRM_INTERVAL`] (5 s) that they are in use; then the kernel checks that they are reachable.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netnice_api::FailureCause;
use netnice_api::direct::{Endpoint, FlowNotification};
use netnice_api::driver::{DriverFlow, DriverRequest};
use netnice_core::contract::IfName;
use netnice_core::units::{Instant, Nanos};
use netnice_kernel::routes::{HostKind, Neighbour, RouteChange};

use super::move_flow::elsewhere;
use super::network::{Network, Nic};
use super::next_hop::reply_next_hop;
use super::open_flow::not_attached;
use super::ports::{FlowPort, PortOwner, PortRequest, PortUse};
use super::promises::Promises;
use super::{FlowRecord, Flows, NextHop, ReplySender, endpoint, refuse, takeover};
use crate::clock::Now;
use crate::error::RequestError;

/// A flow or next-hop request that waits for neighbour resolution.
pub(super) struct PendingResolution {
    pub(super) deadline: Instant,
    pub(super) index: u32,
    pub(super) via: IpAddr,
    pub(super) purpose: ResolutionFor,
}

pub(super) enum ResolutionFor {
    Flow {
        session: u64,
        flow: Box<FlowRecord>,
        reply: ReplySender,
    },
    Hop {
        mtu: u32,
        reply: ReplySender,
    },
}

impl<N: Network> Flows<N> {
    /// Handles changes that the kernel has reported.
    pub(crate) fn routes_changed(
        &mut self,
        promises: &mut impl Promises,
        changes: &[RouteChange],
        now: Now,
    ) {
        if self.link_states.is_empty() {
            return;
        }
        for change in changes {
            match change {
                RouteChange::Routes => self.request_route_check(now),
                RouteChange::Neighbour { index, next_hop } => {
                    self.check_neighbour(*index, *next_hop, now)
                }
            }
        }
        self.check_resolutions(promises, now);
    }

    /// Has the interfaces and the routes of all flows checked after [`ROUTES_SETTLE`], unless a
    /// check is due already: so an endless burst of changes cannot delay it.
    pub(super) fn request_route_check(&mut self, now: Now) {
        let due = now.monotonic.after(ROUTES_SETTLE);
        self.route_check_due.get_or_insert(due);
    }

    /// Confirms to the kernel that the next hops are in use, if the last confirmation is at least
    /// 5 s old. The caller calls it each second.
    pub(crate) fn tick(&mut self, now: Now) {
        if now.monotonic.since(self.next_hops_confirmed_at) < CONFIRM_INTERVAL {
            return;
        }
        self.next_hops_confirmed_at = now.monotonic;
        let mut next_hops: BTreeMap<(u32, IpAddr), ()> = BTreeMap::new();
        for flow in self.flows.values() {
            let nic = self.link_states.get(&flow.link).and_then(|state| state.nic);
            if let (Some(nic), NextHop::Toward { via, .. }) = (nic, flow.next_hop) {
                next_hops.insert((nic.index, via), ());
            }
        }
        for (index, via) in next_hops.into_keys() {
            if let Err(error) = self.network.solicit(index, via) {
                tracing::debug!(%error, "the resolution of a next hop cannot be started");
            }
        }
    }

    /// The interface of a link with a driver; looked up if it is not known yet.
    ///
    /// # Errors
    /// If there is no such interface, it is no Ethernet interface, or the look-up fails.
    pub(super) fn nic_of(&mut self, link: &IfName) -> Result<Nic, RequestError> {
        if let Some(nic) = self.link_states.get(link).and_then(|state| state.nic) {
            return Ok(nic);
        }
        let nic = self.nic(link)?;
        if let Some(state) = self.link_states.get_mut(link) {
            state.nic = Some(nic);
        }
        Ok(nic)
    }

    /// Continues flows and requests whose neighbour resolution has succeeded, and refuses those
    /// whose resolution has failed or taken longer than [`RESOLUTION_TIMEOUT`].
    pub(super) fn check_resolutions(&mut self, promises: &mut impl Promises, now: Now) {
        for waiting in std::mem::take(&mut self.resolutions) {
            let known = self.network.neighbour(waiting.index, waiting.via);
            let unreachable = match known {
                Ok(Neighbour::Known(mac)) => {
                    match waiting.purpose {
                        ResolutionFor::Hop { mtu, reply } => reply_next_hop(reply, mac, mtu),
                        ResolutionFor::Flow {
                            session,
                            mut flow,
                            reply,
                        } => {
                            flow.next_hop = flow.next_hop.with_mac(Some(mac));
                            if self.sessions.contains_key(&session) {
                                self.open_at_driver(promises, *flow, reply, now);
                            } else {
                                // The program or the driver has ended meanwhile.
                                self.release_ports_of(&flow);
                                self.opening_failed(promises, &flow, &not_attached(), now);
                                refuse(reply, not_attached());
                            }
                        }
                    }
                    continue;
                }
                Ok(Neighbour::Failed) => true,
                _ => waiting.deadline <= now.monotonic,
            };
            if !unreachable {
                self.resolutions.push(waiting);
                continue;
            }
            let text = format!(
                "{} does not answer: it is the next hop of the route",
                waiting.via
            );
            let why = RequestError::FailedFor(FailureCause::NoAnswer, text);
            match waiting.purpose {
                ResolutionFor::Hop { reply, .. } => refuse(reply, why),
                ResolutionFor::Flow { flow, reply, .. } => {
                    self.release_ports_of(&flow);
                    self.opening_failed(promises, &flow, &why, now);
                    refuse(reply, why);
                }
            }
        }
    }

    /// Looks a neighbour up after a change of its address or state.
    fn check_neighbour(&mut self, index: u32, next_hop: IpAddr, now: Now) {
        let theirs: Vec<u32> = self
            .flows
            .values()
            .filter(|flow| matches!(flow.next_hop, NextHop::Toward { via, .. } if via == next_hop))
            .filter(|flow| {
                self.link_states
                    .get(&flow.link)
                    .and_then(|l| l.nic)
                    .is_some_and(|n| n.index == index)
            })
            .map(|flow| flow.number)
            .collect();
        if theirs.is_empty() {
            return;
        }
        let mac = match self.network.neighbour(index, next_hop) {
            Ok(Neighbour::Known(mac)) => Some(mac),
            Ok(Neighbour::Failed) => None,
            // Resolution is in progress: keep the old address until it ends.
            Ok(Neighbour::Unknown) => {
                let _ = self.network.solicit(index, next_hop);
                return;
            }
            _ => return,
        };
        for number in theirs {
            self.set_next_hop(number, |next_hop| next_hop.with_mac(mac), None, now);
        }
    }

    /// Sets the next hop of a flow, and its MTU to that of its route (`mtu`, in bytes), or to its
    /// path MTU if that is smaller.
    pub(super) fn set_next_hop(
        &mut self,
        number: u32,
        next_hop: impl Fn(&NextHop) -> NextHop,
        mtu: Option<u32>,
        now: Now,
    ) {
        let Some(flow) = self.flows.get_mut(&number) else {
            return;
        };
        let (was, was_mtu) = (flow.next_hop, flow.mtu);
        flow.next_hop = next_hop(&was);
        flow.mtu = mtu.map_or(was_mtu, |route| self.icmp.mtu_of(number, route));
        let flow = flow.clone();
        if (flow.next_hop.mac(), flow.mtu) == (was.mac(), was_mtu) {
            return;
        }
        self.readdress(&flow, now);
        if flow.next_hop.mac() != was.mac() {
            let mac = flow.next_hop.mac();
            self.notify_flow(number, FlowNotification::NextHop { flow: number, mac });
        }
        if flow.mtu != was_mtu {
            let mtu = flow.mtu;
            self.notify_flow(number, FlowNotification::Mtu { flow: number, mtu });
        }
    }

    /// Sends the driver the next hop and the MTU of a flow.
    pub(super) fn readdress(&mut self, flow: &FlowRecord, now: Now) {
        // A flow that is being opened gets them once it is open.
        let Some(at_driver) = flow.at_driver else {
            return;
        };
        let ask = DriverRequest::Readdress {
            flow: at_driver,
            next_hop: flow.next_hop.mac(),
            mtu: flow.mtu,
        };
        let link = flow.link.clone();
        self.call(&link, ask, None, super::CallPurpose::Nothing, now);
    }

    /// Checks the interfaces, and the routes of all flows.
    pub(super) fn check_all_routes(&mut self, promises: &mut impl Promises, now: Now) {
        let links: Vec<IfName> = self.link_states.keys().cloned().collect();
        for link in links {
            let before = self.link_states.get(&link).and_then(|state| state.nic);
            let nic = self.network.interface(link.as_str()).ok().flatten();
            if let (Some(state), Some(nic)) = (self.link_states.get_mut(&link), nic) {
                state.nic = Some(nic);
            }
            let up = nic.is_some_and(|nic| nic.up);
            if before.is_some_and(|before| before.up != up) {
                self.notify_link(&link, &FlowNotification::Link { up });
                if let Some(state) = self.link_states.get_mut(&link)
                    && let Some(known) = &mut state.nic
                {
                    known.up = up;
                }
            }
            let Some(nic) = nic else {
                continue;
            };
            self.check_routes_of(promises, &link, nic, now);
            if before.is_some_and(|before| before.mtu != nic.mtu) {
                self.settle(promises, &link, now);
            }
        }
    }

    fn check_routes_of(&mut self, promises: &mut impl Promises, link: &IfName, nic: Nic, now: Now) {
        let theirs: Vec<(u32, NextHop, u32)> = self
            .flows
            .values()
            .filter(|flow| flow.link == *link && flow.closing.is_none())
            .map(|flow| (flow.number, flow.next_hop, flow.mtu))
            .collect();
        // Many flows may have the same host, so each host is looked up once.
        let mut known: BTreeMap<(IpAddr, IpAddr), Option<ResolvedRoute>> = BTreeMap::new();
        for (number, next_hop, _) in theirs {
            let NextHop::Toward { host, from, .. } = next_hop else {
                if nic.up {
                    self.set_next_hop(number, |next_hop| *next_hop, Some(nic.mtu), now);
                }
                continue;
            };
            let route = match known.get(&(host, from)) {
                Some(route) => *route,
                None => {
                    let route = match self.present_route(promises, nic, number, now) {
                        RouteCheck::Route(hop) => Some(hop),
                        RouteCheck::Unreachable => None,
                        RouteCheck::Elsewhere => continue,
                    };
                    known.insert((host, from), route);
                    route
                }
            };
            if !nic.up {
                // The routes are checked when the link is up again.
                continue;
            }
            if route.is_some() {
                self.withdraw_offer(number);
            }
            match route {
                Some(ResolvedRoute { via, mac, mtu }) => {
                    let next_hop = NextHop::Toward {
                        host,
                        from,
                        via,
                        mac,
                    };
                    self.set_next_hop(number, |_| next_hop, Some(mtu), now);
                }
                None => self.set_next_hop(number, |next_hop| next_hop.with_mac(None), None, now),
            }
        }
    }

    /// The present route of a flow. If the route leads over another link, the flow is to move
    /// there, or is closed.
    fn present_route(
        &mut self,
        promises: &mut impl Promises,
        nic: Nic,
        number: u32,
        now: Now,
    ) -> RouteCheck {
        let Some(NextHop::Toward {
            host,
            from,
            via,
            mac,
        }) = self.flows.get(&number).map(|flow| flow.next_hop)
        else {
            return RouteCheck::Unreachable;
        };
        let over = endpoint::is_link_local(host).then_some(nic.index);
        let route = self.network.route(host, Some(from), over).ok().flatten();
        let Some(route) = route.filter(|route| route.kind == HostKind::Unicast) else {
            return RouteCheck::Unreachable;
        };
        if route.index != nic.index {
            let other = self.network.name(route.index).ok().flatten();
            let other = other.unwrap_or_else(|| "another link".to_owned());
            match self.offer_move(promises, number, &other, now) {
                // The next hop is known when the program takes the flow.
                Ok(()) => drop(self.network.solicit(route.index, route.next_hop)),
                Err(advice) => {
                    if let Some(flow) = self.flows.get(&number).cloned() {
                        let why = format!("{}: {advice}", elsewhere(&flow, &other));
                        self.close_and_notify(promises, &flow, why, now);
                    }
                }
            }
            return RouteCheck::Elsewhere;
        }
        let mtu = endpoint::route_mtu(&route, nic);
        let mac = match self.network.neighbour(nic.index, route.next_hop) {
            Ok(Neighbour::Known(known)) => Some(known),
            // Keep the old address until another is known.
            _ if route.next_hop == via => mac,
            _ => {
                let _ = self.network.solicit(nic.index, route.next_hop);
                None
            }
        };
        RouteCheck::Route(ResolvedRoute {
            via: route.next_hop,
            mac,
            mtu,
        })
    }

    /// Looks up the next hop of a flow that an earlier daemon opened, and holds the flow's ports.
    /// The second result is an error if one of the ports cannot be held.
    pub(super) fn hold_ports_again(
        &mut self,
        owner: PortOwner,
        link: &IfName,
        setup: &DriverFlow,
    ) -> (NextHop, Result<Vec<FlowPort>, RequestError>) {
        let nic = self.nic_of(link).ok();
        let index = nic.map_or(0, |nic| nic.index);
        let owner = PortOwner { index, ..owner };
        let toward = |flows: &mut Flows<N>, host: IpAddr, from: IpAddr| {
            let route = flows.network.route(host, Some(from), None).ok().flatten();
            let via = route.map_or(host, |route| route.next_hop);
            let next_hop = NextHop::Toward {
                host,
                from,
                via,
                mac: None,
            };
            takeover::next_hop_with(Some(next_hop), setup.next_hop)
        };
        let mut wants = Vec::new();
        let next_hop = match &setup.endpoint {
            Endpoint::Udp { local, remote } => {
                wants.push((*local, PortUse::Udp(*remote)));
                match remote {
                    Some(remote) => toward(self, remote.ip(), local.ip()),
                    None => NextHop::Any,
                }
            }
            Endpoint::Tcp { local, remote } => {
                wants.push((*local, PortUse::Connection(*remote)));
                toward(self, remote.ip(), local.ip())
            }
            Endpoint::TcpSyn { local } => {
                wants.push((*local, PortUse::ConnectionRequests));
                NextHop::Any
            }
            Endpoint::TcpListener { local } => {
                wants.push((*local, PortUse::Listener));
                NextHop::Any
            }
            Endpoint::Group { local, group } => {
                let own = (*local, PortUse::Udp(Some(*group)));
                wants.extend([own, (*group, PortUse::Group)]);
                takeover::next_hop_with(None, setup.next_hop)
            }
            Endpoint::Protocol {
                local,
                remote: Some(remote),
                ..
            } => toward(self, *remote, *local),
            Endpoint::Protocol { .. } | Endpoint::EtherType { .. } => NextHop::Any,
        };
        let mut held = Vec::new();
        for (at, usage) in wants {
            match self.hold_port(owner, PortRequest { at, usage }) {
                Ok(port) => held.push(port),
                Err(error) => {
                    self.release_ports(&held, None);
                    return (next_hop, Err(error));
                }
            }
        }
        (next_hop, Ok(held))
    }
}

/// A resolved route.
#[derive(Clone, Copy)]
struct ResolvedRoute {
    via: IpAddr,
    mac: Option<[u8; 6]>,
    mtu: u32,
}

enum RouteCheck {
    Route(ResolvedRoute),
    Unreachable,
    /// The flow moves, or is closed.
    Elsewhere,
}

/// Delay from the first change of routes or interfaces until they are checked: changes come in
/// bursts.
pub(super) const ROUTES_SETTLE: Nanos = Nanos::from_millis(50);
/// Time limit of neighbour resolution.
pub(super) const RESOLUTION_TIMEOUT: Nanos = Nanos::from_secs(1);
/// How often the manager confirms to the kernel that next hops are in use.
const CONFIRM_INTERVAL: Nanos = Nanos::from_secs(5);
