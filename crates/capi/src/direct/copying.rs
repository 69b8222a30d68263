//! The calls that send and receive with a copy of the payload, and the call that waits until the
//! driver has returned all packets (`netnice_flow_drain`). They fail with EAGAIN if their timeout
//! expires, and the calls without a timeout if nothing can be sent or received now. They also fail
//! if the call of `netnice_stack` fails for another reason, if a pointer is NULL or another
//! argument is invalid, if the flow is not open, or if another thread is in a call of it.

use std::ffi::c_void;
use std::net::SocketAddr;

use libc::{c_int, iovec, sockaddr, sockaddr_storage, socklen_t, ssize_t};
use netnice_stack::{Address, Datagram, Socket};

use crate::direct::{duration, guarded_int, guarded_size};
use crate::error::CallError;
use crate::{handles, pointers};

/// `struct netnice_received`: a datagram that was received.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Received {
    pub(super) from: sockaddr_storage,
    pub(super) bytes: usize,
    pub(super) whole: usize,
    pub(super) stamp: u64,
}

impl Received {
    /// Describes a datagram of `whole` bytes, `bytes` of which were copied.
    ///
    /// # Errors
    /// If the datagram is another flow's.
    pub(super) fn of(
        socket: &Socket,
        datagram: &Datagram,
        bytes: usize,
        whole: usize,
    ) -> Result<Received, CallError> {
        let mac = socket.sender_mac(datagram)?;
        Ok(Received {
            from: pointers::storage(Some(sender(socket, datagram.from(), mac))),
            bytes,
            whole,
            stamp: datagram.stamp,
        })
    }
}

/// Sends one datagram, and waits for a free buffer up to `timeout`. Returns `length`.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_send(
    flow: c_int,
    bytes: *const c_void,
    length: usize,
    timeout: c_int,
) -> ssize_t {
    guarded_size(|| {
        let (bytes, timeout) = (pointers::bytes(bytes, length)?, duration(timeout)?);
        handles::flow(flow)?.with(|open| Ok(open.socket.send(bytes, timeout)?))?;
        Ok(length)
    })
}

/// Sends one datagram to the address `to`, on a flow to any host, and waits for a free buffer up to
/// `timeout`, which does not limit the request for the next hop. Returns `length`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_send_to(
    flow: c_int,
    bytes: *const c_void,
    length: usize,
    to: *const sockaddr,
    to_length: socklen_t,
    timeout: c_int,
) -> ssize_t {
    guarded_size(|| {
        let (bytes, timeout) = (pointers::bytes(bytes, length)?, duration(timeout)?);
        let to = pointers::destination(to, to_length)?
            .ok_or(CallError::Null("the destination address"))?;
        handles::flow(flow)?.with(|open| Ok(open.socket.send_to(bytes, to, timeout)?))?;
        Ok(length)
    })
}

/// Sends the datagrams in order, without waiting, up to the first that cannot be sent. Returns how
/// many were sent. Fails if the first cannot be sent: with EAGAIN if no buffer is free.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_send_batch(
    flow: c_int,
    datagrams: *const iovec,
    count: c_int,
) -> c_int {
    guarded_int(|| {
        let datagrams = pointers::byte_slices(datagrams, count)?;
        let sent =
            handles::flow(flow)?.with(|open| Ok(open.socket.try_send_batch(&datagrams)?))?;
        // At most `count`, which is an int.
        Ok(sent as c_int)
    })
}

/// Sends a message of a real-time channel, one datagram for each part, and waits for enough free
/// buffers up to `timeout`. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_send_message(
    flow: c_int,
    parts: *const iovec,
    count: c_int,
    timeout: c_int,
) -> c_int {
    guarded_int(|| {
        let (parts, timeout) = (pointers::byte_slices(parts, count)?, duration(timeout)?);
        handles::flow(flow)?.with(|open| Ok(open.socket.send_message(&parts, timeout)?))?;
        Ok(0)
    })
}

/// Waits until the driver has returned all queued packets, up to `timeout`. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_drain(flow: c_int, timeout: c_int) -> c_int {
    guarded_int(|| {
        let timeout = duration(timeout)?;
        handles::flow(flow)?.with(|open| Ok(open.socket.drain(timeout)?))?;
        Ok(0)
    })
}

/// Receives one datagram, and waits for it up to `timeout`. Stores its description unless
/// `received` is NULL. Returns the number of copied bytes; the rest of a longer datagram is lost.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_recv(
    flow: c_int,
    bytes: *mut c_void,
    length: usize,
    received: *mut Received,
    timeout: c_int,
) -> ssize_t {
    guarded_size(|| {
        let (room, timeout) = (pointers::bytes_mut(bytes, length)?, duration(timeout)?);
        let (one, from) = handles::flow(flow)?.with(|open| {
            let one = open.socket.recv(room, timeout)?;
            Ok((one, sender(&open.socket, one.from, one.from_mac)))
        })?;
        if !received.is_null() {
            let all = Received {
                from: pointers::storage(Some(from)),
                bytes: one.bytes,
                whole: one.whole,
                stamp: one.stamp,
            };
            pointers::write(received, all, "the description of a datagram")?;
        }
        Ok(one.bytes)
    })
}

/// Receives the datagrams that have arrived, at most `count`, each with its description. Returns
/// how many, at least 1. Fails with EAGAIN if none has arrived, and with EINVAL if `count` is 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_recv_batch(
    flow: c_int,
    places: *const iovec,
    received: *mut Received,
    count: c_int,
) -> c_int {
    guarded_int(|| {
        if pointers::length(count)? == 0 {
            return Err(CallError::Invalid);
        }
        if received.is_null() {
            return Err(CallError::Null("the array of received datagrams"));
        }
        // Before a datagram is taken: it would be lost.
        for place in pointers::elements(places, count, "the array of buffers")? {
            if place.iov_base.is_null() && place.iov_len > 0 {
                return Err(CallError::Null("the memory for a datagram"));
            }
        }
        let places = pointers::elements(places, count, "the array of buffers")?;
        handles::flow(flow)?.with(|open| {
            let socket = &mut open.socket;
            let mut done = 0;
            for place in places {
                let datagram = match socket.receive() {
                    Ok(datagram) => datagram,
                    Err(error) if done == 0 => return Err(error.into()),
                    Err(_) => break,
                };
                let payload = socket.payload(&datagram)?;
                let stored = pointers::store(payload, place.iov_base, place.iov_len);
                let all =
                    stored.and_then(|bytes| Received::of(socket, &datagram, bytes, payload.len()));
                socket.release(datagram)?;
                pointers::write(
                    received.wrapping_add(done),
                    all?,
                    "the description of a datagram",
                )?;
                done += 1;
            }
            socket.flush();
            // At most `count`, which is an int.
            Ok(done as c_int)
        })
    })
}

/// The sender of a datagram: its Ethernet address on a flow of an EtherType.
fn sender(socket: &Socket, ip: SocketAddr, mac: [u8; 6]) -> Address {
    match socket.ether_type() {
        Some(_) => Address::Ethernet(mac),
        None => Address::Ip(ip),
    }
}
