//! The messages between the daemon and a driver process.
//!
//! A driver listens at `drivers/IFACE.sock` in the runtime folder. Messages are framed as on the
//! daemon's socket. Each request ([`DriverCall`]) carries a number, and the reply repeats it. The
//! daemon may send requests without waiting for replies. A driver sends events without a number
//! ([`DriverEvent`]). When the daemon ends, the driver continues; the next daemon requests its
//! [`DriverRequest::Census`].
//!
//! The daemon decides to which flow a port belongs and what fits the link. The driver trusts these
//! decisions and validates only what could disturb its own work. The driver assigns the numbers of
//! programs and flows, and reuses a number only after many others. So the driver refuses a request
//! about a program or flow that has ended, also if the daemon sent the request before it received
//! the event, and does not apply the request to another program or flow.
//!
//! The types are plain data, and no function fails.

use serde::{Deserialize, Serialize};

use crate::direct::{Endpoint, ShapeDoc, Term};

/// A request of the daemon to a driver, with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverCall {
    /// Number of the request: the daemon chooses it, and the reply repeats it.
    pub id: u64,
    /// The request.
    #[serde(rename = "ask")]
    pub request: DriverRequest,
}

/// A request of the daemon to a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum DriverRequest {
    /// Sets the rate of the link and the wire overhead of each packet. The driver sends at the
    /// link's rate, less what the kernel's classes send.
    Wire {
        /// The rate of the link, in bit/s.
        rate: u64,
        /// The rate of the kernel's classes, in bit/s. What they send is charged to the link up to
        /// this rate, if the driver has their counter ([`DriverRequest::KernelPath`]). 0: nothing
        /// is charged.
        #[serde(default, skip_serializing_if = "is_zero")]
        kernel_rate: u64,
        /// The wire overhead, in bytes per packet.
        overhead: u64,
        /// How long before its logical arrival a packet of a `channel` may leave, in ns.
        #[serde(default, skip_serializing_if = "is_zero")]
        horizon_ns: u64,
        /// For how long the link may already be busy when the driver selects the next packet, in
        /// ns.
        #[serde(default = "send_ahead", skip_serializing_if = "is_send_ahead")]
        ahead_ns: u64,
    },
    /// Gives the driver the counter of what the kernel's classes are given to send. The map, an
    /// array of pairs of 64-bit numbers (bytes, packets) for mmap(2), is sent with the request.
    KernelPath {
        /// The place in the array.
        place: u32,
    },
    /// Begins to receive the packets of redirected targets, from the far end of the link's redirect
    /// pair. The map of redirects, an array for mmap(2), is sent with the request. A repeated
    /// request with the same map changes nothing.
    Redirects {
        /// The name of the far end.
        iface: String,
    },
    /// Schedules the packets of the target at this place of the map by a contract, or changes the
    /// contract.
    Redirect {
        /// The place in the map.
        place: u32,
        /// The daemon's number of the target. The driver only stores it, for the census.
        target: u32,
        /// The contract as text.
        contract: String,
        /// For how long the first packets wait, in ns, so that they do not overtake packets that
        /// the kernel's classes still have. Without effect on a place that is in use.
        #[serde(default, skip_serializing_if = "is_zero")]
        hold_ns: u64,
    },
    /// Ends a place of the map. What waits there is sent as soon as the link permits; then the
    /// driver replies, and the place can be used again.
    EndRedirect {
        /// The place in the map.
        place: u32,
    },
    /// Attaches a program. The program's pidfd is sent with the request. When the program ends, its
    /// flows end.
    Attach {
        /// Process number, for display.
        pid: u32,
        /// The user whose quota the memory counts against.
        #[serde(default)]
        uid: u32,
        /// Largest number of flows that the program can have open at the same time.
        flows: u32,
        /// Size of the memory for the regions of all flows, in bytes.
        bytes: u64,
        /// Largest number of bytes of this user's memory files with this driver. The files of ended
        /// programs count as long as they exist. `None`: no limit.
        #[serde(rename = "most", default, skip_serializing_if = "Option::is_none")]
        memory_limit: Option<u64>,
        /// The secret with which the program resumes its attachment at a later daemon. The driver
        /// only stores it for that daemon.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<String>,
    },
    /// Ends a program and its flows.
    Detach {
        /// Number of the program.
        program: u32,
    },
    /// Opens a flow of a program.
    Open(Box<DriverFlow>),
    /// Changes the contract of a flow.
    Change {
        /// Number of the flow.
        flow: u32,
        /// The new contract as text.
        contract: String,
        /// The granted contract, as in [`DriverFlow::granted`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        granted: Option<String>,
    },
    /// Changes the next hop or the MTU of a flow.
    Readdress {
        /// Number of the flow.
        flow: u32,
        /// The next hop. `None`: the next hop is unknown, and packets come back unsent. (On a flow
        /// that was opened without a next hop the program continues to write it into each frame.)
        next_hop: Option<[u8; 6]>,
        /// The MTU, in bytes.
        mtu: u32,
    },
    /// Stops sending for a flow: the driver returns the record that it holds, and takes no further
    /// record from the flow's submit ring. Its reply says that both have happened. The flow
    /// continues to receive. It cannot be resumed, only closed.
    Withdraw {
        /// Number of the flow.
        flow: u32,
    },
    /// Closes a flow.
    Close {
        /// Number of the flow.
        flow: u32,
        /// Reset the connection of a TCP flow with one remote endpoint: its program has not closed
        /// it. Without effect if the program has sent nothing, or a reset, or for another flow.
        /// (The end of a program resets its connections, too.)
        #[serde(default, skip_serializing_if = "super::request::is_false")]
        reset: bool,
    },
    /// Replaces the patterns of received frames that the driver discards. Offsets count from the
    /// first byte of a frame.
    Discard {
        /// The terms of each pattern.
        patterns: Vec<Vec<Term>>,
    },
    /// Sets the overbooked server of the link, whose classes the flows with `cell …,class=N` share.
    /// `None`: no server. A server with members is not removed.
    Classes {
        /// The server.
        server: Option<ServerDoc>,
    },
    /// Sets the code points that the driver writes into sent packets, by the kind of a flow's
    /// contract.
    CodePoints(CodePointsDoc),
    /// Limits how long the packet thread waits awake before departures, so that it leaves to
    /// programs the processor time that is promised to them.
    AwakeLimit {
        /// The share of a processor in parts of a million: the thread waits awake only while work
        /// and waiting together take less than three quarters of it. A million or more: no limit.
        #[serde(rename = "most")]
        most_ppm: u32,
    },
    /// Requests all programs and flows with their counters.
    Census,
    /// Requests the driver's state with the counters of these flows only, and without programs. The
    /// reply is a `census` too. A flow that has ended is left out.
    CensusOf {
        /// Numbers of the flows.
        flows: Vec<u32>,
    },
    /// Requests the sums of all flows. The daemon sends this several times a second.
    Totals,
    /// Ends the driver. It detaches XDP from the interface before it replies.
    Stop,
}

