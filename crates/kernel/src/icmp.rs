//! Sends ICMP requests to one host over one interface, and reads the replies with the times at
//! which the kernel handed the request to the interface and received the reply ([`ProbeSocket`]).
//!
//! A request is an echo request (RFC 792, RFC 4443), or a timestamp request (RFC 792), whose reply
//! has the host's time of day at its arrival and departure. The kernel's times are taken below the
//! queues of this host, so they contain neither the wait in these queues nor that of this process
//! for a processor. A driver that does not report departures gives none; the caller then uses the
//! time of the call.
//!
//! A socket gets replies of its host only, and only of the two kinds. The caller checks identifier,
//! sequence number and secret: a host on the path can still forge what it sees. All calls return at
//! once. Opening, sending and reading fail with the error of the system call; a packet that is no
//! reply is skipped.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto};

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// An echo request.
    Echo,
    /// A timestamp request, for IPv4 only.
    Timestamp,
}

/// What a request carries and its reply repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeId {
    /// The kind.
    pub kind: ProbeKind,
    /// The identifier.
    pub identifier: u16,
    /// The sequence number.
    pub sequence: u16,
    /// A number that only the host and the path learn.
    pub secret: u32,
}

/// The reply to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeReply {
    /// What it repeats of the request.
    pub id: ProbeId,
    /// When the kernel received it, in ns since 1970; `None` if it took no time.
    pub received_ns: Option<u64>,
    /// Of a timestamp reply: the host's times of day at the arrival of the request and at the
    /// departure of the reply, in ms. `None` for an echo, and if the host marked a time as
    /// nonstandard.
    pub remote: Option<[u32; 2]>,
}

/// The time at which a probe left the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The number that [`ProbeSocket::send`] returned.
    pub key: u32,
    /// When the interface's driver took it, in ns since 1970.
    pub sent_ns: u64,
}

/// A raw ICMP socket that is connected to one host and bound to one interface.
#[derive(Debug)]
pub struct ProbeSocket {
    socket: OwnedFd,
    host: IpAddr,
    /// The kernel counts the packets of the socket from 0, and reports departures by this count.
    next_key: u32,
}

