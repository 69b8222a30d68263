//! The super-server: listens for its services, starts a session for each connection, and keeps the total divided.
//!
//! # A session's way
//! ```text
//!  connection ──counts, fits──▶ started behind a gate ──share set──▶ gate opens, the program runs ──▶ ended
//!       │                              │                                    │
//!       └─ closed, with a line         └─ limit refused: ended              └─ shares of the others follow at once,
//!          in the log                                                          at most every 100 ms
//! ```
//! The program runs behind a *gate*: a helper process (this program's own, see [`Gate`]) has its descriptors and waits for one byte;
//! it becomes the program when its share is in force. So no byte of a session is ever unlimited.
//!
//! # Waiting
//! One thread waits for listeners and for sessions (by pidfd). There are no signal handlers: if the server ends, sessions
//! go on, with the limits that they have.
//!
//! # Lending
//! While sessions share a total, what each has used is read five times a second; see [`crate::divide`].

mod session;
mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netnice_api::{
    Clear, ClearWhat, Client, ClientError, Request, Response, RuntimeDir, Set, Show, ShowDoc,
    TargetDoc,
};
use netnice_core::units::Rate;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::config::{Config, ConfigError, Fault, Service};
use crate::divide::{self, Demand, Pool};
use session::Session;
use socket::Listener;

/// How a program is started behind a gate: `HELPER WORDS… UID GID GROUPS PROGRAM ARGV0 ARGS…`, the gate as its
/// standard error.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The helper.
    pub helper: PathBuf,
    /// Its first words.
    pub words: Vec<OsString>,
}

/// Why the server ends.
#[derive(Debug, thiserror::Error)]
pub enum InetdError {
    /// The configuration cannot be served.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The daemon cannot be asked.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// Waiting failed.
    #[error("cannot wait for connections: {0}")]
    Wait(io::Error),
}

/// Whether everything of a configuration can be served: takes the ports, and gives them back.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    listen(config).map(drop)
}

/// Serves, until something fails that ends everything. `say` gets a line for each thing that a person should know.
pub fn serve(
    config: Config,
    dir: &RuntimeDir,
    gate: Gate,
    say: &mut dyn FnMut(&str),
) -> Result<(), InetdError> {
    let listeners = listen(&config)?;
    let mut server = Server {
        daemon: Daemon::connect(dir)?,
        pool: Pool {
            total: config.total.map(Rate::bits_per_second),
            floor: config.floor.bits_per_second(),
        },
        config,
        gate,
        listeners,
        sessions: BTreeMap::new(),
        next: 0,
        changed: false,
        applied: None,
        looked: Instant::now(),
        doubts: BTreeSet::new(),
        doubt_since: None,
        say,
    };
    for listener in &server.listeners {
        let service = &server.config.services[listener.service];
        (server.say)(&format!("{} is served at {}", service.name, listener.at));
    }
    loop {
        server.turn()?;
    }
}

/// Takes the ports of all services.
fn listen(config: &Config) -> Result<Vec<Listener>, ConfigError> {
    let mut listeners = Vec::new();
    for (index, service) in config.services.iter().enumerate() {
        let taken = Listener::open(index, service).map_err(|error| {
            service.refuse(Fault::Port {
                protocol: service.protocol.name(),
                port: service.port,
                error,
            })
        })?;
        listeners.push(taken);
    }
    Ok(listeners)
}

struct Server<'a> {
    config: Config,
    pool: Pool,
    daemon: Daemon,
    gate: Gate,
    listeners: Vec<Listener>,
    /// By a number that counts up, so in the order of their starts.
    sessions: BTreeMap<u64, Session>,
    next: u64,
    /// Shares have changed since they were last set.
    changed: bool,
    /// When they were last set.
    applied: Option<Instant>,
    /// When it was last looked at what sessions use.
    looked: Instant,
    /// Targets of sessions that ended while their share was set, and since when the eldest waits to be looked after.
    doubts: BTreeSet<String>,
    doubt_since: Option<Instant>,
    say: &'a mut dyn FnMut(&str),
}

