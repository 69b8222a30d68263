//! Reserves UDP ports in the kernel, for direct flows ([`Port`]).
//!
//! Direct flows send and receive outside the kernel, but the kernel assigns ports. So a bound
//! socket without `SO_REUSEADDR` reserves a flow's local endpoint in this network namespace. A
//! second flow or socket gets `EADDRINUSE`. A filter drops every packet that still reaches the
//! socket, so the kernel sends no ICMP message for a packet that the driver missed.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

#[cfg(test)]
mod tests;

/// A port that is reserved until this value is dropped.
#[derive(Debug)]
pub struct Port {
    socket: OwnedFd,
    address: SocketAddr,
}

impl Port {
    /// Reserves a port of a local address, or of all addresses. Port 0 selects a free one.
    ///
    /// # Errors
    /// `EADDRINUSE` if the port is taken, and other errors of bind(2) and setsockopt(2).
    pub fn reserve(at: SocketAddr) -> io::Result<Port> {
        let domain = match at {
            SocketAddr::V4(_) => libc::AF_INET,
            SocketAddr::V6(_) => libc::AF_INET6,
        };
        // SAFETY: no pointers; this function alone owns the new descriptor.
        let fd = unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: checked above to be a descriptor; nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
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
        set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &0_i32)?;
        if at.is_ipv6() {
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1_i32)?;
        }
        bind(&socket, at)?;
        let address = local_address(&socket)?;
        Ok(Port { socket, address })
    }

    /// Joins a multicast group on the interface with this index until this value is dropped. The
    /// kernel announces that to the network (IGMP, MLD).
    ///
    /// # Errors
    /// The error of setsockopt(2), for example `EINVAL` if `group` is no multicast group.
    pub fn join(&self, group: IpAddr, index: u32) -> io::Result<()> {
        let (level, option) = match group {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP),
        };
        match group {
            IpAddr::V4(group) => {
                let request = libc::ip_mreqn {
                    imr_multiaddr: raw_v4(group),
                    imr_address: raw_v4(Ipv4Addr::UNSPECIFIED),
                    imr_ifindex: index as i32,
                };
                set(&self.socket, level, option, &request)
            }
            IpAddr::V6(group) => {
                let request = libc::ipv6_mreq {
                    ipv6mr_multiaddr: raw_v6(group),
                    ipv6mr_interface: index,
                };
                set(&self.socket, level, option, &request)
            }
        }
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

fn set<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value outlives the call and has the given length; what it points to is owned by
    // the caller.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const *value).cast(),
            length,
        )
    };
    check(done)
}

fn bind(socket: &OwnedFd, at: SocketAddr) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    let done = match at {
        SocketAddr::V4(at) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: at.port().to_be(),
                sin_addr: raw_v4(*at.ip()),
                sin_zero: [0; 8],
            };
            let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            // SAFETY: the address outlives the call and has the given length.
            unsafe { libc::bind(fd, (&raw const raw).cast(), length) }
        }
        SocketAddr::V6(at) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: at.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: raw_v6(*at.ip()),
                sin6_scope_id: at.scope_id(),
            };
            let length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            // SAFETY: the address outlives the call and has the given length.
            unsafe { libc::bind(fd, (&raw const raw).cast(), length) }
        }
    };
    check(done)
}

fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    // SAFETY: zeros are a valid address without a family.
    let mut raw: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: the buffer has the size of the longest address of the two families, and its length is
    // passed.
    check(unsafe { libc::getsockname(fd, (&raw mut raw).cast(), &raw mut length) })?;
    let port = u16::from_be(raw.sin6_port);
    if i32::from(raw.sin6_family) == libc::AF_INET {
        // SAFETY: the kernel wrote an address of this family, which is shorter.
        let raw: libc::sockaddr_in = unsafe { std::mem::transmute_copy(&raw) };
        let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
        return Ok(SocketAddrV4::new(ip, port).into());
    }
    let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
    Ok(SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id).into())
}

fn check(done: i32) -> io::Result<()> {
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn raw_v4(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr {
        s_addr: u32::from(address).to_be(),
    }
}

fn raw_v6(address: Ipv6Addr) -> libc::in6_addr {
    libc::in6_addr {
        s6_addr: address.octets(),
    }
}

/// `BPF_RET | BPF_K`: with 0, the filter drops the whole packet.
const BPF_RET: u16 = 0x06;