impl ProbeSocket {
    /// Opens a socket for this host over this interface.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW, `ENODEV` without this interface, `ENETUNREACH` without a route,
    /// and other errors of socket(2), setsockopt(2) and connect(2).
    pub fn open(interface: &str, host: IpAddr) -> io::Result<ProbeSocket> {
        let (family, protocol) = match host {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::RAW, flags, Some(protocol))?;
        let name = interface.as_bytes();
        set_option(&socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name)?;
        match host {
            IpAddr::V4(_) => {
                let blocked = !(1u32 << ECHO_REPLY | 1 << TIMESTAMP_REPLY);
                set_option(&socket, libc::SOL_RAW, ICMP_FILTER, &blocked.to_ne_bytes())?;
            }
            IpAddr::V6(_) => {
                let mut blocked = [0xff; 32];
                let reply = usize::from(ECHO_REPLY_V6);
                let word = reply / 32 * 4;
                let passed = !(1u32 << (reply % 32));
                blocked[word..word + 4].copy_from_slice(&passed.to_ne_bytes());
                set_option(&socket, libc::SOL_ICMPV6, ICMPV6_FILTER, &blocked)?;
            }
        }
        let size = RECEIVE_BUFFER.to_ne_bytes();
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &size)?;
        let stamps = libc::SOF_TIMESTAMPING_TX_SOFTWARE
            | libc::SOF_TIMESTAMPING_RX_SOFTWARE
            | libc::SOF_TIMESTAMPING_SOFTWARE
            | libc::SOF_TIMESTAMPING_OPT_ID
            | libc::SOF_TIMESTAMPING_OPT_TSONLY;
        let stamps = stamps.to_ne_bytes();
        set_option(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &stamps)?;
        rustix::net::connect(&socket, &SocketAddr::new(host, 0))?;
        Ok(ProbeSocket {
            socket,
            host,
            next_key: 0,
        })
    }

    /// Sends a request. Returns the number of [`Departure::key`]. After an error, the numbers of
    /// the socket are unknown: the caller opens another one.
    ///
    /// # Errors
    /// Those of send(2), for example `EPERM` if a firewall or the control group forbids the packet,
    /// and `EHOSTUNREACH`. A timestamp request to an IPv6 host is `EINVAL`.
    pub fn send(&mut self, id: ProbeId) -> io::Result<u32> {
        let request = request(id, self.host.is_ipv4())?;
        rustix::net::send(&self.socket, &request, SendFlags::DONTWAIT)?;
        let key = self.next_key;
        self.next_key = key.wrapping_add(1);
        Ok(key)
    }

    /// Reads the next reply; `None` if there is no more. At most [`PACKETS_PER_READ`] packets are
    /// read.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub fn receive(&mut self) -> io::Result<Option<ProbeReply>> {
        for _ in 0..PACKETS_PER_READ {
            let mut packet = [0; PACKET];
            let Some(read) = self.read(&mut packet, 0)? else {
                return Ok(None);
            };
            let parsed = parse(&packet[..read.length], self.host.is_ipv4());
            if let Some((id, remote)) = parsed {
                return Ok(Some(ProbeReply {
                    id,
                    received_ns: read.stamp_ns,
                    remote,
                }));
            }
        }
        Ok(None)
    }

    /// Reads the next departure; `None` if there is no more.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub fn departure(&mut self) -> io::Result<Option<Departure>> {
        for _ in 0..PACKETS_PER_READ {
            let Some(read) = self.read(&mut [0; PACKET], libc::MSG_ERRQUEUE)? else {
                return Ok(None);
            };
            if let (Some(sent_ns), Some(key)) = (read.stamp_ns, read.key) {
                return Ok(Some(Departure { key, sent_ns }));
            }
        }
        Ok(None)
    }

    /// Reads a packet of the receive queue or, with `MSG_ERRQUEUE`, a report of the error queue.
    fn read(&self, packet: &mut [u8; PACKET], flags: libc::c_int) -> io::Result<Option<Read>> {
        let mut part = libc::iovec {
            iov_base: packet.as_mut_ptr().cast(),
            iov_len: packet.len(),
        };
        let mut control = Control([0; CONTROL]);
        // SAFETY: all-zero bytes are a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL as _;
        let flags = flags | libc::MSG_DONTWAIT;
        // SAFETY: the message points to `packet` and `control`, which outlive the call, with their
        // lengths.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        if length < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(error),
            };
        }
        let mut read = Read {
            length: (length as usize).min(packet.len()),
            stamp_ns: None,
            key: None,
        };
        // SAFETY: the kernel has filled `control`, and set its length in the message.
        let mut head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        while !head.is_null() {
            // SAFETY: `head` is a header of `control`; its data are as long as its type says,
            // which is checked, and may be unaligned.
            unsafe {
                let data = libc::CMSG_DATA(head);
                let length = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                match ((*head).cmsg_level, (*head).cmsg_type) {
                    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING)
                        if length >= size_of::<libc::timespec>() =>
                    {
                        let stamp = data.cast::<libc::timespec>().read_unaligned();
                        let nanos = stamp.tv_sec as u64 * 1_000_000_000 + stamp.tv_nsec as u64;
                        read.stamp_ns = Some(nanos).filter(|nanos| *nanos > 0);
                    }
                    (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
                        if length >= size_of::<libc::sock_extended_err>() =>
                    {
                        let report = data.cast::<libc::sock_extended_err>().read_unaligned();
                        let stamp = report.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING;
                        read.key = stamp.then_some(report.ee_data);
                    }
                    _ => {}
                }
                head = libc::CMSG_NXTHDR(&raw const message, head);
            }
        }
        Ok(Some(read))
    }
}

impl AsFd for ProbeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What recvmsg(2) has returned.
struct Read {
    length: usize,
    stamp_ns: Option<u64>,
    key: Option<u32>,
}

/// Space for control messages, aligned for their headers.
#[repr(align(8))]
struct Control([u8; CONTROL]);

