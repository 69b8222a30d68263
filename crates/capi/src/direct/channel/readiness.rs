//! Channels between hosts in the event loop of a program in C: a descriptor, and the calls before
//! and after sleeping. They fail if the number is not that of an open channel, or another thread is
//! in a call of it.

use std::os::fd::{AsFd, AsRawFd};

use libc::c_int;

use crate::direct::guarded_int;
use crate::handles;
use crate::handles::channels::OpenChannel;

/// Returns the descriptor of a channel. The library owns it.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_descriptor(channel: c_int) -> c_int {
    guarded_int(|| {
        handles::channel(channel)?.with(|open| {
            Ok(match open {
                OpenChannel::Outgoing { channel, .. } => channel.as_fd().as_raw_fd(),
                OpenChannel::Incoming { channel, .. } => channel.as_fd().as_raw_fd(),
            })
        })
    })
}

/// Prepares for sleeping. Returns 1 if the descriptor will become readable, 0 if something has
/// happened already.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_arm(channel: c_int) -> c_int {
    guarded_int(|| {
        let may_sleep = handles::channel(channel)?.with(|open| {
            Ok(match open {
                OpenChannel::Outgoing { channel, .. } => channel.arm(),
                OpenChannel::Incoming { channel, kept } => channel.arm() && kept.is_none(),
            })
        })?;
        Ok(may_sleep.into())
    })
}

/// To be called after sleeping, and if [`netnice_channel_arm`] has returned 0. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_disarm(channel: c_int) -> c_int {
    guarded_int(|| {
        handles::channel(channel)?.with(|open| {
            match open {
                OpenChannel::Outgoing { channel, .. } => channel.disarm(),
                OpenChannel::Incoming { channel, .. } => channel.disarm(),
            }
            Ok(0)
        })
    })
}
