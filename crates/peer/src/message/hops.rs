//! The hosts that a channel passes, in order from its source, with a bound for each: [`Hops`].
//! [`Hops::new`] fails with [`BadHops`].

use netnice_core::units::Nanos;
use serde::{Deserialize, Serialize};

use super::HostName;

/// A host of a channel, and how long it may keep a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopBound {
    /// The host.
    pub host: HostName,
    /// The longest time from the logical arrival of a message at this host to that at the next one,
    /// or at the sink to the complete message. At most [`HopBound::LONGEST`].
    pub bound: Nanos,
}

impl HopBound {
    /// The longest bound of a hop: 2^43 ns, 2.4 hours, the longest time that admission decides on.
    pub const LONGEST: Nanos = Nanos(1 << 43);
}

/// Hosts in the order in which a channel passes them: 1 to [`Hops::MOST`], all different.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<HopDoc>", into = "Vec<HopDoc>")]
pub struct Hops(Vec<HopBound>);

/// Why hosts with bounds are no way of a channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHops {
    /// No host, or too many.
    #[error("a channel passes 1 to {most} hosts, not {count}", most = Hops::MOST)]
    Count {
        /// The number of hosts.
        count: usize,
    },
    /// A host is there twice.
    #[error("the channel passes host {0} twice")]
    Twice(HostName),
    /// A bound is too long.
    #[error("a hop keeps a message for at most {most}, and {host} has {bound}", most = HopBound::LONGEST)]
    TooLong {
        /// The host.
        host: HostName,
        /// Its bound.
        bound: Nanos,
    },
}

impl Hops {
    /// The largest number of hosts, source and sink included.
    pub const MOST: usize = 16;

    /// These hosts.
    ///
    /// # Errors
    /// [`BadHops`] for no host, more than [`Hops::MOST`], a host that is there twice, and a bound
    /// that is longer than [`HopBound::LONGEST`].
    pub fn new(hops: Vec<HopBound>) -> Result<Hops, BadHops> {
        let count = hops.len();
        if !(1..=Hops::MOST).contains(&count) {
            return Err(BadHops::Count { count });
        }
        for (at, hop) in hops.iter().enumerate() {
            if hops[..at].iter().any(|other| other.host == hop.host) {
                return Err(BadHops::Twice(hop.host.clone()));
            }
            if hop.bound > HopBound::LONGEST {
                let (host, bound) = (hop.host.clone(), hop.bound);
                return Err(BadHops::TooLong { host, bound });
            }
        }
        Ok(Hops(hops))
    }

    /// The hosts, the source first.
    pub fn as_slice(&self) -> &[HopBound] {
        &self.0
    }

    /// The sum of the bounds.
    pub fn sum(&self) -> Nanos {
        // At most 16 times 2^43.
        Nanos(self.0.iter().map(|hop| hop.bound.0).sum())
    }

    /// True if the channel passes this host.
    pub fn contains(&self, host: &HostName) -> bool {
        self.0.iter().any(|hop| hop.host == *host)
    }

    /// The last host.
    pub fn last(&self) -> Option<&HopBound> {
        self.0.last()
    }
}

/// A hop in JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HopDoc {
    host: HostName,
    bound_ns: u64,
}

impl TryFrom<Vec<HopDoc>> for Hops {
    type Error = BadHops;

    fn try_from(docs: Vec<HopDoc>) -> Result<Hops, BadHops> {
        let hops = docs.into_iter().map(|doc| HopBound {
            host: doc.host,
            bound: Nanos(doc.bound_ns),
        });
        Hops::new(hops.collect())
    }
}

impl From<Hops> for Vec<HopDoc> {
    fn from(hops: Hops) -> Vec<HopDoc> {
        let docs = hops.0.into_iter().map(|hop| HopDoc {
            host: hop.host,
            bound_ns: hop.bound.0,
        });
        docs.collect()
    }
}
