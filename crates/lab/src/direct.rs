//! Runs a driver and its programs between two hosts of a world, in threads of this process.
//!
//! The driver is the real one (datapath, link and event loop of `netnice-driver`) on the client's
//! device. A program is a thread with memory and doorbells of its own, and shares nothing else with
//! the driver's thread. Sent packets are measured at the server's end of the cable:
//! [`crate::wire::Tap::start_capturing`] stamps and keeps the packets that arrive there.
//!
//! ```text
//!   sender ──ring──▶┐                                         ┌──▶ tap: stamps, capture file
//!   sender ──ring──▶├ driver ══ client ════ cable ════ server ┤
//!   receiver ◀─ring─┘                                         └──── kernel's sockets, ping
//! ```
//! The flows of [`DriverSetup::add_sender`] and [`DriverSetup::add_receiver`] are opened before the
//! driver runs; others can be opened by commands while the driver runs
//! ([`DriverSetup::start_with_commands`]). A flow without packets uses nothing of the link, so a
//! flow may be opened long before its program starts to send. If a program fills its ring before
//! [`DriverSetup::start`], the first period of its slice begins with the driver's first iteration
//! ([`RunningDriver::began`]). [`EndedDriver::counters`] returns the counts of a flow after the
//! driver's end.
//!
//! Opening and adding fail if the kernel refuses a device or a socket, or the driver refuses a
//! mode, a contract or a flow. A start fails if a thread or the event loop cannot be made, the end
//! if the driver's thread panicked. [`EndedDriver::counters`] fails if the driver has no flow of
//! the port.

mod programs;
pub mod rogue;
pub mod shared;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use netnice_core::contract::Contract;
use netnice_core::sched::{Service, Wire};
use netnice_core::units::{Nanos, Rate};
use netnice_driver::commands::{self, CommandSender};
use netnice_driver::datapath::{Datapath, FlowCounters, FlowParameters, OpenedFlow};
use netnice_driver::demux::{FlowNo, Match, Reassembly};
use netnice_driver::event_loop::{EventLoop, SchedulingClass, monotonic, set_scheduling};
use netnice_driver::frame::Mac;
use netnice_driver::link::{Ingress, Link, Mode};
use netnice_driver::protocol::Transport;
use netnice_driver::receive_budget::ReceiveBudget;
use netnice_driver::template::{Sender, Sends};
use netnice_kernel::direct::FrameMatch;
use netnice_ring::driver::ProgramMemory;
use netnice_ring::layout::{Budget, Shape};
use netnice_ring::program::{Attachment, ProgramRings};

pub use programs::{ReceiverProgram, RunningReceiver, RunningSender, SenderProgram};

use crate::sys;
use crate::world::{Host, World};

/// A driver that does not run yet.
pub struct DriverSetup {
    datapath: Datapath,
    link: Link,
    ingress: Ingress,
    next_hop: Mac,
    /// Both endpoints, without ports.
    ends: (SocketAddr, SocketAddr),
    flows: Vec<(u16, FlowNo)>,
    sink: UdpSocket,
}

/// A driver that runs in a thread of its own. Dropping this value ends the thread.
pub struct RunningDriver {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<(EventLoop, Duration)>>,
    flows: Vec<(u16, FlowNo)>,
    _sink: UdpSocket,
    _ingress: Ingress,
    /// The scheduling class that the driver's thread got: real-time, or ordinary without the right
    /// to real-time priority.
    pub scheduling_class: SchedulingClass,
    /// Start of the driver's first iteration (wall clock, ns).
    pub began: u64,
}

/// A driver that has ended, with its counters.
pub struct EndedDriver {
    event_loop: EventLoop,
    /// Processor time of the driver's thread.
    pub worked: Duration,
    flows: Vec<(u16, FlowNo)>,
}

