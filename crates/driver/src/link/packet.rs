//! Sends and receives by AF_PACKET, past the interface's qdisc: slower than AF_XDP, for machines
//! where AF_XDP is refused.
//!
//! The kernel's own stack gets a copy of every received frame. So a kernel socket must hold the
//! port of each direct flow; otherwise the kernel answers that the port is unreachable. Received
//! frames that had a VLAN tag or are longer than a frame of the driver (2048 bytes) are dropped.
//! Opening fails with [`LinkError`] if the kernel refuses a step. [`PacketLink::flush`] fails while
//! the interface is down.
//!
//! The module makes some calls by libc, because rustix has neither recvmmsg(2) nor the addresses,
//! options and filters of packet sockets.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::socket::{bind, check, get, set, system};
use super::{Flushed, Interface, LinkCounters, LinkError};
use crate::frames::FRAME;
use crate::template::{Checked, Forbidden};

/// A packet socket, and frames that wait to be sent.
#[derive(Debug)]
pub(super) struct PacketLink {
    socket: OwnedFd,
    /// Waiting frames side by side; `lengths` has their lengths.
    waiting: Vec<u8>,
    lengths: Vec<usize>,
    buffers: Vec<u8>,
    counters: LinkCounters,
    /// Frames that the kernel dropped because the socket's buffer was full. Reading the kernel's
    /// counter resets that counter.
    dropped: Cell<u64>,
}

impl PacketLink {
    /// Opens the packet socket, which receives nothing yet. Fails if the kernel refuses a step.
    pub(super) fn open(interface: &Interface) -> Result<PacketLink, LinkError> {
        let name = &interface.name;
        // Protocol 0: nothing is received before `Ingress::start`.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(system("cannot open a packet socket for", name))?;
        let it = socket.as_fd();
        let on = 1_i32;
        for option in [libc::PACKET_QDISC_BYPASS, PACKET_IGNORE_OUTGOING] {
            set(it, libc::SOL_PACKET, option, &on)
                .map_err(system("cannot set up the packet socket of", name))?;
        }
        // Beyond the limit for unprivileged programs; if that is refused, up to the limit.
        sockopt::set_socket_recv_buffer_size_force(it, RECEIVE_BYTES)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(it, RECEIVE_BYTES))
            .map_err(system("no room for the packets of", name))?;
        let mut program = NO_TAGS;
        let filter = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        set(it, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
            .map_err(system("cannot filter the packets of", name))?;
        bind_to(it, interface, 0)?;
        Ok(PacketLink::of(socket))
    }

    /// Wraps a socket that is set up.
    pub(super) fn of(socket: OwnedFd) -> PacketLink {
        PacketLink {
            waiting: vec![0; BATCH * FRAME],
            lengths: Vec::with_capacity(BATCH),
            buffers: vec![0; BATCH * FRAME],
            counters: LinkCounters::default(),
            dropped: Cell::new(0),
            socket,
        }
    }

    /// As [`super::Link::room`].
    pub(super) fn room(&mut self) -> usize {
        if self.lengths.len() == BATCH {
            // Frames that the kernel does not take stay queued.
            let _ = self.flush();
        }
        BATCH - self.lengths.len()
    }

    /// As [`super::Link::send`].
    pub(super) fn send<F>(&mut self, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        if self.room() == 0 {
            return None;
        }
        let begin = self.lengths.len() * FRAME;
        let frame = &mut self.waiting[begin..begin + FRAME];
        let length = write(frame).map(|checked| checked.bytes().len());
        Some(length.map(|length| self.lengths.push(length)))
    }

