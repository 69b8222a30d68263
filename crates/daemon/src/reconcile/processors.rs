//! Puts the reservations of processor time of a ledger into force, with
//! [`crate::processors::Keeper`].

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::target::Target;
use netnice_core::units::Nanos;

use super::Reconciler;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::{Host, Members};
use crate::ledger::{Body, HeldTarget, Ledger};
use crate::processors::{Keeper, ProcessorStore, Wanted};

impl<H: Host> Reconciler<H> {
    /// Continues the reservations that an earlier daemon kept. If their file cannot be used, they
    /// are left as they are, which the journal says.
    pub(crate) fn resume_processors(&mut self, store: ProcessorStore, now: Now) {
        match Keeper::resume(store) {
            Ok(keeper) => {
                for thread in keeper.exact_threads() {
                    self.host.resume(thread);
                }
                self.processors = keeper;
            }
            Err(error) => self.journal.warn(now, format!(
                "the reservations of processor time of an earlier daemon are not continued: {error}"
            )),
        }
    }

    /// Makes the reservations in force those of a draft's ledger; `None`: those of the present one.
    ///
    /// # Errors
    /// If one of them cannot be in force that the present ledger does not have. Then those before
    /// are in force.
    pub(super) fn keep_processors(&mut self, draft: Option<&Ledger>) -> Result<(), RequestError> {
        let before = &self.books.ledger;
        let ledger = draft.unwrap_or(before);
        let has_time = ledger.held().any(|held| held.reserved().is_some());
        if !has_time && self.processors.is_idle() {
            return Ok(());
        }
        let members = self.host.members()?;
        let mut wanted = Vec::new();
        for held in ledger.held() {
            let Some(reservation) = held.reservation() else {
                continue;
            };
            let former = before.by_id(held.id).and_then(HeldTarget::reservation);
            let weight = held.in_force().weight();
            wanted.push(Wanted {
                id: held.id,
                all: matches!(held.entry.target, Target::Pid(_)),
                requested: former.map(|former| former.slice) != Some(reservation.slice),
                slice: reservation.slice,
                weight: weight.map_or(100, |weight| u32::from(weight.get())),
                processors: reservation.processors,
                processes: processes_of(&mut self.host, held, ledger, &members),
            });
        }
        self.processors.follow(&mut self.host, &wanted)
    }

    /// Follows what the targets' threads do. The caller calls it at each
    /// [`crate::processors::STEP`] unless no reservation is in force.
    pub(crate) fn step_processors(&mut self, now: Now) {
        self.processors.now = now.monotonic;
        self.processors.step(&mut self.host);
    }

    /// Makes the reservations in force those of the present ledger, after a change that failed.
    pub(super) fn restore_processors(&mut self) {
        if let Err(error) = self.keep_processors(None) {
            tracing::error!(%error, "cannot restore the reservations of processor time");
        }
    }

    /// Reads anew what the processors can be promised, every [`READ_PERIOD`] while a target asks
    /// for processor time: a processor can go offline, and another program can reserve.
    /// Reservations that do not fit any more are taken out of force, and those that fit again are
    /// put into force; the journal says which.
    ///
    /// # Errors
    /// If the kernel refuses the change. Then the reservations stay as they were.
    pub(super) fn read_processors(&mut self, now: Now) -> Result<(), RequestError> {
        let asks = |held: &HeldTarget| held.entry.contract.cpu().is_some();
        let is_due = now.monotonic >= self.processors_due;
        if !is_due || !self.books.ledger.held().any(asks) {
            return Ok(());
        }
        self.processors_due = now.monotonic.after(READ_PERIOD);
        let mut draft = self.unrequested_draft();
        draft.ledger.set_processors(self.host.processors());
        draft.ledger.heal();
        let changes = changes(&self.books.ledger, &draft.ledger);
        if changes.is_empty() {
            let processors = draft.ledger.processors().clone();
            self.books.ledger.set_processors(processors);
            return Ok(());
        }
        self.install(draft)?;
        for (lost, text) in changes {
            match lost {
                true => self.journal.warn(now, text),
                false => self.journal.note(now, text),
            }
        }
        Ok(())
    }

    /// Takes processes in that have come to the targets since the last call.
    pub(super) fn follow_processors(&mut self, now: Now) {
        let followed = self.keep_processors(None);
        self.journal
            .log_result(now, "keeping processor time", followed);
    }
}

/// The processes of a target.
pub(super) fn processes_of<H: Host>(
    host: &mut H,
    held: &HeldTarget,
    ledger: &Ledger,
    members: &Members,
) -> BTreeSet<u32> {
    match &held.body {
        Body::Processes { .. } => {
            let mut inside: BTreeMap<u32, bool> = BTreeMap::new();
            let mut is_inside = |own: u32| {
                *inside
                    .entry(own)
                    .or_insert_with(|| ledger.ancestors_of(Some(own)).contains(&held.id))
            };
            let found = members.iter().filter(|(_, (own, _))| is_inside(*own));
            found.map(|(pid, _)| *pid).collect()
        }
        Body::App(_) => {
            let found = members.iter().filter(|(_, (_, app))| *app == held.id);
            found.map(|(pid, _)| *pid).collect()
        }
        Body::Cgroup(Some(group)) => host.group_processes(&group.path),
        Body::Cgroup(None) => BTreeSet::new(),
        Body::User(uid) => host.processes_of_user(*uid),
    }
}

/// The reservations that are in force in one of two ledgers only: whether each is lost in the
/// second one, and a text.
fn changes(before: &Ledger, after: &Ledger) -> Vec<(bool, String)> {
    let change = |is: &HeldTarget| {
        let was = before.by_id(is.id)?;
        let target = &is.entry.target;
        match (&was.time_refused, &is.time_refused) {
            (None, Some(why)) => Some((
                true,
                format!("{target} loses its processor time until there is room: {why}"),
            )),
            (Some(_), None) => Some((false, format!("{target} has its processor time again"))),
            _ => None,
        }
    };
    after.held().filter_map(change).collect()
}

/// How often the facts about the processors are read while a target asks for processor time. A
/// reading looks at every thread of the machine.
const READ_PERIOD: Nanos = Nanos::from_secs(10);
