//! The sources of events for the event loop: signals, timers, requests, path look-ups, probes of
//! the kernel, counts of programs, scrapes of the metrics page, drivers, ends of programs'
//! connections, netlink, inotify, and the ring buffer in which eBPF programs report ended processes
//! (the exit ring). The event loop waits only here. [`Sources::next`] waits for one [`Event`] and
//! returns it. It fails if a source cannot be waited for any more. Opening the sources fails if a
//! descriptor or a socket cannot be made.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;

use listenfd::ListenFd;
use netnice_kernel::icmp_errors::{ErrorSocket, IcmpError};
use netnice_kernel::probe::Finding;
use netnice_kernel::routes::RouteChange;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::Settings;
use super::failure::{During, RunError};
use super::listeners::{ExitEvents, FolderEvents, IcmpErrors, LinkEvents, RouteEvents};
use super::path_lookup::PathLookups;
use super::probe::Probes;
use super::timers::{Timer, Timers};
use crate::clock::Now;
use crate::estimate::{self, Estimated, Estimators};
use crate::flows::driver;
use crate::flows::drivers::{DriverEvents, Drivers};
use crate::host::kernel::KernelHost;
use crate::host::{Enforcer, LookupRights};
use crate::meter::metrics::http::{self, Scrape};
use crate::programs::{Counted, ProgramCounting};
use crate::server::{FrontSupervisor, PendingRequest};

/// An event, with what its handler needs.
pub(super) enum Event {
    /// SIGTERM or SIGINT came.
    Stop,
    /// SIGHUP came.
    ReadPolicy,
    /// A timer is due.
    Timer(Timer),
    /// A request arrived.
    Request(Box<PendingRequest>),
    /// The path of a request was looked up with its user's rights.
    PathLookedUp(Box<(PendingRequest, LookupRights)>),
    /// The features of the kernel were probed.
    Probed(Vec<Finding>),
    /// The thread that counts programs sent a message.
    Programs(Counted),
    /// The thread of an estimated link sent a message.
    Estimated(Box<Estimated>),
    /// A scraper requests the metrics page.
    Metrics(Scrape),
    /// A driver connected, sent a message or ended.
    Driver(driver::FromDriver),
    /// The connection of a program with flows ended. The number is its session.
    ConnectionEnded(u64),
    /// Routes or next hops changed.
    Routes(Vec<RouteChange>),
    /// ICMP errors arrived.
    IcmpErrors(Vec<IcmpError>),
    /// Another program changed interfaces, qdiscs, classes or filters, or such an event was lost.
    Links,
    /// Control groups appeared or disappeared beside held ones.
    Groups,
    /// Files in the folders of unit files appeared, disappeared or were written.
    UnitFiles,
    /// Members of targets ended.
    ProcessesEnded,
}

impl Event {
    /// The event's kind, for the log.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Event::Stop => "stop",
            Event::ReadPolicy => "read the policy",
            Event::Timer(timer) => timer.name(),
            Event::Request(_) => "request",
            Event::PathLookedUp(_) => "path look-up",
            Event::Probed(_) => "probe",
            Event::Programs(_) => "counts of programs",
            Event::Estimated(_) => "estimate of a link",
            Event::Metrics(_) => "metrics",
            Event::Driver(_) => "driver",
            Event::ConnectionEnded(_) => "end of a connection",
            Event::Routes(_) => "change of routes",
            Event::IcmpErrors(_) => "ICMP errors",
            Event::Links => "change of interfaces",
            Event::Groups => "change of control groups",
            Event::UnitFiles => "change of unit files",
            Event::ProcessesEnded => "end of a process",
        }
    }
}

