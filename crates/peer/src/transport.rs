//! Carries the messages of neighbours over TCP with mutual TLS 1.3: [`Transport`]. It needs a
//! runtime of tokio. [`Transport::listen`] fails if the address cannot be used; later failures
//! become events.
//!
//! ```text
//!  Signalling ──Connect, Disconnect, Send──▶ Transport ──frames──▶ a task for each connection
//!             ◀─Connected, Disconnected, Received── next() ◀─one message at a time─┘
//! ```
//! The name of a neighbour is that in its certificate, and there is one connection for each pair of
//! neighbours. If two hosts connect to each other at once, both keep the connection that the host
//! with the smaller name began. If a host connects again, its new connection replaces the old one.
//!
//! # Bounds
//! A connection holds at most one message that is not complete, [`crate::message::LONGEST`], and
//! 4 MiB to send; a neighbour that does not read them is disconnected. At most 64 handshakes of
//! others are in progress, each for 3 s; what comes beyond them is closed at once. The number of
//! neighbours is limited by [`crate::signalling::Policy`].

mod connection;
mod identity;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, lookup_host};
use tokio::sync::{Semaphore, mpsc};

use crate::message::{HostName, Message, Reason, encode};
use crate::signalling::{Action, Event};
use connection::{Link, MOST_WAITING, Report};

pub use identity::{Identity, IdentityError, IdentityFiles};

/// Where neighbours listen.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// The port of hosts that are found by the resolver.
    pub port: u16,
    /// The addresses of hosts that are not asked of the resolver.
    pub known: BTreeMap<HostName, SocketAddr>,
}

/// The connections of a host.
pub struct Transport {
    identity: Identity,
    addresses: Addresses,
    listener: TcpListener,
    links: BTreeMap<HostName, Link>,
    /// The neighbours of the connections, and of those that are being made.
    names: BTreeMap<u64, HostName>,
    handshakes: Arc<Semaphore>,
    reports: mpsc::Sender<Report>,
    incoming: mpsc::Receiver<Report>,
    events: VecDeque<Event>,
    refused: u64,
    last_refusal: Option<String>,
    next_number: u64,
}

impl Transport {
    /// Listens for neighbours on an address.
    ///
    /// # Errors
    /// If the address cannot be used.
    pub async fn listen(
        identity: Identity,
        addresses: Addresses,
        at: SocketAddr,
    ) -> io::Result<Transport> {
        let listener = TcpListener::bind(at).await?;
        let (reports, incoming) = mpsc::channel(MOST_REPORTS);
        Ok(Transport {
            identity,
            addresses,
            listener,
            links: BTreeMap::new(),
            names: BTreeMap::new(),
            handshakes: Arc::new(Semaphore::new(MOST_HANDSHAKES)),
            reports,
            incoming,
            events: VecDeque::new(),
            refused: 0,
            last_refusal: None,
            next_number: 0,
        })
    }

