//! Answers: how one total is divided among sessions of services, and kept divided as they change.
//! May touch: its services' sockets, processes that it started, /proc, the daemon's socket.
//! Must never: change kernel state that is the daemon's, or start a session that has no share.
//!
//! # The super-server (NICE 4.3.3)
//! ```text
//!  file ─config─▶ Config ─inetd─▶ listeners, sessions ─divide─▶ shares ─▶ set pid:N both R
//!                                             ▲                                (the daemon)
//!                                             └──────── usage of each session ◀─────┘
//! ```
//! [`config`] reads the services to serve. `divide` computes the shares without I/O. [`inetd`] is
//! the server. [`manager`] divides a total among processes that it did not start (NICE 3.2).
//! `keeper` sets the shares for the server and for the manager.
#![forbid(unsafe_code)]

pub mod config;
mod daemon;
mod divide;
pub mod inetd;
mod keeper;
pub mod manager;

pub use daemon::RequestError;
