//! The driver's side: it makes the memory file, opens flows in it, and believes nothing that it reads there.
//!
//! ```text
//!                    ┌─ take ──▶ Record ── read ──▶ the driver's frame ──▶ give_back ─┐
//!  submit ring ──────┘                                                                └──▶ reclaim ring
//!                    ┌─ take_empty ──▶ Record ◀── write ── a received frame, deliver ─┐
//!  prime ring  ──────┘                                                                └──▶ deliver ring
//! ```
//! A record is taken only if there is room for its way back, so giving back never fails and never waits; a program
//! that does not collect stops itself alone. Between taking and giving back its chunks are the driver's, by a
//! ledger in private memory. Every call does work for one record of at most [`MAX_PAIRS`](crate::record::MAX_PAIRS)
//! pairs, whatever lies in the rings.

mod gaps;

use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, epoll};
use rustix::io::ReadWriteFlags;

use crate::bell::{Heard, Nap, Notices, Ringer};
use crate::breach::{Breach, Rule};
use crate::cursor::{Consumer, Ends, Popped, Producer};
use crate::layout::{
    Budget, FileHeader, FlowHeader, MAGIC, PAGE, Place, Ring, SetupError, Shape, VERSION, WORDS,
};
use crate::ledger::{Balance, Owned, Pool};
use crate::program::Attachment;
use crate::record::{From, Judge, Pair, Record, Status};
use crate::region::{MemoryFile, Region, system};
use crate::words::{Ordering, Word, Words};
use gaps::Gaps;

/// One program, as the driver holds it: its memory file, its doorbells, its notices.
pub struct Client {
    file: MemoryFile,
    region: Arc<Region>,
    gaps: Gaps,
    /// Slots that are open are out.
    slots: Pool,
    flows: u32,
    notices: Notices,
    to_program: Notices,
    nap: Nap,
    /// Rings that the program may still make: one for each time that it was seen to take the flag.
    granted: u64,
    ringer: Ringer,
    bell: OwnedFd,
    /// What the program waits on: it watches the ringer's eventfd.
    ear: OwnedFd,
    ended: Word,
    /// Pages that the kernel is to leave where they are, once it is sealed.
    held: Option<OwnedFd>,
}

/// The three descriptors that a program needs, in the order in which they are passed.
#[derive(Clone, Copy, Debug)]
pub struct Handles<'a> {
    /// The memory file.
    pub memory: BorrowedFd<'a>,
    /// An eventfd: the program writes to it to wake the driver.
    pub to_driver: BorrowedFd<'a>,
    /// An epoll descriptor: readable when the driver rang; a wait on it takes the ring.
    pub to_program: BorrowedFd<'a>,
}

impl Handles<'_> {
    /// The program's side, in this process, with copies of the descriptors.
    pub fn attach(&self) -> Result<Attachment, SetupError> {
        let copy = |fd: BorrowedFd| {
            rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(system("cannot copy a descriptor"))
        };
        Attachment::new(
            copy(self.memory)?,
            copy(self.to_driver)?,
            copy(self.to_program)?,
        )
    }
}

