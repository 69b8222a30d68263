//! What the daemon and a driver process say to each other.
//!
//! A driver listens at `driver-IFACE.sock` in the runtime folder, which only root may open. Messages are framed as those of
//! the daemon's socket. Requests carry a number, and answers bear it; requests may follow each other without waiting. What
//! happens by itself comes without a number ([`DriverEvent`]). A driver goes on when the daemon ends; the next one asks it for
//! its [`DriverRequest::Census`].
//!
//! The daemon decides: whose port it is, what fits the link. The driver believes it in that, and checks only
//! what would break its own work. The numbers of programs and flows are the driver's. None soon comes twice, so that what the daemon
//! asks about one that is gone, of which it has not heard yet, is refused, and means no other.

use serde::{Deserialize, Serialize};

use crate::direct::{ShapeDoc, Speaks, Term};

/// A request with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverCall {
    /// Chosen by the daemon; the answer bears it.
    pub id: u64,
    /// What is asked.
    pub ask: DriverRequest,
}

/// What the daemon asks of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum DriverRequest {
    /// The rate that the direct path may use from now on, and the bytes that the wire adds to each packet.
    Wire {
        /// In bit/s.
        rate: u64,
        /// In bytes.
        overhead: u64,
    },
    /// Another program. Its pidfd travels with the request: when it ends, its flows end.
    Attach {
        /// Its number, for people.
        pid: u32,
        /// The user that its memory counts for.
        #[serde(default)]
        uid: u32,
        /// Flows at a time.
        flows: u32,
        /// Bytes of all regions.
        bytes: u64,
        /// Bytes that memory files of this user may have with this driver at most, those of programs that have ended too as long
        /// as anybody has them. None: any number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        most: Option<u64>,
    },
    /// A program ends, and with it its flows.
    Detach {
        /// Which.
        program: u32,
    },
    /// Another flow of a program.
    Open(Box<DriverFlow>),
    /// Another contract.
    Change {
        /// Which flow.
        flow: u32,
        /// The contract as text.
        contract: String,
        /// As in [`DriverFlow`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        granted: Option<String>,
    },
    /// Frames of the flow go to another station, or may be of another length.
    Readdress {
        /// Which flow.
        flow: u32,
        /// The station. None: to nobody; packets come back unsent. (A flow that was opened without one goes on naming
        /// it.)
        next_hop: Option<[u8; 6]>,
        /// The MTU.
        mtu: u32,
    },
    /// A flow ends.
    Close {
        /// Which.
        flow: u32,
    },
    /// Frames that fit one of these are thrown away from now on, and no others. Offsets count from a frame's first byte.
    Discard {
        /// Terms of each.
        patterns: Vec<Vec<Term>>,
    },
    /// All programs and flows, with their counters.
    Census,
    /// What all flows together have done: asked for several times a second.
    Totals,
    /// End: XDP is off the interface before the answer comes.
    Stop,
}

/// A flow as the daemon has it set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverFlow {
    /// Whose.
    pub program: u32,
    /// The daemon's own number of it, by which the next daemon knows it in the census.
    #[serde(default)]
    pub number: u32,
    /// What it speaks, complete: addresses and ports are chosen.
    pub speaks: Speaks,
    /// The station that frames go to. None: to whichever the program names.
    pub next_hop: Option<[u8; 6]>,
    /// The MTU.
    pub mtu: u32,
    /// The contract as text, as the driver keeps it.
    pub contract: String,
    /// The contract as it was granted, where the driver is told another: a promise that is not kept at present, a slice
    /// at the driver's rate. The driver only remembers it, for the next daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted: Option<String>,
    /// Its memory.
    pub shape: ShapeDoc,
    /// Parts of datagrams in order alone.
    #[serde(default, skip_serializing_if = "super::request::is_false")]
    pub in_order: bool,
    /// What it may use of the driver's time for receiving, in millionths. None: all that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_share: Option<u32>,
}

/// What a driver says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverWord {
    /// An answer.
    Answer {
        /// To which request.
        id: u64,
        /// What.
        answer: DriverAnswer,
    },
    /// What happened by itself.
    Event(DriverEvent),
}

/// What a driver answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverAnswer {
    /// It is done.
    Done,
    /// To `attach`; memory file, doorbell to the driver and doorbell to the program travel with it.
    Attached {
        /// The program's number.
        program: u32,
    },
    /// To `open`.
    Opened {
        /// The flow's number.
        flow: u32,
        /// Its slot.
        slot: u32,
        /// Where its region begins.
        offset: u64,
    },
    /// To `close`: what was counted of it.
    Closed(Box<FlowCounts>),
    /// To `census`.
    Census(Box<CensusDoc>),
    /// To `totals`.
    Totals(TotalsDoc),
    /// Nothing has changed.
    Failed {
        /// Why.
        why: String,
    },
}

