//! One receive queue of an interface: an AF_XDP socket bound to it, and its two rings (receive and
//! fill).
//!
//! XDP hands a frame only to a socket of the queue that received it, so each queue has a socket.
//! All sockets share one UMEM: the first registers it, and the others refer to the first. Each
//! queue has its own fill ring, and a frame returns to the queue that it came from. Opening fails
//! with [`LinkError`] if the queue does not exist or the kernel refuses a step; a queue that
//! another socket holds is tried again for 0.2 s.
//!
//! A confined driver can open no sockets. So the sockets of queues that the interface can get later
//! ([`SpareQueues`]) are opened with the others, and bound when their queues exist.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc,
    XdpMmapOffsets, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{RING_ENTRIES, Ring};
use crate::frames::FRAME;
use crate::link::socket::{set, system};
use crate::link::{Interface, LinkCounters, LinkError};
use crate::mapping::Mapping;
use crate::segments::{LONGEST, Merged, Offload};

/// A receive queue: its socket and its two receive rings.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(super) receive: Ring<XdpDesc>,
    pub(super) fill: Ring<u64>,
    /// The parts so far of a frame that is longer than a frame of the packet memory.
    pub(super) parts: Vec<u8>,
    // After the rings: fields are dropped in this order.
    socket: OwnedFd,
}

impl Queue {
    /// Opens receive queue 0 and registers `memory` as the UMEM. Also returns the transmit ring and
    /// the completion ring, by which all frames are sent. Fails if the kernel refuses a step.
    pub(super) fn first(
        interface: &Interface,
        memory: &Mapping,
    ) -> Result<(Queue, Ring<XdpDesc>, Ring<u64>), LinkError> {
        let name = &interface.name;
        let socket = socket(name)?;
        let it = socket.as_fd();
        let area = XdpUmemReg {
            addr: memory.start.as_ptr() as u64,
            len: memory.length as u64,
            chunk_size: FRAME as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(it, area)
            .map_err(system("the kernel refused the frames of", name))?;
        set_rings(it, name)?;
        sockopt::set_xdp_tx_ring_size(it, RING_ENTRIES)
            .map_err(system("the kernel refused a ring of", name))?;
        // Kernels before 6.16 have a fixed budget of 32. rustix does not have the option.
        let _ = set(it, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &SEND_BUDGET);
        let offsets = offsets(it, name)?;
        let map = system("cannot map a ring of", name);
        let transmit = Ring::map(it, XDP_PGOFF_TX_RING, &offsets.tx);
        let completion = Ring::map(it, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr);
        let rings = transmit.and_then(|transmit| Ok((transmit, completion?)));
        let (transmit, completion) = rings.map_err(map)?;
        let queue = Queue::of(socket, &offsets, name)?;
        let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        let with_parts = flags | SocketAddrXdpFlags::XDP_USE_SG;
        let bind_with = |flags| {
            let address = SocketAddrXdp::new(flags, interface.index, 0);
            bind(&queue.socket, &address)
        };
        // Kernels before 6.6 have no frames in several parts.
        match bind_with(with_parts) {
            Err(Errno::INVAL) => bind_with(flags),
            other => other,
        }
        .map_err(system("cannot bind to queue 0 of", name))?;
        Ok((queue, transmit, completion))
    }

    /// Opens the receive queue `number`, with the UMEM of the first queue. Fails if the queue does
    /// not exist, or the kernel refuses a step.
    pub(super) fn another(
        interface: &Interface,
        number: u32,
        first: &Queue,
    ) -> Result<Queue, LinkError> {
        let queue = Queue::unbound(&interface.name)?;
        queue.bind(interface, number, first.socket.as_fd())?;
        Ok(queue)
    }

    /// Opens a socket with its rings. Fails if the kernel refuses a step.
    fn unbound(name: &str) -> Result<Queue, LinkError> {
        let socket = socket(name)?;
        let it = socket.as_fd();
        set_rings(it, name)?;
        let offsets = offsets(it, name)?;
        Queue::of(socket, &offsets, name)
    }

    /// Binds the socket to the receive queue `number`, with the UMEM of the socket `first`. Fails
    /// if the queue does not exist, or the kernel refuses the queue.
    fn bind(
        &self,
        interface: &Interface,
        number: u32,
        first: BorrowedFd<'_>,
    ) -> Result<(), LinkError> {
        // The bind flags are those of the first socket.
        let flags = SocketAddrXdpFlags::XDP_SHARED_UMEM;
        let shares = SocketAddrXdpWithSharedUmem {
            addr: SocketAddrXdp::new(flags, interface.index, number),
            shared_umem_fd: first,
        };
        bind(&self.socket, &shares).map_err(|source| LinkError::Queue {
            name: interface.name.clone(),
            number,
            source: source.into(),
        })
    }

    /// Maps the rings, before the socket is bound: older kernels cannot map rings of a bound
    /// socket.
    fn of(socket: OwnedFd, offsets: &XdpMmapOffsets, name: &str) -> Result<Queue, LinkError> {
        let it = socket.as_fd();
        let receive = Ring::map(it, XDP_PGOFF_RX_RING, &offsets.rx);
        let fill = Ring::map(it, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr);
        let rings = receive.and_then(|receive| Ok((receive, fill?)));
        let (receive, fill) = rings.map_err(system("cannot map a ring of", name))?;
        Ok(Queue {
            receive,
            fill,
            parts: Vec::new(),
            socket,
        })
    }

    /// Adds a part to a frame that is in several parts. After the last part, passes the frame to
    /// `each` and returns the result; 0 if the frame was longer than any packet.
    pub(super) fn add_part(
        &mut self,
        part: &[u8],
        is_followed: bool,
        each: &mut impl FnMut(&mut [u8], &Offload) -> usize,
    ) -> Option<usize> {
        // One byte more than any packet has stands for all that is too long.
        let room = (LONGEST + 1).saturating_sub(self.parts.len());
        self.parts.extend_from_slice(&part[..part.len().min(room)]);
        if is_followed {
            return None;
        }
        let offload = Offload {
            merged: Merged::Unknown,
            ..Offload::default()
        };
        let handed_over = match self.parts.len() > LONGEST {
            true => 0,
            false => each(&mut self.parts, &offload),
        };
        self.parts.clear();
        Some(handed_over)
    }

    /// The socket, which is readable when the queue received a frame.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    /// Adds the kernel's counters of this socket to `counters`.
    pub(super) fn count(&self, counters: &mut LinkCounters) {
        if let Ok(kernels) = sockopt::xdp_statistics(&self.socket) {
            counters.missed += kernels.rx_dropped + kernels.rx_ring_full.unwrap_or(0);
            counters.refused += kernels.tx_invalid_descs;
        }
    }
}

/// The sockets of queues that the interface can get later. They have rings, and are not bound.
#[derive(Debug)]
pub(crate) struct SpareQueues {
    /// The socket with the UMEM.
    first: OwnedFd,
    /// The number of the first queue in `unbound`.
    next: u32,
    unbound: VecDeque<Queue>,
    /// For the far end of the redirect pair; another one each time that the pair is made anew.
    for_redirects: Vec<Queue>,
}

impl SpareQueues {
    /// Opens the sockets of the queues with the numbers from `next` to before `most`, with the UMEM
    /// of the queue `first`. Fails if the kernel refuses a step.
    pub(super) fn open(
        interface: &Interface,
        next: u32,
        most: u32,
        first: &Queue,
    ) -> Result<SpareQueues, LinkError> {
        let name = &interface.name;
        let unbound: Result<VecDeque<Queue>, LinkError> =
            (next..most).map(|_| Queue::unbound(name)).collect();
        let for_redirects: Result<Vec<Queue>, LinkError> =
            (0..REDIRECT_PAIRS).map(|_| Queue::unbound(name)).collect();
        Ok(SpareQueues {
            first: first
                .socket
                .try_clone()
                .map_err(system("cannot share the socket of", name))?,
            next,
            unbound: unbound?,
            for_redirects: for_redirects?,
        })
    }

