//! Replies to an unmodified UDP program (`--replies`): a second channel from the sink to the
//! source, with the contract of the first one. The source offers a service for it, whose name
//! contains the identifier of the first channel ([`Replies::offer`]); the sink opens it
//! ([`ReplyOptions::send`]). A call fails with a [`CommandError`] if the service cannot be offered,
//! or a thread or a socket cannot be made. A second channel that is refused or ends costs the
//! replies only: a line says so.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use netnice_channel::costs::StageMaker;
use netnice_channel::network::{
    IncomingChannel, Network, NetworkError, OutgoingChannel, RemoteChannel, Service, ServiceOptions,
};
use netnice_channel::{
    ChannelClass, ChannelError, ChannelId, ChannelOptions, SendRefusal, WhenFull,
};
use netnice_core::units::Nanos;

use super::input::DatagramPort;
use super::of_channel;
use crate::error::CommandError;
use crate::render::printable;

/// The parameters of second channels, at either end.
#[derive(Clone)]
pub(super) struct ReplyOptions {
    pub network: Network,
    pub stages: Arc<StageMaker>,
    /// The handler's part of the deadline; `None`: the shortest.
    pub processing: Option<Nanos>,
    /// True: print nothing about a channel that is refused or ends.
    pub quiet: bool,
}

/// A thread that passes replies on. Dropping it ends the thread, and its channel.
pub(super) struct Replies {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Replies {
    /// Offers the service for the replies to `channel`. They go to the program that sent the last
    /// datagram to `port`.
    pub(super) fn offer(
        options: ReplyOptions,
        channel: ChannelId,
        port: Arc<DatagramPort>,
    ) -> Result<Replies, CommandError> {
        let stages = options.stages;
        let of_service = ServiceOptions {
            stages: Box::new(move |channel| stages.stages(channel)),
            processing: options.processing,
            channels: 1,
            when_full: WhenFull::Drop,
            ..ServiceOptions::default()
        };
        let service = options.network.listen(&service_of(channel), of_service)?;
        Replies::start(move |ends| receive(&service, &port, ends))
    }

    fn start(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Result<Replies, CommandError> {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let thread = std::thread::Builder::new().name("replies".into());
        let thread = thread.spawn(move || work(&ended));
        let thread = thread.map_err(|error| CommandError::io("a thread for replies", error))?;
        Ok(Replies {
            ends,
            thread: Some(thread),
        })
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl ReplyOptions {
    /// Opens the channel for the replies to `first`, and sends what the program sends to `socket`.
    pub(super) fn send(
        &self,
        first: &IncomingChannel,
        socket: &UdpSocket,
    ) -> Result<Replies, CommandError> {
        let id = ChannelId::random().map_err(|error| CommandError::io("random numbers", error))?;
        let mut contract = first.contract();
        if let Some(part) = self.processing {
            let with_part = contract.with_processing(part);
            contract = with_part.map_err(|error| of_channel(ChannelError::Open(error.into())))?;
        }
        let mut options = ChannelOptions::new(id, ChannelClass::RealTime(contract));
        options.stages = self.stages.stages(id);
        let source = first.hops().first();
        let request = RemoteChannel {
            service: service_of(first.id()),
            host: source.map(|hop| hop.host.clone()).unwrap_or_default(),
            options,
        };
        let copy = socket.try_clone().and_then(|copy| {
            copy.set_read_timeout(Some(LOOK))?;
            Ok(copy)
        });
        let copy = copy.map_err(|error| CommandError::io("--udp", error))?;
        let (network, quiet) = (self.network.clone(), self.quiet);
        Replies::start(move |ends| {
            let sent = network.open(request);
            let sent = sent.and_then(|mut channel| send_datagrams(&mut channel, &copy, ends));
            if let Err(error) = sent
                && !quiet
                && !ends.load(Ordering::Relaxed)
            {
                eprintln!("netnice: no replies: {}", printable(&error.to_string()));
            }
        })
    }
}

/// Passes replies on to the program, until `ends` is set or the service has ended.
fn receive(service: &Service, port: &DatagramPort, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        let mut channel = match service.accept(Some(LOOK)) {
            Ok(channel) => channel,
            Err(NetworkError::Timeout) => continue,
            Err(_) => return,
        };
        while !ends.load(Ordering::Relaxed) {
            match channel.receive(Some(LOOK)) {
                Ok(message) => {
                    port.answer(&message.body);
                    channel.reuse(message.body);
                }
                Err(ChannelError::WouldBlock) => {}
                Err(_) => break,
            }
        }
    }
}

/// Sends datagrams of the program, until `ends` is set. Fails if the channel ends.
fn send_datagrams(
    channel: &mut OutgoingChannel,
    socket: &UdpSocket,
    ends: &AtomicBool,
) -> Result<(), NetworkError> {
    let mut buffer = vec![0; LONGEST_DATAGRAM];
    while !ends.load(Ordering::Relaxed) {
        while channel.departure().is_some() {}
        let length = match socket.recv(&mut buffer) {
            Ok(length) => length,
            Err(error) if is_timeout(&error) => match channel.end_reason() {
                Some(why) => return Err(ChannelError::Ended(why).into()),
                None => continue,
            },
            // The program does not run yet, or not any more.
            Err(_) => continue,
        };
        match channel.send(buffer[..length].to_vec(), None) {
            Ok(_)
            | Err(ChannelError::Refused(
                SendRefusal::TooLong { .. } | SendRefusal::Dropped { .. },
            )) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut)
}

/// The name of the service for the replies to a channel.
fn service_of(channel: ChannelId) -> String {
    format!("replies-{channel}")
}

/// How often the threads look whether they must end.
const LOOK: Duration = Duration::from_millis(100);
/// The longest datagram.
const LONGEST_DATAGRAM: usize = 65_535;
