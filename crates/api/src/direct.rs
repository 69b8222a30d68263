//! The messages between programs and the daemon about flows of the direct path.
//!
//! A program attaches to one link with a connection of its own. [`DirectRequest::Attach`] creates
//! the program's memory file, and the response carries the file and the two doorbells
//! ([`Attached`]). Then the program opens and closes flows on that connection. All its flows end
//! when the program closes the connection, or when its process ends. If the daemon ends, the flows
//! continue, and the program resumes its attachment at the next daemon ([`DirectRequest::Resume`]).
//! The daemon reports changes that no request caused by [`DirectReply::Notification`] on
//! the same connection, between responses.
//!
//! The types are plain data. The daemon answers a request that it does not grant with
//! [`crate::Response::Refused`] or [`crate::Response::Failed`].

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// A request of a program about direct flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectRequest {
    /// Attach to a link. The message identifies the calling process ([`crate::ClientCall`]).
    Attach(Attach),
    /// Resume an attachment that an earlier daemon made, on a new connection. The message
    /// identifies the calling process.
    Resume(Resume),
    /// Request the open flows of the attachment.
    List(ListFlows),
    /// Open a flow.
    Open(OpenFlow),
    /// Change the contract of a flow.
    Change(ChangeFlow),
    /// Close a flow.
    Close(CloseFlow),
    /// Open a flow on this connection's link that is to move there
    /// ([`FlowNotification::Moving`]).
    Take(TakeFlow),
    /// Request the next hop to a host.
    NextHop(FindNextHop),
    /// Request the managed link that a host is reached over. This request needs no attachment.
    Route(FindRoute),
    /// Hold a promise for a flow to a host, which is opened later.
    Hold(HoldPromise),
    /// Release a held promise.
    Release(ReleaseHold),
    /// Close a flow of any program of the caller, also of another connection. Root and the group
    /// `netnice` may close any flow. The program of the flow is notified
    /// ([`FlowNotification::Closed`]). This request needs no attachment.
    End(CloseFlow),
}

/// A message of the daemon about direct flows. The response to changing and closing is
/// [`crate::Response::Done`]. The response to a request that fails is
/// [`crate::Response::Refused`] or [`crate::Response::Failed`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectReply {
    /// Response to `attach`; three descriptors are sent with it. Response to `resume`, without
    /// descriptors.
    Attached(Attached),
    /// Response to `resume`: the attachment does not exist any more, so all its flows have ended.
    Detached(Detached),
    /// Response to `list`.
    Flows(FlowList),
    /// Response to `open`.
    Opened(FlowOpened),
    /// Response to `take`.
    Taken(Box<FlowTaken>),
    /// Response to `next-hop`.
    #[serde(rename = "hop")]
    NextHop(ResolvedNextHop),
    /// Response to `route`.
    Route(RouteToHost),
    /// Response to `hold`.
    Held(PromiseHeld),
    /// A notification; it is not a response.
    #[serde(rename = "news")]
    Notification(FlowNotification),
}

/// [`DirectRequest::Attach`]: attach to a link. The message identifies the calling process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The interface. `None`: the only managed interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iface: Option<String>,
    /// Largest number of flows that the program can have open at the same time.
    pub flows: u32,
    /// Size of the memory for the regions of all flows, in bytes.
    pub bytes: u64,
    /// The program handles [`FlowNotification::Moving`]. Without it, a flow whose route moves to
    /// another link is closed.
    #[serde(default, skip_serializing_if = "super::request::is_false")]
    pub moves: bool,
}

/// The response to [`Attach`]. Three descriptors are sent with it, in this order: the memory file,
/// the doorbell to the driver, and the doorbell to the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The interface.
    pub iface: String,
    /// The driver's access to the interface: `native`, `generic` or `fallback`.
    pub mode: String,
    /// The secret with which the program resumes the attachment; empty if it cannot be resumed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub secret: String,
}

/// [`DirectRequest::Resume`]: resume an attachment. The daemon requires that the process of the
/// attachment has made the connection, and that the secret is that of the attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// The interface.
    pub iface: String,
    /// The secret of the attachment ([`Attached::secret`]).
    pub secret: String,
    /// As [`Attach::moves`].
    #[serde(default, skip_serializing_if = "super::request::is_false")]
    pub moves: bool,
}

