//! Readiness of the streams and listeners of a program over one descriptor, and of one stream over
//! a descriptor of its own. The calls fail as those of [`super`].

use std::os::fd::{AsFd, AsRawFd};

use libc::{c_int, c_uint};

use crate::direct::guarded_int;
use crate::error::CallError;
use crate::handles::{self, Connection};
use crate::pointers;

/// `struct netnice_tcp_event`: what became possible at a stream or listener.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TcpEvent {
    pub(in crate::direct) number: c_int,
    pub(in crate::direct) events: c_uint,
}

/// Returns the descriptor that is readable while there are events of streams and listeners of the
/// program. The library owns it.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_descriptor(program: c_int) -> c_int {
    guarded_int(|| Ok(handles::program(program)?.poller()?.as_raw_fd()))
}

/// Sends the events of a stream or listener to the descriptor of its program (`on` 1), or no longer
/// (0). Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_watch(number: c_int, on: c_int) -> c_int {
    guarded_int(|| {
        let token = u64::from(number.unsigned_abs());
        match (handles::connection(number)?, on) {
            (Connection::Stream(one), 1) => one.stream.register(one.owner.poller()?, token),
            (Connection::Stream(one), 0) => one.stream.deregister(),
            (Connection::Listener(one), 1) => one.listener.register(one.owner.poller()?, token),
            (Connection::Listener(one), 0) => one.listener.deregister(),
            _ => return Err(CallError::Invalid),
        }
        Ok(0)
    })
}

/// Stores the oldest events of the program's streams and listeners, at most `room`. Returns how
/// many it stored.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_poll(program: c_int, events: *mut TcpEvent, room: c_int) -> c_int {
    guarded_int(|| {
        let room = pointers::length(room)?;
        if events.is_null() && room > 0 {
            return Err(CallError::Null("the array of events"));
        }
        let handle = handles::program(program)?;
        let mut taken = Vec::new();
        handle.poller()?.take(room, |event| taken.push(event));
        for (index, event) in taken.iter().enumerate() {
            let bit = |is: bool, bit: c_uint| if is { bit } else { 0 };
            let event = TcpEvent {
                // The token is a handle, which is an int.
                number: event.token as c_int,
                events: bit(event.readable, READABLE)
                    | bit(event.writable, WRITABLE)
                    | bit(event.ended, ENDED),
            };
            pointers::write(events.wrapping_add(index), event, "the array of events")?;
        }
        // At most `room`, which is an int.
        Ok(taken.len() as c_int)
    })
}

/// Returns a descriptor that becomes readable at each event of a stream. The library owns it.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_event_fd(stream: c_int) -> c_int {
    guarded_int(|| {
        let handle = handles::stream(stream)?;
        Ok(handle.stream.event_fd()?.as_fd().as_raw_fd())
    })
}

// As in the header.
const READABLE: c_uint = 1;
const WRITABLE: c_uint = 2;
const ENDED: c_uint = 4;
