//! The ends of channels to other hosts at this program ([`Ends`]): holds the bound of an end, and
//! opens the channel there with its final bound. Calls fail with [`ChannelError`], and then nothing
//! is held.
//!
//! At the source the bound is the handler's part and the link's deadline; at the sink it is the
//! handler's part. What the sink of the channel hands out as slack goes half to the handler of the
//! source and half to its link.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use netnice_api::channels::{RemoteContract, Way};
use netnice_core::contract::{Channel, Contract, MessageRate};
use netnice_core::units::{Bytes, Nanos};
use netnice_stack::{HeldPromise, RuntimeDir, StackError, route_to};

use super::{NetworkOptions, ServiceOptions};
use crate::catch_up::{explain_spare, most_behind};
use crate::error::ChannelError;
use crate::handler_thread::{AdmittedChannel, HandlerThread};
use crate::header::{ChannelId, PacketHeader};
use crate::options::{ChannelClass, ChannelOptions, End, OpenError};
use crate::receiver::{Listener, ListenerOptions, Receiver};
use crate::sender::{Sender, SenderOptions, contract_to_hold};

/// The threads of handlers and the ports of a program.
pub(super) struct Ends {
    dir: RuntimeDir,
    options: NetworkOptions,
    /// By interface.
    threads: HashMap<String, HandlerThread>,
    ports: HashMap<IpAddr, Listener>,
}

/// The hold of a source.
pub(super) struct HeldSource {
    thread: HandlerThread,
    options: ChannelOptions,
    admitted: AdmittedChannel,
    promise: HeldPromise,
    /// The sum of the handler's part and the link's deadline.
    pub(super) bound: Nanos,
    pub(super) way: Way,
}

/// The hold of a sink.
pub(super) struct HeldSink {
    options: ChannelOptions,
    admitted: AdmittedChannel,
    port: Listener,
    pub(super) bound: Nanos,
    /// What the source asks for, with the whole deadline and without what the stages add.
    pub(super) contract: Channel,
}

impl Ends {
    pub(super) fn new(dir: RuntimeDir, options: NetworkOptions) -> Ends {
        Ends {
            dir,
            options,
            threads: HashMap::new(),
            ports: HashMap::new(),
        }
    }

    /// What a source asks for: its contract with the bytes that the stages add.
    pub(super) fn contract(
        &self,
        options: &ChannelOptions,
    ) -> Result<RemoteContract, ChannelError> {
        let ChannelClass::RealTime(channel) = options.class else {
            return Err(ChannelError::BestEffortBetweenHosts);
        };
        let largest = self.options.handlers.settings.processor.largest;
        let packet = u16::try_from(largest.0).unwrap_or(u16::MAX);
        let added = added(options);
        let part = payload(packet)?.checked_sub(added).filter(|part| *part > 0);
        let part = part.ok_or(OpenError::NoPayload {
            largest,
            taken: Bytes(PacketHeader::LENGTH as u64 + added),
        })?;
        let parts = channel.mmax().0.div_ceil(part);
        Ok(RemoteContract {
            mmax: channel.mmax().0 + parts * added,
            rmax: channel.rmax().get(),
            bmax: channel.bmax(),
            deadline_ns: channel.deadline().0,
            packet,
        })
    }

    /// Holds the shortest bound of a source. Without success, `options` are dropped.
    pub(super) fn hold_source(
        &mut self,
        mut options: ChannelOptions,
        sink: IpAddr,
    ) -> Result<HeldSource, ChannelError> {
        let own = options.class.channel();
        let own = own.ok_or(ChannelError::BestEffortBetweenHosts)?;
        options.catches_up = most_behind(&own);
        let route = route_to(&self.dir, sink)?;
        let thread = self.thread(&route.iface)?;
        let settings = &self.options.handlers.settings;
        let admitted = admit(&thread, &mut options, End::Source)?;
        let contract = contract_to_hold(&options, settings, sink)?;
        let contract = contract.ok_or(ChannelError::BestEffortBetweenHosts)?;
        let promise = thread.owner.program.hold(sink, &contract);
        let promise = promise.map_err(|why| explain_spare(why, own.rmax()))?;
        let link = deadline_of(promise.contract())?;
        let bound = Nanos(options.class.processing().0.saturating_add(link.0));
        let way = Way {
            from: promise.from(),
            to: promise.via(),
        };
        Ok(HeldSource {
            thread,
            options,
            admitted,
            promise,
            bound,
            way,
        })
    }

    /// Holds the shortest bound of a sink: the stages of the source must be those of the service.
    pub(super) fn hold_sink(
        &mut self,
        service: &ServiceOptions,
        channel: ChannelId,
        (contract, arrival): (&RemoteContract, Way),
    ) -> Result<HeldSink, ChannelError> {
        let settings = self.options.handlers.settings;
        let largest = settings.processor.largest;
        if u64::from(contract.packet) != largest.0 {
            let packet = Bytes(contract.packet.into());
            return Err(ChannelError::OtherPackets { packet, largest });
        }
        let stages = (service.stages)(channel);
        let added: u64 = stages.iter().map(|stage| stage.overhead() as u64).sum();
        let parts = contract.mmax.div_ceil(payload(contract.packet)?);
        let mmax = contract.mmax.saturating_sub(parts.saturating_mul(added));
        if mmax > service.mmax.0 {
            let (mmax, most) = (Bytes(mmax), service.mmax);
            return Err(ChannelError::LongMessages { mmax, most });
        }
        let rmax = MessageRate::new(contract.rmax);
        let rmax = rmax.ok_or(ChannelError::MessageRate(contract.rmax))?;
        let part = service.processing.unwrap_or(Nanos(0));
        let whole = Nanos(contract.deadline_ns);
        let asked =
            Channel::new(Bytes(mmax), rmax, contract.bmax, whole).map_err(OpenError::from)?;
        let deadline = whole.max(Nanos(part.0.saturating_add(1)));
        let own = asked.resized(asked.mmax(), rmax, deadline);
        let own = own
            .and_then(|own| own.with_processing(part))
            .map_err(OpenError::from)?;
        let mut options = ChannelOptions {
            when_full: service.when_full,
            catches_up: most_behind(&asked),
            stages,
            ..ChannelOptions::new(channel, ChannelClass::RealTime(own))
        };
        let route = route_to(&self.dir, arrival.from)?;
        let thread = self.thread(&route.iface)?;
        let admitted = admit(&thread, &mut options, End::Sink)?;
        let port = self.port(&thread, arrival.to)?;
        let bound = options.class.processing();
        Ok(HeldSink {
            options,
            admitted,
            port,
            bound,
            contract: asked,
        })
    }

