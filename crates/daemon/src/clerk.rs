//! The clerk: takes one request at a time, and is the only one who changes the ledger.
//!
//! ```text
//!   request ── parsed again ──> authority ──> draft of the ledger, admitted ──> installed ──> state file ──> answer
//!                  │                │                    │                          │             │
//!                  └────────────────┴──── no ────────────┴────────── no: as it was before ────────┘
//! ```
//!
//! What a machine does by itself (processes end, control groups and interfaces come and go) reaches the clerk as
//! [`Clerk::tick`], [`Clerk::sweep`] and [`Clerk::repair`]. Time is always an argument.

mod back;
mod clear;
mod direct;
pub mod doctor;
pub(crate) mod explain;
mod link;
mod open;
mod past;
mod reload;
mod repair;
mod set;
mod show;
mod start;
mod tick;
mod units;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use netnice_api::{Done, LogLines, Pong, Request, Response};
use netnice_core::contract::{Contract, IfName};
use netnice_core::target::Target;
use netnice_core::units::Instant;
use netnice_kernel::enforce::{Adoption, Housing};
use netnice_kernel::plan::Desired;

use crate::clock::Now;
use crate::denied::Denied;
use crate::desired::{awaited, desired};
use crate::enforce::{self, Act, Host};
use crate::history::History;
use crate::journal::Journal;
use crate::ledger::{Body, Closed, Held, Ledger};
use crate::measure::Rates;
use crate::metrics::Tally;
use crate::metrics::serve::Page;
use crate::peer::Peer;
use crate::policy::Policy;
use crate::state::Store;
use crate::undo::Undos;
use crate::units::Units;

pub use start::Record;

/// A process that a request means: its number, and whether it still lives, told by its pidfd.
pub struct Named {
    /// Its number when the pidfd was received.
    pub pid: u32,
    /// Whether it still lives.
    pub lives: Box<dyn Fn() -> bool>,
}

/// The one writer.
pub struct Clerk<H: Host> {
    host: H,
    ledger: Ledger,
    undos: Undos,
    journal: Journal,
    store: Option<Store>,
    /// Something happened by itself that could not be written down.
    unwritten: bool,
    /// Links that cannot be served now though their interface is there, and why.
    broken: BTreeMap<IfName, String>,
    repairs: repair::Repairs,
    rates: Rates,
    history: History,
    tally: Tally,
    /// The page for Prometheus that was made last, and when.
    page: Option<(Instant, Page)>,
    /// What a person should know who asks the doctor.
    notices: Vec<String>,
    policy: Policy,
    policy_path: Option<PathBuf>,
    /// Why the policy file as it is now is not in force.
    policy_fault: Option<String>,
    /// One has been in force since this daemon began.
    policy_read: bool,
    /// Where unit files are looked for; nowhere in tests.
    unit_path: Vec<PathBuf>,
    /// What they ask for.
    units: Units,
    /// The units that ran when they were read; of interest where templates have a section.
    running: BTreeSet<String>,
    /// How containers are joined to this namespace.
    housings: BTreeMap<u32, Housing>,
    /// Sections that are not in force, by unit, and why.
    unit_faults: BTreeMap<String, String>,
    looked: doctor::Looked,
}

/// A change that is worked out but not installed.
#[derive(Clone)]
struct Draft {
    ledger: Ledger,
    undos: Undos,
    acts: Vec<Act>,
    /// Nobody has asked for it: it is what happened, or what was asked for earlier. It is done though it cannot be
    /// written down, and written down later.
    by_itself: bool,
}

impl<H: Host> Clerk<H> {
    /// A clerk with nothing on the books.
    pub fn new(host: H, store: Option<Store>) -> Clerk<H> {
        Clerk {
            host,
            store,
            unwritten: false,
            ledger: Ledger::default(),
            undos: Undos::default(),
            journal: Journal::default(),
            broken: BTreeMap::new(),
            repairs: repair::Repairs::default(),
            rates: Rates::default(),
            history: History::default(),
            tally: Tally::default(),
            page: None,
            notices: Vec::new(),
            policy: Policy::default(),
            policy_path: None,
            policy_fault: None,
            policy_read: false,
            unit_path: Vec::new(),
            units: Units::default(),
            running: BTreeSet::new(),
            housings: BTreeMap::new(),
            unit_faults: BTreeMap::new(),
            looked: doctor::Looked::default(),
        }
    }

    /// The machine.
    pub fn host(&mut self) -> &mut H {
        &mut self.host
    }

    /// Notes something for `netnice log`.
    pub fn say(&mut self, now: Now, text: &str) {
        self.journal.warn(now, text);
    }

