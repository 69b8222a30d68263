//! One receive queue of an interface: an AF_XDP socket bound to it, and its two rings (receive and
//! fill).
//!
//! XDP hands a frame only to a socket of the queue that received it, so each queue has a socket.
//! All sockets share one UMEM: the first registers it, and the others refer to the first. Each
//! queue has its own fill ring, and a frame returns to the queue that it came from. Opening fails
//! with [`LinkError`]; a queue that another socket holds is tried again for 0.2 s.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::{Mapping, RING_ENTRIES, Ring};
use crate::link::socket::{bind, get, open, set, system};
use crate::link::{FRAME, Interface, LinkCounters, LinkError};

/// A receive queue: its socket and its two receive rings.
#[derive(Debug)]
pub(super) struct Queue {
    pub(crate) receive: Ring<libc::xdp_desc>,
    pub(crate) fill: Ring<u64>,
    // After the rings: fields are dropped in this order.
    socket: OwnedFd,
}

impl Queue {
    /// Opens receive queue 0 and registers `memory` as the UMEM. Also returns the transmit ring and
    /// the completion ring, by which all frames are sent.
    pub(crate) fn first(
        interface: &Interface,
        memory: &Mapping,
    ) -> Result<(Queue, Ring<libc::xdp_desc>, Ring<u64>), LinkError> {
        let name = &interface.name;
        let socket = socket(name)?;
        let it = socket.as_fd();
        let area = Umem {
            addr: memory.start.as_ptr() as u64,
            len: memory.length as u64,
            chunk_size: FRAME as u32,
            headroom: 0,
        };
        set(it, libc::SOL_XDP, libc::XDP_UMEM_REG, &area)
            .map_err(system("the kernel refused the frames of", name))?;
        set_rings(it, &[libc::XDP_RX_RING, libc::XDP_TX_RING], name)?;
        // Kernels before 6.16 have a fixed budget of 32.
        let _ = set(it, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &SEND_BUDGET);
        let offsets = offsets(it, name)?;
        let map = system("cannot map a ring of", name);
        let transmit = Ring::map(it, libc::XDP_PGOFF_TX_RING as u64, &offsets.tx);
        let completion = Ring::map(it, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr);
        let rings = transmit.and_then(|transmit| Ok((transmit, completion?)));
        let (transmit, completion) = rings.map_err(map)?;
        let queue = Queue::of(socket, &offsets, name)?;
        let flags = libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP;
        bind_queue(queue.socket.as_fd(), interface.index, 0, (flags, 0))
            .map_err(system("cannot bind to queue 0 of", name))?;
        Ok((queue, transmit, completion))
    }

    /// Opens the receive queue `number`, with the UMEM of the first queue.
    pub(crate) fn another(
        interface: &Interface,
        number: u32,
        first: &Queue,
    ) -> Result<Queue, LinkError> {
        let name = &interface.name;
        let socket = socket(name)?;
        let it = socket.as_fd();
        set_rings(it, &[libc::XDP_RX_RING], name)?;
        let offsets = offsets(it, name)?;
        let queue = Queue::of(socket, &offsets, name)?;
        // The bind flags are those of the first socket.
        let shares = (libc::XDP_SHARED_UMEM, first.socket.as_raw_fd());
        let bound = bind_queue(queue.socket.as_fd(), interface.index, number, shares);
        bound.map_err(|source| LinkError::Queue {
            name: name.clone(),
            number,
            source,
        })?;
        Ok(queue)
    }

    /// Maps the rings, before the socket is bound: older kernels cannot map rings of a bound
    /// socket.
    fn of(
        socket: OwnedFd,
        offsets: &libc::xdp_mmap_offsets,
        name: &str,
    ) -> Result<Queue, LinkError> {
        let it = socket.as_fd();
        let receive = Ring::map(it, libc::XDP_PGOFF_RX_RING as u64, &offsets.rx);
        let fill = Ring::map(it, libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr);
        let rings = receive.and_then(|receive| Ok((receive, fill?)));
        let (receive, fill) = rings.map_err(system("cannot map a ring of", name))?;
        Ok(Queue {
            receive,
            fill,
            socket,
        })
    }

    /// The socket, which is readable when the queue received a frame.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    /// Adds the kernel's counters of this socket to `counters`.
    pub(crate) fn count(&self, counters: &mut LinkCounters) {
        let kernels: io::Result<libc::xdp_statistics> =
            get(self.socket.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS);
        if let Ok(kernels) = kernels {
            counters.missed += kernels.rx_dropped + kernels.rx_ring_full;
            counters.refused += kernels.tx_invalid_descs;
        }
    }
}

fn socket(name: &str) -> Result<OwnedFd, LinkError> {
    open(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(system("cannot open an AF_XDP socket for", name))
}

fn set_rings(socket: BorrowedFd<'_>, own: &[i32], name: &str) -> Result<(), LinkError> {
    let shared = [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING];
    for option in shared.iter().chain(own) {
        set(socket, libc::SOL_XDP, *option, &RING_ENTRIES)
            .map_err(system("the kernel refused a ring of", name))?;
    }
    Ok(())
}

fn offsets(socket: BorrowedFd<'_>, name: &str) -> Result<libc::xdp_mmap_offsets, LinkError> {
    get(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
        .map_err(system("cannot ask for the rings of", name))
}

/// Binds to a queue, with retries: a recently closed socket holds the queue until the kernel tears
/// it down.
fn bind_queue(
    socket: BorrowedFd<'_>,
    index: u32,
    queue: u32,
    (flags, shared): (u16, i32),
) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared as u32,
    };
    for _ in 0..BIND_TRIES {
        match bind(socket, &address) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(BIND_PAUSE),
            other => return other,
        }
    }
    bind(socket, &address)
}

/// `struct xdp_umem_reg` as every kernel with AF_XDP accepts it; later kernels have more fields.
#[repr(C)]
#[derive(Clone, Copy)]
struct Umem {
    addr: u64,
    len: u64,
    chunk_size: u32,
    headroom: u32,
}

/// Descriptors per `sendto`: 16 µs for 64 packets of 1500 bytes.
const SEND_BUDGET: u32 = 64;
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
const BIND_TRIES: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(2);
