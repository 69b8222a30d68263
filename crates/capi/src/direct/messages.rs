//! The calls about messages of a real-time channel: the numbers of messages
//! (`netnice_flow_messages`), and the arrival of the next message (`netnice_flow_arrival`). They
//! fail if the flow is not open, if another thread is in a call of it, or if a pointer is NULL.

use std::time::Instant;

use libc::{c_int, c_ulonglong};

use crate::direct::guarded_int;
use crate::{handles, pointers};

/// `struct netnice_messages`: the numbers of messages of a real-time channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Messages {
    pub(super) queued: c_ulonglong,
    pub(super) waiting: c_ulonglong,
    pub(super) held_back: c_ulonglong,
    pub(super) dropped: c_ulonglong,
    pub(super) retry_after: c_ulonglong,
}

/// Stores the numbers of messages of a flow with a `channel` contract, and in how many nanoseconds
/// a message that was held back can be queued. Returns 0.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_messages(flow: c_int, messages: *mut Messages) -> c_int {
    guarded_int(|| {
        let stored = handles::flow(flow)?.with(|open| {
            let counts = open.socket.messages();
            let left = open.socket.retry_at().map_or(0, |at| {
                // At least 1: a message was held back.
                let left = at.saturating_duration_since(Instant::now()).as_nanos();
                u64::try_from(left).unwrap_or(u64::MAX).max(1)
            });
            Ok(Messages {
                queued: counts.queued,
                waiting: counts.waiting,
                held_back: counts.held_back,
                dropped: counts.dropped,
                retry_after: left,
            })
        })?;
        pointers::write(messages, stored, "the numbers of messages")?;
        Ok(0)
    })
}

/// Sets when the message that is queued next arrived, in ns of CLOCK_MONOTONIC; 0: when it is
/// queued. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_arrival(flow: c_int, arrival: c_ulonglong) -> c_int {
    guarded_int(|| {
        handles::flow(flow)?.with(|open| {
            open.socket.set_arrival(Some(arrival).filter(|at| *at > 0));
            Ok(0)
        })
    })
}
