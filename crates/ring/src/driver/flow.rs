//! The driver's side of one flow. [`Flow::take`] and [`Flow::take_empty`] hand out validated
//! records; [`Flow::give_back`] and [`Flow::deliver`] return them to the program. A call fails with
//! a [`Breach`] when the program broke a rule of `docs/reference/ring.md`; the caller must then
//! disconnect the program.

use std::mem::offset_of;
use std::sync::Arc;

use super::field;
use crate::bell::Notices;
use crate::breach::{Breach, Rule};
use crate::cursor::{Consumer, Ends, Popped, Producer};
use crate::layout::{FlowHeader, Place, Ring};
use crate::ledger::{Balance, Owned};
use crate::record::{From, Judge, Pair, Record, Status};
use crate::region::Region;
use crate::words::{Ordering, Word, Words};

/// The driver's side of a flow.
pub struct Flow {
    place: Place,
    region: Arc<Region>,
    /// Offset of the data area in the memory file.
    area: u64,
    transmit: Channel,
    receive: Channel,
    owned: Owned,
    lost: [u64; Loss::KINDS],
    label: Words,
    open: Word,
    notices: Notices,
}

/// One direction: records arrive in one ring and return in the other.
struct Channel {
    requests: Consumer,
    answers: Producer,
    /// Entries that the held records will use in the return ring.
    promised: u32,
}

/// The result of [`Flow::take`] and [`Flow::take_empty`].
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// A record. The driver owns its chunks until it gives the record back.
    Record(Record),
    /// The ring is empty.
    Empty,
    /// The return ring has no room, because the program does not collect returned records.
    NoRoom,
}

/// Why a flow lost a received packet. Each reason is the index of a counter of the flow in shared
/// memory, which the program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Loss {
    /// The flow had no empty record, or no room in its deliver ring.
    NoBuffer,
    /// The flow had used its share of the driver's processor time.
    OverShare,
    /// The packet was longer than the record.
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

    /// The number of the flow among the program's flows.
    pub fn slot(&self) -> u32 {
        self.place.slot
    }

    /// The location of the flow. The program needs it to use the flow.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Takes the next record that is to be sent.
    ///
    /// # Errors
    /// If the program broke a rule: disconnect it.
    #[inline]
    pub fn take(&mut self) -> Result<Taken, Breach> {
        self.transmit.take(&mut self.owned)
    }

    /// Prefetches what the next [`Flow::take`], [`Flow::give_back`] and [`Flow::publish`] read and
    /// write.
    #[inline]
    pub fn soon(&self) {
        self.transmit.requests.soon();
        self.transmit.answers.soon();
    }

    /// Takes the next empty record.
    ///
    /// # Errors
    /// If the program broke a rule: disconnect it.
    #[inline]
    pub fn take_empty(&mut self) -> Result<Taken, Breach> {
        self.receive.take(&mut self.owned)
    }

    /// Loads the program's indices until one has moved since the last load. False if none has. A
    /// caller uses it to find out whether a notification was useless. It is too expensive for each
    /// packet.
    ///
    /// # Errors
    /// If the program broke a rule: disconnect it.
    pub fn moved(&mut self) -> Result<bool, Breach> {
        Ok(self.transmit.moved()? || self.receive.moved()?)
    }

    /// Prefetches the first bytes of a record for the next [`Flow::read`]. The hardware prefetcher
    /// does not foresee these bytes.
    #[inline]
    pub fn soon_read(&self, record: &Record) {
        if let Some(pair) = record.pairs().first() {
            self.region
                .soon(self.area + u64::from(pair.base), pair.length.min(FORESEEN));
        }
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
    /// number of copied bytes.
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

    /// Gives a record of [`Flow::take`] back to the program. `stamp` is the time of sending in ns
    /// of `CLOCK_MONOTONIC`, or 0.
    #[inline]
    pub fn give_back(&mut self, record: Record, status: Status, stamp: u64) {
        self.transmit.give(&mut self.owned, &record, status, stamp);
    }

    /// Gives a record of [`Flow::take_empty`] back to the program, with its first `length` bytes
    /// filled. With `length` 0 the record returns unused. `stamp` is the time of reception in ns of
    /// `CLOCK_MONOTONIC`, or 0.
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

    /// Counts one lost packet of the flow.
    pub fn lost(&mut self, why: Loss) {
        self.lost_many(why, 1);
    }

    /// Counts `number` lost packets of the flow.
    #[inline]
    pub fn lost_many(&mut self, why: Loss, number: u64) {
        let count = &mut self.lost[why as usize];
        *count += number;
        self.label[why as usize].store(*count, Ordering::Relaxed);
    }

    /// Publishes the records that were taken and given back since the last call. True if there were
    /// any: the caller must then notify the program ([`Client::ring`](super::Client::ring)).
    #[inline]
    pub fn publish(&mut self) -> bool {
        let moved = self.transmit.show() | self.receive.show();
        if moved {
            self.notices.raise(self.place.slot);
        }
        moved
    }

    /// The chunks of the records that the driver holds (`in_use`), and all other chunks of the
    /// flow. A record counts as given back even before [`Flow::publish`].
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

    pub(super) fn end(&self) {
        self.open.store(0, Ordering::Release);
        self.notices.raise(self.place.slot);
    }

    /// Writes the label. The program may compare it with the place that it was given. The driver
    /// does not read it back.
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
                // A rejected record claims no chunk.
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

/// Bytes of a packet that `soon_read` prefetches.
const FORESEEN: u32 = 256;
const LOST: u64 = field(offset_of!(FlowHeader, lost));
