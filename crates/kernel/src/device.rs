//! Lists and classifies the network interfaces of this namespace ([`Device`]), and makes and
//! removes the veth pairs that netnice needs for itself.
//!
//! In each direction, one interface must count and limit a packet, and only one. So netnice's
//! egress and ingress programs belong on every interface that hands packets to this namespace's own
//! stack. They do not belong on an ifb interface, on netnice's own pairs, or on a port (of a bridge
//! or bond, for example), since a port's packets arrive at its master. A port has them only if it
//! is a managed link, or a veth interface while a container is a target. If an interface runs over
//! another one (a VLAN, WireGuard), its packets are counted where the socket's packet first
//! appears. Functions that ask the kernel fail with [`NetlinkError`].

use std::{fs, io};

use crate::netlink::{
    Attributes, NetlinkClient, NetlinkError, Request, attributes, find, number, text,
};

#[cfg(test)]
mod tests;

/// An interface of this namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The interface index.
    pub index: u32,
    /// The interface name.
    pub name: String,
    /// Largest layer 3 packet in bytes.
    pub mtu: u32,
    /// Whether the interface is up.
    pub up: bool,
    /// Whether the driver of the interface reports a carrier (`IFF_LOWER_UP`).
    pub carrier: bool,
    /// The interface's Ethernet address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// The interface's hardware type, `ARPHRD_*`.
    pub hardware: u16,
    /// Kind of a virtual interface (`veth`, `vlan`, …); empty for others.
    pub kind: String,
    /// Kind of its master (`bridge`, `bond`, …); empty if it is not a port.
    pub port_of: String,
    /// Index of the interface below, in this namespace, to which this one hands its packets
    /// unchanged, with their sockets (macvlan, ipvlan); `None` for all other interfaces.
    pub lower: Option<u32>,
    /// Whether the interface below treats arriving packets as its own, because both have the same
    /// layer 2 address.
    pub shares_address: bool,
    /// The id by which this namespace refers to the namespace of the other end of a veth pair, or
    /// of the interface below; `None` if that is this namespace, or there is none.
    pub peer_namespace: Option<u32>,
}

impl Device {
    /// Whether the interface is the loopback interface.
    pub(crate) fn is_loopback(&self) -> bool {
        self.hardware == ARPHRD_LOOPBACK
    }

    /// Whether packets of the interface have no layer 2 header (kernel: `dev_is_mac_header_xmit`).
    pub(crate) fn is_headerless(&self) -> bool {
        HEADERLESS.contains(&self.hardware)
    }

    /// Whether the interface is a port of a bridge, bond, team, Open vSwitch or batman-adv
    /// interface.
    pub(crate) fn is_port(&self) -> bool {
        PORT_MASTERS.contains(&self.port_of.as_str())
    }

    /// Whether the interface is an end of one of netnice's pairs: a veth named `nn0` or `nn1`, or
    /// `nnd`, `nne`, `nnr` or `nns` with a number. Other names with this prefix do not count;
    /// otherwise a name would be enough to escape a limit.
    pub(crate) fn is_ours(&self) -> bool {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let Some(rest) = self.name.strip_prefix(OUR_PREFIX) else {
            return false;
        };
        let pair = rest.strip_prefix(['d', 'e', 'r', 's']).is_some_and(number);
        self.kind == "veth" && (matches!(rest, "0" | "1") || pair)
    }

    /// Whether the interface is an end of another veth pair. Its other end may be in a container.
    pub(crate) fn is_veth(&self) -> bool {
        self.kind == "veth" && !self.is_ours()
    }

    /// Whether packets of this namespace's own sockets first appear on it: it is no port, no ifb
    /// interface and no end of netnice's pairs.
    pub(crate) fn carries_own_packets(&self) -> bool {
        !self.is_ours() && !self.is_port() && self.kind != "ifb"
    }
}

/// All interfaces of the namespace.
///
/// # Errors
/// If the kernel does not list them.
pub fn list(netlink: &mut NetlinkClient) -> Result<Vec<Device>, NetlinkError> {
    let replies = netlink.dump(
        "list the interfaces",
        Request::new(libc::RTM_GETLINK, 0, &link_head(0, 0, 0)),
    )?;
    Ok(replies
        .iter()
        .filter_map(|a| {
            a.head::<LINK_HEAD>()
                .map(|head| device(head, &a.attributes(LINK_HEAD)))
        })
        .collect())
}

