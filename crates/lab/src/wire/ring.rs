//! Reads the packets that a device receives and sends, from a packet socket with a memory-mapped
//! receive ring (TPACKET_V2, packet(7)). The ring has [`FRAMES`] slots with the first [`HEAD`]
//! bytes of a packet each. If the ring is full, the kernel drops packets and counts them
//! ([`Ring::lost`]). [`Ring::open`] fails without the device or CAP_NET_RAW, or if the kernel
//! refuses a setting of the socket or the ring. [`Ring::stamp_at_arrival`] and [`Ring::lost`] fail
//! if the kernel refuses the call.
//!
//! Safety rules: [`Ring`] owns the socket and the mapping, and the mapping lives as long as the
//! socket. User space owns a frame from the moment when its status has TP_STATUS_USER (read with
//! acquire) until it writes TP_STATUS_KERNEL (with release). No reference into a frame leaves
//! [`Ring::drain`].

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::netdevice;

use super::parse::{self, Packet};
use crate::sys;

/// A packet socket and its receive ring.
pub struct Ring {
    socket: OwnedFd,
    frames: *mut u8,
    next: usize,
}

// SAFETY: only the owner of the ring uses the mapping, one thread at a time.
unsafe impl Send for Ring {}

impl Ring {
    /// Opens a ring on `device` of the calling thread's namespace. Fails without the device or
    /// CAP_NET_RAW, or if the kernel refuses a setting of the socket or the ring.
    pub fn open(device: &str) -> Result<Ring> {
        // The socket receives nothing before the ring exists and the socket is bound.
        let socket = sys::packet_socket().context("a packet socket needs CAP_NET_RAW")?;
        let index = netdevice::name_to_index(&socket, device);
        let index = index.with_context(|| format!("no device {device}"))?;
        set(
            &socket,
            libc::PACKET_VERSION,
            &libc::tpacket_versions::TPACKET_V2,
        )?;
        set(&socket, libc::PACKET_VNET_HDR, &1i32)
            .context("the kernel does not hand out segment sizes (PACKET_VNET_HDR)")?;
        keep_heads_only(&socket)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (FRAMES * FRAME / BLOCK) as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: FRAMES as u32,
        };
        set(&socket, libc::PACKET_RX_RING, &request).context("cannot make the packet ring")?;
        let (both, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a fresh mapping of the ring that was just made, of exactly its size.
        let frames = unsafe { mmap(ptr::null_mut(), FRAMES * FRAME, both, shared, &socket, 0) };
        let ring = Ring {
            frames: frames.context("cannot map the packet ring")?.cast(),
            socket,
            next: 0,
        };
        sys::bind_packet_socket(&ring.socket, index, libc::ETH_P_ALL as u16)
            .context("cannot bind the packet socket")?;
        Ok(ring)
    }

    /// Stamps packets when the device receives them, not when they reach this socket. Fails if the
    /// kernel refuses the option.
    pub fn stamp_at_arrival(&self) -> Result<()> {
        sys::set_option(&self.socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_i32)
            .context("cannot ask for time stamps")
    }

    /// Passes every waiting packet and its first bytes to `take`; returns the number of packets.
    pub fn drain(&mut self, mut take: impl FnMut(&Packet, &[u8])) -> usize {
        for count in 0.. {
            // SAFETY: `next` is below FRAMES, so the frame lies inside the mapping; its first word
            // is the status, which both sides access atomically.
            let frame = unsafe { self.frames.add(self.next * FRAME) };
            // SAFETY: a frame is aligned, and both sides access its first word only atomically.
            let status = unsafe { AtomicU32::from_ptr(frame.cast()) };
            if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                return count;
            }
            // SAFETY: user space owns the frame until the status is written; it is FRAME bytes
            // long.
            let bytes = unsafe { std::slice::from_raw_parts(frame, FRAME) };
            if let Some((packet, head)) = read(bytes) {
                take(&packet, head);
            }
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % FRAMES;
        }
        unreachable!("the count of packets is unbounded")
    }

    /// Number of packets dropped because the ring was full, since the last call; the first call
    /// counts from the opening. Fails if the kernel does not return the socket's statistics.
    pub fn lost(&self) -> Result<u64> {
        let mut stats = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel fills `stats`; its size is passed in `len`.
        let done = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &mut len,
            )
        };
        if done != 0 {
            let error = io::Error::last_os_error();
            return Err(error).context("cannot read the packet socket's statistics");
        }
        Ok(u64::from(stats.tp_drops))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `open` made the mapping with this size, and it is not used after this call.
        let _ = unsafe { munmap(self.frames.cast(), FRAMES * FRAME) };
    }
}

/// Parses the header that the kernel wrote, and the first bytes of the packet after it.
fn read(frame: &[u8]) -> Option<(Packet, &[u8])> {
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(frame.get(at..at + 4)?.try_into().ok()?))
    };
    let half = |at: usize| -> Option<u16> {
        Some(u16::from_ne_bytes(frame.get(at..at + 2)?.try_into().ok()?))
    };
    // struct tpacket2_hdr: status, len, snaplen, then mac and net offsets, then seconds and ns.
    let (len, snap, mac) = (word(4)?, word(8)? as usize, usize::from(half(12)?));
    let at_ns = u64::from(word(16)?) * 1_000_000_000 + u64::from(word(20)?);
    // struct sockaddr_ll after it: the packet type is the byte at 10.
    let link = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
    let inbound = *frame.get(link + 10)? != libc::PACKET_OUTGOING;
    // struct virtio_net_hdr directly before the frame: flags, gso type, header length, gso size.
    let gso = mac.checked_sub(VNET)?;
    let segment = match frame.get(gso + 1)? {
        0 => 0,
        _ => half(gso + 4)?,
    };
    let head = frame.get(mac..(mac + snap).min(frame.len()))?;
    let packet = parse::packet(at_ns, inbound, head, len.into(), segment);
    Some((packet, head))
}

/// Attaches a filter that truncates every packet to [`HEAD`] bytes, enough for all headers.
fn keep_heads_only(socket: &OwnedFd) -> Result<()> {
    let mut code = [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: HEAD,
    }];
    let program = libc::sock_fprog {
        len: code.len() as u16,
        filter: code.as_mut_ptr(),
    };
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
        .context("cannot attach a filter to the packet socket")
}

fn set<T: Copy>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_PACKET, option, value)
}

/// Bytes kept of a packet: 14 + 40 + 60 and some spare.
const HEAD: u32 = 128;
/// Bytes of a slot: the kernel's header, the address, the segmentation header and [`HEAD`].
const FRAME: usize = 256;
/// Number of slots: 0.8 s of full frames at 1 Gbit/s in one direction, 0.4 s in both; 16 MiB.
const FRAMES: usize = 1 << 16;
/// Bytes that the kernel allocates at once.
const BLOCK: usize = 1 << 16;
/// Size of `struct virtio_net_hdr`.
const VNET: usize = 10;
