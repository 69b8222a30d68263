//! The calls that open flows of other protocols than UDP (`netnice_open_ip`,
//! `netnice_open_ether`). They fail if the call of `netnice_stack` fails, if a pointer is NULL or
//! another argument is invalid, if the program is not attached, or if no handle is free.

use std::net::SocketAddr;

use libc::{c_char, c_int, c_uint, sockaddr, socklen_t};
use netnice_stack::{EtherOptions, IpOptions};

use crate::direct::{ERRORS, IN_ORDER, SEND_ONLY, add_socket, buffers, guarded_int};
use crate::error::CallError;
use crate::{handles, pointers};

/// `struct netnice_term`: one term of a filter of received packets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Term {
    pub(super) offset: u16,
    pub(super) mask: u8,
    pub(super) value: u8,
}

/// `struct netnice_ip`: the parameters of a flow of an IP protocol.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ip {
    pub(super) local: *const sockaddr,
    pub(super) remote: *const sockaddr,
    pub(super) local_length: socklen_t,
    pub(super) remote_length: socklen_t,
    pub(super) contract: *const c_char,
    pub(super) pattern: *const Term,
    pub(super) terms: c_uint,
    pub(super) protocol: c_uint,
    pub(super) buffer_bytes: c_uint,
    pub(super) sending: c_uint,
    pub(super) receiving: c_uint,
    pub(super) hops: c_uint,
    pub(super) flags: c_uint,
}

/// `struct netnice_ether`: the parameters of a flow of an EtherType.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ether {
    pub(super) contract: *const c_char,
    pub(super) pattern: *const Term,
    pub(super) terms: c_uint,
    pub(super) number: c_uint,
    pub(super) buffer_bytes: c_uint,
    pub(super) sending: c_uint,
    pub(super) receiving: c_uint,
    pub(super) flags: c_uint,
}

/// Opens a flow of an IP protocol. Returns the number of the flow.
// SAFETY: the names here and below belong to this library; no other functions with these names are
// linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_open_ip(program: c_int, ip: *const Ip) -> c_int {
    guarded_int(|| {
        let handle = handles::program(program)?;
        let options = pointers::read(ip, "the flow's description")?.options()?;
        let socket = handle.program.open_ip(&options)?;
        add_socket(&handle, socket)
    })
}

/// Opens a flow of an EtherType. Returns the number of the flow.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_open_ether(program: c_int, ether: *const Ether) -> c_int {
    guarded_int(|| {
        let handle = handles::program(program)?;
        let options = pointers::read(ether, "the flow's description")?.options()?;
        let socket = handle.program.open_ether(&options)?;
        add_socket(&handle, socket)
    })
}

impl Ip {
    fn options(&self) -> Result<IpOptions, CallError> {
        if self.flags & !(SEND_ONLY | IN_ORDER | ERRORS) != 0 {
            return Err(CallError::Invalid);
        }
        let ip = |address: SocketAddr| address.ip();
        let local = pointers::address(self.local, self.local_length)?.map(ip);
        let remote = pointers::address(self.remote, self.remote_length)?.map(ip);
        let protocol = u8::try_from(self.protocol).map_err(|_| CallError::Invalid)?;
        let default = match (local, remote) {
            (_, Some(remote)) => IpOptions::to(protocol, remote),
            (Some(local), None) => IpOptions::at(protocol, local),
            (None, None) => return Err(CallError::Null("at least one of local and remote")),
        };
        Ok(IpOptions {
            local: local.unwrap_or(default.local),
            pattern: pattern(self.pattern, self.terms)?,
            contract: pointers::text(self.contract)?,
            buffers: buffers(
                self.buffer_bytes,
                (self.sending, self.receiving),
                self.flags,
            )?,
            hops: match self.hops {
                0 => default.hops,
                hops => u8::try_from(hops).map_err(|_| CallError::Invalid)?,
            },
            in_order: self.flags & IN_ORDER != 0,
            errors: self.flags & ERRORS != 0,
            ..default
        })
    }
}

impl Ether {
    fn options(&self) -> Result<EtherOptions, CallError> {
        if self.flags & !SEND_ONLY != 0 {
            return Err(CallError::Invalid);
        }
        let number = u16::try_from(self.number).map_err(|_| CallError::Invalid)?;
        Ok(EtherOptions {
            number,
            pattern: pattern(self.pattern, self.terms)?,
            contract: pointers::text(self.contract)?,
            buffers: buffers(
                self.buffer_bytes,
                (self.sending, self.receiving),
                self.flags,
            )?,
        })
    }
}

#[cfg(test)]
impl Term {
    /// A term as C writes it.
    pub(super) fn new(offset: u16, mask: u8, value: u8) -> Term {
        Term {
            offset,
            mask,
            value,
        }
    }
}

/// The terms of a filter. Fails if the pointer is NULL and `terms` is not 0, or for too many terms.
fn pattern(from: *const Term, terms: c_uint) -> Result<Vec<netnice_stack::Term>, CallError> {
    let terms = c_int::try_from(terms).map_err(|_| CallError::Invalid)?;
    let terms = pointers::elements(from, terms, "the pattern")?;
    let term = |Term {
                    offset,
                    mask,
                    value,
                }| netnice_stack::Term {
        offset,
        mask,
        value,
    };
    Ok(terms.map(term).collect())
}
