//! Joins segments of TCP into long packets, which the interface cuts again (segmentation offload).
//!
//! Segments of one connection that leave in the same iteration, and differ only as the segments of
//! one packet do, cost the kernel as much as one packet if they are given to it as one. A segment
//! joins the packet before it if the headers are equal, except for lengths, checksums and IPv4's
//! identification (which means nothing in a packet that is not to be fragmented, RFC 6864), and if
//! its payload follows in sequence. A short segment and one with PSH or FIN end their packet;
//! segments with SYN, RST, URG or CWR stay alone, and so do those without payload. A packet has at
//! most as many bytes as the caller allows, and at most 65,535 behind the header of Ethernet.
//!
//! The packets leave by an AF_PACKET socket past the interface's qdisc, each with a virtio-net
//! header (`PACKET_VNET_HDR`) that has the length of its segments. The kernel refuses a packet
//! (ENOBUFS) if the interface is busy or does not cut packets any more. So a refused packet is
//! tried [`MOST_TRIES`] times. After that it is dropped, TCP of the program sends its segments
//! again, and segments stay alone until the interface is read again.
//!
//! The payloads of a run of segments ([`SegmentRun`]) are not copied: the kernel copies them from
//! the program's memory, at the latest before the program gets that memory back
//! ([`LongPackets::release`]). Packets that the kernel does not take by then are copied.
//!
//! Packets leave in the order in which their first segments came, so the segments of a connection
//! stay in order. Opening fails with [`LinkError`] if the kernel refuses a step,
//! [`LongPackets::flush`] while the interface is down.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use netnice_ring::driver::SharedBytes;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::packet::bind_to;
use super::socket::{check, set, system};
use super::virtio::{GSO_TCP_V4, GSO_TCP_V6, NEEDS_CHECKSUM, VirtioHeader};
use super::{Flushed, Interface, LinkError};
use crate::frame::{
    ETHERNET, ETHERTYPE_AT, Family, IPV4, TCP_ACK, TCP_ACK_AT, TCP_FIN, TCP_FLAGS_AT,
    TCP_OFFSET_AT, TCP_PSH, TCP_SEQUENCE_AT, V4_HEADER, be16, be32, checksum,
};
use crate::frames::FRAME;
use crate::template::{Checked, Forbidden, SegmentRun};

/// The packets that wait to be sent, and their socket. See the module.
#[derive(Debug)]
pub(super) struct LongPackets {
    socket: OwnedFd,
    packets: Vec<LongPacket>,
    /// Of `packets`, those that wait.
    waiting: Range<usize>,
    /// The interface cuts packets.
    joins: bool,
    /// A waiting packet has payload in a program's memory.
    borrows: bool,
    /// How often the first packet was refused.
    tries: u32,
    sent: u64,
    refused: u64,
}

/// A packet of one segment or of several.
#[derive(Debug)]
struct LongPacket {
    /// The frame of its first segment, or that frame's headers: the first `head_length` bytes.
    head: Box<[u8]>,
    head_length: usize,
    /// What follows the head.
    pieces: Vec<Piece>,
    /// Copied payload.
    own: Vec<u8>,
    /// Length of the whole packet.
    length: usize,
    /// Where its headers begin and end; `None`: nothing joins it.
    headers: Option<Headers>,
    /// The headers are those of a run: they have no checksums.
    is_run: bool,
    /// Payload of its first segment, in bytes.
    segment_bytes: usize,
    segments: u32,
    /// Further segments may join it.
    is_open: bool,
}

/// Payload of a packet.
#[derive(Clone, Debug)]
enum Piece {
    /// A part of `LongPacket::own`.
    Own(Range<usize>),
    /// In a program's memory.
    Shared(SharedBytes),
}

/// The places of the headers of a segment of TCP in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Headers {
    family: Family,
    tcp: usize,
    payload: usize,
}