impl Client {
    /// Makes the memory file of a program, which cannot change its size, and its doorbells.
    ///
    /// The program maps it then; before any other call than [`Client::handles`], [`Client::bytes`] and a drop the driver is
    /// to [`Client::seal`] it. (One that trusts its program can do without.)
    pub fn create(budget: Budget) -> Result<Client, SetupError> {
        let file = MemoryFile::create(budget.file_bytes()?)?;
        let region = Arc::new(file.map()?);
        let eventfd = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            rustix::event::eventfd(0, flags).map_err(system("cannot make a doorbell"))
        };
        let (bell, out) = (eventfd()?, eventfd()?);
        let ear = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(system("cannot make a doorbell's other end"))?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&ear, &out, epoll::EventData::new_u64(0), edge)
            .map_err(system("cannot watch a doorbell"))?;
        let header = Header::new(&region);
        header.write(&budget, file.bytes());
        let words = budget.flows.div_ceil(64) as usize;
        Ok(Client {
            gaps: Gaps::new(PAGE, file.bytes() - PAGE),
            slots: Pool::new(budget.flows, 1),
            flows: budget.flows,
            notices: header.to_driver(words),
            to_program: header.to_program(words),
            nap: header.driver_sleeps(),
            granted: 0,
            ringer: Ringer::new(header.program_sleeps(), out),
            bell,
            ear,
            ended: header.ended(),
            held: None,
            file,
            region,
        })
    }

    /// What the program gets.
    pub fn handles(&self) -> Handles<'_> {
        Handles {
            memory: self.file.fd(),
            to_driver: self.bell.as_fd(),
            to_program: self.ear.as_fd(),
        }
    }

    /// Readable when the program rang. Wait for it, and empty it by [`Client::hear`]; or watch it edge-triggered, and say so
    /// by [`Client::rang`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The program has mapped the file: from now on neither it nor anybody else can take pages out of it, and the first page
    /// is there. It takes long, and is not for the packet thread.
    ///
    /// # Errors
    /// If the program has sealed the file in a way that makes this impossible, or there is no memory.
    pub fn seal(&mut self) -> Result<(), SetupError> {
        self.file.seal()?;
        self.region.populate(0, PAGE)?;
        self.held = Some(self.region.hold()?);
        Ok(())
    }

    /// Opens a flow.
    ///
    /// # Errors
    /// If there is no room or no memory for it.
    pub fn open(&mut self, shape: Shape) -> Result<Flow, SetupError> {
        match self.reserve(shape)?.prepare() {
            Ok(prepared) => Ok(self.open_at(prepared)),
            Err(Unprepared { place, why }) => {
                self.vacate(place);
                Err(why)
            }
        }
    }

    /// The first part of [`Client::open`], which touches no shared memory: a place is set aside. [`Reserved::prepare`], which
    /// another thread can call, and [`Client::open_at`] follow; or [`Client::vacate`].
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn reserve(&mut self, shape: Shape) -> Result<Reserved, SetupError> {
        let plan = shape.plan()?;
        let Some(slot) = self.slots.take() else {
            return Err(SetupError::NoSlot(self.flows));
        };
        let Some(offset) = self.gaps.take(plan.bytes()) else {
            self.slots.give(slot).expect("taken above");
            return Err(self.gaps.refusal(plan.bytes()));
        };
        let place = Place {
            // There are at most MAX_FLOWS.
            slot: slot as u32,
            offset,
            shape,
        };
        Ok(Reserved {
            place,
            bytes: plan.bytes(),
            region: self.region.clone(),
        })
    }

    /// The last part of [`Client::open`].
    ///
    /// # Panics
    /// If the place was reserved with another client.
    pub fn open_at(&mut self, prepared: Prepared) -> Flow {
        assert!(Arc::ptr_eq(&self.region, &prepared.region), "its own place");
        Flow::open(&self.region, prepared.place, &self.to_program, 0)
    }

    /// A place that was reserved is not used: it may be another's.
    pub fn vacate(&mut self, place: Place) {
        let bytes = place.shape.plan().map_or(0, |plan| plan.bytes());
        self.slots
            .give(place.slot.into())
            .expect("a reserved place has a slot");
        self.gaps.give(place.offset, bytes);
    }

    /// Ends a flow: its region reads as zeros, and its place may be another's. The balance says how many chunks the
    /// driver still had; records of it that are still held are void.
    pub fn close(&mut self, flow: Flow) -> Balance {
        let retired = self.retire(flow);
        let balance = retired.balance();
        self.reuse(retired.clear());
        balance
    }

    /// The first half of [`Client::close`], which takes no time to speak of: the flow has ended, and its bytes are there
    /// until [`Retired::clear`], which another thread can call.
    pub fn retire(&mut self, flow: Flow) -> Retired {
        let place = flow.place;
        let balance = flow.balance();
        flow.end();
        drop(flow);
        self.slots
            .give(place.slot.into())
            .expect("an open flow has a slot");
        Retired {
            offset: place.offset,
            bytes: place.shape.plan().map_or(0, |plan| plan.bytes()),
            balance,
            region: self.region.clone(),
        }
    }

    /// The last half: its place may be another's.
    pub fn reuse(&mut self, cleared: Cleared) {
        // Another program's pages are no business of this one.
        if Arc::ptr_eq(&self.region, &cleared.region) {
            self.gaps.give(cleared.offset, cleared.bytes);
        }
    }

    /// Names the flows in which the program moved an index since the last time; each at most once, and only those
    /// that are open. It is the program's word, and it is only where to look.
    pub fn take_notices(&self, mut each: impl FnMut(u32)) {
        self.notices.take(|slot| {
            if self.slots.is_out(slot.into()) {
                each(slot);
            }
        });
    }

    /// The same flows, but their notices stay.
    pub fn noticed(&self) -> impl Iterator<Item = u32> {
        let is_open = |slot: &u32| self.slots.is_out((*slot).into());
        self.notices.iter().filter(is_open)
    }

    /// Wakes the program if it sleeps: once a turn, after [`Flow::publish`]. True if it slept.
    pub fn ring(&self) -> bool {
        self.ringer.ring()
    }

    /// The same, for another thread: a ring is a system call, and takes longer where many wait for it.
    pub fn ringer(&self) -> Ringer {
        self.ringer.clone()
    }

    /// Before sleeping. True: the program rings if something happens. False: something has happened already.
    pub fn doze(&mut self) -> bool {
        self.granted += u64::from(self.nap.begin());
        let quiet = !self.notices.any();
        if !quiet {
            self.wake();
        }
        quiet
    }

    /// After sleeping, whatever woke the driver.
    pub fn wake(&mut self) {
        // If the flag still stands, nobody took it, and nobody may ring.
        self.granted = self.granted.saturating_sub(self.nap.end().into());
    }

    /// Empties the doorbell, and says that the driver is awake.
    pub fn hear(&mut self) -> Heard {
        self.wake();
        let mut count = [0; 8];
        let read = rustix::io::preadv2(
            &self.bell,
            &mut [std::io::IoSliceMut::new(&mut count)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        );
        let rings = match read {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        };
        let unasked = rings.saturating_sub(self.granted);
        self.granted = self.granted.saturating_sub(rings);
        Heard { rings, unasked }
    }

    /// For who watches the doorbell edge-triggered and leaves it full: it rang at least once. Says that the driver is awake;
    /// true if nobody asked for the ring.
    pub fn rang(&mut self) -> bool {
        self.wake();
        let unasked = self.granted == 0;
        self.granted = self.granted.saturating_sub(1);
        unasked
    }

    /// Tells the program for which rule it is expelled, and wakes it. The client and its flows are to be dropped
    /// then; what the program does with its memory no longer matters to anybody.
    pub fn expel(&self, breach: &Breach) {
        self.condemn(breach);
        self.ringer.strike();
    }

    /// The same without waking it. Its doorbell is to be struck ([`Client::ringer`]), flag or not: that is the program's to break.
    pub fn condemn(&self, breach: &Breach) {
        self.ended.store(breach.must(), Ordering::Release);
        for slot in 0..self.flows {
            if self.slots.is_out(slot.into()) {
                self.to_program.raise(slot);
            }
        }
        self.ringer.claim();
    }

    /// Bytes of the memory file.
    pub fn bytes(&self) -> u64 {
        self.file.bytes()
    }
}

