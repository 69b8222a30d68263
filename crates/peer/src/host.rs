//! Runs the signalling of this host ([`Host`]): between the neighbours, the programs and the
//! relays. [`Host::start`] fails with [`HostError`]; afterwards nothing fails, and what goes wrong
//! ends a channel or a connection.
//!
//! ```text
//!                  ┌────────────── Signalling ──────────────┐
//!  neighbours ◀──▶ Transport    actions, events    Programs ◀──▶ programs of this host
//!                               Relays ◀──▶ netniced, its drivers
//! ```
//! This process has no privileges. It holds nothing for a program: the program at an end of a
//! channel holds its own bound, with the rights of its own user. What this process holds at
//! netniced is for the channels that pass this host.

mod arrival;
mod explain;
mod list;
mod ports;
mod register;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use netnice_api::channels::{
    CloseChannel, Ended, Established, FromProgram, HeldBound, HoldBound, HopDoc, Listen, Listening,
    NotListening, OpenChannel, OpenRefused, RelaxBound, ReleaseBound, RemoteContract, ToProgram,
    Way,
};
use netnice_channel::{ChannelId, End};
use netnice_core::contract::{Channel, MessageRate};
use netnice_core::units::{Bytes, Nanos};
use netnice_stack::{RuntimeDir, route_to};
use tokio::sync::mpsc;
use tokio::time::{interval, sleep};

use crate::kernel_clock;
use crate::message::{Hops, HostName, Reason, Refusal, ServiceName};
use crate::names::{HostAddress, Names};
use crate::policy::{PolicyError, PolicyPath};
use crate::programs::{PING, ProgramEvent, ProgramId, Programs, now};
use crate::relay::{RelayOptions, RelayResult, Relays};
use crate::signalling::{
    Action, Arrival, Event, HoldId, HoldRequest, NextHop, Open, Part, QuestionId, Signalling,
};
use crate::transport::{Addresses, Identity, IdentityError, IdentityFiles, Transport};
use ports::Ports;
use register::Register;

/// The parameters of a [`Host`].
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The folder of netniced. The socket for programs is in a folder beside it.
    pub dir: RuntimeDir,
    /// The certificate of this host, its key, and the authorities of neighbours.
    pub identity: IdentityFiles,
    /// Where neighbours connect to. All hosts have the same port.
    pub listen: SocketAddr,
    /// Addresses that the resolver is not asked for.
    pub hosts: Vec<HostAddress>,
    /// What a relay has of the deadline beside its link.
    pub relay_time: Nanos,
    /// What the relay's thread has, exactly, of the processor time that is reserved for this
    /// process.
    pub relay_cpu: Option<Nanos>,
    /// The largest number of flows of the relay on each interface.
    pub relay_flows: u32,
    /// The relay's stops are written to [`RuntimeDir::relay_stops`].
    pub relay_stops: bool,
    /// The quotas, and what is before the interfaces of this host.
    pub policy: PolicyPath,
}

/// Why a host cannot start.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The certificates cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The address for neighbours cannot be used.
    #[error("neighbours cannot connect to {at}: {error}")]
    Listen {
        /// The address.
        at: SocketAddr,
        /// The reason.
        error: io::Error,
    },
    /// The socket for programs cannot be made.
    #[error("the socket for programs, {}, cannot be made: {error}", .socket.display())]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The threads of the relays cannot be started, or the file of their stops cannot be made.
    #[error("the relays cannot be started: {0}")]
    Relays(io::Error),
    /// The policy file cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The signalling of this host, with all that it needs.
pub struct Host {
    signalling: Signalling,
    transport: Transport,
    programs: Programs,
    relays: Relays,
    names: Names,
    port: u16,
    /// Finds the interface at which packets from an address arrive.
    routes: Routes,
    ports: Ports,
    policy: PolicyPath,
    register: Register,
    /// Where the packets of a hold go, until it is released.
    ways: HashMap<HoldId, IpAddr>,
    /// The programs that wait for the answer to a question about a channel.
    explaining: HashMap<QuestionId, ProgramId>,
    found: mpsc::UnboundedSender<Found>,
    finds: mpsc::UnboundedReceiver<Found>,
    /// Look-ups for programs that are under way.
    opening: usize,
}

/// Asks for the interface at which packets from an address arrive. It can wait for the daemon.
type Routes = Arc<dyn Fn(IpAddr) -> Result<String, String> + Send + Sync>;

