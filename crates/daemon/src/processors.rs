//! Keeps reservations of processor time in force ([`Keeper`]).
//!
//! A reservation is kept in one of two ways ([`Way`]), and changes between them as threads come and
//! go:
//!
//! ```text
//!                 one thread, no extra, the kernel admits it
//!            ┌───────────────────────────────────────────────> exact: SCHED_DEADLINE
//!   group <──┤
//!            └── a second thread, or the kernel refuses <────┘
//! ```
//!
//! The target's processes are in a control group of netnice's own in both ways, so what they start
//! is in it from its first moment. Without extra the group has the highest weight and a quota: it
//! has its slice whoever else is busy, and no more. With extra it has no quota, and a weight that
//! follows what else is busy ([`weights`]). A step every 100 ms follows threads and weights.
//!
//! A program can give threads of its own a part of its target's time ([`parts`]): each of them has
//! its part exactly, and the group's quota is what is left.
//!
//! SCHED_DEADLINE comes before the real-time priority of drivers. So while a target has its time
//! exactly, the packet thread of each driver has a reservation too ([`drivers`]).
//!
//! Everything is written to a file before it is done ([`saved`]), so the next daemon continues, and
//! gives each process back to the groups from which it came.
//!
//! [`Keeper::follow`] fails if a process cannot have a reservation or the kernel refuses; then what
//! was in force before is in force again. Failures of later steps are logged.

mod drivers;
mod exact;
mod groups;
mod kept;
mod parts;
mod quota;
mod saved;
#[cfg(test)]
mod tests;
mod weights;

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::contract::Slice;
use netnice_core::units::{Instant, Nanos};
use netnice_kernel::processor::ProcessorSet;

pub(crate) use saved::ProcessorStore;

use crate::error::RequestError;
use crate::host::processor_time::GroupName;
use crate::host::{ProcessorHost, ProcessorTime};
pub(crate) use drivers::DriverThread;
use drivers::KeptDriver;
use kept::Kept;
use quota::quota;
use weights::{Step, Total, Weights};

/// A reservation that shall be in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The target's id.
    pub id: u32,
    /// The reserved time.
    pub slice: Slice,
    /// The target's weight in the division of the rest, 1 to 1,000.
    pub weight: u32,
    /// The processors on which the target may run; empty: all.
    pub processors: ProcessorSet,
    /// The target's processes.
    pub processes: BTreeSet<u32>,
    /// True if the reservation is refused if one of them cannot have it, as of a process that was
    /// named itself. Of other targets such a process is left out, so no user can keep root from
    /// reserving for a unit.
    pub all: bool,
    /// True if the change in progress asks for the reservation. Others are kept as well as it goes.
    pub requested: bool,
}

/// The way in which a reservation is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By SCHED_DEADLINE: the slice by the end of each period.
    Exact,
    /// By a control group: the share of the slice over a second.
    Group,
}

/// How a reservation is kept, for people and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessorStatus {
    /// The way.
    pub way: Way,
    /// Why it is this way.
    pub reason: String,
    /// The number of threads.
    pub threads: usize,
    /// Processor time used since the reservation began.
    pub used: Nanos,
    /// Periods of the group's quota in which it was used up.
    pub exhausted: u64,
    /// Periods' worth of time that threads waited for and did not get.
    pub missed: u64,
    /// The threads to which the target's program gave a part, and the time of each in a period.
    pub parts: Vec<(u32, Nanos)>,
    /// Why the reservation is not kept; `None` while it is.
    pub shortfall: Option<String>,
}

/// The reservations in force.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    kept: BTreeMap<u32, Kept>,
    /// The weights of targets with extra, by the processors on which they may run.
    weights: BTreeMap<ProcessorSet, Weights>,
    /// The drivers' packet threads, with what each shall have while a target has its time exactly.
    drivers: Vec<DriverThread>,
    /// What they have, by thread.
    kept_drivers: BTreeMap<u32, KeptDriver>,
    /// Control groups of others that pass the controller `cpu` on for the reservations.
    passing_cpu: BTreeSet<String>,
    store: Option<ProcessorStore>,
    /// When the last step was, and how long each processor had been busy by then.
    last: Option<(Instant, BTreeMap<u32, Nanos>)>,
    /// The present time. The caller sets it before each call.
    pub now: Instant,
    /// The last failure that was logged: a lasting one is logged once.
    failure: Option<String>,
}

