//! Bytes that have passed each interface, by the interface's own counters.
//!
//! With segmentation offload an interface counts the headers of a large packet once. So it may
//! count a few percent less than the wire carries, never more.

use std::collections::BTreeMap;

use crate::netlink::{Message, NetlinkError, Route, find};

/// Bytes that have passed an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
}

/// Reads the counters of every interface of the namespace, by interface index.
pub fn passed(route: &mut Route) -> Result<BTreeMap<u32, Passed>, NetlinkError> {
    let answers = route.dump(
        "count what has passed the interfaces",
        Message::new(libc::RTM_GETLINK, 0, &[0; LINK_HEAD]),
    )?;
    let read = |answer: &crate::netlink::Answer| {
        let head = answer.head::<LINK_HEAD>()?;
        let row = answer.attributes(LINK_HEAD);
        let stats = find(&row, libc::IFLA_STATS64)?;
        // struct rtnl_link_stats64: rx_packets, tx_packets, rx_bytes, tx_bytes, …
        let word = |at: usize| {
            let bytes = stats.get(8 * at..)?.first_chunk()?;
            Some(u64::from_ne_bytes(*bytes))
        };
        let index = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        let passed = Passed {
            received: word(2)?,
            sent: word(3)?,
        };
        Some((index, passed))
    };
    Ok(answers.iter().filter_map(read).collect())
}

const LINK_HEAD: usize = 16;
