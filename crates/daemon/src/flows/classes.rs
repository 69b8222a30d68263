//! The classes of links: admits the overbooked server of a link and its members, follows what
//! changes, and sends the server to the driver.
//!
//! The ledger has the classes as they were asked for ([`LinkClasses`]). For admission the server is
//! one promise of its slice, older than the promises to flows, whether or not it has members; so
//! targets cannot be promised what it has. Its members (flows with `cell …,class=N`) are not
//! promised by themselves: the sums of their contracts count inside the server.
//!
//! If the server does not fit any more, because the link became slower or the classes no longer
//! fit the link, it is *suspended*: it has no slice and no minimums, its members share what is left
//! over, and they are notified as degraded flows are. It is in force again as soon as it fits
//! beside the promises that are in force. While no flow is open on the link, the flow manager keeps
//! what the server needs in the ledger ([`DirectPart`] without flows).
//!
//! A change of the classes or an opening of a member fails if it does not fit; then nothing has
//! changed.

use std::collections::BTreeMap;

use netnice_api::ShowDoc;
use netnice_api::direct::FlowNotification;
use netnice_api::driver::{DriverRequest, MIN_PACKET_BYTES, ServerDoc};
use netnice_core::contract::{CLASSES, Change, Contract, Direction, IfName, Setting, Slice};
use netnice_core::link::Link;
use netnice_core::link::classes::{LinkClasses, ServerLink};
use netnice_core::units::{Bytes, Rate};

use super::admission::LinkCapacity;
use super::network::Network;
use super::promises::Promises;
use super::{CallPurpose, FlowRecord, Flows, LinkState};
use crate::clock::Now;
use crate::error::RequestError;
use crate::ledger::direct_part::DirectPart;
use crate::ledger::slice_text;

/// The server of a link, as the flow manager has evaluated it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkServer {
    classes: LinkClasses,
    /// The basis of the evaluation; `None` if the link has nothing for flows.
    capacity: Option<LinkCapacity>,
    /// The promise: the server's slice as a contract. `None` if the classes do not fit the link.
    contract: Option<Contract>,
    /// The rate that the direct path needs for the server alone, while it is in force.
    need: Option<Rate>,
    /// Why the server is suspended; `None` if it is in force.
    suspended: Option<String>,
}

/// The members of a link's server.
#[derive(Default)]
pub(super) struct ClassMembers {
    /// The class and the contracted rate of each member, in bit/s, by flow number.
    of: BTreeMap<u32, (u8, u64)>,
    sums: [u64; CLASSES],
    counts: [u32; CLASSES],
}

impl ClassMembers {
    /// Sets the contract of a flow; a flow that is closed, or in no class, is removed.
    pub(super) fn set(&mut self, flow: u32, contract: Option<&Contract>) {
        if let Some((class, rate)) = self.of.remove(&flow) {
            let class = usize::from(class);
            self.sums[class] -= rate;
            self.counts[class] -= 1;
        }
        let cell = contract.and_then(Contract::cell);
        if let Some((class, cell)) = cell.and_then(|cell| Some((cell.class()?, cell))) {
            let rate = cell.rate().bits_per_second();
            self.of.insert(flow, (class, rate));
            let class = usize::from(class);
            self.sums[class] += rate;
            self.counts[class] += 1;
        }
    }

    fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
}

