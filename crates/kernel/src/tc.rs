//! Makes, lists and removes queueing disciplines (qdiscs) and HTB classes, reads their counts, and
//! finds filters, over route netlink. A function that sends a request fails with
//! [`NetlinkError`].
//!
//! Units are HTB's: rates in bytes per second, bursts as time in ticks of 64 ns (`PSCHED_SHIFT`). A
//! class id is `major:minor`; the major number is the qdisc's handle.

use crate::netlink::{
    Attributes, Message, NetlinkClient, NetlinkError, Request, attributes, find, number, text,
};

/// The handle of a qdisc or the id of a class: a major and a minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Handle(pub u32);

impl Handle {
    /// The handle with these two numbers.
    pub(crate) const fn new(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }

    /// The number of the class within its qdisc.
    pub(crate) const fn minor(self) -> u16 {
        self.0 as u16
    }

    /// The number of the qdisc.
    pub(crate) const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The parent of an interface's root qdisc.
    pub(crate) const ROOT: Self = Self(0xFFFF_FFFF);
    /// The parent of clsact.
    pub(crate) const CLSACT: Self = Self(0xFFFF_FFF1);
}

impl std::fmt::Display for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}:{:x}", self.major(), self.minor())
    }
}

/// The parameters of an HTB class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HtbClass {
    /// Assured rate in bytes per second.
    pub rate: u64,
    /// Highest rate with borrowing, in bytes per second.
    pub ceil: u64,
    /// How long it may exceed its rate, in ticks of 64 ns.
    pub burst: u32,
    /// How long it may exceed its ceiling, in ticks of 64 ns.
    pub cburst: u32,
    /// Bytes that the class sends per round of borrowing.
    pub quantum: u32,
    /// Order in borrowing; 0 is first.
    pub priority: u32,
    /// Bytes that each packet takes on the link beyond those that the kernel counts.
    pub overhead: u16,
}

/// The parameters of a token bucket filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tbf {
    /// The rate in bytes per second.
    pub rate: u64,
    /// The bucket in bytes; a longer packet never passes.
    pub bucket: u32,
    /// The longest packet in bytes that enters whole; longer ones are segmented, or dropped if they
    /// cannot be. At most the bucket.
    pub longest: u32,
    /// Bytes that each packet takes on the link beyond those that the kernel counts.
    pub overhead: u16,
}

/// The queueing discipline of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// First in, first out, bounded in bytes.
    Fifo {
        /// Most bytes that may be queued.
        limit: u32,
    },
    /// Flow queueing with controlled delay (RFC 8290).
    FqCodel {
        /// Acceptable standing queue delay in µs.
        target: u32,
        /// Bytes that a flow sends per round.
        quantum: u32,
    },
}

/// A leaf's queue, and the segmentation before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafQueue {
    /// The queue.
    pub queue: Queue,
    /// The longest packet that enters the queue, in bytes, if longer packets of segmentation
    /// offload are to be segmented first. HTB and fq_codel do not segment, and at 4 Mbit/s a packet
    /// of 64 KiB takes 131 ms. A token bucket filter segments, so one with a rate that never delays
    /// stands before the queue. It drops packets that cannot be segmented.
    pub segment_to: Option<u32>,
}

/// The kernel's counts of a class or qdisc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Bytes sent.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets dropped.
    pub drops: u64,
    /// Bytes queued.
    pub backlog: u32,
    /// Packets queued.
    pub queued: u32,
    /// How often it had to wait for its rate.
    pub overlimits: u64,
}

/// A class found in the kernel.
#[derive(Clone, Debug)]
pub(crate) struct FoundClass {
    /// The class id.
    pub id: Handle,
    /// The parent class; the qdisc's handle or [`Handle::ROOT`] if it has none.
    pub parent: Handle,
    /// The parameters of an HTB class; `None` for a class of another qdisc.
    pub htb: Option<HtbClass>,
    /// The counts of the class.
    pub counts: Counts,
}

/// A qdisc found in the kernel.
#[derive(Clone, Debug)]
pub(crate) struct FoundQdisc {
    /// Index of the qdisc's interface.
    pub ifindex: u32,
    /// The qdisc's handle; 0 for the kernel's default qdiscs.
    pub handle: Handle,
    /// The qdisc's parent: root, clsact or a class.
    pub parent: Handle,
    /// The qdisc's kind, for example `htb`.
    pub kind: String,
    /// The counts of the qdisc.
    pub counts: Counts,
}