impl Keeper {
    /// A keeper that continues what an earlier daemon has written to `store`.
    pub(crate) fn resume(store: ProcessorStore) -> Result<Keeper, RequestError> {
        let saved = store.load()?;
        Ok(Keeper {
            kept: saved.kept,
            kept_drivers: saved.drivers,
            passing_cpu: saved.passing_cpu,
            store: Some(store),
            ..Keeper::default()
        })
    }

    /// True if no reservation is in force: then [`Keeper::step`] is not needed.
    pub(crate) fn is_idle(&self) -> bool {
        self.kept.is_empty() && self.kept_drivers.is_empty()
    }

    /// The threads with SCHED_DEADLINE, those of drivers included.
    pub(crate) fn exact_threads(&self) -> impl Iterator<Item = u32> {
        let exact = self.kept.values().flat_map(Kept::deadlines);
        let drivers = self.kept_drivers.keys().copied();
        exact.map(|(thread, _)| thread).chain(drivers)
    }

    /// When the usage of all reservations was last read; `None` if none is in force.
    pub(crate) fn measured_at(&self) -> Option<Instant> {
        let (at, _) = self.last.as_ref()?;
        (!self.kept.is_empty()).then_some(*at)
    }

    /// The status of a target's reservation; `None` if it has none in force.
    pub(crate) fn status(&self, id: u32) -> Option<ProcessorStatus> {
        let kept = self.kept.get(&id)?;
        let period = kept.slice.slice().0.max(1);
        Some(ProcessorStatus {
            way: match kept.exact {
                Some(_) => Way::Exact,
                None => Way::Group,
            },
            reason: kept.reason.clone(),
            threads: kept.threads,
            used: kept.usage.used,
            exhausted: kept.usage.exhausted,
            missed: kept.missed.0 / period,
            parts: kept
                .parts
                .iter()
                .map(|part| (part.thread, part.slice.slice()))
                .collect(),
            shortfall: kept.shortfall(),
        })
    }

