//! Repair: follows interfaces that appear and disappear, and restores kernel objects of netnice
//! that other programs delete or change.
//!
//! The daemon checks its objects each second, and after each change of interfaces or queueing
//! disciplines that it did not make. New interfaces get the eBPF programs, and links whose
//! interface has returned get their classes. What a check finds missing or changed is restored in
//! one repair: the first one at once, the second not before 500 ms and the third not before 2 s
//! after the repair before it ([`PAUSES`]). After [`MAX_REPAIRS`] repairs (3) within [`WINDOW`]
//! (60 s) the daemon takes the removal as intended, and reports it. It repairs again when the first
//! of the three repairs is 60 s ago, or when a request changes something.
//!
//! If the kernel refuses the classes of a link, the link is left out and recorded as broken
//! ([`super::Deviations::broken`]). No function returns an error: errors go to the journal,
//! except an error of reading the kernel's state again, which is logged at debug level.

use netnice_core::units::{Instant, Nanos};

use super::Reconciler;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;

/// The recent repairs.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    /// Times of the repairs within the last [`WINDOW`].
    recent: Vec<Instant>,
    /// The time from which a postponed repair is allowed.
    due: Option<Instant>,
    /// Why repairs have stopped, as a message; `None` if they have not stopped, or all objects are
    /// in place again.
    pub given_up: Option<String>,
    /// Number of differences from the installed state that were to be repaired since the start of
    /// the daemon.
    pub total: u64,
}

/// Whether an object may be restored now.
#[derive(Debug, PartialEq, Eq)]
enum RepairDecision {
    Now,
    Later,
    Never,
}

impl Repairs {
    /// Forgets the recent repairs, so that the next one is allowed at once. The caller calls it
    /// when a request changes something.
    pub(crate) fn reset(&mut self) {
        *self = Repairs {
            total: self.total,
            ..Repairs::default()
        };
    }

    fn decide(&mut self, now: Instant) -> RepairDecision {
        self.recent.retain(|at| now.since(*at) < WINDOW);
        if self.recent.len() >= MAX_REPAIRS {
            return RepairDecision::Never;
        }
        let pause = PAUSES[self.recent.len()];
        let allowed = self
            .recent
            .last()
            .map_or(Instant(0), |last| last.after(pause));
        if now < allowed {
            self.due = Some(allowed);
            return RepairDecision::Later;
        }
        self.due = None;
        self.recent.push(now);
        RepairDecision::Now
    }
}

impl<H: Host> Reconciler<H> {
    /// Checks the daemon's kernel objects, and restores missing or changed ones. If `link_event` is
    /// true, for example after a change of interfaces, the interfaces are checked too, and all
    /// objects are listed again. Otherwise the check uses the classes that the last reading of the
    /// counters has listed. Errors go to the journal.
    pub(crate) fn repair(&mut self, link_event: bool, now: Now) {
        if !self.host.is_enforcing() {
            return;
        }
        let faults = match self.host.audit(link_event) {
            Ok(faults) => faults,
            Err(error) => vec![error.to_string()],
        };
        if faults.is_empty() {
            if self.deviations.repairs.given_up.take().is_some() {
                self.journal
                    .note(now, "all objects of netnice are in place again");
            }
            if link_event || !self.deviations.broken.is_empty() {
                self.restore(now);
            }
            return;
        }
        match self.deviations.repairs.decide(now.monotonic) {
            RepairDecision::Later => {}
            RepairDecision::Never => {
                if self.deviations.repairs.given_up.is_none() {
                    let text = format!(
                        "another program keeps removing objects of netnice ({}): netnice put them \
                         back {MAX_REPAIRS} times within {WINDOW}, and tries again when that time \
                         is over, and with the next change; find the program that removes them",
                        faults.join("; ")
                    );
                    self.journal.warn(now, text.clone());
                    self.deviations.repairs.given_up = Some(text);
                }
            }
            RepairDecision::Now => {
                for fault in &faults {
                    self.journal.warn(now, format!("{fault}: restoring it"));
                    self.deviations.repairs.total += 1;
                }
                self.restore(now);
            }
        }
    }

    /// True if a postponed repair is due.
    pub(crate) fn repair_is_due(&self, now: Now) -> bool {
        self.deviations
            .repairs
            .due
            .is_some_and(|due| due <= now.monotonic)
    }

    /// Makes `netnice_kernel` read the present state again and repair the differences, and then
    /// applies the desired state.
    fn restore(&mut self, now: Now) {
        if let Err(error) = self.host.reconcile() {
            tracing::debug!(%error, "reconciling");
        }
        self.apply_all(now);
    }

    /// Applies the desired state. A link that makes this fail is left out and recorded as broken;
    /// if no single link does, all links are.
    pub(super) fn apply_all(&mut self, now: Now) {
        let before = std::mem::take(&mut self.deviations.broken);
        let wanted = self.deviations.desired_state(&self.books.ledger);
        let nothing = wanted == netnice_kernel::plan::Desired::default();
        if before.is_empty() && nothing && !self.host.is_enforcing() {
            return;
        }
        let Err(first) = self.host.apply(&wanted) else {
            for name in before.keys() {
                self.journal.note(now, format!("{name} is served again"));
            }
            self.journal
                .log_result(now, NOT_IN_FORCE, Ok::<(), RequestError>(()));
            return;
        };
        for link in wanted.links.clone() {
            let mut without = wanted.clone();
            without.links.retain(|other| other.name != link.name);
            if self.host.apply(&without).is_ok() {
                self.mark_broken(&link.name, &first, before.is_empty(), now);
                return;
            }
        }
        let mut without = wanted.clone();
        without.links.clear();
        let applied = self.host.apply(&without);
        if applied.is_ok() {
            for link in wanted.links {
                self.mark_broken(&link.name, &first, before.is_empty(), now);
            }
        }
        self.journal.log_result(now, NOT_IN_FORCE, applied);
    }

    fn mark_broken(&mut self, name: &str, why: &RequestError, is_new: bool, now: Now) {
        let text = why.to_string();
        if is_new {
            self.journal
                .warn(now, format!("link {name} cannot be served: {text}"));
        }
        if let Ok(name) = name.parse() {
            self.deviations.broken.insert(name, text);
        }
    }
}

const NOT_IN_FORCE: &str = "the desired state cannot be put in force";
/// Largest number of repairs within [`WINDOW`].
const MAX_REPAIRS: usize = 3;
/// The shortest time from one repair to the next, by the number of repairs within [`WINDOW`].
const PAUSES: [Nanos; MAX_REPAIRS] = [
    Nanos::from_secs(0),
    Nanos::from_millis(500),
    Nanos::from_secs(2),
];
/// The period in which repairs are counted.
const WINDOW: Nanos = Nanos::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_repairs_with_growing_pauses_are_allowed_in_a_minute() {
        let mut repairs = Repairs::default();
        let at = |millis| Instant(0).after(Nanos::from_millis(millis));
        assert_eq!(repairs.decide(at(1_000)), RepairDecision::Now);
        assert_eq!(repairs.decide(at(1_100)), RepairDecision::Later);
        assert_eq!(repairs.due, Some(at(1_500)));
        assert_eq!(repairs.decide(at(1_500)), RepairDecision::Now);
        assert_eq!(repairs.decide(at(3_000)), RepairDecision::Later);
        assert_eq!(repairs.decide(at(3_500)), RepairDecision::Now);
        assert_eq!(repairs.decide(at(50_000)), RepairDecision::Never);
        assert_eq!(
            repairs.decide(at(61_001)),
            RepairDecision::Now,
            "the first is forgotten"
        );
    }
}