/// A look-up has ended.
enum Found {
    /// The interface at which the packets of a channel arrive.
    Arrival {
        hold: HoldId,
        request: Box<HoldRequest>,
        iface: Result<String, String>,
    },
    /// The sink of a channel that a program asks for.
    Sink {
        program: ProgramId,
        uid: u32,
        open: Box<OpenChannel>,
        address: Result<IpAddr, String>,
    },
    /// The next host of a held channel.
    Next {
        hold: HoldId,
        bound: Nanos,
        way: Way,
        host: Result<HostName, String>,
    },
}

impl Host {
    /// Listens for neighbours and programs. Needs a runtime of tokio.
    ///
    /// # Errors
    /// [`HostError`] if a file, an address or a socket cannot be used.
    pub async fn start(options: &HostOptions) -> Result<Host, HostError> {
        let policy = options.policy.load()?;
        let identity = Identity::load(&options.identity)?;
        let name = identity.host().clone();
        let at = options.listen;
        let addresses = Addresses {
            port: at.port(),
            known: BTreeMap::new(),
        };
        let transport = Transport::listen(identity, addresses, at).await;
        let mut transport = transport.map_err(|error| HostError::Listen { at, error })?;
        let names = Names::new(&options.hosts);
        for (host, address) in names.given() {
            transport.set_address(host.clone(), SocketAddr::new(address, at.port()));
        }
        let socket = options.dir.peer_socket();
        let programs = Programs::listen(&socket);
        let programs = programs.map_err(|error| HostError::Socket { socket, error })?;
        let relay = RelayOptions {
            time: options.relay_time,
            cpu: options.relay_cpu,
            flows: options.relay_flows,
            ..RelayOptions::default()
        };
        let started = Relays::start(options.dir.clone(), relay, options.relay_stops);
        let relays = started.map_err(HostError::Relays)?;
        let (found, finds) = mpsc::unbounded_channel();
        let dir = options.dir.clone();
        let routes: Routes = Arc::new(move |from| {
            let route = route_to(&dir, from);
            route.map(|route| route.iface).map_err(text)
        });
        Ok(Host {
            signalling: Signalling::new(name, policy.quotas),
            transport,
            programs,
            relays,
            names,
            port: at.port(),
            routes,
            ports: Ports::new(policy.ports),
            policy: options.policy.clone(),
            register: Register::default(),
            ways: HashMap::new(),
            explaining: HashMap::new(),
            found,
            finds,
            opening: 0,
        })
    }

    /// The name of this host, from its certificate.
    pub fn name(&self) -> &HostName {
        self.signalling.host()
    }

    /// Reads the policy file again. Channels that exist stay as they are. A file with an error
    /// changes nothing.
    ///
    /// # Errors
    /// If the file cannot be read, or is invalid.
    pub fn reload(&mut self) -> Result<(), PolicyError> {
        let policy = self.policy.load()?;
        self.signalling.set_policy(policy.quotas);
        self.ports.declare(policy.ports);
        Ok(())
    }

    /// Serves for ever. Dropping the future loses nothing.
    pub async fn run(&mut self) {
        let mut ping = interval(PING);
        loop {
            let due = self.signalling.poll_timeout();
            let left = due.map(|due| due.since(now()));
            let left = left.map_or(IDLE, |left| Duration::from_nanos(left.0).min(IDLE));
            tokio::select! {
                event = self.transport.next() => {
                    if event.is_about_clocks() {
                        self.signalling.set_kernel_clock(kernel_clock::read());
                    }
                    self.signalling.handle(event, now());
                }
                event = self.programs.next() => self.handle_program(event),
                result = self.relays.next() => self.handle_relay(result),
                Some(found) = self.finds.recv() => self.handle_found(found),
                _ = ping.tick() => {
                    for program in self.programs.ping(now()) {
                        self.end_program(program, "the program does not run");
                    }
                }
                () = sleep(left) => self.signalling.handle_timeout(now()),
            }
            while let Some(action) = self.signalling.poll_action() {
                self.perform(action);
            }
        }
    }