impl LongPackets {
    /// Opens the socket, which receives nothing. Fails if the kernel refuses a step.
    pub(super) fn open(interface: &Interface) -> Result<LongPackets, LinkError> {
        let name = &interface.name;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(system("cannot open a socket for long packets of", name))?;
        for option in [libc::PACKET_QDISC_BYPASS, libc::PACKET_VNET_HDR] {
            set(socket.as_fd(), libc::SOL_PACKET, option, &1_i32)
                .map_err(system("cannot set up the socket for long packets of", name))?;
        }
        // Beyond the limit for unprivileged programs; if that is refused, up to the limit.
        sockopt::set_socket_send_buffer_size_force(&socket, SEND_BYTES)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, SEND_BYTES))
            .map_err(system("no room for the long packets of", name))?;
        bind_to(socket.as_fd(), interface, 0)?;
        Ok(LongPackets::of(socket, interface.cuts_segments))
    }

    fn of(socket: OwnedFd, joins: bool) -> LongPackets {
        LongPackets {
            socket,
            packets: Vec::new(),
            waiting: 0..0,
            joins,
            borrows: false,
            tries: 0,
            sent: 0,
            refused: 0,
        }
    }

    /// Whether segments are joined.
    pub(super) fn joins(&self) -> bool {
        self.joins
    }

    /// Joins segments from now on, or not: whether the interface cuts packets.
    pub(super) fn set_joins(&mut self, joins: bool) {
        self.joins = joins;
    }

    /// Whether packets wait that the kernel did not take.
    pub(super) fn is_stuck(&mut self) -> bool {
        !self.waiting.is_empty() && !matches!(self.flush(), Ok(Flushed::All))
    }

    /// Frames that the kernel took, and those that it refused.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.sent, self.refused)
    }

    /// As [`super::Link::send_segment`].
    pub(super) fn send<F>(&mut self, most: usize, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        if !self.has_room() {
            return None;
        }
        let (_, new) = self.split();
        match write(&mut new.head[..FRAME]) {
            Ok(checked) => {
                let length = checked.bytes().len();
                new.begin(length);
            }
            Err(forbidden) => return Some(Err(forbidden)),
        }
        if !(self.joins && self.join_last(most).is_some()) {
            self.waiting.end += 1;
        }
        Some(Ok(()))
    }

    /// Sends a run of segments. False if there is no room for it.
    pub(super) fn send_run(&mut self, most: usize, run: &SegmentRun<'_>) -> bool {
        if !self.has_room() {
            return false;
        }
        self.borrows = true;
        let mut current = None;
        for (number, payload) in run.payloads().iter().enumerate() {
            let is_last = number + 1 == run.payloads().len();
            let packet = current.and_then(|at: usize| self.packets.get_mut(at));
            if !packet.is_some_and(|packet| packet.append(payload, run.flags(is_last), most)) {
                self.split().1.begin_run(run, number, payload, is_last);
                current = match number {
                    0 => self.join_last(most),
                    _ => None,
                };
                if current.is_none() {
                    current = Some(self.waiting.end);
                    self.waiting.end += 1;
                }
            }
        }
        true
    }

    /// Joins the packet behind the waiting ones to the last waiting one of its connection, and
    /// returns that one's index; `None` if it must stay alone.
    fn join_last(&mut self, most: usize) -> Option<usize> {
        let first = self.waiting.start;
        let (waiting, new) = self.split();
        let headers = new.headers?;
        // No segment overtakes one whose connection is unknown.
        let at = waiting.iter().rposition(|packet| match packet.headers {
            Some(its) => its.family == headers.family && packet.has_ends_of(new, headers),
            None => true,
        })?;
        waiting[at].join(new, headers, most).then_some(first + at)
    }

    /// Whether one more packet can wait; flushes the others if not.
    fn has_room(&mut self) -> bool {
        self.waiting.len() < MOST_PACKETS || matches!(self.flush(), Ok(Flushed::All))
    }

    /// The waiting packets, and the place for the next one.
    fn split(&mut self) -> (&mut [LongPacket], &mut LongPacket) {
        let at = self.waiting.end;
        if self.packets.len() == at {
            self.packets.push(LongPacket::new());
        }
        let (before, rest) = self.packets.split_at_mut(at);
        (&mut before[self.waiting.start..], &mut rest[0])
    }

    /// Hands the packets with payload in a program's memory to the kernel, and copies what it does
    /// not take: the program gets its memory back.
    pub(super) fn release(&mut self) {
        if !std::mem::take(&mut self.borrows) {
            return;
        }
        // An error is found by the next flush.
        if !matches!(self.flush(), Ok(Flushed::All)) {
            let waiting = &mut self.packets[self.waiting.clone()];
            waiting.iter_mut().for_each(LongPacket::copy_payload);
        }
    }

    /// Hands the packets to the kernel; see [`super::Link::flush`]. A packet that can never leave
    /// is dropped. Fails if the interface is down.
    pub(super) fn flush(&mut self) -> io::Result<Flushed> {
        for packet in &mut self.packets[self.waiting.clone()] {
            packet.finish();
        }
        while !self.waiting.is_empty() {
            match self.send_waiting().map_err(|e| (e.raw_os_error(), e)) {
                Ok(count) => {
                    let left = &self.packets[self.waiting.clone()][..count];
                    self.sent += left.iter().map(|one| u64::from(one.segments)).sum::<u64>();
                    self.waiting.start += count;
                    self.tries = 0;
                }
                Err((Some(libc::EAGAIN | libc::EINTR), _)) => return Ok(Flushed::Partly),
                Err((Some(libc::ENETDOWN), e)) => return Err(e),
                Err((error, _)) => {
                    let first = &self.packets[self.waiting.start];
                    let is_long = first.segments > 1;
                    self.tries += 1;
                    let may_be_busy = !is_long || (self.joins && self.tries < MOST_TRIES);
                    if error == Some(libc::ENOBUFS) && may_be_busy {
                        return Ok(Flushed::Partly);
                    }
                    self.joins &= !is_long;
                    self.refused += u64::from(first.segments);
                    self.waiting.start += 1;
                    self.tries = 0;
                }
            }
        }
        self.waiting = 0..0;
        Ok(Flushed::All)
    }

    /// Hands the waiting packets to the kernel and returns how many it took. An error concerns the
    /// first one.
    fn send_waiting(&mut self) -> io::Result<usize> {
        let waiting = &mut self.packets[self.waiting.clone()];
        let virtio: Vec<_> = waiting.iter().map(LongPacket::virtio_header).collect();
        let mut parts = Vec::with_capacity(waiting.iter().map(|one| 2 + one.pieces.len()).sum());
        for (packet, virtio) in waiting.iter().zip(&virtio) {
            parts.push(part(
                std::ptr::from_ref(virtio).cast(),
                size_of::<VirtioHeader>(),
            ));
            parts.push(part(packet.head.as_ptr(), packet.head_length));
            parts.extend(packet.pieces.iter().map(|piece| match piece {
                Piece::Own(range) => part(packet.own[range.clone()].as_ptr(), range.len()),
                Piece::Shared(bytes) => part(bytes.as_ptr(), bytes.len()),
            }));
        }
        let mut rest = &mut parts[..];
        let mut messages = Vec::with_capacity(waiting.len());
        for packet in waiting.iter() {
            let (own, behind) = rest.split_at_mut(2 + packet.pieces.len());
            rest = behind;
            // SAFETY: all bits zero are a value of this plain structure.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = own.as_mut_ptr();
            message.msg_hdr.msg_iovlen = own.len();
            messages.push(message);
        }
        let (socket, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let count = messages.len() as u32;
        // SAFETY: `count` messages, each with its parts, which the kernel only reads: headers and
        // copied payload, which live longer than the call, and payload in the memory of programs
        // that are attached, since `release` comes before any of them is detached.
        let done =
            unsafe { libc::sendmmsg(socket, messages.as_mut_ptr(), count, flags as libc::c_int) };
        check(i64::from(done)).map(|sent| sent as usize)
    }
}

