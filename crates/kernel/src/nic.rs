//! Reads the abilities of an interface for the direct path: where XDP can run, and what the NIC can
//! do by itself.
//!
//! An interface's name comes in, and [`NicFeatures`] come out ([`features`]). The kernel reports
//! the abilities of a driver over generic netlink (family `netdev`, Linux 6.3), and the XDP
//! programs of an interface over route netlink. The ethtool ioctl reports whether a NIC can steer
//! flows to queues. An ability that the kernel does not report is `None` or false, and the result
//! for a missing interface is `None`. A failed request over route netlink is an error
//! ([`NetlinkError`]). [`has_af_xdp`] fails if no AF_XDP socket can be made.

use std::io;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::netlink::{
    Attributes, GENERIC_HEAD, Message, NetlinkClient, NetlinkError, Request, attributes, find,
    number,
};
use crate::{device, ethtool};

/// The abilities of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicFeatures {
    /// Whether the driver can run XDP programs that redirect frames; `None` if the kernel does not
    /// report it.
    pub native: Option<bool>,
    /// Whether AF_XDP works without a copy; `None` if the kernel does not report it.
    pub zero_copy: Option<bool>,
    /// Whether the NIC accepts a departure time for each frame.
    pub launch_time: bool,
    /// Whether the NIC can steer a flow to a chosen queue, and this is enabled.
    pub flow_steering: bool,
    /// The number of receive queues, if known.
    pub queues: Option<ReceiveQueues>,
    /// Where an XDP program is attached now.
    pub attached: XdpAttachment,
}

/// The number of receive queues of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveQueues {
    /// The number in use, from the driver.
    Exactly(u32),
    /// An upper bound, from the kernel.
    AtMost(u32),
}

/// The place of an XDP program on an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpAttachment {
    /// No program is attached.
    #[default]
    No,
    /// In the driver.
    Native,
    /// In the kernel, behind the driver.
    Generic,
    /// In the NIC, or in several places.
    Other,
}

/// Checks that an AF_XDP socket can be made.
///
/// # Errors
/// The error of socket(2).
pub fn has_af_xdp() -> io::Result<()> {
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    rustix::net::socket_with(AddressFamily::XDP, kind, flags, None)?;
    Ok(())
}

/// Reads the abilities of an interface. Returns `None` if it does not exist.
///
/// # Errors
/// If a request over route netlink fails.
pub fn features(
    netlink: &mut NetlinkClient,
    name: &str,
) -> Result<Option<NicFeatures>, NetlinkError> {
    let Some(device) = device::find_by_name(netlink, name)? else {
        return Ok(None);
    };
    let reported = driver_features(device.index);
    let (xdp, socket) = reported.unwrap_or_default();
    Ok(Some(NicFeatures {
        native: xdp.map(|bits| bits & (BASIC | REDIRECT) == BASIC | REDIRECT),
        zero_copy: xdp.map(|bits| bits & ZERO_COPY != 0),
        launch_time: socket.is_some_and(|bits| bits & LAUNCH_TIME != 0),
        flow_steering: ethtool::has_flow_steering(name).unwrap_or(false),
        queues: queues(netlink, name, device.index)?,
        attached: xdp_attachment(netlink, device.index)?,
    }))
}

/// The largest number of receive queues that an interface can have without being made again; 1 if
/// it is unknown.
///
/// # Errors
/// If the connection to route netlink cannot be opened, or a request fails.
pub fn max_receive_queues(name: &str) -> Result<u32, NetlinkError> {
    let mut netlink = NetlinkClient::open()?;
    let Some(device) = device::find_by_name(&mut netlink, name)? else {
        return Ok(1);
    };
    let most = reserved_queues(&mut netlink, device.index)?;
    Ok(most.unwrap_or(1).max(1))
}

/// The number of receive queues for which the kernel has reserved memory; `None` if it is unknown.
fn reserved_queues(netlink: &mut NetlinkClient, index: u32) -> Result<Option<u32>, NetlinkError> {
    let replies = link(netlink, "read the queues of an interface", index)?;
    let row = replies.first().map(|reply| reply.attributes(LINK_HEAD));
    let count = row.as_deref().and_then(|row| find(row, IFLA_NUM_RX_QUEUES));
    Ok(count.and_then(number))
}

