//! Passes the messages of channels on ([`Relays`]), from the host before this one to the next host.
//! No call fails or waits: what cannot be done is a [`RelayResult`] with the reason. Only
//! [`Relays::start`] fails, if the system has no thread or descriptor left.
//!
//! ```text
//!  program ── hold, relax, release ──▶ control thread ── flows ──▶ relay's thread
//!     ▲                                   │  ▲                        │
//!     └────────── RelayResult ────────────┘  └──── flows to close ────┘
//! ```
//! The *control thread* waits for netniced: it holds promises, and opens and closes flows. The
//! *relay's thread* never waits for anything but packets and commands. It reads the packets of all
//! channels at one port for each local address, collects them to whole messages, and sends each
//! message on the channel's own flow, which has a `channel` contract. Packets are passed on
//! unchanged; docs/reference/peer.md has the rules.
//!
//! The bound of a relay is [`RelayOptions::time`], by which the relay's thread may be late, and the
//! deadline that the link keeps. A message arrives at a relay with its last packet. Its deadline on
//! the link counts from then, or from 1/Rmax behind the message before, whichever is later; so each
//! hop spaces the messages anew, and a host that sends more than it has promised delays itself
//! only.

mod channels;
mod control;
mod inbox;
mod interfaces;
mod plan;
mod reassembly;
mod serving;
mod stops;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use netnice_api::channels::HopCounts;
use netnice_channel::{ChannelId, HopMeter};
use netnice_core::units::{Bytes, Nanos};
use netnice_stack::RuntimeDir;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::message::Reason;
use crate::signalling::{HoldId, HoldRequest};
use channels::SharedCounts;
use control::{Control, ControlCommand, ControlState};
use interfaces::{Daemon, Interfaces};
use serving::{Serving, SharedListenerCounts};
use stops::{RelayStops, SharedStops};

/// The sizes of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayOptions {
    /// The relay's part of each bound: the longest time from the arrival of the last packet of a
    /// message until the driver has all packets to send. At most 4 s.
    pub time: Nanos,
    /// The largest number of flows on each interface: one for each channel that leaves by it, and
    /// one for each address that channels arrive at.
    pub flows: u32,
    /// Packet buffers of all flows of an interface.
    pub bytes: Bytes,
    /// Buffers for packets that arrive at an address, 1 to 16,384.
    pub receiving: u32,
    /// What the relay's thread has, exactly, of the processor time that is reserved for this
    /// process; `None` for nothing. Without it no channel is held.
    pub cpu: Option<Nanos>,
}

impl Default for RelayOptions {
    /// 2 ms, 1,024 flows, 64 MiB, 2,048 buffers and no reservation. netniced permits a user other
    /// than root 4,096 flows by default: those of four interfaces.
    fn default() -> RelayOptions {
        RelayOptions {
            time: Nanos::from_millis(2),
            flows: 1_024,
            bytes: Bytes(64 << 20),
            receiving: 2_048,
            cpu: None,
        }
    }
}

/// What became of a request, and what has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayResult {
    /// The relay holds a bound, for 5 s.
    Held {
        /// The hold.
        hold: HoldId,
        /// The shortest bound that the relay can keep.
        bound: Nanos,
        /// The next hop on the route to the sink.
        via: IpAddr,
        /// The address of this host that packets to it are sent from.
        from: IpAddr,
    },
    /// The relay cannot hold a bound.
    NotHeld {
        /// The hold.
        hold: HoldId,
        /// Why.
        reason: Reason,
        /// The shortest deadline of the channel with which it would hold one, if it is known.
        best: Option<Nanos>,
    },
    /// The relay passes the messages of the channel on.
    Relaxed {
        /// The hold.
        hold: HoldId,
        /// The port at which their packets arrive.
        port: NonZeroU16,
    },
    /// The relay cannot keep the final bound. The hold stays until it is released.
    NotRelaxed {
        /// The hold.
        hold: HoldId,
        /// Why.
        reason: Reason,
    },
    /// The relay does not pass the messages of the channel on any more. The hold stays until it is
    /// released.
    Lost {
        /// The hold.
        hold: HoldId,
        /// Why.
        reason: Reason,
    },
}

/// What became of the packets and messages of a channel. Of the packets, those that are not counted
/// below belong to whole messages, to messages that are incomplete, or to messages that were
/// abandoned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayCounts {
    /// Packets that arrived.
    pub packets: u64,
    /// Whole messages: those that were sent, that `overflowed` or were `refused`, and that wait.
    pub messages: u64,
    /// Messages that the driver has to send, or has sent.
    pub sent: u64,
    /// Dropped packets that had arrived before.
    pub duplicates: u64,
    /// Dropped packets of messages that are over.
    pub too_late: u64,
    /// Dropped packets that contradict the contract, or an earlier packet.
    pub malformed: u64,
    /// Messages that were abandoned, because a later one was whole first or too many were begun.
    pub incomplete: u64,
    /// Whole messages that were dropped, because too many waited.
    pub overflowed: u64,
    /// Whole messages that were dropped, because the path carries less than when the channel was
    /// opened.
    pub refused: u64,
    /// Packets that the driver has not sent.
    pub unsent: u64,
}

/// What became of packets that are of no channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounts {
    /// Dropped packets of unknown channels, and of channels that arrive from another address.
    pub foreign: u64,
    /// Dropped packets without a valid header.
    pub invalid: u64,
    /// Packets for which there was no buffer.
    pub lost: u64,
}