    /// The ledger, to be read.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Answers a request.
    pub fn handle(
        &mut self,
        peer: &Peer,
        request: &Request,
        named: Option<Named>,
        now: Now,
    ) -> Response {
        let changes = matches!(
            request,
            Request::Set(_) | Request::Clear(_) | Request::Link(_) | Request::Reload(_)
        );
        if changes && self.repairs.given_up.is_some() {
            // Whoever changes something wants it to hold: repairs get a new start.
            self.repairs.forgive();
            self.repair(true, now);
        }
        let answer = match request {
            Request::Ping(_) => Ok(Response::Pong(Pong {
                protocol: netnice_api::VERSION,
                daemon: env!("CARGO_PKG_VERSION").to_owned(),
            })),
            Request::Set(set) => self.set(peer, set, named, now).map(Response::Done),
            Request::Clear(clear) => self.clear(peer, clear, now).map(Response::Done),
            Request::Link(link) => self.change_link(peer, link, now).map(Response::Done),
            Request::Confirm(confirm) => self.confirm(peer, confirm, now).map(Response::Done),
            Request::Reload(_) => self.reload(peer, now).map(Response::Done),
            Request::Show(show) => self.show(show.target.as_deref(), now).map(Response::Shown),
            Request::Watch(watch) => self.watch(watch, now).map(Response::Watched),
            Request::Connections(asked) => self
                .connections(peer, &asked.target, now)
                .map(Response::Connections),
            Request::History(asked) => self.past(asked, now).map(Response::History),
            Request::Own(_) => self.show_own(named.as_ref(), now).map(Response::Shown),
            Request::Log(log) => Ok(Response::Log(LogLines {
                lines: self.journal.read(now, log.since_ns, log.lines),
            })),
            Request::Explain(explain) => {
                self.explain(&explain.target, now).map(Response::Explained)
            }
            Request::Find(find) => self.find(&find.target).map(Response::Found),
            Request::Doctor(_) => self.doctor(now).map(Response::Doctor),
            Request::Direct(_) => Err(Denied::Failed(
                "direct flows are not the clerk's".to_owned(),
            )),
        };
        answer.unwrap_or_else(|denied| {
            self.note_denied(peer, request, &denied, now);
            denied.into()
        })
    }

    fn note_denied(&mut self, peer: &Peer, request: &Request, denied: &Denied, now: Now) {
        let what = match request {
            Request::Set(set) => &set.target,
            Request::Link(link) => &link.iface,
            Request::Clear(_) => "clear",
            Request::Reload(_) => "reload",
            _ => return,
        };
        let is_news = match denied {
            Denied::NotAdmitted(_) | Denied::NotPermitted(_) => true,
            Denied::Failed(_) => !matches!(request, Request::Clear(_)),
            Denied::BadUsage(_) => false,
        };
        if is_news {
            self.tally.refusals += u64::from(!matches!(denied, Denied::Failed(_)));
            let who = crate::authority::user(peer.uid);
            self.journal.warn(now, format!("{who}, {what}: {denied}"));
        }
    }

    /// Starts a change.
    fn draft(&self) -> Draft {
        Draft {
            ledger: self.ledger.clone(),
            undos: self.undos.clone(),
            acts: Vec::new(),
            by_itself: false,
        }
    }

    /// Starts a change that nobody asks for now.
    fn draft_by_itself(&self) -> Draft {
        Draft {
            by_itself: true,
            ..self.draft()
        }
    }

    /// Installs a draft and writes it down; `still` is asked in between whether it is still wanted. Where anything
    /// says no, all is as it was before.
    fn install(
        &mut self,
        mut draft: Draft,
        still: impl FnOnce(&mut H) -> Result<(), Denied>,
    ) -> Result<Adoption, Denied> {
        for target in draft.ledger.heal() {
            tracing::info!("{target} fits again");
        }
        #[cfg(debug_assertions)]
        draft.ledger.invariants();
        let before = self.wanted(&self.ledger);
        let after = self.wanted(&draft.ledger);
        // Sockets may carry the numbers that a draft gave out, also of one that is thrown away.
        self.ledger.skip_ids(draft.ledger.next_id());
        let first = !self.host.is_enforcing() && after != Desired::default();
        if first {
            self.write_before_first()?;
        }
        let mut installed = enforce::install(&mut self.host, &before, &after, &draft.acts);
        if installed.is_err() && self.host.audit().is_ok_and(|faults| !faults.is_empty()) {
            // Somebody has just removed what the change was to build on.
            self.host.reconcile()?;
            installed = enforce::install(&mut self.host, &before, &after, &draft.acts);
        }
        let kept = installed.and_then(|installed| {
            let kept = still(&mut self.host).and_then(|()| self.keep(&draft));
            match kept {
                Ok(()) => Ok(installed),
                Err(denied) => {
                    installed.take_back(&mut self.host, &before);
                    Err(denied)
                }
            }
        });
        if first && kept.is_err() {
            let written = self.write(&self.ledger, &self.undos);
            self.unwritten |= written.is_err();
        }
        let installed = kept?;
        self.ledger = draft.ledger;
        self.undos = draft.undos;
        self.await_groups();
        self.house();
        Ok(installed.adoption)
    }

    /// Writes a draft down.
    fn keep(&mut self, draft: &Draft) -> Result<(), Denied> {
        let kept = self.write(&draft.ledger, &draft.undos);
        self.unwritten = kept.is_err() && (draft.by_itself || self.unwritten);
        match draft.by_itself {
            true => Ok(()),
            false => kept,
        }
    }

