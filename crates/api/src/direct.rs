//! What programs and the daemon say of direct flows.
//!
//! A program takes part on one link with a connection of its own: [`DirectRequest::Attach`] makes its memory file, and the
//! answer brings the file and the two doorbells ([`Attached`]); then it opens and closes flows on that connection. While it lives
//! the flows live: they end with the connection, and with the process. What changes meanwhile without having been
//! asked for the daemon says by [`DirectAnswer::News`], on the same connection, between answers.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// What a program asks of direct flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectRequest {
    /// Take part on a link. The message names the caller ([`crate::ClientCall`]).
    Attach(Attach),
    /// Open a flow.
    Open(OpenFlow),
    /// Give a flow another contract.
    Change(ChangeFlow),
    /// Close a flow.
    Close(CloseFlow),
    /// Ask for the station through which a host is reached.
    NextHop(NextHop),
}

/// What a program is told of direct flows. Changing and closing are answered by [`crate::Response::Done`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectAnswer {
    /// To `attach`; three descriptors come with it.
    Attached(Attached),
    /// To `open`.
    Opened(FlowOpened),
    /// To `next-hop`.
    Hop(Hop),
    /// What happened without having been asked for; no answer to anything.
    News(FlowNews),
}

/// [`DirectRequest::Attach`]: take part on a link. The message names the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The interface. None: the only one that is managed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iface: Option<String>,
    /// How many flows there are to be at a time, at most.
    pub flows: u32,
    /// Bytes for the regions of all of them.
    pub bytes: u64,
}

/// The answer to [`Attach`]. Three descriptors come with it: the memory file, the doorbell to the driver, and the
/// one to the program, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The interface.
    pub iface: String,
    /// How the driver reaches it: `native`, `generic` or `fallback`.
    pub mode: String,
}

/// What a flow speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Speaks {
    /// UDP from one port.
    Udp {
        /// The own end. An unspecified address is chosen by the route to the other end; port 0 is chosen.
        local: SocketAddr,
        /// The other end. None: any single host may be sent to and received from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remote: Option<SocketAddr>,
    },
    /// UDP of a group: what is sent to it is received, by each member. Nothing but to the group is sent.
    Group {
        /// The own end, from which it sends.
        local: SocketAddr,
        /// The group and its port.
        group: SocketAddr,
    },
    /// Another protocol over IP.
    Protocol {
        /// Its number.
        number: u8,
        /// The own end.
        local: IpAddr,
        /// The other end. None: any single host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remote: Option<IpAddr>,
        /// Which of its packets are received: all of these must hold, from the begin of the protocol's own header.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pattern: Vec<Term>,
    },
    /// Another protocol over Ethernet.
    EtherType {
        /// Its number.
        number: u16,
        /// Which of its packets are received, from behind the EtherType.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pattern: Vec<Term>,
    },
}

/// One term of a filter description: the byte at `offset`, under `mask`, is `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// Where.
    pub offset: u16,
    /// Which bits.
    pub mask: u8,
    /// What they are.
    pub value: u8,
}

/// Filter descriptions look at so many bytes,
pub const PATTERN_REACH: u16 = 128;
/// in so many words of eight (enough for two IPv6 addresses),
pub const PATTERN_WORDS: u16 = 4;
/// in as many terms as these have bytes (two terms of one byte are one),
pub const PATTERN_TERMS: u16 = 8 * PATTERN_WORDS;
/// and so many different sets of bits may be looked at in one place: each costs a packet a look-up.
pub const PATTERN_SHAPES: u16 = 8;

/// The memory of a flow, as `docs/reference/ring.md` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeDoc {
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Chunks.
    pub chunks: u32,
    /// Entries of the submit and of the reclaim ring.
    pub transmit_entries: u32,
    /// Entries of the prime and of the deliver ring.
    pub receive_entries: u32,
}

/// [`DirectRequest::Open`], on the connection that attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenFlow {
    /// What it speaks.
    pub speaks: Speaks,
    /// Its contract as text. None: best effort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    /// Its memory.
    pub shape: ShapeDoc,
    /// Parts of datagrams are wanted in order alone (VERT 4.3), not in any.
    #[serde(default, skip_serializing_if = "super::request::is_false")]
    pub in_order: bool,
}

/// The answer to [`OpenFlow`]: what the program needs to compose headers, and where the flow lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowOpened {
    /// Its number, for as long as it is open.
    pub flow: u32,
    /// Its slot in the memory file.
    pub slot: u32,
    /// Where its region begins.
    pub offset: u64,
    /// What it speaks, with what was chosen filled in.
    pub speaks: Speaks,
    /// The address of the link.
    pub mac: [u8; 6],
    /// The station that frames go to. The driver writes it into each frame, so that it may change. None: the flow
    /// sends to any host, and asks for each ([`DirectRequest::NextHop`]).
    pub next_hop: Option<[u8; 6]>,
    /// The MTU on the way to the other end.
    pub mtu: u32,
    /// Its contract, as granted.
    pub contract: String,
}

/// [`DirectRequest::Close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloseFlow {
    /// Its number.
    pub flow: u32,
}

/// [`DirectRequest::Change`]: another contract; the old one stays if the new one is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeFlow {
    /// Its number.
    pub flow: u32,
    /// What changes, as contract text.
    pub change: String,
}

/// [`DirectRequest::NextHop`]: the station through which a host is reached, for flows to any host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextHop {
    /// The host.
    pub to: IpAddr,
}

/// The answer to [`NextHop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// The station.
    pub mac: [u8; 6],
    /// The MTU on the way.
    pub mtu: u32,
}

/// What happened to a program's flows without its asking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowNews {
    /// The link went down (false) or came up: packets come back unsent meanwhile.
    Link {
        /// Up.
        up: bool,
    },
    /// Longer packets than this come back unsent from now on, or may be sent again.
    Mtu {
        /// Which flow.
        flow: u32,
        /// The MTU.
        mtu: u32,
    },
    /// Frames go to another station from now on; the driver sees to it.
    NextHop {
        /// Which flow.
        flow: u32,
        /// The station. None: it does not answer, and packets come back unsent.
        mac: Option<[u8; 6]>,
    },
    /// The flow's contract is served with less than was granted, and why.
    Degraded {
        /// Which flow.
        flow: u32,
        /// Why; empty: it is served again as it was granted.
        why: String,
    },
    /// The flow is closed: its way leads over another link, say.
    Closed {
        /// Which flow.
        flow: u32,
        /// Why.
        why: String,
    },
    /// The driver ended, or expelled the program: all its flows are closed.
    Ended {
        /// Why.
        why: String,
    },
}

impl Speaks {
    /// The own port, of what has one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Speaks::Udp { local, .. } | Speaks::Group { local, .. } => Some(local.port()),
            Speaks::Protocol { .. } | Speaks::EtherType { .. } => None,
        }
    }
}
