//! The clerk: takes one request at a time, and is the only one who changes the ledger.
//!
//! ```text
//!   request ── parsed again ──> authority ──> draft of the ledger, admitted ──> installed ──> state file ──> answer
//!                  │                │                    │                          │             │
//!                  └────────────────┴──── no ────────────┴────────── no: as it was before ────────┘
//! ```
//!
//! What a machine does by itself (processes end, control groups and interfaces come and go) reaches the clerk as
//! [`Clerk::tick`] and its kin. Time is always an argument.

mod clear;
mod link;
mod set;
mod show;
mod tick;

use netnice_api::{Done, LogLines, Pong, Request, Response};
use netnice_core::contract::Contract;

use crate::clock::Now;
use crate::denied::Denied;
use crate::desired::desired;
use crate::enforce::{self, Act, Host};
use crate::journal::Journal;
use crate::ledger::{Body, Closed, Held, Ledger};
use crate::peer::Peer;

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
    journal: Journal,
}

/// A change that is worked out but not installed.
struct Draft {
    ledger: Ledger,
    acts: Vec<Act>,
}

impl<H: Host> Clerk<H> {
    /// A clerk with nothing on the books.
    pub fn new(host: H) -> Clerk<H> {
        Clerk {
            host,
            ledger: Ledger::default(),
            journal: Journal::default(),
        }
    }

    /// The machine.
    pub fn host(&mut self) -> &mut H {
        &mut self.host
    }

    /// Answers a request.
    pub fn handle(
        &mut self,
        peer: &Peer,
        request: &Request,
        named: Option<Named>,
        now: Now,
    ) -> Response {
        let answer = match request {
            Request::Ping(_) => Ok(Response::Pong(Pong {
                protocol: netnice_api::VERSION,
                daemon: env!("CARGO_PKG_VERSION").to_owned(),
            })),
            Request::Set(set) => self.set(peer, set, named, now).map(Response::Done),
            Request::Clear(clear) => self.clear(peer, clear, now).map(Response::Done),
            Request::Link(link) => self.change_link(peer, link, now).map(Response::Done),
            Request::Show(show) => self.show(show.target.as_deref(), now).map(Response::Shown),
            Request::Own(_) => self.show_own(named.as_ref(), now).map(Response::Shown),
            Request::Log(log) => Ok(Response::Log(LogLines {
                lines: self.journal.read(now, log.since_ns, log.lines),
            })),
            _ => Err(Denied::unsupported("this request")),
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
            _ => return,
        };
        let who = crate::authority::user(peer.uid);
        match denied {
            Denied::NotAdmitted(text) | Denied::NotPermitted(text) | Denied::Failed(text) => {
                self.journal.warn(now, format!("{who}, {what}: {text}"));
            }
            Denied::BadUsage(_) => {}
        }
    }

    /// Starts a change.
    fn draft(&self) -> Draft {
        Draft {
            ledger: self.ledger.clone(),
            acts: Vec::new(),
        }
    }

    /// Installs a draft; `still` is asked at the end whether it is still wanted. Where anything says no, all is as it
    /// was before.
    fn install(
        &mut self,
        draft: Draft,
        still: impl FnOnce(&mut H) -> Result<(), Denied>,
    ) -> Result<netnice_kernel::enforce::Adoption, Denied> {
        #[cfg(debug_assertions)]
        draft.ledger.invariants();
        let (before, after) = (desired(&self.ledger), desired(&draft.ledger));
        let installed = enforce::install(&mut self.host, &before, &after, &draft.acts)?;
        if let Err(denied) = still(&mut self.host) {
            installed.take_back(&mut self.host, &before);
            return Err(denied);
        }
        self.ledger = draft.ledger;
        Ok(installed.adoption)
    }

    /// What a draft would do, in words.
    fn preview(&mut self, draft: &Draft) -> Vec<String> {
        let mut lines = self.host.preview(&desired(&draft.ledger));
        lines.extend(draft.acts.iter().map(set::describe));
        lines
    }

    /// The answer to a change of one target.
    fn done(&self, peer: &Peer, held: &Held) -> Done {
        let own = held
            .claims
            .iter()
            .find(|claim| claim.by.uid == peer.uid)
            .map_or_else(Contract::default, |claim| claim.contract.clone());
        Done {
            target: Some(held.entry.target.to_string()),
            id: Some(held.entry.id.get()),
            contract: Some(own.to_string()),
            effective: Some(held.effective(&self.ledger).to_string()),
            ..Done::default()
        }
    }
}

/// The acts that let go of what a target is made of.
fn release(closed: &Closed) -> Option<Act> {
    let id = closed.held.id;
    match &closed.held.body {
        Body::Processes { .. } => Some(Act::Release {
            id,
            heir: closed.heir,
        }),
        Body::App(key) => match (&closed.held.entry.target, key) {
            (netnice_core::target::Target::App(path), Some(_)) => Some(Act::UnbindApp {
                id,
                path: path.to_string(),
            }),
            _ => None,
        },
        Body::Cgroup(bound) => bound.clone().map(|bound| Act::UnbindCgroup { id, bound }),
        Body::User(uid) => Some(Act::UnbindUser { id, uid: *uid }),
    }
}
