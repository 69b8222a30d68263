//! Answers: which target holds which contract on this host, and how the contracts are enforced.
//! May touch: the ledger (its only writer), runtime folder, policy, unit files, drivers, `kernel`.
//! Must never: trust a client's parsing, or let a measurement change a claim.
//!
//! # The parts
//! ```text
//!   run          starts all parts, and stops them
//!   event_loop   waits for all events, and handles one at a time
//!   service      handles a request: checks permission, changes the ledger, reconciles, responds
//!   flows        flows of the direct path: routes, next hops, ports, admission, drivers
//!   programs     the traffic of every program, counted while a client asks
//!   estimate     the rates of links, estimated from delays in threads
//!   server       starts the front process, and receives the requests of clients from it
//!   front        the code of that process: connections, frames and descriptors of clients
//!   reconcile    makes the state of the machine the desired one, and keeps it so
//!   meter        counters, rates, history, the metrics page
//!   policy       the administrator's rules: the policy file, and sections of unit files
//!   state        the books (the ledger and the pending rollbacks), and the file that stores them
//!   host         the machine: Inventory (what exists), Enforcer (changes it), Meter (counts)
//!   ledger       targets, links and claims, as a value without input or output
//! ```
//! A part uses only parts below it in this list. `flows` reaches the ledger and the policy only
//! through the trait `flows::promises::Promises`, which `service` implements. The other modules
//! (`authority`, `clock`, `error`, `journal`, `name_files`, `name_service`, `page`, `peer`,
//! `quotas`, `runtime`, `schedule` and `user_names`) are for all parts. `cargo xtask tidy` refuses
//! modules that use each other in a circle.
//!
//! [`run()`] ends at SIGTERM or SIGINT, or with a [`RunError`] if a part cannot be started or a
//! source of events fails.
#![forbid(unsafe_code)]

mod authority;
mod clock;
mod error;
mod estimate;
mod event_loop;
mod flows;
pub mod front;
mod host;
mod journal;
mod ledger;
mod meter;
mod name_files;
mod name_service;
mod page;
mod peer;
mod policy;
mod processors;
mod programs;
mod quotas;
mod reconcile;
mod run;
mod runtime;
mod schedule;
mod server;
mod service;
mod state;
mod stops;
mod user_names;

pub use meter::metrics::http::{Address, AddressError};
pub use run::{Options, RunError, examine, run};
pub use stops::measure_stops;
