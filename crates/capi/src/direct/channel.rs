//! Channels between hosts for C ([`netnice_channel::network`]), with plain numbers and structures:
//! the calls that begin and end them. [`payload`] sends and receives messages, [`state`] shows what
//! a channel has and did, and [`readiness`] waits for many at once.
//!
//! One thread at a time may use a channel or a service; any number may use a network. A call fails
//! with ECONNREFUSED if no netnice-peer runs or a host refuses, with ENOSPC if a host refuses and a
//! longer deadline would be granted, with ECONNRESET if the connection to netnice-peer has ended,
//! and with EPIPE if the channel has. Calls also fail if a pointer is NULL, another argument is
//! invalid, or the number is not that of an open object of the kind.

pub(super) mod payload;
pub(super) mod readiness;
mod stages;
pub(super) mod state;

use libc::{c_char, c_int, c_uint, c_ulonglong};
use netnice_channel::network::{
    BLOCK, LEAST_PACKET, LONGEST_HOST, LONGEST_SERVICE, MOST_PACKET, Network, NetworkError,
    NetworkOptions, OutgoingChannel, PACKET, RemoteChannel, ServiceOptions,
};
use netnice_channel::{
    ChannelClass, ChannelId, ChannelOptions, ExecutorSettings, HandlerThreadOptions,
    LONGEST_MESSAGE, WhenFull, costs,
};
use netnice_core::contract::{self, Clause, Contract, Slice};
use netnice_core::units::{Bytes, Nanos};
use netnice_stack::udp::Buffers;
use netnice_stack::{RuntimeDir, own};

use crate::direct::{duration, guarded_int};
use crate::error::CallError;
use crate::handles::channels::{ChannelHandle, NetworkHandle, OpenChannel, ServiceHandle};
use crate::handles::{self, Remote};
use crate::{pointers, runtime_dir};
use stages::stages;

/// `struct netnice_network`: this program's ends of its channels.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NetworkParameters {
    pub(super) slice: c_ulonglong,
    pub(super) period: c_ulonglong,
    pub(super) packet: c_uint,
    pub(super) receiving: c_uint,
    pub(super) flags: c_uint,
}

/// `struct netnice_channel`: a channel to open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Channel {
    pub(super) contract: *const c_char,
    pub(super) secret: *const u8,
    pub(super) flags: c_uint,
}

/// `struct netnice_service`: a service to offer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Service {
    pub(super) secret: *const u8,
    pub(super) longest: c_ulonglong,
    pub(super) processing: c_ulonglong,
    pub(super) channels: c_uint,
    pub(super) flags: c_uint,
}

/// `struct netnice_refusal`: what is known of a refusal.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Refusal {
    pub(super) best_deadline: c_ulonglong,
    pub(super) host: [c_char; 256],
}

/// Connects to the netnice-peer of this host. Returns the number of the network.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_connect(network: *const NetworkParameters) -> c_int {
    guarded_int(|| {
        let parameters = pointers::read(network, "the network's description")?;
        connect(&runtime_dir(), &parameters)
    })
}

/// Connects to the netnice-peer beside a runtime folder. Returns the number of the network. Fails
/// if [`Network::connect`] fails or the processor time is not reserved, and with ENFILE if no
/// handle is free.
pub(super) fn connect(
    dir: &RuntimeDir,
    parameters: &NetworkParameters,
) -> Result<c_int, CallError> {
    let mut options = parameters.options()?;
    let reservation = options.handlers.reservation;
    if let Some(slice) = reservation {
        options.use_reservation(slice);
    }
    let settings = options.handlers.settings;
    let network = Network::connect(dir, options)?;
    // Last, because the reservation outlives a failed call.
    if let Some(slice) = reservation {
        own::change(dir, &format!("cpu {}/{}", slice.slice(), slice.period()))?;
    }
    handles::add_network(NetworkHandle { network, settings })
}

/// Opens a channel to a service on another host, and waits until it is established or refused.
/// Returns the number of the channel.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_open(
    network: c_int,
    to: *const c_char,
    channel: *const Channel,
    refusal: *mut Refusal,
) -> c_int {
    guarded_int(|| {
        let mut known = Refusal::none();
        let opened = open(network, to, channel, &mut known);
        if !refusal.is_null() {
            pointers::write(refusal, known, "the refusal")?;
        }
        opened
    })
}