/// The number of receive queues of an interface. Returns `None` if it is unknown, or if there is no
/// such interface.
///
/// # Errors
/// If the connection to route netlink cannot be opened, or a request fails.
pub fn receive_queues(name: &str) -> Result<Option<ReceiveQueues>, NetlinkError> {
    let mut netlink = NetlinkClient::open()?;
    match device::find_by_name(&mut netlink, name)? {
        Some(device) => queues(&mut netlink, name, device.index),
        None => Ok(None),
    }
}

fn queues(
    netlink: &mut NetlinkClient,
    name: &str,
    index: u32,
) -> Result<Option<ReceiveQueues>, NetlinkError> {
    if let Ok(Some(count)) = ethtool::receive_queues(name) {
        return Ok(Some(ReceiveQueues::Exactly(count)));
    }
    Ok(reserved_queues(netlink, index)?.map(ReceiveQueues::AtMost))
}

fn xdp_attachment(netlink: &mut NetlinkClient, index: u32) -> Result<XdpAttachment, NetlinkError> {
    let replies = link(netlink, "read the XDP state of an interface", index)?;
    let row = replies.first().map(|reply| reply.attributes(LINK_HEAD));
    let xdp = row.as_deref().and_then(|row| find(row, IFLA_XDP));
    let xdp = xdp.map(attributes).unwrap_or_default();
    Ok(
        match find(&xdp, IFLA_XDP_ATTACHED).and_then(|v| v.first()) {
            None | Some(0) => XdpAttachment::No,
            Some(1) => XdpAttachment::Native,
            Some(2) => XdpAttachment::Generic,
            Some(_) => XdpAttachment::Other,
        },
    )
}

/// Asks the kernel for the link message of an interface.
fn link(netlink: &mut NetlinkClient, what: &str, index: u32) -> Result<Vec<Message>, NetlinkError> {
    let mut head = [0; LINK_HEAD];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    netlink.query(what, Request::new(libc::RTM_GETLINK, 0, &head))
}

/// The abilities of a driver: the bits of XDP, and those of AF_XDP sockets. `None` if the kernel
/// does not report them.
fn driver_features(index: u32) -> Option<(Option<u64>, Option<u64>)> {
    let mut generic = NetlinkClient::open_generic().ok()?;
    let family = generic.family("netdev")?;
    let head = [NETDEV_CMD_DEV_GET, 1, 0, 0];
    let request =
        Request::new(family, 0, &head).with(&Attributes::new().u32(NETDEV_IFINDEX, index));
    let replies = generic
        .query("read the features of a driver", request)
        .ok()?;
    let row = replies
        .iter()
        .map(|reply| reply.attributes(GENERIC_HEAD))
        .find(|row| find(row, NETDEV_IFINDEX).and_then(number) == Some(index))?;
    let bits = |kind| {
        let value = find(&row, kind)?;
        value.first_chunk().map(|bits| u64::from_ne_bytes(*bits))
    };
    Some((bits(NETDEV_XDP_FEATURES), bits(NETDEV_XSK_FEATURES)))
}

const LINK_HEAD: usize = 16;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_IFINDEX: u16 = 1;
const NETDEV_XDP_FEATURES: u16 = 3;
const NETDEV_XSK_FEATURES: u16 = 6;
/// `NETDEV_XDP_ACT_*`.
const BASIC: u64 = 1;
const REDIRECT: u64 = 2;
const ZERO_COPY: u64 = 8;
/// `NETDEV_XSK_FLAGS_TX_LAUNCH_TIME_FIFO`.
const LAUNCH_TIME: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lo_has_no_nic_features_and_a_missing_interface_has_none() {
        let mut netlink = NetlinkClient::open().expect("a connection");
        let lo = features(&mut netlink, "lo")
            .expect("a reply")
            .expect("it is there");
        assert_eq!((lo.launch_time, lo.flow_steering), (false, false));
        assert_ne!(lo.native, Some(true));
        assert_eq!(features(&mut netlink, "nosuch0").expect("a reply"), None);
    }
}