/// A part of a message that is only read.
fn part(bytes: *const u8, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.cast_mut().cast(),
        iov_len: length,
    }
}

impl LongPacket {
    fn new() -> LongPacket {
        LongPacket {
            head: vec![0; FRAME].into(),
            head_length: 0,
            pieces: Vec::new(),
            own: Vec::new(),
            length: 0,
            headers: None,
            is_run: false,
            segment_bytes: 0,
            segments: 0,
            is_open: false,
        }
    }

    /// The packet is one frame of this length, which a template of TCP has checked.
    fn begin(&mut self, length: usize) {
        self.clear(length);
        self.headers = Headers::of(&self.head[..length]);
        let payload = self.headers.map_or(length, |headers| headers.payload);
        self.segment_bytes = length - payload;
        self.is_open = self.headers.is_some_and(|headers| {
            self.segment_bytes > 0 && permits_more(self.head[headers.tcp + TCP_FLAGS_AT])
        });
    }

    /// The packet is the segment of a run with this number and payload.
    fn begin_run(
        &mut self,
        run: &SegmentRun<'_>,
        number: usize,
        payload: &SharedBytes,
        is_last: bool,
    ) {
        let (head, tcp) = (run.head(), run.family().headers_end());
        self.clear(head.len());
        self.length = head.len() + payload.len();
        self.is_run = true;
        run.write_head(number, is_last, &mut self.head[..head.len()]);
        self.headers = Some(Headers {
            family: run.family(),
            tcp,
            payload: head.len(),
        });
        self.pieces.push(Piece::Shared(*payload));
        self.segment_bytes = payload.len();
        self.is_open = permits_more(run.flags(is_last));
    }

