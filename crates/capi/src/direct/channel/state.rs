//! What a channel between hosts has and did, for C: its hosts with their bounds, its counters, and
//! why it has ended. The calls fail if the number is not that of an open channel or service, if
//! another thread is in a call of it, or if a pointer is NULL.

use libc::{c_char, c_int, c_uint, c_ulonglong};
use netnice_channel::network::Hop;
use netnice_stack::monotonic_ns;

use crate::direct::guarded_int;
use crate::error::CallError;
use crate::handles::channels::OpenChannel;
use crate::{handles, pointers};

/// `struct netnice_hop`: a host of a channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HopInfo {
    pub(in crate::direct) bound: c_ulonglong,
    pub(in crate::direct) host: [c_char; 256],
}

/// `struct netnice_channel_info`: the state and the counters of a channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ChannelInfo {
    pub(in crate::direct) receives: c_int,
    pub(in crate::direct) has_ended: c_int,
    pub(in crate::direct) hosts: c_uint,
    pub(in crate::direct) id: [c_char; 33],
    pub(in crate::direct) why: [c_char; 227],
    pub(in crate::direct) retry_after: c_ulonglong,
    pub(in crate::direct) messages: c_ulonglong,
    pub(in crate::direct) packets: c_ulonglong,
    pub(in crate::direct) dropped: c_ulonglong,
    pub(in crate::direct) left: c_ulonglong,
    pub(in crate::direct) late: c_ulonglong,
    pub(in crate::direct) unsent: c_ulonglong,
    pub(in crate::direct) incomplete: c_ulonglong,
    pub(in crate::direct) overflowed: c_ulonglong,
    pub(in crate::direct) corrupted: c_ulonglong,
    pub(in crate::direct) malformed: c_ulonglong,
    pub(in crate::direct) duplicates: c_ulonglong,
    pub(in crate::direct) too_late: c_ulonglong,
}

/// Stores the hosts of a channel with their bounds, the source first, at most `room`. Returns their
/// number.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_hops(channel: c_int, hops: *mut HopInfo, room: c_int) -> c_int {
    guarded_int(|| {
        let room = pointers::length(room)?;
        if hops.is_null() && room > 0 {
            return Err(CallError::Null("the array of hops"));
        }
        handles::channel(channel)?.with(|open| {
            let known = hops_of(open);
            for (index, hop) in known.iter().take(room).enumerate() {
                let stored = HopInfo {
                    bound: hop.bound.0,
                    host: pointers::fixed_text(&hop.host),
                };
                pointers::write(hops.wrapping_add(index), stored, "the array of hops")?;
            }
            // A channel has a few hosts.
            Ok(known.len() as c_int)
        })
    })
}

/// Stores the state and the counters of a channel. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_info(channel: c_int, info: *mut ChannelInfo) -> c_int {
    guarded_int(|| {
        let now = handles::channel(channel)?.with(|open| Ok(ChannelInfo::of(open)))?;
        pointers::write(info, now, "the information")?;
        Ok(0)
    })
}

/// Stores the name of this host, by which sources ask for the service: truncated to `room` - 1
/// bytes, and terminated by a 0. Returns its length.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_host(service: c_int, host: *mut c_char, room: usize) -> c_int {
    guarded_int(|| {
        let place = pointers::bytes_mut(host.cast(), room)?;
        handles::service(service)?.with(|open| {
            let name = open.host().as_bytes();
            if let Some(last) = room.checked_sub(1) {
                let count = name.len().min(last);
                place[..count].copy_from_slice(&name[..count]);
                place[count] = 0;
            }
            // A name of a host has at most 253 bytes.
            Ok(name.len() as c_int)
        })
    })
}

fn hops_of(open: &OpenChannel) -> &[Hop] {
    match open {
        OpenChannel::Outgoing { channel, .. } => channel.hops(),
        OpenChannel::Incoming { channel, .. } => channel.hops(),
    }
}

impl ChannelInfo {
    fn of(open: &OpenChannel) -> ChannelInfo {
        let (id, end) = match open {
            OpenChannel::Outgoing { channel, .. } => (channel.id(), channel.end_reason()),
            OpenChannel::Incoming { channel, .. } => (channel.id(), channel.end_reason()),
        };
        let known = ChannelInfo {
            receives: matches!(open, OpenChannel::Incoming { .. }).into(),
            has_ended: end.is_some().into(),
            // A channel has a few hosts.
            hosts: hops_of(open).len() as c_uint,
            id: pointers::fixed_text(&id.to_string()),
            why: pointers::fixed_text(&end.unwrap_or_default()),
            ..ChannelInfo::empty()
        };
        match open {
            OpenChannel::Outgoing { channel, .. } => {
                let counts = channel.counts();
                ChannelInfo {
                    // At least 1: a message was held back.
                    retry_after: channel
                        .retry_at()
                        .map_or(0, |at| at.saturating_sub(monotonic_ns()).max(1)),
                    messages: counts.accepted,
                    packets: counts.packets,
                    dropped: counts.dropped,
                    left: counts.left,
                    late: counts.late,
                    unsent: counts.unsent,
                    ..known
                }
            }
            OpenChannel::Incoming { channel, .. } => {
                let counts = channel.counts();
                ChannelInfo {
                    messages: counts.messages,
                    packets: counts.packets,
                    dropped: counts.dropped,
                    incomplete: counts.incomplete,
                    overflowed: counts.overflowed,
                    corrupted: counts.corrupted,
                    malformed: counts.malformed,
                    duplicates: counts.duplicates,
                    too_late: counts.too_late,
                    ..known
                }
            }
        }
    }

    fn empty() -> ChannelInfo {
        ChannelInfo {
            receives: 0,
            has_ended: 0,
            hosts: 0,
            id: [0; 33],
            why: [0; 227],
            retry_after: 0,
            messages: 0,
            packets: 0,
            dropped: 0,
            left: 0,
            late: 0,
            unsent: 0,
            incomplete: 0,
            overflowed: 0,
            corrupted: 0,
            malformed: 0,
            duplicates: 0,
            too_late: 0,
        }
    }
}
