//! Keeps reservations of processor time with the kernel's own schedulers. [`policy`] gives a thread
//! SCHED_DEADLINE; [`groups`] makes control groups with a weight and a quota; [`host`] says what
//! the host's processors can be promised, and who has a part already.
//!
//! # What the kernel does
//! - A thread with SCHED_DEADLINE comes before all others, also before those with a real-time
//!   priority. The kernel stops it at a tick (1 to 10 ms) when its budget is used up, and takes
//!   what was too much from the next periods.
//! - Such a thread cannot make threads or processes, unless they start with SCHED_OTHER. It must be
//!   permitted to run on all processors when it gets the policy; it can be confined by a cpuset
//!   afterwards.
//! - The weight of a group counts beside the groups and threads at the same level only. A quota
//!   bounds ordinary threads of the group, not those with SCHED_DEADLINE.

pub mod groups;
pub mod host;
pub mod policy;

use std::collections::BTreeSet;

/// A set of processors, by number.
pub type ProcessorSet = BTreeSet<u32>;
