//! A network interface as the driver has it: frames of its own go out, received ones come in.
//!
//! | mode | sends | receives |
//! |---|---|---|
//! | [`Mode::Native`] | AF_XDP, past the queue of the interface | XDP in the interface's driver hands over what is registered, everything else passes to the kernel |
//! | [`Mode::Generic`] | the same | the same behind the interface's driver |
//! | [`Mode::Fallback`] | AF_PACKET, past the queue | AF_PACKET: a copy of every frame; the kernel gets each too |
//!
//! [`Link::open`] takes the first that works. It returns two parts, so that two threads can have them: the [`Link`], through which
//! frames pass, and the [`Ear`], which decides what comes and says by [`Ear::mode`] which mode it is. XDP is attached by
//! [`Ear::listen`], with the first flow that receives, and detached by [`Ear::deafen`]; also when the process is killed, since
//! the kernel ends it with the process. Attaching takes some tens of milliseconds.
//!
//! What is sent passes through [`Link::send`]: the caller writes into a free frame and hands back the
//! [`Checked`] bytes that a template made of it, so nothing unchecked can leave.

mod ear;
mod packet;
mod socket;
mod xdp;

use std::io;
#[cfg(test)]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};

use netnice_core::units::Instant;
use netnice_kernel::KernelError;
use netnice_kernel::direct::{Direct, MAX_QUEUES};

use crate::demux::FlowNo;
use crate::frame::Mac;
use crate::frames::{Frames, Tally};
use crate::template::{Checked, Forbidden};
use crate::turn::Card;

pub use ear::Ear;
use packet::PacketLink;
use socket::system;
use xdp::XdpLink;

/// How frames pass between the interface and the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// AF_XDP with XDP in the interface's driver.
    Native,
    /// AF_XDP with XDP behind it.
    Generic,
    /// AF_PACKET.
    Fallback,
}

impl Mode {
    /// Its name, for people and machines.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
            Mode::Fallback => "fallback",
        }
    }
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its address.
    pub mac: Mac,
    /// The longest packet behind the Ethernet header.
    pub mtu: u32,
    /// It is up and has a carrier.
    pub is_up: bool,
}

impl Interface {
    /// Looks an interface up.
    pub fn look(name: &str) -> Result<Interface, LinkError> {
        socket::interface(name)
    }

    /// Refuses one whose packets do not fit into frames.
    pub fn fits(&self) -> Result<(), LinkError> {
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
    /// There is none of this name.
    #[error("there is no interface {0} in this network namespace; `ip link` lists them")]
    NoInterface(String),
    /// It has no Ethernet header.
    #[error("{0} is no Ethernet interface: direct flows need one")]
    NotEthernet(String),
    /// Its packets do not fit into frames.
    #[error("the MTU of {name} is {mtu}; direct flows have room for {most}")]
    Mtu {
        /// The interface.
        name: String,
        /// Its MTU.
        mtu: u32,
        /// The largest.
        most: u32,
    },
    /// A receive queue that could not be had.
    #[error(
        "cannot bind to receive queue {number} of {name}: {source}; `ethtool -L {name} combined 1` leaves it one queue"
    )]
    Queue {
        /// The interface.
        name: String,
        /// Which.
        number: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// More receive queues than sockets.
    #[error(
        "{name} has {count} receive queues, and direct flows have sockets for {MAX_QUEUES}; `ethtool -L {name} combined {MAX_QUEUES}` leaves it so many"
    )]
    Queues {
        /// The interface.
        name: String,
        /// Its queues.
        count: u32,
    },
    /// The same, where ethtool does not tell how many there are.
    #[error(
        "{0} has more than the {MAX_QUEUES} receive queues that direct flows have sockets for; a tap has one for each descriptor that its program attached to it"
    )]
    Crowded(String),
    /// Another interface has its name now, or it is in another network namespace than the caller.
    #[error("{0} is not the interface that was opened; open it again")]
    Another(String),
    /// The kernel refused a step.
    #[error("{what} {interface}: {source}")]
    System {
        /// Which step.
        what: &'static str,
        /// On which interface.
        interface: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The XDP program.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl LinkError {
    /// There is no such receive queue.
    fn is_no_queue(&self) -> bool {
        match self {
            LinkError::Queue { source, .. } => source.raw_os_error() == Some(libc::EINVAL),
            _ => false,
        }
    }
}

/// What became of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// The kernel has everything.
    All,
    /// It has no room for the rest now; the next flush goes on.
    Partly,
}

/// What was counted on the link itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that were handed to the kernel.
    pub sent: u64,
    /// Frames that the kernel would not have: the link carries no such long ones any more, say.
    pub refused: u64,
    /// Frames that came in.
    pub received: u64,
    /// Frames that the kernel lost because it had no empty frame.
    pub missed: u64,
    /// Frames that came back from where they were not.
    pub strange: u64,
}

/// An open interface, as frames pass through it. See the module.
#[derive(Debug)]
pub struct Link {
    interface: Interface,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Xdp(Box<XdpLink>),
    Packet(Box<PacketLink>),
}

