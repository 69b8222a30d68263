//! The super-server `netnice inetd`: listens for the services of a [`Config`], starts a session for
//! each connection, and keeps the total divided among the sessions. It ends with an [`InetdError`]
//! if a port cannot be bound, the daemon is unreachable at the start, or waiting fails.
//!
//! # From connection to session
//! ```text
//!  connection ──counts, fits──▶ started behind a gate ──share set──▶ program runs ──▶ ended
//!       │                              │                                               │
//!       └─ closed, with a              └─ limit refused: ended       other shares are set
//!          line in the log                                  again, at most every 100 ms
//! ```
//! The program of a session starts behind a *gate*: a helper process ([`StartGateCommand`]) has the
//! program's descriptors and waits for one byte. The super-server writes the byte when the share is
//! in force, and the helper executes the program. So the program of a session sends nothing before
//! its limit is in force.
//!
//! # The total
//! The super-server limits itself to the total, and the shares of its sessions lie inside that
//! limit. So the total holds while shares change. If the super-server has a contract already, that
//! contract stays. If the daemon refuses the limit, the server logs that, and the shares alone
//! keep the total. Below 12 Mbit/s the limit also makes the packets of all sessions leave one after
//! another (`total_limit`).
//!
//! # Waiting
//! One thread waits for listeners and for sessions (by pidfd). There are no signal handlers. If the
//! server ends, its sessions continue with their limits.
//!
//! # Lending
//! An idle session lends the unused part of its share to busy sessions, unless the configuration
//! has `lend = false`. While two or more sessions without a fixed rate share a total, `keeper`
//! reads the usage of each session five times a second, `divide` computes the shares from the
//! usage, and `keeper` sets the shares.

mod session;
mod socket;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use netnice_api::{ClientError, RuntimeDir};
use netnice_core::units::Rate;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::config::{Config, ConfigError, ConfigErrorKind, Service};
use crate::daemon::{Daemon, total_limit};
use crate::divide::{self, Demand, Pool};
use crate::keeper::{APPLY_INTERVAL, Keeper, Member};
use session::Session;
use socket::Listener;

/// The command that starts a program behind a gate: `helper args… UID GID groups=GID,… PROGRAM
/// ARGV0 ARGUMENTS…`. The server adds the words in capitals. The gate, a pipe, is the helper's
/// standard error.
#[derive(Clone, Debug)]
pub struct StartGateCommand {
    /// The file of the helper program.
    pub helper: PathBuf,
    /// The first arguments of the helper.
    pub args: Vec<OsString>,
}

/// Why the server ends.
#[derive(Debug, thiserror::Error)]
pub enum InetdError {
    /// The configuration cannot be served.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Communication with the daemon failed.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// Waiting failed.
    #[error("cannot wait for connections: {0}")]
    Wait(io::Error),
}

/// Checks whether the whole configuration can be served: binds all ports and releases them.
///
/// # Errors
/// If a port cannot be bound.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    listen(config).map(drop)
}

/// Serves until a fatal error, and returns it; never returns `Ok`. `log` gets each message for the
/// operator as a line.
///
/// # Errors
/// If a port cannot be bound, there is no daemon, or waiting fails.
pub fn serve(
    config: Config,
    dir: &RuntimeDir,
    gate: StartGateCommand,
    log: &mut dyn FnMut(&str),
) -> Result<(), InetdError> {
    let listeners = listen(&config)?;
    let mut server = SuperServer {
        keeper: Keeper::new(Daemon::connect(dir, None)?),
        pool: Pool {
            total: config.total.map(Rate::bits_per_second),
            floor: config.floor.bits_per_second(),
        },
        config,
        gate,
        listeners,
        sessions: BTreeMap::new(),
        log,
    };
    server.limit_itself();
    for listener in &server.listeners {
        let service = &server.config.services[listener.service];
        (server.log)(&format!("{} is served at {}", service.name, listener.at));
    }
    loop {
        server.iterate()?;
    }
}

