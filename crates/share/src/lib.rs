//! Answers: how one total is divided among the sessions of services, and kept divided while they come and go.
//! May touch: sockets of the services that it was told to serve, processes that it started, what /proc says of those it divides among, the daemon's socket.
//! Must never: change kernel state that is the daemon's, or start a session that has no share.
//!
//! # The super-server (NICE 4.3.3)
//! ```text
//!  file ──config──▶ Config ──inetd──▶ listeners, sessions ──divide──▶ shares ──▶ the daemon: set pid:N both R
//!                                          ▲                                        │
//!                                          └────────── what each session used ◀─────┘
//! ```
//! [`config`] reads what is to be served, [`divide`] is the arithmetic (pure), [`inetd`] the server. [`manager`] does the same for
//! processes that somebody else started (NICE 3.2); `keep` keeps the shares of both in force.
#![forbid(unsafe_code)]

pub mod config;
mod daemon;
pub mod divide;
pub mod inetd;
mod keep;
pub mod manager;

pub use daemon::Denial;
