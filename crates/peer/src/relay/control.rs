//! The thread that waits for the daemon ([`Control`]): it holds and releases promises, opens flows
//! and hands them to the relay's thread, and closes those that it gets back. Each request has one
//! [`RelayResult`]; what cannot be done is a result with the reason.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use netnice_channel::{HopMeter, LogicalArrivals, explain_spare};
use netnice_core::contract::Contract;
use netnice_core::units::{Bytes, Nanos};
use netnice_stack::udp::{Buffers, Remote, UdpOptions};
use netnice_stack::{FlowNotification, Program, Socket, StackError};
use rustix::process::Pid;
use tokio::sync::mpsc::UnboundedSender;

use super::channels::{Listening, RelayedChannel, SharedCounts};
use super::inbox::Outbox;
use super::interfaces::{HeldPromise, Interfaces};
use super::plan::{Plan, buffer_bytes};
use super::reassembly::Reassembly;
use super::serving::Command;
use super::{Registered, Registry, RelayOptions, RelayResult};
use crate::message::Reason;
use crate::signalling::{Arrival, HoldId, HoldRequest};

/// What the thread is asked for.
pub(super) enum ControlCommand {
    /// [`super::Relays::hold`].
    Hold(HoldId, Box<HoldRequest>),
    /// [`super::Relays::relax`].
    Relax(HoldId, Nanos, SocketAddr),
    /// [`super::Relays::release`].
    Release(HoldId),
    /// Close a flow.
    Closed {
        /// The flow.
        socket: Box<Socket>,
        /// What it occupies.
        lease: Lease,
    },
    /// Close the flow of a listener that has ended.
    ListenerEnded {
        /// The number of the listener.
        number: u64,
        /// The flow.
        socket: Box<Socket>,
        /// What it occupies.
        lease: Lease,
    },
    /// Read the daemon's notifications, and pass them on.
    Look,
    /// End both threads.
    End,
}

/// What a flow occupies of an attachment.
#[derive(Debug)]
pub(super) struct Lease {
    attachment: u64,
    bytes: u64,
}

/// The state of the thread.
pub(super) struct Control<I> {
    pub(super) interfaces: I,
    pub(super) options: RelayOptions,
    pub(super) commands: Receiver<ControlCommand>,
    pub(super) relay: Outbox<Command>,
    pub(super) results: UnboundedSender<RelayResult>,
    pub(super) registry: Registry,
    /// The thread of the relay, and the processor time that it has to get.
    pub(super) unreserved: Option<(Pid, Nanos)>,
    pub(super) state: ControlState,
}

/// What the thread has opened.
#[derive(Default)]
pub(super) struct ControlState {
    /// By interface.
    attachments: BTreeMap<String, Attachment>,
    /// By interface and local address.
    listeners: BTreeMap<(String, IpAddr), Listener>,
    holds: BTreeMap<HoldId, Hold>,
    /// The number of the last attachment or listener.
    last: u64,
}

struct Attachment {
    number: u64,
    program: Program,
    /// Open and held flows, and the bytes of their buffers.
    flows: u32,
    bytes: u64,
}

/// A port at which the packets of channels arrive.
struct Listener {
    number: u64,
    port: NonZeroU16,
    /// The channels that use it.
    users: usize,
}

/// A channel that the relay holds a promise for, or passes messages of.
struct Hold {
    request: HoldRequest,
    arrival: Arrival,
    plan: Plan,
    listener: ((String, IpAddr), u64),
    attachment: u64,
    program: Program,
    promise: HeldPromise,
    /// The held bound.
    bound: Nanos,
    /// What is set aside for the flow; `None` after it was opened.
    lease: Option<Lease>,
}

