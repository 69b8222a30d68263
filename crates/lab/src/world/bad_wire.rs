//! A world whose cable is bad ([`World::bad_wire`]): it delays, loses, reorders, duplicates and
//! damages packets, in each direction by its own [`Impairments`] and its own seed. Making the world
//! fails as [`World::pair`] does, or if a packet socket cannot be opened.
//!
//! ```text
//!   client eth0 ═══ wire0 ─▶ queue ─▶ rate ─▶ loss, damage ─▶ delay ─▶ wire1 ═══ server eth0
//!                         ◀─ delay ◀─ loss, damage ◀─ rate ◀─ queue ◀─
//! ```
//! A thread of real-time priority reads every frame from one device and writes it to the other
//! (many kernels have no netem). It is late by some tens of microseconds, and by more while the
//! machine is busy. The hosts compute checksums and send no packet longer than the MTU, so each
//! frame crosses the wire as it would on a real one.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::topology::{add_veth, await_carrier, configure, v6};
use super::{Folder, Host, Netns, Offloads, Port, World, next_number};
use crate::sys;
use crate::worker::Worker;

pub mod impairments;

pub use impairments::{Impairments, LossBursts, OneWay, WireCounts};

/// The thread that forwards frames. Dropping it ends the thread.
pub(super) struct Forwarder {
    thread: Worker<[WireCounts; 2]>,
}

/// One direction: the socket to read from, what happens to the frames, and the socket to write to.
struct Lane {
    from: usize,
    way: OneWay,
}

impl World {
    /// Makes two hosts, `client` and `server`, on a bad cable: the first impairments are those of
    /// what the client sends. Addresses are those of [`World::pair`]. Fails as the module says.
    pub fn bad_wire(impairments: [Impairments; 2]) -> Result<World> {
        let number = next_number();
        let folder = Folder::create(number)?;
        let wire = create(number)?;
        let mut hosts = Vec::new();
        for (index, name) in ["client", "server"].into_iter().enumerate() {
            let ns = Netns::create(&format!("{name}{number}"))?;
            let last = index as u8 + 1;
            let port = Port {
                device: "eth0".into(),
                v4: Ipv4Addr::new(10, 77, 0, last),
                v6: v6(0, last),
            };
            connect(&ns, &port, &wire, ENDS[index])?;
            hosts.push(Host {
                name: name.into(),
                ns,
                ports: vec![port],
            });
        }
        let ends: Vec<&Netns> = hosts.iter().map(|host| &host.ns).collect();
        await_carrier(&ends)?;
        let forwarder = Forwarder::start(&wire, ENDS, impairments)?;
        Ok(World {
            hosts,
            switch: Some(wire),
            folder,
            forwarders: vec![forwarder],
        })
    }

    /// Ends the bad wire, which carries nothing from then on. Returns what happened to the frames
    /// in each direction, those of the client first. Fails if the world was not made by
    /// [`World::bad_wire`], if its wire was ended before, or if the wire could not read or write.
    pub fn end_bad_wire(&mut self) -> Result<[WireCounts; 2]> {
        let wires = self.forwarders.len();
        ensure!(wires == 1, "the world has {wires} wires, not one");
        let forwarder = self.forwarders.pop();
        forwarder.context("no bad wire")?.thread.stop()
    }
}

/// Makes the namespace `nn-<pid>-wire<number>` for the devices between which wires carry frames.
pub(super) fn create(number: u32) -> Result<Netns> {
    let wire = Netns::create(&format!("wire{number}"))?;
    wire.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
    wire.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
    Ok(wire)
}

/// Makes and configures a host's port; `inside` is its other end, in the namespace of the wire.
pub(super) fn connect(ns: &Netns, port: &Port, wire: &Netns, inside: &str) -> Result<()> {
    add_veth(ns, &port.device, wire, inside)?;
    configure(ns, port, 1500, Offloads::Off)?;
    // The forwarder cannot complete a checksum.
    ns.run("ethtool", &format!("-K {} tx off", port.device))?;
    wire.run("ethtool", &format!("-K {inside} tso off gso off gro off"))?;
    wire.ip(&format!("link set {inside} up")).map(drop)
}

