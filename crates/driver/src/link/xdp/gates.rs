//! The gates of flows, in memory shared with the XDP program. While a flow is suspended, XDP drops
//! its frames.
//!
//! One store of an end time suspends a flow, so the packet thread makes no system call. The
//! suspension ends at that time without a further call. The XDP program counts dropped frames
//! beside the end time. Only the mapping of the table can fail, with the error of the kernel.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use netnice_core::units::Instant;
use netnice_kernel::direct::{DirectGate, MAX_GATES};
use rustix::mm::MapFlags;

use super::READ_WRITE;
use crate::demux::FlowNo;
use crate::mapping::Mapping;

/// The gates of all flows; see the module.
#[derive(Debug)]
pub(in crate::link) struct Gates {
    memory: Mapping,
    /// The last reported value of each counter.
    reported: Vec<u64>,
}

/// Layout of `struct direct_gate`.
#[repr(C)]
struct Gate {
    suspended_until: AtomicU64,
    dropped: AtomicU64,
}

const _: () = assert!(size_of::<Gate>() == size_of::<DirectGate>());

impl Gates {
    /// Maps the table of the gates. Fails with the error of mmap(2).
    pub(super) fn map(table: BorrowedFd<'_>) -> io::Result<Gates> {
        let length = MAX_GATES as usize * size_of::<Gate>();
        // SAFETY: a new mapping of the table, without a fixed address.
        let memory = unsafe { Mapping::shared(length, READ_WRITE, MapFlags::empty(), (table, 0))? };
        Ok(Gates {
            memory,
            reported: Vec::new(),
        })
    }

    /// Suspends a flow until `until`. No effect if its number is [`MAX_GATES`] or more.
    pub(in crate::link) fn suspend(&mut self, flow: FlowNo, until: Instant) {
        if let Some(gate) = self.gate(flow) {
            gate.suspended_until.store(until.0, Ordering::Relaxed);
        }
    }

    /// How many frames of the flow were dropped since the last call; 0 for a flow without a gate.
    pub(in crate::link) fn dropped(&mut self, flow: FlowNo) -> u64 {
        let Some(gate) = self.gate(flow) else {
            return 0;
        };
        let dropped = gate.dropped.load(Ordering::Relaxed);
        let place = flow.0 as usize;
        if self.reported.len() <= place {
            self.reported.resize(place + 1, 0);
        }
        dropped - std::mem::replace(&mut self.reported[place], dropped)
    }

    fn gate(&self, flow: FlowNo) -> Option<&Gate> {
        let place = Some(flow.0).filter(|flow| *flow < MAX_GATES)? as usize;
        // SAFETY: the mapping begins at a page and has room for MAX_GATES gates; both sides access
        // them by atomic words only.
        Some(unsafe { &*self.memory.start.as_ptr().cast::<Gate>().add(place) })
    }
}