impl<I: Interfaces> Control<I> {
    /// Serves until the command to end, and then ends the relay's thread too.
    pub(super) fn run(mut self, relay: JoinHandle<()>) {
        while let Ok(command) = self.commands.recv() {
            match command {
                ControlCommand::Hold(hold, request) => {
                    let result = match self.hold(hold, *request) {
                        Ok((bound, via, from)) => RelayResult::Held {
                            hold,
                            bound,
                            via,
                            from,
                        },
                        Err(why) => RelayResult::NotHeld {
                            hold,
                            reason: Reason::new(&why),
                            best: None,
                        },
                    };
                    let _ = self.results.send(result);
                }
                ControlCommand::Relax(hold, bound, next) => {
                    let result = match self.relax(hold, bound, next) {
                        Ok(port) => RelayResult::Relaxed { hold, port },
                        Err(why) => RelayResult::NotRelaxed {
                            hold,
                            reason: Reason::new(&why),
                        },
                    };
                    let _ = self.results.send(result);
                }
                ControlCommand::Release(hold) => self.release(hold),
                ControlCommand::Closed { socket, lease } => {
                    drop(socket);
                    self.free(&lease);
                }
                ControlCommand::ListenerEnded {
                    number,
                    socket,
                    lease,
                } => {
                    self.state
                        .listeners
                        .retain(|_, listener| listener.number != number);
                    drop(socket);
                    self.free(&lease);
                }
                ControlCommand::Look => self.read_notifications(),
                ControlCommand::End => break,
            }
        }
        // The thread has ended already if the command cannot be sent.
        let _ = self.relay.send(Command::End);
        let _ = relay.join();
    }

    /// Holds the promise of the link on which the messages leave, and opens the port at which their
    /// packets arrive. Returns the bound, the next hop and the address that packets are sent from.
    fn hold(
        &mut self,
        hold: HoldId,
        request: HoldRequest,
    ) -> Result<(Nanos, IpAddr, IpAddr), String> {
        let Some(arrival) = request.arrival else {
            return Err("this host is the source of the channel, and not a relay".to_owned());
        };
        let plan = Plan::new(&request, self.options.time).map_err(text)?;
        self.reserve().map_err(text)?;
        let arrives_at = self.interfaces.route(arrival.from).map_err(text)?;
        let leaves_by = self.interfaces.route(request.sink_address).map_err(text)?;
        let (promise, bound, lease, program) = self.hold_promise(&request, &plan, &leaves_by)?;
        let key = (arrives_at, arrival.to);
        // Otherwise the promise is released, because it is dropped.
        let used = self.use_listener(&key);
        let number = used.inspect_err(|_| self.free(&lease))?;
        let (via, from) = (promise.via, promise.from);
        let entry = Hold {
            request,
            arrival,
            plan,
            listener: (key, number),
            attachment: lease.attachment,
            program,
            promise,
            bound,
            lease: Some(lease),
        };
        self.state.holds.insert(hold, entry);
        Ok((bound, via, from))
    }

    /// Gives the relay's thread its processor time, if it has to get it.
    fn reserve(&mut self) -> Result<(), StackError> {
        if let Some((thread, time)) = self.unreserved {
            self.interfaces.reserve(thread, time)?;
            self.unreserved = None;
        }
        Ok(())
    }

    /// Holds the promise of a link, and sets memory for the flow aside.
    fn hold_promise(
        &mut self,
        request: &HoldRequest,
        plan: &Plan,
        iface: &str,
    ) -> Result<(HeldPromise, Nanos, Lease, Program), String> {
        let contract = plan.longest_contract().map_err(text)?;
        let program = self.attachment(iface)?.program.clone();
        let to = request.sink_address;
        let promise = self.interfaces.hold(&program, to, &contract);
        let rmax = request.contract.rmax();
        let promise = promise.map_err(|why| text(explain_spare(why, rmax)))?;
        let held = promise.contract.parse::<Contract>().ok();
        let bound = held.and_then(|held| held.channel());
        let set_aside = match bound {
            Some(channel) => {
                // No host gets a longer bound than the whole deadline.
                let longest = request.contract.deadline();
                let buffers = plan.buffers(longest, promise.mtu).map_err(text);
                let lease = buffers.and_then(|buffers| self.lease(iface, buffers));
                lease.map(|lease| (channel.deadline(), lease))
            }
            None => Err(format!(
                "netniced holds `{}`, which is no contract of a channel",
                promise.contract
            )),
        };
        // Otherwise the promise is released, because it is dropped.
        set_aside.map(|(bound, lease)| (promise, bound, lease, program))
    }

