//! Converts pending rollbacks to JSON for the state file, and back. The conversion back fails with
//! a text that names the invalid value.

use netnice_core::claims::Claimant;
use netnice_core::contract::{Change, IfName};
use netnice_core::units::Instant;
use serde::{Deserialize, Serialize};

use super::{BodyDoc, ClaimDoc, LinkDoc, PlaceDoc, text};
use crate::ledger::ProcessId;
use crate::ledger::rollbacks::{Cleared, PendingRollback, Undo};

/// A pending rollback in the state file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UndoDoc {
    number: u64,
    at_ns: u64,
    /// Pid and start time of the process at whose end the change is rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<(u32, u64)>,
    confirmable: bool,
    uid: u32,
    privileged: bool,
    undo: UndoKind,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum UndoKind {
    Claim {
        id: u32,
        change: String,
    },
    Link {
        name: String,
        before: Option<Box<LinkDoc>>,
    },
    Cleared {
        targets: Vec<ClearedDoc>,
        links: Vec<LinkDoc>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClearedDoc {
    target: String,
    body: BodyDoc,
    place: PlaceDoc,
    claims: Vec<ClaimDoc>,
    rule: Option<String>,
}

impl From<&PendingRollback> for UndoDoc {
    fn from(waiting: &PendingRollback) -> UndoDoc {
        UndoDoc {
            number: waiting.number,
            at_ns: waiting.at.0,
            until: waiting.until.map(|root| (root.pid, root.started)),
            confirmable: waiting.confirmable,
            uid: waiting.by.uid,
            privileged: waiting.by.privileged,
            undo: match &waiting.undo {
                Undo::Claim { id, change } => UndoKind::Claim {
                    id: *id,
                    change: change.to_string(),
                },
                Undo::Link { name, before } => UndoKind::Link {
                    name: name.to_string(),
                    before: before.as_deref().map(LinkDoc::from).map(Box::new),
                },
                Undo::Cleared { targets, links } => UndoKind::Cleared {
                    targets: targets.iter().map(ClearedDoc::from).collect(),
                    links: links.iter().map(LinkDoc::from).collect(),
                },
            },
        }
    }
}

impl UndoDoc {
    /// The rollback that the document describes. Fails with a message if a value is invalid.
    pub(super) fn restore(self) -> Result<PendingRollback, String> {
        let undo = match self.undo {
            UndoKind::Claim { id, change } => Undo::Claim {
                id,
                change: Box::new(text::<Change>(&change)?),
            },
            UndoKind::Link { name, before } => Undo::Link {
                name: text::<IfName>(&name)?,
                before: before.map(|link| link.restore()).transpose()?.map(Box::new),
            },
            UndoKind::Cleared { targets, links } => Undo::Cleared {
                targets: targets
                    .into_iter()
                    .map(ClearedDoc::restore)
                    .collect::<Result<_, _>>()?,
                links: links
                    .into_iter()
                    .map(LinkDoc::restore)
                    .collect::<Result<_, _>>()?,
            },
        };
        Ok(PendingRollback {
            number: self.number,
            at: Instant(self.at_ns),
            until: self.until.map(|(pid, started)| ProcessId { pid, started }),
            confirmable: self.confirmable,
            by: Claimant {
                uid: self.uid,
                privileged: self.privileged,
            },
            undo,
        })
    }
}

impl From<&Cleared> for ClearedDoc {
    fn from(cleared: &Cleared) -> ClearedDoc {
        ClearedDoc {
            target: cleared.target.to_string(),
            body: BodyDoc::from(&cleared.body),
            place: PlaceDoc::from(&cleared.place),
            claims: cleared.claims.iter().map(ClaimDoc::from).collect(),
            rule: cleared.rule.clone(),
        }
    }
}

impl ClearedDoc {
    fn restore(self) -> Result<Cleared, String> {
        let claims = self.claims.into_iter().map(ClaimDoc::restore);
        Ok(Cleared {
            target: text(&self.target)?,
            body: self.body.restore(),
            place: self.place.restore(),
            claims: claims.collect::<Result<_, _>>()?,
            rule: self.rule,
        })
    }
}
