//! The event loop: one thread waits for all sources of events, and handles one event at a time.
//!
//! ```text
//!   signals ─────────────┐
//!   timers ──────────────┤                  ┌─> service: requests, policy, repair, ended processes
//!   requests, scrapes ───┼─> Event ─> handle┤
//!   drivers, connections ┤                  └─> flows: requests, messages of drivers, routes
//!   netlink, inotify ────┤                        │ after each event
//!   ends of processes ───┘                        └─> check the promises, send commands to drivers
//! ```
//!
//! Requests wait in [`request_queue`]. While other events are ready, at most every second event
//! starts a waiting request, so neither a user with many connections nor all requests together hold
//! up the other events.
//!
//! Each connection that has sent a request has a task on the same thread, which hands in its
//! requests and passes on the replies; the tasks change no state of the service or the flows. The
//! handler of an event gets the time as the argument `now`. The loop logs an event that takes
//! longer than [`SLOW_EVENT`] (100 ms), because it delayed all others. [`run`] ends at SIGTERM or
//! SIGINT, and fails if a source of events cannot be opened or waited for, or if the port ids
//! of the netlink sockets cannot be read.

mod failure;
mod listeners;
mod path_lookup;
mod probe;
mod processors;
mod request_queue;
mod requests;
mod sources;
mod timers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netnice_api::{Programs, Request, Response, RuntimeDir, UsersDoc};
use netnice_core::units::Nanos;
use netnice_kernel::{cgroup, process};
use sd_notify::NotifyState;

pub(crate) use failure::During;
pub use failure::RunError;

use crate::clock::Now;
use crate::flows::Flows;
use crate::flows::drivers::Drivers;
use crate::flows::network::KernelNetwork;
use crate::host::kernel::KernelHost;
use crate::host::{Enforcer, LookupRights};
use crate::meter::metrics::http::Address;
use crate::peer::Peer;
use crate::programs::{Counted, CountingTimes, Submitted};
use crate::quotas::Quota;
use crate::server::PendingRequest;
use crate::service::Service;
use crate::service::users::users_doc;
use request_queue::RequestQueue;
use sources::{Event, Sources};
use timers::{Timer, Timers};

/// The settings of the event loop.
pub(crate) struct Settings<'a> {
    /// The runtime folder.
    pub runtime: &'a RuntimeDir,
    /// The policy file.
    pub policy: &'a Path,
    /// The address to serve metrics at; `None`: no metrics.
    pub metrics: Option<Address>,
    /// Clients may send descriptors, as on kernels before 6.16, which cannot refuse them. For
    /// tests.
    pub take_descriptors: bool,
    /// Drivers that are started write their stops to files in the runtime folder.
    pub write_stops: bool,
    /// The options are those of a killed daemon. Then an address for metrics that cannot be served
    /// is no error.
    pub resumed: bool,
}

/// Runs the event loop until SIGTERM or SIGINT. Calls `serving` when all sources of events are
/// open.
///
/// # Errors
/// If a source of events or a netlink socket cannot be opened, or a source cannot be waited for any
/// more.
pub(crate) async fn run(
    settings: &Settings<'_>,
    mut service: Service<KernelHost>,
    serving: impl FnOnce(),
) -> Result<(), RunError> {
    let numbers = service.host().netlink_ports();
    let own_ports = numbers.during("read the port ids of the netlink sockets")?;
    let (sources, drivers) = Sources::open(settings, own_ports).await?;
    let network = KernelNetwork::open(settings.runtime.tcp_secret());
    let network = network.during("open the netlink socket for routes")?;
    serving();
    let mut daemon = Daemon {
        service,
        flows: Flows::new(network),
        drivers,
        sources,
        timers: Timers::default(),
        queue: RequestQueue::default(),
        counting_times: CountingTimes::default(),
        run_delay: Nanos(0),
        tagging_user: None,
        served_request: false,
        policy: settings.policy.to_owned(),
    };
    daemon.serve().await?;
    daemon.service.stop(Now::read());
    tracing::info!("stopping; limits and guarantees stay in force");
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    daemon.sources.end().await;
    Ok(())
}

/// The state that events act on.
struct Daemon {
    service: Service<KernelHost>,
    flows: Flows<KernelNetwork>,
    drivers: Drivers,
    sources: Sources,
    timers: Timers,
    /// Requests that wait for their turn.
    queue: RequestQueue<PendingRequest>,
    /// What the quota `counting-time` counts.
    counting_times: CountingTimes,
    /// How long this thread had waited for a processor when the present charge began.
    run_delay: Nanos,
    /// The user whose request last left open sockets to be tagged; `None`: root, the group or the
    /// daemon.
    tagging_user: Option<u32>,
    /// True if the last event served a waiting request: then the other sources come first.
    served_request: bool,
    /// The policy file.
    policy: PathBuf,
}

