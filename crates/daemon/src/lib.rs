//! Answers: who holds which contract on this host, and keeps it enforced.
//! May touch: the ledger (its one writer), the runtime folder, the policy file, and the kernel room.
//! Must never: trust a client's parsing, or let a measurement edit the ledger.
//!
//! # The parts
//! ```text
//!   run             starts all below, and ends
//!   event_loop      one Event in, one table of timers; nothing else waits for several things
//!     server        the socket: keeps the process that reads it, and takes its requests, one user after the other
//!       front       that process: connections, frames, descriptors, without any rights
//!     service       one file for each request: authorise, change the ledger, reconcile, answer
//!     flows         flows of the direct path: routes, next hops, ports, admission, drivers
//!       reconcile   what is desired against what is there: install, sweep, repair, take back, start
//!       meter       counts, rates, the past, the page of metrics
//!       policy      the administrator's rules: the policy file, and sections of unit files
//!         state     the books: the ledger and what waits to be taken back, and their file
//!         host      the machine: Inventory (who exists), Enforcer (apply, act, audit), Meter (counts)
//!           ledger  who holds what: a value, and pure
//! ```
//! A part uses those below it and never one above. `service` and `flows` stand beside each other: flows reach the
//! ledger through `flows::promises::Promises` alone, which the service implements. The rest are nouns that all use:
//! `clock`, `peer`, `denied`, `authority`, `journal`, `page` and `runtime`. `cargo xtask tidy` refuses
//! circles.
#![forbid(unsafe_code)]

mod authority;
mod clock;
mod denied;
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

pub use meter::metrics::serve::{Address, AddressError};
pub use run::{Options, RunError, examine, run};
