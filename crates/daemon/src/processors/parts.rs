//! Parts of a reservation that a program gave threads of its own. Each of these threads has its
//! part exactly, by SCHED_DEADLINE, and the group's other threads share what is left by the group's
//! quota. A part is a time in each period of the reservation, so the parts fit if their times sum
//! to at most the reserved time: SCHED_DEADLINE is bounded by no quota.
//!
//! A part ends when its thread ends, changes its policy or leaves the group, when the reservation
//! ends, and when a change of the reservation leaves no room for it: newest parts first, and all if
//! the period changes or the reservation gets extra.
//!
//! Three rules keep a program from getting more than its reservation, whatever it does:
//!
//! - A thread begins with the whole budget. So the time of a part that has ended is given again one
//!   period later ([`Kept::cooling`]).
//! - The kernel fills the quota of a group anew when the quota is written. So the parts of a target
//!   change at most once in [`PERIODS_OF_CHANGE`] periods, after [`MOST_CHANGES`] at once.
//! - execve(2) in a thread that is not the process's first one gives it the id of the first one,
//!   with its policy. So a part whose thread is gone ends for the first thread too.

use netnice_core::admission::processors::processor_list;
use netnice_core::contract::Slice;
use netnice_core::units::{Instant, Nanos};
use netnice_kernel::processor::ProcessorSet;

use super::exact::{AGAIN_EXACT, LATE, OTHERS, reservation};
use super::kept::Kept;
use super::{Keeper, processes};
use crate::error::RequestError;
use crate::host::processor_time::NotExact;
use crate::host::{ProcessorHost, ProcessorTime};

/// The part of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The thread.
    pub thread: u32,
    /// Its process.
    pub process: u32,
    /// When it started, in clock ticks since boot. The kernel reuses thread ids.
    pub started: u64,
    /// What it has.
    pub slice: Slice,
    /// The affinity that the thread had, if that was changed.
    pub affinity: Option<ProcessorSet>,
}

impl Part {
    /// The budget and the period.
    pub(super) fn budget(&self) -> (Nanos, Nanos) {
        (self.slice.slice(), self.slice.period())
    }
}

impl Kept {
    /// The sum of the parts' times in a period.
    pub(super) fn divided(&self) -> Nanos {
        let times = self.parts.iter().map(|part| part.slice.slice().0);
        Nanos(times.sum())
    }
}

impl Keeper {
    /// The target in whose group a thread is, and all processes there; `None` if it is in none.
    pub(crate) fn group_of_thread<H: ProcessorTime + ProcessorHost>(
        &self,
        host: &mut H,
        thread: u32,
    ) -> Option<(u32, Vec<u32>)> {
        let mut kept = self.kept.iter();
        let (id, kept) = kept.find(|(_, kept)| host.threads(&kept.group).contains(&thread))?;
        Some((*id, processes(host, &kept.group).into_iter().collect()))
    }

