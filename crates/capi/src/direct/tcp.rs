//! TCP for C: connections and listeners ([`netnice_stack::tcp`]) with plain numbers and structures.
//!
//! A stream is a connection, or one that a listener has accepted. Any number of threads may use a
//! stream or a listener at the same time. A call with a timeout fails with EAGAIN if it expires. A
//! call on a stream fails with the errno of a socket for the same reason (ECONNRESET, ETIMEDOUT,
//! EPIPE, ...), and with that of `netnice_stack` if the flow has ended. Calls also fail if a
//! pointer is NULL, another argument is invalid, or the number is not that of an open stream or
//! listener.

pub(super) mod payload;
pub(super) mod readiness;

use std::sync::Arc;
use std::time::Duration;

use libc::{c_char, c_int, c_longlong, c_uint, c_ulonglong, sockaddr, sockaddr_storage, socklen_t};
use netnice_stack::tcp::{
    HeldBack, Info, Keepalive, ListenOptions, PromoteOptions, State, TcpOptions,
};
use netnice_stack::udp::Buffers;
use netnice_stack::{Address, StackError};

use crate::direct::{duration, guarded_int};
use crate::error::{CallError, connection_errno};
use crate::handles::{self, Connection, ListenerHandle, StreamHandle};
use crate::{guarded, pointers};

/// `struct netnice_tcp`: the parameters of a connection or a listener.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tcp {
    pub(super) local: *const sockaddr,
    pub(super) remote: *const sockaddr,
    pub(super) local_length: socklen_t,
    pub(super) remote_length: socklen_t,
    pub(super) contract: *const c_char,
    pub(super) buffer_bytes: c_uint,
    pub(super) sending: c_uint,
    pub(super) receiving: c_uint,
    pub(super) hops: c_uint,
    pub(super) backlog: c_uint,
    pub(super) flags: c_uint,
}

/// `struct netnice_tcp_info`: the state of a stream or a listener.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TcpInfo {
    pub(super) local: sockaddr_storage,
    pub(super) remote: sockaddr_storage,
    pub(super) state: c_int,
    pub(super) error: c_int,
    pub(super) held_back: c_int,
    pub(super) mss: c_uint,
    pub(super) congestion_window: c_uint,
    pub(super) threshold: c_uint,
    pub(super) in_flight: c_uint,
    pub(super) peer_window: c_uint,
    pub(super) rtt: c_ulonglong,
    pub(super) timeout: c_ulonglong,
    pub(super) acknowledged: c_ulonglong,
    pub(super) received: c_ulonglong,
    pub(super) segments_sent: c_ulonglong,
    pub(super) segments_received: c_ulonglong,
    pub(super) retransmitted: c_ulonglong,
    pub(super) timeouts: c_ulonglong,
}

/// Returns the number of bytes of the program's memory that a connection, a listener, or a promoted
/// connection with these parameters uses.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_bytes(tcp: *const Tcp) -> c_longlong {
    guarded(|| {
        let tcp = pointers::read(tcp, DESCRIPTION)?;
        let of = |buffers: Buffers| buffers.region_bytes().map_err(StackError::from);
        let bytes = match (tcp.local.is_null(), tcp.remote.is_null()) {
            (_, false) => of(tcp.options()?.buffers)?,
            (false, true) => tcp.listen_options()?.region_bytes()?,
            (true, true) => of(tcp.promote_options()?.buffers)?,
        };
        // At most 65,536 buffers of 65,536 bytes, twice.
        Ok(bytes as c_longlong)
    })
}

/// Opens a connection, and waits until the peer has accepted it. Returns the number of the stream.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_connect(program: c_int, tcp: *const Tcp, timeout: c_int) -> c_int {
    guarded_int(|| {
        let timeout = duration(timeout)?;
        let handle = handles::program(program)?;
        let options = pointers::read(tcp, DESCRIPTION)?.options()?;
        let stream = handle.program.connect(&options, timeout)?;
        let stream = StreamHandle::new(handle, stream);
        handles::add_connection(Connection::Stream(Arc::new(stream)))
    })
}

/// Listens at an address and port. Returns the number of the listener.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_listen(program: c_int, tcp: *const Tcp) -> c_int {
    guarded_int(|| {
        let handle = handles::program(program)?;
        let options = pointers::read(tcp, DESCRIPTION)?.listen_options()?;
        let listener = handle.program.listen(&options)?;
        let listener = ListenerHandle {
            owner: handle,
            listener,
        };
        handles::add_connection(Connection::Listener(Arc::new(listener)))
    })
}

