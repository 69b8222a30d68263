//! Telling the state.

use netnice_api::{ContractDoc, CountersDoc, InstalledDoc, LinkDoc, ShowDoc, TargetDoc};
use netnice_core::contract::{Clause, Contract, Direction};
use netnice_core::target::Target;
use netnice_kernel::enforce::{Housing, Sample, TargetCounts};

use super::{Clerk, Named};
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::{Host, Interface};
use crate::ledger::{Body, Held, Ledger, Managed};
use crate::meter;
use crate::peer::POLICY;
use crate::reconcile::desired;

impl<H: Host> Clerk<H> {
    pub(super) fn show(&mut self, target: Option<&str>, now: Now) -> Result<ShowDoc, Denied> {
        let Some(text) = target else {
            let all: Vec<Held> = self.ledger.held().cloned().collect();
            let links: Vec<Managed> = self.ledger.links().cloned().collect();
            return self.document(&all, &links, now);
        };
        let target: Target = text.parse()?;
        let held = match target {
            Target::Pid(pid) => self.of_process(&target, pid.get())?,
            // Whoever knows of flows adds them.
            Target::Flow(_) | Target::Direct(_) => Vec::new(),
            _ => vec![self.lookup(&target)?.clone()],
        };
        self.document(&held, &[], now)
    }

    pub(super) fn show_own(&mut self, named: Option<&Named>, now: Now) -> Result<ShowDoc, Denied> {
        let Some(named) = named else {
            return Err(Denied::BadUsage(
                "the caller is meant by a pidfd, and none came with the request".to_owned(),
            ));
        };
        let target = Target::pid(named.pid)
            .ok_or_else(|| Denied::BadUsage(format!("{} is not a process id", named.pid)))?;
        let held = self.of_process(&target, named.pid)?;
        self.document(&held, &[], now)
    }

    /// The target that holds a process: its own, else the nearest one around it. If it has joined a name inside its own,
    /// that one too.
    pub(super) fn of_process(&mut self, target: &Target, pid: u32) -> Result<Vec<Held>, Denied> {
        let place = self.host.place(pid);
        let lives = self.host.process(pid).is_some();
        let nearest = self.ledger.at_place(&place);
        if let Some(own) = self.ledger.find(target) {
            let slot = own.entry.id;
            let is_inside = |held: &&Held| {
                let mut around = self.ledger.around(held.entry.id);
                around.any(|outer| outer.entry.id == slot)
            };
            let inside = nearest.filter(is_inside);
            return Ok([own].into_iter().chain(inside).cloned().collect());
        }
        if !lives {
            return Err(Denied::Failed(format!("process {pid} does not exist")));
        }
        Ok(nearest.into_iter().cloned().collect())
    }

    fn document(
        &mut self,
        targets: &[Held],
        links: &[Managed],
        now: Now,
    ) -> Result<ShowDoc, Denied> {
        let sample = self.host.sample()?;
        let interfaces = self.host.interfaces()?;
        let link = |managed: &Managed| self.link_doc(managed, &sample, &interfaces, now);
        let links: Vec<LinkDoc> = links.iter().map(link).collect();
        let mut targets: Vec<TargetDoc> = targets
            .iter()
            .map(|held| self.target_doc(held, &sample, &interfaces, now))
            .collect();
        targets.sort_by(|a, b| a.target.cmp(&b.target));
        Ok(ShowDoc {
            version: ShowDoc::VERSION,
            links,
            targets,
            direct: Vec::new(),
        })
    }

    fn link_doc(
        &self,
        managed: &Managed,
        sample: &Sample,
        interfaces: &[Interface],
        now: Now,
    ) -> LinkDoc {
        let link = &managed.link;
        let name = link.name.as_str();
        let there = interfaces.iter().any(|i| i.name == name);
        let rest = sample.rest.get(name).copied().unwrap_or_default();
        let counts = TargetCounts { directions: rest };
        let meter = meter::meter(&counts, &Contract::default());
        let counters = CountersDoc::new(now.monotonic.0, &meter);
        let counters = match self.rates.of_link(name, now.monotonic) {
            Some([up, down]) => counters.with_rates(up, down),
            None => counters,
        };
        LinkDoc {
            installed: there && !self.broken.contains_key(&link.name),
            degraded: self.link_faults(managed, interfaces),
            counters,
            ..LinkDoc::new(link, self.ledger.promised(link))
        }
    }

