//! The program's side of the rings. An [`Attachment`] maps the memory file that the driver passed.
//! A [`ProgramRings`] hands records of chosen buffers to the driver and takes back what the driver
//! returns. [`Attachment::new`] and [`Attachment::flow`] fail with [`SetupError`] if the file or
//! the flow's location is invalid, if another flow uses the location, or if a system call fails;
//! [`Attachment::wait`] fails if the system call does. A call on a flow fails with [`RecordError`]
//! when a ring is full or an argument is invalid, and with [`FlowError`] when it finds that the
//! driver closed the flow or broke a rule of `docs/reference/ring.md`.
//!
//! ```text
//!            chunk()                submit / prime           publish, notify
//!   free ──────────────▶ held ──────────────────────▶ given ────────────────▶ seen by the driver
//!    ▲                  │    ▲                                                │
//!    └───── free() ─────┘    └──────────── reclaim / receive ─────────────────┘
//! ```
//! The picture shows the states of a [`Chunk`], which is a number. The flow's ledger stores the
//! state of each chunk, and every call checks it. So a program can borrow the bytes of a chunk only
//! while the chunk is held, it cannot send a chunk twice, and the driver can return only chunks
//! that it was given. The driver sees the records of many calls at once, after
//! [`ProgramRings::publish`]. So the driver loads the indices once for many records, and the
//! program sends at most one notification for them ([`Attachment::notify`]).
//!
//! The memory of a closed flow reads as zeros until another flow gets it. The zeros violate the
//! rules if an index had moved. So after a violation a call reads `open` of the flow's header, and
//! fails with [`FlowError::Closed`] if the driver closed the flow. If no index had moved, only
//! [`ProgramRings::is_open`] shows that the flow is closed.

mod connections;
mod error;
mod recovery;
mod reservation;
mod segments;
mod spins;

use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::cursor::{Consumer, Popped, Producer};
use crate::doorbell::{Notices, Notifier, SleepFlag};
use crate::file_header::Header;
use crate::layout::{
    ALIGN, COMPLETED, FlowHeader, FlowLocation, Loss, MAGIC, MAX_FLOWS, PAGE, Ring, SetupError,
    VERSION,
};
use crate::ledger::{Balance, Owned, Pool};
use crate::record::{MAX_PAIRS, MessagePart, Pair, Record, Validator, Writer};
use crate::region::{MemoryFile, Region};
use crate::violation::{ProtocolViolation, Rule};
use crate::words::{Ordering, SharedRing, Word, Words};
pub use error::{FlowError, RecordError};
use reservation::{Reservation, UsedRegions};
use spins::Spins;

/// The program's mapping of its memory file, and its doorbells. Only one thread may wait at a time.
/// The flows can be used by other threads.
pub struct Attachment {
    region: Arc<Region>,
    notices: Notices,
    to_driver: Notices,
    sleep_flag: SleepFlag,
    notifier: Notifier,
    poll_fd: OwnedFd,
    ended: Word,
    accepts_arrivals: bool,
    partial_checksums: bool,
    used: UsedRegions,
    spins: Spins,
}

impl Attachment {
    /// Takes the three descriptors that the driver passed: the memory file, the doorbell to the
    /// driver, and the doorbell to the program.
    ///
    /// # Errors
    /// If the file is not a sealed memory file of version [`VERSION`], or a system call fails.
    pub fn new(
        memory: OwnedFd,
        to_driver: OwnedFd,
        to_program: OwnedFd,
    ) -> Result<Attachment, SetupError> {
        let file = MemoryFile::receive(memory)?;
        check_at_least("its length", file.bytes(), PAGE)?;
        let region = Arc::new(file.map()?);
        let header = Header::new(&region);
        let (magic, version, bytes, flows) = header.read();
        check_equal("magic", magic, MAGIC)?;
        check_equal("version", version.into(), VERSION.into())?;
        check_equal("the length in its header", bytes, file.bytes())?;
        let flows = flows.clamp(1, MAX_FLOWS);
        let words = flows.div_ceil(64) as usize;
        Ok(Attachment {
            notices: header.to_program(words),
            to_driver: header.to_driver(words),
            sleep_flag: header.program_sleeps(),
            notifier: Notifier::new(header.driver_sleeps(), to_driver),
            poll_fd: to_program,
            ended: header.ended(),
            accepts_arrivals: header.accepts_arrivals(),
            partial_checksums: header.partial_checksums(),
            used: UsedRegions::default(),
            spins: Spins::default(),
            region,
        })
    }