/// All sources of events.
pub(super) struct Sources {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// The socket of the daemon, with the front process that reads it.
    pub server: Rc<FrontSupervisor>,
    /// The future that serves the socket. It does not end while `requests` exists.
    listening: Pin<Box<dyn Future<Output = ()>>>,
    requests: mpsc::Receiver<PendingRequest>,
    /// The threads that look up paths with the rights of the requesting user.
    pub lookups: PathLookups,
    looked_up: mpsc::Receiver<(PendingRequest, LookupRights)>,
    /// The thread that probes the kernel.
    pub probes: Probes,
    probed: mpsc::Receiver<Vec<Finding>>,
    /// The thread that counts what programs send and receive.
    pub programs: ProgramCounting<PendingRequest>,
    counted: mpsc::Receiver<Counted>,
    /// The threads that estimate the rates of links.
    pub estimators: Estimators,
    scrapes: mpsc::Receiver<Scrape>,
    drivers: DriverEvents,
    disconnected: UnboundedReceiver<u64>,
    routes: RouteEvents,
    /// ICMP errors of IPv4 and IPv6.
    icmp_errors: [Option<IcmpErrors>; 2],
    links: LinkEvents,
    /// The folders in which held control groups appear and disappear.
    pub groups: FolderEvents,
    /// The folders of unit files.
    pub unit_files: FolderEvents,
    /// The exit ring, while the eBPF programs are loaded.
    exits: Option<ExitEvents>,
}

impl Sources {
    /// Opens all sources and starts to serve. `own_ports` are the port ids of the daemon's netlink
    /// sockets; changes by these sockets cause no event. The second result makes the connections to
    /// drivers.
    ///
    /// # Errors
    /// If a source cannot be opened.
    pub(super) async fn open(
        settings: &Settings<'_>,
        own_ports: Vec<u32>,
    ) -> Result<(Sources, Drivers), RunError> {
        let terminate = signal(SignalKind::terminate()).during("install a signal handler")?;
        let interrupt = signal(SignalKind::interrupt()).during("install a signal handler")?;
        let hangup = signal(SignalKind::hangup()).during("install a signal handler")?;
        let links = LinkEvents::open(own_ports).during("listen to netlink")?;
        let groups = FolderEvents::open().during("watch folders")?;
        let unit_files = FolderEvents::open_for_files().during("watch unit files")?;
        let (to_service, requests) = mpsc::channel::<PendingRequest>(QUEUE_LENGTH);
        let (lookups, looked_up) = PathLookups::new();
        let (probes, probed) = Probes::new();
        let (programs, counted) = ProgramCounting::new();
        let path = settings.runtime.socket();
        let mut server = listen(&path).during(&format!("listen at {}", path.display()))?;
        if settings.take_descriptors {
            server = server.taking_descriptors();
        }
        let server = Rc::new(server);
        tracing::info!(socket = %path.display(), "serving");
        // Notifies the service manager, if `NOTIFY_SOCKET` names one.
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        let serving = Rc::clone(&server);
        let listening = Box::pin(async move { serving.serve(to_service).await });
        let (to_page, scrapes) = mpsc::channel::<Scrape>(QUEUE_LENGTH);
        if let Some(address) = settings.metrics {
            let what = format!("serve metrics at {}", address.0);
            match http::listen(address).await.during(&what) {
                Ok(listener) => {
                    tracing::info!(address = %address.0, "serving metrics");
                    spawn_local(http::serve(listener, to_page));
                }
                Err(error) if settings.resumed => tracing::error!("{error}"),
                Err(error) => return Err(error),
            }
        }
        let routes = RouteEvents::open().during("listen to netlink")?;
        let icmp_errors = [ErrorSocket::v4(), ErrorSocket::v6()].map(icmp_errors);
        let (connections, drivers, disconnected) =
            Drivers::new(settings.runtime.path(), settings.write_stops);
        let sources = Sources {
            terminate,
            interrupt,
            hangup,
            server,
            listening,
            requests,
            lookups,
            looked_up,
            probes,
            probed,
            programs,
            counted,
            estimators: Estimators::default(),
            scrapes,
            drivers,
            disconnected,
            routes,
            icmp_errors,
            links,
            groups,
            unit_files,
            exits: None,
        };
        Ok((sources, connections))
    }

    /// Ends the front process after it has sent its last answers.
    pub(super) async fn end(self) {
        drop(self.listening);
        if let Ok(server) = Rc::try_unwrap(self.server) {
            server.end().await;
        }
    }

    /// Watches the exit ring while the eBPF programs are loaded.
    pub(super) fn update_exit_events(&mut self, host: &mut KernelHost) {
        if !host.is_enforcing() {
            self.exits = None;
        } else if self.exits.is_none() {
            match host.take_exits() {
                Ok(exits) => self.exits = ExitEvents::new(exits).ok(),
                Err(error) => {
                    tracing::debug!(%error, "no exit events: ends of processes are detected once a \
                        second")
                }
            }
        }
    }

