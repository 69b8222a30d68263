//! Where everything lies in a memory file, and the shape of a flow, which is checked in one function.
//!
//! The structures here are never made: their fields' offsets are what is used, by [`std::mem::offset_of`], and the
//! assertions at the end hold them to the numbers that `docs/reference/ring.md` gives to programs in other languages. All
//! integers have the machine's own byte order: both sides run on the same machine.
//!
//! Fields that one side writes share no cache line with those that the other side writes, and the lines of one
//! writer stand together, so that the processor's fetching of neighbouring lines never takes one from its writer.

use std::fmt;
use std::mem::{offset_of, size_of};

use crate::record::{Head, Slot};

/// What a program may have at most; the driver (or who asks it) decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How many flows at a time, 1 to [`MAX_FLOWS`].
    pub flows: u32,
    /// Bytes for the regions of all of them, at most [`MAX_BYTES`]; rounded up to pages.
    pub bytes: u64,
}

/// What one flow asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a chunk (a buffer): a power of two, 64 to 65,536. Each pair of a record lies inside one chunk.
    pub chunk_bytes: u32,
    /// How many chunks the data area has, 1 to 65,536.
    pub chunks: u32,
    /// Entries of the submit and of the reclaim ring: a power of two, 16 to 32,768. A record of n pairs takes n + 1.
    pub transmit_entries: u32,
    /// Entries of the prime and of the deliver ring, likewise.
    pub receive_entries: u32,
}

impl Shape {
    /// Checks the shape, and computes where its parts lie. Nothing else ever judges a shape.
    pub fn plan(&self) -> Result<Plan, ShapeError> {
        let power = |what, value: u32, least, most| match value.is_power_of_two() {
            true => within(what, value, least, most),
            false => Err(ShapeError::NoPowerOfTwo { what, value }),
        };
        power("bytes of a chunk", self.chunk_bytes, 64, 65_536)?;
        within("chunks", self.chunks, 1, 65_536)?;
        power("transmit entries", self.transmit_entries, 16, MAX_ENTRIES)?;
        power("receive entries", self.receive_entries, 16, MAX_ENTRIES)?;
        let mut next = FLOW_HEADER;
        let rings = Ring::ALL.map(|ring| {
            let at = next;
            next += u64::from(self.entries(ring)) * ENTRY;
            at
        });
        let area = pages(next);
        let bytes = pages(area + u64::from(self.chunk_bytes) * u64::from(self.chunks));
        Ok(Plan { rings, area, bytes })
    }

    /// Entries of a ring.
    pub fn entries(&self, ring: Ring) -> u32 {
        match ring {
            Ring::Submit | Ring::Reclaim => self.transmit_entries,
            Ring::Prime | Ring::Deliver => self.receive_entries,
        }
    }

    /// Bytes of the data area.
    pub fn area_bytes(&self) -> u64 {
        u64::from(self.chunk_bytes) * u64::from(self.chunks)
    }
}

/// Where the parts of a flow's region lie, from its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    rings: [u64; 4],
    area: u64,
    bytes: u64,
}

impl Plan {
    /// Bytes of the whole region, whole pages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the data area begins.
    pub fn area(&self) -> u64 {
        self.area
    }

    /// Where a ring's entries begin.
    pub fn ring(&self, ring: Ring) -> u64 {
        self.rings[ring as usize]
    }
}

/// Where a flow lies in its program's memory file: what the program must know to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number, and its bit among the notices.
    pub slot: u32,
    /// Where its region begins, in bytes from the begin of the file; whole pages.
    pub offset: u64,
    /// What it asked for.
    pub shape: Shape,
}

/// The four rings of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Ring {
    /// Transmit channel, program to driver: records to send.
    Submit,
    /// Transmit channel, driver to program: records whose chunks may be used again.
    Reclaim,
    /// Receive channel, program to driver: empty records.
    Prime,
    /// Receive channel, driver to program: filled records.
    Deliver,
}

impl Ring {
    /// In the order in which they lie.
    pub const ALL: [Ring; 4] = [Ring::Submit, Ring::Reclaim, Ring::Prime, Ring::Deliver];

    /// Where the producer index lies, from the begin of the region.
    pub(crate) fn producer(self) -> u64 {
        let at = match self {
            Ring::Submit => offset_of!(FlowHeader, submit_producer),
            Ring::Reclaim => offset_of!(FlowHeader, reclaim_producer),
            Ring::Prime => offset_of!(FlowHeader, prime_producer),
            Ring::Deliver => offset_of!(FlowHeader, deliver_producer),
        };
        at as u64
    }

