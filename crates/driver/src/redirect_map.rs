//! Shares the map of redirects with the eBPF program on egress (`crates/kernel/bpf/redirect.h`):
//! per place, until when the driver takes packets, and what waits. The program counts what has
//! entered the redirect pair, the driver what has left it. Making a map fails with the error of
//! mmap(2). Nothing else fails.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use netnice_core::units::Instant;
use netnice_kernel::enforce::{
    MAX_REDIRECTS, REDIRECT_BUCKETS, REDIRECT_OVERHEAD, Redirect as KernelRedirect,
};
use rustix::mm::{MapFlags, ProtFlags};

use crate::mapping::Mapping;

/// The map of redirects.
#[derive(Debug)]
pub struct RedirectMap {
    places: Mapping,
}

/// Layout of `struct redirect`. The eBPF program writes `refused` and the counts `entered`, the
/// driver all else.
#[repr(C)]
pub(crate) struct SharedRedirect {
    alive_until: AtomicU64,
    refused: AtomicU64,
    all: FlowCount,
    bound: AtomicU32,
    active: AtomicU32,
    flows: [FlowCount; REDIRECT_BUCKETS],
}

/// Layout of `struct redirect_flow`: bytes that entered and left, modulo 2^32.
#[repr(C)]
struct FlowCount {
    entered: AtomicU32,
    left: AtomicU32,
}

const _: () = assert!(size_of::<SharedRedirect>() == size_of::<KernelRedirect>());

impl RedirectMap {
    /// Maps the array of redirects.
    ///
    /// # Errors
    /// If the descriptor cannot be mapped.
    pub fn map(array: BorrowedFd<'_>) -> io::Result<RedirectMap> {
        let length = MAX_REDIRECTS * size_of::<SharedRedirect>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of the array, without a fixed address.
        let places =
            unsafe { Mapping::shared(length, protection, MapFlags::POPULATE, (array, 0))? };
        Ok(RedirectMap { places })
    }

    /// One place; `None` if the array has no such place.
    #[inline]
    pub(crate) fn place(&self, place: usize) -> Option<&SharedRedirect> {
        if place >= MAX_REDIRECTS {
            return None;
        }
        // SAFETY: the mapping begins at a page and has room for MAX_REDIRECTS entries; both sides
        // access them by atomic words only.
        Some(unsafe {
            &*self
                .places
                .start
                .as_ptr()
                .cast::<SharedRedirect>()
                .add(place)
        })
    }
}

impl SharedRedirect {
    /// Begins to take packets until `until`, of which `bound` bytes may wait. What an earlier user
    /// of the place left behind counts as gone.
    pub(crate) fn begin(&self, bound: u32, until: Instant) {
        self.settle();
        self.active.store(0, Ordering::Relaxed);
        self.bound.store(bound, Ordering::Relaxed);
        self.keep_alive(until);
    }

    /// Sets how many bytes may wait.
    pub(crate) fn set_bound(&self, bound: u32) {
        self.bound.store(bound, Ordering::Relaxed);
    }

    /// Takes packets until `until`.
    pub(crate) fn keep_alive(&self, until: Instant) {
        self.alive_until.store(until.0, Ordering::Release);
    }

    /// Counts a packet of this length that has left, or was dropped.
    #[inline]
    pub(crate) fn leave(&self, bucket: usize, length: usize) {
        let length = counted(length);
        self.all.leave(length);
        if let Some(flow) = self.flows.get(bucket) {
            flow.leave(length);
        }
    }

    /// Sets the number of flows with packets that wait.
    #[inline]
    pub(crate) fn set_active(&self, flows: u32) {
        self.active.store(flows, Ordering::Relaxed);
    }

    /// Whether everything that entered has left.
    pub(crate) fn is_settled(&self) -> bool {
        self.all.waiting() == 0
    }

    /// Counts everything that has entered as gone. For a place where nothing waits: what still
    /// counts was lost on the way.
    pub(crate) fn settle(&self) {
        for flow in &self.flows {
            flow.settle();
        }
        self.all.settle();
    }

    /// Number of packets that the eBPF program refused, because too much waited.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl FlowCount {
    #[inline]
    fn leave(&self, length: u32) {
        // No other side writes it.
        let left = self.left.load(Ordering::Relaxed);
        self.left
            .store(left.wrapping_add(length), Ordering::Release);
    }

    fn waiting(&self) -> u32 {
        let left = self.left.load(Ordering::Relaxed);
        self.entered.load(Ordering::Acquire).wrapping_sub(left)
    }

    fn settle(&self) {
        let entered = self.entered.load(Ordering::Acquire);
        self.left.store(entered, Ordering::Release);
    }
}

/// What a packet of this length counts while it waits, in bytes.
#[inline]
fn counted(length: usize) -> u32 {
    u32::try_from(length)
        .unwrap_or(u32::MAX)
        .saturating_add(REDIRECT_OVERHEAD)
}

#[cfg(test)]
impl RedirectMap {
    /// A map of its own, without an eBPF program.
    pub(crate) fn fake() -> RedirectMap {
        let length = MAX_REDIRECTS * size_of::<SharedRedirect>();
        let places = Mapping::anonymous(length).expect("memory");
        RedirectMap { places }
    }

    /// Counts a packet as the eBPF program does.
    pub(crate) fn enter(&self, place: usize, bucket: usize, length: usize) {
        let place = self.place(place).expect("a place");
        let length = counted(length);
        place.all.entered.fetch_add(length, Ordering::AcqRel);
        place.flows[bucket]
            .entered
            .fetch_add(length, Ordering::AcqRel);
    }

    /// The end of the time in which a place takes packets, what waits there in all, and of one
    /// flow; then the bound and the number of active flows.
    pub(crate) fn state(&self, place: usize, bucket: usize) -> (u64, [u32; 4]) {
        let place = self.place(place).expect("a place");
        let words = [
            place.all.waiting(),
            place.flows[bucket].waiting(),
            place.bound.load(Ordering::Relaxed),
            place.active.load(Ordering::Relaxed),
        ];
        (place.alive_until.load(Ordering::Relaxed), words)
    }
}
