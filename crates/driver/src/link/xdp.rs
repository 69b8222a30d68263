//! AF_XDP: four rings and a memory that are shared with the kernel alone.
//!
//! The memory (UMEM) is the driver's own; no program maps it. The kernel copies (`XDP_COPY`), which every interface can. It sends
//! only inside of `sendto`, a budget of descriptors at a time, so [`XdpLink::flush`] asks until the ring is empty. The
//! kernel's side of the rings is believed about indices, and about frames only by [`Frames`].

mod gates;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use netnice_kernel::direct::Direct;

use gates::Gates;

use super::socket::{bind, check, get, open, set, system};
use super::{Counters, FRAME, Interface, LinkError};
use crate::frames::{Frames, Holder};
use crate::template::{Checked, Forbidden};

/// An AF_XDP socket on queue 0.
#[derive(Debug)]
pub(super) struct XdpLink {
    transmit: Ring<libc::xdp_desc>,
    receive: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    frames: Frames,
    counters: Counters,
    gates: Gates,
    // Behind the rings and before its memory: they go in this order.
    socket: OwnedFd,
    memory: Mapping,
}

impl XdpLink {
    /// The socket, and the program that is to feed it.
    pub(super) fn open(interface: &Interface) -> Result<(XdpLink, Direct), LinkError> {
        let name = &interface.name;
        let mut program = Direct::load(interface.mac.0)?;
        let socket = open(libc::AF_XDP, libc::SOCK_RAW, 0)
            .map_err(system("cannot open an AF_XDP socket for", name))?;
        let memory = Mapping::anonymous(FRAMES as usize * FRAME)
            .map_err(system("no memory for the frames of", name))?;
        let area = Umem {
            addr: memory.start.as_ptr() as u64,
            len: memory.length as u64,
            chunk_size: FRAME as u32,
            headroom: 0,
        };
        let it = socket.as_fd();
        set(it, libc::SOL_XDP, libc::XDP_UMEM_REG, &area)
            .map_err(system("the kernel refused the frames of", name))?;
        for (option, entries) in [
            (libc::XDP_UMEM_FILL_RING, ENTRIES),
            (libc::XDP_UMEM_COMPLETION_RING, ENTRIES),
            (libc::XDP_RX_RING, ENTRIES),
            (libc::XDP_TX_RING, ENTRIES),
        ] {
            set(it, libc::SOL_XDP, option, &entries)
                .map_err(system("the kernel refused a ring of", name))?;
        }
        // Kernels before 6.16 have a fixed budget of 32.
        let _ = set(it, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &SEND_BUDGET);
        let offsets: libc::xdp_mmap_offsets = get(it, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
            .map_err(system("cannot ask for the rings of", name))?;
        let map = system("cannot map a ring of", name);
        let (transmit, receive, fill, completion) = map_rings(it, &offsets).map_err(map)?;
        bind_queue(it, interface.index).map_err(system("cannot bind to queue 0 of", name))?;
        let gates = program.gates().map_err(LinkError::from)?;
        let gates = Gates::map(gates).map_err(system("cannot map the gates of", name))?;
        let mut link = XdpLink {
            transmit,
            receive,
            fill,
            completion,
            frames: Frames::new(FRAMES, FRAME as u32),
            counters: Counters::default(),
            gates,
            socket,
            memory,
        };
        program.set_socket(0, link.socket.as_fd())?;
        link.prime();
        Ok((link, program))
    }

    /// Half of the frames are for sending, so that received ones never lack one.
    #[inline]
    pub(super) fn room(&mut self) -> usize {
        if self.frames.count(Holder::Free) == 0 {
            self.collect();
        }
        let free = self.frames.count(Holder::Free) as usize;
        free.min(self.transmit.room() as usize)
    }

    #[inline]
    pub(super) fn send<F>(&mut self, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        if self.room() == 0 {
            return None;
        }
        let address = self.frames.take()?;
        let length = write(self.memory.frame_mut(address)).map(|checked| checked.bytes().len());
        let (to, done) = match length {
            Ok(length) => {
                self.transmit.push(libc::xdp_desc {
                    addr: address,
                    len: length as u32,
                    options: 0,
                });
                (Holder::Sending, Ok(()))
            }
            Err(forbidden) => (Holder::Free, Err(forbidden)),
        };
        self.pass(address, Holder::Driver, to);
        Some(done)
    }

    #[inline]
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let unsent = self.transmit.publish();
        self.counters.sent += u64::from(unsent);
        let mut done = Ok(());
        for _ in 0..FLUSH_CALLS {
            if self.transmit.is_drained() {
                break;
            }
            match kick(self.socket.as_fd()) {
                Ok(()) => {}
                // Its budget is used up, or others hold its memory: what is done can be collected.
                Err(e) if is_passing(&e) => self.collect(),
                Err(e) => {
                    done = Err(e);
                    break;
                }
            }
        }
        self.collect();
        done
    }

