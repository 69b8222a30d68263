//! Sends and receives Ethernet frames on one network interface.
//!
//! | mode | sends | receives |
//! |---|---|---|
//! | [`Mode::Native`] | AF_XDP | XDP in the NIC driver |
//! | [`Mode::Generic`] | AF_XDP | XDP behind the NIC driver |
//! | [`Mode::Fallback`] | AF_PACKET | AF_PACKET: a copy of every frame; the kernel gets each too |
//!
//! All modes send past the interface's qdisc. The XDP program drops frames of suspended flows,
//! passes frames of other registered flows to the driver, and passes all other frames to the
//! kernel.
//!
//! [`Link::open`] opens AF_XDP sockets, or an AF_PACKET socket if that was requested or if AF_XDP
//! is refused and no mode was requested. It returns two parts for two threads: the [`Link`], which
//! transfers frames, and the [`Ingress`], which controls what is received and reports the mode
//! ([`Ingress::mode`]). [`Ingress::start`] attaches XDP (in native mode, or in generic mode if
//! native is refused), and [`Ingress::stop`] detaches it; the kernel detaches it when the process
//! ends, even by a kill. Attaching takes some tens of milliseconds. A call fails with [`LinkError`]
//! if the interface does not exist or is unsuitable (no Ethernet, too large an MTU, more than
//! [`MAX_QUEUES`] receive queues), or if the kernel refuses a step. [`Link::flush`] fails with the
//! kernel's error while the interface is down.
//!
//! All frames leave through [`Link::send`] or [`Link::send_segment`]: the caller writes into a free
//! frame and returns the [`Checked`] bytes from a template, so an unchecked frame cannot leave.

mod ingress;
mod long_packets;
mod packet;
mod socket;
mod virtio;
mod xdp;

use std::io;
#[cfg(test)]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};

use netnice_core::units::Instant;
use netnice_kernel::KernelError;
use netnice_kernel::direct::{MAX_QUEUES, XdpProgram};

use crate::datapath::{FrameSink, send_cut};
use crate::demux::FlowNo;
use crate::frame::Mac;
use crate::frames::{Frames, Tally};
use crate::segments::Offload;
use crate::template::{Checked, Forbidden, SegmentRun};

pub use ingress::Ingress;
use long_packets::LongPackets;
use packet::PacketLink;
use socket::system;
pub(crate) use xdp::Queue;
use xdp::{SpareQueues, XdpLink};

/// The way in which frames pass between the interface and the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// AF_XDP with XDP in the NIC driver.
    Native,
    /// AF_XDP with XDP behind the NIC driver.
    Generic,
    /// AF_PACKET.
    Fallback,
}

impl Mode {
    /// The mode's name, for people and machines.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
            Mode::Fallback => "fallback",
        }
    }
}

/// The state of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The interface's index.
    pub index: u32,
    /// The interface's Ethernet address.
    pub mac: Mac,
    /// The interface's MTU in bytes: the longest packet behind the Ethernet header.
    pub mtu: u32,
    /// Whether the interface is up and has a carrier.
    pub is_up: bool,
    /// Whether the interface cuts long packets of TCP into segments.
    pub cuts_segments: bool,
    /// Whether peers are on the same machine, so that partial checksums are right.
    pub is_virtual: bool,
}

impl Interface {
    /// Reads the state of the interface with this name.
    ///
    /// # Errors
    /// If there is none, if it is no Ethernet interface, or if the kernel refuses a query.
    pub fn read(name: &str) -> Result<Interface, LinkError> {
        socket::interface(name)
    }

