//! Flows of other protocols than UDP: of another protocol over IP ([`IpOptions`]), and of another
//! EtherType ([`EtherOptions`]). [`Program::open_ip`] and [`Program::open_ether`] open them. They
//! fail with a [`StackError`] if the options are invalid, or if the daemon does not open the flow.
//!
//! A flow of either kind is a [`Socket`], with the calls of a UDP flow. What differs:
//!
//! | | UDP | an IP protocol | an EtherType |
//! |---|---|---|---|
//! | a payload | behind the UDP header | behind the IP header | behind the EtherType |
//! | checksums | computed, validated | the program's own | the program's own |
//! | destination, to any host | [`SocketAddr`] | [`IpAddr`] | six bytes |
//! | sender | [`Received::from`] | the same, with port 0 | [`Received::from_mac`] |
//! | filter of what is received | the port | the pattern | the pattern |
//! | allowed for | every user | root and the group `netnice` | root and the group `netnice` |
//!
//! The IP header is that of UDP flows: no options, "don't fragment". Fragments that arrive are
//! reassembled. A flow of an EtherType has no path MTU, so a payload has at most the MTU of the
//! link. Ethernet frames have at least 60 bytes: a shorter payload can arrive with zeros behind it.
//!
//! ICMP, IGMP, TCP and UDP, and the EtherTypes of IP, ARP and VLAN tags, stay with the kernel: the
//! daemon refuses flows of them.

use std::net::IpAddr;
#[cfg(doc)]
use std::net::SocketAddr;

use netnice_api::direct::{Endpoint, PATTERN_REACH};

pub use netnice_api::direct::Term;

use crate::error::StackError;
use crate::program::Program;
#[cfg(doc)]
use crate::udp::Received;
use crate::udp::{Buffers, Settings, Socket, open_request};

/// The parameters of a flow of an IP protocol other than UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpOptions {
    /// The protocol number, for example 132 for SCTP.
    pub protocol: u8,
    /// The local address. The daemon replaces an unspecified address by the source address of the
    /// route to the remote host, so a flow to any host must name its address.
    pub local: IpAddr,
    /// The remote host; `None`: any host. Each call that sends then names the destination.
    pub remote: Option<IpAddr>,
    /// Filter of what the flow receives: all terms must hold. Offsets count from the first byte
    /// behind the IP header, and are below [`PATTERN_REACH`].
    pub pattern: Vec<Term>,
    /// The contract as text; `None` is best effort.
    pub contract: Option<String>,
    /// The buffers of the flow.
    pub buffers: Buffers,
    /// TTL or hop limit of sent packets.
    pub hops: u8,
    /// As [`UdpOptions::in_order`](crate::udp::UdpOptions::in_order).
    pub in_order: bool,
    /// As [`UdpOptions::errors`](crate::udp::UdpOptions::errors).
    pub errors: bool,
}

/// The parameters of a flow of an EtherType.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtherOptions {
    /// The EtherType, for example 0x88b5, which is reserved for experiments.
    pub number: u16,
    /// Filter of what the flow receives: all terms must hold. Offsets count from the first byte
    /// behind the EtherType, and are below [`PATTERN_REACH`].
    pub pattern: Vec<Term>,
    /// The contract as text; `None` is best effort.
    pub contract: Option<String>,
    /// The buffers of the flow.
    pub buffers: Buffers,
}

impl IpOptions {
    /// A flow of `protocol` to one host: best effort, with a local address that the daemon chooses,
    /// the default buffers, no filter and a TTL of 64.
    pub fn to(protocol: u8, remote: IpAddr) -> IpOptions {
        let local = match remote {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0u16; 8]),
        };
        IpOptions {
            remote: Some(remote),
            ..IpOptions::at(protocol, local)
        }
    }

    /// A flow of `protocol` from the address `local` to any host: best effort, with the default
    /// buffers, no filter and a TTL of 64.
    pub fn at(protocol: u8, local: IpAddr) -> IpOptions {
        IpOptions {
            protocol,
            local,
            remote: None,
            pattern: Vec::new(),
            contract: None,
            buffers: Buffers::default(),
            hops: 64,
            in_order: false,
            errors: false,
        }
    }
}

impl EtherOptions {
    /// A flow of an EtherType: best effort, with the default buffers and without a filter.
    pub fn new(number: u16) -> EtherOptions {
        EtherOptions {
            number,
            pattern: Vec::new(),
            contract: None,
            buffers: Buffers::default(),
        }
    }
}

impl Program {
    /// Requests a flow of an IP protocol from the daemon, and makes a socket of it.
    ///
    /// # Errors
    /// If the options are invalid, there is no connection to the daemon, the daemon does not grant
    /// the flow (a protocol that the kernel serves, a peer without permission, a contract that does
    /// not fit), or a buffer is smaller than a packet of the path.
    pub fn open_ip(&self, options: &IpOptions) -> Result<Socket, StackError> {
        check_pattern(&options.pattern)?;
        let endpoint = Endpoint::Protocol {
            number: options.protocol,
            local: options.local,
            remote: options.remote,
            pattern: options.pattern.clone(),
        };
        let settings = Settings {
            hops: options.hops,
            errors: options.errors,
            ..Settings::new(options.buffers)
        };
        let contract = options.contract.clone();
        let (open, shape) = open_request(endpoint, contract, options.buffers, options.in_order)?;
        self.open_flow(open, shape, settings)
    }

    /// Requests a flow of an EtherType from the daemon, and makes a socket of it.
    ///
    /// # Errors
    /// As [`Program::open_ip`].
    pub fn open_ether(&self, options: &EtherOptions) -> Result<Socket, StackError> {
        check_pattern(&options.pattern)?;
        let endpoint = Endpoint::EtherType {
            number: options.number,
            pattern: options.pattern.clone(),
        };
        let contract = options.contract.clone();
        let (open, shape) = open_request(endpoint, contract, options.buffers, false)?;
        self.open_flow(open, shape, Settings::new(options.buffers))
    }
}

/// Fails if an offset of the pattern is too large, or a value has bits outside its mask: no packet
/// would match.
fn check_pattern(pattern: &[Term]) -> Result<(), StackError> {
    for term in pattern {
        if term.offset >= PATTERN_REACH || term.value & !term.mask != 0 {
            return Err(StackError::Pattern(*term));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
