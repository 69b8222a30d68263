//! Offsets of everything in a memory file, and the shape of a flow with its validation.
//!
//! [`Shape::plan`] takes a flow's shape and returns the offsets of the parts of the flow's region.
//! It fails if a number is out of range, or is no power of two where one is required.
//!
//! The headers of this module (`repr(C)`) are never constructed: the crate uses the offsets of
//! their fields ([`std::mem::offset_of`]). `Head` and `RawPair` are the two kinds of entries of a
//! ring. The assertions at the end compare the offsets with the numbers that
//! `docs/reference/ring.md` gives to programs in other languages. All integers have the machine's
//! byte order, because both sides run on the same machine.
//!
//! Indices that the program writes share no cache line with indices that the driver writes. Some
//! processors also prefetch the other line of an aligned pair. The lines of one such pair have the
//! same writer, so a write prefetches no line of the other writer.

use std::fmt;
use std::mem::{offset_of, size_of};

/// The resources that one program may use. The driver or the driver's caller sets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Largest number of open flows, 1 to [`MAX_FLOWS`].
    pub flows: u32,
    /// Bytes for the regions of all flows, [`PAGE`] to [`MAX_BYTES`]; rounded up to whole pages.
    pub bytes: u64,
}

/// The sizes that a program requests for one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a chunk (a buffer): a power of two, 64 to 65,536. Each pair of a record lies inside
    /// one chunk.
    pub chunk_bytes: u32,
    /// Number of chunks in the data area, 1 to 65,536.
    pub chunks: u32,
    /// Entries of the submit ring, and the same number of the reclaim ring: a power of two, 16 to
    /// 32,768. A record of n pairs takes n + 1 entries.
    pub transmit_entries: u32,
    /// Entries of the prime ring, and the same number of the deliver ring, with the same limits.
    pub receive_entries: u32,
}

impl Shape {
    /// Validates the shape and computes the offsets of its parts. No other function validates a
    /// shape.
    ///
    /// # Errors
    /// If a number is out of its range or is not a power of two where the field requires one.
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

    /// The number of entries of `ring`.
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

/// Offsets of the parts of a flow's region, in bytes from the start of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    rings: [u64; 4],
    area: u64,
    bytes: u64,
}

impl Plan {
    /// Bytes of the region; a multiple of [`PAGE`].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Offset of the data area.
    pub fn area(&self) -> u64 {
        self.area
    }

    /// Offset of the first entry of `ring`.
    pub fn ring(&self, ring: Ring) -> u64 {
        self.rings[ring as usize]
    }
}

/// The location of a flow in its program's memory file. A program needs it to use the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLocation {
    /// Number of the flow and index of its notice bit.
    pub slot: u32,
    /// Offset of its region in bytes from the start of the file; a multiple of [`PAGE`].
    pub offset: u64,
    /// The shape that the program requested.
    pub shape: Shape,
}

/// The four rings of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ring {
    /// Transmit channel, program to driver: records to send.
    Submit,
    /// Transmit channel, driver to program: records whose chunks the program may use again.
    Reclaim,
    /// Receive channel, program to driver: empty records.
    Prime,
    /// Receive channel, driver to program: filled records.
    Deliver,
}

impl Ring {
    /// All rings in the order of their offsets in a region.
    pub const ALL: [Ring; 4] = [Ring::Submit, Ring::Reclaim, Ring::Prime, Ring::Deliver];

    /// Offset of the producer index from the start of the region.
    pub(crate) fn producer(self) -> u64 {
        let at = match self {
            Ring::Submit => offset_of!(FlowHeader, submit_producer),
            Ring::Reclaim => offset_of!(FlowHeader, reclaim_producer),
            Ring::Prime => offset_of!(FlowHeader, prime_producer),
            Ring::Deliver => offset_of!(FlowHeader, deliver_producer),
        };
        at as u64
    }

