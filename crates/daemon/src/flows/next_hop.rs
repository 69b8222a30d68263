//! The next hop of a flow ([`NextHop`]). No function fails.

use std::net::IpAddr;

/// The next hop of a flow's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextHop {
    /// The program names it for each packet.
    Any,
    /// The Ethernet address of a multicast group.
    Group([u8; 6]),
    /// The next hop towards a host.
    Toward {
        /// The host.
        host: IpAddr,
        /// The local address.
        from: IpAddr,
        /// The IP address of the next hop.
        via: IpAddr,
        /// The Ethernet address of the next hop; `None` while it is unknown.
        mac: Option<[u8; 6]>,
    },
}

impl NextHop {
    /// The Ethernet address; `None` while it is unknown, and if the program names it.
    pub(super) fn mac(&self) -> Option<[u8; 6]> {
        match self {
            NextHop::Any => None,
            NextHop::Group(mac) => Some(*mac),
            NextHop::Toward { mac, .. } => *mac,
        }
    }

    /// The same next hop with another Ethernet address.
    pub(super) fn with_mac(self, mac: Option<[u8; 6]>) -> NextHop {
        match self {
            NextHop::Toward {
                host, from, via, ..
            } => NextHop::Toward {
                host,
                from,
                via,
                mac,
            },
            other => other,
        }
    }
}