    /// Gives a thread of a target's group `time` in each period of the reservation, exactly, in
    /// place of the part that it has. `holder` is the target, for people.
    ///
    /// # Errors
    /// If the time does not fit, the reservation has extra, too many threads have parts or they
    /// changed too often, the thread has a policy of its own, or the kernel refuses. Then all parts
    /// are as before; if the kernel refuses the quota of the others, the thread has none.
    pub(crate) fn give_part<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        (id, holder): (u32, &str),
        thread: u32,
        time: Nanos,
    ) -> Result<(), RequestError> {
        self.end_lost_parts(host, id)?;
        let gone = || RequestError::Failed(format!("thread {thread} has ended"));
        let process = host.process_of(thread).ok_or_else(gone)?;
        let started = host.thread_start(thread).ok_or_else(gone)?;
        let now = self.now;
        let Some(kept) = self.kept.get_mut(&id) else {
            return Ok(());
        };
        kept.cooling.retain(|(_, until)| *until > now);
        let refused = |why: String| {
            RequestError::NotAdmitted(format!("refused: {time} for thread {thread}: {why}"))
        };
        let new = Part {
            thread,
            process,
            started,
            slice: part_of(kept, holder, thread, time, now)?,
            affinity: None,
        };
        check_thread(host, kept, &new).map_err(refused)?;
        self.check_deadlines(host, id, &new).map_err(refused)?;
        let before = self.kept.get(&id).cloned();
        let given = self.replace_part(host, id, &new);
        if given.is_err()
            && let Some(before) = before
        {
            self.restore_part(host, id, &new, &before);
        }
        let applied = self.apply(host, id, false);
        if given.is_ok() && applied.is_err() {
            // The other threads have more than the rest, so the thread has no part.
            let ended = self.end_parts(host, id, |_, part| part.thread == thread);
            self.note(ended);
        }
        given.and(applied)?;
        match host.thread_start(thread) == Some(started) {
            true => Ok(()),
            false => Err(gone()),
        }
    }

    /// Takes the part of a thread back. No effect if it has none.
    ///
    /// # Errors
    /// If the kernel refuses, or the file cannot be written.
    pub(crate) fn take_part<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        id: u32,
        thread: u32,
    ) -> Result<(), RequestError> {
        self.end_parts(host, id, |_, part| part.thread == thread)?;
        self.apply(host, id, false)
    }

    /// Ends the parts of threads that have ended, have another policy, or are not in the group any
    /// more.
    pub(super) fn end_lost_parts<H: ProcessorTime>(
        &mut self,
        host: &mut H,
        id: u32,
    ) -> Result<(), RequestError> {
        let Some(kept) = self.kept.get(&id).filter(|kept| !kept.parts.is_empty()) else {
            return Ok(());
        };
        let present = host.threads(&kept.group);
        self.end_parts(host, id, |host, part| {
            let is_same = host.thread_start(part.thread) == Some(part.started);
            let has_part = host.deadline(part.thread) == Some(part.budget());
            !is_same || !has_part || !present.contains(&part.thread)
        })
    }

    /// Ends the parts for which a reservation has no room after a change.
    pub(super) fn fit_parts<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
    ) -> Result<(), RequestError> {
        let all = self.kept.iter().map(|(id, kept)| (*id, kept.slice));
        for (id, slice) in all.collect::<Vec<(u32, Slice)>>() {
            let mut left = slice.slice().0;
            let mut is_full = slice.extra();
            let before = self.kept.get(&id).map_or(0, |kept| kept.parts.len());
            self.end_parts(host, id, |_, part| {
                let rest = left.checked_sub(part.slice.slice().0);
                is_full |= rest.is_none() || part.slice.period() != slice.period();
                left = rest.unwrap_or(0);
                is_full
            })?;
            let after = self.kept.get(&id).map_or(0, |kept| kept.parts.len());
            if after < before {
                tracing::info!(
                    "{} parts of a reservation ended, which has changed",
                    before - after
                );
                self.apply(host, id, false)?;
            }
        }
        Ok(())
    }

    /// Ends the parts that `ends` selects, which is called for each in order. A thread that lives
    /// gets its former policy. If the kernel refuses that, the part stays.
    pub(super) fn end_parts<H: ProcessorTime>(
        &mut self,
        host: &mut H,
        id: u32,
        mut ends: impl FnMut(&mut H, &Part) -> bool,
    ) -> Result<(), RequestError> {
        let Some(kept) = self.kept.get_mut(&id) else {
            return Ok(());
        };
        let (ending, staying): (Vec<Part>, Vec<Part>) =
            kept.parts.drain(..).partition(|part| ends(host, part));
        kept.parts = staying;
        if ending.is_empty() {
            return Ok(());
        }
        // Also the whole begins with a whole budget.
        kept.group_until = Some(self.now.after(AGAIN_EXACT));
        let mut released = Ok(());
        for part in ending {
            let is_held = kept.deadlines().any(|(thread, _)| thread == part.process);
            let done = match is_held {
                true => release(host, &part),
                false => release(host, &part).and_then(|()| release_successor(host, &part)),
            };
            match done {
                Ok(()) => {
                    let until = self.now.after(part.slice.period());
                    kept.cooling.push((part.slice.slice(), until));
                }
                Err(_) => kept.parts.push(part),
            }
            released = released.and(done);
        }
        self.save()?;
        released
    }

    /// Checks that the kernel would keep the deadlines of a part, and reserves for the drivers.
    /// Fails with the reason.
    fn check_deadlines<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        id: u32,
        new: &Part,
    ) -> Result<(), String> {
        self.reserve_drivers(host)?;
        // The whole reservation of one thread, and the thread's former part, end with the new one.
        let exact = self.kept.get(&id).and_then(|kept| kept.exact.as_ref());
        let ends = [Some(new.thread), exact.map(|exact| exact.thread)]
            .map(|thread| thread.map_or_else(String::new, |thread| thread.to_string()));
        let mut all = self.exact_reservations(host);
        all.retain(|one| !ends.contains(&one.holder));
        all.push(reservation(host, new.thread, new.slice));
        match host.processors().keeps_deadlines(&all) {
            true => Ok(()),
            false => Err(LATE.to_owned()),
        }
    }

    /// Puts a part into force, in place of the one that its thread has, and of the whole
    /// reservation if a thread has that exactly.
    fn replace_part<H: ProcessorTime>(
        &mut self,
        host: &mut H,
        id: u32,
        new: &Part,
    ) -> Result<(), RequestError> {
        let Some(kept) = self.kept.get_mut(&id) else {
            return Ok(());
        };
        let (thread, now) = (new.thread, self.now);
        kept.change_at = kept.change_at.max(now).after(cost_of_change(&kept.slice));
        if let Some(exact) = kept.exact.take()
            && (exact.thread != thread || exact.affinity.is_some())
        {
            kept.group_until = Some(now.after(AGAIN_EXACT));
            host.release(exact.thread, exact.affinity.as_ref())?;
        }
        match kept.parts.iter_mut().find(|part| part.thread == thread) {
            Some(part) => *part = new.clone(),
            None => kept.parts.push(new.clone()),
        }
        let group = kept.group.clone();
        self.save()?;
        let affinity = host
            .reserve(&group, thread, new.slice.slice(), new.slice.period())
            .map_err(|why| not_given(new, why))?;
        let kept = self.kept.get_mut(&id);
        let mut parts = kept.into_iter().flat_map(|kept| &mut kept.parts);
        if let Some(part) = parts.find(|part| part.thread == thread) {
            part.affinity = affinity;
        }
        self.save()
    }

    /// Gives a thread what it had `before` a change that failed.
    fn restore_part<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        id: u32,
        new: &Part,
        before: &Kept,
    ) {
        let Some(kept) = self.kept.get_mut(&id) else {
            return;
        };
        let thread = new.thread;
        let group = kept.group.clone();
        let new = kept.parts.iter().find(|part| part.thread == thread);
        let affinity = new.and_then(|part| part.affinity.clone());
        let former = before.parts.iter().find(|part| part.thread == thread);
        kept.parts.clone_from(&before.parts);
        let restored = match former {
            // The kernel refused the change, which leaves what the thread had.
            Some(part) if host.deadline(thread) == Some(part.budget()) => Ok(()),
            Some(part) => {
                let again = host.reserve(&group, thread, part.slice.slice(), part.slice.period());
                again.map(drop).map_err(|why| not_given(part, why))
            }
            None => host.release(thread, affinity.as_ref()),
        };
        if restored.is_err() {
            kept.parts.retain(|part| part.thread != thread);
        }
        self.note(restored);
        let saved = self.save();
        self.note(saved);
    }
}

