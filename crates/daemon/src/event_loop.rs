//! The event loop: one thread handles one event at a time, from one queue, with one timer table and
//! one sleep.
//!
//! ```text
//!   signals ─────────────┐
//!   timers ──────────────┤                  ┌─> service: requests, policy, repair, sweep
//!   requests, metrics ───┼─> Event ─> handle┤
//!   drivers, programs ───┤                  └─> flows: requests, driver messages ──> commands
//!   netlink, inotify ────┤                        │
//!   ends of processes ───┘                        └── settled with the ledger after each event
//! ```
//!
//! Requests wait in [`turns`], so that neither a user with many connections nor the requests as a
//! whole delay the other events.
//!
//! Each connection has a task of its own, which reads, writes and hands in complete requests; the
//! tasks change no state. An event is handled at one time, `now`, which is passed down as an
//! argument. The loop logs an event that takes longer than [`LONG`], because it delayed all others.

mod failure;
mod listeners;
mod requests;
mod sight;
mod sources;
mod timers;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use netnice_api::{Request, Response, RuntimeDir, UsersDoc};
use netnice_core::units::Nanos;
use netnice_kernel::cgroup;
use sd_notify::NotifyState;

pub(crate) use failure::During;
pub use failure::RunError;

use crate::clock::Now;
use crate::flows::Flows;
use crate::flows::drivers::Drivers;
use crate::flows::network::KernelNetwork;
use crate::host::kernel::KernelHost;
use crate::host::{Enforcer, Sight};
use crate::meter::metrics::serve::Address;
use crate::peer::Peer;
use crate::quotas::Quota;
use crate::server::Ask;
use crate::service::Service;
use crate::service::users::document;
use sources::{Event, Sources};
use timers::{Timer, Timers};
use turns::Turns;

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
}

/// Runs the event loop until SIGTERM or SIGINT.
///
/// # Errors
/// If a source of events cannot be opened or fails permanently.
pub(crate) async fn run(
    settings: &Settings<'_>,
    mut service: Service<KernelHost>,
) -> Result<(), RunError> {
    let numbers = service.host().numbers();
    let own = numbers.during("find out who the daemon is to netlink")?;
    let (sources, drivers) = Sources::open(settings, own).await?;
    let network = KernelNetwork::open().during("ask about ways")?;
    let mut daemon = Daemon {
        service,
        flows: Flows::new(network),
        drivers,
        sources,
        timers: Timers::default(),
        turns: Turns::default(),
        looker: None,
        asked_last: false,
        policy: settings.policy.to_owned(),
    };
    daemon.serve().await?;
    tracing::info!("stopping; what is in force stays in force");
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
    turns: Turns<Ask>,
    /// The user whose request last left open sockets to be tagged; `None`: root, the group or the
    /// daemon.
    looker: Option<u32>,
    /// True if the last event was a request: then the other sources come first.
    asked_last: bool,
    /// The policy file.
    policy: PathBuf,
}

impl Daemon {
    async fn serve(&mut self) -> Result<(), RunError> {
        self.drivers.find(&mut self.flows, Now::read());
        self.timers.set(Timer::Tick, Some(Now::read().monotonic));
        loop {
            self.set_timers();
            let connections = self.service.quotas().limit(Quota::Connections);
            self.sources.server.permit(connections);
            self.sources.follow_ends(self.service.host());
            let follow_routes = !self.flows.is_idle();
            let event = self.next(follow_routes).await?;
            if let Event::Stop = event {
                return Ok(());
            }
            let (kind, began) = (event.kind(), Now::read());
            self.handle(event, began);
            // An event may have changed the capacity of a link, or what is promised on it.
            self.flows.settle_all(&mut self.service, Now::read());
            self.drivers.obey(self.flows.take_orders());
            let took = Now::read().monotonic.since(began.monotonic);
            if took > LONG {
                tracing::warn!(event = kind, %took, "one event held up all others");
            }
        }
    }

    /// Waits for the next event. While requests are ready, every second event is a request.
    async fn next(&mut self, follow_routes: bool) -> Result<Event, RunError> {
        let quota = self.service.quotas().time(Quota::ServiceTime);
        let ready = self.turns.ready_at(quota);
        let ready = ready.is_some_and(|at| at <= Now::read().monotonic);
        if ready && !self.asked_last {
            self.asked_last = true;
            // Lets the tasks send answers and hand in requests of other users before the next
            // request.
            tokio::task::yield_now().await;
            return Ok(Event::Due(Timer::Turn));
        }
        self.asked_last = false;
        tokio::select! {
            biased;
            event = self.sources.next(&mut self.timers, follow_routes) => event,
            () = std::future::ready(()), if ready => {
                self.asked_last = true;
                Ok(Event::Due(Timer::Turn))
            }
        }
    }

    /// Answers the next request in turn, and charges its user the time it takes.
    fn take_turn(&mut self, now: Now) {
        let quota = self.service.quotas().time(Quota::ServiceTime);
        let Some((user, ask)) = self.turns.pop(quota, now.monotonic) else {
            return;
        };
        if let Some((ask, sight)) = self.sources.sights.look(ask) {
            self.answer(ask, sight, now);
        }
        self.charge(user, now);
    }

