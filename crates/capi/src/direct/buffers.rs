//! The calls that send and receive without a copy: C writes and reads the payload in a buffer of
//! the ring. C holds a buffer from the call that takes it to the call that queues, discards or
//! releases it. Each buffer that C holds has an id; a call with another id fails with EINVAL. A
//! call also fails if the call of `netnice_stack` fails (with EAGAIN if no buffer or datagram is
//! there now), if a pointer is NULL or another argument is invalid, if the flow is not open, or if
//! another thread is in a call of it.

use std::ffi::c_void;

use libc::{c_int, c_longlong, c_uint, sockaddr, socklen_t};
use netnice_stack::{Packet, StackError};

use crate::direct::copying::Received;
use crate::direct::guarded_int;
use crate::error::CallError;
use crate::handles::{self, LentBuffer, OpenSocket};
use crate::{guarded, pointers};

/// `struct netnice_buffer`: the memory for a payload (`length` in bytes), and the id of the buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Buffer {
    pub(super) data: *mut c_void,
    pub(super) length: usize,
    pub(super) id: u64,
}

/// `struct netnice_outcome`: the result of a packet.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Outcome {
    pub(super) number: u64,
    pub(super) stamp: u64,
    pub(super) status: c_uint,
}

/// Takes a free buffer for sending, and stores its description. Returns 0. Fails with EAGAIN if no
/// buffer is free.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_packet(flow: c_int, buffer: *mut Buffer) -> c_int {
    guarded_int(|| {
        let out = BufferOut::new(buffer)?;
        handles::flow(flow)?.with(|open| {
            let packet = open.socket.packet()?;
            let payload = open.socket.payload_mut(&packet)?;
            let (data, length) = (payload.as_mut_ptr().cast(), payload.len());
            let id = open.lend(LentBuffer::Packet(packet));
            out.fill(Buffer { data, length, id })
        })
    })
}

/// Queues the first `length` bytes of a buffer to be sent. Returns the number of the packet. On
/// failure C still holds the buffer.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_queue(
    flow: c_int,
    buffer: *const Buffer,
    length: usize,
    flags: c_uint,
) -> c_longlong {
    guarded(|| {
        if flags & !GOES_ON != 0 {
            return Err(CallError::Invalid);
        }
        queue_buffer(flow, buffer, |open, packet| match flags & GOES_ON {
            0 => open.socket.queue(packet, length),
            _ => open.socket.queue_continuation(packet, length),
        })
    })
}

/// Queues the first `length` bytes of a buffer to be sent to the address `to`, on a flow to any
/// host. Returns the number of the packet. On failure C still holds the buffer.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_queue_to(
    flow: c_int,
    buffer: *const Buffer,
    length: usize,
    to: *const sockaddr,
    to_length: socklen_t,
) -> c_longlong {
    guarded(|| {
        let to = pointers::destination(to, to_length)?
            .ok_or(CallError::Null("the destination address"))?;
        queue_buffer(flow, buffer, |open, packet| {
            open.socket.queue_to(packet, length, to)
        })
    })
}

/// Queues a buffer. Fails if C does not hold it, if the flow is not open, if another thread is in a
/// call of the flow, or if the stack refuses the packet. A buffer that C held stays held then.
fn queue_buffer(
    flow: c_int,
    buffer: *const Buffer,
    queue: impl FnOnce(&mut OpenSocket, Packet) -> Result<u64, (Packet, StackError)>,
) -> Result<i64, CallError> {
    let id = pointers::read(buffer, "the buffer")?.id;
    handles::flow(flow)?.with(|open| {
        let packet = open.take_packet(id)?;
        match queue(open, packet) {
            // No flow reaches 2^63 packets.
            Ok(number) => Ok(number as i64),
            Err((packet, error)) => {
                open.lend_again(id, packet);
                Err(error.into())
            }
        }
    })
}

/// Frees a buffer for sending without sending it. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_discard(flow: c_int, buffer: *const Buffer) -> c_int {
    guarded_int(|| {
        let id = pointers::read(buffer, "the buffer")?.id;
        handles::flow(flow)?.with(|open| {
            let packet = open.take_packet(id)?;
            open.socket.discard(packet);
            Ok(0)
        })
    })
}

/// Stores the description of the next datagram's buffer, and of the datagram unless `received` is
/// NULL. Returns 0. Fails with EAGAIN if no datagram has arrived.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_receive(
    flow: c_int,
    buffer: *mut Buffer,
    received: *mut Received,
) -> c_int {
    guarded_int(|| {
        let out = BufferOut::new(buffer)?;
        handles::flow(flow)?.with(|open| {
            let datagram = open.socket.receive()?;
            let payload = open.socket.payload(&datagram)?;
            let (data, length) = (payload.as_ptr().cast_mut().cast(), payload.len());
            if !received.is_null() {
                let all = Received::of(&open.socket, &datagram, length, length)?;
                pointers::write(received, all, "the description of the datagram")?;
            }
            let id = open.lend(LentBuffer::Datagram(datagram));
            out.fill(Buffer { data, length, id })
        })
    })
}

/// Primes the buffer of a received datagram again. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_release(flow: c_int, buffer: *const Buffer) -> c_int {
    guarded_int(|| {
        let id = pointers::read(buffer, "the buffer")?.id;
        handles::flow(flow)?.with(|open| {
            let datagram = open.take_datagram(id)?;
            open.socket.release(datagram)?;
            Ok(0)
        })
    })
}

/// Publishes the queued packets and the released buffers to the driver. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_flush(flow: c_int) -> c_int {
    guarded_int(|| {
        handles::flow(flow)?.with(|open| {
            open.socket.flush();
            Ok(0)
        })
    })
}

/// Stores the result of the next packet that the driver has returned. Returns 1, or 0 if there is
/// none.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_outcome(flow: c_int, outcome: *mut Outcome) -> c_int {
    guarded_int(|| {
        if outcome.is_null() {
            return Err(CallError::Null("the outcome"));
        }
        let next = handles::flow(flow)?.with(|open| Ok(open.socket.outcome()?))?;
        let Some(next) = next else {
            return Ok(0);
        };
        let result = Outcome {
            number: next.number,
            stamp: next.stamp,
            status: next.status.0,
        };
        pointers::write(outcome, result, "the outcome")?;
        Ok(1)
    })
}

/// The caller's memory for the description of a buffer. [`BufferOut::new`] checks it for NULL,
/// before a buffer is taken.
struct BufferOut(*mut Buffer);

impl BufferOut {
    fn new(buffer: *mut Buffer) -> Result<BufferOut, CallError> {
        match buffer.is_null() {
            true => Err(CallError::Null("the buffer")),
            false => Ok(BufferOut(buffer)),
        }
    }

    fn fill(self, buffer: Buffer) -> Result<c_int, CallError> {
        pointers::write(self.0, buffer, "the buffer")?;
        Ok(0)
    }
}

// As in the header.
const GOES_ON: c_uint = 1;