/// The id by which this namespace refers to the network namespace of a process. Returns `None` if
/// the kernel has assigned none, for example because no interface of this namespace leads there.
/// Fails if the kernel refuses the request, for example because the process has ended.
pub(crate) fn namespace_of(
    netlink: &mut NetlinkClient,
    pid: u32,
) -> Result<Option<u32>, NetlinkError> {
    // struct rtgenmsg, padded
    let request = Request::new(RTM_GETNSID, 0, &[0; RTGEN_HEAD])
        .with(&Attributes::new().u32(NETNSA_PID, pid));
    let replies = netlink.query("query the id of a network namespace", request)?;
    let rows = replies.iter().map(|reply| reply.attributes(RTGEN_HEAD));
    let numbers = rows.filter_map(|row| find(&row, NETNSA_NSID).and_then(number));
    // NETNSA_NSID_NOT_ASSIGNED is -1.
    Ok(numbers.into_iter().find(|number| *number != u32::MAX))
}

/// The interface of this name; `None` if there is none.
///
/// # Errors
/// As [`list`].
pub fn find_by_name(
    netlink: &mut NetlinkClient,
    name: &str,
) -> Result<Option<Device>, NetlinkError> {
    Ok(list(netlink)?.into_iter().find(|d| d.name == name))
}

/// A veth pair of netnice: a packet that enters the near end leaves at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// Index of the end that carries the classes.
    pub near: u32,
    /// Index of the end whose stage exit program sends packets back to their interfaces.
    pub far: u32,
}

