//! Promises on a link, and its division between both paths: a new flow is admitted or refused here,
//! flows are degraded and restored when the link changes, and the driver and the kernel's classes
//! get their rates.

use netnice_api::direct::FlowNews;
use netnice_api::driver::{DriverRequest, TotalsDoc};
use netnice_core::admission::timing::{Alternative, TimingRefusal};
use netnice_core::contract::{Change, Contract, Direction, IfName, Setting};
use netnice_core::units::{Amount, Instant};

use super::admission::{self, Room};
use super::division::{Used, Whole};
use super::network::Network;
use super::promises::Promises;
use super::{Flow, Flows, Pending};
use crate::clock::Now;
use crate::denied::Denied;
use crate::ledger::part::Part;

impl<N: Network> Flows<N> {
    /// The capacity that a link has for direct flows at present.
    pub(super) fn room(
        &self,
        promises: &impl Promises,
        link: &IfName,
        mtu: u32,
    ) -> Result<Room, Denied> {
        let managed = promises.link(link).ok_or_else(|| {
            Denied::NotAdmitted(format!(
                "refused: {link} is not a managed link: netnice link {link} --rate R makes it one"
            ))
        })?;
        if managed.capacity(Direction::Up).is_none() {
            return Err(Denied::NotAdmitted(format!(
                "refused: {link} has no sending rate: netnice link {link} --rate R gives it one"
            )));
        }
        let (each, promised) = promises.promised_to_targets(&managed);
        Room::on(&managed, promised, mtu).ok_or_else(|| {
            let mut text = format!(
                "refused: nothing of {link} is left for direct flows: {promised:#} of it are promised"
            );
            for (who, amount) in each {
                text.push_str(&format!("\n  held        {who}  {amount} up on {link}"));
            }
            Denied::NotAdmitted(text)
        })
    }

    /// Admits a flow that is recorded already (as opened, or changed from `before`), and divides
    /// the link again.
    pub(super) fn admit(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        number: u32,
        before: Option<&Contract>,
        now: Now,
    ) -> Result<(), Denied> {
        let Some(flow) = self.flows.get(&number).cloned() else {
            return Ok(());
        };
        let mtu = self.nic_of(link)?.mtu;
        let room = self.room(promises, link, mtu)?;
        let held = self.promises(link, Some(number));
        let present = self.lanes.get(link).and_then(|lane| lane.need);
        let shrinks = before.is_some_and(admission::is_promised);
        let present = present.filter(|_| !shrinks);
        let need = match room.admit(&held, &flow.contract, present) {
            Ok(need) => need,
            Err(misfit) => return Err(self.misfit(promises, &room, &flow, &misfit)),
        };
        self.divide(promises, link, room, Some(need), now)
    }

    /// The contracts of a link's flows with a promise, without flow `but`.
    fn promises(&self, link: &IfName, but: Option<u32>) -> Vec<Contract> {
        let lane = self.lanes.get(link);
        let promised = lane.into_iter().flat_map(|lane| &lane.promised);
        let others = promised.filter(|(number, _)| Some(**number) != but);
        others.map(|(_, contract)| contract.clone()).collect()
    }

    /// The refusal of a flow, for the person who asked.
    fn misfit(
        &self,
        promises: &impl Promises,
        room: &Room,
        flow: &Flow,
        misfit: &TimingRefusal,
    ) -> Denied {
        let Flow {
            link,
            number,
            contract,
            ..
        } = flow;
        let row = |word: &str, text: String| format!("\n  {word:<11} {text}");
        let mut text =
            format!("refused: flow:{number} asks {contract} on {link}, which does not fit");
        let managed = promises.link(link);
        let source = managed.as_ref().and_then(|m| m.capacity(Direction::Up));
        let source = source.map_or_else(String::new, |s| format!(", {}", s.source));
        text.push_str(&row("link", format!("{link} up {}{source}", room.capacity)));
        let mut holders: Vec<String> = Vec::new();
        if let Some(managed) = &managed {
            let (each, _) = promises.promised_to_targets(managed);
            holders.extend(
                each.iter()
                    .map(|(who, amount)| format!("{who}  {amount} up on {link}")),
            );
        }
        let lane = self.lanes.get(link);
        let flows = lane.into_iter().flat_map(|lane| &lane.promised);
        let flows = flows.filter(|(other, _)| *other != number);
        let total = flows.clone().count();
        holders.extend(
            flows
                .take(MOST_TOLD)
                .map(|(n, contract)| format!("flow:{n}  {contract}")),
        );
        if total > MOST_TOLD {
            holders.push(format!("and {} flows more", total - MOST_TOLD));
        }
        for (n, holder) in holders.iter().enumerate() {
            let word = if n == 0 { "held" } else { "" };
            text.push_str(&row(word, holder.clone()));
        }
        text.push_str(&row("but", misfit.fault.to_string()));
        let fits = match &misfit.alternative {
            None => "nothing of this kind".to_owned(),
            Some(Alternative::Rate(rate)) => format!("at most {rate}"),
            Some(instead) => instead.to_string(),
        };
        text.push_str(&row("would fit", fits));
        Denied::NotAdmitted(text)
    }

