//! Follows changes of the routes and next hops of open flows.
//!
//! The kernel's notifications about routes, addresses, interfaces and neighbours come in
//! ([`Flows::ways_changed`]), and the flows concerned are looked up again; the driver writes the
//! new next hop into frames, and the program is notified. A flow whose route leads over another
//! link is closed, and the notification names that link: the flow's memory belongs to the driver of
//! the old link. The kernel sends no packets to the next hops of direct flows, so it is told every
//! [`USED`] that they are in use; then it checks that they are reachable.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use netnice_api::direct::{Endpoint, FlowNotification};
use netnice_api::driver::{DriverFlow, DriverRequest};
use netnice_core::contract::IfName;
use netnice_core::units::Nanos;
use netnice_kernel::routes::{Change, HostKind, Neighbour};

use super::network::{Network, Nic};
use super::open_flow::{end, hop};
use super::ports::Want;
use super::promises::Promises;
use super::{Flow, Flows, Station, Wanted, endpoint, refuse, replies};
use crate::clock::Now;
use crate::denied::Denied;
use crate::peer::Peer;

impl<N: Network> Flows<N> {
    /// Handles changes. If [`Flows::wants_look`] is true afterwards, the caller calls
    /// [`Flows::look`] soon.
    pub(crate) fn ways_changed(
        &mut self,
        promises: &mut impl Promises,
        changes: &[Change],
        now: Now,
    ) {
        if self.lanes.is_empty() {
            return;
        }
        for change in changes {
            match change {
                Change::Routes => self.look_at_ways = true,
                Change::Neighbour { index, next_hop } => {
                    self.look_at_station(*index, *next_hop, now)
                }
            }
        }
        self.look_at_stations(promises, now);
    }

    /// True if the routes of all flows are to be checked.
    pub(crate) fn wants_look(&self) -> bool {
        self.look_at_ways
    }

    /// Confirms to the kernel that the next hops are in use. The caller calls it each second.
    pub(crate) fn tick(&mut self, now: Now) {
        if now.monotonic.since(self.used_stations_at) < USED {
            return;
        }
        self.used_stations_at = now.monotonic;
        let mut stations: BTreeMap<(u32, IpAddr), ()> = BTreeMap::new();
        for flow in self.flows.values() {
            let nic = self.lanes.get(&flow.link).and_then(|lane| lane.nic);
            if let (Some(nic), Station::Toward { via, .. }) = (nic, flow.station) {
                stations.insert((nic.index, via), ());
            }
        }
        for (index, via) in stations.into_keys() {
            if let Err(error) = self.network.solicit(index, via) {
                tracing::debug!(%error, "a station cannot be asked for");
            }
        }
    }

    /// The interface of a lane; looked up at the first call.
    pub(super) fn nic_of(&mut self, link: &IfName) -> Result<Nic, Denied> {
        if let Some(nic) = self.lanes.get(link).and_then(|lane| lane.nic) {
            return Ok(nic);
        }
        let nic = self.nic(link)?;
        if let Some(lane) = self.lanes.get_mut(link) {
            lane.nic = Some(nic);
        }
        Ok(nic)
    }

    /// Continues flows and requests whose neighbour resolution has ended.
    pub(super) fn look_at_stations(&mut self, promises: &mut impl Promises, now: Now) {
        for waiting in std::mem::take(&mut self.waiting) {
            let known = self.network.neighbour(waiting.index, waiting.via);
            let silent = match known {
                Ok(Neighbour::Known(mac)) => {
                    match waiting.what {
                        Wanted::Hop { mtu, reply } => hop(reply, mac, mtu),
                        Wanted::Flow {
                            session,
                            mut flow,
                            reply,
                        } => {
                            flow.station = flow.station.at(Some(mac));
                            let there = self.sessions.contains_key(&session);
                            match there {
                                true => self.open_at_driver(promises, *flow, reply, now),
                                false => self.give_back_of(&flow),
                            }
                        }
                    }
                    continue;
                }
                Ok(Neighbour::Failed) => true,
                _ => waiting.until <= now.monotonic,
            };
            if !silent {
                self.waiting.push(waiting);
                continue;
            }
            let why = Denied::Failed(format!(
                "{} does not answer: it is the next station on the way",
                waiting.via
            ));
            match waiting.what {
                Wanted::Hop { reply, .. } => refuse(reply, why),
                Wanted::Flow { flow, reply, .. } => {
                    self.give_back_of(&flow);
                    refuse(reply, why);
                }
            }
        }
    }