/// A link of `bits` bit/s. As in the papers no framing is charged: a frame of 1500 bytes, which
/// include all headers, takes exactly 120 us at 100 Mbit/s. The scheduler may decide on a packet up
/// to `ahead` before the link is free. Fails if `bits` is 0.
pub fn wire(bits: u64, ahead: Nanos) -> Result<Wire> {
    let rate = Rate::new(bits).context("the rate of the link must not be 0")?;
    Ok(Wire {
        ahead,
        ..Wire::new(rate)
    })
}

impl DriverSetup {
    /// Opens the driver on the client's first device; the next hop is the server's first device.
    /// Fails if a device or a socket cannot be opened, if the client's device does not support
    /// `mode`, or if the scheduler refuses `wire`.
    pub fn new(world: &World, wire: Wire, mode: Mode) -> Result<DriverSetup> {
        let (client, server) = (world.client(), world.server());
        let open = |host: &Host, mode| {
            let device = host.port().device.clone();
            host.ns.enter(|| Ok(Link::open(&device, Some(mode))?))
        };
        let next_hop = open(server, Mode::Fallback)?.0.interface().mac;
        let (link, ingress) = open(client, mode)?;
        let datapath = Datapath::new(wire, link.interface().mac)?;
        let ends = ((client.port().v4, 0).into(), (server.port().v4, 0).into());
        Ok(DriverSetup {
            datapath,
            link,
            ingress,
            next_hop,
            ends,
            flows: Vec::new(),
            sink: sink(server)?,
        })
    }

    /// Adds a program with one flow, which sends datagrams of 1500 bytes (headers included) from
    /// `port` to [`SINK`] under a contract (text such as `slice 4ms/100ms`). Fails if the contract
    /// is invalid, if the scheduler cannot serve it, or if the program's memory cannot be made or
    /// attached.
    pub fn add_sender(&mut self, port: u16, contract: &str) -> Result<SenderProgram> {
        self.add_sender_of_length(port, FRAME, contract)
    }

    /// Adds a program as [`DriverSetup::add_sender`] does, with frames of `length` bytes. Fails as
    /// that call does, and if `length` is less than the 42 bytes of the headers.
    pub(crate) fn add_sender_of_length(
        &mut self,
        port: u16,
        length: usize,
        contract: &str,
    ) -> Result<SenderProgram> {
        let service = Service::of(&contract.parse::<Contract>()?)?;
        let open = self.open(port, service, SENDING);
        let (attachment, flow) = self.attach(&open, |datapath, program, open| {
            Ok(datapath.open(program, open, monotonic())?)
        })?;
        self.sender(attachment, flow, port, length)
    }

    /// Adds a program with one flow, which receives datagrams to `port` of the client. `share` is
    /// the flow's receive budget; `None`: unlimited. From this call on the driver gets the frames
    /// that the client's device receives, and passes frames without a flow to the kernel. Fails if
    /// the program's memory cannot be made, if the flow cannot be opened, or if the XDP program
    /// cannot be attached or changed.
    pub fn add_receiver(
        &mut self,
        world: &World,
        port: u16,
        share: Option<ReceiveBudget>,
    ) -> Result<ReceiverProgram> {
        let local = with(self.ends.0, port);
        let mut open = self.open(port, Service::best_effort(Default::default()), RECEIVING);
        open.receive_budget = share;
        open.matches.push(Match::Port {
            transport: Transport::Udp,
            local,
        });
        let (attachment, flow) = self.attach(&open, |datapath, program, open| {
            Ok(datapath.open(program, open, monotonic())?)
        })?;
        let claim = FrameMatch::Endpoints {
            protocol: 17,
            local: (local.ip(), port),
            remote: None,
        };
        let flow_of_it = self.flows.last().map(|(_, flow)| *flow);
        self.ingress.add_match(&claim, flow_of_it)?;
        self.receive_frames(world)?;
        Ok(ReceiverProgram::new(attachment, flow))
    }

    /// From this call on the driver gets received frames. Frames without a registered flow go to
    /// the kernel. Fails if the namespace cannot be entered, or if the XDP program cannot be
    /// attached.
    pub(crate) fn receive_frames(&mut self, world: &World) -> Result<()> {
        let ingress = &mut self.ingress;
        world.client().ns.enter(|| Ok(ingress.start()?))
    }