impl Server<'_> {
    /// Waits for something, and does it.
    fn turn(&mut self) -> Result<(), InetdError> {
        let (ready, ended) = self.wait().map_err(InetdError::Wait)?;
        for number in ended {
            self.end(number);
        }
        for listener in ready {
            self.accept(listener);
        }
        if self.lends() && self.looked.elapsed() >= LOOK {
            self.look();
        }
        if self.changed && self.may_apply() {
            self.apply();
        }
        if self
            .doubt_since
            .is_some_and(|at| at.elapsed() >= AFTERWARDS)
        {
            self.look_after();
        }
        Ok(())
    }

    /// The listeners that somebody came to, and the sessions that ended.
    fn wait(&self) -> io::Result<(Vec<usize>, Vec<u64>)> {
        let open: Vec<usize> = (0..self.listeners.len())
            .filter(|index| !self.is_lent(*index))
            .collect();
        let listening = open.iter().map(|index| self.listeners[*index].as_fd());
        let running = self.sessions.values().map(|session| session.pidfd.as_fd());
        let mut fds: Vec<PollFd<'_>> = listening
            .chain(running)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let patience = self.patience().map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, patience.as_ref()))?;
        let is_ready = |index: usize| !fds[index].revents().is_empty();
        let ready = open.iter().enumerate().filter(|(at, _)| is_ready(*at));
        let ended = self.sessions.keys().enumerate();
        let ended = ended.filter(|(at, _)| is_ready(open.len() + *at));
        Ok((
            ready.map(|(_, index)| *index).collect(),
            ended.map(|(_, number)| *number).collect(),
        ))
    }

    /// How long nothing needs to be done; none: until something happens.
    fn patience(&self) -> Option<Duration> {
        let apply = self.changed.then(|| {
            self.applied
                .map_or(Duration::ZERO, |at| SETTLE.saturating_sub(at.elapsed()))
        });
        let look = self
            .lends()
            .then(|| LOOK.saturating_sub(self.looked.elapsed()));
        let after = self
            .doubt_since
            .map(|at| AFTERWARDS.saturating_sub(at.elapsed()));
        apply.into_iter().chain(look).chain(after).min()
    }

    /// Whether a session has this listener to itself.
    fn is_lent(&self, listener: usize) -> bool {
        let service = self.listeners[listener].service;
        let waits = self.config.services[service].wait;
        waits && self.sessions.values().any(|s| s.service == service)
    }

    fn service(&self, index: usize) -> &Service {
        &self.config.services[index]
    }

    /// Starts sessions for whoever came to a listener.
    fn accept(&mut self, listener: usize) {
        let index = self.listeners[listener].service;
        if self.service(index).wait {
            let socket = self.listeners[listener].share();
            match socket {
                Ok(socket) => self.start(index, socket, None),
                Err(error) => self.tell(index, &format!("its socket cannot be shared: {error}")),
            }
            return;
        }
        for _ in 0..AT_ONCE {
            match self.listeners[listener].accept() {
                Ok(Some((socket, client))) => self.start(index, socket, Some(client)),
                Ok(None) => return,
                Err(error) => {
                    self.tell(index, &format!("a connection was lost: {error}"));
                    // Out of descriptors, say: give sessions time to end.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }

    /// Starts a session, if it may be and fits. Where it may not, its connection is closed.
    fn start(&mut self, index: usize, socket: std::os::fd::OwnedFd, client: Option<IpAddr>) {
        if let Err(why) = self.admit(index, client) {
            let whose = client.map_or(String::new(), |client| format!(" from {client}"));
            self.tell(index, &format!("a session{whose} is refused: {why}"));
            if client.is_none() {
                // Whatever waits at the socket of a `wait` service would wake us at once again.
                std::thread::sleep(SETTLE);
            }
            return;
        }
        let service = &self.config.services[index];
        let started = Session::start(index, service, &self.gate, socket, client);
        let session = match started {
            Ok(session) => session,
            Err(error) => return self.tell(index, &format!("cannot be started: {error}")),
        };
        let number = self.next;
        self.next += 1;
        self.sessions.insert(number, session);
        self.changed = true;
        // Others give way before the new one begins, unless that was done just now or they are many.
        if self.may_apply() {
            self.apply();
        }
        let shares = self.shares();
        self.set(number, shares.get(&number).copied().flatten());
        if let Some(session) = self.sessions.get_mut(&number)
            && let Err(error) = session.open_gate()
        {
            self.tell(index, &format!("cannot be started: {error}"));
        }
    }

    /// Whether one more session may be.
    fn admit(&self, index: usize, client: Option<IpAddr>) -> Result<(), String> {
        let service = self.service(index);
        let same = |s: &&Session| s.service == index;
        let of_service = self.sessions.values().filter(same).count();
        let of_client = |s: &&Session| client.is_some() && s.client == client;
        let of_client = self.sessions.values().filter(of_client).count();
        for (what, count, most) in [
            ("sessions", self.sessions.len(), self.config.sessions),
            ("sessions of this service", of_service, service.sessions),
            (
                "sessions of one client",
                of_client,
                self.config.sessions_per_client,
            ),
        ] {
            if count >= most {
                return Err(format!("{count} {what} run, the limit is {most}"));
            }
        }
        let mut demands: Vec<Demand> = self.demands().into_values().collect();
        demands.push(Demand {
            fixed: service.rate.map(Rate::bits_per_second),
            weight: u64::from(service.weight),
            most: None,
            idle: None,
        });
        divide::fits(self.pool, &demands).map_err(|full| full.to_string())
    }

    /// Clears away a session that ended.
    fn end(&mut self, number: u64) {
        let Some(mut session) = self.sessions.remove(&number) else {
            return;
        };
        self.changed = true;
        if let Some(how) = session.ended() {
            self.tell(session.service, &how);
        }
    }

    fn demands(&self) -> BTreeMap<u64, Demand> {
        let mut of_client: BTreeMap<IpAddr, u64> = BTreeMap::new();
        for client in self.sessions.values().filter_map(|s| s.client) {
            *of_client.entry(client).or_default() += 1;
        }
        let demand = |session: &Session| {
            let service = self.service(session.service);
            let client = session.client.and_then(|client| of_client.get(&client));
            let most = self.config.per_client.zip(client);
            Demand {
                fixed: service.rate.map(Rate::bits_per_second),
                weight: u64::from(service.weight),
                most: most.map(|(rate, sessions)| rate.bits_per_second() / sessions),
                idle: session.idle(),
            }
        };
        self.sessions.iter().map(|(n, s)| (*n, demand(s))).collect()
    }

    fn shares(&self) -> BTreeMap<u64, Option<u64>> {
        let demands = self.demands();
        let list: Vec<Demand> = demands.values().copied().collect();
        demands
            .into_keys()
            .zip(divide::divide(self.pool, &list))
            .collect()
    }

    fn may_apply(&self) -> bool {
        self.applied.is_none_or(|at| at.elapsed() >= SETTLE)
    }

    /// Sets the shares that differ from what is in force, those that shrink first. What takes longer than a moment is left
    /// for the next turn, so that who comes meanwhile is served.
    fn apply(&mut self) {
        let began = Instant::now();
        let mut wanted: Vec<(u64, Option<u64>)> = self.shares().into_iter().collect();
        wanted.sort_by_key(|(number, share)| {
            let has = self.sessions.get(number).and_then(|session| session.share);
            let grows = has.is_none() || share.unwrap_or(u64::MAX) > has.unwrap_or(u64::MAX);
            (grows, *number)
        });
        for (number, share) in wanted {
            if began.elapsed() > MOMENT {
                return;
            }
            self.set(number, share);
        }
        self.changed = false;
        self.applied = Some(Instant::now());
    }

    /// Sets the share of one session. One that cannot be limited is ended: a share is a promise to the others.
    fn set(&mut self, number: u64, share: Option<u64>) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        if (session.share == share && session.is_set) || session.has_ended() {
            return;
        }
        let set = match share.and_then(|bits| Rate::new(bits.max(Rate::MIN.bits_per_second()))) {
            Some(rate) => self.daemon.limit(session, &rate.compact()),
            None if session.share.is_none() => Ok(()),
            None => self.daemon.limit(session, "none"),
        };
        session.is_set = true;
        session.share = share;
        if session.has_ended() {
            self.doubts.insert(session.target.clone());
            self.doubt_since.get_or_insert_with(Instant::now);
        }
        if let Err(why) = set
            && !session.has_ended()
        {
            session.stop();
            let service = session.service;
            self.tell(
                service,
                &format!("a session was ended, for it cannot be limited: {why}"),
            );
        }
    }

    /// Whether it matters what sessions use.
    fn lends(&self) -> bool {
        let shares = |s: &&Session| self.service(s.service).rate.is_none();
        self.config.lend
            && self.pool.total.is_some()
            && self.sessions.values().filter(shares).nth(1).is_some()
    }

    /// Looks at what sessions use. Without an answer nobody lends, and nothing else changes.
    fn look(&mut self) {
        self.looked = Instant::now();
        let Ok(doc) = self.daemon.show() else { return };
        let used: BTreeMap<&str, (u64, u64)> = doc
            .targets
            .iter()
            .map(|target| {
                let bytes =
                    |flow: &BTreeMap<String, u64>| flow.get("sent_bytes").copied().unwrap_or(0);
                let sum = bytes(&target.counters.up) + bytes(&target.counters.down);
                (target.target.as_str(), (target.counters.at_ns, sum))
            })
            .collect();
        for session in self.sessions.values_mut() {
            if let Some((at_ns, bytes)) = used.get(session.target.as_str()) {
                self.changed |= session.used(*at_ns, *bytes);
            }
        }
    }

    /// Clears targets that were opened anew for sessions that ended in that moment: nobody is in them, and nothing has passed
    /// them. A session's descendants, if it left any, keep theirs.
    fn look_after(&mut self) {
        self.doubt_since = None;
        let doubts = std::mem::take(&mut self.doubts);
        let Ok(doc) = self.daemon.show() else { return };
        let ours = |target: &str| self.sessions.values().any(|s| s.target == target);
        let unused = |target: &TargetDoc| {
            let flows = [&target.counters.up, &target.counters.down];
            flows
                .iter()
                .flat_map(|flow| flow.values())
                .all(|count| *count == 0)
        };
        let held = doc.targets.into_iter().filter(unused);
        let left: Vec<String> = held
            .map(|target| target.target)
            .filter(|target| doubts.contains(target) && !ours(target))
            .collect();
        for target in left {
            self.daemon.clear(target);
        }
    }

    fn tell(&mut self, service: usize, what: &str) {
        let line = format!("{}: {what}", self.config.services[service].name);
        (self.say)(&line);
    }
}

/// The daemon, asked over one connection that is renewed when it breaks.
struct Daemon {
    dir: RuntimeDir,
    client: Option<Client>,
}

impl Daemon {
    fn connect(dir: &RuntimeDir) -> Result<Daemon, ClientError> {
        let client = Some(Client::connect(dir)?);
        let dir = dir.clone();
        Ok(Daemon { dir, client })
    }

    /// Limits a session.
    fn limit(&mut self, session: &Session, rate: &str) -> Result<(), String> {
        let set = Request::Set(Set {
            target: session.target.clone(),
            change: Some(format!("both {rate}")),
            short: true,
            ..Set::default()
        });
        match self.call(&set, Some(session)) {
            Ok(Response::Done(_)) => Ok(()),
            Ok(Response::Refused(refused)) => Err(refused.text),
            Ok(Response::Failed(failed)) => Err(failed.text),
            Ok(_) => Err("the daemon's answer is not understood".to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Takes back what was set for a target. If that fails, it is shown as it is.
    fn clear(&mut self, target: String) {
        let clear = Request::Clear(Clear {
            what: ClearWhat::Target(target),
            dry_run: false,
            confirm_ns: None,
            for_ns: None,
        });
        let _ = self.call(&clear, None);
    }

    fn show(&mut self) -> Result<ShowDoc, ClientError> {
        match self.call(&Request::Show(Show { target: None }), None)? {
            Response::Shown(doc) => Ok(doc),
            _ => Err(ClientError::HungUp),
        }
    }

    /// Asks; once more where the connection was closed meanwhile (an idle one may be).
    fn call(
        &mut self,
        request: &Request,
        about: Option<&Session>,
    ) -> Result<Response, ClientError> {
        let had = self.client.is_some();
        match self.call_once(request, about) {
            Err(ClientError::HungUp | ClientError::Io(_)) if had => self.call_once(request, about),
            other => other,
        }
    }

    fn call_once(
        &mut self,
        request: &Request,
        about: Option<&Session>,
    ) -> Result<Response, ClientError> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.dir)?,
        };
        let answer = client.call(request, about.map(|session| session.pidfd.as_fd()))?;
        self.client = Some(client);
        Ok(answer)
    }
}

/// Between two settings of all shares: five times shorter than shares may take to follow.
const SETTLE: Duration = Duration::from_millis(100);

/// Between two looks at what sessions use.
const LOOK: Duration = Duration::from_millis(200);

/// How long the setting of shares may keep others waiting: a few tens of requests on a machine at rest.
const MOMENT: Duration = Duration::from_millis(50);

/// How long after a doubt it is looked: ends have been noticed everywhere by then.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// Connections that are taken from one listener before others have their turn.
const AT_ONCE: usize = 16;