    /// Offset of the consumer index from the start of the region.
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

/// Why a shape or a budget is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// The value is out of its range.
    #[error("{what}: {value}, and {least} to {most} are allowed")]
    Bounds {
        /// The name of the number.
        what: &'static str,
        /// The value.
        value: u64,
        /// The smallest allowed value.
        least: u64,
        /// The largest allowed value.
        most: u64,
    },
    /// The value must be a power of two.
    #[error("{what}: {value} is not a power of two")]
    NoPowerOfTwo {
        /// The name of the number.
        what: &'static str,
        /// The value.
        value: u32,
    },
}

/// Why a memory file, a flow or an attachment could not be created.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A shape or a budget is invalid.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The program has as many open or reserved flows as its budget allows, or the slot of a
    /// location is beyond the slots of the memory file. Holds the number of slots, in the second
    /// case rounded up to a multiple of 64.
    #[error("all {0} flows of the program are open: close one first")]
    NoSlot(u32),
    /// No gap in the memory file is large enough for the region.
    #[error(
        "no room for a region of {wanted} bytes: of {total} bytes {free} are free, the largest gap has {gap}"
    )]
    NoRoom {
        /// Bytes of the region.
        wanted: u64,
        /// Bytes of the file that are available to regions.
        total: u64,
        /// Bytes that no region uses.
        free: u64,
        /// Bytes of the largest gap.
        gap: u64,
    },
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// What the call was for.
        what: &'static str,
        /// The error of the system call.
        error: std::io::Error,
    },
    /// The program put seals on its memory file that prevent the driver from adding its own.
    #[error(
        "the program has sealed its memory file: its seals are {seen:#x}, and {wanted:#x} are needed"
    )]
    OtherSeals {
        /// Those of the required seals that the file has, as bits `F_SEAL_*`.
        seen: u32,
        /// The seals that the file must have, as bits `F_SEAL_*`.
        wanted: u32,
    },
    /// The file from the driver is not a memory file of a version that this program supports.
    #[error("not a memory file of version {VERSION}: {what} is {seen:#x}, not {wanted:#x}")]
    NotMemoryFile {
        /// The name of the field that differs.
        what: &'static str,
        /// The value of the field.
        seen: u64,
        /// The value that this program requires; for the length, the smallest value; for the
        /// seals, the bits that must be set.
        wanted: u64,
    },
    /// Another open flow of this program uses the region or a part of it.
    #[error("the region at {offset} is in use by another open flow")]
    InUse {
        /// Offset of the region.
        offset: u64,
    },
    /// The flow's region is not inside the memory file behind its first page, or does not start at
    /// a multiple of [`PAGE`].
    #[error(
        "the region at {offset} of {wanted} bytes is not inside the memory file of {total} bytes"
    )]
    Outside {
        /// Offset of the region.
        offset: u64,
        /// Bytes of the region.
        wanted: u64,
        /// Bytes of the file.
        total: u64,
    },
}

/// Why a flow lost a received packet. For each reason the flow has a counter in shared memory,
/// which the program reads; the number of the variant is the index of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Loss {
    /// The flow had no primed record left, or had no room in its deliver ring.
    NoBuffer,
    /// The flow's receive budget or the shared budget of the driver's processor time was used up.
    OverBudget,
    /// The packet was longer than the record.
    TooLong,
}

/// Index in `lost` of the number of received segments whose partial checksum the driver completed.
pub(crate) const COMPLETED: usize = 3;

impl Loss {
    /// The number of kinds of losses.
    pub(crate) const KINDS: usize = 3;
}

/// The beginning of a memory file. The regions of flows start at the next page.
#[repr(C)]
pub(crate) struct FileHeader {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Largest number of open flows; slots are below it.
    pub flows: u32,
    /// Bytes of the file.
    pub bytes: u64,
    /// 0, or the number of the rule for which the driver disconnected the program. The driver
    /// writes it.
    pub ended: u32,
    /// The optional parts of the protocol that the driver accepts ([`ACCEPTS_ARRIVALS`]), and what
    /// programs may accept from its interface ([`PARTIAL_CHECKSUMS`]). Drivers of earlier versions
    /// leave it 0.
    pub accepts: u32,
    _rest: [u32; 8],
    /// 1 while the driver sleeps. The driver sets it, and either side clears it.
    pub driver_sleeps: u32,
    _line: [u32; 15],
    /// 1 while the program sleeps. The program sets it, and either side clears it.
    pub program_sleeps: u32,
    _line2: [u32; 15],
    _room: [u64; 40],
    /// One bit for each flow in which the program moved an index.
    pub to_driver: [u64; NOTICE_WORDS],
    /// One bit for each flow in which the driver moved an index, or which it closed.
    pub to_program: [u64; NOTICE_WORDS],
}

