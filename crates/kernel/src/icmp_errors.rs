//! Reads the ICMP errors that arrive at this host ([`ErrorSocket`]): a router or a host reports
//! that it did not deliver a packet, and quotes the packet (RFC 792, RFC 4443).
//!
//! The sockets are raw, and get a copy of each message: the kernel handles it as before. They pass
//! errors only (a filter of the kernel). An error can be forged by every host: nothing in it but
//! the quoted packet shows that this host has sent such a packet. The caller compares the quoted
//! addresses and ports with those of its flows, and bounds what it believes.
//!
//! All calls return at once. Opening and reading fail with the error of the system call; a message
//! that is too short, damaged, or quotes no first fragment is skipped.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto};

use crate::icmp::set_option;

/// An ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The router or host that reports it.
    pub reporter: IpAddr,
    /// The reason.
    pub cause: ErrorCause,
    /// The source of the quoted packet: an address of this host, unless the error is forged.
    pub local: IpAddr,
    /// The destination of the quoted packet.
    pub remote: IpAddr,
    /// The IP protocol of the quoted packet.
    pub protocol: u8,
    /// The first two 16-bit words behind the IP header: the ports, for UDP and TCP. `None` if the
    /// error does not quote them.
    pub ports: Option<(u16, u16)>,
    /// The 32-bit word behind the ports: the sequence number, for TCP. `None` if the error does not
    /// quote it.
    pub sequence: Option<u32>,
}

/// Why a packet was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCause {
    /// No route leads to the network of the destination.
    NoNetwork,
    /// The host does not answer, or no route leads to it.
    NoHost,
    /// The host has no socket at the port, or does not know the protocol.
    NoPort,
    /// A firewall forbids the packet.
    Forbidden,
    /// The hop limit of the packet was used up.
    Expired,
    /// The packet, of `length` bytes, is longer than the MTU of the next link, in bytes.
    TooLong {
        /// The MTU.
        mtu: u32,
        /// Length of the quoted packet as its header states it.
        length: u32,
    },
}

/// One socket for each address family.
#[derive(Debug)]
pub struct ErrorSocket {
    socket: OwnedFd,
    is_v4: bool,
}

impl ErrorSocket {
    /// Opens the socket for IPv4.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW, and other errors of socket(2) and setsockopt(2).
    pub fn v4() -> io::Result<ErrorSocket> {
        let socket = raw_socket(AddressFamily::INET, ipproto::ICMP)?;
        let blocked = !(1u32 << UNREACHABLE | 1 << TIME_EXCEEDED);
        let filter = blocked.to_ne_bytes();
        set_option(&socket, libc::SOL_RAW, ICMP_FILTER, &filter)?;
        Ok(ErrorSocket {
            socket,
            is_v4: true,
        })
    }

    /// Opens the socket for IPv6.
    ///
    /// # Errors
    /// As [`ErrorSocket::v4`], and `EAFNOSUPPORT` without IPv6.
    pub fn v6() -> io::Result<ErrorSocket> {
        let socket = raw_socket(AddressFamily::INET6, ipproto::ICMPV6)?;
        let mut blocked = [0xff; 32];
        // Types below 32 are in the first word.
        let passed = 1u32 << UNREACHABLE_V6 | 1 << TOO_BIG_V6 | 1 << TIME_EXCEEDED_V6;
        blocked[..4].copy_from_slice(&(!passed).to_ne_bytes());
        set_option(&socket, libc::SOL_ICMPV6, ICMPV6_FILTER, &blocked)?;
        Ok(ErrorSocket {
            socket,
            is_v4: false,
        })
    }

    /// Reads the errors that have arrived, at most `most` messages.
    ///
    /// # Errors
    /// `EWOULDBLOCK` if no message has arrived, and other errors of recvfrom(2).
    pub fn read(&self, most: usize) -> io::Result<Vec<IcmpError>> {
        let mut errors = Vec::new();
        let mut bytes = [MaybeUninit::uninit(); MESSAGE];
        for count in 0..most {
            let flags = RecvFlags::DONTWAIT;
            let ((message, _), _, from) =
                match rustix::net::recvfrom(&self.socket, &mut bytes[..], flags) {
                    Ok(received) => received,
                    Err(rustix::io::Errno::AGAIN) if count > 0 => break,
                    Err(error) => return Err(error.into()),
                };
            let from = from.and_then(|from| SocketAddr::try_from(from).ok());
            let parsed = match self.is_v4 {
                true => parse_v4(message),
                false => from.and_then(|from| parse_v6(from.ip(), message)),
            };
            errors.extend(parsed);
        }
        Ok(errors)
    }
}

impl AsFd for ErrorSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for ErrorSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn raw_socket(family: AddressFamily, protocol: rustix::net::Protocol) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::RAW, flags, Some(protocol))?;
    let size = RECEIVE_BUFFER.to_ne_bytes();
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &size)?;
    Ok(socket)
}

