//! Sends netlink requests and waits for the replies ([`NetlinkClient`]), and receives the kernel's
//! notifications of changes ([`Listener`]).
//!
//! The client is small, blocks, and uses `netlink-sys` and `netlink-packet-core`. The typed crates
//! do not support HTB, and they reject a whole dump if a foreign qdisc has an unknown attribute. So
//! this module builds messages from a fixed head (`ifinfomsg`, `tcmsg`) and attributes, and skips
//! the parts of a reply that it cannot parse. A request fails with [`NetlinkError`] if the kernel
//! refuses it or does not receive it. A listener fails with the error of its socket.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use netlink_packet_core::{
    DefaultNla, Emitable, NLA_F_NESTED, NLA_HEADER_SIZE, NLA_TYPE_MASK, NLM_F_ACK, NLM_F_DUMP,
    NLM_F_REQUEST, NetlinkBuffer, NlasIterator,
};
use netlink_sys::{
    Socket, SocketAddr,
    protocols::{NETLINK_GENERIC, NETLINK_ROUTE, NETLINK_SOCK_DIAG},
};

/// The error of a netlink operation.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {}", explain(source, message))]
pub struct NetlinkError {
    /// The attempted operation, as a verb and its object.
    pub what: String,
    /// The kernel's error message, if it sent one (extended acknowledgement).
    pub message: Option<String>,
    /// The error that the kernel or the socket reported.
    #[source]
    pub source: io::Error,
}

impl NetlinkError {
    /// Whether the kernel reported that the object does not exist (ENOENT, ENODEV, or EINVAL, which
    /// it returns for some kinds of objects).
    pub(crate) fn is_gone(&self) -> bool {
        matches!(
            self.source.raw_os_error(),
            Some(libc::ENOENT | libc::ENODEV | libc::EINVAL)
        )
    }

    /// Whether the kernel reported that the object exists already.
    pub(crate) fn exists(&self) -> bool {
        self.source.raw_os_error() == Some(libc::EEXIST)
    }
}

fn explain(source: &io::Error, message: &Option<String>) -> String {
    match message {
        Some(text) => format!("{text} ({source})"),
        None => source.to_string(),
    }
}

/// A request under construction: a fixed head, then attributes.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Request {
    /// A request of this type (`RTM_*`) with these flags (`NLM_F_*`) and this fixed head. The
    /// client adds the request flag, and the acknowledgement or dump flag.
    pub fn new(kind: u16, flags: u16, head: &[u8]) -> Self {
        Self {
            kind,
            flags,
            body: head.to_vec(),
        }
    }

    /// Adds a list of attributes.
    #[must_use]
    pub fn with(mut self, attributes: &Attributes) -> Self {
        self.body.extend_from_slice(&attributes.0);
        self
    }
}

/// A list of attributes (`struct nlattr`) under construction, to be nested or sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// The list in the wire format.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Adds an attribute of the type `kind`, with these bytes as its value.
    #[must_use]
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let nla = DefaultNla::new(kind, value.to_vec());
        let start = self.0.len();
        self.0.resize(start + nla.buffer_len(), 0);
        nla.emit(&mut self.0[start..]);
        self
    }

    /// Adds an attribute whose value is a 32-bit number in the machine's byte order.
    #[must_use]
    pub fn u32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute whose value is a 64-bit number in the machine's byte order.
    #[must_use]
    pub fn u64(self, kind: u16, value: u64) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute whose value is a string with its terminating zero byte.
    #[must_use]
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    /// Adds an attribute whose value is a list of attributes.
    #[must_use]
    pub fn nested(self, kind: u16, inner: &Attributes) -> Self {
        self.bytes(kind | NLA_F_NESTED, &inner.0)
    }
}

/// A received message: a part of a reply, or a change.
#[derive(Clone, Debug)]
pub struct Message {
    /// The message type: `RTM_*`, or the type of a generic netlink family.
    pub kind: u16,
    /// In a message to a listener: the port number of the socket that requested the change, or 0 if
    /// the kernel does not report it.
    pub by: u32,
    body: Vec<u8>,
}