/// The header of a flow's region.
#[repr(C)]
pub(crate) struct FlowHeader {
    /// 1 while the flow is open.
    pub open: u32,
    pub slot: u32,
    pub chunk_bytes: u32,
    pub chunks: u32,
    pub transmit_entries: u32,
    pub receive_entries: u32,
    /// Offset of the data area from the start of the region.
    pub area: u64,
    /// 1 while segments of this flow can leave in long packets. The driver writes it; drivers of
    /// earlier versions leave it 0.
    pub joins: u32,
    _label: [u32; 7],
    /// Lost packets of the flow, indexed by [`Loss`], and behind them [`COMPLETED`]. The driver
    /// writes them and never reads them.
    pub lost: [u64; 8],
    // The program writes the next four lines.
    pub submit_producer: IndexLine,
    pub reclaim_consumer: IndexLine,
    pub prime_producer: IndexLine,
    pub deliver_consumer: LastProgramLine,
    // The driver writes the next four lines.
    pub submit_consumer: IndexLine,
    pub reclaim_producer: IndexLine,
    pub prime_consumer: IndexLine,
    pub deliver_producer: IndexLine,
}

/// An index on its own cache line.
#[repr(C)]
pub(crate) struct IndexLine {
    pub index: u32,
    _rest: [u32; 15],
}

/// The line of the last index that the program writes, with what it writes rarely: on the state of
/// its TCP connections (module `connections`).
#[repr(C)]
pub(crate) struct LastProgramLine {
    pub index: u32,
    /// 1: the flow's connection of TCP is over, so its end needs no reset.
    pub is_over: u32,
    /// Offset of the list of connections from the start of the data area, in bytes.
    pub list: u64,
    /// Number of entries of the list.
    pub list_entries: u32,
    _rest: [u32; 11],
}

/// The first entry of a record in shared memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Number of pairs that follow, 1 to [`MAX_PAIRS`].
    pub count: u32,
    /// From the program: `CONTINUES_MESSAGE`, `STATES_ARRIVAL`, `SEGMENTS` or 0. From the driver: a
    /// `Status` (module `record`).
    pub note: u32,
    /// From the program: 0. From the driver: a time in ns of `CLOCK_MONOTONIC`, or 0.
    pub stamp: u64,
}

/// One pair of a record in shared memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawPair {
    /// Offset of the buffer from the start of the flow's data area, in bytes.
    pub base: u64,
    /// Length of the buffer, or of its contents, in bytes.
    pub length: u32,
    /// Must be 0.
    pub reserved: u32,
}

impl Head {
    /// The head in the two words of an entry.
    pub(crate) fn load([first, second]: [u64; 2]) -> Head {
        let (count, note) = halves(first);
        Head {
            count,
            note,
            stamp: second,
        }
    }

    /// The two words of the entry.
    pub(crate) fn store(self) -> [u64; 2] {
        [word(self.count, self.note), self.stamp]
    }
}

impl RawPair {
    /// The pair in the two words of an entry.
    pub(crate) fn load([first, second]: [u64; 2]) -> RawPair {
        let (length, reserved) = halves(second);
        RawPair {
            base: first,
            length,
            reserved,
        }
    }

    /// The two words of the entry.
    pub(crate) fn store(self) -> [u64; 2] {
        [self.base, word(self.length, self.reserved)]
    }
}

/// The two halves of a word in memory, the half at the lower address first.
fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
    )
}