/// Adds HTB as the root qdisc of an interface. Packets without a class are not delayed.
///
/// # Errors
/// The kernel's error; EEXIST if the root qdisc is not the kernel's default.
pub(crate) fn add_htb(
    netlink: &mut NetlinkClient,
    ifindex: u32,
    major: u16,
) -> Result<(), NetlinkError> {
    put_htb(netlink, ifindex, major, Handle::ROOT, create())
}

/// Adds HTB below the root qdisc that [`put_pacer`] has set, in place of its FIFO. Fails if the
/// kernel refuses.
pub(crate) fn add_htb_below(
    netlink: &mut NetlinkClient,
    ifindex: u32,
    major: u16,
    pacer: u16,
) -> Result<(), NetlinkError> {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
    put_htb(netlink, ifindex, major, Handle::new(pacer, 1), flags)
}

fn put_htb(
    netlink: &mut NetlinkClient,
    ifindex: u32,
    major: u16,
    parent: Handle,
    flags: u16,
) -> Result<(), NetlinkError> {
    let mut glob = Vec::new();
    // version, rate2quantum, default class (0: packets without a class pass), debug, direct packets
    for word in [3u32, 10, 0, 0, 0] {
        glob.extend_from_slice(&word.to_ne_bytes());
    }
    let options = Attributes::new()
        .bytes(TCA_HTB_INIT, &glob)
        .u32(TCA_HTB_DIRECT_QLEN, DIRECT_QUEUE);
    let row = Attributes::new()
        .text(libc::TCA_KIND, "htb")
        .nested(libc::TCA_OPTIONS, &options);
    let head = tc_head(ifindex, Handle::new(major, 0), parent);
    let request = Request::new(libc::RTM_NEWQDISC, flags, &head).with(&row);
    netlink.execute(&format!("add HTB to interface {ifindex}"), request)
}

/// Sets a token bucket filter as the root qdisc of an interface, in place of an earlier root qdisc,
/// or changes its parameters. Packets wait in a short FIFO until another qdisc is set below class
/// 1. Fails if the kernel refuses.
pub(crate) fn put_pacer(
    netlink: &mut NetlinkClient,
    ifindex: u32,
    major: u16,
    pacer: &Tbf,
) -> Result<(), NetlinkError> {
    let mut parms = Vec::with_capacity(36);
    // struct tc_ratespec: cell_log, linklayer (Ethernet), overhead, cell_align, mpu, rate
    parms.extend_from_slice(&[0, 1]);
    parms.extend_from_slice(&pacer.overhead.to_ne_bytes());
    parms.extend_from_slice(&[0; 4]);
    let narrow = u32::try_from(pacer.rate).unwrap_or(u32::MAX);
    parms.extend_from_slice(&narrow.to_ne_bytes());
    // A second bucket, whose rate is so high that it delays nothing, bounds the length only.
    let bounds_length = pacer.longest < pacer.bucket;
    let peak = if bounds_length { u32::MAX } else { 0 };
    parms.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    parms.extend_from_slice(&peak.to_ne_bytes());
    for word in [PACER_QUEUE, 0, 0] {
        parms.extend_from_slice(&word.to_ne_bytes());
    }
    let mut options = Attributes::new()
        .bytes(TCA_TBF_PARMS, &parms)
        .u64(TCA_TBF_RATE64, pacer.rate)
        .u32(TCA_TBF_BURST, pacer.bucket);
    if bounds_length {
        options = options
            .u64(TCA_TBF_PRATE64, TIMELESS)
            .u32(TCA_TBF_PBURST, pacer.longest);
    }
    let row = Attributes::new()
        .text(libc::TCA_KIND, "tbf")
        .nested(libc::TCA_OPTIONS, &options);
    let head = tc_head(ifindex, Handle::new(major, 0), Handle::ROOT);
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
    let request = Request::new(libc::RTM_NEWQDISC, flags, &head).with(&row);
    netlink.execute(
        &format!("set the filter above the classes of interface {ifindex}"),
        request,
    )
}