/// Waits for the next connection of a listener. Returns the number of the stream.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_accept(listener: c_int, timeout: c_int) -> c_int {
    guarded_int(|| {
        let timeout = duration(timeout)?;
        let Connection::Listener(handle) = handles::connection(listener)? else {
            return Err(CallError::BadHandle);
        };
        let stream = handle.listener.accept(timeout)?;
        let stream = StreamHandle::new(handle.owner.clone(), stream);
        handles::add_connection(Connection::Stream(Arc::new(stream)))
    })
}

/// Moves an accepted connection to a flow of its own, with a contract and buffers of its own.
/// Returns 0. The description has no addresses.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_promote(stream: c_int, tcp: *const Tcp) -> c_int {
    guarded_int(|| {
        let handle = handles::stream(stream)?;
        let options = pointers::read(tcp, DESCRIPTION)?.promote_options()?;
        handle.stream.promote(&options)?;
        Ok(0)
    })
}

/// Shuts down the sending end of a stream. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_shutdown(stream: c_int) -> c_int {
    guarded_int(|| {
        handles::stream(stream)?.stream.shut_down();
        Ok(0)
    })
}

/// Shuts down the sending end of a stream, and waits until the peer has acknowledged everything.
/// Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_finish(stream: c_int, timeout: c_int) -> c_int {
    guarded_int(|| {
        let timeout = duration(timeout)?;
        handles::stream(stream)?.stream.finish(timeout)?;
        Ok(0)
    })
}

/// Resets the connection of a stream. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_abort(stream: c_int) -> c_int {
    guarded_int(|| {
        handles::stream(stream)?.stream.abort();
        Ok(0)
    })
}

/// Closes a stream or a listener. Returns 0. A stream in which another thread waits is closed when
/// that call returns.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_close(number: c_int) -> c_int {
    guarded_int(|| {
        let connection = handles::connection(number)?;
        let owner = match &connection {
            Connection::Stream(stream) => &stream.owner,
            Connection::Listener(listener) => &listener.owner,
        };
        owner.connections().remove(&number);
        handles::remove(number);
        Ok(0)
    })
}

/// Sets an option of a stream. Returns 0. Fails with ENOPROTOOPT if there is no such option.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_set(stream: c_int, option: c_int, value: c_longlong) -> c_int {
    guarded_int(|| {
        let handle = handles::stream(stream)?;
        let stream = &handle.stream;
        match option {
            NO_DELAY => stream.set_no_delay(in_range("no delay", value, 0, 1)? == 1),
            QUICK => stream.set_quick(in_range("quick", value, 0, 1)? == 1),
            USER_TIMEOUT => {
                let timeout = in_range("the user timeout", value, 1, LONGEST)?;
                stream.set_user_timeout(Duration::from_millis(timeout.unsigned_abs()));
            }
            LINGER => {
                let linger = u64::try_from(in_range("lingering", value, -1, LONGEST)?);
                stream.set_linger(linger.ok().map(Duration::from_millis));
            }
            other => return Err(CallError::NoOption(other)),
        }
        Ok(0)
    })
}

/// Sets the probes of an idle connection; `idle` 0: none. Times are in milliseconds. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_keepalive(
    stream: c_int,
    idle: c_longlong,
    interval: c_longlong,
    probes: c_uint,
) -> c_int {
    guarded_int(|| {
        let handle = handles::stream(stream)?;
        let idle = in_range("the idle time", idle, 0, LONGEST)?.unsigned_abs();
        let keepalive = match idle {
            0 => None,
            _ => Some(Keepalive {
                idle: Duration::from_millis(idle),
                interval: {
                    let interval = in_range("the interval", interval, 1, LONGEST)?;
                    Duration::from_millis(interval.unsigned_abs())
                },
                probes: {
                    in_range("the number of probes", probes.into(), 1, MOST_PROBES)?;
                    probes
                },
            }),
        };
        handle.stream.set_keepalive(keepalive);
        Ok(0)
    })
}

/// Stores the state of a stream or a listener. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_tcp_info(number: c_int, info: *mut TcpInfo) -> c_int {
    guarded_int(|| {
        let now = match handles::connection(number)? {
            Connection::Listener(listener) => TcpInfo {
                local: pointers::storage(Some(Address::Ip(listener.listener.local()))),
                state: LISTEN,
                ..TcpInfo::empty()
            },
            Connection::Stream(handle) => TcpInfo {
                local: pointers::storage(Some(Address::Ip(handle.stream.local()))),
                remote: pointers::storage(Some(Address::Ip(handle.stream.peer()))),
                ..TcpInfo::of(&handle.stream.info()?)
            },
        };
        pointers::write(info, now, "the information")?;
        Ok(0)
    })
}