/// The overbooked server of a link, as the driver serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerDoc {
    /// The slice as text (`8ms/20ms`), at the link's rate. `None`: the server is suspended, and
    /// its members share what is left over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// The minimum of each of the eight classes, in bit/s; `None` for a class without one.
    pub minimums: Vec<Option<u64>>,
}

/// The code points (DSCP, 0 to 63) that a driver writes into the IP packets of its flows, by the
/// kind of the contract that it serves. `None`: the packets keep what the program wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CodePointsDoc {
    /// Of flows with a cell contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<u8>,
    /// Of channels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<u8>,
    /// Of flows with a slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<u8>,
    /// Of flows with a minimum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u8>,
    /// Of all other flows, also of those whose guarantee is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_effort: Option<u8>,
}

/// The configuration of a flow, as the daemon decided it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverFlow {
    /// Number of the program.
    pub program: u32,
    /// The daemon's number of the flow. The next daemon finds it in the census.
    #[serde(default)]
    pub number: u32,
    /// The protocol and the addresses, as the daemon resolved them: a local address is never
    /// unspecified, and a local port is never 0.
    #[serde(rename = "speaks")]
    pub endpoint: Endpoint,
    /// The next hop. `None`: the program writes the next hop into each frame.
    pub next_hop: Option<[u8; 6]>,
    /// The MTU, in bytes.
    pub mtu: u32,
    /// The contract as text, as the driver serves it.
    pub contract: String,
    /// The granted contract, if it differs from `contract`: a guarantee that is not served at
    /// present. The driver only stores it for the next daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted: Option<String>,
    /// The sizes of the flow's memory.
    pub shape: ShapeDoc,
    /// Deliver the fragments of a datagram in order only.
    #[serde(default, skip_serializing_if = "super::request::is_false")]
    pub in_order: bool,
    /// Receive budget: share of the driver's time for receiving, in millionths. `None`: no limit.
    #[serde(
        rename = "receive_share",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub receive_budget: Option<u32>,
}

