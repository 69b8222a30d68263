//! Sends and receives by AF_PACKET, past the interface's qdisc: slower than AF_XDP, for machines
//! where AF_XDP is refused.
//!
//! The kernel's own stack gets a copy of every received frame. So a kernel socket must hold the
//! port of each direct flow; otherwise the kernel answers that the port is unreachable. Received
//! frames that had a VLAN tag are dropped. A frame can be a packet of many segments, up to 64 KiB:
//! the kernel states that in a header in front of each frame (`PACKET_VNET_HDR`), which becomes an
//! [`Offload`]. In the header in front of sent frames all fields are 0: they leave as they are.
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
use super::virtio::{OFFLOAD_HEADER, offload};
use super::{Flushed, Interface, LinkCounters, LinkError};
use crate::frames::FRAME;
use crate::segments::{LONGEST, Offload};
use crate::template::{Checked, Forbidden};

/// A packet socket, and frames that wait to be sent.
#[derive(Debug)]
pub(super) struct PacketLink {
    socket: OwnedFd,
    /// Length of the kernel's header in front of each frame: 0 without one.
    front: usize,
    /// Waiting frames side by side, each behind [`FRONT`] bytes; `lengths` has their lengths.
    waiting: Vec<u8>,
    lengths: Vec<usize>,
    /// Received frames side by side, each behind [`FRONT`] bytes. `received` has their lengths
    /// with the kernel's header; 0 for a frame that did not fit.
    buffers: Vec<u8>,
    received: Vec<usize>,
    /// How many of the received frames were handed over.
    handed_over: usize,
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
        set(it, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)
            .map_err(system("cannot set up the packet socket of", name))?;
        bind_to(it, interface, 0)?;
        Ok(PacketLink::of(socket, OFFLOAD_HEADER))
    }

    /// Wraps a socket that is set up. `front` is the length of the kernel's header in front of each
    /// frame.
    pub(super) fn of(socket: OwnedFd, front: usize) -> PacketLink {
        PacketLink {
            front,
            waiting: vec![0; BATCH * SEND_STRIDE],
            lengths: Vec::with_capacity(BATCH),
            buffers: vec![0; BATCH * RECEIVE_STRIDE],
            received: Vec::with_capacity(BATCH),
            handed_over: 0,
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
        let begin = self.lengths.len() * SEND_STRIDE + FRONT;
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
        let frames = self.waiting.chunks_exact_mut(SEND_STRIDE);
        for (piece, (frame, length)) in pieces.iter_mut().zip(frames.zip(&self.lengths)) {
            piece.iov_base = frame[FRONT - self.front..].as_mut_ptr().cast();
            piece.iov_len = self.front + *length;
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
        let rest = frames * SEND_STRIDE..self.lengths.len() * SEND_STRIDE;
        self.waiting.copy_within(rest, 0);
        self.lengths.drain(..frames);
    }

    /// As [`super::Link::receive`]. The next call hands over what was received and not handed over.
    pub(super) fn receive(
        &mut self,
        most: usize,
        mut each: impl FnMut(&mut [u8], &Offload) -> usize,
    ) -> usize {
        if self.handed_over == self.received.len() {
            self.receive_batch(most);
        }
        let mut count = 0;
        while count < most && self.handed_over < self.received.len() {
            let number = self.handed_over;
            self.handed_over += 1;
            self.counters.received += 1;
            let begin = number * RECEIVE_STRIDE + FRONT - self.front;
            let bytes = &mut self.buffers[begin..begin + self.received[number]];
            let handed_over = match bytes.split_at_mut_checked(self.front) {
                Some((stated, frame)) => each(frame, &offload(stated)),
                None => 0,
            };
            self.counters.missed += u64::from(handed_over == 0);
            count += handed_over.max(1);
        }
        count
    }

    /// Receives frames from the kernel.
    fn receive_batch(&mut self, most: usize) {
        self.received.clear();
        self.handed_over = 0;
        let mut pieces: [libc::iovec; BATCH] = [NO_PIECE; BATCH];
        let buffers = self.buffers.chunks_exact_mut(RECEIVE_STRIDE);
        for (piece, buffer) in pieces.iter_mut().zip(buffers) {
            let buffer = &mut buffer[FRONT - self.front..];
            piece.iov_base = buffer.as_mut_ptr().cast();
            piece.iov_len = buffer.len();
        }
        let mut messages = pieces.each_mut().map(message);
        let most = most.min(BATCH) as u32;
        let socket = self.socket.as_raw_fd();
        for _ in 0..BATCH {
            // SAFETY: `most` messages, each with one buffer. They live longer than the call.
            let done = unsafe {
                libc::recvmmsg(
                    socket,
                    messages.as_mut_ptr(),
                    most,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            };
            match check(i64::from(done)) {
                Ok(count) => {
                    let messages = messages[..count as usize].iter();
                    self.received.extend(messages.map(received_bytes));
                    return;
                }
                // A frame whose segments the header cannot state, which the kernel drops.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.counters.received += 1;
                    self.counters.missed += 1;
                }
                Err(_) => return,
            }
        }
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

/// Bytes of a received message; 0 if it did not fit.
fn received_bytes(message: &libc::mmsghdr) -> usize {
    match message.msg_hdr.msg_flags & libc::MSG_TRUNC {
        0 => message.msg_len as usize,
        _ => 0,
    }
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
/// Bytes in front of each frame, for the kernel's header.
const FRONT: usize = 16;
const SEND_STRIDE: usize = FRONT + FRAME;
/// From one received frame to the next: room for the longest packet, and no multiple of a page, so
/// that the headers of the frames do not share a set of the cache.
const RECEIVE_STRIDE: usize = (FRONT + LONGEST).next_multiple_of(4096) + 128;

#[cfg(test)]
mod tests;