/// Finds or makes the pair of these names: no addresses, no ARP, no IPv6, and [`PAIR_MTU`] at the
/// far end. Fails if the kernel refuses a request, or if the pair is removed during the call.
pub(crate) fn ensure_pair(
    netlink: &mut NetlinkClient,
    near: &str,
    far: &str,
) -> Result<Pair, NetlinkError> {
    let known = list(netlink)?;
    let find = |devices: &[Device]| {
        let index = |name: &str| devices.iter().find(|d| d.name == name).map(|d| d.index);
        Some(Pair {
            near: index(near)?,
            far: index(far)?,
        })
    };
    let pair = match find(&known) {
        Some(pair) => pair,
        None => {
            make_pair(netlink, near, far)?;
            find(&list(netlink)?).ok_or_else(|| NetlinkError {
                what: format!("find the interface pair {near}, {far}"),
                message: None,
                source: io::Error::from_raw_os_error(libc::ENODEV),
            })?
        }
    };
    // Repeated for an existing pair: its maker may have stopped before this step.
    for name in [near, far] {
        // The pair must send no IPv6 packets of its own. The file does not exist without IPv6.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    }
    let up = (libc::IFF_UP | libc::IFF_NOARP) as u32;
    for index in [pair.near, pair.far] {
        let request = Request::new(libc::RTM_NEWLINK, 0, &link_head(index, up, up));
        netlink.execute(&format!("set up the interface pair {near}, {far}"), request)?;
    }
    Ok(pair)
}

fn make_pair(netlink: &mut NetlinkClient, near: &str, far: &str) -> Result<(), NetlinkError> {
    let peer = Attributes::new()
        .text(libc::IFLA_IFNAME, far)
        .u32(libc::IFLA_MTU, PAIR_MTU);
    let mut peer_data = link_head(0, 0, 0).to_vec();
    peer_data.extend_from_slice(peer.as_slice());
    let data = Attributes::new().bytes(VETH_INFO_PEER, &peer_data);
    let info = Attributes::new()
        .text(libc::IFLA_INFO_KIND, "veth")
        .nested(libc::IFLA_INFO_DATA, &data);
    let row = Attributes::new()
        .text(libc::IFLA_IFNAME, near)
        .nested(libc::IFLA_LINKINFO, &info);
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let request = Request::new(libc::RTM_NEWLINK, flags, &link_head(0, 0, 0)).with(&row);
    netlink.execute(&format!("make the interface pair {near}, {far}"), request)
}

/// Removes an interface, and so its peer, if it still exists. Fails if the kernel refuses for
/// another reason.
pub(crate) fn remove(netlink: &mut NetlinkClient, index: u32) -> Result<(), NetlinkError> {
    let request = Request::new(libc::RTM_DELLINK, 0, &link_head(index, 0, 0));
    match netlink.execute(&format!("remove interface {index}"), request) {
        Err(error) if !error.is_gone() => Err(error),
        _ => Ok(()),
    }
}

fn device(head: &[u8; LINK_HEAD], row: &[(u16, &[u8])]) -> Device {
    let info = find(row, libc::IFLA_LINKINFO)
        .map(attributes)
        .unwrap_or_default();
    let word = |kind| find(&info, kind).map(text).unwrap_or_default();
    let kind = word(libc::IFLA_INFO_KIND);
    let peer_namespace = find(row, libc::IFLA_LINK_NETNSID).and_then(number);
    let below = find(row, libc::IFLA_LINK).and_then(number);
    let over = below.filter(|_| peer_namespace.is_none() && UPPER_KINDS.contains(&kind.as_str()));
    let mode = find(&info, libc::IFLA_INFO_DATA)
        .and_then(|data| find(&attributes(data), IFLA_MACVLAN_MODE).and_then(number));
    let flags = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]);
    let mac = find(row, libc::IFLA_ADDRESS).filter(|mac| mac.len() == 6);
    Device {
        index: u32::from_ne_bytes([head[4], head[5], head[6], head[7]]),
        name: find(row, libc::IFLA_IFNAME).map(text).unwrap_or_default(),
        mtu: find(row, libc::IFLA_MTU)
            .and_then(number)
            .unwrap_or_default(),
        up: flags & libc::IFF_UP as u32 != 0,
        carrier: flags & libc::IFF_LOWER_UP as u32 != 0,
        mac: mac.and_then(|mac| mac.first_chunk().copied()),
        hardware: u16::from_ne_bytes([head[2], head[3]]),
        shares_address: over.is_some()
            && (kind.starts_with("ipv") || mode == Some(MACVLAN_MODE_PASSTHRU)),
        lower: over,
        peer_namespace,
        kind,
        port_of: word(libc::IFLA_INFO_SLAVE_KIND),
    }
}

/// `struct ifinfomsg`.
fn link_head(index: u32, flags: u32, change: u32) -> [u8; LINK_HEAD] {
    let mut head = [0; LINK_HEAD];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..12].copy_from_slice(&flags.to_ne_bytes());
    head[12..16].copy_from_slice(&change.to_ne_bytes());
    head
}

/// The prefix of the names of netnice's interfaces.
const OUR_PREFIX: &str = "nn";
/// The MTU of the far end, which the kernel checks for each packet of a pair. No interface but lo
/// (65,536 bytes) has a larger MTU. The packets of lo fit too, because the kernel allows four bytes
/// more, for a VLAN tag. The near end keeps the default MTU, because a token bucket filter needs a
/// burst above the MTU.
const PAIR_MTU: u32 = 65_535;
const LINK_HEAD: usize = 16;
const RTGEN_HEAD: usize = 4;
const RTM_GETNSID: u16 = 90;
const NETNSA_NSID: u16 = 1;
const NETNSA_PID: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;
/// TUNNEL, TUNNEL6, SIT, IPGRE, PIMREG, IP6GRE, RAWIP, PPP, NONE, VOID.
const HEADERLESS: [u16; 10] = [768, 769, 776, 778, 779, 823, 519, 512, 0xFFFE, 0xFFFF];
/// Kinds that lie over another interface. (A VLAN does too, but its packets carry its tag.)
const UPPER_KINDS: [&str; 4] = ["macvlan", "macvtap", "ipvlan", "ipvtap"];
const IFLA_MACVLAN_MODE: u16 = 1;
const MACVLAN_MODE_PASSTHRU: u32 = 8;
const PORT_MASTERS: [&str; 5] = ["bridge", "bond", "team", "openvswitch", "batadv"];
