//! The direct path for C: the calls of [`netnice_stack`] with plain numbers and structures.
//!
//! Programs and flows are numbers ([`crate::handles`]). The structures are those of the headers in
//! `include/`; a test compares their layout with the layout here. Each call does what the
//! corresponding call of [`netnice_stack`] does; `netnice_poll` and `netnice_notification` name
//! flows by these numbers too. On failure each call returns -1 and sets errno ([`CallError`]). A
//! call fails if the call of [`netnice_stack`] fails, if an argument is invalid, if a handle is not
//! that of an open program or flow, if another thread is in a call of the same flow, or if no
//! handle is free. Streams and listeners of TCP have handles too, and any number of threads may use
//! one. Channels between hosts ([`channel`]) have handles as well. A timeout is a number of
//! milliseconds; -1 is without a limit.

mod buffers;
mod channel;
mod copying;
mod messages;
mod protocol;
mod tcp;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use libc::{
    c_char, c_int, c_longlong, c_uint, c_ulonglong, sockaddr, sockaddr_storage, socklen_t, ssize_t,
};
use netnice_api::RuntimeDir;
use netnice_ring::driver::Loss;
use netnice_stack::udp::{Buffers, Checks, Remote, UdpOptions};
use netnice_stack::{Address, FlowNotification, Program, Socket, StackError};

use crate::error::{CallError, report_errno};
use crate::handles::{self, FlowHandle, ProgramHandle};
use crate::{guarded, pointers, runtime_dir};

/// `struct netnice_udp`: the parameters of a UDP flow.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Udp {
    local: *const sockaddr,
    remote: *const sockaddr,
    local_length: socklen_t,
    remote_length: socklen_t,
    contract: *const c_char,
    buffer_bytes: c_uint,
    sending: c_uint,
    receiving: c_uint,
    hops: c_uint,
    flags: c_uint,
}

/// `struct netnice_notification`: a notification from the daemon.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Notification {
    kind: c_int,
    flow: c_int,
    up: c_int,
    mtu: c_uint,
    error: c_int,
    mac: [u8; 6],
    why: [c_char; 230],
}

/// `struct netnice_flow_info`: the addresses, the counters and the contract of a flow.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FlowInfo {
    local: sockaddr_storage,
    remote: sockaddr_storage,
    longest: usize,
    under_way: c_ulonglong,
    no_buffer: c_ulonglong,
    over_share: c_ulonglong,
    too_long: c_ulonglong,
    dropped: c_ulonglong,
    id: c_uint,
    contract: [c_char; 212],
}

/// Attaches the program to a link, for at most `flows` open flows with `bytes` bytes of memory.
/// NULL stands for the only managed interface. Returns the number of the program.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_attach(iface: *const c_char, flows: c_uint, bytes: c_ulonglong) -> c_int {
    guarded_int(|| {
        let iface = pointers::text(iface)?;
        attach(&runtime_dir(), iface.as_deref(), flows, bytes)
    })
}

/// Attaches the program through the daemon of a runtime folder. Returns the number of the program.
/// Fails if [`Program::attach`] fails, and with ENFILE if no handle is free.
pub(crate) fn attach(
    dir: &RuntimeDir,
    iface: Option<&str>,
    flows: u32,
    bytes: u64,
) -> Result<c_int, CallError> {
    let program = Program::attach(dir, iface, flows, bytes)?;
    handles::add_program(Arc::new(ProgramHandle::new(program)))
}

/// Closes all flows, streams and listeners of a program and detaches it. Returns 0. Fails with
/// EBUSY, and closes nothing, if another thread is in a call of one of the flows.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_detach(program: c_int) -> c_int {
    guarded_int(|| {
        let handle = handles::program(program)?;
        let numbers: Vec<c_int> = {
            let flows = handle.flows();
            flows.by_slot.values().map(|(number, _)| *number).collect()
        };
        let flows: Vec<(c_int, Arc<FlowHandle>)> = numbers
            .into_iter()
            .filter_map(|number| Some((number, handles::flow(number).ok()?)))
            .collect();
        // All or nothing: if a thread is in a call of a flow, nothing is closed.
        let mut locked = Vec::with_capacity(flows.len());
        for (_, flow) in &flows {
            locked.push(flow.lock()?);
        }
        handles::remove(program);
        for ((number, _), mut open) in flows.iter().zip(locked) {
            handles::remove(*number);
            drop(open.take());
        }
        let connections = std::mem::take(&mut *handle.connections());
        connections.into_iter().for_each(handles::remove);
        Ok(0)
    })
}