    /// Hands the waiting frames to the kernel; see [`super::Link::flush`]. A frame that can never
    /// leave is dropped, since it would block the others: for example, it is longer than the MTU,
    /// which has shrunk since the check. Fails if the interface is down.
    pub(super) fn flush(&mut self) -> io::Result<Flushed> {
        while !self.lengths.is_empty() {
            match self.send_waiting().map_err(|e| (e.raw_os_error(), e)) {
                Ok(sent) => {
                    self.counters.sent += sent as u64;
                    self.remove_first(sent);
                }
                Err((Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR), _)) => {
                    return Ok(Flushed::Partly);
                }
                Err((Some(libc::ENETDOWN), e)) => return Err(e),
                Err(_) => {
                    self.counters.refused += 1;
                    self.remove_first(1);
                }
            }
        }
        Ok(Flushed::All)
    }

    /// Hands the waiting frames to the kernel and returns how many it took. An error concerns the
    /// first frame.
    fn send_waiting(&mut self) -> io::Result<usize> {
        let mut pieces: [libc::iovec; BATCH] = [NO_PIECE; BATCH];
        let frames = self.waiting.chunks_exact_mut(FRAME).zip(&self.lengths);
        for (piece, (frame, length)) in pieces.iter_mut().zip(frames) {
            piece.iov_base = frame.as_mut_ptr().cast();
            piece.iov_len = *length;
        }
        let mut messages = pieces.each_mut().map(message);
        let count = self.lengths.len() as u32;
        let socket = self.socket.as_raw_fd();
        // SAFETY: `count` messages, each with one piece of a frame, all of which outlive the call.
        let done = unsafe {
            libc::sendmmsg(
                socket,
                messages.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT as _,
            )
        };
        check(i64::from(done)).map(|sent| sent as usize)
    }

    /// Removes the first `frames` waiting frames.
    fn remove_first(&mut self, frames: usize) {
        let rest = frames * FRAME..self.lengths.len() * FRAME;
        self.waiting.copy_within(rest, 0);
        self.lengths.drain(..frames);
    }

    /// As [`super::Link::receive`].
    pub(super) fn receive(&mut self, most: usize, mut each: impl FnMut(&[u8])) -> usize {
        let mut pieces: [libc::iovec; BATCH] = [NO_PIECE; BATCH];
        for (piece, buffer) in pieces.iter_mut().zip(self.buffers.chunks_exact_mut(FRAME)) {
            piece.iov_base = buffer.as_mut_ptr().cast();
            piece.iov_len = FRAME;
        }
        let mut messages = pieces.each_mut().map(message);
        let count = most.min(BATCH) as u32;
        let socket = self.socket.as_raw_fd();
        // SAFETY: `count` messages, each with one buffer, all of which outlive the call.
        let done = unsafe {
            libc::recvmmsg(
                socket,
                messages.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let count = check(i64::from(done)).map_or(0, |count| count as usize);
        for (message, buffer) in messages[..count]
            .iter()
            .zip(self.buffers.chunks_exact(FRAME))
        {
            self.counters.received += 1;
            match message.msg_hdr.msg_flags & libc::MSG_TRUNC {
                0 => each(&buffer[..message.msg_len as usize]),
                // Segments that were merged into one packet, which no frame can hold.
                _ => self.counters.missed += 1,
            }
        }
        count
    }

    /// The number of frames that the kernel has taken.
    pub(super) fn sent(&self) -> u64 {
        self.counters.sent
    }

    /// As [`super::Link::counters`].
    pub(super) fn counters(&self) -> LinkCounters {
        let kernels: io::Result<libc::tpacket_stats> = get(
            self.socket.as_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
        );
        if let Ok(kernels) = kernels {
            let dropped = self.dropped.get() + u64::from(kernels.tp_drops);
            self.dropped.set(dropped);
        }
        let mut counters = self.counters;
        counters.missed += self.dropped.get();
        counters
    }

    /// The socket, which is readable when a frame was received.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.socket
    }
}

/// Binds the socket to the interface, to receive frames of this protocol; 0 receives none. Fails
/// with the error of bind(2).
pub(super) fn bind_to(
    socket: BorrowedFd<'_>,
    interface: &Interface,
    protocol: u16,
) -> Result<(), LinkError> {
    // SAFETY: all bits zero are a value of this plain structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface.index as i32;
    bind(socket, &address).map_err(system("cannot bind a packet socket to", &interface.name))
}

fn message(piece: &mut libc::iovec) -> libc::mmsghdr {
    // SAFETY: all bits zero are a value of this plain structure.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_iov = piece;
    message.msg_hdr.msg_iovlen = 1;
    message
}

/// Rejects frames that had a VLAN tag: the kernel removes the tag, and the frame would look like
/// one of this interface. The program loads whether there was a tag, and accepts the frame if not.
const NO_TAGS: [libc::sock_filter; 4] = [
    instruction(0x30, 0, 0, (-4096_i32 + 48) as u32),
    instruction(0x15, 0, 1, 0),
    instruction(0x06, 0, 0, 0x0004_0000),
    instruction(0x06, 0, 0, 0),
];

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

const NO_PIECE: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};
const PACKET_IGNORE_OUTGOING: i32 = 23;
/// Requested size of the receive buffer, in bytes: about 5,000 packets of any length up to 1,500.
const RECEIVE_BYTES: usize = 4 << 20;
/// Frames per system call.
const BATCH: usize = 32;
