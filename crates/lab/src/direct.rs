//! A driver and its programs between two hosts of a world, in threads of this process.
//!
//! The driver is the real one (turn, link and loop of `netnice-driver`) on the client's device. A program is a thread
//! with memory and doorbells of its own, and shares nothing else with the driver's thread. The server's end of the cable is
//! the wire: what arrives there is stamped and kept by [`crate::wire::Tap::keeping`].
//!
//! ```text
//!   talker ──ring──▶┐                                        ┌──▶ tap: stamps, capture file
//!   talker ──ring──▶├ driver (SCHED_FIFO) ══ client ══ server ┤
//!   listener ◀─ring─┘                                        └──── kernel's sockets, ping
//! ```
//! Flows are opened before the driver runs ([`Direct::talker`], [`Direct::listener`]); a flow without packets costs
//! nothing, so one that is to start later is opened and begins to talk later. Who has filled its ring before
//! [`Direct::drive`] begins its first period with the driver's first round ([`Driving::began`]).

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
use netnice_core::contract::{Contract, Slice};
use netnice_core::sched::{Class, FlowId, Service, Wire};
use netnice_core::units::{Nanos, Rate};
use netnice_driver::demux::{FlowNo, Match, Reassembly};
use netnice_driver::frame::Mac;
use netnice_driver::link::{Ear, Link, Mode};
use netnice_driver::orders::{self, Orders};
use netnice_driver::protocol::Transport;
use netnice_driver::serve::{Pace, Server, monotonic, pace};
use netnice_driver::share::Share;
use netnice_driver::template::{Sender, Sends};
use netnice_driver::turn::{Counters, Open, Opened, Turn};
use netnice_kernel::direct::Claim;
use netnice_ring::driver::Client;
use netnice_ring::layout::{Budget, Shape};
use netnice_ring::program::{Attachment, Flow};

pub use programs::{Listener, Listening, Talker, Talking};

use crate::sys;
use crate::world::{Host, World};

/// A driver that does not run yet.
pub struct Direct {
    turn: Turn,
    link: Link,
    ear: Ear,
    next_hop: Mac,
    /// Both ends, without ports.
    ends: (SocketAddr, SocketAddr),
    flows: Vec<(u16, FlowNo)>,
    sink: UdpSocket,
}

/// A driver that runs, in a thread of its own. It ends with this.
pub struct Driving {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<(Server, Duration)>>,
    flows: Vec<(u16, FlowNo)>,
    _sink: UdpSocket,
    _ear: Ear,
    /// How its thread is woken.
    pub pace: Pace,
    /// When its first round began, by the wall clock in ns.
    pub began: u64,
}

/// A driver that ran.
pub struct Driven {
    server: Server,
    /// Processor time of its thread.
    pub worked: Duration,
    flows: Vec<(u16, FlowNo)>,
}

/// A link of this rate, as the papers count: the frames of the experiments are [`FRAME`] bytes with all their headers, and no
/// framing is charged; so a packet takes exactly 120 us at 100 Mbit/s. It may be decided on `ahead` before the link is free.
pub fn wire(bits: u64, ahead: Nanos) -> Result<Wire> {
    let rate = Rate::new(bits).context("a link without a rate")?;
    Ok(Wire {
        ahead,
        ..Wire::new(rate)
    })
}

impl Direct {
    /// The driver of the client's first device; the way leads to the server's.
    pub fn new(world: &World, wire: Wire, mode: Mode) -> Result<Direct> {
        let (client, server) = (world.client(), world.server());
        let open = |host: &Host, mode| {
            let device = host.port().device.clone();
            host.ns.enter(|| Ok(Link::open(&device, Some(mode))?))
        };
        let next_hop = open(server, Mode::Fallback)?.0.interface().mac;
        let (link, ear) = open(client, mode)?;
        let turn = Turn::new(wire, link.interface().mac)?;
        let ends = ((client.port().v4, 0).into(), (server.port().v4, 0).into());
        Ok(Direct {
            turn,
            link,
            ear,
            next_hop,
            ends,
            flows: Vec::new(),
            sink: sink(server)?,
        })
    }

    /// A program with one flow, which sends datagrams of [`FRAME`] bytes from this port under a contract.
    pub fn talker(&mut self, port: u16, contract: &str) -> Result<Talker> {
        self.talker_of(port, FRAME, contract)
    }