/// [`DirectRequest::Take`], on the connection of the attachment to the link that the flow moves to.
/// The daemon requires that both attachments are those of one process, and that the secret is that
/// of the attachment which has the flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeFlow {
    /// Number of the flow.
    pub flow: u32,
    /// The secret of the attachment that has the flow ([`Attached::secret`]).
    pub secret: String,
}

/// The response to [`TakeFlow`]: the flow is open on the new link, under its number. The driver of
/// the old link has stopped sending for it (section 7 of `docs/reference/ring.md`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTaken {
    /// The flow on the new link.
    pub opened: FlowOpened,
    /// The number of what is left of the flow on the old link. The program closes it, on the
    /// connection of the old attachment, when it has taken its packets out of the old memory. The
    /// daemon closes it after 5 s.
    pub former: u32,
}

/// The response to [`Resume`] if the attachment does not exist any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// The reason.
    pub why: String,
}

/// [`DirectRequest::List`]: request the open flows of the attachment, at most
/// [`LIST_FLOWS`] of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListFlows {
    /// Only flows with a number above this one.
    pub after: u32,
}

/// The response to [`ListFlows`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowList {
    /// The flows, by ascending number.
    pub flows: Vec<FlowState>,
    /// True if flows with a greater number follow.
    pub more: bool,
}

/// The present state of an open flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowState {
    /// Number of the flow. A new daemon may have given the flow another number.
    pub flow: u32,
    /// Slot of the flow in the memory file.
    pub slot: u32,
    /// Hardware address of the next hop, as in [`FlowOpened`].
    pub next_hop: Option<[u8; 6]>,
    /// The MTU, in bytes, as in [`FlowOpened`].
    pub mtu: u32,
    /// The granted contract as text.
    pub contract: String,
    /// Why the contract is not kept at present; empty if it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub degraded: String,
}

/// Largest number of flows in one response to [`ListFlows`].
pub const LIST_FLOWS: usize = 1024;

/// The program's end of a flow: its protocol, its local address, and the remote host that it is
/// restricted to, if any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Endpoint {
    /// UDP from one port.
    Udp {
        /// The local address and port. If `remote` is given, the daemon replaces an unspecified
        /// address by the source address of the route to the remote host; else the address must be
        /// specified. The daemon chooses a port for port 0.
        local: SocketAddr,
        /// The remote address and port. `None`: any address of a single host, and any port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remote: Option<SocketAddr>,
    },
    /// UDP of a multicast group. Each member receives what is sent to the group, and sends only to
    /// the group.
    Group {
        /// The local address and port, which are the source of sent packets. The daemon chooses an
        /// unspecified address, and a port for port 0.
        local: SocketAddr,
        /// The group and its port.
        group: SocketAddr,
    },
    /// TCP between two endpoints: one connection.
    Tcp {
        /// The local address and port, which the daemon completes as in [`Endpoint::Udp`].
        local: SocketAddr,
        /// The remote address and port.
        remote: SocketAddr,
    },
    /// The connection requests of a TCP port: its segments with SYN and without ACK, from any
    /// single host, except those from the remote endpoint of an open [`Endpoint::Tcp`] of the port.
    /// Opened by the program that has, or is to have, the [`Endpoint::TcpListener`] of the port.
    TcpSyn {
        /// The local address and port. The address must be specified; the daemon chooses a port for
        /// port 0.
        local: SocketAddr,
    },
    /// All segments of a TCP port that no other flow gets, from any single host. While the port has
    /// no [`Endpoint::TcpSyn`], these include the connection requests.
    TcpListener {
        /// The local address and port, as in [`Endpoint::TcpSyn`].
        local: SocketAddr,
    },
    /// Another protocol over IP.
    Protocol {
        /// Protocol number.
        number: u8,
        /// The local address. If it is unspecified, `remote` must be given, and the daemon takes
        /// the source address of the route to the remote host.
        local: IpAddr,
        /// The remote address. `None`: any address of a single host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remote: Option<IpAddr>,
        /// Filter for received packets: all terms must hold. Offsets count from the start of the
        /// protocol's own header.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pattern: Vec<Term>,
    },
    /// Another protocol over Ethernet.
    EtherType {
        /// EtherType.
        number: u16,
        /// Filter for received packets: all terms must hold. Offsets count from the byte after the
        /// EtherType.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pattern: Vec<Term>,
    },
}

/// One term of a filter: the byte at `offset`, masked by `mask`, equals `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// Offset of the byte.
    pub offset: u16,
    /// Mask of the compared bits.
    pub mask: u8,
    /// Value of the compared bits.
    pub value: u8,
}

