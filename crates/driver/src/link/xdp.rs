//! Sends and receives frames by AF_XDP, through rings and packet memory that only the driver and
//! the kernel share.
//!
//! Each receive queue has a socket with two rings: *fill* (empty frames for the kernel) and
//! *receive* (filled frames). All frames leave by the first socket, through two more rings:
//! *transmit* (frames to send) and *completion* (sent frames). The packet memory (UMEM) is the
//! driver's own; no program maps it. The kernel copies between it and its own packets (`XDP_COPY`),
//! which every interface supports. The kernel sends only inside `sendto`, and a limited number of
//! frames in one call. So [`XdpLink::flush`] repeats the call until the ring is empty or the kernel
//! takes no more frames. The driver trusts the kernel's ring indices, and checks each returned
//! frame address by [`Frames`]. In generic mode a received frame can be a packet of many segments,
//! up to 64 KiB, which the kernel copies into several frames (`XDP_USE_SG`, Linux 6.6). Opening
//! fails with [`LinkError`] if the kernel refuses a step or if there are more than [`MAX_QUEUES`]
//! (64) receive queues. [`XdpLink::flush`] fails if the interface cannot send.

mod gates;
mod queue;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use netnice_kernel::KernelError;
use netnice_kernel::direct::{MAX_QUEUES, XdpProgram};
use netnice_kernel::nic::{self, ReceiveQueues};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::SendFlags;
use rustix::net::xdp::{XdpDesc, XdpDescOptions, XdpRingOffset};

use gates::Gates;
pub(crate) use queue::{Queue, SpareQueues};

use super::socket::system;
use super::{Flushed, Interface, LinkCounters, LinkError};
use crate::frames::{FRAME, Frames, Holder, MAX_IN_FLIGHT, Tally};
use crate::mapping::Mapping;
use crate::segments::{Merged, Offload};
use crate::template::{Checked, Forbidden};

/// AF_XDP sockets on all receive queues. Frames leave by the first.
#[derive(Debug)]
pub(super) struct XdpLink {
    transmit: Ring<XdpDesc>,
    completion: Ring<u64>,
    queues: Vec<Queue>,
    /// The queue that is read first next time.
    next: usize,
    /// The far end of the redirect pair.
    redirected: Option<RedirectQueue>,
    /// With several queues, now or later: readable when any queue is.
    several: Option<OwnedFd>,
    frames: Frames,
    counters: LinkCounters,
    gates: Gates,
    // After the rings: fields are dropped in this order.
    memory: Mapping,
}

/// The socket at the far end of the redirect pair.
#[derive(Debug)]
struct RedirectQueue {
    queue: Queue,
    /// The frames that it receives into.
    filled: Vec<u64>,
    counters: LinkCounters,
}

impl XdpLink {
    /// Opens the sockets and loads the XDP program that feeds them. Fails if the kernel refuses a
    /// step, or the interface has more than [`MAX_QUEUES`] queues.
    pub(super) fn open(
        interface: &Interface,
    ) -> Result<(XdpLink, XdpProgram, SpareQueues), LinkError> {
        let name = &interface.name;
        let mut program = XdpProgram::load(interface.mac.0)?;
        let reported = nic::receive_queues(name).map_err(KernelError::from)?;
        let (least, most) = match reported {
            Some(ReceiveQueues::Exactly(count)) => (count, count),
            Some(ReceiveQueues::AtMost(count)) => (1, count),
            None => (1, 1),
        };
        if least > MAX_QUEUES {
            let (name, count) = (name.clone(), least);
            return Err(LinkError::ReceiveQueues { name, count });
        }
        let later = nic::max_receive_queues(name).map_err(KernelError::from)?;
        let later = later.clamp(most.min(MAX_QUEUES), MAX_QUEUES);
        // The UMEM is registered with the first socket, before the number of the other sockets is
        // known.
        let fill =
            most_fill_frames(least, most.min(MAX_QUEUES)) + (later - least) * LEAST_FILL_FRAMES;
        let memory = (SEND_FRAMES + fill + REDIRECT_FRAMES) as usize * FRAME;
        let memory =
            Mapping::anonymous(memory).map_err(system("no memory for the frames of", name))?;
        let (first, transmit, completion) = Queue::first(interface, &memory)?;
        let mut queues = vec![first];
        // Tries one queue more than there are sockets for, to check that it does not exist.
        for number in 1..most.min(MAX_QUEUES + 1) {
            match Queue::another(interface, number, &queues[0]) {
                Ok(_) if number == MAX_QUEUES => return Err(LinkError::Crowded(name.clone())),
                Ok(queue) => queues.push(queue),
                Err(why) if number >= least && why.is_no_queue() => break,
                Err(why) => return Err(why),
            }
        }
        let each = fill_frames(queues.len() as u32);
        let total = SEND_FRAMES + queues.len() as u32 * each;
        let spare = SpareQueues::open(interface, queues.len() as u32, later, &queues[0])?;
        let several = (queues.len() > 1 || spare.count() > 0).then(|| watch(&queues));
        let several = several.transpose();
        let several = several.map_err(system("cannot watch the queues of", name))?;
        let gates = program.gates().map_err(LinkError::from)?;
        let gates = Gates::map(gates).map_err(system("cannot map the gates of", name))?;
        for (number, queue) in queues.iter().enumerate() {
            program.set_socket(number as u32, queue.fd().as_fd())?;
        }
        let mut link = XdpLink {
            transmit,
            completion,
            queues,
            next: 0,
            redirected: None,
            several,
            frames: Frames::new(total, FRAME as u32),
            counters: LinkCounters::default(),
            gates,
            memory,
        };
        link.fill_queues(each);
        Ok((link, program, spare))
    }