/// A message of a driver to the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverMessage {
    /// A reply.
    #[serde(rename = "answer")]
    Reply {
        /// The number of the request.
        id: u64,
        /// The reply.
        #[serde(rename = "answer")]
        reply: DriverReply,
    },
    /// An event that no request caused.
    Event(DriverEvent),
}

/// A reply of a driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverReply {
    /// The request was carried out.
    Done,
    /// Reply to `attach`. Three descriptors are sent with the reply, in this order: the memory
    /// file, the doorbell to the driver, and the doorbell to the program.
    Attached {
        /// Number of the program.
        program: u32,
    },
    /// Reply to `open`.
    Opened {
        /// Number of the flow.
        flow: u32,
        /// Slot of the flow in the memory file.
        slot: u32,
        /// Offset of the flow's region in the memory file, in bytes.
        offset: u64,
    },
    /// Reply to `close`: the final counters of the flow.
    Closed(Box<FlowCounts>),
    /// Reply to `census` and `census-of`.
    Census(Box<CensusDoc>),
    /// Reply to `totals`.
    Totals(TotalsDoc),
    /// The request failed. Nothing has changed.
    Failed {
        /// The reason.
        why: String,
    },
}

/// An event that no request caused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverEvent {
    /// A program ended, and its flows with it.
    #[serde(rename = "gone")]
    ProgramEnded {
        /// Number of the program.
        program: u32,
    },
    /// A program broke a rule of `docs/reference/ring.md`, and the driver disconnected it with its
    /// flows.
    #[serde(rename = "expelled")]
    ProgramDisconnected {
        /// Number of the program.
        program: u32,
        /// The rule, and how it was broken.
        why: String,
    },
    /// The interface is gone, another interface has its name, or its MTU exceeds the driver's frame
    /// size; the driver ends. The driver adopts any other change of the address or the MTU, and
    /// waits while the link is down.
    #[serde(rename = "lost")]
    InterfaceLost {
        /// The reason.
        why: String,
    },
}

/// The complete state of a driver. The reply to `census-of` contains only the requested flows, and
/// no programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CensusDoc {
    /// The interface.
    pub iface: String,
    /// Access to the interface: `native`, `generic` or `fallback`.
    pub mode: String,
    /// The rate of the link, in bit/s.
    pub rate: u64,
    /// The reason why the mode is not `native`, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not_native: Option<String>,
    /// The programs.
    pub programs: Vec<ProgramDoc>,
    /// The flows.
    pub flows: Vec<DriverFlowDoc>,
    /// Numbers of received frames that no flow got, by reason. `strange` counts other frames: those
    /// that the kernel returned from a state that they were not in ([`FramesDoc`]).
    pub discarded: Vec<(String, u64)>,
    /// Time accounting of the driver.
    #[serde(rename = "spent")]
    pub time: TimeAccountingDoc,
    /// Stops of the driver's packet thread since its start.
    pub stops: StopsDoc,
    /// The packet thread. `None` from a driver that does not state it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<PacketThreadDoc>,
    /// Owners of the frames that the driver shares with the kernel. `None` in the fallback mode,
    /// which shares no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<FramesDoc>,
    /// Number of doorbell writes that woke the driver although their programs had not taken the
    /// driver's sleeping flag.
    #[serde(rename = "unasked")]
    pub unrequested_doorbells: u64,
    /// True while the driver keeps the processors out of idle states (PM QoS), because packets of
    /// cell contracts are leaving.
    #[serde(rename = "awake")]
    pub pm_qos_held: bool,
    /// Number of patterns of frames that the driver discards.
    #[serde(rename = "discards")]
    pub discard_patterns: u32,
    /// The code points that the driver writes into sent packets.
    #[serde(rename = "code-points")]
    pub code_points: CodePointsDoc,
    /// The limit of the packet thread's time awake, as in [`DriverRequest::AwakeLimit`]. `None`: an
    /// earlier driver, which does not know the request.
    #[serde(rename = "awake-limit", skip_serializing_if = "Option::is_none")]
    pub awake_limit_ppm: Option<u32>,
    /// The user and the restrictions of the driver process, or which of them could not be set.
    #[serde(rename = "confined", skip_serializing_if = "String::is_empty")]
    pub confinement: String,
    /// Existing memory files, by the users against whose quotas they count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<UserMemoryDoc>,
    /// The redirected targets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub redirected: Vec<RedirectedDoc>,
}

