//! Reserves UDP and TCP ports in the kernel, for direct flows ([`Port`]), joins and leaves
//! multicast groups for them, and reads the lowest port that a user without privileges may use.
//!
//! Direct flows send and receive outside the kernel, but the kernel assigns ports. So a bound
//! socket without `SO_REUSEADDR` reserves a flow's local endpoint in this network namespace. A
//! second flow or socket gets `EADDRINUSE`. A filter drops every packet that still reaches the
//! socket, so the kernel sends no ICMP message for a packet that the driver missed.
//!
//! The socket of a TCP port *listens*, and its filter drops every segment. So the kernel answers
//! none: it sends no RST to a segment that also reaches the driver (in the fallback mode) or that
//! the driver missed. After [`Port::let_kernel_reset`] the socket is only bound: other programs
//! still cannot have the port, and the kernel answers RST to each segment. [`Port::silence`] undoes
//! that. TCP ports conflict with each other socket of the port, also with one in TIME_WAIT, because
//! a listener flow takes all segments of its port.
//!
//! Reserving a port, and joining or leaving a group, fails with the error of the system call.
//! [`first_unprivileged`] does not fail.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::icmp::set_option;

#[cfg(test)]
mod tests;

/// A port that is reserved until this value is dropped.
#[derive(Debug)]
pub struct Port {
    socket: OwnedFd,
    address: SocketAddr,
}

impl Port {
    /// Reserves a UDP port of a local address, or of all addresses. Port 0 selects a free one.
    ///
    /// # Errors
    /// `EADDRINUSE` if the port is taken, and other errors of socket(2), setsockopt(2), bind(2) and
    /// getsockname(2).
    pub fn reserve(at: SocketAddr) -> io::Result<Port> {
        Port::bind(at, SocketType::DGRAM)
    }

    /// Reserves a TCP port of a local address, or of all addresses. Port 0 selects a free one. The
    /// kernel answers no segment to the port.
    ///
    /// # Errors
    /// As [`Port::reserve`], and the errors of listen(2).
    pub fn reserve_tcp(at: SocketAddr) -> io::Result<Port> {
        let mut tries = SELECTED_PORT_TRIES;
        loop {
            // A socket whose port the kernel selected loses it when it stops listening. A named
            // port it keeps. So a selected port is released, and then named.
            let named = match at.port() {
                0 => Port::bind(at, SocketType::STREAM)?.address,
                _ => at,
            };
            match Port::bind(named, SocketType::STREAM) {
                // Another program got the selected port in between.
                Err(error)
                    if at.port() == 0 && tries > 0 && error.kind() == io::ErrorKind::AddrInUse =>
                {
                    tries -= 1;
                }
                bound => {
                    let port = bound?;
                    port.silence()?;
                    return Ok(port);
                }
            }
        }
    }

    /// Has the kernel drop the segments to a TCP port, as at the beginning.
    ///
    /// # Errors
    /// The error of listen(2).
    pub fn silence(&self) -> io::Result<()> {
        Ok(rustix::net::listen(&self.socket, 0)?)
    }

    /// Has the kernel answer RST to each segment to a TCP port. The port stays reserved.
    ///
    /// # Errors
    /// The error of shutdown(2).
    pub fn let_kernel_reset(&self) -> io::Result<()> {
        // The socket leaves the state LISTEN, and stays bound.
        Ok(rustix::net::shutdown(
            &self.socket,
            rustix::net::Shutdown::Read,
        )?)
    }

    fn bind(at: SocketAddr, kind: SocketType) -> io::Result<Port> {
        let family = match at {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        drop_all_packets(&socket)?;
        ignore_path_mtu(&socket, at.is_ipv6())?;
        sockopt::set_socket_recv_buffer_size(&socket, 0)?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        rustix::net::bind(&socket, &at)?;
        let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        Ok(Port { socket, address })
    }

    /// Joins a multicast group on the interface with this index, until [`Port::leave`] or until
    /// this value is dropped. The kernel announces that to the network (IGMP, MLD).
    ///
    /// # Errors
    /// The error of setsockopt(2), for example `EINVAL` if `group` is no multicast group, and
    /// `EADDRINUSE` if it is joined on this interface.
    pub fn join(&self, group: IpAddr, index: u32) -> io::Result<()> {
        let joined = match group {
            IpAddr::V4(group) => {
                let any = Ipv4Addr::UNSPECIFIED;
                sockopt::set_ip_add_membership_with_ifindex(&self.socket, &group, &any, index)
            }
            IpAddr::V6(group) => sockopt::set_ipv6_add_membership(&self.socket, &group, index),
        };
        Ok(joined?)
    }

    /// Leaves a multicast group on the interface with this index. The kernel announces that to the
    /// network if no other socket has joined the group there.
    ///
    /// # Errors
    /// The error of setsockopt(2), for example `EADDRNOTAVAIL` if the group is not joined there.
    pub fn leave(&self, group: IpAddr, index: u32) -> io::Result<()> {
        let left = match group {
            IpAddr::V4(group) => {
                let any = Ipv4Addr::UNSPECIFIED;
                sockopt::set_ip_drop_membership_with_ifindex(&self.socket, &group, &any, index)
            }
            IpAddr::V6(group) => sockopt::set_ipv6_drop_membership(&self.socket, &group, index),
        };
        Ok(left?)
    }

    /// The reserved address, with the selected port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The lowest port for users without privileges (ip_unprivileged_port_start; 1024 if it cannot be
/// read).
pub fn first_unprivileged() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let number = text.ok().and_then(|text| text.trim().parse().ok());
    number.unwrap_or(1024)
}

/// Keeps the kernel from lowering the MTU of a route after an ICMP error that quotes a packet of
/// the socket's address: the error would hold for all programs of the host, and any host can forge
/// it.
fn ignore_path_mtu(socket: &OwnedFd, is_v6: bool) -> io::Result<()> {
    let (level, option) = match is_v6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        false => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    };
    set_option(socket, level, option, &PMTUDISC_INTERFACE.to_ne_bytes())
}

/// How often another port is selected if another program gets the selected one first.
const SELECTED_PORT_TRIES: u32 = 8;

/// `IP_PMTUDISC_INTERFACE` and `IPV6_PMTUDISC_INTERFACE`.
const PMTUDISC_INTERFACE: libc::c_int = 4;

/// Attaches a filter that drops every packet. rustix has no socket filters.
fn drop_all_packets(socket: &OwnedFd) -> io::Result<()> {
    let mut drop_all = [libc::sock_filter {
        code: BPF_RET,
        jt: 0,
        jf: 0,
        k: 0,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: drop_all.as_mut_ptr(),
    };
    // SAFETY: the program and its one instruction outlive the call, and the length is the
    // program's.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `BPF_RET | BPF_K`: with 0, the filter drops the whole packet.
const BPF_RET: u16 = 0x06;