impl Daemon {
    async fn serve(&mut self) -> Result<(), RunError> {
        self.drivers.connect_existing(&mut self.flows, Now::read());
        self.timers.set(Timer::Tick, Some(Now::read().monotonic));
        let estimated = self.service.estimated_links();
        self.sources.estimators.update(estimated);
        loop {
            self.set_timers();
            let connections = self.service.quotas().limit(Quota::Connections);
            self.sources.server.set_connection_limit(connections);
            self.sources.update_exit_events(self.service.host());
            let follow_routes = !self.flows.is_idle();
            let event = self.next(follow_routes).await?;
            if let Event::Stop = event {
                self.service.save_estimates(Now::read());
                return Ok(());
            }
            let (kind, began) = (event.kind(), Now::read());
            self.handle(event, began);
            // An event may have changed the capacity of a link, or what is promised on it.
            self.flows.settle_all(&mut self.service, Now::read());
            self.drivers.carry_out(self.flows.take_commands());
            let estimated = self.service.estimated_links();
            self.sources.estimators.update(estimated);
            let took = Now::read().monotonic.since(began.monotonic);
            if took > SLOW_EVENT {
                tracing::warn!(event = kind, %took, "this event took long and delayed all others");
            }
        }
    }

    /// Waits for the next event. While requests are ready, at least every second event is a
    /// request.
    async fn next(&mut self, follow_routes: bool) -> Result<Event, RunError> {
        let quota = self.service.quotas().time(Quota::ServiceTime);
        let ready = self.queue.ready_at(quota);
        let ready = ready.is_some_and(|at| at <= Now::read().monotonic);
        if ready && !self.served_request {
            self.served_request = true;
            // The tasks of connections run now: they send answers, and hand in requests of other
            // users.
            tokio::task::yield_now().await;
            return Ok(Event::Timer(Timer::Request));
        }
        self.served_request = false;
        tokio::select! {
            biased;
            event = self.sources.next(&mut self.timers, follow_routes) => event,
            () = std::future::ready(()), if ready => {
                self.served_request = true;
                Ok(Event::Timer(Timer::Request))
            }
        }
    }

    /// Answers the next request in turn, or starts the path look-up that it needs, and charges its
    /// user the time that this takes.
    fn serve_next_request(&mut self, now: Now) {
        let quota = self.service.quotas().time(Quota::ServiceTime);
        let Some((user, pending)) = self.queue.pop(quota, now.monotonic) else {
            return;
        };
        if let Some((pending, rights)) = self.sources.lookups.submit(pending) {
            self.answer(pending, rights, now);
        }
        self.charge(user, now);
    }

    fn answer(&mut self, pending: PendingRequest, rights: LookupRights, now: Now) {
        if matches!(pending.request, Request::Doctor(_)) && self.service.needs_probe(now) {
            return self.sources.probes.submit(pending);
        }
        if matches!(pending.request, Request::Users(_)) {
            let doc = self.users(&pending.peer, now);
            drop(pending.reply.send(Response::Users(doc).into()));
            return;
        }
        if let Request::Programs(programs) = pending.request {
            return self.submit_programs(pending, programs, now);
        }
        if processors::may_reserve(&pending.request) {
            self.follow_drivers();
            self.service.set_sending(self.flows.sending_flows());
        }
        let (user, left) = (
            pending.peer.user(),
            self.service.host().unfinished_surveys(),
        );
        let server = &self.sources.server;
        requests::answer(
            &mut self.service,
            &mut self.flows,
            || server.doctor(),
            pending,
            rights,
            now,
        );
        if self.service.host().unfinished_surveys() > left {
            self.tagging_user = user;
        }
    }

    /// Answers a request for the traffic of programs, or lets it wait for the counts.
    fn submit_programs(&mut self, pending: PendingRequest, request: Programs, now: Now) {
        let within = Nanos(request.within_ns);
        let keep = Nanos(request.keep_ns);
        let quotas = self.service.quotas();
        let times = &mut self.counting_times;
        if let Err(refusal) = times.charge(&pending.peer, keep, quotas, now.monotonic) {
            drop(pending.reply.send(Response::from(refusal).into()));
            return;
        }
        let counting = &mut self.sources.programs;
        match counting.submit(pending, within, keep, now.monotonic) {
            Submitted::Waits => {}
            Submitted::Answer(pending, snapshot) => {
                let response = self.service.programs(&pending.peer, &snapshot);
                // The send fails if the peer has closed its connection.
                drop(pending.reply.send(response.into()));
            }
            Submitted::Fails(pending, why) => {
                drop(pending.reply.send(programs_failed(&why).into()))
            }
        }
    }