    /// Looks a neighbour up after a change of its address or state.
    fn look_at_station(&mut self, index: u32, station: IpAddr, now: Now) {
        let theirs: Vec<u32> = self
            .flows
            .values()
            .filter(|flow| matches!(flow.station, Station::Toward { via, .. } if via == station))
            .filter(|flow| {
                self.lanes
                    .get(&flow.link)
                    .and_then(|l| l.nic)
                    .is_some_and(|n| n.index == index)
            })
            .map(|flow| flow.number)
            .collect();
        if theirs.is_empty() {
            return;
        }
        let mac = match self.network.neighbour(index, station) {
            Ok(Neighbour::Known(mac)) => Some(mac),
            Ok(Neighbour::Failed) => None,
            // Resolution is in progress: keep the old address until it ends.
            Ok(Neighbour::Unknown) => {
                let _ = self.network.solicit(index, station);
                return;
            }
            _ => return,
        };
        for number in theirs {
            self.move_to(number, |station| station.at(mac), None, now);
        }
    }

    /// Sets the next hop and MTU of a flow.
    fn move_to(
        &mut self,
        number: u32,
        station: impl Fn(&Station) -> Station,
        mtu: Option<u32>,
        now: Now,
    ) {
        let Some(flow) = self.flows.get_mut(&number) else {
            return;
        };
        let (was, was_mtu) = (flow.station, flow.mtu);
        flow.station = station(&was);
        flow.mtu = mtu.unwrap_or(was_mtu);
        let flow = flow.clone();
        if (flow.station.mac(), flow.mtu) == (was.mac(), was_mtu) {
            return;
        }
        self.readdress(&flow, now);
        if flow.station.mac() != was.mac() {
            let mac = flow.station.mac();
            self.tell_flow(number, FlowNotification::NextHop { flow: number, mac });
        }
        if flow.mtu != was_mtu {
            let mtu = flow.mtu;
            self.tell_flow(number, FlowNotification::Mtu { flow: number, mtu });
        }
    }

    pub(super) fn readdress(&mut self, flow: &Flow, now: Now) {
        // A flow that is being opened gets them once it is open.
        let Some(at_driver) = flow.at_driver else {
            return;
        };
        let ask = DriverRequest::Readdress {
            flow: at_driver,
            next_hop: flow.station.mac(),
            mtu: flow.mtu,
        };
        let link = flow.link.clone();
        self.call(&link, ask, None, super::Pending::Nothing, now);
    }

    /// Checks the interfaces, and the routes of all flows.
    pub(super) fn look_at_all_ways(&mut self, promises: &mut impl Promises, now: Now) {
        let links: Vec<IfName> = self.lanes.keys().cloned().collect();
        for link in links {
            let before = self.lanes.get(&link).and_then(|lane| lane.nic);
            let nic = self.network.interface(link.as_str()).ok().flatten();
            if let (Some(lane), Some(nic)) = (self.lanes.get_mut(&link), nic) {
                lane.nic = Some(nic);
            }
            let up = nic.is_some_and(|nic| nic.up);
            if before.is_some_and(|before| before.up != up) {
                self.tell_lane(&link, &FlowNotification::Link { up });
                if let Some(lane) = self.lanes.get_mut(&link)
                    && let Some(known) = &mut lane.nic
                {
                    known.up = up;
                }
            }
            let Some(nic) = nic.filter(|nic| nic.up) else {
                // No route leads over a link that is down; the routes are checked when it is up
                // again.
                continue;
            };
            self.look_at_ways_of(promises, &link, nic, now);
            if before.is_some_and(|before| before.mtu != nic.mtu) {
                self.settle(promises, &link, now);
            }
        }
    }

    fn look_at_ways_of(&mut self, promises: &mut impl Promises, link: &IfName, nic: Nic, now: Now) {
        let theirs: Vec<(u32, Station, u32)> = self
            .flows
            .values()
            .filter(|flow| flow.link == *link && flow.closing.is_none())
            .map(|flow| (flow.number, flow.station, flow.mtu))
            .collect();
        // Many flows may have the same host, so each host is looked up once.
        let mut known: BTreeMap<(IpAddr, IpAddr), Option<Hop>> = BTreeMap::new();
        for (number, station, _) in theirs {
            let Station::Toward { host, from, .. } = station else {
                self.move_to(number, |station| *station, Some(nic.mtu), now);
                continue;
            };
            let way = match known.get(&(host, from)) {
                Some(way) => *way,
                None => {
                    let way = match self.way_now(promises, link, nic, number, now) {
                        Found::Way(hop) => Some(hop),
                        Found::None => None,
                        Found::Closed => continue,
                    };
                    known.insert((host, from), way);
                    way
                }
            };
            match way {
                Some(Hop { via, mac, mtu }) => {
                    let station = Station::Toward {
                        host,
                        from,
                        via,
                        mac,
                    };
                    self.move_to(number, |_| station, Some(mtu), now);
                }
                None => self.move_to(number, |station| station.at(None), None, now),
            }
        }
    }