    /// Puts exactly the wanted reservations into force.
    ///
    /// # Errors
    /// If a requested one cannot be. Then those before are in force again. A failure of another one
    /// is logged.
    pub(crate) fn follow<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        wanted: &[Wanted],
    ) -> Result<(), RequestError> {
        let mut begun = Vec::new();
        let before = self.kept.clone();
        for one in wanted {
            let kept = self.keep(host, one);
            let is_new = !before.contains_key(&one.id);
            match kept {
                Ok(()) if is_new => begun.push(one.id),
                Ok(()) => {}
                Err(error) if one.requested => {
                    begun.extend(is_new.then_some(one.id));
                    for id in begun {
                        let ended = self.end(host, id);
                        self.note(ended);
                    }
                    self.restore_slices(host, &before);
                    return Err(error);
                }
                failed => {
                    self.note(failed);
                    if is_new {
                        let ended = self.end(host, one.id);
                        self.note(ended);
                    }
                }
            }
        }
        let is_wanted = |id: &u32| wanted.iter().any(|one| one.id == *id);
        let ended = self.kept.keys().filter(|id| !is_wanted(id));
        for id in ended.copied().collect::<Vec<u32>>() {
            let ended = self.end(host, id);
            self.note(ended);
        }
        let fitted = self.fit_parts(host);
        self.note(fitted);
        let settled = self.settle_drivers(host);
        self.note(settled);
        Ok(())
    }

    /// Gives the reservations that were in force before the slices that they had.
    fn restore_slices<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        before: &BTreeMap<u32, Kept>,
    ) {
        for (id, was) in before {
            let Some(kept) = self.kept.get_mut(id) else {
                continue;
            };
            if (kept.slice, kept.weight) != (was.slice, was.weight) {
                (kept.slice, kept.weight) = (was.slice, was.weight);
                let applied = self.apply(host, *id, true);
                self.note(applied);
            }
        }
    }

    /// Puts one reservation into force, or changes it.
    fn keep<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        wanted: &Wanted,
    ) -> Result<(), RequestError> {
        quota(&wanted.slice).map_err(RequestError::BadUsage)?;
        let id = wanted.id;
        let is_new = !self.kept.contains_key(&id);
        let changed = match self.kept.get_mut(&id) {
            Some(kept) => {
                let changed = (kept.slice, kept.weight) != (wanted.slice, wanted.weight);
                (kept.slice, kept.weight) = (wanted.slice, wanted.weight);
                kept.processors.clone_from(&wanted.processors);
                changed
            }
            None => {
                // The reservation of a name or a unit without processes begins with them.
                let Some(first) = wanted.processes.first() else {
                    return Ok(());
                };
                let group = GroupName {
                    name: id.to_string(),
                    home: host.home(*first)?,
                };
                let kept = Kept {
                    processors: wanted.processors.clone(),
                    ..Kept::new(wanted.slice, wanted.weight, group)
                };
                self.kept.insert(id, kept);
                self.save()?;
                true
            }
        };
        if !wanted.processes.is_empty() {
            self.open_group(host, wanted)?;
            self.take(host, wanted, is_new)?;
        }
        self.apply(host, id, changed)
    }

    /// Moves the target's processes into its group. A process that cannot have a reservation is
    /// left out, or fails the call if the reservation is new and [`Wanted::all`].
    fn take<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        wanted: &Wanted,
        is_new: bool,
    ) -> Result<(), RequestError> {
        let Some(kept) = self.kept.get_mut(&wanted.id) else {
            return Ok(());
        };
        let present = processes(host, &kept.group);
        kept.homes.retain(|pid, _| present.contains(pid));
        kept.outside.retain(|pid| wanted.processes.contains(pid));
        let missing: Vec<u32> = wanted.processes.difference(&present).copied().collect();
        let mut coming = Vec::new();
        for pid in missing {
            match host.check_process(&kept.group, pid) {
                Ok(()) => coming.push(pid),
                Err(error) if is_new && wanted.all => return Err(error),
                Err(error) => {
                    if kept.outside.insert(pid) {
                        tracing::warn!(%error, "a process is outside the reservation of its target");
                    }
                }
            }
        }
        if coming.is_empty() {
            return Ok(());
        }
        for pid in &coming {
            // A process that has ended meanwhile has no home.
            if let Ok(home) = host.home(*pid) {
                kept.homes.insert(*pid, home);
            }
        }
        let group = kept.group.clone();
        self.save()?;
        for pid in coming {
            host.take(&group, pid)?;
        }
        Ok(())
    }

    /// Follows threads, usage and weights. The caller calls it every 100 ms unless
    /// [`Keeper::is_idle`].
    pub(crate) fn step<H: ProcessorTime + ProcessorHost>(&mut self, host: &mut H) {
        let now = self.now;
        let busy = host.busy();
        let last = self.last.replace((now, busy.clone()));
        for id in self.kept.keys().copied().collect::<Vec<u32>>() {
            let applied = self.apply(host, id, false);
            self.note(applied);
        }
        let settled = self.settle_drivers(host);
        self.note(settled);
        let Some((then, before)) = last else {
            return;
        };
        let elapsed = now.since(then).0 as f64;
        if elapsed <= 0.0 {
            return;
        }
        let mut used = BTreeMap::new();
        for (id, kept) in &mut self.kept {
            used.insert(*id, kept.measure(host, elapsed));
        }
        let mut parts = busy;
        for (processor, time) in &mut parts {
            time.0 -= before
                .get(processor)
                .map_or(time.0, |before| before.0.min(time.0));
        }
        let sets = self.kept.values().filter(|kept| kept.slice.extra());
        let sets: BTreeSet<ProcessorSet> = sets.map(|kept| kept.processors.clone()).collect();
        self.weights.retain(|set, _| sets.contains(set));
        for set in sets {
            self.divide(host, &set, &parts, (&used, elapsed));
        }
    }

    /// Divides what is not reserved of a set of processors among the targets with extra there, by
    /// what each processor and each target did in the last `elapsed` ns.
    fn divide<H: ProcessorTime>(
        &mut self,
        host: &mut H,
        set: &ProcessorSet,
        busy: &BTreeMap<u32, Nanos>,
        (used, elapsed): (&BTreeMap<u32, (f64, bool)>, f64),
    ) {
        let is_here = |processor: &u32| set.is_empty() || set.contains(processor);
        let here = busy.iter().filter(|(processor, _)| is_here(processor));
        let (count, sum) = here.fold((0, 0), |(count, sum), (_, time)| (count + 1, sum + time.0));
        let mut total = Total {
            processors: f64::from(count.max(1)),
            reserved: 0.0,
            others: sum as f64 / elapsed,
        };
        let mut steps = Vec::new();
        for (id, kept) in &self.kept {
            let stays = !kept.processors.is_empty() && kept.processors.iter().all(is_here);
            if !stays && kept.processors != *set {
                continue;
            }
            let (used, waited) = used.get(id).copied().unwrap_or((0.0, false));
            total.reserved += kept.share();
            total.others -= used;
            if kept.slice.extra() && kept.processors == *set {
                steps.push(Step {
                    id: *id,
                    reserved: kept.share(),
                    weight: kept.weight,
                    used,
                    waited,
                });
            }
        }
        total.others = total.others.max(0.0);
        let weights = self.weights.entry(set.clone()).or_default();
        for (id, weight) in weights.advance(&steps, total) {
            let kept = self.kept.get_mut(&id);
            if let Some(kept) = kept.filter(|kept| kept.threads > 0) {
                let set = kept.set_group(host, weight, None);
                self.note(set);
            }
        }
    }

    /// Ends a reservation: gives the threads their policies and the processes their groups again.
    fn end<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        id: u32,
    ) -> Result<(), RequestError> {
        self.end_parts(host, id, |_, _| true)?;
        let Some(kept) = self.kept.get(&id) else {
            return Ok(());
        };
        if let Some(exact) = &kept.exact {
            host.release(exact.thread, exact.affinity.as_ref())?;
        }
        // Processes can start others while they are moved.
        for _ in 0..MOST_ROUNDS {
            let present = processes(host, &kept.group);
            if present.is_empty() {
                break;
            }
            for pid in present {
                let home = kept.homes.get(&pid).unwrap_or(&kept.group.home);
                host.give_back(&kept.group, pid, home)?;
            }
        }
        host.remove_group(&kept.group)?;
        self.kept.remove(&id);
        self.restore_passing(host);
        self.save()
    }

    /// Logs a failure, unless the last one was the same.
    fn note(&mut self, result: Result<(), RequestError>) {
        let Err(error) = result else {
            return;
        };
        let text = error.to_string();
        if self.failure.as_ref() != Some(&text) {
            tracing::warn!(error = text, "a reservation of processor time is not kept");
            self.failure = Some(text);
        }
    }

    fn save(&self) -> Result<(), RequestError> {
        match &self.store {
            Some(store) => store.write(&self.kept, &self.kept_drivers, &self.passing_cpu),
            None => Ok(()),
        }
    }
}

/// The processes in a group.
fn processes<H: ProcessorTime + ProcessorHost>(host: &mut H, group: &GroupName) -> BTreeSet<u32> {
    let threads = host.threads(group);
    let processes = threads
        .into_iter()
        .filter_map(|thread| host.process_of(thread));
    processes.collect()
}

/// How often [`Keeper::step`] is called.
pub(crate) const STEP: Nanos = Nanos::from_millis(100);
/// How often the processes of a group are moved that is to end.
const MOST_ROUNDS: usize = 100;
