//! The hosts that a channel passes, in order from its source, with a bound for each: [`Hops`].
//! [`Hops::new`] fails with [`BadHops`].

use netnice_core::contract::IfName;
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
    /// The interface at which the messages arrive at this host, if nothing is declared about the
    /// port before it; `None` at the source and for a guarded port.
    pub unguarded: Option<IfName>,
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
    /// A mark has no name of an interface.
    #[error("{host} has the mark unguarded with {name:?}, which names no interface")]
    Interface {
        /// The host.
        host: HostName,
        /// The invalid name.
        name: String,
    },
    /// The source has a mark, and no messages arrive there.
    #[error("{0} is the source, and has the mark unguarded")]
    SourceUnguarded(HostName),
}

impl Hops {
    /// The largest number of hosts, source and sink included.
    pub const MOST: usize = 16;

    /// These hosts.
    ///
    /// # Errors
    /// [`BadHops`] for no host, more than [`Hops::MOST`], a host that is there twice, and a bound
    /// that is longer than [`HopBound::LONGEST`], and for a first host that is unguarded.
    pub fn new(hops: Vec<HopBound>) -> Result<Hops, BadHops> {
        let count = hops.len();
        if !(1..=Hops::MOST).contains(&count) {
            return Err(BadHops::Count { count });
        }
        if let Some(source) = hops.first().filter(|hop| hop.unguarded.is_some()) {
            return Err(BadHops::SourceUnguarded(source.host.clone()));
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unguarded: Option<String>,
}

impl TryFrom<Vec<HopDoc>> for Hops {
    type Error = BadHops;

    fn try_from(docs: Vec<HopDoc>) -> Result<Hops, BadHops> {
        let hop = |doc: HopDoc| {
            let unguarded = match doc.unguarded.as_deref().map(str::parse) {
                None => None,
                Some(Ok(iface)) => Some(iface),
                Some(Err(_)) => {
                    return Err(BadHops::Interface {
                        host: doc.host,
                        name: doc.unguarded.unwrap_or_default(),
                    });
                }
            };
            Ok(HopBound {
                host: doc.host,
                bound: Nanos(doc.bound_ns),
                unguarded,
            })
        };
        let hops: Result<Vec<HopBound>, BadHops> = docs.into_iter().map(hop).collect();
        Hops::new(hops?)
    }
}

impl From<Hops> for Vec<HopDoc> {
    fn from(hops: Hops) -> Vec<HopDoc> {
        let docs = hops.0.into_iter().map(|hop| HopDoc {
            host: hop.host,
            bound_ns: hop.bound.0,
            unguarded: hop.unguarded.map(|iface| iface.to_string()),
        });
        docs.collect()
    }
}