    fn target_doc(
        &self,
        held: &Held,
        sample: &Sample,
        interfaces: &[Interface],
        now: Now,
    ) -> TargetDoc {
        let counts = sample.targets.get(&held.id).copied().unwrap_or_default();
        let meter = meter::meter(&counts, &held.entry.contract);
        let asked = held.claims.effective();
        let mut contract = ContractDoc::from(asked);
        for clause in asked.as_change().clauses() {
            if let Some(uid) = held.claims.set_by(clause) {
                // What the policy file asks for, root asks for.
                let uid = if uid == POLICY.uid { 0 } else { uid };
                contract.set_by.insert(clause.to_string(), uid);
            }
        }
        let counters = CountersDoc::new(now.monotonic.0, &meter);
        let counters = match self.rates.of(held.id, now.monotonic) {
            Some([up, down]) => counters.with_rates(up, down),
            None => counters,
        };
        TargetDoc {
            target: held.entry.target.to_string(),
            contract,
            effective: ContractDoc::from(&held.effective(&self.ledger)),
            installed: installed(&self.ledger, held, self.host.leaf()),
            degraded: self.target_faults(held, interfaces),
            counters,
        }
    }

    /// Why a target is not served as it should.
    pub(super) fn target_faults(&self, held: &Held, interfaces: &[Interface]) -> Vec<String> {
        let mut faults: Vec<String> = held.refused.iter().cloned().collect();
        if matches!(held.body, Body::Cgroup(None) | Body::App(None)) {
            faults.push(format!("{} is not there now", held.entry.target));
        }
        if matches!(self.housings.get(&held.id), Some(Housing::Apart(names)) if names.is_empty()) {
            faults.push(format!(
                "{} has a network of its own to which no pair of interfaces leads: nothing of it is held",
                held.entry.target
            ));
        }
        faults.extend(self.repairs.given_up.clone());
        let contract = &held.entry.contract;
        let Some(managed) = desired::link_of(&self.ledger, contract) else {
            faults.extend(missing_link(&self.ledger, contract));
            return faults;
        };
        faults.extend(self.link_faults(managed, interfaces));
        let link = &managed.link.name;
        if contract.min(Direction::Down).is_some()
            && let Some(rate) = self.rates.overload(link.as_str())
        {
            let usable = managed.link.usable(Direction::Down);
            faults.push(format!(
                "{link} receives {rate:#}, more than the {:#} that can be shared out here: what is lost before it \
                 arrives is not netnice's to give, so min-down may not hold",
                usable.map(netnice_core::units::Amount::from).unwrap_or_default()
            ));
        }
        faults
    }

    /// Why a link does not serve as it should.
    pub(super) fn link_faults(&self, managed: &Managed, interfaces: &[Interface]) -> Vec<String> {
        let link = &managed.link.name;
        let mut faults: Vec<String> = self.broken.get(link).cloned().into_iter().collect();
        match interfaces.iter().find(|i| i.name == link.as_str()) {
            None => faults.push(format!(
                "interface {link} is gone; its classes come back with it"
            )),
            Some(interface) if !interface.up => faults.push(format!("interface {link} is down")),
            Some(_) => {}
        }
        faults
    }
}

/// What the kernel was told for a target.
fn installed(ledger: &Ledger, held: &Held, leaf: &str) -> Option<InstalledDoc> {
    let contract = &held.entry.contract;
    let bits = |rate: netnice_core::units::Rate| rate.bits_per_second();
    let share = desired::link_of(ledger, contract);
    if !contract.is_limited() && share.is_none() {
        return None;
    }
    let min = |direction| {
        let usable = share?.link.usable(direction)?;
        contract.link_min(direction, usable).flatten().map(bits)
    };
    let fastest = contract.both().or(contract.up()).or(contract.down());
    Some(InstalledDoc {
        path: "kernel".to_owned(),
        up: contract.both().or(contract.up()).map(bits),
        down: contract.down().map(bits),
        min: min(Direction::Up),
        min_down: min(Direction::Down),
        burst_bytes: fastest.map(|rate| rate.bytes_in(desired::burst(contract)).0),
        leaf: Some(leaf.to_owned()),
    })
}

/// Why a weight, a priority or a link that is named does not count.
fn missing_link(ledger: &Ledger, contract: &Contract) -> Option<String> {
    if let Some(link) = contract.on() {
        return Some(format!("{link} is not managed"));
    }
    let weighs = contract.weight().is_some() || contract.priority().is_some();
    (weighs && ledger.links().count() > 1).then(|| {
        format!(
            "{} and {} count on a link: several are managed, say which one with --on",
            Clause::Weight,
            Clause::Priority
        )
    })
}