/// What happened by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverEvent {
    /// A program ended, and its flows with it.
    Gone {
        /// Which.
        program: u32,
    },
    /// A program broke a rule of `docs/reference/ring.md` and was expelled with its flows.
    Expelled {
        /// Which.
        program: u32,
        /// Which rule, and how.
        why: String,
    },
    /// The interface is gone, or its MTU is beyond what a driver has frames for; the driver ends. Another address or another
    /// MTU it takes over, and a link that is down it waits for.
    Lost {
        /// What.
        why: String,
    },
}

/// All that a driver has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CensusDoc {
    /// The interface.
    pub iface: String,
    /// `native`, `generic` or `fallback`.
    pub mode: String,
    /// The rate that it has now, in bit/s.
    pub rate: u64,
    /// Why it is not native, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not_native: Option<String>,
    /// The programs.
    pub programs: Vec<ProgramDoc>,
    /// The flows.
    pub flows: Vec<DriverFlowDoc>,
    /// Frames that were looked at and were no flow's, by reason.
    pub discarded: Vec<(String, u64)>,
    /// What its time went to.
    pub spent: SpentDoc,
    /// Who has the frames that it shares with the kernel; none in the fallback, which shares none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<FramesDoc>,
    /// Doorbells that programs rang though the driver was awake.
    pub unasked: u64,
    /// Processors are kept awake now, since packets leave that have a moment to leave at.
    pub awake: bool,
    /// How many patterns it was told to throw away.
    pub discards: u32,
    /// As whom it runs, and what it cannot do; or what of that could not be had.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub confined: String,
    /// Memory files that exist, by the users that they count for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<UserMemoryDoc>,
}

/// Memory files of a user that exist, attached or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserMemoryDoc {
    /// The user.
    pub uid: u32,
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a driver's time went to while it did not sleep, in ns since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpentDoc {
    /// For frames that came in.
    pub receiving_ns: u64,
    /// For what programs submitted.
    pub sending_ns: u64,
    /// Before departures, so as to be in time.
    pub waiting_ns: u64,
}

/// Who has how many of the frames that a driver shares with the kernel. The four sum to `total` at every moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FramesDoc {
    /// All.
    pub total: u32,
    /// Those that nobody has.
    pub free: u32,
    /// The driver, for as long as it writes or reads them.
    pub driver: u32,
    /// The kernel, for frames that come.
    pub filling: u32,
    /// The kernel, until it has sent them.
    pub sending: u32,
}

/// What all flows of a driver have done together, those that are closed too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TotalsDoc {
    /// Packets that were handed to the card.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that programs got.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
}

/// How long a driver's link may be busy already when the next packet is decided on, in ns: the daemon admits deadlines with
/// it, and the driver schedules by it.
pub const AHEAD_NS: u64 = 20_000;

/// Bytes that a packet counts at least, whatever is in it: the headers of UDP over IPv4. What the wire adds to a packet weighs
/// the most on the shortest one, so the daemon admits rates with it, and the driver charges by it.
pub const SHORTEST: u64 = 42;

/// A program of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramDoc {
    /// Its number with the driver.
    pub program: u32,
    /// Its process.
    pub pid: u32,
    /// Bytes of its memory file.
    pub bytes: u64,
}

/// A flow of a driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriverFlowDoc {
    /// Its number with the driver.
    pub flow: u32,
    /// As it was opened, and changed since.
    pub setup: DriverFlow,
    /// Its counters.
    pub counts: FlowCounts,
    /// How many chunks of its memory the driver has now: those of the packet that leaves next. The program has the others.
    #[serde(default)]
    pub held: u32,
}

/// What is counted of a flow. Every record that was taken is sent, forbidden, too long or without a link; every packet that
/// came is delivered or lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowCounts {
    /// Packets that were handed to the card.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that the template forbade.
    pub forbidden: u64,
    /// Packets longer than the MTU allows.
    pub too_long: u64,
    /// Packets while there was no link or no next hop.
    pub no_link: u64,
    /// Packets that came.
    pub received: u64,
    /// Those that the program got.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Those for which it had no buffer.
    pub no_buffer: u64,
    /// Those that its buffer was too short for.
    pub too_short: u64,
    /// Those that it had no share of the driver's time for.
    pub over_share: u64,
    /// Parts of datagrams that it did not get, since it wants them in order and one before them was missing. They are not
    /// among the packets that came.
    pub out_of_order: u64,
    /// What the packets that came took of the driver's time, in ns.
    pub receiving_ns: u64,
    /// How late packets left after they might have (their eligible time), in a histogram: packets below 2^k µs, k from
    /// 0 on.
    pub lateness: Vec<u64>,
    /// Queueing delay of heads, in ns: sum, and the most.
    pub waited_sum: u64,
    /// The most.
    pub waited_most: u64,
}
