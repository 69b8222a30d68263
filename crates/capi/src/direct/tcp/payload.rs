//! The calls that read and write on a stream, with a copy or in place. They fail as the calls of
//! [`super`].

use std::ffi::c_void;
use std::io::{IoSlice, IoSliceMut};

use libc::{c_int, iovec, ssize_t};

use crate::direct::buffers::Buffer;
use crate::direct::{duration, guarded_int, guarded_size};
use crate::error::CallError;
use crate::handles::{self, LentPayload};
use crate::pointers;

/// Reads received bytes, and waits for some up to `timeout`. Returns their number; 0 if the peer
/// has shut down.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_read(
    stream: c_int,
    bytes: *mut c_void,
    length: usize,
    timeout: c_int,
) -> ssize_t {
    guarded_size(|| {
        let (room, timeout) = (pointers::bytes_mut(bytes, length)?, duration(timeout)?);
        Ok(handles::stream(stream)?.stream.read(room, timeout)?)
    })
}

/// Writes bytes, as many as there is room for, and waits for room up to `timeout`. Returns their
/// number.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_write(
    stream: c_int,
    bytes: *const c_void,
    length: usize,
    timeout: c_int,
) -> ssize_t {
    guarded_size(|| {
        let (bytes, timeout) = (pointers::bytes(bytes, length)?, duration(timeout)?);
        Ok(handles::stream(stream)?.stream.write(bytes, timeout)?)
    })
}

/// [`netnice_tcp_read`] into several parts. They must not overlap.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_readv(
    stream: c_int,
    parts: *const iovec,
    count: c_int,
    timeout: c_int,
) -> ssize_t {
    guarded_size(|| {
        let (parts, timeout) = (pointers::byte_slices_mut(parts, count)?, duration(timeout)?);
        let mut parts: Vec<_> = parts.into_iter().map(IoSliceMut::new).collect();
        let handle = handles::stream(stream)?;
        Ok(handle.stream.read_vectored(&mut parts, timeout)?)
    })
}

/// [`netnice_tcp_write`] of several parts.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_writev(
    stream: c_int,
    parts: *const iovec,
    count: c_int,
    timeout: c_int,
) -> ssize_t {
    guarded_size(|| {
        let (parts, timeout) = (pointers::byte_slices(parts, count)?, duration(timeout)?);
        let parts: Vec<_> = parts.into_iter().map(IoSlice::new).collect();
        let handle = handles::stream(stream)?;
        Ok(handle.stream.write_vectored(&parts, timeout)?)
    })
}

/// Takes a free buffer for payload, and waits for one up to `timeout`. Stores its description.
/// Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_reserve(stream: c_int, buffer: *mut Buffer, timeout: c_int) -> c_int {
    guarded_int(|| {
        let timeout = duration(timeout)?;
        check(buffer)?;
        let handle = handles::stream(stream)?;
        let mut reserved = handle.stream.reserve(timeout)?;
        let length = reserved.capacity();
        let data = reserved.fill(|bytes| bytes.as_mut_ptr().cast());
        let id = handle.lend(LentPayload::Reserved(reserved));
        pointers::write(buffer, Buffer { data, length, id }, "the buffer")?;
        Ok(0)
    })
}

/// Sends the first `length` bytes of a buffer. Returns 0. On failure C still holds the buffer.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_commit(stream: c_int, buffer: *const Buffer, length: usize) -> c_int {
    guarded_int(|| {
        let id = pointers::read(buffer, "the buffer")?.id;
        let handle = handles::stream(stream)?;
        let reserved = handle.take_reserved(id)?;
        match reserved.commit(length) {
            Ok(()) => Ok(0),
            Err((reserved, error)) => {
                handle.lend_again(id, reserved);
                Err(error.into())
            }
        }
    })
}

/// Takes the next received payload with its buffer, and waits for it up to `timeout`. Stores its
/// description. Returns 1; 0 if the peer has shut down.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_receive(stream: c_int, buffer: *mut Buffer, timeout: c_int) -> c_int {
    guarded_int(|| {
        let timeout = duration(timeout)?;
        check(buffer)?;
        let handle = handles::stream(stream)?;
        let Some(received) = handle.stream.receive(timeout)? else {
            return Ok(0);
        };
        let length = received.length();
        let data = received.with(|bytes| bytes.as_ptr().cast_mut().cast());
        let id = handle.lend(LentPayload::Received(received));
        pointers::write(buffer, Buffer { data, length, id }, "the buffer")?;
        Ok(1)
    })
}

/// Gives a buffer back: one that was received, or one that was reserved, unsent. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_release(stream: c_int, buffer: *const Buffer) -> c_int {
    guarded_int(|| {
        let id = pointers::read(buffer, "the buffer")?.id;
        drop(handles::stream(stream)?.take_any(id)?);
        Ok(0)
    })
}

/// Fails for NULL, before a buffer is taken.
fn check(buffer: *mut Buffer) -> Result<(), CallError> {
    match buffer.is_null() {
        true => Err(CallError::Null("the buffer")),
        false => Ok(()),
    }
}