impl Tcp {
    fn options(&self) -> Result<TcpOptions, CallError> {
        let remote = pointers::address(self.remote, self.remote_length)?
            .ok_or(CallError::Null("the remote address"))?;
        if self.flags != 0 || self.backlog != 0 {
            return Err(CallError::Invalid);
        }
        let default = TcpOptions::to(remote);
        let local = pointers::address(self.local, self.local_length)?;
        Ok(TcpOptions {
            local: local.unwrap_or(default.local),
            contract: pointers::text(self.contract)?,
            buffers: self.buffers(default.buffers),
            hops: self.hops(default.hops)?,
            ..default
        })
    }

    fn listen_options(&self) -> Result<ListenOptions, CallError> {
        let local = pointers::address(self.local, self.local_length)?
            .ok_or(CallError::Null("the local address of a listener"))?;
        if self.flags != 0 || !self.remote.is_null() {
            return Err(CallError::Invalid);
        }
        let default = ListenOptions::at(local);
        Ok(ListenOptions {
            contract: pointers::text(self.contract)?,
            buffers: self.buffers(default.buffers),
            hops: self.hops(default.hops)?,
            backlog: match self.backlog {
                0 => default.backlog,
                backlog => backlog as usize,
            },
            ..default
        })
    }

    fn promote_options(&self) -> Result<PromoteOptions, CallError> {
        let has_addresses = !self.local.is_null() || !self.remote.is_null();
        if has_addresses || (self.hops, self.backlog, self.flags) != (0, 0, 0) {
            return Err(CallError::Invalid);
        }
        Ok(PromoteOptions {
            contract: pointers::text(self.contract)?,
            buffers: self.buffers(PromoteOptions::default().buffers),
        })
    }

    fn buffers(&self, default: Buffers) -> Buffers {
        let or = |value: c_uint, default: u32| if value == 0 { default } else { value };
        Buffers {
            bytes: or(self.buffer_bytes, default.bytes),
            sending: or(self.sending, default.sending),
            receiving: or(self.receiving, default.receiving),
        }
    }

    fn hops(&self, default: u8) -> Result<u8, CallError> {
        match self.hops {
            0 => Ok(default),
            hops => u8::try_from(hops).map_err(|_| CallError::Invalid),
        }
    }
}

impl TcpInfo {
    fn empty() -> TcpInfo {
        TcpInfo {
            local: pointers::storage(None),
            remote: pointers::storage(None),
            state: 0,
            error: 0,
            held_back: 0,
            mss: 0,
            congestion_window: 0,
            threshold: 0,
            in_flight: 0,
            peer_window: 0,
            rtt: 0,
            timeout: 0,
            acknowledged: 0,
            received: 0,
            segments_sent: 0,
            segments_received: 0,
            retransmitted: 0,
            timeouts: 0,
        }
    }

    fn of(info: &Info) -> TcpInfo {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let counters = &info.counters;
        TcpInfo {
            state: state_number(info.state),
            error: info
                .reason
                .map_or(0, |reason| connection_errno(&reason.into())),
            held_back: match info.held_back {
                HeldBack::Program => 0,
                HeldBack::PeerWindow => 1,
                HeldBack::Congestion => 2,
                HeldBack::Nagle => 3,
            },
            mss: info.mss,
            congestion_window: info.congestion_window,
            threshold: info.threshold,
            in_flight: info.in_flight,
            peer_window: info.peer_window,
            rtt: info.rtt.map_or(0, micros),
            timeout: micros(info.timeout),
            acknowledged: counters.bytes_acknowledged,
            received: counters.bytes_received,
            segments_sent: counters.segments_sent,
            segments_received: counters.segments_received,
            retransmitted: counters.retransmitted,
            timeouts: counters.timeouts,
            ..TcpInfo::empty()
        }
    }
}

/// The number of a state in `netinet/tcp.h`.
fn state_number(state: State) -> c_int {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

/// The value, if it is in a range.
fn in_range(option: &'static str, value: i64, least: i64, most: i64) -> Result<i64, CallError> {
    match (least..=most).contains(&value) {
        true => Ok(value),
        false => Err(CallError::OutOfRange {
            option,
            value,
            least,
            most,
        }),
    }
}

/// The argument that describes a connection or a listener.
const DESCRIPTION: &str = "the description of the connection or listener";
/// The state of a listener in `netinet/tcp.h`.
const LISTEN: c_int = 10;
/// The longest time of an option, in ms: a year.
const LONGEST: i64 = 365 * 24 * 3600 * 1000;
/// As of a socket (tcp(7), TCP_KEEPCNT).
const MOST_PROBES: i64 = 127;

// As in the header.
const NO_DELAY: c_int = 1;
const QUICK: c_int = 2;
const USER_TIMEOUT: c_int = 3;
const LINGER: c_int = 4;
