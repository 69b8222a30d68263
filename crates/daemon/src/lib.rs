//! Answers: who holds which contract on this host, and keeps it enforced.
//! May touch: the ledger (its one writer), the runtime folder, the policy file, and the kernel room.
//! Must never: trust a client's parsing, or let a measurement edit the ledger.
//!
//! # One request's way
//! ```text
//!   server ──> clerk ──> authority: may they?     ledger: a draft, admitted by core      enforce: installed
//!   (socket)   (one writer)                       (place: what contains what)            (the kernel room)
//! ```
//! [`server`] reads requests from the socket and hands them to the [`clerk`], one at a time. The clerk works each out
//! on a draft of the [`ledger`], lets [`enforce`] install it, and only then takes the draft for the truth.
#![forbid(unsafe_code)]

mod authority;
mod clock;
mod denied;
mod event_loop;
mod flows;
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
pub use run::{Options, examine, run};