    /// Returns the program's side of a flow that the driver opened at this location.
    ///
    /// # Errors
    /// If the shape is invalid, the region is not inside the memory file or not at a page boundary,
    /// another flow uses the region or a part of it, or the slot is beyond the slots of the memory
    /// file rounded up to a multiple of 64.
    pub fn flow(&self, location: FlowLocation) -> Result<ProgramRings, SetupError> {
        let wanted = location.shape.plan()?.bytes();
        let end = location.offset.checked_add(wanted);
        let (total, offset) = (self.region.bytes(), location.offset);
        if offset < PAGE || offset % PAGE != 0 || end.is_none_or(|end| end > total) {
            return Err(SetupError::Outside {
                offset,
                wanted,
                total,
            });
        }
        if location.slot as usize / 64 >= self.to_driver.words.len() {
            return Err(SetupError::NoSlot(64 * self.to_driver.words.len() as u32));
        }
        let reservation = Reservation::take(&self.used, offset, offset + wanted)?;
        Ok(ProgramRings::new(
            &self.region,
            location,
            &self.to_driver,
            0,
            Some(reservation),
        ))
    }

    /// Whether the driver accepts [`MessagePart::Arrived`]. Drivers of earlier versions do not.
    pub fn accepts_arrivals(&self) -> bool {
        self.accepts_arrivals
    }

    /// Whether partial checksums that arrive on the driver's interface are right.
    pub fn partial_checksums(&self) -> bool {
        self.partial_checksums
    }

    /// Notifies the driver if it sleeps. Call it after [`ProgramRings::publish`]. True if the
    /// driver slept.
    pub fn notify(&self) -> bool {
        self.notifier.notify()
    }