    fn perform(&mut self, action: Action) {
        let Some(action) = self.transport.perform(action) else {
            return;
        };
        match action {
            Action::Hold { hold, request } => self.find_arrival(hold, request),
            Action::Relax { hold, bound, port } => {
                let bound = self.relax_port(hold, bound);
                let address = self.ways.get(&hold).copied();
                let next = address
                    .zip(port)
                    .map(|(address, port)| SocketAddr::new(address, port.get()));
                match (self.register.holder(hold), next) {
                    (Some(program), next) => {
                        let relax = RelaxBound {
                            hold: hold.0,
                            bound_ns: bound.0,
                            next,
                        };
                        self.programs.send(program, &ToProgram::Relax(relax));
                    }
                    (None, Some(next)) => self.relays.relax(hold, bound, next),
                    (None, None) => {
                        let reason = Reason::new("no program has this end of the channel");
                        self.handle(Event::NotRelaxed { hold, reason });
                    }
                }
            }
            Action::Release { hold } => {
                self.ways.remove(&hold);
                self.ports.release(hold);
                match self.register.end_hold(hold) {
                    Some(program) => {
                        let release = ReleaseBound { hold: hold.0 };
                        self.programs.send(program, &ToProgram::Release(release));
                    }
                    None => self.relays.release(hold),
                }
            }
            Action::Opened { channel, hops } => {
                tracing::info!(%channel, "established");
                if let Some(program) = self.register.source(channel) {
                    let opened = established(channel, &hops);
                    self.programs.send(program, &ToProgram::Opened(opened));
                }
            }
            Action::OpenRefused { channel, refusal } => {
                if let Some(program) = self.register.end_source(channel) {
                    self.refuse(program, channel.to_string(), refusal);
                }
            }
            Action::Accepted { channel, hops, .. } => {
                tracing::info!(%channel, "accepted");
                if let Some(program) = self.register.accept(channel) {
                    let accepted = established(channel, &hops);
                    self.programs.send(program, &ToProgram::Accepted(accepted));
                }
            }
            Action::Ended {
                channel,
                end,
                host,
                reason,
            } => {
                tracing::info!(%channel, %host, %reason, "ended");
                let program = match end {
                    End::Source => self.register.end_source(channel),
                    End::Sink => self.register.end_sink(channel),
                };
                let ended = Ended {
                    channel: channel.to_string(),
                    host: host.to_string(),
                    reason: reason.to_string(),
                };
                if let Some(program) = program {
                    self.programs.send(program, &ToProgram::Ended(ended));
                }
            }
            other => self.perform_question(other),
        }
    }

    /// Passes an event on. The caller performs the actions.
    fn handle(&mut self, event: Event) {
        self.signalling.handle(event, now());
    }

    /// Asks the holder of this host's part for its bound.
    fn hold(&mut self, hold: HoldId, request: HoldRequest) {
        let fault = match request.part {
            Part::Relay => return self.relays.hold(hold, request),
            Part::Both => Err(ON_ONE_HOST.to_owned()),
            Part::Source => {
                let program = self.register.source(request.channel);
                program.ok_or_else(|| "its program has ended".to_owned())
            }
            Part::Sink => {
                let (service, host) = (&request.service, self.signalling.host());
                let program = self.register.service(service);
                program.ok_or_else(|| format!("no program of {host} offers {service}"))
            }
        };
        let program = match fault {
            Ok(program) => program,
            Err(reason) => {
                return self.handle(Event::NotHeld {
                    hold,
                    reason: Reason::new(&reason),
                    best: None,
                });
            }
        };
        let is_sink = request.part == Part::Sink;
        let holder = (program, request.channel);
        self.register.begin_hold(hold, holder, is_sink);
        let way = |arrival: Arrival| Way {
            from: arrival.from,
            to: arrival.to,
        };
        let ask = HoldBound {
            hold: hold.0,
            channel: request.channel.to_string(),
            service: request.service.to_string(),
            contract: contract_doc(&request.contract, request.packet),
            sink_address: request.sink_address,
            arrival: request.arrival.map(way),
        };
        self.programs.send(program, &ToProgram::Hold(Box::new(ask)));
    }