    /// Number of sockets that are not bound.
    pub(crate) fn count(&self) -> u32 {
        self.unbound.len() as u32
    }

    /// Binds the next socket if its queue exists, and returns the queue's number with it. `None` if
    /// the queue does not exist. Fails if the kernel refuses the queue for another reason.
    pub(crate) fn take(
        &mut self,
        interface: &Interface,
    ) -> Result<Option<(u32, Queue)>, LinkError> {
        let Some(queue) = self.unbound.front() else {
            return Ok(None);
        };
        match queue.bind(interface, self.next, self.first.as_fd()) {
            Ok(()) => {}
            Err(why) if why.is_no_queue() => return Ok(None),
            Err(why) => return Err(why),
        }
        let number = self.next;
        self.next += 1;
        Ok(self.unbound.pop_front().map(|queue| (number, queue)))
    }
}

impl SpareQueues {
    /// Binds a socket to the far end of a redirect pair. Fails if the kernel refuses it, or if
    /// there have been more pairs than there are sockets for.
    pub(crate) fn take_for_redirects(&mut self, far: &Interface) -> Result<Queue, LinkError> {
        let Some(queue) = self.for_redirects.last() else {
            return Err(LinkError::RedirectPairs(far.name.clone()));
        };
        queue.bind(far, 0, self.first.as_fd())?;
        let queue = self.for_redirects.pop();
        queue.ok_or_else(|| LinkError::RedirectPairs(far.name.clone()))
    }
}

fn socket(name: &str) -> Result<OwnedFd, LinkError> {
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    rustix::net::socket_with(AddressFamily::XDP, kind, flags, None)
        .map_err(system("cannot open an AF_XDP socket for", name))
}

/// Makes the rings that every queue has.
fn set_rings(socket: BorrowedFd<'_>, name: &str) -> Result<(), LinkError> {
    sockopt::set_xdp_umem_fill_ring_size(socket, RING_ENTRIES)
        .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(socket, RING_ENTRIES))
        .and_then(|()| sockopt::set_xdp_rx_ring_size(socket, RING_ENTRIES))
        .map_err(system("the kernel refused a ring of", name))
}

fn offsets(socket: BorrowedFd<'_>, name: &str) -> Result<XdpMmapOffsets, LinkError> {
    sockopt::xdp_mmap_offsets(socket).map_err(system("cannot ask for the rings of", name))
}

/// Binds to a queue, with retries: a recently closed socket holds the queue until the kernel tears
/// it down.
fn bind(socket: &OwnedFd, queue: &impl SocketAddrArg) -> Result<(), Errno> {
    for _ in 0..BIND_TRIES {
        match rustix::net::bind(socket, queue) {
            Err(Errno::BUSY) => std::thread::sleep(BIND_PAUSE),
            other => return other,
        }
    }
    rustix::net::bind(socket, queue)
}

/// Descriptors per `sendto`: 16 µs for 64 packets of 1500 bytes.
const SEND_BUDGET: u32 = 64;
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
/// How many redirect pairs a driver can receive from, one after the other. netnice makes a pair
/// anew only if somebody else removed it.
const REDIRECT_PAIRS: u32 = 8;
const BIND_TRIES: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(2);