fn word(low: u32, high: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (low.to_ne_bytes(), high.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// Bytes of a page. Regions and data areas start at multiples of it.
pub const PAGE: u64 = 4096;
/// Alignment of the base of a pair, in bytes.
pub const ALIGN: u64 = 8;
/// Largest number of flows that a program can have open at the same time.
pub const MAX_FLOWS: u32 = 4096;
/// Largest number of bytes for the regions of a memory file: 64 GiB. The file is sparse.
pub const MAX_BYTES: u64 = 1 << 36;
/// Largest number of entries of a ring.
pub const MAX_ENTRIES: u64 = 32_768;
/// Largest number of pairs of a record.
pub const MAX_PAIRS: usize = 8;
/// Bytes of an entry of a ring.
pub const ENTRY: u64 = size_of::<RawPair>() as u64;
/// The first word of a memory file: the bytes "netnring" as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"netnring");
/// Version of the layout and of the rules in `docs/reference/ring.md`.
pub const VERSION: u32 = 1;
/// A bit of `accepts` of the header: a record that begins a message may state its arrival.
pub(crate) const ACCEPTS_ARRIVALS: u32 = 1;
/// A bit of `accepts` of the header: partial checksums that arrive on the interface are right.
pub(crate) const PARTIAL_CHECKSUMS: u32 = 2;
/// Words of notice bits in each direction.
pub(crate) const NOTICE_WORDS: usize = MAX_FLOWS as usize / 64;
/// Bytes of a flow's header. The first ring follows it.
pub(crate) const FLOW_HEADER: u64 = size_of::<FlowHeader>() as u64;

/// Rounds a number of bytes up to a multiple of [`PAGE`].
pub(crate) fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) * PAGE
}

impl Budget {
    /// Bytes of the memory file: one page for the header, then the regions. Fails if a number of
    /// the budget is out of range.
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

// The offsets that docs/reference/ring.md specifies.
const _: () = {
    assert!(size_of::<FileHeader>() == 0x600);
    assert!(offset_of!(FileHeader, magic) == 0x00);
    assert!(offset_of!(FileHeader, version) == 0x08);
    assert!(offset_of!(FileHeader, flows) == 0x0c);
    assert!(offset_of!(FileHeader, bytes) == 0x10);
    assert!(offset_of!(FileHeader, ended) == 0x18);
    assert!(offset_of!(FileHeader, accepts) == 0x1c);
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
    assert!(offset_of!(FlowHeader, joins) == 0x20);
    assert!(offset_of!(FlowHeader, lost) == 0x40);
    assert!(offset_of!(FlowHeader, submit_producer) == 0x080);
    assert!(offset_of!(FlowHeader, reclaim_consumer) == 0x0c0);
    assert!(offset_of!(FlowHeader, prime_producer) == 0x100);
    assert!(offset_of!(FlowHeader, deliver_consumer) == 0x140);
    assert!(offset_of!(FlowHeader, submit_consumer) == 0x180);
    assert!(offset_of!(FlowHeader, reclaim_producer) == 0x1c0);
    assert!(offset_of!(FlowHeader, prime_consumer) == 0x200);
    assert!(offset_of!(FlowHeader, deliver_producer) == 0x240);
    assert!(offset_of!(IndexLine, index) == 0);
    assert!(offset_of!(LastProgramLine, index) == 0);
    assert!(offset_of!(LastProgramLine, is_over) == 0x4);
    assert!(offset_of!(LastProgramLine, list) == 0x8);
    assert!(offset_of!(LastProgramLine, list_entries) == 0x10);

    assert!(size_of::<RawPair>() == 16);
    assert!(size_of::<Head>() == 16);
    assert!(offset_of!(Head, count) == 0);
    assert!(offset_of!(Head, note) == 4);
    assert!(offset_of!(Head, stamp) == 8);
    assert!(offset_of!(RawPair, base) == 0);
    assert!(offset_of!(RawPair, length) == 8);
    assert!(offset_of!(RawPair, reserved) == 12);
};

#[cfg(all(test, not(loom)))]
mod tests;
