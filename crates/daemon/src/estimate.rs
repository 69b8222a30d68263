//! Estimates the rate of a link from delays, for `netnice link IFACE --rate auto`.
//!
//! The rate of a DSL line or of a mobile network changes, and no interface of this host reports it.
//! While more is sent than the slowest part of the path carries, a queue grows there, and packets
//! take longer. So the daemon sends probes to hosts beyond that part (the *reflectors*) while the
//! link is used, and measures how much longer they take than at best. It lowers the link's rate
//! when the delay grows, and raises it while the link is used fully and the delay stays short. The
//! method is that of cake-autorate and sqm-autorate; the result is an estimate.
//!
//! ```text
//!   thread of one link                                       event loop
//!   ┌────────────────────────────────────────────┐
//!   │ prober: sockets, counters, clock           │  Estimated
//!   │   └─> controller: when to probe, the rates │ ───────────> reconcile: the link's classes
//!   │         ├─ delays: best times, excess      │
//!   │         └─ direction: the rate of one      │ <─────────── Estimators: starts and stops
//!   └────────────────────────────────────────────┘              the threads
//! ```
//!
//! The thread cannot delay the event loop: the loop never waits for it, and a message that the loop
//! has not taken yet is replaced by the next one. `controller`, `delays` and `direction` are pure:
//! time and counts are arguments.
//!
//! A reflector, or a host on the path, can send false replies. The estimate never leaves the
//! operator's bounds, and with three reflectors or more the median counts, so one of them alone
//! does not decide. Nothing in this module fails; a thread that cannot start is reported as the
//! state of its link.

mod controller;
mod delays;
mod direction;
mod prober;
#[cfg(test)]
mod tests;
mod threads;

use std::net::{IpAddr, Ipv4Addr};

use netnice_core::contract::IfName;
use netnice_core::link::EstimateBounds;
use netnice_core::units::Rate;

pub(crate) use threads::{Estimators, take};

/// What the estimation of a link depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EstimatedLink {
    /// The interface.
    pub name: IfName,
    /// The hosts that are probed.
    pub reflectors: Vec<IpAddr>,
    /// The bounds for sending and for receiving; `None`: that rate is not estimated.
    pub bounds: [Option<EstimateBounds>; 2],
}

/// A message of the thread of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Estimated {
    /// The number of the thread: a message of a stopped one is ignored.
    pub number: u64,
    /// The interface.
    pub name: IfName,
    /// The present estimates for sending and for receiving.
    pub rates: [Option<Rate>; 2],
    /// The state of the measurement.
    pub state: EstimateState,
}

/// The state of the measurement of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EstimateState {
    /// The number of reflectors that reply.
    pub replying: usize,
    /// Why nothing is measured, and the rates go to their lower bounds under load; `None` while a
    /// reflector replies.
    pub fault: Option<String>,
}

/// The reflectors of a link for which the operator names none: public name servers of three
/// operators, which many hosts of the world can reach and which reply to echo requests.
pub(crate) const DEFAULT_REFLECTORS: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)),
    IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)),
    IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)),
];

/// The largest number of reflectors of a link.
pub(crate) const MAX_REFLECTORS: usize = 8;
