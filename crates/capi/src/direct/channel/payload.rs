//! The messages of channels between hosts, for C: sending, receiving, and what has left. A call
//! fails with EAGAIN if its timeout expires, with EMSGSIZE for a message that is too long, with
//! ENOBUFS for one that the overload policy drops, with EPIPE if the channel has ended, and with
//! EBADF if this end has the other direction.

use std::ffi::c_void;

use libc::{c_int, c_longlong, c_ulonglong, ssize_t};
use netnice_channel::{ChannelError, ReceivedMessage, SendRefusal};
use netnice_core::units::Bytes;

use crate::direct::{duration, guarded_int, guarded_size};
use crate::error::CallError;
use crate::handles::channels::OpenChannel;
use crate::{guarded, handles, pointers};

/// `struct netnice_channel_message`: a message that was received.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Message {
    pub(in crate::direct) number: c_ulonglong,
    pub(in crate::direct) completed: c_ulonglong,
    pub(in crate::direct) whole: usize,
}

/// `struct netnice_departure`: a message that has left.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Departure {
    pub(in crate::direct) number: c_ulonglong,
    pub(in crate::direct) logical: c_ulonglong,
    pub(in crate::direct) deadline: c_ulonglong,
    pub(in crate::direct) left: c_ulonglong,
}

/// Sends a message, and waits as the overload policy says. Returns the number of the message.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_send(
    channel: c_int,
    bytes: *const c_void,
    length: usize,
    timeout: c_int,
) -> c_longlong {
    guarded(|| {
        let (bytes, timeout) = (pointers::bytes(bytes, length)?, duration(timeout)?);
        handles::channel(channel)?.with(|open| {
            // Before the copy: the length is the caller's.
            if let OpenChannel::Outgoing { mmax, .. } = open
                && bytes.len() as u64 > mmax.0
            {
                let length = Bytes(bytes.len() as u64);
                let most = *mmax;
                let refusal = SendRefusal::TooLong { length, most };
                return Err(ChannelError::Refused(refusal).into());
            }
            let accepted = open.sender()?.send(bytes, timeout)?;
            // It would take 292 years at a message per nanosecond.
            Ok(accepted.message as i64)
        })
    })
}

/// Waits until all messages have left this host. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_drain(channel: c_int, timeout: c_int) -> c_int {
    guarded_int(|| {
        let timeout = duration(timeout)?;
        handles::channel(channel)?.with(|open| Ok(open.sender()?.drain(timeout)?))?;
        Ok(0)
    })
}

/// Stores the next message that has left. Returns 1, or 0 if there is none.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_departure(channel: c_int, departure: *mut Departure) -> c_int {
    guarded_int(|| {
        if departure.is_null() {
            return Err(CallError::Null("the departure"));
        }
        let left = handles::channel(channel)?.with(|open| Ok(open.sender()?.departure()))?;
        let Some(left) = left else {
            return Ok(0);
        };
        let stored = Departure {
            number: left.message,
            logical: left.logical.0,
            deadline: left.deadline.map_or(0, |deadline| deadline.0),
            left: left.left.map_or(0, |left| left.0),
        };
        pointers::write(departure, stored, "the departure")?;
        Ok(1)
    })
}

/// Receives the next message. Returns its number of bytes. Fails with EMSGSIZE, and keeps the
/// message, if it is longer than `length`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_channel_receive(
    channel: c_int,
    bytes: *mut c_void,
    length: usize,
    message: *mut Message,
    timeout: c_int,
) -> ssize_t {
    guarded_size(|| {
        let timeout = duration(timeout)?;
        let place = pointers::bytes_mut(bytes, length)?;
        handles::channel(channel)?.with(|open| {
            let OpenChannel::Incoming { channel, kept } = open else {
                return Err(CallError::Direction("sends"));
            };
            let body = take(kept, || Ok(channel.receive(timeout)?), place, message)?;
            let length = body.len();
            channel.reuse(body);
            Ok(length)
        })
    })
}

/// Copies the message that was kept, else the `next` one, to `place`, and returns it. Fails and
/// keeps the message if it is longer, and fails if there is none.
fn take(
    kept: &mut Option<ReceivedMessage>,
    next: impl FnOnce() -> Result<ReceivedMessage, CallError>,
    place: &mut [u8],
    message: *mut Message,
) -> Result<Vec<u8>, CallError> {
    let received = match kept.take() {
        Some(received) => received,
        None => next()?,
    };
    let (whole, room) = (received.body.len(), place.len());
    if !message.is_null() {
        let stored = Message {
            number: received.message,
            completed: received.completed.0,
            whole,
        };
        pointers::write(message, stored, "the message")?;
    }
    let Some(place) = place.get_mut(..whole) else {
        *kept = Some(received);
        return Err(CallError::MessageRoom { whole, room });
    };
    place.copy_from_slice(&received.body);
    Ok(received.body)
}

#[cfg(test)]
mod tests {
    use netnice_core::units::Instant;

    use super::*;

    #[test]
    fn a_message_that_finds_too_little_room_is_kept() {
        let mut kept = None;
        let mut info = Message {
            number: 0,
            completed: 0,
            whole: 0,
        };
        let next = || {
            Ok(ReceivedMessage {
                message: 7,
                body: b"image".to_vec(),
                arrived: Instant(98),
                completed: Instant(99),
            })
        };
        let mut place = [0; 5];
        let error = take(&mut kept, next, &mut place[..4], &mut info).unwrap_err();
        assert_eq!(error.errno(), libc::EMSGSIZE);
        assert_eq!(
            error.to_string(),
            "the next message has 5 bytes, and there is room for 4"
        );
        assert_eq!((info.number, info.completed, info.whole), (7, 99, 5));
        assert_eq!(place, [0; 5]);
        let none = || Err(CallError::Network(ChannelError::WouldBlock.into()));
        let null = std::ptr::null_mut();
        assert_eq!(take(&mut kept, none, &mut place, null).unwrap(), b"image");
        assert_eq!(&place, b"image");
        let error = take(&mut kept, none, &mut place, null).unwrap_err();
        assert_eq!(error.errno(), libc::EAGAIN);
    }
}