    /// Where the consumer index lies.
    pub(crate) fn consumer(self) -> u64 {
        let at = match self {
            Ring::Submit => offset_of!(FlowHeader, submit_consumer),
            Ring::Reclaim => offset_of!(FlowHeader, reclaim_consumer),
            Ring::Prime => offset_of!(FlowHeader, prime_consumer),
            Ring::Deliver => offset_of!(FlowHeader, deliver_consumer),
        };
        at as u64
    }
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ring::Submit => "submit",
            Ring::Reclaim => "reclaim",
            Ring::Prime => "prime",
            Ring::Deliver => "deliver",
        })
    }
}

/// Why a shape cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Out of its bounds.
    #[error("{what}: {value}, and {least} to {most} are allowed")]
    Bounds {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The least that is allowed.
        least: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// Must be a power of two.
    #[error("{what}: {value} is no power of two")]
    NoPowerOfTwo {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: u32,
    },
}

/// Why a memory file, a flow or an attachment could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The numbers make no sense.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// As many flows as the budget allows are open.
    #[error("all {0} flows of the program are open")]
    NoSlot(u32),
    /// No gap of the memory file is large enough.
    #[error(
        "no room for a region of {wanted} bytes: of {total} bytes {free} are free, the largest gap has {gap}"
    )]
    NoRoom {
        /// Bytes of the region.
        wanted: u64,
        /// Bytes for regions.
        total: u64,
        /// Bytes that no region takes.
        free: u64,
        /// The longest run of them.
        gap: u64,
    },
    /// The kernel refuses.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        error: std::io::Error,
    },
    /// The program put seals on its memory file that keep the driver from putting its own.
    #[error(
        "the program has sealed its memory file: its seals are {seen:#x}, and {wanted:#x} are needed"
    )]
    OtherSeals {
        /// Which it has.
        seen: u32,
        /// Which it must have.
        wanted: u32,
    },
    /// What came from the driver is no memory file of a version that this program speaks.
    #[error("not a memory file of version {VERSION}: {what} is {seen:#x}, not {wanted:#x}")]
    NotOurs {
        /// Which field.
        what: &'static str,
        /// What is there.
        seen: u64,
        /// What should be.
        wanted: u64,
    },
    /// Another flow of this program has the region, or a part of it.
    #[error("the region at {offset} is another flow's, which is still in use")]
    InUse {
        /// Where it begins.
        offset: u64,
    },
    /// The flow's region is not inside the memory file.
    #[error(
        "the region at {offset} of {wanted} bytes is not inside the memory file of {total} bytes"
    )]
    Outside {
        /// Where it is said to begin.
        offset: u64,
        /// Its bytes.
        wanted: u64,
        /// Bytes of the file.
        total: u64,
    },
}

/// The first page of a memory file.
#[repr(C)]
pub(crate) struct FileHeader {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Flows at most.
    pub flows: u32,
    /// Bytes of the file.
    pub bytes: u64,
    /// 0, or the number of the MUST for which the program was expelled. Written by the driver.
    pub ended: u32,
    _rest: [u32; 9],
    /// 1 while the driver sleeps. Set by the driver, cleared by who takes it.
    pub driver_sleeps: u32,
    _line: [u32; 15],
    /// 1 while the program sleeps, likewise.
    pub program_sleeps: u32,
    _line2: [u32; 15],
    _room: [u64; 40],
    /// A bit for each flow in which the program moved an index.
    pub to_driver: [u64; WORDS],
    /// A bit for each flow in which the driver moved an index.
    pub to_program: [u64; WORDS],
}

/// The begin of a flow's region.
#[repr(C)]
pub(crate) struct FlowHeader {
    /// 1 while the flow is open.
    pub open: u32,
    pub slot: u32,
    pub chunk_bytes: u32,
    pub chunks: u32,
    pub transmit_entries: u32,
    pub receive_entries: u32,
    /// Where the data area begins, from the begin of the region.
    pub area: u64,
    _label: [u64; 4],
    /// Counters of what the flow did not get, by `driver::Loss`. Written by the driver, never read.
    pub lost: [u64; 8],
    // The lines that the program writes.
    pub submit_producer: Line,
    pub reclaim_consumer: Line,
    pub prime_producer: Line,
    pub deliver_consumer: Line,
    // The lines that the driver writes.
    pub submit_consumer: Line,
    pub reclaim_producer: Line,
    pub prime_consumer: Line,
    pub deliver_producer: Line,
}