fn open(
    network: c_int,
    to: *const c_char,
    channel: *const Channel,
    refusal: &mut Refusal,
) -> Result<c_int, CallError> {
    let handle = handles::network(network)?;
    let to = pointers::text(to)?.ok_or(CallError::Null("the service"))?;
    let (service, host) = service_and_host(&to)?;
    let channel = pointers::read(channel, "the channel's description")?;
    let contract = pointers::text(channel.contract)?.ok_or(CallError::Null("the contract"))?;
    let contract = parse(&contract)?;
    if channel.flags & !CHECKSUM != 0 {
        return Err(CallError::Invalid);
    }
    let stages = stages(channel.secret, channel.flags, &handle.settings)?;
    let id = ChannelId::random().map_err(netnice_channel::ChannelError::from)?;
    let mut options = ChannelOptions::new(id, ChannelClass::RealTime(contract));
    options.stages = stages.stages(id);
    let opened = handle.network.open(RemoteChannel {
        service,
        host,
        options,
    });
    let channel = Box::new(opened.inspect_err(|error| refusal.note(error))?);
    let mmax = contract.mmax();
    handles::add_channel(ChannelHandle::new(OpenChannel::Outgoing { channel, mmax }))
}

/// Offers a service to programs on other hosts. Returns the number of the service.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_listen(
    network: c_int,
    name: *const c_char,
    service: *const Service,
) -> c_int {
    guarded_int(|| {
        let handle = handles::network(network)?;
        let name = pointers::text(name)?.ok_or(CallError::Null("the name of the service"))?;
        in_range(
            "the length of the service's name",
            name.len(),
            1..=LONGEST_SERVICE,
        )?;
        let service = pointers::read(service, "the service's description")?;
        let options = service.options(&handle.settings)?;
        let service = handle.network.listen(&name, options)?;
        handles::add_service(ServiceHandle::new(service))
    })
}

/// Waits for the next channel of a service. Returns the number of the channel.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_accept(service: c_int, timeout: c_int) -> c_int {
    guarded_int(|| {
        let timeout = duration(timeout)?;
        let handle = handles::service(service)?;
        let channel = handle.with(|service| Ok(service.accept(timeout)?))?;
        let kept = None;
        handles::add_channel(ChannelHandle::new(OpenChannel::Incoming {
            channel: Box::new(channel),
            kept,
        }))
    })
}

/// Waits until the last message has arrived, and closes the channel. Returns 0. If the timeout
/// expires, the channel stays open.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_finish(channel: c_int, timeout: c_int) -> c_int {
    guarded_int(|| {
        let timeout = duration(timeout)?;
        let handle = handles::channel(channel)?;
        let mut open = handle.lock()?;
        open.as_mut()
            .ok_or(CallError::BadHandle)?
            .sender()?
            .drain(timeout)?;
        handles::remove(channel);
        match open.take() {
            // All messages have left, so it only waits for as long as they are on their way.
            Some(OpenChannel::Outgoing { channel, .. }) => channel.finish(timeout)?,
            other => drop(other),
        }
        Ok(0)
    })
}

/// Closes a network, a service or a channel. Returns 0. Fails with EBUSY if another thread is in a
/// call of the service or channel.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_close(number: c_int) -> c_int {
    guarded_int(|| {
        match handles::remote(number)? {
            Remote::Network => handles::remove(number),
            Remote::Service(service) => {
                let open = service.lock()?.take();
                handles::remove(number);
                drop(open);
            }
            Remote::Channel(channel) => {
                let open = channel.lock()?.take();
                handles::remove(number);
                drop(open);
            }
        }
        Ok(0)
    })
}

