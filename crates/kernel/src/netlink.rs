//! Route netlink: one request, one answer.
//!
//! A small blocking client over `netlink-sys` and `netlink-packet-core`. The typed crates know no HTB, and refuse a
//! whole dump when a foreign qdisc carries an attribute that they do not know; so messages are built here from a
//! fixed head (`ifinfomsg`, `tcmsg`) and attributes, and read back leniently: what cannot be read is passed over.

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

/// Why a request to the kernel failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {}", explain(source, message))]
pub struct NetlinkError {
    /// What was asked for.
    pub what: String,
    /// The kernel's own words, if it had any.
    pub message: Option<String>,
    /// The error number.
    #[source]
    pub source: io::Error,
}

impl NetlinkError {
    /// Whether the kernel said that the thing asked for is not there.
    pub fn is_gone(&self) -> bool {
        matches!(
            self.source.raw_os_error(),
            Some(libc::ENOENT | libc::ENODEV | libc::EINVAL)
        )
    }

    /// Whether the kernel said that it exists already.
    pub fn exists(&self) -> bool {
        self.source.raw_os_error() == Some(libc::EEXIST)
    }
}

fn explain(source: &io::Error, message: &Option<String>) -> String {
    match message {
        Some(text) => format!("{text} ({source})"),
        None => source.to_string(),
    }
}

/// A message under construction: a fixed head, then attributes.
#[derive(Clone, Debug)]
pub struct Message {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Message {
    /// A request of this type (`RTM_*`) with these flags (`NLM_F_*`; request and acknowledge are added).
    pub fn new(kind: u16, flags: u16, head: &[u8]) -> Self {
        Self {
            kind,
            flags,
            body: head.to_vec(),
        }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, attributes: &Attributes) -> Self {
        self.body.extend_from_slice(&attributes.0);
        self
    }
}

/// A row of attributes, to be nested or sent.
#[derive(Clone, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// No attributes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The row as it goes over the socket.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Adds raw bytes.
    #[must_use]
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let nla = DefaultNla::new(kind, value.to_vec());
        let start = self.0.len();
        self.0.resize(start + nla.buffer_len(), 0);
        nla.emit(&mut self.0[start..]);
        self
    }

    /// Adds a 32-bit number.
    #[must_use]
    pub fn u32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds a 64-bit number.
    #[must_use]
    pub fn u64(self, kind: u16, value: u64) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds a string with its terminating zero.
    #[must_use]
    pub fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    /// Adds a nested row.
    #[must_use]
    pub fn nested(self, kind: u16, inner: &Attributes) -> Self {
        self.bytes(kind | NLA_F_NESTED, &inner.0)
    }
}

/// One message of an answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its type (`RTM_*`).
    pub kind: u16,
    /// Of what a listener hears: the socket that asked for the change, 0 if the kernel does not say.
    pub by: u32,
    body: Vec<u8>,
}

impl Answer {
    /// The fixed head, if the message is long enough to have one of this size.
    pub fn head<const N: usize>(&self) -> Option<&[u8; N]> {
        self.body.first_chunk()
    }

    /// The attributes behind a head of this size.
    pub fn attributes(&self, head: usize) -> Row<'_> {
        attributes(self.body.get(head..).unwrap_or_default())
    }
}

/// Attributes by kind, where they are in their message: thousands are read each second.
pub type Row<'a> = Vec<(u16, &'a [u8])>;

/// Reads a row of attributes, as far as it is well formed.
pub fn attributes(bytes: &[u8]) -> Row<'_> {
    NlasIterator::new(bytes)
        .map_while(Result::ok)
        .map(|nla| {
            let (kind, end) = (nla.kind() & NLA_TYPE_MASK, usize::from(nla.length()));
            let value = nla.into_inner().get(NLA_HEADER_SIZE..end);
            (kind, value.unwrap_or_default())
        })
        .collect()
}

/// The value of one attribute in a row.
pub fn find<'a>(row: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    row.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v)
}

/// A 32-bit number out of an attribute.
pub fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

/// A string out of an attribute.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

/// A connection to the kernel's route netlink in the namespace that the calling thread is in when it is opened.
pub struct Route {
    socket: Socket,
    sequence: u32,
    /// An answer could not be received: there may be more of it, and until it is read the kernel begins no other list.
    unread: bool,
    /// What a datagram is received into.
    buffer: Vec<u8>,
}

impl Route {
    /// Opens a connection.
    pub fn open() -> Result<Self, NetlinkError> {
        Self::open_to(NETLINK_ROUTE, "open a route netlink socket")
    }

    /// Opens a connection to what answers questions about sockets (sock_diag(7)); it is spoken to in the same way.
    pub fn open_diagnosis() -> Result<Self, NetlinkError> {
        Self::open_to(NETLINK_SOCK_DIAG, "open a socket diagnosis socket")
    }

    /// Opens a connection to generic netlink, where each family has a number of its own.
    pub fn open_generic() -> Result<Self, NetlinkError> {
        Self::open_to(NETLINK_GENERIC, "open a generic netlink socket")
    }