/// Number of bytes, from offset 0, that the terms of a filter can compare.
pub const PATTERN_REACH: u16 = 128;
/// Largest number of 8-byte words with terms in one filter (enough for two IPv6 addresses).
pub const PATTERN_WORDS: u16 = 4;
/// Largest number of terms of a filter: as many as the words have bytes.
pub const PATTERN_TERMS: u16 = 8 * PATTERN_WORDS;
/// Largest number of different sets of compared bits among filters that are tried on the same
/// packets: those of one protocol and local address, those of one EtherType, or the discard
/// patterns of one link. Each set costs a look-up per packet.
pub const PATTERN_SHAPES: u16 = 8;

/// The sizes of a flow's memory, as in `docs/reference/ring.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeDoc {
    /// Size of one chunk, in bytes.
    pub chunk_bytes: u32,
    /// Number of chunks.
    pub chunks: u32,
    /// Number of entries of the submit ring, and as many of the reclaim ring.
    pub transmit_entries: u32,
    /// Number of entries of the prime ring, and as many of the deliver ring.
    pub receive_entries: u32,
}

/// [`DirectRequest::Open`], on the connection of the attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenFlow {
    /// The protocol and the addresses.
    #[serde(rename = "speaks")]
    pub endpoint: Endpoint,
    /// The contract as text. `None`: best effort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    /// The sizes of the flow's memory.
    pub shape: ShapeDoc,
    /// Deliver the fragments of a datagram in order only (VERT 4.3).
    #[serde(default, skip_serializing_if = "super::request::is_false")]
    pub in_order: bool,
    /// The number of a held promise of this attachment ([`HoldPromise`]), which the flow's contract
    /// replaces. If the daemon refuses the flow, the promise stays held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<u32>,
}

/// The response to [`OpenFlow`]: the addresses for the headers, and the location of the flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowOpened {
    /// Number of the flow while it is open.
    pub flow: u32,
    /// Slot of the flow in the memory file.
    pub slot: u32,
    /// Offset of the flow's region in the memory file, in bytes.
    pub offset: u64,
    /// The protocol and the addresses, with those that the daemon chose.
    #[serde(rename = "speaks")]
    pub endpoint: Endpoint,
    /// Hardware address of the link.
    pub mac: [u8; 6],
    /// Hardware address of the next hop. The driver writes it into each frame, so it can change.
    /// `None`: the flow sends to any host, or is of an EtherType. Then the program writes the
    /// address into each frame ([`DirectRequest::NextHop`] finds it for a host).
    pub next_hop: Option<[u8; 6]>,
    /// Path MTU to the remote host, in bytes. The MTU of the link if the flow has no single remote
    /// host.
    pub mtu: u32,
    /// The granted contract as text.
    pub contract: String,
    /// The key of the local endpoint, for a TCP flow. The program derives its initial sequence
    /// numbers (RFC 6528) and SYN cookies (RFC 4987) from it. The daemon derives the key from a
    /// secret of its own, the user, and the local address and port. So the key is the same after a
    /// restart of the program or of the daemon, and other users cannot compute it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<[u8; 16]>,
}

/// [`DirectRequest::Close`] and [`DirectRequest::End`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloseFlow {
    /// Number of the flow.
    pub flow: u32,
}

/// [`DirectRequest::Change`]: another contract. If the daemon refuses it, the old one stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeFlow {
    /// Number of the flow.
    pub flow: u32,
    /// The changed clauses as contract text.
    pub change: String,
}

/// [`DirectRequest::NextHop`]: the next hop to a host, for flows to any host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindNextHop {
    /// The host.
    pub to: IpAddr,
}

/// The response to [`FindNextHop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedNextHop {
    /// Hardware address of the next hop.
    pub mac: [u8; 6],
    /// Path MTU, in bytes.
    pub mtu: u32,
}

/// [`DirectRequest::Route`]: the managed link that a host is reached over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindRoute {
    /// The host.
    pub to: IpAddr,
}

/// The response to [`FindRoute`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteToHost {
    /// The interface, which is managed.
    pub iface: String,
    /// The address of the next hop: the host itself, if it is on the link.
    pub via: IpAddr,
    /// The local address that packets to the host are sent from.
    pub from: IpAddr,
}

/// [`DirectRequest::Hold`], on the connection of the attachment: hold a promise of the link for a
/// `channel` to a host. The daemon holds the shortest deadline that the link can keep beside all
/// its promises, for [`HoldPromise::LASTS_NS`] at most. A held promise counts as a flow of the
/// attachment, and ends with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldPromise {
    /// The host that messages are for. The route to it must lead over the link.
    pub to: IpAddr,
    /// The contract as text, with a clause `channel`, whose deadline is the longest that is held.
    pub contract: String,
}

