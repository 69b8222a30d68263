//! Lists the TCP and UDP sockets of this namespace, as sock_diag(7) reports them: the peer, and for
//! TCP the bytes passed.
//!
//! One dump for each protocol and address family returns all sockets, because the kernel has no
//! filter by inode. So the daemon calls [`list`] only for a request for the connections of a
//! target, and about once a minute while some sockets have no room for a tag. [`list`] fails with
//! [`NetlinkError`] if the kernel cannot list the sockets; it leaves out UDP or IPv6 sockets if the
//! kernel does not support them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::error::KernelError;
use crate::netlink::{self, Message, NetlinkClient, NetlinkError, Request};

/// A TCP or UDP socket, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The socket's inode number; 0 if no process holds it any more.
    pub inode: u64,
    /// The socket's cookie, which no other socket ever has.
    pub cookie: u64,
    /// The user id of the socket's creator.
    pub uid: u32,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer; `None` without a peer.
    pub peer: Option<SocketAddr>,
    /// The TCP state, for example `established` or `listen`; `None` for UDP.
    pub state: Option<&'static str>,
    /// Bytes that the peer has acknowledged. `None` if the kernel does not report them: for UDP,
    /// and for a TCP socket without `tcp_info` (as in time-wait).
    pub sent: Option<u64>,
    /// Bytes received; `None` as for `sent`.
    pub received: Option<u64>,
    /// The id of the control group in which it was created. `None` if the kernel does not report
    /// it (before Linux 5.9).
    pub cgroup: Option<u64>,
}

/// As [`list`], with a connection for socket diagnosis of its own.
///
/// # Errors
/// As [`list`], or if the connection cannot be opened.
pub fn list_all() -> Result<Vec<Connection>, KernelError> {
    Ok(list(&mut NetlinkClient::open_diagnosis()?)?)
}

/// All TCP and UDP sockets that are bound or connected. `diag` is a connection for socket diagnosis
/// ([`NetlinkClient::open_diagnosis`]).
///
/// # Errors
/// If the kernel cannot list TCP sockets of IPv4, or a listing fails. UDP or IPv6 sockets that the
/// kernel does not support are left out.
pub fn list(diag: &mut NetlinkClient) -> Result<Vec<Connection>, NetlinkError> {
    let mut found = Vec::new();
    for (number, protocol) in [(libc::IPPROTO_TCP, "tcp"), (libc::IPPROTO_UDP, "udp")] {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let what = format!("list the {protocol} sockets");
            let needed = number == libc::IPPROTO_TCP && family == libc::AF_INET;
            let replies = match diag.dump(&what, request(family as u8, number as u8)) {
                // The kernel has no diagnosis of UDP, or no IPv6.
                Err(error) if error.is_gone() && !needed => continue,
                replies => replies?,
            };
            found.extend(replies.iter().filter_map(|message| read(message, protocol)));
        }
    }
    Ok(found)
}

/// `struct inet_diag_req_v2`: any socket of this family and protocol, in any state, with its
/// `tcp_info`.
fn request(family: u8, protocol: u8) -> Request {
    let mut head = [0; REQUEST_LEN];
    head[0] = family;
    head[1] = protocol;
    head[2] = 1 << (INET_DIAG_INFO - 1);
    head[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    Request::new(SOCK_DIAG_BY_FAMILY, 0, &head)
}

/// `struct inet_diag_msg`: family, state, two unused bytes; ports and addresses in network order;
/// interface, cookie (at 44), timers and queues; user and inode.
fn read(message: &Message, protocol: &'static str) -> Option<Connection> {
    let head = message.head::<REPLY_LEN>()?;
    let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let address = |at: usize| -> Option<IpAddr> {
        let bytes = head.get(at..at + 16)?;
        match i32::from(head[0]) {
            libc::AF_INET => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
            libc::AF_INET6 => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).to_canonical()),
            _ => None,
        }
    };
    let row = message.attributes(REPLY_LEN);
    let info = netlink::find(&row, INET_DIAG_INFO).unwrap_or_default();
    let count = |at: usize| {
        let bytes = info.get(at..)?.first_chunk::<8>()?;
        Some(u64::from_ne_bytes(*bytes))
    };
    let tcp = protocol == "tcp";
    let peer = SocketAddr::new(address(24)?, port(6));
    Some(Connection {
        inode: netlink::number(&head[68..])?.into(),
        // Two 32-bit words, the low one first.
        cookie: u64::from(netlink::number(&head[44..])?)
            | u64::from(netlink::number(&head[48..])?) << 32,
        uid: netlink::number(&head[64..])?,
        protocol,
        local: SocketAddr::new(address(8)?, port(4)),
        peer: (peer.port() != 0).then_some(peer),
        state: STATES.get(usize::from(head[1])).copied().filter(|_| tcp),
        sent: count(BYTES_ACKED).filter(|_| tcp),
        received: count(BYTES_RECEIVED).filter(|_| tcp),
        cgroup: netlink::find(&row, INET_DIAG_CGROUP_ID)
            .and_then(|bytes| bytes.first_chunk::<8>())
            .map(|bytes| u64::from_ne_bytes(*bytes)),
    })
}

/// linux/sock_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// linux/inet_diag.h
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CGROUP_ID: u16 = 21;
const REQUEST_LEN: usize = 56;
const REPLY_LEN: usize = 72;
/// Offsets of `tcpi_bytes_acked` and `tcpi_bytes_received` in `struct tcp_info` (linux/tcp.h).
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;

/// By number (net/tcp_states.h).
const STATES: [&str; 13] = [
    "unknown",
    "established",
    "syn-sent",
    "syn-recv",
    "fin-wait-1",
    "fin-wait-2",
    "time-wait",
    "closed",
    "close-wait",
    "last-ack",
    "listen",
    "closing",
    "new-syn-recv",
];

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    use super::*;

    fn inode(socket: &impl AsRawFd) -> u64 {
        let own = crate::process::sockets(std::process::id());
        let found = own.iter().find(|(fd, _)| *fd == socket.as_raw_fd());
        found.expect("a descriptor of ours").1
    }

    #[test]
    fn the_list_shows_each_socket_with_its_peer_and_the_bytes_it_passed() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else {
                eprintln!("left out: nothing can be bound at {any}");
                continue;
            };
            let address = listener.local_addr().expect("an address");
            let mut client = TcpStream::connect(address).expect("a connection");
            let (mut server, _) = listener.accept().expect("its other end");
            client.write_all(&[7; 5000]).expect("room");
            server.read_exact(&mut [0; 5000]).expect("5000 bytes");
            let udp = UdpSocket::bind(any).expect("a UDP socket");
            let mut diag = NetlinkClient::open_diagnosis().expect("a netlink socket");
            let all = list(&mut diag).expect("a list");
            let of = |inode: u64| all.iter().find(|c| c.inode == inode).expect("one of ours");
            let sender = of(inode(&client));
            assert_eq!((sender.protocol, sender.peer), ("tcp", Some(address)));
            assert_eq!(sender.state, Some("established"));
            let receiver = of(inode(&server));
            assert_eq!(receiver.received, Some(5000), "{receiver:?}");
            assert_eq!(receiver.peer, client.local_addr().ok());
            let waits = of(inode(&listener));
            assert_eq!((waits.state, waits.peer), (Some("listen"), None));
            let datagrams = of(inode(&udp));
            assert_eq!((datagrams.protocol, datagrams.state), ("udp", None));
            assert_eq!(Some(datagrams.local), udp.local_addr().ok());
            assert_eq!((datagrams.peer, datagrams.sent), (None, None));
        }
    }
}