    /// Number of frames that can be sent now. Frames to send from and frames to receive into are
    /// separate, so sending takes none from reception.
    #[inline]
    pub(super) fn room(&mut self) -> usize {
        if self.frames.count(Holder::Free) == 0 {
            self.collect();
        }
        let free = self.frames.count(Holder::Free) as usize;
        free.min(self.transmit.room() as usize)
    }

    /// As [`super::Link::send`].
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
                self.transmit.push(XdpDesc {
                    addr: address,
                    len: length as u32,
                    options: XdpDescOptions::empty(),
                });
                (Holder::Sending, Ok(()))
            }
            Err(forbidden) => (Holder::Free, Err(forbidden)),
        };
        self.transfer(address, Holder::Driver, to);
        Some(done)
    }

    /// As [`super::Link::flush`].
    #[inline]
    pub(super) fn flush(&mut self) -> io::Result<Flushed> {
        let unsent = self.transmit.publish();
        self.counters.sent += u64::from(unsent);
        let XdpLink {
            transmit,
            completion,
            queues,
            frames,
            counters,
            ..
        } = self;
        let done = transmit.drain(|| match kick(queues[0].fd().as_fd()) {
            Ok(()) => Ok(false),
            // The budget is used up, or queued packets hold the socket's memory: collect completed
            // frames.
            Err(e) if is_temporary(&e) => Ok(collect(completion, frames, counters)),
            Err(e) => Err(e),
        });
        self.collect();
        done
    }

    /// Reads all queues in turn, so a flooded queue delays the others by one call at most.
    #[inline]
    pub(super) fn receive(
        &mut self,
        most: usize,
        mut each: impl FnMut(&mut [u8], &Offload) -> usize,
    ) -> usize {
        let mut count = 0;
        for _ in 0..self.queues.len() {
            let number = self.next;
            self.next = (number + 1) % self.queues.len();
            count += self.receive_from(number, most - count, &mut each);
            if count >= most {
                break;
            }
        }
        count
    }

    /// As [`super::Link::receive_redirected`].
    #[inline]
    pub(super) fn receive_redirected(&mut self, most: usize, mut each: impl FnMut(&[u8])) -> usize {
        let Some(redirected) = &mut self.redirected else {
            return 0;
        };
        let (frames, memory) = (&mut self.frames, &mut self.memory);
        let (queue, counters) = (&mut redirected.queue, &mut redirected.counters);
        // The pair has no segmentation offload, so a long frame is none of a target.
        receive(
            queue,
            (frames, memory, counters),
            most,
            &mut |frame, offload| {
                let is_whole = offload.merged == Merged::No;
                if is_whole {
                    each(frame);
                }
                usize::from(is_whole)
            },
        )
    }

    /// Receives from the far end of a redirect pair from now on, in place of an earlier one. Fails
    /// if there is no memory for its frames.
    pub(super) fn set_redirected(&mut self, mut queue: Queue) -> io::Result<()> {
        let (filled, counters) = match self.redirected.take() {
            // Its socket is closed here: the frames that the kernel had are the new one's.
            Some(RedirectQueue {
                filled, counters, ..
            }) => {
                for address in &filled {
                    self.transfer(*address, Holder::Filling, Holder::Driver);
                }
                (filled, counters)
            }
            None => {
                let all = (self.frames.total() + REDIRECT_FRAMES) as usize * FRAME;
                if all > self.memory.length {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
                self.frames.extend(REDIRECT_FRAMES);
                let taken = (0..REDIRECT_FRAMES).filter_map(|_| self.frames.take());
                (taken.collect(), LinkCounters::default())
            }
        };
        for address in &filled {
            self.transfer(*address, Holder::Driver, Holder::Filling);
            queue.fill.push(*address);
        }
        queue.fill.publish();
        self.redirected = Some(RedirectQueue {
            queue,
            filled,
            counters,
        });
        Ok(())
    }

    #[inline]
    fn receive_from(
        &mut self,
        number: usize,
        most: usize,
        each: &mut impl FnMut(&mut [u8], &Offload) -> usize,
    ) -> usize {
        let holders = (&mut self.frames, &mut self.memory, &mut self.counters);
        receive(&mut self.queues[number], holders, most, each)
    }

    /// The number of frames that were sent.
    #[inline]
    pub(super) fn sent(&self) -> u64 {
        self.counters.sent
    }

    /// As [`super::Link::counters`].
    pub(super) fn counters(&self) -> LinkCounters {
        let mut counters = self.counters;
        self.queues
            .iter()
            .for_each(|queue| queue.count(&mut counters));
        if let Some(redirected) = &self.redirected {
            let mut of_pair = redirected.counters;
            redirected.queue.count(&mut of_pair);
            counters.redirected_missed = of_pair.missed;
            counters.unexpected += of_pair.unexpected;
        }
        counters
    }

    /// The gates by which the XDP program drops frames of suspended flows.
    pub(super) fn gates(&mut self) -> &mut Gates {
        &mut self.gates
    }

    /// The frames of the packet memory, with their holders.
    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// The numbers of frames by holder, after completed frames were taken back.
    pub(super) fn tally(&mut self) -> Tally {
        self.collect();
        self.frames.tally()
    }

    /// A descriptor that is readable when a queue received a frame.
    pub(super) fn fd(&self) -> &OwnedFd {
        self.several.as_ref().unwrap_or(self.queues[0].fd())
    }

    /// Receives from one more queue, with new frames. Fails if the queue cannot be watched or there
    /// is no memory for its frames, and then drops the queue.
    pub(super) fn add_queue(&mut self, queue: Queue) -> io::Result<()> {
        let all = (self.frames.total() + LEAST_FILL_FRAMES) as usize * FRAME;
        let Some(several) = self.several.as_ref().filter(|_| all <= self.memory.length) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let nothing = epoll::EventData::new_u64(0);
        epoll::add(several, queue.fd(), nothing, epoll::EventFlags::IN)?;
        self.frames.extend(LEAST_FILL_FRAMES);
        self.queues.push(queue);
        self.fill_from(self.queues.len() - 1, LEAST_FILL_FRAMES);
        Ok(())
    }

    /// Gives each queue `each` frames to fill.
    fn fill_queues(&mut self, each: u32) {
        self.fill_from(0, each);
    }

    /// Gives each queue from the number `first` on `each` frames to fill.
    fn fill_from(&mut self, first: usize, each: u32) {
        for queue in &mut self.queues[first..] {
            for _ in 0..each {
                let Some(address) = self.frames.take() else {
                    break;
                };
                queue.fill.push(address);
                let transferred = self
                    .frames
                    .transfer(address, Holder::Driver, Holder::Filling);
                debug_assert!(transferred.is_ok());
            }
            queue.fill.publish();
        }
    }

    /// Frees frames that the kernel has sent.
    #[inline]
    fn collect(&mut self) {
        collect(&mut self.completion, &mut self.frames, &mut self.counters);
    }

    #[inline]
    fn transfer(&mut self, address: u64, from: Holder, to: Holder) {
        if self.frames.transfer(address, from, to).is_err() {
            self.counters.unexpected += 1;
        }
    }
}

