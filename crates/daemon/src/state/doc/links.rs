//! The managed links of the state file ([`LinkDoc`]): conversion from a link of the ledger, and
//! back. The conversion back fails with a text that describes what is invalid.

use std::net::IpAddr;

use netnice_core::contract::{Contract, Setting};
use netnice_core::link::classes::{ClassChange, ClassesChange, LinkClasses};
use netnice_core::link::{Capacity, CapacitySource, EstimateBounds, Link};
use netnice_core::units::{Bytes, Nanos, Rate};
use serde::{Deserialize, Serialize};

use super::text;
use crate::ledger::{ManagedLink, slice_text};

/// A managed link in the state file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkDoc {
    link: String,
    up: Option<CapacityDoc>,
    down: Option<CapacityDoc>,
    overhead: u64,
    /// In nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    horizon: u64,
    by: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reflectors: Vec<IpAddr>,
    /// The slice of the server, if it is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    classes: Vec<ClassDoc>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassDoc {
    class: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min: Option<String>,
    overbook: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CapacityDoc {
    rate: String,
    by_driver: bool,
    /// The bounds of an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bounds: Option<(String, String)>,
}

impl From<&ManagedLink> for LinkDoc {
    fn from(managed: &ManagedLink) -> LinkDoc {
        let capacity = |capacity: Option<Capacity>| {
            let capacity = capacity?;
            let bounds = capacity.bounds();
            Some(CapacityDoc {
                rate: capacity.rate.compact(),
                by_driver: capacity.source == CapacitySource::Driver,
                bounds: bounds.map(|bounds| (bounds.min().compact(), bounds.max().compact())),
            })
        };
        LinkDoc {
            link: managed.link.name.to_string(),
            up: capacity(managed.link.up),
            down: capacity(managed.link.down),
            overhead: managed.link.overhead.0,
            horizon: managed.link.horizon.0,
            by: managed.by,
            reflectors: managed.reflectors.clone(),
            server: managed
                .classes
                .named_server()
                .map(|slice| slice_text(&slice)),
            classes: managed
                .classes
                .iter()
                .map(|(class, state)| ClassDoc {
                    class,
                    min: state.min.map(Rate::compact),
                    overbook: state.overbook,
                })
                .collect(),
        }
    }
}

impl LinkDoc {
    /// The link that the document describes. Fails with a message if a value is invalid.
    pub(super) fn restore(self) -> Result<ManagedLink, String> {
        let capacity = |doc: Option<CapacityDoc>| -> Result<Option<Capacity>, String> {
            let Some(doc) = doc else { return Ok(None) };
            let rate: Rate = text(&doc.rate)?;
            let source = match (doc.bounds, doc.by_driver) {
                (Some((min, max)), _) => {
                    let bounds = EstimateBounds::new(text(&min)?, text(&max)?);
                    let invalid = || format!("an estimate from {min} to {max}");
                    CapacitySource::Estimate(bounds.ok_or_else(invalid)?)
                }
                (None, true) => CapacitySource::Driver,
                (None, false) => CapacitySource::Operator,
            };
            Ok(Some(Capacity { rate, source }))
        };
        Ok(ManagedLink {
            link: Link {
                name: text(&self.link)?,
                up: capacity(self.up)?,
                down: capacity(self.down)?,
                overhead: Bytes(self.overhead),
                horizon: Nanos(self.horizon),
            },
            by: self.by,
            reflectors: self.reflectors,
            classes: classes(&self.classes, self.server.as_deref())?,
        })
    }
}

/// The classes of a link. Fails if a text is invalid or a class cannot be.
fn classes(docs: &[ClassDoc], server: Option<&str>) -> Result<LinkClasses, String> {
    let mut classes = LinkClasses::default();
    let mut apply = |change: ClassesChange| -> Result<(), String> {
        classes = classes.apply(&change).map_err(|error| error.to_string())?;
        Ok(())
    };
    for doc in docs {
        let min = doc.min.as_deref().map(text::<Rate>).transpose()?;
        let set = ClassChange::Set {
            min: min.map(Setting::Set),
            overbook: Some(doc.overbook),
        };
        apply(ClassesChange {
            server: None,
            class: Some((doc.class, set)),
        })?;
    }
    if let Some(server) = server {
        let contract: Contract = text(&format!("slice {server}"))?;
        apply(ClassesChange {
            server: contract.slice().map(Setting::Set),
            class: None,
        })?;
    }
    Ok(classes)
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