    /// Fails with [`LinkError::Mtu`] if the interface's packets do not fit into frames.
    pub(crate) fn fits(&self) -> Result<(), LinkError> {
        match self.mtu > MAX_MTU {
            true => Err(LinkError::Mtu {
                name: self.name.clone(),
                mtu: self.mtu,
                most: MAX_MTU,
            }),
            false => Ok(()),
        }
    }
}

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No interface has this name. Holds the name.
    #[error("there is no interface {0} in this network namespace; `ip link` lists them")]
    NoInterface(String),
    /// The interface has no Ethernet header. Holds its name.
    #[error("{0} is not an Ethernet interface; direct flows need one")]
    NotEthernet(String),
    /// The interface's packets do not fit into frames.
    #[error("the MTU of {name} is {mtu}; the limit for direct flows is {most}")]
    Mtu {
        /// The interface.
        name: String,
        /// The interface's MTU.
        mtu: u32,
        /// The largest allowed MTU.
        most: u32,
    },
    /// Binding to a receive queue other than 0 failed.
    #[error(
        "cannot bind to receive queue {number} of {name}: {source}; \
         `ethtool -L {name} combined 1` leaves one queue"
    )]
    Queue {
        /// The interface.
        name: String,
        /// The queue's number.
        number: u32,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The interface has more receive queues than there are sockets for.
    #[error(
        "{name} has {count} receive queues; the limit for direct flows is {MAX_QUEUES}: \
         `ethtool -L {name} combined {MAX_QUEUES}` leaves that many"
    )]
    ReceiveQueues {
        /// The interface.
        name: String,
        /// Number of receive queues of the interface.
        count: u32,
    },
    /// The interface has more receive queues than there are sockets for, and ethtool does not
    /// report their number. Holds the interface.
    #[error(
        "{0} has more than {MAX_QUEUES} receive queues, the limit for direct flows; \
         a tap has a queue for each descriptor that its program attached to it"
    )]
    Crowded(String),
    /// The driver has received from as many redirect pairs as it has sockets for. Holds the name of
    /// the far end of the next one.
    #[error("cannot receive from {0}: the redirect pair was made anew too often; a new driver can")]
    RedirectPairs(String),
    /// The driver uses AF_PACKET, and redirected targets need AF_XDP. Holds the interface.
    #[error("the driver of {0} does not use AF_XDP, which redirected targets need")]
    NoXdp(String),
    /// The interface with this name has another index or Ethernet address than the one that was
    /// opened, or the caller is in another network namespace. Holds the name.
    #[error("{0} is not the interface that was opened; start the driver again")]
    Another(String),
    /// The kernel refused a step.
    #[error("{what} {interface}: {source}")]
    System {
        /// The step.
        what: &'static str,
        /// The interface.
        interface: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Loading, attaching or changing the XDP program failed, or the query of the receive queues.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl LinkError {
    /// Whether the receive queue does not exist.
    fn is_no_queue(&self) -> bool {
        match self {
            LinkError::Queue { source, .. } => source.raw_os_error() == Some(libc::EINVAL),
            _ => false,
        }
    }
}

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// The kernel has taken all frames.
    All,
    /// The kernel has not taken all frames; the next flush continues.
    Partly,
}

/// Counters of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames that were handed to the kernel.
    pub sent: u64,
    /// Frames that the kernel refused for good, for example because the MTU has shrunk.
    pub refused: u64,
    /// Received frames.
    pub received: u64,
    /// Received frames that were dropped, because there was no empty frame, the receive ring (in
    /// the fallback mode the socket's buffer) was full, or the frame stood for several segments and
    /// could not be cut.
    pub missed: u64,
    /// Addresses that the kernel returned and that are in no frame of the expected holder.
    pub unexpected: u64,
    /// Frames of redirected targets that were dropped, because there was no empty frame, the
    /// receive ring was full, or the frame did not fit into a frame of the driver.
    pub redirected_missed: u64,
}

/// An open interface: sends and receives frames in one of the modes of the module's table. The
/// packet thread owns it.
#[derive(Debug)]
pub struct Link {
    interface: Interface,
    kind: Kind,
    /// The packets of joined segments; `None` if they cannot be sent here.
    long_packets: Option<Box<LongPackets>>,
}

#[derive(Debug)]
enum Kind {
    Xdp(Box<XdpLink>),
    Packet(Box<PacketLink>),
}

impl Link {
    /// Opens an interface in the given mode or in the first that works: a socket on each receive
    /// queue, or in the fallback mode one packet socket. Frames are received from
    /// [`Ingress::start`] on.
    ///
    /// # Errors
    /// If the interface does not exist, has no Ethernet header or too large an MTU; else the error
    /// of the given mode, or that of AF_XDP if AF_PACKET fails too.
    pub fn open(name: &str, wanted: Option<Mode>) -> Result<(Link, Ingress), LinkError> {
        let interface = socket::interface(name)?;
        interface.fits()?;
        let xdp = || XdpLink::open(&interface);
        let packet = || PacketLink::open(&interface);
        match wanted {
            Some(Mode::Fallback) => Link::by_packets(&interface, packet()?, None),
            Some(mode) => Link::by_xdp(&interface, xdp()?, mode),
            None => match xdp() {
                Ok(link) => Link::by_xdp(&interface, link, Mode::Native),
                Err(why) => match packet() {
                    Ok(link) => Link::by_packets(&interface, link, Some(why)),
                    // AF_XDP is the better mode, so its error is reported.
                    Err(_) => Err(why),
                },
            },
        }
    }