    /// Answers the requests that waited for a message of the thread that counts programs, and
    /// charges each user the time of the own answer.
    fn programs_counted(&mut self, message: Counted, now: Now) {
        self.service.set_counted(match &message {
            Counted::Snapshot(snapshot) => Some(Arc::clone(snapshot)),
            Counted::Failed(_) | Counted::Ended => None,
        });
        let waited = self.sources.programs.handle(message, now.monotonic);
        let Some((waiting, result)) = waited else {
            return;
        };
        for pending in waiting {
            let began = Now::read();
            let response = match &result {
                Ok(snapshot) => self.service.programs(&pending.peer, snapshot),
                Err(why) => programs_failed(why),
            };
            let user = pending.peer.user();
            drop(pending.reply.send(response.into()));
            self.charge(user, began);
        }
    }

    /// Charges a user the time since `began`, without the time in which this thread waited for a
    /// processor: other programs took that time.
    fn charge(&mut self, user: Option<u32>, began: Now) {
        let quota = self.service.quotas().time(Quota::ServiceTime);
        let after = Now::read().monotonic;
        let waited = process::run_delay();
        let others = waited.0.saturating_sub(self.run_delay.0);
        let took = Nanos(after.since(began.monotonic).0.saturating_sub(others));
        self.run_delay = waited;
        self.queue.charge(user, took, quota, after);
    }

    /// The quotas and the use of each user, as far as `peer` may see them.
    fn users(&self, peer: &Peer, now: Now) -> UsersDoc {
        let quotas = self.service.quotas();
        let mut used = self.service.used();
        for (uid, has) in self.flows.used() {
            used.entry(uid).or_default().extend(has);
        }
        for (uid, count) in self.sources.server.connections() {
            let has = used.entry(uid).or_default();
            has.insert(Quota::Connections, count);
        }
        for (uid, time) in self.counting_times.used(now.monotonic) {
            let has = used.entry(uid).or_default();
            has.insert(Quota::CountingTime, time.0);
        }
        let mut waiting = BTreeMap::new();
        let quota = quotas.time(Quota::ServiceTime);
        for (uid, time, wait) in self.queue.charges(quota, now.monotonic) {
            let has = used.entry(uid).or_default();
            has.insert(Quota::ServiceTime, time.0);
            waiting.insert(uid, wait);
        }
        UsersDoc {
            budgets: self.service.budgets(peer),
            ..users_doc(quotas, &used, &waiting, peer)
        }
    }

    /// Sets the timers that depend on waiting work.
    fn set_timers(&mut self) {
        let has_links = self.service.ledger().links().next().is_some();
        let now = Now::read().monotonic;
        self.timers.repeat_while(has_links, Timer::Balance, now);
        let reserved = self.service.keeps_processors();
        self.timers.repeat_while(reserved, Timer::Processors, now);
        match self.service.host().unfinished_surveys() {
            0 => self.timers.set(Timer::Sockets, None),
            // Other events, however many, do not delay the next portion.
            _ => self
                .timers
                .set_unless_set(Timer::Sockets, now.after(TAGGING_PAUSE)),
        }
        self.timers.set(Timer::Rollback, self.service.next_due());
        self.timers.set(Timer::Flows, self.flows.next_due());
        self.timers
            .set(Timer::Estimates, self.service.estimates_due());
        // A ready request needs no timer: [`Daemon::next`] alternates it with the other events.
        let quota = self.service.quotas().time(Quota::ServiceTime);
        let request_at = self.queue.ready_at(quota).filter(|at| *at > now);
        self.timers.set(Timer::Request, request_at);
    }

