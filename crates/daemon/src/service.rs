//! The service: handles one request at a time, and is the only writer of the ledger.
//!
//! ```text
//!   request ─> parsed ─> permission ─> draft, admitted ─> kernel ─> state file ─> response: done
//!                │          │             │                 │          │
//!                v          v             v                 v          v
//!              invalid   not permitted   refused          failed     failed
//!              Then nothing has changed, and the response has the reason.
//! ```
//!
//! Each kind of request has a file, except `ping` and `log`. A request that changes something works
//! on a [`Reconciler`], which has the machine and the books. A request that only reads works on a
//! [`View`]; `watch` may also read the counters first. The service also has the administrator's
//! [`Rules`] and the [`Measurements`]; a request gets the parts that it needs.
//!
//! The event loop calls [`Service::tick`] and the methods next to it for changes on the machine
//! that no request caused. Time is always an argument.

mod budgets;
mod clear;
mod confirm;
mod connections;
pub(crate) mod doctor;
mod explain;
mod find;
mod history;
mod link;
mod named_process;
mod own;
mod parts;
mod processors;
mod programs;
mod promises;
mod reload;
mod set;
mod show;
mod traffic_quotas;
mod unit_files;
pub(crate) mod users;
mod view;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netnice_api::{Clear, ClearWhat, LogLines, Pong, Request, Response, UsersDoc};
use netnice_core::units::{Instant, Nanos, Rate};
use netnice_kernel::probe::Finding;

pub(crate) use named_process::NamedProcess;

use crate::clock::Now;
use crate::error::RequestError;
use crate::estimate::{Estimated, EstimatedLink};
#[cfg(test)]
use crate::flows::promises::ServedBy;
use crate::flows::promises::TargetCheck;
use crate::host::Host;
use crate::journal::EventKind;
use crate::ledger::Ledger;
use crate::meter::Measurements;
use crate::meter::metrics::http::Page;
use crate::peer::Peer;
use crate::policy::Rules;
use crate::processors::ProcessorStore;
use crate::programs::Snapshot;
use crate::reconcile::{Reconciler, SavedState};
use crate::state::{CostsStore, Store, UsageStore};
use crate::user_names::user_name;
use doctor::DoctorState;
use view::View;

/// The service: the machine, the books, the policy and the measured values, and the methods that
/// the event loop calls.
pub(crate) struct Service<H> {
    /// The machine, the books and the journal.
    reconciler: Reconciler<H>,
    rules: Rules,
    measurements: Measurements,
    /// The last counts of programs, while they are counted.
    counted: Option<Arc<Snapshot>>,
    doctor: DoctorState,
    costs_store: Option<CostsStore>,
}

impl<H: Host> Service<H> {
    /// A service with empty books. Without `store` no state file is written.
    pub(crate) fn new(host: H, store: Option<Store>) -> Service<H> {
        Service {
            reconciler: Reconciler::new(host, store),
            rules: Rules::default(),
            measurements: Measurements::default(),
            counted: None,
            doctor: DoctorState::default(),
            costs_store: None,
        }
    }

    /// Takes over from an earlier daemon. The caller calls it once, before any request.
    pub(crate) fn start(&mut self, saved: SavedState, now: Now) {
        let notice = self.reconciler.start(saved, now);
        self.doctor.notices.extend(notice);
    }

    /// Sets the file for the usage of traffic quotas. The caller calls it
    /// before [`Service::start`].
    pub(crate) fn set_usage_store(&mut self, store: UsageStore) {
        self.reconciler.usage_writer.store = Some(store);
    }

    /// Continues the reservations of processor time of an earlier daemon. The caller calls it
    /// before [`Service::start`].
    pub(crate) fn set_processor_store(&mut self, store: ProcessorStore, now: Now) {
        self.reconciler.resume_processors(store, now);
    }

    /// Writes what a reboot would lose. The caller calls it when the daemon stops.
    pub(crate) fn stop(&mut self, now: Now) {
        let read = self.reconciler.read_usage();
        let journal = &mut self.reconciler.journal;
        journal.log_result(now, "reading the traffic quotas", read);
        self.reconciler.write_usage(now, true);
    }

    /// The machine.
    pub(crate) fn host(&mut self) -> &mut H {
        &mut self.reconciler.host
    }

    /// True if `netnice doctor` needs a new probe of the kernel first.
    pub(crate) fn needs_probe(&self, now: Now) -> bool {
        self.doctor.needs_probe(now)
    }