/// Adds clsact to an interface, if it has none. Returns whether it was added. Fails if the kernel
/// refuses.
pub(crate) fn ensure_clsact(
    netlink: &mut NetlinkClient,
    ifindex: u32,
) -> Result<bool, NetlinkError> {
    let row = Attributes::new().text(libc::TCA_KIND, "clsact");
    let head = tc_head(ifindex, Handle::new(0xFFFF, 0), Handle::CLSACT);
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    match netlink.execute(
        &format!("add clsact to interface {ifindex}"),
        Request::new(libc::RTM_NEWQDISC, flags, &head).with(&row),
    ) {
        Ok(()) => Ok(true),
        Err(error) if error.exists() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes clsact from an interface. Succeeds if there is none. Fails if the kernel refuses for
/// another reason.
pub(crate) fn remove_clsact(netlink: &mut NetlinkClient, ifindex: u32) -> Result<(), NetlinkError> {
    remove_qdisc(netlink, ifindex, Handle::new(0xFFFF, 0), Handle::CLSACT)
}

/// Removes the root qdisc with this handle, so that the kernel's default returns. Succeeds if it
/// does not exist. Fails if the kernel refuses for another reason.
pub(crate) fn remove_root(
    netlink: &mut NetlinkClient,
    ifindex: u32,
    major: u16,
) -> Result<(), NetlinkError> {
    remove_qdisc(netlink, ifindex, Handle::new(major, 0), Handle::ROOT)
}

fn remove_qdisc(
    netlink: &mut NetlinkClient,
    ifindex: u32,
    handle: Handle,
    parent: Handle,
) -> Result<(), NetlinkError> {
    let request = Request::new(libc::RTM_DELQDISC, 0, &tc_head(ifindex, handle, parent));
    gone_is_fine(netlink.execute(
        &format!("remove qdisc {handle} of interface {ifindex}"),
        request,
    ))
}

/// Makes an HTB class below `parent`, or changes it if it exists. Fails if the kernel refuses.
pub(crate) fn put_class(
    netlink: &mut NetlinkClient,
    ifindex: u32,
    id: Handle,
    parent: Handle,
    class: &HtbClass,
) -> Result<(), NetlinkError> {
    let mut parms = Vec::with_capacity(44);
    for rate in [class.rate, class.ceil] {
        // struct tc_ratespec: cell_log, linklayer (Ethernet), overhead, cell_align, mpu, rate
        parms.extend_from_slice(&[0, 1]);
        parms.extend_from_slice(&class.overhead.to_ne_bytes());
        parms.extend_from_slice(&[0; 4]);
        parms.extend_from_slice(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
    }
    for word in [class.burst, class.cburst, class.quantum, 0, class.priority] {
        parms.extend_from_slice(&word.to_ne_bytes());
    }
    let options = Attributes::new()
        .bytes(TCA_HTB_PARMS, &parms)
        .u64(TCA_HTB_RATE64, class.rate)
        .u64(TCA_HTB_CEIL64, class.ceil);
    let row = Attributes::new()
        .text(libc::TCA_KIND, "htb")
        .nested(libc::TCA_OPTIONS, &options);
    let request = Request::new(
        libc::RTM_NEWTCLASS,
        libc::NLM_F_CREATE as u16,
        &tc_head(ifindex, id, parent),
    )
    .with(&row);
    netlink.execute(&format!("set class {id} of interface {ifindex}"), request)
}

/// Removes a class. Succeeds if it does not exist. Fails if the kernel refuses for another reason.
pub(crate) fn remove_class(
    netlink: &mut NetlinkClient,
    ifindex: u32,
    id: Handle,
) -> Result<(), NetlinkError> {
    let request = Request::new(libc::RTM_DELTCLASS, 0, &tc_head(ifindex, id, Handle(0)));
    gone_is_fine(netlink.execute(
        &format!("remove class {id} of interface {ifindex}"),
        request,
    ))
}

/// Makes or replaces the queue of a leaf, and the segmentation before it. Fails if the kernel
/// refuses.
pub(crate) fn put_queue(
    netlink: &mut NetlinkClient,
    ifindex: u32,
    leaf: Handle,
    queue: &LeafQueue,
) -> Result<(), NetlinkError> {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
    let mut put = |handle, parent, row: Attributes| {
        let request =
            Request::new(libc::RTM_NEWQDISC, flags, &tc_head(ifindex, handle, parent)).with(&row);
        netlink.execute(
            &format!("set the queue of class {leaf} of interface {ifindex}"),
            request,
        )
    };
    let Some(longest) = queue.segment_to else {
        return put(Handle(0), leaf, queue_options(&queue.queue));
    };
    // A handle that no other qdisc of netnice has: minor numbers of leaves never equal an HTB's
    // major.
    let segmenter = Handle::new(leaf.minor(), 0);
    put(segmenter, leaf, segmenter_options(longest, &queue.queue))?;
    match queue.queue {
        Queue::Fifo { .. } => Ok(()), // the segmenting filter has its own FIFO
        Queue::FqCodel { .. } => put(
            Handle(0),
            Handle::new(segmenter.major(), 1),
            queue_options(&queue.queue),
        ),
    }
}

fn queue_options(queue: &Queue) -> Attributes {
    match queue {
        Queue::Fifo { limit } => Attributes::new()
            .text(libc::TCA_KIND, "bfifo")
            .bytes(libc::TCA_OPTIONS, &limit.to_ne_bytes()),
        Queue::FqCodel { target, quantum } => {
            let options = Attributes::new()
                .u32(TCA_FQ_CODEL_TARGET, *target)
                .u32(
                    TCA_FQ_CODEL_INTERVAL,
                    target.saturating_mul(20).max(100_000),
                )
                .u32(TCA_FQ_CODEL_QUANTUM, *quantum)
                .u32(TCA_FQ_CODEL_MEMORY_LIMIT, FQ_CODEL_MEMORY);
            Attributes::new()
                .text(libc::TCA_KIND, "fq_codel")
                .nested(libc::TCA_OPTIONS, &options)
        }
    }
}

/// The options of a token bucket filter that segments packets and delays none: at 1 Tbit/s a full
/// packet takes 12 ns.
fn segmenter_options(longest: u32, queue: &Queue) -> Attributes {
    let limit = match queue {
        Queue::Fifo { limit } => *limit,
        Queue::FqCodel { .. } => 0,
    };
    let mut parms = Vec::with_capacity(36);
    parms.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    parms.extend_from_slice(&u32::MAX.to_ne_bytes());
    parms.extend_from_slice(&[0; 12]);
    for word in [limit, 0, 0] {
        parms.extend_from_slice(&word.to_ne_bytes());
    }
    let options = Attributes::new()
        .bytes(TCA_TBF_PARMS, &parms)
        .u64(TCA_TBF_RATE64, SEGMENTER_RATE)
        .u32(TCA_TBF_BURST, longest);
    Attributes::new()
        .text(libc::TCA_KIND, "tbf")
        .nested(libc::TCA_OPTIONS, &options)
}

/// All qdiscs of the namespace. Fails if the kernel does not list them.
pub(crate) fn qdiscs(netlink: &mut NetlinkClient) -> Result<Vec<FoundQdisc>, NetlinkError> {
    let replies = netlink.dump(
        "list the qdiscs",
        Request::new(libc::RTM_GETQDISC, 0, &tc_head(0, Handle(0), Handle(0))),
    )?;
    Ok(replies.iter().filter_map(found_qdisc).collect())
}

/// All classes of an interface. Fails if the kernel does not list them.
pub(crate) fn classes(
    netlink: &mut NetlinkClient,
    ifindex: u32,
) -> Result<Vec<FoundClass>, NetlinkError> {
    let head = tc_head(ifindex, Handle(0), Handle(0));
    let replies = netlink.dump(
        &format!("list the classes of interface {ifindex}"),
        Request::new(libc::RTM_GETTCLASS, 0, &head),
    )?;
    Ok(replies.iter().filter_map(found_class).collect())
}

/// Whether clsact of an interface has a filter with this preference and handle. Fails if the kernel
/// does not list the filters.
pub(crate) fn has_filter(
    netlink: &mut NetlinkClient,
    ifindex: u32,
    egress: bool,
    preference: u16,
    handle: u32,
) -> Result<bool, NetlinkError> {
    let parent = if egress {
        CLSACT_EGRESS
    } else {
        CLSACT_INGRESS
    };
    let found = filters(netlink, ifindex, parent)?;
    Ok(found.contains(&(preference, handle)))
}

/// Whether clsact of an interface has no filters at all. Fails if the kernel does not list the
/// filters.
pub(crate) fn has_no_filters(
    netlink: &mut NetlinkClient,
    ifindex: u32,
) -> Result<bool, NetlinkError> {
    Ok(filters(netlink, ifindex, CLSACT_EGRESS)?.is_empty()
        && filters(netlink, ifindex, CLSACT_INGRESS)?.is_empty())
}

/// Preference and handle of the filters under a parent.
fn filters(
    netlink: &mut NetlinkClient,
    ifindex: u32,
    parent: Handle,
) -> Result<Vec<(u16, u32)>, NetlinkError> {
    let head = tc_head(ifindex, Handle(0), parent);
    let what = format!("list the filters of interface {ifindex}");
    let replies = match netlink.dump(&what, Request::new(libc::RTM_GETTFILTER, 0, &head)) {
        Err(error) if error.is_gone() => Vec::new(),
        replies => replies?,
    };
    // The dump lists an entry with handle 0 for each preference, followed by its filters.
    Ok(replies
        .iter()
        .filter_map(|a| a.head::<TC_HEAD>())
        .map(|h| ((word(h, 16) >> 16) as u16, word(h, 8)))
        .filter(|(_, handle)| *handle != 0)
        .collect())
}

fn found_qdisc(message: &Message) -> Option<FoundQdisc> {
    let head = message.head::<TC_HEAD>()?;
    let row = message.attributes(TC_HEAD);
    Some(FoundQdisc {
        ifindex: word(head, 4),
        handle: Handle(word(head, 8)),
        parent: Handle(word(head, 12)),
        kind: find(&row, libc::TCA_KIND).map(text).unwrap_or_default(),
        counts: counts(&row),
    })
}

fn found_class(message: &Message) -> Option<FoundClass> {
    let head = message.head::<TC_HEAD>()?;
    let row = message.attributes(TC_HEAD);
    Some(FoundClass {
        id: Handle(word(head, 8)),
        parent: Handle(word(head, 12)),
        htb: find(&row, libc::TCA_OPTIONS)
            .map(attributes)
            .and_then(|o| htb_class(&o)),
        counts: counts(&row),
    })
}

fn htb_class(options: &[(u16, &[u8])]) -> Option<HtbClass> {
    let parms = find(options, TCA_HTB_PARMS)?;
    let at = |offset: usize| parms.get(offset..).and_then(number);
    let wide =
        |kind| find(options, kind).and_then(|b| b.first_chunk().map(|b| u64::from_ne_bytes(*b)));
    Some(HtbClass {
        rate: wide(TCA_HTB_RATE64).unwrap_or(u64::from(at(8)?)),
        ceil: wide(TCA_HTB_CEIL64).unwrap_or(u64::from(at(20)?)),
        burst: at(24)?,
        cburst: at(28)?,
        quantum: at(32)?,
        priority: at(40)?,
        overhead: u16::from_ne_bytes([*parms.get(2)?, *parms.get(3)?]),
    })
}

fn counts(row: &[(u16, &[u8])]) -> Counts {
    let stats = find(row, libc::TCA_STATS2)
        .map(attributes)
        .unwrap_or_default();
    let basic = find(&stats, TCA_STATS_BASIC).unwrap_or_default();
    let queue = find(&stats, TCA_STATS_QUEUE).unwrap_or_default();
    let queue_word = |n: usize| queue.get(4 * n..).and_then(number).unwrap_or_default();
    let wide = |bytes: &[u8]| bytes.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
    Counts {
        bytes: wide(basic),
        packets: find(&stats, TCA_STATS_PKT64).map_or_else(
            || u64::from(basic.get(8..).and_then(number).unwrap_or_default()),
            wide,
        ),
        queued: queue_word(0),
        backlog: queue_word(1),
        drops: u64::from(queue_word(2)),
        overlimits: u64::from(queue_word(4)),
    }
}

/// `struct tcmsg`.
fn tc_head(ifindex: u32, handle: Handle, parent: Handle) -> [u8; TC_HEAD] {
    let mut head = [0; TC_HEAD];
    head[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    head[8..12].copy_from_slice(&handle.0.to_ne_bytes());
    head[12..16].copy_from_slice(&parent.0.to_ne_bytes());
    head
}

fn word(head: &[u8; TC_HEAD], at: usize) -> u32 {
    u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

fn create() -> u16 {
    (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16
}

fn gone_is_fine(result: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match result {
        Err(error) if !error.is_gone() => Err(error),
        _ => Ok(()),
    }
}

/// Most packets in HTB's queue for packets without a class.
const DIRECT_QUEUE: u32 = 1_000;
/// Bytes of the FIFO in which packets wait between the steps of setting up a filter above classes.
const PACER_QUEUE: u32 = 164_000;
/// Memory limit of one fq_codel in bytes. It is enough for the whole socket buffer of a flooding
/// sender: back-pressure slows the sender, and no packets are lost.
const FQ_CODEL_MEMORY: u32 = 4 << 20;
const CLSACT_EGRESS: Handle = Handle(0xFFFF_FFF3);
const CLSACT_INGRESS: Handle = Handle(0xFFFF_FFF2);
const TC_HEAD: usize = 20;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_DIRECT_QLEN: u16 = 5;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
const TCA_FQ_CODEL_TARGET: u16 = 1;
const TCA_FQ_CODEL_INTERVAL: u16 = 3;
const TCA_FQ_CODEL_QUANTUM: u16 = 6;
const TCA_FQ_CODEL_MEMORY_LIMIT: u16 = 9;
/// Rate of the segmenting filter in bytes per second.
const SEGMENTER_RATE: u64 = 125_000_000_000;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_PRATE64: u16 = 5;
const TCA_TBF_BURST: u16 = 6;
const TCA_TBF_PBURST: u16 = 7;
/// A rate in bytes per second at which no packet takes a nanosecond.
const TIMELESS: u64 = 1 << 60;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_STATS_PKT64: u16 = 8;
