//! Answers: how one total is divided among sessions of services, and kept divided as they change.
//! May touch: its services' sockets, sessions, /proc, cgroupfs, files in /etc, the daemon's socket.
//! Must never: change qdiscs or eBPF maps itself, or start a session's program before its share is
//! set.
//!
//! # Words
//! A *session* is a process with its descendants, for example the process of one login to an FTP
//! server. Its *share* is the rate to which the session is limited. An idle session *lends* the
//! unused part of its share to busy sessions.
//!
//! # The super-server (paper NICE, 4.3.3)
//! The modules are on the arrows:
//! ```text
//!  file ─config─▶ Config ─inetd─▶ listeners, sessions ─divide─▶ shares ─keeper─▶ set pid:N both R
//!                                             ▲                                    (the daemon)
//!                                             └──────── usage of each session ◀─────────┘
//! ```
//! [`config`] reads the services to serve. `divide` computes the shares without I/O. [`inetd`] is
//! the server. [`manager`] divides a total among processes that it did not start (NICE 3.2).
//! `keeper` sets the shares for the server and for the manager, with requests to the daemon (`set
//! pid:N both R`: R is the limit of process N on both directions together). The public calls fail
//! with a `ConfigError`, an `InetdError` or a `ManagerError`.
#![forbid(unsafe_code)]

pub mod config;
mod daemon;
mod divide;
pub mod inetd;
mod keeper;
pub mod manager;

pub use daemon::RequestError;
