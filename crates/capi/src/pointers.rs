//! Access to memory that C passes by pointer. The functions check for NULL, copy structures, texts
//! and addresses, and return slices of bytes that are valid during the call only. They fail with
//! [`CallError::Null`], or with another error for an invalid length, text or address.
//!
//! # Rules of this module
//! A pointer that is not NULL is assumed to point to what the header states, readable or writable,
//! for the duration of the call; the library cannot check more. Structures are copied without
//! assuming their alignment. No slice is longer than an object can be (`isize::MAX` bytes).

use std::ffi::CStr;
use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::slice;

use libc::{
    AF_INET, AF_INET6, AF_PACKET, c_char, c_int, c_void, in_addr, in6_addr, iovec, sa_family_t,
    sockaddr, sockaddr_in, sockaddr_in6, sockaddr_ll, sockaddr_storage, socklen_t,
};

use netnice_stack::Address;

use crate::error::CallError;

/// Reads a structure that C filled. `what` names it in the error. Fails for NULL.
pub(crate) fn read<T: Copy>(from: *const T, what: &'static str) -> Result<T, CallError> {
    match from.is_null() {
        true => Err(CallError::Null(what)),
        // SAFETY: not NULL, and the header says that a T is there; T is plain data.
        false => Ok(unsafe { from.read_unaligned() }),
    }
}

/// Writes a structure for C. `what` names it in the error. Fails for NULL.
pub(crate) fn write<T: Copy>(to: *mut T, value: T, what: &'static str) -> Result<(), CallError> {
    match to.is_null() {
        true => Err(CallError::Null(what)),
        false => {
            // SAFETY: not NULL, and the header says that there is room for a T.
            unsafe { to.write_unaligned(value) };
            Ok(())
        }
    }
}

/// A slice of `length` bytes of C. NULL is valid if `length` is 0. Fails for any other NULL, and
/// for a length that no object has.
pub(crate) fn bytes<'a>(from: *const c_void, length: usize) -> Result<&'a [u8], CallError> {
    match (from.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(CallError::Null("the bytes")),
        (false, TOO_LONG..) => Err(CallError::Invalid),
        // SAFETY: not NULL, and C promises that this many bytes are there and do not change during
        // the call.
        (false, _) => Ok(unsafe { slice::from_raw_parts(from.cast(), length) }),
    }
}

/// A slice of `length` bytes of C's memory to write to. Fails as [`bytes`].
pub(crate) fn bytes_mut<'a>(to: *mut c_void, length: usize) -> Result<&'a mut [u8], CallError> {
    match (to.is_null(), length) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(CallError::Null("the bytes")),
        (false, TOO_LONG..) => Err(CallError::Invalid),
        // SAFETY: not NULL, and C promises that this much memory is there and not used during the
        // call.
        (false, _) => Ok(unsafe { slice::from_raw_parts_mut(to.cast(), length) }),
    }
}

/// Copies bytes to memory of C, at most `length`. Returns the number of copied bytes. The
/// destinations of several calls may overlap. Fails for NULL if there is a byte to copy.
pub(crate) fn store(bytes: &[u8], to: *mut c_void, length: usize) -> Result<usize, CallError> {
    let count = bytes.len().min(length);
    match (to.is_null(), count) {
        (_, 0) => Ok(0),
        (true, _) => Err(CallError::Null("the memory for a datagram")),
        (false, _) => {
            // SAFETY: not NULL, and C promises that this much memory is there; `copy` permits
            // overlap.
            unsafe { std::ptr::copy(bytes.as_ptr(), to.cast(), count) };
            Ok(count)
        }
    }
}

/// The elements of an array, one by one. Fails if the pointer is NULL and `count` is not 0, or if
/// `count` is negative or above [`MAX_COUNT`].
pub(crate) fn elements<T: Copy>(
    from: *const T,
    count: c_int,
    what: &'static str,
) -> Result<impl ExactSizeIterator<Item = T>, CallError> {
    let count = length(count)?;
    if count > 0 && from.is_null() {
        return Err(CallError::Null(what));
    }
    // SAFETY: C promises that this many elements are there.
    Ok((0..count).map(move |index| unsafe { from.add(index).read_unaligned() }))
}

/// A count as usize. Fails if it is negative or above [`MAX_COUNT`].
pub(crate) fn length(count: c_int) -> Result<usize, CallError> {
    match usize::try_from(count) {
        Ok(count) if count <= MAX_COUNT => Ok(count),
        _ => Err(CallError::Invalid),
    }
}

/// A slice for each element of an array of `struct iovec`. Fails as [`elements`] for the array, and
/// as [`bytes`] for an element.
pub(crate) fn byte_slices<'a>(
    from: *const iovec,
    count: c_int,
) -> Result<Vec<&'a [u8]>, CallError> {
    elements(from, count, "the array of datagrams")?
        .map(|part| bytes(part.iov_base, part.iov_len))
        .collect()
}

