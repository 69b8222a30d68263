//! Reads the bytes that have passed each interface, from the interface's own counters. Fails with
//! [`NetlinkError`] if the kernel does not list the interfaces.
//!
//! With segmentation offload, an interface counts the headers of a large packet once. So its count
//! may be a few percent below what the wire carries.

use std::collections::BTreeMap;

use crate::netlink::{Attributes, Message, NetlinkClient, NetlinkError, Request, find};

/// Bytes that have passed an interface since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteCounts {
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
}

/// Reads the counters of every interface of the namespace, by interface index. Interfaces for which
/// the kernel reports none are left out.
///
/// # Errors
/// If the kernel does not list the interfaces.
pub fn byte_counts(netlink: &mut NetlinkClient) -> Result<BTreeMap<u32, ByteCounts>, NetlinkError> {
    let replies = netlink.dump(
        "read the byte counts of the interfaces",
        Request::new(libc::RTM_GETLINK, 0, &[0; LINK_HEAD]),
    )?;
    Ok(replies.iter().filter_map(read).collect())
}

/// Reads the counters of one interface; `None` if there is none of this name, or if the kernel
/// reports no counters for it.
///
/// # Errors
/// If the request fails for another reason.
pub fn byte_counts_of(
    netlink: &mut NetlinkClient,
    interface: &str,
) -> Result<Option<ByteCounts>, NetlinkError> {
    let name = Attributes::new().text(libc::IFLA_IFNAME, interface);
    let request = Request::new(libc::RTM_GETLINK, 0, &[0; LINK_HEAD]).with(&name);
    match netlink.query("read the byte counts of an interface", request) {
        Ok(replies) => Ok(replies.iter().find_map(read).map(|(_, counts)| counts)),
        Err(error) if error.source.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The index of the interface in a message, and its counters.
fn read(reply: &Message) -> Option<(u32, ByteCounts)> {
    let head = reply.head::<LINK_HEAD>()?;
    let row = reply.attributes(LINK_HEAD);
    let stats = find(&row, libc::IFLA_STATS64)?;
    // struct rtnl_link_stats64: rx_packets, tx_packets, rx_bytes, tx_bytes, …
    let word = |at: usize| {
        let bytes = stats.get(8 * at..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*bytes))
    };
    let index = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
    let counts = ByteCounts {
        received: word(2)?,
        sent: word(3)?,
    };
    Some((index, counts))
}

const LINK_HEAD: usize = 16;
