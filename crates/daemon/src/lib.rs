//! Answers: which target holds which contract on this host, and how the contracts are enforced.
//! May touch: the ledger (as its only writer), the runtime folder, the policy file, and `kernel`.
//! Must never: trust a client's parsing, or let a measurement edit the ledger.
//!
//! # The parts
//! ```text
//!   run             starts all parts, and stops them
//!   event_loop      the only place that waits for several sources: one Event at a time
//!     server        starts the front process and receives its requests
//!       front       the unprivileged process of the socket: connections, frames, descriptors
//!     service       one file for each request: authorise, change the ledger, reconcile, respond
//!     flows         flows of the direct path: routes, next hops, ports, admission, drivers
//!       reconcile   makes the present state the desired one: install, sweep, repair, roll back
//!       meter       counts, rates, history, the metrics page
//!       policy      the administrator's rules: the policy file, and sections of unit files
//!         state     the books (the ledger and the pending rollbacks), and their file
//!         host      the machine: Inventory (what exists), Enforcer (apply, act, audit), Meter
//!           ledger  targets, links and claims: a pure value
//! ```
//! A part uses the parts below it and never a part above it. `service` and `flows` are siblings:
//! flows reach the ledger only through `flows::promises::Promises`, which the service implements.
//! All parts may use `clock`, `peer`, `error`, `authority`, `journal`, `page`, `quotas` and
//! `runtime`. `cargo xtask tidy` refuses circles.
#![forbid(unsafe_code)]

mod authority;
mod clock;
mod error;
mod event_loop;
mod flows;
pub mod front;
mod host;
mod journal;
mod ledger;
mod meter;
mod page;
mod peer;
mod policy;
mod quotas;
mod reconcile;
mod run;
mod runtime;
mod server;
mod service;
mod state;

pub use meter::metrics::http::{Address, AddressError};
pub use run::{Options, RunError, examine, run};
