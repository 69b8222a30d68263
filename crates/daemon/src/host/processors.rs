//! [`ProcessorHost`]: what the processors of the machine can be promised, and where processes may
//! run. No call fails: what cannot be read counts as absent.

use std::collections::BTreeSet;

use netnice_core::admission::processors::{ProcessorSet, Processors};

/// The processors of the machine.
pub(crate) trait ProcessorHost {
    /// The processors that are online, what the kernel admits of each, and the reservations of
    /// other programs: of all threads with SCHED_DEADLINE that did not get it from this daemon.
    fn processors(&mut self) -> Processors;
    /// The processors on which at least one of these processes may run; empty if none lives.
    fn allowed_processors(&mut self, pids: &BTreeSet<u32>) -> ProcessorSet;
    /// The processes in a control group and in those below it; none if it does not exist.
    fn group_processes(&mut self, path: &str) -> BTreeSet<u32>;
}