impl Link {
    /// Opens all receive queues of an interface, in the given mode or in the best that works.
    pub fn open(name: &str, wanted: Option<Mode>) -> Result<(Link, Ear), LinkError> {
        let interface = socket::interface(name)?;
        interface.fits()?;
        let xdp = || XdpLink::open(&interface);
        let packet = || PacketLink::open(&interface);
        match wanted {
            Some(Mode::Fallback) => Link::by_packets(&interface, packet()?, None),
            Some(mode) => Ok(Link::by_xdp(&interface, xdp()?, mode)),
            None => match xdp() {
                Ok(link) => Ok(Link::by_xdp(&interface, link, Mode::Native)),
                Err(why) => match packet() {
                    Ok(link) => Link::by_packets(&interface, link, Some(why)),
                    // The better way's reason says more.
                    Err(_) => Err(why),
                },
            },
        }
    }

    /// In the place of an interface: what is sent comes out of the other end of this socket, and what is written there
    /// comes in.
    #[cfg(test)]
    pub(crate) fn on_paper(interface: &Interface, socket: OwnedFd) -> (Link, Ear) {
        let ear = socket.try_clone().expect("a descriptor");
        let link = Link {
            interface: interface.clone(),
            kind: Kind::Packet(Box::new(PacketLink::of(socket))),
        };
        (link, Ear::on_paper(interface, ear))
    }

    fn by_xdp(
        interface: &Interface,
        (link, program): (XdpLink, Direct),
        mode: Mode,
    ) -> (Link, Ear) {
        let link = Link {
            interface: interface.clone(),
            kind: Kind::Xdp(Box::new(link)),
        };
        (link, Ear::of_xdp(interface, program, mode))
    }

    fn by_packets(
        interface: &Interface,
        link: PacketLink,
        why: Option<LinkError>,
    ) -> Result<(Link, Ear), LinkError> {
        let socket = link.fd().try_clone();
        let socket =
            socket.map_err(system("cannot share the packet socket of", &interface.name))?;
        let link = Link {
            interface: interface.clone(),
            kind: Kind::Packet(Box::new(link)),
        };
        Ok((link, Ear::of_packets(interface, socket, why)))
    }

    /// Which interface it is.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// How many frames can be sent before the kernel is done with others.
    #[inline]
    pub fn room(&mut self) -> usize {
        match &mut self.kind {
            Kind::Xdp(link) => link.room(),
            Kind::Packet(link) => link.room(),
        }
    }

    /// One frame: `write` fills it, and what it returns is sent with the next flush. Nothing if
    /// there is no room.
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

    /// Hands what was sent to the kernel. An error is the interface's (it is down, say); frames
    /// are not lost by it, and the next flush tries again. A frame that the kernel will never have is given up and counted.
    #[inline]
    pub fn flush(&mut self) -> io::Result<Flushed> {
        match &mut self.kind {
            Kind::Xdp(link) => link.flush(),
            Kind::Packet(link) => link.flush(),
        }
    }

    /// Received frames, at most `most` of them; how many there were.
    #[inline]
    pub fn receive(&mut self, most: usize, each: impl FnMut(&[u8])) -> usize {
        match &mut self.kind {
            Kind::Xdp(link) => link.receive(most, each),
            Kind::Packet(link) => link.receive(most, each),
        }
    }

    /// Frames of this flow are dropped before they come to the driver, until then. Nothing in the fallback.
    pub fn shut(&mut self, flow: FlowNo, until: Instant) {
        if let Kind::Xdp(link) = &mut self.kind {
            link.gates().shut(flow, until);
        }
    }

    /// How many frames of this flow were dropped since the last time.
    pub fn dropped(&mut self, flow: FlowNo) -> u64 {
        match &mut self.kind {
            Kind::Xdp(link) => link.gates().dropped(flow),
            Kind::Packet(_) => 0,
        }
    }

    /// How many frames were handed to the kernel. Cheaper than all counters.
    #[inline]
    pub fn sent(&self) -> u64 {
        match &self.kind {
            Kind::Xdp(link) => link.sent(),
            Kind::Packet(link) => link.sent(),
        }
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        match &self.kind {
            Kind::Xdp(link) => link.counters(),
            Kind::Packet(link) => link.counters(),
        }
    }

    /// Who holds the frames, where they are shared with the kernel.
    pub fn frames(&self) -> Option<&Frames> {
        match &self.kind {
            Kind::Xdp(link) => Some(link.frames()),
            Kind::Packet(_) => None,
        }
    }

    /// How many frames each has, where they are shared with the kernel. What it has sent meanwhile is taken back first: else
    /// frames would look lent until the next one leaves.
    pub fn tally(&mut self) -> Option<Tally> {
        match &mut self.kind {
            Kind::Xdp(link) => Some(link.tally()),
            Kind::Packet(_) => None,
        }
    }

    /// Readable when a frame came in.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Xdp(link) => link.fd().as_fd(),
            Kind::Packet(link) => link.fd().as_fd(),
        }
    }
}

impl Card for Link {
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
}

/// A frame holds the longest packet of common Ethernet. Twice as much would take twice the memory for all.
pub const FRAME: usize = 2048;
/// What fits into a frame, with the room that the kernel wants before a received packet.
pub const MAX_MTU: u32 = 1700;