    /// The thread of an interface, which is started with its first channel.
    fn thread(&mut self, iface: &str) -> Result<HandlerThread, ChannelError> {
        if let Some(thread) = self.threads.get(iface) {
            return Ok(thread.clone());
        }
        let mut options = self.options.handlers.clone();
        if options.picks_reservation
            && let Some(first) = self.threads.keys().next()
        {
            return Err(ChannelError::PickedForOther(first.clone()));
        }
        options.iface = Some(iface.to_owned());
        let thread = HandlerThread::attach(&self.dir, &options)?;
        self.threads.insert(iface.to_owned(), thread.clone());
        Ok(thread)
    }

    /// The port at a local address, which is opened with the first channel that arrives there.
    fn port(&mut self, thread: &HandlerThread, at: IpAddr) -> Result<Listener, ChannelError> {
        let open = self.ports.get(&at);
        if let Some(port) = open.filter(|port| port.end_reason().is_none()) {
            return Ok(port.clone());
        }
        let options = ListenerOptions {
            buffers: self.options.buffers,
            ..ListenerOptions::at(SocketAddr::new(at, 0))
        };
        let port = thread.listen(&options)?;
        self.ports.insert(at, port.clone());
        Ok(port)
    }
}

impl HeldSource {
    /// Opens the channel to the next host with its final bound.
    pub(super) fn open(self, bound: Nanos, next: SocketAddr) -> Result<Sender, ChannelError> {
        let mut options = self.options;
        let slack = bound.0.saturating_sub(self.bound.0);
        relax(&mut options, bound, slack / 2)?;
        self.admitted.settle(&options, End::Source)?;
        let local = SocketAddr::new(self.way.from, 0);
        let sender = SenderOptions {
            local,
            ..SenderOptions::to(next, options)
        };
        // The promise is released when it is dropped, which changes nothing if a flow has it.
        let hold = Some(self.promise.number());
        self.thread.open_admitted(sender, self.admitted, hold)
    }
}

impl HeldSink {
    /// Opens the channel with its final bound. Returns the port, too.
    pub(super) fn open(self, bound: Nanos) -> Result<(Receiver, Listener), ChannelError> {
        let mut options = self.options;
        let slack = bound.0.saturating_sub(self.bound.0);
        let whole = Nanos(bound.0.saturating_add(1));
        relax(&mut options, whole, slack)?;
        self.admitted.settle(&options, End::Sink)?;
        let receiver = self.port.open_admitted(options, self.admitted, bound)?;
        Ok((receiver, self.port))
    }
}

/// Admits the handler of a channel: with its own part of the deadline, else with the shortest.
fn admit(
    thread: &HandlerThread,
    options: &mut ChannelOptions,
    end: End,
) -> Result<AdmittedChannel, ChannelError> {
    match options.class.processing() {
        Nanos(0) => AdmittedChannel::with_shortest(&thread.owner, options, end),
        _ => AdmittedChannel::new(&thread.owner, options, end),
    }
}

/// Gives a channel its final deadline at this end, and its handler `more` than it has.
fn relax(options: &mut ChannelOptions, deadline: Nanos, more: u64) -> Result<(), OpenError> {
    if let ChannelClass::RealTime(channel) = options.class {
        let part = channel.processing().0.saturating_add(more);
        let part = Nanos(part.min(Channel::MAX_PROCESSING.0));
        let channel = channel.with_processing(Nanos(0))?;
        let channel = channel.resized(channel.mmax(), channel.rmax(), deadline)?;
        options.class = ChannelClass::RealTime(channel.with_processing(part)?);
    }
    Ok(())
}

/// Bytes that the stages add to each packet.
fn added(options: &ChannelOptions) -> u64 {
    let stages = options.stages.iter();
    stages.map(|stage| stage.overhead() as u64).sum()
}

/// Bytes of a packet behind the channel's header.
fn payload(packet: u16) -> Result<u64, OpenError> {
    let taken = PacketHeader::LENGTH as u64;
    let left = u64::from(packet)
        .checked_sub(taken)
        .filter(|left| *left > 0);
    left.ok_or(OpenError::NoPayload {
        largest: Bytes(packet.into()),
        taken: Bytes(taken),
    })
}

/// The deadline of a contract that the daemon granted.
fn deadline_of(contract: &str) -> Result<Nanos, ChannelError> {
    let granted: Result<Contract, _> = contract.parse();
    let channel = granted.ok().and_then(|granted| granted.channel());
    let channel = channel.ok_or(StackError::UnexpectedResponse("hold"))?;
    Ok(channel.deadline())
}