    fn handle_program(&mut self, event: ProgramEvent) {
        let (program, uid, message) = match event {
            ProgramEvent::Message {
                program,
                uid,
                message,
            } => (program, uid, message),
            ProgramEvent::Ended { program, reason } => return self.end_program(program, &reason),
        };
        match message {
            FromProgram::Listen(listen) => self.listen(program, listen),
            FromProgram::EndService(Listen { service }) => {
                if let Ok(service) = ServiceName::new(&service) {
                    self.register.withdraw(program, &service);
                }
            }
            FromProgram::Open(open) => self.look_up_sink(program, uid, open),
            FromProgram::Held(held) => self.handle_held(program, held),
            FromProgram::NotHeld(not) => {
                let (hold, reason) = (HoldId(not.hold), Reason::new(&not.reason));
                let best = None;
                self.of_holder(program, Event::NotHeld { hold, reason, best }, hold);
            }
            FromProgram::Relaxed(relaxed) => {
                let (hold, port) = (HoldId(relaxed.hold), relaxed.port);
                self.of_holder(program, Event::Relaxed { hold, port }, hold);
            }
            FromProgram::NotRelaxed(end) => {
                let (hold, reason) = (HoldId(end.hold), Reason::new(&end.reason));
                self.of_holder(program, Event::NotRelaxed { hold, reason }, hold);
            }
            FromProgram::Lost(end) => {
                let (hold, reason) = (HoldId(end.hold), Reason::new(&end.reason));
                self.of_holder(program, Event::Lost { hold, reason }, hold);
            }
            FromProgram::Close(CloseChannel { channel, reason }) => {
                let Ok(channel) = channel.parse::<ChannelId>() else {
                    return;
                };
                if self.register.has(program, channel) {
                    let reason = Reason::new(&reason);
                    self.handle(Event::Close { channel, reason });
                }
            }
            FromProgram::List(_) => {
                let list = self.list();
                self.programs
                    .send(program, &ToProgram::Channels(Box::new(list)));
            }
            FromProgram::Explain(explain) => self.explain(program, uid, explain),
            FromProgram::Counted(counted) => self.handle_counted(program, counted),
            FromProgram::Pong(_) => {}
        }
    }

    /// Passes an event about a hold on, if the program has the hold.
    fn of_holder(&mut self, program: ProgramId, event: Event, hold: HoldId) {
        if self.register.holder(hold) == Some(program) {
            self.handle(event);
        }
    }

    fn listen(&mut self, program: ProgramId, listen: Listen) {
        let service = listen.service;
        let offered = ServiceName::new(&service)
            .map_err(|error| error.to_string())
            .and_then(|name| self.register.offer(program, name));
        let reply = match offered {
            Ok(()) => ToProgram::Listening(Listening {
                service,
                host: self.signalling.host().to_string(),
            }),
            Err(reason) => ToProgram::NotListening(NotListening { service, reason }),
        };
        self.programs.send(program, &reply);
    }

    /// Finds the address of the sink of a channel that a program asks for.
    fn look_up_sink(&mut self, program: ProgramId, uid: u32, open: OpenChannel) {
        let sink = match HostName::new(&open.sink) {
            Ok(sink) if sink == *self.signalling.host() => {
                return self.refuse_open(program, open.channel, ON_ONE_HOST);
            }
            Ok(sink) if self.opening < MOST_OPENING => sink,
            Ok(_) => {
                let text = format!("{MOST_OPENING} channels are being asked for: ask later");
                return self.refuse_open(program, open.channel, &text);
            }
            Err(error) => return self.refuse_open(program, open.channel, &error.to_string()),
        };
        self.opening += 1;
        let (names, found) = (self.names.clone(), self.found.clone());
        tokio::spawn(async move {
            let address = names.address_of(&sink).await;
            let open = Box::new(open);
            // It fails only if the host has ended.
            let _ = found.send(Found::Sink {
                program,
                uid,
                open,
                address,
            });
        });
    }

    fn handle_found(&mut self, found: Found) {
        match found {
            Found::Arrival {
                hold,
                request,
                iface,
            } => self.admit_arrival(hold, *request, iface),
            Found::Sink {
                program,
                uid,
                open,
                address,
            } => {
                self.opening -= 1;
                let channel = open.channel.clone();
                let asked = address.and_then(|address| self.open(program, uid, *open, address));
                if let Err(reason) = asked {
                    self.refuse_open(program, channel, &reason);
                }
            }
            Found::Next {
                hold,
                bound,
                way,
                host,
            } => match host {
                Ok(host) => {
                    self.ways.insert(hold, way.to);
                    if !self.names.knows(&host) {
                        let at = SocketAddr::new(way.to, self.port);
                        self.transport.set_address(host.clone(), at);
                    }
                    let (from, to) = (way.from, way.to);
                    self.handle_bound(hold, bound, Some(NextHop { host, from, to }));
                }
                Err(reason) => self.handle(Event::NotHeld {
                    hold,
                    reason: Reason::new(&reason),
                    best: None,
                }),
            },
        }
    }

    /// Asks for a program's channel.
    fn open(
        &mut self,
        program: ProgramId,
        uid: u32,
        open: OpenChannel,
        sink_address: IpAddr,
    ) -> Result<(), String> {
        let channel: ChannelId = open.channel.parse().map_err(text)?;
        let request = Open {
            channel,
            service: ServiceName::new(&open.service).map_err(text)?,
            sink: HostName::new(&open.sink).map_err(text)?,
            sink_address,
            contract: contract_of(&open.contract)?,
            packet: open.contract.packet,
        };
        self.register.ask(program, uid, channel)?;
        let opened = self.signalling.open(request, now());
        opened.map_err(|error| {
            self.register.end_source(channel);
            error.to_string()
        })
    }

