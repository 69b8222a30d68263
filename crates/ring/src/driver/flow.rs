//! The driver's side of one flow. [`DriverRings::take`] and [`DriverRings::take_empty`] hand out
//! validated records; [`DriverRings::give_back`] and [`DriverRings::deliver`] return them to the
//! program. Taking fails with a [`ProtocolViolation`] when the program broke a rule of
//! `docs/reference/ring.md`; the caller must then disconnect the program.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::connections;
use crate::cursor::{Consumer, Popped, Producer};
use crate::doorbell::Notices;
use crate::file_header::field;
use crate::layout::{COMPLETED, FlowHeader, FlowLocation, Loss, Ring};
use crate::ledger::{Balance, Owned};
use crate::record::{Pair, Record, Status, Validator, Writer};
use crate::region::Region;
use crate::violation::{ProtocolViolation, Rule};
use crate::words::{Ordering, SharedRing, Word, Words, fence};

/// The driver's side of a flow: its rings and its buffers.
///
/// The fields that a sent packet needs come first, so that they fill few cache lines.
#[repr(C)]
pub struct DriverRings {
    transmit: RingPair,
    owned: Owned,
    region: Arc<Region>,
    /// Offset of the data area in the memory file.
    area: u64,
    notices: Notices,
    location: FlowLocation,
    receive: RingPair,
    lost: [u64; Loss::KINDS],
    completed: u64,
    lost_counters: Words,
    open: Word,
    joins: Word,
}

/// Bytes of a program's memory. They can change at any time, and are mapped while the program is
/// attached.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the value is a place and a length. No method accesses the bytes.
unsafe impl Send for SharedBytes {}

impl SharedBytes {
    /// The address of the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Copies the bytes, which may change meanwhile, to `into`, which has that length.
    ///
    /// # Panics
    /// If it has another length.
    #[inline]
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.length);
        // SAFETY: the mapping has these bytes, by `DriverRings::shared`, and a private slice does
        // not overlap it.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.as_ptr(), into.as_mut_ptr(), self.length);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// One direction: records arrive in one ring and return in the other.
struct RingPair {
    forward: Consumer,
    returns: Producer,
    /// Entries that the held records will use in the return ring.
    reserved: u32,
}

/// The result of [`DriverRings::take`] and of [`DriverRings::take_empty`].
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// A record. The driver owns its chunks until it gives the record back.
    Record(Record),
    /// The ring is empty.
    Empty,
    /// The return ring has no room for the next record and all records that the driver holds. It
    /// has room again after the program collects returned records.
    NoRoom,
}

/// The result of [`DriverRings::take_into`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A record, as [`Taken::Record`].
    Record,
    /// As [`Taken::Empty`].
    Empty,
    /// As [`Taken::NoRoom`].
    NoRoom,
}

impl Found {
    fn with(self, record: Record) -> Taken {
        match self {
            Found::Record => Taken::Record(record),
            Found::Empty => Taken::Empty,
            Found::NoRoom => Taken::NoRoom,
        }
    }
}

impl DriverRings {
    /// The first bytes of the value hold all that [`DriverRings::take`], [`DriverRings::read`],
    /// [`DriverRings::give_back`] and publishing use. A caller can prefetch them.
    pub const TRANSMIT: usize = offset_of!(DriverRings, location) + size_of::<u32>();

    /// Writes the header of the flow's region and returns the driver's side of the flow. All
    /// indices start at `at`: 0 except in tests.
    pub(crate) fn open(
        region: &Arc<Region>,
        location: FlowLocation,
        notices: &Notices,
        at: u32,
    ) -> DriverRings {
        let plan = location.shape.plan().expect("checked when it was opened");
        let word = |offset: u64| Word::new(region, location.offset + offset);
        let shared = |ring: Ring| SharedRing::of(region, &location, &plan, ring);
        let validator = Validator::new(&location.shape, Writer::Program);
        let rings = |forward: Ring, returns: Ring| {
            let (forward, returns) = (shared(forward), shared(returns));
            forward.consumer().store(at, Ordering::Relaxed);
            returns.producer().store(at, Ordering::Relaxed);
            RingPair {
                forward: Consumer::new(forward, validator, at),
                returns: Producer::new(returns, at),
                reserved: 0,
            }
        };
        let flow = DriverRings {
            location,
            region: region.clone(),
            area: location.offset + plan.area(),
            transmit: rings(Ring::Submit, Ring::Reclaim),
            receive: rings(Ring::Prime, Ring::Deliver),
            owned: Owned::empty(location.shape.chunks),
            lost: [0; Loss::KINDS],
            completed: 0,
            lost_counters: Words::new(region, location.offset + LOST, 8),
            open: word(field(offset_of!(FlowHeader, open))),
            joins: word(field(offset_of!(FlowHeader, joins))),
            notices: notices.clone(),
        };
        flow.write_header(plan.area());
        flow
    }