    /// Divides a link again; the side that shrinks does so first. Without flows the kernel's
    /// classes get the whole link.
    fn divide(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        room: Room,
        need: Option<netnice_core::units::Rate>,
        now: Now,
    ) -> Result<(), Denied> {
        let Some(lane) = self.lanes.get_mut(link) else {
            return Ok(());
        };
        let Some(need) = need.filter(|_| lane.count > 0) else {
            (lane.split, lane.need, lane.seen, lane.tree_after) = (None, None, None, None);
            promises.set_part(link, None)?;
            promises.heal(now);
            return Ok(());
        };
        let whole = Whole {
            capacity: room.capacity,
            tree: room.tree,
            need,
        };
        let split = match lane.split {
            Some(split) if whole.holds(split) && lane.room == Some(room) => split,
            _ => whole.halved(),
        };
        lane.need = Some(need);
        lane.room = Some(room);
        self.apply(promises, link, split, now)
    }

    /// Puts a division into force.
    pub(super) fn apply(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        split: super::Split,
        now: Now,
    ) -> Result<(), Denied> {
        let Some(lane) = self.lanes.get_mut(link) else {
            return Ok(());
        };
        let flows = lane.count;
        let (Some(need), Some(room)) = (lane.need, lane.room) else {
            return Ok(());
        };
        let grows = lane.split.is_some_and(|old| split.tree > old.tree);
        let tree = match lane.split {
            // The classes grow only after the driver has shrunk.
            Some(old) if grows => old.tree,
            _ => split.tree,
        };
        let part = Part { need, flows, tree };
        promises.set_part(link, Some(part))?;
        if lane.split == Some(split) {
            return Ok(());
        }
        let rewired = lane.split.map(|old| old.wire) != Some(split.wire);
        lane.split = Some(split);
        lane.tree_after = grows.then_some(split.tree);
        if rewired {
            let ask = DriverRequest::Wire {
                rate: split.wire.bits_per_second(),
                overhead: room.overhead(),
            };
            self.call(link, ask, None, Pending::Wire, now);
            self.rescale(link, now);
        }
        Ok(())
    }

    /// The driver has shrunk: lets the classes grow.
    pub(super) fn rewired(&mut self, promises: &mut impl Promises, link: &IfName, now: Now) {
        let Some(lane) = self.lanes.get_mut(link) else {
            return;
        };
        let Some(tree) = lane.tree_after.take() else {
            return;
        };
        let part = promises.part(link);
        if let Some(part) = part
            && let Err(denied) = promises.set_part(link, Some(Part { tree, ..part }))
        {
            promises
                .journal()
                .warn(now, format!("dividing {link}: {denied}"));
        }
    }

    /// Sends the slices again, scaled to the driver's present rate.
    fn rescale(&mut self, link: &IfName, now: Now) {
        let lane = self.lanes.get(link);
        let promised = lane.into_iter().flat_map(|lane| &lane.promised);
        let slices = promised.filter(|(_, contract)| contract.slice().is_some());
        let open = slices.filter_map(|(number, _)| self.flows.get(number));
        let open: Vec<Flow> = open.cloned().collect();
        for flow in open {
            self.serve(&flow, Pending::Nothing, now);
        }
    }

