//! Keeps traffic quotas. Before a target refers to a quota, the quota's bytes are written to the
//! kernel. Each second the module reads how many bytes have passed, begins new periods, puts `then`
//! rates into force and out of force, and writes the usage to its file. Errors go to the journal.
//!
//! The file is written when a quota comes, goes, is spent or begins a new period, and else at most
//! every [`WRITE_TIME`] (10 s) while something passes. So after a power cut, at most the bytes of
//! the last 11 s are not counted. If the daemon is killed, no byte is lost: the kernel has the
//! counts.

use netnice_core::units::{Instant, Nanos};

use super::{Draft, Reconciler};
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::journal::EventKind;
use crate::ledger::Ledger;
use crate::peer::POLICY;
use crate::schedule;
use crate::state::{UsageBook, UsageStore};
use crate::user_names::user_name;

/// The file of the usage, and what was last written to it.
#[derive(Default)]
pub(crate) struct UsageWriter {
    /// The file; `None`: nothing is written.
    pub store: Option<UsageStore>,
    written: UsageBook,
    at: Instant,
    /// The wall clock at the last event, in nanoseconds since 1970.
    wall_ns: u64,
}

impl<H: Host> Reconciler<H> {
    /// Notes the time of an event, for the periods of quotas that it makes.
    pub(crate) fn set_time(&mut self, now: Now) {
        self.usage_writer.wall_ns = now.wall_ns;
        self.processors.now = now.monotonic;
    }

    /// Reads the usage that an earlier daemon has written. Returns a warning if it is lost.
    pub(super) fn load_usage(&mut self) -> Option<String> {
        let store = self.usage_writer.store.as_ref()?;
        match store.load() {
            Ok(book) => {
                self.usage_writer.written = book.clone();
                self.books.usage = book;
                None
            }
            Err(why) => Some(why),
        }
    }

    /// Takes over the kernel's counts for the quotas of the ledger that an earlier daemon has left.
    /// Quotas that are spent, and a failure, are logged.
    pub(super) fn adopt_usage(&mut self, now: Now) {
        let before = self.books.ledger.clone();
        let adopted = self.read_left_usage(now);
        for (user, text) in changes(&before, &self.books.ledger, &self.books.usage) {
            self.journal.log(now, user, EventKind::Done, text);
        }
        self.journal
            .log_result(now, "taking over the traffic quotas", adopted);
    }

    fn read_left_usage(&mut self, now: Now) -> Result<(), RequestError> {
        let ledger = &mut self.books.ledger;
        let usage = &mut self.books.usage;
        usage.follow(ledger, now.wall_ns, false, true)?;
        if usage.is_empty() {
            return Ok(());
        }
        usage.read(&self.host.quotas()?);
        usage.advance(now.wall_ns);
        usage.follow(ledger, now.wall_ns, false, true)?;
        self.host.set_quotas(&usage.entries(None))
    }

    /// The usage after a draft, with the draft's quotas set. The kernel gets the new quotas, before
    /// any target names them.
    ///
    /// # Errors
    /// If a bound is exceeded, or the kernel's maps cannot be read or written.
    pub(super) fn prepare_usage(&mut self, draft: &mut Draft) -> Result<UsageBook, RequestError> {
        self.read_usage()?;
        let mut usage = self.books.usage.clone();
        let (requested, wall_ns) = (!draft.unrequested, self.usage_writer.wall_ns);
        usage.follow(&mut draft.ledger, wall_ns, requested, false)?;
        if usage.is_empty() {
            return Ok(usage);
        }
        // The kernel may have counts of a quota whose record the file had lost.
        let states = self.host.quotas()?;
        usage.read(&states);
        usage.follow(&mut draft.ledger, wall_ns, requested, false)?;
        let entries = usage.entries(Some(&self.books.usage));
        self.host.set_quotas(&entries)?;
        Ok(usage)
    }

    /// Checks that the quotas of a draft are within their bounds.
    ///
    /// # Errors
    /// If a quota exceeds its bound.
    pub(crate) fn check_usage(&self, draft: &Draft) -> Result<(), RequestError> {
        let mut usage = self.books.usage.clone();
        let mut ledger = draft.ledger.clone();
        usage.follow(&mut ledger, self.usage_writer.wall_ns, true, false)
    }

    /// Takes over the usage of a draft that is installed, or gives the kernel the quotas of the
    /// present books again. A failure of the kernel is logged.
    pub(super) fn settle_usage(&mut self, installed: Option<UsageBook>) {
        if self.books.usage.is_empty() && installed.as_ref().is_none_or(UsageBook::is_empty) {
            return;
        }
        if let Some(usage) = installed {
            self.books.usage = usage;
        }
        let read = self.read_usage();
        let set = read.and_then(|()| self.host.set_quotas(&self.books.usage.entries(None)));
        match set {
            Ok(()) => self.books.usage.installed(),
            Err(error) => tracing::warn!(%error, "cannot write the traffic quotas"),
        }
    }