    /// Keeps the findings of a probe for `netnice doctor`.
    pub(crate) fn set_findings(&mut self, findings: &[Finding], now: Now) {
        self.doctor.set_findings(findings, now);
    }

    /// Adds a warning to the journal.
    pub(crate) fn warn(&mut self, now: Now, text: &str) {
        self.reconciler.journal.warn(now, text);
    }

    /// The ledger, read-only.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.reconciler.books.ledger
    }

    /// As [`Service::handle_checked`], without a check.
    #[cfg(test)]
    pub(crate) fn handle(
        &mut self,
        peer: &Peer,
        request: &Request,
        named: Option<NamedProcess>,
        now: Now,
    ) -> Response {
        self.handle_checked(peer, request, (named, &mut |_| Ok(ServedBy::Classes)), now)
    }

    /// Handles a request and returns the response, which has the error if the request fails.
    /// `named` is the process that the request names by a pidfd; the function beside it checks a
    /// `set` before it is installed. If a `set`, `clear`, `link` or `reload` is refused, that is
    /// logged. If one of them fails for another reason, that is logged except for `clear`. An
    /// invalid request is not logged.
    pub(crate) fn handle_checked<'a>(
        &mut self,
        peer: &'a Peer,
        request: &'a Request,
        (named, check): (Option<NamedProcess>, &'a mut TargetCheck<'a>),
        now: Now,
    ) -> Response {
        self.reconciler.set_time(now);
        let changes = matches!(
            request,
            Request::Set(_)
                | Request::Clear(_)
                | Request::Link(_)
                | Request::Reload(_)
                | Request::KeepCosts(_)
        );
        if changes && self.reconciler.deviations.repairs.given_up.is_some() {
            // A user who changes something needs it in force, so repairs start again.
            self.reconciler.deviations.repairs.reset();
            self.reconciler.repair(true, now);
        }
        let changes = changes || matches!(request, Request::Confirm(_) | Request::Reserve(_));
        let answer = match changes {
            true => self.change(peer, request, (named, check), now),
            false => self.read(peer, request, named.as_ref(), now),
        };
        answer.unwrap_or_else(|error| {
            self.log_refusal(peer, request, &error, now);
            error.into()
        })
    }

    /// Checks for how long a clear is to last.
    ///
    /// # Errors
    /// If a time is invalid, or the process of `--until-exit` has ended.
    pub(crate) fn check_clear(&mut self, clear: &Clear) -> Result<(), RequestError> {
        self.reconciler.check_duration(clear::duration(clear))
    }

    /// Handles a request that changes something.
    fn change<'a>(
        &mut self,
        peer: &'a Peer,
        request: &'a Request,
        (named, check): (Option<NamedProcess>, &'a mut TargetCheck<'a>),
        now: Now,
    ) -> Result<Response, RequestError> {
        let reconciler = &mut self.reconciler;
        let done = match request {
            Request::Set(set) => {
                let tally = &mut self.measurements.tally;
                let submitted = set::SubmittedSet {
                    peer,
                    set,
                    named,
                    check,
                };
                set::set(reconciler, tally, &self.rules, submitted, now)
            }
            Request::Clear(clear) => {
                let done = clear::clear(reconciler, &self.rules.policy.quotas, peer, clear, now);
                let all = matches!(clear.what, ClearWhat::All) && !clear.dry_run;
                if done.is_ok() && all && peer.uid == 0 {
                    self.doctor.notices.clear();
                }
                done
            }
            Request::Link(link) => link::change_link(reconciler, peer, link, now),
            Request::Reserve(reserve) => {
                parts::reserve(reconciler, peer, reserve, named.as_ref(), now)
            }
            Request::Reload(_) => reload::reload(reconciler, &mut self.rules, peer, now),
            Request::KeepCosts(costs) => {
                let store = self.costs_store.as_ref();
                processors::keep_costs(reconciler, store, peer, costs, now)
            }
            Request::Confirm(confirm) => confirm::confirm(reconciler, peer, confirm, now),
            _ => Err(RequestError::Failed(
                "this request changes nothing".to_owned(),
            )),
        };
        done.map(Response::Done)
    }

    /// Handles a request that only reads.
    fn read(
        &mut self,
        peer: &Peer,
        request: &Request,
        named: Option<&NamedProcess>,
        now: Now,
    ) -> Result<Response, RequestError> {
        if let Request::Watch(watch) = request {
            let doc = watch::watch(&mut self.reconciler, &mut self.measurements, watch, now);
            return doc.map(Response::Watched);
        }
        if let Request::Log(log) = request {
            let lines = self.reconciler.journal.read(now, log.since_ns, log.lines);
            return Ok(Response::Log(LogLines { lines }));
        }
        if matches!(request, Request::Show(_) | Request::Own(_)) {
            let (host, ledger) = (&mut self.reconciler.host, &self.reconciler.books.ledger);
            let commands = &mut self.measurements.commands;
            commands.refresh(host, ledger, now.monotonic);
        }
        let mut view = View::of(&mut self.reconciler, &self.measurements);
        match request {
            Request::Ping(_) => Ok(Response::Pong(Pong {
                protocol: netnice_api::VERSION,
                daemon: env!("CARGO_PKG_VERSION").to_owned(),
            })),
            Request::Show(show) => view
                .show(peer, show.target.as_deref(), now)
                .map(Response::Shown),
            Request::Connections(of) => view
                .connections(peer, of, self.counted.as_deref(), now)
                .map(Response::Connections),
            Request::History(of) => view.history(of, now).map(Response::History),
            Request::Own(_) => view.show_own(named, now).map(Response::Shown),
            Request::Explain(explain) => view
                .explain(peer, &explain.target, now)
                .map(Response::Explained),
            Request::Find(find) => view.find(&find.target).map(Response::Found),
            Request::Doctor(_) => view.doctor(&self.doctor, &self.rules).map(Response::Doctor),
            _ => Err(RequestError::Failed(
                "this request is not for the service".to_owned(),
            )),
        }
    }

    /// Takes the last counts of programs; `None` if they are not counted any more.
    pub(crate) fn set_counted(&mut self, counted: Option<Arc<Snapshot>>) {
        self.counted = counted;
    }

    /// The response to [`Request::Programs`], from counts that were read outside the event loop.
    pub(crate) fn programs(&mut self, peer: &Peer, snapshot: &Snapshot) -> Response {
        let mut view = View::of(&mut self.reconciler, &self.measurements);
        Response::Programs(view.programs(peer, snapshot))
    }

    fn log_refusal(&mut self, peer: &Peer, request: &Request, error: &RequestError, now: Now) {
        let what = match request {
            Request::Set(set) => &set.target,
            Request::Link(link) => &link.iface,
            Request::Clear(_) => "clear",
            Request::Reserve(_) => "reserve",
            Request::Reload(_) => "reload",
            Request::KeepCosts(_) => "doctor --measure",
            _ => return,
        };
        let is_news = match error {
            RequestError::NotAdmitted(_) | RequestError::NotPermitted(_) => true,
            RequestError::Failed(_) | RequestError::FailedFor(..) => {
                !matches!(request, Request::Clear(_))
            }
            RequestError::BadUsage(_) => false,
        };
        if is_news {
            self.measurements.tally.refusals += u64::from(!matches!(
                error,
                RequestError::Failed(_) | RequestError::FailedFor(..)
            ));
            let text = format!("{}, {what}: {error}", user_name(peer.uid));
            let journal = &mut self.reconciler.journal;
            journal.log(now, peer.user(), EventKind::Refused, text);
        }
    }
}