/// The slice of a part of `time`, if that fits beside the parts of other threads.
fn part_of(
    kept: &Kept,
    holder: &str,
    thread: u32,
    time: Nanos,
    now: Instant,
) -> Result<Slice, RequestError> {
    let (whole, period) = (kept.slice.slice(), kept.slice.period());
    let refuse = |why: String| {
        Err(RequestError::NotAdmitted(format!(
            "refused: {time} for thread {thread}: {why}"
        )))
    };
    if time < Slice::LEAST_CPU {
        return Err(RequestError::BadUsage(format!(
            "a part of processor time is at least {} in a period, not {time}",
            Slice::LEAST_CPU
        )));
    }
    if kept.slice.extra() {
        return refuse(format!(
            "{holder} has cpu-extra, and only a reservation without extra can be divided"
        ));
    }
    let others = || kept.parts.iter().filter(|part| part.thread != thread);
    if others().count() >= MOST_PARTS {
        return refuse(format!(
            "{MOST_PARTS} threads of {holder} have parts, which is the most"
        ));
    }
    let held: u64 = others().map(|part| part.slice.slice().0).sum();
    let cooling: u64 = kept.cooling.iter().map(|(time, _)| time.0).sum();
    let left = Nanos(whole.0.saturating_sub(held.saturating_add(cooling)));
    if time > left {
        let mut holders: Vec<String> = others()
            .map(|part| format!("thread {} has {}", part.thread, part.slice.slice()))
            .collect();
        if cooling > 0 {
            holders.push(format!(
                "{} are of parts that ended less than {period} ago",
                Nanos(cooling)
            ));
        }
        let of_which = match holders.is_empty() {
            true => String::new(),
            false => format!(", of which {}", holders.join(", ")),
        };
        let fits = match left < Slice::LEAST_CPU {
            true => "nothing would fit".to_owned(),
            false => format!("at most {left} would fit"),
        };
        return refuse(format!(
            "{holder} has cpu {whole}/{period}{of_which}; {fits}"
        ));
    }
    let cost = cost_of_change(&kept.slice);
    let from = Nanos(
        kept.change_at
            .since(now)
            .0
            .saturating_sub(cost.0 * (MOST_CHANGES - 1)),
    );
    if from.0 > 0 {
        return refuse(format!(
            "the parts of {holder} have changed {MOST_CHANGES} times at once, and change once in \
             {cost} then; try again in {from}"
        ));
    }
    Ok(Slice::new(time, period, false)?)
}

