//! The listening sockets of services ([`Listener`]): binds them and accepts connections. A service
//! without an address, whose protocol is `tcp` or `udp`, gets one socket for IPv6 and IPv4, or for
//! IPv4 if the kernel has no IPv6. The other protocols (`tcp4`, …) name one address family. If the
//! service has an address, the socket has the family of the address. Fails with the error of the
//! system call.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::config::{Family, Protocol, Service};

/// The socket of a service.
pub(super) struct Listener {
    /// Index of the service in the configuration.
    pub service: usize,
    /// The address and port of the socket.
    pub at: SocketAddr,
    socket: Socket,
}

enum Socket {
    Stream(TcpListener),
    Datagram(UdpSocket),
}

impl Listener {
    /// Binds the port of a service, whose index in the configuration is `service`. Fails with the
    /// error of the system call, for example if the port is in use.
    pub(super) fn open(service: usize, what: &Service) -> io::Result<Listener> {
        let Protocol { datagram, family } = what.protocol;
        let any4 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let any6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let (address, both) = match (what.address, family) {
            (Some(address), _) => (address, false),
            (None, Family::V4) => (any4, false),
            (None, Family::V6) => (any6, false),
            (None, Family::Any) => (any6, true),
        };
        let at = SocketAddr::new(address, what.port);
        let opened = match open(at, datagram, both) {
            // The kernel has no IPv6.
            Err(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::ADDRNOTAVAIL) if both => {
                open(SocketAddr::new(any4, what.port), datagram, false)
            }
            other => other,
        };
        let fd = opened?;
        let (at, socket) = match datagram {
            false => {
                let listener = TcpListener::from(fd);
                // The program of a `wait` service reads the socket, which must block.
                listener.set_nonblocking(!what.wait)?;
                (listener.local_addr()?, Socket::Stream(listener))
            }
            true => {
                let socket = UdpSocket::from(fd);
                (socket.local_addr()?, Socket::Datagram(socket))
            }
        };
        Ok(Listener {
            service,
            at,
            socket,
        })
    }

    /// Accepts the next connection. Returns the connection and the client's address, or `None` if
    /// no connection waits or the socket is for datagrams. Does not block unless the service is
    /// `wait`. Fails with the error of accept(2).
    pub(super) fn accept(&self) -> io::Result<Option<(OwnedFd, IpAddr)>> {
        let Socket::Stream(listener) = &self.socket else {
            return Ok(None);
        };
        match listener.accept() {
            Ok((stream, client)) => Ok(Some((stream.into(), client.ip().to_canonical()))),
            Err(error) => match error.kind() {
                // There is no connection, or the client closed it again.
                io::ErrorKind::WouldBlock
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// A duplicate of the socket, for a program that serves it. Fails with the error of the system
    /// call.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.as_fd().try_clone_to_owned()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Stream(socket) => socket.as_fd(),
            Socket::Datagram(socket) => socket.as_fd(),
        }
    }
}

fn open(at: SocketAddr, datagram: bool, both: bool) -> rustix::io::Result<OwnedFd> {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let kind = match datagram {
        true => SocketType::DGRAM,
        false => SocketType::STREAM,
    };
    let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, !both)?;
    }
    if !datagram {
        // Connections of an earlier server may be in TIME_WAIT.
        sockopt::set_socket_reuseaddr(&fd, true)?;
    }
    rustix::net::bind(&fd, &at)?;
    if !datagram {
        rustix::net::listen(&fd, BACKLOG)?;
    }
    Ok(fd)
}

/// Largest number of connections that wait to be accepted.
const BACKLOG: i32 = 256;