impl<N: Network> Flows<N> {
    /// Checks whether changed classes of a link fit beside the promises on it, and whether its
    /// present members fit into them.
    ///
    /// # Errors
    /// If they do not, with what would fit if that is known.
    pub(crate) fn check_classes(
        &mut self,
        promises: &impl Promises,
        link: &Link,
        classes: &LinkClasses,
    ) -> Result<(), RequestError> {
        let name = &link.name;
        let refused = |why: String| RequestError::NotAdmitted(format!("refused: {name}: {why}"));
        let Some(rate) = link.usable(Direction::Up) else {
            return Err(refused("it has no sending rate for classes".to_owned()));
        };
        let state = self.link_states.get(name);
        let members = state.map(|state| state.members.sums);
        let counts = state.map(|state| state.members.counts).unwrap_or_default();
        let mut counts = (0..).zip(counts).filter(|(_, count)| *count > 0);
        if let Some((class, count)) = counts.find(|(class, _)| classes.class(*class).is_err()) {
            let flows = super::messages::plural(count as usize, "flow");
            return Err(refused(format!(
                "class {class} has {flows}: a class without flows can be removed"
            )));
        }
        let server = server_link(rate, link.overhead);
        let checked = classes.check_members(&members.unwrap_or_default(), &server);
        checked.map_err(|error| refused(error.to_string()))?;
        let slice = classes.slice(&server);
        let Some(slice) = slice.map_err(|error| refused(error.to_string()))? else {
            return Ok(());
        };
        let mtu = self.nic(name).map_or(1_500, |nic| nic.mtu);
        let (_, promised) = promises.promised_to_targets(link);
        let capacity = LinkCapacity::on(link, promised, mtu, promises.stops())
            .ok_or_else(|| refused(format!("nothing is left: {promised:#} of it are promised")))?;
        let contract = contract_of(slice);
        let held = self.promised_to_flows(name);
        match capacity.admit(&held, &contract, None) {
            Ok(_) => Ok(()),
            Err(misfit) => {
                let asks = format!("the server of the classes asks {contract}");
                Err(self.refusal(promises, &capacity, (name, None), &asks, &misfit))
            }
        }
    }

    /// Checks that a flow, which is recorded already, fits into its class.
    ///
    /// # Errors
    /// If the class does not exist or is full, or the server is suspended.
    pub(super) fn admit_member(
        &mut self,
        promises: &impl Promises,
        flow: &FlowRecord,
    ) -> Result<(), RequestError> {
        if flow.contract.cell().and_then(|cell| cell.class()).is_none() {
            return Ok(());
        }
        let refused = |why: &str| {
            RequestError::NotAdmitted(format!(
                "refused: flow:{} asks {} on {}: {why}",
                flow.number, flow.contract, flow.link
            ))
        };
        let managed = promises.link(&flow.link);
        let rate = managed.as_ref().and_then(|link| link.usable(Direction::Up));
        let (Some(managed), Some(rate)) = (managed, rate) else {
            return Err(refused("the link has no sending rate"));
        };
        let classes = promises.classes(&flow.link);
        let state = self.link_states.get(&flow.link);
        let members = state.map(|state| state.members.sums).unwrap_or_default();
        let checked = classes.check_members(&members, &server_link(rate, managed.overhead));
        checked.map_err(|error| refused(&error.to_string()))?;
        match self.servers.get(&flow.link).map(|server| &server.suspended) {
            Some(Some(why)) => Err(refused(&format!("its server is suspended: {why}"))),
            _ => Ok(()),
        }
    }

    /// The promise to a link's server; `None` if it has none, or it is suspended.
    pub(super) fn server_promise(&self, link: &IfName) -> Option<&Contract> {
        let server = self.servers.get(link)?;
        server
            .contract
            .as_ref()
            .filter(|_| server.suspended.is_none())
    }

    /// The rate that the direct path needs for the server of a link alone.
    pub(super) fn server_need(&self, link: &IfName) -> Option<Rate> {
        self.servers.get(link)?.need
    }

    /// Gives the kernel's classes the whole link, except what its server needs.
    pub(super) fn set_idle_part(
        &self,
        promises: &mut impl Promises,
        link: &IfName,
    ) -> Result<(), RequestError> {
        promises.set_direct_part(link, self.idle_part(link))
    }

    fn idle_part(&self, link: &IfName) -> Option<DirectPart> {
        Some(DirectPart {
            need: self.server_need(link)?,
            flows: 0,
            tree: Rate::MAX,
            // No flow sends.
            bucket: None,
        })
    }

