//! The places of redirected targets in the state file ([`RedirectDoc`]). The conversion back fails
//! with a text if a link's name is invalid or a place is named twice.

use std::collections::BTreeMap;

use netnice_core::units::Amount;
use serde::{Deserialize, Serialize};

use super::text;
use crate::ledger::Ledger;
use crate::ledger::redirects::{RedirectPhase, RedirectPlace};

/// A place in the map of redirects.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RedirectDoc {
    place: u16,
    link: String,
    target: u32,
    phase: PhaseDoc,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PhaseDoc {
    Prepared,
    Active,
    Ending,
}

/// The places that a ledger has in use.
pub(super) fn docs(ledger: &Ledger) -> Vec<RedirectDoc> {
    let places = ledger.redirects().iter();
    let docs = places.map(|(number, place)| RedirectDoc {
        place: *number,
        link: place.link.to_string(),
        target: place.target,
        phase: match place.phase {
            RedirectPhase::Prepared => PhaseDoc::Prepared,
            RedirectPhase::Active => PhaseDoc::Active,
            RedirectPhase::Ending => PhaseDoc::Ending,
        },
    });
    docs.collect()
}

/// Converts to places, by number. Fails with a text that describes what is invalid.
pub(super) fn restore(docs: Vec<RedirectDoc>) -> Result<BTreeMap<u16, RedirectPlace>, String> {
    let mut places = BTreeMap::new();
    for doc in docs {
        let place = RedirectPlace {
            link: text(&doc.link)?,
            target: doc.target,
            // The flow manager computes it when the driver has sent its census.
            rate: Amount(0),
            begins: false,
            phase: match doc.phase {
                PhaseDoc::Prepared => RedirectPhase::Prepared,
                PhaseDoc::Active => RedirectPhase::Active,
                PhaseDoc::Ending => RedirectPhase::Ending,
            },
        };
        if places.insert(doc.place, place).is_some() {
            return Err(format!("two redirected targets have place {}", doc.place));
        }
    }
    Ok(places)
}