/// Returns the descriptor that a program polls in its own event loop. The library owns it.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_descriptor(program: c_int) -> c_int {
    guarded_int(|| Ok(handles::program(program)?.program.as_fd().as_raw_fd()))
}

/// Prepares for sleeping. Returns 1 if the descriptor will become readable when packets or a
/// notification come, 0 if they have come already.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_arm(program: c_int) -> c_int {
    guarded_int(|| {
        let handle = handles::program(program)?;
        let may_sleep = handle.flows().ready.is_empty() && handle.program.arm();
        Ok(may_sleep.into())
    })
}

/// To be called after sleeping. Stores the numbers of the flows for which packets or a notification
/// have come, at most `room`, and returns how many it stored. The next call stores the others.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_poll(program: c_int, flows: *mut c_int, room: c_int) -> c_int {
    guarded_int(|| {
        let room = pointers::length(room)?;
        if flows.is_null() && room > 0 {
            return Err(CallError::Null("the array of flows"));
        }
        let handle = handles::program(program)?;
        let mut slots = Vec::new();
        handle.program.poll(|slot| slots.push(slot));
        let mut program_flows = handle.flows();
        slots
            .into_iter()
            .for_each(|slot| program_flows.mark_ready(slot));
        let count = room.min(program_flows.ready.len());
        for (index, number) in program_flows.ready.drain(..count).enumerate() {
            pointers::write(flows.wrapping_add(index), number, "the array of flows")?;
        }
        // At most `room`, which is an int.
        Ok(count as c_int)
    })
}

/// Stores the oldest notification from the daemon. Returns 1, or 0 if there is none.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_notification(program: c_int, notification: *mut Notification) -> c_int {
    guarded_int(|| {
        if notification.is_null() {
            return Err(CallError::Null("the notification"));
        }
        let handle = handles::program(program)?;
        let Some(next) = handle.program.next_notification() else {
            return Ok(0);
        };
        let flow = |id| handle.flows().handle_of(id).unwrap_or(-1);
        let next = notification_to_c(&next, flow);
        pointers::write(notification, next, "the notification")?;
        Ok(1)
    })
}

/// A notification in the form for C.
fn notification_to_c(notification: &FlowNotification, flow: impl Fn(u32) -> c_int) -> Notification {
    let none = Notification {
        kind: 0,
        flow: -1,
        up: 0,
        mtu: 0,
        error: 0,
        mac: [0; 6],
        why: [0; 230],
    };
    match notification {
        FlowNotification::Link { up } => Notification {
            kind: 1,
            up: (*up).into(),
            ..none
        },
        FlowNotification::Mtu { flow: id, mtu } => Notification {
            kind: 2,
            flow: flow(*id),
            mtu: *mtu,
            ..none
        },
        FlowNotification::NextHop { flow: id, mac } => Notification {
            kind: 3,
            flow: flow(*id),
            up: mac.is_some().into(),
            mac: mac.unwrap_or_default(),
            ..none
        },
        FlowNotification::Degraded { flow: id, why } => Notification {
            kind: 4,
            flow: flow(*id),
            why: pointers::fixed_text(why),
            ..none
        },
        FlowNotification::Closed { flow: id, why } => Notification {
            kind: 5,
            flow: flow(*id),
            why: pointers::fixed_text(why),
            ..none
        },
        FlowNotification::Undelivered { flow: id, report } => Notification {
            kind: 7,
            flow: flow(*id),
            mtu: report.mtu.unwrap_or_default(),
            error: report_errno(report.why),
            why: pointers::fixed_text(&StackError::Undelivered(*report).to_string()),
            ..none
        },
        FlowNotification::Moving { flow: id, to } => Notification {
            kind: 8,
            flow: flow(*id),
            why: pointers::fixed_text(to),
            ..none
        },
        FlowNotification::Ended { why } => Notification {
            kind: 6,
            why: pointers::fixed_text(why),
            ..none
        },
    }
}