/// A place that was set aside for a flow. Its pages may not be there yet.
pub struct Reserved {
    place: Place,
    bytes: u64,
    region: Arc<Region>,
}

/// The same, with its pages.
pub struct Prepared {
    place: Place,
    region: Arc<Region>,
}

/// A place that was set aside, and there is no memory for it. It is to be [`Client::vacate`]d.
pub struct Unprepared {
    /// Where.
    pub place: Place,
    /// Why.
    pub why: SetupError,
}

impl Prepared {
    /// Where it is.
    pub fn place(&self) -> Place {
        self.place
    }
}

impl Reserved {
    /// Makes all its pages be there, so that who serves the flow never waits for one. It takes about a millisecond for
    /// each 2 MiB that are new.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn prepare(self) -> Result<Prepared, Unprepared> {
        let Reserved {
            place,
            bytes,
            region,
        } = self;
        match region.populate(place.offset, bytes) {
            Ok(()) => Ok(Prepared { place, region }),
            Err(why) => Err(Unprepared { place, why }),
        }
    }
}

/// The region of a flow that has ended.
pub struct Retired {
    offset: u64,
    bytes: u64,
    balance: Balance,
    region: Arc<Region>,
}

/// The same, which reads as zeros.
pub struct Cleared {
    offset: u64,
    bytes: u64,
    region: Arc<Region>,
}