impl Forwarder {
    /// Starts to carry frames between two devices of a namespace. The first impairments are those
    /// of frames from the first device. Fails if a packet socket cannot be opened, or if the thread
    /// cannot start.
    pub(super) fn start(
        wire: &Netns,
        ends: [&str; 2],
        impairments: [Impairments; 2],
    ) -> Result<Forwarder> {
        let sockets = wire.enter(|| Ok([open(ends[0])?, open(ends[1])?]))?;
        let [there, back] = impairments;
        let lanes = [there, back].into_iter().enumerate();
        let lanes = lanes.map(|(from, impairments)| Lane {
            from,
            way: OneWay::new(impairments),
        });
        let mut lanes: Vec<Lane> = lanes.collect();
        let thread = Worker::start("wire", move |stop| {
            // Without the right to real-time priority frames are later.
            let _ = sys::set_real_time_priority(PRIORITY);
            forward(&sockets, &mut lanes, stop)?;
            Ok([lanes[0].way.counts(), lanes[1].way.counts()])
        })?;
        Ok(Forwarder { thread })
    }
}

fn open(device: &str) -> Result<OwnedFd> {
    let socket = sys::packet_socket().context("a packet socket needs CAP_NET_RAW")?;
    let index = netdevice_index(&socket, device)?;
    // What the wire itself sends must not come back.
    sys::set_option(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1_i32)?;
    sys::set_option(
        &socket,
        libc::SOL_SOCKET,
        libc::SO_RCVBUFFORCE,
        &RECEIVE_BUFFER,
    )?;
    sys::set_option(
        &socket,
        libc::SOL_SOCKET,
        libc::SO_SNDBUFFORCE,
        &RECEIVE_BUFFER,
    )?;
    sys::bind_packet_socket(&socket, index, libc::ETH_P_ALL as u16)
        .with_context(|| format!("cannot bind to {device}"))?;
    Ok(socket)
}

fn netdevice_index(socket: &OwnedFd, device: &str) -> Result<u32> {
    rustix::net::netdevice::name_to_index(socket, device)
        .with_context(|| format!("no device {device}"))
}

/// Forwards until `stop` is set.
fn forward(sockets: &[OwnedFd; 2], lanes: &mut [Lane], stop: &AtomicBool) -> Result<()> {
    let mut frame = vec![0; LONGEST_FRAME];
    while !stop.load(Relaxed) {
        let mut next = u64::MAX;
        for lane in &mut *lanes {
            for _ in 0..MOST_AT_ONCE {
                match rustix::net::recv(&sockets[lane.from], &mut *frame, RecvFlags::DONTWAIT) {
                    Ok((_, length)) => lane.way.offer(&frame[..length], sys::now_ns()),
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    Err(error) => return Err(error).context("cannot read from the wire"),
                }
            }
            while let Some(frame) = lane.way.poll(sys::now_ns()) {
                send(&sockets[1 - lane.from], &frame)?;
            }
            next = next.min(lane.way.next_departure().unwrap_or(u64::MAX));
        }
        let wait = Duration::from_nanos(next.saturating_sub(sys::now_ns())).min(LONGEST_WAIT);
        let wait = Timespec {
            tv_sec: wait.as_secs() as _,
            tv_nsec: wait.subsec_nanos() as _,
        };
        let mut ends = sockets
            .each_ref()
            .map(|socket| PollFd::new(socket, PollFlags::IN));
        // A frame that waits already ends the sleep at once; an interrupted sleep is a short one.
        let _ = poll(&mut ends, Some(&wait));
    }
    Ok(())
}

/// Sends a frame. One that the device does not take is lost, as on a cable that is unplugged.
fn send(socket: &OwnedFd, frame: &[u8]) -> io::Result<()> {
    match rustix::net::send(socket, frame, SendFlags::empty()) {
        Ok(_) | Err(Errno::NETDOWN | Errno::NOBUFS | Errno::INTR | Errno::MSGSIZE) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The devices between which a bad wire carries frames.
const ENDS: [&str; 2] = ["wire0", "wire1"];
/// SCHED_RR: above programs, below the packet thread of a driver.
const PRIORITY: i32 = 20;
/// Frames that are read from one direction before the other one's turn.
const MOST_AT_ONCE: usize = 64;
const LONGEST_WAIT: Duration = Duration::from_millis(20);
/// More than the longest frame of the hosts.
const LONGEST_FRAME: usize = 4096;
/// 4,000 packets in the kernel's accounting.
const RECEIVE_BUFFER: i32 = 16 << 20;
/// From `linux/if_packet.h`; since Linux 4.20.
const PACKET_IGNORE_OUTGOING: i32 = 23;