    /// Writes down that nothing is held, before the first thing is put in force. What is found in force without any
    /// state file is kept whoever asked for it ([`start`]); a daemon that is killed before its first change is
    /// written down must not leave that.
    fn write_before_first(&self) -> Result<(), Denied> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let kept = store.save(&self.ledger, &self.undos);
        kept.map_err(|error| Denied::Failed(error.to_string()))
    }

    fn write(&self, ledger: &Ledger, undos: &Undos) -> Result<(), Denied> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let nothing = ledger.is_empty() && undos.iter().next().is_none();
        let kept = match nothing && !self.host.is_enforcing() {
            true => store.remove(),
            false => store.save(ledger, undos),
        };
        kept.map_err(|error| Denied::Failed(error.to_string()))
    }

    /// Writes down what could not be written when it happened.
    fn write_again(&mut self, now: Now) {
        if !self.unwritten {
            return;
        }
        let written = self.write(&self.ledger, &self.undos);
        self.unwritten = written.is_err();
        self.journal
            .judge(now, "writing down what has changed", written);
    }

    /// Tells the kernel which control groups are whose when they are made.
    fn await_groups(&mut self) {
        if let Err(error) = self.host.await_groups(&awaited(&self.ledger)) {
            // They are bound all the same, a moment after they were made.
            tracing::warn!(%error, "control groups that are made anew are not awaited");
        }
    }

    /// Whether any container is held.
    pub fn holds_containers(&self) -> bool {
        let mut held = self.ledger.held();
        held.any(|held| matches!(held.entry.target, Target::Container(_)))
    }

    /// Finds out by which interfaces containers are joined to this namespace, and holds what passes there.
    pub fn house(&mut self) {
        if self.housings.is_empty() && !self.holds_containers() {
            return;
        }
        let containers = self
            .ledger
            .held()
            .filter(|held| matches!(held.entry.target, Target::Container(_)));
        let path = |held: &Held| match &held.body {
            Body::Cgroup(bound) => bound.as_ref().map(|bound| bound.path.clone()),
            _ => None,
        };
        let groups = containers.map(|held| (held.id, path(held))).collect();
        match self.host.house(&groups) {
            Ok(housings) => self.housings = housings,
            Err(error) => tracing::warn!(%error, "looking for the interfaces of containers"),
        }
    }

    /// What should be in force of a ledger, as far as it can be now.
    fn wanted(&self, ledger: &Ledger) -> Desired {
        let mut wanted = desired(ledger);
        let broken = |name: &str| self.broken.keys().any(|link| link.as_str() == name);
        wanted.links.retain(|link| !broken(&link.name));
        wanted
    }

    /// What a draft would do, in words.
    fn preview(&mut self, draft: &Draft) -> Vec<String> {
        let wanted = self.wanted(&draft.ledger);
        let mut lines = self.host.preview(&wanted);
        lines.extend(draft.acts.iter().map(set::describe));
        lines
    }

    /// The answer to a change of one target.
    fn done(&self, peer: &Peer, ledger: &Ledger, held: &Held) -> Done {
        Done {
            target: Some(held.entry.target.to_string()),
            id: Some(held.entry.id.get()),
            contract: Some(claim_of(held, peer.uid).to_string()),
            effective: Some(held.effective(ledger).to_string()),
            ..Done::default()
        }
    }
}

impl Draft {
    /// Lets a target go, with what it is made of and what waits for it.
    fn close(&mut self, slot: netnice_core::admission::TargetId) -> Option<Closed> {
        let closed = self.ledger.close(slot)?;
        self.undos.forget_target(closed.held.id);
        let mut act = release(&closed);
        let others = self.acts.iter_mut().find_map(|act| match act {
            Act::Release { heirs } => Some(heirs),
            _ => None,
        });
        if let (Some(Act::Release { heirs }), Some(others)) = (&mut act, others) {
            others.extend(std::mem::take(heirs));
            act = None;
        }
        self.acts.extend(act);
        Some(closed)
    }
}

/// What a user has asked of a target.
fn claim_of(held: &Held, uid: u32) -> Contract {
    let own = held.claims.iter().find(|claim| claim.by.uid == uid);
    own.map_or_else(Contract::default, |claim| claim.contract.clone())
}

/// The act that lets go of what a target is made of.
fn release(closed: &Closed) -> Option<Act> {
    let id = closed.held.id;
    match &closed.held.body {
        Body::Processes { .. } => Some(Act::release(id, closed.heir)),
        Body::App(key) => match (&closed.held.entry.target, key) {
            (Target::App(path), Some(_)) => Some(Act::UnbindApp {
                id,
                path: path.to_string(),
            }),
            _ => None,
        },
        Body::Cgroup(bound) => {
            let bound = bound.clone();
            Some(Act::UnbindCgroup { id, bound })
        }
        Body::User(uid) => Some(Act::UnbindUser { id, uid: *uid }),
    }
}

#[cfg(test)]
mod tests;
