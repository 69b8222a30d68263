//! The life of the daemon: start, serve, stop.
//!
//! ```text
//!   lock the folder ─> read the state ─> adopt what the kernel holds ─> policy ─> listen ─> serve ─> SIGTERM: stop
//! ```
//!
//! Stopping lifts nothing: the kernel goes on, and the next daemon finds it all again. SIGHUP reads the policy again.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use listenfd::ListenFd;
use netnice_api::{Clear, ClearWhat, DoctorReport, Request, Response, RuntimeDir};
use netnice_core::target::Target;
use netnice_kernel::enforce::Kernel;
use netnice_kernel::process::{self, PidFd};
use netnice_kernel::{cgroup, probe};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::clerk::doctor::item;
use crate::clerk::{Clerk, Named, Record};
use crate::clock::Now;
use crate::containers::Engines;
use crate::direct;
use crate::direct::drivers::Drivers;
use crate::direct::network::{KernelNetwork, Network};
use crate::direct::tell::What;
use crate::direct::{Asked, Caller, Flows};
use crate::enforce::Host;
use crate::enforce::kernel::KernelHost;
use crate::metrics::serve::{self, Address, Scrape};
use crate::runtime::Runtime;
use crate::server::{Ask, Server};
use crate::state::{StateError, Store};
use crate::units;
use crate::watch::{Ends, Folders, Links, Ways};
use crate::watchdog::Watchdog;

/// How the daemon is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its runtime folder.
    pub runtime: RuntimeDir,
    /// The policy file.
    pub policy: PathBuf,
    /// Where metrics are served, if they are.
    pub metrics: Option<Address>,
    /// Where engines of containers keep their records, if elsewhere than their own configuration says.
    pub docker_root: Option<PathBuf>,
    /// The same of Podman.
    pub podman_root: Option<PathBuf>,
    /// Clients may send descriptors, as on kernels before 6.16, where they cannot be refused. For tests.
    pub take_descriptors: bool,
}

impl Options {
    fn engines(&self) -> Engines {
        let installed = Engines::installed();
        Engines {
            docker: self.docker_root.clone().unwrap_or(installed.docker),
            podman: self.podman_root.clone().unwrap_or(installed.podman),
        }
    }
}