/// Checks that a thread can have a part. It has no deadline by another program. If it is confined
/// to some processors, it has no part yet, because only a new part could confine it again, and all
/// such threads of the group may run on the same ones. Fails with the reason.
fn check_thread<H: ProcessorTime + ProcessorHost>(
    host: &mut H,
    kept: &Kept,
    new: &Part,
) -> Result<(), String> {
    let thread = new.thread;
    if kept.deadlines().all(|(held, _)| held != thread)
        && let Some((budget, period)) = host.deadline(thread)
    {
        return Err(format!(
            "it has SCHED_DEADLINE {budget}/{period} by another program"
        ));
    }
    let confined = kept.parts.iter();
    let mut confined = confined.filter_map(|part| Some((part.thread, part.affinity.as_ref()?)));
    let Some((other, processors)) = confined.next() else {
        return Ok(());
    };
    if other == thread || confined.any(|(other, _)| other == thread) {
        return Err(
            "it is confined to some processors, so it must give its part back first".to_owned(),
        );
    }
    let own = host.allowed_processors(&[thread].into());
    let is_free = host.processors().online.is_subset(&own);
    match is_free || own == *processors {
        true => Ok(()),
        false => Err(format!(
            "it may run on the processors {}, and thread {other}, which has a part, on {}: all \
             that are confined need the same",
            processor_list(&own),
            processor_list(processors)
        )),
    }
}

/// Gives a thread with a part its former policy, if it is still the same thread.
fn release<H: ProcessorTime>(host: &mut H, part: &Part) -> Result<(), RequestError> {
    match host.thread_start(part.thread) == Some(part.started) {
        true => host.release(part.thread, part.affinity.as_ref()),
        false => {
            host.forget(part.thread);
            Ok(())
        }
    }
}

/// Takes a part from the first thread of its process, if the thread with the part became that one
/// by execve(2).
fn release_successor<H: ProcessorTime>(host: &mut H, part: &Part) -> Result<(), RequestError> {
    let is_gone = host.thread_start(part.thread).is_none();
    if !is_gone || host.deadline(part.process) != Some(part.budget()) {
        return Ok(());
    }
    host.resume(part.process);
    host.release(part.process, part.affinity.as_ref())
}

/// What a change of the parts costs, as time until the next one.
fn cost_of_change(slice: &Slice) -> Nanos {
    Nanos(slice.period().0.saturating_mul(PERIODS_OF_CHANGE))
}

fn not_given(part: &Part, why: NotExact) -> RequestError {
    let (thread, time) = (part.thread, part.slice.slice());
    let why = match why {
        NotExact::Busy => OTHERS.to_owned(),
        NotExact::Refused(why) => why,
    };
    RequestError::NotAdmitted(format!("refused: {time} for thread {thread}: {why}"))
}

/// The most threads of a target that have parts.
pub(super) const MOST_PARTS: usize = 64;
/// How many times in succession parts of a target can be given.
pub(super) const MOST_CHANGES: u64 = 16;
/// How many periods are between two parts that are given after that.
pub(super) const PERIODS_OF_CHANGE: u64 = 20;
