//! The gates of flows: memory that is shared with the XDP program, which drops frames of a flow while it is shut.
//!
//! To shut one is a store, and it opens by itself when its time has come; so the packet thread makes no call, and nothing stays shut
//! when it is gone. The program counts what it drops beside it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use netnice_core::units::Instant;
use netnice_kernel::direct::{DirectGate, MAX_GATES};

use super::Mapping;
use crate::demux::FlowNo;

/// See the module.
#[derive(Debug)]
pub(in crate::link) struct Gates {
    memory: Mapping,
    /// What was told of each counter.
    told: Vec<u64>,
}

/// As `struct direct_gate`.
#[repr(C)]
struct Gate {
    shut_until: AtomicU64,
    dropped: AtomicU64,
}

const _: () = assert!(size_of::<Gate>() == size_of::<DirectGate>());

impl Gates {
    pub(super) fn map(table: BorrowedFd<'_>) -> io::Result<Gates> {
        let length = MAX_GATES as usize * size_of::<Gate>();
        // SAFETY: a new mapping of the table, at no particular place.
        let memory = unsafe { Mapping::new(length, libc::MAP_SHARED, table.as_raw_fd(), 0)? };
        Ok(Gates {
            memory,
            told: Vec::new(),
        })
    }

    /// Shuts a flow until then.
    pub(in crate::link) fn shut(&mut self, flow: FlowNo, until: Instant) {
        if let Some(gate) = self.gate(flow) {
            gate.shut_until.store(until.0, Ordering::Relaxed);
        }
    }

    /// How many frames of it were dropped since the last time.
    pub(in crate::link) fn dropped(&mut self, flow: FlowNo) -> u64 {
        let Some(gate) = self.gate(flow) else {
            return 0;
        };
        let dropped = gate.dropped.load(Ordering::Relaxed);
        let place = flow.0 as usize;
        if self.told.len() <= place {
            self.told.resize(place + 1, 0);
        }
        dropped - std::mem::replace(&mut self.told[place], dropped)
    }

    fn gate(&self, flow: FlowNo) -> Option<&Gate> {
        let place = Some(flow.0).filter(|flow| *flow < MAX_GATES)? as usize;
        // SAFETY: the mapping begins at a page and has room for MAX_GATES of them; both sides use them by atomic words alone.
        Some(unsafe { &*self.memory.start.as_ptr().cast::<Gate>().add(place) })
    }
}