    /// Sends a flow's contract to the driver. A flow that is being opened is skipped: its contract
    /// is sent once it is open.
    pub(super) fn serve(&mut self, flow: &Flow, what: Pending, now: Now) {
        let Some(at_driver) = flow.at_driver else {
            return;
        };
        let (contract, granted) = self.terms(flow);
        let ask = DriverRequest::Change {
            flow: at_driver,
            contract,
            granted,
        };
        self.call(&flow.link, ask, None, what, now);
    }

    /// The contract to send to the driver, and the granted one if it differs.
    pub(super) fn terms(&self, flow: &Flow) -> (String, Option<String>) {
        let (served, granted) = (self.served(flow), flow.contract.to_string());
        let other = (granted != served).then_some(granted);
        (served, other)
    }

    fn served(&self, flow: &Flow) -> String {
        let contract = match flow.degraded {
            None => flow.contract.clone(),
            Some(_) => admission::best_effort(&flow.contract),
        };
        let lane = self.lanes.get(&flow.link);
        let room = lane.and_then(|lane| lane.room);
        let split = lane.and_then(|lane| lane.split);
        let (Some(slice), Some(room), Some(split)) = (contract.slice(), room, split) else {
            return contract.to_string();
        };
        let Some(slice) = admission::scaled(slice, room.capacity, split.wire) else {
            return contract.to_string();
        };
        let change = Change {
            slice: Some(Setting::Set(slice)),
            ..Change::default()
        };
        contract.apply(&change).unwrap_or(contract).to_string()
    }

    /// Checks the promises of a link after flows have gone or the link has changed: degrades flows
    /// that no longer fit, and restores degraded ones that fit again.
    pub(super) fn settle(&mut self, promises: &mut impl Promises, link: &IfName, now: Now) {
        if !self.lanes.contains_key(link) {
            return;
        }
        let mtu = self.nic_of(link).map_or(1_500, |nic| nic.mtu);
        let settled = match self.room(promises, link, mtu) {
            Ok(room) => {
                let need = self.fit(link, &room, now);
                self.divide(promises, link, room, need, now)
            }
            Err(denied) => {
                self.degrade_all(link, &denied.to_string(), now);
                if let Some(lane) = self.lanes.get_mut(link) {
                    (lane.room, lane.split, lane.need) = (None, None, None);
                }
                promises.set_part(link, None)
            }
        };
        if let Err(denied) = settled {
            promises
                .journal()
                .warn(now, format!("dividing {link}: {denied}"));
        }
    }

    /// Degrades flows, youngest first, until the rest fits; then restores degraded ones, oldest
    /// first. Returns the needed rate.
    fn fit(&mut self, link: &IfName, room: &Room, now: Now) -> Option<netnice_core::units::Rate> {
        let mut need = room.need(&self.promises(link, None));
        while need.is_err() {
            let promised = self.lanes.get(link).map(|lane| &lane.promised);
            let Some(youngest) = promised.and_then(|all| all.keys().max().copied()) else {
                break;
            };
            let why = format!(
                "{link} has {} for direct flows now, and what was promised does not fit into it",
                room.most
            );
            self.set_degraded(youngest, Some(why), now);
            need = room.need(&self.promises(link, None));
        }
        let no_promise = |flow: &&Flow| flow.link == *link && flow.degraded.is_some();
        let degraded: Vec<u32> = match self.lanes.get(link) {
            Some(lane) if lane.any_degraded => {
                let degraded = self.flows.values().filter(no_promise);
                degraded.map(|flow| flow.number).collect()
            }
            _ => Vec::new(),
        };
        for number in degraded {
            let held = self.promises(link, None);
            let Some(flow) = self.flows.get(&number) else {
                continue;
            };
            if let Ok(with) = room.admit(&held, &flow.contract, need.as_ref().ok().copied()) {
                need = Ok(with);
                self.set_degraded(number, None, now);
            }
        }
        need.ok()
    }

    fn degrade_all(&mut self, link: &IfName, why: &str, now: Now) {
        let lane = self.lanes.get(link);
        let theirs: Vec<u32> =
            lane.map_or_else(Vec::new, |lane| lane.promised.keys().copied().collect());
        for number in theirs {
            self.set_degraded(number, Some(why.to_owned()), now);
        }
    }