    /// Follows the classes of all links: they may have been changed, or the capacity of a link.
    pub(super) fn settle_classes(&mut self, promises: &mut impl Promises, now: Now) {
        let known = self.servers.keys().cloned();
        let mut links: Vec<IfName> = promises.links().into_iter().chain(known).collect();
        links.sort();
        links.dedup();
        for link in links {
            let classes = promises.classes(&link);
            if classes.is_empty() && !self.servers.contains_key(&link) {
                continue;
            }
            let mtu = self.nic_of(&link).map_or(1_500, |nic| nic.mtu);
            let capacity = self.link_capacity(promises, &link, mtu).ok();
            let is_known = self
                .servers
                .get(&link)
                .is_some_and(|server| server.classes == classes && server.capacity == capacity);
            let state = self.link_states.get(&link);
            if state.is_some_and(LinkState::is_used) {
                if !is_known {
                    self.settle(promises, &link, now);
                    self.send_server(&link, now);
                }
                continue;
            }
            if is_known && promises.direct_part(&link) == self.idle_part(&link) {
                continue;
            }
            self.fit_server(promises, &link, capacity.as_ref(), now);
            if let Err(error) = self.set_idle_part(promises, &link) {
                let text = format!("cannot keep the part of the server of {link}: {error}");
                promises.journal().warn(now, text);
            }
            self.send_server(&link, now);
        }
    }

    /// Evaluates the server of a link that was not evaluated yet.
    pub(super) fn fit_new_server(&mut self, promises: &mut impl Promises, link: &IfName, now: Now) {
        if self.servers.contains_key(link) || promises.classes(link).is_empty() {
            return;
        }
        let mtu = self.nic_of(link).map_or(1_500, |nic| nic.mtu);
        let capacity = self.link_capacity(promises, link, mtu).ok();
        self.fit_server(promises, link, capacity.as_ref(), now);
    }

    /// Evaluates the server of a link again: takes it out of force if it does not fit, and puts it
    /// into force if it does. `capacity` is `None` if the link has nothing for flows.
    pub(super) fn fit_server(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        capacity: Option<&LinkCapacity>,
        now: Now,
    ) {
        let classes = promises.classes(link);
        let state = self.link_states.get(link);
        let members = state.map(|state| state.members.sums).unwrap_or_default();
        if classes.is_empty() && members == [0; CLASSES] {
            self.servers.remove(link);
            return;
        }
        let before = self.servers.get(link).cloned();
        let was_in_force = before.as_ref().is_some_and(|one| one.suspended.is_none());
        let fitted = self.fitted(link, &classes, &members, capacity, was_in_force);
        let (contract, need, suspended) = match fitted {
            Ok((contract, need)) => (Some(contract), Some(need), None),
            Err(why) => (None, None, Some(why)),
        };
        let was_suspended = before.and_then(|one| one.suspended);
        let has_changed = suspended.is_some() != was_suspended.is_some();
        let server = LinkServer {
            classes,
            capacity: capacity.copied(),
            contract,
            need,
            suspended: suspended.clone(),
        };
        self.servers.insert(link.clone(), server);
        if !has_changed {
            return;
        }
        let text = match &suspended {
            Some(why) => format!("the server of {link} is suspended: {why}"),
            None => format!("the server of {link} is in force again"),
        };
        promises.journal().warn(now, text);
        self.notify_members(link, suspended);
    }