    /// The parameters of a flow that sends from `port` to [`SINK`], for a program that opens the
    /// flow itself.
    pub fn open(&self, port: u16, service: Service, shape: Shape) -> FlowParameters {
        FlowParameters {
            shape,
            service,
            sender: Sender {
                mac: self.link.interface().mac,
                next_hop: Some(self.next_hop),
                longest: 1514,
                sends: Sends::Ports {
                    transport: Transport::Udp,
                    local: with(self.ends.0, port),
                    remote: Some(with(self.ends.1, SINK)),
                },
            },
            matches: Vec::new(),
            reassembly: Reassembly::Complete,
            receive_budget: None,
        }
    }

    /// A frame with a UDP datagram, as the flow of `port` may send it. `length` is that of the
    /// whole frame; the call fails if `length` is less than the 42 bytes of the headers or more
    /// than IPv4 allows, and for IPv6 addresses.
    pub fn frame(&self, port: u16, length: usize) -> Result<Vec<u8>> {
        let (SocketAddr::V4(from), SocketAddr::V4(to)) = self.ends else {
            anyhow::bail!("only IPv4 frames are supported");
        };
        let mut frame = Vec::with_capacity(length);
        let payload = length
            .checked_sub(HEADERS)
            .context("the frame is shorter than its headers")?;
        etherparse::PacketBuilder::ethernet2(self.link.interface().mac.0, self.next_hop.0)
            .ipv4(from.ip().octets(), to.ip().octets(), 64)
            .udp(port, SINK)
            .write(&mut frame, &vec![0; payload])?;
        Ok(frame)
    }

    /// Runs the driver in a thread, with real-time priority if this process may have it, and on
    /// `processor` if given. Fails if the event loop or its thread cannot be made, or if the thread
    /// cannot run on that processor.
    pub fn start(self, processor: Option<usize>) -> Result<RunningDriver> {
        Ok(self.start_with_commands(processor)?.0)
    }

    /// Runs the driver as [`DriverSetup::start`] does; another thread may have flows opened and
    /// closed through [`CommandSender`], as the control thread of `netnice-driver` does. Fails as
    /// `start` does, and if the channel of commands cannot be made.
    pub fn start_with_commands(
        self,
        processor: Option<usize>,
    ) -> Result<(RunningDriver, CommandSender)> {
        let (commands, mut inbox) = commands::pair()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let (report_start, started) = mpsc::channel();
        let mut event_loop = EventLoop::new(self.datapath, self.link)?;
        event_loop.watch_wakeup(inbox.wakeup_fd())?;
        if let Err(error) = event_loop.keep_awake() {
            eprintln!("netnice-lab: cannot keep processors awake between packets: {error}");
        }
        let thread = std::thread::Builder::new()
            .name("driver".into())
            .spawn(move || {
                let started = set_scheduling(processor)
                    .map(|scheduling_class| (scheduling_class, sys::now_ns()));
                let failed = started.is_err();
                let _ = report_start.send(started);
                while !failed && !stopped.load(Ordering::Relaxed) {
                    // The loop goes on after the other side dropped its `CommandSender`.
                    inbox.execute(&mut event_loop);
                    event_loop.iterate(LONGEST_SLEEP);
                }
                (event_loop, sys::thread_time())
            })?;
        let (scheduling_class, began) =
            started.recv().context("the driver's thread has ended")??;
        let running_driver = RunningDriver {
            stop,
            thread: Some(thread),
            flows: self.flows,
            _sink: self.sink,
            _ingress: self.ingress,
            scheduling_class,
            began,
        };
        Ok((running_driver, commands))
    }