/// The error in an IPv4 packet of ICMP; `None` if it is none.
fn parse_v4(packet: &[u8]) -> Option<IcmpError> {
    let header = 4 * usize::from(packet.first()? & 0xf);
    let reporter = address_v4(packet.get(..header.max(20))?, 12);
    let icmp = packet.get(header.max(20)..)?;
    // The kernel has not validated the checksum yet.
    if checksum(icmp) != 0xffff {
        return None;
    }
    let (kind, code) = (*icmp.first()?, *icmp.get(1)?);
    let quoted = icmp.get(8..)?;
    let inner = 4 * usize::from(quoted.first()? & 0xf);
    if quoted.first()? >> 4 != 4 || inner < 20 || quoted.len() < inner {
        return None;
    }
    // The ports are in the first fragment only.
    if be16(quoted, 6) & 0x1fff != 0 {
        return None;
    }
    let length = u32::from(be16(quoted, 2));
    let cause = match (kind, code) {
        (UNREACHABLE, 0 | 6 | 11) => ErrorCause::NoNetwork,
        (UNREACHABLE, 2 | 3) => ErrorCause::NoPort,
        (UNREACHABLE, 4) => ErrorCause::TooLong {
            mtu: match be16(icmp, 6) {
                0 => plateau_below(length),
                mtu => mtu.into(),
            },
            length,
        },
        (UNREACHABLE, 9 | 10 | 13) => ErrorCause::Forbidden,
        (UNREACHABLE, _) => ErrorCause::NoHost,
        (TIME_EXCEEDED, 0) => ErrorCause::Expired,
        _ => return None,
    };
    Some(IcmpError {
        reporter: reporter.into(),
        cause,
        local: address_v4(quoted, 12).into(),
        remote: address_v4(quoted, 16).into(),
        protocol: quoted[9],
        ports: ports(quoted.get(inner..)?),
        sequence: sequence(quoted.get(inner..)?),
    })
}

/// The error in an ICMPv6 message; `None` if it is none. The kernel has validated the checksum.
fn parse_v6(reporter: IpAddr, icmp: &[u8]) -> Option<IcmpError> {
    let (kind, code) = (*icmp.first()?, *icmp.get(1)?);
    let quoted = icmp.get(8..).filter(|quoted| quoted.len() >= 40)?;
    if quoted[0] >> 4 != 6 {
        return None;
    }
    let cause = match (kind, code) {
        (UNREACHABLE_V6, 0) => ErrorCause::NoNetwork,
        (UNREACHABLE_V6, 1 | 5 | 6) => ErrorCause::Forbidden,
        (UNREACHABLE_V6, 4) => ErrorCause::NoPort,
        (UNREACHABLE_V6, _) => ErrorCause::NoHost,
        (TOO_BIG_V6, _) => ErrorCause::TooLong {
            mtu: u32::from(be16(icmp, 4)) << 16 | u32::from(be16(icmp, 6)),
            length: 40 + u32::from(be16(quoted, 4)),
        },
        (TIME_EXCEEDED_V6, 0) => ErrorCause::Expired,
        _ => return None,
    };
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = quoted.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(bytes).into())
    };
    Some(IcmpError {
        reporter,
        cause,
        local: address(8)?,
        remote: address(24)?,
        protocol: quoted[6],
        ports: ports(&quoted[40..]),
        sequence: sequence(&quoted[40..]),
    })
}

/// The next smaller MTU of RFC 1191, section 7.1, for a router that does not report its MTU.
fn plateau_below(length: u32) -> u32 {
    let mut plateaus = PLATEAUS.into_iter();
    plateaus
        .find(|plateau| *plateau < length)
        .unwrap_or(PLATEAUS[PLATEAUS.len() - 1])
}

fn ports(bytes: &[u8]) -> Option<(u16, u16)> {
    (bytes.len() >= 4).then(|| (be16(bytes, 0), be16(bytes, 2)))
}

fn sequence(bytes: &[u8]) -> Option<u32> {
    let word = bytes.get(4..8)?.first_chunk()?;
    Some(u32::from_be_bytes(*word))
}

fn address_v4(bytes: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3])
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The ones' complement sum of the 16-bit words (RFC 1071): 0xffff with a right checksum.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| match word {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        _ => u32::from(word[0]) << 8,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

// Types of ICMP (RFC 792) and ICMPv6 (RFC 4443).
const UNREACHABLE: u8 = 3;
const TIME_EXCEEDED: u8 = 11;
const UNREACHABLE_V6: u8 = 1;
const TOO_BIG_V6: u8 = 2;
const TIME_EXCEEDED_V6: u8 = 3;
/// `ICMP_FILTER` and `ICMPV6_FILTER` of linux/icmp.h and linux/icmpv6.h.
const ICMP_FILTER: libc::c_int = 1;
const ICMPV6_FILTER: libc::c_int = 1;
const PLATEAUS: [u32; 9] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296];
/// Bytes of a message that are read: the headers and the quoted packet, as far as it is needed.
const MESSAGE: usize = 1500;
/// Size of the receive buffer, in bytes. What arrives beyond it is lost.
const RECEIVE_BUFFER: libc::c_int = 128 * 1024;

#[cfg(test)]
mod tests;
