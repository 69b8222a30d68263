//! The ways past netnice that the experiment measures beside the flows ([`BASELINES`]): the
//! kernel's UDP sockets without a queueing discipline, the same through a class of HTB, and
//! AF_PACKET past the queueing disciplines.
//!
//! Each [`Baseline`] has a client and a server of its own and sends packets of 1500 bytes from one
//! thread in the driver's scheduling class, 32 in each system call, to a host that does not exist.
//! The rate of HTB's class is 100 Gbit/s, so that the class never delays a packet. AF_PACKET is the
//! driver's link in the mode that it falls back to. The receiver counts the packets.

use std::net::UdpSocket;
use std::time::Instant;

use anyhow::{Context as _, Result};
use netnice_driver::link::{Ingress, Link, Mode};

use super::load::{ABSENT, FIRST_REMOTE, add_absent_host};
use super::{BARE_PACKETS, BATCH, PAYLOAD, as_driver, bare, open_in_mode};
use crate::sys;
use crate::world::{Pair, World, htb};

/// The way of the packets of a baseline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A UDP socket, on a device without a queueing discipline.
    Udp,
    /// A UDP socket, on a device with one class of HTB.
    UdpThroughHtb,
    /// A packet socket with PACKET_QDISC_BYPASS.
    Packet,
}

/// All baselines with their names, in the order in which a round measures them.
pub(super) const BASELINES: [(Way, &str); 3] = [
    (Way::Udp, "kernel UDP"),
    (Way::UdpThroughHtb, "kernel UDP through HTB"),
    (Way::Packet, "AF_PACKET"),
];

/// A baseline that is ready to send.
pub(super) struct Baseline {
    // The order of the fields is the order in which they are dropped.
    sender: Sender,
    world: World,
}

enum Sender {
    Datagrams(UdpSocket),
    Frames {
        link: Box<Link>,
        _ingress: Box<Ingress>,
    },
}

impl Baseline {
    /// Makes the client and the server, and opens the socket. Fails if a step fails.
    pub(super) fn open(way: Way) -> Result<Baseline> {
        let world = World::pair(Pair::default())?;
        let client = world.client();
        if way == Way::UdpThroughHtb {
            let device = &client.port().device;
            htb::limit(&client.ns, device, HTB_RATE, htb::Leaf::Default)?;
        }
        let sender = match way {
            Way::Udp | Way::UdpThroughHtb => {
                add_absent_host(client)?;
                let from = client.port().v4;
                Sender::Datagrams(client.ns.enter(|| {
                    let socket = UdpSocket::bind((from, 0))?;
                    socket.connect((std::net::Ipv4Addr::from(ABSENT), FIRST_REMOTE))?;
                    Ok(socket)
                })?)
            }
            Way::Packet => {
                let (link, ingress) = open_in_mode(client, Mode::Fallback)?;
                Sender::Frames {
                    link: Box::new(link),
                    _ingress: Box::new(ingress),
                }
            }
        };
        Ok(Baseline { sender, world })
    }

    /// Packets per second that arrive. Fails if the socket does not send.
    pub(super) fn measure(&mut self) -> Result<f64> {
        let server = &self.world.server().ns;
        let before = server.counters("eth0")?.rx_packets;
        let sent = match &mut self.sender {
            Sender::Datagrams(socket) => as_driver(|| send_all(socket, BARE_PACKETS))?,
            Sender::Frames { link, .. } => as_driver(|| bare(link, BARE_PACKETS))?,
        };
        let arrived = server.counters("eth0")?.rx_packets - before;
        Ok(sent * arrived as f64 / BARE_PACKETS as f64)
    }
}

/// Sends `count` datagrams, a multiple of [`BATCH`], and returns their number per second.
fn send_all(socket: &UdpSocket, count: usize) -> Result<f64> {
    let payloads = vec![0; BATCH * PAYLOAD];
    let begin = Instant::now();
    let mut sent = 0;
    while sent < count {
        let batch = &payloads[..BATCH.min(count - sent) * PAYLOAD];
        sent += sys::send_datagrams(socket, batch, PAYLOAD).context("a UDP socket cannot send")?;
    }
    Ok(sent as f64 / begin.elapsed().as_secs_f64())
}

/// The rate of HTB's class, in bit/s: more than ten times what one processor sends.
const HTB_RATE: u64 = 100_000_000_000;