/// A target whose packets the egress program redirects to the driver, with its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RedirectedDoc {
    /// The place in the map of redirects.
    pub place: u32,
    /// The daemon's number of the target.
    pub target: u32,
    /// The contract as text.
    pub contract: String,
    /// Packets handed to the NIC.
    pub sent: u64,
    /// Bytes of the packets in `sent`.
    pub sent_bytes: u64,
    /// Packets that were dropped: the link was down, the packet was too long for the contract, or
    /// more waited than the driver keeps.
    pub dropped: u64,
    /// Packets that the eBPF program on egress refused, because too much waited. TCP sends them
    /// again later.
    pub refused: u64,
    /// Packets that wait.
    pub waiting: u64,
    /// Bytes of the packets in `waiting`.
    pub waiting_bytes: u64,
    /// Sent packets by lateness, as in [`FlowCounts::lateness`].
    pub lateness: Vec<u64>,
}

/// The memory files that count against one user's quota: those of attached programs, and those of
/// programs that have detached or ended, for as long as the file exists (while a descriptor, a
/// mapping or an unread message refers to it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserMemoryDoc {
    /// User id.
    pub uid: u32,
    /// Number of these files.
    pub files: u64,
    /// Sum of the sizes of these files, in bytes.
    pub bytes: u64,
}

/// The time that a driver's packet thread was awake since its start, by purpose, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeAccountingDoc {
    /// Time for received frames.
    pub receiving_ns: u64,
    /// Time for submitted records, and for commands of the driver's control thread.
    pub sending_ns: u64,
    /// Time in iterations without work, and spinning before departures.
    pub waiting_ns: u64,
}

/// A driver's packet thread: the thread that sends and receives all packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PacketThreadDoc {
    /// Thread id, in the PID namespace of the driver.
    pub id: u32,
    /// The processor that the thread was bound to at its start; `None`: it may run on each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<u32>,
}

/// The processor time of a driver's packet thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadTimeDoc {
    /// When the times were read (CLOCK_MONOTONIC), in ns.
    pub at_ns: u64,
    /// Processor time, in ns (CLOCK_THREAD_CPUTIME_ID).
    pub processor_ns: u64,
    /// [`TimeAccountingDoc::waiting_ns`] at the same time. The driver waits awake only as long as
    /// its scheduling class permits.
    pub waiting_ns: u64,
}

/// Stops of a driver's packet thread: stretches of at least 20 µs in which the machine did not let
/// it run. The first three are numbers of stops, by evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StopsDoc {
    /// A sleep ended too late.
    pub late: u64,
    /// The thread waited for a departure awake, and did not get the processor.
    pub still: u64,
    /// An iteration lasted longer than its frames explain.
    pub slow: u64,
    /// Sum of the lengths, in ns.
    pub total_ns: u64,
    /// The longest, in ns.
    pub longest_ns: u64,
}

impl StopsDoc {
    /// Number of stops of all kinds.
    pub fn number(&self) -> u64 {
        self.late
            .saturating_add(self.still)
            .saturating_add(self.slow)
    }
}

/// Owners of the frames that a driver shares with the kernel. The sum of the other four is always
/// `total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FramesDoc {
    /// All frames.
    pub total: u32,
    /// Free frames.
    pub free: u32,
    /// Frames that the driver is writing or reading.
    pub driver: u32,
    /// Frames that the kernel has for receiving.
    pub filling: u32,
    /// Frames that the kernel has for sending and has not completed.
    pub sending: u32,
}

/// Sums over all flows of a driver, including closed flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TotalsDoc {
    /// Packets handed to the NIC.
    pub sent: u64,
    /// Bytes of the packets in `sent`.
    pub sent_bytes: u64,
    /// Packets delivered to programs.
    pub delivered: u64,
    /// Bytes of the packets in `delivered`.
    pub delivered_bytes: u64,
    /// Processor time of the packet thread. `None` from a driver that does not state it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<ThreadTimeDoc>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// For how long a driver's link may already be busy when the driver selects the next packet, in ns,