    /// Becomes a packet of one segment, whose head has this length.
    fn clear(&mut self, head_length: usize) {
        self.head_length = head_length;
        self.length = head_length;
        self.segments = 1;
        self.is_run = false;
        self.pieces.clear();
        self.own.clear();
    }

    /// Whether both are of one connection: they have the same addresses and ports.
    fn has_ends_of(&self, other: &LongPacket, headers: Headers) -> bool {
        let addresses = headers.addresses();
        self.head[..ETHERNET] == other.head[..ETHERNET]
            && self.head[addresses.clone()] == other.head[addresses]
    }

    /// Adds the segment of `other`, of the same connection, if it may join. Returns true if so.
    fn join(&mut self, other: &LongPacket, headers: Headers, most: usize) -> bool {
        let added = other.length - headers.payload;
        if !self.has_room_for(added, most) || self.headers != Some(headers) {
            return false;
        }
        let (own, new) = (&self.head, &other.head);
        let (tcp, payload) = (headers.tcp, headers.payload);
        let same = |range: Range<usize>| own[range.clone()] == new[range];
        let flags = new[tcp + TCP_FLAGS_AT];
        let follows = be32(own, tcp + TCP_SEQUENCE_AT).wrapping_add((self.length - payload) as u32)
            == be32(new, tcp + TCP_SEQUENCE_AT);
        let joins = follows
            && own[tcp + TCP_FLAGS_AT] == flags & !(TCP_PSH | TCP_FIN)
            && headers.ip_fields().into_iter().all(same)
            && same(tcp + TCP_ACK_AT..tcp + TCP_FLAGS_AT)
            && same(tcp + TCP_WINDOW..tcp + TCP_CHECKSUM)
            && same(tcp + TCP_URGENT..payload);
        if joins {
            self.pieces.extend(other.pieces.iter().cloned());
            if other.pieces.is_empty() {
                self.copy_behind(&other.head[payload..other.length]);
            }
            self.count_added(added, flags);
        }
        joins
    }

    /// Adds the next segment of the run that the packet ends with, if it fits.
    fn append(&mut self, payload: &SharedBytes, flags: u8, most: usize) -> bool {
        let fits = self.has_room_for(payload.len(), most);
        if fits {
            self.pieces.push(Piece::Shared(*payload));
            self.count_added(payload.len(), flags);
        }
        fits
    }

    fn has_room_for(&self, added: usize, most: usize) -> bool {
        let fits = self.length + added <= most.min(ETHERNET + MOST_BYTES);
        self.is_open && fits && (1..=self.segment_bytes).contains(&added)
    }

    fn count_added(&mut self, added: usize, flags: u8) {
        self.length += added;
        self.segments += 1;
        self.is_open = added == self.segment_bytes && permits_more(flags);
        // The last segment's flags; the kernel clears them in the others.
        if let Some(headers) = self.headers {
            self.head[headers.tcp + TCP_FLAGS_AT] = flags;
        }
    }

    /// Adds a copy of payload.
    fn copy_behind(&mut self, payload: &[u8]) {
        self.own
            .reserve_exact(MOST_BYTES - self.own.len().min(MOST_BYTES));
        let begin = self.own.len();
        self.own.extend_from_slice(payload);
        self.pieces.push(Piece::Own(begin..self.own.len()));
    }

    /// Copies payload that is in a program's memory.
    fn copy_payload(&mut self) {
        for piece in &mut self.pieces {
            if let Piece::Shared(bytes) = piece {
                let begin = self.own.len();
                self.own.resize(begin + bytes.len(), 0);
                bytes.copy_to(&mut self.own[begin..]);
                *piece = Piece::Own(begin..self.own.len());
            }
        }
    }

    /// Whether its headers are to be written by [`LongPacket::finish`].
    fn is_unfinished(&self) -> bool {
        self.segments > 1 || self.is_run
    }