    fn set_degraded(&mut self, number: u32, why: Option<String>, now: Now) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        if why.is_some()
            && let Some(lane) = self.lanes.get_mut(&flow.link)
        {
            lane.any_degraded = true;
        }
        self.set_contract(number, flow.contract.clone(), why.clone());
        let Some(flow) = self.flows.get(&number).cloned() else {
            return;
        };
        self.serve(&flow, Pending::Nothing, now);
        let why = why.unwrap_or_default();
        self.tell_flow(number, FlowNews::Degraded { flow: number, why });
    }

    /// Checks all links: their capacity, or the promises to targets, may have changed.
    pub(crate) fn settle_all(&mut self, promises: &mut impl Promises, now: Now) {
        let links: Vec<IfName> = self.lanes.keys().cloned().collect();
        for link in links {
            self.follow_discards(promises, &link, now);
            let lane = self.lanes.get(&link).filter(|lane| lane.count > 0);
            let Some(known) = lane.map(|lane| lane.room) else {
                continue;
            };
            let mtu = self.nic_of(&link).map_or(1_500, |nic| nic.mtu);
            if self.room(promises, &link, mtu).ok() != known {
                self.settle(promises, &link, now);
            }
        }
    }

    /// Sends the driver its discard patterns, if they have changed.
    pub(super) fn follow_discards(&mut self, promises: &impl Promises, link: &IfName, now: Now) {
        let (Some(patterns), Some(lane)) = (promises.discards(link), self.lanes.get_mut(link))
        else {
            return;
        };
        if lane.mode.is_empty() || lane.discards.as_deref() == Some(patterns) {
            return;
        }
        let patterns = patterns.to_vec();
        lane.discards = Some(patterns.clone());
        let ask = DriverRequest::Discard { patterns };
        self.call(link, ask, None, Pending::Discard, now);
    }

    /// Asks drivers for the bytes sent. The caller calls it several times a second.
    pub(crate) fn balance(&mut self, now: Now) {
        let due: Vec<IfName> = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.here && lane.split.is_some() && !lane.asked_totals)
            .map(|(link, _)| link.clone())
            .collect();
        for link in due {
            if let Some(lane) = self.lanes.get_mut(&link) {
                lane.asked_totals = true;
            }
            self.call(&link, DriverRequest::Totals, None, Pending::Totals, now);
        }
    }

    /// Takes a driver's count of sent bytes, and adapts the division.
    pub(super) fn totals(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        totals: TotalsDoc,
        now: Now,
    ) {
        let by_classes = promises.sent_by_classes(link);
        let Some(lane) = self.lanes.get_mut(link) else {
            return;
        };
        lane.asked_totals = false;
        let overhead = lane.room.map_or(0, |room| room.overhead());
        let bytes = totals.sent_bytes + totals.sent * overhead;
        let seen = lane.seen.replace((now.monotonic, bytes, by_classes));
        let (Some((at, flows, classes)), Some(split)) = (seen, lane.split) else {
            return;
        };
        let (Some(need), Some(room)) = (lane.need, lane.room) else {
            return;
        };
        let rate = |before: u64, after: u64| per_second(after.saturating_sub(before), at, now);
        let used = Used {
            wire: rate(flows, bytes),
            tree: match (classes, by_classes) {
                (Some(before), Some(after)) => rate(before, after),
                _ => Amount(0),
            },
        };
        lane.sends = used.wire.0;
        // A change of scale starts a new period of a slice, so the division is fixed while a flow
        // has one.
        let slices = lane.promised.values().any(|c| c.slice().is_some());
        if slices || lane.tree_after.is_some() {
            return;
        }
        let whole = Whole {
            capacity: room.capacity,
            tree: room.tree,
            need,
        };
        let next = whole.next(split, used);
        if next != split
            && let Err(denied) = self.apply(promises, link, next, now)
        {
            promises
                .journal()
                .warn(now, format!("dividing {link}: {denied}"));
        }
    }
}

fn per_second(bytes: u64, since: Instant, now: Now) -> Amount {
    let passed = u128::from(now.monotonic.since(since).0.max(1));
    let bits = u128::from(bytes) * 8 * 1_000_000_000 / passed;
    Amount(u64::try_from(bits).unwrap_or(u64::MAX))
}

/// Largest number of flows that a refusal names.
const MOST_TOLD: usize = 20;