    /// Opens the flow of a held promise, and hands the channel to the relay's thread. Returns the
    /// port at which its packets arrive.
    fn relax(
        &mut self,
        hold: HoldId,
        bound: Nanos,
        next: SocketAddr,
    ) -> Result<NonZeroU16, String> {
        let Some(entry) = self.state.holds.get_mut(&hold) else {
            return Err("the relay does not hold a promise for the channel".to_owned());
        };
        if bound < entry.bound {
            let held = entry.bound;
            return Err(format!(
                "the bound {bound} is shorter than the {held} that is held"
            ));
        }
        let (key, number) = &entry.listener;
        let listener = self.state.listeners.get(key);
        let listener = listener.filter(|listener| listener.number == *number);
        let Some(port) = listener.map(|listener| listener.port) else {
            return Err("the port at which the packets arrive is closed".to_owned());
        };
        let buffers = entry.plan.buffers(bound, entry.promise.mtu).map_err(text)?;
        let bytes = buffers.region_bytes().map_err(text)?;
        let options = UdpOptions {
            local: SocketAddr::new(entry.promise.from, 0),
            remote: Remote::One(next),
            contract: Some(entry.plan.contract_with(bound).map_err(text)?),
            buffers,
            hold: Some(entry.promise.hold),
            ..UdpOptions::to(next)
        };
        let mmax = entry.request.contract.mmax();
        let reassembly = Reassembly::new(entry.request.packet, mmax);
        let reassembly = reassembly.ok_or("the messages of the channel have too many packets")?;
        let Some(mut lease) = entry.lease.take() else {
            return Err("the channel is relaxed already".to_owned());
        };
        let socket = match self.interfaces.open(&entry.program, &options) {
            Ok(socket) => socket,
            Err(error) => {
                entry.lease = Some(lease);
                return Err(text(error));
            }
        };
        let shared = Arc::new(SharedCounts::default());
        let channel = entry.request.channel;
        let mut registry = super::lock(&self.registry);
        let meter = Arc::new(HopMeter::new(bound));
        let registered = Registered {
            hold,
            counts: shared.clone(),
            meter: meter.clone(),
        };
        registry.insert(channel, registered);
        drop(registry);
        let spare = lease.bytes.saturating_sub(bytes);
        lease.bytes -= spare;
        let relayed = RelayedChannel {
            hold,
            channel,
            listener: *number,
            from: entry.arrival.from,
            attachment: entry.attachment,
            socket,
            lease,
            reassembly,
            waiting: Default::default(),
            arrivals: LogicalArrivals::new(entry.request.contract.rmax().with_spare()),
            under_way: Default::default(),
            meter,
            room: entry.plan.room(bound),
            counts: Default::default(),
            shared,
            is_noted: false,
        };
        let attachment = entry.attachment;
        if let Some(attachment) = self.state.attachment(attachment) {
            attachment.bytes = attachment.bytes.saturating_sub(spare);
        }
        let added = self.relay.send(Command::Add(Box::new(relayed)));
        added.map_err(|_| "the relay's thread has ended".to_owned())?;
        Ok(port)
    }

    /// Passes the daemon's notifications on, and forgets the attachments that are over.
    fn read_notifications(&mut self) {
        let relay = &self.relay;
        self.state.attachments.retain(|_, attachment| {
            let mut lasts = true;
            while let Some(notification) = attachment.program.next_notification() {
                lasts &= !matches!(notification, FlowNotification::Ended { .. });
                let _ = relay.send(Command::Notification(attachment.number, notification));
            }
            lasts
        });
    }

    fn release(&mut self, hold: HoldId) {
        let Some(entry) = self.state.holds.remove(&hold) else {
            return;
        };
        match &entry.lease {
            Some(lease) => self.free(lease),
            None => {
                let channel = entry.request.channel;
                let mut registry = super::lock(&self.registry);
                if registry.get(&channel).is_some_and(|one| one.hold == hold) {
                    registry.remove(&channel);
                }
                drop(registry);
                let _ = self.relay.send(Command::Remove(hold));
            }
        }
        let (key, number) = entry.listener;
        self.leave_listener(&key, number);
    }

    /// The attachment to an interface.
    fn attachment(&mut self, iface: &str) -> Result<&mut Attachment, String> {
        if !self.state.attachments.contains_key(iface) {
            let (flows, bytes) = (self.options.flows, self.options.bytes.0);
            let program = self.interfaces.attach(iface, flows, bytes).map_err(text)?;
            self.state.last += 1;
            let attachment = Attachment {
                number: self.state.last,
                program: program.clone(),
                flows: 0,
                bytes: 0,
            };
            let sent = self.relay.send(Command::Attach(attachment.number, program));
            sent.map_err(|_| "the relay's thread has ended".to_owned())?;
            self.state.attachments.insert(iface.to_owned(), attachment);
        }
        let attachment = self.state.attachments.get_mut(iface);
        attachment.ok_or_else(|| format!("the relay is not attached to {iface}"))
    }