impl Message {
    /// The fixed head, or `None` if the message is shorter than `N` bytes.
    pub(crate) fn head<const N: usize>(&self) -> Option<&[u8; N]> {
        self.body.first_chunk()
    }

    /// A message with this body, for tests.
    #[cfg(test)]
    pub(crate) fn of(body: Vec<u8>) -> Message {
        let (kind, by) = (0, 0);
        Message { kind, by, body }
    }

    /// The attributes after a head of this size.
    pub(crate) fn attributes(&self, head: usize) -> AttributeList<'_> {
        attributes(self.body.get(head..).unwrap_or_default())
    }
}

/// Attributes as pairs of kind and value. The values borrow from the message, because thousands are
/// read each second.
pub(crate) type AttributeList<'a> = Vec<(u16, &'a [u8])>;

/// Parses a list of attributes up to the first malformed one.
pub(crate) fn attributes(bytes: &[u8]) -> AttributeList<'_> {
    NlasIterator::new(bytes)
        .map_while(Result::ok)
        .map(|nla| {
            let (kind, end) = (nla.kind() & NLA_TYPE_MASK, usize::from(nla.length()));
            let value = nla.into_inner().get(NLA_HEADER_SIZE..end);
            (kind, value.unwrap_or_default())
        })
        .collect()
}

/// The value of the first attribute of this type in a list; `None` if the list has no such
/// attribute.
pub(crate) fn find<'a>(row: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    row.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v)
}

/// Reads a 32-bit number from an attribute's value. `None` if it is too short.
pub(crate) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

/// Reads a string from an attribute's value, up to its zero byte.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

/// A netlink connection to the kernel. It belongs to the namespace of the thread that opens it.
pub struct NetlinkClient {
    socket: Socket,
    sequence: u32,
    /// Whether a reply was not received completely. The kernel starts no other dump until the rest
    /// is read.
    unread: bool,
    /// The receive buffer for one datagram.
    buffer: Vec<u8>,
}

impl NetlinkClient {
    /// Opens a route netlink connection.
    ///
    /// # Errors
    /// If the socket cannot be opened.
    pub fn open() -> Result<Self, NetlinkError> {
        Self::open_to(NETLINK_ROUTE, "open a route netlink socket")
    }

    /// Opens a connection for socket diagnosis (sock_diag(7)), which uses the same message format.
    ///
    /// # Errors
    /// If the socket cannot be opened.
    pub fn open_diagnosis() -> Result<Self, NetlinkError> {
        Self::open_to(NETLINK_SOCK_DIAG, "open a socket diagnosis socket")
    }

    /// Opens a connection to generic netlink, where each family has its own message type. Fails if
    /// the socket cannot be opened.
    pub(crate) fn open_generic() -> Result<Self, NetlinkError> {
        Self::open_to(NETLINK_GENERIC, "open a generic netlink socket")
    }

    /// The message type of a generic netlink family. `None` if the kernel has no family of this
    /// name, or refuses.
    pub(crate) fn family(&mut self, name: &str) -> Option<u16> {
        let head = [CTRL_CMD_GETFAMILY, 1, 0, 0];
        let criteria = Attributes::new().text(CTRL_ATTR_FAMILY_NAME, name);
        let request = Request::new(GENL_ID_CTRL, 0, &head).with(&criteria);
        let replies = self.query("find a netlink family", request).ok()?;
        let row = replies.first()?.attributes(GENERIC_HEAD);
        let family = find(&row, CTRL_ATTR_FAMILY_ID)?;
        Some(u16::from_ne_bytes(*family.first_chunk()?))
    }

    fn open_to(protocol: isize, what: &str) -> Result<Self, NetlinkError> {
        match open(protocol) {
            Ok(socket) => Ok(Self {
                socket,
                sequence: 0,
                unread: false,
                buffer: Vec::with_capacity(MAX_DATAGRAM),
            }),
            Err(source) => Err(NetlinkError {
                what: what.to_owned(),
                message: None,
                source,
            }),
        }
    }

