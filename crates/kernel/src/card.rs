//! The abilities of an interface for the direct path: where XDP can run, and what the NIC can do by
//! itself.
//!
//! The input is an interface's name, the output a [`Card`]. The kernel reports the abilities of a
//! driver over generic netlink (family `netdev`, Linux 6.3), and the XDP programs of an interface
//! over route netlink. The ethtool ioctl reports whether a NIC can steer flows to queues. An
//! ability that the kernel does not report is `None` or false.

use std::io;

use crate::netlink::{Answer, Attributes, Message, NetlinkError, Route, attributes, find, number};
use crate::{device, speed};

/// The abilities of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// Whether its driver can run XDP; `None` if the kernel does not report it.
    pub native: Option<bool>,
    /// Whether AF_XDP works without a copy; `None` if the kernel does not report it.
    pub zero_copy: Option<bool>,
    /// Whether the NIC accepts a departure time for each frame.
    pub paces: bool,
    /// Whether the NIC can steer a flow to a chosen queue.
    pub steers: bool,
    /// The number of receive queues, if known.
    pub queues: Option<Queues>,
    /// Where an XDP program is attached now.
    pub attached: Attached,
}

/// The number of receive queues of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// The number in use, from the driver.
    Exactly(u32),
    /// An upper bound, from the kernel.
    AtMost(u32),
}

/// The place of an XDP program on an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attached {
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
    // SAFETY: no pointers; the descriptor is closed at once.
    unsafe {
        let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::close(fd);
    }
    Ok(())
}

/// Reads the abilities of an interface. Returns `None` if it does not exist.
pub fn look(route: &mut Route, name: &str) -> Result<Option<Card>, NetlinkError> {
    let Some(device) = device::find_by_name(route, name)? else {
        return Ok(None);
    };
    let abilities = abilities(device.index);
    let (xdp, socket) = abilities.unwrap_or_default();
    Ok(Some(Card {
        native: xdp.map(|bits| bits & (BASIC | REDIRECT) == BASIC | REDIRECT),
        zero_copy: xdp.map(|bits| bits & ZERO_COPY != 0),
        paces: socket.is_some_and(|bits| bits & LAUNCH_TIME != 0),
        steers: speed::steers(name).unwrap_or(false),
        queues: queues(route, name, device.index)?,
        attached: attached(route, device.index)?,
    }))
}

/// The number of receive queues of an interface. Returns `None` if it is unknown.
pub fn receive_queues(name: &str) -> Result<Option<Queues>, NetlinkError> {
    let mut route = Route::open()?;
    match device::find_by_name(&mut route, name)? {
        Some(device) => queues(&mut route, name, device.index),
        None => Ok(None),
    }
}

fn queues(route: &mut Route, name: &str, index: u32) -> Result<Option<Queues>, NetlinkError> {
    if let Ok(Some(count)) = speed::receive_queues(name) {
        return Ok(Some(Queues::Exactly(count)));
    }
    let answers = link(route, "ask for the queues of an interface", index)?;
    let row = answers.first().map(|answer| answer.attributes(LINK_HEAD));
    let count = row.as_deref().and_then(|row| find(row, IFLA_NUM_RX_QUEUES));
    Ok(count.and_then(number).map(Queues::AtMost))
}

fn attached(route: &mut Route, index: u32) -> Result<Attached, NetlinkError> {
    let answers = link(route, "ask whether XDP is on an interface", index)?;
    let row = answers.first().map(|answer| answer.attributes(LINK_HEAD));
    let xdp = row.as_deref().and_then(|row| find(row, IFLA_XDP));
    let xdp = xdp.map(attributes).unwrap_or_default();
    Ok(
        match find(&xdp, IFLA_XDP_ATTACHED).and_then(|v| v.first()) {
            None | Some(0) => Attached::No,
            Some(1) => Attached::Native,
            Some(2) => Attached::Generic,
            Some(_) => Attached::Other,
        },
    )
}

/// Asks the kernel for the link message of an interface.
fn link(route: &mut Route, what: &str, index: u32) -> Result<Vec<Answer>, NetlinkError> {
    let mut head = [0; LINK_HEAD];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    route.ask(what, Message::new(libc::RTM_GETLINK, 0, &head))
}

/// The abilities of a driver: the bits of XDP, and those of AF_XDP sockets. `None` if the kernel
/// does not report them.
fn abilities(index: u32) -> Option<(Option<u64>, Option<u64>)> {
    let mut generic = Route::open_generic().ok()?;
    let head = [CTRL_CMD_GETFAMILY, 1, 0, 0];
    let asked = Attributes::new().text(CTRL_ATTR_FAMILY_NAME, "netdev");
    let message = Message::new(GENL_ID_CTRL, 0, &head).with(&asked);
    let answers = generic.ask("look for the family netdev", message).ok()?;
    let row = answers.first()?.attributes(GENERIC_HEAD);
    let family = find(&row, CTRL_ATTR_FAMILY_ID)?;
    let family = u16::from_ne_bytes(*family.first_chunk()?);
    let head = [NETDEV_CMD_DEV_GET, 1, 0, 0];
    let message =
        Message::new(family, 0, &head).with(&Attributes::new().u32(NETDEV_IFINDEX, index));
    let answers = generic
        .ask("ask for the abilities of a driver", message)
        .ok()?;
    let row = answers
        .iter()
        .map(|answer| answer.attributes(GENERIC_HEAD))
        .find(|row| find(row, NETDEV_IFINDEX).and_then(number) == Some(index))?;
    let bits = |kind| {
        let value = find(&row, kind)?;
        value.first_chunk().map(|bits| u64::from_ne_bytes(*bits))
    };
    Some((bits(NETDEV_XDP_FEATURES), bits(NETDEV_XSK_FEATURES)))
}

const LINK_HEAD: usize = 16;
/// Size of `struct genlmsghdr` in bytes.
const GENERIC_HEAD: usize = 4;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
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
    fn lo_is_no_card_and_no_other_interface_is_there() {
        let mut route = Route::open().expect("a connection");
        let lo = look(&mut route, "lo")
            .expect("an answer")
            .expect("it is there");
        assert_eq!((lo.paces, lo.steers), (false, false));
        assert_ne!(lo.native, Some(true));
        assert_eq!(look(&mut route, "nosuch0").expect("an answer"), None);
    }
}