    /// The number of the flow among the program's flows.
    pub fn slot(&self) -> u32 {
        self.location.slot
    }

    /// The location of the flow. The program needs it to use the flow.
    pub fn location(&self) -> FlowLocation {
        self.location
    }

    /// Takes the next record that is to be sent.
    ///
    /// # Errors
    /// If the program broke a rule: disconnect it.
    pub fn take(&mut self) -> Result<Taken, ProtocolViolation> {
        let mut record = Record::default();
        let found = self.take_into(&mut record)?;
        Ok(found.with(record))
    }

    /// As [`DriverRings::take`], in place: it takes the record into `record`, which has no pairs if
    /// there is none.
    ///
    /// # Errors
    /// If the program broke a rule: disconnect it.
    #[inline]
    pub fn take_into(&mut self, record: &mut Record) -> Result<Found, ProtocolViolation> {
        self.transmit.take(&mut self.owned, record)
    }

    /// Prefetches what the next [`DriverRings::take`], [`DriverRings::give_back`] and
    /// [`DriverRings::publish`] read and write.
    #[inline]
    pub fn prefetch(&self) {
        self.prefetch_take();
        self.transmit.returns.prefetch();
    }

    /// As [`DriverRings::prefetch`], for a caller that gives no record back.
    #[inline]
    pub fn prefetch_take(&self) {
        self.transmit.forward.prefetch();
    }

    /// Takes the next empty record.
    ///
    /// # Errors
    /// If the program broke a rule: disconnect it.
    #[inline]
    pub fn take_empty(&mut self) -> Result<Taken, ProtocolViolation> {
        let mut record = Record::default();
        let found = self.receive.take(&mut self.owned, &mut record)?;
        Ok(found.with(record))
    }

    /// Whether the program has moved one of its four indices since the driver's last load of that
    /// index. Loads each index at most once and does not wait; after the first index that has
    /// moved, the others are not loaded. A caller uses this function to find out whether a
    /// notification was useless. The function is too expensive for each packet.
    ///
    /// # Errors
    /// If the program broke a rule: disconnect it.
    pub fn moved(&mut self) -> Result<bool, ProtocolViolation> {
        Ok(self.transmit.moved()? || self.receive.moved()?)
    }

    /// Prefetches the first bytes of a record for the next [`DriverRings::read`]. The hardware
    /// prefetcher does not foresee these bytes.
    #[inline]
    pub fn prefetch_read(&self, record: &Record) {
        if let Some(pair) = record.pairs().first() {
            self.region.prefetch(
                self.area + u64::from(pair.base),
                pair.length.min(PREFETCHED),
            );
        }
    }

    /// The bytes of a pair from byte `skip` on, where they are: the program may write them at the
    /// same time. Empty if the pair is not longer.
    #[inline]
    pub fn shared(&self, pair: &Pair, skip: usize) -> SharedBytes {
        let length = (pair.length as usize).saturating_sub(skip);
        let skip = pair.length as usize - length;
        let begin = self.area + u64::from(pair.base) + skip as u64;
        SharedBytes {
            start: self.region.at(begin, length as u64, 1),
            length,
        }
    }

    /// Copies the first bytes of a record to `into`, as many as its first pair has and fit. Returns
    /// their number.
    #[inline]
    pub fn read_first(&self, record: &Record, into: &mut [u8]) -> usize {
        let Some(pair) = record.pairs().first() else {
            return 0;
        };
        let length = into.len().min(pair.length as usize);
        self.region
            .copy_out(self.area + u64::from(pair.base), &mut into[..length]);
        length
    }