/// Takes received frames of a queue, passes them to `each`, and gives them to the kernel again, as
/// [`super::Link::receive`]. A frame in several parts is passed as one.
#[inline]
fn receive(
    queue: &mut Queue,
    (frames, memory, counters): (&mut Frames, &mut Mapping, &mut LinkCounters),
    most: usize,
    each: &mut impl FnMut(&mut [u8], &Offload) -> usize,
) -> usize {
    let (mut count, mut any) = (0, false);
    while count < most
        && let Some(descriptor) = queue.receive.pop()
    {
        any = true;
        let begin = match frames.transfer(descriptor.addr, Holder::Filling, Holder::Driver) {
            Ok(begin) => begin,
            Err(_) => {
                count += 1;
                counters.received += 1;
                counters.unexpected += 1;
                continue;
            }
        };
        let inside = (descriptor.addr - begin) as usize;
        let frame = memory.frame_mut(begin);
        if let Some(bytes) = frame.get_mut(inside..inside + descriptor.len as usize) {
            let is_part = descriptor.options.contains(XdpDescOptions::XDP_PKT_CONTD);
            let handed_over = match is_part || !queue.parts.is_empty() {
                false => Some(each(bytes, &Offload::default())),
                true => queue.add_part(bytes, is_part, each),
            };
            if let Some(handed_over) = handed_over {
                count += handed_over.max(1);
                counters.received += 1;
                counters.missed += u64::from(handed_over == 0);
            }
        }
        queue.fill.push(begin);
        if frames
            .transfer(begin, Holder::Driver, Holder::Filling)
            .is_err()
        {
            counters.unexpected += 1;
        }
    }
    if any {
        queue.receive.release();
        queue.fill.publish();
    }
    count
}