/// Binds the ports of all services.
fn listen(config: &Config) -> Result<Vec<Listener>, ConfigError> {
    let mut listeners = Vec::new();
    for (index, service) in config.services.iter().enumerate() {
        let listener = Listener::open(index, service).map_err(|error| {
            service.error(ConfigErrorKind::CannotBind {
                protocol: service.protocol.name(),
                port: service.port,
                error,
            })
        })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

struct SuperServer<'a> {
    config: Config,
    pool: Pool,
    keeper: Keeper,
    gate: StartGateCommand,
    listeners: Vec<Listener>,
    /// By the keeper's number, so in the order of their starts.
    sessions: BTreeMap<u64, Session>,
    log: &'a mut dyn FnMut(&str),
}

impl SuperServer<'_> {
    /// Limits this process to the total, so that the shares of all sessions lie inside. If the
    /// operator has set a limit for it, that limit stays.
    fn limit_itself(&mut self) {
        let Some(total) = self.config.total else {
            return;
        };
        let mut limit = || -> Result<(), String> {
            let own = Member::open(std::process::id()).map_err(|error| error.to_string())?;
            let shown = self.keeper.daemon.show();
            let targets = shown.map_err(|error| error.to_string())?.targets;
            if targets.iter().any(|one| one.target == own.target) {
                return Ok(());
            }
            let limited = self
                .keeper
                .daemon
                .limit(own.limit_target(), &total_limit(total));
            limited.map_err(|why| why.text)
        };
        if let Err(why) = limit() {
            (self.log)(&format!(
                "netnice inetd cannot be limited to the total: {why}; the shares alone keep it"
            ));
        }
    }

    /// Waits for events once, and handles them.
    fn iterate(&mut self) -> Result<(), InetdError> {
        let (ready, ended) = self.wait().map_err(InetdError::Wait)?;
        for number in ended {
            self.end(number);
        }
        for listener in ready {
            self.accept(listener);
        }
        let lends = self.lends();
        self.keeper.read_usage(lends);
        if self.keeper.must_apply() {
            self.apply();
        }
        Ok(())
    }

    /// Waits until a listener has connections or datagrams, a session ends, or the keeper has work.
    /// Returns the indices of those listeners and the numbers of those sessions.
    fn wait(&self) -> io::Result<(Vec<usize>, Vec<u64>)> {
        let open: Vec<usize> = (0..self.listeners.len())
            .filter(|index| !self.program_serves(*index))
            .collect();
        let listening = open.iter().map(|index| self.listeners[*index].as_fd());
        let running = self
            .keeper
            .members()
            .map(|(_, member)| member.pidfd.as_fd());
        let mut fds: Vec<PollFd<'_>> = listening
            .chain(running)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = self
            .keeper
            .time_to_next_work(self.lends())
            .map(|time| Timespec {
                tv_sec: time.as_secs() as i64,
                tv_nsec: i64::from(time.subsec_nanos()),
            });
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, timeout.as_ref()))?;
        let is_ready = |index: usize| !fds[index].revents().is_empty();
        let ready = open.iter().enumerate().filter(|(at, _)| is_ready(*at));
        let ended = self.sessions.keys().enumerate();
        let ended = ended.filter(|(at, _)| is_ready(open.len() + *at));
        Ok((
            ready.map(|(_, index)| *index).collect(),
            ended.map(|(_, number)| *number).collect(),
        ))
    }

    /// True if the program of a running session serves the listener (`wait`).
    fn program_serves(&self, listener: usize) -> bool {
        let service = self.listeners[listener].service;
        let waits = self.config.services[service].wait;
        waits && self.sessions.values().any(|s| s.service == service)
    }

    fn service(&self, index: usize) -> &Service {
        &self.config.services[index]
    }

    /// Starts a session for each connection of a listener, or one session that serves the listener
    /// itself (`wait`).
    fn accept(&mut self, listener: usize) {
        let index = self.listeners[listener].service;
        if self.service(index).wait {
            let socket = self.listeners[listener].duplicate();
            match socket {
                Ok(socket) => self.start(index, socket, None),
                Err(error) => self.report(index, &format!("cannot duplicate its socket: {error}")),
            }
            return;
        }
        for _ in 0..ACCEPT_BATCH {
            match self.listeners[listener].accept() {
                Ok(Some((socket, client))) => self.start(index, socket, Some(client)),
                Ok(None) => return,
                Err(error) => {
                    self.report(index, &format!("cannot accept a connection: {error}"));
                    // For example, there are no descriptors left: give sessions time to end.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }

    /// Starts a session if it is admitted and fits. Otherwise `socket` is closed, and the log gets
    /// the reason.
    fn start(&mut self, index: usize, socket: std::os::fd::OwnedFd, client: Option<IpAddr>) {
        if let Err(why) = self.admit(index, client) {
            let origin = client.map_or(String::new(), |client| format!(" from {client}"));
            self.report(index, &format!("a session{origin} is refused: {why}"));
            if client.is_none() {
                // The data at the socket of a `wait` service would wake this server again at once.
                std::thread::sleep(APPLY_INTERVAL);
            }
            return;
        }
        let service = &self.config.services[index];
        let started = Session::start(index, service, &self.gate, socket, client);
        let (session, member) = match started {
            Ok(started) => started,
            Err(error) => return self.report(index, &format!("cannot start a session: {error}")),
        };
        let number = self.keeper.add(member);
        self.sessions.insert(number, session);
        // The other shares shrink before the new session begins, unless they were set less than
        // 100 ms ago or setting them takes more than 50 ms.
        if self.keeper.may_apply() {
            self.apply();
        }
        let share = self.shares().remove(&number).flatten();
        if let Err(why) = self.keeper.set(number, share) {
            self.stop(number, &why.text);
        }
        if let Some(session) = self.sessions.get_mut(&number)
            && let Err(error) = session.open_gate()
        {
            self.report(index, &format!("cannot start a session: {error}"));
        }
    }

    /// Checks whether one more session is admitted.
    fn admit(&self, index: usize, client: Option<IpAddr>) -> Result<(), String> {
        let service = self.service(index);
        let same = |s: &&Session| s.service == index;
        let of_service = self.sessions.values().filter(same).count();
        let client = client.map(client_network);
        let of_client = |s: &&Session| client.is_some() && s.client.map(client_network) == client;
        let of_client = self.sessions.values().filter(of_client).count();
        for (what, count, limit) in [
            ("sessions", self.sessions.len(), self.config.sessions),
            ("sessions of this service", of_service, service.sessions),
            (
                "sessions of one client",
                of_client,
                self.config.sessions_per_client,
            ),
        ] {
            if count >= limit {
                return Err(format!("{count} {what} run, the limit is {limit}"));
            }
        }
        let mut demands: Vec<Demand> = self.demands().into_values().collect();
        demands.push(Demand {
            fixed: service.rate.map(Rate::bits_per_second),
            weight: u64::from(service.weight),
            bound: None,
            idle: None,
        });
        divide::fits(self.pool, &demands).map_err(|full| full.to_string())
    }

    /// Removes a session that ended.
    fn end(&mut self, number: u64) {
        self.keeper.remove(number);
        let Some(mut session) = self.sessions.remove(&number) else {
            return;
        };
        if let Some(how) = session.ended() {
            self.report(session.service, &how);
        }
    }

    fn demands(&self) -> BTreeMap<u64, Demand> {
        let mut of_client: BTreeMap<IpAddr, u64> = BTreeMap::new();
        for client in self.sessions.values().filter_map(|s| s.client) {
            *of_client.entry(client_network(client)).or_default() += 1;
        }
        let demand = |number: &u64, session: &Session| {
            let service = self.service(session.service);
            let client = session.client.map(client_network);
            let client = client.and_then(|client| of_client.get(&client));
            let bound = self.config.per_client.zip(client);
            Demand {
                fixed: service.rate.map(Rate::bits_per_second),
                weight: u64::from(service.weight),
                bound: bound.map(|(rate, sessions)| rate.bits_per_second() / sessions),
                idle: self.keeper.get(*number).and_then(|member| member.idle()),
            }
        };
        let demands = self.sessions.iter().map(|(n, s)| (*n, demand(n, s)));
        demands.collect()
    }

    fn shares(&self) -> BTreeMap<u64, Option<u64>> {
        let demands = self.demands();
        let list: Vec<Demand> = demands.values().copied().collect();
        demands
            .into_keys()
            .zip(divide::divide(self.pool, &list))
            .collect()
    }

    /// Sets the shares that changed. Ends a session that cannot be limited, because each share is a
    /// promise to the others.
    fn apply(&mut self) {
        let shares = self.shares();
        for (number, why) in self.keeper.apply(shares) {
            self.stop(number, &why.text);
        }
    }

    fn stop(&mut self, number: u64, why: &str) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        session.stop(self.keeper.get(number));
        let service = session.service;
        self.report(
            service,
            &format!("a session was ended because its share cannot be set: {why}"),
        );
    }

    /// True if sessions can lend: two or more share the total.
    fn lends(&self) -> bool {
        let shares = |s: &&Session| self.service(s.service).rate.is_none();
        self.config.lend
            && self.pool.total.is_some()
            && self.sessions.values().filter(shares).nth(1).is_some()
    }

    fn report(&mut self, service: usize, text: &str) {
        let line = format!("{}: {text}", self.config.services[service].name);
        (self.log)(&line);
    }
}

/// The part of an address that identifies a client. For IPv6 it is the network of 64 bits, because
/// a host can have any number of addresses in it.
fn client_network(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(_) => client,
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
    }
}

/// Largest number of connections that are accepted from one listener before the next listener is
/// served.
const ACCEPT_BATCH: usize = 16;

#[cfg(test)]
mod tests;