    /// The port number of this connection, by which listeners recognize its changes.
    ///
    /// # Errors
    /// The error of getsockname(2).
    pub fn port_number(&self) -> Result<u32, NetlinkError> {
        let mut address = SocketAddr::new(0, 0);
        match self.socket.get_address(&mut address) {
            Ok(()) => Ok(address.port_number()),
            Err(source) => Err(NetlinkError {
                what: "read the port number of a netlink socket".into(),
                message: None,
                source,
            }),
        }
    }

    /// Sends a request and waits until the kernel has carried it out.
    ///
    /// # Errors
    /// The kernel's error, with `what` as the name of the operation.
    pub(crate) fn execute(&mut self, what: &str, request: Request) -> Result<(), NetlinkError> {
        self.exchange(request, NLM_F_ACK)
            .map(drop)
            .map_err(|e| e.during(what))
    }

    /// Sends a request for one object. Returns the messages of the reply.
    ///
    /// # Errors
    /// The kernel's error, with `what` as the name of the operation.
    pub(crate) fn query(
        &mut self,
        what: &str,
        request: Request,
    ) -> Result<Vec<Message>, NetlinkError> {
        self.exchange(request, NLM_F_ACK)
            .map_err(|e| e.during(what))
    }

    /// Sends a request for a list. Returns the messages of the reply, one for each object.
    ///
    /// # Errors
    /// The kernel's error, with `what` as the name of the operation; EAGAIN if changes interrupted
    /// the dump nine times.
    pub(crate) fn dump(
        &mut self,
        what: &str,
        request: Request,
    ) -> Result<Vec<Message>, NetlinkError> {
        // A change can interrupt a dump, which is then repeated. After the last try this is an
        // error.
        let mut last = self.exchange(request.clone(), NLM_F_DUMP);
        for _ in 0..MAX_DUMP_REPEATS {
            match last {
                Err(Failure::Interrupted) => last = self.exchange(request.clone(), NLM_F_DUMP),
                done => return done.map_err(|e| e.during(what)),
            }
        }
        last.map_err(|e| e.during(what))
    }

    fn exchange(&mut self, request: Request, flags: u16) -> Result<Vec<Message>, Failure> {
        self.discard_unread();
        self.sequence = self.sequence.wrapping_add(1);
        let mut buffer = vec![0; NETLINK_HEADER_LEN + request.body.len()];
        let mut head = NetlinkBuffer::new(&mut buffer);
        head.set_length((NETLINK_HEADER_LEN + request.body.len()) as u32);
        head.set_message_type(request.kind);
        head.set_flags(request.flags | NLM_F_REQUEST | flags);
        head.set_sequence_number(self.sequence);
        head.payload_mut().copy_from_slice(&request.body);
        self.socket.send(&buffer, 0).map_err(Failure::io)?;
        self.collect()
    }

    /// Reads and discards the rest of an abandoned reply.
    fn discard_unread(&mut self) {
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        while self.unread {
            self.buffer.clear();
            let read = self.socket.recv(&mut self.buffer, flags);
            self.unread = read.is_ok_and(|length| length > 0);
        }
    }

    /// Collects the messages up to the acknowledgement or the end of the dump.
    fn collect(&mut self) -> Result<Vec<Message>, Failure> {
        let mut messages = Vec::new();
        let mut interrupted = false;
        loop {
            self.buffer.clear();
            let length = match self.socket.recv(&mut self.buffer, libc::MSG_TRUNC) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.unread = true;
                    return Err(Failure::io(error));
                }
            };
            if length > self.buffer.len() {
                self.unread = true;
                return Err(Failure::io(io::ErrorKind::OutOfMemory.into()));
            }
            for message in RawMessages(&self.buffer) {
                if message.sequence_number() != self.sequence {
                    continue; // a reply to an abandoned request
                }
                interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
                match message.message_type() {
                    NLMSG_ERROR => {
                        return error_of(message.payload(), message.flags())
                            .map_or(Ok(messages), Err);
                    }
                    NLMSG_DONE if interrupted => return Err(Failure::Interrupted),
                    NLMSG_DONE => return Ok(messages),
                    kind => messages.push(Message {
                        kind,
                        by: message.port_number(),
                        body: message.payload().to_vec(),
                    }),
                }
            }
        }
    }
}

