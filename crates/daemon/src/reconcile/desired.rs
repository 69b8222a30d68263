//! Computes from a ledger what shall be in force in the kernel: the limits of targets, their shares
//! of links and the rates of links ([`desired`]), and the control groups that the kernel binds at
//! their creation ([`expected_groups`]). Pure; no function fails.

use std::collections::BTreeMap;

use netnice_core::contract::{Contract, Direction};
use netnice_core::target::Target;
use netnice_core::units::{Amount, Nanos, Rate};
use netnice_kernel::plan::{self, Desired, Limit, LinkShare};

use crate::ledger::{Body, HeldTarget, Ledger, ManagedLink};

/// The desired kernel state of all held and draining targets and all managed links.
pub(crate) fn desired(ledger: &Ledger) -> Desired {
    let targets = ledger.held().map(|held| target(ledger, held));
    let left = ledger.draining().map(|draining| plan::Target {
        id: draining.id,
        slot: draining.slot.get(),
        parent: draining.parent.map(|parent| parent.get()),
        limit: limit(&draining.contract),
        burst: burst(&draining.contract),
        share: None,
        // A draining target keeps its weight. The smallest weight among siblings gets a quantum of
        // one packet, so with the weight 1 here, a sibling of the weight 100 would get a quantum of
        // a hundred packets.
        weight: draining.contract.weight().unwrap_or_default().get(),
        priority: draining.contract.priority().unwrap_or_default().get(),
        dscp: draining.contract.dscp(),
        yields: draining.contract.yields(),
        is_budget: false,
        quotas: draining.quotas.clone(),
    });
    Desired {
        targets: targets.chain(left).collect(),
        links: ledger
            .links()
            .map(|managed| link(ledger, managed))
            .collect(),
        ..Desired::default()
    }
}

/// The control groups that the kernel binds to a target when they are created, with the target's
/// id: by path, and for units also by name, which the service manager gives to no other group.
pub(crate) fn expected_groups(ledger: &Ledger) -> BTreeMap<String, u32> {
    let mut names = BTreeMap::new();
    for held in ledger.held() {
        let Body::Cgroup(bound) = &held.body else {
            continue;
        };
        let known = bound.as_ref().map(|bound| &bound.path);
        names.extend(
            known
                .or(held.place.cgroup.as_ref())
                .map(|path| (path.clone(), held.id)),
        );
        match &held.entry.target {
            Target::Cgroup(path) => drop(names.insert(path.to_string(), held.id)),
            Target::Unit(name) => drop(names.insert(name.to_string(), held.id)),
            _ => {}
        }
    }
    names
}

fn target(ledger: &Ledger, held: &HeldTarget) -> plan::Target {
    let contract = &*held.in_force();
    plan::Target {
        id: held.id,
        slot: held.entry.id.get(),
        parent: held.entry.parent.map(|parent| parent.get()),
        limit: limit(contract),
        burst: burst(contract),
        share: share_now(ledger, held, contract),
        weight: contract.weight().unwrap_or_default().get(),
        priority: contract.priority().unwrap_or_default().get(),
        dscp: held.dscp(ledger),
        yields: contract.yields(),
        is_budget: contract.delegate().is_some(),
        quotas: ledger.quotas_around(held),
    }
}

/// A target's share of its link, without what is not in force while its driver is asked; `None` if
/// it has none now.
fn share_now(ledger: &Ledger, held: &HeldTarget, contract: &Contract) -> Option<LinkShare> {
    let managed = ledger.link_of(contract)?;
    let link = &managed.link.name;
    if ledger.awaits_driver(held.id, link) {
        return None;
    }
    let share = share(managed, contract);
    let max = share.max;
    Some(LinkShare {
        max: max.filter(|_| !ledger.begins_at_driver(held.id, link)),
        redirect: ledger.active_redirect(held.id, link),
        ..without_flows(share, ledger.flows_in(held))
    })
}

fn share(managed: &ManagedLink, contract: &Contract) -> LinkShare {
    let each = |direction| {
        let usable = managed.link.usable(direction)?;
        contract.link_min(direction, usable).flatten()
    };
    LinkShare {
        link: managed.link.name.to_string(),
        min: each(Direction::Up),
        min_down: each(Direction::Down),
        max: managed
            .link
            .usable(Direction::Up)
            .and_then(|usable| contract.link_max(Direction::Up, usable)),
        redirect: None,
    }
}

/// A target's share of a link without what flows of the direct path have of it: the driver sends
/// their packets.
fn without_flows(share: LinkShare, flows: Amount) -> LinkShare {
    let left = |min: Rate| Rate::new(Amount::from(min).less(flows).0);
    LinkShare {
        min: share.min.and_then(left),
        ..share
    }
}

fn limit(contract: &Contract) -> Limit {
    match contract.both() {
        Some(rate) => Limit::Both(rate),
        None if contract.is_limited() => Limit::Each {
            up: contract.up(),
            down: contract.down(),
        },
        None => Limit::None,
    }
}

/// The burst of a target with this contract, as time at its rate; for a slice contract, one slice.
pub(crate) fn burst(contract: &Contract) -> Nanos {
    contract.link_burst(Direction::Up)
}

/// The rates of a link for the kernel's classes, without the direct path's part.
fn link(ledger: &Ledger, managed: &ManagedLink) -> plan::Link {
    let link = &managed.link;
    let rate = link.shaped(Direction::Up);
    let part = ledger.direct_part(&link.name);
    let tree = part.map(|part| part.tree);
    plan::Link {
        name: link.name.to_string(),
        up: rate.map(|rate| tree.map_or(rate, |tree| tree.min(rate))),
        down: link.shaped(Direction::Down),
        overhead: u16::try_from(link.overhead.0).unwrap_or(u16::MAX),
        bucket: part.and_then(|part| part.bucket),
        has_redirects: ledger.redirects_on(&link.name).next().is_some(),
    }
}