    fn answer(&mut self, ask: Ask, sight: Sight, now: Now) {
        if matches!(ask.request, Request::Users(_)) {
            let doc = self.users(&ask.peer, now);
            drop(ask.reply.send(Response::Users(doc).into()));
            return;
        }
        let (user, left) = (ask.peer.user(), self.service.host().looks_left());
        let server = &self.sources.server;
        requests::answer(
            &mut self.service,
            &mut self.flows,
            || server.doctor(),
            ask,
            sight,
            now,
        );
        if self.service.host().looks_left() > left {
            self.looker = user;
        }
    }

    /// Charges a user the time since `began`.
    fn charge(&mut self, user: Option<u32>, began: Now) {
        let quota = self.service.quotas().time(Quota::ServiceTime);
        let after = Now::read().monotonic;
        let took = after.since(began.monotonic);
        self.turns.charge(user, took, quota, after);
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
        let mut waiting = BTreeMap::new();
        let quota = quotas.time(Quota::ServiceTime);
        for (uid, time, wait) in self.turns.of_users(quota, now.monotonic) {
            let has = used.entry(uid).or_default();
            has.insert(Quota::ServiceTime, time.0);
            waiting.insert(uid, wait);
        }
        document(quotas, &used, &waiting, peer)
    }

    /// Sets the timers that depend on waiting work.
    fn set_timers(&mut self) {
        let has_links = self.service.ledger().links().next().is_some();
        let now = Now::read().monotonic;
        self.timers.repeat_while(has_links, Timer::Balance, now);
        let is_looking = self.service.host().looks_left() > 0;
        self.timers
            .set(Timer::Sockets, is_looking.then(|| now.after(BETWEEN_LOOKS)));
        self.timers.set(Timer::Rollback, self.service.next_due());
        self.timers.set(Timer::Flows, self.flows.next_due());
        // A ready request needs no timer: [`Daemon::next`] alternates it with the other events.
        let quota = self.service.quotas().time(Quota::ServiceTime);
        let turn = self.turns.ready_at(quota).filter(|at| *at > now);
        self.timers.set(Timer::Turn, turn);
    }

    fn handle(&mut self, event: Event, now: Now) {
        match event {
            Event::Stop => {}
            Event::ReadPolicy => self.service.obey(&self.policy, now),
            Event::Due(timer) => self.is_due(timer, now),
            Event::Came(ask) => self.turns.push(ask.peer.user(), *ask, now.monotonic),
            Event::Looked(looked) => {
                let (ask, sight) = *looked;
                let user = ask.peer.user();
                self.answer(ask, sight, now);
                self.charge(user, now);
            }
            Event::Scraped(scrape) => {
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
            Event::Driver((link, connection, heard)) => {
                if self.drivers.is_present(&link, connection) {
                    self.flows.heard(&mut self.service, &link, heard, now);
                }
            }
            Event::Left(session) => self.flows.left(session, now),
            Event::Routes(changes) => {
                self.flows.ways_changed(&mut self.service, &changes, now);
                if self.flows.wants_look() {
                    self.soon(Timer::Routes, LINKS_SETTLE, now);
                }
            }
            Event::Links => {
                // A container's first packet is limited only if its new interface is handled at
                // once.
                self.service.house();
                self.soon(Timer::Repair, LINKS_SETTLE, now);
            }
            Event::Groups => self.soon(Timer::Sweep, Nanos(0), now),
            Event::UnitFiles => self.soon(Timer::UnitFiles, FILES_SETTLE, now),
            Event::Ended => self.soon(Timer::Sweep, ENDS_SETTLE, now),
        }
    }

    fn is_due(&mut self, timer: Timer, now: Now) {
        match timer {
            Timer::Turn => self.take_turn(now),
            Timer::Sockets => {
                self.service.look_on(self.looker, now);
                self.charge(self.looker, now);
            }
            Timer::Rollback => self.service.expire(now),
            Timer::Sweep => self.service.tidy(now),
            Timer::UnitFiles => {
                self.service.look_at_units(now);
                self.sources.unit_files.watch(self.service.unit_folders());
            }
            Timer::Repair => self.service.repair(now),
            Timer::Balance => {
                self.service.balance(now);
                self.flows.balance(Now::read());
            }
            Timer::Tick => {
                // If no watchdog message arrives for `WatchdogSec=`, the service manager restarts
                // the daemon; the kernel keeps enforcing meanwhile.
                let _ = sd_notify::notify(&[NotifyState::Watchdog]);
                self.service.tick(now);
                self.flows.tick(Now::read());
                self.drivers.bound_outputs();
                self.sources.groups.watch(&group_folders(&self.service));
                self.sources.unit_files.watch(self.service.unit_folders());
            }
            Timer::Flows | Timer::Routes => self.flows.look(&mut self.service, now),
        }
    }

    /// Sets a timer for the expected end of a burst of changes, unless it is set.
    fn soon(&mut self, timer: Timer, settle: Nanos, now: Now) {
        self.timers
            .set_unless_set(timer, now.monotonic.after(settle));
    }
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
const BETWEEN_LOOKS: Nanos = Nanos::from_millis(1);
/// An event that takes longer is logged.
const LONG: Nanos = Nanos::from_millis(100);
/// A file is written in several steps, and often many files at once.
const FILES_SETTLE: Nanos = Nanos::from_millis(200);
/// Changes of interfaces come in bursts.
const LINKS_SETTLE: Nanos = Nanos::from_millis(50);
/// The exit event comes just before its process leaves the map, and many processes end together.
const ENDS_SETTLE: Nanos = Nanos::from_millis(20);