/// Changes that no request caused.
impl<H: Host> Service<H> {
    /// Checks everything that changes without an event. The caller calls it each second.
    pub(crate) fn tick(&mut self, now: Now) {
        let reconciler = &mut self.reconciler;
        reconciler.journal.sum_up(now);
        let ledger = &reconciler.books.ledger;
        // Measuring comes first, while `now` is the time of the counters: the other steps may take
        // long, and rates are differences of counters over time.
        if ledger.held().next().is_some() || ledger.links().next().is_some() {
            let measurements = self.measurements.read(&mut reconciler.host, ledger, now);
            reconciler
                .journal
                .log_result(now, "measuring", measurements);
        }
        reconciler.check_all(now);
        reconciler.save_estimates(false, now);
        if self.rules.instances_changed(&mut reconciler.host) {
            unit_files::reload_units(reconciler, &mut self.rules, now);
        }
        let due = reconciler.repair_is_due(now);
        if due || self.measurements.rates.is_time_to_audit(now.monotonic) {
            reconciler.repair(false, now);
        }
    }

    /// Closes targets whose last process has ended, and binds control groups and executables that
    /// were created again. The caller calls it after an event that indicates either.
    pub(crate) fn close_and_rebind(&mut self, now: Now) {
        self.reconciler.close_and_rebind(now);
    }

