//! Sending and receiving without a copy, in buffers that C holds for a time.

use std::ffi::c_void;

use libc::{c_int, c_longlong, c_uint, sockaddr, socklen_t};
use netnice_stack::{Packet, StackError};

use crate::direct::moving::Received;
use crate::direct::number;
use crate::fault::Fault;
use crate::handles::{self, Held, Out};
use crate::{guarded, pointers};

/// `struct netnice_buffer`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Buffer {
    pub(super) data: *mut c_void,
    pub(super) length: usize,
    pub(super) id: u64,
}

/// `struct netnice_outcome`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Outcome {
    pub(super) number: u64,
    pub(super) stamp: u64,
    pub(super) status: c_uint,
}

/// Takes a free buffer for sending.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_packet(flow: c_int, buffer: *mut Buffer) -> c_int {
    number(|| {
        let place = Place::new(buffer)?;
        handles::flow(flow)?.with(|held| {
            let packet = held.socket.packet()?;
            let room = held.socket.payload_mut(&packet)?;
            let (data, length) = (room.as_mut_ptr().cast(), room.len());
            let id = held.give(Out::Packet(packet));
            place.fill(Buffer { data, length, id })
        })
    })
}

/// Queues a buffer to be sent.
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
            return Err(Fault::Invalid);
        }
        queue(flow, buffer, |held, packet| match flags & GOES_ON {
            0 => held.socket.queue(packet, length),
            _ => held.socket.queue_continuation(packet, length),
        })
    })
}

/// Queues a buffer to be sent, on a flow to any host.
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
        let to = pointers::address(to, to_length)?.ok_or(Fault::Null("the other end"))?;
        queue(flow, buffer, |held, packet| {
            held.socket.queue_to(packet, length, to)
        })
    })
}

/// Queues a buffer. If it fails, C still holds the buffer.
fn queue(
    flow: c_int,
    buffer: *const Buffer,
    give: impl FnOnce(&mut Held, Packet) -> Result<u64, (Packet, StackError)>,
) -> Result<i64, Fault> {
    let id = pointers::read(buffer, "the buffer")?.id;
    handles::flow(flow)?.with(|held| {
        let packet = held.take_packet(id)?;
        match give(held, packet) {
            // No flow reaches 2^63 packets.
            Ok(number) => Ok(number as i64),
            Err((packet, error)) => {
                held.return_packet(id, packet);
                Err(error.into())
            }
        }
    })
}

/// Frees a buffer without sending it.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_discard(flow: c_int, buffer: *const Buffer) -> c_int {
    number(|| {
        let id = pointers::read(buffer, "the buffer")?.id;
        handles::flow(flow)?.with(|held| {
            let packet = held.take_packet(id)?;
            held.socket.discard(packet);
            Ok(0)
        })
    })
}

/// The next datagram, in its buffer.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_receive(
    flow: c_int,
    buffer: *mut Buffer,
    received: *mut Received,
) -> c_int {
    number(|| {
        let place = Place::new(buffer)?;
        handles::flow(flow)?.with(|held| {
            let datagram = held.socket.receive()?;
            let payload = held.socket.payload(&datagram)?;
            let (data, length) = (payload.as_ptr().cast_mut().cast(), payload.len());
            if !received.is_null() {
                let all = Received::of(&datagram, length, length);
                pointers::write(received, all, "what was received")?;
            }
            let id = held.give(Out::Datagram(datagram));
            place.fill(Buffer { data, length, id })
        })
    })
}

/// Primes the buffer of a datagram again.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_release(flow: c_int, buffer: *const Buffer) -> c_int {
    number(|| {
        let id = pointers::read(buffer, "the buffer")?.id;
        handles::flow(flow)?.with(|held| {
            let datagram = held.take_datagram(id)?;
            held.socket.release(datagram)?;
            Ok(0)
        })
    })
}

/// Publishes what was queued and released.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_flush(flow: c_int) -> c_int {
    number(|| {
        handles::flow(flow)?.with(|held| {
            held.socket.flush();
            Ok(0)
        })
    })
}

/// The result of the next returned packet.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_outcome(flow: c_int, outcome: *mut Outcome) -> c_int {
    number(|| {
        if outcome.is_null() {
            return Err(Fault::Null("the outcome"));
        }
        let next = handles::flow(flow)?.with(|held| Ok(held.socket.outcome()?))?;
        let Some(next) = next else {
            return Ok(0);
        };
        let told = Outcome {
            number: next.number,
            stamp: next.stamp,
            status: next.status.0,
        };
        pointers::write(outcome, told, "the outcome")?;
        Ok(1)
    })
}

/// The memory for the description of a buffer. It is checked for NULL before a buffer is taken.
struct Place(*mut Buffer);

impl Place {
    fn new(place: *mut Buffer) -> Result<Place, Fault> {
        match place.is_null() {
            true => Err(Fault::Null("the buffer")),
            false => Ok(Place(place)),
        }
    }

    fn fill(self, buffer: Buffer) -> Result<c_int, Fault> {
        pointers::write(self.0, buffer, "the buffer")?;
        Ok(0)
    }
}

// As in the header.
const GOES_ON: c_uint = 1;