/// Why the daemon could not start, or not go on.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct RunError {
    /// What it was doing.
    what: String,
    /// What came between.
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Says of an error what was being done.
trait During<T> {
    fn during(self, what: &str) -> Result<T, RunError>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> During<T> for Result<T, E> {
    fn during(self, what: &str) -> Result<T, RunError> {
        self.map_err(|source| RunError {
            what: what.to_owned(),
            source: source.into(),
        })
    }
}

/// Runs the daemon until it is told to stop.
pub fn run(options: &Options) -> Result<(), RunError> {
    let folder = options.runtime.path();
    let runtime = Runtime::take(folder).during("take the runtime folder")?;
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Connections, maps and programs: where the limit cannot be raised, fewer connections are held.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    let boot = process::boot().during("tell this run of the machine from others")?;
    let namespace = process::netns_cookie().during("tell this network namespace from others")?;
    let store = Store::new(folder, &boot, namespace);
    let record = read(&store)?;
    let kernel = Kernel::open(folder, probe::leaves()).during("open the kernel's side")?;
    let swept = kernel.was_swept();
    let host = KernelHost::new(kernel, options.engines()).during("open the kernel's side")?;
    let mut clerk = Clerk::new(host, Some(store));
    if swept {
        clerk.say(
            Now::read(),
            "what was in force was of another version of netniced: it is laid anew",
        );
    }
    clerk.start(record, Now::read());
    clerk.look_for_units(units::search_path());
    clerk.obey(&options.policy, Now::read());
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .during("start the runtime")?;
    LocalSet::new().block_on(&executor, live(options, clerk))?;
    runtime.leave();
    Ok(())
}

/// What this kernel offers, told without a daemon.
pub fn examine() -> DoctorReport {
    let found = probe::probe();
    let items = found.iter().map(item);
    DoctorReport {
        items: items.chain(direct::tell::examine()).collect(),
    }
}

/// Reads the state; one that is damaged is put aside, so that it is neither guessed at nor lost.
fn read(store: &Store) -> Result<Record, RunError> {
    let error = match store.load() {
        Ok(None) => return Ok(Record::None),
        Ok(Some(state)) => return Ok(Record::Whole(Box::new(state))),
        Err(error) => error,
    };
    match error {
        StateError::Damaged { .. } => {
            let aside = store.put_aside().during("put the damaged state aside")?;
            Ok(Record::Lost(format!(
                "{error}; it is kept as {}",
                aside.display()
            )))
        }
        other => Err(other).during("read the state"),
    }
}

async fn live(options: &Options, mut clerk: Clerk<KernelHost>) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).during("hear signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).during("hear signals")?;
    let mut hangup = signal(SignalKind::hangup()).during("hear signals")?;
    let mut ticks = every(TICK);
    let mut balances = every(BALANCE);
    let mut links = Links::open(
        clerk
            .host()
            .numbers()
            .during("find out who the daemon is to netlink")?,
    )
    .during("listen to netlink")?;
    let mut folders = Folders::open().during("watch folders")?;
    let mut unit_files = Folders::open_for_files().during("watch unit files")?;
    let mut units_at: Option<Instant> = None;
    let mut ends: Option<Ends> = None;
    let mut look_at: Option<Instant> = None;
    let mut sweep_at: Option<Instant> = None;
    let (to_clerk, mut asks) = mpsc::channel::<Ask>(1);
    let path = options.runtime.socket();
    let mut server = listen(&path).during(&format!("listen at {}", path.display()))?;
    if options.take_descriptors {
        server = server.taking_descriptors();
    }
    tracing::info!(socket = %path.display(), "serving");
    // Tells a service manager, where one asked to be told; nobody else hears it.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let mut listening = Box::pin(server.serve(to_clerk));
    let (to_page, mut scrapes) = mpsc::channel::<Scrape>(WAITING);
    if let Some(address) = options.metrics {
        let what = format!("serve metrics at {}", address.0);
        let listener = serve::listen(address).await.during(&what)?;
        tracing::info!(address = %address.0, "serving metrics");
        spawn_local(serve::serve(listener, to_page));
    }
    let network = KernelNetwork::open().during("ask about ways")?;
    let mut flows = Flows::new(network);
    let mut ways = Ways::open().during("listen to netlink")?;
    let (mut drivers, mut from_drivers, mut left) = Drivers::new(options.runtime.path());
    drivers.find(&mut flows, Now::read());
    let mut ways_at: Option<Instant> = None;
    let mut watchdog = Watchdog::default();
    loop {
        listen_to_ends(&mut clerk, &mut ends);
        let flows_due = flows.next_due().map(from_monotonic);
        let due = clerk.next_due().map(from_monotonic);
        let has_links = clerk.ledger().links().next().is_some();
        tokio::select! {
            biased;
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => clerk.obey(&options.policy, Now::read()),
            () = at(due) => clerk.expire(Now::read()),
            () = at(sweep_at) => {
                sweep_at = None;
                clerk.tidy(Now::read());
            }
            () = at(units_at) => {
                units_at = None;
                clerk.look_at_units(Now::read());
                unit_files.watch(clerk.unit_folders());
            }
            () = at(look_at) => {
                look_at = None;
                clerk.repair(true, Now::read());
            }
            _ = balances.tick(), if has_links => {
                clerk.balance(Now::read());
                flows.balance(Now::read());
            }
            due = ticks.tick() => {
                watchdog.turned(due, Instant::now());
                clerk.tick(Now::read());
                flows.tick(Now::read());
                folders.watch(&group_folders(&clerk));
                unit_files.watch(clerk.unit_folders());
            }
            Some(ask) = asks.recv() => answer(&mut clerk, &mut flows, &server, ask),
            Some((link, connection, heard)) = from_drivers.recv() => {
                if drivers.is_present(&link, connection) {
                    flows.heard(&mut clerk, &link, heard, Now::read());
                }
            }
            Some(session) = left.recv() => flows.left(session, Now::read()),
            () = at(flows_due) => flows.look(&mut clerk, Now::read()),
            () = at(ways_at) => {
                ways_at = None;
                flows.look(&mut clerk, Now::read());
            }
            heard = ways.changed(), if !flows.is_idle() => {
                let changes = heard.during("listen to netlink any more")?;
                flows.ways_changed(&mut clerk, &changes, Now::read());
                if flows.wants_look() {
                    ways_at.get_or_insert(Instant::now() + LINKS_SETTLE);
                }
            }
            Some(scrape) = scrapes.recv() => {
                // Who has gone meanwhile misses the page.
                let _ = scrape.send(clerk.metrics(Now::read()));
            }
            heard = links.changed() => {
                heard.during("listen to netlink any more")?;
                // A container that starts is held from its first packet on if its interface is seen to at once.
                clerk.house();
                look_at.get_or_insert(Instant::now() + LINKS_SETTLE);
            }
            heard = folders.changed() => {
                heard.during("watch folders any more")?;
                sweep_at.get_or_insert(Instant::now());
            }
            heard = unit_files.changed() => {
                heard.during("watch unit files any more")?;
                units_at.get_or_insert(Instant::now() + FILES_SETTLE);
            }
            heard = ended(&mut ends), if ends.is_some() => {
                heard.during("hear of ends any more")?;
                sweep_at.get_or_insert(Instant::now() + ENDS_SETTLE);
            }
            () = &mut listening => break,
        }
        // Whatever happened may have changed what a link carries, or what is promised on it.
        flows.settle_all(&mut clerk, Now::read());
        drivers.obey(flows.take_orders());
    }
    tracing::info!("stopping; what is in force stays in force");
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    drop(listening);
    server.end().await;
    Ok(())
}