/// Frees frames that the kernel has sent; returns whether there were any.
#[inline]
fn collect(completion: &mut Ring<u64>, frames: &mut Frames, counters: &mut LinkCounters) -> bool {
    let mut any = false;
    while let Some(address) = completion.pop() {
        any = true;
        let transferred = frames.transfer(address, Holder::Sending, Holder::Free);
        counters.unexpected += u64::from(transferred.is_err());
    }
    completion.release();
    any
}

/// An epoll that is readable when any of the queues is.
fn watch(queues: &[Queue]) -> io::Result<OwnedFd> {
    let watched = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for queue in queues {
        let nothing = epoll::EventData::new_u64(0);
        epoll::add(&watched, queue.fd(), nothing, epoll::EventFlags::IN)?;
    }
    Ok(watched)
}

/// How many frames each of `queues` queues gets to fill.
fn fill_frames(queues: u32) -> u32 {
    let each = FILL_FRAMES / queues.max(1);
    (1 << each.max(LEAST_FILL_FRAMES).ilog2()).min(RING_ENTRIES)
}

/// The most frames to fill, over all numbers of queues from `least` to `most`.
fn most_fill_frames(least: u32, most: u32) -> u32 {
    let all = (least..=most).map(|queues| queues * fill_frames(queues));
    all.max().unwrap_or(0)
}

/// Makes the kernel send.
#[inline]
fn kick(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::send(socket, &[], SendFlags::DONTWAIT).map(drop)?)
}

/// Whether the error is temporary.
fn is_temporary(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR)
    )
}

impl Mapping {
    /// The frame that begins at this address.
    #[inline]
    fn frame_mut(&mut self, address: u64) -> &mut [u8] {
        let begin = address as usize;
        assert!(begin.is_multiple_of(FRAME) && begin + FRAME <= self.length);
        // SAFETY: the assertion checks that the frame lies inside; the frame is the driver's by
        // `Frames`, so the kernel does not use it meanwhile; and `self` is borrowed for as long as
        // the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(begin), FRAME) }
    }
}

/// A ring between the driver and the kernel, with one producer and one consumer. Each value is used
/// as one of the two.
#[derive(Debug)]
struct Ring<T> {
    mapping: Mapping,
    offsets: XdpRingOffset,
    /// This side's index. `other` caches the other side's index; it is read again when the ring
    /// seems full or empty.
    own: u32,
    other: u32,
    /// The index that the other side can see.
    published: u32,
    entry: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn map(socket: BorrowedFd<'_>, page: u64, offsets: &XdpRingOffset) -> io::Result<Ring<T>> {
        let length = offsets.desc as usize + RING_ENTRIES as usize * size_of::<T>();
        // SAFETY: a new mapping of the socket, without a fixed address.
        let mapping =
            unsafe { Mapping::shared(length, READ_WRITE, MapFlags::POPULATE, (socket, page))? };
        Ok(Ring {
            mapping,
            offsets: *offsets,
            own: 0,
            other: 0,
            published: 0,
            entry: std::marker::PhantomData,
        })
    }