/// A netlink socket that receives the kernel's notifications of some multicast groups.
pub struct Listener {
    socket: Socket,
}

impl Listener {
    /// Joins these groups (`RTNLGRP_*`). Receiving does not block.
    ///
    /// # Errors
    /// If the socket cannot be opened, or there is no such group.
    pub fn open(groups: &[u32]) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_rx_buf_sz(RECEIVE_BUFFER)?;
        for group in groups {
            socket.add_membership(*group)?;
        }
        socket.set_non_blocking(true)?;
        Ok(Self { socket })
    }

    /// The next notifications: those of one datagram. More may be waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is none. `ENOBUFS` if the kernel dropped messages: the caller must
    /// then read the whole state again. Otherwise the error of recvmsg(2).
    pub fn read(&mut self) -> io::Result<Vec<Message>> {
        let (datagram, _) = self.socket.recv_from_full()?;
        Ok(RawMessages(&datagram)
            .map(|m| Message {
                kind: m.message_type(),
                by: m.port_number(),
                body: m.payload().to_vec(),
            })
            .collect())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the socket's, which lives as long as this borrow.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The messages of a datagram.
struct RawMessages<'a>(&'a [u8]);

impl<'a> Iterator for RawMessages<'a> {
    type Item = NetlinkBuffer<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        let message = NetlinkBuffer::new_checked(self.0).ok()?;
        let length = (message.length() as usize)
            .next_multiple_of(4)
            .min(self.0.len());
        self.0 = &self.0[length..];
        Some(message)
    }
}

enum Failure {
    Interrupted,
    Refused {
        message: Option<String>,
        source: io::Error,
    },
}

impl Failure {
    fn io(source: io::Error) -> Self {
        Self::Refused {
            message: None,
            source,
        }
    }

    fn during(self, what: &str) -> NetlinkError {
        let (message, source) = match self {
            Self::Interrupted => (None, io::Error::from_raw_os_error(libc::EAGAIN)),
            Self::Refused { message, source } => (message, source),
        };
        NetlinkError {
            what: what.into(),
            message,
            source,
        }
    }
}

/// The error in an acknowledgement; `None` if it reports success.
fn error_of(payload: &[u8], flags: u16) -> Option<Failure> {
    let code = payload
        .first_chunk()
        .map_or(-libc::EIO, |b| i32::from_ne_bytes(*b));
    if code == 0 {
        return None;
    }
    // With extended acknowledgements, the attributes with the kernel's message follow the original
    // request. If the acknowledgement is capped, it contains only the request's header.
    let request = if flags & NLM_F_CAPPED != 0 {
        NETLINK_HEADER_LEN
    } else {
        request_length(payload)
    };
    let row = attributes(payload.get(4 + request..).unwrap_or_default());
    let message = find(&row, NLMSGERR_ATTR_MSG)
        .map(text)
        .filter(|t| !t.is_empty());
    Some(Failure::Refused {
        message,
        source: io::Error::from_raw_os_error(-code),
    })
}

fn request_length(payload: &[u8]) -> usize {
    let length = payload
        .get(4..8)
        .and_then(number)
        .unwrap_or(NETLINK_HEADER_LEN as u32);
    (length as usize).next_multiple_of(4)
}

fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.set_ext_ack(true)?;
    socket.set_rx_buf_sz(RECEIVE_BUFFER)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Bytes of the socket's receive buffer: space for a dump of thousands of classes.
const RECEIVE_BUFFER: u32 = 1 << 20;
/// In bytes. A dump comes in datagrams of 32 KiB at most; the reply about one interface with many
/// virtual functions can be longer.
const MAX_DATAGRAM: usize = 1 << 18;
/// How many times an interrupted dump is repeated.
const MAX_DUMP_REPEATS: usize = 8;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NETLINK_HEADER_LEN: usize = 16;
/// Size of `struct genlmsghdr` in bytes.
pub(crate) const GENERIC_HEAD: usize = 4;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
