//! Answers: how a grant becomes kernel state (eBPF, qdiscs, links), and what the kernel counted.
//! May touch: bpf(2), netlink, ioctl(2), /proc, /sys, cgroupfs, pidfds, sockets, seccomp.
//! Must never: decide about a contract, or depend on which users or claims a grant comes from.
//!
//! # How limits are enforced
//! eBPF programs on the interfaces of a network namespace find the target of each packet by its
//! socket. A socket has a *tag*, an entry in its eBPF storage that names its *owner*: a process
//! target, an executable target and a user. A process is a *member* of at most one process target
//! and one executable target; its new sockets and its children inherit that. The packet belongs to
//! the first of these that exists: the process target, the executable target, the innermost target
//! that contains the socket's cgroup, the target of the socket's user.
//!
//! A packet of a target with a limit passes the *cap stage*: it enters a veth pair at the *near
//! end*, whose HTB classes delay it, and the program at the *far end* sends it back to its
//! interface. On a managed link, all sent packets then pass the HTB at the root of the interface,
//! and all received ones the link's *receive stage*, another veth pair.
//!
//! # The modules
//! - [`plan`] computes the HTB classes for a desired state. [`enforce`] makes the kernel's state
//!   equal to the desired state, with `programs` (the eBPF programs) and `tc`, and reads counts.
//! - [`direct`] loads the XDP program of the direct path, [`port`] reserves UDP ports for direct
//!   flows, and [`routes`] finds their next hops.
//! - [`device`], [`nic`], [`ethtool`], [`wireless`] and [`traffic`] read the state of interfaces;
//!   [`process`], [`cgroup`], [`executable`], [`connections`], [`peer`] and [`trust`] that of
//!   processes, sockets and files. [`usage`] counts what every socket sends and receives while that
//!   is asked for.
//! - [`icmp`] measures the delay to a host.
//! - [`processor`] keeps reservations of processor time.
//! - [`confine`] confines a process, and [`probe`] reports what the kernel offers.
//! - `abi` has the keys and values of the eBPF maps; [`netlink`], `bpf`, `rcu` and `retry` are
//!   tools for the others. Most calls fail with [`KernelError`].

mod abi;
mod bpf;
pub mod cgroup;
pub mod confine;
pub mod connections;
pub mod device;
pub mod direct;
pub mod enforce;
mod error;
pub mod ethtool;
pub mod executable;
pub mod icmp;
pub mod icmp_errors;
pub mod netlink;
pub mod nic;
pub mod peer;
pub mod plan;
pub mod port;
pub mod probe;
pub mod process;
pub mod processor;
mod programs;
mod rcu;
mod retry;
pub mod routes;
pub mod stops;
mod tc;
pub mod traffic;
pub mod trust;
pub mod usage;
pub mod wireless;

pub use error::KernelError;