    /// Tells the program whether segments of the flow can leave in long packets.
    pub fn set_joins(&self, joins: bool) {
        self.joins.store(u32::from(joins), Ordering::Relaxed);
    }

    /// Copies the bytes of a record's pairs, in order, to the start of `into`. Returns the number
    /// of copied bytes. The program may write the pairs at the same time, so validate only this
    /// copy.
    #[inline]
    pub fn read(&self, record: &Record, into: &mut [u8]) -> usize {
        let mut rest = into;
        let whole = rest.len();
        for pair in record.pairs() {
            let length = rest.len().min(pair.length as usize);
            let (now, later) = rest.split_at_mut(length);
            self.region.copy_out(self.area + u64::from(pair.base), now);
            rest = later;
        }
        whole - rest.len()
    }

    /// Copies `bytes` into a record's buffers, starting at byte `at` of the record. Returns the
    /// number of copied bytes, which is smaller if the record ends before `bytes` does.
    #[inline]
    pub fn write(&mut self, record: &Record, at: usize, bytes: &[u8]) -> usize {
        let (mut skip, mut rest) = (at, bytes);
        for pair in record.pairs() {
            let length = pair.length as usize;
            let from = skip.min(length);
            skip -= from;
            let (now, later) = rest.split_at(rest.len().min(length - from));
            let base = self.area + u64::from(pair.base) + from as u64;
            self.region.copy_in(base, now);
            rest = later;
        }
        bytes.len() - rest.len()
    }

    /// Gives a record of [`DriverRings::take`] back to the program. `stamp` is the time of sending
    /// in ns of `CLOCK_MONOTONIC`, or 0.
    ///
    /// # Panics
    /// If the driver does not hold the record's chunks, for example because the record was already
    /// given back.
    #[inline]
    pub fn give_back(&mut self, record: &Record, status: Status, stamp: u64) {
        self.transmit.give(&mut self.owned, record, status, stamp);
    }

    /// Gives a record of [`DriverRings::take_empty`] back to the program, with its first `length`
    /// bytes filled, or the whole record if it is shorter. With `length` 0 the record returns
    /// unused. `stamp` is the time of reception in ns of `CLOCK_MONOTONIC`, or 0.
    ///
    /// # Panics
    /// As [`DriverRings::give_back`].
    #[inline]
    pub fn deliver(&mut self, mut record: Record, length: usize, status: Status, stamp: u64) {
        let mut rest = length.min(record.bytes());
        for pair in &mut record.pairs[..record.count as usize] {
            let filled = rest.min(pair.length as usize);
            rest -= filled;
            pair.length = filled as u32;
        }
        self.receive.give(&mut self.owned, &record, status, stamp);
    }

    /// Counts one lost packet of the flow.
    pub fn count_lost(&mut self, why: Loss) {
        self.count_lost_many(why, 1);
    }

    /// Counts `number` lost packets of the flow.
    #[inline]
    pub fn count_lost_many(&mut self, why: Loss, number: u64) {
        let count = &mut self.lost[why as usize];
        *count += number;
        self.lost_counters[why as usize].store(*count, Ordering::Relaxed);
    }

    /// Counts `number` received segments of the flow whose partial checksum was completed.
    pub fn count_completed(&mut self, number: u64) {
        self.completed += number;
        self.lost_counters[COMPLETED].store(self.completed, Ordering::Relaxed);
    }

    /// Publishes the records that were taken and given back since the last call. If there were any,
    /// sets the flow's notice and returns true: the caller must then notify the program
    /// ([`ProgramMemory::notify`](super::ProgramMemory::notify)).
    #[inline]
    pub fn publish(&mut self) -> bool {
        let moved = self.publish_indices();
        if moved {
            fence_before_notices();
            self.raise_notice();
        }
        moved
    }

    /// The first part of [`DriverRings::publish`], for a caller that publishes many flows: stores
    /// the indices. If it returns true, the caller continues with [`fence_before_notices`], once
    /// for all flows, and then [`DriverRings::raise_notice`].
    #[inline]
    pub fn publish_indices(&mut self) -> bool {
        self.transmit.publish() | self.receive.publish()
    }