/// Makes the file of the relay's stops, and truncates an existing one. Fails with its path if it
/// cannot be made.
fn stop_file(dir: &RuntimeDir) -> io::Result<File> {
    let path = dir.relay_stops();
    let named = |error: io::Error| {
        let text = format!("cannot make {}: {error}", path.display());
        io::Error::new(error.kind(), text)
    };
    File::create(&path).map_err(named)
}

/// What the relay's thread counts of each channel.
type Registry = Arc<Mutex<HashMap<ChannelId, Registered>>>;

/// What the relay's thread counts of a channel, which other threads read.
#[derive(Debug)]
struct Registered {
    hold: HoldId,
    counts: Arc<SharedCounts>,
    meter: Arc<HopMeter>,
}

/// The relay of a host. Dropping it ends the relay, and waits until all flows are closed.
#[derive(Debug)]
pub struct Relays {
    commands: Sender<ControlCommand>,
    results: UnboundedReceiver<RelayResult>,
    registry: Registry,
    listeners: Arc<SharedListenerCounts>,
    stops: Arc<SharedStops>,
    control: Option<JoinHandle<()>>,
}

impl Relays {
    /// Starts the relay of this host, over the links that the daemon of a runtime folder manages.
    /// Nothing is asked of the daemon before the first hold. `writes_stops`: the stops of the
    /// relay's thread are written to the file [`RuntimeDir::relay_stops`], a line for each.
    ///
    /// # Errors
    /// If a thread cannot be started, there is no descriptor left, or the file cannot be made.
    pub fn start(dir: RuntimeDir, options: RelayOptions, writes_stops: bool) -> io::Result<Relays> {
        let log = writes_stops.then(|| stop_file(&dir)).transpose()?;
        Relays::start_over(Daemon(dir), options, log)
    }

    /// Starts both threads over these interfaces. Fails if a thread cannot be started.
    fn start_over(
        interfaces: impl Interfaces,
        options: RelayOptions,
        log: Option<File>,
    ) -> io::Result<Relays> {
        let (relay, inbox) = inbox::inbox()?;
        let (commands, control_commands) = channel();
        let (results, received) = unbounded_channel();
        let (registry, listeners) = (Registry::default(), Arc::default());
        let stops = Arc::<SharedStops>::default();
        let serving = Serving::new(
            inbox,
            commands.clone(),
            results.clone(),
            Arc::clone(&listeners),
            RelayStops::new(Arc::clone(&stops), log.map(stops::log_to).transpose()?),
        );
        let (says, said) = channel();
        let thread = std::thread::Builder::new().name("relay".into());
        let thread = thread.spawn(move || {
            let _ = says.send(rustix::thread::gettid());
            serving.run();
        })?;
        let ended = || io::Error::other("the relay's thread has ended");
        let number = said.recv().map_err(|_| ended())?;
        let control = Control {
            interfaces,
            options,
            commands: control_commands,
            relay,
            results,
            registry: registry.clone(),
            unreserved: options.cpu.map(|time| (number, time)),
            state: ControlState::default(),
        };
        let control_thread = std::thread::Builder::new().name("relay-control".into());
        let control = control_thread.spawn(move || control.run(thread))?;
        Ok(Relays {
            commands,
            results: received,
            registry,
            listeners,
            stops,
            control: Some(control),
        })
    }

    /// Holds the shortest bound that this relay can keep for a channel
    /// ([`crate::signalling::Action::Hold`] of a relay). [`RelayResult::Held`] or
    /// [`RelayResult::NotHeld`] follows.
    pub fn hold(&self, hold: HoldId, request: HoldRequest) {
        self.command(ControlCommand::Hold(hold, Box::new(request)));
    }

    /// Passes the messages of a held channel on to `next`, with this final bound.
    /// [`RelayResult::Relaxed`] or [`RelayResult::NotRelaxed`] follows.
    pub fn relax(&self, hold: HoldId, bound: Nanos, next: SocketAddr) {
        self.command(ControlCommand::Relax(hold, bound, next));
    }

    /// Ends a hold, and its channel. A hold that does not exist is ignored.
    pub fn release(&self, hold: HoldId) {
        self.command(ControlCommand::Release(hold));
    }

    /// The next result. Waits until there is one; a call that is not waited for to the end loses
    /// none. After the end of the relay's threads it never returns.
    pub async fn next(&mut self) -> RelayResult {
        match self.results.recv().await {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }

    /// The counts of a channel; `None` if the relay does not pass its messages on.
    pub fn counts(&self, channel: ChannelId) -> Option<RelayCounts> {
        let registry = lock(&self.registry);
        registry.get(&channel).map(|one| one.counts.load())
    }

    /// How long the relay keeps the messages of a channel; `None` if it does not pass them on.
    ///
    /// A message counts from its logical arrival (docs/reference/peer.md, P31) until the driver has
    /// handed its last packet to the NIC.
    pub fn hop_counts(&self, channel: ChannelId) -> Option<HopCounts> {
        let registry = lock(&self.registry);
        let of_channel = registry.get(&channel)?;
        let (counts, metered) = (of_channel.counts.load(), of_channel.meter.load());
        Some(HopCounts {
            lost: metered.lost + counts.incomplete + counts.overflowed + counts.refused,
            stops: Some(self.stops.load()),
            ..metered
        })
    }

    /// The counts of packets that are of no channel.
    pub fn listener_counts(&self) -> ListenerCounts {
        self.listeners.load()
    }

    fn command(&self, command: ControlCommand) {
        // The thread ends only after this value is dropped.
        let _ = self.commands.send(command);
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.command(ControlCommand::End);
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