/// Returns the number of bytes of the program's memory that a flow with these parameters uses.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_buffer_bytes(udp: *const Udp) -> c_longlong {
    guarded(|| {
        let udp = pointers::read(udp, "the flow's description")?;
        let bytes = udp.buffers()?.region_bytes().map_err(StackError::from)?;
        // At most 65,536 buffers of 65,536 bytes.
        Ok(bytes as c_longlong)
    })
}

/// Opens a UDP flow. Returns the number of the flow.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_open_udp(program: c_int, udp: *const Udp) -> c_int {
    guarded_int(|| {
        let handle = handles::program(program)?;
        let options = pointers::read(udp, "the flow's description")?.options()?;
        let socket = handle.program.open_udp(&options)?;
        add_socket(&handle, socket)
    })
}

/// Gives a new flow a number. Fails with ENFILE if no handle is free.
fn add_socket(handle: &Arc<ProgramHandle>, socket: Socket) -> Result<c_int, CallError> {
    let (slot, id) = (socket.slot(), socket.id());
    let flow = Arc::new(FlowHandle::new(handle.clone(), socket));
    let number = handles::add_flow(flow)?;
    let mut flows = handle.flows();
    flows.by_slot.insert(slot, (number, id));
    // A packet may have arrived before the flow had a number.
    flows.mark_ready(slot);
    Ok(number)
}

/// Closes a flow. Returns 0. Fails with EBUSY if another thread is in a call of the flow.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_close(flow: c_int) -> c_int {
    guarded_int(|| {
        let handle = handles::flow(flow)?;
        let open = handle.lock()?.take();
        handles::remove(flow);
        let mut flows = handle.owner.flows();
        flows.by_slot.remove(&handle.slot);
        flows.ready.retain(|number| *number != flow);
        drop(flows);
        drop(open);
        Ok(0)
    })
}

/// Requests another contract for a flow. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_change(flow: c_int, contract: *const c_char) -> c_int {
    guarded_int(|| {
        let contract = pointers::text(contract)?.ok_or(CallError::Null("the contract"))?;
        handles::flow(flow)?.with(|open| Ok(open.socket.change(&contract)?))?;
        Ok(0)
    })
}

/// Stores the addresses, the counters and the contract of a flow. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_info(flow: c_int, info: *mut FlowInfo) -> c_int {
    guarded_int(|| {
        let now = handles::flow(flow)?.with(|open| {
            let socket = &open.socket;
            let dropped = socket.dropped();
            Ok(FlowInfo {
                local: pointers::storage(local_address(socket)),
                remote: pointers::storage(socket.remote().map(Address::Ip)),
                longest: socket.longest(),
                under_way: socket.under_way(),
                no_buffer: socket.lost(Loss::NoBuffer),
                over_share: socket.lost(Loss::OverBudget),
                too_long: socket.lost(Loss::TooLong),
                dropped: dropped.short + dropped.foreign + dropped.fragment + dropped.checksum,
                id: socket.id().unwrap_or_default(),
                contract: pointers::fixed_text(socket.contract()),
            })
        })?;
        pointers::write(info, now, "the information")?;
        Ok(0)
    })
}

/// The local address of a flow: that of the link for an EtherType.
fn local_address(socket: &Socket) -> Option<Address> {
    Some(match socket.ether_type() {
        Some(_) => Address::Ethernet(socket.local_mac()),
        None => Address::Ip(socket.local()),
    })
}