    /// Forgets the usage of quotas that no claim asks for, after root has cleared everything.
    pub(crate) fn forget_usage(&mut self, now: Now) {
        self.books.usage.forget_unclaimed();
        self.write_usage(now, true);
    }

    /// Reads what has passed.
    ///
    /// # Errors
    /// If the kernel's maps cannot be read.
    pub(crate) fn read_usage(&mut self) -> Result<(), RequestError> {
        if !self.books.usage.is_empty() {
            let states = self.host.quotas()?;
            self.books.usage.read(&states);
        }
        Ok(())
    }

    /// Reads what has passed, begins new periods, and puts `then` rates into force and out of
    /// force. The caller calls it each second. What has changed goes to the journal.
    ///
    /// # Errors
    /// If the kernel fails. Then the next call tries again.
    pub(super) fn follow_quotas(&mut self, now: Now) -> Result<(), RequestError> {
        self.set_time(now);
        if self.books.usage.is_empty() && self.usage_writer.written.is_empty() {
            return Ok(());
        }
        self.read_usage()?;
        let moved = self.books.usage.advance(now.wall_ns);
        if moved {
            let entries = self.books.usage.entries(None);
            self.host.set_quotas(&entries)?;
        }
        let host = &mut self.host;
        self.books.usage.drop_unused(now.wall_ns, |pid, started| {
            let living = host.process(pid);
            living.is_some_and(|process| process.root.started == started)
        });
        let mut news = Vec::new();
        if self.books.usage.has_news(&self.books.ledger) {
            let mut draft = self.unrequested_draft();
            let mut usage = self.books.usage.clone();
            usage.follow(&mut draft.ledger, now.wall_ns, false, true)?;
            news = changes(&self.books.ledger, &draft.ledger, &usage);
            self.install(draft)?;
        }
        for (user, text) in &news {
            self.journal.log(now, *user, EventKind::Done, text.clone());
        }
        self.write_usage(now, moved || !news.is_empty());
        Ok(())
    }

    /// Writes the usage to its file if it has changed and `at_once` or the last time was long ago.
    /// A failure is logged.
    pub(crate) fn write_usage(&mut self, now: Now, at_once: bool) {
        let writer = &mut self.usage_writer;
        let Some(store) = &writer.store else {
            return;
        };
        let same_records = self.books.usage.has_records_of(&writer.written);
        let is_due = now.monotonic.since(writer.at) >= WRITE_TIME;
        if !(at_once || is_due || !same_records) || self.books.usage == writer.written {
            return;
        }
        let saved = store.save(&self.books.usage);
        if saved.is_ok() {
            writer.written = self.books.usage.clone();
        }
        writer.at = now.monotonic;
        self.journal
            .log_result(now, "writing the usage of quotas", saved);
    }
}

/// What differs between two ledgers of the same targets: quotas that are spent now, or not any
/// more. With the unprivileged user whose claim it is.
fn changes(before: &Ledger, after: &Ledger, usage: &UsageBook) -> Vec<(Option<u32>, String)> {
    let mut changes = Vec::new();
    for held in after.held() {
        let was = before.get(held.entry.id);
        for (claim, quota) in held.claims.quotas() {
            let uid = claim.by.uid;
            let spent = |held: &crate::ledger::HeldTarget| {
                held.quotas.get(&uid).is_some_and(|quota| quota.spent)
            };
            if was.is_none_or(|was| spent(was) == spent(held)) {
                continue;
            }
            let who = match claim.by == POLICY {
                true => "the policy".to_owned(),
                false => user_name(uid),
            };
            let until = usage.of(held, quota).map_or(String::new(), |usage| {
                let end = usage.period.end_ns;
                format!(
                    " until {}",
                    schedule::text_in_zone(quota.zone.as_deref(), end)
                )
            });
            let now = match (spent(held), quota.then) {
                (true, None) => format!("has passed: nothing more passes{until}"),
                (true, Some(rate)) => format!("has passed: {rate} is the limit{until}"),
                (false, _) => "counts anew".to_owned(),
            };
            let text = format!("{}: the quota {quota} of {who} {now}", held.entry.target);
            changes.push(((!claim.by.privileged).then_some(uid), text));
        }
    }
    changes
}

/// The longest time between two writes of the file while something passes.
const WRITE_TIME: Nanos = Nanos::from_secs(10);