    /// A fake link: sent frames arrive at the socket's peer, and frames from the peer are received.
    #[cfg(test)]
    pub(crate) fn fake(interface: &Interface, socket: OwnedFd) -> (Link, Ingress) {
        let ingress = socket.try_clone().expect("a descriptor");
        let link = Link {
            interface: interface.clone(),
            kind: Kind::Packet(Box::new(PacketLink::of(socket, 0))),
            long_packets: None,
        };
        (link, Ingress::fake(interface, ingress))
    }

    fn by_xdp(
        interface: &Interface,
        (link, program, spare): (XdpLink, XdpProgram, SpareQueues),
        mode: Mode,
    ) -> Result<(Link, Ingress), LinkError> {
        let link = Link {
            interface: interface.clone(),
            kind: Kind::Xdp(Box::new(link)),
            long_packets: Some(Box::new(LongPackets::open(interface)?)),
        };
        Ok((link, Ingress::of_xdp(interface, program, spare, mode)))
    }

    fn by_packets(
        interface: &Interface,
        link: PacketLink,
        why: Option<LinkError>,
    ) -> Result<(Link, Ingress), LinkError> {
        let socket = link.fd().try_clone();
        let socket =
            socket.map_err(system("cannot share the packet socket of", &interface.name))?;
        let link = Link {
            interface: interface.clone(),
            kind: Kind::Packet(Box::new(link)),
            long_packets: None,
        };
        Ok((link, Ingress::of_packets(interface, socket, why)))
    }

    /// The interface's state when it was opened.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Number of frames that can be queued for sending now.
    #[inline]
    pub(crate) fn room(&mut self) -> usize {
        if let Some(packets) = &mut self.long_packets
            && packets.is_stuck()
        {
            return 0;
        }
        match &mut self.kind {
            Kind::Xdp(link) => link.room(),
            Kind::Packet(link) => link.room(),
        }
    }

    /// Sends one frame: `write` fills a free frame, and the bytes that it returns leave with the
    /// next flush. `None` if no frame is free; `Some(Err)` if `write` fails, and nothing leaves.
    #[inline]
    pub fn send<F>(&mut self, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        match &mut self.kind {
            Kind::Xdp(link) => link.send(write),
            Kind::Packet(link) => link.send(write),
        }
    }

    /// As [`Link::send`], for a segment of TCP that may leave in one packet of at most `most` bytes
    /// with others of its connection. 0: by itself, as by [`Link::send`]. All segments of a flow
    /// must be sent either by this function or by the other, since frames of the two can overtake
    /// each other.
    #[inline]
    pub fn send_segment<F>(&mut self, most: usize, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        match &mut self.long_packets {
            Some(packets) if most > 0 && packets.joins() => packets.send(most, write),
            _ => self.send(write),
        }
    }

    /// Joins segments from now on, or not: whether the interface cuts packets.
    pub(crate) fn set_joins(&mut self, joins: bool) {
        if let Some(packets) = &mut self.long_packets {
            packets.set_joins(joins);
        }
    }

    /// Hands the queued frames to the kernel. A frame that the kernel refuses for good is dropped
    /// and counted in [`LinkCounters::refused`].
    ///
    /// # Errors
    /// If the interface cannot send (it is down, for example). The frames stay queued, and the next
    /// flush tries again.
    #[inline]
    pub fn flush(&mut self) -> io::Result<Flushed> {
        let long = match &mut self.long_packets {
            Some(packets) => packets.flush()?,
            None => Flushed::All,
        };
        let rest = match &mut self.kind {
            Kind::Xdp(link) => link.flush()?,
            Kind::Packet(link) => link.flush()?,
        };
        Ok(match (long, rest) {
            (Flushed::All, Flushed::All) => Flushed::All,
            _ => Flushed::Partly,
        })
    }

    /// Takes received frames and passes them to `each`, with what the kernel states about them.
    /// `each` returns how many frames of the wire the frame stood for; 0 if it was lost, which
    /// counts as one, and as missed. Ends when there are `most` or more, or when no frame waits.
    /// Returns the number, with frames that are not passed on: these are counted as missed or
    /// unexpected.
    #[inline]
    pub fn receive(
        &mut self,
        most: usize,
        each: impl FnMut(&mut [u8], &Offload) -> usize,
    ) -> usize {
        match &mut self.kind {
            Kind::Xdp(link) => link.receive(most, each),
            Kind::Packet(link) => link.receive(most, each),
        }
    }