    /// The address on which this host listens.
    ///
    /// # Errors
    /// If the kernel does not tell it.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for the next event of a neighbour. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            tokio::select! {
                // The transport has a sender itself, so the channel never ends.
                Some(report) = self.incoming.recv() => self.handle(report),
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => self.accept(stream, from),
                    // For example too many open files; others may be closed meanwhile.
                    Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
                },
            }
        }
    }

    /// Connects to a neighbour at this address from now on, without the resolver.
    pub fn set_address(&mut self, neighbour: HostName, at: SocketAddr) {
        self.addresses.known.insert(neighbour, at);
    }

    /// Does an action that is about a connection; returns every other one.
    pub fn perform(&mut self, action: Action) -> Option<Action> {
        match action {
            Action::Connect { neighbour } => self.connect(neighbour),
            Action::Disconnect { neighbour, .. } => drop(self.remove(&neighbour)),
            Action::Send { neighbour, message } => self.send(&neighbour, &message),
            other => return Some(other),
        }
        None
    }

    /// How many connections of others became none, because the handshake failed or too many were
    /// in progress, and the reason of the last one.
    pub fn refused(&self) -> (u64, Option<&str>) {
        (self.refused, self.last_refusal.as_deref())
    }

    fn connect(&mut self, neighbour: HostName) {
        if self.links.contains_key(&neighbour) || self.names.values().any(|one| *one == neighbour) {
            return;
        }
        let number = self.take_number();
        self.names.insert(number, neighbour.clone());
        let (identity, reports) = (self.identity.clone(), self.reports.clone());
        let (known, port) = (
            self.addresses.known.get(&neighbour).copied(),
            self.addresses.port,
        );
        tokio::spawn(async move {
            let made = async {
                let addresses = find(&neighbour, known, port).await?;
                connection::connect(identity, neighbour.clone(), addresses).await
            };
            let made = made.await;
            let report = match made {
                Ok(stream) => Report::Ready {
                    number,
                    neighbour,
                    is_own: true,
                    stream: Box::new(stream),
                },
                Err(reason) => Report::Failed {
                    number,
                    neighbour,
                    reason,
                },
            };
            // If the owner has ended, the report is not needed.
            let _ = reports.send(report).await;
        });
    }

    fn accept(&mut self, stream: tokio::net::TcpStream, from: SocketAddr) {
        let Ok(permit) = self.handshakes.clone().try_acquire_owned() else {
            let most = MOST_HANDSHAKES;
            return self.count_refusal(format!("{most} handshakes were in progress"));
        };
        let number = self.take_number();
        let (identity, reports) = (self.identity.clone(), self.reports.clone());
        tokio::spawn(async move {
            let accepted = connection::accept(identity, stream, from).await;
            drop(permit);
            let report = match accepted {
                Ok((neighbour, stream)) => Report::Ready {
                    number,
                    neighbour,
                    is_own: false,
                    stream: Box::new(stream),
                },
                Err(reason) => Report::Refused { reason },
            };
            let _ = reports.send(report).await;
        });
    }

    fn handle(&mut self, report: Report) {
        match report {
            Report::Ready {
                number,
                neighbour,
                is_own,
                stream,
            } => {
                if self.keeps(&neighbour, is_own) {
                    self.names.remove(&number);
                    return;
                }
                // The state machine ends the channels of the connection that is replaced.
                drop(self.remove(&neighbour));
                self.names.insert(number, neighbour.clone());
                let reports = self.reports.clone();
                let link = Link::start(number, &neighbour, is_own, *stream, reports);
                self.links.insert(neighbour.clone(), link);
                self.events.push_back(Event::Connected { neighbour });
            }
            Report::Failed {
                number,
                neighbour,
                reason,
            } => {
                self.names.remove(&number);
                if !self.links.contains_key(&neighbour) {
                    self.tell_end(neighbour, &reason);
                }
            }
            Report::Refused { reason } => self.count_refusal(reason),
            Report::Message { number, message } => {
                if let Some(neighbour) = self.current(number) {
                    self.events
                        .push_back(Event::Received { neighbour, message });
                }
            }
            Report::Ended { number, reason } => {
                if let Some(neighbour) = self.current(number) {
                    self.remove(&neighbour);
                    self.tell_end(neighbour, &reason);
                }
            }
        }
    }

    /// True if the connection that exists is kept, and a new one is dropped: the two hosts have
    /// connected to each other at once, and the existing one is that of the smaller name.
    fn keeps(&self, neighbour: &HostName, new_is_own: bool) -> bool {
        let own_is_smaller = self.identity.host() < neighbour;
        self.links
            .get(neighbour)
            .is_some_and(|link| link.is_own != new_is_own && link.is_own == own_is_smaller)
    }

    fn send(&mut self, neighbour: &HostName, message: &Message) {
        let Some(link) = self.links.get(neighbour) else {
            return;
        };
        let fault = match encode(message) {
            Ok(frame) => match link.send(frame) {
                true => return,
                false => format!("{neighbour} does not read: more than {MOST_WAITING} bytes wait"),
            },
            Err(error) => error.to_string(),
        };
        self.remove(neighbour);
        self.tell_end(neighbour.clone(), &fault);
    }

    /// The neighbour of a connection that was not replaced or closed meanwhile.
    fn current(&self, number: u64) -> Option<HostName> {
        let neighbour = self.names.get(&number)?;
        let link = self.links.get(neighbour)?;
        (link.number == number).then(|| neighbour.clone())
    }

    fn remove(&mut self, neighbour: &HostName) -> Option<Link> {
        let link = self.links.remove(neighbour)?;
        self.names.remove(&link.number);
        Some(link)
    }

    fn tell_end(&mut self, neighbour: HostName, reason: &str) {
        let reason = Reason::new(reason);
        self.events
            .push_back(Event::Disconnected { neighbour, reason });
    }

    fn count_refusal(&mut self, reason: String) {
        self.refused += 1;
        self.last_refusal = Some(reason);
    }

    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

/// The addresses of a neighbour.
async fn find(
    neighbour: &HostName,
    known: Option<SocketAddr>,
    port: u16,
) -> Result<Vec<SocketAddr>, String> {
    if let Some(address) = known {
        return Ok(vec![address]);
    }
    let found = tokio::time::timeout(
        connection::HANDSHAKE,
        lookup_host((neighbour.as_str(), port)),
    );
    match found.await {
        Ok(Ok(found)) => Ok(found.take(MOST_ADDRESSES).collect()),
        Ok(Err(error)) => Err(format!("the resolver does not find {neighbour}: {error}")),
        Err(_) => Err(format!("the resolver does not answer about {neighbour}")),
    }
}

/// Messages of all connections that wait for the owner.
const MOST_REPORTS: usize = 16;

/// Handshakes of others at once.
const MOST_HANDSHAKES: usize = 64;

/// Addresses of a neighbour that are tried.
const MOST_ADDRESSES: usize = 8;

/// How long no connection is accepted after an error.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