    #[inline]
    fn index(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel reported this offset of an aligned index inside the mapping.
        unsafe { &*self.mapping.start.as_ptr().add(offset as usize).cast() }
    }

    #[inline]
    fn entry(&self, at: u32) -> *mut T {
        let place = (at & (RING_ENTRIES - 1)) as usize;
        // SAFETY: the mapping has room for RING_ENTRIES entries from `desc` on, by its length.
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

    /// Producer: how many entries are free.
    #[inline]
    fn room(&mut self) -> u32 {
        let used = self.own.wrapping_sub(self.other);
        if used >= RING_ENTRIES {
            self.other = self.index(self.offsets.consumer).load(Ordering::Acquire);
        }
        RING_ENTRIES.saturating_sub(self.own.wrapping_sub(self.other))
    }

    /// Producer: writes an entry; the caller has checked for room.
    #[inline]
    fn push(&mut self, entry: T) {
        // SAFETY: the entry is the producer's until it is published.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
    }

    /// Producer: shows the pushed entries to the other side and returns their number.
    #[inline]
    fn publish(&mut self) -> u32 {
        let new = self.own.wrapping_sub(self.published);
        if new > 0 {
            self.index(self.offsets.producer)
                .store(self.own, Ordering::Release);
            self.published = self.own;
        }
        new
    }

    /// Producer: whether the other side has taken all published entries.
    #[inline]
    fn is_drained(&mut self) -> bool {
        self.other = self.index(self.offsets.consumer).load(Ordering::Acquire);
        self.other == self.published
    }

    /// Producer: calls `kick` until the other side has taken all entries or makes no progress.
    /// `kick` returns whether it made progress elsewhere.
    #[inline]
    fn drain(&mut self, mut kick: impl FnMut() -> io::Result<bool>) -> io::Result<Flushed> {
        let (mut calls, mut idle) = (0, 0);
        while !self.is_drained() {
            if calls == MAX_FLUSH_CALLS || idle == MAX_IDLE_CALLS {
                return Ok(Flushed::Partly);
            }
            let seen = self.other;
            let moved = kick()? | self.has_moved(seen);
            calls += 1;
            idle = if moved { 0 } else { idle + 1 };
        }
        Ok(Flushed::All)
    }

    /// Producer: whether the other side has advanced.
    #[inline]
    fn has_moved(&self, from: u32) -> bool {
        self.index(self.offsets.consumer).load(Ordering::Acquire) != from
    }

    /// Consumer: takes the next entry.
    #[inline]
    fn pop(&mut self) -> Option<T> {
        if self.own == self.other {
            self.other = self.index(self.offsets.producer).load(Ordering::Acquire);
            if self.own == self.other {
                return None;
            }
        }
        // SAFETY: the producer published the entry, and it is the consumer's until it is released.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// Consumer: gives the popped entries back to the other side.
    #[inline]
    fn release(&mut self) {
        if self.own != self.published {
            self.index(self.offsets.consumer)
                .store(self.own, Ordering::Release);
            self.published = self.own;
        }
    }
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
/// Frames to send from.
const SEND_FRAMES: u32 = MAX_IN_FLIGHT as u32;
/// Frames to receive into, over all queues of the start; each queue gets at most a full ring and at
/// least
/// `LEAST_FILL_FRAMES`. Up to 16 MiB, or 32 MiB with the most queues. Where the number of queues is
/// known only as an upper bound, memory is reserved for the worst case. A queue that the interface
/// gets later has `LEAST_FILL_FRAMES`, for which memory is reserved too.
const FILL_FRAMES: u32 = 8192;
const LEAST_FILL_FRAMES: u32 = 256;
/// Frames to receive into from the redirect pair (4 MiB): as many as its ring holds.
const REDIRECT_FRAMES: u32 = RING_ENTRIES;
/// Entries of each ring: no ring is too small for the frames that may be in it.
const RING_ENTRIES: u32 = 2048;
/// Most `sendto` calls of one flush, if each takes the old budget of 32.
const MAX_FLUSH_CALLS: u32 = RING_ENTRIES / 32;
/// Number of calls in a row without progress after which the interface counts as full. A single
/// call would suffice, but kernels before 6.17 send a budget of frames and show progress only when
/// all frames that they had seen are sent. This many calls cover the frames of one iteration.
const MAX_IDLE_CALLS: u32 = 4;

#[cfg(test)]
mod tests;