    #[inline]
    pub(super) fn receive(&mut self, most: usize, mut each: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < most
            && let Some(descriptor) = self.receive.pop()
        {
            count += 1;
            self.counters.received += 1;
            let begin = match self
                .frames
                .pass(descriptor.addr, Holder::Filling, Holder::Driver)
            {
                Ok(begin) => begin,
                Err(_) => {
                    self.counters.strange += 1;
                    continue;
                }
            };
            let inside = (descriptor.addr - begin) as usize;
            let frame = self.memory.frame_mut(begin);
            if let Some(bytes) = frame.get(inside..inside + descriptor.len as usize) {
                each(bytes);
            }
            self.fill.push(begin);
            self.pass(begin, Holder::Driver, Holder::Filling);
        }
        if count > 0 {
            self.receive.release();
            self.fill.publish();
        }
        count
    }

    #[inline]
    pub(super) fn sent(&self) -> u64 {
        self.counters.sent
    }

    pub(super) fn counters(&self) -> Counters {
        let kernels: io::Result<libc::xdp_statistics> =
            get(self.socket.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS);
        let mut counters = self.counters;
        if let Ok(kernels) = kernels {
            counters.missed = kernels.rx_dropped + kernels.rx_ring_full;
            counters.refused = kernels.tx_invalid_descs;
        }
        counters
    }

    pub(super) fn gates(&mut self) -> &mut Gates {
        &mut self.gates
    }

    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    /// Half of the frames go to the kernel, to be filled.
    fn prime(&mut self) {
        for _ in 0..FRAMES / 2 {
            if let Some(address) = self.frames.take() {
                self.fill.push(address);
                self.pass(address, Holder::Driver, Holder::Filling);
            }
        }
        self.fill.publish();
    }

    /// What the kernel has sent is free again.
    #[inline]
    fn collect(&mut self) {
        while let Some(address) = self.completion.pop() {
            self.pass(address, Holder::Sending, Holder::Free);
        }
        self.completion.release();
    }

    #[inline]
    fn pass(&mut self, address: u64, from: Holder, to: Holder) {
        if self.frames.pass(address, from, to).is_err() {
            self.counters.strange += 1;
        }
    }
}

/// Transmit, receive, fill, completion.
type Rings = (
    Ring<libc::xdp_desc>,
    Ring<libc::xdp_desc>,
    Ring<u64>,
    Ring<u64>,
);

fn map_rings(socket: BorrowedFd<'_>, offsets: &libc::xdp_mmap_offsets) -> io::Result<Rings> {
    Ok((
        Ring::map(socket, libc::XDP_PGOFF_TX_RING as u64, &offsets.tx)?,
        Ring::map(socket, libc::XDP_PGOFF_RX_RING as u64, &offsets.rx)?,
        Ring::map(socket, libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr)?,
        Ring::map(socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr)?,
    ))
}

/// Binds to queue 0. A socket that was closed a moment ago still holds it: the kernel tears it
/// down later.
fn bind_queue(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: index,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    for _ in 0..BIND_TRIES {
        match bind(socket, &address) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(BIND_PAUSE),
            other => return other,
        }
    }
    bind(socket, &address)
}

/// Lets the kernel send.
#[inline]
fn kick(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let done = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            std::ptr::null(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null(),
            0,
        )
    };
    check(done as i64).map(drop)
}

/// True for errors that say: not now.
fn is_passing(error: &io::Error) -> bool {
    let number = error.raw_os_error().unwrap_or(0);
    [libc::EAGAIN, libc::EBUSY, libc::ENOBUFS, libc::EINTR].contains(&number)
}

/// Memory that is unmapped with its owner.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it is memory that one owner uses; no thread is better than another.
unsafe impl Send for Mapping {}

impl Mapping {
    fn anonymous(length: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a new mapping is asked for, at no particular place.
        unsafe { Mapping::new(length, flags, -1, 0) }
    }