impl HoldPromise {
    /// How long a promise is held if no flow is opened with it, in nanoseconds: 5 s.
    pub const LASTS_NS: u64 = 5_000_000_000;
}

/// The response to [`HoldPromise`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromiseHeld {
    /// The number of the held promise, for [`OpenFlow::hold`] and [`ReleaseHold`].
    pub hold: u32,
    /// The contract with the shortest deadline, as text.
    pub contract: String,
    /// The address of the next hop: the host itself, if it is on the link.
    pub via: IpAddr,
    /// The local address that packets to the host are sent from.
    pub from: IpAddr,
    /// Path MTU to the host, in bytes.
    pub mtu: u32,
}

/// [`DirectRequest::Release`]: release a held promise of the attachment. The response is
/// [`crate::Response::Done`], also if the promise is not held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseHold {
    /// The number of the held promise.
    pub hold: u32,
}

/// A notification about a program's flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowNotification {
    /// The link went up or down. Packets come back unsent while it is down.
    Link {
        /// True if the link is up now.
        up: bool,
    },
    /// The path MTU has changed. Longer packets come back unsent.
    Mtu {
        /// Number of the flow.
        flow: u32,
        /// The MTU, in bytes.
        mtu: u32,
    },
    /// The next hop has changed. The driver uses the new one from now on.
    NextHop {
        /// Number of the flow.
        flow: u32,
        /// Hardware address of the next hop. `None`: it does not answer, and packets come back
        /// unsent.
        mac: Option<[u8; 6]>,
    },
    /// The flow gets less than its contract grants, or the full contract again.
    Degraded {
        /// Number of the flow.
        flow: u32,
        /// The reason. Empty: the flow gets its full contract again.
        why: String,
    },
    /// The flow is closed, for example because its route uses another link now.
    Closed {
        /// Number of the flow.
        flow: u32,
        /// The reason.
        why: String,
    },
    /// The route of the flow leads over another link now. The program attaches to that link, unless
    /// it has done so, and takes the flow there ([`DirectRequest::Take`]). Until then the flow
    /// stays on the old link, for 10 s at most; then the daemon closes it. If the route returns
    /// before, the daemon refuses to have the flow taken, and the flow stays.
    Moving {
        /// Number of the flow.
        flow: u32,
        /// The interface that the route leads over.
        to: String,
    },
    /// A router or the remote host reported that a packet of the flow was not delivered (ICMP). Any
    /// host can forge such a report.
    Undelivered {
        /// Number of the flow.
        flow: u32,
        /// The report.
        report: Undelivered,
    },
    /// The driver has ended, or has disconnected the program. All flows of the program are closed.
    Ended {
        /// The reason.
        why: String,
    },
}

/// The report that a packet was not delivered, in [`FlowNotification::Undelivered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Undelivered {
    /// The destination of the packet. The port is 0 for a protocol other than UDP and TCP.
    pub to: SocketAddr,
    /// The reporting router or host.
    pub by: IpAddr,
    /// The reason.
    pub why: DeliveryFailure,
    /// The path MTU to the destination, in bytes, if the packet was too long. For UDP and other
    /// protocols it holds from now on. For TCP nothing has changed: the program decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The sequence number of the segment, for TCP. The program ignores the report unless this
    /// number is in flight (RFC 5927, section 4.1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u32>,
}

/// Why a packet was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryFailure {
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
    /// The packet is longer than the MTU of a link on its path.
    TooLong,
}

impl Endpoint {
    /// The local port; `None` for [`Endpoint::Protocol`] and [`Endpoint::EtherType`].
    pub fn port(&self) -> Option<u16> {
        match self {
            Endpoint::Udp { local, .. }
            | Endpoint::Group { local, .. }
            | Endpoint::Tcp { local, .. }
            | Endpoint::TcpSyn { local }
            | Endpoint::TcpListener { local } => Some(local.port()),
            Endpoint::Protocol { .. } | Endpoint::EtherType { .. } => None,
        }
    }

    /// True for the endpoints of TCP.
    pub fn is_tcp(&self) -> bool {
        matches!(
            self,
            Endpoint::Tcp { .. } | Endpoint::TcpSyn { .. } | Endpoint::TcpListener { .. }
        )
    }
}