/// Sets a socket option to these bytes.
pub(crate) fn set_option(
    socket: &OwnedFd,
    level: i32,
    option: i32,
    value: &[u8],
) -> io::Result<()> {
    // SAFETY: the bytes outlive the call, and the length is theirs.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The bytes of a request, without the IP header. The kernel computes the checksum for IPv6.
fn request(id: ProbeId, is_v4: bool) -> io::Result<[u8; REQUEST]> {
    let mut bytes = [0; REQUEST];
    bytes[0] = match (id.kind, is_v4) {
        (ProbeKind::Echo, true) => ECHO,
        (ProbeKind::Echo, false) => ECHO_V6,
        (ProbeKind::Timestamp, true) => TIMESTAMP,
        (ProbeKind::Timestamp, false) => return Err(io::ErrorKind::InvalidInput.into()),
    };
    bytes[4..6].copy_from_slice(&id.identifier.to_be_bytes());
    bytes[6..8].copy_from_slice(&id.sequence.to_be_bytes());
    bytes[8..12].copy_from_slice(&id.secret.to_be_bytes());
    if is_v4 {
        let sum = checksum(&bytes);
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(bytes)
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Parses a received packet: with its IP header for IPv4, without for IPv6. `None` if it is no
/// reply.
fn parse(packet: &[u8], is_v4: bool) -> Option<(ProbeId, Option<[u32; 2]>)> {
    let message = match is_v4 {
        true => packet.get(4 * usize::from(packet.first()? & 0x0f)..)?,
        false => packet,
    };
    let word = |at: usize| {
        let bytes = message.get(at..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    };
    let kind = match (message.first()?, message.get(1)?, is_v4) {
        (&ECHO_REPLY, 0, true) | (&ECHO_REPLY_V6, 0, false) => ProbeKind::Echo,
        (&TIMESTAMP_REPLY, 0, true) => ProbeKind::Timestamp,
        _ => return None,
    };
    let names = word(4)?;
    let id = ProbeId {
        kind,
        identifier: (names >> 16) as u16,
        sequence: names as u16,
        secret: word(8)?,
    };
    let remote = match kind {
        ProbeKind::Echo => None,
        ProbeKind::Timestamp => {
            let times = [word(12)?, word(16)?];
            Some(times).filter(|times| times.iter().all(|time| *time < DAY_MS))
        }
    };
    Some((id, remote))
}

/// Bytes of a request: those of a timestamp request. An echo has the same length.
const REQUEST: usize = 20;
/// Longest packet that is read: an IPv4 header with options, and a reply.
const PACKET: usize = 128;
/// Bytes for control messages: the three times, and the report of the error queue with an address.
const CONTROL: usize = 256;
/// Largest number of packets that one call reads.
const PACKETS_PER_READ: usize = 32;
/// Receive buffer in bytes: dozens of replies.
const RECEIVE_BUFFER: libc::c_int = 32 * 1024;
/// Milliseconds of a day. A time of day that is not smaller is nonstandard, or wrong.
const DAY_MS: u32 = 86_400_000;
const ECHO_REPLY: u8 = 0;
const ECHO: u8 = 8;
const TIMESTAMP: u8 = 13;
const TIMESTAMP_REPLY: u8 = 14;
const ECHO_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
/// `ICMP_FILTER` of linux/icmp.h, a mask of types that are not delivered.
const ICMP_FILTER: libc::c_int = 1;
/// `ICMPV6_FILTER` of linux/icmpv6.h.
const ICMPV6_FILTER: libc::c_int = 1;

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ProbeId = ProbeId {
        kind: ProbeKind::Echo,
        identifier: 0x1234,
        sequence: 7,
        secret: 0xdead_beef,
    };

    /// A packet as a raw socket returns it: an IPv4 header of `words` words, and a message.
    fn received(words: u8, kind: u8, message: [u8; REQUEST]) -> Vec<u8> {
        let mut packet = vec![0; 4 * usize::from(words)];
        packet[0] = 0x40 | words;
        packet.extend(message);
        packet[4 * usize::from(words)] = kind;
        packet
    }

    #[test]
    fn a_request_has_a_valid_checksum_and_its_reply_repeats_it() {
        let echo = request(ID, true).expect("an echo");
        assert_eq!(checksum(&echo), 0, "the sum over a valid message is 0");
        for words in [5, 15] {
            let reply = received(words, ECHO_REPLY, echo);
            assert_eq!(parse(&reply, true), Some((ID, None)));
        }
        let echo = request(ID, false).expect("an echo");
        let mut reply = echo;
        reply[0] = ECHO_REPLY_V6;
        assert_eq!(parse(&reply, false), Some((ID, None)));
        let stamp = ProbeId {
            kind: ProbeKind::Timestamp,
            ..ID
        };
        assert!(request(stamp, false).is_err());
        let mut asked = request(stamp, true).expect("a request");
        asked[12..16].copy_from_slice(&5u32.to_be_bytes());
        asked[16..20].copy_from_slice(&6u32.to_be_bytes());
        let reply = received(5, TIMESTAMP_REPLY, asked);
        assert_eq!(parse(&reply, true), Some((stamp, Some([5, 6]))));
        asked[12] = 0x80;
        let reply = received(5, TIMESTAMP_REPLY, asked);
        assert_eq!(parse(&reply, true), Some((stamp, None)), "nonstandard");
    }

    #[test]
    fn what_is_no_reply_or_too_short_is_skipped() {
        let echo = request(ID, true).expect("an echo");
        assert_eq!(parse(&received(5, ECHO, echo), true), None, "a request");
        assert_eq!(parse(&received(5, 3, echo), true), None, "an error");
        let whole = received(5, ECHO_REPLY, echo);
        for length in 0..32 {
            assert_eq!(parse(&whole[..length], true), None, "{length} bytes");
        }
        assert_eq!(parse(&[0x4f; 20], true), None, "a header longer than it");
    }
}