    /// Takes at most `most` frames from the redirect pair, passes them to `each`, and returns their
    /// number.
    #[inline]
    pub fn receive_redirected(&mut self, most: usize, each: impl FnMut(&[u8])) -> usize {
        match &mut self.kind {
            Kind::Xdp(link) => link.receive_redirected(most, each),
            Kind::Packet(_) => 0,
        }
    }

    /// Receives from the far end of a redirect pair, in place of an earlier one. Fails if there is
    /// no memory for its frames, or no AF_XDP.
    pub(crate) fn set_redirected(&mut self, queue: Queue) -> io::Result<()> {
        match &mut self.kind {
            Kind::Xdp(link) => link.set_redirected(queue),
            Kind::Packet(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Drops the frames of this flow in XDP until `until`. No effect in the fallback mode, and on
    /// frames that were registered without a flow ([`Ingress::add_match`]).
    pub fn suspend(&mut self, flow: FlowNo, until: Instant) {
        if let Kind::Xdp(link) = &mut self.kind {
            link.gates().suspend(flow, until);
        }
    }

    /// Receives from one more queue of the interface. Fails if the queue cannot be watched or there
    /// is no memory for its frames.
    pub(crate) fn add_queue(&mut self, queue: Queue) -> io::Result<()> {
        match &mut self.kind {
            Kind::Xdp(link) => link.add_queue(queue),
            // The packet socket receives from all queues.
            Kind::Packet(_) => Ok(()),
        }
    }

    /// Number of frames of this flow that XDP has dropped since the last call; 0 in the fallback
    /// mode.
    pub fn dropped(&mut self, flow: FlowNo) -> u64 {
        match &mut self.kind {
            Kind::Xdp(link) => link.gates().dropped(flow),
            Kind::Packet(_) => 0,
        }
    }

    /// Number of frames that were handed to the kernel. Cheaper than [`Link::counters`].
    #[inline]
    pub fn sent(&self) -> u64 {
        let (segments, _) = self.long_counts();
        segments
            + match &self.kind {
                Kind::Xdp(link) => link.sent(),
                Kind::Packet(link) => link.sent(),
            }
    }

    /// The counters of the link.
    pub fn counters(&self) -> LinkCounters {
        let mut counters = match &self.kind {
            Kind::Xdp(link) => link.counters(),
            Kind::Packet(link) => link.counters(),
        };
        let (sent, refused) = self.long_counts();
        counters.sent += sent;
        counters.refused += refused;
        counters
    }

    /// Segments that were sent and refused in packets of their own or joined.
    #[inline]
    fn long_counts(&self) -> (u64, u64) {
        let packets = self.long_packets.as_ref();
        packets.map_or((0, 0), |packets| packets.counts())
    }

    /// The frames with their holders; `None` in the fallback mode, which shares no frames with the
    /// kernel.
    pub fn frames(&self) -> Option<&Frames> {
        match &self.kind {
            Kind::Xdp(link) => Some(link.frames()),
            Kind::Packet(_) => None,
        }
    }

    /// Number of frames of each holder; `None` in the fallback mode. Collects completions first;
    /// otherwise completed frames would count as the kernel's until the next frame leaves.
    pub fn tally(&mut self) -> Option<Tally> {
        match &mut self.kind {
            Kind::Xdp(link) => Some(link.tally()),
            Kind::Packet(_) => None,
        }
    }

    /// A descriptor that is readable while received frames wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Xdp(link) => link.fd().as_fd(),
            Kind::Packet(link) => link.fd().as_fd(),
        }
    }
}

impl FrameSink for Link {
    #[inline]
    fn room(&mut self) -> usize {
        Link::room(self)
    }

    #[inline]
    fn send<F>(&mut self, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        Link::send(self, write)
    }

    #[inline]
    fn send_segment<F>(&mut self, most: usize, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        Link::send_segment(self, most, write)
    }

    fn send_run(&mut self, most: usize, run: &SegmentRun<'_>) -> bool {
        match &mut self.long_packets {
            Some(packets) if most > 0 && packets.joins() && !run.may_be_fragmented() => {
                packets.send_run(most, run)
            }
            _ => send_cut(self, run),
        }
    }

    #[inline]
    fn joins(&self) -> bool {
        let packets = self.long_packets.as_ref();
        packets.is_some_and(|packets| packets.joins())
    }

    #[inline]
    fn release(&mut self) {
        if let Some(packets) = &mut self.long_packets {
            packets.release();
        }
    }
}

/// The largest allowed MTU, in bytes. Such a packet and its Ethernet header fit into a frame beside
/// the bytes that the kernel reserves in front of a received packet (`XDP_PACKET_HEADROOM`, 256).
pub(crate) const MAX_MTU: u32 = 1700;
