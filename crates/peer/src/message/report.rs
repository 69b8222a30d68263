//! What the hosts of a channel report of it: [`HopReport`]. Plain data; a report that contradicts
//! itself is not decoded.

use netnice_api::channels::HopCounts;
use serde::{Deserialize, Serialize};

use super::{HostName, Reason};

/// What one host says of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HopReport {
    /// The host.
    pub host: HostName,
    /// What it counted.
    pub counted: Counted,
}

/// The counts of a host, or why they are not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counted {
    /// The counts, which do not contradict themselves ([`HopCounts::fault`]).
    Counts(#[serde(deserialize_with = "consistent")] HopCounts),
    /// They are not known.
    Unknown(Reason),
}

fn consistent<'a, D: serde::Deserializer<'a>>(from: D) -> Result<HopCounts, D::Error> {
    let counts = HopCounts::deserialize(from)?;
    match counts.fault() {
        None => Ok(counts),
        Some(fault) => Err(serde::de::Error::custom(fault)),
    }
}