    /// The last part of [`DriverRings::publish`]: sets the flow's notice.
    #[inline]
    pub fn raise_notice(&self) {
        self.notices.raise_behind_fence(self.location.slot);
    }

    /// The chunks of the records that the driver holds (`in_use`), and all other chunks of the
    /// flow. A record counts as given back even before [`DriverRings::publish`].
    pub fn balance(&self) -> Balance {
        self.owned.balance()
    }

    /// Checks the ledger.
    ///
    /// # Panics
    /// If the ledger is inconsistent.
    pub fn invariants(&self) {
        self.owned.invariants();
    }

    /// True if the program says that the flow's connection of TCP is over.
    pub fn is_connection_over(&self) -> bool {
        connections::over_word(&self.region, &self.location).load(Ordering::Acquire) == 1
    }

    /// Whether the flow was opened in the memory file that `region` maps.
    pub(super) fn is_in(&self, region: &Arc<Region>) -> bool {
        Arc::ptr_eq(&self.region, region)
    }

    /// Marks the flow as closed in its region, and sets its notice to the program.
    pub(super) fn end(&self) {
        self.open.store(0, Ordering::Release);
        self.notices.raise(self.location.slot);
    }

    /// Writes the header of the region. The program may compare it with the location that it was
    /// given. The driver does not read it back.
    fn write_header(&self, area: u64) {
        let FlowLocation {
            slot,
            offset,
            shape,
        } = self.location;
        for (at, value) in [
            (offset_of!(FlowHeader, slot), slot),
            (offset_of!(FlowHeader, chunk_bytes), shape.chunk_bytes),
            (offset_of!(FlowHeader, chunks), shape.chunks),
            (
                offset_of!(FlowHeader, transmit_entries),
                shape.transmit_entries,
            ),
            (
                offset_of!(FlowHeader, receive_entries),
                shape.receive_entries,
            ),
        ] {
            Word::new(&self.region, offset + field(at)).store(value, Ordering::Relaxed);
        }
        let at = field(offset_of!(FlowHeader, area));
        Words::new(&self.region, offset + at, 1)[0].store(area, Ordering::Relaxed);
        self.open.store(1, Ordering::Release);
    }
}

/// Between the indices and the notices of the flows that are published: no program that takes a
/// notice afterwards sees an older index. The fence waits until all stores before it are visible.
#[inline]
pub fn fence_before_notices() {
    fence(Ordering::SeqCst);
}

impl RingPair {
    #[inline]
    fn take(&mut self, owned: &mut Owned, record: &mut Record) -> Result<Found, ProtocolViolation> {
        let (returns, reserved) = (&mut self.returns, self.reserved);
        let popped = self
            .forward
            .pop(record, |entries| returns.has_room(reserved + entries))?;
        match popped {
            Popped::Record => {}
            Popped::Empty => return Ok(Found::Empty),
            Popped::Rejected => return Ok(Found::NoRoom),
        }
        for (claimed, pair) in record.pairs().iter().enumerate() {
            let chunk = self.forward.validator().chunk(pair);
            if !owned.claim(chunk) {
                // A rejected record claims no chunk.
                for pair in &record.pairs()[..claimed] {
                    owned.release(self.forward.validator().chunk(pair));
                }
                record.count = 0;
                return Err(self.forward.violation(Rule::NotOwned { chunk }));
            }
        }
        self.reserved += record.entries();
        Ok(Found::Record)
    }

    #[inline]
    fn give(&mut self, owned: &mut Owned, record: &Record, status: Status, stamp: u64) {
        let pairs: &[Pair] = record.pairs();
        for pair in pairs {
            let was = owned.release(self.forward.validator().chunk(pair));
            assert!(was, "a record of another flow, or given back twice");
        }
        self.reserved -= record.entries();
        self.returns.push(status.0, stamp, pairs);
    }

    #[inline]
    fn publish(&mut self) -> bool {
        self.forward.publish() | self.returns.publish()
    }

    fn moved(&mut self) -> Result<bool, ProtocolViolation> {
        Ok(self.forward.moved()? || self.returns.moved()?)
    }
}

/// Bytes of a packet that `prefetch_read` prefetches.
const PREFETCHED: u32 = 1536;
const LOST: u64 = field(offset_of!(FlowHeader, lost));