    /// A program holds its bound: finds the next host.
    fn handle_held(&mut self, program: ProgramId, held: HeldBound) {
        let hold = HoldId(held.hold);
        if self.register.holder(hold) != Some(program) {
            return;
        }
        let bound = Nanos(held.bound_ns);
        match held.way {
            Some(way) => self.find_next(hold, bound, way),
            None => self.handle_bound(hold, bound, None),
        }
    }

    /// Finds the name of the next host.
    fn find_next(&mut self, hold: HoldId, bound: Nanos, way: Way) {
        let sink = self.signalling.sink_of(hold);
        let known = sink.filter(|(_, address)| *address == way.to);
        if let Some((host, _)) = known {
            let host = Ok(host);
            return self.handle_found(Found::Next {
                hold,
                bound,
                way,
                host,
            });
        }
        let (names, found) = (self.names.clone(), self.found.clone());
        tokio::spawn(async move {
            let host = names.host_at(way.to).await;
            let _ = found.send(Found::Next {
                hold,
                bound,
                way,
                host,
            });
        });
    }

    fn handle_relay(&mut self, result: RelayResult) {
        match result {
            RelayResult::Held {
                hold,
                bound,
                from,
                via,
            } => self.find_next(hold, bound, Way { from, to: via }),
            RelayResult::NotHeld { hold, reason, best } => {
                self.handle(Event::NotHeld { hold, reason, best });
            }
            RelayResult::Relaxed { hold, port } => {
                let port = Some(port);
                self.handle(Event::Relaxed { hold, port });
            }
            RelayResult::NotRelaxed { hold, reason } => {
                self.handle(Event::NotRelaxed { hold, reason });
            }
            RelayResult::Lost { hold, reason } => {
                self.handle(Event::Lost { hold, reason });
            }
        }
    }

    /// Ends what a program had.
    fn end_program(&mut self, program: ProgramId, reason: &str) {
        let leftover = self.register.remove(program);
        for channel in leftover.channels {
            let reason = Reason::new(reason);
            self.handle(Event::Close { channel, reason });
        }
    }

    fn refuse_open(&mut self, program: ProgramId, channel: String, text: &str) {
        let refusal = Refusal {
            host: self.signalling.host().clone(),
            reason: Reason::new(text),
            best_deadline_ns: None,
        };
        self.refuse(program, channel, refusal);
    }

    fn refuse(&mut self, program: ProgramId, channel: String, refusal: Refusal) {
        let refused = OpenRefused {
            channel,
            host: refusal.host.to_string(),
            reason: refusal.reason.to_string(),
            best_deadline_ns: refusal.best_deadline_ns,
        };
        self.programs
            .send(program, &ToProgram::OpenRefused(refused));
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The contract in a program's request.
fn contract_of(doc: &RemoteContract) -> Result<Channel, String> {
    let rmax = MessageRate::new(doc.rmax)
        .ok_or_else(|| format!("rmax is 1 to 1000000 messages per second, not {}", doc.rmax))?;
    Channel::new(Bytes(doc.mmax), rmax, doc.bmax, Nanos(doc.deadline_ns)).map_err(text)
}

fn contract_doc(contract: &Channel, packet: u16) -> RemoteContract {
    RemoteContract {
        mmax: contract.mmax().0,
        rmax: contract.rmax().get(),
        bmax: contract.bmax(),
        deadline_ns: contract.deadline().0,
        packet,
    }
}

fn established(channel: ChannelId, hops: &Hops) -> Established {
    Established {
        channel: channel.to_string(),
        hops: hop_docs(hops),
    }
}

fn hop_docs(hops: &Hops) -> Vec<HopDoc> {
    let hop = |hop: &crate::message::HopBound| HopDoc {
        host: hop.host.to_string(),
        bound_ns: hop.bound.0,
        unguarded: hop.unguarded.as_ref().map(ToString::to_string),
    };
    hops.as_slice().iter().map(hop).collect()
}

const ON_ONE_HOST: &str = "both programs are on this host: a channel is between hosts";
/// The longest wait without anything to do.
const IDLE: Duration = Duration::from_secs(60);
/// The largest number of look-ups for channels that programs ask for.
const MOST_OPENING: usize = 256;

#[cfg(test)]
mod tests;
