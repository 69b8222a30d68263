//! [`Kept`], a reservation of processor time in force, with its group, its thread and its usage.
//! Setting the group fails if the kernel refuses.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::contract::Slice;
use netnice_core::units::{Instant, Nanos};
use netnice_kernel::processor::ProcessorSet;
use netnice_kernel::processor::groups::{GroupUsage, Home};

use super::parts::Part;
use crate::error::RequestError;
use crate::host::ProcessorTime;
use crate::host::processor_time::GroupName;

/// A reservation in force.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// The reserved time.
    pub slice: Slice,
    /// The weight in the division of the rest.
    pub weight: u32,
    /// The processors on which the target may run; empty: all.
    pub processors: ProcessorSet,
    /// The group.
    pub group: GroupName,
    /// Where each process was.
    pub homes: BTreeMap<u32, Home>,
    /// The target's processes that cannot have a reservation.
    pub outside: BTreeSet<u32>,
    /// The thread that has its time exactly.
    pub exact: Option<ExactThread>,
    /// Why there is none.
    pub reason: String,
    /// The parts that the target's program gave threads, oldest first. While there are some, no
    /// thread has the whole time exactly.
    pub parts: Vec<Part>,
    /// The times of parts that have ended, and until when each is not given again.
    pub cooling: Vec<(Nanos, Instant)>,
    /// When the parts may have changed for the last time without delay, as a virtual time of GCRA.
    pub change_at: Instant,
    /// The weight and quota that the group has; `None`: not known.
    pub set: Option<(u32, Option<(Nanos, Nanos)>)>,
    /// Until then the group's way stays, although there is one thread.
    pub group_until: Option<Instant>,
    /// The number of threads.
    pub threads: usize,
    /// What the group has used.
    pub usage: GroupUsage,
    /// How long its threads have waited for processors; `None` before the first step.
    pub waited: Option<Nanos>,
    /// Time that was waited for and not given.
    pub missed: Nanos,
    /// The part of its time that it lacked lately while it waited, negative if it had more.
    pub lacking: f64,
    /// True if it lacks so much that this is shown.
    pub falls_short: bool,
    /// What the control groups beside and around its own leave it, if that is less than its share.
    pub bounded_by: Option<String>,
}

/// A thread with SCHED_DEADLINE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExactThread {
    /// The thread.
    pub thread: u32,
    /// The affinity that it had, if that was changed.
    pub affinity: Option<ProcessorSet>,
}

impl Kept {
    /// A reservation for which nothing is done yet.
    pub(super) fn new(slice: Slice, weight: u32, group: GroupName) -> Kept {
        Kept {
            slice,
            weight,
            processors: ProcessorSet::new(),
            group,
            homes: BTreeMap::new(),
            outside: BTreeSet::new(),
            exact: None,
            reason: String::new(),
            parts: Vec::new(),
            cooling: Vec::new(),
            change_at: Instant(0),
            set: None,
            group_until: None,
            threads: 0,
            usage: GroupUsage::default(),
            waited: None,
            missed: Nanos(0),
            lacking: 0.0,
            falls_short: false,
            bounded_by: None,
        }
    }

    /// The threads with SCHED_DEADLINE, and what each has.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = (u32, Slice)> {
        let whole = self.exact.iter().map(|exact| (exact.thread, self.slice));
        let parts = self.parts.iter().map(|part| (part.thread, part.slice));
        whole.chain(parts)
    }

    /// The reserved part of a processor.
    pub(super) fn share(&self) -> f64 {
        self.slice.slice().0 as f64 / self.slice.period().0 as f64
    }

    /// Sets the group's weight and quota unless it has them.
    pub(super) fn set_group<H: ProcessorTime>(
        &mut self,
        host: &mut H,
        weight: u32,
        quota: Option<(Nanos, Nanos)>,
    ) -> Result<(), RequestError> {
        if self.set != Some((weight, quota)) {
            host.set_group(&self.group, weight, quota)?;
            self.set = Some((weight, quota));
        }
        Ok(())
    }

    /// What the target used since the last call, as a number of processors over `elapsed` ns, and
    /// whether it waited for processors for more than a tenth of that time.
    pub(super) fn measure<H: ProcessorTime>(&mut self, host: &mut H, elapsed: f64) -> (f64, bool) {
        let usage = host.usage(&self.group);
        let mut threads = host.threads(&self.group);
        threads.truncate(MOST_EXAMINED);
        let waited = host.waited(&threads);
        let used = usage.used.0.saturating_sub(self.usage.used.0);
        let before = self.waited.unwrap_or(waited);
        let wait = waited.0.saturating_sub(before.0);
        (self.usage, self.waited) = (usage, Some(waited));
        let promised = elapsed * self.share();
        let lacks = (promised - used as f64).min(wait as f64) - elapsed * TOLERANCE;
        if lacks > 0.0 {
            self.missed = Nanos(self.missed.0.saturating_add(lacks as u64));
        }
        let waits = wait as f64 > elapsed / 10.0;
        self.follow_shortfall(host, (promised - used as f64) / promised, waits);
        (used as f64 / elapsed, waits)
    }

    /// Follows whether the target has its time, over about two seconds. `lacks` is the part of its
    /// time that it lacked in the last step.
    fn follow_shortfall<H: ProcessorTime>(&mut self, host: &mut H, lacks: f64, waits: bool) {
        let lacks = if waits { lacks } else { lacks.min(0.0) };
        self.lacking += (lacks.clamp(-1.0, 1.0) - self.lacking) * NEWEST_PART;
        let fell_short = self.falls_short;
        self.falls_short = self.lacking > if fell_short { LACKS_AGAIN } else { LACKS };
        if self.falls_short && !fell_short {
            self.bounded_by = self.bound(host);
        }
    }

    /// What the control groups beside and around its own leave the target, if that is less than its
    /// share.
    fn bound<H: ProcessorTime>(&self, host: &mut H) -> Option<String> {
        let certain = host.certain_share(&self.group)?;
        let (group, weight, sum) = certain.narrowest;
        let count = match self.processors.len() {
            0 => host.busy().len(),
            count => count,
        };
        let processors = count.min(self.threads).max(1) as f64;
        (self.exact.is_none() && certain.part * processors < self.share()).then(|| {
            format!(
                "the control group {group} has {weight} of the weights {sum} at its level; give it \
                 more (CPUWeight= of its unit)"
            )
        })
    }

    /// Why the reservation is not kept; `None` while it is.
    pub(super) fn shortfall(&self) -> Option<String> {
        let why = self.bounded_by.as_deref();
        self.falls_short.then(|| {
            format!(
                "its processor time is not kept: it waits, and lately had {:.0} % less than {}/{}: {}",
                self.lacking * 100.0,
                self.slice.slice(),
                self.slice.period(),
                why.unwrap_or("other programs have a higher weight or priority")
            )
        })
    }
}

/// The most threads of a target whose waiting is examined in a step.
const MOST_EXAMINED: usize = 256;
/// The part of the newest step in [`Kept::lacking`].
const NEWEST_PART: f64 = 0.05;
/// From which [`Kept::lacking`] on a reservation counts as not kept, and to which it does.
const LACKS: f64 = 0.15;
const LACKS_AGAIN: f64 = 0.05;
/// What a target may lack of its slice in a step without counting as missed, as a part of a
/// processor: the kernel's accounting is as coarse as a tick.
const TOLERANCE: f64 = 0.05;