impl Retired {
    /// How many chunks the driver still had.
    pub fn balance(&self) -> Balance {
        self.balance
    }

    /// Writes zeros over it. (The pages stay: to take them out of the file is forbidden to everybody, see [`Client::seal`].)
    pub fn clear(self) -> Cleared {
        self.region.clear(self.offset, self.bytes);
        Cleared {
            offset: self.offset,
            bytes: self.bytes,
            region: self.region,
        }
    }
}

/// A flow, as the driver has it.
pub struct Flow {
    place: Place,
    region: Arc<Region>,
    /// Where the data area begins in the region.
    area: u64,
    transmit: Channel,
    receive: Channel,
    owned: Owned,
    lost: [u64; Loss::KINDS],
    label: Words,
    open: Word,
    notices: Notices,
}

/// One direction: records come in by one ring, and leave by the other.
struct Channel {
    requests: Consumer,
    answers: Producer,
    /// Entries that the records held now will take on their way back.
    promised: u32,
}

/// What [`Flow::take`] and [`Flow::take_empty`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// A record; its chunks are the driver's until it is given back.
    Record(Record),
    /// Nothing is there.
    Empty,
    /// The program does not collect what it got back, and there is no room for more.
    NoRoom,
}

/// Why a packet did not reach its flow; a counter of the flow in shared memory, for the program to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Loss {
    /// No empty record was there, or no room to deliver it.
    NoBuffer,
    /// The flow had used its share of the driver's time.
    OverShare,
    /// It fitted no record.
    TooLong,
}

impl Loss {
    const KINDS: usize = 3;
}

impl Flow {
    pub(crate) fn open(region: &Arc<Region>, place: Place, notices: &Notices, at: u32) -> Flow {
        let plan = place.shape.plan().expect("checked when it was opened");
        let word = |offset: u64| Word::new(region, place.offset + offset);
        let ends = |ring: Ring| Ends::of(region, &place, &plan, ring);
        let judge = Judge::new(&place.shape, From::Program);
        let channel = |requests: Ring, answers: Ring| {
            let (requests, answers) = (ends(requests), ends(answers));
            requests.consumer.store(at, Ordering::Relaxed);
            answers.producer.store(at, Ordering::Relaxed);
            Channel {
                requests: Consumer::new(requests, judge, at),
                answers: Producer::new(answers, at),
                promised: 0,
            }
        };
        let flow = Flow {
            place,
            region: region.clone(),
            area: place.offset + plan.area(),
            transmit: channel(Ring::Submit, Ring::Reclaim),
            receive: channel(Ring::Prime, Ring::Deliver),
            owned: Owned::none_of(place.shape.chunks),
            lost: [0; Loss::KINDS],
            label: Words::new(region, place.offset + LOST, 8),
            open: word(field(offset_of!(FlowHeader, open))),
            notices: notices.clone(),
        };
        flow.write_label(plan.area());
        flow
    }

    /// Its number among the program's flows.
    pub fn slot(&self) -> u32 {
        self.place.slot
    }

    /// Where it lies: what the program must be told.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Takes the next record that is to be sent.
    ///
    /// # Errors
    /// If the program broke a rule: expel it.
    #[inline]
    pub fn take(&mut self) -> Result<Taken, Breach> {
        self.transmit.take(&mut self.owned)
    }