    /// A handle for notifying the driver from another thread.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Becomes readable when the driver sends a notification. An event loop that also waits for
    /// other descriptors calls [`Attachment::prepare_sleep`] before it waits and
    /// [`Attachment::end_sleep`] afterwards.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.poll_fd.as_fd()
    }

    /// Clears the notices and calls `each` once with the slot of every flow in which the driver
    /// moved an index, or which it closed, since the last call.
    pub fn take_notices(&self, each: impl FnMut(u32)) {
        self.notices.take(each);
    }

    /// Sets the sleeping flag; call this before sleeping. True: the program may sleep, and the
    /// driver will notify it. False: a notice is already set, and the flag is cleared again.
    pub fn prepare_sleep(&self) -> bool {
        self.sleep_flag.set();
        let quiet = !self.notices.any();
        if !quiet {
            self.sleep_flag.clear();
        }
        quiet
    }

    /// Clears the sleeping flag and consumes the notification, if there is one. Call this after
    /// sleeping.
    pub fn end_sleep(&self) {
        self.sleep_flag.clear();
        // If this fails, the notification stays and the next sleep ends early, which does no harm.
        let _ = self.take_notification(Some(Duration::ZERO));
    }

    /// As [`Attachment::end_sleep`] without a system call, if there is no notification. One that
    /// comes meanwhile ends the next sleep early, which does no harm.
    pub fn cancel_sleep(&self) {
        self.sleep_flag.clear();
    }

    /// Waits until a notice is set (true) or the timeout expires (false). With the timeout `None`
    /// it waits without limit. The call spins first ([`Attachment::spin`]), whatever the timeout,
    /// because that costs less than sleeping if the notice comes soon.
    ///
    /// # Errors
    /// If waiting for the doorbell fails.
    pub fn wait(&self, timeout: Option<Duration>) -> std::io::Result<bool> {
        let begin = Instant::now();
        if self.spin() {
            return Ok(true);
        }
        loop {
            if !self.prepare_sleep() {
                return Ok(true);
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
            let waited = self.take_notification(left);
            self.sleep_flag.clear();
            match waited {
                Err(Errno::INTR) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            }
            if self.notices.any() {
                return Ok(true);
            }
            if timeout.is_some_and(|timeout| begin.elapsed() >= timeout) {
                return Ok(false);
            }
        }
    }

    /// Spins for about 3 µs at most. True as soon as a notice is set; false if none was set. Call
    /// it before sleeping, because waking takes longer.
    ///
    /// If the last eight calls found nothing, as where the driver is on the same processor, only
    /// one call in 32 spins.
    pub fn spin(&self) -> bool {
        let found = match self.spins.pays() {
            true => self.spin_now(),
            false => self.notices.any(),
        };
        self.spins.record(found);
        found
    }

    fn spin_now(&self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < SPIN {
            for _ in 0..32 {
                if self.notices.any() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }

    /// The number of the rule of `docs/reference/ring.md` for which the driver disconnected this
    /// program; `None` if the driver did not.
    pub fn ended(&self) -> Option<u32> {
        match self.ended.load(Ordering::Acquire) {
            0 => None,
            rule => Some(rule),
        }
    }

    fn take_notification(&self, timeout: Option<Duration>) -> Result<(), Errno> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        epoll::wait(&self.poll_fd, &mut events[..], timeout.as_ref()).map(drop)
    }
}

/// A buffer of a flow, by its number. The flow's ledger stores its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chunk(pub u32);

/// A part of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The chunk.
    pub chunk: Chunk,
    /// Offset of the part in the chunk, in bytes: a multiple of [`ALIGN`].
    pub start: u32,
    /// Length in bytes. At least 1 in a record that the program hands over.
    pub length: u32,
}

/// The program's side of a flow: its rings and its buffers.
pub struct ProgramRings {
    location: FlowLocation,
    region: Arc<Region>,
    area: u64,
    /// Binary logarithm of the number of bytes of a chunk.
    chunk_shift: u32,
    transmit: RingPair,
    receive: RingPair,
    pool: Pool,
    given: Owned,
    lost: Words,
    open: Word,
    joins: Word,
    notices: Notices,
    _reservation: Option<Reservation>,
}

/// One direction: records leave by one ring and return in the other.
struct RingPair {
    forward: Producer,
    returns: Consumer,
}

impl ProgramRings {
    /// The program's side of a flow whose indices start at `at`: 0 except in tests.
    pub(crate) fn new(
        region: &Arc<Region>,
        location: FlowLocation,
        notices: &Notices,
        at: u32,
        reservation: Option<Reservation>,
    ) -> ProgramRings {
        let plan = location.shape.plan().expect("checked by the caller");
        let word = |offset: u64| Word::new(region, location.offset + offset);
        let shared = |ring: Ring| SharedRing::of(region, &location, &plan, ring);
        let validator = Validator::new(&location.shape, Writer::Driver);
        let rings = |forward: Ring, returns: Ring| {
            let (forward, returns) = (shared(forward), shared(returns));
            forward.producer().store(at, Ordering::Relaxed);
            returns.consumer().store(at, Ordering::Relaxed);
            RingPair {
                forward: Producer::new(forward, at),
                returns: Consumer::new(returns, validator, at),
            }
        };
        ProgramRings {
            location,
            region: region.clone(),
            area: location.offset + plan.area(),
            chunk_shift: location.shape.chunk_bytes.trailing_zeros(),
            transmit: rings(Ring::Submit, Ring::Reclaim),
            receive: rings(Ring::Prime, Ring::Deliver),
            pool: Pool::new(location.shape.chunks, location.shape.chunk_bytes),
            given: Owned::empty(location.shape.chunks),
            lost: Words::new(
                region,
                location.offset + offset_of!(FlowHeader, lost) as u64,
                8,
            ),
            open: word(offset_of!(FlowHeader, open) as u64),
            joins: word(offset_of!(FlowHeader, joins) as u64),
            notices: notices.clone(),
            _reservation: reservation,
        }
    }