    /// Writes the headers of a packet of several segments or of a run: the lengths, the checksum of
    /// IPv4, and the sum of TCP's pseudo header, which the kernel completes for each segment.
    fn finish(&mut self) {
        self.is_open = false;
        let Some(headers) = self.headers.filter(|_| self.is_unfinished()) else {
            return;
        };
        // The packet's length fits, by `join`.
        let behind = |from: usize| ((self.length - from) as u16).to_be_bytes();
        let (whole, segment) = (behind(ETHERNET), behind(headers.tcp));
        let bytes = &mut self.head;
        let put = |bytes: &mut [u8], at: usize, value: [u8; 2]| {
            bytes[at..at + 2].copy_from_slice(&value);
        };
        match headers.family {
            Family::V4 => {
                put(bytes, ETHERNET + 2, whole);
                put(bytes, V4_CHECKSUM, [0; 2]);
                let sum = checksum(&bytes[ETHERNET..ETHERNET + V4_HEADER]);
                put(bytes, V4_CHECKSUM, sum.to_be_bytes());
            }
            Family::V6 => put(bytes, ETHERNET + 4, segment),
        }
        let mut pseudo = [0; 36];
        let addresses = headers.addresses().start..headers.tcp;
        let length = addresses.len();
        pseudo[..length].copy_from_slice(&bytes[addresses]);
        pseudo[length + 1] = crate::frame::TCP;
        put(&mut pseudo, length + 2, segment);
        let sum = !checksum(&pseudo);
        put(bytes, headers.tcp + TCP_CHECKSUM, sum.to_be_bytes());
    }

    fn virtio_header(&self) -> VirtioHeader {
        match self.headers {
            Some(headers) if self.is_unfinished() => VirtioHeader {
                flags: NEEDS_CHECKSUM,
                kind: match headers.family {
                    _ if self.segments == 1 => 0,
                    Family::V4 => GSO_TCP_V4,
                    Family::V6 => GSO_TCP_V6,
                },
                // Lengths of headers and of a frame.
                headers: headers.payload as u16,
                segment: match self.segments {
                    1 => 0,
                    _ => self.segment_bytes as u16,
                },
                checksum_from: headers.tcp as u16,
                checksum_at: TCP_CHECKSUM as u16,
            },
            _ => VirtioHeader::default(),
        }
    }
}

/// Whether segments may follow one with these flags in its packet.
fn permits_more(flags: u8) -> bool {
    flags & !TCP_ECE == TCP_ACK
}

impl Headers {
    /// Those of a frame that a template of TCP has checked. `None` if it is shorter than its
    /// headers, or may be fragmented.
    fn of(frame: &[u8]) -> Option<Headers> {
        let family = match be16(frame.get(..ETHERNET)?, ETHERTYPE_AT) {
            IPV4 => Family::V4,
            _ => Family::V6,
        };
        let tcp = family.headers_end();
        let offset = usize::from(frame.get(tcp + TCP_OFFSET_AT)? >> 4) * 4;
        let payload = tcp + offset;
        let may_be_fragmented =
            family == Family::V4 && frame[ETHERNET + V4_FLAGS] & DONT_FRAGMENT == 0;
        let complete = offset > TCP_URGENT && payload <= frame.len();
        (complete && !may_be_fragmented).then_some(Headers {
            family,
            tcp,
            payload,
        })
    }

    /// The addresses of IP, and the ports.
    fn addresses(self) -> Range<usize> {
        let length = match self.family {
            Family::V4 => 8,
            Family::V6 => 32,
        };
        self.tcp - length..self.tcp + 4
    }

    /// The parts of the header of IP before the addresses that all segments have in common: not
    /// the lengths, the identification and the checksum.
    fn ip_fields(self) -> [Range<usize>; 2] {
        let parts = match self.family {
            Family::V4 => [0..2, V4_FLAGS..V4_CHECKSUM - ETHERNET],
            Family::V6 => [0..4, 6..8],
        };
        parts.map(|part| ETHERNET + part.start..ETHERNET + part.end)
    }
}

/// Fields of headers.
const V4_FLAGS: usize = 6;
const V4_CHECKSUM: usize = ETHERNET + 10;
const DONT_FRAGMENT: u8 = 0x40;
const TCP_WINDOW: usize = 14;
const TCP_CHECKSUM: usize = 16;
const TCP_URGENT: usize = 18;
const TCP_ECE: u8 = 0x40;
/// The longest packet of IP, in bytes.
const MOST_BYTES: usize = 65_535;
/// Packets that wait at most: as many connections take part in an iteration, at best.
const MOST_PACKETS: usize = 16;
/// Tries of a long packet: about a millisecond, since the caller tries again every 50 us.
const MOST_TRIES: u32 = 20;
/// Requested size of the send buffer, in bytes.
const SEND_BYTES: usize = 8 << 20;

#[cfg(test)]
mod tests;