/// Returns the errno of the latest report that a packet of the flow was not delivered, and forgets
/// the report; 0 if there is no new one.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_error(flow: c_int) -> c_int {
    guarded_int(|| {
        let report = handles::flow(flow)?.with(|open| Ok(open.socket.take_error()))?;
        Ok(report.map_or(0, |report| report_errno(report.why)))
    })
}

impl Udp {
    fn buffers(&self) -> Result<Buffers, CallError> {
        if self.flags & !(GROUP | SEND_ONLY | VERIFY | TRUST | IN_ORDER | ERRORS) != 0 {
            return Err(CallError::Invalid);
        }
        buffers(
            self.buffer_bytes,
            (self.sending, self.receiving),
            self.flags,
        )
    }

    fn options(&self) -> Result<UdpOptions, CallError> {
        let local = pointers::address(self.local, self.local_length)?;
        let remote = pointers::address(self.remote, self.remote_length)?;
        let default = match (local, remote) {
            (_, Some(remote)) => UdpOptions::to(remote),
            (Some(local), None) => UdpOptions::at(local),
            (None, None) => return Err(CallError::Null("at least one of local and remote")),
        };
        let remote = match (self.flags & GROUP, remote) {
            (0, Some(remote)) => Remote::One(remote),
            (0, None) => Remote::Any,
            (_, Some(group)) => Remote::Group(group),
            (_, None) => return Err(CallError::Null("the group")),
        };
        Ok(UdpOptions {
            local: local.unwrap_or(default.local),
            remote,
            contract: pointers::text(self.contract)?,
            buffers: self.buffers()?,
            checks: match self.flags & (VERIFY | TRUST) {
                0 => Checks::Partial,
                VERIFY => Checks::Verify,
                TRUST => Checks::Trust,
                _ => return Err(CallError::Invalid),
            },
            hops: match self.hops {
                // Packets to a group stay on the link unless the caller sets a hop limit.
                0 if matches!(remote, Remote::Group(_)) => 1,
                0 => default.hops,
                hops => u8::try_from(hops).map_err(|_| CallError::Invalid)?,
            },
            in_order: self.flags & IN_ORDER != 0,
            errors: self.flags & ERRORS != 0,
            hold: None,
        })
    }
}

/// The buffers of a flow: their size, and the numbers for sending and receiving; 0 is the default.
/// Fails if the flow does not receive and has buffers for receiving.
fn buffers(
    bytes: c_uint,
    (sending, receiving): (c_uint, c_uint),
    flags: c_uint,
) -> Result<Buffers, CallError> {
    let or = |value: c_uint, default: u32| if value == 0 { default } else { value };
    let default = Buffers::default();
    Ok(Buffers {
        bytes: or(bytes, default.bytes),
        sending: or(sending, default.sending),
        receiving: match flags & SEND_ONLY {
            0 => or(receiving, default.receiving),
            _ if receiving == 0 => 0,
            _ => return Err(CallError::Invalid),
        },
    })
}

/// [`guarded`] for calls that return an int.
fn guarded_int(work: impl FnOnce() -> Result<c_int, CallError>) -> c_int {
    // `work` returned an int, so it fits.
    guarded(|| work().map(i64::from)) as c_int
}

/// [`guarded`] for calls that return a number of bytes.
fn guarded_size(work: impl FnOnce() -> Result<usize, CallError>) -> ssize_t {
    // No object has more bytes than fit.
    guarded(|| work().map(|bytes| bytes as i64)) as ssize_t
}

/// The duration of a timeout in milliseconds; `None`, for -1, is without a limit.
fn duration(timeout: c_int) -> Result<Option<Duration>, CallError> {
    match timeout {
        -1 => Ok(None),
        0.. => Ok(Some(Duration::from_millis(timeout.unsigned_abs().into()))),
        _ => Err(CallError::Invalid),
    }
}

// As in the header.
const GROUP: c_uint = 1;
const SEND_ONLY: c_uint = 2;
const VERIFY: c_uint = 4;
const TRUST: c_uint = 8;
const IN_ORDER: c_uint = 16;
const ERRORS: c_uint = 32;

#[cfg(test)]
mod tests;