    /// The location of the flow in the memory file.
    pub fn location(&self) -> FlowLocation {
        self.location
    }

    /// True until the driver closes the flow. The result has no meaning after another flow got the
    /// region.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) == 1
    }

    /// Takes a free chunk. The caller then holds it. Returns `None` if no chunk is free.
    #[inline]
    pub fn chunk(&mut self) -> Option<Chunk> {
        self.pool.take_number().map(Chunk)
    }

    /// Makes a held chunk free.
    ///
    /// # Errors
    /// If the chunk is not held.
    #[inline]
    pub fn free(&mut self, chunk: Chunk) -> Result<(), RecordError> {
        self.held(chunk)?;
        self.pool.give_number(chunk.0);
        Ok(())
    }

    /// The bytes of a held chunk.
    ///
    /// # Errors
    /// If the chunk is not held.
    #[inline]
    pub fn bytes(&self, chunk: Chunk) -> Result<&[u8], RecordError> {
        self.held(chunk)?;
        let (at, length) = (
            self.area + self.offset(chunk),
            self.location.shape.chunk_bytes,
        );
        // SAFETY: the chunk is held, so the driver does not write it. Any writer in this process
        // needs an exclusive borrow of this flow, which cannot exist while this borrow lives.
        Ok(unsafe { self.region.bytes_of(at, length as usize) })
    }

    /// The bytes of a held chunk, for writing.
    ///
    /// # Errors
    /// If the chunk is not held.
    #[inline]
    pub fn bytes_mut(&mut self, chunk: Chunk) -> Result<&mut [u8], RecordError> {
        self.held(chunk)?;
        let (at, length) = (
            self.area + self.offset(chunk),
            self.location.shape.chunk_bytes,
        );
        // SAFETY: as above, and the borrow is exclusive: no other reference into this flow's chunks
        // is alive.
        Ok(unsafe { self.region.bytes_of_mut(at, length as usize) })
    }

    /// Copies bytes of a chunk, from byte `at` on, also if it was handed over to be sent and no
    /// returned record has named it: the driver does not change such a chunk before it closes the
    /// flow. The bytes of a chunk of an empty record can be anything.
    ///
    /// # Errors
    /// If the chunk is free, or does not have these bytes.
    pub fn copy_out(&self, chunk: Chunk, at: u32, into: &mut [u8]) -> Result<(), RecordError> {
        let end = u64::from(at) + into.len() as u64;
        let fits = end <= u64::from(self.location.shape.chunk_bytes);
        if !fits || !self.pool.is_number_in_use(chunk.0) {
            return Err(RecordError::NotHeld(chunk));
        }
        let from = self.area + self.offset(chunk) + u64::from(at);
        self.region.copy_out(from, into);
        Ok(())
    }

    /// Hands a record over to be sent. The record begins a message of a real-time channel, or
    /// continues the message before if `continues` is true.
    ///
    /// # Errors
    /// If the pieces are not a valid record, the ring is full, the driver closed the flow, or the
    /// driver broke a rule. Nothing changes then.
    #[inline]
    pub fn submit(&mut self, pieces: &[Piece], continues: bool) -> Result<(), RecordError> {
        self.submit_part(pieces, MessagePart::of(continues))
    }

    /// [`ProgramRings::submit`] for a given part of a message.
    ///
    /// # Errors
    /// As [`ProgramRings::submit`].
    #[inline]
    pub fn submit_part(&mut self, pieces: &[Piece], part: MessagePart) -> Result<(), RecordError> {
        let (pairs, count) = self.validate(pieces)?;
        self.hand_over(Ring::Submit, &pairs[..count], part.note_and_stamp())
    }

    /// True if the submit ring has room for `records` records of one piece each.
    ///
    /// # Errors
    /// If the call finds that the driver closed the flow or broke a rule.
    pub fn has_room(&mut self, records: u32) -> Result<bool, FlowError> {
        let room = self.transmit.forward.has_room(records.saturating_mul(2));
        room.map_err(|violation| self.flow_error(violation))
    }

    /// Hands an empty record over. The driver fills it with a received packet.
    ///
    /// # Errors
    /// As [`ProgramRings::submit`].
    #[inline]
    pub fn prime(&mut self, pieces: &[Piece]) -> Result<(), RecordError> {
        let (pairs, count) = self.validate(pieces)?;
        self.hand_over(Ring::Prime, &pairs[..count], (0, 0))
    }

    /// Takes back a record that the driver has sent or refused to send ([`Record::status`]). The
    /// program then holds its chunks. Returns `None` if the driver has returned no record.
    ///
    /// # Errors
    /// If the call finds that the driver closed the flow or broke a rule. For a closed flow the
    /// result can also be `None`.
    #[inline]
    pub fn reclaim(&mut self) -> Result<Option<Record>, FlowError> {
        self.take_back(Ring::Reclaim)
    }

    /// Takes a record that the driver has returned on the receive channel. If [`Record::status`] is
    /// [`Status::DONE`](crate::Status::DONE), it contains a received packet; otherwise it contains
    /// nothing. The program then holds its chunks, including those that the packet did not need
    /// (length 0). Returns `None` if the driver has returned no record.
    ///
    /// # Errors
    /// As [`ProgramRings::reclaim`].
    #[inline]
    pub fn receive(&mut self) -> Result<Option<Record>, FlowError> {
        self.take_back(Ring::Deliver)
    }

    /// The piece of a chunk that a pair describes.
    #[inline]
    pub fn piece(&self, pair: &Pair) -> Piece {
        Piece {
            chunk: Chunk(pair.base >> self.chunk_shift),
            start: pair.base & (self.location.shape.chunk_bytes - 1),
            length: pair.length,
        }
    }

    /// Frees all chunks of a returned record.
    ///
    /// # Errors
    /// If one of them is not held. The chunks before it are free then.
    #[inline]
    pub fn free_all(&mut self, record: &Record) -> Result<(), RecordError> {
        for pair in record.pairs() {
            let chunk = self.piece(pair).chunk;
            self.free(chunk)?;
        }
        Ok(())
    }

    /// Publishes the records that were handed over and taken since the last call. True if the
    /// transmit channel moved: the caller must then notify the driver ([`Attachment::notify`]). A
    /// change of the receive channel alone needs no notification, because the driver reads the
    /// empty records when it has a packet. A driver that sees a record to send also sees the empty
    /// records that were primed before it.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.receive.publish();
        let moved = self.transmit.publish();
        if moved {
            self.notices.raise(self.location.slot);
        }
        moved
    }

    /// The number of packets of this flow that the driver did not deliver for the reason `why`. The
    /// driver writes the number.
    pub fn lost(&self, why: Loss) -> u64 {
        self.lost[why as usize].load(Ordering::Relaxed)
    }

    /// The number of received segments whose partial checksum the driver has completed. The driver
    /// writes the number.
    pub fn completed(&self) -> u64 {
        self.lost[COMPLETED].load(Ordering::Relaxed)
    }

    /// The chunks that are held or with the driver (`in_use`), and the free chunks.
    pub fn balance(&self) -> Balance {
        self.pool.balance()
    }

    /// The number of chunks that are with the driver.
    pub fn given(&self) -> u32 {
        self.given.balance().in_use
    }

    /// Checks the ledger.
    ///
    /// # Panics
    /// If the ledger is inconsistent.
    pub fn invariants(&self) {
        self.pool.invariants();
        self.given.invariants();
        assert!(self.given() <= self.balance().in_use);
    }

    fn held(&self, chunk: Chunk) -> Result<(), RecordError> {
        match self.pool.is_number_in_use(chunk.0) && !self.given.has(chunk.0) {
            true => Ok(()),
            false => Err(RecordError::NotHeld(chunk)),
        }
    }

    fn offset(&self, chunk: Chunk) -> u64 {
        u64::from(chunk.0) << self.chunk_shift
    }

    fn validate(&self, pieces: &[Piece]) -> Result<([Pair; MAX_PAIRS], usize), RecordError> {
        let mut pairs = [Pair::default(); MAX_PAIRS];
        if pieces.is_empty() || pieces.len() > MAX_PAIRS {
            return Err(RecordError::Count(pieces.len()));
        }
        let chunk_bytes = self.location.shape.chunk_bytes;
        for (index, piece) in pieces.iter().enumerate() {
            let &Piece {
                chunk,
                start,
                length,
            } = piece;
            self.held(chunk)?;
            if pieces[..index].iter().any(|other| other.chunk == chunk) {
                return Err(RecordError::NotHeld(chunk));
            }
            let end = start.checked_add(length);
            let inside = end.is_some_and(|end| end <= chunk_bytes);
            if length == 0 || !inside || u64::from(start) % ALIGN != 0 {
                return Err(RecordError::Piece {
                    start,
                    length,
                    chunk_bytes,
                });
            }
            // The area has at most 2^32 bytes, so the base fits in a `u32`.
            let base = (self.offset(chunk) + u64::from(start)) as u32;
            pairs[index] = Pair { base, length };
        }
        Ok((pairs, pieces.len()))
    }

    #[inline]
    fn hand_over(
        &mut self,
        ring: Ring,
        pairs: &[Pair],
        (note, stamp): (u32, u64),
    ) -> Result<(), RecordError> {
        let rings = match ring {
            Ring::Submit | Ring::Reclaim => &mut self.transmit,
            Ring::Prime | Ring::Deliver => &mut self.receive,
        };
        match rings.forward.has_room(1 + pairs.len() as u32) {
            Ok(true) => {}
            // The indices of a closed flow are cleared, which can look like a full ring.
            Ok(false) if !self.is_open() => return Err(FlowError::Closed.into()),
            Ok(false) => return Err(RecordError::Full),
            Err(violation) => return Err(self.flow_error(violation).into()),
        }
        for pair in pairs {
            self.given.claim(pair.base >> self.chunk_shift);
        }
        rings.forward.push(note, stamp, pairs);
        Ok(())
    }

    #[inline]
    fn take_back(&mut self, ring: Ring) -> Result<Option<Record>, FlowError> {
        let returns = match ring {
            Ring::Submit | Ring::Reclaim => &mut self.transmit.returns,
            Ring::Prime | Ring::Deliver => &mut self.receive.returns,
        };
        let mut record = Record::default();
        match returns.pop(&mut record, |_| Ok(true)) {
            Ok(Popped::Record) => {}
            Ok(_) => return Ok(None),
            Err(violation) => return Err(self.flow_error(violation)),
        }
        for pair in record.pairs() {
            let chunk = returns.validator().chunk(pair);
            if !self.given.release(chunk) {
                let violation = returns.violation(Rule::NotOwned { chunk });
                return Err(self.flow_error(violation));
            }
        }
        Ok(Some(record))
    }

    fn flow_error(&self, violation: ProtocolViolation) -> FlowError {
        match self.is_open() {
            true => FlowError::Violation(violation),
            false => FlowError::Closed,
        }
    }
}

impl RingPair {
    #[inline]
    fn publish(&mut self) -> bool {
        self.forward.publish() | self.returns.publish()
    }
}

fn check_equal(what: &'static str, seen: u64, wanted: u64) -> Result<(), SetupError> {
    match seen == wanted {
        true => Ok(()),
        false => Err(SetupError::NotMemoryFile { what, seen, wanted }),
    }
}

fn check_at_least(what: &'static str, seen: u64, wanted: u64) -> Result<(), SetupError> {
    match seen >= wanted {
        true => Ok(()),
        false => Err(SetupError::NotMemoryFile { what, seen, wanted }),
    }
}

/// Time to spin before sleeping. It is about the cost of a wake-up, so waiting costs at most twice
/// the minimum.
const SPIN: Duration = Duration::from_micros(3);

#[cfg(test)]
mod tests;