    fn attach(
        &mut self,
        open: &FlowParameters,
        how: impl FnOnce(
            &mut Datapath,
            netnice_driver::datapath::ProgramNo,
            &FlowParameters,
        ) -> Result<OpenedFlow>,
    ) -> Result<(Attachment, ProgramRings)> {
        let client = ProgramMemory::create(Budget {
            flows: 1,
            bytes: open.shape.plan()?.bytes(),
        })?;
        let attachment = client.handles().attach()?;
        let program = self.datapath.attach(client);
        let opened = how(&mut self.datapath, program, open)?;
        if let Sends::Ports { local, .. } = &open.sender.sends {
            self.flows.push((local.port(), opened.flow));
        }
        let flow = attachment.flow(opened.location)?;
        Ok((attachment, flow))
    }

    fn sender(
        &self,
        attachment: Attachment,
        flow: ProgramRings,
        port: u16,
        length: usize,
    ) -> Result<SenderProgram> {
        let frame = self.frame(port, length)?;
        Ok(SenderProgram::new(attachment, flow, frame))
    }
}

impl RunningDriver {
    /// Ends the driver and returns it for evaluation. Fails if its thread panicked.
    pub fn end(mut self) -> Result<EndedDriver> {
        let done = self.halt().context("a driver ends once")?;
        let (event_loop, worked) = done?;
        Ok(EndedDriver {
            event_loop,
            worked,
            flows: std::mem::take(&mut self.flows),
        })
    }

    fn halt(&mut self) -> Option<Result<(EventLoop, Duration)>> {
        self.stop.store(true, Ordering::Relaxed);
        let done = self.thread.take()?.join();
        Some(done.map_err(|_| anyhow!("the driver's thread panicked")))
    }
}

impl Drop for RunningDriver {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

impl EndedDriver {
    /// The counters of the flow that was added with `port`. Fails if no flow was added with this
    /// port, or if the driver has closed the flow.
    pub fn counters(&mut self, port: u16) -> Result<FlowCounters> {
        let known = self.flows.iter().find(|(of, _)| *of == port);
        let (_, flow) = known.with_context(|| format!("no flow of port {port}"))?;
        let counters = self.event_loop.counters(*flow);
        counters.with_context(|| format!("the flow of port {port} is gone"))
    }

    /// The driver's event loop, with its counters.
    pub fn event_loop(&mut self) -> &mut EventLoop {
        &mut self.event_loop
    }
}

/// Binds the senders' destination port on `host` with a socket that is never read, so that the host
/// sends no ICMP error. Fails if the port is taken, or if the namespace cannot be entered.
pub(crate) fn sink(host: &Host) -> Result<UdpSocket> {
    let at = (host.port().v4, SINK);
    let socket = host.ns.enter(|| Ok(UdpSocket::bind(at)?))?;
    let little = socket2::SockRef::from(&socket).set_recv_buffer_size(4096);
    little.context("cannot set the receive buffer")?;
    Ok(socket)
}

fn with(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Bytes of a frame with all its headers. The papers call this a packet of 1500 bytes.
pub(crate) const FRAME: usize = 1500;
/// The UDP port on the server to which senders send (discard).
pub const SINK: u16 = 9;
/// Bytes of the Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 42;
/// Shape of a sender's flow with buffers for 120 ms at 100 Mbit/s. So the ring is not empty while
/// the program waits for a processor.
pub(crate) const SENDING: Shape = Shape {
    chunk_bytes: 2048,
    chunks: 1024,
    transmit_entries: 2048,
    receive_entries: 16,
};
/// Shape of a sender's flow with few buffers (64, for 7.7 ms at 100 Mbit/s), so that all its
/// submitted packets have left soon after the program stops.
pub const SHORT: Shape = Shape {
    chunks: 64,
    transmit_entries: 128,
    ..SENDING
};
/// Shape of a receiver's flow with buffers for 0.1 s of full frames at 40 Mbit/s.
pub(crate) const RECEIVING: Shape = Shape {
    chunk_bytes: 2048,
    chunks: 512,
    transmit_entries: 16,
    receive_entries: 1024,
};
/// Time after which an idle driver checks whether it must stop.
const LONGEST_SLEEP: Nanos = Nanos::from_millis(10);