    fn fitted(
        &self,
        link: &IfName,
        classes: &LinkClasses,
        members: &[u64; CLASSES],
        capacity: Option<&LinkCapacity>,
        was_in_force: bool,
    ) -> Result<(Contract, Rate), String> {
        let capacity = capacity.ok_or_else(|| format!("nothing of {link} is left for it"))?;
        let server = server_link(capacity.link_rate, Bytes(capacity.overhead()));
        let checked = classes.check_members(members, &server);
        checked.map_err(|error| error.to_string())?;
        let slice = classes.slice(&server).map_err(|error| error.to_string())?;
        let contract = slice.map(contract_of);
        let contract = contract.ok_or_else(|| format!("{link} has no classes any more"))?;
        let alone = capacity.need(std::slice::from_ref(&contract));
        let need = alone.map_err(|fault| {
            format!(
                "{link} has {} for direct flows now, and {contract} does not fit into it: {fault}",
                capacity.max_direct
            )
        })?;
        if !was_in_force {
            // No promise in force gives way to it.
            let mut all = self.promised_to_flows(link);
            all.push(contract.clone());
            let fits = capacity.need(&all);
            fits.map_err(|fault| format!("it does not fit beside the flows on {link}: {fault}"))?;
        }
        Ok((contract, need))
    }

    /// Marks the members of a link's server as degraded (`None`: not any more), and notifies their
    /// programs.
    fn notify_members(&mut self, link: &IfName, suspended: Option<String>) {
        let state = self.link_states.get(link);
        let members: Vec<u32> = state
            .into_iter()
            .flat_map(|state| state.members.of.keys().copied())
            .collect();
        for number in members {
            if let Some(flow) = self.flows.get_mut(&number) {
                flow.degraded = suspended.clone();
            }
            let why = suspended.clone().unwrap_or_default();
            self.notify_flow(number, FlowNotification::Degraded { flow: number, why });
        }
    }

    /// Sends the server of a link to its driver, if the driver has another one. A driver without
    /// flows gets it with the first flow.
    pub(super) fn send_server(&mut self, link: &IfName, now: Now) {
        let Some(state) = self.link_states.get(link) else {
            return;
        };
        let server = self.servers.get(link);
        let wanted = match server {
            None if state.members.is_empty() => None,
            Some(server) => {
                let slice = server.contract.as_ref().and_then(Contract::slice);
                Some(server_doc(slice, &server.classes))
            }
            None => Some(server_doc(None, &LinkClasses::default())),
        };
        if !state.is_used() && state.server.is_none() || state.server == wanted {
            return;
        }
        if let Some(state) = self.link_states.get_mut(link) {
            state.server.clone_from(&wanted);
        }
        let ask = DriverRequest::Classes { server: wanted };
        self.call(link, ask, None, CallPurpose::Classes, now);
    }

    /// Adds the members of classes, and why a server is suspended, to the reply to `show`.
    pub(crate) fn describe_classes(&self, doc: &mut ShowDoc) {
        for link in &mut doc.links {
            let (Ok(name), Some(shown)) = (link.link.parse::<IfName>(), &mut link.server) else {
                continue;
            };
            if let Some(server) = self.servers.get(&name) {
                shown.suspended.clone_from(&server.suspended);
            }
            if let Some(state) = self.link_states.get(&name) {
                for class in &mut shown.classes {
                    let number = usize::from(class.class) % CLASSES;
                    class.members = state.members.counts[number];
                    class.contracted = state.members.sums[number];
                }
            }
        }
    }
}

/// The message about a server; without a slice, the server is suspended.
fn server_doc(slice: Option<Slice>, classes: &LinkClasses) -> ServerDoc {
    let minimums = match slice {
        Some(_) => classes.minimums(),
        None => [None; CLASSES],
    };
    let bits = |min: &Option<Rate>| min.map(Rate::bits_per_second);
    ServerDoc {
        slice: slice.as_ref().map(slice_text),
        minimums: minimums.iter().map(bits).collect(),
    }
}

/// The promise to a server.
fn contract_of(slice: Slice) -> Contract {
    let change = Change {
        slice: Some(Setting::Set(slice)),
        ..Change::default()
    };
    // A slice alone contradicts nothing.
    Contract::default().apply(&change).unwrap_or_default()
}

/// The link of a server, for its size.
pub(crate) fn server_link(rate: Rate, overhead: Bytes) -> ServerLink {
    ServerLink {
        rate,
        overhead,
        shortest: Bytes(MIN_PACKET_BYTES),
    }
}