    /// The next call is [`Flow::take`], [`Flow::give_back`] or both, and then [`Flow::publish`]: what they read and write is fetched.
    #[inline]
    pub fn soon(&self) {
        self.transmit.requests.soon();
        self.transmit.answers.soon();
    }

    /// Takes the next empty record.
    ///
    /// # Errors
    /// If the program broke a rule: expel it.
    #[inline]
    pub fn take_empty(&mut self) -> Result<Taken, Breach> {
        self.receive.take(&mut self.owned)
    }

    /// Looks at the program's indices, up to the first that has moved since it was last looked at; false if none has. It is for who wants
    /// to know whether a call was for nothing, and too dear for each packet.
    ///
    /// # Errors
    /// If the program broke a rule: expel it.
    pub fn moved(&mut self) -> Result<bool, Breach> {
        Ok(self.transmit.moved()? || self.receive.moved()?)
    }

    /// The next call for this record is [`Flow::read`]: the first bytes of it are fetched, which are those that the processor does not
    /// foresee itself.
    #[inline]
    pub fn soon_read(&self, record: &Record) {
        if let Some(pair) = record.pairs().first() {
            self.region
                .soon(self.area + u64::from(pair.base), pair.length.min(FORESEEN));
        }
    }

    /// Copies the bytes of a record, one pair after the other, to the begin of `into`; says how many. The program may
    /// write them meanwhile: what is judged must be this copy.
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

    /// Copies bytes into a record's buffers, from byte `at` of it on; says how many had room.
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

    /// Gives a record of [`Flow::take`] back, with what became of it and when.
    #[inline]
    pub fn give_back(&mut self, record: Record, status: Status, stamp: u64) {
        self.transmit.give(&mut self.owned, &record, status, stamp);
    }

    /// Gives a record of [`Flow::take_empty`] back, with its first `length` bytes filled. (0: it comes back unused.)
    #[inline]
    pub fn deliver(&mut self, mut record: Record, length: usize, status: Status, stamp: u64) {
        let mut rest = length.min(record.bytes());
        for pair in &mut record.pairs[..usize::from(record.count)] {
            let filled = rest.min(pair.length as usize);
            rest -= filled;
            pair.length = filled as u32;
        }
        self.receive.give(&mut self.owned, &record, status, stamp);
    }

    /// Counts a packet that the flow did not get.
    pub fn lost(&mut self, why: Loss) {
        self.lost_many(why, 1);
    }

    /// The same, of several.
    #[inline]
    pub fn lost_many(&mut self, why: Loss, number: u64) {
        let count = &mut self.lost[why as usize];
        *count += number;
        self.label[why as usize].store(*count, Ordering::Relaxed);
    }

    /// Shows the program what was taken and given since the last time. True if there was something: then the client
    /// is to [`ring`](Client::ring).
    #[inline]
    pub fn publish(&mut self) -> bool {
        let moved = self.transmit.show() | self.receive.show();
        if moved {
            self.notices.raise(self.place.slot);
        }
        moved
    }

    /// The chunks that the driver has now, in records or not yet published, and those that the program has.
    pub fn balance(&self) -> Balance {
        self.owned.balance()
    }

    /// What must hold at every moment.
    ///
    /// # Panics
    /// If it does not.
    pub fn invariants(&self) {
        self.owned.invariants();
    }

    fn end(&self) {
        self.open.store(0, Ordering::Release);
        self.notices.raise(self.place.slot);
    }