    /// # Safety
    /// `flags` must not ask for a fixed place.
    unsafe fn new(length: usize, flags: i32, fd: i32, offset: u64) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the place, so nothing that is there is replaced.
        let start = unsafe {
            libc::mmap64(
                std::ptr::null_mut(),
                length,
                protection,
                flags,
                fd,
                offset as i64,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(start.cast::<u8>()) {
            Some(start) => Ok(Mapping { start, length }),
            None => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// The frame that begins there.
    #[inline]
    fn frame_mut(&mut self, address: u64) -> &mut [u8] {
        let begin = address as usize;
        assert!(begin.is_multiple_of(FRAME) && begin + FRAME <= self.length);
        // SAFETY: the frame lies inside, as was just checked; it is the driver's by the ledger, so the kernel does not
        // use it meanwhile; and `self` is borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(begin), FRAME) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is what was mapped, and nothing of it is borrowed any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A ring between the driver and the kernel, one of them the producer. It is used from one side only.
#[derive(Debug)]
struct Ring<T> {
    mapping: Mapping,
    offsets: libc::xdp_ring_offset,
    /// Where this side is. The other side's index is read when this one seems to be at its end.
    own: u32,
    other: u32,
    /// What the other side knows of ours.
    told: u32,
    entry: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn map(
        socket: BorrowedFd<'_>,
        page: u64,
        offsets: &libc::xdp_ring_offset,
    ) -> io::Result<Ring<T>> {
        let length = offsets.desc as usize + ENTRIES as usize * size_of::<T>();
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping of the socket, at no particular place.
        let mapping = unsafe { Mapping::new(length, flags, socket.as_raw_fd(), page)? };
        Ok(Ring {
            mapping,
            offsets: *offsets,
            own: 0,
            other: 0,
            told: 0,
            entry: std::marker::PhantomData,
        })
    }

    #[inline]
    fn index(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel said that an aligned index stands there, inside of the mapping.
        unsafe { &*self.mapping.start.as_ptr().add(offset as usize).cast() }
    }

    #[inline]
    fn entry(&self, at: u32) -> *mut T {
        let place = (at & (ENTRIES - 1)) as usize;
        // SAFETY: the mapping has room for ENTRIES of them from `desc` on, by its length.
        unsafe {
            let first: *mut T = self
                .mapping
                .start
                .as_ptr()
                .add(self.offsets.desc as usize)
                .cast();
            first.add(place)
        }
    }

    /// As the producer: how many entries are free.
    #[inline]
    fn room(&mut self) -> u32 {
        let used = self.own.wrapping_sub(self.other);
        if used >= ENTRIES {
            self.other = self.index(self.offsets.consumer).load(Ordering::Acquire);
        }
        ENTRIES.saturating_sub(self.own.wrapping_sub(self.other))
    }

    /// As the producer, with room.
    #[inline]
    fn push(&mut self, entry: T) {
        // SAFETY: the entry is the producer's until it is published.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
    }

    /// As the producer: the other side may have what was pushed; how much that was.
    #[inline]
    fn publish(&mut self) -> u32 {
        let new = self.own.wrapping_sub(self.told);
        if new > 0 {
            self.index(self.offsets.producer)
                .store(self.own, Ordering::Release);
            self.told = self.own;
        }
        new
    }

    /// As the producer: the other side has taken everything.
    #[inline]
    fn is_drained(&mut self) -> bool {
        self.other = self.index(self.offsets.consumer).load(Ordering::Acquire);
        self.other == self.told
    }

    /// As the consumer.
    #[inline]
    fn pop(&mut self) -> Option<T> {
        if self.own == self.other {
            self.other = self.index(self.offsets.producer).load(Ordering::Acquire);
            if self.own == self.other {
                return None;
            }
        }
        // SAFETY: the producer published it, and it is the consumer's until it is released.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// As the consumer: the other side may use again what was popped.
    #[inline]
    fn release(&mut self) {
        if self.own != self.told {
            self.index(self.offsets.consumer)
                .store(self.own, Ordering::Release);
            self.told = self.own;
        }
    }
}

/// `struct xdp_umem_reg` as every kernel with AF_XDP takes it; later ones have more fields.
#[repr(C)]
#[derive(Clone, Copy)]
struct Umem {
    addr: u64,
    len: u64,
    chunk_size: u32,
    headroom: u32,
}

/// Half to send from, half to receive into. 8 MiB.
const FRAMES: u32 = 4096;
/// Of each ring: no ring can be too full for the frames that may be in it.
const ENTRIES: u32 = FRAMES / 2;
/// How many descriptors one `sendto` takes: 16 µs of 1500 bytes.
const SEND_BUDGET: u32 = 64;
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
/// How often one flush asks the kernel to go on, where each takes the old budget.
const FLUSH_CALLS: u32 = ENTRIES / 32;
const BIND_TRIES: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(2);