    /// Waits for the next event. If several are ready, signals come first, then due timers, then
    /// looked-up paths, probes and counts, then requests, then all others.
    ///
    /// # Errors
    /// If a source cannot be waited for any more.
    pub(super) async fn next(
        &mut self,
        timers: &mut Timers,
        follow_routes: bool,
    ) -> Result<Event, RunError> {
        let estimates = self.estimators.mailbox();
        loop {
            let event = tokio::select! {
                biased;
                _ = self.terminate.recv() => Event::Stop,
                _ = self.interrupt.recv() => Event::Stop,
                _ = self.hangup.recv() => Event::ReadPolicy,
                () = earliest(timers) => match timers.take_due(Now::read().monotonic) {
                    Some(timer) => Event::Timer(timer),
                    None => continue,
                },
                Some(looked_up) = self.looked_up.recv() => Event::PathLookedUp(Box::new(looked_up)),
                Some(findings) = self.probed.recv() => Event::Probed(findings),
                Some(counted) = self.counted.recv() => Event::Programs(counted),
                Some(request) = self.requests.recv() => Event::Request(Box::new(request)),
                Some(changed) = self.drivers.recv() => Event::Driver(changed),
                Some(session) = self.disconnected.recv() => Event::ConnectionEnded(session),
                changes = self.routes.changed(), if follow_routes => {
                    Event::Routes(changes.during("read netlink events")?)
                }
                errors = next_errors(&mut self.icmp_errors), if follow_routes => {
                    Event::IcmpErrors(errors.during("read ICMP errors")?)
                }
                estimated = estimate::take(&estimates) => Event::Estimated(Box::new(estimated)),
                Some(scrape) = self.scrapes.recv() => Event::Metrics(scrape),
                changed = self.links.changed() => {
                    changed.during("read netlink events")?;
                    Event::Links
                }
                changed = self.groups.changed() => {
                    changed.during("read events of the folders of control groups")?;
                    Event::Groups
                }
                changed = self.unit_files.changed() => {
                    changed.during("read events of the folders of unit files")?;
                    Event::UnitFiles
                }
                changed = next_exit(&mut self.exits) => {
                    changed.during("read exit events")?;
                    Event::ProcessesEnded
                }
                () = &mut self.listening => Event::Stop,
            };
            return Ok(event);
        }
    }
}

/// Waits until the earliest timer is due; for ever if there is none.
async fn earliest(timers: &Timers) {
    match timers.next() {
        None => std::future::pending().await,
        Some(at) => {
            let now = Now::read().monotonic;
            if at > now {
                sleep(at.since(now).into()).await;
            }
        }
    }
}

/// The source of ICMP errors of one family; `None` if the kernel refuses the socket. Flows then get
/// no errors.
fn icmp_errors(socket: io::Result<ErrorSocket>) -> Option<IcmpErrors> {
    match socket.and_then(IcmpErrors::new) {
        Ok(errors) => Some(errors),
        Err(error) => {
            tracing::debug!(%error, "direct flows get no ICMP errors of one address family");
            None
        }
    }
}

async fn next_errors(sockets: &mut [Option<IcmpErrors>; 2]) -> io::Result<Vec<IcmpError>> {
    let [v4, v6] = sockets;
    let next = async |socket: &mut Option<IcmpErrors>| match socket {
        Some(socket) => socket.next().await,
        None => std::future::pending().await,
    };
    tokio::select! {
        errors = next(v4) => errors,
        errors = next(v6) => errors,
    }
}

async fn next_exit(exits: &mut Option<ExitEvents>) -> io::Result<()> {
    match exits {
        Some(exits) => exits.next_exit().await,
        None => std::future::pending().await,
    }
}

/// The socket that a service manager passed to the daemon, else a new one. Fails if the passed
/// socket has another path, or a socket cannot be made.
fn listen(path: &Path) -> io::Result<FrontSupervisor> {
    let passed = ListenFd::from_env().take_unix_listener(0)?;
    match passed {
        None => FrontSupervisor::bind(path),
        Some(listener) => {
            let name = listener.local_addr()?;
            if name.as_pathname() != Some(path) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!(
                        "the service manager passed the socket {name:?}, not {}",
                        path.display()
                    ),
                ));
            }
            FrontSupervisor::take_over(listener)
        }
    }
}

/// Length of the queues of requests and of scrapes that the loop has not taken yet.
const QUEUE_LENGTH: usize = 64;
