//! Sending and receiving with a copy.

use std::ffi::c_void;

use libc::{c_int, iovec, sockaddr, sockaddr_storage, socklen_t, ssize_t};
use netnice_stack::Datagram;

use crate::direct::{number, patience};
use crate::fault::Fault;
use crate::{guarded, handles, pointers};

/// `struct netnice_received`.
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
    pub(super) fn of(datagram: &Datagram, bytes: usize, whole: usize) -> Received {
        Received {
            from: pointers::storage(Some(datagram.from())),
            bytes,
            whole,
            stamp: datagram.stamp,
        }
    }
}

/// Sends one datagram.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_send(
    flow: c_int,
    bytes: *const c_void,
    length: usize,
    timeout: c_int,
) -> ssize_t {
    count(|| {
        let (bytes, patience) = (pointers::bytes(bytes, length)?, patience(timeout)?);
        handles::flow(flow)?.with(|held| Ok(held.socket.send(bytes, patience)?))?;
        Ok(length)
    })
}

/// Sends one datagram on a flow to any host.
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
    count(|| {
        let (bytes, patience) = (pointers::bytes(bytes, length)?, patience(timeout)?);
        let to = pointers::address(to, to_length)?.ok_or(Fault::Null("the other end"))?;
        handles::flow(flow)?.with(|held| Ok(held.socket.send_to(bytes, to, patience)?))?;
        Ok(length)
    })
}

/// Sends as many datagrams as there are free buffers.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_send_batch(
    flow: c_int,
    datagrams: *const iovec,
    count: c_int,
) -> c_int {
    number(|| {
        let datagrams = pointers::parts(datagrams, count)?;
        let sent =
            handles::flow(flow)?.with(|held| Ok(held.socket.try_send_batch(&datagrams)?))?;
        // At most `count`, which is an int.
        Ok(sent as c_int)
    })
}

/// Sends a message of a real-time channel.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_send_message(
    flow: c_int,
    parts: *const iovec,
    count: c_int,
    timeout: c_int,
) -> c_int {
    number(|| {
        let (parts, patience) = (pointers::parts(parts, count)?, patience(timeout)?);
        handles::flow(flow)?.with(|held| Ok(held.socket.send_message(&parts, patience)?))?;
        Ok(0)
    })
}

/// Waits until the driver has returned all sent packets.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_drain(flow: c_int, timeout: c_int) -> c_int {
    number(|| {
        let patience = patience(timeout)?;
        handles::flow(flow)?.with(|held| Ok(held.socket.drain(patience)?))?;
        Ok(0)
    })
}

/// Receives one datagram.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_recv(
    flow: c_int,
    bytes: *mut c_void,
    length: usize,
    received: *mut Received,
    timeout: c_int,
) -> ssize_t {
    count(|| {
        let (room, patience) = (pointers::room(bytes, length)?, patience(timeout)?);
        let one = handles::flow(flow)?.with(|held| Ok(held.socket.recv(room, patience)?))?;
        if !received.is_null() {
            let all = Received {
                from: pointers::storage(Some(one.from)),
                bytes: one.bytes,
                whole: one.whole,
                stamp: one.stamp,
            };
            pointers::write(received, all, "what was received")?;
        }
        Ok(one.bytes)
    })
}

/// Receives the datagrams that have arrived.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_flow_recv_batch(
    flow: c_int,
    places: *const iovec,
    received: *mut Received,
    count: c_int,
) -> c_int {
    number(|| {
        let places = pointers::each(places, count, "the array of places")?;
        if places.len() == 0 {
            return Err(Fault::Invalid);
        }
        if received.is_null() {
            return Err(Fault::Null("the array of what was received"));
        }
        handles::flow(flow)?.with(|held| {
            let socket = &mut held.socket;
            let mut done = 0;
            for place in places {
                let datagram = match socket.receive() {
                    Ok(datagram) => datagram,
                    Err(error) if done == 0 => return Err(error.into()),
                    Err(_) => break,
                };
                let payload = socket.payload(&datagram)?;
                let stored = pointers::store(payload, place.iov_base, place.iov_len);
                let all = stored.map(|bytes| Received::of(&datagram, bytes, payload.len()));
                socket.release(datagram)?;
                pointers::write(received.wrapping_add(done), all?, "what was received")?;
                done += 1;
            }
            socket.flush();
            // At most `count`, which is an int.
            Ok(done as c_int)
        })
    })
}

/// [`guarded`] for calls that return a number of bytes.
fn count(work: impl FnOnce() -> Result<usize, Fault>) -> ssize_t {
    // No object has more bytes than fit.
    guarded(|| work().map(|bytes| bytes as i64)) as ssize_t
}