/// An index on a cache line of its own.
#[repr(C)]
pub(crate) struct Line {
    pub index: u32,
    _rest: [u32; 15],
}

/// Bytes of a page: regions and data areas begin on one.
pub const PAGE: u64 = 4096;
/// What a base is a multiple of.
pub const ALIGN: u64 = 8;
/// Flows of a program at most.
pub const MAX_FLOWS: u32 = 4096;
/// Bytes of a memory file's regions at most: 64 GiB. The file is sparse.
pub const MAX_BYTES: u64 = 1 << 36;
/// Entries of a ring at most.
pub const MAX_ENTRIES: u64 = 32_768;
/// Bytes of an entry of a ring.
pub const ENTRY: u64 = size_of::<Slot>() as u64;
/// "netnring" in the byte order of x86.
pub const MAGIC: u64 = u64::from_le_bytes(*b"netnring");
/// Of the layout and its rules.
pub const VERSION: u32 = 1;
/// Words of notices in each direction.
pub(crate) const WORDS: usize = MAX_FLOWS as usize / 64;
/// Bytes of a flow's header; its first ring follows.
pub(crate) const FLOW_HEADER: u64 = size_of::<FlowHeader>() as u64;

/// Rounds up to whole pages.
pub(crate) fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) * PAGE
}

impl Budget {
    /// Bytes of the memory file: the header's page, then room for the regions.
    pub(crate) fn file_bytes(&self) -> Result<u64, ShapeError> {
        within("flows", self.flows, 1, MAX_FLOWS.into())?;
        within("bytes", self.bytes, PAGE, MAX_BYTES)?;
        Ok(PAGE + pages(self.bytes))
    }
}

fn within(
    what: &'static str,
    value: impl Into<u64>,
    least: u64,
    most: u64,
) -> Result<(), ShapeError> {
    let value = value.into();
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(ShapeError::Bounds {
            what,
            value,
            least,
            most,
        }),
    }
}

// The numbers of docs/reference/ring.md.
const _: () = {
    assert!(size_of::<FileHeader>() == 0x600);
    assert!(offset_of!(FileHeader, magic) == 0x00);
    assert!(offset_of!(FileHeader, version) == 0x08);
    assert!(offset_of!(FileHeader, flows) == 0x0c);
    assert!(offset_of!(FileHeader, bytes) == 0x10);
    assert!(offset_of!(FileHeader, ended) == 0x18);
    assert!(offset_of!(FileHeader, driver_sleeps) == 0x40);
    assert!(offset_of!(FileHeader, program_sleeps) == 0x80);
    assert!(offset_of!(FileHeader, to_driver) == 0x200);
    assert!(offset_of!(FileHeader, to_program) == 0x400);

    assert!(size_of::<FlowHeader>() == 0x280);
    assert!(offset_of!(FlowHeader, open) == 0x00);
    assert!(offset_of!(FlowHeader, slot) == 0x04);
    assert!(offset_of!(FlowHeader, chunk_bytes) == 0x08);
    assert!(offset_of!(FlowHeader, chunks) == 0x0c);
    assert!(offset_of!(FlowHeader, transmit_entries) == 0x10);
    assert!(offset_of!(FlowHeader, receive_entries) == 0x14);
    assert!(offset_of!(FlowHeader, area) == 0x18);
    assert!(offset_of!(FlowHeader, lost) == 0x40);
    assert!(offset_of!(FlowHeader, submit_producer) == 0x080);
    assert!(offset_of!(FlowHeader, reclaim_consumer) == 0x0c0);
    assert!(offset_of!(FlowHeader, prime_producer) == 0x100);
    assert!(offset_of!(FlowHeader, deliver_consumer) == 0x140);
    assert!(offset_of!(FlowHeader, submit_consumer) == 0x180);
    assert!(offset_of!(FlowHeader, reclaim_producer) == 0x1c0);
    assert!(offset_of!(FlowHeader, prime_consumer) == 0x200);
    assert!(offset_of!(FlowHeader, deliver_producer) == 0x240);
    assert!(offset_of!(Line, index) == 0);

    assert!(size_of::<Slot>() == 16);
    assert!(size_of::<Head>() == 16);
    assert!(offset_of!(Head, count) == 0);
    assert!(offset_of!(Head, note) == 4);
    assert!(offset_of!(Head, stamp) == 8);
    assert!(offset_of!(Slot, base) == 0);
    assert!(offset_of!(Slot, length) == 8);
    assert!(offset_of!(Slot, reserved) == 12);
};

#[cfg(all(test, not(loom)))]
mod tests;
