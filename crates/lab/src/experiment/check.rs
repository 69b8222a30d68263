//! A check of an experiment: one number against one [`Bound`].

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};

use super::figure;

/// One number against one bound.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What the number measures.
    pub what: String,
    /// The number. JSON has null for one that is not finite.
    #[serde(deserialize_with = "or_nan")]
    pub value: f64,
    /// The unit of the number; empty if it has none.
    pub unit: Cow<'static, str>,
    /// The bound of the number.
    pub bound: Bound,
    /// Whether the number is within its bound.
    pub holds: bool,
}

/// The bound of a number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Not less than this.
    AtLeast(f64),
    /// Not more than this.
    AtMost(f64),
    /// Not less than `least`, and not more than `most`.
    Between {
        /// The least value.
        least: f64,
        /// The greatest value.
        most: f64,
    },
    /// Not farther from `aim` than `share` of it.
    Near {
        /// The wanted value.
        aim: f64,
        /// The tolerance, as a share of `aim`.
        share: f64,
    },
}

fn or_nan<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::NAN))
}

impl Bound {
    pub(super) fn accepts(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
            Bound::Between { least, most } => (least..=most).contains(&value),
            Bound::Near { aim, share } => (value - aim).abs() <= share * aim.abs(),
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(f, "≥ {}", figure(*least)),
            Bound::AtMost(most) => write!(f, "≤ {}", figure(*most)),
            Bound::Between { least, most } => {
                write!(f, "{} to {}", figure(*least), figure(*most))
            }
            Bound::Near { aim, share } => {
                write!(f, "{} ± {} %", figure(*aim), figure(share * 100.0))
            }
        }
    }
}
