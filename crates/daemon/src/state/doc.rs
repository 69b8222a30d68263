//! The state of the daemon as JSON, for the state file: conversion from a ledger and its rollbacks,
//! and back. Targets, contracts and rates are in the text form of `netnice-core`. The conversion
//! back fails with a text that describes what is invalid.

mod links;
mod redirects;
mod rollbacks;

use netnice_api::SliceDoc;
use netnice_core::admission::processors::ProcessorSet;
use netnice_core::admission::{TargetEntry, TargetId};
use netnice_core::claims::{Claim, Claimant, Claims};
use netnice_core::contract::{Contract, Slice};
use netnice_core::units::{Instant, Nanos};
use serde::{Deserialize, Serialize};

use super::State;
use crate::ledger::rollbacks::{PendingRollback, Rollbacks};
use crate::ledger::{
    AppKey, AutoTime, Body, CgroupRef, DrainingTarget, HeldTarget, Ledger, ProcessId, TargetPlace,
};
use links::LinkDoc;
use redirects::RedirectDoc;
use rollbacks::UndoDoc;

/// The field `state` of the state file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StateDoc {
    pub boot: String,
    /// Cookie of the network namespace.
    pub namespace: u64,
    next_id: u32,
    next_undo: u64,
    links: Vec<LinkDoc>,
    targets: Vec<TargetDoc>,
    remnants: Vec<DrainingDoc>,
    undos: Vec<UndoDoc>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    redirects: Vec<RedirectDoc>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetDoc {
    slot: u16,
    id: u32,
    target: String,
    parent: Option<u16>,
    body: BodyDoc,
    place: PlaceDoc,
    claims: Vec<ClaimDoc>,
    rule: Option<String>,
    changed_ns: u64,
    #[serde(default, skip_serializing_if = "ProcessorSet::is_empty")]
    processors: ProcessorSet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    auto: Option<SliceDoc>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum BodyDoc {
    Processes { roots: Vec<(u32, u64)>, only: bool },
    App(Option<(u64, u32)>),
    Cgroup(Option<(String, u64)>),
    User(u32),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlaceDoc {
    own: Option<u32>,
    app: Option<u32>,
    cgroup: Option<String>,
    uid: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimDoc {
    uid: u32,
    privileged: bool,
    order: u64,
    contract: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainingDoc {
    slot: u16,
    id: u32,
    parent: Option<u16>,
    contract: String,
    since_ns: u64,
    found: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<u32>,
}

/// The number of bytes in the state file that belong to an unprivileged user: those of the targets
/// on which the user has a claim, and of the user's pending rollbacks.
pub(crate) fn bytes_of(ledger: &Ledger, rollbacks: &Rollbacks, uid: u32) -> u64 {
    let targets = ledger.held().filter(|held| held.user() == Some(uid));
    let targets = targets.map(|held| length(&TargetDoc::from(held)));
    let rollbacks = rollbacks
        .iter()
        .filter(|one| one.by.uid == uid && !one.by.privileged);
    targets
        .chain(rollbacks.map(|one| length(&UndoDoc::from(one))))
        .sum()
}

fn length(doc: &impl Serialize) -> u64 {
    serde_json::to_vec(doc).map_or(0, |text| text.len() as u64)
}

impl StateDoc {
    /// The document of this ledger and these rollbacks. `boot` is the boot id of the machine, and
    /// `namespace` the cookie of the network namespace.
    pub(super) fn new(
        boot: &str,
        namespace: u64,
        ledger: &Ledger,
        rollbacks: &Rollbacks,
    ) -> StateDoc {
        StateDoc {
            boot: boot.to_owned(),
            namespace,
            next_id: ledger.next_id(),
            next_undo: rollbacks.next(),
            links: ledger.links().map(LinkDoc::from).collect(),
            targets: ledger.held().map(TargetDoc::from).collect(),
            remnants: ledger.draining().map(DrainingDoc::from).collect(),
            undos: rollbacks.iter().map(UndoDoc::from).collect(),
            redirects: redirects::docs(ledger),
        }
    }

    /// Converts to a state. Fails with a text that describes what is invalid.
    pub(super) fn restore(self) -> Result<State, String> {
        let mut ledger = Ledger::default();
        for link in self.links {
            ledger.restore_link(link.restore()?);
        }
        for target in self.targets {
            let held = target.restore()?;
            if ledger.get(held.entry.id).is_some() || ledger.by_id(held.id).is_some() {
                return Err(format!(
                    "two targets have slot {} or id {}",
                    held.entry.id, held.id
                ));
            }
            ledger.restore(held);
        }
        for target in self.remnants {
            ledger.restore_draining(target.restore()?);
        }
        if let Some(fault) = ledger.fault() {
            return Err(fault);
        }
        ledger.set_redirects(redirects::restore(self.redirects)?);
        ledger.skip_ids(self.next_id);
        let waiting: Result<Vec<PendingRollback>, String> =
            self.undos.into_iter().map(UndoDoc::restore).collect();
        Ok(State {
            ledger,
            rollbacks: Rollbacks::restore(waiting?, self.next_undo),
        })
    }
}

impl From<&HeldTarget> for TargetDoc {
    fn from(held: &HeldTarget) -> TargetDoc {
        TargetDoc {
            slot: held.entry.id.get(),
            id: held.id,
            target: held.entry.target.to_string(),
            parent: held.entry.parent.map(TargetId::get),
            body: BodyDoc::from(&held.body),
            place: PlaceDoc::from(&held.place),
            claims: held.claims.iter().map(ClaimDoc::from).collect(),
            rule: held.rule.clone(),
            changed_ns: held.changed_ns,
            processors: held.processors.clone(),
            auto: held.auto.granted.map(SliceDoc::from),
        }
    }
}

impl TargetDoc {
    fn restore(self) -> Result<HeldTarget, String> {
        let claims = self.claims.into_iter().map(ClaimDoc::restore);
        let claims = Claims::restore(claims.collect::<Result<_, _>>()?)
            .map_err(|error| error.to_string())?;
        // The flows are known later, so they need what they needed before.
        let granted = self.auto.map(|slice| {
            let (time, period) = (Nanos(slice.slice_ns), Nanos(slice.period_ns));
            Slice::new(time, period, false).map_err(|error| error.to_string())
        });
        let granted = granted.transpose()?;
        Ok(HeldTarget {
            entry: TargetEntry {
                id: slot(self.slot)?,
                target: text(&self.target)?,
                parent: self.parent.map(slot).transpose()?,
                contract: claims.effective().without_guarantees(),
            },
            id: self.id,
            body: self.body.restore(),
            place: self.place.restore(),
            claims,
            refused: None,
            time_refused: None,
            aside: None,
            rule: self.rule,
            changed_ns: self.changed_ns,
            phases: Default::default(),
            quotas: Default::default(),
            processors: self.processors,
            auto: AutoTime {
                needed: granted,
                granted,
                ..AutoTime::default()
            },
        })
    }
}

impl From<&Body> for BodyDoc {
    fn from(body: &Body) -> BodyDoc {
        match body {
            Body::Processes { roots, only } => BodyDoc::Processes {
                roots: roots.iter().map(|root| (root.pid, root.started)).collect(),
                only: *only,
            },
            Body::App(key) => BodyDoc::App(key.map(|key| (key.inode, key.dev))),
            Body::Cgroup(bound) => {
                BodyDoc::Cgroup(bound.as_ref().map(|bound| (bound.path.clone(), bound.id)))
            }
            Body::User(uid) => BodyDoc::User(*uid),
        }
    }
}

impl BodyDoc {
    fn restore(self) -> Body {
        match self {
            BodyDoc::Processes { roots, only } => Body::Processes {
                roots: roots
                    .into_iter()
                    .map(|(pid, started)| ProcessId { pid, started })
                    .collect(),
                only,
            },
            BodyDoc::App(key) => Body::App(key.map(|(inode, dev)| AppKey { inode, dev })),
            BodyDoc::Cgroup(bound) => Body::Cgroup(bound.map(|(path, id)| CgroupRef { path, id })),
            BodyDoc::User(uid) => Body::User(uid),
        }
    }
}

impl From<&TargetPlace> for PlaceDoc {
    fn from(place: &TargetPlace) -> PlaceDoc {
        PlaceDoc {
            own: place.own,
            app: place.app,
            cgroup: place.cgroup.clone(),
            uid: place.uid,
        }
    }
}

impl PlaceDoc {
    fn restore(self) -> TargetPlace {
        TargetPlace {
            own: self.own,
            app: self.app,
            cgroup: self.cgroup,
            uid: self.uid,
        }
    }
}

impl From<&Claim> for ClaimDoc {
    fn from(claim: &Claim) -> ClaimDoc {
        ClaimDoc {
            uid: claim.by.uid,
            privileged: claim.by.privileged,
            order: claim.order,
            contract: claim.contract.to_string(),
        }
    }
}

impl ClaimDoc {
    fn restore(self) -> Result<Claim, String> {
        Ok(Claim {
            by: Claimant {
                uid: self.uid,
                privileged: self.privileged,
            },
            order: self.order,
            contract: text::<Contract>(&self.contract)?,
        })
    }
}

impl From<&DrainingTarget> for DrainingDoc {
    fn from(target: &DrainingTarget) -> DrainingDoc {
        DrainingDoc {
            slot: target.slot.get(),
            id: target.id,
            parent: target.parent.map(TargetId::get),
            contract: target.contract.to_string(),
            since_ns: target.since.0,
            found: target.found,
            user: target.user,
        }
    }
}

impl DrainingDoc {
    fn restore(self) -> Result<DrainingTarget, String> {
        Ok(DrainingTarget {
            slot: slot(self.slot)?,
            id: self.id,
            parent: self.parent.map(slot).transpose()?,
            contract: text(&self.contract)?,
            since: Instant(self.since_ns),
            moved: Instant(self.since_ns),
            offered: 0,
            found: self.found,
            user: self.user,
            quotas: Vec::new(),
        })
    }
}

fn slot(number: u16) -> Result<TargetId, String> {
    TargetId::new(number).ok_or_else(|| "0 is not a slot".to_owned())
}

fn text<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}
