//! Selects the way in which a reservation is kept, and sets it ([`Keeper::apply`]).

use std::collections::BTreeSet;

use netnice_core::admission::processors::Reservation;
use netnice_core::contract::Slice;
use netnice_core::units::Nanos;
use netnice_kernel::processor::groups::MOST_WEIGHT;

use super::Keeper;
use super::kept::{ExactThread, Kept};
use super::quota::{LEAST_QUOTA, quota, quota_of_rest};
use crate::error::RequestError;
use crate::host::processor_time::NotExact;
use crate::host::{ProcessorHost, ProcessorTime};

impl Keeper {
    /// Sets the way, weight and quota of a reservation as its threads are now. `changed`: its slice
    /// has changed. A thread that cannot have its time exactly has it by the group, for a reason
    /// that [`Keeper::status`] has.
    ///
    /// # Errors
    /// If the kernel refuses to set the group, or to give a thread its former policy.
    pub(super) fn apply<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        id: u32,
        changed: bool,
    ) -> Result<(), RequestError> {
        let now = self.now;
        self.end_lost_parts(host, id)?;
        let Some(kept) = self.kept.get_mut(&id) else {
            return Ok(());
        };
        let threads = host.threads(&kept.group);
        kept.threads = threads.len();
        let only = match threads[..] {
            [one] if !kept.slice.extra() && kept.parts.is_empty() => Some(one),
            _ => None,
        };
        let before = kept.exact.clone();
        let is_only = before
            .as_ref()
            .is_some_and(|exact| only == Some(exact.thread));
        // A thread can change its own policy, or become another one by execve(2).
        let goes_on = is_only && only.is_some_and(|thread| host.deadline(thread).is_some());
        if let Some(exact) = kept.exact.take_if(|_| !goes_on || changed) {
            host.release(exact.thread, exact.affinity.as_ref())?;
            host.inherit_nice(exact.thread, &threads)?;
            if !goes_on {
                kept.group_until = Some(now.after(AGAIN_EXACT));
            }
        }
        let waits = kept.group_until.is_some_and(|until| now < until);
        match only {
            Some(thread) if kept.exact.is_none() && (!waits || goes_on) => {
                let reserved = self.reserve_exactly(host, id, thread);
                if let (Err(why), Some(kept)) = (reserved, self.kept.get_mut(&id)) {
                    kept.group_until = Some(now.after(AGAIN_EXACT));
                    kept.reason = why;
                }
            }
            Some(_) => {}
            None => {
                kept.reason = match (kept.slice.extra(), kept.threads, kept.parts.len()) {
                    (true, ..) => "it has extra".to_owned(),
                    (_, 0, _) => "it has no threads now".to_owned(),
                    (_, threads, 0) => format!("it has {threads} threads"),
                    (_, threads, parts) => format!(
                        "its program gave a part of the time to {parts} of its threads ({threads})"
                    ),
                };
            }
        }
        let Some(kept) = self.kept.get_mut(&id) else {
            return Ok(());
        };
        if kept.threads == 0 {
            // A service manager may remove the group with the one around it.
            kept.set = None;
        } else {
            let (weight, bound) = weight_and_quota(kept)?;
            kept.set_group(host, weight, bound)?;
        }
        match before == kept.exact {
            true => Ok(()),
            false => self.save(),
        }
    }

    /// Gives the only thread of a target its time exactly. Fails with the reason, for people.
    fn reserve_exactly<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        id: u32,
        thread: u32,
    ) -> Result<(), String> {
        let Some(slice) = self.kept.get(&id).map(|kept| kept.slice) else {
            return Ok(());
        };
        self.reserve_drivers(host)?;
        let mut all = self.exact_reservations(host);
        all.push(reservation(host, thread, slice));
        if !host.processors().keeps_deadlines(&all) {
            return Err(LATE.to_owned());
        }
        let Some(kept) = self.kept.get_mut(&id) else {
            return Ok(());
        };
        match host.reserve(&kept.group, thread, slice.slice(), slice.period()) {
            Ok(affinity) => {
                kept.exact = Some(ExactThread { thread, affinity });
                kept.reason = "it has one thread, and no extra".to_owned();
                Ok(())
            }
            Err(NotExact::Busy) => Err(OTHERS.to_owned()),
            Err(NotExact::Refused(why)) => Err(why),
        }
    }

    /// The reservations by SCHED_DEADLINE, those of drivers included.
    pub(super) fn exact_reservations<H: ProcessorHost>(&self, host: &mut H) -> Vec<Reservation> {
        let exact = self.kept.values().flat_map(Kept::deadlines);
        let drivers = self
            .kept_drivers
            .iter()
            .map(|(thread, one)| (*thread, one.slice));
        let all: Vec<(u32, Slice)> = exact.chain(drivers).collect();
        all.into_iter()
            .map(|(thread, slice)| reservation(host, thread, slice))
            .collect()
    }
}

/// The weight of a group, and its quota.
fn weight_and_quota(kept: &Kept) -> Result<(u32, Option<(Nanos, Nanos)>), RequestError> {
    Ok(match (&kept.exact, kept.slice.extra(), kept.set) {
        (Some(_), ..) => (MOST_WEIGHT, Some(LEAST_QUOTA)),
        (None, true, Some((weight, None))) => (weight, None),
        (None, true, _) => (MOST_WEIGHT, None),
        (None, false, _) if kept.parts.is_empty() => {
            let bound = quota(&kept.slice).map_err(RequestError::BadUsage)?;
            (MOST_WEIGHT, Some(bound))
        }
        (None, false, _) => (MOST_WEIGHT, Some(quota_of_rest(kept.slice, kept.divided()))),
    })
}

/// A slice of a thread as a reservation on the processors on which the thread may run.
pub(super) fn reservation<H: ProcessorHost>(
    host: &mut H,
    thread: u32,
    slice: Slice,
) -> Reservation {
    Reservation {
        holder: thread.to_string(),
        slice,
        processors: host.allowed_processors(&BTreeSet::from([thread])),
    }
}

/// How long a target that had several threads has one thread before that gets its time exactly.
pub(super) const AGAIN_EXACT: Nanos = Nanos::from_secs(1);
/// Why a thread does not get SCHED_DEADLINE that the kernel would admit.
pub(super) const LATE: &str =
    "beside the other reservations of SCHED_DEADLINE its deadlines would not be kept";
/// Why a thread does not get SCHED_DEADLINE that the kernel does not admit.
pub(super) const OTHERS: &str =
    "the kernel admits no more for SCHED_DEADLINE: somebody else has a reservation";