    /// The same, with frames of so many bytes.
    pub fn talker_of(&mut self, port: u16, length: usize, contract: &str) -> Result<Talker> {
        let service = Service::of(&contract.parse::<Contract>()?)?;
        let open = self.open(port, service, SENDING);
        let (attachment, flow) = self.attach(&open, |turn, program, open| {
            Ok(turn.open(program, open, monotonic())?)
        })?;
        self.talks(attachment, flow, port, length)
    }

    /// An overbooked slice of the link with these classes.
    pub fn server(&mut self, slice: Slice, classes: &[Class]) -> Result<FlowId> {
        Ok(self.turn.insert_server(slice, classes, monotonic())?)
    }

    /// The same as [`Direct::talker`], of a flow inside an overbooked slice.
    pub fn member(&mut self, port: u16, of: (FlowId, usize), contract: &str) -> Result<Talker> {
        let service = Service::of(&contract.parse::<Contract>()?)?;
        let open = self.open(port, service, SHORT);
        let (attachment, flow) = self.attach(&open, |turn, program, open| {
            Ok(turn.open_member(program, open, of, monotonic())?)
        })?;
        self.talks(attachment, flow, port, FRAME)
    }

    /// A program with one flow, which receives what comes to this port. Received frames come to the driver from now on.
    pub fn listener(&mut self, world: &World, port: u16, share: Option<Share>) -> Result<Listener> {
        let local = with(self.ends.0, port);
        let mut open = self.open(port, Service::best_effort(Default::default()), RECEIVING);
        open.share = share;
        open.matches.push(Match::Port {
            transport: Transport::Udp,
            local,
        });
        let (attachment, flow) = self.attach(&open, |turn, program, open| {
            Ok(turn.open(program, open, monotonic())?)
        })?;
        let claim = Claim::Ends {
            protocol: 17,
            local: (local.ip(), port),
            remote: None,
        };
        let flow_of_it = self.flows.last().map(|(_, flow)| *flow);
        self.ear.claim(&claim, flow_of_it)?;
        self.listen(world)?;
        Ok(Listener::new(attachment, flow))
    }

    /// Received frames come to the driver, and what nobody registered goes on to the kernel.
    pub fn listen(&mut self, world: &World) -> Result<()> {
        let ear = &mut self.ear;
        world.client().ns.enter(|| Ok(ear.listen()?))
    }

    /// How frames pass.
    pub fn mode(&self) -> Mode {
        self.ear.mode()
    }

    /// The driver before it runs, for what programs do not do.
    pub fn turn(&mut self) -> &mut Turn {
        &mut self.turn
    }

    /// The flow of a program that this module knows nothing about.
    pub fn open(&self, port: u16, service: Service, shape: Shape) -> Open {
        Open {
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
            share: None,
        }
    }

    /// A datagram of so many bytes with its headers, as the flow of this port may send it.
    pub fn frame(&self, port: u16, length: usize) -> Result<Vec<u8>> {
        let (SocketAddr::V4(from), SocketAddr::V4(to)) = self.ends else {
            anyhow::bail!("frames are of IPv4 here");
        };
        let mut frame = Vec::with_capacity(length);
        let payload = length
            .checked_sub(HEADERS)
            .context("a frame without room")?;
        etherparse::PacketBuilder::ethernet2(self.link.interface().mac.0, self.next_hop.0)
            .ipv4(from.ip().octets(), to.ip().octets(), 64)
            .udp(port, SINK)
            .write(&mut frame, &vec![0; payload])?;
        Ok(frame)
    }

    /// Runs it in a thread, on this processor if one is named.
    pub fn drive(self, processor: Option<usize>) -> Result<Driving> {
        Ok(self.drive_by(processor)?.0)
    }