    /// Sets memory and a flow of an attachment aside.
    fn lease(&mut self, iface: &str, buffers: Buffers) -> Result<Lease, String> {
        let bytes = buffers.region_bytes().map_err(text)?;
        let (most_flows, most) = (self.options.flows, self.options.bytes);
        let attachment = self.attachment(iface)?;
        if attachment.flows >= most_flows {
            return Err(format!(
                "the relay has {most_flows} flows on {iface} already, which is the most"
            ));
        }
        let free = Bytes(most.0.saturating_sub(attachment.bytes));
        if bytes > free.0 {
            return Err(format!(
                "the packet buffers of the channel need {}, and the relay has {free} of {most} free \
                 on {iface}",
                Bytes(bytes)
            ));
        }
        attachment.flows += 1;
        attachment.bytes += bytes;
        let attachment = attachment.number;
        Ok(Lease { attachment, bytes })
    }

    /// Ends a lease.
    fn free(&mut self, lease: &Lease) {
        if let Some(attachment) = self.state.attachment(lease.attachment) {
            attachment.flows = attachment.flows.saturating_sub(1);
            attachment.bytes = attachment.bytes.saturating_sub(lease.bytes);
        }
    }

    /// Counts one more user of a listener, which is opened for the first one. Returns its number.
    fn use_listener(&mut self, key: &(String, IpAddr)) -> Result<u64, String> {
        if let Some(listener) = self.state.listeners.get_mut(key) {
            listener.users += 1;
            return Ok(listener.number);
        }
        let (iface, address) = key;
        let mut buffers = Buffers {
            bytes: buffer_bytes(1_500),
            sending: 1,
            receiving: self.options.receiving,
        };
        let (socket, lease) = loop {
            let lease = self.lease(iface, buffers)?;
            let program = self.attachment(iface)?.program.clone();
            let options = UdpOptions {
                buffers,
                ..UdpOptions::at(SocketAddr::new(*address, 0))
            };
            match self.interfaces.open(&program, &options) {
                Ok(socket) => break (socket, lease),
                Err(error) => {
                    self.free(&lease);
                    // The link has a longer MTU.
                    match error {
                        StackError::SmallBuffers { packet, .. }
                            if packet > buffers.bytes as usize && packet <= 65_536 =>
                        {
                            buffers.bytes = (packet as u32).next_power_of_two();
                        }
                        error => return Err(text(error)),
                    }
                }
            }
        };
        let Some(port) = NonZeroU16::new(socket.local().port()) else {
            self.free(&lease);
            return Err("netniced has chosen port 0".to_owned());
        };
        self.state.last += 1;
        let number = self.state.last;
        let listening = Listening {
            attachment: lease.attachment,
            socket,
            lease,
            is_noted: false,
        };
        let sent = self
            .relay
            .send(Command::Listen(number, Box::new(listening)));
        sent.map_err(|_| "the relay's thread has ended".to_owned())?;
        let users = 1;
        let listener = Listener {
            number,
            port,
            users,
        };
        self.state.listeners.insert(key.clone(), listener);
        Ok(number)
    }

    /// Counts one user less of a listener, which is closed after the last one.
    fn leave_listener(&mut self, key: &(String, IpAddr), number: u64) {
        let Some(listener) = self.state.listeners.get_mut(key) else {
            return;
        };
        if listener.number != number {
            return;
        }
        listener.users -= 1;
        if listener.users == 0 {
            self.state.listeners.remove(key);
            let _ = self.relay.send(Command::Unlisten(number));
        }
    }
}

impl ControlState {
    fn attachment(&mut self, number: u64) -> Option<&mut Attachment> {
        let mut all = self.attachments.values_mut();
        all.find(|attachment| attachment.number == number)
    }
}

/// The reason for people.
fn text(error: impl std::fmt::Display) -> String {
    netnice_api::channels::reason_for_others(&error.to_string())
}
