//! The managed links of the state file ([`LinkDoc`]): conversion from a link of the ledger, and
//! back. The conversion back fails with a text that describes what is invalid.

use std::net::IpAddr;

use netnice_core::link::{Capacity, CapacitySource, EstimateBounds, Link};
use netnice_core::units::{Bytes, Nanos, Rate};
use serde::{Deserialize, Serialize};

use super::text;
use crate::ledger::ManagedLink;

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
        }
    }
}

impl LinkDoc {
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
        })
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