    /// Tags the next portion of open sockets of new members, for some milliseconds. Remarks about
    /// them go to the journal as events of `user`, whose request needed the tagging (`None`: root,
    /// a member of the group `netnice`, or the daemon itself).
    pub(crate) fn continue_survey(&mut self, user: Option<u32>, now: Now) {
        let remarks = match self.reconciler.host.continue_survey() {
            Ok(found) => found.map_or_else(Vec::new, |found| set::socket_remarks(&found)),
            Err(error) => vec![format!(
                "some open sockets of new members are not held: {error}"
            )],
        };
        for text in remarks {
            self.reconciler
                .journal
                .log(now, user, EventKind::Fault, text);
        }
    }

    /// Rolls back the changes whose time is over or whose process has ended.
    pub(crate) fn expire(&mut self, now: Now) {
        self.reconciler.expire(now);
    }

    /// The time of the next rollback that has a time; `None` if there is none.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.reconciler.next_due()
    }

    /// Checks interfaces and the daemon's kernel objects, and restores missing ones. Follows the
    /// speeds of links.
    pub(crate) fn repair(&mut self, now: Now) {
        self.reconciler.follow_speeds(now);
        self.reconciler.repair(true, now);
    }

    /// The links that are estimated, and their present rates.
    pub(crate) fn estimated_links(&self) -> Vec<(EstimatedLink, [Option<Rate>; 2])> {
        self.reconciler.estimated_links()
    }

    /// Puts the estimates of a link into force.
    pub(crate) fn handle_estimated(&mut self, message: Estimated, now: Now) {
        self.reconciler.handle_estimated(message, now);
    }

    /// Puts the estimates into force that wait.
    pub(crate) fn follow_estimates(&mut self, now: Now) {
        self.reconciler.follow_estimates(now);
    }

    /// When [`Service::follow_estimates`] is due; `None` if no estimate waits.
    pub(crate) fn estimates_due(&self) -> Option<Instant> {
        self.reconciler.estimates.next_due()
    }

    /// Bounds the time that changes of estimates take. `took` is the duration of the last change.
    pub(crate) fn delay_estimates(&mut self, took: Nanos, now: Now) {
        self.reconciler.estimates.delay(took, now);
    }

    /// Writes the estimates to the state file before the daemon ends.
    pub(crate) fn save_estimates(&mut self, now: Now) {
        self.reconciler.save_estimates(true, now);
    }

    /// Divides the left-over of managed links again, and follows their speeds. The caller calls it
    /// every 200 ms while there are managed links.
    pub(crate) fn balance(&mut self, now: Now) {
        self.reconciler.follow_speeds_when_due(now);
        self.reconciler.balance(now);
    }

    /// Determines the interfaces that connect held containers to this network namespace, and limits
    /// the traffic there.
    pub(crate) fn place_containers(&mut self) {
        self.reconciler.place_containers();
    }

    /// The paths of the held control groups, including those that do not exist now.
    pub(crate) fn group_paths(&self) -> Vec<String> {
        self.reconciler.group_paths()
    }

    /// Sets the folders of unit files, in order of precedence.
    pub(crate) fn set_unit_path(&mut self, path: Vec<PathBuf>) {
        self.rules.set_unit_path(path);
    }

    /// The folders in which a change may affect the contracts of units.
    pub(crate) fn unit_folders(&self) -> &BTreeSet<PathBuf> {
        self.rules.unit_folders()
    }

    /// Reads the unit files again, and puts changes into force.
    pub(crate) fn reload_units(&mut self, now: Now) {
        unit_files::reload_units(&mut self.reconciler, &mut self.rules, now);
    }

    /// Reads the policy file and puts it into force. If that fails, the error is logged, and the
    /// former policy stays in force.
    pub(crate) fn load_policy(&mut self, path: &Path, now: Now) {
        reload::load_policy(&mut self.reconciler, &mut self.rules, path, now);
    }

    /// The last metrics page; `None` if there is none that is younger than half a second.
    pub(crate) fn page(&self, now: Now) -> Option<Page> {
        watch::fresh_page(&self.measurements, now)
    }

    /// Makes a new metrics page, with the users' amounts.
    pub(crate) fn metrics(&mut self, users: &UsersDoc, now: Now) -> Page {
        watch::metrics(&mut self.reconciler, &mut self.measurements, users, now)
    }
}