/// The same, for writing. Fails as [`byte_slices`], and if two elements overlap.
pub(crate) fn byte_slices_mut<'a>(
    from: *const iovec,
    count: c_int,
) -> Result<Vec<&'a mut [u8]>, CallError> {
    let parts = || elements(from, count, "the array of memory");
    let mut ranges = Vec::new();
    for part in parts()?.filter(|part| part.iov_len > 0) {
        let start = part.iov_base as usize;
        let end = start.checked_add(part.iov_len).ok_or(CallError::Invalid)?;
        ranges.push((start, end));
    }
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err(CallError::Overlap);
    }
    parts()?
        .map(|part| bytes_mut(part.iov_base, part.iov_len))
        .collect()
}

/// A copy of a text of C; `None` for NULL. Fails if it is not UTF-8.
pub(crate) fn text(from: *const c_char) -> Result<Option<String>, CallError> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, and C promises that the text ends with a 0.
    let text = unsafe { CStr::from_ptr(from) };
    let text = text.to_str().map_err(|_| CallError::NotUtf8)?;
    Ok(Some(text.to_string()))
}

/// An IPv4 or IPv6 address of C with its port; `None` for NULL. Fails for another family, or if
/// `length` is too short.
pub(crate) fn address(
    from: *const sockaddr,
    length: socklen_t,
) -> Result<Option<SocketAddr>, CallError> {
    if from.is_null() {
        return Ok(None);
    }
    let length = length as usize;
    if length < size_of::<sa_family_t>() {
        return Err(CallError::BadAddress);
    }
    // SAFETY: at least this many bytes are there, and the family is the first field.
    let family = unsafe { from.cast::<sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        AF_INET if length >= size_of::<sockaddr_in>() => {
            // SAFETY: C promises `length` bytes, which are enough.
            let four: sockaddr_in = unsafe { from.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(four.sin_addr.s_addr));
            Ok(Some((ip, u16::from_be(four.sin_port)).into()))
        }
        AF_INET6 if length >= size_of::<sockaddr_in6>() => {
            // SAFETY: as above.
            let six: sockaddr_in6 = unsafe { from.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(six.sin6_addr.s6_addr);
            let port = u16::from_be(six.sin6_port);
            Ok(Some(SocketAddr::V6(SocketAddrV6::new(
                ip,
                port,
                0,
                six.sin6_scope_id,
            ))))
        }
        _ => Err(CallError::BadAddress),
    }
}

/// An IPv4, IPv6 or Ethernet address (`struct sockaddr_ll`) of C; `None` for NULL. Fails for
/// another family, or if `length` is too short.
pub(crate) fn destination(
    from: *const sockaddr,
    length: socklen_t,
) -> Result<Option<Address>, CallError> {
    if !from.is_null() && length as usize >= size_of::<sockaddr_ll>() {
        // SAFETY: C promises `length` bytes, which are enough.
        let station: sockaddr_ll = unsafe { from.cast::<sockaddr_ll>().read_unaligned() };
        if c_int::from(station.sll_family) == AF_PACKET {
            let [a, b, c, d, e, f, ..] = station.sll_addr;
            return match station.sll_halen {
                6 => Ok(Some(Address::Ethernet([a, b, c, d, e, f]))),
                _ => Err(CallError::BadAddress),
            };
        }
    }
    Ok(address(from, length)?.map(Address::Ip))
}

/// An address for C; `None` is AF_UNSPEC.
pub(crate) fn storage(address: Option<Address>) -> sockaddr_storage {
    // SAFETY: plain data, for which all zeros are valid: AF_UNSPEC.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let to = &raw mut storage;
    match address {
        None => {}
        Some(Address::Ethernet(mac)) => {
            // SAFETY: plain data, for which all zeros are valid.
            let mut station: sockaddr_ll = unsafe { std::mem::zeroed() };
            station.sll_family = AF_PACKET as sa_family_t;
            station.sll_halen = 6;
            station.sll_addr[..6].copy_from_slice(&mac);
            // SAFETY: as below.
            unsafe { to.cast::<sockaddr_ll>().write(station) };
        }
        Some(Address::Ip(SocketAddr::V4(four))) => {
            // SAFETY: a storage is large enough for each kind of address, and aligned for it.
            unsafe { to.cast::<sockaddr_in>().write(v4(&four)) };
        }
        Some(Address::Ip(SocketAddr::V6(six))) => {
            let six = sockaddr_in6 {
                sin6_family: AF_INET6 as sa_family_t,
                sin6_port: six.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: in6_addr {
                    s6_addr: six.ip().octets(),
                },
                sin6_scope_id: six.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.cast::<sockaddr_in6>().write(six) };
        }
    }
    storage
}

fn v4(four: &SocketAddrV4) -> sockaddr_in {
    sockaddr_in {
        sin_family: AF_INET as sa_family_t,
        sin_port: four.port().to_be(),
        sin_addr: in_addr {
            s_addr: u32::from(*four.ip()).to_be(),
        },
        sin_zero: [0; 8],
    }
}

/// A text as an array of `N` bytes for C: truncated to `N` - 1 bytes, and terminated by a 0.
pub(crate) fn fixed_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut fixed = [0; N];
    for (place, byte) in fixed[..N - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    fixed
}

/// No object has this many bytes.
const TOO_LONG: usize = isize::MAX as usize + 1;
/// Largest number of elements of an array.
const MAX_COUNT: usize = 65_536;
