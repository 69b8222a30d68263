//! Repair: follows interfaces that appear and disappear, and restores objects that other programs
//! delete.
//!
//! Every change of links and qdiscs that the daemon did not make causes a check. New interfaces get
//! the eBPF programs, returning links get their classes. A missing object is restored, at once the
//! first time, then after longer and longer pauses. After [`TRIES`] repairs within [`WINDOW`] the
//! removal counts as intended: the daemon stops the repairs and reports it.

use netnice_core::units::{Instant, Nanos};

use super::Reconciler;
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::Host;

/// The recent repairs.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    /// Times of the repairs within the last [`WINDOW`].
    recent: Vec<Instant>,
    /// Time of a repair that was postponed.
    due: Option<Instant>,
    /// Why repairs have stopped; `None` while they continue.
    pub given_up: Option<String>,
    /// Number of restored objects since the start of the daemon.
    pub total: u64,
}

/// Whether an object may be restored now.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Now,
    Later,
    Never,
}

impl Repairs {
    /// Starts repairs again, after a change of the desired state.
    pub(crate) fn forgive(&mut self) {
        *self = Repairs {
            total: self.total,
            ..Repairs::default()
        };
    }

    fn judge(&mut self, now: Instant) -> Verdict {
        self.recent.retain(|at| now.since(*at) < WINDOW);
        if self.recent.len() >= TRIES {
            return Verdict::Never;
        }
        let pause = PAUSES[self.recent.len()];
        let allowed = self
            .recent
            .last()
            .map_or(Instant(0), |last| last.after(pause));
        if now < allowed {
            self.due = Some(allowed);
            return Verdict::Later;
        }
        self.due = None;
        self.recent.push(now);
        Verdict::Now
    }
}

impl<H: Host> Reconciler<H> {
    /// Checks the daemon's kernel objects, and restores missing ones. With `heard`, an event of
    /// interfaces has come: checks the interfaces too, and lists all objects again. Otherwise the
    /// check follows a sample.
    pub(crate) fn repair(&mut self, heard: bool, now: Now) {
        if !self.host.is_enforcing() {
            return;
        }
        let faults = match self.host.audit(heard) {
            Ok(faults) => faults,
            Err(denied) => vec![denied.to_string()],
        };
        if faults.is_empty() {
            if self.standing.repairs.given_up.take().is_some() {
                self.journal.note(now, "all is there again");
            }
            if heard || !self.standing.broken.is_empty() {
                self.put_back(now);
            }
            return;
        }
        match self.standing.repairs.judge(now.monotonic) {
            Verdict::Later => {}
            Verdict::Never => {
                if self.standing.repairs.given_up.is_none() {
                    let text = format!(
                        "somebody keeps removing what is netnice's ({}): put back {TRIES} times within {WINDOW}, not \
                         any more; find out who, then change anything with netnice to try again",
                        faults.join("; ")
                    );
                    self.journal.warn(now, text.clone());
                    self.standing.repairs.given_up = Some(text);
                }
            }
            Verdict::Now => {
                for fault in &faults {
                    self.journal.warn(now, format!("{fault}: putting it back"));
                    self.standing.repairs.total += 1;
                }
                self.put_back(now);
            }
        }
    }

    /// True if a postponed repair is due.
    pub(crate) fn repair_is_due(&self, now: Now) -> bool {
        self.standing
            .repairs
            .due
            .is_some_and(|due| due <= now.monotonic)
    }

    /// Makes `kernel` read the present state, and applies the desired state to what came back.
    fn put_back(&mut self, now: Now) {
        if let Err(denied) = self.host.reconcile() {
            tracing::debug!(%denied, "reconciling");
        }
        self.apply_all(now);
    }

    /// Applies the desired state. A link that makes this fail is left out and recorded as broken.
    pub(super) fn apply_all(&mut self, now: Now) {
        let before = std::mem::take(&mut self.standing.broken);
        let wanted = self.standing.wanted(&self.books.ledger);
        let nothing = wanted == netnice_kernel::plan::Desired::default();
        if before.is_empty() && nothing && !self.host.is_enforcing() {
            return;
        }
        let Err(first) = self.host.apply(&wanted) else {
            for name in before.keys() {
                self.journal.note(now, format!("{name} is served again"));
            }
            self.journal.judge(now, NOT_IN_FORCE, Ok::<(), Denied>(()));
            return;
        };
        for link in wanted.links.clone() {
            let mut without = wanted.clone();
            without.links.retain(|other| other.name != link.name);
            if self.host.apply(&without).is_ok() {
                self.break_link(&link.name, &first, before.is_empty(), now);
                return;
            }
        }
        let mut without = wanted.clone();
        without.links.clear();
        let applied = self.host.apply(&without);
        if applied.is_ok() {
            for link in wanted.links {
                self.break_link(&link.name, &first, before.is_empty(), now);
            }
        }
        self.journal.judge(now, NOT_IN_FORCE, applied);
    }

    fn break_link(&mut self, name: &str, why: &Denied, news: bool, now: Now) {
        let text = why.to_string();
        if news {
            self.journal
                .warn(now, format!("link {name} cannot be served: {text}"));
        }
        if let Ok(name) = name.parse() {
            self.standing.broken.insert(name, text);
        }
    }
}

const NOT_IN_FORCE: &str = "what is wanted cannot be put in force";
/// Largest number of repairs within [`WINDOW`].
const TRIES: usize = 3;
/// The pause before each repair.
const PAUSES: [Nanos; TRIES] = [
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
    fn three_tries_with_longer_pauses_and_then_no_more_until_it_was_quiet() {
        let mut repairs = Repairs::default();
        let at = |millis| Instant(0).after(Nanos::from_millis(millis));
        assert_eq!(repairs.judge(at(1_000)), Verdict::Now);
        assert_eq!(repairs.judge(at(1_100)), Verdict::Later);
        assert_eq!(repairs.due, Some(at(1_500)));
        assert_eq!(repairs.judge(at(1_500)), Verdict::Now);
        assert_eq!(repairs.judge(at(3_000)), Verdict::Later);
        assert_eq!(repairs.judge(at(3_500)), Verdict::Now);
        assert_eq!(repairs.judge(at(50_000)), Verdict::Never);
        assert_eq!(
            repairs.judge(at(61_001)),
            Verdict::Now,
            "the first is forgotten"
        );
    }
}