impl NetworkParameters {
    /// The options of the network. Measures what processing costs on this machine.
    fn options(&self) -> Result<NetworkOptions, CallError> {
        if self.flags != 0 {
            return Err(CallError::Invalid);
        }
        let reservation = match (self.slice, self.period) {
            (0, 0) => None,
            (slice, period) => Some(Slice::new(Nanos(slice), Nanos(period), false)?),
        };
        let packet = match self.packet {
            0 => PACKET,
            packet => {
                let packets = LEAST_PACKET.0 as usize..=MOST_PACKET.0 as usize;
                Bytes(in_range("the longest packet", packet as usize, packets)? as u64)
            }
        };
        let buffers = match self.receiving {
            0 => None,
            count => {
                let most = Buffers::MOST as usize;
                in_range("the number of buffers", count as usize, 1..=most)?;
                Some(count)
            }
        };
        let settings = costs::of_machine(packet, BLOCK, crate::costs_file().as_deref())?;
        let handlers = HandlerThreadOptions {
            reservation,
            ..HandlerThreadOptions::new(settings)
        };
        let default = NetworkOptions::new(handlers);
        Ok(NetworkOptions {
            buffers: buffers.unwrap_or(default.buffers),
            ..default
        })
    }
}

impl Service {
    fn options(&self, settings: &ExecutorSettings) -> Result<ServiceOptions, CallError> {
        if self.flags & !(CHECKSUM | DROP) != 0 {
            return Err(CallError::Invalid);
        }
        let stages = stages(self.secret, self.flags, settings)?;
        let default = ServiceOptions::default();
        Ok(ServiceOptions {
            stages: Box::new(move |channel| stages.stages(channel)),
            processing: Some(Nanos(self.processing)).filter(|part| part.0 > 0),
            mmax: match usize::try_from(self.longest).unwrap_or(usize::MAX) {
                0 => default.mmax,
                longest => {
                    let most = LONGEST_MESSAGE.0 as usize;
                    Bytes(in_range("the longest message", longest, 1..=most)? as u64)
                }
            },
            channels: match self.channels {
                0 => default.channels,
                channels => channels as usize,
            },
            when_full: match self.flags & DROP {
                0 => WhenFull::Wait,
                _ => WhenFull::Drop,
            },
        })
    }
}

impl Refusal {
    fn none() -> Refusal {
        Refusal {
            best_deadline: 0,
            host: [0; 256],
        }
    }

    /// Notes what is known if the error is a refusal.
    fn note(&mut self, error: &NetworkError) {
        if let NetworkError::Refused { host, best, .. } = error {
            self.best_deadline = best.map_or(0, |best| best.0);
            self.host = pointers::fixed_text(host);
        }
    }
}

impl OpenChannel {
    /// The channel, if this end sends.
    fn sender(&mut self) -> Result<&mut OutgoingChannel, CallError> {
        match self {
            OpenChannel::Outgoing { channel, .. } => Ok(channel),
            OpenChannel::Incoming { .. } => Err(CallError::Direction("receives")),
        }
    }
}

/// The name of the service and the host in a text of the form NAME@HOST.
fn service_and_host(text: &str) -> Result<(String, String), CallError> {
    let parts = text.split_once('@');
    let (service, host) = parts
        .filter(|(service, host)| !service.is_empty() && !host.is_empty())
        .ok_or_else(|| CallError::Destination(text.to_owned()))?;
    in_range(
        "the length of the service's name",
        service.len(),
        1..=LONGEST_SERVICE,
    )?;
    in_range(
        "the length of the host's name",
        host.len(),
        1..=LONGEST_HOST,
    )?;
    Ok((service.to_owned(), host.to_owned()))
}

/// The channel of a contract that has no other clause.
fn parse(text: &str) -> Result<contract::Channel, CallError> {
    let contract: Contract = text.parse()?;
    match contract.channel() {
        Some(channel) if contract.as_change().clauses() == [Clause::Channel] => Ok(channel),
        _ => Err(CallError::NotAChannel),
    }
}

/// The value, if it is in a range.
fn in_range(
    option: &'static str,
    value: usize,
    range: std::ops::RangeInclusive<usize>,
) -> Result<usize, CallError> {
    let number = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
    match range.contains(&value) {
        true => Ok(value),
        false => Err(CallError::OutOfRange {
            option,
            value: number(value),
            least: number(*range.start()),
            most: number(*range.end()),
        }),
    }
}

// As in the header.
const CHECKSUM: c_uint = 1;
const DROP: c_uint = 2;
