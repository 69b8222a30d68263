//! Answers: how a grant becomes kernel state (eBPF, qdiscs, links), and what the kernel counted.
//! May touch: bpf(2), netlink, tc, /proc, /sys, cgroupfs, pidfds. No other crate enforces limits.
//! Must never: decide about a contract, or keep a ledger of its own beside the kernel's state.

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
pub mod netlink;
pub mod nic;
pub mod peer;
pub mod plan;
pub mod port;
pub mod probe;
pub mod process;
mod programs;
mod rcu;
mod retry;
pub mod routes;
mod tc;
pub mod traffic;
pub mod trust;

pub use error::KernelError;
