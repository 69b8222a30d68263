//! The address that a call names as the destination of a payload ([`Address`]). No function fails.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// A destination. Calls take everything that converts to it: a [`SocketAddr`] on a UDP flow, an
/// [`IpAddr`] on a flow of another IP protocol, and six bytes on a flow of an EtherType.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IP address and a port; the port is 0 on a flow of an IP protocol other than UDP.
    Ip(SocketAddr),
    /// The Ethernet address of one station of the link.
    Ethernet([u8; 6]),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Ip(address)
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Address {
        Address::Ip(SocketAddr::new(address, 0))
    }
}

impl From<[u8; 6]> for Address {
    fn from(address: [u8; 6]) -> Address {
        Address::Ethernet(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(address) if address.port() == 0 => address.ip().fmt(f),
            Address::Ip(address) => address.fmt(f),
            Address::Ethernet(mac) => {
                let bytes = mac.map(|byte| format!("{byte:02x}"));
                f.write_str(&bytes.join(":"))
            }
        }
    }
}

/// The address of a host as the endpoint of a flow without ports.
pub(crate) fn without_port(host: IpAddr) -> SocketAddr {
    SocketAddr::new(host, 0)
}