/// while packets have times of their own (`cell`, `channel`). The daemon's admission of deadlines
/// counts it, and the driver has it until the first [`DriverRequest::Wire`].
pub const SEND_AHEAD_NS: u64 = 20_000;

fn send_ahead() -> u64 {
    SEND_AHEAD_NS
}

fn is_send_ahead(number: &u64) -> bool {
    *number == SEND_AHEAD_NS
}

/// The most of a driver's time for received packets that flows can have for certain (`receive`), in
/// millionths.
pub const MAX_RESERVED_RECEIVE: u32 = 800_000;

/// Smallest size of a packet for admission and scheduling, in bytes: the headers of Ethernet, IPv4
/// and UDP. The driver charges a shorter packet as one of this size. The wire overhead matters most
/// for the shortest packet, so the daemon's admission of rates uses the size too.
pub const MIN_PACKET_BYTES: u64 = 42;

/// A program of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramDoc {
    /// The driver's number of the program.
    pub program: u32,
    /// The program's process number.
    pub pid: u32,
    /// Size of its memory file, in bytes.
    pub bytes: u64,
    /// The user whose quota the memory counts against; `None` from a driver that does not state it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Largest number of flows that the program can have open at the same time.
    pub flows: u32,
    /// The secret of the attachment; `None` if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// A flow of a driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriverFlowDoc {
    /// The driver's number of the flow.
    pub flow: u32,
    /// The flow's configuration, with all changes since it was opened.
    pub setup: DriverFlow,
    /// The flow's counters.
    pub counts: FlowCounts,
    /// Number of chunks in records that the driver has taken from the rings and not returned yet.
    #[serde(default)]
    pub held: u32,
    /// Slot of the flow in the program's memory file.
    #[serde(default)]
    pub slot: u32,
}

/// The counters of a flow. Each record that the driver took from the submit ring is counted as
/// `sent`, `forbidden`, `too_long` or `no_link`, except the head: the one that is to leave next.
/// Each received packet is counted as `delivered`, `no_buffer`, `buffer_too_short` or `over_share`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowCounts {
    /// Packets handed to the NIC.
    pub sent: u64,
    /// Bytes of the packets in `sent`.
    pub sent_bytes: u64,
    /// Packets that were submitted and that the flow's template forbids.
    pub forbidden: u64,
    /// Packets longer than the MTU or the contract allows.
    pub too_long: u64,
    /// Packets that were not sent because there was no link, no next hop, or no room in the NIC's
    /// queue.
    pub no_link: u64,
    /// Packets received for the flow.
    pub received: u64,
    /// Received packets that were delivered to the program.
    pub delivered: u64,
    /// Bytes of the packets in `delivered`.
    pub delivered_bytes: u64,
    /// Received packets for which the flow had no buffer.
    pub no_buffer: u64,
    /// Received packets that were longer than the buffer.
    #[serde(rename = "too_short")]
    pub buffer_too_short: u64,
    /// Received packets beyond the flow's receive budget.
    pub over_share: u64,
    /// Fragments that were not delivered, because the flow takes them in order only and an earlier
    /// fragment was missing. `received` does not include them.
    pub out_of_order: u64,
    /// Driver time charged for received packets, in ns.
    pub receiving_ns: u64,
    /// True while the driver drops the packets that arrive for the flow, because the flow has used
    /// up its receive budget.
    #[serde(skip_serializing_if = "super::request::is_false")]
    pub suspended: bool,
    /// Histogram of lateness: the time from the eligible time of a packet, or from its arrival at
    /// the head of the flow's queue if that is later, to its departure. Entry k counts latenesses
    /// from 2^(k-1) µs to below 2^k µs; entry 0 those below 1 µs; entry 20 all from 2^19 µs on.
    /// Entries of 0 at the end are omitted.
    pub lateness: Vec<u64>,
    /// Sum over all sent packets of the time from the packet's arrival at the head of the flow's
    /// queue to its departure, in ns.
    #[serde(rename = "waited_sum")]
    pub queue_delay_sum: u64,
    /// The largest of these times, in ns.
    #[serde(rename = "waited_most")]
    pub queue_delay_max: u64,
}