    fn open_to(protocol: isize, what: &str) -> Result<Self, NetlinkError> {
        match open(protocol) {
            Ok(socket) => Ok(Self {
                socket,
                sequence: 0,
                unread: false,
                buffer: Vec::with_capacity(LONGEST_DATAGRAM),
            }),
            Err(source) => Err(NetlinkError {
                what: what.to_owned(),
                message: None,
                source,
            }),
        }
    }

    /// The number by which listeners know what this connection asked for.
    pub fn number(&self) -> Result<u32, NetlinkError> {
        let mut address = SocketAddr::new(0, 0);
        match self.socket.get_address(&mut address) {
            Ok(()) => Ok(address.port_number()),
            Err(source) => Err(NetlinkError {
                what: "ask for the number of a route netlink socket".into(),
                message: None,
                source,
            }),
        }
    }

    /// Sends a request and waits until the kernel has carried it out.
    pub fn act(&mut self, what: &str, message: Message) -> Result<(), NetlinkError> {
        self.exchange(message, NLM_F_ACK)
            .map(drop)
            .map_err(|e| e.of(what))
    }

    /// Asks for one thing.
    pub fn ask(&mut self, what: &str, message: Message) -> Result<Vec<Answer>, NetlinkError> {
        self.exchange(message, NLM_F_ACK).map_err(|e| e.of(what))
    }

    /// Asks for a list.
    pub fn dump(&mut self, what: &str, message: Message) -> Result<Vec<Answer>, NetlinkError> {
        // A dump that was interrupted by a change is asked for anew; what still changes is taken as it is.
        let mut last = self.exchange(message.clone(), NLM_F_DUMP);
        for _ in 0..DUMP_TRIES {
            match last {
                Err(Failure::Interrupted) => last = self.exchange(message.clone(), NLM_F_DUMP),
                done => return done.map_err(|e| e.of(what)),
            }
        }
        last.map_err(|e| e.of(what))
    }

    fn exchange(&mut self, message: Message, flags: u16) -> Result<Vec<Answer>, Failure> {
        self.read_what_is_left();
        self.sequence = self.sequence.wrapping_add(1);
        let mut buffer = vec![0; NETLINK_HEADER_LEN + message.body.len()];
        let mut head = NetlinkBuffer::new(&mut buffer);
        head.set_length((NETLINK_HEADER_LEN + message.body.len()) as u32);
        head.set_message_type(message.kind);
        head.set_flags(message.flags | NLM_F_REQUEST | flags);
        head.set_sequence_number(self.sequence);
        head.payload_mut().copy_from_slice(&message.body);
        self.socket.send(&buffer, 0).map_err(Failure::io)?;
        self.collect()
    }

    /// Throws away what is left of an answer that was given up.
    fn read_what_is_left(&mut self) {
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        while self.unread {
            self.buffer.clear();
            let read = self.socket.recv(&mut self.buffer, flags);
            self.unread = read.is_ok_and(|length| length > 0);
        }
    }

    /// Gathers the answers up to the acknowledgement or the end of the dump.
    fn collect(&mut self) -> Result<Vec<Answer>, Failure> {
        let mut answers = Vec::new();
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
            for message in Messages(&self.buffer) {
                if message.sequence_number() != self.sequence {
                    continue; // an answer to a request that was given up
                }
                interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
                match message.message_type() {
                    NLMSG_ERROR => {
                        return error_of(message.payload(), message.flags())
                            .map_or(Ok(answers), Err);
                    }
                    NLMSG_DONE if interrupted => return Err(Failure::Interrupted),
                    NLMSG_DONE => return Ok(answers),
                    kind => answers.push(Answer {
                        kind,
                        by: message.port_number(),
                        body: message.payload().to_vec(),
                    }),
                }
            }
        }
    }
}

/// Hears of every change in some groups.
pub struct Listener {
    socket: Socket,
}

impl Listener {
    /// Joins these groups (`RTNLGRP_*`) without blocking on receive.
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

    /// What has changed since the last call; an error of kind `WouldBlock` when nothing has. The kernel drops what
    /// it cannot queue (`ENOBUFS`): the caller must look at everything then.
    pub fn read(&mut self) -> io::Result<Vec<Answer>> {
        let (datagram, _) = self.socket.recv_from_full()?;
        Ok(Messages(&datagram)
            .map(|m| Answer {
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
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
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

    fn of(self, what: &str) -> NetlinkError {
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

/// The error in an acknowledgement; none if it says that all went well.
fn error_of(payload: &[u8], flags: u16) -> Option<Failure> {
    let code = payload
        .first_chunk()
        .map_or(-libc::EIO, |b| i32::from_ne_bytes(*b));
    if code == 0 {
        return None;
    }
    // With extended acknowledgements the kernel's own words stand behind the request's head, which is all that is
    // sent back when the message is capped.
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

/// Room for a dump of thousands of classes.
const RECEIVE_BUFFER: u32 = 1 << 20;
/// A dump comes in datagrams of 32 KiB at most; the answer about one interface with many virtual functions is longer.
const LONGEST_DATAGRAM: usize = 1 << 18;
/// How often an interrupted dump is asked for again.
const DUMP_TRIES: usize = 8;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NETLINK_HEADER_LEN: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
