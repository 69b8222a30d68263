//! Answers: who holds which contract on this host, and keeps it enforced.
//! May touch: the ledger (its one writer), the runtime folder, the policy file, and the kernel room.
//! Must never: trust a client's parsing, or let a measurement edit the ledger.
//!
//! # One request's way
//! ```text
//!   server ──> clerk ──> authority: may they?     ledger: a draft, admitted by core      enforce: installed
//!   (socket)   (one writer)                       (place: what contains what)            (the kernel room)
//! ```
//! The [`front`] reads requests from the socket, in a process of its own. [`server`] keeps that process and hands the
//! requests to the [`clerk`], one at a time. The clerk works each out
//! on a draft of the [`ledger`], lets [`enforce`] install it, and only then takes the draft for the truth.
#![forbid(unsafe_code)]

pub mod authority;
pub mod clerk;
pub mod clock;
pub mod containers;
pub mod denied;
pub mod desired;
pub mod direct;
pub mod enforce;
pub mod front;
pub mod history;
pub mod journal;
pub mod ledger;
pub mod lineage;
pub mod measure;
pub mod metrics;
pub mod peer;
pub mod policy;
pub mod run;
pub mod runtime;
pub mod server;
pub mod state;
pub mod undo;
pub mod units;
pub mod watch;
pub mod watchdog;

pub use denied::Denied;
pub use metrics::serve::{Address, AddressError};
pub use run::{Options, examine, run};