/// Our own socket, or the one that a service manager listens on for us.
fn listen(path: &Path) -> io::Result<Server> {
    let handed = ListenFd::from_env().take_unix_listener(0)?;
    match handed {
        None => Server::bind(path),
        Some(listener) => {
            let name = listener.local_addr()?;
            if name.as_pathname() != Some(path) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("the socket that was handed over is {name:?}, another one"),
                ));
            }
            Server::take_over(listener)
        }
    }
}

fn answer<H: Host, N: Network>(
    clerk: &mut Clerk<H>,
    flows: &mut Flows<N>,
    server: &Server,
    ask: Ask,
) {
    let now = Now::read();
    let Ask {
        peer,
        request,
        fd,
        guest,
        reply,
    } = ask;
    let named = fd.and_then(PidFd::received);
    if let Request::Direct(request) = request {
        let caller = named.and_then(|(handle, pid)| {
            Some(Caller {
                pid,
                handle: handle.duplicate().ok()?,
                lives: Box::new(move || handle.lives()),
            })
        });
        let asked = Asked {
            peer,
            guest,
            request,
            caller,
            reply,
        };
        return flows.handle(clerk, asked, now);
    }
    let named = named.map(|(handle, pid)| Named {
        pid,
        lives: Box::new(move || handle.lives()),
    });
    if matches!(&request, Request::Clear(clear) if clears_flows(&peer, clear)) {
        flows.clear(clerk, now);
    }
    let mut response = clerk.handle(&peer, &request, named, now);
    if let Response::Doctor(report) = &mut response {
        report.items.push(server.doctor());
        report.items.extend(flows.doctor(clerk));
    }
    match told_with_flows(&request, &response) {
        Some(what) if !flows.is_idle() => flows.tell(clerk, peer, what, reply, now),
        // A peer that has gone meanwhile misses its answer; what was done stays done.
        _ => drop(reply.send(response.into())),
    }
}

/// Whether all is to be cleared, by root: flows too.
fn clears_flows(peer: &crate::peer::Peer, clear: &Clear) -> bool {
    peer.uid == 0 && matches!(clear.what, ClearWhat::All) && !clear.dry_run
}

/// What is told of flows too: what the clerk answers is a part of it.
fn told_with_flows(request: &Request, response: &Response) -> Option<What> {
    let named = |text: &str| text.parse::<Target>().ok();
    match (request, response) {
        (Request::Show(show), Response::Shown(doc)) => {
            let target = show.target.as_deref().and_then(named);
            Some(What::Show(doc.clone(), target))
        }
        (Request::Explain(explain), answer) => {
            let target = named(&explain.target)?;
            let known = match answer {
                Response::Explained(known) => Some(known.clone()),
                _ => None,
            };
            let of_flows = matches!(target, Target::Flow(_) | Target::Direct(_));
            (of_flows || (known.is_some() && matches!(target, Target::Pid(_))))
                .then_some(What::Explain(target, known))
        }
        _ => None,
    }
}

/// Listens to ends while programs are loaded that tell of them.
fn listen_to_ends(clerk: &mut Clerk<KernelHost>, ends: &mut Option<Ends>) {
    let host = clerk.host();
    if !host.is_enforcing() {
        *ends = None;
    } else if ends.is_none() {
        match host.take_exits() {
            Ok(exits) => *ends = Ends::new(exits).ok(),
            Err(error) => tracing::debug!(%error, "ends are seen each second only"),
        }
    }
}

async fn ended(ends: &mut Option<Ends>) -> std::io::Result<()> {
    match ends {
        Some(ends) => ends.ended().await,
        None => std::future::pending().await,
    }
}

/// The folders in which held control groups come and go.
fn group_folders(clerk: &Clerk<KernelHost>) -> BTreeSet<PathBuf> {
    let Ok(root) = cgroup::root() else {
        return BTreeSet::new();
    };
    let above = |path: String| {
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        root.join(above.trim_start_matches('/'))
    };
    clerk.group_paths().into_iter().map(above).collect()
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

fn every(time: Duration) -> tokio::time::Interval {
    let mut interval = interval(time);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// A point on the machine's monotonic clock as one of the executor's.
fn from_monotonic(at: netnice_core::units::Instant) -> Instant {
    Instant::now() + at.since(Now::read().monotonic).into()
}

/// How often the clerk looks at what changes by itself.
const TICK: Duration = Duration::from_secs(1);
/// How often it is looked at who is busy on managed links. What an idle target leaves is lent at once; this sets by which
/// weights.
const BALANCE: Duration = Duration::from_millis(200);
/// Files are written in several steps, and many at once.
const FILES_SETTLE: Duration = Duration::from_millis(200);
/// Changes on interfaces come in bursts.
const LINKS_SETTLE: Duration = Duration::from_millis(50);
/// An end is told just before its process leaves the map, and many end together.
const ENDS_SETTLE: Duration = Duration::from_millis(20);
/// Pages that wait to be made.
const WAITING: usize = 64;