    /// Writes the label, which the program may compare with what it was told; nobody reads it back.
    fn write_label(&self, area: u64) {
        let Place {
            slot,
            offset,
            shape,
        } = self.place;
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

impl Channel {
    #[inline]
    fn take(&mut self, owned: &mut Owned) -> Result<Taken, Breach> {
        let (answers, promised) = (&mut self.answers, self.promised);
        let popped = self
            .requests
            .pop(|entries| answers.has_room(promised + entries))?;
        let record = match popped {
            Popped::Record(record) => record,
            Popped::Empty => return Ok(Taken::Empty),
            Popped::Left => return Ok(Taken::NoRoom),
        };
        for (claimed, pair) in record.pairs().iter().enumerate() {
            let chunk = self.requests.judge().chunk(pair);
            if !owned.claim(chunk) {
                // A record that is not accepted claims nothing.
                for pair in &record.pairs()[..claimed] {
                    owned.release(self.requests.judge().chunk(pair));
                }
                return Err(self.requests.breach(Rule::NotYours { chunk }));
            }
        }
        self.promised += record.entries();
        Ok(Taken::Record(record))
    }

    #[inline]
    fn give(&mut self, owned: &mut Owned, record: &Record, status: Status, stamp: u64) {
        let pairs: &[Pair] = record.pairs();
        for pair in pairs {
            let was = owned.release(self.requests.judge().chunk(pair));
            assert!(was, "a record of another flow, or given back twice");
        }
        self.promised -= record.entries();
        self.answers.push(status.0, stamp, pairs);
    }

    #[inline]
    fn show(&mut self) -> bool {
        self.requests.show() | self.answers.show()
    }

    fn moved(&mut self) -> Result<bool, Breach> {
        Ok(self.requests.moved()? || self.answers.moved()?)
    }
}

/// The first page of a memory file, as atomics.
pub(crate) struct Header<'a> {
    region: &'a Arc<Region>,
}

impl<'a> Header<'a> {
    pub(crate) fn new(region: &'a Arc<Region>) -> Header<'a> {
        Header { region }
    }

    fn write(&self, budget: &Budget, bytes: u64) {
        self.double(offset_of!(FileHeader, magic))[0].store(MAGIC, Ordering::Relaxed);
        self.double(offset_of!(FileHeader, bytes))[0].store(bytes, Ordering::Relaxed);
        self.word(offset_of!(FileHeader, flows))
            .store(budget.flows, Ordering::Relaxed);
        self.word(offset_of!(FileHeader, version))
            .store(VERSION, Ordering::Release);
    }

    /// Magic, version, bytes and flows, as they stand there.
    pub(crate) fn read(&self) -> (u64, u32, u64, u32) {
        let version = self.word(offset_of!(FileHeader, version));
        (
            self.double(offset_of!(FileHeader, magic))[0].load(Ordering::Relaxed),
            version.load(Ordering::Acquire),
            self.double(offset_of!(FileHeader, bytes))[0].load(Ordering::Relaxed),
            self.word(offset_of!(FileHeader, flows))
                .load(Ordering::Relaxed),
        )
    }

    pub(crate) fn ended(&self) -> Word {
        self.word(offset_of!(FileHeader, ended))
    }

    pub(crate) fn driver_sleeps(&self) -> Nap {
        Nap {
            flag: self.word(offset_of!(FileHeader, driver_sleeps)),
        }
    }

    pub(crate) fn program_sleeps(&self) -> Nap {
        Nap {
            flag: self.word(offset_of!(FileHeader, program_sleeps)),
        }
    }

    pub(crate) fn to_driver(&self, words: usize) -> Notices {
        self.notices(offset_of!(FileHeader, to_driver), words)
    }

    pub(crate) fn to_program(&self, words: usize) -> Notices {
        self.notices(offset_of!(FileHeader, to_program), words)
    }

    fn notices(&self, at: usize, words: usize) -> Notices {
        Notices {
            words: Words::new(self.region, field(at), words.min(WORDS)),
        }
    }

    fn word(&self, at: usize) -> Word {
        Word::new(self.region, field(at))
    }

    fn double(&self, at: usize) -> Words {
        Words::new(self.region, field(at), 1)
    }
}

/// Bytes of a packet that are fetched ahead.
const FORESEEN: u32 = 256;
const LOST: u64 = field(offset_of!(FlowHeader, lost));

const fn field(at: usize) -> u64 {
    at as u64
}

#[cfg(test)]
mod tests;