    /// The same; another thread may have flows opened and closed, as the control thread of `netnice-driver` does.
    pub fn drive_by(self, processor: Option<usize>) -> Result<(Driving, Orders)> {
        let (orders, mut inbox) = orders::pair()?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let (tell, begun) = mpsc::channel();
        let mut server = Server::new(self.turn, self.link)?;
        server.also(inbox.bell())?;
        if let Err(error) = server.keep_awake() {
            eprintln!("lab: processors may fall asleep between packets: {error}");
        }
        let thread = std::thread::Builder::new()
            .name("driver".into())
            .spawn(move || {
                let begun = pace(processor).map(|pace| (pace, sys::now_ns()));
                let failed = begun.is_err();
                let _ = tell.send(begun);
                while !failed && !told.load(Ordering::Relaxed) {
                    // That nobody has orders any more does not end it.
                    inbox.work(&mut server);
                    server.round(LONGEST_SLEEP);
                }
                (server, sys::thread_time())
            })?;
        let (pace, began) = begun.recv().context("the driver's thread is gone")??;
        let driving = Driving {
            stop,
            thread: Some(thread),
            flows: self.flows,
            _sink: self.sink,
            _ear: self.ear,
            pace,
            began,
        };
        Ok((driving, orders))
    }

    fn attach(
        &mut self,
        open: &Open,
        how: impl FnOnce(&mut Turn, netnice_driver::turn::ProgramNo, &Open) -> Result<Opened>,
    ) -> Result<(Attachment, Flow)> {
        let client = Client::create(Budget {
            flows: 1,
            bytes: open.shape.plan()?.bytes(),
        })?;
        let attachment = client.handles().attach()?;
        let program = self.turn.attach(client);
        let opened = how(&mut self.turn, program, open)?;
        if let Sends::Ports { local, .. } = &open.sender.sends {
            self.flows.push((local.port(), opened.flow));
        }
        let flow = attachment.flow(opened.place)?;
        Ok((attachment, flow))
    }

    fn talks(
        &self,
        attachment: Attachment,
        flow: Flow,
        port: u16,
        length: usize,
    ) -> Result<Talker> {
        let frame = self.frame(port, length)?;
        Ok(Talker::new(attachment, flow, frame))
    }
}

impl Driving {
    /// Ends it, and returns it for questions.
    pub fn end(mut self) -> Result<Driven> {
        let done = self.halt().context("a driver ends once")?;
        let (server, worked) = done?;
        Ok(Driven {
            server,
            worked,
            flows: std::mem::take(&mut self.flows),
        })
    }

    fn halt(&mut self) -> Option<Result<(Server, Duration)>> {
        self.stop.store(true, Ordering::Relaxed);
        let done = self.thread.take()?.join();
        Some(done.map_err(|_| anyhow!("the driver's thread panicked")))
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

impl Driven {
    /// What was counted of the flow of a port.
    pub fn counters(&mut self, port: u16) -> Result<Counters> {
        let known = self.flows.iter().find(|(of, _)| *of == port);
        let (_, flow) = known.with_context(|| format!("no flow of port {port}"))?;
        let counters = self.server.counters(*flow);
        counters.with_context(|| format!("the flow of port {port} is gone"))
    }

    /// The driver itself.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

/// Somebody who has the port that is sent to and reads nothing, so that the host does not complain that it is free.
pub fn sink(host: &Host) -> Result<UdpSocket> {
    let at = (host.port().v4, SINK);
    let socket = host.ns.enter(|| Ok(UdpSocket::bind(at)?))?;
    let little = socket2::SockRef::from(&socket).set_recv_buffer_size(4096);
    little.context("a small receive buffer")?;
    Ok(socket)
}

fn with(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Bytes of a frame with its headers: what the papers call a packet.
pub const FRAME: usize = 1500;
/// Where talkers send to.
pub const SINK: u16 = 9;
/// Ethernet, IPv4, UDP.
const HEADERS: usize = 42;
/// Room for 120 ms at 100 Mbit/s: a program that waits for its processor does not run dry.
pub const SENDING: Shape = Shape {
    chunk_bytes: 2048,
    chunks: 1024,
    transmit_entries: 2048,
    receive_entries: 16,
};
/// Room for so little that a program which stops has soon sent all.
pub const SHORT: Shape = Shape {
    chunks: 64,
    transmit_entries: 128,
    ..SENDING
};
/// Room for 0.1 s of full frames at 40 Mbit/s.
pub const RECEIVING: Shape = Shape {
    chunk_bytes: 2048,
    chunks: 512,
    transmit_entries: 16,
    receive_entries: 1024,
};
/// How soon a driver that has nothing to do sees that it is to stop.
const LONGEST_SLEEP: Nanos = Nanos::from_millis(10);