    fn handle(&mut self, event: Event, now: Now) {
        self.run_delay = process::run_delay();
        match event {
            Event::Stop => {}
            Event::ReadPolicy => self.service.load_policy(&self.policy, now),
            Event::Timer(timer) => self.handle_timer(timer, now),
            Event::Request(pending) => {
                self.queue
                    .push(pending.peer.user(), *pending, now.monotonic)
            }
            Event::PathLookedUp(looked_up) => {
                let (pending, rights) = *looked_up;
                let user = pending.peer.user();
                self.answer(pending, rights, now);
                self.charge(user, now);
            }
            Event::Probed(findings) => {
                self.service.set_findings(&findings, now);
                for pending in self.sources.probes.take_waiting() {
                    self.answer(pending, LookupRights::NoLookup, now);
                }
            }
            Event::Programs(message) => self.programs_counted(message, now),
            Event::Estimated(message) => {
                if self.sources.estimators.is_present(&message) {
                    self.service.handle_estimated(*message, now);
                    let took = Now::read().monotonic.since(now.monotonic);
                    self.service.delay_estimates(took, now);
                }
            }
            Event::Metrics(scrape) => {
                // The send fails if the scraper has closed its connection; the page is dropped
                // then.
                let page = match self.service.page(now) {
                    Some(page) => page,
                    None => {
                        let users = self.users(&Peer::METRICS, now);
                        self.service.metrics(&users, now)
                    }
                };
                let _ = scrape.send(page);
            }
            Event::Driver((link, connection, event)) => {
                if self.drivers.is_present(&link, connection) {
                    self.flows
                        .handle_driver_event(&mut self.service, &link, event, now);
                }
            }
            Event::ConnectionEnded(session) => self.flows.connection_ended(session, now),
            Event::Routes(changes) => {
                self.flows.routes_changed(&mut self.service, &changes, now);
            }
            Event::IcmpErrors(errors) => self.flows.icmp_errors(&errors, now),
            Event::Links => {
                // A container's first packet is limited only if its new interface is handled at
                // once.
                self.service.place_containers();
                self.set_timer_after(Timer::Repair, LINKS_SETTLE, now);
            }
            Event::Groups => self.set_timer_after(Timer::Sweep, Nanos(0), now),
            Event::UnitFiles => self.set_timer_after(Timer::UnitFiles, FILES_SETTLE, now),
            Event::ProcessesEnded => self.set_timer_after(Timer::Sweep, EXITS_SETTLE, now),
        }
    }

    fn handle_timer(&mut self, timer: Timer, now: Now) {
        match timer {
            Timer::Request => self.serve_next_request(now),
            Timer::Sockets => {
                self.service.continue_survey(self.tagging_user, now);
                self.charge(self.tagging_user, now);
            }
            Timer::Rollback => self.service.expire(now),
            Timer::Sweep => self.service.close_and_rebind(now),
            Timer::UnitFiles => {
                self.service.reload_units(now);
                self.sources.unit_files.watch(self.service.unit_folders());
            }
            Timer::Repair => self.service.repair(now),
            Timer::Balance => {
                self.service.balance(now);
                self.flows.balance(Now::read());
            }
            Timer::Processors => {
                self.follow_drivers();
                self.follow_flows(now);
                self.service.step_processors(now);
            }
            Timer::Estimates => {
                self.service.follow_estimates(now);
                let took = Now::read().monotonic.since(now.monotonic);
                self.service.delay_estimates(took, now);
            }
            Timer::Tick => {
                // If no watchdog message arrives for `WatchdogSec=`, the service manager restarts
                // the daemon; the kernel keeps enforcing meanwhile.
                let _ = sd_notify::notify(&[NotifyState::Watchdog]);
                self.follow_drivers();
                self.service.tick(now);
                self.flows.tick(Now::read());
                self.drivers.bound_outputs();
                self.sources.groups.watch(&group_folders(&self.service));
                self.sources.unit_files.watch(self.service.unit_folders());
            }
            Timer::Flows => self.flows.handle_timeouts(&mut self.service, now),
        }
    }

    /// Sets a timer for the expected end of a burst of changes, unless it is set.
    fn set_timer_after(&mut self, timer: Timer, settle: Nanos, now: Now) {
        self.timers
            .set_unless_set(timer, now.monotonic.after(settle));
    }
}

/// The response if programs cannot be counted.
fn programs_failed(why: &str) -> Response {
    Response::failed(format!(
        "cannot count what programs send and receive: {why}"
    ))
}

/// The folders in which held control groups appear and disappear.
fn group_folders(service: &Service<KernelHost>) -> BTreeSet<PathBuf> {
    let Ok(root) = cgroup::root() else {
        return BTreeSet::new();
    };
    let above = |path: String| {
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        root.join(above.trim_start_matches('/'))
    };
    service.group_paths().into_iter().map(above).collect()
}

/// The pause between two portions of sockets, in which other events are handled.
const TAGGING_PAUSE: Nanos = Nanos::from_millis(1);
/// An event that takes longer is logged.
const SLOW_EVENT: Nanos = Nanos::from_millis(100);
/// Delay from the first change of unit files until they are read: a file is written in several
/// steps, and often many files at once.
const FILES_SETTLE: Nanos = Nanos::from_millis(200);
/// Delay from the first change of interfaces until they are checked: changes come in bursts.
const LINKS_SETTLE: Nanos = Nanos::from_millis(50);
/// Delay from the first exit event until targets are checked: the event comes just before the
/// process leaves the members table, and many processes end together.
const EXITS_SETTLE: Nanos = Nanos::from_millis(20);