    /// The present route of a flow. Closes the flow if the route leads over another link.
    fn way_now(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        nic: Nic,
        number: u32,
        now: Now,
    ) -> Found {
        let Some(Station::Toward {
            host,
            from,
            via,
            mac,
        }) = self.flows.get(&number).map(|flow| flow.station)
        else {
            return Found::None;
        };
        let over = endpoint::is_link_local(host).then_some(nic.index);
        let way = self.network.way(host, Some(from), over).ok().flatten();
        let Some(way) = way.filter(|way| way.kind == HostKind::Unicast) else {
            return Found::None;
        };
        if way.index != nic.index {
            let other = self.network.name(way.index).ok().flatten();
            let other = other.unwrap_or_else(|| "another link".to_owned());
            let why =
                format!("its way leads over {other} now, not over {link}: open it again there");
            promises
                .journal()
                .note(now, format!("flow:{number} is closed: {why}"));
            if let Some(flow) = self.flows.get(&number).cloned() {
                self.close_flow(&flow, &why, None, now);
                // If the flow is being opened, the reply to its program has this error instead.
                if flow.at_driver.is_some() {
                    self.tell_flow(number, FlowNotification::Closed { flow: number, why });
                }
            }
            return Found::Closed;
        }
        let mtu = endpoint::mtu(&way, nic);
        let mac = match self.network.neighbour(nic.index, way.next_hop) {
            Ok(Neighbour::Known(known)) => Some(known),
            // Keep the old address until another is known.
            _ if way.next_hop == via => mac,
            _ => {
                let _ = self.network.solicit(nic.index, way.next_hop);
                None
            }
        };
        Found::Way(Hop {
            via: way.next_hop,
            mac,
            mtu,
        })
    }

    /// Next hop and ports of a flow that is older than this daemon.
    pub(super) fn hold_again(
        &mut self,
        peer: &Peer,
        link: &IfName,
        setup: &DriverFlow,
    ) -> (Station, Result<Vec<SocketAddr>, Denied>) {
        let nic = self.nic_of(link).ok();
        let index = nic.map_or(0, |nic| nic.index);
        let toward = |flows: &mut Flows<N>, host: IpAddr, from: IpAddr| {
            let way = flows.network.way(host, Some(from), None).ok().flatten();
            let via = way.map_or(host, |way| way.next_hop);
            let station = Station::Toward {
                host,
                from,
                via,
                mac: None,
            };
            replies::station_of(Some(station), setup.next_hop)
        };
        let mut wants = Vec::new();
        let station = match &setup.endpoint {
            Endpoint::Udp { local, remote } => {
                wants.push((*local, false));
                match remote {
                    Some(remote) => toward(self, remote.ip(), local.ip()),
                    None => Station::Any,
                }
            }
            Endpoint::Group { local, group } => {
                wants.extend([(*local, false), (*group, true)]);
                replies::station_of(None, setup.next_hop)
            }
            Endpoint::Protocol {
                local,
                remote: Some(remote),
                ..
            } => toward(self, *remote, *local),
            Endpoint::Protocol { .. } | Endpoint::EtherType { .. } => Station::Any,
        };
        let mut held = Vec::new();
        for (at, group) in wants {
            let end = if group { None } else { end(&setup.endpoint) };
            match self.hold(peer, Want { at, end, group }, index) {
                Ok(at) => held.push(at),
                Err(denied) => {
                    self.give_back(&held, end);
                    return (station, Err(denied));
                }
            }
        }
        (station, Ok(held))
    }
}

/// A resolved route.
#[derive(Clone, Copy)]
struct Hop {
    via: IpAddr,
    mac: Option<[u8; 6]>,
    mtu: u32,
}

enum Found {
    Way(Hop),
    None,
    Closed,
}

/// Time limit of neighbour resolution.
pub(super) const PATIENCE: Nanos = Nanos::from_secs(1);
/// How often the kernel is told that next hops are in use.
const USED: Nanos = Nanos::from_secs(5);
